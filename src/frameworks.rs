//! Training frameworks: what each can express, how it behaves at run time, how it is written and read.
//!
//! A framework is one [`Target`]. Its [`Capabilities`] say which axes of a layout exist at all; its
//! rules, an ordered table with the source of each, say which layouts and plans it accepts
//! ([`legal`], [`legal_plan`]). Rules are integer arithmetic and run on every layout of a search:
//! they allocate nothing, and a [`Refusal`] formats itself only when it is shown.

pub mod accelerate;
pub mod bridge;
pub mod changes;
pub mod deepspeed;
pub mod error_bars;
pub mod export;
pub mod hf;
pub mod megatron;
mod nearest;
pub mod profile;
pub mod shell;
pub mod torchtitan;
mod yaml;

use std::fmt;

use hf::HfModel;
use profile::Profile;

use crate::layers::{LayerKind, Layers};
use crate::plan::{
    ContextComm, CudaGraphs, Dispatcher, Layout, Modules, Offload, Place, Plan, Recompute, Schedule,
};
use crate::spec::cluster::{Accelerator, Architecture, AttentionKernel, Cluster};
use crate::spec::job::{Job, Optimizer, Precision, Training};
use crate::spec::model::{
    FeedForward, LatentAttention, Mamba2, Mixer, Model, Norm, Position, PositionScaling, RouterGroups,
};

/// A framework that plans are made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum Target {
    /// Megatron-LM with Megatron-Core.
    Megatron,
    /// Megatron-Bridge (NeMo), on Megatron-Core.
    Bridge,
    /// DeepSpeed with Hugging Face models; its pipeline engine where the plan has stages.
    DeepSpeed,
    /// Megatron-DeepSpeed, the fork of an early Megatron-LM.
    MegatronDeepSpeed,
    /// torchtitan.
    Torchtitan,
    /// Hugging Face Accelerate with FSDP2.
    Accelerate,
    /// nanotron; predicted, not exported.
    Nanotron,
    /// llm-foundry with FSDP1; predicted, not exported.
    LlmFoundry,
    /// InternEvo; predicted, not exported.
    InternEvo,
    /// HAI-LLM, which trained DeepSeek-V3; predicted, not exported.
    HaiLlm,
}

impl Target {
    /// Every target.
    pub const ALL: [Self; 10] = [
        Self::Megatron,
        Self::Bridge,
        Self::DeepSpeed,
        Self::MegatronDeepSpeed,
        Self::Torchtitan,
        Self::Accelerate,
        Self::Nanotron,
        Self::LlmFoundry,
        Self::InternEvo,
        Self::HaiLlm,
    ];

    /// The name used on the command line and in results.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Megatron => "megatron",
            Self::Bridge => "bridge",
            Self::DeepSpeed => "deepspeed",
            Self::MegatronDeepSpeed => "megatron-deepspeed",
            Self::Torchtitan => "torchtitan",
            Self::Accelerate => "accelerate",
            Self::Nanotron => "nanotron",
            Self::LlmFoundry => "llm-foundry",
            Self::InternEvo => "internevo",
            Self::HaiLlm => "hai-llm",
        }
    }

    /// Whether plans can be written out for it.
    #[must_use]
    pub fn exports(self) -> bool {
        !matches!(self, Self::Nanotron | Self::LlmFoundry | Self::InternEvo | Self::HaiLlm)
    }

    /// The run-time profile that predicts its plans.
    #[must_use]
    pub fn profile_name(self) -> &'static str {
        match self {
            // Its recipes as they are written here reduce and keep gradients in FP32, as Megatron-LM does.
            Self::Bridge => Self::Megatron.name(),
            _ => self.name(),
        }
    }

    /// Which axes of a layout it has.
    #[must_use]
    pub fn capabilities(self) -> &'static Capabilities {
        match self {
            Self::Megatron | Self::Bridge => &megatron::CAPABILITIES,
            Self::DeepSpeed => &deepspeed::CAPABILITIES,
            Self::MegatronDeepSpeed => &deepspeed::MEGATRON_CAPABILITIES,
            Self::Torchtitan => &torchtitan::CAPABILITIES,
            Self::Accelerate => &accelerate::CAPABILITIES,
            Self::Nanotron => &NANOTRON,
            Self::LlmFoundry => &LLM_FOUNDRY,
            Self::InternEvo => &INTERNEVO,
            Self::HaiLlm => &HAI_LLM,
        }
    }

    /// Its own rules on layouts, in the order in which they are asked; those that follow from
    /// [`Self::capabilities`] come before them and are shared ([`COMMON_RULES`]).
    #[must_use]
    pub fn rules(self) -> &'static [Rule] {
        match self {
            Self::Megatron => megatron::RULES,
            Self::Bridge => bridge::RULES,
            Self::DeepSpeed => deepspeed::RULES,
            Self::MegatronDeepSpeed => deepspeed::MEGATRON_RULES,
            Self::Torchtitan => torchtitan::RULES,
            Self::Accelerate => accelerate::RULES,
            Self::Nanotron | Self::LlmFoundry | Self::InternEvo | Self::HaiLlm => GENERIC_RULES,
        }
    }

    /// Its own rules on plans: placement of layers and recomputation.
    #[must_use]
    pub fn plan_rules(self) -> &'static [PlanRule] {
        match self {
            Self::Megatron | Self::Bridge => megatron::PLAN_RULES,
            Self::Torchtitan => torchtitan::PLAN_RULES,
            Self::DeepSpeed | Self::MegatronDeepSpeed => deepspeed::PLAN_RULES,
            _ => &[],
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A framework's name was not understood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{found}` is not a framework; did you mean `{nearest}`? (known: {})", Target::ALL.map(Target::name).join(", "))]
pub struct ParseTargetError {
    /// What was found.
    pub found: String,
    /// The most similar name.
    pub nearest: &'static str,
}

impl From<Target> for String {
    fn from(target: Target) -> Self {
        target.name().to_owned()
    }
}

impl TryFrom<String> for Target {
    type Error = ParseTargetError;
    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl std::str::FromStr for Target {
    type Err = ParseTargetError;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let plain = text.trim().to_ascii_lowercase().replace(['_', ' '], "-");
        let alias = match plain.as_str() {
            "megatron-lm" | "megatron-core" | "mcore" => Some(Self::Megatron),
            "megatron-bridge" | "nemo" => Some(Self::Bridge),
            "fsdp2" => Some(Self::Accelerate),
            _ => Self::ALL.into_iter().find(|t| t.name() == plain),
        };
        alias.ok_or_else(|| {
            let near = |t: &Self| (strsim::jaro_winkler(&plain, t.name()) * 1e6) as u64;
            let nearest = Self::ALL.into_iter().max_by_key(near).map_or("megatron", Self::name);
            ParseTargetError { found: text.to_owned(), nearest }
        })
    }
}

/// Which axes of a layout a framework has: the candidate generator walks only these.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities {
    /// Tensor parallelism.
    pub tensor_parallel: bool,
    /// Pipeline parallelism.
    pub pipeline_parallel: bool,
    /// Several chunks per pipeline rank.
    pub virtual_stages: bool,
    /// Pipeline schedules.
    pub schedules: &'static [Schedule],
    /// Ways in which attention crosses context-parallel ranks; empty where sequences cannot be split.
    pub context_comms: &'static [ContextComm],
    /// Expert parallelism.
    pub expert_parallel: bool,
    /// Which expert-tensor-parallel degrees exist.
    pub expert_tensor: ExpertTensor,
    /// Sequence parallelism beside tensor parallelism.
    pub sequence_parallel: SequenceParallel,
    /// ZeRO stages that can be expressed.
    pub zero_stages: &'static [u8],
    /// ZeRO stages that a search tries unless told otherwise.
    pub default_zero_stages: &'static [u8],
    /// Over which ranks states may be sharded.
    pub shard_groups: ShardGroups,
    /// Recompute families.
    pub recompute: RecomputeFamilies,
    /// Tensor-parallel collectives under matrix products.
    pub tensor_overlap: bool,
    /// Data-parallel collectives under computation.
    pub data_overlap: bool,
    /// Expert dispatch under the computation of another micro-batch.
    pub expert_overlap: bool,
    /// Shared experts beside the exchange of routed tokens.
    pub shared_overlap: bool,
    /// Ways to bring tokens to experts.
    pub dispatchers: &'static [Dispatcher],
    /// Those that a search tries unless told otherwise.
    pub default_dispatchers: &'static [Dispatcher],
    /// What CUDA graphs may capture.
    pub cuda_graphs: &'static [CudaGraphs],
    /// Where optimizer states may live.
    pub optimizer_places: &'static [Place],
    /// Where weights may live between uses.
    pub parameter_places: &'static [Place],
    /// Activations may go to host memory.
    pub activation_offload: bool,
    /// Chunks may hold different numbers of layers.
    pub uneven_stages: bool,
    /// A chunk may hold no layer.
    pub empty_stages: bool,
    /// Multi-token prediction may stand on a chunk of its own, under looped schedules.
    pub mtp_standalone: bool,
    /// Tensor parallelism may exceed the key/value heads, which are then replicated.
    pub kv_replication: bool,
}

