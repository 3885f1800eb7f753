//! Exact search: the best layouts of a space, with proof.
//!
//! `T(layout)` is the predicted step time of the best of a short, fixed list of completions (placements
//! of layers with recomputation). With one chunk per rank: the optimum of the chain bound, the optimum of
//! the closed form, and the even split. With several: the even split, a few near it that spread the load
//! of the ends, and one that relieves ranks without memory ([`crate::stages::Splits`]). Layouts are visited
//! group by group in the order of an admissible lower bound and dropped as soon as a bound reaches the
//! k-th best `T`; what is printed is exact, and the gap says so. Groups are opened in waves whose size
//! depends on nothing but the wave's number, with the threshold frozen per wave: the answer and all
//! counters are the same at any thread count.

pub mod balance;
#[cfg(test)]
mod levels;
#[cfg(feature = "milp")]
mod verify;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap, HashSet};
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rayon::prelude::*;

use crate::candidates::{Group, Space, layout_of};
use crate::cost::model::{CostModel, Flags, Parts};
use crate::cost::schedule::{Load, Simulator};
use crate::cost::step::{
    Prediction, Tables, exposed, once_per_step, predict, predict_with, shape, state_bytes,
};
use crate::cost::{CellCosts, CellKey, Hop, LocalParameters, Sharding};
use crate::frameworks::{legal, legal_plan};
use crate::layers::Layers;
use crate::plan::{CudaGraphs, Layout, Offload, Plan, Schedule};
use crate::stages::relax::Relaxation;
use crate::stages::{
    Assignment, Balancer, Evaluation, Fixed, Kind, Objective as SplitObjective, Outcome as Balanced, Problem,
    Splits, Way, evaluate_into,
};
use crate::units::{Bytes, Picos};
#[cfg(feature = "milp")]
pub use verify::Verified;

use balance::{Balancing, Hopeless, LegalModes, ProblemBuilder, RecomputeFamily, TablesOf, first_rank_tail};

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
    /// How many of the best plans the integer programme looks at: it checks their split, and tightens the
    /// bound on any other where a rank has several chunks.
    pub verified: usize,
}

