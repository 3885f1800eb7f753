//! What the integer programme says of the plans that are printed. It never ranks: it proves, and shows a
//! better split by its own measure if there is one.

use super::balance::{Balancing, TablesOf};
use super::{Scratch, Search};
use crate::plan::{Layout, Plan};
use crate::stages::evaluate_into;
use crate::stages::milp::{self, Limits, Outcome};
use crate::units::Picos;

/// The integer programme's answer for the layout of a plan.
#[derive(Debug, Clone, PartialEq)]
pub struct Verified {
    /// Layers per chunk of the split with the least chain bound; the dynamic programme's, where no other was found in time.
    pub layers: Vec<u32>,
    /// Its predicted step time.
    pub step: Picos,
    /// Its chain bound, and the value below which no split has one.
    pub chain: Picos,
    /// See [`Verified::chain`].
    pub bound: Picos,
    /// Whether the dynamic programme has the same least chain bound; none where no split was found in time.
    pub agrees: Option<bool>,
}

/// Runs of equal layers beyond which the programme is left out: every run needs a binary per stage to keep
/// its place, and models that alternate kinds have a run per layer.
pub(super) const MOST_RUNS: usize = 4;

/// Chain bounds that differ by less are equal: floating point cannot tell them apart.
const SAME: f64 = 1e-6;

impl Search<'_> {
    /// Solves the layout once more, one chunk per rank: `chain` is the least chain bound that is known, of the assignment
    /// that the balancer found last.
    pub(super) fn verify(
        &self,
        layout: &Layout,
        balancing: &Balancing,
        chain: Picos,
        tables: TablesOf<'_>,
        scratch: &mut Scratch,
    ) -> Option<Verified> {
        let limits = Limits { seconds: 2.0, nodes: 2_000, gap: 0.0 };
        let problem = &balancing.problem;
        let (assignment, value, bound, agrees) =
            match milp::solve_chain_then_closed(problem, Some(chain), limits) {
                Outcome::Found(answer) => {
                    let agrees = answer.value.0.abs_diff(chain.0) as f64 <= SAME * chain.0 as f64;
                    (answer.assignment, answer.value, answer.bound, Some(agrees))
                }
                Outcome::Unknown(bound) => {
                    (scratch.balancer.assignment().clone(), chain, bound.min(chain), None)
                }
                Outcome::Infeasible => {
                    (scratch.balancer.assignment().clone(), chain, Picos::ZERO, Some(false))
                }
            };
        evaluate_into(problem, &assignment, &mut scratch.evaluation).ok()?;
        let context = self.space.context();
        let chunks = balancing.chunks(&assignment);
        let plan =
            Plan::new(*layout, chunks, context.gpus, context.global_batch_size, context.layers).ok()?;
        let step = self.time(layout, &assignment, &plan, tables, scratch);
        let layers = assignment.layers;
        Some(Verified { layers, step, chain: value, bound, agrees })
    }
}
