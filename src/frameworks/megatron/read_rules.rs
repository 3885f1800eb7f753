//! Rules of Megatron-LM without which the model, the degrees or the placement of layers of a launch cannot be made out: they
//! are found broken while it is read, before there is a plan to ask [`super::flag_rules`] and the rules of plans about.

use super::super::shell::ImportError;
use super::flags::Flags;

const ARGUMENTS: &str = "training/arguments.py validate_args";
const CONFIG: &str = "core/transformer/transformer_config.py __post_init__";
const STATE: &str = "core/parallel_state.py initialize_model_parallel";
const LAYOUT: &str = "core/transformer/pipeline_parallel_layer_layout.py";

macro_rules! rules {
    ($($(#[$doc:meta])* $rule:ident, $name:literal, $source:expr;)+) => {
        /// One rule that is asked while a launch is read.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum ReadRule {
            $($(#[$doc])* $rule,)+
        }

        impl ReadRule {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$rule),+];

            /// Short name, unique.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Self::$rule => $name),+ }
            }

            /// File (and symbol) of Megatron-LM, below `megatron/`, that enforces it.
            #[must_use]
            pub fn source(self) -> &'static str {
                match self { $(Self::$rule => $source),+ }
            }
        }
    };
}

rules! {
    /// Ranks divide by TP x PP x CP.
    Ranks, "ranks", STATE;
    /// The batch is a multiple of micro-batch x replicas.
    Batch, "batch", "core/num_microbatches_calculator.py ConstantNumMicroBatchesCalculator";
    /// Positions reach as far as the sequences.
    Positions, "positions", ARGUMENTS;
    /// At most one of the gated activations and the squared one.
    Activations, "activations", "training/arguments.py core_transformer_config_from_args";
    /// The hidden size divides among heads, unless their size is said.
    HeadSize, "head-size", ARGUMENTS;
    /// Latent attention has no groups.
    LatentGroups, "latent-groups", ARGUMENTS;
    /// Several predicted tokens need rotary positions or none.
    PredictedTokens, "predicted-tokens", ARGUMENTS;
    /// YaRN of latent attention is no other's.
    RopeType, "rope-type", "core/transformer/transformer_config.py MLATransformerConfig";
    /// One half precision.
    Halves, "one-half-precision", ARGUMENTS;
    /// FP8 or FP4.
    LowPrecisions, "one-low-precision", CONFIG;
    /// Expert-parallel ranks need experts.
    Experts, "experts", ARGUMENTS;
    /// Groups of experts divide them, and no more are chosen than there are.
    RouterGroups, "router-groups", CONFIG;
    /// A bias that balances needs scores of single experts.
    RouterBias, "router-bias", CONFIG;
    /// One expert of a softmax over the chosen would have the weight one.
    RouterTopOne, "router-top-one", CONFIG;
    /// No more experts are chosen than there are.
    RouterTop, "router-top", "core/transformer/moe/moe_utils.py topk_routing_with_score_function";
    /// Optimizer instances divide the replicas.
    Instances, "optimizer-instances", STATE;
    /// Weights are gathered beside a pass only where gradients are reduced beside one and the optimizer is sharded.
    Gathers, "overlapped-gathers", ARGUMENTS;
    /// Overlap of tensor-parallel exchange needs sequence parallelism.
    TensorOverlap, "tensor-overlap", ARGUMENTS;
    /// Virtual stages are said in one way.
    VirtualStages, "virtual-stages-once", ARGUMENTS;
    /// Virtual stages need stages.
    VirtualNeedsStages, "virtual-needs-stages", ARGUMENTS;
    /// Counts of the first and last stage exclude every other placement.
    Ends, "ends-alone", CONFIG;
    /// Layers divide among stages and their chunks, those at the ends as said.
    Layers, "layers", "core/transformer/transformer_block.py get_num_layers_to_build; training/arguments.py validate_args";
    /// A layout string has all layers, in their order, on a multiple of the stages.
    LayoutString, "layout-string", LAYOUT;
    /// Full recomputation has a method and a number of layers.
    FullRecomputation, "full-recomputation", CONFIG;
    /// Selective recomputation has neither.
    SelectiveRecomputation, "selective-recomputation", CONFIG;
    /// A schedule of batches begins at none and grows.
    BatchSchedule, "batch-schedule", "core/num_microbatches_calculator.py _validate_schedule";
    /// Two names of one flag exclude each other.
    OneName, "one-name", ARGUMENTS;
    /// No tokenizer says no vocabulary.
    Vocabulary, "vocabulary", "training/arguments.py validate_args; core/tokenizers";
    /// A flag that is there to be refused.
    Withdrawn, "withdrawn", ARGUMENTS;
}

impl ReadRule {
    /// That a launch of Megatron-LM breaks the rule.
    pub(super) fn broken(self, line: usize, text: impl std::fmt::Display) -> ImportError {
        ImportError::new(line, format!("{text} ({})", self.source()))
    }

    /// The same of a launch that may be one of Megatron-DeepSpeed, which has the rule in a file of its own.
    pub(super) fn broken_by(self, f: &Flags, line: usize, text: impl std::fmt::Display) -> ImportError {
        if f.is_fork() { ImportError::new(line, text.to_string()) } else { self.broken(line, text) }
    }
}
