//! The short, fixed list of completions for several chunks per rank.
//!
//! No bound on a single rank sees how passes of unequal chunks make ranks wait for one another, and a
//! search cannot simulate every split of every layout. What the fastest splits have in common: all chunks
//! hold the same number of layers or one more, those with one more are neighbours, and the last chunk,
//! where the pipeline turns round, holds fewer by about what the head takes. Among those, three are
//! listed, beside the even split: with the least load of the fullest rank, the ones whose longer chunks
//! come first and last, and the one where in addition the fewest ranks have a longer chunk, as near the
//! middle as possible. On 140 pipelines of 2 to 16 ranks, 2 to 20 chunks per rank and heads of 0 to 3
//! layers, the fastest of the four was 0.3 % slower on average than the fastest of the whole family; the
//! even split alone, 3.1 %.
//!
//! Where micro-batches are few or do not divide among ranks, or chunks have few layers, one more is listed, which
//! simulation finds from those ([`super::descent`]). It takes a millisecond, so it is sought only where one of the others
//! fits: that it alone does is rare.
//!
//! Each split takes the recomputation with which it fits and has the least lower bound on the makespan.
//! Where none by these rules fits with any, others are listed: one in which ranks that lack memory hold fewer layers, and one in
//! which they first hold fewer of them in the chunk of which most micro-batches are in flight; and where
//! nothing at all fits so, one that moving cuts finds ([`super::fitting`]).

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use smallvec::SmallVec;

use super::chunked::{ChunkWork, Chunked, Policy};
use super::descent;
use super::fitting::Fitting;
use super::loads::Loads;
use super::relax::Relaxation;
use super::rounding::{PassTimes, rounded};
use super::tables::{ModeCost, Tables};
use super::{Assignment, Block, Choice, Costs, Counts, Freedom, Kind, Problem, Way, measure};
use crate::units::Picos;

/// Simulates forward and backward passes of all chunks: the makespan, if it is not above a time.
pub type Makespan<'a> = dyn FnMut(&[Picos], &[Picos], Picos) -> Option<Picos> + 'a;

/// Which splits are sought.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Spread {
    /// The even one alone.
    #[default]
    Even,
    /// Others that may be fast; where none by rules fits, some in which ranks that lack memory hold fewer layers.
    Uneven,
    /// Where rules on averages find none of those either, whatever moving cuts finds: it takes milliseconds.
    Any,
}

/// Splits of a problem over several chunks per rank, whatever the memory. Problems that differ in held bytes
/// alone share them.
#[derive(Debug, Clone, Default)]
pub struct Splits {
    list: Vec<Split>,
    /// How many of them rules say. What simulation finds from those is sought once one of them fits, and is there for
    /// problems in which one does.
    ruled: usize,
    /// Whether it has been sought.
    complete: bool,
    /// What the problem offers, the least recomputation first.
    policies: Vec<PricedPolicy>,
    /// What else decides whether anything fits.
    hopeless: Vec<Policy>,
    /// What a layer costs at least in any of them, by kind.
    least: Vec<ModeCost>,
    /// What each of the list takes at least, in any of the problems.
    floor: Picos,
    spread: Spread,
    /// What was found for the last problem in which none was to be relieved.
    found: Option<Found>,
    /// What a problem costs of which relaxed bounds say that nothing fits and takes no longer than that.
    futile: Option<(Costs, Picos)>,
}

/// Splits that fit a problem, and with what.
#[derive(Debug, Clone)]
struct Found {
    costs: Costs,
    most: Picos,
    /// Which, bounds, and what they recompute: as [`Splits::fastest_of`] says, all with a bound up to `most`, and perhaps
    /// others.
    list: Vec<(usize, Picos, Policy)>,
}

#[derive(Debug, Clone)]
struct Split {
    layers: Vec<u32>,
    loads: Loads,
    /// The rank that lacked memory last: it lacks it first.
    lacking: usize,
    /// Lower bounds on the makespan, once computed.
    bounds: Vec<(Choice, Picos)>,
}

/// A policy, ordered by the recomputation of one micro-batch on all ranks together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct PricedPolicy {
    extra: u64,
    policy: Policy,
    /// What an average rank is busy with at least: a little less, so that it is below every relaxed bound
    /// whatever their rounding.
    busy: Picos,
}

impl Splits {
    pub(super) fn new(problem: &Problem, tables: &Tables, work: &mut ChunkWork, spread: Spread) -> Self {
        let mut splits = Self { least: tables.least(problem), spread, ..Self::default() };
        splits.add(problem, tables, problem.even_layers());
        if spread > Spread::Even {
            ruled(problem, tables, work).into_iter().for_each(|layers| splits.add(problem, tables, layers));
        }
        splits.ruled = splits.list.len();
        splits.complete = spread == Spread::Even;
        splits.price_ways(problem, tables);
        splits
    }

    fn add(&mut self, problem: &Problem, tables: &Tables, layers: Vec<u32>) {
        let placed = layers.iter().sum::<u32>() == tables.layers;
        let enough = layers.iter().enumerate().all(|(k, &n)| n >= problem.least(k));
        if placed && enough && self.list.iter().all(|split| split.layers != layers) {
            let loads = Loads::keeping(problem, tables, &layers, &self.least);
            self.list.push(Split { layers, loads, lacking: 0, bounds: Vec::new() });
        }
    }

    /// The most layers of a chunk in some splits.
    fn longest(splits: &[Split]) -> u32 {
        splits.iter().flat_map(|split| &split.layers).copied().max().unwrap_or(0)
    }

    /// Whether any of the ways takes no longer than that.
    fn hopeful(&self, most: Picos) -> bool {
        self.policies.first().is_some_and(|priced| priced.busy <= most)
    }

