//! What to change in the settings of a launch to get another plan: flags, variables of the environment, keys of a
//! configuration, constants of a training script.
//!
//! Both plans are written down as this program writes them, but a launch of another hand may say the same in other
//! words, or leave it to a default. So every setting that decides on a plan is looked up in the launch itself; the tables
//! here say what holds where it is missing, and which words stand for others.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::export::{Destination, ExportRequest, Format, quote, write};
use super::megatron::flag_rules::in_the_way;
use super::{Refusal, Target};
use crate::plan::Layout;
use crate::spec::cluster::Architecture;

/// Flags, variables and keys by name, with their values; empty for a switch.
pub type Settings = BTreeMap<String, String>;

/// One setting that differs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// A flag, a variable of the environment, the path of a key, or a constant of a training script.
    pub name: String,
    /// Its value so far; none where it is not there, empty for a switch and for a whole section.
    pub from: Option<String>,
    /// Its value in the other plan's files.
    pub to: Option<String>,
}

impl Change {
    fn is_variable(&self) -> bool {
        let letters = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
        self.name.starts_with(|c: char| c.is_ascii_uppercase()) && self.name.chars().all(letters)
    }

    /// What kind of setting it is.
    fn kind(&self) -> &'static str {
        match self.name.get(..2) {
            Some("--") => "flag",
            _ if self.is_variable() => "environment variable",
            _ if self.name.starts_with(SCRIPT) => "constant",
            _ => "key",
        }
    }
}

impl serde::Serialize for Change {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeStruct;
        let mut s = serializer.serialize_struct("Change", 4)?;
        s.serialize_field("name", &self.name)?;
        s.serialize_field("kind", self.kind())?;
        s.serialize_field("from", &self.from)?;
        s.serialize_field("to", &self.to)?;
        s.end()
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let (kind, mark) = if self.is_variable() { ("environment variable ", "=") } else { ("", " ") };
        // To be written into a script.
        let words = |value: &str| value.split_whitespace().map(quote).collect::<Vec<_>>().join(" ");
        let told = |value: &str| if self.kind() == "flag" { words(value) } else { value.to_owned() };
        let shown =
            |value: &str| if value.is_empty() { String::new() } else { format!("{mark}{}", told(value)) };
        let name = &self.name;
        match (&self.from, &self.to) {
            (Some(from), Some(to)) => write!(f, "{kind}{name}{} -> {}", shown(from), told(to)),
            (Some(from), None) => write!(f, "remove {kind}{name}{}", shown(from)),
            (None, Some(to)) => write!(f, "add {kind}{name}{}", shown(to)),
            (None, None) => f.write_str(name),
        }
    }
}

/// The flag of the Hugging Face trainer that recomputes all layers.
pub const TRAINER_RECOMPUTES: &str = "--gradient_checkpointing";

/// Before the name of a constant of the training script that is written beside a configuration.
pub const SCRIPT: &str = "train.py ";

/// The constant that says how long sequences are.
pub const SCRIPT_SEQUENCE: &str = "train.py SEQUENCE_LENGTH";

/// The constant that says how many sequences a micro-batch has.
pub const SCRIPT_MICRO_BATCH: &str = "train.py MICRO_BATCH_SIZE";

/// The constant that says how many ranks share a sequence.
pub const SCRIPT_SEQUENCE_PARALLEL: &str = "train.py SEQUENCE_PARALLEL";

/// The constant by which it recomputes.
pub const SCRIPT_RECOMPUTES: &str = "train.py RECOMPUTE";

/// Constants of that script on which a plan depends, as this program names them.
const CONSTANTS: [&str; 6] = [
    "train.py ACCUMULATION",
    "train.py REPLICA_RANKS",
    SCRIPT_MICRO_BATCH,
    SCRIPT_RECOMPUTES,
    SCRIPT_SEQUENCE,
    SCRIPT_SEQUENCE_PARALLEL,
];

/// A statement by which it recomputes where it has no constant for it.
const RECOMPUTES: &str = "model.gradient_checkpointing_enable()";

/// What DeepSpeed's own checkpointing is told, which models of Hugging Face do not use.
const CHECKPOINTING: &str = "activation_checkpointing.";

