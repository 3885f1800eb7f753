//! What the kinds of chunks and ranks of an outline cost in one cell: sums over layers, made once and shared by all
//! plans of the cell.

use super::outline::{ChunkKind, Outline, RankKind};
use crate::cost::step::{
    ModeCost, RankMemory, end_passes, exposed, further_cost, gathered_bytes, layer_passes, mode_cost,
    once_per_step, state_bytes,
};
use crate::cost::{CellCosts, EndCost, Hop, Item, LocalParameters, Sharding, Times};
use crate::plan::Recompute;
use crate::units::{Bytes, Picos};

/// Passes of a kind of ranks without recomputation, one micro-batch.
#[derive(Debug, Clone, Default)]
pub(super) struct RankBase {
    /// All items of both passes.
    pub items: Times,
    /// Forward passes, without messages.
    pub forward: Picos,
    /// Backward passes, without messages.
    pub backward: Picos,
    /// The part of the backward passes that computes weight gradients.
    pub weight: Picos,
    /// Messages of both passes that keep the rank busy.
    pub messages: Picos,
    /// When the first of the ranks starts.
    pub start: Picos,
    /// By how much it ends before the last rank does, without recomputation.
    pub early: Picos,
}

/// Passes without recomputation.
#[derive(Debug, Clone, Default)]
pub(super) struct Bases {
    /// Of every kind of ranks.
    pub ranks: Vec<RankBase>,
    /// Both passes of every kind of chunks, messages included.
    pub chunks: Vec<Picos>,
}

impl RankBase {
    /// Both passes with their messages.
    pub(super) fn total(&self) -> Picos {
        self.forward + self.backward + self.messages
    }
}

/// What a way to recompute adds to a kind of ranks.
#[derive(Debug, Clone, Default)]
pub(super) struct RankMode {
    /// Extra items of the backward passes, one micro-batch.
    pub extra: Times,
    /// Their sum.
    pub total: Picos,
    /// Extra time of the first chunks of the ranks before.
    pub early: Picos,
    /// Activations of all micro-batches in flight.
    pub activations: Bytes,
    /// Largest working set.
    pub transient: Bytes,
}

/// What a kind of ranks holds in one cell.
#[derive(Debug, Clone, Default)]
pub(super) struct RankContents<'c> {
    /// Layers by kind.
    layers: Vec<u64>,
    /// Embedding and head.
    ends: Vec<&'c EndCost>,
    /// Parameters of all of that, and of tied weights.
    parameters: LocalParameters,
    first: bool,
    tied: bool,
    /// Pooled dummy gradients.
    pool: Bytes,
}

/// States of a kind of ranks in one sharding.
#[derive(Debug, Clone, Default)]
pub(super) struct RankStates {
    /// Memory but activations and working set.
    pub memory: RankMemory,
    /// Its sum.
    pub held: Bytes,
    /// Gather of a step, as far as nothing hides it.
    pub gather: Picos,
    /// Reduction of a step.
    pub reduce: Reduction,
    /// Update of a step.
    pub update: Picos,
    /// Bytes of staging at the update.
    pub staging: Bytes,
}

/// Traffic of which computation hides a part.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Reduction {
    traffic: Picos,
    /// What stays exposed at least.
    floor: Picos,
    /// What it slows computation down by.
    interference: Picos,
    hidden: f64,
}

impl Reduction {
    fn new(traffic: Picos, share: f64, sharding: &Sharding) -> Self {
        Self {
            traffic,
            floor: traffic.scale(share),
            interference: traffic.scale(sharding.interference),
            hidden: sharding.hidden_share.0,
        }
    }

    /// [`crate::cost::step::exposed`] under so much computation.
    pub(super) fn exposed(&self, window: Picos) -> Picos {
        if self.hidden <= 0.0 || self.traffic == Picos::ZERO {
            return self.traffic;
        }
        self.traffic.saturating_sub(window.scale(self.hidden)).max(self.floor) + self.interference
    }
}

fn ends<'c>(chunk: &ChunkKind, cell: &'c CellCosts) -> impl Iterator<Item = &'c EndCost> {
    [chunk.first.then_some(&cell.embedding), chunk.last.then_some(&cell.head)].into_iter().flatten()
}

