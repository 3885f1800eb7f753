//! What each framework accepts: every rule has a layout or plan that breaks it, and nothing else.

use autoplan::candidates::{Restrictions, Space};
use autoplan::frameworks::{
    COMMON_PLAN_RULES, COMMON_RULES, Context, Hardware, Judge, Reach, Target, legal, legal_plan,
};
use autoplan::layers::Layers;
use autoplan::plan::{
    Chunk, ContextComm, CudaGraphs, Dispatcher, Layout, Offload, Place, Plan, Recompute, Schedule,
};
use autoplan::spec::cluster::Architecture;
use autoplan::spec::job::{ExpertCapacity, Job, Optimizer, Precision, Routing, Training};
use autoplan::spec::model::Model;
use autoplan::spec::ron_options;

use crate::frameworks_cases::Random;

/// A dense model of the Llama kind.
pub const DENSE: &str = r#"(
    schema: 1, name: "Dense 70B", hidden: 8192, vocabulary: 128256, max_sequence: 131072,
    blocks: { "layer": (
        mixer: Attention(heads: 64, kv_heads: 8, head_dim: 128),
        feed_forward: Dense(width: 28672)) },
    layers: [(repeat: 80, of: ["layer"])],
)"#;

/// Dense layers first, then experts, latent attention, multi-token prediction.
pub const LATENT_MOE: &str = r#"(
    schema: 1, name: "Latent MoE", hidden: 7168, vocabulary: 129280, max_sequence: 163840,
    blocks: {
        "dense": (
            mixer: Latent(heads: 128, q_lora_rank: 1536, kv_lora_rank: 512, qk_nope_dim: 128, qk_rope_dim: 64, v_dim: 128),
            feed_forward: Dense(width: 18432)),
        "moe": (
            mixer: Latent(heads: 128, q_lora_rank: 1536, kv_lora_rank: 512, qk_nope_dim: 128, qk_rope_dim: 64, v_dim: 128),
            feed_forward: Moe(experts: 256, top_k: 8, width: 2048, shared_width: 2048,
                router: (score: Sigmoid, balancing_bias: true, groups: (count: 8, top_k: 4)))) },
    layers: [(repeat: 3, of: ["dense"]), (repeat: 58, of: ["moe"])],
    mtp: (modules: 1, block: "moe"),
)"#;

/// Experts in every layer, as in Mixtral.
pub const EXPERTS: &str = r#"(
    schema: 1, name: "Plain MoE", hidden: 4096, vocabulary: 32000, max_sequence: 32768,
    blocks: { "layer": (
        mixer: Attention(heads: 32, kv_heads: 8, head_dim: 128),
        feed_forward: Moe(experts: 8, top_k: 2, width: 14336)) },
    layers: [(repeat: 32, of: ["layer"])],
)"#;

/// Heads of 100, which are no multiple of 8.
pub const ODD_HEADS: &str = r#"(
    schema: 1, name: "Odd heads 3B", hidden: 3200, vocabulary: 32000, max_sequence: 8192,
    blocks: { "layer": (
        mixer: Attention(heads: 32, kv_heads: 8, head_dim: 100),
        feed_forward: Dense(width: 8704)) },
    layers: [(repeat: 32, of: ["layer"])],
)"#;

/// Windows, sinks and biases, as in gpt-oss.
pub const WINDOWS: &str = r#"(
    schema: 1, name: "Windows MoE", hidden: 2880, vocabulary: 201088, max_sequence: 131072,
    blocks: {
        "window": (
            mixer: Attention(heads: 64, kv_heads: 8, head_dim: 64, qkv_bias: true, output_bias: true, sinks: true, window: 128),
            feed_forward: Moe(experts: 128, top_k: 4, width: 2880, expert_bias: true, router: (bias: true))),
        "full": (
            mixer: Attention(heads: 64, kv_heads: 8, head_dim: 64, qkv_bias: true, output_bias: true, sinks: true),
            feed_forward: Moe(experts: 128, top_k: 4, width: 2880, expert_bias: true, router: (bias: true))) },
    layers: [(repeat: 18, of: ["window", "full"])],
)"#;

/// Positions stretched by YaRN.
pub const YARN: &str = r#"(
    schema: 1, name: "YaRN 70B", hidden: 8192, vocabulary: 128256, max_sequence: 131072,
    position: RotaryWith(base: 10000.0, share: 1.0, scaling: Yarn(factor: 32.0, original_length: 4096)),
    blocks: { "layer": (
        mixer: Attention(heads: 96, kv_heads: 24, head_dim: 128),
        feed_forward: Dense(width: 28672)) },
    layers: [(repeat: 96, of: ["layer"])],
)"#;

/// Mamba layers with a few of attention.
pub const HYBRID: &str = r#"(
    schema: 1, name: "Hybrid 8B", hidden: 4096, vocabulary: 131072, max_sequence: 8192,
    blocks: {
        "mamba": (mixer: Mamba2(inner: 8192, state: 128, groups: 8, heads: 128, conv_kernel: 4), norms: 1),
        "attention": (mixer: Attention(heads: 32, kv_heads: 8, head_dim: 128), norms: 1),
        "mlp": (feed_forward: Dense(width: 21504, activation: SquaredRelu), norms: 1) },
    layers: [(repeat: 12, of: ["mamba", "mlp", "mamba", "mlp"]), (repeat: 4, of: ["attention"])],
)"#;

/// A hybrid with experts, as in Nemotron 3.
pub const HYBRID_MOE: &str = r#"(
    schema: 1, name: "Hybrid MoE", hidden: 4096, vocabulary: 131072, max_sequence: 8192,
    blocks: {
        "mamba": (mixer: Mamba2(inner: 8192, state: 128, groups: 8, heads: 128, conv_kernel: 4), norms: 1),
        "attention": (mixer: Attention(heads: 32, kv_heads: 8, head_dim: 128), norms: 1),
        "moe": (feed_forward: Moe(experts: 64, top_k: 6, width: 2048), norms: 1) },
    layers: [(repeat: 12, of: ["mamba", "moe", "mamba", "moe"]), (repeat: 4, of: ["attention"])],
)"#;

pub fn model(text: &str) -> Model {
    let model: Model = ron_options().from_str(text).unwrap();
    model.validate().unwrap();
    model
}

pub fn job(gpus: u32, global_batch_size: u32) -> Job {
    Job {
        gpus,
        global_batch_size,
        sequence_length: 4096,
        precision: Precision::Bf16,
        optimizer: Optimizer::Adamw,
        training: Training::Full,
        memory_limit: None,
        tokens: None,
        routing: Routing::Balanced,
        packed: None,
        expert_capacity: None,
    }
}

const DGX_H100: Hardware = Hardware { architecture: Architecture::Hopper, gpus_per_node: 8, domain: 8 };

pub fn context(text: &str, job: &Job) -> Context {
    let model = model(text);
    Context::new(&model, &Layers::new(&model), job, DGX_H100)
}

/// A layout of 64 GPUs with everything off.
pub fn plain() -> Layout {
    Layout { data_parallel: 64, gradient_accumulation_steps: 4, ..Layout::ONE }
}

