//! Several chunks per rank: placing layers under levels.
//!
//! A step then takes mostly what the fullest rank takes, summed over its chunks, and those chunks lie
//! far apart in the model: a layer cannot go from one rank to another without shifting every boundary in
//! between. What the fastest splits have in common, whatever the layers: along the model, times of chunks
//! rise once and fall once, and the last chunk, where the pipeline turns round, is rather too light than
//! too heavy. So:
//!
//! 1. The lowest level of chunk times is found under which everything can be placed.
//! 2. Splits with two levels are placed: chunks of one contiguous band up to the upper level, those before
//!    and after it about one layer less, the last chunk at a level of its own.
//!
//! [`super::splits`] makes its list of completions of these. Lower bounds on all assignments are here too.

use super::loads::Loads;
use super::relax::Relaxation;
use super::rounding::PassTimes;
use super::splits::Pick;
use super::tables::Tables;
use super::{Assignment, Choice, Evaluation, Problem, Way, measure};
use crate::cost::schedule::Simulator;
use crate::kept::Shared;
use crate::units::Picos;

/// Scratch memory.
#[derive(Debug, Default)]
pub(super) struct ChunkWork {
    cuts: Vec<u32>,
    /// Time of every chunk beside its layers, both passes; and layers that it and all after it must have.
    ends: Vec<u64>,
    reserved: Vec<u32>,
    /// Reach of the lower level from the front, and how far it reaches back from the end.
    forward: Vec<u32>,
    backward: Vec<u32>,
    /// Loads of the split that is being relieved.
    pub loads: Loads,
    trial: Assignment,
    pub evaluation: Evaluation,
    pub relaxation: Relaxation,
    pub known: KnownSplits,
    pub simulator: Simulator,
}

/// Splits that were found for rounded problems, whatever the memory; its clones share them.
#[derive(Debug, Clone, Default)]
pub struct KnownSplits {
    /// What [`Chunked::level_splits`] found.
    pub(super) levels: Shared<PassTimes, Vec<Vec<u32>>, KEPT_LEVELS>,
    /// What [`descent::descend`] found.
    pub(super) descended: Shared<PassTimes, Option<Vec<u32>>, KEPT_DESCENTS>,
}

/// Problems whose splits are kept, of levels and by descent: the former are more and quick to find again.
const KEPT_LEVELS: usize = 1024;
const KEPT_DESCENTS: usize = 8192;

/// How recomputation is chosen while layers are placed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Policy {
    All(Choice),
    Cheapest,
}

impl Policy {
    /// The way of which it is one, where it is known.
    pub fn way(self) -> Option<Way> {
        match self {
            Self::All(choice) => Some(choice.way()),
            Self::Cheapest => None,
        }
    }
}

/// A split with two levels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Levels {
    high: u64,
    low: u64,
    last: u64,
    /// First chunk of the band.
    start: usize,
}

pub(super) struct Chunked<'a> {
    problem: &'a Problem,
    tables: &'a Tables,
    work: &'a mut ChunkWork,
}

impl<'a> Chunked<'a> {
    pub fn new(problem: &'a Problem, tables: &'a Tables, work: &'a mut ChunkWork) -> Self {
        Self { problem, tables, work }
    }

    fn chunks(&self) -> usize {
        self.problem.fixed.len()
    }

