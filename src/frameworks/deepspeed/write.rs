//! DeepSpeed's files: configuration, launcher, hostfile, and a training script for Hugging Face models; or the launch
//! of Megatron-DeepSpeed.

use std::fmt::Write;

use serde_json::{Map, Value, json};

use super::super::export::{ExportRequest, ExportedFile, Format, WrittenFor, quote};
use super::super::hf::{self, HfModel};
use super::super::megatron::shape::Shape;
use super::super::{Broken, broken};
use crate::layers::{Layers, embedding_width};
use crate::plan::{Layout, Place, Recompute};
use crate::spec::job::{Job, Optimizer, Precision, Training};
use crate::spec::model::{Activation, Attention, Dense, Model, Norm, Position, PositionScaling, QkNorm};

const WRITTEN_FOR: &str = "DeepSpeed 0.19, transformers 5.12";
const WRITTEN_FOR_MEGATRON: &str = "Megatron-DeepSpeed of July 2025, DeepSpeed 0.19";

/// Name of the configuration file beside the launcher.
const CONFIG: &str = "ds_config.json";

/// Writes the configuration and everything around it.
pub fn write(request: &ExportRequest, megatron: bool) -> Result<Vec<ExportedFile>, Broken> {
    if request.job.training != Training::Full {
        return Err(broken("the script written here trains all weights; adapters are the `peft` package's"));
    }
    let layers = Layers::new(request.model);
    let hf = HfModel::of(request.model, &layers);
    let written_for = if megatron {
        // megatron/model/rotary_pos_embedding.py scales nothing.
        let scaled = request.model.position.scaling() == PositionScaling::None;
        WrittenFor::new(WRITTEN_FOR_MEGATRON, request.model, scaled)
    } else {
        HfModel::written_for(WRITTEN_FOR, request.model, hf.as_ref())
    };
    let written_for = &written_for;
    let config = configuration(request, &layers, hf.as_ref(), megatron, written_for)?;
    let mut text = serde_json::to_string_pretty(&Value::Object(config)).unwrap_or_default();
    text.push('\n');
    let mut files = vec![ExportedFile { name: CONFIG.into(), text, executable: false }];
    let (script, arguments) = if megatron {
        ("\"${MEGATRON_DEEPSPEED:-$PWD}/pretrain_gpt.py\"", megatron_arguments(request, &layers)?)
    } else {
        let script = if hf.is_some() {
            "\"${TRAIN_SCRIPT:-$HERE/train.py}\""
        } else {
            "\"${TRAIN_SCRIPT:?names the training script}\""
        };
        (script, String::new())
    };
    if request.format == Format::Args && megatron {
        let header = request.header("#", written_for);
        let text = format!(
            "{header}#\n# Environment: CUDA_DEVICE_MAX_CONNECTIONS=1\n{arguments}--deepspeed\n--deepspeed_config {CONFIG}\n"
        );
        files.push(ExportedFile { name: "arguments.args".into(), text, executable: false });
        return Ok(files);
    }
    files.push(ExportedFile {
        name: "launch.sh".into(),
        text: launcher(request, script, &arguments, written_for, (megatron, hf.is_some())),
        executable: true,
    });
    let (nodes, per_node) = request.nodes();
    if nodes > 1 {
        let mut text = request.header("#", written_for);
        let _ = writeln!(text, "#\n# Name the nodes here, or give another file in HOSTFILE.");
        for node in 0..nodes {
            let _ = writeln!(text, "worker-{node} slots={per_node}");
        }
        files.push(ExportedFile { name: "hostfile".into(), text, executable: false });
    }
    if !megatron && let Some(hf) = &hf {
        files.push(ExportedFile {
            name: "train.py".into(),
            text: training_script(request, hf, written_for),
            executable: true,
        });
    }
    Ok(files)
}

fn insert(map: &mut Map<String, Value>, key: &str, value: Value) {
    map.insert(key.to_owned(), value);
}

