//! A plan: how one training job is laid out, and the laws it obeys.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Everything about a plan but the placement of layers and recomputation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Layout {
    /// Ranks that split every matrix (TP).
    pub tensor_parallel: u32,
    /// Pipeline stages (PP).
    pub pipeline_parallel: u32,
    /// Model chunks per pipeline rank (VPP).
    pub virtual_stages: u32,
    /// Ranks that split every sequence (CP).
    pub context_parallel: u32,
    /// Ranks that split the experts (EP).
    pub expert_parallel: u32,
    /// Ranks that split every expert's matrices (ETP).
    pub expert_tensor_parallel: u32,
    /// Replicas of the dense model, each with its own data (DP).
    pub data_parallel: u32,
    /// Norms and residuals are split along the sequence inside the tensor-parallel group.
    pub sequence_parallel: bool,
    /// Sequences per micro-batch.
    pub micro_batch_size: u32,
    /// Micro-batches per pipeline and step.
    pub gradient_accumulation_steps: u32,
    /// 0: nothing sharded over data-parallel ranks; 1: optimizer; 2: and gradients; 3: and weights.
    pub zero_stage: u8,
    /// Ranks over which dense states are sharded: `data_parallel * context_parallel`, or a divisor of
    /// it (hybrid sharding). 1 where nothing is sharded.
    pub shard_group: u32,
    /// Order of forward and backward passes.
    pub schedule: Schedule,
    /// How attention crosses context-parallel ranks.
    pub context_comm: ContextComm,
    /// How tokens reach experts; none without experts.
    pub dispatcher: Option<Dispatcher>,
    /// Tensor-parallel collectives run under the matrix products.
    pub tensor_overlap: bool,
    /// Data-parallel collectives run under backward and forward passes.
    pub data_overlap: bool,
    /// Expert dispatch of one micro-batch runs under the computation of another.
    pub expert_overlap: bool,
    /// Shared experts run beside the exchange of their layer's routed tokens.
    #[serde(default, skip_serializing_if = "is_off")]
    pub shared_overlap: bool,
    /// Multi-token prediction stands on the last chunk but one, and the head alone on the last.
    #[serde(default, skip_serializing_if = "is_off")]
    pub mtp_standalone: bool,
    /// What CUDA graphs capture.
    pub cuda_graphs: CudaGraphs,
    /// What lives off the GPU.
    pub offload: Offload,
}

/// Whether a switch is off: what older files do not say is not written either.
fn is_off(switch: &bool) -> bool {
    !switch
}

/// Order of forward and backward passes on each pipeline rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Schedule {
    /// All forward passes, then all backward passes.
    GPipe,
    /// One forward, one backward, after a warm-up; also stands for a single stage.
    OneFOneB,
    /// One forward, one backward over several chunks per rank.
    Interleaved,
    /// Zero bubble, H1: weight gradients fill the cool-down; memory of 1F1B.
    ZeroBubbleH1,
    /// Zero bubble, H2: no bubble where passes are equal; about twice the memory.
    ZeroBubbleH2,
    /// Zero bubble with two chunks per rank placed as a V.
    ZeroBubbleV,
    /// Two directions at once, two copies of the weights (DeepSeek).
    DualPipe,
}

impl Schedule {
    /// Whether backward passes come in two parts, of which the second, for weight gradients, need not be waited for.
    #[must_use]
    pub fn splits_backward(self) -> bool {
        !matches!(self, Self::OneFOneB | Self::GPipe | Self::Interleaved)
    }
}

/// How attention crosses context-parallel ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum ContextComm {
    /// Keys and values travel a ring (`p2p`).
    Ring,
    /// Keys and values are gathered.
    AllGather,
    /// Heads are exchanged for sequence (Ulysses, `a2a`).
    AllToAll,
}

/// How tokens reach their experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Dispatcher {
    /// Every rank gathers all tokens.
    AllGather,
    /// NCCL all-to-all, one copy per chosen expert.
    AllToAll,
    /// DeepEP: one copy per rank and node.
    DeepEp,
    /// HybridEP: one copy per rank and NVLink domain, permutation fused.
    HybridEp,
}

/// What CUDA graphs capture.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum CudaGraphs {
    /// Nothing.
    None,
    /// Attention.
    Attention,
    /// Attention, router and dispatch preprocessing.
    AttentionRouter,
    /// The whole iteration.
    FullIteration,
}

