//! Fits a site's constants to a handful of its own runs.
//!
//! Few constants are fitted, each physical and shared by all runs: the sustained rate of every number
//! format that the runs use, and the share of the network's line rate where runs span nodes. The loss is
//! Huber's on the logarithm of the step time (10 %), with a pull towards the shipped value (15 %), so
//! that two runs cannot bend a constant as far as twenty. Error bars hold both what the runs scatter and what the pull may
//! keep a constant from.

use std::collections::BTreeMap;

use rayon::prelude::*;
use serde::Serialize;

use crate::spec::Machine;
use crate::spec::cluster::Format;
use crate::validate::case::Case;
use crate::validate::predict_case;
use crate::validate::refit::solve;

/// Residuals beyond this share (of the logarithm) count linearly.
const HUBER: f64 = 0.10;
/// How far a shipped constant is trusted, as one standard deviation of its logarithm: the spread of the
/// same accelerator between sites.
const PRIOR_SIGMA: f64 = 0.15;
/// Sweeps over the constants; each is found by golden-section search.
const SWEEPS: usize = 4;
/// Fewest runs after which an error is stated.
const FEWEST_RUNS: usize = 3;
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
    /// One standard error, of noise and of the prior's pull; none with fewer than three runs, and where something else
    /// than the runs holds it.
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

    let slopes = slopes(machine, &fitted, &all);
    let residuals = log_residuals(&apply(machine, &fitted), &all);
    let errors = errors(&slopes, &residuals);
    let constants = shipped
        .iter()
        .map(|(&constant, &before)| {
            let after = fitted[&constant];
            let searched = searched(before);
            let held_by = held_by(&slopes[&constant], after, searched);
            let known = cases.len() >= FEWEST_RUNS && held_by == HeldBy::Runs;
            let standard_error = known.then(|| after * errors[&constant]);
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

/// By constant, how the logarithm of each run's step time moves with that of the constant.
type Slopes = BTreeMap<Constant, Vec<f64>>;

fn slopes(machine: &Machine, fitted: &Values, cases: &[&Case]) -> Slopes {
    let at = |values: &Values| -> Vec<f64> {
        let machine = apply(machine, values);
        cases.par_iter().map(|case| predict_as(&machine, case).ln()).collect()
    };
    let base = at(fitted);
    let slope = |&constant: &Constant| {
        let mut lowered = fitted.clone();
        lowered.insert(constant, fitted[&constant] * (-LOWERED).exp());
        let moved = at(&lowered);
        (constant, moved.iter().zip(&base).map(|(moved, base)| (base - moved) / LOWERED).collect())
    };
    fitted.keys().map(slope).collect()
}

/// What holds a constant at its fitted value. Each run of which the logarithm of the step time moves by `s` times
/// that of the constant weighs `(s / HUBER)^2`, the prior `1 / PRIOR_SIGMA^2`.
fn held_by(slopes: &[f64], value: f64, searched: (f64, f64)) -> HeldBy {
    let weight: f64 = slopes.iter().map(|slope| (slope / HUBER).powi(2)).sum();
    if weight < PRIOR_SIGMA.powi(-2) {
        return HeldBy::Prior;
    }
    let at = |bound: f64| (value / bound).ln().abs() < NEAR;
    if at(searched.0) || at(searched.1) { HeldBy::Bound } else { HeldBy::Runs }
}

/// One standard error of the logarithm of each constant.
///
/// Near its minimum the loss is a quadratic form: `D`, what the runs weigh, plus `P`, what the prior weighs. The fit errs by
/// `(D + P)^-1` times what noise pushes and what the prior pulls. Noise has a variance of `v / HUBER^2` times `D`, with the
/// variance `v` of the runs' own residuals in place of `HUBER^2` that the loss takes it for; the pull, where sites differ
/// from what ships as the prior says, one of `P`. So the covariance is `(D + P)^-1 (v / HUBER^2 D + P) (D + P)^-1`: with
/// quiet runs nearly all of it is the pull, which repeating or leaving out runs does not show.
fn errors(slopes: &Slopes, residuals: &[f64]) -> BTreeMap<Constant, f64> {
    let weights: Vec<f64> = residuals.iter().map(|r| (HUBER / r.abs().max(HUBER)).min(1.0)).collect();
    let columns: Vec<&Vec<f64>> = slopes.values().collect();
    let count = columns.len();
    let of_runs = |a: usize, b: usize| {
        let terms = weights.iter().zip(columns[a]).zip(columns[b]);
        terms.map(|((w, x), y)| w * x * y).sum::<f64>() / (HUBER * HUBER)
    };
    let data: Vec<Vec<f64>> = (0..count).map(|a| (0..count).map(|b| of_runs(a, b)).collect()).collect();
    let of_prior = PRIOR_SIGMA.powi(-2);
    // Rows of the inverse of both together, which is symmetric.
    let inverse: Vec<Vec<f64>> = (0..count)
        .map(|unit| {
            let row = |a: usize| {
                let mut row = data[a].clone();
                row[a] += of_prior;
                row.push(f64::from(u8::from(a == unit)));
                row
            };
            solve((0..count).map(row).collect())
        })
        .collect();
    let taken: f64 = (0..count)
        .flat_map(|a| (0..count).map(move |b| (a, b)))
        .map(|(a, b)| inverse[a][b] * data[b][a])
        .sum();
    let free = (residuals.len() as f64 - taken).max(1.0);
    let squares: f64 = weights.iter().zip(residuals).map(|(w, r)| w * r * r).sum();
    // Few runs say little of their own noise: within 5 % the square of the 68.3 % point of Student's distribution.
    let student = 1.0 + 1.1 / free + 1.3 / (free * free);
    let noise = student * squares / free / (HUBER * HUBER);
    let error = |(at, &constant): (usize, &Constant)| {
        let x = &inverse[at];
        let variance = |a: usize, b: usize| noise * data[a][b] + if a == b { of_prior } else { 0.0 };
        let sum: f64 = (0..count)
            .flat_map(|a| (0..count).map(move |b| (a, b)))
            .map(|(a, b)| x[a] * variance(a, b) * x[b])
            .sum();
        (constant, sum.max(0.0).sqrt())
    };
    slopes.keys().enumerate().map(error).collect()
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

/// Logarithms of predicted over measured step times.
fn log_residuals(machine: &Machine, cases: &[&Case]) -> Vec<f64> {
    let residual = |case: &&Case| (predict_as(machine, case) / case.measured.step_s.unwrap_or(1.0)).ln();
    cases.par_iter().map(residual).collect()
}

fn loss(machine: &Machine, shipped: &Values, values: &Values, cases: &[&Case]) -> f64 {
    let huber = |residual: f64| {
        let x = residual.abs() / HUBER;
        if x <= 1.0 { 0.5 * x * x } else { x - 0.5 }
    };
    let data: f64 = log_residuals(&apply(machine, values), cases).into_iter().map(huber).sum();
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
