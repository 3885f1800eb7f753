//! What one rank holds: parameters, tensors kept for the backward pass, working sets, buffers.
//!
//! Every layer is written down as the matrices, vectors and tensors that it has on one rank; parameters,
//! bytes and pooled gradients follow from the same list. Formulas: tensors kept per token as in
//! Korthikanti et al. 2022 extended to grouped heads, gated feed-forward parts, latent attention and
//! experts; bytes per parameter as in Rajbhandari et al. 2020 and `TransformerEngine:docs/features`.

use super::replay::{Order, Passes};
use super::timing::Prices;
use super::{Given, Ledger, Sequence, rank_of, spans};
use crate::cost::step::Prediction;
use crate::frameworks::hf::eager_attention;
use crate::frameworks::profile::{EagerScores, OffloadedActivations, OffloadedGradients};
use crate::layers::Layers;
use crate::plan::{
    ContextComm, CudaGraphs, Dispatcher, Layout, Module, Modules, Place, Plan, Recompute, Schedule,
};
use crate::spec::cluster::Architecture;
use crate::spec::job::{Optimizer, Precision, Routing, Training};
use crate::spec::model::{Block, FeedForward, Mixer, Norm, Position, QkNorm};

/// Workspace that matrix products take from the allocator: 32 MiB of cuBLAS and small change.
const WORKSPACE: f64 = 40e6;
/// Share of the kept tensors that operator-level recomputation (torchtitan's mode "op") leaves; fitted on
/// the memory readings of `torchtitan:benchmarks`.
const KEPT_BY_OPERATORS: f64 = 0.45;
/// Tokens of a chunk of the Mamba-2 scan, whose states are kept in FP32.
const SCAN_CHUNK: f64 = 256.0;
/// Part of the visible memory that fragmentation takes at the limit.
const FRAGMENTATION_AT_LIMIT: f64 = 1.02;

/// How a parameter is stored and updated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Trained, in the number format of linear layers.
    Linear,
    /// Routed experts: replicated over fewer ranks.
    Expert,
    /// Trained, in 16 bits, always by AdamW where the job says Muon.
    Plain,
    /// Not trained.
    Frozen,
}

const KINDS: [Kind; 4] = [Kind::Linear, Kind::Expert, Kind::Plain, Kind::Frozen];

/// Parameters on one rank by [`Kind`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Count(pub(super) [u64; 4]);

impl Count {
    fn add(&mut self, kind: Kind, parameters: u64) {
        self.0[kind as usize] += parameters;
    }
    pub(super) fn join(&mut self, other: &Self, times: u64) {
        for (into, from) in self.0.iter_mut().zip(other.0) {
            *into += from * times;
        }
    }
}

/// A tensor that waits for the backward pass.
#[derive(Debug, Clone, Copy)]
struct Tensor {
    bytes: f64,
    /// It is rebuilt where one of these is recomputed.
    rebuilt_by: Modules,
    /// Megatron-Core has a hook that sends it to host memory (`--offload-modules`).
    moves: bool,
}

/// One layer on one rank.
#[derive(Debug, Clone, Default)]
struct Layer {
    parameters: Count,
    /// Rows and columns of the matrices whose gradients are pooled.
    shapes: Vec<(u64, u64)>,
    tensors: Vec<Tensor>,
    /// Bytes of the backward pass beyond what is kept.
    working: f64,
}

impl Layer {
    /// Adds a matrix that every parallel rank holds `copies` of, with this shape there.
    fn matrix(&mut self, kind: Kind, copies: u64, rows: u64, columns: u64) {
        self.parameters.add(kind, copies * rows * columns);
        let shape = (rows, columns);
        if !self.shapes.contains(&shape) {
            self.shapes.push(shape);
        }
    }
    fn vector(&mut self, kind: Kind, parameters: u64) {
        self.parameters.add(kind, parameters);
    }
    fn keep(&mut self, bytes: f64, rebuilt_by: &[Module]) {
        let rebuilt_by = rebuilt_by.iter().fold(Modules::NONE, |set, &module| set.with(module));
        self.tensors.push(Tensor { bytes, rebuilt_by, moves: false });
    }
    /// [`Layer::keep`] of what can go to host memory.
    fn keep_or_move(&mut self, bytes: f64, rebuilt_by: &[Module]) {
        self.keep(bytes, rebuilt_by);
        if let Some(tensor) = self.tensors.last_mut() {
            tensor.moves = true;
        }
    }
    fn kept(&self) -> f64 {
        self.tensors.iter().map(|tensor| tensor.bytes).sum()
    }
    /// Bytes that selective recomputation drops.
    fn dropped(&self, modules: Modules, offloaded: bool) -> f64 {
        let here = |tensor: &&Tensor| !(offloaded && tensor.moves);
        if modules.has(Module::Operators) {
            return (1.0 - KEPT_BY_OPERATORS)
                * self.tensors.iter().filter(here).map(|t| t.bytes).sum::<f64>();
        }
        let gone = |tensor: &&Tensor| tensor.rebuilt_by.0 & modules.0 != 0;
        self.tensors.iter().filter(here).filter(gone).map(|tensor| tensor.bytes).sum()
    }
    /// Bytes that offload moves.
    fn moved(&self) -> f64 {
        self.tensors.iter().filter(|tensor| tensor.moves).map(|tensor| tensor.bytes).sum()
    }
}

/// The embedding, the modules that predict further tokens, or the head.
#[derive(Debug, Clone, Default)]
struct End {
    parameters: Count,
    shapes: Vec<(u64, u64)>,
    kept: f64,
    working: f64,
    /// Bytes of messages on their way.
    buffers: f64,
    /// Modules that predict further tokens. What they keep and work with is not in here.
    modules: Option<Further>,
}

/// Modules that predict further tokens.
#[derive(Debug, Clone, Default)]
pub(super) struct Further {
    pub(super) block: usize,
    pub(super) count: u64,
    /// One of them, with what it leaves beside its block.
    layer: Layer,
}

/// What ranks hold under one layout.
pub(super) struct Holdings<'a> {
    given: &'a Given<'a>,
    layout: &'a Layout,
    /// Whether Transformers computes attention eagerly.
    eager: bool,
    /// By index of [`Sequence::blocks`].
    layers: Vec<Layer>,
    embedding: End,
    /// Of modules that are not with the head.
    further: Option<End>,
    head: End,
    /// The input table where another rank needs it too.
    table_copy: Count,
}

/// Sizes that one layout fixes.
struct Share {
    tensor: u64,
    expert: u64,
    expert_tensor: u64,
    /// Tokens of a micro-batch on one context-parallel rank.
    tokens: f64,
    /// The same over sequence-parallel ranks.
    sequence: f64,
    /// The same over tensor-parallel ranks.
    split: f64,
    /// Bytes of a linear layer's saved input.
    operand: f64,
}

impl Share {
    /// Integer share of a size over tensor-parallel ranks, rounded up.
    fn of(&self, size: u64) -> u64 {
        size.div_ceil(self.tensor)
    }
}

