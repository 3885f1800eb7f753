//! Closed forms of scale: training FLOPs, the loss law, the critical batch, micro-batches for a bubble.
//!
//! They explain and advise; no plan is ranked by them. Predictions come from the itemised model.

use super::schedule::bubble_fraction;
use crate::units::{Bytes, FlopRate, Flops, Seconds, Tokens};

/// Training FLOPs of a dense model without attention: `6 parameters tokens`.
#[must_use]
pub fn training_flops(parameters: u64, tokens: Tokens) -> Flops {
    Flops(6.0 * parameters as f64 * tokens.0 as f64)
}

/// Days of 10^15 FLOP/s.
#[must_use]
pub fn petaflop_days(flops: Flops) -> f64 {
    flops.0 / (1e15 * 86_400.0)
}

/// Time for `flops` on `gpus` GPUs that reach the share `utilisation` of `peak`.
#[must_use]
pub fn time_at(flops: Flops, gpus: u32, peak: FlopRate, utilisation: f64) -> Seconds {
    Seconds(flops.0 / (f64::from(gpus) * peak.0 * utilisation))
}

/// The share of `peak` that `gpus` GPUs reach when `flops` take `time`: the inverse of [`time_at`].
#[must_use]
pub fn utilisation(flops: Flops, gpus: u32, peak: FlopRate, time: Seconds) -> f64 {
    flops.0 / (f64::from(gpus) * peak.0 * time.0)
}

/// Fewest GPUs that hold `state` bytes when it is fully sharded and each takes `limit`.
#[must_use]
pub fn least_gpus(state: Bytes, limit: Bytes) -> u64 {
    state.0.div_ceil(limit.0.max(1))
}

/// A loss law `irreducible + a / parameters^alpha + b / tokens^beta`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LossLaw {
    /// Loss that no model removes.
    pub irreducible: f64,
    /// Coefficient of the model's size.
    pub a: f64,
    /// Exponent of the model's size.
    pub alpha: f64,
    /// Coefficient of the data's size.
    pub b: f64,
    /// Exponent of the data's size.
    pub beta: f64,
}

/// Hoffmann et al. 2022 ("Chinchilla"), approach 3.
pub const CHINCHILLA: LossLaw = LossLaw { irreducible: 1.69, a: 406.4, alpha: 0.34, b: 410.7, beta: 0.28 };

impl LossLaw {
    /// Loss after training on `tokens`, in nats per token.
    #[must_use]
    pub fn loss(&self, parameters: u64, tokens: Tokens) -> f64 {
        self.irreducible
            + self.a / (parameters as f64).powf(self.alpha)
            + self.b / (tokens.0 as f64).powf(self.beta)
    }
}

/// Tokens per step at which a run needs twice the least number of tokens for a loss:
/// `2e8 / loss^(1 / 0.21)` (Kaplan et al. 2020, section 5.1). Right within a factor of a few.
#[must_use]
pub fn critical_batch(loss: f64) -> Tokens {
    Tokens((2e8 / loss.powf(1.0 / 0.21)).round() as u64)
}

/// Tokens needed for a loss with batch `batch`, relative to tiny batches: `1 + batch / critical`
/// (McCandlish et al. 2018).
#[must_use]
pub fn tokens_factor(batch: Tokens, critical: Tokens) -> f64 {
    1.0 + batch.0 as f64 / critical.0.max(1) as f64
}

/// Fewest micro-batches for which the pipeline idles less than `share` of the step.
#[must_use]
pub fn micro_batches_for_bubble(pipeline_parallel: u32, virtual_stages: u32, share: f64) -> u32 {
    let exact = f64::from(pipeline_parallel - 1) * (1.0 - share) / (share * f64::from(virtual_stages));
    let mut count = (exact.floor() as u32).max(1);
    while bubble_fraction(pipeline_parallel, virtual_stages, count) >= share {
        count += 1;
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn laws_of_scale_invert() {
        let flops = training_flops(405_000_000_000, Tokens(15_600_000_000_000));
        let days = time_at(flops, 16_384, FlopRate(989e12), 0.4);
        assert!((utilisation(flops, 16_384, FlopRate(989e12), days) - 0.4).abs() < 1e-12);
        for p in [2, 8, 16] {
            for v in [1, 2, 4] {
                let m = micro_batches_for_bubble(p, v, 0.05);
                assert!(bubble_fraction(p, v, m) < 0.05);
                assert!(m == 1 || bubble_fraction(p, v, m - 1) >= 0.05);
            }
        }
    }

    #[test]
    fn the_critical_batch_of_published_runs_is_of_their_order() {
        // Llama-3 405B ends with batches of 16M tokens, DeepSeek-V3 with 63M, GPT-3 with 3.2M.
        for (parameters, tokens, batch) in
            [(405e9, 15.6e12, 16.8e6), (175e9, 300e9, 3.2e6), (671e9, 14.8e12, 62.9e6)]
        {
            let loss = CHINCHILLA.loss(parameters as u64, Tokens(tokens as u64));
            let ratio = critical_batch(loss).0 as f64 / batch;
            assert!((0.1..=4.0).contains(&ratio), "{ratio}");
        }
    }
}
