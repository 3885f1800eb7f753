//! Several chunks per rank.
//!
//! A step then takes mostly what the fullest rank takes, summed over its chunks, and those chunks lie
//! far apart in the model: a layer cannot go from one rank to another without shifting every boundary in
//! between. Moreover passes of unequal chunks make ranks wait for one another in ways that no bound on a
//! single rank sees: among splits with equally balanced ranks, simulated steps differ by tens of percent.
//! What the fastest splits have in common, whatever the layers: along the model, times of chunks rise
//! once and fall once, and the last chunk, where the pipeline turns round, is rather too light than too
//! heavy. So:
//!
//! 1. The lowest level of chunk times is found under which everything can be placed.
//! 2. Splits with two levels are tried: chunks of one contiguous band up to the upper level, those before
//!    and after it about one layer less, the last chunk at a level of its own.
//! 3. A short simulation of the schedule chooses among those that fit into memory: two rounds of the
//!    pipeline, every further micro-batch at the pace of the fullest rank.
//! 4. If none fits, ranks that lack memory get lower ceilings until one does, or single layers wander
//!    from ranks that lack memory to ranks that do not.
//!
//! The result depends on the problem alone, never on a threshold. It is good, not proved to be the
//! best: proofs come from the integer programme.

use super::relax::Relaxation;
use super::splits::Pick;
use super::tables::{Interval, ModeCost, Tables};
use super::walk::Walks;
use super::{
    Assignment, Choice, Evaluation, Freedom, Kind, Objective, Problem, Violation, evaluate_into, shared_bytes,
};
use crate::cost::schedule::{Load, Shape, Simulator};
use crate::plan::Schedule;
use crate::units::Picos;

/// Scratch memory.
#[derive(Debug, Default)]
pub(super) struct ChunkWork {
    cuts: Vec<u32>,
    /// Reach of the lower level from the front, and how far it reaches back from the end.
    forward: Vec<u32>,
    backward: Vec<u32>,
    /// By rank: the highest time of a chunk, and how much slower its layers are than others', in 1/1024.
    ceiling: Vec<u64>,
    slower: Vec<u64>,
    kept: Vec<u64>,
    trial: Assignment,
    /// The split that lacks the least memory.
    nearest: Vec<u32>,
    evaluation: Evaluation,
    pub relaxation: Relaxation,
    simulator: Simulator,
    walks: Walks,
    no_weight: Vec<Picos>,
}

/// How recomputation is chosen while layers are placed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Policy {
    All(Choice),
    Cheapest,
}

/// One rank with the chunks it has.
#[derive(Debug, Clone, Copy)]
pub(super) struct RankCost {
    /// Recomputation of one micro-batch.
    extra: u64,
    /// Forward and backward time of one micro-batch, recomputation included.
    time: u64,
    /// Bytes beyond the limit.
    pub excess: u64,
    pub choice: Choice,
}

/// The best assignment so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Score {
    /// The closed form where that is the objective, else nothing.
    first: u64,
    /// The step as the short simulation has it.
    step: u64,
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

/// How many assignments are simulated for longer.
const FINALISTS: usize = 4;
/// Passes that short simulations of one way to recompute may walk through, about: some tenths of a
/// millisecond.
const PASSES: u64 = 60_000;
/// Small models of which every split is tried before giving up.
const MOST_SPLITS: u64 = 20_000;

/// Finds a good assignment that fits; `None` if none was found.
pub(super) fn solve(
    problem: &Problem,
    tables: &Tables,
    work: &mut ChunkWork,
    objective: Objective,
    into: &mut Assignment,
) -> bool {
    let mut search = Chunked::new(problem, tables, work, objective);
    search.run();
    search.choose(into)
}

/// The cheapest recomputation with which given layers fit, if any does.
pub(super) fn given(
    problem: &Problem,
    tables: &Tables,
    work: &mut ChunkWork,
    layers: &[u32],
    into: &mut Assignment,
) -> bool {
    let mut search = Chunked::new(problem, tables, work, Objective::Chain);
    search.each_policy(|search, policy| {
        search.set_cuts(layers);
        search.file(policy);
    });
    search.choose(into)
}

pub(super) struct Chunked<'a> {
    problem: &'a Problem,
    tables: &'a Tables,
    work: &'a mut ChunkWork,
    objective: Objective,
    best: Option<Score>,
    /// The best few by the short simulation, best first.
    finalists: Vec<(Score, Assignment)>,
    /// The even split in every way to recompute with which it fits.
    evens: Vec<(Score, Assignment)>,
    /// No policy has been tried yet.
    exploring: bool,
    /// The least ratio of a step to the total time of a micro-batch that any split had, whether it
    /// fitted or not.
    pace: f64,
}

impl ChunkWork {
    pub fn evaluation_mut(&mut self) -> &mut Evaluation {
        &mut self.evaluation
    }
}

