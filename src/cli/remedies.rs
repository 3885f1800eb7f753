//! Ways out where there is no plan, each confirmed by a search of its own.

use std::cmp::Reverse;

use super::warnings::leaning;
use crate::candidates::{Axis, OFFLOADS, Restrictions, divisors};
use crate::cost::money::{Pricing, RunCost, run_cost};
use crate::cost::step::Prediction;
use crate::frameworks::error_bars::Leaning;
use crate::planner::{Prepared, Task};
use crate::search::{Found, Observer, Request, Stop};
use crate::spec::job::MOST_SEQUENCES;
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
    /// The whole run, where the job says how many tokens it trains.
    pub(crate) run: Option<RunCost>,
    /// [`Bounds::odds`].
    pub(crate) odds: Vec<String>,
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
    /// How many of 100 runs keep each that there is, which predictions alone decide: a step that errs moves both, and where
    /// measured runs lean it leans as they do.
    pub(crate) fn odds(self, prepared: &Prepared, prediction: &Prediction, run: &RunCost) -> Vec<String> {
        let longer = leaning(prepared).map_or(0.0, Leaning::longer);
        let share = |factor: f64| {
            let share = prediction.interval.share_below(factor / (1.0 + longer)) * 100.0;
            if share > 99.0 { "more than 99".to_owned() } else { format!("{share:.0}") }
        };
        let in_time =
            self.deadline.map(|limit| format!("{} of 100 in time", share(limit.0 / run.time.total.0)));
        let within = self
            .budget
            .map(|limit| format!("{} of 100 within the budget", share(limit.0 / run.dollars.total.0)));
        [in_time, within].into_iter().flatten().collect()
    }

    /// Whether a run keeps them; one without a cost keeps none.
    pub(crate) fn admit(self, run: Option<&RunCost>) -> bool {
        self.share_taken(run).iter().all(|share| *share <= 1.0)
    }

    /// How many times the deadline, and the budget, a run takes; one without a cost infinitely many.
    fn share_taken(self, run: Option<&RunCost>) -> [f64; 2] {
        let share = |limit: Option<f64>, taken: fn(&RunCost) -> f64| {
            limit.map_or(0.0, |limit| run.map_or(f64::INFINITY, |run| taken(run) / limit))
        };
        [
            share(self.deadline.map(|limit| limit.0), |run| run.time.total.0),
            share(self.budget.map(|limit| limit.0), |run| run.dollars.total.0),
        ]
    }
}

/// The ways out that were found so far.
struct Remedies<'a> {
    observer: &'a dyn Observer,
    bounds: Bounds,
    found: Vec<Remedy>,
    /// The late plan of the most GPUs.
    late: Option<Late>,
    /// How many times the deadline, and the budget, the latest plan takes; none where there was none.
    taken: Option<[f64; 2]>,
}

/// A plan that misses the deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Late {
    /// Of how many GPUs it is.
    gpus: u32,
    /// How many it takes at least to keep the deadline.
    enough: u32,
}

impl<'a> Remedies<'a> {
    fn new(bounds: Bounds, observer: &'a dyn Observer) -> Self {
        Self { observer, bounds, found: Vec::new(), late: None, taken: None }
    }

    /// Looks for a plan of a changed task; whether there is one.
    fn attempt(&mut self, what: String, task: &Task) -> bool {
        self.taken = None;
        if self.observer.stop() {
            return false;
        }
        let prepared = task.prepare();
        // How near other splits are does not matter here.
        let request = Request { top: 1, verified: 0, ..Request::default() };
        let answer = prepared.solve(&request, self.observer).answer;
        // A remedy that its own verifier does not accept is none.
        let verified = |best: &&Found| prepared.check(&best.plan, &best.prediction).passed();
        let Some(best) = answer.found.first().filter(verified) else { return false };
        if answer.stop == Stop::Interrupted {
            return false;
        }
        let run = run_of(&prepared, best);
        let taken = self.bounds.share_taken(run.as_ref());
        self.taken = Some(taken);
        if !self.bounds.admit(run.as_ref()) {
            if let Some(run) = run.filter(|_| taken[0] > 1.0) {
                let gpus = task.job.gpus;
                let enough = enough(gpus, self.bounds, &run, best);
                self.late = self.late.max(enough.map(|enough| Late { gpus, enough }));
            }
            return false;
        }
        let step = best.prediction.step().seconds();
        let odds = run.as_ref().map(|run| self.bounds.odds(&prepared, &best.prediction, run));
        let odds = odds.unwrap_or_default();
        self.found.push(Remedy { what, plan: best.plan.to_string(), step, run, odds });
        true
    }
}