impl Default for Request {
    fn default() -> Self {
        Self { top: 10, per_class: 1, exhaustive: false, even_stages: false, verified: 0 }
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
    /// What the integer programme says of the layout's split, one chunk per rank.
    #[cfg(feature = "milp")]
    pub verified: Option<Verified>,
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
    /// Adds what was settled and dropped elsewhere; the space stays.
    pub(crate) fn add(&mut self, other: &Self) {
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

fn class_of_group(g: &Group) -> Class {
    (g.tensor_parallel, g.pipeline_parallel, g.context_parallel, g.expert_parallel, g.expert_tensor_parallel)
}

/// A settled layout.
#[derive(Debug, Clone)]
struct Settled {
    time: Picos,
    plan: Plan,
}

impl Settled {
    fn key(&self) -> (Picos, &Plan) {
        (self.time, &self.plan)
    }
}

/// What a layout has to beat to matter: the time of the last class that is kept, and the last layout
/// that is kept of its own class.
#[derive(Debug, Clone, Copy, Default)]
struct Threshold {
    any: Option<Picos>,
    own: Option<(Picos, Layout)>,
}

impl Threshold {
    /// The smaller of two.
    fn min(self, other: Self) -> Self {
        let any = match (self.any, other.any) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        let own = match (self.own, other.own) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        Self { any, own }
    }

    /// Nothing that takes longer than this matters; what takes exactly as long may.
    fn time(self) -> Option<Picos> {
        match (self.any, self.own.map(|own| own.0)) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// Whether layouts that take at least `bound` cannot matter.
    fn excludes(self, bound: Picos) -> bool {
        self.time().is_some_and(|time| bound > time)
    }

    /// Whether this layout, which takes at least `bound`, cannot matter: equal times go by the layout.
    fn excludes_layout(self, bound: Picos, layout: &Layout) -> bool {
        self.excludes(bound) || self.own.is_some_and(|(time, other)| bound == time && *layout > other)
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

    /// What a layout of this class has to beat.
    fn threshold(&self, class: Class) -> Threshold {
        let own = self.classes.get(&class).filter(|c| c.len() >= self.per_class);
        let own = own.map(|c| &c[self.per_class - 1]).map(|s| (s.time, *s.plan.layout()));
        Threshold { any: self.any_threshold(), own }
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

    /// Passes that certainly fit into a step of `time`.
    fn passes(self, time: Picos) -> Picos {
        // Far more than the rounding of a product in floating point.
        let sum = time.scale(1.0 / self.jitter.max(1.0)).saturating_sub(Picos(2 + (time.0 >> 40)));
        sum.saturating_sub(self.once)
    }

    /// For steps that matter up to `time`, passes that certainly do and passes that certainly do not: only
    /// on which side of these a bound lies is of interest.
    fn at_most(self, time: Option<Picos>) -> RangeInclusive<Picos> {
        let Some(time) = time else { return Picos(u64::MAX)..=Picos(u64::MAX) };
        let passes = self.passes(time);
        passes..=passes + Picos(8 + (time.0 >> 38))
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

/// Layouts of a group that differ in nothing but sharding.
struct Line {
    /// Least time of the whole step.
    least: Picos,
    /// About what it takes: where ranks have several chunks, no bound knows how long they wait.
    estimate: Picos,
    /// Least time of all passes.
    passes: Picos,
    /// Which cell, and which schedule and number of chunks, in the order of generation.
    cell: usize,
    order: usize,
    /// One of the layouts, unsharded.
    layout: Layout,
    hop: Hop,
    /// The balancing problem of one layout after the other.
    balancing: Balancing,
    /// Splits of all of them over several chunks per rank, where they differ in held bytes alone.
    splits: Option<Splits>,
}

/// The shardings of a group's orders: one stretch of them per order.
struct States {
    /// What they hold for.
    offload: Offload,
    all: Vec<StateCost>,
    /// By order: no more bytes, traffic and time than any of its shardings.
    some: Vec<StateCost>,
    /// By order: no fewer bytes than any of its shardings, where none has traffic during the passes.
    most: Vec<Option<Sharding>>,
    /// By order: how many of them leave room on an average rank.
    fitting: Vec<u32>,
    /// Ways to recompute with which no layout of the group can matter.
    hopeless: Hopeless,
}

/// What cells of a family cost at least under any flags.
struct Floors {
    cell: CellCosts,
    legal: Arc<LegalModes>,
    /// The Pareto set of what is legal, at floor costs.
    family: RecomputeFamily,
}

/// What a sharding costs beside layers.
struct StateCost {
    sharding: Sharding,
    floor: Floor,
    /// Whether the states alone fit into an average rank.
    fits: bool,
    /// Whether the host holds what lives there.
    held: bool,
}

/// A simulated schedule.
struct Simulated {
    schedule: Schedule,
    forward: Vec<Picos>,
    backward: Vec<Picos>,
    makespan: Picos,
    starts: Vec<Picos>,
    ends: Vec<Picos>,
}

/// What the step's ends need of a rank: passes of one micro-batch, and parameters.
#[derive(Debug, Clone, Copy, Default)]
struct RankLoad {
    forward: Picos,
    backward: Picos,
    parameters: LocalParameters,
}

/// Work memory of one thread.
#[derive(Default)]
struct Scratch {
    parts: Parts,
    /// Cells of the current group with a bound on one micro-batch.
    cells: Vec<(Picos, CellKey)>,
    legal_modes: HashMap<CellKey, Arc<LegalModes>>,
    relaxation: Relaxation,
    floors: HashMap<(Family, Offload, Option<bool>), Floors>,
    simulator: Simulator,
    balancer: Balancer,
    builder: ProblemBuilder,
    evaluation: Evaluation,
    ranks: Vec<RankLoad>,
    /// Schedules simulated for the current line.
    known: Vec<Simulated>,
    /// Ways to recompute that could matter in the current group.
    ways: Vec<(Picos, Way)>,
    /// Completions of the current line without a memory limit.
    free: Option<Completions>,
    /// Splits of the current line over several chunks per rank.
    splits: Option<Splits>,
    /// The last problem of the current line over several chunks per rank, and its completions.
    recent: Option<(Vec<Kind>, Vec<Fixed>, Completions)>,
}

/// Completions that were found under a threshold.
struct Completions {
    /// Those whose passes may take as little as this are among them.
    most: Picos,
    list: Vec<Assignment>,
}

/// A group with a time that nothing of it goes below.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Bounded {
    bound: Picos,
    group: Group,
    /// Whether this is the third and last bound.
    third: bool,
}

/// Work memory that threads share: what one has priced is known to the next.
#[derive(Default)]
struct Scratches(Mutex<Vec<Scratch>>);

impl Scratches {
    fn take(&self) -> Held<'_> {
        let mut free = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Held { scratch: free.pop().unwrap_or_default(), home: self }
    }
}

/// Work memory that goes back when it is no longer needed.
struct Held<'a> {
    scratch: Scratch,
    home: &'a Scratches,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.parts.forget_beyond(KEPT_PARTS);
        let mut free = self.home.0.lock().unwrap_or_else(PoisonError::into_inner);
        free.push(scratch);
    }
}

/// What came of one group.
#[derive(Default)]
struct Opened {
    settled: Vec<Settled>,
    counters: Counters,
}

/// Groups that get their second bound at once.
const REFINED_AT_ONCE: usize = 512;
/// Groups opened at once even if one without a second bound might come first: work for several threads.
const OPENED_AT_LEAST: usize = 8;
/// Groups seen at a glance before any is opened, each of another class, for every class that is asked for;
/// and how many cells of each.
const GLANCED_AT: usize = 8;
const CELLS_AT_A_GLANCE: usize = 8;
/// Priced floors, and lists of ways to recompute, that a thread keeps.
const KEPT_FLOORS: usize = 128;
/// Parts of cells that a thread keeps.
const KEPT_PARTS: usize = 1024;

/// Groups opened per wave: few at first, so that good plans are found before much is opened.
fn wave_size(wave: u32) -> usize {
    (16usize << wave.min(6)).min(1024)
}

impl Search<'_> {
    /// Finds the best layouts.
    #[must_use]
    pub fn run(&self, request: &Request, observer: &dyn Observer) -> Answer {
        if request.per_class <= 1 || request.exhaustive {
            return self.pass(request, observer, None);
        }
        // Which classes are kept is decided by the best layout of each; only then is it known that a
        // slower layout of such a class matters.
        let kept = self.pass(&Request { per_class: 1, verified: 0, ..request.clone() }, observer, None);
        if kept.stop == Stop::Interrupted {
            return kept;
        }
        let classes: Vec<Class> = kept.found.iter().map(|found| class_of(found.plan.layout())).collect();
        self.pass(&Request { top: usize::MAX, ..request.clone() }, observer, Some(&classes))
    }

    /// One walk over the space, or over some of its classes.
    fn pass(&self, request: &Request, observer: &dyn Observer, classes: Option<&[Class]>) -> Answer {
        let groups = self.space.groups();
        let mut counters = Counters {
            candidates: groups.par_iter().map(|g| self.space.count(g)).sum(),
            ..Counters::default()
        };
        let wanted = |g: &Group| classes.is_none_or(|classes| classes.contains(&class_of_group(g)));
        let (groups, other): (Vec<Group>, Vec<Group>) = groups.into_iter().partition(wanted);
        counters.drop("bound: degrees", other.par_iter().map(|g| self.space.count(g)).sum());
        let mut ordered = self.first_bounds(&groups);
        ordered.sort_unstable();

        let scratches = Scratches::default();
        let mut best = Best::new(request);
        // Times that the best certainly do not exceed, found at a glance.
        let mut incumbents: Option<Best> = None;
        // Groups whose second bound is known, by that bound or a third; and the next group that has only a
        // first.
        let mut pool: BinaryHeap<Reverse<Bounded>> = BinaryHeap::new();
        let (mut at, mut wave, mut settled) = (0, 0, 0);
        let mut stop = Stop::Proved;
        let mut batch: Vec<Bounded> = Vec::new();
        let open = loop {
            let kth = [Some(&best), incumbents.as_ref()].into_iter().flatten();
            let kth = kth.filter_map(Best::any_threshold).min().filter(|_| !request.exhaustive);
            let first = ordered.get(at).map(|o| o.0);
            let second = pool.peek().map(|Reverse(next)| next.bound);
            let open = [first, second].into_iter().flatten().min();
            let Some(least) = open else { break None };
            if kth.is_some_and(|kth| least > kth) {
                break open;
            }
            if observer.stop() {
                stop = Stop::Interrupted;
                break open;
            }
            if first.is_some_and(|first| second.is_none_or(|second| first < second)) {
                // Some group without a second bound might come first.
                let end = (at + REFINED_AT_ONCE).min(ordered.len());
                let end = at + ordered[at..end].partition_point(|o| kth.is_none_or(|kth| o.0 <= kth));
                let refine = |held: &mut Held<'_>, (bound, group): &(Picos, Group)| {
                    if request.exhaustive {
                        return Some(*bound);
                    }
                    self.second_bound(*bound, kth, group, &mut held.scratch)
                };
                let bounds: Vec<Option<Picos>> =
                    ordered[at..end].par_iter().map_init(|| scratches.take(), refine).collect();
                for ((_, group), bound) in ordered[at..end].iter().zip(bounds) {
                    match bound {
                        Some(bound) => pool.push(Reverse(Bounded { bound, group: *group, third: false })),
                        None => {
                            settled += self.space.count(group);
                            counters.drop("memory", self.space.count(group));
                        }
                    }
                }
                at = end;
                continue;
            }
            batch.clear();
            while batch.len() < wave_size(wave)
                && let Some(&Reverse(next)) = pool.peek()
                && (batch.len() < OPENED_AT_LEAST || first.is_none_or(|first| next.bound <= first))
                && kth.is_none_or(|kth| next.bound <= kth)
            {
                batch.push(next);
                pool.pop();
            }
            let sharp = batch.iter().take_while(|next| next.third || request.exhaustive).count();
            if sharp < batch.len().min(OPENED_AT_LEAST) {
                let sharpen = |held: &mut Held<'_>, next: &Bounded| match next.third {
                    true => Some(next.bound),
                    false => self.third_bound(next, kth, &mut held.scratch),
                };
                let bounds: Vec<Option<Picos>> =
                    batch.par_iter().map_init(|| scratches.take(), sharpen).collect();
                for (next, bound) in batch.iter().zip(bounds) {
                    match bound {
                        Some(bound) => pool.push(Reverse(Bounded { bound, third: true, ..*next })),
                        None => {
                            settled += self.space.count(&next.group);
                            counters.drop("memory", self.space.count(&next.group));
                        }
                    }
                }
                continue;
            }
            pool.extend(batch.drain(sharp..).map(Reverse));
            if incumbents.is_none() {
                let mut glanced = Best::new(request);
                if !request.exhaustive {
                    let first = promising(&pool, &batch, GLANCED_AT * request.top.min(64));
                    let glance = |held: &mut Held<'_>, next: &Bounded| {
                        self.open(next, request, Threshold::default(), true, observer, &mut held.scratch)
                    };
                    let seen: Vec<Option<Opened>> =
                        first.par_iter().map_init(|| scratches.take(), glance).collect();
                    let settled = seen.into_iter().flatten().flat_map(|one| one.settled);
                    settled.for_each(|settled| glanced.offer(settled));
                }
                incumbents = Some(glanced);
                pool.extend(batch.drain(..).map(Reverse));
                continue;
            }
            let opened: Vec<Option<Opened>> = batch
                .par_iter()
                .map_init(
                    || scratches.take(),
                    |held, next| {
                        let class = class_of_group(&next.group);
                        let incumbent = incumbents.as_ref().map(|found| found.threshold(class));
                        let frozen = best.threshold(class).min(incumbent.unwrap_or_default());
                        let frozen = if request.exhaustive { Threshold::default() } else { frozen };
                        self.open(next, request, frozen, false, observer, &mut held.scratch)
                    },
                )
                .collect();
            for (one, next) in opened.into_iter().zip(&batch) {
                let Some(one) = one else {
                    // Told to stop before the group was done: it stays open.
                    pool.push(Reverse(*next));
                    continue;
                };
                counters.add(&one.counters);
                one.settled.into_iter().for_each(|s| best.offer(s));
                settled += self.space.count(&next.group);
            }
            wave += 1;
            let first = best.firsts.first().map(|f| f.0);
            observer.progress(settled, counters.candidates, first, Some(least));
        };
        let rest = ordered[at..].iter().map(|(_, group)| group);
        let rest: Vec<&Group> = rest.chain(pool.iter().map(|Reverse(next)| &next.group)).collect();
        let reason = if stop == Stop::Interrupted { "not visited" } else { "bound: degrees" };
        counters.drop(reason, rest.into_par_iter().map(|g| self.space.count(g)).sum());
        let first = best.firsts.first().map(|f| f.0);
        let optimality_gap = match (stop, open, first) {
            (Stop::Interrupted, Some(open), Some(first)) => (1.0 - open.0 as f64 / first.0 as f64).max(0.0),
            (Stop::Interrupted, _, None) => 1.0,
            _ => 0.0,
        };
        let found = best.into_sorted().into_par_iter().enumerate();
        let found = found.map(|(at, s)| self.finish(s, at < request.verified)).collect();
        Answer { found, counters, optimality_gap, stop }
    }

