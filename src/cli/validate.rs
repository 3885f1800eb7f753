//! `autoplan validate`.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use comfy_table::{CellAlignment, Table};
use indicatif::ProgressBar;

use super::output::percent;
use super::{Ending, Failure, files, progress};
use crate::spec::measured::{MeasuredRow, known_columns};
use crate::spec::shipped::nearest;
use crate::validate::baseline::Baseline;
use crate::validate::case::words_of;
use crate::validate::constants::{Constants, ConstantsError, markdown};
use crate::validate::page::page;
use crate::validate::refit::Refit;
use crate::validate::{
    ErrorStatistics, ErrorTable, Ranking, Report, cases, error_bars, leave_sources_out, validate,
};

/// The measurements that ship.
pub(super) static PUBLISHED: &str = include_str!("../../results/published/measured.csv");

/// Columns that `--filter` takes.
const FILTERS: [&str; 11] = [
    "id",
    "gpu",
    "framework_family",
    "framework",
    "precision",
    "model",
    "quality",
    "training",
    "optimizer",
    "recompute",
    "source",
];

/// Options of `autoplan validate`.
#[derive(Debug, clap::Args)]
pub(crate) struct ValidateArgs {
    /// A CSV of measured runs; the published ones that ship unless given.
    #[arg(long, value_name = "FILE")]
    measured: Option<PathBuf>,
    /// Only rows whose column has this text at the beginning of a word: gpu=H100, framework_family=nanotron, quality=A, id=hfplay, ...;
    /// an empty optimizer is adamw, and empty training pretrain. `COLUMN=` keeps rows whose cell is empty.
    #[arg(long, value_name = "COLUMN=TEXT")]
    filter: Vec<String>,
    /// Output format.
    #[arg(long, value_enum, default_value = "table")]
    format: Format,
    /// Also score every row with constants that were fitted without its source (published rows only).
    #[arg(long, conflicts_with = "measured")]
    leave_one_out: bool,
    /// Fit all constants to the published rows again, and print them beside those that ship.
    #[arg(long, conflicts_with_all = ["measured", "filter", "leave_one_out", "page", "baseline"])]
    refit: bool,
    /// Print the list of fitted constants (results/constants.md).
    #[arg(long, conflicts_with_all = ["measured", "filter", "leave_one_out", "page", "baseline", "refit"])]
    constants: bool,
    /// Print the error bars that the residuals ask for (src/frameworks/error_bars.ron).
    #[arg(
        long,
        conflicts_with_all = ["measured", "filter", "leave_one_out", "page", "baseline", "refit", "constants"]
    )]
    error_bars: bool,
    /// Write the accuracy page (accuracy.md and its plots) into this folder.
    #[arg(long, value_name = "DIR")]
    page: Option<PathBuf>,
    /// Compare with this file of errors reached before, over all published rows; exit 1 if a class got worse by more
    /// than its margin.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["measured", "filter"])]
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
    // By filter: what the rows hold that those before it leave.
    let seen: Vec<Mutex<BTreeMap<String, usize>>> = filters.iter().map(|_| Mutex::default()).collect();
    let keep = |row: &MeasuredRow| {
        filters.iter().zip(&seen).all(|((column, value), seen)| {
            if value.is_empty() {
                return row.text(column).is_none();
            }
            let text = words_of(row, column);
            *seen.lock().unwrap_or_else(PoisonError::into_inner).entry(text.to_owned()).or_default() += 1;
            names(&text.to_ascii_lowercase(), value)
        })
    };
    if let Some(folder) = &args.page {
        files::check_folder(folder)?;
    }
    if args.refit || args.constants {
        return constants(args);
    }
    let (input, name): (Box<dyn Read>, String) = match &args.measured {
        None => (Box::new(PUBLISHED.as_bytes()), "results/published/measured.csv".into()),
        Some(path) => (Box::new(files::open_runs(path)?), path.display().to_string()),
    };
    let bar = ProgressBar::new(0);
    bar.set_style(progress::style("rows", "{eta} left"));
    let report = validate(input, keep, |done, of| {
        bar.set_length(of as u64);
        bar.set_position(done as u64);
    });
    bar.finish_and_clear();
    let mut report = report.map_err(|e| Failure::Usage(format!("{name}: {e}")))?;
    note_unknown(&name, &report.unknown_columns);
    if !filters.is_empty() && report.rows.is_empty() {
        let texts = seen.into_iter().map(|one| one.into_inner().unwrap_or_else(PoisonError::into_inner));
        let last = filters.iter().zip(texts).rfind(|(_, texts)| !texts.is_empty());
        let instead = last.map_or(String::new(), |((column, _), texts)| instead(column, texts));
        return Err(Failure::Usage(format!("no row of {name} has {}{instead}", args.filter.join(" and "))));
    }
    if args.leave_one_out || args.error_bars || args.page.is_some() && args.measured.is_none() {
        let bar = ProgressBar::new(0);
        let all = cases(PUBLISHED.as_bytes()).map_err(|e| Failure::Usage(e.to_string()))?;
        let progress = |done: usize, of: usize| {
            bar.set_length(of as u64);
            bar.set_position(done as u64);
        };
        let left_out = leave_sources_out(&mut report, &all, progress);
        bar.finish_and_clear();
        left_out.map_err(|e| Failure::Usage(e.to_string()))?;
    }

    let mut out = std::io::stdout().lock();
    if args.error_bars {
        write!(out, "{}", error_bars_text(&report)?)?;
        return Ok(Ending::Done);
    }
    match args.format {
        Format::Json => writeln!(out, "{}", serde_json::to_string_pretty(&report).unwrap_or_default())?,
        Format::Csv => csv(&report, &mut out)?,
        Format::Table => table(&report, &mut out)?,
    }
    if let Some(folder) = &args.page {
        let page = page(&report, &constants_text()?).map_err(|e| Failure::Usage(e.to_string()))?;
        files::write(&folder.join("accuracy.md"), &page.markdown, true)?;
        for (name, svg) in &page.pictures {
            files::write(&folder.join(name), svg, true)?;
        }
        anstream::eprintln!("wrote {}", folder.join("accuracy.md").display());
    }
    if report.summary.predicted == 0 {
        anstream::eprintln!("no row of {name} could be predicted; `skipped` says why");
        return Ok(Ending::Negative);
    }
    let s = &report.summary;
    if s.step_time.all.is_none() && s.memory.all.is_none() && s.out_of_memory.judged() == 0 {
        anstream::eprintln!(
            "note: {name}: no row says how long a step took or what memory, so nothing is compared"
        );
    }
    let Some(path) = &args.baseline else { return Ok(Ending::Done) };
    if args.update {
        let baseline = Baseline::of(&report.summary);
        let text = baseline.to_text().map_err(|e| Failure::Usage(e.to_string()))?;
        files::write(path, &text, true)?;
        return Ok(Ending::Done);
    }
    let baseline = Baseline::read(path)?;
    let worse = baseline.worse(&report.summary);
    for class in &worse {
        let now = class.now.map_or_else(|| "no rows".to_owned(), percent);
        anstream::eprintln!(
            "worse: {}: {} {} before, {now} now",
            class.class,
            class.figure,
            percent(class.before)
        );
    }
    Ok(if worse.is_empty() { Ending::Done } else { Ending::Negative })
}

