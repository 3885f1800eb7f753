//! Every plan with equal stages and one way to recompute for all, evaluated one by one: nothing is bounded, skipped or
//! simulated. What a search drops in bulk is looked at here, so that it can be said what each choice costs.
//!
//! A plan's memory is that of [`crate::cost::step::predict`], to the byte; its time is made of the same items, with
//! the closed form of its schedule in place of the event simulation. For one chunk per rank the two agree; for
//! several it is within a percent or two at best and 12 % at worst (`tests/it/survey.rs`), where chunks differ most.

mod outline;
mod prices;
mod tally;

use std::hash::{Hash, Hasher};
use std::sync::{Arc, Mutex, PoisonError};

use rayon::prelude::*;

use crate::candidates::{Group, Order, Shards, Space, layout_of};
use crate::cost::model::{CostModel, Parts};
use crate::cost::schedule::Shape;
use crate::cost::step::{RankMemory, StepItem, StepTimes};
use crate::cost::{CellCosts, CellKey, Hop, PerParameter, Sharding};
use crate::frameworks::{PlanReach, plan_rules_hold};
use crate::kept::Kept;
use crate::layers::Layers;
use crate::plan::{Chunk, Layout, Plan, Recompute, Schedule};
use crate::search::Observer;
use crate::search::balance::{LegalModes, comes_in_groups};
use crate::units::{Bytes, Picos};

use outline::{Outline, OutlineKey, has_closed_form, shape_of};
use prices::{Bases, PricedMode, RankMode, RankStates, bases, contents, states};
pub use tally::{Axis, Best, RECOMPUTE_KINDS, Share, Survey, Tally};

/// A plan, evaluated.
#[derive(Debug, Clone, Copy, Default)]
pub struct Evaluated {
    /// Time of a step, by item.
    pub times: StepTimes,
    /// Memory of the fullest rank, by item.
    pub memory: RankMemory,
}

/// What is evaluated together: plans that differ in recomputation alone.
pub struct Alike<'a> {
    /// Everything else.
    pub layout: Layout,
    /// Ways to recompute.
    pub modes: &'a [Recompute],
    /// What each comes to, in the same order.
    pub plans: &'a [Evaluated],
}

/// Tables of one thread.
#[derive(Debug, Default)]
pub struct Scratch {
    parts: Parts,
    legal: Kept<CellKey, Arc<LegalModes>, KEPT_LEGAL>,
    outlines: Kept<OutlineKey, Arc<Outline>, KEPT_OUTLINES>,
    modes: Vec<RankMode>,
    /// Extra time of chunks, by way to recompute and kind.
    extras: Vec<Picos>,
    states: Vec<RankStates>,
    plans: Vec<Evaluated>,
}

const KEPT_LEGAL: usize = 1024;
const KEPT_OUTLINES: usize = 256;
/// Entries of the tables that cells share.
const MOST_PARTS: usize = 4096;
/// Groups between two words on how far it is.
const WAVE: usize = 128;

/// The space of a job with its prices.
pub struct Surveyor<'a> {
    /// Prices.
    pub cost: &'a CostModel<'a>,
    /// Layers.
    pub layers: &'a Layers,
    /// Layouts.
    pub space: &'a Space<'a>,
}

