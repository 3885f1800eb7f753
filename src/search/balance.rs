//! One cell's tables, and the balancing problem of one layout in it.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

use crate::cost::model::CostModel;
use crate::cost::schedule::Shape;
use crate::cost::step::{
    ModeCost, ModeSums, OncePerStep, Tables, end_passes, further_cost, gathered_bytes, layer_passes,
    mode_cost, once_per_step, state_bytes,
};
use crate::cost::{CellCosts, Hop, LayerCost, LocalParameters, Sharding};
use crate::frameworks::{Capabilities, Context, PlanReach, Target, plan_rules_hold};
use crate::kept::Kept;
use crate::layers::Layers;
use crate::plan::{Chunk, Layout, Module, Modules, Plan, Recompute};
use crate::stages::{
    self, Block, Choice, Fixed, Freedom, Kind, LayerMode, Line, Mode, PerKind, Pipeline, Problem, Tail,
    Traffic, Way, Weights,
};
use crate::units::{Bytes, Picos};

/// A way to recompute that a layout offers, priced for every layer kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecomputeMode {
    /// Which.
    pub recompute: Recompute,
    /// By layer kind.
    pub costs: PerKind<LayerMode>,
    /// What it does to modules that predict further tokens.
    pub further: LayerMode,
}

impl From<ModeCost> for LayerMode {
    fn from(cost: ModeCost) -> Self {
        Self { extra: cost.extra.total(), kept: cost.kept, transient: cost.transient }
    }
}

impl RecomputeMode {
    fn new(cell: &CellCosts, recompute: Recompute) -> Self {
        let costs = cell.layers.iter().map(|layer| mode_cost(layer, recompute).into()).collect();
        Self { recompute, costs, further: further_cost(cell, recompute).into() }
    }

    fn mode(&self, offered: bool) -> Mode {
        Mode {
            extra: self.costs.iter().map(|c| c.extra).collect(),
            kept: self.costs.iter().map(|c| c.kept).collect(),
            transient: self.costs.iter().map(|c| c.transient).collect(),
            beside: self.further,
            group: match self.recompute {
                Recompute::FullUniform(n) => n,
                _ => 1,
            },
            offered,
        }
    }
}

/// What the layouts of one cell offer in recomputation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecomputeFamily {
    /// Modes of which none is at least as good as another in time, kept bytes and working set.
    pub modes: Vec<RecomputeMode>,
    /// Whether the first `n` layers of every chunk may be recomputed wholly, and which `n`.
    pub block: Option<(u32, u32)>,
    /// Modes that nothing of interest uses; whether layers would fit with them still says whether ranks are
    /// to be relieved.
    pub hopeless: Vec<RecomputeMode>,
    /// Whether [`RecomputeFamily::block`] is no better.
    pub hopeless_block: bool,
}

/// Ways to recompute with which no layout of a group can matter.
#[derive(Debug, Default)]
pub struct Hopeless {
    /// Which of the modes.
    pub modes: HashSet<Recompute>,
    /// Whether recomputation of the first layers of every chunk.
    pub block: bool,
}

/// The longest group of layers that full, uniform recomputation is tried with.
pub const LONGEST_GROUP: u32 = 8;

