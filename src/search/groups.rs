//! Groups, opened: their cells, the lines of layouts that differ in nothing but sharding, and which of them
//! could matter.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::rc::Rc;

use super::balance::{Balancing, Hopeless, RecomputeFamily, TablesOf, Ways, least_layers};
use super::best::{Best, Class, Settled, Threshold, class_of_group};
use super::bounds::Floor;
use super::layouts::Sharded;
use super::traffic::Ranks;
use super::{Bounded, Counters, Observer, Request, Scratch, Search};
use crate::candidates::{Group, Order, Shards, UNSHARDED, layout_of};
use crate::cost::schedule::Load;
use crate::cost::step::{OncePerStep, once_per_step, shape, state_bytes};
use crate::cost::{CellCosts, CellKey, Hop, LocalParameters, Sharding};
use crate::frameworks::Reach;
use crate::plan::{Layout, Offload, Schedule};
use crate::stages::{Splits, Spread};
use crate::units::Picos;

/// Layouts of a group that differ in nothing but sharding.
pub(super) struct Line {
    /// Least time of the whole step.
    least: Picos,
    /// How much of it is known.
    known: Known,
    /// Which of the group's states its layouts have.
    states: usize,
    /// Least time of all passes.
    pub passes: Picos,
    /// What its ranks do, as far as it is known.
    pub ranks: Ranks,
    /// Which cell, and which schedule and number of chunks, in the order of generation.
    at: (usize, usize),
    pub cell: Rc<Priced>,
    /// One of the layouts, unsharded.
    layout: Layout,
    pub hop: Hop,
    /// The balancing problem of one layout after the other.
    pub balancing: Balancing,
    /// Splits of all of them over several chunks per rank, where they differ in held bytes alone.
    splits: Option<Splits>,
}

/// What the least time of a line is taken from. Each is dearer and sharper than the one before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Known {
    /// Memory and stages, layers cut at will.
    Relaxed,
    /// The splits that are its completions, rank by rank.
    Splits,
    /// The same, simulated.
    Simulated,
}

/// The shardings of a group's orders: one stretch of them per order.
struct States {
    /// What they hold for.
    offload: Offload,
    all: Vec<StateCost>,
    /// By order: no more bytes, traffic and time than any of its shardings.
    some: Vec<StateCost>,
    /// No more than those of any order.
    any: Option<StateCost>,
    /// By order: no fewer bytes than any of its shardings, where none has traffic during the passes.
    most: Vec<Option<Sharding>>,
    /// By order: how many of them leave room on an average rank.
    fitting: Vec<u32>,
    /// A rule that forbids them, if none is legal.
    rule: Option<&'static str>,
    /// Ways to recompute with which no layout of the group can matter, once they are sought.
    hopeless: Option<Hopeless>,
}

impl States {
    /// The least time of a step under any sharding of an order that could be used; none if none could.
    fn least_step(&self, order: usize, passes: Picos, ranks: &Ranks) -> Option<Picos> {
        let shardings = self.all.len() / self.some.len();
        let all = self.all[order * shardings..][..shardings].iter();
        let usable = all.filter(|one| one.rule.is_none() && one.room.suffices());
        usable.map(|one| ranks.least_step(passes, one)).min()
    }

    /// Why no layout with them is looked at, if none is.
    fn refusal(&self, request: &Request) -> Option<String> {
        let full = !request.exhaustive && self.fitting.iter().all(|&fitting| fitting == 0);
        self.rule.map(|rule| format!("rule: {rule}")).or_else(|| full.then(|| "memory".to_owned()))
    }
}

/// What a sharding costs beside layers.
#[derive(Clone)]
pub(super) struct StateCost {
    pub sharding: Sharding,
    pub floor: Floor,
    /// What all ranks of the pipeline together reduce and gather at the ends of a step.
    pub traffic: OncePerStep,
    pub room: Room,
    /// The rule that forbids it.
    pub rule: Option<&'static str>,
}

impl StateCost {
    /// No more than that of some shardings.
    fn least(sharding: Sharding, floor: Floor) -> Self {
        let room = Room { fits: true, held: true };
        Self { sharding, floor, traffic: OncePerStep::default(), room, rule: None }
    }
}

/// Where states have room.
#[derive(Debug, Clone, Copy)]
pub(super) struct Room {
    /// Whether they alone fit into an average rank.
    pub fits: bool,
    /// Whether the host holds what lives there.
    pub held: bool,
}

