//! Runtime profiles: how training frameworks behave, as data.
//!
//! A profile names the few discrete ways in which a framework differs from a fused, overlapped
//! Megatron-Core run: what overlaps, which kernels are fused, what the host costs, which copies of
//! the weights and gradients are kept. Profiles ship as `src/frameworks/profiles/*.ron`, embedded.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use include_dir::{Dir, include_dir};
use serde::{Deserialize, Serialize};

use super::Target;
use crate::plan::{Layout, Place};
use crate::spec::cluster::{Architecture, AttentionKernel};
use crate::spec::job::{ExpertCapacity, Precision};
use crate::spec::model::Fault;
use crate::units::Seconds;

static FILES: Dir = include_dir!("$CARGO_MANIFEST_DIR/src/frameworks/profiles");

/// The schema version that this build reads.
pub const SCHEMA: u32 = 1;

/// How one framework of one era behaves at run time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// Version of this format; see [`SCHEMA`].
    pub schema: u32,
    /// What it describes, for people.
    pub title: String,
    /// How far its predictions of the few runs that were published are off, for people, where these are too few for a class.
    #[serde(default)]
    pub caveat: Option<String>,
    /// Whose rules plans follow where the profile is named in the place of a framework: its own, or those of the
    /// most similar one.
    pub rules: Target,
    /// Kernels.
    pub kernels: Kernels,
    /// Tensor-parallel communication.
    pub tensor: Tensor,
    /// Pipeline messages and the framework's own placement of layers.
    pub pipeline: Pipeline,
    /// Data-parallel communication.
    pub data: Data,
    /// Sharded weights (ZeRO-3, FSDP).
    pub sharded: Sharded,
    /// Mixture-of-experts layers; the shared figures of `src/frameworks/experts.ron` unless said otherwise.
    #[serde(default = "Experts::shared")]
    pub experts: Experts,
    /// Host time.
    pub host: Host,
    /// Stragglers and scale.
    pub jitter: Jitter,
    /// Memory recipe.
    pub memory: Memory,
    /// What a run of this framework does unless it says otherwise.
    #[serde(default)]
    pub defaults: Defaults,
    /// The loss of later releases.
    #[serde(default)]
    pub later_loss: Option<LaterLoss>,
    /// How much faster the same plan has become from release to release.
    #[serde(default)]
    pub releases: Vec<Releases>,
    /// Where the facts come from.
    #[serde(default)]
    pub sources: Vec<String>,
}

/// A number, or a choice, that may differ between silicon generations.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PerArchitecture<T = f64> {
    /// Where the generation is not listed.
    pub any: T,
    /// By generation.
    #[serde(default = "BTreeMap::new")]
    pub on: BTreeMap<Architecture, T>,
}

impl PerArchitecture {
    fn zero() -> Self {
        Self { any: 0.0, on: BTreeMap::new() }
    }
}

impl<T: Copy> PerArchitecture<T> {
    /// What holds for any generation.
    pub fn values(&self) -> impl Iterator<Item = &T> {
        std::iter::once(&self.any).chain(self.on.values())
    }

    /// What holds for a generation.
    #[must_use]
    pub fn get(&self, architecture: Architecture) -> T {
        self.on.get(&architecture).copied().unwrap_or(self.any)
    }
}

/// What a run does unless it says otherwise.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Defaults {
    /// Number format.
    #[serde(default = "bf16")]
    pub precision: Precision,
    /// Sequence parallelism wherever tensor parallelism is on.
    #[serde(default = "yes")]
    pub sequence_parallel: bool,
    /// Tensor-parallel overlap wherever sequence parallelism is on.
    #[serde(default)]
    pub tensor_overlap: bool,
    /// Sharding stage.
    #[serde(default = "one_stage")]
    pub zero_stage: u8,
    /// Decoder layers of one model chunk wherever the pipeline has more than one stage; none: one chunk
    /// per stage.
    #[serde(default)]
    pub layers_per_chunk: Option<u32>,
    /// Hidden dropout is on in models of the GPT kind.
    #[serde(default)]
    pub dropout: bool,
    /// The experts' exchange is hidden under passes of another micro-batch.
    #[serde(default)]
    pub expert_overlap: bool,
    /// Whole layers are recomputed.
    #[serde(default)]
    pub full_recompute: bool,
    /// `selective` recomputation chooses operators (PyTorch), not core attention (Megatron).
    #[serde(default)]
    pub selective_by_operator: bool,
    /// The batch of a replica is split into as many micro-batches as the pipeline has stages.
    #[serde(default)]
    pub micro_batches_fill_stages: bool,
    /// Mean length in tokens of the documents that fine-tuning packs into its sequences, by family of frameworks; others train
    /// on one document a sequence.
    #[serde(default)]
    pub fine_tuning_documents: BTreeMap<String, u32>,
    /// Mixture-of-experts recipes of later releases.
    #[serde(default)]
    pub experts: Vec<ExpertRecipe>,
    /// Capacity of experts where tokens are dropped.
    #[serde(default = "one_share")]
    pub token_drop: ExpertCapacity,
}