/// Bytes of an operand and of the weight copies of a low-precision recipe; none in 16 bits. Hopper and
/// Ada multiply transposed operands only in 8 bits and hold a second copy.
fn narrow(precision: Precision, architecture: Architecture) -> Option<(f64, f64)> {
    use Architecture::{Ada, Ampere, Hopper};
    match precision {
        Precision::Bf16 | Precision::Fp16 => None,
        Precision::Fp8 => Some((1.0, if matches!(architecture, Hopper | Ada | Ampere) { 2.0 } else { 1.0 })),
        // One scale of a byte for 32 values, or of four for 128; rows and columns are stored apart.
        Precision::Fp8Blockwise | Precision::Mxfp8 => Some((1.03, 2.06)),
        Precision::Nvfp4 => Some((0.56, 1.13)),
    }
}

impl<'a> Holdings<'a> {
    pub(super) fn new(given: &'a Given<'a>, layout: &'a Layout, sequence: &Sequence) -> Self {
        let (job, architecture) = (given.job, given.machine.accelerator.architecture);
        let context = u64::from(layout.context_parallel);
        let tokens = u64::from(job.sequence_length) * u64::from(layout.micro_batch_size);
        let tokens = tokens.div_ceil(context) as f64;
        let tensor = u64::from(layout.tensor_parallel);
        let split = tokens / tensor as f64;
        let share = Share {
            tensor,
            expert: u64::from(layout.expert_parallel),
            expert_tensor: u64::from(layout.expert_tensor_parallel),
            tokens,
            sequence: if layout.sequence_parallel { split } else { tokens },
            split,
            operand: narrow(job.precision, architecture).map_or(2.0, |(operand, _)| operand),
        };
        let mut holdings = Self {
            given,
            layout,
            eager: eager_attention(given.model, &Layers::new(given.model)),
            layers: Vec::new(),
            embedding: End::default(),
            further: None,
            head: End::default(),
            table_copy: Count::default(),
        };
        holdings.layers = sequence.blocks.iter().map(|block| holdings.layer(&share, block)).collect();
        holdings.embedding = holdings.embedding(&share);
        (holdings.further, holdings.head) = holdings.tail(&share, sequence);
        if given.model.tied_embeddings || sequence.further.is_some() {
            let table = holdings.vocabulary(&share) / share.tensor * holdings.table_width();
            holdings.table_copy.add(holdings.base(Kind::Plain), table);
        }
        holdings
    }

    /// A weight of the base model: frozen beside adapters.
    fn base(&self, kind: Kind) -> Kind {
        if self.given.job.training == Training::Full { kind } else { Kind::Frozen }
    }

    fn norm(&self) -> u64 {
        let h = self.given.model.hidden;
        match self.given.model.norm {
            Norm::LayerNorm => 2 * h,
            Norm::RmsNorm | Norm::LayerNormNoBias => h,
            Norm::NoParameters => 0,
        }
    }

    fn table_width(&self) -> u64 {
        self.given.model.embedding_width.unwrap_or(self.given.model.hidden)
    }

    /// Rows of the embedding tables: a multiple of the divisor on every rank.
    fn vocabulary(&self, share: &Share) -> u64 {
        let model = self.given.model;
        let unit = model.vocabulary_divisor * share.tensor;
        model.vocabulary.div_ceil(unit) * unit
    }

    fn layer(&self, share: &Share, block: &Block) -> Layer {
        let h = self.given.model.hidden;
        let width = h as f64;
        let plain = self.base(Kind::Plain);
        let mut layer = Layer::default();
        layer.vector(plain, u64::from(block.norms) * self.norm());

        // Norms: those before a part leave their input and the part's input, those after it their input.
        let parts =
            u32::from(block.mixer != Mixer::None) + u32::from(block.feed_forward != FeedForward::None);
        let leading = block.norms.min(if block.parallel { 1 } else { parts });
        layer.keep(f64::from(leading) * 2.0 * width * share.sequence, &[]);
        // What a norm of attention's own puts out goes where attention's tensors go.
        let attends = matches!(block.mixer, Mixer::Attention(_) | Mixer::Latent(_)) && !block.parallel;
        let with_attention = if attends { leading.min(1) } else { 0 };
        let output = share.operand * width * share.sequence;
        layer.keep_or_move(f64::from(with_attention) * output, &[Module::LayerNorm]);
        layer.keep(f64::from(leading - with_attention) * output, &[Module::LayerNorm]);
        layer.keep(f64::from(block.norms - leading) * 2.0 * width * share.sequence, &[]);
        if self.given.model.dropout {
            // A mask of one byte behind every part.
            layer.keep(f64::from(parts) * width * share.sequence, &[]);
        }
        layer.keep(self.given.profile.memory.extra_kept.0 * width * share.sequence, &[]);
        let domain = self.given.machine.cluster.scale_up.domain;
        if self.layout.sequence_parallel && (2..=domain).contains(&self.layout.tensor_parallel) {
            // Gathered inputs stay whole.
            layer.keep(self.given.profile.memory.gathered_kept * width * share.tokens, &[]);
        }

        let mixing = self.mixer(share, block, &mut layer);
        let widening = self.feed_forward(share, block, &mut layer);
        // The worse of both parts, beside the gradient of the residual stream.
        layer.working = mixing.max(widening) + 2.0 * width * share.sequence;
        layer.working *= self.given.profile.memory.transient_factor;
        if let Training::Lora { rank } = self.given.job.training {
            self.adapters(share, block, u64::from(rank), &mut layer.parameters);
        }
        if self.given.job.training != Training::Full || self.given.profile.memory.gradient_pool.is_none() {
            layer.shapes.clear();
        }
        layer
    }

