//! A placement of layers as frameworks spell it: Megatron's four ways (even, first and last counts,
//! embedding and loss as layers, a layout string) and torchtitan's lists of module names.
//!
//! Chunks are counted in model order: chunk `k` lives on rank `k mod pipeline_parallel`. Megatron's
//! rules are those of `Megatron-LM:megatron/core/transformer/transformer_block.py`
//! (`get_num_layers_to_build`) and `pipeline_parallel_layer_layout.py`.

use std::fmt::Write;

/// The simplest way in which Megatron expresses a placement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Split {
    /// As many layers in every chunk.
    Even,
    /// Given counts on the first and the last rank, as many layers on all others.
    FirstLast {
        /// Layers of the first rank, over all its chunks.
        first: Option<u32>,
        /// Layers of the last rank, over all its chunks.
        last: Option<u32>,
    },
    /// Even, with the embedding or the loss (or both) counted as one layer.
    Account {
        /// The first chunk has one layer less.
        embedding: bool,
        /// The last chunk has one layer less.
        loss: bool,
    },
    /// Anything else: a layout string, chunk by chunk.
    Layout(String),
}

/// Multi-token-prediction modules of a placement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Mtp {
    /// How many.
    pub modules: u32,
    /// They stand on the last chunk but one, not with the loss on the last.
    pub standalone: bool,
}

impl Mtp {
    /// No such modules.
    pub const NONE: Self = Self::beside_loss(0);

    /// With the loss.
    #[must_use]
    pub const fn beside_loss(modules: u32) -> Self {
        Self { modules, standalone: false }
    }
}

/// One chunk of a layout string.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stage {
    /// Embeddings (`E`).
    pub embeddings: u32,
    /// Decoder layers (`t`).
    pub decoders: u32,
    /// Multi-token-prediction modules (`m`).
    pub mtp: u32,
    /// Losses (`L`).
    pub losses: u32,
}

/// A placement that could not be read or does not fit the model.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// A character that no layer has.
    #[error("`{0}` is no layer of a pipeline layout; E, t, m and L are")]
    Letter(char),
    /// A repeat count that is missing or too large.
    #[error("the pipeline layout repeats `{0}` an unreadable number of times")]
    Repeat(String),
    /// Stages do not divide among ranks.
    #[error("{stages} stages of the pipeline layout do not divide among {ranks} ranks")]
    Stages {
        /// Stages found.
        stages: usize,
        /// Pipeline ranks.
        ranks: u32,
    },
    /// Embedding, loss or multi-token prediction stand where they may not.
    #[error("{0}")]
    Order(&'static str),
    /// Layers do not add up or do not divide.
    #[error("{0}")]
    Count(String),
}

/// Longest unrolled layout that is read: beyond any model, short of any memory.
const LONGEST: usize = 1 << 20;

const BEGIN: &str = "the pipeline layout must begin with one E and hold no other";
const END: &str = "the pipeline layout must end with one L and hold no other";
const MTP_LAST: &str = "no t may follow an m in the pipeline layout";

impl Split {
    /// The simplest expression of a placement.
    #[must_use]
    pub fn of(chunks: &[u32], pipeline_parallel: u32, virtual_stages: u32, mtp: Mtp) -> Self {
        let layers = chunks.iter().sum();
        let ranks = pipeline_parallel.max(1) as usize;
        let on_rank = |rank: usize| -> Option<u32> { Some(chunks.iter().skip(rank).step_by(ranks).sum()) };
        let (first, last) = (on_rank(0), on_rank(ranks - 1));
        let candidates = [
            Self::Even,
            Self::FirstLast { first, last: None },
            Self::FirstLast { first: None, last },
            Self::Account { embedding: true, loss: false },
            Self::Account { embedding: false, loss: true },
            Self::Account { embedding: true, loss: true },
            Self::FirstLast { first, last },
        ];
        for split in candidates.into_iter().filter(|_| !mtp.standalone) {
            if split.chunks(layers, pipeline_parallel, virtual_stages).is_ok_and(|found| found == chunks) {
                return split;
            }
        }
        Self::Layout(write_layout(chunks, mtp))
    }

