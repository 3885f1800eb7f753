//! What the integer programme says of the plans that are printed. It never ranks: it proves, and shows a
//! better split by its own measure if there is one.

use super::balance::{Balancing, TablesOf, first_rank_tail};
use super::{Scratch, Search};
use crate::plan::{Layout, Plan};
use crate::stages::milp::{self, Limits, Outcome};
use crate::stages::{Freedom, Mode, Objective, Problem, evaluate_into};
use crate::units::{Bytes, Picos};

/// The integer programme's answer for the layout of a plan.
#[derive(Debug, Clone, PartialEq)]
pub struct Verified {
    /// Layers per chunk of the split with the least chain bound.
    pub layers: Vec<u32>,
    /// Its predicted step time.
    pub step: Picos,
    /// Its chain bound, and the value below which no split has one.
    pub chain: Picos,
    /// See [`Verified::chain`].
    pub bound: Picos,
    /// Whether the dynamic programme has the same least chain bound.
    pub agrees: bool,
}

/// Runs of equal layers beyond which the programme is left out: every run needs a binary per stage to keep
/// its place, and models that alternate kinds have a run per layer.
pub(super) const MOST_RUNS: usize = 4;

/// Chain bounds that differ by less are equal: floating point cannot tell them apart.
const SAME: f64 = 1e-6;

impl Search<'_> {
    /// Solves the layout once more, one chunk per rank: `chain` is the least chain bound that is known.
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
        let Outcome::Found(answer) = milp::solve_chain_then_closed(problem, Some(chain), limits) else {
            return None;
        };
        evaluate_into(problem, &answer.assignment, &mut scratch.evaluation).ok()?;
        let context = self.space.context();
        let chunks = balancing.chunks(&answer.assignment);
        let plan =
            Plan::new(*layout, chunks, context.gpus, context.global_batch_size, context.layers).ok()?;
        let step = self.time(layout, &answer.assignment, &plan, tables, scratch);
        let agrees = answer.value.0.abs_diff(chain.0) as f64 <= SAME * chain.0 as f64;
        let layers = answer.assignment.layers;
        Some(Verified { layers, step, chain: answer.value, bound: answer.bound, agrees })
    }

    /// A time that the passes of a layout and the traffic of its first rank take at least, wherever whole
    /// layers are and whatever they recompute, for several chunks per rank.
    pub(super) fn least_by_programme(
        layout: &Layout,
        problem: &Problem,
        tables: TablesOf<'_>,
    ) -> Option<Picos> {
        if problem.runs.len() > MOST_RUNS {
            return None;
        }
        let kinds = problem.kinds.len();
        let least = |of: &dyn Fn(&Mode) -> Picos| problem.modes.iter().map(of).min().unwrap_or_default();
        let cheapest = Mode {
            extra: (0..kinds).map(|kind| least(&|mode| mode.extra[kind])).collect(),
            kept: vec![Bytes(0); kinds],
            transient: vec![Bytes(0); kinds],
            group: 1,
            offered: true,
        };
        let relaxed = Problem {
            modes: [cheapest].into(),
            block: None,
            hopeless: 0..0,
            freedom: Freedom::Global,
            limit: Bytes(u64::MAX / 16),
            tail: first_rank_tail(layout, tables),
            ..problem.clone()
        };
        let limits = Limits { seconds: 2.0, nodes: 10, gap: 1e-3 };
        match milp::solve(&relaxed, Objective::Chain, limits) {
            Outcome::Found(answer) => Some(answer.bound),
            Outcome::Unknown(bound) => Some(bound),
            Outcome::Infeasible => None,
        }
    }
}
