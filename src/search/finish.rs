//! What is said of the plans that are printed.

use std::cell::LazyCell;
use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};

use rayon::prelude::*;

use super::balance::{Balancing, RecomputeFamily, TablesOf, Ways, traffic};
use super::best::Settled;
use super::polish::{Better, WORTH};
#[cfg(feature = "milp")]
use super::verify;
use super::{Found, Observer, OtherSplit, Request, Scratch, Search};
use crate::cost::CellKey;
use crate::cost::schedule::Shape;
#[cfg(feature = "milp")]
use crate::cost::step::StepItem;
use crate::cost::step::{predict, shape};
use crate::plan::{Chunk, Layout, Plan};
#[cfg(feature = "milp")]
use crate::stages::chains::{Judged, Known, Proof};
use crate::stages::relax::{ANY, Relaxation};
use crate::stages::{Objective as SplitObjective, Outcome as Balanced, Problem, evaluate_into};
use crate::units::Picos;

/// A split that no other is faster than by more is good enough to stop proving.
#[cfg(feature = "milp")]
const CERTIFIED: f64 = 0.02;
/// More is worth some tenths of a second more of proving, and what is open beyond two more of looking for a faster one.
const TOLERATED: f64 = 0.049;
/// Chunks beyond which that is enough for all but the best plan: a programme takes tens of milliseconds.
#[cfg(feature = "milp")]
const MANY_CHUNKS: u32 = 64;
/// The least share of a step that another split is worth, as less is not to be seen in printed numbers; and what share it is to
/// gain where it fits in none of the runs that it fitted in before. That is a judgement: steps are known to several per cent,
/// and a run that does not fit is none.
const LEAST_GAIN: f64 = 5e-4;
const GAIN_PER_CHANCE: f64 = 0.1;

/// Share of a step up to which data-parallel traffic outside of passes does not make certificates better.
#[cfg(feature = "milp")]
const LITTLE_TRAFFIC: f64 = 1e-3;

/// Ranks of a pipeline with one chunk each up to which the integer programme takes a fraction of a second; beyond, about
/// a second, and only the best plan is worth that.
const DEEP: u32 = 64;

/// How closely a split is looked at.
#[derive(Debug, Clone, Copy)]
struct Closely {
    /// Whether the plan is the best.
    best: bool,
    /// Whether whole layers are looked at, where parts of them leave much open.
    whole: bool,
    /// [`Request::effort`].
    effort: u32,
}

/// What one plan shows of others of its shape.
struct Example {
    /// Its layers, after they were moved.
    chunks: Vec<Chunk>,
    /// What was proved of it.
    #[cfg(feature = "milp")]
    known: Option<Known>,
}

