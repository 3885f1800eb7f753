//! From a measured row to a job, a plan and a cost model: every field that a row does not state takes
//! the default of its framework's profile and, where it bears on the prediction, is listed as assumed; none is searched.

use std::collections::BTreeMap;
use std::str::FromStr;

use clap::ValueEnum;

use crate::cost::model::Adapted;
use crate::frameworks::profile::{Placement, Profile};
use crate::frameworks::{Context, Hardware, consistent};
use crate::layers::Layers;
use crate::plan::{
    Chunk, ContextComm, CudaGraphs, Dispatcher, Layout, Module, Modules, Offload, ParseRecomputeError, Place,
    Plan, Recompute, Schedule,
};
use crate::spec::Machine;
use crate::spec::cluster::{Accelerator, Architecture, Cluster};
use crate::spec::job::{
    ExpertCapacity, Job, LARGEST_JOB, LEAST_CAPACITY, MOST_CAPACITY, MOST_SEQUENCES, Optimizer,
    PackedLengths, Precision, Routing, Training,
};
use crate::spec::measured::{MeasuredRow, UnreadableCell, known_columns};
use crate::spec::model::{
    Activation, Attention, Block, Dense, Fault, FeedForward, LatentAttention, MOST_LAYERS, Mamba2, Mixer,
    Model, Moe, Mtp, Norm, Position, QkNorm, Router, RouterGroups, Segment,
};
use crate::spec::shipped::nearest;
use crate::spec::special::Special;
use crate::units::Bandwidth;

/// A measured run, ready to be predicted.
#[derive(Debug, Clone)]
pub struct Case {
    /// The row's id.
    pub id: String,
    /// What the row says about itself, for grouping.
    pub labels: Labels,
    /// Model.
    pub model: Model,
    /// Its layers.
    pub layers: Layers,
    /// Cluster, adapted to the row.
    pub cluster: Cluster,
    /// Accelerator.
    pub accelerator: Accelerator,
    /// Runtime profile.
    pub profile: &'static Profile,
    /// Job.
    pub job: Job,
    /// Plan.
    pub plan: Plan,
    /// Share of the layers all of whose activations go to host memory, where the plan offloads by layers.
    pub offloaded_layers: Option<f64>,
    /// The linear layers that have adapters, where adapters are trained.
    pub adapted: Adapted,
    /// Columns that bear on the prediction, or on what it is compared with, and that were filled from defaults, taken for
    /// something near, or are named by the row as what its source does not state.
    pub assumed: Vec<&'static str>,
    /// What was measured.
    pub measured: Measured,
}

/// Labels of a row.
#[derive(Debug, Clone, Default)]
pub struct Labels {
    /// Trust grade.
    pub quality: String,
    /// Framework family.
    pub framework: String,
    /// Name of the runtime profile.
    pub profile: &'static str,
    /// Name of the shipped accelerator; empty for one that does not ship.
    pub accelerator: &'static str,
    /// Its generation of silicon.
    pub architecture: Option<Architecture>,
    /// Source: the prefix of the id.
    pub source: String,
    /// What the source is called.
    pub published: String,
    /// The first of the sources that are one publication with it (see [`super::publications`]).
    pub publication: String,
    /// Accelerator as the row names it.
    pub gpu: String,
    /// Model as the row names it.
    pub model: String,
    /// Whether the model has routed experts.
    pub experts: bool,
    /// How tokens are routed, as the row says: `balanced`, `natural` or `unstated`; empty without experts.
    pub routing: &'static str,
    /// What is trained: `pretrain`, `sft`, `lora`.
    pub training: &'static str,
    /// The same run under another id.
    pub same_as: Vec<String>,
    /// Runs with the same key differ only in their plan.
    pub group: String,
    /// GPUs.
    pub gpus: u32,
    /// Tokens of a sequence.
    pub sequence_length: u32,
    /// Pipeline stages.
    pub pipeline_parallel: u32,
    /// Tensor parallelism leaves the fast domain.
    pub crossing: bool,
    /// What is special about the run.
    pub special: Vec<Special>,
    /// Year and month of the software's release.
    pub release: Option<(u32, u32)>,
    /// Year and month that the software is no newer than: of its release, else of the paper that tells of it.
    pub era: Option<(u32, u32)>,
}

/// What was measured.
#[derive(Debug, Clone, Copy, Default)]
pub struct Measured {
    /// Seconds of one step.
    pub step_s: Option<f64>,
    /// Peak memory in bytes.
    pub memory: Option<f64>,
    /// What it counts.
    pub memory_kind: MemoryKind,
    /// Whether the run ran out of memory; none where the row does not bear on it.
    pub out_of_memory: Option<bool>,
}

/// What a memory reading counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MemoryKind {
    /// Tensors.
    #[default]
    Allocated,
    /// What the allocator reserves.
    Reserved,
    /// What `nvidia-smi` shows.
    Device,
}

impl MemoryKind {
    /// The count of this kind: tensors, reserved, on the device.
    #[must_use]
    pub fn of(self, [allocated, reserved, device]: [f64; 3]) -> f64 {
        match self {
            Self::Allocated => allocated,
            Self::Reserved => reserved,
            Self::Device => device,
        }
    }
}

/// Why a row was not predicted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Skip {
    /// A cell that prediction needs is empty.
    #[error("{0} is not stated")]
    Missing(&'static str),
    /// A cell cannot be read.
    #[error(transparent)]
    Cell(#[from] UnreadableCell),
    /// Text without a meaning here.
    #[error("{what} `{text}` is not known{} (one of {})", guess(.text, .choices), .choices.join(", "))]
    Unknown {
        /// Which column.
        what: &'static str,
        /// Its text.
        text: String,
        /// What it takes.
        choices: Vec<&'static str>,
    },
    /// A number beyond what is accepted.
    #[error("{what} is {found}; at most {most} is accepted")]
    TooLarge {
        /// Which column, or what follows from several.
        what: &'static str,
        /// The number.
        found: u64,
        /// The largest that is accepted.
        most: u32,
    },
    /// Stated fields contradict each other.
    #[error("{0}")]
    Contradiction(String),
    /// Something the model does not cover.
    #[error("{0}")]
    Unsupported(&'static str),
}

/// A message without what differs from row to row: numbers, and what is quoted from the first quote to the last.
#[must_use]
pub fn without_particulars(message: &str) -> String {
    let mut message = message.to_owned();
    if let Some((first, last)) =
        message.find('`').zip(message.rfind('`')).filter(|(first, last)| first < last)
    {
        message.replace_range(first + 1..last, "…");
    }
    let mut plain = String::with_capacity(message.len());
    for c in message.chars() {
        match c {
            '0'..='9' if plain.ends_with('N') => {}
            '0'..='9' => plain.push('N'),
            c => plain.push(c),
        }
    }
    plain
}

/// The nearest of the choices, as a question; nothing where none is near.
fn guess(text: &str, choices: &[&str]) -> String {
    nearest(text, choices.iter().copied())
        .first()
        .map_or_else(String::new, |near| format!("; did you mean {near}?"))
}

impl Skip {
    /// The kind of fault: the reason without the texts and numbers of the row, so that rows with the same fault have the
    /// same one.
    #[must_use]
    pub fn kind(&self) -> String {
        match self {
            Self::Cell(cell) => format!("{} cannot be read; expected {}", cell.column, cell.expected),
            Self::Unknown { what, .. } => format!("{what} is not known"),
            Self::TooLarge { what, most, .. } => format!("{what} is more than {most}"),
            Self::Contradiction(text) => without_particulars(text),
            Self::Missing(_) | Self::Unsupported(_) => self.to_string(),
        }
    }
    fn unknown(what: &'static str, text: &str, choices: impl IntoIterator<Item = &'static str>) -> Self {
        let text = text.chars().take(40).collect();
        Self::Unknown { what, text, choices: choices.into_iter().collect() }
    }
    fn of_fault(fault: Fault) -> Self {
        Self::Contradiction(format!("{}: {}", fault.field, fault.message))
    }
}

/// Shipped clusters and accelerators, read once.
#[derive(Debug)]
pub struct Shelf {
    clusters: BTreeMap<&'static str, Cluster>,
    accelerators: BTreeMap<&'static str, Accelerator>,
}

impl Shelf {
    /// Reads what ships.
    #[must_use]
    pub fn shipped() -> Self {
        use crate::spec::{ron_options, shipped};
        Self {
            clusters: shipped::clusters()
                .into_iter()
                .filter_map(|s| Some((s.name, ron_options().from_str(s.text).ok()?)))
                .collect(),
            accelerators: shipped::accelerators()
                .into_iter()
                .filter_map(|s| Some((s.name, ron_options().from_str(s.text).ok()?)))
                .collect(),
        }
    }

    /// What a machine's accelerator is called in measured tables: its names in [`GPUS`] if it ships, its own name
    /// and that of its file. A shipped one is known by its name wherever its file lies.
    fn called<'m>(&self, machine: &'m Machine) -> Vec<&'m str> {
        let file = machine.cluster.accelerator.rsplit(['/', '\\']).next().unwrap_or_default();
        let own = [machine.accelerator.name.as_str(), file.strip_suffix(".ron").unwrap_or(file)];
        let ships = |accelerator: &str| {
            own[1] == accelerator
                || self.accelerators.get(accelerator).is_some_and(|shipped| shipped.name == own[0])
        };
        let mut names = Vec::new();
        for &(name, accelerator, _) in GPUS.iter().filter(|(_, accelerator, _)| ships(accelerator)) {
            names.extend([name, accelerator]);
        }
        names.extend(own.into_iter().filter(|name| !names.contains(name)).collect::<Vec<_>>());
        names
    }
}

