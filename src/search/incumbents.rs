//! Good layouts, found before the groups are opened in their order: what they take, the rest has to beat from the
//! start.
//!
//! A bound says little about which of many groups is good where memory decides: it knows neither the flags that fit nor
//! the splits. So a few groups are seen at a glance, then those that are like the best of them, as long as that leads
//! to better ones; the best at last are opened. Nothing is lost where it does not: what is found only decides how much
//! is pruned.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use super::best::{Best, Class, Threshold, class_of_group};
use super::flow::{Source, flow};
use super::groups::{Opened, Seen};
use super::{Bounded, Counters, Observer, Request, Scratches, Search};
use crate::candidates::Group;
use crate::cost::CellKey;
use crate::plan::Layout;
use crate::units::Picos;

/// Groups seen at a glance first, each of another class, for every class that is asked for.
const FIRST: usize = 1;
/// Cells of such a group that a glance looks at.
const CELLS: usize = 16;
/// Groups seen at once: the next of them do not know yet what these show.
const AT_ONCE: usize = 8;
/// Groups that are seen next: of each of the best, so many that are like it, and so many in all.
const LIKE_EACH: usize = 2;
const NEXT: usize = 8;
/// Best classes whose like are looked for.
const CENTRES: usize = 64;
/// How many factors of two, in all degrees together, groups that are alike are apart at most.
const ALIKE: u32 = 3;

/// What was found.
pub(super) struct Incumbents {
    /// Layouts, for the times that the best certainly do not exceed.
    pub found: Best,
    /// Groups that need not be opened again.
    pub opened: Vec<(Group, Opened)>,
    /// Groups seen at a glance, and what of them was settled: layouts, and simulated completions.
    pub seen: HashMap<Group, (u64, u64)>,
}

/// Groups that may hold the best. There may be 200,000: they are not copied.
pub(super) struct Open<'a> {
    /// Those with a second bound, or a third.
    pub refined: &'a BinaryHeap<Reverse<Bounded>>,
    /// Those with a first, in its order.
    pub rest: &'a [(Picos, Group)],
}

impl Open<'_> {
    /// Those with bounds up to some, in no order.
    fn up_to(&self, most: Option<Picos>) -> impl Iterator<Item = Bounded> + '_ {
        let hopeful = move |bound: Picos| most.is_none_or(|most| bound <= most);
        let rest = &self.rest[..self.rest.partition_point(|&(bound, _)| hopeful(bound))];
        let refined = self.refined.iter().map(|one| one.0).filter(move |one| hopeful(one.bound));
        refined.chain(rest.iter().map(first_bounded))
    }

    /// The least of all bounds.
    fn least(&self) -> Option<Picos> {
        let refined = self.refined.peek().map(|one| one.0.bound);
        refined.into_iter().chain(self.rest.first().map(|first| first.0)).min()
    }

    /// The first groups, each of another class.
    fn one_per_class(&self, most: usize) -> Vec<Bounded> {
        let first = |ordered: &mut dyn Iterator<Item = Bounded>| -> Vec<Bounded> {
            let mut seen: HashSet<Class> = HashSet::new();
            ordered.filter(|one| seen.insert(class_of_group(&one.group))).take(most).collect()
        };
        let mut refined: Vec<Bounded> = self.refined.iter().map(|one| one.0).collect();
        refined.sort_unstable();
        // The first of all are among the first of either part.
        let mut firsts = first(&mut refined.into_iter());
        firsts.extend(first(&mut self.rest.iter().map(first_bounded)));
        firsts.sort_unstable();
        first(&mut firsts.into_iter())
    }
}

/// A group of which a first bound is known.
fn first_bounded(&(bound, group): &(Picos, Group)) -> Bounded {
    Bounded { bound, group, third: false }
}

