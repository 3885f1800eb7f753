//! Hugging Face Accelerate with FSDP2: sharded data, tensor and context parallelism, no pipeline.
//!
//! Read in Accelerate 1.15; sources of rules name files below `accelerate/`.

use std::fmt::Write;

use serde_json::Value;

use super::deepspeed::write::python_literal;
use super::export::{ExportRequest, ExportedFile, WrittenFor};
use super::hf::{self, HfModel};
use super::{
    Broken, Capabilities, ExpertTensor, Judge, Reach, RecomputeFamilies, Rule, SequenceParallel, ShardGroups,
    broken, ensure, heads_divide, numbers, sequence_divides, whole_experts, widths_divide,
};
use crate::layers::Layers;
use crate::plan::{ContextComm, CudaGraphs, Dispatcher, Modules, Place, Recompute, Schedule};
use crate::spec::job::{Optimizer, Precision, Training};

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
    shared_overlap: false,
    dispatchers: &[Dispatcher::AllGather, Dispatcher::AllToAll],
    default_dispatchers: &[Dispatcher::AllGather, Dispatcher::AllToAll],
    cuda_graphs: &[CudaGraphs::None],
    optimizer_places: &[Place::Gpu, Place::Cpu],
    parameter_places: &[Place::Gpu, Place::Cpu],
    activation_offload: false,
    uneven_stages: false,
    empty_stages: false,
    mtp_standalone: false,
    kv_replication: false,
};

/// Rules on layouts, in the order in which they are asked.
pub static RULES: &[Rule] = &[
    Rule {
        name: "expert-shard-memory",
        source: "transformers 5: experts of a layer are one parameter, which FSDP2 cuts into whole experts",
        judge: Judge::Nobody,
        reach: Reach::Sharding,
        check: |_, c, l| whole_experts(c, l, 1, u64::from(l.shard_group), 0),
    },
    Rule {
        name: "experts-autocast",
        source: "transformers integrations/moe.py: grouped products, which autocast leaves in FP32 (seen on an H100)",
        judge: Judge::Nobody,
        reach: Reach::Sharding,
        check: |_, c, l| {
            ensure(
                l.zero_stage > 0 || !c.has_experts(),
                "without sharding experts are computed in FP32: autocast does not reach their products",
                [0; 4],
            )
        },
    },
    Rule {
        name: "heads",
        source: "transformers integrations/tensor_parallel.py",
        judge: Judge::Nobody,
        reach: Reach::Group,
        check: heads_divide,
    },
    Rule {
        name: "widths",
        source: "transformers integrations/tensor_parallel.py",
        judge: Judge::Nobody,
        reach: Reach::Group,
        check: widths_divide,
    },
    Rule {
        name: "sequence",
        source: "torch distributed/tensor/experimental/_context_parallel/_load_balancer.py _create_default_load_balancer: \
                 other lengths are cut unevenly or without balance",
        judge: Judge::Nobody,
        reach: Reach::Group,
        check: sequence_divides,
    },
    Rule {
        name: "context-attention",
        source: "docs/source/concept_guides/context_parallelism.md: only SDPA, with no mask or a causal one",
        judge: Judge::Nobody,
        reach: Reach::Group,
        check: |_, c, l| {
            ensure(
                c.plain_attention || l.context_parallel == 1,
                "context parallelism (cp {0}) is torch's, for causal attention through SDPA alone: no windows however \
                 long, no biases, no sinks, no state-space layers; and of Transformers' classes those whose masks \
                 Accelerate finds (not GPT-2, GPT-NeoX, Falcon)",
                numbers([u64::from(l.context_parallel)]),
            )
        },
    },
    Rule {
        name: "tensor-class",
        source: "transformers configuration_*.py base_model_tp_plan; integrations/tensor_parallel.py distribute_model",
        judge: Judge::Nobody,
        reach: Reach::Group,
        check: |_, c, l| {
            ensure(
                c.tensor_plan || l.tensor_parallel == 1,
                "Transformers has no plan that splits all layers of this model (tp {0}): every rank would hold some whole",
                numbers([u64::from(l.tensor_parallel)]),
            )
        },
    },
    Rule {
        name: "shard-context",
        source: "parallelism_config.py ParallelismConfig: weights are sharded over dp_shard x cp",
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
        name: "tensor-needs-sharding",
        source: "parallelism_config.py ParallelismConfig",
        judge: Judge::Nobody,
        reach: Reach::Sharding,
        check: |_, _, l| {
            ensure(
                l.zero_stage > 0 || l.tensor_parallel == 1,
                "tensor parallelism comes with FSDP2 (ZeRO stage 2 or 3) only",
                [0; 4],
            )
        },
    },
    Rule {
        name: "replication",
        source: "parallelism_config.py ParallelismConfig._validate_accelerator",
        judge: Judge::SetUp,
        reach: Reach::Sharding,
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
        source: "parallelism_config.py ParallelismConfig fsdp_dim_names",
        judge: Judge::SetUp,
        reach: Reach::Sharding,
        check: |_, _, l| {
            ensure(
                l.zero_stage == 0 || l.shard_group > 1,
                "FSDP over a group of {0} shards nothing",
                numbers([u64::from(l.shard_group)]),
            )
        },
    },
    Rule {
        name: "cpu-offload",
        source: "utils/dataclasses.py fsdp_offload_params",
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
        source: "torch distributed/fsdp",
        judge: Judge::Nobody,
        reach: Reach::Sharding,
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
        reach: Reach::Job,
        check: |_, c, _| {
            ensure(
                matches!(c.precision, Precision::Bf16 | Precision::Fp16),
                "only bf16 and fp16 are exported",
                [0; 4],
            )
        },
    },
    Rule {
        name: "optimizer",
        source: "accelerator.py Accelerator.prepare_optimizer",
        judge: Judge::Nobody,
        reach: Reach::Job,
        check: |_, c, _| {
            ensure(
                matches!(c.optimizer, Optimizer::Adamw | Optimizer::Sgd),
                "only AdamW and SGD are exported",
                [0; 4],
            )
        },
    },
    super::DROPLESS,
];