    /// A first bound on every group: computation and exchange at the best flags, whatever memory allows.
    fn first_bounds(&self, groups: &[Group]) -> Vec<(Picos, Group)> {
        let mut families: Vec<(Family, &Group)> = groups.iter().map(|g| (family_of(g), g)).collect();
        families.sort_unstable();
        families.dedup_by_key(|(family, _)| *family);
        let price = |parts: &mut Parts, (family, group): &(Family, &Group)| {
            let flags = self.floor_flags(group);
            (*family, self.cost.floor_total(&self.space.plain_cell(group), &flags, parts))
        };
        let floors: HashMap<Family, Picos> = families.par_iter().map_init(Parts::default, price).collect();
        let bound = |g: &Group| {
            let least = floors.get(&family_of(g)).copied().unwrap_or_default();
            (self.floor(Picos::ZERO).step(least_passes(least, g)), *g)
        };
        groups.par_iter().map(bound).collect()
    }

    /// Flags of a group without the graphs that no cell of it may have.
    fn floor_flags(&self, group: &Group) -> Flags {
        let mut flags = self.space.flags(group);
        let plain = self.space.plain_cell(group);
        flags.cuda_graphs.retain(|&cuda_graphs| {
            cuda_graphs != CudaGraphs::FullIteration
                || self.space.cell_rule(group, &CellKey { cuda_graphs, ..plain }).is_none()
        });
        flags
    }

    /// A bound that knows of memory: what is recomputed at least, at the best flags and the sharding with
    /// the fewest bytes. None if no layout of the group can fit. Above `most` it need not be exact.
    fn second_bound(
        &self,
        first: Picos,
        most: Option<Picos>,
        group: &Group,
        scratch: &mut Scratch,
    ) -> Option<Picos> {
        if !self.looped() {
            return Some(first);
        }
        let offloads = self.space.restrictions().offload.as_deref().unwrap_or(&[Offload::NONE]);
        let floor = self.floor(Picos::ZERO);
        let range = floor.passes(first)..=*floor.at_most(most).end();
        let of = |&offload: &Offload| {
            self.relaxed_passes(&range, group, offload, scratch).map(|passes| floor.step(passes))
        };
        offloads.iter().filter_map(of).min().map(|bound| first.max(bound))
    }

    /// Whether no schedule of the space splits backward passes: what floors hold for.
    fn looped(&self) -> bool {
        let looped = |s: &Schedule| matches!(s, Schedule::OneFOneB | Schedule::GPipe | Schedule::Interleaved);
        self.space.capabilities().schedules.iter().all(looped)
    }

    /// What the passes of a group take at least with one place of states and activations; exact in `range`
    /// only.
    fn relaxed_passes(
        &self,
        range: &RangeInclusive<Picos>,
        group: &Group,
        offload: Offload,
        scratch: &mut Scratch,
    ) -> Option<Picos> {
        let balancing = self.floor_problem(group, offload, None, false, scratch);
        if balancing.problem.modes.is_empty() || balancing.problem.check().is_err() {
            return Some(Picos::ZERO);
        }
        scratch.relaxation.lower_bound(&balancing.problem, range.clone())
    }

    /// The ways to recompute with which no layout of a group can take as little as `limit`.
    fn hopeless(&self, group: &Group, offload: Offload, limit: Threshold, scratch: &mut Scratch) -> Hopeless {
        let mut hopeless = Hopeless::default();
        let Some(time) = limit.time() else { return hopeless };
        if !self.looped() || self.space.capabilities().recompute.per_stage {
            return hopeless;
        }
        let Balancing { problem, modes, .. } = self.floor_problem(group, offload, None, true, scratch);
        if problem.modes.is_empty() || problem.check().is_err() {
            return hopeless;
        }
        let most = *self.floor(Picos::ZERO).at_most(Some(time)).end();
        scratch.relaxation.ways(&problem, most, &mut scratch.ways);
        let listed = |way: Way| scratch.ways.iter().any(|(_, listed)| *listed == way);
        for (at, _) in problem.modes.iter().enumerate().filter(|(_, mode)| mode.offered) {
            if !listed(Way::Mode(at as u16)) {
                hopeless.modes.insert(modes[at]);
            }
        }
        hopeless.block = problem.block.is_some() && !listed(Way::Block);
        hopeless
    }

