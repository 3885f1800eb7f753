//! `autoplan import`.

use std::io::Write;
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde_json::json;

use super::models::group;
use super::options::{framework, whole};
use super::{Ending, Failure, files};
use crate::candidates::Restrictions;
use crate::cost::advice::BatchRamp;
use crate::cost::money::Pricing;
use crate::frameworks::Target;
use crate::frameworks::changes::{
    SCRIPT_MICRO_BATCH, SCRIPT_RECOMPUTES, SCRIPT_SEQUENCE, SCRIPT_SEQUENCE_PARALLEL, Settings,
    settings_of_json, settings_of_script,
};
use crate::frameworks::deepspeed::import as deepspeed;
use crate::frameworks::export::{one_line, sequence_of_header};
use crate::frameworks::megatron::import as megatron;
use crate::frameworks::profile::Profile;
use crate::frameworks::shell::{
    Handed, ImportError, Launch, READABLE, is_manifest, is_unknown, read_launch_with, shown,
};
use crate::layers::parameter_count;
use crate::plan::Plan;
use crate::planner::Task;
use crate::spec::cluster::Architecture;
use crate::spec::diagnostic::SpecError;
use crate::spec::hf::import_with_notes;
use crate::spec::job::{Job, Precision};
use crate::spec::model::Model;
use crate::spec::saved::SavedPlan;
use crate::spec::shipped::nearest;
use crate::spec::{self, Machine, ron_options};

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
    Megatron(FileArgs),
    /// A DeepSpeed configuration, or a script that hands one on, with the model becomes a job and a plan.
    Deepspeed(FileArgs),
}

/// What a launch leaves open.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct LaunchArgs {
    /// Name of the model in a launch script; that of the file unless given.
    #[arg(long)]
    pub name: Option<String>,
    /// Entries of the vocabulary, where a launch script only names a tokenizer.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..1 << 32))]
    pub vocab_size: Option<u64>,
    /// The model that a DeepSpeed configuration trains: a shipped name, a .ron file or a config.json.
    #[arg(long)]
    pub model: Option<String>,
    /// Sequences of a micro-batch, where a DeepSpeed configuration leaves them to the trainer ("auto").
    #[arg(long, value_name = "N", value_parser = whole)]
    pub micro_batch: Option<u32>,
    /// Micro-batches of a step, where a DeepSpeed configuration leaves them to the trainer ("auto").
    #[arg(long, value_name = "N", value_parser = whole)]
    pub accumulation: Option<u32>,
    /// Pipeline stages of the script that a DeepSpeed configuration belongs to.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub pipeline_stages: Option<u32>,
    /// What a launch script is started with, behind `--`: variables (NAME=VALUE), then its own arguments.
    #[arg(last = true, value_name = "WORD")]
    pub words: Vec<String>,
}

impl LaunchArgs {
    /// Refuses words for what takes none.
    pub(crate) fn hand_nothing(&self, source: &str) -> Result<(), Failure> {
        if self.words.is_empty() {
            return Ok(());
        }
        let words = self.words.join(" ");
        Err(Failure::Usage(format!(
            "{source} is no launch script, so nothing can be handed to it: `{words}`"
        )))
    }

    /// Options that say what the flags of a script say, as far as they are given.
    fn beside_flags(&self) -> Vec<&'static str> {
        let all = [
            (self.model.is_some(), "--model"),
            (self.micro_batch.is_some(), "--micro-batch"),
            (self.accumulation.is_some(), "--accumulation"),
            (self.pipeline_stages.is_some(), "--pipeline-stages"),
        ];
        all.into_iter().filter(|(given, _)| *given).map(|(_, name)| name).collect()
    }

    /// Options that say what the model beside a configuration says, as far as they are given.
    fn beside_model(&self) -> Vec<&'static str> {
        let all = [(self.name.is_some(), "--name"), (self.vocab_size.is_some(), "--vocab-size")];
        all.into_iter().filter(|(given, _)| *given).map(|(_, name)| name).collect()
    }

    /// Options that only a launch needs, as far as they are given.
    pub(crate) fn given(&self) -> Vec<&'static str> {
        self.beside_flags().into_iter().chain(self.beside_model()).collect()
    }
}

