//! `--fix AXIS=VALUE`: what may be said, and what of it no plan of a job can have.

use std::collections::BTreeMap;

use super::Failure;
use crate::candidates::{Axis, OFFLOADS, Restrictions};
use crate::frameworks::export::inexpressible;
use crate::frameworks::{Capabilities, Target, mtp_stands_alone};
use crate::plan::{ContextComm, CudaGraphs, Dispatcher, Layout, Offload, Recompute, Schedule};
use crate::planner::Prepared;
use crate::search::balance::LONGEST_GROUP;

const AXES: &str = "tp, pp, vpp, dp, cp, ep, etp, mb, ga, zero, shard, recompute, schedule, offload, sp, tp-overlap, \
                    dp-overlap, ep-overlap, shared-overlap, cp-comm, dispatcher, mtp, graphs";
/// From how alike on one name may be meant by another, of 1.
const ALIKE: f64 = 0.7;
const SWITCH: [(&str, bool); 2] = [("on", true), ("off", false)];
pub(super) const SCHEDULES: [(&str, Schedule); 7] = [
    ("1f1b", Schedule::OneFOneB),
    ("interleaved", Schedule::Interleaved),
    ("gpipe", Schedule::GPipe),
    ("zb-h1", Schedule::ZeroBubbleH1),
    ("zb-h2", Schedule::ZeroBubbleH2),
    ("zb-v", Schedule::ZeroBubbleV),
    ("dualpipe", Schedule::DualPipe),
];
pub(super) const CONTEXT_COMMS: [(&str, ContextComm); 3] = [
    ("ring", ContextComm::Ring),
    ("all-gather", ContextComm::AllGather),
    ("all-to-all", ContextComm::AllToAll),
];
pub(super) const DISPATCHERS: [(&str, Dispatcher); 4] = [
    ("all-gather", Dispatcher::AllGather),
    ("all-to-all", Dispatcher::AllToAll),
    ("deepep", Dispatcher::DeepEp),
    ("hybridep", Dispatcher::HybridEp),
];
const MTP_PLACES: [(&str, bool); 2] = [("head", false), ("standalone", true)];
pub(super) const GRAPHS: [(&str, CudaGraphs); 4] = [
    ("none", CudaGraphs::None),
    ("attention", CudaGraphs::Attention),
    ("attention-router", CudaGraphs::AttentionRouter),
    ("full", CudaGraphs::FullIteration),
];

/// Reads one `--fix AXIS=VALUE`.
///
/// # Errors
/// An axis or a value that is none.
pub(crate) fn fix(r: &mut Restrictions, text: &str) -> Result<(), Failure> {
    let Some((name, values)) = text.split_once('=') else {
        return Err(Failure::Usage(format!("--fix {text}: expected AXIS=VALUE, such as tp=8")));
    };
    let values: Vec<&str> = values.split('|').map(str::trim).collect();
    let name = name.trim().to_ascii_lowercase();
    let axis = match name.as_str() {
        "tp" => &mut r.tensor_parallel,
        "pp" => &mut r.pipeline_parallel,
        "vpp" | "vp" => &mut r.virtual_stages,
        "dp" => &mut r.data_parallel,
        "cp" => &mut r.context_parallel,
        "ep" => &mut r.expert_parallel,
        "etp" => &mut r.expert_tensor_parallel,
        "mb" => &mut r.micro_batch_size,
        "ga" => &mut r.gradient_accumulation_steps,
        "zero" => &mut r.zero_stage,
        "shard" => &mut r.shard_group,
        "recompute" => {
            let modes: Result<Vec<Recompute>, _> = values.iter().map(|v| v.parse()).collect();
            let modes = modes.map_err(|e| Failure::Usage(format!("--fix {text}: {e}")))?;
            let long = |mode: &&Recompute| matches!(mode, Recompute::FullUniform(n) if *n > LONGEST_GROUP);
            if let Some(mode) = modes.iter().find(long) {
                return Err(Failure::Usage(format!(
                    "--fix {text}: {mode} recomputes groups of more than {LONGEST_GROUP} layers, which are not searched; the nearest is full:uniform:{LONGEST_GROUP}"
                )));
            }
            r.recompute = Some(intersect(r.recompute.take(), modes));
            return Ok(());
        }
        "schedule" => return choose(&mut r.schedule, text, &values, &SCHEDULES),
        "offload" if values == ["any"] => {
            let all = OFFLOADS.iter().map(|(_, offload)| *offload).collect();
            r.offload = Some(intersect(r.offload.take(), all));
            return Ok(());
        }
        "offload" => return choose(&mut r.offload, text, &values, &OFFLOADS),
        "sp" => return choose(&mut r.sequence_parallel, text, &values, &SWITCH),
        "tp-overlap" => return choose(&mut r.tensor_overlap, text, &values, &SWITCH),
        "dp-overlap" => return choose(&mut r.data_overlap, text, &values, &SWITCH),
        "ep-overlap" => return choose(&mut r.expert_overlap, text, &values, &SWITCH),
        "shared-overlap" => return choose(&mut r.shared_overlap, text, &values, &SWITCH),
        "cp-comm" => return choose(&mut r.context_comm, text, &values, &CONTEXT_COMMS),
        "dispatcher" => return choose(&mut r.dispatcher, text, &values, &DISPATCHERS),
        "mtp" => return choose(&mut r.mtp_standalone, text, &values, &MTP_PLACES),
        "graphs" => return choose(&mut r.cuda_graphs, text, &values, &GRAPHS),
        other => {
            let near = meant(other, AXES.split(", "));
            return Err(Failure::Usage(format!(
                "--fix {text}: there is no axis `{other}`{near} (axes: {AXES})"
            )));
        }
    };
    let (least, most) = if name == "zero" { (0, 3) } else { (1, 1 << 24) };
    let all = (name == "shard").then_some("all");
    let number = |v: &str| v.parse().ok().filter(|n| (least..=most).contains(n));
    let numbers: Option<Vec<u32>> =
        values.iter().map(|&v| if Some(v) == all { Some(0) } else { number(v) }).collect();
    let Some(numbers) = numbers else {
        let also = all.map_or(String::new(), |all| format!(", or `{all}`"));
        return Err(Failure::Usage(format!(
            "--fix {text}: expected whole numbers from {least} to {most}{also}, several with |"
        )));
    };
    *axis = Axis { only: Some(intersect(axis.only.take(), numbers)), max: axis.max };
    Ok(())
}

