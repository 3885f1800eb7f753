//! A model as a flat list of layers with their parameters and FLOPs. Knows no hardware and no
//! parallelism.

use std::sync::Arc;

use crate::spec::job::PackedLengths;
use crate::spec::model::{
    Attention, Block, FeedForward, LatentAttention, Mamba2, Mixer, Model, Moe, Norm, Position, QkNorm,
};
use crate::units::Flops;

/// The layers of a model: distinct kinds, their order, and runs of equal neighbours.
#[derive(Debug, Clone)]
pub struct Layers {
    /// Distinct kinds, in order of first appearance; a multi-token-prediction block that appears
    /// nowhere else comes last.
    pub kinds: Vec<LayerKind>,
    /// Kind of every decoder layer, first to last.
    pub order: Vec<u8>,
    /// `order` as runs of equal layers.
    pub runs: Arc<[Run]>,
    /// Decoder layers of every kind.
    pub counts: Vec<u32>,
    /// Kind of the multi-token-prediction modules and their number.
    pub mtp: Option<(u8, u32)>,
}

/// One kind of layer.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerKind {
    /// Name of the block in the model's file.
    pub name: String,
    /// Its definition.
    pub block: Block,
    /// Its parameters.
    pub parameters: LayerParameters,
}

/// `count` layers of one kind in a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Run {
    /// Index into [`Layers::kinds`].
    pub kind: u8,
    /// How many layers, at least one.
    pub count: u32,
}

/// Parameters of one layer, by how tensor and expert parallelism treat them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LayerParameters {
    /// Split over tensor-parallel ranks.
    pub sharded: u64,
    /// Replicated on every tensor-parallel rank (norms, router, latent down projections).
    pub replicated: u64,
    /// Routed experts, all of them.
    pub expert: u64,
    /// Routed experts that one token visits.
    pub expert_active: u64,
}

impl LayerParameters {
    /// All parameters.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.sharded + self.replicated + self.expert
    }
    /// Parameters that one token visits.
    #[must_use]
    pub fn active(&self) -> u64 {
        self.sharded + self.replicated + self.expert_active
    }
}

impl Layers {
    /// Whether attention of any layer has sinks.
    #[must_use]
    pub fn have_sinks(&self) -> bool {
        self.kinds.iter().any(|kind| matches!(&kind.block.mixer, Mixer::Attention(a) if a.sinks))
    }

    /// The shortest window or chunk that attention of any layer sees no further than.
    #[must_use]
    pub fn shortest_window(&self) -> Option<u64> {
        let of = |kind: &LayerKind| match &kind.block.mixer {
            Mixer::Attention(a) => a.window.into_iter().chain(a.chunk).min(),
            _ => None,
        };
        self.kinds.iter().filter_map(of).min()
    }

    /// Flattens a validated model.
    #[must_use]
    pub fn new(model: &Model) -> Self {
        let mut kinds: Vec<LayerKind> = Vec::new();
        let mut kind_of = |name: &str| -> u8 {
            let block = &model.blocks[name];
            if let Some(at) = kinds.iter().position(|k| k.block == *block) {
                return at as u8;
            }
            kinds.push(LayerKind {
                name: name.to_owned(),
                block: block.clone(),
                parameters: layer_parameters(model, block),
            });
            (kinds.len() - 1) as u8
        };
        let mut order = Vec::new();
        for segment in &model.layers {
            for _ in 0..segment.repeat {
                order.extend(segment.of.iter().map(|name| kind_of(name)));
            }
        }
        let mtp = model.mtp.as_ref().map(|mtp| (kind_of(&mtp.block), mtp.modules));
        let mut runs: Vec<Run> = Vec::new();
        for &kind in &order {
            match runs.last_mut() {
                Some(run) if run.kind == kind => run.count += 1,
                _ => runs.push(Run { kind, count: 1 }),
            }
        }
        let mut counts = vec![0; kinds.len()];
        runs.iter().for_each(|run| counts[usize::from(run.kind)] += run.count);
        Self { kinds, order, runs: runs.into(), counts, mtp }
    }

    /// Number of decoder layers.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.order.len() as u32
    }
}

/// Exact parameter totals of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ParameterCount {
    /// All stored weights without multi-token-prediction modules.
    pub total: u64,
    /// Weights that one token visits, embeddings included.
    pub active: u64,
    /// Own parameters of the multi-token-prediction modules.
    pub mtp: u64,
    /// Rows of the input embedding (and of the head where it is separate), unpadded.
    pub embedding: u64,
}