impl Surveyor<'_> {
    /// Evaluates every plan. Groups come in an order that has nothing to do with what they are: a survey that is
    /// stopped early has seen a sample.
    #[must_use]
    pub fn run(&self, observer: &dyn Observer) -> Survey {
        let mut groups = self.space.groups();
        groups.sort_by_cached_key(scattered);
        let layouts: u64 = groups.iter().map(|group| self.space.count(group)).sum();
        let scratches: Mutex<Vec<Scratch>> = Mutex::new(Vec::new());
        let mut survey = Survey { groups: groups.len(), ..Survey::default() };
        let mut seen = 0;
        for wave in groups.chunks(WAVE) {
            if observer.stop() {
                break;
            }
            // A wave may take seconds.
            let tallies = wave.par_iter().filter(|_| !observer.stop()).map(|group| {
                let taken = scratches.lock().unwrap_or_else(PoisonError::into_inner).pop();
                let mut scratch = taken.unwrap_or_default();
                let mut tally = Tally::default();
                self.group(group, &mut scratch, &mut tally);
                scratch.parts.forget_beyond(MOST_PARTS);
                scratches.lock().unwrap_or_else(PoisonError::into_inner).push(scratch);
                (tally, 1, self.space.count(group))
            });
            let none = || (Tally::default(), 0, 0);
            let (tally, groups, count) = tallies.reduce(none, |a, b| (a.0.with(b.0), a.1 + b.1, a.2 + b.2));
            survey.tally = std::mem::take(&mut survey.tally).with(tally);
            survey.seen += groups;
            seen += count;
            let best = survey.tally.all.best.map(|best| best.step);
            observer.progress(seen, layouts, best, None);
        }
        survey
    }

    /// Every plan of a group, into a tally.
    fn group(&self, group: &Group, scratch: &mut Scratch, tally: &mut Tally) {
        let limit = self.cost.memory_limit();
        let left_out = self.each(group, scratch, |alike| tally.add(alike, limit));
        tally.refused += left_out.refused;
        tally.without_closed_form += left_out.without_closed_form;
    }

    /// Evaluates the plans of a group, and hands on together those that differ in recomputation alone.
    pub fn each(&self, group: &Group, scratch: &mut Scratch, mut each: impl FnMut(&Alike<'_>)) -> LeftOut {
        let mut left_out = LeftOut::default();
        let shardings = self.space.shardings(group);
        let mut orders: Vec<Equal> = Vec::new();
        self.space.orders(group, |order| {
            // Behind standalone multi-token prediction the last stage has no layers.
            if order.mtp_standalone || !has_closed_form(order.schedule) {
                left_out.without_closed_form += shardings.len() as u64;
                return;
            }
            let shape = shape_of(group, order);
            let outline =
                scratch.outlines.get(Outline::key(shape), || Arc::new(Outline::new(self.layers, shape)));
            orders.push(Equal { order, shape, outline: outline.clone(), shardings: Vec::new() });
        });
        let mut cells = Vec::new();
        self.space.cells(group, |cell| cells.push(cell));
        left_out.without_closed_form *= cells.len() as u64;
        for key in &cells {
            if self.space.cell_rule(group, key).is_some() {
                left_out.refused += (orders.len() * shardings.len()) as u64;
                continue;
            }
            left_out.refused += self.cell(group, key, (&mut orders, shardings), scratch, &mut each);
        }
        left_out
    }

    /// Evaluates the plans of a cell; how many of its layouts the framework refuses.
    fn cell(
        &self,
        group: &Group,
        key: &CellKey,
        (orders, shardings): (&mut [Equal], &[Shards]),
        scratch: &mut Scratch,
        each: &mut impl FnMut(&Alike<'_>),
    ) -> u64 {
        let cell = self.cost.cell_with(key, &mut scratch.parts);
        let (target, context) = (self.space.target(), self.space.context());
        let mut refused = 0;
        for order in orders {
            let layout = |shards: Shards| layout_of(group, key, order.order, shards);
            let Some(&first) = shardings.first() else { continue };
            let modes = self.modes(&layout(first), &cell, &order.outline, scratch);
            let priced = modes.first().map(|mode| {
                Plan::new(
                    layout(first),
                    even_chunks(self.layers.count(), order.shape.ranks * order.shape.virtual_stages, *mode),
                    context.gpus,
                    context.global_batch_size,
                    context.layers,
                )
            });
            let placed = priced.is_some_and(|plan| {
                plan.is_ok_and(|plan| plan_rules_hold(target, context, &plan, PlanReach::Placement))
            });
            if !placed {
                refused += shardings.len() as u64;
                continue;
            }
            if order.shardings.is_empty() {
                order.shardings =
                    shardings.iter().map(|&shards| self.cost.sharding(&layout(shards))).collect();
            }
            let hop = self.cost.hop(&layout(first));
            scratch.modes.clear();
            scratch.extras.clear();
            for &mode in &modes {
                PricedMode::new(&cell, mode).of_ranks(
                    &order.outline,
                    &self.layers.order,
                    &cell,
                    (&mut scratch.modes, &mut scratch.extras),
                );
            }
            let contents = contents(&order.outline, &cell);
            let mut plain: Option<Bases> = None;
            for (&shards, sharding) in shardings.iter().zip(&order.shardings) {
                let layout = layout(shards);
                if self.space.rule_against(&layout).is_some() {
                    refused += 1;
                    continue;
                }
                let busy = sharding.classes.iter().any(PerParameter::in_passes);
                let own;
                let base = if busy {
                    own = bases(&order.outline, &cell, sharding, hop);
                    &own
                } else {
                    plain.get_or_insert_with(|| bases(&order.outline, &cell, sharding, hop))
                };
                states(&contents, &base.ranks, &cell, (sharding, hop), &mut scratch.states);
                let step = Step {
                    shape: order.shape,
                    outline: &order.outline,
                    sharding,
                    hop,
                    base,
                    ranks: &scratch.states,
                };
                let ways = scratch.modes.chunks_exact(order.outline.ranks.len());
                let ways = ways.zip(scratch.extras.chunks_exact(order.outline.chunks.len()));
                scratch.plans.resize(modes.len(), Evaluated::default());
                for (plan, (mode, extras)) in scratch.plans.iter_mut().zip(ways) {
                    step.evaluate(mode, extras, plan);
                }
                each(&Alike { layout, modes: &modes, plans: &scratch.plans });
            }
        }
        refused
    }

    /// Every way to recompute that the framework accepts beside a cell's flags.
    fn modes(
        &self,
        layout: &Layout,
        cell: &CellCosts,
        outline: &Outline,
        scratch: &mut Scratch,
    ) -> Vec<Recompute> {
        // The micro-batch does not matter.
        let key = CellKey { micro_batch_size: 1, ..CellKey::from(layout) };
        let (target, context) = (self.space.target(), self.space.context());
        let only = self.space.restrictions().recompute.as_deref();
        let legal = scratch.legal.get(key, || Arc::new(LegalModes::new(target, context, layout, cell, only)));
        let mut modes: Vec<Recompute> =
            legal.modes.iter().copied().filter(|&mode| comes_in_groups(cell, mode)).collect();
        if let Some((least, most)) = legal.block {
            // All layers of every chunk is full recomputation by another name.
            let most = if least == most { most } else { outline.longest.saturating_sub(1) };
            modes.extend((least..=most).map(Recompute::FullBlock));
        }
        modes
    }
}

/// Equal chunks, the first of which hold a layer more where they do not divide.
#[must_use]
pub fn even_chunks(layers: u32, chunks: u32, recompute: Recompute) -> Vec<Chunk> {
    let (each, more) = (layers / chunks, layers % chunks);
    (0..chunks).map(|k| Chunk { layers: each + u32::from(k < more), recompute }).collect()
}

/// A number that says nothing of a group.
fn scattered(group: &Group) -> u64 {
    let mut hash = std::hash::DefaultHasher::new();
    group.hash(&mut hash);
    hash.finish()
}

/// Layouts of which no plan is evaluated.
#[derive(Debug, Clone, Copy, Default)]
pub struct LeftOut {
    /// A rule of the framework forbids them.
    pub refused: u64,
    /// Their schedule has no closed form, or multi-token prediction stands alone, so that stages are not equal.
    pub without_closed_form: u64,
}

/// An order of a group with its equal stages.
struct Equal {
    order: Order,
    shape: Shape,
    outline: Arc<Outline>,
    /// By the group's shardings; they do not depend on a cell's flags.
    shardings: Vec<Sharding>,
}

/// What the plans of a layout share.
struct Step<'a> {
    shape: Shape,
    outline: &'a Outline,
    sharding: &'a Sharding,
    hop: Hop,
    base: &'a Bases,
    ranks: &'a [RankStates],
}

