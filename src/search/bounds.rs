//! Bounds on groups of layouts, each sharper and dearer than the one before.

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::sync::Arc;

use rayon::prelude::*;

use super::balance::{Balancing, Hopeless, LegalModes, RecomputeFamily, TablesOf, Ways};
use super::best::Threshold;
use super::groups::Ordered;
use super::{Bounded, Scratch, Search};
use crate::candidates::{Group, Order, Shards, UNSHARDED, layout_of};
use crate::cost::model::Parts;
use crate::cost::step::{once_per_step, shape};
use crate::cost::{CellCosts, CellKey, Hop, LocalParameters, Sharding};
use crate::plan::{Offload, Schedule};
use crate::stages::{Problem, Way};
use crate::units::Picos;

/// What a whole step takes at least, given the time of its passes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Floor {
    pub once: Picos,
    pub jitter: f64,
}

impl Floor {
    pub fn step(self, passes: Picos) -> Picos {
        let sum = passes + self.once;
        sum + sum.scale((self.jitter - 1.0).max(0.0))
    }

    /// Passes that certainly fit into a step of `time`.
    pub fn passes(self, time: Picos) -> Picos {
        // Far more than the rounding of a product in floating point.
        let sum = time.scale(1.0 / self.jitter.max(1.0)).saturating_sub(Picos(2 + (time.0 >> 40)));
        sum.saturating_sub(self.once)
    }

    /// For steps that matter up to `time`, passes that certainly do and passes that certainly do not: only
    /// on which side of these a bound lies is of interest.
    pub fn at_most(self, time: Option<Picos>) -> RangeInclusive<Picos> {
        let Some(time) = time else { return Picos(u64::MAX)..=Picos(u64::MAX) };
        let passes = self.passes(time);
        passes..=passes + Picos(8 + (time.0 >> 38))
    }

    /// The same where so much comes on top of the passes at least.
    pub fn passes_beside(self, more: Picos, time: Option<Picos>) -> RangeInclusive<Picos> {
        let Some(time) = time else { return self.at_most(None) };
        let (certainly, not) = self.at_most(Some(time)).into_inner();
        certainly.saturating_sub(more)..=not.saturating_sub(more)
    }
}

/// A part of a group that is bounded by itself, and so what is known of its layouts.
#[derive(Debug, Clone, Copy)]
enum Part {
    /// Degrees, and whether multi-token prediction is standalone.
    Group(bool),
    /// Also the order of passes, and whether the experts' exchange overlaps.
    Order(Order, bool),
}

impl Part {
    /// The order, one chunk per rank where it is not known.
    fn order(self) -> Order {
        match self {
            Self::Group(mtp_standalone) => Order { mtp_standalone, ..Order::PLAIN },
            Self::Order(order, _) => order,
        }
    }

    fn expert_overlap(self) -> Option<bool> {
        match self {
            Self::Group(_) => None,
            Self::Order(_, overlap) => Some(overlap),
        }
    }
}

/// What cells of a family cost at least under any flags.
pub(super) struct Floors {
    cell: CellCosts,
    legal: Arc<LegalModes>,
    /// The Pareto set of what is legal, at floor costs.
    ways: Ways,
}

