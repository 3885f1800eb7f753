//! Frameworks that are predicted and not written: what they can express, and their rules of plain arithmetic.

use super::common::{DROPLESS, heads_divide, sequence_divides, tokens_divide, widths_divide};
use super::rules::{Judge, Reach, Rule, ensure, numbers};
use super::{Capabilities, ExpertTensor, RecomputeFamilies, SequenceParallel, ShardGroups};
use crate::plan::{ContextComm, CudaGraphs, Dispatcher, Modules, Place, Schedule};

/// What nanotron can express.
pub const NANOTRON: Capabilities = Capabilities {
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

/// What llm-foundry can express.
pub const LLM_FOUNDRY: Capabilities = Capabilities {
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

/// What InternEvo can express.
pub const INTERNEVO: Capabilities = Capabilities {
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

/// What HAI-LLM can express.
pub const HAI_LLM: Capabilities = Capabilities {
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
pub static GENERIC_RULES: &[Rule] = &[
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