/// What lives off the GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Offload {
    /// Where master weights and moments live.
    pub optimizer: Place,
    /// Where the weights live between uses (ZeRO-3).
    pub parameters: Place,
    /// Saved activations go to host memory.
    pub activations: bool,
}

/// A place for training state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Place {
    /// GPU memory.
    Gpu,
    /// Host memory.
    Cpu,
    /// Local NVMe.
    Nvme,
}

impl Offload {
    /// Whether weights or optimizer states live off the GPU.
    #[must_use]
    pub fn moves_states(self) -> bool {
        self.optimizer != Place::Gpu || self.parameters != Place::Gpu
    }
    /// Everything on the GPU.
    pub const NONE: Self = Self { optimizer: Place::Gpu, parameters: Place::Gpu, activations: false };
}

/// Parts of a layer that selective recomputation can drop, as a set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Modules(pub u8);

/// One part of a layer that selective recomputation can drop; names are Megatron's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Module {
    /// Core attention.
    CoreAttention = 0,
    /// Norm outputs.
    LayerNorm = 1,
    /// Up projections of latent attention.
    MlaUpProjection = 2,
    /// The experts' activation function.
    MoeActivation = 3,
    /// The dense feed-forward part.
    Mlp = 4,
    /// The whole MoE layer, dispatch included.
    Moe = 5,
    /// Shared experts.
    SharedExperts = 6,
    /// Operator by operator: products are kept by turns, everything cheap is recomputed (torchtitan's
    /// selective mode "op").
    Operators = 7,
}

impl Module {
    /// Every module.
    pub const ALL: [Self; 8] = [
        Self::CoreAttention,
        Self::LayerNorm,
        Self::MlaUpProjection,
        Self::MoeActivation,
        Self::Mlp,
        Self::Moe,
        Self::SharedExperts,
        Self::Operators,
    ];
    /// Megatron's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::CoreAttention => "core_attn",
            Self::LayerNorm => "layernorm",
            Self::MlaUpProjection => "mla_up_proj",
            Self::MoeActivation => "moe_act",
            Self::Mlp => "mlp",
            Self::Moe => "moe",
            Self::SharedExperts => "shared_experts",
            Self::Operators => "op",
        }
    }
}

impl Modules {
    /// No module.
    pub const NONE: Self = Self(0);
    /// Whether the set holds a module.
    #[must_use]
    pub fn has(self, module: Module) -> bool {
        self.0 >> module as u8 & 1 == 1
    }
    /// The set with one module more.
    #[must_use]
    pub fn with(self, module: Module) -> Self {
        Self(self.0 | 1 << module as u8)
    }
    /// Members in a fixed order.
    pub fn iter(self) -> impl Iterator<Item = Module> {
        Module::ALL.into_iter().filter(move |&m| self.has(m))
    }
}

/// What a chunk of layers recomputes in its backward pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Recompute {
    /// Nothing.
    #[default]
    None,
    /// The listed modules of every layer.
    Selective(Modules),
    /// Whole layers, saving the input of every `n`-th.
    FullUniform(u32),
    /// The first `n` layers of the chunk whole, the rest not.
    FullBlock(u32),
}

impl Recompute {
    /// What modules that predict further tokens do beside layers that do this, if they recompute as layers do: a module
    /// is one unit, and none of the first few layers
    /// (Megatron-LM:megatron/core/transformer/multi_token_prediction.py `_checkpointed_forward`).
    #[must_use]
    pub fn of_modules(self, recomputed: bool) -> Self {
        match self {
            Self::FullUniform(_) if recomputed => Self::FullUniform(1),
            Self::Selective(_) if recomputed => self,
            _ => Self::None,
        }
    }
}

impl fmt::Display for Recompute {
    /// `none`, `selective:core_attn+mlp`, `full:uniform:1`, `full:block:3`.
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::Selective(modules) => {
                f.write_str("selective")?;
                for (i, module) in modules.iter().enumerate() {
                    write!(f, "{}{}", if i == 0 { ":" } else { "+" }, module.name())?;
                }
                Ok(())
            }
            Self::FullUniform(n) => write!(f, "full:uniform:{n}"),
            Self::FullBlock(n) => write!(f, "full:block:{n}"),
        }
    }
}