/// Refuses options that would not change the job of what is read.
pub(crate) fn own_job(what: &str, kind: &str, given: &[&str]) -> Result<(), Failure> {
    match given {
        [] => Ok(()),
        given => Err(Failure::Usage(format!(
            "{what}: {kind} has a job of its own, which {} would not change; `autoplan plan` finds plans of others",
            given.join(", ")
        ))),
    }
}

/// Options of `autoplan import megatron` and `autoplan import deepspeed`.
#[derive(Debug, clap::Args)]
struct FileArgs {
    /// The launch script, a file with its arguments, or the configuration.
    file: PathBuf,
    /// GPUs of the job, where the launcher does not say how many ranks it starts.
    #[arg(long, short = 'g', value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    gpus: Option<u32>,
    /// Tokens per sequence, for a DeepSpeed configuration.
    #[arg(long, short = 's', aliases = ["seq-length", "sequence-length"], value_name = "N", value_parser = whole)]
    seq_len: Option<u32>,
    #[command(flatten)]
    launch: LaunchArgs,
    /// The cluster it runs on, which a saved plan names.
    #[arg(long)]
    cluster: Option<String>,
    /// Write to a file what would be printed; - prints it.
    #[arg(long, short = 'o', value_name = "FILE")]
    output: Option<PathBuf>,
    /// Overwrite an existing file.
    #[arg(long)]
    force: bool,
    /// What is printed or written: the saved plan with --cluster, else JSON, unless given.
    #[arg(long, value_enum)]
    format: Option<LaunchFormat>,
}

/// What becomes of a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum LaunchFormat {
    /// The saved plan that explain, check, compare and export read. Needs --cluster.
    Ron,
    /// The model alone, as models/*.ron.
    Model,
    /// Model, job and plan for programs, with what was assumed and not understood.
    Json,
}

/// Options of `autoplan import hf`.
#[derive(Debug, clap::Args)]
struct HfArgs {
    /// The config.json.
    config: PathBuf,
    /// Name of the model; that of the file's folder unless given.
    #[arg(long)]
    name: Option<String>,
    /// Write the model as a RON file instead of printing it; - prints it.
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
        Source::Megatron(args) => launch(args, Kind::Launch),
        Source::Deepspeed(args) => launch(args, Kind::DeepSpeed),
    }
}

/// What a file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A launch script or an argument list.
    Launch,
    /// A DeepSpeed configuration.
    DeepSpeed,
}

/// A file that a script sources: a regular one, read like any other input and never run.
fn sourced(script: &Path, name: &str) -> Result<String, String> {
    let path = script.parent().unwrap_or(Path::new("")).join(name);
    match path.metadata() {
        Ok(about) if about.is_file() => spec::read_text(&path).map_err(|e| e.title().to_owned()),
        Ok(_) => Err("it is no file".to_owned()),
        Err(_) => Err("there is no such file".to_owned()),
    }
}

/// What a file seems to be; none for a model or a saved plan.
pub(crate) fn kind_of(path: &Path) -> Result<Option<Kind>, Failure> {
    let extension = path.extension().and_then(|e| e.to_str()).unwrap_or_default();
    if extension == "ron" || !path.is_file() {
        return Ok(None);
    }
    let text = spec::read_text(path)?;
    if SavedPlan::is_text(&text) {
        return Ok(None);
    }
    if !text.trim_start().starts_with('{') {
        return Ok(Some(Kind::Launch));
    }
    let told = ["\"zero_optimization\"", "\"train_batch_size\"", "\"train_micro_batch_size_per_gpu\""];
    Ok(told.iter().any(|key| text.contains(key)).then_some(Kind::DeepSpeed))
}

/// `--model` as it can be given: the shipped model nearest to the one that a trainer's flags name, if they do.
fn way_to_name_a_model(flags: &Settings) -> String {
    let kinds = "a config.json, a .ron file or a name that `autoplan models` lists";
    let named = ["--model_name_or_path", "--model-name-or-path"].iter().find_map(|flag| flags.get(*flag));
    let near = named.and_then(|path| {
        let name = path.trim_end_matches('/').rsplit('/').next().unwrap_or_default().to_lowercase();
        let near = nearest(&name, spec::shipped::Kind::Model.all().iter().map(|shipped| shipped.name));
        near.first()
            .map(|near| format!("--model {near} if that is what `{}` names, else {kinds}", shown(path)))
    });
    near.unwrap_or_else(|| format!("--model, {kinds}"))
}

