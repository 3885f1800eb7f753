//! Seconds and bytes of a plan, itemised.
//!
//! The work is factorised (see ARCHITECTURE.md): a *cell* — the part of a layout that the cost of one
//! layer depends on — is priced once per layer kind ([`CellCosts`]); *sharding* — what the state of
//! one parameter costs in bytes and seconds — is priced once per data-parallel arrangement
//! ([`Sharding`]); a plan is then integer arithmetic over those tables ([`step`]).

pub mod advice;
pub mod compute;
pub mod goodput;
pub mod model;
pub mod money;
pub mod network;
pub mod roofline;
pub mod scaling;
pub mod schedule;
pub mod step;

use serde::Serialize;

use crate::layers::Run;
use crate::plan::{ContextComm, CudaGraphs, Dispatcher, Layout, Module, Offload};
use crate::units::{Bytes, Picos};

/// Kinds of time that a layer (or an end of the model) spends on one micro-batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
#[repr(usize)]
pub enum Item {
    /// Matrix products of dense parts, the head included.
    Gemm = 0,
    /// Core attention and state-space scans.
    Attention,
    /// Norms, residuals, activations, rotary embeddings, loss, quantisation.
    ElementWise,
    /// Grouped matrix products and activations of routed experts.
    Experts,
    /// Router, permutation and un-permutation.
    Routing,
    /// Time in which the GPU waits for the host.
    Host,
    /// Exposed tensor-parallel communication.
    TensorParallel,
    /// Exposed context-parallel communication.
    ContextParallel,
    /// Exposed expert-parallel communication.
    ExpertParallel,
    /// Exposed gathers and reductions of sharded weights (ZeRO-3, or ZeRO-2 per micro-batch).
    Sharding,
    /// Recomputation in the backward pass.
    Recompute,
    /// Exposed transfers to and from the host.
    Offload,
}

/// Number of [`Item`]s.
pub const ITEMS: usize = 12;

/// Itemised time of one micro-batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Times(pub [Picos; ITEMS]);

impl Times {
    /// Sum of all items.
    #[must_use]
    pub fn total(&self) -> Picos {
        self.0.iter().copied().sum()
    }
    /// One item.
    #[must_use]
    pub fn get(&self, item: Item) -> Picos {
        self.0[item as usize]
    }
    /// Adds to one item.
    pub fn add(&mut self, item: Item, time: Picos) {
        self.0[item as usize] += time;
    }
    /// The sum of two, scaled by a count of layers.
    #[must_use]
    pub fn plus(&self, other: &Self, count: u64) -> Self {
        let mut sum = *self;
        for (into, from) in sum.0.iter_mut().zip(&other.0) {
            *into += *from * count;
        }
        sum
    }
}

/// The part of a layout that the cost of one layer depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CellKey {
    /// TP.
    pub tensor_parallel: u32,
    /// CP.
    pub context_parallel: u32,
    /// EP.
    pub expert_parallel: u32,
    /// ETP.
    pub expert_tensor_parallel: u32,
    /// Sequences per micro-batch.
    pub micro_batch_size: u32,
    /// SP.
    pub sequence_parallel: bool,
    /// How attention crosses context-parallel ranks.
    pub context_comm: ContextComm,
    /// How tokens reach experts.
    pub dispatcher: Option<Dispatcher>,
    /// Tensor-parallel overlap.
    pub tensor_overlap: bool,
    /// Expert-parallel overlap.
    pub expert_overlap: bool,
    /// Shared experts beside the exchange.
    pub shared_overlap: bool,
    /// CUDA graphs.
    pub cuda_graphs: CudaGraphs,
    /// Offload.
    pub offload: Offload,
}

impl From<&Layout> for CellKey {
    fn from(l: &Layout) -> Self {
        Self {
            tensor_parallel: l.tensor_parallel,
            context_parallel: l.context_parallel,
            expert_parallel: l.expert_parallel,
            expert_tensor_parallel: l.expert_tensor_parallel,
            micro_batch_size: l.micro_batch_size,
            sequence_parallel: l.sequence_parallel,
            context_comm: l.context_comm,
            dispatcher: l.dispatcher,
            tensor_overlap: l.tensor_overlap,
            expert_overlap: l.expert_overlap,
            shared_overlap: l.shared_overlap,
            cuda_graphs: l.cuda_graphs,
            offload: l.offload,
        }
    }
}

/// How a local parameter's states are kept and updated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub enum StateClass {
    /// Weights of dense layers, in the low-precision recipe where there is one.
    Dense = 0,
    /// Weights of routed experts: sharded over expert-data-parallel ranks.
    Expert,
    /// Embedding, head and everything that stays in BF16 and in AdamW.
    Ends,
    /// Frozen base weights of a LoRA job.
    Frozen,
}