/// What both of two restrictions on an axis allow.
fn intersect<T: PartialEq>(before: Option<Vec<T>>, now: Vec<T>) -> Vec<T> {
    match before {
        Some(before) => now.into_iter().filter(|v| before.contains(v)).collect(),
        None => now,
    }
}

/// What may be meant, where something is like it.
fn meant<'a>(found: &str, known: impl Iterator<Item = &'a str>) -> String {
    let likeness = |name: &str| strsim::jaro_winkler(found, name);
    let near = known.max_by(|one, other| likeness(one).total_cmp(&likeness(other)));
    near.filter(|near| likeness(near) > ALIKE)
        .map_or(String::new(), |near| format!("; did you mean `{near}`?"))
}

/// Restricts an axis to named choices.
fn choose<T: Copy + PartialEq>(
    axis: &mut Option<Vec<T>>,
    text: &str,
    values: &[&str],
    known: &[(&str, T)],
) -> Result<(), Failure> {
    let refuse = |value: &str| {
        let names: Vec<&str> = known.iter().map(|(name, _)| *name).collect();
        let near = meant(value, names.iter().copied());
        let axis = text.split('=').next().unwrap_or(text);
        let names = names.join(", ");
        Failure::Usage(format!("--fix {text}: {axis} cannot be `{value}`{near} (choices: {names})"))
    };
    let find = |value: &&str| {
        let named = known.iter().find(|(name, _)| name.eq_ignore_ascii_case(value));
        named.map(|(_, choice)| *choice).ok_or_else(|| refuse(value))
    };
    let chosen: Vec<T> = values.iter().map(find).collect::<Result<_, _>>()?;
    *axis = Some(intersect(axis.take(), chosen));
    Ok(())
}

