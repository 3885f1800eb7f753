//! `autoplan calibrate`.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};

use comfy_table::{CellAlignment, Table};

use super::explain::Format;
use super::output::percent;
use super::validate::note_unknown;
use super::{Ending, Failure, files};
use crate::calibrate::{Calibration, FAR_OFF, Fitted, HeldBy, calibrate};
use crate::spec;
use crate::spec::cluster::OwnRuns;
use crate::spec::diagnostic::list;
use crate::spec::measured::MeasuredReader;
use crate::spec::special::Special;
use crate::validate::ErrorStatistics;
use crate::validate::case::{Case, Shelf, Skip};

/// Options of `autoplan calibrate`.
#[derive(Debug, clap::Args)]
pub(crate) struct CalibrateArgs {
    /// Runs of your own, a CSV in the schema of results/published/measured.csv.
    measured: PathBuf,
    /// The cluster they ran on: a shipped name or a .ron file.
    #[arg(long)]
    cluster: String,
    /// Folder for the fitted files.
    #[arg(long, short = 'o', value_name = "DIR")]
    output: Option<PathBuf>,
    /// Name of the fitted files, without .ron.
    #[arg(long, default_value = "calibrated")]
    name: String,
    /// Overwrite existing files.
    #[arg(long)]
    force: bool,
    /// Output format.
    #[arg(long, value_enum, default_value = "table")]
    format: Format,
}

impl CalibrateArgs {
    /// The fitted cluster's file and its accelerator's.
    fn paths(&self, folder: &Path) -> [PathBuf; 2] {
        [folder.join(format!("{}.ron", self.name)), folder.join(self.accelerator())]
    }

    fn accelerator(&self) -> String {
        format!("{}-accelerator.ron", self.name)
    }
}

/// Runs the command.
pub(crate) fn run(args: &CalibrateArgs) -> Result<Ending, Failure> {
    if args.name.is_empty() || args.name.contains(['/', '\\']) || args.name.starts_with('.') {
        return Err(Failure::Usage(format!("--name {}: expected a plain file name", args.name)));
    }
    if let Some(folder) = &args.output {
        files::check_folder(folder)?;
        args.paths(folder).iter().try_for_each(|path| files::check_place(path, args.force))?;
    }
    let machine = spec::load_cluster(&args.cluster)?;
    let name = args.measured.display().to_string();
    let file = files::open_runs(&args.measured)?;
    let reader = MeasuredReader::new(file).map_err(|e| Failure::Usage(format!("{name}: {e}")))?;
    let unknown: Vec<String> = reader.unknown_columns().map(str::to_owned).collect();
    note_unknown(&name, &unknown);
    let missing: Vec<&str> = reader.missing_columns().collect();
    if !missing.is_empty() {
        anstream::eprintln!(
            "note: {name}: the header has no column {}, which every prediction needs",
            list(&missing, "nor")
        );
    }
    let shelf = Shelf::shipped();
    let mut cases = Vec::new();
    // Rows by the reason why they cannot be used.
    let mut skipped: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (at, row) in reader.enumerate() {
        let (row_name, case) = match row {
            Ok(row) => {
                let case =
                    Case::read_on(&row, &machine, &shelf).and_then(|case| match case.measured.step_s {
                        Some(_) => Ok(case),
                        None => Err(Skip::Missing("step_time_s")),
                    });
                let id = row.text("id").map_or_else(|| format!("line {}", row.line()), str::to_owned);
                (id, case.map_err(|reason| reason.to_string()))
            }
            Err(error) => (format!("row {}", at + 1), Err(error.to_string())),
        };
        match case {
            Ok(case) => cases.push(case),
            Err(reason) => skipped.entry(reason).or_default().push(row_name),
        }
    }
    let calibration = calibrate(&machine, &cases)
        .map_err(|e| Failure::Usage(format!("{name}: {e}\n{}", reasons(&skipped).trim_end())))?;
    let mut out = std::io::stdout().lock();
    if args.format == Format::Json {
        let each: Vec<String> = skipped
            .iter()
            .flat_map(|(reason, rows)| rows.iter().map(move |row| format!("{row}: {reason}")))
            .collect();
        let value = serde_json::json!({
            "constants": calibration.constants, "residuals": calibration.residuals, "skipped": each,
            "error_bars": own_runs(&calibration), "memory": calibration.memory(),
            "far_off": calibration.far_off(), "explains": calibration.explains(),
        });
        writeln!(out, "{}", serde_json::to_string_pretty(&value).unwrap_or_default())?;
    } else {
        print(&calibration, &mut out)?;
        anstream::eprint!("{}", reasons(&skipped));
    }
    let remarks = remarks(&calibration);
    if !calibration.explains() {
        return Err(Failure::Usage(format!(
            "{name}: no constants of {} explain these runs; nothing is written\n{}",
            machine.cluster.name,
            remarks.join("\n")
        )));
    }
    if args.format == Format::Table {
        for remark in &remarks {
            writeln!(out, "{remark}")?;
        }
    }
    if let Some(folder) = &args.output {
        write_files(args, &calibration, folder)?;
    }
    Ok(Ending::Done)
}