/// Whether a file's name says that it holds JSON.
fn is_json(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("json"))
}

/// The framework on which others of the same launches stand.
fn family(target: Target) -> Target {
    match target {
        Target::Bridge => Target::Megatron,
        Target::MegatronDeepSpeed => Target::DeepSpeed,
        other => other,
    }
}

/// Flags of a training command with their values, as they are written.
fn flags_of(launch: &Launch) -> Settings {
    let mut flags = Settings::new();
    let mut open = None;
    for word in &launch.arguments {
        if word.text.starts_with("--") {
            let (name, value) = word.text.split_once('=').unwrap_or((&word.text, ""));
            flags.insert(name.to_owned(), value.to_owned());
            open = Some(name.to_owned());
        } else if let Some(value) = open.as_ref().and_then(|name| flags.get_mut(name)) {
            if !value.is_empty() {
                value.push(' ');
            }
            value.push_str(&word.text);
        }
    }
    flags
}

/// The number format that `accelerate launch` is told.
fn mixed_precision(launch: &Launch) -> Option<Precision> {
    match launch.accelerate.as_ref()?.get("mixed_precision").ok()??.text.as_str() {
        "bf16" => Some(Precision::Bf16),
        "fp16" => Some(Precision::Fp16),
        _ => None,
    }
}

/// Constants of the training script that is written beside a configuration, where a launch starts that one.
fn constants_of(script: &Path, launch: &Launch) -> Settings {
    let name = launch.script.as_ref().map(|word| word.text.as_str());
    let Some(name) = name.filter(|name| name.rsplit('/').next() == Some("train.py")) else {
        return Settings::new();
    };
    let text = launch.text_of(name, &|name| sourced(script, name));
    text.map(|(text, ..)| settings_of_script(&text)).unwrap_or_default()
}

/// Notes for people, on stderr.
fn print(notes: &[String]) {
    for note in notes {
        anstream::eprintln!("note: {note}");
    }
}

/// A launch that was read back.
#[derive(Debug, Clone)]
pub(crate) struct Launched {
    /// Framework it is for.
    pub target: Target,
    /// The run-time profile that predicts it.
    pub profile: &'static str,
    /// The model.
    pub model: Model,
    /// The job.
    pub job: Job,
    /// The plan.
    pub plan: Plan,
    /// How the batch grows at first.
    pub ramp: Option<BatchRamp>,
    /// What was not understood, with its line.
    pub unknown: Vec<(usize, String)>,
    /// What was filled in.
    pub assumed: Vec<String>,
    /// Settings as the launch has them.
    pub settings: Settings,
    /// Ranks on every node, where the launcher says so.
    pub ranks_per_node: Option<u32>,
}

impl Launched {
    /// Reads a launch script or a DeepSpeed configuration.
    pub(crate) fn read(
        path: &Path,
        kind: Kind,
        (gpus, seq_len): (Option<u32>, Option<u32>),
        architecture: Option<Architecture>,
        args: &LaunchArgs,
    ) -> Result<Self, Failure> {
        let source = path.display().to_string();
        let extension = path.extension().and_then(|e| e.to_str()).unwrap_or_default();
        let not_read =
            || Failure::Usage(format!("{source}: a .{extension} file of this kind is not read; {READABLE}"));
        if matches!(extension, "py" | "toml") {
            return Err(not_read());
        }
        let text = spec::read_text(path)?;
        if matches!(extension, "yaml" | "yml") && !is_manifest(&text) {
            return Err(not_read());
        }
        let first = text.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
        if first.starts_with("==> ") && first.ends_with(" <==") {
            return Err(Failure::Usage(format!(
                "{source}: several files one after another, as `export` prints them: write them with `export -o DIR`"
            )));
        }
        if kind == Kind::Launch
            && let Ok(launch) = read_launch_with(&text, &args.words, &|name| sourced(path, name))
            && let Ok(Some(config)) = launch.deepspeed_config()
        {
            return Self::handed_on(path, &text, &launch, &config, (gpus, seq_len), args);
        }
        if kind != Kind::Launch {
            args.hand_nothing(&source)?;
        }
        if kind == Kind::DeepSpeed {
            let trainer = deepspeed::Trainer::default();
            return Self::configuration(&text, source, (gpus, seq_len), (trainer, Settings::new()), args);
        }
        let name = args.name.clone().or_else(|| stated_name(&text)).unwrap_or_else(|| name_of(path));
        let vocabulary = args.vocab_size;
        let given = megatron::Given { name: &name, gpus, vocabulary, architecture, words: &args.words };
        let imported = megatron::import_with(&text, given, &|name| sourced(path, name)).map_err(|e| {
            print(&e.notes);
            in_launch(&source, &text, e)
        })?;
        let length = seq_len.is_some().then_some("--seq-len");
        own_job(&source, "a launch", &length.into_iter().chain(args.beside_flags()).collect::<Vec<_>>())?;
        let megatron::Imported {
            target,
            profile,
            model,
            job,
            plan,
            ramp,
            unknown,
            assumed,
            mut settings,
            ranks_per_node,
        } = imported;
        // Its engine is told by a configuration as well.
        if target == Target::MegatronDeepSpeed
            && let Some(config) = settings.get("--deepspeed_config")
            && let Ok(launch) = read_launch_with(&text, &args.words, &|name| sourced(path, name))
            && let Ok((held, ..)) = launch.text_of(config, &|name| sourced(path, name))
        {
            settings.extend(settings_of_json(&held));
        }
        let ranks_per_node = ranks_per_node.filter(|_| gpus.is_none());
        Ok(Self { target, profile, model, job, plan, ramp, unknown, assumed, settings, ranks_per_node })
    }

