//! Plans for people.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;

use comfy_table::{CellAlignment, Table};

use super::{
    Report, Row, Section, by, gigabytes, money, notes, percent, plain_table, premises, seconds, whereabouts,
};
use crate::cli::lines::Lines;
use crate::cli::models::group;
use crate::cli::{Failure, no_plan, stages};
use crate::search::{Counters, Stop};

/// Searches of which each has a line of its own.
const FEW_SEARCHES: usize = 8;

/// What another split may gain that is worth a line.
const MUCH: f64 = 0.05;

/// Prints the plans, what they rest on, and what is proved; where there are none, why.
pub(super) fn table(report: &Report, rows: &[Row], out: &mut Lines<impl Write>) -> Result<(), Failure> {
    let Some(first) = report.sections.first() else { return Ok(()) };
    let prepared = first.prepared;
    let job = &prepared.task.job;
    let several = report.sections.len() > 1;
    writeln!(
        out,
        "{}, batch {} x {} tokens",
        if several {
            format!("{} on {} choices of GPUs", prepared.task.model.name, report.sections.len())
        } else {
            whereabouts(prepared.task)
        },
        job.global_batch_size,
        job.sequence_length,
    )?;
    writeln!(out, "{}", premises(prepared.task, report.job))?;
    for note in notes::notes(report, rows) {
        writeln!(out, "{note}")?;
    }
    if rows.is_empty() {
        return no_plan::print(report, out);
    }
    out.table(&table_of_plans(rows, several, width()))?;
    splits(report, rows, out)?;
    if report.stages {
        stages_of_all(rows, out)?;
    }
    for line in notes::choice(report, rows) {
        writeln!(out, "{line}")?;
    }
    for line in notes::of_plans(rows) {
        writeln!(out, "{line}")?;
    }
    if rows.iter().any(|row| row.run.is_some()) {
        writeln!(out, "days and $ total are with checkpoints, lost work and restarts; $/step is without")?;
    }
    let mut told: Vec<(&str, u32)> = Vec::new();
    for row in rows {
        let place = (row.section.cluster.as_str(), row.section.prepared.task.job.gpus);
        if let Some(never) = row.never.as_ref().filter(|_| !told.contains(&place)) {
            writeln!(out, "{} x {}: no days and dollars: {never}", place.1, place.0)?;
            told.push(place);
        }
    }
    if several {
        writeln!(out, "* : nothing here is both faster and cheaper")?;
    }
    without_plans(report, out)?;
    for missed in report.sections.iter().filter_map(|section| no_plan::beyond(section, report.bounds)) {
        writeln!(out, "{missed}")?;
    }
    proofs(report, rows, out)
}

/// The stages of the best plan, and how near the splits of all are to the fastest.
fn splits(report: &Report, rows: &[Row], out: &mut impl Write) -> Result<(), Failure> {
    let Some(best) = rows.first() else { return Ok(()) };
    let which = if report.pick.is_some() { "the plan" } else { "the best plan" };
    let used = best.section.prepared.task.job.gpus;
    if let Some(asked) = report.asked.filter(|&asked| asked > used) {
        writeln!(
            out,
            "{which} uses {used} of {asked} GPUs and leaves {} idle, which are not in its dollars",
            asked.saturating_sub(used)
        )?;
    }
    writeln!(out, "stages of {which}: {}", stages::layout(best.section.prepared, &best.found.plan))?;
    let pipelined = |row: &Row| row.found.plan.layout().pipeline_parallel > 1;
    if pipelined(best) {
        let prepared = best.section.prepared;
        writeln!(out, "{}", stages::balance(prepared, best.found))?;
        writeln!(out, "{}", stages::idle(prepared, &best.found.plan, &best.found.prediction))?;
    }
    let open = rows.iter().filter(|row| row.found.split_gap > MUCH);
    let (known, open): (Vec<&Row>, Vec<&Row>) = open.partition(|row| row.found.known_gap() > MUCH);
    let much = percent(MUCH);
    let numbers =
        |rows: &[&Row]| rows.iter().map(|row| row.number().to_string()).collect::<Vec<_>>().join(", ");
    if !known.is_empty() {
        writeln!(out, "known to be more than {much} slower than with another split: {}", numbers(&known))?;
    }
    // Even splits are asked for to compare with.
    if !open.is_empty() && !report.even_stages {
        let usual = report.effort == 1;
        let could = cfg!(feature = "milp") && usual && open.iter().any(|row| row.found.looked_at);
        // Where proofs were ended a note says so.
        let more = if could && !open.iter().any(|row| row.found.cut_short) {
            "; --prove 4 looks closer".to_owned()
        } else {
            String::new()
        };
        let open = numbers(&open);
        writeln!(out, "not proved that no other split is more than {much} faster: {open}{more}")?;
    }
    notes::moved_layers(out, rows)?;
    let moved = rows.iter().any(|row| row.found.ranked.is_some());
    let beyond =
        |row: &Row| row.place >= report.verified && report.pick != Some(row.number()) && pipelined(row);
    if report.sections.len() == 1 && moved && rows.iter().any(beyond) {
        let verified = report.verified;
        writeln!(out, "plans after the first {verified} have the splits that they were ranked with")?;
    }
    Ok(())
}

