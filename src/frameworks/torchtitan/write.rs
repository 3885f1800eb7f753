//! torchtitan's files: a recipe module and its launcher.

use std::fmt::Write;

use super::super::export::{ExportRequest, ExportedFile, WrittenFor};
use super::super::{Broken, broken};
use crate::plan::{CudaGraphs, Dispatcher, Place, Recompute, Schedule};
use crate::spec::model::{
    Activation, Attention, Block, Dense, FeedForward, LatentAttention, Mixer, Model, Moe, Norm, Position,
    PositionScaling, QkNorm, RouterScore,
};

const WRITTEN_FOR: &str = "torchtitan of August 2026";

/// Name of the recipe module; its one function is `train_config`.
const MODULE: &str = "autoplan_recipe";

/// Writes the recipe and its launcher.
pub fn write(request: &ExportRequest) -> Result<Vec<ExportedFile>, Broken> {
    let family = Family::of(request)?;
    let scaled = scaled_positions(request.model, &family);
    let written_for = WrittenFor::new(WRITTEN_FOR, request.model, scaled.is_some());
    let recipe = recipe(request, &family, scaled.unwrap_or_default(), &written_for);
    let (nodes, per_node) = request.nodes();
    let rendezvous = if nodes == 1 {
        "    --standalone".to_owned()
    } else {
        "    --node-rank \"${NODE_RANK:-0}\"\n    --master-addr \"${MASTER_ADDR:-localhost}\"\n    --master-port \"${MASTER_PORT:-29500}\"".to_owned()
    };
    let launch = format!(
        r#"#!/usr/bin/env bash
{header}#
# Run it on every node with torchtitan installed or TORCHTITAN set to its checkout; with several
# nodes, set NODE_RANK and MASTER_ADDR.
set -euo pipefail

HERE=$(cd "$(dirname "${{BASH_SOURCE[0]}}")" && pwd)
export PYTHONPATH="$HERE:${{TORCHTITAN:-$PWD}}${{PYTHONPATH:+:$PYTHONPATH}}"
export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True

LAUNCHER=(
    --nnodes {nodes}
    --nproc-per-node {per_node}
{rendezvous}
)

exec torchrun "${{LAUNCHER[@]}}" -m torchtitan.train --module {MODULE} --config train_config "$@"
"#,
        header = request.header("#", &written_for),
    );
    Ok(vec![
        ExportedFile { name: format!("{MODULE}.py"), text: recipe, executable: false },
        ExportedFile { name: "launch.sh".into(), text: launch, executable: true },
    ])
}

