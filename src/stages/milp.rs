//! The mixed-integer linear programme, solved by HiGHS: a second solver that shares nothing with the
//! dynamic programme but the problem.
//!
//! Variables are counts: `x[k, r]` layers of run `r` on chunk `k`; with several ways to recompute on offer,
//! `y[k, r, z]` of them in way `z`, of which every rank (or the model) chooses one; `w[k, r]` of them
//! recomputed wholly at the front of a chunk. Binaries keep the order of runs, say which kinds a rank holds
//! where something is paid once per rank, and tell `min(n, layers)` under block recomputation. There is
//! one memory row per rank and vector of micro-batches in flight, and one row per chain of passes that
//! the objective has.
//!
//! HiGHS runs on one thread with a fixed seed, so that solving is reproducible and safe beside other
//! threads: a model lives and dies on the thread that made it. Without a limit on nodes only time could
//! end a solve early, and answers would depend on the machine's load; so nodes are limited and time is
//! the last resort.

use std::collections::HashMap;
use std::time::Instant;

use good_lp::solvers::highs::highs;
use good_lp::variable::VariableDefinition;
use good_lp::{Expression, ProblemVariables, SolverModel, Variable, constraint, variable};
use highs::HighsModelStatus as Status;

use super::{
    Assignment, Block, Choice, Counts, Evaluation, Freedom, LayerMode, MAX_KINDS, Objective, Problem,
    evaluate,
};
use crate::units::Picos;

/// When to give up.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limits {
    /// Seconds of all solves of one call together, the last resort.
    pub seconds: f64,
    /// Nodes of the search tree of one solve.
    pub nodes: i32,
    /// Share of the objective within which an answer counts as optimal.
    pub gap: f64,
}

impl Limits {
    /// What is left of them.
    fn after(self, start: Instant) -> Self {
        Self { seconds: (self.seconds - start.elapsed().as_secs_f64()).max(0.0), ..self }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self { seconds: 10.0, nodes: 100_000, gap: 0.0 }
    }
}

/// What was found.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// An assignment that fits.
    Found(Answer),
    /// Nothing fits, proved.
    Infeasible,
    /// A limit was reached before anything was found; nothing is below this value.
    Unknown(Picos),
}

/// An assignment with what is proved about all others.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// Layers and recomputation.
    pub assignment: Assignment,
    /// Its cost, by [`evaluate`].
    pub evaluation: Evaluation,
    /// Value of the objective.
    pub value: Picos,
    /// Nothing has a smaller value than this, as HiGHS proved it.
    pub bound: Picos,
}

impl Answer {
    /// By what share of the value anything could still be better.
    #[must_use]
    pub fn gap(&self) -> f64 {
        self.value.0.saturating_sub(self.bound.0) as f64 / self.value.0.max(1) as f64
    }
}

/// Minimises an objective over all assignments of a problem that has passed [`Problem::check`].
#[must_use]
pub fn solve(problem: &Problem, objective: Objective, limits: Limits) -> Outcome {
    solve_each(problem, objective, ways(problem, Ceilings::default()), Ceilings::default(), limits).0
}

/// [`solve`] where an assignment with this value of the objective is known, so that nothing above it has to be
/// looked at. It must still be found: where the value is wrong the answer is that nothing fits.
#[must_use]
pub fn solve_at_most(problem: &Problem, objective: Objective, known: Picos, limits: Limits) -> Outcome {
    let chain = (objective == Objective::Chain).then_some(known);
    let ceilings = Ceilings { value: Some(known), chain };
    solve_each(problem, objective, ways(problem, ceilings), ceilings, limits).0
}

/// Minimises the chain bound, of which a value is known, and, among assignments that reach its minimum, the
/// closed form.
#[must_use]
pub fn solve_chain_then_closed(problem: &Problem, known: Option<Picos>, limits: Limits) -> Outcome {
    let start = Instant::now();
    let ceilings = Ceilings { value: known, chain: known };
    let (first, equal) = solve_each(problem, Objective::Chain, ways(problem, ceilings), ceilings, limits);
    let Outcome::Found(chain) = &first else { return first };
    let limits = limits.after(start);
    let ceilings = Ceilings { value: Some(chain.evaluation.closed), chain: Some(chain.value) };
    match solve_each(problem, Objective::Closed, equal, ceilings, limits).0 {
        Outcome::Found(both) if both.evaluation.chain <= chain.value => {
            Outcome::Found(Answer { value: both.evaluation.chain, bound: chain.bound, ..both })
        }
        _ => first,
    }
}

/// Values that assignments of interest do not exceed.
#[derive(Debug, Clone, Copy, Default)]
struct Ceilings {
    /// Of the objective.
    value: Option<Picos>,
    /// Of the chain bound.
    chain: Option<Picos>,
}

/// Ways to recompute of which one programme may choose.
type Ways = Vec<Way>;

