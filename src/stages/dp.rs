//! The exact dynamic programme for one chunk per rank.
//!
//! Both objectives have the shape `sum of s_i + max of u_i` over the stages, where `s_i` and `u_i` are
//! integers that depend on the stage and on its interval of layers. Adding layers to a stage never makes
//! it cheaper or smaller. Hence:
//!
//! 1. The smallest bottleneck `beta = min max u_i` is found by greedy walks: every stage takes as many
//!    layers as `beta` allows; the smallest cost that was refused is the next `beta` worth trying.
//! 2. Where the sum does not depend on the split (one recompute mode for all), that is the optimum, and
//!    the walk from the last stage gives the lexicographically smallest counts.
//! 3. Otherwise a dynamic programme over (stage, first layer) gives the least sum under `beta`; if a
//!    larger bottleneck could still pay, a second one over all pairs (sum, bottleneck) that no other
//!    pair beats in both decides. Both look only at the boundaries that the walks allow.
//!
//! A stage's own recompute choice is the cheapest that fits, which is optimal for both objectives.

use super::chunked::{self, ChunkWork, KnownSplits};
use super::pipeline::{Form, Weights};
use super::splits::{Makespan, Splits, Spread, relieved_otherwise};
use super::tables::{Interval, ModeCost, Tables};
use super::{
    Assignment, Block, Choice, Counts, Evaluation, Fixed, Freedom, Kind, MAX_KINDS, Objective, Problem,
    evaluate, shared_bytes,
};
use crate::units::Picos;

/// What a solver found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// An optimal assignment, to be read with [`Balancer::assignment`].
    Found(Picos),
    /// Nothing has an objective below the threshold (there may be no assignment at all).
    NotBelow,
    /// No assignment fits.
    Infeasible,
}

/// Solves balancing problems one after the other, reusing its memory.
#[derive(Debug, Default)]
pub struct Balancer {
    assignment: Assignment,
    work: Work,
    chunks: ChunkWork,
}

/// Scratch memory.
#[derive(Debug, Default)]
struct Work {
    tables: Tables,
    /// First layer of each stage, and the end.
    cuts: Vec<u32>,
    /// Best cuts so far, over recompute choices.
    best: Vec<u32>,
    /// Smallest and largest boundary before each stage.
    low: Vec<u32>,
    high: Vec<u32>,
    /// Whether a boundary can be reached.
    reach: Vec<bool>,
    /// Least sum from a boundary to the end, and from the start to it.
    suffix: Vec<u64>,
    prefix_sum: Vec<u64>,
    /// Start of each stage's part of `suffix`, `prefix_sum` and `spans`.
    offsets: Vec<usize>,
    /// Pairs (sum, bottleneck) of every boundary, and where each boundary's begin and end.
    pairs: Vec<(u64, u64)>,
    spans: Vec<(u32, u32)>,
    fresh: Vec<(u64, u64)>,
    /// Cost of a stage by its number of layers, where all layers are equal.
    memo: Vec<Option<Stage>>,
}

/// How recomputation is chosen while layers are placed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Policy {
    /// One given choice for all stages.
    All(Choice),
    /// Each stage the cheapest that fits.
    Cheapest,
}

/// What is left of a stage's memory for activations.
#[derive(Debug, Clone, Copy)]
struct Memory {
    in_flight: u64,
    room: u64,
}

impl Memory {
    /// The extra time, if the kept bytes fit.
    #[inline]
    fn fitting(self, total: ModeCost) -> Option<u64> {
        (self.in_flight * total.kept + total.transient <= self.room).then_some(total.extra)
    }
}

/// Cost of one stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stage {
    /// What it adds to the sum.
    sum: u64,
    /// Its bottleneck.
    peak: u64,
    /// What it recomputes.
    choice: Choice,
}

/// A sum beyond everything.
const NONE: u64 = u64::MAX;
/// No limit: less than [`NONE`], so that what does not fit never passes.
const FREE: u64 = NONE - 1;

impl Balancer {
    /// An empty one.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// One that shares splits that are known.
    pub(crate) fn sharing(known: &KnownSplits) -> Self {
        let mut balancer = Self::default();
        balancer.chunks.known = known.clone();
        balancer
    }

    /// The assignment of the last [`Outcome::Found`].
    #[must_use]
    pub fn assignment(&self) -> &Assignment {
        &self.assignment
    }

    /// Minimises an objective over all splits and all recomputation that the problem allows; among
    /// equals the lexicographically smallest layer counts. Only assignments whose objective is below
    /// `below` are looked for; the threshold never changes an answer below it.
    ///
    /// The problem must have passed [`Problem::check`] and have one chunk per rank; for several there are
    /// [`Balancer::splits`] and [`Balancer::completions`].
    pub fn solve(&mut self, problem: &Problem, objective: Objective, below: Option<Picos>) -> Outcome {
        let most = match below {
            None => FREE,
            Some(Picos(0)) => return Outcome::NotBelow,
            Some(Picos(time)) => time - 1,
        };
        let mut search = Search::new(problem, &mut self.work, objective);
        let Some((value, policy)) = search.best_policy(most) else {
            return if below.is_some() { Outcome::NotBelow } else { Outcome::Infeasible };
        };
        search.read_cuts(policy, &mut self.assignment);
        Outcome::Found(Picos(value))
    }

