//! Effective training time: what failures, restarts and checkpoints leave of the wall clock.
//!
//! A job on N GPUs is interrupted every `M = gpu_hours_between_failures / N` on average (the Llama 3
//! report counts 419 unexpected interruptions in 54 days on 16,384 GPUs). It saves its state every
//! `interval` of training, which blocks it for `C`; after a failure it needs `R` until it computes
//! again and then repeats what it had not saved. With exponentially distributed failures the expected
//! wall time of one interval is `M exp(R/M) (exp((interval + C)/M) - 1)` (Daly 2006, "A higher order
//! estimate of the optimum checkpoint interval for restart dumps", equation 20); it splits exactly into
//! training, checkpoints, repeated work and restarts. The textbook sum `C/interval + (interval/2 + R)/M`
//! is its first-order part and is reported beside it.

use serde::Serialize;

use super::StateClass;
use crate::memory::moment_bytes;
use crate::spec::cluster::Cluster;
use crate::spec::job::Optimizer;
use crate::units::{Bandwidth, Bytes, Seconds, as_number, spaced};

/// A run whose effective share is below this makes no progress worth a forecast.
const LEAST_PROGRESS: f64 = 0.01;

/// How the state of a run is saved.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Checkpointing {
    /// Bytes of one checkpoint; see [`checkpoint_bytes`].
    pub bytes: Bytes,
    /// Whether training waits for the storage.
    pub writing: Writing,
    /// Training time between two checkpoints; none means the optimum.
    pub interval: Option<Seconds>,
}

/// Whether training waits for the storage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Writing {
    /// Training waits for the copy to host memory only; the write goes on beside it, and the next
    /// checkpoint waits for its end.
    Asynchronous,
    /// Training waits for the copy and the write.
    Synchronous,
}

/// What decided the interval between checkpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum IntervalRule {
    /// Least expected loss.
    Optimum,
    /// The storage is too slow for the optimum: one write follows the other.
    Storage,
    /// The optimum is shorter than a step.
    OneStep,
    /// As asked.
    Given,
}

/// How much of the wall clock trains, and where the rest goes. Shares are of wall time.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Goodput {
    /// Mean time between failures of the whole job.
    #[serde(rename = "mean_time_between_failures_s", serialize_with = "as_number")]
    pub mean_time_between_failures: Seconds,
    /// Detection, rescheduling and reload after a failure.
    #[serde(rename = "restart_s", serialize_with = "as_number")]
    pub restart: Seconds,
    /// Bytes of one checkpoint.
    pub checkpoint_bytes: Bytes,
    /// Bandwidth at which the job's nodes write it.
    #[serde(rename = "checkpoint_bytes_per_s", serialize_with = "as_number")]
    pub checkpoint_bandwidth: Bandwidth,
    /// Time to write it.
    #[serde(rename = "checkpoint_write_s", serialize_with = "as_number")]
    pub checkpoint_write: Seconds,
    /// How it is written.
    pub checkpoint_writing: Writing,
    /// Time for which it stops training.
    #[serde(rename = "checkpoint_blocking_s", serialize_with = "as_number")]
    pub checkpoint_blocking: Seconds,
    /// Young's interval.
    #[serde(rename = "young_interval_s", serialize_with = "as_number")]
    pub young: Seconds,
    /// Daly's interval.
    #[serde(rename = "daly_interval_s", serialize_with = "as_number")]
    pub daly: Seconds,
    /// Training time between checkpoints that the forecast uses: whole steps.
    #[serde(rename = "checkpoint_interval_s", serialize_with = "as_number")]
    pub interval: Seconds,
    /// The same in steps.
    pub checkpoint_interval_steps: u64,
    /// What decided it.
    pub checkpoint_interval_rule: IntervalRule,
    /// Share that trains for the first time: the effective training time ratio.
    pub effective_training_time_ratio: f64,
    /// Share in which checkpoints block.
    pub checkpoint_share: f64,
    /// Share that repeats steps which a failure undid.
    pub lost_work_share: f64,
    /// Share in which the job restarts.
    pub restart_share: f64,
    /// The textbook estimate of all losses, `C/interval + (interval/2 + R)/M`; too high where it is large.
    pub first_order_loss: f64,
}