/// How recipes of a release and later run mixture-of-experts layers unless they say otherwise.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExpertRecipe {
    /// Generation.
    pub on: Architecture,
    /// Number format; none: all.
    #[serde(default)]
    pub precision: Option<Precision>,
    /// First release.
    pub since: (u32, u32),
    /// Expert exchange overlaps where it leaves the fast domain.
    #[serde(default)]
    pub overlap_across_domains: bool,
    /// A dispatch library where routing is limited to groups: on Blackwell HybridEP, on Hopper DeepEP where tokens leave the
    /// fast domain.
    #[serde(default)]
    pub library_where_limited: bool,
    /// One CUDA graph over the whole iteration, with padded capacity, and overlapped exchange.
    #[serde(default)]
    pub full_iteration_graphs: bool,
    /// It takes the place of the graphs of attention and router that a recipe names first, where routing is limited to groups.
    #[serde(default)]
    pub whole_for_named_scopes_where_limited: bool,
}

impl Default for Defaults {
    fn default() -> Self {
        Self {
            precision: bf16(),
            sequence_parallel: true,
            tensor_overlap: false,
            zero_stage: 1,
            layers_per_chunk: None,
            dropout: false,
            expert_overlap: false,
            full_recompute: false,
            selective_by_operator: false,
            micro_batches_fill_stages: false,
            fine_tuning_documents: BTreeMap::new(),
            experts: Vec::new(),
            token_drop: one_share(),
        }
    }
}

fn bf16() -> Precision {
    Precision::Bf16
}
fn yes() -> bool {
    true
}
fn one_stage() -> u8 {
    1
}
/// An equal share, padded: `apply_moe_token_drop` of Megatron-Bridge (src/megatron/bridge/training/utils/moe_token_drop.py) and
/// `MegatronTokenDropCallback` of NeMo.
fn one_share() -> ExpertCapacity {
    ExpertCapacity { factor: 1.0, padded: true }
}

/// Kernels.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Kernels {
    /// Factor on the sustained rate of matrix products.
    pub gemm: PerArchitecture,
    /// Attention kernels.
    pub attention_kernel: PerArchitecture<AttentionKernel>,
    /// The same where windows or chunks cut sequences, if they are others'.
    #[serde(default)]
    pub windowed_kernel: Option<AttentionKernel>,
    /// Factor on their rate.
    pub attention: PerArchitecture,
    /// What attention that is not fused does with its scores: any, or that which Transformers computes eagerly
    /// ([`super::hf::eager_attention`]).
    #[serde(default)]
    pub eager_scores: Option<EagerScores>,
    /// Factor on the traffic of norms and residuals (1: fused).
    pub norm_traffic: PerArchitecture,
    /// Factor on the traffic of activation functions (1: fused).
    pub activation_traffic: PerArchitecture,
    /// Weight gradients are accumulated in place by the matrix product.
    pub fused_gradient_accumulation: bool,
    /// Bytes of a separate gradient addition per local parameter and micro-batch.
    #[serde(default)]
    pub gradient_addition_bytes: f64,
    /// Bytes per logit that the loss moves forward and backward.
    pub loss_bytes: (f64, f64),
    /// The loss works on gathered logits of the whole vocabulary.
    #[serde(default)]
    pub loss_gathered: bool,
}

/// Scores of attention in memory.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EagerScores {
    /// Bytes per score that operations on whole squares of them move, forward and backward, at the rate of streaming kernels.
    pub moved: (f64, f64),
    /// Bytes per score that are kept for the backward pass.
    pub kept: f64,
    /// Bytes per score that the backward pass of a layer holds beyond these at its peak.
    #[serde(default)]
    pub working: f64,
}