    /// Adds the mixer's matrices and tensors; returns the working set of its backward pass.
    fn mixer(&self, share: &Share, block: &Block, layer: &mut Layer) -> f64 {
        let h = self.given.model.hidden;
        let (linear, plain) = (self.base(Kind::Linear), self.base(Kind::Plain));
        let tokens = share.tokens;
        match &block.mixer {
            Mixer::Attention(a) => {
                // A rank holds whole heads; where there are fewer key/value heads than ranks, one each.
                let queries = share.of(a.heads) * a.head_dim;
                let keys = share.of(a.kv_heads) * a.head_dim;
                layer.matrix(linear, 1, queries + 2 * keys, h);
                layer.matrix(linear, 1, h, queries);
                if a.qkv_bias {
                    layer.vector(linear, queries + 2 * keys);
                }
                if a.output_bias {
                    layer.vector(plain, h);
                }
                match a.qk_norm {
                    QkNorm::None | QkNorm::NoParameters => {}
                    QkNorm::PerHeadDim => layer.vector(plain, 2 * a.head_dim),
                    QkNorm::PerHeadDimWithBias => layer.vector(plain, 4 * a.head_dim),
                    QkNorm::Full => layer.vector(linear, queries + keys),
                }
                if a.sinks {
                    layer.vector(linear, share.of(a.heads));
                }
                let (q, k) = (queries as f64 * tokens, keys as f64 * tokens);
                if a.qk_norm != QkNorm::None {
                    layer.keep_or_move(2.0 * (q + k), &[]);
                    layer.keep_or_move(self.given.profile.memory.norm_kept * (q + k), &[]);
                }
                // Queries, keys, values, and the output that both the core's and the projection's
                // backward read; a narrow projection keeps a copy in its own format.
                layer.keep_or_move(2.0 * q + 4.0 * k + 2.0 * q, &[]);
                if share.operand < 2.0 {
                    layer.keep_or_move(share.operand * q, &[]);
                }
                self.core(share, share.of(a.heads), q, layer);
                // Gradients of queries in two bytes and in FP32, of the output, of keys and values.
                let all = a.head_dim as f64 * share.split;
                let scores = self.scores().map_or(0.0, |scores| scores.working) * self.keys_of_a_query();
                (2.0 + 4.0 + 2.0) * a.heads as f64 * all
                    + 4.0 * a.kv_heads as f64 * all
                    + a.heads as f64 * share.split * scores
            }
            Mixer::Latent(a) => {
                let heads = share.of(a.heads);
                let query = a.qk_nope_dim + a.qk_rope_dim;
                match a.q_lora_rank {
                    Some(rank) => {
                        layer.matrix(linear, 1, rank, h);
                        layer.vector(plain, rank);
                        layer.matrix(linear, 1, heads * query, rank);
                        // Compressed queries before and after their norm, and what it keeps beside.
                        let norm = 4.0 + self.given.profile.memory.norm_kept;
                        layer.keep_or_move(norm * rank as f64 * share.sequence, &[]);
                    }
                    None => layer.matrix(linear, 1, heads * query, h),
                }
                let compressed = a.kv_lora_rank + a.qk_rope_dim;
                layer.matrix(linear, 1, compressed, h);
                layer.vector(plain, a.kv_lora_rank);
                layer.matrix(linear, 1, heads * (a.qk_nope_dim + a.v_dim), a.kv_lora_rank);
                layer.matrix(linear, 1, h, heads * a.v_dim);
                if a.bias {
                    layer.vector(plain, a.q_lora_rank.unwrap_or(0) + compressed + h);
                }
                layer.keep_or_move(2.0 * (compressed + a.kv_lora_rank) as f64 * share.sequence, &[]);
                let norm = self.given.profile.memory.norm_kept * a.kv_lora_rank as f64;
                layer.keep_or_move(norm * share.sequence, &[]);
                let expanded = (heads * (2 * query + a.v_dim)) as f64 * tokens;
                layer.keep_or_move(2.0 * expanded, &[Module::MlaUpProjection]);
                let output = (heads * a.v_dim) as f64 * tokens;
                layer.keep_or_move(2.0 * output, &[]);
                self.core(share, heads, output, layer);
                let all = a.heads as f64 * share.split;
                let scores = self.scores().map_or(0.0, |scores| scores.working) * self.keys_of_a_query();
                (2.0 + 4.0 + 2.0) * query as f64 * all + 4.0 * a.v_dim as f64 * all + scores * all
            }
            Mixer::Mamba2(a) => {
                // Gate, convolved channels (inner, B and C) and time steps leave one projection.
                let convolved = a.inner + 2 * a.groups * a.state;
                let projected = a.inner + convolved + a.heads;
                layer.matrix(linear, 1, share.of(projected), h);
                layer.matrix(linear, 1, h, share.of(a.inner));
                let small = convolved * (a.conv_kernel + u64::from(a.conv_bias)) + 3 * a.heads + a.inner;
                layer.vector(linear, share.of(small));
                if a.bias {
                    layer.vector(linear, share.of(projected));
                    layer.vector(plain, h);
                }
                let states = (a.inner * a.state) as f64 / SCAN_CHUNK;
                let channels = 2.0 * (projected + convolved + a.inner) as f64
                    + share.operand * a.inner as f64
                    + 4.0 * states;
                layer.keep(channels * share.split, &[]);
                8.0 * a.inner as f64 * share.split
            }
            Mixer::None => 0.0,
        }
    }

    /// What attention does with scores in memory: all layers of a model do as one with sinks asks.
    fn scores(&self) -> Option<EagerScores> {
        let architecture = self.given.machine.accelerator.architecture;
        self.given.profile.kernels.scores(architecture, self.eager)
    }

    /// Keys on one context-parallel rank that a query meets in memory.
    fn keys_of_a_query(&self) -> f64 {
        f64::from(self.given.job.sequence_length) / f64::from(self.layout.context_parallel)
    }

    /// What the core of attention leaves: statistics of a fused kernel, or scores, probabilities and a
    /// mask in memory; and the output a second time where heads were exchanged, or sequences and positions.
    fn core(&self, share: &Share, heads: u64, output: f64, layer: &mut Layer) {
        let per_query = self.scores().map_or(4.0, |scores| scores.kept * self.keys_of_a_query());
        layer.keep_or_move(per_query * heads as f64 * share.tokens, &[Module::CoreAttention]);
        if self.layout.context_parallel > 1 && self.layout.context_comm == ContextComm::AllToAll {
            layer.keep_or_move(2.0 * output, &[]);
        }
        if self.given.profile.memory.output_reordered && self.layout.micro_batch_size > 1 {
            layer.keep_or_move(2.0 * output, &[]);
        }
    }