/// Failures come faster than the run can recover.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error, Serialize)]
#[error(
    "with {gpus} GPUs a failure comes every {} and a restart takes {}: the run makes no progress",
    spaced(mean_time_between_failures),
    spaced(restart)
)]
pub struct NoProgress {
    /// GPUs of the job.
    pub gpus: u32,
    /// Mean time between failures of the whole job.
    #[serde(rename = "mean_time_between_failures_s", serialize_with = "as_number")]
    pub mean_time_between_failures: Seconds,
    /// Time of a restart.
    #[serde(rename = "restart_s", serialize_with = "as_number")]
    pub restart: Seconds,
}

/// Bytes of a checkpoint of `parameters` trained weights: the BF16 weights, the FP32 master copy and the
/// optimizer's moments (14 B per parameter with AdamW). `ends` of them are embeddings, head and norms,
/// whose optimizer may differ ([`crate::memory::optimizer_of`]).
#[must_use]
pub fn checkpoint_bytes(parameters: u64, ends: u64, optimizer: Optimizer) -> Bytes {
    let weights_and_master = 2.0 + 4.0;
    let bytes = |count: u64, class| count as f64 * (weights_and_master + moment_bytes(optimizer, class));
    let layers = bytes(parameters.saturating_sub(ends), StateClass::Dense);
    Bytes::from_f64(layers + bytes(ends.min(parameters), StateClass::Ends))
}

/// Mean time between failures of a job on `gpus` GPUs.
#[must_use]
pub fn mean_time_between_failures(gpu_hours_between_failures: f64, gpus: u32) -> Seconds {
    Seconds(gpu_hours_between_failures * 3600.0 / f64::from(gpus.max(1)))
}

/// Young's interval `sqrt(2 C M)` (Young 1974): the first-order optimum.
#[must_use]
pub fn young_interval(blocking: Seconds, between_failures: Seconds) -> Seconds {
    Seconds((2.0 * blocking.0 * between_failures.0).sqrt())
}

/// Daly's interval `sqrt(2 C (M + R)) - C` (Daly 2003), at least `C`.
#[must_use]
pub fn daly_interval(blocking: Seconds, between_failures: Seconds, restart: Seconds) -> Seconds {
    let interval = (2.0 * blocking.0 * (between_failures.0 + restart.0)).sqrt() - blocking.0;
    Seconds(interval).max(blocking)
}

/// The interval with the least expected wall time: the root of `interval / M = 1 - exp(-(interval + C)/M)`,
/// which Young and Daly approximate. Never longer than `M`.
#[must_use]
pub fn best_interval(blocking: Seconds, between_failures: Seconds) -> Seconds {
    let c = blocking.0 / between_failures.0;
    // Newton's method from the right of the root of a convex function: monotone, quadratic.
    let mut x = (2.0 * c).sqrt().min(1.0);
    for _ in 0..64 {
        let slope = -(-(x + c)).exp_m1();
        if slope <= 0.0 {
            break;
        }
        let next = x - (x - slope) / slope;
        if (next - x).abs() <= 1e-15 * x {
            break;
        }
        x = next;
    }
    Seconds(x * between_failures.0)
}

/// The textbook estimate of the share of time lost: `C/interval + (interval/2 + R)/M`.
#[must_use]
pub fn first_order_loss(
    interval: Seconds,
    blocking: Seconds,
    between_failures: Seconds,
    restart: Seconds,
) -> f64 {
    blocking / interval + (interval * 0.5 + restart) / between_failures
}