const WRITTEN_FOR: &str = "Accelerate 1.15, transformers 5.12, torch 2.14";

/// Writes the configuration, its launcher and, for known model families, a training script.
pub(super) fn write(request: &ExportRequest) -> Result<Vec<ExportedFile>, Broken> {
    if request.job.training != Training::Full {
        return Err(broken("the script written here trains all weights; adapters are the `peft` package's"));
    }
    let layers = Layers::new(request.model);
    // Tensor parallelism is the model's own: a script that loads it so must be the user's.
    let split = request.plan.layout().tensor_parallel > 1;
    let hf = HfModel::of(request.model, &layers);
    let script = hf.as_ref().filter(|_| !split);
    // Without the script somebody else builds the model.
    let written_for = HfModel::written_for(WRITTEN_FOR, request.model, script);
    let mut files = vec![
        ExportedFile {
            name: "accelerate.yaml".into(),
            text: configuration(request, hf.as_ref(), &written_for),
            executable: false,
        },
        ExportedFile {
            name: "launch.sh".into(),
            text: launcher(request, script.is_some(), &written_for),
            executable: true,
        },
    ];
    if let Some(hf) = script {
        files.push(ExportedFile {
            name: "train.py".into(),
            text: training_script(request, hf, &written_for),
            executable: true,
        });
    }
    Ok(files)
}

fn recomputes(request: &ExportRequest) -> bool {
    request.plan.chunks().iter().any(|c| c.recompute != Recompute::None)
}