    /// Splits of two levels, whatever the memory and without recomputation: the best few by the load of
    /// the fullest rank.
    pub fn level_splits(&mut self) -> Vec<Vec<u32>> {
        self.read_ends();
        if self.tables.layers < self.work.reserved[0] {
            return Vec::new();
        }
        let Some(lowest) = self.lowest_level() else { return Vec::new() };
        let chunks = self.chunks();
        let open = self.problem.fixed.iter().filter(|fixed| !fixed.closed).count() as u32;
        let layer = lowest / u64::from(self.tables.layers / open.max(1) + 1).max(1);
        let pipeline = &*self.problem.pipeline;
        let ranks = pipeline.ranks as usize;
        let turning = pipeline.rank_of_chunk[chunks - 1] as usize;
        // A head alone on its chunk, and one with layers: neither stands for the other.
        let mut picks: [Pick<Levels>; 2] = [Pick::default(), Pick::default()];
        let mut load = vec![(0_u64, 0_u64); ranks];
        let stride = (chunks / 8).max(1);
        for high in [lowest, lowest + layer / 2] {
            let low = high.saturating_sub(layer);
            for last in [low, high, low.saturating_sub(layer)] {
                self.prepare(low, last);
                for start in (0..chunks).step_by(stride) {
                    let levels = Levels { high, low, last, start };
                    if !self.place(levels) {
                        continue;
                    }
                    load.fill((0, 0));
                    for k in 0..chunks {
                        let time = self.time(k, self.work.cuts[k], self.work.cuts[k + 1]);
                        let rank = &mut load[pipeline.rank_of_chunk[k] as usize];
                        *rank = (rank.0 + time, rank.1.max(time));
                    }
                    let fullest = load.iter().map(|rank| rank.0).max().unwrap_or(0);
                    let waits = (0..ranks).filter(|&rank| rank != turning).map(|rank| load[rank].1).sum();
                    let off_middle = (2 * start).abs_diff(chunks) as u64;
                    let load = pipeline.micro_batches * fullest;
                    let held = self.work.cuts[chunks] - self.work.cuts[chunks - 1];
                    let pick = &mut picks[usize::from(held < self.problem.min_layers)];
                    pick.offer(load, waits, start as u64, off_middle, &levels);
                }
            }
        }
        let mut splits = Vec::new();
        for levels in picks.into_iter().flat_map(Pick::into_list) {
            self.prepare(levels.low, levels.last);
            if self.place(levels) {
                splits.push(self.work.cuts.windows(2).map(|pair| pair[1] - pair[0]).collect());
            }
        }
        splits
    }

    /// Reads what chunks have beside the layers that are to be placed.
    fn read_ends(&mut self) {
        let (problem, ChunkWork { ends, reserved, .. }) = (self.problem, &mut *self.work);
        ends.clear();
        ends.extend(problem.fixed.iter().map(|fixed| fixed.forward.0 + fixed.backward.0));
        reserved.clear();
        reserved.resize(ends.len() + 1, 0);
        for k in (0..ends.len()).rev() {
            reserved[k] = reserved[k + 1] + least_of(problem, k);
        }
    }

    /// Time of a chunk with an interval of layers, nothing recomputed.
    fn time(&self, chunk: usize, from: u32, to: u32) -> u64 {
        self.work.ends[chunk] + self.tables.time(from, to)
    }

    /// Given layer counts, every rank with the choice that `policy` leaves it.
    pub fn assignment(&mut self, layers: Vec<u32>, policy: Policy) -> Assignment {
        let mut recompute = Vec::with_capacity(layers.len());
        self.choices(&layers, policy, &mut recompute);
        Assignment { layers, recompute }
    }

    /// What every chunk recomputes.
    fn choices(&mut self, layers: &[u32], policy: Policy, into: &mut Vec<Choice>) {
        into.clear();
        match policy {
            Policy::All(choice) => into.resize(layers.len(), choice),
            Policy::Cheapest => {
                let pipeline = &*self.problem.pipeline;
                let mut loads = Loads::of(self.problem, self.tables, layers);
                loads.hold(self.problem);
                let ranks = 0..pipeline.ranks as usize;
                let choice = |rank| loads.rank(self.problem, self.tables, rank, policy).choice;
                let choices: Vec<Choice> = ranks.map(choice).collect();
                into.extend(pipeline.rank_of_chunk.iter().map(|&rank| choices[rank as usize]));
            }
        }
    }

