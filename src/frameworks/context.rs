//! What rules ask of a model, a job and a machine.

use super::hf::{self, HfModel};
use super::profile::Profile;
use crate::layers::{LayerKind, Layers};
use crate::spec::cluster::{Accelerator, Architecture, AttentionKernel, Cluster};
use crate::spec::job::{Job, Optimizer, Precision, Training};
use crate::spec::model::{
    FeedForward, LatentAttention, Mamba2, Mixer, Model, Norm, Position, PositionScaling, RouterGroups,
};

/// What rules ask of a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hardware {
    /// Silicon generation.
    pub architecture: Architecture,
    /// GPUs of a node.
    pub gpus_per_node: u32,
    /// GPUs that a fast fabric joins.
    pub domain: u32,
}

impl Hardware {
    /// Of a machine that is not known yet, for rules on number formats: what refuses nothing.
    pub const UNKNOWN: Self =
        Self { architecture: Architecture::Blackwell, gpus_per_node: 8, domain: u32::MAX };

    /// Of a cluster's GPUs.
    #[must_use]
    pub fn of(cluster: &Cluster, accelerator: &Accelerator) -> Self {
        Self {
            architecture: accelerator.architecture,
            gpus_per_node: cluster.gpus_per_node,
            domain: cluster.scale_up.domain,
        }
    }

    /// Whether NVLink joins its GPUs.
    #[must_use]
    pub fn has_nvlink(&self) -> bool {
        matches!(self.architecture, Architecture::Ampere | Architecture::Hopper | Architecture::Blackwell)
    }
}

/// Everything about a model, a job and a cluster that rules ask for, reduced to integers.
#[derive(Debug, Clone, PartialEq)]
pub struct Context {
    /// GPUs of the job.
    pub gpus: u32,
    /// Sequences per step.
    pub global_batch_size: u32,
    /// Tokens per sequence.
    pub sequence_length: u64,
    /// Number format.
    pub precision: Precision,
    /// Optimizer.
    pub optimizer: Optimizer,
    /// What is trained.
    pub training: Training,
    /// Experts take no more tokens than a capacity, and whether they are padded to it.
    pub expert_capacity: Option<Padded>,
    /// The machine.
    pub hardware: Hardware,
    /// Decoder layers.
    pub layers: u32,
    /// Multi-token-prediction modules.
    pub mtp_modules: u32,
    /// Some decoder layer is not attention with a feed-forward part behind it.
    pub hybrid: bool,
    /// Width of the residual stream.
    pub hidden: u64,
    /// Distinct attention shapes.
    pub attention: Vec<HeadShape>,
    /// Distinct latent-attention shapes.
    pub latent: Vec<LatentAttention>,
    /// Distinct Mamba-2 shapes.
    pub mamba: Vec<Mamba2>,
    /// Distinct widths of dense feed-forward parts.
    pub dense: Vec<u64>,
    /// Distinct mixtures of experts.
    pub moe: Vec<MoeShape>,
    /// Some attention layer looks through a window shorter than the sequence.
    pub windows: bool,
    /// Some attention layer has sink logits.
    pub sinks: bool,
    /// Attention runs in fused kernels, and scores are never in memory.
    pub fused_attention: bool,
    /// Some layer is dense although others have experts.
    pub dense_beside_moe: bool,
    /// Input embedding and output head share one matrix.
    pub tied_embeddings: bool,
    /// Hidden and attention dropout are applied.
    pub dropout: bool,
    /// Positions are a learned table.
    pub learned_positions: bool,
    /// Tokens of the longest sequence before YaRN stretches positions, where it does.
    pub yarn_length: Option<u64>,
    /// DeepSpeed's AutoEP has a preset for the experts.
    pub expert_preset: bool,
    /// DeepSpeed splits the Transformers class of the model by tensor parallelism, if it has one.
    pub tensor_splits: bool,
    /// DeepSpeed's Ulysses takes the attention of the Transformers class of the model, if it has one.
    pub sequence_splits: bool,
    /// All mixers are attention over everything before a token, which torch's `scaled_dot_product_attention` does in
    /// the Transformers class of the model, if it has one.
    pub plain_attention: bool,
    /// Transformers has a plan that splits all layers of the model's class by tensor parallelism, as far as is known.
    pub tensor_plan: bool,
}

/// Whether experts are padded to their capacity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Padded(pub bool);

/// Heads of one attention shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeadShape {
    /// Query heads.
    pub heads: u64,
    /// Key/value heads.
    pub kv_heads: u64,
    /// Size of a head.
    pub head_dim: u64,
}

/// Sizes of one mixture of experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MoeShape {
    /// Routed experts.
    pub experts: u64,
    /// Inner width of one.
    pub width: u64,
    /// Summed inner width of the shared experts.
    pub shared_width: u64,
    /// The experts' matrices have biases.
    pub bias: bool,
    /// Group-limited routing.
    pub groups: Option<RouterGroups>,
}