/// A model in the terms of one of torchtitan's families.
enum Family<'a> {
    Llama(&'a Attention, &'a Dense),
    Qwen(&'a Attention, &'a Dense),
    QwenMoe(&'a Attention, &'a Moe),
    DeepSeek { attention: &'a LatentAttention, dense: Option<&'a Dense>, moe: &'a Moe, first_dense: u32 },
    GptOss(&'a Moe),
}

impl<'a> Family<'a> {
    fn of(request: &ExportRequest<'a>) -> Result<Self, Broken> {
        let model = request.model;
        let unknown = || broken("torchtitan ships no model family with these layers");
        let rotary = match model.position {
            Position::Rotary => true,
            Position::RotaryWith { share, .. } => share == 1.0,
            _ => false,
        };
        let common = rotary
            && model.norm == Norm::RmsNorm
            && model.final_norm
            && !model.embedding_norm
            && !model.head_bias
            && !model.dropout
            && model.embedding_width.is_none_or(|w| w == model.hidden)
            && model.blocks.values().all(|b| b.norms == 2 && !b.parallel);
        if !common {
            return Err(unknown());
        }
        let order: Vec<&'a Block> = model
            .layers
            .iter()
            .flat_map(|s| (0..s.repeat).flat_map(|_| s.of.iter()))
            .map(|name| &model.blocks[name])
            .collect();
        let first = order.first().ok_or_else(unknown)?;
        let alike = order.iter().all(|block| block == first);
        let family = match (&first.mixer, &first.feed_forward) {
            (Mixer::Attention(a), FeedForward::Dense(d)) if alike && dense_fits(a, d) => match a.qk_norm {
                QkNorm::None if a.heads * a.head_dim == model.hidden => Self::Llama(a, d),
                QkNorm::PerHeadDim => Self::Qwen(a, d),
                _ => return Err(unknown()),
            },
            (Mixer::Attention(a), FeedForward::Moe(e)) if alike && qwen_moe_fits(a, e) => Self::QwenMoe(a, e),
            (Mixer::Attention(_), FeedForward::Moe(e)) if gpt_oss_fits(&order) => Self::GptOss(e),
            (Mixer::Latent(a), _) => deepseek(a, &order).ok_or_else(unknown)?,
            _ => return Err(unknown()),
        };
        if model.mtp.is_some() && !matches!(family, Self::DeepSeek { .. }) {
            return Err(broken("torchtitan has multi-token prediction for the DeepSeek family only"));
        }
        Ok(family)
    }
}

fn plain(a: &Attention) -> bool {
    !a.qkv_bias && !a.output_bias && !a.sinks && a.window.is_none() && a.chunk.is_none()
}

fn dense_fits(a: &Attention, d: &Dense) -> bool {
    plain(a) && !d.bias && d.activation == Activation::SwiGlu
}

fn experts_fit(e: &Moe) -> bool {
    e.activation == Activation::SwiGlu
        && !e.expert_bias
        && e.latent_width.is_none()
        && !e.shared_gate
        && !e.router.bias
}

fn qwen_moe_fits(a: &Attention, e: &Moe) -> bool {
    plain(a)
        && a.qk_norm == QkNorm::PerHeadDim
        && experts_fit(e)
        && e.shared_width == 0
        && e.router.score == RouterScore::Softmax
        && !e.router.balancing_bias
        && e.router.groups.is_none()
        && e.router.scaling_factor == 1.0
}

/// The family fixes 64 heads of 64, 8 key/value heads, and windows of 128 on every other layer.
fn gpt_oss_fits(order: &[&Block]) -> bool {
    let first = &order[0].feed_forward;
    order.iter().enumerate().all(|(at, block)| match &block.mixer {
        Mixer::Attention(a) => {
            let window = if at % 2 == 0 { Some(128) } else { None };
            a.heads == 64
                && a.kv_heads == 8
                && a.head_dim == 64
                && a.sinks
                && a.qkv_bias
                && a.output_bias
                && a.qk_norm == QkNorm::None
                && a.chunk.is_none()
                && a.window == window
                && block.feed_forward == *first
                && matches!(first, FeedForward::Moe(e) if e.expert_bias && e.router.bias && e.shared_width == 0
                    && e.router.score == RouterScore::Softmax && e.router.scaling_factor == 1.0)
        }
        _ => false,
    })
}

fn deepseek<'a>(a: &'a LatentAttention, order: &[&'a Block]) -> Option<Family<'a>> {
    let (mut dense, mut moe, mut first_dense) = (None, None, 0);
    for block in order {
        if !matches!(&block.mixer, Mixer::Latent(own) if own == a) || a.bias {
            return None;
        }
        match &block.feed_forward {
            FeedForward::Dense(d) if moe.is_none() && dense.is_none_or(|known| known == d) => {
                if d.bias || d.activation != Activation::SwiGlu {
                    return None;
                }
                dense = Some(d);
                first_dense += 1;
            }
            FeedForward::Moe(e) if moe.is_none_or(|known| known == e) => moe = Some(e),
            _ => return None,
        }
    }
    let moe: &Moe = moe?;
    let whole = moe.shared_width > 0 && moe.shared_width % moe.width == 0;
    let fits = experts_fit(moe) && whole && moe.router.score != RouterScore::SoftmaxBeforeTopK;
    fits.then_some(Family::DeepSeek { attention: a, dense, moe, first_dense })
}

/// Further arguments of the rotary tables; none where the family does not scale positions so
/// (torchtitan/models/common/rope.py).
fn scaled_positions(model: &Model, family: &Family) -> Option<String> {
    match model.position.scaling() {
        PositionScaling::None => Some(String::new()),
        // Tables of sines and cosines have no such scaling.
        PositionScaling::Llama3 { factor, low_frequency_factor, high_frequency_factor, original_length }
            if matches!(family, Family::Llama(..) | Family::DeepSeek { .. }) =>
        {
            Some(format!(
                ", scaling=\"llama\", scaling_factor={factor:?}, low_freq_factor={low_frequency_factor:?}, high_freq_factor={high_frequency_factor:?}, original_max_position_embeddings={original_length}"
            ))
        }
        PositionScaling::Yarn(yarn) => {
            // The tables keep the size of queries and keys; gpt-oss scales its scores instead.
            let size = match family {
                Family::GptOss(_) => yarn.default_attention_factor(),
                _ => 1.0,
            };
            (yarn.attention_factor() == size).then(|| {
                format!(
                    ", scaling=\"yarn\", rope_factor={:?}, beta_fast={:?}, beta_slow={:?}, original_seq_len={}, truncate={}",
                    yarn.factor,
                    yarn.beta_fast,
                    yarn.beta_slow,
                    yarn.original_length,
                    python_bool(yarn.truncate),
                )
            })
        }
        _ => None,
    }
}

/// Arguments of a Python call, one per line.
fn call(arguments: &[(&str, String)], indent: usize) -> String {
    let pad = " ".repeat(indent);
    arguments.iter().map(|(name, value)| format!("{pad}{name}={value},\n")).collect()
}

fn recipe(request: &ExportRequest, family: &Family, scaled: String, written_for: &WrittenFor) -> String {
    let (job, l) = (request.job, request.plan.layout());
    let tokens = u64::from(job.sequence_length);
    let parts = FamilyText::of(request, family, &scaled);
    let counts: Vec<String> = request.plan.chunks().iter().map(|c| c.layers.to_string()).collect();
    let pipeline = if l.pipeline_parallel > 1 {
        let schedule = match l.schedule {
            Schedule::GPipe => "GPipe",
            Schedule::Interleaved => "Interleaved1F1B",
            Schedule::ZeroBubbleV => "ZBVZeroBubble",
            _ => "1F1B",
        };
        format!(
            r#"    p.pipeline_parallel_schedule = "{schedule}"
    p.num_pp_microbatches = {micro_batches}
    p.module_fqns_per_model_part = _parts([{counts}])
"#,
            micro_batches = l.gradient_accumulation_steps,
            counts = counts.join(", "),
        )
    } else {
        String::new()
    };
    let helper = if l.pipeline_parallel > 1 { PARTS } else { "" };
    let shard = if l.zero_stage == 0 { 1 } else { l.shard_group / l.context_parallel };
    let recompute = request.plan.chunks().iter().any(|c| c.layers > 0 && c.recompute != Recompute::None);
    let settings = call(
        &[
            ("enable", python_bool(super::compiled(l))),
            ("enable_async_tensor_parallel", python_bool(l.tensor_overlap)),
        ],
        8,
    );
    format!(
        r#"{header}#
# A recipe module for torchtitan: launch.sh beside this file runs it. Tokenizer, data set, learning
# rate and checkpoints are those of the shipped recipe it starts from.
import dataclasses

from torchtitan.config import CompileConfig
from torchtitan.distributed.activation_checkpoint import FullAC
{imports}

{helper}
def _model_spec():
{spec}

def train_config():
    config = _base()
    config.model_spec = _model_spec()
{loss}
    config.training.max_context_length = {tokens}
    config.training.num_tokens_per_microbatch_per_dp_rank = {per_micro_batch}
    config.training.num_tokens_per_train_step = {per_step}
    config.training.steps = {steps}
    config.training.enable_cpu_offload = {offload}
    config.training.disable_cuda_graphs = {no_graphs}
    config.activation_checkpoint = {checkpoint}
    config.compile = CompileConfig(
{settings}    )
    config.validator.enable = False
    p = config.parallelism
    p.data_parallel_replicate_degree = {replicate}
    p.data_parallel_shard_degree = {shard}
    p.fsdp_reshard_after_forward = "{reshard}"
    p.context_parallel_degree = {cp}
    p.tensor_parallel_degree = {tp}
    p.enable_sequence_parallel = {sp}
    p.pipeline_parallel_degree = {pp}
    p.expert_parallel_degree = {ep}
{pipeline}    return config
"#,
        header = request.header("#", written_for),
        imports = parts.imports,
        spec = parts.spec,
        loss = parts.loss,
        per_micro_batch = u64::from(l.micro_batch_size) * tokens,
        per_step = u64::from(job.global_batch_size) * tokens,
        steps = request.steps(),
        offload = python_bool(l.offload.parameters != Place::Gpu),
        no_graphs = python_bool(l.cuda_graphs == CudaGraphs::None),
        checkpoint = if recompute { "FullAC.Config()" } else { "None" },
        replicate = l.data_parallel / shard.max(1),
        reshard = if l.zero_stage == 3 { "always" } else { "never" },
        cp = l.context_parallel,
        tp = l.tensor_parallel,
        sp = python_bool(l.sequence_parallel),
        pp = l.pipeline_parallel,
        ep = l.expert_parallel,
    )
}

const PARTS: &str = r#"
def _parts(counts):
    """Names of the modules of every chunk, in model order, from its number of decoder layers."""
    layers = iter(range(sum(counts)))
    parts = [[f"layers.{next(layers)}" for _ in range(count)] for count in counts]
    parts[0].insert(0, "tok_embeddings")
    parts[-1] += ["norm", "lm_head"]
    return parts

"#;

fn python_bool(on: bool) -> String {
    (if on { "True" } else { "False" }).to_owned()
}

/// The parts of a recipe that differ by model family.
struct FamilyText {
    imports: String,
    spec: String,
    loss: String,
}

impl FamilyText {
    fn of(request: &ExportRequest, family: &Family, scaled: &str) -> Self {
        let model = request.model;
        let layers = model.layer_count();
        let longest = model.max_sequence.max(u64::from(request.job.sequence_length));
        let base = match model.position {
            Position::RotaryWith { base, .. } => base,
            _ => 10_000.0,
        };
        let backend = match request.plan.layout().dispatcher {
            Some(Dispatcher::DeepEp) => "deepep",
            Some(Dispatcher::HybridEp) => "hybridep",
            _ => "standard",
        };
        let mtp = model.mtp.as_ref().map_or(0, |m| m.modules);
        let (dim, vocabulary) = (model.hidden, model.vocabulary);
        let (package, config, flavor, shipped) = match family {
            Family::Llama(..) => ("llama3", "Llama3Model", "8B", "llama3_8b"),
            Family::Qwen(..) => ("qwen3", "Qwen3Model", "32B", "qwen3_32b"),
            Family::QwenMoe(..) => ("qwen3", "Qwen3Model", "30B-A3B", "qwen3_30b_a3b"),
            Family::DeepSeek { .. } => ("deepseek_v3", "DeepSeekV3Model", "671B", "deepseek_v3_671b"),
            Family::GptOss(_) => ("gpt_oss", "GptOssModel", "120b", "gpt_oss_120b"),
        };
        let rope = |kind: &str, width: u64| {
            format!("{kind}.Config(dim={width}, max_context_length={longest}, theta={base:?}{scaled})")
        };
        let mut arguments: Vec<(&str, String)> =
            vec![("n_layers", layers.to_string()), ("dim", dim.to_string())];
        let mut push = |name: &'static str, value: String| arguments.push((name, value));
        let gqa =
            |a: &Attention| vec![("n_heads", a.heads.to_string()), ("n_kv_heads", a.kv_heads.to_string())];
        let (builder, rope_class) = match family {
            Family::Llama(a, d) => {
                arguments.extend(gqa(a));
                arguments.push(("hidden_dim", d.width.to_string()));
                arguments.push(("attn_backend", "\"flex\"".into()));
                arguments.push(("rope", rope("ComplexRoPE", a.head_dim)));
                ("_build_llama3_layers", "ComplexRoPE")
            }
            Family::Qwen(a, d) => {
                arguments.extend(gqa(a));
                arguments.push(("head_dim", a.head_dim.to_string()));
                arguments.push(("hidden_dim", d.width.to_string()));
                arguments.push(("attn_backend", "\"flex\"".into()));
                arguments.push(("rope", rope("CosSinRoPE", a.head_dim)));
                ("_build_qwen3_layers", "CosSinRoPE")
            }
            Family::QwenMoe(a, e) => {
                arguments.extend(gqa(a));
                arguments.push(("head_dim", a.head_dim.to_string()));
                arguments.push(("moe_hidden_dim", e.width.to_string()));
                arguments.push(("num_experts", e.experts.to_string()));
                arguments.push(("top_k", e.top_k.to_string()));
                arguments.push(("attn_backend", "\"flex\"".into()));
                arguments.push(("moe_comm_backend", format!("\"{backend}\"")));
                arguments.push(("rope", rope("CosSinRoPE", a.head_dim)));
                ("_build_qwen3_moe_layers", "CosSinRoPE")
            }
            Family::DeepSeek { attention: a, dense, moe: e, first_dense } => {
                push("n_dense_layers", first_dense.to_string());
                push("n_heads", a.heads.to_string());
                push("q_lora_rank", a.q_lora_rank.unwrap_or(0).to_string());
                push("kv_lora_rank", a.kv_lora_rank.to_string());
                push("qk_nope_head_dim", a.qk_nope_dim.to_string());
                push("qk_rope_head_dim", a.qk_rope_dim.to_string());
                push("v_head_dim", a.v_dim.to_string());
                let mscale = match model.position.scaling() {
                    PositionScaling::Yarn(yarn) => yarn.mscale_all_dim,
                    _ => 1.0,
                };
                push("mscale", format!("{mscale:?}"));
                push("dense_hidden_dim", dense.map_or(e.width, |d| d.width).to_string());
                push("moe_hidden_dim", e.width.to_string());
                push("num_experts", e.experts.to_string());
                push("num_shared_experts", (e.shared_width / e.width).to_string());
                push("router_top_k", e.top_k.to_string());
                let sigmoid = e.router.score.is_sigmoid();
                push("router_score_func", if sigmoid { "\"sigmoid\"" } else { "\"softmax\"" }.into());
                if let Some(groups) = e.router.groups {
                    push("router_num_expert_groups", groups.count.to_string());
                    push("router_num_limited_groups", groups.top_k.to_string());
                }
                push("router_route_scale", format!("{:?}", e.router.scaling_factor));
                push("router_route_norm", python_bool(e.router.score.sums_to_one()));
                push("attn_backend", "\"flex\"".into());
                push("moe_comm_backend", format!("\"{backend}\""));
                push("non_blocking_capacity_factor", "None".into());
                push("rope", rope("ComplexRoPE", a.qk_rope_dim));
                ("_build_dsv3_layers", "ComplexRoPE")
            }
            Family::GptOss(e) => {
                push("hidden_dim", e.width.to_string());
                push("num_experts", e.experts.to_string());
                push("top_k", e.top_k.to_string());
                push("load_balance_coeff", "1e-3".into());
                push("attn_backend", "\"flex\"".into());
                push("moe_comm_backend", format!("\"{backend}\""));
                push("rope", rope("CosSinRoPE", 64));
                ("_build_gptoss_layers", "CosSinRoPE")
            }
        };
        let qwen = matches!(family, Family::Qwen(..) | Family::QwenMoe(..));
        let deepseek = matches!(family, Family::DeepSeek { .. });
        let (norm, head) = if qwen {
            ("_qwen3_norm(dim)".to_owned(), "_LINEAR_INIT")
        } else {
            (
                "RMSNorm.Config(normalized_shape=dim, param_init=_NORM_INIT)".to_owned(),
                "_output_linear_init(dim)",
            )
        };
        let mut names = vec![builder, config, "model_registry"];
        names.push(if model.tied_embeddings { "_EMBEDDING_SKIP_INIT" } else { "_EMBEDDING_INIT" });
        names.extend(if qwen {
            vec!["_LINEAR_INIT", "_qwen3_norm"]
        } else {
            vec!["_NORM_INIT", "_output_linear_init"]
        });
        if deepseek && mtp > 0 {
            names.push("_build_mtp_layers");
        }
        names.sort_unstable();
        let mut classes = vec!["Embedding", "Linear", rope_class];
        if !qwen || model.norm_epsilon.is_some() {
            classes.push("RMSNorm");
        }
        classes.sort_unstable();
        let mut imports = format!(
            "from torchtitan.models.common import {}\nfrom torchtitan.models.{package} import (\n",
            classes.join(", ")
        );
        for name in names {
            let _ = writeln!(imports, "    {name},");
        }
        let _ = writeln!(
            imports,
            ")\nfrom torchtitan.models.{package}.config_registry import {shipped} as _base"
        );
        let loss = if mtp > 0 {
            imports.push_str("from torchtitan.models.deepseek_v3.mtp import MTPLoss\n");
            format!("    config.loss = MTPLoss.Config(global_vocab_size={vocabulary})")
        } else {
            format!("    config.loss.loss_fn.global_vocab_size = {vocabulary}")
        };
        let mut extra = String::new();
        if model.tied_embeddings {
            extra.push_str("        enable_weight_tying=True,\n");
        }
        if deepseek && mtp > 0 {
            let _ = writeln!(
                extra,
                "        mtp_layers=_build_mtp_layers(layers[-1], dim=dim, num_mtp_layers={mtp}),"
            );
        }
        let embedding = if model.tied_embeddings { "_EMBEDDING_SKIP_INIT" } else { "_EMBEDDING_INIT" };
        let spec = format!(
            r#"    dim, vocabulary = {dim}, {vocabulary}
    layers = {builder}(
{arguments}    )
    model = {config}.Config(
        dim=dim,
        vocab_size=vocabulary,
        tok_embeddings=Embedding.Config(
            num_embeddings=vocabulary, embedding_dim=dim, param_init={embedding}
        ),
        norm={norm},
        lm_head=Linear.Config(in_features=dim, out_features=vocabulary, param_init={head}),
        layers=layers,
{extra}    )
{epsilon}    return dataclasses.replace(model_registry("{flavor}"), flavor="custom", model=model)
"#,
            arguments = call(&arguments, 8),
            epsilon = model.norm_epsilon.map_or(String::new(), |epsilon| format!(
                "    for _, norm, _, _ in model.traverse(RMSNorm.Config):\n        norm.eps = {epsilon:?}\n"
            )),
        );
        Self { imports: imports.trim_end().to_owned(), spec, loss }
    }
}
