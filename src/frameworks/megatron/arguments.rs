//! A plan as Megatron-LM's environment and arguments, in commented groups.

use super::super::export::{ExportRequest, WrittenFor};
use super::super::{Broken, broken};
use super::fully_sharded;
use super::positions;
use super::shape::{Shape, pattern};
use crate::cost::schedule::interleave_group;
use crate::layers::Layers;
use crate::plan::{ContextComm, CudaGraphs, Dispatcher, Module, Place, Recompute};
use crate::spec::cluster::Architecture;
use crate::spec::job::{Optimizer, Precision};
use crate::spec::model::{Activation, Norm, Position, QkNorm, RouterScore};
use crate::stages::layout::Split;

/// What the arguments are written for.
const WRITTEN_FOR: &str = "Megatron-LM of August 2026 (core 0.20), Transformer Engine 2.19";

/// Environment and arguments of one run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Arguments {
    /// Variables that must be set on every rank.
    pub environment: Vec<(&'static str, String)>,
    /// Training script in the root of the checkout.
    pub entry: &'static str,
    /// Arguments in groups.
    pub sections: Vec<Section>,
    /// Whom they are written for.
    pub written_for: WrittenFor,
}

/// One commented group of arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Section {
    /// Name of the shell array.
    pub name: &'static str,
    /// What the group says.
    pub comment: String,
    /// Flags, each with its values.
    pub flags: Vec<(&'static str, Vec<String>)>,
}

impl Section {
    fn new(name: &'static str, comment: impl Into<String>) -> Self {
        Self { name, comment: comment.into(), flags: Vec::new() }
    }
    fn flag(&mut self, name: &'static str) {
        self.flags.push((name, Vec::new()));
    }
    fn flag_if(&mut self, on: bool, name: &'static str) {
        if on {
            self.flag(name);
        }
    }
    fn value(&mut self, name: &'static str, value: impl ToString) {
        self.flags.push((name, vec![value.to_string()]));
    }
    fn values(&mut self, name: &'static str, values: Vec<String>) {
        self.flags.push((name, values));
    }
}

impl Arguments {
    /// All arguments in order.
    pub fn words(&self) -> impl Iterator<Item = &str> {
        self.sections
            .iter()
            .flat_map(|s| &s.flags)
            .flat_map(|(name, values)| std::iter::once(*name).chain(values.iter().map(String::as_str)))
    }
}

/// Writes a plan as arguments.
///
/// # Errors
/// What the command line cannot say about the model.
pub fn arguments(request: &ExportRequest) -> Result<Arguments, Broken> {
    let layers = Layers::new(request.model);
    let shape = Shape::of(request.model, &layers, u64::from(request.job.sequence_length))?;
    let mut sections = vec![model(request, &shape)?];
    sections.extend(experts(request, &shape));
    sections.push(parallel(request, &shape));
    sections.push(batch(request));
    sections.push(data_parallel(request));
    sections.push(memory(request, &shape)?);
    sections.push(precision(request, &shape));
    sections.push(training(request));
    sections.retain(|s| !s.flags.is_empty());
    let entry = if shape.hybrid.is_some() { "pretrain_hybrid.py" } else { "pretrain_gpt.py" };
    let scaled = positions::write(request.model, &shape).is_some();
    let written_for = WrittenFor::new(WRITTEN_FOR, request.model, scaled).leaving(shape.added());
    Ok(Arguments { environment: environment(request), entry, sections, written_for })
}