    /// [`Search::second_bound`], order by order of the passes and with and without overlap of the experts'
    /// exchange: what a fast layout of one kind and a lean one of another have in common is less than
    /// either.
    fn third_bound(
        &self,
        &Bounded { bound: second, ref group, .. }: &Bounded,
        most: Option<Picos>,
        scratch: &mut Scratch,
    ) -> Option<Picos> {
        if !self.looped() {
            return Some(second);
        }
        let offloads = self.space.restrictions().offload.as_deref().unwrap_or(&[Offload::NONE]);
        let floor = self.floor(Picos::ZERO);
        let range = floor.passes(second)..=*floor.at_most(most).end();
        let mut orders: Vec<(Schedule, u32)> = Vec::new();
        self.space.orders(group, |schedule, virtual_stages| orders.push((schedule, virtual_stages)));
        let overlaps = self.space.flags(group).expert_overlap;
        let mut least: Option<Picos> = None;
        for (&offload, &(schedule, virtual_stages)) in
            offloads.iter().flat_map(|offload| orders.iter().map(move |order| (offload, order)))
        {
            for &overlap in &overlaps {
                let one = (schedule, virtual_stages, overlap);
                if !self.space.allows_order(group, one) {
                    continue;
                }
                let Balancing { problem, .. } = self.floor_problem(group, offload, Some(one), false, scratch);
                if problem.modes.is_empty() || problem.check().is_err() {
                    continue;
                }
                let Some(passes) = scratch.relaxation.lower_bound(&problem, range.clone()) else { continue };
                if passes <= *range.start() {
                    return Some(second);
                }
                least = Some(least.map_or(passes, |least| least.min(passes)));
            }
        }
        least.map(|passes| second.max(floor.step(passes)))
    }

    /// The balancing problem of no layout of a group that costs more than any of them, of all of them or
    /// of those with one order of the passes and with or without overlap of the experts' exchange; with
    /// `every` legal way to recompute or those alone that may be best.
    fn floor_problem(
        &self,
        group: &Group,
        offload: Offload,
        one: Option<(Schedule, u32, bool)>,
        every: bool,
        scratch: &mut Scratch,
    ) -> Balancing {
        let (schedule, virtual_stages, overlap) = one.unwrap_or((Schedule::OneFOneB, 1, false));
        let plain = CellKey { offload, expert_overlap: overlap, ..self.space.plain_cell(group) };
        let layout = layout_of(group, &plain, virtual_stages, schedule, 0, 1, false);
        let key = (family_of(group), offload, one.map(|one| one.2));
        if !scratch.floors.contains_key(&key) {
            let mut flags = self.floor_flags(group);
            if one.is_some() {
                flags.expert_overlap = vec![overlap];
            }
            let cell = self.cost.floor_cell(&plain, &flags, &mut scratch.parts);
            let legal = self.legal_modes(&layout, &cell, scratch);
            let family = RecomputeFamily::new(&legal, &cell);
            if scratch.floors.len() >= KEPT_FLOORS {
                scratch.floors.clear();
            }
            scratch.floors.insert(key, Floors { cell, legal, family });
        }
        let price = |(zero, shard, overlap)| {
            self.cost.sharding(&layout_of(group, &plain, virtual_stages, schedule, zero, shard, overlap))
        };
        let shardings: Vec<Sharding> = self.space.shardings(group).into_iter().map(price).collect();
        let sharding = Sharding::least(shardings.iter());
        let floors = &scratch.floors[&key];
        let all = every.then(|| RecomputeFamily::every(&floors.legal, &floors.cell));
        let family = all.as_ref().unwrap_or(&floors.family);
        let tables = TablesOf { cell: &floors.cell, sharding: &sharding, hop: Hop::default() };
        let capabilities = self.space.capabilities();
        let mut balancing =
            scratch.builder.build(self.cost, self.layers, &layout, tables, family, capabilities);
        let (ranks, micro_batches) = (group.pipeline_parallel, group.micro_batches);
        if one.is_none() {
            balancing.problem.pipeline = scratch.builder.busy(ranks, micro_batches);
            // Chunks of a deep pipeline may be empty.
            balancing.problem.min_layers = 0;
        } else if schedule == Schedule::OneFOneB {
            balancing.problem.pipeline = scratch.builder.either_pass(ranks, micro_batches);
        }
        balancing
    }

    /// Settles the layouts of a group that could matter; nothing if it is told to stop before the end.
    /// A mere `glance` settles what looks best, and drops nothing.
    fn open(
        &self,
        &Bounded { bound, ref group, .. }: &Bounded,
        request: &Request,
        frozen: Threshold,
        glance: bool,
        observer: &dyn Observer,
        scratch: &mut Scratch,
    ) -> Option<Opened> {
        let mut opened = Opened::default();
        let class = class_of_group(group);
        if frozen.excludes(bound) {
            opened.counters.drop("bound: degrees", self.space.count(group));
            return Some(opened);
        }
        let mut orders: Vec<(Schedule, u32)> = Vec::new();
        self.space.orders(group, |schedule, virtual_stages| orders.push((schedule, virtual_stages)));
        let shardings = self.space.shardings(group);
        let layouts = (orders.len() * shardings.len()) as u64;
        let mut cells = std::mem::take(&mut scratch.cells);
        cells.clear();
        self.space.cells(group, |key| cells.push((self.cost.cell_total(&key, &mut scratch.parts), key)));
        cells.sort_unstable();
        let mut known: Vec<States> = Vec::new();
        let mut priced: Vec<Priced> = Vec::new();
        let mut lines: Vec<Line> = Vec::new();
        let step = if glance { cells.len().div_ceil(CELLS_AT_A_GLANCE).max(1) } else { 1 };
        for &(total, key) in cells.iter().step_by(step) {
            if frozen.excludes(self.floor(Picos::ZERO).step(least_passes(total, group))) {
                opened.counters.drop("bound: flags", layouts);
                continue;
            }
            if let Some(rule) = self.space.cell_rule(group, &key) {
                opened.counters.drop(&format!("rule: {rule}"), layouts);
                continue;
            }
            if observer.stop() {
                scratch.cells = cells;
                return None;
            }
            let mut cell = self.price(&key, scratch);
            cell.states =
                known.iter().position(|states| states.offload == key.offload).unwrap_or_else(|| {
                    let hopeless = self.hopeless(group, key.offload, frozen, scratch);
                    known.push(self.states(group, &key, &orders, &shardings, &cell.parameters, hopeless));
                    known.len() - 1
                });
            self.lines(
                group,
                &key,
                &cell,
                priced.len(),
                &orders,
                frozen,
                request,
                scratch,
                &known,
                &mut lines,
                &mut opened,
            );
            priced.push(cell);
        }
        scratch.cells = cells;
        // The most promising first, so that the rest falls under a low threshold, in an order that nothing
        // else changes.
        lines.sort_by_key(|line| (line.estimate, line.cell, line.order));
        let mut own = Best::new(&Request { top: usize::MAX, ..request.clone() });
        for line in &mut lines {
            if observer.stop() {
                return None;
            }
            let cell = &priced[line.cell];
            let states = &known[cell.states];
            self.settle_line(
                line,
                cell,
                states,
                &shardings,
                (frozen, class),
                &mut own,
                request,
                scratch,
                &mut opened,
            );
            if glance && !opened.settled.is_empty() {
                break;
            }
        }
        Some(opened)
    }

