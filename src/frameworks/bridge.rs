//! Megatron-Bridge (NeMo): Python recipes on Megatron-Core. Legality is Megatron-Core's.

use std::fmt::Write;

use super::export::{ExportRequest, ExportedFile, WrittenFor};
use super::megatron;
use super::megatron::arguments::{Arguments, arguments};
use super::megatron::positions::{weighed, yarn_fits};
use super::megatron::shape::{Shape, pattern};
use super::{Broken, Judge, Reach, Rule, broken, ensure, joined};
use crate::cost::schedule::interleave_group;
use crate::layers::Layers;
use crate::plan::{CudaGraphs, Dispatcher, Place, Recompute};
use crate::spec::cluster::Architecture;
use crate::spec::job::{Optimizer, Precision, Training};
use crate::spec::model::{Activation, Model, Norm, Position, PositionScaling, QkNorm, RouterScore};
use crate::stages::layout::Split;

/// Bridge's own rule beside those of Megatron-Core.
const DEEPEP: Rule = Rule {
    name: "deepep-hardware",
    source: "Megatron-Bridge src/megatron/bridge/training/flex_dispatcher_backend.py",
    judge: Judge::SetUp,
    reach: Reach::Cell,
    check: |_, c, l| {
        ensure(
            l.dispatcher != Some(Dispatcher::DeepEp) || c.hardware.architecture != Architecture::Blackwell,
            "DeepEP is for Ampere and Hopper, and for B200 and B300 only where the device's name says so; on Blackwell HybridEP does it",
            [0; 4],
        )
    },
};

/// Rules on layouts: Megatron-Core's, and one of Bridge's own.
pub static RULES: &[Rule] = &joined::<{ megatron::CORE_RULES.len() + 1 }>(megatron::CORE_RULES, DEEPEP);

/// What Megatron-LM's argument checks refuse and Bridge's do not: it switches tensor-parallel overlap off, and
/// finds out about Muon under Megatron-FSDP when the optimizer is made.
pub(super) fn judge(rule: &str, judge: Judge) -> Judge {
    match rule {
        "tensor-overlap-needs-sequence" => Judge::Nobody,
        "optimizer" => Judge::Run,
        _ => judge,
    }
}

const WRITTEN_FOR: &str = "Megatron-Bridge of August 2026 (0.7), Megatron-Core 0.20";

/// Name of the recipe; its one function is `train_config`.
const RECIPE: &str = "autoplan_recipe.py";

/// Writes the recipe and its launcher.
pub(super) fn write(request: &ExportRequest) -> Result<Vec<ExportedFile>, Broken> {
    if request.job.training != Training::Full {
        return Err(broken(
            "the recipe written here trains all weights; for adapters set `peft` in a fine-tuning recipe",
        ));
    }
    // The command line decides what can be said about the model, the environment and the split.
    let command = arguments(request)?;
    let layers = Layers::new(request.model);
    let shape = Shape::of(request.model, &layers, u64::from(request.job.sequence_length))?;
    if shape.hybrid.is_some() && shape.latent.is_some() {
        return Err(broken("a hybrid model with latent attention"));
    }
    Ok(vec![
        ExportedFile { name: RECIPE.into(), text: recipe(request, &shape, &command), executable: true },
        ExportedFile {
            name: "launch.sh".into(),
            text: launcher(request, &command, &shape),
            executable: true,
        },
    ])
}

fn launcher(request: &ExportRequest, command: &Arguments, shape: &Shape) -> String {
    let (nodes, per_node) = request.nodes();
    let variables: String =
        command.environment.iter().map(|(name, value)| format!("export {name}={value}\n")).collect();
    format!(
        r#"#!/usr/bin/env bash
{header}#
# Run it on every node with Megatron-Bridge installed; with several nodes, set NODE_RANK and
# MASTER_ADDR.
set -euo pipefail

HERE=$(cd "$(dirname "${{BASH_SOURCE[0]}}")" && pwd)
{variables}
exec torchrun --nnodes {nodes} --nproc-per-node {per_node} --node-rank "${{NODE_RANK:-0}}" \
    --master-addr "${{MASTER_ADDR:-localhost}}" --master-port "${{MASTER_PORT:-29500}}" \
    "$HERE/{RECIPE}" "$@"
"#,
        header = request.header("#", &written_for(request, shape)),
    )
}

