//! What is to be trained: GPUs, batch, sequence, precision, optimizer and limits.

use serde::{Deserialize, Serialize};

use super::cluster::Format;
use crate::units::{Bytes, Tokens};

/// One training job.
#[derive(Debug, Clone, PartialEq)]
pub struct Job {
    /// GPUs in use.
    pub gpus: u32,
    /// Sequences per optimizer step.
    pub global_batch_size: u32,
    /// Tokens per sequence.
    pub sequence_length: u32,
    /// Number format of the linear layers.
    pub precision: Precision,
    /// Optimizer.
    pub optimizer: Optimizer,
    /// What is trained.
    pub training: Training,
    /// Limit on allocated bytes per GPU; none means the accelerator's default.
    pub memory_limit: Option<Bytes>,
    /// Tokens of the whole run, for days and dollars.
    pub tokens: Option<Tokens>,
    /// How experts are chosen in practice.
    pub routing: Routing,
}

/// Number format of a training run.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, clap::ValueEnum,
)]
#[serde(rename_all = "kebab-case")]
pub enum Precision {
    /// BF16 compute with FP32 main gradients and master weights.
    Bf16,
    /// FP16 compute with loss scaling.
    Fp16,
    /// FP8 with one scale per tensor.
    Fp8,
    /// FP8 with one scale per block, in software (Hopper).
    Fp8Blockwise,
    /// FP8 with one scale per 32 elements, in hardware (Blackwell).
    Mxfp8,
    /// FP4 with one scale per 16 elements (Blackwell).
    Nvfp4,
}

impl Precision {
    /// Format of the linear layers' matrix products.
    #[must_use]
    pub fn format(self) -> Format {
        match self {
            Self::Bf16 | Self::Fp16 => Format::Bf16,
            Self::Fp8 => Format::Fp8,
            Self::Fp8Blockwise => Format::Fp8Blockwise,
            Self::Mxfp8 => Format::Mxfp8,
            Self::Nvfp4 => Format::Nvfp4,
        }
    }
    /// The name used on the command line and in results.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Bf16 => "bf16",
            Self::Fp16 => "fp16",
            Self::Fp8 => "fp8",
            Self::Fp8Blockwise => "fp8-blockwise",
            Self::Mxfp8 => "mxfp8",
            Self::Nvfp4 => "nvfp4",
        }
    }
}

/// Optimizer; decides the bytes of state per parameter and the time of the update.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, clap::ValueEnum,
)]
#[serde(rename_all = "kebab-case")]
pub enum Optimizer {
    /// AdamW with FP32 moments.
    Adamw,
    /// AdamW with BF16 moments.
    AdamwBf16,
    /// AdamW with 8-bit moments.
    Adam8bit,
    /// Muon for hidden matrices, AdamW for the rest.
    Muon,
    /// Plain stochastic gradient descent with momentum.
    Sgd,
}

impl Optimizer {
    /// The name used on the command line and in results.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Adamw => "adamw",
            Self::AdamwBf16 => "adamw-bf16",
            Self::Adam8bit => "adam8bit",
            Self::Muon => "muon",
            Self::Sgd => "sgd",
        }
    }
}

/// What is trained.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Training {
    /// All weights.
    Full,
    /// Low-rank adapters of this rank on all linear layers; the base is frozen.
    Lora {
        /// Rank of the adapters.
        rank: u32,
    },
}

/// How experts are chosen in practice.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, clap::ValueEnum,
)]
#[serde(rename_all = "kebab-case")]
pub enum Routing {
    /// Every expert gets the same number of tokens.
    Balanced,
    /// As a real router chooses; the profile's imbalance factor applies.
    Natural,
}