/// What holds where a setting that decides on the plan is not there.
enum Otherwise {
    /// Nothing.
    Off,
    /// This value.
    Is(&'static str),
    /// The value of another setting.
    As(&'static str),
    /// It is on beside one of these in the launch.
    With(&'static [&'static str]),
    /// What ZeRO stage 3 has on, and no other stage.
    Stage,
    /// It follows from the global batch.
    Batch,
    /// It follows from the others.
    Follows,
}

use Otherwise::{As, Batch, Follows, Is, Off, Stage, With};

/// Settings that decide on the plan; one that others depend on comes before them.
const DECIDING: &[(&str, Otherwise)] = &[
    // Megatron-LM and Megatron-DeepSpeed: training/arguments.py, megatron/arguments.py.
    ("--tensor-model-parallel-size", Is("1")),
    ("--pipeline-model-parallel-size", Is("1")),
    ("--context-parallel-size", Is("1")),
    ("--cp-comm-type", Is("p2p")),
    ("--ds-sequence-parallel-size", Is("1")),
    ("--expert-model-parallel-size", Is("1")),
    ("--expert-tensor-parallel-size", As("--tensor-model-parallel-size")),
    ("--microbatch-group-size-per-virtual-pipeline-stage", As("--pipeline-model-parallel-size")),
    ("--sequence-parallel", Off),
    ("--tp-comm-overlap", Off),
    ("--micro-batch-size", Off),
    ("--global-batch-size", Off),
    ("--zero-stage", Is("1")),
    ("--use-distributed-optimizer", With(&["--use-megatron-fsdp", "--use-torch-fsdp2"])),
    ("--num-distributed-optimizer-instances", Is("1")),
    ("--overlap-grad-reduce", Off),
    ("--overlap-param-gather", Off),
    ("--overlap-moe-expert-parallel-comm", Off),
    ("--fine-grained-activation-offloading", Off),
    ("--optimizer-cpu-offload", Off),
    ("--cpu-optimizer", Off),
    ("--no-pipeline-parallel", Off),
    // DeepSpeed: runtime/config.py, runtime/zero/config.py.
    ("tensor_parallel.autotp_size", Is("1")),
    ("tensor_parallel.tp_overlap_comm", Is("false")),
    ("sequence_parallel_size", Is("1")),
    ("data_parallel_size", Follows),
    ("expert_parallel.enabled", Is("false")),
    ("expert_parallel.autoep_size", Is("1")),
    ("train_batch_size", Follows),
    ("train_micro_batch_size_per_gpu", Off),
    ("gradient_accumulation_steps", Batch),
    ("zero_optimization.stage", Is("0")),
    ("zero_optimization.overlap_comm", Stage),
    ("zero_optimization.zero_hpz_partition_size", Is("1")),
    ("activation_checkpointing.cpu_checkpointing", Is("false")),
];

/// Something that several settings say together, or others in their place.
struct Concept {
    /// As it is written here.
    names: &'static [&'static str],
    /// Other ways to say it.
    others: &'static [&'static str],
    /// On what else the meaning of a launch's own words depends.
    with: &'static [&'static str],
    /// Before the names of all that belongs to it.
    section: Option<&'static str>,
}

const CONCEPTS: &[Concept] = &[
    Concept {
        names: &[
            "--recompute-granularity",
            "--recompute-method",
            "--recompute-num-layers",
            "--recompute-modules",
            "--deepspeed-activation-checkpointing",
        ],
        others: &["--recompute-activations", "--checkpoint-activations"],
        with: &[],
        section: None,
    },
    Concept {
        names: &[
            "--num-virtual-stages-per-pipeline-rank",
            "--decoder-first-pipeline-num-layers",
            "--decoder-last-pipeline-num-layers",
            "--account-for-embedding-in-pipeline-split",
            "--account-for-loss-in-pipeline-split",
            "--pipeline-model-parallel-layout",
            "--hybrid-layer-pattern",
        ],
        others: &["--num-layers-per-virtual-pipeline-stage", "--pp-partition-method"],
        with: &["--pipeline-model-parallel-size"],
        section: None,
    },
    Concept {
        names: &["--use-megatron-fsdp", "--data-parallel-sharding-strategy"],
        others: &["--use-torch-fsdp2"],
        with: &["--use-distributed-optimizer"],
        section: None,
    },
    Concept {
        names: &["--moe-token-dispatcher-type", "--moe-flex-dispatcher-backend"],
        others: &["--moe-enable-deepep"],
        with: &[],
        section: None,
    },
    Concept { names: &["--cuda-graph-impl", "--cuda-graph-modules"], others: &[], with: &[], section: None },
    Concept {
        names: &["zero_optimization.offload_optimizer.device"],
        others: &["zero_optimization.cpu_offload", "zero_optimization.cpu_offload_use_pin_memory"],
        with: &[],
        section: Some("zero_optimization.offload_optimizer."),
    },
    Concept {
        names: &["zero_optimization.offload_param.device"],
        others: &["zero_optimization.cpu_offload_param"],
        with: &[],
        section: Some("zero_optimization.offload_param."),
    },
];