impl Capabilities {
    /// Whether state and activations may live there.
    #[must_use]
    pub fn offloads(&self, offload: Offload) -> bool {
        self.optimizer_places.contains(&offload.optimizer)
            && self.parameter_places.contains(&offload.parameters)
            && (self.activation_offload || !offload.activations)
    }
}

/// Which expert-tensor-parallel degrees a framework has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExpertTensor {
    /// Any that divides the expert's width.
    Free,
    /// Only 1.
    One,
    /// Only the tensor-parallel degree.
    Tensor,
}

/// Sequence parallelism beside tensor parallelism.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SequenceParallel {
    /// There is none.
    Never,
    /// Either way.
    Optional,
    /// Always on where TP > 1.
    Always,
}

/// Over which ranks states may be sharded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShardGroups {
    /// All data-parallel (times context-parallel) ranks.
    Whole,
    /// Any divisor of them, at every ZeRO stage from 1.
    Divisors,
    /// Any divisor of them at ZeRO stage 3, all of them below.
    DivisorsAtStage3,
}

/// Recompute families of a framework.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecomputeFamilies {
    /// Modules that selective recomputation can name; one set for all stages.
    pub selective: Modules,
    /// Whole layers in groups of n: largest n (0: not offered).
    pub full_uniform: u32,
    /// The first n layers of every chunk.
    pub full_block: bool,
    /// Every stage may have a mode of its own.
    pub per_stage: bool,
}

/// What rules ask of a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hardware {
    /// Silicon generation.
    pub architecture: Architecture,
    /// GPUs of a node.
    pub gpus_per_node: u32,
    /// GPUs that a fast fabric joins.
    pub domain: u32,
}

impl Hardware {
    /// Of a machine that is not known yet, for rules on number formats: what refuses nothing.
    pub const UNKNOWN: Self =
        Self { architecture: Architecture::Blackwell, gpus_per_node: 8, domain: u32::MAX };

    /// Of a cluster's GPUs.
    #[must_use]
    pub fn of(cluster: &Cluster, accelerator: &Accelerator) -> Self {
        Self {
            architecture: accelerator.architecture,
            gpus_per_node: cluster.gpus_per_node,
            domain: cluster.scale_up.domain,
        }
    }

    /// Whether NVLink joins its GPUs.
    #[must_use]
    pub fn has_nvlink(&self) -> bool {
        matches!(self.architecture, Architecture::Ampere | Architecture::Hopper | Architecture::Blackwell)
    }
}

/// Everything about a model, a job and a cluster that rules ask for, reduced to integers.
#[derive(Debug, Clone, PartialEq)]
pub struct Context {
    /// GPUs of the job.
    pub gpus: u32,
    /// Sequences per step.
    pub global_batch_size: u32,
    /// Tokens per sequence.
    pub sequence_length: u64,
    /// Number format.
    pub precision: Precision,
    /// Optimizer.
    pub optimizer: Optimizer,
    /// What is trained.
    pub training: Training,
    /// Experts take no more tokens than a capacity, and whether they are padded to it.
    pub expert_capacity: Option<Padded>,
    /// The machine.
    pub hardware: Hardware,
    /// Decoder layers.
    pub layers: u32,
    /// Multi-token-prediction modules.
    pub mtp_modules: u32,
    /// Some decoder layer is not attention with a feed-forward part behind it.
    pub hybrid: bool,
    /// Width of the residual stream.
    pub hidden: u64,
    /// Distinct attention shapes.
    pub attention: Vec<HeadShape>,
    /// Distinct latent-attention shapes.
    pub latent: Vec<LatentAttention>,
    /// Distinct Mamba-2 shapes.
    pub mamba: Vec<Mamba2>,
    /// Distinct widths of dense feed-forward parts.
    pub dense: Vec<u64>,
    /// Distinct mixtures of experts.
    pub moe: Vec<MoeShape>,
    /// Some attention layer looks through a window shorter than the sequence.
    pub windows: bool,
    /// Some attention layer has sink logits.
    pub sinks: bool,
    /// Attention runs in fused kernels, and scores are never in memory.
    pub fused_attention: bool,
    /// Some layer is dense although others have experts.
    pub dense_beside_moe: bool,
    /// Input embedding and output head share one matrix.
    pub tied_embeddings: bool,
    /// Hidden and attention dropout are applied.
    pub dropout: bool,
    /// Positions are a learned table.
    pub learned_positions: bool,
    /// Tokens of the longest sequence before YaRN stretches positions, where it does.
    pub yarn_length: Option<u64>,
    /// DeepSpeed's AutoEP has a preset for the experts.
    pub expert_preset: bool,
    /// DeepSpeed splits the Transformers class of the model by tensor parallelism, if it has one.
    pub tensor_splits: bool,
    /// DeepSpeed's Ulysses takes the attention of the Transformers class of the model, if it has one.
    pub sequence_splits: bool,
    /// All mixers are attention over everything before a token, which torch's `scaled_dot_product_attention` does in
    /// the Transformers class of the model, if it has one.
    pub plain_attention: bool,
    /// Transformers has a plan that splits all layers of the model's class by tensor parallelism, as far as is known.
    pub tensor_plan: bool,
}