/// The configuration. JSON has no comments: the header stands where DeepSpeed keeps a run's name.
fn configuration(
    request: &ExportRequest,
    layers: &Layers,
    hf: Option<&HfModel>,
    megatron: bool,
    written_for: &WrittenFor,
) -> Result<Map<String, Value>, Broken> {
    let (l, job) = (request.plan.layout(), request.job);
    let mut c = Map::new();
    let facts: Vec<String> =
        request.facts(written_for).into_iter().map(|(label, value)| format!("{label}: {value}")).collect();
    let monitor = json!({"enabled": false, "output_path": "", "job_name": facts.join("; ")});
    insert(&mut c, "tensorboard", monitor);
    let auto_tensor = l.tensor_parallel > 1 && !megatron;
    let told = auto_tensor || (megatron && l.context_parallel > 1);
    if !told {
        // With AutoTP the batch rule of the configuration counts every rank, the engine only replicas; with
        // Megatron-DeepSpeed's Ulysses only the training script knows how many of the ranks are replicas.
        insert(&mut c, "train_batch_size", json!(job.global_batch_size));
    }
    insert(&mut c, "train_micro_batch_size_per_gpu", json!(l.micro_batch_size));
    insert(&mut c, "gradient_accumulation_steps", json!(l.gradient_accumulation_steps));
    if l.context_parallel > 1 && !megatron {
        insert(&mut c, "sequence_parallel_size", json!(l.context_parallel));
        insert(&mut c, "data_parallel_size", json!(l.data_parallel));
    }
    if auto_tensor {
        let mut tensor = json!({"autotp_size": l.tensor_parallel, "tp_overlap_comm": l.tensor_overlap});
        if let Some(partition) = hf.and_then(HfModel::tensor_partition) {
            tensor["partition_config"] = partition;
        }
        insert(&mut c, "tensor_parallel", tensor);
    }
    if l.expert_parallel > 1 {
        let preset = hf.and_then(|hf| hf.expert_preset);
        let preset = preset.ok_or_else(|| broken("AutoEP has no preset for this model's experts"))?;
        let mut expert = Map::new();
        insert(&mut expert, "enabled", json!(true));
        insert(&mut expert, "autoep_size", json!(l.expert_parallel));
        insert(&mut expert, "preset_model", json!(preset));
        if l.dispatcher == Some(crate::plan::Dispatcher::DeepEp) {
            insert(&mut expert, "comm_backend", json!("deepep"));
            let tokens = u64::from(l.micro_batch_size) * u64::from(job.sequence_length);
            insert(&mut expert, "comm_max_tokens_per_rank", json!(tokens / u64::from(l.context_parallel)));
        }
        insert(&mut c, "expert_parallel", Value::Object(expert));
    }
    match job.precision {
        Precision::Fp16 => {
            insert(&mut c, "fp16", json!({"enabled": true, "loss_scale": 0, "initial_scale_power": 16}))
        }
        _ if job.optimizer == Optimizer::AdamwBf16 => {
            let bf16 = json!({
                "enabled": true, "bf16_master_weights_and_grads": true, "bf16_optimizer_states": true,
            });
            insert(&mut c, "bf16", bf16);
        }
        _ => insert(&mut c, "bf16", json!({"enabled": true})),
    }
    if !megatron {
        // Megatron-DeepSpeed brings its own optimizer.
        insert(&mut c, "optimizer", optimizer(job.optimizer));
    }
    if matches!(job.optimizer, Optimizer::Sgd | Optimizer::Muon) && l.zero_stage > 0 {
        insert(&mut c, "zero_allow_untested_optimizer", json!(true));
    }
    insert(&mut c, "gradient_clipping", json!(1.0));
    insert(&mut c, "zero_optimization", zero(request, layers));
    if recomputes(request) {
        let checkpointing = json!({
            "partition_activations": false,
            "cpu_checkpointing": l.offload.activations,
            "contiguous_memory_optimization": false,
            "synchronize_checkpoint_boundary": false,
        });
        insert(&mut c, "activation_checkpointing", checkpointing);
    }
    insert(&mut c, "steps_per_print", json!(10));
    insert(&mut c, "wall_clock_breakdown", json!(false));
    Ok(c)
}