    /// Reads a DeepSpeed configuration, with what the trainer is told and the settings of the script beside it.
    fn configuration(
        text: &str,
        source: String,
        (gpus, seq_len): (Option<u32>, Option<u32>),
        (trainer, beside): (deepspeed::Trainer, Settings),
        args: &LaunchArgs,
    ) -> Result<Self, Failure> {
        own_job(&source, "a DeepSpeed configuration with its model", &args.beside_model())?;
        let needed = |what: &str, flag: &str| {
            Failure::Usage(format!("{source}: a DeepSpeed configuration does not say {what}: give {flag}"))
        };
        let model = args.model.as_deref().ok_or_else(|| {
            let also = if gpus.is_none() { " (and --gpus)" } else { "" };
            needed("which model it trains", &format!("{}{also}", way_to_name_a_model(&beside)))
        })?;
        let model = spec::load_model(model)?;
        let given = deepspeed::Given {
            model: &model,
            gpus: gpus.ok_or_else(|| needed("how many GPUs it runs on", "--gpus"))?,
            sequence_length: seq_len,
            pipeline_parallel: args.pipeline_stages.unwrap_or(1),
            trainer: deepspeed::Trainer {
                micro_batch_size: args.micro_batch.or(trainer.micro_batch_size),
                gradient_accumulation_steps: args.accumulation.or(trainer.gradient_accumulation_steps),
                ..trainer
            },
        };
        let deepspeed::Imported { job, plan, unknown, assumed } =
            deepspeed::import(text, given).map_err(|e| e.in_source(source))?;
        let mut settings = settings_of_json(text);
        settings.extend(beside);
        let target = deepspeed::target(&plan);
        let profile = target.profile_name();
        let (ramp, ranks_per_node) = (None, None);
        Ok(Self { target, profile, model, job, plan, ramp, unknown, assumed, settings, ranks_per_node })
    }

