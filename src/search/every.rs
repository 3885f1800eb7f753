//! All splits of a layout that has few: the fastest of them is known, not bounded.

use super::balance::{Balancing, TablesOf};
use super::polish::Better;
use super::{Scratch, Search};
use crate::plan::Plan;
use crate::stages::{Assignment, Choice, Freedom, Problem};
use crate::units::Picos;

/// Splits, each with every choice of what is recomputed, up to which all are tried: some hundredths of a second.
const FEW: u64 = 4096;

impl Search<'_> {
    /// The fastest split of a layout, if it has few: that of a plan which takes so long, or a faster one. Where the framework
    /// has even splits alone, they differ in what is recomputed.
    pub(super) fn fastest_of_all(
        &self,
        plan: &Plan,
        step: Picos,
        balancing: &Balancing,
        tables: TablesOf<'_>,
        scratch: &mut Scratch,
    ) -> Option<Better> {
        let (layout, problem) = (plan.layout(), &balancing.problem);
        let choices = choices(problem)?;
        let most = FEW / (choices.len() as u64).max(1);
        let splits = if self.space.capabilities().uneven_stages {
            splits(problem, most)?
        } else {
            vec![self.even(layout, problem, scratch)?.layers]
        };
        let mut best = Better { step, plan: plan.clone() };
        for layers in &splits {
            for &choice in &choices {
                let split = Assignment::uniform(layers, choice);
                let found = self.timed_below(best.step, layout, &split, balancing, tables, scratch);
                best = found.unwrap_or(best);
            }
        }
        Some(best)
    }
}

/// What all chunks may recompute alike; none where ranks choose for themselves.
fn choices(problem: &Problem) -> Option<Vec<Choice>> {
    if problem.freedom == Freedom::PerStage {
        return None;
    }
    let offered = (0..).zip(problem.modes.iter()).filter(|(_, mode)| mode.offered);
    let modes = offered.map(|(mode, _)| Choice::Mode(mode));
    let block = problem.block.filter(|block| !block.hopeless);
    // More than all layers of a chunk are all of them.
    let blocks =
        block.into_iter().flat_map(|block| block.counts.0..=block.counts.1.min(problem.layer_count()));
    Some(modes.chain(blocks.map(Choice::Block)).collect())
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