    /// Lower bound on the makespan of given layer counts, every rank with the choice that `policy` leaves it.
    pub fn bound(&mut self, layers: &[u32], policy: Policy) -> Option<Picos> {
        let mut trial = std::mem::take(&mut self.work.trial);
        trial.layers.clear();
        trial.layers.extend_from_slice(layers);
        self.choices(layers, policy, &mut trial.recompute);
        let measured = measure(self.problem, &trial, &mut self.work.evaluation);
        self.work.trial = trial;
        measured.ok().map(|_| self.work.evaluation.bound)
    }

    /// How far a chunk reaches from `from` under a level: at least its fewest layers, and those after it keep
    /// theirs. Also the smallest time that was refused, and whether the fewest layers fit under the level.
    fn reach(&self, k: usize, from: u32, level: u64, guess: u32) -> (u32, u64, bool) {
        let least = from + least_of(self.problem, k);
        let cap = self.tables.layers - self.work.reserved[k + 1];
        let cap = if self.problem.fixed[k].closed { from } else { cap.max(least) };
        let mut refused = u64::MAX;
        let mut to = (from + guess).clamp(least, cap);
        let mut time = self.time(k, from, to);
        while time > level && to > least {
            refused = time;
            to -= 1;
            time = self.time(k, from, to);
        }
        if time > level {
            return (to, time, false);
        }
        while to < cap && refused == u64::MAX {
            let next = self.time(k, from, to + 1);
            if next > level {
                refused = next;
            } else {
                to += 1;
            }
        }
        (to, refused, true)
    }

    /// The same from the end: how far back a chunk reaches from `to`.
    fn reach_back(&self, k: usize, to: u32, level: u64) -> u32 {
        let least = least_of(self.problem, k).min(to);
        if self.problem.fixed[k].closed {
            return to;
        }
        let mut from = to - least;
        while from > 0 && self.time(k, from - 1, to) <= level {
            from -= 1;
        }
        from
    }

    /// Whether everything can be placed under one level, and the smallest time refused.
    fn fits_under(&self, level: u64) -> Result<(), u64> {
        let layers = self.tables.layers;
        let (mut from, mut refused, mut guess) = (0, u64::MAX, layers / self.chunks() as u32);
        for k in 0..self.chunks() {
            let (to, next, fits) = self.reach(k, from, level, guess);
            refused = refused.min(next);
            if !fits {
                return Err(next);
            }
            guess = to - from;
            from = to;
        }
        if from == layers { Ok(()) } else { Err(refused) }
    }

    /// The lowest level under which everything can be placed, if any.
    fn lowest_level(&self) -> Option<u64> {
        let chunks = self.chunks() as u64;
        let ends: u64 = self.problem.fixed.iter().skip(1).map(|f| f.forward.0 + f.backward.0).sum();
        let mut low = (self.time(0, 0, self.tables.layers) / 2 + ends / 2) / chunks;
        let top = u64::MAX / 4;
        self.fits_under(top).ok()?;
        let mut high = None;
        let mut step = low / 4 + 1;
        for round in 0_u32.. {
            if high.is_some_and(|high| high <= low) {
                break;
            }
            let level = match high {
                Some(high) if round % 2 == 1 => low + (high - low) / 2,
                None if round % 2 == 1 => {
                    step *= 2;
                    low.saturating_add(step).min(top)
                }
                _ => low,
            };
            match self.fits_under(level) {
                Ok(()) if level == low => return Some(low),
                Ok(()) => high = Some(level),
                // A refused time is above the level.
                Err(next) => low = next,
            }
        }
        high
    }

