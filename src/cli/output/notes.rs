//! What is to be said beside a table of plans.

use std::collections::BTreeSet;
use std::io::Write;

use super::{Report, Row, Section, percent, seconds};
use crate::cli::calibrate::{kind_of, runs_of};
use crate::cli::fix::idle;
use crate::cli::remedies::Bounds;
use crate::cli::surer::{self, Surer};
use crate::cli::{Failure, stages};
use crate::cost::step::Prediction;
use crate::frameworks::Target;
use crate::frameworks::error_bars::Leaning;
use crate::plan::Plan;
use crate::planner::Prepared;
use crate::search::Found;
use crate::spec::cluster::Architecture;
use crate::spec::diagnostic::list;
use crate::spec::{load_accelerator, shipped};

/// An error bar beyond which a prediction says little.
const UNSURE: f64 = 0.5;

/// Where memory may be allocated that GPUs do not have, where the searches opened offload, and what was asked for in vain.
pub(super) fn notes(report: &Report, rows: &[Row]) -> Vec<String> {
    let several = report.sections.len() > 1;
    let offload = report.sections.iter().filter_map(|section| section.offload_note(several));
    let blocks = blocks(report).into_iter().chain(below_memory(report)).chain(own_dispatchers(rows));
    let before = beyond_memory(report).into_iter().chain(beyond_positions(report));
    before.chain(blocks).chain(offload).chain(idle_wishes(rows)).collect()
}

/// What `--fix` asks for that the first of the plans has no use for.
fn idle_wishes(rows: &[Row]) -> Vec<String> {
    let Some(row) = rows.first() else { return Vec::new() };
    let (restrictions, layout) = (&row.section.prepared.task.restrictions, row.found.plan.layout());
    let of = |(why, axes): (&str, Vec<&str>)| {
        let say = if axes.len() > 1 { "say" } else { "says" };
        format!("--fix {} {say} nothing of plan {}: its {why}", list(&axes, "and"), row.place + 1)
    };
    idle(restrictions, layout).into_iter().map(of).collect()
}

/// Where jobs get a part of every domain.
fn blocks(report: &Report) -> BTreeSet<String> {
    let of = |section: &Section| {
        let (cluster, gpus) = (&section.prepared.task.machine.cluster, section.prepared.task.job.gpus);
        let (block, domain) = (cluster.block_of(gpus)?, cluster.scale_up.domain);
        (block < domain).then(|| {
            let domains = gpus / block;
            format!(
                "{gpus} GPUs are {block} of the {domain} of each NVLink domain: {domains} domains, of which {} GPUs are not used, nor in its dollars (`allocation` in the cluster's file)",
                domains * (domain - block)
            )
        })
    };
    report.sections.iter().filter_map(of).collect()
}

/// Where plans that are printed send tokens to experts by libraries whose released builds do not run.
fn own_dispatchers(rows: &[Row]) -> BTreeSet<String> {
    let needs = |row: &&Row| row.section.prepared.needs_own_dispatcher(&row.found.plan);
    let of = |row: &Row| {
        format!(
            "deepep, hybridep: released builds do not run over the network of {}, where GPUs tell no network card to send; one that goes through hosts is needed (--fix dispatcher=all-to-all is without)",
            row.section.cluster
        )
    };
    rows.iter().filter(needs).map(of).collect()
}

/// Which GPUs' own files leave much of their memory out.
fn below_memory(report: &Report) -> BTreeSet<String> {
    /// What is left out for the sake of other programs is less.
    const MUCH: f64 = 0.9;
    let of = |section: &Section| {
        let (task, most) = (section.prepared.task, section.prepared.cost().device_limit());
        let accelerator = &task.machine.accelerator;
        let limit = accelerator.memory_limit.filter(|limit| limit.0 as f64 <= MUCH * most.0 as f64)?;
        task.job.memory_limit.is_none().then(|| {
            format!(
                "{limit} of the {most} that {} has for tensors may be allocated, by `memory_limit` in its file",
                accelerator.name
            )
        })
    };
    report.sections.iter().filter_map(of).collect()
}

