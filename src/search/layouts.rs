//! Layouts, settled: their completions, and the time of the fastest.

use std::sync::Arc;

use super::balance::{Balancing, LegalModes, TablesOf};
use super::best::{Settled, Threshold};
use super::bounds::Floor;
use super::groups::{Line, StateCost};
use super::{Counters, Request, Scratch, Search};
use crate::cost::schedule::{Load, Shape};
use crate::cost::step::{OncePerStep, Tables, exposed, fits_with, once_per_step, predict_with, shape};
use crate::cost::{CellCosts, CellKey, LocalParameters, Sharding};
use crate::frameworks::{Reach, legal_plan};
use crate::plan::{Layout, Offload, Plan, Schedule};
use crate::stages::{
    Assignment, Evaluation, Objective as SplitObjective, Outcome as Balanced, Problem, Spread, evaluate_into,
};
use crate::units::{Bytes, Picos};

/// A layout of a line, and what it has to beat.
pub(super) struct Sharded<'a> {
    pub layout: Layout,
    pub states: &'a StateCost,
    pub limit: Threshold,
}

/// What completions are sought of.
struct Sought<'a> {
    layout: &'a Layout,
    problem: &'a Problem,
    /// Which splits are.
    spread: Spread,
    /// Passes that take longer certainly do not matter.
    most: Picos,
}

/// Completions that were found under a threshold.
pub(super) struct Completions {
    /// Those whose passes may take as little as this are among them.
    most: Picos,
    list: Vec<Assignment>,
}

/// A simulated split.
pub(super) struct Simulated {
    schedule: Schedule,
    split: Assignment,
    /// [`has_passes_of_line`] of its layout.
    of_line: bool,
    passes: Arc<Passes>,
    timing: Arc<Timing>,
    ranks: Vec<RankPasses>,
}

/// What decides how a schedule runs: lines whose flags change no pass have such in common.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Passes {
    shape: Shape,
    hop: Picos,
    forward: Vec<Picos>,
    backward: Vec<Picos>,
}

/// How it does.
pub(super) struct Timing {
    makespan: Picos,
    /// By rank.
    starts: Vec<Picos>,
    ends: Vec<Picos>,
}

/// What the step's ends need of a rank: passes of one micro-batch, and parameters.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct RankPasses {
    forward: Picos,
    backward: Picos,
    parameters: LocalParameters,
}