/// Whether a cell holds a text at the beginning of one of its words.
fn names(cell: &str, wanted: &str) -> bool {
    let begins = |(at, _)| !cell[..at].ends_with(|c: char| c.is_ascii_alphanumeric());
    cell.match_indices(wanted).any(begins)
}

/// Names columns without meaning, and what may be meant.
pub(super) fn note_unknown(name: &str, columns: &[String]) {
    for column in columns {
        let near = nearest(column, known_columns())
            .first()
            .map_or(String::new(), |near| format!("; did you mean {near}?"));
        anstream::eprintln!(
            "note: {name}: column `{column}` has no meaning here (docs/measured.md lists those that do){near}"
        );
    }
}

/// What a column says most often.
fn instead(column: &str, texts: BTreeMap<String, usize>) -> String {
    const LISTED: usize = 12;
    let mut texts: Vec<(String, usize)> = texts.into_iter().filter(|(text, _)| !text.is_empty()).collect();
    if texts.is_empty() {
        return format!("; {column} is empty");
    }
    texts.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    let more = texts.len().saturating_sub(LISTED);
    let listed: Vec<String> =
        texts.into_iter().take(LISTED).map(|(text, count)| format!("{text} ({count})")).collect();
    let more = if more > 0 { format!(" and {more} others") } else { String::new() };
    format!("; {column} is {}{more}", listed.join(", "))
}

/// The error bars of a report, as they ship.
fn error_bars_text(report: &Report) -> Result<String, Failure> {
    let style = ron::ser::PrettyConfig::new().depth_limit(2);
    let text = crate::spec::ron_options()
        .to_string_pretty(&error_bars(&report.rows), style)
        .map_err(|e| Failure::Usage(e.to_string()))?;
    Ok(format!(
        "// Error bars of predicted step times (bars) and peak memory (memory) by class, from residuals of results/published/measured.csv\n\
         // with each run's own publication left out of the fit, or as fitted where those are wider: written by `autoplan validate --error-bars`.\n\
         // The first class that holds a run counts; `two_sigma` holds 95.4 % of its runs, `difference` is for the ratio of two plans of\n\
         // one job (as fitted).\n{text}\n"
    ))
}