    /// Layers of every chunk, as Megatron resolves them.
    ///
    /// # Errors
    /// What Megatron refuses: layers that do not divide, or a layout that breaks its grammar.
    pub fn chunks(
        &self,
        layers: u32,
        pipeline_parallel: u32,
        virtual_stages: u32,
    ) -> Result<Vec<u32>, LayoutError> {
        let (p, v) = (pipeline_parallel.max(1), virtual_stages.max(1));
        let count = p as usize * v as usize;
        // Layers of every rank; each rank spreads them over its chunks.
        let ranks: Vec<u32> = match self {
            Self::Even => vec![divide("layers", layers, p, "stages")?; p as usize],
            Self::Account { embedding, loss } => {
                let total = layers + u32::from(*embedding) + u32::from(*loss);
                vec![divide("layers, ends counted,", total, p, "stages")?; p as usize]
            }
            Self::FirstLast { first, last } => {
                // Megatron divides by the number of middle stages (transformer_layer.py get_transformer_layer_offset).
                if v > 1 && p == u32::from(first.is_some()) + u32::from(last.is_some()) {
                    let none = "first and last counts leave no stage between them, which several chunks per stage need";
                    return Err(LayoutError::Count(none.into()));
                }
                uneven_ends(layers, p, *first, *last)?
            }
            Self::Layout(text) => return layout_chunks(text, layers, p, None),
        };
        let mut each = Vec::with_capacity(ranks.len());
        for layers in ranks {
            each.push(divide("layers of a stage", layers, v, "chunks")?);
        }
        let mut chunks: Vec<u32> = each.iter().copied().cycle().take(count).collect();
        if let Self::Account { embedding, loss } = *self {
            for (counted, at) in [(embedding, 0), (loss, count - 1)] {
                if counted {
                    let none = || LayoutError::Count("an end chunk has no layer to give up".into());
                    chunks[at] = chunks[at].checked_sub(1).ok_or_else(none)?;
                }
            }
        }
        Ok(chunks)
    }
}

fn divide(what: &str, total: u32, by: u32, parts: &str) -> Result<u32, LayoutError> {
    if total % by == 0 {
        return Ok(total / by);
    }
    Err(LayoutError::Count(format!("{total} {what} do not divide among {by} {parts}")))
}

/// Layers of every rank where the first or the last has a count of its own.
fn uneven_ends(layers: u32, p: u32, first: Option<u32>, last: Option<u32>) -> Result<Vec<u32>, LayoutError> {
    if first == Some(0) || last == Some(0) {
        return Err(LayoutError::Count("the first and the last stage need at least one layer".into()));
    }
    let ends = u64::from(first.unwrap_or(0)) + u64::from(last.unwrap_or(0));
    let middle = p.checked_sub(u32::from(first.is_some()) + u32::from(last.is_some()));
    let left = u64::from(layers).checked_sub(ends).map(|left| left as u32);
    let (Some(left), Some(middle)) = (left, middle) else {
        return Err(LayoutError::Count(format!("the end stages hold {ends} of {layers} layers")));
    };
    if (left == 0) != (middle == 0) {
        return Err(LayoutError::Count(format!("{left} layers are left for {middle} middle stages")));
    }
    let each = if middle == 0 { 0 } else { divide("middle layers", left, middle, "stages")? };
    let mut ranks = vec![each; p as usize];
    if let Some(first) = first {
        ranks[0] = first;
    }
    if let Some(last) = last {
        ranks[p as usize - 1] = last;
    }
    Ok(ranks)
}

/// Writes Megatron's `--pipeline-model-parallel-layout`: `Et*7|(t*8|)*14,t*7,L`.
#[must_use]
pub fn write_layout(chunks: &[u32], mtp: Mtp) -> String {
    let last = chunks.len().saturating_sub(1);
    let with_mtp = last.saturating_sub(usize::from(mtp.standalone));
    let body = |at: usize| {
        let mut stage = String::from(if at == 0 { "E" } else { "" });
        match chunks[at] {
            n @ 0..=2 => stage.push_str(&"t".repeat(n as usize)),
            n => {
                let _ = write!(stage, "t*{n}");
            }
        }
        let modules = if at == with_mtp { mtp.modules as usize } else { 0 };
        let end = "m".repeat(modules) + if at == last { "L" } else { "" };
        let comma = if stage.ends_with(|c: char| c.is_ascii_digit()) && !end.is_empty() { "," } else { "" };
        stage + comma + &end
    };
    let mut text = String::new();
    let mut at = 0;
    while at < last {
        let stage = body(at);
        let run = (at..last).take_while(|&k| body(k) == stage).count();
        if run > 1 {
            let _ = write!(text, "({stage}|)*{run},");
        } else {
            let _ = write!(text, "{stage}|");
        }
        at += run;
    }
    if !chunks.is_empty() {
        text.push_str(&body(last));
    }
    text
}

