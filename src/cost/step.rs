//! A plan's step: stage times and memory from the tables of [`crate::cost`], then the schedule, the
//! data-parallel tail and the optimizer, itemised so that the items sum to the total.

use serde::Serialize;

use super::model::CostModel;
use super::schedule::{Load, Shape, Simulator, in_flight_vectors};
use super::{
    CellCosts, CellKey, EndCost, Hop, ITEMS, Item, LayerCost, LocalParameters, ModuleCost, OffloadedInput,
    Sharding, Times,
};
use crate::frameworks::error_bars::Interval;
use crate::layers::Layers;
use crate::plan::{Layout, Module, Modules, Offload, Plan, Recompute};
use crate::units::{Bytes, Picos};

/// Kinds of time of a whole step beyond those of [`Item`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
#[repr(usize)]
pub enum StepItem {
    /// Sends and receives between pipeline ranks that keep both busy.
    PipelineMessages = ITEMS,
    /// Idle time of the busiest rank: fill, drain, and waiting for unequal neighbours.
    PipelineBubble,
    /// Weights gathered before the first forward pass, as far as nothing hides it.
    WeightGather,
    /// Gradients reduced after the last backward pass, as far as nothing hides it.
    GradientReduction,
    /// The optimizer's update.
    OptimizerUpdate,
    /// What happens once per step whatever the plan.
    StepOverhead,
    /// Jitter and stragglers at this scale.
    Stragglers,
}

/// Number of items of a step.
pub const STEP_ITEMS: usize = ITEMS + 7;

/// Names of all items, in order.
pub const ITEM_NAMES: [&str; STEP_ITEMS] = [
    "gemm",
    "attention",
    "element_wise",
    "experts",
    "routing",
    "host",
    "tensor_parallel",
    "context_parallel",
    "expert_parallel",
    "sharding",
    "recompute",
    "offload",
    "pipeline_messages",
    "pipeline_bubble",
    "weight_gather",
    "gradient_reduction",
    "optimizer_update",
    "step_overhead",
    "stragglers",
];

/// What trains: the rest of a step is overhead.
const USEFUL: [Item; 4] = [Item::Gemm, Item::Attention, Item::Experts, Item::ElementWise];

/// A step's time by item; the items sum to the step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StepTimes(pub [Picos; STEP_ITEMS]);

impl StepTimes {
    /// The whole step.
    #[must_use]
    pub fn total(&self) -> Picos {
        self.0.iter().copied().sum()
    }
    /// Items with their names.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, Picos)> + '_ {
        ITEM_NAMES.into_iter().zip(self.0)
    }
    /// Useful computation: the same whatever a plan spends beside it.
    #[must_use]
    pub fn useful(&self) -> Picos {
        USEFUL.iter().map(|&item| self.0[item as usize]).sum()
    }
    /// The largest item that is not useful computation: what limits the plan. Stages may be as `unequal` as
    /// [`Idle::unequal`].
    #[must_use]
    pub fn limiting(&self, unequal: Picos) -> &'static str {
        let useful = |i: &usize| USEFUL.iter().any(|&item| item as usize == *i);
        let items = (0..STEP_ITEMS).filter(|i| !useful(i)).map(|i| (self.0[i], ITEM_NAMES[i]));
        let first_of_largest =
            |a: (Picos, &'static str), b: (Picos, &'static str)| if b.0 > a.0 { b } else { a };
        match items.fold((unequal, "unequal_stages"), first_of_largest) {
            // An overhead of less than a tenth of the useful work does not limit anything.
            (time, name) if time.0 * 10 > self.useful().0 => name,
            _ => "compute",
        }
    }
}

/// How long the ranks of a pipeline wait between the first pass of a step and its last.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Idle {
    /// Time by rank.
    pub ranks: Vec<Picos>,
    /// The rank with the most work.
    pub busiest: usize,
    /// That on average: the bubble of the busiest rank, and [`Self::unequal`].
    pub mean: Picos,
    /// The work that the busiest rank has beyond the average: what equal stages would save.
    pub unequal: Picos,
    /// Work of the busiest rank.
    pub work: Picos,
}

/// Peak memory of one pipeline rank, by item.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct RankMemory {
    /// Weights, low-precision copies included.
    pub weights: Bytes,
    /// Gradients.
    pub gradients: Bytes,
    /// Master weights and moments.
    pub optimizer: Bytes,
    /// Activations of all micro-batches in flight.
    pub activations: Bytes,
    /// Working set of the heaviest layer, or logits.
    pub transient: Bytes,
    /// Pooled dummy weight gradients, gathered units of sharded weights.
    pub pools: Bytes,
    /// Communication buffers.
    pub buffers: Bytes,
}