    /// The lines of a cell that could matter.
    #[expect(clippy::too_many_arguments, reason = "one call, all of it needed")]
    fn lines(
        &self,
        group: &Group,
        key: &CellKey,
        priced: &Priced,
        cell: usize,
        orders: &[(Schedule, u32)],
        limit: Threshold,
        request: &Request,
        scratch: &mut Scratch,
        known: &[States],
        lines: &mut Vec<Line>,
        opened: &mut Opened,
    ) {
        let states = &known[priced.states];
        let count = states.all.len() as u64 / orders.len().max(1) as u64;
        let capabilities = self.space.capabilities();
        // The rules on recomputation look at the flags of the cell, and at nothing else of a layout.
        let mut family: Option<RecomputeFamily> = None;
        for (order, &(schedule, virtual_stages)) in orders.iter().enumerate() {
            let some = &states.some[order];
            if !request.exhaustive && states.fitting[order] == 0 {
                opened.counters.drop("memory", count);
                continue;
            }
            let layout = layout_of(group, key, virtual_stages, schedule, 0, 1, false);
            if !self.space.allows_order(group, (schedule, virtual_stages, key.expert_overlap)) {
                opened.counters.drop("rule: expert-overlap", count);
                continue;
            }
            let hop = self.cost.hop(&layout);
            let passes = self.least_makespan(&layout, priced, hop);
            let mut least = some.floor.step(passes);
            if limit.excludes(least) {
                opened.counters.drop("bound: flags", count);
                continue;
            }
            let family = family.get_or_insert_with(|| {
                let legal = self.legal_modes(&layout, &priced.cell, scratch);
                RecomputeFamily::new(&legal, &priced.cell).without(&states.hopeless, &priced.cell)
            });
            let tables = TablesOf { cell: &priced.cell, sharding: &some.sharding, hop };
            let balancing =
                scratch.builder.build(self.cost, self.layers, &layout, tables, family, capabilities);
            if balancing.problem.modes.is_empty() || balancing.problem.check().is_err() {
                opened.counters.drop("bound: recomputation", count);
                continue;
            }
            if !request.exhaustive {
                let range = Picos::ZERO..=*some.floor.at_most(limit.time()).end();
                let Some(relaxed) = scratch.relaxation.lower_bound(&balancing.problem, range) else {
                    opened.counters.drop("memory", count);
                    continue;
                };
                least = least.max(some.floor.step(relaxed));
                if limit.excludes(least) {
                    opened.counters.drop("bound: memory and stages", count);
                    continue;
                }
            }
            let (p, v) = (u64::from(layout.pipeline_parallel), u64::from(virtual_stages));
            let wait = if v > 1 { priced.sum.0 * (p - 1) / (p * v) } else { 0 };
            let mut estimate = least + Picos(wait);
            let (mut balancing, mut kept) = (balancing, None);
            if let Some(most) = &states.most[order]
                && v > 1
                && !request.exhaustive
            {
                let uneven = self.space.capabilities().uneven_stages && !request.even_stages;
                let highest = *some.floor.at_most(limit.time()).end();
                let mut splits = scratch.balancer.splits(&balancing.problem, uneven);
                let bound = scratch.balancer.least_of_splits(&balancing.problem, &mut splits, highest);
                // None is relieved if one fits with the fullest states.
                let tables = TablesOf { cell: &priced.cell, sharding: most, hop };
                balancing.restate(&layout, tables);
                if scratch.balancer.any_fits(&balancing.problem, &mut splits) {
                    let Some(bound) = bound else {
                        opened.counters.drop("bound: splits", count);
                        continue;
                    };
                    least = least.max(some.floor.step(bound));
                    estimate = least;
                }
                kept = Some(splits);
            }
            lines.push(Line { least, estimate, passes, cell, order, layout, hop, balancing, splits: kept });
        }
    }

    /// Prices all shardings of a group's orders.
    fn states(
        &self,
        group: &Group,
        key: &CellKey,
        orders: &[(Schedule, u32)],
        shardings: &[(u8, u32, bool)],
        parameters: &LocalParameters,
        hopeless: Hopeless,
    ) -> States {
        let p = u64::from(group.pipeline_parallel);
        let (all, some, most, fitting) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let mut states = States { offload: key.offload, all, some, most, fitting, hopeless };
        for &(schedule, virtual_stages) in orders {
            let from = states.all.len();
            let mut fitting = 0;
            for &(zero, shard, overlap) in shardings {
                let layout = layout_of(group, key, virtual_stages, schedule, zero, shard, overlap);
                let sharding = self.cost.sharding(&layout);
                let floor = self.once(&sharding, parameters, p);
                let fits = !self.states_exceed(&sharding, parameters, p);
                let held = self.cost.host_holds(&sharding, parameters, group.pipeline_parallel);
                fitting += u32::from(fits && held);
                states.all.push(StateCost { sharding, floor, fits, held });
            }
            let all = &states.all[from..];
            let once = all.iter().map(|one| one.floor.once).min().unwrap_or_default();
            let jitter = all.first().map_or(1.0, |one| one.floor.jitter);
            states.some.push(StateCost {
                sharding: Sharding::least(all.iter().map(|one| &one.sharding)),
                floor: Floor { once, jitter },
                fits: true,
                held: true,
            });
            let shardings = all.iter().filter(|one| one.fits && one.held).map(|one| &one.sharding);
            let most = Sharding::most(shardings);
            states.most.push(most);
            states.fitting.push(fitting);
        }
        states
    }

    /// Settles the layouts of a line that could matter.
    #[expect(clippy::too_many_arguments, reason = "one call, all of it needed")]
    fn settle_line(
        &self,
        line: &mut Line,
        priced: &Priced,
        states: &States,
        shardings: &[(u8, u32, bool)],
        (frozen, class): (Threshold, Class),
        own: &mut Best,
        request: &Request,
        scratch: &mut Scratch,
        opened: &mut Opened,
    ) {
        let limit = |own: &Best| {
            if request.exhaustive { Threshold::default() } else { frozen.min(own.threshold(class)) }
        };
        if limit(own).excludes(line.least) {
            opened.counters.drop("bound: memory and stages", shardings.len() as u64);
            return;
        }
        scratch.known.clear();
        (scratch.free, scratch.splits, scratch.recent) = (None, line.splits.take(), None);
        let from = line.order * shardings.len();
        for (one, &(zero_stage, shard_group, data_overlap)) in states.all[from..].iter().zip(shardings) {
            let layout = Layout { zero_stage, shard_group, data_overlap, ..line.layout };
            let limit = limit(own);
            if let Some(settled) = self.settle(&layout, line, priced, one, limit, request, scratch, opened) {
                own.offer(settled.clone());
                opened.settled.push(settled);
            }
        }
    }