fn model(request: &ExportRequest, shape: &Shape) -> Result<Section, Broken> {
    let model = request.model;
    let mut s = Section::new("MODEL", "Shape of the model");
    let scaled = positions::write(model, shape);
    match &shape.hybrid {
        Some(symbols) => {
            s.values(
                "--spec",
                vec!["megatron.core.models.hybrid.hybrid_layer_specs".into(), "hybrid_stack_spec".into()],
            );
            s.value("--hybrid-layer-pattern", hybrid_pattern(request, shape, symbols));
        }
        None => s.value("--num-layers", model.layer_count()),
    }
    s.value("--hidden-size", model.hidden);
    // Experts' width has a flag of its own; without dense layers this one is not used.
    let width = shape.dense.as_ref().map(|d| d.width).or(shape.moe.as_ref().map(|e| e.width));
    s.value("--ffn-hidden-size", width.unwrap_or(4 * model.hidden));
    s.value("--num-attention-heads", shape.heads());
    if let Some(a) = &shape.attention {
        s.value("--kv-channels", a.head_dim);
        if a.kv_heads != a.heads {
            s.flag("--group-query-attention");
            s.value("--num-query-groups", a.kv_heads);
        }
        match a.qk_norm {
            QkNorm::PerHeadDim => s.flag("--qk-layernorm"),
            QkNorm::NoParameters => s.flag("--qk-l2-norm"),
            _ => {}
        }
        if a.sinks {
            s.value("--softmax-type", "learnable");
        }
    }
    if let Some((window, layers)) = &shape.window {
        // Megatron counts the tokens before the current one.
        s.value("--window-size", format!("{},0", window - 1));
        if !layers.iter().all(|&on| on) {
            s.value("--window-attn-skip-freq", pattern(layers));
        }
    }
    if let Some(a) = &shape.latent {
        s.flag("--multi-latent-attention");
        if let Some(rank) = a.q_lora_rank {
            s.value("--q-lora-rank", rank);
        }
        s.value("--kv-lora-rank", a.kv_lora_rank);
        s.value("--qk-head-dim", a.qk_nope_dim);
        s.value("--qk-pos-emb-head-dim", a.qk_rope_dim);
        s.value("--v-head-dim", a.v_dim);
        s.value("--kv-channels", a.v_dim);
        // The norms of the compressed queries, keys and values.
        s.flag("--qk-layernorm");
        if request.plan.layout().context_parallel > 1 && scaled.iter().all(Vec::is_empty) {
            // Without this the tables are YaRN's (unscaled here, so the same numbers), which are cut
            // per rank on a device while the model is built.
            s.value("--rope-type", "rope");
            s.flag("--no-rope-fusion");
        }
    }
    if let Some(a) = &shape.mamba {
        s.value("--mamba-num-heads", a.heads);
        s.value("--mamba-head-dim", a.inner / a.heads);
        s.value("--mamba-num-groups", a.groups);
        s.value("--mamba-state-dim", a.state);
        if shape.attention.is_none() && shape.latent.is_none() {
            s.value("--kv-channels", a.inner / a.heads);
        }
    }
    match shape.activation {
        Activation::SwiGlu if shape.linear_bias && shape.moe.is_some() => {
            // Biased gated experts are gpt-oss': a sigmoid approximation with clamped inputs.
            s.flag("--quick-geglu");
            s.value("--glu-linear-offset", "1.0");
            s.value("--activation-func-clamp-value", "7.0");
        }
        Activation::SwiGlu => s.flag("--swiglu"),
        Activation::SquaredRelu => s.flag("--squared-relu"),
        _ => {}
    }
    s.flag_if(shape.linear_bias && shape.activation == Activation::SquaredRelu, "--no-bias-gelu-fusion");
    s.flag_if(shape.linear_bias && shape.moe.is_some(), "--no-bias-dropout-fusion");
    s.flag_if(!shape.linear_bias, "--disable-bias-linear");
    s.flag_if(shape.qkv_bias && !shape.linear_bias, "--add-qkv-bias");
    s.value("--normalization", if model.norm == Norm::LayerNorm { "LayerNorm" } else { "RMSNorm" });
    if let Some(epsilon) = model.norm_epsilon {
        s.value("--norm-epsilon", format!("{epsilon:?}"));
    }
    let mut longest = model.max_sequence.max(u64::from(request.job.sequence_length));
    match model.position {
        Position::Rotary => s.value("--position-embedding-type", "rope"),
        Position::RotaryWith { base, share, .. } => {
            let kind = if positions::is_yarn(model, shape) { "yarn" } else { "rope" };
            s.value("--position-embedding-type", kind);
            s.value("--rotary-base", base as u64);
            if share != 1.0 {
                s.value("--rotary-percent", share);
            }
        }
        Position::Learned(rows) => {
            longest = rows;
            s.value("--position-embedding-type", "learned_absolute");
        }
        _ => s.value("--position-embedding-type", "none"),
    }
    for (flag, values) in scaled.into_iter().flatten() {
        s.values(flag, values);
    }
    s.value("--seq-length", request.job.sequence_length);
    s.value("--max-position-embeddings", longest);
    s.value("--vocab-size", model.vocabulary);
    s.value("--make-vocab-size-divisible-by", model.vocabulary_divisor);
    s.flag_if(!model.tied_embeddings, "--untie-embeddings-and-output-weights");
    let dropout = if model.dropout { "0.1" } else { "0.0" };
    s.value("--hidden-dropout", dropout);
    s.value("--attention-dropout", dropout);
    if let Some(mtp) = &model.mtp {
        s.value("--mtp-num-layers", mtp.modules);
    }
    Ok(s)
}