/// Whether sequences are longer than the model was made for.
fn beyond_positions(report: &Report) -> Option<String> {
    let task = report.sections.first()?.prepared.task;
    let (length, longest) = (task.job.sequence_length, task.model.max_sequence);
    (u64::from(length) > longest).then(|| {
        format!(
            "sequences of {length} tokens are longer than the {longest} that {} is made for",
            task.model.name
        )
    })
}

/// Which GPUs a limit on memory is above the memory of, which helps to see what more would bring.
fn beyond_memory(report: &Report) -> BTreeSet<String> {
    let of = |section: &Section| {
        let limit = section.prepared.cost().memory_limit();
        let accelerator = &section.prepared.task.machine.accelerator;
        let most = section.prepared.cost().device_limit();
        (limit > most).then(|| {
            format!(
                "{:.1} GB may be allocated, more than the {:.1} of {:.1} GB that {} has for tensors: plans may not run there",
                limit.gigabytes(),
                most.gigabytes(),
                accelerator.memory.gigabytes(),
                accelerator.name
            )
        })
    };
    report.sections.iter().filter_map(of).collect()
}

/// A tie is decided by what a person minds: memory to spare, and little to look after.
fn ties(rows: &[Row]) -> Option<String> {
    /// Less memory to spare than this makes no difference.
    const ROOM: f64 = 0.05;
    let tied: Vec<&Row> = rows.iter().filter(|row| row.ties_with_first).collect();
    if tied.is_empty() {
        return None;
    }
    let mut line = "= : inside the error of the prediction, a tie with the first".to_owned();
    let Some(best) = rows.iter().find(|row| row.place == 0) else { return Some(line) };
    // The first of equals.
    let roomiest = tied.iter().rev().max_by(|a, b| a.free().total_cmp(&b.free()));
    let simplest = tied.iter().min_by_key(|row| row.kinds());
    let roomier = roomiest.filter(|row| row.free() > best.free() + ROOM);
    let simpler = simplest.filter(|row| row.kinds() < best.kinds());
    match (roomier, simpler) {
        (Some(one), Some(other)) if one.place == other.place => {
            line += &format!(
                "; {} leaves more memory and uses fewer kinds of parallelism or recomputation",
                one.number()
            );
        }
        (roomier, simpler) => {
            if let Some(row) = roomier {
                line += &format!("; {} leaves most memory", row.number());
            }
            if let Some(row) = simpler {
                line += &format!("; {} uses the fewest kinds of parallelism and recomputation", row.number());
            }
        }
    }
    Some(line)
}

/// How surely the best plan fits, or the one that was picked, and what fits more surely.
fn room(rows: &[Row], picked: bool, surer: &Surer) -> Option<String> {
    let best = rows.first()?;
    // One that costs nothing is better than another search.
    let tied = rows.iter().find(|row| row.ties_with_first && row.chance_to_fit() >= surer::SURE.0);
    let tied = tied.filter(|_| !picked).map_or(String::new(), |row| {
        format!("; {0}, a tie, fits {1:.0} of 100 (--pick {0})", row.number(), row.chance_to_fit() * 100.0)
    });
    // What moving layers made faster may have fitted surely before.
    let ranked = best.found.ranked.as_deref().map(|ranked| best.chance_of(&ranked.prediction));
    let ranked = ranked.filter(|&chance| chance >= surer::SURE.0).map_or(String::new(), |chance| {
        format!("; as it was ranked it fits {:.0} of 100 (--as-ranked)", chance * 100.0)
    });
    Some(format!(
        "fits: of runs like {} {:.0} of 100 may run out of memory, by how far measured ones were off{ranked}{tied}\n  surer: {surer}",
        if picked { "this plan" } else { "the first" },
        (1.0 - best.chance_to_fit()) * 100.0,
    ))
}

