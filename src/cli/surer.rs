//! What to do where a plan may well run out of memory, as measured runs were off.

use std::fmt;

use super::output::{by, seconds};
use super::stages;
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
    /// Its layers by stage, where its name is that of the other.
    layers: Option<String>,
}

impl Surer {
    /// Looked for where a plan fits less surely; nothing to say of others, nor where another GPU is thought of. `moved`:
    /// layers of what is found are moved where that makes it faster, as those of the plan were.
    pub(crate) fn of(
        prepared: &Prepared,
        found: &Found,
        (even_stages, moved, stop): (bool, bool, &dyn Observer),
    ) -> Option<Self> {
        let cost = prepared.cost();
        let known = cost.memory_limit() <= cost.device_limit();
        if !known || cost.chance_to_fit(&found.prediction) >= SURE.0 {
            return None;
        }
        let room = cost.device_limit().scale(1.0 / found.prediction.memory_interval.factor_at(SURE.1));
        // Rounded up it would leave a little too many.
        let limit = Bytes::from_f64((room.gigabytes() * 10.0).floor() * 1e8);
        let moved = usize::from(moved);
        let request = Request { top: 1, insist: false, even_stages, moved, ..Request::default() };
        let plan = fastest(prepared, found, limit, (&request, &Quiet(stop)));
        let chance = plan.as_ref().map_or(0.0, |plan| cost.chance_to_fit(&plan.prediction));
        let step = |found: &Found| found.prediction.step().0 as f64;
        let longer = plan.as_ref().map_or(0.0, |plan| step(plan) / step(found) - 1.0);
        let alike = plan.as_ref().filter(|one| one.plan.to_string() == found.plan.to_string());
        let layers = alike.map(|one| stages::layout(prepared, &one.plan));
        Some(Self { limit, plan, chance, longer, layers })
    }
}

/// Shows nothing of a search that is short.
struct Quiet<'a>(&'a dyn Observer);

impl Observer for Quiet<'_> {
    fn stop(&self) -> bool {
        self.0.stop()
    }
}

/// The fastest plan with the degrees and the dispatcher of another and less memory, by a search of its own, which is short: any
/// schedule, micro-batch, sharding and recomputation.
fn fastest(
    prepared: &Prepared,
    found: &Found,
    limit: Bytes,
    (request, observer): (&Request, &dyn Observer),
) -> Option<Found> {
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
        dispatcher: layout.dispatcher.map(|dispatcher| vec![dispatcher]).or(task.restrictions.dispatcher),
        ..task.restrictions
    };
    let prepared = task.prepare();
    let answer = prepared.search(request, observer);
    let verified = |found: &Found| prepared.check(&found.plan, &found.prediction).passed();
    let mut found = answer.found.into_iter().next()?;
    found.take_polished();
    (answer.stop == Stop::Proved && verified(&found)).then_some(found)
}

impl Surer {
    /// What to say where something better than its plan is known.
    pub(crate) fn limit_alone(&self) -> String {
        format!(
            "--memory-limit {:.1}GB leaves plans of which {:.0} of 100 fit, if their error bars are no wider",
            self.limit.gigabytes(),
            SURE.0 * 100.0
        )
    }
}

impl fmt::Display for Surer {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        if let Some(Found { plan, prediction, .. }) = &self.plan {
            let (step, share) = (seconds(prediction.step().seconds()), by(self.longer.abs()));
            let than = if self.longer < 0.0 { "less" } else { "longer" };
            let fit = self.chance * 100.0;
            let layers = self.layers.as_ref().map_or(String::new(), |layers| format!(", layers {layers}"));
            write!(
                f,
                "{fit:.0} of 100 fit with the same degrees in {step}, {share} {than}: {plan}{layers}; "
            )?;
        }
        f.write_str(&self.limit_alone())
    }
}
