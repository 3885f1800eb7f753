//! Families whose configuration has names or rules of its own: the older GPTs, latent attention,
//! Llama 4, and hybrids with state-space layers. Sources as in `families.rs`.

use super::decoder::{
    self, EXPERTS, Experts, Kind, Shared, Sizes, Sparse, derived_head_dim, kinds, layer_count, predict,
};
use super::draft::Draft;
use super::families::MULTIPLIERS;
use super::fields::{Fields, Read};
use crate::spec::json::{Node, Value};
use crate::spec::model::{
    Activation, Attention, Block, Dense, FeedForward, LatentAttention, Mamba2, Mixer, Moe, Norm, Position,
    QkNorm, Router, RouterScore,
};

/// A family's reader.
pub(super) type Reader = fn(&Fields) -> Read<Draft>;

/// `model_type` and how it is read.
pub(super) const SPECIAL: &[(&str, Reader)] = &[
    ("gpt2", gpt2),
    ("gpt_bigcode", gpt_bigcode),
    ("gptj", gptj),
    ("gpt_neo", gpt_neo),
    ("gpt_neox", gpt_neox),
    ("falcon", falcon),
    ("bloom", bloom),
    ("opt", opt),
    ("mpt", mpt),
    ("deepseek_v2", deepseek_v2),
    ("deepseek_v3", deepseek_v3),
    ("kimi_k2", deepseek_v3),
    ("glm4_moe_lite", glm4_moe_lite),
    ("llama4_text", llama4),
    ("nemotron_h", nemotron_h),
    ("mamba2", mamba2),
    ("bamba", bamba),
    ("granitemoehybrid", granite_hybrid),
];

fn plain(heads: u64, kv_heads: u64, head_dim: u64, qkv_bias: bool, output_bias: bool) -> Attention {
    Attention {
        heads,
        kv_heads,
        head_dim,
        qkv_bias,
        output_bias,
        qk_norm: QkNorm::None,
        sinks: false,
        window: None,
        chunk: None,
    }
}

fn dense(width: u64, activation: Activation, bias: bool) -> FeedForward {
    FeedForward::Dense(Dense { width, activation, bias })
}

/// `layers` equal layers.
fn uniform(draft: &mut Draft, layers: u64, block: &Block) {
    for _ in 0..layers {
        draft.layer("decoder", block.clone());
    }
}

/// Sizes under the names of GPT-2.
fn gpt_sizes(fields: &Fields, vocabulary: u64, hidden: u64, layers: u64, heads: u64) -> Read<Sizes> {
    Ok(Sizes {
        vocabulary: fields.core("vocab_size", vocabulary)?,
        hidden: fields.core(["n_embd", "hidden_size"], hidden)?,
        layers: layer_count(fields, &["n_layer", "num_hidden_layers"], layers)?,
        heads: fields.core(["n_head", "num_attention_heads"], heads)?,
    })
}

/// How GPT-2 scales scores.
const GPT2_BESIDE: &[(&str, Value)] =
    &[("scale_attn_by_inverse_layer_idx", Value::Flag(false)), ("scale_attn_weights", Value::Flag(true))];

/// Fields of GPT-2's classification head.
const GPT2_HARMLESS: &[&str] = &[
    "attn_pdrop",
    "n_ctx",
    "n_special",
    "predict_special_tokens",
    "reorder_and_upcast_attn",
    "summary_activation",
    "summary_first_dropout",
    "summary_proj_to_labels",
    "summary_type",
    "summary_use_proj",
];

fn gpt2(fields: &Fields) -> Read<Draft> {
    let s = gpt_sizes(fields, 50_257, 768, 12, 12)?;
    fields.harmless(GPT2_HARMLESS);
    fields.beside(GPT2_BESIDE)?;
    let head_dim = derived_head_dim(fields, "n_head", s.hidden, s.heads)?;
    gpt2_like(fields, &s, plain(s.heads, s.heads, head_dim, true, true), "gelu_new")
}

fn gpt_bigcode(fields: &Fields) -> Read<Draft> {
    let s = gpt_sizes(fields, 50_257, 768, 12, 12)?;
    fields.harmless(GPT2_HARMLESS);
    fields.beside(GPT2_BESIDE)?;
    fields.harmless(&[
        "attention_softmax_in_fp32",
        "scale_attention_softmax_in_fp32",
        "inference_runner",
        "max_batch_size",
        "max_sequence_length",
        "pad_key_length",
        "pre_allocate_kv_cache",
        "validate_runner_input",
    ]);
    let kv_heads = if fields.flag("multi_query", true)? { 1 } else { s.heads };
    // Derived from `multi_query`; newer files repeat it.
    if fields.optional("num_key_value_heads")?.is_some_and(|given| given != kv_heads) {
        return Err(fields.wrong("num_key_value_heads", format!("`multi_query` says {kv_heads}")));
    }
    let head_dim = derived_head_dim(fields, "n_head", s.hidden, s.heads)?;
    gpt2_like(fields, &s, plain(s.heads, kv_heads, head_dim, true, true), "gelu_pytorch_tanh")
}

fn gpt2_like(fields: &Fields, s: &Sizes, attention: Attention, activation: &str) -> Read<Draft> {
    let width = fields.optional("n_inner")?.unwrap_or(4 * s.hidden);
    let activation = fields.activation("activation_function", activation, false)?;
    let mut draft = Draft::new(s.hidden, s.vocabulary);
    let positions = fields.size(["n_positions", "max_position_embeddings"], 1024)?;
    draft.position = Position::Learned(positions);
    draft.max_sequence = positions;
    draft.tied = fields.flag("tie_word_embeddings", true)?;
    draft.norm = Norm::LayerNorm;
    draft.norm_epsilon = fields.epsilon("layer_norm_epsilon", 1e-5)?;
    draft.dropout = fields.dropout(&["resid_pdrop", "embd_pdrop"], 0.1)?;
    let feed_forward = dense(width, activation, true);
    let block = Block { mixer: Mixer::Attention(attention), feed_forward, norms: 2, parallel: false };
    uniform(&mut draft, s.layers, &block);
    Ok(draft)
}