impl Room {
    pub fn suffices(self) -> bool {
        self.fits && self.held
    }
}

/// A priced cell.
pub(super) struct Priced {
    pub cell: CellCosts,
    /// One micro-batch through all layers and ends, forward and backward.
    pub passes: [Picos; 2],
    /// Both.
    sum: Picos,
    /// The part of it that computes weight gradients, which no other pass need wait for.
    delayed: Picos,
    /// All parameters, as if on one pipeline rank.
    pub parameters: LocalParameters,
    /// Largest share of a forward pass in the time of a layer or an end.
    forward_share: f64,
    /// Time of the fastest layer.
    least_layer: Picos,
}

/// What came of one group.
#[derive(Default)]
pub(super) struct Opened {
    pub settled: Vec<Settled>,
    pub counters: Counters,
}

/// An order of passes that a group's layouts may have.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ordered {
    pub order: Order,
    /// The rule that forbids it without, and with, overlap of the experts' exchange.
    pub rules: [Option<&'static str>; 2],
}

/// Which cells of a group are looked at.
#[derive(Clone, Copy)]
pub(super) enum Seen<'a> {
    /// All.
    Every,
    /// About so many, from the first to the last by their bounds.
    Some(usize),
    /// Those whose flags differ least from the flags of one of these, whatever dispatches tokens.
    Like(&'a [CellKey]),
}

/// A group as it is opened.
pub(super) struct Opening<'a> {
    pub group: &'a Group,
    class: Class,
    pub request: &'a Request,
    /// What had to be beaten before.
    frozen: Threshold,
    orders: Vec<Ordered>,
    shardings: &'a [Shards],
    /// Which sharding is settled after which: what lacks no memory is fastest and cheapest to settle. Those that differ
    /// in nothing but bytes held come one after the other.
    leanest_first: Vec<usize>,
    /// Whether the group is only seen at a glance: a good layout is enough.
    glances: bool,
}

/// By what share a layout of a group that is seen at a glance must be faster than what was found before to be looked at, and
/// by what share faster than others of the group. Groups that turn out best are opened.
const WORTH_A_GLANCE: f64 = 0.01;
const GOOD_ENOUGH: f64 = 0.04;

impl Known {
    /// How a bound is called that this is known for.
    fn bound(self) -> &'static str {
        match self {
            Self::Relaxed => "bound: memory and stages",
            Self::Splits | Self::Simulated => "bound: splits",
        }
    }
}

/// In how many flags two cells differ, whatever dispatches their tokens: that goes with the degrees.
fn flags_apart(a: &CellKey, b: &CellKey) -> usize {
    [
        a.sequence_parallel != b.sequence_parallel,
        a.context_comm != b.context_comm,
        a.tensor_overlap != b.tensor_overlap,
        a.expert_overlap != b.expert_overlap,
        a.cuda_graphs != b.cuda_graphs,
        a.offload != b.offload,
    ]
    .iter()
    .filter(|differs| **differs)
    .count()
}

/// The first of a queue is the line with the least time.
impl Ord for Line {
    fn cmp(&self, other: &Self) -> Ordering {
        (other.least, other.at).cmp(&(self.least, self.at))
    }
}

impl PartialOrd for Line {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Line {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Line {}

impl Line {
    /// Takes note of what its passes take at least.
    fn raise(&mut self, passes: Picos, states: &States) {
        self.passes = self.passes.max(passes);
        let least = states.least_step(self.at.1, passes, &self.ranks).unwrap_or_default();
        self.least = self.least.max(least);
    }