fn recomputes(request: &ExportRequest) -> bool {
    request.plan.chunks().iter().any(|c| c.recompute != Recompute::None)
}

fn optimizer(kind: Optimizer) -> Value {
    let (name, params) = match kind {
        Optimizer::Sgd => ("SGD", json!({"lr": 3e-4, "momentum": 0.9, "weight_decay": 0.1})),
        Optimizer::Muon => ("Muon", json!({"lr": 3e-4, "momentum": 0.95, "weight_decay": 0.1})),
        Optimizer::Adamw | Optimizer::AdamwBf16 | Optimizer::Adam8bit => {
            ("AdamW", json!({"lr": 3e-4, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1}))
        }
    };
    json!({"type": name, "params": params})
}

/// The ZeRO section.
fn zero(request: &ExportRequest, layers: &Layers) -> Value {
    let l = request.plan.layout();
    let mut z = Map::new();
    insert(&mut z, "stage", json!(l.zero_stage));
    if l.zero_stage > 0 {
        buckets(request, layers, &mut z);
    }
    let place = |place: Place| match place {
        Place::Gpu => None,
        Place::Cpu => Some(json!({"device": "cpu", "pin_memory": true})),
        Place::Nvme => Some(json!({"device": "nvme", "nvme_path": "/local_nvme", "pin_memory": true})),
    };
    if let Some(place) = place(l.offload.optimizer) {
        insert(&mut z, "offload_optimizer", place);
    }
    if let Some(mut place) = place(l.offload.parameters) {
        if l.offload.parameters == Place::Nvme {
            place["buffer_size"] = json!(swap_buffer(request, layers));
        }
        insert(&mut z, "offload_param", place);
    }
    Value::Object(z)
}

/// Elements of a buffer that weights pass through on their way from the drives: each must hold the largest shard of
/// one tensor (runtime/swap_tensor/partitioned_param_swapper.py).
fn swap_buffer(request: &ExportRequest, layers: &Layers) -> u64 {
    const DEFAULT: u64 = 100_000_000;
    let (model, l) = (request.model, request.plan.layout());
    // No tensor of a layer is larger than the layer; experts of a layer are few stacked tensors.
    let layer = layers.kinds.iter().map(|k| k.parameters.total()).max().unwrap_or_default();
    let largest = layer.max(model.vocabulary * embedding_width(model));
    largest.div_ceil(u64::from(l.data_parallel * l.context_parallel)).max(DEFAULT)
}

/// Buckets as large as one layer on one rank: large enough to fill the network, small enough that one
/// can be in use while the next is on its way.
fn buckets(request: &ExportRequest, layers: &Layers, z: &mut Map<String, Value>) {
    let l = request.plan.layout();
    let tp = u64::from(l.tensor_parallel);
    let largest = layers
        .kinds
        .iter()
        .map(|k| {
            let p = &k.parameters;
            (p.sharded + p.replicated) / tp + p.expert / u64::from(l.expert_parallel)
        })
        .max();
    let layer = largest.unwrap_or_default();
    let bucket = layer.clamp(50_000_000, 500_000_000);
    insert(z, "overlap_comm", json!(l.data_overlap));
    insert(z, "contiguous_gradients", json!(true));
    // Muon needs whole gradients of a matrix at stage 3 (runtime/zero/stage3.py); below, AutoEP needs them scattered
    // (runtime/zero/stage_1_and_2.py _configure_moe_settings).
    insert(z, "reduce_scatter", json!(request.job.optimizer != Optimizer::Muon || l.zero_stage < 3));
    insert(z, "reduce_bucket_size", json!(bucket));
    if l.zero_stage < 3 {
        insert(z, "allgather_partitions", json!(true));
        insert(z, "allgather_bucket_size", json!(bucket));
    } else {
        let ends = request.model.vocabulary * embedding_width(request.model);
        insert(z, "stage3_prefetch_bucket_size", json!(bucket));
        insert(z, "stage3_param_persistence_threshold", json!(10 * request.model.hidden));
        insert(z, "stage3_max_live_parameters", json!((3 * layer + ends).max(1_000_000_000)));
        insert(z, "stage3_max_reuse_distance", json!((2 * layer).max(1_000_000_000)));
        insert(z, "stage3_gather_16bit_weights_on_model_save", json!(true));
        let small = l.offload.optimizer == Place::Nvme;
        insert(z, "sub_group_size", json!(if small { 100_000_000 } else { 1_000_000_000 }));
        if l.shard_group != l.data_parallel * l.context_parallel {
            insert(z, "zero_hpz_partition_size", json!(l.shard_group));
        }
    }
}