/// What is written beside a setting, and needed where that is new to the launch.
const BESIDE: [(&str, &str); 16] = [
    ("--ckpt-format", "--use-megatron-fsdp"),
    ("--init-model-with-meta-device", "--use-megatron-fsdp"),
    ("--calculate-per-token-loss", "--use-megatron-fsdp"),
    ("--no-gradient-accumulation-fusion", "--use-megatron-fsdp"),
    ("--optimizer-offload-fraction", "--optimizer-cpu-offload"),
    ("--overlap-cpu-optimizer-d2h-h2d", "--optimizer-cpu-offload"),
    ("--use-precision-aware-optimizer", "--optimizer-cpu-offload"),
    ("--offload-modules", "--fine-grained-activation-offloading"),
    ("NVTE_CPU_OFFLOAD_V1", "--fine-grained-activation-offloading"),
    ("NCCL_GRAPH_REGISTER", "--cuda-graph-impl"),
    ("zero_optimization.offload_optimizer.pin_memory", "zero_optimization.offload_optimizer.device"),
    ("zero_optimization.offload_optimizer.nvme_path", "zero_optimization.offload_optimizer.device"),
    ("zero_optimization.offload_param.pin_memory", "zero_optimization.offload_param.device"),
    ("zero_optimization.offload_param.nvme_path", "zero_optimization.offload_param.device"),
    ("tensor_parallel.partition_config.layer_specs", "tensor_parallel.autotp_size"),
    ("tensor_parallel.partition_config.use_default_specs", "tensor_parallel.autotp_size"),
];

/// What the Hugging Face trainer fills in for `"auto"`, by which flag, and its own default
/// (transformers/training_args.py).
const FILLED: [(&str, &str, &str); 2] = [
    ("train_micro_batch_size_per_gpu", "--per_device_train_batch_size", "8"),
    ("gradient_accumulation_steps", "--gradient_accumulation_steps", "1"),
];

/// What ZeRO stage 3 alone takes (runtime/zero/config.py).
const STAGE_THREE: [&str; 4] = [
    "zero_optimization.offload_optimizer.ratio",
    "zero_optimization.zero_quantized_gradients",
    "zero_optimization.zero_quantized_nontrainable_weights",
    "zero_optimization.zero_quantized_weights",
];

/// Whether one queue orders the messages of a GPU.
const CONNECTIONS: &str = "CUDA_DEVICE_MAX_CONNECTIONS";

/// A value that the trainer fills in.
const AUTO: &str = "\"auto\"";

/// Whether two values mean the same: numbers however written, modules in any order.
fn alike(name: &str, one: &str, other: &str) -> bool {
    let number = |text: &str| text.replace('_', "").parse::<f64>().ok();
    let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<BTreeSet<String>>();
    // Of every layer, in Transformer Engine's spelling or Megatron-LM's own; both rings are predicted as one.
    let comms = |text: &str| words(&text.replace("all_gather", "allgather").replace("a2a+p2p", "p2p"));
    match name {
        _ if one == other => true,
        _ if name.ends_with("-modules") => words(one) == words(other),
        "--cp-comm-type" => comms(one) == comms(other),
        _ => number(one).is_some_and(|one| number(other) == Some(one)),
    }
}

/// Two plans as they are written for a framework.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Written {
    /// Settings of the first.
    pub from: Settings,
    /// Settings of the second.
    pub to: Settings,
}

impl Written {
    /// Writes two plans of one job.
    ///
    /// # Errors
    /// A [`Refusal`] where the framework cannot express one of them.
    pub fn new(target: Target, from: &ExportRequest, to: &ExportRequest) -> Result<Self, Refusal> {
        Ok(Self { from: settings_of(target, from)?, to: settings_of(target, to)? })
    }