impl Kernels {
    /// The attention kernel, where windows or chunks cut sequences or not.
    #[must_use]
    pub fn attention_kernel(&self, architecture: Architecture, windowed: bool) -> AttentionKernel {
        let own = self.attention_kernel.get(architecture);
        self.windowed_kernel.filter(|_| windowed).unwrap_or(own)
    }

    /// The scores that attention computes in memory, where Transformers would do so eagerly or not; none where its kernels
    /// are fused.
    #[must_use]
    pub fn scores(&self, architecture: Architecture, eager: bool) -> Option<EagerScores> {
        let fused = self.attention_kernel.get(architecture) != AttentionKernel::Unfused;
        self.eager_scores.filter(|_| eager || !fused)
    }
}

/// Tensor-parallel communication.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tensor {
    /// Share of all collectives that pipelined overlap with matrix products leaves exposed.
    pub overlapped_exposed: f64,
    /// Factor on all-reduces where sequence parallelism is off.
    pub all_reduce_factor: f64,
    /// Share of the backward pass's all-reduces that is exposed: less than 1 where they run beside
    /// weight gradients.
    pub all_reduce_backward: f64,
    /// Where positive, every collective of sequence parallelism is exposed, re-gathers and
    /// reduce-scatters of the backward pass too, and takes this many times as long. Zero: re-gathers
    /// hide under data gradients, and reduce-scatters under weight gradients.
    #[serde(default = "PerArchitecture::zero")]
    pub synchronous_factor: PerArchitecture,
    /// Adapters of split layers have collectives of their own, as Megatron-Core's have.
    #[serde(default)]
    pub adapter_collectives: bool,
}

/// Pipeline messages.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pipeline {
    /// Interleaved schedules overlap messages with computation.
    pub overlap_interleaved: bool,
    /// Messages are split over tensor-parallel ranks also without sequence parallelism.
    pub scattered: bool,
    /// Host time of one message.
    pub message_host: Seconds,
    /// How the framework itself places layers.
    pub placement: Placement,
}

/// How a framework places layers on stages when it is not told.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum Placement {
    /// Equal counts.
    Even,
    /// Blocks fill ranks until the cumulative cost passes `(rank + 1) / p` of the total, with a layer
    /// counted `4 h^2 + 3 h f` and the head `head_weight * V h`; the block that crosses stays.
    Greedy {
        /// Weight of the head.
        head_weight: f64,
    },
}

/// When gradients are reduced and weights gathered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum DataMode {
    /// Both overlap with computation.
    Overlapped,
    /// Gradients overlap; the gather after the update does not.
    GradientsOverlapped,
    /// Nothing overlaps.
    After,
}

/// Data-parallel communication.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Data {
    /// With a sharded optimizer.
    pub sharded: DataMode,
    /// Without one (plain all-reduce).
    pub replicated: DataMode,
    /// Gradients are all-reduced even where the optimizer is sharded.
    #[serde(default)]
    pub always_all_reduce: bool,
    /// Gradients are reduced in buckets on the first pipeline rank only; on others a chunk's are when all of them are there.
    #[serde(default)]
    pub buckets_on_first_rank: bool,
    /// Bytes of a gradient on the wire.
    pub gradient_bytes: f64,
    /// Latency per rank and tensor of collectives that are issued tensor by tensor, with a sharded
    /// optimizer and without one.
    pub tensor_latency: (Seconds, Seconds),
    /// Share of the network cards' rate that data-parallel traffic reaches.
    pub network: f64,
}

/// Sharded weights (ZeRO-3, FSDP).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sharded {
    /// Bytes of a gathered weight on the wire.
    pub gather_bytes: f64,
    /// Bytes of a reduced gradient on the wire.
    pub reduce_bytes: f64,
    /// Slow-down of computation under full overlap.
    pub slow: f64,
    /// Share of computation that cannot hide communication.
    pub tail: f64,
    /// Units that are gathered ahead.
    pub prefetch: f64,
    /// Most parameters of a layer that are gathered at a time; none: whole layers.
    #[serde(default)]
    pub most_gathered: Option<f64>,
    /// In a pipeline, weights stay gathered from the first micro-batch to the last, and gradients are
    /// reduced once, after the last.
    #[serde(default)]
    pub kept_in_pipeline: bool,
}