fn launcher(
    request: &ExportRequest,
    script: &str,
    arguments: &str,
    written_for: &WrittenFor,
    (megatron, with_script): (bool, bool),
) -> String {
    let (nodes, per_node) = request.nodes();
    let l = request.plan.layout();
    let mut notes = String::new();
    let ranks = l.data_parallel * l.context_parallel;
    if l.zero_stage == 3 && l.shard_group != ranks {
        let _ = writeln!(
            notes,
            "# Weights are kept once per {} neighbouring ranks beside the shards of ZeRO stage 3.",
            l.shard_group
        );
    }
    if megatron {
        notes.push_str("# MEGATRON_DEEPSPEED names the checkout.\n");
    } else if with_script {
        notes.push_str("# TRAIN_SCRIPT may name a training script other than the one beside this file.\n");
    } else {
        let brought = hf::brought(request.model, &Layers::new(request.model), request.job.sequence_length);
        let _ = writeln!(
            notes,
            "# No training script is written for this model: TRAIN_SCRIPT must name yours.{brought}"
        );
    }
    let hosts = if nodes > 1 {
        format!("--hostfile \"${{HOSTFILE:-$HERE/hostfile}}\" --num_nodes {nodes} --num_gpus {per_node}")
    } else {
        format!("--num_nodes 1 --num_gpus {per_node}")
    };
    let (array, expansion) = if arguments.is_empty() {
        (String::new(), "")
    } else {
        let indented: String = arguments.lines().map(|line| format!("    {line}\n")).collect();
        (format!("\nARGUMENTS=(\n{indented})\n{MEGATRON_DATA}"), " \"${ARGUMENTS[@]}\" \"${DATA[@]}\"")
    };
    let environment = match (megatron, nodes > 1) {
        (false, _) => "",
        (true, false) => "export CUDA_DEVICE_MAX_CONNECTIONS=1\n",
        (true, true) => MEGATRON_ENVIRONMENT,
    };
    let guard = if nodes > 1 { PLAIN_FOLDER } else { "" };
    let marker = if megatron { "--deepspeed " } else { "" };
    format!(
        r#"#!/usr/bin/env bash
{header}#
{notes}set -euo pipefail

HERE=$(cd "$(dirname "${{BASH_SOURCE[0]}}")" && pwd)
{guard}{environment}{array}
exec deepspeed {hosts} --master_port "${{MASTER_PORT:-29500}}" \
    {script} {marker}--deepspeed_config "$HERE/{CONFIG}"{expansion} "$@"
"#,
        header = request.header("#", written_for),
    )
}

/// The launcher hands paths to the shells of other nodes unquoted, or where they are still expanded
/// (`launcher/multinode_runner.py`).
const PLAIN_FOLDER: &str = r#"case "$HERE" in
    *[!A-Za-z0-9_./@%+=:,-]*)
        echo "$HERE: DeepSpeed hands this path to the shells of other nodes as it is; move the files to a plain one" >&2
        exit 2
        ;;
esac
"#;

/// Other nodes get some of the launcher's variables and what a file says (`launcher/runner.py`), which holds nothing else.
const MEGATRON_ENVIRONMENT: &str = r#"export CUDA_DEVICE_MAX_CONNECTIONS=1
# What this file says is set on the other nodes too.
export DS_ENV_FILE="$HERE/.deepspeed_env"
echo "CUDA_DEVICE_MAX_CONNECTIONS=1" > "$DS_ENV_FILE"
"#;