    /// Fills `work.cuts` with a split of two levels; false if it does not place everything.
    fn place(&mut self, levels: Levels) -> bool {
        let (chunks, layers) = (self.chunks(), self.tables.layers);
        let Levels { high, low, last, start } = levels;
        let level_of = |k: usize| if k + 1 == chunks { last } else { low };
        let mut cuts = std::mem::take(&mut self.work.cuts);
        cuts.clear();
        cuts.extend_from_slice(&self.work.forward[..=start]);
        let mut from = cuts[start];
        let mut guess = if start > 0 { from - cuts[start - 1] } else { layers / chunks as u32 };
        let mut band = true;
        for k in start..chunks {
            band &= from < self.work.backward[k];
            let level = if band && k + 1 < chunks { high } else { level_of(k) };
            let (to, _, _) = self.reach(k, from, level, guess);
            guess = to - from;
            from = to;
            cuts.push(to);
        }
        self.work.cuts = cuts;
        from == layers
    }

    /// Prepares [`Chunked::place`] for a lower level and a level of the last chunk.
    fn prepare(&mut self, low: u64, last: u64) {
        let (chunks, layers) = (self.chunks(), self.tables.layers);
        let mut forward = std::mem::take(&mut self.work.forward);
        let mut backward = std::mem::take(&mut self.work.backward);
        forward.clear();
        forward.push(0);
        let (mut from, mut guess) = (0, layers / chunks as u32);
        for k in 0..chunks {
            let (to, _, _) = self.reach(k, from, low, guess);
            guess = to - from;
            from = to;
            forward.push(to);
        }
        backward.clear();
        backward.resize(chunks + 1, layers);
        for k in (0..chunks).rev() {
            let level = if k + 1 == chunks { last } else { low };
            backward[k] = self.reach_back(k, backward[k + 1], level);
        }
        self.work.forward = forward;
        self.work.backward = backward;
    }

    /// Whether the model could fit at all: even if every layer went to the chunk of each rank that has
    /// the fewest micro-batches in flight on average.
    fn memory_may_suffice(&self) -> bool {
        let problem = self.problem;
        let modes = 0..problem.modes.len() as u16;
        // A group of layers keeps one input together.
        let of = |mode: u16, kind: usize| {
            self.tables.mode(mode)[kind].kept / u64::from(problem.modes[usize::from(mode)].group)
        };
        let kept = |kind: usize| modes.clone().map(|mode| of(mode, kind)).min().unwrap_or(0);
        let (mut room, mut layers) = (0_u128, 0_u128);
        let mut least = [u128::MAX; super::MAX_KINDS];
        for order in &problem.pipeline.orders {
            let v = order.chunks.len();
            let states = order.in_flight.len() / v;
            // In flight on the least loaded chunk, averaged over states, times the number of states.
            let fewest = (0..v)
                .map(|c| order.in_flight.iter().skip(c).step_by(v).map(|&n| u128::from(n)).sum::<u128>())
                .min()
                .unwrap_or(0);
            let mut held = u128::from(problem.rank_bytes.0);
            for &k in &order.chunks {
                let fixed = &problem.fixed[k as usize];
                held += u128::from(fixed.held.0) + u128::from(fixed.kept.0) * fewest / states as u128;
            }
            let free = u128::from(problem.limit.0).saturating_sub(held);
            room += free;
            let mut cheapest = u128::MAX;
            for (kind, _) in self.tables.totals.iter().enumerate().filter(|&(_, &n)| n > 0) {
                let bytes =
                    u128::from(problem.kinds[kind].held.0) + u128::from(kept(kind)) * fewest / states as u128;
                least[kind] = least[kind].min(bytes);
                cheapest = cheapest.min(bytes);
            }
            layers += free.checked_div(cheapest).unwrap_or(u128::MAX / 1024);
        }
        let need: u128 = self
            .tables
            .totals
            .iter()
            .zip(least)
            .filter(|(n, _)| **n > 0)
            .map(|(&n, b)| u128::from(n) * b)
            .sum();
        need <= room && layers >= u128::from(self.tables.layers)
    }
}

/// Fewest layers that a split of two levels gives a chunk: the embedding alone takes so little that levels would leave
/// it alone for a lower one of all others.
fn least_of(problem: &Problem, chunk: usize) -> u32 {
    match &problem.fixed[chunk] {
        first if chunk == 0 && !first.closed => problem.min_layers,
        _ => problem.least(chunk),
    }
}