/// Every programme to solve, the cheapest first, so that the others have to beat it.
fn ways(problem: &Problem, ceilings: Ceilings) -> Vec<Ways> {
    let modes = (0..problem.modes.len()).filter(|&mode| problem.modes[mode].offered).map(Way::Mode);
    if problem.freedom == Freedom::PerStage {
        return vec![modes.chain(problem.block.map(|_| Way::AnyBlock)).collect()];
    }
    // One way for all, and one number of layers: a programme each.
    let totals = totals(problem);
    let mut modes: Vec<Way> = modes.collect();
    modes.sort_by_key(|&way| -> u64 {
        let Way::Mode(mode) = way else { return 0 };
        problem.modes[mode].extra.iter().zip(&totals).map(|(extra, &n)| extra.0 * u64::from(n)).sum()
    });
    let blocks = problem.block.iter().flat_map(|block| {
        // Beyond what any chunk holds, more is the same.
        let most = most_layers(problem, &[Way::AnyBlock], ceilings.chain);
        let most = most.iter().map(|most| most.iter().sum()).max().unwrap_or(0);
        let (least, last) = block.counts;
        (least..=last.min(most.max(least))).map(Way::Block)
    });
    modes.into_iter().chain(blocks).map(|way| vec![way]).collect()
}

/// Solves one programme after another; and says which of them may have what the best has.
fn solve_each(
    problem: &Problem,
    objective: Objective,
    programmes: Vec<Ways>,
    ceilings: Ceilings,
    limits: Limits,
) -> (Outcome, Vec<Ways>) {
    let start = Instant::now();
    let mut best: Option<Answer> = None;
    let mut open: Vec<(Picos, Ways)> = Vec::new();
    for ways in programmes {
        let value = best.as_ref().map(|best| best.value).or(ceilings.value);
        let chain = if objective == Objective::Chain { value } else { ceilings.chain };
        // What all layers take together says enough of most ways.
        if chain.is_some_and(|chain| total_bound(problem, &ways, chain) > chain) {
            continue;
        }
        let ceilings = Ceilings { value, chain };
        let (found, least) = Programme::new(problem, &ways, objective, ceilings).run(limits.after(start));
        open.extend(least.map(|least| (least, ways)));
        if let Some(found) = found
            && best.as_ref().is_none_or(|best| found.value < best.value)
        {
            best = Some(found);
        }
    }
    let bound = open.iter().map(|(least, _)| *least).min();
    let outcome = match (best, bound) {
        (Some(best), bound) => {
            let bound = bound.unwrap_or_default().min(best.value);
            open.retain(|(least, _)| *least <= best.value);
            Outcome::Found(Answer { bound, ..best })
        }
        (None, Some(bound)) => Outcome::Unknown(bound),
        (None, None) => Outcome::Infeasible,
    };
    (outcome, open.into_iter().map(|(_, ways)| ways).collect())
}

/// By what the least of some ways to recompute makes the backward pass of a layer of a kind longer.
fn least_extra(problem: &Problem, ways: &[Way], q: usize) -> u64 {
    let of = |way: &Way| match (way, problem.block) {
        (Way::Mode(mode), _) => problem.modes[*mode].extra[q].0,
        (_, Some(block)) => {
            let extra = |mode: u16| problem.modes[usize::from(mode)].extra[q].0;
            extra(block.full).min(extra(block.rest))
        }
        (_, None) => 0,
    };
    ways.iter().map(of).min().unwrap_or(0)
}

/// What a way to recompute does to modules beside layers.
fn beside(problem: &Problem, way: &Way) -> LayerMode {
    problem.beside(match way {
        Way::Mode(mode) => super::Way::Mode(*mode as u16),
        Way::Block(_) | Way::AnyBlock => super::Way::Block,
    })
}

/// Forward and backward passes of all layers and ends at least.
fn all_passes(problem: &Problem, ways: &[Way]) -> (u64, u64) {
    let (mut forward, mut backward) = (0, 0);
    let least_beside = ways.iter().map(|way| beside(problem, way).extra.0).min().unwrap_or(0);
    for fixed in &problem.fixed {
        forward += fixed.forward.0;
        backward += fixed.backward.0 + if fixed.recomputes { least_beside } else { 0 };
    }
    for (q, &count) in totals(problem).iter().enumerate().filter(|(_, n)| **n > 0) {
        forward += u64::from(count) * problem.kinds[q].forward.0;
        backward += u64::from(count) * (problem.kinds[q].backward.0 + least_extra(problem, ways, q));
    }
    (forward, backward)
}

/// By how much recomputing `count` whole layers of every chunk makes all backward passes longer at least, where the chain
/// bound is not to exceed a value: of a chunk with most layers that is the least share of them.
fn block_extra(problem: &Problem, block: Block, count: u32, chain: Picos) -> u64 {
    let most = most_layers(problem, &[Way::Block(count)], Some(chain));
    let most = most.iter().map(|most| most.iter().sum::<u32>()).max().unwrap_or(0);
    let whole = u64::from(problem.layer_count()) * u64::from(count);
    let mut left = whole.div_ceil(u64::from(most.max(count).max(1)));
    let extra = |mode: u16, q: usize| problem.modes[usize::from(mode)].extra[q].0;
    let of_kind = |q| extra(block.full, q).saturating_sub(extra(block.rest, q));
    let mut kinds: Vec<(u64, u32)> =
        totals(problem).iter().enumerate().filter(|(_, n)| **n > 0).map(|(q, &n)| (of_kind(q), n)).collect();
    kinds.sort_unstable();
    let mut sum = 0;
    for (extra, layers) in kinds {
        let taken = left.min(layers.into());
        sum += extra * taken;
        left -= taken;
    }
    sum
}