    fn names(&self) -> BTreeSet<&String> {
        self.from.keys().chain(self.to.keys()).collect()
    }

    fn differs(&self, name: &str) -> bool {
        match (self.from.get(name), self.to.get(name)) {
            (Some(from), Some(to)) => !alike(name, from, to),
            (from, to) => from.is_some() != to.is_some(),
        }
    }

    /// What differs between their files.
    #[must_use]
    pub fn changes(&self) -> Vec<Change> {
        // A script that has a switch for it builds a model that asks nobody else.
        let idle = [&self.from, &self.to].iter().all(|all| all.contains_key(SCRIPT_RECOMPUTES));
        let names = self.names().into_iter().filter(|name| self.differs(name));
        let names = names.filter(|name| !(idle && name.starts_with(CHECKPOINTING)));
        let change = |name: &String| Change {
            name: name.clone(),
            from: self.from.get(name).cloned(),
            to: self.to.get(name).cloned(),
        };
        names.map(change).collect()
    }

    /// What to change in the settings of a launch that runs the first plan, so that it runs the second.
    #[must_use]
    pub fn changes_of(&self, own: &Settings) -> Vec<Change> {
        self.changes_with(own, &[])
    }

    /// As [`Self::changes_of`] for a launch of Megatron-LM, with what of its own the second plan, of so many layers,
    /// excludes on these GPUs.
    #[must_use]
    pub fn changes_of_command(
        &self,
        own: &Settings,
        plan: (&Layout, u32),
        architecture: Architecture,
    ) -> Vec<Change> {
        let mut changes = self.changes_of(own);
        let excluded = |changes: &[Change]| in_the_way(own, (changes, &self.to), plan, architecture);
        let mut refused = excluded(&changes);
        // One word for several settings goes, and they are to stay.
        let stands_for_others =
            |change: &Change| CONCEPTS.iter().any(|concept| concept.others.contains(&change.name.as_str()));
        if refused.iter().any(stands_for_others) {
            changes = self.changes_with(own, &refused);
            refused = excluded(&changes);
        }
        changes.extend(refused);
        changes
    }

    /// What to change where some of the launch's own settings are refused.
    fn changes_with(&self, own: &Settings, refused: &[Change]) -> Vec<Change> {
        let mut told = Told { own, written: self, after: own.clone(), changes: BTreeMap::new() };
        for concept in CONCEPTS {
            let refused = refused.iter().any(|change| concept.others.contains(&change.name.as_str()));
            told.concept(concept, refused);
        }
        FILLED.iter().for_each(|filled| told.filled(*filled));
        told.recomputed();
        for (name, otherwise) in DECIDING {
            told.deciding(name, otherwise);
        }
        told.connections();
        told.rest();
        told.beside();
        told.third_stage();
        told.folded()
    }
}

/// Changes of a launch as they are found.
struct Told<'a> {
    own: &'a Settings,
    written: &'a Written,
    /// The launch with the changes so far.
    after: Settings,
    changes: BTreeMap<String, Change>,
}

