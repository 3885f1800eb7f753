//! A model as a list of layers: what `models/*.ron` says.
//!
//! A model names its distinct *blocks* (one decoder layer each) and lists in which order they come.
//! Nothing here knows hardware, parallelism or training recipes.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The schema version that this build reads and writes.
pub const SCHEMA: u32 = 1;

/// A decoder-only language model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Model {
    /// Version of this format; see [`SCHEMA`].
    pub schema: u32,
    /// Published name.
    pub name: String,
    /// Width of the residual stream.
    pub hidden: u64,
    /// Vocabulary as published, before padding.
    pub vocabulary: u64,
    /// The vocabulary is padded to a multiple of this times the tensor-parallel degree.
    #[serde(default = "default_vocabulary_divisor")]
    pub vocabulary_divisor: u64,
    /// Input embedding and output head share one matrix.
    #[serde(default)]
    pub tied_embeddings: bool,
    /// How positions enter.
    #[serde(default)]
    pub position: Position,
    /// Kind of every normalisation.
    #[serde(default)]
    pub norm: Norm,
    /// Added to the variance under the root of every normalisation; none where no source says it.
    /// It changes neither time nor memory, but what is trained: launches carry it.
    #[serde(default)]
    pub norm_epsilon: Option<f64>,
    /// A normalisation right after the embedding (BLOOM).
    #[serde(default)]
    pub embedding_norm: bool,
    /// A normalisation before the head.
    #[serde(default = "yes")]
    pub final_norm: bool,
    /// The output head has a bias per vocabulary entry.
    #[serde(default)]
    pub head_bias: bool,
    /// Width of the embedding tables where it differs from `hidden`; two projections connect them.
    #[serde(default)]
    pub embedding_width: Option<u64>,
    /// Longest sequence that the published model accepts.
    pub max_sequence: u64,
    /// Hidden dropout is applied in training.
    #[serde(default)]
    pub dropout: bool,
    /// What the model computes that no field says (multipliers, layers without rotary positions), in words. It changes
    /// neither time nor memory, but what is trained: launches say that they leave it open.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unstated: Vec<String>,
    /// The distinct decoder layers, by name.
    pub blocks: BTreeMap<String, Block>,
    /// The order of layers: each entry repeats a group of blocks.
    pub layers: Vec<Segment>,
    /// Multi-token-prediction modules after the last layer.
    #[serde(default)]
    pub mtp: Option<Mtp>,
}

/// `repeat` times the blocks of `of`, in order.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Segment {
    /// How often the group comes.
    pub repeat: u32,
    /// Names of blocks.
    pub of: Vec<String>,
}

/// Multi-token prediction: `modules` further layers of kind `block`, each with a projection of
/// `[hidden; embedding]` to `hidden` and three norms; embedding and head are shared.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mtp {
    /// Number of modules (prediction depth).
    pub modules: u32,
    /// Name of the block each one runs.
    pub block: String,
}

/// How positions enter the model.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, Default)]
#[serde(deny_unknown_fields)]
pub enum Position {
    /// Rotary embeddings in every attention layer.
    #[default]
    Rotary,
    /// Rotary embeddings with their base and the rotated share of the head.
    RotaryWith {
        /// Base of the frequencies.
        base: f64,
        /// Share of each head that is rotated.
        share: f64,
        /// How the rotation is stretched for long sequences; in models whose windowed layers rotate in another
        /// way, that of the layers with full attention.
        #[serde(default)]
        scaling: PositionScaling,
    },
    /// A learned table with this many rows.
    Learned(u64),
    /// Linear biases on the scores.
    Alibi,
    /// None.
    None,
}

impl Position {
    /// How rotary positions are scaled.
    #[must_use]
    pub fn scaling(self) -> PositionScaling {
        match self {
            Self::RotaryWith { scaling, .. } => scaling,
            _ => PositionScaling::None,
        }
    }
}