fn gptj(fields: &Fields) -> Read<Draft> {
    let s = gpt_sizes(fields, 50_400, 4096, 28, 16)?;
    fields.harmless(GPT2_HARMLESS);
    fields.beside(GPT2_BESIDE)?;
    fields.harmless(&["rotary"]);
    let head_dim = derived_head_dim(fields, "n_head", s.hidden, s.heads)?;
    let width = fields.optional("n_inner")?.unwrap_or(4 * s.hidden);
    let activation = fields.activation("activation_function", "gelu_new", false)?;
    let mut draft = Draft::new(s.hidden, s.vocabulary);
    draft.max_sequence = fields.longest(["n_positions", "max_position_embeddings"], 2048)?;
    draft.position = fields.rope(10_000.0, (64.0 / head_dim as f64).min(1.0), head_dim)?;
    draft.tied = fields.flag("tie_word_embeddings", false)?;
    draft.norm = Norm::LayerNorm;
    draft.norm_epsilon = fields.epsilon("layer_norm_epsilon", 1e-5)?;
    draft.head_bias = true;
    draft.dropout = fields.dropout(&["resid_pdrop", "embd_pdrop"], 0.0)?;
    let block = Block {
        mixer: Mixer::Attention(plain(s.heads, s.heads, head_dim, false, false)),
        feed_forward: dense(width, activation, true),
        norms: 1,
        parallel: true,
    };
    uniform(&mut draft, s.layers, &block);
    Ok(draft)
}

fn gpt_neo(fields: &Fields) -> Read<Draft> {
    let hidden = fields.core("hidden_size", 2048)?;
    let vocabulary = fields.core("vocab_size", 50_257)?;
    let layers = layer_count(fields, &["num_layers", "num_hidden_layers"], 24)?;
    let heads = fields.core(["num_heads", "num_attention_heads"], 16)?;
    let head_dim = derived_head_dim(fields, "num_heads", hidden, heads)?;
    let width = fields.optional("intermediate_size")?.unwrap_or(4 * hidden);
    let activation = fields.activation("activation_function", "gelu_new", false)?;
    let window = fields.size("window_size", 256)?;
    let local = match fields.words("attention_layers", &["global", "local"])? {
        Some(words) => words.into_iter().map(|word| word == "local").collect(),
        None => neo_pattern(fields)?,
    };
    fields.harmless(&["attention_types", "attention_layers", "embed_dropout", "gpt_neo"]);
    fields.harmless(GPT2_HARMLESS);
    fields.beside(GPT2_BESIDE)?;
    if local.len() as u64 != layers {
        return Err(fields.wrong(
            "attention_types",
            format!("it describes {} layers, the model has {layers}", local.len()),
        ));
    }
    let mut draft = Draft::new(hidden, vocabulary);
    let positions = fields.size("max_position_embeddings", 2048)?;
    draft.position = Position::Learned(positions);
    draft.max_sequence = positions;
    draft.tied = fields.flag("tie_word_embeddings", true)?;
    draft.norm = Norm::LayerNorm;
    draft.norm_epsilon = fields.epsilon("layer_norm_epsilon", 1e-5)?;
    draft.dropout = fields.dropout(&["resid_dropout"], 0.0)?;
    for local in local {
        let attention =
            Attention { window: local.then_some(window), ..plain(heads, heads, head_dim, false, true) };
        let feed_forward = dense(width, activation, true);
        let block = Block { mixer: Mixer::Attention(attention), feed_forward, norms: 2, parallel: false };
        draft.layer(if local { "local" } else { "global" }, block);
    }
    Ok(draft)
}

/// `attention_types`: pairs of a pattern and how often it comes. By default 12 times global, local.
fn neo_pattern(fields: &Fields) -> Read<Vec<bool>> {
    let Some((field, pairs)) = fields.list("attention_types")? else {
        return Ok([false, true].repeat(12));
    };
    let mut local = Vec::new();
    for pair in pairs {
        let wrong = |node: &Node| {
            fields.element(field, node, "expected [[\"global\" or \"local\", ...], number of repetitions]")
        };
        let Value::List(parts) = &pair.value else { return Err(wrong(pair)) };
        let [Node { value: Value::List(words), .. }, Node { value: Value::Whole(times @ 1..=4096), .. }] =
            parts.as_slice()
        else {
            return Err(wrong(pair));
        };
        let mut pattern = Vec::new();
        for word in words {
            match &word.value {
                Value::Text(text) if text == "global" => pattern.push(false),
                Value::Text(text) if text == "local" => pattern.push(true),
                _ => return Err(wrong(word)),
            }
        }
        if pattern.len() * *times as usize > 4096 {
            return Err(wrong(pair));
        }
        local.extend(pattern.repeat(*times as usize));
        if local.len() > 4096 {
            return Err(wrong(pair));
        }
    }
    Ok(local)
}

fn gpt_neox(fields: &Fields) -> Read<Draft> {
    let s = decoder::sizes(fields, &Sizes { vocabulary: 50_432, hidden: 6144, layers: 44, heads: 64 })?;
    let width = fields.core("intermediate_size", 24_576)?;
    let head_dim = derived_head_dim(fields, "num_attention_heads", s.hidden, s.heads)?;
    let activation = fields.activation("hidden_act", "gelu", false)?;
    let bias = fields.flag("attention_bias", true)?;
    let mut draft = Draft::new(s.hidden, s.vocabulary);
    draft.position = fields.rope(10_000.0, 0.25, head_dim)?;
    draft.max_sequence = fields.longest("max_position_embeddings", 2048)?;
    draft.tied = fields.flag("tie_word_embeddings", false)?;
    draft.norm = Norm::LayerNorm;
    draft.norm_epsilon = fields.epsilon("layer_norm_eps", 1e-5)?;
    draft.dropout = fields.dropout(&["hidden_dropout", "hidden_dropout_prob"], 0.0)?;
    let block = Block {
        mixer: Mixer::Attention(plain(s.heads, s.heads, head_dim, bias, bias)),
        feed_forward: dense(width, activation, true),
        norms: 2,
        parallel: fields.flag("use_parallel_residual", true)?,
    };
    uniform(&mut draft, s.layers, &block);
    Ok(draft)
}

