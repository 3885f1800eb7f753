//! `autoplan import`.

use std::io::Write;
use std::path::{Path, PathBuf};

use serde_json::json;

use super::models::group;
use super::{Ending, Failure, files};
use crate::frameworks::export::one_line;
use crate::frameworks::megatron::import::import as import_launch;
use crate::layers::parameter_count;
use crate::spec::hf::import_with_notes;
use crate::spec::{self, ron_options};

/// Options of `autoplan import`.
#[derive(Debug, clap::Args)]
pub(crate) struct ImportArgs {
    #[command(subcommand)]
    source: Source,
}

/// What is read.
#[derive(Debug, clap::Subcommand)]
enum Source {
    /// A Hugging Face config.json becomes a model.
    Hf(HfArgs),
    /// A Megatron-LM launch script (or list of arguments) becomes a model, a job and a plan.
    Megatron(MegatronArgs),
}

/// Options of `autoplan import megatron`.
#[derive(Debug, clap::Args)]
struct MegatronArgs {
    /// The launch script, or a file with its arguments.
    launch: PathBuf,
    /// GPUs of the job, where the launcher does not say how many ranks it starts.
    #[arg(long)]
    gpus: Option<u32>,
    /// Name of the model; that of the file unless given.
    #[arg(long)]
    name: Option<String>,
    /// The model as models/*.ron, or model, job and plan as JSON.
    #[arg(long, value_enum, default_value = "json")]
    format: Format,
}

/// Options of `autoplan import hf`.
#[derive(Debug, clap::Args)]
struct HfArgs {
    /// The config.json.
    config: PathBuf,
    /// Name of the model; that of the file's folder unless given.
    #[arg(long)]
    name: Option<String>,
    /// Write the model as a RON file instead of printing it.
    #[arg(long, short = 'o', value_name = "FILE")]
    output: Option<PathBuf>,
    /// Overwrite an existing file.
    #[arg(long)]
    force: bool,
    /// Output format.
    #[arg(long, value_enum, default_value = "ron")]
    format: Format,
}

/// Output format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    /// The model as models/*.ron.
    Ron,
    /// Its totals.
    Json,
}

/// Runs the command.
pub(crate) fn run(args: &ImportArgs) -> Result<Ending, Failure> {
    match &args.source {
        Source::Hf(args) => hf(args),
        Source::Megatron(args) => megatron(args),
    }
}

fn megatron(args: &MegatronArgs) -> Result<Ending, Failure> {
    let text = spec::read_text(&args.launch)?;
    let name = args.name.clone().unwrap_or_else(|| name_of(&args.launch));
    let imported = import_launch(&text, &name, args.gpus).map_err(|e| {
        let shown = text.lines().nth(e.line.saturating_sub(1)).unwrap_or_default().trim();
        Failure::Usage(format!("{}:{}: {}\n  {}", args.launch.display(), e.line, e.message, one_line(shown)))
    })?;
    for note in &imported.assumed {
        anstream::eprintln!("note: {note}");
    }
    for (line, flag) in &imported.unknown {
        anstream::eprintln!("note: line {line}: `{flag}` is not understood and changes nothing here");
    }
    let text = match args.format {
        Format::Ron => {
            let style = ron::ser::PrettyConfig::new().depth_limit(4).compact_arrays(true);
            let model = ron_options().to_string_pretty(&imported.model, style);
            model.map_err(|e| Failure::Usage(e.to_string()))?
        }
        Format::Json => {
            let stages: Vec<u32> = imported.plan.chunks().iter().map(|c| c.layers).collect();
            let value = json!({
                "name": imported.plan.to_string(), "plan": imported.plan.layout(), "stages": stages,
                "recompute": imported.plan.common_recompute(), "model": imported.model,
                "gpus": imported.job.gpus, "global_batch_size": imported.job.global_batch_size,
                "sequence_length": imported.job.sequence_length, "precision": imported.job.precision.name(),
                "optimizer": imported.job.optimizer.name(), "assumed": imported.assumed,
                "not_understood": imported.unknown,
            });
            serde_json::to_string_pretty(&value).unwrap_or_default()
        }
    };
    writeln!(std::io::stdout().lock(), "{text}")?;
    Ok(Ending::Done)
}

/// A name for the model of a configuration: its folder's, else the file's.
fn name_of(path: &Path) -> String {
    let stem = path.file_stem().and_then(|s| s.to_str()).unwrap_or("model");
    let folder = path.parent().and_then(Path::file_name).and_then(|s| s.to_str());
    match folder {
        Some(folder) if stem == "config" => folder.to_owned(),
        _ => stem.to_owned(),
    }
}

fn hf(args: &HfArgs) -> Result<Ending, Failure> {
    let text = spec::read_text(&args.config)?;
    let name = args.name.clone().unwrap_or_else(|| name_of(&args.config));
    let import =
        import_with_notes(&text, &name).map_err(|e| e.in_source(args.config.display().to_string()))?;
    let count = parameter_count(&import.model);
    for note in &import.notes {
        anstream::eprintln!("note: {note}");
    }
    let text = match args.format {
        Format::Json => {
            let value = json!({
                "name": import.model.name, "model_type": import.model_type,
                "parameters": count.total, "active_parameters": count.active,
                "mtp_parameters": count.mtp, "embedding_parameters": count.embedding,
                "layers": import.model.layer_count(), "hidden": import.model.hidden,
                "vocabulary": import.model.vocabulary, "notes": import.notes,
            });
            serde_json::to_string_pretty(&value).unwrap_or_default()
        }
        Format::Ron => {
            let style = ron::ser::PrettyConfig::new().depth_limit(4).compact_arrays(true);
            let model = ron_options().to_string_pretty(&import.model, style);
            let model = model.map_err(|e| Failure::Usage(e.to_string()))?;
            format!(
                "// {} parameters, {} of them active; imported from a config.json of type {}.\n{model}",
                group(count.total),
                group(count.active),
                import.model_type
            )
        }
    };
    match &args.output {
        Some(path) => {
            files::write(path, &(text + "\n"), false, args.force)?;
            anstream::eprintln!("wrote {}", path.display());
        }
        None => writeln!(std::io::stdout().lock(), "{text}")?,
    }
    Ok(Ending::Done)
}
