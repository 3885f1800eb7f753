//! A model as a Hugging Face configuration, for frameworks that train Hugging Face models.
//!
//! Field names are those of transformers 5; only families whose modelling code has the very same
//! layers are written, everything else has no configuration.

use serde_json::{Map, Value, json};

use super::export::WrittenFor;
use crate::layers::{LayerKind, Layers};
use crate::spec::model::{
    Activation, Attention, Block, Dense, FeedForward, LatentAttention, Mixer, Model, Moe, Norm, Position,
    PositionScaling, QkNorm, RouterScore, Yarn,
};

/// A model as a Hugging Face configuration.
#[derive(Debug, Clone, PartialEq)]
pub struct HfModel {
    /// `config.json`, `model_type` included.
    pub config: Map<String, Value>,
    /// Class of one decoder layer, which FSDP wraps.
    pub layer_class: &'static str,
    /// DeepSpeed's preset for its experts, where it has one.
    pub expert_preset: Option<&'static str>,
    /// Whether it has [`eager_attention`].
    eager: bool,
    /// [`Layers::shortest_window`].
    window: Option<u64>,
}

/// Whether sequences of such a length go beyond the shortest window. For Transformers' SDPA windows are masks, and every
/// kernel computes whole squares; flash-attn skips what they leave out, and is what is predicted and asked for.
#[must_use]
pub fn windows_cut(window: Option<u64>, sequence: u32) -> bool {
    window.is_some_and(|window| window < u64::from(sequence))
}

/// Whether Transformers computes attention eagerly: sinks in some layers, and the biases of ALiBi in BLOOM's and MPT's
/// classes, go through no fused kernel of PyTorch. Falcon's hands them to one (transformers modeling_falcon.py).
#[must_use]
pub fn eager_attention(model: &Model, layers: &Layers) -> bool {
    layers.have_sinks() || matches!(model.position, Position::Alibi) && !is_falcon(model, layers)
}

