//! Megatron-LM with Megatron-Core (and, on the same core, Megatron-Bridge).
//!
//! Read in Megatron-LM of August 2026 (core 0.20 line). Sources of rules name files below
//! `megatron/`; `TE` is Transformer Engine of the same month.

pub mod arguments;
mod batches;
mod experts;
pub mod flag_rules;
pub(super) mod flags;
pub mod import;
mod layer_lists;
mod left_out;
pub(super) mod other_jobs;
pub mod positions;
pub mod read_rules;
pub mod shape;
mod values;
mod vocabulary;
pub mod write;

use super::{
    Broken, Capabilities, Context, ExpertTensor, Judge, PlanReach, PlanRule, Reach, RecomputeFamilies, Rule,
    SequenceParallel, ShardGroups, ensure, heads_divide, joined, numbers, overlap_in_domain,
    sequence_divides, tokens_divide, widths_divide,
};
use crate::cost::schedule::interleave_group;
use crate::plan::{
    ContextComm, CudaGraphs, Dispatcher, Layout, Module, Modules, Place, Plan, Recompute, Schedule,
};
use crate::spec::job::{Optimizer, Precision, Training};

/// What Megatron-Core can express.
pub static CAPABILITIES: Capabilities = Capabilities {
    tensor_parallel: true,
    pipeline_parallel: true,
    virtual_stages: true,
    schedules: &[Schedule::OneFOneB, Schedule::Interleaved],
    context_comms: &[ContextComm::Ring, ContextComm::AllGather, ContextComm::AllToAll],
    expert_parallel: true,
    expert_tensor: ExpertTensor::Free,
    sequence_parallel: SequenceParallel::Optional,
    // 1 is the distributed optimizer; 2 and 3 are Megatron-FSDP.
    zero_stages: &[0, 1, 2, 3],
    default_zero_stages: &[0, 1],
    shard_groups: ShardGroups::Divisors,
    recompute: RecomputeFamilies {
        selective: Modules(0b0111_1111),
        full_uniform: u32::MAX,
        full_block: true,
        per_stage: false,
    },
    tensor_overlap: true,
    data_overlap: true,
    expert_overlap: true,
    shared_overlap: true,
    dispatchers: &[Dispatcher::AllGather, Dispatcher::AllToAll, Dispatcher::DeepEp, Dispatcher::HybridEp],
    default_dispatchers: &[
        Dispatcher::AllGather,
        Dispatcher::AllToAll,
        Dispatcher::DeepEp,
        Dispatcher::HybridEp,
    ],
    cuda_graphs: &[
        CudaGraphs::None,
        CudaGraphs::Attention,
        CudaGraphs::AttentionRouter,
        CudaGraphs::FullIteration,
    ],
    optimizer_places: &[Place::Gpu, Place::Cpu],
    parameter_places: &[Place::Gpu],
    activation_offload: true,
    uneven_stages: true,
    empty_stages: true,
    mtp_standalone: true,
    kv_replication: true,
};

/// Megatron-FSDP rather than the distributed optimizer.
pub(crate) fn fully_sharded(layout: &Layout) -> bool {
    layout.zero_stage >= 2
}

/// Sizes of expert groups that DeepEP has settings for.
const DEEPEP_RANKS: [u32; 12] = [2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 144, 160];

/// Its pretraining scripts train all weights.
pub(crate) const TRAINING: Rule = Rule {
    name: "training",
    source: "pretrain_gpt.py",
    judge: Judge::Nobody,
    reach: Reach::Job,
    check: |_, c, _| {
        ensure(
            c.training == Training::Full,
            "pretraining scripts train all weights; adapters need Megatron-Bridge's fine-tuning recipes",
            [0; 4],
        )
    },
};

/// Rules on layouts, in the order in which they are asked: Megatron-Core's, and one of Megatron-LM's scripts.
pub static RULES: &[Rule] = &joined::<{ CORE_RULES.len() + 1 }>(CORE_RULES, TRAINING);

