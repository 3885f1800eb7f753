//! From a measured row to a job, a plan and a cost model: every field that a row does not state takes
//! the default of its framework's profile and, where it bears on the prediction, is listed as assumed; none is searched.

mod cells;
mod framework;
mod job;
mod machine;
mod model;
mod plan;

pub use cells::{Skip, Subject, without_particulars};
pub use machine::Shelf;

use crate::cost::model::Adapted;
use crate::frameworks::profile::Profile;
use crate::layers::Layers;
use crate::plan::Plan;
use crate::spec::Machine;
use crate::spec::cluster::{Accelerator, Architecture, Cluster};
use crate::spec::job::{Job, Optimizer, Precision, Training};
use crate::spec::measured::MeasuredRow;
use crate::spec::model::{Block, Mixer, Model};
use crate::spec::special::Special;

use cells::{Cells, choice};
use framework::{family, of_paper, profile_name, release, stands_in};
use job::{read_job, read_optimizer, read_precision};
use machine::{GPUS, UNSURE_GPUS, adapt_cluster, gpu_name, plain_gpu};
use model::read_model;
use plan::{offloaded_layers, read_plan, states_context_comm};

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

/// What a row says in a column of words: where an empty cell stands for something, that, and one name of the same.
#[must_use]
pub fn words_of<'r>(row: &'r MeasuredRow, column: &str) -> &'r str {
    match (column, row.text(column)) {
        ("optimizer", text) => read_optimizer(row).map_or(text.unwrap_or_default(), |known| known.name()),
        ("training", None) => "pretrain",
        (_, text) => text.unwrap_or_default(),
    }
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
    /// The optimizer, where it is not AdamW.
    pub optimizer: &'static str,
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
        let mut group = vec![
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
        ];
        if job.optimizer != Optimizer::Adamw {
            group.push(job.optimizer.name());
        }
        let group = group.join("|");
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
            optimizer: if job.optimizer == Optimizer::Adamw { "" } else { job.optimizer.name() },
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