/// Reads a layout string into its stages.
///
/// # Errors
/// Unknown letters, unreadable repeats, and letters in an order that no model has.
pub fn read_layout(text: &str) -> Result<Vec<Stage>, LayoutError> {
    let plain: Vec<char> = text.chars().filter(|&c| c != ',').collect();
    // Groups first, then single characters: the order in which Megatron unrolls them.
    let mut unrolled = Vec::new();
    let mut at = 0;
    while at < plain.len() {
        if plain[at] != '(' {
            unrolled.push(plain[at]);
            at += 1;
            continue;
        }
        let Some(close) = plain[at..].iter().position(|&c| c == ')').map(|n| at + n) else {
            return Err(LayoutError::Letter('('));
        };
        let group = &plain[at + 1..close];
        let (Some(count), next) = repeat_count(&plain, close + 1, group)? else {
            return Err(LayoutError::Letter('('));
        };
        if group.is_empty() || group.len() * count + unrolled.len() > LONGEST {
            return Err(LayoutError::Repeat(group.iter().collect()));
        }
        for _ in 0..count {
            unrolled.extend_from_slice(group);
        }
        at = next;
    }
    let mut stages = Vec::new();
    let mut open = Stage::default();
    let mut at = 0;
    while at < unrolled.len() {
        let letter = unrolled[at];
        let (count, next) = repeat_count(&unrolled, at + 1, &unrolled[at..=at])?;
        let count = count.unwrap_or(1);
        let small = count as u32;
        if open.losses > 0 && letter != '|' {
            return Err(LayoutError::Order(END));
        }
        match letter {
            'E' if open != Stage::default() => return Err(LayoutError::Order(BEGIN)),
            'E' => open.embeddings += small,
            't' if open.mtp > 0 => return Err(LayoutError::Order(MTP_LAST)),
            't' => open.decoders += small,
            'm' => open.mtp += small,
            'L' => open.losses += small,
            '|' if count + stages.len() > LONGEST => return Err(LayoutError::Repeat("|".into())),
            '|' => {
                for _ in 0..count {
                    stages.push(std::mem::take(&mut open));
                }
            }
            found => return Err(LayoutError::Letter(found)),
        }
        at = next;
    }
    stages.push(open);
    Ok(stages)
}

/// `*n` at `at`, if it is there: the count and where the text goes on.
fn repeat_count(text: &[char], at: usize, what: &[char]) -> Result<(Option<usize>, usize), LayoutError> {
    if text.get(at) != Some(&'*') {
        return Ok((None, at));
    }
    let digits: String = text[at + 1..].iter().take_while(|c| c.is_ascii_digit()).collect();
    let unreadable = || LayoutError::Repeat(what.iter().collect());
    let count: usize = digits.parse().ok().filter(|&n| n <= LONGEST).ok_or_else(unreadable)?;
    Ok((Some(count), at + 1 + digits.len()))
}