/// Lower bounds without recomputation and memory on the time of one micro-batch on the fullest rank and
/// on all ranks.
fn least_pace(problem: &Problem, tables: &Tables) -> (u64, u64) {
    let pipeline = &*problem.pipeline;
    let ranks = u64::from(pipeline.ranks);
    let present = || tables.totals.iter().enumerate().filter(|&(_, &n)| n > 0);
    let both = |kind: usize| problem.kinds[kind].forward.0 + problem.kinds[kind].backward.0;
    let mut total: u64 = problem.fixed.iter().map(|f| f.forward.0 + f.backward.0).sum();
    total += present().map(|(kind, &n)| u64::from(n) * both(kind)).sum::<u64>();
    let pace = total.div_ceil(ranks);
    let mut kinds = present();
    let (Some((kind, _)), None) = (kinds.next(), kinds.next()) else { return (pace, total) };
    // Equal layers: whole ones.
    let layer = both(kind);
    let fixed = |order: &super::RankOrder| {
        let both = |&k: &u32| problem.fixed[k as usize].forward.0 + problem.fixed[k as usize].backward.0;
        order.chunks.iter().map(both).sum::<u64>()
    };
    // At the average, every rank holds what fits under it; the layers left over go where they end first.
    let (mut placed, mut most) = (0, pace);
    let mut next: Vec<u64> = Vec::with_capacity(pipeline.orders.len());
    for order in &pipeline.orders {
        let ends = fixed(order);
        most = most.max(ends);
        let on_rank = pace.saturating_sub(ends).checked_div(layer).unwrap_or(u64::MAX / 4096);
        placed += on_rank;
        next.push(ends + (on_rank + 1).saturating_mul(layer));
    }
    let left = u64::from(tables.layers).saturating_sub(placed);
    if left > 0 {
        next.sort_unstable();
        // More are left than ranks only where ends alone exceed the average.
        most = most.max(next[(left as usize).min(next.len()) - 1]);
    }
    (most, total)
}

/// A lower bound on [`Evaluation::bound`] over all assignments.
pub(super) fn bound_of_all(problem: &Problem, tables: &Tables) -> u64 {
    let pipeline = &*problem.pipeline;
    let ranks = u64::from(pipeline.ranks);
    let (pace, _) = least_pace(problem, tables);
    let busy = pipeline.micro_batches * pace;
    // The average over ranks of their chains, every layer on the chunk where it weighs least.
    let chain = |side: usize| {
        let weigh = |f: u64, b: u64| {
            let on = |w: &[super::pipeline::Weights; 2]| w[side].of(f, b);
            pipeline.average.iter().map(on).min().unwrap_or(0)
        };
        let layer = |(kind, &n): (usize, &u32)| match n {
            0 => 0,
            n => u64::from(n) * weigh(problem.kinds[kind].forward.0, problem.kinds[kind].backward.0),
        };
        let mut sum: u64 = tables.totals.iter().enumerate().map(layer).sum();
        for (fixed, weights) in problem.fixed.iter().zip(&pipeline.average) {
            sum += weights[side].of(fixed.forward.0, fixed.backward.0);
        }
        sum / ranks + pipeline.chain_hops * problem.hop.0
    };
    if pipeline.average.is_empty() { busy } else { busy.max(chain(0)).max(chain(1)) }
}

/// A lower bound on [`Evaluation::bound`] over all assignments that fit; `None` if none can.
pub(super) fn least_bound(problem: &Problem, tables: &Tables, work: &mut ChunkWork) -> Option<u64> {
    let search = Chunked::new(problem, tables, work);
    let least: u32 = (0..search.chunks()).map(|k| problem.least(k)).sum();
    if tables.layers < least || !search.memory_may_suffice() {
        return None;
    }
    Some(bound_of_all(problem, tables))
}