/// The name of a choice.
fn name_of<T: Copy + PartialEq>(names: &[(&'static str, T)], choice: T) -> String {
    names.iter().find(|(_, one)| *one == choice).map_or("-", |(name, _)| name).to_owned()
}

/// What is offloaded, as `--fix` takes it; what launches alone can say, as plans are named.
pub(crate) fn offload_name(offload: Offload) -> String {
    let known = OFFLOADS.iter().find(|(_, one)| *one == offload);
    known.map_or_else(|| offload.to_string(), |(name, _)| (*name).to_owned())
}

/// Every axis but recomputation with the value of a layout, as `--fix` takes it, or why it has no effect.
pub(crate) fn choices_of(l: &Layout) -> Vec<(&'static str, Result<String, &'static str>)> {
    let switch = |on: bool| name_of(&SWITCH, on);
    let replicas = l.data_parallel * l.context_parallel;
    let shared = if l.shard_group == replicas { "all".to_owned() } else { l.shard_group.to_string() };
    let degree = |degree: u32| Ok(degree.to_string());
    let beside =
        |degree: u32, why: &'static str, choice: String| if degree > 1 { Ok(choice) } else { Err(why) };
    let (tp, pp, cp, ep) = (l.tensor_parallel, l.pipeline_parallel, l.context_parallel, l.expert_parallel);
    let dispatcher = l.dispatcher.map_or_else(String::new, |dispatcher| name_of(&DISPATCHERS, dispatcher));
    vec![
        ("tp", degree(tp)),
        ("pp", degree(pp)),
        ("vpp", degree(l.virtual_stages)),
        ("cp", degree(cp)),
        ("dp", degree(l.data_parallel)),
        ("ep", degree(ep)),
        ("etp", degree(l.expert_tensor_parallel)),
        ("mb", degree(l.micro_batch_size)),
        ("ga", degree(l.gradient_accumulation_steps)),
        ("zero", degree(u32::from(l.zero_stage))),
        ("shard", if l.zero_stage > 0 { Ok(shared) } else { Err("zero is 0") }),
        ("schedule", beside(pp, "pp is 1", name_of(&SCHEDULES, l.schedule))),
        ("sp", beside(tp, "tp is 1", switch(l.sequence_parallel))),
        ("tp-overlap", beside(tp, "tp is 1", switch(l.tensor_overlap))),
        ("dp-overlap", beside(replicas, "dp and cp are 1", switch(l.data_overlap))),
        ("ep-overlap", beside(ep, "ep is 1", switch(l.expert_overlap))),
        ("shared-overlap", beside(ep, "ep is 1", switch(l.shared_overlap))),
        ("cp-comm", beside(cp, "cp is 1", name_of(&CONTEXT_COMMS, l.context_comm))),
        ("dispatcher", beside(ep, "ep is 1", dispatcher)),
        ("mtp", Ok(name_of(&MTP_PLACES, l.mtp_standalone))),
        ("graphs", Ok(name_of(&GRAPHS, l.cuda_graphs))),
        ("offload", Ok(offload_name(l.offload))),
    ]
}

/// What of the restrictions asks for something that a layout has no use for: why, and the axes.
pub(crate) fn idle(r: &Restrictions, l: &Layout) -> BTreeMap<&'static str, Vec<&'static str>> {
    // What is off where it has no effect is as it was asked for.
    let on = |only: &Option<Vec<bool>>| only.as_ref().is_some_and(|only| !only.contains(&false));
    let asked = [
        ("sp", on(&r.sequence_parallel)),
        ("tp-overlap", on(&r.tensor_overlap)),
        ("dp-overlap", on(&r.data_overlap)),
        ("ep-overlap", on(&r.expert_overlap)),
        ("shared-overlap", on(&r.shared_overlap)),
        ("cp-comm", r.context_comm.is_some()),
        ("dispatcher", r.dispatcher.is_some()),
    ];
    let mut idle: BTreeMap<&'static str, Vec<&'static str>> = BTreeMap::new();
    for (axis, choice) in choices_of(l) {
        if let Err(why) = choice
            && asked.contains(&(axis, true))
        {
            idle.entry(why).or_default().push(axis);
        }
    }
    idle
}

/// What of the restrictions no plan of the job can have, in words; empty where each has a chance by itself.
pub(crate) fn unavailable(prepared: &Prepared) -> Vec<String> {
    let task = prepared.task;
    let (r, target) = (&task.restrictions, task.target);
    let has = target.capabilities();
    let mut lines = Vec::new();
    type Degree<'a> = (&'a str, &'a Axis, fn(&Capabilities) -> bool);
    let degrees: [Degree; 5] = [
        ("tp", &r.tensor_parallel, |has| has.tensor_parallel),
        ("pp", &r.pipeline_parallel, |has| has.pipeline_parallel),
        ("vpp", &r.virtual_stages, |has| has.virtual_stages),
        ("cp", &r.context_parallel, |has| !has.context_comms.is_empty()),
        ("ep", &r.expert_parallel, |has| has.expert_parallel),
    ];
    for (name, axis, offers) in degrees {
        if !offers(has) && least(axis) > 1 {
            let machine = (&task.machine.cluster, &task.machine.accelerator);
            let has_model = |other: &Target| inexpressible(*other, &task.model, &task.job, machine).is_none();
            let others =
                Target::ALL.into_iter().filter(|other| other.exports() && offers(other.capabilities()));
            let others: Vec<&str> = others.filter(has_model).map(Target::name).collect();
            lines.push(match others.as_slice() {
                [] => format!("{target} has {name}=1 alone; no framework with more has {}", task.model.name),
                others => format!("{target} has {name}=1 alone; more have {}", others.join(", ")),
            });
        }
    }
    for (name, axis) in [("ep", &r.expert_parallel), ("etp", &r.expert_tensor_parallel)] {
        if least(axis) > 1 && !prepared.has_experts() {
            lines.push(format!("{} has no experts: {name} is 1", task.model.name));
        }
    }
    let product = [&r.tensor_parallel, &r.context_parallel, &r.pipeline_parallel, &r.data_parallel];
    let product: u64 = product.into_iter().map(|axis| u64::from(least(axis))).product();
    if product > u64::from(task.job.gpus) {
        lines.push(format!(
            "the degrees of --fix need {product} GPUs or more (tp x cp x pp x dp), not {}",
            task.job.gpus
        ));
    }
    let stages = has.zero_stages.iter().map(|&stage| (stage.to_string(), u32::from(stage)));
    let stages: Vec<(String, u32)> = stages.collect();
    let stages: Vec<(&str, u32)> = stages.iter().map(|(name, stage)| (name.as_str(), *stage)).collect();
    if let Some(only) = &r.zero_stage.only
        && !only.iter().any(|&stage| stages.iter().any(|(_, has)| *has == stage))
    {
        let names: Vec<&str> = stages.iter().map(|(name, _)| *name).collect();
        lines.push(format!("{target} has the ZeRO stages {}", names.join(", ")));
    }
    let gpus = task.job.gpus;
    if let Some(only) = &r.shard_group.only
        && only.iter().all(|&group| group > 0 && gpus % group != 0)
    {
        let named: Vec<String> = only.iter().map(u32::to_string).collect();
        lines
            .push(format!("no number of replicas of {gpus} GPUs is a multiple of shard={}", named.join("|")));
    }
    lines.extend(absent(target, "schedule", &r.schedule, has.schedules, &SCHEDULES));
    lines.extend(absent(target, "cp-comm", &r.context_comm, has.context_comms, &CONTEXT_COMMS));
    lines.extend(absent(target, "dispatcher", &r.dispatcher, has.dispatchers, &DISPATCHERS));
    if r.mtp_standalone.as_ref().is_some_and(|only| !only.is_empty() && !only.contains(&false)) {
        let stages = r.pipeline_parallel.only.as_ref().and_then(|only| only.iter().max().copied());
        let stages = stages.unwrap_or(u32::MAX).min(r.pipeline_parallel.max.unwrap_or(u32::MAX));
        let layout = Layout { pipeline_parallel: stages, mtp_standalone: true, ..Layout::ONE };
        let broken = mtp_stands_alone(has, &prepared.context, &layout).err();
        lines.extend(broken.map(|broken| format!("--fix mtp=standalone: {}", broken.in_words())));
    }
    lines.extend(absent(target, "graphs", &r.cuda_graphs, has.cuda_graphs, &GRAPHS));
    let offloads: Vec<_> =
        OFFLOADS.iter().map(|(_, offload)| *offload).filter(|offload| has.offloads(*offload)).collect();
    lines.extend(absent(target, "offload", &r.offload, &offloads, &OFFLOADS));
    lines
}

/// The smallest value that a restriction leaves.
fn least(axis: &Axis) -> u32 {
    axis.only.iter().flatten().copied().min().unwrap_or(1)
}

/// Choices of which the framework has none.
fn absent<T: Copy + PartialEq>(
    target: Target,
    axis: &str,
    only: &Option<Vec<T>>,
    has: &[T],
    names: &[(&str, T)],
) -> Option<String> {
    let only = only.as_ref().filter(|only| !only.is_empty() && !only.iter().any(|one| has.contains(one)))?;
    let named = |choices: &[T]| {
        let of = names.iter().filter(|(_, choice)| choices.contains(choice)).map(|(name, _)| *name);
        of.collect::<Vec<&str>>().join(", ")
    };
    Some(format!("{target} has no {axis}={}; it has {}", named(only), named(has)))
}
