//! How many micro-batches are in flight on every chunk when memory is fullest.

use super::Shape;
use super::lists::{Pass, split_lists};
use crate::plan::Schedule;

/// By rank, the vectors of in-flight micro-batches per chunk at the moments when none dominates another:
/// one memory condition each (the chunks of a rank may hold different layers).
#[must_use]
pub fn in_flight_vectors(shape: Shape) -> Vec<Vec<Vec<u32>>> {
    let (v, m) = (shape.virtual_stages as usize, shape.micro_batches);
    if v == 1 {
        return (0..shape.ranks).map(|rank| vec![vec![shape.in_flight(rank)]]).collect();
    }
    if shape.schedule == Schedule::Interleaved {
        // The pattern repeats with every group: four groups show all vectors.
        let group = shape.group();
        let shown = if m > 4 * group && m % group == 0 { 4 * group } else { m };
        let mut order = Vec::new();
        interleaved_order(shape.virtual_stages, shown, group, &mut order);
        let of = |rank| interleaved_vectors(v, shape.in_flight(rank) as usize, &order);
        return (0..shape.ranks).map(of).collect();
    }
    // Like the lists, the counts settle after a few rounds of the pipeline.
    let shown = Shape { micro_batches: m.min(6 * shape.ranks + 6), ..shape };
    let mut lists = Vec::new();
    split_lists(shown, &mut lists);
    let vectors = lists.iter().map(|list| listed_vectors(shape, list));
    if shape.schedule != Schedule::DualPipe {
        return vectors.collect();
    }
    // Ranks of DualPipe hold whole stages of a model cut into as many as there are ranks, where the list has halves of
    // them: of p + 1 stages one half is not in it.
    let wholly = |vectors: Vec<Vec<u32>>| {
        let mut all = Undominated::default();
        for vector in &vectors {
            for chunk in 0..v {
                let mut vector = vector.clone();
                vector[chunk] = (vector[chunk] + 1).min(m);
                all.keep(&vector);
            }
        }
        all.sorted()
    };
    vectors.map(wholly).collect()
}

/// In-flight vectors of which none dominates another.
#[derive(Default)]
struct Undominated(Vec<Vec<u32>>);

impl Undominated {
    fn keep(&mut self, now: &[u32]) {
        let dominates = |one: &[u32], other: &[u32]| one.iter().zip(other).all(|(a, b)| a >= b);
        if !self.0.iter().any(|seen| dominates(seen, now)) {
            self.0.retain(|seen| !dominates(now, seen));
            self.0.push(now.to_vec());
        }
    }
    fn sorted(mut self) -> Vec<Vec<u32>> {
        self.0.sort();
        self.0
    }
}

/// One forward operation of a rank: its chunk on that rank and the micro-batch.
type Slot = (u32, u32);

/// Forward operations of the interleaved schedule, in order, the same on every rank; backward
/// operations are the same with chunk `v - 1 - chunk`.
fn interleaved_order(v: u32, m: u32, group: u32, order: &mut Vec<Slot>) {
    order.clear();
    let mut first = 0;
    while first < m {
        let size = group.min(m - first);
        for chunk in 0..v {
            order.extend((first..first + size).map(|j| (chunk, j)));
        }
        first += size;
    }
}

/// Those of a rank of the interleaved schedule that runs `warm` forward passes before its first backward.
fn interleaved_vectors(v: usize, warm: usize, order: &[Slot]) -> Vec<Vec<u32>> {
    let mut now = vec![0u32; v];
    let mut vectors = Undominated::default();
    for (k, &(chunk, _)) in order.iter().enumerate() {
        now[chunk as usize] += 1;
        if k + 1 < warm.min(order.len()) {
            continue;
        }
        vectors.keep(&now);
        let (chunk, _) = order[(k + 1).saturating_sub(warm)];
        let freed = &mut now[v - 1 - chunk as usize];
        *freed = freed.saturating_sub(1);
    }
    vectors.sorted()
}

/// Those of a rank with a list of passes.
fn listed_vectors(shape: Shape, list: &[(Pass, u32, u32)]) -> Vec<Vec<u32>> {
    let mut now = vec![0u32; shape.virtual_stages as usize];
    let mut vectors = Undominated::default();
    for &(pass, k, _) in list {
        let chunk = (k / shape.ranks) as usize;
        match pass {
            Pass::Forward => {
                now[chunk] += 1;
                vectors.keep(&now);
            }
            Pass::Input => {}
            Pass::Weight | Pass::Whole => now[chunk] -= 1,
        }
    }
    vectors.sorted()
}
