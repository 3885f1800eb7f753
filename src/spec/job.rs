//! What is to be trained: GPUs, batch, sequence, precision, optimizer and limits.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::cluster::{Format, LEAST_MEMORY};
use super::model::Fault;
use crate::units::{Bytes, Tokens};

/// One training job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
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
    /// Documents packed into the sequences; none means that each sequence is one document.
    #[serde(default)]
    pub packed: Option<PackedLengths>,
    /// Most tokens that an expert takes; none means that experts take all that are routed to them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expert_capacity: Option<ExpertCapacity>,
}

impl Job {
    /// Checks ranges; whether a plan can divide the job is the plan's law.
    ///
    /// # Errors
    /// The first [`Fault`] found.
    pub fn validate(&self) -> Result<(), Fault> {
        let fault = |field: &str, message: String| {
            Err(Fault { field: field.into(), within: Some("job".into()), message })
        };
        for (field, value, largest) in [
            ("gpus", self.gpus, LARGEST_JOB),
            ("global_batch_size", self.global_batch_size, LARGEST_JOB),
            ("sequence_length", self.sequence_length, LARGEST_SEQUENCE),
        ] {
            if !(1..=largest).contains(&value) {
                return fault(field, format!("expected 1 to {largest}, found {value}"));
            }
        }
        if let Some(message) = self.memory_limit.and_then(too_little) {
            return fault("memory_limit", message);
        }
        if let Some(Err(message)) = self.packed.as_ref().map(PackedLengths::validate) {
            return fault("packed", message);
        }
        if let Some(ExpertCapacity { factor, .. }) = self.expert_capacity
            && !(LEAST_CAPACITY..=MOST_CAPACITY).contains(&factor)
        {
            let message =
                format!("expected {LEAST_CAPACITY} to {MOST_CAPACITY} equal shares, found {factor}");
            return fault("expert_capacity", message);
        }
        match self.training {
            Training::Lora { rank } if !(1..=65_536).contains(&rank) => {
                fault("training", format!("expected adapters of rank 1 to 65536, found {rank}"))
            }
            _ => Ok(()),
        }
    }
}

/// Most GPUs and most sequences per step that are accepted: products stay inside 64 bits.
pub const LARGEST_JOB: u32 = 1 << 26;

/// What is wrong with a limit on the memory of a GPU that nothing fits under.
#[must_use]
pub fn too_little(limit: Bytes) -> Option<String> {
    let Bytes(bytes) = limit;
    let gigabytes = (1..10_000).contains(&bytes);
    let meant = if gigabytes { format!("; did you mean {bytes}GB?") } else { String::new() };
    (limit < LEAST_MEMORY).then(|| format!("a limit of {bytes} bytes leaves no room{meant}"))
}

/// Longest sequence that is accepted.
const LARGEST_SEQUENCE: u32 = 1 << 28;
/// Most sequences of a step, and most tokens of a sequence, that a user may state.
pub const MOST_SEQUENCES: u32 = 1 << 24;

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

/// Smallest and largest capacity of experts that is accepted, in equal shares.
pub const LEAST_CAPACITY: f64 = 0.01;
/// See [`LEAST_CAPACITY`].
pub const MOST_CAPACITY: f64 = 100.0;

/// Most tokens that an expert takes. What is routed to it beyond is dropped.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExpertCapacity {
    /// In equal shares of all routed tokens.
    pub factor: f64,
    /// Experts with fewer are filled up to it: all shapes are known beforehand, and the host need not read how many tokens
    /// each expert got.
    pub padded: bool,
}

/// A part of a job with its own sequence length and batch: 8k for most tokens, then 128k for the last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Phase {
    /// Tokens per sequence.
    pub sequence_length: u32,
    /// Sequences per optimizer step.
    pub global_batch_size: u32,
    /// Tokens trained in this phase.
    pub tokens: Tokens,
}

impl Phase {
    /// Tokens of one step.
    #[must_use]
    pub fn tokens_per_step(&self) -> Tokens {
        Tokens(u64::from(self.sequence_length) * u64::from(self.global_batch_size))
    }
    /// The job with this phase's sequence length, batch and tokens.
    #[must_use]
    pub fn job(&self, base: &Job) -> Job {
        Job {
            sequence_length: self.sequence_length,
            global_batch_size: self.global_batch_size,
            tokens: Some(self.tokens),
            ..base.clone()
        }
    }
}

/// The text is no [`Phase`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{text}` is not a phase: {what}; expected sequence length:global batch:tokens, such as 8192:2048:14T"
)]
pub struct PhaseError {
    text: String,
    what: String,
}

/// A positive whole number that fits 32 bits.
fn size(what: &str, text: &str) -> Result<u32, String> {
    match text.trim().parse() {
        Ok(0) => Err(format!("the {what} is 0")),
        Ok(value) => Ok(value),
        Err(_) => Err(format!("the {what} `{text}` is not a whole number below 2^32")),
    }
}

impl FromStr for Phase {
    type Err = PhaseError;
    /// Reads `8192:2048:14T`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let err = |what: String| PhaseError { text: text.to_owned(), what };
        let parts: Vec<&str> = text.split(':').collect();
        let [sequence, batch, tokens] = parts[..] else {
            return Err(err(format!("it has {} parts", parts.len())));
        };
        let tokens = Tokens::parse(tokens).map_err(|e| err(e.to_string()))?;
        if tokens == Tokens::ZERO {
            return Err(err("it trains no tokens".into()));
        }
        Ok(Self {
            sequence_length: size("sequence length", sequence).map_err(err)?,
            global_batch_size: size("global batch", batch).map_err(err)?,
            tokens,
        })
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{}:{}:{}", self.sequence_length, self.global_batch_size, self.tokens)
    }
}