    /// Lists the ways to recompute.
    fn price_ways(&mut self, problem: &Problem, tables: &Tables) {
        let longest = Self::longest(&self.list);
        let hopeless = problem.hopeless.clone().map(Choice::Mode).chain(blocks(problem, longest, true));
        self.hopeless = hopeless.map(Policy::All).collect();
        self.policies = policies(problem, tables, longest);
    }

    /// Adds what simulation finds.
    fn seek(&mut self, problem: &Problem, tables: &Tables, work: &mut ChunkWork) {
        if std::mem::replace(&mut self.complete, true) {
            return;
        }
        let Some(layers) = descended(problem, work) else { return };
        self.add(problem, tables, layers);
        if let Some(split) = self.list.get_mut(self.ruled) {
            split.loads.hold(problem);
            self.price_ways(problem, tables);
        }
    }

    /// The completions of one problem whose lower bounds are `most` or less: every split with the
    /// recomputation that fits and has the least bound, or splits relieved if none by rules fits.
    pub(super) fn completions(
        &mut self,
        problem: &Problem,
        tables: &Tables,
        work: &mut ChunkWork,
        most: Picos,
    ) -> Vec<Assignment> {
        // Without even the even split there are more chunks than layers.
        if self.list.is_empty() || self.is_futile(problem, most) {
            return Vec::new();
        }
        self.list.iter_mut().for_each(|split| split.loads.hold(problem));
        let relievable = self.spread > Spread::Even;
        if self.floor > most {
            let none_fits = relievable && !self.fit(problem, tables);
            return if none_fits { self.relieved(problem, tables, work, most) } else { Vec::new() };
        }
        if !self.fit_again(problem, tables, most) {
            let mut list = Vec::new();
            let mut one_fits = false;
            for at in 0.. {
                if at == self.ruled {
                    if relievable && !one_fits && !self.fit(problem, tables) {
                        return self.relieved(problem, tables, work, most);
                    }
                    if self.hopeful(most) {
                        self.seek(problem, tables, work);
                    }
                }
                if at == self.list.len() {
                    break;
                }
                let Some((bound, policy)) = self.fastest_of(at, problem, tables, work, most) else {
                    continue;
                };
                one_fits = true;
                list.push((at, bound, policy));
            }
            self.found = Some(Found { costs: problem.costs(), most, list });
        }
        let found = self.found.iter().flat_map(|found| &found.list).filter(|(_, bound, _)| *bound <= most);
        // What is likely the fastest comes first.
        let mut found: Vec<&(usize, Picos, Policy)> = found.collect();
        found.sort_by_key(|(_, bound, _)| *bound);
        found
            .into_iter()
            .map(|&(at, _, policy)| {
                let layers = self.list[at].layers.clone();
                Chunked::new(problem, tables, work).assignment(layers, policy)
            })
            .collect()
    }

    /// Whether nothing was fast enough that fits a problem that held no more.
    fn is_futile(&self, problem: &Problem, most: Picos) -> bool {
        let futile = self.futile.as_ref();
        futile.is_some_and(|(costs, longest)| most <= *longest && problem.holds_no_less(costs))
    }

    /// Whether all that was found last, for a problem that held no more, fits again, one of it by rules: then it is what
    /// is found for this one too.
    fn fit_again(&mut self, problem: &Problem, tables: &Tables, most: Picos) -> bool {
        let Self { list, ruled, found, .. } = self;
        let Some(found) = found else { return false };
        most <= found.most
            && found.list.first().is_some_and(|(at, ..)| at < ruled)
            && problem.holds_no_less(&found.costs)
            // Where every rank recomputes as it needs, that depends on what it holds.
            && found.list.iter().all(|&(at, _, policy)| {
                matches!(policy, Policy::All(_)) && list[at].fits(problem, tables, policy)
            })
    }

    /// Of the policies with which a split fits, the one with the least bound; of those above `most` it need not be the
    /// least, and there may be none.
    fn fastest_of(
        &mut self,
        at: usize,
        problem: &Problem,
        tables: &Tables,
        work: &mut ChunkWork,
        most: Picos,
    ) -> Option<(Picos, Policy)> {
        let split = &mut self.list[at];
        // What takes longer without waiting does so with it.
        let policies = &self.policies[..self.policies.partition_point(|priced| priced.busy <= most)];
        if split.loads.lack_always(problem) {
            return None;
        }
        split.fastest(problem, tables, work, policies, most)
    }

    /// The least bound of the completions that are not relieved, if it is `most` or less. Other problems of
    /// these splits hold no less.
    pub(super) fn least_of_list(
        &mut self,
        problem: &Problem,
        tables: &Tables,
        work: &mut ChunkWork,
        most: Picos,
    ) -> Option<Picos> {
        self.list.iter_mut().for_each(|split| split.loads.hold(problem));
        let mut least: Option<Picos> = None;
        for at in 0.. {
            let highest = least.unwrap_or(most);
            // Nothing is sought where nothing fits, or nothing could be fast enough.
            if at == self.ruled && self.hopeful(highest) && (least.is_some() || self.fit(problem, tables)) {
                self.seek(problem, tables, work);
            }
            if at == self.list.len() {
                break;
            }
            let fastest = self.fastest_of(at, problem, tables, work, highest);
            least = fastest.map(|(bound, _)| bound).filter(|bound| *bound <= highest).or(least);
        }
        self.floor = least.unwrap_or(Picos(most.0.saturating_add(1)));
        least
    }