/// The list of fitted constants with the rows that each was fitted to.
fn constants_text() -> Result<String, Failure> {
    let fail = |e: ConstantsError| Failure::Usage(e.to_string());
    let list = Constants::shipped().map_err(fail)?;
    let all = cases(PUBLISHED.as_bytes()).map_err(|e| Failure::Usage(e.to_string()))?;
    let rows = Refit::new(&list, &all).map_err(fail)?.rows();
    markdown(&list, &rows).map_err(fail)
}

/// Prints the list of constants, or what a fit to all rows makes of them.
fn constants(args: &ValidateArgs) -> Result<Ending, Failure> {
    let fail = |e: ConstantsError| Failure::Usage(e.to_string());
    let list = Constants::shipped().map_err(fail)?;
    let all = cases(PUBLISHED.as_bytes()).map_err(|e| Failure::Usage(e.to_string()))?;
    let refit = Refit::new(&list, &all).map_err(fail)?;
    let mut out = std::io::stdout().lock();
    if args.constants {
        write!(out, "{}", markdown(&list, &refit.rows()).map_err(fail)?)?;
        return Ok(Ending::Done);
    }
    let free: Vec<usize> = (0..list.fitted.len()).collect();
    let values = refit.fit(refit.shipped(), &free, |_| true);
    let mut table = grid(&["constant", "shipped", "refitted", "prior", "rows"]);
    let mut records = Vec::new();
    for (((constant, shipped), value), rows) in
        list.fitted.iter().zip(refit.shipped()).zip(&values).zip(refit.rows())
    {
        let number = |x: f64| format!("{x:.4e}");
        table.add_row([
            constant.name.clone(),
            number(*shipped),
            number(*value),
            number(constant.prior),
            rows.to_string(),
        ]);
        records.push(serde_json::json!({
            "name": constant.name, "unit": constant.unit, "places": constant.places,
            "shipped": shipped, "refitted": value, "prior": constant.prior, "rows": rows,
        }));
    }
    match args.format {
        Format::Json => writeln!(out, "{}", serde_json::to_string_pretty(&records).unwrap_or_default())?,
        Format::Table | Format::Csv => writeln!(out, "{table}")?,
    }
    Ok(Ending::Done)
}

/// Most letters of an example of a fault in the table; JSON and CSV have all of every row.
const LONGEST_EXAMPLE: usize = 80;

