//! Exact search: the best layouts of a space, with proof.
//!
//! `T(layout)` is the predicted step time of the best of a short, fixed list of completions (placements
//! of layers with recomputation): the optimum of the chain bound, the optimum of the closed form, and
//! the even split. Layouts are visited group by group in the order of an admissible lower bound and
//! dropped as soon as a bound reaches the k-th best `T`; what is printed is exact, and the gap says so.
//! Groups are opened in waves whose size depends on nothing but the wave's number, with the threshold
//! frozen per wave: the answer and all counters are the same at any thread count.

pub mod balance;

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};

use rayon::prelude::*;

use crate::candidates::{Group, Space};
use crate::cost::model::CostModel;
use crate::cost::schedule::Simulator;
use crate::cost::step::{Prediction, Tables, end_passes, layer_passes, once_per_step, predict_with};
use crate::cost::{CellCosts, CellKey, Item, LocalParameters, Sharding, Times};
use crate::frameworks::legal_plan;
use crate::layers::Layers;
use crate::plan::{CudaGraphs, Dispatcher, Layout, Plan};
use crate::stages::{
    Assignment, Balancer, Choice, Objective as SplitObjective, Outcome as Balanced, Problem, evaluate,
};
use crate::units::{Bytes, Picos};
use balance::{Balancing, ProblemBuilder, RecomputeFamily};

/// What to look for.
#[derive(Debug, Clone)]
pub struct Request {
    /// How many classes of layouts to return; a class is one (TP, PP, CP, EP, ETP).
    pub top: usize,
    /// How many layouts of one class.
    pub per_class: usize,
    /// Evaluate every layout, whatever the bounds say.
    pub exhaustive: bool,
    /// Only the even split.
    pub even_stages: bool,
}

impl Default for Request {
    fn default() -> Self {
        Self { top: 10, per_class: 1, exhaustive: false, even_stages: false }
    }
}

/// One answer.
#[derive(Debug, Clone)]
pub struct Found {
    /// The plan.
    pub plan: Plan,
    /// What is predicted of it.
    pub prediction: Prediction,
    /// Step time of the even split with the cheapest recomputation that fits, if one fits.
    pub even: Option<Picos>,
    /// By what share any other placement of layers could at most be faster.
    pub split_gap: f64,
}

/// Why the search ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// Nothing better can exist.
    Proved,
    /// It was told to stop.
    Interrupted,
}

/// What was done with the layouts of the space.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counters {
    /// Layouts of the space, before the framework's rules.
    pub candidates: u64,
    /// Layouts whose completions were simulated.
    pub evaluated: u64,
    /// Completions simulated.
    pub simulated: u64,
    /// Layouts dropped, by reason.
    pub pruned: BTreeMap<String, u64>,
}

impl Counters {
    fn drop(&mut self, reason: &str, layouts: u64) {
        if layouts > 0 {
            *self.pruned.entry(reason.to_owned()).or_default() += layouts;
        }
    }
    fn add(&mut self, other: &Self) {
        self.evaluated += other.evaluated;
        self.simulated += other.simulated;
        for (reason, count) in &other.pruned {
            *self.pruned.entry(reason.clone()).or_default() += count;
        }
    }
}

/// The answer of a search.
#[derive(Debug, Clone)]
pub struct Answer {
    /// Best first.
    pub found: Vec<Found>,
    /// What happened to the space.
    pub counters: Counters,
    /// `1 - smallest open bound / best time`: 0 when proved.
    pub optimality_gap: f64,
    /// Why it ended.
    pub stop: Stop,
    /// The least memory excess seen among layouts that did not fit: the nearest miss.
    pub nearest: Option<NearestMiss>,
}

/// A layout that would fit if memory were a little larger.
#[derive(Debug, Clone)]
pub struct NearestMiss {
    /// The plan with the least memory found.
    pub plan: Plan,
    /// What it allocates on its fullest rank.
    pub allocated: Bytes,
}

/// Hears how a search goes on.
pub trait Observer: Sync {
    /// Called after every wave: layouts settled, layouts of the space, best time, smallest open bound.
    fn progress(&self, settled: u64, candidates: u64, best: Option<Picos>, open: Option<Picos>) {
        let _ = (settled, candidates, best, open);
    }
    /// Whether to stop now.
    fn stop(&self) -> bool {
        false
    }
}

/// Hears nothing.
#[derive(Debug, Default)]
pub struct Silent;
impl Observer for Silent {}

