//! The decoder families: what `models/*/configuration_*.py` and `modeling_*.py` of
//! huggingface/transformers 4.57 and 5.23 say, as differences from Llama.

use super::decoder::Switch::{Always, Field, Never};
use super::decoder::{
    Decoder, EXPERTS, Experts, HeadDim, KvHeads, LLAMA, OutputBias, QkNorms, Shared, Sparse, Window,
};
use crate::spec::json::Value;
use crate::spec::model::{Norm, QkNorm, RouterScore};

/// `model_type` and how it is read.
pub(super) const DECODERS: &[(&str, Decoder)] = &[
    ("llama", LLAMA_FAMILY),
    ("mistral", MISTRAL),
    ("ministral", Decoder { positions: 32_768, ..MISTRAL }),
    (
        "ministral3",
        Decoder {
            epsilon: (Some("rms_norm_eps"), 1e-5),
            window: Window::Every(None),
            positions: 262_144,
            rope: (1e6, 1.0),
            ..MISTRAL
        },
    ),
    ("mixtral", MIXTRAL),
    ("qwen2", QWEN2),
    ("qwen2_moe", QWEN2_MOE),
    ("qwen3", QWEN3),
    ("qwen3_moe", QWEN3_MOE),
    // The language model of Qwen3-VL is Qwen3.
    ("qwen3_vl_text", QWEN3),
    ("qwen3_vl_moe_text", QWEN3_MOE),
    ("gemma", GEMMA),
    ("gemma2", GEMMA2),
    ("gemma3_text", GEMMA3),
    ("phi3", PHI3),
    ("phimoe", PHIMOE),
    ("phi", PHI),
    ("starcoder2", STARCODER2),
    ("stablelm", STABLELM),
    ("gpt_oss", GPT_OSS),
    ("glm", GLM),
    ("glm4", Decoder { norms: 4, ..GLM }),
    ("glm4_moe", GLM4_MOE),
    ("dots1", DOTS1),
    ("minimax_m2", MINIMAX_M2),
    ("nemotron", NEMOTRON),
    ("granite", GRANITE),
    ("granitemoe", GRANITE_MOE),
    ("granitemoeshared", GRANITE_MOE_SHARED),
    ("cohere", COHERE),
    ("cohere2", COHERE2),
    ("olmo", OLMO),
    ("olmo2", OLMO2),
    ("olmo3", OLMO3),
    ("olmoe", OLMOE),
    ("smollm3", SMOLLM3),
    ("exaone4", EXAONE4),
    ("seed_oss", SEED_OSS),
    ("arcee", ARCEE),
    ("ernie4_5", ERNIE),
    ("ernie4_5_moe", ERNIE_MOE),
];

/// SmolLM adds two words that repeat what is so anyway.
const LLAMA_FAMILY: Decoder = Decoder { harmless: &["is_llama_config", "rope_interleaved"], ..LLAMA };

const MISTRAL: Decoder = Decoder {
    width: 14_336,
    kv_heads: KvHeads::Default(8),
    qkv_bias: Never,
    mlp_bias: Never,
    positions: 131_072,
    window: Window::Every(Some(4096)),
    ..LLAMA
};

const MIXTRAL: Decoder = Decoder {
    epsilon: (Some("rms_norm_eps"), 1e-5),
    window: Window::Every(None),
    rope: (1e6, 1.0),
    experts: Some(Experts {
        count: (&["num_local_experts", "num_experts"], 8),
        top_k: (&["num_experts_per_tok"], 2),
        width: None,
        score: RouterScore::Softmax,
        ..EXPERTS
    }),
    ..MISTRAL
};

const QWEN2: Decoder = Decoder {
    vocabulary: 151_936,
    width: 22_016,
    kv_heads: KvHeads::Default(32),
    qkv_bias: Always,
    output_bias: OutputBias::Own(Never),
    mlp_bias: Never,
    positions: 32_768,
    window: Window::Qwen,
    harmless: &["use_mrope", "use_dynamic_ntk", "use_logn_attn"],
    ..LLAMA
};

const QWEN2_MOE: Decoder = Decoder {
    hidden: 2048,
    width: 5632,
    layers: 24,
    heads: 16,
    kv_heads: KvHeads::Default(16),
    qkv_bias: Field("qkv_bias", true),
    experts: Some(Experts {
        count: (EXPERTS.count.0, 60),
        top_k: (EXPERTS.top_k.0, 4),
        width: Some(("moe_intermediate_size", 1408)),
        shared: Shared::Width("shared_expert_intermediate_size", 5632, true),
        layers: Sparse::Steps,
        ..EXPERTS
    }),
    ..QWEN2
};