    /// After [`Splits::least_of_list`] of the same problem: the least makespan of the completions that are not
    /// relieved, of this problem and of those that hold no less, if it is `most` or less. `makespan` simulates
    /// forward and backward passes of all chunks, as far as a time that is not to be exceeded.
    pub(super) fn least_simulated(
        &mut self,
        problem: &Problem,
        tables: &Tables,
        work: &mut ChunkWork,
        most: Picos,
        makespan: &mut Makespan<'_>,
    ) -> Option<Picos> {
        if problem.freedom == Freedom::PerStage {
            return Some(self.floor).filter(|floor| *floor <= most);
        }
        let mut least: Option<Picos> = None;
        for split in &mut self.list {
            split.loads.hold(problem);
            // What holds more may not fit with all of these, and with no others.
            let mut ways: Vec<(Picos, Policy)> = Vec::new();
            for &PricedPolicy { busy, policy, .. } in &self.policies {
                if busy > most {
                    break;
                }
                let slower =
                    |&(_, other): &(Picos, Policy)| tables.recomputes_no_less(problem, policy, other);
                if ways.iter().any(slower) || !split.fits(problem, tables, policy) {
                    continue;
                }
                let bound = split.bound(problem, tables, work, policy).filter(|bound| *bound <= most);
                ways.extend(bound.map(|bound| (bound, policy)));
            }
            ways.sort_unstable();
            for (bound, policy) in ways {
                if least.is_some_and(|least| bound >= least) {
                    break;
                }
                let assignment = Chunked::new(problem, tables, work).assignment(split.layers.clone(), policy);
                if measure(problem, &assignment, &mut work.evaluation).is_ok() {
                    let highest = least.unwrap_or(most);
                    let time = makespan(&work.evaluation.forward, &work.evaluation.backward, highest);
                    least = time.or(least);
                }
            }
        }
        self.floor = self.floor.max(least.unwrap_or(Picos(most.0.saturating_add(1))));
        least
    }

    /// The fewest and the most layers of every kind that any of the list gives the first rank; none if there is no split.
    pub(crate) fn on_first_rank(&self) -> Option<[Counts; 2]> {
        let mut counts = self.list.iter().map(|split| split.loads.counts(0));
        let first = *counts.next()?;
        Some(counts.fold([first; 2], |[mut fewest, mut most], counts| {
            fewest.iter_mut().zip(counts).for_each(|(fewest, &n)| *fewest = n.min(*fewest));
            most.iter_mut().zip(counts).for_each(|(most, &n)| *most = n.max(*most));
            [fewest, most]
        }))
    }

    /// Whether any split by rules fits in any way, so that none is relieved.
    pub(super) fn any_fits(&mut self, problem: &Problem, tables: &Tables) -> bool {
        self.list.iter_mut().for_each(|split| split.loads.hold(problem));
        self.fit(problem, tables)
    }

    /// Whether any split by rules fits in any way.
    fn fit(&mut self, problem: &Problem, tables: &Tables) -> bool {
        let Self { list, ruled, policies, hopeless, .. } = self;
        // What recomputes most fits first.
        let ways = || hopeless.iter().copied().chain(policies.iter().rev().map(|priced| priced.policy));
        let fits = |split: &mut Split| {
            !split.loads.lack_always(problem) && ways().any(|policy| split.fits(problem, tables, policy))
        };
        list[..*ruled].iter_mut().any(fits)
    }

    /// Splits in which ranks that lack memory hold fewer layers, if what keeps least can be made to fit: of
    /// all policies, in the order of their relaxed bounds, the first that can. None if its bound is
    /// certainly above `most`.
    fn relieved(
        &mut self,
        problem: &Problem,
        tables: &Tables,
        work: &mut ChunkWork,
        most: Picos,
    ) -> Vec<Assignment> {
        let relief = Relief::new(problem, tables, self.spread == Spread::Any);
        // Whether another split was sought for a leaner problem must not show.
        let longest = Self::longest(&self.list[..self.ruled]);
        let longest = problem.block.map_or(longest, |block| longest.max(block.counts.0));
        let short =
            |policy: &Policy| !matches!(*policy, Policy::All(Choice::Block(layers)) if layers > longest);
        let offered = self.policies.iter().filter(|priced| short(&priced.policy));
        let not_offered = self.hopeless.iter().copied().filter(short);
        let mut relaxation = std::mem::take(&mut work.relaxation);
        relaxation.prepare(problem);
        let mut bound = relaxed_bounds(&mut relaxation, problem, most);
        let mut bounded = |policy: Policy| {
            let roomy = relief.has_room(policy);
            let bound = Some(policy).filter(|_| roomy).and_then(&mut bound).filter(|bound| *bound <= most);
            bound.map(|bound| (bound, policy))
        };
        // Of whole layers recomputed in part, that of all of them keeps least.
        let mode = |policy: &Policy| !matches!(policy, Policy::All(Choice::Block(_)));
        let whole = problem.block.map(|block| Policy::All(Choice::Mode(block.full)));
        let policies = offered.clone().map(|priced| priced.policy).filter(mode);
        let ways = policies.chain(whole).chain(not_offered.clone().filter(mode));
        let leanest = ways.min_by_key(|&one| (relief.peak(one), relief.extra(one)));
        let mut hopeful = offered.take_while(|priced| priced.busy <= most);
        let mut bounds: Vec<(Picos, Policy)> = Vec::new();
        bounds.extend(hopeful.find_map(|priced| bounded(priced.policy)));
        let none_offered = bounds.is_empty();
        // Where the leanest does not fit, neither do others that keep no less, and hardly any other.
        let lean =
            leanest.filter(|_| !none_offered).map_or(Vec::new(), |leanest| relief.splits(work, leanest));
        let hopeless = |&policy: &Policy| {
            lean.is_empty()
                && (self.spread < Spread::Any
                    || leanest.is_none_or(|leanest| tables.keeps_no_less(problem, policy, leanest)))
        };
        // Hopeless ways take part: which way is the first must not depend on what is hopeless.
        let others = hopeful.map(|priced| priced.policy).chain(not_offered);
        bounds.retain(|(_, policy)| !hopeless(policy));
        bounds.extend(others.filter(|policy| !hopeless(policy)).filter_map(bounded));
        bounds.sort_unstable();
        drop(bound);
        work.relaxation = relaxation;
        if none_offered {
            self.futile = Some((problem.costs(), most));
            return Vec::new();
        }
        // Where nothing is found for one way, hardly anything is for others that keep no less.
        let mut futile: Vec<Policy> = Vec::new();
        let first = bounds.into_iter().find_map(|(_, policy)| {
            if futile.iter().any(|&leaner| tables.keeps_no_less(problem, policy, leaner)) {
                return None;
            }
            let splits = if Some(policy) == leanest { lean.clone() } else { relief.splits(work, policy) };
            if splits.is_empty() {
                futile.push(policy);
                return None;
            }
            Some((policy, splits))
        });
        first.filter(|(policy, _)| !self.hopeless.contains(policy)).map_or(Vec::new(), |(_, splits)| splits)
    }
}