impl RecomputeFamily {
    /// The Pareto set of legal modes in one cell.
    #[must_use]
    pub fn new(legal: &LegalModes, cell: &CellCosts) -> Self {
        let priced = PricedModes::new(legal, cell);
        // Under full, uniform, n the kept bytes are per group: not comparable with the others.
        let alone = |mode: &usize| matches!(priced.list[*mode], Recompute::FullUniform(n) if n > 1);
        let (mut best, others): (Vec<usize>, Vec<usize>) = (0..priced.list.len()).partition(alone);
        let sum = |mode: usize| {
            let of = |cost: &LayerMode| [cost.extra.0, cost.kept.0, cost.transient.0].map(u128::from);
            priced.of(mode).iter().flat_map(of).sum::<u128>()
        };
        let mut others: Vec<(u128, usize)> = others.into_iter().map(|mode| (sum(mode), mode)).collect();
        // What is no better than another comes after it.
        others.sort_unstable();
        let grouped = best.len();
        for (_, mode) in others {
            let costs = priced.of(mode);
            let no_better = |&other: &usize| costs.iter().zip(priced.of(other)).all(|(a, b)| a.no_better(b));
            if !best[grouped..].iter().any(no_better) {
                best.push(mode);
            }
        }
        best.sort_unstable();
        let modes = best.into_iter().map(|mode| priced.mode(mode)).collect();
        Self { modes, block: legal.block, hopeless: Vec::new(), hopeless_block: false }
    }

    /// The same with some ways marked as hopeless.
    #[must_use]
    pub fn without(mut self, hopeless: &Hopeless) -> Self {
        self.hopeless = self.modes.extract_if(.., |mode| hopeless.modes.contains(&mode.recompute)).collect();
        self.hopeless_block = hopeless.block;
        self
    }

    /// Every legal mode in one cell, but those that [`RecomputeFamily::new`] cannot compare either.
    #[must_use]
    pub fn every(legal: &LegalModes, cell: &CellCosts) -> Self {
        let priced = PricedModes::new(legal, cell);
        let modes = (0..priced.list.len()).map(|mode| priced.mode(mode)).collect();
        Self { modes, block: legal.block, hopeless: Vec::new(), hopeless_block: false }
    }
}

/// The legal modes of a cell with what each does to every kind of layer.
struct PricedModes {
    list: Vec<Recompute>,
    /// Kinds of layers, and one more for modules that predict further tokens if there are some.
    kinds: usize,
    modules: bool,
    /// Mode by mode, one for every kind.
    costs: Vec<LayerMode>,
}

impl PricedModes {
    fn new(legal: &LegalModes, cell: &CellCosts) -> Self {
        let layers: Vec<ModeSums> = cell.layers.iter().map(ModeSums::new).collect();
        let in_groups = |mode: &Recompute| comes_in_groups(cell, *mode);
        let list: Vec<Recompute> = legal.modes.iter().copied().filter(in_groups).collect();
        let cost = |layer: &ModeSums, mode: Recompute| {
            let (extra, kept, transient) = layer.of(mode);
            LayerMode { extra, kept, transient }
        };
        let modules = cell.further.is_some();
        let of_mode = |&mode: &Recompute| {
            let further = modules.then(|| further_cost(cell, mode).into());
            layers.iter().map(move |layer| cost(layer, mode)).chain(further)
        };
        let costs = list.iter().flat_map(of_mode).collect();
        Self { list, kinds: layers.len() + usize::from(modules), modules, costs }
    }

    fn of(&self, mode: usize) -> &[LayerMode] {
        &self.costs[mode * self.kinds..][..self.kinds]
    }

    fn mode(&self, mode: usize) -> RecomputeMode {
        let mut costs = PerKind::from_slice(self.of(mode));
        let further = if self.modules { costs.pop() } else { None };
        RecomputeMode { recompute: self.list[mode], costs, further: further.unwrap_or_default() }
    }
}

/// The ways to recompute of a family in plain integers, shared by all problems of a cell.
#[derive(Debug, Clone)]
pub struct Ways {
    modes: stages::Modes,
    /// What each mode stands for.
    meanings: Arc<[Recompute]>,
    block: Option<Block>,
    hopeless: Range<u16>,
}