const QWEN3: Decoder = Decoder {
    head_dim: HeadDim::Default(128),
    qkv_bias: Field("attention_bias", false),
    output_bias: OutputBias::AsQkv,
    qk_norm: QkNorms::Always(QkNorm::PerHeadDim),
    ..QWEN2
};

const QWEN3_MOE: Decoder = Decoder {
    hidden: 2048,
    width: 6144,
    layers: 24,
    kv_heads: KvHeads::Default(4),
    head_dim: HeadDim::Derived,
    window: Window::QwenEvery,
    experts: Some(Experts { layers: Sparse::Steps, ..EXPERTS }),
    // Carried over from its predecessor by some released files.
    off: &["qkv_bias"],
    on: &["use_qk_norm"],
    zero: &["shared_expert_intermediate_size"],
    ..QWEN3
};

const GEMMA: Decoder = Decoder {
    vocabulary: 256_000,
    hidden: 3072,
    width: 24_576,
    layers: 28,
    heads: 16,
    kv_heads: KvHeads::Default(16),
    head_dim: HeadDim::Default(256),
    mlp_bias: Never,
    // The field `hidden_act` of released files says "gelu" where the tanh form is meant: same shape.
    activation: (&["hidden_activation"], "gelu_pytorch_tanh"),
    tied: true,
    positions: 8192,
    harmless: &["hidden_act"],
    off: &["use_bidirectional_attention"],
    ..LLAMA
};

const GEMMA2: Decoder = Decoder {
    hidden: 2304,
    width: 9216,
    layers: 26,
    heads: 8,
    kv_heads: KvHeads::Default(4),
    norms: 4,
    window: Window::Pattern(2, Some(4096)),
    harmless: &["hidden_act", "query_pre_attn_scalar", "sliding_window_size"],
    beside: &[("attn_logit_softcapping", Value::Whole(50)), ("final_logit_softcapping", Value::Whole(30))],
    ..GEMMA
};

const GEMMA3: Decoder = Decoder {
    vocabulary: 262_208,
    qk_norm: QkNorms::Always(QkNorm::PerHeadDim),
    positions: 131_072,
    rope: (1e6, 1.0),
    window: Window::Pattern(6, Some(4096)),
    harmless: &["hidden_act", "query_pre_attn_scalar", "rope_local_base_freq"],
    beside: &[("attn_logit_softcapping", Value::Null), ("final_logit_softcapping", Value::Null)],
    ..GEMMA2
};

const PHI3: Decoder = Decoder {
    epsilon: (Some("rms_norm_eps"), 1e-5),
    vocabulary: 32_064,
    hidden: 3072,
    width: 8192,
    qkv_bias: Never,
    mlp_bias: Never,
    positions: 4096,
    window: Window::Every(None),
    dropout: (&["resid_pdrop", "embd_pdrop"], 0.0),
    harmless: &["original_max_position_embeddings", "full_attn_mod", "interpolate_factor"],
    ..LLAMA
};

const PHIMOE: Decoder = Decoder {
    epsilon: (Some("rms_norm_eps"), 1e-5),
    vocabulary: 32_064,
    width: 6400,
    kv_heads: KvHeads::Default(8),
    head_dim: HeadDim::Forced,
    mlp_bias: Never,
    head_bias: Field("lm_head_bias", false),
    norm: Norm::LayerNorm,
    positions: 131_072,
    rope: (1e6, 1.0),
    window: Window::Every(None),
    dropout: (&["hidden_dropout"], 0.0),
    experts: Some(Experts {
        count: (&["num_local_experts", "num_experts"], 16),
        top_k: (&["num_experts_per_tok"], 2),
        width: None,
        ..EXPERTS
    }),
    harmless: &["input_jitter_noise", "original_max_position_embeddings"],
    ..LLAMA
};