    /// The least makespan of its splits that are not relieved, if it is `highest` or less: ranks wait for one another,
    /// which no bound on one of them sees. `some` holds no more than any of its shardings.
    fn simulate(&mut self, some: &Sharding, highest: Picos, scratch: &mut Scratch) -> Option<Picos> {
        let Self { balancing, cell, layout, hop, splits, .. } = self;
        let simulator = &mut scratch.simulator;
        let mut makespan = |forward: &[Picos], backward: &[Picos], most: Picos| {
            let load = Load { forward, backward, weight: backward, hop: hop.latency };
            simulator.run_within(shape(layout), load, most)
        };
        balancing.restate(layout, TablesOf { cell: &cell.cell, sharding: some, hop: *hop });
        let splits = splits.as_mut()?;
        scratch.balancer.simulated_splits(&balancing.problem, splits, highest, &mut makespan)
    }
}

impl Opening<'_> {
    /// What has to be beaten where these are the best of the group; at a glance, by something.
    pub fn limit(&self, own: &Best) -> Threshold {
        let own = own.threshold(self.class);
        match (self.request.exhaustive, self.glances) {
            (true, _) => Threshold::default(),
            (_, false) => self.frozen.min(own),
            (_, true) => self.frozen.lowered(WORTH_A_GLANCE).min(own.lowered(GOOD_ENOUGH)),
        }
    }
}

impl Search<'_> {
    /// The orders of passes of a group.
    pub(super) fn orders(&self, group: &Group) -> Vec<Ordered> {
        let mut orders: Vec<Ordered> = Vec::new();
        self.space.orders(group, |order| {
            let rule = |overlap| self.space.order_rule(group, order, overlap);
            orders.push(Ordered { order, rules: [rule(false), rule(true)] });
        });
        orders
    }

    /// Settles the layouts of a group's cells that could matter; nothing if it is told to stop before the end.
    pub(super) fn open(
        &self,
        &Bounded { bound, ref group, .. }: &Bounded,
        request: &Request,
        frozen: Threshold,
        seen: Seen<'_>,
        observer: &dyn Observer,
        scratch: &mut Scratch,
    ) -> Option<Opened> {
        let mut opened = Opened::default();
        if frozen.excludes(bound) {
            opened.counters.drop("bound: degrees", self.space.count(group));
            return Some(opened);
        }
        let shardings = self.space.shardings(group);
        let mut leanest_first: Vec<usize> = (0..shardings.len()).collect();
        leanest_first.sort_by_key(|&at| {
            let (zero_stage, shard_group, overlap) = shardings[at];
            (zero_stage >= 2, Reverse(zero_stage), Reverse(shard_group), !overlap)
        });
        let opening = Opening {
            group,
            class: class_of_group(group),
            request,
            frozen,
            orders: self.orders(group),
            shardings,
            leanest_first,
            glances: !matches!(seen, Seen::Every),
        };
        let mut cells = std::mem::take(&mut scratch.cells);
        cells.clear();
        self.space.cells(group, |key| cells.push((Picos::ZERO, key)));
        // Cells are not priced where rules or memory leave no states.
        let offloads = self.offloads().iter();
        let mut known: Vec<States> = offloads.map(|&one| self.states(&opening, one, scratch)).collect();
        let layouts = opening.orders.len() as u64 * shardings.len() as u64;
        known.retain(|states| {
            let Some(reason) = states.refusal(request) else { return true };
            let all = cells.len();
            cells.retain(|(_, key)| key.offload != states.offload);
            opened.counters.drop(&reason, (all - cells.len()) as u64 * layouts);
            false
        });
        // Where one layout of a class is wanted, the first of two that are alike is it.
        if !request.exhaustive && request.per_class == 1 {
            let all = cells.len();
            cells.retain(|(_, key)| self.space.twin(group, key).is_none());
            opened.counters.drop("bound: twin", (all - cells.len()) as u64 * layouts);
        }
        if let Seen::Like(flags) = seen {
            let apart = |key: &CellKey| flags.iter().map(|other| flags_apart(key, other)).min();
            let least = cells.iter().map(|cell| apart(&cell.1)).min();
            cells.retain(|cell| Some(apart(&cell.1)) == least);
        }
        for (total, key) in &mut cells {
            *total = self.cost.cell_total(key, &mut scratch.parts);
        }
        cells.sort_unstable();
        if let Seen::Some(most) = seen {
            let step = cells.len().div_ceil(most).max(1);
            cells = cells.into_iter().step_by(step).collect();
        }
        let ended = self.walk(&opening, (&cells, &mut known), observer, scratch, &mut opened);
        scratch.cells = cells;
        ended.then_some(opened)
    }

