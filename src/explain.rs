//! Why this plan: what beats it, and what each single change would do.

pub mod advice;

use crate::candidates::{Axis, Restrictions};
use crate::plan::{Layout, Offload, Plan};
use crate::planner::{Prepared, Task};
use crate::search::{Found, Observer, Request};
use crate::units::Picos;

/// A change of one axis and what comes of it, everything not named here chosen anew.
#[derive(Debug, Clone)]
pub struct Change {
    /// The axis as `--fix` spells it.
    pub axis: &'static str,
    /// Its value in the plan.
    pub from: u32,
    /// The value tried.
    pub to: u32,
    /// What comes of it.
    pub outcome: Outcome,
}

/// What comes of a change.
#[derive(Debug, Clone)]
pub enum Outcome {
    /// The best plan with it, and its step time.
    Plan(Box<Plan>, Picos),
    /// Nothing is left: the most frequent reasons with their counts.
    Nothing(Vec<(String, u64)>),
}

/// What is known about a plan's place among the others.
#[derive(Debug, Clone)]
pub struct Standing {
    /// The best plan of the whole space, if the space has any.
    pub best: Option<Found>,
    /// The best plan with the same degrees and ZeRO stage, where that is faster: so much every change below gains by its
    /// settings, if it does.
    pub same: Option<(Box<Plan>, Picos)>,
    /// Single changes.
    pub changes: Vec<Change>,
}

/// Axes of which one value is changed at a time.
fn axes(l: &Layout) -> [(&'static str, u32); 6] {
    [
        ("tp", l.tensor_parallel),
        ("pp", l.pipeline_parallel),
        ("cp", l.context_parallel),
        ("ep", l.expert_parallel),
        ("mb", l.micro_batch_size),
        ("vpp", l.virtual_stages),
    ]
}

fn axis_of<'a>(r: &'a mut Restrictions, name: &str) -> Option<&'a mut Axis> {
    Some(match name {
        "tp" => &mut r.tensor_parallel,
        "pp" => &mut r.pipeline_parallel,
        "cp" => &mut r.context_parallel,
        "ep" => &mut r.expert_parallel,
        "mb" => &mut r.micro_batch_size,
        "vpp" => &mut r.virtual_stages,
        _ => return None,
    })
}

/// The plan's degrees as restrictions, but for data parallelism and accumulation, which follow.
#[must_use]
pub fn fixed_to(layout: &Layout) -> Restrictions {
    let mut r = Restrictions::default();
    for (name, value) in axes(layout) {
        if let Some(axis) = axis_of(&mut r, name) {
            axis.only = Some(vec![value]);
        }
    }
    r.expert_tensor_parallel.only = Some(vec![layout.expert_tensor_parallel]);
    r.zero_stage.only = Some(vec![u32::from(layout.zero_stage)]);
    r.offload = Some(vec![layout.offload]);
    r
}

/// The plan's degrees but for one, and what follows from that one.
#[must_use]
pub fn changed(layout: &Layout, axis: &str, to: u32) -> Restrictions {
    let mut r = fixed_to(layout);
    if let Some(axis) = axis_of(&mut r, axis) {
        axis.only = Some(vec![to]);
    }
    match axis {
        // The number of chunks follows the number of stages.
        "pp" => r.virtual_stages = Axis::default(),
        // Experts are cut no finer than all else.
        "tp" => r.expert_tensor_parallel.only = Some(vec![layout.expert_tensor_parallel.min(to), to]),
        _ => {}
    }
    // What had to leave the GPU need not once memory is another.
    if layout.offload != Offload::NONE {
        r.offload = Some(vec![Offload::NONE, layout.offload]);
    }
    // Nothing is sharded over a single rank: its stage is no choice, unless it is what lets states leave the GPU.
    let ranks = layout.data_parallel.saturating_mul(layout.context_parallel);
    let from = axes(layout).into_iter().find(|(name, _)| *name == axis).map_or(1, |(_, value)| value);
    let one_rank = ranks == 1 || matches!(axis, "tp" | "pp") && to / from.max(1) >= ranks;
    if one_rank && layout.offload.moves_states() {
        r.zero_stage.only = Some(vec![0, u32::from(layout.zero_stage)]);
    } else if ranks == 1 {
        r.zero_stage = Axis::default();
    } else if one_rank {
        r.zero_stage.only = Some(vec![0]);
    }
    r
}

/// Places a plan among the others: the best of all, the best with its degrees, and what each halving and doubling of an axis
/// would give. Layers of all of these are moved where that makes them faster, as those of the plan may be.
#[must_use]
pub fn standing(prepared: &Prepared<'_>, plan: &Plan, observer: &dyn Observer) -> Standing {
    let request = Request { top: 1, moved: 1, ..Request::default() };
    // Which plan is fastest may change as layers are moved: among those that `plan` prints.
    let printed = Request { verified: 1, moved: 10, ..Request::default() };
    let free = Task { restrictions: Restrictions::default(), ..prepared.task.clone() };
    let mut solution = free.prepare().solve(&printed, observer);
    solution.take_polished();
    let search = |restrictions: Restrictions| {
        let task = Task { restrictions, ..prepared.task.clone() };
        let mut answer = task.prepare().search(&request, observer);
        answer.found.iter_mut().for_each(Found::take_polished);
        answer
    };
    let best = solution.answer.found.into_iter().min_by_key(|found| found.prediction.step());
    let own = prepared.predict(plan).step();
    let same = search(fixed_to(plan.layout())).found.into_iter().next();
    let same = same.map(|found| (Box::new(found.plan), found.prediction.step()));
    let same = same.filter(|(_, time)| *time < own);
    let experts = prepared.context.has_experts();
    let mut changes = Vec::new();
    for (axis, from) in axes(plan.layout()) {
        if axis == "ep" && !experts || axis == "vpp" && plan.layout().pipeline_parallel == 1 {
            continue;
        }
        let halved = (from > 1).then_some(from / 2);
        for to in [halved, from.checked_mul(2)].into_iter().flatten() {
            let answer = search(changed(plan.layout(), axis, to));
            let outcome = match answer.found.into_iter().next() {
                Some(found) => {
                    let time = found.prediction.step();
                    Outcome::Plan(Box::new(found.plan), time)
                }
                None => {
                    let mut reasons: Vec<(String, u64)> = answer.counters.pruned.into_iter().collect();
                    reasons.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
                    reasons.truncate(2);
                    Outcome::Nothing(reasons)
                }
            };
            changes.push(Change { axis, from, to, outcome });
        }
    }
    Standing { best, same, changes }
}