/// The stages of every plan, with their time and memory.
fn stages_of_all(rows: &[Row], out: &mut Lines<impl Write>) -> Result<(), Failure> {
    for row in rows {
        let (prepared, found) = (row.section.prepared, row.found);
        writeln!(out, "\n{}: {}", row.number(), stages::layout(prepared, &found.plan))?;
        if found.plan.layout().pipeline_parallel > 1 {
            writeln!(out, "   {}", stages::balance(prepared, found))?;
            writeln!(out, "   {}", stages::idle(prepared, &found.plan, &found.prediction))?;
        }
        let limit = prepared.cost().memory_limit();
        out.table(&stages::table(prepared, &found.plan, &found.prediction, Some(limit)).to_string())?;
        if let Some(ranks) = stages::ranks(&found.plan, &found.prediction, Some(limit)) {
            writeln!(out, "{ranks}")?;
        }
    }
    writeln!(out)?;
    Ok(())
}

/// Choices of GPUs for which there is no plan, of several.
fn without_plans(report: &Report, out: &mut impl Write) -> Result<(), Failure> {
    let empty = |section: &&Section| section.answer.found.is_empty();
    let without: Vec<&Section> = report.sections.iter().filter(empty).collect();
    for cluster in clusters_of(&without) {
        let of_cluster = without.iter().filter(|section| section.cluster == cluster);
        let (stopped, none): (Vec<&Section>, Vec<&Section>) =
            of_cluster.partition(|section| section.answer.stop == Stop::Interrupted);
        let gpus = |of: &[&Section]| of.iter().map(|s| s.prepared.task.job.gpus).collect::<Vec<u32>>();
        if !none.is_empty() {
            let counts = listed(&gpus(&none));
            writeln!(out, "no plan on {cluster} with {counts} GPUs: --gpus with one of them says why")?;
        }
        if !stopped.is_empty() {
            writeln!(out, "stopped before a plan was found on {cluster} with {}", numbers(&gpus(&stopped)))?;
        }
    }
    Ok(())
}

/// What the searches looked at, what is proved, and what they left out.
fn proofs(report: &Report, rows: &[Row], out: &mut impl Write) -> Result<(), Failure> {
    let several = report.sections.len() > 1;
    let searched: Vec<&Section> = report.sections.iter().filter(|s| !s.answer.found.is_empty()).collect();
    let proved: Vec<&Section> = searched.iter().copied().filter(|s| s.answer.stop == Stop::Proved).collect();
    let many = proved.len() > FEW_SEARCHES;
    if many {
        let sum = |of: fn(&Counters) -> u64| proved.iter().map(|s| of(&s.answer.counters)).sum::<u64>();
        writeln!(
            out,
            "{} searches: {} layouts, {} balanced and simulated; all proved optimal",
            proved.len(),
            group(sum(|c| c.candidates)),
            group(sum(|c| c.evaluated))
        )?;
    }
    for section in &searched {
        if many && section.answer.stop == Stop::Proved {
            continue;
        }
        let c = &section.answer.counters;
        let moved = section.answer.found.iter().any(|found| found.ranked.is_some());
        let left = match notes::left_out(section.prepared, section.offloading.is_open()) {
            left if left.is_empty() || several => String::new(),
            left => format!(" ({left})"),
        };
        let moved = if moved { ", before layers were moved" } else { "" };
        let proof = match section.answer.stop {
            Stop::Proved => format!("proved optimal{left}{moved}"),
            Stop::Interrupted if section.answer.optimality_gap == 0.0 => {
                format!("the first plan is proved optimal{left}{moved}, those behind it are not")
            }
            Stop::Interrupted => {
                format!(
                    "stopped; nothing can be more than {} faster{left}",
                    by(section.answer.optimality_gap)
                )
            }
        };
        let which = if several {
            format!("{} x {}: ", section.prepared.task.job.gpus, section.cluster)
        } else {
            String::new()
        };
        writeln!(
            out,
            "{which}{} layouts, {} balanced and simulated; {proof}",
            group(c.candidates),
            group(c.evaluated)
        )?;
    }
    let open = |row: &Row| row.found.split_gap > 0.0 && row.found.plan.layout().pipeline_parallel > 1;
    if !proved.is_empty() && !report.even_stages && rows.first().is_some_and(open) {
        writeln!(
            out,
            "optimal: no other layout, each with its best split from a fixed list, is faster; what another split of the same layers could still save is said beside the stages"
        )?;
    }
    let mut left: BTreeMap<String, BTreeSet<u32>> = BTreeMap::new();
    for section in searched.iter().filter(|_| several) {
        let of = notes::left_out(section.prepared, section.offloading.is_open());
        left.entry(of).or_default().insert(section.prepared.task.job.gpus);
    }
    let all = left.len() == 1;
    for (left, gpus) in left.into_iter().filter(|(left, _)| !left.is_empty()) {
        let gpus: Vec<u32> = gpus.into_iter().collect();
        writeln!(out, "{} {left}", if all { "all".to_owned() } else { numbers(&gpus) })?;
    }
    Ok(())
}