/// How rotary positions are stretched for sequences longer than those of pre-training. It changes neither time nor
/// memory, but what is trained: launches carry it. Names and formulas are those of
/// huggingface/transformers:src/transformers/modeling_rope_utils.py.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, Default)]
#[serde(deny_unknown_fields)]
pub enum PositionScaling {
    /// Not at all.
    #[default]
    None,
    /// All frequencies are divided by a factor (arXiv:2306.15595).
    Linear {
        /// The factor.
        factor: f64,
    },
    /// The base grows with sequences that are longer than the model's longest (dynamic NTK).
    Dynamic {
        /// The factor.
        factor: f64,
    },
    /// Low frequencies are divided by a factor, high ones kept, those between blended (Llama 3.1).
    Llama3 {
        /// The factor.
        factor: f64,
        /// Wavelengths above `original_length` divided by this are stretched.
        low_frequency_factor: f64,
        /// Wavelengths below `original_length` divided by this are kept.
        high_frequency_factor: f64,
        /// Tokens of the longest sequence before stretching.
        original_length: u64,
    },
    /// YaRN.
    Yarn(Yarn),
    /// In a way that has no name here, such as LongRoPE: launches leave it open.
    Other,
}

/// YaRN (arXiv:2309.00071): frequencies that turn seldom within `original_length` tokens are divided by a factor, others
/// kept, those between blended.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Yarn {
    /// The factor.
    pub factor: f64,
    /// Tokens of the longest sequence before stretching.
    pub original_length: u64,
    /// Frequencies with more turns than this are kept.
    #[serde(default = "thirty_two")]
    pub beta_fast: f64,
    /// Frequencies with fewer turns than this are divided by the whole factor.
    #[serde(default = "one")]
    pub beta_slow: f64,
    /// Weight of the factor's logarithm in the size of rotated queries and keys.
    #[serde(default = "one")]
    pub mscale: f64,
    /// The same in the scale of all scores of latent attention, by which the size of the rotated part is divided.
    #[serde(default)]
    pub mscale_all_dim: f64,
    /// Size of rotated queries and keys where both weights do not say it.
    #[serde(default)]
    pub attention_factor: Option<f64>,
    /// The bounds of what is blended are rounded outwards to whole dimensions.
    #[serde(default = "yes")]
    pub truncate: bool,
}

impl Yarn {
    /// `0.1 weight ln(factor) + 1`, and 1 where nothing is stretched.
    fn magnitude(&self, weight: f64) -> f64 {
        if self.factor <= 1.0 { 1.0 } else { 0.1 * weight * self.factor.ln() + 1.0 }
    }

    /// Size of rotated queries and keys as the two weights say it.
    #[must_use]
    pub fn weighed_attention_factor(&self) -> f64 {
        self.magnitude(self.mscale) / self.magnitude(self.mscale_all_dim)
    }

    /// Size of rotated queries and keys.
    #[must_use]
    pub fn attention_factor(&self) -> f64 {
        self.attention_factor.unwrap_or_else(|| self.weighed_attention_factor())
    }

    /// As [`Yarn::attention_factor`] where nothing but the factor is given.
    #[must_use]
    pub fn default_attention_factor(&self) -> f64 {
        self.magnitude(1.0)
    }
}

impl PositionScaling {
    /// What is wrong with the numbers, if anything.
    pub(super) fn fault(self) -> Option<String> {
        let positive = |numbers: &[f64]| numbers.iter().all(|n| n.is_finite() && *n > 0.0);
        let length = |tokens: u64| (1..=LONGEST_SEQUENCE).contains(&tokens);
        let (fits, expected) = match self {
            Self::None | Self::Other => return None,
            Self::Linear { factor } | Self::Dynamic { factor } => (positive(&[factor]), "a positive factor"),
            Self::Llama3 {
                factor,
                low_frequency_factor: low,
                high_frequency_factor: high,
                original_length,
            } => (
                positive(&[factor, low, high]) && low <= high && length(original_length),
                "positive factors, the low one at most the high one, and an original length from 1 to 2^32 tokens",
            ),
            Self::Yarn(y) => (
                positive(&[y.factor, y.beta_fast, y.beta_slow, y.attention_factor.unwrap_or(1.0)])
                    && y.beta_slow <= y.beta_fast
                    && [y.mscale, y.mscale_all_dim].iter().all(|n| n.is_finite() && *n >= 0.0)
                    && length(y.original_length),
                "positive factors, beta_slow at most beta_fast, no negative mscale, and an original length from 1 to 2^32 tokens",
            ),
        };
        (!fits).then(|| format!("expected {expected}"))
    }
}