impl Told<'_> {
    fn to(&self, name: &str) -> Option<&str> {
        self.written.to.get(name).map(String::as_str)
    }

    /// Changes, adds or removes one setting.
    fn put(&mut self, name: &str, to: Option<&str>) {
        match to {
            Some(value) => self.after.insert(name.to_owned(), value.to_owned()),
            None => self.after.remove(name),
        };
        let (from, to) = (self.own.get(name).cloned(), to.map(str::to_owned));
        if from == to {
            self.changes.remove(name);
        } else {
            self.changes.insert(name.to_owned(), Change { name: name.to_owned(), from, to });
        }
    }

    /// Makes a setting what it is meant to be.
    fn set(&mut self, name: &str) {
        let written = self.written;
        self.put(name, written.to.get(name).map(String::as_str));
    }

    /// Whether the launch has a setting as it is meant, or lacks what is not meant.
    fn fits(&self, name: &str) -> bool {
        match (self.own.get(name), self.to(name)) {
            (Some(own), Some(to)) => alike(name, own, to),
            (own, to) => own.is_none() && to.is_none(),
        }
    }

    /// The launch's own words stay as long as the plans agree and none is refused.
    fn concept(&mut self, concept: &Concept, refused: bool) {
        let Concept { names, others, with, section } = *concept;
        if !refused && !names.iter().chain(with).any(|name| self.written.differs(name)) {
            return;
        }
        for name in others.iter().filter(|name| self.own.contains_key(**name)) {
            self.put(name, None);
        }
        for name in names {
            if !self.fits(name) {
                self.set(name);
            }
        }
        if let Some(section) = section.filter(|_| names.iter().all(|name| self.to(name).is_none())) {
            self.clear(section);
        }
    }

    /// Removes all of a section.
    fn clear(&mut self, section: &str) {
        for name in self.own.keys().filter(|name| name.starts_with(section)) {
            self.put(name, None);
        }
    }

    /// What the trainer fills in is changed where the trainer is told.
    fn filled(&mut self, (key, flag, usual): (&str, &str, &str)) {
        let spelt = |name: &&String| name.replace('-', "_") == flag.replace('-', "_");
        let name = self.own.keys().find(spelt).cloned();
        let left = self.own.get(key).is_some_and(|value| value == AUTO);
        let Some(to) = self.written.to.get(key).filter(|_| left || name.is_some()) else { return };
        let name = name.unwrap_or_else(|| flag.to_owned());
        if !alike(key, self.own.get(&name).map_or(usual, String::as_str), to) {
            self.put(&name, Some(to));
        }
    }

    /// Whether a flag of the Hugging Face trainer stands in for a key of the configuration.
    fn is_filled(&self, key: &str) -> bool {
        let flag = FILLED.iter().find(|(filled, _, _)| *filled == key).map(|(_, flag, _)| flag);
        flag.is_some_and(|flag| {
            self.after.keys().any(|name| name.replace('-', "_") == flag.replace('-', "_"))
        })
    }

    /// Recomputation of models that DeepSpeed's engine runs: by its own script's constant, by the trainer's flag, or by
    /// whatever makes the model ask for the section of the configuration.
    fn recomputed(&mut self) {
        let asks = |all: &Settings| all.keys().any(|name| name.starts_with(CHECKPOINTING));
        let (from, to) = (asks(&self.written.from), asks(&self.written.to));
        let flags = self.written.to.contains_key("--num-layers");
        if from == to || flags || self.own.contains_key(SCRIPT_RECOMPUTES) {
            return;
        }
        if to && FILLED.iter().any(|(key, _, _)| self.is_filled(key)) {
            self.put(TRAINER_RECOMPUTES, Some("True"));
        } else if to {
            let written = self.written;
            let keys = written.to.keys().filter(|name| name.starts_with(CHECKPOINTING));
            keys.for_each(|name| self.set(name));
        } else {
            self.clear(CHECKPOINTING);
            let spelt = |name: &&String| name.replace('-', "_") == TRAINER_RECOMPUTES.replace('-', "_");
            if let Some(name) = self.own.keys().find(spelt) {
                self.put(name, None);
            }
        }
    }

    /// What holds where a setting is not there.
    fn otherwise(&self, name: &str, otherwise: &Otherwise) -> Option<String> {
        let number = |name: &str| self.after.get(name).is_some_and(|value| value.parse::<u64>().is_ok());
        match otherwise {
            Off => None,
            Is(value) => Some((*value).to_owned()),
            As(other) => Some(self.after.get(*other).map_or("1", String::as_str).to_owned()),
            With(others) => {
                let stays = |other: &&str| self.own.contains_key(*other) && self.after.contains_key(*other);
                others.iter().any(stays).then(String::new)
            }
            Stage => Some((self.to("zero_optimization.stage") == Some("3")).to_string()),
            Batch if number("train_batch_size") && number("train_micro_batch_size_per_gpu") => {
                self.to(name).map(str::to_owned)
            }
            Batch => Some("1".to_owned()),
            Follows => self.to(name).map(str::to_owned),
        }
    }

    /// What does nothing in the launch as it will be.
    fn idle(&self, name: &str) -> bool {
        let one = |name: &str| self.after.get(name).is_none_or(|value| value == "1");
        match name {
            "--sequence-parallel" => one("--tensor-model-parallel-size"),
            "--cp-comm-type" => one("--context-parallel-size"),
            "zero_optimization.overlap_comm" => self.to("zero_optimization.stage") == Some("0"),
            // Muon's own sharding gathers as well.
            "--overlap-param-gather" => {
                self.own.get("--optimizer").is_some_and(|kind| kind == "dist_muon")
                    && self.to("--overlap-grad-reduce").is_some()
            }
            _ => false,
        }
    }

    fn deciding(&mut self, name: &str, otherwise: &Otherwise) {
        let own = self.own.get(name).filter(|value| *value != "null");
        // Keys of DeepSpeed stand in no launch of another framework.
        if own.is_some_and(|value| value == AUTO) || own.is_none() && self.is_filled(name) {
            return;
        }
        let usual = self.otherwise(name, otherwise);
        let usually = |value: &str| usual.as_ref().is_some_and(|usual| alike(name, usual, value));
        let holds = match (own, self.to(name)) {
            (None, to) => to.is_none_or(usually),
            (Some(own), Some(to)) => alike(name, own, to),
            (Some(own), None) => usually(own) || self.idle(name),
        };
        if !holds {
            self.set(name);
        }
    }

    /// Any number above 1 is as good as another; without the variable there are 8.
    fn connections(&mut self) {
        let one = |value: Option<&str>| value == Some("1");
        let own = self.own.get(CONNECTIONS).map(String::as_str);
        let Some(to) = self.to(CONNECTIONS) else { return };
        let many = |name: &str| self.to(name).is_some_and(|value| value != "1");
        let ordered = many("--tensor-model-parallel-size") || many("--context-parallel-size");
        if one(own) != one(Some(to)) && (ordered || !one(Some(to))) {
            self.set(CONNECTIONS);
        }
    }

    /// Whether the tables speak of a setting.
    fn known(name: &str) -> bool {
        let deciding = DECIDING.iter().any(|(known, _)| *known == name);
        let part = |concept: &Concept| concept.names.iter().chain(concept.others).any(|known| *known == name);
        deciding || name == CONNECTIONS || name.starts_with(CHECKPOINTING) || CONCEPTS.iter().any(part)
    }

    /// Everything else that the two plans say differently: sizes of buckets, modules, formats of checkpoints.
    fn rest(&mut self) {
        for name in self.written.names() {
            let elsewhere = name.starts_with(SCRIPT) && !self.own.contains_key(name);
            let filled = self.own.get(name).is_some_and(|value| value == AUTO);
            if !Self::known(name) && !elsewhere && !filled && self.written.differs(name) && !self.fits(name) {
                self.set(name);
            }
        }
    }

    fn beside(&mut self) {
        for (name, of) in BESIDE {
            let new = !self.own.contains_key(of) && self.after.contains_key(of);
            if new && self.to(name).is_some() && !self.after.contains_key(name) {
                self.set(name);
            }
        }
    }

    fn third_stage(&mut self) {
        let lower = self.to("zero_optimization.stage").is_some_and(|stage| stage != "3");
        for name in STAGE_THREE.iter().filter(|_| lower) {
            let set = self.after.get(*name).is_some_and(|value| !matches!(value.as_str(), "null" | "false"));
            if set {
                self.put(name, None);
            }
        }
    }

    /// The changes, sections of which nothing stays as one.
    fn folded(self) -> Vec<Change> {
        let Self { own, after, changes, .. } = self;
        let section_of = |change: &Change| {
            let (section, _) = change.name.rsplit_once('.').filter(|_| change.kind() == "key")?;
            let inside = |name: &String| name.strip_prefix(section).is_some_and(|rest| rest.starts_with('.'));
            let gone = !after.keys().any(inside) && own.keys().any(inside);
            gone.then(|| section.to_owned())
        };
        let mut told: Vec<Change> = Vec::new();
        for change in changes.into_values() {
            let change = match section_of(&change) {
                Some(name) => Change { name, from: Some(String::new()), to: None },
                None => change,
            };
            if !told.contains(&change) {
                told.push(change);
            }
        }
        told
    }
}