/// A look for incumbents.
struct Look<'a> {
    observer: &'a dyn Observer,
    counters: &'a Counters,
    open: &'a Open<'a>,
    /// Groups to be looked at next, and which of their cells.
    next: VecDeque<(Bounded, Cells)>,
    found: Best,
    /// As in [`Incumbents`]; those that are being seen are here with nothing.
    seen: HashMap<Group, (u64, u64)>,
    opened: Vec<(Group, Opened)>,
    /// Groups that are opened, or being so.
    done: HashSet<Group>,
    /// The groups of the best layouts when groups like them were last looked for.
    centres: Vec<Group>,
    /// Whether groups like these were looked for since they are the best, or were opened.
    looked: bool,
}

/// Which cells of a group are looked at.
#[derive(Clone)]
enum Cells {
    Every,
    Some,
    Like(Arc<[CellKey]>),
}

/// A group that is to be looked at.
struct Glance {
    one: Bounded,
    cells: Cells,
    limit: Threshold,
}

impl Source for Look<'_> {
    type Task = Glance;
    type Done = (Group, Cells, Option<Opened>);

    fn next(&mut self, at_work: usize) -> Option<Glance> {
        if self.observer.stop() {
            return None;
        }
        if self.next.is_empty() {
            self.seek(at_work);
        }
        let (one, cells) = self.next.pop_front()?;
        let limit = self.found.threshold(class_of_group(&one.group));
        Some(Glance { one, cells, limit })
    }

    fn done(&mut self, (group, cells, opened): Self::Done) {
        let Some(opened) = opened else { return };
        opened.settled.iter().for_each(|settled| self.found.offer(settled.clone()));
        if let Cells::Every = cells {
            self.opened.push((group, opened));
        } else {
            self.seen.insert(group, (opened.counters.evaluated, opened.counters.simulated));
        }
        let layouts = self.seen.values().map(|settled| settled.0).sum::<u64>();
        let first = self.found.firsts.first().map(|first| first.0);
        let settled = self.counters.settled() + layouts;
        self.observer.progress(settled, self.counters.candidates, first, self.open.least());
    }
}

impl Search<'_> {
    /// Layouts of some of the groups that are `open`.
    pub(super) fn incumbents(
        &self,
        open: &Open<'_>,
        request: &Request,
        (observer, counters): (&dyn Observer, &Counters),
        scratches: &Scratches,
    ) -> Incumbents {
        let first = open.one_per_class(FIRST * request.top.min(CENTRES));
        let mut look = Look {
            observer,
            counters,
            open,
            next: first.iter().map(|&one| (one, Cells::Some)).collect(),
            found: Best::new(request),
            seen: first.iter().map(|one| (one.group, (0, 0))).collect(),
            opened: Vec::new(),
            done: HashSet::new(),
            centres: Vec::new(),
            looked: false,
        };
        let glance = |Glance { one, cells, limit }: Glance| {
            let seen = match &cells {
                Cells::Every => Seen::Every,
                Cells::Some => Seen::Some(CELLS),
                Cells::Like(flags) => Seen::Like(flags),
            };
            let scratch = &mut scratches.take().scratch;
            let opened = self.open(&one, request, limit, seen, observer, scratch);
            (one.group, cells, opened)
        };
        flow(&mut look, AT_ONCE, &glance);
        Incumbents { found: look.found, opened: look.opened, seen: look.seen }
    }
}

