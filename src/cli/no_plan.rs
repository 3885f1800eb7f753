//! Why there is no plan, what comes nearest, and the ways out.

use std::io::Write;

use super::Failure;
use super::fix::unavailable;
use super::models::group;
use super::output::{Report, Section, money, seconds};
use super::progress::Bar;
use super::remedies::{Bounds, Remedy, remedies, run_of, within};
use crate::candidates::{SplitLost, divisors};
use crate::cost::money::{RunCost, run_cost};
use crate::frameworks::ExpertTensor;
use crate::planner::{NearestMiss, Offloading, Prepared};
use crate::search::{Answer, Found, Observer, Stop};
use crate::spec::job::Training;

/// What is to be said where there is no plan.
pub(crate) struct NoPlan<'a> {
    /// What comes nearest to fitting, by search.
    pub(crate) nearest: Vec<(&'a Section<'a>, NearestMiss)>,
    /// What binds, in words.
    pub(crate) reasons: Vec<String>,
    /// Ways out, each confirmed.
    pub(crate) remedies: Vec<Remedy>,
    /// Ctrl-C or the time limit ended the search for more.
    pub(crate) stopped: bool,
}

impl<'a> NoPlan<'a> {
    /// Looks for what comes nearest and for ways out.
    pub(crate) fn of(report: &Report<'a>) -> Self {
        let mut no_plan = Self::known(report);
        no_plan.look_further(report);
        no_plan
    }

    /// What the search has shown.
    fn known(report: &Report<'a>) -> Self {
        // Of what was hardly searched, what fell to which rule says nothing.
        let unseen =
            |section: &Section| section.answer.stop == Stop::Interrupted && section.answer.found.is_empty();
        let seen = report.sections.iter().filter(|section| report.sections.len() == 1 || !unseen(section));
        let (empty, found): (Vec<&Section>, Vec<&Section>) =
            seen.partition(|section| section.answer.found.is_empty());
        let mut reasons = Vec::new();
        let tried = |section: &&Section| matches!(section.offloading, Offloading::Needed);
        if found.is_empty() && empty.iter().all(tried) {
            reasons.push("nothing fits without offload, nor with it".to_owned());
        }
        reasons.extend(reasons_of(&empty, report.sections.len() > 1));
        reasons.extend(found.into_iter().filter_map(|section| out_of_bounds(section, report.bounds)));
        let count = report.sections.iter().filter(|section| unseen(section)).count();
        if report.sections.len() > 1 && count > 0 {
            let all = report.sections.len();
            reasons.push(format!("{count} of {all} choices of GPUs were not searched before it was stopped"));
        }
        Self {
            nearest: Vec::new(),
            reasons,
            remedies: Vec::new(),
            stopped: report.sections.iter().any(|section| section.answer.stop == Stop::Interrupted),
        }
    }

    /// What takes more searches.
    fn look_further(&mut self, report: &Report<'a>) {
        let bar = report.bar;
        if !self.stopped {
            bar.ways_out();
            let empty = report.sections.iter().filter(|section| section.answer.found.is_empty());
            self.nearest = empty.filter_map(|section| Some((section, nearest_miss(section, bar)?))).collect();
            self.remedies = ways_out(report);
            self.stopped = bar.stop();
        }
        bar.clear();
    }
}

