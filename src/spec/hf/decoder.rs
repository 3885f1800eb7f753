//! Transformer decoders that differ in numbers and switches: one description each, one reader for all.

use super::draft::Draft;
use super::fields::{Fields, Read};
use crate::spec::json::Value;
use crate::spec::model::{
    Attention, Block, Dense, FeedForward, MOST_LAYERS, Mixer, Moe, Norm, QkNorm, Router, RouterGroups,
    RouterScore,
};

/// How a family reads its configuration. Numbers are the library's defaults for missing fields.
#[derive(Clone, Copy)]
pub(super) struct Decoder {
    pub vocabulary: u64,
    pub hidden: u64,
    pub width: u64,
    pub layers: u64,
    pub heads: u64,
    pub kv_heads: KvHeads,
    pub head_dim: HeadDim,
    pub qkv_bias: Switch,
    pub output_bias: OutputBias,
    pub mlp_bias: Switch,
    pub head_bias: Switch,
    pub qk_norm: QkNorms,
    /// Field of the activation and its default.
    pub activation: (&'static [&'static str], &'static str),
    pub gated: bool,
    pub norm: Norm,
    /// Field of the norms' epsilon, if it is one, and its default.
    pub epsilon: (Option<&'static str>, f64),
    /// Norms of a layer, and whether both halves read the same input.
    pub norms: u32,
    pub parallel: bool,
    /// A field that, if on, puts both halves side by side under one norm.
    pub parallel_if: Option<&'static str>,
    pub tied: bool,
    /// Longest sequence.
    pub positions: u64,
    /// Base of the rotary embedding, and the share of a head that it rotates.
    pub rope: (f64, f64),
    pub window: Window,
    /// Dropout of the residual stream: fields and default.
    pub dropout: (&'static [&'static str], f64),
    pub experts: Option<Experts>,
    pub sinks: bool,
    /// Modules of [`Draft::predict`] are read.
    pub predicts: bool,
    /// Further fields that change neither shapes nor layers.
    pub harmless: &'static [&'static str],
    /// Those of [`Fields::beside`], with their usual values.
    pub beside: &'static [(&'static str, Value)],
    /// Fields that must be off (or on) if they are there.
    pub off: &'static [&'static str],
    pub on: &'static [&'static str],
    /// Fields that must be zero.
    pub zero: &'static [&'static str],
}

/// Key/value heads where the field is missing (`null` always means one for each query head).
#[derive(Clone, Copy)]
pub(super) enum KvHeads {
    AsHeads,
    Default(u64),
}

/// Size of a head where the field is missing or `null`.
#[derive(Clone, Copy)]
pub(super) enum HeadDim {
    /// `hidden / heads`.
    Derived,
    /// A number where it is missing, `hidden / heads` where it is `null`.
    Default(u64),
    /// Always `hidden / heads`; a field that says otherwise is an error.
    Forced,
}

