//! One walk over a space, or over some of its classes.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet, VecDeque};

use rayon::prelude::*;

use super::best::{Best, Class, Settled, Threshold, class_of_group};
use super::flow::{Source, flow};
use super::groups::{Opened, Seen};
use super::incumbents::Open;
use super::{Bounded, Counters, Held, Observer, Ranking, Request, Scratches, Search, Stop};
use crate::candidates::Group;
use crate::units::Picos;

/// Groups that get their second bound at once.
const REFINED_AT_ONCE: usize = 512;
/// Groups that get their third bound at once.
const SHARPENED_AT_ONCE: usize = 8;
/// Groups opened at once: work for as many threads, but not so much that what one finds comes too late for the next. Chosen
/// on two cores, where eight and 32 took as long.
const OPENED_AT_ONCE: usize = 16;

/// A walk, group by group.
struct Walk<'a> {
    search: &'a Search<'a>,
    request: &'a Request,
    observer: &'a dyn Observer,
    scratches: &'a Scratches,
    /// Whether good layouts are looked for first.
    looks_first: bool,
    counters: Counters,
    best: Best,
    /// Layouts of some groups: the best certainly do not take longer.
    incumbents: Option<Best>,
    /// What was settled of groups that were only seen at a glance.
    glances: HashMap<Group, (u64, u64)>,
    /// Groups whose second bound is known, by that bound or a third.
    pool: BinaryHeap<Reverse<Bounded>>,
    /// Groups by their first bound, and the next of them that has no other.
    ordered: Vec<(Picos, Group)>,
    at: usize,
    /// Bounds of the groups that are being opened, in the order in which they were given out.
    at_work: VecDeque<Picos>,
}

impl Source for Walk<'_> {
    type Task = (Bounded, Threshold);
    type Done = (Bounded, Option<Opened>);

    /// The group with the least bound, once that is its third and no other can have a lesser one.
    fn next(&mut self, _: usize) -> Option<Self::Task> {
        loop {
            let kth = self.kth();
            let least = self.least()?;
            if kth.is_some_and(|kth| least > kth) {
                return None;
            }
            if self.observer.stop() {
                return None;
            }
            let first = self.ordered.get(self.at).map(|o| o.0);
            let second = self.pool.peek().map(|Reverse(next)| next.bound);
            if first.is_some_and(|first| second.is_none_or(|second| first < second)) {
                self.refine(kth);
                continue;
            }
            let Reverse(next) = self.pool.pop()?;
            if !next.third && !self.request.exhaustive {
                self.sharpen(next, kth);
                continue;
            }
            if self.incumbents.is_none() {
                self.pool.push(Reverse(next));
                self.look();
                continue;
            }
            let class = class_of_group(&next.group);
            let incumbent = self.incumbents.as_ref().map(|found| found.threshold(class));
            let frozen = self.best.threshold(class).min(incumbent.unwrap_or_default());
            self.at_work.push_back(next.bound);
            return Some((next, if self.request.exhaustive { Threshold::default() } else { frozen }));
        }
    }

    fn done(&mut self, (one, opened): Self::Done) {
        self.at_work.pop_front();
        let Some(opened) = opened else {
            // Told to stop before the group was done: it stays open.
            self.pool.push(Reverse(one));
            return;
        };
        self.counters.add(&opened.counters);
        opened.settled.into_iter().for_each(|settled| self.best.offer(settled));
        let (settled, candidates) = (self.counters.settled(), self.counters.candidates);
        let open = self.at_work.iter().copied().chain(self.least()).min();
        self.observer.progress(settled, candidates, self.first(), open);
    }
}