/// Megatron-Core's rules on layouts.
pub const CORE_RULES: &[Rule] = &[
    Rule {
        name: "heads",
        source: "core/transformer/transformer_config.py __post_init__",
        judge: Judge::SetUp,
        reach: Reach::Group,
        check: heads_divide,
    },
    Rule {
        name: "mamba-heads",
        source: "core/ssm/mamba_mixer.py, at model construction",
        judge: Judge::Run,
        reach: Reach::Group,
        check: mamba_divides,
    },
    Rule {
        name: "widths",
        source: "core/tensor_parallel/layers.py divide, at model construction",
        judge: Judge::SetUp,
        reach: Reach::Group,
        check: widths_divide,
    },
    Rule {
        name: "sequence",
        source: "training/arguments.py validate_args",
        judge: Judge::SetUp,
        reach: Reach::Group,
        check: sequence_divides,
    },
    Rule {
        name: "sequence-parallel",
        source: "core/tensor_parallel/mappings.py",
        judge: Judge::SetUp,
        reach: Reach::Cell,
        check: tokens_divide,
    },
    Rule {
        name: "yarn-context",
        source: "core/models/common/embeddings/rope_utils.py get_pos_emb_on_this_cp_rank",
        judge: Judge::SetUp,
        reach: Reach::Group,
        check: |_, c, l| {
            let (length, cp) = (c.yarn_length.unwrap_or(0), u64::from(l.context_parallel));
            ensure(
                cp == 1 || length % (2 * cp) == 0,
                "YaRN's first table of {0} positions is not cut into 2 x {1} parts for context parallelism",
                numbers([length, cp]),
            )
        },
    },
    Rule {
        name: "interleaving",
        source: "core/pipeline_parallel/schedules.py forward_backward_pipelining_with_interleaving",
        judge: Judge::SetUp,
        reach: Reach::Order,
        check: |_, _, l| {
            ensure(
                l.virtual_stages == 1
                    || interleave_group(l.pipeline_parallel, l.gradient_accumulation_steps).is_some(),
                "the interleaved schedule needs at least {1} micro-batches, as many as stages, but has {0}",
                numbers([u64::from(l.gradient_accumulation_steps), u64::from(l.pipeline_parallel)]),
            )
        },
    },
    Rule {
        name: "context-all-to-all-heads",
        source: "TE attention/dot_product_attention/context_parallel.py, heads divisible by cp",
        judge: Judge::SetUp,
        reach: Reach::Cell,
        check: |_, c, l| {
            let (tp, cp) = (u64::from(l.tensor_parallel), u64::from(l.context_parallel));
            if cp == 1 || l.context_comm != ContextComm::AllToAll {
                return Ok(());
            }
            let text = "all-to-all context parallelism needs heads per rank divisible by cp {2}, but has {0} query and {1} key/value heads";
            for a in &c.attention {
                let (queries, keys) = (a.heads / tp, (a.kv_heads / tp).max(1));
                ensure(queries % cp == 0 && keys % cp == 0, text, numbers([queries, keys, cp]))?;
            }
            for a in &c.latent {
                let heads = a.heads / tp;
                ensure(heads % cp == 0, text, numbers([heads, heads, cp]))?;
            }
            Ok(())
        },
    },
    Rule {
        name: "head-size",
        source: "TE attention/dot_product_attention/utils.py get_attention_backend: FlashAttention and cuDNN take multiples of 8",
        judge: Judge::Nobody,
        reach: Reach::Job,
        check: |_, c, _| {
            let odd = c.attention.iter().find(|a| c.fused_attention && a.head_dim % 8 != 0);
            ensure(
                odd.is_none(),
                "heads of {0} have no fused attention in Transformer Engine, which takes multiples of 8, and scores in memory are not modelled",
                numbers([odd.map_or(0, |a| a.head_dim)]),
            )
        },
    },
    Rule {
        name: "context-windows",
        source: "TE attention/dot_product_attention/context_parallel.py, sliding windows",
        judge: Judge::Run,
        reach: Reach::Cell,
        check: |_, c, l| {
            ensure(
                !c.windows || l.context_parallel == 1 || l.context_comm != ContextComm::Ring,
                "attention windows do not work with ring context parallelism (cp {0}); gather or exchange instead",
                numbers([u64::from(l.context_parallel)]),
            )
        },
    },
    Rule {
        name: "context-sinks",
        source: "TE attention/dot_product_attention/context_parallel.py, softmax types",
        judge: Judge::Run,
        reach: Reach::Cell,
        check: |_, c, l| {
            ensure(
                !c.sinks || l.context_parallel == 1 || l.context_comm == ContextComm::AllToAll,
                "attention sinks work with context parallelism (cp {0}) only by all-to-all",
                numbers([u64::from(l.context_parallel)]),
            )
        },
    },
    Rule {
        name: "mamba-context",
        source: "core/ssm/mamba_context_parallel.py",
        judge: Judge::Run,
        reach: Reach::Group,
        check: |_, c, l| {
            let (tp, cp) = (u64::from(l.tensor_parallel), u64::from(l.context_parallel));
            for a in &c.mamba {
                let (heads, groups) = (a.heads / tp, a.groups / tp);
                ensure(
                    heads % cp == 0 && (groups % cp == 0 || cp % groups.max(1) == 0),
                    "{0} Mamba heads and {1} groups per tensor-parallel rank do not divide among cp {2}",
                    numbers([heads, groups, cp]),
                )?;
            }
            Ok(())
        },
    },
    Rule {
        name: "moe-tensor-needs-sequence",
        source: "core/transformer/moe/moe_layer.py forward",
        judge: Judge::SetUp,
        reach: Reach::Cell,
        check: |_, c, l| {
            ensure(
                !c.has_experts() || l.tensor_parallel == 1 || l.sequence_parallel,
                "a model with experts needs sequence parallelism at tp {0}",
                numbers([u64::from(l.tensor_parallel)]),
            )
        },
    },
    Rule {
        name: "expert-bias",
        source: "core/transformer/transformer_config.py __post_init__",
        judge: Judge::SetUp,
        reach: Reach::Group,
        check: |_, c, l| {
            ensure(
                l.expert_tensor_parallel == 1 || !c.moe.iter().any(|m| m.bias),
                "experts with biases cannot be split over etp {0}",
                numbers([u64::from(l.expert_tensor_parallel)]),
            )
        },
    },
    Rule {
        name: "deepep-group",
        source: "core/transformer/moe/fused_a2a.py get_buffer; DeepEP Buffer.get_dispatch_config, get_combine_config",
        judge: Judge::Run,
        reach: Reach::Cell,
        check: |_, _, l| {
            let ranks = l.expert_parallel * l.expert_tensor_parallel;
            ensure(
                l.dispatcher != Some(Dispatcher::DeepEp) || DEEPEP_RANKS.contains(&ranks),
                "DeepEP has settings for 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 144 and 160 ranks, ep x etp is {0}",
                numbers([u64::from(ranks)]),
            )
        },
    },
    Rule {
        name: "tensor-overlap-needs-sequence",
        source: "training/arguments.py validate_args",
        judge: Judge::SetUp,
        reach: Reach::Cell,
        check: |_, _, l| {
            ensure(
                !l.tensor_overlap || l.sequence_parallel,
                "tensor-parallel overlap needs sequence parallelism (tp {0})",
                numbers([u64::from(l.tensor_parallel)]),
            )
        },
    },
    Rule {
        name: "tensor-overlap-domain",
        source: "Transformer Engine examples/pytorch/comm_gemm_overlap: tensor-parallel GPUs that NVLink joins",
        judge: Judge::Run,
        reach: Reach::Cell,
        check: |k, c, l| {
            ensure(
                !l.tensor_overlap || c.hardware.has_nvlink(),
                "tensor-parallel overlap works over NVLink, which these GPUs do not have",
                [0; 4],
            )?;
            overlap_in_domain(k, c, l)
        },
    },
    Rule {
        name: "expert-overlap",
        source: "core/transformer/transformer_config.py __post_init__, overlap_moe_expert_parallel_comm",
        judge: Judge::SetUp,
        reach: Reach::Exchange,
        check: |_, c, l| {
            if !l.expert_overlap {
                return Ok(());
            }
            ensure(l.expert_parallel > 1, "expert overlap needs ep > 1", [0; 4])?;
            ensure(
                l.dispatcher != Some(Dispatcher::AllGather),
                "expert overlap needs an all-to-all or flex dispatcher",
                [0; 4],
            )?;
            ensure(
                l.pipeline_parallel == 1 || l.virtual_stages > 1,
                "expert overlap on {0} stages needs virtual stages",
                numbers([u64::from(l.pipeline_parallel)]),
            )?;
            ensure(
                c.mtp_modules <= 1,
                "expert overlap allows one multi-token-prediction module, the model has {0}",
                numbers([u64::from(c.mtp_modules)]),
            )
        },
    },
    Rule {
        name: "shared-overlap-meaning",
        source: "core/transformer/moe/moe_layer.py",
        judge: Judge::Nobody,
        reach: Reach::Exchange,
        check: |_, c, l| {
            ensure(
                !l.shared_overlap || c.has_shared_experts() && l.expert_parallel > 1,
                "shared experts run beside an exchange: it takes some, and ep > 1",
                [0; 4],
            )
        },
    },
    Rule {
        name: "shared-overlap",
        source: "core/transformer/transformer_config.py __post_init__, moe_shared_expert_overlap",
        judge: Judge::SetUp,
        reach: Reach::Exchange,
        check: |_, _, l| {
            ensure(
                !l.shared_overlap || l.dispatcher != Some(Dispatcher::AllGather),
                "overlap of shared experts needs an all-to-all or flex dispatcher",
                [0; 4],
            )?;
            ensure(
                !l.shared_overlap || !l.expert_overlap,
                "expert overlap excludes that of shared experts",
                [0; 4],
            )
        },
    },
    Rule {
        name: "expert-overlap-hybrid",
        source: "core/pipeline_parallel/combined_1f1b.py; build_schedule_plan, of core/models/gpt/gpt_model.py alone",
        judge: Judge::Run,
        reach: Reach::Exchange,
        check: |_, c, l| {
            ensure(
                !l.expert_overlap || c.mamba.is_empty(),
                "expert overlap schedules the layers of GPT models; a model with state-space layers has no such schedule",
                [0; 4],
            )
        },
    },
    Rule {
        name: "expert-instances",
        source: "core/parallel_state.py initialize_model_parallel, num_distributed_optimizer_instances",
        judge: Judge::SetUp,
        reach: Reach::Sharding,
        check: |_, _, l| {
            if l.zero_stage == 0 {
                return Ok(());
            }
            let ranks = l.data_parallel * l.context_parallel;
            let instances = ranks / l.shard_group.max(1);
            ensure(
                l.expert_data_parallel() % instances.max(1) == 0,
                "{0} replicas of the experts do not divide among {1} optimizer instances",
                numbers([u64::from(l.expert_data_parallel()), u64::from(instances)]),
            )
        },
    },
    Rule {
        name: "optimizer",
        source: "training/arguments.py validate_args, Megatron-FSDP and emerging optimizers",
        judge: Judge::SetUp,
        reach: Reach::Sharding,
        check: |_, c, l| {
            ensure(
                !fully_sharded(l) || c.optimizer != Optimizer::Muon,
                "Megatron-FSDP (ZeRO stage {0}) has no Muon",
                numbers([u64::from(l.zero_stage)]),
            )
        },
    },
    Rule {
        name: "optimizer-format",
        source: "core/optimizer/__init__.py, emerging optimizers",
        judge: Judge::Run,
        reach: Reach::Sharding,
        check: |_, c, _| {
            ensure(
                c.optimizer != Optimizer::Muon || c.precision != Precision::Fp16,
                "Muon does not train in FP16",
                [0; 4],
            )
        },
    },
    Rule {
        name: "optimizer-sharding",
        source: "core/optimizer/__init__.py get_megatron_optimizer; core/optimizer/distrib_optimizer.py",
        judge: Judge::Run,
        reach: Reach::Sharding,
        check: |_, c, l| {
            // Low-precision moments need the precision-aware optimizer, that one the distributed one.
            let aware = matches!(c.optimizer, Optimizer::AdamwBf16 | Optimizer::Adam8bit);
            ensure(
                !aware || l.zero_stage >= 1,
                "moments below fp32 need the distributed optimizer (ZeRO stage 1)",
                [0; 4],
            )?;
            ensure(
                c.optimizer != Optimizer::Sgd || l.zero_stage == 0,
                "the distributed optimizer (ZeRO stage {0}) shards Adam, not SGD",
                numbers([u64::from(l.zero_stage)]),
            )?;
            ensure(
                l.offload.optimizer == Place::Gpu || l.zero_stage == 1,
                "optimizer offload needs the distributed optimizer (ZeRO stage 1), not stage {0}",
                numbers([u64::from(l.zero_stage)]),
            )
        },
    },
    Rule {
        name: "optimizer-instances",
        source: "core/optimizer/layer_wise_optimizer.py",
        judge: Judge::Run,
        reach: Reach::Sharding,
        check: |_, c, l| {
            let ranks = l.data_parallel * l.context_parallel;
            ensure(
                c.optimizer != Optimizer::Muon || l.zero_stage == 0 || l.shard_group == ranks,
                "Muon shards over all {0} data-parallel ranks",
                numbers([u64::from(ranks)]),
            )
        },
    },
    Rule {
        name: "optimizer-offload",
        source: "core/optimizer/optimizer_config.py __post_init__, use_precision_aware_optimizer",
        judge: Judge::SetUp,
        reach: Reach::Cell,
        check: |_, c, l| {
            ensure(
                l.offload.optimizer == Place::Gpu || !matches!(c.optimizer, Optimizer::Muon | Optimizer::Sgd),
                "only Adam can be offloaded",
                [0; 4],
            )
        },
    },
    Rule {
        name: "cuda-graphs",
        source: "core/transformer/transformer_config.py __post_init__, cuda_graph_impl; core/distributed/fsdp/mcore_fsdp_adapter.py",
        judge: Judge::SetUp,
        reach: Reach::Layout,
        check: |_, c, l| {
            ensure(
                l.cuda_graphs != CudaGraphs::AttentionRouter || c.has_experts(),
                "a graph of the router needs a model with experts",
                [0; 4],
            )?;
            ensure(
                matches!(l.cuda_graphs, CudaGraphs::None | CudaGraphs::FullIteration)
                    || !fully_sharded(l)
                    || !l.expert_overlap,
                "expert overlap under Megatron-FSDP has no per-layer CUDA graphs",
                [0; 4],
            )
        },
    },
    Rule {
        name: "cuda-graphs-dropless",
        source: "core/transformer/moe/token_dispatcher.py, host synchronisation of dropless routing",
        judge: Judge::Run,
        reach: Reach::Cell,
        check: |_, c, l| {
            ensure(
                l.cuda_graphs != CudaGraphs::FullIteration || !c.has_experts() || c.pads_experts(),
                "dropless experts synchronise with the host inside an iteration: no graph of the whole iteration",
                [0; 4],
            )
        },
    },
    Rule {
        name: "cuda-graphs-messages",
        source: "core/pipeline_parallel/p2p_communication.py _communicate and _communicate_shapes, device synchronisation",
        judge: Judge::Run,
        reach: Reach::Layout,
        check: |_, _, l| {
            // Interleaved messages of one shape are not waited for.
            let waits = l.pipeline_parallel > 1 && (l.virtual_stages == 1 || l.mtp_standalone);
            ensure(
                l.cuda_graphs != CudaGraphs::FullIteration || !waits,
                "the host waits for messages between stages that are not interleaved, or of several shapes: no graph of the whole iteration",
                [0; 4],
            )
        },
    },
    Rule {
        name: "padded-experts",
        source: "core/transformer/moe/token_dispatcher.py, DeepEP's manager",
        judge: Judge::SetUp,
        reach: Reach::Cell,
        check: |_, c, l| {
            ensure(
                l.dispatcher != Some(Dispatcher::DeepEp) || !c.pads_experts(),
                "DeepEP does not work with experts that are padded to a capacity",
                [0; 4],
            )
        },
    },
    Rule {
        name: "low-precision-shapes",
        source: "TE pytorch/utils.py assert_dim_for_fp8_exec",
        judge: Judge::Run,
        reach: Reach::Cell,
        check: low_precision_shapes,
    },
];