fn python(on: bool) -> &'static str {
    if on { "True" } else { "False" }
}

/// Collects `target.name = value` lines.
struct Settings {
    text: String,
}

impl Settings {
    fn new() -> Self {
        Self { text: String::new() }
    }
    fn set(&mut self, name: &str, value: impl std::fmt::Display) {
        let _ = writeln!(self.text, "    {name} = {value}");
    }
    fn on(&mut self, name: &str, value: bool) {
        self.set(name, python(value));
    }
    fn text(&mut self, name: &str, value: &str) {
        self.set(name, format_args!("\"{value}\""));
    }
}

fn recipe(request: &ExportRequest, shape: &Shape, command: &Arguments) -> String {
    let mut imports = vec!["import torch".to_owned()];
    imports.push("from megatron.bridge.recipes.common import _pretrain_common".into());
    imports.push("from megatron.bridge.training.comm_overlap import CommOverlapConfig".into());
    let provider = match (&shape.hybrid, &shape.latent) {
        (Some(_), _) => ("hybrid.hybrid_provider", "HybridModelProvider"),
        (None, Some(_)) => ("mla_provider", "MLAModelProvider"),
        (None, None) => ("gpt_provider", "GPTModelProvider"),
    };
    imports.push(format!("from megatron.bridge.models.{} import {}", provider.0, provider.1));
    if shape.hybrid.is_none() && shape.moe.is_some() {
        imports.insert(0, "from functools import partial\n".into());
        imports
            .push("from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec".into());
    }
    let mut environment = String::new();
    for (name, value) in &command.environment {
        let _ = writeln!(environment, "os.environ.setdefault(\"{name}\", \"{value}\")");
    }
    let model = model(request, shape, command, &mut imports);
    let settings = settings(request, &mut imports);
    imports.sort_by_key(|line| (line.starts_with("from megatron"), line.clone()));
    format!(
        r#"#!/usr/bin/env python3
{header}#
# A recipe for Megatron-Bridge on synthetic data; launch.sh beside this file runs it. Set cfg.dataset
# and cfg.tokenizer for real data.
import os

{environment}
{imports}


def train_config():
    cfg = _pretrain_common()
    cfg.model = m = {provider}(
{model}    )
{settings}    return cfg


if __name__ == "__main__":
    from megatron.bridge.training.gpt_step import forward_step
    from megatron.bridge.training.pretrain import pretrain

    pretrain(train_config(), forward_step)
"#,
        header = request.header("#", &written_for(request, shape)),
        imports = imports.join("\n"),
        provider = provider.1,
    )
}

/// Whom the files are written for.
fn written_for(request: &ExportRequest, shape: &Shape) -> WrittenFor {
    let scaled = scaled_positions(request.model, shape).is_some();
    WrittenFor::new(WRITTEN_FOR, request.model, scaled).leaving(shape.added())
}