/// Names of accelerators in measured tables, with the shipped accelerator and cluster they mean.
const GPUS: &[(&str, &str, &str)] = &[
    ("A100-SXM-80GB", "a100-80gb", "dgx-a100"),
    ("A100-SXM-40GB", "a100-40gb", "dgx-a100-40gb"),
    ("A800", "a800", "a800-ib"),
    ("H100-SXM-80GB", "h100-sxm", "dgx-h100"),
    ("H100-HBM2E-96GB-500W", "h100-hbm2e-500w", "dgx-h100"),
    ("H100-PCIE", "h100-pcie", "l40s-pcie"),
    ("H800", "h800", "h800-ib"),
    ("H20", "h20", "dgx-h100"),
    ("H200", "h200", "dgx-h200"),
    ("B200", "b200", "dgx-b200"),
    ("B300", "b300", "dgx-b300"),
    ("GB200", "gb200", "gb200-nvl72"),
    ("GB300", "gb300", "gb300-nvl72"),
    ("L40S", "l40s", "l40s-pcie"),
    ("MI300X", "mi300x", "mi300x-roce"),
    ("MI325X", "mi325x", "mi325x-roce"),
    ("MI355X", "mi355x", "mi355x-roce"),
];

/// Other spellings of those names: without the form factor or the memory that only one of the kind has, and as data
/// sheets write them.
const OTHER_GPUS: &[(&str, &str)] = &[
    ("A100", "A100-SXM-80GB"),
    ("A100-SXM", "A100-SXM-80GB"),
    ("A100-80GB", "A100-SXM-80GB"),
    ("A100-40GB", "A100-SXM-40GB"),
    ("A800-80GB", "A800"),
    ("A800-SXM", "A800"),
    ("A800-SXM-80GB", "A800"),
    ("H100", "H100-SXM-80GB"),
    ("H100-80GB", "H100-SXM-80GB"),
    ("H100-SXM", "H100-SXM-80GB"),
    ("H100-PCIE-80GB", "H100-PCIE"),
    ("H800-80GB", "H800"),
    ("H800-SXM", "H800"),
    ("H800-SXM-80GB", "H800"),
    ("H200-SXM", "H200"),
    ("H200-141GB", "H200"),
    ("H200-SXM-141GB", "H200"),
    ("H20-96GB", "H20"),
    ("H20-SXM-96GB", "H20"),
    ("B200-SXM", "B200"),
    ("B200-180GB", "B200"),
    ("B200-SXM-180GB", "B200"),
    ("B300-SXM", "B300"),
    ("L40S-48GB", "L40S"),
    ("L40S-PCIE", "L40S"),
    ("MI300X-192GB", "MI300X"),
    ("MI325X-256GB", "MI325X"),
    ("MI355X-288GB", "MI355X"),
];

/// Spellings that leave open which of several parts is meant; the first of [`OTHER_GPUS`] is taken, and the column is
/// listed as assumed.
const UNSURE_GPUS: [&str; 7] = ["A100", "A100-SXM", "A100-80GB", "A100-40GB", "A800", "H100", "H100-80GB"];

/// A spelling without makers, generations of a socket (`SXM5`) and separators.
fn plain_gpu(text: &str) -> String {
    let upper = text.trim().to_ascii_uppercase();
    let words = upper.split(|c: char| c == '-' || c == '_' || c.is_whitespace());
    let words: Vec<&str> = words
        .filter(|word| {
            let said = ["", "NVIDIA", "AMD", "INSTINCT", "TENSOR", "CORE", "OAM", "HBM3", "HBM3E"];
            !said.contains(word)
        })
        .map(|word| if matches!(word, "SXM4" | "SXM5" | "SXM6") { "SXM" } else { word })
        .collect();
    words.join("-")
}

/// The name in [`GPUS`] that a text means: makers, generations of a socket (`SXM5`) and separators do not matter.
fn gpu_name(text: &str) -> Option<&'static (&'static str, &'static str, &'static str)> {
    let name = plain_gpu(text);
    let name = OTHER_GPUS.iter().find(|(other, _)| *other == name).map_or(name.as_str(), |(_, usual)| usual);
    GPUS.iter().find(|(known, accelerator, _)| {
        known.eq_ignore_ascii_case(name) || accelerator.eq_ignore_ascii_case(text.trim())
    })
}

/// Most passes of chunks, over all ranks and micro-batches, of an interleaved schedule that is simulated: each
/// is remembered until the end of the step.
const MOST_PASSES: u32 = 1 << 22;

/// A number that was checked before anything is counted or allocated by it.
fn at_most(what: &'static str, found: u64, most: u32) -> Result<u32, Skip> {
    u32::try_from(found).ok().filter(|n| *n <= most).ok_or(Skip::TooLarge { what, found, most })
}

/// Reads cells and notes what had to be assumed.
struct Cells<'r> {
    row: &'r MeasuredRow,
    assumed: Vec<&'static str>,
}

impl Cells<'_> {
    /// A number above 0, if the row states one.
    fn stated<T: FromStr + TryFrom<u64> + Default + PartialEq>(
        &self,
        column: &'static str,
    ) -> Result<Option<T>, Skip> {
        match self.row.whole(column)? {
            Some(number) if number == T::default() => Err(Skip::Contradiction(format!("{column} is 0"))),
            number => Ok(number),
        }
    }
    fn need(&self, column: &'static str) -> Result<u64, Skip> {
        self.stated(column)?.ok_or(Skip::Missing(column))
    }
    /// A number from 1 to `most` that the row has to state.
    fn size(&self, column: &'static str, most: u32) -> Result<u32, Skip> {
        at_most(column, self.need(column)?, most)
    }
    /// A number from 0 to `most`, or `default` where the row states none.
    fn count(&self, column: &'static str, default: u32, most: u32) -> Result<u32, Skip> {
        self.row.whole(column)?.map_or(Ok(default), |found| at_most(column, found, most))
    }
    fn or(&mut self, column: &'static str, default: u64) -> Result<u64, Skip> {
        match self.row.whole(column)? {
            Some(number) => Ok(number),
            None => {
                self.assumed.push(column);
                Ok(default)
            }
        }
    }
    fn degree(&mut self, column: &'static str, default: u64) -> Result<u32, Skip> {
        let number = self.or(column, default)?;
        match u32::try_from(number) {
            Ok(number) if number > 0 => Ok(number),
            _ => Err(Skip::Contradiction(format!("{column} is {number}"))),
        }
    }
    /// Notes what nothing else does of the columns that bear on the run: those with a default that the row leaves empty,
    /// and those that it names as not stated by its source.
    fn unstated(&mut self, bears: impl Fn(&str) -> bool) {
        let row = self.row;
        let empty =
            DEFAULTED.into_iter().filter(|column| row.text(column).is_none() || *column == "framework");
        let inferred = row.text_or_empty("inferred").split_whitespace();
        let inferred = inferred.filter_map(|word| known_columns().find(|column| *column == word));
        for column in empty.chain(inferred) {
            if bears(column) && !self.assumed.contains(&column) {
                self.assumed.push(column);
            }
        }
    }
    fn flag(&mut self, column: &'static str, default: bool) -> Result<bool, Skip> {
        Ok(self.row.flag(column)?.unwrap_or_else(|| {
            self.assumed.push(column);
            default
        }))
    }
}

/// What an assumption is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subject {
    /// Sizes of the model, and what of it is trained.
    Model,
    /// Degrees, schedule, sharding, micro-batch, recomputation, number format.
    Plan,
    /// GPUs, nodes and network.
    Machine,
    /// What the framework does at run time: overlap, kernels, graphs, dispatcher, routing, its release.
    Runtime,
    /// What a reading of memory counts.
    Reading,
}

impl Subject {
    /// What a column is about.
    #[must_use]
    pub fn of(column: &str) -> Self {
        match column {
            "tp" | "sp" | "pp" | "vpp" | "cp" | "ep" | "etp" | "dp" | "zero_stage" | "shard_group"
            | "micro_batch" | "global_batch" | "seq_len" | "packed" | "recompute" | "precision"
            | "pp_schedule" | "pp_layout" | "offload" => Self::Plan,
            "gpu" | "gpus" | "gpus_per_node" | "nvlink_domain" | "nic_gbps_per_gpu" | "interconnect" => {
                Self::Machine
            }
            "framework_family" | "framework" | "attn_kernel" | "compiled" | "dispatcher" | "cuda_graphs"
            | "tp_overlap" | "dp_overlap" | "ep_overlap" | "cp_comm_type" | "moe_routing" | "token_drop"
            | "expert_capacity" | "overlap_notes" => Self::Runtime,
            "mem_kind" | "mem_unit" | "peak_mem_gb" | "step_time_s" | "tokens_per_s_per_gpu" => Self::Reading,
            _ => Self::Model,
        }
    }
}

/// Columns, and what `overlap_notes` and `framework` say, whose absence stands for a default that is not noted where they
/// are read. Columns of what a run need not have (experts, latent attention, windows, hybrid layers, prediction of further
/// tokens, offload, a smaller group to shard among) are not among them: without them it has none.
const DEFAULTED: [&str; 24] = [
    "training",
    "lora_target",
    "head_dim",
    "shared_expert_ffn",
    "first_k_dense",
    "moe_every",
    "mla_q_lora",
    "mla_qk_nope",
    "mla_qk_rope",
    "mla_v_dim",
    "ssm_state",
    "gpus_per_node",
    "nvlink_domain",
    "pp_schedule",
    "pp_layout",
    "cp_comm_type",
    "dp_overlap",
    "moe_routing",
    "token_drop",
    "attn_kernel",
    "compiled",
    "framework",
    "mem_kind",
    "mem_unit",
];