    /// Walks the cells of a group, best first: what could be fastest is looked at more closely, cells and lines
    /// alike, until it is settled. Nothing is looked at that could not be among the group's best. False if it is
    /// told to stop before the end.
    fn walk(
        &self,
        opening: &Opening<'_>,
        (cells, known): (&[(Picos, CellKey)], &mut [States]),
        observer: &dyn Observer,
        scratch: &mut Scratch,
        opened: &mut Opened,
    ) -> bool {
        let &Opening { group, request, frozen, ref orders, shardings, .. } = opening;
        let count = shardings.len() as u64;
        let bound_of =
            |cell: &(Picos, CellKey)| self.floor(Picos::ZERO).step(self.least_passes(cell.0, group));
        let mut cells = cells.iter().enumerate().peekable();
        let mut lines: BinaryHeap<Line> = BinaryHeap::new();
        let mut own = Best::new(&Request { top: usize::MAX, ..request.clone() });
        loop {
            if observer.stop() {
                return false;
            }
            let limit = opening.limit(&own);
            let least = lines.peek().map(|line| line.least);
            let next = cells.next_if(|(_, cell)| least.is_none_or(|least| bound_of(cell) <= least));
            if let Some((at, cell)) = next {
                let key = &cell.1;
                let layouts = orders.len() as u64 * count;
                if limit.excludes(bound_of(cell)) {
                    opened.counters.drop("bound: flags", layouts);
                    continue;
                }
                if let Some(rule) = self.space.cell_rule(group, key) {
                    opened.counters.drop(&format!("rule: {rule}"), layouts);
                    continue;
                }
                let Some(states) = known.iter().position(|states| states.offload == key.offload) else {
                    continue;
                };
                if known[states].hopeless.is_none() {
                    known[states].hopeless = Some(self.hopeless(group, key.offload, frozen, scratch));
                }
                let cell = Rc::new(self.price(key, scratch));
                let given = (key, &cell, at, states);
                lines.extend(self.lines(
                    opening,
                    limit,
                    given,
                    &known[states],
                    scratch,
                    &mut opened.counters,
                ));
                continue;
            }
            let Some(mut line) = lines.pop() else { return true };
            if limit.excludes(line.least) {
                opened.counters.drop(line.known.bound(), count);
                continue;
            }
            let states = &known[line.states];
            let more = if request.exhaustive {
                Ok(false)
            } else {
                self.know_more(&mut line, states, (request, limit), scratch)
            };
            match more {
                Ok(true) => lines.push(line),
                Ok(false) => {
                    self.settle_line(opening, &mut line, states, &mut own, scratch, opened);
                }
                Err(reason) => opened.counters.drop(reason, count),
            }
        }
    }