/// Degrees set, data parallelism and accumulation filled in for the job, states sharded over all ranks.
pub fn fill(job: &Job, change: impl Fn(&mut Layout)) -> Layout {
    let mut layout = plain();
    layout.zero_stage = 1;
    layout.shard_group = 0;
    change(&mut layout);
    let model = layout.tensor_parallel * layout.pipeline_parallel * layout.context_parallel;
    layout.data_parallel = job.gpus / model;
    layout.gradient_accumulation_steps =
        job.global_batch_size / (layout.data_parallel * layout.micro_batch_size);
    if layout.shard_group == 0 {
        layout.shard_group =
            if layout.zero_stage == 0 { 1 } else { layout.data_parallel * layout.context_parallel };
    }
    layout
}

/// Layers spread as evenly as they go, one recompute mode.
pub fn spread(layout: Layout, job: &Job, layers: u32, recompute: Recompute) -> Plan {
    let count = layout.chunk_count();
    let chunks = (0..count)
        .map(|k| Chunk { layers: layers / count + u32::from(k < layers % count), recompute })
        .collect();
    Plan::new(layout, chunks, job.gpus, job.global_batch_size, layers).unwrap()
}

/// A case: which rule a change to a layout breaks.
struct Case {
    target: Target,
    rule: &'static str,
    model: &'static str,
    job: fn(&mut Job),
    layout: fn(&mut Layout),
}

impl Case {
    fn world(&self) -> (Context, Layout) {
        let mut job = job(64, 256);
        (self.job)(&mut job);
        let mut context = context(self.model, &job);
        context.hardware.architecture = match self.rule {
            "deepep-hardware" => Architecture::Blackwell,
            "dispatch-hardware" => Architecture::Ada,
            _ => context.hardware.architecture,
        };
        if self.rule == "tensor-overlap-domain" {
            context.hardware.domain = 2;
        }
        (context, fill(&job, self.layout))
    }
}

const fn case(
    target: Target,
    rule: &'static str,
    model: &'static str,
    job: fn(&mut Job),
    layout: fn(&mut Layout),
) -> Case {
    Case { target, rule, model, job, layout }
}

fn same(_: &mut Job) {}

fn ninety_six(j: &mut Job) {
    j.gpus = 96;
    j.global_batch_size = 384;
}

fn padded(j: &mut Job) {
    j.expert_capacity = Some(ExpertCapacity { factor: 1.0, padded: true });
}

fn in_sequence(l: &mut Layout) {
    l.tensor_parallel = 4;
    l.sequence_parallel = true;
}

fn moe(l: &mut Layout) {
    l.dispatcher = Some(Dispatcher::AllToAll);
}

