//! Hugging Face Accelerate with FSDP2: sharded data, tensor and context parallelism, no pipeline.
//!
//! Read in Accelerate 1.15; sources of rules name files below `accelerate/`.

use super::{
    Capabilities, ExpertTensor, Judge, RecomputeFamilies, Rule, SequenceParallel, ShardGroups, ensure,
    heads_divide, numbers, sequence_divides, widths_divide,
};
use crate::plan::{ContextComm, CudaGraphs, Dispatcher, Modules, Place, Schedule};
use crate::spec::job::{Precision, Training};

/// What an Accelerate configuration can express.
pub static CAPABILITIES: Capabilities = Capabilities {
    tensor_parallel: true,
    pipeline_parallel: false,
    virtual_stages: false,
    schedules: &[Schedule::OneFOneB],
    // torch's context parallelism rotates keys and values by gathering or by exchange: the latter is
    // a ring.
    context_comms: &[ContextComm::Ring, ContextComm::AllGather],
    expert_parallel: false,
    expert_tensor: ExpertTensor::One,
    sequence_parallel: SequenceParallel::Never,
    zero_stages: &[0, 2, 3],
    default_zero_stages: &[2, 3],
    shard_groups: ShardGroups::Divisors,
    recompute: RecomputeFamilies {
        selective: Modules::NONE,
        full_uniform: 1,
        full_block: false,
        per_stage: false,
    },
    tensor_overlap: false,
    data_overlap: true,
    expert_overlap: false,
    dispatchers: &[Dispatcher::AllGather, Dispatcher::AllToAll],
    cuda_graphs: &[CudaGraphs::None],
    optimizer_places: &[Place::Gpu, Place::Cpu],
    parameter_places: &[Place::Gpu, Place::Cpu],
    activation_offload: false,
    uneven_stages: false,
    empty_stages: false,
    kv_replication: false,
};

/// Rules on layouts, in the order in which they are asked.
pub static RULES: &[Rule] = &[
    Rule {
        name: "heads",
        source: "transformers integrations/tensor_parallel.py",
        judge: Judge::Nobody,
        check: heads_divide,
    },
    Rule {
        name: "widths",
        source: "transformers integrations/tensor_parallel.py",
        judge: Judge::Nobody,
        check: widths_divide,
    },
    Rule {
        name: "sequence",
        source: "torch distributed/tensor/experimental/_attention.py",
        judge: Judge::Run,
        check: sequence_divides,
    },
    Rule {
        name: "shard-context",
        source: "parallelism_config.py ParallelismConfig: weights are sharded over dp_shard x cp",
        judge: Judge::Nobody,
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
        name: "replication",
        source: "parallelism_config.py ParallelismConfig._validate_accelerator",
        judge: Judge::SetUp,
        check: |_, _, l| {
            let shard = l.shard_group / l.context_parallel.max(1);
            let replicas = l.data_parallel / shard.max(1);
            ensure(
                replicas == 1 || l.tensor_parallel == 1 && l.context_parallel == 1 || shard > 1,
                "tp {0} or cp {1} beside {2} replicas needs sharding over more than one rank",
                numbers([u64::from(l.tensor_parallel), u64::from(l.context_parallel), u64::from(replicas)]),
            )
        },
    },
    Rule {
        name: "sharding",
        source: "utils/dataclasses.py FullyShardedDataParallelPlugin",
        judge: Judge::Nobody,
        check: |_, _, l| {
            ensure(
                l.zero_stage == 0 || l.shard_group > 1 || l.data_parallel * l.context_parallel == 1,
                "FSDP over a group of {0} shards nothing",
                numbers([u64::from(l.shard_group)]),
            )?;
            ensure(
                l.zero_stage > 0 || l.tensor_parallel == 1,
                "tensor parallelism comes with FSDP2 (ZeRO stage 2 or 3) only",
                [0; 4],
            )
        },
    },
    Rule {
        name: "cpu-offload",
        source: "utils/dataclasses.py fsdp_offload_params",
        judge: Judge::Nobody,
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
        source: "torch distributed/fsdp",
        judge: Judge::Nobody,
        check: |_, _, l| {
            ensure(
                l.data_overlap || l.data_parallel * l.context_parallel == 1,
                "FSDP2 and DDP always overlap their collectives",
                [0; 4],
            )
        },
    },
    Rule {
        name: "precision",
        source: "commands/config mixed_precision",
        judge: Judge::Nobody,
        check: |_, c, _| {
            ensure(
                matches!(c.precision, Precision::Bf16 | Precision::Fp16),
                "only bf16 and fp16 are exported",
                [0; 4],
            )?;
            ensure(c.training == Training::Full, "only training of all weights is exported", [0; 4])
        },
    },
];

/// Writes a configuration.
pub(super) fn write(
    _: &super::export::ExportRequest,
) -> Result<Vec<super::export::ExportedFile>, super::Broken> {
    Err(super::broken("not yet"))
}
