//! `autoplan check`.

use std::io::Write;

use comfy_table::{ContentArrangement, Table};
use rayon::prelude::*;
use serde_json::{Value, json};

use super::explain::{Format, task_of};
use super::options::inexpressible;
use super::{Ending, Failure};
use crate::check::{Outcome, Report, TAKEN_AS_GIVEN};
use crate::cost::step::Prediction;
use crate::planner::Prepared;
use crate::search::Found;
use crate::spec::saved::SavedPlan;

/// Options of `autoplan check`.
#[derive(Debug, clap::Args)]
pub(crate) struct CheckArgs {
    /// A saved plan, as `plan --format ron` prints it; - reads it from standard input.
    plan: String,
    /// Output format.
    #[arg(long, value_enum, default_value = "table")]
    format: Format,
}

/// Verifies plans of our own before anything is printed of them.
///
/// # Errors
/// [`Failure::Internal`] with what the verifier found.
pub(crate) fn verify(prepared: &Prepared, plans: &[Found]) -> Result<(), Failure> {
    let wrong = plans.par_iter().find_map_first(|found| {
        let report = prepared.check(&found.plan, &found.prediction);
        (!report.passed()).then_some((found, report))
    });
    wrong.map_or(Ok(()), |(found, report)| {
        Err(Failure::Internal(format!(
            "the plan {} of {} does not pass its own verification; please report this with the command\n{report}",
            found.plan, prepared.task.model.name
        )))
    })
}

/// A figure that the file states, and what this build predicts.
struct Stated {
    name: &'static str,
    stated: f64,
    predicted: f64,
}

impl Stated {
    /// Figures are written with all their digits.
    fn agrees(&self) -> bool {
        (self.stated - self.predicted).abs() <= 1e-9 * self.predicted.abs()
    }
}

/// Runs the command.
pub(crate) fn run(args: &CheckArgs) -> Result<Ending, Failure> {
    let (saved, plan) = SavedPlan::load(&args.plan)?;
    let task = task_of(&saved)?;
    let prepared = task.prepare();
    let prediction = prepared.predict(&plan);
    let report = prepared.check(&plan, &prediction);
    let stated = stated(&saved, &prediction);
    let passed = report.passed() && stated.iter().all(Stated::agrees);
    let mut out = std::io::stdout().lock();
    match args.format {
        Format::Table => {
            table(&plan.to_string(), &report, &mut out)?;
            for figure in stated.iter().filter(|figure| !figure.agrees()) {
                writeln!(
                    out,
                    "the file states {} = {}, but this build predicts {}",
                    figure.name, figure.stated, figure.predicted
                )?;
            }
            if passed {
                writeln!(out, "all {} checks passed", report.checks.len())?;
            } else {
                writeln!(out, "the plan does not hold")?;
            }
            writeln!(out, "taken as given:")?;
            for given in TAKEN_AS_GIVEN {
                writeln!(out, "  {given}")?;
            }
        }
        Format::Json => {
            let value = report_json(&plan.to_string(), &report, &stated, passed);
            writeln!(out, "{}", serde_json::to_string_pretty(&value).unwrap_or_default())?;
        }
    }
    if let Some(reason) = inexpressible(&task) {
        anstream::eprintln!("note: the plan is a prediction only, it cannot be exported: {reason}");
    }
    Ok(if passed { Ending::Done } else { Ending::Negative })
}

fn stated(saved: &SavedPlan, prediction: &Prediction) -> [Stated; 2] {
    [
        Stated {
            name: "predicted_step_s",
            stated: saved.predicted_step_s,
            predicted: prediction.step().seconds().0,
        },
        Stated {
            name: "predicted_allocated",
            stated: saved.predicted_allocated.0 as f64,
            predicted: prediction.allocated.0 as f64,
        },
    ]
}

fn table(plan: &str, report: &Report, out: &mut impl Write) -> Result<(), Failure> {
    writeln!(out, "{plan}")?;
    let mut table = Table::new();
    table.load_style(comfy_table::presets::NOTHING);
    table.set_content_arrangement(ContentArrangement::Dynamic);
    table.set_header(["check", "", "what"]);
    for check in &report.checks {
        let (mark, text) = match &check.outcome {
            Outcome::Passed => ("passed", check.about.to_owned()),
            Outcome::NotReached => ("not reached", check.about.to_owned()),
            Outcome::Failed { what, expected, found } => {
                ("FAILED", format!("{what}: derived {expected}, found {found}"))
            }
        };
        table.add_row([check.name.to_owned(), mark.to_owned(), text]);
    }
    writeln!(out, "{table}")?;
    Ok(())
}

fn report_json(plan: &str, report: &Report, stated: &[Stated], passed: bool) -> Value {
    let checks: Vec<Value> = report
        .checks
        .iter()
        .map(|check| {
            let mut value = json!({"name": check.name, "about": check.about});
            value["outcome"] = match &check.outcome {
                Outcome::Passed => json!("passed"),
                Outcome::NotReached => json!("not_reached"),
                Outcome::Failed { what, expected, found } => {
                    value["what"] = json!(what);
                    value["expected"] = json!(expected);
                    value["found"] = json!(found);
                    json!("failed")
                }
            };
            value
        })
        .collect();
    let stated: Vec<Value> = stated
        .iter()
        .map(|figure| {
            json!({
                "name": figure.name, "stated": figure.stated, "predicted": figure.predicted,
                "agrees": figure.agrees(),
            })
        })
        .collect();
    json!({
        "plan": plan,
        "passed": passed,
        "checks": checks,
        "stated": stated,
        "taken_as_given": TAKEN_AS_GIVEN,
    })
}