    /// [`Balancer::solve`] with the recomputation of the last [`Outcome::Found`]; where ranks choose for
    /// themselves, with any.
    pub fn solve_alike(&mut self, problem: &Problem, objective: Objective) -> Outcome {
        let policy = match (problem.freedom, self.assignment.recompute.first()) {
            (Freedom::Global, Some(&choice)) => Policy::All(choice),
            _ => Policy::Cheapest,
        };
        let mut search = Search::new(problem, &mut self.work, objective);
        let Some(value) = search.optimum(policy, FREE) else { return Outcome::Infeasible };
        search.read_cuts(policy, &mut self.assignment);
        Outcome::Found(Picos(value))
    }

    /// A lower bound on [`Evaluation::bound`] over all splits of a problem with several chunks per rank and
    /// all recomputation, whatever [`Problem::freedom`] says: the work of the fullest rank or the average
    /// chain. `None` if nothing fits.
    pub fn lower_bound(&mut self, problem: &Problem) -> Option<Picos> {
        self.work.tables.load(problem);
        chunked::least_bound(problem, &self.work.tables, &mut self.chunks).map(Picos)
    }

    /// Of the same, what knows nothing of memory.
    pub fn lower_bound_of_passes(&mut self, problem: &Problem) -> Picos {
        self.work.tables.load(problem);
        Picos(chunked::bound_of_all(problem, &self.work.tables))
    }

    /// Splits over several chunks per rank that are worth timing, whatever the memory: the even one, and
    /// as far as `spread` says others.
    pub fn splits(&mut self, problem: &Problem, spread: Spread) -> Splits {
        self.work.tables.load(problem);
        Splits::new(problem, &self.work.tables, &mut self.chunks, spread)
    }

    /// [`Balancer::splits`], and the least bound of the [`Balancer::completions`] if none of them is relieved,
    /// where it is `most` or less.
    pub fn bounded_splits(
        &mut self,
        problem: &Problem,
        spread: Spread,
        most: Picos,
    ) -> (Splits, Option<Picos>) {
        let mut splits = self.splits(problem, spread);
        let least = splits.least_of_list(problem, &self.work.tables, &mut self.chunks, most);
        (splits, least)
    }

    /// What the fastest of the [`Balancer::completions`] takes at least if none of them is relieved, where that is
    /// `most` or less, by simulation: `makespan` of the passes of all chunks, if it is not above a time. `splits` are
    /// those that [`Balancer::bounded_splits`] made of this problem.
    pub fn simulated_splits(
        &mut self,
        problem: &Problem,
        splits: &mut Splits,
        most: Picos,
        makespan: &mut Makespan<'_>,
    ) -> Option<Picos> {
        self.work.tables.load(problem);
        splits.least_simulated(problem, &self.work.tables, &mut self.chunks, most, makespan)
    }

    /// The completions of a problem with several chunks per rank, one of which is to be chosen by
    /// simulation: a fixed list, from which only those are left out whose lower bound on the makespan
    /// exceeds `most`. `splits` are those of this problem or of one that differs from it in held bytes alone.
    pub fn completions(&mut self, problem: &Problem, splits: &mut Splits, most: Picos) -> Vec<Assignment> {
        self.work.tables.load(problem);
        splits.completions(problem, &self.work.tables, &mut self.chunks, most)
    }

    /// Splits over several chunks per rank in which ranks that lack memory hold fewer layers, each with another way to recompute
    /// than `but`: of those in which some assignment may take `most` or less, as many as are `tries`d.
    pub fn relieved_otherwise(
        &mut self,
        problem: &Problem,
        (but, most): (Choice, Picos),
        tries: usize,
    ) -> Vec<Assignment> {
        self.work.tables.load(problem);
        relieved_otherwise(problem, &self.work.tables, &mut self.chunks, (but, most), tries)
    }

    /// Whether any of the splits by rules fits in memory, so that none is relieved.
    pub fn any_fits(&mut self, problem: &Problem, splits: &mut Splits) -> bool {
        self.work.tables.load(problem);
        splits.any_fits(problem, &self.work.tables)
    }

    /// The even split with the cheapest recomputation that fits, if any does.
    pub fn even(&mut self, problem: &Problem) -> Option<(Assignment, Evaluation)> {
        let layers = problem.even_layers();
        let too_small = |(k, &n): (usize, &u32)| n < problem.least(k);
        if layers.iter().enumerate().any(too_small) {
            return None;
        }
        self.given(problem, &layers)
    }

    /// Given layer counts with the cheapest recomputation that fits, if any does.
    pub fn given(&mut self, problem: &Problem, layers: &[u32]) -> Option<(Assignment, Evaluation)> {
        let mut search = Search::new(problem, &mut self.work, Objective::Chain);
        search.work.cuts.clear();
        search.work.cuts.push(0);
        for &n in layers {
            let end = search.work.cuts.last().copied().unwrap_or(0) + n;
            search.work.cuts.push(end);
        }
        let mut best: Option<(u64, Policy)> = None;
        search.each_policy(|search, policy| {
            let known = best.map_or(FREE, |(known, _)| known);
            if let Some(value) = search.value_of_cuts(policy).filter(|&value| value < known) {
                best = Some((value, policy));
            }
        });
        let (_, policy) = best?;
        search.read_cuts(policy, &mut self.assignment);
        let evaluation = evaluate(problem, &self.assignment).ok()?;
        Some((self.assignment.clone(), evaluation))
    }
}

/// One problem, one objective.
struct Search<'a> {
    problem: &'a Problem,
    work: &'a mut Work,
    stages: usize,
    layers: u32,
    kinds: usize,
    /// Weights of the sum.
    base: Weights,
    /// The two rows of each stage's bottleneck; the closed form has one for all stages.
    rows: Rows<'a>,
    /// Added to every value.
    constant: u64,
    /// Sum of the fewest layers of all stages.
    least: u32,
}

#[derive(Clone, Copy)]
enum Rows<'a> {
    PerStage(&'a Form),
    Same(Weights),
}