    /// Reads the DeepSpeed configuration that a script hands on.
    fn handed_on(
        script: &Path,
        text: &str,
        launch: &Launch,
        config: &Handed,
        (gpus, seq_len): (Option<u32>, Option<u32>),
        args: &LaunchArgs,
    ) -> Result<Self, Failure> {
        let source = script.display();
        let refused = |error: ImportError| in_launch(&source.to_string(), text, error);
        let of_line = |line: usize, message: String| refused(ImportError::new(line, message));
        let ranks = launch.ranks().map_err(refused)?;
        if gpus.is_none() {
            launch.agrees().map_err(refused)?;
        }
        let line = launch.script.as_ref().map_or(1, |word| word.line);
        let (held, written, path, told) = match config {
            Handed::File(config) => {
                let shown = one_line(&shown(config));
                let (held, written, key) = launch
                    .text_of(config, &|name| sourced(script, name))
                    .map_err(|why| of_line(line, format!("`{shown}` is not read: {why}")))?;
                let path = match written {
                    Some(line) => format!("{source}: `{shown}`, which line {line} writes"),
                    None => script.parent().unwrap_or(Path::new("")).join(&key).display().to_string(),
                };
                let told = match (written, is_unknown(config)) {
                    (Some(line), _) => {
                        format!(
                            "the script hands `{shown}` to DeepSpeed, as line {line} writes it; lines are its"
                        )
                    }
                    (None, true) => {
                        format!("the script hands `{shown}` to DeepSpeed: taken to be {path}; lines are its")
                    }
                    (None, false) => {
                        format!("the script hands {path} to DeepSpeed, which is read; lines are its")
                    }
                };
                (held, written, path, told)
            }
            Handed::Made(text) => {
                let told =
                    "DeepSpeed's configuration is what Accelerate makes of its own settings".to_owned();
                (text.clone(), None, format!("{source}: the configuration that Accelerate makes"), told)
            }
        };
        if let Some(line) = written.filter(|_| is_unknown(&held)) {
            let text = "part of what this writes is known only when the script runs; variables can be given behind `--`";
            return Err(of_line(line, text.to_owned()));
        }
        let (mut trainer, others) = deepspeed::Trainer::read(launch, text).map_err(refused)?;
        trainer.precision = trainer.precision.or(mixed_precision(launch));
        let mut beside = flags_of(launch);
        beside.extend(constants_of(script, launch));
        if let Some(on) = beside.get(SCRIPT_RECOMPUTES) {
            trainer.recompute = Some(on == "True");
        }
        let mut notes = launch.notes.clone();
        if trainer.sequence_length.is_none() && seq_len.is_none() {
            let written = beside.get(SCRIPT_SEQUENCE).and_then(|tokens| tokens.parse().ok());
            trainer.sequence_length = written.or_else(|| {
                let tokens = sequence_of_header(text)?;
                notes.push(format!("sequences of {tokens} tokens: the header of the script says so"));
                Some(tokens)
            });
        }
        notes.extend(launch.disagreements());
        notes.push(told);
        let read =
            Self::configuration(&held, path.clone(), (gpus.or(ranks), seq_len), (trainer, beside), args);
        let mut read = read.inspect_err(|_| print(&notes))?;
        let layout = read.plan.layout();
        let constants = [
            (SCRIPT_MICRO_BATCH, layout.micro_batch_size, "sequences of a micro-batch are"),
            (SCRIPT_SEQUENCE_PARALLEL, layout.context_parallel, "ranks that share a sequence are"),
        ];
        for (constant, configured, what) in constants {
            // What is no number is not known here.
            let value = read.settings.get(constant).map(|value| value.split('#').next().unwrap_or_default());
            let number = value.and_then(|value| value.trim().parse::<u32>().ok());
            if let Some(number) = number.filter(|number| *number != configured) {
                print(&notes);
                return Err(of_line(line, format!("`{constant}` is {number}, but {what} {configured}")));
            }
        }
        if let (Some(gpus), Some(ranks)) =
            (gpus, ranks.filter(|ranks| gpus.is_some_and(|gpus| gpus != *ranks)))
        {
            notes.push(format!("{gpus} GPUs as given, not the {ranks} ranks that the launcher starts"));
        }
        let is_settings = |word: &&str| [".yaml", ".yml", ".toml"].iter().any(|end| word.ends_with(end));
        let settings = launch.arguments.iter().map(|word| word.text.as_str());
        for file in settings.filter(is_settings) {
            let file = one_line(&shown(file));
            notes.push(format!(
                "`{file}` is handed to the training script and not read: batches, lengths and adapters that it sets are left out"
            ));
        }
        let flag = |(line, words): (usize, String)| (line, format!("{words} (a flag of {source})"));
        read.unknown.extend(others.into_iter().map(flag));
        notes.append(&mut read.assumed);
        let per_node = launch.ranks_per_node().map_err(refused)?;
        Ok(Self { assumed: notes, ranks_per_node: per_node.filter(|_| gpus.is_none()), ..read })
    }

    /// What was filled in and what was not understood, on stderr.
    pub(crate) fn print_notes(&self) {
        print(&self.assumed);
        for (line, flag) in &self.unknown {
            anstream::eprintln!("note: line {line}: not understood, and left out of the prediction: {flag}");
        }
    }

