//! Writing plans out: one request, one list of files per destination.

use std::fmt::Write;

pub use super::changes::{Change, Settings};
use super::{
    Context, Hardware, Judge, Reach, Refusal, Target, accelerate, bridge, deepspeed, legal_plan,
    legal_within, megatron, torchtitan,
};
use crate::layers::Layers;
use crate::plan::{Chunk, Dispatcher, Layout, Plan, Recompute};
use crate::spec::cluster::{Accelerator, Cluster};
use crate::spec::job::{Job, Routing};
use crate::spec::model::{Model, Position};
use crate::stages::layout::{Mtp, write_layout};
use crate::units::{Bytes, Seconds};

/// A plan with everything that its files say.
#[derive(Debug, Clone, Copy)]
pub struct ExportRequest<'a> {
    /// The model.
    pub model: &'a Model,
    /// The job.
    pub job: &'a Job,
    /// The cluster.
    pub cluster: &'a Cluster,
    /// Its accelerator.
    pub accelerator: &'a Accelerator,
    /// The plan.
    pub plan: &'a Plan,
    /// What was predicted for it.
    pub prediction: Option<Prediction<'a>>,
    /// Name and version of the program that writes, e.g. `autoplan 0.1.0`.
    pub version: &'a str,
    /// The commands that made the plan and write it out, a line each.
    pub command: &'a str,
    /// A script, or its arguments alone.
    pub format: Format,
}

/// Whom files are written for, and what they leave to the framework.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WrittenFor {
    software: &'static str,
    /// Numbers of the model that no model file says, or that the framework has no setting for. None of them changes
    /// time or memory.
    open: Vec<String>,
}

impl WrittenFor {
    /// Files that say what the model says; `scaled` tells whether they say how its positions are scaled.
    #[must_use]
    pub fn new(software: &'static str, model: &Model, scaled: bool) -> Self {
        let mut open = Vec::new();
        if model.norm_epsilon.is_none() {
            open.push("epsilon of the norms".to_owned());
        }
        if !scaled {
            open.push(format!("scaling of rotary positions ({})", model.position.scaling()));
        }
        open.extend(model.unstated.iter().map(|text| one_line(text)));
        Self { software, open }
    }

    /// The same, with something else that is left open.
    #[must_use]
    pub fn leaving(mut self, what: Option<&str>) -> Self {
        self.open.extend(what.map(str::to_owned));
        self
    }

    /// Files beside a model that somebody else builds.
    #[must_use]
    pub fn without_model(software: &'static str) -> Self {
        Self { software, open: Vec::new() }
    }
}

/// What was predicted for a plan.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Prediction<'a> {
    /// Time of one step.
    pub step_time: Seconds,
    /// Allocated bytes on the fullest GPU.
    pub memory: Bytes,
    /// When to save; none where the run makes no progress.
    pub checkpoints: Option<Checkpoints>,
    /// What is to be known of the plan and of what is predicted, a line each.
    pub notes: &'a [String],
}

/// The checkpoint interval with the least expected loss.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Checkpoints {
    /// Optimizer steps between two checkpoints.
    pub steps: u64,
    /// Training time between them.
    pub interval: Seconds,
    /// Mean time between failures of the job.
    pub between_failures: Seconds,
}

/// How much of a launch is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Format {
    /// A script that can be run as it is.
    #[default]
    Script,
    /// The list of arguments.
    Args,
}

/// Where a plan is written to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Destination {
    /// A framework's own files.
    Framework(Target),
    /// A Slurm batch script around Megatron-LM.
    Slurm,
    /// A Kubernetes job around Megatron-LM.
    Kubernetes,
}

impl Destination {
    /// The framework whose rules apply.
    #[must_use]
    pub fn target(self) -> Target {
        match self {
            Self::Framework(target) => target,
            Self::Slurm | Self::Kubernetes => Target::Megatron,
        }
    }

    /// Where a plan goes: DeepSpeed's pipeline stages run in Megatron-DeepSpeed, where that has the model.
    #[must_use]
    pub fn of_plan(self, model: &Model, job: &Job, plan: &Plan) -> Self {
        let staged = self == Self::Framework(Target::DeepSpeed) && plan.layout().pipeline_parallel > 1;
        match staged && deepspeed::write::megatron_has(model, &Layers::new(model), job) {
            true => Self::Framework(Target::MegatronDeepSpeed),
            false => self,
        }
    }

    /// The file that is always among those that are written.
    #[must_use]
    pub fn main_file(self, request: &ExportRequest) -> String {
        let slug = request.slug();
        match (self, request.format) {
            (Self::Slurm, _) => format!("{slug}.sbatch"),
            (Self::Kubernetes, _) => format!("{slug}.kubernetes.yaml"),
            (Self::Framework(Target::Megatron), Format::Script) => format!("{slug}.sh"),
            (Self::Framework(Target::Megatron), Format::Args) => format!("{slug}.args"),
            (Self::Framework(Target::MegatronDeepSpeed), Format::Args) => "arguments.args".to_owned(),
            (Self::Framework(_), _) => "launch.sh".to_owned(),
        }
    }