/// Megatron-DeepSpeed trains on real data only.
const MEGATRON_DATA: &str = r#"
# DATA_PATH names a preprocessed data set (the prefix of its .bin and .idx files), TOKENIZER_MODEL the
# tokenizer that made it.
DATA=(--data-path "${DATA_PATH:-dataset}" --split 949,50,1
    --tokenizer-type "${TOKENIZER_TYPE:-GPTSentencePieceTokenizer}"
    --tokenizer-model "${TOKENIZER_MODEL:-tokenizer.model}")
"#;

/// A model that Megatron-DeepSpeed has, in Megatron's terms.
struct MegatronModel {
    shape: Shape,
    attention: Attention,
    dense: Dense,
    /// Megatron-DeepSpeed's name of the optimizer.
    optimizer: &'static str,
}

impl MegatronModel {
    fn of(model: &Model, layers: &Layers, job: &Job) -> Result<Self, Broken> {
        let shape = Shape::of(model, layers, u64::from(job.sequence_length))?;
        let (Some(attention), Some(dense)) = (shape.attention.clone(), shape.dense.clone()) else {
            return Err(broken("only dense models with plain attention are written for Megatron-DeepSpeed"));
        };
        let unknown = shape.moe.is_some()
            || shape.hybrid.is_some()
            || shape.window.is_some()
            || model.mtp.is_some()
            || attention.sinks
            || attention.qk_norm != QkNorm::None
            || shape.qkv_bias != shape.linear_bias
            || matches!(model.position, Position::None);
        if unknown {
            return Err(broken("Megatron-DeepSpeed has no flag for some part of this model's layers"));
        }
        let optimizer = match job.optimizer {
            Optimizer::Adamw => "adam",
            Optimizer::Sgd => "sgd",
            _ => return Err(broken("Megatron-DeepSpeed brings Adam and SGD only")),
        };
        Ok(Self { shape, attention, dense, optimizer })
    }
}

/// Whether Megatron-DeepSpeed, which runs DeepSpeed's stages, has the model and the optimizer.
pub(crate) fn megatron_has(model: &Model, layers: &Layers, job: &Job) -> bool {
    MegatronModel::of(model, layers, job).is_ok()
}