/// What the text of a cell means; none where it is empty.
fn choice<T: Copy>(
    row: &MeasuredRow,
    column: &'static str,
    choices: &[(&'static str, T)],
) -> Result<Option<T>, Skip> {
    let Some(text) = row.text(column) else { return Ok(None) };
    match choices.iter().find(|(name, _)| name.eq_ignore_ascii_case(text)) {
        Some(&(_, meaning)) => Ok(Some(meaning)),
        None => Err(Skip::unknown(column, text, choices.iter().map(|(name, _)| *name))),
    }
}

/// Families of frameworks that are not named like a runtime profile.
const FAMILIES: [&str; 4] = ["megatron-bridge", "megatron-core", "megatron-lm", "flash-attn"];

/// Other names of frameworks, and of what is built on them and runs alike.
const OTHER_FAMILIES: &[(&str, &str)] = &[
    ("aleph-alpha-scaling", "aa-scaling"),
    ("automodel", "nemo-automodel"),
    ("composer", "llm-foundry"),
    ("mosaic", "llm-foundry"),
    ("mosaicml", "llm-foundry"),
    ("fms-fsdp", "pytorch-fsdp"),
    ("fsdp", "pytorch-fsdp"),
    ("fsdp1", "pytorch-fsdp"),
    ("fsdp2", "pytorch-fsdp"),
    ("pytorch", "pytorch-fsdp"),
    ("internlm", "internevo"),
    ("maxtext", "jax"),
    ("rosetta", "jax"),
    ("bridge", "megatron-bridge"),
    ("mbridge", "megatron-bridge"),
    ("megatron", "megatron-core"),
    ("mcore", "megatron-core"),
    // AMD's Primus and its fork of Megatron-LM run Megatron-Core.
    ("primus", "megatron-core"),
    ("primus-megatron", "megatron-core"),
    ("primus-torchtitan", "torchtitan"),
    ("nemo-framework", "nemo"),
    ("nemo-2.0", "nemo"),
    ("nemo2", "nemo"),
    ("deepspeed-zero", "deepspeed"),
    ("torchtitan-fsdp2", "torchtitan"),
];

/// Frameworks without a profile of their own, and the one whose runs are nearest to theirs: taken for it, and listed as
/// assumed.
const STAND_INS: &[(&str, &str)] = &[
    ("axolotl", "accelerate"),
    ("torchtune", "pytorch-fsdp"),
    ("transformers", "accelerate"),
    ("paxml", "jax"),
    // Eager PyTorch with sharded states, as DeepSpeed's.
    ("colossal-ai", "deepspeed"),
    ("colossalai", "deepspeed"),
];

/// The framework family of a row as it states it, in one spelling.
fn stated_family(row: &MeasuredRow) -> String {
    row.text_or_empty("framework_family").to_ascii_lowercase().replace(['_', ' '], "-")
}

/// The framework family of a row by its usual name; that of its stand-in where it has one.
fn family(row: &MeasuredRow) -> String {
    let stated = stated_family(row);
    let others = OTHER_FAMILIES.iter().chain(STAND_INS);
    let usual = others.into_iter().find(|(other, _)| *other == stated).map(|(_, usual)| *usual);
    usual.map_or(stated, str::to_owned)
}

/// Whether a row's framework is taken for another.
fn stands_in(row: &MeasuredRow) -> bool {
    let stated = stated_family(row);
    STAND_INS.iter().any(|(other, _)| *other == stated)
}

/// The runtime profile of a row.
fn profile_name(row: &MeasuredRow, architecture: Architecture) -> Result<&'static str, Skip> {
    let families = || FAMILIES.into_iter().chain(Profile::names());
    let stated = row.text("framework_family").ok_or(Skip::Missing("framework_family"))?;
    let unfused = row.text("attn_kernel") == Some("unfused");
    let stage = row.text("zero_stage");
    Ok(match family(row).as_str() {
        "nemo" | "megatron-bridge" => "nemo",
        "megatron-core" => "megatron",
        "megatron-lm" => {
            let old =
                unfused || architecture == Architecture::Ampere && row.text("precision") == Some("fp16");
            if old { "megatron-2021" } else { "megatron" }
        }
        "megatron-deepspeed" => match stage {
            Some("3") => "megatron-deepspeed-zero3",
            Some(_) if unfused => "megatron-deepspeed-bloom",
            _ => "megatron-deepspeed-ddp",
        },
        "aa-scaling" if row.text_or_empty("attn_kernel").contains("rms") => "aa-scaling-rms",
        "torchtitan" if row.flag("compiled")? == Some(false) => "torchtitan-eager",
        "flash-attn" => "pytorch-fsdp",
        other => Profile::names()
            .find(|name| *name == other)
            .ok_or_else(|| Skip::unknown("framework_family", stated, families()))?,
    })
}

/// `24.07`, `25.11` and the like: year and month of a software release; `202412` and `2025-06` in names of files, too.
fn release(row: &MeasuredRow) -> Option<(u32, u32)> {
    ["framework", "source_where"].into_iter().find_map(|column| {
        let text = row.text(column)?;
        let dated = text.split('_').find_map(|word| {
            let digits: String = word.split('-').collect();
            let (year, month) = (digits.get(..4)?.parse().ok()?, digits.get(4..)?.parse().ok()?);
            (digits.len() == 6 && (2020..2040).contains(&year) && (1..=12).contains(&month))
                .then_some((year, month))
        });
        if dated.is_some() {
            return dated;
        }
        text.split(|c: char| !(c.is_ascii_digit() || c == '.')).find_map(|word| {
            let mut parts = word.split('.');
            let (year, month) = (parts.next()?, parts.next()?);
            if year.len() != 2 || month.len() != 2 {
                return None;
            }
            let (year, month): (u32, u32) = (year.parse().ok()?, month.parse().ok()?);
            ((20..40).contains(&year) && (1..=12).contains(&month)).then_some((2000 + year, month))
        })
    })
}

/// Year and month of the paper that a row is from, by its arXiv number: `2411.05288`.
fn of_paper(row: &MeasuredRow) -> Option<(u32, u32)> {
    let (_, number) = row.text("source")?.split_once("arXiv ")?;
    let (year, month): (u32, u32) = (number.get(..2)?.parse().ok()?, number.get(2..4)?.parse().ok()?);
    (number.get(4..5) == Some(".") && (1..=12).contains(&month)).then_some((2000 + year, month))
}

impl Case {
    /// Factor on predicted times for the stated release of the software, 1 where none is stated.
    #[must_use]
    pub fn release_factor(&self, profile: &Profile) -> f64 {
        let low = !matches!(self.job.precision, Precision::Bf16 | Precision::Fp16);
        let architecture = self.accelerator.architecture;
        self.labels.release.map_or(1.0, |release| profile.release_factor(architecture, low, release))
    }

    /// Reads a row of a run on a shipped cluster.
    ///
    /// # Errors
    /// The reason why it cannot be predicted.
    pub fn read(row: &MeasuredRow, shelf: &Shelf) -> Result<Self, Skip> {
        let gpu = row.text("gpu").ok_or(Skip::Missing("gpu"))?;
        let unknown_gpu = || Skip::unknown("gpu", gpu, GPUS.iter().map(|(name, ..)| *name));
        let (_, accelerator_name, cluster_name) = gpu_name(gpu).ok_or_else(unknown_gpu)?;
        let accelerator = shelf.accelerators.get(accelerator_name).ok_or_else(unknown_gpu)?.clone();
        let efa = row.text_or_empty("interconnect").contains("EFA");
        let cluster_name = if efa && *cluster_name == "dgx-h100" { "h100-efa" } else { cluster_name };
        let cluster = shelf.clusters.get(cluster_name).ok_or_else(unknown_gpu)?.clone();
        Self::read_with(row, Machine { cluster, accelerator }, accelerator_name)
    }

    /// Reads a row of a run on `machine`, which is as its files say, whatever the row says of nodes and network.
    ///
    /// # Errors
    /// The reason why it cannot be predicted; a run on another accelerator.
    pub fn read_on(row: &MeasuredRow, machine: &Machine, shelf: &Shelf) -> Result<Self, Skip> {
        let gpu = row.text("gpu").ok_or(Skip::Missing("gpu"))?;
        let called = shelf.called(machine);
        let usual = gpu_name(gpu).map_or(gpu, |(name, ..)| name);
        if !called.iter().any(|name| name.eq_ignore_ascii_case(gpu) || *name == usual) {
            let gpu: String = gpu.chars().take(40).collect();
            return Err(Skip::Contradiction(format!(
                "gpu `{gpu}` is not the accelerator of {} ({})",
                machine.cluster.name,
                called.join(", ")
            )));
        }
        let shipped = GPUS.iter().find(|(name, ..)| called.contains(name));
        let case =
            Self::read_with(row, machine.clone(), shipped.map_or("", |(_, accelerator, _)| accelerator))?;
        let mut assumed = case.assumed;
        assumed.retain(|column| Subject::of(column) != Subject::Machine || *column == "gpu");
        Ok(Self { cluster: machine.cluster.clone(), assumed, ..case })
    }

    fn read_with(row: &MeasuredRow, machine: Machine, accelerator_name: &'static str) -> Result<Self, Skip> {
        let Machine { mut cluster, accelerator } = machine;
        let mut cells = Cells { row, assumed: Vec::new() };
        let id = row.text("id").map_or_else(|| format!("line {}", row.line()), str::to_owned);
        let gpu = row.text_or_empty("gpu");
        if UNSURE_GPUS.contains(&plain_gpu(gpu).as_str()) && !accelerator_name.eq_ignore_ascii_case(gpu) {
            cells.assumed.push("gpu");
        }
        if stands_in(row) {
            cells.assumed.push("framework_family");
        }
        adapt_cluster(&mut cells, &mut cluster)?;

        let profile_name = profile_name(row, accelerator.architecture)?;
        let profile = Profile::find(profile_name)
            .ok_or_else(|| Skip::unknown("framework_family", profile_name, Profile::names()))?;
        let model = read_model(&mut cells, profile)?;
        model.validate().map_err(Skip::of_fault)?;
        let layers = Layers::new(&model);
        let job = read_job(&mut cells, profile, &accelerator)?;
        let plan = read_plan(&mut cells, profile, &accelerator, &model, &layers, &job, &cluster)?;

        let offloaded_layers = offloaded_layers(row, layers.count());
        let targets = [("all", Adapted::AllLinear), ("qkv", Adapted::QueryKeyValue)];
        let adapted = choice(row, "lora_target", &targets)?.unwrap_or_default();

        let training = row.text_or_empty("training").to_ascii_lowercase();
        let version = release(row).map_or_else(String::new, |(year, month)| format!("{year}.{month:02}"));
        let source = row.text("id").map_or("", source_of);
        let gpu = gpu_name(gpu).map_or(gpu, |(name, ..)| name);
        let group = [
            source,
            profile_name,
            &version,
            row.text_or_empty("model"),
            gpu,
            row.text_or_empty("gpus"),
            read_precision(row)?.map_or("", Precision::name),
            row.text_or_empty("seq_len"),
            row.text_or_empty("global_batch"),
            &training,
        ]
        .join("|");
        let experts = row.text("experts").is_some_and(|n| n != "0");
        let crossing = plan.layout().tensor_parallel > cluster.scale_up.domain;
        let mut special = Special::of(&job, &cluster, crossing);
        // What a job does not say: documents may be tuned on unpacked, and rows be coarse.
        if training == "sft" && !special.contains(&Special::FineTuning) {
            special.push(Special::FineTuning);
        }
        if row.text("quality") == Some("C") {
            special.push(Special::Coarse);
        }
        let labels = Labels {
            quality: row.text_or_empty("quality").to_owned(),
            framework: family(row),
            profile: profile_name,
            accelerator: accelerator_name,
            architecture: Some(accelerator.architecture),
            source: source.to_owned(),
            published: row.text_or_empty("source").to_owned(),
            publication: source.to_owned(),
            gpu: gpu.to_owned(),
            model: row.text_or_empty("model").to_owned(),
            experts,
            routing: match (experts, row.text("moe_routing")) {
                (false, _) => "",
                (true, Some("forced")) => "balanced",
                (true, Some(_)) => "natural",
                (true, None) => "unstated",
            },
            training: match training.as_str() {
                "lora" => "lora",
                "sft" => "sft",
                _ => "pretrain",
            },
            same_as: row.text_or_empty("same_run_as").split_whitespace().map(str::to_owned).collect(),
            group,
            gpus: job.gpus,
            sequence_length: job.sequence_length,
            pipeline_parallel: plan.layout().pipeline_parallel,
            crossing,
            special,
            release: release(row),
            era: release(row).or_else(|| of_paper(row)),
        };
        let measured = read_measured(row)?;
        let has_releases = !profile.releases.is_empty();
        let bears = |column: &str| {
            let any = |has: fn(&Block) -> bool| model.blocks.values().any(has);
            let layout = plan.layout();
            match column {
                // It follows from the other degrees.
                "dp" => false,
                "sp" | "tp_overlap" => layout.tensor_parallel > 1,
                "vpp" | "pp_schedule" | "pp_layout" => layout.pipeline_parallel > 1,
                "cp_comm_type" => layout.context_parallel > 1 && !states_context_comm(row),
                "shard_group" => layout.zero_stage > 0,
                "dp_overlap" => layout.data_parallel * layout.context_parallel > 1,
                "gpus_per_node" => job.gpus > 1,
                // Elsewhere the domain is the node.
                "nvlink_domain" => job.gpus > 1 && cluster.scale_up.domain != cluster.gpus_per_node,
                "nic_gbps_per_gpu" => job.gpus > cluster.scale_up.domain,
                "head_dim" => any(|block| matches!(block.mixer, Mixer::Attention(_))),
                "mla_q_lora" | "mla_qk_nope" | "mla_qk_rope" | "mla_v_dim" => {
                    any(|block| matches!(block.mixer, Mixer::Latent(_)))
                }
                "ssm_state" => any(|block| matches!(block.mixer, Mixer::Mamba2(_))),
                "ep" | "etp" | "experts" | "topk" | "moe_ffn" | "shared_expert_ffn" | "first_k_dense"
                | "moe_every" | "moe_routing" | "token_drop" | "expert_capacity" | "ep_overlap" => experts,
                "lora_rank" | "lora_target" => matches!(job.training, Training::Lora { .. }),
                "mem_kind" | "mem_unit" => measured.memory.is_some(),
                // Where they choose the profile.
                "attn_kernel" => {
                    ["megatron-lm", "megatron-deepspeed", "aa-scaling"].contains(&labels.framework.as_str())
                }
                "compiled" => labels.framework == "torchtitan",
                "framework" => labels.release.is_none() && has_releases,
                _ => true,
            }
        };
        cells.unstated(bears);
        Ok(Self {
            id,
            labels,
            model,
            layers,
            cluster,
            accelerator,
            profile,
            job,
            plan,
            offloaded_layers,
            adapted,
            assumed: cells.assumed,
            measured,
        })
    }
}

/// The source that an id names: what stands before its first dash, or before the number of its row.
pub(super) fn source_of(id: &str) -> &str {
    let (source, _) = id.split_once('-').unwrap_or((id, ""));
    if source.len() < id.len() { source } else { id.trim_end_matches(|c: char| c.is_ascii_digit()) }
}

/// What leaves the GPU: activations, with or without a number of layers, the optimizer, parameters.
fn read_offload(row: &MeasuredRow) -> Result<Offload, Skip> {
    let Some(text) = row.text("offload") else { return Ok(Offload::NONE) };
    let mut offload = Offload::NONE;
    let lower = text.to_ascii_lowercase();
    let words = lower.split(|c: char| !c.is_ascii_alphabetic()).filter(|word| !word.is_empty());
    for word in words {
        match word {
            "activations" | "activation" => offload.activations = true,
            "optimizer" | "optimiser" => offload.optimizer = Place::Cpu,
            "parameters" | "params" | "weights" => offload.parameters = Place::Cpu,
            "none" | "no" | "cpu" | "and" | "of" | "layers" | "fine" | "grained" => {}
            _ => {
                return Err(Skip::unknown(
                    "offload",
                    text,
                    ["activations", "activations of N layers", "optimizer", "parameters"],
                ));
            }
        }
    }
    Ok(offload)
}

/// `activations of 40 layers`: the share of the layers whose activations are offloaded whole.
fn offloaded_layers(row: &MeasuredRow, layers: u32) -> Option<f64> {
    let text = row.text("offload").filter(|text| text.contains("activations"))?;
    let number: u32 = text.split_whitespace().find_map(|word| word.parse().ok())?;
    Some(f64::from(number.min(layers)) / f64::from(layers.max(1)))
}

/// Shortest and longest step that a run can have, in seconds: a nanosecond and a year.
const STEP_TIMES: (f64, f64) = (1e-9, 31_557_600.0);

/// The step time that tokens a second say, where none is stated; not where the row's notes call the run doubtful.
fn step_of_throughput(row: &MeasuredRow) -> Result<Option<f64>, Skip> {
    let doubtful = ["SUSPECT", "LOW"].iter().any(|word| row.text_or_empty("notes").starts_with(word));
    let Some(rate) = row.positive("tokens_per_s_per_gpu")?.filter(|_| !doubtful) else { return Ok(None) };
    let whole = |column| row.whole::<u32>(column).map(|number| number.map(f64::from));
    let (Some(batch), Some(length), Some(gpus)) = (whole("global_batch")?, whole("seq_len")?, whole("gpus")?)
    else {
        return Ok(None);
    };
    let (shortest, longest) = STEP_TIMES;
    Ok(Some(batch * length / gpus / rate).filter(|step| (shortest..=longest).contains(step)))
}

fn read_measured(row: &MeasuredRow) -> Result<Measured, Skip> {
    let (shortest, longest) = STEP_TIMES;
    let step_s = match row.between("step_time_s", shortest, longest)? {
        None => step_of_throughput(row)?,
        stated => stated,
    };
    let unit = choice(row, "mem_unit", &[("GB", 1e9), ("GiB", 1_073_741_824.0)])?.unwrap_or(1e9);
    // From a kilobyte to a petabyte.
    let memory = row.between("peak_mem_gb", 1e-6, 1e6)?.map(|x| x * unit);
    let kinds = [
        ("max_allocated", MemoryKind::Allocated),
        ("max_reserved", MemoryKind::Reserved),
        ("nvidia-smi", MemoryKind::Device),
    ];
    let memory_kind = choice(row, "mem_kind", &kinds)?.unwrap_or_default();
    // Not compared, but what is no number there says that the columns are not what they seem.
    for column in ["tokens_per_s_per_gpu", "tflops_per_gpu", "mfu_pct", "hfu_pct"] {
        row.positive(column)?;
    }
    let failed = row.flag("oom")? == Some(true);
    if failed && step_s.is_some() {
        return Err(Skip::Contradiction("oom is 1, but step_time_s is stated".into()));
    }
    let ran = step_s.is_some() || memory.is_some();
    let out_of_memory = if failed { Some(true) } else { ran.then_some(false) };
    Ok(Measured { step_s, memory: memory.filter(|_| !failed), memory_kind, out_of_memory })
}

fn adapt_cluster(cells: &mut Cells, cluster: &mut Cluster) -> Result<(), Skip> {
    let gpus = cells.need("gpus")?;
    if let Some(stated) = cells.stated::<u32>("gpus_per_node")? {
        if stated != cluster.gpus_per_node {
            cluster.scale_out.nics_per_node =
                cluster.scale_out.nics_per_node.saturating_mul(stated).div_ceil(cluster.gpus_per_node).max(1);
            if cluster.scale_up.domain == cluster.gpus_per_node {
                cluster.scale_up.domain = stated;
            }
        }
        cluster.gpus_per_node = stated;
    }
    if let Some(domain) = cells.stated::<u32>("nvlink_domain")?
        && domain != cluster.scale_up.domain
    {
        cluster.scale_up.domain = domain;
        cluster.scale_up.allocation = None;
    }
    match cells.row.positive("nic_gbps_per_gpu")? {
        Some(rate) => {
            cluster.scale_out.nic = Bandwidth(rate * 1e9 / 8.0);
            cluster.scale_out.nics_per_node = cluster.gpus_per_node;
        }
        None if gpus > u64::from(cluster.scale_up.domain) => cells.assumed.push("nic_gbps_per_gpu"),
        None => {}
    }
    cluster.validate().map_err(Skip::of_fault)
}

/// Other names of number formats: of their scaling in Transformer Engine, and in full.
const OTHER_PRECISIONS: &[(&str, Precision)] = &[
    ("bfloat16", Precision::Bf16),
    ("float16", Precision::Fp16),
    ("fp8-cs", Precision::Fp8),
    ("fp8-ds", Precision::Fp8),
    ("fp8-delayed", Precision::Fp8),
    ("fp8-current", Precision::Fp8),
    ("fp8-hybrid", Precision::Fp8),
    ("fp8-tensorwise", Precision::Fp8),
    ("fp8-rowwise", Precision::Fp8),
    ("fp8-sc", Precision::Fp8Blockwise),
    ("fp8-block", Precision::Fp8Blockwise),
    ("fp8-subchannel", Precision::Fp8Blockwise),
    ("fp8-mx", Precision::Mxfp8),
    ("fp4", Precision::Nvfp4),
];

/// The number format, if the row states one.
fn read_precision(row: &MeasuredRow) -> Result<Option<Precision>, Skip> {
    let Some(text) = row.text("precision") else { return Ok(None) };
    let name = text.to_ascii_lowercase().replace(['_', ' '], "-");
    let usual = || Precision::value_variants().iter().map(|p| (p.name(), *p));
    let known = usual().chain(OTHER_PRECISIONS.iter().copied()).find(|(known, _)| *known == name);
    known
        .map(|(_, precision)| Some(precision))
        .ok_or_else(|| Skip::unknown("precision", text, usual().map(|p| p.0)))
}

fn read_job(cells: &mut Cells, profile: &Profile, accelerator: &Accelerator) -> Result<Job, Skip> {
    let row = cells.row;
    let gpus = cells.size("gpus", LARGEST_JOB)?;
    let global_batch_size = cells.size("global_batch", MOST_SEQUENCES)?;
    let sequence_length = cells.size("seq_len", MOST_SEQUENCES)?;
    let stated = read_precision(row)?;
    // Scales for every row are as fast as one for all, and unlike both in what they cost to find.
    if stated.is_none() || row.text("precision").is_some_and(|text| text.to_ascii_lowercase().contains("row"))
    {
        cells.assumed.push("precision");
    }
    let stated = stated.unwrap_or(profile.defaults.precision);
    let has = |precision: Precision| accelerator.rates.contains_key(&precision.format());
    let precision = match stated {
        // Blackwell emulates the one with the other (TransformerEngine: transformer_engine/common/transpose/
        // quantize_transpose_vector_blockwise.cu).
        Precision::Fp8Blockwise if !has(stated) && has(Precision::Mxfp8) => Precision::Mxfp8,
        _ => stated,
    };
    if !has(precision) {
        return Err(Skip::Contradiction(format!(
            "{} has no {} matrix products",
            accelerator.name,
            precision.name()
        )));
    }
    let rank = cells.stated("lora_rank")?;
    let adapters = Training::Lora { rank: at_most("lora_rank", rank.unwrap_or(16), 65_536)? };
    let trainings = [("pretrain", Training::Full), ("sft", Training::Full), ("lora", adapters)];
    let training = choice(row, "training", &trainings)?.unwrap_or(Training::Full);
    if training == adapters && rank.is_none() {
        cells.assumed.push("lora_rank");
    }
    let optimizers = Optimizer::value_variants().iter().map(|optimizer| (optimizer.name(), *optimizer));
    let optimizers: Vec<_> = optimizers.chain([("adam", Optimizer::Adamw)]).collect();
    let optimizer = choice(row, "optimizer", &optimizers)?.unwrap_or(Optimizer::Adamw);
    let routings = [("forced", Routing::Balanced), ("natural", Routing::Natural)];
    let routing = choice(row, "moe_routing", &routings)?.unwrap_or(Routing::Balanced);
    let packed = read_packed(cells, profile)?;
    let expert_capacity = read_capacity(cells, profile)?;
    Ok(Job {
        gpus,
        global_batch_size,
        sequence_length,
        precision,
        optimizer,
        training,
        memory_limit: None,
        tokens: None,
        routing,
        packed,
        expert_capacity,
    })
}

/// Most tokens that an expert takes, where tokens are dropped. How many that are is what the framework's recipes set, unless
/// the row says.
fn read_capacity(cells: &mut Cells, profile: &Profile) -> Result<Option<ExpertCapacity>, Skip> {
    let stated = cells.row.between("expert_capacity", LEAST_CAPACITY, MOST_CAPACITY)?;
    if stated.is_none() && cells.row.flag("token_drop")? != Some(true) {
        return Ok(None);
    }
    let usual = profile.defaults.token_drop;
    Ok(Some(match stated {
        Some(factor) => ExpertCapacity { factor, ..usual },
        None => {
            cells.assumed.push("expert_capacity");
            usual
        }
    }))
}

/// The documents that are packed into the sequences. Where the row does not say: none in pretraining, and in fine-tuning
/// what the framework's recipes pack.
fn read_packed(cells: &mut Cells, profile: &Profile) -> Result<Option<PackedLengths>, Skip> {
    let row = cells.row;
    match row.text("packed") {
        Some(text) if text.eq_ignore_ascii_case("none") => Ok(None),
        Some(text) => {
            let packed: PackedLengths =
                text.parse().map_err(|_| Skip::unknown("packed", text, ["none", "LENGTHxCOUNT,..."]))?;
            packed.validate().map_err(Skip::Contradiction)?;
            Ok(Some(packed))
        }
        None if row.text("training").is_none_or(|text| text.eq_ignore_ascii_case("pretrain")) => Ok(None),
        None => {
            cells.assumed.push("packed");
            let usual = profile.defaults.fine_tuning_documents.get(&family(row));
            Ok(usual.map(|&length| PackedLengths { lengths: vec![(length, 1)] }))
        }
    }
}

fn read_model(cells: &mut Cells, profile: &Profile) -> Result<Model, Skip> {
    let row = cells.row;
    let notes = row.text_or_empty("arch_notes").to_ascii_lowercase();
    let hidden = cells.need("hidden")?;
    let count = cells.size("layers", MOST_LAYERS)?;
    let heads = cells.need("heads")?;
    let kv_heads = cells.or("kv_heads", heads)?;
    let head_dim = row.whole("head_dim")?.unwrap_or(hidden / heads.max(1));
    let sequence = u64::from(cells.size("seq_len", MOST_SEQUENCES)?);
    let vocabulary = match (row.whole("vocab")?, row.whole("vocab_assumed")?) {
        (Some(n), _) => n,
        (None, padded) => {
            cells.assumed.push("vocab");
            padded.unwrap_or(51_200)
        }
    };
    let relu = notes.contains("squared-relu") || notes.contains("squared relu");
    let plain = notes.contains("gelu") || notes.contains("gpt");
    let gated = match row.flag("gated_mlp")? {
        Some(gated) => gated,
        None => {
            cells.assumed.push("gated_mlp");
            !(plain || relu)
        }
    };
    let activation = match (gated, relu) {
        (true, _) => Activation::SwiGlu,
        (false, true) => Activation::SquaredRelu,
        (false, false) => Activation::Gelu,
    };
    let old = !gated && !relu;
    let experts: Option<u64> = row.whole("experts")?.filter(|&n| n > 0);
    let first_dense = cells.count("first_k_dense", 0, count)?;
    let moe_every = cells.count("moe_every", 1, count)?.max(1);
    // Some layers have no experts.
    let mixed = first_dense > 0 || moe_every > 1;
    let ffn = match (row.whole::<u64>("ffn_hidden")?, experts) {
        (Some(n), _) => n,
        // Only layers without experts have one.
        (None, Some(_)) if !mixed => 4 * hidden,
        (None, _) => {
            cells.assumed.push("ffn_hidden");
            if gated { (8 * hidden / 3).next_multiple_of(256) } else { 4 * hidden }
        }
    };
    let latent = match row.whole::<u64>("mla_kv_lora")? {
        Some(kv_lora_rank) if kv_lora_rank > 0 => Some(LatentAttention {
            heads,
            q_lora_rank: row.whole("mla_q_lora")?.filter(|&n: &u64| n > 0),
            kv_lora_rank,
            qk_nope_dim: row.whole("mla_qk_nope")?.unwrap_or(128),
            qk_rope_dim: row.whole("mla_qk_rope")?.unwrap_or(64),
            v_dim: row.whole("mla_v_dim")?.unwrap_or(128),
            bias: false,
        }),
        _ => None,
    };
    let sinks = notes.contains("sink");
    let attention = |window: Option<u64>| match &latent {
        Some(latent) => Mixer::Latent(latent.clone()),
        None => Mixer::Attention(Attention {
            heads,
            kv_heads,
            head_dim,
            qkv_bias: old || notes.contains("qkv bias") || sinks,
            output_bias: old || sinks,
            qk_norm: if notes.contains("qk-norm") { QkNorm::PerHeadDim } else { QkNorm::None },
            sinks,
            window,
            chunk: None,
        }),
    };
    let dense = FeedForward::Dense(Dense { width: ffn, activation, bias: old });
    let moe = match experts {
        Some(experts) => {
            let top_k = cells.need("topk")?;
            // Where every layer has experts, tables call their width that of the feed-forward part.
            let width = match cells.stated("moe_ffn")? {
                Some(width) => width,
                None if mixed || row.text("ffn_hidden").is_none() => return Err(Skip::Missing("moe_ffn")),
                None => {
                    cells.assumed.push("moe_ffn");
                    ffn
                }
            };
            // Published routing facts of the DeepSeek-V3 family: 8 groups of which 4 are visited.
            let limited = latent.is_some() && experts == 256;
            Some(FeedForward::Moe(Moe {
                experts,
                top_k,
                width,
                activation,
                expert_bias: sinks,
                shared_width: row.whole("shared_expert_ffn")?.unwrap_or(0),
                shared_gate: false,
                latent_width: None,
                router: Router {
                    bias: sinks,
                    balancing_bias: latent.is_some(),
                    groups: limited.then_some(RouterGroups { count: 8, top_k: 4 }),
                    ..Router::default()
                },
            }))
        }
        None => None,
    };
    let block = |mixer, feed_forward| Block { mixer, feed_forward, norms: 2, parallel: false };
    let mut blocks = BTreeMap::new();
    let mut layers: Vec<Segment> = Vec::new();
    let mut order: Vec<&str> = Vec::new();
    if let Some(hybrid) = row.text("hybrid_layers") {
        order = hybrid_order(hybrid, count)?;
        // Where feed-forward parts are layers of their own, every layer is one operator under one norm (Nemotron-H);
        // otherwise each has a mixer and a feed-forward part (Qwen3-Next).
        let alone = order.iter().any(|kind| matches!(*kind, "mlp" | "moe"));
        let routed = || moe.clone().ok_or(Skip::Missing("experts"));
        let beside = match &moe {
            _ if alone => FeedForward::None,
            Some(experts) => experts.clone(),
            // Pure state-space models have none.
            None if row.text("ffn_hidden").is_none() => FeedForward::None,
            None => dense.clone(),
        };
        let norms = if alone { 1 } else { 2 };
        let one = |mixer, feed_forward| Block { mixer, feed_forward, norms, parallel: false };
        for &kind in &order {
            if blocks.contains_key(kind) {
                continue;
            }
            let block = match kind {
                "mlp" => one(Mixer::None, dense.clone()),
                "moe" => one(Mixer::None, routed()?),
                "mamba2" => one(Mixer::Mamba2(mamba2(row, hidden)?), beside.clone()),
                "gated_delta_net" => one(Mixer::Mamba2(gated_delta_net(row, hidden)?), beside.clone()),
                _ => one(attention(None), beside.clone()),
            };
            blocks.insert(kind.to_owned(), block);
        }
    } else {
        let window: Option<u64> = row.whole("attn_window")?.filter(|&n| n > 0);
        let window_every = cells.count("attn_window_every", 1, count)?.max(1);
        for layer in 0..count {
            let windowed = window.is_some() && layer % window_every == 0;
            let routed = moe.is_some() && layer >= first_dense && (layer + 1) % moe_every == 0;
            order.push(match (routed, windowed) {
                (true, true) => "moe_window",
                (true, false) => "moe",
                (false, true) => "dense_window",
                (false, false) => "dense",
            });
        }
        for &name in &order {
            if blocks.contains_key(name) {
                continue;
            }
            let mixer = attention(if name.ends_with("window") { window } else { None });
            let feed_forward = if name.starts_with("moe") { moe.clone() } else { Some(dense.clone()) };
            blocks.insert(name.to_owned(), block(mixer, feed_forward.unwrap_or_default()));
        }
    }
    for name in &order {
        match layers.last_mut() {
            Some(segment) if segment.of[0] == *name => segment.repeat += 1,
            _ => layers.push(Segment { repeat: 1, of: vec![(*name).to_owned()] }),
        }
    }
    let modules: Option<u32> = row.whole("mtp_layers")?.filter(|&n| n > 0);
    let mtp = modules.and_then(|modules| Some(Mtp { modules, block: (*order.last()?).to_owned() }));
    Ok(Model {
        schema: crate::spec::model::SCHEMA,
        name: row.text("model").unwrap_or("unnamed").to_owned(),
        hidden,
        vocabulary,
        vocabulary_divisor: 128,
        tied_embeddings: cells.flag("tied_embeddings", old)?,
        position: if old { Position::Learned(sequence) } else { Position::Rotary },
        norm: if gated { Norm::RmsNorm } else { Norm::LayerNorm },
        norm_epsilon: None,
        embedding_norm: false,
        final_norm: true,
        head_bias: false,
        embedding_width: None,
        max_sequence: sequence,
        dropout: old && profile.defaults.dropout,
        unstated: Vec::new(),
        blocks,
        layers,
        mtp,
    })
}

/// Mamba-2 with the sizes that rows do not state as Nemotron-H has them: an inner width of twice the hidden size, heads
/// of 64, 8 groups.
fn mamba2(row: &MeasuredRow, hidden: u64) -> Result<Mamba2, Skip> {
    let heads = (2 * hidden / 64).max(1);
    Ok(Mamba2 {
        inner: 64 * heads,
        state: row.whole("ssm_state")?.filter(|&n| n > 0).unwrap_or(128),
        // Groups hold whole heads.
        groups: [8, 4, 2].into_iter().find(|groups| heads % groups == 0).unwrap_or(1),
        heads,
        conv_kernel: 4,
        bias: false,
        conv_bias: true,
    })
}

/// A gated delta rule has the projections, convolution and gated norm of Mamba-2, with a key and a query head per group and
/// a value head per head, and one gate more per head, a thousandth of its weights. Its chunked kernels move the same inputs
/// and chunk states. Sizes are Qwen3-Next's: values of twice the hidden size, keys as wide as it, heads of 128.
fn gated_delta_net(row: &MeasuredRow, hidden: u64) -> Result<Mamba2, Skip> {
    let state: u64 = row.whole("ssm_state")?.filter(|&n| n > 0).unwrap_or(128);
    let groups = (hidden / state).max(1);
    Ok(Mamba2 {
        inner: 2 * groups * state,
        state,
        groups,
        heads: 2 * groups,
        conv_kernel: 4,
        bias: false,
        conv_bias: false,
    })
}

/// `attention:10 mlp:54 mamba2:54`: spreads the kinds evenly over the depth.
fn hybrid_order(text: &str, count: u32) -> Result<Vec<&'static str>, Skip> {
    let unknown = || {
        let text: String = text.chars().take(60).collect();
        Skip::Contradiction(format!(
            "hybrid_layers is `{text}`; expected every kind once, such as attention:4 mlp:28 mamba2:28"
        ))
    };
    let mut counts: Vec<(&str, u32)> = Vec::new();
    for part in text.split_whitespace() {
        let (name, number) = part.split_once(':').ok_or_else(unknown)?;
        let name = match name {
            "attention" => "attention",
            "mlp" => "mlp",
            "moe" => "moe",
            "mamba" | "mamba2" => "mamba2",
            "gated_delta_net" | "gdn" => "gated_delta_net",
            _ => return Err(Skip::Unsupported("a kind of hybrid layer is not supported")),
        };
        if counts.iter().any(|(known, _)| *known == name) {
            return Err(unknown());
        }
        counts.push((name, number.parse().map_err(|_| unknown())?));
    }
    if counts.iter().map(|(_, n)| u64::from(*n)).sum::<u64>() != u64::from(count) {
        return Err(Skip::Contradiction(format!("hybrid_layers `{text}` do not sum to {count} layers")));
    }
    // Largest remainder first: the kind that lags most behind its share comes next.
    let mut placed = vec![0u32; counts.len()];
    let mut order = Vec::with_capacity(count as usize);
    for at in 1..=count {
        let lag = |k: usize| f64::from(counts[k].1) * f64::from(at) / f64::from(count) - f64::from(placed[k]);
        let next = (0..counts.len()).max_by(|&a, &b| lag(a).total_cmp(&lag(b))).ok_or_else(unknown)?;
        placed[next] += 1;
        order.push(counts[next].0);
    }
    Ok(order)
}