/// Prints it for people: at once what is known, as ways out may take seconds.
pub(crate) fn print(report: &Report, out: &mut dyn Write) -> Result<(), Failure> {
    let mut no_plan = NoPlan::known(report);
    report.bar.clear();
    writeln!(out, "no plan")?;
    for reason in &no_plan.reasons {
        writeln!(out, "  {reason}")?;
    }
    out.flush()?;
    no_plan.look_further(report);
    for (section, miss) in &no_plan.nearest {
        writeln!(
            out,
            "  nearest miss{}{}: {} needs {:.1} GB of {:.1} GB on its fullest GPU{}",
            if section.offloading.is_open() { " without offload" } else { "" },
            if report.sections.len() > 1 { format!(" of {}", choice(section)) } else { String::new() },
            miss.plan,
            miss.allocated.gigabytes(),
            section.prepared.cost().memory_limit().gigabytes(),
            if miss.stopped { "; others may come nearer" } else { "" }
        )?;
    }
    for remedy in &no_plan.remedies {
        let run = remedy.run.as_ref().filter(|_| report.bounds != Bounds::default());
        let run = run.map_or(String::new(), |run| {
            let odds: String = remedy.odds.iter().map(|one| format!(", {one}")).collect();
            format!("; {}{odds}", days_and_dollars(run))
        });
        // What keeps one bound and misses the other is no way out.
        let kept = report.bounds.admit(remedy.run.as_ref());
        writeln!(
            out,
            "  {}: {} (confirmed: {}, {} a step{run})",
            if kept { "remedy" } else { "nearest" },
            remedy.what,
            remedy.plan,
            seconds(remedy.step),
        )?;
    }
    let refused = report.sections.iter().all(|section| section.prepared.refusal().is_some());
    if no_plan.stopped {
        writeln!(out, "  the search was stopped: more may help")?;
    } else if no_plan.remedies.is_empty() && !refused {
        writeln!(out, "  no remedy was found")?;
    }
    Ok(())
}

fn days_and_dollars(run: &RunCost) -> String {
    format!("{:.1} days, {}", run.days, money(run.dollars.total))
}

/// The whole run of a section's fastest plan.
fn fastest_run(section: &Section) -> Option<RunCost> {
    run_of(section.prepared, section.answer.found.first()?)
}

/// How far the fastest plan is from a deadline or a budget.
fn out_of_bounds(section: &Section, bounds: Bounds) -> Option<String> {
    let best = section.answer.found.first()?;
    let (gpus, cluster) = (section.prepared.task.job.gpus, &section.cluster);
    Some(match fastest_run(section) {
        Some(run) => {
            let late = bounds.deadline.is_some_and(|limit| run.time.total.0 > limit.0);
            let dear = bounds.budget.is_some_and(|limit| run.dollars.total.0 > limit.0);
            let missed = match (late, dear) {
                (true, true) => ": after the deadline and beyond the budget",
                (true, false) => ": after the deadline",
                (false, true) => ": beyond the budget",
                (false, false) => "",
            };
            format!(
                "{gpus} x {cluster}: the fastest plan, {}, takes {}{missed}",
                best.plan,
                days_and_dollars(&run)
            )
        }
        None => {
            let run = section.prepared.run(&best.prediction);
            let never = section.prepared.task.job.tokens.and_then(|tokens| run_cost(&run, tokens).err());
            let never = never.map_or(String::new(), |never| format!("; {never}"));
            format!("{gpus} x {cluster}: the fastest plan is {}{never}", best.plan)
        }
    })
}

/// Of a choice of GPUs with plans of which none keeps a deadline and a budget: how far the fastest is from them.
pub(crate) fn beyond(section: &Section, bounds: Bounds) -> Option<String> {
    let admitted = |found: &Found| bounds.admit(run_of(section.prepared, found).as_ref());
    if section.answer.found.iter().any(admitted) { None } else { out_of_bounds(section, bounds) }
}

