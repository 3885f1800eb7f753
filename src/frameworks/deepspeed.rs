//! DeepSpeed: ZeRO, Ulysses, AutoTP and AutoEP for Hugging Face models, and Megatron-DeepSpeed for
//! pipeline plans.
//!
//! Read in DeepSpeed 0.19.8; sources of rules name files below `deepspeed/`.

pub mod import;
pub mod write;

use super::{
    Capabilities, ExpertTensor, Judge, PlanReach, PlanRule, Reach, RecomputeFamilies, Rule, SequenceParallel,
    ShardGroups, ensure, heads_divide, numbers, widths_divide,
};
use crate::plan::{ContextComm, CudaGraphs, Dispatcher, Layout, Modules, Place, Recompute, Schedule};
use crate::spec::job::{Optimizer, Precision};

/// What a DeepSpeed configuration can express for a Hugging Face model.
pub static CAPABILITIES: Capabilities = Capabilities {
    tensor_parallel: true,
    // Stages need a PipelineModule (runtime/pipe/engine.py), which Hugging Face models are not.
    pipeline_parallel: false,
    virtual_stages: false,
    schedules: &[Schedule::OneFOneB],
    context_comms: &[ContextComm::AllToAll],
    expert_parallel: true,
    expert_tensor: ExpertTensor::One,
    sequence_parallel: SequenceParallel::Never,
    zero_stages: &[0, 1, 2, 3],
    default_zero_stages: &[1, 2, 3],
    shard_groups: ShardGroups::DivisorsAtStage3,
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
    dispatchers: &[Dispatcher::AllToAll, Dispatcher::DeepEp],
    default_dispatchers: &[Dispatcher::AllToAll, Dispatcher::DeepEp],
    cuda_graphs: &[CudaGraphs::None],
    optimizer_places: &[Place::Gpu, Place::Cpu, Place::Nvme],
    parameter_places: &[Place::Gpu, Place::Cpu, Place::Nvme],
    // `gradient_checkpointing_enable` of Hugging Face models goes past DeepSpeed's checkpointing.
    activation_offload: false,
    // The pipeline engine splits transformer layers evenly and cannot be told otherwise.
    uneven_stages: false,
    empty_stages: false,
    mtp_standalone: false,
    kv_replication: false,
};

/// What Megatron-DeepSpeed can express: dense models, Megatron's tensor parallelism, DeepSpeed's
/// pipeline and ZeRO.
pub static MEGATRON_CAPABILITIES: Capabilities = Capabilities {
    pipeline_parallel: true,
    expert_parallel: false,
    expert_tensor: ExpertTensor::Tensor,
    sequence_parallel: SequenceParallel::Optional,
    recompute: RecomputeFamilies {
        selective: Modules::NONE,
        full_uniform: u32::MAX,
        full_block: false,
        per_stage: false,
    },
    tensor_overlap: false,
    dispatchers: &[],
    default_dispatchers: &[],
    activation_offload: true,
    ..CAPABILITIES
};

/// Whether DeepEP brings tokens to experts on other ranks.
fn deepep(l: &Layout) -> bool {
    l.dispatcher == Some(Dispatcher::DeepEp) && l.expert_parallel > 1
}

const ULYSSES_HEADS: Rule = Rule {
    name: "ulysses-heads",
    source: "runtime/sequence_parallel/ulysses_sp.py UlyssesSPAttentionHF",
    judge: Judge::Run,
    reach: Reach::Group,
    check: |_, c, l| {
        let sp = u64::from(l.context_parallel);
        for a in &c.attention {
            ensure(
                a.heads % sp == 0,
                "{0} heads do not divide among {1} Ulysses ranks",
                numbers([a.heads, sp]),
            )?;
            ensure(
                a.kv_heads % sp == 0 || sp % a.kv_heads == 0,
                "{0} key/value heads neither divide among {1} Ulysses ranks nor repeat over them",
                numbers([a.kv_heads, sp]),
            )?;
        }
        ensure(
            sp == 1 || (c.latent.is_empty() && c.mamba.is_empty()),
            "Ulysses (cp {0}) exchanges the heads of plain attention only",
            numbers([sp]),
        )
    },
};