impl RankMemory {
    fn add_states(&mut self, sharding: &Sharding, parameters: &LocalParameters) {
        let [weights, gradients, optimizer] = state_bytes(sharding, parameters);
        self.weights += weights;
        self.gradients += gradients;
        self.optimizer += optimizer;
    }
    /// All of it: allocated bytes at the peak.
    #[must_use]
    pub fn total(&self) -> Bytes {
        self.weights
            + self.gradients
            + self.optimizer
            + self.activations
            + self.transient
            + self.pools
            + self.buffers
    }
}

/// What the GPUs of a node keep off them, on the node where it is most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct OffGpu {
    /// Weights, gradients and optimizer states in host memory.
    pub states: Bytes,
    /// Activations of all micro-batches in flight, in host memory.
    pub activations: Bytes,
    /// States on local drives.
    pub drives: Bytes,
}

impl OffGpu {
    /// Bytes of host memory.
    #[must_use]
    pub fn host(&self) -> Bytes {
        self.states + self.activations
    }
}

/// One chunk of layers, per micro-batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ChunkTimes {
    /// Pipeline rank.
    pub rank: u32,
    /// Forward pass.
    pub forward: Times,
    /// Backward pass, recomputation included.
    pub backward: Times,
    /// The part of `backward` that computes weight gradients: zero-bubble schedules may delay it.
    pub weight_gradient: Picos,
    /// Sends and receives that keep the rank busy, forward and backward alike.
    pub messages: Picos,
}

/// What is predicted of a plan.
#[derive(Debug, Clone, PartialEq)]
pub struct Prediction {
    /// Step time by item.
    pub times: StepTimes,
    /// How far the logarithm of the step time may be off.
    pub interval: Interval,
    /// How far that of peak memory may be off, by all of its counts.
    pub memory_interval: Interval,
    /// Chunks in model order.
    pub chunks: Vec<ChunkTimes>,
    /// Memory of every pipeline rank.
    pub memory: Vec<RankMemory>,
    /// What the fullest node keeps off its GPUs.
    pub off_gpu: OffGpu,
    /// Bytes of tensors on the fullest rank.
    pub allocated: Bytes,
    /// Bytes that the allocator holds there.
    pub reserved: Bytes,
    /// Bytes that the device reports there.
    pub device: Bytes,
}

impl Prediction {
    /// The step.
    #[must_use]
    pub fn step(&self) -> Picos {
        self.times.total()
    }

    /// How long ranks wait for one another.
    #[must_use]
    pub fn idle(&self) -> Idle {
        // Of one micro-batch.
        let mut work = vec![Picos::ZERO; self.memory.len()];
        for c in &self.chunks {
            work[c.rank as usize] += c.forward.total() + c.backward.total() + c.messages * 2;
        }
        let busiest = busiest(&work);
        let most = work.get(busiest).map_or(1, |most| most.0.max(1));
        let bubble = self.times.0[StepItem::PipelineBubble as usize];
        let busy: Picos = self.times.0[..StepItem::PipelineBubble as usize].iter().copied().sum();
        let of_all = |own: &Picos| (u128::from(own.0) * u128::from(busy.0) / u128::from(most)) as u64;
        let beyond = |own: &Picos| busy - Picos(of_all(own));
        let ranks: Vec<Picos> = work.iter().map(|own| beyond(own) + bubble).collect();
        let all: u128 = ranks.iter().map(|idle| u128::from(idle.0)).sum();
        let mean = Picos((all / ranks.len().max(1) as u128) as u64);
        Idle { ranks, busiest, mean, unequal: mean.saturating_sub(bubble), work: busy }
    }

    /// What limits the plan: see [`StepTimes::limiting`].
    #[must_use]
    pub fn limiting(&self) -> &'static str {
        self.times.limiting(self.idle().unequal)
    }

    /// Between which times 95 % of such steps lie.
    #[must_use]
    pub fn step_range(&self) -> [Picos; 2] {
        self.interval.range().map(|factor| self.step().scale(factor))
    }

    /// Between which numbers of bytes of tensors 95 % of such runs peak.
    #[must_use]
    pub fn allocated_range(&self) -> [Bytes; 2] {
        self.memory_interval.range().map(|factor| self.allocated.scale(factor))
    }
}