fn read_plan(
    cells: &mut Cells,
    profile: &Profile,
    accelerator: &Accelerator,
    model: &Model,
    layers: &Layers,
    job: &Job,
    cluster: &Cluster,
) -> Result<Plan, Skip> {
    let (row, architecture) = (cells.row, accelerator.architecture);
    let defaults = &profile.defaults;
    // A single degree that is not stated follows from the others.
    let [tp, pp, cp, dp] =
        [cells.stated("tp")?, cells.stated("pp")?, cells.stated("cp")?, cells.stated::<u32>("dp")?];
    let left = |others: [Option<u32>; 3]| {
        let product: u128 = others.iter().map(|n| u128::from(n.unwrap_or(1))).product();
        u128::from(job.gpus).checked_div(product).filter(|n| n * product == u128::from(job.gpus))
    };
    let follows = |others: [Option<u32>; 3]| left(others).map_or(1, |n| n as u64);
    let (of_tensor, of_stages) = match (tp, pp, dp) {
        (None, Some(_), Some(_)) => (follows([pp, cp, dp]), 1),
        (Some(_), None, Some(_)) => (1, follows([tp, cp, dp])),
        _ => (1, 1),
    };
    let (tp, pp) = (cells.degree("tp", of_tensor)?, cells.degree("pp", of_stages)?);
    let cp = cells.degree("cp", if dp.is_some() { follows([Some(tp), Some(pp), dp]) } else { 1 })?;
    let per_rank = layers.count().div_ceil(pp);
    let stated = if pp > 1 { read_schedule(row)? } else { None };
    let usual = match defaults.layers_per_chunk {
        // Schedules whose chunks are fixed.
        _ if matches!(stated, Some(Schedule::ZeroBubbleV | Schedule::DualPipe)) => 2,
        _ if stated.is_some_and(|schedule| schedule != Schedule::Interleaved) => 1,
        // Layers that do not fill the stages evenly are laid out by hand, one chunk per stage.
        Some(_) if layers.count() % pp != 0 && (layers.count() + 2) % pp != 0 => 1,
        Some(each) => (1..=per_rank).rev().find(|v| per_rank % v == 0 && per_rank / v >= each).unwrap_or(1),
        None if stated == Some(Schedule::Interleaved) => 2,
        None => 1,
    };
    let vpp = if pp > 1 { cells.degree("vpp", u64::from(usual))? } else { cells.stated("vpp")?.unwrap_or(1) };
    let schedule = match stated {
        // One forward, one backward is what interleaved schedules do too.
        None | Some(Schedule::OneFOneB | Schedule::Interleaved) if vpp > 1 => Schedule::Interleaved,
        None | Some(Schedule::Interleaved) => Schedule::OneFOneB,
        Some(schedule) => schedule,
    };
    // Tables call a V of two chunks per rank one stage.
    let fixed = match schedule {
        Schedule::ZeroBubbleV | Schedule::DualPipe => Some(2),
        Schedule::GPipe | Schedule::ZeroBubbleH1 | Schedule::ZeroBubbleH2 => Some(1),
        Schedule::OneFOneB | Schedule::Interleaved => None,
    };
    let vpp = match fixed {
        Some(chunks) if vpp == 1 || vpp == chunks => chunks,
        Some(chunks) => {
            return Err(Skip::Contradiction(format!(
                "vpp is {vpp}, but the stated schedule has {chunks} per rank"
            )));
        }
        None => vpp,
    };
    let slots = u64::from(pp) * u64::from(vpp);
    if slots > u64::from(layers.count()) + 2 {
        return Err(Skip::Contradiction(format!("{slots} chunks for {} layers", layers.count())));
    }
    let experts = model.blocks.values().any(|b| matches!(b.feed_forward, FeedForward::Moe(_)));
    let (ep, etp) = if experts {
        // Unstated expert parallelism: as wide as the fast domain, as far as experts and ranks allow.
        // Where weights are sharded anyway, experts spread over all ranks: gathering them costs more.
        let reach = if defaults.zero_stage >= 3 { job.gpus } else { cluster.scale_up.domain };
        let split = cells.stated::<u32>("etp")?.unwrap_or(1).max(1);
        let widest = model.blocks.values().find_map(|b| match &b.feed_forward {
            FeedForward::Moe(e) => (1..=reach.min(job.gpus / pp.max(1))).rev().find(|&n| {
                e.experts % u64::from(n) == 0
                    && u64::from(job.gpus / pp) % (u64::from(n) * u64::from(split)) == 0
            }),
            _ => None,
        });
        let ep = cells.degree("ep", u64::from(widest.unwrap_or(1)))?;
        // Megatron-Core splits experts as it splits dense layers unless told otherwise; recipes with
        // many small experts do not split them.
        let coarse = model
            .blocks
            .values()
            .any(|b| matches!(&b.feed_forward, FeedForward::Moe(e) if e.width * 2 >= model.hidden * 3 && e.width % u64::from(tp) == 0));
        let alike = coarse && u64::from(job.gpus / pp) % (u64::from(ep) * u64::from(tp)) == 0;
        (ep, cells.degree("etp", if alike { u64::from(tp) } else { 1 })?)
    } else {
        // Where the row states experts, other columns say that no layer has them.
        let none = row.whole::<u64>("experts")?.is_none_or(|n| n == 0);
        (cells.stated("ep")?.filter(|_| none).unwrap_or(1), 1)
    };
    let product: u128 = [tp, pp, cp].map(u128::from).into_iter().product();
    if u128::from(job.gpus) % product != 0 {
        return Err(Skip::Contradiction(format!(
            "tp {tp} x pp {pp} x cp {cp} does not divide {} gpus",
            job.gpus
        )));
    }
    let dp = (u128::from(job.gpus) / product) as u32;
    if let Some(stated) = cells.stated::<u32>("dp")?.filter(|&n| n != dp) {
        return Err(Skip::Contradiction(format!("dp is {stated}, but the other degrees leave {dp}")));
    }
    // Without a stated micro-batch: one sequence, or the replica's share over as many micro-batches as
    // the pipeline has stages.
    let local_batch = u64::from(job.global_batch_size / dp.max(1));
    let usual = match defaults.micro_batches_fill_stages {
        true => (local_batch / slots).max(1),
        false => 1,
    };
    let micro_batch = cells.degree("micro_batch", usual)?;
    let per_step = u64::from(dp) * u64::from(micro_batch);
    if u64::from(job.global_batch_size) % per_step != 0 {
        return Err(Skip::Contradiction(format!(
            "micro-batch {micro_batch} x dp {dp} does not divide a global batch of {}",
            job.global_batch_size
        )));
    }
    let accumulation = (u64::from(job.global_batch_size) / per_step) as u32;
    // Chunks that nobody stated are none where there are too few micro-batches for them.
    let (vpp, schedule) = match schedule {
        Schedule::Interleaved
            if accumulation < pp && row.text("vpp").is_none() && stated != Some(Schedule::Interleaved) =>
        {
            (1, Schedule::OneFOneB)
        }
        _ => (vpp, schedule),
    };
    let slots = u64::from(pp) * u64::from(vpp);
    if vpp > 1 || !matches!(schedule, Schedule::OneFOneB | Schedule::GPipe) {
        at_most("the number of passes", slots * u64::from(accumulation), MOST_PASSES)?;
    }
    let ranks = dp * cp;
    let zero_stage = match row.whole::<u8>("zero_stage")? {
        Some(stage) if stage <= 3 => stage,
        Some(stage) => return Err(Skip::Contradiction(format!("zero_stage is {stage}"))),
        None => {
            cells.assumed.push("zero_stage");
            defaults.zero_stage
        }
    };
    let shard_group = cells.stated::<u32>("shard_group")?.unwrap_or(ranks);
    if ranks % shard_group != 0 {
        return Err(Skip::Contradiction(format!(
            "shard_group {shard_group} does not divide the {ranks} ranks of dp {dp} x cp {cp}"
        )));
    }
    let notes = row.text_or_empty("overlap_notes").to_ascii_lowercase();
    let tokens = job.sequence_length / cp;
    let sequence_parallel = tp > 1 && cells.flag("sp", defaults.sequence_parallel && tokens % tp == 0)?;
    let tensor_overlap = tp > 1 && sequence_parallel && cells.flag("tp_overlap", defaults.tensor_overlap)?;
    let data_overlap = row.flag("dp_overlap")?.unwrap_or(true);
    let recomputes = row.text("recompute").is_some_and(|text| text != "none");
    let expert_ranks = u64::from(ep) * u64::from(etp);
    let across = expert_ranks > u64::from(cluster.scale_up.domain);
    let drops = job.expert_capacity.is_some();
    let pads = job.expert_capacity.is_some_and(|capacity| capacity.padded);
    let recipe = defaults.experts.iter().find(|r| {
        experts
            && r.on == architecture
            && r.precision.is_none_or(|p| p == job.precision)
            && release(row).is_some_and(|at| at >= r.since)
            && !drops
    });
    let limited = model
        .blocks
        .values()
        .any(|b| matches!(&b.feed_forward, FeedForward::Moe(e) if e.router.groups.is_some()));
    let shares =
        model.blocks.values().any(|b| matches!(&b.feed_forward, FeedForward::Moe(e) if e.shared_width > 0));
    let dispatcher = experts.then(|| {
        // Padded experts are reached by the plain exchange alone (assertion of `apply_moe_token_drop`, see the profile's
        // `token_drop`), whatever recipes without capacity name.
        let plain = notes.contains("alltoall") || notes.contains("dispatcher_backend=none");
        if pads {
            if !plain {
                cells.assumed.push("dispatcher");
            }
            Dispatcher::AllToAll
        } else if notes.contains("deepep") {
            Dispatcher::DeepEp
        } else if notes.contains("hybridep") {
            Dispatcher::HybridEp
        } else if plain {
            Dispatcher::AllToAll
        } else if let [only] = profile.rules.capabilities().dispatchers {
            *only
        } else {
            cells.assumed.push("dispatcher");
            // Domains of many nodes run HybridEP in the published recipes, single-node domains NCCL.
            let library = limited && recipe.is_some_and(|r| r.library_where_limited);
            if library && across && architecture == Architecture::Hopper {
                Dispatcher::DeepEp
            } else if cluster.scale_up.domain > 8 || library && architecture == Architecture::Blackwell {
                Dispatcher::HybridEp
            } else {
                Dispatcher::AllToAll
            }
        }
    });
    let stated_graphs = if notes.contains("full_iteration") {
        Some(CudaGraphs::FullIteration)
    } else if notes.contains("moe_router") {
        let whole = limited && recipe.is_some_and(|r| r.whole_for_named_scopes_where_limited);
        if whole {
            cells.assumed.push("cuda_graphs");
        }
        Some(if whole { CudaGraphs::FullIteration } else { CudaGraphs::AttentionRouter })
    } else if notes.contains("cuda_graph_impl='transformer_engine'") {
        Some(CudaGraphs::Attention)
    } else {
        row.flag("cuda_graphs")?.map(|on| if on { CudaGraphs::Attention } else { CudaGraphs::None })
    };
    let cuda_graphs = stated_graphs.unwrap_or_else(|| {
        cells.assumed.push("cuda_graphs");
        match recipe {
            Some(r) if r.full_iteration_graphs && !recomputes => CudaGraphs::FullIteration,
            _ => CudaGraphs::None,
        }
    });
    let expert_overlap = experts
        && expert_ranks > 1
        && if notes.contains("overlap_moe_expert_parallel_comm=true") || notes.contains("a2a_overlap=1") {
            true
        } else if notes.contains("a2a_overlap=0") {
            false
        } else {
            row.flag("ep_overlap")?.unwrap_or_else(|| {
                cells.assumed.push("ep_overlap");
                defaults.expert_overlap
                    || recipe.is_some_and(|r| {
                        r.overlap_across_domains && across
                            || r.full_iteration_graphs && cuda_graphs == CudaGraphs::FullIteration
                    })
            })
        };
    let offload = read_offload(row)?;
    let context_comm = context_comm(&notes)?;
    let layout = Layout {
        tensor_parallel: tp,
        pipeline_parallel: pp,
        virtual_stages: vpp,
        context_parallel: cp,
        expert_parallel: ep,
        expert_tensor_parallel: etp,
        data_parallel: dp,
        sequence_parallel,
        micro_batch_size: micro_batch,
        gradient_accumulation_steps: accumulation,
        zero_stage,
        shard_group: if zero_stage > 0 { shard_group } else { 1 },
        schedule,
        context_comm,
        dispatcher,
        tensor_overlap,
        data_overlap,
        expert_overlap,
        shared_overlap: notes.contains("moe_shared_expert_overlap=true")
            && shares
            && expert_ranks > 1
            && !expert_overlap
            && dispatcher != Some(Dispatcher::AllGather),
        mtp_standalone: false,
        cuda_graphs,
        offload,
    };
    let mut context = Context::new(model, layers, job, Hardware::of(cluster, accelerator));
    if cells.assumed.contains(&"ffn_hidden") {
        // What nobody stated contradicts nothing.
        context.dense.clear();
    }
    consistent(&context, &layout).map_err(Skip::Contradiction)?;
    let recompute = match row.text("recompute") {
        Some(text) => read_recompute(text, profile)?,
        None => {
            cells.assumed.push("recompute");
            if defaults.full_recompute { Recompute::FullUniform(1) } else { Recompute::None }
        }
    };
    let counts = place(row, profile, model, layers, pp, vpp)?;
    let chunks = counts.into_iter().map(|layers| Chunk { layers, recompute }).collect();
    Plan::new(layout, chunks, job.gpus, job.global_batch_size, layers.count())
        .map_err(|law| Skip::Contradiction(law.to_string()))
}