/// Keyword arguments of the way in which positions are scaled; none where the provider has no such way
/// (models/gpt_provider.py, models/mla_provider.py).
fn scaled_positions(model: &Model, shape: &Shape) -> Option<Vec<(&'static str, String)>> {
    let of = |name, number: f64| (name, format!("{number:?}"));
    let text = |name, word: &str| (name, format!("\"{word}\""));
    let latent = shape.latent.is_some();
    let plain = !latent && shape.hybrid.is_none();
    match model.position.scaling() {
        PositionScaling::None if latent => Some(vec![text("rope_type", "rope")]),
        PositionScaling::None => Some(Vec::new()),
        PositionScaling::Linear { factor } if !latent => {
            Some(vec![of("seq_len_interpolation_factor", factor)])
        }
        // The bounds are Megatron-Core's (rotary_pos_embedding.py _apply_scaling).
        PositionScaling::Llama3 { factor, low_frequency_factor, high_frequency_factor, original_length }
            if plain
                && (low_frequency_factor, high_frequency_factor, original_length) == (1.0, 4.0, 8192) =>
        {
            Some(vec![("rope_scaling", "True".to_owned()), of("rope_scaling_factor", factor)])
        }
        // Latent attention rounds always (core/transformer/multi_latent_attention.py).
        PositionScaling::Yarn(yarn) if latent && yarn.truncate && weighed(&yarn) => Some(vec![
            text("rope_type", "yarn"),
            of("rotary_scaling_factor", yarn.factor),
            ("original_max_position_embeddings", yarn.original_length.to_string()),
            of("beta_fast", yarn.beta_fast),
            of("beta_slow", yarn.beta_slow),
            of("mscale", yarn.mscale),
            of("mscale_all_dim", yarn.mscale_all_dim),
        ]),
        PositionScaling::Yarn(yarn) if plain && weighed(&yarn) && yarn_fits(model) => Some(vec![
            text("position_embedding_type", "yarn"),
            of("yarn_rotary_scaling_factor", yarn.factor),
            ("yarn_original_max_position_embeddings", yarn.original_length.to_string()),
            of("yarn_beta_fast", yarn.beta_fast),
            of("yarn_beta_slow", yarn.beta_slow),
            of("yarn_mscale", yarn.mscale),
            of("yarn_mscale_all_dim", yarn.mscale_all_dim),
            ("yarn_correction_range_round_to_int", python(yarn.truncate).to_owned()),
        ]),
        _ => None,
    }
}