static CASES: &[Case] = &[
    case(Target::Megatron, "mesh", DENSE, |j| j.gpus = 60, |l| l.tensor_parallel = 8),
    case(Target::Megatron, "batch", DENSE, |j| j.global_batch_size = 250, |_| {}),
    case(Target::Accelerate, "pipeline-axis", DENSE, same, |l| {
        l.pipeline_parallel = 2;
        l.zero_stage = 3;
    }),
    case(Target::LlmFoundry, "tensor-axis", DENSE, same, |l| l.tensor_parallel = 2),
    case(Target::MegatronDeepSpeed, "virtual-axis", DENSE, same, |l| {
        l.pipeline_parallel = 2;
        l.virtual_stages = 2;
        l.schedule = Schedule::Interleaved;
    }),
    case(Target::MegatronDeepSpeed, "even-stages", DENSE, same, |l| l.pipeline_parallel = 32),
    case(Target::Megatron, "schedule-axis", DENSE, same, |l| {
        l.pipeline_parallel = 2;
        l.schedule = Schedule::GPipe;
    }),
    case(Target::Megatron, "schedule-chunks", DENSE, same, |l| {
        l.pipeline_parallel = 2;
        l.virtual_stages = 2;
    }),
    case(Target::Megatron, "virtual-needs-pipeline", DENSE, same, |l| {
        l.virtual_stages = 2;
        l.schedule = Schedule::Interleaved;
    }),
    case(Target::DeepSpeed, "context-axis", DENSE, same, |l| l.context_parallel = 2),
    case(Target::DeepSpeed, "sequence-parallel-axis", DENSE, same, |l| {
        l.tensor_parallel = 2;
        l.sequence_parallel = true;
    }),
    case(Target::Megatron, "sequence-parallel-needs-tensor", DENSE, same, |l| l.sequence_parallel = true),
    case(Target::Megatron, "dense-has-no-experts", DENSE, same, |l| l.expert_parallel = 2),
    case(Target::Megatron, "dense-form", DENSE, same, moe),
    case(Target::Megatron, "mamba-heads", HYBRID, ninety_six, |l| l.tensor_parallel = 16),
    case(Target::Megatron, "dispatcher-axis", LATENT_MOE, same, |l| l.expert_parallel = 8),
    case(Target::Accelerate, "expert-axis", LATENT_MOE, same, |l| {
        moe(l);
        l.expert_parallel = 8;
    }),
    case(Target::DeepSpeed, "expert-tensor-axis", LATENT_MOE, same, |l| {
        moe(l);
        l.expert_tensor_parallel = 2;
    }),
    case(Target::Megatron, "experts-divide", LATENT_MOE, ninety_six, |l| {
        moe(l);
        l.expert_parallel = 48;
    }),
    case(Target::Megatron, "expert-mesh", LATENT_MOE, same, |l| {
        moe(l);
        l.expert_parallel = 128;
    }),
    case(Target::Accelerate, "zero-axis", DENSE, same, |_| {}),
    case(Target::Megatron, "shard-group", DENSE, same, |l| l.shard_group = 24),
    case(Target::DeepSpeed, "overlap-axis", LATENT_MOE, same, |l| {
        moe(l);
        l.expert_parallel = 8;
        l.expert_overlap = true;
    }),
    case(Target::DeepSpeed, "cuda-graph-axis", DENSE, same, |l| l.cuda_graphs = CudaGraphs::Attention),
    case(Target::Megatron, "offload-axis", DENSE, same, |l| l.offload.parameters = Place::Cpu),
    case(Target::Megatron, "precision-hardware", DENSE, |j| j.precision = Precision::Mxfp8, |_| {}),
    // Megatron-LM
    case(Target::Megatron, "heads", DENSE, ninety_six, |l| l.tensor_parallel = 3),
    case(Target::Megatron, "heads", WINDOWS, ninety_six, |l| {
        moe(l);
        l.tensor_parallel = 12;
        l.sequence_parallel = true;
    }),
    case(Target::Megatron, "widths", LATENT_MOE, ninety_six, |l| {
        moe(l);
        l.expert_tensor_parallel = 3;
    }),
    case(Target::Megatron, "sequence", DENSE, |j| j.sequence_length = 4095, |l| l.context_parallel = 2),
    case(Target::Megatron, "sequence-parallel", DENSE, |j| j.sequence_length = 4090, in_sequence),
    case(
        Target::Megatron,
        "yarn-context",
        YARN,
        |j| {
            ninety_six(j);
            j.sequence_length = 6144;
        },
        |l| l.context_parallel = 3,
    ),
    case(
        Target::Megatron,
        "interleaving",
        DENSE,
        |j| j.global_batch_size = 32,
        |l| {
            l.pipeline_parallel = 4;
            l.virtual_stages = 2;
            l.schedule = Schedule::Interleaved;
        },
    ),
    case(Target::Megatron, "context-all-to-all-heads", DENSE, same, |l| {
        l.tensor_parallel = 8;
        l.context_parallel = 2;
        l.context_comm = ContextComm::AllToAll;
    }),
    case(Target::Megatron, "head-size", ODD_HEADS, same, |_| {}),
    case(Target::Megatron, "context-windows", WINDOWS, same, |l| {
        moe(l);
        l.context_parallel = 2;
    }),
    case(Target::Megatron, "context-sinks", WINDOWS, same, |l| {
        moe(l);
        l.context_parallel = 2;
        l.context_comm = ContextComm::AllGather;
    }),
    case(
        Target::Megatron,
        "mamba-context",
        HYBRID,
        |j| {
            ninety_six(j);
            j.sequence_length = 6144;
        },
        |l| l.context_parallel = 3,
    ),
    case(Target::Megatron, "moe-tensor-needs-sequence", LATENT_MOE, same, |l| {
        moe(l);
        l.tensor_parallel = 2;
    }),
    case(Target::Megatron, "expert-bias", WINDOWS, same, |l| {
        moe(l);
        l.expert_tensor_parallel = 2;
    }),
    case(Target::Megatron, "deepep-group", LATENT_MOE, same, |l| l.dispatcher = Some(Dispatcher::DeepEp)),
    case(Target::Megatron, "expert-overlap-hybrid", HYBRID_MOE, same, |l| {
        moe(l);
        l.expert_parallel = 8;
        l.expert_overlap = true;
    }),
    case(Target::Bridge, "deepep-hardware", LATENT_MOE, same, |l| {
        moe(l);
        l.expert_parallel = 8;
        l.dispatcher = Some(Dispatcher::DeepEp);
    }),
    case(Target::Megatron, "dispatch-hardware", LATENT_MOE, same, |l| {
        moe(l);
        l.expert_parallel = 8;
        l.dispatcher = Some(Dispatcher::DeepEp);
    }),
    case(Target::Megatron, "tensor-overlap-domain", DENSE, same, |l| {
        l.tensor_parallel = 4;
        l.sequence_parallel = true;
        l.tensor_overlap = true;
    }),
    case(Target::Torchtitan, "tensor-overlap-compiled", DENSE, same, |l| {
        l.tensor_parallel = 8;
        l.sequence_parallel = true;
        l.pipeline_parallel = 4;
        l.virtual_stages = 2;
        l.schedule = Schedule::ZeroBubbleV;
        l.zero_stage = 2;
        l.tensor_overlap = true;
        l.data_overlap = true;
    }),
    // Fewer ranks than experts share one, but replicas count too where torchtitan chooses how to cut.
    case(
        Target::Torchtitan,
        "expert-shard-even",
        WINDOWS,
        |j| {
            j.gpus = 224;
            j.global_batch_size = 896;
        },
        |l| {
            moe(l);
            l.zero_stage = 3;
            l.shard_group = 7;
            l.data_overlap = true;
        },
    ),
    case(Target::Torchtitan, "tensor-overlap-domain", DENSE, same, |l| {
        fsdp(l);
        l.tensor_parallel = 4;
        l.sequence_parallel = true;
        l.tensor_overlap = true;
    }),
    case(Target::Megatron, "tensor-overlap-needs-sequence", DENSE, same, |l| {
        l.tensor_parallel = 2;
        l.tensor_overlap = true;
    }),
    case(Target::Megatron, "expert-overlap", LATENT_MOE, same, |l| {
        moe(l);
        l.expert_parallel = 8;
        l.pipeline_parallel = 2;
        l.expert_overlap = true;
    }),
    case(Target::Megatron, "cuda-graphs-messages", DENSE, same, |l| {
        l.pipeline_parallel = 2;
        l.cuda_graphs = CudaGraphs::FullIteration;
    }),
    case(Target::Megatron, "mtp-standalone", LATENT_MOE, same, |l| {
        l.pipeline_parallel = 2;
        l.mtp_standalone = true;
    }),
    case(Target::Megatron, "mtp-standalone", DENSE, same, |l| {
        l.pipeline_parallel = 4;
        l.mtp_standalone = true;
    }),
    case(Target::Torchtitan, "mtp-axis", DENSE, same, |l| {
        l.pipeline_parallel = 4;
        l.mtp_standalone = true;
    }),
    case(Target::Megatron, "shared-overlap-meaning", WINDOWS, same, |l| {
        moe(l);
        l.expert_parallel = 8;
        l.shared_overlap = true;
    }),
    case(Target::Megatron, "shared-overlap", LATENT_MOE, same, |l| {
        moe(l);
        l.expert_parallel = 8;
        l.shared_overlap = true;
        l.expert_overlap = true;
    }),
    case(Target::Megatron, "expert-instances", LATENT_MOE, same, |l| {
        moe(l);
        l.expert_parallel = 32;
        l.shard_group = 16;
    }),
    case(Target::Megatron, "optimizer", DENSE, |j| j.optimizer = Optimizer::Muon, |l| l.zero_stage = 3),
    case(
        Target::Megatron,
        "optimizer-format",
        DENSE,
        |j| (j.optimizer, j.precision) = (Optimizer::Muon, Precision::Fp16),
        |_| {},
    ),
    case(
        Target::Megatron,
        "optimizer-sharding",
        DENSE,
        |j| j.optimizer = Optimizer::AdamwBf16,
        |l| l.zero_stage = 0,
    ),
    case(
        Target::Megatron,
        "optimizer-instances",
        DENSE,
        |j| j.optimizer = Optimizer::Muon,
        |l| {
            l.shard_group = 8;
        },
    ),
    case(
        Target::Megatron,
        "optimizer-offload",
        DENSE,
        |j| j.optimizer = Optimizer::Muon,
        |l| {
            l.offload.optimizer = Place::Cpu;
        },
    ),
    case(Target::Megatron, "cuda-graphs", DENSE, same, |l| l.cuda_graphs = CudaGraphs::AttentionRouter),
    case(Target::Megatron, "cuda-graphs-dropless", LATENT_MOE, same, |l| {
        moe(l);
        l.cuda_graphs = CudaGraphs::FullIteration;
    }),
    case(Target::Megatron, "padded-experts", LATENT_MOE, padded, |l| {
        l.expert_parallel = 8;
        l.dispatcher = Some(Dispatcher::DeepEp);
    }),
    case(Target::DeepSpeed, "dropless", LATENT_MOE, padded, moe),
    case(Target::Torchtitan, "dropless", LATENT_MOE, padded, |l| {
        moe(l);
        l.zero_stage = 3;
        l.data_overlap = true;
    }),
    case(Target::Accelerate, "dropless", LATENT_MOE, padded, |l| {
        moe(l);
        l.zero_stage = 3;
        l.data_overlap = true;
    }),
    case(
        Target::Megatron,
        "low-precision-shapes",
        DENSE,
        |j| {
            j.precision = Precision::Fp8;
            j.sequence_length = 4100;
        },
        |_| {},
    ),
    case(Target::Megatron, "training", DENSE, |j| j.training = Training::Lora { rank: 16 }, |_| {}),
    // DeepSpeed
    case(Target::DeepSpeed, "heads", DENSE, same, |l| l.tensor_parallel = 16),
    case(Target::DeepSpeed, "widths", ODD_WIDTH, same, |l| l.tensor_parallel = 4),
    case(Target::DeepSpeed, "ulysses-heads", DENSE, ninety_six, |l| {
        l.context_parallel = 12;
        l.context_comm = ContextComm::AllToAll;
    }),
    case(
        Target::DeepSpeed,
        "ulysses-sequence",
        DENSE,
        |j| j.sequence_length = 4095,
        |l| {
            l.context_parallel = 2;
            l.context_comm = ContextComm::AllToAll;
        },
    ),
    case(Target::MegatronDeepSpeed, "pipeline-zero", DENSE, same, |l| {
        l.pipeline_parallel = 4;
        l.zero_stage = 2;
    }),
    case(Target::MegatronDeepSpeed, "pipeline-bf16", DENSE, same, |l| {
        l.pipeline_parallel = 4;
        l.zero_stage = 0;
        l.shard_group = 1;
    }),
    case(Target::MegatronDeepSpeed, "pipeline-overlap", DENSE, same, |l| {
        l.pipeline_parallel = 4;
        l.data_overlap = true;
    }),
    case(Target::MegatronDeepSpeed, "pipeline-offload", DENSE, same, |l| {
        l.pipeline_parallel = 4;
        l.offload.optimizer = Place::Cpu;
    }),
    case(Target::DeepSpeed, "pipeline-axis", DENSE, same, |l| l.pipeline_parallel = 4),
    case(Target::DeepSpeed, "ulysses-tensor", DENSE, same, |l| {
        l.tensor_parallel = 2;
        l.context_parallel = 2;
        l.context_comm = ContextComm::AllToAll;
    }),
    case(Target::DeepSpeed, "ulysses-experts", EXPERTS, same, |l| {
        moe(l);
        (l.expert_parallel, l.context_parallel) = (8, 2);
        l.context_comm = ContextComm::AllToAll;
    }),
    case(Target::DeepSpeed, "deepep-tensor", EXPERTS, same, |l| {
        l.dispatcher = Some(Dispatcher::DeepEp);
        (l.tensor_parallel, l.expert_parallel) = (2, 8);
    }),
    case(
        Target::DeepSpeed,
        "deepep-format",
        EXPERTS,
        |j| j.precision = Precision::Fp16,
        |l| {
            l.dispatcher = Some(Dispatcher::DeepEp);
            l.expert_parallel = 8;
        },
    ),
    case(Target::DeepSpeed, "experts-zero", WINDOWS, same, |l| {
        moe(l);
        l.expert_parallel = 8;
        l.zero_stage = 3;
        l.shard_group = 8;
    }),
    case(Target::DeepSpeed, "ulysses-class", LEARNED, same, |l| {
        l.context_parallel = 2;
        l.context_comm = ContextComm::AllToAll;
    }),
    case(Target::DeepSpeed, "tensor-class", LEARNED, same, |l| l.tensor_parallel = 2),
    case(Target::DeepSpeed, "experts-tensor", WINDOWS, same, |l| {
        moe(l);
        l.tensor_parallel = 2;
    }),
    case(Target::DeepSpeed, "tensor-overlap", DENSE, same, |l| l.tensor_overlap = true),
    case(Target::DeepSpeed, "experts-tensor-offload", WINDOWS, same, |l| {
        moe(l);
        l.tensor_parallel = 2;
        l.expert_parallel = 2;
        l.offload.optimizer = Place::Cpu;
    }),
    case(Target::DeepSpeed, "partition-neighbours", DENSE, same, |l| {
        l.tensor_parallel = 2;
        l.zero_stage = 3;
        l.shard_group = 8;
    }),
    case(Target::MegatronDeepSpeed, "partition-neighbours", DENSE, same, |l| {
        l.zero_stage = 3;
        l.shard_group = 1;
    }),
    case(Target::DeepSpeed, "offload-optimizer", DENSE, same, |l| {
        l.zero_stage = 0;
        l.offload.optimizer = Place::Cpu;
    }),
    case(Target::DeepSpeed, "experts-preset", LATENT_MOE, same, |l| {
        moe(l);
        l.expert_parallel = 8;
        l.zero_stage = 1;
    }),
    case(
        Target::Torchtitan,
        "expert-shard-even",
        WINDOWS,
        |j| {
            j.gpus = 2048;
            j.global_batch_size = 2048;
        },
        |l| {
            moe(l);
            l.expert_parallel = 2;
            l.zero_stage = 3;
            l.shard_group = 2048;
            l.data_overlap = true;
        },
    ),
    case(
        Target::DeepSpeed,
        "optimizer-format",
        DENSE,
        |j| {
            j.optimizer = Optimizer::AdamwBf16;
            j.precision = Precision::Fp16;
        },
        |l| l.zero_stage = 1,
    ),
    case(
        Target::DeepSpeed,
        "optimizer-states",
        DENSE,
        |j| j.optimizer = Optimizer::AdamwBf16,
        |l| {
            l.zero_stage = 0;
        },
    ),
    case(Target::DeepSpeed, "offload-stages", DENSE, same, |l| {
        l.zero_stage = 2;
        l.offload.parameters = Place::Cpu;
    }),
    case(Target::DeepSpeed, "precision", DENSE, |j| j.precision = Precision::Fp8, |_| {}),
    case(Target::DeepSpeed, "optimizer", DENSE, |j| j.optimizer = Optimizer::Adam8bit, |_| {}),
    case(Target::MegatronDeepSpeed, "dense", HYBRID, same, |_| {}),
    case(Target::MegatronDeepSpeed, "heads", DENSE, same, |l| l.tensor_parallel = 16),
    case(Target::MegatronDeepSpeed, "widths", ODD_WIDTH, same, |l| l.tensor_parallel = 4),
    case(
        Target::MegatronDeepSpeed,
        "sequence",
        DENSE,
        |j| j.sequence_length = 4095,
        |l| {
            l.tensor_parallel = 2;
            l.sequence_parallel = true;
        },
    ),
    case(Target::MegatronDeepSpeed, "ulysses-grouped", DENSE, same, |l| {
        l.context_parallel = 2;
        l.context_comm = ContextComm::AllToAll;
    }),
    case(Target::MegatronDeepSpeed, "ulysses-alone", DENSE, same, |l| {
        l.tensor_parallel = 2;
        l.context_parallel = 2;
        l.context_comm = ContextComm::AllToAll;
    }),
    case(Target::MegatronDeepSpeed, "ulysses-heads", DENSE, ninety_six, |l| {
        l.context_parallel = 12;
        l.context_comm = ContextComm::AllToAll;
    }),
    case(
        Target::MegatronDeepSpeed,
        "ulysses-sequence",
        DENSE,
        |j| j.sequence_length = 4095,
        |l| {
            l.context_parallel = 2;
            l.context_comm = ContextComm::AllToAll;
        },
    ),
    case(Target::MegatronDeepSpeed, "pipeline-zero", DENSE, same, |l| {
        l.pipeline_parallel = 4;
        l.zero_stage = 2;
    }),
    case(Target::MegatronDeepSpeed, "pipeline-bf16", DENSE, same, |l| {
        l.pipeline_parallel = 4;
        l.zero_stage = 0;
        l.shard_group = 1;
    }),
    case(Target::MegatronDeepSpeed, "pipeline-overlap", DENSE, same, |l| {
        l.pipeline_parallel = 4;
        l.data_overlap = true;
    }),
    case(Target::MegatronDeepSpeed, "pipeline-offload", DENSE, same, |l| {
        l.pipeline_parallel = 4;
        l.offload.optimizer = Place::Cpu;
    }),
    case(Target::MegatronDeepSpeed, "ulysses-alone", DENSE, same, |l| {
        l.pipeline_parallel = 4;
        l.context_parallel = 2;
        l.context_comm = ContextComm::AllToAll;
    }),
    case(Target::MegatronDeepSpeed, "offload-stages", DENSE, same, |l| {
        l.zero_stage = 2;
        l.offload.parameters = Place::Cpu;
    }),
    case(Target::MegatronDeepSpeed, "precision", DENSE, |j| j.precision = Precision::Fp8, |_| {}),
    case(Target::MegatronDeepSpeed, "optimizer", DENSE, |j| j.optimizer = Optimizer::Adam8bit, |_| {}),
    // torchtitan
    case(Target::Torchtitan, "heads", DENSE, same, |l| {
        l.zero_stage = 3;
        l.tensor_parallel = 16;
    }),
    case(Target::Torchtitan, "widths", ODD_WIDTH, same, |l| {
        l.zero_stage = 3;
        l.tensor_parallel = 4;
    }),
    case(
        Target::Torchtitan,
        "tokens",
        DENSE,
        |j| j.sequence_length = 4095,
        |l| {
            l.zero_stage = 3;
            l.context_parallel = 2;
            l.context_comm = ContextComm::AllGather;
        },
    ),
    case(Target::Torchtitan, "shard-context", DENSE, same, |l| {
        l.zero_stage = 3;
        l.context_parallel = 4;
        l.context_comm = ContextComm::AllGather;
        l.shard_group = 2;
    }),
    case(Target::Torchtitan, "expert-shard", LATENT_MOE, same, |l| {
        moe(l);
        l.zero_stage = 3;
        l.shard_group = 8;
        l.expert_parallel = 16;
    }),
    case(Target::Torchtitan, "pipeline-tied", TIED, same, |l| {
        l.zero_stage = 3;
        l.pipeline_parallel = 2;
    }),
    case(Target::Torchtitan, "multi-token-prediction", LATENT_MOE, same, |l| {
        moe(l);
        l.zero_stage = 3;
        l.pipeline_parallel = 2;
    }),
    case(Target::Torchtitan, "dispatcher", WINDOWS, same, |l| {
        l.dispatcher = Some(Dispatcher::DeepEp);
        l.zero_stage = 3;
    }),
    case(
        Target::Torchtitan,
        "one-forward-one-backward",
        DENSE,
        |j| j.global_batch_size = 32,
        |l| {
            l.zero_stage = 3;
            l.pipeline_parallel = 8;
        },
    ),
    case(Target::Torchtitan, "cuda-graphs", DENSE, same, |l| {
        l.zero_stage = 3;
        l.pipeline_parallel = 2;
        l.cuda_graphs = CudaGraphs::FullIteration;
    }),
    case(
        Target::Torchtitan,
        "interleaving",
        DENSE,
        |j| j.global_batch_size = 144,
        |l| {
            l.zero_stage = 3;
            l.pipeline_parallel = 4;
            l.virtual_stages = 2;
            l.schedule = Schedule::Interleaved;
            l.micro_batch_size = 1;
            l.data_overlap = true;
        },
    ),
    case(Target::Torchtitan, "cpu-offload", DENSE, same, |l| {
        l.zero_stage = 3;
        l.offload.optimizer = Place::Cpu;
    }),
    case(Target::Torchtitan, "data-overlap", DENSE, same, |l| l.zero_stage = 3),
    case(
        Target::Torchtitan,
        "precision",
        DENSE,
        |j| j.precision = Precision::Fp16,
        |l| {
            l.zero_stage = 3;
            l.data_overlap = true;
        },
    ),
    case(
        Target::Torchtitan,
        "optimizer",
        DENSE,
        |j| j.optimizer = Optimizer::Muon,
        |l| {
            l.zero_stage = 3;
            l.data_overlap = true;
        },
    ),
    case(
        Target::Torchtitan,
        "training",
        DENSE,
        |j| j.training = Training::Lora { rank: 16 },
        |l| {
            l.zero_stage = 3;
            l.data_overlap = true;
        },
    ),
    case(Target::Torchtitan, "expert-shard-memory", LATENT_MOE, ninety_six, |l| {
        moe(l);
        l.expert_parallel = 8;
        l.zero_stage = 3;
        l.data_overlap = true;
    }),
    // Accelerate
    case(Target::Accelerate, "expert-shard-memory", LATENT_MOE, ninety_six, |l| {
        moe(l);
        l.zero_stage = 3;
    }),
    case(Target::Accelerate, "heads", DENSE, same, |l| {
        l.zero_stage = 3;
        l.tensor_parallel = 16;
    }),
    case(Target::Accelerate, "widths", ODD_WIDTH, same, |l| {
        l.zero_stage = 3;
        l.tensor_parallel = 4;
    }),
    case(
        Target::Accelerate,
        "sequence",
        DENSE,
        |j| j.sequence_length = 4095,
        |l| {
            l.zero_stage = 3;
            l.context_parallel = 2;
        },
    ),
    case(Target::Accelerate, "experts-autocast", EXPERTS, same, |l| {
        l.zero_stage = 0;
        l.shard_group = 1;
        l.dispatcher = Some(Dispatcher::AllToAll);
    }),
    case(Target::Accelerate, "context-attention", WINDOWS, same, |l| {
        l.dispatcher = Some(Dispatcher::AllToAll);
        l.zero_stage = 3;
        l.context_parallel = 2;
    }),
    case(Target::Accelerate, "context-attention", HYBRID, same, |l| {
        l.zero_stage = 3;
        l.context_parallel = 2;
    }),
    case(Target::Accelerate, "context-attention", LONG_WINDOW, same, |l| {
        l.zero_stage = 3;
        l.context_parallel = 2;
    }),
    case(Target::Accelerate, "context-attention", LEARNED, same, |l| {
        l.zero_stage = 3;
        l.context_parallel = 2;
    }),
    case(Target::Accelerate, "tensor-class", LEARNED, same, |l| {
        l.zero_stage = 3;
        l.tensor_parallel = 2;
    }),
    case(Target::Accelerate, "tensor-class", HYBRID, same, |l| {
        l.zero_stage = 3;
        l.tensor_parallel = 2;
    }),
    case(Target::Accelerate, "shard-context", DENSE, same, |l| {
        l.zero_stage = 3;
        l.context_parallel = 4;
        l.shard_group = 2;
    }),
    case(Target::Accelerate, "tensor-needs-sharding", DENSE, same, |l| {
        l.zero_stage = 0;
        l.tensor_parallel = 2;
    }),
    case(Target::Accelerate, "replication", DENSE, same, |l| {
        l.zero_stage = 3;
        l.context_parallel = 4;
        l.shard_group = 4;
    }),
    case(Target::Accelerate, "sharding", DENSE, same, |l| {
        l.zero_stage = 3;
        l.shard_group = 1;
    }),
    case(Target::Accelerate, "cpu-offload", DENSE, same, |l| {
        l.zero_stage = 3;
        l.offload.optimizer = Place::Cpu;
    }),
    case(Target::Accelerate, "data-overlap", DENSE, same, |l| l.zero_stage = 3),
    case(
        Target::Accelerate,
        "precision",
        DENSE,
        |j| j.precision = Precision::Fp8,
        |l| {
            l.zero_stage = 3;
            l.data_overlap = true;
        },
    ),
    case(
        Target::Accelerate,
        "optimizer",
        DENSE,
        |j| j.optimizer = Optimizer::Muon,
        |l| {
            l.zero_stage = 3;
            l.data_overlap = true;
        },
    ),
    // Frameworks without export
    case(Target::Nanotron, "heads", DENSE, same, |l| l.tensor_parallel = 16),
    case(Target::Nanotron, "widths", ODD_WIDTH, same, |l| l.tensor_parallel = 4),
    case(Target::Nanotron, "sequence", DENSE, |j| j.sequence_length = 4095, |l| l.context_parallel = 2),
    case(Target::Nanotron, "sequence-parallel", DENSE, |j| j.sequence_length = 4090, in_sequence),
    case(
        Target::InternEvo,
        "interleaving",
        DENSE,
        |j| j.global_batch_size = 160,
        |l| {
            l.pipeline_parallel = 4;
            l.virtual_stages = 2;
            l.schedule = Schedule::Interleaved;
        },
    ),
    case(
        Target::HaiLlm,
        "both-directions",
        DENSE,
        |j| j.global_batch_size = 96,
        |l| {
            l.pipeline_parallel = 4;
            l.virtual_stages = 2;
            l.schedule = Schedule::DualPipe;
        },
    ),
];