/// Stops when told to.
#[derive(Debug, Default)]
pub struct StopFlag(pub AtomicBool);
impl Observer for StopFlag {
    fn stop(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Degrees that decide what kind of plan it is; `--top` counts these.
type Class = (u32, u32, u32, u32, u32);

fn class_of(l: &Layout) -> Class {
    (l.tensor_parallel, l.pipeline_parallel, l.context_parallel, l.expert_parallel, l.expert_tensor_parallel)
}

/// A settled layout.
#[derive(Debug, Clone)]
struct Settled {
    time: Picos,
    plan: Plan,
    bound: Picos,
    even: Option<Picos>,
}

impl Settled {
    fn key(&self) -> (Picos, &Plan) {
        (self.time, &self.plan)
    }
}

/// The best `per_class` layouts of the best `top` classes.
#[derive(Debug, Clone)]
struct Best {
    top: usize,
    per_class: usize,
    classes: HashMap<Class, Vec<Settled>>,
    /// Best times of all classes, ascending; only the first `top` matter.
    firsts: Vec<(Picos, Class)>,
}

impl Best {
    fn new(request: &Request) -> Self {
        Self {
            top: request.top.max(1),
            per_class: request.per_class.max(1),
            classes: HashMap::new(),
            firsts: Vec::new(),
        }
    }

    /// A layout of this class matters only if it is faster than this.
    fn threshold(&self, class: Class) -> Option<Picos> {
        let kth = (self.firsts.len() >= self.top).then(|| self.firsts[self.top - 1].0);
        let own = self
            .classes
            .get(&class)
            .filter(|c| c.len() >= self.per_class)
            .map(|c| c[self.per_class - 1].time);
        match (kth, own) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// No class at all matters above this.
    fn any_threshold(&self) -> Option<Picos> {
        (self.firsts.len() >= self.top).then(|| self.firsts[self.top - 1].0)
    }

    fn offer(&mut self, settled: Settled) {
        let class = class_of(settled.plan.layout());
        let list = self.classes.entry(class).or_default();
        let at = list.partition_point(|s| s.key() <= settled.key());
        if at >= self.per_class {
            return;
        }
        list.insert(at, settled);
        list.truncate(self.per_class);
        let first = list[0].time;
        self.firsts.retain(|(_, c)| *c != class);
        let at = self.firsts.partition_point(|f| *f < (first, class));
        self.firsts.insert(at, (first, class));
    }

    fn into_sorted(mut self) -> Vec<Settled> {
        let mut all: Vec<Settled> = Vec::new();
        for (_, class) in self.firsts.iter().take(self.top) {
            all.extend(self.classes.remove(class).unwrap_or_default());
        }
        all.sort_by(|a, b| a.key().cmp(&b.key()));
        all
    }
}

/// What a whole step takes at least, given the time of its passes.
#[derive(Debug, Clone, Copy)]
struct Floor {
    once: Picos,
    jitter: f64,
}

impl Floor {
    fn step(self, passes: Picos) -> Picos {
        let sum = passes + self.once;
        sum + sum.scale((self.jitter - 1.0).max(0.0))
    }
}

/// Everything a search works on.
#[derive(Clone, Copy)]
pub struct Search<'a> {
    /// Prices.
    pub cost: &'a CostModel<'a>,
    /// The model's layers.
    pub layers: &'a Layers,
    /// Layouts.
    pub space: &'a Space<'a>,
}

/// Work memory of one thread.
#[derive(Default)]
struct Scratch {
    simulator: Simulator,
    balancer: Balancer,
    builder: ProblemBuilder,
}

/// What came of one group.
#[derive(Default)]
struct Opened {
    settled: Vec<Settled>,
    counters: Counters,
    nearest: Option<NearestMiss>,
}

/// Groups opened per wave: few at first, so that good plans are found before much is opened.
fn wave_size(wave: u32) -> usize {
    (16usize << wave.min(6)).min(1024)
}

impl Search<'_> {
    /// Finds the best layouts.
    #[must_use]
    pub fn run(&self, request: &Request, observer: &dyn Observer) -> Answer {
        let groups = self.space.groups();
        let mut counters = Counters {
            candidates: groups.par_iter().map(|g| self.space.count(g)).sum(),
            ..Counters::default()
        };
        let floors = self.floors(&groups);
        let mut ordered: Vec<(Picos, Group)> =
            groups.into_iter().map(|g| (self.group_bound(&g, &floors), g)).collect();
        ordered.sort_unstable();

        let mut best = Best::new(request);
        let mut nearest: Option<NearestMiss> = None;
        let (mut at, mut wave, mut settled) = (0, 0, 0);
        let mut stop = Stop::Proved;
        while at < ordered.len() {
            let open = ordered[at].0;
            if !request.exhaustive && best.any_threshold().is_some_and(|kth| open >= kth) {
                break;
            }
            if observer.stop() {
                stop = Stop::Interrupted;
                break;
            }
            let end = (at + wave_size(wave)).min(ordered.len());
            let opened: Vec<Opened> = ordered[at..end]
                .par_iter()
                .map_init(Scratch::default, |scratch, (bound, group)| {
                    self.open(group, *bound, request, &best, scratch)
                })
                .collect();
            for one in opened {
                counters.add(&one.counters);
                one.settled.into_iter().for_each(|s| best.offer(s));
                nearest = nearer(nearest, one.nearest);
            }
            settled += ordered[at..end].iter().map(|(_, g)| self.space.count(g)).sum::<u64>();
            at = end;
            wave += 1;
            let first = best.firsts.first().map(|f| f.0);
            observer.progress(settled, counters.candidates, first, ordered.get(at).map(|o| o.0));
        }
        let open = ordered.get(at).map(|o| o.0);
        let unopened: u64 = ordered[at..].par_iter().map(|(_, g)| self.space.count(g)).sum();
        counters.drop("bound: degrees", unopened);
        let first = best.firsts.first().map(|f| f.0);
        let optimality_gap = match (stop, open, first) {
            (Stop::Interrupted, Some(open), Some(first)) => (1.0 - open.0 as f64 / first.0 as f64).max(0.0),
            (Stop::Interrupted, _, None) => 1.0,
            _ => 0.0,
        };
        let found = best.into_sorted().into_par_iter().map(|s| self.finish(s)).collect();
        Answer { found, counters, optimality_gap, stop, nearest }
    }

    fn finish(&self, settled: Settled) -> Found {
        let prediction = crate::cost::step::predict(self.cost, self.layers, &settled.plan);
        let bound = settled.bound.0 as f64;
        let split_gap = if bound > 0.0 { (settled.time.0 as f64 / bound - 1.0).max(0.0) } else { 0.0 };
        Found { plan: settled.plan, prediction, even: settled.even, split_gap }
    }

    /// Least time of one micro-batch through all layers, by everything that a layer's cost depends on
    /// but flags: computation only, at the flags that compute least.
    fn floors(&self, groups: &[Group]) -> HashMap<Family, Picos> {
        let mut families: Vec<Family> = groups.iter().map(family_of).collect();
        families.sort_unstable();
        families.dedup();
        families.par_iter().map(|family| (*family, self.floor(family))).collect()
    }

    fn floor(&self, family: &Family) -> Picos {
        let experts = self.space.context().has_experts();
        let key = CellKey {
            tensor_parallel: family.0,
            context_parallel: family.1,
            micro_batch_size: family.2,
            expert_parallel: family.3,
            expert_tensor_parallel: family.4,
            sequence_parallel: family.0 > 1,
            context_comm: crate::plan::ContextComm::Ring,
            dispatcher: experts.then_some(Dispatcher::HybridEp),
            tensor_overlap: family.0 > 1,
            expert_overlap: false,
            cuda_graphs: CudaGraphs::FullIteration,
            offload: crate::plan::Offload::NONE,
        };
        let cell = self.cost.cell(&key);
        let compute =
            |t: &Times| [Item::Gemm, Item::Experts].map(|item| t.get(item)).into_iter().sum::<Picos>();
        let both = |f: &Times, b: &Times| compute(f) + compute(b);
        let layers: Picos = self
            .layers
            .order
            .iter()
            .map(|&kind| both(&cell.layers[kind as usize].forward, &cell.layers[kind as usize].backward))
            .sum();
        layers + both(&cell.head.forward, &cell.head.backward)
    }

    fn group_bound(&self, g: &Group, floors: &HashMap<Family, Picos>) -> Picos {
        let s = floors.get(&family_of(g)).copied().unwrap_or_default();
        // Every rank runs all micro-batches, and one micro-batch passes through all ranks.
        s.max(Picos(s.0 * u64::from(g.micro_batches) / u64::from(g.pipeline_parallel)))
    }

    /// Settles the layouts of a group that could matter.
    fn open(
        &self,
        group: &Group,
        bound: Picos,
        request: &Request,
        best: &Best,
        scratch: &mut Scratch,
    ) -> Opened {
        let mut opened = Opened::default();
        let class = (
            group.tensor_parallel,
            group.pipeline_parallel,
            group.context_parallel,
            group.expert_parallel,
            group.expert_tensor_parallel,
        );
        let frozen = if request.exhaustive { None } else { best.threshold(class) };
        if frozen.is_some_and(|kth| bound >= kth) {
            opened.counters.drop("bound: degrees", self.space.count(group));
            return opened;
        }
        // Found here: the threshold may fall within the group, in an order that nothing else changes.
        let mut own = Best::new(&Request { top: 1, ..request.clone() });
        let per_cell = self.space.layouts_per_cell(group);
        self.space.cells(group, |key| {
            let threshold = |own: &Best| match (frozen, own.threshold(class).filter(|_| !request.exhaustive))
            {
                (Some(a), Some(b)) => Some(a.min(b)),
                (a, b) => a.or(b),
            };
            let mut cell: Option<Priced> = None;
            let mut dropped = false;
            self.space.layouts(group, &key, |layout| {
                let layout = match layout {
                    Ok(layout) => layout,
                    Err(rule) => return opened.counters.drop(&format!("rule: {rule}"), 1),
                };
                if dropped {
                    return opened.counters.drop("bound: flags", 1);
                }
                let cell = cell.get_or_insert_with(|| self.price(&key, &layout, request));
                let passes =
                    Picos(cell.sum.0 * u64::from(group.micro_batches) / u64::from(group.pipeline_parallel))
                        .max(cell.sum);
                if threshold(&own).is_some_and(|kth| passes >= kth) {
                    dropped = true;
                    return opened.counters.drop("bound: flags", 1);
                }
                let limit = threshold(&own);
                if let Some(settled) = self.settle(&layout, cell, limit, request, scratch, &mut opened) {
                    own.offer(settled.clone());
                    opened.settled.push(settled);
                }
            });
        });
        debug_assert!(per_cell > 0 || opened.settled.is_empty());
        opened
    }

    fn price(&self, key: &CellKey, layout: &Layout, request: &Request) -> Priced {
        let cell = self.cost.cell(key);
        let mut sum = Picos::ZERO;
        let mut parameters = LocalParameters::default();
        for &kind in &self.layers.order {
            let layer = &cell.layers[kind as usize];
            sum += layer.forward.total() + layer.backward.total();
            parameters = parameters.plus(&layer.parameters, 1);
        }
        for end in [&cell.embedding, &cell.head] {
            sum += end.forward.total() + end.backward.total();
            parameters = parameters.plus(&end.parameters, 1);
        }
        let only = self.space.restrictions().recompute.as_deref();
        let family = RecomputeFamily::new(self.space.target(), self.space.context(), layout, &cell, only);
        let _ = request;
        Priced { cell, family, sum, parameters }
    }

    /// `T` of a layout if it is below the limit.
    fn settle(
        &self,
        layout: &Layout,
        priced: &Priced,
        limit: Option<Picos>,
        request: &Request,
        scratch: &mut Scratch,
        opened: &mut Opened,
    ) -> Option<Settled> {
        let sharding = self.cost.sharding(layout);
        let hop = self.cost.hop(layout);
        let p = u64::from(layout.pipeline_parallel);
        let m = u64::from(layout.gradient_accumulation_steps);
        let floor = self.once(&sharding, &priced.parameters, p);
        // Sum of passes with the traffic of sharded weights and with messages.
        let mut sum = Picos::ZERO;
        for (kind, layer) in priced.cell.layers.iter().enumerate() {
            let [f, b] = layer_passes(&sharding, layer);
            let count = self.layers.order.iter().filter(|&&k| k as usize == kind).count() as u64;
            sum += (f.total() + b.total()) * count;
        }
        for end in [&priced.cell.embedding, &priced.cell.head] {
            let [f, b] = end_passes(&sharding, end);
            sum += f.total() + b.total();
        }
        let least = floor.step(sum.max(Picos(sum.0 * m / p)));
        if limit.is_some_and(|kth| least >= kth) {
            opened.counters.drop("bound: layout", 1);
            return None;
        }
        let tables = Tables { cell: priced.cell.clone(), sharding, hop };
        let capabilities = self.space.capabilities();
        let balancing =
            scratch.builder.build(self.cost, self.layers, layout, &tables, &priced.family, capabilities);
        if balancing.problem.check().is_err() || balancing.problem.modes.is_empty() {
            opened.counters.drop("recompute: no mode is legal", 1);
            return None;
        }
        let single = layout.virtual_stages == 1;
        let chain =
            if single { scratch.balancer.lower_bound(&balancing.problem, None) } else { Some(Picos::ZERO) };
        let Some(chain) = chain else {
            opened.counters.drop("memory", 1);
            return None;
        };
        let bound = floor.step(chain).max(least);
        if limit.is_some_and(|kth| bound >= kth) {
            opened.counters.drop("bound: stages", 1);
            return None;
        }
        opened.counters.evaluated += 1;
        self.completions(layout, &balancing, &tables, bound, request, scratch, opened)
    }

    #[expect(clippy::too_many_arguments, reason = "one call, all of it needed")]
    fn completions(
        &self,
        layout: &Layout,
        balancing: &Balancing,
        tables: &Tables,
        bound: Picos,
        request: &Request,
        scratch: &mut Scratch,
        opened: &mut Opened,
    ) -> Option<Settled> {
        let problem = &balancing.problem;
        let single = layout.virtual_stages == 1;
        let even = if single {
            scratch.balancer.even(problem).map(|(assignment, _)| assignment)
        } else {
            even_chunks(problem)
        };
        let mut list: Vec<Assignment> = Vec::new();
        let free = single
            && self.space.capabilities().uneven_stages
            && !request.even_stages
            && layout.pipeline_parallel > 1;
        if free {
            for objective in [SplitObjective::Chain, SplitObjective::Closed] {
                if let Balanced::Found(_) = scratch.balancer.solve(problem, objective, None) {
                    list.push(scratch.balancer.assignment().clone());
                }
            }
        } else if layout.pipeline_parallel == 1 {
            if let Balanced::Found(_) = scratch.balancer.solve(problem, SplitObjective::Chain, None) {
                list.push(scratch.balancer.assignment().clone());
            }
        }
        let mut best: Option<(Picos, Plan)> = None;
        let mut even_time = None;
        let context = self.space.context();
        for (assignment, is_even) in list.iter().map(|a| (a, false)).chain(even.iter().map(|a| (a, true))) {
            let chunks = balancing.chunks(assignment);
            let made = Plan::new(*layout, chunks, context.gpus, context.global_batch_size, context.layers);
            let Ok(plan) = made else { continue };
            if legal_plan(self.space.target(), context, &plan).is_err() {
                continue;
            }
            let prediction = predict_with(self.cost, self.layers, &plan, tables, &mut scratch.simulator);
            opened.counters.simulated += 1;
            if prediction.allocated > self.cost.memory_limit() {
                continue;
            }
            let time = prediction.step();
            if is_even {
                even_time = Some(time);
            }
            if best.as_ref().is_none_or(|(t, other)| (time, &plan) < (*t, other)) {
                best = Some((time, plan));
            }
        }
        if best.is_none() {
            opened.counters.drop("no completion", 1);
        }
        best.map(|(time, plan)| Settled { time, plan, bound, even: even_time })
    }

    fn once(&self, sharding: &Sharding, parameters: &LocalParameters, ranks: u64) -> Floor {
        // The fullest rank updates at least the average.
        let update = once_per_step(sharding, parameters).update / ranks;
        Floor { once: update + sharding.step_overhead, jitter: sharding.jitter }
    }
}

/// The even split with the cheapest recomputation that fits.
fn even_chunks(problem: &Problem) -> Option<Assignment> {
    let layers = problem.even_layers();
    let longest = layers.iter().copied().max().unwrap_or(0);
    let modes = (0..problem.modes.len()).map(|mode| Choice::Mode(mode as u16));
    let blocks = problem.block.into_iter().flat_map(|block| block.counts.0..=block.counts.1.min(longest));
    modes
        .chain(blocks.map(Choice::Block))
        .filter_map(|choice| {
            let assignment = Assignment { layers: layers.clone(), recompute: vec![choice; layers.len()] };
            let cost = evaluate(problem, &assignment).ok()?;
            Some((cost.bound, assignment))
        })
        .min_by_key(|(bound, _)| *bound)
        .map(|(_, assignment)| assignment)
}

/// A priced cell.
struct Priced {
    cell: CellCosts,
    family: RecomputeFamily,
    /// One micro-batch through all layers and ends.
    sum: Picos,
    /// All parameters, as if on one pipeline rank.
    parameters: LocalParameters,
}

/// TP, CP, micro-batch, EP, ETP.
type Family = (u32, u32, u32, u32, u32);

fn family_of(g: &Group) -> Family {
    (g.tensor_parallel, g.context_parallel, g.micro_batch_size, g.expert_parallel, g.expert_tensor_parallel)
}

fn nearer(a: Option<NearestMiss>, b: Option<NearestMiss>) -> Option<NearestMiss> {
    match (a, b) {
        (Some(a), Some(b)) => Some(if (b.allocated, &b.plan) < (a.allocated, &a.plan) { b } else { a }),
        (a, b) => a.or(b),
    }
}