impl std::fmt::Display for PositionScaling {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::Linear { factor } => write!(f, "linear, factor {factor}"),
            Self::Dynamic { factor } => write!(f, "dynamic, factor {factor}"),
            Self::Llama3 { factor, .. } => write!(f, "Llama 3's, factor {factor}"),
            Self::Yarn(yarn) => write!(f, "YaRN, factor {}", yarn.factor),
            Self::Other => f.write_str("of a kind with no name here"),
        }
    }
}

/// Kind of normalisation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
pub enum Norm {
    /// A scale per channel.
    #[default]
    RmsNorm,
    /// A scale and a shift per channel.
    LayerNorm,
    /// A scale per channel after centring (Cohere).
    LayerNormNoBias,
    /// Centred and scaled without parameters (OLMo).
    NoParameters,
}

/// One decoder layer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Block {
    /// Token mixing.
    #[serde(default)]
    pub mixer: Mixer,
    /// Channel mixing.
    #[serde(default)]
    pub feed_forward: FeedForward,
    /// Normalisations of width `hidden`: 2 in a pre-norm layer, 4 with post-norms (Gemma 2), 1 in a
    /// layer with one mixer (Nemotron-H).
    #[serde(default = "two")]
    pub norms: u32,
    /// Attention and feed-forward read the same input (GPT-NeoX, Falcon, Cohere).
    #[serde(default)]
    pub parallel: bool,
}

/// Token mixing of a block.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Default)]
pub enum Mixer {
    /// Multi-head, grouped-query or multi-query attention.
    Attention(Attention),
    /// Multi-head latent attention.
    Latent(LatentAttention),
    /// A Mamba-2 state-space layer.
    Mamba2(Mamba2),
    /// The block mixes channels only.
    #[default]
    None,
}

/// Multi-head attention with `kv_heads` key/value groups.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attention {
    /// Query heads.
    pub heads: u64,
    /// Key/value heads.
    pub kv_heads: u64,
    /// Size of a head.
    pub head_dim: u64,
    /// Biases on query, key and value projections.
    #[serde(default)]
    pub qkv_bias: bool,
    /// Bias on the output projection.
    #[serde(default)]
    pub output_bias: bool,
    /// Normalisation of queries and keys.
    #[serde(default)]
    pub qk_norm: QkNorm,
    /// One learned sink logit per head (gpt-oss).
    #[serde(default)]
    pub sinks: bool,
    /// Sliding window in tokens; none means full causal attention.
    #[serde(default)]
    pub window: Option<u64>,
    /// The sequence is cut into chunks of this many tokens that do not see each other (Llama 4).
    #[serde(default)]
    pub chunk: Option<u64>,
}

/// Normalisation of queries and keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
pub enum QkNorm {
    /// None.
    #[default]
    None,
    /// One scale of `head_dim` for all query heads and one for all key heads (Qwen3, Gemma 3).
    PerHeadDim,
    /// As before, with a shift beside each scale (Phi, Persimmon).
    PerHeadDimWithBias,
    /// A scale for every channel of all heads (OLMo-2, Cohere).
    Full,
    /// Normalised without parameters (Llama 4).
    NoParameters,
}

/// Multi-head latent attention (DeepSeek-V2/V3, Kimi).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LatentAttention {
    /// Heads.
    pub heads: u64,
    /// Rank of the query compression; none means a plain query projection.
    #[serde(default)]
    pub q_lora_rank: Option<u64>,
    /// Rank of the key/value compression.
    pub kv_lora_rank: u64,
    /// Size of the part of a query/key head without positions.
    pub qk_nope_dim: u64,
    /// Size of the rotated part.
    pub qk_rope_dim: u64,
    /// Size of a value head.
    pub v_dim: u64,
    /// Biases on both down projections and on the output projection.
    #[serde(default)]
    pub bias: bool,
}