/// Flags of Megatron-DeepSpeed's `pretrain_gpt.py`, one per line.
fn megatron_arguments(request: &ExportRequest, layers: &Layers) -> Result<String, Broken> {
    let (model, l, job) = (request.model, request.plan.layout(), request.job);
    let MegatronModel { shape, attention: a, dense: d, optimizer } = MegatronModel::of(model, layers, job)?;
    let mut lines = String::new();
    let mut add = |flag: &str, value: &dyn std::fmt::Display| {
        let _ = writeln!(lines, "{flag} {}", quote(&value.to_string()));
    };
    let longest = match model.position {
        Position::Learned(rows) => rows,
        _ => model.max_sequence.max(u64::from(job.sequence_length)),
    };
    let dropout = if model.dropout { "0.1" } else { "0.0" };
    for (flag, value) in [
        ("--num-layers", u64::from(layers.count())),
        ("--hidden-size", model.hidden),
        ("--ffn-hidden-size", d.width),
        ("--num-attention-heads", a.heads),
        ("--num-key-value-heads", a.kv_heads),
        ("--kv-channels", a.head_dim),
        ("--seq-length", u64::from(job.sequence_length)),
        ("--max-position-embeddings", longest),
        ("--vocab-size", model.vocabulary),
        ("--make-vocab-size-divisible-by", model.vocabulary_divisor),
        ("--tensor-model-parallel-size", u64::from(l.tensor_parallel)),
        ("--pipeline-model-parallel-size", u64::from(l.pipeline_parallel)),
        ("--ds-sequence-parallel-size", u64::from(l.context_parallel)),
        ("--micro-batch-size", u64::from(l.micro_batch_size)),
        ("--global-batch-size", u64::from(job.global_batch_size)),
        ("--zero-stage", u64::from(l.zero_stage)),
        ("--train-iters", request.steps()),
    ] {
        add(flag, &value);
    }
    add("--normalization", &if model.norm == Norm::RmsNorm { "rmsnorm" } else { "layernorm" });
    if let Some(epsilon) = model.norm_epsilon {
        add("--layernorm-epsilon", &format_args!("{epsilon:?}"));
    }
    add("--attention-dropout", &dropout);
    add("--hidden-dropout", &dropout);
    add("--optimizer", &optimizer);
    for (flag, value) in [
        ("--lr", "3e-4"),
        ("--min-lr", "3e-5"),
        ("--lr-decay-style", "cosine"),
        ("--weight-decay", "0.1"),
        ("--clip-grad", "1.0"),
        ("--adam-beta1", "0.9"),
        ("--adam-beta2", "0.95"),
        ("--log-interval", "1"),
        ("--eval-interval", "1000"),
        ("--eval-iters", "10"),
    ] {
        add(flag, &value);
    }
    match model.position {
        Position::Rotary => add("--use-rotary-position-embeddings", &""),
        Position::RotaryWith { base, share, .. } => {
            add("--use-rotary-position-embeddings", &"");
            add("--rotary-position-embeddings-theta", &(base as u64));
            add("--rotary-percent", &share);
        }
        _ => {}
    }
    match request.plan.common_recompute() {
        Some(Recompute::FullUniform(n)) => {
            add("--recompute-granularity", &"full");
            add("--recompute-method", &"uniform");
            add("--recompute-num-layers", &n);
            add("--deepspeed-activation-checkpointing", &"");
        }
        Some(Recompute::None) => {}
        _ => return Err(broken("Megatron-DeepSpeed recomputes whole layers or nothing")),
    }
    for (on, flag) in [
        (l.sequence_parallel, "--sequence-parallel"),
        (l.pipeline_parallel == 1, "--no-pipeline-parallel"),
        (shape.activation == Activation::SwiGlu, "--swiglu"),
        (shape.activation == Activation::SquaredRelu, "--squared-relu"),
        (!shape.linear_bias, "--disable-bias-linear"),
        (!model.tied_embeddings, "--untie-embeddings-and-output-weights"),
        (job.precision == Precision::Fp16, "--fp16"),
        (job.precision == Precision::Bf16, "--bf16"),
        (l.offload.optimizer != Place::Gpu, "--cpu-optimizer"),
        (true, "--use-flash-attn-v2"),
        (true, "--no-query-key-layer-scaling"),
    ] {
        if on {
            add(flag, &"");
        }
    }
    // Switches were written with an empty value.
    Ok(lines.replace(" ''\n", "\n"))
}