impl HfModel {
    /// The attention that `from_config` is asked for, for sequences of such a length: `sdpa` where the class has it and
    /// computes nothing in vain.
    #[must_use]
    pub fn attention(&self, sequence: u32) -> &'static str {
        match (self.eager, windows_cut(self.window, sequence)) {
            (true, _) => "eager",
            (false, true) => "flash_attention_2",
            (false, false) => "sdpa",
        }
    }

    /// Its `model_type`.
    fn family(&self) -> &str {
        self.config.get("model_type").and_then(Value::as_str).unwrap_or_default()
    }

    /// Whom files with this model are written for.
    #[must_use]
    pub fn written_for(software: &'static str, model: &Model, hf: Option<&Self>) -> WrittenFor {
        match hf {
            Some(_) => WrittenFor::new(software, model, model.position.scaling() != PositionScaling::Other),
            None => WrittenFor::without_model(software),
        }
    }

    /// What DeepSpeed's AutoTP is told to split of a model whose experts its AutoEP spreads. Without it the plan of
    /// Transformers counts, which splits the experts too, and which DeepSpeed refuses as a whole
    /// (module_inject/tp_plan_converter.py TPPlanConverter.convert). What is not named stays whole; norms of heads see
    /// a part of them, so that their gradients are summed.
    #[must_use]
    pub fn tensor_partition(&self) -> Option<Value> {
        if !matches!(self.family(), "mixtral" | "qwen3_moe") {
            return None;
        }
        let one = |pattern: &str, kind: &str| json!({"patterns": [pattern], "partition_type": kind});
        let mut layers = vec![
            one(r".*\.self_attn\.[qkv]_proj\.weight$", "column"),
            one(r".*\.self_attn\.o_proj\.weight$", "row"),
        ];
        if self.family() == "qwen3_moe" {
            let mut norms = one(r".*\.self_attn\.[qk]_norm\.weight$", "skip");
            norms["grad_allreduce"] = json!(true);
            layers.push(norms);
        }
        if self.config.get("tie_word_embeddings") == Some(&json!(false)) {
            let mut head = one(r".*lm_head\.weight$", "column");
            head["gather_output"] = json!(true);
            layers.push(head);
        }
        Some(json!({"use_default_specs": false, "layer_specs": layers}))
    }

    /// The family that has exactly this model's layers, if any. Multi-token prediction is not trained
    /// by Hugging Face models.
    #[must_use]
    pub fn of(model: &Model, layers: &Layers) -> Option<Self> {
        if model.mtp.is_some()
            || model.embedding_width.is_some_and(|w| w != model.hidden)
            || !model.final_norm
        {
            return None;
        }
        let family = match (model.norm, model.position) {
            (Norm::RmsNorm, Position::Rotary | Position::RotaryWith { .. }) => rms_rotary(model, layers),
            (Norm::LayerNorm, Position::Learned(rows)) => gpt2(model, layers, rows),
            (Norm::LayerNorm, Position::Alibi) => bloom(model, layers),
            (Norm::LayerNorm, Position::Rotary | Position::RotaryWith { .. }) => gpt_neox(model, layers),
            _ => None,
        }?;
        let mut config = Map::new();
        config.insert("model_type".into(), json!(family.model_type));
        config.insert("architectures".into(), json!([family.architecture]));
        config.extend(family.fields);
        if let Some(epsilon) = model.norm_epsilon {
            let field = match family.model_type {
                "gpt2" | "bloom" => "layer_norm_epsilon",
                "gpt_neox" => "layer_norm_eps",
                _ => "rms_norm_eps",
            };
            config.insert(field.into(), json!(epsilon));
        }
        config.insert("vocab_size".into(), json!(model.vocabulary));
        config.insert("tie_word_embeddings".into(), json!(model.tied_embeddings));
        config.insert("use_cache".into(), json!(false));
        let eager = eager_attention(model, layers);
        Some(Self {
            config,
            layer_class: family.layer_class,
            expert_preset: family.expert_preset,
            eager,
            window: layers.shortest_window(),
        })
    }
}

/// What a kind of attention needs beside Transformers, as a comment's line.
#[must_use]
pub fn needs(attention: &str) -> &'static str {
    match attention {
        "flash_attention_2" => {
            "\n# Attention has windows: it needs the package flash-attn (or kernels), without which transformers refuses it."
        }
        _ => "",
    }
}

/// Whether Ulysses takes the attention of a model's class: it refuses the eager one, and GPT-2's class shapes the heads'
/// output by the sequence that it was given (runtime/sequence_parallel/ulysses_sp.py; transformers modeling_gpt2.py).
#[must_use]
pub fn splits_sequences(model: &Model, layers: &Layers, hf: Option<&HfModel>) -> bool {
    !eager_attention(model, layers) && hf.is_none_or(|hf| hf.family() != "gpt2")
}

/// What whoever builds a model beside the files has to bring, as lines of a comment.
#[must_use]
pub fn brought(model: &Model, layers: &Layers, sequence: u32) -> String {
    let mut lines = String::new();
    if model.mtp.is_some() {
        lines.push_str(
            "\n# The prediction counts layers that predict further tokens, which no class of transformers has: the script brings them.",
        );
    }
    lines.push_str(match (eager_attention(model, layers), windows_cut(layers.shortest_window(), sequence)) {
        (true, _) => "\n# The prediction counts attention that is computed eagerly.",
        (false, true) => {
            "\n# The prediction counts attention as by flash-attn, which skips what windows and chunks leave out; with `sdpa` and\n# `eager` whole squares are computed."
        }
        (false, false) => {
            "\n# The prediction counts attention by a fused kernel: `sdpa`, or flash-attn where the class has no other (Gemma 2)."
        }
    });
    lines
}