/// FP8 and FP4 matrix products need every per-rank dimension to be a multiple of the block (16, or 32
/// for MXFP8).
fn low_precision_shapes(_: &Capabilities, c: &Context, l: &Layout) -> Result<(), Broken> {
    let block = match c.precision {
        Precision::Bf16 | Precision::Fp16 => return Ok(()),
        Precision::Mxfp8 => 32,
        Precision::Fp8 | Precision::Fp8Blockwise | Precision::Nvfp4 => 16,
    };
    let (tp, etp, cp) =
        (u64::from(l.tensor_parallel), u64::from(l.expert_tensor_parallel), u64::from(l.context_parallel));
    let text = "a dimension of {0} per rank is no multiple of {1}, as this number format needs";
    let fits = |size: u64| ensure(size % block == 0, text, numbers([size, block]));
    fits(c.hidden)?;
    let split = if l.sequence_parallel { tp } else { 1 };
    fits(u64::from(l.micro_batch_size) * c.sequence_length / cp / split)?;
    for a in &c.attention {
        fits(a.heads * a.head_dim / tp)?;
        fits((a.heads / tp + 2 * (a.kv_heads / tp).max(1)) * a.head_dim)?;
    }
    for &width in &c.dense {
        fits(width / tp)?;
    }
    for moe in &c.moe {
        fits(moe.width / etp)?;
        fits(moe.shared_width / tp)?;
    }
    Ok(())
}