fn falcon(fields: &Fields) -> Read<Draft> {
    let vocabulary = fields.core("vocab_size", 65_024)?;
    let hidden = fields.core(["hidden_size", "n_embed"], 4544)?;
    let layers = layer_count(fields, &["num_hidden_layers"], 32)?;
    let heads = fields.core("num_attention_heads", 71)?;
    let head_dim = derived_head_dim(fields, "num_attention_heads", hidden, heads)?;
    let new_architecture = fields.flag("new_decoder_architecture", false)?;
    let multi_query = fields.flag("multi_query", true)?;
    let stated = fields.optional("num_kv_heads")?.unwrap_or(heads);
    let kv_heads = match (new_architecture, multi_query) {
        (true, _) => stated,
        (false, true) => 1,
        (false, false) => heads,
    };
    if !heads.is_multiple_of(kv_heads) {
        let message = format!("{heads} query heads do not divide among {kv_heads} key/value heads");
        return Err(fields.wrong("num_kv_heads", message));
    }
    let parallel = fields.flag("parallel_attn", true)?;
    let side = fields.optional("num_ln_in_parallel_attn")?;
    if let Some(norms @ 3..) = side {
        return Err(fields.wrong("num_ln_in_parallel_attn", format!("expected 1 or 2, found {norms}")));
    }
    let side = side.unwrap_or(if new_architecture { 2 } else { 1 });
    let norms = if parallel { side as u32 } else { 2 };
    let bias = fields.flag("bias", false)?;
    let width = match fields.optional("ffn_hidden_size")? {
        Some(width) => width,
        None => fields.size("ff_factor", 4)? * hidden,
    };
    fields.harmless(&["ff_factor", "apply_residual_connection_post_layernorm"]);
    let activation = fields.activation("activation", "gelu", false)?;
    let mut draft = Draft::new(hidden, vocabulary);
    let rope = fields.rope(10_000.0, 1.0, head_dim)?;
    draft.position = if fields.flag("alibi", false)? { Position::Alibi } else { rope };
    draft.max_sequence = fields.longest("max_position_embeddings", 2048)?;
    draft.tied = fields.flag("tie_word_embeddings", true)?;
    draft.norm = Norm::LayerNorm;
    draft.norm_epsilon = fields.epsilon("layer_norm_epsilon", 1e-5)?;
    draft.dropout = fields.dropout(&["hidden_dropout"], 0.0)?;
    let block = Block {
        mixer: Mixer::Attention(plain(heads, kv_heads, head_dim, bias, bias)),
        feed_forward: dense(width, activation, bias),
        norms,
        parallel,
    };
    uniform(&mut draft, layers, &block);
    Ok(draft)
}

fn bloom(fields: &Fields) -> Read<Draft> {
    let vocabulary = fields.core("vocab_size", 250_880)?;
    let hidden = fields.core(["hidden_size", "n_embed"], 64)?;
    let layers = layer_count(fields, &["n_layer", "num_hidden_layers"], 2)?;
    let heads = fields.core(["n_head", "num_attention_heads"], 8)?;
    let head_dim = derived_head_dim(fields, "n_head", hidden, heads)?;
    if fields.optional("n_inner")?.is_some_and(|width| width != 4 * hidden) {
        return Err(fields.wrong("n_inner", format!("this family always has {}", 4 * hidden)));
    }
    fields.harmless(&[
        "apply_residual_connection_post_layernorm",
        "attention_softmax_in_fp32",
        "bias_dropout_fusion",
        "masked_softmax_fusion",
        "offset_alibi",
        "skip_bias_add",
        "skip_bias_add_qkv",
        "slow_but_exact",
    ]);
    let mut draft = Draft::new(hidden, vocabulary);
    draft.position = Position::Alibi;
    draft.max_sequence = fields.longest("seq_length", 2048)?;
    draft.tied = fields.flag("tie_word_embeddings", true)?;
    draft.norm = Norm::LayerNorm;
    draft.norm_epsilon = fields.epsilon("layer_norm_epsilon", 1e-5)?;
    draft.embedding_norm = true;
    draft.dropout = fields.dropout(&["hidden_dropout"], 0.0)?;
    let block = Block {
        mixer: Mixer::Attention(plain(heads, heads, head_dim, true, true)),
        feed_forward: dense(4 * hidden, Activation::Gelu, true),
        norms: 2,
        parallel: false,
    };
    uniform(&mut draft, layers, &block);
    Ok(draft)
}