impl Walk<'_> {
    /// What the rest has to beat.
    fn kth(&self) -> Option<Picos> {
        let found = [Some(&self.best), self.incumbents.as_ref()].into_iter().flatten();
        found.filter_map(Best::any_threshold).min().filter(|_| !self.request.exhaustive)
    }

    /// The least bound of all groups that were not given out.
    fn least(&self) -> Option<Picos> {
        let second = self.pool.peek().map(|Reverse(next)| next.bound);
        self.ordered.get(self.at).map(|o| o.0).into_iter().chain(second).min()
    }

    /// The best time so far.
    fn first(&self) -> Option<Picos> {
        self.best.firsts.first().map(|first| first.0)
    }

    /// Gives the next groups their second bounds.
    fn refine(&mut self, kth: Option<Picos>) {
        let end = (self.at + REFINED_AT_ONCE).min(self.ordered.len());
        let hopeful = |o: &(Picos, Group)| kth.is_none_or(|kth| o.0 <= kth);
        let end = self.at + self.ordered[self.at..end].partition_point(hopeful);
        let refine = |held: &mut Held<'_>, (bound, group): &(Picos, Group)| {
            if self.request.exhaustive {
                return Some(*bound);
            }
            self.search.second_bound(*bound, kth, group, &mut held.scratch)
        };
        let groups = &self.ordered[self.at..end];
        let bounds = groups.par_iter().map_init(|| self.scratches.take(), refine);
        let bounds: Vec<Option<Picos>> = bounds.collect();
        for (at, bound) in (self.at..end).zip(bounds) {
            self.note(self.ordered[at].1, bound, false);
        }
        self.at = end;
    }

    /// Gives a group its third bound, and with it others that come soon.
    fn sharpen(&mut self, next: Bounded, kth: Option<Picos>) {
        let mut batch = vec![next];
        while batch.len() < SHARPENED_AT_ONCE
            && let Some(&Reverse(next)) = self.pool.peek()
            && kth.is_none_or(|kth| next.bound <= kth)
        {
            batch.push(next);
            self.pool.pop();
        }
        let sharpen = |held: &mut Held<'_>, next: &Bounded| match next.third {
            true => Some(next.bound),
            false => self.search.third_bound(next, kth, &mut held.scratch),
        };
        let bounds = batch.par_iter().with_max_len(1).map_init(|| self.scratches.take(), sharpen);
        let bounds: Vec<Option<Picos>> = bounds.collect();
        for (next, bound) in batch.iter().zip(bounds) {
            self.note(next.group, bound, true);
        }
    }

    /// Puts a group with a sharper bound back; one without, nothing of which fits, is dropped.
    fn note(&mut self, group: Group, bound: Option<Picos>, third: bool) {
        match bound {
            Some(bound) => self.pool.push(Reverse(Bounded { bound, group, third })),
            None => self.counters.drop("memory", self.search.space.count(&group)),
        }
    }

    /// Looks for good layouts.
    fn look(&mut self) {
        let mut found = Best::new(self.request);
        if self.looks_first {
            let open = Open { refined: &self.pool, rest: &self.ordered[self.at..] };
            let hears = (self.observer, &self.counters);
            let seen = self.search.incumbents(&open, self.request, hears, self.scratches);
            let done: HashSet<Group> = seen.opened.iter().map(|(group, _)| *group).collect();
            self.pool.retain(|Reverse(next)| !done.contains(&next.group));
            self.ordered.drain(..std::mem::take(&mut self.at));
            self.ordered.retain(|(_, group)| !done.contains(group));
            for (_, one) in seen.opened {
                self.counters.add(&one.counters);
                one.settled.into_iter().for_each(|settled| self.best.offer(settled));
            }
            (found, self.glances) = (seen.found, seen.seen);
        }
        self.incumbents = Some(found);
    }

    /// What came of it: counters with what was not opened, by how much anything left open could at most be faster, why
    /// it ended, and the best.
    fn end(mut self) -> (Counters, f64, Stop, Best) {
        // Something is left that could matter only where it was told to stop.
        let (open, kth) = (self.least(), self.kth());
        let interrupted = open.is_some_and(|least| kth.is_none_or(|kth| least <= kth));
        if interrupted {
            // What only some cells of a group were seen for is better than nothing.
            let seen = self.incumbents.take().into_iter().flat_map(Best::into_sorted);
            seen.for_each(|one| self.best.offer(one));
        }
        let rest = self.ordered[self.at..].iter().map(|(_, group)| group);
        let rest: Vec<&Group> = rest.chain(self.pool.iter().map(|Reverse(next)| &next.group)).collect();
        let mut unseen: u64 = rest.par_iter().map(|g| self.search.space.count(g)).sum();
        if interrupted {
            for &(layouts, completions) in rest.iter().filter_map(|group| self.glances.get(*group)) {
                self.counters.evaluated += layouts;
                self.counters.simulated += completions;
                unseen -= layouts;
            }
        }
        self.counters.drop(if interrupted { "not visited" } else { "bound: degrees" }, unseen);
        let stop = if interrupted { Stop::Interrupted } else { Stop::Proved };
        let optimality_gap = match (stop, open, self.first()) {
            (Stop::Interrupted, Some(open), Some(first)) => (1.0 - open.0 as f64 / first.0 as f64).max(0.0),
            (Stop::Interrupted, _, None) => 1.0,
            _ => 0.0,
        };
        (self.counters, optimality_gap, stop, self.best)
    }
}

impl Search<'_> {
    /// One walk over the space, or over some of its classes.
    pub(super) fn pass(
        &self,
        request: &Request,
        found: &[Settled],
        observer: &dyn Observer,
        classes: Option<&[Class]>,
    ) -> Ranking {
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
        let known = (!found.is_empty()).then(|| {
            let mut best = Best::new(request);
            found.iter().cloned().for_each(|settled| best.offer(settled));
            best
        });
        let mut walk = Walk {
            search: self,
            request,
            observer,
            scratches: &scratches,
            looks_first: !request.exhaustive && classes.is_none(),
            counters,
            best: Best::new(request),
            incumbents: known,
            glances: HashMap::new(),
            pool: BinaryHeap::new(),
            ordered,
            at: 0,
            at_work: VecDeque::new(),
        };
        let open = |(one, frozen): (Bounded, Threshold)| {
            let scratch = &mut scratches.take().scratch;
            (one, self.open(&one, request, frozen, Seen::Every, observer, scratch))
        };
        flow(&mut walk, OPENED_AT_ONCE, &open);
        let (counters, optimality_gap, stop, best) = walk.end();
        Ranking { best: best.into_sorted(), counters, optimality_gap, stop, insisted: false }
    }
}