/// What the chain bound is at least, where it is not to exceed a value, one chunk per rank: all passes once, and of the
/// rest the rank that has most at least what an even share takes.
fn total_bound(problem: &Problem, ways: &[Way], chain: Picos) -> Picos {
    let Some(form) = &problem.pipeline.form else { return Picos::ZERO };
    let (forward, mut backward) = all_passes(problem, ways);
    if let (&[Way::Block(count)], Some(block)) = (ways, problem.block) {
        backward += block_extra(problem, block, count, chain);
    }
    // The larger of two rows is at least their mean, and that at least its lesser weight times both passes.
    let weight = |[one, other]: &[super::Weights; 2]| {
        (one.forward + other.forward).min(one.backward + other.backward) as f64 / 2.0
    };
    let shares: f64 = form.ranks.iter().map(|rows| 1.0 / weight(rows)).sum();
    let rest = if shares.is_finite() && shares > 0.0 { (forward + backward) as f64 / shares } else { 0.0 };
    Picos(form.base.of(forward, backward) + form.hops * problem.hop.0 + (rest * (1.0 - 1e-9)) as u64)
}

/// Most layers of every run that a chunk may hold, by chunk, where the chain bound is not to exceed a value: with one
/// chunk per rank what its rank takes beside all passes says so.
fn most_layers(problem: &Problem, ways: &[Way], chain: Option<Picos>) -> Vec<Vec<u32>> {
    let (forward, backward) = all_passes(problem, ways);
    let form = problem.pipeline.form.as_ref();
    let room = form.zip(chain).map(|(form, chain)| {
        let once = form.base.of(forward, backward) + form.hops * problem.hop.0;
        (form, chain.0.saturating_sub(once))
    });
    let of_run = |chunk: usize, run: &super::Run| {
        let fixed = &problem.fixed[chunk];
        if fixed.closed {
            return 0;
        }
        let Some((form, room)) = room else { return run.count };
        let kind = &problem.kinds[usize::from(run.kind)];
        let backward = kind.backward.0 + least_extra(problem, ways, usize::from(run.kind));
        let rows = &form.ranks[problem.pipeline.rank_of_chunk[chunk] as usize];
        let most = rows.iter().filter_map(|row| {
            let room = room.saturating_sub(row.of(fixed.forward.0, fixed.backward.0));
            room.checked_div(row.of(kind.forward.0, backward))
        });
        most.min().map_or(run.count, |most| most.min(run.count.into()) as u32)
    };
    let of_chunk = |chunk| problem.runs.iter().map(|run| of_run(chunk, run)).collect();
    (0..problem.chunks()).map(of_chunk).collect()
}

/// A way to recompute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Mode(usize),
    /// So many first layers of every chunk.
    Block(u32),
    /// As many of them as a variable of each rank says.
    AnyBlock,
}

fn totals(problem: &Problem) -> Counts {
    let mut totals = Counts::default();
    for run in &*problem.runs {
        totals[usize::from(run.kind)] += run.count;
    }
    totals
}

/// One programme with the meaning of its variables.
struct Programme<'a> {
    problem: &'a Problem,
    ways: &'a [Way],
    objective: Objective,
    variables: ProblemVariables,
    /// Column of every variable.
    columns: HashMap<Variable, usize>,
    rows: Vec<good_lp::Constraint>,
    /// By chunk, then run.
    layers: Vec<Vec<Variable>>,
    /// By chunk, then run, then way; the layers themselves where there is one way.
    placed: Vec<Vec<Vec<Expression>>>,
    /// By chunk, then run: layers recomputed wholly under block recomputation.
    whole: Vec<Vec<Option<Variable>>>,
    /// By rank, then way; empty where there is one way.
    chosen: Vec<Vec<Variable>>,
    /// By rank: layers of a chunk that block recomputation starts with, where that is a variable.
    front: Vec<Option<Variable>>,
    /// Most layers of every run, by chunk.
    most: Vec<Vec<u32>>,
    forward: Vec<Expression>,
    backward: Vec<Expression>,
    /// The objective.
    total: Option<Variable>,
    /// Picoseconds and bytes of one unit, so that numbers stay where floating point is at ease.
    time_unit: f64,
    byte_unit: f64,
    impossible: bool,
}

impl<'a> Programme<'a> {
    fn new(problem: &'a Problem, ways: &'a [Way], objective: Objective, ceilings: Ceilings) -> Self {
        let chunks = problem.chunks();
        let m = problem.pipeline.micro_batches.max(1);
        let totals = totals(problem);
        let ends: u64 = problem.fixed.iter().map(|f| f.forward.0 + f.backward.0).sum();
        let layers = problem.kinds.iter().zip(&totals);
        let all = ends + layers.map(|(k, &n)| u64::from(n) * (k.forward.0 + k.backward.0)).sum::<u64>();
        let time_unit = (all as f64 * m as f64 / f64::from(problem.pipeline.ranks) / 1e4).max(1.0);
        let byte_unit = (problem.limit.0 as f64 / 1e4).max(1.0);
        let mut programme = Self {
            problem,
            ways,
            objective,
            variables: ProblemVariables::new(),
            columns: HashMap::new(),
            rows: Vec::new(),
            layers: Vec::new(),
            placed: Vec::new(),
            whole: Vec::new(),
            chosen: Vec::new(),
            front: Vec::new(),
            most: most_layers(problem, ways, ceilings.chain),
            forward: Vec::new(),
            backward: Vec::new(),
            total: None,
            time_unit,
            byte_unit,
            impossible: ways.is_empty(),
        };
        programme.place(chunks);
        programme.keep_order(chunks);
        programme.choose();
        programme.recompute(chunks);
        programme.times(chunks);
        programme.memory(&totals);
        programme.price(ceilings);
        programme
    }