fn opt(fields: &Fields) -> Read<Draft> {
    let s = decoder::sizes(fields, &Sizes { vocabulary: 50_272, hidden: 768, layers: 12, heads: 12 })?;
    let width = fields.core("ffn_dim", 3072)?;
    let head_dim = derived_head_dim(fields, "num_attention_heads", s.hidden, s.heads)?;
    let bias = fields.flag("enable_bias", true)?;
    let first = fields.flag("do_layer_norm_before", true)?;
    let removed = fields.flag("_remove_final_layer_norm", false)?;
    fields.harmless(&["activation_dropout", "layerdrop", "scale_embeddings"]);
    fields.on(&["learned_embeddings"])?;
    let mut draft = Draft::new(s.hidden, s.vocabulary);
    draft.embedding_width = fields.optional("word_embed_proj_dim")?.filter(|width| *width != s.hidden);
    draft.max_sequence = fields.size("max_position_embeddings", 2048)?;
    // Two rows are reserved: `OPTLearnedPositionalEmbedding`.
    draft.position = Position::Learned(draft.max_sequence + 2);
    draft.tied = fields.flag("tie_word_embeddings", true)?;
    let affine = fields.flag("layer_norm_elementwise_affine", true)?;
    draft.norm = if affine { Norm::LayerNorm } else { Norm::NoParameters };
    // The default of torch.nn.LayerNorm.
    draft.norm_epsilon = Some(1e-5);
    draft.final_norm = first && !removed;
    draft.dropout = fields.dropout(&["dropout"], 0.1)?;
    let block = Block {
        mixer: Mixer::Attention(plain(s.heads, s.heads, head_dim, bias, bias)),
        feed_forward: dense(width, fields.activation("activation_function", "relu", false)?, bias),
        norms: 2,
        parallel: false,
    };
    uniform(&mut draft, s.layers, &block);
    Ok(draft)
}

fn mpt(fields: &Fields) -> Read<Draft> {
    let vocabulary = fields.core("vocab_size", 50_368)?;
    let hidden = fields.core(["d_model", "hidden_size"], 2048)?;
    let layers = layer_count(fields, &["n_layers", "num_hidden_layers"], 24)?;
    let heads = fields.core(["n_heads", "num_attention_heads"], 16)?;
    let head_dim = derived_head_dim(fields, "n_heads", hidden, heads)?;
    fields.only("expansion_ratio", "4", |value| *value == Value::Whole(4))?;
    fields.on(&["no_bias"])?;
    fields.only(
        "norm_type",
        "a layer norm",
        |value| matches!(value, Value::Text(norm) if norm.ends_with("layernorm")),
    )?;
    fields.harmless(&[
        "embedding_fraction",
        "ffn_config",
        "fc_type",
        "init_config",
        "init_device",
        "learned_pos_emb",
        "logit_scale",
        "tokenizer_name",
        "use_pad_tok_in_ffn",
        "use_pad_tok_in_ffwd",
        "verbose",
    ]);
    if let Some(attention) = fields.object("attn_config")? {
        attention.only("attn_type", "multihead_attention", |value| {
            *value == Value::Text("multihead_attention".into())
        })?;
        attention.off(&["qk_ln", "qk_gn", "rope", "attn_uses_sequence_id", "prefix_lm"])?;
        attention.on(&["alibi"])?;
        attention.harmless(&["alibi_bias_max", "attn_impl", "attn_pdrop", "clip_qkv", "softmax_scale"]);
        attention.finish()?;
    }
    let mut draft = Draft::new(hidden, vocabulary);
    draft.position = Position::Alibi;
    draft.max_sequence = fields.longest("max_seq_len", 2048)?;
    draft.tied = fields.flag("tie_word_embeddings", true)?;
    draft.norm = Norm::LayerNormNoBias;
    draft.norm_epsilon = fields.epsilon("layer_norm_epsilon", 1e-5)?;
    draft.dropout = fields.dropout(&["resid_pdrop", "emb_pdrop"], 0.0)?;
    let block = Block {
        mixer: Mixer::Attention(plain(heads, heads, head_dim, false, false)),
        feed_forward: dense(4 * hidden, Activation::Gelu, false),
        norms: 2,
        parallel: false,
    };
    uniform(&mut draft, layers, &block);
    Ok(draft)
}

/// What the families with latent attention and experts differ in.
struct Latent {
    sizes: Sizes,
    width: u64,
    q_lora_rank: u64,
    qk_nope: u64,
    v: u64,
    positions: u64,
    epsilon: f64,
    experts: Experts,
}

fn deepseek_v2(fields: &Fields) -> Read<Draft> {
    fields.off(&["mlp_bias"])?;
    let draft = latent(
        fields,
        &Latent {
            sizes: Sizes { vocabulary: 102_400, hidden: 4096, layers: 32, heads: 32 },
            width: 11_008,
            q_lora_rank: 1536,
            qk_nope: 128,
            v: 128,
            positions: 2048,
            epsilon: 1e-6,
            experts: Experts {
                count: (EXPERTS.count.0, 64),
                top_k: (EXPERTS.top_k.0, 6),
                width: Some(("moe_intermediate_size", 1407)),
                shared: Shared::Count("n_shared_experts", 2),
                scaling_factor: Some(1.0),
                layers: Sparse::From(0),
                ..EXPERTS
            },
        },
    )?;
    fields.only("topk_method", "`greedy` or `group_limited_greedy`", |value| {
        matches!(value, Value::Text(method) if method == "greedy" || method == "group_limited_greedy")
    })?;
    Ok(draft)
}

/// DeepSeek-V3 and Kimi K2.
fn deepseek_v3(fields: &Fields) -> Read<Draft> {
    let draft = latent(
        fields,
        &Latent {
            sizes: Sizes { vocabulary: 129_280, hidden: 7168, layers: 61, heads: 128 },
            width: 18_432,
            q_lora_rank: 1536,
            qk_nope: 128,
            v: 128,
            positions: 4096,
            epsilon: 1e-6,
            experts: Experts {
                count: (EXPERTS.count.0, 256),
                width: Some(("moe_intermediate_size", 2048)),
                shared: Shared::Count("n_shared_experts", 1),
                score: RouterScore::Sigmoid,
                sums_to_one: Some(true),
                scaling_factor: Some(2.5),
                balancing_bias: true,
                layers: Sparse::From(3),
                ..EXPERTS
            },
        },
    )?;
    fields.only("topk_method", "`noaux_tc`", |value| *value == Value::Text("noaux_tc".into()))?;
    Ok(draft)
}

