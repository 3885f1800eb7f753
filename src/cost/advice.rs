//! Advice on what a plan changes outside the step: learning rate, warm-up, critical batch, ramp-up,
//! number ranges.
//!
//! Rules of thumb from the literature, each with its source. They are advice: nothing here enters a
//! prediction or a ranking, and every report that shows them says so.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;

use super::goodput::NoProgress;
use super::money::{Run, RunCost, run_cost};
use super::scaling::{CHINCHILLA, critical_batch, tokens_factor};
use super::schedule::{bubble_fraction, bubble_ratio};
use crate::spec::job::{Phase, Precision};
use crate::units::{Dollars, Picos, Seconds, Tokens, as_number};

/// Warm-up steps taken for the reference batch where a job names none; published runs use 500 to 8,000.
pub const REFERENCE_WARM_UP_STEPS: u64 = 1000;

/// A change of the global batch on an otherwise unchanged job.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BatchChange {
    /// Sequences per step for which the learning rate was chosen.
    pub from: u32,
    /// Sequences per step of the plan.
    pub to: u32,
    /// Tokens per sequence.
    pub sequence_length: u32,
    /// Weights that one token visits; they set the loss and with it the critical batch.
    pub parameters: u64,
    /// Tokens of the run.
    pub tokens: Tokens,
    /// Peak learning rate at the reference batch.
    pub learning_rate: Option<f64>,
    /// Warm-up steps at the reference batch.
    pub warm_up_steps: u64,
    /// Pipeline stages.
    pub pipeline_parallel: u32,
    /// Model chunks per stage.
    pub virtual_stages: u32,
    /// Data-parallel replicas.
    pub data_parallel: u32,
    /// Sequences per micro-batch.
    pub micro_batch_size: u32,
}

/// A figure at the reference batch and at the plan's.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Shift<T> {
    /// At the reference batch.
    pub from: T,
    /// At the plan's batch.
    pub to: T,
}

/// How accumulation and the bubble answer to one batch.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Accumulation {
    /// Micro-batches per pipeline and step.
    pub gradient_accumulation_steps: u32,
    /// Idle over busy time of an equal pipeline.
    pub bubble_ratio: f64,
    /// Idle share of the step of an equal pipeline.
    pub bubble_fraction: f64,
}

/// What a changed global batch does beside the step time.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct BatchAdvice {
    /// Batch of the plan over the reference batch.
    pub ratio: f64,
    /// Factor on the learning rate by the linear rule (Goyal et al. 2017): for SGD.
    pub linear_factor: f64,
    /// Factor by the square-root rule (Malladi et al. 2022): for Adam and its kin.
    pub square_root_factor: f64,
    /// Peak learning rate by the linear rule.
    pub learning_rate_linear: Option<f64>,
    /// Peak learning rate by the square-root rule.
    pub learning_rate_square_root: Option<f64>,
    /// Warm-up, its steps scaled with the batch: a heuristic. Rules that keep the path of the optimizer
    /// (Malladi et al. 2022) keep its tokens.
    pub warm_up_steps: Shift<u64>,
    /// Optimizer steps, over which a cosine decay has to be spread anew.
    pub steps: Shift<u64>,
    /// Variance of the gradient noise at the plan's batch relative to the reference.
    pub gradient_variance_factor: f64,
    /// Tokens per step at which larger batches stop paying; right within a factor of a few.
    pub critical_batch_tokens: u64,
    /// Tokens for equal loss relative to tiny batches.
    pub tokens_factor: Shift<f64>,
    /// Accumulation and bubble; none where the layout does not divide the batch.
    pub accumulation: Shift<Option<Accumulation>>,
    /// Nearest batches that the layout divides, where it does not divide the plan's; else empty.
    pub nearest_batches: Vec<u32>,
}

/// Linear scaling of the learning rate with the batch (Goyal et al. 2017).
#[must_use]
pub fn linear_rule(learning_rate: f64, ratio: f64) -> f64 {
    learning_rate * ratio
}

/// Square-root scaling of the learning rate with the batch (Malladi et al. 2022).
#[must_use]
pub fn square_root_rule(learning_rate: f64, ratio: f64) -> f64 {
    learning_rate * ratio.sqrt()
}

/// Warm-up steps after the batch changed by `ratio`.
#[must_use]
pub fn warm_up_steps(reference: u64, ratio: f64) -> u64 {
    (reference as f64 * ratio).round().max(1.0) as u64
}

/// Optimizer steps for a number of tokens.
#[must_use]
pub fn optimizer_steps(tokens: Tokens, tokens_per_step: Tokens) -> u64 {
    tokens.0.div_ceil(tokens_per_step.0.max(1))
}