const PHI: Decoder = Decoder {
    epsilon: (Some("layer_norm_eps"), 1e-5),
    vocabulary: 51_200,
    hidden: 2048,
    width: 8192,
    layers: 24,
    qkv_bias: Always,
    mlp_bias: Always,
    head_bias: Always,
    qk_norm: QkNorms::Field("qk_layernorm", QkNorm::PerHeadDimWithBias),
    activation: (&["hidden_act"], "gelu_new"),
    gated: false,
    norm: Norm::LayerNorm,
    norms: 1,
    parallel: true,
    rope: (10_000.0, 0.5),
    dropout: (&["resid_pdrop", "embd_pdrop"], 0.0),
    ..LLAMA
};

const STARCODER2: Decoder = Decoder {
    epsilon: (Some("norm_epsilon"), 1e-5),
    vocabulary: 49_152,
    hidden: 3072,
    width: 12_288,
    layers: 30,
    heads: 24,
    kv_heads: KvHeads::Default(2),
    qkv_bias: Field("use_bias", true),
    mlp_bias: Field("use_bias", true),
    activation: (&["hidden_act"], "gelu_pytorch_tanh"),
    gated: false,
    norm: Norm::LayerNorm,
    tied: true,
    positions: 4096,
    window: Window::Every(None),
    dropout: (&["residual_dropout", "embedding_dropout"], 0.0),
    harmless: &["mlp_type", "norm_type", "attention_softmax_in_fp32", "scale_attention_softmax_in_fp32"],
    beside: &[("scale_attn_weights", Value::Flag(true))],
    ..LLAMA
};

const STABLELM: Decoder = Decoder {
    epsilon: (Some("layer_norm_eps"), 1e-5),
    vocabulary: 50_304,
    hidden: 2560,
    width: 6912,
    kv_heads: KvHeads::Default(32),
    head_dim: HeadDim::Forced,
    qkv_bias: Field("use_qkv_bias", false),
    output_bias: OutputBias::Own(Never),
    mlp_bias: Never,
    qk_norm: QkNorms::Field("qk_layernorm", QkNorm::Full),
    norm: Norm::LayerNorm,
    parallel_if: Some("use_parallel_residual"),
    positions: 4096,
    rope: (10_000.0, 0.25),
    dropout: (&["hidden_dropout"], 0.0),
    ..LLAMA
};

const GPT_OSS: Decoder = Decoder {
    epsilon: (Some("rms_norm_eps"), 1e-5),
    vocabulary: 201_088,
    hidden: 2880,
    width: 2880,
    layers: 36,
    heads: 64,
    kv_heads: KvHeads::Default(8),
    head_dim: HeadDim::Default(64),
    qkv_bias: Field("attention_bias", true),
    mlp_bias: Never,
    positions: 131_072,
    rope: (150_000.0, 1.0),
    window: Window::Pattern(2, Some(128)),
    experts: Some(Experts {
        count: (&["num_local_experts", "num_experts"], 128),
        top_k: (&["num_experts_per_tok", "experts_per_token"], 4),
        width: None,
        score: RouterScore::Softmax,
        biases: true,
        ..EXPERTS
    }),
    sinks: true,
    harmless: &["swiglu_limit", "swiglu_alpha", "initial_context_length"],
    ..LLAMA
};

const GLM: Decoder = Decoder {
    epsilon: (Some("rms_norm_eps"), 1.5625e-7),
    vocabulary: 151_552,
    width: 13_696,
    layers: 40,
    kv_heads: KvHeads::Default(2),
    head_dim: HeadDim::Default(128),
    qkv_bias: Field("attention_bias", true),
    output_bias: OutputBias::Own(Never),
    mlp_bias: Never,
    positions: 131_072,
    rope: (10_000.0, 0.5),
    ..LLAMA
};

const GLM4_MOE: Decoder = Decoder {
    epsilon: (Some("rms_norm_eps"), 1e-5),
    width: 10_944,
    layers: 46,
    heads: 96,
    kv_heads: KvHeads::Default(8),
    head_dim: HeadDim::Derived,
    qkv_bias: Field("attention_bias", false),
    qk_norm: QkNorms::Field("use_qk_norm", QkNorm::PerHeadDim),
    experts: Some(Experts {
        width: Some(("moe_intermediate_size", 1408)),
        shared: Shared::Count("n_shared_experts", 1),
        score: RouterScore::Sigmoid,
        sums_to_one: Some(true),
        scaling_factor: Some(1.0),
        balancing_bias: true,
        layers: Sparse::From(1),
        ..EXPERTS
    }),
    predicts: true,
    harmless: &["topk_method"],
    ..GLM
};

