//! Equal stages of a schedule: which chunks and ranks are alike, so that a plan is priced once for each kind.

use std::ops::Range;

use crate::candidates::{Group, Order};
use crate::cost::schedule::{Shape, in_flight_vectors};
use crate::layers::Layers;
use crate::plan::Schedule;
use crate::stages;

/// Chunks that cost the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ChunkKind {
    /// Layers of the first of them, by position in the model.
    pub layers: Range<usize>,
    /// Its layers by kind.
    pub counts: Vec<u64>,
    /// Holds the embedding.
    pub first: bool,
    /// Holds the head.
    pub last: bool,
    /// Pays the host's time of its rank.
    pub pays_host: bool,
    /// Neighbours on other ranks.
    pub messages: u64,
}

/// Ranks with the same kinds of chunks.
#[derive(Debug, Clone)]
pub(super) struct RankKind {
    /// Kinds of its chunks with how many it has of each.
    pub chunks: Vec<(usize, u64)>,
    /// How many ranks are alike.
    pub ranks: u64,
    /// Micro-batches in flight by entry of `chunks`, of any of the ranks, none of which another exceeds.
    pub in_flight: Vec<Vec<u64>>,
    /// Kinds of the first chunks of the ranks before the first of them, with how many there are.
    pub before: Vec<(usize, u64)>,
    /// Holds the head without the embedding.
    pub tied: bool,
}

/// The equal stages of a layout.
#[derive(Debug, Clone)]
pub(super) struct Outline {
    pub chunks: Vec<ChunkKind>,
    pub ranks: Vec<RankKind>,
    /// Kinds of the chunks that all ranks have at the same time, with how often each set occurs.
    pub rows: Vec<(Vec<usize>, u64)>,
    /// Layers of the longest chunk.
    pub longest: u32,
}

/// What an outline depends on.
pub(super) type OutlineKey = (Schedule, u32, u32, u32);

impl Outline {
    pub(super) fn key(shape: Shape) -> OutlineKey {
        let Shape { schedule, ranks, virtual_stages, micro_batches } = stages::steady(shape);
        (schedule, ranks, virtual_stages, micro_batches)
    }

    /// The first chunks hold a layer more where they do not divide.
    pub(super) fn new(layers: &Layers, shape: Shape) -> Self {
        let shape = stages::steady(shape);
        let (p, all) = (shape.ranks, shape.ranks * shape.virtual_stages);
        let (each, more) = (layers.count() / all, layers.count() % all);
        let mut chunks: Vec<ChunkKind> = Vec::new();
        let mut kinds = Vec::with_capacity(all as usize);
        let mut from = 0;
        for k in 0..all {
            let range = from..from + (each + u32::from(k < more)) as usize;
            from = range.end;
            let mut by_kind = vec![0; layers.kinds.len()];
            layers.order[range.clone()].iter().for_each(|&kind| by_kind[usize::from(kind)] += 1);
            let neighbours = [k.checked_sub(1), (k + 1 < all).then_some(k + 1)].into_iter().flatten();
            let chunk = ChunkKind {
                layers: range,
                counts: by_kind,
                first: k == 0,
                last: k + 1 == all,
                pays_host: k < p,
                messages: neighbours.filter(|&n| shape.rank_of(n) != shape.rank_of(k)).count() as u64,
            };
            let order = |one: &ChunkKind| &layers.order[one.layers.clone()];
            let same = |other: &ChunkKind| {
                order(other) == order(&chunk)
                    && ChunkKind { layers: chunk.layers.clone(), ..other.clone() } == chunk
            };
            let kind = chunks.iter().position(same).unwrap_or_else(|| {
                chunks.push(chunk);
                chunks.len() - 1
            });
            kinds.push(kind);
        }
        let ranks = Self::rank_kinds(shape, &kinds, &chunks);
        let mut rows: Vec<(Vec<usize>, u64)> = Vec::new();
        for row in kinds.chunks(p as usize) {
            let mut row = row.to_vec();
            row.sort_unstable();
            row.dedup();
            match rows.iter_mut().find(|(other, _)| *other == row) {
                Some((_, times)) => *times += 1,
                None => rows.push((row, 1)),
            }
        }
        Self { chunks, ranks, rows, longest: each + u32::from(more > 0) }
    }

    fn rank_kinds(shape: Shape, kinds: &[usize], chunks: &[ChunkKind]) -> Vec<RankKind> {
        let in_flight = in_flight_vectors(shape);
        let mut ranks: Vec<RankKind> = Vec::new();
        let mut before: Vec<(usize, u64)> = Vec::new();
        for (rank, vectors) in (0..shape.ranks).zip(in_flight) {
            let own: Vec<usize> =
                (0..kinds.len()).filter(|&k| shape.rank_of(k as u32) == rank).map(|k| kinds[k]).collect();
            let mut held: Vec<(usize, u64)> = Vec::new();
            own.iter().for_each(|&kind| add(&mut held, kind, 1));
            let at = ranks.iter().position(|other| other.chunks == held).unwrap_or_else(|| {
                let has = |which: fn(&ChunkKind) -> bool| own.iter().any(|&kind| which(&chunks[kind]));
                ranks.push(RankKind {
                    chunks: held.clone(),
                    ranks: 0,
                    in_flight: Vec::new(),
                    before: before.clone(),
                    tied: has(|chunk| chunk.last) && !has(|chunk| chunk.first),
                });
                ranks.len() - 1
            });
            ranks[at].ranks += 1;
            for vector in vectors {
                let of = |kind: usize| -> u64 {
                    let alike = own.iter().zip(&vector).filter(|(own, _)| **own == kind);
                    alike.map(|(_, &n)| u64::from(n)).sum()
                };
                keep(&mut ranks[at].in_flight, held.iter().map(|(kind, _)| of(*kind)).collect());
            }
            add(&mut before, kinds[rank as usize], 1);
        }
        ranks
    }
}

fn add(list: &mut Vec<(usize, u64)>, kind: usize, count: u64) {
    match list.iter_mut().find(|(k, _)| *k == kind) {
        Some((_, n)) => *n += count,
        None => list.push((kind, count)),
    }
}

/// Keeps a vector unless one that is kept exceeds it.
fn keep(kept: &mut Vec<Vec<u64>>, vector: Vec<u64>) {
    let exceeds = |one: &[u64], other: &[u64]| one.iter().zip(other).all(|(a, b)| a >= b);
    if !kept.iter().any(|one| exceeds(one, &vector)) {
        kept.retain(|one| !exceeds(&vector, one));
        kept.push(vector);
    }
}

/// Shape of a group's schedule.
pub(super) fn shape_of(group: &Group, order: Order) -> Shape {
    Shape {
        schedule: order.schedule,
        ranks: group.pipeline_parallel,
        virtual_stages: order.virtual_stages,
        micro_batches: group.micro_batches,
    }
}

/// Whether the table of closed forms has the schedule (physics.md f; the V-shaped ones have none that holds for
/// unequal passes).
pub(super) fn has_closed_form(schedule: Schedule) -> bool {
    !matches!(schedule, Schedule::ZeroBubbleV | Schedule::DualPipe)
}