/// The whole run of a plan, where the job says how many tokens it trains.
pub(super) fn run_of(prepared: &Prepared, found: &Found) -> Option<RunCost> {
    run_cost(&prepared.run(&found.prediction), prepared.task.job.tokens?).ok()
}

fn changed(task: &Task, change: impl FnOnce(&mut Task)) -> Task {
    let mut task = task.clone();
    change(&mut task);
    task
}

/// Ways out when nothing fits, those that change least first; what needs less memory only where `memory` leaves layouts out.
/// Ends early when the observer says so.
pub(crate) fn remedies(task: &Task, memory: bool, bounds: Bounds, observer: &dyn Observer) -> Vec<Remedy> {
    let mut out = Remedies::new(bounds, observer);
    let prepared = task.prepare();
    if prepared.refusal().is_some() {
        return out.found;
    }
    if task.restrictions != Restrictions::default() {
        let dropped = out.attempt(
            "drop the --fix and --max restrictions".into(),
            &changed(task, |t| t.restrictions = Restrictions::default()),
        );
        // Where a degree is in the way, GPUs and batch are not.
        if dropped && !prepared.divides() && other_degree(task, &mut out) {
            return out.found;
        }
    }
    if prepared.divides() {
        if memory {
            less_memory(task, &mut out);
        }
        if out.found.is_empty() {
            // What divides may still leave nothing that rules and memory admit: only close by is worth the searches.
            other_batches(task, 2, &mut out);
            other_gpus(task, 8, &mut out);
        }
    } else {
        other_batches(task, 16, &mut out);
        other_gpus(task, 256, &mut out);
    }
    if out.found.is_empty() && bounds.deadline.is_some() {
        // What is close by may be too slow.
        let Late { gpus, enough } = out.late.unwrap_or(Late { gpus: task.job.gpus, enough: 0 });
        let mut more = multiples(gpus, task.machine.cluster.gpus_per_node, true);
        more.retain(|&gpus| gpus >= enough && possible(task, gpus));
        let task = |gpus| changed(task, |t| t.job.gpus = gpus);
        more.iter().take(FURTHER).any(|&gpus| out.attempt(format!("more GPUs: --gpus {gpus}"), &task(gpus)));
    }
    out.found
}

/// Numbers of GPUs beyond the nearest that are tried for a deadline.
const FURTHER: usize = 12;

