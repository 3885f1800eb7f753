//! Flags of a Megatron-LM command, each with its values and line.

use std::collections::{BTreeMap, BTreeSet};

use super::super::export::one_line;
use super::super::shell::{
    HANDED, ImportError, Launch, Origin, UNTOLD, Word, is_unknown, shown, untold_value,
};
use super::read_rules::ReadRule;
use super::values::{is_earlier, is_neutral, neutral};
use crate::spec::shipped::nearest;

/// The switch that Megatron-DeepSpeed's commands have.
pub(super) const DEEPSPEED: &str = "--deepspeed";

/// Flags of earlier versions and of forks, and what they are called now.
const RENAMED: &[(&str, &str)] = &[
    ("--encoder-num-layers", "--num-layers"),
    ("--encoder-seq-length", "--seq-length"),
    ("--batch-size", "--micro-batch-size"),
    ("--hybrid-override-pattern", "--hybrid-layer-pattern"),
    ("--model-parallel-size", "--tensor-model-parallel-size"),
    ("--activations-checkpoint-method", "--recompute-method"),
    ("--activations-checkpoint-num-layers", "--recompute-num-layers"),
    ("--num-key-value-heads", "--num-query-groups"),
    ("--layernorm-epsilon", "--norm-epsilon"),
    ("--rotary-position-embeddings-theta", "--rotary-base"),
    ("--cuda-graph-scope", "--cuda-graph-modules"),
    ("--moe-intermediate-size", "--moe-ffn-hidden-size"),
];

/// Names among them that the parser of today does not have.
const UNKNOWN_TODAY: &[&str] = &[
    "--activations-checkpoint-method",
    "--activations-checkpoint-num-layers",
    "--layernorm-epsilon",
    "--moe-intermediate-size",
    "--num-key-value-heads",
    "--rotary-position-embeddings-theta",
];

/// Flags that the parser takes only for the set-up to refuse them, and what to say today (`training/arguments.py`
/// validate_args).
const WITHDRAWN: &[(&str, &str)] = &[
    ("--batch-size", "--micro-batch-size"),
    (
        "--checkpoint-activations",
        "--recompute-activations, or --recompute-granularity and --recompute-method",
    ),
    ("--model-parallel-size", "--tensor-model-parallel-size"),
    ("--warmup", "--lr-warmup-fraction"),
];

/// Flags of degrees and batches: without one of them a command has another layout, which as often as not is legal too.
const DEGREES: &[&str] = &[
    "--context-parallel-size",
    "--ds-sequence-parallel-size",
    "--expert-model-parallel-size",
    "--expert-tensor-parallel-size",
    "--global-batch-size",
    "--num-layers-per-virtual-pipeline-stage",
    "--num-virtual-stages-per-pipeline-rank",
    "--pipeline-model-parallel-layout",
    "--pipeline-model-parallel-size",
    "--tensor-model-parallel-size",
];

/// Looks for flags of earlier versions in a command that is none of Megatron-DeepSpeed. Those that the parser of today
/// does not have show that another version, or a fork, reads the command: they are a note.
///
/// # Errors
/// A withdrawn flag in a command that nothing else shows to be of another version.
fn of_earlier_versions(arguments: &[Word]) -> Read<Option<String>> {
    let named = || {
        let flags = arguments.iter().filter(|word| word.text.starts_with("--"));
        flags.map(|word| (word.text.split('=').next().unwrap_or_default(), word.line))
    };
    if named().any(|(name, _)| name == DEEPSPEED) {
        // Megatron-DeepSpeed has kept one of them.
        let old =
            |name: &str| WITHDRAWN.iter().find(|(old, _)| *old == name && name != "--checkpoint-activations");
        let first = named().find_map(|(name, line)| Some((old(name)?, line)));
        return Ok(first.map(|((name, now), line)| {
            format!("line {line}: {name} is read as {now}: Megatron-DeepSpeed of today refuses the old name (megatron/arguments.py)")
        }));
    }
    let unknown = |name: &str| UNKNOWN_TODAY.contains(&name) || is_earlier(name);
    let withdrawn = |name: &str| WITHDRAWN.iter().find(|(old, _)| *old == name).map(|(_, now)| *now);
    if !named().any(|(name, _)| unknown(name)) {
        let first = named().find_map(|(name, line)| Some((name, withdrawn(name)?, line)));
        return first.map_or(Ok(None), |(name, now, line)| {
            Err(ReadRule::Withdrawn.broken(line, format!("Megatron-LM refuses {name}: today it is {now}")))
        });
    }
    let shown = named().filter(|(name, _)| unknown(name) || withdrawn(name).is_some()).map(|(name, line)| {
        let renamed = RENAMED.iter().find(|(old, _)| *old == name).map(|(_, now)| *now);
        let now = withdrawn(name).or(renamed).map_or(String::new(), |now| format!(", today {now}"));
        format!("{name} (line {line}{now})")
    });
    let shown: Vec<String> = shown.collect();
    Ok(Some(format!(
        "flags that Megatron-LM of today refuses are read as those of an earlier version or of a fork: {}",
        shown.join(", ")
    )))
}