/// How runs like a plan's lean, where these inform its bar.
fn leaning(row: &Row) -> Option<&'static Leaning> {
    let cost = row.section.prepared.cost();
    let informed = cost.own_runs().is_none() && (cost.is_measured() || cost.is_known_by_rates());
    cost.leaning().filter(|_| informed)
}

/// How surely a plan keeps the deadline and the budget, which predictions alone decide: a step that errs moves both, and where
/// measured runs lean it leans as they do.
fn kept(row: &Row, bounds: Bounds, picked: bool) -> Option<String> {
    let run = row.run.as_ref()?;
    let longer = leaning(row).map_or(0.0, Leaning::longer);
    let share = |factor: f64| {
        let share = row.found.prediction.interval.share_below(factor / (1.0 + longer)) * 100.0;
        if share > 99.0 { "more than 99".to_owned() } else { format!("{share:.0}") }
    };
    let deadline =
        bounds.deadline.map(|limit| format!("{} of 100 in time", share(limit.0 / run.time.total.0)));
    let budget = bounds
        .budget
        .map(|limit| format!("{} of 100 within the budget", share(limit.0 / run.dollars.total.0)));
    let said: Vec<String> = [deadline, budget].into_iter().flatten().collect();
    (!said.is_empty()).then(|| {
        let which = if picked { "this plan" } else { "the first" };
        format!("runs like {which}, by the error bar of its step: {}", said.join(", "))
    })
}

/// What moving layers between chunks gained, plan by plan, or would gain.
pub(super) fn moved_layers(out: &mut impl Write, rows: &[Row]) -> Result<(), Failure> {
    let (mut taken, mut left) = (Vec::new(), Vec::new());
    for row in rows {
        let Found { plan, prediction, polished, ranked, .. } = row.found;
        if let Some(ranked) = ranked.as_deref() {
            taken.push(moved(row, [(&ranked.plan, &ranked.prediction), (plan, prediction)]));
        }
        if let Some(polished) = polished.as_deref() {
            left.push(moved(row, [(plan, prediction), (&polished.plan, &polished.prediction)]));
        }
    }
    if let Some(faster) = faster_when_moved(rows).filter(|_| !taken.is_empty()) {
        taken.push(format!("  with that, {faster}"));
    }
    let title =
        "splits changed after the ranking, whose order stays (--as-ranked keeps those that were ranked):";
    for (title, lines) in
        [(title, taken), ("layers moved between chunks would give (without --as-ranked):", left)]
    {
        if !lines.is_empty() {
            writeln!(out, "{title}\n{}", lines.join("\n"))?;
        }
    }
    Ok(())
}

/// A plan before and after its layers were moved: a line of what that changes, and one of the layers.
fn moved(row: &Row, splits: [(&Plan, &Prediction); 2]) -> String {
    /// Share of the memory from which on another need for it is told.
    const MORE: f64 = 0.02;
    let prepared = row.section.prepared;
    let [before, after] = splits.map(|(_, prediction)| prediction);
    let differ = |of: &dyn Fn(&Plan, &Prediction) -> String| {
        let [was, is] = splits.map(|(plan, prediction)| of(plan, prediction));
        if was == is { String::new() } else { format!("{was} -> {is}") }
    };
    let change = after.step().0 as f64 / before.step().0 as f64 - 1.0;
    let step = [before, after].map(|prediction| seconds(prediction.step().seconds())).join(" -> ");
    let recompute = differ(&|plan, _| match plan.common_recompute() {
        Some(way) => format!("rc-{way}"),
        None => "rc-mixed".to_owned(),
    });
    let fits = differ(&|_, prediction| format!("{:.0}%", row.chance_of(prediction) * 100.0));
    let [had, has] = [before, after].map(|prediction| prediction.allocated.gigabytes());
    let much = (has / had - 1.0).abs() >= MORE || !fits.is_empty();
    let memory = if much { format!("{had:.1} -> {has:.1} GB") } else { String::new() };
    let fits = if fits.is_empty() { fits } else { format!("fits {fits}") };
    let also = [recompute, memory, fits].into_iter().filter(|also| !also.is_empty());
    let also: String = also.map(|also| format!(", {also}")).collect();
    let layers = match differ(&|plan, _| stages::layout(prepared, plan)) {
        same if same.is_empty() => "the same layers".to_owned(),
        layers => layers,
    };
    format!("  {}: {step} ({}){also}\n     {layers}", row.number(), percent(change))
}