/// Ways out from the choice of GPUs that comes nearest.
fn ways_out(report: &Report) -> Vec<Remedy> {
    let found = || {
        let sections = report.sections.iter();
        sections.filter_map(|section| Some((section, fastest_run(section)?, section.answer.found.first()?)))
    };
    let nearest = match report.bounds.deadline {
        Some(_) => found().min_by(|a, b| a.1.time.total.0.total_cmp(&b.1.time.total.0)),
        None => found().min_by(|a, b| a.1.dollars.total.0.total_cmp(&b.1.dollars.total.0)),
    };
    if let Some((section, run, plan)) = nearest {
        let task = section.prepared.task;
        let several = report.sections.iter().any(|other| other.cluster != section.cluster);
        let place = if several { format!(" on {}", section.cluster) } else { String::new() };
        let within = |bounds| {
            let found = within(task, bounds, (&run, plan), report.bar).into_iter();
            found.map(|one| Remedy { what: format!("{}{place}", one.what), ..one }).collect::<Vec<_>>()
        };
        let mut found = within(report.bounds);
        let Bounds { deadline, budget } = report.bounds;
        if found.is_empty() && deadline.is_some() && budget.is_some() {
            // No number of GPUs keeps both: one of them is better than none, but for one that is kept already.
            let alone = [
                (Bounds { deadline, budget: None }, "beyond the budget"),
                (Bounds { deadline: None, budget }, "after the deadline"),
            ];
            for (bounds, missed) in alone.into_iter().filter(|(bounds, _)| !bounds.admit(Some(&run))) {
                let some = within(bounds).into_iter();
                found.extend(some.map(|one| {
                    // What was not tried for both may keep both.
                    let both = report.bounds.admit(one.run.as_ref());
                    if both { one } else { Remedy { what: format!("{}, {missed}", one.what), ..one } }
                }));
            }
            found.sort_by_key(|one| !report.bounds.admit(one.run.as_ref()));
        }
        return found;
    }
    let largest = report.sections.iter().max_by_key(|section| section.prepared.task.job.gpus);
    largest.map_or_else(Vec::new, |section| {
        let memory = section.answer.counters.pruned.contains_key("memory");
        remedies(section.prepared.task, memory, report.bounds, report.bar)
    })
}

/// GPUs of a section, of several.
fn choice(section: &Section) -> String {
    format!("{} x {}", section.prepared.task.job.gpus, section.cluster)
}

/// What binds where searches found nothing: of each, unless it is the same for all.
fn reasons_of(empty: &[&Section], several: bool) -> Vec<String> {
    let each: Vec<_> = empty.iter().map(|section| reasons(section.prepared, &section.answer)).collect();
    let alike = each.windows(2).all(|pair| pair[0] == pair[1]) && each.len() > 1;
    if alike || !several {
        return each.into_iter().next().unwrap_or_default();
    }
    let lines = empty.iter().zip(each);
    lines
        .flat_map(|(section, lines)| lines.into_iter().map(|line| format!("{}: {line}", choice(section))))
        .collect()
}

/// What a rule is about, by how a layout breaks it.
fn in_words(prepared: &Prepared, rule: &str) -> String {
    prepared.example_of(rule).map_or(String::new(), |example| format!("; for example: {example}"))
}