/// What a recompute mode does to one layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ModeCost {
    /// Extra backward time.
    pub extra: Times,
    /// Bytes kept per micro-batch in flight (of one group of layers under full, uniform).
    pub kept: Bytes,
    /// Bytes needed once during the backward pass.
    pub transient: Bytes,
}

impl ModeCost {
    /// The same with more that is kept.
    fn keeping(self, more: Bytes) -> Self {
        Self { kept: self.kept + more, ..self }
    }
}

/// What a recompute mode does to one layer of a kind; for [`Recompute::FullBlock`] the mode of the
/// recomputed layers.
#[must_use]
pub fn mode_cost(layer: &LayerCost, recompute: Recompute) -> ModeCost {
    match recompute {
        Recompute::None => {
            let (kept, transient) = without(layer, Bytes::ZERO);
            ModeCost { extra: Times::default(), kept, transient }
        }
        Recompute::Selective(set) => selective_cost(layer, set),
        Recompute::FullUniform(n) => ModeCost {
            extra: whole_layer_extra(layer, n),
            kept: layer.full_kept,
            transient: if n > 1 { layer.group_transient } else { layer.transient }
                + (layer.kept * u64::from(n)).saturating_sub(layer.full_kept),
        },
        Recompute::FullBlock(_) => mode_cost(layer, Recompute::FullUniform(1)),
    }
}

/// What a recompute mode does to all modules that predict further tokens: a whole one is recomputed from its stream and
/// the embedding.
#[must_use]
pub fn further_cost(cell: &CellCosts, recompute: Recompute) -> ModeCost {
    let Some(further) = &cell.further else { return ModeCost::default() };
    let layer = &cell.layers[further.kind];
    let one = match recompute.of_modules(further.recomputed) {
        whole @ Recompute::FullUniform(_) => ModeCost {
            extra: mode_cost(layer, whole).extra.plus(&further.full_extra, 1),
            kept: further.full_kept,
            transient: layer.transient + (layer.kept + further.kept).saturating_sub(further.full_kept),
        },
        other => mode_cost(layer, other).keeping(further.kept),
    };
    ModeCost {
        extra: Times::default().plus(&one.extra, further.modules),
        kept: one.kept * further.modules,
        ..one
    }
}

/// Extra backward time of each of `n` layers that are recomputed together. One input for all of them goes to
/// host memory, behind their forward passes as far as these hide it, and comes back before they run again.
fn whole_layer_extra(layer: &LayerCost, n: u32) -> Times {
    let OffloadedInput { moved, hidden, .. } = layer.full_offloaded;
    let down = moved.0.saturating_sub(hidden.0.saturating_mul(u64::from(n)));
    let mut extra = layer.full_extra;
    extra.add(Item::Offload, Picos((down + moved.0).div_ceil(u64::from(n.max(1)))));
    extra
}

fn selective_cost(layer: &LayerCost, set: Modules) -> ModeCost {
    let mut extra = Times::default();
    let mut saved = Bytes::ZERO;
    for (_, cost) in dropped(layer, set) {
        extra = extra.plus(&cost.extra, 1);
        saved += cost.saved;
    }
    let (kept, transient) = without(layer, saved);
    ModeCost { extra, kept, transient }
}

/// The modules of a layer that selective recomputation of a set drops, with their places.
fn dropped(layer: &LayerCost, set: Modules) -> impl Iterator<Item = (usize, &ModuleCost)> {
    let has_moe = set.has(Module::Moe) && layer.modules.iter().any(|cost| cost.module == Module::Moe);
    // What lies inside a recomputed MoE layer is recomputed with it.
    let inside = move |module| has_moe && matches!(module, Module::MoeActivation | Module::SharedExperts);
    let all = layer.modules.iter().enumerate();
    all.filter(move |(_, cost)| set.has(cost.module) && !inside(cost.module))
}

/// What a layer keeps without so many bytes, and its transient: one layer at a time is rebuilt. Where passes are merged,
/// a layer of the next micro-batch has left what it keeps before that of the last is gone: Megatron-Core runs a forward
/// pass more before the first backward pass, then pairs the first layer of the one with the last of the other, the second
/// with the last but one (Megatron-LM:megatron/core/pipeline_parallel/schedules.py, `get_pp_rank_microbatches`;
/// core/models/common/model_chunk_schedule_plan.py).
fn without(layer: &LayerCost, saved: Bytes) -> (Bytes, Bytes) {
    let saved = Bytes(saved.0.min(layer.kept.0));
    let kept = layer.kept - saved;
    (kept, layer.transient + saved + if layer.merged { kept } else { Bytes::ZERO })
}