/// Keyword arguments of the model provider.
fn model(request: &ExportRequest, shape: &Shape, command: &Arguments, imports: &mut Vec<String>) -> String {
    let (model, l) = (request.model, request.plan.layout());
    let mut text = String::new();
    let mut add = |name: &str, value: &dyn std::fmt::Display| {
        let _ = writeln!(text, "        {name}={value},");
    };
    let yes = |on: bool| python(on);
    if shape.hybrid.is_some() {
        let words: Vec<&str> = command.words().collect();
        let at = words.iter().position(|w| *w == "--hybrid-layer-pattern");
        if let Some(pattern) = at.and_then(|at| words.get(at + 1)) {
            add("hybrid_layer_pattern", &format_args!("\"{pattern}\""));
        }
    } else {
        add("num_layers", &model.layer_count());
    }
    add("hidden_size", &model.hidden);
    let width = shape.dense.as_ref().map(|d| d.width).or(shape.moe.as_ref().map(|e| e.width));
    add("ffn_hidden_size", &width.unwrap_or(4 * model.hidden));
    add("num_attention_heads", &shape.heads());
    if let Some(a) = &shape.attention {
        add("num_query_groups", &a.kv_heads);
        add("kv_channels", &a.head_dim);
        add("qk_layernorm", &yes(a.qk_norm == QkNorm::PerHeadDim));
        if a.qk_norm == QkNorm::NoParameters {
            add("qk_l2_norm", &"True");
        }
        if a.sinks {
            add("softmax_type", &"\"learnable\"");
        }
    }
    if let Some((window, layers)) = &shape.window {
        add("window_size", &format_args!("({}, 0)", window - 1));
        if !layers.iter().all(|&on| on) {
            add("window_attn_skip_freq", &pattern(layers));
        }
    }
    if let Some(a) = &shape.latent {
        match a.q_lora_rank {
            Some(rank) => add("q_lora_rank", &rank),
            None => add("q_lora_rank", &"None"),
        }
        // The provider's own default is plain attention (models/mla_provider.py, order of its bases).
        add("multi_latent_attention", &"True");
        add("kv_lora_rank", &a.kv_lora_rank);
        add("qk_head_dim", &a.qk_nope_dim);
        add("qk_pos_emb_head_dim", &a.qk_rope_dim);
        add("v_head_dim", &a.v_dim);
        add("kv_channels", &a.v_dim);
        add("qk_layernorm", &"True");
    }
    if let Some(a) = &shape.mamba {
        add("mamba_num_heads", &a.heads);
        add("mamba_head_dim", &(a.inner / a.heads));
        add("mamba_num_groups", &a.groups);
        add("mamba_state_dim", &a.state);
        if shape.attention.is_none() {
            add("kv_channels", &(a.inner / a.heads));
        }
    }
    match shape.activation {
        Activation::SwiGlu if shape.linear_bias && shape.moe.is_some() => {
            imports.push("from megatron.core.fusions.fused_bias_geglu import quick_gelu".into());
            add("gated_linear_unit", &"True");
            add("activation_func", &"quick_gelu");
            add("glu_linear_offset", &"1.0");
            add("activation_func_clamp_value", &"7.0");
            add("bias_dropout_fusion", &"False");
        }
        Activation::SwiGlu => {
            add("gated_linear_unit", &"True");
            add("activation_func", &"torch.nn.functional.silu");
        }
        Activation::SquaredRelu => {
            imports.push("from megatron.core.activations import squared_relu".into());
            add("activation_func", &"squared_relu");
        }
        _ => add("activation_func", &"torch.nn.functional.gelu"),
    }
    add("add_bias_linear", &yes(shape.linear_bias));
    add("add_qkv_bias", &yes(shape.qkv_bias));
    if let Some(epsilon) = model.norm_epsilon {
        add("layernorm_epsilon", &format_args!("{epsilon:?}"));
    }
    let scaled = scaled_positions(model, shape);
    match &scaled {
        Some(settings) => settings.iter().for_each(|(name, value)| add(name, value)),
        // The provider's own default is YaRN.
        None if shape.latent.is_some() => add("rope_type", &"\"rope\""),
        None => {}
    }
    let scaled = scaled.unwrap_or_default();
    add("normalization", &if model.norm == Norm::LayerNorm { "\"LayerNorm\"" } else { "\"RMSNorm\"" });
    match model.position {
        Position::Rotary => add("position_embedding_type", &"\"rope\""),
        Position::RotaryWith { base, share, .. } => {
            if !scaled.iter().any(|(name, _)| *name == "position_embedding_type") {
                add("position_embedding_type", &"\"rope\"");
            }
            add("rotary_base", &(base as u64));
            add("rotary_percent", &share);
        }
        Position::Learned(_) => add("position_embedding_type", &"\"learned_absolute\""),
        _ => add("position_embedding_type", &"\"none\""),
    }
    add("seq_length", &request.job.sequence_length);
    add("vocab_size", &model.vocabulary);
    add("should_pad_vocab", &"True");
    add("make_vocab_size_divisible_by", &model.vocabulary_divisor);
    add("share_embeddings_and_output_weights", &yes(model.tied_embeddings));
    let dropout = if model.dropout { 0.1 } else { 0.0 };
    add("hidden_dropout", &format_args!("{dropout:?}"));
    add("attention_dropout", &format_args!("{dropout:?}"));
    if let Some(mtp) = model.mtp.as_ref().filter(|_| shape.hybrid.is_none()) {
        add("mtp_num_layers", &mtp.modules);
    }
    if let Some(e) = &shape.moe {
        add("num_moe_experts", &e.experts);
        add("moe_router_topk", &e.top_k);
        add("moe_ffn_hidden_size", &e.width);
        if shape.hybrid.is_none() {
            add(
                "transformer_layer_spec",
                &"partial(get_gpt_decoder_block_spec, use_transformer_engine=True)",
            );
            if !shape.moe_pattern.iter().all(|&on| on) {
                add("moe_layer_freq", &pattern(&shape.moe_pattern));
            }
        }
        if e.shared_width > 0 {
            add("moe_shared_expert_intermediate_size", &e.shared_width);
            add("moe_shared_expert_gate", &yes(e.shared_gate));
        }
        if let Some(width) = e.latent_width {
            add("moe_latent_size", &width);
        }
        match e.router.score {
            RouterScore::Softmax => {}
            RouterScore::SoftmaxBeforeTopK => add("moe_router_pre_softmax", &"True"),
            RouterScore::Sigmoid | RouterScore::SigmoidAlone => {
                add("moe_router_score_function", &"\"sigmoid\"");
            }
        }
        if e.router.scaling_factor != 1.0 {
            add("moe_router_topk_scaling_factor", &format_args!("{:?}", e.router.scaling_factor));
        }
        if let Some(groups) = e.router.groups {
            add("moe_router_num_groups", &groups.count);
            add("moe_router_group_topk", &groups.top_k);
        }
        add("moe_router_enable_expert_bias", &yes(e.router.balancing_bias));
        let balancing = if e.router.balancing_bias { "seq_aux_loss" } else { "aux_loss" };
        add("moe_router_load_balancing_type", &format_args!("\"{balancing}\""));
        add("moe_aux_loss_coeff", &if e.router.balancing_bias { "1e-4" } else { "1e-3" });
        add("moe_router_dtype", &"\"fp32\"");
        if let Some(capacity) = request.job.expert_capacity {
            add("moe_expert_capacity_factor", &format_args!("{:?}", capacity.factor));
            add("moe_pad_expert_input_to_capacity", &yes(capacity.padded));
        }
        if e.shared_width > 0 {
            add("moe_shared_expert_overlap", &yes(l.shared_overlap));
        }
        add("moe_grouped_gemm", &"True");
        add("moe_permute_fusion", &"True");
        let words: Vec<&str> = command.words().collect();
        for (flag, name) in [
            ("--moe-token-dispatcher-type", "moe_token_dispatcher_type"),
            ("--moe-flex-dispatcher-backend", "moe_flex_dispatcher_backend"),
        ] {
            if let Some(value) = words.iter().position(|w| *w == flag).and_then(|at| words.get(at + 1)) {
                add(name, &format_args!("\"{value}\""));
            }
        }
    }
    add("cross_entropy_loss_fusion", &"True");
    add("cross_entropy_fusion_impl", &"\"native\"");
    add("tensor_model_parallel_size", &l.tensor_parallel);
    add("sequence_parallel", &yes(l.sequence_parallel));
    add("pipeline_model_parallel_size", &l.pipeline_parallel);
    add("pipeline_dtype", &"torch.bfloat16");
    if shape.hybrid.is_none() {
        split(request, &mut add);
    } else if l.virtual_stages > 1 {
        add("virtual_pipeline_model_parallel_size", &l.virtual_stages);
    }
    if l.virtual_stages > 1
        && let Some(group) = interleave_group(l.pipeline_parallel, l.gradient_accumulation_steps)
    {
        add("microbatch_group_size_per_vp_stage", &group);
    }
    add("context_parallel_size", &l.context_parallel);
    let words: Vec<&str> = command.words().collect();
    if let Some(kind) = words.iter().position(|w| *w == "--cp-comm-type").and_then(|at| words.get(at + 1)) {
        add("cp_comm_type", &format_args!("\"{kind}\""));
    }
    add("expert_model_parallel_size", &l.expert_parallel);
    add("expert_tensor_parallel_size", &l.expert_tensor_parallel);
    memory(request, command, &mut add);
    text
}

