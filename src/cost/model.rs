//! Prices layers, ends, states and messages of a layout: fills the tables of [`crate::cost`].

mod attention;
mod ends;
mod experts;
mod held;
mod linear;
mod muon;
mod states;
mod tensor_parallel;

use std::collections::HashMap;

use self::muon::Orthogonal;
use crate::cost::compute::Device;
use crate::cost::network::{Fabric, Group};
use crate::cost::step::{OffGpu, Prediction};
use crate::cost::{
    CellCosts, CellKey, EndCost, Hop, ITEMS, Item, LayerCost, LocalParameters, ModuleCost, OffloadedInput,
    PerParameter, Sharding, Times,
};
use crate::frameworks::error_bars::{Class, ErrorBars, Interval, Leaning, Measured, Scale, own_runs};
use crate::frameworks::hf::{eager_attention, windows_cut};
use crate::frameworks::profile::{GradientPool, OffloadedActivations, Profile};
use crate::layers::{LayerKind, Layers};
use crate::memory::{LowPrecision, Reserve};
use crate::plan::{ContextComm, CudaGraphs, Dispatcher, Layout, Module, Place};
use crate::spec::cluster::{Accelerator, Architecture, Cluster, OwnRuns};
use crate::spec::job::{Job, Optimizer, Precision, Training};
use crate::spec::model::{Block, FeedForward, Mixer, Model};
use crate::spec::special::Special;
use crate::units::{Bytes, Picos, Seconds};

/// Slow-down of matrix products by a reduce-scatter that runs beside them, as a share of the latter.
const REDUCE_INTERFERENCE: f64 = 0.25;
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
    /// Matrices that Muon makes orthogonal, outside routed experts and of them; none under other optimizers.
    orthogonal: Option<[Orthogonal; 2]>,
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
    /// Whose error bars are shipped for it, without such tensor parallelism.
    class: Class,
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
        let orthogonal = (job.optimizer == Optimizer::Muon && job.training == Training::Full)
            .then(|| Orthogonal::of(layers, model.hidden, &device));
        let own = |class: &Class| own_runs(cluster, &class.profile, experts, job, class.crossing);
        let shipped = ErrorBars::shipped();
        let class = classes[0].clone();
        let error_bars = classes.each_ref().map(|class| shipped.at_site(class, own(class)));
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
            orthogonal,
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
            error_bars,
            memory_bars: classes.each_ref().map(|class| shipped.of_memory(class)),
            own_runs: own(&classes[0]),
            class,
        }
    }

    /// Whether runs of its profile on this generation of GPUs, with or without experts, were measured, or runs like the job
    /// at its site.
    #[must_use]
    pub fn is_measured(&self) -> bool {
        self.own_runs.is_some() || ErrorBars::shipped().measured(&self.class)
    }

    /// The site's own runs, calibrated to, that are like this job.
    #[must_use]
    pub fn own_runs(&self) -> Option<&'a OwnRuns> {
        self.own_runs
    }

    /// Whether the bars of such runs come from printed rates alone.
    #[must_use]
    pub fn is_known_by_rates(&self) -> bool {
        ErrorBars::shipped().known_by_rates(&self.class) && !self.is_measured()
    }

    /// How measured runs of its profile on this generation of GPUs, with or without experts, lean, if they do.
    #[must_use]
    pub fn leaning(&self) -> Option<&'static Leaning> {
        ErrorBars::shipped().leaning(&self.class)
    }

    /// The few runs of its profile on this generation of GPUs that its error bar is as wide as, since one of them lies outside
    /// the bar that it would have.
    #[must_use]
    pub fn outside(&self) -> Option<&'static Measured> {
        ErrorBars::shipped().outside(&self.class, self.error_bars[0])
    }

    /// What runs it is like.
    #[must_use]
    pub fn class(&self) -> &Class {
        &self.class
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
        self.profile.kernels.gradient_addition_bytes * parameters.trained() as f64 / self.device.bandwidth
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

/// Parts of a block that read the residual stream and add to it.
fn parts(block: &Block) -> f64 {
    let mixer = block.mixer != Mixer::None;
    let feed_forward = block.feed_forward != FeedForward::None;
    f64::from(u8::from(mixer)) + f64::from(u8::from(feed_forward))
}
