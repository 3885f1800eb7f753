//! Ways out where there is no plan, each confirmed by a search of its own.

use crate::candidates::{Axis, OFFLOADS, Restrictions};
use crate::cost::money::{RunCost, run_cost};
use crate::planner::{Prepared, Task};
use crate::search::{Found, Observer, Request, Stop};
use crate::units::{Dollars, Seconds};

/// What a remedy changes.
#[derive(Debug, Clone)]
pub(crate) struct Remedy {
    /// For people.
    pub(crate) what: String,
    /// The plan that fits then.
    pub(crate) plan: String,
    /// Its step time.
    pub(crate) step: Seconds,
    /// The whole run, where a deadline or a budget asks for it.
    pub(crate) run: Option<RunCost>,
}

/// What a run may take.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Bounds {
    /// Latest end.
    pub(crate) deadline: Option<Seconds>,
    /// Most dollars.
    pub(crate) budget: Option<Dollars>,
}

impl Bounds {
    /// Whether a run keeps them; one without a cost keeps none.
    pub(crate) fn admit(self, run: Option<&RunCost>) -> bool {
        self.deadline.is_none_or(|limit| run.is_some_and(|run| run.time.total.0 <= limit.0))
            && self.budget.is_none_or(|limit| run.is_some_and(|run| run.dollars.total.0 <= limit.0))
    }
}

/// The ways out that were found so far.
struct Remedies<'a> {
    observer: &'a dyn Observer,
    bounds: Bounds,
    found: Vec<Remedy>,
}

impl Remedies<'_> {
    /// Looks for a plan of a changed task; whether there is one.
    fn attempt(&mut self, what: String, task: &Task) -> bool {
        if self.observer.stop() {
            return false;
        }
        let prepared = task.prepare();
        let answer = prepared.search(&Request { top: 1, ..Request::default() }, self.observer);
        // A remedy that its own verifier does not accept is none.
        let verified = |best: &&Found| prepared.check(&best.plan, &best.prediction).passed();
        let Some(best) = answer.found.first().filter(verified) else { return false };
        if answer.stop == Stop::Interrupted {
            return false;
        }
        let run = run_of(&prepared, best);
        if !self.bounds.admit(run.as_ref()) {
            return false;
        }
        let step = best.prediction.step().seconds();
        self.found.push(Remedy { what, plan: best.plan.to_string(), step, run });
        true
    }
}

/// The whole run of a plan, where the job says how many tokens it trains.
fn run_of(prepared: &Prepared, found: &Found) -> Option<RunCost> {
    run_cost(&prepared.run(&found.prediction), prepared.task.job.tokens?).ok()
}

fn changed(task: &Task, change: impl FnOnce(&mut Task)) -> Task {
    let mut task = task.clone();
    change(&mut task);
    task
}

/// Ways out when nothing fits, cheapest first. Ends early when the observer says so.
pub(crate) fn remedies(task: &Task, observer: &dyn Observer) -> Vec<Remedy> {
    let mut out = Remedies { observer, bounds: Bounds::default(), found: Vec::new() };
    let prepared = task.prepare();
    if prepared.refusal().is_some() {
        return out.found;
    }
    if task.restrictions != Restrictions::default() {
        out.attempt(
            "drop the --fix and --max restrictions".into(),
            &changed(task, |t| t.restrictions = Restrictions::default()),
        );
    }
    if prepared.divides() {
        less_memory(task, &mut out);
    } else {
        other_numbers(task, &mut out);
    }
    out.found
}

