//! What a survey has seen: how many plans, how many fit, and the best for every value of every axis.

use std::collections::BTreeMap;

use super::Alike;
use crate::plan::{Layout, Recompute};
use crate::units::{Bytes, Picos};

/// A choice of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Axis {
    /// TP.
    TensorParallel,
    /// PP.
    PipelineParallel,
    /// VPP.
    VirtualStages,
    /// CP.
    ContextParallel,
    /// EP.
    ExpertParallel,
    /// ETP.
    ExpertTensorParallel,
    /// Sequences per micro-batch.
    MicroBatchSize,
    /// ZeRO stage.
    ZeroStage,
    /// Ranks that share the states.
    ShardGroup,
    /// What is recomputed, by kind: nothing, modules, groups of whole layers, the first layers of every chunk.
    Recompute,
    /// Order of passes.
    Schedule,
    /// Overlap of tensor-parallel communication.
    TensorOverlap,
    /// Overlap of data-parallel communication.
    DataOverlap,
    /// Overlap of expert-parallel communication.
    ExpertOverlap,
    /// How tokens reach experts.
    Dispatcher,
    /// How attention crosses context-parallel ranks.
    ContextComm,
    /// CUDA graphs.
    CudaGraphs,
}

/// Kinds of recomputation, by value of [`Axis::Recompute`].
pub const RECOMPUTE_KINDS: [&str; 4] = ["none", "selective", "full:uniform", "full:block"];

fn kind_of(recompute: Recompute) -> usize {
    match recompute {
        Recompute::None => 0,
        Recompute::Selective(_) => 1,
        Recompute::FullUniform(_) => 2,
        Recompute::FullBlock(_) => 3,
    }
}

/// Every axis but recomputation, with the value that a layout has: a degree, or the number of a choice.
fn values(l: &Layout) -> [(Axis, u32); 16] {
    [
        (Axis::TensorParallel, l.tensor_parallel),
        (Axis::PipelineParallel, l.pipeline_parallel),
        (Axis::VirtualStages, l.virtual_stages),
        (Axis::ContextParallel, l.context_parallel),
        (Axis::ExpertParallel, l.expert_parallel),
        (Axis::ExpertTensorParallel, l.expert_tensor_parallel),
        (Axis::MicroBatchSize, l.micro_batch_size),
        (Axis::ZeroStage, u32::from(l.zero_stage)),
        (Axis::ShardGroup, l.shard_group),
        (Axis::Schedule, l.schedule as u32),
        (Axis::TensorOverlap, u32::from(l.tensor_overlap)),
        (Axis::DataOverlap, u32::from(l.data_overlap)),
        (Axis::ExpertOverlap, u32::from(l.expert_overlap)),
        (Axis::Dispatcher, l.dispatcher.map_or(u32::MAX, |dispatcher| dispatcher as u32)),
        (Axis::ContextComm, if l.context_parallel > 1 { l.context_comm as u32 } else { u32::MAX }),
        (Axis::CudaGraphs, l.cuda_graphs as u32),
    ]
}

/// The fastest plan of a set that fits; the smaller of equals.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Best {
    /// Its step.
    pub step: Picos,
    /// Its layout.
    pub layout: Layout,
    /// What it recomputes.
    pub recompute: Recompute,
}

/// Plans that share a value.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Share {
    /// How many.
    pub plans: u64,
    /// Of them those that fit.
    pub fitting: u64,
    /// The best that fits.
    pub best: Option<Best>,
}

impl Share {
    fn add(&mut self, other: &Self) {
        self.plans += other.plans;
        self.fitting += other.fitting;
        if let Some(best) = &other.best
            && self.best.as_ref().is_none_or(|own| best < own)
        {
            self.best = Some(*best);
        }
    }
}

/// Bins of step times per doubling, as a power of two: 0.3 % each.
const BINS: u32 = 8;

/// What has been seen.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tally {
    /// All plans.
    pub all: Share,
    /// By axis and value.
    pub shares: BTreeMap<(Axis, u32), Share>,
    /// Plans that fit by bin of their step time.
    bins: BTreeMap<u64, u64>,
    /// Layouts that a rule of the framework forbids.
    pub refused: u64,
    /// [`super::LeftOut::without_closed_form`].
    pub without_closed_form: u64,
}

/// A survey.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Survey {
    /// What it saw.
    pub tally: Tally,
    /// Groups of the space.
    pub groups: usize,
    /// Groups that were looked at before it was stopped.
    pub seen: usize,
}

fn bin(step: Picos) -> u64 {
    // The exponent and the first bits behind it.
    (step.0 as f64).to_bits() >> (52 - BINS)
}

impl Tally {
    pub(super) fn add(&mut self, alike: &Alike, limit: Bytes) {
        let mut kinds = [Share::default(); RECOMPUTE_KINDS.len()];
        for (&recompute, plan) in alike.modes.iter().zip(alike.plans) {
            let kind = &mut kinds[kind_of(recompute)];
            kind.plans += 1;
            if plan.memory.total() > limit {
                continue;
            }
            kind.fitting += 1;
            let step = plan.times.total();
            if kind
                .best
                .is_none_or(|best| step < best.step || step == best.step && recompute < best.recompute)
            {
                kind.best = Some(Best { step, layout: alike.layout, recompute });
            }
            *self.bins.entry(bin(step)).or_default() += 1;
        }
        let mut whole = Share::default();
        for (value, kind) in kinds.iter().enumerate().filter(|(_, kind)| kind.plans > 0) {
            whole.add(kind);
            self.shares.entry((Axis::Recompute, value as u32)).or_default().add(kind);
        }
        self.all.add(&whole);
        for key in values(&alike.layout) {
            self.shares.entry(key).or_default().add(&whole);
        }
    }

    pub(super) fn with(mut self, other: Self) -> Self {
        self.all.add(&other.all);
        for (key, share) in &other.shares {
            self.shares.entry(*key).or_default().add(share);
        }
        for (bin, count) in &other.bins {
            *self.bins.entry(*bin).or_default() += count;
        }
        self.refused += other.refused;
        self.without_closed_form += other.without_closed_form;
        self
    }

    /// Plans that fit and take at most `factor` times as long as the best, to a third of a percent.
    #[must_use]
    pub fn within(&self, factor: f64) -> u64 {
        let Some(best) = self.all.best else { return 0 };
        let last = bin(best.step.scale(factor));
        self.bins.range(..=last).map(|(_, count)| count).sum()
    }

    /// The values of an axis that occur, with their plans.
    pub fn of(&self, axis: Axis) -> impl Iterator<Item = (u32, &Share)> {
        self.shares.range((axis, 0)..=(axis, u32::MAX)).map(|((_, value), share)| (*value, share))
    }
}