impl Ways {
    /// Those of a family in the cell that it was priced for.
    #[must_use]
    pub fn new(family: &RecomputeFamily, cell: &CellCosts) -> Self {
        let mut meanings: Vec<Recompute> = family.modes.iter().map(|mode| mode.recompute).collect();
        let mut modes: Vec<Mode> = family.modes.iter().map(|mode| mode.mode(true)).collect();
        let block = family.block.map(|counts| {
            let mut index = |recompute: Recompute| {
                if let Some(at) = meanings.iter().position(|m| *m == recompute) {
                    return at as u16;
                }
                meanings.push(recompute);
                // Only as a part of block recomputation.
                modes.push(RecomputeMode::new(cell, recompute).mode(false));
                (meanings.len() - 1) as u16
            };
            Block {
                full: index(Recompute::FullUniform(1)),
                rest: index(Recompute::None),
                counts,
                hopeless: family.hopeless_block,
            }
        });
        let hopeless = modes.len() as u16..(modes.len() + family.hopeless.len()) as u16;
        meanings.extend(family.hopeless.iter().map(|mode| mode.recompute));
        modes.extend(family.hopeless.iter().map(|mode| mode.mode(false)));
        Self { modes: modes.into(), meanings: meanings.into(), block, hopeless }
    }

    /// The most that recomputing a layer of a kind takes.
    #[must_use]
    pub fn most_extra(&self, kind: usize) -> Picos {
        self.modes.most_extra(kind)
    }

    /// The most that recomputing modules beside layers takes.
    #[must_use]
    pub fn most_extra_beside(&self) -> Picos {
        self.modes.most_beside().extra
    }
}

/// Whether groups of layers that are recomputed together all keep the same input, whatever the layers.
pub(crate) fn comes_in_groups(cell: &CellCosts, recompute: Recompute) -> bool {
    let grouped = matches!(recompute, Recompute::FullUniform(n) if n > 1);
    !grouped || cell.layers.windows(2).all(|pair| pair[0].full_kept == pair[1].full_kept)
}

/// The ways to recompute that a framework accepts beside a cell's flags.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LegalModes {
    /// For whole chunks.
    pub modes: Vec<Recompute>,
    /// As [`RecomputeFamily::block`].
    pub block: Option<(u32, u32)>,
}

impl LegalModes {
    /// Modes that the framework has, the rules allow for `layout`, and the user did not exclude; of the
    /// model's modules those that `cell` lists.
    #[must_use]
    pub fn new(
        target: Target,
        context: &Context,
        layout: &Layout,
        cell: &CellCosts,
        only: Option<&[Recompute]>,
    ) -> Self {
        let family = target.capabilities().recompute;
        let allowed = |mode: &Recompute| {
            let listed = only.is_none_or(|only| {
                only.iter().any(|o| {
                    o == mode || matches!((o, mode), (Recompute::FullBlock(_), Recompute::FullBlock(_)))
                })
            });
            listed && legal_for(target, context, layout, *mode)
        };
        let mut present = Modules::NONE;
        for module in cell.layers.iter().flat_map(|layer| &layer.modules) {
            if family.selective.has(module.module) {
                present = present.with(module.module);
            }
        }
        // Every subset of the modules that this model has.
        let list: Vec<Module> = present.iter().collect();
        let subset = |bits: u32| {
            let chosen = (0..list.len()).filter(|i| bits >> i & 1 == 1);
            Recompute::Selective(chosen.fold(Modules::NONE, |set, i| set.with(list[i])))
        };
        let modes = std::iter::once(Recompute::None)
            .chain((1u32..1 << list.len()).map(subset))
            .chain((1..=LONGEST_GROUP.min(family.full_uniform)).map(Recompute::FullUniform))
            .filter(allowed)
            .collect();
        let block = (family.full_block && allowed(&Recompute::FullBlock(1))).then(|| {
            let fixed = only.and_then(|only| {
                only.iter().find_map(|mode| match mode {
                    Recompute::FullBlock(n) => Some((*n, *n)),
                    _ => None,
                })
            });
            fixed.unwrap_or((1, u32::MAX))
        });
        Self { modes, block }
    }
}