    fn price(&self, key: &CellKey, scratch: &mut Scratch) -> Priced {
        let cell = self.cost.cell_with(key, &mut scratch.parts);
        let mut sum = Picos::ZERO;
        let mut parameters = LocalParameters::default();
        let mut longest_forward: f64 = 0.0;
        let mut share = |forward: Picos, backward: Picos| {
            if forward.0 + backward.0 > 0 {
                let all = (forward + backward).0 as f64;
                longest_forward = longest_forward.max(forward.0 as f64 / all);
            }
        };
        for run in &self.layers.runs {
            let layer = &cell.layers[run.kind as usize];
            let (f, b) = (layer.forward.total(), layer.backward.total());
            sum += (f + b) * u64::from(run.count);
            share(f, b);
            parameters = parameters.plus(&layer.parameters, u64::from(run.count));
        }
        for end in [&cell.embedding, &cell.head] {
            let (f, b) = (end.forward.total(), end.backward.total());
            sum += f + b;
            share(f, b);
            parameters = parameters.plus(&end.parameters, 1);
        }
        let least_layer = self
            .layers
            .runs
            .iter()
            .map(|run| &cell.layers[run.kind as usize])
            .map(|layer| layer.forward.total() + layer.backward.total())
            .min()
            .unwrap_or_default();
        Priced { cell, states: 0, sum, parameters, forward_share: longest_forward, least_layer }
    }

    /// A time that the passes of a layout take at least, wherever its layers are and whatever they
    /// recompute.
    fn least_makespan(&self, layout: &Layout, priced: &Priced, hop: Hop) -> Picos {
        let (p, m) = (u64::from(layout.pipeline_parallel), u64::from(layout.gradient_accumulation_steps));
        // Both neighbours of a rank boundary are busy in both passes.
        let messages =
            4 * (u64::from(layout.chunk_count()) - 1).min(u64::from(layout.chunk_count()) * (p - 1));
        let overhead = priced.cell.micro_batch_overhead;
        let busy = hop.busy * if layout.schedule == Schedule::OneFOneB { messages } else { 0 };
        let all = priced.sum + busy + if layout.virtual_stages == 1 { overhead * p } else { Picos::ZERO };
        let average = Picos(all.0 * m / p);
        match layout.schedule {
            Schedule::OneFOneB => {
                // One micro-batch passes all ranks; the slowest rank does the rest. Rank `i` pays at least
                // `m - 1 - (w - 1) share` of its own time, so the ranks cannot all stay below
                // `all / sum of 1 / that`.
                let share = priced.forward_share.min(0.5);
                let inverse: f64 = (0..p)
                    .map(|rank| {
                        let warm = (p - rank).min(m) as f64;
                        1.0 / (m as f64 - 1.0 - (warm - 1.0) * share).max(0.0)
                    })
                    .sum();
                // Host time and messages divide otherwise between the passes: only layers and ends count.
                let own = priced.sum.0 as f64;
                let rest = if inverse.is_finite() && inverse > 0.0 { own / inverse } else { 0.0 };
                let chain = all + hop.latency * (2 * (p - 1)) + Picos((rest * (1.0 - 1e-9)) as u64);
                // The first rank starts micro-batch `j + p` after its backward pass of micro-batch `j`: every
                // `p`-th passes all ranks there and back, one after the other.
                let rounds = (all + hop.latency * (2 * (p - 1))) * m.div_ceil(p);
                // Floating point: give away far more than its error.
                chain.max(average).max(rounds)
            }
            Schedule::GPipe => all.max(Picos(all.0 + all.0 * (m - 1) / p)),
            Schedule::Interleaved => {
                // The first chunks fill the pipeline before a rank can start, and drain it after its end.
                let chunks = layout.chunk_count();
                let least = if chunks <= self.layers.count() { priced.least_layer.0 } else { 0 };
                all.max(average + Picos(least * (p - 1) / 2))
            }
            _ => average,
        }
    }

    /// `T` of a layout if it can matter.
    #[expect(clippy::too_many_arguments, reason = "one call, all of it needed")]
    fn settle(
        &self,
        layout: &Layout,
        line: &mut Line,
        priced: &Priced,
        states: &StateCost,
        limit: Threshold,
        request: &Request,
        scratch: &mut Scratch,
        opened: &mut Opened,
    ) -> Option<Settled> {
        let StateCost { sharding, floor, fits, held } = states;
        if limit.excludes_layout(floor.step(line.passes), layout) {
            opened.counters.drop("bound: layout", 1);
            return None;
        }
        if let Err(refusal) = legal(self.space.target(), self.space.context(), layout) {
            opened.counters.drop(&format!("rule: {}", refusal.rule), 1);
            return None;
        }
        if !held {
            opened.counters.drop("host memory", 1);
            return None;
        }
        if !request.exhaustive && !fits {
            opened.counters.drop("memory", 1);
            return None;
        }
        let tables = TablesOf { cell: &priced.cell, sharding, hop: line.hop };
        line.balancing.restate(layout, tables);
        let problem = &line.balancing.problem;
        if problem.check().is_err() {
            opened.counters.drop("recompute: no mode is legal", 1);
            return None;
        }
        // Of no interest is what takes longer than what certainly does not matter.
        let most = limit.time().map_or(Picos(u64::MAX), |time| *floor.at_most(Some(time)).end());
        // For several chunks per rank the completions have sharper bounds of their own.
        if !request.exhaustive && layout.virtual_stages == 1 {
            let Some(relaxed) = scratch.relaxation.lower_bound(problem, floor.at_most(limit.time())) else {
                opened.counters.drop("memory", 1);
                return None;
            };
            if limit.excludes_layout(floor.step(relaxed), layout) {
                opened.counters.drop("bound: memory and stages", 1);
                return None;
            }
        }
        let list = if layout.virtual_stages > 1 {
            self.chunked(layout, problem, request, most, scratch)
        } else {
            self.completions(layout, problem, request, most, scratch)
        };
        let settled = self.fastest(layout, &list, &line.balancing, tables, limit, scratch, opened);
        let reason = if request.exhaustive { "memory" } else { "bound: completions" };
        opened.counters.drop(reason, u64::from(settled.is_none()));
        opened.counters.evaluated += u64::from(settled.is_some());
        settled
    }

    /// Ways to recompute beside a cell's flags; the micro-batch does not matter.
    fn legal_modes(&self, layout: &Layout, cell: &CellCosts, scratch: &mut Scratch) -> Arc<LegalModes> {
        let key = CellKey { micro_batch_size: 1, ..CellKey::from(layout) };
        let (target, context) = (self.space.target(), self.space.context());
        let only = self.space.restrictions().recompute.as_deref();
        let make = || Arc::new(LegalModes::new(target, context, layout, cell, only));
        if scratch.legal_modes.len() >= KEPT_FLOORS && !scratch.legal_modes.contains_key(&key) {
            scratch.legal_modes.clear();
        }
        scratch.legal_modes.entry(key).or_insert_with(make).clone()
    }