impl Search<'_> {
    /// Finishes plans, best first, of which so many are verified. The first of every shape begins with nothing known,
    /// the others with what that one shows: so answers do not depend on threads.
    pub(super) fn finish_all(
        &self,
        best: Vec<Settled>,
        request: &Request,
        observer: &dyn Observer,
    ) -> Vec<Found> {
        let mut plans: Vec<(usize, Settled)> = best.into_iter().enumerate().collect();
        // Deep pipelines take longest to certify: they begin first.
        plans.sort_by_key(|(_, settled)| {
            let layout = settled.plan.layout();
            Reverse((layout.pipeline_parallel, layout.chunk_count()))
        });
        let mut seen = HashSet::new();
        let (done, all) = (AtomicUsize::new(0), plans.len());
        observer.certified(0, all);
        let (first, others): (Vec<_>, Vec<_>) =
            plans.into_iter().partition(|(_, settled)| seen.insert(shape(settled.plan.layout())));
        let finish = |examples: &HashMap<Shape, Example>, (at, settled): (usize, Settled)| {
            let layout = *settled.plan.layout();
            let quick = layout.virtual_stages > 1 || layout.pipeline_parallel <= DEEP;
            let shape = shape(&layout);
            let closely = at < request.verified || request.picked == Some(at);
            let looked_at = closely && (at == 0 || quick);
            let moves = (closely || at < request.moved) && !request.even_stages;
            // Of even splits it is asked what they take, not what others could.
            let (best, whole) = (at == 0, !request.even_stages);
            let verify = looked_at.then_some(Closely { best, whole, effort: request.effort });
            let (found, example) = self.finish_one(settled, verify, moves, examples.get(&shape), observer);
            observer.certified(done.fetch_add(1, Ordering::Relaxed) + 1, all);
            (at, found, (shape, example))
        };
        let nothing = HashMap::new();
        let first: Vec<_> = first.into_par_iter().with_max_len(1).map(|one| finish(&nothing, one)).collect();
        let mut examples = HashMap::new();
        let mut found = Vec::new();
        for (at, one, example) in first {
            found.push((at, one));
            examples.extend([example]);
        }
        let others = others.into_par_iter().with_max_len(1).map(|one| finish(&examples, one));
        found.par_extend(others.map(|(at, one, _)| (at, one)));
        found.sort_by_key(|(at, _)| *at);
        found.into_iter().map(|(_, one)| one).collect()
    }

    /// The balancing problem of one layout, with every way to recompute that may be best.
    pub(super) fn balancing(
        &self,
        layout: &Layout,
        tables: TablesOf<'_>,
        scratch: &mut Scratch,
    ) -> Balancing {
        let legal = self.legal_modes(layout, tables.cell, scratch);
        let ways = Ways::new(&RecomputeFamily::new(&legal, tables.cell), tables.cell);
        let pipeline = scratch.pipelines.of(shape(layout));
        Balancing::of(pipeline, self.cost, self.layers, layout, tables, &ways, self.space.capabilities())
    }

    /// Prediction, even split and certificate of a plan that is printed. `verify` says whether the split is looked at
    /// closely, and `moves` whether a faster one is looked for by moving its layers.
    fn finish_one(
        &self,
        settled: Settled,
        verify: Option<Closely>,
        moves: bool,
        example: Option<&Example>,
        observer: &dyn Observer,
    ) -> (Found, Example) {
        let layout = *settled.plan.layout();
        let prediction = predict(self.cost, self.layers, &settled.plan);
        let mut scratch = Scratch::default();
        let priced = self.price(&CellKey::from(&layout), &mut scratch);
        let sharding = self.cost.sharding(&layout);
        let hop = self.cost.hop(&layout);
        let tables = TablesOf { cell: &priced.cell, sharding: &sharding, hop };
        let context = self.space.context();
        let capabilities = self.space.capabilities();
        let balancing = self.balancing(&layout, tables, &mut scratch);
        let problem = &balancing.problem;
        let floor = self.once(&sharding, &priced.parameters, u64::from(layout.pipeline_parallel));
        let mut bound = self.least_makespan(&layout, &priced, hop);
        let traffic = LazyCell::new(|| {
            let (mut relaxation, mut ways) = (Relaxation::default(), Vec::new());
            relaxation.ways(problem, floor.passes(settled.time), &mut ways);
            traffic(&layout, problem, tables, &ways)
        });
        #[cfg(feature = "milp")]
        let mut shown = None;
        #[cfg(feature = "milp")]
        let mut verified = None;
        if layout.virtual_stages == 1 {
            #[cfg(feature = "milp")]
            if verify.is_some()
                && layout.pipeline_parallel > 1
                && self.layers.runs.len() <= verify::MOST_RUNS
                && let Balanced::Found(chain) = scratch.balancer.solve(problem, SplitObjective::Chain, None)
            {
                verified = self.verify(&layout, &balancing, chain, tables, &mut scratch);
            }
            // The first rank is the last to end, unless weight gradients are left for then.
            let tail = || traffic.gathers[0].plus(&traffic.reduces[0]);
            let tail = (!layout.schedule.splits_backward()).then(tail);
            let tailed = Problem { tail, ..problem.clone() };
            if let Balanced::Found(chain) = scratch.balancer.solve(&tailed, SplitObjective::Chain, None) {
                bound = bound.max(chain);
            }
        } else {
            let least = scratch.balancer.lower_bound(problem);
            let relaxed = scratch.relaxation.lower_bound(problem, ANY);
            bound = [least, relaxed].into_iter().flatten().fold(bound, Picos::max);
        }
        #[cfg(feature = "milp")]
        let exposed: Picos = [StepItem::WeightGather, StepItem::GradientReduction]
            .iter()
            .map(|&item| prediction.times.0[item as usize])
            .sum();
        #[cfg(feature = "milp")]
        let much = exposed > settled.time.scale(LITTLE_TRAFFIC);
        let chunks = settled.plan.chunks();
        let beyond = |step: Picos, least: Picos| match chunks.len() {
            // One chunk holds all layers, and what recomputes least is fastest: it hides no more traffic than it adds.
            1 => 0.0,
            _ => (step.0 as f64 / least.0.max(1) as f64 - 1.0).max(0.0),
        };
        let stop = || observer.stop();
        let seeks = verify.is_some_and(|closely| closely.whole)
            && beyond(settled.time, floor.step(bound)) > WORTH
            && !stop();
        let fastest =
            seeks.then(|| self.fastest_of_all(&settled, &balancing, tables, &stop, &mut scratch)).flatten();
        let all_known = fastest.is_some();
        let least = fastest.as_ref().map_or(Picos::ZERO, |fastest| fastest.step);
        let gap = |step: Picos, bound: Picos| beyond(step, floor.step(bound).max(least));
        #[cfg(feature = "milp")]
        let within = |step: Picos, share: f64| floor.passes(step.scale(1.0 / (1.0 + share)));
        #[cfg(feature = "milp")]
        let layers_of = |plan: &Plan| plan.chunks().iter().map(|chunk| chunk.layers).collect::<Vec<u32>>();
        #[cfg(feature = "milp")]
        let own = layers_of(&settled.plan);
        #[cfg(feature = "milp")]
        let judged = |step: Picos, layers, recompute, closely: Closely| Judged {
            shape: shape(&layout),
            layers,
            recompute: balancing.choice(recompute),
            traffic: much.then(|| &*traffic),
            passes: floor.passes(step),
            enough: within(
                step,
                if closely.best || layout.chunk_count() <= MANY_CHUNKS { CERTIFIED } else { TOLERATED },
            ),
            tolerable: within(step, TOLERATED),
            asked: within(step, CERTIFIED),
            effort: closely.effort,
        };
        // Chains of passes say more than ranks do, and know what all ranks gather and reduce.
        #[cfg(feature = "milp")]
        let chained = layout.virtual_stages > 1
            || layout.pipeline_parallel > 1
                && (layout.schedule.splits_backward() || much && bound < within(settled.time, TOLERATED));
        #[cfg(feature = "milp")]
        let mut proof = verify.filter(|_| chained && !all_known && problem.check().is_ok()).map(|closely| {
            let known = example.and_then(|example| example.known.as_ref());
            Proof::new(problem, judged(settled.time, &own, chunks[0].recompute, closely), known, &stop)
        });
        #[cfg(feature = "milp")]
        if let Some(proof) = &mut proof {
            let (least, shows) = proof.quickly();
            bound = bound.max(least);
            shown = Some(shows);
        }
        // Another split is worth what it gains in time, less what it loses in room.
        let chance = self.cost.chance_to_fit(&prediction);
        let worth = |better: &Better| {
            let gain = 1.0 - better.step.0 as f64 / settled.time.0.max(1) as f64;
            let chance_then = self.cost.chance_to_fit(&predict(self.cost, self.layers, &better.plan));
            gain >= LEAST_GAIN && gain >= (chance - chance_then) * GAIN_PER_CHANCE
        };
        let fastest = fastest.filter(|_| moves).filter(worth);
        // What is proved of the better split tells more of the other one too. Beside the fastest of all none is looked for.
        let moves = moves
            && capabilities.uneven_stages
            && fastest.is_none()
            && !stop()
            && gap(settled.time, bound) > WORTH;
        let better =
            moves.then(|| self.better(&settled.plan, settled.time, &balancing, tables, &mut scratch));
        let better = better.flatten().filter(worth).or(fastest);
        let present = better.as_ref().map_or(settled.time, |better| better.step);
        let otherwise = moves.then(|| {
            let most = floor.passes(present);
            self.otherwise(&settled.plan, present, &balancing, tables, most, &mut scratch)
        });
        let better = otherwise.flatten().filter(worth).or(better);
        let present = better.as_ref().map_or(settled.time, |better| better.step);
        let alike = example.filter(|_| moves).and_then(|example| {
            self.alike(&settled.plan, present, &example.chunks, &balancing, tables, &mut scratch)
        });
        let better = alike.filter(worth).or(better);
        #[cfg(feature = "milp")]
        let moved = better.as_ref().map(|better| layers_of(&better.plan));
        #[cfg(feature = "milp")]
        if let (Some(proof), Some(closely)) = (&mut proof, verify.filter(|closely| closely.whole)) {
            let step = better.as_ref().map_or(settled.time, |better| better.step);
            let recompute = better.as_ref().map_or(chunks, |better| better.plan.chunks())[0].recompute;
            bound =
                bound.max(proof.closely(judged(step, moved.as_ref().unwrap_or(&own), recompute, closely)));
            if let Some(shown) = &mut shown {
                proof.teach(shown);
            }
        }
        #[cfg(feature = "milp")]
        let better = {
            let seen = proof.as_ref().filter(|_| moves).and_then(Proof::faster);
            let present = better.as_ref().map_or(settled.time, |better| better.step);
            let seen = seen.and_then(|split| self.timed(&layout, &split, &balancing, tables, &mut scratch));
            let moved = seen.map(|seen| {
                self.better(&seen.plan, seen.step, &balancing, tables, &mut scratch).unwrap_or(seen)
            });
            moved.filter(|moved| moved.step < present).filter(worth).or(better)
        };
        let present = better.as_ref().map_or(settled.time, |better| better.step);
        let thorough = verify.is_some_and(|closely| closely.best || closely.effort > 1);
        let better = if moves && thorough && !all_known && gap(present, bound) > TOLERATED {
            let from = better.as_ref().map_or(&settled.plan, |better| &better.plan);
            let annealed = self.annealed(from, present, &balancing, tables, &stop, &mut scratch);
            let nearest = |found: Better, scratch: &mut Scratch| {
                self.better(&found.plan, found.step, &balancing, tables, scratch).unwrap_or(found)
            };
            annealed.map(|found| nearest(found, &mut scratch)).filter(worth).or(better)
        } else {
            better
        };
        let best = better.as_ref().map_or(&settled.plan, |better| &better.plan);
        let example = Example {
            chunks: best.chunks().to_vec(),
            #[cfg(feature = "milp")]
            known: shown,
        };
        let mut even_bound = None;
        let even = self.even(&layout, problem, &mut scratch).and_then(|assignment| {
            evaluate_into(problem, &assignment, &mut scratch.evaluation).ok()?;
            even_bound = Some(scratch.evaluation.bound);
            let chunks = balancing.chunks(&assignment);
            let plan = Plan::new(layout, chunks, context.gpus, context.global_batch_size, context.layers);
            Some(self.time(&layout, &assignment, &plan.ok()?, tables, &mut scratch))
        });
        if !capabilities.uneven_stages {
            // No other split can be had.
            bound = even_bound.map_or(bound, |even| bound.max(even));
        }
        let split_gap = gap(settled.time, bound);
        let polished = better.map(|better| {
            let prediction = predict(self.cost, self.layers, &better.plan);
            Box::new(OtherSplit { prediction, split_gap: gap(better.step, bound), plan: better.plan })
        });
        let open = polished.as_ref().map_or(split_gap, |better| better.split_gap);
        let found = Found {
            plan: settled.plan,
            prediction,
            even,
            split_gap,
            looked_at: verify.is_some() && !all_known,
            cut_short: verify.is_some() && !all_known && open > TOLERATED && stop(),
            polished,
            ranked: None,
            #[cfg(feature = "milp")]
            verified,
        };
        (found, example)
    }
}