/// What assignments under a policy take at least by a relaxation that is prepared for their problem; of whole layers all
/// counts share a bound.
fn relaxed_bounds<'a>(
    relaxation: &'a mut Relaxation,
    problem: &'a Problem,
    most: Picos,
) -> impl FnMut(Policy) -> Option<Picos> + 'a {
    let mut block = None;
    move |policy| match policy.way() {
        Some(Way::Block) => *block.get_or_insert_with(|| relaxation.bound_of(problem, Way::Block, most)),
        way => relaxation.bound_of(problem, way.unwrap_or(Way::PerRank), most),
    }
}

/// Splits in which ranks that lack memory hold fewer layers, each with another policy than `but`: of those whose relaxed
/// bounds are `most` or less, the first `tries`, least bounds first.
pub(super) fn relieved_otherwise(
    problem: &Problem,
    tables: &Tables,
    work: &mut ChunkWork,
    (but, most): (Choice, Picos),
    tries: usize,
) -> Vec<Assignment> {
    let relief = Relief::new(problem, tables, false);
    let longest = problem.even_layers().into_iter().max().unwrap_or(0) + 1;
    let mut relaxation = std::mem::take(&mut work.relaxation);
    relaxation.prepare(problem);
    let mut bound = relaxed_bounds(&mut relaxation, problem, most);
    let others = policies(problem, tables, longest).into_iter();
    let others = others.filter(|priced| priced.busy <= most && priced.policy != Policy::All(but));
    let bounds =
        others.filter_map(|priced| Some((bound(priced.policy).filter(|bound| *bound <= most)?, priced)));
    let mut bounds: Vec<(Picos, PricedPolicy)> = bounds.collect();
    drop(bound);
    work.relaxation = relaxation;
    bounds.sort_unstable();
    let policies = bounds.into_iter().take(tries).map(|(_, priced)| priced.policy);
    policies.flat_map(|policy| relief.splits(work, policy)).collect()
}

/// Every policy that a problem offers, the least recomputation first.
fn policies(problem: &Problem, tables: &Tables, longest: u32) -> Vec<PricedPolicy> {
    let pipeline = &*problem.pipeline;
    let ends: u64 = problem.fixed.iter().map(|fixed| fixed.forward.0 + fixed.backward.0).sum();
    let all = tables.time(0, tables.layers) + ends;
    let price = |extra: u64, policy: Policy| {
        let busy = (all + extra) * pipeline.micro_batches / u64::from(pipeline.ranks);
        PricedPolicy { extra, policy, busy: Picos(busy.saturating_sub(2 + (busy >> 28))) }
    };
    if problem.freedom == Freedom::PerStage {
        return vec![price(0, Policy::Cheapest)];
    }
    let none = super::Fixed::default();
    let extra = |mode: u16| tables.in_mode(problem, &none, &tables.totals, mode).extra;
    let modes = tables.modes.iter().map(|&mode| price(extra(mode), Policy::All(Choice::Mode(mode))));
    let mut list: Vec<PricedPolicy> = modes.collect();
    let rest = problem.block.map_or(0, |block| extra(block.rest));
    list.extend(blocks(problem, longest, false).map(|choice| price(rest, Policy::All(choice))));
    list.sort_unstable();
    list
}

/// Every count of recomputed layers of chunks of at most so many layers, if that is `hopeless` or if not.
fn blocks(problem: &Problem, longest: u32, hopeless: bool) -> impl Iterator<Item = Choice> {
    let block = problem.block.filter(|block| block.hopeless == hopeless);
    let counts = block.map(|Block { counts: (fewest, most), .. }| fewest..=most.min(longest.max(fewest)));
    counts.into_iter().flatten().map(Choice::Block)
}

impl Split {
    /// Of the policies that fit, the one with the least bound on the makespan; of those above `most` it need
    /// not be the least.
    fn fastest(
        &mut self,
        problem: &Problem,
        tables: &Tables,
        work: &mut ChunkWork,
        policies: &[PricedPolicy],
        most: Picos,
    ) -> Option<(Picos, Policy)> {
        let mut best: Option<(Picos, Policy)> = None;
        for &PricedPolicy { busy, policy, .. } in policies {
            let enough = best.map_or(most, |(bound, _)| bound.min(most));
            if busy > enough {
                break;
            }
            let no_better = |(_, other)| policy > other && tables.recomputes_no_less(problem, policy, other);
            if best.is_some_and(no_better)
                || matches!(policy, Policy::All(choice) if self.loads.busy(problem, tables, choice) > enough)
                || !self.fits(problem, tables, policy)
            {
                continue;
            }
            let Some(bound) = self.bound(problem, tables, work, policy) else { continue };
            if best.is_none_or(|least| (bound, policy) < least) {
                best = Some((bound, policy));
            }
        }
        best
    }

    /// Whether every rank has the memory.
    fn fits(&mut self, problem: &Problem, tables: &Tables, policy: Policy) -> bool {
        let lacking = self.loads.lacking(problem, tables, policy, self.lacking);
        self.lacking = lacking.unwrap_or(self.lacking);
        lacking.is_none()
    }