/// Where a degree that was asked for does not divide the GPUs: the nearest that do, one smaller and one larger; whether
/// one leads to a plan.
fn other_degree(task: &Task, out: &mut Remedies) -> bool {
    type Degree = (&'static str, fn(&mut Restrictions) -> &mut Axis);
    let axes: [Degree; 4] = [
        ("tp", |r| &mut r.tensor_parallel),
        ("cp", |r| &mut r.context_parallel),
        ("pp", |r| &mut r.pipeline_parallel),
        ("dp", |r| &mut r.data_parallel),
    ];
    let (gpus, known) = (task.job.gpus, out.found.len());
    for (name, axis) in axes {
        let asked = axis(&mut task.restrictions.clone()).only.clone();
        let Some(&[asked]) = asked.as_deref().filter(|only| only.iter().all(|n| gpus % n != 0)) else {
            continue;
        };
        let degrees = divisors(gpus);
        let at = degrees.partition_point(|&degree| degree < asked);
        let nearest = [at.checked_sub(1), (at < degrees.len()).then_some(at)];
        for degree in nearest.into_iter().flatten().map(|at| degrees[at]) {
            let change = |t: &mut Task| *axis(&mut t.restrictions) = Axis::exactly(degree);
            out.attempt(format!("another degree: --fix {name}={degree}"), &changed(task, change));
        }
    }
    out.found.len() > known
}

/// Where memory binds: shard, offload, more GPUs.
fn less_memory(task: &Task, out: &mut Remedies) {
    for stage in task.target.capabilities().zero_stages.iter().rev() {
        if *stage >= 2 && task.restrictions.zero_stage == Axis::default() {
            let axis = Axis::exactly(u32::from(*stage));
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
        let Some(gpus) = more else { continue };
        if out
            .attempt(format!("more GPUs, for example: --gpus {gpus}"), &changed(task, |t| t.job.gpus = gpus))
        {
            break;
        }
    }
}

/// Whether the cluster gives so many GPUs.
fn possible(task: &Task, gpus: u32) -> bool {
    gpus <= 1 << 20 && task.machine.cluster.gives(gpus)
}

/// Where GPUs and batch do not divide: the nearest batches that do, one smaller and one larger, of so many tried to
/// either side; or instead one nearby that divides better, where it takes clearly less time a sequence.
fn other_batches(task: &Task, near: usize, out: &mut Remedies) {
    /// Share of the batch within which one that divides better is as good, and share of the time a sequence that it is to gain.
    const CLOSE: f64 = 0.05;
    const WORTH: f64 = 0.01;
    let r = &task.restrictions;
    let only = |axis: &Axis| match axis.only.as_deref() {
        Some([one]) => *one,
        _ => 1,
    };
    let unit = only(&r.micro_batch_size).saturating_mul(only(&r.gradient_accumulation_steps));
    let batch = task.job.global_batch_size;
    let mut units: Vec<u32> =
        task.prepare().possible_replicas().into_iter().filter_map(|n| n.checked_mul(unit)).collect();
    units.sort_unstable();
    units.dedup();
    let mut below: Vec<u32> =
        units.iter().flat_map(|u| [batch / u * u, (batch / u).saturating_sub(1) * u]).collect();
    below.retain(|&b| b > 0 && b < batch);
    below.sort_unstable_by(|a, b| b.cmp(a));
    let next =
        |u: &u32| Some(u64::from(batch / u + 1) * u64::from(*u)).filter(|&b| b <= u64::from(MOST_SEQUENCES));
    let mut above: Vec<u32> = units.iter().filter_map(next).filter_map(|b| u32::try_from(b).ok()).collect();
    above.sort_unstable();
    let attempt = |batch: u32, out: &mut Remedies| {
        let task = changed(task, |t| t.job.global_batch_size = batch);
        !out.observer.stop()
            && task.prepare().divides()
            && out.attempt(format!("another batch: --global-batch {batch}"), &task)
    };
    let ways = |batch: &u32| units.iter().filter(|&replicas| batch % replicas == 0).count();
    for mut side in [below, above] {
        side.dedup();
        let Some(nearest) = side.iter().copied().take(near).find(|&batch| attempt(batch, out)) else {
            continue;
        };
        // The first of those that divide best; nearer ones were tried.
        let apart = |other: u32| other.abs_diff(batch);
        let close = side.iter().copied().filter(|&other| {
            apart(other) > apart(nearest) && f64::from(apart(other)) <= CLOSE * f64::from(batch)
        });
        let better = close.rev().max_by_key(ways).filter(|better| ways(better) > ways(&nearest));
        if let Some(better) = better.filter(|&better| attempt(better, out)) {
            let each = |remedy: &Remedy, batch: u32| remedy.step.0 / f64::from(batch);
            let last = out.found.len() - 1;
            let slower =
                each(&out.found[last], better) >= (1.0 - WORTH) * each(&out.found[last - 1], nearest);
            out.found.remove(if slower { last } else { last - 1 });
        }
    }
}

/// Where GPUs and batch do not divide: the nearest numbers of GPUs that do, one smaller and one larger, of so many tried
/// to either side.
fn other_gpus(task: &Task, near: usize, out: &mut Remedies) {
    let gpus = task.job.gpus;
    let below: Vec<u32> = (1..gpus).rev().filter(|&n| possible(task, n)).take(near).collect();
    let above: Vec<u32> =
        (gpus + 1..gpus.saturating_add(1 << 14)).filter(|&n| possible(task, n)).take(near).collect();
    let nearest = |side: Vec<u32>, out: &mut Remedies| {
        side.into_iter().any(|gpus| {
            let task = changed(task, |t| t.job.gpus = gpus);
            !out.observer.stop()
                && task.prepare().divides()
                && out.attempt(format!("another number of GPUs: --gpus {gpus}"), &task)
        })
    };
    let known = out.found.len();
    nearest(below, out);
    leave_idle(task, known, out);
    nearest(above, out);
}

/// Fewer GPUs than the nearest that divide, where they are faster: of those that `--gpus-at-most` tries the fastest of the few
/// that divide in most ways. What the nearest fewer are good for, if anything, was found after `known` others.
fn leave_idle(task: &Task, known: usize, out: &mut Remedies) {
    /// Of how many.
    const FEW: usize = 2;
    let gpus = task.job.gpus;
    let mut counts = super::plan::at_most(gpus, task.machine.cluster.gpus_per_node);
    counts.retain(|&count| count < gpus);
    counts.sort_by_key(|&count| Reverse((ways_to_divide(task, count), count)));
    for count in counts.into_iter().take(FEW) {
        let fewer = changed(task, |t| t.job.gpus = count);
        if fewer.prepare().divides() {
            out.attempt(format!("leave GPUs idle, for example {}: --gpus-at-most", gpus - count), &fewer);
        }
    }
    // More GPUs that are slower are nobody's way out; of as fast ones it is the nearest.
    let fewer = out.found.split_off(known);
    out.found.extend(fewer.into_iter().min_by(|a, b| a.step.0.total_cmp(&b.step.0)));
}

/// How many GPUs it takes at least to keep a deadline that the run of a plan on so many does not: without any overhead.
fn enough(gpus: u32, bounds: Bounds, run: &RunCost, plan: &Found) -> Option<u32> {
    /// How much faster GPUs are expected to compute at most where they are more, on larger products.
    const BETTER: f64 = 1.1;
    let times = &plan.prediction.times;
    let useful = times.useful().0 as f64 / times.total().0.max(1) as f64;
    let share = run.time.total.0 / bounds.deadline?.0;
    Some((f64::from(gpus) * share * useful / BETTER) as u32)
}

/// Ways to keep a deadline or a budget that no plan of a task keeps: more GPUs where it is late, else fewer, or a reserved
/// price. `fastest` is the run that comes nearest, and the plan that it is of.
pub(crate) fn within(
    task: &Task,
    bounds: Bounds,
    (fastest, plan): (&RunCost, &Found),
    observer: &dyn Observer,
) -> Vec<Remedy> {
    let mut out = Remedies::new(bounds, observer);
    if bounds.deadline.is_some_and(|deadline| fastest.time.total.0 > deadline.0) {
        let gpus = task.job.gpus;
        let divides_better = |n: u32| ways_to_divide(task, n) > ways_to_divide(task, gpus);
        // What would not be enough without any overhead is not searched, unless it is near and divides better.
        let enough = enough(gpus, bounds, fastest, plan).unwrap_or(0);
        let hopeful = |n: u32| n >= enough || divides_better(n) && f64::from(n) <= NEAR * f64::from(gpus);
        nearest_number(task, true, hopeful, &mut out);
        // Fewer GPUs are faster only where they divide better.
        if out.found.is_empty() {
            let near = |n: u32| divides_better(n) && f64::from(n) * NEAR >= f64::from(gpus);
            nearest_number(task, false, near, &mut out);
        }
    } else if bounds.budget.is_some() {
        nearest_number(task, false, |_| true, &mut out);
    }
    if bounds.budget.is_some()
        && task.pricing == Pricing::OnDemand
        && task.machine.cluster.price.reserved.0 > 0.0
    {
        let reserved = changed(task, |t| t.pricing = Pricing::Reserved);
        out.attempt("another price: --price reserved".into(), &reserved);
    }
    out.found
}

/// How many times as many GPUs, or as few, may be faster or cheaper only because they divide better.
const NEAR: f64 = 1.4;

/// The nearest number of `more` or fewer GPUs that keeps all bounds, of a few of those that are `hopeful`.
fn nearest_number(task: &Task, more: bool, hopeful: impl Fn(u32) -> bool, out: &mut Remedies) {
    /// Share of GPUs that is no reason for more searches.
    const CLOSE: f64 = 0.25;
    /// What takes so many times as much as another bound allows does not do so for want of divisors, nor do so many numbers
    /// in a row that keep this one.
    const BEYOND: f64 = 2.0;
    const IN_A_ROW: u32 = 3;
    /// Numbers between two that are tried, those that divide best.
    const BETWEEN: usize = 3;
    let gpus = task.job.gpus;
    let attempt = |out: &mut Remedies, gpus: u32| {
        let what = if more { "more" } else { "fewer" };
        out.attempt(format!("{what} GPUs: --gpus {gpus}"), &changed(task, |t| t.job.gpus = gpus))
    };
    let usable = |n: &u32| *n != gpus && possible(task, *n) && hopeful(*n);
    let mut all = multiples(gpus, task.machine.cluster.gpus_per_node, more);
    all.retain(usable);
    let ways = |n: u32| ways_to_divide(task, n);
    let counts = if more || all.len() <= BETWEEN { all.clone() } else { far_apart(gpus, &all, ways) };
    // More of them take more dollars, fewer more time: those further away miss the other bound by more.
    let mut beyond = 0;
    // The last that keeps the other bound, and the last.
    let (mut kept, mut last) = (gpus, gpus);
    for &at in &counts {
        let found = attempt(out, at);
        // What does not fit is no nearer to it with fewer GPUs.
        let (own, other) = match out.taken {
            Some([late, dear]) if more => (late, dear),
            Some([late, dear]) => (dear, late),
            None => (f64::INFINITY, if more { 1.0 } else { f64::INFINITY }),
        };
        beyond = if own <= 1.0 && other > 1.0 { beyond + 1 } else { 0 };
        if !found && beyond < IN_A_ROW && other <= BEYOND {
            kept = if out.taken.is_none() || other > 1.0 { kept } else { at };
            last = at;
            continue;
        }
        // On the way there some may be nearer, or keep both.
        let last = if found { last } else { kept };
        if f64::from(at.abs_diff(last)) > CLOSE * f64::from(at) {
            let (from, apart) = (i64::from(last), i64::from(at) - i64::from(last));
            let quarters = (1..4).filter(|n| apart * n % 4 == 0).map(|n| (from + apart * n / 4) as u32);
            let between = |n: &u32| *n > at.min(last) && *n < at.max(last) && !counts.contains(n);
            let mut nearer: Vec<u32> = all.iter().copied().chain(quarters.filter(usable)).collect();
            nearer.retain(between);
            nearer.sort_unstable_by_key(|&n| (Reverse(ways(n)), n.abs_diff(last)));
            nearer.dedup();
            nearer.truncate(BETWEEN);
            nearer.sort_unstable_by_key(|n| n.abs_diff(last));
            let known = out.found.len();
            if nearer.into_iter().any(|gpus| attempt(out, gpus)) && found {
                // What was found first is further away.
                out.found.remove(known - 1);
            }
        }
        return;
    }
}

/// In how many ways the batch of a task divides among replicas of so many GPUs, and how often these can be halved.
fn ways_to_divide(task: &Task, gpus: u32) -> (usize, u32) {
    let batch = task.job.global_batch_size;
    (divisors(gpus).into_iter().filter(|replicas| batch % replicas == 0).count(), gpus.trailing_zeros())
}

/// Of numbers below `gpus`, in falling order, some that are by half to twice apart, as dollars fall slowly: of those in
/// reach the one that divides in most `ways`.
fn far_apart<K: Ord>(gpus: u32, counts: &[u32], ways: impl Fn(u32) -> K) -> Vec<u32> {
    let next = |&last: &u32| {
        let (last, counts) = (u64::from(last), counts.iter().copied());
        let far = counts.filter(|&n| 3 * u64::from(n) <= 2 * last);
        let near = far.clone().filter(|&n| 2 * u64::from(n) >= last);
        near.max_by_key(|&n| (ways(n), n)).or_else(|| far.max())
    };
    std::iter::successors(Some(gpus), next).skip(1).collect()
}

/// Quarters of so many GPUs, then halves, and so on, up to 64 times as many or as few, whole nodes or not: what
/// divides batch and layers of a job well mostly does so as well. Between them, where a job divides badly, are four to seven
/// times powers of two of nodes.
fn multiples(gpus: u32, per_node: u32, more: bool) -> Vec<u32> {
    let all = u64::from(gpus);
    let factors = (0..6).flat_map(|doubled| [5, 6, 7, 8].map(|quarters: u64| quarters << doubled));
    let exact = factors.filter_map(|by| {
        let (up, down) = if more { (by, 4) } else { (4, by) };
        (all * up % down == 0).then(|| all * up / down)
    });
    let powers = (0..20)
        .flat_map(|doubled| [4, 5, 6, 7].map(|nodes: u64| (nodes << doubled) * u64::from(per_node) / 4));
    let near = powers.filter(|&n| if more { n > all && n <= 64 * all } else { n < all && 64 * n >= all });
    let mut counts: Vec<u32> =
        exact.chain(near).filter_map(|n| u32::try_from(n).ok()).filter(|&n| n > 0).collect();
    counts.sort_unstable();
    counts.dedup();
    if !more {
        counts.reverse();
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In order; quarters and halves among them where they are whole, and others nearby.
    #[test]
    fn multiples_are_close_to_one_another() {
        for gpus in [512_u32, 96, 488, 8, 1_000, 24, 5_376] {
            for more in [false, true] {
                let all = multiples(gpus, 8, more);
                assert!(if more { all.is_sorted() } else { all.is_sorted_by(|a, b| a >= b) }, "{all:?}");
                assert!(all.iter().all(|&n| if more { n > gpus } else { n < gpus }), "{all:?}");
                assert!(all.contains(&if more { 2 * gpus } else { gpus / 2 }), "{gpus}: {all:?}");
                let whole: Vec<u32> = all.into_iter().filter(|n| *n < 8 || n % 8 == 0).collect();
                let apart = |pair: &[u32]| f64::from(pair[0].max(pair[1])) / f64::from(pair[0].min(pair[1]));
                let nodes = whole.iter().position(|&n| n <= 64).filter(|_| !more).unwrap_or(whole.len());
                assert!(whole[..nodes].windows(2).all(|pair| apart(pair) <= 2.0), "{gpus}: {whole:?}");
            }
        }
        assert!(multiples(5_376, 8, true).contains(&6_144));
        // 61 nodes have no halves.
        assert!(multiples(488, 8, false).contains(&128));
        let apart = |gpus| far_apart(gpus, &multiples(gpus, 8, false), u32::trailing_zeros);
        assert_eq!(apart(64), [32, 16, 8, 4, 2, 1]);
        assert_eq!(apart(1_000)[..3], [512, 256, 128]);
    }
}