    /// The lines of a cell that could matter.
    fn lines(
        &self,
        opening: &Opening<'_>,
        limit: Threshold,
        (key, cell, at, of_cell): (&CellKey, &Rc<Priced>, usize, usize),
        states: &States,
        scratch: &mut Scratch,
        counters: &mut Counters,
    ) -> Vec<Line> {
        let &Opening { group, request, ref orders, shardings, .. } = opening;
        let count = shardings.len() as u64;
        let capabilities = self.space.capabilities();
        // The rules on recomputation look at the flags of the cell, and at nothing else of a layout.
        let mut family: Option<RecomputeFamily> = None;
        // With one chunk per rank completions are chosen by the chain bound, which may be below what makes a
        // way hopeless.
        let (mut single, mut several): (Option<Ways>, Option<Ways>) = (None, None);
        // Whether any order is of interest with multi-token prediction beside the head, and apart from it.
        let mut of_interest: [Option<Result<(), &str>>; 2] = [None; 2];
        let mut lines = Vec::new();
        for (at_order, &Ordered { order, rules }) in orders.iter().enumerate() {
            let some = &states.some[at_order];
            if !request.exhaustive && states.fitting[at_order] == 0 {
                counters.drop("memory", count);
                continue;
            }
            let layout = layout_of(group, key, order, UNSHARDED);
            let virtual_stages = order.virtual_stages;
            let rule = rules[usize::from(key.expert_overlap)];
            if let Some(rule) = rule.or_else(|| self.space.broken(&layout, Reach::Exchange)) {
                counters.drop(&format!("rule: {rule}"), count);
                continue;
            }
            let hop = self.cost.hop(&layout);
            let passes = self.least_makespan(&layout, cell, hop);
            let least = some.floor.step(passes);
            if limit.excludes(least) {
                counters.drop("bound: flags", count);
                continue;
            }
            let family = family.get_or_insert_with(|| {
                let legal = self.legal_modes(&layout, &cell.cell, scratch);
                RecomputeFamily::new(&legal, &cell.cell)
            });
            if let Some(any) = states.any.as_ref().filter(|_| !request.exhaustive) {
                let ways = single.get_or_insert_with(|| Ways::new(family, &cell.cell));
                let standalone = order.mtp_standalone;
                let of_interest = of_interest[usize::from(standalone)].get_or_insert_with(|| {
                    let most = *any.floor.at_most(limit.time()).end();
                    let costs = (&any.sharding, &cell.cell, &*ways);
                    match self.least_of_cell(group, (key, standalone), costs, most, scratch) {
                        None => Err("memory"),
                        Some(least) if limit.excludes(any.floor.step(least)) => Err(Known::Relaxed.bound()),
                        Some(_) => Ok(()),
                    }
                });
                if let Err(reason) = *of_interest {
                    counters.drop(reason, count);
                    continue;
                }
            }
            let ways = if virtual_stages == 1 {
                single.get_or_insert_with(|| Ways::new(family, &cell.cell))
            } else {
                several.get_or_insert_with(|| {
                    let mut hopeful = family.clone();
                    if let Some(hopeless) = &states.hopeless {
                        hopeful = hopeful.without(hopeless);
                    }
                    Ways::new(&hopeful, &cell.cell)
                })
            };
            let ranks = Ranks::of(&layout, self.layers, cell, ways);
            let least = states.least_step(at_order, passes, &ranks).unwrap_or(least);
            if limit.excludes(least) {
                counters.drop("bound: traffic", count);
                continue;
            }
            let tables = TablesOf { cell: &cell.cell, sharding: &some.sharding, hop };
            let pipeline = scratch.pipelines.of(shape(&layout));
            let balancing =
                Balancing::of(pipeline, self.cost, self.layers, &layout, tables, ways, capabilities);
            if balancing.problem.check().is_err() {
                counters.drop("bound: recomputation", count);
                continue;
            }
            let mut line = Line {
                least,
                known: Known::Relaxed,
                states: of_cell,
                passes,
                ranks,
                at: (at, at_order),
                cell: cell.clone(),
                layout,
                hop,
                balancing,
                splits: None,
            };
            if !request.exhaustive {
                let highest = *some.floor.at_most(limit.time()).end();
                let relaxed = scratch.relaxation.lower_bound(&line.balancing.problem, Picos::ZERO..=highest);
                let Some(relaxed) = relaxed else {
                    counters.drop("memory", count);
                    continue;
                };
                line.raise(relaxed, states);
                if virtual_stages > 1 && !limit.excludes(line.least) {
                    let chained = scratch.balancer.lower_bound_of_passes(&line.balancing.problem);
                    line.raise(chained, states);
                }
                if limit.excludes(line.least) {
                    counters.drop(Known::Relaxed.bound(), count);
                    continue;
                }
            }
            lines.push(line);
        }
        lines
    }