/// [`mode_cost`] of one layer in many modes, extra time in one sum.
#[derive(Debug)]
pub struct ModeSums<'a> {
    layer: &'a LayerCost,
    /// Extra time by module.
    extra: Vec<Picos>,
}

impl<'a> ModeSums<'a> {
    /// Those of a layer.
    #[must_use]
    pub fn new(layer: &'a LayerCost) -> Self {
        Self { layer, extra: layer.modules.iter().map(|cost| cost.extra.total()).collect() }
    }

    /// Extra backward time, bytes kept per micro-batch in flight and bytes needed once, as in [`ModeCost`].
    #[must_use]
    pub fn of(&self, recompute: Recompute) -> (Picos, Bytes, Bytes) {
        let Recompute::Selective(set) = recompute else {
            let ModeCost { extra, kept, transient } = mode_cost(self.layer, recompute);
            return (extra.total(), kept, transient);
        };
        let (mut extra, mut saved) = (Picos::ZERO, Bytes::ZERO);
        for (at, cost) in dropped(self.layer, set) {
            extra += self.extra[at];
            saved += cost.saved;
        }
        let (kept, transient) = without(self.layer, saved);
        (extra, kept, transient)
    }
}

/// Bytes of weights, gradients and optimizer states of so many local parameters.
#[must_use]
pub fn state_bytes(sharding: &Sharding, parameters: &LocalParameters) -> [Bytes; 3] {
    let mut sums = [0.0; 3];
    for (class, &count) in sharding.classes.iter().zip(&parameters.0) {
        let count = count as f64;
        sums[0] += count * class.weights;
        sums[1] += count * class.gradients;
        sums[2] += count * class.optimizer;
    }
    sums.map(Bytes::from_f64)
}

/// Bytes of a gathered unit of sharded weights.
#[must_use]
pub fn gathered_bytes(sharding: &Sharding, parameters: &LocalParameters) -> Bytes {
    let whole: f64 =
        sharding.classes.iter().zip(&parameters.0).map(|(class, &n)| n as f64 * class.gathered).sum();
    let parameters: u64 = parameters.0.iter().sum();
    Bytes::from_f64(whole * (sharding.most_gathered / (parameters.max(1) as f64)).min(1.0))
}

/// Exposed weight traffic of one unit in one forward and one backward pass of one micro-batch
/// (ZeRO-3; ZeRO-2 reduces after every backward pass).
#[must_use]
pub fn micro_exposed(
    sharding: &Sharding,
    parameters: &LocalParameters,
    forward: Picos,
    backward: Picos,
) -> [Picos; 2] {
    let sum = |rate: fn(&super::PerParameter) -> f64| -> u64 {
        let picos: f64 =
            sharding.classes.iter().zip(&parameters.0).map(|(class, &n)| n as f64 * rate(class)).sum();
        picos.round() as u64
    };
    let traffic = [sum(|c| c.micro_gather), sum(|c| c.micro_reduce)];
    let compute = [forward.0, backward.0];
    let exposed = |traffic: u64, compute: u64, hidden: f64| -> Picos {
        if traffic == 0 {
            return Picos::ZERO;
        }
        match sharding.micro_overlap {
            Some(overlap) => {
                let (traffic, compute) = (traffic as f64, compute as f64);
                let together = compute * (1.0 + overlap.slow * (traffic / compute.max(1.0)).min(1.0));
                let behind = traffic + overlap.tail * compute;
                Picos((together.max(behind) - compute).max(0.0).round() as u64)
            }
            None => Picos(traffic.saturating_sub((compute as f64 * hidden) as u64)),
        }
    };
    [
        exposed(traffic[0], compute[0], sharding.hidden_share.1),
        exposed(traffic[1], compute[1], sharding.hidden_share.0),
    ]
}

/// A layer's passes with the exposed traffic of sharded weights.
#[must_use]
pub fn layer_passes(sharding: &Sharding, layer: &LayerCost) -> [Times; 2] {
    with_traffic(sharding, &layer.parameters, layer.forward, layer.backward)
}

/// An end's passes with the exposed traffic of sharded weights.
#[must_use]
pub fn end_passes(sharding: &Sharding, end: &EndCost) -> [Times; 2] {
    with_traffic(sharding, &end.parameters, end.forward, end.backward)
}

fn with_traffic(
    sharding: &Sharding,
    parameters: &LocalParameters,
    forward: Times,
    backward: Times,
) -> [Times; 2] {
    let [gather, reduce] = micro_exposed(sharding, parameters, forward.total(), backward.total());
    let (mut forward, mut backward) = (forward, backward);
    forward.add(Item::Sharding, gather);
    backward.add(Item::Sharding, reduce);
    [forward, backward]
}