/// Mixture-of-experts layers (see the constants' sources in the profile's file).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Experts {
    /// Host time of one kernel launch.
    pub launch: Seconds,
    /// Launches of attention and norms, of router and preprocessing, and of everything else.
    pub launches: (f64, f64, f64),
    /// Launches per local expert, forward and backward.
    pub launches_per_expert: (f64, f64),
    /// Factor on launches per expert under tensor-wise FP8 and under block-scaled formats.
    pub low_precision_launches: (f64, f64),
    /// Exponent that joins device and host time where token counts are read on the host.
    pub host_exponent: f64,
    /// Share of memory bandwidth that permutation reaches.
    pub permute_efficiency: f64,
    /// Bytes per routed element that permutation moves: all-to-all, dispatch library, fused.
    pub permute_bytes: (f64, f64, f64),
    /// Share of the shorter of computation and communication that overlap leaves.
    pub overlap_exposed: f64,
    /// Bytes per element of expert biases (added expert by expert).
    pub bias_bytes: f64,
    /// Fixed latency of one dispatch or combine.
    pub dispatch_latency: Seconds,
    /// Most loaded rank over the mean with a natural router: many experts (above 16), few experts.
    pub imbalance: (f64, f64),
    /// Bytes of communication buffers of dispatch libraries.
    pub library_buffers: f64,
}

/// Host time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Host {
    /// Least time of a dense layer's forward pass.
    pub forward: Seconds,
    /// Least time of a dense layer's backward pass.
    pub backward: Seconds,
    /// Per micro-batch.
    pub micro_batch: Seconds,
    /// Per step, optimizer launches included.
    pub step: Seconds,
}

/// Stragglers and scale: the step takes `base + per_doubling * log2(gpus / 64)` times as long.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Jitter {
    /// At 64 GPUs and fewer.
    pub base: f64,
    /// For every doubling beyond.
    pub per_doubling: f64,
}

/// A plan that was measured again on later releases of the software ran faster: `per_month` is the
/// decline of the logarithm of the step time, held constant outside the window that was observed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Releases {
    /// Generation.
    pub on: Architecture,
    /// Only with 8-bit and narrower formats.
    #[serde(default)]
    pub low_precision_only: bool,
    /// Decline per month.
    pub per_month: f64,
    /// Year and month of the release that the other constants describe.
    pub reference: (u32, u32),
    /// First and last release observed.
    pub observed: ((u32, u32), (u32, u32)),
}

impl Profile {
    /// Bytes per logit that the loss of a release moves forward and backward, and bytes at its peak; of today's for none.
    #[must_use]
    pub fn loss(&self, release: Option<(u32, u32)>) -> ((f64, f64), f64) {
        match self.later_loss {
            Some(later) if release.is_none_or(|release| release >= later.since) => {
                (later.bytes, later.logit_bytes)
            }
            _ => (self.kernels.loss_bytes, self.memory.logit_bytes),
        }
    }

    /// Factor on the step time under a stated software release.
    #[must_use]
    pub fn release_factor(&self, architecture: Architecture, low: bool, release: (u32, u32)) -> f64 {
        let months = |(year, month): (u32, u32)| f64::from(year) * 12.0 + f64::from(month);
        let known = self.releases.iter().find(|r| r.on == architecture && (low || !r.low_precision_only));
        known.map_or(1.0, |r| {
            let (first, last) = (months(r.observed.0), months(r.observed.1));
            let at = months(release).clamp(first, last.max(first));
            (-r.per_month * (at - months(r.reference))).exp()
        })
    }
}

