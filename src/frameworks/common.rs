//! Rules that all or several frameworks share, and the arithmetic of splitting a model that none gets around.

use super::rules::{Broken, Check, Judge, PlanReach, PlanRule, Reach, Rule, ensure, numbers};
use super::{Capabilities, Context, ExpertTensor, SequenceParallel, ShardGroups};
use crate::plan::{ContextComm, Dispatcher, Layout, Modules, Recompute, Schedule};
use crate::spec::cluster::Architecture;
use crate::spec::job::Precision;

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

/// The arithmetic of splitting a model, which no framework gets around.
pub const ARITHMETIC: [Check; 6] = [
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
