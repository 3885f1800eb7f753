//! From priced tables to a balancing problem, and from its solution back to a plan's chunks.
//!
//! The arithmetic is that of [`crate::cost::step`], so that what a solver calls feasible is what the
//! prediction calls feasible, to the byte and the picosecond.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Assignment, Block, Choice, Fixed, Freedom, Kind, Line, Mode, Pipeline, Problem, Run, Tail};
use crate::cost::step::{end_passes, gathered_bytes, layer_passes, mode_cost, shape, state_bytes};
use crate::cost::{CellCosts, EndCost, Hop, LocalParameters, PerParameter, Sharding};
use crate::layers::Layers;
use crate::plan::{Chunk, Layout, Recompute};
use crate::units::Bytes;

/// Ways to recompute that a framework offers, priced for one cell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CellModes {
    /// For [`Problem::modes`].
    pub modes: Vec<Mode>,
    /// What each of them is called in a plan.
    pub names: Vec<Recompute>,
    /// For [`Problem::block`].
    pub block: Option<Block>,
}

impl CellModes {
    /// Prices the offered ways; those that another beats in time and in every kind of memory are left
    /// out. `block` are the fewest and the most wholly recomputed layers of a chunk to try.
    #[must_use]
    pub fn new(cell: &CellCosts, offered: &[Recompute], block: Option<(u32, u32)>) -> Self {
        let price = |&recompute: &Recompute, offered: bool| {
            let costs: Vec<_> = cell.layers.iter().map(|layer| mode_cost(layer, recompute)).collect();
            Mode {
                extra: costs.iter().map(|cost| cost.extra.total()).collect(),
                kept: costs.iter().map(|cost| cost.kept).collect(),
                transient: costs.iter().map(|cost| cost.transient).collect(),
                group: if let Recompute::FullUniform(n) = recompute { n.max(1) } else { 1 },
                offered,
            }
        };
        let mut found = Self { modes: Vec::new(), names: Vec::new(), block: None };
        for recompute in offered {
            let mode = price(recompute, true);
            if found.modes.iter().any(|known| dominates(known, &mode)) {
                continue;
            }
            for at in (0..found.modes.len()).rev() {
                if dominates(&mode, &found.modes[at]) {
                    found.modes.remove(at);
                    found.names.remove(at);
                }
            }
            found.modes.push(mode);
            found.names.push(*recompute);
        }
        if let Some(counts) = block {
            let mut find = |recompute: Recompute| {
                let at = found.names.iter().position(|name| *name == recompute).unwrap_or_else(|| {
                    found.modes.push(price(&recompute, false));
                    found.names.push(recompute);
                    found.names.len() - 1
                });
                at as u16
            };
            let (rest, full) = (find(Recompute::None), find(Recompute::FullUniform(1)));
            found.block = Some(Block { full, rest, counts });
        }
        found
    }

    /// What a choice is called in a plan.
    #[must_use]
    pub fn name(&self, choice: Choice) -> Recompute {
        match choice {
            Choice::Mode(mode) => self.names[usize::from(mode)],
            Choice::Block(n) => Recompute::FullBlock(n),
        }
    }

    /// An assignment as a plan's chunks.
    #[must_use]
    pub fn chunks(&self, assignment: &Assignment) -> Vec<Chunk> {
        let chunk = |(&layers, &choice)| Chunk { layers, recompute: self.name(choice) };
        assignment.layers.iter().zip(&assignment.recompute).map(chunk).collect()
    }
}

/// Whether `one` is nowhere worse than `other`.
fn dominates(one: &Mode, other: &Mode) -> bool {
    fn below<T: PartialOrd>(a: &[T], b: &[T]) -> bool {
        a.iter().zip(b).all(|(a, b)| a <= b)
    }
    one.group == other.group
        && below(&one.extra, &other.extra)
        && below(&one.kept, &other.kept)
        && below(&one.transient, &other.transient)
}

/// What a balancing problem is made of beside the layout.
#[derive(Debug, Clone, Copy)]
pub struct Parts<'a> {
    /// The model's layers.
    pub layers: &'a Layers,
    /// Priced layers and ends.
    pub cell: &'a CellCosts,
    /// Priced states.
    pub sharding: &'a Sharding,
    /// Priced messages.
    pub hop: Hop,
    /// Ways to recompute.
    pub modes: &'a CellModes,
    /// Whether ranks may differ in them.
    pub freedom: Freedom,
    /// Bytes that a rank may use.
    pub limit: Bytes,
    /// Fewest decoder layers of a chunk: 0 where the framework has empty stages, else 1.
    pub min_layers: u32,
}