/// What binds where a search found nothing, in words.
pub(crate) fn reasons(prepared: &Prepared, answer: &Answer) -> Vec<String> {
    let c = &answer.counters;
    let mut lines = Vec::new();
    let contradictions = prepared.task.restrictions.contradictions();
    if !contradictions.is_empty() {
        lines.push(format!("the --fix and --max options leave no value for {}", contradictions.join(", ")));
    } else if let Some((refusal, others)) = prepared.refusal() {
        let names: Vec<&str> = others.iter().map(|target| target.name()).collect();
        let others = match names.as_slice() {
            [] => "no framework can".to_owned(),
            names => format!("--framework of those that can: {}", names.join(", ")),
        };
        let adapters = prepared.task.job.training != Training::Full;
        let others = if adapters { format!("{others}; no files are written for adapters") } else { others };
        lines.push(format!("{refusal}; {others}"));
    } else if let absent = unavailable(prepared)
        && !absent.is_empty()
    {
        lines.extend(absent);
    } else if c.candidates == 0 {
        lines.push(undivided(prepared));
        let forbidden = prepared.forbidden_degrees();
        lines.extend(forbidden.iter().take(5).map(|(rule, count)| {
            let example = in_words(prepared, rule);
            format!(
                "{} combinations of degrees, those of experts and micro-batch sizes included, break rule: {rule}{example}",
                group(*count)
            )
        }));
    }
    let mut reasons: Vec<(&String, &u64)> = c.pruned.iter().collect();
    reasons.sort_by(|a, b| b.1.cmp(a.1).then(a.0.cmp(b.0)));
    const NAMED: usize = 5;
    let (named, others) = reasons.split_at(reasons.len().min(NAMED));
    for (at, (reason, count)) in named.iter().enumerate() {
        let count = group(**count);
        lines.push(match (at, reason.as_str()) {
            (at, "memory") => {
                let binds = if at == 0 { "memory binds: " } else { "" };
                let limit = prepared.cost().memory_limit();
                // Splits with more empty stages are legal, and not sought.
                let filled = prepared.task.target.capabilities().empty_stages;
                let filled = if filled { " with layers on all stages between the ends" } else { "" };
                format!(
                    "{binds}{count} layouts{filled} need more than the {limit} of a GPU that may be allocated"
                )
            }
            (_, reason) => {
                let rule = reason.strip_prefix("rule: ");
                let example = rule.map_or(String::new(), |rule| in_words(prepared, rule));
                format!("{count} layouts fell to {reason}{example}")
            }
        });
    }
    if !others.is_empty() {
        let count = group(others.iter().map(|(_, count)| **count).sum());
        let reasons = if others.len() == 1 {
            "another reason".to_owned()
        } else {
            format!("{} other reasons", others.len())
        };
        lines.push(format!("{count} layouts fell to {reasons}"));
    }
    lines
}

/// Why GPUs and batch admit no combination of degrees, in words.
fn undivided(prepared: &Prepared) -> String {
    let (job, r) = (&prepared.task.job, &prepared.task.restrictions);
    let divide = format!("{} GPUs and a batch of {} divide in no way", job.gpus, job.global_batch_size);
    let degrees = [
        ("tp", &r.tensor_parallel),
        ("cp", &r.context_parallel),
        ("pp", &r.pipeline_parallel),
        ("dp", &r.data_parallel),
    ];
    for (name, axis) in degrees {
        if let Some(only) = axis.only.as_ref().filter(|only| only.iter().all(|n| job.gpus % n != 0)) {
            let values: Vec<String> = only.iter().map(u32::to_string).collect();
            return format!("{divide}: {name}={} does not divide the GPUs", values.join("|"));
        }
    }
    const NO_LAYOUT: &str = "no layout is left";
    if let Some(experts) = undivided_experts(prepared).or_else(|| beyond_tensor_parallel(prepared)) {
        return format!("{NO_LAYOUT}: {experts}");
    }
    let lost = prepared.splits_lost();
    let mut ways: Vec<String> = Vec::new();
    for (lost, count) in &lost {
        let said = match lost {
            SplitLost::Framework => {
                format!("need a kind of parallelism that {} does not have", prepared.task.target)
            }
            SplitLost::Restrictions => "are outside --fix and --max".into(),
            SplitLost::Degree => {
                "have tp or cp above 64, tried only where --max-tp or --max-cp says so".into()
            }
            SplitLost::Stages => "have more stages than layers and ends".into(),
            SplitLost::MicroBatches => "leave no micro-batch and accumulation under --fix and --max".into(),
            SplitLost::Experts if may_be_above_tp(prepared) => {
                format!("leave no degrees of experts ({UP_TO_TP})")
            }
            SplitLost::Experts => "leave no degrees of experts".into(),
            SplitLost::Rules => format!("break rules of {}", prepared.task.target),
            SplitLost::Chunks => "have more chunks (pp x vpp) than layers and ends under --fix vpp".into(),
            SplitLost::Layouts => {
                "leave no schedule, flags or stage of sharding under --fix and --max".into()
            }
            SplitLost::Batch { .. } => continue,
        };
        ways.push(format!("{count} {said}"));
    }
    let replicas: Vec<u32> = prepared.refused_replicas();
    if let (Some(fewest), Some(most)) = (replicas.iter().min(), replicas.iter().max()) {
        let count: u64 = lost.iter().filter(|(l, _)| matches!(l, SplitLost::Batch { .. })).map(|l| l.1).sum();
        let which = if fewest == most { fewest.to_string() } else { format!("{fewest} to {most}") };
        ways.push(format!("{count} have {which} replicas, which do not divide the batch"));
    }
    let beyond = [SplitLost::Experts, SplitLost::Rules, SplitLost::Chunks, SplitLost::Layouts];
    let begin =
        if beyond.iter().any(|reason| lost.contains_key(reason)) { NO_LAYOUT.to_owned() } else { divide };
    format!(
        "{begin}: of the ways to split {} GPUs over tensor, context and pipeline ranks and replicas, {}",
        job.gpus,
        ways.join(", ")
    )
}