impl Search<'_> {
    /// `T` of a layout if it can matter.
    pub(super) fn settle(
        &self,
        request: &Request,
        line: &mut Line,
        one: &Sharded<'_>,
        scratch: &mut Scratch,
        counters: &mut Counters,
    ) -> Option<Settled> {
        let Sharded { layout, states, limit } = one;
        let StateCost { sharding, floor, room, rule, .. } = states;
        if limit.excludes_layout(line.ranks.least_step(line.passes, states), layout) {
            counters.drop("bound: layout", 1);
            return None;
        }
        if let Some(rule) = rule.or_else(|| self.space.broken(layout, Reach::Layout)) {
            counters.drop(&format!("rule: {rule}"), 1);
            return None;
        }
        if !room.held {
            counters.drop("host memory", 1);
            return None;
        }
        if !request.exhaustive && !room.fits {
            counters.drop("memory", 1);
            return None;
        }
        line.balancing.restate(layout, TablesOf { cell: &line.cell.cell, sharding, hop: line.hop });
        let problem = &line.balancing.problem;
        if problem.check().is_err() {
            counters.drop("recompute: no mode is legal", 1);
            return None;
        }
        // Of no interest is what takes longer than what certainly does not matter.
        let exposed = line.ranks.exposed_on_first(states);
        let passes = floor.passes_beside(exposed, limit.time());
        let most = *passes.end();
        let sought = Sought { layout, problem, spread: self.spread(request), most };
        let chunked = layout.virtual_stages > 1;
        // Several chunks have bounds that are sharper than a relaxed one; but those of a line know nothing of traffic in
        // the passes.
        if !request.exhaustive && (!chunked || !has_passes_of_line(layout)) {
            let relaxed = scratch.relaxation.lower_bound(problem, passes);
            let reason = match relaxed {
                None => Some("memory"),
                Some(relaxed) => limit
                    .excludes_layout(floor.step(relaxed + exposed), layout)
                    .then_some("bound: memory and stages"),
            };
            if let Some(reason) = reason {
                counters.drop(reason, 1);
                return None;
            }
        }
        let list = if chunked { self.chunked(&sought, scratch) } else { self.completions(&sought, scratch) };
        let settled = self.fastest(&list, line, one, scratch, counters);
        // Where nothing has to be beaten, only memory is left.
        let reason = if limit.time().is_none() { "memory" } else { "bound: completions" };
        counters.drop(reason, u64::from(settled.is_none()));
        counters.evaluated += u64::from(settled.is_some());
        settled
    }

    /// Which splits are sought.
    pub(super) fn spread(&self, request: &Request) -> Spread {
        match self.space.capabilities().uneven_stages && !request.even_stages {
            false => Spread::Even,
            true if request.insist => Spread::Any,
            true => Spread::Uneven,
        }
    }

    /// Ways to recompute beside a cell's flags; the micro-batch does not matter.
    pub(super) fn legal_modes(
        &self,
        layout: &Layout,
        cell: &CellCosts,
        scratch: &mut Scratch,
    ) -> Arc<LegalModes> {
        let key = CellKey { micro_batch_size: 1, ..CellKey::from(layout) };
        let (target, context) = (self.space.target(), self.space.context());
        let only = self.space.restrictions().recompute.as_deref();
        let make = || Arc::new(LegalModes::new(target, context, layout, cell, only));
        scratch.legal_modes.get(key, make).clone()
    }

    /// The fixed list of completions whose fastest is `T`, one chunk per rank: the optimum of the chain
    /// bound, the optimum of the closed form with the same recomputation, and the even split with the one
    /// that has the least chain bound; where an optimum leaves the embedding alone, also the optima that do
    /// not. No uneven one if no chain bound is `most` or less.
    fn completions(&self, sought: &Sought<'_>, scratch: &mut Scratch) -> Vec<Assignment> {
        let &Sought { layout, problem, most, .. } = sought;
        if !has_passes_of_line(layout) {
            return self.solve(sought, scratch);
        }
        // If the optimum without a memory limit fits, or that of a layout that holds no more, it is the optimum of this one
        // as well; and what was found under a higher threshold holds under this one.
        let free = scratch.free.take().filter(|known| most <= known.most).unwrap_or_else(|| {
            let unlimited = Problem { limit: Bytes(u64::MAX / 16), ..problem.clone() };
            let unlimited = Sought { problem: &unlimited, ..*sought };
            Completions { most, list: self.solve(&unlimited, scratch) }
        });
        let mut fit = |found: &Completions| {
            found.list.iter().all(|one| evaluate_into(problem, one, &mut scratch.evaluation).is_ok())
        };
        let list = if fit(&free) {
            free.list.clone()
        } else if let Some((costs, leaner)) = &scratch.recent
            && most <= leaner.most
            && problem.holds_no_less(costs)
            && fit(leaner)
        {
            leaner.list.clone()
        } else {
            let list = self.solve(sought, scratch);
            scratch.recent = Some((problem.costs(), Completions { most, list: list.clone() }));
            list
        };
        scratch.free = Some(free);
        list
    }

    fn solve(&self, sought: &Sought<'_>, scratch: &mut Scratch) -> Vec<Assignment> {
        let mut list = self.optima(sought, scratch);
        // The embedding alone on a rank may look better than it is: what is best otherwise is listed as well.
        let problem = sought.problem;
        if list.iter().any(|assignment| assignment.layers[0] == 0) && problem.fixed[0].optional {
            let mut filled = problem.clone();
            filled.fixed[0].optional = false;
            for other in self.optima(&Sought { problem: &filled, ..*sought }, scratch) {
                if !list.contains(&other) {
                    list.push(other);
                }
            }
        }
        list
    }

    /// The optima of the chain bound and of the closed form, and the even split.
    fn optima(
        &self,
        &Sought { layout, problem, spread, most }: &Sought<'_>,
        scratch: &mut Scratch,
    ) -> Vec<Assignment> {
        let mut list: Vec<Assignment> = Vec::new();
        let below = most.0.checked_add(1).map(Picos);
        let uneven = spread > Spread::Even;
        if uneven || layout.pipeline_parallel == 1 {
            let Balanced::Found(_) = scratch.balancer.solve(problem, SplitObjective::Chain, below) else {
                return list;
            };
            list.push(scratch.balancer.assignment().clone());
        }
        if layout.pipeline_parallel > 1 {
            if uneven
                && let Balanced::Found(_) = scratch.balancer.solve_alike(problem, SplitObjective::Closed)
            {
                list.push(scratch.balancer.assignment().clone());
            }
            list.extend(scratch.balancer.even(problem).map(|(assignment, _)| assignment));
            list.dedup();
        }
        list
    }

    /// The completions of a layout with several chunks per rank whose bounds are `most` or less.
    fn chunked(
        &self,
        &Sought { layout, problem, spread, most }: &Sought<'_>,
        scratch: &mut Scratch,
    ) -> Vec<Assignment> {
        // Layouts with and without overlap cost the same. What was found under a higher threshold holds under this one.
        if let Some((costs, found)) = &scratch.recent
            && problem.costs_are(costs)
            && most <= found.most
        {
            return found.list.clone();
        }
        let kept = scratch.splits.take().filter(|_| has_passes_of_line(layout));
        let mut splits = kept.unwrap_or_else(|| scratch.balancer.splits(problem, spread));
        let list = scratch.balancer.completions(problem, &mut splits, most);
        scratch.splits = has_passes_of_line(layout).then_some(splits);
        scratch.recent = Some((problem.costs(), Completions { most, list: list.clone() }));
        list
    }

    /// The even split with the recomputation that fits and has the least bound, if any does.
    pub(super) fn even(
        &self,
        layout: &Layout,
        problem: &Problem,
        scratch: &mut Scratch,
    ) -> Option<Assignment> {
        if layout.virtual_stages == 1 {
            return scratch.balancer.even(problem).map(|(assignment, _)| assignment);
        }
        let mut even = scratch.balancer.splits(problem, Spread::Even);
        scratch.balancer.completions(problem, &mut even, Picos(u64::MAX)).pop()
    }

    /// The fastest of a list of completions under the simulation, if it can matter. All of them fit.
    fn fastest(
        &self,
        list: &[Assignment],
        line: &Line,
        &Sharded { ref layout, states, limit }: &Sharded<'_>,
        scratch: &mut Scratch,
        counters: &mut Counters,
    ) -> Option<Settled> {
        let balancing = &line.balancing;
        let tables = TablesOf { cell: &line.cell.cell, sharding: &states.sharding, hop: line.hop };
        let mut best: Option<(Picos, Plan)> = None;
        for assignment in list {
            let open = |least: Picos| {
                !limit.excludes_layout(least, layout) && best.as_ref().is_none_or(|(t, _)| least <= *t)
            };
            let same =
                |run: &&Simulated| run.of_line && run.schedule == layout.schedule && run.split == *assignment;
            let known = scratch.known.iter().find(same).filter(|_| has_passes_of_line(layout));
            let found = if let Some(run) = known {
                debug_assert!(evaluate_into(&balancing.problem, assignment, &mut scratch.evaluation).is_ok());
                let time = run.step(tables.sharding);
                let plan = open(time).then(|| self.plan_of(layout, balancing, assignment, tables)).flatten();
                plan.map(|plan| (time, plan))
            } else {
                let plan = self.completion(layout, balancing, assignment, tables, open, scratch);
                plan.map(|plan| (self.time(layout, assignment, &plan, tables, scratch), plan))
            };
            let Some((time, plan)) = found else { continue };
            counters.simulated += 1;
            if best.as_ref().is_none_or(|(t, other)| (time, &plan) < (*t, other)) {
                best = Some((time, plan));
            }
        }
        let (time, plan) = best?;
        Some(Settled { time, plan })
    }

    /// The plan of a split, if it fits, is legal, and its least time is `open` to further interest; its evaluation is left
    /// in `scratch`.
    pub(super) fn completion(
        &self,
        layout: &Layout,
        balancing: &Balancing,
        assignment: &Assignment,
        tables: TablesOf<'_>,
        open: impl Fn(Picos) -> bool,
        scratch: &mut Scratch,
    ) -> Option<Plan> {
        let Scratch { evaluation, ranks, .. } = scratch;
        evaluate_into(&balancing.problem, assignment, evaluation).ok()?;
        if !open(least_step(evaluation.bound, tables.sharding)) {
            return None;
        }
        if !layout.schedule.splits_backward() {
            debug_assert_eq!(evaluation.tail, Picos::ZERO, "traffic would count twice");
            self.passes_of_ranks(layout, assignment, tables, evaluation, ranks);
            if !open(least_with_traffic(evaluation.bound, tables.sharding, ranks)) {
                return None;
            }
        }
        self.plan_of(layout, balancing, assignment, tables)
    }

    /// What the ends of the step need of every rank under a split that was evaluated.
    fn passes_of_ranks(
        &self,
        layout: &Layout,
        assignment: &Assignment,
        TablesOf { cell, hop, .. }: TablesOf<'_>,
        evaluation: &Evaluation,
        ranks: &mut Vec<RankPasses>,
    ) {
        ranks.clear();
        ranks.resize(layout.pipeline_parallel as usize, RankPasses::default());
        let mut order = self.layers.order.as_slice();
        for (k, &layers) in assignment.layers.iter().enumerate() {
            let rank = layout.rank_of_chunk(k as u32);
            let messages = hop.busy_of(layout, k as u32);
            let load = &mut ranks[rank as usize];
            load.forward += evaluation.forward[k] - messages;
            load.backward += evaluation.backward[k] - messages;
            let (own, rest) = order.split_at(layers as usize);
            order = rest;
            for alike in own.chunk_by(|a, b| a == b) {
                let layer = &cell.layers[alike[0] as usize];
                load.parameters = load.parameters.plus(&layer.parameters, alike.len() as u64);
            }
            let ends = cell.ends(layout, k as u32).map(|end| &end.parameters);
            for parameters in ends.chain(cell.table_copy(layout, k as u32)) {
                load.parameters = load.parameters.plus(parameters, 1);
            }
        }
    }

    /// The plan of a split that the balancing problem has the memory for, if it is legal and fits with what is no part of that.
    fn plan_of(
        &self,
        layout: &Layout,
        balancing: &Balancing,
        assignment: &Assignment,
        tables: TablesOf<'_>,
    ) -> Option<Plan> {
        let context = self.space.context();
        let chunks = balancing.chunks(assignment);
        let plan =
            Plan::new(*layout, chunks, context.gpus, context.global_batch_size, context.layers).ok()?;
        legal_plan(self.space.target(), context, &plan).ok()?;
        // Staging at the update and what lies off the GPU are no part of the balancing problem; few plans have any.
        let stages = tables.sharding.classes.iter().any(|class| class.staging > 0.0);
        if stages || layout.offload != Offload::NONE {
            let TablesOf { cell, sharding, hop } = tables;
            let tables = Tables { cell: cell.clone(), sharding: sharding.clone(), hop };
            let in_flight = |rank: usize| balancing.problem.pipeline.orders[rank].in_flight.as_slice();
            if !fits_with(self.cost, self.layers, &plan, &tables, in_flight) {
                return None;
            }
        }
        Some(plan)
    }

    /// Step time of a plan whose evaluation is in `scratch`: that of [`crate::cost::step::predict`], to
    /// the picosecond.
    pub(super) fn time(
        &self,
        layout: &Layout,
        assignment: &Assignment,
        plan: &Plan,
        tables: TablesOf<'_>,
        scratch: &mut Scratch,
    ) -> Picos {
        let TablesOf { cell, sharding, hop } = tables;
        if layout.schedule.splits_backward() {
            let tables = Tables { cell: cell.clone(), sharding: sharding.clone(), hop };
            return predict_with(self.cost, self.layers, plan, &tables, &mut scratch.simulator).step();
        }
        let evaluation = &scratch.evaluation;
        let same = |run: &&Simulated| {
            run.schedule == layout.schedule
                && run.split.layers == assignment.layers
                && run.passes.forward == evaluation.forward
                && run.passes.backward == evaluation.backward
        };
        if let Some(run) = scratch.known.iter().find(same) {
            return run.step(sharding);
        }
        let passes = Arc::new(Passes {
            shape: shape(layout),
            hop: hop.latency,
            forward: evaluation.forward.clone(),
            backward: evaluation.backward.clone(),
        });
        let simulator = &mut scratch.simulator;
        let simulate = || {
            let Passes { shape, hop, forward, backward } = &*passes;
            let makespan = simulator.run(*shape, Load { forward, backward, weight: backward, hop: *hop });
            Arc::new(Timing { makespan, starts: simulator.starts.clone(), ends: simulator.ends.clone() })
        };
        let timing = scratch.timings.get(passes.clone(), simulate).clone();
        let mut ranks = Vec::new();
        self.passes_of_ranks(layout, assignment, tables, evaluation, &mut ranks);
        let of_line = has_passes_of_line(layout);
        let run = Simulated {
            schedule: layout.schedule,
            split: assignment.clone(),
            of_line,
            passes,
            timing,
            ranks,
        };
        let step = run.step(sharding);
        scratch.known.push(run);
        step
    }
}