/// A recompute mode's text was not understood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{text}` is not a recompute mode: did you mean `{near}`? Expected none, selective:MODULE+MODULE, full:uniform:N or full:block:N (modules: core_attn, layernorm, mla_up_proj, moe_act, mlp, moe, shared_experts, op)"
)]
pub struct ParseRecomputeError {
    text: String,
    near: String,
}

impl ParseRecomputeError {
    fn of(text: &str) -> Self {
        const MODES: [&str; 4] = ["none", "selective", "full:uniform:1", "full:block:1"];
        let nearest = |found: &str, known: &mut dyn Iterator<Item = &'static str>| {
            known.max_by_key(|known| (strsim::jaro_winkler(found, known) * 1e6) as u64).unwrap_or("none")
        };
        let near = match text.split_once(':') {
            // Which of the modules is none?
            Some(("selective", list)) => {
                let named = |name: &str| {
                    let mut modules = Module::ALL.into_iter().map(Module::name);
                    nearest(name.trim(), &mut modules)
                };
                format!("selective:{}", list.split('+').map(named).collect::<Vec<_>>().join("+"))
            }
            _ => nearest(text, &mut MODES.into_iter()).to_owned(),
        };
        Self { text: text.to_owned(), near }
    }
}

impl std::str::FromStr for Recompute {
    type Err = ParseRecomputeError;
    /// Also reads the short forms of measured data: `full` (uniform, every layer) and `full:N`
    /// (uniform) and `selective` (core attention).
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let err = || ParseRecomputeError::of(text);
        let number = |n: &str| n.parse::<u32>().ok().filter(|&n| n > 0).ok_or_else(err);
        let parts: Vec<&str> = text.trim().split(':').collect();
        match parts.as_slice() {
            ["none"] => Ok(Self::None),
            ["full"] => Ok(Self::FullUniform(1)),
            ["full", n] if n.starts_with(|c: char| c.is_ascii_digit()) => Ok(Self::FullUniform(number(n)?)),
            ["full", "uniform", n] => Ok(Self::FullUniform(number(n)?)),
            ["full", "block", n] => Ok(Self::FullBlock(number(n)?)),
            ["selective"] => Ok(Self::Selective(Modules::NONE.with(Module::CoreAttention))),
            ["selective", list] => {
                let mut modules = Modules::NONE;
                for name in list.split('+') {
                    let module = Module::ALL.into_iter().find(|m| m.name() == name.trim()).ok_or_else(err)?;
                    modules = modules.with(module);
                }
                Ok(Self::Selective(modules))
            }
            _ => Err(err()),
        }
    }
}

impl Serialize for Recompute {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}
impl<'de> Deserialize<'de> for Recompute {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// A run of consecutive decoder layers on one pipeline rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Chunk {
    /// Decoder layers.
    pub layers: u32,
    /// What they recompute.
    pub recompute: Recompute,
}

/// A layout with its layers placed.
///
/// `chunks` holds `pipeline_parallel * virtual_stages` entries in model order; chunk `k` lives on
/// rank `k mod pipeline_parallel` (with [`Schedule::ZeroBubbleV`] and [`Schedule::DualPipe`] the
/// second half is mirrored). The embedding belongs to the first chunk; head, loss and
/// multi-token-prediction modules belong to the last, unless [`Layout::mtp_standalone`].
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Plan {
    layout: Layout,
    chunks: Vec<Chunk>,
}