/// Parameters on one rank, by [`StateClass`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LocalParameters(pub [u64; 4]);

impl LocalParameters {
    /// Those that gradients change.
    #[must_use]
    pub fn trained(&self) -> u64 {
        [StateClass::Dense, StateClass::Expert, StateClass::Ends]
            .iter()
            .map(|&class| self.0[class as usize])
            .sum()
    }

    /// The sum of two, the second `count` times.
    #[must_use]
    pub fn plus(&self, other: &Self, count: u64) -> Self {
        let mut sum = *self;
        for (into, from) in sum.0.iter_mut().zip(&other.0) {
            *into += from * count;
        }
        sum
    }
}

/// One module that selective recomputation can drop from a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ModuleCost {
    /// Which.
    pub module: Module,
    /// Extra backward time per micro-batch.
    pub extra: Times,
    /// Bytes that need not be kept per micro-batch.
    pub saved: Bytes,
}

/// The input of layers that are recomputed together, kept in host memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OffloadedInput {
    /// Bytes per micro-batch.
    pub bytes: Bytes,
    /// Time on the link, one way.
    pub moved: Picos,
    /// How much of that one layer's forward pass hides on the way down.
    pub hidden: Picos,
}

/// One layer kind in one cell, per micro-batch on one rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayerCost {
    /// Forward pass.
    pub forward: Times,
    /// Backward pass without recomputation.
    pub backward: Times,
    /// The part of `backward` that computes weight gradients: zero-bubble schedules may delay it.
    pub weight_gradient: Picos,
    /// Bytes kept for the backward pass without recomputation.
    pub kept: Bytes,
    /// What selective recomputation can drop, each on its own; effects add up.
    pub modules: Vec<ModuleCost>,
    /// Extra backward time when the whole layer is recomputed, without what moves to host memory and back.
    pub full_extra: Times,
    /// Bytes kept when the whole layer is recomputed: its input.
    pub full_kept: Bytes,
    /// Bytes kept in host memory for the backward pass without recomputation.
    pub offloaded: Bytes,
    /// What is kept in host memory when the whole layer is recomputed: the input of a group of such layers.
    pub full_offloaded: OffloadedInput,
    /// Parameters on this rank.
    pub parameters: LocalParameters,
    /// Working set of its backward pass beyond what is kept.
    pub transient: Bytes,
    /// Its backward pass runs beside the forward pass of a layer of another micro-batch.
    pub merged: bool,
    /// The same where layers are recomputed together, taken as if all of them kept as much as this one:
    /// largest over the kinds that may stand in the group and keep no more.
    pub group_transient: Bytes,
    /// Shapes (rows, columns) of its linear weights on this rank: their dummy gradients are pooled.
    pub weight_shapes: Vec<(u64, u64)>,
}

/// Embedding, head or multi-token-prediction modules, per micro-batch on one rank.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EndCost {
    /// Forward pass.
    pub forward: Times,
    /// Backward pass.
    pub backward: Times,
    /// The part of `backward` that computes weight gradients.
    pub weight_gradient: Picos,
    /// Bytes kept per micro-batch in flight.
    pub kept: Bytes,
    /// Bytes needed once, at the peak (logits and their softmax).
    pub transient: Bytes,
    /// Multi-token-prediction modules are among it: what they keep, need at their peak and recompute is that of
    /// [`CellCosts::further`], and not in here.
    pub further: bool,
    /// Parameters on this rank.
    pub parameters: LocalParameters,
    /// Shapes of linear weights, as in [`LayerCost::weight_shapes`].
    pub weight_shapes: Vec<(u64, u64)>,
}

/// Multi-token-prediction modules, as far as it depends on what layers recompute.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Further {
    /// Kind of the layer in each, an index into [`CellCosts::layers`].
    pub kind: usize,
    /// How many.
    pub modules: u64,
    /// Whether they recompute as layers do.
    pub recomputed: bool,
    /// Time of recomputing what one has beside its layer: norms, concatenation and projection.
    pub full_extra: Times,
    /// Bytes that one keeps beside its layer and the stream that it gets: the embedding, both normalised and in a row, and
    /// the last norm's input.
    pub kept: Bytes,
    /// Bytes that one keeps beside that stream if it is recomputed whole: the embedding.
    pub full_kept: Bytes,
}