/// Whether the framework accepts a recompute mode beside a layout. The plan rules look at modes and
/// flags, not at which layers are where.
fn legal_for(target: Target, context: &Context, layout: &Layout, recompute: Recompute) -> bool {
    let chunks = layout.chunk_count();
    let each = context.layers / chunks;
    let more = context.layers % chunks;
    let chunks: Vec<Chunk> =
        (0..chunks).map(|k| Chunk { layers: each + u32::from(k < more), recompute }).collect();
    let layout = Layout { mtp_standalone: false, ..*layout };
    let plan = Plan::new(layout, chunks, context.gpus, context.global_batch_size, context.layers);
    // Placement is the balancer's business, not the mode's.
    plan.is_ok_and(|plan| plan_rules_hold(target, context, &plan, PlanReach::Recompute))
}

/// The tables that a balancing problem is made of.
#[derive(Debug, Clone, Copy)]
pub struct TablesOf<'a> {
    /// Layers and ends.
    pub cell: &'a CellCosts,
    /// States.
    pub sharding: &'a Sharding,
    /// Messages.
    pub hop: Hop,
}

impl<'a> From<&'a Tables> for TablesOf<'a> {
    fn from(tables: &'a Tables) -> Self {
        Self { cell: &tables.cell, sharding: &tables.sharding, hop: tables.hop }
    }
}

/// Shapes whose pipelines are kept.
const KEPT_PIPELINES: usize = 256;

/// Makes pipelines of balancing problems, and keeps some.
#[derive(Debug, Default)]
pub struct Pipelines {
    exact: Kept<Shape, Arc<Pipeline>, KEPT_PIPELINES>,
    in_flight: Kept<Shape, Vec<Vec<u32>>, KEPT_PIPELINES>,
    busy: Kept<(u32, u32), Arc<Pipeline>, KEPT_PIPELINES>,
    either_pass: Kept<(u32, u32), Arc<Pipeline>, KEPT_PIPELINES>,
}

/// A balancing problem with the meaning of its modes.
#[derive(Debug)]
pub struct Balancing {
    /// The problem in plain integers.
    pub problem: Problem,
    /// What each mode stands for.
    pub modes: Arc<[Recompute]>,
    /// Distinct weight shapes.
    shapes: Vec<(u64, u64)>,
}

impl Pipelines {
    /// The pipeline of a schedule.
    pub fn of(&mut self, shape: Shape) -> Arc<Pipeline> {
        let Self { exact, in_flight, .. } = self;
        let build = || {
            if shape.virtual_stages == 1 {
                return Arc::new(Pipeline::of(shape));
            }
            let steady = stages::steady(shape);
            Arc::new(Pipeline::with(shape, in_flight.get(steady, || stages::in_flight(steady)).clone()))
        };
        exact.get(shape, build).clone()
    }

    /// One chunk per rank with the micro-batches in flight of "one forward, one backward", bounded by
    /// the busiest rank: what holds for every looped schedule, whatever its number of chunks.
    pub fn busy(&mut self, ranks: u32, micro_batches: u32) -> Arc<Pipeline> {
        let build = || {
            let in_flight = (0..ranks).map(|rank| vec![(ranks - rank).min(micro_batches)]).collect();
            Arc::new(Pipeline::by_work(u64::from(micro_batches), ranks, (0..ranks).collect(), in_flight))
        };
        self.busy.get((ranks, micro_batches), build).clone()
    }

    /// "One forward, one backward" where only the time of both passes together is known: of the chain bound
    /// and its mirror image, the mean.
    pub fn either_pass(&mut self, ranks: u32, micro_batches: u32) -> Arc<Pipeline> {
        let build = || {
            let mut pipeline = Pipeline::one_f_one_b(ranks, u64::from(micro_batches));
            for rows in pipeline.form.iter_mut().flat_map(|form| &mut form.ranks) {
                let [one, other] = *rows;
                let mean = one.forward.midpoint(other.forward).min(one.backward.midpoint(other.backward));
                *rows = [Weights { forward: mean, backward: mean }; 2];
            }
            Arc::new(pipeline)
        };
        self.either_pass.get((ranks, micro_batches), build).clone()
    }
}

