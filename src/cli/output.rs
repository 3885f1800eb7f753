//! Plans as a table, JSON, CSV and RON.

mod csv;
mod json;
mod notes;
mod phases;
mod table;

use std::collections::BTreeSet;
use std::fmt;
use std::io::Write;
use std::time::Duration;

use comfy_table::{CellAlignment, Table};

use super::Failure;
use super::better_numbers::BetterNumber;
use super::export::command_line;
use super::lines::Lines;
use super::no_plan;
use super::options::JobArgs;
use super::plan::Objective;
use super::progress::Bar;
use super::remedies::Bounds;
use super::warnings;
use crate::cost::goodput::NoProgress;
use crate::cost::money::{Pricing, RunCost, run_cost, step_cost};
use crate::cost::step::Prediction;
use crate::layers::Layers;
use crate::plan::{Offload, Recompute};
use crate::planner::{Offloading, Prepared, Rates, Task};
use crate::search::{Answer, Found};
use crate::spec::job::{ExpertCapacity, Routing};
use crate::spec::model::Mixer;
use crate::spec::saved::SavedPlan;
use crate::units::{Dollars, Seconds};

pub(crate) use json::{layout_json, prediction_json};
pub(super) use notes::left_out;
pub(crate) use phases::{PlannedPhase, print_phases};
pub(crate) use table::width;

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
            format!("{} in {}, {} {than}", other.plan, seconds(step.seconds()), by(gap.abs()))
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
    /// The job as the user gave it.
    pub(crate) job: &'a JobArgs,
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
    /// Whether splits are printed as they were ranked.
    pub(crate) as_ranked: bool,
    /// GPUs that may be used at most, where some may stay idle.
    pub(crate) asked: Option<u32>,
    /// Wall time, if it is to be printed.
    pub(crate) wall: Option<Duration>,
    /// Seeks numbers near those of the job that divide better.
    pub(crate) better_numbers: &'a dyn Fn() -> Vec<BetterNumber>,
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
    /// How surely the plan that is printed fits.
    fn chance_to_fit(&self) -> f64 {
        self.chance_of(&self.found.prediction)
    }
    /// [`crate::cost::model::CostModel::chance_to_fit`], of this split of its layers or of another.
    fn chance_of(&self, prediction: &Prediction) -> f64 {
        self.section.prepared.cost().chance_to_fit(prediction)
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
    // Tables and JSON have a place of their own for notes.
    let printed = if format == Format::Ron { &rows[..rows.len().min(1)] } else { rows };
    let own = matches!(format, Format::Csv | Format::Ron)
        .then(|| [notes::notes(report, printed), notes::of_plans(printed)].concat());
    let risk = printed.first().filter(|_| format == Format::Ron);
    let risk = risk.and_then(|row| warnings::risk(row.section.prepared, &row.found.prediction));
    // The table says it below the plans.
    let faster = notes::faster_when_moved(rows).filter(|_| format != Format::Table);
    let faster = faster.map(|faster| format!("with layers moved between chunks after the ranking, {faster}"));
    for note in own.into_iter().flatten().chain(risk).chain(faster) {
        anstream::eprintln!("note: {note}");
    }
    match format {
        Format::Table => table::table(report, rows, &mut Lines::new(out, table::width()))?,
        Format::Json => {
            let value = json::json(report, rows, &all);
            writeln!(out, "{}", serde_json::to_string_pretty(&value).unwrap_or_default())?;
        }
        Format::Csv => csv::csv(rows, &mut out)?,
        Format::Ron => {
            if rows.len() > 1 {
                anstream::eprintln!("note: RON holds the best plan only; --pick 2 is for the second");
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

/// By how much two differ, in words where that rounds to nothing.
pub(super) fn by(share: f64) -> String {
    let rounded = percent(share);
    if rounded == percent(0.0) { format!("less than {}", percent(0.001)) } else { rounded }
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
        d if d > 0.0 && d < 0.0005 => "<$0.001".into(),
        d => format!("${d:.3}"),
    }
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

/// What a job rests on: a line of what was given, if anything was, and one of what is assumed.
pub(super) struct Premises {
    given: Vec<String>,
    assumed: Vec<String>,
}

/// What a job rests on.
pub(super) fn premises(task: &Task, given: &JobArgs) -> Premises {
    let job = &task.job;
    let profile = match &task.profile_name {
        own if own == task.target.name() => String::new(),
        other => format!(" (predicted as {other})"),
    };
    let sequences = job.packed.as_ref().map_or("unpacked sequences".to_owned(), |packed| {
        let longest = packed.lengths.iter().map(|(length, _)| *length).max().unwrap_or(0);
        let cut = if longest > job.sequence_length { " (longer ones cut)" } else { "" };
        format!("sequences packed from {packed}{cut}")
    });
    let routing = task.model.has_experts().then(|| match job.routing {
        Routing::Balanced => "balanced routing".to_owned(),
        Routing::Natural => "natural routing".to_owned(),
    });
    let capacity = job.expert_capacity.map(|ExpertCapacity { factor, padded }| match padded {
        true => format!("experts padded to {factor} times an equal share of tokens"),
        false => format!("tokens dropped beyond {factor} times an expert's equal share"),
    });
    let price = match task.pricing {
        Pricing::Own { per_gpu_hour, electricity_extra } => {
            let electricity = if electricity_extra { " and electricity" } else { "" };
            format!("${:.3} a GPU-hour{electricity}", per_gpu_hour.0)
        }
        listed => format!("{listed} prices"),
    };
    let premises = [
        (given.framework.is_some(), Some(format!("framework {}{profile}", task.target))),
        (given.precision.is_some(), Some(job.precision.name().to_owned())),
        (given.optimizer.is_some(), Some(job.optimizer.name().to_owned())),
        (given.lora.is_some(), given.lora.map(|rank| format!("adapters of rank {rank}"))),
        (false, Some("causal attention".to_owned())),
        (given.packed.is_some(), Some(sequences)),
        (given.routing.is_some(), routing),
        (given.expert_capacity.is_some(), capacity),
        (given.price.is_some(), Some(price)),
    ];
    let of = |given: bool| {
        let some = premises.iter().filter(|(was_given, _)| *was_given == given);
        some.filter_map(|(_, what)| what.clone()).collect()
    };
    Premises { given: of(true), assumed: of(false) }
}

impl fmt::Display for Premises {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        if !self.given.is_empty() {
            writeln!(f, "given: {}", self.given.join(", "))?;
        }
        write!(f, "assumed: {}", self.assumed.join(", "))
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_difference_is_nothing() {
        assert_eq!([0.0, 0.0004, 0.0006].map(by), ["less than 0.1%", "less than 0.1%", "0.1%"]);
    }
}