/// What Transformers 5.12 splits by tensor parallelism, as its classes say when they are built (shares of layer weights
/// with a plan: all, or part or nothing), and which of them normalise whole rows of heads.
#[test]
fn tensor_plans_are_those_of_transformers() {
    let split = [
        "llama3.1-8b",
        "mistral-7b",
        "qwen2.5-7b",
        "qwen3-8b",
        "phi4-14b",
        "gemma2-27b",
        "gemma3-27b",
        "mixtral-8x7b",
        "qwen3-30b-a3b",
        "deepseek-v2",
        "glm4.5",
        "llama4-scout-17b-16e",
        "gpt-neox-20b",
    ];
    let whole = [
        "gpt3-175b",
        "opt-175b",
        "bloom-176b",
        "falcon-180b",
        "nemotron4-15b",
        "nemotron-h-8b",
        "gpt-oss-20b",
        "qwen2-57b-a14b",
        "deepseek-v3",
        "kimi-k2",
        "olmo2-32b",
        "minimax-m2",
        "command-r-plus-104b",
    ];
    let plan = |name: &str| {
        let task = autoplan::planner::Task::shipped(name, "dgx-h100", 8, 8, 2048).expect("ships");
        task.prepare().context.tensor_plan
    };
    assert!(split.into_iter().all(plan), "{:?}", split.map(plan));
    assert!(!whole.into_iter().any(plan), "{:?}", whole.map(plan));
    // StarCoder2 and Phi, unlike Nemotron and Falcon.
    for (mixer, block) in [
        ("heads: 24, kv_heads: 2, head_dim: 128, qkv_bias: true, output_bias: true", ""),
        (
            "heads: 32, kv_heads: 32, head_dim: 80, qkv_bias: true, output_bias: true",
            ", norms: 1, parallel: true",
        ),
    ] {
        let text = format!(
            r#"(schema: 1, name: "Biased", hidden: 2560, vocabulary: 50257, max_sequence: 8192, norm: LayerNorm,
            blocks: {{ "layer": (mixer: Attention({mixer}),
            feed_forward: Dense(width: 10240, activation: Gelu, bias: true){block}) }},
            layers: [(repeat: 32, of: ["layer"])])"#
        );
        let model: Model = ron_options().from_str(&text).expect("is a model");
        let task = autoplan::planner::Task::shipped("llama3.1-8b", "dgx-h100", 8, 8, 2048).expect("ships");
        let task = autoplan::planner::Task { model, ..task };
        let prepared = task.prepare();
        assert!(prepared.context.tensor_plan && prepared.context.plain_attention, "{mixer}");
    }
}