const DOTS1: Decoder = Decoder {
    vocabulary: 152_064,
    hidden: 4608,
    width: 10_944,
    layers: 62,
    kv_heads: KvHeads::Default(32),
    mlp_bias: Never,
    qk_norm: QkNorms::Always(QkNorm::PerHeadDim),
    window: Window::From(4096, 62),
    experts: Some(Experts {
        width: Some(("moe_intermediate_size", 1408)),
        shared: Shared::Count("n_shared_experts", 0),
        score: RouterScore::Sigmoid,
        sums_to_one: Some(false),
        scaling_factor: Some(1.0),
        balancing_bias: true,
        layers: Sparse::From(0),
        ..EXPERTS
    }),
    harmless: &["topk_method"],
    ..LLAMA
};

const MINIMAX_M2: Decoder = Decoder {
    vocabulary: 200_064,
    hidden: 3072,
    width: 1536,
    layers: 62,
    heads: 48,
    kv_heads: KvHeads::Default(8),
    head_dim: HeadDim::Default(128),
    qkv_bias: Never,
    mlp_bias: Never,
    qk_norm: QkNorms::Always(QkNorm::Full),
    positions: 196_608,
    rope: (5e6, 1.0),
    experts: Some(Experts {
        count: (&["num_local_experts", "num_experts"], 256),
        width: None,
        shared: Shared::Width("shared_intermediate_size", 0, false),
        score: RouterScore::Sigmoid,
        balancing_bias: true,
        ..EXPERTS
    }),
    // Prediction modules are described, but not their shape; none is part of the model proper.
    harmless: &["use_mtp", "num_mtp_modules", "mtp_transformer_layers", "qk_norm_type", "attn_type_list"],
    on: &["use_qk_norm", "use_routing_bias"],
    ..LLAMA
};

const NEMOTRON: Decoder = Decoder {
    epsilon: (Some("norm_eps"), 1e-5),
    vocabulary: 256_000,
    hidden: 6144,
    width: 24_576,
    heads: 48,
    activation: (&["hidden_act"], "relu2"),
    gated: false,
    norm: Norm::LayerNorm,
    positions: 4096,
    rope: (10_000.0, 0.5),
    dropout: (&["hidden_dropout"], 0.0),
    ..LLAMA
};

/// Granite's multipliers. That of scores stands for the root of the heads' width: it has no usual value.
pub(super) const MULTIPLIERS: &[(&str, Value)] = &[
    ("embedding_multiplier", Value::Whole(1)),
    ("logits_scaling", Value::Whole(1)),
    ("residual_multiplier", Value::Whole(1)),
    ("attention_multiplier", Value::Null),
];

const GRANITE: Decoder = Decoder { beside: MULTIPLIERS, ..LLAMA };

const GRANITE_MOE: Decoder = Decoder {
    mlp_bias: Never,
    experts: Some(Experts {
        count: (&["num_local_experts", "num_experts"], 8),
        top_k: (&["num_experts_per_tok"], 2),
        width: None,
        score: RouterScore::Softmax,
        ..EXPERTS
    }),
    harmless: &["position_embedding_type"],
    ..GRANITE
};

const GRANITE_MOE_SHARED: Decoder = Decoder {
    experts: Some(Experts {
        count: (&["num_local_experts", "num_experts"], 8),
        top_k: (&["num_experts_per_tok"], 2),
        width: None,
        shared: Shared::Width("shared_intermediate_size", 0, false),
        score: RouterScore::Softmax,
        ..EXPERTS
    }),
    ..GRANITE_MOE
};

const COHERE: Decoder = Decoder {
    epsilon: (Some("layer_norm_eps"), 1e-5),
    vocabulary: 256_000,
    hidden: 8192,
    width: 22_528,
    layers: 40,
    heads: 64,
    mlp_bias: Never,
    qk_norm: QkNorms::Field("use_qk_norm", QkNorm::Full),
    norm: Norm::LayerNormNoBias,
    norms: 1,
    parallel: true,
    tied: true,
    positions: 8192,
    beside: &[("logit_scale", Value::Number(0.0625))],
    off: &["layer_norm_bias"],
    ..LLAMA
};

const COHERE2: Decoder = Decoder {
    head_dim: HeadDim::Forced,
    qk_norm: QkNorms::Never,
    window: Window::Pattern(4, Some(4096)),
    harmless: &[
        "order_of_interleaved_layers",
        "position_embedding_type",
        "use_parallel_embedding",
        "use_embedding_sharing",
    ],
    off: &["use_qk_norm", "layer_norm_bias"],
    on: &["use_gated_activation", "use_parallel_block"],
    ..COHERE
};