/// Fewest layers of a chunk that is no end of the model: one, unless the framework has stages without and there are
/// too few layers.
pub fn least_layers(layout: &Layout, layers: u32, capabilities: &Capabilities) -> u32 {
    let ends = 2 + u32::from(layout.mtp_standalone);
    u32::from(!capabilities.empty_stages || layout.chunk_count().saturating_sub(ends) <= layers)
}

impl Balancing {
    /// The balancing problem of a layout, whose passes go through `pipeline`.
    pub fn of<'t>(
        pipeline: Arc<Pipeline>,
        cost: &CostModel<'_>,
        layers: &Layers,
        layout: &Layout,
        tables: impl Into<TablesOf<'t>>,
        ways: &Ways,
        capabilities: &Capabilities,
    ) -> Self {
        let TablesOf { cell, sharding, hop } = tables.into();
        let chunks = layout.chunk_count();
        let shapes = distinct_shapes(cell);
        let kinds = kinds(cell, sharding, &shapes);
        let tables = TablesOf { cell, sharding, hop };
        let mut fixed: Vec<Fixed> = (0..chunks).map(|chunk| fixed(chunk, layout, tables, &shapes)).collect();
        // The ends may be alone on their chunks, and behind multi-token prediction the head is.
        if let [first, .., last] = fixed.as_mut_slice() {
            first.optional = capabilities.empty_stages;
            last.optional = capabilities.empty_stages;
            last.closed = layout.mtp_standalone;
        }
        if let Some(mtp) = layout.mtp_chunk() {
            fixed[mtp as usize].optional = capabilities.empty_stages;
        }
        let problem = Problem {
            pipeline,
            kinds,
            runs: layers.runs.clone(),
            modes: ways.modes.clone(),
            block: ways.block,
            hopeless: ways.hopeless.clone(),
            freedom: if capabilities.recompute.per_stage { Freedom::PerStage } else { Freedom::Global },
            fixed,
            rank_bytes: cell.buffers + hop.buffers,
            shared: shapes.iter().map(|&(rows, columns)| Bytes(2 * rows * columns)).collect(),
            limit: cost.memory_limit(),
            hop: hop.latency,
            min_layers: least_layers(layout, layers.count(), capabilities),
            tail: None,
        };
        Self { problem, modes: ways.meanings.clone(), shapes }
    }
}

/// What one layer of every kind costs whatever it recomputes.
fn kinds(cell: &CellCosts, sharding: &Sharding, shapes: &[(u64, u64)]) -> Vec<Kind> {
    cell.layers.iter().map(|layer| kind(layer, sharding, touches(shapes, &layer.weight_shapes))).collect()
}

fn kind(layer: &LayerCost, sharding: &Sharding, touches: u64) -> Kind {
    let [forward, backward] = layer_passes(sharding, layer);
    Kind {
        forward: forward.total(),
        backward: backward.total(),
        weight: layer.weight_gradient,
        held: held(sharding, &layer.parameters),
        gathered: gathered_bytes(sharding, &layer.parameters),
        touches,
    }
}

/// Weights, gradients and optimizer states of so many parameters.
fn held(sharding: &Sharding, parameters: &LocalParameters) -> Bytes {
    state_bytes(sharding, parameters).into_iter().sum()
}

/// Which of the distinct shapes a layer has, as bits.
fn touches(shapes: &[(u64, u64)], own: &[(u64, u64)]) -> u64 {
    own.iter().filter_map(|shape| shapes.iter().position(|s| s == shape)).fold(0u64, |bits, i| bits | 1 << i)
}