fn glm4_moe_lite(fields: &Fields) -> Read<Draft> {
    let draft = latent(
        fields,
        &Latent {
            sizes: Sizes { vocabulary: 154_880, hidden: 2048, layers: 47, heads: 20 },
            width: 10_240,
            q_lora_rank: 768,
            qk_nope: 192,
            v: 256,
            positions: 202_752,
            epsilon: 1e-5,
            experts: Experts {
                count: (EXPERTS.count.0, 64),
                top_k: (EXPERTS.top_k.0, 4),
                width: Some(("moe_intermediate_size", 1536)),
                shared: Shared::Count("n_shared_experts", 1),
                score: RouterScore::Sigmoid,
                sums_to_one: Some(true),
                scaling_factor: Some(1.8),
                balancing_bias: true,
                layers: Sparse::From(1),
                ..EXPERTS
            },
        },
    )?;
    fields.only("topk_method", "`noaux_tc`", |value| *value == Value::Text("noaux_tc".into()))?;
    Ok(draft)
}

fn latent(fields: &Fields, family: &Latent) -> Read<Draft> {
    let s = decoder::sizes(fields, &family.sizes)?;
    let width = fields.core("intermediate_size", family.width)?;
    let attention = LatentAttention {
        heads: s.heads,
        q_lora_rank: fields.optional_or("q_lora_rank", Some(family.q_lora_rank))?,
        kv_lora_rank: fields.size("kv_lora_rank", 512)?,
        qk_nope_dim: fields.size("qk_nope_head_dim", family.qk_nope)?,
        qk_rope_dim: fields.size("qk_rope_head_dim", 64)?,
        v_dim: fields.size("v_head_dim", family.v)?,
        bias: fields.flag("attention_bias", false)?,
    };
    // Queries, keys and values of all heads are expanded; these repeat other fields.
    fields.harmless(&["num_key_value_heads", "qk_head_dim", "head_dim", "rope_interleave", "topk_method"]);
    let activation = fields.activation("hidden_act", "silu", true)?;
    let experts = family.experts.read(fields, width, activation)?;
    let mut sparse = family.experts.layers.read(fields, s.layers)?;
    if let Some(words) = fields.words("mlp_layer_types", &["dense", "sparse"])? {
        if words.len() as u64 != s.layers {
            let message = format!("{} words for {} layers", words.len(), s.layers);
            return Err(fields.wrong("mlp_layer_types", message));
        }
        sparse = words.iter().map(|word| *word == "sparse").collect();
    }
    let mut draft = Draft::new(s.hidden, s.vocabulary);
    draft.position = fields.rope(10_000.0, 1.0, attention.qk_rope_dim)?;
    draft.norm_epsilon = fields.epsilon("rms_norm_eps", family.epsilon)?;
    draft.max_sequence = fields.longest("max_position_embeddings", family.positions)?;
    draft.tied = fields.flag("tie_word_embeddings", false)?;
    for sparse in sparse {
        let (name, feed_forward) = match &experts {
            Some(experts) if sparse => ("moe", FeedForward::Moe(experts.clone())),
            _ => ("dense", dense(width, activation, false)),
        };
        let mixer = Mixer::Latent(attention.clone());
        draft.layer(name, Block { mixer, feed_forward, norms: 2, parallel: false });
    }
    predict(fields, &mut draft)?;
    Ok(draft)
}

fn llama4(fields: &Fields) -> Read<Draft> {
    let s = decoder::sizes(fields, &Sizes { vocabulary: 202_048, hidden: 5120, layers: 48, heads: 40 })?;
    let width = fields.core("intermediate_size", 8192)?;
    let dense_width = fields.core("intermediate_size_mlp", 16_384)?;
    let kv_heads = fields.optional_or("num_key_value_heads", Some(8))?.unwrap_or(s.heads);
    if !s.heads.is_multiple_of(kv_heads) {
        let message = format!("{} query heads do not divide among {kv_heads} key/value heads", s.heads);
        return Err(fields.wrong("num_key_value_heads", message));
    }
    let head_dim = match fields.optional_or("head_dim", Some(128))? {
        Some(head_dim) => head_dim,
        None => derived_head_dim(fields, "num_attention_heads", s.hidden, s.heads)?,
    };
    let bias = fields.flag("attention_bias", false)?;
    let activation = fields.activation("hidden_act", "silu", true)?;
    let experts = fields.core(["num_local_experts", "num_experts"], 16)?;
    let top_k = fields.core("num_experts_per_tok", 1)?;
    if top_k > experts {
        let message = format!("{experts} experts cannot serve {top_k} per token");
        return Err(fields.wrong("num_experts_per_tok", message));
    }
    let step = fields.size("interleave_moe_layer_step", 1)?;
    let listed = fields.numbers("moe_layers", 1 << 16)?;
    let interval = fields.size("no_rope_layer_interval", 4)?;
    let rotated = fields.numbers("no_rope_layers", 2)?.filter(|list| !list.is_empty());
    if let Some(rotated) = &rotated
        && rotated.len() as u64 != s.layers
    {
        let message = format!("{} numbers for {} layers", rotated.len(), s.layers);
        return Err(fields.wrong("no_rope_layers", message));
    }
    let normalised = fields.flag("use_qk_norm", true)?;
    let chunk = fields.optional_or("attention_chunk_size", Some(8192))?;
    let kinds = kinds(fields, s.layers)?;
    fields.harmless(&["attn_scale", "attn_temperature_tuning", "floor_scale", "for_llm_compressor"]);
    let moe = FeedForward::Moe(Moe {
        experts,
        top_k,
        width,
        activation,
        expert_bias: false,
        shared_width: width,
        shared_gate: false,
        latent_width: None,
        router: Router { score: RouterScore::Sigmoid, ..Router::default() },
    });
    let mut draft = Draft::new(s.hidden, s.vocabulary);
    draft.norm_epsilon = fields.epsilon("rms_norm_eps", 1e-5)?;
    draft.position = fields.rope(500_000.0, 1.0, head_dim)?;
    draft.max_sequence = fields.longest("max_position_embeddings", 131_072)?;
    draft.tied = fields.flag("tie_word_embeddings", false)?;
    for layer in 0..s.layers {
        let rope = match &rotated {
            Some(rotated) => rotated[layer as usize] == 1,
            None => !(layer + 1).is_multiple_of(interval),
        };
        let chunked = match &kinds {
            Some(kinds) => kinds[layer as usize] == Kind::Chunked,
            None => rope,
        };
        let sparse = match &listed {
            Some(listed) => listed.contains(&layer),
            None => (layer + 1).is_multiple_of(step),
        };
        let attention = Attention {
            qk_norm: if normalised && rope { QkNorm::NoParameters } else { QkNorm::None },
            chunk: if chunked { chunk } else { None },
            ..plain(s.heads, kv_heads, head_dim, bias, bias)
        };
        let place = if chunked { "local" } else { "global" };
        let part = if sparse { "moe" } else { "dense" };
        let feed_forward = if sparse { moe.clone() } else { dense(dense_width, activation, false) };
        let block = Block { mixer: Mixer::Attention(attention), feed_forward, norms: 2, parallel: false };
        draft.layer(&format!("{place}-{part}"), block);
    }
    Ok(draft)
}