    /// The lower bound on the makespan.
    fn bound(
        &mut self,
        problem: &Problem,
        tables: &Tables,
        work: &mut ChunkWork,
        policy: Policy,
    ) -> Option<Picos> {
        let mut search = Chunked::new(problem, tables, work);
        let Policy::All(choice) = policy else { return search.bound(&self.layers, policy) };
        if let Some((_, bound)) = self.bounds.iter().find(|(known, _)| *known == choice) {
            return Some(*bound);
        }
        let bound = search.bound(&self.layers, policy)?;
        self.bounds.push((choice, bound));
        Some(bound)
    }
}

/// Time of one layer of a model of one kind, and of every chunk's ends.
fn layer_and_ends(problem: &Problem, tables: &Tables) -> (u64, Vec<u64>) {
    let kind = tables.totals.iter().position(|&n| n > 0).unwrap_or(0);
    let layer = problem.kinds[kind].forward.0 + problem.kinds[kind].backward.0;
    (layer, problem.fixed.iter().map(|fixed| fixed.forward.0 + fixed.backward.0).collect())
}

/// What makes one split better than another: least first.
type Key = (u64, u64, u64);

/// Keeps the best split by three measures.
#[derive(Debug)]
pub(super) struct Pick<T> {
    best: [Option<(Key, T)>; 3],
}

impl<T> Default for Pick<T> {
    fn default() -> Self {
        Self { best: [None, None, None] }
    }
}

impl<T: Clone> Pick<T> {
    /// `load` of the fullest rank, `waits` of the others for it, position of the longer chunks and how
    /// far they are from the middle.
    pub fn offer(&mut self, load: u64, waits: u64, start: u64, off_middle: u64, split: &T) {
        let keys = [(load, start, 0), (load, u64::MAX - start, 0), (load + waits, off_middle, start)];
        for (best, key) in self.best.iter_mut().zip(keys) {
            if best.as_ref().is_none_or(|(known, _)| key < *known) {
                *best = Some((key, split.clone()));
            }
        }
    }
    pub fn into_list(self) -> Vec<T> {
        self.best.into_iter().flatten().map(|(_, split)| split).collect()
    }
}

/// Splits by rules on loads of ranks.
fn ruled(problem: &Problem, tables: &Tables, work: &mut ChunkWork) -> Vec<Vec<u32>> {
    let one_kind = tables.totals.iter().filter(|&&n| n > 0).count() == 1;
    if one_kind && problem.fixed.iter().all(|fixed| !fixed.closed) {
        banded(problem, tables)
    } else {
        levelled(problem, work)
    }
}

/// Splits of two levels of chunk times.
fn levelled(problem: &Problem, work: &mut ChunkWork) -> Vec<Vec<u32>> {
    let known = work.known.levels.clone();
    let place = || {
        let (rounded, mut tables) = (rounded(problem), Tables::default());
        tables.load(&rounded);
        Chunked::new(&rounded, &tables, work).level_splits()
    };
    known.get(PassTimes::of(problem), place)
}

/// A split that simulation finds from those, where rules on ranks are not enough.
fn descended(problem: &Problem, work: &mut ChunkWork) -> Option<Vec<u32>> {
    let shape = descent::shape(problem)?;
    let known = work.known.descended.clone();
    let descend = || {
        let (rounded, mut tables) = (rounded(problem), Tables::default());
        tables.load(&rounded);
        let mut from = ruled(&rounded, &tables, work);
        from.push(rounded.even_layers());
        descent::descend(&rounded, shape, from, &mut work.simulator)
    };
    known.get(PassTimes::of(problem), descend)
}

/// Splits of a model of one kind of layers: `base` or one more per chunk, fewer in the last.
fn banded(problem: &Problem, tables: &Tables) -> Vec<Vec<u32>> {
    let (chunks, layers) = (problem.chunks(), u64::from(tables.layers));
    let pipeline = &*problem.pipeline;
    let (layer, ends) = layer_and_ends(problem, tables);
    let (k, last) = (chunks as u64, chunks - 1);
    if layer == 0 || chunks < 2 {
        return Vec::new();
    }
    let least = u64::from(problem.min_layers);
    let least_end = u64::from(problem.least(last));
    let average = (ends.iter().sum::<u64>() + layers * layer) / k;
    let fitting = average.saturating_sub(ends[last]) / layer;
    let rank_of = |chunk: usize| pipeline.rank_of_chunk[chunk] as usize;
    let turning = rank_of(last);
    let m = pipeline.micro_batches;
    // A head alone on its chunk, and one with layers: neither stands for the other.
    let mut picks: [Pick<(u64, u64, u64, usize)>; 2] = [Pick::default(), Pick::default()];
    let mut base_load = vec![0; pipeline.ranks as usize];
    let mut extras = vec![0_u64; pipeline.ranks as usize];
    let near = fitting.saturating_sub(1).max(least)..=(fitting + 2).min(layers);
    for end in (least_end..least.min(layers + 1)).chain(near) {
        let (base, more) = ((layers - end) / (k - 1), ((layers - end) % (k - 1)) as usize);
        if base < least {
            continue;
        }
        base_load.fill(0);
        for (chunk, end_time) in ends.iter().enumerate() {
            base_load[rank_of(chunk)] += end_time + layer * if chunk == last { end } else { base };
        }
        extras.fill(0);
        (0..more).for_each(|chunk| extras[rank_of(chunk)] += 1);
        for start in 0..=last - more {
            if start > 0 {
                if more == 0 {
                    break;
                }
                extras[rank_of(start - 1)] -= 1;
                extras[rank_of(start + more - 1)] += 1;
            }
            let load = base_load.iter().zip(&extras).map(|(load, &n)| load + n * layer).max().unwrap_or(0);
            let longer = extras.iter().enumerate().filter(|&(rank, &n)| rank != turning && n > 0).count();
            let waits = layer * ((u64::from(pipeline.ranks) - 1) * base + longer as u64);
            let off_middle = (2 * start + more).abs_diff(last) as u64;
            let pick = &mut picks[usize::from(end < least)];
            pick.offer(m * load, waits, start as u64, off_middle, &(end, base, more as u64, start));
        }
    }
    let split = |(end, base, more, start): (u64, u64, u64, usize)| {
        let band = start..start + more as usize;
        let layers = |chunk: usize| if chunk == last { end } else { base + u64::from(band.contains(&chunk)) };
        (0..chunks).map(|chunk| layers(chunk) as u32).collect()
    };
    picks.into_iter().flat_map(Pick::into_list).map(split).collect()
}