fn split(request: &ExportRequest, add: &mut impl FnMut(&str, &dyn std::fmt::Display)) {
    let l = request.plan.layout();
    let chunks: Vec<u32> = request.plan.chunks().iter().map(|c| c.layers).collect();
    let split = Split::of(&chunks, l.pipeline_parallel, l.virtual_stages, request.mtp());
    if l.virtual_stages > 1 {
        add("virtual_pipeline_model_parallel_size", &l.virtual_stages);
    }
    match split {
        Split::Even => {}
        Split::FirstLast { first, last } => {
            if let Some(first) = first {
                add("num_layers_in_first_pipeline_stage", &first);
            }
            if let Some(last) = last {
                add("num_layers_in_last_pipeline_stage", &last);
            }
        }
        Split::Account { embedding, loss } => {
            add("account_for_embedding_in_pipeline_split", &python(embedding));
            add("account_for_loss_in_pipeline_split", &python(loss));
        }
        Split::Layout(text) => add("pipeline_model_parallel_layout", &format_args!("\"{text}\"")),
    }
}

/// Recomputation, offload of activations and CUDA graphs, which belong to the model's configuration.
fn memory(request: &ExportRequest, command: &Arguments, add: &mut impl FnMut(&str, &dyn std::fmt::Display)) {
    let l = request.plan.layout();
    let list = |names: &[String]| {
        let quoted: Vec<String> = names.iter().map(|name| format!("\"{name}\"")).collect();
        format!("[{}]", quoted.join(", "))
    };
    match request.plan.chunks().iter().find(|c| c.layers > 0).map_or(Recompute::None, |c| c.recompute) {
        Recompute::None => {}
        Recompute::Selective(modules) => {
            let names: Vec<String> = modules.iter().map(|m| m.name().to_owned()).collect();
            add("recompute_granularity", &"\"selective\"");
            add("recompute_modules", &list(&names));
        }
        mode @ (Recompute::FullUniform(n) | Recompute::FullBlock(n)) => {
            let method = if matches!(mode, Recompute::FullBlock(_)) { "block" } else { "uniform" };
            add("recompute_granularity", &"\"full\"");
            add("recompute_method", &format_args!("\"{method}\""));
            add("recompute_num_layers", &n);
        }
    }
    if l.offload.activations {
        add("fine_grained_activation_offloading", &"True");
        let flags = command.sections.iter().flat_map(|s| &s.flags);
        for (_, modules) in flags.filter(|(name, _)| *name == "--offload-modules") {
            add("offload_modules", &list(modules));
        }
    }
    if l.cuda_graphs != CudaGraphs::None {
        // Megatron-LM's arguments switch it on; Bridge's model is not built without
        // (Megatron-Bridge:src/megatron/bridge/models/gpt_provider.py, `provide`).
        add("use_te_rng_tracker", &"True");
    }
    match l.cuda_graphs {
        CudaGraphs::None => {}
        CudaGraphs::Attention => {
            add("cuda_graph_impl", &"\"transformer_engine\"");
            add("cuda_graph_modules", &"[\"attn\"]");
        }
        CudaGraphs::AttentionRouter => {
            add("cuda_graph_impl", &"\"transformer_engine\"");
            add("cuda_graph_modules", &"[\"attn\", \"moe_router\", \"moe_preprocess\"]");
        }
        CudaGraphs::FullIteration => {
            add("cuda_graph_impl", &"\"full_iteration\"");
            if l.offload.activations {
                add("fine_grained_offloading_max_inflight_offloads", &2);
            }
        }
    }
}