/// Names of one flag of which the framework refuses two (`training/arguments.py` validate_args).
const NAMED_ONCE: &[&str] = &["--encoder-num-layers", "--encoder-seq-length", "--cuda-graph-scope"];

/// The text of a number without the underscores that Python allows between digits.
fn without_underscores(text: &str) -> Option<String> {
    let text = text.trim();
    let digit = |c: Option<char>| c.is_some_and(|c| c.is_ascii_digit());
    let apart = text
        .match_indices('_')
        .all(|(at, _)| digit(text[..at].chars().next_back()) && digit(text[at + 1..].chars().next()));
    apart.then(|| text.replace('_', ""))
}

/// A whole number as Python's `int` reads it: `4096`, `+4096`, `4_096`.
#[must_use]
pub fn whole_number(text: &str) -> Option<u64> {
    integer(text).and_then(|number| u64::try_from(number).ok())
}

/// The same with a sign: `-1`.
pub(super) fn integer(text: &str) -> Option<i128> {
    without_underscores(text)?.parse().ok()
}

/// A number as Python's `float` reads it: `1e-4`, `1_000.5`.
pub(in crate::frameworks) fn real_number(text: &str) -> Option<f64> {
    without_underscores(text)?.parse().ok()
}

/// Flags of a command, each with its values and line; what is asked for is taken out.
pub(super) struct Flags {
    pub(super) map: BTreeMap<String, (Vec<String>, usize)>,
    /// All flags, taken out or not.
    pub(super) given: BTreeMap<String, (Vec<String>, usize)>,
    /// Flags that are given again further on, which count: the parser converts every one that it meets.
    pub(super) earlier: Vec<(String, (Vec<String>, usize))>,
    /// Names that were asked for, given or not.
    pub(super) asked: BTreeSet<String>,
    /// Whether nothing shows that a fork or an earlier version reads the command, whose flags are not all known.
    of_today: bool,
    /// Lines of flags that only a running shell knows.
    left_out: Vec<usize>,
    /// Flags that say degrees, shapes or batches and may or may not be set, with their lines.
    undecided: BTreeSet<(usize, String)>,
    /// There are flags that may or may not be set and say no degrees.
    perhaps_set: bool,
    /// Where the values come from that only a running shell knows.
    origins: BTreeMap<String, Origin>,
    /// What stands on lines of the command that nothing sets.
    unset: BTreeMap<usize, Origin>,
    /// Lines of what only a running shell knows behind flags that take no value.
    pub(super) behind_switches: Vec<usize>,
    /// The first value behind a flag that takes none.
    pub(super) spare: Option<ImportError>,
    /// Line of the command.
    pub(super) line: usize,
}

/// A flag that is like a known one.
pub(super) struct Misspelt<'a> {
    pub(super) name: &'a str,
    /// The known one.
    pub(super) near: &'a str,
    /// Where it stands.
    pub(super) line: usize,
    /// In words.
    pub(super) text: String,
    /// Whether it is taken for an error.
    pub(super) refused: bool,
}

