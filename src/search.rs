//! Exact search: the best layouts of a space, with proof.
//!
//! `T(layout)` is the predicted step time of the best of a short, fixed list of completions (placements
//! of layers with recomputation). With one chunk per rank: the optimum of the chain bound, the optimum of
//! the closed form, and the even split. With several: the even split, a few near it that spread the load
//! of the ends, in some cases one more that simulation finds from those, or where none of the others fits two
//! that relieve ranks without memory ([`crate::stages::Splits`]). Layouts are visited
//! group by group in the order of an admissible lower bound and dropped as soon as a bound reaches the
//! k-th best `T`; what is printed is exact, and the gap says so. Groups are opened in waves whose size
//! depends on nothing but the wave's number, with the threshold frozen per wave: the answer and all
//! counters are the same at any thread count.

pub mod balance;
mod best;
mod bounds;
mod finish;
mod groups;
mod incumbents;
mod layouts;
#[cfg(test)]
mod levels;
mod polish;
mod traffic;
#[cfg(feature = "milp")]
mod verify;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rayon::prelude::*;

use crate::candidates::{Group, Space};
use crate::cost::model::{CostModel, Parts};
use crate::cost::schedule::Simulator;
use crate::cost::step::Prediction;
use crate::cost::{CellKey, LocalParameters};
use crate::kept::Kept;
use crate::layers::Layers;
use crate::plan::{Offload, Plan};
use crate::stages::relax::Relaxation;
use crate::stages::{Balancer, Evaluation, Fixed, Kind, Splits, Spread, Way};
use crate::units::Picos;
#[cfg(feature = "milp")]
pub use verify::Verified;

use balance::{LegalModes, Pipelines};
use best::{Best, Class, Settled, Threshold, class_of, class_of_group};
use bounds::{Family, Floors};
use groups::{Opened, Seen};
use incumbents::Open;
use layouts::{Completions, RankPasses, Simulated};

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
    /// Where no layout fits, and in spaces of at most [`SMALL_SPACE`] layouts anyway, look once more, for splits that only
    /// moving layers one by one finds ([`Spread::Any`]).
    pub insist: bool,
    /// How many of the best plans are looked at closely. With one chunk per rank the integer programme checks the
    /// split, of deep pipelines only if they are the best; with several, chains of passes bound all others.
    pub verified: usize,
    /// Which other plan is looked at as closely, counted from 0.
    pub picked: Option<usize>,
    /// How many times the usual work the certificates of these are worth, at least 1.
    pub effort: u32,
}

/// The most of [`Request::effort`]: about as many seconds for every plan whose certificate is hard.
pub const MOST_EFFORT: u32 = 1000;

impl Default for Request {
    fn default() -> Self {
        Self {
            top: 10,
            per_class: 1,
            exhaustive: false,
            even_stages: false,
            insist: true,
            verified: 0,
            picked: None,
            effort: 1,
        }
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
    /// Whether its split was looked at closely: of others no more is known with more work.
    pub looked_at: bool,
    /// What the integer programme says of the layout's split, one chunk per rank.
    #[cfg(feature = "milp")]
    pub verified: Option<Verified>,
    /// A better split of the same layout, where one was looked for and found after the ranking.
    pub polished: Option<Box<OtherSplit>>,
    /// The split that the ranking is of, where the better one has taken its place.
    pub ranked: Option<Box<OtherSplit>>,
}

/// A plan that differs from another in layers moved between its chunks.
#[derive(Debug, Clone)]
pub struct OtherSplit {
    /// The plan.
    pub plan: Plan,
    /// What is predicted of it.
    pub prediction: Prediction,
    /// By what share any other placement of layers could at most be faster.
    pub split_gap: f64,
}

impl Found {
    /// What its split took when it was ranked.
    #[must_use]
    pub fn ranked_step(&self) -> Picos {
        self.ranked.as_ref().map_or(self.prediction.step(), |ranked| ranked.prediction.step())
    }

