//! Dollars, energy and days: what a step and a whole run cost.
//!
//! Everything is itemised, and every total is the sum of its items. Money follows wall time: a GPU costs
//! the same while it trains, waits for a checkpoint or repeats lost steps ([`super::goodput`]).

use std::fmt;
use std::iter::Sum;
use std::ops::Add;
use std::str::FromStr;

use serde::Serialize;

use super::goodput::{Checkpointing, Goodput, NoProgress, goodput};
use crate::spec::cluster::{Accelerator, Cluster, Price};
use crate::units::{Dollars, DollarsPerHour, Picos, Seconds, Tokens, WattHours, as_number};

/// What a GPU-hour is taken to cost.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Pricing {
    /// The cluster's price without commitment; electricity is in it.
    #[default]
    OnDemand,
    /// The cluster's price with a commitment; electricity is in it.
    Reserved,
    /// An own figure.
    Own {
        /// Dollars of one GPU for one hour.
        #[serde(rename = "usd_per_gpu_hour", serialize_with = "as_number")]
        per_gpu_hour: DollarsPerHour,
        /// Whether electricity comes on top (own hardware) or is in it (rented).
        electricity_extra: bool,
    },
}

impl Pricing {
    /// Dollars of one GPU for one hour.
    #[must_use]
    pub fn rate(self, price: &Price) -> DollarsPerHour {
        match self {
            Self::OnDemand => price.on_demand,
            Self::Reserved => price.reserved,
            Self::Own { per_gpu_hour, .. } => per_gpu_hour,
        }
    }
    /// Whether electricity is billed on top of the rate.
    #[must_use]
    pub fn electricity_extra(self) -> bool {
        matches!(self, Self::Own { electricity_extra: true, .. })
    }
}

/// A GPU-hour that costs more is a slip: a judgement, thousands of times what clouds ask (`clusters/*.ron`).
const MOST_DOLLARS_PER_HOUR: f64 = 1e5;

/// The text is no [`Pricing`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not a price; expected `on-demand`, `reserved`, dollars per GPU-hour such as `2.5`, at most {most}, or \
     such a figure with electricity on top, `1.1+power`",
    most = MOST_DOLLARS_PER_HOUR
)]
pub struct PricingError(String);

impl fmt::Display for Pricing {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::OnDemand => f.write_str("on-demand"),
            Self::Reserved => f.write_str("reserved"),
            Self::Own { per_gpu_hour, electricity_extra } => {
                write!(f, "{}{}", per_gpu_hour.0, if *electricity_extra { "+power" } else { "" })
            }
        }
    }
}

impl FromStr for Pricing {
    type Err = PricingError;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "on-demand" => return Ok(Self::OnDemand),
            "reserved" => return Ok(Self::Reserved),
            _ => {}
        }
        let (figure, electricity_extra) = match text.strip_suffix("+power") {
            Some(figure) => (figure, true),
            None => (text, false),
        };
        let figure = figure.strip_suffix("USD/h").unwrap_or(figure);
        match figure.parse::<f64>() {
            Ok(rate) if (0.0..=MOST_DOLLARS_PER_HOUR).contains(&rate) => {
                Ok(Self::Own { per_gpu_hour: DollarsPerHour(rate), electricity_extra })
            }
            _ => Err(PricingError(text.to_owned())),
        }
    }
}

/// Part of a step that stragglers and jitter cost, where `jitter` is the factor that the predicted step
/// already contains.
#[must_use]
pub fn straggler_time(step: Picos, jitter: f64) -> Picos {
    step.scale((1.0 - 1.0 / jitter.max(1.0)).max(0.0))
}

/// A training run as the money model sees it.
#[derive(Debug, Clone, Copy)]
pub struct Run<'a> {
    /// Where it runs.
    pub cluster: &'a Cluster,
    /// On what.
    pub accelerator: &'a Accelerator,
    /// GPUs that are paid for.
    pub gpus: u32,
    /// At what price.
    pub pricing: Pricing,
    /// One optimizer step, stragglers included.
    pub step: Picos,
    /// Part of it that stragglers and jitter cost; see [`straggler_time`].
    pub stragglers: Picos,
    /// Tokens of one step.
    pub tokens_per_step: Tokens,
    /// How its state is saved.
    pub checkpointing: Checkpointing,
}