/// The keys of a JSON configuration by their paths.
#[must_use]
pub fn settings_of_json(text: &str) -> Settings {
    let mut all = Settings::new();
    if let Ok(value) = serde_json::from_str(&crate::spec::json::without_comments(text)) {
        keys(&value, "", &mut all);
    }
    all
}

/// Constants of a training script on which a plan depends, as this program names them.
#[must_use]
pub fn settings_of_script(text: &str) -> Settings {
    let mut all = Settings::new();
    for line in text.lines() {
        let set = line.split_once(" = ").map(|(name, value)| (format!("{SCRIPT}{name}"), value));
        if let Some((name, value)) = set.filter(|(name, _)| CONSTANTS.contains(&name.as_str())) {
            all.insert(name, value.trim().to_owned());
        } else if line.strip_prefix("    ") == Some(RECOMPUTES) {
            all.insert(format!("{SCRIPT}{RECOMPUTES}"), String::new());
        }
    }
    all
}

/// All settings of a plan as it is written.
fn settings_of(target: Target, request: &ExportRequest) -> Result<Settings, Refusal> {
    let request =
        ExportRequest { format: Format::Args, prediction: None, version: "", command: "", ..*request };
    let mut all = Settings::new();
    for file in write(Destination::Framework(target), &request)? {
        match file.name.as_str() {
            "hostfile" | "launch.sh" => {}
            "train.py" => all.extend(settings_of_script(&file.text)),
            name if name.ends_with(".py") => recipe(&file.text, &mut all),
            name if name.ends_with(".json") => all.extend(settings_of_json(&file.text)),
            _ => lines(&file.text, &mut all),
        }
    }
    Ok(all)
}

