//! Bytes: training state per parameter, low-precision formats, and what lies between the bytes of
//! tensors and the bytes a device shows.

use crate::cost::StateClass;
use crate::frameworks::profile::{Profile, States};
use crate::spec::cluster::Architecture;
use crate::spec::job::{Optimizer, Precision};
use crate::units::Bytes;

/// What a low-precision recipe costs per element.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LowPrecision {
    /// Bytes of a product's operand, of a saved linear input, and of a tensor-parallel gather.
    pub operand_bytes: f64,
    /// Traffic of quantising one element.
    pub quantise_bytes: f64,
    /// Bytes of the weight copies held for products.
    pub weight_bytes: f64,
    /// Bytes of a weight in the gather after the update, where low-precision weights are primary.
    pub gather_bytes: f64,
}

impl LowPrecision {
    /// The recipe of a precision on a generation; none for 16-bit formats.
    ///
    /// Tensor-wise FP8 is taken with current scaling (one more pass for the maximum). Hopper needs a
    /// transposed copy, block-scaled formats a row-wise and a column-wise one. Sources:
    /// `TransformerEngine:docs/features/low_precision_training`, `Megatron-Bridge:docs/performance-guide.md`.
    #[must_use]
    pub fn of(precision: Precision, architecture: Architecture) -> Option<Self> {
        let hopper = matches!(architecture, Architecture::Hopper | Architecture::Ada | Architecture::Ampere);
        let recipe = |operand, quantise, weight, gather| {
            Some(Self {
                operand_bytes: operand,
                quantise_bytes: quantise,
                weight_bytes: weight,
                gather_bytes: gather,
            })
        };
        match precision {
            Precision::Bf16 | Precision::Fp16 => None,
            Precision::Fp8 if hopper => recipe(1.0, 6.0, 2.0, 1.0),
            Precision::Fp8 => recipe(1.0, 5.0, 1.0, 1.0),
            Precision::Fp8Blockwise => recipe(1.03, 4.1, 2.06, 2.0),
            Precision::Mxfp8 => recipe(1.03, 4.1, 2.06, 2.0),
            Precision::Nvfp4 => recipe(0.56, 7.1, 1.13, 0.5),
        }
    }
}

/// Bytes of weights, gradients and owned copies of a profile's recipe, moments not counted.
#[must_use]
pub fn states(profile: &Profile, precision: Precision) -> States {
    match precision {
        Precision::Fp16 => profile.memory.fp16,
        _ => profile.memory.bf16,
    }
}

/// Bytes of an optimizer's moments per parameter.
#[must_use]
pub fn moment_bytes(optimizer: Optimizer, class: StateClass) -> f64 {
    match optimizer_of(optimizer, class) {
        Optimizer::Adamw => 8.0,
        Optimizer::AdamwBf16 => 4.0,
        // Two 8-bit moments and a scale per block of 256 values each.
        Optimizer::Adam8bit => 2.0 + 2.0 * 4.0 / 256.0,
        Optimizer::Muon | Optimizer::Sgd => 4.0,
    }
}

/// Memory traffic of an update per owned parameter: master and moments read and written, the gradient
/// read twice (norm and step), the BF16 weight written.
#[must_use]
pub fn update_bytes(optimizer: Optimizer, class: StateClass) -> f64 {
    let master_and_gradient = 8.0 + 8.0 + 2.0;
    master_and_gradient + 2.0 * moment_bytes(optimizer, class)
}

/// ZeRO bytes per rank for `parameters`, sharded over `ranks`, at a stage, with the given bytes per
/// parameter of weights, gradients and optimizer state.
#[must_use]
pub fn zero_bytes(
    parameters: f64,
    stage: u8,
    ranks: u64,
    weights: f64,
    gradients: f64,
    optimizer: f64,
) -> f64 {
    let d = ranks.max(1) as f64;
    let share = |from: u8| if stage >= from { d } else { 1.0 };
    parameters * (weights / share(3) + gradients / share(2) + optimizer / share(1))
}

/// Activation bytes of one plain GELU layer (Korthikanti et al. 2022): `s b h (10 + 24/t)`, all of it
/// over `t` with sequence parallelism, and `5 a s / h` more per token where scores are in memory.
#[must_use]
pub fn plain_layer_activations(
    sequence: u64,
    micro_batch: u64,
    hidden: u64,
    heads: u64,
    tensor_parallel: u64,
    sequence_parallel: bool,
    scores_kept: bool,
) -> f64 {
    let (s, b, h, t) = (sequence as f64, micro_batch as f64, hidden as f64, tensor_parallel as f64);
    let linear = if sequence_parallel { 34.0 / t } else { 10.0 + 24.0 / t };
    let scores = if scores_kept { 5.0 * heads as f64 * s / (h * t) } else { 0.0 };
    s * b * h * (linear + scores)
}

/// What the allocator and the device hold beyond allocated tensors.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Reserve {
    /// Reserved over allocated bytes.
    pub factor: f64,
    /// Context, communicators and workspaces.
    pub fixed: Bytes,
}

/// Fragmentation that remains when the allocator has returned its cached blocks.
const LEAST_FRAGMENTATION: f64 = 1.02;

impl Reserve {
    /// Bytes that the allocator reserves.
    #[must_use]
    pub fn reserved(&self, allocated: Bytes) -> Bytes {
        allocated.scale(self.factor)
    }
    /// Bytes that `nvidia-smi` shows.
    #[must_use]
    pub fn device(&self, allocated: Bytes) -> Bytes {
        self.reserved(allocated) + self.fixed
    }
    /// Allocated bytes that a device with this much visible memory can hold.
    #[must_use]
    pub fn device_limit(&self, visible: Bytes) -> Bytes {
        visible.saturating_sub(self.fixed).scale(1.0 / LEAST_FRAGMENTATION)
    }
}

/// Optimizers that a class of parameters does not use: Muon updates matrices of layers only.
#[must_use]
pub fn optimizer_of(optimizer: Optimizer, class: StateClass) -> Optimizer {
    match (optimizer, class) {
        (Optimizer::Muon, StateClass::Ends | StateClass::Frozen) => Optimizer::Adamw,
        (other, _) => other,
    }
}