    /// Every destination that can be written, by name.
    #[must_use]
    pub fn names() -> Vec<&'static str> {
        let targets = Target::ALL.into_iter().filter(|t| t.exports()).map(Target::name);
        targets.chain(["slurm", "kubernetes"]).collect()
    }
}

/// A destination's name was not understood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{found}` is no destination; did you mean `{nearest}`? (known: {})", Destination::names().join(", "))]
pub struct ParseDestinationError {
    /// What was found.
    pub found: String,
    /// The most similar name.
    pub nearest: &'static str,
}

impl std::str::FromStr for Destination {
    type Err = ParseDestinationError;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let plain = text.trim().to_ascii_lowercase();
        match plain.as_str() {
            "slurm" | "sbatch" => Ok(Self::Slurm),
            "kubernetes" | "k8s" => Ok(Self::Kubernetes),
            _ => text.parse().map(Self::Framework).map_err(|_| {
                let near = |name: &&str| (strsim::jaro_winkler(&plain, name) * 1e6) as u64;
                let nearest = Self::names().into_iter().max_by_key(near).unwrap_or("megatron");
                ParseDestinationError { found: text.to_owned(), nearest }
            }),
        }
    }
}

/// Name of the rule that a plan breaks which there is no way to write down.
pub const EXPRESSIBLE: &str = "expressible";

/// One file of an export.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportedFile {
    /// Its name, without a folder.
    pub name: String,
    /// Its content, UTF-8.
    pub text: String,
    /// It is a script to be run.
    pub executable: bool,
}

/// Writes a plan for a destination.
///
/// # Errors
/// A [`Refusal`] where the framework does not accept the plan, cannot express the model, or is only
/// predicted; with the nearest plan that it accepts where there is one.
pub fn export(destination: Destination, request: &ExportRequest) -> Result<Vec<ExportedFile>, Refusal> {
    export_or_nearest(destination, request, &|_| true)
}

/// As [`export`]; of the plans near a refused one, only those that `fits` takes are named.
///
/// # Errors
/// As [`export`].
pub fn export_or_nearest(
    destination: Destination,
    request: &ExportRequest,
    fits: &dyn Fn(&Plan) -> bool,
) -> Result<Vec<ExportedFile>, Refusal> {
    let destination = destination.of_plan(request.model, request.job, request.plan);
    let target = destination.target();
    let context = request.context();
    // What no layout can do comes first: the plan is not at fault.
    legal_within(target, &context, request.plan.layout(), Reach::Job)?;
    legal_plan(target, &context, request.plan).map_err(|refusal| Refusal {
        nearest: super::nearest(target, &context, request.plan, fits).map(Box::new),
        ..refusal
    })?;
    write(destination, request)
}

/// Writes a plan without asking the framework's rules first: for tests that put illegal plans before
/// the frameworks themselves. Models that a framework cannot express are still refused.
///
/// # Errors
/// A [`Refusal`] where there is no way to write the plan down.
pub fn write(destination: Destination, request: &ExportRequest) -> Result<Vec<ExportedFile>, Refusal> {
    let destination = destination.of_plan(request.model, request.job, request.plan);
    let target = destination.target();
    let (position, length) = (request.model.position, u64::from(request.job.sequence_length));
    let written = match destination {
        _ if target.exports() && matches!(position, Position::Learned(rows) if rows < length) => {
            Err(super::broken("the table of learned positions is shorter than the sequences"))
        }
        Destination::Slurm => megatron::write::slurm(request),
        Destination::Kubernetes => megatron::write::kubernetes(request),
        Destination::Framework(target) => match target {
            Target::Megatron => megatron::write::launch(request),
            Target::Bridge => bridge::write(request),
            Target::DeepSpeed => deepspeed::write::write(request, false),
            Target::MegatronDeepSpeed => deepspeed::write::write(request, true),
            Target::Torchtitan => torchtitan::write::write(request),
            Target::Accelerate => accelerate::write(request),
            Target::Nanotron | Target::LlmFoundry | Target::InternEvo | Target::HaiLlm => {
                Err(super::broken("plans are predicted for this framework, but not exported"))
            }
        },
    };
    written.map_err(|broken| Refusal {
        target,
        rule: EXPRESSIBLE,
        source: "the framework's options",
        judge: Judge::Nobody,
        nearest: None,
        broken,
    })
}