/// The balancing problem of a layout. `pipeline` must be that of the layout's schedule
/// ([`Pipeline::of`]); it is an argument because many layouts share one.
#[must_use]
pub fn problem(parts: Parts<'_>, pipeline: Arc<Pipeline>) -> Problem {
    let Parts { layers, cell, sharding, hop, modes, freedom, limit, min_layers } = parts;
    let chunks = pipeline.rank_of_chunk.len();
    let last = chunks - 1;
    let held = |parameters: &LocalParameters| state_bytes(sharding, parameters).into_iter().sum::<Bytes>();
    let mut groups = Groups::default();
    let embedding_touches = groups.member(&cell.embedding.weight_shapes);
    let head_touches = groups.member(&cell.head.weight_shapes);
    let layer_touches: Vec<usize> =
        cell.layers.iter().map(|layer| groups.member(&layer.weight_shapes)).collect();
    let (shared, touches) = groups.merge();
    let kinds = cell.layers.iter().zip(&layer_touches).map(|(layer, &member)| {
        let [forward, backward] = layer_passes(sharding, layer);
        Kind {
            forward: forward.total(),
            backward: backward.total(),
            held: held(&layer.parameters),
            gathered: gathered_bytes(sharding, &layer.parameters),
            touches: touches[member],
        }
    });
    let kinds: Vec<Kind> = kinds.collect();
    let mut fixed = vec![Fixed::default(); chunks];
    let ends = [(0, &cell.embedding, embedding_touches), (last, &cell.head, head_touches)];
    for (k, end, member) in ends {
        let [forward, backward] = end_passes(sharding, end);
        let chunk = &mut fixed[k];
        chunk.forward += forward.total();
        chunk.backward += backward.total();
        chunk.held += held(&end.parameters);
        chunk.kept += end.kept;
        chunk.transient = chunk.transient.max(end.transient);
        chunk.gathered = chunk.gathered.max(gathered_bytes(sharding, &end.parameters));
        chunk.touches |= touches[member];
    }
    let rank = &pipeline.rank_of_chunk;
    if rank[0] != rank[last] {
        fixed[last].held += held(&cell.tied_copy);
    }
    for k in 0..chunks {
        // Host time that no layer carries is paid once per rank and micro-batch.
        if k < pipeline.ranks as usize {
            fixed[k].forward += cell.micro_batch_overhead;
        }
        let neighbours = [k.checked_sub(1), (k < last).then_some(k + 1)];
        let messages = neighbours.into_iter().flatten().filter(|&n| rank[n] != rank[k]).count() as u64;
        fixed[k].forward += hop.busy * messages;
        fixed[k].backward += hop.busy * messages;
    }
    let tail = (!pipeline.split_backward).then(|| first_rank_tail(&parts, &kinds, &pipeline));
    Problem {
        pipeline,
        kinds,
        runs: layers.runs.iter().map(|run| Run { kind: run.kind, count: run.count }).collect(),
        modes: modes.modes.clone(),
        block: modes.block,
        freedom,
        fixed,
        rank_bytes: cell.buffers + hop.buffers,
        shared,
        limit,
        hop: hop.latency,
        min_layers,
        tail: tail.flatten(),
    }
}

/// Weight shapes whose dummy gradients a rank pools: shapes that the same members have make one group.
#[derive(Default)]
struct Groups {
    members: usize,
    shapes: BTreeMap<(u64, u64), u64>,
}

impl Groups {
    fn member(&mut self, shapes: &[(u64, u64)]) -> usize {
        let member = self.members;
        self.members += 1;
        for &shape in shapes {
            *self.shapes.entry(shape).or_default() |= 1 << member;
        }
        member
    }

    /// Bytes of each group, and the groups of each member as bits.
    fn merge(self) -> (Vec<Bytes>, Vec<u64>) {
        let mut bytes: BTreeMap<u64, Bytes> = BTreeMap::new();
        for ((rows, columns), members) in self.shapes {
            *bytes.entry(members).or_default() += Bytes(2 * rows * columns);
        }
        let mut touches = vec![0; self.members];
        for (group, members) in bytes.keys().enumerate() {
            for (member, touched) in touches.iter_mut().enumerate() {
                *touched |= (members >> member & 1) << group;
            }
        }
        (bytes.into_values().collect(), touches)
    }
}

/// Exposed reduction of the first rank's gradients, never more than the prediction has it: the last
/// backward pass hides most of it, and here recomputation is taken to make that pass as long as it can.
fn first_rank_tail(parts: &Parts<'_>, kinds: &[Kind], pipeline: &Pipeline) -> Option<Tail> {
    let Parts { cell, sharding, modes, .. } = *parts;
    let traffic = |parameters: &LocalParameters| -> f64 {
        let each = |(class, &n): (&PerParameter, &u64)| n as f64 * class.reduce;
        sharding.classes.iter().zip(&parameters.0).map(each).sum()
    };
    let longest = |kind: usize| {
        let extra = modes.modes.iter().map(|mode| mode.extra[kind]).max().unwrap_or_default();
        (kinds[kind].backward + extra).0 as f64
    };
    let first = |k: usize| pipeline.rank_of_chunk[k] == 0;
    let mut ends: Vec<&EndCost> = vec![&cell.embedding];
    if first(pipeline.rank_of_chunk.len() - 1) {
        ends.push(&cell.head);
    }
    let ends_traffic: f64 = ends.iter().map(|end| traffic(&end.parameters)).sum();
    let fixed = ends_traffic + sharding.latency.0.0 as f64;
    let window: f64 = ends.iter().map(|end| end_passes(sharding, end)[1].total().0 as f64).sum();
    let (floor, hidden) = (sharding.exposed_floor.0, sharding.hidden_share.0);
    let more = sharding.interference;
    // `traffic * factor - share * backward time`; rounded so that the line stays below.
    let line = |factor: f64, share: f64| Line {
        constant: (fixed * factor - share * window).floor() as i64 - 4,
        per_layer: cell
            .layers
            .iter()
            .enumerate()
            .map(|(kind, layer)| (traffic(&layer.parameters) * factor - share * longest(kind)).floor() as i64)
            .collect(),
    };
    let none = ends_traffic <= 0.0 && cell.layers.iter().all(|layer| traffic(&layer.parameters) <= 0.0);
    let lines = if hidden <= 0.0 {
        vec![line(1.0, 0.0)]
    } else {
        vec![line(1.0 + more, hidden), line(floor + more, 0.0)]
    };
    (!none).then_some(Tail { lines })
}

impl Pipeline {
    /// The pipeline of a layout's schedule.
    #[must_use]
    pub fn of_layout(layout: &Layout) -> Self {
        Self::of(shape(layout))
    }
}