/// What a chunk costs beside its layers.
fn fixed(chunk: u32, layout: &Layout, tables: TablesOf<'_>, shapes: &[(u64, u64)]) -> Fixed {
    let TablesOf { cell, sharding, hop } = tables;
    let mut f = Fixed::default();
    for end in cell.ends(layout, chunk) {
        let [forward, backward] = end_passes(sharding, end);
        f.forward += forward.total();
        f.backward += backward.total();
        f.weight += end.weight_gradient;
        f.held += held(sharding, &end.parameters);
        f.kept += end.kept;
        f.transient = Bytes(f.transient.0.max(end.transient.0));
        f.gathered = Bytes(f.gathered.0.max(gathered_bytes(sharding, &end.parameters).0));
        f.touches |= touches(shapes, &end.weight_shapes);
        f.recomputes |= end.further;
    }
    f.held += cell.table_copy(layout, chunk).map_or(Bytes::ZERO, |copy| held(sharding, copy));
    f.held += hop.further_buffers_of(layout, chunk);
    if chunk < layout.pipeline_parallel {
        f.forward += cell.micro_batch_overhead;
    }
    let messages = hop.busy_of(layout, chunk);
    f.forward += messages;
    f.backward += messages;
    f
}

/// What the data-parallel traffic of every rank takes at least at both ends of every step of a balancing problem.
/// Recomputation, which hides more of the reduction, is that of `ways` at most.
#[must_use]
pub fn traffic(
    layout: &Layout,
    problem: &Problem,
    TablesOf { cell, sharding, .. }: TablesOf<'_>,
    ways: &[Way],
) -> Traffic {
    let modes: Vec<usize> = ways.iter().flat_map(|&way| problem.modes_of(way)).collect();
    let extra = |q: usize| modes.iter().map(|&mode| problem.modes[mode].extra[q]).max().unwrap_or_default();
    let layer = |(q, kind): (usize, &Kind)| [kind.forward, kind.backward + extra(q)];
    let layers: Vec<[Picos; 2]> = problem.kinds.iter().enumerate().map(layer).collect();
    let most_beside = modes.iter().map(|&mode| problem.modes[mode].beside.extra).max().unwrap_or_default();
    let hidden = sharding.hidden_share;
    let tail = |rank: usize, of: fn(&OncePerStep) -> Picos, pass: usize| {
        let (latency, hidden) =
            if pass == 0 { (sharding.latency.1, hidden.1) } else { (sharding.latency.0, hidden.0) };
        let floor = sharding.exposed_floor_of(rank);
        let own = || problem.pipeline.orders[rank].chunks.iter().map(|&k| k as usize);
        let of_chunk = |k: usize| {
            let ends = cell.ends(layout, k as u32).map(|end| &end.parameters);
            ends.chain(cell.table_copy(layout, k as u32))
        };
        let ends = own().flat_map(of_chunk).fold(LocalParameters::default(), |sum, one| sum.plus(one, 1));
        // Forward or backward passes beside layers, and of a layer of each kind: no shorter than what hides traffic.
        let fixed = own().map(|k| &problem.fixed[k]);
        let again = |fixed: &Fixed| if fixed.recomputes { most_beside } else { Picos::ZERO };
        let beside = fixed.map(|f| if pass == 0 { f.forward } else { f.backward + again(f) }).sum();
        let all = |parameters: &LocalParameters| of(&once_per_step(sharding, parameters));
        let any_layer = own().any(|k| problem.least(k) > 0)
            && cell.layers.iter().all(|layer| all(&layer.parameters) > Picos::ZERO);
        let certain = any_layer || all(&ends) > Picos::ZERO;
        // What stays exposed is the larger of a share of the traffic and of what is left behind a window.
        let shares = [(floor + sharding.interference, 0.0), (1.0 + sharding.interference, hidden)];
        let line = |(share, hidden): (f64, f64)| {
            // Without latency, which is paid once; a picosecond each for rounding.
            let least = |parameters: &LocalParameters, window: Picos| {
                let all = all(parameters).saturating_sub(latency).saturating_sub(Picos(1));
                (all.0 as f64 * share - window.0 as f64 * hidden).floor() as i64 - 1
            };
            let once = if certain { latency.scale(share).0 as i64 } else { 0 };
            let layers = cell.layers.iter().zip(&layers);
            Line {
                constant: once + least(&ends, beside),
                per_layer: layers.map(|(layer, window)| least(&layer.parameters, window[pass])).collect(),
            }
        };
        Tail { lines: if hidden > 0.0 { shares.map(line).to_vec() } else { vec![line((1.0, 0.0))] } }
    };
    let ranks = 0..problem.pipeline.orders.len();
    Traffic {
        gathers: ranks.clone().map(|rank| tail(rank, |once| once.gather, 0)).collect(),
        reduces: ranks.map(|rank| tail(rank, |once| once.reduce, 1)).collect(),
    }
}

