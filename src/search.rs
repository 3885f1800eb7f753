//! Exact search: the best layouts of a space, with proof.
//!
//! `T(layout)` is the predicted step time of the best of a short, fixed list of completions (placements
//! of layers with recomputation). With one chunk per rank: the optimum of the chain bound, the optimum of
//! the closed form, and the even split. With several: the even split, a few near it that spread the load
//! of the ends, in some cases one more that simulation finds from those, or where none of the others fits two
//! that relieve ranks without memory ([`crate::stages::Splits`]). Layouts are visited
//! group by group in the order of an admissible lower bound and dropped as soon as a bound reaches the
//! k-th best `T`; what is printed is exact, and the gap says so. Several groups are open at once, each with a
//! threshold that is frozen when it is given out and knows of all but the last few before it (`search/flow.rs`): the answer
//! and all counters are the same at any thread count.

pub mod balance;
mod best;
mod bounds;
mod every;
mod finish;
mod flow;
mod groups;
mod incumbents;
mod layouts;
#[cfg(test)]
mod levels;
mod polish;
mod traffic;
#[cfg(feature = "milp")]
mod verify;
mod walk;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::candidates::{Group, Space};
use crate::cost::model::{CostModel, Parts};
use crate::cost::schedule::Simulator;
use crate::cost::step::Prediction;
use crate::cost::{CellKey, LocalParameters};
use crate::kept::Kept;
use crate::layers::Layers;
use crate::plan::{Offload, Plan};
use crate::stages::relax::Relaxation;
use crate::stages::{Balancer, Costs, Evaluation, KnownSplits, Splits, Spread, Way};
use crate::units::Picos;
#[cfg(feature = "milp")]
pub use verify::Verified;