/// Once-per-step traffic and update of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OncePerStep {
    /// Reduction of gradients.
    pub reduce: Picos,
    /// Gather of weights.
    pub gather: Picos,
    /// Update.
    pub update: Picos,
}

/// Once-per-step traffic and update of so many local parameters.
#[must_use]
pub fn once_per_step(sharding: &Sharding, parameters: &LocalParameters) -> OncePerStep {
    let sum = |rate: fn(&super::PerParameter) -> f64| {
        let picos: f64 =
            sharding.classes.iter().zip(&parameters.0).map(|(class, &n)| n as f64 * rate(class)).sum();
        Picos(picos.round() as u64)
    };
    let reduce = sum(|c| c.reduce);
    let gather = sum(|c| c.gather);
    OncePerStep {
        reduce: if reduce.0 > 0 { reduce + sharding.latency.0 } else { reduce },
        gather: if gather.0 > 0 { gather + sharding.latency.1 } else { gather },
        update: sum(|c| c.update),
    }
}

/// The part of a reduction (or gather) that `window` of computation cannot hide.
#[must_use]
pub fn exposed(traffic: Picos, floor: f64, hidden: f64, interference: f64, window: Picos) -> Picos {
    if hidden <= 0.0 {
        return traffic;
    }
    let behind = traffic.saturating_sub(window.scale(hidden));
    behind.max(traffic.scale(floor)) + traffic.scale(interference)
}

/// Shape of a layout's schedule.
#[must_use]
pub fn shape(layout: &Layout) -> Shape {
    Shape {
        schedule: layout.schedule,
        ranks: layout.pipeline_parallel,
        virtual_stages: layout.virtual_stages,
        micro_batches: layout.gradient_accumulation_steps,
    }
}

/// The tables that one layout needs.
#[derive(Debug, Clone)]
pub struct Tables {
    /// Layers and ends.
    pub cell: CellCosts,
    /// States.
    pub sharding: Sharding,
    /// Messages.
    pub hop: Hop,
}

impl Tables {
    /// Prices everything that a layout needs.
    #[must_use]
    pub fn new(cost: &CostModel<'_>, layout: &Layout) -> Self {
        Self {
            cell: cost.cell(&CellKey::from(layout)),
            sharding: cost.sharding(layout),
            hop: cost.hop(layout),
        }
    }
}

/// Predicts a plan.
#[must_use]
pub fn predict(cost: &CostModel<'_>, layers: &Layers, plan: &Plan) -> Prediction {
    let tables = Tables::new(cost, plan.layout());
    predict_with(cost, layers, plan, &tables, &mut Simulator::default())
}

/// [`predict`] with tables that were made before.
#[must_use]
pub fn predict_with(
    cost: &CostModel<'_>,
    layers: &Layers,
    plan: &Plan,
    tables: &Tables,
    simulator: &mut Simulator,
) -> Prediction {
    let layout = plan.layout();
    let chunks = chunk_times(layers, plan, tables);
    let parameters = rank_parameters(layers, plan, tables);
    let times = step_times(layout, tables, &chunks, &parameters, simulator);
    let in_flight: Vec<Vec<u32>> =
        in_flight_vectors(shape(layout)).iter().map(|vectors| vectors.concat()).collect();
    let in_flight = |rank: usize| in_flight[rank].as_slice();
    let memory = rank_memory(layers, plan, tables, in_flight);
    let allocated = memory.iter().map(RankMemory::total).max().unwrap_or_default();
    let reserve = cost.reserve();
    let reserved = reserve.reserved(allocated);
    Prediction {
        times,
        interval: cost.interval(layout),
        memory_interval: cost.memory_interval(layout),
        chunks,
        memory,
        off_gpu: off_gpu(cost, layers, plan, tables, &parameters, in_flight),
        allocated,
        reserved,
        device: reserve.device(allocated),
    }
}

/// Whether a plan fits its GPUs and what it keeps off them fits their nodes, without its times. `in_flight` has the states
/// of a rank one after the other: micro-batches by chunk, as [`in_flight_vectors`].
#[must_use]
pub fn fits_with<'a>(
    cost: &CostModel<'_>,
    layers: &Layers,
    plan: &Plan,
    tables: &Tables,
    in_flight: impl Fn(usize) -> &'a [u32] + Copy,
) -> bool {
    let parameters = rank_parameters(layers, plan, tables);
    cost.off_gpu_holds(&off_gpu(cost, layers, plan, tables, &parameters, in_flight))
        && rank_memory(layers, plan, tables, in_flight).iter().all(|rank| rank.total() <= cost.memory_limit())
}