    /// Notes where the nodes of a machine are used otherwise than the launch uses its own.
    pub(crate) fn note_nodes(&mut self, machine: &Machine) {
        let (gpus, per_node) = (self.job.gpus, machine.cluster.gpus_per_node);
        if let Some(ranks) = self.ranks_per_node.filter(|ranks| *ranks < per_node && gpus > *ranks) {
            self.assumed.push(format!(
                "the launch starts {ranks} ranks on every node, and is predicted with all {per_node} GPUs of fewer nodes of {}, \
                 between which there is less traffic",
                machine.cluster.name
            ));
        }
    }

    /// The task on a cluster, predicted by this framework's profile or by the one named.
    pub(crate) fn task(&self, machine: Machine, profile: Option<&str>) -> Result<Task, Failure> {
        if let Some(lack) = machine.accelerator.lacks(self.job.precision) {
            return Err(Failure::Usage(lack));
        }
        let (gpus, per_node) = (self.job.gpus, machine.cluster.gpus_per_node);
        if !machine.cluster.gives(gpus) {
            let most = machine.cluster.max_gpus.map_or(String::new(), |most| format!(", {most} at most"));
            return Err(Failure::Usage(format!(
                "the launch starts {gpus} ranks, but {} has nodes of {per_node} GPUs{most}; say with --gpus for how many to predict it",
                machine.cluster.name
            )));
        }
        if let Some(ranks) = self.ranks_per_node.filter(|ranks| *ranks > per_node) {
            return Err(Failure::Usage(format!(
                "the launch starts {ranks} ranks on every node, but {} has nodes of {per_node} GPUs; say with --gpus for how many to predict it",
                machine.cluster.name
            )));
        }
        let (rules, profile_name, profile) = framework(profile.unwrap_or(self.profile))?;
        if family(rules) != family(self.target) {
            let of = |name: &&str| framework(name).is_ok_and(|(of, ..)| family(of) == family(self.target));
            let names: Vec<&str> = Profile::names().filter(of).collect();
            let of =
                if profile_name == rules.name() { String::new() } else { format!(", a profile of {rules}") };
            return Err(Failure::Usage(format!(
                "a launch of {} is not predicted as {profile_name}{of}; its own run-time profiles: {}",
                self.target,
                names.join(", ")
            )));
        }
        Ok(Task {
            model: self.model.clone(),
            machine,
            job: self.job.clone(),
            target: self.target,
            profile,
            profile_name,
            restrictions: Restrictions::default(),
            pricing: Pricing::OnDemand,
        })
    }
}

fn launch(args: &FileArgs, kind: Kind) -> Result<Ending, Failure> {
    // A script hands its configuration on.
    let kind = match (kind, kind_of(&args.file)?) {
        (Kind::DeepSpeed, Some(Kind::Launch)) if !is_json(&args.file) => Kind::Launch,
        _ => kind,
    };
    let output = file_of(args.output.as_deref());
    if let Some(path) = output {
        files::check_file(path, args.force)?;
    }
    let machine = args.cluster.as_deref().map(spec::load_cluster).transpose()?;
    let format = args.format.unwrap_or(match (&machine, output) {
        (None, None) => LaunchFormat::Json,
        _ => LaunchFormat::Ron,
    });
    let architecture = machine.as_ref().map(|machine| machine.accelerator.architecture);
    let sizes = (args.gpus, args.seq_len);
    let mut launched = Launched::read(&args.file, kind, sizes, architecture, &args.launch)?;
    machine.iter().for_each(|machine| launched.note_nodes(machine));
    launched.print_notes();
    let text = match (format, machine) {
        (LaunchFormat::Ron, None) => {
            let message = "a saved plan names its cluster: give --cluster, or another --format";
            return Err(Failure::Usage(message.into()));
        }
        (LaunchFormat::Ron, Some(machine)) => {
            let task = launched.task(machine, None)?;
            let prediction = task.prepare().predict(&launched.plan);
            let names = (task.target.name(), task.profile_name.as_str());
            let (model, job) = (&task.model, &task.job);
            let saved = SavedPlan::new(names, model, &task.machine, job, &launched.plan, &prediction);
            saved.to_text().map_err(|e| Failure::Usage(e.to_string()))?
        }
        (LaunchFormat::Model, _) => model_text(&launched.model)?,
        (LaunchFormat::Json, _) => {
            let Launched { target, profile, model, job, plan, ramp, unknown, assumed, .. } = &launched;
            let stages: Vec<u32> = plan.chunks().iter().map(|c| c.layers).collect();
            let value = json!({
                "name": plan.to_string(), "framework": target.name(), "profile": profile, "plan": plan.layout(), "stages": stages,
                "recompute": plan.common_recompute(), "model": model,
                "gpus": job.gpus, "global_batch_size": job.global_batch_size,
                "sequence_length": job.sequence_length, "precision": job.precision.name(),
                "optimizer": job.optimizer.name(), "batch_ramp": ramp, "assumed": assumed, "not_understood": unknown,
            });
            serde_json::to_string_pretty(&value).unwrap_or_default()
        }
    };
    print_or_write(file_of(args.output.as_deref()), &text, args.force)
}

