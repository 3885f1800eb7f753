//! `autoplan validate`.

use std::fs::File;
use std::io::{Read, Write};
use std::path::PathBuf;

use comfy_table::{CellAlignment, Table};
use indicatif::{ProgressBar, ProgressStyle};

use super::output::percent;
use super::{Ending, Failure, files};
use crate::spec::measured::MeasuredRow;
use crate::validate::baseline::Baseline;
use crate::validate::page::page;
use crate::validate::{ErrorStatistics, ErrorTable, Report, validate};

/// The measurements that ship.
pub(super) static PUBLISHED: &str = include_str!("../../results/published/measured.csv");

/// Columns that `--filter` takes.
const FILTERS: [&str; 8] =
    ["id", "gpu", "framework_family", "precision", "model", "quality", "training", "source"];

/// Options of `autoplan validate`.
#[derive(Debug, clap::Args)]
pub(crate) struct ValidateArgs {
    /// A CSV of measured runs; the published ones that ship unless given.
    #[arg(long, value_name = "FILE")]
    measured: Option<PathBuf>,
    /// Only rows whose column contains this text: gpu=H100, framework_family=nanotron, quality=A, id=hfplay, ...
    #[arg(long, value_name = "COLUMN=TEXT")]
    filter: Vec<String>,
    /// Output format.
    #[arg(long, value_enum, default_value = "table")]
    format: Format,
    /// Write the accuracy page (accuracy.md and its plots) into this folder.
    #[arg(long, value_name = "DIR")]
    page: Option<PathBuf>,
    /// Compare with this file of errors reached before; exit 1 if a class got worse by more than its margin.
    #[arg(long, value_name = "FILE")]
    baseline: Option<PathBuf>,
    /// Write the errors reached to --baseline instead of comparing.
    #[arg(long, requires = "baseline")]
    update: bool,
}

/// Output format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    /// For people.
    Table,
    /// For programs.
    Json,
    /// One line per row.
    Csv,
}

/// Runs the command.
pub(crate) fn run(args: &ValidateArgs) -> Result<Ending, Failure> {
    let mut filters = Vec::new();
    for text in &args.filter {
        let pair = text.split_once('=').filter(|(column, _)| FILTERS.contains(column));
        let Some((column, value)) = pair else {
            return Err(Failure::Usage(format!(
                "--filter {text}: expected COLUMN=TEXT with a column of {}",
                FILTERS.join(", ")
            )));
        };
        filters.push((column.to_owned(), value.to_ascii_lowercase()));
    }
    let keep = |row: &MeasuredRow| {
        filters.iter().all(|(column, value)| {
            row.text(column).is_some_and(|text| text.to_ascii_lowercase().contains(value.as_str()))
        })
    };
    if let Some(folder) = &args.page {
        files::check_folder(folder)?;
    }
    let (input, name): (Box<dyn Read>, String) = match &args.measured {
        None => (Box::new(PUBLISHED.as_bytes()), "results/published/measured.csv".into()),
        Some(path) => {
            let name = path.display().to_string();
            if path.is_dir() {
                return Err(Failure::Usage(format!("{name} is a folder, not a CSV file")));
            }
            let file = File::open(path).map_err(|e| Failure::Usage(format!("cannot read {name}: {e}")))?;
            (Box::new(file), name)
        }
    };
    let bar = ProgressBar::new_spinner();
    if let Ok(style) = ProgressStyle::with_template("{spinner} {human_pos} rows, {per_sec}") {
        bar.set_style(style);
    }
    let report = validate(input, keep, |rows| bar.set_position(rows as u64));
    bar.finish_and_clear();
    let report = report.map_err(|e| Failure::Usage(format!("{name}: {e}")))?;

    let mut out = std::io::stdout().lock();
    match args.format {
        Format::Json => writeln!(out, "{}", serde_json::to_string_pretty(&report).unwrap_or_default())?,
        Format::Csv => csv(&report, &mut out)?,
        Format::Table => table(&report, &mut out)?,
    }
    if let Some(folder) = &args.page {
        let constants = include_str!("../../results/constants.md");
        let page = page(&report, constants).map_err(|e| Failure::Usage(e.to_string()))?;
        files::write(&folder.join("accuracy.md"), &page.markdown, false, true)?;
        for (name, svg) in &page.pictures {
            files::write(&folder.join(name), svg, false, true)?;
        }
        anstream::eprintln!("wrote {}", folder.join("accuracy.md").display());
    }
    let Some(path) = &args.baseline else { return Ok(Ending::Done) };
    if args.update {
        let baseline = Baseline::of(&report.summary);
        let text = baseline.to_text().map_err(|e| Failure::Usage(e.to_string()))?;
        files::write(path, &text, false, true)?;
        return Ok(Ending::Done);
    }
    let baseline = Baseline::read(path)?;
    let worse = baseline.worse(&report.summary);
    for class in &worse {
        let now = class.now.map_or_else(|| "no rows".to_owned(), percent);
        anstream::eprintln!(
            "worse: {}: median error {} before, {now} now",
            class.class,
            percent(class.before)
        );
    }
    Ok(if worse.is_empty() { Ending::Done } else { Ending::Negative })
}