    /// Adds the feed-forward part; returns the working set of its backward pass.
    fn feed_forward(&self, share: &Share, block: &Block, layer: &mut Layer) -> f64 {
        let h = self.given.model.hidden;
        let (linear, plain) = (self.base(Kind::Linear), self.base(Kind::Plain));
        match &block.feed_forward {
            FeedForward::Dense(d) => {
                let inputs = d.activation.matrices() - 1;
                layer.matrix(linear, 1, share.of(inputs * d.width), h);
                layer.matrix(linear, 1, h, share.of(d.width));
                if d.bias {
                    layer.vector(linear, share.of(inputs * d.width));
                    layer.vector(plain, h);
                }
                let channels = d.width as f64 * share.split;
                layer.keep(2.0 * inputs as f64 * channels, &[Module::Mlp]);
                layer.keep(share.operand * channels, &[Module::Mlp]);
                layer.keep(self.given.profile.memory.extra_kept.1 * channels, &[]);
                2.0 * inputs as f64 * channels
            }
            FeedForward::Moe(e) => {
                let inputs = e.activation.matrices() - 1;
                let seen = e.latent_width.unwrap_or(h);
                let expert = self.base(Kind::Expert);
                let local = e.experts / share.expert;
                let narrow = e.width / share.expert_tensor;
                layer.matrix(expert, local, inputs * narrow, seen);
                layer.matrix(expert, local, seen, narrow);
                if e.expert_bias {
                    let biases = e.experts * (inputs * e.width + seen);
                    layer.vector(expert, biases / (share.expert * share.expert_tensor));
                }
                let router = h + u64::from(e.router.bias) + u64::from(e.router.balancing_bias);
                layer.vector(plain, e.experts * router);
                if e.latent_width.is_some() {
                    layer.matrix(linear, 1, seen, h);
                    layer.matrix(linear, 1, h, seen);
                    layer.keep(4.0 * seen as f64 * share.sequence, &[Module::Moe]);
                }
                if e.shared_gate {
                    layer.vector(plain, h);
                }
                if e.shared_width > 0 {
                    layer.matrix(linear, 1, share.of(inputs * e.shared_width), h);
                    layer.matrix(linear, 1, h, share.of(e.shared_width));
                    let channels = e.shared_width as f64 * share.split;
                    layer.keep(
                        (2.0 * inputs as f64 + share.operand) * channels,
                        &[Module::Moe, Module::SharedExperts],
                    );
                }
                // Copies of tokens on the fullest rank.
                let mut fullest = match (self.given.job.routing, e.experts > 16) {
                    (Routing::Balanced, _) => 1.0,
                    (Routing::Natural, true) => self.given.profile.experts.imbalance.0,
                    (Routing::Natural, false) => self.given.profile.experts.imbalance.1,
                };
                // Experts take no more than their capacity, and are filled up to it where they are padded.
                if let Some(capacity) = self.given.job.expert_capacity
                    && (capacity.padded || fullest > capacity.factor)
                {
                    fullest = capacity.factor;
                }
                let copies = fullest * (e.top_k * share.expert_tensor) as f64 * share.sequence;
                let narrow = e.width as f64 / share.expert_tensor as f64;
                layer.keep_or_move(share.operand * seen as f64 * copies, &[Module::Moe]);
                layer.keep_or_move(2.0 * inputs as f64 * narrow * copies, &[Module::Moe]);
                layer.keep(share.operand * narrow * copies, &[Module::Moe, Module::MoeActivation]);
                if self.layout.dispatcher == Some(Dispatcher::AllGather) {
                    let ranks = (share.expert * share.expert_tensor) as f64;
                    layer.keep(2.0 * seen as f64 * share.sequence * ranks, &[Module::Moe]);
                }
                // Logits of the router in FP32; weight and index of every choice.
                layer.keep((4 * e.experts + 8 * e.top_k) as f64 * share.sequence, &[Module::Moe]);
                6.0 * (seen as f64 + narrow) * copies
            }
            FeedForward::None => 0.0,
        }
    }

    /// Adapters on every linear layer: `rank` times the sum of its widths, split like the layer's ranks.
    fn adapters(&self, share: &Share, block: &Block, rank: u64, count: &mut Count) {
        let h = self.given.model.hidden;
        let mut widths = 0;
        let mut pair = |inputs: u64, outputs: u64| widths += inputs + outputs;
        match &block.mixer {
            Mixer::Attention(a) => {
                pair(h, (a.heads + 2 * a.kv_heads) * a.head_dim);
                pair(a.heads * a.head_dim, h);
            }
            Mixer::Latent(a) => {
                let queries = a.heads * (a.qk_nope_dim + a.qk_rope_dim);
                match a.q_lora_rank {
                    Some(rank) => {
                        pair(h, rank);
                        pair(rank, queries);
                    }
                    None => pair(h, queries),
                }
                pair(h, a.kv_lora_rank + a.qk_rope_dim);
                pair(a.kv_lora_rank, a.heads * (a.qk_nope_dim + a.v_dim));
                pair(a.heads * a.v_dim, h);
            }
            Mixer::Mamba2(a) => {
                pair(h, 2 * a.inner + 2 * a.groups * a.state + a.heads);
                pair(a.inner, h);
            }
            Mixer::None => {}
        }
        let mut experts = 0;
        match &block.feed_forward {
            FeedForward::Dense(d) => {
                pair(h, (d.activation.matrices() - 1) * d.width);
                pair(d.width, h);
            }
            FeedForward::Moe(e) => {
                let seen = e.latent_width.unwrap_or(h);
                let inputs = e.activation.matrices() - 1;
                if e.latent_width.is_some() {
                    pair(h, seen);
                    pair(seen, h);
                }
                if e.shared_width > 0 {
                    pair(h, inputs * e.shared_width);
                    pair(e.shared_width, h);
                }
                experts = e.experts * (seen + inputs * e.width + e.width + seen);
            }
            FeedForward::None => {}
        }
        count.add(Kind::Linear, rank * share.of(widths));
        count.add(Kind::Expert, rank * experts.div_ceil(share.expert * share.expert_tensor));
    }

    fn embedding(&self, share: &Share) -> End {
        let model = self.given.model;
        let (h, width) = (model.hidden, self.table_width());
        let mut end = End::default();
        let mut own = self.vocabulary(share) / share.tensor * width;
        if let Position::Learned(rows) = model.position {
            own += rows * h;
        }
        if width != h {
            own += width * h;
            end.shapes.push((h, width));
        }
        if model.embedding_norm {
            own += self.norm();
        }
        end.parameters.add(self.base(Kind::Plain), own);
        // The residual stream as it leaves, and eight bytes of token ids.
        end.kept = 2.0 * h as f64 * share.sequence + 8.0 * share.tokens;
        self.pooled(&mut end);
        end
    }

    /// Modules that predict further tokens, where they are not with the head, and the head with all losses.
    fn tail(&self, share: &Share, sequence: &Sequence) -> (Option<End>, End) {
        let model = self.given.model;
        let (h, width) = (model.hidden, self.table_width());
        let rows = self.vocabulary(share);
        let plain = self.base(Kind::Plain);
        let mut end = End::default();
        if !model.tied_embeddings {
            end.parameters.add(plain, rows / share.tensor * width);
        }
        end.shapes.push((rows / share.tensor, width));
        if model.head_bias {
            end.parameters.add(plain, rows / share.tensor);
        }
        if width != h {
            end.parameters.add(plain, width * h);
            end.shapes.push((width, h));
        }
        if model.final_norm {
            end.parameters.add(plain, self.norm());
        }
        // Input and output of the last norm.
        end.kept = 4.0 * h as f64 * share.sequence;

        // At the loss: logits, the gathered input with its gradient, and the gradient's own share.
        let (memory, logit_bytes) = (&self.given.profile.memory, self.given.profile.loss(None).1);
        let local = rows as f64 / share.tensor as f64;
        let per_token = if memory.logits_gathered && share.tensor > 1 {
            logit_bytes * rows as f64 + 2.0 * local
        } else {
            logit_bytes * local
        };
        let stream = 2.0 * h as f64 * share.tokens;
        let gathered = self.layout.sequence_parallel && share.tensor > 1;
        let gradients = if gathered { 2.0 * stream + 2.0 * h as f64 * share.sequence } else { stream };
        end.working = per_token * share.tokens + gradients;

        let mut further = None;
        if let Some((block, modules)) = sequence.further {
            let layer = &self.layers[block];
            let standalone = self.layout.mtp_standalone;
            let (mut apart, many) = (End::default(), modules as f64);
            // The loss of every depth leaves a softmax over the vocabulary.
            let unfused = self.given.profile.loss(None).0.0 > 10.0;
            end.kept += many * if unfused { 4.0 } else { 2.0 } * share.tokens * local;
            // So does the stream that it reads. A module reads that of the last norm or of the module before, which wait
            // for their losses already unless these are elsewhere: then streams pass through buffers of both ranks.
            let stream = 2.0 * h as f64 * share.sequence;
            end.kept += many * stream;
            if standalone {
                apart.kept += many * stream;
                let buffers = self.messages_at_once() * many * stream;
                (end.buffers, apart.buffers) = (buffers, buffers);
            }
            let own = if standalone { &mut apart } else { &mut end };
            own.parameters.join(&layer.parameters, modules);
            own.parameters.add(self.base(Kind::Linear), modules * share.of(2 * h * h));
            own.parameters.add(plain, modules * 3 * self.norm());
            own.shapes.push((share.of(h), 2 * h));
            own.shapes.extend(&layer.shapes);
            // The embedding, both norms' outputs in a row, and the last norm's input.
            let mut layer = layer.clone();
            [stream, 2.0 * stream, stream].into_iter().for_each(|bytes| layer.keep(bytes, &[]));
            own.modules = Some(Further { block, count: modules, layer });
            self.pooled(&mut apart);
            further = standalone.then_some(apart);
        }
        self.pooled(&mut end);
        (further, end)
    }