/// What one step costs while nothing fails.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct StepCost {
    /// The basis of the price.
    pub pricing: Pricing,
    /// Dollars of one GPU-hour.
    #[serde(rename = "usd_per_gpu_hour", serialize_with = "as_number")]
    pub per_gpu_hour: DollarsPerHour,
    /// GPUs that are paid for.
    pub gpus: u32,
    /// Throughput of the job.
    pub tokens_per_s: f64,
    /// Rent, and electricity where it is billed on top.
    #[serde(rename = "usd_per_step", serialize_with = "as_number")]
    pub per_step: Dollars,
    /// The same for 10^12 tokens.
    #[serde(rename = "usd_per_trillion_tokens", serialize_with = "as_number")]
    pub per_trillion_tokens: Dollars,
    /// Energy of the whole job.
    #[serde(rename = "energy_wh_per_step", serialize_with = "as_number")]
    pub energy_per_step: WattHours,
}

/// Where the wall time of a run goes.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct RunTime {
    /// Steps, each done for the first time, without stragglers.
    #[serde(rename = "training_s", serialize_with = "as_number")]
    pub training: Seconds,
    /// What stragglers and jitter add to them.
    #[serde(rename = "stragglers_s", serialize_with = "as_number")]
    pub stragglers: Seconds,
    /// Checkpoints that block.
    #[serde(rename = "checkpoints_s", serialize_with = "as_number")]
    pub checkpoints: Seconds,
    /// Steps that a failure undid.
    #[serde(rename = "lost_work_s", serialize_with = "as_number")]
    pub lost_work: Seconds,
    /// Restarts after failures.
    #[serde(rename = "restarts_s", serialize_with = "as_number")]
    pub restarts: Seconds,
    /// Their sum.
    #[serde(rename = "total_s", serialize_with = "as_number")]
    pub total: Seconds,
}

/// What a run is paid for.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct RunDollars {
    /// Rent of [`RunTime::training`].
    #[serde(rename = "training_usd", serialize_with = "as_number")]
    pub training: Dollars,
    /// Rent of [`RunTime::stragglers`].
    #[serde(rename = "stragglers_usd", serialize_with = "as_number")]
    pub stragglers: Dollars,
    /// Rent of [`RunTime::checkpoints`].
    #[serde(rename = "checkpoints_usd", serialize_with = "as_number")]
    pub checkpoints: Dollars,
    /// Rent of [`RunTime::lost_work`].
    #[serde(rename = "lost_work_usd", serialize_with = "as_number")]
    pub lost_work: Dollars,
    /// Rent of [`RunTime::restarts`].
    #[serde(rename = "restarts_usd", serialize_with = "as_number")]
    pub restarts: Dollars,
    /// Electricity, where the price does not contain it.
    #[serde(rename = "electricity_usd", serialize_with = "as_number")]
    pub electricity: Dollars,
    /// Their sum.
    #[serde(rename = "total_usd", serialize_with = "as_number")]
    pub total: Dollars,
}

/// Energy of a run, and what it costs whoever pays the bill.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct RunEnergy {
    /// Accelerators at their average draw.
    #[serde(rename = "accelerators_wh", serialize_with = "as_number")]
    pub accelerators: WattHours,
    /// Hosts and network.
    #[serde(rename = "hosts_wh", serialize_with = "as_number")]
    pub hosts: WattHours,
    /// Cooling and conversion: the building's power usage effectiveness beyond 1.
    #[serde(rename = "building_wh", serialize_with = "as_number")]
    pub building: WattHours,
    /// Their sum.
    #[serde(rename = "total_wh", serialize_with = "as_number")]
    pub total: WattHours,
    /// Its price at the cluster's tariff; part of the run's dollars only where it is billed on top.
    #[serde(rename = "usd", serialize_with = "as_number")]
    pub price: Dollars,
}