/// Tokens of a sequence, as the header of a file that was written here says: where its training script is the user's,
/// nothing else does.
#[must_use]
pub fn sequence_of_header(text: &str) -> Option<u32> {
    let header = text.lines().take_while(|line| line.starts_with('#'));
    let batch = header.filter_map(|line| line.strip_prefix("# batch")).next()?;
    let words: Vec<&str> = batch.split_whitespace().collect();
    let [_, "sequences", "of", tokens, rest, ..] = words.as_slice() else { return None };
    rest.starts_with("tokens").then(|| tokens.parse().ok()).flatten()
}

/// Why a framework has no such model, whatever the plan: the plainest one cannot be written down. Never for a
/// framework that plans are only predicted for.
#[must_use]
pub fn inexpressible(
    target: Target,
    model: &Model,
    job: &Job,
    (cluster, accelerator): (&Cluster, &Accelerator),
) -> Option<Refusal> {
    if !target.exports() {
        return None;
    }
    let job = Job { gpus: 1, global_batch_size: 1, ..job.clone() };
    let chunk = Chunk { layers: model.layer_count(), recompute: Recompute::None };
    // One GPU holds any model as far as the laws of plans go.
    let plan = Plan::new(Layout::ONE, vec![chunk], 1, 1, model.layer_count()).ok()?;
    let request = ExportRequest {
        model,
        job: &job,
        cluster,
        accelerator,
        plan: &plan,
        prediction: None,
        version: "",
        command: "",
        format: Format::Script,
    };
    write(Destination::Framework(target), &request).err()
}

impl ExportRequest<'_> {
    /// The facts that rules ask for.
    #[must_use]
    pub fn context(&self) -> Context {
        Context::new(
            self.model,
            &Layers::new(self.model),
            self.job,
            Hardware::of(self.cluster, self.accelerator),
        )
    }

    /// Where the modules that predict further tokens are.
    pub(crate) fn mtp(&self) -> Mtp {
        let modules = self.model.mtp.as_ref().map_or(0, |mtp| mtp.modules);
        Mtp { modules, standalone: self.plan.layout().mtp_standalone }
    }

    /// Nodes and GPUs of each: all of a node's, or as many as divide the job evenly.
    #[must_use]
    pub fn nodes(&self) -> (u32, u32) {
        let (mut a, mut b) = (self.job.gpus, self.cluster.gpus_per_node);
        while b != 0 {
            (a, b) = (b, a % b);
        }
        (self.job.gpus / a.max(1), a.max(1))
    }

    /// Optimizer steps of the whole run; 100 where the job names no tokens.
    #[must_use]
    pub fn steps(&self) -> u64 {
        let step = u64::from(self.job.global_batch_size) * u64::from(self.job.sequence_length);
        self.job.tokens.map_or(100, |tokens| tokens.0.div_ceil(step.max(1)).max(1))
    }

    /// When to save, if that was predicted.
    #[must_use]
    pub fn checkpoints(&self) -> Option<Checkpoints> {
        self.prediction.and_then(|prediction| prediction.checkpoints)
    }

    /// What every file says about itself, as comment lines that begin with `mark`.
    #[must_use]
    pub fn header(&self, mark: &str, written_for: &WrittenFor) -> String {
        let mut text = String::new();
        for (label, value) in self.facts(written_for) {
            let _ = writeln!(text, "{mark} {label:<11}{value}");
        }
        text
    }

    /// The header's facts, each on one line.
    #[must_use]
    pub fn facts(&self, written_for: &WrittenFor) -> Vec<(&'static str, String)> {
        let (nodes, per_node) = self.nodes();
        let chunks: Vec<u32> = self.plan.chunks().iter().map(|c| c.layers).collect();
        let predicted = match self.prediction {
            Some(p) => format!("{} per step, {} on the fullest GPU", p.step_time, p.memory),
            None => "nothing".to_owned(),
        };
        let mut facts = vec![
            ("model", one_line(&self.model.name)),
            ("cluster", one_line(&format!("{}, {nodes} x {per_node} GPUs", self.cluster.name))),
            (
                "batch",
                format!(
                    "{} sequences of {} tokens, {}",
                    self.job.global_batch_size,
                    self.job.sequence_length,
                    self.job.precision.name()
                ),
            ),
            ("plan", self.plan.to_string()),
        ];
        if let Some(assumed) = self.assumed() {
            facts.push(("assumes", assumed));
        }
        if chunks.len() > 1 {
            facts.push(("layers", write_layout(&chunks, self.mtp())));
        }
        if !written_for.open.is_empty() {
            let open = written_for.open.join(", ");
            facts.push(("left open", format!("{open}: the framework's defaults hold")));
        }
        facts.push(("predicted", predicted));
        let notes = self.prediction.map_or(&[][..], |predicted| predicted.notes);
        facts.extend(notes.iter().map(|note| ("note", one_line(note))));
        if let Some(c) = self.checkpoints() {
            let (steps, failures) = (c.steps, c.between_failures);
            let every =
                format!("every {steps} steps ({}); a failure is expected every {failures}", c.interval);
            facts.push(("checkpoint", every));
        }
        facts.push(("made by", one_line(self.version)));
        for (at, command) in self.command.lines().enumerate() {
            facts.push((if at == 0 { "command" } else { "then" }, one_line(command)));
        }
        facts.push(("for", written_for.software.to_owned()));
        facts
    }

    /// What the prediction is for and no option says: the data and what comes of them.
    #[must_use]
    pub fn assumed(&self) -> Option<String> {
        let packed = self.job.packed.as_ref().map(|lengths| {
            format!(
                "documents of {lengths} tokens packed into the sequences, attention within each: nothing here packs or \
                 masks them"
            )
        });
        let natural = self.job.routing == Routing::Natural && self.context().has_experts();
        let natural = natural.then(|| "experts chosen as unevenly as in practice".to_owned());
        let dispatcher = needs_own_dispatcher(self.plan.layout(), self.cluster).then(|| {
            "a build of the experts' dispatcher that sends through hosts: released ones do not run over this network".to_owned()
        });
        let all: Vec<String> = packed.into_iter().chain(natural).chain(dispatcher).collect();
        (!all.is_empty()).then(|| all.join("; "))
    }

    /// The model's name as a file or job name: ASCII letters, digits, dots and dashes.
    #[must_use]
    pub fn slug(&self) -> String {
        slug(&self.model.name)
    }
}