/// The pipeline schedule, if the row states one, by the names that Megatron-LM, torchtitan, DeepSpeed and Primus give it.
fn read_schedule(row: &MeasuredRow) -> Result<Option<Schedule>, Skip> {
    let Some(text) = row.text("pp_schedule") else { return Ok(None) };
    if text.to_ascii_lowercase().contains("vocab") {
        return Err(Skip::Unsupported(
            "a vocabulary that is split over all pipeline stages is not supported",
        ));
    }
    let name: String = text.to_ascii_lowercase().chars().filter(char::is_ascii_alphanumeric).collect();
    let has = |words: &[&str]| words.iter().any(|word| name.contains(word));
    let unlike = ["dualpipev", "interleavedzerobubble", "interleavedzb", "loopedbfs", "hanayo", "chimera"];
    Ok(if has(&unlike) {
        return Err(Skip::Unsupported("a pipeline schedule is not supported"));
    } else if has(&["noninterleaved", "novirtual"]) {
        Some(Schedule::OneFOneB)
    } else if has(&["vhalf", "vmin"]) {
        return Err(Skip::Unsupported("pipeline schedules of half and least memory are not supported"));
    } else if has(&["dualpipe"]) {
        Some(Schedule::DualPipe)
    } else if has(&["zbv", "zerobubblev"]) {
        Some(Schedule::ZeroBubbleV)
    } else if has(&["interleaved", "virtual"]) {
        Some(Schedule::Interleaved)
    } else if has(&["zbh2", "zerobubbleh2", "zb2p"]) {
        Some(Schedule::ZeroBubbleH2)
    } else if has(&["zb", "zerobubble"]) {
        Some(Schedule::ZeroBubbleH1)
    } else if has(&["gpipe", "afab", "allforward"]) {
        Some(Schedule::GPipe)
    } else if has(&["1f1b"]) {
        Some(Schedule::OneFOneB)
    } else if matches!(name.as_str(), "none" | "na" | "") {
        None
    } else {
        return Err(Skip::unknown(
            "pp_schedule",
            text,
            ["1F1B", "interleaved 1F1B", "GPipe", "ZB-H1", "ZB-H2", "ZBV"],
        ));
    })
}