/// Which degrees of experts that are asked for divide not what they must.
fn undivided_experts(prepared: &Prepared) -> Option<String> {
    let only = prepared.task.restrictions.expert_parallel.only.as_ref().filter(|only| !only.is_empty())?;
    let experts = prepared.context.moe.first()?.experts;
    let gpus = u64::from(prepared.task.job.gpus);
    let none_divides = |whole: u64| only.iter().all(|&n| whole % u64::from(n) != 0);
    let values: Vec<String> = only.iter().map(u32::to_string).collect();
    let values = format!("ep={}", values.join("|"));
    Some(match (none_divides(experts), none_divides(gpus)) {
        (true, true) => format!("{values} divides neither the {experts} experts nor the GPUs"),
        (true, false) => format!("{values} does not divide the {experts} experts"),
        (false, true) => format!("{values} does not divide the GPUs"),
        (false, false) => return None,
    })
}

/// What is not searched of degrees that a framework has.
const UP_TO_TP: &str = "etp is searched up to tp: beyond, experts would be cut finer than attention";

/// Whether the framework would take other degrees of expert tensor parallelism than are searched.
fn searches_up_to_tp(prepared: &Prepared) -> bool {
    prepared.task.target.capabilities().expert_tensor == ExpertTensor::Free
}

/// Whether such a degree is asked for that is above some tensor-parallel one that may be.
fn may_be_above_tp(prepared: &Prepared) -> bool {
    let (r, gpus) = (&prepared.task.restrictions, prepared.task.job.gpus);
    let least = divisors(gpus).into_iter().filter(|&tp| r.tensor_parallel.admits(tp, gpus)).min();
    let above = |only: &Vec<u32>| only.iter().any(|&etp| least.is_some_and(|tp| etp > tp));
    searches_up_to_tp(prepared) && r.expert_tensor_parallel.only.as_ref().is_some_and(above)
}

/// Which expert-tensor-parallel degrees that are asked for are above every tensor-parallel one that may be.
fn beyond_tensor_parallel(prepared: &Prepared) -> Option<String> {
    let (r, gpus) = (&prepared.task.restrictions, prepared.task.job.gpus);
    let only = r.expert_tensor_parallel.only.as_ref().filter(|_| searches_up_to_tp(prepared))?;
    let most = divisors(gpus).into_iter().filter(|&tp| r.tensor_parallel.admits(tp, gpus)).max()?;
    let values: Vec<String> = only.iter().map(u32::to_string).collect();
    only.iter()
        .all(|&etp| etp > most)
        .then(|| format!("etp={} is above tp, which is {most} at most, and {UP_TO_TP}", values.join("|")))
}

/// What comes nearest to fitting, where memory binds.
fn nearest_miss(section: &Section, bar: &Bar) -> Option<NearestMiss> {
    let binds = section.answer.counters.pruned.contains_key("memory");
    if binds { section.prepared.nearest_miss(bar) } else { None }
}