fn shortened(text: &str) -> String {
    match text.char_indices().nth(LONGEST_EXAMPLE) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
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

fn errors(
    title: &str,
    errors: &ErrorTable,
    left_out: Option<&ErrorTable>,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let mut header = vec![title, "rows", "median", "mean", "P90", "worst", "bias"];
    if left_out.is_some() {
        header.extend(["left out: median", "mean", "P90"]);
    }
    let mut table = grid(&header);
    let cells = |name: String, e: &ErrorStatistics, without: Option<&ErrorStatistics>| {
        let mut cells = vec![
            name,
            e.rows.to_string(),
            percent(e.median),
            percent(e.mean),
            percent(e.p90),
            percent(e.worst),
            format!("{:+.1}%", e.bias * 100.0),
        ];
        if let Some(e) = without {
            cells.extend([percent(e.median), percent(e.mean), percent(e.p90)]);
        }
        cells
    };
    if let Some(all) = &errors.all {
        table.add_row(cells("all".into(), all, left_out.and_then(|table| table.all.as_ref())));
    }
    for (dimension, classes) in &errors.by {
        for (class, e) in classes {
            let without = left_out.and_then(|table| table.by.get(dimension)?.get(class));
            table.add_row(cells(format!("{dimension}: {class}"), e, without));
        }
    }
    writeln!(out, "{table}\n")?;
    Ok(())
}

fn table(report: &Report, out: &mut impl Write) -> Result<(), Failure> {
    let s = &report.summary;
    writeln!(
        out,
        "{} rows, {} predicted, {} repeat another row's run; {} fitted constants, {} of them held\n",
        s.rows, s.predicted, s.repeated, s.fitted_constants, s.held_constants
    )?;
    let left_out = s.left_out.as_ref();
    errors("error of step time", &s.step_time, left_out.map(|l| &l.step_time), out)?;
    errors("error of peak memory", &s.memory, left_out.map(|l| &l.memory), out)?;
    if !s.by_rates.is_empty() {
        let by = BTreeMap::from([("printed rates", s.by_rates.clone())]);
        errors("error of step time by printed rates", &ErrorTable { all: None, by }, None, out)?;
    }
    let v = &s.out_of_memory;
    let mut verdicts = grid(&["memory verdicts", "predicted to fit", "not to fit"]);
    verdicts.add_row(["ran".to_owned(), v.ran_fits.to_string(), v.ran_rejected.to_string()]);
    verdicts.add_row([
        "ran out of memory".to_owned(),
        v.failed_fits.to_string(),
        v.failed_rejected.to_string(),
    ]);
    let of_some = |share: Option<f64>| share.map_or("-".to_owned(), percent);
    let apart = left_out.map(|l| format!(" ({} with sources left out)", percent(l.out_of_memory.right())));
    let right = of_some((v.judged() > 0).then(|| v.right()));
    writeln!(out, "{verdicts}\n{right} right{}\n", apart.unwrap_or_default())?;
    ranking("noisy rows aside", &s.ranking, out)?;
    ranking("all rows", &s.ranking_of_all, out)?;
    let rates = s.rates_coverage.map(|coverage| ("step time by printed rates", Some(coverage)));
    let bars = [("step time", s.coverage), ("peak memory", s.memory_coverage)];
    for (what, coverage) in bars.into_iter().chain(rates) {
        writeln!(
            out,
            "error bars of {what}: {} inside one sigma, {} inside twice one, {} inside the bar for 95.4%",
            of_some(coverage.map(|c| c.one_sigma)),
            of_some(coverage.map(|c| c.twice_one_sigma)),
            of_some(coverage.map(|c| c.two_sigma))
        )?;
    }
    if !s.named_sets.is_empty() {
        let mut sets =
            grid(&["\nsets that other planners report", "rows", "mean", "median", "least Spearman", "peer"]);
        for set in &s.named_sets {
            let (rows, mean, middle) = set.step_time.map_or((0, 0.0, 0.0), |e| (e.rows, e.mean, e.median));
            sets.add_row([
                set.name.to_owned(),
                rows.to_string(),
                of_some((rows > 0).then_some(mean)),
                of_some((rows > 0).then_some(middle)),
                set.least_spearman.map_or_else(|| "-".to_owned(), |r| format!("{r:.2}")),
                set.peer.to_owned(),
            ]);
        }
        writeln!(out, "{sets}")?;
    }
    if !s.skipped.is_empty() {
        let mut skipped = grid(&["skipped", "rows", "such as"]);
        for kind in &s.skipped {
            let more =
                if kind.rows > kind.examples.len() && !kind.examples.is_empty() { ", …" } else { "" };
            let named: Vec<String> = kind.examples.iter().map(|example| shortened(example)).collect();
            let which = format!("{}{more}", named.join(", "));
            skipped.add_row([kind.reason.clone(), kind.rows.to_string(), which]);
        }
        if let Some(column) = skipped.column_mut(2) {
            column.set_cell_alignment(CellAlignment::Left);
        }
        writeln!(out, "\n{skipped}")?;
    }
    Ok(())
}

fn ranking(title: &str, r: &Ranking, out: &mut impl Write) -> Result<(), Failure> {
    if let (Some(tau), Some(regret)) = (r.mean_tau, r.mean_regret) {
        writeln!(
            out,
            "ranking of {} groups of plans, {title}: mean tau {tau:.2}, mean regret {}, picks that ran out of \
             memory {}",
            r.groups.len(),
            percent(regret),
            r.picks_out_of_memory.len()
        )?;
    }
    Ok(())
}

fn csv(report: &Report, out: &mut impl Write) -> Result<(), Failure> {
    let io = Failure::of_csv;
    let mut writer = csv::Writer::from_writer(out);
    let header = [
        "id",
        "predicted_step_s",
        "predicted_step_sigma",
        "predicted_step_two_sigma",
        "predicted_step_low_s",
        "predicted_step_high_s",
        "predicted_allocated_gb",
        "predicted_reserved_gb",
        "predicted_device_gb",
        "predicted_mem_gb",
        "predicted_mem_sigma_gb",
        "predicted_mem_two_sigma_gb",
        "predicted_mem_low_gb",
        "predicted_mem_high_gb",
        "fits",
        "measured_step_s",
        "measured_mem_gb",
        "out_of_memory",
        "plan",
        "assumed",
        "profile",
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
            number(row.predicted_step_two_sigma),
            number(row.predicted_step_range_s.map(|range| range[0])),
            number(row.predicted_step_range_s.map(|range| range[1])),
            number(row.predicted_allocated_gb),
            number(row.predicted_reserved_gb),
            number(row.predicted_device_gb),
            number(row.predicted_mem_gb),
            number(row.predicted_mem_sigma_gb),
            number(row.predicted_mem_two_sigma_gb),
            number(row.predicted_mem_range_gb.map(|range| range[0])),
            number(row.predicted_mem_range_gb.map(|range| range[1])),
            truth(row.fits),
            number(row.measured_step_s),
            number(row.measured_mem_gb),
            truth(row.out_of_memory),
            row.plan.clone().unwrap_or_default(),
            row.assumed.join(" "),
            row.profile.unwrap_or_default().to_owned(),
            row.skipped.clone().unwrap_or_default(),
        ];
        writer.write_record(&record).map_err(io)?;
    }
    writer.flush()?;
    Ok(())
}