impl<'a> Chunked<'a> {
    pub fn new(
        problem: &'a Problem,
        tables: &'a Tables,
        work: &'a mut ChunkWork,
        objective: Objective,
    ) -> Self {
        let (finalists, evens) = (Vec::new(), Vec::new());
        Self {
            problem,
            tables,
            work,
            objective,
            best: None,
            finalists,
            evens,
            exploring: true,
            pace: f64::INFINITY,
        }
    }

    fn chunks(&self) -> usize {
        self.problem.fixed.len()
    }

    pub fn problem(&self) -> &'a Problem {
        self.problem
    }

    pub fn evaluation_mut(&mut self) -> &mut Evaluation {
        &mut self.work.evaluation
    }

    /// Bytes that grow with the layers of a rank that exceeds its limit by so much.
    pub fn need(&self, rank: usize, excess: u64) -> u64 {
        let order = &self.problem.pipeline.orders[rank];
        let ends: u64 = order.chunks.iter().map(|&k| self.problem.fixed[k as usize].held.0).sum();
        (self.problem.limit.0 + excess).saturating_sub(self.problem.rank_bytes.0 + ends)
    }

    /// Splits of two levels, whatever the memory and without recomputation: the best few by the load of
    /// the fullest rank.
    pub fn level_splits(&mut self) -> Vec<Vec<u32>> {
        let policy = Policy::Cheapest;
        let least: u32 = (0..self.chunks()).map(|k| self.problem.least(k)).sum();
        if self.tables.layers < least {
            return Vec::new();
        }
        self.reset_ranks();
        let Some(lowest) = self.lowest_level(policy) else { return Vec::new() };
        let chunks = self.chunks();
        let open = self.problem.fixed.iter().filter(|fixed| !fixed.closed).count() as u32;
        let layer = lowest / u64::from(self.tables.layers / open.max(1) + 1).max(1);
        let pipeline = &*self.problem.pipeline;
        let ranks = pipeline.ranks as usize;
        let turning = pipeline.rank_of_chunk[chunks - 1] as usize;
        let mut pick: Pick<Levels> = Pick::default();
        let mut load = vec![(0_u64, 0_u64); ranks];
        let stride = (chunks / 8).max(1);
        for high in [lowest, lowest + layer / 2] {
            let low = high.saturating_sub(layer);
            for last in [low, high, low.saturating_sub(layer)] {
                self.prepare(low, last, policy);
                for start in (0..chunks).step_by(stride) {
                    let levels = Levels { high, low, last, start };
                    if !self.place(levels, policy) {
                        continue;
                    }
                    load.fill((0, 0));
                    for k in 0..chunks {
                        let time = self.time(k, self.work.cuts[k], self.work.cuts[k + 1], policy);
                        let rank = &mut load[pipeline.rank_of_chunk[k] as usize];
                        *rank = (rank.0 + time, rank.1.max(time));
                    }
                    let fullest = load.iter().map(|rank| rank.0).max().unwrap_or(0);
                    let waits = (0..ranks).filter(|&rank| rank != turning).map(|rank| load[rank].1).sum();
                    let off_middle = (2 * start).abs_diff(chunks) as u64;
                    let load = pipeline.micro_batches * fullest;
                    pick.offer(load, waits, start as u64, off_middle, &levels);
                }
            }
        }
        let mut splits = Vec::new();
        for levels in pick.into_list() {
            self.prepare(levels.low, levels.last, policy);
            if self.place(levels, policy) {
                splits.push(self.work.cuts.windows(2).map(|pair| pair[1] - pair[0]).collect());
            }
        }
        splits
    }

    fn each_policy(&mut self, mut each: impl FnMut(&mut Self, Policy)) {
        match self.problem.freedom {
            Freedom::PerStage => each(self, Policy::Cheapest),
            Freedom::Global => {
                for at in 0..self.tables.modes.len() {
                    each(self, Policy::All(Choice::Mode(self.tables.modes[at])));
                }
                if let Some(block) = self.problem.block {
                    let mut n = block.counts.0;
                    while n <= block.counts.1.min(self.tables.layers.max(block.counts.0)) {
                        each(self, Policy::All(Choice::Block(n)));
                        // From the longest chunk of the best split on, more changes nothing.
                        let best = self.finalists.first().and_then(|(_, best)| best.layers.iter().max());
                        if best.is_some_and(|&longest| longest <= n) {
                            break;
                        }
                        n += 1;
                    }
                }
            }
        }
    }

    fn run(&mut self) {
        let least: u32 = (0..self.chunks()).map(|k| self.problem.least(k)).sum();
        let open = self.problem.fixed.iter().any(|fixed| !fixed.closed);
        if self.tables.layers < least || self.tables.layers > 0 && !open {
            return;
        }
        self.each_policy(|search, policy| search.attempt(policy));
        if self.finalists.is_empty() && self.evens.is_empty() {
            self.each_policy(|search, policy| {
                if search.finalists.is_empty() && search.memory_may_suffice(policy) {
                    search.reset_ranks();
                    search.two_levels(policy);
                    let _ =
                        search.wander(policy) && search.file(policy).is_some() || search.every_split(policy);
                }
            });
        }
    }

    fn reset_ranks(&mut self) {
        let ranks = self.problem.pipeline.ranks as usize;
        self.work.ceiling.clear();
        self.work.ceiling.resize(ranks, u64::MAX);
        self.work.slower.clear();
        self.work.slower.resize(ranks, 0);
    }

    /// Time of a chunk with an interval of layers, as the levels see it.
    fn time(&self, chunk: usize, from: u32, to: u32, policy: Policy) -> u64 {
        let fixed = &self.problem.fixed[chunk];
        let time = fixed.forward.0 + fixed.backward.0 + self.tables.time(from, to);
        match policy {
            Policy::All(Choice::Mode(mode)) => time + self.tables.extra(mode, from, to),
            Policy::All(choice) => {
                let interval = self.tables.interval(self.problem, fixed, from, to);
                time + self.recompute(chunk, (from, to), &interval, choice).extra
            }
            Policy::Cheapest => {
                let rank = self.problem.pipeline.rank_of_chunk[chunk] as usize;
                time + (time >> 10) * self.work.slower[rank]
            }
        }
    }

    fn recompute(&self, chunk: usize, at: (u32, u32), interval: &Interval, choice: Choice) -> ModeCost {
        let fixed = &self.problem.fixed[chunk];
        match choice {
            Choice::Mode(mode) => self.tables.in_mode(self.problem, fixed, &interval.counts, mode),
            Choice::Block(n) => self.tables.in_block(self.problem, fixed, at, n),
        }
    }

    /// Cost of a rank under the cuts in `work.cuts`.
    pub fn rank(&mut self, rank: usize, policy: Policy) -> RankCost {
        let problem = self.problem;
        let order = &problem.pipeline.orders[rank];
        let (mut time, mut held, mut gathered, mut touches) = (0, 0, 0, 0);
        let mut longest = 0;
        for &chunk in &order.chunks {
            let k = chunk as usize;
            let (from, to) = (self.work.cuts[k], self.work.cuts[k + 1]);
            let interval = self.tables.interval(problem, &problem.fixed[k], from, to);
            time += interval.forward + interval.backward;
            held += interval.held;
            gathered = gathered.max(interval.gathered);
            touches |= interval.touches;
            longest = longest.max(to - from);
        }
        let steady = problem.rank_bytes.0 + held + gathered + shared_bytes(&problem.shared, touches);
        let mut best: Option<RankCost> = None;
        let mut consider = |search: &mut Self, choice: Choice| {
            let (mut extra, mut transient) = (0, 0);
            search.work.kept.clear();
            for &chunk in &order.chunks {
                let k = chunk as usize;
                let at = (search.work.cuts[k], search.work.cuts[k + 1]);
                let interval = search.tables.interval(problem, &problem.fixed[k], at.0, at.1);
                let cost = search.recompute(k, at, &interval, choice);
                extra += cost.extra;
                transient = transient.max(cost.transient);
                search.work.kept.push(cost.kept);
            }
            let kept = &search.work.kept;
            let in_flight = order
                .in_flight
                .chunks_exact(order.chunks.len())
                .map(|counts| counts.iter().zip(kept).map(|(&n, kept)| u64::from(n) * kept).sum::<u64>())
                .max()
                .unwrap_or(0);
            let excess = (steady + in_flight + transient).saturating_sub(problem.limit.0);
            if best.is_none_or(|best| (excess, extra) < (best.excess, best.extra)) {
                best = Some(RankCost { extra, time: time + extra, excess, choice });
            }
            excess == 0
        };
        match policy {
            Policy::All(choice) => {
                consider(self, choice);
            }
            Policy::Cheapest => {
                for at in 0..self.tables.modes.len() {
                    let fits = consider(self, Choice::Mode(self.tables.modes[at]));
                    if fits && (at == 0 || self.tables.kinds == 1) {
                        break;
                    }
                }
                if let Some(block) = problem.block {
                    // More layers only cost more.
                    let most = block.counts.1.min(longest.max(block.counts.0));
                    let _ = (block.counts.0..=most).any(|n| consider(self, Choice::Block(n)));
                }
            }
        }
        best.unwrap_or(RankCost { extra: 0, time, excess: u64::MAX, choice: Choice::Mode(0) })
    }

    /// How far a chunk reaches from `from` under a level: at least its fewest layers, at most `cap`.
    /// Also the smallest time that was refused, and whether the fewest layers fit under the level.
    fn reach(
        &self,
        k: usize,
        from: u32,
        cap: u32,
        level: u64,
        policy: Policy,
        guess: u32,
    ) -> (u32, u64, bool) {
        let least = from + self.problem.least(k);
        let cap = if self.problem.fixed[k].closed { from } else { cap.max(least) };
        let level = level.min(self.work.ceiling[self.problem.pipeline.rank_of_chunk[k] as usize]);
        let mut refused = u64::MAX;
        let mut to = (from + guess).clamp(least, cap);
        let mut time = self.time(k, from, to, policy);
        while time > level && to > least {
            refused = time;
            to -= 1;
            time = self.time(k, from, to, policy);
        }
        if time > level {
            return (to, time, false);
        }
        while to < cap && refused == u64::MAX {
            let next = self.time(k, from, to + 1, policy);
            if next > level {
                refused = next;
            } else {
                to += 1;
            }
        }
        (to, refused, true)
    }

    /// The same from the end: how far back a chunk reaches from `to`.
    fn reach_back(&self, k: usize, to: u32, level: u64, policy: Policy) -> u32 {
        let least = self.problem.least(k).min(to);
        if self.problem.fixed[k].closed {
            return to;
        }
        let level = level.min(self.work.ceiling[self.problem.pipeline.rank_of_chunk[k] as usize]);
        let mut from = to - least;
        while from > 0 && self.time(k, from - 1, to, policy) <= level {
            from -= 1;
        }
        from
    }

    /// Layers that the chunks from `k` on must have at least.
    fn reserved(&self, k: usize) -> u32 {
        (k..self.chunks()).map(|k| self.problem.least(k)).sum()
    }

    /// Whether everything can be placed under one level, and the smallest time refused.
    fn fits_under(&self, level: u64, policy: Policy) -> Result<(), u64> {
        let layers = self.tables.layers;
        let mut reserved = self.reserved(0);
        let (mut from, mut refused, mut guess) = (0, u64::MAX, layers / self.chunks() as u32);
        for k in 0..self.chunks() {
            reserved -= self.problem.least(k);
            let (to, next, fits) = self.reach(k, from, layers - reserved, level, policy, guess);
            // A ceiling may refuse less than the level.
            if next > level {
                refused = refused.min(next);
            }
            if !fits {
                return Err(next);
            }
            guess = to - from;
            from = to;
        }
        if from == layers { Ok(()) } else { Err(refused) }
    }

    /// The lowest level under which everything can be placed, if the ceilings allow any.
    fn lowest_level(&self, policy: Policy) -> Option<u64> {
        let chunks = self.chunks() as u64;
        let ends: u64 = self.problem.fixed.iter().skip(1).map(|f| f.forward.0 + f.backward.0).sum();
        let mut low = (self.time(0, 0, self.tables.layers, policy) / 2 + ends / 2) / chunks;
        let top = u64::MAX / 4;
        self.fits_under(top, policy).ok()?;
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
            match self.fits_under(level, policy) {
                Ok(()) if level == low => return Some(low),
                Ok(()) => high = Some(level),
                // A refused time is above the level; ceilings may refuse below it.
                Err(next) => low = next.max(level + 1),
            }
        }
        high
    }

    /// Fills `work.cuts` with a split of two levels; false if it does not place everything.
    fn place(&mut self, levels: Levels, policy: Policy) -> bool {
        let (chunks, layers) = (self.chunks(), self.tables.layers);
        let Levels { high, low, last, start } = levels;
        let level_of = |k: usize| if k + 1 == chunks { last } else { low };
        let mut cuts = std::mem::take(&mut self.work.cuts);
        cuts.clear();
        cuts.extend_from_slice(&self.work.forward[..=start]);
        let mut from = cuts[start];
        let mut reserved = self.reserved(start);
        let mut guess = if start > 0 { from - cuts[start - 1] } else { layers / chunks as u32 };
        let mut band = true;
        for k in start..chunks {
            band &= from < self.work.backward[k];
            reserved -= self.problem.least(k);
            let level = if band && k + 1 < chunks { high } else { level_of(k) };
            let (to, _, _) = self.reach(k, from, layers - reserved, level, policy, guess);
            guess = to - from;
            from = to;
            cuts.push(to);
        }
        self.work.cuts = cuts;
        from == layers
    }

    /// Prepares [`Chunked::place`] for a lower level and a level of the last chunk.
    fn prepare(&mut self, low: u64, last: u64, policy: Policy) {
        let (chunks, layers) = (self.chunks(), self.tables.layers);
        let mut forward = std::mem::take(&mut self.work.forward);
        let mut backward = std::mem::take(&mut self.work.backward);
        forward.clear();
        forward.push(0);
        let (mut from, mut reserved, mut guess) = (0, self.reserved(0), layers / chunks as u32);
        for k in 0..chunks {
            reserved -= self.problem.least(k);
            let (to, _, _) = self.reach(k, from, layers - reserved, low, policy, guess);
            guess = to - from;
            from = to;
            forward.push(to);
        }
        backward.clear();
        backward.resize(chunks + 1, layers);
        for k in (0..chunks).rev() {
            let level = if k + 1 == chunks { last } else { low };
            backward[k] = self.reach_back(k, backward[k + 1], level, policy);
        }
        self.work.forward = forward;
        self.work.backward = backward;
    }

    fn attempt(&mut self, policy: Policy) {
        if !self.memory_may_suffice(policy) {
            return;
        }
        let even = self.even(policy);
        if !self.exploring && !self.may_beat_best(policy) {
            return;
        }
        let ranks = self.problem.pipeline.ranks as usize;
        self.reset_ranks();
        let mut found = self.two_levels(policy);
        self.exploring = false;
        if !found && !even {
            found = self.give_up_layers(policy);
        }
        // Ranks that recompute are slower: once more with less on them.
        if found && policy == Policy::Cheapest {
            if let Some((_, best)) = self.finalists.first() {
                let layers = best.layers.clone();
                self.set_cuts(&layers);
            }
            let mut any = false;
            for rank in 0..ranks {
                let cost = self.rank(rank, policy);
                let plain = (cost.time - cost.extra).max(1);
                self.work.slower[rank] = (u128::from(cost.extra) * 1024 / u128::from(plain)) as u64;
                any |= cost.extra > 0;
            }
            if any {
                self.two_levels(policy);
            }
        }
    }

    /// A split in which ranks that lack memory hold less, if one is found.
    pub fn lower_ceilings(&mut self, policy: Policy) -> Option<Vec<u32>> {
        self.reset_ranks();
        self.ceilings_that_fit(policy)?;
        Some(self.work.cuts.windows(2).map(|pair| pair[1] - pair[0]).collect())
    }

    /// Lowers the ceilings of ranks that lack memory until the rest of the model fits elsewhere.
    fn give_up_layers(&mut self, policy: Policy) -> bool {
        self.ceilings_that_fit(policy).is_some() && (self.two_levels(policy) || self.file(policy).is_some())
    }

    /// Leaves a split under the last ceilings in the cuts.
    fn ceilings_that_fit(&mut self, policy: Policy) -> Option<()> {
        let ranks = self.problem.pipeline.ranks as usize;
        let mut least = u64::MAX;
        let mut patience = 4;
        while patience > 0 {
            let lowest = self.lowest_level(policy)?;
            self.prepare(lowest, lowest, policy);
            if !self.place(Levels { high: lowest, low: lowest, last: lowest, start: 0 }, policy) {
                return None;
            }
            let mut excess = 0_u64;
            for rank in 0..ranks {
                let over = self.rank(rank, policy).excess;
                excess = excess.saturating_add(over);
                if over > 0 {
                    let times = self.problem.pipeline.orders[rank].chunks.iter().map(|&k| {
                        let k = k as usize;
                        self.time(k, self.work.cuts[k], self.work.cuts[k + 1], policy)
                    });
                    self.work.ceiling[rank] = times.max().unwrap_or(0).saturating_sub(1);
                }
            }
            if excess == 0 {
                return Some(());
            }
            if excess < least {
                least = excess;
                patience = 4;
                self.work.nearest.clone_from(&self.work.cuts);
            }
            patience -= 1;
        }
        None
    }

    /// Tries every split of a small model.
    fn every_split(&mut self, policy: Policy) -> bool {
        let chunks = self.chunks();
        let open = self.problem.fixed.iter().filter(|fixed| !fixed.closed).count() as u64;
        let free = u64::from(self.tables.layers - self.reserved(0));
        // Ways to give `free` layers to `open` chunks.
        let mut ways = 1_u64;
        for i in 1..open {
            ways = ways.saturating_mul(free + i) / i;
            if ways > MOST_SPLITS {
                return false;
            }
        }
        let mut layers: Vec<u32> = (0..chunks).map(|k| self.problem.least(k)).collect();
        let mut found = false;
        self.splits_from(0, free as u32, &mut layers, policy, &mut found);
        found
    }

    fn splits_from(&mut self, k: usize, free: u32, layers: &mut Vec<u32>, policy: Policy, found: &mut bool) {
        let Some(next) = (k..self.chunks()).find(|&k| !self.problem.fixed[k].closed) else {
            if free == 0 {
                self.set_cuts(layers);
                if self.excess(policy) == 0 {
                    *found |= self.file(policy).is_some();
                }
            }
            return;
        };
        for more in 0..=free {
            layers[next] += more;
            self.splits_from(next + 1, free - more, layers, policy, found);
            layers[next] -= more;
        }
    }

    /// Tries the even split; whether it fits into memory. Of the ways to recompute only those count that
    /// none with which it fits beats for every kind of layer.
    fn even(&mut self, policy: Policy) -> bool {
        let layers = self.problem.even_layers();
        if layers.iter().enumerate().any(|(k, &n)| n < self.problem.least(k)) {
            return false;
        }
        let dearer = |one: Choice, other: Choice| match (one, other) {
            (Choice::Mode(one), Choice::Mode(other)) => {
                let costs = self.tables.mode(one).iter().zip(self.tables.mode(other));
                costs.into_iter().all(|(one, other)| one.extra >= other.extra)
            }
            (Choice::Block(one), Choice::Block(other)) => one >= other,
            _ => false,
        };
        let known_to_fit = |choice| self.evens.iter().any(|(_, known)| dearer(choice, known.recompute[0]));
        if matches!(policy, Policy::All(choice) if known_to_fit(choice)) {
            return true;
        }
        self.set_cuts(&layers);
        let Some(step) = self.file(policy) else { return false };
        let first = match self.objective {
            Objective::Chain => 0,
            Objective::Closed => self.work.evaluation.closed.0,
        };
        self.evens.push((Score { first, step }, self.work.trial.clone()));
        true
    }

    pub fn set_cuts(&mut self, layers: &[u32]) {
        self.work.cuts.clear();
        self.work.cuts.push(0);
        let mut at = 0;
        for &n in layers {
            at += n;
            self.work.cuts.push(at);
        }
    }

    /// Tries splits of two levels; whether one of them fits into memory. The one that lacks the least
    /// is left in `work.nearest`.
    fn two_levels(&mut self, policy: Policy) -> bool {
        self.work.nearest.clear();
        let Some(lowest) = self.lowest_level(policy) else { return false };
        let chunks = self.chunks();
        // About one layer.
        let open = self.problem.fixed.iter().filter(|fixed| !fixed.closed).count() as u32;
        let layer = lowest / u64::from(self.tables.layers / open.max(1) + 1).max(1);
        // Fewer starts where simulations are long.
        let group = self.problem.pipeline.shape.map_or(0, |shape| u64::from(shape.group()));
        let starts = (PASSES / (4 * chunks as u64 * group).max(1) / 3).clamp(2, 8) as usize;
        let stride = (chunks / starts).max(1);
        let mut best: Option<(u64, Levels)> = None;
        let mut least_excess = u64::MAX;
        let mut found = false;
        let mut attempt = |search: &mut Self, levels: Levels, best: &mut Option<(u64, Levels)>| {
            if !search.place(levels, policy) {
                return;
            }
            match search.file(policy) {
                Some(step) => {
                    found = true;
                    if best.is_none_or(|(known, _)| step < known) {
                        *best = Some((step, levels));
                    }
                }
                None => {
                    let excess = search.excess(policy);
                    if excess < least_excess {
                        least_excess = excess;
                        search.work.nearest.clone_from(&search.work.cuts);
                    }
                }
            }
        };
        // One level for all always places everything.
        self.prepare(lowest, lowest, policy);
        attempt(self, Levels { high: lowest, low: lowest, last: lowest, start: 0 }, &mut best);
        for high in [lowest, lowest + layer / 2] {
            let low = high.saturating_sub(layer);
            self.prepare(low, low, policy);
            for start in (0..chunks).step_by(stride) {
                attempt(self, Levels { high, low, last: low, start }, &mut best);
            }
        }
        // Other levels of the last chunk and finer starts, from the best so far.
        if let Some((_, chosen)) = best {
            for last in [chosen.high, chosen.low.saturating_sub(layer)] {
                self.prepare(chosen.low, last, policy);
                attempt(self, Levels { last, ..chosen }, &mut best);
            }
        }
        if let Some((_, chosen)) = best {
            self.prepare(chosen.low, chosen.last, policy);
            let mut step = stride / 2;
            while step > 0 && starts > 4 {
                let middle = best.map_or(0, |(_, levels)| levels.start);
                let either = [middle.checked_sub(step), Some(middle + step).filter(|&s| s < chunks)];
                for start in either.into_iter().flatten() {
                    attempt(self, Levels { start, ..chosen }, &mut best);
                }
                step /= 2;
            }
        }
        found
    }

    fn excess(&mut self, policy: Policy) -> u64 {
        (0..self.problem.pipeline.ranks as usize)
            .map(|rank| self.rank(rank, policy).excess)
            .fold(0, u64::saturating_add)
    }

    /// Turns the cuts into an assignment, times it, and keeps it if it is the best so far. `None` if it
    /// does not fit.
    fn file(&mut self, policy: Policy) -> Option<u64> {
        let problem = self.problem;
        let mut trial = std::mem::take(&mut self.work.trial);
        let mut evaluation = std::mem::take(&mut self.work.evaluation);
        trial.layers.clear();
        trial.layers.extend(self.work.cuts.windows(2).map(|pair| pair[1] - pair[0]));
        trial.recompute.clear();
        match policy {
            Policy::All(choice) => trial.recompute.resize(self.chunks(), choice),
            Policy::Cheapest => {
                trial.recompute.resize(self.chunks(), Choice::Mode(0));
                for (rank, order) in problem.pipeline.orders.iter().enumerate() {
                    let choice = self.rank(rank, policy).choice;
                    for &k in &order.chunks {
                        trial.recompute[k as usize] = choice;
                    }
                }
            }
        }
        let mut filed = None;
        let fits = evaluate_into(problem, &trial, &mut evaluation);
        // Under the first policy those that do not fit show how fast one could be that does.
        if fits.is_ok() || self.exploring && matches!(fits, Err(Violation::Memory { .. })) {
            let step = self.short_simulation(&evaluation);
            let total: u64 = evaluation.forward.iter().chain(&evaluation.backward).map(|t| t.0).sum();
            self.pace = self.pace.min(step as f64 / total.max(1) as f64);
            if fits.is_ok() {
                filed = Some(step);
                let first = match self.objective {
                    Objective::Chain => 0,
                    Objective::Closed => evaluation.closed.0,
                };
                self.keep(Score { first, step }, &trial);
            }
        }
        self.work.trial = trial;
        self.work.evaluation = evaluation;
        filed
    }

    /// Keeps an assignment if it is among the best few.
    fn keep(&mut self, score: Score, trial: &Assignment) {
        let key = |(score, assignment): &(Score, Assignment)| (*score, assignment.layers.clone());
        let at = self.finalists.partition_point(|known| key(known) < (score, trial.layers.clone()));
        if at >= FINALISTS || self.finalists.get(at).is_some_and(|known| known.1 == *trial) {
            return;
        }
        self.finalists.truncate(FINALISTS - 1);
        self.finalists.insert(at, (score, trial.clone()));
        self.best = self.finalists.first().map(|known| known.0);
    }

    /// The best of the finalists by a longer simulation.
    fn choose(&mut self, into: &mut Assignment) -> bool {
        let mut evaluation = std::mem::take(&mut self.work.evaluation);
        let mut best: Option<Score> = None;
        let even = self.evens.iter().min_by_key(|(score, _)| *score).cloned();
        // What is clearly behind after the short simulation mostly stays behind; the even split gets
        // its chance all the same.
        let all = || self.finalists.iter().chain(&even);
        let near = all()
            .map(|(score, _)| *score)
            .min()
            .map(|best| Score { step: best.step + best.step / 128, ..best });
        let mut finalists: Vec<(Score, Assignment)> = Vec::new();
        for (score, assignment) in all() {
            let is_even = even.as_ref().is_some_and(|even| even.1 == *assignment);
            let stays = is_even || near.is_some_and(|near| *score <= near);
            if stays && finalists.iter().all(|known| known.1 != *assignment) {
                finalists.push((*score, assignment.clone()));
            }
        }
        if let [(_, only)] = &finalists[..] {
            only.clone_into(into);
            self.work.evaluation = evaluation;
            return true;
        }
        for (score, assignment) in finalists {
            if evaluate_into(self.problem, &assignment, &mut evaluation).is_ok() {
                let score = Score { step: self.long_simulation(&evaluation), ..score };
                if best.is_none_or(|known| score < known) {
                    best = Some(score);
                    *into = assignment;
                }
            }
        }
        self.work.evaluation = evaluation;
        best.is_some()
    }

    /// Makespan of two rounds of micro-batches, the rest at the pace of the fullest rank.
    fn short_simulation(&mut self, evaluation: &Evaluation) -> u64 {
        let pipeline = &*self.problem.pipeline;
        let Some(shape) = pipeline.shape else { return evaluation.bound.0 };
        let short = shape.micro_batches.min(2 * shape.group());
        let makespan = self.simulate(Shape { micro_batches: short, ..shape }, evaluation);
        let time = |order: &super::RankOrder| {
            let both = |&k: &u32| evaluation.forward[k as usize].0 + evaluation.backward[k as usize].0;
            order.chunks.iter().map(both).sum::<u64>()
        };
        let pace = pipeline.orders.iter().map(time).max().unwrap_or(0);
        makespan + u64::from(shape.micro_batches - short) * pace + evaluation.tail.0
    }

    /// Makespan of six rounds of micro-batches, the rest at the pace of the last four.
    fn long_simulation(&mut self, evaluation: &Evaluation) -> u64 {
        let Some(shape) = self.problem.pipeline.shape else { return evaluation.bound.0 };
        let (m, group) = (shape.micro_batches, shape.group());
        let short = Shape { micro_batches: 2 * group, ..shape };
        let long = Shape { micro_batches: 6 * group, ..shape };
        if m <= long.micro_batches {
            return self.simulate(shape, evaluation) + evaluation.tail.0;
        }
        let (first, all) = (self.simulate(short, evaluation), self.simulate(long, evaluation));
        let more = u128::from(all - first) * u128::from(m - 6 * group) / u128::from(4 * group);
        all + u64::try_from(more).unwrap_or(u64::MAX / 4) + evaluation.tail.0
    }

    fn simulate(&mut self, shape: Shape, evaluation: &Evaluation) -> u64 {
        if shape.schedule == Schedule::Interleaved {
            return self.work.walks.makespan(shape, evaluation, self.problem.hop);
        }
        self.work.no_weight.clear();
        self.work.no_weight.resize(self.chunks(), Picos::ZERO);
        let load = Load {
            forward: &evaluation.forward,
            backward: &evaluation.backward,
            weight: &self.work.no_weight,
            hop: self.problem.hop,
        };
        self.work.simulator.run(shape, load).0
    }

    /// Moves single layers away from ranks that lack memory, from the nearest split, until it fits.
    fn wander(&mut self, policy: Policy) -> bool {
        if self.work.nearest.is_empty() {
            return false;
        }
        let nearest = std::mem::take(&mut self.work.nearest);
        self.work.cuts.clone_from(&nearest);
        self.work.nearest = nearest;
        let (chunks, ranks) = (self.chunks(), self.problem.pipeline.ranks as usize);
        let mut excess = self.excess(policy);
        // Every move costs the memory of all ranks: a few thousand of those are a millisecond.
        let mut budget = 4_000 / ranks.max(1);
        while excess > 0 && budget > 0 {
            let mut best: Option<(u64, usize, usize)> = None;
            let Some(worst) = (0..ranks).max_by_key(|&rank| self.rank(rank, policy).excess) else { break };
            for &a in &self.problem.pipeline.orders[worst].chunks {
                for b in 0..chunks {
                    let a = a as usize;
                    if a == b || budget == 0 || !self.shift(a, b) {
                        continue;
                    }
                    budget -= 1;
                    let left = self.excess(policy);
                    self.shift(b, a);
                    if left < best.map_or(excess, |(known, ..)| known) {
                        best = Some((left, a, b));
                    }
                }
            }
            let Some((left, a, b)) = best else { break };
            self.shift(a, b);
            excess = left;
        }
        excess == 0
    }

    /// Moves one layer's worth from chunk `a` to chunk `b`, shifting the boundaries in between.
    fn shift(&mut self, a: usize, b: usize) -> bool {
        let cuts = &mut self.work.cuts;
        if cuts[a + 1] - cuts[a] <= self.problem.least(a) || self.problem.fixed[b].closed {
            return false;
        }
        if a < b {
            cuts[a + 1..=b].iter_mut().for_each(|cut| *cut -= 1);
        } else {
            cuts[b + 1..=a].iter_mut().for_each(|cut| *cut += 1);
        }
        true
    }

    /// Whether the model could fit at all: even if every layer went to the chunk of each rank that has
    /// the fewest micro-batches in flight on average.
    pub fn memory_may_suffice(&self, policy: Policy) -> bool {
        let problem = self.problem;
        let kept = |kind: usize| match policy {
            Policy::All(Choice::Mode(mode)) if problem.modes[usize::from(mode)].group == 1 => {
                self.tables.mode(mode)[kind].kept
            }
            Policy::All(Choice::Mode(_)) => 0,
            _ => (0..problem.modes.len() as u16)
                .map(|mode| self.tables.mode(mode)[kind].kept)
                .min()
                .unwrap_or(0),
        };
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

    /// Whether recomputation in this way could beat the best so far, if it came as close to its total
    /// time as anything has yet, memory left aside.
    fn may_beat_best(&self, policy: Policy) -> bool {
        match self.best {
            Some(best) => (self.total(policy) as f64 * self.pace) < best.step as f64,
            None => true,
        }
    }

    /// Time of one micro-batch through the whole model, about.
    fn total(&self, policy: Policy) -> u64 {
        let problem = self.problem;
        let mut total: u64 = problem.fixed.iter().map(|f| f.forward.0 + f.backward.0).sum();
        for (kind, &n) in self.tables.totals[..self.tables.kinds].iter().enumerate() {
            let Kind { forward, backward, .. } = problem.kinds[kind];
            let extra = |mode: u16| self.tables.mode(mode)[kind].extra;
            let plain = forward.0 + backward.0;
            total += u64::from(n) * plain;
            total += match (policy, problem.block) {
                (Policy::All(Choice::Mode(mode)), _) => u64::from(n) * extra(mode),
                (Policy::All(Choice::Block(whole)), Some(block)) => {
                    // As if every chunk held its share.
                    let share = (self.tables.layers / self.chunks() as u32).max(1);
                    let full = u64::from(n) * u64::from(whole.min(share)) / u64::from(share);
                    full * extra(block.full) + (u64::from(n) - full) * extra(block.rest)
                }
                _ => 0,
            };
        }
        total
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
fn bound_of_all(problem: &Problem, tables: &Tables) -> u64 {
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
    let search = Chunked::new(problem, tables, work, Objective::Chain);
    let least: u32 = (0..search.chunks()).map(|k| problem.least(k)).sum();
    if tables.layers < least || !search.memory_may_suffice(Policy::Cheapest) {
        return None;
    }
    Some(bound_of_all(problem, tables))
}

/// A lower bound on [`Evaluation::closed`] over all assignments.
pub(super) fn least_closed(problem: &Problem, tables: &Tables) -> u64 {
    let (pace, total) = least_pace(problem, tables);
    problem.pipeline.closed_value(pace, total)
}