/// Whether Accelerate's context parallelism finds the masks of a model's class and drops them: its attention goes through
/// SDPA, and its modules are called `self_attn` (accelerate/big_modeling.py _attach_context_parallel_hooks). Those of
/// GPT-2, GPT-NeoX and Falcon are not; positions that are looked up would be those of a part.
#[must_use]
pub fn masks_drop(model: &Model, layers: &Layers, hf: Option<&HfModel>) -> bool {
    let named_so = match hf {
        Some(hf) => !matches!(hf.family(), "gpt2" | "gpt_neox"),
        None => !is_falcon(model, layers) && !matches!(model.position, Position::Learned(_)),
    };
    named_so && !eager_attention(model, layers)
}

/// Whether DeepSpeed's AutoTP takes the Transformers class of a model: not GPT-2 (module_inject/auto_tp.py
/// AutoTP.supported), and no class whose plan splits something in a way that it does not know, which it refuses as a
/// whole (module_inject/tp_plan_converter.py TPPlanConverter.convert): latent attention (`mla_kv_a_proj`), rows of
/// heads that are normalised as one (`rowwise_split_input`).
#[must_use]
pub fn splits_tensors(layers: &Layers, hf: Option<&HfModel>) -> bool {
    let known = |kind: &LayerKind| match &kind.block.mixer {
        Mixer::Attention(a) => a.qk_norm != QkNorm::Full,
        Mixer::Latent(_) => false,
        Mixer::Mamba2(_) | Mixer::None => true,
    };
    hf.is_none_or(|hf| hf.family() != "gpt2") && layers.kinds.iter().all(known)
}

/// Whether Transformers has a plan that splits all layers of a model's class by tensor parallelism, as far as is known
/// (transformers configuration_*.py base_model_tp_plan): GPT-2, OPT, BLOOM, Falcon, Nemotron, hybrids and gpt-oss have
/// none, of Qwen2's experts it has the shared one only, DeepSeek-V3's leaves attention whole, and of models
/// that normalise over all heads OLMo 2 and MiniMax-M2 gather them on every rank, while Command R+'s scales fit no part.
#[must_use]
pub fn has_tensor_plan(model: &Model, layers: &Layers, hf: Option<&HfModel>) -> bool {
    if let Some(hf) = hf {
        return !matches!(hf.family(), "gpt2" | "bloom" | "gpt_oss" | "deepseek_v3");
    }
    let whole = |block: &Block| {
        let mixer = match &block.mixer {
            Mixer::Attention(a) => a.sinks || a.qk_norm == QkNorm::Full,
            Mixer::Latent(_) => false,
            Mixer::Mamba2(_) => true,
            Mixer::None => false,
        };
        let feed_forward = match &block.feed_forward {
            FeedForward::Dense(d) => model.norm == Norm::LayerNorm && d.activation == Activation::SquaredRelu,
            FeedForward::Moe(e) => {
                let third = matches!(block.mixer, Mixer::Latent(_)) && e.router.balancing_bias;
                third || e.shared_gate
            }
            FeedForward::None => false,
        };
        mixer || feed_forward
    };
    let learned = matches!(model.position, Position::Learned(_));
    !learned && !is_falcon(model, layers) && !layers.kinds.iter().any(|kind| whole(&kind.block))
}

/// Whether layers are Falcon's: attention and a plain feed-forward part side by side without biases (Phi's have some), or,
/// of the first ones with ALiBi, with biases and without a norm behind the embedding, as no other class with it has them.
fn is_falcon(model: &Model, layers: &Layers) -> bool {
    let biased = matches!(model.position, Position::Alibi) && !model.embedding_norm;
    let falcon = |block: &Block| match (&block.mixer, &block.feed_forward) {
        (Mixer::Attention(a), FeedForward::Dense(d)) => {
            (block.parallel && !a.qkv_bias || biased && a.qkv_bias) && !d.activation.gated()
        }
        _ => false,
    };
    model.norm == Norm::LayerNorm && layers.kinds.iter().any(|kind| falcon(&kind.block))
}

struct Family {
    model_type: &'static str,
    architecture: &'static str,
    layer_class: &'static str,
    expert_preset: Option<&'static str>,
    fields: Map<String, Value>,
}