/// `M-M*|M-M-/M-`: layers by symbol, stages by bars, multi-token prediction by slashes.
fn hybrid_pattern(request: &ExportRequest, shape: &Shape, symbols: &[String]) -> String {
    let mut stages = Vec::new();
    let mut rest = symbols.iter();
    for chunk in request.plan.chunks() {
        stages.push(rest.by_ref().take(chunk.layers as usize).map(String::as_str).collect::<String>());
    }
    let mut text = stages.join("|");
    if let (Some(module), Some(mtp)) = (&shape.hybrid_mtp, &request.model.mtp) {
        for _ in 0..mtp.modules {
            text.push('/');
            text.push_str(module);
        }
    }
    text
}

fn experts(request: &ExportRequest, shape: &Shape) -> Option<Section> {
    let e = shape.moe.as_ref()?;
    let layout = request.plan.layout();
    let mut s = Section::new("EXPERTS", "Mixture of experts");
    s.value("--num-experts", e.experts);
    s.value("--moe-router-topk", e.top_k);
    s.value("--moe-ffn-hidden-size", e.width);
    if shape.hybrid.is_none() && !shape.moe_pattern.iter().all(|&on| on) {
        s.value("--moe-layer-freq", pattern(&shape.moe_pattern));
    }
    if e.shared_width > 0 {
        s.value("--moe-shared-expert-intermediate-size", e.shared_width);
        s.flag_if(e.shared_gate, "--moe-shared-expert-gate");
    }
    if let Some(width) = e.latent_width {
        s.value("--moe-latent-size", width);
    }
    match e.router.score {
        RouterScore::Softmax => {}
        RouterScore::SoftmaxBeforeTopK => s.flag("--moe-router-pre-softmax"),
        RouterScore::Sigmoid | RouterScore::SigmoidAlone => s.value("--moe-router-score-function", "sigmoid"),
    }
    if e.router.scaling_factor != 1.0 {
        s.value("--moe-router-topk-scaling-factor", format!("{:?}", e.router.scaling_factor));
    }
    if let Some(groups) = e.router.groups {
        s.value("--moe-router-num-groups", groups.count);
        s.value("--moe-router-group-topk", groups.top_k);
    }
    if e.router.balancing_bias {
        s.flag("--moe-router-enable-expert-bias");
        s.value("--moe-router-load-balancing-type", "seq_aux_loss");
        s.value("--moe-aux-loss-coeff", "1e-4");
    } else {
        s.value("--moe-router-load-balancing-type", "aux_loss");
        s.value("--moe-aux-loss-coeff", "1e-3");
    }
    s.value("--moe-router-dtype", "fp32");
    if let Some(capacity) = request.job.expert_capacity {
        s.value("--moe-expert-capacity-factor", format!("{:?}", capacity.factor));
        s.flag_if(capacity.padded, "--moe-pad-expert-input-to-capacity");
    }
    s.flag("--moe-grouped-gemm");
    match layout.dispatcher {
        Some(Dispatcher::AllGather) => s.value("--moe-token-dispatcher-type", "allgather"),
        Some(Dispatcher::AllToAll) | None => s.value("--moe-token-dispatcher-type", "alltoall"),
        Some(flex @ (Dispatcher::DeepEp | Dispatcher::HybridEp)) => {
            s.value("--moe-token-dispatcher-type", "flex");
            let backend = if flex == Dispatcher::DeepEp { "deepep" } else { "hybridep" };
            s.value("--moe-flex-dispatcher-backend", backend);
        }
    }
    s.flag("--moe-permute-fusion");
    s.flag_if(layout.expert_overlap, "--overlap-moe-expert-parallel-comm");
    s.flag_if(layout.shared_overlap, "--moe-shared-expert-overlap");
    Some(s)
}

