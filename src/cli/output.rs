//! Plans as a table, JSON, CSV and RON.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::time::Duration;

use comfy_table::{CellAlignment, Table};
use serde_json::{Map, Value, json};

use super::calibrate::{kind_of, runs_of};
use super::export::command_line;
use super::lines::Lines;
use super::no_plan::{self, NoPlan};
use super::plan::Objective;
use super::progress::Bar;
use super::remedies::Bounds;
use super::surer::{self, Surer};
use super::{Failure, stages};
use crate::candidates::OFFLOADS;
use crate::cost::goodput::NoProgress;
use crate::cost::money::{PhasedCost, RunCost, goodput_of, run_cost, step_cost};
use crate::cost::step::Prediction;
use crate::frameworks::Target;
use crate::frameworks::error_bars::Leaning;
use crate::layers::Layers;
use crate::plan::{Layout, Offload, Plan, Recompute};
use crate::planner::{Offloading, Prepared, Rates, Task};
use crate::search::{Answer, Counters, Found, OtherSplit, Stop};
use crate::spec::cluster::Architecture;
use crate::spec::job::{ExpertCapacity, Phase, Routing};
use crate::spec::model::Mixer;
use crate::spec::saved::SavedPlan;
use crate::spec::{load_accelerator, shipped};
use crate::units::{Dollars, Seconds};

/// Output format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Format {
    /// For people.
    Table,
    /// For programs.
    Json,
    /// For spreadsheets.
    Csv,
    /// The best plan with its model, cluster and job, as `explain`, `check` and `export` read it.
    Ron,
}

/// One search.
pub(crate) struct Section<'a> {
    /// The cluster as the user named it.
    pub(crate) cluster: String,
    /// What was searched.
    pub(crate) prepared: &'a Prepared<'a>,
    /// The answer.
    pub(crate) answer: Answer,
    /// Why the plans offload or do not.
    pub(crate) offloading: Offloading,
}

impl Section<'_> {
    /// What is to be said about offload, if the search opened it.
    fn offload_note(&self, several: bool) -> Option<String> {
        let gpus = self.prepared.task.job.gpus;
        let which = if several { format!("{gpus} x {}: ", self.cluster) } else { String::new() };
        let best = self.answer.found.first()?.prediction.step();
        let beside = |other: &Found| {
            let step = other.prediction.step();
            let gap = step.0 as f64 / best.0 as f64 - 1.0;
            let than = if gap < 0.0 { "faster" } else { "slower" };
            format!("{} in {}, {} {than}", other.plan, seconds(step.seconds()), percent(gap.abs()))
        };
        Some(match &self.offloading {
            Offloading::Left => return None,
            Offloading::Needed => format!("{which}nothing fits without offload; these plans offload"),
            Offloading::Pays(without) => {
                format!("{which}offload pays; without it the best is {}", beside(without))
            }
            Offloading::Ties(with) => format!(
                "{which}offload gains less than predictions err, and is left out: {} (--fix offload=any)",
                beside(with)
            ),
        })
    }
}

/// All searches of one command.
pub(crate) struct Report<'a> {
    /// The searches.
    pub(crate) sections: &'a [Section<'a>],
    /// The model as the user named it.
    pub(crate) model: &'a str,
    /// What is best.
    pub(crate) objective: Objective,
    /// Latest end and most dollars of the run.
    pub(crate) bounds: Bounds,
    /// Rows, and which of them is printed alone.
    pub(crate) top: usize,
    pub(crate) pick: Option<usize>,
    /// Layers of so many plans were moved between chunks.
    pub(crate) verified: usize,
    /// Whether the stages of every plan are printed.
    pub(crate) stages: bool,
    /// How many times the usual work is done to prove how little other splits gain.
    pub(crate) effort: u32,
    /// Whether no other splits were looked for.
    pub(crate) even_stages: bool,
    /// GPUs that may be used at most, where some may stay idle.
    pub(crate) asked: Option<u32>,
    /// Wall time, if it is to be printed.
    pub(crate) wall: Option<Duration>,
    /// Where the search for ways out shows its progress, and what stops it.
    pub(crate) bar: &'a Bar,
}

/// One plan with what a row shows.
struct Row<'a> {
    section: &'a Section<'a>,
    found: &'a Found,
    rates: Rates,
    usd_per_step: Dollars,
    usd_per_trillion: Dollars,
    run: Option<RunCost>,
    /// Why the run never ends, where it does not.
    never: Option<NoProgress>,
    /// Time and dollars by which it stands, of the split that was ranked: of a whole run with all that it loses, or of
    /// a token. A run that never ends comes last.
    order: (f64, f64),
    /// No other row is both faster and cheaper.
    pareto: bool,
    /// Its place among all rows, from 0, and whether it ties with the first of them: one that is picked keeps both.
    place: usize,
    ties_with_first: bool,
}

impl Row<'_> {
    fn step(&self) -> Seconds {
        self.found.prediction.step().seconds()
    }
    /// Whether the difference lies inside the interval of differences, which comes from pairs of measured
    /// plans of one job on the same GPUs.
    fn ties(&self, other: &Row) -> bool {
        let ratio = (self.step().0 / other.step().0).ln().abs();
        std::ptr::eq(self.section, other.section) && ratio < self.found.prediction.interval.difference
    }
    /// What people know it by.
    fn number(&self) -> usize {
        self.place + 1
    }
    /// [`crate::cost::model::CostModel::chance_to_fit`].
    fn chance_to_fit(&self) -> f64 {
        self.section.prepared.cost().chance_to_fit(&self.found.prediction)
    }
    /// The share of the memory that may be allocated and is not.
    fn free(&self) -> f64 {
        let limit = self.section.prepared.cost().memory_limit();
        1.0 - self.found.prediction.allocated.0 as f64 / limit.0 as f64
    }
    /// How many kinds of parallelism and what else that someone must look after a plan uses.
    fn kinds(&self) -> usize {
        let plan = &self.found.plan;
        let l = plan.layout();
        let degrees = [
            l.tensor_parallel,
            l.pipeline_parallel,
            l.virtual_stages,
            l.context_parallel,
            l.expert_parallel,
            l.expert_tensor_parallel,
        ];
        let recomputes = plan.common_recompute() != Some(Recompute::None);
        degrees.iter().filter(|&&degree| degree > 1).count()
            + usize::from(recomputes)
            + usize::from(l.mtp_standalone)
            + usize::from(l.offload != Offload::NONE)
    }
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