/// Which plan is faster than the first since layers were moved: what is best is decided by what was ranked.
pub(super) fn faster_when_moved(rows: &[Row]) -> Option<String> {
    let first = rows.first()?;
    let step = |row: &Row| row.found.prediction.step();
    let place = |row: &Row| (row.section.cluster.clone(), row.section.prepared.task.job.gpus);
    let behind =
        |row: &&Row| row.found.ranked_step() >= first.found.ranked_step() && place(row) == place(first);
    let fastest = rows.iter().filter(behind).min_by_key(|row| step(row))?;
    (fastest.place > first.place && step(fastest) < step(first))
        .then(|| format!("{0} is faster than the first (--pick {0} prints or saves it)", fastest.number()))
}

/// What is said of a search that did not try everything; nothing of one that did.
pub(in crate::cli) fn left_out(prepared: &Prepared, offloads: bool) -> String {
    let (what, options): (Vec<String>, Vec<String>) = prepared.left_out(offloads).into_iter().unzip();
    if what.is_empty() {
        return String::new();
    }
    let open = if options.len() == 1 { "opens it" } else { "open it" };
    format!("without {}: {} {open}", what.join(" and "), options.join(" and "))
}

/// What to weigh beside the time: ties, bounds that may not be kept, and memory that may not suffice.
pub(super) fn choice(report: &Report, rows: &[Row]) -> Vec<String> {
    let picked = report.pick.is_some();
    let surer = surer_of(report, rows);
    let kept = rows.first().and_then(|row| kept(row, report.bounds, picked));
    let room = surer.and_then(|surer| room(rows, picked, &surer));
    ties(rows).into_iter().chain(kept).chain(room).collect()
}

/// What fits more surely than the first plan.
pub(super) fn surer_of(report: &Report, rows: &[Row]) -> Option<Surer> {
    let first = rows.first()?;
    Surer::of(first.section.prepared, first.found, (report.even_stages, !report.as_ranked, report.bar))
}

/// Where error bars come from, cluster by cluster.
pub(super) fn bars(rows: &[Row]) -> Vec<String> {
    let mut lines = Vec::new();
    for (i, row) in rows.iter().enumerate() {
        if rows[..i].iter().any(|other| other.section.cluster == row.section.cluster) {
            continue;
        }
        let (prepared, cluster) = (row.section.prepared, &row.section.cluster);
        let (cost, profile) = (prepared.cost(), &prepared.task.profile_name);
        let experts = if prepared.context.has_experts() { "with" } else { "without" };
        let runs = format!("`{profile}` {experts} experts on GPUs like those of {cluster}");
        match cost.own_runs() {
            Some(own) => lines.push(format!(
                "± : from {} on {cluster} ({}), and from the class that ships",
                runs_of(own),
                kind_of(own)
            )),
            None => {
                if !prepared.task.machine.cluster.own_runs.is_empty() {
                    lines.push(format!(
                        "± : none of this site's own runs is like this job, so that bars on {cluster} are those that ship"
                    ));
                }
                if cost.is_known_by_rates() {
                    lines.push(format!(
                        "± : of {runs} only rates were printed, no times: the bar is from these"
                    ));
                } else if let Some(few) = cost.outside() {
                    let (_, most) = few.spread.unwrap_or_default();
                    let whose = if few.of.experts { "with" } else { "without" };
                    let which = if few.runs == 1 {
                        "the one run".to_owned()
                    } else {
                        format!("one of {} runs", few.runs)
                    };
                    lines.push(format!(
                        "± : {which} of `{profile}` {whose} experts on such GPUs was off by a factor of {:.1}: expect as much of these",
                        most.exp()
                    ));
                } else if !cost.is_measured() {
                    lines.push(format!("± : no runs of {runs} inform this bar: what that may hide is in it"));
                }
            }
        }
        if let Some(leaning) = leaning(row) {
            let (longer, runs) = (leaning.longer(), leaning.runs);
            let (took, than) = if longer > 0.0 { ("longer", longer) } else { ("less", -longer) };
            lines.push(format!(
                "± : {runs} runs of `{profile}` {experts} experts on such GPUs took {} {took} than predicted, in the median",
                percent(than)
            ));
        }
    }
    let unsure = rows.iter().filter(|row| row.found.prediction.interval.sigma > UNSURE);
    let unsure: Vec<String> = unsure.map(|row| row.number().to_string()).collect();
    if !unsure.is_empty() {
        lines.push(format!(
            "± : beyond {:.0}% a prediction says little: {}",
            UNSURE * 100.0,
            unsure.join(", ")
        ));
    }
    lines
}