    /// The same with the better split in the place of its own, if one was found.
    pub fn take_polished(&mut self) {
        let Some(mut split) = self.polished.take() else { return };
        std::mem::swap(&mut self.plan, &mut split.plan);
        std::mem::swap(&mut self.prediction, &mut split.prediction);
        std::mem::swap(&mut self.split_gap, &mut split.split_gap);
        self.ranked = Some(split);
    }
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
    /// Layouts of which nothing more is to be found out.
    fn settled(&self) -> u64 {
        self.evaluated + self.pruned.values().sum::<u64>()
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
    /// Whether only a second look found anything, see [`Request::insist`].
    pub insisted: bool,
}

impl Answer {
    /// That of a search that was told to stop before it began.
    #[must_use]
    pub fn unsearched() -> Self {
        Self {
            found: Vec::new(),
            counters: Counters::default(),
            optimality_gap: 1.0,
            stop: Stop::Interrupted,
            insisted: false,
        }
    }
}

/// Layouts of a space that is looked at twice: it costs a second at most, and more memory never makes its answer slower
/// only because something fits that is found at first sight.
pub const SMALL_SPACE: u64 = 2_000;

/// Hears how a search goes on.
pub trait Observer: Sync {
    /// Called after every wave: layouts settled, layouts of the space, best time, smallest open bound.
    fn progress(&self, settled: u64, candidates: u64, best: Option<Picos>, open: Option<Picos>) {
        let _ = (settled, candidates, best, open);
    }
    /// Called before the first plan and after every one of which is known how near its split is to the fastest: how many, and
    /// of how many.
    fn certified(&self, done: usize, plans: usize) {
        let _ = (done, plans);
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
    parts: Parts,
    /// Cells of the current group with a bound on one micro-batch.
    cells: Vec<(Picos, CellKey)>,
    legal_modes: Kept<CellKey, Arc<LegalModes>, KEPT_LEGAL>,
    relaxation: Relaxation,
    /// By TP, EP and ETP.
    parameters: Kept<(u32, u32, u32), LocalParameters, KEPT_PARAMETERS>,
    floors: Kept<(Family, Offload, Option<bool>), Floors, KEPT_FLOORS>,
    simulator: Simulator,
    balancer: Balancer,
    pipelines: Pipelines,
    evaluation: Evaluation,
    ranks: Vec<RankPasses>,
    /// Schedules simulated for the current line.
    known: Vec<Simulated>,
    /// Ways to recompute that could matter in the current group.
    ways: Vec<Way>,
    /// Completions of the current line without a memory limit.
    free: Option<Completions>,
    /// Splits of the current line over several chunks per rank.
    splits: Option<Splits>,
    /// The last problem of the current line over several chunks per rank, and its completions.
    recent: Option<(Vec<Kind>, Vec<Fixed>, Completions)>,
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

/// Groups that get their second bound at once.
const REFINED_AT_ONCE: usize = 512;
/// Groups opened at once even if one without a second bound might come first: work for several threads.
const OPENED_AT_LEAST: usize = 8;
/// Priced floors that a thread keeps.
const KEPT_FLOORS: usize = 128;
/// Counts of parameters that a thread keeps.
const KEPT_PARAMETERS: usize = 1024;
/// Lists of legal ways to recompute that a thread keeps.
const KEPT_LEGAL: usize = 1024;
/// Parts of cells that a thread keeps.
const KEPT_PARTS: usize = 1024;

/// Groups opened per wave: work for many threads, but not so much that what one finds comes too late for the next.
/// Fewer at first, so that good plans are found before much is opened.
fn wave_size(wave: u32) -> usize {
    if wave == 0 { 16 } else { 32 }
}

impl Search<'_> {
    /// Finds the best layouts. What was `found` before in a part of this space the rest has to beat from the start.
    #[must_use]
    pub fn run(&self, request: &Request, found: &[Found], observer: &dyn Observer) -> Answer {
        let first = self.passes(&Request { insist: false, ..request.clone() }, found, observer);
        let futile = !request.insist || self.spread(request) < Spread::Any;
        let small = first.counters.candidates <= SMALL_SPACE;
        if futile || first.stop == Stop::Interrupted || !(first.found.is_empty() || small) {
            return first;
        }
        let second = self.passes(request, found, observer);
        let best = |answer: &Answer| answer.found.first().map(|best| best.prediction.step());
        match (best(&first), best(&second)) {
            (Some(first_step), Some(second_step)) if second_step < first_step => second,
            (None, Some(_)) => Answer { insisted: true, ..second },
            _ => first,
        }
    }

    /// As many walks over the space as are needed for the classes that are kept.
    fn passes(&self, request: &Request, found: &[Found], observer: &dyn Observer) -> Answer {
        if request.per_class <= 1 || request.exhaustive {
            return self.pass(request, found, observer, None);
        }
        // Which classes are kept is decided by the best layout of each; only then is it known that a
        // slower layout of such a class matters.
        let kept =
            self.pass(&Request { per_class: 1, verified: 0, ..request.clone() }, found, observer, None);
        if kept.stop == Stop::Interrupted || kept.found.is_empty() {
            return kept;
        }
        let classes: Vec<Class> = kept.found.iter().map(|found| class_of(found.plan.layout())).collect();
        self.pass(&Request { top: usize::MAX, ..request.clone() }, &[], observer, Some(&classes))
    }

    /// One walk over the space, or over some of its classes.
    fn pass(
        &self,
        request: &Request,
        found: &[Found],
        observer: &dyn Observer,
        classes: Option<&[Class]>,
    ) -> Answer {
        let mut groups = self.space.groups();
        let count = |groups: &[Group]| groups.par_iter().map(|g| self.space.count(g)).sum::<u64>();
        let mut counters = Counters { candidates: count(&groups), ..Counters::default() };
        if let Some(classes) = classes {
            groups.retain(|group| classes.contains(&class_of_group(group)));
            counters.drop("bound: degrees", counters.candidates - count(&groups));
        }
        let mut ordered = self.first_bounds(&groups);
        // There may be 200,000 of them.
        drop(groups);
        ordered.par_sort_unstable();

        let scratches = Scratches::default();
        let mut best = Best::new(request);
        // Layouts of some groups: the best certainly do not take longer.
        let mut incumbents = (!found.is_empty()).then(|| {
            let mut best = Best::new(request);
            found.iter().map(Settled::from).for_each(|settled| best.offer(settled));
            best
        });
        // What was settled of groups that were only seen at a glance.
        let mut glances: HashMap<Group, (u64, u64)> = HashMap::new();
        // Groups whose second bound is known, by that bound or a third; and the next group that has only a
        // first.
        let mut pool: BinaryHeap<Reverse<Bounded>> = BinaryHeap::new();
        let (mut at, mut wave) = (0, 0);
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
                // What only some cells of a group were seen for is better than nothing.
                incumbents.take().into_iter().flat_map(Best::into_sorted).for_each(|one| best.offer(one));
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
                    self.note(group, bound, false, &mut pool, &mut counters);
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
                    batch.par_iter().with_max_len(1).map_init(|| scratches.take(), sharpen).collect();
                for (next, bound) in batch.iter().zip(bounds) {
                    self.note(&next.group, bound, true, &mut pool, &mut counters);
                }
                continue;
            }
            pool.extend(batch.drain(sharp..).map(Reverse));
            if incumbents.is_none() {
                pool.extend(batch.drain(..).map(Reverse));
                let mut found = Best::new(request);
                if !request.exhaustive && classes.is_none() {
                    let open = Open { refined: &pool, rest: &ordered[at..] };
                    let seen = self.incumbents(&open, request, (observer, &counters), &scratches);
                    let done: HashSet<Group> = seen.opened.iter().map(|(group, _)| *group).collect();
                    pool.retain(|Reverse(next)| !done.contains(&next.group));
                    ordered.drain(..std::mem::take(&mut at));
                    ordered.retain(|(_, group)| !done.contains(group));
                    for (_, one) in seen.opened {
                        counters.add(&one.counters);
                        one.settled.into_iter().for_each(|settled| best.offer(settled));
                    }
                    (found, glances) = (seen.found, seen.seen);
                }
                incumbents = Some(found);
                continue;
            }
            let opened: Vec<Option<Opened>> = batch
                .par_iter()
                .with_max_len(1)
                .map_init(
                    || scratches.take(),
                    |held, next| {
                        let class = class_of_group(&next.group);
                        let incumbent = incumbents.as_ref().map(|found| found.threshold(class));
                        let frozen = best.threshold(class).min(incumbent.unwrap_or_default());
                        let frozen = if request.exhaustive { Threshold::default() } else { frozen };
                        self.open(next, request, frozen, Seen::Every, observer, &mut held.scratch)
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
            }
            wave += 1;
            let first = best.firsts.first().map(|f| f.0);
            observer.progress(counters.settled(), counters.candidates, first, Some(least));
        };
        let rest = ordered[at..].iter().map(|(_, group)| group);
        let rest: Vec<&Group> = rest.chain(pool.iter().map(|Reverse(next)| &next.group)).collect();
        let reason = if stop == Stop::Interrupted { "not visited" } else { "bound: degrees" };
        let mut unseen: u64 = rest.par_iter().map(|g| self.space.count(g)).sum();
        if stop == Stop::Interrupted {
            for &(layouts, completions) in rest.iter().filter_map(|group| glances.get(*group)) {
                counters.evaluated += layouts;
                counters.simulated += completions;
                unseen -= layouts;
            }
        }
        counters.drop(reason, unseen);
        let first = best.firsts.first().map(|f| f.0);
        let optimality_gap = match (stop, open, first) {
            (Stop::Interrupted, Some(open), Some(first)) => (1.0 - open.0 as f64 / first.0 as f64).max(0.0),
            (Stop::Interrupted, _, None) => 1.0,
            _ => 0.0,
        };
        // What follows solves programmes, which need their own memory.
        drop(rest);
        drop((ordered, pool, glances, incumbents, batch, scratches));
        let found = self.finish_all(best.into_sorted(), request, observer);
        Answer { found, counters, optimality_gap, stop, insisted: false }
    }

    /// Puts a group with a sharper bound back; one without, nothing of which fits, is dropped.
    fn note(
        &self,
        group: &Group,
        bound: Option<Picos>,
        third: bool,
        pool: &mut BinaryHeap<Reverse<Bounded>>,
        counters: &mut Counters,
    ) {
        match bound {
            Some(bound) => pool.push(Reverse(Bounded { bound, group: *group, third })),
            None => counters.drop("memory", self.space.count(group)),
        }
    }
}