/// A feed-forward width that four ranks cannot share.
const ODD_WIDTH: &str = r#"(
    schema: 1, name: "Odd", hidden: 4096, vocabulary: 32000, max_sequence: 8192,
    blocks: { "layer": (
        mixer: Attention(heads: 32, kv_heads: 32, head_dim: 128),
        feed_forward: Dense(width: 11006)) },
    layers: [(repeat: 32, of: ["layer"])],
)"#;

/// A window as long as the longest sequence, as Mistral's may be.
const LONG_WINDOW: &str = r#"(
    schema: 1, name: "Long window", hidden: 4096, vocabulary: 32000, max_sequence: 32768,
    blocks: { "layer": (
        mixer: Attention(heads: 32, kv_heads: 8, head_dim: 128, window: 32768),
        feed_forward: Dense(width: 14336),
    ) },
    layers: [(repeat: 32, of: ["layer"])],
)"#;

/// A GPT-2.
const LEARNED: &str = r#"(
    schema: 1, name: "Learned", hidden: 2048, vocabulary: 50257, max_sequence: 8192, position: Learned(8192),
    norm: LayerNorm, tied_embeddings: true,
    blocks: { "layer": (
        mixer: Attention(heads: 32, kv_heads: 32, head_dim: 64, qkv_bias: true, output_bias: true),
        feed_forward: Dense(width: 8192, activation: Gelu, bias: true)) },
    layers: [(repeat: 32, of: ["layer"])],
)"#;

