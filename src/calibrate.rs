//! Fits a site's constants to a handful of its own runs.
//!
//! Few constants are fitted, each physical and shared by all runs: the sustained rate of every number
//! format that the runs use, and the share of the network's line rate where runs span nodes. The loss is
//! Huber's on the logarithm of the step time (10 %), with a pull towards the shipped value (15 %), so
//! that two runs cannot bend a constant as far as twenty. Error bars come from leaving runs out.

use std::collections::BTreeMap;

use rayon::prelude::*;
use serde::Serialize;

use crate::spec::Machine;
use crate::spec::cluster::Format;
use crate::validate::case::Case;
use crate::validate::predict_case;

/// Residuals beyond this share (of the logarithm) count linearly.
const HUBER: f64 = 0.10;
/// How far a shipped constant is trusted, as one standard deviation of its logarithm: the spread of the
/// same accelerator between sites.
const PRIOR_SIGMA: f64 = 0.15;
/// Sweeps over the constants; each is found by golden-section search.
const SWEEPS: usize = 4;
/// Runs are left out in at most this many groups.
const FOLDS: usize = 12;
/// A constant is searched between these logarithms of its ratio to the shipped value: 0.41 to 1.8 times.
const SEARCHED: (f64, f64) = (-0.9, 0.6);
/// Where a search that ends at its bound stops short of it, at most.
const NEAR: f64 = 2e-3;
/// Step by which a constant's logarithm is lowered to see how step times depend on it.
const LOWERED: f64 = 0.05;
/// A run that is further off than this is not explained by the fit.
pub const FAR_OFF: f64 = 0.25;

/// A constant that is fitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Constant {
    /// Sustained share of the peak of a format.
    Sustained(Format),
    /// Share of the line rate that collectives between nodes reach.
    NetworkEfficiency,
}

impl std::fmt::Display for Constant {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        match self {
            Self::Sustained(format) => write!(f, "sustained share of the {format:?} peak"),
            Self::NetworkEfficiency => f.write_str("share of the network's line rate"),
        }
    }
}

/// What holds a constant where it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum HeldBy {
    /// The runs: their step times depend on it.
    Runs,
    /// Its shipped value, as a prior: the runs say less about it.
    Prior,
    /// The end of what was searched: the runs ask for more.
    Bound,
}

/// A fitted constant.
#[derive(Debug, Clone, Serialize)]
pub struct Fitted {
    /// Which.
    pub constant: Constant,
    /// As shipped.
    pub before: f64,
    /// Fitted.
    pub after: f64,
    /// Least and greatest value that was searched.
    pub searched: (f64, f64),
    /// What holds it there.
    pub held_by: HeldBy,
    /// One standard error, from leaving runs out; none with fewer than three runs, and where something else than
    /// the runs holds it.
    pub standard_error: Option<f64>,
    /// Runs that it was fitted to.
    pub runs: usize,
}

/// One run before and after.
#[derive(Debug, Clone, Serialize)]
pub struct Residual {
    /// Id of the run.
    pub id: String,
    /// Measured seconds of a step.
    pub measured_step_s: f64,
    /// Relative error with the shipped constants.
    pub before: f64,
    /// And with the fitted ones.
    pub after: f64,
}

/// A calibration.
#[derive(Debug, Clone)]
pub struct Calibration {
    /// Cluster and accelerator with the fitted constants.
    pub machine: Machine,
    /// What was fitted.
    pub constants: Vec<Fitted>,
    /// Run by run.
    pub residuals: Vec<Residual>,
}

impl Calibration {
    /// Runs that are off by more than [`FAR_OFF`] even with the fitted constants.
    #[must_use]
    pub fn far_off(&self) -> usize {
        self.residuals.iter().filter(|run| run.after.abs() > FAR_OFF).count()
    }