/// Layers of a rank that are moved to another chunk of it at most.
const MOST_SHIFTED: u32 = 4;

/// Splits in which ranks that lack memory hold fewer layers, all layers taken for average ones.
struct Relief<'a> {
    problem: &'a Problem,
    tables: &'a Tables,
    /// Time of an average layer.
    layer: u64,
    /// Time of every chunk beside as many average layers as it has, all of it higher by the same; and the same in
    /// layers.
    ends: Vec<u64>,
    ends_in_layers: Vec<u64>,
    /// One layer more than the longest chunk of the even split.
    longest: u64,
    /// Bytes left for layers, by rank.
    free: Vec<u64>,
    /// Micro-batches in flight on an average chunk when most are, by rank, times the chunks per rank.
    in_flight: Vec<u64>,
    /// Whether cuts are moved where levels find no split.
    moves_cuts: bool,
}

impl<'a> Relief<'a> {
    fn new(problem: &'a Problem, tables: &'a Tables, moves_cuts: bool) -> Self {
        let layers = u64::from(tables.layers).max(1);
        let layer = tables.time(0, tables.layers) / layers;
        // How much longer the layers of every chunk of the even split take than average ones.
        let mut from = 0;
        let even = problem.even_layers();
        let longest = u64::from(even.iter().copied().max().unwrap_or(1).max(1) + 1);
        let longer: Vec<i64> = even
            .iter()
            .map(|&n| {
                from += n;
                tables.time(from - n, from) as i64 - (u64::from(n) * layer) as i64
            })
            .collect();
        let least = longer.iter().copied().min().unwrap_or(0);
        let ends = problem.fixed.iter().zip(longer);
        let ends = ends.map(|(fixed, longer)| fixed.forward.0 + fixed.backward.0 + longer.abs_diff(least));
        let ends: Vec<u64> = ends.collect();
        let ends_in_layers = ends.iter().map(|time| (time + layer / 2) / layer.max(1)).collect();
        let single = problem.pipeline.chunks_per_rank == 1;
        let (mut free, mut in_flight) = (Vec::new(), Vec::new());
        for order in &problem.pipeline.orders {
            in_flight.push(order.most_in_flight);
            let mut used = problem.rank_bytes.0;
            for &k in &order.chunks {
                let fixed = &problem.fixed[k as usize];
                used += fixed.held.0 + if single { order.most_in_flight * fixed.kept.0 } else { 0 };
            }
            free.push(problem.limit.0.saturating_sub(used));
        }
        Self { problem, tables, layer, ends, ends_in_layers, longest, free, in_flight, moves_cuts }
    }

    /// Bytes that a layer of a kind holds, and keeps per micro-batch under a policy.
    fn bytes_of(&self, policy: Policy, kind: usize) -> (u64, u64) {
        let (problem, tables) = (self.problem, self.tables);
        let kept = |mode: u16| {
            let group = u64::from(problem.modes[usize::from(mode)].group);
            tables.mode(mode)[kind].kept / group.max(1)
        };
        let kept = match (policy, problem.block) {
            (Policy::All(Choice::Mode(mode)), _) => kept(mode),
            (Policy::All(Choice::Block(n)), Some(block)) => {
                let (full, rest) = (kept(block.full), kept(block.rest));
                self.in_part(n, full.min(rest), rest)
            }
            _ => (0..problem.modes.len() as u16).map(kept).min().unwrap_or(0),
        };
        (problem.kinds[kind].held.0, kept)
    }

    /// Recomputation of a layer of a kind, about.
    fn extra_of(&self, policy: Policy, kind: usize) -> u64 {
        let extra = |mode: u16| self.tables.mode(mode)[kind].extra;
        match (policy, self.problem.block) {
            (Policy::All(Choice::Mode(mode)), _) => extra(mode),
            (Policy::All(Choice::Block(n)), Some(block)) => {
                self.in_part(n, extra(block.full), extra(block.rest))
            }
            _ => 0,
        }
    }

    /// The mean of `n` layers of a long chunk that are recomputed, and the rest.
    fn in_part(&self, n: u32, recomputed: u64, other: u64) -> u64 {
        let n = u64::from(n).min(self.longest);
        (n * recomputed + (self.longest - n) * other) / self.longest
    }

    /// The same of an average layer.
    fn bytes(&self, policy: Policy) -> (u64, u64) {
        let tables = self.tables;
        let (mut all_held, mut all_kept) = (0, 0);
        for (kind, &n) in tables.totals[..tables.kinds].iter().enumerate().filter(|(_, n)| **n > 0) {
            let (held, kept) = self.bytes_of(policy, kind);
            all_held += u64::from(n) * held;
            all_kept += u64::from(n) * kept;
        }
        let layers = u64::from(tables.layers).max(1);
        (all_held / layers, all_kept / layers)
    }

    /// Recomputation of the whole model, about.
    fn extra(&self, policy: Policy) -> u64 {
        let Policy::All(Choice::Mode(mode)) = policy else { return 0 };
        let costs = self.tables.mode(mode).iter().zip(&self.tables.totals);
        costs.map(|(cost, &n)| u64::from(n) * cost.extra).sum()
    }