    /// Whether the states alone exceed the memory of an average rank.
    fn states_exceed(&self, sharding: &Sharding, parameters: &LocalParameters, ranks: u64) -> bool {
        let states: u64 =
            state_bytes(sharding, parameters).iter().map(|bytes| bytes.0.saturating_sub(1)).sum();
        states / ranks > self.cost.memory_limit().0
    }

    /// The fixed list of completions whose fastest is `T`, one chunk per rank: the optimum of the chain
    /// bound, the optimum of the closed form with the same recomputation, and the even split with the one
    /// that has the least chain bound. None of them if no chain bound is `most` or less.
    fn completions(
        &self,
        layout: &Layout,
        problem: &Problem,
        request: &Request,
        most: Picos,
        scratch: &mut Scratch,
    ) -> Vec<Assignment> {
        // Layouts of a line differ in bytes held and, from ZeRO-2 on, in traffic. If the optimum without
        // a memory limit fits, it is the optimum with one; and what was found under a higher threshold
        // holds under this one.
        if layout.zero_stage < 2 {
            let free = scratch.free.take().filter(|known| most <= known.most).unwrap_or_else(|| {
                let unlimited = Problem { limit: Bytes(u64::MAX / 16), ..problem.clone() };
                Completions { most, list: self.solve(layout, &unlimited, request, most, scratch) }
            });
            let fits = |assignment| evaluate_into(problem, assignment, &mut scratch.evaluation).is_ok();
            let fits = free.list.iter().all(fits);
            let found =
                if fits { free.list.clone() } else { self.solve(layout, problem, request, most, scratch) };
            scratch.free = Some(free);
            return found;
        }
        self.solve(layout, problem, request, most, scratch)
    }

    fn solve(
        &self,
        layout: &Layout,
        problem: &Problem,
        request: &Request,
        most: Picos,
        scratch: &mut Scratch,
    ) -> Vec<Assignment> {
        let mut list: Vec<Assignment> = Vec::new();
        let uneven = self.space.capabilities().uneven_stages && !request.even_stages;
        let below = (most < Picos(u64::MAX)).then_some(most + Picos(1));
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
        layout: &Layout,
        problem: &Problem,
        request: &Request,
        most: Picos,
        scratch: &mut Scratch,
    ) -> Vec<Assignment> {
        let uneven = self.space.capabilities().uneven_stages && !request.even_stages;
        // Layouts of a line differ in bytes held and, from ZeRO-2 on, in traffic; with and without overlap
        // in neither. What was found under a higher threshold holds under this one.
        if let Some((kinds, fixed, found)) = &scratch.recent
            && *kinds == problem.kinds
            && *fixed == problem.fixed
            && most <= found.most
        {
            return found.list.clone();
        }
        let kept = scratch.splits.take().filter(|_| layout.zero_stage < 2);
        let mut splits = kept.unwrap_or_else(|| scratch.balancer.splits(problem, uneven));
        let list = scratch.balancer.completions(problem, &mut splits, most);
        scratch.splits = (layout.zero_stage < 2).then_some(splits);
        let found = Completions { most, list: list.clone() };
        scratch.recent = Some((problem.kinds.clone(), problem.fixed.clone(), found));
        list
    }

    /// The even split with the recomputation that fits and has the least bound, if any does.
    fn even(&self, layout: &Layout, problem: &Problem, scratch: &mut Scratch) -> Option<Assignment> {
        if layout.virtual_stages == 1 {
            return scratch.balancer.even(problem).map(|(assignment, _)| assignment);
        }
        let mut even = scratch.balancer.splits(problem, false);
        scratch.balancer.completions(problem, &mut even, Picos(u64::MAX)).pop()
    }

    /// The fastest of a list of completions under the simulation, if it can matter.
    #[expect(clippy::too_many_arguments, reason = "one call, all of it needed")]
    fn fastest(
        &self,
        layout: &Layout,
        list: &[Assignment],
        balancing: &Balancing,
        tables: TablesOf<'_>,
        limit: Threshold,
        scratch: &mut Scratch,
        opened: &mut Opened,
    ) -> Option<Settled> {
        let mut best: Option<(Picos, Plan)> = None;
        let context = self.space.context();
        for assignment in list {
            if evaluate_into(&balancing.problem, assignment, &mut scratch.evaluation).is_err() {
                continue;
            }
            let least = scratch.evaluation.bound + tables.sharding.step_overhead;
            let least = Floor { once: Picos::ZERO, jitter: tables.sharding.jitter }.step(least);
            if limit.excludes_layout(least, layout) {
                continue;
            }
            let chunks = balancing.chunks(assignment);
            let made = Plan::new(*layout, chunks, context.gpus, context.global_batch_size, context.layers);
            let Ok(plan) = made else { continue };
            if legal_plan(self.space.target(), context, &plan).is_err() {
                continue;
            }
            // Staging at the update and what lies off the GPU are no part of the balancing problem; few
            // plans have any.
            if tables.sharding.staging > 0.0 || layout.offload != Offload::NONE {
                let TablesOf { cell, sharding, hop } = tables;
                let tables = Tables { cell: cell.clone(), sharding: sharding.clone(), hop };
                let whole = predict_with(self.cost, self.layers, &plan, &tables, &mut scratch.simulator);
                if !self.cost.fits(&whole) {
                    continue;
                }
            }
            opened.counters.simulated += 1;
            let time = self.time(layout, assignment, &plan, tables, scratch);
            if best.as_ref().is_none_or(|(t, other)| (time, &plan) < (*t, other)) {
                best = Some((time, plan));
            }
        }
        let (time, plan) = best?;
        Some(Settled { time, plan })
    }