fn parallel(request: &ExportRequest, shape: &Shape) -> Section {
    let layout = request.plan.layout();
    let mut s = Section::new(
        "PARALLEL",
        format!(
            "Parallelism, and data parallelism over the {} replicas that it leaves",
            layout.data_parallel
        ),
    );
    s.value("--tensor-model-parallel-size", layout.tensor_parallel);
    s.flag_if(layout.sequence_parallel, "--sequence-parallel");
    s.flag_if(layout.tensor_overlap, "--tp-comm-overlap");
    s.value("--pipeline-model-parallel-size", layout.pipeline_parallel);
    if shape.hybrid.is_none() {
        split(request, &mut s);
    }
    if layout.virtual_stages > 1
        && let Some(group) = interleave_group(layout.pipeline_parallel, layout.gradient_accumulation_steps)
        && group != layout.pipeline_parallel
    {
        s.value("--microbatch-group-size-per-virtual-pipeline-stage", group);
    }
    s.value("--context-parallel-size", layout.context_parallel);
    if layout.context_parallel > 1 {
        // Handed through to Transformer Engine, which spells it so.
        let kind = match layout.context_comm {
            ContextComm::Ring => "p2p",
            ContextComm::AllGather => "all_gather",
            ContextComm::AllToAll => "a2a",
        };
        s.value("--cp-comm-type", kind);
    }
    if shape.moe.is_some() || layout.expert_parallel > 1 {
        s.value("--expert-model-parallel-size", layout.expert_parallel);
        s.value("--expert-tensor-parallel-size", layout.expert_tensor_parallel);
    }
    s
}

/// Layers per stage, in the simplest of Megatron's spellings.
fn split(request: &ExportRequest, s: &mut Section) {
    let layout = request.plan.layout();
    let chunks: Vec<u32> = request.plan.chunks().iter().map(|c| c.layers).collect();
    let virtual_stages = |s: &mut Section| {
        if layout.virtual_stages > 1 {
            s.value("--num-virtual-stages-per-pipeline-rank", layout.virtual_stages);
        }
    };
    match Split::of(&chunks, layout.pipeline_parallel, layout.virtual_stages, request.mtp()) {
        Split::Even => virtual_stages(s),
        Split::FirstLast { first, last } => {
            virtual_stages(s);
            if let Some(first) = first {
                s.value("--decoder-first-pipeline-num-layers", first);
            }
            if let Some(last) = last {
                s.value("--decoder-last-pipeline-num-layers", last);
            }
        }
        Split::Account { embedding, loss } => {
            virtual_stages(s);
            s.flag_if(embedding, "--account-for-embedding-in-pipeline-split");
            s.flag_if(loss, "--account-for-loss-in-pipeline-split");
        }
        Split::Layout(text) => s.value("--pipeline-model-parallel-layout", text),
    }
}

fn batch(request: &ExportRequest) -> Section {
    let layout = request.plan.layout();
    let mut s = Section::new(
        "BATCH",
        format!("Batch: {} micro-batches per replica and step", layout.gradient_accumulation_steps),
    );
    s.value("--micro-batch-size", layout.micro_batch_size);
    s.value("--global-batch-size", request.job.global_batch_size);
    s
}

fn data_parallel(request: &ExportRequest) -> Section {
    let layout = request.plan.layout();
    let ranks = layout.data_parallel * layout.context_parallel;
    let mut s = Section::new(
        "DATA_PARALLEL",
        match layout.zero_stage {
            _ if ranks == 1 => "Data parallelism: one replica".to_owned(),
            0 => "Data parallelism: every replica keeps all states".to_owned(),
            1 => format!("Data parallelism: optimizer states sharded over {} ranks", layout.shard_group),
            2 => {
                format!("Data parallelism: optimizer and gradients sharded over {} ranks", layout.shard_group)
            }
            _ => format!("Data parallelism: all states sharded over {} ranks", layout.shard_group),
        },
    );
    if fully_sharded(layout) {
        s.flag("--use-megatron-fsdp");
        let strategy = if layout.zero_stage == 2 { "optim_grads" } else { "optim_grads_params" };
        s.value("--data-parallel-sharding-strategy", strategy);
        s.value("--ckpt-format", "fsdp_dtensor");
        s.flag("--init-model-with-meta-device");
        s.flag("--calculate-per-token-loss");
        s.flag("--no-gradient-accumulation-fusion");
    }
    s.flag_if(layout.zero_stage >= 1, "--use-distributed-optimizer");
    if layout.zero_stage >= 1 && layout.shard_group != ranks {
        s.value("--num-distributed-optimizer-instances", ranks / layout.shard_group.max(1));
    }
    s.flag_if(layout.data_overlap, "--overlap-grad-reduce");
    s.flag_if(layout.data_overlap && layout.zero_stage >= 1, "--overlap-param-gather");
    s
}