/// Whether experts are padded to their capacity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Padded(pub bool);

/// Heads of one attention shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeadShape {
    /// Query heads.
    pub heads: u64,
    /// Key/value heads.
    pub kv_heads: u64,
    /// Size of a head.
    pub head_dim: u64,
}

/// Sizes of one mixture of experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MoeShape {
    /// Routed experts.
    pub experts: u64,
    /// Inner width of one.
    pub width: u64,
    /// Summed inner width of the shared experts.
    pub shared_width: u64,
    /// The experts' matrices have biases.
    pub bias: bool,
    /// Group-limited routing.
    pub groups: Option<RouterGroups>,
}

fn push_new<T: PartialEq>(list: &mut Vec<T>, item: T) {
    if !list.contains(&item) {
        list.push(item);
    }
}

impl Context {
    /// Collects the facts of a validated model, a job and a cluster.
    #[must_use]
    pub fn new(model: &Model, layers: &Layers, job: &Job, hardware: Hardware) -> Self {
        let mut context = Self {
            gpus: job.gpus,
            global_batch_size: job.global_batch_size,
            sequence_length: u64::from(job.sequence_length),
            precision: job.precision,
            optimizer: job.optimizer,
            training: job.training,
            expert_capacity: job.expert_capacity.map(|capacity| Padded(capacity.padded)),
            hardware,
            layers: layers.count(),
            mtp_modules: layers.mtp.map_or(0, |(_, modules)| modules),
            hybrid: !layers.order.iter().all(|&kind| layers.kinds[usize::from(kind)].block.is_whole()),
            hidden: model.hidden,
            attention: Vec::new(),
            latent: Vec::new(),
            mamba: Vec::new(),
            dense: Vec::new(),
            moe: Vec::new(),
            windows: false,
            sinks: false,
            fused_attention: true,
            dense_beside_moe: false,
            tied_embeddings: model.tied_embeddings,
            dropout: model.dropout,
            learned_positions: matches!(model.position, Position::Learned(_)),
            yarn_length: match model.position.scaling() {
                PositionScaling::Yarn(yarn) => Some(yarn.original_length),
                _ => None,
            },
            expert_preset: false,
            tensor_splits: true,
            sequence_splits: true,
            plain_attention: true,
            tensor_plan: true,
        };
        for kind in &layers.kinds {
            match &kind.block.mixer {
                Mixer::Attention(a) => {
                    let shape = HeadShape { heads: a.heads, kv_heads: a.kv_heads, head_dim: a.head_dim };
                    push_new(&mut context.attention, shape);
                    context.windows |= a.window.is_some_and(|w| w < u64::from(job.sequence_length));
                }
                Mixer::Latent(a) => push_new(&mut context.latent, a.clone()),
                Mixer::Mamba2(a) => push_new(&mut context.mamba, a.clone()),
                Mixer::None => {}
            }
            match &kind.block.feed_forward {
                FeedForward::Dense(d) => push_new(&mut context.dense, d.width),
                FeedForward::Moe(e) => {
                    let shape = MoeShape {
                        experts: e.experts,
                        width: e.width,
                        shared_width: e.shared_width,
                        bias: e.expert_bias,
                        groups: e.router.groups,
                    };
                    push_new(&mut context.moe, shape);
                }
                FeedForward::None => {}
            }
        }
        context.dense_beside_moe = !context.moe.is_empty() && !context.dense.is_empty();
        // Only of classes that take not everything.
        let special = context.has_experts()
            || context.learned_positions
            || model.norm == Norm::LayerNorm
            || matches!(model.position, Position::Alibi);
        let hf = special.then(|| HfModel::of(model, layers)).flatten();
        context.expert_preset = hf.as_ref().is_some_and(|hf| hf.expert_preset.is_some());
        context.sinks = layers.have_sinks();
        context.sequence_splits = hf::splits_sequences(model, layers, hf.as_ref());
        context.tensor_splits = hf::splits_tensors(layers, hf.as_ref());
        // Accelerate looks at the configuration alone: a window that no sequence reaches is one.
        let is_cut = |kind: &LayerKind| matches!(&kind.block.mixer, Mixer::Attention(a) if a.chunk.is_some() || a.window.is_some());
        let cut = context.sinks || layers.kinds.iter().any(is_cut) || !context.mamba.is_empty();
        context.plain_attention = !cut && hf::masks_drop(model, layers, hf.as_ref());
        context.tensor_plan = hf::has_tensor_plan(model, layers, hf.as_ref());
        context
    }

    /// The same for jobs of a profile.
    #[must_use]
    pub fn of_profile(mut self, profile: &Profile) -> Self {
        let kernel = profile.kernels.attention_kernel.get(self.hardware.architecture);
        self.fused_attention = kernel != AttentionKernel::Unfused;
        self
    }

    /// Whether the model has routed experts.
    #[must_use]
    pub fn has_experts(&self) -> bool {
        !self.moe.is_empty()
    }

    /// Whether some layers have shared experts.
    #[must_use]
    pub fn has_shared_experts(&self) -> bool {
        self.moe.iter().any(|moe| moe.shared_width > 0)
    }

    /// Whether its experts are padded to a capacity.
    #[must_use]
    pub fn pads_experts(&self) -> bool {
        self.has_experts() && self.expert_capacity == Some(Padded(true))
    }
}

/// Why a check failed: a sentence with `{0}` … `{3}` for its numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Broken {
    text: &'static str,
    numbers: [u64; 4],
}

impl Broken {
    /// The sentence with its numbers.
    #[must_use]
    pub fn in_words(&self) -> String {
        let mut text = self.text.to_owned();
        for (at, number) in self.numbers.iter().enumerate() {
            text = text.replace(&format!("{{{at}}}"), &number.to_string());
        }
        text
    }
}

/// `Ok` if `holds`, else the sentence with its numbers.
pub(crate) fn ensure(holds: bool, text: &'static str, numbers: [u64; 4]) -> Result<(), Broken> {
    if holds { Ok(()) } else { Err(Broken { text, numbers }) }
}

/// A sentence without numbers.
pub(crate) fn broken(text: &'static str) -> Broken {
    Broken { text, numbers: [0; 4] }
}

/// Shorthand for up to four numbers of a [`Broken`].
pub(crate) fn numbers<const N: usize>(given: [u64; N]) -> [u64; 4] {
    let mut all = [0; 4];
    all[..N].copy_from_slice(&given);
    all
}

/// Who finds out that a rule is broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Judge {
    /// The framework's parser, validator or set-up code, before training starts.
    SetUp,
    /// The framework or a library beneath it, in the first training steps.
    Run,
    /// No one: the option does not exist, or the framework would quietly run something else.
    Nobody,
}