    fn time(&self, picos: u64) -> f64 {
        picos as f64 / self.time_unit
    }
    fn bytes(&self, bytes: u64) -> f64 {
        bytes as f64 / self.byte_unit
    }
    /// The closed form of several chunks per rank holds a fraction, which its value rounds down.
    fn rounds_down(&self) -> bool {
        self.problem.pipeline.chunks_per_rank > 1 && self.objective == Objective::Closed
    }
    fn add(&mut self, definition: VariableDefinition) -> Variable {
        let added = self.variables.add(definition);
        self.columns.insert(added, self.columns.len());
        added
    }
    fn binary(&mut self) -> Variable {
        self.add(variable().binary())
    }
    fn number(&mut self) -> Variable {
        self.add(variable().min(0))
    }
    fn integer(&mut self, least: f64, most: f64) -> Variable {
        self.add(variable().integer().min(least).max(most))
    }

    /// Every layer is placed; chunks hold what they must.
    fn place(&mut self, chunks: usize) {
        let problem = self.problem;
        for chunk in 0..chunks {
            let row: Vec<Variable> =
                (0..problem.runs.len()).map(|r| self.integer(0.0, self.most[chunk][r].into())).collect();
            let least = f64::from(problem.least(chunk));
            if least > 0.0 {
                let sum: Expression = row.iter().sum();
                self.rows.push(constraint!(sum >= least));
            }
            self.layers.push(row);
        }
        for (r, run) in problem.runs.iter().enumerate() {
            let sum: Expression = self.layers.iter().map(|row| row[r]).sum();
            self.rows.push(constraint!(sum == f64::from(run.count)));
        }
    }

    /// A run appears on a chunk only if the runs before it are complete by then.
    fn keep_order(&mut self, chunks: usize) {
        for r in 1..self.problem.runs.len() {
            let before = f64::from(self.problem.runs[r - 1].count);
            let mut done = Expression::default();
            let mut earlier: Option<Variable> = None;
            for chunk in 0..chunks {
                let started = self.binary();
                done += self.layers[chunk][r - 1];
                self.rows
                    .push(constraint!(self.layers[chunk][r] <= f64::from(self.most[chunk][r]) * started));
                self.rows.push(constraint!(before - done.clone() <= before - before * started));
                if let Some(earlier) = earlier {
                    self.rows.push(constraint!(started >= earlier));
                }
                earlier = Some(started);
            }
        }
    }

    /// Every rank chooses one way.
    fn choose(&mut self) {
        let ranks = self.problem.pipeline.ranks as usize;
        let count = self.ways.len();
        for _ in 0..ranks {
            let chosen: Vec<Variable> =
                if count > 1 { (0..count).map(|_| self.binary()).collect() } else { Vec::new() };
            if count > 1 {
                let sum: Expression = chosen.iter().sum();
                self.rows.push(constraint!(sum == 1.0));
            }
            self.chosen.push(chosen);
        }
        for chunk in 0..self.problem.chunks() {
            let rank = self.problem.pipeline.rank_of_chunk[chunk] as usize;
            let mut by_run = Vec::new();
            for r in 0..self.problem.runs.len() {
                let layers = self.layers[chunk][r];
                if count == 1 {
                    by_run.push(vec![layers.into()]);
                    continue;
                }
                let parts: Vec<Variable> = (0..count).map(|_| self.number()).collect();
                let sum: Expression = parts.iter().sum();
                self.rows.push(constraint!(sum == layers));
                for (part, &chosen) in parts.iter().zip(&self.chosen[rank]) {
                    self.rows.push(constraint!(*part <= f64::from(self.most[chunk][r]) * chosen));
                }
                by_run.push(parts.into_iter().map(Expression::from).collect());
            }
            self.placed.push(by_run);
        }
    }

    /// Block recomputation takes the first `n` layers of every chunk, in model order.
    fn recompute(&mut self, chunks: usize) {
        let runs = self.problem.runs.len();
        self.whole = vec![vec![None; runs]; chunks];
        let ranks = self.problem.pipeline.ranks as usize;
        let block = self.ways.iter().position(|way| matches!(way, Way::Block(_) | Way::AnyBlock));
        let (Some(at), Some(block)) = (block, self.problem.block) else {
            self.front = vec![None; ranks];
            return;
        };
        let (least, most) = match self.ways[at] {
            Way::Block(count) => (count, count),
            _ => (block.counts.0, block.counts.1.min(self.problem.layer_count())),
        };
        self.impossible |= least > block.counts.1 && self.ways.len() == 1;
        let (least, most) = (f64::from(least), f64::from(most.max(least)));
        for _ in 0..ranks {
            let front = (most > least).then(|| self.integer(least, most));
            self.front.push(front);
        }
        for chunk in 0..chunks {
            let rank = self.problem.pipeline.rank_of_chunk[chunk] as usize;
            let front: Expression = self.front[rank].map_or(least.into(), Expression::from);
            let placed: Expression = (0..runs).map(|r| self.placed[chunk][r][at].clone()).sum();
            let mut sum = Expression::default();
            let mut full: Option<Variable> = None;
            for r in 0..runs {
                let count = f64::from(self.most[chunk][r]);
                let part = self.number();
                self.rows.push(constraint!(Expression::from(part) <= self.placed[chunk][r][at].clone()));
                if let Some(full) = full {
                    self.rows.push(constraint!(Expression::from(part) <= count * full));
                }
                // Needed only if another run may follow.
                full = (r + 1 < runs).then(|| self.binary());
                if let Some(full) = full {
                    let rest = self.placed[chunk][r][at].clone() - part;
                    self.rows.push(constraint!(rest <= count - count * full));
                }
                sum += part;
                self.whole[chunk][r] = Some(part);
            }
            // `sum = min(front, placed)`.
            let short = self.binary();
            let all: f64 = self.most[chunk].iter().map(|&most| f64::from(most)).sum();
            self.rows.push(constraint!(sum.clone() <= front.clone()));
            self.rows.push(constraint!(placed - sum.clone() <= (all - least).max(0.0) * short));
            let mut enough = sum - front + most - most * short;
            // Layers that are placed in another way are not this one's business.
            if let Some(&chosen) = self.chosen[rank].get(at) {
                enough = enough + most - most * chosen;
            }
            self.rows.push(constraint!(enough >= 0.0));
        }
    }