/// Numbers of GPUs, one by one where they are few.
fn numbers(gpus: &[u32]) -> String {
    match gpus {
        [from, .., to] if gpus.len() > FEW_SEARCHES => {
            format!("{} numbers of GPUs, {from} to {to}", gpus.len())
        }
        some => format!("{} GPUs", listed(some)),
    }
}

/// One after the other.
fn listed(gpus: &[u32]) -> String {
    gpus.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")
}

/// Columns of the terminal, or as many as the environment says; none where a file is written.
pub(crate) fn width() -> Option<u16> {
    let said = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
    // Some terminals do not know.
    said.or_else(|| Table::new().width()).filter(|&columns| columns > 0)
}

/// Plans with what is predicted of them, a line each; where a terminal is narrower than that, every plan has a line of its own.
fn table_of_plans(rows: &[Row], several: bool, width: Option<u16>) -> String {
    let with_run = rows.iter().any(|row| row.run.is_some() || row.never.is_some());
    let mut header = vec![""];
    if several {
        header.extend(["GPUs", "cluster"]);
    }
    header.extend(["step", "tok/s/GPU", "MFU", "memory/GPU", "fits", "$/step"]);
    if with_run {
        header.extend(["days", "$ total"]);
    }
    header.push("limited by");
    let cells_of = |row: &Row| {
        let mut cells = vec![format!("{}{}", row.number(), if row.ties_with_first { "=" } else { "" })];
        if several {
            cells.push(row.section.prepared.task.job.gpus.to_string());
            cells.push(format!("{}{}", row.section.cluster, if row.pareto { " *" } else { "" }));
        }
        cells.push(format!("{} ±{:.0}%", seconds(row.step()), row.found.prediction.interval.sigma * 100.0));
        cells.push(format!("{:.0}", row.rates.tokens_per_s_per_gpu));
        cells.push(percent(row.rates.mfu));
        cells.push(gigabytes(&row.found.prediction));
        cells.push(format!("{:.0}%", row.chance_to_fit() * 100.0));
        cells.push(money(row.usd_per_step));
        if with_run {
            cells.push(row.run.as_ref().map_or_else(|| "never".into(), |run| format!("{:.1}", run.days)));
            cells.push(row.run.as_ref().map_or_else(|| "-".into(), |run| money(run.dollars.total)));
        }
        cells.push(row.found.prediction.limiting().replace('_', " "));
        cells
    };
    let drawn = |wide: bool| {
        let place = usize::from(wide);
        let left = if several { 3 + place } else { 1 + place };
        let mut header = header.clone();
        if wide {
            header.insert(1, "plan");
        }
        let mut table = plain_table(&header, left);
        if let Some(column) = table.column_mut(header.len() - 1) {
            column.set_cell_alignment(CellAlignment::Left);
        }
        for row in rows {
            let mut cells = cells_of(row);
            if wide {
                cells.insert(1, row.found.plan.to_string());
            }
            table.add_row(cells);
        }
        table.lines().map(|line| line.trim_end().to_owned()).collect::<Vec<String>>()
    };
    let wide = drawn(true);
    let fits = |width| wide.iter().all(|line| line.chars().count() <= usize::from(width));
    if width.is_none_or(fits) {
        return wide.join("\n");
    }
    // A row has one line, below that of the header.
    let plans = rows.iter().map(|row| format!("\n     {}", row.found.plan));
    let below = std::iter::once(String::new()).chain(plans);
    drawn(false).into_iter().zip(below).map(|(line, plan)| line + &plan).collect::<Vec<String>>().join("\n")
}

/// The clusters of some searches, each once.
fn clusters_of<'a>(sections: &[&'a Section]) -> Vec<&'a str> {
    let mut clusters: Vec<&str> = Vec::new();
    for section in sections {
        if !clusters.contains(&section.cluster.as_str()) {
            clusters.push(&section.cluster);
        }
    }
    clusters
}