fn configuration(request: &ExportRequest, hf: Option<&HfModel>, written_for: &WrittenFor) -> String {
    let l = request.plan.layout();
    let (nodes, _) = request.nodes();
    let precision = if request.job.precision == Precision::Fp16 { "fp16" } else { "bf16" };
    let sharded = l.zero_stage > 0;
    let kind = if sharded { "FSDP" } else { "MULTI_GPU" };
    let mut text = request.header("#", written_for);
    text.push_str("#\n# Micro-batch size and accumulation are the training script's.\n");
    let _ = writeln!(text, "compute_environment: LOCAL_MACHINE\ndistributed_type: {kind}");
    let _ = writeln!(text, "mixed_precision: {precision}\nnum_machines: {nodes}");
    let _ = writeln!(text, "num_processes: {}\nmachine_rank: 0", request.job.gpus);
    text.push_str("main_process_ip: localhost\nmain_process_port: 29500\nrdzv_backend: static\n");
    text.push_str("main_training_function: main\nuse_cpu: false\n");
    if sharded {
        let wrapped = hf.map(|hf| format!("  fsdp_transformer_layer_cls_to_wrap: {}\n", hf.layer_class));
        let _ = write!(
            text,
            "fsdp_config:\n  fsdp_version: 2\n  fsdp_reshard_after_forward: {}\n  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n{}  fsdp_state_dict_type: SHARDED_STATE_DICT\n  fsdp_activation_checkpointing: {}\n  fsdp_offload_params: {}\n  fsdp_cpu_ram_efficient_loading: true\n",
            l.zero_stage == 3,
            wrapped.unwrap_or_default(),
            recomputes(request),
            l.offload.parameters != Place::Gpu,
        );
        let shard = l.shard_group / l.context_parallel;
        let _ = write!(
            text,
            "parallelism_config:\n  parallelism_config_dp_replicate_size: {}\n  parallelism_config_dp_shard_size: {shard}\n  parallelism_config_tp_size: {}\n  parallelism_config_cp_size: {}\n",
            l.data_parallel / shard.max(1),
            l.tensor_parallel,
            l.context_parallel,
        );
        if l.context_parallel > 1 {
            let strategy = if l.context_comm == ContextComm::AllGather { "allgather" } else { "alltoall" };
            let _ = writeln!(text, "  parallelism_config_cp_comm_strategy: {strategy}");
        }
    }
    text
}

fn launcher(request: &ExportRequest, with_script: bool, written_for: &WrittenFor) -> String {
    let (nodes, _) = request.nodes();
    let script = if with_script {
        "TRAIN_SCRIPT may name a\n# training script other than the one beside this file."
    } else {
        "No training\n# script is written for this plan: TRAIN_SCRIPT must name yours (with tensor parallelism, one that loads the\n# model with tp_plan=\"auto\")."
    };
    let default = if with_script { "-$HERE/train.py" } else { "?names the training script" };
    format!(
        r#"#!/usr/bin/env bash
{header}#
# Run it on every node; with several nodes, set NODE_RANK and MASTER_ADDR. {script}{brought}
set -euo pipefail

HERE=$(cd "$(dirname "${{BASH_SOURCE[0]}}")" && pwd)
export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True

exec accelerate launch --config_file "$HERE/accelerate.yaml" \
    --num_machines {nodes} --num_processes {gpus} --machine_rank "${{NODE_RANK:-0}}" \
    --main_process_ip "${{MASTER_ADDR:-localhost}}" --main_process_port "${{MASTER_PORT:-29500}}" \
    "${{TRAIN_SCRIPT:{default}}}" "$@"
"#,
        header = request.header("#", written_for),
        brought = if with_script {
            String::new()
        } else {
            hf::brought(request.model, &Layers::new(request.model), request.job.sequence_length)
        },
        gpus = request.job.gpus,
    )
}