/// A model as models/*.ron have it.
fn model_text(model: &Model) -> Result<String, Failure> {
    let style = ron::ser::PrettyConfig::new().depth_limit(4).compact_arrays(true);
    ron_options().to_string_pretty(model, style).map_err(|e| Failure::Usage(e.to_string()))
}

/// The file to write to: `-` is none.
fn file_of(output: Option<&Path>) -> Option<&Path> {
    output.filter(|path| path.as_os_str() != "-")
}

/// A text with its last line end, to a file or to standard output.
fn print_or_write(path: Option<&Path>, text: &str, force: bool) -> Result<Ending, Failure> {
    match path {
        Some(path) => {
            files::write(path, &format!("{text}\n"), force)?;
            anstream::eprintln!("wrote {}", path.display());
        }
        None => writeln!(std::io::stdout().lock(), "{text}")?,
    }
    Ok(Ending::Done)
}

/// The model that a script of our own names in its header.
fn stated_name(text: &str) -> Option<String> {
    let mut header = text.lines().take_while(|line| line.starts_with('#'));
    let name = header.find_map(|line| line.strip_prefix("# model      "))?.trim();
    let ours = header.any(|line| line.starts_with("# made by    autoplan"));
    (ours && !name.is_empty()).then(|| name.to_owned())
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
            let model = model_text(&import.model)?;
            format!(
                "// {} parameters, {} of them active; imported from a config.json of type {}.\n{model}",
                group(count.total),
                group(count.active),
                import.model_type
            )
        }
    };
    print_or_write(file_of(args.output.as_deref()), &text, args.force)
}

/// An error on a line of a launch, with what it is about marked, and what else was found to be wrong.
fn in_launch(source: &str, text: &str, ImportError { line, message, further, .. }: ImportError) -> Failure {
    let place = |line: usize, message: &str| {
        let above: usize = text.split_inclusive('\n').take(line.saturating_sub(1)).map(str::len).sum();
        let held = text[above..].lines().next().unwrap_or_default();
        let at = meant(held, message);
        above + at.start..above + at.end
    };
    let at = place(line, &message);
    let first = SpecError::new(source, message).mark(text, at, "");
    let all = further.into_iter().fold(first, |error, (line, message)| {
        let at = place(line, &message);
        error.mark(text, at, message)
    });
    all.into()
}

/// What a message is about in a line: the first flag, quoted text or variable that it names; else all of it.
fn meant(line: &str, message: &str) -> Range<usize> {
    let flags =
        message.split(|c: char| c.is_whitespace() || "`,;:()".contains(c)).filter(|w| w.starts_with("--"));
    let quoted = message.split('`').skip(1).step_by(2).filter(|word| !word.is_empty());
    let variable = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
    let names = message.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    let names = names.filter(|name| {
        name.len() > 1 && name.chars().all(variable) && name.contains(|c: char| c.is_ascii_uppercase())
    });
    let whole = |word: &str| {
        let part = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == '-');
        let stands = |at: usize| {
            !part(line[..at].chars().next_back()) && !part(line[at + word.len()..].chars().next())
        };
        line.match_indices(word).find(|(at, _)| stands(*at)).map(|(at, _)| at..at + word.len())
    };
    let indent = line.len() - line.trim_start().len();
    flags.chain(quoted).chain(names).find_map(whole).unwrap_or(indent..line.trim_end().len().max(indent))
}