fn push_new<T: PartialEq>(list: &mut Vec<T>, item: T) {
    if !list.contains(&item) {
        list.push(item);
    }
}

impl Context {
    /// Collects the facts of a validated model, a job and a cluster.
    #[must_use]
    pub fn new(model: &Model, layers: &Layers, job: &Job, hardware: Hardware) -> Self {
        let mut context = Self {
            gpus: job.gpus,
            global_batch_size: job.global_batch_size,
            sequence_length: u64::from(job.sequence_length),
            precision: job.precision,
            optimizer: job.optimizer,
            training: job.training,
            expert_capacity: job.expert_capacity.map(|capacity| Padded(capacity.padded)),
            hardware,
            layers: layers.count(),
            mtp_modules: layers.mtp.map_or(0, |(_, modules)| modules),
            hybrid: !layers.order.iter().all(|&kind| layers.kinds[usize::from(kind)].block.is_whole()),
            hidden: model.hidden,
            attention: Vec::new(),
            latent: Vec::new(),
            mamba: Vec::new(),
            dense: Vec::new(),
            moe: Vec::new(),
            windows: false,
            sinks: false,
            fused_attention: true,
            dense_beside_moe: false,
            tied_embeddings: model.tied_embeddings,
            dropout: model.dropout,
            learned_positions: matches!(model.position, Position::Learned(_)),
            yarn_length: match model.position.scaling() {
                PositionScaling::Yarn(yarn) => Some(yarn.original_length),
                _ => None,
            },
            expert_preset: false,
            tensor_splits: true,
            sequence_splits: true,
            plain_attention: true,
            tensor_plan: true,
        };
        for kind in &layers.kinds {
            match &kind.block.mixer {
                Mixer::Attention(a) => {
                    let shape = HeadShape { heads: a.heads, kv_heads: a.kv_heads, head_dim: a.head_dim };
                    push_new(&mut context.attention, shape);
                    context.windows |= a.window.is_some_and(|w| w < u64::from(job.sequence_length));
                }
                Mixer::Latent(a) => push_new(&mut context.latent, a.clone()),
                Mixer::Mamba2(a) => push_new(&mut context.mamba, a.clone()),
                Mixer::None => {}
            }
            match &kind.block.feed_forward {
                FeedForward::Dense(d) => push_new(&mut context.dense, d.width),
                FeedForward::Moe(e) => {
                    let shape = MoeShape {
                        experts: e.experts,
                        width: e.width,
                        shared_width: e.shared_width,
                        bias: e.expert_bias,
                        groups: e.router.groups,
                    };
                    push_new(&mut context.moe, shape);
                }
                FeedForward::None => {}
            }
        }
        context.dense_beside_moe = !context.moe.is_empty() && !context.dense.is_empty();
        // Only of classes that take not everything.
        let special = context.has_experts()
            || context.learned_positions
            || model.norm == Norm::LayerNorm
            || matches!(model.position, Position::Alibi);
        let hf = special.then(|| HfModel::of(model, layers)).flatten();
        context.expert_preset = hf.as_ref().is_some_and(|hf| hf.expert_preset.is_some());
        context.sinks = layers.have_sinks();
        context.sequence_splits = hf::splits_sequences(model, layers, hf.as_ref());
        context.tensor_splits = hf::splits_tensors(layers, hf.as_ref());
        // Accelerate looks at the configuration alone: a window that no sequence reaches is one.
        let is_cut = |kind: &LayerKind| matches!(&kind.block.mixer, Mixer::Attention(a) if a.chunk.is_some() || a.window.is_some());
        let cut = context.sinks || layers.kinds.iter().any(is_cut) || !context.mamba.is_empty();
        context.plain_attention = !cut && hf::masks_drop(model, layers, hf.as_ref());
        context.tensor_plan = hf::has_tensor_plan(model, layers, hf.as_ref());
        context
    }

    /// The same for jobs of a profile.
    #[must_use]
    pub fn of_profile(mut self, profile: &Profile) -> Self {
        let kernel = profile.kernels.attention_kernel.get(self.hardware.architecture);
        self.fused_attention = kernel != AttentionKernel::Unfused;
        self
    }

    /// Whether the model has routed experts.
    #[must_use]
    pub fn has_experts(&self) -> bool {
        !self.moe.is_empty()
    }

    /// Whether some layers have shared experts.
    #[must_use]
    pub fn has_shared_experts(&self) -> bool {
        self.moe.iter().any(|moe| moe.shared_width > 0)
    }

    /// Whether its experts are padded to a capacity.
    #[must_use]
    pub fn pads_experts(&self) -> bool {
        self.has_experts() && self.expert_capacity == Some(Padded(true))
    }
}