/// A small training script: the model from its configuration, synthetic tokens, Accelerate's loop.
fn training_script(request: &ExportRequest, hf: &HfModel, written_for: &WrittenFor) -> String {
    let l = request.plan.layout();
    let config = serde_json::to_string_pretty(&Value::Object(hf.config.clone())).unwrap_or_default();
    let optimizer = if request.job.optimizer == Optimizer::Sgd {
        "torch.optim.SGD(model.parameters(), lr=3e-4, momentum=0.9, weight_decay=0.1)"
    } else {
        "torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)"
    };
    let recompute = if l.zero_stage == 0 && recomputes(request) {
        "    model.gradient_checkpointing_enable()\n"
    } else {
        ""
    };
    let attention = hf.attention(request.job.sequence_length);
    let model =
        format!("model = AutoModelForCausalLM.from_config(config, attn_implementation=\"{attention}\")\n");
    let accumulates = l.gradient_accumulation_steps > 1;
    let (accumulate, plugin) = if l.zero_stage > 0 && accumulates {
        // Without it, the gradients of whole weights would pile up on every rank until the last micro-batch.
        let plugin = "gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps=ACCUMULATION, sync_each_batch=True)";
        let indented = format!(
            "\n        # Every micro-batch's gradients go to the shards, as is predicted; else whole ones would be kept.\n        {plugin}\n    "
        );
        (indented, "\nfrom accelerate.utils import GradientAccumulationPlugin")
    } else {
        ("gradient_accumulation_steps=ACCUMULATION".to_owned(), "")
    };
    let (empty_import, build) = if l.zero_stage > 0 {
        let build = format!(
            "    # The first rank holds the model in its host's memory; the others receive their shards from it. Their own\n    # weights are never touched, so that they take no memory.\n    whole = nullcontext() if accelerator.is_main_process else init_empty_weights()\n    with whole:\n        {model}    for module in model.modules():\n        for name, weight in list(module.named_parameters(recurse=False)):\n            if weight.is_meta:\n                untouched = torch.empty_like(weight, device=\"cpu\")\n                module.register_parameter(name, torch.nn.Parameter(untouched))\n    model.tie_weights()\n"
        );
        (", init_empty_weights", build)
    } else {
        ("", format!("    {model}"))
    };
    let context = if l.zero_stage > 0 { "from contextlib import nullcontext\n" } else { "" };
    let body = if l.context_parallel > 1 {
        "            shards = [tokens, positions, targets]\n            with accelerator.maybe_context_parallel(buffers=shards, buffer_seq_dims=[1, 1, 1]):\n                loss = loss_of(model, tokens, positions, targets)\n                accelerator.backward(loss)\n"
    } else {
        "            loss = loss_of(model, tokens, positions, targets)\n            accelerator.backward(loss)\n"
    };
    format!(
        r#"#!/usr/bin/env python3
{header}#
# Trains the model on synthetic tokens; put a data loader in the place of batches().{needs}
import json
{context}
import torch
from accelerate import Accelerator{empty_import}{plugin}
from transformers import AutoConfig, AutoModelForCausalLM

MODEL = json.loads({literal})
SEQUENCE_LENGTH = {sequence}
MICRO_BATCH_SIZE = {micro_batch}
ACCUMULATION = {accumulation}
STEPS = {steps}
REPLICA_RANKS = {replica_ranks}


def batches(vocabulary, device, replica):
    """Tokens, positions and targets of one replica's micro-batches, the same on all of its ranks. The target of a token
    is the next one, also where sequences are cut among ranks."""
    random = torch.Generator(device).manual_seed(replica)
    positions = torch.arange(SEQUENCE_LENGTH, device=device).expand(MICRO_BATCH_SIZE, -1)
    while True:
        drawn = torch.randint(
            vocabulary, (MICRO_BATCH_SIZE, SEQUENCE_LENGTH + 1), device=device, generator=random
        )
        yield drawn[:, :-1].contiguous(), positions.clone(), drawn[:, 1:].contiguous()


def loss_of(model, tokens, positions, targets):
    """Mean cross-entropy of the tokens that this rank has."""
    logits = model(input_ids=tokens, position_ids=positions).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def main():
    accelerator = Accelerator({accumulate})
    config = AutoConfig.for_model(**MODEL)
{build}{recompute}    # FSDP2 takes a model and its optimizer together.
    model, optimizer = accelerator.prepare(model, {optimizer})
    model.train()
    stream = batches(config.vocab_size, accelerator.device, accelerator.process_index // REPLICA_RANKS)
    for micro_batch in range(STEPS * ACCUMULATION):
        tokens, positions, targets = next(stream)
        with accelerator.accumulate(model):
{body}            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        if (micro_batch + 1) % ACCUMULATION == 0:
            accelerator.print(f"step {{micro_batch // ACCUMULATION}} loss {{loss.item():.4f}}")


if __name__ == "__main__":
    main()
"#,
        needs = hf::needs(attention),
        header = request.header("#", written_for),
        literal = python_literal(&config),
        sequence = request.job.sequence_length,
        micro_batch = l.micro_batch_size,
        accumulation = l.gradient_accumulation_steps,
        steps = request.steps(),
        // Replicas are the outermost axes of the mesh (accelerate/parallelism_config.py).
        replica_ranks = l.tensor_parallel * l.context_parallel,
    )
}