    /// About the bytes beside states of the rank with the most micro-batches in flight, if it holds as many
    /// layers as the others.
    fn peak(&self, policy: Policy) -> u64 {
        let (_, kept) = self.bytes(policy);
        let pipeline = &*self.problem.pipeline;
        let in_flight = self.in_flight.iter().copied().max().unwrap_or(0);
        let chunks = u64::from(pipeline.ranks) * u64::from(pipeline.chunks_per_rank);
        let transient = |mode: u16| self.tables.mode(mode).iter().map(|cost| cost.transient).max();
        let transient = match (policy, self.problem.block) {
            (Policy::All(Choice::Mode(mode)), _) => transient(mode),
            (Policy::All(Choice::Block(_)), Some(block)) => transient(block.full).max(transient(block.rest)),
            _ => None,
        };
        kept * in_flight * u64::from(self.tables.layers) / chunks.max(1) + transient.unwrap_or(0)
    }

    /// About the most layers that each rank can hold under a policy, rather too many.
    fn caps(&self, policy: Policy) -> impl Iterator<Item = u32> {
        let (held, kept) = self.bytes(policy);
        let chunks = u64::from(self.problem.pipeline.chunks_per_rank.max(1));
        let layers = u64::from(self.tables.layers);
        let most = move |(&free, &in_flight): (&u64, &u64)| {
            let each = held + kept * in_flight / chunks;
            (free + each / 2).checked_div(each).unwrap_or(layers).min(layers) as u32
        };
        self.free.iter().zip(&self.in_flight).map(most)
    }

    /// Whether all ranks together can hold the model under a policy, as far as averages tell; they say nothing of splits
    /// that put more layers where fewer micro-batches are in flight.
    fn has_room(&self, policy: Policy) -> bool {
        self.moves_cuts || self.caps(policy).map(u64::from).sum::<u64>() >= u64::from(self.tables.layers)
    }

    /// Bytes that grow with the layers of a rank that exceeds its limit by so much.
    fn need(&self, rank: usize, excess: u64) -> u64 {
        let order = &self.problem.pipeline.orders[rank];
        let ends: u64 = order.chunks.iter().map(|&k| self.problem.fixed[k as usize].held.0).sum();
        (self.problem.limit.0 + excess).saturating_sub(self.problem.rank_bytes.0 + ends)
    }

    /// Splits that fit under a policy, if any is found: ranks that lack memory hold fewer layers, or fewer of them in the chunk
    /// of which most micro-batches are in flight.
    fn splits(&self, work: &mut ChunkWork, policy: Policy) -> Vec<Assignment> {
        let (problem, tables) = (self.problem, self.tables);
        let unmoved = self.levelled(work, policy, 0);
        // What fits at once is not moved either.
        let at_once = unmoved.as_ref().is_some_and(|(_, lowered)| !lowered);
        let mut layers: Vec<Vec<u32>> = unmoved.into_iter().map(|(layers, _)| layers).collect();
        if problem.pipeline.chunks_per_rank > 1 && !at_once {
            let shifted = self.levelled(work, policy, MOST_SHIFTED).map(|(layers, _)| layers);
            layers.extend(shifted.filter(|shifted| !layers.contains(shifted)));
        }
        if self.moves_cuts && layers.is_empty() {
            layers.extend(self.fitted(work, policy));
        }
        layers
            .into_iter()
            .map(|layers| Chunked::new(problem, tables, work).assignment(layers, policy))
            .collect()
    }

    /// A split that fits, found by moving cuts: the fastest of those that moving them further reaches.
    fn fitted(&self, work: &mut ChunkWork, policy: Policy) -> Option<Vec<u32>> {
        let (problem, tables) = (self.problem, self.tables);
        let bytes: Vec<_> = (0..tables.kinds).map(|kind| self.bytes_of(policy, kind)).collect();
        let mut fitting = Fitting::new(problem, tables, policy, &bytes);
        let splits = fitting.splits(&problem.even_layers(), &mut work.loads);
        let longer = |(kind, of): (usize, &Kind)| Kind {
            backward: of.backward + Picos(self.extra_of(policy, kind)),
            ..*of
        };
        let recomputing = Problem {
            kinds: problem.kinds.iter().enumerate().map(longer).collect(),
            fixed: problem.fixed_in(policy.way().as_slice()).into_owned(),
            ..problem.clone()
        };
        let ChunkWork { simulator, loads, .. } = work;
        let mut fits = |split: &[u32]| fitting.fits(split, loads);
        descent::descend_among(&recomputing, splits, simulator, &mut fits)
    }