/// What of a layout a rule looks at, beside the job. Micro-batch and accumulation count as degrees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// Nothing: what breaks it, no layout can do.
    Job,
    /// Degrees.
    Group,
    /// Degrees and a [`crate::candidates::Order`]: schedule, virtual stages, where multi-token prediction is.
    Order,
    /// Degrees and the flags of a [`crate::cost::CellKey`].
    Cell,
    /// Degrees, offload, and how states are sharded.
    Sharding,
    /// What [`Reach::Order`] is, and how and when experts' tokens are exchanged.
    Exchange,
    /// Everything.
    Layout,
}

/// One rule on layouts.
#[derive(Clone, Copy)]
pub struct Rule {
    /// Short name, unique within a target.
    pub name: &'static str,
    /// File (and symbol) of the framework that enforces it.
    pub source: &'static str,
    /// Who finds out.
    pub judge: Judge,
    /// What it looks at.
    pub reach: Reach,
    /// The check: integers only, no allocation.
    pub check: Check,
}

/// What of a plan a rule looks at, beside the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlanReach {
    /// The flags of a cell and what is recomputed, by chunks that hold layers.
    Recompute,
    /// Which layers are where.
    Placement,
}

/// One rule on plans.
pub struct PlanRule {
    /// Short name, unique within a target.
    pub name: &'static str,
    /// File (and symbol) of the framework that enforces it.
    pub source: &'static str,
    /// Who finds out.
    pub judge: Judge,
    /// What it looks at.
    pub reach: PlanReach,
    /// The check: integers only, no allocation.
    pub check: fn(&Capabilities, &Context, &Plan) -> Result<(), Broken>,
}

/// A layout or plan that a framework does not accept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The framework.
    pub target: Target,
    /// Name of the rule.
    pub rule: &'static str,
    /// Where the framework enforces it.
    pub source: &'static str,
    /// Who finds out.
    pub judge: Judge,
    /// The nearest plan that it accepts, where one was looked for and found.
    pub nearest: Option<Box<Plan>>,
    broken: Broken,
}