/// The most that the chunks of a rank hold at once, each so much per micro-batch in flight.
fn most_held(states: &[u32], kept: &[Bytes]) -> Bytes {
    let held = |state: &[u32]| kept.iter().zip(state).map(|(&kept, &n)| kept * u64::from(n)).sum();
    states.chunks_exact(kept.len().max(1)).map(held).max().unwrap_or_default()
}

/// Layers of each chunk, by position in the model.
fn chunk_ranges(plan: &Plan) -> impl Iterator<Item = std::ops::Range<usize>> + '_ {
    plan.chunks().iter().scan(0usize, |at, chunk| {
        let from = *at;
        *at += chunk.layers as usize;
        Some(from..*at)
    })
}

fn chunk_times(layers: &Layers, plan: &Plan, tables: &Tables) -> Vec<ChunkTimes> {
    let layout = plan.layout();
    let Tables { cell, sharding, hop } = tables;
    let passes: Vec<[Times; 2]> = cell.layers.iter().map(|layer| layer_passes(sharding, layer)).collect();
    let mut out = Vec::with_capacity(plan.chunks().len());
    for (k, (range, chunk)) in chunk_ranges(plan).zip(plan.chunks()).enumerate() {
        let rank = layout.rank_of_chunk(k as u32);
        let mut c = ChunkTimes { rank, ..ChunkTimes::default() };
        for (i, at) in range.enumerate() {
            let kind = layers.order[at] as usize;
            c.forward = c.forward.plus(&passes[kind][0], 1);
            c.backward = c.backward.plus(&passes[kind][1], 1);
            let mode = match chunk.recompute {
                Recompute::FullBlock(n) if i as u32 >= n => Recompute::None,
                mode => mode,
            };
            c.backward = c.backward.plus(&mode_cost(&cell.layers[kind], mode).extra, 1);
            c.weight_gradient += cell.layers[kind].weight_gradient;
        }
        for end in cell.ends(layout, k as u32) {
            let [forward, backward] = end_passes(sharding, end);
            c.forward = c.forward.plus(&forward, 1);
            c.backward = c.backward.plus(&backward, 1);
            c.weight_gradient += end.weight_gradient;
            if end.further {
                c.backward = c.backward.plus(&further_cost(cell, chunk.recompute).extra, 1);
            }
        }
        // Host time that no layer carries is paid once per rank and micro-batch.
        if (k as u32) < layout.pipeline_parallel {
            c.forward.add(Item::Host, cell.micro_batch_overhead);
        }
        c.messages = hop.busy_of(layout, k as u32);
        out.push(c);
    }
    out
}

/// Local parameters of every pipeline rank.
fn rank_parameters(layers: &Layers, plan: &Plan, tables: &Tables) -> Vec<LocalParameters> {
    let layout = plan.layout();
    let cell = &tables.cell;
    let mut ranks = vec![LocalParameters::default(); layout.pipeline_parallel as usize];
    for (k, range) in chunk_ranges(plan).enumerate() {
        let rank = &mut ranks[layout.rank_of_chunk(k as u32) as usize];
        for at in range {
            *rank = rank.plus(&cell.layers[layers.order[at] as usize].parameters, 1);
        }
        let ends = cell.ends(layout, k as u32).map(|end| &end.parameters);
        for parameters in ends.chain(cell.table_copy(layout, k as u32)) {
            *rank = rank.plus(parameters, 1);
        }
    }
    ranks
}