    /// Step time of a plan whose evaluation is in `scratch`: that of [`crate::cost::step::predict`], to
    /// the picosecond.
    fn time(
        &self,
        layout: &Layout,
        assignment: &Assignment,
        plan: &Plan,
        tables: TablesOf<'_>,
        scratch: &mut Scratch,
    ) -> Picos {
        let TablesOf { cell, sharding, hop } = tables;
        let (p, last) = (layout.pipeline_parallel as usize, assignment.layers.len() - 1);
        if !matches!(layout.schedule, Schedule::OneFOneB | Schedule::GPipe | Schedule::Interleaved) {
            // Other schedules split backward passes.
            let tables = Tables { cell: cell.clone(), sharding: sharding.clone(), hop };
            return predict_with(self.cost, self.layers, plan, &tables, &mut scratch.simulator).step();
        }
        let evaluation = &scratch.evaluation;
        let same = |run: &&Simulated| {
            run.schedule == layout.schedule
                && run.forward == evaluation.forward
                && run.backward == evaluation.backward
        };
        let at = scratch.known.iter().position(|run| same(&run));
        let at = at.unwrap_or_else(|| {
            let load = Load {
                forward: &evaluation.forward,
                backward: &evaluation.backward,
                weight: &evaluation.backward,
                hop: hop.latency,
            };
            let makespan = scratch.simulator.run(shape(layout), load);
            scratch.known.push(Simulated {
                schedule: layout.schedule,
                forward: evaluation.forward.clone(),
                backward: evaluation.backward.clone(),
                makespan,
                starts: scratch.simulator.starts.clone(),
                ends: scratch.simulator.ends.clone(),
            });
            scratch.known.len() - 1
        });
        let run = &scratch.known[at];
        let ranks = &mut scratch.ranks;
        ranks.clear();
        ranks.resize(p, RankLoad::default());
        let mut next = 0;
        for (k, &layers) in assignment.layers.iter().enumerate() {
            let rank = layout.rank_of_chunk(k as u32);
            let neighbours = [k.checked_sub(1), (k < last).then_some(k + 1)];
            let messages =
                neighbours.into_iter().flatten().filter(|&n| layout.rank_of_chunk(n as u32) != rank).count()
                    as u64;
            let load = &mut ranks[rank as usize];
            load.forward += run.forward[k] - hop.busy * messages;
            load.backward += run.backward[k] - hop.busy * messages;
            for _ in 0..layers {
                let kind = self.layers.order[next] as usize;
                load.parameters = load.parameters.plus(&cell.layers[kind].parameters, 1);
                next += 1;
            }
            if k == 0 {
                load.parameters = load.parameters.plus(&cell.embedding.parameters, 1);
            }
            if k == last {
                load.parameters = load.parameters.plus(&cell.head.parameters, 1);
                if layout.rank_of_chunk(0) != rank {
                    load.parameters = load.parameters.plus(&cell.tied_copy, 1);
                }
            }
        }
        let (mut gather_wait, mut flush, mut update) = (Picos::ZERO, run.makespan, Picos::ZERO);
        for (r, load) in ranks.iter().enumerate() {
            let once = once_per_step(sharding, &load.parameters);
            let exposed = |traffic, floor, hidden, window| {
                exposed(traffic, floor, hidden, sharding.interference, window)
            };
            let gather =
                exposed(once.gather, sharding.exposed_floor.1, sharding.hidden_share.1, load.forward);
            let reduce =
                exposed(once.reduce, sharding.exposed_floor.0, sharding.hidden_share.0, load.backward);
            gather_wait = gather_wait.max(gather.saturating_sub(run.starts[r]));
            flush = flush.max(run.ends[r] + reduce);
            update = update.max(once.update);
        }
        Floor { once: gather_wait + update + sharding.step_overhead, jitter: sharding.jitter }.step(flush)
    }

    /// Prediction, even split and certificate of a plan that is printed.
    fn finish(&self, settled: Settled, verify: bool) -> Found {
        let layout = *settled.plan.layout();
        let prediction = predict(self.cost, self.layers, &settled.plan);
        let mut scratch = Scratch::default();
        let priced = self.price(&CellKey::from(&layout), &mut scratch);
        let sharding = self.cost.sharding(&layout);
        let hop = self.cost.hop(&layout);
        let tables = TablesOf { cell: &priced.cell, sharding: &sharding, hop };
        let context = self.space.context();
        let legal = self.legal_modes(&layout, &priced.cell, &mut scratch);
        let family = RecomputeFamily::new(&legal, &priced.cell);
        let capabilities = self.space.capabilities();
        let balancing = scratch.builder.build(self.cost, self.layers, &layout, tables, &family, capabilities);
        let problem = &balancing.problem;
        let floor = self.once(&sharding, &priced.parameters, u64::from(layout.pipeline_parallel));
        let mut bound = self.least_makespan(&layout, &priced, hop);
        #[cfg(not(feature = "milp"))]
        let _ = verify;
        #[cfg(feature = "milp")]
        let mut verified = None;
        if layout.virtual_stages == 1 {
            #[cfg(feature = "milp")]
            if verify
                && layout.pipeline_parallel > 1
                && self.layers.runs.len() <= verify::MOST_RUNS
                && let Balanced::Found(chain) = scratch.balancer.solve(problem, SplitObjective::Chain, None)
            {
                verified = self.verify(&layout, &balancing, chain, tables, &mut scratch);
            }
            let tailed = Problem { tail: first_rank_tail(&layout, tables), ..problem.clone() };
            if let Balanced::Found(chain) = scratch.balancer.solve(&tailed, SplitObjective::Chain, None) {
                bound = bound.max(chain);
            }
        } else {
            #[cfg(feature = "milp")]
            if verify && let Some(least) = Self::least_by_programme(&layout, problem, tables) {
                bound = bound.max(least);
            }
            if let Some(least) = scratch.balancer.lower_bound(problem, None) {
                bound = bound.max(least);
            }
        }
        let bound = floor.step(bound);
        let even = self.even(&layout, problem, &mut scratch).and_then(|assignment| {
            evaluate_into(problem, &assignment, &mut scratch.evaluation).ok()?;
            let chunks = balancing.chunks(&assignment);
            let plan = Plan::new(layout, chunks, context.gpus, context.global_batch_size, context.layers);
            Some(self.time(&layout, &assignment, &plan.ok()?, tables, &mut scratch))
        });
        let split_gap = (settled.time.0 as f64 / bound.0.max(1) as f64 - 1.0).max(0.0);
        Found {
            plan: settled.plan,
            prediction,
            even,
            split_gap,
            #[cfg(feature = "milp")]
            verified,
        }
    }

    fn once(&self, sharding: &Sharding, parameters: &LocalParameters, ranks: u64) -> Floor {
        // The fullest rank updates at least the average; rounding may take a picosecond off.
        let update = once_per_step(sharding, parameters).update.saturating_sub(Picos(1)) / ranks;
        Floor { once: update + sharding.step_overhead, jitter: sharding.jitter }
    }

    /// What every step takes beside its passes.
    fn floor(&self, once: Picos) -> Floor {
        let (overhead, jitter) = self.cost.step_floor();
        Floor { once: once + overhead, jitter }
    }
}

/// A priced cell.
struct Priced {
    cell: CellCosts,
    /// Which of the group's states.
    states: usize,
    /// One micro-batch through all layers and ends.
    sum: Picos,
    /// All parameters, as if on one pipeline rank.
    parameters: LocalParameters,
    /// Largest share of a forward pass in the time of a layer or an end.
    forward_share: f64,
    /// Time of the fastest layer.
    least_layer: Picos,
}

/// So many groups with the least bounds, each of another class.
fn promising(pool: &BinaryHeap<Reverse<Bounded>>, next: &[Bounded], most: usize) -> Vec<Bounded> {
    let mut all: Vec<Bounded> = pool.iter().map(|Reverse(next)| *next).chain(next.iter().copied()).collect();
    all.sort_unstable();
    let mut seen: HashSet<Class> = HashSet::new();
    all.retain(|next| seen.insert(class_of_group(&next.group)));
    all.truncate(most);
    all
}

/// What the passes of a group take at least if one micro-batch takes `total`: every rank runs all
/// micro-batches, and one micro-batch passes through all ranks.
fn least_passes(total: Picos, g: &Group) -> Picos {
    total.max(Picos(total.0 * u64::from(g.micro_batches) / u64::from(g.pipeline_parallel)))
}

/// TP, CP, micro-batch, EP, ETP.
type Family = (u32, u32, u32, u32, u32);

fn family_of(g: &Group) -> Family {
    (g.tensor_parallel, g.context_parallel, g.micro_batch_size, g.expert_parallel, g.expert_tensor_parallel)
}