/// Mamba-2 mixer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mamba2 {
    /// Inner width (heads times head size).
    pub inner: u64,
    /// State size.
    pub state: u64,
    /// Groups that share B and C.
    pub groups: u64,
    /// Heads.
    pub heads: u64,
    /// Convolution kernel length.
    pub conv_kernel: u64,
    /// Biases on the input and output projections.
    #[serde(default)]
    pub bias: bool,
    /// A bias per channel of the convolution.
    #[serde(default = "yes")]
    pub conv_bias: bool,
}

/// Channel mixing of a block.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Default)]
pub enum FeedForward {
    /// A plain or gated multi-layer perceptron.
    Dense(Dense),
    /// Routed experts, with shared ones beside them.
    Moe(Moe),
    /// The block mixes tokens only.
    #[default]
    None,
}

/// A multi-layer perceptron.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Dense {
    /// Inner width.
    pub width: u64,
    /// Activation; gated ones have a third matrix.
    #[serde(default)]
    pub activation: Activation,
    /// Biases on all its matrices.
    #[serde(default)]
    pub bias: bool,
}

/// Activation function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
pub enum Activation {
    /// SiLU(gate) times up: three matrices.
    #[default]
    SwiGlu,
    /// GELU(gate) times up: three matrices.
    GeGlu,
    /// ReLU(gate) times up: three matrices.
    ReGlu,
    /// GELU: two matrices.
    Gelu,
    /// ReLU: two matrices.
    Relu,
    /// Squared ReLU: two matrices.
    SquaredRelu,
    /// SiLU: two matrices.
    Silu,
}

impl Activation {
    /// Whether a gate matrix stands beside the up projection.
    #[must_use]
    pub fn gated(self) -> bool {
        matches!(self, Self::SwiGlu | Self::GeGlu | Self::ReGlu)
    }
    /// Matrices of width `hidden x width`: 3 gated, 2 plain.
    #[must_use]
    pub fn matrices(self) -> u64 {
        if self.gated() { 3 } else { 2 }
    }
}

/// A mixture of experts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Moe {
    /// Routed experts.
    pub experts: u64,
    /// Experts that each token visits.
    pub top_k: u64,
    /// Inner width of one routed expert.
    pub width: u64,
    /// Activation of all experts.
    #[serde(default)]
    pub activation: Activation,
    /// Biases on the experts' matrices (gpt-oss).
    #[serde(default)]
    pub expert_bias: bool,
    /// Summed inner width of the shared experts; 0 where there are none.
    #[serde(default)]
    pub shared_width: u64,
    /// A sigmoid gate of width `hidden` on the shared expert (Qwen2-MoE).
    #[serde(default)]
    pub shared_gate: bool,
    /// Width in which the experts work where it is narrower than `hidden` (latent experts).
    #[serde(default)]
    pub latent_width: Option<u64>,
    /// Routing facts.
    #[serde(default)]
    pub router: Router,
}

/// How tokens choose experts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Router {
    /// Score function.
    #[serde(default)]
    pub score: RouterScore,
    /// The router's matrix has a bias per expert.
    #[serde(default)]
    pub bias: bool,
    /// A learned correction per expert balances the load without a loss (DeepSeek-V3); stored.
    #[serde(default)]
    pub balancing_bias: bool,
    /// Expert groups and how many of them a token may visit (node-limited routing).
    #[serde(default)]
    pub groups: Option<RouterGroups>,
    /// Factor on the weights of the chosen experts (DeepSeek-V3: 2.5). It changes neither time nor memory, but what is
    /// trained: launches carry it.
    #[serde(default = "one")]
    pub scaling_factor: f64,
}

impl Default for Router {
    fn default() -> Self {
        Self {
            score: RouterScore::Softmax,
            bias: false,
            balancing_bias: false,
            groups: None,
            scaling_factor: 1.0,
        }
    }
}

/// Score function of a router.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
pub enum RouterScore {
    /// Softmax over the chosen experts.
    #[default]
    Softmax,
    /// Softmax over all experts, then the choice.
    SoftmaxBeforeTopK,
    /// Independent sigmoids, brought to a sum of one over the chosen ones where they are several.
    Sigmoid,
    /// Independent sigmoids as they are.
    SigmoidAlone,
}