fn step_times(
    layout: &Layout,
    tables: &Tables,
    chunks: &[ChunkTimes],
    parameters: &[LocalParameters],
    simulator: &mut Simulator,
) -> StepTimes {
    let Tables { sharding, hop, .. } = tables;
    let forward: Vec<Picos> = chunks.iter().map(|c| c.forward.total() + c.messages).collect();
    let backward: Vec<Picos> = chunks.iter().map(|c| c.backward.total() + c.messages).collect();
    let weight: Vec<Picos> = chunks.iter().map(|c| c.weight_gradient).collect();
    let load = Load { forward: &forward, backward: &backward, weight: &weight, hop: hop.latency };
    let makespan = simulator.run(shape(layout), load);

    let micro_batches = u64::from(layout.gradient_accumulation_steps);
    let ranks = layout.pipeline_parallel as usize;
    let mut busy = vec![Picos::ZERO; ranks];
    let mut windows = vec![[Picos::ZERO; 2]; ranks];
    for (k, c) in chunks.iter().enumerate() {
        let r = c.rank as usize;
        busy[r] += (forward[k] + backward[k]) * micro_batches;
        windows[r][0] += c.forward.total();
        windows[r][1] += c.backward.total();
    }
    let (mut gather_wait, mut flush, mut update) = (Picos::ZERO, makespan, Picos::ZERO);
    for r in 0..ranks {
        let once = once_per_step(sharding, &parameters[r]);
        let gather = exposed(
            once.gather,
            sharding.exposed_floor_of(r),
            sharding.hidden_share.1,
            sharding.interference,
            windows[r][0],
        );
        let reduce = exposed(
            once.reduce,
            sharding.exposed_floor_of(r),
            sharding.hidden_share.0,
            sharding.interference,
            windows[r][1],
        );
        // A rank that starts late gathers while it waits; one that ends early reduces while others work.
        gather_wait = gather_wait.max(gather.saturating_sub(simulator.starts[r]));
        flush = flush.max(simulator.ends[r] + reduce);
        update = update.max(once.update);
    }

    let busiest = busiest(&busy);
    let mut times = StepTimes::default();
    for c in chunks.iter().filter(|c| c.rank as usize == busiest) {
        let passes = c.forward.plus(&c.backward, 1);
        for (into, &item) in times.0.iter_mut().zip(&passes.0) {
            *into += item * micro_batches;
        }
        times.0[StepItem::PipelineMessages as usize] += c.messages * (2 * micro_batches);
    }
    times.0[StepItem::PipelineBubble as usize] = makespan - busy[busiest];
    times.0[StepItem::WeightGather as usize] = gather_wait;
    times.0[StepItem::GradientReduction as usize] = flush - makespan;
    times.0[StepItem::OptimizerUpdate as usize] = update;
    times.0[StepItem::StepOverhead as usize] = sharding.step_overhead;
    times.0[StepItem::Stragglers as usize] = times.total().scale((sharding.jitter - 1.0).max(0.0));
    times
}

/// The first of the ranks with the most work.
fn busiest(work: &[Picos]) -> usize {
    (0..work.len()).max_by_key(|&r| (work[r], work.len() - r)).unwrap_or(0)
}

/// What the fullest node keeps off its GPUs. Ranks of a pipeline stage are neighbours.
fn off_gpu<'a>(
    cost: &CostModel<'_>,
    layers: &Layers,
    plan: &Plan,
    tables: &Tables,
    parameters: &[LocalParameters],
    in_flight: impl Fn(usize) -> &'a [u32],
) -> OffGpu {
    let layout = plan.layout();
    if layout.offload == Offload::NONE {
        return OffGpu::default();
    }
    let moved: Vec<Bytes> = chunk_ranges(plan)
        .zip(plan.chunks())
        .enumerate()
        .map(|(k, (range, chunk))| {
            let of = |(i, at): (usize, usize)| {
                let layer = &tables.cell.layers[layers.order[at] as usize];
                match chunk.recompute {
                    // Layers that are recomputed whole leave nothing but the input of their group.
                    Recompute::FullUniform(n) if i as u32 % n == 0 => layer.full_offloaded.bytes,
                    Recompute::FullUniform(_) => Bytes::ZERO,
                    Recompute::FullBlock(n) if (i as u32) < n => layer.full_offloaded.bytes,
                    _ => layer.offloaded,
                }
            };
            let further = tables.cell.further.as_ref();
            let further = further.filter(|_| tables.cell.ends(layout, k as u32).any(|end| end.further));
            let further = further.map(|further| {
                let layer = &tables.cell.layers[further.kind];
                let recompute = chunk.recompute.of_modules(further.recomputed);
                let whole = matches!(recompute, Recompute::FullUniform(_));
                (if whole { Bytes::ZERO } else { layer.offloaded }) * further.modules
            });
            range.enumerate().map(of).chain(further).sum()
        })
        .collect();
    let activations = |r: usize| -> Bytes {
        if !layout.offload.activations {
            return Bytes::ZERO;
        }
        let own = (0..moved.len()).filter(|&k| layout.rank_of_chunk(k as u32) as usize == r);
        most_held(in_flight(r), &own.map(|k| moved[k]).collect::<Vec<_>>())
    };
    let ranks: Vec<OffGpu> = parameters
        .iter()
        .enumerate()
        .map(|(r, parameters)| {
            let bytes = |rate: fn(&super::PerParameter) -> f64| {
                let classes = tables.sharding.classes.iter().zip(&parameters.0);
                Bytes::from_f64(classes.map(|(class, &n)| n as f64 * rate(class)).sum())
            };
            let (states, drives) = (bytes(|class| class.host), bytes(|class| class.nvme));
            OffGpu { states, activations: activations(r), drives }
        })
        .collect();
    let (gpus, node) = (layout.gpus(), u64::from(cost.cluster().gpus_per_node.max(1)));
    let stage = (gpus / ranks.len() as u64).max(1);
    let mut fullest = OffGpu::default();
    for first in (0..gpus).step_by(node as usize) {
        let mut sum = OffGpu::default();
        for gpu in first..(first + node).min(gpus) {
            let rank = &ranks[((gpu / stage) as usize).min(ranks.len() - 1)];
            sum.states += rank.states;
            sum.activations += rank.activations;
            sum.drives += rank.drives;
        }
        let drives = fullest.drives.max(sum.drives);
        if sum.host() > fullest.host() {
            fullest = sum;
        }
        fullest.drives = drives;
    }
    fullest
}