fn memory(request: &ExportRequest, shape: &Shape) -> Result<Section, Broken> {
    let layout = request.plan.layout();
    let mut s = Section::new("MEMORY", "Recomputation, offload and CUDA graphs");
    let recompute =
        request.plan.chunks().iter().find(|c| c.layers > 0).map_or(Recompute::None, |c| c.recompute);
    if request.plan.chunks().iter().any(|c| c.layers > 0 && c.recompute != recompute) {
        return Err(broken("stages differ in what they recompute"));
    }
    let full = |s: &mut Section, method: &str, n: u32| {
        s.value("--recompute-granularity", "full");
        s.value("--recompute-method", method);
        s.value("--recompute-num-layers", n);
    };
    match recompute {
        Recompute::None => {}
        Recompute::Selective(modules) => {
            s.value("--recompute-granularity", "selective");
            s.values("--recompute-modules", modules.iter().map(|m| m.name().to_owned()).collect());
        }
        Recompute::FullUniform(n) => full(&mut s, "uniform", n),
        Recompute::FullBlock(n) => full(&mut s, "block", n),
    }
    if layout.offload.activations {
        s.flag("--fine-grained-activation-offloading");
        s.values("--offload-modules", offload_modules(recompute, shape));
    }
    if layout.offload.optimizer != Place::Gpu {
        s.flag("--optimizer-cpu-offload");
        s.value("--optimizer-offload-fraction", "1.0");
        s.flag("--overlap-cpu-optimizer-d2h-h2d");
    }
    match layout.cuda_graphs {
        CudaGraphs::None => {}
        CudaGraphs::Attention => {
            s.value("--cuda-graph-impl", "transformer_engine");
            s.value("--cuda-graph-modules", "attn");
        }
        CudaGraphs::AttentionRouter => {
            s.value("--cuda-graph-impl", "transformer_engine");
            s.values(
                "--cuda-graph-modules",
                ["attn", "moe_router", "moe_preprocess"].map(String::from).into(),
            );
        }
        CudaGraphs::FullIteration => {
            s.value("--cuda-graph-impl", "full_iteration");
            s.flag("--no-check-for-nan-in-loss-and-grad");
            if layout.offload.activations {
                s.value("--fine-grained-offloading-max-inflight-offloads", 2);
            }
        }
    }
    Ok(s)
}

/// What attention and experts keep and do not recompute. Norms that are part of the product behind them have no hook
/// of their own, and CUDA graphs switch that of others off: their inputs stay.
fn offload_modules(recompute: Recompute, shape: &Shape) -> Vec<String> {
    let dropped = |module| matches!(recompute, Recompute::Selective(set) if set.has(module));
    let mut modules = vec!["qkv_linear"];
    if !dropped(Module::CoreAttention) {
        modules.extend(["core_attn", "attn_proj"]);
    }
    if shape.moe.is_some() && !dropped(Module::Moe) {
        modules.push("expert_fc1");
        if !dropped(Module::MoeActivation) {
            modules.push("moe_act");
        }
    }
    modules.into_iter().map(String::from).collect()
}