/// Decoder layers of every chunk of a layout string, after all checks that Megatron makes. With
/// `mtp`, the number of multi-token-prediction modules that must be there.
///
/// # Errors
/// The first check that fails.
pub fn layout_chunks(
    text: &str,
    layers: u32,
    pipeline_parallel: u32,
    mtp: Option<u32>,
) -> Result<Vec<u32>, LayoutError> {
    let stages = read_layout(text)?;
    let ranks = pipeline_parallel.max(1);
    if stages.len() % ranks as usize != 0 {
        return Err(LayoutError::Stages { stages: stages.len(), ranks });
    }
    let total = |of: fn(&Stage) -> u32| stages.iter().map(|s| u64::from(of(s))).sum::<u64>();
    if total(|s| s.embeddings) != 1 || stages[0].embeddings != 1 {
        return Err(LayoutError::Order(BEGIN));
    }
    if total(|s| s.losses) != 1 || stages[stages.len() - 1].losses != 1 {
        return Err(LayoutError::Order(END));
    }
    let found = total(|s| s.decoders);
    if found != u64::from(layers) {
        return Err(LayoutError::Count(format!(
            "the pipeline layout holds {found} decoder layers, but the model has {layers}"
        )));
    }
    let modules = total(|s| s.mtp);
    if let Some(mtp) = mtp.filter(|&mtp| u64::from(mtp) != modules) {
        return Err(LayoutError::Count(format!(
            "the pipeline layout holds {modules} m, but the model predicts {mtp} further tokens"
        )));
    }
    if let Some(at) = stages.iter().position(|s| s.mtp > 0) {
        if stages[at + 1..].iter().any(|s| s.decoders > 0) {
            return Err(LayoutError::Order(MTP_LAST));
        }
        if u64::from(stages[at].mtp) != modules {
            return Err(LayoutError::Order("all m of the pipeline layout must stand on one stage"));
        }
        if at < stages.len() - ranks as usize {
            return Err(LayoutError::Order(
                "the m of the pipeline layout must stand on the last chunk of a rank",
            ));
        }
    }
    Ok(stages.iter().map(|s| s.decoders).collect())
}