impl Rows<'_> {
    fn peak(self, stage: usize, forward: u64, backward: u64) -> u64 {
        match self {
            Self::PerStage(form) => form.rank(stage, forward, backward),
            Self::Same(weights) => weights.of(forward, backward),
        }
    }
    fn pair(self, stage: usize) -> [Weights; 2] {
        match self {
            Self::PerStage(form) => form.ranks[stage],
            Self::Same(weights) => [weights; 2],
        }
    }
}

impl<'a> Search<'a> {
    fn new(problem: &'a Problem, work: &'a mut Work, objective: Objective) -> Self {
        let pipeline = &*problem.pipeline;
        let (base, rows, constant) = match (objective, &pipeline.form) {
            (Objective::Chain, Some(form)) => (form.base, Rows::PerStage(form), form.hops * problem.hop.0),
            _ => {
                let more = pipeline.micro_batches.saturating_sub(1);
                let one = Weights { forward: 1, backward: 1 };
                (one, Rows::Same(Weights { forward: more, backward: more }), 0)
            }
        };
        work.tables.load(problem);
        let (layers, kinds) = (work.tables.layers, work.tables.kinds);
        let stages = problem.chunks();
        let least = (0..stages).map(|stage| problem.least(stage)).sum();
        Self { problem, work, stages, layers, kinds, base, rows, constant, least }
    }

    /// Cost of a stage with an interval of layers; `None` if it does not fit.
    fn stage(&self, stage: usize, from: u32, to: u32, policy: Policy) -> Option<Stage> {
        let problem = self.problem;
        let fixed = &problem.fixed[stage];
        if fixed.closed && to > from {
            return None;
        }
        let tables = &self.work.tables;
        let mut counts = Counts::default();
        tables.count(from, to, &mut counts);
        let Interval { forward, backward, held, gathered, touches } =
            tables.interval(problem, fixed, &counts);
        let steady = problem.rank_bytes.0 + held + gathered + shared_bytes(&problem.shared, touches);
        let room = problem.limit.0.checked_sub(steady)?;
        let memory = Memory { in_flight: u64::from(problem.pipeline.orders[stage].in_flight[0]), room };
        let (extra, choice) = match policy {
            Policy::All(choice @ Choice::Mode(mode)) => {
                (memory.fitting(tables.in_mode(problem, fixed, &counts, mode))?, choice)
            }
            Policy::All(choice @ Choice::Block(n)) => {
                (memory.fitting(tables.in_block(problem, fixed, (from, to), n))?, choice)
            }
            Policy::Cheapest => self.cheapest(fixed, from, to, &counts, memory)?,
        };
        let backward = backward + extra;
        let mut sum = self.base.of(forward, backward);
        if stage == 0 {
            sum += problem.tail.as_ref().map_or(0, |tail| tail.at(&counts));
        }
        Some(Stage { sum, peak: self.rows.peak(stage, forward, backward), choice })
    }

    /// The choice with the least extra time that fits.
    fn cheapest(
        &self,
        fixed: &Fixed,
        from: u32,
        to: u32,
        counts: &Counts,
        memory: Memory,
    ) -> Option<(u64, Choice)> {
        let tables = &self.work.tables;
        let mut best: Option<(u64, Choice)> = None;
        for &mode in &tables.modes {
            let known = best.map_or(NONE, |(extra, _)| extra);
            let total = tables.in_mode(self.problem, fixed, counts, mode);
            if let Some(extra) = memory.fitting(total).filter(|&extra| extra < known) {
                best = Some((extra, Choice::Mode(mode)));
                // With one kind the modes come in the order of their cost.
                if extra == 0 || self.kinds == 1 && !fixed.recomputes {
                    break;
                }
            }
        }
        let known = best.map_or(NONE, |(extra, _)| extra);
        let block = self.problem.block.filter(|_| known > 0);
        let whole = block.and_then(|block| self.least_block(fixed, from, to, counts, block, memory, known));
        whole.map(|(extra, n)| (extra, Choice::Block(n))).or(best)
    }

    /// The cheapest count of wholly recomputed layers that fits and costs less than `below`. Recomputing
    /// more layers never costs less, so it is the smallest that fits.
    #[expect(clippy::too_many_arguments, reason = "the stage and what is known of it")]
    fn least_block(
        &self,
        fixed: &Fixed,
        from: u32,
        to: u32,
        counts: &Counts,
        block: Block,
        memory: Memory,
        below: u64,
    ) -> Option<(u64, u32)> {
        let all = to - from;
        let (mut n, most) = (block.counts.0, block.counts.1.min(all.max(block.counts.0)));
        let tables = &self.work.tables;
        let (full, rest) = (tables.mode(block.full), tables.mode(block.rest));
        let mut whole = tables.ends(fixed, block.rest);
        if self.kinds == 1 && n < all {
            // Every layer saves the same: jump to the count that saves what is missing.
            let transient = whole.transient.max(full[0].transient).max(rest[0].transient);
            let need = memory.in_flight * (whole.kept + u64::from(all) * rest[0].kept) + transient;
            let saved = memory.in_flight * rest[0].kept.saturating_sub(full[0].kept);
            let missing = need.saturating_sub(memory.room);
            if missing > 0 {
                let enough = if saved == 0 { u64::from(all) } else { missing.div_ceil(saved) };
                n = n.max(enough.min(u64::from(all)) as u32);
            }
        }
        if n > most {
            return None;
        }
        // Then one layer more at a time.
        let edge = to.min(from + n);
        let mut left = *counts;
        let first = tables.counts(from, edge);
        for kind in 0..self.kinds {
            left[kind] -= first[kind];
            whole.add(&full[kind], first[kind]);
            whole.add(&ModeCost { transient: 0, ..rest[kind] }, left[kind]);
        }
        loop {
            let mut total = whole;
            for (cost, &count) in rest.iter().zip(&left) {
                if count > 0 {
                    total.transient = total.transient.max(cost.transient);
                }
            }
            if total.extra >= below {
                return None;
            }
            if let Some(extra) = memory.fitting(total) {
                return Some((extra, n));
            }
            if n >= most || from + n >= to {
                return None;
            }
            let kind = usize::from(tables.kind_at[(from + n) as usize]);
            whole.add(&full[kind], 1);
            whole.extra -= rest[kind].extra;
            whole.kept -= rest[kind].kept;
            left[kind] -= 1;
            n += 1;
        }
    }