const ULYSSES_SEQUENCE: Rule = Rule {
    name: "ulysses-sequence",
    source: "runtime/sequence_parallel/ulysses_sp.py UlyssesSPDataLoaderAdapter",
    judge: Judge::Run,
    reach: Reach::Group,
    check: |_, c, l| {
        let sp = u64::from(l.context_parallel);
        ensure(
            c.sequence_length % sp == 0,
            "a sequence of {0} tokens does not divide among {1} Ulysses ranks",
            numbers([c.sequence_length, sp]),
        )
    },
};

const PIPELINE_ZERO: Rule = Rule {
    name: "pipeline-zero",
    source: "runtime/pipe/engine.py PipelineEngine",
    judge: Judge::SetUp,
    reach: Reach::Sharding,
    check: |_, _, l| {
        ensure(
            l.pipeline_parallel == 1 || l.zero_stage <= 1,
            "ZeRO stage {0} does not work with {1} pipeline stages",
            numbers([u64::from(l.zero_stage), u64::from(l.pipeline_parallel)]),
        )
    },
};

const PIPELINE_BF16: Rule = Rule {
    name: "pipeline-bf16",
    source: "runtime/engine.py _do_optimizer_sanity_check, runtime/bf16_optimizer.py",
    judge: Judge::Nobody,
    reach: Reach::Sharding,
    check: |_, c, l| {
        ensure(
            l.pipeline_parallel == 1 || l.zero_stage >= 1 || c.precision != Precision::Bf16,
            "the BF16 optimizer of pipelines shards its states at ZeRO stage 0 too: that is stage 1",
            [0; 4],
        )
    },
};

const PIPELINE_OVERLAP: Rule = Rule {
    name: "pipeline-overlap",
    source: "runtime/engine.py, overlap_comm under pipeline parallelism",
    judge: Judge::Nobody,
    reach: Reach::Sharding,
    check: |_, _, l| {
        ensure(
            l.pipeline_parallel == 1 || !l.data_overlap,
            "the pipeline engine switches data-parallel overlap off ({0} stages)",
            numbers([u64::from(l.pipeline_parallel)]),
        )
    },
};

const PIPELINE_OFFLOAD: Rule = Rule {
    name: "pipeline-offload",
    source: "runtime/pipe/engine.py",
    judge: Judge::Nobody,
    reach: Reach::Cell,
    check: |_, _, l| {
        ensure(
            l.pipeline_parallel == 1 || l.offload == crate::plan::Offload::NONE,
            "offload is not exported together with {0} pipeline stages",
            numbers([u64::from(l.pipeline_parallel)]),
        )
    },
};

const OFFLOAD_STAGES: Rule = Rule {
    name: "offload-stages",
    source: "runtime/zero/offload_config.py",
    judge: Judge::SetUp,
    reach: Reach::Sharding,
    check: |_, _, l| {
        let stage = u64::from(l.zero_stage);
        ensure(
            l.offload.optimizer != Place::Nvme || stage == 3,
            "optimizer states on NVMe need ZeRO stage 3, not {0}",
            numbers([stage]),
        )?;
        ensure(
            l.offload.parameters == Place::Gpu || stage == 3,
            "weights off the GPU need ZeRO stage 3, not {0}",
            numbers([stage]),
        )
    },
};

const OFFLOAD_OPTIMIZER: Rule = Rule {
    name: "offload-optimizer",
    source: "runtime/zero/offload_config.py; stage 0 ignores it",
    judge: Judge::Nobody,
    reach: Reach::Sharding,
    check: |_, c, l| {
        ensure(
            l.offload.optimizer == Place::Gpu || l.zero_stage >= 1,
            "optimizer offload needs ZeRO stage 1, 2 or 3",
            [0; 4],
        )?;
        ensure(
            l.offload.optimizer == Place::Gpu
                || matches!(c.optimizer, Optimizer::Adamw | Optimizer::AdamwBf16),
            "only Adam can be offloaded",
            [0; 4],
        )
    },
};

const PRECISION: Rule = Rule {
    name: "precision",
    source: "runtime/config.py bf16, fp16",
    judge: Judge::Nobody,
    reach: Reach::Job,
    check: |_, c, _| {
        ensure(
            matches!(c.precision, Precision::Bf16 | Precision::Fp16),
            "the configuration knows bf16 and fp16 only",
            [0; 4],
        )
    },
};