/// Something that is there or not.
#[derive(Clone, Copy)]
pub(super) enum Switch {
    Never,
    Always,
    /// A field and its default.
    Field(&'static str, bool),
}

/// Bias of the output projection.
#[derive(Clone, Copy)]
pub(super) enum OutputBias {
    /// As the queries, keys and values.
    AsQkv,
    Own(Switch),
}

/// Normalised queries and keys.
#[derive(Clone, Copy)]
pub(super) enum QkNorms {
    Never,
    Always(QkNorm),
    Field(&'static str, QkNorm),
}

/// Sliding windows.
#[derive(Clone, Copy)]
pub(super) enum Window {
    /// The family has none.
    Never,
    /// `sliding_window` on every layer; its default.
    Every(Option<u64>),
    /// `sliding_window` if `use_sliding_window`, from layer `max_window_layers` on (28).
    Qwen,
    /// `sliding_window` if `use_sliding_window`, on every layer.
    QwenEvery,
    /// Every n-th layer is full, the others have a window: n, and the window's default.
    Pattern(u64, Option<u64>),
    /// `sliding_window` from layer `max_window_layers` on: defaults.
    From(u64, u64),
    /// As `Qwen`, on layers without rotary embedding.
    SmolLm,
}

/// Mixture of experts.
#[derive(Clone, Copy)]
pub(super) struct Experts {
    pub count: (&'static [&'static str], u64),
    pub top_k: (&'static [&'static str], u64),
    /// Width of one expert; none: as the dense one.
    pub width: Option<(&'static str, u64)>,
    pub shared: Shared,
    pub score: RouterScore,
    /// For sigmoids, the default of the field that brings their sum to one; none where that is always so.
    pub sums_to_one: Option<bool>,
    /// Default of the factor on the experts' weights, where the family has one.
    pub scaling_factor: Option<f64>,
    pub balancing_bias: bool,
    /// Biases of gpt-oss: on the router and on every expert.
    pub biases: bool,
    pub layers: Sparse,
}

/// Shared experts.
#[derive(Clone, Copy)]
pub(super) enum Shared {
    None,
    /// A field with the width, its default, and whether a gate stands before it.
    Width(&'static str, u64, bool),
    /// A field with the number of experts, each as wide as a routed one.
    Count(&'static str, u64),
}

/// Which layers have experts.
#[derive(Clone, Copy)]
pub(super) enum Sparse {
    Every,
    /// From `first_k_dense_replace` on: its default.
    From(u64),
    /// `decoder_sparse_step` and `mlp_only_layers`.
    Steps,
    /// `moe_layer_start_index` to `moe_layer_end_index` in steps of `moe_layer_interval`.
    Ernie,
}

/// Llama; the others say what differs.
pub(super) const LLAMA: Decoder = Decoder {
    vocabulary: 32_000,
    hidden: 4096,
    width: 11_008,
    layers: 32,
    heads: 32,
    kv_heads: KvHeads::AsHeads,
    head_dim: HeadDim::Derived,
    qkv_bias: Switch::Field("attention_bias", false),
    output_bias: OutputBias::AsQkv,
    mlp_bias: Switch::Field("mlp_bias", false),
    head_bias: Switch::Never,
    qk_norm: QkNorms::Never,
    activation: (&["hidden_act"], "silu"),
    gated: true,
    norm: Norm::RmsNorm,
    epsilon: (Some("rms_norm_eps"), 1e-6),
    norms: 2,
    parallel: false,
    parallel_if: None,
    tied: false,
    positions: 2048,
    rope: (10_000.0, 1.0),
    window: Window::Never,
    dropout: (&[], 0.0),
    experts: None,
    sinks: false,
    predicts: false,
    harmless: &[],
    beside: &[],
    off: &[],
    on: &[],
    zero: &[],
};

/// Experts of Qwen; the others say what differs.
pub(super) const EXPERTS: Experts = Experts {
    count: (&["num_experts", "num_local_experts", "n_routed_experts"], 128),
    top_k: (&["num_experts_per_tok"], 8),
    width: Some(("moe_intermediate_size", 768)),
    shared: Shared::None,
    score: RouterScore::SoftmaxBeforeTopK,
    sums_to_one: None,
    scaling_factor: None,
    balancing_bias: false,
    biases: false,
    layers: Sparse::Every,
};

/// Names and defaults of the sizes that every family has.
pub(super) struct Sizes {
    pub vocabulary: u64,
    pub hidden: u64,
    pub layers: u64,
    pub heads: u64,
}

impl Switch {
    fn read(self, fields: &Fields, absent: &'static str) -> Read<bool> {
        match self {
            Self::Field(name, default) => fields.flag(name, default),
            Self::Never => fields.off(&[absent]).map(|()| false),
            Self::Always => fields.on(&[absent]).map(|()| true),
        }
    }
}

/// Number of layers.
pub(super) fn layer_count(fields: &Fields, names: &'static [&'static str], default: u64) -> Read<u64> {
    let count = fields.core(names, default)?;
    if count > u64::from(MOST_LAYERS) {
        let message = format!("at most {MOST_LAYERS} layers are accepted, found {count}");
        return Err(fields.wrong(names[0], message));
    }
    Ok(count)
}

pub(super) fn sizes(fields: &Fields, defaults: &Sizes) -> Read<Sizes> {
    Ok(Sizes {
        vocabulary: fields.core("vocab_size", defaults.vocabulary)?,
        hidden: fields.core("hidden_size", defaults.hidden)?,
        layers: layer_count(fields, &["num_hidden_layers"], defaults.layers)?,
        heads: fields.core("num_attention_heads", defaults.heads)?,
    })
}

/// `hidden / heads`, which must divide.
pub(super) fn derived_head_dim(fields: &Fields, name: &'static str, hidden: u64, heads: u64) -> Read<u64> {
    if !hidden.is_multiple_of(heads) {
        return Err(fields.wrong(name, format!("{heads} heads do not divide a width of {hidden}")));
    }
    Ok(hidden / heads)
}

impl Decoder {
    /// Reads a configuration of this family.
    pub fn read(&self, fields: &Fields) -> Read<Draft> {
        let defaults = Sizes {
            vocabulary: self.vocabulary,
            hidden: self.hidden,
            layers: self.layers,
            heads: self.heads,
        };
        let sizes = sizes(fields, &defaults)?;
        let width = fields.core("intermediate_size", self.width)?;
        let attention = self.attention(fields, &sizes)?;
        let windows = self.windows(fields, &sizes)?;
        let activation = fields.activation(self.activation.0, self.activation.1, self.gated)?;
        let dense =
            FeedForward::Dense(Dense { width, activation, bias: self.mlp_bias.read(fields, "mlp_bias")? });
        let experts = match &self.experts {
            Some(experts) => experts.read(fields, width, activation)?,
            None => None,
        };
        let sparse = match (&self.experts, &experts) {
            (Some(described), Some(_)) => described.layers.read(fields, sizes.layers)?,
            (Some(described), None) => {
                described.layers.read(fields, sizes.layers)?;
                vec![false; sizes.layers as usize]
            }
            (None, _) => vec![false; sizes.layers as usize],
        };
        let mut draft = Draft::new(sizes.hidden, sizes.vocabulary);
        draft.tied = fields.flag("tie_word_embeddings", self.tied)?;
        draft.norm = self.norm;
        draft.norm_epsilon = match self.epsilon {
            (Some(name), default) => fields.epsilon(name, default)?,
            (None, fixed) => Some(fixed),
        };
        draft.head_bias = self.head_bias.read(fields, "lm_head_bias")?;
        draft.position = fields.rope(self.rope.0, self.rope.1, attention.head_dim)?;
        draft.max_sequence = fields.longest("max_position_embeddings", self.positions)?;
        draft.dropout = fields.dropout(self.dropout.0, self.dropout.1)?;
        let mixed_window = windows.iter().any(|w| *w != windows[0]);
        let mixed_parts = sparse.iter().any(|s| *s != sparse[0]);
        let side_by_side = match self.parallel_if {
            Some(name) => fields.flag(name, false)?,
            None => false,
        };
        let (norms, parallel) = if side_by_side { (1, true) } else { (self.norms, self.parallel) };
        for (window, sparse) in windows.iter().zip(&sparse) {
            let place = mixed_window.then_some(if window.is_some() { "local" } else { "global" });
            let part = mixed_parts.then_some(if *sparse { "moe" } else { "dense" });
            let name: Vec<&str> = place.into_iter().chain(part).collect();
            let name = if name.is_empty() { "decoder".to_owned() } else { name.join("-") };
            let feed_forward = match &experts {
                Some(experts) if *sparse => FeedForward::Moe(experts.clone()),
                _ => dense.clone(),
            };
            let mixer = Mixer::Attention(Attention { window: *window, ..attention.clone() });
            draft.layer(&name, Block { mixer, feed_forward, norms, parallel });
        }
        if self.predicts {
            predict(fields, &mut draft)?;
        }
        fields.harmless(self.harmless);
        fields.beside(self.beside)?;
        fields.off(self.off)?;
        fields.on(self.on)?;
        self.zero.iter().try_for_each(|name| fields.only(name, "0", |value| *value == Value::Whole(0)))?;
        fields.off_if_unread(&["attention_bias", "mlp_bias", "lm_head_bias", "use_sliding_window"])?;
        Ok(draft)
    }

