//! The interleaved schedule as one list of passes in an order in which each only needs earlier ones, so
//! that simulating it once more is one pass over an array.

use std::collections::HashMap;

use super::Evaluation;
use crate::cost::schedule::Shape;
use crate::units::Picos;

/// Lists by shape, and the ends of passes.
#[derive(Debug, Default)]
pub(super) struct Walks {
    known: HashMap<Shape, Vec<Pass>>,
    ends: Vec<u64>,
    durations: Vec<u64>,
}

/// One pass. Passes count from 1; 0 stands for the start of the step.
#[derive(Debug, Clone, Copy)]
struct Pass {
    /// What the rank did before.
    before: u32,
    /// What the pass needs from another pass.
    needs: u32,
    /// Chunk, and whether it is a backward pass.
    what: u32,
    /// Whether what it needs comes from another rank.
    hop: u32,
}

/// Lists are a few hundred kilobytes at most; this many are kept.
const KEPT: usize = 64;

impl Walks {
    /// Makespan of a schedule of [`crate::plan::Schedule::Interleaved`], as
    /// [`crate::cost::schedule::Simulator`] has it.
    pub fn makespan(&mut self, shape: Shape, evaluation: &Evaluation, hop: Picos) -> u64 {
        if self.known.len() >= KEPT && !self.known.contains_key(&shape) {
            self.known.clear();
        }
        let passes = self.known.entry(shape).or_insert_with(|| list(shape));
        self.durations.clear();
        for (forward, backward) in evaluation.forward.iter().zip(&evaluation.backward) {
            self.durations.extend([forward.0, backward.0]);
        }
        self.ends.clear();
        self.ends.push(0);
        let mut last = 0;
        for pass in passes {
            let ready = self.ends[pass.needs as usize] + u64::from(pass.hop) * hop.0;
            let end = self.ends[pass.before as usize].max(ready) + self.durations[pass.what as usize];
            last = last.max(end);
            self.ends.push(end);
        }
        last
    }
}

/// Forward passes of every rank in order: chunk of the rank and micro-batch. Backward passes walk the
/// same way with the chunks reversed (`Megatron-LM:megatron/core/pipeline_parallel/schedules.py`).
fn order(shape: Shape) -> Vec<(u32, u32)> {
    let mut order = Vec::new();
    let mut first = 0;
    while first < shape.micro_batches {
        let size = shape.group().min(shape.micro_batches - first);
        for chunk in 0..shape.virtual_stages {
            order.extend((first..first + size).map(|batch| (chunk, batch)));
        }
        first += size;
    }
    order
}

fn list(shape: Shape) -> Vec<Pass> {
    let (p, v, m) = (shape.ranks as usize, shape.virtual_stages as usize, shape.micro_batches as usize);
    let order = order(shape);
    let total = order.len();
    let mut passes = Vec::with_capacity(2 * p * total);
    // Number of each pass once it is listed.
    let mut forward = vec![0_u32; p * v * m];
    let mut backward = vec![0_u32; p * v * m];
    let mut ranks = vec![(0, 0, 0_u32); p];
    let last = p * v - 1;
    while passes.len() < 2 * p * total {
        let listed = passes.len();
        for (rank, (done_f, done_b, before)) in ranks.iter_mut().enumerate() {
            let warm = shape.in_flight(rank as u32) as usize;
            while *done_b < total {
                let is_forward = *done_f < total && *done_f < warm + *done_b;
                let (chunk, batch) = order[if is_forward { *done_f } else { *done_b }];
                let chunk = if is_forward { chunk as usize } else { v - 1 - chunk as usize };
                let (k, batch) = (chunk * p + rank, batch as usize);
                let (needs, hop, first) = match is_forward {
                    true if k == 0 => (0, 0, true),
                    true => (forward[(k - 1) * m + batch], 1, false),
                    false if k == last => (forward[k * m + batch], 0, false),
                    false => (backward[(k + 1) * m + batch], 1, false),
                };
                if needs == 0 && !first {
                    break;
                }
                let what = 2 * k as u32 + u32::from(!is_forward);
                passes.push(Pass { before: *before, needs, what, hop });
                *before = passes.len() as u32;
                if is_forward {
                    forward[k * m + batch] = *before;
                    *done_f += 1;
                } else {
                    backward[k * m + batch] = *before;
                    *done_b += 1;
                }
            }
        }
        debug_assert!(passes.len() > listed, "the schedule must not lock");
        if passes.len() == listed {
            break;
        }
    }
    passes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::schedule::{Load, Simulator};
    use crate::plan::Schedule;

    #[test]
    fn the_walk_is_the_simulation() {
        let mut walks = Walks::default();
        let mut state = 1_u64;
        let mut next = |most: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % most
        };
        for _ in 0..300 {
            let (ranks, virtual_stages) = (2 + next(4) as u32, 2 + next(3) as u32);
            let micro_batches = ranks + next(20) as u32;
            let shape = Shape { schedule: Schedule::Interleaved, ranks, virtual_stages, micro_batches };
            if crate::cost::schedule::interleave_group(ranks, micro_batches).is_none() {
                continue;
            }
            let chunks = ranks * virtual_stages;
            let mut times = || (0..chunks).map(|_| Picos(next(100))).collect::<Vec<_>>();
            let evaluation = Evaluation { forward: times(), backward: times(), ..Evaluation::default() };
            let hop = Picos(next(20));
            let weight = vec![Picos::ZERO; chunks as usize];
            let load =
                Load { forward: &evaluation.forward, backward: &evaluation.backward, weight: &weight, hop };
            let expected = Simulator::default().run(shape, load).0;
            assert_eq!(walks.makespan(shape, &evaluation, hop), expected, "{shape:?}");
        }
    }
}