/// Passes of every kind of ranks.
pub(super) fn bases(outline: &Outline, cell: &CellCosts, sharding: &Sharding, hop: Hop) -> Bases {
    let passes: Vec<[Times; 2]> = cell.layers.iter().map(|layer| layer_passes(sharding, layer)).collect();
    let ends_passes = |end: &EndCost| end_passes(sharding, end);
    let chunks: Vec<([Times; 2], Picos, Picos)> = outline
        .chunks
        .iter()
        .map(|chunk| {
            let (mut both, mut weight) = ([Times::default(); 2], Picos::ZERO);
            for ((layer, [forward, backward]), &count) in cell.layers.iter().zip(&passes).zip(&chunk.counts) {
                both[0] = both[0].plus(forward, count);
                both[1] = both[1].plus(backward, count);
                weight += layer.weight_gradient * count;
            }
            for end in ends(chunk, cell) {
                let [forward, backward] = ends_passes(end);
                both[0] = both[0].plus(&forward, 1);
                both[1] = both[1].plus(&backward, 1);
                weight += end.weight_gradient;
            }
            if chunk.pays_host {
                both[0].add(Item::Host, cell.micro_batch_overhead);
            }
            (both, weight, hop.busy * chunk.messages)
        })
        .collect();
    let of = |rank: &RankKind| {
        let mut base = RankBase::default();
        for &(kind, count) in &rank.chunks {
            let (both, weight, messages) = &chunks[kind];
            base.items = base.items.plus(&both[0], count).plus(&both[1], count);
            base.forward += both[0].total() * count;
            base.backward += both[1].total() * count;
            base.weight += *weight * count;
            base.messages += *messages * (2 * count);
        }
        for &(kind, count) in &rank.before {
            let (both, _, messages) = &chunks[kind];
            base.start += (both[0].total() + *messages + hop.latency) * count;
            base.early += (both[1].total() + *messages + hop.latency) * count;
        }
        base
    };
    let total =
        |(both, _, messages): &([Times; 2], Picos, Picos)| both[0].total() + both[1].total() + *messages * 2;
    Bases { ranks: outline.ranks.iter().map(of).collect(), chunks: chunks.iter().map(total).collect() }
}

/// A way to recompute a whole chunk, priced for every kind of layers.
pub(super) struct PricedMode {
    recompute: Recompute,
    /// By kind of layers.
    costs: Vec<ModeCost>,
    /// Of the layers that [`Recompute::FullBlock`] leaves alone.
    rest: Vec<ModeCost>,
    /// Of modules that predict further tokens.
    further: ModeCost,
}

impl PricedMode {
    pub(super) fn new(cell: &CellCosts, recompute: Recompute) -> Self {
        let of = |recompute| cell.layers.iter().map(|layer| mode_cost(layer, recompute)).collect();
        let rest =
            if matches!(recompute, Recompute::FullBlock(_)) { of(Recompute::None) } else { Vec::new() };
        Self { recompute, costs: of(recompute), rest, further: further_cost(cell, recompute) }
    }

    /// Extra time, bytes kept per micro-batch and working set of a chunk, ends included.
    fn of_chunk(&self, chunk: &ChunkKind, order: &[u8], cell: &CellCosts) -> (Times, Bytes, Bytes) {
        let (mut extra, mut kept, mut transient) = (Times::default(), Bytes::ZERO, Bytes::ZERO);
        let mut some = |cost: &ModeCost, layers: u64, kept_by: u64| {
            if layers > 0 {
                extra = extra.plus(&cost.extra, layers);
                kept += cost.kept * kept_by;
                transient = transient.max(cost.transient);
            }
        };
        match self.recompute {
            Recompute::FullBlock(n) => {
                let own = &order[chunk.layers.clone()];
                let (full, rest) = own.split_at(own.len().min(n as usize));
                let count = |list: &[u8], kind: usize| {
                    list.iter().filter(|k| usize::from(**k) == kind).count() as u64
                };
                for kind in 0..self.costs.len() {
                    let (full, rest) = (count(full, kind), count(rest, kind));
                    some(&self.costs[kind], full, full);
                    some(&self.rest[kind], rest, rest);
                }
            }
            // One input is kept for a group of layers, the same whatever their kind.
            Recompute::FullUniform(n) if n > 1 => {
                let groups = chunk.counts.iter().sum::<u64>().div_ceil(u64::from(n));
                for (cost, &count) in self.costs.iter().zip(&chunk.counts) {
                    some(cost, count, 0);
                }
                kept = self.costs.first().map_or(Bytes::ZERO, |cost| cost.kept * groups);
            }
            _ => {
                for (cost, &count) in self.costs.iter().zip(&chunk.counts) {
                    some(cost, count, count);
                }
            }
        }
        for end in ends(chunk, cell) {
            kept += end.kept;
            transient = transient.max(end.transient);
            if end.further {
                extra = extra.plus(&self.further.extra, 1);
                kept += self.further.kept;
                transient = transient.max(self.further.transient);
            }
        }
        (extra, kept, transient)
    }