impl RouterScore {
    /// The weights of several chosen experts sum to one before they are scaled.
    #[must_use]
    pub fn sums_to_one(self) -> bool {
        matches!(self, Self::Softmax | Self::Sigmoid)
    }

    /// Scores are independent sigmoids.
    #[must_use]
    pub fn is_sigmoid(self) -> bool {
        matches!(self, Self::Sigmoid | Self::SigmoidAlone)
    }
}

/// Group-limited routing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RouterGroups {
    /// Groups that the experts form.
    pub count: u64,
    /// Groups that a token may visit.
    pub top_k: u64,
}

fn default_vocabulary_divisor() -> u64 {
    128
}
fn yes() -> bool {
    true
}
fn two() -> u32 {
    2
}
fn one() -> f64 {
    1.0
}
fn thirty_two() -> f64 {
    32.0
}

/// What is wrong with a model that parsed. `field` is the name of the offending field as the file
/// spells it, so that the diagnostic can point at it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// Field name as written in the file.
    pub field: String,
    /// The block or segment that holds it, if any.
    pub within: Option<String>,
    /// What was found and what was expected.
    pub message: String,
}

/// Largest width that is accepted. With [`LARGEST_VOCABULARY`] and [`LARGEST_EXPERTS`] it keeps every
/// parameter total below 2^59, so that bytes (at most 20 for each) stay inside 64 bits.
const LARGEST: u64 = 1 << 22;
/// Largest residual stream that is accepted.
const LARGEST_HIDDEN: u64 = 1 << 20;
/// Largest vocabulary (and position table) that is accepted.
const LARGEST_VOCABULARY: u64 = 1 << 26;
/// Largest number of weights that the routed experts of one layer may have together.
const LARGEST_EXPERTS: u64 = 1 << 45;
/// Tokens of the longest sequence that is accepted.
const LONGEST_SEQUENCE: u64 = 1 << 32;
/// Most distinct blocks: layers refer to them by one byte.
const MOST_BLOCKS: usize = 128;
/// Most decoder layers that are accepted.
pub const MOST_LAYERS: u32 = 4096;

impl Model {
    /// Whether some block has routed experts.
    #[must_use]
    pub fn has_experts(&self) -> bool {
        self.blocks.values().any(|block| matches!(block.feed_forward, FeedForward::Moe(_)))
    }

    /// Whether some block has shared experts beside routed ones.
    #[must_use]
    pub fn has_shared_experts(&self) -> bool {
        let shared = |feed_forward: &FeedForward| match feed_forward {
            FeedForward::Moe(moe) => moe.shared_width > 0,
            _ => false,
        };
        self.blocks.values().any(|block| shared(&block.feed_forward))
    }