    fn attention(&self, fields: &Fields, sizes: &Sizes) -> Read<Attention> {
        let heads = sizes.heads;
        let missing = match self.kv_heads {
            KvHeads::AsHeads => None,
            KvHeads::Default(kv_heads) => Some(kv_heads),
        };
        let kv_heads = fields.optional_or("num_key_value_heads", missing)?.unwrap_or(heads);
        if !heads.is_multiple_of(kv_heads) {
            return Err(fields.wrong(
                "num_key_value_heads",
                format!("{heads} query heads do not divide among {kv_heads} key/value heads"),
            ));
        }
        let given = match self.head_dim {
            HeadDim::Default(head_dim) => fields.optional_or("head_dim", Some(head_dim))?,
            HeadDim::Derived | HeadDim::Forced => fields.optional("head_dim")?,
        };
        let head_dim = match (self.head_dim, given) {
            (HeadDim::Forced, given) => {
                let derived = derived_head_dim(fields, "num_attention_heads", sizes.hidden, heads)?;
                if given.is_some_and(|given| given != derived) {
                    let message = format!("this family derives {derived} from width and heads");
                    return Err(fields.wrong("head_dim", message));
                }
                derived
            }
            (_, Some(given)) => given,
            (_, None) => derived_head_dim(fields, "num_attention_heads", sizes.hidden, heads)?,
        };
        // NeMo's name, which the library does not read.
        fields.only("kv_channels", &head_dim.to_string(), |v| *v == Value::Whole(head_dim as i64))?;
        let qkv_bias = self.qkv_bias.read(fields, "attention_bias")?;
        let output_bias = match self.output_bias {
            OutputBias::AsQkv => qkv_bias,
            OutputBias::Own(Switch::Never) => false,
            OutputBias::Own(switch) => switch.read(fields, "attention_out_bias")?,
        };
        let qk_norm = match self.qk_norm {
            QkNorms::Never => QkNorm::None,
            QkNorms::Always(norm) => norm,
            QkNorms::Field(name, norm) => {
                if fields.flag(name, false)? {
                    norm
                } else {
                    QkNorm::None
                }
            }
        };
        Ok(Attention {
            heads,
            kv_heads,
            head_dim,
            qkv_bias,
            output_bias,
            qk_norm,
            sinks: self.sinks,
            window: None,
            chunk: None,
        })
    }