/// A law of [`Plan`] that a combination breaks.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlanLaw {
    /// Some degree is zero.
    #[error("{0} is 0; every degree is at least 1")]
    Zero(&'static str),
    /// Degrees do not multiply to the number of GPUs.
    #[error("tp {tp} x pp {pp} x cp {cp} x dp {dp} = {product}, but the job has {gpus} GPUs")]
    Product {
        /// Tensor-parallel degree.
        tp: u32,
        /// Pipeline-parallel degree.
        pp: u32,
        /// Context-parallel degree.
        cp: u32,
        /// Data-parallel degree.
        dp: u32,
        /// Their product.
        product: u64,
        /// GPUs of the job.
        gpus: u32,
    },
    /// Micro-batch, accumulation and data parallelism do not multiply to the global batch.
    #[error("micro-batch {mb} x accumulation {ga} x dp {dp} = {product}, but the global batch is {batch}")]
    Batch {
        /// Micro-batch size.
        mb: u32,
        /// Accumulation steps.
        ga: u32,
        /// Data-parallel degree.
        dp: u32,
        /// Their product.
        product: u64,
        /// Global batch.
        batch: u32,
    },
    /// The chunks are not as many as stages and virtual stages need.
    #[error("{found} chunks, but {pp} stages x {vpp} virtual stages need {expected}")]
    Chunks {
        /// Chunks given.
        found: usize,
        /// Stages.
        pp: u32,
        /// Virtual stages.
        vpp: u32,
        /// Chunks needed.
        expected: u64,
    },
    /// The schedule cannot run these chunks or micro-batches.
    #[error(
        "{schedule:?} needs {needed}, but vpp is {vpp}, pp {pp} and there are {micro_batches} micro-batches"
    )]
    Schedule {
        /// The schedule.
        schedule: Schedule,
        /// What it needs.
        needed: &'static str,
        /// Virtual stages.
        vpp: u32,
        /// Stages.
        pp: u32,
        /// Micro-batches per pipeline.
        micro_batches: u32,
    },
    /// The chunks do not hold all layers of the model.
    #[error("the chunks hold {found} layers, but the model has {expected}")]
    Layers {
        /// Layers placed.
        found: u64,
        /// Layers of the model.
        expected: u32,
    },
    /// Layers stand behind multi-token prediction.
    #[error(
        "multi-token prediction is standalone, so the head is alone on the last of {chunks} chunks, but {layers} layers are there"
    )]
    Standalone {
        /// Chunks.
        chunks: usize,
        /// Layers of the last.
        layers: u32,
    },
    /// Expert degrees do not divide what they are carved from.
    #[error("expert-parallel {ep} x expert-tensor-parallel {etp} does not divide tp x cp x dp = {block}")]
    Experts {
        /// Expert-parallel degree.
        ep: u32,
        /// Expert-tensor-parallel degree.
        etp: u32,
        /// Ranks of one pipeline stage.
        block: u64,
    },
    /// The sharding group does not divide the data-parallel ranks.
    #[error("states are sharded over {group} ranks, which does not divide dp x cp = {ranks}")]
    ShardGroup {
        /// Ranks that share states.
        group: u32,
        /// Data-parallel times context-parallel ranks.
        ranks: u64,
    },
}

impl Layout {
    /// One GPU, one sequence: nothing is divided, overlapped or offloaded.
    pub const ONE: Self = Self {
        tensor_parallel: 1,
        pipeline_parallel: 1,
        virtual_stages: 1,
        context_parallel: 1,
        expert_parallel: 1,
        expert_tensor_parallel: 1,
        data_parallel: 1,
        sequence_parallel: false,
        micro_batch_size: 1,
        gradient_accumulation_steps: 1,
        zero_stage: 0,
        shard_group: 1,
        schedule: Schedule::OneFOneB,
        context_comm: ContextComm::Ring,
        dispatcher: None,
        tensor_overlap: false,
        data_overlap: false,
        expert_overlap: false,
        shared_overlap: false,
        mtp_standalone: false,
        cuda_graphs: CudaGraphs::None,
        offload: Offload::NONE,
    };

    /// GPUs in use.
    #[must_use]
    pub fn gpus(&self) -> u64 {
        [self.tensor_parallel, self.pipeline_parallel, self.context_parallel, self.data_parallel]
            .into_iter()
            .map(u64::from)
            .product()
    }
    /// Sequences per step.
    #[must_use]
    pub fn global_batch_size(&self) -> u64 {
        [self.micro_batch_size, self.gradient_accumulation_steps, self.data_parallel]
            .into_iter()
            .map(u64::from)
            .product()
    }
    /// Chunks of layers over all ranks.
    #[must_use]
    pub fn chunk_count(&self) -> u32 {
        self.pipeline_parallel * self.virtual_stages
    }
    /// The chunk of multi-token prediction, where it is not that of the head.
    #[must_use]
    pub fn mtp_chunk(&self) -> Option<u32> {
        self.chunk_count().checked_sub(2).filter(|_| self.mtp_standalone)
    }
    /// Pipeline rank of chunk `k` in model order.
    #[must_use]
    pub fn rank_of_chunk(&self, chunk: u32) -> u32 {
        let p = self.pipeline_parallel;
        match self.schedule {
            Schedule::ZeroBubbleV | Schedule::DualPipe if chunk / p % 2 == 1 => p - 1 - chunk % p,
            _ => chunk % p,
        }
    }
    /// Whether the schedule can run so many chunks and micro-batches at all, whatever a framework says.
    ///
    /// # Errors
    /// [`PlanLaw::Schedule`].
    pub fn schedule_runs(&self) -> Result<(), PlanLaw> {
        let (vpp, pp, micro_batches) =
            (self.virtual_stages, self.pipeline_parallel, self.gradient_accumulation_steps);
        let (runs, needed) = match self.schedule {
            Schedule::Interleaved => {
                (vpp > 1 && pp > 1 && micro_batches >= pp, "vpp > 1, pp > 1 and a micro-batch per stage")
            }
            Schedule::ZeroBubbleV | Schedule::DualPipe => (vpp == 2, "vpp 2"),
            Schedule::GPipe | Schedule::OneFOneB | Schedule::ZeroBubbleH1 | Schedule::ZeroBubbleH2 => {
                (vpp == 1, "vpp 1")
            }
        };
        let schedule = self.schedule;
        if runs { Ok(()) } else { Err(PlanLaw::Schedule { schedule, needed, vpp, pp, micro_batches }) }
    }
    /// Replicas of every expert.
    #[must_use]
    pub fn expert_data_parallel(&self) -> u32 {
        let block = u64::from(self.tensor_parallel)
            * u64::from(self.context_parallel)
            * u64::from(self.data_parallel);
        (block / (u64::from(self.expert_parallel) * u64::from(self.expert_tensor_parallel))) as u32
    }
}