fn rank_memory<'a>(
    layers: &Layers,
    plan: &Plan,
    tables: &Tables,
    in_flight: impl Fn(usize) -> &'a [u32],
) -> Vec<RankMemory> {
    let layout = plan.layout();
    let Tables { cell, sharding, hop } = tables;
    let chunks = plan.chunks().len();
    let v = layout.virtual_stages as usize;
    // What each chunk keeps per micro-batch in flight.
    let mut kept = vec![Bytes::ZERO; chunks];
    let mut ranks = vec![RankMemory::default(); layout.pipeline_parallel as usize];
    let mut gathered = vec![Bytes::ZERO; ranks.len()];
    let mut shapes: Vec<Vec<(u64, u64)>> = vec![Vec::new(); ranks.len()];
    for (k, (range, chunk)) in chunk_ranges(plan).zip(plan.chunks()).enumerate() {
        let r = layout.rank_of_chunk(k as u32) as usize;
        for (i, at) in range.enumerate() {
            let layer = &cell.layers[layers.order[at] as usize];
            let mode = match chunk.recompute {
                Recompute::FullBlock(n) if i as u32 >= n => Recompute::None,
                mode => mode,
            };
            let cost = mode_cost(layer, mode);
            // Under full, uniform, n one input is kept for n layers.
            if !matches!(mode, Recompute::FullUniform(n) if i as u32 % n != 0) {
                kept[k] += cost.kept;
            }
            ranks[r].transient = ranks[r].transient.max(cost.transient);
            gathered[r] = gathered[r].max(gathered_bytes(sharding, &layer.parameters));
            ranks[r].add_states(sharding, &layer.parameters);
            shapes[r].extend(&layer.weight_shapes);
        }
        for end in cell.ends(layout, k as u32) {
            kept[k] += end.kept;
            ranks[r].transient = ranks[r].transient.max(end.transient);
            if end.further {
                let cost = further_cost(cell, chunk.recompute);
                kept[k] += cost.kept;
                ranks[r].transient = ranks[r].transient.max(cost.transient);
            }
            gathered[r] = gathered[r].max(gathered_bytes(sharding, &end.parameters));
            ranks[r].add_states(sharding, &end.parameters);
            shapes[r].extend(&end.weight_shapes);
        }
        if let Some(copy) = cell.table_copy(layout, k as u32) {
            ranks[r].add_states(sharding, copy);
        }
        ranks[r].buffers += hop.further_buffers_of(layout, k as u32);
    }
    let parameters = rank_parameters(layers, plan, tables);
    for (r, rank) in ranks.iter_mut().enumerate() {
        let own: Vec<usize> = (0..chunks).filter(|&k| layout.rank_of_chunk(k as u32) as usize == r).collect();
        debug_assert_eq!(own.len(), v);
        rank.activations = most_held(in_flight(r), &own.iter().map(|&k| kept[k]).collect::<Vec<_>>());
        // Staging at the update comes when the activations are gone: the larger of both counts.
        let staging = sharding.staging(&parameters[r]);
        rank.transient = rank.transient.max(staging.saturating_sub(rank.activations));
        shapes[r].sort_unstable();
        shapes[r].dedup();
        let pool: Bytes = shapes[r].iter().map(|&(rows, columns)| Bytes(2 * rows * columns)).sum();
        rank.pools = pool + gathered[r];
        rank.buffers += cell.buffers + hop.buffers;
    }
    ranks
}
