//! `autoplan check`.

use std::fmt;
use std::io::Write;

use comfy_table::{ContentArrangement, Table};
use rayon::prelude::*;
use serde_json::{Value, json};

use super::explain::{Format, task_of};
use super::options::inexpressible;
use super::{Ending, Failure};
use crate::check::{Outcome, Report, TAKEN_AS_GIVEN};
use crate::cost::step::Prediction;
use crate::plan::Plan;
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

/// What a file states of its plan, and what this build finds.
struct Stated {
    name: &'static str,
    stated: Value,
    predicted: Value,
}

impl Stated {
    /// Figures are written with all their digits.
    fn agrees(&self) -> bool {
        match (self.stated.as_f64(), self.predicted.as_f64()) {
            (Some(stated), Some(predicted)) => (stated - predicted).abs() <= 1e-9 * predicted.abs(),
            _ => self.stated == self.predicted,
        }
    }
}

impl fmt::Display for Stated {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let Self { name, stated, predicted } = self;
        write!(f, "the file states {name} = {stated}, but by this build it is {predicted}")
    }
}

/// Notes what a file states wrongly of its plan, for commands that predict it anew.
pub(crate) fn note_wrong_statements(path: &str, saved: &SavedPlan, plan: &Plan, prediction: &Prediction) {
    for wrong in stated(saved, plan, prediction).iter().filter(|one| !one.agrees()) {
        anstream::eprintln!("note: {path}: {wrong}");
    }
}

/// Runs the command.
pub(crate) fn run(args: &CheckArgs) -> Result<Ending, Failure> {
    let (saved, plan) = SavedPlan::load(&args.plan)?;
    let task = task_of(&saved)?;
    let prepared = task.prepare();
    let prediction = prepared.predict(&plan);
    let report = prepared.check(&plan, &prediction);
    let stated = stated(&saved, &plan, &prediction);
    let passed = report.passed() && stated.iter().all(Stated::agrees);
    let mut out = std::io::stdout().lock();
    match args.format {
        Format::Table => {
            if passed {
                writeln!(out, "all {} checks passed: {plan}", report.checks.len())?;
            } else {
                writeln!(out, "the plan does not hold: {plan}")?;
            }
            for wrong in stated.iter().filter(|one| !one.agrees()) {
                writeln!(out, "{wrong}")?;
            }
            table(&report, &mut out)?;
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

fn stated(saved: &SavedPlan, plan: &Plan, prediction: &Prediction) -> [Stated; 3] {
    [
        Stated { name: "name", stated: json!(saved.name), predicted: json!(plan.to_string()) },
        Stated {
            name: "predicted_step_s",
            stated: json!(saved.predicted_step_s),
            predicted: json!(prediction.step().seconds().0),
        },
        Stated {
            name: "predicted_allocated",
            stated: json!(saved.predicted_allocated.0),
            predicted: json!(prediction.allocated.0),
        },
    ]
}

fn table(report: &Report, out: &mut impl Write) -> Result<(), Failure> {
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
        .map(|one| {
            json!({
                "name": one.name, "stated": one.stated, "predicted": one.predicted, "agrees": one.agrees(),
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