    /// Layers of a chunk and run in a mode: what a way contributes to it.
    fn in_mode(&self, chunk: usize, r: usize) -> Vec<(usize, Expression)> {
        let mut list = Vec::new();
        for (at, way) in self.ways.iter().enumerate() {
            let placed = &self.placed[chunk][r][at];
            match (way, self.problem.block, &self.whole[chunk][r]) {
                (Way::Mode(mode), ..) => list.push((*mode, placed.clone())),
                (Way::Block(_) | Way::AnyBlock, Some(block), Some(whole)) => {
                    list.push((usize::from(block.full), (*whole).into()));
                    list.push((usize::from(block.rest), placed.clone() - *whole));
                }
                _ => {}
            }
        }
        list
    }

    /// What every way does to modules that stand on a chunk beside its layers, and whether it is the way.
    fn beside(&self, chunk: usize) -> Vec<(LayerMode, Expression)> {
        if !self.problem.fixed[chunk].recomputes {
            return Vec::new();
        }
        let rank = self.problem.pipeline.rank_of_chunk[chunk] as usize;
        let share = |at: usize| self.chosen[rank].get(at).map_or(1.0.into(), |&chosen| chosen.into());
        self.ways.iter().enumerate().map(|(at, way)| (beside(self.problem, way), share(at))).collect()
    }

    fn times(&mut self, chunks: usize) {
        for chunk in 0..chunks {
            let fixed = &self.problem.fixed[chunk];
            let mut forward: Expression = self.time(fixed.forward.0).into();
            let mut backward: Expression = self.time(fixed.backward.0).into();
            for (beside, share) in self.beside(chunk) {
                backward += self.time(beside.extra.0) * share;
            }
            for (r, run) in self.problem.runs.iter().enumerate() {
                let q = usize::from(run.kind);
                let kind = &self.problem.kinds[q];
                forward += self.time(kind.forward.0) * self.layers[chunk][r];
                backward += self.time(kind.backward.0) * self.layers[chunk][r];
                for (mode, layers) in self.in_mode(chunk, r) {
                    let extra = self.time(self.problem.modes[mode].extra[q].0);
                    if extra > 0.0 {
                        backward += extra * layers;
                    }
                }
            }
            self.forward.push(forward);
            self.backward.push(backward);
        }
    }

    /// Bytes of everything at once: no need for rows where that fits.
    fn memory_cannot_bind(&self, totals: &Counts) -> bool {
        let problem = self.problem;
        let in_flight = u128::from(problem.pipeline.most_in_flight);
        let mut bytes = u128::from(problem.rank_bytes.0);
        for fixed in &problem.fixed {
            bytes += u128::from(fixed.held.0 + fixed.transient.0 + fixed.gathered.0);
            bytes += u128::from(fixed.kept.0) * in_flight;
            if fixed.recomputes {
                let most = problem.modes.most_beside();
                bytes += u128::from(most.transient.0) + u128::from(most.kept.0) * in_flight;
            }
        }
        bytes += problem.shared.iter().map(|bytes| u128::from(bytes.0)).sum::<u128>();
        for (q, kind) in problem.kinds.iter().enumerate() {
            let most =
                |values: &dyn Fn(usize) -> u64| (0..problem.modes.len()).map(values).max().unwrap_or(0);
            let kept = most(&|mode| problem.modes[mode].kept[q].0);
            let transient = most(&|mode| problem.modes[mode].transient[q].0);
            bytes += u128::from(totals[q]) * (u128::from(kind.held.0) + u128::from(kept) * in_flight);
            bytes += u128::from(transient + kind.gathered.0);
        }
        bytes <= u128::from(problem.limit.0)
    }

    fn memory(&mut self, totals: &Counts) {
        if self.memory_cannot_bind(totals) {
            return;
        }
        let problem = self.problem;
        for order in &problem.pipeline.orders {
            let chunks: Vec<usize> = order.chunks.iter().map(|&k| k as usize).collect();
            let mut steady: Expression = self.bytes(problem.rank_bytes.0).into();
            let (mut transient, mut gathered, mut touched) = (0, 0, 0_u64);
            for &chunk in &chunks {
                let fixed = &problem.fixed[chunk];
                steady += self.bytes(fixed.held.0);
                transient = transient.max(fixed.transient.0);
                gathered = gathered.max(fixed.gathered.0);
                touched |= fixed.touches;
                for (r, run) in problem.runs.iter().enumerate() {
                    let held = self.bytes(problem.kinds[usize::from(run.kind)].held.0);
                    steady += held * self.layers[chunk][r];
                }
            }
            steady += self.once_per_rank(&chunks, transient, gathered, touched);
            // Bytes kept per micro-batch of every chunk.
            let kept: Vec<Expression> = chunks.iter().map(|&chunk| self.kept(chunk)).collect();
            for counts in order.states() {
                let mut need = steady.clone();
                for (&n, kept) in counts.iter().zip(&kept) {
                    need += f64::from(n) * kept.clone();
                }
                self.rows.push(constraint!(need <= self.bytes(problem.limit.0)));
            }
        }
    }