/// Counts a model's weights exactly, with the unpadded vocabulary.
#[must_use]
pub fn parameter_count(model: &Model) -> ParameterCount {
    let layers = Layers::new(model);
    let (mut total, mut active) = (0, 0);
    for &kind in &layers.order {
        let p = &layers.kinds[kind as usize].parameters;
        total += p.total();
        active += p.active();
    }
    let ends = embedding_parameters(model, model.vocabulary) + head_parameters(model, model.vocabulary);
    let mtp = layers.mtp.map_or(0, |(kind, modules)| {
        let layer = layers.kinds[kind as usize].parameters.total();
        u64::from(modules) * (layer + mtp_own_parameters(model))
    });
    ParameterCount {
        total: total + ends,
        active: active + ends,
        mtp,
        embedding: model.vocabulary * embedding_width(model),
    }
}

/// Parameters of one multi-token-prediction module beside its layer: the projection of
/// `[hidden; embedding]` to `hidden` and three norms.
#[must_use]
pub fn mtp_own_parameters(model: &Model) -> u64 {
    2 * model.hidden * model.hidden + 3 * norm_parameters(model)
}

/// Width of the embedding tables.
#[must_use]
pub fn embedding_width(model: &Model) -> u64 {
    model.embedding_width.unwrap_or(model.hidden)
}

/// Parameters before the first layer for a (padded) vocabulary.
#[must_use]
pub fn embedding_parameters(model: &Model, vocabulary: u64) -> u64 {
    let width = embedding_width(model);
    let positions = match model.position {
        Position::Learned(rows) => rows * model.hidden,
        _ => 0,
    };
    let project = if width == model.hidden { 0 } else { width * model.hidden };
    let norm = if model.embedding_norm { norm_parameters(model) } else { 0 };
    vocabulary * width + positions + project + norm
}

/// Parameters after the last layer for a (padded) vocabulary; a tied head owns no matrix.
#[must_use]
pub fn head_parameters(model: &Model, vocabulary: u64) -> u64 {
    let width = embedding_width(model);
    let matrix = if model.tied_embeddings { 0 } else { vocabulary * width };
    let bias = if model.head_bias { vocabulary } else { 0 };
    let project = if width == model.hidden { 0 } else { width * model.hidden };
    let norm = if model.final_norm { norm_parameters(model) } else { 0 };
    matrix + bias + project + norm
}

/// Parameters of one normalisation of width `hidden`.
#[must_use]
pub fn norm_parameters(model: &Model) -> u64 {
    match model.norm {
        Norm::LayerNorm => 2 * model.hidden,
        Norm::RmsNorm | Norm::LayerNormNoBias => model.hidden,
        Norm::NoParameters => 0,
    }
}

fn layer_parameters(model: &Model, block: &Block) -> LayerParameters {
    let h = model.hidden;
    let mut p =
        LayerParameters { replicated: u64::from(block.norms) * norm_parameters(model), ..Default::default() };
    match &block.mixer {
        Mixer::Attention(a) => attention_parameters(h, a, &mut p),
        Mixer::Latent(a) => latent_parameters(h, a, &mut p),
        Mixer::Mamba2(a) => mamba_parameters(h, a, &mut p),
        Mixer::None => {}
    }
    match &block.feed_forward {
        FeedForward::Dense(d) => {
            p.sharded += d.activation.matrices() * h * d.width;
            if d.bias {
                p.sharded += (d.activation.matrices() - 1) * d.width;
                p.replicated += h;
            }
        }
        FeedForward::Moe(e) => moe_parameters(h, e, &mut p),
        FeedForward::None => {}
    }
    p
}

/// `h d (a + 2g) + a d h`, biases and query/key norms as stated.
fn attention_parameters(h: u64, a: &Attention, p: &mut LayerParameters) {
    let (queries, keys) = (a.heads * a.head_dim, a.kv_heads * a.head_dim);
    p.sharded += h * (queries + 2 * keys) + queries * h;
    if a.qkv_bias {
        p.sharded += queries + 2 * keys;
    }
    if a.output_bias {
        p.replicated += h;
    }
    match a.qk_norm {
        QkNorm::None | QkNorm::NoParameters => {}
        QkNorm::PerHeadDim => p.replicated += 2 * a.head_dim,
        QkNorm::PerHeadDimWithBias => p.replicated += 4 * a.head_dim,
        QkNorm::Full => p.sharded += queries + keys,
    }
    if a.sinks {
        p.sharded += a.heads;
    }
}

