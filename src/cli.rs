//! The command line: the only code that prints. Data go to stdout, everything else to stderr.

mod better_numbers;
mod calibrate;
mod check;
mod explain;
mod export;
mod files;
mod fix;
mod import;
mod lines;
mod models;
mod no_plan;
mod options;
mod output;
mod plan;
mod progress;
mod regress;
mod remedies;
mod stages;
mod surer;
mod survey;
mod validate;
mod warnings;

use std::io::Write;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::spec::diagnostic::SpecError;

/// Finds the best parallel layout for training a large language model, and proves it.
#[derive(Debug, Parser)]
#[command(name = "autoplan", version, about, max_term_width = 110)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Search for the best plans of a job.
    Plan(Box<plan::PlanArgs>),
    /// Evaluate every plan with equal stages, and say what each choice costs.
    Survey(Box<survey::SurveyArgs>),
    /// Explain a plan: where its time and memory go, and what beats it.
    Explain(Box<explain::ExplainArgs>),
    /// Compare two saved plans item by item.
    Compare(explain::CompareArgs),
    /// Verify a saved plan with arithmetic that shares nothing with the search.
    Check(check::CheckArgs),
    /// Write a saved plan as a launch script or configuration.
    Export(export::ExportArgs),
    /// Score the predictions on measured runs.
    Validate(validate::ValidateArgs),
    /// Fit a site's constants to a handful of its own runs.
    Calibrate(calibrate::CalibrateArgs),
    /// Read models and plans of other tools.
    Import(import::ImportArgs),
    /// List the models that ship with autoplan.
    Models(models::ListArgs),
    /// List the clusters that ship with autoplan.
    Clusters(models::ListArgs),
    /// Plan all stored scenarios again and say what changed.
    Regress(regress::RegressArgs),
    /// Print a completion script for a shell.
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
}

/// How a command ended; see the table of exit codes in the README.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    /// It did what was asked.
    Done,
    /// No plan, or a regression was found.
    Negative,
    /// It did what could be done, but some input was unusable.
    Input,
    /// It found a defect of its own.
    Internal,
}

/// Exit code of a fault of the program itself (`EX_SOFTWARE` of sysexits.h).
const INTERNAL: u8 = 70;

/// Exit code of what Ctrl-C ended, as shells have it.
const INTERRUPTED: u8 = 130;

/// Why a command could not do what was asked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// Something in a file or an argument.
    #[error("{0}")]
    Spec(#[from] SpecError),
    /// A sentence about an argument.
    #[error("{0}")]
    Usage(String),
    /// A file could not be written, or a pipe broke.
    #[error("{0}")]
    Output(#[from] std::io::Error),
    /// A fault of the program: a plan of its own that its verifier does not accept.
    #[error("internal error: {0}")]
    Internal(String),
}

impl Failure {
    /// What went wrong while a table was written; a pipe that broke stays one.
    pub(crate) fn of_csv(error: csv::Error) -> Self {
        Self::Output(match error.into_kind() {
            csv::ErrorKind::Io(error) => error,
            other => std::io::Error::other(format!("{other:?}")),
        })
    }
}

/// Runs the command line. A panic is an internal error: exit code 70.
#[must_use]
pub fn run() -> ExitCode {
    std::panic::set_hook(Box::new(|panic| {
        anstream::eprintln!("internal error: {panic}");
        anstream::eprintln!("This is a fault of autoplan; please report it with the command that caused it.");
    }));
    std::panic::catch_unwind(command).unwrap_or(ExitCode::from(70))
}

/// Why options of one job do not go with phases, where that is what was asked.
fn of_phases(error: &clap::Error) -> Option<&'static str> {
    use clap::error::{ContextKind, ErrorKind};
    let named = |kind| error.get(kind).is_some_and(|named| named.to_string().contains("--phase"));
    let phases = named(ContextKind::InvalidArg) || named(ContextKind::PriorArg);
    (error.kind() == ErrorKind::ArgumentConflict && phases).then_some(
        "of each phase the fastest plan alone is printed, by its own sequence, batch and tokens; plan a phase alone for more",
    )
}

/// What is wrong where an option is none, with the nearest that is one.
fn no_option(error: &clap::Error) -> Option<String> {
    use clap::error::{ContextKind, ErrorKind};
    let option = error.get(ContextKind::InvalidArg).map(ToString::to_string);
    // Neither a number that is no value nor what stands behind `--` is meant for an option.
    let meant = |option: &String| option.starts_with('-') && option != "--" && option.parse::<f64>().is_err();
    let option = option.filter(meant)?;
    let near = error.get(ContextKind::SuggestedArg);
    let near =
        near.map_or("--help lists those there are".to_owned(), |near| format!("did you mean `{near}`?"));
    (error.kind() == ErrorKind::UnknownArgument).then(|| format!("there is no option `{option}`; {near}"))
}

fn command() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            if let Some(message) = no_option(&error) {
                anstream::eprintln!("error: {message}");
                return ExitCode::from(2);
            }
            let asked = !error.use_stderr();
            let _ = error.print();
            if let Some(reason) = of_phases(&error) {
                anstream::eprintln!("note: {reason}");
            }
            return if asked { ExitCode::SUCCESS } else { ExitCode::from(2) };
        }
    };
    let ending = match cli.command {
        Command::Plan(args) => plan::run(&args),
        Command::Survey(args) => survey::run(&args),
        Command::Explain(args) => explain::explain(&args),
        Command::Compare(args) => explain::compare(&args),
        Command::Check(args) => check::run(&args),
        Command::Export(args) => export::run(&args),
        Command::Validate(args) => validate::run(&args),
        Command::Calibrate(args) => calibrate::run(&args),
        Command::Import(args) => import::run(&args),
        Command::Models(args) => models::models(&args),
        Command::Clusters(args) => models::clusters(&args),
        Command::Regress(args) => regress::run(&args),
        Command::Completions { shell } => {
            let mut command = <Cli as clap::CommandFactory>::command();
            // A pipe that is closed early is no fault: what is written to memory cannot fail.
            let mut text = Vec::new();
            clap_complete::generate(shell, &mut command, "autoplan", &mut text);
            std::io::stdout().write_all(&text).map(|()| Ending::Done).map_err(Failure::Output)
        }
    };
    match ending {
        Ok(Ending::Done | Ending::Negative) if progress::interrupted() => ExitCode::from(INTERRUPTED),
        Ok(Ending::Done) => ExitCode::SUCCESS,
        Ok(Ending::Negative) => ExitCode::from(1),
        Ok(Ending::Input) => ExitCode::from(2),
        Ok(Ending::Internal) => ExitCode::from(70),
        // A reader that has seen enough (`| head`) is no failure.
        Err(Failure::Output(error)) if error.kind() == std::io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(failure) => {
            let colour = anstream::AutoStream::choice(&std::io::stderr()) != anstream::ColorChoice::Never;
            match &failure {
                Failure::Spec(error) => anstream::eprintln!("{}", error.render(colour)),
                internal @ Failure::Internal(_) => {
                    anstream::eprintln!("{internal}");
                    return ExitCode::from(INTERNAL);
                }
                other => anstream::eprintln!("error: {other}"),
            }
            ExitCode::from(2)
        }
    }
}
