//! Prices layers, ends, states and messages of a layout: fills the tables of [`crate::cost`].

use std::collections::HashMap;

use crate::cost::compute::{AttentionShape, Device, Product};
use crate::cost::network::{Fabric, Group};
use crate::cost::step::{OffGpu, Prediction};
use crate::cost::{
    CellCosts, CellKey, EndCost, Further, Hop, ITEMS, Item, LayerCost, LocalParameters, MicroOverlap,
    ModuleCost, OffloadedInput, PerParameter, Sharding, StateClass, Times,
};
use crate::frameworks::error_bars::{Class, ErrorBars, Interval, Leaning, Scale, own_runs};
use crate::frameworks::hf::{eager_attention, windows_cut};
use crate::frameworks::profile::{DataMode, EagerScores, GradientPool, OffloadedActivations, Profile};
use crate::layers::{
    AttentionCount, LayerKind, Layers, attention_extent, embedding_parameters, embedding_width,
    head_parameters, norm_parameters,
};
use crate::memory::{self, LowPrecision, Reserve};
use crate::plan::{ContextComm, CudaGraphs, Dispatcher, Layout, Module, Place, Schedule};
use crate::spec::cluster::{Accelerator, Architecture, Cluster, OwnRuns};
use crate::spec::job::{ExpertCapacity, Job, Precision, Routing, Training};
use crate::spec::model::{Block, FeedForward, LatentAttention, Mixer, Model, Moe, Position, QkNorm};
use crate::spec::special::Special;
use crate::units::{Bytes, Picos, Seconds};

/// Share of the last backward (first forward) pass under which data-parallel traffic hides.
/// Estimate: the first layers' gradients come last, and buckets close late.
const DATA_HIDDEN_SHARE: f64 = 0.8;
/// Slow-down of matrix products by a reduce-scatter that runs beside them, as a share of the latter.
const REDUCE_INTERFERENCE: f64 = 0.25;
/// Slow-down of computation by overlapped data-parallel traffic, as a share of that traffic.
const DATA_INTERFERENCE: f64 = 0.05;
/// Attention over ring chunks loses this much for every doubling of the ring.
const RING_LOSS: f64 = 0.06;
/// Share of a layer's forward (backward) pass under which offloaded activations move for free.
const OFFLOAD_HIDDEN_SHARE: f64 = 0.9;
/// Traffic of a chunked state-space scan with its convolution and gated norm, bytes per inner channel and
/// token, forward; the backward pass moves 2.5 times as much. The published kernels are bound by memory and by
/// their chunk states, not by matrix rates. Fitted on four Nemotron-H rows of DGX Cloud.
const SCAN_BYTES: f64 = 187.0;
/// Operator-level selective recomputation (torchtitan, mode "op"): share of a forward pass that is
/// replayed, and share of the activations that stays. Fitted on 12 memory readings and the step times of
/// `torchtitan:benchmarks`.
const OPERATOR_REPLAY: f64 = 0.35;
const OPERATOR_KEPT: f64 = 0.45;
/// Workspace of matrix products that the allocator serves: 32 MiB of cuBLAS on Hopper and later, and
/// small change.
const WORKSPACE: Bytes = Bytes(40_000_000);
/// Messages that a rank has buffers for where they overlap with computation: two each way.
const MOST_MESSAGES: u64 = 4;
/// Bytes of a message that says what shape the next has: three 64-bit numbers.
const SHAPE_BYTES: f64 = 24.0;
/// Tokens of one chunk of a state-space scan, whose states are kept in FP32 (Mamba-2's default).
const SCAN_CHUNK: u64 = 256;

/// Cost model of one model, cluster, framework and job.
#[derive(Debug, Clone)]
pub struct CostModel<'a> {
    model: &'a Model,
    layers: &'a Layers,
    cluster: &'a Cluster,
    accelerator: &'a Accelerator,
    profile: &'a Profile,
    job: &'a Job,
    device: Device,
    fabric: Fabric,
    data_fabric: Fabric,
    low: Option<LowPrecision>,
    /// All parameters of the model.
    total_parameters: u64,
    /// Those of routed experts among them.
    expert_parameters: u64,
    /// Share of the layers all of whose activations offload moves; none where single modules are offloaded.
    whole_layers: Option<f64>,
    /// The linear layers that have adapters.
    adapted: Adapted,
    /// Year and month of the software's release; none: today's.
    release: Option<(u32, u32)>,
    /// Error bars of step times, without and with tensor parallelism that leaves the fast domain.
    error_bars: [Interval; 2],
    /// Those of peak memory.
    memory_bars: [Interval; 2],
    /// The site's own runs that are like the job.
    own_runs: Option<&'a OwnRuns>,
    measured: bool,
    /// Whether [`ErrorBars::known_by_rates`].
    by_rates: bool,
    leaning: Option<&'static Leaning>,
}

/// Seconds by [`Item`], before rounding to picoseconds.
#[derive(Debug, Clone, Copy, Default)]
struct Work([f64; ITEMS]);

impl Work {
    fn add(&mut self, item: Item, seconds: f64) {
        self.0[item as usize] += seconds;
    }
    fn total(&self) -> f64 {
        self.0.iter().sum()
    }
    fn times(&self) -> Times {
        let mut times = Times::default();
        for (into, &seconds) in times.0.iter_mut().zip(&self.0) {
            *into = Seconds(seconds.max(0.0)).picos();
        }
        times
    }
}

/// The linear layers that have adapters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Adapted {
    /// All of them.
    #[default]
    AllLinear,
    /// Projections to queries, keys and values.
    QueryKeyValue,
}

/// Forward and backward work of one layer as it is put together.
#[derive(Debug, Clone, Copy, Default)]
struct Passes {
    forward: Work,
    backward: Work,
    /// Seconds of `backward` that compute weight gradients.
    weight: f64,
    /// One dispatch or combine.
    exchange: f64,
}

/// What a cell fixes beside the key: sizes on one rank.
struct Cell<'k> {
    key: &'k CellKey,
    /// A floor over flags is asked for, not the cost under some.
    floor: bool,
    /// Forward and backward passes of different micro-batches are merged layer by layer, under all flags.
    merged: bool,
    /// The dispatchers of which the best counts: the key's own, or all for a floor.
    dispatchers: &'k [Option<Dispatcher>],
    /// Tokens of the rank's context-parallel share.
    tokens: f64,
    /// TP as a number.
    tp: f64,
    cp: f64,
    /// What divides the hidden-sized tensors: TP under sequence parallelism, else 1.
    split: u64,
    tensor_group: Group,
    context_group: Group,
    expert_group: Group,
}

/// Parts of cells that many cells share, each priced once. Belongs to one [`CostModel`]; every thread has
/// its own.
#[derive(Debug, Default)]
pub struct Parts {
    trunks: HashMap<TrunkKey, Trunk>,
    routed: HashMap<RoutedKey, Routed>,
    /// By TP, CP and micro-batch: no more than any trunk under any flags.
    floors: HashMap<(u32, u32, u32), Trunk>,
}

impl Parts {
    /// Forgets all of a table that holds more than `most` entries.
    pub fn forget_beyond(&mut self, most: usize) {
        if self.trunks.len() > most {
            self.trunks.clear();
        }
        if self.routed.len() > most {
            self.routed.clear();
        }
        if self.floors.len() > most {
            self.floors.clear();
        }
    }
}

/// The values that a cell's flags may take: what a floor over flags is taken over.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Flags {
    /// Sequence parallelism with and without overlap of tensor parallelism.
    pub tensor: Vec<(bool, bool)>,
    /// How attention crosses context-parallel ranks.
    pub context_comms: Vec<ContextComm>,
    /// How tokens reach experts.
    pub dispatchers: Vec<Option<Dispatcher>>,
    /// Expert-parallel overlap.
    pub expert_overlap: Vec<bool>,
    /// Whether shared experts may run beside the exchange.
    pub shared_overlap: bool,
    /// CUDA graphs.
    pub cuda_graphs: Vec<CudaGraphs>,
}

impl Flags {
    /// A key with the flags at which computation and launches take least.
    fn least(&self, plain: &CellKey) -> CellKey {
        let graphs = [CudaGraphs::FullIteration, CudaGraphs::AttentionRouter, CudaGraphs::Attention];
        CellKey {
            sequence_parallel: self.tensor.iter().any(|tensor| tensor.0),
            tensor_overlap: self.tensor.iter().any(|tensor| tensor.1),
            expert_overlap: self.expert_overlap.contains(&true),
            shared_overlap: self.shared_overlap,
            cuda_graphs: graphs
                .into_iter()
                .find(|graph| self.cuda_graphs.contains(graph))
                .unwrap_or(CudaGraphs::None),
            ..*plain
        }
    }
}

/// What the parts of a cell depend on that know no experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct TrunkKey {
    tensor_parallel: u32,
    context_parallel: u32,
    micro_batch_size: u32,
    sequence_parallel: bool,
    tensor_overlap: bool,
    context_comm: ContextComm,
}

impl From<&CellKey> for TrunkKey {
    fn from(key: &CellKey) -> Self {
        Self {
            tensor_parallel: key.tensor_parallel,
            context_parallel: key.context_parallel,
            micro_batch_size: key.micro_batch_size,
            sequence_parallel: key.sequence_parallel,
            tensor_overlap: key.tensor_overlap,
            context_comm: key.context_comm,
        }
    }
}

/// Everything of a cell but routed experts, host time and parameters.
#[derive(Debug)]
struct Trunk {
    layers: Vec<Part>,
    /// Both passes of both ends; of multi-token prediction all but its layers.
    end_seconds: f64,
    embedding: EndCost,
    head: Passes,
    /// One multi-token-prediction module beside its layer and its head.
    mtp: Passes,
    tied_copy: LocalParameters,
}

fn floor_key(key: &CellKey) -> (u32, u32, u32) {
    (key.tensor_parallel, key.context_parallel, key.micro_batch_size)
}

impl Trunk {
    /// Lowers everything to no more than `other`.
    fn lower(&mut self, other: &Self) {
        for (part, other) in self.layers.iter_mut().zip(&other.layers) {
            part.lower(other);
        }
        self.end_seconds = self.end_seconds.min(other.end_seconds);
        self.head.lower(&other.head);
        self.mtp.lower(&other.mtp);
        let (own, other) = (&mut self.embedding, &other.embedding);
        for (own, other) in [(&mut own.forward, &other.forward), (&mut own.backward, &other.backward)] {
            own.0.iter_mut().zip(&other.0).for_each(|(own, other)| *own = (*own).min(*other));
        }
        own.kept = own.kept.min(other.kept);
    }
}

impl Part {
    fn lower(&mut self, other: &Self) {
        self.passes.lower(&other.passes);
        self.beside.lower(&other.beside);
        self.stays.lower(&other.stays);
        self.moves.lower(&other.moves);
        self.shared = self.shared.max(other.shared);
        for (own, other) in self.halves.iter_mut().zip(&other.halves) {
            *own = (own.0.max(other.0), own.1.max(other.1));
        }
        for (own, other) in self.modules.iter_mut().zip(&other.modules) {
            debug_assert_eq!(own.0, other.0, "the modules of a layer do not depend on flags");
            (own.1, own.2) = (own.1.min(other.1), own.2.max(other.2));
        }
    }

    /// What shared experts hide, forward and backward, of exchanges that take so long each: dispatch runs beside their first
    /// product, combine beside their second (Megatron-LM:megatron/core/transformer/moe/shared_experts.py).
    fn hidden(&self, exchange: f64) -> (f64, f64) {
        let sum = |of: fn(&(f64, f64)) -> f64| self.halves.iter().map(|half| of(half).min(exchange)).sum();
        (sum(|half| half.0), sum(|half| half.1))
    }
}

impl Passes {
    fn lower(&mut self, other: &Self) {
        for item in 0..ITEMS {
            self.forward.0[item] = self.forward.0[item].min(other.forward.0[item]);
            self.backward.0[item] = self.backward.0[item].min(other.backward.0[item]);
        }
    }
}

/// One layer kind without routed experts.
#[derive(Debug, Default)]
struct Part {
    passes: Passes,
    /// Of `passes`: what the `moe` module recomputes with the experts.
    beside: Passes,
    /// Kept on the GPU whatever is offloaded.
    stays: Kept,
    /// Kept where Megatron-Core's offload of activations puts it
    /// (megatron/core/pipeline_parallel/fine_grained_activation_offload.py and its callers): what attention keeps, the
    /// output of the norm before it, what experts' first products and their activation read. Dense and shared feed-forward
    /// parts, state-space mixers and norms' own inputs have no hook.
    moves: Kept,
    /// Kept bytes of shared experts.
    shared: f64,
    /// Forward and backward seconds of their two halves, each of which may run beside one exchange.
    halves: [(f64, f64); 2],
    /// What selective recomputation can drop: seconds and bytes.
    modules: Vec<(Module, f64, f64)>,
    shapes: Vec<(u64, u64)>,
}

/// What the products of routed experts depend on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct RoutedKey {
    kind: usize,
    /// Bits of the tokens of a rank.
    tokens: u64,
    expert_parallel: u32,
    expert_tensor_parallel: u32,
    graphed: bool,
}

/// Routed experts of one layer kind: products, activation, quantisation.
#[derive(Debug, Clone, Copy)]
struct Routed {
    passes: Passes,
    activation: f64,
}

/// Routed experts of one layer in one cell.
struct Experts {
    passes: Passes,
    modules: std::array::IntoIter<(Module, f64, f64), 2>,
    /// Kept bytes that offload moves.
    moved: f64,
    shapes: [(u64, u64); 2],
}

/// One layer's passes, and what its recomputation and its memory follow from.
struct Joined {
    passes: Passes,
    stays: Kept,
    moves: Kept,
    experts: Option<Experts>,
    parameters: LocalParameters,
    /// Forward and backward seconds of the device without waiting for launches.
    device: (f64, f64),
    /// Seconds of the device in a recomputed forward pass.
    replayed: f64,
    /// Forward and backward seconds of the host.
    host: (f64, f64),
}

