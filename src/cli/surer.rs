//! What to do where a plan may well run out of memory, as measured runs were off.

use std::fmt;

use super::output::{percent, seconds};
use crate::candidates::{Axis, Restrictions};
use crate::planner::Prepared;
use crate::search::{Found, Observer, Request, Stop};
use crate::units::Bytes;

/// A chance to fit below which there is something to say, and how many standard deviations stand for it.
pub(crate) const SURE: (f64, f64) = (0.95, 1.645);

/// What leaves a job more room.
pub(crate) struct Surer {
    /// A limit under which plans fit as surely as [`SURE`] says.
    pub(crate) limit: Bytes,
    /// The fastest plan under it with the same degrees, if there is one.
    pub(crate) plan: Option<Found>,
    /// How surely that fits.
    pub(crate) chance: f64,
    /// What share of its step it is longer.
    longer: f64,
}

impl Surer {
    /// Looked for where a plan fits less surely; nothing to say of others, nor where another GPU is thought of.
    pub(crate) fn of(prepared: &Prepared, found: &Found, stop: &dyn Observer) -> Option<Self> {
        let cost = prepared.cost();
        let known = cost.memory_limit() <= cost.device_limit();
        if !known || cost.chance_to_fit(&found.prediction) >= SURE.0 {
            return None;
        }
        let room = cost.device_limit().scale(1.0 / found.prediction.memory_interval.factor_at(SURE.1));
        // Rounded up it would leave a little too many.
        let limit = Bytes::from_f64((room.gigabytes() * 10.0).floor() * 1e8);
        let plan = fastest(prepared, found, limit, stop);
        let chance = plan.as_ref().map_or(0.0, |plan| cost.chance_to_fit(&plan.prediction));
        let step = |found: &Found| found.prediction.step().0 as f64;
        let longer = plan.as_ref().map_or(0.0, |plan| step(plan) / step(found) - 1.0);
        Some(Self { limit, plan, chance, longer })
    }
}

/// The fastest plan with the degrees of another and less memory, by a search of its own, which is short: any schedule,
/// micro-batch, sharding and recomputation.
fn fastest(prepared: &Prepared, found: &Found, limit: Bytes, stop: &dyn Observer) -> Option<Found> {
    let layout = found.plan.layout();
    let mut task = prepared.task.clone();
    task.job.memory_limit = Some(limit);
    let only = Axis::exactly;
    task.restrictions = Restrictions {
        tensor_parallel: only(layout.tensor_parallel),
        pipeline_parallel: only(layout.pipeline_parallel),
        context_parallel: only(layout.context_parallel),
        expert_parallel: only(layout.expert_parallel),
        expert_tensor_parallel: only(layout.expert_tensor_parallel),
        offload: Some(vec![layout.offload]),
        ..task.restrictions
    };
    let prepared = task.prepare();
    let answer = prepared.search(&Request { top: 1, insist: false, ..Request::default() }, stop);
    let verified = |found: &Found| prepared.check(&found.plan, &found.prediction).passed();
    answer.found.into_iter().next().filter(|found| answer.stop == Stop::Proved && verified(found))
}

impl fmt::Display for Surer {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        if let Some(Found { plan, prediction, .. }) = &self.plan {
            let (step, longer) = (seconds(prediction.step().seconds()), percent(self.longer));
            let fit = self.chance * 100.0;
            write!(f, "{fit:.0} of 100 fit with the same degrees in {step}, {longer} longer: {plan}; ")?;
        }
        write!(
            f,
            "--memory-limit {:.1}GB leaves plans of which {:.0} of 100 fit, if their error bars are no wider",
            self.limit.gigabytes(),
            SURE.0 * 100.0
        )
    }
}