fn fields(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}

/// The one block of a model whose layers are all alike.
fn only(layers: &Layers) -> Option<&Block> {
    let first = *layers.order.first()?;
    layers.order.iter().all(|&kind| kind == first).then(|| &layers.kinds[first as usize].block)
}

/// `rope_parameters` and the rotated share of a head.
fn rotary(model: &Model) -> Option<(Value, f64)> {
    let (base, share, scaling) = match model.position {
        Position::Rotary => (10_000.0, 1.0, PositionScaling::None),
        Position::RotaryWith { base, share, scaling } => (base, share, scaling),
        _ => return None,
    };
    let mut all = match scaling {
        PositionScaling::None | PositionScaling::Other => json!({"rope_type": "default"}),
        PositionScaling::Linear { factor } => json!({"rope_type": "linear", "factor": factor}),
        PositionScaling::Dynamic { factor } => json!({"rope_type": "dynamic", "factor": factor}),
        PositionScaling::Llama3 { factor, low_frequency_factor, high_frequency_factor, original_length } => {
            json!({
                "rope_type": "llama3", "factor": factor, "low_freq_factor": low_frequency_factor,
                "high_freq_factor": high_frequency_factor,
                "original_max_position_embeddings": original_length,
            })
        }
        PositionScaling::Yarn(yarn) => rope_of_yarn(&yarn),
    };
    all["rope_theta"] = json!(base);
    Some((all, share))
}

/// Both weights count only where neither is zero (modeling_rope_utils.py _compute_yarn_parameters).
fn rope_of_yarn(yarn: &Yarn) -> Value {
    let mut all = json!({
        "rope_type": "yarn", "factor": yarn.factor, "beta_fast": yarn.beta_fast, "beta_slow": yarn.beta_slow,
        "original_max_position_embeddings": yarn.original_length, "truncate": yarn.truncate,
    });
    if yarn.mscale != 0.0 && yarn.mscale_all_dim != 0.0 {
        all["mscale"] = json!(yarn.mscale);
    }
    if yarn.mscale_all_dim != 0.0 {
        all["mscale_all_dim"] = json!(yarn.mscale_all_dim);
    }
    let weighed = all.get("mscale").is_some() || (yarn.mscale, yarn.mscale_all_dim) == (1.0, 0.0);
    if yarn.attention_factor.is_some() || !weighed {
        all["attention_factor"] = json!(yarn.attention_factor());
    }
    all
}

/// Llama, Qwen2, Qwen3, Mistral, Mixtral, Qwen3-MoE, gpt-oss, DeepSeek-V2 and -V3.
fn rms_rotary(model: &Model, layers: &Layers) -> Option<Family> {
    if model.embedding_norm
        || model.head_bias
        || layers.kinds.iter().any(|k| k.block.norms != 2 || k.block.parallel)
    {
        return None;
    }
    let (rope, share) = rotary(model)?;
    if share != 1.0 {
        return None;
    }
    let common = json!({
        "hidden_size": model.hidden,
        "num_hidden_layers": layers.count(),
        "max_position_embeddings": model.max_sequence,
        "hidden_act": "silu",
        "rope_parameters": rope,
        "attention_dropout": if model.dropout { 0.1 } else { 0.0 },
    });
    let mut family = match only(layers) {
        Some(Block { mixer: Mixer::Attention(a), feed_forward: FeedForward::Dense(d), .. }) => {
            dense(model, a, d)?
        }
        Some(Block { mixer: Mixer::Attention(a), feed_forward: FeedForward::Moe(e), .. }) => experts(a, e)?,
        _ => gpt_oss(layers).or_else(|| latent(layers))?,
    };
    let mut all = fields(common);
    all.append(&mut family.fields);
    family.fields = all;
    Some(family)
}