    /// Checks everything that types alone cannot: positive sizes, known blocks, heads that divide.
    ///
    /// # Errors
    /// The first [`Fault`] found.
    pub fn validate(&self) -> Result<(), Fault> {
        let top = |field: &str, message: String| Fault { field: field.into(), within: None, message };
        if self.schema != SCHEMA {
            return Err(top(
                "schema",
                format!("schema {} is not known; this build reads schema {SCHEMA}", self.schema),
            ));
        }
        if self.name.trim().is_empty() {
            return Err(top("name", "the name is empty".into()));
        }
        for (field, value, largest) in [
            ("hidden", self.hidden, LARGEST_HIDDEN),
            ("vocabulary", self.vocabulary, LARGEST_VOCABULARY),
            ("vocabulary_divisor", self.vocabulary_divisor, 1 << 16),
            ("embedding_width", self.embedding_width.unwrap_or(1), LARGEST_HIDDEN),
        ] {
            check_up_to(field, None, value, largest)?;
        }
        if self.max_sequence == 0 || self.max_sequence > LONGEST_SEQUENCE {
            return Err(top(
                "max_sequence",
                format!("expected 1 to 2^32 tokens, found {}", self.max_sequence),
            ));
        }
        if let Position::Learned(rows) = self.position {
            check_up_to("position", None, rows, LARGEST_VOCABULARY)?;
        }
        if let Position::RotaryWith { base, share, .. } = self.position
            && !(base.is_finite() && base > 0.0 && share > 0.0 && share <= 1.0)
        {
            return Err(top("position", "expected a positive rotary base and a share in (0, 1]".into()));
        }
        if let Some(message) = self.position.scaling().fault() {
            return Err(top("scaling", message));
        }
        if let Some(epsilon) = self.norm_epsilon.filter(|e| !(*e > 0.0 && *e < 1.0)) {
            return Err(top("norm_epsilon", format!("expected a number between 0 and 1, found {epsilon}")));
        }
        if self.layers.is_empty() {
            return Err(top("layers", "a model needs at least one layer".into()));
        }
        if self.blocks.len() > MOST_BLOCKS {
            return Err(top(
                "blocks",
                format!("{} distinct blocks; at most {MOST_BLOCKS} are accepted", self.blocks.len()),
            ));
        }
        for (name, block) in &self.blocks {
            block.validate(name, self.hidden)?;
        }
        let known = || self.blocks.keys().cloned().collect::<Vec<_>>().join("`, `");
        let mut total = 0u64;
        for segment in &self.layers {
            if segment.repeat == 0 || segment.of.is_empty() {
                return Err(top("layers", "every segment needs repeat >= 1 and at least one block".into()));
            }
            total = total.saturating_add(u64::from(segment.repeat).saturating_mul(segment.of.len() as u64));
            if let Some(unknown) = segment.of.iter().find(|name| !self.blocks.contains_key(*name)) {
                return Err(top(
                    "layers",
                    format!("block `{unknown}` is not defined; blocks are `{}`", known()),
                ));
            }
        }
        if total > u64::from(MOST_LAYERS) {
            return Err(top("layers", format!("{total} layers; at most {MOST_LAYERS} are accepted")));
        }
        if let Some(mtp) = &self.mtp {
            if !self.blocks.contains_key(&mtp.block) {
                return Err(top(
                    "mtp",
                    format!("block `{}` is not defined; blocks are `{}`", mtp.block, known()),
                ));
            }
            if mtp.modules == 0 || mtp.modules > 16 {
                return Err(top("mtp", format!("expected 1 to 16 modules, found {}", mtp.modules)));
            }
        }
        Ok(())
    }

    /// Number of decoder layers, multi-token-prediction modules not counted.
    #[must_use]
    pub fn layer_count(&self) -> u32 {
        self.layers.iter().map(|s| s.repeat * s.of.len() as u32).sum()
    }

    /// Vocabulary after padding for a tensor-parallel degree.
    #[must_use]
    pub fn padded_vocabulary(&self, tensor_parallel: u64) -> u64 {
        self.vocabulary.next_multiple_of(self.vocabulary_divisor * tensor_parallel)
    }
}

fn check_size(field: &str, within: Option<&str>, value: u64) -> Result<(), Fault> {
    check_up_to(field, within, value, LARGEST)
}

fn check_up_to(field: &str, within: Option<&str>, value: u64, largest: u64) -> Result<(), Fault> {
    if (1..=largest).contains(&value) {
        return Ok(());
    }
    Err(Fault {
        field: field.into(),
        within: within.map(Into::into),
        message: format!("expected 1 to {largest}, found {value}"),
    })
}

/// Checks the product of two factors that each passed [`check_size`].
fn check_product(field: &str, within: &str, of: &str, a: u64, b: u64) -> Result<(), Fault> {
    if a * b <= LARGEST {
        return Ok(());
    }
    Err(Fault {
        field: field.into(),
        within: Some(within.into()),
        message: format!("{of} is {a} x {b}; at most {LARGEST} is accepted"),
    })
}

