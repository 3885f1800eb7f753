//! The plans of a run that changes its context.

use std::collections::BTreeSet;
use std::io::Write;

use comfy_table::{CellAlignment, Table};
use serde_json::{Value, json};

use super::json::{left_out_json, prediction_json};
use super::notes::grouped;
use super::table::width;
use super::{Format, gigabytes, gpu_hours, left_out, money, percent, premises, seconds, whereabouts};
use crate::cli::Failure;
use crate::cli::lines::Lines;
use crate::cli::models::group;
use crate::cli::options::JobArgs;
use crate::cli::warnings;
use crate::cost::money::PhasedCost;
use crate::planner::{Offloading, Prepared};
use crate::search::Found;
use crate::spec::job::Phase;

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

/// What is to be known of a phase and its plan.
fn all_warnings(PlannedPhase { prepared, found, .. }: &PlannedPhase) -> Vec<String> {
    warnings::with_job(prepared, &found.plan, &found.prediction)
}

/// Prints the phases of a run with its totals.
pub(crate) fn print_phases(
    format: Format,
    given: &JobArgs,
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
                value["notes"] = json!(all_warnings(phase));
                let offloads = phase.offloading.is_open();
                value["offload_opened"] = json!(offloads);
                value["left_out"] = left_out_json(phase.prepared, offloads);
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
    let several = if phases.len() == 1 { "1 phase".to_owned() } else { format!("{} phases", phases.len()) };
    writeln!(out, "{}, {several}", whereabouts(task))?;
    writeln!(out, "{}", premises(task, given))?;
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
        "fits",
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
            format!("{:.0}%", phase.prepared.cost().chance_to_fit(p) * 100.0),
            group(cost.steps),
            percent(cost.goodput.effective_training_time_ratio),
            format!("{:.1}", cost.days),
            money(cost.dollars.total),
        ]);
    }
    for i in 2..10 {
        if let Some(column) = table.column_mut(i) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    writeln!(out, "{table}")?;
    let of_phases = phases.iter().map(|phase| (phase.phase.to_string(), all_warnings(phase)));
    let mut lines = Lines::new(&mut out, width());
    for line in grouped("phase", of_phases) {
        writeln!(lines, "{line}")?;
    }
    drop(lines);
    let left = |phase: &PlannedPhase| left_out(phase.prepared, phase.offloading.is_open());
    for left in phases.iter().map(left).filter(|left| !left.is_empty()).collect::<BTreeSet<String>>() {
        writeln!(out, "searched {left}")?;
    }
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