    /// How many times as long as predicted with the shipped constants a step takes, in the median over the runs.
    #[must_use]
    pub fn slowness(&self) -> f64 {
        let mut ratios: Vec<f64> = self.residuals.iter().map(|run| 1.0 / (1.0 + run.before)).collect();
        ratios.sort_by(f64::total_cmp);
        ratios.get(ratios.len() / 2).copied().unwrap_or(1.0)
    }

    /// Whether the constants explain the runs. Where most are far off all the same, something else is wrong.
    #[must_use]
    pub fn explains(&self) -> bool {
        2 * self.far_off() <= self.residuals.len()
    }
}

/// Why nothing could be fitted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CalibrateError {
    /// No run could be used.
    #[error("none of the rows is a run on this machine that can be predicted and has a step time")]
    NoRuns,
}

type Values = BTreeMap<Constant, f64>;

/// Fits the constants of `machine` to runs.
///
/// # Errors
/// When no run has a step time.
pub fn calibrate(machine: &Machine, cases: &[Case]) -> Result<Calibration, CalibrateError> {
    let cases: Vec<Case> =
        cases.iter().filter(|c| c.measured.step_s.is_some_and(|s| s > 0.0)).cloned().collect();
    if cases.is_empty() {
        return Err(CalibrateError::NoRuns);
    }
    let shipped = values(machine, &cases);
    let all: Vec<&Case> = cases.iter().collect();
    let fitted = fit(machine, &shipped, &all);

    // Leave groups of runs out to see how firmly each constant is held.
    let folds = FOLDS.min(cases.len());
    let refits: Vec<Values> = if cases.len() < 3 {
        Vec::new()
    } else {
        (0..folds)
            .into_par_iter()
            .map(|fold| {
                let kept: Vec<&Case> =
                    cases.iter().enumerate().filter(|(i, _)| i % folds != fold).map(|(_, c)| c).collect();
                fit(machine, &shipped, &kept)
            })
            .collect()
    };
    let constants = shipped
        .iter()
        .map(|(&constant, &before)| {
            let after = fitted[&constant];
            let searched = searched(before);
            let held_by = held_by(machine, &fitted, constant, searched, &all);
            let standard_error = (!refits.is_empty() && held_by == HeldBy::Runs).then(|| {
                // Jackknife over groups.
                let n = refits.len() as f64;
                let mean = refits.iter().map(|v| v[&constant]).sum::<f64>() / n;
                let sum: f64 = refits.iter().map(|v| (v[&constant] - mean).powi(2)).sum();
                ((n - 1.0) / n * sum).sqrt()
            });
            let runs = cases.iter().filter(|case| concerns(constant, case)).count();
            Fitted { constant, before, after, searched, held_by, standard_error, runs }
        })
        .collect();
    let residuals = cases
        .iter()
        .map(|case| {
            let measured = case.measured.step_s.unwrap_or(f64::NAN);
            let error = |v: &Values| predict(machine, v, case) / measured - 1.0;
            Residual {
                id: case.id.clone(),
                measured_step_s: measured,
                before: error(&shipped),
                after: error(&fitted),
            }
        })
        .collect();
    Ok(Calibration { machine: apply(machine, &fitted), constants, residuals })
}

/// Least and greatest value of a constant that is searched; all are shares.
fn searched(shipped: f64) -> (f64, f64) {
    (shipped * SEARCHED.0.exp(), (shipped * SEARCHED.1.exp()).min(1.0))
}

/// What holds a constant at its fitted value. Each run of which the logarithm of the step time moves by `s` times
/// that of the constant weighs `(s / HUBER)^2`, the prior `1 / PRIOR_SIGMA^2`.
fn held_by(
    machine: &Machine,
    fitted: &Values,
    constant: Constant,
    searched: (f64, f64),
    cases: &[&Case],
) -> HeldBy {
    let value = fitted[&constant];
    let mut lowered = fitted.clone();
    lowered.insert(constant, value * (-LOWERED).exp());
    let weight: f64 = cases
        .iter()
        .map(|case| (predict(machine, &lowered, case) / predict(machine, fitted, case)).ln() / LOWERED)
        .map(|sensitivity| (sensitivity / HUBER).powi(2))
        .sum();
    if weight < PRIOR_SIGMA.powi(-2) {
        return HeldBy::Prior;
    }
    let at = |bound: f64| (value / bound).ln().abs() < NEAR;
    if at(searched.0) || at(searched.1) { HeldBy::Bound } else { HeldBy::Runs }
}