use balance::{LegalModes, Pipelines};
use best::{Class, Settled, class_of};
use bounds::{Family, Floors};
use layouts::{Completions, Passes, RankPasses, Simulated, Timing};

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
    /// Of how many of the best plans layers are moved where their splits are not looked at: what a faster one takes is all
    /// that is asked for, which is known in a tenth of the time.
    pub moved: usize,
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
            moved: 0,
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
    /// Whether its split was looked at closely by bounds: of others no more is known with more work.
    pub looked_at: bool,
    /// Whether the observer ended the proof of that, and the search for a better split, before little was left open.
    pub cut_short: bool,
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

    /// By what share the better split beside it is faster, 0 where there is none: [`Found::split_gap`] is no less.
    #[must_use]
    pub fn known_gap(&self) -> f64 {
        let faster =
            |better: &OtherSplit| self.prediction.step().0 as f64 / better.prediction.step().0 as f64;
        self.polished.as_deref().map_or(0.0, |better| faster(better) - 1.0)
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

/// The best layouts of a space, of which nothing is said yet.
#[derive(Debug, Clone)]
pub struct Ranking {
    /// Best first.
    best: Vec<Settled>,
    /// As in [`Answer`].
    pub counters: Counters,
    optimality_gap: f64,
    /// As in [`Answer`].
    pub stop: Stop,
    /// As in [`Answer`].
    pub insisted: bool,
}

impl Ranking {
    /// The same with the plans of another space.
    #[must_use]
    pub fn with(mut self, other: Self) -> Self {
        self.best.extend(other.best);
        self.best.sort_by(|a, b| a.key().cmp(&b.key()));
        self
    }

    /// The same beside another space whose search was told to stop: what that left open may be faster.
    #[must_use]
    pub fn beside(mut self, stopped: &Self) -> Self {
        let share = match (self.step(), stopped.step()) {
            (Some(own), Some(other)) => other.0.min(own.0) as f64 / own.0 as f64,
            _ => 1.0,
        };
        let gap = 1.0 - (1.0 - stopped.optimality_gap) * share;
        (self.stop, self.optimality_gap) = (Stop::Interrupted, self.optimality_gap.max(gap));
        self
    }

    /// The same after another space was searched: what was done there counts.
    #[must_use]
    pub fn after(mut self, other: &Self) -> Self {
        self.counters.candidates += other.counters.candidates;
        self.counters.add(&other.counters);
        self
    }

    /// The best plan.
    #[must_use]
    pub fn plan(&self) -> Option<&Plan> {
        self.best.first().map(|best| &best.plan)
    }

    /// The time of its step.
    #[must_use]
    pub fn step(&self) -> Option<Picos> {
        self.best.first().map(|best| best.time)
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
    /// Called after every group that was opened or seen at a glance: layouts settled, layouts of the space, best time, smallest open bound.
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
    /// Schedules simulated for the current line.
    known: Vec<Simulated>,
    /// How schedules run, whatever line they are of.
    timings: Kept<Arc<Passes>, Arc<Timing>, KEPT_TIMINGS>,
    /// Work memory: what the ends of a step need of the ranks of a completion.
    ranks: Vec<RankPasses>,
    /// Ways to recompute that could matter in the current group.
    ways: Vec<Way>,
    /// Completions of the current line without a memory limit.
    free: Option<Completions>,
    /// Splits of the current line over several chunks per rank.
    splits: Option<Splits>,
    /// The last problem of the current line that was solved, and its completions.
    recent: Option<(Costs, Completions)>,
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
struct Scratches {
    free: Mutex<Vec<Scratch>>,
    known: KnownSplits,
}

impl Scratches {
    fn take(&self) -> Held<'_> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let new = || Scratch { balancer: Balancer::sharing(&self.known), ..Scratch::default() };
        Held { scratch: free.pop().unwrap_or_else(new), home: self }
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
        let mut free = self.home.free.lock().unwrap_or_else(PoisonError::into_inner);
        free.push(scratch);
    }
}

/// Simulated schedules that a thread keeps.
const KEPT_TIMINGS: usize = 512;
/// Priced floors that a thread keeps.
const KEPT_FLOORS: usize = 128;
/// Counts of parameters that a thread keeps.
const KEPT_PARAMETERS: usize = 1024;
/// Lists of legal ways to recompute that a thread keeps.
const KEPT_LEGAL: usize = 1024;
/// Parts of cells that a thread keeps.
const KEPT_PARTS: usize = 1024;

impl Search<'_> {
    /// Finds the best layouts.
    #[must_use]
    pub fn run(&self, request: &Request, observer: &dyn Observer) -> Answer {
        let ranking = self.rank(request, None, observer);
        self.finish(ranking, request, observer)
    }

    /// Finds the best layouts, of which nothing is said yet. What was `found` before, in a part of this space or beside it, the
    /// rest has to beat from the start; where it is told to stop, that is among the best so far.
    #[must_use]
    pub fn rank(&self, request: &Request, found: Option<&Ranking>, observer: &dyn Observer) -> Ranking {
        let found = found.map_or(&[][..], |found| &found.best);
        let first = self.passes(&Request { insist: false, ..request.clone() }, found, observer);
        let futile = !request.insist || self.spread(request) < Spread::Any;
        let small = first.counters.candidates <= SMALL_SPACE;
        let nothing = first.best.is_empty() && found.is_empty();
        if futile || first.stop == Stop::Interrupted || !(nothing || small) {
            return first;
        }
        let second = self.passes(request, found, observer);
        match (first.step(), second.step()) {
            (Some(first_step), Some(second_step)) if second_step < first_step => second,
            (None, Some(_)) => Ranking { insisted: true, ..second },
            _ => first,
        }
    }

    /// Says what there is to say of the plans of a ranking.
    #[must_use]
    pub fn finish(&self, ranking: Ranking, request: &Request, observer: &dyn Observer) -> Answer {
        let Ranking { best, counters, optimality_gap, stop, insisted } = ranking;
        let found = self.finish_all(best, request, observer);
        Answer { found, counters, optimality_gap, stop, insisted }
    }

    /// The same of the best of them, if there is one.
    #[must_use]
    pub fn finish_best(
        &self,
        ranking: &Ranking,
        request: &Request,
        observer: &dyn Observer,
    ) -> Option<Found> {
        let best = ranking.best.first().cloned();
        self.finish_all(best.into_iter().collect(), request, observer).into_iter().next()
    }

    /// As many walks over the space as are needed for the classes that are kept.
    fn passes(&self, request: &Request, found: &[Settled], observer: &dyn Observer) -> Ranking {
        if request.per_class <= 1 || request.exhaustive {
            return self.pass(request, found, observer, None);
        }
        // Which classes are kept is decided by the best layout of each; only then is it known that a
        // slower layout of such a class matters.
        let kept = self.pass(&Request { per_class: 1, ..request.clone() }, found, observer, None);
        if kept.stop == Stop::Interrupted || kept.best.is_empty() {
            return kept;
        }
        let classes: Vec<Class> = kept.best.iter().map(|best| class_of(best.plan.layout())).collect();
        self.pass(&Request { top: usize::MAX, ..request.clone() }, &[], observer, Some(&classes))
    }
}