impl Step<'_> {
    /// The plan that recomputes in one way, priced by kind of ranks.
    fn evaluate(&self, mode: &[RankMode], extras: &[Picos], plan: &mut Evaluated) {
        let micro_batches = u64::from(self.shape.micro_batches);
        let (mut longest, mut busiest) = (Picos::ZERO, 0);
        let (mut sum, mut weight) = (0, 0);
        for (r, kind) in self.outline.ranks.iter().enumerate() {
            let time = self.base.ranks[r].total() + mode[r].total;
            if time > longest {
                (longest, busiest) = (time, r);
            }
            sum += time.0 * kind.ranks;
            weight += self.base.ranks[r].weight.0 * kind.ranks;
        }
        // Ranks with several chunks wait for one another with each.
        let row = |(kinds, times): &(Vec<usize>, u64)| -> Picos {
            kinds.iter().map(|&kind| self.base.chunks[kind] + extras[kind]).max().unwrap_or_default() * *times
        };
        let pace = if self.shape.virtual_stages > 1 {
            self.outline.rows.iter().map(row).sum::<Picos>().max(longest)
        } else {
            longest
        };
        let makespan = closed_form(self.shape, pace, (Picos(sum), Picos(weight)), self.hop);
        let times = &mut plan.times;
        *times = StepTimes::default();
        let (base, extra) = (&self.base.ranks[busiest], &mode[busiest].extra);
        for ((into, &item), &extra) in times.0.iter_mut().zip(&base.items.0).zip(&extra.0) {
            *into = (item + extra) * micro_batches;
        }
        times.0[StepItem::PipelineMessages as usize] = base.messages * micro_batches;
        times.0[StepItem::PipelineBubble as usize] = makespan - longest * micro_batches;
        let (mut gather_wait, mut flush, mut update) = (Picos::ZERO, makespan, Picos::ZERO);
        let (mut fullest, mut most, mut working) = (0, Bytes::ZERO, Bytes::ZERO);
        for (r, states) in self.ranks.iter().enumerate() {
            let (base, mode) = (&self.base.ranks[r], &mode[r]);
            gather_wait = gather_wait.max(states.gather.saturating_sub(base.start));
            let reduce = states.reduce.exposed(base.backward + mode.total);
            flush = flush.max(makespan.saturating_sub(base.early + mode.early) + reduce);
            update = update.max(states.update);
            let transient = mode.transient.max(states.staging.saturating_sub(mode.activations));
            let total = states.held + mode.activations + transient;
            if total > most {
                (fullest, most, working) = (r, total, transient);
            }
        }
        times.0[StepItem::WeightGather as usize] = gather_wait;
        times.0[StepItem::GradientReduction as usize] = flush - makespan;
        times.0[StepItem::OptimizerUpdate as usize] = update;
        times.0[StepItem::StepOverhead as usize] = self.sharding.step_overhead;
        let jitter = (self.sharding.jitter - 1.0).max(0.0);
        times.0[StepItem::Stragglers as usize] = times.total().scale(jitter);
        plan.memory = RankMemory {
            activations: mode[fullest].activations,
            transient: working,
            ..self.ranks[fullest].memory
        };
    }
}

/// Time of the passes of a step: the table of physics.md f, for ranks that differ a little. `longest` is the time in
/// which a micro-batch follows another; the sums are over ranks, of all passes and of weight gradients.
fn closed_form(shape: Shape, longest: Picos, (sum, weight): (Picos, Picos), hop: Hop) -> Picos {
    let (p, v) = (u64::from(shape.ranks), u64::from(shape.virtual_stages));
    let micro_batches = u64::from(shape.micro_batches);
    let hops = hop.latency * (2 * (p - 1));
    let fill = match shape.schedule {
        // The first micro-batch passes every rank.
        Schedule::GPipe | Schedule::OneFOneB => return longest * (micro_batches - 1) + sum + hops,
        Schedule::Interleaved | Schedule::ZeroBubbleV | Schedule::DualPipe => sum.0 / v,
        // Weight gradients fill what the last passes leave.
        Schedule::ZeroBubbleH1 => sum.0.saturating_sub(2 * weight.0),
        Schedule::ZeroBubbleH2 => sum.0.saturating_sub(3 * weight.0),
    };
    let fill = u128::from(fill) * u128::from(p - 1) / u128::from(p);
    longest * micro_batches + Picos(u64::try_from(fill).unwrap_or(u64::MAX)) + hops
}