/// Advises on a changed batch.
#[must_use]
pub fn batch_advice(change: &BatchChange) -> BatchAdvice {
    let ratio = f64::from(change.to) / f64::from(change.from);
    let tokens_of = |batch: u32| Tokens(u64::from(batch) * u64::from(change.sequence_length));
    let critical = critical_batch(CHINCHILLA.loss(change.parameters, change.tokens));
    let unit = change.micro_batch_size * change.data_parallel;
    let accumulation = |batch: u32| {
        (batch % unit == 0 && batch > 0).then(|| {
            let steps = batch / unit;
            let (p, v) = (change.pipeline_parallel, change.virtual_stages);
            Accumulation {
                gradient_accumulation_steps: steps,
                bubble_ratio: bubble_ratio(p, v, steps),
                bubble_fraction: bubble_fraction(p, v, steps),
            }
        })
    };
    let below = change.to / unit * unit;
    let nearest = [below, below + unit].into_iter().filter(|&batch| batch > 0 && change.to % unit != 0);
    BatchAdvice {
        ratio,
        linear_factor: linear_rule(1.0, ratio),
        square_root_factor: square_root_rule(1.0, ratio),
        learning_rate_linear: change.learning_rate.map(|rate| linear_rule(rate, ratio)),
        learning_rate_square_root: change.learning_rate.map(|rate| square_root_rule(rate, ratio)),
        warm_up_steps: Shift { from: change.warm_up_steps, to: warm_up_steps(change.warm_up_steps, ratio) },
        steps: Shift {
            from: optimizer_steps(change.tokens, tokens_of(change.from)),
            to: optimizer_steps(change.tokens, tokens_of(change.to)),
        },
        gradient_variance_factor: 1.0 / ratio,
        critical_batch_tokens: critical.0,
        tokens_factor: Shift {
            from: tokens_factor(tokens_of(change.from), critical),
            to: tokens_factor(tokens_of(change.to), critical),
        },
        accumulation: Shift { from: accumulation(change.from), to: accumulation(change.to) },
        nearest_batches: nearest.collect(),
    }
}

impl fmt::Display for BatchAdvice {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        writeln!(f, "  for a global batch {:.2} times the reference (advice, no prediction):", self.ratio)?;
        let rate = |factor: f64, rate: Option<f64>| match rate {
            Some(rate) => format!("{rate:.3e} (x {factor:.3})"),
            None => format!("x {factor:.3}"),
        };
        writeln!(
            f,
            "  learning rate: {} by the square-root rule (Adam), {} by the linear rule (SGD)",
            rate(self.square_root_factor, self.learning_rate_square_root),
            rate(self.linear_factor, self.learning_rate_linear)
        )?;
        writeln!(
            f,
            "  warm-up: {} steps instead of {}, a heuristic for large batches ({} are as many tokens); decay over {} steps instead of {}",
            self.warm_up_steps.to,
            self.warm_up_steps.from,
            (self.warm_up_steps.from as f64 / self.ratio).round(),
            self.steps.to,
            self.steps.from
        )?;
        writeln!(
            f,
            "  critical batch: about {} tokens; for the same loss the run needs {:+.1} % tokens",
            Tokens(self.critical_batch_tokens),
            100.0 * (self.tokens_factor.to / self.tokens_factor.from - 1.0)
        )?;
        match (self.accumulation.from, self.accumulation.to) {
            (_, None) => {
                let nearest: Vec<String> = self.nearest_batches.iter().map(u32::to_string).collect();
                writeln!(f, "  the layout does not divide this batch; nearest: {}", nearest.join(" and "))
            }
            (Some(from), Some(to)) => writeln!(
                f,
                "  accumulation {} instead of {}: the pipeline idles {:.1} % of the step instead of {:.1} %",
                to.gradient_accumulation_steps,
                from.gradient_accumulation_steps,
                100.0 * to.bubble_fraction,
                100.0 * from.bubble_fraction
            ),
            (None, Some(to)) => writeln!(
                f,
                "  accumulation {}: the pipeline idles {:.1} % of the step",
                to.gradient_accumulation_steps,
                100.0 * to.bubble_fraction
            ),
        }
    }
}

/// A linear warm-up to `peak`, then a cosine down to `floor`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct LearningRateSchedule {
    /// Highest rate, reached after the warm-up.
    pub peak: f64,
    /// Rate at the end.
    pub floor: f64,
    /// Steps of the linear warm-up.
    pub warm_up_steps: u64,
    /// Steps of the whole run.
    pub steps: u64,
}