    fn kept(&mut self, chunk: usize) -> Expression {
        let problem = self.problem;
        let mut kept: Expression = self.bytes(problem.fixed[chunk].kept.0).into();
        for (beside, share) in self.beside(chunk) {
            kept += self.bytes(beside.kept.0) * share;
        }
        let mut grouped: Vec<(usize, Expression)> = Vec::new();
        for (r, run) in problem.runs.iter().enumerate() {
            for (mode, layers) in self.in_mode(chunk, r) {
                let mode_of = &problem.modes[mode];
                if mode_of.group > 1 {
                    match grouped.iter_mut().find(|(known, _)| *known == mode) {
                        Some((_, sum)) => *sum += layers,
                        None => grouped.push((mode, layers)),
                    }
                } else {
                    let each = self.bytes(mode_of.kept[usize::from(run.kind)].0);
                    if each > 0.0 {
                        kept += each * layers;
                    }
                }
            }
        }
        for (mode, layers) in grouped {
            let mode = &problem.modes[mode];
            let groups = self.integer(0.0, f64::from(problem.layer_count()));
            self.rows.push(constraint!(f64::from(mode.group) * groups >= layers));
            kept += self.bytes(mode.kept[0].0) * groups;
        }
        kept
    }

    /// What a rank pays once: the largest transient, the largest gathered unit, groups that it touches.
    fn once_per_rank(&mut self, chunks: &[usize], transient: u64, gathered: u64, touched: u64) -> Expression {
        let problem = self.problem;
        let largest = self.add(variable().min(self.bytes(transient)));
        let unit = self.add(variable().min(self.bytes(gathered)));
        let beside: Vec<_> = chunks.iter().flat_map(|&chunk| self.beside(chunk)).collect();
        for (beside, share) in beside {
            self.rows.push(constraint!(largest >= self.bytes(beside.transient.0) * share));
        }
        let mut groups: Vec<Option<Variable>> = vec![None; problem.shared.len()];
        let mut fixed = 0;
        for (g, bytes) in problem.shared.iter().enumerate() {
            if touched >> g & 1 == 1 {
                fixed += bytes.0;
            } else if bytes.0 > 0 {
                groups[g] = Some(self.add(variable().min(0).max(1)));
            }
        }
        for q in 0..problem.kinds.len().min(MAX_KINDS) {
            let kind = &problem.kinds[q];
            let runs: Vec<usize> =
                (0..problem.runs.len()).filter(|&r| usize::from(problem.runs[r].kind) == q).collect();
            if runs.is_empty() {
                continue;
            }
            let most: f64 = runs.iter().map(|&r| f64::from(problem.runs[r].count)).sum();
            let held = |s: &Self, of: &dyn Fn(&Self, usize, usize) -> Expression| -> Expression {
                let places = chunks.iter().flat_map(|&k| runs.iter().map(move |&r| (k, r)));
                places.map(|(k, r)| of(s, k, r)).sum()
            };
            // A rank certainly holds the only kind if it must hold anything.
            let certain = problem.kinds.len() == 1 && chunks.iter().any(|&k| problem.least(k) > 0);
            let new_groups = kind.touches & !touched;
            let presence = |s: &mut Self, layers: Expression| -> Expression {
                if certain {
                    return 1.0.into();
                }
                let present = s.binary();
                s.rows.push(constraint!(layers <= most * present));
                present.into()
            };
            if kind.gathered.0 > gathered || new_groups != 0 {
                let layers = held(self, &|s, k, r| s.layers[k][r].into());
                let present = presence(self, layers);
                if kind.gathered.0 > gathered {
                    self.rows.push(constraint!(unit >= self.bytes(kind.gathered.0) * present.clone()));
                }
                for (g, group) in groups.iter().enumerate() {
                    if let (Some(group), 1) = (group, new_groups >> g & 1) {
                        self.rows.push(constraint!(*group >= present.clone()));
                    }
                }
            }
            // One presence per mode, since the transient is the mode's.
            let mut used: Vec<usize> = Vec::new();
            for way in self.ways {
                match (way, problem.block) {
                    (Way::Mode(mode), _) => used.push(*mode),
                    (Way::Block(_) | Way::AnyBlock, Some(block)) => {
                        used.extend([usize::from(block.full), usize::from(block.rest)])
                    }
                    _ => {}
                }
            }
            used.sort_unstable();
            used.dedup();
            let single = matches!(self.ways, [Way::Mode(_)]);
            for mode in used {
                let bytes = problem.modes[mode].transient[q].0;
                if bytes <= transient {
                    continue;
                }
                let of = |s: &Self, k: usize, r: usize| -> Expression {
                    s.in_mode(k, r).into_iter().filter(|(m, _)| *m == mode).map(|(_, n)| n).sum()
                };
                let layers = held(self, &of);
                let present = if single {
                    presence(self, layers)
                } else {
                    let present = self.binary();
                    self.rows.push(constraint!(layers <= most * present));
                    present.into()
                };
                self.rows.push(constraint!(largest >= self.bytes(bytes) * present));
            }
        }
        let mut sum = self.bytes(fixed) + largest + unit;
        for (group, bytes) in groups.iter().zip(&problem.shared) {
            if let Some(group) = group {
                sum += self.bytes(bytes.0) * *group;
            }
        }
        sum
    }