/// What to know of a fit before it is used.
fn remarks(calibration: &Calibration) -> Vec<String> {
    let mut remarks = Vec::new();
    for fitted in &calibration.constants {
        let Fitted { constant, before, after, searched: (least, greatest), .. } = fitted;
        match fitted.held_by {
            HeldBy::Runs | HeldBy::Speed => {}
            HeldBy::Both => remarks.push(format!(
                "{constant}: {:.0}% of what is known about it is from these runs and the rest from what ships, so that it moves \
                 part of the way",
                fitted.of_runs * 100.0
            )),
            HeldBy::Prior => remarks.push(format!(
                "{constant}: the runs' step times hardly depend on it, so that it stays as shipped"
            )),
            HeldBy::Bound => remarks.push(format!(
                "{constant}: {after:.3} is the end of what is searched ({least:.3} to {greatest:.3}); the runs ask for {}",
                if after < before { "less" } else { "more" }
            )),
        }
    }
    let (far_off, runs) = (calibration.far_off(), calibration.residuals.len());
    if far_off > 0 {
        remarks.push(format!(
            "{far_off} of {runs} runs {} off by more than {:.0}% after the fit; in the median a step took {:.2} times \
             as long as the shipped constants say",
            if far_off == 1 { "is" } else { "are" },
            FAR_OFF * 100.0,
            calibration.slowness()
        ));
        remarks.push(
            "likely mistakes: step_time_s in other units than seconds of a whole optimizer step; global_batch in other \
             units than sequences over all GPUs; runs of another gpu or framework_family than stated"
                .to_owned(),
        );
    }
    remarks.push(memory(calibration));
    let plans: usize = own_runs(calibration).iter().map(|own| own.runs).sum();
    if plans < runs {
        remarks.push(format!(
            "{runs} runs are {plans} {}: runs that differ in the batch alone count as one",
            if plans == 1 { "plan" } else { "plans" }
        ));
    }
    remarks
}

/// How far predictions of memory are off.
fn memory(calibration: &Calibration) -> String {
    let runs = calibration.residuals.len();
    match calibration.memory() {
        Some(ErrorStatistics { rows, median, worst, bias, .. }) => format!(
            "memory: the peak of {rows} of {runs} runs is stated; predictions of it are off by {} in the median (signed \
             {:+.1}%), by {} at most; nothing is fitted to it",
            percent(median),
            bias * 100.0,
            percent(worst)
        ),
        None => "memory: no run states its peak (peak_mem_gb), so that it is not known how far predictions of it are off"
            .to_owned(),
    }
}

/// Why rows were skipped: a line for each reason, with the first of its rows.
fn reasons(skipped: &BTreeMap<String, Vec<String>>) -> String {
    const NAMED: usize = 3;
    let line = |(reason, rows): (&String, &Vec<String>)| {
        let named = rows[..rows.len().min(NAMED)].join(", ");
        let more = rows.len().saturating_sub(NAMED);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        format!("skipped {named}{more}: {reason}\n")
    };
    skipped.iter().map(line).collect()
}

fn held_by(what: HeldBy) -> &'static str {
    match what {
        HeldBy::Runs => "the runs",
        HeldBy::Both => "the runs and what ships",
        HeldBy::Prior => "what ships",
        HeldBy::Speed => "the speed of the GPUs",
        HeldBy::Bound => "a bound",
    }
}