/// A small training script: the model from its configuration, synthetic tokens, DeepSpeed's loop.
fn training_script(request: &ExportRequest, hf: &HfModel, written_for: &WrittenFor) -> String {
    let l: &Layout = request.plan.layout();
    let config = serde_json::to_string_pretty(&Value::Object(hf.config.clone())).unwrap_or_default();
    let literal = python_literal(&config);
    // A copy of the model for every process of a node would not fit into the node's own memory. Parts that DeepSpeed
    // cuts up itself afterwards may not fit on the GPU either.
    let cut = l.tensor_parallel > 1 || l.expert_parallel > 1;
    // Under ZeRO 3 Transformers partitions the weights while it sets them, as long as it knows of the settings.
    let place = match (l.zero_stage, cut) {
        (3, _) => "partitioned = HfDeepSpeedConfig(settings)",
        (_, true) => "with torch.device(\"cpu\"):",
        (_, false) => "with torch.device(deepspeed.get_accelerator().current_device_name()):",
    };
    let integration =
        if l.zero_stage == 3 { "\nfrom transformers.integrations import HfDeepSpeedConfig" } else { "" };
    // One replica's ranks are neighbours.
    let replica_ranks = l.tensor_parallel * l.context_parallel;
    format!(
        r#"#!/usr/bin/env python3
{header}#
# Trains the model on synthetic tokens; put a data loader in the place of batches().{needs}
import argparse
import json
import os

# Before torch is imported: buffers as large as all gradients come and go between small tensors.
os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")

import deepspeed
import torch
from transformers import AutoConfig, AutoModelForCausalLM{integration}

MODEL = json.loads({literal})
SEQUENCE_LENGTH = {sequence}
MICRO_BATCH_SIZE = {micro_batch}
STEPS = {steps}
SEQUENCE_PARALLEL = {sequence_parallel}
REPLICA_RANKS = {replica_ranks}
RECOMPUTE = {recompute}


def batches(vocabulary, device, groups):
    """Tokens, positions and targets of this rank's micro-batches: a loader must give all ranks of a replica the same
    sequences, with sequence parallelism each rank its share of them. The target of a token is the next one, also where
    sequences are cut."""
    random = torch.Generator(device).manual_seed(torch.distributed.get_rank() // REPLICA_RANKS)
    share = SEQUENCE_LENGTH // SEQUENCE_PARALLEL
    first = share * (groups.get_sequence_parallel_rank() if groups else 0)
    positions = torch.arange(first, first + share, device=device).expand(MICRO_BATCH_SIZE, -1)
    while True:
        drawn = torch.randint(
            vocabulary, (MICRO_BATCH_SIZE, SEQUENCE_LENGTH + 1), device=device, generator=random
        )
        tokens, targets = drawn[:, first : first + share], drawn[:, first + 1 : first + share + 1]
        yield tokens.contiguous(), positions, targets.contiguous()


def loss_of(model, tokens, positions, targets):
    """Mean cross-entropy of the tokens that this rank has."""
    logits = model(input_ids=tokens, position_ids=positions).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--local_rank", type=int, default=-1)
    parser = deepspeed.add_config_arguments(parser)
    arguments = parser.parse_args()
    with open(arguments.deepspeed_config, encoding="utf-8") as file:
        settings = json.load(file)
    deepspeed.get_accelerator().set_device(int(os.environ["LOCAL_RANK"]))
    deepspeed.init_distributed()

    config = AutoConfig.for_model(**MODEL)
    attention = "{attention}"
    groups = None
    if SEQUENCE_PARALLEL > 1:
        from deepspeed.runtime.sequence_parallel.ulysses_sp import UlyssesSPAttentionHF

        if not hasattr(config, "num_key_value_heads"):
            config.num_key_value_heads = config.num_attention_heads
        skeleton = type("Skeleton", (), {{"config": config}})()
        groups = UlyssesSPAttentionHF.register_with_transformers(
            model_name_or_path=skeleton,
            core_attn_implementation=attention,
            sequence_parallel_size=SEQUENCE_PARALLEL,
            micro_batch_size=MICRO_BATCH_SIZE,
            seq_length=SEQUENCE_LENGTH,
            seq_length_is_variable=False,
        )

    {place}
{indent}model = AutoModelForCausalLM.from_config(
{indent}    config, attn_implementation=attention, dtype=torch.{dtype}
{indent})
    if RECOMPUTE:
        model.gradient_checkpointing_enable()
    engine, _, _, _ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), config=settings, mpu=groups
    )
    engine.train()
    stream = batches(config.vocab_size, engine.device, groups)
    for step in range(STEPS):
        for _ in range(engine.gradient_accumulation_steps()):
            loss = loss_of(engine, *next(stream))
            engine.backward(loss)
            engine.step()
        if engine.global_rank == 0:
            print(f"step {{step}} loss {{loss.item():.4f}}", flush=True)


if __name__ == "__main__":
    main()
"#,
        header = request.header("#", written_for),
        sequence = request.job.sequence_length,
        micro_batch = l.micro_batch_size,
        steps = request.steps(),
        sequence_parallel = l.context_parallel,
        attention = hf.attention(request.job.sequence_length),
        needs = hf::needs(hf.attention(request.job.sequence_length)),
        recompute = if recomputes(request) { "True" } else { "False" },
        indent = if l.zero_stage == 3 { "    " } else { "        " },
        dtype = if request.job.precision == Precision::Fp16 { "float16" } else { "bfloat16" },
    )
}

/// A Python string literal: JSON's escapes are Python's.
pub(crate) fn python_literal(text: &str) -> String {
    if text.contains('\n') && !text.contains("'''") && !text.contains('\\') {
        return format!("'''\n{text}\n'''");
    }
    Value::from(text).to_string()
}