/// Whether an attention layer has nothing beyond heads, biases, a window and the given normalisation.
fn plain(a: &Attention, qk_norm: QkNorm) -> bool {
    !a.sinks && a.chunk.is_none() && a.qk_norm == qk_norm
}

fn dense(model: &Model, a: &Attention, d: &Dense) -> Option<Family> {
    if d.activation != Activation::SwiGlu {
        return None;
    }
    let heads = json!({
        "num_attention_heads": a.heads, "num_key_value_heads": a.kv_heads, "head_dim": a.head_dim,
        "intermediate_size": d.width,
    });
    let mut all = fields(heads);
    let (model_type, architecture, layer_class) = match (a.qk_norm, a.qkv_bias, a.output_bias, a.window) {
        (QkNorm::None, bias, output, None) if bias == output && plain(a, QkNorm::None) => {
            all.extend(fields(json!({"attention_bias": bias, "mlp_bias": d.bias})));
            ("llama", "LlamaForCausalLM", "LlamaDecoderLayer")
        }
        (QkNorm::None, true, false, None) if plain(a, QkNorm::None) && !d.bias => {
            ("qwen2", "Qwen2ForCausalLM", "Qwen2DecoderLayer")
        }
        (QkNorm::PerHeadDim, bias, output, None)
            if bias == output && plain(a, QkNorm::PerHeadDim) && !d.bias =>
        {
            all.extend(fields(json!({"attention_bias": bias})));
            ("qwen3", "Qwen3ForCausalLM", "Qwen3DecoderLayer")
        }
        (QkNorm::None, false, false, Some(window)) if plain(a, QkNorm::None) && !d.bias => {
            all.extend(fields(json!({"sliding_window": window})));
            ("mistral", "MistralForCausalLM", "MistralDecoderLayer")
        }
        _ => return None,
    };
    // Qwen2's attention has no head size of its own.
    if model_type == "qwen2" && a.head_dim * a.heads != model.hidden {
        return None;
    }
    Some(Family { model_type, architecture, layer_class, expert_preset: None, fields: all })
}

fn experts(a: &Attention, e: &Moe) -> Option<Family> {
    let routed = e.activation == Activation::SwiGlu
        && !e.expert_bias
        && e.shared_width == 0
        && e.latent_width.is_none()
        && e.router.score == RouterScore::Softmax
        && !e.router.bias
        && !e.router.balancing_bias
        && e.router.groups.is_none()
        && e.router.scaling_factor == 1.0;
    if !routed || a.qkv_bias || a.output_bias || a.window.is_some() {
        return None;
    }
    let heads = json!({
        "num_attention_heads": a.heads, "num_key_value_heads": a.kv_heads, "head_dim": a.head_dim,
        "num_experts_per_tok": e.top_k,
    });
    let mut all = fields(heads);
    if plain(a, QkNorm::None) {
        all.extend(fields(json!({"num_local_experts": e.experts, "intermediate_size": e.width})));
        return Some(Family {
            model_type: "mixtral",
            architecture: "MixtralForCausalLM",
            layer_class: "MixtralDecoderLayer",
            expert_preset: Some("mixtral"),
            fields: all,
        });
    }
    if plain(a, QkNorm::PerHeadDim) {
        all.extend(fields(json!({
            "num_experts": e.experts, "moe_intermediate_size": e.width, "intermediate_size": e.width,
            "norm_topk_prob": true, "decoder_sparse_step": 1, "mlp_only_layers": [],
        })));
        return Some(Family {
            model_type: "qwen3_moe",
            architecture: "Qwen3MoeForCausalLM",
            layer_class: "Qwen3MoeDecoderLayer",
            expert_preset: Some("qwen3_moe"),
            fields: all,
        });
    }
    None
}