/// Whether a row says how attention crosses context-parallel ranks.
fn states_context_comm(row: &MeasuredRow) -> bool {
    let notes = row.text_or_empty("overlap_notes").to_ascii_lowercase();
    let rings = ["cp p2p", "p2p cp", "ring", "cp_comm_type=p2p", "cp_comm_type='p2p'"];
    rings.iter().any(|word| notes.contains(word))
        || context_comm(&notes).is_ok_and(|comm| comm != ContextComm::Ring)
}

/// How attention crosses context-parallel ranks, by what is noted of it: a ring unless said otherwise.
fn context_comm(notes: &str) -> Result<ContextComm, Skip> {
    // Not what is said to be missing.
    let has = |words: &[&str]| {
        words.iter().any(|word| {
            notes.match_indices(word).any(|(at, _)| {
                let before = notes[..at].trim_end();
                !["no", "not", "without"].iter().any(|no| before.split_whitespace().next_back() == Some(no))
            })
        })
    };
    if has(&["a2a+p2p"]) {
        return Err(Skip::Unsupported("context parallelism of two levels is not supported"));
    }
    Ok(if has(&["ulysses", "cp a2a", "a2a cp", "a2a-cp", "cp_comm_type=a2a", "cp_comm_type='a2a'"]) {
        ContextComm::AllToAll
    } else if has(&["cp all-gather", "all-gather cp", "cp_comm_type=all_gather", "cp_comm_type='all_gather'"])
    {
        ContextComm::AllGather
    } else {
        ContextComm::Ring
    })
}