/// Input and output embedding are one matrix.
const TIED: &str = r#"(
    schema: 1, name: "Tied", hidden: 2048, vocabulary: 32000, max_sequence: 8192, tied_embeddings: true,
    blocks: { "layer": (
        mixer: Attention(heads: 32, kv_heads: 8, head_dim: 64),
        feed_forward: Dense(width: 8192)) },
    layers: [(repeat: 16, of: ["layer"])],
)"#;

/// The cases of a framework, for its validator: rule, model, job and layout.
pub fn cases_by_hand(target: Target) -> impl Iterator<Item = (&'static str, Model, Job, Layout)> {
    CASES.iter().filter(move |case| case.target == target).map(|case| {
        let mut job = job(64, 256);
        (case.job)(&mut job);
        (case.rule, model(case.model), job.clone(), fill(&job, case.layout))
    })
}

#[test]
fn every_rule_refuses_what_it_says() {
    for case in CASES {
        let (context, layout) = case.world();
        let refusal = legal(case.target, &context, &layout).expect_err(case.rule);
        assert_eq!(refusal.rule, case.rule, "{refusal}");
        let text = refusal.to_string();
        assert!(!text.contains('{') && text.contains(refusal.source), "{text}");
    }
}

#[test]
fn every_rule_has_a_case() {
    for target in Target::ALL {
        for rule in target.rules() {
            let covered = CASES.iter().any(|c| {
                c.rule == rule.name
                    && c.target.rules().iter().any(|r| r.name == rule.name && r.source == rule.source)
            });
            assert!(covered, "no case breaks {target}'s rule {}", rule.name);
        }
    }
    for rule in COMMON_RULES {
        assert!(CASES.iter().any(|c| c.rule == rule.name), "no case breaks the rule {}", rule.name);
    }
}