/// Kept bytes of one layer by how they are divided.
#[derive(Debug, Clone, Copy, Default)]
struct Kept {
    /// Bytes per token of hidden-sized tensors: divided by TP under sequence parallelism only.
    hidden: f64,
    /// Bytes per token of tensors that are always divided by TP.
    tensor: f64,
    /// Bytes on this rank whatever TP is.
    local: f64,
}

impl Kept {
    fn lower(&mut self, other: &Self) {
        self.hidden = self.hidden.min(other.hidden);
        self.tensor = self.tensor.min(other.tensor);
        self.local = self.local.min(other.local);
    }

    fn plus(self, other: Self) -> Self {
        Self {
            hidden: self.hidden + other.hidden,
            tensor: self.tensor + other.tensor,
            local: self.local + other.local,
        }
    }

    /// Bytes on one rank.
    fn bytes(&self, c: &Cell) -> f64 {
        self.hidden * c.tokens / c.split as f64 + self.tensor * c.tokens / c.tp + self.local
    }
}

impl<'a> CostModel<'a> {
    /// Prepares tables for one search. All inputs must have been validated.
    #[must_use]
    pub fn new(
        model: &'a Model,
        layers: &'a Layers,
        cluster: &'a Cluster,
        accelerator: &'a Accelerator,
        profile: &'a Profile,
        job: &'a Job,
    ) -> Self {
        let a = accelerator.architecture;
        let k = &profile.kernels;
        let device = Device::new(
            accelerator,
            job.precision.format(),
            k.gemm.get(a),
            k.attention_kernel(a, windows_cut(layers.shortest_window(), job.sequence_length)),
            k.scores(a, eager_attention(model, layers)),
            k.attention.get(a),
        );
        let experts = layers.kinds.iter().any(|kind| matches!(kind.block.feed_forward, FeedForward::Moe(_)));
        let classes = [false, true].map(|crossing| Class {
            profile: Profile::name_of(profile).to_owned(),
            experts,
            architecture: a,
            narrow: !matches!(job.precision, Precision::Bf16 | Precision::Fp16),
            scale: Scale::of(job.gpus),
            crossing,
            special: Special::of(job, cluster, crossing),
        });
        let own = |class: &Class| own_runs(cluster, &class.profile, experts, job, class.crossing);
        Self {
            model,
            layers,
            cluster,
            accelerator,
            profile,
            job,
            device,
            fabric: Fabric::new(cluster, job.gpus, 1.0),
            data_fabric: Fabric::new(cluster, job.gpus, profile.data.network),
            low: LowPrecision::of(job.precision, a),
            total_parameters: crate::layers::parameter_count(model).total,
            expert_parameters: layers
                .kinds
                .iter()
                .zip(&layers.counts)
                .map(|(kind, &count)| kind.parameters.expert * u64::from(count))
                .sum(),
            whole_layers: None,
            adapted: Adapted::default(),
            release: None,
            error_bars: classes.each_ref().map(|class| ErrorBars::shipped().at_site(class, own(class))),
            memory_bars: classes.each_ref().map(|class| ErrorBars::shipped().of_memory(class)),
            own_runs: own(&classes[0]),
            measured: own(&classes[0]).is_some() || ErrorBars::shipped().measured(&classes[0]),
            by_rates: ErrorBars::shipped().known_by_rates(&classes[0]),
            leaning: ErrorBars::shipped().leaning(&classes[0]),
        }
    }

    /// Whether runs of its profile on this generation of GPUs, with or without experts, were measured, or runs like the job
    /// at its site.
    #[must_use]
    pub fn is_measured(&self) -> bool {
        self.measured
    }