/// How surely the best plan fits, or the one that was picked, and what fits more surely.
fn room(rows: &[Row], picked: bool, surer: &Surer) -> Option<String> {
    let best = rows.first()?;
    // One that costs nothing is better than another search.
    let tied = rows.iter().find(|row| row.ties_with_first && row.chance_to_fit() >= surer::SURE.0);
    let tied = tied.filter(|_| !picked).map_or(String::new(), |row| {
        format!("; {0}, a tie, fits {1:.0} of 100 (--pick {0})", row.number(), row.chance_to_fit() * 100.0)
    });
    Some(format!(
        "fits: of runs like {} {:.0} of 100 may run out of memory, by how far measured ones were off{tied}\n  surer: {surer}",
        if picked { "this plan" } else { "the first" },
        (1.0 - best.chance_to_fit()) * 100.0,
    ))
}

fn rows<'a>(report: &'a Report<'a>) -> Vec<Row<'a>> {
    let mut rows: Vec<Row> = report
        .sections
        .iter()
        .flat_map(|section| {
            section.answer.found.iter().map(move |found| {
                let tokens = section.prepared.task.job.tokens;
                let costs = |prediction: &Prediction| {
                    let run = section.prepared.run(prediction);
                    (step_cost(&run), tokens.map(|tokens| run_cost(&run, tokens)))
                };
                let ranked = found.ranked.as_deref().map_or(&found.prediction, |ranked| &ranked.prediction);
                let order = match costs(ranked) {
                    (_, Some(Ok(run))) => (run.time.total.0, run.dollars.total.0),
                    (_, Some(Err(_))) => (f64::MAX, f64::MAX),
                    (step, None) => {
                        let tokens = section.prepared.tokens_per_step().0 as f64;
                        (ranked.step().seconds().0 / tokens, step.per_trillion_tokens.0)
                    }
                };
                let (step, whole) = costs(&found.prediction);
                let (run, never) = match whole {
                    None => (None, None),
                    Some(Ok(run)) => (Some(run), None),
                    Some(Err(never)) => (None, Some(never)),
                };
                Row {
                    section,
                    found,
                    rates: section.prepared.rates(&found.plan, &found.prediction),
                    usd_per_step: step.per_step,
                    usd_per_trillion: step.per_trillion_tokens,
                    run,
                    never,
                    order,
                    pareto: true,
                    place: 0,
                    ties_with_first: false,
                }
            })
        })
        .filter(|row: &Row| report.bounds.admit(row.run.as_ref()))
        .collect();
    let (time, cost) = (|row: &Row| row.order.0, |row: &Row| row.order.1);
    rows.sort_by(|a, b| {
        let (by_time, by_cost) = (time(a).total_cmp(&time(b)), cost(a).total_cmp(&cost(b)));
        let order = match report.objective {
            Objective::Time => by_time.then(by_cost),
            Objective::Cost => by_cost.then(by_time),
        };
        order
            .then_with(|| a.found.ranked_step().cmp(&b.found.ranked_step()))
            .then_with(|| a.section.cluster.cmp(&b.section.cluster))
            .then_with(|| a.found.plan.cmp(&b.found.plan))
    });
    let flags: Vec<bool> = (0..rows.len())
        .map(|i| {
            !rows.iter().any(|other| {
                let (t, c) = (time(other) <= time(&rows[i]), cost(other) <= cost(&rows[i]));
                t && c && (time(other) < time(&rows[i]) || cost(other) < cost(&rows[i]))
            })
        })
        .collect();
    for (row, flag) in rows.iter_mut().zip(flags) {
        row.pareto = flag;
    }
    if report.sections.len() > 1 {
        // Of each GPU count and cluster the best, and whatever else is on the front.
        let mut seen = BTreeSet::new();
        rows.retain(|row| {
            seen.insert((row.section.cluster.clone(), row.section.prepared.task.job.gpus)) || row.pareto
        });
    }
    rows.truncate(report.top);
    let ties: Vec<bool> =
        rows.iter().enumerate().map(|(place, row)| place > 0 && row.ties(&rows[0])).collect();
    for ((place, row), ties) in rows.iter_mut().enumerate().zip(ties) {
        (row.place, row.ties_with_first) = (place, ties);
    }
    rows
}

/// Prints a report.
///
/// Returns whether it holds a plan.
pub(crate) fn print(report: &Report, format: Format) -> Result<bool, Failure> {
    let all = rows(report);
    if let Some(pick) = report.pick.filter(|&pick| !all.is_empty() && pick > all.len()) {
        let there = match all.len() {
            1 => "there is 1 plan".to_owned(),
            several => format!("there are {several} plans"),
        };
        let more = match report.sections.len() {
            1 => "--per-layout is for more of every kind",
            _ => "of each number of GPUs and cluster the best",
        };
        return Err(Failure::Usage(format!("--pick {pick}: {there}; {more}")));
    }
    let picked = report.pick.and_then(|pick| all.get(pick - 1..pick));
    let rows = picked.unwrap_or(&all);
    let mut out = std::io::stdout().lock();
    if matches!(format, Format::Csv | Format::Ron) {
        for note in notes(report, rows) {
            anstream::eprintln!("note: {note}");
        }
    }
    match format {
        Format::Table => table(report, rows, &mut Lines::new(out, width()))?,
        Format::Json => {
            let value = json(report, rows, &all);
            writeln!(out, "{}", serde_json::to_string_pretty(&value).unwrap_or_default())?;
        }
        Format::Csv => csv(rows, &mut out)?,
        Format::Ron => {
            if rows.len() > 1 {
                anstream::eprintln!("note: RON holds the best plan only; --pick 2 is for the second");
            }
            if let Some(faster) = faster_when_moved(rows) {
                anstream::eprintln!("note: with layers moved between chunks after the ranking, {faster}");
            }
            if let Some(row) = rows.first() {
                let task = row.section.prepared.task;
                let names = (task.target.name(), task.profile_name.as_str());
                let saved = SavedPlan::new(
                    names,
                    &task.model,
                    &task.machine,
                    &task.job,
                    &row.found.plan,
                    &row.found.prediction,
                )
                .priced(task.pricing)
                .made_by(command_line());
                let text = saved.to_text().map_err(|e| Failure::Usage(e.to_string()))?;
                writeln!(out, "{text}")?;
            }
        }
    }
    if rows.is_empty() && matches!(format, Format::Csv | Format::Ron) {
        // Nothing but plans goes where these formats are read.
        no_plan::print(report, &mut anstream::stderr())?;
    }
    Ok(!rows.is_empty())
}