/// Whether tokens go to the experts of a layout by a library whose released builds do not run over a cluster's network.
#[must_use]
pub fn needs_own_dispatcher(layout: &Layout, cluster: &Cluster) -> bool {
    let library = matches!(layout.dispatcher, Some(Dispatcher::DeepEp | Dispatcher::HybridEp));
    let ranks = layout.expert_parallel * layout.expert_tensor_parallel;
    library && cluster.scale_out.host_initiated && ranks > cluster.scale_up.domain
}

/// A name reduced to ASCII letters, digits, dots and dashes; never empty, never starting with a dash.
#[must_use]
pub fn slug(name: &str) -> String {
    let mut text = String::new();
    for c in name.chars() {
        let c = c.to_ascii_lowercase();
        if c.is_ascii_alphanumeric() || (c == '.' && !text.is_empty()) {
            text.push(c);
        } else if !text.ends_with('-') && !text.is_empty() {
            text.push('-');
        }
    }
    let text: String = text.trim_end_matches(['-', '.']).chars().take(60).collect();
    if text.is_empty() { "model".to_owned() } else { text }
}

/// Text made safe for a comment: line breaks, other control characters, direction marks and what is no character (YAML
/// takes none) escaped.
#[must_use]
pub fn one_line(text: &str) -> String {
    let hidden = |c: char| {
        c.is_control()
            || (c as u32) & 0xfffe == 0xfffe
            || matches!(c, '\u{2028}' | '\u{2029}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{fdd0}'..='\u{fdef}' | '\u{feff}')
    };
    text.chars()
        .flat_map(|c| {
            let (escaped, plain) = if hidden(c) { (Some(c.escape_default()), None) } else { (None, Some(c)) };
            escaped.into_iter().flatten().chain(plain)
        })
        .collect()
}

/// A word for a shell, quoted where it must be.
#[must_use]
pub fn quote(word: &str) -> String {
    // The only word that cannot be quoted holds a nul byte, which no argument can.
    let clean = word.replace('\0', "");
    shlex::try_quote(&clean).map_or_else(|_| "''".to_owned(), std::borrow::Cow::into_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_stay_on_one_line() {
        let nasty = "a\nrm -rf /\r\u{2028}$(id)\u{202e}é\u{ffff}\u{1fffe}\u{fdd0}";
        let line = one_line(nasty);
        let hidden = ['\n', '\r', '\u{2028}', '\u{202e}', '\u{ffff}', '\u{1fffe}', '\u{fdd0}'];
        assert!(!line.contains(hidden), "{line}");
        assert!(line.contains("$(id)") && line.contains('é'));
    }

    #[test]
    fn slugs_are_safe_names() {
        assert_eq!(slug("Llama 3.1 405B"), "llama-3.1-405b");
        assert_eq!(slug("../../$(id)"), "id");
        assert_eq!(slug("日本"), "model");
        assert_eq!(slug("-rf"), "rf");
    }

    #[test]
    fn words_are_quoted() {
        for word in ["plain", "Et*7|(t*8|)*14,t*7,L", "a b", "it's", "$(id)", "`x`", "", "a\nb", "é\0"] {
            let read = shlex::split(&quote(word)).unwrap();
            assert_eq!(read, [word.replace('\0', "")]);
        }
    }
}