impl Simulated {
    /// What a step takes with its data-parallel traffic.
    fn step(&self, sharding: &Sharding) -> Picos {
        let Timing { makespan, starts, ends } = &*self.timing;
        let (mut gather_wait, mut flush, mut update) = (Picos::ZERO, *makespan, Picos::ZERO);
        for (r, load) in self.ranks.iter().enumerate() {
            let at_ends = load.at_ends(r, sharding);
            gather_wait = gather_wait.max(at_ends.gather.saturating_sub(starts[r]));
            flush = flush.max(ends[r] + at_ends.reduce);
            update = update.max(at_ends.update);
        }
        Floor { once: gather_wait + update + sharding.step_overhead, jitter: sharding.jitter }.step(flush)
    }
}

impl RankPasses {
    /// What a rank adds to a step at its ends: of its traffic what cannot hide.
    fn at_ends(&self, rank: usize, sharding: &Sharding) -> OncePerStep {
        let once = once_per_step(sharding, &self.parameters);
        let floor = sharding.exposed_floor_of(rank);
        let exposed =
            |traffic, hidden, window| exposed(traffic, floor, hidden, sharding.interference, window);
        OncePerStep {
            gather: exposed(once.gather, sharding.hidden_share.1, self.forward),
            reduce: exposed(once.reduce, sharding.hidden_share.0, self.backward),
            update: once.update,
        }
    }
}

/// What a step takes at least whose passes do, on such ranks: the first starts first and, where backward passes are whole, ends
/// last.
fn least_with_traffic(passes: Picos, sharding: &Sharding, ranks: &[RankPasses]) -> Picos {
    let first = ranks[0].at_ends(0, sharding);
    let update = |load: &RankPasses| once_per_step(sharding, &load.parameters).update;
    let update = ranks.iter().map(update).max().unwrap_or_default();
    let once = first.gather + update + sharding.step_overhead;
    Floor { once, jitter: sharding.jitter }.step(passes + first.reduce)
}

/// Whether passes are those of all such layouts of a line, which differ in bytes held and in what is gathered and reduced
/// at the ends of a step: from ZeRO-2 on there is data-parallel traffic in them.
fn has_passes_of_line(layout: &Layout) -> bool {
    layout.zero_stage < 2
}

/// What a step takes at least whose passes do.
fn least_step(passes: Picos, sharding: &Sharding) -> Picos {
    Floor { once: Picos::ZERO, jitter: sharding.jitter }.step(passes + sharding.step_overhead)
}