/// Memory recipe, bytes per parameter unless said otherwise.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Memory {
    /// BF16 recipe.
    pub bf16: States,
    /// FP16 recipe.
    pub fp16: States,
    /// Low-precision weights replace the BF16 ones (primary weights) instead of standing beside them.
    #[serde(default)]
    pub primary_low_precision: bool,
    /// Kept activations beyond the tensors that the backward pass reads: bytes per token for every
    /// hidden and every feed-forward channel.
    #[serde(default)]
    pub extra_kept: (f64, f64),
    /// Bytes per token and hidden channel that a layer keeps whole on every rank of sequence parallelism inside the
    /// fast domain: gathered inputs of its products.
    #[serde(default)]
    pub gathered_kept: f64,
    /// Where a micro-batch holds several sequences, attention's output is kept in two orders: as the kernel gives it and
    /// as its projection takes it.
    #[serde(default)]
    pub output_reordered: bool,
    /// Where sharded gradients are kept if the optimizer states are off the GPU.
    #[serde(default)]
    pub offloaded_gradients: OffloadedGradients,
    /// Bytes of the gradients' copy in host memory where the optimizer updates there, if more than on the GPU.
    #[serde(default)]
    pub host_gradients: f64,
    /// Bytes per logit at the peak of the loss.
    pub logit_bytes: f64,
    /// They are on the whole vocabulary, gathered where tensor-parallel ranks hold parts of it.
    #[serde(default)]
    pub logits_gathered: bool,
    /// Modules that predict further tokens recompute as layers do ([`crate::plan::Recompute::of_modules`]).
    #[serde(default)]
    pub further_recomputed: bool,
    /// Factor on the working set of one layer.
    #[serde(default = "one")]
    pub transient_factor: f64,
    /// Dummy weight gradients are cached per shape; none where the framework never does that.
    #[serde(default)]
    pub gradient_pool: Option<GradientPool>,
    /// Bytes that captured CUDA graphs hold for good beside what runs without them hold: inputs, outputs and
    /// intermediate results at fixed places; without and with pipeline stages.
    #[serde(default)]
    pub graph_buffers: (f64, f64),
    /// What goes to host memory where activations are offloaded.
    #[serde(default)]
    pub offloaded_activations: OffloadedActivations,
    /// Bytes per local parameter of staging at the update; the peak is this or activations, whichever
    /// is larger.
    #[serde(default)]
    pub staging: f64,
    /// The same beside that for every trained parameter where no states are sharded (stage 0).
    #[serde(default)]
    pub replicated_staging: f64,
    /// Bytes that norms of queries and keys, or of what latent attention compresses, keep per element beyond input and output;
    /// of those of the residual stream [`Memory::extra_kept`] has them.
    #[serde(default)]
    pub norm_kept: f64,
    /// Copies of trained weights that are computed with and last for a step, where weights are not sharded (below stage 3).
    #[serde(default)]
    pub cached_weights: f64,
    /// Reserved over allocated bytes.
    pub fragmentation: f64,
    /// Context, communicators and workspaces: bytes outside the allocator.
    pub fixed: f64,
    /// Runs report the peak of their first rank, on the first pipeline stage, not that of the fullest.
    #[serde(default)]
    pub first_rank_reports: bool,
}

impl Memory {
    /// Where the gradients of a layout are kept.
    #[must_use]
    pub fn gradients_of(&self, layout: &Layout) -> OffloadedGradients {
        let sharded = layout.zero_stage >= 2 && layout.offload.optimizer != Place::Gpu;
        if sharded { self.offloaded_gradients } else { OffloadedGradients::OnGpu }
    }
}

/// First releases, as year and month, whose dummy weight gradients are cached per shape and for good.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GradientPool {
    /// Those of linear layers.
    pub since: (u32, u32),
    /// Those of grouped products of experts.
    pub grouped_since: (u32, u32),
}

/// What later releases do in the loss.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LaterLoss {
    /// Year and month of the first of them.
    pub since: (u32, u32),
    /// In the place of [`Kernels::loss_bytes`].
    pub bytes: (f64, f64),
    /// In the place of [`Memory::logit_bytes`].
    pub logit_bytes: f64,
}

/// What goes to host memory where activations are offloaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum OffloadedActivations {
    /// What layers keep for their backward pass, except their input; both ways under computation.
    #[default]
    Kept,
    /// The inputs of layers that are recomputed whole: down under the next layer's forward pass, back when the
    /// layer is computed again, which waits for them.
    Inputs,
}

/// Where sharded gradients are kept from one micro-batch to the next if the optimizer states are off the GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum OffloadedGradients {
    /// On the GPU, as without offload.
    #[default]
    OnGpu,
    /// In host memory; they come up for the next micro-batch's to be added on the GPU, and go down again.
    SummedOnGpu,
    /// In host memory, to which those of every micro-batch go, to be added there.
    SummedOnHost,
}