fn grid(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(comfy_table::presets::NOTHING);
    table.set_header(header);
    for i in 1..header.len() {
        if let Some(column) = table.column_mut(i) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

fn errors(title: &str, errors: &ErrorTable, out: &mut impl Write) -> Result<(), Failure> {
    let mut table = grid(&[title, "rows", "median", "mean", "P90", "worst", "bias"]);
    let cells = |name: String, e: &ErrorStatistics| {
        [
            name,
            e.rows.to_string(),
            percent(e.median),
            percent(e.mean),
            percent(e.p90),
            percent(e.worst),
            format!("{:+.1}%", e.bias * 100.0),
        ]
    };
    if let Some(all) = &errors.all {
        table.add_row(cells("all".into(), all));
    }
    for (dimension, classes) in &errors.by {
        for (class, e) in classes {
            table.add_row(cells(format!("{dimension}: {class}"), e));
        }
    }
    writeln!(out, "{table}\n")?;
    Ok(())
}

fn table(report: &Report, out: &mut impl Write) -> Result<(), Failure> {
    let s = &report.summary;
    writeln!(out, "{} rows, {} predicted, {} repeat another row's run\n", s.rows, s.predicted, s.repeated)?;
    errors("error of step time", &s.step_time, out)?;
    errors("error of peak memory", &s.memory, out)?;
    let v = &s.out_of_memory;
    let mut verdicts = grid(&["memory verdicts", "predicted to fit", "not to fit"]);
    verdicts.add_row(["ran".to_owned(), v.ran_fits.to_string(), v.ran_rejected.to_string()]);
    verdicts.add_row([
        "ran out of memory".to_owned(),
        v.failed_fits.to_string(),
        v.failed_rejected.to_string(),
    ]);
    writeln!(out, "{verdicts}\n{} right\n", percent(v.right()))?;
    let r = &s.ranking;
    if let (Some(tau), Some(regret)) = (r.mean_tau, r.mean_regret) {
        writeln!(
            out,
            "ranking of {} groups of plans: mean tau {tau:.2}, mean regret {}, picks that ran out of memory {}",
            r.groups.len(),
            percent(regret),
            r.picks_out_of_memory
        )?;
    }
    writeln!(
        out,
        "error bars: {} inside one sigma, {} inside two",
        percent(s.coverage.one_sigma),
        percent(s.coverage.two_sigma)
    )?;
    if !s.skipped.is_empty() {
        let mut skipped = grid(&["skipped", "rows"]);
        for (reason, count) in &s.skipped {
            skipped.add_row([reason.clone(), count.to_string()]);
        }
        writeln!(out, "\n{skipped}")?;
    }
    Ok(())
}

fn csv(report: &Report, out: &mut impl Write) -> Result<(), Failure> {
    let io = |e: csv::Error| Failure::Output(std::io::Error::other(e));
    let mut writer = csv::Writer::from_writer(out);
    let header = [
        "id",
        "predicted_step_s",
        "predicted_step_sigma",
        "predicted_allocated_gb",
        "predicted_reserved_gb",
        "predicted_device_gb",
        "predicted_mem_gb",
        "fits",
        "measured_step_s",
        "measured_mem_gb",
        "out_of_memory",
        "plan",
        "assumed",
        "skipped",
    ];
    writer.write_record(header).map_err(io)?;
    let number = |x: Option<f64>| x.map(|x| x.to_string()).unwrap_or_default();
    let truth = |x: Option<bool>| x.map(|x| x.to_string()).unwrap_or_default();
    for row in &report.rows {
        let record = [
            row.id.clone(),
            number(row.predicted_step_s),
            number(row.predicted_step_sigma),
            number(row.predicted_allocated_gb),
            number(row.predicted_reserved_gb),
            number(row.predicted_device_gb),
            number(row.predicted_mem_gb),
            truth(row.fits),
            number(row.measured_step_s),
            number(row.measured_mem_gb),
            truth(row.out_of_memory),
            row.plan.clone().unwrap_or_default(),
            row.assumed.join(" "),
            row.skipped.clone().unwrap_or_default(),
        ];
        writer.write_record(&record).map_err(io)?;
    }
    writer.flush()?;
    Ok(())
}