/// Down projections and their norms are replicated over tensor-parallel ranks, up projections split.
fn latent_parameters(h: u64, a: &LatentAttention, p: &mut LayerParameters) {
    let qk = a.qk_nope_dim + a.qk_rope_dim;
    match a.q_lora_rank {
        Some(rank) => {
            p.replicated += h * rank + rank;
            p.sharded += rank * a.heads * qk;
        }
        None => p.sharded += h * a.heads * qk,
    }
    p.replicated += h * (a.kv_lora_rank + a.qk_rope_dim) + a.kv_lora_rank;
    p.sharded += a.kv_lora_rank * a.heads * (a.qk_nope_dim + a.v_dim) + a.heads * a.v_dim * h;
    if a.bias {
        p.replicated += a.q_lora_rank.unwrap_or(0) + a.kv_lora_rank + a.qk_rope_dim + h;
    }
}

/// Input and output projections, convolution, and per-head A, D and time-step bias, inner norm.
fn mamba_parameters(h: u64, a: &Mamba2, p: &mut LayerParameters) {
    let mixed = a.inner + 2 * a.groups * a.state;
    let projected = a.inner + mixed + a.heads;
    p.sharded += h * projected + a.inner * h;
    p.sharded += mixed * (a.conv_kernel + u64::from(a.conv_bias)) + 3 * a.heads + a.inner;
    if a.bias {
        p.sharded += projected;
        p.replicated += h;
    }
}

fn moe_parameters(h: u64, e: &Moe, p: &mut LayerParameters) {
    let width = e.latent_width.unwrap_or(h);
    let bias = if e.expert_bias { (e.activation.matrices() - 1) * e.width + width } else { 0 };
    let one = e.activation.matrices() * width * e.width + bias;
    p.expert += e.experts * one;
    p.expert_active += e.top_k * one;
    p.replicated += h * e.experts;
    if e.latent_width.is_some() {
        p.replicated += 2 * h * width;
    }
    if e.router.bias {
        p.replicated += e.experts;
    }
    if e.router.balancing_bias {
        p.replicated += e.experts;
    }
    p.sharded += e.activation.matrices() * h * e.shared_width;
    if e.shared_gate {
        p.replicated += h;
    }
}

/// How much of the attention square is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttentionCount {
    /// Only what a causal (and windowed) mask leaves: what kernels compute.
    Causal,
    /// The whole square, as PaLM and NeMo count.
    Full,
}

/// Forward FLOPs of the matrix products of one layer for one token: 2 per matrix parameter touched,
/// without core attention.
#[must_use]
pub fn linear_flops_per_token(model: &Model, block: &Block) -> Flops {
    let h = model.hidden;
    let mixer = match &block.mixer {
        Mixer::Attention(a) => h * a.head_dim * (a.heads + 2 * a.kv_heads) + a.heads * a.head_dim * h,
        Mixer::Latent(a) => {
            let qk = a.qk_nope_dim + a.qk_rope_dim;
            let query = match a.q_lora_rank {
                Some(rank) => h * rank + rank * a.heads * qk,
                None => h * a.heads * qk,
            };
            query
                + h * (a.kv_lora_rank + a.qk_rope_dim)
                + a.kv_lora_rank * a.heads * (a.qk_nope_dim + a.v_dim)
                + a.heads * a.v_dim * h
        }
        Mixer::Mamba2(a) => h * (2 * a.inner + 2 * a.groups * a.state + a.heads) + a.inner * h,
        Mixer::None => 0,
    };
    let feed_forward = match &block.feed_forward {
        FeedForward::Dense(d) => d.activation.matrices() * h * d.width,
        FeedForward::Moe(e) => {
            let width = e.latent_width.unwrap_or(h);
            let latent = if e.latent_width.is_some() { 2 * h * width } else { 0 };
            e.activation.matrices() * (e.top_k * width * e.width + h * e.shared_width)
                + h * e.experts
                + latent
        }
        FeedForward::None => 0,
    };
    Flops(2.0 * (mixer + feed_forward) as f64)
}

/// Forward FLOPs of core attention (or of the state-space scan) of one layer for one token in a
/// sequence of `sequence` tokens: `2 s_eff a (d_qk + d_v)`.
#[must_use]
pub fn core_flops_per_token(block: &Block, sequence: u64, count: AttentionCount) -> Flops {
    core_flops_per_packed_token(block, sequence, None, count)
}