/// A layer of Nemotron-H is one of these under one norm.
fn nemotron_h(fields: &Fields) -> Read<Draft> {
    let vocabulary = fields.core("vocab_size", 131_072)?;
    let hidden = fields.core("hidden_size", 4096)?;
    let heads = fields.core("num_attention_heads", 32)?;
    let kv_heads = fields.optional_or("num_key_value_heads", Some(8))?.unwrap_or(heads);
    if !heads.is_multiple_of(kv_heads) {
        let message = format!("{heads} query heads do not divide among {kv_heads} key/value heads");
        return Err(fields.wrong("num_key_value_heads", message));
    }
    let head_dim = fields.size(["head_dim", "attention_head_dim"], 128)?;
    // Released code reads `attention_bias`, the library does not.
    fields.off(&["attention_bias"])?;
    fields.only("sliding_window", "null", |_| false)?;
    let activation = fields.activation("mlp_hidden_act", "relu2", false)?;
    let mlp_bias = fields.flag("mlp_bias", false)?;
    let mamba_heads = fields.size("mamba_num_heads", 128)?;
    let mamba = Mamba2 {
        inner: mamba_heads * fields.size("mamba_head_dim", 64)?,
        state: fields.size("ssm_state_size", 128)?,
        groups: fields.size(["n_groups", "mamba_n_groups"], 8)?,
        heads: mamba_heads,
        conv_kernel: fields.size(["conv_kernel", "mamba_d_conv"], 4)?,
        bias: fields.flag(["use_bias", "mamba_proj_bias"], false)?,
        conv_bias: fields.flag(["use_conv_bias", "mamba_conv_bias"], true)?,
    };
    let pattern = match fields.word("hybrid_override_pattern")? {
        Some(letters) => Some(hybrid_letters(fields, "hybrid_override_pattern", letters)?),
        None => None,
    };
    let listed = fields.words(["layers_block_type", "layer_types"], HYBRID_WORDS)?.map(hybrid_words);
    let Some(order) = listed.or(pattern) else {
        return Err(fields
            .wrong("hybrid_override_pattern", "the order of layers is missing")
            .note("it is a text such as \"M-M*\", or the list `layers_block_type`"));
    };
    let count = fields.optional("num_hidden_layers")?;
    if count.is_some_and(|count| count != order.len() as u64) || order.is_empty() || order.len() > 4096 {
        let message = format!("the order describes {} layers", order.len());
        return Err(fields.wrong("num_hidden_layers", message));
    }
    let routed = order.contains(&Part::Experts);
    let experts = fields.size(["n_routed_experts", "num_local_experts", "num_experts"], 8)?;
    let top_k = fields.size("num_experts_per_tok", 2)?;
    if top_k > experts {
        let message = format!("{experts} experts cannot serve {top_k} per token");
        return Err(fields.wrong("num_experts_per_tok", message));
    }
    let moe = Moe {
        experts,
        top_k,
        width: fields.size("moe_intermediate_size", 7688)?,
        activation,
        expert_bias: false,
        shared_width: fields.size("moe_shared_expert_intermediate_size", 7688)?,
        shared_gate: false,
        latent_width: fields.optional("moe_latent_size")?,
        router: Router {
            score: if fields.flag("norm_topk_prob", true)? {
                RouterScore::Sigmoid
            } else {
                RouterScore::SigmoidAlone
            },
            balancing_bias: true,
            groups: decoder::groups(fields, experts)?,
            scaling_factor: fields.routed_factor(1.0)?,
            ..Router::default()
        },
    };
    if routed {
        fields.only("n_shared_experts", "1", |value| *value == Value::Whole(1))?;
        if mlp_bias {
            return Err(fields.wrong("mlp_bias", "biases on experts of this family are not understood"));
        }
    }
    fields.harmless(MAMBA_HARMLESS);
    fields.harmless(&["n_shared_experts", "moe_shared_expert_overlap", "rope_theta", "rope_parameters"]);
    fields.harmless(&["partial_rotary_factor", "rescale_prenorm_residual", "num_logits_to_keep"]);
    // The feed-forward width may also be stated where no layer has it.
    let width = fields.size("intermediate_size", 21_504)?;
    let attention = plain(heads, kv_heads, head_dim, false, false);
    let block = |part: Part| {
        let (mixer, feed_forward) = match part {
            Part::Mamba => (Mixer::Mamba2(mamba.clone()), FeedForward::None),
            Part::Attention => (Mixer::Attention(attention.clone()), FeedForward::None),
            Part::Dense => (Mixer::None, dense(width, activation, mlp_bias)),
            Part::Experts => (Mixer::None, FeedForward::Moe(moe.clone())),
        };
        Block { mixer, feed_forward, norms: 1, parallel: false }
    };
    let mut draft = Draft::new(hidden, vocabulary);
    draft.norm_epsilon = fields.epsilon("layer_norm_epsilon", 1e-5)?;
    draft.position = Position::None;
    draft.max_sequence = fields.longest("max_position_embeddings", 4096)?;
    // Released code ties on request, the library does not.
    fields.off(&["tie_word_embeddings"])?;
    draft.dropout = fields.dropout(&["hidden_dropout"], 0.0)?;
    for &part in &order {
        draft.layer(part.name(), block(part));
    }
    let modules = fields.count("num_nextn_predict_layers", 0)?;
    let parts = match fields.word("mtp_hybrid_override_pattern")? {
        Some(letters) => hybrid_letters(fields, "mtp_hybrid_override_pattern", letters)?,
        None => match fields.words("mtp_layers_block_type", HYBRID_WORDS)? {
            Some(words) => hybrid_words(words),
            None => vec![Part::Attention, Part::Experts],
        },
    };
    if modules > 0 {
        match parts.as_slice() {
            _ if modules > 16 => {
                return Err(fields.wrong("num_nextn_predict_layers", "at most 16 are accepted"));
            }
            [part] => draft.predict(modules as u32, "prediction", block(*part)),
            [Part::Attention, Part::Experts | Part::Dense] => {
                let mut both = block(parts[1]);
                both.mixer = Mixer::Attention(attention.clone());
                both.norms = 2;
                draft.predict(modules as u32, "prediction", both);
            }
            _ => fields.note(
                "the multi-token-prediction modules are left out: their order of layers cannot be told"
                    .into(),
            ),
        }
    }
    Ok(draft)
}