fn concerns(constant: Constant, case: &Case) -> bool {
    match constant {
        Constant::Sustained(format) => case.job.precision.format() == format,
        Constant::NetworkEfficiency => case.job.gpus > case.cluster.scale_up.domain,
    }
}

/// Shipped values of the constants that some run depends on.
fn values(machine: &Machine, cases: &[Case]) -> Values {
    let mut values = Values::new();
    for (&format, rate) in &machine.accelerator.rates {
        let constant = Constant::Sustained(format);
        if cases.iter().any(|case| concerns(constant, case)) {
            values.insert(constant, rate.sustained);
        }
    }
    if cases.iter().any(|case| concerns(Constant::NetworkEfficiency, case)) {
        values.insert(Constant::NetworkEfficiency, machine.cluster.scale_out.efficiency);
    }
    values
}

/// The machine with these constants.
fn apply(machine: &Machine, values: &Values) -> Machine {
    let mut machine = machine.clone();
    for (&constant, &value) in values {
        match constant {
            Constant::Sustained(format) => {
                if let Some(rate) = machine.accelerator.rates.get_mut(&format) {
                    rate.sustained = value;
                }
            }
            Constant::NetworkEfficiency => machine.cluster.scale_out.efficiency = value,
        }
    }
    machine
}

fn predict(machine: &Machine, values: &Values, case: &Case) -> f64 {
    predict_as(&apply(machine, values), case)
}

fn predict_as(machine: &Machine, case: &Case) -> f64 {
    let Machine { cluster, accelerator } = machine.clone();
    predict_case(&Case { cluster, accelerator, ..case.clone() }).step_s
}

fn loss(machine: &Machine, shipped: &Values, values: &Values, cases: &[&Case]) -> f64 {
    let huber = |residual: f64| {
        let x = residual.abs() / HUBER;
        if x <= 1.0 { 0.5 * x * x } else { x - 0.5 }
    };
    let machine = apply(machine, values);
    let residual = |case: &&Case| (predict_as(&machine, case) / case.measured.step_s.unwrap_or(1.0)).ln();
    let residuals: Vec<f64> = cases.par_iter().map(residual).collect();
    let data: f64 = residuals.into_iter().map(huber).sum();
    let prior: f64 = values.iter().map(|(c, v)| 0.5 * ((v / shipped[c]).ln() / PRIOR_SIGMA).powi(2)).sum();
    data + prior
}

fn fit(machine: &Machine, shipped: &Values, cases: &[&Case]) -> Values {
    let mut values = shipped.clone();
    let golden = (5f64.sqrt() - 1.0) / 2.0;
    for _ in 0..SWEEPS {
        for (&constant, &start) in shipped {
            let at = |log: f64| {
                let mut trial = values.clone();
                trial.insert(constant, (start * log.exp()).min(1.0));
                loss(machine, shipped, &trial, cases)
            };
            let (mut low, mut high) = SEARCHED;
            let (mut a, mut b) = (high - golden * (high - low), low + golden * (high - low));
            let (mut at_a, mut at_b) = (at(a), at(b));
            while high - low > 1e-3 {
                if at_a <= at_b {
                    (high, b, at_b) = (b, a, at_a);
                    a = high - golden * (high - low);
                    at_a = at(a);
                } else {
                    (low, a, at_a) = (a, b, at_b);
                    b = low + golden * (high - low);
                    at_b = at(b);
                }
            }
            let best = (start * ((low + high) / 2.0).exp()).min(1.0);
            values.insert(constant, best);
        }
    }
    values
}