impl Refusal {
    /// Why, with the numbers; without the rule's name and source.
    #[must_use]
    pub fn reason(&self) -> String {
        self.broken.in_words()
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{} refuses: {} (rule {}; {})", self.target, self.reason(), self.rule, self.source)?;
        if let Some(plan) = &self.nearest {
            write!(f, "; the nearest plan it accepts is {plan}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Refusal {}

/// Frameworks whose experts take all tokens that are routed to them.
pub(crate) const DROPLESS: Rule = Rule {
    name: "dropless",
    source: "its layers of experts have no capacity",
    judge: Judge::Nobody,
    reach: Reach::Job,
    check: |_, c, _| {
        ensure(
            !c.has_experts() || c.expert_capacity.is_none(),
            "its experts take all tokens that are routed to them; a capacity needs megatron or bridge",
            [0; 4],
        )
    },
};

/// Shared rules and one of a framework's own.
pub(crate) const fn joined<const N: usize>(shared: &[Rule], own: Rule) -> [Rule; N] {
    let mut all = [own; N];
    let mut at = 0;
    while at < shared.len() {
        all[at] = shared[at];
        at += 1;
    }
    all
}

/// Whether a framework accepts a layout (its placement of layers and recomputation aside).
///
/// # Errors
/// The first rule that is broken, in the order of [`COMMON_RULES`] and [`Target::rules`].
pub fn legal(target: Target, context: &Context, layout: &Layout) -> Result<(), Refusal> {
    first_broken(target, context, layout, |_| true)
}

/// The first rule that a layout breaks of those that look at so much of it, and no more.
///
/// # Errors
/// That rule, in the order of [`legal`].
pub fn legal_within(target: Target, context: &Context, layout: &Layout, reach: Reach) -> Result<(), Refusal> {
    first_broken(target, context, layout, |rule| rule.reach == reach)
}

fn first_broken(
    target: Target,
    context: &Context,
    layout: &Layout,
    asked: impl Fn(&Rule) -> bool,
) -> Result<(), Refusal> {
    let capabilities = target.capabilities();
    for rule in COMMON_RULES.iter().chain(target.rules()).filter(|rule| asked(rule)) {
        if let Err(broken) = (rule.check)(capabilities, context, layout) {
            let Rule { name, source, judge, .. } = *rule;
            let judge = if target == Target::Bridge { bridge::judge(name, judge) } else { judge };
            return Err(Refusal { target, rule: name, source, judge, nearest: None, broken });
        }
    }
    Ok(())
}

/// Whether a framework accepts a plan: its layout, its placement of layers and its recomputation.
///
/// # Errors
/// The first rule that is broken.
pub fn legal_plan(target: Target, context: &Context, plan: &Plan) -> Result<(), Refusal> {
    legal(target, context, plan.layout())?;
    let capabilities = target.capabilities();
    for rule in COMMON_PLAN_RULES.iter().chain(target.plan_rules()) {
        if let Err(broken) = (rule.check)(capabilities, context, plan) {
            let PlanRule { name, source, judge, .. } = *rule;
            return Err(Refusal { target, rule: name, source, judge, nearest: None, broken });
        }
    }
    Ok(())
}

/// Whether the rules that look at one side of a plan accept it.
#[must_use]
pub fn plan_rules_hold(target: Target, context: &Context, plan: &Plan, reach: PlanReach) -> bool {
    let mut rules = COMMON_PLAN_RULES.iter().chain(target.plan_rules()).filter(|rule| rule.reach == reach);
    rules.all(|rule| (rule.check)(target.capabilities(), context, plan).is_ok())
}

/// The nearest plan to a refused one that a framework accepts, by changing as little as possible:
/// first one option, then two, then three, as long as the plan `fits`. None where no such change helps.
#[must_use]
pub fn nearest(target: Target, context: &Context, plan: &Plan, fits: &dyn Fn(&Plan) -> bool) -> Option<Plan> {
    nearest::search(target, context, plan, fits)
}

/// Kernels that overlap tensor-parallel exchange with multiplication read the memory of their neighbours.
pub(crate) fn overlap_in_domain(_: &Capabilities, c: &Context, l: &Layout) -> Result<(), Broken> {
    let (tp, domain) = (l.tensor_parallel, c.hardware.domain);
    ensure(
        !l.tensor_overlap || tp <= domain,
        "tensor-parallel overlap works among the {0} GPUs of one fast fabric, tp is {1}",
        numbers([u64::from(domain), u64::from(tp)]),
    )
}

const MESH: &str = "degrees multiply to the ranks of the job";
const AXES: &str = "the framework has no such option";
const STAYS_WITH_HEAD: &str = "multi-token prediction cannot leave the last stage";
const FORM: &str = "a layout says one thing in one way";

/// Rules that every framework shares: the mesh and the batch, one spelling per layout, and the axes
/// that [`Capabilities`] leave out.
pub static COMMON_RULES: &[Rule] = &[
    Rule {
        name: "mesh",
        source: MESH,
        judge: Judge::SetUp,
        reach: Reach::Group,
        check: |_, c, l| {
            ensure(
                l.gpus() == u64::from(c.gpus),
                "tp x pp x cp x dp = {0}, but the job has {1} GPUs",
                numbers([l.gpus(), u64::from(c.gpus)]),
            )
        },
    },
    Rule {
        name: "batch",
        source: MESH,
        judge: Judge::SetUp,
        reach: Reach::Group,
        check: |_, c, l| {
            ensure(
                l.global_batch_size() == u64::from(c.global_batch_size),
                "micro-batch x accumulation x dp = {0}, but the global batch is {1}",
                numbers([l.global_batch_size(), u64::from(c.global_batch_size)]),
            )
        },
    },
    Rule {
        name: "tensor-axis",
        source: AXES,
        judge: Judge::Nobody,
        reach: Reach::Group,
        check: |k, _, l| {
            ensure(
                k.tensor_parallel || l.tensor_parallel == 1,
                "there is no tensor parallelism, but tp is {0}",
                numbers([u64::from(l.tensor_parallel)]),
            )
        },
    },
    Rule {
        name: "pipeline-axis",
        source: AXES,
        judge: Judge::Nobody,
        reach: Reach::Group,
        check: |k, _, l| {
            ensure(
                k.pipeline_parallel || l.pipeline_parallel == 1,
                "there is no pipeline parallelism, but pp is {0}",
                numbers([u64::from(l.pipeline_parallel)]),
            )
        },
    },
    Rule {
        name: "virtual-axis",
        source: AXES,
        judge: Judge::Nobody,
        reach: Reach::Order,
        check: |k, _, l| {
            ensure(
                k.virtual_stages || l.virtual_stages == 1,
                "there are no virtual stages, but vpp is {0}",
                numbers([u64::from(l.virtual_stages)]),
            )
        },
    },
    Rule {
        name: "schedule-axis",
        source: AXES,
        judge: Judge::Nobody,
        reach: Reach::Order,
        check: |k, _, l| {
            ensure(k.schedules.contains(&l.schedule), "the pipeline schedule is not offered", [0; 4])
        },
    },
    Rule {
        name: "schedule-chunks",
        source: FORM,
        judge: Judge::Nobody,
        reach: Reach::Order,
        check: |_, _, l| {
            let v = l.virtual_stages;
            let fits = match l.schedule {
                Schedule::Interleaved => v > 1,
                Schedule::ZeroBubbleV | Schedule::DualPipe => v == 2,
                Schedule::GPipe | Schedule::OneFOneB | Schedule::ZeroBubbleH1 | Schedule::ZeroBubbleH2 => {
                    v == 1
                }
            };
            ensure(fits, "the schedule does not run {0} chunks per rank", numbers([u64::from(v)]))
        },
    },
    Rule {
        name: "virtual-needs-pipeline",
        source: "Megatron-LM megatron/training/arguments.py validate_args",
        judge: Judge::SetUp,
        reach: Reach::Order,
        check: |_, _, l| {
            ensure(
                l.virtual_stages == 1 || l.pipeline_parallel > 1,
                "{0} virtual stages need at least 2 pipeline stages",
                numbers([u64::from(l.virtual_stages)]),
            )
        },
    },
    Rule {
        name: "mtp-axis",
        source: AXES,
        judge: Judge::Nobody,
        reach: Reach::Order,
        check: |k, _, l| ensure(k.mtp_standalone || !l.mtp_standalone, STAYS_WITH_HEAD, [0; 4]),
    },
    Rule {
        name: "mtp-standalone",
        source: "Megatron-LM megatron/core/transformer/pipeline_parallel_layer_layout.py validate_layer_layout, which means to refuse the first rank and looks elsewhere",
        judge: Judge::Nobody,
        reach: Reach::Order,
        check: |k, c, l| if l.mtp_standalone { mtp_stands_alone(k, c, l) } else { Ok(()) },
    },
    Rule {
        name: "dispatch-hardware",
        source: "deepseek-ai/DeepEP docs/legacy.md, branch hybrid-ep: CUDA devices that NVLink joins",
        judge: Judge::Run,
        reach: Reach::Cell,
        check: |_, c, l| {
            let runs = match l.dispatcher {
                Some(Dispatcher::DeepEp) => c.hardware.has_nvlink(),
                // Its copies are those of Hopper and later.
                Some(Dispatcher::HybridEp) => {
                    matches!(c.hardware.architecture, Architecture::Hopper | Architecture::Blackwell)
                }
                _ => true,
            };
            ensure(
                runs,
                "DeepEP runs on Ampere, Hopper and Blackwell GPUs that NVLink joins, HybridEP on the last two",
                [0; 4],
            )
        },
    },
    Rule {
        name: "context-axis",
        source: AXES,
        judge: Judge::Nobody,
        reach: Reach::Cell,
        check: |k, _, l| {
            ensure(
                l.context_parallel == 1 || k.context_comms.contains(&l.context_comm),
                "sequences cannot be split over {0} ranks in this way",
                numbers([u64::from(l.context_parallel)]),
            )
        },
    },
    Rule {
        name: "sequence-parallel-axis",
        source: AXES,
        judge: Judge::Nobody,
        reach: Reach::Cell,
        check: |k, _, l| match k.sequence_parallel {
            SequenceParallel::Optional => Ok(()),
            SequenceParallel::Never => {
                ensure(!l.sequence_parallel, "there is no sequence parallelism", [0; 4])
            }
            SequenceParallel::Always => ensure(
                l.sequence_parallel || l.tensor_parallel == 1,
                "sequence parallelism is always on at tp {0}",
                numbers([u64::from(l.tensor_parallel)]),
            ),
        },
    },
    Rule {
        name: "sequence-parallel-needs-tensor",
        source: FORM,
        judge: Judge::Nobody,
        reach: Reach::Cell,
        check: |_, _, l| {
            ensure(!l.sequence_parallel || l.tensor_parallel > 1, "sequence parallelism needs tp > 1", [0; 4])
        },
    },
    Rule {
        name: "dense-has-no-experts",
        source: "Megatron-LM megatron/training/arguments.py validate_args",
        judge: Judge::SetUp,
        reach: Reach::Group,
        check: dense_has_no_experts,
    },
    Rule {
        name: "dense-form",
        source: FORM,
        judge: Judge::Nobody,
        reach: Reach::Cell,
        check: |_, c, l| {
            let overlaps = l.expert_overlap || l.shared_overlap;
            let plain = l.expert_tensor_parallel == 1 && l.dispatcher.is_none() && !overlaps;
            ensure(
                c.has_experts() || plain,
                "the model has no experts, but the layout says how they are split, reached or overlapped",
                [0; 4],
            )
        },
    },
    Rule {
        name: "dispatcher-axis",
        source: AXES,
        judge: Judge::Nobody,
        reach: Reach::Cell,
        check: |k, c, l| {
            let offered = match l.dispatcher {
                None => !c.has_experts(),
                Some(kind) => k.dispatchers.contains(&kind),
            };
            ensure(offered, "this way of bringing tokens to experts is not offered", [0; 4])
        },
    },
    Rule {
        name: "expert-axis",
        source: AXES,
        judge: Judge::Nobody,
        reach: Reach::Group,
        check: |k, _, l| {
            ensure(
                k.expert_parallel || l.expert_parallel == 1,
                "there is no expert parallelism, but ep is {0}",
                numbers([u64::from(l.expert_parallel)]),
            )
        },
    },
    Rule {
        name: "expert-tensor-axis",
        source: AXES,
        judge: Judge::Nobody,
        reach: Reach::Group,
        check: |k, c, l| {
            let (etp, tp) = (l.expert_tensor_parallel, l.tensor_parallel);
            let offered = match k.expert_tensor {
                ExpertTensor::Free => true,
                ExpertTensor::One => etp == 1,
                ExpertTensor::Tensor => etp == tp || !c.has_experts(),
            };
            ensure(
                offered,
                "experts cannot be split over etp {0} at tp {1}",
                numbers([u64::from(etp), u64::from(tp)]),
            )
        },
    },
    Rule {
        name: "experts-divide",
        source: "Megatron-LM megatron/training/arguments.py validate_args; torchtitan ParallelDims",
        judge: Judge::SetUp,
        reach: Reach::Group,
        check: experts_divide,
    },
    Rule {
        name: "expert-mesh",
        source: "Megatron-LM megatron/core/parallel_state.py initialize_model_parallel",
        judge: Judge::SetUp,
        reach: Reach::Group,
        check: |_, _, l| {
            let block =
                u64::from(l.tensor_parallel) * u64::from(l.context_parallel) * u64::from(l.data_parallel);
            let experts = u64::from(l.expert_parallel) * u64::from(l.expert_tensor_parallel);
            ensure(
                block % experts == 0,
                "ep {0} x etp {1} does not divide tp x cp x dp = {2}",
                numbers([u64::from(l.expert_parallel), u64::from(l.expert_tensor_parallel), block]),
            )
        },
    },
    Rule {
        name: "zero-axis",
        source: AXES,
        judge: Judge::Nobody,
        reach: Reach::Sharding,
        check: |k, _, l| {
            ensure(
                k.zero_stages.contains(&l.zero_stage),
                "ZeRO stage {0} is not offered",
                numbers([u64::from(l.zero_stage)]),
            )
        },
    },
    Rule {
        name: "shard-group",
        source: AXES,
        judge: Judge::Nobody,
        reach: Reach::Sharding,
        check: |k, _, l| {
            let ranks = u64::from(l.data_parallel) * u64::from(l.context_parallel);
            let group = u64::from(l.shard_group);
            if l.zero_stage == 0 {
                return ensure(
                    group == 1,
                    "nothing is sharded at ZeRO stage 0, but the group is {0}",
                    numbers([group]),
                );
            }
            ensure(
                group > 0 && ranks % group == 0,
                "a shard group of {0} does not divide dp x cp = {1}",
                numbers([group, ranks]),
            )?;
            let hybrid = match k.shard_groups {
                ShardGroups::Whole => false,
                ShardGroups::Divisors => true,
                ShardGroups::DivisorsAtStage3 => l.zero_stage == 3,
            };
            ensure(
                hybrid || group == ranks,
                "states can only be sharded over all dp x cp = {1} ranks at ZeRO stage {2}, not over {0}",
                numbers([group, ranks, u64::from(l.zero_stage)]),
            )
        },
    },
    Rule {
        name: "even-stages",
        source: AXES,
        judge: Judge::Nobody,
        reach: Reach::Order,
        check: |k, c, l| {
            let stages = u64::from(l.pipeline_parallel) * u64::from(l.virtual_stages);
            ensure(
                k.uneven_stages || u64::from(c.layers) % stages.max(1) == 0,
                "{0} layers do not divide among {1} stages, which hold as many each",
                numbers([u64::from(c.layers), stages]),
            )
        },
    },
    Rule {
        name: "overlap-axis",
        source: AXES,
        judge: Judge::Nobody,
        reach: Reach::Layout,
        check: |k, _, l| {
            ensure(k.tensor_overlap || !l.tensor_overlap, "tensor-parallel overlap is not offered", [0; 4])?;
            ensure(k.data_overlap || !l.data_overlap, "data-parallel overlap is not offered", [0; 4])?;
            ensure(k.expert_overlap || !l.expert_overlap, "expert-parallel overlap is not offered", [0; 4])?;
            ensure(k.shared_overlap || !l.shared_overlap, "overlap of shared experts is not offered", [0; 4])
        },
    },
    Rule {
        name: "cuda-graph-axis",
        source: AXES,
        judge: Judge::Nobody,
        reach: Reach::Cell,
        check: |k, _, l| {
            ensure(k.cuda_graphs.contains(&l.cuda_graphs), "this kind of CUDA graph is not offered", [0; 4])
        },
    },
    Rule {
        name: "offload-axis",
        source: AXES,
        judge: Judge::Nobody,
        reach: Reach::Cell,
        check: |k, _, l| {
            ensure(
                k.optimizer_places.contains(&l.offload.optimizer),
                "the optimizer cannot live there",
                [0; 4],
            )?;
            ensure(k.parameter_places.contains(&l.offload.parameters), "weights cannot live there", [0; 4])?;
            ensure(
                k.activation_offload || !l.offload.activations,
                "activations cannot go to host memory",
                [0; 4],
            )
        },
    },
    Rule {
        name: "precision-hardware",
        source: "Transformer Engine transformer_engine/pytorch/quantization.py check_*_support",
        judge: Judge::Run,
        reach: Reach::Job,
        check: |_, c, _| {
            use Architecture::{Ada, Blackwell, Cdna3, Cdna4, Hopper};
            let there = match c.precision {
                Precision::Bf16 | Precision::Fp16 => true,
                Precision::Fp8 => matches!(c.hardware.architecture, Ada | Hopper | Blackwell | Cdna3 | Cdna4),
                Precision::Fp8Blockwise => matches!(c.hardware.architecture, Hopper | Blackwell),
                Precision::Mxfp8 | Precision::Nvfp4 => matches!(c.hardware.architecture, Blackwell | Cdna4),
            };
            ensure(there, "the accelerator has no matrix units for this number format", [0; 4])
        },
    },
];

const NANOTRON: Capabilities = Capabilities {
    tensor_parallel: true,
    pipeline_parallel: true,
    virtual_stages: false,
    schedules: &[Schedule::OneFOneB, Schedule::GPipe],
    context_comms: &[ContextComm::Ring],
    expert_parallel: false,
    expert_tensor: ExpertTensor::Tensor,
    sequence_parallel: SequenceParallel::Optional,
    zero_stages: &[0, 1],
    default_zero_stages: &[0, 1],
    shard_groups: ShardGroups::Whole,
    recompute: RecomputeFamilies {
        selective: Modules::NONE,
        full_uniform: 1,
        full_block: false,
        per_stage: false,
    },
    tensor_overlap: false,
    data_overlap: true,
    expert_overlap: false,
    shared_overlap: false,
    dispatchers: &[Dispatcher::AllToAll],
    default_dispatchers: &[Dispatcher::AllToAll],
    cuda_graphs: &[CudaGraphs::None],
    optimizer_places: &[Place::Gpu],
    parameter_places: &[Place::Gpu],
    activation_offload: false,
    // Blocks go greedily by a cost rule of its own, which cannot be told otherwise.
    uneven_stages: false,
    empty_stages: false,
    mtp_standalone: false,
    kv_replication: false,
};

const LLM_FOUNDRY: Capabilities = Capabilities {
    tensor_parallel: false,
    pipeline_parallel: false,
    schedules: &[Schedule::OneFOneB],
    context_comms: &[],
    expert_tensor: ExpertTensor::One,
    sequence_parallel: SequenceParallel::Never,
    zero_stages: &[0, 2, 3],
    default_zero_stages: &[0, 2, 3],
    shard_groups: ShardGroups::Divisors,
    ..NANOTRON
};

const INTERNEVO: Capabilities = Capabilities {
    virtual_stages: true,
    schedules: &[Schedule::OneFOneB, Schedule::Interleaved],
    context_comms: &[],
    expert_parallel: true,
    zero_stages: &[0, 1],
    default_zero_stages: &[1],
    shard_groups: ShardGroups::Divisors,
    uneven_stages: true,
    ..NANOTRON
};

const HAI_LLM: Capabilities = Capabilities {
    tensor_parallel: false,
    virtual_stages: true,
    schedules: &[Schedule::OneFOneB, Schedule::ZeroBubbleH1, Schedule::DualPipe],
    expert_parallel: true,
    expert_tensor: ExpertTensor::One,
    zero_stages: &[1],
    default_zero_stages: &[1],
    recompute: RecomputeFamilies {
        selective: Modules(0b0000_1111),
        full_uniform: 0,
        full_block: false,
        per_stage: false,
    },
    expert_overlap: true,
    dispatchers: &[Dispatcher::DeepEp],
    default_dispatchers: &[Dispatcher::DeepEp],
    uneven_stages: true,
    // The first rank of DualPipe holds both ends of the model (DeepSeek-V3 report, section 3.2.3). That the last stage may then
    // be without layers of its own is assumed: no rank could make up for it otherwise.
    empty_stages: true,
    ..NANOTRON
};

/// Rules of plain arithmetic for frameworks that are predicted but not exported.
static GENERIC_RULES: &[Rule] = &[
    Rule {
        name: "heads",
        source: "splitting attention over ranks",
        judge: Judge::SetUp,
        reach: Reach::Group,
        check: heads_divide,
    },
    Rule {
        name: "widths",
        source: "splitting matrices over ranks",
        judge: Judge::SetUp,
        reach: Reach::Group,
        check: widths_divide,
    },
    Rule {
        name: "sequence",
        source: "splitting sequences over ranks",
        judge: Judge::SetUp,
        reach: Reach::Group,
        check: sequence_divides,
    },
    Rule {
        name: "sequence-parallel",
        source: "splitting sequences over ranks",
        judge: Judge::SetUp,
        reach: Reach::Cell,
        check: tokens_divide,
    },
    Rule {
        name: "interleaving",
        source: "warm-up of the interleaved schedule",
        judge: Judge::SetUp,
        reach: Reach::Order,
        check: |_, _, l| {
            ensure(
                l.schedule != Schedule::Interleaved
                    || l.gradient_accumulation_steps % l.pipeline_parallel == 0,
                "{0} micro-batches are no multiple of {1} stages",
                numbers([u64::from(l.gradient_accumulation_steps), u64::from(l.pipeline_parallel)]),
            )
        },
    },
    Rule {
        name: "both-directions",
        source: "DualPipe dualpipe/dualpipe.py, step and __init__",
        judge: Judge::SetUp,
        reach: Reach::Order,
        check: |_, _, l| {
            let (p, m) = (l.pipeline_parallel, l.gradient_accumulation_steps);
            ensure(
                l.schedule != Schedule::DualPipe || p % 2 == 0 && m % 2 == 0 && m >= 2 * p,
                "DualPipe takes an even number of stages, and of micro-batches at least twice as many; not {0} and {1}",
                numbers([u64::from(p), u64::from(m)]),
            )
        },
    },
    DROPLESS,
];

/// Query heads divide among tensor-parallel ranks, and key/value heads divide or are replicated.
pub(crate) fn heads_divide(k: &Capabilities, c: &Context, l: &Layout) -> Result<(), Broken> {
    let tp = u64::from(l.tensor_parallel);
    for a in &c.attention {
        ensure(a.heads % tp == 0, "{0} heads do not divide among tp {1}", numbers([a.heads, tp]))?;
        let replicated = k.kv_replication && tp % a.kv_heads == 0;
        ensure(
            a.kv_heads % tp == 0 || replicated,
            "{0} key/value heads do not divide among tp {1}",
            numbers([a.kv_heads, tp]),
        )?;
    }
    for a in &c.latent {
        ensure(a.heads % tp == 0, "{0} heads do not divide among tp {1}", numbers([a.heads, tp]))?;
    }
    Ok(())
}

/// FSDP2 cuts the experts of a layer into whole ones: where those of an expert-parallel rank do not divide among the
/// `ranks` that share them, the first ranks hold more than is predicted. `cut` ranks, if more than experts, cut each.
pub(crate) fn whole_experts(c: &Context, l: &Layout, ep: u64, ranks: u64, cut: u64) -> Result<(), Broken> {
    for moe in &c.moe {
        ensure(
            l.zero_stage == 0 || cut > moe.experts || (moe.experts / ep.max(1)) % ranks.max(1) == 0,
            "{0} experts do not divide among the {1} ranks that shard them: the first would hold more than is predicted",
            numbers([moe.experts / ep.max(1), ranks]),
        )?;
    }
    Ok(())
}

/// Mamba heads and groups divide among tensor-parallel ranks.
pub(crate) fn mamba_divides(_: &Capabilities, c: &Context, l: &Layout) -> Result<(), Broken> {
    let tp = u64::from(l.tensor_parallel);
    for a in &c.mamba {
        ensure(a.heads % tp == 0, "{0} Mamba heads do not divide among tp {1}", numbers([a.heads, tp]))?;
        ensure(a.groups % tp == 0, "{0} Mamba groups do not divide among tp {1}", numbers([a.groups, tp]))?;
    }
    Ok(())
}

/// Feed-forward widths divide among the ranks that split them.
pub(crate) fn widths_divide(_: &Capabilities, c: &Context, l: &Layout) -> Result<(), Broken> {
    let (tp, etp) = (u64::from(l.tensor_parallel), u64::from(l.expert_tensor_parallel));
    for &width in &c.dense {
        ensure(
            width % tp == 0,
            "the feed-forward width {0} does not divide among tp {1}",
            numbers([width, tp]),
        )?;
    }
    for moe in &c.moe {
        ensure(
            moe.width % etp == 0,
            "the expert width {0} does not divide among etp {1}",
            numbers([moe.width, etp]),
        )?;
        ensure(
            moe.shared_width % tp == 0,
            "the shared experts' width {0} does not divide among tp {1}",
            numbers([moe.shared_width, tp]),
        )?;
    }
    Ok(())
}

/// Only models with experts have any to spread.
fn dense_has_no_experts(_: &Capabilities, c: &Context, l: &Layout) -> Result<(), Broken> {
    ensure(
        c.has_experts() || l.expert_parallel == 1,
        "the model has no experts, but ep is {0}",
        numbers([u64::from(l.expert_parallel)]),
    )
}

/// Every expert-parallel rank has as many experts.
fn experts_divide(_: &Capabilities, c: &Context, l: &Layout) -> Result<(), Broken> {
    let e = u64::from(l.expert_parallel);
    for moe in &c.moe {
        ensure(moe.experts % e == 0, "{0} experts do not divide among ep {1}", numbers([moe.experts, e]))?;
    }
    Ok(())
}

/// Sequences divide among context-parallel ranks, two pieces each, for a causal mask.
pub(crate) fn sequence_divides(_: &Capabilities, c: &Context, l: &Layout) -> Result<(), Broken> {
    let (cp, s) = (u64::from(l.context_parallel), c.sequence_length);
    ensure(
        cp == 1 || s % (2 * cp) == 0,
        "a sequence of {0} tokens is no multiple of 2 x cp {1}",
        numbers([s, cp]),
    )
}

/// The same where an exchange of heads gives every rank whole sequences, which need no balance.
fn pieces_divide(k: &Capabilities, c: &Context, l: &Layout) -> Result<(), Broken> {
    if l.context_comm != ContextComm::AllToAll {
        sequence_divides(k, c, l)?;
        return tokens_divide(k, c, l);
    }
    let (cp, s) = (u64::from(l.context_parallel), c.sequence_length);
    ensure(s % cp == 0, "a sequence of {0} tokens is no multiple of cp {1}", numbers([s, cp]))?;
    tokens_divide(k, c, l)
}

/// Sequence parallelism cuts what a context-parallel rank has among tensor ranks.
pub(crate) fn tokens_divide(_: &Capabilities, c: &Context, l: &Layout) -> Result<(), Broken> {
    let (tp, cp, s) = (u64::from(l.tensor_parallel), u64::from(l.context_parallel), c.sequence_length);
    ensure(
        !l.sequence_parallel || (s / cp) % tp == 0,
        "{0} tokens per context-parallel rank do not divide among tp {1}",
        numbers([s / cp, tp]),
    )
}

/// What a rule checks of a layout.
type Check = fn(&Capabilities, &Context, &Layout) -> Result<(), Broken>;

/// The arithmetic of splitting a model, which no framework gets around.
const ARITHMETIC: [Check; 6] = [
    dense_has_no_experts,
    experts_divide,
    heads_divide,
    exchanged_heads_divide,
    widths_divide,
    pieces_divide,
];

/// Where context parallelism exchanges heads for tokens, every rank gets whole heads.
fn exchanged_heads_divide(_: &Capabilities, c: &Context, l: &Layout) -> Result<(), Broken> {
    let (tp, cp) = (u64::from(l.tensor_parallel), u64::from(l.context_parallel));
    let exchanges = cp > 1 && l.context_comm == ContextComm::AllToAll;
    for heads in c.attention.iter().map(|a| a.heads).filter(|_| exchanges) {
        let text = "{0} query heads on tp {1} do not divide among cp {2}, which exchanges them";
        ensure(heads / tp % cp == 0, text, numbers([heads, tp, cp]))?;
    }
    Ok(())
}

/// Whether a model, a job and a layout contradict each other, whatever the framework: what heads, widths, experts and
/// sequences divide among, and what the schedule needs. Key and value heads may be replicated.
///
/// # Errors
/// The first law that is broken, in words.
pub fn consistent(context: &Context, layout: &Layout) -> Result<(), String> {
    let any = Capabilities { kv_replication: true, ..NANOTRON };
    for law in ARITHMETIC {
        law(&any, context, layout).map_err(|broken| broken.in_words())?;
    }
    layout.schedule_runs().map_err(|law| law.to_string())
}

/// Whether multi-token prediction may stand on the last chunk but one.
///
/// # Errors
/// What keeps it beside the head.
pub fn mtp_stands_alone(k: &Capabilities, c: &Context, l: &Layout) -> Result<(), Broken> {
    ensure(k.mtp_standalone, STAYS_WITH_HEAD, [0; 4])?;
    ensure(c.mtp_modules > 0, "the model predicts no further tokens", [0; 4])?;
    ensure(
        !c.hybrid,
        "the pattern of a hybrid model has multi-token prediction behind its last stage",
        [0; 4],
    )?;
    let looped = matches!(l.schedule, Schedule::OneFOneB | Schedule::Interleaved);
    ensure(looped, "multi-token prediction stands alone under looped schedules only", [0; 4])?;
    // Neither the first rank nor the last.
    ensure(
        l.pipeline_parallel > 2,
        "multi-token prediction on a stage of its own takes 3 pipeline stages or more, not {0}",
        numbers([u64::from(l.pipeline_parallel)]),
    )
}

/// Plan rules that follow from [`Capabilities`].
pub static COMMON_PLAN_RULES: &[PlanRule] = &[
    PlanRule {
        name: "uneven-stages",
        source: AXES,
        judge: Judge::Nobody,
        reach: PlanReach::Placement,
        check: |k, _, p| {
            let chunks = p.chunks();
            let (least, most) =
                chunks.iter().fold((u32::MAX, 0), |(a, b), c| (a.min(c.layers), b.max(c.layers)));
            ensure(
                k.uneven_stages || least == most,
                "every stage must hold as many layers, but they hold {0} to {1}",
                numbers([u64::from(least), u64::from(most)]),
            )
        },
    },
    PlanRule {
        name: "empty-stages",
        source: AXES,
        judge: Judge::Nobody,
        reach: PlanReach::Placement,
        check: |k, _, p| {
            let empty = p.chunks().iter().filter(|c| c.layers == 0).count();
            ensure(k.empty_stages || empty == 0, "{0} stages hold no layer", numbers([empty as u64]))
        },
    },
    PlanRule {
        name: "recompute-family",
        source: AXES,
        judge: Judge::Nobody,
        reach: PlanReach::Recompute,
        check: |k, _, p| {
            for chunk in p.chunks().iter().filter(|c| c.layers > 0) {
                let (text, offered) = match chunk.recompute {
                    Recompute::None => ("", true),
                    Recompute::Selective(modules) => (
                        "recomputing this set of modules is not offered",
                        modules != Modules::NONE && modules.0 & !k.recompute.selective.0 == 0,
                    ),
                    Recompute::FullUniform(n) => (
                        "recomputing whole layers in groups of {0} is not offered",
                        n > 0 && n <= k.recompute.full_uniform,
                    ),
                    Recompute::FullBlock(n) => (
                        "recomputing the first {0} layers of every stage is not offered",
                        n > 0 && k.recompute.full_block,
                    ),
                };
                let n = match chunk.recompute {
                    Recompute::FullUniform(n) | Recompute::FullBlock(n) => u64::from(n),
                    _ => 0,
                };
                ensure(offered, text, numbers([n]))?;
            }
            Ok(())
        },
    },
    PlanRule {
        name: "recompute-common",
        source: AXES,
        judge: Judge::Nobody,
        reach: PlanReach::Recompute,
        check: |k, _, p| {
            ensure(
                k.recompute.per_stage || p.common_recompute().is_some(),
                "all stages must share one recompute mode",
                [0; 4],
            )
        },
    },
];