impl LearningRateSchedule {
    /// Rate at one step.
    #[must_use]
    pub fn at(&self, step: u64) -> f64 {
        if step < self.warm_up_steps {
            return self.peak * step as f64 / self.warm_up_steps as f64;
        }
        let decay = self.steps.saturating_sub(self.warm_up_steps).max(1);
        let progress = ((step - self.warm_up_steps) as f64 / decay as f64).min(1.0);
        self.floor + (self.peak - self.floor) / 2.0 * (1.0 + (std::f64::consts::PI * progress).cos())
    }
}

impl BatchAdvice {
    /// The schedule after the change by the square-root rule, decaying to `floor_share` of the peak;
    /// none without a reference learning rate.
    #[must_use]
    pub fn schedule(&self, floor_share: f64) -> Option<LearningRateSchedule> {
        self.learning_rate_square_root.map(|peak| LearningRateSchedule {
            peak,
            floor: peak * floor_share,
            warm_up_steps: self.warm_up_steps.to,
            steps: self.steps.to,
        })
    }
}

/// A batch that grows in equal increments over the first samples, as Megatron's `--rampup-batch-size`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct BatchRamp {
    /// First batch, in sequences.
    pub start: u32,
    /// Sequences added at each stage.
    pub increment: u32,
    /// Sequences over which the batch reaches the full one.
    pub samples: u64,
}

/// The ramp does not lead to the full batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a ramp from {start} in steps of {increment} does not reach the global batch {full}")]
pub struct RampError {
    start: u32,
    increment: u32,
    full: u32,
}

/// The text is no [`BatchRamp`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is no batch ramp; expected first batch:increment:samples of the ramp, such as 256:256:2000000"
)]
pub struct BatchRampError(String);

impl FromStr for BatchRamp {
    type Err = BatchRampError;
    /// Reads `256:256:2000000`; spaces separate as well, as in `--rampup-batch-size`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parts: Vec<&str> = text.split([':', ' ']).filter(|part| !part.is_empty()).collect();
        // Launch scripts group digits as Python does: 9_765_625.
        let number = |part: &str| part.replace('_', "");
        let read = || {
            let [start, increment, samples] = parts[..] else { return None };
            let ramp = Self {
                start: number(start).parse().ok()?,
                increment: number(increment).parse().ok()?,
                samples: number(samples).parse().ok()?,
            };
            (ramp.start > 0 && ramp.increment > 0 && (1..1 << 48).contains(&ramp.samples)).then_some(ramp)
        };
        read().ok_or_else(|| BatchRampError(text.to_owned()))
    }
}

impl fmt::Display for BatchRamp {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{}:{}:{}", self.start, self.increment, self.samples)
    }
}

impl BatchRamp {
    /// The stages below the full batch, as phases of equal samples
    /// (Megatron-LM `core/num_microbatches_calculator.py`).
    ///
    /// # Errors
    /// [`RampError`] where the increments miss the full batch.
    pub fn phases(&self, full: u32, sequence_length: u32) -> Result<Vec<Phase>, RampError> {
        let err = RampError { start: self.start, increment: self.increment, full };
        if self.start == 0 || self.increment == 0 || self.start >= full {
            return Err(err);
        }
        if (full - self.start) % self.increment != 0 {
            return Err(err);
        }
        let stages = (full - self.start) / self.increment;
        let samples = self.samples / u64::from(stages);
        Ok((0..stages)
            .map(|stage| Phase {
                sequence_length,
                global_batch_size: self.start + stage * self.increment,
                tokens: Tokens(samples * u64::from(sequence_length)),
            })
            .collect())
    }
}

/// What a ramp costs against training the same tokens at the full batch.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct RampCost {
    /// Tokens trained below the full batch.
    pub tokens: Tokens,
    /// Wall time of the ramp.
    #[serde(rename = "ramp_s", serialize_with = "as_number")]
    pub ramp: Seconds,
    /// Wall time of the same tokens at the full batch.
    #[serde(rename = "full_batch_s", serialize_with = "as_number")]
    pub full_batch: Seconds,
    /// What the ramp adds.
    #[serde(rename = "extra_s", serialize_with = "as_number")]
    pub extra: Seconds,
    /// The same in dollars.
    #[serde(rename = "extra_usd", serialize_with = "as_number")]
    pub extra_dollars: Dollars,
}