    /// The site's own runs, calibrated to, that are like this job.
    #[must_use]
    pub fn own_runs(&self) -> Option<&'a OwnRuns> {
        self.own_runs
    }

    /// Whether the bars of such runs come from printed rates alone.
    #[must_use]
    pub fn is_known_by_rates(&self) -> bool {
        self.by_rates && !self.measured
    }

    /// How measured runs of its profile on this generation of GPUs, with or without experts, lean, if they do.
    #[must_use]
    pub fn leaning(&self) -> Option<&'static Leaning> {
        self.leaning
    }

    /// Where activations are offloaded, those of whole layers are, of this share of them, all stages alike
    /// (`--cpu-offloading-num-layers`, which no plan has; measured runs do).
    #[must_use]
    pub fn offloading_layers(self, share: f64) -> Self {
        Self { whole_layers: Some(share.clamp(0.0, 1.0)), ..self }
    }

    /// Where adapters are trained, those of these linear layers are (which no plan has; measured runs do).
    #[must_use]
    pub fn adapting(self, adapted: Adapted) -> Self {
        Self { adapted, ..self }
    }

    /// The software is no newer than this release (today's for plans; measured runs may be older).
    #[must_use]
    pub fn released(self, release: Option<(u32, u32)>) -> Self {
        Self { release, ..self }
    }

    /// The profile in use.
    #[must_use]
    pub fn profile(&self) -> &'a Profile {
        self.profile
    }

    /// Limit on allocated bytes per GPU: the job's, else what the reserve of the framework leaves of the visible memory, and
    /// no more than the accelerator's.
    #[must_use]
    pub fn memory_limit(&self) -> Bytes {
        let device = self.device_limit();
        self.job
            .memory_limit
            .unwrap_or_else(|| self.accelerator.memory_limit.map_or(device, |limit| limit.min(device)))
    }

    /// Allocated bytes that the device can hold: `(visible - fixed) / 1.02`. The allocator returns its
    /// cached blocks before it fails, so its usual fragmentation does not count here.
    #[must_use]
    pub fn device_limit(&self) -> Bytes {
        self.reserve().device_limit(self.accelerator.memory)
    }

    /// The share of runs like it, by how far off measured ones were, that do not run out of the GPU's memory: a limit below
    /// leaves room, one above stands for another GPU.
    #[must_use]
    pub fn chance_to_fit(&self, prediction: &Prediction) -> f64 {
        let limit = self.memory_limit().max(self.device_limit());
        prediction.memory_interval.share_below(limit.0 as f64 / prediction.allocated.0.max(1) as f64)
    }

    /// What the allocator and the device hold beyond allocated tensors.
    #[must_use]
    pub fn reserve(&self) -> Reserve {
        Reserve {
            factor: self.profile.memory.fragmentation,
            fixed: Bytes::from_f64(self.profile.memory.fixed),
        }
    }

    /// How far a predicted step time may be off.
    #[must_use]
    pub fn interval(&self, layout: &Layout) -> Interval {
        self.of_layout(&self.error_bars, layout)
    }

    /// How far predicted peak memory may be off.
    #[must_use]
    pub fn memory_interval(&self, layout: &Layout) -> Interval {
        self.of_layout(&self.memory_bars, layout)
    }

    fn of_layout(&self, bars: &[Interval; 2], layout: &Layout) -> Interval {
        let crossing = layout.tensor_parallel > self.cluster.scale_up.domain;
        let interval = bars[usize::from(crossing)];
        if !layout.offload.moves_states() {
            return interval;
        }
        // Nobody measured such plans, nor what sets them apart from others.
        let unknown = ErrorBars::shipped().transfer;
        Interval { difference: interval.difference.hypot(unknown), ..interval.beside(unknown) }
    }

    fn cell_of<'k>(&self, key: &'k CellKey) -> Cell<'k> {
        let sequence = u64::from(self.job.sequence_length);
        let whole_tokens =
            (sequence * u64::from(key.micro_batch_size)).div_ceil(u64::from(key.context_parallel));
        let (tp, cp) = (key.tensor_parallel, key.context_parallel);
        Cell {
            key,
            floor: false,
            merged: key.expert_overlap,
            dispatchers: std::slice::from_ref(&key.dispatcher),
            tokens: whole_tokens as f64,
            tp: f64::from(tp),
            cp: f64::from(cp),
            split: if key.sequence_parallel { u64::from(tp) } else { 1 },
            tensor_group: self.fabric.group(tp, 1),
            context_group: self.fabric.group(cp, tp),
            expert_group: self.fabric.group(key.expert_parallel, key.expert_tensor_parallel),
        }
    }

    /// Prices every layer kind and both ends for one cell.
    #[must_use]
    pub fn cell(&self, key: &CellKey) -> CellCosts {
        self.cell_with(key, &mut Parts::default())
    }

    /// [`CostModel::cell`] with parts that other cells of the same model, cluster and job have priced.
    #[must_use]
    pub fn cell_with(&self, key: &CellKey, parts: &mut Parts) -> CellCosts {
        let c = self.cell_of(key);
        let trunk_key = TrunkKey::from(key);
        let trunk = parts.trunks.entry(trunk_key).or_insert_with(|| self.trunk(&c));
        let layers = self.priced_layers(&c, trunk, &mut parts.routed);
        let ends = self.head(&c, &layers, trunk);
        let library = matches!(key.dispatcher, Some(Dispatcher::DeepEp | Dispatcher::HybridEp));
        let mut buffers =
            if library { Bytes::from_f64(self.profile.experts.library_buffers) } else { Bytes::ZERO };
        buffers += WORKSPACE;
        if key.cuda_graphs != CudaGraphs::None {
            buffers += Bytes::from_f64(self.profile.memory.graph_buffers.0);
        }
        if key.offload.activations {
            let plain = crate::plan::Offload { activations: false, ..key.offload };
            let plain = self.cell_with(&CellKey { offload: plain, ..*key }, parts);
            // While they move, activations of two layers stay on the GPU; of inputs the newest and two behind it.
            buffers += match self.profile.memory.offloaded_activations {
                // The last layers, which stay, come when those of the first have left, and go before they come back.
                OffloadedActivations::Kept if self.whole_layers.is_some_and(|share| share < 1.0) => None,
                OffloadedActivations::Kept => plain.layers.iter().map(|layer| layer.kept * 2).max(),
                OffloadedActivations::Inputs => plain.layers.iter().map(|layer| layer.full_kept * 3).max(),
            }
            .unwrap_or_default();
            let trunk = &parts.trunks[&trunk_key];
            return self.cell_of_parts(&c, layers, ends, trunk, buffers);
        }
        self.cell_of_parts(&c, layers, ends, trunk, buffers)
    }

    fn priced_layers(
        &self,
        c: &Cell,
        trunk: &Trunk,
        routed: &mut HashMap<RoutedKey, Routed>,
    ) -> Vec<LayerCost> {
        let kinds = self.layers.kinds.iter().zip(&trunk.layers).enumerate();
        let mut layers: Vec<LayerCost> =
            kinds.map(|(at, (kind, part))| self.layer(c, at, kind, part, routed)).collect();
        for at in 0..layers.len() {
            let kept = layers[at].kept;
            let beside = |other: &LayerCost| (other.transient + other.kept.min(kept)).saturating_sub(kept);
            layers[at].group_transient = layers.iter().map(beside).max().unwrap_or_default();
        }
        layers
    }

    /// Costs that no flags can go below, in time and in bytes, for the degrees and the micro-batch of
    /// `plain`; the two passes of a layer together, and what recomputation saves and adds. How a layer's
    /// time divides between forward and backward pass means nothing here.
    #[must_use]
    pub fn floor_cell(&self, plain: &CellKey, flags: &Flags, parts: &mut Parts) -> CellCosts {
        let key = flags.least(plain);
        let c = self.floor_of(&key, flags);
        let trunk = parts.floors.entry(floor_key(&key)).or_insert_with(|| self.floor_trunk(&key, flags));
        let layers = self.priced_layers(&c, trunk, &mut parts.routed);
        let ends = self.head(&c, &layers, trunk);
        self.cell_of_parts(&c, layers, ends, trunk, WORKSPACE)
    }

    /// [`CostModel::cell_total`] of [`CostModel::floor_cell`].
    #[must_use]
    pub fn floor_total(&self, plain: &CellKey, flags: &Flags, parts: &mut Parts) -> Picos {
        let key = flags.least(plain);
        let c = self.floor_of(&key, flags);
        let trunk = parts.floors.entry(floor_key(&key)).or_insert_with(|| self.floor_trunk(&key, flags));
        self.total(&c, trunk, &mut parts.routed)
    }

    /// The cell of a floor.
    fn floor_of<'k>(&self, key: &'k CellKey, flags: &'k Flags) -> Cell<'k> {
        let merged = !flags.expert_overlap.contains(&false);
        Cell { floor: true, merged, dispatchers: &flags.dispatchers, ..self.cell_of(key) }
    }

    fn floor_trunk(&self, key: &CellKey, flags: &Flags) -> Trunk {
        let mut least: Option<Trunk> = None;
        for &(sequence_parallel, tensor_overlap) in &flags.tensor {
            for &context_comm in &flags.context_comms {
                let key = CellKey { sequence_parallel, tensor_overlap, context_comm, ..*key };
                let trunk = self.trunk(&self.cell_of(&key));
                match &mut least {
                    Some(least) => least.lower(&trunk),
                    None => least = Some(trunk),
                }
            }
        }
        least.unwrap_or_else(|| self.trunk(&self.cell_of(key)))
    }

    /// Time of one micro-batch through all layers and both ends of a cell without recomputation: the sum
    /// that [`CostModel::cell_with`] itemises, or a little less (rounding, small change of the ends), at a
    /// fraction of its price.
    #[must_use]
    pub fn cell_total(&self, key: &CellKey, parts: &mut Parts) -> Picos {
        let c = self.cell_of(key);
        let trunk = parts.trunks.entry(TrunkKey::from(key)).or_insert_with(|| self.trunk(&c));
        self.total(&c, trunk, &mut parts.routed)
    }

    fn total(&self, c: &Cell, trunk: &Trunk, routed: &mut HashMap<RoutedKey, Routed>) -> Picos {
        let mut seconds = trunk.end_seconds;
        let kinds = self.layers.kinds.iter().zip(&trunk.layers).zip(&self.layers.counts).enumerate();
        for (at, ((kind, part), &count)) in kinds {
            let (mtp, modules) = self.layers.mtp.map_or((usize::MAX, 0), |(k, n)| (usize::from(k), n));
            let count = f64::from(count + if mtp == at { modules } else { 0 });
            if count > 0.0 {
                let joined = self.joined(c, at, kind, part, routed);
                seconds += count * (joined.passes.forward.total() + joined.passes.backward.total());
            }
        }
        // Every item of every layer is rounded to picoseconds.
        let rounding = u64::from(self.layers.count() + 8) * 2 * ITEMS as u64;
        Seconds(seconds * (1.0 - 1e-9)).picos().saturating_sub(Picos(rounding))
    }

    fn cell_of_parts(
        &self,
        c: &Cell,
        layers: Vec<LayerCost>,
        (head, standalone): (EndCost, Option<[EndCost; 2]>),
        trunk: &Trunk,
        buffers: Bytes,
    ) -> CellCosts {
        CellCosts {
            layers,
            embedding: trunk.embedding.clone(),
            head,
            standalone,
            further: self.further(c, trunk),
            tied_copy: trunk.tied_copy,
            tied: self.model.tied_embeddings,
            micro_batch_overhead: self.profile.host.micro_batch.picos(),
            buffers,
        }
    }

    // ---- one layer ----

    fn trunk(&self, c: &Cell) -> Trunk {
        let layers = self.layers.kinds.iter().map(|kind| self.part(c, &kind.block)).collect();
        let mut mtp = Passes::default();
        if self.layers.mtp.is_some() {
            let h = self.model.hidden as f64;
            let shared = c.tokens / c.split as f64;
            self.linear(shared, h, 2.0 * h, self.low.is_some(), &mut mtp);
            mtp.forward.add(Item::ElementWise, self.device.stream(12.0 * h * shared, 3.0));
            mtp.backward.add(Item::ElementWise, self.device.stream(24.0 * h * shared, 6.0));
        }
        let (embedding, head) = (self.embedding(c), self.head_passes(c));
        let modules = f64::from(self.layers.mtp.map_or(0, |(_, modules)| modules));
        let both = |p: &Passes| p.forward.total() + p.backward.total();
        let end_seconds = (embedding.forward.total() + embedding.backward.total()).seconds().0
            + (1.0 + modules) * both(&head)
            + modules * both(&mtp);
        Trunk { layers, end_seconds, embedding, head, mtp, tied_copy: self.tied_copy(c) }
    }

    /// What of a layer no expert degree and no dispatcher changes.
    fn part(&self, c: &Cell, block: &Block) -> Part {
        let mut part = Part::default();
        let Part { passes: p, stays, moves, modules, shapes, .. } = &mut part;
        self.norms(c, block, p, (stays, moves), modules);
        match &block.mixer {
            Mixer::Attention(_) | Mixer::Latent(_) => self.attention(c, block, p, moves, modules, shapes),
            Mixer::Mamba2(a) => {
                let inner = a.inner + 2 * a.groups * a.state;
                let (into, out) = (a.inner + inner + a.heads, a.inner);
                self.column(c, into, p, shapes);
                self.row(c, out, p, shapes);
                self.scan(c, a, p);
                stays.tensor += 2.0 * (into + inner + a.inner) as f64
                    + self.input_bytes() * a.inner as f64
                    + 4.0 * (a.inner * a.state) as f64 / SCAN_CHUNK as f64;
            }
            Mixer::None => {}
        }
        match &block.feed_forward {
            FeedForward::Dense(d) => {
                let mut body = Passes::default();
                let into = d.width * (d.activation.matrices() - 1);
                self.column(c, into, &mut body, shapes);
                self.row(c, d.width, &mut body, shapes);
                self.activation(d.width as f64 * c.tokens / c.tp, d.activation.gated(), &mut body);
                let saved = 2.0 * into as f64 + self.input_bytes() * d.width as f64;
                stays.tensor += saved + self.profile.memory.extra_kept.1 * d.width as f64;
                self.add(p, &body);
                let mut extra = body.forward;
                self.add_tensor_collectives(c, &mut extra, 1.0);
                modules.push((Module::Mlp, extra.total(), saved * c.tokens / c.tp));
            }
            FeedForward::Moe(e) => self.beside_experts(c, e, &mut part),
            FeedForward::None => {}
        }
        self.tensor_parallel(c, block, &mut part.passes);
        part
    }

    /// The passes of one layer with everything that is exposed in them.
    fn joined(
        &self,
        c: &Cell,
        at: usize,
        kind: &LayerKind,
        part: &Part,
        routed: &mut HashMap<RoutedKey, Routed>,
    ) -> Joined {
        let block = &kind.block;
        let mut p = part.passes;
        let (mut stays, mut moves) = (part.stays, part.moves);
        let mut experts = None;
        if let FeedForward::Moe(e) = &block.feed_forward {
            let found = self.experts(c, at, e, part, (&mut stays, &mut moves), routed);
            self.add(&mut p, &found.passes);
            p.exchange = found.passes.exchange;
            experts = Some(found);
        }
        let parameters = self.local_parameters(c, kind);
        p.backward.add(Item::ElementWise, self.gradient_addition(&parameters));

        let replayed = p.forward.total();
        // Experts exchange tokens: exposed in full, or joined with the computation of another
        // micro-batch's opposite pass.
        if p.exchange > 0.0 {
            let (f, b) = (p.forward.total(), p.backward.total());
            let (compute, exchange) = (f + b, 4.0 * p.exchange);
            let mut exposed = exchange;
            if c.key.expert_overlap {
                let (large, small) =
                    if compute > exchange { (compute, exchange) } else { (exchange, compute) };
                exposed = large + self.profile.experts.overlap_exposed * small - compute;
            }
            // A floor is over both, of which a layout has one.
            if c.key.shared_overlap {
                let (forward, backward) = part.hidden(p.exchange);
                exposed = exposed.min(exchange - forward - backward);
            }
            p.forward.add(Item::ExpertParallel, exposed * f / compute);
            p.backward.add(Item::ExpertParallel, exposed * b / compute);
        }
        let host = self.host(c, block);
        let device = (p.forward.total(), p.backward.total());
        if c.floor {
            // How the exchange divides between the passes depends on flags; their sum has a floor, since
            // both ways to join with the host are norms.
            let (device, host) = (device.0 + device.1, host.0 + host.1);
            p.backward.add(Item::Host, self.with_host(c, block, device, host) - device);
        } else {
            p.forward.add(Item::Host, self.with_host(c, block, device.0, host.0) - device.0);
            p.backward.add(Item::Host, self.with_host(c, block, device.1, host.1) - device.1);
        }
        // A recomputed forward pass repeats its share of the exchange; a floor does not know that share.
        let replayed = if c.floor { replayed } else { device.0 };
        Joined { passes: p, stays, moves, experts, parameters, device, replayed, host }
    }

    /// Device time that waits for launches.
    fn with_host(&self, c: &Cell, block: &Block, device: f64, host: f64) -> f64 {
        if host <= 0.0 {
            return device;
        }
        if matches!(block.feed_forward, FeedForward::Moe(_)) && self.reads_counts(c) {
            let x = self.profile.experts.host_exponent;
            (device.powf(x) + host.powf(x)).powf(1.0 / x)
        } else {
            device.max(host)
        }
    }

    fn layer(
        &self,
        c: &Cell,
        at: usize,
        kind: &LayerKind,
        part: &Part,
        routed: &mut HashMap<RoutedKey, Routed>,
    ) -> LayerCost {
        let block = &kind.block;
        let Joined { passes: p, stays, moves, experts, parameters, device, replayed, host } =
            self.joined(c, at, kind, part, routed);
        let kept = stays.plus(moves);
        let mut modules: Vec<ModuleCost> = Vec::with_capacity(part.modules.len() + 4);
        let module = |(module, seconds, saved): (Module, f64, f64)| {
            let mut extra = Times::default();
            extra.add(Item::Recompute, Seconds(seconds).picos());
            ModuleCost { module, extra, saved: Bytes(saved.max(0.0) as u64) }
        };
        modules.extend(part.modules.iter().copied().map(module));
        let mut shapes = if self.has_pool(false) { part.shapes.clone() } else { Vec::new() };
        let mut moved_of_experts = 0.0;
        if let Some(found) = experts {
            moved_of_experts = found.moved;
            modules.extend(found.modules.map(module));
            if self.has_pool(true) {
                shapes.extend(found.shapes);
            }
        }
        // A recomputed forward pass repeats its collectives and its launches.
        let mut full_extra = Work::default();
        let extra = if c.floor {
            let all = self.with_host(c, block, device.1 + device.0 + replayed, host.1 + 2.0 * host.0);
            all - p.backward.total() - p.forward.total()
        } else {
            self.with_host(c, block, device.1 + replayed, host.1 + host.0) - p.backward.total()
        };
        full_extra.add(Item::Recompute, extra);

        let tokens = c.tokens;
        let hidden_bytes = kept.hidden + self.profile.memory.extra_kept.0 * self.model.hidden as f64;
        // Beyond the fast domain inputs are gathered again instead of kept.
        let keeps = c.split > 1 && c.key.tensor_parallel <= self.cluster.scale_up.domain;
        let gathered = if keeps { self.profile.memory.gathered_kept } else { 0.0 };
        let gathered = gathered * self.model.hidden as f64 * tokens;
        let whole =
            hidden_bytes * tokens / c.split as f64 + kept.tensor * tokens / c.tp + kept.local + gathered;
        let input = 2.0 * self.model.hidden as f64 * tokens / c.split as f64;
        modules.push(module((Module::Operators, OPERATOR_REPLAY * replayed, (1.0 - OPERATOR_KEPT) * whole)));
        let mut cost = LayerCost {
            forward: p.forward.times(),
            backward: p.backward.times(),
            weight_gradient: Seconds(p.weight).picos(),
            kept: Bytes::from_f64(whole),
            modules,
            full_extra: full_extra.times(),
            full_kept: Bytes::from_f64(input),
            offloaded: Bytes::ZERO,
            full_offloaded: OffloadedInput::default(),
            parameters,
            transient: Bytes::from_f64(self.working_set(c, block) * self.profile.memory.transient_factor),
            merged: c.merged,
            group_transient: Bytes::ZERO, // when all kinds are known
            weight_shapes: shapes,
        };
        if c.key.offload.activations {
            match self.profile.memory.offloaded_activations {
                OffloadedActivations::Kept => {
                    let before = norms_before(block);
                    let norms = if before > 0.0 { self.moved_norms(block, before) / before } else { 0.0 };
                    // Of what recomputation of a module drops, so much lies on the host.
                    let share = |module: &ModuleCost| match module.module {
                        Module::Mlp | Module::SharedExperts | Module::MoeActivation => 0.0,
                        Module::Moe => moved_of_experts / (module.saved.0 as f64).max(1.0),
                        Module::LayerNorm => norms,
                        Module::CoreAttention | Module::MlaUpProjection => 1.0,
                        Module::Operators => moves.bytes(c) / whole.max(1.0),
                    };
                    for module in &mut cost.modules {
                        let gone = self.whole_layers.unwrap_or_else(|| share(module)).min(1.0);
                        module.saved = module.saved.scale(1.0 - gone);
                    }
                    let bytes = match self.whole_layers {
                        // Transformer Engine moves a layer's input too
                        // (TransformerEngine:transformer_engine/pytorch/module/layernorm_linear.py).
                        Some(share) => cost.kept.scale(share),
                        None => Bytes::from_f64(moves.bytes(c)),
                    };
                    self.offload_activations(&mut cost, bytes, c.floor);
                }
                OffloadedActivations::Inputs => self.offload_inputs(&mut cost, c.floor),
            }
        }
        cost
    }

    fn add(&self, into: &mut Passes, from: &Passes) {
        into.weight += from.weight;
        for item in 0..ITEMS {
            into.forward.0[item] += from.forward.0[item];
            into.backward.0[item] += from.backward.0[item];
        }
    }

    /// Seconds of adding one micro-batch's gradients to the accumulated ones where no product does it.
    fn gradient_addition(&self, parameters: &LocalParameters) -> f64 {
        let trained: u64 = [StateClass::Dense, StateClass::Expert, StateClass::Ends]
            .into_iter()
            .map(|class| parameters.0[class as usize])
            .sum();
        self.profile.kernels.gradient_addition_bytes * trained as f64 / self.device.bandwidth
    }

    /// Bytes of a saved linear input per element.
    fn input_bytes(&self) -> f64 {
        self.low.map_or(2.0, |low| low.operand_bytes)
    }

    /// Whether dummy weight gradients are pooled, of grouped products or of others: not where the framework's release has no
    /// pool, nor where the weights have no gradients.
    fn has_pool(&self, grouped: bool) -> bool {
        let since = |pool: GradientPool| if grouped { pool.grouped_since } else { pool.since };
        let pool = self.profile.memory.gradient_pool.map(since);
        self.training_base() && pool.is_some_and(|since| self.release.is_none_or(|release| release >= since))
    }
    fn pooled(&self, shapes: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
        if self.has_pool(false) { shapes } else { Vec::new() }
    }

    fn training_base(&self) -> bool {
        self.job.training == Training::Full
    }

    /// A linear layer of `groups` problems: forward, data gradient and weight gradient. `tokens` rows
    /// meet a weight of `outputs x inputs` on this rank. Quantisation is added where the format needs
    /// it: the input forward, the output's gradient backward, over as many elements as each has here.
    fn linear(&self, tokens: f64, outputs: f64, inputs: f64, low: bool, p: &mut Passes) {
        let bytes = if low { self.input_bytes() } else { 2.0 };
        let product = |rows, columns, inner, result_bytes| Product {
            rows,
            columns,
            inner,
            groups: 1.0,
            operand_bytes: bytes,
            result_bytes,
        };
        let d = &self.device;
        p.forward.add(Item::Gemm, d.product(&product(tokens, outputs, inputs, 2.0), low));
        p.backward.add(Item::Gemm, d.product(&product(tokens, inputs, outputs, 2.0), low));
        if self.training_base() {
            let result = self.weight_gradient_bytes();
            let weight = d.product(&product(outputs, inputs, tokens, result), low);
            p.backward.add(Item::Gemm, weight);
            p.weight += weight;
        }
    }

    /// A linear layer of a block that is whole on this rank, and its adapter.
    fn adapted(&self, tokens: f64, outputs: f64, inputs: f64, low: bool, p: &mut Passes) {
        self.linear(tokens, outputs, inputs, low, p);
        self.adapter(tokens, outputs, inputs, p);
    }

    /// What an adapter adds to a linear layer: two thin BF16 products into and out of its rank, with the gradients of their
    /// data and weights, and the sum with the layer's own result, and of both gradients of the input
    /// (NVIDIA-NeMo/Megatron-Bridge:src/megatron/bridge/peft/lora_layers.py). `outputs` and `inputs` are its shares of this rank.
    fn adapter(&self, tokens: f64, outputs: f64, inputs: f64, p: &mut Passes) {
        if self.adapted == Adapted::AllLinear {
            self.adapter_products(tokens, outputs, inputs, p);
        }
    }

    fn adapter_products(&self, tokens: f64, outputs: f64, inputs: f64, p: &mut Passes) {
        let Training::Lora { rank } = self.job.training else { return };
        let (rank, d) = (f64::from(rank), &self.device);
        for (outputs, inputs) in [(rank, inputs), (outputs, rank)] {
            let [forward, data, weight] = thin(tokens, outputs, inputs, 1.0).map(|p| d.product(&p, false));
            p.forward.add(Item::Gemm, forward);
            p.backward.add(Item::Gemm, data + weight);
            p.weight += weight;
        }
        p.forward.add(Item::ElementWise, d.stream(6.0 * outputs * tokens, 1.0));
        p.backward.add(Item::ElementWise, d.stream(6.0 * inputs * tokens, 1.0));
    }

    /// The rank of adapters that have collectives of their own.
    fn gathering_adapters(&self, c: &Cell) -> Option<f64> {
        match self.job.training {
            Training::Lora { rank } => Some(f64::from(rank)),
            Training::Full => None,
        }
        .filter(|_| self.profile.tensor.adapter_collectives && c.key.tensor_parallel > 1)
    }

    /// Collectives of the adapter of a column-parallel layer: its ranks' parts of the thin product are gathered, and their
    /// gradients summed. A layer that gathers its input piece by piece, while it multiplies, leaves the adapter to gather it
    /// again, and to reduce and scatter its gradient (ParallelLinearAdapter and get_adapter_attributes_from_linear of
    /// NVIDIA-NeMo/Megatron-Bridge:src/megatron/bridge/peft/utils.py).
    fn column_adapter_collectives(&self, c: &Cell, p: &mut Passes) {
        let Some(rank) = self.gathering_adapters(c) else { return };
        let (f, g) = (&self.fabric, &c.tensor_group);
        let thin = 2.0 * rank * c.tokens;
        let input = match c.key.tensor_overlap {
            true => f.all_gather(g, self.tensor_payload(c).1),
            false => 0.0,
        };
        p.forward.add(Item::TensorParallel, f.all_gather(g, thin) + input);
        p.backward.add(Item::TensorParallel, f.all_reduce(g, thin) + input);
    }

    /// Those of a row-parallel layer's: parts of the thin product are summed, their gradients gathered; results for all hidden
    /// channels are gathered before each rank takes its tokens, whose gradients are gathered back (same file).
    fn row_adapter_collectives(&self, c: &Cell, p: &mut Passes) {
        let Some(rank) = self.gathering_adapters(c) else { return };
        let (f, g) = (&self.fabric, &c.tensor_group);
        let thin = 2.0 * rank * c.tokens;
        let result = f.all_gather(g, self.tensor_payload(c).1);
        p.forward.add(Item::TensorParallel, f.all_reduce(g, thin) + result);
        let gradient = if c.key.sequence_parallel { result } else { 0.0 };
        p.backward.add(Item::TensorParallel, f.all_gather(g, thin) + gradient);
    }

    /// Bytes that a weight gradient's product moves per element of the result.
    fn weight_gradient_bytes(&self) -> f64 {
        let gradients = memory::states(self.profile, self.job.precision).gradients;
        if self.profile.kernels.fused_gradient_accumulation { 2.0 * gradients } else { 2.0 }
    }

    /// Quantises `inputs` elements forward and `gradients` elements backward.
    fn quantise(&self, inputs: f64, gradients: f64, p: &mut Passes) {
        if let Some(low) = self.low {
            p.forward.add(Item::ElementWise, self.device.stream(low.quantise_bytes * inputs, 1.0));
            p.backward.add(Item::ElementWise, self.device.stream(low.quantise_bytes * gradients, 1.0));
        }
    }

    /// A column-parallel linear layer from `hidden` to `outputs` channels in all.
    fn column(&self, c: &Cell, outputs: u64, p: &mut Passes, shapes: &mut Vec<(u64, u64)>) {
        let h = self.model.hidden;
        let local = outputs.div_ceil(u64::from(c.key.tensor_parallel));
        self.linear(c.tokens, local as f64, h as f64, self.low.is_some(), p);
        self.adapter(c.tokens, local as f64, h as f64 / c.tp, p);
        if self.adapted == Adapted::AllLinear {
            self.column_adapter_collectives(c, p);
        }
        // With sequence parallelism the input is quantised before it is gathered.
        self.quantise(h as f64 * c.tokens / c.split as f64, local as f64 * c.tokens, p);
        shapes.push((local, h));
    }

    /// A row-parallel linear layer from `inputs` channels in all to `hidden`.
    fn row(&self, c: &Cell, inputs: u64, p: &mut Passes, shapes: &mut Vec<(u64, u64)>) {
        let h = self.model.hidden;
        let local = inputs.div_ceil(u64::from(c.key.tensor_parallel));
        self.linear(c.tokens, h as f64, local as f64, self.low.is_some(), p);
        self.adapter(c.tokens, h as f64 / c.tp, local as f64, p);
        if self.adapted == Adapted::AllLinear {
            self.row_adapter_collectives(c, p);
        }
        self.quantise(local as f64 * c.tokens, h as f64 * c.tokens / c.split as f64, p);
        shapes.push((h, local));
    }

    /// Norms and residual additions: a norm reads and writes once forward (4 bytes per channel) and
    /// moves 8 backward; an addition moves 6 both ways.
    fn norms(
        &self,
        c: &Cell,
        block: &Block,
        p: &mut Passes,
        (stays, moves): (&mut Kept, &mut Kept),
        modules: &mut Vec<(Module, f64, f64)>,
    ) {
        let h = self.model.hidden as f64;
        let norms = f64::from(block.norms);
        let parts = parts(block);
        let elements =
            h * c.tokens / c.split as f64 * self.profile.kernels.norm_traffic.get(self.architecture());
        let (additions, d) = (parts, &self.device);
        p.forward
            .add(Item::ElementWise, d.stream((4.0 * norms + 6.0 * additions) * elements, norms + additions));
        p.backward.add(
            Item::ElementWise,
            d.stream((8.0 * norms + 6.0 * additions) * elements, 2.0 * norms + additions),
        );
        // Norms before a part keep their input and their output (the part's input); norms after a part
        // keep their input.
        let before = norms_before(block);
        let after = norms - before;
        let input = self.input_bytes();
        let moved = self.moved_norms(block, before) * input * h;
        moves.hidden += moved;
        stays.hidden += before * (2.0 + input) * h + after * 2.0 * h - moved;
        if self.model.dropout {
            p.forward.add(Item::ElementWise, d.stream(parts * elements, 0.0));
            p.backward.add(Item::ElementWise, d.stream(parts * elements, 0.0));
            stays.hidden += parts * h;
        }
        if before > 0.0 {
            let extra = d.stream(4.0 * before * elements, before);
            modules.push((Module::LayerNorm, extra, before * input * h * c.tokens / c.split as f64));
        }
    }

    fn architecture(&self) -> Architecture {
        self.accelerator.architecture
    }

    fn activation(&self, elements: f64, gated: bool, p: &mut Passes) {
        let factor = self.profile.kernels.activation_traffic.get(self.architecture());
        let (forward, backward) = if gated { (6.0, 10.0) } else { (4.0, 6.0) };
        p.forward.add(Item::ElementWise, self.device.stream(forward * elements * factor, 1.0));
        p.backward.add(Item::ElementWise, self.device.stream(backward * elements * factor, 1.0));
    }

    fn attention(
        &self,
        c: &Cell,
        block: &Block,
        p: &mut Passes,
        kept: &mut Kept,
        modules: &mut Vec<(Module, f64, f64)>,
        shapes: &mut Vec<(u64, u64)>,
    ) {
        let tp = u64::from(c.key.tensor_parallel);
        let sequence = u64::from(self.job.sequence_length);
        let low_copy = self.low.map_or(0.0, |l| l.operand_bytes);
        let in_memory = self.device.scores();
        let tokens = c.tokens;
        let (shape, heads, key_value_bytes, output_dim, window);
        // Chunked attention sees no more than its chunk of a sequence.
        let mut reach = sequence;
        match &block.mixer {
            Mixer::Attention(a) => {
                heads = a.heads.div_ceil(tp);
                let kv_local = a.kv_heads.div_ceil(tp);
                window = a.window;
                // Scores in memory are whole squares, whatever is masked.
                let chunk = a.chunk.filter(|_| in_memory.is_none());
                reach = chunk.map_or(sequence, |chunk| chunk.min(sequence));
                let outputs = (heads + 2 * kv_local) * a.head_dim;
                self.column(c, outputs * tp, p, shapes);
                if self.adapted == Adapted::QueryKeyValue {
                    self.adapter_products(tokens, outputs as f64, self.model.hidden as f64 / c.tp, p);
                    self.column_adapter_collectives(c, p);
                }
                self.row(c, a.heads * a.head_dim, p, shapes);
                let (ad, gd) = ((heads * a.head_dim) as f64, (kv_local * a.head_dim) as f64);
                if !matches!(self.model.position, Position::Learned(_) | Position::Alibi | Position::None) {
                    let rotary = self.device.stream(4.0 * (ad + gd) * tokens, 2.0);
                    p.forward.add(Item::ElementWise, rotary);
                    p.backward.add(Item::ElementWise, rotary);
                }
                if a.qk_norm != QkNorm::None {
                    // As norms of the residual stream.
                    let elements = (ad + gd) * tokens;
                    let moved = elements * self.profile.kernels.norm_traffic.get(self.architecture());
                    p.forward.add(Item::ElementWise, self.device.stream(4.0 * moved, 2.0));
                    p.backward.add(Item::ElementWise, self.device.stream(8.0 * moved, 4.0));
                    kept.local += (2.0 + self.profile.memory.norm_kept) * elements;
                }
                kept.local += (2.0 * ad + 4.0 * gd + (2.0 + low_copy) * ad) * tokens;
                key_value_bytes = 4.0 * gd;
                output_dim = ad;
                shape = (a.head_dim as f64, a.head_dim as f64);
            }
            Mixer::Latent(a) => {
                heads = a.heads.div_ceil(tp);
                window = None;
                self.latent(c, a, p, kept, modules, shapes);
                key_value_bytes = 2.0 * heads as f64 * (a.qk_nope_dim + a.qk_rope_dim + a.v_dim) as f64;
                output_dim = (heads * a.v_dim) as f64;
                shape = ((a.qk_nope_dim + a.qk_rope_dim) as f64, a.v_dim as f64);
            }
            Mixer::Mamba2(_) | Mixer::None => return,
        }
        // After a head exchange a rank holds fewer heads over the whole sequence; otherwise all of its
        // heads for its share of the queries. The work is the same.
        let (queries, local_heads) = match (c.key.context_parallel > 1, c.key.context_comm) {
            (true, ContextComm::AllToAll) => (tokens * c.cp, heads as f64 / c.cp),
            _ => (tokens, heads as f64),
        };
        // Scores in memory are computed whole and masked, whatever is packed into the sequence.
        let packed = self.job.packed.as_ref().filter(|_| in_memory.is_none());
        let window = window.filter(|_| in_memory.is_none());
        let (seen, length) = attention_extent(reach, packed, window, AttentionCount::Causal);
        let (mut forward, mut backward) = self.device.attention(&AttentionShape {
            queries,
            seen,
            length,
            heads: local_heads,
            key_dim: shape.0,
            value_dim: shape.1,
        });
        if c.key.context_parallel > 1 {
            if c.key.context_comm == ContextComm::Ring {
                let loss = 1.0 + RING_LOSS * c.cp.log2();
                forward *= loss;
                backward *= loss;
            }
            let (f, b) = self.context_parallel(
                c,
                key_value_bytes * tokens,
                shape.0 * heads as f64 * tokens * 2.0,
                output_dim * tokens * 2.0,
                (forward, backward),
            );
            p.forward.add(Item::ContextParallel, f);
            p.backward.add(Item::ContextParallel, b);
            if c.key.context_comm == ContextComm::AllToAll {
                kept.local += 2.0 * output_dim * tokens;
            }
        }
        if self.profile.memory.output_reordered && c.key.micro_batch_size > 1 {
            kept.local += 2.0 * output_dim * tokens;
        }
        p.forward.add(Item::Attention, forward);
        p.backward.add(Item::Attention, backward);
        // Scores in memory, or the statistics of a fused kernel.
        let of_a_head = in_memory.map_or(4.0, |scores| scores.kept * sequence as f64 / c.cp);
        let scores = of_a_head * heads as f64;
        kept.local += scores * tokens;
        modules.push((Module::CoreAttention, forward, scores * tokens));
    }

    /// Projections of multi-head latent attention. Down projections are replicated over tensor-parallel
    /// ranks and work on the sequence share where there is one.
    fn latent(
        &self,
        c: &Cell,
        a: &LatentAttention,
        p: &mut Passes,
        kept: &mut Kept,
        modules: &mut Vec<(Module, f64, f64)>,
        shapes: &mut Vec<(u64, u64)>,
    ) {
        let h = self.model.hidden;
        let tp = u64::from(c.key.tensor_parallel);
        let heads = a.heads.div_ceil(tp);
        let low = self.low.is_some();
        let (tokens, shared) = (c.tokens, c.tokens / c.split as f64);
        let qk = a.qk_nope_dim + a.qk_rope_dim;
        let mut up = Passes::default();
        let mut norm_width = a.kv_lora_rank;
        match a.q_lora_rank {
            Some(rank) => {
                self.adapted(shared, rank as f64, h as f64, low, p);
                shapes.push((rank, h));
                self.adapted(tokens, (heads * qk) as f64, rank as f64, low, &mut up);
                shapes.push((heads * qk, rank));
                self.quantise((h + rank) as f64 * shared, (heads * qk) as f64 * tokens, p);
                kept.hidden += 4.0 * rank as f64;
                norm_width += rank;
            }
            None => {
                self.adapted(tokens, (heads * qk) as f64, h as f64, low, &mut up);
                shapes.push((heads * qk, h));
                self.quantise(h as f64 * shared, (heads * qk) as f64 * tokens, p);
            }
        }
        let compressed = a.kv_lora_rank + a.qk_rope_dim;
        self.adapted(shared, compressed as f64, h as f64, low, p);
        shapes.push((compressed, h));
        let expanded = heads * (a.qk_nope_dim + a.v_dim);
        self.adapted(tokens, expanded as f64, a.kv_lora_rank as f64, low, &mut up);
        shapes.push((expanded, a.kv_lora_rank));
        self.quantise(a.kv_lora_rank as f64 * shared, expanded as f64 * tokens, p);
        kept.hidden += 2.0 * compressed as f64 + 2.0 * a.kv_lora_rank as f64;
        kept.hidden += self.profile.memory.norm_kept * norm_width as f64;
        // Rotation, split, concatenation and the copies of up projections.
        let assembly = 8.0 * (2 * qk + a.v_dim) as f64 * heads as f64 * tokens;
        up.forward.add(Item::ElementWise, self.device.stream(assembly, 4.0));
        up.backward.add(Item::ElementWise, self.device.stream(1.5 * assembly, 6.0));
        let norms = norm_width as f64 * shared * self.profile.kernels.norm_traffic.get(self.architecture());
        p.forward.add(Item::ElementWise, self.device.stream(4.0 * norms, 2.0));
        p.backward.add(Item::ElementWise, self.device.stream(8.0 * norms, 4.0));
        self.row(c, a.heads * a.v_dim, p, shapes);
        let saved = 2.0 * (heads * (2 * qk + a.v_dim)) as f64 * tokens;
        kept.local += saved + 2.0 * (heads * a.v_dim) as f64 * tokens;
        modules.push((Module::MlaUpProjection, up.forward.total(), saved));
        self.add(p, &up);
    }

    /// The chunked scan of Mamba-2, its convolution and its gated norm.
    fn scan(&self, c: &Cell, a: &crate::spec::model::Mamba2, p: &mut Passes) {
        let local = c.tokens / c.tp;
        let elements = a.inner as f64 * local;
        let forward = self.device.stream(SCAN_BYTES * elements, 8.0);
        p.forward.add(Item::Attention, forward);
        p.backward.add(Item::Attention, 2.5 * forward);
    }

    /// Exposed time of context-parallel communication, forward and backward.
    /// `key_values`, `queries`, `outputs`: local bytes of those tensors.
    fn context_parallel(
        &self,
        c: &Cell,
        key_values: f64,
        queries: f64,
        outputs: f64,
        attention: (f64, f64),
    ) -> (f64, f64) {
        let f = &self.fabric;
        let group = &c.context_group;
        match c.key.context_comm {
            ContextComm::Ring => {
                let step = f.all_gather(group, key_values * c.cp);
                let hidden = (c.cp - 1.0) / c.cp;
                ((step - attention.0 * hidden).max(0.0), (2.0 * step - attention.1 * hidden).max(0.0))
            }
            ContextComm::AllGather => {
                let gather = f.all_gather(group, key_values * c.cp);
                // The backward pass gathers again and reduce-scatters the gradients.
                (gather, 2.0 * gather)
            }
            ContextComm::AllToAll => {
                let exchange = |bytes: f64| f.all_to_all(group, bytes);
                let all = exchange(queries) + exchange(outputs) + 2.0 * exchange(key_values / 2.0);
                (all, all)
            }
        }
    }

    // ---- tensor parallelism ----

    /// Full tensor of a tensor-parallel collective, gathers in the operand format.
    fn tensor_payload(&self, c: &Cell) -> (f64, f64) {
        let elements = self.model.hidden as f64 * c.tokens;
        (self.input_bytes() * elements, 2.0 * elements)
    }

    /// Adds the exposed forward collectives of `parts` parts of a layer.
    fn add_tensor_collectives(&self, c: &Cell, work: &mut Work, parts: f64) {
        if c.key.tensor_parallel < 2 {
            return;
        }
        let t = &self.profile.tensor;
        let (gathered, reduced) = self.tensor_payload(c);
        let one = if c.key.sequence_parallel {
            let both = self.fabric.all_gather(&c.tensor_group, gathered)
                + self.fabric.all_gather(&c.tensor_group, reduced);
            let synchronous = t.synchronous_factor.get(self.architecture());
            if c.key.tensor_overlap {
                t.overlapped_exposed * both
            } else if synchronous > 0.0 {
                synchronous * both
            } else {
                both
            }
        } else {
            t.all_reduce_factor * self.fabric.all_reduce(&c.tensor_group, reduced)
        };
        work.add(Item::TensorParallel, parts * one);
    }

    fn tensor_parallel(&self, c: &Cell, block: &Block, p: &mut Passes) {
        if c.key.tensor_parallel < 2 {
            return;
        }
        let t = &self.profile.tensor;
        let parts = tensor_parts(block);
        self.add_tensor_collectives(c, &mut p.forward, parts);
        let (gathered, reduced) = self.tensor_payload(c);
        let backward = if c.key.sequence_parallel {
            let gather = self.fabric.all_gather(&c.tensor_group, gathered);
            let scatter = self.fabric.all_gather(&c.tensor_group, reduced);
            let synchronous = t.synchronous_factor.get(self.architecture());
            if c.key.tensor_overlap {
                t.overlapped_exposed * (gather + scatter)
            } else if synchronous > 0.0 {
                synchronous * (2.0 * gather + scatter)
            } else {
                gather + REDUCE_INTERFERENCE * scatter
            }
        } else {
            t.all_reduce_backward * t.all_reduce_factor * self.fabric.all_reduce(&c.tensor_group, reduced)
        };
        p.backward.add(Item::TensorParallel, parts * backward);
    }

    // ---- experts ----

    /// Tokens of the most loaded rank over an equal share.
    fn imbalance(&self, e: &Moe) -> f64 {
        let routed = match self.job.routing {
            Routing::Balanced => 1.0,
            Routing::Natural if e.experts > 16 => self.profile.experts.imbalance.0,
            Routing::Natural => self.profile.experts.imbalance.1,
        };
        match self.job.expert_capacity {
            Some(ExpertCapacity { factor, padded: true }) => factor,
            Some(ExpertCapacity { factor, padded: false }) => routed.min(factor),
            None => routed,
        }
    }

    /// Whether the host reads in every layer how many tokens each expert got, which drains the queue of launches: not where
    /// experts are padded to a capacity, unless tokens are gathered everywhere
    /// (Megatron-LM:megatron/core/transformer/moe/token_dispatcher.py, `drop_and_pad` of the all-to-all and flex dispatchers).
    fn reads_counts(&self, c: &Cell) -> bool {
        let padded = self.job.expert_capacity.is_some_and(|capacity| capacity.padded);
        !padded || c.dispatchers.iter().all(|&dispatcher| dispatcher == Some(Dispatcher::AllGather))
    }

    /// What runs beside routed experts whatever their degrees: shared experts, and projections to and
    /// from a latent width.
    fn beside_experts(&self, c: &Cell, e: &Moe, part: &mut Part) {
        let h = self.model.hidden as f64;
        let local_tokens = c.tokens / c.split as f64;
        let mut body = Passes::default();
        if let Some(latent) = e.latent_width {
            let low = self.low.is_some();
            self.adapted(local_tokens, latent as f64, h, low, &mut body);
            self.adapted(local_tokens, h, latent as f64, low, &mut body);
            part.shapes.push((latent, self.model.hidden));
            part.shapes.push((self.model.hidden, latent));
        }
        if e.shared_width > 0 {
            let (mut shared, mut second) = (Passes::default(), Passes::default());
            let matrices = e.activation.matrices();
            self.column(c, e.shared_width * (matrices - 1), &mut shared, &mut part.shapes);
            self.row(c, e.shared_width, &mut second, &mut part.shapes);
            let elements = e.shared_width as f64 * c.tokens / c.tp;
            self.activation(elements, e.activation.gated(), &mut shared);
            part.halves = [&shared, &second].map(|half| (half.forward.total(), half.backward.total()));
            self.add(&mut shared, &second);
            part.shared = (2.0 * (matrices - 1) as f64 + self.input_bytes()) * elements;
            part.stays.local += part.shared;
            part.modules.push((Module::SharedExperts, shared.forward.total(), part.shared));
            self.add(&mut body, &shared);
        }
        part.beside = body;
        self.add(&mut part.passes, &body);
    }

    /// Products, activation and quantisation of the routed experts of a rank, for `copies` routed tokens.
    fn routed(&self, c: &Cell, e: &Moe, copies: f64) -> Routed {
        let d = &self.device;
        let width = e.latent_width.unwrap_or(self.model.hidden) as f64;
        let matrices = e.activation.matrices() as f64;
        let experts = e.experts as f64 / f64::from(c.key.expert_parallel);
        let fm = e.width as f64 / f64::from(c.key.expert_tensor_parallel);
        let low = self.low.is_some();
        let mut body = Passes::default();
        let bytes = if low { self.input_bytes() } else { 2.0 };
        let product = |rows: f64, columns: f64, inner: f64, result_bytes: f64| Product {
            rows,
            columns,
            inner,
            groups: experts,
            operand_bytes: bytes,
            result_bytes,
        };
        let rows = copies / experts;
        for (outputs, inputs) in [((matrices - 1.0) * fm, width), (width, fm)] {
            body.forward.add(Item::Experts, d.grouped(&product(rows, outputs, inputs, 2.0), low));
            body.backward.add(Item::Experts, d.grouped(&product(rows, inputs, outputs, 2.0), low));
            if self.training_base() {
                let result = self.weight_gradient_bytes();
                let weight = d.grouped(&product(outputs, inputs, rows, result), low);
                body.backward.add(Item::Experts, weight);
                body.weight += weight;
            }
            let (Training::Lora { rank }, Adapted::AllLinear) = (self.job.training, self.adapted) else {
                continue;
            };
            let rank = f64::from(rank);
            for (outputs, inputs) in [(rank, inputs), (outputs, rank)] {
                let products = thin(rows, outputs, inputs, experts).map(|product| d.grouped(&product, false));
                let [forward, data, weight] = products;
                body.forward.add(Item::Experts, forward);
                body.backward.add(Item::Experts, data + weight);
                body.weight += weight;
            }
            body.forward.add(Item::Experts, d.stream(6.0 * outputs * copies, 1.0));
            body.backward.add(Item::Experts, d.stream(6.0 * inputs * copies, 1.0));
        }
        let graphed = c.key.cuda_graphs == CudaGraphs::FullIteration;
        let (forward, backward) = if e.activation.gated() { (6.0, 10.0) } else { (4.0, 6.0) };
        // Under full-iteration graphs the activation is fused into the products.
        let (share_forward, share_backward) = if graphed { (0.0, 0.5) } else { (1.0, 1.0) };
        let mut activation = d.stream(forward * fm * copies * share_forward, 1.0);
        body.forward.add(Item::Experts, activation);
        body.backward.add(Item::Experts, d.stream(backward * fm * copies * share_backward, 1.0));
        if let Some(l) = self.low {
            let (into, out) = (width + fm, width + (matrices - 1.0) * fm);
            body.forward.add(Item::Experts, d.stream(l.quantise_bytes * into * copies, 2.0));
            body.backward.add(Item::Experts, d.stream(l.quantise_bytes * out * copies, 2.0));
        }
        if e.expert_bias {
            let share = if graphed { 0.3 } else { 1.0 };
            let traffic =
                |channels: f64| d.stream(share * self.profile.experts.bias_bytes * channels * copies, 0.0);
            let (first, second) = (traffic((matrices - 1.0) * fm), traffic(width));
            body.forward.add(Item::Experts, first + second);
            body.backward.add(Item::Experts, 1.5 * (first + second));
            // The first product's are added where the activation is computed, again where it is recomputed
            // (Megatron-LM:megatron/core/transformer/moe/experts.py, `bias_act_func`).
            activation += first;
        }
        Routed { passes: body, activation }
    }

    /// Routed experts with router, permutation and exchange.
    fn experts(
        &self,
        c: &Cell,
        kind: usize,
        e: &Moe,
        part: &Part,
        (stays, moves): (&mut Kept, &mut Kept),
        routed: &mut HashMap<RoutedKey, Routed>,
    ) -> Experts {
        let x = &self.profile.experts;
        let d = &self.device;
        let h = self.model.hidden as f64;
        let width = e.latent_width.map_or(h, |w| w as f64);
        let (ep, etp) = (f64::from(c.key.expert_parallel), f64::from(c.key.expert_tensor_parallel));
        let matrices = e.activation.matrices() as f64;
        let local_tokens = c.tokens / c.split as f64;
        let imbalance = self.imbalance(e);
        let copies = imbalance * e.top_k as f64 * local_tokens * etp;
        let fm = e.width as f64 / etp;
        let graphed = c.key.cuda_graphs == CudaGraphs::FullIteration;
        let key = RoutedKey {
            kind,
            tokens: local_tokens.to_bits(),
            expert_parallel: c.key.expert_parallel,
            expert_tensor_parallel: c.key.expert_tensor_parallel,
            graphed,
        };
        let Routed { passes: mut body, activation } =
            *routed.entry(key).or_insert_with(|| self.routed(c, e, copies));

        // Permutation and exchange.
        let permuted = |dispatcher: &Option<Dispatcher>| {
            let library = matches!(dispatcher, Some(Dispatcher::DeepEp | Dispatcher::HybridEp));
            if graphed {
                x.permute_bytes.2
            } else if library || c.key.expert_parallel == 1 {
                x.permute_bytes.1
            } else {
                x.permute_bytes.0
            }
        };
        let mut pi = c.dispatchers.iter().map(permuted).fold(f64::INFINITY, f64::min);
        if graphed && c.floor {
            pi = pi.min(x.permute_bytes.0).min(x.permute_bytes.1);
        }
        let permute =
            (pi * copies * width + 4.0 * local_tokens * h) / (d.bandwidth_peak * x.permute_efficiency);
        body.forward.add(Item::Routing, permute);
        body.backward.add(Item::Routing, permute);
        let router_kernels = if graphed { 4.0 } else { x.launches.1 };
        let router = (6.0 * h + 40.0 * e.experts as f64) * local_tokens / d.bandwidth + router_kernels * 2e-6;
        body.forward.add(Item::Routing, router);
        body.backward.add(Item::Routing, router);
        let exchange =
            |&dispatcher: &Option<Dispatcher>| self.exchange(c, dispatcher, e, width, local_tokens);
        body.exchange = imbalance * c.dispatchers.iter().map(exchange).fold(f64::INFINITY, f64::min);

        // Kept: permuted input, what the activation reads, and its output.
        let in_bytes = self.input_bytes();
        let activation_out = in_bytes * fm * copies;
        let moved = in_bytes * width * copies + 2.0 * (matrices - 1.0) * fm * copies;
        let mut stored = moved + activation_out;
        if c.dispatchers.iter().all(|&dispatcher| dispatcher == Some(Dispatcher::AllGather)) {
            stored += 2.0 * width * local_tokens * ep * etp;
        }
        if e.latent_width.is_some() {
            // The tokens before and after the experts, at the experts' width.
            stored += 4.0 * width * local_tokens;
        }
        let small = (4.0 * e.experts as f64 + 8.0 * e.top_k as f64) * local_tokens;
        moves.local += moved;
        stays.local += stored - moved + small;
        let hidden = if c.key.shared_overlap { part.hidden(body.exchange).0 } else { 0.0 };
        let whole = body.forward.total() + part.beside.forward.total() + 2.0 * body.exchange - hidden;
        Experts {
            passes: body,
            modules: [
                (Module::MoeActivation, activation, activation_out),
                (Module::Moe, whole, stored + small + part.shared),
            ]
            .into_iter(),
            moved,
            shapes: [(((matrices - 1.0) * fm) as u64, width as u64), (width as u64, fm as u64)],
        }
    }

    /// Seconds of one dispatch or combine.
    fn exchange(&self, c: &Cell, dispatcher: Option<Dispatcher>, e: &Moe, width: f64, tokens: f64) -> f64 {
        let (ep, etp) = (f64::from(c.key.expert_parallel), f64::from(c.key.expert_tensor_parallel));
        let ranks = ep * etp;
        if ranks < 2.0 {
            return 0.0;
        }
        let k = e.top_k as f64;
        let group = &c.expert_group;
        let domains = f64::from(group.domains);
        let inside = f64::from(group.inside) * etp;
        let latency = self.profile.experts.dispatch_latency.0;
        let element = 2.0 * width * tokens;
        let (near, far, library) = match dispatcher {
            Some(Dispatcher::AllGather) => {
                let bytes = 2.0 * width * tokens * ranks;
                return self.fabric.all_gather(&self.fabric.group(ranks as u32, 1), bytes);
            }
            Some(Dispatcher::DeepEp | Dispatcher::HybridEp) => {
                let ranks_hit = (ep - 1.0) * (1.0 - (1.0 - 1.0 / ep).powf(k));
                let free = (domains - 1.0) * (1.0 - (1.0 - 1.0 / domains).powf(k));
                // Groups of experts that lie in several domains are not all in one.
                let limit = e.router.groups.map_or(f64::INFINITY, |g| {
                    g.top_k as f64 * (domains / g.count as f64).max(1.0) * (domains - 1.0) / domains
                });
                (element * ranks_hit * etp, element * free.min(limit), true)
            }
            _ => {
                let mut near = element * k * (inside - 1.0).max(0.0) / ranks;
                if etp > 1.0 {
                    near += 2.0 * width * tokens * k * (etp - 1.0);
                }
                (near, element * k * (domains - 1.0) / domains, false)
            }
        };
        let near = near / self.fabric.reach(inside as u32);
        let far = far * group.exchange_taper;
        self.fabric.dispatch(near, far, library) + latency
    }

    /// Host time of a layer, forward and backward.
    fn host(&self, c: &Cell, block: &Block) -> (f64, f64) {
        let host = &self.profile.host;
        let x = &self.profile.experts;
        let tau = x.launch.0;
        match (&block.feed_forward, c.key.cuda_graphs) {
            (_, CudaGraphs::FullIteration) => (0.0, 0.0),
            (FeedForward::Moe(e), graphs) => {
                let (attention, router, rest) = x.launches;
                let attention = if graphs == CudaGraphs::None { attention } else { 0.0 };
                let router = if graphs == CudaGraphs::AttentionRouter { 0.0 } else { router };
                let more = match self.job.precision {
                    Precision::Bf16 | Precision::Fp16 => 0.0,
                    Precision::Fp8 => x.low_precision_launches.0,
                    Precision::Fp8Blockwise | Precision::Mxfp8 | Precision::Nvfp4 => {
                        x.low_precision_launches.1
                    }
                };
                let local = e.experts as f64 / f64::from(c.key.expert_parallel) * (1.0 + more);
                let (forward, backward) = x.launches_per_expert;
                (
                    tau * (attention + router + rest + forward * local),
                    tau * (1.2 * attention + router + rest + backward * local),
                )
            }
            (_, CudaGraphs::None) => (host.forward.0, host.backward.0),
            // Graphs over attention leave about half of a dense layer's launches.
            (_, _) => (0.5 * host.forward.0, 0.5 * host.backward.0),
        }
    }

    // ---- ends ----

    fn embedding(&self, c: &Cell) -> EndCost {
        let h = self.model.hidden as f64;
        let mut p = Passes::default();
        p.forward.add(Item::ElementWise, self.device.stream(6.0 * h * c.tokens, 2.0));
        p.backward.add(Item::ElementWise, self.device.stream(10.0 * h * c.tokens, 2.0));
        if self.model.embedding_norm {
            p.forward.add(Item::ElementWise, self.device.stream(4.0 * h * c.tokens / c.split as f64, 1.0));
            p.backward.add(Item::ElementWise, self.device.stream(8.0 * h * c.tokens / c.split as f64, 1.0));
        }
        let mut shapes = Vec::new();
        let width = embedding_width(self.model);
        if width != self.model.hidden {
            self.linear(c.tokens / c.split as f64, h, width as f64, false, &mut p);
            shapes.push((self.model.hidden, width));
        }
        if c.key.tensor_parallel > 1 {
            let (_, payload) = self.tensor_payload(c);
            let time = if c.key.sequence_parallel {
                self.fabric.all_gather(&c.tensor_group, payload)
            } else {
                self.fabric.all_reduce(&c.tensor_group, payload)
            };
            p.forward.add(Item::TensorParallel, time);
            if c.key.sequence_parallel {
                p.backward.add(Item::TensorParallel, time);
            }
        }
        let tp = u64::from(c.key.tensor_parallel);
        let table = self.model.padded_vocabulary(tp) * width;
        let rest = embedding_parameters(self.model, self.model.vocabulary) - self.model.vocabulary * width;
        let mut parameters = LocalParameters::default();
        parameters.0[self.base_class(StateClass::Ends) as usize] += table / tp + rest;
        p.backward.add(Item::ElementWise, self.gradient_addition(&parameters));
        EndCost {
            forward: p.forward.times(),
            backward: p.backward.times(),
            weight_gradient: Seconds(p.weight).picos(),
            kept: Bytes::from_f64(2.0 * h * c.tokens / c.split as f64 + 8.0 * c.tokens),
            parameters,
            weight_shapes: self.pooled(shapes),
            ..EndCost::default()
        }
    }

    /// A base weight's class: frozen under LoRA.
    fn base_class(&self, class: StateClass) -> StateClass {
        if self.training_base() { class } else { StateClass::Frozen }
    }

    /// Final norm, head and loss of one prediction.
    fn head_passes(&self, c: &Cell) -> Passes {
        let h = self.model.hidden as f64;
        let tp = u64::from(c.key.tensor_parallel);
        let width = embedding_width(self.model) as f64;
        let vocabulary = self.model.padded_vocabulary(tp) as f64;
        let local = vocabulary / c.tp;
        let mut p = Passes::default();
        let elements =
            h * c.tokens / c.split as f64 * self.profile.kernels.norm_traffic.get(self.architecture());
        p.forward.add(Item::ElementWise, self.device.stream(4.0 * elements, 1.0));
        p.backward.add(Item::ElementWise, self.device.stream(8.0 * elements, 2.0));
        if width != h {
            self.linear(c.tokens / c.split as f64, width, h, false, &mut p);
        }
        self.linear(c.tokens, local, width, false, &mut p);
        let (forward, backward) = self.profile.loss(self.release).0;
        let logits = c.tokens * if self.profile.kernels.loss_gathered { vocabulary } else { local };
        p.forward.add(Item::ElementWise, self.device.stream(forward * logits, 4.0));
        p.backward.add(Item::ElementWise, self.device.stream(backward * logits, 2.0));
        if c.key.tensor_parallel > 1 {
            let g = &c.tensor_group;
            let payload = 2.0 * h * c.tokens;
            if c.key.sequence_parallel {
                let gather = self.fabric.all_gather(g, payload);
                p.forward.add(Item::TensorParallel, gather);
                // Re-gather under the data gradient, reduce-scatter under the weight gradient.
                let synchronous = self.profile.tensor.synchronous_factor.get(self.architecture());
                let factor = if synchronous > 0.0 { 2.0 * synchronous } else { REDUCE_INTERFERENCE };
                p.backward.add(Item::TensorParallel, factor * gather);
            } else {
                p.backward.add(Item::TensorParallel, self.fabric.all_reduce(g, payload));
            }
            p.forward.add(Item::TensorParallel, 3.0 * self.fabric.all_reduce(g, 4.0 * c.tokens));
            if self.profile.kernels.loss_gathered {
                p.forward.add(Item::TensorParallel, self.fabric.all_gather(g, 2.0 * c.tokens * vocabulary));
            }
        }
        p
    }

    /// The head with the modules that predict further tokens, and, if there are some, the modules and the head with
    /// the losses of all predictions, each on its own.
    ///
    /// Megatron computes all losses on the last stage, whichever has the modules
    /// (Megatron-LM:megatron/core/models/gpt/gpt_model.py `_postprocess`).
    fn head(&self, c: &Cell, layers: &[LayerCost], trunk: &Trunk) -> (EndCost, Option<[EndCost; 2]>) {
        let h = self.model.hidden as f64;
        let tp = u64::from(c.key.tensor_parallel);
        let width = embedding_width(self.model);
        let vocabulary = self.model.padded_vocabulary(tp);
        let local = vocabulary as f64 / c.tp;
        let m = &self.profile.memory;
        let (loss_bytes, logit_bytes) = self.profile.loss(self.release);
        let mut head = trunk.head;
        let logits = c.tokens
            * if m.logits_gathered && tp > 1 {
                // The gathered FP32 loss stands beside the local BF16 logits.
                logit_bytes * vocabulary as f64 + 2.0 * local
            } else {
                logit_bytes * local
            };
        // The head's backward pass: its gathered input and the input's gradient before and after the
        // reduction, or the gradient alone where nothing is gathered.
        let stream = 2.0 * h * c.tokens;
        let gradient = if c.split > 1 && !c.floor { 2.0 * stream + stream / c.split as f64 } else { stream };
        let mut parameters = LocalParameters::default();
        let own = head_parameters(self.model, vocabulary);
        let matrix = if self.model.tied_embeddings { 0 } else { vocabulary * width };
        let bias = if self.model.head_bias { vocabulary } else { 0 };
        parameters.0[self.base_class(StateClass::Ends) as usize] +=
            (matrix + bias) / tp + (own - matrix - bias);
        head.backward.add(Item::ElementWise, self.gradient_addition(&parameters));
        let mut shapes = vec![((vocabulary / tp), width)];
        if width != self.model.hidden {
            shapes.push((width, self.model.hidden));
        }
        let alone = EndCost {
            forward: head.forward.times(),
            backward: head.backward.times(),
            weight_gradient: Seconds(head.weight).picos(),
            // Input and output of the final norm.
            kept: Bytes::from_f64(4.0 * h * c.tokens / c.split as f64),
            transient: Bytes::from_f64(logits + gradient),
            parameters,
            ..EndCost::default()
        };
        let Some((kind, modules)) = self.layers.mtp else {
            return (EndCost { weight_shapes: self.pooled(shapes), ..alone }, None);
        };
        let (layer, own) = (&layers[kind as usize], &trunk.mtp);
        let (count, shared) = (u64::from(modules), c.tokens / c.split as f64);
        let hidden = self.model.hidden;
        let mut parameters = LocalParameters::default().plus(&layer.parameters, count);
        parameters.0[self.base_class(StateClass::Dense) as usize] += count * 2 * hidden * hidden / tp;
        parameters.0[self.base_class(StateClass::Ends) as usize] += count * 3 * norm_parameters(self.model);
        let mut own_shapes = vec![(hidden / tp, 2 * hidden)];
        own_shapes.extend(layer.weight_shapes.iter().copied());
        let modules = EndCost {
            forward: Times::default().plus(&layer.forward, count).plus(&own.forward.times(), count),
            backward: Times::default().plus(&layer.backward, count).plus(&own.backward.times(), count),
            weight_gradient: (layer.weight_gradient + Seconds(own.weight).picos()) * count,
            further: true,
            parameters,
            weight_shapes: self.pooled(own_shapes.clone()),
            ..EndCost::default()
        };
        // The loss of every depth keeps the stream that it gets, and a softmax.
        let stream = Bytes::from_f64(2.0 * h * shared);
        let softmax = if loss_bytes.0 > 10.0 { 4.0 } else { 2.0 };
        let losses = EndCost {
            forward: alone.forward.plus(&head.forward.times(), count),
            backward: alone.backward.plus(&head.backward.times(), count),
            weight_gradient: alone.weight_gradient * (1 + count),
            kept: alone.kept + (stream + Bytes::from_f64(softmax * c.tokens * local)) * count,
            weight_shapes: self.pooled(shapes.clone()),
            ..alone
        };
        shapes.extend(own_shapes);
        let both = EndCost {
            forward: losses.forward.plus(&modules.forward, 1),
            backward: losses.backward.plus(&modules.backward, 1),
            weight_gradient: losses.weight_gradient + modules.weight_gradient,
            kept: losses.kept,
            transient: losses.transient,
            further: true,
            parameters: losses.parameters.plus(&modules.parameters, 1),
            weight_shapes: self.pooled(shapes),
        };
        // With the head, the stream that modules get is the one that the head or the module before keeps.
        let modules = EndCost { kept: stream * count, ..modules };
        (both, Some([modules, losses]))
    }

    /// Modules that predict further tokens, as far as it depends on what layers recompute.
    fn further(&self, c: &Cell, trunk: &Trunk) -> Option<Further> {
        let (kind, modules) = self.layers.mtp?;
        let stream = 2.0 * self.model.hidden as f64 * c.tokens / c.split as f64;
        Some(Further {
            kind: kind as usize,
            modules: u64::from(modules),
            recomputed: self.profile.memory.further_recomputed,
            full_extra: trunk.mtp.forward.times(),
            kept: Bytes::from_f64(4.0 * stream),
            full_kept: Bytes::from_f64(stream),
        })
    }

    /// The input table's copy on another stage, where the head is tied to it or multi-token
    /// prediction embeds again.
    fn tied_copy(&self, c: &Cell) -> LocalParameters {
        let tp = u64::from(c.key.tensor_parallel);
        let mut parameters = LocalParameters::default();
        if self.model.tied_embeddings || self.layers.mtp.is_some() {
            let table = self.model.padded_vocabulary(tp) * embedding_width(self.model) / tp;
            parameters.0[self.base_class(StateClass::Ends) as usize] = table;
        }
        parameters
    }

    // ---- memory ----

    fn local_parameters(&self, c: &Cell, kind: &LayerKind) -> LocalParameters {
        let tp = u64::from(c.key.tensor_parallel);
        let (ep, etp) = (u64::from(c.key.expert_parallel), u64::from(c.key.expert_tensor_parallel));
        let p = &kind.parameters;
        let h = self.model.hidden;
        let mut dense = p.sharded.div_ceil(tp);
        // Replicated matrices follow the recipe of linear layers; norms, routers and biases do not.
        let mut linear = 0;
        let (mut inputs_outputs, mut expert_adapters) = (0, 0);
        let mut query_key_value = 0;
        match &kind.block.mixer {
            Mixer::Attention(a) => {
                // Fewer key/value heads than ranks: each rank holds a whole one, with its biases and norms.
                let bias = u64::from(a.qkv_bias);
                let norm = u64::from(a.qk_norm == QkNorm::Full);
                let head = (2 * (h + bias) + norm) * a.head_dim;
                dense += (head * (a.kv_heads.div_ceil(tp) * tp - a.kv_heads)).div_ceil(tp);
                let (q, k) = (a.heads * a.head_dim, a.kv_heads * a.head_dim);
                query_key_value = h + q + 2 * k;
                inputs_outputs += h + q + 2 * k + q + h;
            }
            Mixer::Latent(a) => {
                linear += a.q_lora_rank.unwrap_or(0) * h + (a.kv_lora_rank + a.qk_rope_dim) * h;
                let qk = a.heads * (a.qk_nope_dim + a.qk_rope_dim);
                // Down and up projection of the queries, or a plain one.
                inputs_outputs += a.q_lora_rank.map_or(h + qk, |rank| h + rank + rank + qk);
                inputs_outputs += h + a.kv_lora_rank + a.qk_rope_dim;
                inputs_outputs += a.kv_lora_rank + a.heads * (a.qk_nope_dim + a.v_dim);
                inputs_outputs += a.heads * a.v_dim + h;
            }
            Mixer::Mamba2(a) => {
                inputs_outputs += h + 2 * a.inner + 2 * a.groups * a.state + a.heads + a.inner + h
            }
            Mixer::None => {}
        }
        match &kind.block.feed_forward {
            FeedForward::Dense(d) => {
                inputs_outputs += h + (d.activation.matrices() - 1) * d.width + d.width + h;
            }
            FeedForward::Moe(e) => {
                let width = e.latent_width.unwrap_or(h);
                if e.latent_width.is_some() {
                    linear += 2 * h * width;
                    inputs_outputs += 2 * (h + width);
                }
                if e.shared_width > 0 {
                    inputs_outputs += h + (e.activation.matrices() - 1) * e.shared_width + e.shared_width + h;
                }
                expert_adapters =
                    e.experts * (width + (e.activation.matrices() - 1) * e.width + e.width + width);
            }
            FeedForward::None => {}
        }
        let mut local = LocalParameters::default();
        let expert = p.expert.div_ceil(ep * etp);
        match self.job.training {
            Training::Full => {
                local.0[StateClass::Dense as usize] = dense + linear;
                local.0[StateClass::Ends as usize] = p.replicated - linear;
                local.0[StateClass::Expert as usize] = expert;
            }
            Training::Lora { rank } => {
                let rank = u64::from(rank);
                if self.adapted == Adapted::QueryKeyValue {
                    (inputs_outputs, expert_adapters) = (query_key_value, 0);
                }
                local.0[StateClass::Frozen as usize] = dense + p.replicated + expert;
                local.0[StateClass::Dense as usize] = rank * inputs_outputs.div_ceil(tp);
                local.0[StateClass::Expert as usize] = rank * expert_adapters.div_ceil(ep * etp);
            }
        }
        local
    }

    /// Bytes that the backward pass of one layer needs beyond what is kept, at its worst operator: the
    /// gradients of a gated activation's inputs while the inputs are still there, attention's gradients
    /// with an FP32 accumulator for the queries, or the exchanged and permuted gradients of routed
    /// tokens; and the gradient of the residual stream.
    fn working_set(&self, c: &Cell, block: &Block) -> f64 {
        let h = self.model.hidden as f64;
        let shared = c.tokens / c.split as f64;
        let local = c.tokens / c.tp;
        let feed_forward = match &block.feed_forward {
            FeedForward::Dense(d) => 2.0 * (d.activation.matrices() - 1) as f64 * d.width as f64 * local,
            FeedForward::Moe(e) => {
                let etp = f64::from(c.key.expert_tensor_parallel);
                let copies = self.imbalance(e) * e.top_k as f64 * shared * etp;
                let width = e.latent_width.map_or(h, |w| w as f64);
                copies * (6.0 * width + 6.0 * e.width as f64 / etp)
            }
            FeedForward::None => 0.0,
        };
        let mixer = match &block.mixer {
            Mixer::Attention(a) => {
                ((8 * a.heads + 4 * a.kv_heads) as f64 * a.head_dim as f64 + self.working_scores(c, a.heads))
                    * local
            }
            Mixer::Latent(a) => {
                let qk = (a.qk_nope_dim + a.qk_rope_dim) as f64;
                (a.heads as f64 * (8.0 * qk + 4.0 * a.v_dim as f64) + self.working_scores(c, a.heads)) * local
            }
            Mixer::Mamba2(a) => 8.0 * a.inner as f64 * local,
            Mixer::None => 0.0,
        };
        feed_forward.max(mixer) + 2.0 * h * shared
    }

    /// Bytes per token of gradients of scores in memory, of so many heads.
    fn working_scores(&self, c: &Cell, heads: u64) -> f64 {
        let of_a_head = |scores: EagerScores| scores.working * f64::from(self.job.sequence_length) / c.cp;
        self.device.scores().map_or(0.0, of_a_head) * heads as f64
    }

    /// Norms whose output goes to the host with what attention keeps; a parallel feed-forward part reads the same one.
    fn moved_norms(&self, block: &Block, before: f64) -> f64 {
        let attends = matches!(block.mixer, Mixer::Attention(_) | Mixer::Latent(_));
        if attends && !block.parallel { before.min(1.0) } else { 0.0 }
    }

    fn offload_activations(&self, cost: &mut LayerCost, bytes: Bytes, floor: bool) {
        let link = self.accelerator.host_link.0;
        cost.offloaded = bytes;
        let moved = bytes.0 as f64 / link;
        if floor {
            // How the passes divide is not known; their exposed transfers together are least at halves.
            let half = 0.5 * (cost.forward.total() + cost.backward.total()).seconds().0;
            let exposed = 2.0 * (moved - OFFLOAD_HIDDEN_SHARE * half).max(0.0);
            cost.backward.add(Item::Offload, Seconds(exposed).picos());
            cost.kept = cost.kept - bytes;
            return;
        }
        let hidden = |times: &Times| OFFLOAD_HIDDEN_SHARE * times.total().seconds().0;
        let forward = (moved - hidden(&cost.forward)).max(0.0);
        let backward = (moved - hidden(&cost.backward)).max(0.0);
        cost.forward.add(Item::Offload, Seconds(forward).picos());
        cost.backward.add(Item::Offload, Seconds(backward).picos());
        cost.kept = cost.kept - bytes;
    }

    /// Of layers that are recomputed together, the input goes to the host.
    fn offload_inputs(&self, cost: &mut LayerCost, floor: bool) {
        let bytes = cost.full_kept;
        // Of a floor it is not known how the passes divide.
        let hidden = if floor {
            Picos(u64::MAX)
        } else {
            Seconds(OFFLOAD_HIDDEN_SHARE * cost.forward.total().seconds().0).picos()
        };
        let moved = Seconds(bytes.0 as f64 / self.accelerator.host_link.0).picos();
        cost.full_offloaded = OffloadedInput { bytes, moved, hidden };
        cost.full_kept = Bytes::ZERO;
    }

    // ---- states ----

    /// Prices the states of one data-parallel arrangement.
    #[must_use]
    pub fn sharding(&self, layout: &Layout) -> Sharding {
        let (t, c, p) = (layout.tensor_parallel, layout.context_parallel, layout.pipeline_parallel);
        let replicas = layout.data_parallel * c;
        let expert_stride = layout.expert_parallel * layout.expert_tensor_parallel;
        let expert_replicas = layout.expert_data_parallel().max(1);
        let shard = if layout.zero_stage > 0 { layout.shard_group.clamp(1, replicas) } else { 1 };
        let expert_shard = if layout.zero_stage > 0 {
            // Hybrid sharding divides expert replicas in the same proportion.
            (expert_replicas / (replicas / shard).max(1)).max(1)
        } else {
            1
        };
        let sharded = layout.zero_stage > 0 && !self.profile.data.always_all_reduce;
        let mode = if !layout.data_overlap {
            DataMode::After
        } else if layout.zero_stage > 0 {
            self.profile.data.sharded
        } else {
            self.profile.data.replicated
        };

        let mut classes = [PerParameter::default(); 4];
        for class in [StateClass::Dense, StateClass::Expert, StateClass::Ends, StateClass::Frozen] {
            let (ranks, group, stride) = match class {
                StateClass::Expert => (expert_replicas, expert_shard, expert_stride),
                _ => (replicas, shard, t),
            };
            classes[class as usize] = self.states(layout, class, ranks, group, stride, sharded);
        }

        // Buckets: Megatron sizes them max(40e6, 1e6 D) elements; what is left of the last one cannot hide. Dense and expert
        // gradients have buffers of their own. The average rank's parameters stand for all.
        let chunks = f64::from(p) * f64::from(layout.virtual_stages);
        let dense = (self.total_parameters - self.expert_parameters) as f64 / f64::from(t) / chunks;
        let expert = self.expert_parameters as f64 / f64::from(expert_stride) / chunks;
        let bucket = (1e6 * f64::from(layout.data_parallel)).max(40e6);
        let buckets_of = |parameters: f64| (parameters / bucket).ceil();
        let dense_group = self.data_fabric.group(shard.max(if sharded { 1 } else { replicas }), t);
        let expert_group = self
            .data_fabric
            .group(expert_shard.max(if sharded { 1 } else { expert_replicas }), expert_stride);
        let once = f64::from(layout.virtual_stages)
            * (buckets_of(dense) * self.data_fabric.collective_latency(&dense_group)
                + buckets_of(expert) * self.data_fabric.collective_latency(&expert_group));
        let tensors = 6.0 * f64::from(self.layers.count()) / f64::from(p);
        let per_tensor = if layout.zero_stage > 0 {
            self.profile.data.tensor_latency.0
        } else {
            self.profile.data.tensor_latency.1
        };
        let tensor_latency = per_tensor.0 * f64::from(replicas.saturating_sub(1)) * tensors;
        let latency = if replicas < 2 { 0.0 } else { once + tensor_latency };
        let (hidden_reduce, hidden_gather) = match mode {
            DataMode::Overlapped => (DATA_HIDDEN_SHARE, DATA_HIDDEN_SHARE),
            DataMode::GradientsOverlapped => (DATA_HIDDEN_SHARE, 0.0),
            DataMode::After => (0.0, 0.0),
        };
        // With virtual stages the chunks' gradients become final one chunk after the other.
        let window = f64::from(layout.virtual_stages);
        // The last bucket of each buffer, of the last chunk to be done; one per chunk where there are no buckets.
        let last = |parameters: f64| parameters / buckets_of(parameters).max(1.0);
        let of_chunk = 1.0 / window;
        let of_bucket = of_chunk * (last(dense) + last(expert)) / (dense + expert).max(1.0);
        let others = if self.profile.data.buckets_on_first_rank { of_chunk } else { of_bucket };
        let (step_overhead, jitter) = self.step_floor();
        Sharding {
            classes,
            step_overhead,
            latency: (Seconds(latency).picos(), Seconds(if sharded { latency } else { 0.0 }).picos()),
            exposed_floor: (of_bucket, others),
            hidden_share: (hidden_reduce * window, hidden_gather * window),
            interference: DATA_INTERFERENCE,
            micro_overlap: (layout.zero_stage >= 3)
                .then_some(MicroOverlap { slow: self.profile.sharded.slow, tail: self.profile.sharded.tail }),
            most_gathered: self.profile.sharded.most_gathered.unwrap_or(f64::INFINITY),
            jitter,
        }
    }

    /// What every step of the job takes beside its passes whatever the plan, and the factor on all of it.
    #[must_use]
    pub fn step_floor(&self) -> (Picos, f64) {
        let gpus = f64::from(self.job.gpus);
        let jitter =
            self.profile.jitter.base + self.profile.jitter.per_doubling * (gpus / 64.0).log2().max(0.0);
        (self.profile.host.step.picos(), jitter)
    }

    /// States of one class, sharded over `group` of `ranks` replicas that lie `stride` apart.
    fn states(
        &self,
        layout: &Layout,
        class: StateClass,
        ranks: u32,
        group: u32,
        stride: u32,
        sharded: bool,
    ) -> PerParameter {
        let low = self.low.filter(|_| matches!(class, StateClass::Dense | StateClass::Expert));
        let recipe = memory::states(self.profile, self.job.precision);
        let primary = self.profile.memory.primary_low_precision;
        let d = f64::from(group);
        let frozen = class == StateClass::Frozen;
        let weights = match low {
            Some(l) if primary => l.weight_bytes,
            Some(l) => recipe.weights + l.weight_bytes,
            None => recipe.weights,
        };
        let cached = if frozen { 0.0 } else { self.profile.memory.cached_weights };
        let moments = memory::moment_bytes(self.job.optimizer, class);
        let (mut q, mut o) = (recipe.gradients, recipe.owned + moments);
        if frozen {
            (q, o) = (0.0, 0.0);
        }
        // A rank holds the layers of both directions, and of the ends one: those of the other are on its mirror. Norms and
        // routers, a thousandth of the layers, are counted with the ends.
        let twice = layout.schedule == Schedule::DualPipe && class != StateClass::Ends;
        let copies = if twice { 2.0 } else { 1.0 };
        let offload = layout.offload;
        let stage = layout.zero_stage;
        let mut s = PerParameter {
            weights: copies * if stage >= 3 { weights / d } else { weights + cached },
            gradients: copies * if stage >= 2 { q / d } else { q },
            optimizer: if offload.optimizer == Place::Gpu { o / d } else { 0.0 },
            staging: self.profile.memory.staging,
            ..PerParameter::default()
        };
        if stage == 0 && !frozen && offload.optimizer == Place::Gpu {
            s.staging += self.profile.memory.replicated_staging;
        }
        if offload.parameters != Place::Gpu && stage >= 3 {
            s.weights = 0.0;
        }
        // Pinned copies of what lives off the GPU; one copy of the gradients passes through host memory, in
        // FP32 where there is one in FP32.
        let in_host = if frozen { 0.0 } else { self.profile.memory.host_gradients };
        let passing = q.min(4.0).max(in_host);
        let mut off = |place: Place, bytes: f64| match place {
            Place::Gpu => {}
            Place::Cpu => s.host += bytes,
            Place::Nvme => s.nvme += bytes,
        };
        off(offload.optimizer, (o + if offload.optimizer == Place::Cpu { passing } else { 0.0 }) / d);
        if stage >= 3 {
            off(offload.parameters, weights / d);
        }
        let f = &self.data_fabric;
        let inner = f.group(group, stride);
        let outer = f.group(ranks / group.max(1), stride * group);
        let all = f.group(ranks, stride);
        let picos = 1e12;
        let wire = self.profile.data.gradient_bytes;
        let gather_bytes = low.map_or(2.0, |l| if primary { l.gather_bytes } else { 2.0 });
        if stage >= 3 {
            let w = &self.profile.sharded;
            let gather = f.gather_slope(&inner)
                * low.map_or(w.gather_bytes, |l| if primary { l.gather_bytes } else { w.gather_bytes });
            let reduce = if frozen {
                0.0
            } else {
                f.gather_slope(&inner) * w.reduce_bytes + f.reduce_slope(&outer) * w.reduce_bytes / d
            };
            let link = self.host_share(offload.parameters);
            let fetch = if offload.parameters == Place::Gpu { 0.0 } else { 2.0 / d / link };
            if w.kept_in_pipeline && layout.pipeline_parallel > 1 {
                s.gather = picos * (gather + fetch);
                s.reduce = picos * reduce;
                s.weights += copies * 2.0;
                s.gradients += if frozen { 0.0 } else { copies * w.reduce_bytes };
            } else {
                s.micro_gather = picos * (gather + fetch);
                s.micro_reduce = picos * (gather + fetch + reduce);
            }
            s.gathered = if w.kept_in_pipeline && layout.pipeline_parallel > 1 {
                0.0
            } else {
                (1.0 + w.prefetch) * 2.0 + if frozen { 0.0 } else { w.reduce_bytes }
            };
        } else if !frozen {
            if sharded {
                let reduce = f.gather_slope(&inner) * wire + f.reduce_slope(&outer) * wire / d;
                if stage == 2 {
                    s.micro_reduce = picos * reduce;
                } else {
                    s.reduce = picos * reduce;
                }
                s.gather = picos * f.gather_slope(&inner) * gather_bytes;
            } else {
                s.reduce = picos * f.reduce_slope(&all) * wire;
                if group > 1 {
                    s.gather = picos * f.gather_slope(&inner) * gather_bytes;
                }
            }
        }
        if !frozen {
            let traffic = memory::update_bytes(self.job.optimizer, class);
            s.update = if offload.optimizer == Place::Gpu {
                picos * (traffic / d + 6.0) / self.device.bandwidth
            } else {
                // Gradients go down, weights come up, and the host walks the states in between, where they lie.
                let link = self.accelerator.host_link.0;
                let per_gpu = f64::from(self.cluster.gpus_per_node);
                let states = match offload.optimizer {
                    Place::Nvme => self.host_share(Place::Nvme),
                    Place::Gpu | Place::Cpu => self.cluster.host.memory_bandwidth.0 / per_gpu,
                };
                picos * ((passing + 2.0) / d / link + traffic / d / states + 6.0 / self.device.bandwidth)
            };
        }
        s
    }

    /// Whether host memory and local drives of a node hold the states that its GPUs keep there, on average
    /// over `ranks` pipeline ranks with `parameters` in all. What a whole plan keeps there on its fullest
    /// node, activations included, is [`OffGpu`].
    #[must_use]
    pub fn host_holds(&self, sharding: &Sharding, parameters: &LocalParameters, ranks: u32) -> bool {
        let gpus = f64::from(self.cluster.gpus_per_node.min(self.job.gpus)) / f64::from(ranks);
        let bytes = |rate: fn(&PerParameter) -> f64| -> f64 {
            let classes = sharding.classes.iter().zip(&parameters.0);
            gpus * classes.map(|(class, &count)| count as f64 * rate(class)).sum::<f64>()
        };
        let states = Bytes::from_f64(bytes(|class| class.host));
        let drives = Bytes::from_f64(bytes(|class| class.nvme));
        self.off_gpu_holds(&OffGpu { states, drives, ..OffGpu::default() })
    }

    /// Whether host memory and local drives of a node hold so much.
    #[must_use]
    pub fn off_gpu_holds(&self, off: &OffGpu) -> bool {
        let host = &self.cluster.host;
        off.host() <= host.memory
            && (off.drives == Bytes::ZERO || host.nvme.is_some_and(|(size, _)| off.drives <= size))
    }

    /// Whether a predicted plan fits its GPUs and what it keeps off them fits their nodes.
    #[must_use]
    pub fn fits(&self, prediction: &Prediction) -> bool {
        prediction.allocated <= self.memory_limit() && self.off_gpu_holds(&prediction.off_gpu)
    }

    /// The cluster.
    #[must_use]
    pub fn cluster(&self) -> &Cluster {
        self.cluster
    }

    /// Bytes per second between one GPU and a place off it.
    fn host_share(&self, place: Place) -> f64 {
        let link = self.accelerator.host_link.0;
        match (place, self.cluster.host.nvme) {
            (Place::Nvme, Some((_, bandwidth))) => {
                link.min(bandwidth.0 / f64::from(self.cluster.gpus_per_node))
            }
            _ => link,
        }
    }

    /// Prices a message between neighbouring pipeline ranks.
    #[must_use]
    pub fn hop(&self, layout: &Layout) -> Hop {
        if layout.pipeline_parallel < 2 {
            return Hop::default();
        }
        let key = CellKey::from(layout);
        let c = self.cell_of(&key);
        let split = if layout.sequence_parallel { c.split as f64 } else { 1.0 };
        let full = 2.0 * self.model.hidden as f64 * c.tokens;
        let wire = if self.profile.pipeline.scattered { full / c.tp } else { full / split };
        let stride = layout.tensor_parallel * layout.context_parallel * layout.data_parallel;
        let mut time = self.fabric.send(stride, wire);
        if self.profile.pipeline.scattered && !layout.sequence_parallel && layout.tensor_parallel > 1 {
            time += self.fabric.all_gather(&c.tensor_group, full);
        }
        let host = self.profile.pipeline.message_host.0;
        let mut latency = Seconds(time + host).picos();
        let (mut busy, mut further, mut streams) = (Picos::ZERO, Picos::ZERO, 0);
        let overlapped = layout.virtual_stages > 1 && self.profile.pipeline.overlap_interleaved;
        if let Some((_, modules)) = self.layers.mtp.filter(|_| layout.mtp_standalone) {
            // Where messages differ in size, shapes are sent first, once per pass for both neighbours, and the host waits
            // for them: its queue is empty then (Megatron-LM:megatron/core/pipeline_parallel/p2p_communication.py
            // `_communicate_shapes`).
            busy = Seconds(0.5 * (self.fabric.send(stride, SHAPE_BYTES) + 2.0 * host)).picos();
            further = Seconds(f64::from(modules) * time).picos();
            streams = u64::from(modules);
        }
        if overlapped {
            // A micro-batch crosses the longer message once on its way: a share of it everywhere.
            latency += further / u64::from(layout.chunk_count() - 1).max(1);
            further = Picos::ZERO;
        } else {
            busy += std::mem::take(&mut latency);
        }
        let messages = if overlapped { MOST_MESSAGES } else { 2 };
        let message = Bytes::from_f64(full / split);
        let mut buffers = message * messages;
        if layout.cuda_graphs != CudaGraphs::None {
            let (one, several) = self.profile.memory.graph_buffers;
            buffers += Bytes::from_f64(several - one);
        }
        Hop { latency, busy, further, buffers, further_buffers: message * (messages * streams) }
    }
}