fn print(calibration: &Calibration, out: &mut impl Write) -> Result<(), Failure> {
    let mut table = Table::new();
    table.load_style(comfy_table::presets::NOTHING);
    table.set_header(["constant", "shipped", "fitted", "standard error", "runs", "held by"]);
    for fitted in &calibration.constants {
        table.add_row([
            fitted.constant.to_string(),
            format!("{:.3}", fitted.before),
            format!("{:.3}", fitted.after),
            fitted.standard_error.map_or_else(|| "-".into(), |e| format!("{e:.3}")),
            fitted.runs.to_string(),
            held_by(fitted.held_by).to_owned(),
        ]);
    }
    let mut runs = Table::new();
    runs.load_style(comfy_table::presets::NOTHING);
    runs.set_header(["run", "measured step, s", "error before", "error after", "of memory"]);
    let signed = |error: f64| format!("{:+.1}%", error * 100.0);
    for r in &calibration.residuals {
        runs.add_row([
            r.id.clone(),
            format!("{:.3}", r.measured_step_s),
            signed(r.before),
            signed(r.after),
            r.memory.map_or_else(|| "-".into(), signed),
        ]);
    }
    let mut bars = Table::new();
    bars.load_style(comfy_table::presets::NOTHING);
    bars.set_header(["error bars", "plans", "far off", "off by"]);
    for own in own_runs(calibration) {
        let off_by = format!("{:.1}%", own.error * 100.0);
        bars.add_row([kind_of(own), own.runs.to_string(), own.far_off.to_string(), off_by]);
    }
    for table in [&mut table, &mut runs, &mut bars] {
        for column in 1..5 {
            if let Some(column) = table.column_mut(column) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
    }
    writeln!(out, "{table}\n\n{runs}\n\n{bars}\n")?;
    Ok(())
}

fn own_runs(calibration: &Calibration) -> &[OwnRuns] {
    &calibration.machine.cluster.own_runs
}

/// How many runs, in words, and how many of them are far off.
pub(super) fn runs_of(own: &OwnRuns) -> String {
    let runs = format!("{} {}", own.runs, if own.runs == 1 { "run" } else { "runs" });
    if own.far_off == 0 {
        return runs;
    }
    format!("{runs}, {} of them off by more than {:.0}%,", own.far_off, FAR_OFF * 100.0)
}

/// What kind of runs they are.
pub(super) fn kind_of(own: &OwnRuns) -> String {
    let gpus = match own.gpus {
        (1, 1) => "1 GPU".to_owned(),
        (fewest, most) if fewest == most => format!("{most} GPUs"),
        (fewest, most) => format!("{fewest} to {most} GPUs"),
    };
    let experts = if own.experts { "with" } else { "without" };
    let special: String = own.special.iter().map(|&kind| format!("{}, ", special(kind))).collect();
    format!("`{}` {experts} experts, {special}{:?}, {gpus}", own.profile, own.format)
}

fn special(kind: Special) -> &'static str {
    match kind {
        Special::Adapters => "LoRA",
        Special::FineTuning => "packed fine-tuning",
        Special::LongSequences => "long sequences",
        Special::Crossing => "tp across domains",
        Special::NoFastDomain => "PCIe alone",
        Special::Coarse => "coarse rows",
    }
}

fn write_files(args: &CalibrateArgs, calibration: &Calibration, folder: &Path) -> Result<(), Failure> {
    let mut header = String::from("// Fitted by autoplan calibrate:\n");
    for fitted in &calibration.constants {
        let error = fitted.standard_error.map_or_else(String::new, |e| format!(" +- {e:.3}"));
        header += &format!(
            "// {}: {:.3}{error} from {} runs, held by {} (shipped: {:.3})\n",
            fitted.constant,
            fitted.after,
            fitted.runs,
            held_by(fitted.held_by),
            fitted.before
        );
    }
    for r in &calibration.residuals {
        let id: String = r.id.chars().filter(|c| !c.is_control()).collect();
        header += &format!("//   {id}: {} before, {} after\n", percent(r.before), percent(r.after));
    }
    for own in own_runs(calibration) {
        header += &format!(
            "// error bars: {}: {} off by {}, each plan predicted from the others\n",
            kind_of(own),
            runs_of(own),
            percent(own.error)
        );
    }
    let mut cluster = calibration.machine.cluster.clone();
    cluster.accelerator = args.accelerator();
    let style = || ron::ser::PrettyConfig::new().compact_arrays(true);
    let options = spec::ron_options();
    let text = |value: Result<String, ron::Error>| {
        value.map(|text| format!("{header}{text}\n")).map_err(|e| Failure::Usage(e.to_string()))
    };
    let accelerator = text(options.to_string_pretty(&calibration.machine.accelerator, style()))?;
    let cluster = text(options.to_string_pretty(&cluster, style()))?;
    let [cluster_path, accelerator_path] = args.paths(folder);
    let paths = [(&accelerator_path, &accelerator), (&cluster_path, &cluster)];
    let written = paths.map(|(path, text)| files::Written { path, text, executable: false });
    files::write_all(&written, args.force)?;
    for (path, _) in paths {
        anstream::eprintln!("wrote {}", path.display());
    }
    Ok(())
}
