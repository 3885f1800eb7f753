//! All splits of a layout that has few: the fastest of them is known, not bounded.

use super::balance::{Balancing, TablesOf};
use super::best::Settled;
use super::polish::Better;
use super::{Scratch, Search};
use crate::stages::{Assignment, Block, Choice, Freedom, Problem, simulated_passes};

/// Splits, each with every choice of what is recomputed, up to which all are tried, and passes that are simulated of them:
/// some tenths of a second at most.
const FEW: u64 = 4096;
const PASSES: u64 = 10_000_000;

impl Search<'_> {
    /// The fastest split of a layout, if it has few: that which was settled, or a faster one. As in the balancing problem, no
    /// chunks but the ends are empty. Where the framework has even splits alone, they differ in what is recomputed.
    pub(super) fn fastest_of_all(
        &self,
        settled: &Settled,
        balancing: &Balancing,
        tables: TablesOf<'_>,
        stop: &dyn Fn() -> bool,
        scratch: &mut Scratch,
    ) -> Option<Better> {
        let (layout, problem) = (settled.plan.layout(), &balancing.problem);
        let choices = choices(problem)?;
        let few = FEW.min(PASSES / simulated_passes(&problem.pipeline).max(1));
        let splits = if self.space.capabilities().uneven_stages {
            splits(problem, few / choices.len() as u64)?
        } else {
            vec![self.even(layout, problem, scratch)?.layers]
        };
        let own = balancing.assignment(settled.plan.chunks());
        debug_assert!(splits.contains(&own.layers) && choices.contains(&own.recompute[0]), "{own:?}");
        let mut best = Better { step: settled.time, plan: settled.plan.clone() };
        for layers in &splits {
            for &choice in &choices {
                if stop() {
                    return None;
                }
                let split = Assignment::uniform(layers, choice);
                let found = self.timed_below(best.step, layout, &split, balancing, tables, scratch);
                best = found.unwrap_or(best);
            }
        }
        Some(best)
    }
}

/// What all chunks may recompute alike; none where ranks choose for themselves, or nothing is offered.
fn choices(problem: &Problem) -> Option<Vec<Choice>> {
    if problem.freedom == Freedom::PerStage {
        return None;
    }
    let offered = (0..).zip(problem.modes.iter()).filter(|(_, mode)| mode.offered);
    let modes = offered.map(|(mode, _)| Choice::Mode(mode));
    let block = problem.block.filter(|block| !block.hopeless);
    // More than all layers of a chunk are all of them.
    let counts =
        block.map(|Block { counts: (least, most), .. }| least..=most.min(problem.layer_count().max(least)));
    let choices: Vec<Choice> = modes.chain(counts.into_iter().flatten().map(Choice::Block)).collect();
    (!choices.is_empty()).then_some(choices)
}

/// Layers by chunk, in all ways, if those are not more.
fn splits(problem: &Problem, most: u64) -> Option<Vec<Vec<u32>>> {
    let chunks: Vec<(u32, bool)> =
        (0..problem.chunks()).map(|chunk| (problem.least(chunk), problem.fixed[chunk].closed)).collect();
    let mut all = vec![(Vec::new(), problem.layer_count())];
    for (at, &(least, closed)) in chunks.iter().enumerate() {
        let behind: u32 = chunks[at + 1..].iter().map(|(least, _)| least).sum();
        let last = chunks[at + 1..].iter().all(|&(_, closed)| closed);
        let mut longer = Vec::new();
        for (layers, left) in all {
            let room = left.checked_sub(behind).filter(|&room| room >= least);
            let Some(room) = room else { continue };
            let from = if last && !closed { room } else { least };
            let to = if closed { least } else { room };
            for n in from..=to {
                let mut layers: Vec<u32> = Vec::clone(&layers);
                layers.push(n);
                longer.push((layers, left - n));
            }
            if longer.len() as u64 > most {
                return None;
            }
        }
        all = longer;
    }
    Some(all.into_iter().filter(|(_, left)| *left == 0).map(|(layers, _)| layers).collect())
}