    /// The window of every layer.
    fn windows(&self, fields: &Fields, sizes: &Sizes) -> Read<Vec<Option<u64>>> {
        let layers = sizes.layers as usize;
        let all = |window: Option<u64>| vec![window; layers];
        // Which layers have the window, where `layer_types` does not say.
        let (window, has): (Option<u64>, Box<dyn Fn(u64) -> bool>) = match self.window {
            Window::Never => {
                fields.only("sliding_window", "null", |_| false)?;
                if let Some(kinds) = kinds(fields, sizes.layers)?
                    && kinds.contains(&Kind::Sliding)
                {
                    return Err(fields.wrong("layer_types", "this family has no sliding windows"));
                }
                return Ok(all(None));
            }
            Window::Every(default) => (fields.optional_or("sliding_window", default)?, Box::new(|_| true)),
            Window::Qwen | Window::QwenEvery | Window::SmolLm => {
                let used = fields.flag("use_sliding_window", false)?;
                // A size that is not used may be anything.
                let window = if used {
                    fields.optional_or("sliding_window", Some(4096))?
                } else {
                    fields.harmless(&["sliding_window"]);
                    None
                };
                let first = fields.count("max_window_layers", 28)?;
                match self.window {
                    Window::Qwen => (window, Box::new(move |layer| layer >= first)),
                    Window::SmolLm => {
                        let interval = fields.size("no_rope_layer_interval", 4)?;
                        let rotated = fields.numbers("no_rope_layers", 2)?;
                        let bare = |list: &Vec<u64>| list.contains(&0);
                        if rotated.as_ref().map_or(interval <= layers as u64, bare) {
                            fields.leaves("no rotary positions on some layers");
                        }
                        let has = move |layer: u64| match &rotated {
                            Some(rotated) => rotated.get(layer as usize) == Some(&0),
                            None => (layer + 1).is_multiple_of(interval),
                        };
                        (window, Box::new(has))
                    }
                    _ => (window, Box::new(|_| true)),
                }
            }
            Window::Pattern(every, default) => {
                let window = fields.optional_or("sliding_window", default)?;
                let names = ["sliding_window_pattern", "_sliding_window_pattern", "layer_switch"];
                // A number, or (EXAONE 4) the letters L and G for local and global layers.
                if let Some(letters) = fields.letters(names, "LG")? {
                    let has = move |layer: u64| letters[layer as usize % letters.len()] == 'L';
                    (window, Box::new(has))
                } else {
                    let every = fields.count(names, every)?;
                    (window, Box::new(move |layer| every == 0 || !(layer + 1).is_multiple_of(every)))
                }
            }
            Window::From(default, first) => {
                let window = fields.optional_or("sliding_window", Some(default))?;
                let first = fields.count("max_window_layers", first)?;
                (window, Box::new(move |layer| layer >= first))
            }
        };
        let kinds = kinds(fields, sizes.layers)?;
        if window.is_none() && kinds.as_ref().is_some_and(|kinds| kinds.contains(&Kind::Sliding)) {
            return Err(fields.wrong("layer_types", "layers slide, but no `sliding_window` says how far"));
        }
        Ok((0..sizes.layers)
            .map(|layer| {
                let slides = match &kinds {
                    Some(kinds) => kinds[layer as usize] == Kind::Sliding,
                    None => has(layer),
                };
                if slides { window } else { None }
            })
            .collect())
    }
}

/// A word of `layer_types`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Full,
    Sliding,
    Chunked,
}

/// `layer_types`, if given: one word for each layer.
pub(super) fn kinds(fields: &Fields, layers: u64) -> Read<Option<Vec<Kind>>> {
    const KNOWN: &[&str] = &["full_attention", "sliding_attention", "chunked_attention", "attention"];
    let Some(words) = fields.words("layer_types", KNOWN)? else { return Ok(None) };
    if words.len() as u64 != layers {
        return Err(fields.wrong("layer_types", format!("{} words for {layers} layers", words.len())));
    }
    let kind = |word: &&str| match *word {
        "sliding_attention" => Kind::Sliding,
        "chunked_attention" => Kind::Chunked,
        _ => Kind::Full,
    };
    Ok(Some(words.iter().map(kind).collect()))
}

impl Experts {
    /// Reads the experts; none where their number is zero.
    pub fn read(
        &self,
        fields: &Fields,
        dense_width: u64,
        activation: crate::spec::model::Activation,
    ) -> Read<Option<Moe>> {
        let count = fields.core_count(self.count.0, self.count.1)?;
        let top_k = if count == 0 {
            fields.count(self.top_k.0, 0)?
        } else {
            fields.core(self.top_k.0, self.top_k.1)?
        };
        let width = match self.width {
            Some((name, default)) => fields.core(name, default)?,
            None => dense_width,
        };
        let (shared_width, shared_gate) = match self.shared {
            Shared::None => (0, false),
            Shared::Width(name, default, gate) => {
                let width = fields.count(name, default)?;
                (width, gate)
            }
            Shared::Count(name, default) => (fields.count(name, default)? * width, false),
        };
        if count > 0 && top_k > count {
            let message = format!("{count} experts cannot serve {top_k} per token");
            return Err(fields.wrong(self.top_k.0[0], message));
        }
        let score = match fields.word("scoring_func")? {
            None => self.score,
            Some("sigmoid") if self.score == RouterScore::Sigmoid => self.score,
            Some("softmax") if self.score != RouterScore::Sigmoid => self.score,
            Some(other) => {
                let message = format!("`{other}` is not understood for `{}`", fields.family);
                return Err(fields.wrong("scoring_func", message));
            }
        };
        // Weights that are brought to a sum of one over the chosen experts are those of a softmax over them.
        let score = match score {
            RouterScore::SoftmaxBeforeTopK if fields.flag("norm_topk_prob", false)? => RouterScore::Softmax,
            RouterScore::Sigmoid => match self.sums_to_one {
                Some(default) if !fields.flag("norm_topk_prob", default)? => RouterScore::SigmoidAlone,
                _ => RouterScore::Sigmoid,
            },
            score => score,
        };
        let scaling_factor = match self.scaling_factor {
            Some(default) => fields.routed_factor(default)?,
            None => 1.0,
        };
        let groups = groups(fields, count)?;
        if count == 0 {
            return Ok(None);
        }
        Ok(Some(Moe {
            experts: count,
            top_k,
            width,
            activation,
            expert_bias: self.biases,
            shared_width,
            shared_gate,
            latent_width: None,
            router: Router {
                score,
                bias: self.biases,
                balancing_bias: self.balancing_bias,
                groups,
                scaling_factor,
            },
        }))
    }
}

/// Groups of experts of which a token visits some.
pub(super) fn groups(fields: &Fields, experts: u64) -> Read<Option<RouterGroups>> {
    let count = fields.count("n_group", 1)?;
    let top_k = fields.count("topk_group", count.max(1))?;
    if count <= 1 {
        return Ok(None);
    }
    if !experts.is_multiple_of(count) {
        return Err(fields.wrong("n_group", format!("{count} groups do not divide {experts} experts")));
    }
    if top_k == 0 || top_k > count {
        return Err(fields.wrong("topk_group", format!("expected 1 to {count} groups, found {top_k}")));
    }
    Ok(Some(RouterGroups { count, top_k }))
}

impl Sparse {
    /// Whether each layer has experts.
    pub fn read(self, fields: &Fields, layers: u64) -> Read<Vec<bool>> {
        let each = |sparse: &dyn Fn(u64) -> bool| (0..layers).map(sparse).collect();
        Ok(match self {
            Self::Every => each(&|_| true),
            Self::From(default) => {
                let first = fields.count("first_k_dense_replace", default)?;
                fields.only("moe_layer_freq", "1", |value| *value == Value::Whole(1))?;
                each(&|layer| layer >= first)
            }
            Self::Steps => {
                let step = fields.size("decoder_sparse_step", 1)?;
                let dense = fields.numbers("mlp_only_layers", 1 << 16)?.unwrap_or_default();
                each(&|layer| (layer + 1).is_multiple_of(step) && !dense.contains(&layer))
            }
            Self::Ernie => {
                let first = fields.count("moe_layer_start_index", 1)?;
                let interval = fields.size("moe_layer_interval", 1)?;
                // -1 stands for the last layer.
                let last = match fields.number("moe_layer_end_index")? {
                    Some(-1.0) => layers - 1,
                    Some(last) if (0.0..4096.0).contains(&last) => last as u64,
                    Some(last) => {
                        return Err(fields.wrong("moe_layer_end_index", format!("found {last}")));
                    }
                    None => 27,
                };
                each(&|layer| (layer + 1).is_multiple_of(interval) && (first..=last).contains(&layer))
            }
        })
    }
}

/// `num_nextn_predict_layers` modules, each of which runs the last layer's block.
pub(super) fn predict(fields: &Fields, draft: &mut Draft) -> Read<()> {
    let modules = fields.count(["num_nextn_predict_layers", "num_mtp_layers"], 0)?;
    if modules > 16 {
        return Err(
            fields.wrong("num_nextn_predict_layers", format!("at most 16 are accepted, found {modules}"))
        );
    }
    if modules > 0
        && let Some(block) = draft.last().cloned()
    {
        draft.predict(modules as u32, "prediction", block);
    }
    Ok(())
}