    /// Raises the bound of a line by the next that is known of its completions, or says what excludes it; false if
    /// nothing more is known before its layouts are settled.
    fn know_more(
        &self,
        line: &mut Line,
        states: &States,
        (request, limit): (&Request, Threshold),
        scratch: &mut Scratch,
    ) -> Result<bool, &'static str> {
        let order = line.at.1;
        // They hold no more, and no less, than any of its shardings.
        let (some, most) = (&states.some[order], states.most[order].as_ref());
        let Some(most) = most.filter(|_| line.layout.virtual_stages > 1) else { return Ok(false) };
        let highest = *some.floor.at_most(limit.time()).end();
        // Where backward passes are split, their parts are not known here.
        let simulates = line.layout.schedule == Schedule::Interleaved;
        let (known, bound) = match line.known {
            Known::Relaxed => {
                let spread = self.spread(request);
                let Line { balancing, cell, layout, hop, ranks, .. } = &mut *line;
                let (mut found, bound) = scratch.balancer.bounded_splits(&balancing.problem, spread, highest);
                // None is relieved if all are even, or if one fits with the fullest states.
                balancing.restate(layout, TablesOf { cell: &cell.cell, sharding: most, hop: *hop });
                let bounded =
                    spread == Spread::Even || scratch.balancer.any_fits(&balancing.problem, &mut found);
                // Where weight gradients come last, others may end after the first.
                if bounded && bound.is_some() && !layout.schedule.splits_backward() {
                    ranks.know(&found, &balancing.problem, cell);
                }
                line.splits = Some(found);
                if !bounded {
                    // This says nothing of those that are relieved, but of all others.
                    if simulates && bound.is_some() {
                        line.simulate(&some.sharding, highest, scratch);
                    }
                    return Ok(false);
                }
                (Known::Splits, bound)
            }
            Known::Splits if simulates => (Known::Simulated, line.simulate(&some.sharding, highest, scratch)),
            _ => return Ok(false),
        };
        line.known = known;
        // Where nothing has to be beaten, only memory is left.
        let reason = if limit.time().is_none() { "memory" } else { known.bound() };
        let bound = bound.ok_or(reason)?;
        line.raise(bound, states);
        if limit.excludes(line.least) { Err(reason) } else { Ok(true) }
    }

    /// Prices all shardings of a group's orders.
    fn states(
        &self,
        &Opening { group, ref orders, shardings, .. }: &Opening<'_>,
        offload: Offload,
        scratch: &mut Scratch,
    ) -> States {
        let plain = CellKey { offload, ..self.space.plain_cell(group) };
        let (all, some, most, fitting) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let rule_of = |&sharding: &Shards| self.space.sharding_rule(group, offload, sharding);
        let rules: Vec<Option<&'static str>> = shardings.iter().map(rule_of).collect();
        let rule = rules.first().copied().flatten().filter(|_| rules.iter().all(Option::is_some));
        let mut states = States { offload, all, some, any: None, most, fitting, rule, hopeless: None };
        if rule.is_some() {
            return states;
        }
        let (parameters, p) = (self.parameters(group, scratch), group.pipeline_parallel);
        for (at_order, &Ordered { order, .. }) in orders.iter().enumerate() {
            let before = |same: fn(&Order, &Order) -> bool| {
                orders[..at_order].iter().position(|other| same(&other.order, &order))
            };
            // Where further tokens are predicted is all the same to states.
            let twin = before(|a, b| (a.schedule, a.virtual_stages) == (b.schedule, b.virtual_stages));
            if let Some(twin) = twin {
                states.all.extend_from_within(twin * shardings.len()..(twin + 1) * shardings.len());
                states.some.extend_from_within(twin..=twin);
                states.most.extend_from_within(twin..=twin);
                states.fitting.extend_from_within(twin..=twin);
                continue;
            }
            let alike = before(|a, b| a.schedule == b.schedule);
            let from = states.all.len();
            let mut fitting = 0;
            for (at, (&shards, &rule)) in shardings.iter().zip(&rules).enumerate() {
                let layout = layout_of(group, &plain, order, shards);
                let classes = match alike {
                    Some(alike) => states.all[alike * shardings.len() + at].sharding.classes,
                    None => self.cost.state_classes(&layout),
                };
                let sharding = self.cost.sharding_of(&layout, classes);
                let floor = self.once(&sharding, &parameters, u64::from(p));
                let traffic = once_per_step(&sharding, &parameters);
                let room = self.room(&sharding, &parameters, p);
                fitting += u32::from(room.suffices() && rule.is_none());
                states.all.push(StateCost { sharding, floor, traffic, room, rule });
            }
            let legal = || states.all[from..].iter().filter(|one| one.rule.is_none());
            let once = legal().map(|one| one.floor.once).min().unwrap_or_default();
            let jitter = legal().next().map_or(1.0, |one| one.floor.jitter);
            let sharding = Sharding::least(legal().map(|one| &one.sharding));
            let some = StateCost::least(sharding, Floor { once, jitter });
            let shardings = legal().filter(|one| one.room.suffices()).map(|one| &one.sharding);
            let most = Sharding::most(shardings);
            states.some.push(some);
            states.most.push(most);
            states.fitting.push(fitting);
        }
        let once = states.some.iter().map(|some| some.floor.once).min();
        states.any = states.some.first().zip(once).map(|(first, once)| {
            let sharding = Sharding::least(states.some.iter().map(|some| &some.sharding));
            StateCost::least(sharding, Floor { once, ..first.floor })
        });
        states
    }

    /// All parameters of a group, as if on one pipeline rank: neither flags nor micro-batches change them.
    pub(super) fn parameters(&self, group: &Group, scratch: &mut Scratch) -> LocalParameters {
        let plain = CellKey { context_parallel: 1, micro_batch_size: 1, ..self.space.plain_cell(group) };
        let key = (plain.tensor_parallel, plain.expert_parallel, plain.expert_tensor_parallel);
        let mut kept = std::mem::take(&mut scratch.parameters);
        let parameters = *kept.get(key, || self.price(&plain, scratch).parameters);
        scratch.parameters = kept;
        parameters
    }

    /// What room a sharding leaves for anything else.
    pub(super) fn room(&self, sharding: &Sharding, parameters: &LocalParameters, ranks: u32) -> Room {
        let states: u64 =
            state_bytes(sharding, parameters).iter().map(|bytes| bytes.0.saturating_sub(1)).sum();
        Room {
            fits: states / u64::from(ranks) <= self.cost.memory_limit().0,
            held: self.cost.host_holds(sharding, parameters, ranks),
        }
    }

    /// Settles the layouts of a line that could matter.
    fn settle_line(
        &self,
        opening: &Opening<'_>,
        line: &mut Line,
        states: &States,
        own: &mut Best,
        scratch: &mut Scratch,
        opened: &mut Opened,
    ) {
        let shardings = opening.shardings;
        scratch.known.clear();
        (scratch.free, scratch.splits, scratch.recent) = (None, line.splits.take(), None);
        let from = line.at.1 * shardings.len();
        for &at in &opening.leanest_first {
            let (one, (zero_stage, shard_group, data_overlap)) = (&states.all[from + at], shardings[at]);
            let layout = Layout { zero_stage, shard_group, data_overlap, ..line.layout };
            let one = Sharded { layout, states: one, limit: opening.limit(own) };
            if let Some(settled) = self.settle(opening.request, line, &one, scratch, &mut opened.counters) {
                own.offer(settled.clone());
                opened.settled.push(settled);
            }
        }
    }

    pub(super) fn price(&self, key: &CellKey, scratch: &mut Scratch) -> Priced {
        let cell = self.cost.cell_with(key, &mut scratch.parts);
        let (mut passes, mut delayed) = ([Picos::ZERO; 2], Picos::ZERO);
        let parameters = cell.parameters(&self.layers.runs);
        let mut longest_forward: f64 = 0.0;
        let mut share = |forward: Picos, backward: Picos| {
            if forward.0 + backward.0 > 0 {
                let all = (forward + backward).0 as f64;
                longest_forward = longest_forward.max(forward.0 as f64 / all);
            }
        };
        for run in &*self.layers.runs {
            let layer = &cell.layers[run.kind as usize];
            let (f, b) = (layer.forward.total(), layer.backward.total());
            passes = [passes[0] + f * u64::from(run.count), passes[1] + b * u64::from(run.count)];
            delayed += layer.weight_gradient * u64::from(run.count);
            share(f, b);
        }
        for end in [&cell.embedding, &cell.head] {
            let (f, b) = (end.forward.total(), end.backward.total());
            passes = [passes[0] + f, passes[1] + b];
            delayed += end.weight_gradient;
            share(f, b);
        }
        for end in cell.standalone.iter().flatten() {
            share(end.forward.total(), end.backward.total());
        }
        let least_layer = self
            .layers
            .runs
            .iter()
            .map(|run| &cell.layers[run.kind as usize])
            .map(|layer| layer.forward.total() + layer.backward.total())
            .min()
            .unwrap_or_default();
        let sum = passes[0] + passes[1];
        Priced { cell, passes, sum, delayed, parameters, forward_share: longest_forward, least_layer }
    }

    /// A time that the passes of a layout take at least, wherever its layers are and whatever they
    /// recompute.
    pub(super) fn least_makespan(&self, layout: &Layout, priced: &Priced, hop: Hop) -> Picos {
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
                let capabilities = self.space.capabilities();
                let fewest = least_layers(layout, self.layers.count(), capabilities);
                let least = priced.least_layer.0 * u64::from(fewest);
                // Before rank `i` there are `i` chunks; the first of them may be the embedding alone.
                let before = p * (p - 1) / 2 - if capabilities.empty_stages { p - 1 } else { 0 };
                all.max(average + Picos(least * before / p))
            }
            Schedule::ZeroBubbleH1 | Schedule::ZeroBubbleH2 | Schedule::ZeroBubbleV | Schedule::DualPipe => {
                // One micro-batch passes all ranks there and back.
                let last = layout.chunk_count() - 1;
                let apart = |k: &u32| layout.rank_of_chunk(*k) != layout.rank_of_chunk(k + 1);
                let hops = (0..last).filter(apart).count() as u64;
                average.max(priced.sum.saturating_sub(priced.delayed) + hop.latency * (2 * hops))
            }
        }
    }
}