/// A whole run: days, dollars, energy and losses.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct RunCost {
    /// One step.
    pub step: StepCost,
    /// Failures, checkpoints and restarts.
    pub goodput: Goodput,
    /// Tokens trained.
    pub tokens: Tokens,
    /// Optimizer steps.
    pub steps: u64,
    /// Wall time in days.
    pub days: f64,
    /// Where the time goes.
    pub time: RunTime,
    /// GPU-hours paid for.
    pub gpu_hours: f64,
    /// Where the money goes.
    pub dollars: RunDollars,
    /// Energy.
    pub energy: RunEnergy,
    /// Dollars for 10^12 tokens, losses included.
    #[serde(rename = "usd_per_trillion_tokens_with_losses", serialize_with = "as_number")]
    pub per_trillion_tokens: Dollars,
    /// Failures expected during the run.
    pub failures: f64,
    /// Rent of what one failure costs: half an interval of work and the restart.
    #[serde(rename = "usd_per_failure", serialize_with = "as_number")]
    pub per_failure: Dollars,
}

/// A job of several phases.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PhasedCost {
    /// Each phase on its own.
    pub phases: Vec<RunCost>,
    /// Tokens of all phases.
    pub tokens: Tokens,
    /// Wall time in days.
    pub days: f64,
    /// Where the time goes.
    pub time: RunTime,
    /// GPU-hours paid for.
    pub gpu_hours: f64,
    /// Where the money goes.
    pub dollars: RunDollars,
    /// Energy.
    pub energy: RunEnergy,
}

/// Energy that `gpus` draw in `time`: `N (P u + P_host) PUE t`.
#[must_use]
pub fn energy(cluster: &Cluster, accelerator: &Accelerator, gpus: u32, time: Seconds) -> RunEnergy {
    let tariff = &cluster.energy;
    let gpus = f64::from(gpus);
    let accelerators = accelerator.power * (tariff.utilisation * gpus) * time;
    let hosts = tariff.host_per_gpu * gpus * time;
    let building = (accelerators + hosts) * (tariff.pue - 1.0);
    let total = accelerators + hosts + building;
    RunEnergy {
        accelerators,
        hosts,
        building,
        total,
        price: Dollars(total.0 / 1000.0 * tariff.dollars_per_kwh),
    }
}

/// What one step costs while nothing fails: `N price T` (and electricity where it is billed on top).
#[must_use]
pub fn step_cost(run: &Run) -> StepCost {
    let step = run.step.seconds();
    let rate = run.pricing.rate(&run.cluster.price);
    let used = energy(run.cluster, run.accelerator, run.gpus, step);
    let mut per_step = rate * step * f64::from(run.gpus);
    if run.pricing.electricity_extra() {
        per_step += used.price;
    }
    let tokens = run.tokens_per_step.0 as f64;
    StepCost {
        pricing: run.pricing,
        per_gpu_hour: rate,
        gpus: run.gpus,
        tokens_per_s: tokens / step.0,
        per_step,
        per_trillion_tokens: per_step * (1e12 / tokens),
        energy_per_step: used.total,
    }
}

/// How much of a run's time trains.
///
/// # Errors
/// [`NoProgress`] where failures come faster than it can recover.
pub fn goodput_of(run: &Run) -> Result<Goodput, NoProgress> {
    goodput(run.cluster, run.gpus, run.step.seconds(), &run.checkpointing)
}