/// Prices a batch ramp: `full` is the run at the full batch, `steps` the predicted step time of every
/// stage of the ramp.
///
/// # Errors
/// [`NoProgress`] where failures come faster than the run recovers.
pub fn ramp_cost(full: &Run, stages: &[(Phase, Picos)]) -> Result<RampCost, NoProgress> {
    let tokens: Tokens = stages.iter().map(|(phase, _)| phase.tokens).sum();
    let costs = stages
        .iter()
        .map(|(phase, step)| {
            let share = full.stragglers.0 as f64 / full.step.0.max(1) as f64;
            let run = Run {
                step: *step,
                stragglers: step.scale(share),
                tokens_per_step: phase.tokens_per_step(),
                ..*full
            };
            run_cost(&run, phase.tokens)
        })
        .collect::<Result<Vec<RunCost>, NoProgress>>()?;
    let same = run_cost(full, tokens)?;
    let ramp: Seconds = costs.iter().map(|c| c.time.total).sum();
    let dollars: Dollars = costs.iter().map(|c| c.dollars.total).sum();
    Ok(RampCost {
        tokens,
        ramp,
        full_batch: same.time.total,
        extra: ramp - same.time.total,
        extra_dollars: dollars - same.dollars.total,
    })
}

/// A binary floating-point format: one sign bit, then exponent and mantissa.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct NumberFormat {
    /// Name.
    pub name: &'static str,
    /// Bits of the exponent.
    pub exponent_bits: u32,
    /// Stored bits of the mantissa.
    pub mantissa_bits: u32,
    /// Only one bit pattern is not a number and none is infinite (E4M3 of the OCP 8-bit formats).
    pub finite: bool,
}

impl NumberFormat {
    /// IEEE single precision.
    pub const FP32: Self = Self { name: "fp32", exponent_bits: 8, mantissa_bits: 23, finite: false };
    /// bfloat16.
    pub const BF16: Self = Self { name: "bf16", exponent_bits: 8, mantissa_bits: 7, finite: false };
    /// IEEE half precision.
    pub const FP16: Self = Self { name: "fp16", exponent_bits: 5, mantissa_bits: 10, finite: false };
    /// FP8 for weights and activations (Micikevicius et al. 2022).
    pub const E4M3: Self = Self { name: "e4m3", exponent_bits: 4, mantissa_bits: 3, finite: true };
    /// FP8 for gradients (same source).
    pub const E5M2: Self = Self { name: "e5m2", exponent_bits: 5, mantissa_bits: 2, finite: false };
    /// FP4 (OCP microscaling formats).
    pub const E2M1: Self = Self { name: "e2m1", exponent_bits: 2, mantissa_bits: 1, finite: true };

    fn bias(self) -> i32 {
        (1 << (self.exponent_bits - 1)) - 1
    }
    /// Smallest positive number with full precision.
    #[must_use]
    pub fn smallest_normal(self) -> f64 {
        f64::from(1 - self.bias()).exp2()
    }
    /// Largest finite number.
    #[must_use]
    pub fn largest(self) -> f64 {
        let ulp = (-f64::from(self.mantissa_bits)).exp2();
        let top = (1 << self.exponent_bits) - 1 - self.bias();
        if self.finite {
            // The top exponent holds numbers too; of E4M3's mantissas there, the last is no number.
            let unused = if self.mantissa_bits > 1 { 2.0 } else { 1.0 };
            return f64::from(top).exp2() * (2.0 - unused * ulp);
        }
        f64::from(top - 1).exp2() * (2.0 - ulp)
    }
    /// Whether gradients need a loss scale: the exponent is narrower than single precision's.
    #[must_use]
    pub fn needs_scaling(self) -> bool {
        self.exponent_bits < Self::FP32.exponent_bits
    }
}

/// What a precision asks of the training recipe.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct PrecisionAdvice {
    /// Format of forward products.
    pub forward: NumberFormat,
    /// Format of gradients in backward products.
    pub backward: NumberFormat,
    /// Largest gradient that the format holds.
    pub largest: f64,
    /// Smallest gradient that it holds with full precision.
    pub smallest_normal: f64,
    /// The loss must be scaled (fp16); FP8 and FP4 recipes scale each tensor or block themselves.
    pub loss_scaling: bool,
}