/// XLA's rematerialisation policies, as MaxText names them (src/maxtext/layers/nnx_decoders.py, `get_remat_policy`), by
/// what they do not save: what attention gives (`context`), products of the feed-forward part, and always what is cheap.
fn rematerialisation(policy: &str) -> Result<Recompute, Skip> {
    use Module::{CoreAttention, LayerNorm, Mlp};
    const POLICIES: [(&str, &[Module]); 9] = [
        ("minimal", &[CoreAttention, LayerNorm]),
        ("minimal_with_quantization", &[CoreAttention, LayerNorm]),
        ("minimal_with_context", &[LayerNorm]),
        ("minimal_flash", &[LayerNorm]),
        ("minimal_with_context_and_quantization", &[LayerNorm]),
        ("save_dot_with_context_except_mlp", &[Mlp, LayerNorm]),
        ("save_dot_except_mlp", &[CoreAttention, Mlp, LayerNorm]),
        // The last product is saved, which the backward pass does not need.
        ("save_dot_except_mlpwi", &[CoreAttention, Mlp, LayerNorm]),
        ("save_qkv_proj", &[CoreAttention, Mlp, LayerNorm]),
    ];
    match policy {
        "none" | "save_everything" => return Ok(Recompute::None),
        // One product is saved, which the backward pass does not need.
        "full" | "save_nothing" | "save_out_proj" => return Ok(Recompute::FullUniform(1)),
        "custom" => return Err(Skip::Unsupported("a rematerialisation policy of its own is not supported")),
        _ if policy.ends_with("_offloaded") => {
            return Err(Skip::Unsupported("a rematerialisation policy that offloads is not supported"));
        }
        _ => {}
    }
    let unsaved = POLICIES.iter().find(|(name, _)| *name == policy).map(|(_, modules)| *modules);
    let known = || ["none", "full", "save_out_proj"].into_iter().chain(POLICIES.map(|(name, _)| name));
    let unsaved = unsaved.ok_or_else(|| Skip::unknown("recompute remat", policy, known()))?;
    Ok(Recompute::Selective(unsaved.iter().fold(Modules::NONE, |all, module| all.with(*module))))
}