/// Windows on every other layer, sinks, biases everywhere.
fn gpt_oss(layers: &Layers) -> Option<Family> {
    let block = |kind: u8| &layers.kinds[kind as usize].block;
    let parts = |kind: u8| match block(kind) {
        Block { mixer: Mixer::Attention(a), feed_forward: FeedForward::Moe(e), .. } => Some((a, e)),
        _ => None,
    };
    let (first, e) = parts(*layers.order.first()?)?;
    let mut types = Vec::new();
    let mut window = None;
    for &kind in &layers.order {
        let (a, own) = parts(kind)?;
        let same = Attention { window: None, ..a.clone() } == Attention { window: None, ..first.clone() };
        if !same
            || own != e
            || !a.sinks
            || a.chunk.is_some()
            || !a.qkv_bias
            || !a.output_bias
            || a.qk_norm != QkNorm::None
        {
            return None;
        }
        if a.window.is_some() && window.is_some() && a.window != window {
            return None;
        }
        window = window.or(a.window);
        types.push(if a.window.is_some() { "sliding_attention" } else { "full_attention" });
    }
    if !e.expert_bias
        || !e.router.bias
        || e.shared_width > 0
        || e.activation != Activation::SwiGlu
        || e.router.scaling_factor != 1.0
    {
        return None;
    }
    Some(Family {
        model_type: "gpt_oss",
        architecture: "GptOssForCausalLM",
        layer_class: "GptOssDecoderLayer",
        expert_preset: None,
        fields: fields(json!({
            "num_attention_heads": first.heads, "num_key_value_heads": first.kv_heads,
            "head_dim": first.head_dim, "attention_bias": true, "layer_types": types,
            "sliding_window": window.unwrap_or(128), "num_local_experts": e.experts,
            "num_experts_per_tok": e.top_k, "intermediate_size": e.width,
        })),
    })
}

/// Latent attention everywhere, dense layers first, experts after them.
fn latent(layers: &Layers) -> Option<Family> {
    let block = |kind: u8| &layers.kinds[kind as usize].block;
    let mixer = |kind: u8| match &block(kind).mixer {
        Mixer::Latent(a) => Some(a),
        _ => None,
    };
    let a: &LatentAttention = mixer(*layers.order.first()?)?;
    let mut dense: Option<&Dense> = None;
    let mut moe: Option<&Moe> = None;
    let mut first_dense = 0;
    for &kind in &layers.order {
        if mixer(kind)? != a {
            return None;
        }
        match &block(kind).feed_forward {
            FeedForward::Dense(d) if moe.is_none() && dense.is_none_or(|known| known == d) => {
                dense = Some(d);
                first_dense += 1;
            }
            FeedForward::Moe(e) if moe.is_none_or(|known| known == e) => moe = Some(e),
            _ => return None,
        }
    }
    let e = moe?;
    if a.bias {
        return None;
    }
    if e.shared_width % e.width != 0
        || e.activation != Activation::SwiGlu
        || e.expert_bias
        || e.shared_gate
        || e.latent_width.is_some()
        || e.router.bias
    {
        return None;
    }
    let third = e.router.score.is_sigmoid() && e.router.balancing_bias;
    if !third && (e.router.score.is_sigmoid() || e.router.balancing_bias) {
        return None;
    }
    let groups = e.router.groups;
    let mut all = fields(json!({
        "num_attention_heads": a.heads, "num_key_value_heads": a.heads,
        "q_lora_rank": a.q_lora_rank, "kv_lora_rank": a.kv_lora_rank,
        "qk_nope_head_dim": a.qk_nope_dim, "qk_rope_head_dim": a.qk_rope_dim, "v_head_dim": a.v_dim,
        "intermediate_size": dense.map_or(e.width, |d| d.width), "first_k_dense_replace": first_dense,
        "n_routed_experts": e.experts, "n_shared_experts": e.shared_width / e.width,
        "num_experts_per_tok": e.top_k, "moe_intermediate_size": e.width,
        "n_group": groups.map_or(1, |g| g.count), "topk_group": groups.map_or(1, |g| g.top_k),
        "norm_topk_prob": e.router.score.sums_to_one(),
        "routed_scaling_factor": e.router.scaling_factor,
    }));
    if third {
        return Some(Family {
            model_type: "deepseek_v3",
            architecture: "DeepseekV3ForCausalLM",
            layer_class: "DeepseekV3DecoderLayer",
            expert_preset: Some("deepseek_v3"),
            fields: all,
        });
    }
    let method = if groups.is_some() { "group_limited_greedy" } else { "greedy" };
    all.insert("topk_method".into(), json!(method));
    Some(Family {
        model_type: "deepseek_v2",
        architecture: "DeepseekV2ForCausalLM",
        layer_class: "DeepseekV2DecoderLayer",
        expert_preset: Some("deepseek_v2"),
        fields: all,
    })
}