pub(super) type Read<T> = Result<T, ImportError>;

/// Share of a flag's letters up to which another may differ and still be meant.
const SPELT_WRONGLY: f64 = 0.15;

/// Whether a flag looks like another one that was spelt wrongly.
pub(in crate::frameworks) fn misspelt(found: &str, meant: &str) -> bool {
    let (letters, wanted) = (found.chars().count(), meant.chars().count());
    // Letters beyond the other's length all differ.
    if letters.abs_diff(wanted) as f64 > SPELT_WRONGLY * letters.max(wanted) as f64 {
        return false;
    }
    likeness(found, meant) > 1.0 - SPELT_WRONGLY
}

/// Letters by which two flags differ where one of them is a slip, and letters of a word from which on that is none but a slip:
/// `--o-lora-rank` is another flag than `--q-lora-rank`.
const SLIP: usize = 2;
const LONG_WORD: usize = 4;

/// Whether a flag is another one but for a slip: not for a number in it, as of `--adam-beta3`.
fn differs_by_a_slip(found: &str, meant: &str) -> bool {
    let found = plain(found);
    let letters = |flag: &str| flag.replace(|c: char| c.is_ascii_digit(), "");
    let words = || found.split('-').zip(meant.split('-'));
    let another_word = found.split('-').count() == meant.split('-').count()
        && words().any(|(one, other)| one != other && one.len().max(other.len()) < LONG_WORD);
    strsim::damerau_levenshtein(&found, meant) <= SLIP && letters(&found) != letters(meant) && !another_word
}

/// Whether a flag of several words is another one but for a word.
fn lacks_a_word(found: &str, meant: &str) -> bool {
    let words = |flag: &str| flag.trim_start_matches('-').split(['-', '_']).map(str::to_owned).collect();
    let (found, meant): (Vec<String>, Vec<String>) = (words(found), words(meant));
    let same = found.iter().zip(&meant).take_while(|(one, other)| one == other).count();
    found.len() > 1 && found.len() + 1 == meant.len() && found[same..] == meant[same + 1..]
}

/// A flag whatever stands between its words.
fn plain(flag: &str) -> String {
    flag.replace('_', "-").to_lowercase()
}

/// The share of two flags' letters that is the same.
fn likeness(found: &str, meant: &str) -> f64 {
    strsim::normalized_damerau_levenshtein(&plain(found), meant)
}

/// Flags beside which the model is told elsewhere, and where.
const ELSEWHERE: &[(&str, &str)] = &[
    ("--use-checkpoint-args", "its checkpoint says the model (--use-checkpoint-args), and is not read"),
    (
        "--model_name_or_path",
        "the script trains a model of Hugging Face's; such a launch is read where it hands a DeepSpeed configuration on",
    ),
    (
        "--model-name-or-path",
        "the script trains a model of Hugging Face's; such a launch is read where it hands a DeepSpeed configuration on",
    ),
];

/// What a person has to know of flags that were not read.
pub(super) fn left_out_note(line: usize) -> String {
    format!(
        "line {line}: flags that only a running shell knows are left out; degrees among them count as not given"
    )
}

/// Arguments on the lines where their flags stand: what a variable or a string of several lines holds came with
/// another one.
fn placed(arguments: &[Word], text: &str) -> Vec<Word> {
    let lines: Vec<&str> = text.lines().collect();
    let count = |line: usize, name: &str| {
        line.checked_sub(1).and_then(|at| lines.get(at)).map_or(0, |text| times(text, name))
    };
    let mut placed = arguments.to_vec();
    let mut by_name: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (at, word) in arguments.iter().enumerate().filter(|(_, word)| word.text.starts_with("--")) {
        by_name.entry(word.text.split('=').next().unwrap_or_default()).or_default().push(at);
    }
    for (name, all) in by_name {
        let claims = |line: usize| all.iter().filter(|at| arguments[**at].line == line).count();
        let stands = |at: &usize| claims(arguments[*at].line) <= count(arguments[*at].line, name);
        if all.iter().all(stands) {
            continue;
        }
        let places: Vec<usize> =
            (1..=lines.len()).flat_map(|line| std::iter::repeat_n(line, count(line, name))).collect();
        for (n, at) in all.iter().enumerate() {
            let own = if places.len() == all.len() { places.get(n) } else { places.first() };
            if let Some(line) = own.filter(|_| places.len() == all.len() || !stands(at)) {
                placed[*at].line = *line;
            }
        }
    }
    placed
}