impl Search<'_> {
    /// A first bound on every group: computation and exchange at the best flags, whatever memory allows.
    pub(super) fn first_bounds(&self, groups: &[Group]) -> Vec<(Picos, Group)> {
        let mut families: Vec<(Family, &Group)> = groups.par_iter().map(|g| (family_of(g), g)).collect();
        families.par_sort_unstable();
        families.dedup_by_key(|(family, _)| *family);
        let price = |parts: &mut Parts, (family, group): &(Family, &Group)| {
            let flags = self.space.possible_flags(group);
            (*family, self.cost.floor_total(&self.space.plain_cell(group), flags, parts))
        };
        let floors: HashMap<Family, Picos> = families.par_iter().map_init(Parts::default, price).collect();
        let bound = |g: &Group| {
            let least = floors.get(&family_of(g)).copied().unwrap_or_default();
            (self.floor(Picos::ZERO).step(self.least_passes(least, g)), *g)
        };
        groups.par_iter().map(bound).collect()
    }

    /// A bound that knows of memory: what is recomputed at least, at the best flags and the sharding with
    /// the fewest bytes. None if no layout of the group can fit. Above `most` it need not be exact.
    pub(super) fn second_bound(
        &self,
        first: Picos,
        most: Option<Picos>,
        group: &Group,
        scratch: &mut Scratch,
    ) -> Option<Picos> {
        // What is likely least comes first: it may be enough.
        let places = self.space.mtp_places(group.pipeline_parallel).iter().rev();
        let parts: Vec<Part> = places.map(|&standalone| Part::Group(standalone)).collect();
        self.relaxed_bound(first, most, group, &parts, scratch)
    }

    /// [`Search::second_bound`], order by order of the passes and with and without overlap of the experts'
    /// exchange: what a fast layout of one kind and a lean one of another have in common is less than
    /// either.
    pub(super) fn third_bound(
        &self,
        &Bounded { bound: second, ref group, .. }: &Bounded,
        most: Option<Picos>,
        scratch: &mut Scratch,
    ) -> Option<Picos> {
        let orders = self.orders(group);
        let overlaps = &self.space.flags(group).expert_overlap;
        let allowed = |&Ordered { order, rules }: &Ordered| {
            let overlaps = overlaps.iter().filter(move |&&overlap| rules[usize::from(overlap)].is_none());
            overlaps.map(move |&overlap| Part::Order(order, overlap))
        };
        let orders: Vec<Part> = orders.iter().flat_map(allowed).collect();
        self.relaxed_bound(second, most, group, &orders, scratch)
    }

    /// The least relaxed bound of parts of a group that nothing of it costs less than, where it
    /// is above `known`; none if memory holds none of them. Where rules leave nothing, that is found out where they
    /// are counted.
    fn relaxed_bound(
        &self,
        known: Picos,
        most: Option<Picos>,
        group: &Group,
        parts: &[Part],
        scratch: &mut Scratch,
    ) -> Option<Picos> {
        let floor = self.floor(Picos::ZERO);
        let range = floor.passes(known)..=*floor.at_most(most).end();
        let mut least: Option<Picos> = None;
        let mut refused = true;
        for &offload in self.offloads() {
            let legal = self.legal_shardings(group, offload);
            // What is alike in the states of an order and the one before it: all but the schedule.
            let mut last: Option<(Schedule, Option<Sharding>)> = None;
            for &one in parts.iter().filter(|_| !legal.is_empty()) {
                refused = false;
                let schedule = one.order().schedule;
                if last.as_ref().is_none_or(|last| last.0 != schedule) {
                    last = Some((schedule, self.roomy(group, (offload, schedule), &legal, scratch)));
                }
                let Some((_, Some(sharding))) = &last else { continue };
                if !self.looped() {
                    return Some(known);
                }
                let floors = (sharding, false);
                let Balancing { problem, .. } = self.floor_problem(group, offload, one, floors, scratch);
                // What cannot be bounded may be anything.
                if problem.check().is_err() {
                    return Some(known);
                }
                // Above the least of the others it does not matter by how much.
                let most = least.map_or(*range.end(), |least| least.min(*range.end()));
                let passes = scratch.relaxation.lower_bound(&problem, *range.start()..=most);
                let Some(passes) = passes else { continue };
                if passes <= *range.start() {
                    return Some(known);
                }
                least = Some(least.map_or(passes, |least| least.min(passes)));
            }
        }
        if refused {
            return Some(known);
        }
        least.map(|passes| known.max(floor.step(passes)))
    }

    /// What the passes of a cell take at least whatever their order, with no more states than these; none if memory holds
    /// none of its layouts. Above `most` it need not be exact.
    pub(super) fn least_of_cell(
        &self,
        group: &Group,
        (key, mtp_standalone): (&CellKey, bool),
        (sharding, cell, ways): (&Sharding, &CellCosts, &Ways),
        most: Picos,
        scratch: &mut Scratch,
    ) -> Option<Picos> {
        if !self.looped() {
            return Some(Picos::ZERO);
        }
        let layout = layout_of(group, key, Order { mtp_standalone, ..Order::PLAIN }, UNSHARDED);
        let tables = TablesOf { cell, sharding, hop: Hop::default() };
        let pipeline = scratch.pipelines.busy(group.pipeline_parallel, group.micro_batches);
        let capabilities = self.space.capabilities();
        let Balancing { mut problem, .. } =
            Balancing::of(pipeline, self.cost, self.layers, &layout, tables, ways, capabilities);
        chunks_are_ranks(&mut problem);
        // What cannot be bounded may be anything.
        if problem.check().is_err() {
            return Some(Picos::ZERO);
        }
        scratch.relaxation.lower_bound(&problem, Picos::ZERO..=most)
    }

    /// The ways to offload that layouts may have.
    pub(super) fn offloads(&self) -> &[Offload] {
        self.space.restrictions().offload.as_deref().unwrap_or(&[Offload::NONE])
    }

    /// Whether no schedule of the space splits backward passes: what floors hold for.
    fn looped(&self) -> bool {
        !self.space.capabilities().schedules.iter().any(|schedule| schedule.splits_backward())
    }

    /// The ways to recompute with which no layout of a group can take as little as `limit`.
    pub(super) fn hopeless(
        &self,
        group: &Group,
        offload: Offload,
        limit: Threshold,
        scratch: &mut Scratch,
    ) -> Hopeless {
        let hopeless = Hopeless::default();
        let Some(time) = limit.time() else { return hopeless };
        if !self.looped() || self.space.capabilities().recompute.per_stage {
            return hopeless;
        }
        let legal = self.legal_shardings(group, offload);
        let sharding = self.roomy(group, (offload, Schedule::OneFOneB), &legal, scratch);
        let Some(sharding) = sharding else { return hopeless };
        let most = *self.floor(Picos::ZERO).at_most(Some(time)).end();
        let mut least: Option<Hopeless> = None;
        for &standalone in self.space.mtp_places(group.pipeline_parallel) {
            let (part, floors) = (Part::Group(standalone), (&sharding, true));
            let Balancing { problem, modes, .. } = self.floor_problem(group, offload, part, floors, scratch);
            if problem.check().is_err() {
                return hopeless;
            }
            scratch.relaxation.ways(&problem, most, &mut scratch.ways);
            let listed = |way: Way| scratch.ways.contains(&way);
            let offered = problem.modes.iter().enumerate().filter(|(_, mode)| mode.offered);
            let unlisted = offered.filter(|(at, _)| !listed(Way::Mode(*at as u16)));
            let found = Hopeless {
                modes: unlisted.map(|(at, _)| modes[at]).collect(),
                block: problem.block.is_some() && !listed(Way::Block),
            };
            // What helps in one place helps.
            least = Some(match least {
                None => found,
                Some(other) => Hopeless {
                    modes: other.modes.intersection(&found.modes).copied().collect(),
                    block: other.block && found.block,
                },
            });
        }
        least.unwrap_or(hopeless)
    }

    /// The shardings of a group that rules leave.
    fn legal_shardings(&self, group: &Group, offload: Offload) -> Vec<Shards> {
        let legal = |one: &&Shards| self.space.sharding_rule(group, offload, **one).is_none();
        self.space.shardings(group).iter().filter(legal).copied().collect()
    }

    /// No more bytes, traffic and time than any of some shardings that leave room on an average rank; none if none does.
    fn roomy(
        &self,
        group: &Group,
        (offload, schedule): (Offload, Schedule),
        shardings: &[Shards],
        scratch: &mut Scratch,
    ) -> Option<Sharding> {
        let parameters = self.parameters(group, scratch);
        let plain = CellKey { offload, ..self.space.plain_cell(group) };
        let price =
            |&shards: &Shards| self.cost.sharding(&layout_of(group, &plain, Order::one(schedule), shards));
        let mut shardings: Vec<Sharding> = shardings.iter().map(price).collect();
        shardings.retain(|one| self.room(one, &parameters, group.pipeline_parallel).suffices());
        (!shardings.is_empty()).then(|| Sharding::least(shardings.iter()))
    }

    /// The balancing problem of no layout of a group that costs more than any of them, of all of them or
    /// of those with one order of the passes and with or without overlap of the experts' exchange, with
    /// their `sharding` that costs least; with `every` legal way to recompute or those alone that may be best.
    fn floor_problem(
        &self,
        group: &Group,
        offload: Offload,
        part: Part,
        (sharding, every): (&Sharding, bool),
        scratch: &mut Scratch,
    ) -> Balancing {
        let overlap = part.expert_overlap();
        let plain =
            CellKey { offload, expert_overlap: overlap.unwrap_or(false), ..self.space.plain_cell(group) };
        let layout = layout_of(group, &plain, part.order(), UNSHARDED);
        let key = (family_of(group), offload, overlap);
        let mut kept = std::mem::take(&mut scratch.floors);
        let floors = kept.get(key, || {
            let mut flags = self.space.possible_flags(group).clone();
            if let Some(overlap) = overlap {
                flags.expert_overlap = vec![overlap];
                flags.shared_overlap &= !overlap;
            }
            let cell = self.cost.floor_cell(&plain, &flags, &mut scratch.parts);
            let legal = self.legal_modes(&layout, &cell, scratch);
            let ways = Ways::new(&RecomputeFamily::new(&legal, &cell), &cell);
            Floors { cell, legal, ways }
        });
        let all =
            every.then(|| Ways::new(&RecomputeFamily::every(&floors.legal, &floors.cell), &floors.cell));
        let ways = all.as_ref().unwrap_or(&floors.ways);
        let tables = TablesOf { cell: &floors.cell, sharding, hop: Hop::default() };
        let capabilities = self.space.capabilities();
        let (ranks, micro_batches) = (group.pipeline_parallel, group.micro_batches);
        let pipeline = match part {
            Part::Group(_) => scratch.pipelines.busy(ranks, micro_batches),
            Part::Order(Order { schedule: Schedule::OneFOneB, .. }, _) => {
                scratch.pipelines.either_pass(ranks, micro_batches)
            }
            Part::Order(..) => scratch.pipelines.of(shape(&layout)),
        };
        let mut balancing =
            Balancing::of(pipeline, self.cost, self.layers, &layout, tables, ways, capabilities);
        scratch.floors = kept;
        if let Part::Group(_) = part {
            chunks_are_ranks(&mut balancing.problem);
        }
        balancing
    }

    pub(super) fn once(&self, sharding: &Sharding, parameters: &LocalParameters, ranks: u64) -> Floor {
        // The fullest rank updates at least the average; rounding may take a picosecond off.
        let update = once_per_step(sharding, parameters).update.saturating_sub(Picos(1)) / ranks;
        Floor { once: update + sharding.step_overhead, jitter: sharding.jitter }
    }

    /// What the passes of a group take at least if one micro-batch takes `total`: every rank runs all micro-batches, and,
    /// unless weight gradients may come later than what other ranks wait for, one micro-batch passes through all ranks.
    pub(super) fn least_passes(&self, total: Picos, g: &Group) -> Picos {
        let average = Picos(total.0 * u64::from(g.micro_batches) / u64::from(g.pipeline_parallel));
        if self.looped() { total.max(average) } else { average }
    }

    /// What every step takes beside its passes.
    pub(super) fn floor(&self, once: Picos) -> Floor {
        let (overhead, jitter) = self.cost.step_floor();
        Floor { once: once + overhead, jitter }
    }
}

/// Layers of ranks need not be neighbours: which they must hold is not known.
fn chunks_are_ranks(problem: &mut Problem) {
    problem.min_layers = 0;
    problem.fixed.iter_mut().for_each(|fixed| fixed.closed = false);
}

/// TP, CP, micro-batch, EP, ETP.
pub(super) type Family = (u32, u32, u32, u32, u32);

fn family_of(g: &Group) -> Family {
    (g.tensor_parallel, g.context_parallel, g.micro_batch_size, g.expert_parallel, g.expert_tensor_parallel)
}