/// Forecasts the effective share of a job whose step takes `step`.
///
/// # Errors
/// [`NoProgress`] where less than a hundredth of the time would train.
pub fn goodput(
    cluster: &Cluster,
    gpus: u32,
    step: Seconds,
    checkpointing: &Checkpointing,
) -> Result<Goodput, NoProgress> {
    let reliability = &cluster.reliability;
    let between = mean_time_between_failures(reliability.gpu_hours_between_failures, gpus);
    let restart = reliability.restart;
    let nodes = gpus.div_ceil(cluster.gpus_per_node).max(1);
    let bandwidth = cluster.storage.total.min(cluster.storage.per_node * f64::from(nodes));
    let write = checkpointing.bytes / bandwidth;
    let (blocking, busy) = match checkpointing.writing {
        Writing::Asynchronous => (reliability.checkpoint_blocking, write),
        Writing::Synchronous => (reliability.checkpoint_blocking + write, Seconds(0.0)),
    };
    let best = best_interval(blocking, between);
    let (wanted, rule) = match checkpointing.interval {
        Some(given) => (given, IntervalRule::Given),
        None if busy > best => (busy, IntervalRule::Storage),
        None if step > best => (step, IntervalRule::OneStep),
        None => (best, IntervalRule::Optimum),
    };
    let steps = if rule == IntervalRule::Storage { (wanted / step).ceil() } else { (wanted / step).round() };
    let steps = steps.max(1.0);
    let interval = step * steps;

    // Daly's expectation, per interval: attempts (useful, blocked, undone) and restarts, which may fail too.
    let failures = ((interval + blocking) / between).exp_m1();
    let attempts = between.0 * failures;
    let restarts = failures * between.0 * (restart / between).exp_m1();
    let wall = attempts + restarts;
    let effective = interval.0 / wall;
    if !(effective.is_finite() && effective >= LEAST_PROGRESS) {
        return Err(NoProgress { gpus, mean_time_between_failures: between, restart });
    }
    Ok(Goodput {
        mean_time_between_failures: between,
        restart,
        checkpoint_bytes: checkpointing.bytes,
        checkpoint_bandwidth: bandwidth,
        checkpoint_write: write,
        checkpoint_writing: checkpointing.writing,
        checkpoint_blocking: blocking,
        young: young_interval(blocking, between),
        daly: daly_interval(blocking, between, restart),
        interval,
        checkpoint_interval_steps: steps as u64,
        checkpoint_interval_rule: rule,
        effective_training_time_ratio: effective,
        checkpoint_share: blocking.0 / wall,
        lost_work_share: (attempts - interval.0 - blocking.0).max(0.0) / wall,
        restart_share: restarts / wall,
        first_order_loss: first_order_loss(interval, blocking, between, restart),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The Llama 3 census: 16,384 GPUs, all 466 interruptions of 54 days.
    const CENSUS: Seconds = Seconds(2.78 * 3600.0);

    #[test]
    fn the_interval_is_the_optimum_of_the_expected_time() {
        for (c, m) in [(10.0, 10_008.0), (98.0, 86_400.0), (400.0, 300.0), (1e-6, 1e6)] {
            let (c, m) = (Seconds(c), Seconds(m));
            let wall = |t: f64| ((t + c.0) / m.0).exp_m1() / t;
            let best = best_interval(c, m).0;
            assert!(wall(best) <= wall(best * 1.01) && wall(best) <= wall(best * 0.99), "C {c} M {m}");
            assert!(best <= m.0);
        }
        // Where C is small against M, the three rules agree.
        let (c, m) = (Seconds(98.0), Seconds(86_400.0));
        let best = best_interval(c, m);
        assert!((best / young_interval(c, m) - 1.0).abs() < 0.03);
        assert!((best / daly_interval(c, m, Seconds(0.0)) - 1.0).abs() < 0.02);
    }

    #[test]
    fn the_textbook_waste_of_a_16384_gpu_run() {
        for (c, r, minutes, goodput) in
            [(10.0, 300.0, 7.5, 92.5), (30.0, 300.0, 12.9, 89.3), (60.0, 600.0, 18.3, 83.1)]
        {
            let interval = young_interval(Seconds(c), CENSUS);
            assert!((interval.0 / 60.0 - minutes).abs() < 0.05);
            let kept = 100.0 * (1.0 - first_order_loss(interval, Seconds(c), CENSUS, Seconds(r)));
            assert!((kept - goodput).abs() < 0.06, "{kept} against {goodput}");
        }
    }
}