/// All layer kinds and both ends in one cell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CellCosts {
    /// By index of [`crate::layers::Layers::kinds`].
    pub layers: Vec<LayerCost>,
    /// Before the first layer.
    pub embedding: EndCost,
    /// After the last layer: norm, head, loss, and multi-token-prediction modules.
    pub head: EndCost,
    /// Where the model has such modules: the modules, and the head with the losses of all predictions, on chunks of
    /// their own.
    pub standalone: Option<[EndCost; 2]>,
    /// These modules, where the model has some.
    pub further: Option<Further>,
    /// What a stage with the head stores when embeddings are tied, and one with multi-token prediction, which needs the
    /// input embedding, unless it has the embedding.
    pub tied_copy: LocalParameters,
    /// Whether embedding and head are one matrix.
    pub tied: bool,
    /// Host time per micro-batch and rank that no layer carries.
    pub micro_batch_overhead: Picos,
    /// Bytes that every rank holds whatever its layers: communication buffers of the dispatcher.
    pub buffers: Bytes,
}

impl CellCosts {
    /// Parameters of a rank that holds all layers and both ends.
    #[must_use]
    pub fn parameters(&self, runs: &[Run]) -> LocalParameters {
        let layers = runs.iter().map(|run| (&self.layers[usize::from(run.kind)].parameters, run.count));
        let ends = [(&self.embedding.parameters, 1), (&self.head.parameters, 1)];
        layers.chain(ends).fold(LocalParameters::default(), |sum, (of, n)| sum.plus(of, u64::from(n)))
    }

    /// What stands on a chunk beside layers.
    pub fn ends(&self, layout: &Layout, chunk: u32) -> impl Iterator<Item = &EndCost> {
        let standalone = layout.mtp_chunk().zip(self.standalone.as_ref());
        let (mtp, head) = match standalone {
            Some((at, [mtp, head])) => ((chunk == at).then_some(mtp), head),
            None => (None, &self.head),
        };
        let first = (chunk == 0).then_some(&self.embedding);
        let last = (chunk + 1 == layout.chunk_count()).then_some(head);
        [first, mtp, last].into_iter().flatten()
    }

    /// The copy of the input table that a chunk brings to its rank, if it does.
    #[must_use]
    pub fn table_copy(&self, layout: &Layout, chunk: u32) -> Option<&LocalParameters> {
        let uses = match layout.mtp_chunk().filter(|_| self.standalone.is_some()) {
            Some(mtp) if chunk == mtp => true,
            mtp => chunk + 1 == layout.chunk_count() && (self.tied || mtp.is_none()),
        };
        let apart = layout.rank_of_chunk(chunk) != layout.rank_of_chunk(0);
        (uses && apart).then_some(&self.tied_copy)
    }
}

/// States of one class: bytes and seconds for every local parameter.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct PerParameter {
    /// Bytes of weights held between uses.
    pub weights: f64,
    /// Bytes of gradients.
    pub gradients: f64,
    /// Bytes of master weights and moments.
    pub optimizer: f64,
    /// Picoseconds of the gradient reduction, once per step.
    pub reduce: f64,
    /// Picoseconds of the weight gather, once per step.
    pub gather: f64,
    /// Picoseconds of the update, once per step.
    pub update: f64,
    /// Picoseconds of gathering sharded weights for one forward pass of one micro-batch (ZeRO-3).
    pub micro_gather: f64,
    /// Picoseconds of gathering (again) and reducing in one backward pass of one micro-batch.
    pub micro_reduce: f64,
    /// Bytes of a gathered unit, per parameter of the largest unit (ZeRO-3).
    pub gathered: f64,
    /// Bytes in the memory of the host.
    pub host: f64,
    /// Bytes on local drives.
    pub nvme: f64,
    /// Bytes of staging at the update: the peak of a rank is its states plus this or plus activations and transients,
    /// whichever is larger.
    pub staging: f64,
}

/// What the states of the parameters cost in one data-parallel arrangement.
#[derive(Debug, Clone, PartialEq)]
pub struct Sharding {
    /// By [`StateClass`].
    pub classes: [PerParameter; 4],
    /// Fixed time of the update and of everything else that happens once per step.
    pub step_overhead: Picos,
    /// Latency of the reductions and gathers of one step.
    pub latency: (Picos, Picos),
    /// Share of the reduction's and of the gather's time that at least stays exposed (last bucket), on the first rank of
    /// the pipeline and on others.
    pub exposed_floor: (f64, f64),
    /// Share of the last backward (first forward) pass under which reduction (gather) can hide.
    pub hidden_share: (f64, f64),
    /// Slow-down of compute by overlapped data-parallel traffic, as a share of that traffic.
    pub interference: f64,
    /// How ZeRO-3 traffic of a layer joins its computation:
    /// `max(compute * (1 + slow * min(1, comm/compute)), comm + tail * compute)`.
    pub micro_overlap: Option<MicroOverlap>,
    /// Most parameters of a unit that are gathered at a time.
    pub most_gathered: f64,
    /// Factor on the whole step: jitter and stragglers at this scale.
    pub jitter: f64,
}