    /// What stands on chunks beside layers, in model order, with its chunk.
    fn ends(&self) -> impl Iterator<Item = (usize, &End)> {
        let all = self.layout.chunk_count() as usize;
        let further = self.further.as_ref().map(|end| (all - 2, end));
        [Some((0, &self.embedding)), further, Some((all - 1, &self.head))].into_iter().flatten()
    }

    /// Chunks whose work reads the input table: that of the modules that predict further tokens, and that of a tied head.
    fn reads_table(&self, chunk: usize) -> bool {
        let all = self.layout.chunk_count() as usize;
        match &self.further {
            Some(_) => chunk + 2 == all || chunk + 1 == all && self.given.model.tied_embeddings,
            None => chunk + 1 == all,
        }
    }

    /// Leaves only shapes whose gradients are pooled.
    fn pooled(&self, end: &mut End) {
        if self.given.job.training != Training::Full || self.given.profile.memory.gradient_pool.is_none() {
            end.shapes.clear();
        }
    }
}

/// Bytes of one rank, by item.
#[derive(Debug, Clone, Copy, Default)]
struct Bill {
    weights: f64,
    gradients: f64,
    optimizer: f64,
    activations: f64,
    transient: f64,
    /// Most that `transient` may be: groups of recomputed layers are taken as full.
    transient_most: f64,
    pools: f64,
    buffers: f64,
}

/// Bytes by which roundings of single layers may add up: one in a million, and a page.
fn slack(bytes: f64) -> u64 {
    4096 + (bytes * 1e-6) as u64
}