fn read_recompute(text: &str, profile: &Profile) -> Result<Recompute, Skip> {
    let selective = |modules: &[Module]| {
        Recompute::Selective(modules.iter().fold(Modules::NONE, |all, module| all.with(*module)))
    };
    let text = text.to_ascii_lowercase();
    if let Some(policy) = text.strip_prefix("remat:") {
        return rematerialisation(policy);
    }
    match text.as_str() {
        "selective:op-level-sac" => return Ok(selective(&[Module::Operators])),
        "selective" if profile.defaults.selective_by_operator => return Ok(selective(&[Module::Operators])),
        _ => {}
    }
    let text = text.replace("shared_expert", "shared_experts").replace("expertss", "experts");
    let text = text.replace("core_attention", "core_attn").replace("rmsnorm", "layernorm");
    text.parse().map_err(|error: ParseRecomputeError| Skip::Contradiction(error.to_string()))
}

/// Layers per chunk, by the row's word or by the framework's own rule. There are at most two more chunks than
/// layers.
fn place(
    row: &MeasuredRow,
    profile: &Profile,
    model: &Model,
    layers: &Layers,
    pp: u32,
    vpp: u32,
) -> Result<Vec<u32>, Skip> {
    let (count, slots) = (layers.count(), pp * vpp);
    if let Placement::Greedy { head_weight } = profile.pipeline.placement
        && vpp == 1
    {
        return Ok(greedy(model, layers, pp, head_weight));
    }
    let even = count % slots == 0;
    let ends = row.text("pp_layout") == Some("embedding+loss as layers") || !even && (count + 2) % slots == 0;
    if ends && (count + 2) % slots == 0 && slots > 1 {
        let each = (count + 2) / slots;
        let mut counts = vec![each; slots as usize];
        counts[0] -= 1;
        counts[slots as usize - 1] -= 1;
        return Ok(counts);
    }
    if even {
        return Ok(vec![count / slots; slots as usize]);
    }
    if layers.mtp.is_some() || model.blocks.values().any(|b| matches!(b.feed_forward, FeedForward::Moe(_))) {
        // Full slots from the front; the head (and what predicts further tokens) stands in for layers
        // of the last one.
        let tail = 1 + layers.mtp.map_or(0, |(_, modules)| modules);
        let each = (count + tail).div_ceil(slots);
        let mut left = count;
        return Ok((0..slots)
            .map(|_| {
                let here = each.min(left);
                left -= here;
                here
            })
            .collect());
    }
    // Spread the remainder over the first slots.
    let (each, more) = (count / slots, count % slots);
    Ok((0..slots).map(|k| each + u32::from(k < more)).collect())
}

/// nanotron's rule: see [`Placement::Greedy`].
fn greedy(model: &Model, layers: &Layers, pp: u32, head_weight: f64) -> Vec<u32> {
    let h = model.hidden as f64;
    let width = layers.kinds.first().map_or(0.0, |kind| match &kind.block.feed_forward {
        FeedForward::Dense(d) => d.width as f64,
        _ => 4.0 * h,
    });
    let layer = 4.0 * h * h + 3.0 * h * width;
    let head = head_weight * model.vocabulary as f64 * h;
    let total = f64::from(layers.count()) * layer + head;
    let last = pp as usize - 1;
    let mut counts = vec![0u32; pp as usize];
    let (mut rank, mut sum) = (0usize, 0.0);
    for _ in 0..layers.count() {
        sum += layer;
        counts[rank] += 1;
        if sum > (rank + 1) as f64 / f64::from(pp) * total && rank < last {
            rank += 1;
        }
    }
    // The head goes to the rank that is being filled; ranks behind it stay empty. Here the head always
    // belongs to the last chunk, so what shares its rank moves there with it.
    counts.swap(rank, last);
    counts
}