impl Look<'_> {
    /// The best layouts.
    fn leaders(&self) -> impl Iterator<Item = &Layout> {
        self.found.leaders().take(CENTRES)
    }

    /// Finds what to look at next: groups like the best, or the best themselves where those have brought nothing better.
    fn seek(&mut self, at_work: usize) {
        let centres: Vec<Group> = self.leaders().map(Group::of).collect();
        if centres != self.centres {
            self.looked = false;
            self.centres = centres;
        }
        if !std::mem::replace(&mut self.looked, true) {
            let flags: Arc<[CellKey]> = self.leaders().map(CellKey::from).collect();
            let cells = if flags.is_empty() { Cells::Some } else { Cells::Like(flags) };
            let like = self.like();
            self.seen.extend(like.iter().map(|one| (one.group, (0, 0))));
            self.next.extend(like.into_iter().map(|one| (one, cells.clone())));
        }
        // What is at work may show better ones to be like.
        if self.next.is_empty() && at_work == 0 {
            self.looked = false;
            let best = |one: &Bounded| self.centres.contains(&one.group) && !self.done.contains(&one.group);
            let mut best: Vec<Bounded> = self.open.up_to(None).filter(best).collect();
            best.sort_unstable();
            self.done.extend(best.iter().map(|one| one.group));
            self.next.extend(best.into_iter().map(|one| (one, Cells::Every)));
        }
    }

    /// Groups that are like the best ones, and could be among them.
    fn like(&self) -> Vec<Bounded> {
        let kth = self.found.any_threshold();
        let mut next: Vec<Bounded> = Vec::new();
        for centre in &self.centres {
            let wanted = LIKE_EACH.min(NEXT - next.len());
            // The nearest so far, nearest first.
            let mut near: Vec<(u32, Bounded)> = Vec::new();
            for one in self.open.up_to(kth).take_while(|_| wanted > 0) {
                let Some(apart) = apart(centre, &one.group) else { continue };
                let at = near.partition_point(|other| *other <= (apart, one));
                if at < wanted && !self.seen.contains_key(&one.group) && !next.contains(&one) {
                    near.insert(at, (apart, one));
                    near.truncate(wanted);
                }
            }
            next.extend(near.into_iter().map(|(_, one)| one));
        }
        next
    }
}

/// How many factors of two lie between the degrees of two groups that are alike. Data parallelism and the number of
/// micro-batches follow from the others.
fn apart(a: &Group, b: &Group) -> Option<u32> {
    let degrees = |g: &Group| {
        [
            g.expert_parallel,
            g.pipeline_parallel,
            g.micro_batch_size,
            g.tensor_parallel,
            g.context_parallel,
            g.expert_tensor_parallel,
        ]
    };
    let mut apart = 0;
    for (a, b) in degrees(a).into_iter().zip(degrees(b)) {
        if a != b {
            apart += a.max(b).div_ceil(a.min(b)).next_power_of_two().ilog2();
            if apart > ALIKE {
                return None;
            }
        }
    }
    Some(apart)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Groups in two parts are the same groups as in one list in order, ties included.
    #[test]
    fn open_groups_are_as_good_as_in_order() {
        let group = |n: u32| Group {
            tensor_parallel: 1 << (n % 3),
            context_parallel: 1,
            pipeline_parallel: 1 + n % 4,
            data_parallel: n,
            expert_parallel: 1,
            expert_tensor_parallel: 1,
            micro_batch_size: 1 + n % 2,
            micro_batches: 1,
        };
        let bounded =
            |n: u32| Bounded { bound: Picos(u64::from(n * 7 % 5)), group: group(n), third: n % 3 == 0 };
        let refined: BinaryHeap<Reverse<Bounded>> = (0..20).map(|n| Reverse(bounded(n))).collect();
        let mut rest: Vec<(Picos, Group)> =
            (20..60).map(bounded).map(|one| (one.bound + Picos(1), one.group)).collect();
        rest.sort_unstable();
        let open = Open { refined: &refined, rest: &rest };
        let mut all: Vec<Bounded> = (0..20).map(bounded).chain(rest.iter().map(first_bounded)).collect();
        all.sort_unstable();
        for most in [None, Some(Picos(0)), Some(Picos(3))] {
            let mut some: Vec<Bounded> = open.up_to(most).collect();
            some.sort_unstable();
            let expected = all.iter().filter(|one| most.is_none_or(|most| one.bound <= most));
            assert!(some.iter().eq(expected));
        }
        assert_eq!(open.least(), all.first().map(|one| one.bound));
        let mut seen = HashSet::new();
        let classes: Vec<Bounded> =
            all.iter().filter(|one| seen.insert(class_of_group(&one.group))).copied().collect();
        assert!(classes.len() > 4);
        for most in 0..=classes.len() {
            assert!(open.one_per_class(most).iter().eq(&classes[..most]));
        }
    }
}
