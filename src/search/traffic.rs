//! What traffic at both ends of a step adds to its passes at least: gradients that are reduced, weights that are gathered.

use super::balance::Ways;
use super::groups::{Priced, StateCost};
use crate::cost::step::{OncePerStep, exposed, once_per_step};
use crate::cost::{LocalParameters, PerParameter, Sharding};
use crate::layers::{Layers, Run};
use crate::plan::Layout;
use crate::stages::{Problem, Splits};
use crate::units::Picos;

/// More than what sums, products and quotients of both kinds of traffic are rounded by.
const ROUNDING: Picos = Picos(12);

/// What is known of a pipeline's ranks, wherever layers are and whatever they recompute.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ranks {
    average: AverageRank,
    first: Option<FirstRank>,
}

/// What a rank does in the mean.
#[derive(Debug, Clone, Copy)]
struct AverageRank {
    /// Of how many ranks.
    ranks: u64,
    /// All its passes, at least.
    busy: Picos,
    /// As [`FirstRank::windows`].
    windows: [Picos; 2],
}

/// The rank that starts first and, where backward passes are whole, ends last.
#[derive(Debug, Clone, Copy)]
struct FirstRank {
    /// Its parameters, at least.
    parameters: LocalParameters,
    /// Its forward and its backward passes of one micro-batch, behind which traffic may hide, at most.
    windows: [Picos; 2],
}

impl Ranks {
    /// Those of a layout, whose layers recompute in one of `ways`.
    pub fn of(layout: &Layout, layers: &Layers, priced: &Priced, ways: &Ways) -> Self {
        let (ranks, micro_batches) =
            (u64::from(layout.pipeline_parallel), u64::from(layout.gradient_accumulation_steps));
        let overhead = priced.cell.micro_batch_overhead;
        let extra = |run: &Run| ways.most_extra(usize::from(run.kind)) * u64::from(run.count);
        let extra: Picos = layers.runs.iter().map(extra).sum::<Picos>() + ways.most_extra_beside();
        let [forward, backward] = priced.passes;
        let at_most = |all: Picos| Picos(all.0 / ranks + 1);
        let windows = [at_most(forward) + overhead, at_most(backward + extra)];
        let busy = Picos((forward + backward).0 * micro_batches / ranks) + overhead * micro_batches;
        let parameters = priced.parameters;
        Self {
            average: AverageRank { ranks, busy, windows },
            first: (ranks == 1).then_some(FirstRank { parameters, windows }),
        }
    }

    /// Takes note of splits, one of which is used by a schedule with whole backward passes.
    pub fn know(&mut self, splits: &Splits, problem: &Problem, priced: &Priced) {
        let Some([fewest, most]) = splits.on_first_rank() else { return };
        let mut parameters = priced.cell.embedding.parameters;
        let mut windows = [Picos::ZERO; 2];
        for &chunk in &problem.pipeline.orders[0].chunks {
            let fixed = &problem.fixed[chunk as usize];
            let again = if fixed.recomputes { problem.modes.most_beside().extra } else { Picos::ZERO };
            windows = [windows[0] + fixed.forward, windows[1] + fixed.backward + again];
        }
        for (kind, (layer, of)) in priced.cell.layers.iter().zip(&problem.kinds).enumerate() {
            let n = u64::from(most[kind]);
            parameters = parameters.plus(&layer.parameters, u64::from(fewest[kind]));
            let backward = of.backward + problem.modes.most_extra(kind);
            windows = [windows[0] + of.forward * n, windows[1] + backward * n];
        }
        self.first = Some(FirstRank { parameters, windows });
    }

    /// The least time of a step with states in such shards, the passes of which take no less than `passes`. No rank
    /// gathers, works and reduces for longer than the step takes, so an average one does not; and the passes begin and end
    /// on the first. What traffic exposes is the largest of sums over layers, so that all ranks expose no less in the mean
    /// than an average rank would.
    pub fn least_step(&self, passes: Picos, states: &StateCost) -> Picos {
        let StateCost { sharding, floor, traffic, .. } = states;
        let AverageRank { ranks, busy, windows } = self.average;
        // Ranks without traffic have no latency.
        let each = |all: Picos, latency: Picos| Picos(all.saturating_sub(latency).0 / ranks);
        let traffic = OncePerStep {
            gather: each(traffic.gather, sharding.latency.1),
            reduce: each(traffic.reduce, sharding.latency.0),
            update: Picos::ZERO,
        };
        let (first, others) = sharding.exposed_floor;
        let share = if ranks == 1 { first } else { first.min(others) };
        let mean = busy + least_exposed(sharding, share, traffic, windows);
        floor.step(mean.max(passes + self.exposed_on_first(states)))
    }

    /// What the first rank exposes at least: it comes on top of all passes.
    pub fn exposed_on_first(&self, StateCost { sharding, .. }: &StateCost) -> Picos {
        self.first.map_or(Picos::ZERO, |FirstRank { parameters, windows }| {
            least_exposed(sharding, sharding.exposed_floor.0, once_per_step(sharding, &parameters), windows)
        })
    }
}

/// What a rank exposes at least of its traffic at both ends of a step, of which such a share cannot hide.
fn least_exposed(sharding: &Sharding, share: f64, traffic: OncePerStep, windows: [Picos; 2]) -> Picos {
    let Sharding { hidden_share, interference, classes, .. } = sharding;
    // Passes with traffic of their own take longer than they do by themselves.
    let unknown = classes.iter().any(PerParameter::in_passes);
    let [forward, backward] = windows.map(|window| if unknown { Picos(u64::MAX) } else { window });
    let gather = exposed(traffic.gather, share, hidden_share.1, *interference, forward);
    let reduce = exposed(traffic.reduce, share, hidden_share.0, *interference, backward);
    (gather + reduce).saturating_sub(ROUNDING)
}