    /// A split that fits in which ranks are filled up to one level, if one is found. A rank that lacks memory first has so
    /// many of its layers moved to a chunk of which fewer micro-batches are in flight. Also whether any rank lacked memory.
    fn levelled(&self, work: &mut ChunkWork, policy: Policy, most_shifted: u32) -> Option<(Vec<u32>, bool)> {
        let (problem, tables) = (self.problem, self.tables);
        let (pipeline, layer, ends) = (&*problem.pipeline, self.layer, &self.ends);
        let mut caps: Vec<u32> = self.caps(policy).collect();
        let ranks = pipeline.ranks as usize;
        let mut counts = vec![0; problem.chunks()];
        let mut loads = vec![0; ranks];
        let mut totals = vec![0; ranks];
        let mut shifted = vec![0; ranks];
        // Every round lowers a ceiling by what a rank lacks.
        for round in 0..8 + most_shifted {
            if caps.iter().map(|&cap| u64::from(cap)).sum::<u64>() < u64::from(tables.layers) {
                return None;
            }
            for (rank, order) in pipeline.orders.iter().enumerate() {
                totals[rank] = order.chunks.iter().map(|&k| problem.least(k as usize)).sum();
                let own: u64 = order.chunks.iter().map(|&k| ends[k as usize]).sum();
                loads[rank] = own + u64::from(totals[rank]) * layer;
            }
            if totals.iter().zip(&caps).any(|(total, cap)| total > cap) {
                return None;
            }
            // As far as all ranks that may take more stay below one level; the rest one by one.
            let mut left = tables.layers.checked_sub(totals.iter().sum::<u32>())?;
            loop {
                let mut level = u64::MAX;
                loop {
                    let open = (0..ranks).filter(|&rank| totals[rank] < caps[rank] && loads[rank] < level);
                    let (count, sum) = open.fold((0, 0), |(count, sum), rank| (count + 1, sum + loads[rank]));
                    let next = (sum + u64::from(left) * layer).checked_div(count).unwrap_or(0);
                    if next >= level {
                        break;
                    }
                    level = next;
                }
                let before = left;
                for rank in 0..ranks {
                    let more = level.saturating_sub(loads[rank]).checked_div(layer).unwrap_or(0);
                    let more = more.min(u64::from(caps[rank] - totals[rank])) as u32;
                    totals[rank] += more;
                    loads[rank] += u64::from(more) * layer;
                    left -= more;
                }
                if left == before {
                    break;
                }
            }
            let open = (0..ranks).filter(|&rank| totals[rank] < caps[rank]);
            let mut open: BinaryHeap<Reverse<(u64, usize)>> =
                open.map(|rank| Reverse((loads[rank], rank))).collect();
            for _ in 0..left {
                let Reverse((load, next)) = open.pop()?;
                totals[next] += 1;
                loads[next] = load + layer;
                if totals[next] < caps[next] {
                    open.push(Reverse((loads[next], next)));
                }
            }
            for (rank, order) in pipeline.orders.iter().enumerate() {
                let bare = |&k: &u32| {
                    let (k, fewest) = (k as usize, problem.least(k as usize));
                    Bare { chunk: k, ends: self.ends_in_layers[k], fewest, open: !problem.fixed[k].closed }
                };
                spread(totals[rank], order.chunks.iter().map(bare), &mut counts);
                let (from, to) = (order.chunks[0] as usize, order.chunks[order.chunks.len() - 1] as usize);
                if shifted[rank] > 0 && !problem.fixed[to].closed {
                    let most = counts[from].saturating_sub(problem.least(from)).min(shifted[rank]);
                    counts[from] -= most;
                    counts[to] += most;
                }
            }
            work.loads.place(problem, tables, &counts);
            work.loads.hold(problem);
            let mut fits = true;
            for rank in 0..ranks {
                let excess = work.loads.rank(problem, tables, rank, policy).excess;
                if excess > 0 && shifted[rank] < most_shifted {
                    fits = false;
                    shifted[rank] += 1;
                } else if excess > 0 {
                    fits = false;
                    let share = self.need(rank, excess) / u64::from(totals[rank].max(1));
                    let fewer = (excess / share.max(1)).clamp(1, u64::from(tables.layers));
                    caps[rank] = totals[rank].checked_sub(fewer as u32)?;
                }
            }
            if fits {
                return Some((counts, round > 0));
            }
        }
        None
    }
}

/// What a chunk has before the layers of its rank are spread.
struct Bare {
    chunk: usize,
    /// Its ends take as long as so many layers.
    ends: u64,
    fewest: u32,
    /// Whether it takes more than those.
    open: bool,
}

/// Spreads a rank's layers over its chunks: one after the other goes to the shortest, of several to the one nearest the
/// middle.
fn spread(total: u32, chunks: impl ExactSizeIterator<Item = Bare>, counts: &mut [u32]) {
    let mut left = u64::from(total);
    // How long those that take more are, how far from the middle, and which.
    let mut open: SmallVec<[(u64, usize, usize); 32]> = SmallVec::new();
    let count = chunks.len();
    for (at, bare) in chunks.enumerate() {
        counts[bare.chunk] = bare.fewest;
        left = left.saturating_sub(u64::from(bare.fewest));
        if bare.open {
            let time = bare.ends + u64::from(bare.fewest);
            open.push((time, (2 * at + 1).abs_diff(count), bare.chunk));
        }
    }
    open.sort_unstable();
    // The level up to which the layers fill the shortest.
    let (mut level, mut spare, mut filled) = (0, left, 0);
    for (at, &(time, ..)) in (0..).zip(&open) {
        if at > 0 && level <= time {
            break;
        }
        filled = at as usize + 1;
        let sum = spare + level * at + time;
        (level, spare) = (sum / (at + 1), sum % (at + 1));
    }
    for &(time, _, chunk) in &open[..filled] {
        counts[chunk] += (level - time) as u32;
    }
    // The rest goes to some of all that are as long as that.
    let alike = filled + open[filled..].partition_point(|&(time, ..)| time <= level);
    open[..alike].sort_unstable_by_key(|&(_, from_middle, chunk)| (from_middle, chunk));
    open[..alike].iter().take(spare as usize).for_each(|&(.., chunk)| counts[chunk] += 1);
}

#[cfg(test)]
mod tests {
    use super::super::walk::tests::Random;
    use super::*;

    /// Layers are spread as if one after the other went where it belongs.
    #[test]
    fn layers_are_spread_one_by_one() {
        let mut random = Random(3);
        for _ in 0..10_000 {
            let count = 1 + random.below(9) as usize;
            let chunks = |random: &mut Random| -> Vec<(u64, u32, bool)> {
                let one = |_| (random.below(7), random.below(3) as u32, random.below(5) > 0);
                (0..count).map(one).collect()
            };
            let (chunks, total) = (chunks(&mut random), random.below(40) as u32);
            let bare = |(chunk, &(ends, fewest, open))| Bare { chunk, ends, fewest, open };
            let mut counts = vec![0; count];
            spread(total, chunks.iter().enumerate().map(bare), &mut counts);

            let mut expected: Vec<u32> = chunks.iter().map(|&(_, fewest, _)| fewest).collect();
            for _ in expected.iter().sum()..total {
                let open = (0..count).filter(|&at| chunks[at].2);
                let time = |at: usize| chunks[at].0 + u64::from(expected[at]);
                let next = open.min_by_key(|&at| (time(at), (2 * at + 1).abs_diff(count), at));
                next.into_iter().for_each(|at| expected[at] += 1);
            }
            assert_eq!(counts, expected, "{total} {chunks:?}");
        }
    }
}