/// torchtitan's `module_fqns_per_model_part`: names of the modules of every chunk, in model order.
#[must_use]
pub fn module_names(chunks: &[u32]) -> Vec<Vec<String>> {
    let mut layer = 0..;
    let last = chunks.len().saturating_sub(1);
    let mut parts = Vec::with_capacity(chunks.len());
    for (at, &count) in chunks.iter().enumerate() {
        let mut names = Vec::new();
        if at == 0 {
            names.push("tok_embeddings".to_owned());
        }
        names.extend(layer.by_ref().take(count as usize).map(|n: u32| format!("layers.{n}")));
        if at == last {
            names.extend(["norm".to_owned(), "lm_head".to_owned()]);
        }
        parts.push(names);
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_layouts() {
        let llama: Vec<u32> = [7].into_iter().chain([8; 14]).chain([7]).collect();
        assert_eq!(write_layout(&llama, Mtp::NONE), "Et*7|(t*8|)*14,t*7,L");
        assert_eq!(layout_chunks("Et*7|(t*8|)*14,t*7,L", 126, 16, Some(0)), Ok(llama.clone()));
        // The same by counting the ends as layers.
        assert_eq!(Split::of(&llama, 16, 1, Mtp::NONE), Split::Account { embedding: true, loss: true });
        // DeepSeek-V3, its multi-token prediction on a stage of its own.
        let chunks = layout_chunks("Et*3|(tt|)*29,m|L", 61, 16, Some(1)).unwrap();
        assert_eq!(chunks, [&[3][..], &[2; 29], &[0, 0]].concat());
        let standalone = Mtp { modules: 1, standalone: true };
        assert_eq!(write_layout(&chunks, standalone), "Et*3|(tt|)*29,m|L");
        // No other flag says so, even where the counts would be even.
        assert_eq!(Split::of(&[2, 2, 0, 0], 4, 1, standalone), Split::Layout("Ett|tt|m|L".into()));
        assert_eq!(layout_chunks("Et*5|(t*6|)*14,t*5L", 94, 8, None).unwrap().len(), 16);
    }

    #[test]
    fn the_simplest_expression_is_chosen() {
        assert_eq!(Split::of(&[8; 4], 4, 1, Mtp::NONE), Split::Even);
        assert_eq!(Split::of(&[2; 8], 4, 2, Mtp::beside_loss(1)), Split::Even);
        assert_eq!(
            Split::of(&[7, 8, 8, 8], 4, 1, Mtp::NONE),
            Split::FirstLast { first: Some(7), last: None }
        );
        assert_eq!(
            Split::of(&[8, 8, 8, 6], 4, 1, Mtp::NONE),
            Split::FirstLast { first: None, last: Some(6) }
        );
        assert_eq!(
            Split::of(&[6, 8, 8, 7], 4, 1, Mtp::NONE),
            Split::FirstLast { first: Some(6), last: Some(7) }
        );
        // Without a stage in between Megatron cannot place several chunks per stage.
        let both = Split::FirstLast { first: Some(8), last: Some(4) };
        assert_eq!(both.chunks(12, 2, 1), Ok(vec![8, 4]));
        assert!(both.chunks(12, 2, 2).is_err());
        assert_eq!(both.chunks(20, 3, 2), Ok(vec![4, 4, 2, 4, 4, 2]));
        assert_eq!(
            Split::of(&[4, 2, 4, 2], 2, 2, Mtp::NONE),
            Split::FirstLast { first: Some(8), last: None }
        );
        assert_eq!(
            Split::of(&[1, 2, 2, 2], 2, 2, Mtp::NONE),
            Split::Account { embedding: true, loss: false }
        );
        assert_eq!(
            Split::of(&[2, 2, 2, 1], 2, 2, Mtp::NONE),
            Split::Account { embedding: false, loss: true }
        );
        assert_eq!(Split::of(&[0, 8, 6], 3, 1, Mtp::NONE), Split::Layout("E|t*8|t*6,L".into()));
        assert_eq!(
            Split::of(&[3, 0, 0, 5], 4, 1, Mtp::beside_loss(2)),
            Split::Layout("Et*3|(|)*2,t*5,mmL".into())
        );
    }

    #[test]
    fn every_placement_survives_writing_and_reading() {
        let mut state = 7_u64;
        for _ in 0..5000 {
            let mut next = |most: u64| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                ((state >> 33) % most) as u32
            };
            let (p, v, modules) = (next(6) + 1, next(3) + 1, next(3));
            let v = if p == 1 { 1 } else { v };
            let mtp = Mtp { modules, standalone: p > 2 && modules > 0 && next(3) == 0 };
            let even = next(2) == 0;
            let base = next(4);
            let mut chunks: Vec<u32> =
                (0..p * v).map(|_| if even { base + u32::from(next(5) == 0) } else { next(5) }).collect();
            if let Some(last) = chunks.last_mut().filter(|_| mtp.standalone) {
                *last = 0;
            }
            let layers = chunks.iter().sum();
            let split = Split::of(&chunks, p, v, mtp);
            assert_eq!(split.chunks(layers, p, v).as_ref(), Ok(&chunks), "{split:?}");
            let text = write_layout(&chunks, mtp);
            assert_eq!(layout_chunks(&text, layers, p, Some(modules)).as_ref(), Ok(&chunks), "{text}");
            let stages = read_layout(&text).unwrap();
            let at = stages.iter().position(|stage| stage.mtp > 0);
            let expected = (modules > 0).then_some(chunks.len() - 1 - usize::from(mtp.standalone));
            assert_eq!(at, expected, "{text}");
        }
    }

    #[test]
    fn wrong_layouts_are_refused() {
        let read = |text: &str| layout_chunks(text, 32, 4, Some(0)).map_err(|e| e.to_string());
        for (text, expected) in [
            ("Et*8|(x*8|)*2,t*8L", "`x` is no layer"),
            ("Et*7|(t*8|)*2,t*8L", "31 decoder layers"),
            ("Et*8|(t*8|)*2,t*8", "must end with one L"),
            ("Et*8|(t*8|)*2,Lt*8", "must end with one L"),
            ("t*8|(t*8|)*2,t*8L", "must begin with one E"),
            ("t*8E|(t*8|)*2,t*8L", "must begin with one E"),
            ("E|(t*8|)*3,t*8L", "5 stages"),
            ("Et*8|(t*8|*2,t*8L", "`(` is no layer"),
            ("Et*8|(t*8|)*,t*8L", "unreadable number"),
            ("Et*8|t*99999999999999999999|t|L", "unreadable number"),
            ("Et*8|t*8|t*8|t*8mL", "1 m, but the model predicts 0"),
        ] {
            let found = read(text).unwrap_err();
            assert!(found.contains(expected), "{text}: {found}");
        }
        let mtp = |text: &str| layout_chunks(text, 32, 2, Some(1)).unwrap_err().to_string();
        assert!(mtp("Em|t*16|t*16|L").contains("no t may follow"));
        assert!(mtp("Et*32|m||L").contains("last chunk"));
        assert!(layout_chunks("Et*32||m|L", 32, 2, Some(1)).is_ok());
    }

    #[test]
    fn torchtitan_parts_name_every_module_once() {
        let parts = module_names(&[1, 2, 0]);
        assert_eq!(parts[0], ["tok_embeddings", "layers.0"]);
        assert_eq!(parts[1], ["layers.1", "layers.2"]);
        assert_eq!(parts[2], ["norm", "lm_head"]);
    }
}