    /// The value of an objective as an expression, with rows that keep it from being too small.
    fn value(&mut self, objective: Objective) -> Expression {
        let problem = self.problem;
        let pipeline = &*problem.pipeline;
        let m = pipeline.micro_batches;
        let total = |list: &[Expression]| -> Expression { list.iter().cloned().sum() };
        let (all_f, all_b) = (total(&self.forward), total(&self.backward));
        let peak = self.number();
        let mut value: Expression;
        match (objective, &pipeline.form) {
            (Objective::Chain, Some(form)) => {
                for (rank, rows) in form.ranks.iter().enumerate() {
                    for row in rows {
                        let own = row.forward as f64 * self.forward[rank].clone()
                            + row.backward as f64 * self.backward[rank].clone();
                        self.rows.push(constraint!(peak >= own));
                    }
                }
                value = form.base.forward as f64 * all_f + form.base.backward as f64 * all_b + peak;
                value += self.time(form.hops * problem.hop.0);
            }
            (Objective::Chain, None) => {
                self.chains(peak, &all_f, &all_b);
                value = peak.into();
            }
            (Objective::Closed, _) => {
                for order in &pipeline.orders {
                    let of = |&k: &u32| self.forward[k as usize].clone() + self.backward[k as usize].clone();
                    let own: Expression = order.chunks.iter().map(of).sum();
                    self.rows.push(constraint!(peak >= own));
                }
                let (p, v) = (f64::from(pipeline.ranks), f64::from(pipeline.chunks_per_rank));
                value = if pipeline.chunks_per_rank == 1 {
                    m.saturating_sub(1) as f64 * peak + all_f + all_b
                } else {
                    m as f64 * peak + (p - 1.0) / (p * v) * (all_f + all_b)
                };
            }
        }
        if let Some(tail) = &problem.tail {
            let exposed = self.number();
            for line in &tail.lines {
                let mut own: Expression = (line.constant as f64 / self.time_unit).into();
                for &chunk in &pipeline.orders[0].chunks {
                    for (r, run) in problem.runs.iter().enumerate() {
                        let each = line.per_layer[usize::from(run.kind)] as f64 / self.time_unit;
                        own += each * self.layers[chunk as usize][r];
                    }
                }
                self.rows.push(constraint!(exposed >= own));
            }
            value += exposed;
        }
        value
    }

    /// The chains of passes through every rank's list, as [`super::pipeline::Pipeline::chain_and_bound`]
    /// has them for several chunks per rank.
    fn chains(&mut self, peak: Variable, all_f: &Expression, all_b: &Expression) {
        let problem = self.problem;
        let pipeline = &*problem.pipeline;
        let m = pipeline.micro_batches as f64;
        // Sums and rank changes before each chunk.
        let (mut f, mut b, mut hops) = (Expression::default(), Expression::default(), 0);
        let mut before = Vec::new();
        for chunk in 0..problem.chunks() {
            if chunk > 0 && pipeline.rank_of_chunk[chunk] != pipeline.rank_of_chunk[chunk - 1] {
                hops += 1;
            }
            before.push((f.clone(), b.clone(), hops));
            f += self.forward[chunk].clone();
            b += self.backward[chunk].clone();
        }
        let latency = |count: u64| count as f64 * (problem.hop.0 as f64 / self.time_unit);
        let mut rows = Vec::new();
        for order in &pipeline.orders {
            let (Some(&first), Some(&last)) = (order.chunks.first(), order.chunks.last()) else { continue };
            let (head_f, head_b, head_hops) = before[first as usize].clone();
            let (last_f, last_b, last_hops) = before[last as usize].clone();
            let both = |&k: &u32| self.forward[k as usize].clone() + self.backward[k as usize].clone();
            let work: Expression = order.chunks.iter().map(both).sum();
            if pipeline.split_backward {
                rows.push(head_f + m * work + latency(head_hops));
                continue;
            }
            let own = |weights: &[super::pipeline::Weights]| -> Expression {
                let of = |(w, &k): (&super::pipeline::Weights, &u32)| {
                    w.forward as f64 * self.forward[k as usize].clone()
                        + w.backward as f64 * self.backward[k as usize].clone()
                };
                weights.iter().zip(&order.chunks).map(of).sum()
            };
            let passed = latency(2 * hops - last_hops + head_hops);
            rows.push(head_f.clone() + head_b.clone() + m * work + latency(2 * head_hops));
            let first_backward = own(&order.after_first_backward) + passed;
            rows.push(all_f.clone() + all_b.clone() - last_b + head_b + first_backward);
            let last_forward = own(&order.before_last_forward) + passed;
            rows.push(all_b.clone() + all_f.clone() - last_f + head_f + last_forward);
        }
        for row in rows {
            self.rows.push(constraint!(peak >= row));
        }
    }