/// Distinct weight shapes of a cell; dummy weight gradients are pooled by shape.
fn distinct_shapes(cell: &CellCosts) -> Vec<(u64, u64)> {
    let mut shapes: Vec<(u64, u64)> = cell
        .layers
        .iter()
        .flat_map(|layer| &layer.weight_shapes)
        .chain(&cell.embedding.weight_shapes)
        .chain(&cell.head.weight_shapes)
        .copied()
        .collect();
    shapes.sort_unstable();
    shapes.dedup();
    shapes
}

impl Balancing {
    /// Makes it the problem of another sharding of the same cell, schedule, number of chunks and messages.
    pub fn restate(&mut self, layout: &Layout, tables: TablesOf<'_>) {
        for (known, layer) in self.problem.kinds.iter_mut().zip(&tables.cell.layers) {
            *known = kind(layer, tables.sharding, known.touches);
        }
        // Between the ends chunks hold nothing that is sharded beside layers.
        let last = layout.chunk_count() - 1;
        for chunk in [0, last].into_iter().chain(layout.mtp_chunk()) {
            let known = &mut self.problem.fixed[chunk as usize];
            let Fixed { closed, optional, .. } = *known;
            *known = Fixed { closed, optional, ..fixed(chunk, layout, tables, &self.shapes) };
        }
    }

    /// What a chunk that recomputes so has in an assignment; the first mode if nothing offers it.
    #[must_use]
    pub fn choice(&self, recompute: Recompute) -> Choice {
        match recompute {
            Recompute::FullBlock(n) => Choice::Block(n),
            mode => Choice::Mode(self.modes.iter().position(|known| *known == mode).unwrap_or(0) as u16),
        }
    }

    /// Whether chunks may recompute so.
    #[must_use]
    pub fn offers(&self, recompute: Recompute) -> bool {
        match recompute {
            Recompute::FullBlock(n) => {
                self.problem.block.is_some_and(|block| (block.counts.0..=block.counts.1).contains(&n))
            }
            mode => self.modes.contains(&mode),
        }
    }

    /// The assignment that some chunks stand for.
    #[must_use]
    pub fn assignment(&self, chunks: &[Chunk]) -> stages::Assignment {
        stages::Assignment {
            layers: chunks.iter().map(|chunk| chunk.layers).collect(),
            recompute: chunks.iter().map(|chunk| self.choice(chunk.recompute)).collect(),
        }
    }

    /// The chunks that an assignment stands for.
    #[must_use]
    pub fn chunks(&self, assignment: &stages::Assignment) -> Vec<Chunk> {
        assignment
            .layers
            .iter()
            .zip(&assignment.recompute)
            .map(|(&layers, choice)| Chunk {
                layers,
                recompute: match choice {
                    Choice::Mode(at) => self.modes.get(usize::from(*at)).copied().unwrap_or_default(),
                    Choice::Block(n) => Recompute::FullBlock(*n),
                },
            })
            .collect()
    }
}