    /// A lower bound on the sum over all splits with at most `longest` layers on a stage.
    fn least_sum(&self, policy: Policy, longest: u32) -> u64 {
        let problem = self.problem;
        let mut sum = 0;
        for fixed in &problem.fixed {
            let (forward, backward) = self.ends(policy, fixed);
            sum += self.base.of(forward, backward);
        }
        for (kind, count) in self.present() {
            let Kind { forward, backward, .. } = problem.kinds[kind];
            let extra = self.least_extra(policy, kind);
            sum += count * self.base.of(forward.0, backward.0 + extra);
        }
        sum + self.base.backward * self.least_block_extra(policy, longest)
    }

    /// Passes of a stage beside its layers, at least.
    fn ends(&self, policy: Policy, fixed: &Fixed) -> (u64, u64) {
        let extra = match policy {
            Policy::All(choice) if fixed.recomputes => self.problem.beside(choice.way()).extra.0,
            _ => 0,
        };
        (fixed.forward.0, fixed.backward.0 + extra)
    }

    /// What recomputing the first `n` layers of every stage costs at least, on top of
    /// [`Search::least_extra`]. As `min(n, layers of a stage)` is concave, it is least where as many
    /// stages as possible hold `longest` layers.
    fn least_block_extra(&self, policy: Policy, longest: u32) -> u64 {
        let (Policy::All(Choice::Block(n)), Some(block)) = (policy, self.problem.block) else { return 0 };
        let extra = |mode: u16, kind: usize| self.work.tables.mode(mode)[kind].extra;
        let more = |(kind, _)| extra(block.full, kind).saturating_sub(extra(block.rest, kind));
        let each = self.present().map(more).min().unwrap_or(0);
        let longest = longest.max(1);
        let layers = self.layers / longest * n.min(longest) + n.min(self.layers % longest);
        each * u64::from(layers)
    }