const OPTIMIZER: Rule = Rule {
    name: "optimizer",
    source: "runtime/engine.py _configure_basic_optimizer",
    judge: Judge::Nobody,
    reach: Reach::Job,
    check: |_, c, _| ensure(c.optimizer != Optimizer::Adam8bit, "there is no 8-bit Adam", [0; 4]),
};

const OPTIMIZER_FORMAT: Rule = Rule {
    name: "optimizer-format",
    source: "runtime/precision_config.py DeepSpeedBF16Config bf16_optimizer_states",
    judge: Judge::Nobody,
    reach: Reach::Job,
    check: |_, c, _| {
        ensure(
            c.optimizer != Optimizer::AdamwBf16 || c.precision == Precision::Bf16,
            "bf16 moments need bf16: the fp16 section has no such option",
            [0; 4],
        )
    },
};

const OPTIMIZER_STATES: Rule = Rule {
    name: "optimizer-states",
    source: "runtime/config.py bf16_optimizer_states",
    judge: Judge::SetUp,
    reach: Reach::Sharding,
    check: |_, c, l| {
        ensure(
            c.optimizer != Optimizer::AdamwBf16 || l.zero_stage >= 1,
            "bf16 moments need ZeRO stage 1, 2 or 3",
            [0; 4],
        )
    },
};