/// A kind of layer of Nemotron-H.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Mamba,
    Attention,
    Dense,
    Experts,
}

impl Part {
    fn name(self) -> &'static str {
        match self {
            Self::Mamba => "mamba",
            Self::Attention => "attention",
            Self::Dense => "mlp",
            Self::Experts => "moe",
        }
    }
}

const HYBRID_WORDS: &[&str] = &["mamba", "linear_attention", "attention", "full_attention", "mlp", "moe"];

fn hybrid_words(words: Vec<&'static str>) -> Vec<Part> {
    let part = |word: &str| match word {
        "mamba" | "linear_attention" => Part::Mamba,
        "mlp" => Part::Dense,
        "moe" => Part::Experts,
        _ => Part::Attention,
    };
    words.into_iter().map(part).collect()
}

fn hybrid_letters(fields: &Fields, name: &'static str, letters: &str) -> Read<Vec<Part>> {
    let part = |letter: char| match letter {
        'M' => Ok(Part::Mamba),
        '*' => Ok(Part::Attention),
        '-' => Ok(Part::Dense),
        'E' => Ok(Part::Experts),
        other => Err(fields.wrong(name, format!("expected the letters M, *, - and E, found `{other}`"))),
    };
    letters.chars().map(part).collect()
}

/// Numerics of state-space layers.
const MAMBA_HARMLESS: &[&str] = &[
    "chunk_size",
    "expand",
    "mamba_chunk_size",
    "mamba_dt_init_floor",
    "mamba_dt_limit",
    "mamba_dt_max",
    "mamba_dt_min",
    "mamba_expand",
    "mamba_hidden_act",
    "mamba_ssm_cache_dtype",
    "residual_in_fp32",
    "time_step_floor",
    "time_step_limit",
    "time_step_max",
    "time_step_min",
    "time_step_rank",
    "use_mamba_kernels",
];

fn mamba2(fields: &Fields) -> Read<Draft> {
    let vocabulary = fields.core("vocab_size", 32_768)?;
    let hidden = fields.core("hidden_size", 4096)?;
    let layers = layer_count(fields, &["num_hidden_layers", "n_layer"], 64)?;
    let inner = fields.size("expand", 2)? * hidden;
    let heads = fields.core("num_heads", 128)?;
    let head_dim = fields.size("head_dim", 64)?;
    if heads * head_dim != inner {
        let message = format!("{heads} heads of {head_dim} do not make an inner width of {inner}");
        return Err(fields.wrong("num_heads", message));
    }
    let mamba = Mamba2 {
        inner,
        state: fields.size("state_size", 128)?,
        groups: fields.size("n_groups", 8)?,
        heads,
        conv_kernel: fields.size("conv_kernel", 4)?,
        bias: fields.flag("use_bias", false)?,
        conv_bias: fields.flag("use_conv_bias", true)?,
    };
    fields.on(&["rms_norm"])?;
    fields.harmless(MAMBA_HARMLESS);
    fields.harmless(&["hidden_act", "rescale_prenorm_residual", "norm_before_gate"]);
    let mut draft = Draft::new(hidden, vocabulary);
    draft.norm_epsilon = fields.epsilon("layer_norm_epsilon", 1e-5)?;
    draft.position = Position::None;
    draft.max_sequence = fields.longest("max_position_embeddings", 1 << 20)?;
    draft.tied = fields.flag("tie_word_embeddings", false)?;
    let block =
        Block { mixer: Mixer::Mamba2(mamba), feed_forward: FeedForward::None, norms: 1, parallel: false };
    for _ in 0..layers {
        draft.layer("mamba", block.clone());
    }
    Ok(draft)
}