impl Plan {
    /// Makes a plan, checking every law.
    ///
    /// # Errors
    /// The first [`PlanLaw`] that is broken.
    pub fn new(
        layout: Layout,
        chunks: Vec<Chunk>,
        gpus: u32,
        global_batch_size: u32,
        layers: u32,
    ) -> Result<Self, PlanLaw> {
        let l = &layout;
        for (name, degree) in [
            ("tensor_parallel", l.tensor_parallel),
            ("pipeline_parallel", l.pipeline_parallel),
            ("virtual_stages", l.virtual_stages),
            ("context_parallel", l.context_parallel),
            ("expert_parallel", l.expert_parallel),
            ("expert_tensor_parallel", l.expert_tensor_parallel),
            ("data_parallel", l.data_parallel),
            ("micro_batch_size", l.micro_batch_size),
            ("gradient_accumulation_steps", l.gradient_accumulation_steps),
            ("shard_group", l.shard_group),
        ] {
            if degree == 0 {
                return Err(PlanLaw::Zero(name));
            }
        }
        let (tp, pp, cp, dp) = (l.tensor_parallel, l.pipeline_parallel, l.context_parallel, l.data_parallel);
        if l.gpus() != u64::from(gpus) {
            return Err(PlanLaw::Product { tp, pp, cp, dp, product: l.gpus(), gpus });
        }
        if l.global_batch_size() != u64::from(global_batch_size) {
            let (mb, ga) = (l.micro_batch_size, l.gradient_accumulation_steps);
            return Err(PlanLaw::Batch {
                mb,
                ga,
                dp,
                product: l.global_batch_size(),
                batch: global_batch_size,
            });
        }
        let block = u64::from(tp) * u64::from(cp) * u64::from(dp);
        let (ep, etp) = (l.expert_parallel, l.expert_tensor_parallel);
        // Without experts both degrees are 1; with them they are carved out of tp x cp x dp.
        if block % (u64::from(ep) * u64::from(etp)) != 0 {
            return Err(PlanLaw::Experts { ep, etp, block });
        }
        let ranks = u64::from(dp) * u64::from(cp);
        if ranks % u64::from(l.shard_group) != 0 {
            return Err(PlanLaw::ShardGroup { group: l.shard_group, ranks });
        }
        let expected = u64::from(pp) * u64::from(l.virtual_stages);
        if chunks.len() as u64 != expected {
            return Err(PlanLaw::Chunks { found: chunks.len(), pp, vpp: l.virtual_stages, expected });
        }
        let found: u64 = chunks.iter().map(|c| u64::from(c.layers)).sum();
        if found != u64::from(layers) {
            return Err(PlanLaw::Layers { found, expected: layers });
        }
        if let Some(last) = chunks.last().filter(|last| l.mtp_standalone && last.layers > 0) {
            return Err(PlanLaw::Standalone { chunks: chunks.len(), layers: last.layers });
        }
        Ok(Self { layout, chunks })
    }

