//! `autoplan regress`.

use std::io::Write;
use std::path::{Path, PathBuf};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::validate::PUBLISHED;
use super::{Ending, Failure};
use crate::regress::scenario::ScenarioPlanner;
use crate::regress::{self, FailOn, Observer, Options, TOLERANCE};
use crate::results::{SCHEMA, Store, read_scenarios, write_if_changed};
use crate::spec::sealed::header;
use crate::validate::baseline::Baseline;
use crate::validate::validate;

/// Options of `autoplan regress`.
#[derive(Debug, clap::Args)]
pub(crate) struct RegressArgs {
    /// List of scenarios.
    #[arg(long, value_name = "FILE", default_value = "results/scenarios.ron")]
    scenarios: PathBuf,
    /// Folder with the stored result of every scenario.
    #[arg(long, value_name = "FOLDER", default_value = "results/best")]
    results: PathBuf,
    /// Errors reached before on the published measurements; `-` leaves the measurements out.
    #[arg(long, value_name = "FILE", default_value = "results/accuracy.ron")]
    accuracy: PathBuf,
    /// Only scenarios whose name contains this text, without the measurements; may be given several times.
    #[arg(long, value_name = "TEXT")]
    filter: Vec<String>,
    /// Change of a prediction that is not reported, such as 0.5%: predictions are exact, so that a small change of the
    /// cost model is one, and a slower exchange may be a thousandth of a step.
    #[arg(long, value_parser = share, default_value_t = TOLERANCE)]
    tolerance: f64,
    /// What fails: any change, or only dearer and impossible plans.
    #[arg(long, value_enum, default_value = "any")]
    fail_on: FailOn,
    /// Write the results that changed, and print a summary for the commit message.
    #[arg(long)]
    update: bool,
    /// Output format.
    #[arg(long, value_enum, default_value = "table")]
    format: Format,
    /// Threads; the report does not depend on it.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=4096))]
    threads: Option<u32>,
}

/// Output format of a regression.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    /// For people.
    Table,
    /// For programs.
    Json,
    /// Annotations of GitHub Actions.
    Github,
}

fn share(text: &str) -> Result<f64, String> {
    let (number, scale) = match text.strip_suffix('%') {
        Some(number) => (number, 0.01),
        None => (text, 1.0),
    };
    let value = number.trim().parse::<f64>().ok().map(|value| value * scale);
    value
        .filter(|v| v.is_finite() && (0.0..=1.0).contains(v))
        .ok_or_else(|| "expected a share, such as 0.5%".into())
}

/// Draws progress on stderr where somebody watches.
struct Bar(ProgressBar);

impl Observer for Bar {
    fn finished(&self, scenario: &str) {
        self.0.set_message(scenario.to_owned());
        self.0.inc(1);
    }
}

/// Whether a file was written by a newer autoplan.
fn is_newer(path: &Path) -> bool {
    std::fs::read_to_string(path).is_ok_and(|text| header(&text).is_some_and(|schema| schema > SCHEMA))
}

/// Runs the command.
pub(crate) fn run(args: &RegressArgs) -> Result<Ending, Failure> {
    if let Some(threads) = args.threads {
        let built = rayon::ThreadPoolBuilder::new().num_threads(threads as usize).build_global();
        built.map_err(|e| Failure::Usage(format!("--threads {threads}: {e}")))?;
    }
    let all = read_scenarios(&args.scenarios).map_err(|error| {
        if args.scenarios.exists() {
            error
        } else {
            error.help("run this in autoplan's repository, or name the list with --scenarios")
        }
    })?;
    let chosen: Vec<_> = all
        .iter()
        .filter(|scenario| {
            let name = scenario.name();
            args.filter.is_empty() || args.filter.iter().any(|text| name.contains(text.as_str()))
        })
        .cloned()
        .collect();
    if chosen.is_empty() {
        return Err(Failure::Usage(format!("--filter: none of {} scenarios has such a name", all.len())));
    }
    let store = Store::new(&args.results);
    if args.update {
        // Every scenario is still reported, and which of them is not written.
        if let Err(error) = store.check_writable() {
            anstream::eprintln!("note: {error}");
        }
        store.sweep();
    }
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} scenarios, {elapsed}, {msg}");
    let bar = ProgressBar::with_draw_target(Some(chosen.len() as u64), ProgressDrawTarget::stderr());
    let bar = Bar(bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar())));
    let options =
        Options { tolerance: args.tolerance, update: args.update, partial: chosen.len() < all.len() };
    let measured = (!options.partial && args.accuracy.as_os_str() != "-")
        .then(|| validate(PUBLISHED.as_bytes(), |_| true, |_, _| {}))
        .transpose()
        .map_err(|error| Failure::Usage(error.to_string()))?;
    let before = match &measured {
        Some(_) if args.accuracy.exists() || !args.update => Some(Baseline::read(&args.accuracy)),
        _ => None,
    };
    // What is wrong with the errors reached before is no reason to say nothing of the plans.
    let (before, unreadable) = match before {
        Some(Ok(before)) => (Some(before), None),
        Some(Err(error)) => (None, Some(error)),
        None => (None, None),
    };
    let mut report = regress::regress(&chosen, &store, &ScenarioPlanner::default(), &options, &bar);
    bar.0.finish_and_clear();
    let mut unwritten = None;
    if let Some(measured) = &measured {
        report.accuracy = before.map_or_else(Vec::new, |before| before.worse(&measured.summary));
        // A newer autoplan's file is not replaced.
        let newer = unreadable.as_ref().is_some_and(|_| is_newer(&args.accuracy));
        if args.update && !newer {
            let text = Baseline::of(&measured.summary).to_text();
            let text = text.map_err(|error| Failure::Usage(error.to_string()))?;
            unwritten = write_if_changed(&args.accuracy, &text).err();
        }
    }
    let mut out = anstream::stdout().lock();
    match args.format {
        Format::Table => write!(out, "{}", report.table())?,
        Format::Json => {
            let json = report.json().map_err(|error| Failure::Usage(error.to_string()))?;
            writeln!(out, "{json}")?;
        }
        Format::Github => write!(out, "{}", report.github())?,
    }
    if args.update && args.format == Format::Table {
        writeln!(out, "\n{}", report.commit_message())?;
    } else if args.update {
        anstream::eprintln!("{}", report.commit_message());
    }
    out.flush()?;
    if let Some(error) = unwritten {
        return Err(Failure::Usage(error.to_string()));
    }
    if let Some(error) = unreadable {
        if args.update && !is_newer(&args.accuracy) {
            anstream::eprintln!("note: {}: {}; it is written anew", args.accuracy.display(), error.title());
        } else {
            return Err(Failure::Spec(error));
        }
    }
    Ok(match report.exit_code(args.fail_on) {
        0 => Ending::Done,
        // What an update has written is what it was asked for.
        1 if args.update => Ending::Done,
        1 => Ending::Negative,
        2 => Ending::Input,
        _ => Ending::Internal,
    })
}