/// The part of `b` that a rule of this reach does not look at, with the rest of `a`.
fn beyond(reach: Reach, a: Layout, b: Layout) -> Layout {
    let group = Layout {
        tensor_parallel: a.tensor_parallel,
        pipeline_parallel: a.pipeline_parallel,
        context_parallel: a.context_parallel,
        expert_parallel: a.expert_parallel,
        expert_tensor_parallel: a.expert_tensor_parallel,
        data_parallel: a.data_parallel,
        micro_batch_size: a.micro_batch_size,
        gradient_accumulation_steps: a.gradient_accumulation_steps,
        ..b
    };
    let order = |l| Layout {
        virtual_stages: a.virtual_stages,
        schedule: a.schedule,
        mtp_standalone: a.mtp_standalone,
        ..l
    };
    let cell = |l| Layout {
        sequence_parallel: a.sequence_parallel,
        context_comm: a.context_comm,
        dispatcher: a.dispatcher,
        tensor_overlap: a.tensor_overlap,
        expert_overlap: a.expert_overlap,
        shared_overlap: a.shared_overlap,
        cuda_graphs: a.cuda_graphs,
        offload: a.offload,
        ..l
    };
    match reach {
        Reach::Job => b,
        Reach::Group => group,
        Reach::Order => order(group),
        Reach::Cell => cell(group),
        Reach::Sharding => Layout {
            zero_stage: a.zero_stage,
            shard_group: a.shard_group,
            data_overlap: a.data_overlap,
            offload: a.offload,
            ..group
        },
        Reach::Exchange => Layout {
            dispatcher: a.dispatcher,
            expert_overlap: a.expert_overlap,
            shared_overlap: a.shared_overlap,
            ..order(group)
        },
        Reach::Layout => a,
    }
}

/// The search asks every rule once per what it looks at: none may look at more than it says.
#[test]
fn rules_look_at_no_more_than_they_say() {
    let mut random = Random::new(11);
    let layout = |random: &mut Random| Layout {
        tensor_parallel: random.pick(&[1, 2, 3, 4, 8, 16]),
        pipeline_parallel: random.pick(&[1, 1, 2, 4, 6]),
        virtual_stages: random.pick(&[1, 2, 3]),
        context_parallel: random.pick(&[1, 1, 2, 5, 8]),
        expert_parallel: random.pick(&[1, 1, 2, 8, 96]),
        expert_tensor_parallel: random.pick(&[1, 1, 2, 7]),
        data_parallel: random.pick(&[1, 2, 4, 24]),
        sequence_parallel: random.pick(&[false, true]),
        micro_batch_size: random.pick(&[1, 2, 8]),
        gradient_accumulation_steps: random.pick(&[1, 2, 3, 4, 7, 32]),
        zero_stage: random.pick(&[0, 1, 2, 3]),
        shard_group: random.pick(&[1, 2, 3, 8, 64]),
        schedule: random.pick(&[
            Schedule::GPipe,
            Schedule::OneFOneB,
            Schedule::Interleaved,
            Schedule::ZeroBubbleH1,
            Schedule::ZeroBubbleV,
        ]),
        context_comm: random.pick(&[ContextComm::Ring, ContextComm::AllGather, ContextComm::AllToAll]),
        dispatcher: random.pick(&[
            None,
            Some(Dispatcher::AllGather),
            Some(Dispatcher::AllToAll),
            Some(Dispatcher::DeepEp),
            Some(Dispatcher::HybridEp),
        ]),
        tensor_overlap: random.pick(&[false, true]),
        data_overlap: random.pick(&[false, true]),
        expert_overlap: random.pick(&[false, true]),
        shared_overlap: random.pick(&[false, true]),
        mtp_standalone: random.pick(&[false, true]),
        cuda_graphs: random.pick(&[
            CudaGraphs::None,
            CudaGraphs::Attention,
            CudaGraphs::AttentionRouter,
            CudaGraphs::FullIteration,
        ]),
        offload: Offload {
            optimizer: random.pick(&[Place::Gpu, Place::Cpu, Place::Nvme]),
            parameters: random.pick(&[Place::Gpu, Place::Cpu, Place::Nvme]),
            activations: random.pick(&[false, true]),
        },
    };
    let rules = |target: Target| COMMON_RULES.iter().chain(target.rules());
    let job = job(64, 256);
    // Where a layout breaks a rule, all that agree in what the rule looks at do.
    let mut broken: Vec<(Target, Context, Layout)> = CASES
        .iter()
        .map(|case| {
            let (context, layout) = case.world();
            (case.target, context, layout)
        })
        .collect();
    for model in [DENSE, LATENT_MOE, WINDOWS, HYBRID] {
        for target in Target::ALL {
            broken.extend((0..40).map(|_| (target, context(model, &job), layout(&mut random))));
        }
    }
    for (target, context, a) in &broken {
        for rule in rules(*target) {
            let check = |layout| (rule.check)(target.capabilities(), context, &layout).is_ok();
            for _ in 0..20 {
                let b = beyond(rule.reach, *a, layout(&mut random));
                assert_eq!(
                    check(*a),
                    check(b),
                    "{target}: {} looks beyond {:?}: {a:?} {b:?}",
                    rule.name,
                    rule.reach
                );
            }
        }
    }
}