/// Advises on a precision.
#[must_use]
pub fn precision_advice(precision: Precision) -> PrecisionAdvice {
    let (forward, backward) = match precision {
        Precision::Bf16 => (NumberFormat::BF16, NumberFormat::BF16),
        Precision::Fp16 => (NumberFormat::FP16, NumberFormat::FP16),
        Precision::Fp8 => (NumberFormat::E4M3, NumberFormat::E5M2),
        // Fine-grained scales need no wider exponent (DeepSeek-V3 report, section 3.3).
        Precision::Fp8Blockwise | Precision::Mxfp8 => (NumberFormat::E4M3, NumberFormat::E4M3),
        Precision::Nvfp4 => (NumberFormat::E2M1, NumberFormat::E2M1),
    };
    PrecisionAdvice {
        forward,
        backward,
        largest: backward.largest(),
        smallest_normal: backward.smallest_normal(),
        loss_scaling: precision == Precision::Fp16 && backward.needs_scaling(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(from: u32, to: u32) -> BatchChange {
        BatchChange {
            from,
            to,
            sequence_length: 8192,
            parameters: 405_853_388_800,
            tokens: Tokens(15_600_000_000_000),
            learning_rate: Some(8e-5),
            warm_up_steps: 8000,
            pipeline_parallel: 16,
            virtual_stages: 1,
            data_parallel: 128,
            micro_batch_size: 1,
        }
    }

    #[test]
    fn a_larger_batch_shifts_rate_warm_up_and_bubble() {
        let advice = batch_advice(&change(512, 2048));
        assert_eq!(advice.ratio, 4.0);
        assert_eq!(advice.learning_rate_square_root, Some(1.6e-4));
        assert_eq!(advice.learning_rate_linear, Some(3.2e-4));
        assert_eq!(advice.warm_up_steps.to, 32_000);
        assert_eq!(advice.steps.from, 3_719_330);
        assert_eq!(advice.steps.to, 929_833);
        let (from, to) = (advice.accumulation.from.unwrap(), advice.accumulation.to.unwrap());
        assert_eq!((from.gradient_accumulation_steps, to.gradient_accumulation_steps), (4, 16));
        assert!((from.bubble_fraction - 15.0 / 19.0).abs() < 1e-12);
        assert!((to.bubble_fraction - 15.0 / 31.0).abs() < 1e-12);
        assert!(advice.tokens_factor.to > advice.tokens_factor.from);
        assert!(advice.to_string().contains("no prediction"));
    }

    #[test]
    fn a_batch_that_the_layout_does_not_divide_is_said() {
        let advice = batch_advice(&change(2048, 2050));
        assert_eq!(advice.accumulation.to, None);
        assert_eq!(advice.nearest_batches, [2048, 2176]);
        assert!(advice.to_string().contains("2048 and 2176"));
        assert_eq!(batch_advice(&change(2048, 100)).nearest_batches, [128]);
    }

    #[test]
    fn schedules_warm_up_and_decay() {
        let schedule = batch_advice(&change(2048, 2048)).schedule(0.1).unwrap();
        assert_eq!(schedule.at(0), 0.0);
        assert!((schedule.at(4000) - 4e-5).abs() < 1e-18);
        assert!((schedule.at(8000) - 8e-5).abs() < 1e-18);
        assert!((schedule.at(schedule.steps) - 8e-6).abs() < 1e-15);
        assert!((schedule.at(u64::MAX) - 8e-6).abs() < 1e-15);
    }

    #[test]
    fn ramps_follow_megatron() {
        // Nemotron-4 340B: 768 to 2,304 sequences in steps of 768.
        let ramp = BatchRamp { start: 768, increment: 768, samples: 2_000_000 };
        let phases = ramp.phases(2304, 4096).unwrap();
        assert_eq!(phases.iter().map(|p| p.global_batch_size).collect::<Vec<_>>(), [768, 1536]);
        assert_eq!(phases[0].tokens, Tokens(1_000_000 * 4096));
        assert!(BatchRamp { start: 500, ..ramp }.phases(2304, 4096).is_err());
        assert!(BatchRamp { increment: 0, ..ramp }.phases(2304, 4096).is_err());
        assert!(BatchRamp { start: 2304, ..ramp }.phases(2304, 4096).is_err());
    }

    #[test]
    fn number_formats_have_their_published_ranges() {
        assert_eq!(NumberFormat::FP32.largest(), f64::from(f32::MAX));
        assert_eq!(NumberFormat::FP16.largest(), 65_504.0);
        assert_eq!(NumberFormat::E4M3.largest(), 448.0);
        assert_eq!(NumberFormat::E5M2.largest(), 57_344.0);
        assert_eq!(NumberFormat::E2M1.largest(), 6.0);
        assert!(precision_advice(Precision::Fp16).loss_scaling);
        assert!(!precision_advice(Precision::Bf16).loss_scaling);
        assert!(!precision_advice(Precision::Mxfp8).loss_scaling);
    }
}