    /// Kinds that the model has, with their numbers of layers.
    fn present(&self) -> impl Iterator<Item = (usize, u64)> + '_ {
        let counts = self.work.tables.totals[..self.kinds].iter().enumerate();
        counts.filter(|&(_, &count)| count > 0).map(|(kind, &count)| (kind, u64::from(count)))
    }

    /// The least extra time of a layer.
    fn least_extra(&self, policy: Policy, kind: usize) -> u64 {
        let extra = |mode: u16| self.work.tables.mode(mode)[kind].extra;
        match (policy, self.problem.block) {
            (Policy::All(Choice::Mode(mode)), _) => extra(mode),
            (Policy::All(Choice::Block(_)), Some(block)) => extra(block.full).min(extra(block.rest)),
            _ => 0,
        }
    }

    /// Whether the sum is the same for every split.
    fn sum_is_constant(&self, policy: Policy) -> bool {
        self.problem.tail.is_none()
            && (matches!(policy, Policy::All(Choice::Mode(_))) || self.base == Weights::default())
    }

    /// A lower bound on the bottleneck, memory left aside: if stage `i` pays at least `c_i` per unit of
    /// its own time, the stages cannot all stay below `total time / sum of 1/c_i`.
    fn least_bottleneck(&self, policy: Policy, longest: u32) -> u64 {
        let problem = self.problem;
        let (mut forward, mut backward) = (0, 0);
        let mut parts = [(0_u64, 0_u64); MAX_KINDS];
        for (kind, count) in self.present() {
            let Kind { forward: Picos(f), backward: Picos(b), .. } = problem.kinds[kind];
            let b = b + self.least_extra(policy, kind);
            parts[kind] = (f, b);
            forward += count * f;
            backward += count * b;
        }
        let mut inverse = 0.0;
        let more = self.least_block_extra(policy, longest);
        let mut total = (forward + backward + more) as f64;
        for (stage, fixed) in problem.fixed.iter().enumerate() {
            let [one, other] = self.rows.pair(stage);
            let row = if one.of(forward, backward) >= other.of(forward, backward) { one } else { other };
            let mut least = if more > 0 { row.backward as f64 } else { f64::INFINITY };
            let ends = self.ends(policy, fixed);
            for &(f, b) in parts[..self.kinds].iter().chain([&ends]) {
                if f + b > 0 {
                    least = least.min(row.of(f, b) as f64 / (f + b) as f64);
                }
            }
            if least <= 0.0 {
                return 0;
            }
            if least.is_finite() && !fixed.closed {
                inverse += 1.0 / least;
                total += (ends.0 + ends.1) as f64;
            }
        }
        // Floating point: give away far more than its error.
        if inverse > 0.0 { (total / inverse * (1.0 - 1e-9)) as u64 } else { 0 }
    }

    /// Whether greedy walks decide feasibility exactly: always, unless stages must hold a layer and
    /// layers differ.
    fn greedy_is_exact(&self) -> bool {
        self.kinds == 1 || self.least == 0
    }

    /// The largest `to` that a stage can take from `from` under `beta`, at least `least` layers more
    /// and at most `cap`; and the smallest cost refused. `Err` if even the least is refused.
    fn extend(
        &self,
        stage: usize,
        from: u32,
        (least, cap): (u32, u32),
        policy: Policy,
        beta: u64,
        guess: u32,
    ) -> Result<(u32, u64, u64), u64> {
        let cost = |to| self.stage(stage, from, to, policy).map_or(NONE, |cost| cost.peak);
        self.bisect(cost, from + least, cap, from + guess, beta)
    }

    /// As [`Search::extend`], from the other end: the smallest `from`.
    fn extend_back(
        &self,
        stage: usize,
        to: u32,
        (least, floor): (u32, u32),
        policy: Policy,
        beta: u64,
        guess: u32,
    ) -> Result<(u32, u64, u64), u64> {
        let cost = |reach: u32| self.stage(stage, to - reach, to, policy).map_or(NONE, |cost| cost.peak);
        let (reach, used, refused) = self.bisect(cost, least, to - floor, guess, beta)?;
        Ok((to - reach, used, refused))
    }

    /// The largest value in `least..=cap` whose (monotone) cost is at most `beta`, its cost, and the
    /// next cost; `Err` with the cost of `least` if that is more.
    fn bisect(
        &self,
        cost: impl Fn(u32) -> u64,
        least: u32,
        cap: u32,
        guess: u32,
        beta: u64,
    ) -> Result<(u32, u64, u64), u64> {
        if cap < least {
            return Err(NONE);
        }
        let guess = guess.clamp(least, cap);
        let at = cost(guess);
        // good <= beta < bad; `bad_at` is `cap + 1` while unknown.
        let (mut good, mut good_cost, mut bad, mut bad_cost);
        let mut step = 1;
        if at <= beta {
            (good, good_cost) = (guess, at);
            loop {
                if good == cap {
                    return Ok((good, good_cost, NONE));
                }
                let next = cap.min(good + step);
                let c = cost(next);
                if c > beta {
                    (bad, bad_cost) = (next, c);
                    break;
                }
                (good, good_cost) = (next, c);
                step *= 2;
            }
        } else {
            (bad, bad_cost) = (guess, at);
            loop {
                if bad == least {
                    return Err(bad_cost);
                }
                let next = least.max(bad.saturating_sub(step));
                let c = cost(next);
                if c <= beta {
                    (good, good_cost) = (next, c);
                    break;
                }
                (bad, bad_cost) = (next, c);
                step *= 2;
            }
        }
        while bad - good > 1 {
            let middle = good + (bad - good) / 2;
            let c = cost(middle);
            if c <= beta {
                (good, good_cost) = (middle, c);
            } else {
                (bad, bad_cost) = (middle, c);
            }
        }
        Ok((good, good_cost, bad_cost))
    }

    /// Walks from the first stage, each taking what `beta` allows; cuts are left in `work.cuts`.
    /// `Ok` with the largest cost used, `Err` with the smallest refused. If `relaxed`, stages may stay
    /// empty, which can only help.
    fn walk(&mut self, policy: Policy, beta: u64, relaxed: bool) -> Result<u64, u64> {
        let mut cuts = std::mem::take(&mut self.work.cuts);
        cuts.clear();
        cuts.push(0);
        let (mut at, mut used, mut refused, mut ahead) = (0, 0, NONE, self.least);
        let mut guess = self.layers / self.stages.max(1) as u32;
        let mut failed = false;
        for stage in 0..self.stages {
            let least = self.problem.least(stage);
            ahead -= least;
            let least = if relaxed { 0 } else { least };
            match self.extend(stage, at, (least, self.layers.saturating_sub(ahead)), policy, beta, guess) {
                Ok((to, cost, next)) => {
                    guess = to - at;
                    at = to;
                    used = used.max(cost);
                    refused = refused.min(next);
                    cuts.push(to);
                }
                Err(next) => {
                    refused = refused.min(next);
                    failed = true;
                    break;
                }
            }
        }
        self.work.cuts = cuts;
        if failed || at < self.layers { Err(refused) } else { Ok(used) }
    }

    /// Walks from the last stage; the cuts that result are the smallest of all under `beta`.
    fn walk_back(&mut self, policy: Policy, beta: u64, relaxed: bool) -> bool {
        let mut cuts = std::mem::take(&mut self.work.cuts);
        cuts.clear();
        cuts.resize(self.stages + 1, self.layers);
        let (mut at, mut before) = (self.layers, self.least);
        let mut guess = self.layers / self.stages.max(1) as u32;
        let mut done = true;
        for stage in (0..self.stages).rev() {
            let least = self.problem.least(stage);
            before -= least;
            let least = if relaxed { 0 } else { least };
            if before > at {
                done = false;
                break;
            }
            match self.extend_back(stage, at, (least, before), policy, beta, guess) {
                Ok((from, _, _)) => {
                    guess = at - from;
                    at = from;
                    cuts[stage] = from;
                }
                Err(_) => {
                    done = false;
                    break;
                }
            }
        }
        self.work.cuts = cuts;
        done && at == 0
    }

    /// Whether all layers can be placed under `beta`, exactly: `Ok` with a bottleneck not above `beta`,
    /// `Err` with a value below which nothing is possible either.
    fn feasible(&mut self, policy: Policy, beta: u64) -> Result<u64, u64> {
        let greedy = self.walk(policy, beta, false);
        if greedy.is_ok() || self.greedy_is_exact() || self.work.cuts.len() > self.stages {
            return greedy;
        }
        // Stages must hold a layer and layers differ: taking all one can may have left this stage with a
        // layer that it cannot hold. If even empty stages do not help, nothing does; otherwise follow
        // every boundary that can be reached.
        self.walk(policy, beta, true)?;
        let width = self.layers as usize + 1;
        let mut reach = std::mem::take(&mut self.work.reach);
        reach.clear();
        reach.resize(width * (self.stages + 1), false);
        reach[0] = true;
        let (mut refused, mut ahead) = (NONE, self.least);
        for stage in 0..self.stages {
            let least = self.problem.least(stage);
            ahead -= least;
            for from in 0..=self.layers {
                if !reach[stage * width + from as usize] {
                    continue;
                }
                let cap = self.layers.saturating_sub(ahead);
                match self.extend(stage, from, (least, cap), policy, beta, least) {
                    Ok((to, _, next)) => {
                        refused = refused.min(next);
                        let row = &mut reach[(stage + 1) * width..];
                        row[(from + least) as usize..=to as usize].fill(true);
                    }
                    Err(next) => refused = refused.min(next),
                }
            }
        }
        let done = reach[self.stages * width + self.layers as usize];
        self.work.reach = reach;
        if done { Ok(beta) } else { Err(refused) }
    }

    /// The smallest bottleneck, if it is at most `most`.
    fn bottleneck(&mut self, policy: Policy, most: u64, longest: u32) -> Option<u64> {
        if self.layers < self.least {
            return None;
        }
        let mut low = self.least_bottleneck(policy, longest);
        if low > most {
            return None;
        }
        // Does anything fit, and below what there is to beat? Unlimited, this says nothing about where
        // the answer lies.
        let reached = self.feasible(policy, most).ok()?;
        let mut high = (most < FREE).then_some(reached);
        // Candidates are about as many as stages between here and one layer more: halve that interval,
        // and try the smallest cost that was refused in between.
        let mut step = low / u64::from(2 * (self.layers / self.stages as u32 + 1)) + 1;
        for round in 0_u32.. {
            if high.is_some_and(|high| high <= low) {
                return Some(low);
            }
            let beta = match high {
                Some(high) if round % 2 == 1 => low + (high - low) / 2,
                None if round % 2 == 1 => {
                    step *= 2;
                    low.saturating_add(step / 2).min(most)
                }
                _ => low,
            };
            match self.feasible(policy, beta) {
                Ok(_) if beta == low => return Some(low),
                Ok(used) => high = Some(used),
                Err(next) if next > most => return None,
                Err(next) => low = next,
            }
        }
        None
    }

    /// Smallest and largest boundary before each stage under `beta`. False if nothing is possible.
    fn windows(&mut self, policy: Policy, beta: u64) -> bool {
        let relaxed = !self.greedy_is_exact();
        if self.walk(policy, beta, relaxed).is_err() {
            return false;
        }
        self.work.high.clone_from(&self.work.cuts);
        if !self.walk_back(policy, beta, relaxed) {
            return false;
        }
        self.work.low.clone_from(&self.work.cuts);
        let mut offset = 0;
        self.work.offsets.clear();
        for stage in 0..=self.stages {
            // Empty windows are possible where walks were relaxed.
            let (low, high) = (self.work.low[stage], self.work.high[stage]);
            self.work.offsets.push(offset);
            offset += (high + 1).saturating_sub(low) as usize;
        }
        self.work.offsets.push(offset);
        true
    }

    /// Calls `visit` for every interval of a stage inside the windows that costs at most `beta`.
    fn intervals(
        &mut self,
        stage: usize,
        policy: Policy,
        beta: u64,
        mut visit: impl FnMut(&mut Work, u32, u32, Stage),
    ) {
        let least = self.problem.least(stage);
        let (low, high) = (self.work.low[stage], self.work.high[stage]);
        let (next_low, next_high) = (self.work.low[stage + 1], self.work.high[stage + 1]);
        let equal = self.kinds == 1;
        let mut memo = std::mem::take(&mut self.work.memo);
        let mut known = next_low.saturating_sub(high).max(least);
        let memo_start = known;
        memo.clear();
        for from in (low..=high).rev() {
            for to in next_low.max(from + least)..=next_high {
                let cost = if equal {
                    let n = to - from;
                    while known <= n {
                        memo.push(self.stage(stage, 0, known, policy));
                        known += 1;
                    }
                    memo[(n - memo_start) as usize]
                } else {
                    self.stage(stage, from, to, policy)
                };
                match cost {
                    Some(cost) if cost.peak <= beta => visit(self.work, from, to, cost),
                    // More layers never cost less.
                    _ => break,
                }
            }
        }
        self.work.memo = memo;
    }

    /// Least sums from every boundary to the end, under `beta`; returns that of the whole.
    fn least_suffix(&mut self, policy: Policy, beta: u64) -> u64 {
        let size = self.work.offsets[self.stages + 1];
        self.work.suffix.clear();
        self.work.suffix.resize(size, NONE);
        self.work.suffix[size - 1] = 0;
        for stage in (0..self.stages).rev() {
            self.intervals(stage, policy, beta, |work, from, to, cost| {
                let rest = work.suffix[work.offsets[stage + 1] + (to - work.low[stage + 1]) as usize];
                if rest != NONE {
                    let at = work.offsets[stage] + (from - work.low[stage]) as usize;
                    work.suffix[at] = work.suffix[at].min(rest + cost.sum);
                }
            });
        }
        self.work.suffix[0]
    }

    /// Least sums from the start to every boundary, under `beta`; returns that of the whole.
    fn least_prefix(&mut self, policy: Policy, beta: u64) -> u64 {
        let size = self.work.offsets[self.stages + 1];
        self.work.prefix_sum.clear();
        self.work.prefix_sum.resize(size, NONE);
        self.work.prefix_sum[0] = 0;
        for stage in 0..self.stages {
            self.intervals(stage, policy, beta, |work, from, to, cost| {
                let before = work.prefix_sum[work.offsets[stage] + (from - work.low[stage]) as usize];
                if before != NONE {
                    let at = work.offsets[stage + 1] + (to - work.low[stage + 1]) as usize;
                    work.prefix_sum[at] = work.prefix_sum[at].min(before + cost.sum);
                }
            });
        }
        self.work.prefix_sum[size - 1]
    }

    /// The smallest cuts whose sum is the least under `beta`, after [`Search::least_suffix`].
    fn cuts_of_least_sum(&mut self, policy: Policy, beta: u64) {
        let mut cuts = std::mem::take(&mut self.work.cuts);
        cuts.clear();
        cuts.push(0);
        let mut from = 0;
        for stage in 0..self.stages {
            let work = &*self.work;
            let value = work.suffix[work.offsets[stage] + (from - work.low[stage]) as usize];
            let first = (from + self.problem.least(stage)).max(work.low[stage + 1]);
            let to = (first..=work.high[stage + 1]).find(|&to| {
                let rest = work.suffix[work.offsets[stage + 1] + (to - work.low[stage + 1]) as usize];
                rest != NONE
                    && self
                        .stage(stage, from, to, policy)
                        .is_some_and(|cost| cost.peak <= beta && cost.sum + rest == value)
            });
            from = to.unwrap_or(first);
            cuts.push(from);
        }
        self.work.cuts = cuts;
    }

    /// The optimum under one recompute policy, if it is at most `most`; the lexicographically smallest
    /// cuts that reach it are left in `work.cuts`.
    fn optimum(&mut self, policy: Policy, most: u64) -> Option<u64> {
        let most = most.checked_sub(self.constant)?;
        let mut longest = self.layers;
        let mut least_sum = self.least_sum(policy, longest);
        if let (Policy::All(Choice::Block(_)), Some(most_peak)) = (policy, most.checked_sub(least_sum)) {
            longest = self.longest_stage(most_peak);
            least_sum = self.least_sum(policy, longest);
        }
        let most_peak = most.checked_sub(least_sum)?;
        let beta = self.bottleneck(policy, most_peak, longest)?;
        if self.walk_back(policy, beta, false) {
            if self.sum_is_constant(policy) {
                return Some(self.constant + least_sum + beta);
            }
            let sum = self.sum_of_cuts(policy);
            if sum == Some(least_sum) {
                return Some(self.constant + least_sum + beta);
            }
        }
        if !self.windows(policy, beta) {
            return None;
        }
        let sum = self.least_suffix(policy, beta);
        if sum == NONE {
            return None;
        }
        let reached = sum + beta;
        let limit = reached.min(most);
        // The least sum whatever the bottleneck, among those that could still be as good.
        if sum > least_sum && limit - least_sum > beta {
            let wide = limit - least_sum;
            if self.windows(policy, wide) {
                let free = self.least_prefix(policy, wide);
                if free < sum && free + beta <= limit {
                    let found = self.pairs(policy, beta, limit);
                    return found.map(|value| value + self.constant);
                }
            }
            self.windows(policy, beta);
            self.least_suffix(policy, beta);
        }
        if reached > limit {
            return None;
        }
        self.cuts_of_least_sum(policy, beta);
        Some(self.constant + reached)
    }

    /// Minimises sum + bottleneck over all pairs, after [`Search::least_prefix`] under a bottleneck that
    /// allows everything not above `limit`.
    fn pairs(&mut self, policy: Policy, beta: u64, limit: u64) -> Option<u64> {
        let size = self.work.offsets[self.stages + 1];
        self.work.pairs.clear();
        self.work.spans.clear();
        self.work.spans.resize(size, (0, 0));
        self.work.pairs.push((0, 0));
        self.work.spans[size - 1] = (0, 1);
        let whole = self.work.prefix_sum[size - 1];
        let wide = limit - whole;
        let mut fresh = std::mem::take(&mut self.work.fresh);
        for stage in (0..self.stages).rev() {
            let mut open: Option<u32> = None;
            fresh.clear();
            self.intervals(stage, policy, wide, |work, from, to, cost| {
                if open != Some(from) {
                    if let Some(done) = open {
                        close_state(work, stage, done, &mut fresh);
                    }
                    open = Some(from);
                }
                let before = work.prefix_sum[work.offsets[stage] + (from - work.low[stage]) as usize];
                if before == NONE {
                    return;
                }
                let span = work.spans[work.offsets[stage + 1] + (to - work.low[stage + 1]) as usize];
                for &(sum, peak) in &work.pairs[span.0 as usize..span.1 as usize] {
                    let (sum, peak) = (sum + cost.sum, peak.max(cost.peak));
                    if before + sum + peak.max(beta) <= limit {
                        fresh.push((sum, peak));
                    }
                }
            });
            if let Some(done) = open {
                close_state(self.work, stage, done, &mut fresh);
            }
        }
        self.work.fresh = fresh;
        let (first, last) = self.work.spans[0];
        let all = &self.work.pairs[first as usize..last as usize];
        let value = all.iter().map(|&(sum, peak)| sum + peak).min()?;
        // The smallest cuts that reach it.
        let mut cuts = std::mem::take(&mut self.work.cuts);
        cuts.clear();
        cuts.push(0);
        let (mut from, mut sum, mut peak) = (0, 0, 0);
        for stage in 0..self.stages {
            let work = &*self.work;
            let first = (from + self.problem.least(stage)).max(work.low[stage + 1]);
            for to in first..=work.high[stage + 1] {
                let Some(cost) = self.stage(stage, from, to, policy) else { continue };
                let span = work.spans[work.offsets[stage + 1] + (to - work.low[stage + 1]) as usize];
                let reaches = work.pairs[span.0 as usize..span.1 as usize]
                    .iter()
                    .any(|&(s, u)| sum + cost.sum + s + peak.max(cost.peak).max(u) == value);
                if reaches {
                    (from, sum, peak) = (to, sum + cost.sum, peak.max(cost.peak));
                    break;
                }
            }
            cuts.push(from);
        }
        self.work.cuts = cuts;
        Some(value)
    }

    fn sum_of_cuts(&self, policy: Policy) -> Option<u64> {
        let cuts = &self.work.cuts;
        (0..self.stages)
            .map(|stage| self.stage(stage, cuts[stage], cuts[stage + 1], policy).map(|cost| cost.sum))
            .sum()
    }

    fn value_of_cuts(&self, policy: Policy) -> Option<u64> {
        let cuts = &self.work.cuts;
        let (mut sum, mut peak) = (0, 0);
        for stage in 0..self.stages {
            let cost = self.stage(stage, cuts[stage], cuts[stage + 1], policy)?;
            sum += cost.sum;
            peak = peak.max(cost.peak);
        }
        Some(self.constant + sum + peak)
    }

    /// Calls `each` with every policy that the problem's freedom allows.
    fn each_policy(&mut self, mut each: impl FnMut(&mut Self, Policy)) {
        match self.problem.freedom {
            Freedom::PerStage => each(self, Policy::Cheapest),
            Freedom::Global => {
                for at in 0..self.work.tables.modes.len() {
                    let mode = self.work.tables.modes[at];
                    each(self, Policy::All(Choice::Mode(mode)));
                }
                if let Some(block) = self.problem.block {
                    let most = block.counts.1.min(self.layers.max(block.counts.0));
                    for n in block.counts.0..=most {
                        each(self, Policy::All(Choice::Block(n)));
                    }
                }
            }
        }
    }

    /// The most layers that a stage can have if the bottleneck is to be at most `most_peak`.
    fn longest_stage(&self, most_peak: u64) -> u32 {
        let mut longest = 0;
        for stage in 0..self.stages {
            // The stage pays either row in full.
            let row = |row: Weights| {
                let each = |(kind, _)| {
                    let Kind { forward, backward, .. } = self.problem.kinds[kind];
                    row.of(forward.0, backward.0)
                };
                let least = self.present().map(each).min().unwrap_or(0);
                most_peak.checked_div(least).unwrap_or(FREE)
            };
            let [one, other] = self.rows.pair(stage);
            longest = longest.max(row(one).min(row(other)));
        }
        longest.min(u64::from(self.layers)) as u32
    }

    /// The best policy, its value, and its cuts in `work.cuts`.
    fn best_policy(&mut self, most: u64) -> Option<(u64, Policy)> {
        if self.problem.freedom == Freedom::PerStage {
            return self.optimum(Policy::Cheapest, most).map(|value| (value, Policy::Cheapest));
        }
        let mut most = most;
        let mut best: Option<(u64, Policy)> = None;
        let mut attempt = |search: &mut Self, policy: Policy, most: &mut u64| {
            let Some(value) = search.optimum(policy, *most) else { return };
            let smaller = match best {
                Some((known, _)) if known == value => search.work.cuts < search.work.best,
                _ => true,
            };
            if smaller {
                best = Some((value, policy));
                *most = value;
                std::mem::swap(&mut search.work.cuts, &mut search.work.best);
            }
        };
        for at in 0..self.work.tables.modes.len() {
            let mode = self.work.tables.modes[at];
            attempt(self, Policy::All(Choice::Mode(mode)), &mut most);
        }
        if let Some(block) = self.problem.block {
            let mut n = block.counts.0;
            // More than a stage can have layers changes nothing.
            let most_peak = |search: &Self, most: u64| {
                most.saturating_sub(search.constant + search.least_sum(Policy::Cheapest, search.layers))
            };
            while n <= block.counts.1.min(self.longest_stage(most_peak(self, most)).max(block.counts.0)) {
                attempt(self, Policy::All(Choice::Block(n)), &mut most);
                n += 1;
            }
        }
        if best.is_some() {
            std::mem::swap(&mut self.work.cuts, &mut self.work.best);
        }
        best
    }

    /// Turns `work.cuts` into an assignment.
    fn read_cuts(&self, policy: Policy, into: &mut Assignment) {
        into.layers.clear();
        into.recompute.clear();
        for stage in 0..self.stages {
            let (from, to) = (self.work.cuts[stage], self.work.cuts[stage + 1]);
            into.layers.push(to - from);
            let cost = self.stage(stage, from, to, policy);
            into.recompute.push(cost.map_or(Choice::Mode(0), |cost| cost.choice));
        }
    }
}

/// Keeps the pairs of a boundary that no other beats in both, and files them.
fn close_state(work: &mut Work, stage: usize, from: u32, fresh: &mut Vec<(u64, u64)>) {
    fresh.sort_unstable();
    let start = work.pairs.len() as u32;
    let mut least = NONE;
    for &(sum, peak) in fresh.iter() {
        if peak < least {
            least = peak;
            work.pairs.push((sum, peak));
        }
    }
    fresh.clear();
    let at = work.offsets[stage] + (from - work.low[stage]) as usize;
    work.spans[at] = (start, work.pairs.len() as u32);
}