    /// Degrees, batch, sharding and schedule.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        &self.layout
    }
    /// Layers and recomputation per chunk, in model order.
    #[must_use]
    pub fn chunks(&self) -> &[Chunk] {
        &self.chunks
    }
    /// The recompute mode that all chunks share, if they do.
    #[must_use]
    pub fn common_recompute(&self) -> Option<Recompute> {
        let first = self.chunks.iter().find(|c| c.layers > 0).or(self.chunks.first())?.recompute;
        self.chunks.iter().all(|c| c.recompute == first || c.layers == 0).then_some(first)
    }
}

impl fmt::Display for Offload {
    /// What leaves the GPU, as plans are named: `off-opt off-act`; nothing of what stays.
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let words = [
            (self.optimizer == Place::Cpu, "off-opt"),
            (self.optimizer == Place::Nvme, "off-opt-nvme"),
            (self.parameters == Place::Cpu, "off-par"),
            (self.parameters == Place::Nvme, "off-par-nvme"),
            (self.activations, "off-act"),
        ];
        let words: Vec<&str> = words.into_iter().filter(|(on, _)| *on).map(|(_, word)| word).collect();
        f.write_str(&words.join(" "))
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let l = self;
        write!(
            f,
            "tp{} pp{} vp{} cp{}",
            l.tensor_parallel, l.pipeline_parallel, l.virtual_stages, l.context_parallel
        )?;
        write!(f, " ep{}", l.expert_parallel)?;
        if l.expert_tensor_parallel > 1 {
            write!(f, " etp{}", l.expert_tensor_parallel)?;
        }
        write!(f, " dp{} mb{} ga{}", l.data_parallel, l.micro_batch_size, l.gradient_accumulation_steps)?;
        write!(f, " zero{}", l.zero_stage)?;
        let ranks = l.data_parallel * l.context_parallel;
        if l.zero_stage > 0 && l.shard_group != ranks {
            write!(f, "/{}", l.shard_group)?;
        }
        // Flags that are usually on are named where they are off.
        if l.tensor_parallel > 1 && !l.sequence_parallel {
            f.write_str(" no-sp")?;
        }
        if ranks > 1 && !l.data_overlap {
            f.write_str(" no-dp-ov")?;
        }
        match l.schedule {
            Schedule::OneFOneB | Schedule::Interleaved => {}
            Schedule::GPipe => f.write_str(" gpipe")?,
            Schedule::ZeroBubbleH1 => f.write_str(" zb-h1")?,
            Schedule::ZeroBubbleH2 => f.write_str(" zb-h2")?,
            Schedule::ZeroBubbleV => f.write_str(" zb-v")?,
            Schedule::DualPipe => f.write_str(" dualpipe")?,
        }
        match (l.context_parallel > 1, l.context_comm) {
            (false, _) | (true, ContextComm::Ring) => {}
            (true, ContextComm::AllGather) => f.write_str(" cp-ag")?,
            (true, ContextComm::AllToAll) => f.write_str(" cp-a2a")?,
        }
        match l.dispatcher {
            None | Some(Dispatcher::AllToAll) => {}
            Some(Dispatcher::AllGather) => f.write_str(" ep-ag")?,
            Some(Dispatcher::DeepEp) => f.write_str(" deepep")?,
            Some(Dispatcher::HybridEp) => f.write_str(" hybridep")?,
        }
        let overlaps =
            [(l.tensor_overlap, " tp-ov"), (l.expert_overlap, " ep-ov"), (l.shared_overlap, " shared-ov")];
        for (on, word) in overlaps {
            if on {
                f.write_str(word)?;
            }
        }
        if l.mtp_standalone {
            f.write_str(" mtp-standalone")?;
        }
        match l.cuda_graphs {
            CudaGraphs::None => {}
            CudaGraphs::Attention => f.write_str(" graph-attn")?,
            CudaGraphs::AttentionRouter => f.write_str(" graph-router")?,
            CudaGraphs::FullIteration => f.write_str(" graph-full")?,
        }
        if l.offload != Offload::NONE {
            write!(f, " {}", l.offload)?;
        }
        Ok(())
    }
}

impl fmt::Display for Plan {
    /// The one-line name, e.g. `tp8 pp16 vp4 cp1 ep1 dp128 mb1 ga16 zero1 rc-none`.
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{}", self.layout)?;
        match self.common_recompute() {
            Some(mode) => write!(f, " rc-{mode}"),
            None => f.write_str(" rc-mixed"),
        }
    }
}