impl Block {
    /// Attention with a feed-forward part behind it or beside it.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        matches!(self.mixer, Mixer::Attention(_) | Mixer::Latent(_)) && self.feed_forward != FeedForward::None
    }

    fn validate(&self, name: &str, hidden: u64) -> Result<(), Fault> {
        let within = Some(name);
        let fault =
            |field: &str, message: String| Fault { field: field.into(), within: Some(name.into()), message };
        if self.norms > 8 {
            return Err(fault("norms", format!("expected at most 8, found {}", self.norms)));
        }
        match &self.mixer {
            Mixer::Attention(a) => {
                for (field, value) in [("heads", a.heads), ("kv_heads", a.kv_heads), ("head_dim", a.head_dim)]
                {
                    check_size(field, within, value)?;
                }
                if !a.heads.is_multiple_of(a.kv_heads) {
                    return Err(fault(
                        "kv_heads",
                        format!("{} query heads do not divide among {} key/value heads", a.heads, a.kv_heads),
                    ));
                }
                check_product("head_dim", name, "the width of all heads", a.heads, a.head_dim)?;
                if a.window == Some(0) {
                    return Err(fault("window", "a window needs at least one token".into()));
                }
                if a.chunk == Some(0) {
                    return Err(fault("chunk", "a chunk needs at least one token".into()));
                }
                if a.window.is_some() && a.chunk.is_some() {
                    return Err(fault("chunk", "attention is either windowed or chunked, not both".into()));
                }
            }
            Mixer::Latent(a) => {
                for (field, value) in [
                    ("heads", a.heads),
                    ("q_lora_rank", a.q_lora_rank.unwrap_or(1)),
                    ("kv_lora_rank", a.kv_lora_rank),
                    ("qk_nope_dim", a.qk_nope_dim),
                    ("qk_rope_dim", a.qk_rope_dim),
                    ("v_dim", a.v_dim),
                ] {
                    check_size(field, within, value)?;
                }
                let heads = "the width of all heads";
                check_product("heads", name, heads, a.heads, a.qk_nope_dim + a.qk_rope_dim)?;
                check_product("heads", name, heads, a.heads, a.qk_nope_dim + a.v_dim)?;
            }
            Mixer::Mamba2(a) => {
                for (field, value) in
                    [("inner", a.inner), ("state", a.state), ("groups", a.groups), ("heads", a.heads)]
                {
                    check_size(field, within, value)?;
                }
                check_up_to("conv_kernel", within, a.conv_kernel, 1 << 12)?;
                check_product("groups", name, "the width of B and C", a.groups, a.state)?;
                if !a.inner.is_multiple_of(a.heads) || !a.heads.is_multiple_of(a.groups) {
                    return Err(fault(
                        "heads",
                        "heads must divide inner, and groups must divide heads".into(),
                    ));
                }
            }
            Mixer::None => {}
        }
        match &self.feed_forward {
            FeedForward::Dense(d) => check_size("width", within, d.width)?,
            FeedForward::Moe(e) => {
                for (field, value) in [
                    ("experts", e.experts),
                    ("top_k", e.top_k),
                    ("width", e.width),
                    ("shared_width", e.shared_width.max(1)),
                    ("latent_width", e.latent_width.unwrap_or(1)),
                ] {
                    check_size(field, within, value)?;
                }
                let seen = e.latent_width.unwrap_or(hidden);
                if [e.experts, e.width, 3 * seen].iter().map(|&n| u128::from(n)).product::<u128>()
                    > u128::from(LARGEST_EXPERTS)
                {
                    return Err(fault(
                        "experts",
                        format!("{} experts of {seen} x {} hold more than 2^45 weights", e.experts, e.width),
                    ));
                }
                if e.top_k > e.experts {
                    return Err(fault(
                        "top_k",
                        format!("{} experts cannot serve top {}", e.experts, e.top_k),
                    ));
                }
                let factor = e.router.scaling_factor;
                if !(factor.is_finite() && factor > 0.0) {
                    return Err(fault(
                        "scaling_factor",
                        format!("expected a positive number, found {factor}"),
                    ));
                }
                if let Some(g) = e.router.groups
                    && (g.count == 0
                        || g.top_k == 0
                        || g.top_k > g.count
                        || !e.experts.is_multiple_of(g.count))
                {
                    return Err(fault(
                        "groups",
                        "group counts must divide the experts and top_k not exceed them".into(),
                    ));
                }
            }
            FeedForward::None => {}
        }
        if self.mixer == Mixer::None && self.feed_forward == FeedForward::None {
            return Err(fault("blocks", "a block needs a mixer or a feed-forward part".into()));
        }
        Ok(())
    }
}
