//! `autoplan calibrate`.

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;

use comfy_table::{CellAlignment, Table};

use super::output::percent;
use super::{Ending, Failure, files};
use crate::calibrate::{Calibration, calibrate};
use crate::spec;
use crate::spec::measured::MeasuredReader;
use crate::validate::case::{Case, Shelf};

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
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(crate) fn run(args: &CalibrateArgs) -> Result<Ending, Failure> {
    if args.name.is_empty() || args.name.contains(['/', '\\']) || args.name.starts_with('.') {
        return Err(Failure::Usage(format!("--name {}: expected a plain file name", args.name)));
    }
    if let Some(folder) = &args.output {
        files::check_folder(folder)?;
    }
    let machine = spec::load_cluster(&args.cluster)?;
    let name = args.measured.display().to_string();
    if args.measured.is_dir() {
        return Err(Failure::Usage(format!("{name} is a folder, not a CSV file")));
    }
    let file = File::open(&args.measured).map_err(|e| Failure::Usage(format!("cannot read {name}: {e}")))?;
    let reader = MeasuredReader::new(file).map_err(|e| Failure::Usage(format!("{name}: {e}")))?;
    let shelf = Shelf::shipped();
    let (mut cases, mut skipped) = (Vec::new(), Vec::new());
    for (i, row) in reader.enumerate() {
        let case = row.map_err(|e| e.to_string()).and_then(|row| {
            let id = row.text("id").map_or_else(|| format!("line {}", row.line()), str::to_owned);
            Case::read(&row, &shelf).map_err(|reason| format!("{id}: {reason}"))
        });
        match case {
            // The runs are this machine's, whatever the shelf holds for a GPU of that name.
            Ok(case) => cases.push(Case {
                cluster: machine.cluster.clone(),
                accelerator: machine.accelerator.clone(),
                ..case
            }),
            Err(reason) => skipped.push(if reason.is_empty() { format!("row {}", i + 1) } else { reason }),
        }
    }
    let calibration = calibrate(&machine, &cases).map_err(|e| Failure::Usage(format!("{name}: {e}")))?;
    let mut out = std::io::stdout().lock();
    if args.json {
        let value = serde_json::json!({
            "constants": calibration.constants, "residuals": calibration.residuals, "skipped": skipped,
        });
        writeln!(out, "{}", serde_json::to_string_pretty(&value).unwrap_or_default())?;
    } else {
        print(&calibration, &mut out)?;
        for reason in &skipped {
            writeln!(out, "skipped {reason}")?;
        }
    }
    if let Some(folder) = &args.output {
        write_files(args, &calibration, folder)?;
    }
    Ok(Ending::Done)
}

fn print(calibration: &Calibration, out: &mut impl Write) -> Result<(), Failure> {
    let mut table = Table::new();
    table.load_style(comfy_table::presets::NOTHING);
    table.set_header(["constant", "shipped", "fitted", "standard error", "runs"]);
    for fitted in &calibration.constants {
        table.add_row([
            fitted.constant.to_string(),
            format!("{:.3}", fitted.before),
            format!("{:.3}", fitted.after),
            fitted.standard_error.map_or_else(|| "-".into(), |e| format!("{e:.3}")),
            fitted.runs.to_string(),
        ]);
    }
    let mut runs = Table::new();
    runs.load_style(comfy_table::presets::NOTHING);
    runs.set_header(["run", "measured step, s", "error before", "error after"]);
    for r in &calibration.residuals {
        runs.add_row([
            r.id.clone(),
            format!("{:.3}", r.measured_step_s),
            format!("{:+.1}%", r.before * 100.0),
            format!("{:+.1}%", r.after * 100.0),
        ]);
    }
    for table in [&mut table, &mut runs] {
        for column in 1..5 {
            if let Some(column) = table.column_mut(column) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
    }
    writeln!(out, "{table}\n\n{runs}")?;
    Ok(())
}

fn write_files(
    args: &CalibrateArgs,
    calibration: &Calibration,
    folder: &std::path::Path,
) -> Result<(), Failure> {
    let accelerator_name = format!("{}-accelerator.ron", args.name);
    let mut header = String::from("// Fitted by autoplan calibrate:\n");
    for fitted in &calibration.constants {
        let error = fitted.standard_error.map_or_else(String::new, |e| format!(" +- {e:.3}"));
        header += &format!(
            "// {}: {:.3}{error} from {} runs (shipped: {:.3})\n",
            fitted.constant, fitted.after, fitted.runs, fitted.before
        );
    }
    for r in &calibration.residuals {
        let id: String = r.id.chars().filter(|c| !c.is_control()).collect();
        header += &format!("//   {id}: {} before, {} after\n", percent(r.before), percent(r.after));
    }
    let mut cluster = calibration.machine.cluster.clone();
    cluster.accelerator = accelerator_name.clone();
    let style = || ron::ser::PrettyConfig::new().compact_arrays(true);
    let options = spec::ron_options();
    let text = |value: Result<String, ron::Error>| {
        value.map(|text| format!("{header}{text}\n")).map_err(|e| Failure::Usage(e.to_string()))
    };
    let accelerator = text(options.to_string_pretty(&calibration.machine.accelerator, style()))?;
    let cluster = text(options.to_string_pretty(&cluster, style()))?;
    let cluster_path = folder.join(format!("{}.ron", args.name));
    if !args.force && cluster_path.exists() {
        return Err(Failure::Usage(format!("{} exists; --force overwrites it", cluster_path.display())));
    }
    files::write(&folder.join(&accelerator_name), &accelerator, false, args.force)?;
    files::write(&cluster_path, &cluster, false, args.force)?;
    anstream::eprintln!("wrote {}", cluster_path.display());
    Ok(())
}