/// Rules on layouts for DeepSpeed with Hugging Face models.
pub static RULES: &[Rule] = &[
    Rule {
        name: "heads",
        source: "module_inject/auto_tp.py; AutoTP leaves ranks beyond the key/value heads idle",
        judge: Judge::Nobody,
        reach: Reach::Group,
        check: heads_divide,
    },
    Rule {
        name: "widths",
        source: "module_inject/auto_tp.py",
        judge: Judge::Nobody,
        reach: Reach::Group,
        check: widths_divide,
    },
    ULYSSES_HEADS,
    ULYSSES_SEQUENCE,
    Rule {
        name: "ulysses-tensor",
        source: "module_inject/auto_ep_folding.py; runtime/sequence_parallel",
        judge: Judge::SetUp,
        reach: Reach::Group,
        check: |_, _, l| {
            ensure(
                l.context_parallel == 1 || l.tensor_parallel == 1,
                "Ulysses (cp {0}) and AutoTP (tp {1}) exclude each other",
                numbers([u64::from(l.context_parallel), u64::from(l.tensor_parallel)]),
            )
        },
    },
    Rule {
        name: "ulysses-experts",
        source: "runtime/engine.py _configure_expert_parallel: the ranks that runtime/sequence_parallel/parallel_state_sp.py \
                 names model parallel count as tensor parallel",
        judge: Judge::Run,
        reach: Reach::Group,
        check: |_, c, l| {
            ensure(
                !c.has_experts() || l.expert_parallel == 1 || l.context_parallel == 1,
                "expert parallelism (ep {0}) excludes Ulysses (cp {1})",
                numbers([u64::from(l.expert_parallel), u64::from(l.context_parallel)]),
            )
        },
    },
    Rule {
        name: "experts-zero",
        source: "runtime/engine.py _validate_zero3_moe_compatibility, AutoEP under ZeRO stage 3",
        judge: Judge::Run,
        reach: Reach::Sharding,
        check: |_, c, l| {
            if !c.has_experts() || l.expert_parallel == 1 || l.zero_stage < 3 {
                return Ok(());
            }
            let ranks = l.data_parallel * l.context_parallel;
            // A group of one is none to DeepSpeed; `partition-neighbours` refuses it.
            ensure(
                l.shard_group == ranks || l.shard_group == 1,
                "expert parallelism under ZeRO stage 3 excludes shard groups ({0})",
                numbers([u64::from(l.shard_group)]),
            )
        },
    },
    Rule {
        name: "ulysses-class",
        source: "runtime/sequence_parallel/ulysses_sp.py UlyssesSPAttentionHF.register_with_transformers",
        judge: Judge::Run,
        reach: Reach::Group,
        check: |_, c, l| {
            ensure(
                c.sequence_splits && c.mamba.is_empty() || l.context_parallel == 1,
                "Ulysses (cp {0}) does not take the attention of this model's Transformers class, or its state-space layers",
                numbers([u64::from(l.context_parallel)]),
            )
        },
    },
    Rule {
        name: "tensor-class",
        source: "module_inject/auto_tp.py AutoTP.supported; module_inject/tp_plan_converter.py TPPlanConverter.convert",
        judge: Judge::Run,
        reach: Reach::Group,
        check: |_, c, l| {
            ensure(
                c.tensor_splits || l.tensor_parallel == 1,
                "AutoTP (tp {0}) does not take the Transformers class of this model: not GPT-2, no latent attention, no \
                 norms over all heads",
                numbers([u64::from(l.tensor_parallel)]),
            )
        },
    },
    Rule {
        name: "experts-tensor",
        source: "module_inject/auto_tp.py: fused experts are no linear layers that AutoTP would split",
        judge: Judge::Nobody,
        reach: Reach::Group,
        check: |_, c, l| {
            if !c.has_experts() || l.tensor_parallel == 1 {
                return Ok(());
            }
            ensure(
                l.expert_parallel > 1,
                "AutoTP (tp {0}) on a model with experts needs ep > 1",
                numbers([u64::from(l.tensor_parallel)]),
            )
        },
    },
    Rule {
        name: "experts-tensor-offload",
        source: "module_inject/auto_ep_folding.py validate_folding_global",
        judge: Judge::Run,
        reach: Reach::Cell,
        check: |_, c, l| {
            ensure(
                !c.has_experts() || l.tensor_parallel == 1 || l.offload == crate::plan::Offload::NONE,
                "offload excludes AutoTP (tp {0}) on a model with experts",
                numbers([u64::from(l.tensor_parallel)]),
            )
        },
    },
    Rule {
        name: "deepep-tensor",
        source: "module_inject/auto_ep_layer.py AutoEPMoELayer.set_deepspeed_parallelism",
        judge: Judge::Run,
        reach: Reach::Cell,
        check: |_, _, l| {
            ensure(
                !deepep(l) || l.tensor_parallel == 1,
                "AutoEP's DeepEP excludes AutoTP (tp {0})",
                numbers([u64::from(l.tensor_parallel)]),
            )
        },
    },
    Rule {
        name: "deepep-format",
        source: "module_inject/auto_ep_comm.py assert_dtype_supported",
        judge: Judge::Run,
        reach: Reach::Cell,
        check: |_, c, l| {
            ensure(
                !deepep(l) || c.precision == Precision::Bf16,
                "AutoEP's DeepEP exchanges bf16 only",
                [0; 4],
            )
        },
    },
    Rule {
        name: "tensor-overlap",
        source: "runtime/tensor_parallel/config.py tp_overlap_comm",
        judge: Judge::Nobody,
        reach: Reach::Cell,
        check: |_, _, l| {
            ensure(!l.tensor_overlap || l.tensor_parallel > 1, "tensor-parallel overlap needs AutoTP", [0; 4])
        },
    },
    PARTITION_NEIGHBOURS,
    PRECISION,
    OPTIMIZER,
    OPTIMIZER_FORMAT,
    OPTIMIZER_STATES,
    OFFLOAD_OPTIMIZER,
    OFFLOAD_STAGES,
    Rule {
        name: "experts-preset",
        source: "module_inject/auto_ep_presets, the families that AutoEP knows",
        judge: Judge::Nobody,
        reach: Reach::Group,
        check: |_, c, l| {
            ensure(
                l.expert_parallel == 1 || c.expert_preset,
                "AutoEP knows no model with these experts, so ep cannot be {0}",
                numbers([u64::from(l.expert_parallel)]),
            )
        },
    },
    super::DROPLESS,
];