/// How often a flag stands in a line that is no comment.
fn times(line: &str, name: &str) -> usize {
    if line.trim_start().starts_with('#') {
        return 0;
    }
    let part = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
    let whole = line.match_indices(name).filter(|(at, _)| !line[at + name.len()..].starts_with(part));
    whole.count()
}

impl Flags {
    /// The flags of a launch whose script is `text`.
    pub(super) fn new(launch: &Launch, text: &str, notes: &mut Vec<String>) -> Read<Self> {
        let (arguments, text_of_script) = (placed(&launch.arguments, text), text);
        let line = launch.script.as_ref().or(launch.arguments.first()).map_or(1, |w| w.line);
        let earlier_version = of_earlier_versions(&arguments)?;
        let fork = arguments.iter().any(|word| word.text == DEEPSPEED);
        let of_today = earlier_version.is_none() && !fork;
        notes.extend(earlier_version);
        let mut map: BTreeMap<String, (Vec<String>, usize)> = BTreeMap::new();
        let mut earlier: Vec<(String, (Vec<String>, usize))> = Vec::new();
        let mut open: Option<String> = None;
        let mut left_out = Vec::new();
        for Word { text, line } in &arguments {
            if text.starts_with("--") {
                let (name, value) = match text.split_once('=') {
                    Some((name, value)) => (name.to_owned(), vec![value.to_owned()]),
                    None => (text.clone(), Vec::new()),
                };
                let renamed = RENAMED.iter().find(|(old, _)| *old == name);
                if let Some((old, new)) = renamed.filter(|(old, _)| NAMED_ONCE.contains(old)) {
                    let own = |word: &Word| word.text.split('=').next() == Some(new);
                    if arguments.iter().any(own) {
                        let text = format!("{old} and {new} are one flag: the command has both");
                        return Err(ReadRule::OneName.broken(*line, text));
                    }
                }
                let name = renamed.map_or(name, |(_, new)| (*new).to_owned());
                earlier.extend(map.remove_entry(&name));
                map.insert(name.clone(), (value, *line));
                open = Some(name);
            } else if text
                .strip_prefix('-')
                .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_alphabetic()))
            {
                let text = one_line(text);
                return Err(ImportError::new(*line, format!("`{text}` is no flag: flags begin with `--`")));
            } else {
                // A word of which nothing is known may be flags, unless a flag still lacks its value.
                let lacks = open.as_ref().and_then(|name| map.get(name)).is_some_and(|(v, _)| v.is_empty());
                if is_unknown(text) && (open.is_none() || (!lacks && shown(text) == "$…")) {
                    let given = launch.unset_on(text_of_script, *line).map(|origin| origin.remedy());
                    notes.push(
                        given.map_or(left_out_note(*line), |how| format!("{}; {how}", left_out_note(*line))),
                    );
                    left_out.push(*line);
                    continue;
                }
                let Some(name) = &open else {
                    return Err(ImportError::new(*line, format!("`{}` follows no flag", one_line(text))));
                };
                if let Some((values, _)) = map.get_mut(name) {
                    values.push(text.clone());
                }
            }
        }
        // The parser lets the last one win; where they differ, one of them may be a mistake.
        for (name, (values, at)) in &earlier {
            let now = map.get(name);
            if let Some((last, line)) = now.filter(|(last, _)| last != values) {
                let (first, last) = (values.join(" "), last.join(" "));
                notes.push(format!(
                    "{name} is given twice, as `{}` in line {at} and as `{}` in line {line}: the last one counts",
                    shown(&one_line(&first)),
                    shown(&one_line(&last))
                ));
            }
        }
        let given = map.clone();
        let unknown = given.iter().filter(|(_, (values, _))| values.iter().any(|value| is_unknown(value)));
        let origins = unknown
            .filter_map(|(name, (_, line))| Some((name.clone(), launch.origin_of(text, *line, name)?)))
            .collect();
        let unset = arguments.iter().filter(|word| is_unknown(&word.text));
        let unset = unset.filter_map(|word| Some((word.line, launch.unset_on(text, word.line)?))).collect();
        // Before there was a granularity, a method alone meant that whole layers are recomputed.
        let method = |w: &&Word| w.text.split('=').next() == Some("--activations-checkpoint-method");
        let said = ["--recompute-granularity", "--recompute-activations", "--checkpoint-activations"];
        let said = said.iter().any(|name| map.contains_key(*name));
        let old = arguments.iter().find(method);
        if let Some(word) = old.filter(|_| !said && !map.contains_key("--deepspeed-activation-checkpointing"))
        {
            map.insert("--recompute-granularity".into(), (vec!["full".into()], word.line));
            map.entry("--recompute-num-layers".into()).or_insert((vec!["1".into()], word.line));
        }
        Ok(Self {
            given,
            earlier,
            map,
            asked: BTreeSet::new(),
            of_today,
            left_out,
            undecided: launch.undecided.clone(),
            perhaps_set: !launch.perhaps_set.is_empty(),
            origins,
            unset,
            behind_switches: Vec::new(),
            spare: None,
            line,
        })
    }

    /// Whether the command is one of Megatron-DeepSpeed, whose flags differ.
    pub(super) fn is_fork(&self) -> bool {
        self.given.contains_key(DEEPSPEED)
    }

    /// Whether there are flags that only a running shell knows.
    pub(super) fn leaves_out(&self) -> bool {
        !self.left_out.is_empty() || self.perhaps_set || !self.behind_switches.is_empty()
    }

    /// Flags that are likely misspelt, with the known ones that they are like, in words, and whether that is an error.
    pub(super) fn misspelt(&self) -> impl Iterator<Item = Misspelt<'_>> {
        self.map.iter().filter(|(name, _)| !is_neutral(name)).filter_map(|(name, (_, line))| {
            let near = self.meant(name)?;
            let refused = misspelt(name, near)
                && (DEGREES.contains(&near) || self.of_today && differs_by_a_slip(name, near));
            let text = format!("{name} is not understood: did you mean {near}?");
            Some(Misspelt { name, near, line: *line, text, refused })
        })
    }

    /// Refuses a command with flags that are likely misspelt: the framework does, and without one that says degrees or the
    /// batch the layout is another.
    pub(super) fn spells(&self) -> Read<()> {
        let refused = self.misspelt().filter(|one| one.refused);
        ImportError::all(refused.map(|one| (one.line, one.text)).collect())
    }

    /// Refuses a command of which a part is unknown that could hold its degrees.
    pub(super) fn knows_degrees(&self) -> Read<()> {
        let whole = |values: &Vec<String>| values.iter().any(|value| shown(value) == "$…");
        let again = self.earlier.iter().filter(|(_, (values, _))| whole(values)).map(|(_, (_, line))| *line);
        let lines: Vec<usize> =
            self.left_out.iter().chain(&self.behind_switches).copied().chain(again).collect();
        let Some(&first) = lines.first() else { return Ok(()) };
        if let Some((line, name)) = self.undecided.first() {
            let text = format!(
                "whether {name} is set {UNTOLD}, and the plan's degrees of parallelism, the model or the batch depend on it: \
                 write out what the command has"
            );
            return Err(ImportError::new(*line, text));
        }
        let needed = [
            ("--tensor-model-parallel-size", true),
            ("--pipeline-model-parallel-size", !self.given.contains_key("--no-pipeline-parallel")),
            ("--expert-model-parallel-size", !self.is_fork() && self.given.contains_key("--num-experts")),
        ];
        let lacking: Vec<&str> = needed
            .into_iter()
            .filter(|(name, needed)| *needed && !self.given.contains_key(*name))
            .map(|(name, _)| name)
            .collect();
        // What nothing sets is empty unless somebody sets it.
        let empty = lines.iter().all(|line| self.unset.contains_key(line));
        let said = ["--tensor-model-parallel-size", "--pipeline-model-parallel-size"]
            .iter()
            .any(|name| self.given.contains_key(*name));
        if lacking.is_empty() || empty && said {
            return Ok(());
        }
        let line = lines.iter().find(|line| !self.unset.contains_key(line)).unwrap_or(&first);
        let remedy = match self.unset.get(line) {
            Some(origin) => origin.remedy(),
            None => format!("write out {}", lacking.join(", ")),
        };
        let text =
            format!("part of the command {UNTOLD}, and the degrees of parallelism may be in it: {remedy}");
        Err(ImportError::new(*line, text))
    }

    /// Takes a flag out.
    pub(super) fn take(&mut self, name: &str) -> Option<(Vec<String>, usize)> {
        self.asked.insert(name.to_owned());
        self.map.remove(name)
    }

    /// Whether a flag was looked for so far.
    pub(super) fn was_asked(&self, name: &str) -> bool {
        self.asked.contains(name)
    }

    /// The known flag that one of the command may be meant for: the nearest that is not given.
    pub(super) fn meant(&self, name: &str) -> Option<&str> {
        let known = self.asked.iter().map(String::as_str).chain(neutral().map(|name| -> &str { name }));
        let near = known.filter(|other| !self.given.contains_key(*other));
        let near = near.filter(|other| misspelt(name, other) || lacks_a_word(name, other));
        near.max_by(|one, other| likeness(name, one).total_cmp(&likeness(name, other)))
    }

    /// The flag in which the text ends, if it is none that was asked for and others begin with it.
    pub(super) fn cut_off(&self, text: &str) -> Option<(&str, usize)> {
        let (name, (_, line)) = self.map.iter().find(|(name, _)| text.trim_end().ends_with(name.as_str()))?;
        let mut known = self.asked.iter().map(String::as_str).chain(neutral().map(|name| -> &str { name }));
        let longer = |known: &str| known.len() > name.len() && known.starts_with(name.as_str());
        (!is_neutral(name) && known.any(longer)).then_some((name, *line))
    }

    /// A flag that must be there is not.
    pub(super) fn missing(&self, name: &str) -> ImportError {
        let near = self.map.iter().find(|(other, _)| misspelt(other, name));
        match near {
            Some((other, (_, line))) => {
                ImportError::new(*line, format!("the command has no {name}: did you mean it by {other}?"))
            }
            None => match self.left_out.first().copied() {
                Some(line) => {
                    let text =
                        format!("the command has no {name}, and flags that only a running shell knows");
                    ImportError::new(line, text)
                }
                None => {
                    let said = ELSEWHERE.iter().find(|(flag, _)| self.given.contains_key(*flag));
                    let why = said.map_or("is the script cut off?", |(_, why)| why);
                    ImportError::new(self.line, format!("the command has no {name}: {why}"))
                }
            },
        }
    }

    /// The line of the first of these flags that was given, taken out or not; else that of the command.
    pub(super) fn line_of(&self, names: &[&str]) -> usize {
        names.iter().find_map(|name| self.given.get(*name)).map_or(self.line, |(_, line)| *line)
    }

    pub(super) fn line(&self, name: &str) -> usize {
        self.line_of(&[name])
    }

    /// A switch.
    pub(super) fn on(&mut self, name: &str) -> bool {
        let taken = self.take(name);
        let earlier = self.earlier.iter().filter(|(earlier, _)| earlier == name);
        for (values, line) in earlier.map(|(_, given)| given) {
            if let Some(value) = values.first().filter(|value| !is_unknown(value)) {
                let text = format!("{name} takes no value, found `{}`", one_line(value));
                self.spare.get_or_insert_with(|| ImportError::new(*line, text));
            }
        }
        let Some((values, line)) = &taken else { return false };
        if values.iter().any(|value| shown(value) == "$…") {
            self.behind_switches.push(*line);
        } else if let Some(value) = values.first() {
            let text = format!("{name} takes no value, found `{}`", shown(&one_line(value)));
            self.spare.get_or_insert_with(|| ImportError::new(*line, text));
        }
        true
    }

    /// The values of a flag.
    pub(super) fn values(&mut self, name: &str) -> Read<Option<(Vec<String>, usize)>> {
        let Some((values, line)) = self.take(name) else { return Ok(None) };
        if values.is_empty() {
            return Err(ImportError::new(
                line,
                format!("{name} has no value: is the script cut off, or what stands for it empty? {HANDED}"),
            ));
        }
        if let Some(value) = values.iter().find(|v| is_unknown(v)) {
            return Err(ImportError::new(line, untold_value(name, value, self.origins.get(name))));
        }
        Ok(Some((values, line)))
    }

    pub(super) fn text(&mut self, name: &str) -> Read<Option<(String, usize)>> {
        let Some((values, line)) = self.values(name)? else { return Ok(None) };
        if values.len() > 1 {
            let all = values.join(" ");
            return Err(ImportError::new(line, format!("{name} takes one value, found `{all}`")));
        }
        Ok(values.into_iter().next().map(|v| (v, line)))
    }

    /// The one value of a flag, converted; all that are given before the last must convert as well.
    fn converted<T>(
        &mut self,
        name: &str,
        convert: impl Fn(&str) -> Option<T>,
        wrong: impl Fn(&str) -> String,
    ) -> Read<Option<T>> {
        let read = |text: &str, line: usize| {
            convert(text).ok_or_else(|| ImportError::new(line, wrong(&one_line(text))))
        };
        for (_, (values, line)) in self.earlier.iter().filter(|(earlier, _)| earlier == name) {
            match values.as_slice() {
                [text] if is_unknown(text) => {}
                [text] => drop(read(text, *line)?),
                [] => return Err(ImportError::new(*line, format!("{name} has no value"))),
                values if values.iter().any(|value| is_unknown(value)) => {}
                values => {
                    let text = format!("{name} takes one value, found `{}`", one_line(&values.join(" ")));
                    return Err(ImportError::new(*line, text));
                }
            }
        }
        let Some((text, line)) = self.text(name)? else { return Ok(None) };
        read(&text, line).map(Some)
    }

    pub(super) fn number(&mut self, name: &str) -> Read<Option<u64>> {
        let wrong = |text: &str| format!("{name} takes a whole number, found `{text}`");
        self.converted(name, whole_number, wrong)
    }

    pub(super) fn decimal(&mut self, name: &str) -> Read<Option<f64>> {
        let wrong = |text: &str| format!("{name} takes a number, found `{text}`");
        self.converted(name, |text| real_number(text).filter(|n| n.is_finite()), wrong)
    }

    pub(super) fn small(&mut self, name: &str) -> Read<Option<u32>> {
        let line = self.line(name);
        let Some(number) = self.number(name)? else { return Ok(None) };
        let small = u32::try_from(number).ok().filter(|&n| n > 0);
        small
            .map(Some)
            .ok_or_else(|| ImportError::new(line, format!("{name} is {number}, which is out of range")))
    }

    pub(super) fn need(&mut self, name: &str) -> Read<u64> {
        let number = self.number(name)?;
        number.ok_or_else(|| self.missing(name))
    }

    pub(super) fn choice<T: Copy>(&mut self, name: &str, choices: &[(&str, T)]) -> Read<Option<T>> {
        let words: Vec<&str> = choices.iter().map(|c| c.0).collect();
        let find = |text: &str| choices.iter().find(|(word, _)| *word == text).map(|c| c.1);
        self.converted(name, find, |text| no_choice(name, text, &words))
    }
}

/// That a value is none of those that a flag takes, and which of them may be meant.
pub(super) fn no_choice(name: &str, found: &str, words: &[&str]) -> String {
    let near = nearest(found, words.iter().copied());
    let near = near.first().map_or(String::new(), |near| format!(": did you mean {near}?"));
    format!("{name} is `{found}`; expected one of {}{near}", words.join(", "))
}