/// Values of a JSON file by their paths; what the file says about itself is left out.
fn keys(value: &serde_json::Value, path: &str, all: &mut Settings) {
    match value {
        serde_json::Value::Object(fields) => {
            for (name, value) in fields.iter().filter(|(name, _)| *name != "job_name") {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                keys(value, &path, all);
            }
        }
        other => {
            all.insert(path.to_owned(), other.to_string());
        }
    }
}

/// `--flag values`, `NAME=value`, `name: value`, one per line.
fn lines(text: &str, all: &mut Settings) {
    for line in text.lines().map(str::trim).filter(|l| !l.starts_with('#')) {
        let pair = if line.starts_with("--") {
            Some(line.split_once(' ').unwrap_or((line, "")))
        } else {
            ["=", ": "].iter().find_map(|mark| line.split_once(mark))
        };
        let Some((name, value)) = pair else { continue };
        // As the program gets it.
        let words = shlex::split(value.trim()).filter(|_| !line.contains(": "));
        let value = words.map_or_else(|| value.trim().to_owned(), |words| words.join(" "));
        all.insert(name.trim().to_owned(), value);
    }
}

/// Statements and keyword arguments of a recipe, one per line: an argument's name follows that of what the call is
/// assigned to.
fn recipe(text: &str, all: &mut Settings) {
    let mut calls: Vec<String> = Vec::new();
    for line in text.lines().map(str::trim).filter(|line| !line.starts_with('#')) {
        let variable = line.strip_prefix("os.environ.setdefault(").and_then(|rest| rest.strip_suffix(')'));
        if let Some((name, value)) = variable.and_then(|words| words.split_once(", ")) {
            all.insert(name.trim_matches('"').to_owned(), value.trim_matches('"').to_owned());
            continue;
        }
        let path = |name: &str| calls.iter().map(|call| format!("{call}.")).collect::<String>() + name;
        let pair = line.split_once(" = ").or_else(|| line.split_once('='));
        let pair = pair.map(|(name, value)| (name.trim(), value.trim()));
        if line.starts_with(')') || line.starts_with(']') {
            calls.pop();
        } else if line.ends_with(['(', '[']) {
            calls.push(pair.map_or(line, |(name, _)| name).to_owned());
        } else if let Some((name, value)) = pair {
            all.insert(path(name), value.trim_end_matches(',').to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_of_a_recipe_are_named_after_their_call() {
        let text = "os.environ.setdefault(\"A_B\", \"1\")\ncfg.model = m = Provider(\n    pipeline_dtype=torch.bfloat16,\n)\n\
                    cfg.train.micro_batch_size = 2\n";
        let mut all = Settings::new();
        recipe(text, &mut all);
        let pairs: Vec<_> = all.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let expected = [
            ("A_B", "1"),
            ("cfg.model.pipeline_dtype", "torch.bfloat16"),
            ("cfg.train.micro_batch_size", "2"),
        ];
        assert_eq!(pairs, expected);
    }
}