/// [`core_flops_per_token`] where a sequence may hold several documents, across which attention does
/// not look.
#[must_use]
pub fn core_flops_per_packed_token(
    block: &Block,
    sequence: u64,
    packed: Option<&PackedLengths>,
    count: AttentionCount,
) -> Flops {
    match &block.mixer {
        Mixer::Attention(a) => {
            let sequence = a.chunk.map_or(sequence, |chunk| chunk.min(sequence));
            let seen = attention_extent(sequence, packed, a.window, count).0;
            Flops(2.0 * seen * (a.heads * 2 * a.head_dim) as f64)
        }
        Mixer::Latent(a) => {
            let seen = attention_extent(sequence, packed, None, count).0;
            Flops(2.0 * seen * (a.heads * (a.qk_nope_dim + a.qk_rope_dim + a.v_dim)) as f64)
        }
        // The chunked scan: about seven operations per channel and state element (physics: section b).
        Mixer::Mamba2(a) => Flops(7.0 * (a.inner * a.state) as f64),
        Mixer::None => Flops(0.0),
    }
}

/// Keys that an average query sees.
#[must_use]
pub fn effective_length(sequence: u64, window: Option<u64>, count: AttentionCount) -> f64 {
    let s = sequence as f64;
    match count {
        AttentionCount::Full => s,
        AttentionCount::Causal => match window {
            Some(w) if w < sequence => w as f64 - (w * w) as f64 / (2.0 * s),
            _ => s / 2.0,
        },
    }
}

/// Keys that an average query sees, and the length that decides how well a kernel works, where a
/// sequence may hold several documents: the first is the mean over tokens, so that attention counts the
/// sum of squared lengths; the second the harmonic mean over attention's work, because a kernel's time
/// for a document grows as `work (1 + half_length / length)`.
#[must_use]
pub fn attention_extent(
    sequence: u64,
    packed: Option<&PackedLengths>,
    window: Option<u64>,
    count: AttentionCount,
) -> (f64, f64) {
    let whole = |length: u64| window.map_or(length, |w| w.min(length)) as f64;
    let Some(packed) = packed else { return (effective_length(sequence, window, count), whole(sequence)) };
    let (mut tokens, mut work, mut work_over_length) = (0.0, 0.0, 0.0);
    for (length, documents) in packed.pieces(u32::try_from(sequence).unwrap_or(u32::MAX)) {
        let length = u64::from(length);
        let own = length as f64 * documents as f64;
        let own_work = own * effective_length(length, window, count);
        tokens += own;
        work += own_work;
        work_over_length += own_work / whole(length);
    }
    (work / tokens, work / work_over_length)
}

/// Forward FLOPs of the output head for one token.
#[must_use]
pub fn head_flops_per_token(model: &Model, vocabulary: u64) -> Flops {
    Flops(2.0 * (embedding_width(model) * vocabulary) as f64)
}

/// Model FLOPs of one training step (forward and backward, no recomputation) for `sequences`
/// sequences of `sequence` tokens: the numerator of MFU.
#[must_use]
pub fn model_flops(
    model: &Model,
    layers: &Layers,
    sequences: u64,
    sequence: u64,
    count: AttentionCount,
) -> Flops {
    packed_model_flops(model, layers, sequences, sequence, None, count)
}

/// [`model_flops`] where a sequence may hold several documents.
#[must_use]
pub fn packed_model_flops(
    model: &Model,
    layers: &Layers,
    sequences: u64,
    sequence: u64,
    packed: Option<&PackedLengths>,
    count: AttentionCount,
) -> Flops {
    let tokens = (sequences * sequence) as f64;
    let layer = |kind: u8| {
        let block = &layers.kinds[kind as usize].block;
        linear_flops_per_token(model, block) + core_flops_per_packed_token(block, sequence, packed, count)
    };
    let head = head_flops_per_token(model, model.vocabulary);
    let mut forward: Flops = layers.order.iter().map(|&kind| layer(kind)).sum::<Flops>() + head;
    if let Some((kind, modules)) = layers.mtp {
        forward += (layer(kind) + head + projection_flops_per_token(model)) * f64::from(modules);
    }
    forward * (3.0 * tokens)
}

/// FLOPs of one token in the projection of a module that predicts further tokens: embedding and stream in a row.
#[must_use]
pub fn projection_flops_per_token(model: &Model) -> Flops {
    Flops(4.0 * (model.hidden * model.hidden) as f64)
}