    fn price(&mut self, ceilings: Ceilings) {
        // Whole picoseconds where they are units, else what floating point can tell apart.
        let rounds_down = self.rounds_down();
        let step = |value: u64, unit: f64| match (unit > 1.0, rounds_down) {
            (true, _) => value as f64 / unit * 1e-7,
            (false, true) => 1e-6,
            (false, false) => 0.5,
        };
        if let Some(most) = ceilings.chain {
            let chain = self.value(Objective::Chain);
            let slack = step(most.0, self.time_unit);
            self.rows.push(constraint!(chain <= self.time(most.0) + slack));
        }
        // A variable of its own, since constants do not reach HiGHS.
        let value = self.value(self.objective);
        let total = self.number();
        self.rows.push(constraint!(total >= value));
        if let Some(most) = ceilings.value {
            let most = self.time(most.0) + step(most.0, self.time_unit);
            self.rows.push(constraint!(total <= most));
        }
        self.total = Some(total);
    }

    /// The best assignment, if one was found, and a value below which there is nothing; no such value if
    /// there is nothing at all.
    fn run(self, limits: Limits) -> (Option<Answer>, Option<Picos>) {
        if self.impossible {
            return (None, None);
        }
        let Some(total) = self.total.filter(|_| limits.seconds > 0.0) else {
            return (None, Some(Picos::ZERO));
        };
        let whole = self.time_unit <= 1.0 && !self.rounds_down();
        // HiGHS' presolve does not end on one in a thousand programmes whose ranks each choose how many of their layers
        // they recompute whole, and fails on as few others.
        let block = self.ways.contains(&Way::AnyBlock);
        let presolve: &[&str] = if block { &["off"] } else { &["choose", "off"] };
        let solved = presolve.iter().find_map(|presolve| self.solved(total, whole, limits, presolve));
        let Some(solved) = solved else { return (None, Some(Picos::ZERO)) };
        let status = solved.status();
        if matches!(status, Status::Infeasible | Status::UnboundedOrInfeasible) {
            return (None, None);
        }
        // An objective in whole units lets the bound be rounded up; elsewhere it is lowered by more than
        // HiGHS' tolerances.
        let dual = solved.double_info_value(c"mip_dual_bound").unwrap_or(0.0);
        let dual = if dual.is_finite() { dual.max(0.0) } else { 0.0 };
        let bound = match (self.time_unit > 1.0, whole) {
            (true, _) => dual * (1.0 - 1e-7) * self.time_unit,
            (false, true) => (dual - 1e-3).ceil().max(0.0),
            (false, false) => (dual - 1e-3).floor().max(0.0),
        };
        let bound = Picos(bound as u64);
        let has_solution = solved.primal_solution_status() == highs::HighsSolutionStatus::Feasible;
        if !has_solution {
            return (None, Some(bound));
        }
        let values = solved.get_solution();
        let answer = self.read(values.columns(), bound);
        (answer, Some(bound))
    }

    /// The programme as HiGHS leaves it; none where HiGHS fails.
    fn solved(
        &self,
        total: Variable,
        whole: bool,
        limits: Limits,
        presolve: &str,
    ) -> Option<highs::SolvedModel> {
        let mut unsolved = self.variables.clone().minimise(total).using(highs);
        for row in &self.rows {
            unsolved.add_constraint(row.clone());
        }
        let mut model = unsolved.try_into_inner().ok()?;
        model.make_quiet();
        let set = [
            model.try_set_option("threads", 1).is_ok(),
            model.try_set_option("parallel", "off").is_ok(),
            model.try_set_option("presolve", presolve).is_ok(),
            model.try_set_option("random_seed", 7).is_ok(),
            model.try_set_option("time_limit", limits.seconds).is_ok(),
            model.try_set_option("mip_max_nodes", limits.nodes).is_ok(),
            model.try_set_option("mip_rel_gap", limits.gap.max(1e-9)).is_ok(),
            model.try_set_option("mip_abs_gap", if whole { 0.5 } else { 1e-6 }).is_ok(),
            model.try_set_option("mip_heuristic_run_feasibility_jump", false).is_ok(),
        ];
        debug_assert!(set.iter().all(|&ok| ok), "HiGHS knows these options: {set:?}");
        model.try_solve().ok()
    }

    fn read(&self, columns: &[f64], bound: Picos) -> Option<Answer> {
        let at = |variable: Variable| {
            let column = self.columns.get(&variable).and_then(|&at| columns.get(at));
            column.copied().unwrap_or(0.0)
        };
        let count = |variable: Variable| at(variable).round().max(0.0) as u32;
        let layers = self.layers.iter().map(|row| row.iter().map(|&x| count(x)).sum()).collect();
        let mut recompute = Vec::new();
        for chunk in 0..self.problem.chunks() {
            let rank = self.problem.pipeline.rank_of_chunk[chunk] as usize;
            let chosen = self.chosen[rank].iter().position(|&chosen| at(chosen) > 0.5).unwrap_or(0);
            recompute.push(match self.ways[chosen] {
                Way::Mode(mode) => Choice::Mode(mode as u16),
                Way::Block(count) => Choice::Block(count),
                Way::AnyBlock => {
                    let only = self.problem.block.map_or(0, |block| block.counts.0);
                    Choice::Block(self.front[rank].map_or(only, count))
                }
            });
        }
        let assignment = Assignment { layers, recompute };
        let evaluation = evaluate(self.problem, &assignment).ok()?;
        let value = match self.objective {
            Objective::Chain => evaluation.chain,
            Objective::Closed => evaluation.closed,
        };
        Some(Answer { assignment, evaluation, value, bound: bound.min(value) })
    }
}