/// What of the plans nobody measured.
pub(super) fn unmeasured(rows: &[Row]) -> Vec<String> {
    let mut lines = Vec::new();
    let mut say = |line: &str| lines.push(line.to_owned());
    if rows.iter().any(|row| row.found.plan.layout().offload.moves_states()) {
        say("± : nobody measured plans with states off the GPU: what that may hide is in the bar");
    }
    let caveat = |row: &Row| {
        let task = row.section.prepared.task;
        let text = task.profile.caveat.as_deref()?;
        Some(format!("± : `{}`: {text}", task.profile_name))
    };
    for line in rows.iter().filter_map(caveat).collect::<BTreeSet<String>>() {
        say(&line);
    }
    let ships = |name: &str| {
        let known = shipped::accelerators();
        known.iter().filter_map(|one| load_accelerator(one.name).ok()).any(|one| one.name == name)
    };
    let accelerators: BTreeSet<&str> = rows
        .iter()
        .map(|row| row.section.prepared)
        .filter(|prepared| prepared.cost().own_runs().is_none())
        .map(|prepared| prepared.task.machine.accelerator.name.as_str())
        .collect();
    for name in accelerators.into_iter().filter(|name| !ships(name)) {
        say(&format!(
            "± : {name} is no accelerator that ships: its rates are as good as its file, and the bar is that of others of its generation"
        ));
    }
    if rows.iter().any(|row| row.section.prepared.has_unmeasured_attention()) {
        say(
            "± : attention with position biases is computed eagerly by its class of transformers: nobody measured that, and what it takes is that of gpt-oss",
        );
    }
    if rows.iter().any(|row| row.found.plan.layout().mtp_standalone) {
        say(
            "mtp-standalone: further tokens are predicted on the stage before the last, and the last has nothing but the losses; no measured run has it, and what its messages cost follows from the framework's code (--fix mtp=head is without)",
        );
    }
    let queued = |row: &Row| {
        let (layout, task) = (row.found.plan.layout(), row.section.prepared.task);
        let split = layout.tensor_parallel > 1 || layout.context_parallel > 1;
        let asks = matches!(task.target, Target::Megatron | Target::Bridge);
        let before_blackwell = task.machine.accelerator.architecture < Architecture::Blackwell;
        asks && layout.expert_overlap && split && before_blackwell
    };
    if rows.first().is_some_and(queued) {
        say(
            "ep-ov with tp or cp: before Blackwell Megatron-LM warns of the two, as one is fast with CUDA_DEVICE_MAX_CONNECTIONS=1 and the other with 32, which is exported; what the former loses by that is not predicted: try both (--fix ep-overlap=off is without)",
        );
    }
    lines
}
