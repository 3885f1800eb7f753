//! torchtitan: FSDP2, tensor, context, pipeline and expert parallelism in plain PyTorch.
//!
//! Read in torchtitan of August 2026; sources of rules name files below `torchtitan/`.

pub mod write;

use super::{
    Capabilities, ExpertTensor, Judge, PlanReach, PlanRule, Reach, RecomputeFamilies, Rule, SequenceParallel,
    ShardGroups, ensure, heads_divide, numbers, overlap_in_domain, whole_experts, widths_divide,
};
use crate::plan::{ContextComm, CudaGraphs, Dispatcher, Layout, Modules, Place, Schedule};
use crate::spec::job::{Optimizer, Precision, Training};

/// What torchtitan can express.
pub static CAPABILITIES: Capabilities = Capabilities {
    tensor_parallel: true,
    pipeline_parallel: true,
    virtual_stages: true,
    schedules: &[Schedule::OneFOneB, Schedule::GPipe, Schedule::Interleaved, Schedule::ZeroBubbleV],
    context_comms: &[ContextComm::AllGather],
    expert_parallel: true,
    expert_tensor: ExpertTensor::One,
    sequence_parallel: SequenceParallel::Optional,
    zero_stages: &[0, 2, 3],
    default_zero_stages: &[0, 2, 3],
    shard_groups: ShardGroups::Divisors,
    recompute: RecomputeFamilies {
        selective: Modules::NONE,
        full_uniform: 1,
        full_block: false,
        per_stage: false,
    },
    tensor_overlap: true,
    data_overlap: true,
    expert_overlap: false,
    shared_overlap: false,
    dispatchers: &[Dispatcher::AllToAll, Dispatcher::DeepEp, Dispatcher::HybridEp],
    // DeepEP and HybridEP need a library that torchtitan does not bring.
    default_dispatchers: &[Dispatcher::AllToAll],
    cuda_graphs: &[CudaGraphs::None, CudaGraphs::FullIteration],
    optimizer_places: &[Place::Gpu, Place::Cpu],
    parameter_places: &[Place::Gpu, Place::Cpu],
    activation_offload: false,
    uneven_stages: true,
    empty_stages: true,
    mtp_standalone: false,
    kv_replication: false,
};

/// Whether layers are compiled: zero-bubble schedules split the backward pass, which compiled graphs do not allow.
fn compiled(l: &Layout) -> bool {
    l.schedule != Schedule::ZeroBubbleV
}

/// Ranks that share each expert's weights, and the ranks that torchtitan counts before it cuts experts along their
/// rows, which it does where these are more than experts (`distributed/fsdp.py`, `efsdp_ep_size`). Without expert
/// parallelism that is its whole mesh for weights: replicas and tensor-parallel ranks too.
fn expert_ranks(l: &Layout) -> (u64, u64) {
    let (group, ep) = (u64::from(l.shard_group), u64::from(l.expert_parallel));
    let tp = u64::from(l.tensor_parallel);
    if ep > 1 {
        let ranks = group * tp / ep;
        (ranks, ranks * ep)
    } else {
        (group, u64::from(l.data_parallel) * u64::from(l.context_parallel) * tp)
    }
}