/// What it costs to train on `tokens`.
///
/// # Errors
/// [`NoProgress`] where failures come faster than the run recovers.
pub fn run_cost(run: &Run, tokens: Tokens) -> Result<RunCost, NoProgress> {
    let step = run.step.seconds();
    let goodput = goodput_of(run)?;
    let steps = tokens.0.div_ceil(run.tokens_per_step.0.max(1));
    let stragglers = run.stragglers.min(run.step).seconds() * steps as f64;
    let training = step * steps as f64 - stragglers;
    let wall = (training + stragglers) / goodput.effective_training_time_ratio;
    let mut time = RunTime {
        training,
        stragglers,
        checkpoints: wall * goodput.checkpoint_share,
        lost_work: wall * goodput.lost_work_share,
        restarts: wall * goodput.restart_share,
        total: Seconds(0.0),
    };
    time.total = time.training + time.stragglers + time.checkpoints + time.lost_work + time.restarts;

    let energy = energy(run.cluster, run.accelerator, run.gpus, time.total);
    let rate = run.pricing.rate(&run.cluster.price);
    let rent = |part: Seconds| rate * part * f64::from(run.gpus);
    let mut dollars = RunDollars {
        training: rent(time.training),
        stragglers: rent(time.stragglers),
        checkpoints: rent(time.checkpoints),
        lost_work: rent(time.lost_work),
        restarts: rent(time.restarts),
        electricity: if run.pricing.electricity_extra() { energy.price } else { Dollars(0.0) },
        total: Dollars(0.0),
    };
    dollars.total = dollars.training
        + dollars.stragglers
        + dollars.checkpoints
        + dollars.lost_work
        + dollars.restarts
        + dollars.electricity;
    Ok(RunCost {
        step: step_cost(run),
        goodput,
        tokens,
        steps,
        days: time.total.0 / 86_400.0,
        time,
        gpu_hours: f64::from(run.gpus) * time.total.0 / 3600.0,
        dollars,
        energy,
        per_trillion_tokens: dollars.total * (1e12 / tokens.0.max(1) as f64),
        failures: time.total / goodput.mean_time_between_failures,
        per_failure: failure_cost(rate, run.gpus, goodput.interval, goodput.restart),
    })
}

/// Rent of what one failure costs: half an interval of work, and the restart.
#[must_use]
pub fn failure_cost(rate: DollarsPerHour, gpus: u32, interval: Seconds, restart: Seconds) -> Dollars {
    rate * (interval * 0.5 + restart) * f64::from(gpus)
}

/// Adds up a job of several phases, each with its own plan and step time.
///
/// # Errors
/// [`NoProgress`] of the first phase that has it.
pub fn phased_cost(phases: &[(Run, Tokens)]) -> Result<PhasedCost, NoProgress> {
    let phases = phases
        .iter()
        .map(|(run, tokens)| run_cost(run, *tokens))
        .collect::<Result<Vec<RunCost>, NoProgress>>()?;
    let time: RunTime = phases.iter().map(|p| p.time).sum();
    Ok(PhasedCost {
        tokens: phases.iter().map(|p| p.tokens).sum(),
        days: time.total.0 / 86_400.0,
        time,
        gpu_hours: phases.iter().map(|p| p.gpu_hours).sum(),
        dollars: phases.iter().map(|p| p.dollars).sum(),
        energy: phases.iter().map(|p| p.energy).sum(),
        phases,
    })
}

macro_rules! add_up {
    ($name:ident { $($field:ident),+ }) => {
        impl Add for $name {
            type Output = Self;
            fn add(self, other: Self) -> Self {
                Self { $($field: self.$field + other.$field),+ }
            }
        }
        impl Sum for $name {
            fn sum<I: Iterator<Item = Self>>(iter: I) -> Self {
                iter.fold(Self::default(), Add::add)
            }
        }
    };
}
add_up!(RunTime { training, stragglers, checkpoints, lost_work, restarts, total });
add_up!(RunDollars { training, stragglers, checkpoints, lost_work, restarts, electricity, total });
add_up!(RunEnergy { accelerators, hosts, building, total, price });

/// What a run leaves unused against the model-FLOPs utilisation that good runs reach. Peak that nobody
/// reaches is not counted: it is no recoverable money.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Waste {
    /// Share of the money that buys nothing: `1 - mfu / achievable`; 0 where the run is better.
    pub share: f64,
    /// The same in dollars.
    #[serde(rename = "usd", serialize_with = "as_number")]
    pub dollars: Dollars,
    /// Further training that the same money would buy at the achievable utilisation, as a share.
    pub extra_training: f64,
    /// What one percentage point of utilisation is worth.
    #[serde(rename = "usd_per_mfu_point", serialize_with = "as_number")]
    pub per_mfu_point: Dollars,
}

/// Compares a run of cost `cost` and utilisation `mfu` with an `achievable` utilisation, both in (0, 1].
#[must_use]
pub fn waste(cost: Dollars, mfu: f64, achievable: f64) -> Waste {
    let share = (1.0 - mfu / achievable).max(0.0);
    Waste {
        share,
        dollars: cost * share,
        extra_training: (achievable / mfu - 1.0).max(0.0),
        per_mfu_point: cost * (0.01 / mfu),
    }
}