/// Everything beside the model.
fn settings(request: &ExportRequest, imports: &mut Vec<String>) -> String {
    let (l, job) = (request.plan.layout(), request.job);
    let ranks = l.data_parallel * l.context_parallel;
    let steps = request.steps();
    let mut s = Settings::new();
    s.text("cfg.tokenizer.tokenizer_type", "NullTokenizer");
    s.set("cfg.tokenizer.tokenizer_model", "None");
    s.set("cfg.tokenizer.vocab_size", request.model.vocabulary);
    s.on("cfg.tokenizer.use_tokenizer_vocab_size", false);
    s.set("cfg.dataset.seq_length", job.sequence_length);
    if job.optimizer == Optimizer::Muon {
        imports.push(
            "from megatron.bridge.recipes.utils.optimizer_utils import distributed_muon_with_cosine_annealing".into(),
        );
        s.set("cfg.optimizer, cfg.scheduler", "distributed_muon_with_cosine_annealing()");
    }
    s.set("cfg.train.train_iters", steps);
    s.set("cfg.scheduler.lr_warmup_iters", steps / 10);
    s.set("cfg.scheduler.lr_decay_iters", steps);
    s.set("cfg.train.micro_batch_size", l.micro_batch_size);
    s.set("cfg.train.global_batch_size", job.global_batch_size);
    let precision = match job.precision {
        Precision::Bf16 => "bf16_mixed",
        Precision::Fp16 => "fp16_mixed",
        Precision::Fp8 => "bf16_with_fp8_current_scaling_mixed",
        Precision::Fp8Blockwise => "bf16_with_fp8_subchannel_scaling_mixed",
        Precision::Mxfp8 => "bf16_with_mxfp8_mixed",
        Precision::Nvfp4 => "bf16_with_nvfp4_mixed",
    };
    s.text("cfg.mixed_precision", precision);
    let sharded = l.zero_stage >= 1;
    s.on("cfg.ddp.use_distributed_optimizer", sharded);
    s.on("cfg.optimizer.use_distributed_optimizer", sharded);
    s.on("cfg.ddp.overlap_grad_reduce", l.data_overlap);
    s.on("cfg.ddp.overlap_param_gather", l.data_overlap && sharded);
    if sharded && l.shard_group != ranks {
        s.set("cfg.ddp.num_distributed_optimizer_instances", ranks / l.shard_group.max(1));
        s.set("cfg.dist.num_distributed_optimizer_instances", ranks / l.shard_group.max(1));
    }
    if l.zero_stage >= 2 {
        s.on("cfg.ddp.use_megatron_fsdp", true);
        s.on("cfg.dist.use_megatron_fsdp", true);
        let strategy = if l.zero_stage == 2 { "optim_grads" } else { "optim_grads_params" };
        s.text("cfg.ddp.data_parallel_sharding_strategy", strategy);
        s.on("cfg.ddp.average_in_collective", false);
        s.text("cfg.checkpoint.ckpt_format", "fsdp_dtensor");
        s.on("m.init_model_with_meta_device", true);
        s.on("m.calculate_per_token_loss", true);
        s.on("m.gradient_accumulation_fusion", false);
    } else {
        s.text("cfg.ddp.data_parallel_sharding_strategy", "no_shard");
    }
    let moments = match job.optimizer {
        Optimizer::AdamwBf16 => Some("torch.bfloat16"),
        Optimizer::Adam8bit => Some("torch.uint8"),
        _ => None,
    };
    if job.optimizer == Optimizer::Sgd {
        s.text("cfg.optimizer.optimizer", "sgd");
    }
    let offloaded = l.offload.optimizer != Place::Gpu;
    s.on("cfg.optimizer.use_precision_aware_optimizer", moments.is_some() || offloaded);
    if let Some(format) = moments {
        s.set("cfg.optimizer.exp_avg_dtype", format);
        s.set("cfg.optimizer.exp_avg_sq_dtype", format);
    }
    if offloaded {
        s.on("cfg.optimizer.optimizer_cpu_offload", true);
        s.set("cfg.optimizer.optimizer_offload_fraction", "1.0");
        s.on("cfg.optimizer.overlap_cpu_optimizer_d2h_h2d", true);
    }
    if l.cuda_graphs == CudaGraphs::FullIteration {
        s.on("cfg.rerun_state_machine.check_for_nan_in_loss", false);
        s.on("cfg.ddp.check_for_nan_in_grad", false);
    }
    let _ = write!(
        s.text,
        r#"    cfg.comm_overlap = CommOverlapConfig(
        tp_comm_overlap={},
        overlap_grad_reduce={},
        overlap_param_gather={},
        overlap_moe_expert_parallel_comm={},
        delay_wgrad_compute=False,
    )
"#,
        python(l.tensor_overlap),
        python(l.data_overlap),
        python(l.data_overlap && sharded),
        python(l.expert_overlap),
    );
    s.text
}