/// Fields that Bamba and Granite 4 call alike.
fn mamba_fields(fields: &Fields, hidden: u64) -> Read<Mamba2> {
    let inner = fields.size("mamba_expand", 2)? * hidden;
    let heads = fields.size("mamba_n_heads", 128)?;
    fields.only("mamba_d_head", &format!("{inner} / {heads}"), |value| match value {
        Value::Text(text) => text == "auto" && inner.is_multiple_of(heads),
        Value::Whole(head_dim) => u64::try_from(*head_dim).is_ok_and(|d| d.checked_mul(heads) == Some(inner)),
        _ => false,
    })?;
    if !inner.is_multiple_of(heads) {
        let message = format!("{heads} heads do not divide an inner width of {inner}");
        return Err(fields.wrong("mamba_n_heads", message));
    }
    fields.harmless(MAMBA_HARMLESS);
    Ok(Mamba2 {
        inner,
        state: fields.size("mamba_d_state", 256)?,
        groups: fields.size("mamba_n_groups", 1)?,
        heads,
        conv_kernel: fields.size("mamba_d_conv", 4)?,
        bias: fields.flag("mamba_proj_bias", false)?,
        conv_bias: fields.flag("mamba_conv_bias", true)?,
    })
}

fn grouped_attention(fields: &Fields, s: &Sizes, default: Option<u64>) -> Read<Attention> {
    let kv_heads = fields.optional_or("num_key_value_heads", default)?.unwrap_or(s.heads);
    if !s.heads.is_multiple_of(kv_heads) {
        let message = format!("{} query heads do not divide among {kv_heads} key/value heads", s.heads);
        return Err(fields.wrong("num_key_value_heads", message));
    }
    let head_dim = match fields.optional("head_dim")? {
        Some(head_dim) => head_dim,
        None => derived_head_dim(fields, "num_attention_heads", s.hidden, s.heads)?,
    };
    let bias = fields.flag("attention_bias", false)?;
    Ok(plain(s.heads, kv_heads, head_dim, bias, bias))
}

fn bamba(fields: &Fields) -> Read<Draft> {
    let s = decoder::sizes(fields, &Sizes { vocabulary: 128_000, hidden: 4096, layers: 32, heads: 32 })?;
    let width = fields.core("intermediate_size", 14_336)?;
    let attention = grouped_attention(fields, &s, Some(8))?;
    let mamba = mamba_fields(fields, s.hidden)?;
    let full = fields.numbers("attn_layer_indices", 1 << 16)?.unwrap_or_default();
    let activation = fields.activation("hidden_act", "silu", true)?;
    let feed_forward = dense(width, activation, fields.flag("mlp_bias", false)?);
    fields.harmless(&["num_logits_to_keep", "z_loss_coefficient", "attn_rotary_emb"]);
    let mut draft = Draft::new(s.hidden, s.vocabulary);
    draft.norm_epsilon = fields.epsilon("rms_norm_eps", 1e-5)?;
    draft.position = fields.rope(10_000.0, 0.5, attention.head_dim)?;
    draft.max_sequence = fields.longest("max_position_embeddings", 262_144)?;
    draft.tied = fields.flag("tie_word_embeddings", false)?;
    for layer in 0..s.layers {
        let (name, mixer) = if full.contains(&layer) {
            ("attention", Mixer::Attention(attention.clone()))
        } else {
            ("mamba", Mixer::Mamba2(mamba.clone()))
        };
        draft.layer(name, Block { mixer, feed_forward: feed_forward.clone(), norms: 2, parallel: false });
    }
    Ok(draft)
}

fn granite_hybrid(fields: &Fields) -> Read<Draft> {
    let s = decoder::sizes(fields, &Sizes { vocabulary: 32_000, hidden: 4096, layers: 32, heads: 32 })?;
    let width = fields.core("intermediate_size", 11_008)?;
    let attention = grouped_attention(fields, &s, None)?;
    let mamba = mamba_fields(fields, s.hidden)?;
    let shared = fields.count("shared_intermediate_size", 1024)?;
    let activation = fields.activation("hidden_act", "silu", true)?;
    let experts = Experts {
        count: (&["num_local_experts", "num_experts"], 8),
        top_k: (&["num_experts_per_tok"], 2),
        width: None,
        shared: Shared::Width("shared_intermediate_size", 1024, false),
        score: RouterScore::Softmax,
        ..EXPERTS
    };
    let feed_forward = match experts.read(fields, width, activation)? {
        Some(moe) => FeedForward::Moe(moe),
        None if shared > 0 => dense(shared, activation, false),
        None => FeedForward::None,
    };
    let words = fields.words(["layer_types", "layers_block_type"], HYBRID_WORDS)?;
    let order = match words {
        Some(words) => hybrid_words(words),
        None => vec![Part::Mamba; s.layers as usize],
    };
    if order.len() as u64 != s.layers {
        let message = format!("{} words for {} layers", order.len(), s.layers);
        return Err(fields.wrong("layer_types", message));
    }
    fields.beside(MULTIPLIERS)?;
    let mut draft = Draft::new(s.hidden, s.vocabulary);
    draft.norm_epsilon = fields.epsilon("rms_norm_eps", 1e-6)?;
    let rope = fields.rope(10_000.0, 1.0, attention.head_dim)?;
    draft.position = match fields.word("position_embedding_type")? {
        Some("rope") => rope,
        _ => Position::None,
    };
    draft.max_sequence = fields.longest("max_position_embeddings", 2048)?;
    draft.tied = fields.flag("tie_word_embeddings", false)?;
    for part in order {
        let mixer = match part {
            Part::Mamba => Mixer::Mamba2(mamba.clone()),
            Part::Attention => Mixer::Attention(attention.clone()),
            Part::Dense | Part::Experts => {
                return Err(fields.wrong("layer_types", "expected `mamba` or `attention` layers"));
            }
        };
        let block = Block { mixer, feed_forward: feed_forward.clone(), norms: 2, parallel: false };
        draft.layer(part.name(), block);
    }
    Ok(draft)
}