/// Norms that stand before a part of a block.
fn norms_before(block: &Block) -> f64 {
    f64::from(block.norms).min(if block.parallel { 1.0 } else { parts(block) })
}

/// The BF16 products of a thin weight of `outputs x inputs` that `tokens` rows meet: forward, of data and weight gradients.
fn thin(tokens: f64, outputs: f64, inputs: f64, groups: f64) -> [Product; 3] {
    let product = |rows, columns, inner| Product {
        rows,
        columns,
        inner,
        groups,
        operand_bytes: 2.0,
        result_bytes: 2.0,
    };
    [product(tokens, outputs, inputs), product(tokens, inputs, outputs), product(outputs, inputs, tokens)]
}

/// Parts of a block that read the residual stream and add to it.
fn parts(block: &Block) -> f64 {
    let mixer = block.mixer != Mixer::None;
    let feed_forward = block.feed_forward != FeedForward::None;
    f64::from(u8::from(mixer)) + f64::from(u8::from(feed_forward))
}

/// Parts of a block that end in a tensor-parallel reduction: parallel blocks share one, routed experts
/// have their own exchange, shared experts reduce.
fn tensor_parts(block: &Block) -> f64 {
    let mixer = f64::from(u8::from(block.mixer != Mixer::None));
    let feed_forward = match &block.feed_forward {
        FeedForward::Dense(_) => 1.0,
        FeedForward::Moe(e) => f64::from(u8::from(e.shared_width > 0)),
        FeedForward::None => 0.0,
    };
    if block.parallel { mixer.max(feed_forward) } else { mixer + feed_forward }
}