fn precision(request: &ExportRequest, shape: &Shape) -> Section {
    let mut s = Section::new("PRECISION", "Number formats and optimizer");
    match request.job.precision {
        Precision::Fp16 => s.flag("--fp16"),
        _ => s.flag("--bf16"),
    }
    let fp8 = |s: &mut Section, format: &str, recipe: &str| {
        s.value("--fp8-format", format);
        s.value("--fp8-recipe", recipe);
    };
    match request.job.precision {
        Precision::Bf16 | Precision::Fp16 => {}
        Precision::Fp8 => fp8(&mut s, "hybrid", "tensorwise"),
        Precision::Fp8Blockwise => fp8(&mut s, "e4m3", "blockwise"),
        Precision::Mxfp8 => fp8(&mut s, "e4m3", "mxfp8"),
        Precision::Nvfp4 => s.value("--fp4-format", "e2m1"),
    }
    let low = !matches!(request.job.precision, Precision::Bf16 | Precision::Fp16);
    // Pads the tokens of every expert to the block of the format; the gathering dispatcher cannot.
    let gathers = request.plan.layout().dispatcher == Some(Dispatcher::AllGather);
    s.flag_if(low && shape.moe.is_some() && !gathers, "--moe-router-padding-for-quantization");
    match request.job.optimizer {
        Optimizer::Muon => s.value("--optimizer", "muon"),
        Optimizer::Sgd => s.value("--optimizer", "sgd"),
        Optimizer::Adamw | Optimizer::AdamwBf16 | Optimizer::Adam8bit => s.value("--optimizer", "adam"),
    }
    let moments = match request.job.optimizer {
        Optimizer::AdamwBf16 => Some("bf16"),
        Optimizer::Adam8bit => Some("fp8"),
        _ => None,
    };
    let offloaded = request.plan.layout().offload.optimizer != Place::Gpu;
    s.flag_if(moments.is_some() || offloaded, "--use-precision-aware-optimizer");
    if let Some(format) = moments {
        s.value("--exp-avg-dtype", format);
        s.value("--exp-avg-sq-dtype", format);
    }
    s
}

fn training(request: &ExportRequest) -> Section {
    let mut s = Section::new("TRAINING", "Schedule of the run; change freely");
    s.value("--train-iters", request.steps());
    s.value("--lr", "3e-4");
    s.value("--min-lr", "3e-5");
    s.value("--lr-decay-style", "cosine");
    s.value("--weight-decay", "0.1");
    s.value("--clip-grad", "1.0");
    s.value("--adam-beta1", "0.9");
    s.value("--adam-beta2", "0.95");
    s.flag("--cross-entropy-loss-fusion");
    s.value("--cross-entropy-fusion-impl", "native");
    s.value("--eval-interval", 1000);
    s.value("--eval-iters", 10);
    s.value("--log-interval", 1);
    s.flag("--log-throughput");
    s.value("--distributed-timeout-minutes", 60);
    s
}

/// Where the ranks of experts lie, which HybridEP does not find out surely by itself
/// (Megatron-Bridge:scripts/performance/utils/utils.py, `apply_target_topology_environment`).
fn topology(request: &ExportRequest) -> Option<[(&'static str, String); 3]> {
    let (layout, cluster) = (request.plan.layout(), request.cluster);
    let ranks = layout.expert_parallel * layout.expert_tensor_parallel;
    let domain = cluster.scale_up.domain;
    let inside = ranks.min(cluster.block_of(request.job.gpus).unwrap_or(domain));
    // Groups that lie across domains in unequal parts have no such number.
    let even = ranks % inside == 0 && layout.dispatcher == Some(Dispatcher::HybridEp);
    (even && ranks > 1).then(|| {
        [
            ("NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN", inside.to_string()),
            ("NVLINK_DOMAIN_SIZE", domain.to_string()),
            ("USE_MNNVL", u32::from(domain > cluster.gpus_per_node).to_string()),
        ]
    })
}

fn environment(request: &ExportRequest) -> Vec<(&'static str, String)> {
    let layout = request.plan.layout();
    let mut variables = Vec::new();
    let blackwell = request.accelerator.architecture == Architecture::Blackwell;
    // One queue keeps kernels in the order of their launch, which tensor and context parallelism rely
    // on before Blackwell; sharded weights and overlapped experts need several queues.
    let connections = if fully_sharded(layout) || layout.expert_overlap {
        Some("32")
    } else if !blackwell {
        Some("1")
    } else {
        None
    };
    if let Some(connections) = connections {
        variables.push(("CUDA_DEVICE_MAX_CONNECTIONS", connections.to_owned()));
    }
    variables.push(("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True".to_owned()));
    if matches!(layout.cuda_graphs, CudaGraphs::Attention | CudaGraphs::AttentionRouter) {
        variables.push(("NCCL_GRAPH_REGISTER", "0".to_owned()));
    }
    if layout.offload.activations {
        variables.push(("NVTE_CPU_OFFLOAD_V1", "1".to_owned()));
    }
    variables.extend(topology(request).into_iter().flatten());
    variables
}