/// Where memory may be allocated that GPUs do not have, and where the searches opened offload.
fn notes(report: &Report, rows: &[Row]) -> Vec<String> {
    let several = report.sections.len() > 1;
    let offload = report.sections.iter().filter_map(|section| section.offload_note(several));
    let blocks = blocks(report).into_iter().chain(below_memory(report)).chain(own_dispatchers(rows));
    beyond_memory(report).into_iter().chain(beyond_positions(report)).chain(blocks).chain(offload).collect()
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

/// What an item of a step is called: of models with state-space layers, what mixes tokens is not attention alone.
pub(crate) fn item_name(name: &str, layers: &Layers) -> String {
    let scans = || layers.kinds.iter().any(|kind| matches!(kind.block.mixer, Mixer::Mamba2(_)));
    match name {
        "attention" if scans() => "attention and scans".into(),
        _ => name.replace('_', " "),
    }
}

pub(crate) fn percent(share: f64) -> String {
    format!("{:.1}%", share * 100.0)
}

/// Columns of the terminal, or as many as the environment says; none where a file is written.
fn width() -> Option<u16> {
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
        cells.push(row.found.prediction.times.limiting().replace('_', " "));
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

fn table(report: &Report, rows: &[Row], out: &mut Lines<impl Write>) -> Result<(), Failure> {
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
    writeln!(out, "{}", assumptions(prepared.task))?;
    for note in notes(report, rows) {
        writeln!(out, "{note}")?;
    }
    if rows.is_empty() {
        return no_plan::print(report, out);
    }
    out.table(&table_of_plans(rows, several, width()))?;
    let best = &rows[0];
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
    if best.found.plan.layout().pipeline_parallel > 1 {
        writeln!(out, "{}", stages::balance(best.section.prepared, best.found))?;
    }
    let open = rows.iter().filter(|row| row.found.split_gap > MUCH);
    let (open, looked_at): (Vec<String>, Vec<bool>) =
        open.map(|row| (row.number().to_string(), row.found.looked_at)).unzip();
    if !open.is_empty() {
        let usual = report.effort == 1 && !report.even_stages;
        let could = cfg!(feature = "milp") && usual && looked_at.contains(&true);
        let more = if could { "; --prove 4 looks closer" } else { "" };
        let (much, open) = (percent(MUCH), open.join(", "));
        writeln!(out, "not proved that no other split is more than {much} faster: {open}{more}")?;
    }
    moved_layers(out, rows)?;
    let moved = rows.iter().any(|row| row.found.ranked.is_some());
    let pipelined = |row: &Row| row.found.plan.layout().pipeline_parallel > 1;
    let beyond =
        |row: &Row| row.place >= report.verified && report.pick != Some(row.number()) && pipelined(row);
    if report.sections.len() == 1 && moved && rows.iter().any(beyond) {
        let verified = report.verified;
        writeln!(out, "plans after the first {verified} have the splits that they were ranked with")?;
    }
    if report.stages {
        for row in rows {
            let (prepared, found) = (row.section.prepared, row.found);
            writeln!(out, "\n{}: {}", row.number(), stages::layout(prepared, &found.plan))?;
            if found.plan.layout().pipeline_parallel > 1 {
                writeln!(out, "   {}", stages::balance(prepared, found))?;
            }
            let limit = prepared.cost().memory_limit();
            out.table(&stages::table(prepared, &found.plan, &found.prediction, Some(limit)).to_string())?;
            if let Some(memory) = stages::memory(&found.plan, &found.prediction, limit) {
                writeln!(out, "{memory}")?;
            }
        }
        writeln!(out)?;
    }
    if let Some(line) = ties(rows) {
        writeln!(out, "{line}")?;
    }
    if let Some(line) = rows.first().and_then(|row| kept(row, report.bounds, report.pick.is_some())) {
        writeln!(out, "{line}")?;
    }
    let surer = rows
        .first()
        .and_then(|row| Surer::of(row.section.prepared, row.found, (report.even_stages, report.bar)));
    if let Some(line) = surer.and_then(|surer| room(rows, report.pick.is_some(), &surer)) {
        writeln!(out, "{line}")?;
    }
    for (i, row) in rows.iter().enumerate() {
        let prepared = row.section.prepared;
        let first = rows[..i].iter().all(|other| other.section.cluster != row.section.cluster);
        let experts = if prepared.context.has_experts() { "with" } else { "without" };
        let site = !prepared.task.machine.cluster.own_runs.is_empty();
        if first && site && prepared.cost().own_runs().is_none() {
            writeln!(
                out,
                "± : none of this site's own runs is like this job, so that bars on {} are those that ship",
                row.section.cluster
            )?;
        }
        if first && let Some(own) = prepared.cost().own_runs() {
            writeln!(
                out,
                "± : from {} on {} ({}), and from the class that ships",
                runs_of(own),
                row.section.cluster,
                kind_of(own)
            )?;
        } else if first && prepared.cost().is_known_by_rates() {
            writeln!(
                out,
                "± : of `{}` {experts} experts on GPUs like those of {} only rates were printed, no times: the bar is from these",
                prepared.task.profile_name, row.section.cluster
            )?;
        } else if first && !prepared.cost().is_measured() {
            writeln!(
                out,
                "± : no runs of `{}` {experts} experts on GPUs like those of {} inform this bar: what that may hide is in it",
                prepared.task.profile_name, row.section.cluster
            )?;
        }
        if let Some(leaning) = leaning(row).filter(|_| first) {
            let (longer, runs) = (leaning.longer(), leaning.runs);
            let (took, than) = if longer > 0.0 { ("longer", longer) } else { ("less", -longer) };
            writeln!(
                out,
                "± : {runs} runs of `{}` {experts} experts on such GPUs took {} {took} than predicted, in the median",
                prepared.task.profile_name,
                percent(than)
            )?;
        }
    }
    let unsure = rows.iter().filter(|row| row.found.prediction.interval.sigma > UNSURE);
    let unsure: Vec<String> = unsure.map(|row| row.number().to_string()).collect();
    if !unsure.is_empty() {
        writeln!(out, "± : beyond {:.0}% a prediction says little: {}", UNSURE * 100.0, unsure.join(", "))?;
    }
    if rows.iter().any(|row| row.found.plan.layout().offload.moves_states()) {
        writeln!(out, "± : nobody measured plans with states off the GPU: what that may hide is in the bar")?;
    }
    let ships = |name: &str| {
        let known = shipped::accelerators();
        known.iter().filter_map(|one| load_accelerator(one.name).ok()).any(|one| one.name == name)
    };
    let strangers: BTreeSet<&str> = rows
        .iter()
        .map(|row| row.section.prepared)
        .filter(|prepared| prepared.cost().own_runs().is_none())
        .map(|prepared| prepared.task.machine.accelerator.name.as_str())
        .filter(|name| !ships(name))
        .collect();
    for name in strangers {
        writeln!(
            out,
            "± : {name} is no accelerator that ships: its rates are as good as its file, and the bar is that of others of its generation"
        )?;
    }
    if rows.iter().any(|row| row.section.prepared.has_unmeasured_attention()) {
        writeln!(
            out,
            "± : attention with position biases is computed eagerly by its class of transformers: nobody measured that, and what it takes is that of gpt-oss"
        )?;
    }
    if rows.iter().any(|row| row.found.plan.layout().mtp_standalone) {
        writeln!(
            out,
            "mtp-standalone: further tokens are predicted on the stage before the last, and the last has nothing but the losses; no measured run has it, and what its messages cost follows from the framework's code (--fix mtp=head is without)"
        )?;
    }
    let queued = |row: &Row| {
        let (layout, task) = (row.found.plan.layout(), row.section.prepared.task);
        let split = layout.tensor_parallel > 1 || layout.context_parallel > 1;
        let asks = matches!(task.target, Target::Megatron | Target::Bridge);
        let before_blackwell = task.machine.accelerator.architecture < Architecture::Blackwell;
        asks && layout.expert_overlap && split && before_blackwell
    };
    if rows.first().is_some_and(queued) {
        writeln!(
            out,
            "ep-ov with tp or cp: before Blackwell Megatron-LM warns of the two, as one is fast with CUDA_DEVICE_MAX_CONNECTIONS=1 and the other with 32, which is exported; what the former loses by that is not predicted: try both (--fix ep-overlap=off is without)"
        )?;
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
    let empty = |section: &&Section| section.answer.found.is_empty();
    let without: Vec<&Section> = report.sections.iter().filter(empty).collect();
    for cluster in clusters_of(&without) {
        let of_cluster = without.iter().filter(|section| section.cluster == cluster);
        let (stopped, none): (Vec<&Section>, Vec<&Section>) =
            of_cluster.partition(|section| section.answer.stop == Stop::Interrupted);
        let counts = |of: &[&Section]| {
            let counts: Vec<String> = of.iter().map(|s| s.prepared.task.job.gpus.to_string()).collect();
            counts.join(", ")
        };
        if !none.is_empty() {
            let counts = counts(&none);
            writeln!(out, "no plan on {cluster} with {counts} GPUs: --gpus with one of them says why")?;
        }
        if stopped.len() > FEW_SEARCHES {
            let gpus = |section: &Section| section.prepared.task.job.gpus;
            let (all, from, to) = (stopped.len(), gpus(stopped[0]), gpus(stopped[stopped.len() - 1]));
            writeln!(
                out,
                "stopped before a plan was found on {cluster} with {all} numbers of GPUs, {from} to {to}"
            )?;
        } else if !stopped.is_empty() {
            writeln!(out, "stopped before a plan was found on {cluster} with {} GPUs", counts(&stopped))?;
        }
    }
    for missed in report.sections.iter().filter_map(|section| no_plan::beyond(section, report.bounds)) {
        writeln!(out, "{missed}")?;
    }
    let proved = report.sections.iter().filter(|s| s.answer.stop == Stop::Proved && !empty(s));
    let proved: Vec<&Section> = proved.collect();
    if proved.len() > FEW_SEARCHES {
        let sum = |of: fn(&Counters) -> u64| proved.iter().map(|s| of(&s.answer.counters)).sum::<u64>();
        writeln!(
            out,
            "{} searches: {} layouts, {} balanced and simulated; all proved optimal",
            proved.len(),
            super::models::group(sum(|c| c.candidates)),
            super::models::group(sum(|c| c.evaluated))
        )?;
    }
    for section in report.sections {
        let told = section.answer.stop == Stop::Proved && proved.len() > FEW_SEARCHES;
        if told || empty(&section) {
            continue;
        }
        let c = &section.answer.counters;
        let moved = section.answer.found.iter().any(|found| found.ranked.is_some());
        let proof = match section.answer.stop {
            Stop::Proved => format!(
                "proved optimal{}{}",
                match left_out(section.prepared, section.offloading.is_open()) {
                    left if left.is_empty() || several => String::new(),
                    left => format!(" ({left})"),
                },
                if moved { ", before layers were moved" } else { "" }
            ),
            Stop::Interrupted => {
                format!("stopped; nothing can be more than {} faster", percent(section.answer.optimality_gap))
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
            super::models::group(c.candidates),
            super::models::group(c.evaluated)
        )?;
    }
    if several {
        let mut left: BTreeMap<String, Vec<u32>> = BTreeMap::new();
        for section in &proved {
            let of = left_out(section.prepared, section.offloading.is_open());
            left.entry(of).or_default().push(section.prepared.task.job.gpus);
        }
        let all = left.len() == 1;
        for (left, mut gpus) in left.into_iter().filter(|(left, _)| !left.is_empty()) {
            gpus.sort_unstable();
            gpus.dedup();
            let which = match gpus.as_slice() {
                _ if all => "all".to_owned(),
                [from, .., to] if gpus.len() > FEW_SEARCHES => {
                    format!("{} numbers of GPUs from {from} to {to}", gpus.len())
                }
                some => format!("{} GPUs", some.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")),
            };
            writeln!(out, "{which} {left}")?;
        }
    }
    Ok(())
}

/// What moving layers between chunks gained, plan by plan, or would gain.
fn moved_layers(out: &mut impl Write, rows: &[Row]) -> Result<(), Failure> {
    let (mut taken, mut left) = (Vec::new(), Vec::new());
    for row in rows {
        let Found { plan, prediction, polished, ranked, .. } = row.found;
        if let Some(ranked) = ranked.as_deref() {
            taken.push(moved(row, (&ranked.plan, &ranked.prediction), (plan, prediction)));
        }
        if let Some(polished) = polished.as_deref() {
            left.push(moved(row, (plan, prediction), (&polished.plan, &polished.prediction)));
        }
    }
    if let Some(faster) = faster_when_moved(rows).filter(|_| !taken.is_empty()) {
        taken.push(format!("  with that, {faster}"));
    }
    let title = "layers moved between chunks after the ranking, which is without; what is recomputed may change with them (--as-ranked leaves both):";
    for (title, lines) in
        [(title, taken), ("layers moved between chunks would give (without --as-ranked):", left)]
    {
        if !lines.is_empty() {
            writeln!(out, "{title}\n{}", lines.join("\n"))?;
        }
    }
    Ok(())
}

/// A plan before and after its layers were moved.
fn moved(row: &Row, before: (&Plan, &Prediction), after: (&Plan, &Prediction)) -> String {
    /// Share of the memory from which on another need for it is told.
    const MORE: f64 = 0.02;
    let [(was, ranked), (is, now)] = [before, after];
    let gain = 1.0 - now.step().0 as f64 / ranked.step().0 as f64;
    let layout = |plan| stages::layout(row.section.prepared, plan);
    let times = format!("{} instead of {}", seconds(now.step().seconds()), seconds(ranked.step().seconds()));
    let recompute = |plan: &Plan| plan.common_recompute().map_or("several".into(), |way| way.to_string());
    let otherwise = if recompute(is) == recompute(was) {
        String::new()
    } else {
        format!(", with rc-{} instead of rc-{}", recompute(is), recompute(was))
    };
    let [needs, needed] = [now, ranked].map(|prediction| prediction.allocated.gigabytes());
    let memory = if (needs / needed - 1.0).abs() < MORE {
        String::new()
    } else {
        format!("; {needs:.1} GB instead of {needed:.1} GB")
    };
    format!(
        "  {}: {times} ({} less): {} instead of {}{otherwise}{memory}",
        row.number(),
        percent(gain),
        layout(is),
        layout(was)
    )
}

/// Which plan is faster than the first since layers were moved: what is best is decided by what was ranked.
fn faster_when_moved(rows: &[Row]) -> Option<String> {
    let first = rows.first()?;
    let step = |row: &Row| row.found.prediction.step();
    let place = |row: &Row| (row.section.cluster.clone(), row.section.prepared.task.job.gpus);
    let behind =
        |row: &&Row| row.found.ranked_step() >= first.found.ranked_step() && place(row) == place(first);
    let fastest = rows.iter().filter(behind).min_by_key(|row| step(row))?;
    (fastest.place > first.place && step(fastest) < step(first))
        .then(|| format!("{0} is faster than the first (--pick {0} is for it)", fastest.number()))
}

/// What is said of a search that did not try everything; nothing of one that did.
pub(super) fn left_out(prepared: &Prepared, offloads: bool) -> String {
    let (what, options): (Vec<String>, Vec<String>) = prepared.left_out(offloads).into_iter().unzip();
    if what.is_empty() {
        return String::new();
    }
    let open = if options.len() == 1 { "opens it" } else { "open it" };
    format!("without {}: {} {open}", what.join(" and "), options.join(" and "))
}

/// Searches of which each has a line of its own.
const FEW_SEARCHES: usize = 8;
/// An error bar beyond which a prediction says little.
const UNSURE: f64 = 0.5;
/// What another split may gain that is worth a line.
const MUCH: f64 = 0.05;

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

/// Seconds with three to four digits.
pub(crate) fn seconds(time: Seconds) -> String {
    match time.0 {
        t if t >= 100.0 => format!("{t:.1} s"),
        t if t >= 10.0 => format!("{t:.2} s"),
        t if t >= 1.0 => format!("{t:.3} s"),
        t => format!("{:.1} ms", t * 1e3),
    }
}

pub(crate) fn money(dollars: Dollars) -> String {
    match dollars.0 {
        d if d >= 1e6 => format!("${:.2}M", d / 1e6),
        d if d >= 1e4 => format!("${:.1}k", d / 1e3),
        d if d >= 10.0 => format!("${d:.0}"),
        d => format!("${d:.3}"),
    }
}

/// The degrees of a layout by their full names.
pub(crate) fn layout_json(layout: &Layout) -> Map<String, Value> {
    match serde_json::to_value(layout) {
        Ok(Value::Object(map)) => map,
        _ => Map::new(),
    }
}

/// A plan and its prediction, itemised.
pub(crate) fn prediction_json(prepared: &Prepared, plan: &Plan, p: &Prediction) -> Value {
    let mut layout = layout_json(plan.layout());
    layout.insert("global_batch_size".into(), json!(plan.layout().global_batch_size()));
    let mode = plan.common_recompute().map_or_else(|| "mixed".to_owned(), |r| r.to_string());
    layout.insert("recompute".into(), json!(mode));
    let time: Map<String, Value> =
        p.times.iter().map(|(name, time)| (name.to_owned(), json!(time.seconds().0))).collect();
    let memory: Vec<Value> = p
        .memory
        .iter()
        .map(|m| {
            let mut value = serde_json::to_value(m).unwrap_or_default();
            value["total"] = json!(m.total().0);
            value
        })
        .collect();
    let chunks: Vec<Value> = plan
        .chunks()
        .iter()
        .zip(&p.chunks)
        .map(|(chunk, times)| {
            json!({
                "layers": chunk.layers, "recompute": chunk.recompute, "rank": times.rank,
                "forward_s": (times.forward.total() + times.messages).seconds().0,
                "backward_s": (times.backward.total() + times.messages).seconds().0,
            })
        })
        .collect();
    let stages: Vec<u32> = plan.chunks().iter().map(|c| c.layers).collect();
    let rates = prepared.rates(plan, p);
    let run = prepared.run(p);
    let step = step_cost(&run);
    let limit = prepared.cost().memory_limit();
    let [low, high] = p.step_range();
    let [least, most] = p.allocated_range();
    let mut value = json!({
        "name": plan.to_string(),
        "plan": layout,
        "gpus": prepared.task.job.gpus,
        "step_time_s": p.step().seconds().0,
        "step_time_sigma": p.step().seconds().0 * p.interval.sigma,
        "step_time_low_s": low.seconds().0,
        "step_time_high_s": high.seconds().0,
        "limiting": p.times.limiting(),
        "tokens_per_s_per_gpu": rates.tokens_per_s_per_gpu,
        "mfu": rates.mfu,
        "mfu_full_attention": rates.mfu_full_attention,
        "hfu": rates.hfu,
        "usd_per_step": step.per_step.0,
        "usd_per_trillion_tokens": step.per_trillion_tokens.0,
        "cost": step,
        "fits": prepared.cost().fits(p),
        "memory": {
            "allocated": p.allocated.0, "reserved": p.reserved.0, "device": p.device.0,
            "allocated_sigma": p.allocated.0 as f64 * p.memory_interval.sigma,
            "allocated_low": least.0, "allocated_high": most.0,
            "limit": limit.0, "chance_to_fit": prepared.cost().chance_to_fit(p), "stages": memory,
        },
        "off_gpu_per_node": p.off_gpu,
        "time": time,
        "stages": stages,
        "chunks": chunks,
        "layout": stages::layout(prepared, plan),
    });
    match prepared.task.job.tokens.map(|tokens| run_cost(&run, tokens)) {
        Some(Ok(run)) => value["run"] = serde_json::to_value(run).unwrap_or_default(),
        Some(Err(_)) => {}
        None => value["goodput"] = serde_json::to_value(goodput_of(&run).ok()).unwrap_or_default(),
    }
    value
}

fn plan_json(row: &Row, all: &[Row]) -> Value {
    let found = row.found;
    let others = all.iter().filter(|other| other.place != row.place);
    let tied: Vec<usize> = others.filter(|other| row.ties(other)).map(Row::number).collect();
    let mut value = prediction_json(row.section.prepared, &found.plan, &found.prediction);
    value["cluster"] = json!(row.section.cluster);
    value["rank"] = json!(row.number());
    // By rank, of all plans where one is picked.
    value["tied_with"] = json!(tied);
    value["pareto"] = json!(row.pareto);
    if let Some(never) = &row.never {
        value["never_ends"] = json!(never.to_string());
    }
    value["even_split_step_time_s"] = json!(found.even.map(|t| t.seconds().0));
    value["split_gap"] = json!(found.split_gap);
    let split = |split: &OtherSplit| {
        json!({
            "stages": split.plan.chunks().iter().map(|chunk| chunk.layers).collect::<Vec<u32>>(),
            "layout": stages::layout(row.section.prepared, &split.plan),
            "recompute": split.plan.common_recompute().map(|way| way.to_string()),
            "step_time_s": split.prediction.step().seconds().0,
            "split_gap": split.split_gap,
        })
    };
    value["polished"] = json!(found.polished.as_deref().map(split));
    value["ranked"] = json!(found.ranked.as_deref().map(split));
    #[cfg(feature = "milp")]
    {
        value["integer_programme"] = json!(found.verified.as_ref().map(|verified| json!({
            "stages": verified.layers,
            "step_time_s": verified.step.seconds().0,
            "chain_bound_s": verified.chain.seconds().0,
            "lower_bound_s": verified.bound.seconds().0,
            "agrees": verified.agrees,
        })));
    }
    value
}

fn json(report: &Report, rows: &[Row], all: &[Row]) -> Value {
    let Some(first) = report.sections.first() else { return Value::Null };
    let prepared = first.prepared;
    let task = prepared.task;
    let searches: Vec<Value> = report
        .sections
        .iter()
        .map(|s| {
            let mut search = json!({
                "cluster": s.cluster, "gpus": s.prepared.task.job.gpus,
                "candidates": s.answer.counters.candidates, "evaluated": s.answer.counters.evaluated,
                "simulated": s.answer.counters.simulated, "pruned": s.answer.counters.pruned,
                "optimality_gap": s.answer.optimality_gap, "offload_opened": s.offloading.is_open(),
                "left_out": s.prepared.left_out(s.offloading.is_open()).into_iter().map(|left| left.0).collect::<Vec<_>>(),
            });
            if let Some(own) = s.prepared.cost().own_runs() {
                search["own_runs"] = json!(own);
            }
            if let Some(missed) = no_plan::beyond(s, report.bounds) {
                search["missed"] = json!(missed);
            }
            search
        })
        .collect();
    let mut value = json!({
        "model": report.model,
        "parameters": prepared.parameters.total,
        "active_parameters": prepared.parameters.active,
        "framework": task.target.name(), "profile": task.profile_name,
        "precision": task.job.precision.name(),
        "optimizer": task.job.optimizer.name(),
        "global_batch_size": task.job.global_batch_size,
        "sequence_length": task.job.sequence_length,
        "packed": task.job.packed,
        "expert_capacity": task.job.expert_capacity,
        "notes": notes(report, rows),
        "plans": rows.iter().map(|row| plan_json(row, all)).collect::<Vec<_>>(),
    });
    if let [only] = searches.as_slice() {
        value["search"] = only.clone();
    } else {
        value["searches"] = json!(searches);
    }
    let surer = rows
        .first()
        .and_then(|row| Surer::of(row.section.prepared, row.found, (report.even_stages, report.bar)));
    if let Some(Surer { limit, plan, chance, .. }) = surer {
        let plan = plan.map(|found| {
            json!({
                "name": found.plan.to_string(), "plan": layout_json(found.plan.layout()),
                "step_time_s": found.prediction.step().seconds().0, "chance_to_fit": chance,
            })
        });
        value["surer"] = json!({ "memory_limit": limit.0, "with_same_degrees": plan });
    }
    if rows.is_empty() {
        let NoPlan { nearest, reasons, remedies, stopped } = NoPlan::of(report);
        let nearest = nearest.iter().map(|(section, miss)| {
            json!({
                "name": miss.plan.to_string(), "plan": layout_json(miss.plan.layout()),
                "allocated": miss.allocated.0, "limit": section.prepared.cost().memory_limit().0,
            })
        });
        value["nearest"] = json!(nearest.collect::<Vec<Value>>());
        value["reasons"] = json!(reasons);
        let remedies = remedies
            .into_iter()
            .map(|r| json!({"what": r.what, "plan": r.plan, "step_time_s": r.step.0, "run": r.run}));
        value["remedies"] = json!(remedies.collect::<Vec<Value>>());
        value["ways_out_cut_short"] = json!(stopped);
    }
    if let (Some(asked), Some(best)) = (report.asked, rows.first()) {
        value["gpus_at_most"] = json!(asked);
        value["gpus_idle"] = json!(asked.saturating_sub(best.section.prepared.task.job.gpus));
    }
    if let Some(wall) = report.wall {
        value["wall_s"] = json!(wall.as_secs_f64());
    }
    value
}

/// One phase of a run with its best plan.
pub(crate) struct PlannedPhase<'a> {
    /// The phase.
    pub(crate) phase: Phase,
    /// What was searched.
    pub(crate) prepared: &'a Prepared<'a>,
    /// The best plan.
    pub(crate) found: Found,
    /// Why it offloads or does not.
    pub(crate) offloading: Offloading,
}

/// Prints the phases of a run with its totals.
pub(crate) fn print_phases(
    format: Format,
    phases: &[PlannedPhase],
    total: &PhasedCost,
) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    let Some(task) = phases.first().map(|phase| phase.prepared.task) else { return Ok(()) };
    if format == Format::Json {
        let plans: Vec<Value> = phases
            .iter()
            .map(|phase| {
                let mut value = prediction_json(phase.prepared, &phase.found.plan, &phase.found.prediction);
                value["phase"] = json!(phase.phase.to_string());
                value["offload_opened"] = json!(phase.offloading.is_open());
                value
            })
            .collect();
        let value = json!({
            "model": task.model.name, "cluster": task.machine.cluster.name, "gpus": task.job.gpus,
            "framework": task.target.name(), "profile": task.profile_name, "phases": plans, "total": total,
        });
        writeln!(out, "{}", serde_json::to_string_pretty(&value).unwrap_or_default())?;
        return Ok(());
    }
    writeln!(out, "{}, {} phases", whereabouts(task), phases.len())?;
    writeln!(out, "{}", assumptions(task))?;
    for phase in phases.iter().filter(|phase| matches!(phase.offloading, Offloading::Needed)) {
        writeln!(out, "phase {}: nothing fits without offload; its plan offloads", phase.phase)?;
    }
    let mut table = Table::new();
    table.load_style(comfy_table::presets::NOTHING);
    table.set_header([
        "sequence:batch:tokens",
        "plan",
        "step",
        "MFU",
        "memory/GPU",
        "steps",
        "goodput",
        "days",
        "$",
    ]);
    for (phase, cost) in phases.iter().zip(&total.phases) {
        let p = &phase.found.prediction;
        table.add_row([
            phase.phase.to_string(),
            phase.found.plan.to_string(),
            format!("{} ±{:.0}%", seconds(p.step().seconds()), p.interval.sigma * 100.0),
            percent(phase.prepared.rates(&phase.found.plan, p).mfu),
            gigabytes(p),
            super::models::group(cost.steps),
            percent(cost.goodput.effective_training_time_ratio),
            format!("{:.1}", cost.days),
            money(cost.dollars.total),
        ]);
    }
    for i in 2..9 {
        if let Some(column) = table.column_mut(i) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    writeln!(out, "{table}")?;
    writeln!(
        out,
        "the whole run: {} tokens, {:.1} days, {}, {} GPU-hours",
        total.tokens,
        total.days,
        money(total.dollars.total),
        gpu_hours(total.gpu_hours)
    )?;
    Ok(())
}

/// Hours of one GPU for people.
pub(super) fn gpu_hours(hours: f64) -> String {
    if hours >= 1e6 { format!("{:.2}M", hours / 1e6) } else { super::models::group(hours.round() as u64) }
}

/// Bytes of tensors on the fullest rank.
fn gigabytes(p: &Prediction) -> String {
    format!("{:.1} GB ±{:.0}%", p.allocated.gigabytes(), p.memory_interval.sigma * 100.0)
}

/// The model and its GPUs.
pub(super) fn whereabouts(task: &Task) -> String {
    let (gpus, machine) = (task.job.gpus, &task.machine);
    format!("{} on {gpus} x {} ({})", task.model.name, machine.accelerator.name, machine.cluster.name)
}

/// What a job takes for granted.
pub(super) fn assumptions(task: &Task) -> String {
    let job = &task.job;
    format!(
        "assumed: framework {}{}, {}, {}, causal attention, {}{}{}",
        task.target,
        if task.profile_name == task.target.name() {
            String::new()
        } else {
            format!(" (predicted as {})", task.profile_name)
        },
        job.precision.name(),
        job.optimizer.name(),
        match &job.packed {
            Some(packed) => {
                let longest = packed.lengths.iter().map(|(length, _)| *length).max().unwrap_or(0);
                let cut = if longest > job.sequence_length { " (longer ones cut)" } else { "" };
                format!("sequences packed from {packed}{cut}")
            }
            None => "unpacked sequences".to_owned(),
        },
        match job.routing {
            _ if !task.model.has_experts() => "",
            Routing::Balanced => ", balanced routing",
            Routing::Natural => ", natural routing",
        },
        match job.expert_capacity {
            Some(ExpertCapacity { factor, padded: true }) => {
                format!(", experts padded to {factor} times an equal share of tokens")
            }
            Some(ExpertCapacity { factor, padded: false }) => {
                format!(", tokens dropped beyond {factor} times an expert's equal share")
            }
            None => String::new(),
        }
    )
}

fn csv(rows: &[Row], out: &mut impl Write) -> Result<(), Failure> {
    let mut writer = csv::Writer::from_writer(out);
    let io = Failure::of_csv;
    let header = [
        "rank",
        "plan",
        "cluster",
        "gpus",
        "step_time_s",
        "step_time_sigma",
        "step_time_low_s",
        "step_time_high_s",
        "tokens_per_s_per_gpu",
        "mfu",
        "hfu",
        "allocated_bytes",
        "allocated_bytes_sigma",
        "allocated_bytes_low",
        "allocated_bytes_high",
        "chance_to_fit",
        "usd_per_step",
        "usd_per_trillion_tokens",
        "days",
        "usd_total",
        "limiting",
        "layout",
        "tensor_parallel",
        "pipeline_parallel",
        "virtual_stages",
        "context_parallel",
        "expert_parallel",
        "expert_tensor_parallel",
        "data_parallel",
        "micro_batch_size",
        "gradient_accumulation_steps",
        "zero_stage",
        "recompute",
        "framework",
        "precision",
        "offload",
    ];
    /// Further fields of a layout, by the names that JSON has.
    const CHOICES: [&str; 11] = [
        "schedule",
        "shard_group",
        "sequence_parallel",
        "context_comm",
        "dispatcher",
        "tensor_overlap",
        "data_overlap",
        "expert_overlap",
        "shared_overlap",
        "cuda_graphs",
        "mtp_standalone",
    ];
    writer.write_record(header.iter().chain(&CHOICES)).map_err(io)?;
    for row in rows {
        let p = &row.found.prediction;
        let [low, high] = p.step_range();
        let [least, most] = p.allocated_range();
        let degrees = row.found.plan.layout();
        let record = [
            row.number().to_string(),
            row.found.plan.to_string(),
            row.section.cluster.clone(),
            row.section.prepared.task.job.gpus.to_string(),
            row.step().0.to_string(),
            (row.step().0 * p.interval.sigma).to_string(),
            low.seconds().0.to_string(),
            high.seconds().0.to_string(),
            row.rates.tokens_per_s_per_gpu.to_string(),
            row.rates.mfu.to_string(),
            row.rates.hfu.to_string(),
            p.allocated.0.to_string(),
            (p.allocated.0 as f64 * p.memory_interval.sigma).to_string(),
            least.0.to_string(),
            most.0.to_string(),
            row.chance_to_fit().to_string(),
            row.usd_per_step.0.to_string(),
            row.usd_per_trillion.0.to_string(),
            row.run.as_ref().map(|r| r.days.to_string()).unwrap_or_default(),
            row.run.as_ref().map(|r| r.dollars.total.0.to_string()).unwrap_or_default(),
            p.times.limiting().to_owned(),
            stages::layout(row.section.prepared, &row.found.plan),
            degrees.tensor_parallel.to_string(),
            degrees.pipeline_parallel.to_string(),
            degrees.virtual_stages.to_string(),
            degrees.context_parallel.to_string(),
            degrees.expert_parallel.to_string(),
            degrees.expert_tensor_parallel.to_string(),
            degrees.data_parallel.to_string(),
            degrees.micro_batch_size.to_string(),
            degrees.gradient_accumulation_steps.to_string(),
            degrees.zero_stage.to_string(),
            row.found.plan.common_recompute().map_or_else(|| "mixed".to_owned(), |mode| mode.to_string()),
            row.section.prepared.task.target.name().to_owned(),
            row.section.prepared.task.job.precision.name().to_owned(),
            OFFLOADS.iter().find(|(_, one)| *one == degrees.offload).map_or("", |(name, _)| name).to_owned(),
        ];
        let layout = layout_json(degrees);
        let choice = |name: &str| match layout.get(name) {
            Some(Value::String(text)) => text.clone(),
            None | Some(Value::Null) => String::new(),
            Some(value) => value.to_string(),
        };
        let choices = CHOICES.map(choice);
        writer.write_record(record.iter().chain(&choices)).map_err(io)?;
    }
    writer.flush()?;
    Ok(())
}

/// A table without lines, whose first columns are aligned to the left.
pub(crate) fn plain_table(header: &[&str], left: usize) -> Table {
    let mut table = Table::new();
    table.load_style(comfy_table::presets::NOTHING);
    table.set_header(header);
    for i in left..header.len() {
        if let Some(column) = table.column_mut(i) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}