/// Rules on plans.
pub static PLAN_RULES: &[PlanRule] = &[
    PlanRule {
        name: "recompute-modules",
        source: "core/transformer/transformer_config.py __post_init__, recompute_modules",
        judge: Judge::SetUp,
        reach: PlanReach::Recompute,
        check: |_, c, p| {
            let Some(Recompute::Selective(modules)) = recompute_of(p) else { return Ok(()) };
            ensure(
                !modules.has(Module::MlaUpProjection) || !c.latent.is_empty(),
                "mla_up_proj can be recomputed only in latent attention",
                [0; 4],
            )?;
            ensure(
                !modules.has(Module::MoeActivation) || c.has_experts(),
                "moe_act can be recomputed only where experts run as grouped products",
                [0; 4],
            )
        },
    },
    PlanRule {
        name: "recompute-meaning",
        source: "core/transformer/transformer_layer.py",
        judge: Judge::Nobody,
        reach: PlanReach::Recompute,
        check: |_, c, p| {
            let Some(Recompute::Selective(modules)) = recompute_of(p) else { return Ok(()) };
            ensure(
                c.has_experts() || !(modules.has(Module::Moe) || modules.has(Module::SharedExperts)),
                "moe and shared_experts name nothing in a model without experts",
                [0; 4],
            )?;
            ensure(
                !modules.has(Module::SharedExperts) || c.moe.iter().any(|m| m.shared_width > 0),
                "shared_experts names nothing in a model without shared experts",
                [0; 4],
            )
        },
    },
    PlanRule {
        name: "recompute-mtp",
        source: "core/transformer/multi_token_prediction.py _checkpointed_forward",
        judge: Judge::Run,
        reach: PlanReach::Recompute,
        check: |_, c, p| {
            let Some(Recompute::FullUniform(n)) = recompute_of(p) else { return Ok(()) };
            ensure(
                n == 1 || c.mtp_modules == 0,
                "multi-token prediction is recomputed layer by layer, not in groups of {0}",
                numbers([u64::from(n)]),
            )
        },
    },
    PlanRule {
        name: "recompute-expert-overlap",
        source: "core/transformer/transformer_config.py __post_init__, overlap_moe_expert_parallel_comm",
        judge: Judge::SetUp,
        reach: PlanReach::Recompute,
        check: |_, _, p| {
            let allowed = match recompute_of(p) {
                Some(Recompute::FullUniform(_) | Recompute::FullBlock(_)) => false,
                Some(Recompute::Selective(modules)) => !modules.has(Module::Moe),
                Some(Recompute::None) | None => true,
            };
            ensure(
                allowed || !p.layout().expert_overlap,
                "expert overlap excludes recomputing whole layers or the moe module",
                [0; 4],
            )
        },
    },
    PlanRule {
        name: "recompute-shared-overlap",
        source: "core/transformer/transformer_config.py __post_init__, recompute_modules",
        judge: Judge::SetUp,
        reach: PlanReach::Recompute,
        check: |_, _, p| {
            let recomputed = matches!(
                recompute_of(p),
                Some(Recompute::Selective(modules)) if modules.has(Module::SharedExperts)
            );
            ensure(
                !recomputed || !p.layout().shared_overlap,
                "shared experts that run beside the exchange cannot be recomputed",
                [0; 4],
            )
        },
    },
    PlanRule {
        name: "recompute-cuda-graphs",
        source: "core/transformer/transformer_config.py __post_init__, cuda_graph_impl",
        judge: Judge::SetUp,
        reach: PlanReach::Recompute,
        check: |_, c, p| {
            let graphs = p.layout().cuda_graphs;
            match recompute_of(p) {
                Some(Recompute::FullUniform(_) | Recompute::FullBlock(_)) => ensure(
                    matches!(graphs, CudaGraphs::None | CudaGraphs::FullIteration),
                    "recomputing whole layers works only with a graph of the whole iteration",
                    [0; 4],
                ),
                Some(Recompute::Selective(modules)) => {
                    ensure(
                        graphs != CudaGraphs::AttentionRouter || !modules.has(Module::Moe),
                        "the moe module cannot be recomputed around a graph of its router",
                        [0; 4],
                    )?;
                    ensure(
                        graphs == CudaGraphs::None || !c.dropout || !modules.has(Module::CoreAttention),
                        "attention with dropout cannot be recomputed inside a graph",
                        [0; 4],
                    )?;
                    let whole = graphs == CudaGraphs::FullIteration;
                    ensure(
                        !whole || !c.dropout || !(modules.has(Module::Mlp) || modules.has(Module::Moe)),
                        "feed-forward parts with dropout cannot be recomputed inside a graph",
                        [0; 4],
                    )
                }
                Some(Recompute::None) | None => Ok(()),
            }
        },
    },
    PlanRule {
        name: "activation-offload",
        source: "core/transformer/transformer_config.py __post_init__, fine_grained_activation_offloading",
        judge: Judge::Nobody,
        reach: PlanReach::Recompute,
        check: |_, _, p| {
            let full = matches!(recompute_of(p), Some(Recompute::FullUniform(_) | Recompute::FullBlock(_)));
            ensure(
                !p.layout().offload.activations || !full,
                "layers that are recomputed whole keep nothing that could be offloaded",
                [0; 4],
            )
        },
    },
];

/// The mode of the chunks that hold layers, if they share one.
fn recompute_of(plan: &Plan) -> Option<Recompute> {
    plan.chunks().iter().find(|c| c.layers > 0).map(|c| c.recompute)
}

/// Mamba heads and groups divide among tensor-parallel ranks.
fn mamba_divides(_: &Capabilities, c: &Context, l: &Layout) -> Result<(), Broken> {
    let tp = u64::from(l.tensor_parallel);
    for a in &c.mamba {
        ensure(a.heads % tp == 0, "{0} Mamba heads do not divide among tp {1}", numbers([a.heads, tp]))?;
        ensure(a.groups % tp == 0, "{0} Mamba groups do not divide among tp {1}", numbers([a.groups, tp]))?;
    }
    Ok(())
}
