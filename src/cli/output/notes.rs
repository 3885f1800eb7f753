//! What is to be said beside a table of plans.

use std::collections::BTreeMap;
use std::io::Write;

use super::{Report, Row, by, percent, seconds};
use crate::cli::fix::idle;
use crate::cli::remedies::Bounds;
use crate::cli::surer::{self, Sure, Surer};
use crate::cli::warnings::{Leaned, warnings, warnings_of_job};
use crate::cli::{Failure, stages};
use crate::cost::step::Prediction;
use crate::plan::Plan;
use crate::planner::Prepared;
use crate::search::Found;
use crate::spec::diagnostic::list;

/// What is to be known of the jobs, whether the searches opened offload, and what was asked for in vain.
pub(super) fn notes(report: &Report, rows: &[Row]) -> Vec<String> {
    let several = report.sections.len() > 1;
    // Of which choices of GPUs each is said, cluster by cluster.
    let mut said: Vec<(String, BTreeMap<&str, Vec<String>>)> = Vec::new();
    for section in report.sections {
        for note in warnings_of_job(section.prepared) {
            let at = said.iter().position(|(known, _)| *known == note).unwrap_or_else(|| {
                said.push((note, BTreeMap::new()));
                said.len() - 1
            });
            let gpus = section.prepared.task.job.gpus.to_string();
            said[at].1.entry(&section.cluster).or_default().push(gpus);
        }
    }
    let told = |(note, of): (String, BTreeMap<&str, Vec<String>>)| {
        if of.values().map(Vec::len).sum::<usize>() == report.sections.len() {
            return note;
        }
        let which = of.iter().map(|(cluster, gpus)| format!("{} x {cluster}", gpus.join(", ")));
        format!("{}: {note}", which.collect::<Vec<_>>().join("; "))
    };
    let mut notes: Vec<String> = said.into_iter().map(told).collect();
    notes.extend(report.sections.iter().filter_map(|section| section.offload_note(several)));
    notes.extend(idle_wishes(rows));
    notes
}

/// What is to be known of the plans: each thing once, with the plans that it is about where it is not about all.
pub(super) fn of_plans(rows: &[Row]) -> Vec<String> {
    let of = |row: &Row| warnings(row.section.prepared, &row.found.plan, &row.found.prediction);
    grouped("plan", rows.iter().map(|row| (row.number().to_string(), of(row))))
}

/// What is told of some things, each once, with the names of those that it is about where it is not about all.
pub(super) fn grouped(what: &str, of: impl ExactSizeIterator<Item = (String, Vec<String>)>) -> Vec<String> {
    let all = of.len();
    let mut told: Vec<(String, Vec<String>)> = Vec::new();
    for (name, lines) in of {
        for line in lines {
            match told.iter_mut().find(|(known, _)| *known == line) {
                Some((_, names)) => names.push(name.clone()),
                None => told.push((line, vec![name.clone()])),
            }
        }
    }
    let about = |(line, names): (String, Vec<String>)| match names.len() {
        some if some == all => line,
        1 => format!("{line} ({what} {})", names[0]),
        _ => format!("{line} ({what}s {})", names.join(", ")),
    };
    told.into_iter().map(about).collect()
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

/// The fastest of the plans behind the first that is sure to fit.
fn sure_of_listed<'a>(rows: &'a [Row<'a>]) -> Option<&'a Row<'a>> {
    let (first, others) = rows.split_first()?;
    let sure = |row: &&Row| std::ptr::eq(row.section, first.section) && row.chance_to_fit() >= surer::SURE.0;
    others.iter().filter(sure).min_by_key(|row| row.found.prediction.step())
}

/// How surely the best plan fits, or the one that was picked, and what fits more surely.
fn room(rows: &[Row], picked: bool, surer: &Surer) -> Option<String> {
    let best = rows.first()?;
    let listed = sure_of_listed(rows);
    // One of other degrees is sought only where it is faster than what is listed.
    let beaten = match (&surer.other, &surer.plan) {
        (Some(_), _) => false,
        (None, Some(Sure { found, .. })) => {
            listed.is_some_and(|row| row.found.prediction.step() <= found.prediction.step())
        }
        (None, None) => true,
    };
    let surer = if beaten { surer.limit_alone() } else { surer.to_string() };
    let listed = listed.filter(|row| beaten || row.ties_with_first);
    let listed = listed.map_or(String::new(), |row| {
        let beyond = row.step().0 / best.step().0 - 1.0;
        let than = match (row.ties_with_first, beyond < 0.0) {
            (true, _) => "a tie".to_owned(),
            (_, true) => format!("{} less long", by(-beyond)),
            (_, false) => format!("{} longer", by(beyond)),
        };
        format!("; {0}, {than}, fits {1:.0} of 100 (--pick {0})", row.number(), row.chance_to_fit() * 100.0)
    });
    // What moving layers made faster may have fitted surely before.
    let ranked = best.found.ranked.as_deref().map(|ranked| best.chance_of(&ranked.prediction));
    let ranked = ranked.filter(|&chance| chance >= surer::SURE.0).map_or(String::new(), |chance| {
        format!("; as it was ranked it fits {:.0} of 100 (--as-ranked)", chance * 100.0)
    });
    Some(format!(
        "fits: of runs like {} {:.0} of 100 may run out of memory, by how far measured ones were off{ranked}{listed}\n  surer: {surer}",
        if picked { "this plan" } else { "the first" },
        (1.0 - best.chance_to_fit()) * 100.0,
    ))
}

/// What a plan takes where it leans as measured runs do.
fn leaned(row: &Row, picked: bool) -> Option<String> {
    let leaned = Leaned::of(row.section.prepared, &row.found.prediction)?;
    let which = if picked { "this plan" } else { "the first" };
    Some(format!("leaning: as measured runs like it do in the median (below), {which} takes {leaned}"))
}

/// How surely a plan keeps the deadline and the budget.
fn kept(row: &Row, bounds: Bounds, picked: bool) -> Option<String> {
    let said = bounds.odds(row.section.prepared, &row.found.prediction, row.run.as_ref()?);
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
    let leaned = rows.first().and_then(|row| leaned(row, picked));
    ties(rows).into_iter().chain(leaned).chain(kept).chain(room).collect()
}

/// What fits more surely than the first plan.
pub(super) fn surer_of(report: &Report, rows: &[Row]) -> Option<Surer> {
    let first = rows.first()?;
    let listed = sure_of_listed(rows).map(|row| row.found.prediction.step());
    let moved = !report.as_ranked;
    Surer::of(first.section.prepared, (first.found, listed), (report.even_stages, moved, report.bar))
}