/// Bytes of training state per parameter without moments.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct States {
    /// Weights that are computed with.
    pub weights: f64,
    /// Gradients that every rank holds in full (stage 1).
    pub gradients: f64,
    /// Master weights and further copies that belong to the owner: divided by the sharding group.
    pub owned: f64,
}

impl Experts {
    /// Figures of Megatron-Core, which every profile shares that does not say otherwise.
    ///
    /// # Panics
    /// Never: the embedded file is read by a test.
    #[must_use]
    pub fn shared() -> Self {
        crate::spec::ron_options().from_str(include_str!("experts.ron")).expect("the embedded file is valid")
    }
}

fn one() -> f64 {
    1.0
}

static PROFILES: LazyLock<BTreeMap<String, Result<Profile, String>>> = LazyLock::new(|| {
    let read = |file: &include_dir::File| {
        let text = file.contents_utf8().unwrap_or_default();
        let profile: Result<Profile, _> = crate::spec::ron_options().from_str(text);
        let profile = profile.map_err(|e| e.to_string());
        profile.and_then(|p| p.validate().map(|()| p).map_err(|fault| fault.message))
    };
    let name = |file: &include_dir::File| Some(file.path().file_stem()?.to_str()?.to_owned());
    FILES.files().filter_map(|file| Some((name(file)?, read(file)))).collect()
});

impl Profile {
    /// A shipped profile by name.
    #[must_use]
    pub fn find(name: &str) -> Option<&'static Self> {
        PROFILES.get(name)?.as_ref().ok()
    }

    /// The profile that predicts a framework's plans, with its name; one ships for each.
    #[must_use]
    pub fn of(target: Target) -> (String, &'static Self) {
        let name = target.profile_name();
        (name.to_owned(), Self::find(name).expect("a profile of every framework ships"))
    }

    /// The name under which a profile ships; empty for any other.
    #[must_use]
    pub fn name_of(profile: &Self) -> &'static str {
        let same = |shipped: &Result<Self, String>| shipped.as_ref().is_ok_and(|p| p.title == profile.title);
        PROFILES.iter().find(|(_, shipped)| same(shipped)).map_or("", |(name, _)| name.as_str())
    }

    /// Names of the shipped profiles, sorted.
    pub fn names() -> impl Iterator<Item = &'static str> {
        PROFILES.keys().map(String::as_str)
    }

    /// Checks ranges.
    ///
    /// # Errors
    /// The first [`Fault`] found.
    pub fn validate(&self) -> Result<(), Fault> {
        let fault = |field: &str, message: String| Fault { field: field.into(), within: None, message };
        if self.schema != SCHEMA {
            let message = format!("schema {} is not known; this build reads schema {SCHEMA}", self.schema);
            return Err(fault("schema", message));
        }
        let positive = [
            ("gemm", self.kernels.gemm.any),
            ("attention", self.kernels.attention.any),
            ("norm_traffic", self.kernels.norm_traffic.any),
            ("activation_traffic", self.kernels.activation_traffic.any),
            ("gradient_bytes", self.data.gradient_bytes),
            ("network", self.data.network),
            ("host_exponent", self.experts.host_exponent),
            ("permute_efficiency", self.experts.permute_efficiency),
            ("base", self.jitter.base),
            ("fragmentation", self.memory.fragmentation),
        ];
        for (field, value) in positive {
            if !(value.is_finite() && value > 0.0) {
                return Err(fault(field, format!("expected a positive number, found {value}")));
            }
        }
        let kernels = &self.kernels;
        let unfused = kernels.attention_kernel.values().any(|kernel| *kernel == AttentionKernel::Unfused);
        if unfused && kernels.eager_scores.is_none() {
            let message = "missing: attention that is not fused computes scores in memory".to_owned();
            return Err(fault("eager_scores", message));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shipped_profiles_are_valid() {
        assert!(PROFILES.len() >= 2);
        for (name, profile) in PROFILES.iter() {
            assert!(profile.is_ok(), "{name}: {profile:?}");
        }
        for target in Target::ALL {
            assert_eq!(Profile::of(target).0, target.profile_name());
            if let Some(own) = Profile::find(target.name()) {
                assert_eq!(own.rules, target);
            }
        }
        assert!(Profile::find("nothing").is_none());
    }
}
