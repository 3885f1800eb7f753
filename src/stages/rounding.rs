//! Problems whose times are rounded to a fraction of a layer: so many have the same splits, which are found once.

use std::sync::Arc;

use smallvec::SmallVec;

use super::{Fixed, Kind, Problem, Run};
use crate::plan::Schedule;
use crate::units::Picos;

/// Layers per chunk, on average, below which one more is much.
const LUMPY: u64 = 2;
/// Parts of an average layer's time that are told apart where one more is much, and where it is not. With 16 everywhere
/// searches take up to twice as long and find no better plans in the scenarios of `results`; with 4 everywhere, splits of
/// one or two layers per chunk (`micro_batches_that_do_not_divide_get_good_splits`) are 0.5 % from the fastest on average
/// and 10 % at worst, instead of 0.1 and 3 %.
const FINE: u64 = 16;
const COARSE: u64 = 4;

/// How times of a problem are rounded.
#[derive(Debug, Clone, Copy)]
struct Rounding {
    /// What counts as one.
    part: u64,
}

impl Rounding {
    fn of(problem: &Problem) -> Self {
        let both = |kind: u8| {
            let kind = &problem.kinds[usize::from(kind)];
            kind.forward.0 + kind.backward.0
        };
        let all: u64 = problem.runs.iter().map(|run| u64::from(run.count) * both(run.kind)).sum();
        let layers = u64::from(problem.layer_count()).max(1);
        let parts = if layers < LUMPY * problem.chunks() as u64 { FINE } else { COARSE };
        Self { part: (all / layers / parts).max(1) }
    }

    fn time(self, time: Picos) -> Picos {
        Picos((time.0 + self.part / 2) / self.part)
    }

    fn passes(self, forward: Picos, backward: Picos, weight: Picos) -> [Picos; 3] {
        [forward, backward, weight].map(|time| self.time(time))
    }
}

/// A problem with all times in parts of a layer, its ends without bytes. Rounding it again changes nothing.
pub(super) fn rounded(problem: &Problem) -> Problem {
    let rounding = Rounding::of(problem);
    let kind = |kind: &Kind| {
        let [forward, backward, weight] = rounding.passes(kind.forward, kind.backward, kind.weight);
        Kind { forward, backward, weight, ..Kind::default() }
    };
    let fixed = |fixed: &Fixed| {
        let [forward, backward, weight] = rounding.passes(fixed.forward, fixed.backward, fixed.weight);
        let &Fixed { closed, optional, .. } = fixed;
        Fixed { forward, backward, weight, closed, optional, ..Fixed::default() }
    };
    Problem {
        kinds: problem.kinds.iter().map(kind).collect(),
        fixed: problem.fixed.iter().map(fixed).collect(),
        hop: rounding.time(problem.hop),
        tail: None,
        ..problem.clone()
    }
}

/// All of a [`rounded`] problem that says how long its passes take before anything is recomputed.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct PassTimes {
    runs: Arc<[Run]>,
    /// Both passes of a layer and its weight gradients, by kind.
    layers: Vec<[Picos; 3]>,
    /// The same of every chunk beside its layers, the fewest layers it may have, and whether it has none; and of how many
    /// in a row.
    ends: SmallVec<[(End, u32); 4]>,
    schedule: Option<Schedule>,
    rank_of_chunk: Vec<u32>,
    micro_batches: u64,
    hop: Picos,
    min_layers: u32,
}

/// Passes of a chunk beside its layers, the fewest layers it may have, and whether it has none.
type End = ([Picos; 3], u32, bool);

impl PassTimes {
    /// Those of a problem once it is rounded.
    pub fn of(problem: &Problem) -> Self {
        let rounding = Rounding::of(problem);
        let mut ends: SmallVec<[(End, u32); 4]> = SmallVec::new();
        for (k, fixed) in problem.fixed.iter().enumerate() {
            let passes = rounding.passes(fixed.forward, fixed.backward, fixed.weight);
            let end = (passes, problem.least(k), fixed.closed);
            match ends.last_mut() {
                Some((last, count)) if *last == end => *count += 1,
                _ => ends.push((end, 1)),
            }
        }
        let layer = |kind: &Kind| rounding.passes(kind.forward, kind.backward, kind.weight);
        Self {
            runs: problem.runs.clone(),
            layers: problem.kinds.iter().map(layer).collect(),
            ends,
            schedule: problem.pipeline.schedule,
            rank_of_chunk: problem.pipeline.rank_of_chunk.clone(),
            micro_batches: problem.pipeline.micro_batches,
            hop: rounding.time(problem.hop),
            min_layers: problem.min_layers,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stages::descent::tests::{problem, shape};

    /// Rounding what is rounded changes nothing, and what is kept for a problem is kept for its rounded self.
    #[test]
    fn rounding_again_changes_nothing() {
        for layers in [12, 13, 24, 50] {
            for unit in [1, 7, 1_000, 999_999_937] {
                let mut problem = problem(shape(Schedule::Interleaved, 4, 3, 8), layers);
                for Kind { forward, backward, .. } in &mut problem.kinds {
                    (*forward, *backward) = (Picos(forward.0 * unit + 1), Picos(backward.0 * unit + 3));
                }
                let once = rounded(&problem);
                let twice = rounded(&once);
                assert_eq!((&twice.kinds, &twice.fixed, twice.hop), (&once.kinds, &once.fixed, once.hop));
                assert_eq!(PassTimes::of(&problem), PassTimes::of(&once));
            }
        }
    }
}
