//! What to do where a plan may well run out of memory, as measured runs were off.

use std::fmt;

use super::output::{by, seconds};
use super::stages;
use crate::candidates::{Axis, Restrictions};
use crate::plan::Layout;
use crate::planner::Prepared;
use crate::search::{Found, Observer, Ranking, Request, Stop};
use crate::units::{Bytes, Picos};

/// A chance to fit below which there is something to say, and how many standard deviations stand for it.
pub(crate) const SURE: (f64, f64) = (0.95, 1.645);

/// A plan with the same degrees, or one that is listed, that takes no longer than another by more of its step is good enough: to
/// look at all degrees takes about half as long as the search did. And what those must gain at least.
const ENOUGH: f64 = 0.03;
const GAIN: f64 = 0.01;

/// What leaves a job more room.
pub(crate) struct Surer {
    /// A limit under which plans fit as surely as [`SURE`] says.
    pub(crate) limit: Bytes,
    /// The fastest plan under it with the same degrees, if there is one.
    pub(crate) plan: Option<Sure>,
    /// The fastest of all under it, where that is faster by more than a little.
    pub(crate) other: Option<Sure>,
}

/// A plan that fits more surely than another.
pub(crate) struct Sure {
    /// The plan.
    pub(crate) found: Found,
    /// How surely it fits.
    pub(crate) chance: f64,
    /// What share of the other's step it is longer.
    longer: f64,
    /// Its layers by stage, where its name is that of the other.
    layers: Option<String>,
}

impl Surer {
    /// Looked for where a plan fits less surely; nothing to say of others, nor where another GPU is thought of. `listed`: what
    /// a plan takes that fits surely and is told already. `moved`: layers of what is found are moved where that makes it
    /// faster, as those of the plan were.
    pub(crate) fn of(
        prepared: &Prepared,
        (found, listed): (&Found, Option<Picos>),
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
        let longer = |step: Picos| step.0 as f64 / found.prediction.step().0 as f64 - 1.0;
        let sure = |one: Found| {
            let alike = one.plan.to_string() == found.plan.to_string();
            Sure {
                chance: cost.chance_to_fit(&one.prediction),
                longer: longer(one.prediction.step()),
                layers: alike.then(|| stages::layout(prepared, &one.plan)),
                found: one,
            }
        };
        let look = |degrees: Option<&Layout>, known: Option<&Ranking>| {
            fastest(prepared, degrees, (limit, known), (&request, &Quiet(stop)))
        };
        let same = look(Some(found.plan.layout()), None);
        let (known, plan) = same.map(|(known, one)| (known, sure(one))).unzip();
        let steps = plan.iter().map(|plan| plan.longer).chain(listed.map(longer));
        let least = steps.fold(f64::INFINITY, f64::min);
        let other = if least > ENOUGH { look(None, known.as_ref()) } else { None };
        let other = other.map(|(_, one)| sure(one)).filter(|other| other.longer < least - GAIN);
        Some(Self { limit, plan, other })
    }
}

/// Shows nothing of a search that is short.
struct Quiet<'a>(&'a dyn Observer);

impl Observer for Quiet<'_> {
    fn stop(&self) -> bool {
        self.0.stop()
    }
}

/// The fastest plan with less memory, and the ranking that it is the first of, by a search of its own: with any degrees, or
/// with those and the dispatcher of a layout, which takes less long, and any schedule, micro-batch, sharding and recomputation. What is `known` of a part of what is
/// searched is where it starts.
fn fastest(
    prepared: &Prepared,
    degrees: Option<&Layout>,
    (limit, known): (Bytes, Option<&Ranking>),
    (request, observer): (&Request, &dyn Observer),
) -> Option<(Ranking, Found)> {
    let mut task = prepared.task.clone();
    task.job.memory_limit = Some(limit);
    if let Some(layout) = degrees {
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
    }
    let prepared = task.prepare();
    let (ranking, answer) = prepared.search_from(request, known, observer);
    let verified = |found: &Found| prepared.check(&found.plan, &found.prediction).passed();
    let mut found = answer.found.into_iter().next()?;
    found.take_polished();
    (answer.stop == Stop::Proved && verified(&found)).then_some((ranking, found))
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
        for (sure, degrees) in [(&self.other, "other degrees"), (&self.plan, "the same degrees")] {
            let Some(Sure { found: Found { plan, prediction, .. }, chance, longer, layers }) = sure else {
                continue;
            };
            let (step, share) = (seconds(prediction.step().seconds()), by(longer.abs()));
            let than = if *longer < 0.0 { "less" } else { "longer" };
            let fit = chance * 100.0;
            let layers = layers.as_ref().map_or(String::new(), |layers| format!(", layers {layers}"));
            write!(f, "{fit:.0} of 100 fit with {degrees} in {step}, {share} {than}: {plan}{layers}; ")?;
        }
        f.write_str(&self.limit_alone())
    }
}