/// A classical block with biases everywhere: attention, GELU.
fn biased(layers: &Layers) -> Option<(&Attention, &Dense, &Block)> {
    let block = only(layers)?;
    match (&block.mixer, &block.feed_forward) {
        (Mixer::Attention(a), FeedForward::Dense(d))
            if a.heads == a.kv_heads
                && a.qkv_bias
                && a.output_bias
                && d.bias
                && d.activation == Activation::Gelu
                && a.window.is_none()
                && plain(a, QkNorm::None)
                && block.norms == 2 =>
        {
            Some((a, d, block))
        }
        _ => None,
    }
}

fn gpt2(model: &Model, layers: &Layers, rows: u64) -> Option<Family> {
    let (a, d, block) = biased(layers)?;
    if block.parallel || model.embedding_norm || model.head_bias || a.heads * a.head_dim != model.hidden {
        return None;
    }
    let dropout = if model.dropout { 0.1 } else { 0.0 };
    Some(Family {
        model_type: "gpt2",
        architecture: "GPT2LMHeadModel",
        layer_class: "GPT2Block",
        expert_preset: None,
        fields: fields(json!({
            "n_embd": model.hidden, "n_layer": layers.count(), "n_head": a.heads, "n_inner": d.width,
            "n_positions": rows, "activation_function": "gelu_new",
            "resid_pdrop": dropout, "embd_pdrop": dropout, "attn_pdrop": dropout,
        })),
    })
}

fn bloom(model: &Model, layers: &Layers) -> Option<Family> {
    let (a, d, block) = biased(layers)?;
    let fits = model.embedding_norm
        && !block.parallel
        && !model.head_bias
        && a.heads * a.head_dim == model.hidden
        && d.width == 4 * model.hidden;
    fits.then(|| Family {
        model_type: "bloom",
        architecture: "BloomForCausalLM",
        layer_class: "BloomBlock",
        expert_preset: None,
        fields: fields(json!({
            "hidden_size": model.hidden, "n_layer": layers.count(), "n_head": a.heads,
            "hidden_dropout": if model.dropout { 0.1 } else { 0.0 },
            "attention_dropout": if model.dropout { 0.1 } else { 0.0 },
        })),
    })
}

fn gpt_neox(model: &Model, layers: &Layers) -> Option<Family> {
    let (a, d, block) = biased(layers)?;
    let (mut rope, share) = rotary(model)?;
    if model.embedding_norm || model.head_bias || a.heads * a.head_dim != model.hidden {
        return None;
    }
    if let Value::Object(map) = &mut rope {
        map.insert("partial_rotary_factor".into(), json!(share));
    }
    Some(Family {
        model_type: "gpt_neox",
        architecture: "GPTNeoXForCausalLM",
        layer_class: "GPTNeoXLayer",
        expert_preset: None,
        fields: fields(json!({
            "hidden_size": model.hidden, "num_hidden_layers": layers.count(), "num_attention_heads": a.heads,
            "intermediate_size": d.width, "max_position_embeddings": model.max_sequence,
            "hidden_act": "gelu", "use_parallel_residual": block.parallel, "rope_parameters": rope,
            "hidden_dropout": if model.dropout { 0.1 } else { 0.0 },
            "attention_dropout": if model.dropout { 0.1 } else { 0.0 },
        })),
    })
}