/// Rules on layouts, in the order in which they are asked.
pub static RULES: &[Rule] = &[
    Rule {
        name: "heads",
        source: "models/common/decoder.py update_from_config",
        judge: Judge::SetUp,
        reach: Reach::Group,
        check: heads_divide,
    },
    Rule {
        name: "widths",
        source: "models/common/feed_forward.py, sharding over the tp mesh: uneven shards, the first ranks hold more",
        judge: Judge::Nobody,
        reach: Reach::Group,
        check: widths_divide,
    },
    Rule {
        name: "tokens",
        source: "trainer.py Trainer.__init__",
        judge: Judge::SetUp,
        reach: Reach::Cell,
        check: |_, c, l| {
            let tp = if l.sequence_parallel { u64::from(l.tensor_parallel) } else { 1 };
            let cp = u64::from(l.context_parallel);
            let split = tp * if cp > 1 { 2 * cp } else { 1 };
            let tokens = u64::from(l.micro_batch_size) * c.sequence_length;
            ensure(
                tokens % split == 0,
                "{0} tokens per micro-batch are no multiple of {1}, which tp and cp split them by",
                numbers([tokens, split]),
            )
        },
    },
    Rule {
        name: "shard-context",
        source: "distributed/parallel_dims.py ParallelDims: weights are sharded over dp_shard x cp",
        judge: Judge::Nobody,
        reach: Reach::Sharding,
        check: |_, _, l| {
            let (group, cp) = (l.shard_group, l.context_parallel);
            ensure(
                if l.zero_stage == 0 { cp == 1 } else { group % cp == 0 },
                "the shard group {0} must hold whole context-parallel groups (cp {1})",
                numbers([u64::from(group), u64::from(cp)]),
            )
        },
    },
    Rule {
        name: "expert-shard",
        source: "distributed/parallel_dims.py ParallelDims._validate",
        judge: Judge::SetUp,
        reach: Reach::Sharding,
        check: |_, _, l| {
            let ranks = u64::from(l.shard_group.max(1)) * u64::from(l.tensor_parallel);
            ensure(
                ranks % u64::from(l.expert_parallel) == 0,
                "ep {0} does not divide dp_shard x cp x tp = {1}",
                numbers([u64::from(l.expert_parallel), ranks]),
            )
        },
    },
    Rule {
        name: "expert-shard-even",
        source: "distributed/fsdp.py apply_fsdp_to_decoder; torch distributed/fsdp, uneven sharding on dim 1",
        judge: Judge::SetUp,
        reach: Reach::Sharding,
        check: |_, c, l| {
            let (ranks, cut) = expert_ranks(l);
            for moe in &c.moe {
                let rows = moe.width * if moe.bias { 2 } else { 1 };
                ensure(
                    l.zero_stage == 0 || cut <= moe.experts || (rows % ranks == 0 && c.hidden % ranks == 0),
                    "experts of {0} x {1} do not divide evenly among the {2} ranks that share one",
                    numbers([rows, c.hidden, ranks]),
                )?;
            }
            Ok(())
        },
    },
    Rule {
        name: "expert-shard-memory",
        source: "distributed/fsdp.py, Shard(0) of the experts: whole experts, one more on the first ranks",
        judge: Judge::Nobody,
        reach: Reach::Sharding,
        check: |_, c, l| {
            let (ranks, cut) = expert_ranks(l);
            whole_experts(c, l, u64::from(l.expert_parallel), ranks, cut)
        },
    },
    Rule {
        name: "pipeline-tied",
        source: "models/common/decoder.py update_from_config",
        judge: Judge::SetUp,
        reach: Reach::Group,
        check: |_, c, l| {
            ensure(
                l.pipeline_parallel == 1 || !c.tied_embeddings,
                "tied embeddings do not work with {0} pipeline stages",
                numbers([u64::from(l.pipeline_parallel)]),
            )
        },
    },
    Rule {
        name: "multi-token-prediction",
        source: "models/deepseek_v3/mtp.py update_from_config",
        judge: Judge::SetUp,
        reach: Reach::Group,
        check: |_, c, l| {
            ensure(
                c.mtp_modules == 0 || (l.pipeline_parallel == 1 && l.context_parallel == 1),
                "multi-token prediction works neither with {0} pipeline stages nor with cp {1}",
                numbers([u64::from(l.pipeline_parallel), u64::from(l.context_parallel)]),
            )
        },
    },
    Rule {
        name: "tensor-overlap-domain",
        source: "torch distributed/_symmetric_memory: ranks that reach each other's memory",
        judge: Judge::Run,
        reach: Reach::Cell,
        check: overlap_in_domain,
    },
    Rule {
        name: "tensor-overlap-compiled",
        source: "config/configs.py CompileConfig.__post_init__",
        judge: Judge::SetUp,
        reach: Reach::Layout,
        check: |_, _, l| {
            ensure(
                !l.tensor_overlap || compiled(l),
                "tensor-parallel overlap needs compiled layers, which zero-bubble schedules do without",
                [0; 4],
            )
        },
    },
    Rule {
        name: "dispatcher",
        source: "models/common/token_dispatcher.py update_ep_token_dispatcher_config",
        judge: Judge::SetUp,
        reach: Reach::Cell,
        check: |_, c, l| {
            if !matches!(l.dispatcher, Some(Dispatcher::DeepEp | Dispatcher::HybridEp)) {
                return Ok(());
            }
            ensure(l.expert_parallel > 1, "DeepEP and HybridEP need ep > 1", [0; 4])?;
            let tokens = u64::from(l.micro_batch_size) * c.sequence_length;
            let split = u64::from(l.context_parallel) * u64::from(l.tensor_parallel);
            ensure(
                tokens % split == 0,
                "{0} tokens per micro-batch do not divide among cp x tp = {1}",
                numbers([tokens, split]),
            )
        },
    },
    Rule {
        name: "one-forward-one-backward",
        source: "torch distributed/pipelining/schedules.py Schedule1F1B",
        judge: Judge::SetUp,
        reach: Reach::Order,
        check: |_, _, l| {
            ensure(
                l.schedule != Schedule::OneFOneB || l.gradient_accumulation_steps >= l.pipeline_parallel,
                "1F1B needs as many micro-batches as stages: {0} for {1}",
                numbers([u64::from(l.gradient_accumulation_steps), u64::from(l.pipeline_parallel)]),
            )
        },
    },
    Rule {
        name: "cuda-graphs",
        source: "trainer.py; config/configs.py disable_cuda_graphs",
        judge: Judge::SetUp,
        reach: Reach::Cell,
        check: |_, _, l| {
            ensure(
                l.cuda_graphs == CudaGraphs::None || (l.pipeline_parallel == 1 && l.expert_parallel == 1),
                "CUDA graphs do not work with {0} pipeline stages or ep {1}",
                numbers([u64::from(l.pipeline_parallel), u64::from(l.expert_parallel)]),
            )
        },
    },
    Rule {
        name: "interleaving",
        source: "torch distributed/pipelining/schedules.py ScheduleInterleaved1F1B",
        judge: Judge::SetUp,
        reach: Reach::Order,
        check: |_, _, l| {
            let (m, p) = (l.gradient_accumulation_steps, l.pipeline_parallel);
            let rounds = (m / p.max(1)).max(1);
            ensure(
                l.schedule != Schedule::Interleaved || m % rounds == 0,
                "{0} micro-batches do not divide into {1} rounds of the interleaved schedule",
                numbers([u64::from(m), u64::from(rounds)]),
            )
        },
    },
    Rule {
        name: "cpu-offload",
        source: "config/configs.py enable_cpu_offload",
        judge: Judge::Nobody,
        reach: Reach::Sharding,
        check: |_, _, l| {
            ensure(
                l.offload.optimizer == l.offload.parameters
                    && (l.offload.optimizer == Place::Gpu || l.zero_stage >= 2),
                "weights, gradients and optimizer are offloaded together, under FSDP",
                [0; 4],
            )
        },
    },
    Rule {
        name: "data-overlap",
        source: "distributed/fsdp.py",
        judge: Judge::Nobody,
        reach: Reach::Sharding,
        check: |_, _, l| {
            let ranks = l.data_parallel * l.context_parallel;
            ensure(l.data_overlap || ranks == 1, "FSDP2 always overlaps its collectives", [0; 4])
        },
    },
    Rule {
        name: "precision",
        source: "config/configs.py mixed_precision_param",
        judge: Judge::Nobody,
        reach: Reach::Job,
        check: |_, c, _| ensure(c.precision == Precision::Bf16, "only bf16 is exported", [0; 4]),
    },
    Rule {
        name: "optimizer",
        source: "components/optimizer/optimizer.py OptimizersContainer",
        judge: Judge::Nobody,
        reach: Reach::Job,
        check: |_, c, _| ensure(c.optimizer == Optimizer::Adamw, "only AdamW is exported", [0; 4]),
    },
    Rule {
        name: "training",
        source: "components/lora.py",
        judge: Judge::Nobody,
        reach: Reach::Job,
        check: |_, c, _| {
            ensure(c.training == Training::Full, "only training of all weights is exported", [0; 4])
        },
    },
    super::DROPLESS,
];

/// Rules on plans.
pub static PLAN_RULES: &[PlanRule] = &[PlanRule {
    name: "empty-parts",
    source: "components/optimizer/optimizer.py OptimizersContainer._build_param_groups: every part has weights",
    judge: Judge::SetUp,
    reach: PlanReach::Placement,
    check: |_, _, p| {
        let chunks = p.chunks();
        let inner = chunks.get(1..chunks.len().saturating_sub(1)).unwrap_or_default();
        ensure(
            inner.iter().all(|c| c.layers > 0),
            "a stage between the first and the last holds no layer",
            [0; 4],
        )
    },
}];
