//! Good layouts, found before any group is opened: what they take, the rest has to beat from the start.
//!
//! A bound says little about which of many groups is good where memory decides: it knows neither the flags that fit nor
//! the splits. So a few groups are seen at a glance, and then those that are like the best of them, as long as that
//! leads to better ones. Nothing is lost where it does not: whatever is found only raises what is pruned.

use std::collections::HashSet;

use rayon::prelude::*;

use super::best::{Best, Class, class_of_group};
use super::groups::Opened;
use super::{Bounded, Held, Observer, Request, Scratches, Search};
use crate::candidates::Group;
use crate::plan::Layout;

/// Groups seen at a glance first, each of another class, for every class that is asked for.
const FIRST: usize = 8;
/// Groups seen at once, before what they show is known to others.
const AT_ONCE: usize = 8;
/// Groups like the best that are seen next.
const NEXT: usize = 24;
/// Best classes whose like are looked for.
const MOST_CENTRES: usize = 64;
/// By what factor a degree of groups that are alike differs at most.
const ALIKE: u32 = 4;

impl Search<'_> {
    /// Layouts found at a glance in some of the groups that are `open`, which come in the order of their bounds.
    pub(super) fn incumbents(
        &self,
        open: &[Bounded],
        request: &Request,
        observer: &dyn Observer,
        scratches: &Scratches,
    ) -> Best {
        let mut found = Best::new(request);
        let mut seen: HashSet<Group> = HashSet::new();
        let mut next = one_per_class(open, FIRST * request.top.min(MOST_CENTRES));
        let mut leaders: Vec<Layout> = Vec::new();
        while !next.is_empty() && !observer.stop() {
            for some in next.chunks(AT_ONCE) {
                let glance = |held: &mut Held<'_>, one: &Bounded| {
                    let limit = found.threshold(class_of_group(&one.group));
                    self.open(one, request, limit, true, observer, &mut held.scratch)
                };
                let opened: Vec<Option<Opened>> =
                    some.par_iter().map_init(|| scratches.take(), glance).collect();
                seen.extend(some.iter().map(|one| one.group));
                let settled = opened.into_iter().flatten().flat_map(|one| one.settled);
                settled.for_each(|settled| found.offer(settled));
            }
            let before =
                std::mem::replace(&mut leaders, found.leaders().take(MOST_CENTRES).copied().collect());
            if leaders == before {
                break;
            }
            let centres: Vec<Group> = leaders.iter().map(Group::of).collect();
            let kth = found.any_threshold();
            let hopeful = open.iter().take_while(|one| kth.is_none_or(|kth| one.bound <= kth));
            let near = |one: &&Bounded| {
                !seen.contains(&one.group) && centres.iter().any(|centre| alike(centre, &one.group))
            };
            next = hopeful.filter(near).take(NEXT).copied().collect();
        }
        found
    }
}

/// Whether two groups differ in two degrees at most, and in neither much. Data parallelism and the number of
/// micro-batches follow from the others.
fn alike(a: &Group, b: &Group) -> bool {
    let degrees = |g: &Group| {
        [
            g.tensor_parallel,
            g.context_parallel,
            g.pipeline_parallel,
            g.expert_parallel,
            g.expert_tensor_parallel,
            g.micro_batch_size,
        ]
    };
    let pairs = || degrees(a).into_iter().zip(degrees(b));
    pairs().all(|(a, b)| a.max(b) <= ALIKE * a.min(b)) && pairs().filter(|(a, b)| a != b).count() <= 2
}

/// The first groups, each of another class.
fn one_per_class(open: &[Bounded], most: usize) -> Vec<Bounded> {
    let mut seen: HashSet<Class> = HashSet::new();
    open.iter().filter(|one| seen.insert(class_of_group(&one.group))).take(most).copied().collect()
}