/// A graph that the search leaves out of its bounds on groups is illegal beside all other flags.
#[test]
fn graphs_are_forbidden_everywhere_or_not_at_all() {
    let job = job(64, 256);
    let mut forbidden = 0;
    for model in [DENSE, LATENT_MOE, WINDOWS, HYBRID] {
        let context = context(model, &job);
        for target in Target::ALL {
            let restrictions = Restrictions::default();
            let space = Space::new(target, &context, &restrictions);
            let groups = space.groups();
            for group in groups.iter().step_by(7) {
                let possible = &space.possible_flags(group).cuda_graphs;
                space.cells(group, |cell| {
                    if !possible.contains(&cell.cuda_graphs) {
                        forbidden += 1;
                        assert!(space.cell_rule(group, &cell).is_some(), "{target}: {group:?} {cell:?}");
                    }
                });
            }
        }
    }
    assert!(forbidden > 0);
}

#[test]
fn published_layouts_are_legal() {
    // Llama-3.1 405B's kind of layout: key/value heads fewer than tensor-parallel ranks are fine too.
    let job = job(2048, 2048);
    let layout = fill(&job, |l| {
        l.tensor_parallel = 16;
        l.pipeline_parallel = 16;
        l.sequence_parallel = true;
        l.data_overlap = true;
    });
    assert_eq!(legal(Target::Megatron, &context(DENSE, &job), &layout), Ok(()));
    // DeepSeek-V3 on 2,048 GPUs.
    let layout = fill(&job, |l| {
        l.pipeline_parallel = 16;
        l.virtual_stages = 2;
        l.schedule = Schedule::Interleaved;
        l.expert_parallel = 64;
        l.dispatcher = Some(Dispatcher::DeepEp);
        l.expert_overlap = true;
    });
    assert_eq!(legal(Target::Megatron, &context(LATENT_MOE, &job), &layout), Ok(()));
    let plan = spread(layout, &job, 61, Recompute::None);
    assert_eq!(legal_plan(Target::Megatron, &context(LATENT_MOE, &job), &plan), Ok(()));
}

#[test]
fn every_plan_rule_refuses_what_it_says() {
    let parse = |text: &str| text.parse::<Recompute>().unwrap();
    type Breaks = fn(&mut Layout);
    let cases: &[(Target, &str, &str, Breaks, &str)] = &[
        (Target::InternEvo, "empty-stages", TIED, |l| l.pipeline_parallel = 32, "none"),
        (Target::DeepSpeed, "recompute-family", DENSE, |_| {}, "full:block:3"),
        (Target::Torchtitan, "recompute-family", DENSE, fsdp, "selective:core_attn"),
        (Target::MegatronDeepSpeed, "activation-offload", DENSE, |l| l.offload.activations = true, "none"),
        (Target::Megatron, "recompute-modules", DENSE, |_| {}, "selective:mla_up_proj"),
        (Target::Megatron, "recompute-modules", DENSE, |_| {}, "selective:moe_act"),
        (Target::Megatron, "recompute-meaning", DENSE, |_| {}, "selective:moe"),
        (Target::Megatron, "recompute-meaning", WINDOWS, moe, "selective:shared_experts"),
        (Target::Megatron, "recompute-mtp", LATENT_MOE, moe, "full:uniform:2"),
        (Target::Megatron, "recompute-expert-overlap", LATENT_MOE, overlap, "full:uniform:1"),
        (Target::Megatron, "recompute-expert-overlap", LATENT_MOE, overlap, "selective:moe"),
        (Target::Megatron, "recompute-shared-overlap", LATENT_MOE, beside, "selective:shared_experts"),
        (
            Target::Megatron,
            "recompute-cuda-graphs",
            DENSE,
            |l| l.cuda_graphs = CudaGraphs::Attention,
            "full:uniform:1",
        ),
        (Target::Megatron, "activation-offload", DENSE, |l| l.offload.activations = true, "full:uniform:1"),
    ];
    for &(target, rule, model, change, recompute) in cases {
        let job = job(64, 256);
        let layout = fill(&job, change);
        let context = context(model, &job);
        let plan = spread(layout, &job, context.layers, parse(recompute));
        let refusal = legal_plan(target, &context, &plan).expect_err(rule);
        assert_eq!(refusal.rule, rule, "{refusal}");
    }
    let small = job(64, 256);
    let layout = fill(&small, |l| l.pipeline_parallel = 4);
    let chunks = [21, 19, 20, 20].map(|layers| Chunk { layers, recompute: Recompute::None }).to_vec();
    let plan = Plan::new(layout, chunks, 64, 256, 80).unwrap();
    let refusal = legal_plan(Target::MegatronDeepSpeed, &context(DENSE, &small), &plan).unwrap_err();
    assert_eq!(refusal.rule, "uneven-stages", "{refusal}");
    let other = ["recompute-common", "empty-parts", "uneven-stages"];
    for target in Target::ALL {
        for rule in COMMON_PLAN_RULES.iter().chain(target.plan_rules()) {
            let covered = other.contains(&rule.name) || cases.iter().any(|case| case.1 == rule.name);
            assert!(covered, "no case breaks {target}'s rule {}", rule.name);
        }
    }
    // One mode for all stages is all that stock Megatron has.
    let job = job(64, 256);
    let layout = fill(&job, |l| l.pipeline_parallel = 2);
    let chunks = vec![
        Chunk { layers: 40, recompute: parse("full:block:10") },
        Chunk { layers: 40, recompute: Recompute::None },
    ];
    let plan = Plan::new(layout, chunks, 64, 256, 80).unwrap();
    let refusal = legal_plan(Target::Megatron, &context(DENSE, &job), &plan).unwrap_err();
    assert_eq!(refusal.rule, "recompute-common");
    // An empty stage between others has no module that torchtitan could run.
    let layout = fill(&job, |l| {
        fsdp(l);
        l.pipeline_parallel = 4;
    });
    let chunks = [40, 0, 20, 20].map(|layers| Chunk { layers, recompute: Recompute::None }).to_vec();
    let plan = Plan::new(layout, chunks, 64, 256, 80).unwrap();
    let refusal = legal_plan(Target::Torchtitan, &context(DENSE, &job), &plan).unwrap_err();
    assert_eq!((refusal.rule, refusal.judge), ("empty-parts", Judge::SetUp));
}

/// torch cuts widths and sequences that do not divide into uneven shards and says nothing.
#[test]
fn uneven_shards_are_found_out_by_nobody() {
    for (target, rule) in [(Target::Torchtitan, "widths"), (Target::Accelerate, "sequence")] {
        let case = CASES.iter().find(|case| case.target == target && case.rule == rule).unwrap();
        let (context, layout) = case.world();
        assert_eq!(legal(target, &context, &layout).unwrap_err().judge, Judge::Nobody);
    }
}

fn fsdp(l: &mut Layout) {
    l.zero_stage = 3;
    l.data_overlap = true;
}

fn beside(l: &mut Layout) {
    moe(l);
    l.expert_parallel = 8;
    l.shared_overlap = true;
}

fn overlap(l: &mut Layout) {
    moe(l);
    l.expert_parallel = 8;
    l.expert_overlap = true;
}

#[test]
fn names_are_understood() {
    for target in Target::ALL {
        assert_eq!(target.name().parse(), Ok(target));
    }
    assert_eq!("Megatron-LM".parse(), Ok(Target::Megatron));
    let error = "deepsped".parse::<Target>().unwrap_err();
    assert_eq!(error.nearest, "deepspeed");
}