const OLMO: Decoder = Decoder {
    epsilon: (None, 1e-5),
    vocabulary: 50_304,
    mlp_bias: Never,
    norm: Norm::NoParameters,
    harmless: &["clip_qkv"],
    ..LLAMA
};

const OLMO2: Decoder = Decoder {
    epsilon: (Some("rms_norm_eps"), 1e-5),
    qk_norm: QkNorms::Always(QkNorm::Full),
    norm: Norm::RmsNorm,
    harmless: &[],
    ..OLMO
};

const OLMO3: Decoder =
    Decoder { epsilon: (Some("rms_norm_eps"), 1e-5), window: Window::Pattern(4, Some(4096)), ..OLMO2 };

const OLMOE: Decoder = Decoder {
    epsilon: (Some("rms_norm_eps"), 1e-5),
    hidden: 2048,
    width: 2048,
    layers: 16,
    heads: 16,
    kv_heads: KvHeads::AsHeads,
    // Its norms have the width of all heads only where that is the model's width.
    head_dim: HeadDim::Forced,
    positions: 4096,
    experts: Some(Experts { count: (EXPERTS.count.0, 64), width: None, ..EXPERTS }),
    harmless: &["clip_qkv"],
    ..OLMO2
};

const SMOLLM3: Decoder = Decoder {
    vocabulary: 128_256,
    hidden: 2048,
    layers: 36,
    heads: 16,
    kv_heads: KvHeads::Default(4),
    tied: true,
    positions: 32_768,
    rope: (2e6, 1.0),
    window: Window::SmolLm,
    ..LLAMA
};

const EXAONE4: Decoder = Decoder {
    epsilon: (Some("rms_norm_eps"), 1e-5),
    vocabulary: 102_400,
    width: 16_384,
    kv_heads: KvHeads::Default(32),
    qkv_bias: Never,
    mlp_bias: Never,
    qk_norm: QkNorms::Always(QkNorm::PerHeadDim),
    window: Window::Pattern(4, Some(4096)),
    ..LLAMA
};

const SEED_OSS: Decoder = Decoder {
    vocabulary: 155_136,
    width: 27_648,
    layers: 64,
    heads: 80,
    kv_heads: KvHeads::Default(8),
    head_dim: HeadDim::Default(128),
    qkv_bias: Field("attention_bias", true),
    output_bias: OutputBias::Own(Field("attention_out_bias", false)),
    positions: 524_288,
    dropout: (&["residual_dropout"], 0.1),
    ..LLAMA
};

const ARCEE: Decoder = Decoder {
    epsilon: (Some("rms_norm_eps"), 1e-5),
    hidden: 2560,
    width: 18_432,
    activation: (&["hidden_act"], "relu2"),
    gated: false,
    positions: 4096,
    ..LLAMA
};

const ERNIE: Decoder = Decoder {
    epsilon: (Some("rms_norm_eps"), 1e-5),
    vocabulary: 103_424,
    hidden: 1024,
    width: 3072,
    layers: 18,
    heads: 16,
    kv_heads: KvHeads::Default(2),
    head_dim: HeadDim::Default(128),
    qkv_bias: Field("use_bias", false),
    mlp_bias: Field("use_bias", false),
    tied: true,
    positions: 131_072,
    rope: (500_000.0, 1.0),
    dropout: (&["hidden_dropout_prob"], 0.0),
    ..LLAMA
};

const ERNIE_MOE: Decoder = Decoder {
    hidden: 2560,
    width: 12_288,
    layers: 28,
    heads: 20,
    kv_heads: KvHeads::Default(4),
    head_dim: HeadDim::Derived,
    qkv_bias: Never,
    mlp_bias: Never,
    experts: Some(Experts {
        count: (&["moe_num_experts", "num_experts"], 64),
        top_k: (&["moe_k", "num_experts_per_tok"], 6),
        width: Some(("moe_intermediate_size", 1536)),
        shared: Shared::Count("moe_num_shared_experts", 2),
        balancing_bias: true,
        layers: Sparse::Ernie,
        ..EXPERTS
    }),
    harmless: &["moe_norm_min", "moe_capacity", "moe_use_aux_free"],
    off: &["use_bias"],
    ..ERNIE
};