/// Documents packed into sequences, as a histogram of their lengths. Attention does not cross documents:
/// its work follows the sum of squared lengths, everything else the sum of lengths.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PackedLengths {
    /// Length in tokens and number of documents (or any common multiple of it).
    pub lengths: Vec<(u32, u64)>,
}

impl PackedLengths {
    /// The pieces that fit sequences of `sequence_length`: longer documents are cut.
    #[must_use]
    pub fn pieces(&self, sequence_length: u32) -> Vec<(u32, u64)> {
        let mut pieces = Vec::with_capacity(self.lengths.len());
        for &(length, count) in &self.lengths {
            if length <= sequence_length {
                pieces.push((length, count));
                continue;
            }
            pieces.push((sequence_length, count.saturating_mul(u64::from(length / sequence_length))));
            if length % sequence_length > 0 {
                pieces.push((length % sequence_length, count));
            }
        }
        pieces
    }
    /// The sequence length at which unpacked attention would do the same work for each token:
    /// `sum n l^2 / sum n l`.
    #[must_use]
    pub fn attention_length(&self, sequence_length: u32) -> f64 {
        let (mut squares, mut tokens) = (0.0, 0.0);
        for (length, count) in self.pieces(sequence_length) {
            let share = f64::from(length) * count as f64;
            squares += share * f64::from(length);
            tokens += share;
        }
        squares / tokens
    }
    /// Checks that there are documents, that none is empty, and that the numbers can be summed.
    ///
    /// # Errors
    /// What is wrong with the histogram.
    pub fn validate(&self) -> Result<(), String> {
        if self.lengths.len() > 10_000 || self.lengths.iter().any(|&(_, count)| count > 1 << 40) {
            return Err("the histogram of document lengths takes 10000 entries of counts up to 2^40".into());
        }
        if self.lengths.iter().all(|&(_, count)| count == 0) {
            return Err("the histogram of document lengths holds no document".into());
        }
        match self.lengths.iter().find(|&&(length, _)| length == 0) {
            Some(_) => Err("the histogram of document lengths has documents of length 0".into()),
            None => Ok(()),
        }
    }
}

impl fmt::Display for PackedLengths {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        for (at, (length, count)) in self.lengths.iter().enumerate() {
            write!(f, "{}{length}x{count}", if at > 0 { "," } else { "" })?;
        }
        Ok(())
    }
}

/// The text is no [`PackedLengths`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{text}` is no histogram of document lengths: {what}; expected length x count, such as 512x70,4096x25,8192x5"
)]
pub struct PackedLengthsError {
    text: String,
    what: String,
}

impl FromStr for PackedLengths {
    type Err = PackedLengthsError;
    /// Reads `512x70,4096x25,8192x5`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let err = |what: String| PackedLengthsError { text: text.to_owned(), what };
        let mut lengths = Vec::new();
        for entry in text.split(',') {
            let Some((length, count)) = entry.split_once('x') else {
                return Err(err(format!("`{entry}` has no `x`")));
            };
            let length = size("length", length).map_err(err)?;
            let count = size("count", count).map_err(err)?;
            lengths.push((length, u64::from(count)));
        }
        Ok(Self { lengths })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_and_histograms_read_as_they_print() {
        let phase: Phase = "8192:2048:14T".parse().unwrap();
        assert_eq!(phase.tokens_per_step(), Tokens(16_777_216));
        assert_eq!(phase.to_string(), "8192:2048:14T");
        for bad in ["8192:2048", "0:2048:14T", "8192:2048:0", "8192:x:14T", "8192:2048:-1", "8192:5e9:1T", ""]
        {
            assert!(bad.parse::<Phase>().is_err(), "{bad}");
        }
        let packed: PackedLengths = "512x70,4096x25,8192x5".parse().unwrap();
        assert_eq!(packed.lengths, [(512, 70), (4096, 25), (8192, 5)]);
        assert_eq!(packed.to_string(), "512x70,4096x25,8192x5");
        assert_eq!(packed.validate(), Ok(()));
        for bad in ["512", "0x3", "512x0", "512x3,", "512x-1", ""] {
            assert!(bad.parse::<PackedLengths>().is_err(), "{bad}");
        }
        assert!(PackedLengths { lengths: vec![] }.validate().is_err());
    }

    #[test]
    fn attention_counts_the_sum_of_squares() {
        let one = PackedLengths { lengths: vec![(8192, 1)] };
        assert_eq!(one.attention_length(8192), 8192.0);
        // 8 documents of 1,024: an eighth of the attention of one of 8,192.
        assert_eq!(PackedLengths { lengths: vec![(1024, 8)] }.attention_length(8192), 1024.0);
        // 3 tokens in squares of 1 and 2: (1 + 4) / 3.
        let mixed = PackedLengths { lengths: vec![(1, 1), (2, 1)] };
        assert!((mixed.attention_length(8192) - 5.0 / 3.0).abs() < 1e-12);
        // A document of 20,000 is cut into 8,192 + 8,192 + 3,616.
        let long = PackedLengths { lengths: vec![(20_000, 1)] };
        assert_eq!(long.pieces(8192), [(8192, 2), (3616, 1)]);
    }
}
