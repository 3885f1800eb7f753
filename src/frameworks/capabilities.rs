//! What a framework can express.

use crate::plan::{ContextComm, CudaGraphs, Dispatcher, Modules, Offload, Place, Schedule};

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