/// Where memory binds: shard, offload, more GPUs.
fn less_memory(task: &Task, out: &mut Remedies) {
    for stage in task.target.capabilities().zero_stages.iter().rev() {
        if *stage >= 2 && task.restrictions.zero_stage == Axis::default() {
            let axis = Axis { only: Some(vec![u32::from(*stage)]), max: None };
            out.attempt(
                format!("shard more: --fix zero={stage}"),
                &changed(task, |t| t.restrictions.zero_stage = axis),
            );
        }
    }
    // Without a word on offload it was tried before.
    for (name, offload) in &OFFLOADS[1..] {
        if task.restrictions.offload.as_ref().is_some_and(|known| !known.contains(offload)) {
            out.attempt(
                format!("offload: --fix offload={name}"),
                &changed(task, |t| t.restrictions.offload = Some(vec![*offload])),
            );
        }
    }
    for factor in [2u32, 4, 8, 16, 32, 64] {
        let more = task.job.gpus.checked_mul(factor).filter(|&gpus| possible(task, gpus));
        let Some(gpus) = more else { break };
        if out
            .attempt(format!("more GPUs, for example: --gpus {gpus}"), &changed(task, |t| t.job.gpus = gpus))
        {
            break;
        }
    }
}

/// Whether a cluster of the kind may have so many GPUs.
fn possible(task: &Task, gpus: u32) -> bool {
    gpus <= 1 << 20 && task.machine.cluster.max_gpus.is_none_or(|most| gpus <= most)
}

/// Where GPUs and batch do not divide: the nearest batches and numbers of GPUs that do.
fn other_numbers(task: &Task, out: &mut Remedies) {
    /// Nodes that are tried to either side.
    const NEAR: u32 = 256;
    let batch = task.job.global_batch_size;
    let multiples = task.prepare().refused_replicas();
    let above = multiples.iter().map(|&replicas| batch.next_multiple_of(replicas)).min();
    let below = multiples.iter().map(|&replicas| batch / replicas * replicas).max().filter(|&b| b > 0);
    for batch in below.into_iter().chain(above) {
        out.attempt(
            format!("another batch: --global-batch {batch}"),
            &changed(task, |t| t.job.global_batch_size = batch),
        );
    }
    let unit = if task.job.gpus > task.machine.cluster.gpus_per_node {
        task.machine.cluster.gpus_per_node
    } else {
        1
    };
    let nodes = task.job.gpus / unit;
    let counts: [Vec<u32>; 2] = [
        (nodes.saturating_sub(NEAR).max(1)..nodes).rev().collect(),
        (nodes + 1..=nodes.saturating_add(NEAR)).collect(),
    ];
    for side in counts {
        let near = side.into_iter().filter_map(|nodes| nodes.checked_mul(unit));
        let divides =
            |gpus: &u32| possible(task, *gpus) && changed(task, |t| t.job.gpus = *gpus).prepare().divides();
        if let Some(gpus) = near.take_while(|_| !out.observer.stop()).find(divides) {
            out.attempt(
                format!("another number of GPUs: --gpus {gpus}"),
                &changed(task, |t| t.job.gpus = gpus),
            );
        }
    }
}

/// Ways to keep a deadline or a budget that no plan of a task keeps: more GPUs, or fewer.
pub(crate) fn within(task: &Task, bounds: Bounds, observer: &dyn Observer) -> Vec<Remedy> {
    let mut out = Remedies { observer, bounds, found: Vec::new() };
    let counts = |more: bool| {
        (1..=10).map_while(move |doublings| {
            let factor = 1u32 << doublings;
            if more { task.job.gpus.checked_mul(factor) } else { Some(task.job.gpus / factor) }
        })
    };
    let whole = |&gpus: &u32| {
        let per_node = task.machine.cluster.gpus_per_node;
        gpus > 0 && possible(task, gpus) && (gpus <= per_node || gpus % per_node == 0)
    };
    for (wanted, more) in [(bounds.deadline.is_some(), true), (bounds.budget.is_some(), false)] {
        let mut counts = counts(more).filter(whole);
        let what = if more { "more" } else { "fewer" };
        if wanted {
            counts.find(|&gpus| {
                out.attempt(format!("{what} GPUs: --gpus {gpus}"), &changed(task, |t| t.job.gpus = gpus))
            });
        }
    }
    out.found
}