    /// What it adds to every kind of ranks, into `into`.
    pub(super) fn of_ranks(
        &self,
        outline: &Outline,
        order: &[u8],
        cell: &CellCosts,
        (into, extras): (&mut Vec<RankMode>, &mut Vec<Picos>),
    ) {
        let chunks: Vec<(Times, Bytes, Bytes)> =
            outline.chunks.iter().map(|chunk| self.of_chunk(chunk, order, cell)).collect();
        extras.extend(chunks.iter().map(|(extra, _, _)| extra.total()));
        into.extend(outline.ranks.iter().map(|rank| {
            let mut mode = RankMode::default();
            for &(kind, count) in &rank.chunks {
                let (extra, _, transient) = &chunks[kind];
                mode.extra = mode.extra.plus(extra, count);
                mode.transient = mode.transient.max(*transient);
            }
            mode.total = mode.extra.total();
            let held = |vector: &Vec<u64>| -> Bytes {
                rank.chunks.iter().zip(vector).map(|((kind, _), &n)| chunks[*kind].1 * n).sum()
            };
            mode.activations = rank.in_flight.iter().map(held).max().unwrap_or_default();
            mode.early = rank.before.iter().map(|&(kind, count)| chunks[kind].0.total() * count).sum();
            mode
        }));
    }
}

/// What every kind of ranks holds.
pub(super) fn contents<'c>(outline: &Outline, cell: &'c CellCosts) -> Vec<RankContents<'c>> {
    let of = |rank: &RankKind| {
        let mut contents =
            RankContents { layers: vec![0; cell.layers.len()], tied: rank.tied, ..Default::default() };
        let mut shapes = Vec::new();
        for &(kind, count) in &rank.chunks {
            let chunk = &outline.chunks[kind];
            contents.first |= chunk.first;
            for (into, &layers) in contents.layers.iter_mut().zip(&chunk.counts) {
                *into += layers * count;
            }
            contents.ends.extend(ends(chunk, cell));
        }
        for (layer, &count) in cell.layers.iter().zip(&contents.layers).filter(|(_, count)| **count > 0) {
            contents.parameters = contents.parameters.plus(&layer.parameters, count);
            shapes.extend(&layer.weight_shapes);
        }
        for end in &contents.ends {
            contents.parameters = contents.parameters.plus(&end.parameters, 1);
            shapes.extend(&end.weight_shapes);
        }
        if rank.tied {
            contents.parameters = contents.parameters.plus(&cell.tied_copy, 1);
        }
        shapes.sort_unstable();
        shapes.dedup();
        contents.pool = shapes.iter().map(|&(rows, columns)| Bytes(2 * rows * columns)).sum();
        contents
    };
    outline.ranks.iter().map(of).collect()
}

/// States of every kind of ranks, into `into`.
pub(super) fn states(
    contents: &[RankContents<'_>],
    bases: &[RankBase],
    cell: &CellCosts,
    (sharding, hop): (&Sharding, Hop),
    into: &mut Vec<RankStates>,
) {
    into.clear();
    into.extend(contents.iter().zip(bases).map(|(rank, base)| {
        let (mut memory, mut gathered) = (RankMemory::default(), Bytes::ZERO);
        let mut add = |parameters: &LocalParameters, count: u64| {
            let [weights, gradients, optimizer] = state_bytes(sharding, parameters);
            memory.weights += weights * count;
            memory.gradients += gradients * count;
            memory.optimizer += optimizer * count;
        };
        for (layer, &count) in cell.layers.iter().zip(&rank.layers).filter(|(_, count)| **count > 0) {
            add(&layer.parameters, count);
            gathered = gathered.max(gathered_bytes(sharding, &layer.parameters));
        }
        for end in &rank.ends {
            add(&end.parameters, 1);
            gathered = gathered.max(gathered_bytes(sharding, &end.parameters));
        }
        if rank.tied {
            add(&cell.tied_copy, 1);
        }
        memory.pools = rank.pool + gathered;
        memory.buffers = cell.buffers + hop.buffers;
        let once = once_per_step(sharding, &rank.parameters);
        let share = sharding.exposed_floor_of(usize::from(!rank.first));
        RankStates {
            held: memory.total(),
            memory,
            gather: exposed(once.gather, share, sharding.hidden_share.1, sharding.interference, base.forward),
            reduce: Reduction::new(once.reduce, share, sharding),
            update: once.update,
            staging: sharding.staging(&rank.parameters),
        }
    }));
}