/// Secondary shards of weights (hpZ).
const PARTITION_NEIGHBOURS: Rule = Rule {
    name: "partition-neighbours",
    source: "utils/groups.py _create_zero_param_parallel_group",
    judge: Judge::Nobody,
    reach: Reach::Sharding,
    check: |_, _, l| {
        let whole = l.shard_group == l.data_parallel * l.context_parallel;
        ensure(
            l.zero_stage < 3 || whole || l.shard_group > 1,
            "secondary weight shards need groups of at least 2 ranks",
            [0; 4],
        )?;
        ensure(
            l.zero_stage < 3 || whole || l.tensor_parallel == 1,
            "secondary weight shards are groups of neighbouring ranks: not with tp {0}",
            numbers([u64::from(l.tensor_parallel)]),
        )
    },
};

/// Rules on layouts for Megatron-DeepSpeed.
pub static MEGATRON_RULES: &[Rule] = &[
    Rule {
        name: "dense",
        source: "Megatron-DeepSpeed megatron/arguments.py",
        judge: Judge::Nobody,
        reach: Reach::Job,
        check: |_, c, _| {
            ensure(
                !c.has_experts() && c.latent.is_empty() && c.mamba.is_empty(),
                "only dense models with plain attention are exported",
                [0; 4],
            )
        },
    },
    Rule {
        name: "heads",
        source: "Megatron-DeepSpeed megatron/core/utils.py divide",
        judge: Judge::SetUp,
        reach: Reach::Group,
        check: heads_divide,
    },
    Rule {
        name: "widths",
        source: "Megatron-DeepSpeed megatron/core/utils.py divide",
        judge: Judge::SetUp,
        reach: Reach::Group,
        check: widths_divide,
    },
    Rule {
        name: "sequence",
        source: "Megatron-DeepSpeed megatron/core/tensor_parallel/mappings.py",
        judge: Judge::Run,
        reach: Reach::Cell,
        check: |_, c, l| {
            let tp = u64::from(l.tensor_parallel);
            ensure(
                !l.sequence_parallel || c.sequence_length % tp == 0,
                "a sequence of {0} tokens does not divide among tp {1}",
                numbers([c.sequence_length, tp]),
            )
        },
    },
    Rule {
        name: "ulysses-alone",
        source: "Megatron-DeepSpeed megatron/core/parallel_state.py initialize_model_parallel",
        judge: Judge::SetUp,
        reach: Reach::Group,
        check: |_, _, l| {
            ensure(
                l.context_parallel == 1 || (l.tensor_parallel == 1 && l.pipeline_parallel == 1),
                "Ulysses (cp {0}) works neither with tp {1} nor with {2} stages",
                numbers([
                    u64::from(l.context_parallel),
                    u64::from(l.tensor_parallel),
                    u64::from(l.pipeline_parallel),
                ]),
            )
        },
    },
    ULYSSES_HEADS,
    ULYSSES_SEQUENCE,
    Rule {
        name: "ulysses-grouped",
        source: "Megatron-DeepSpeed megatron/model/transformer.py ParallelAttention",
        judge: Judge::Run,
        reach: Reach::Group,
        check: |_, c, l| {
            for a in &c.attention {
                ensure(
                    l.context_parallel == 1 || a.kv_heads == a.heads,
                    "Ulysses (cp {0}) needs as many key/value heads as heads: {1} and {2}",
                    numbers([u64::from(l.context_parallel), a.kv_heads, a.heads]),
                )?;
            }
            Ok(())
        },
    },
    PIPELINE_ZERO,
    PIPELINE_BF16,
    PIPELINE_OVERLAP,
    PIPELINE_OFFLOAD,
    super::megatron::TRAINING,
    PARTITION_NEIGHBOURS,
    PRECISION,
    OPTIMIZER,
    OPTIMIZER_FORMAT,
    OPTIMIZER_STATES,
    OFFLOAD_OPTIMIZER,
    OFFLOAD_STAGES,
];

/// Rules on plans.
pub static PLAN_RULES: &[PlanRule] = &[PlanRule {
    name: "activation-offload",
    source: "runtime/activation_checkpointing/config.py cpu_checkpointing",
    judge: Judge::Nobody,
    reach: PlanReach::Recompute,
    check: |_, _, p| {
        let recomputes = p.chunks().iter().all(|c| c.layers == 0 || c.recompute != Recompute::None);
        ensure(
            !p.layout().offload.activations || recomputes,
            "only the inputs of recomputed layers can go to host memory",
            [0; 4],
        )
    },
}];