impl Holdings<'_> {
    /// Parameters of one block on one rank.
    pub(super) fn of_layer(&self, block: usize) -> &Count {
        &self.layers[block].parameters
    }
    /// Chunk and parameters of what stands beside layers.
    pub(super) fn of_ends(&self) -> Vec<(usize, &Count)> {
        self.ends().map(|(chunk, end)| (chunk, &end.parameters)).collect()
    }

    /// Modules on a chunk that predict further tokens.
    pub(super) fn modules_on(&self, chunk: usize) -> Option<&Further> {
        self.ends().filter(|(k, _)| *k == chunk).find_map(|(_, end)| end.modules.as_ref())
    }

    /// Parameters of every pipeline rank.
    pub(super) fn of_ranks(&self, sequence: &Sequence, plan: &Plan) -> Vec<Count> {
        let mut ranks = vec![Count::default(); self.layout.pipeline_parallel as usize];
        for (k, span) in spans(plan).enumerate() {
            let rank = rank_of(self.layout, k);
            for &block in &sequence.order[span] {
                ranks[rank].join(&self.layers[block].parameters, 1);
            }
            for (_, end) in self.ends().filter(|(chunk, _)| *chunk == k) {
                ranks[rank].join(&end.parameters, 1);
            }
            if self.reads_table(k) && rank != rank_of(self.layout, 0) {
                ranks[rank].join(&self.table_copy, 1);
            }
        }
        ranks
    }

    /// Ranks that share the optimizer state of one kind of parameter.
    fn sharing(&self, kind: Kind) -> f64 {
        let l = self.layout;
        if l.zero_stage == 0 {
            return 1.0;
        }
        let replicas = u64::from(l.data_parallel) * u64::from(l.context_parallel);
        let group = u64::from(l.shard_group).min(replicas).max(1);
        if kind != Kind::Expert {
            return group as f64;
        }
        // Replicas of an expert, divided into as many groups as those of dense weights.
        let stage = replicas * u64::from(l.tensor_parallel);
        let experts = stage / (u64::from(l.expert_parallel) * u64::from(l.expert_tensor_parallel));
        (experts / (replicas / group)).max(1) as f64
    }

    /// Bytes of weights, gradients and states of one parameter, undivided.
    fn undivided(&self, kind: Kind) -> [f64; 3] {
        let (job, memory) = (self.given.job, &self.given.profile.memory);
        let recipe = if job.precision == Precision::Fp16 { memory.fp16 } else { memory.bf16 };
        let mut weights = recipe.weights;
        let architecture = self.given.machine.accelerator.architecture;
        let linear = matches!(kind, Kind::Linear | Kind::Expert);
        if let (Some((_, copies)), true) = (narrow(job.precision, architecture), linear) {
            weights = if memory.primary_low_precision { copies } else { weights + copies };
        }
        let moments = match job.optimizer {
            Optimizer::Adamw => 8.0,
            Optimizer::Muon if !linear => 8.0,
            Optimizer::AdamwBf16 | Optimizer::Muon | Optimizer::Sgd => 4.0,
            // Two bytes, and two FP32 scales for every 256 values.
            Optimizer::Adam8bit => 2.0 + 8.0 / 256.0,
        };
        let (mut gradients, mut owned) = (recipe.gradients, recipe.owned + moments);
        if kind == Kind::Frozen {
            (gradients, owned) = (0.0, 0.0);
        }
        [weights, gradients, owned]
    }

    /// Bytes of host memory and of drives that one local parameter takes.
    fn off_the_gpu(&self, kind: Kind) -> [f64; 2] {
        let offload = self.layout.offload;
        let [weights, gradients, owned] = self.undivided(kind);
        let mut off = [0.0; 2];
        // A copy of the gradients lies in host memory beside states that are updated there; and the gradients, if the
        // framework keeps them there.
        let copy = self.given.profile.memory.host_gradients;
        let trained = kind != Kind::Frozen;
        let lone = self.layout.zero_stage == 2
            && self.layout.gradient_accumulation_steps == 1
            && self.given.profile.memory.offloaded_gradients == OffloadedGradients::SummedOnGpu;
        let summed = if lone { 0.0 } else { gradients };
        match (offload.optimizer, self.gradients_leave()) {
            (Place::Gpu, _) => {}
            (Place::Cpu, _) if !trained => off[0] += owned,
            (Place::Cpu, true) => off[0] += owned + summed + copy,
            (Place::Cpu, false) => off[0] += owned + gradients.min(4.0).max(copy),
            (Place::Nvme, true) => {
                off[0] += summed;
                off[1] += if trained { owned + copy } else { owned };
            }
            (Place::Nvme, false) => {
                off[1] += if trained { owned + gradients.min(4.0).max(copy) } else { owned }
            }
        }
        match offload.parameters {
            Place::Cpu if self.layout.zero_stage >= 3 => off[0] += weights,
            Place::Nvme if self.layout.zero_stage >= 3 => off[1] += weights,
            _ => {}
        }
        off.map(|bytes| bytes / self.sharing(kind))
    }

    /// Bytes of weights, gradients and owned states of one parameter on one rank.
    fn per_parameter(&self, kind: Kind) -> [f64; 3] {
        let l = self.layout;
        let [weights, gradients, owned] = self.undivided(kind);
        let ranks = self.sharing(kind);
        let mut bytes = [weights, gradients, owned / ranks];
        if l.zero_stage >= 2 {
            bytes[1] = if self.gradients_leave() { 0.0 } else { bytes[1] / ranks };
        }
        if l.zero_stage < 3 && kind != Kind::Frozen {
            bytes[0] += self.given.profile.memory.cached_weights;
        }
        if l.zero_stage >= 3 {
            bytes[0] /= ranks;
            if l.offload.parameters != Place::Gpu {
                bytes[0] = 0.0;
            }
            if self.kept_in_pipeline() {
                // Gathered for the whole step, with a gradient that no rank has reduced yet.
                bytes[0] += 2.0;
                bytes[1] += if kind == Kind::Frozen { 0.0 } else { self.given.profile.sharded.reduce_bytes };
            }
        }
        if l.schedule == Schedule::DualPipe && kind != Kind::Plain {
            // Both directions hold the rank's layers; embedding and head are there once, and norms are counted so.
            bytes[0] *= 2.0;
            bytes[1] *= 2.0;
        }
        if l.offload.optimizer != Place::Gpu {
            bytes[2] = 0.0;
        }
        bytes
    }

    /// Whether gradients are in host memory from one micro-batch to the next.
    fn gradients_leave(&self) -> bool {
        let (l, kept) = (self.layout, self.given.profile.memory.offloaded_gradients);
        kept != OffloadedGradients::OnGpu && l.zero_stage >= 2 && l.offload.optimizer != Place::Gpu
    }

    /// Whether sharded weights stay gathered from the first micro-batch to the last.
    fn kept_in_pipeline(&self) -> bool {
        self.given.profile.sharded.kept_in_pipeline && self.layout.pipeline_parallel > 1
    }

    /// Bytes of one unit of sharded weights while it is in use: gathered in 16 bits, with units ahead,
    /// and its unreduced gradient.
    fn gathered(&self, count: &Count) -> f64 {
        if self.layout.zero_stage < 3 || self.kept_in_pipeline() {
            return 0.0;
        }
        let sharded = &self.given.profile.sharded;
        let trained = |kind: &Kind| *kind != Kind::Frozen;
        let all: u64 = count.0.iter().sum();
        let with_gradient: u64 = KINDS.iter().filter(|k| trained(k)).map(|&k| count.0[k as usize]).sum();
        let whole = (1.0 + sharded.prefetch) * 2.0 * all as f64 + sharded.reduce_bytes * with_gradient as f64;
        match sharded.most_gathered {
            // Parts of a layer, all kinds of weights in proportion.
            Some(most) if (all as f64) > most => whole * most / all as f64,
            _ => whole,
        }
    }

    /// What a layer leaves for its backward pass.
    fn left(&self, layer: &Layer) -> f64 {
        if self.offloads(OffloadedActivations::Kept) { layer.kept() - layer.moved() } else { layer.kept() }
    }

    /// Whether this goes to host memory.
    fn offloads(&self, what: OffloadedActivations) -> bool {
        self.layout.offload.activations && self.given.profile.memory.offloaded_activations == what
    }

    /// Kept bytes of a chunk per micro-batch, its largest working set, and the most that may be.
    fn chunk(&self, blocks: &[usize], recompute: Recompute, input: f64) -> (f64, f64, f64) {
        let layers: Vec<&Layer> = blocks.iter().map(|&block| &self.layers[block]).collect();
        self.row(&layers, recompute, input)
    }

    /// [`Holdings::chunk`] of layers in a row.
    fn row(&self, layers: &[&Layer], recompute: Recompute, input: f64) -> (f64, f64, f64) {
        let offloaded = self.offloads(OffloadedActivations::Kept);
        let (mut kept, mut working, mut most) = (0.0, 0.0_f64, 0.0_f64);
        let mut plain = |kept: &mut f64, layer: &Layer, modules: Modules| {
            let dropped = layer.dropped(modules, offloaded);
            let stays = self.left(layer) - dropped;
            *kept += stays;
            // A merged forward pass leaves a layer of the next micro-batch before that of the last is gone.
            let next = if self.layout.expert_overlap { stays } else { 0.0 };
            working = working.max(layer.working + dropped + next);
        };
        let (whole, group) = match recompute {
            Recompute::None => {
                layers.iter().for_each(|layer| plain(&mut kept, layer, Modules::NONE));
                (0, 1)
            }
            Recompute::Selective(modules) => {
                layers.iter().for_each(|layer| plain(&mut kept, layer, modules));
                (0, 1)
            }
            Recompute::FullUniform(n) => (layers.len(), n.max(1) as usize),
            Recompute::FullBlock(n) => {
                let whole = layers.len().min(n as usize);
                layers[whole..].iter().for_each(|layer| plain(&mut kept, layer, Modules::NONE));
                (whole, 1)
            }
        };
        // Layers that are recomputed whole: of every group one input is kept, here or in host memory, and all of
        // it is rebuilt at once.
        let stays = if self.offloads(OffloadedActivations::Inputs) { 0.0 } else { input };
        let any = self.layers.iter().map(|layer| layer.working).fold(0.0, f64::max);
        for group_of in layers[..whole].chunks(group) {
            kept += stays;
            let rebuilt: f64 = group_of.iter().map(|layer| self.left(layer)).sum();
            for layer in group_of {
                let full = group as f64 * self.left(layer);
                working = working.max(layer.working + (rebuilt - stays).max(0.0));
                let beside = if group > 1 { any } else { layer.working };
                most = most.max(beside + (full - stays).max(0.0));
            }
        }
        (kept, working, most.max(working))
    }

    /// What modules that predict further tokens recompute where layers do so.
    pub(super) fn of_modules(&self, recompute: Recompute) -> Recompute {
        match recompute {
            Recompute::FullUniform(_) if self.given.profile.memory.further_recomputed => {
                Recompute::FullUniform(1)
            }
            Recompute::Selective(_) if self.given.profile.memory.further_recomputed => recompute,
            _ => Recompute::None,
        }
    }

    /// Kept bytes per micro-batch and largest working set of the modules beside layers that predict further tokens.
    /// Megatron-Core checkpoints each as a whole, which leaves its stream and the embedding, or not at all if only some
    /// layers are (Megatron-LM:megatron/core/transformer/multi_token_prediction.py `_checkpointed_forward`).
    fn modules(&self, end: &End, recompute: Recompute, input: f64) -> (f64, f64) {
        let Some(Further { block, count, layer }) = &end.modules else { return (0.0, 0.0) };
        let (kept, working) = match self.of_modules(recompute) {
            whole @ Recompute::FullUniform(_) => {
                let (kept, working, _) = self.row(&[layer], whole, input);
                (kept, working)
            }
            // Only the block takes part.
            other => {
                let own = &self.layers[*block];
                let (kept, working, _) = self.row(&[own], other, input);
                (kept + layer.kept() - own.kept(), working)
            }
        };
        (*count as f64 * kept, working)
    }

    /// Bytes of a layer's input on one rank.
    fn input_bytes(&self) -> f64 {
        let layout = self.layout;
        let tokens = u64::from(self.given.job.sequence_length) * u64::from(layout.micro_batch_size);
        let tokens = tokens.div_ceil(u64::from(layout.context_parallel)) as f64;
        let divided = if layout.sequence_parallel { f64::from(layout.tensor_parallel) } else { 1.0 };
        2.0 * self.given.model.hidden as f64 * tokens / divided
    }

    /// Bytes of a layer that wait in host memory for its backward pass.
    fn moved(&self, layer: &Layer, at: u32, recompute: Recompute, input: f64) -> f64 {
        let (whole, first) = match recompute {
            Recompute::FullUniform(n) => (true, at % n.max(1) == 0),
            Recompute::FullBlock(n) => (at < n, true),
            Recompute::None | Recompute::Selective(_) => (false, false),
        };
        match self.given.profile.memory.offloaded_activations {
            OffloadedActivations::Kept if !whole => layer.moved(),
            OffloadedActivations::Inputs if whole && first => input,
            _ => 0.0,
        }
    }

    /// Compares what the fullest node keeps off its GPUs with the prediction, and with what a node has.
    pub(super) fn compare_off_gpu(
        &self,
        sequence: &Sequence,
        plan: &Plan,
        order: &Order,
        passes: &Passes,
        prediction: &Prediction,
        ledger: &mut Ledger,
    ) {
        let (layout, found) = (self.layout, &prediction.off_gpu);
        let input = self.input_bytes();
        let mut kept = vec![0.0; plan.chunks().len()];
        if layout.offload.activations {
            for (k, span) in spans(plan).enumerate() {
                let recompute = plan.chunks()[k].recompute;
                let blocks = sequence.order[span].iter().zip(0..);
                kept[k] =
                    blocks.map(|(&block, at)| self.moved(&self.layers[block], at, recompute, input)).sum();
                for (_, end) in self.ends().filter(|(chunk, _)| *chunk == k) {
                    let Some(Further { count, layer, .. }) = &end.modules else { continue };
                    kept[k] += *count as f64 * self.moved(layer, 0, self.of_modules(recompute), input);
                }
            }
        }
        let rates = KINDS.map(|kind| self.off_the_gpu(kind));
        let counts = self.of_ranks(sequence, plan);
        let ranks: Vec<[f64; 3]> = counts
            .iter()
            .zip(passes.peaks(order, &kept))
            .map(|(count, activations)| {
                let sum =
                    |i: usize| -> f64 { rates.iter().zip(&count.0).map(|(r, &n)| r[i] * n as f64).sum() };
                [sum(0), activations, sum(1)]
            })
            .collect();
        // Every stage takes neighbouring GPUs; a node holds so many neighbours.
        let cluster = &self.given.machine.cluster;
        let gpus: Vec<usize> = (0..ranks.len())
            .flat_map(|rank| std::iter::repeat_n(rank, (layout.gpus() / ranks.len() as u64) as usize))
            .collect();
        let nodes = gpus.chunks(cluster.gpus_per_node as usize).map(|node| {
            let sum = |i: usize| -> f64 { node.iter().map(|&rank| ranks[rank][i]).sum() };
            (sum(0) + sum(1), sum(2))
        });
        let (host, drives) =
            nodes.fold((0.0_f64, 0.0_f64), |most, node| (most.0.max(node.0), most.1.max(node.1)));
        let name = "off-gpu";
        let allowed = 16 * slack(host.max(drives));
        ledger.near(name, || "host memory, bytes".into(), host as u64, found.host().0, allowed);
        ledger.near(name, || "drives, bytes".into(), drives as u64, found.drives.0, allowed);
        let (memory, size) = (cluster.host.memory.0, cluster.host.nvme.map_or(0, |(size, _)| size.0));
        let fits = found.host().0 <= memory && found.drives.0 <= size;
        let most = || format!("at most {memory} and {size}");
        ledger.hold("off-gpu-limit", fits, || "fullest node".into(), most(), found.host().0);
    }

    /// The bill of every pipeline rank.
    fn bills(&self, sequence: &Sequence, plan: &Plan, order: &Order, passes: &Passes) -> Vec<Bill> {
        let layout = self.layout;
        let input = self.input_bytes();
        let chunks = plan.chunks();
        let mut bills = vec![Bill::default(); layout.pipeline_parallel as usize];
        let mut kept = vec![0.0; chunks.len()];
        let mut units = vec![0.0_f64; bills.len()];
        let mut shapes: Vec<Vec<(u64, u64)>> = vec![Vec::new(); bills.len()];
        for (k, span) in spans(plan).enumerate() {
            let rank = rank_of(layout, k);
            let bill = &mut bills[rank];
            let blocks = &sequence.order[span];
            let (chunk_kept, working, most) = self.chunk(blocks, chunks[k].recompute, input);
            kept[k] = chunk_kept;
            bill.transient = bill.transient.max(working);
            bill.transient_most = bill.transient_most.max(most);
            for &block in blocks {
                units[rank] = units[rank].max(self.gathered(&self.layers[block].parameters));
                shapes[rank].extend(&self.layers[block].shapes);
            }
            for (_, end) in self.ends().filter(|(chunk, _)| *chunk == k) {
                let (modules_kept, modules_working) = self.modules(end, chunks[k].recompute, input);
                kept[k] += end.kept + modules_kept;
                let working = end.working.max(modules_working);
                bill.transient = bill.transient.max(working);
                bill.transient_most = bill.transient_most.max(working);
                bill.buffers += end.buffers;
                units[rank] = units[rank].max(self.gathered(&end.parameters));
                shapes[rank].extend(&end.shapes);
            }
        }
        let in_flight = passes.peaks(order, &kept);
        let buffers = self.buffers(sequence, input);
        let bytes = KINDS.map(|kind| self.per_parameter(kind));
        for (rank, count) in self.of_ranks(sequence, plan).iter().enumerate() {
            let bill = &mut bills[rank];
            for (bytes, &n) in bytes.iter().zip(&count.0) {
                bill.weights += bytes[0] * n as f64;
                bill.gradients += bytes[1] * n as f64;
                bill.optimizer += bytes[2] * n as f64;
            }
            bill.activations = in_flight[rank];
            // Reductions and gathers of an update are staged when no activation is left.
            let m = &self.given.profile.memory;
            let replicated = self.layout.zero_stage == 0 && self.layout.offload.optimizer == Place::Gpu;
            let all: u64 = count.0.iter().sum();
            let trained = all - count.0[Kind::Frozen as usize];
            let copied = if replicated { m.replicated_staging * trained as f64 } else { 0.0 };
            let staged = m.staging * all as f64 + copied;
            bill.transient = bill.transient.max(staged - bill.activations);
            bill.transient_most = bill.transient_most.max(bill.transient);
            shapes[rank].sort_unstable();
            shapes[rank].dedup();
            let pooled: u64 = shapes[rank].iter().map(|&(rows, columns)| 2 * rows * columns).sum();
            bill.pools = pooled as f64 + units[rank];
            bill.buffers += buffers;
        }
        bills
    }

    /// What a rank holds whatever its layers are: workspaces, buffers of a dispatch library, activations
    /// on their way to the host, and pipeline messages.
    fn buffers(&self, sequence: &Sequence, input: f64) -> f64 {
        let (layout, profile) = (self.layout, self.given.profile);
        let mut bytes = WORKSPACE;
        if matches!(layout.dispatcher, Some(Dispatcher::DeepEp | Dispatcher::HybridEp)) {
            bytes += profile.experts.library_buffers;
        }
        if layout.offload.activations {
            let used = sequence.order.iter().copied().chain(sequence.further.map(|(block, _)| block));
            let largest = used.map(|block| self.layers[block].kept()).fold(0.0, f64::max);
            bytes += match profile.memory.offloaded_activations {
                OffloadedActivations::Kept => 2.0 * largest,
                OffloadedActivations::Inputs => 3.0 * input,
            };
        }
        if layout.cuda_graphs != CudaGraphs::None {
            let (alone, piped) = profile.memory.graph_buffers;
            bytes += if layout.pipeline_parallel > 1 { piped } else { alone };
        }
        bytes + input * self.messages_at_once()
    }

    /// Pipeline messages that a rank has buffers for: one each way, two where they overlap with computation.
    fn messages_at_once(&self) -> f64 {
        let overlapped = self.layout.virtual_stages > 1 && self.given.profile.pipeline.overlap_interleaved;
        match self.layout.pipeline_parallel {
            1 => 0.0,
            _ if overlapped => 4.0,
            _ => 2.0,
        }
    }

    /// Compares the parameters of layers and ends with those that the prices are for.
    pub(super) fn compare_parameters(&self, sequence: &Sequence, prices: &Prices, ledger: &mut Ledger) {
        let show = |count: &Count| format!("{:?}", count.0);
        let mut compare = |what: String, derived: &Count, priced: Count| {
            ledger.hold("parameters", *derived == priced, || what, show(derived), show(&priced));
        };
        for (block, layer) in self.layers.iter().enumerate() {
            let name = self.given.model.blocks.iter().find(|(_, b)| *b == sequence.blocks[block]);
            let what = format!("block `{}`", name.map_or("", |(name, _)| name));
            compare(what, &layer.parameters, prices.parameters_of_layer(block));
        }
        for ((chunk, derived), priced) in self.of_ends().into_iter().zip(prices.ends()) {
            let what = format!("beside the layers of chunk {chunk}");
            compare(what, derived, Count(priced.parameters.0));
        }
    }

    /// Compares every item of every rank's memory, and the totals with the limit.
    pub(super) fn compare_memory(
        &self,
        sequence: &Sequence,
        plan: &Plan,
        order: &Order,
        passes: &Passes,
        prediction: &Prediction,
        ledger: &mut Ledger,
    ) {
        let bills = self.bills(sequence, plan, order, passes);
        let mut fullest = 0.0_f64;
        for (rank, (bill, found)) in bills.iter().zip(&prediction.memory).enumerate() {
            let items = [
                ("memory-weights", bill.weights, found.weights),
                ("memory-gradients", bill.gradients, found.gradients),
                ("memory-optimizer", bill.optimizer, found.optimizer),
                ("memory-activations", bill.activations, found.activations),
                ("memory-pools", bill.pools, found.pools),
                ("memory-buffers", bill.buffers, found.buffers),
            ];
            for (name, derived, found) in items {
                let what = || format!("rank {rank}, bytes");
                ledger.near(name, what, derived.ceil() as u64, found.0, slack(derived));
            }
            let (least, most) = (bill.transient.ceil() as u64, bill.transient_most.ceil() as u64);
            let within = found.transient.0 + slack(bill.transient) >= least
                && found.transient.0 <= most + slack(bill.transient_most);
            let wanted = if least == most { least.to_string() } else { format!("{least} to {most}") };
            let what = || format!("rank {rank}, bytes");
            ledger.hold("memory-transient", within, what, wanted, found.transient.0);
            let total = bill.weights
                + bill.gradients
                + bill.optimizer
                + bill.activations
                + bill.transient
                + bill.pools
                + bill.buffers;
            fullest = fullest.max(total);
        }
        let m = &self.given.profile.memory;
        // Working sets of grouped recomputation may be taken as larger than they are.
        let room = bills.iter().map(|b| b.transient_most - b.transient).fold(0.0, f64::max) as u64;
        let allowed = 8 * slack(fullest) + room;
        let allocated = prediction.allocated.0;
        ledger.near("memory-total", || "allocated".into(), fullest.ceil() as u64, allocated, allowed);
        let most = prediction.memory.iter().map(|rank| rank.total().0).max().unwrap_or(0);
        ledger.same("memory-total", || "allocated, as the largest sum of items".into(), most, allocated);
        let reserved = allocated as f64 * m.fragmentation;
        ledger.near("memory-total", || "reserved".into(), reserved as u64, prediction.reserved.0, 1);
        let device = prediction.reserved.0 as f64 + m.fixed;
        ledger.near("memory-total", || "device".into(), device as u64, prediction.device.0, 1);

        let accelerator = &self.given.machine.accelerator;
        let device = ((accelerator.memory.0 as f64 - m.fixed).max(0.0) / FRAGMENTATION_AT_LIMIT) as u64;
        let usual = accelerator.memory_limit.map_or(device, |limit| limit.0.min(device));
        let limit = self.given.job.memory_limit.map_or(usual, |limit| limit.0);
        let most = allocated.max(fullest.ceil() as u64);
        let excess = most.saturating_sub(limit) > slack(fullest);
        let fits = allocated <= limit && !excess;
        ledger.hold("memory-limit", fits, || "fullest rank".into(), format!("at most {limit}"), most);
    }
}