impl PerParameter {
    /// Whether there is traffic during the passes.
    #[must_use]
    pub fn in_passes(&self) -> bool {
        self.micro_gather > 0.0 || self.micro_reduce > 0.0
    }
}

impl Sharding {
    /// Bytes of staging at the update of so many parameters of each class.
    #[must_use]
    pub fn staging(&self, parameters: &LocalParameters) -> Bytes {
        let classes = self.classes.iter().zip(&parameters.0);
        Bytes::from_f64(classes.map(|(class, &count)| class.staging * count as f64).sum())
    }

    /// Share of the traffic of a pipeline rank that at least stays exposed.
    #[must_use]
    pub fn exposed_floor_of(&self, rank: usize) -> f64 {
        if rank == 0 { self.exposed_floor.0 } else { self.exposed_floor.1 }
    }

    /// States that take no more bytes than any of `all` and cause no traffic during the passes.
    #[must_use]
    pub fn least<'a>(all: impl Iterator<Item = &'a Self>) -> Self {
        let mut least: Option<Self> = None;
        for one in all {
            let least = least.get_or_insert_with(|| one.clone());
            for (into, from) in least.classes.iter_mut().zip(&one.classes) {
                into.weights = into.weights.min(from.weights);
                into.gradients = into.gradients.min(from.gradients);
                into.optimizer = into.optimizer.min(from.optimizer);
                (into.gathered, into.micro_gather, into.micro_reduce) = (0.0, 0.0, 0.0);
            }
            least.micro_overlap = None;
        }
        least.unwrap_or_else(|| Self {
            classes: [PerParameter::default(); 4],
            step_overhead: Picos::ZERO,
            latency: (Picos::ZERO, Picos::ZERO),
            exposed_floor: (0.0, 0.0),
            hidden_share: (0.0, 0.0),
            interference: 0.0,
            micro_overlap: None,
            most_gathered: f64::INFINITY,
            jitter: 1.0,
        })
    }

    /// States that take no fewer bytes of a GPU than any of `all`, and what else the first of them says; none
    /// if any causes traffic during the passes, or if there is none.
    #[must_use]
    pub fn most<'a>(all: impl Iterator<Item = &'a Self>) -> Option<Self> {
        let mut most: Option<Self> = None;
        for one in all {
            if one.classes.iter().any(PerParameter::in_passes) {
                return None;
            }
            let most = most.get_or_insert_with(|| one.clone());
            for (into, from) in most.classes.iter_mut().zip(&one.classes) {
                into.weights = into.weights.max(from.weights);
                into.gradients = into.gradients.max(from.gradients);
                into.optimizer = into.optimizer.max(from.optimizer);
                into.gathered = into.gathered.max(from.gathered);
            }
            most.most_gathered = most.most_gathered.max(one.most_gathered);
        }
        most
    }
}

/// Overlap of per-micro-batch weight traffic with computation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MicroOverlap {
    /// Slow-down of computation under full overlap.
    pub slow: f64,
    /// Share of computation that cannot hide communication.
    pub tail: f64,
}

/// A pipeline message between neighbouring ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Hop {
    /// Latency between the end of an operation and the start of its successor on the neighbour.
    pub latency: Picos,
    /// Time for which a message keeps both neighbours busy (synchronous sends).
    pub busy: Picos,
    /// How much longer the message does that which carries the streams of several predictions to the head.
    pub further: Picos,
    /// Bytes of the send and receive buffers of a rank.
    pub buffers: Bytes,
    /// How many more the ranks of that message have.
    pub further_buffers: Bytes,
}

impl Hop {
    /// Bytes of buffers beyond [`Hop::buffers`] that a chunk brings to its rank.
    #[must_use]
    pub fn further_buffers_of(&self, layout: &Layout, chunk: u32) -> Bytes {
        let at_an_end = |from: u32| chunk == from || chunk == from + 1;
        if layout.mtp_chunk().is_some_and(at_an_end) { self.further_buffers } else { Bytes::ZERO }
    }

    /// Time for which messages keep a chunk's rank busy in each of its passes.
    #[inline]
    #[must_use]
    pub fn busy_of(&self, layout: &Layout, chunk: u32) -> Picos {
        let rank = layout.rank_of_chunk(chunk);
        let crossed = |after: u32| {
            let further = if layout.mtp_chunk() == Some(after) { self.further } else { Picos::ZERO };
            self.busy + further
        };
        let before = chunk.checked_sub(1).filter(|&before| layout.rank_of_chunk(before) != rank);
        let next = chunk + 1;
        let behind = (next < layout.chunk_count() && layout.rank_of_chunk(next) != rank).then_some(chunk);
        before.into_iter().chain(behind).map(crossed).sum()
    }
}
