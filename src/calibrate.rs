//! Fits a site's constants to a handful of its own runs.
//!
//! Few constants are fitted, each physical and shared by all runs: the speed of the site's GPUs in all number formats and
//! in attention (clocks, power), what each format that the runs use gains or loses beside it, and the share of the
//! network's line rate where runs span nodes. A run in one format so says something of the others. The loss is
//! Huber's on the logarithm of the step time (10 %, or what runs of the class err by where that is more), with a pull
//! towards the shipped values, so that two runs cannot bend a constant as far as twenty. What the runs say nothing of stays as
//! shipped. Error bars hold both what the runs scatter and what the pull may keep a constant from. Runs that differ in the
//! batch alone, and repetitions, share what their plan is off by, so that together they weigh as much as one.
//!
//! What is left of the runs makes error bars of the site's own for predictions of the kind of runs that were measured.

use std::collections::BTreeMap;

use rayon::prelude::*;
use serde::Serialize;

use crate::plan::Layout;
use crate::spec::Machine;
use crate::spec::cluster::{Format, OwnRuns};
use crate::spec::special::Special;
use crate::validate::case::Case;
use crate::validate::refit::solve;
use crate::validate::{CasePrediction, ErrorStatistics, predict_case};

/// Residuals beyond this share (of the logarithm) count linearly, at least.
const HUBER: f64 = 0.10;
/// How far the shipped speed of a card is trusted, as one standard deviation of its logarithm; with [`FORMAT_SIGMA`] 15 %, the
/// spread of one accelerator between sites: products of A100s run at 0.94 to 1.07 of the shipped rate at those of Megatron
/// 2021, AA-Scaling and BLOOM, those of H100s at 500 W at 0.74 of 700 W (results/constants.md).
const SITE_SIGMA: f64 = 0.13;
/// The same of what one number format gains or loses beside the others: of H100s at 500 W and at 700 W the fitted BF16 shares
/// are 0.74 of each other and the FP8 shares 0.80 (results/constants.md), 7 % apart.
const FORMAT_SIGMA: f64 = 0.07;
/// The same of the network's share, as one standard deviation of the logarithm of the share over what is lost: 0.77 and 0.96
/// about 0.90, so that nothing beyond the line rate is thought possible. The shipped clusters have 0.71 to 0.90.
const NETWORK_SIGMA: f64 = 1.0;
/// The largest share of the line rate that collectives were measured to reach: 48 of 50 GB/s per NDR card
/// (NVIDIA/nccl-tests issue 290). What lies beyond would be read into it from other errors.
const MOST_OF_LINE_RATE: f64 = 0.96;
/// The least that is searched.
const LEAST_OF_LINE_RATE: f64 = 0.05;
/// A constant stays as shipped where the runs weigh less than this of what its shipped value weighs.
const FELT: f64 = 0.05;
/// Gauss-Newton steps, at most, and the step that ends them.
const STEPS: usize = 40;
const SETTLED: f64 = 1e-4;
/// How often a step that does not pay is halved.
const HALVINGS: usize = 8;
/// Fewest plans whose runs show their own noise; with fewer it is taken for what the loss takes it.
const FEWEST_PLANS: usize = 3;
/// The speed of the site's cards is searched between these logarithms of its ratio to what ships, 0.41 to 1.8 times; the ratio
/// of a format to the others between these.
const SEARCHED: (f64, f64) = (-0.9, 0.6);
const SEARCHED_FORMAT: (f64, f64) = (-0.25, 0.25);
/// Where a search that ends at its bound stops short of it, at most.
const NEAR: f64 = 2e-3;
/// Step by which a constant's logarithm is moved both ways to see how step times depend on it.
const NUDGE: f64 = 0.02;
/// Significant digits of fitted values: more would be noise.
const DIGITS: i32 = 4;
/// A run that is further off than this is not explained by the fit.
pub const FAR_OFF: f64 = 0.25;
/// One plan in so many may be far off and count as [`FAR_OFF`] in an error bar: the slips of a table, which are told
/// apart. Where more are, they are what runs of the site do, and count in full.
const STRAYS: usize = 10;

/// A constant that is fitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Constant {
    /// Speed of all matrix products and of attention, as a factor on what ships.
    Speed,
    /// Sustained share of the peak of a format.
    Sustained(Format),
    /// Share of the line rate that collectives between nodes reach.
    NetworkEfficiency,
}

impl std::fmt::Display for Constant {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        match self {
            Self::Speed => f.write_str("speed of the GPUs, all formats"),
            Self::Sustained(format) => write!(f, "sustained share of the {format:?} peak"),
            Self::NetworkEfficiency => f.write_str("share of the network's line rate"),
        }
    }
}

/// What holds a constant where it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum HeldBy {
    /// The runs: they say more about it than its shipped value.
    Runs,
    /// The runs and its shipped value, which says more.
    Both,
    /// Its shipped value, at which it stays: the runs hardly say anything about it.
    Prior,
    /// The runs say nothing of this format beside the speed of the GPUs, with which it moves: mostly none is in it.
    Speed,
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
    /// Share of what is known about it that the runs say.
    pub of_runs: f64,
    /// One standard error, of noise and of the prior's pull; none where it stays as shipped and where a bound holds it.
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
    /// Relative error of the predicted peak memory, on which no fitted constant bears, where it was measured.
    pub memory: Option<f64>,
}

/// A calibration.
#[derive(Debug, Clone)]
pub struct Calibration {
    /// Cluster and accelerator with the fitted constants, and with what the runs are off by then.
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

    /// How far predictions of peak memory are off, of the runs that state it.
    #[must_use]
    pub fn memory(&self) -> Option<ErrorStatistics> {
        let errors: Vec<f64> = self.residuals.iter().filter_map(|run| run.memory).collect();
        ErrorStatistics::of(&errors)
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

/// What is fitted, over what ships: logarithms, that of a format beside the speed of all; of the network's share as
/// [`NETWORK_SIGMA`] has it.
type Logs = BTreeMap<Constant, f64>;

/// Runs with what the fit needs of each.
struct Runs<'a> {
    machine: &'a Machine,
    cases: Vec<&'a Case>,
    /// Runs by plan.
    plans: Vec<Vec<usize>>,
    /// By run: what it weighs among the runs of its plan.
    shares: Vec<f64>,
    /// Residuals beyond these count linearly.
    widths: Vec<f64>,
}

/// What a fit knows at a point: residuals, how step times depend on each constant, what the runs weigh.
#[derive(Clone)]
struct Point {
    constants: Vec<Constant>,
    residuals: Vec<f64>,
    /// By constant and run: how the logarithm of the step time moves with that of the constant.
    slopes: Vec<Vec<f64>>,
    /// By run: weight of its squared residual, per width squared.
    weights: Vec<f64>,
    /// What the runs weigh of each pair of constants.
    data: Vec<Vec<f64>>,
}

/// Fits the constants of `machine` to runs.
///
/// # Errors
/// When no run has a step time.
pub fn calibrate(machine: &Machine, cases: &[Case]) -> Result<Calibration, CalibrateError> {
    let mut machine = machine.clone();
    // Bars of an earlier calibration say nothing of this one.
    machine.cluster.own_runs.clear();
    let cases: Vec<&Case> = cases.iter().filter(|c| c.measured.step_s.is_some_and(|s| s > 0.0)).collect();
    if cases.is_empty() {
        return Err(CalibrateError::NoRuns);
    }
    let widths = cases.par_iter().map(|case| on(&machine, case).interval.sigma.max(HUBER)).collect();
    let plans = plans(&cases);
    let mut shares = vec![1.0; cases.len()];
    for plan in &plans {
        plan.iter().for_each(|&run| shares[run] = 1.0 / plan.len() as f64);
    }
    let runs = Runs { machine: &machine, cases, plans, shares, widths };
    let logs = runs.fit();

    let point = runs.point(&logs);
    let constants = runs.fitted(&logs, &point);
    let mut fitted = written(&machine, &logs);
    let residuals = runs.residuals(&fitted);
    fitted.cluster.own_runs = runs.own_runs(&logs, &point);
    Ok(Calibration { machine: fitted, constants, residuals })
}

/// What runs make one error bar: profile, experts, what is special, format.
type Kind = (&'static str, bool, Vec<Special>, Format);

fn kind(case: &Case) -> Kind {
    let special = Special::of(&case.job, &case.cluster, case.labels.crossing);
    (case.labels.profile, case.labels.experts, special, case.job.precision.format())
}

/// Runs by plan: alike but for the batch.
fn plans(cases: &[&Case]) -> Vec<Vec<usize>> {
    let mut plans: BTreeMap<_, Vec<usize>> = BTreeMap::new();
    for (run, case) in cases.iter().enumerate() {
        let parameters = crate::layers::parameter_count(&case.model).total;
        let layout = Layout { gradient_accumulation_steps: 1, ..*case.plan.layout() };
        let recompute = case.plan.common_recompute().map(|mode| mode.to_string());
        let job = (case.job.gpus, case.job.sequence_length, parameters);
        plans.entry((kind(case), job, layout, recompute)).or_default().push(run);
    }
    plans.into_values().collect()
}

/// One standard deviation of what is fitted of a constant, as trusted before any run.
fn prior(constant: Constant) -> f64 {
    match constant {
        Constant::Speed => SITE_SIGMA,
        Constant::Sustained(_) => FORMAT_SIGMA,
        Constant::NetworkEfficiency => NETWORK_SIGMA,
    }
}

impl Runs<'_> {
    /// Constants that a run may depend on.
    fn possible(&self) -> Vec<Constant> {
        let formats = self.machine.accelerator.rates.keys().map(|&format| Constant::Sustained(format));
        let all = [Constant::Speed].into_iter().chain(formats).chain([Constant::NetworkEfficiency]);
        all.filter(|&constant| self.count(constant) > 0).collect()
    }

    /// Runs that a constant bears on.
    fn count(&self, constant: Constant) -> usize {
        let concerns = |case: &&&Case| match constant {
            Constant::Speed => true,
            Constant::Sustained(format) => case.job.precision.format() == format,
            Constant::NetworkEfficiency => case.job.gpus > case.cluster.scale_up.domain,
        };
        self.cases.iter().filter(concerns).count()
    }

    /// Least and greatest logarithm of a constant.
    fn bounds(&self, constant: Constant) -> (f64, f64) {
        match constant {
            Constant::Speed => SEARCHED,
            Constant::Sustained(_) => SEARCHED_FORMAT,
            Constant::NetworkEfficiency => {
                let from_shipped = |share: f64| odds(share) - odds(self.machine.cluster.scale_out.efficiency);
                (from_shipped(LEAST_OF_LINE_RATE).min(0.0), from_shipped(MOST_OF_LINE_RATE).max(0.0))
            }
        }
    }

    /// Logarithms of predicted over measured step times.
    fn log_residuals(&self, logs: &Logs) -> Vec<f64> {
        let machine = apply(self.machine, logs);
        let residual = |case: &&Case| (on(&machine, case).step_s / case.measured.step_s.unwrap_or(1.0)).ln();
        self.cases.par_iter().map(residual).collect()
    }

    fn point(&self, logs: &Logs) -> Point {
        let constants: Vec<Constant> = logs.keys().copied().collect();
        let residuals = self.log_residuals(logs);
        let moved = |constant: Constant, by: f64| {
            let mut moved = logs.clone();
            *moved.entry(constant).or_default() += by;
            self.log_residuals(&moved)
        };
        let slope = |&constant: &Constant| -> Vec<f64> {
            let (up, down) = (moved(constant, NUDGE), moved(constant, -NUDGE));
            up.iter().zip(down).map(|(up, down)| (up - down) / (2.0 * NUDGE)).collect()
        };
        let slopes: Vec<Vec<f64>> = constants.iter().map(slope).collect();
        let weight = |((r, width), share): ((&f64, &f64), &f64)| {
            share * (width / r.abs().max(*width)).min(1.0) / (width * width)
        };
        let weights = residuals.iter().zip(&self.widths).zip(&self.shares).map(weight).collect();
        Point { constants, residuals, slopes, weights, data: Vec::new() }.weighed()
    }

    fn loss(&self, logs: &Logs) -> f64 {
        let huber = |((residual, width), share): ((f64, &f64), &f64)| {
            let x = residual.abs() / width;
            share * if x <= 1.0 { 0.5 * x * x } else { x - 0.5 }
        };
        let residuals = self.log_residuals(logs).into_iter();
        let data: f64 = residuals.zip(&self.widths).zip(&self.shares).map(huber).sum();
        data + logs.iter().map(|(&c, log)| 0.5 * (log / prior(c)).powi(2)).sum::<f64>()
    }

    /// The logarithms of least loss of all constants that the runs feel.
    fn fit(&self) -> Logs {
        let mut logs: Logs = self.possible().into_iter().map(|constant| (constant, 0.0)).collect();
        let start = self.point(&logs);
        for (at, &constant) in start.constants.iter().enumerate() {
            // At full weight: runs that are far off at the start need not be so in the end.
            let slopes = start.slopes[at].iter().zip(&self.widths).zip(&self.shares);
            let squares = slopes.map(|((s, width), share)| share * (s / width).powi(2));
            if squares.sum::<f64>() * prior(constant).powi(2) < FELT {
                logs.remove(&constant);
            }
        }
        let mut loss = self.loss(&logs);
        for _ in 0..STEPS {
            let step = self.step(&logs, &self.point(&logs));
            let mut share = 1.0;
            let taken = (0..HALVINGS).find_map(|_| {
                let trial: Logs = logs
                    .iter()
                    .map(|(&constant, log)| {
                        let (low, high) = self.bounds(constant);
                        (constant, (log + share * step[&constant]).clamp(low, high))
                    })
                    .collect();
                share *= 0.5;
                let at_trial = self.loss(&trial);
                (at_trial < loss).then_some((trial, at_trial))
            });
            let Some((trial, at_trial)) = taken else { break };
            let moved = trial.iter().map(|(c, log)| (log - logs[c]).abs()).fold(0.0, f64::max);
            (logs, loss) = (trial, at_trial);
            if moved < SETTLED {
                break;
            }
        }
        logs
    }

    /// A Gauss-Newton step; constants at a bound that would leave it stay.
    fn step(&self, logs: &Logs, point: &Point) -> Logs {
        let mut held: Vec<bool> = vec![false; point.constants.len()];
        loop {
            let row = |a: usize| {
                let constant = point.constants[a];
                let weight = prior(constant).powi(-2);
                let pull = weight * logs[&constant]
                    + (point.weights.iter().zip(&point.slopes[a]).zip(&point.residuals))
                        .map(|((w, s), r)| w * s * r)
                        .sum::<f64>();
                let mut row: Vec<f64> = (0..held.len())
                    .map(|b| if held[a] || held[b] { 0.0 } else { point.data[a][b] })
                    .collect();
                row[a] = if held[a] { 1.0 } else { row[a] + weight };
                row.push(if held[a] { 0.0 } else { -pull });
                row
            };
            let step = solve((0..held.len()).map(row).collect());
            let leaves = |at: &usize| {
                let (low, high) = self.bounds(point.constants[*at]);
                let log = logs[&point.constants[*at]];
                !held[*at] && (log <= low && step[*at] < 0.0 || log >= high && step[*at] > 0.0)
            };
            let Some(at) = (0..held.len()).find(leaves) else {
                return point.constants.iter().copied().zip(step).collect();
            };
            held[at] = true;
        }
    }

    /// What is said of each constant.
    fn fitted(&self, logs: &Logs, point: &Point) -> Vec<Fitted> {
        let errors = Errors::of(point, self.plans.len());
        let log = |constant: Constant| logs.get(&constant).copied();
        let at_bound = |constant: Constant| {
            let (low, high) = self.bounds(constant);
            log(constant).is_some_and(|log| log - low < NEAR || high - log < NEAR)
        };
        let speed = log(Constant::Speed).unwrap_or(0.0);
        let formats = self.machine.accelerator.rates.iter();
        let formats = formats.map(|(&format, rate)| (Constant::Sustained(format), rate.sustained));
        let network = (Constant::NetworkEfficiency, self.machine.cluster.scale_out.efficiency);
        let network = (self.count(network.0) > 0).then_some(network);
        let told = |(constant, before): (Constant, f64)| {
            let own = log(constant);
            let (low, high) = self.bounds(constant);
            // A format's share is the product of what it is beside the others and of the speed of all.
            let parts = match constant {
                Constant::Sustained(_) => vec![Constant::Speed, constant],
                _ => vec![constant],
            };
            let of_speed = match constant {
                Constant::Sustained(_) => (speed, SEARCHED),
                _ => (0.0, (0.0, 0.0)),
            };
            let value = |log: f64| {
                rounded(match constant {
                    Constant::NetworkEfficiency => share_of(odds(before) + log),
                    _ => (before * log.exp()).min(most(constant)),
                })
            };
            let after = value(own.unwrap_or(0.0) + of_speed.0);
            let bound = parts.iter().any(|&part| at_bound(part)) || after >= most(constant) && after > before;
            let (error, of_runs) = errors.of_sum(&parts);
            let held_by = match (own.is_some(), parts.len() > 1 && log(Constant::Speed).is_some()) {
                (false, false) => HeldBy::Prior,
                (false, true) => HeldBy::Speed,
                (true, _) if bound => HeldBy::Bound,
                (true, _) if of_runs >= 0.5 => HeldBy::Runs,
                (true, _) => HeldBy::Both,
            };
            let known = !matches!(held_by, HeldBy::Prior | HeldBy::Bound) && !bound;
            Fitted {
                constant,
                before,
                after: if held_by == HeldBy::Prior { before } else { after },
                searched: (value(low + of_speed.1.0), value(high + of_speed.1.1)),
                held_by,
                of_runs,
                standard_error: known.then_some(match constant {
                    Constant::NetworkEfficiency => after * (1.0 - after) * error,
                    _ => after * error,
                }),
                runs: self.count(constant),
            }
        };
        [(Constant::Speed, 1.0)].into_iter().chain(formats).chain(network).map(told).collect()
    }

    fn residuals(&self, fitted: &Machine) -> Vec<Residual> {
        let residual = |case: &&Case| {
            let measured = case.measured.step_s.unwrap_or(f64::NAN);
            let [before, after] = [self.machine, fitted].map(|machine| on(machine, case));
            let counted = |prediction: &CasePrediction| case.measured.memory_kind.of(prediction.reported);
            Residual {
                id: case.id.clone(),
                measured_step_s: measured,
                before: before.step_s / measured - 1.0,
                after: after.step_s / measured - 1.0,
                memory: case.measured.memory.map(|memory| counted(&after) / memory - 1.0),
            }
        };
        self.cases.iter().map(residual).collect()
    }

    /// Where a fit without some of the runs would go, in one step from that to all.
    fn fit_without(&self, plan: &[usize], logs: &Logs, point: &Point) -> Logs {
        let step = self.step(logs, &point.without(plan));
        let moved = |(&constant, log): (&Constant, &f64)| {
            let (low, high) = self.bounds(constant);
            (constant, (log + step[&constant]).clamp(low, high))
        };
        logs.iter().map(moved).collect()
    }

    /// What plans of each kind are off by when they are predicted from the others.
    fn own_runs(&self, logs: &Logs, point: &Point) -> Vec<OwnRuns> {
        let off = |plan: &Vec<usize>| {
            let machine = apply(self.machine, &self.fit_without(plan, logs, point));
            let square = |&run: &usize| {
                let case = self.cases[run];
                (on(&machine, case).step_s / case.measured.step_s.unwrap_or(1.0)).ln().powi(2)
            };
            plan.iter().map(square).sum::<f64>() / plan.len() as f64
        };
        let squares: Vec<f64> = self.plans.par_iter().map(off).collect();
        let mut kinds: BTreeMap<Kind, Vec<(u32, f64)>> = BTreeMap::new();
        for (plan, square) in self.plans.iter().zip(squares) {
            let case = self.cases[plan[0]];
            kinds.entry(kind(case)).or_default().push((case.job.gpus, square));
        }
        let told = |((profile, experts, special, format), plans): (Kind, Vec<(u32, f64)>)| {
            let bound = FAR_OFF.powi(2);
            let far_off = plans.iter().filter(|(_, square)| *square > bound).count();
            let most = if far_off * STRAYS <= plans.len() { bound } else { f64::INFINITY };
            let squares: f64 = plans.iter().map(|(_, square)| square.min(most)).sum();
            let gpus = plans.iter().map(|(gpus, _)| *gpus);
            OwnRuns {
                profile: profile.to_owned(),
                experts,
                special,
                format,
                gpus: gpus.fold((u32::MAX, 0), |(low, high), gpus| (low.min(gpus), high.max(gpus))),
                runs: plans.len(),
                far_off,
                error: rounded((squares / plans.len() as f64).sqrt()),
            }
        };
        kinds.into_iter().map(told).collect()
    }
}

/// The largest value of a constant; all but the speed are shares.
fn most(constant: Constant) -> f64 {
    if constant == Constant::Speed { f64::INFINITY } else { 1.0 }
}

/// To [`DIGITS`] significant digits.
fn rounded(value: f64) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return value;
    }
    let digits = DIGITS - 1 - value.abs().log10().floor() as i32;
    // Quotients of whole numbers are printed as short as they are.
    let power = 10f64.powi(digits.abs());
    if digits >= 0 { (value * power).round() / power } else { (value / power).round() * power }
}

fn pairs(count: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..count).flat_map(move |a| (0..count).map(move |b| (a, b)))
}

/// The inverse of a symmetric matrix.
fn inverse(matrix: &[Vec<f64>]) -> Vec<Vec<f64>> {
    let unit = |at: usize| {
        let row = |(a, row): (usize, &Vec<f64>)| {
            let mut row = row.clone();
            row.push(f64::from(u8::from(a == at)));
            row
        };
        solve(matrix.iter().enumerate().map(row).collect())
    };
    (0..matrix.len()).map(unit).collect()
}

impl Point {
    /// The same with what the weights make of the runs.
    fn weighed(mut self) -> Self {
        let of_runs = |a: &Vec<f64>, b: &Vec<f64>| {
            self.weights.iter().zip(a).zip(b).map(|((w, x), y)| w * x * y).sum::<f64>()
        };
        self.data = self.slopes.iter().map(|a| self.slopes.iter().map(|b| of_runs(a, b)).collect()).collect();
        self
    }

    /// The same without some runs.
    fn without(&self, runs: &[usize]) -> Self {
        let mut point = self.clone();
        runs.iter().for_each(|&run| point.weights[run] = 0.0);
        point.weighed()
    }

    /// What the runs weigh, so many times, and what the shipped values weigh.
    fn posterior(&self, times: f64) -> Vec<Vec<f64>> {
        let at = |a: usize, b: usize| {
            let shipped = if a == b { prior(self.constants[a]).powi(-2) } else { 0.0 };
            times * self.data[a][b] + shipped
        };
        (0..self.constants.len()).map(|a| (0..self.constants.len()).map(|b| at(a, b)).collect()).collect()
    }
}

/// Errors of the logarithms of constants.
///
/// Near its minimum the loss is a quadratic form: `D`, what the runs weigh, plus `P`, what the prior weighs. The fit errs by
/// `(D + P)^-1` times what noise pushes and what the prior pulls. Noise has a variance of `v` times `D`, with the
/// variance `v` of the runs' own residuals in place of the 1 that the loss takes it for; the pull, where sites differ
/// from what ships as the prior says, one of `P`. So the covariance is `(D + P)^-1 (v D + P) (D + P)^-1`: with
/// quiet runs nearly all of it is the pull, which repeating or leaving out runs does not show.
struct Errors<'a> {
    constants: &'a [Constant],
    /// Of what is fitted.
    covariance: Vec<Vec<f64>>,
    /// The same if noise were what the loss takes it for.
    expected: Vec<Vec<f64>>,
}

impl<'a> Errors<'a> {
    fn of(point: &'a Point, plans: usize) -> Self {
        let count = point.constants.len();
        let expected = inverse(&point.posterior(1.0));
        let taken: f64 = pairs(count).map(|(a, b)| expected[a][b] * point.data[b][a]).sum();
        let free = (plans as f64 - taken).max(1.0);
        let squares: f64 = point.weights.iter().zip(&point.residuals).map(|(w, r)| w * r * r).sum();
        // Few plans say little of their own noise: within 5 % the square of the 68.3 % point of Student's distribution.
        let student = 1.0 + 1.1 / free + 1.3 / (free * free);
        let noise = if plans < FEWEST_PLANS { 1.0 } else { student * squares / free };
        let middle = point.posterior(noise);
        let entry = |a: usize, b: usize| -> f64 {
            pairs(count).map(|(c, d)| expected[a][c] * middle[c][d] * expected[d][b]).sum()
        };
        let covariance = (0..count).map(|a| (0..count).map(|b| entry(a, b)).collect()).collect();
        Self { constants: &point.constants, covariance, expected }
    }

    /// One standard error of the sum of the logarithms of some constants, and the share of what is known about it that the
    /// runs say. Constants that were not fitted err as the prior says.
    fn of_sum(&self, parts: &[Constant]) -> (f64, f64) {
        let at: Vec<usize> =
            parts.iter().filter_map(|part| self.constants.iter().position(|c| c == part)).collect();
        let sum = |matrix: &[Vec<f64>]| -> f64 {
            at.iter().flat_map(|&a| at.iter().map(move |&b| (a, b))).map(|(a, b)| matrix[a][b]).sum()
        };
        let square = |constant: &Constant| prior(*constant).powi(2);
        let unknown: f64 = parts.iter().filter(|part| !self.constants.contains(part)).map(square).sum();
        let before: f64 = parts.iter().map(square).sum();
        let error = (sum(&self.covariance).max(0.0) + unknown).sqrt();
        (error, (1.0 - (sum(&self.expected) + unknown) / before).clamp(0.0, 1.0))
    }
}

/// Logarithm of a share over what is lost of the whole; nearly nothing is, at least.
fn odds(share: f64) -> f64 {
    let share = share.min(0.999);
    (share / (1.0 - share)).ln()
}

/// The share that has these [`odds`].
fn share_of(odds: f64) -> f64 {
    1.0 / (1.0 + (-odds).exp())
}

/// The machine with these constants. Attention follows the speed of the cards, as it does under a power cap.
fn apply(machine: &Machine, logs: &Logs) -> Machine {
    let mut machine = machine.clone();
    let log = |constant: Constant| logs.get(&constant).copied();
    let times = |value: &mut f64, log: f64| *value = (*value * log.exp()).min(1.0);
    let speed = log(Constant::Speed).unwrap_or(0.0);
    for (&format, rate) in &mut machine.accelerator.rates {
        times(&mut rate.sustained, speed + log(Constant::Sustained(format)).unwrap_or(0.0));
    }
    for rates in machine.accelerator.attention.values_mut() {
        times(&mut rates.forward.0, speed);
        times(&mut rates.backward.0, speed);
    }
    if let Some(moved) = log(Constant::NetworkEfficiency) {
        let share = &mut machine.cluster.scale_out.efficiency;
        *share = share_of(odds(*share) + moved);
    }
    machine
}

/// The same, with as many digits as are worth writing.
fn written(machine: &Machine, logs: &Logs) -> Machine {
    let mut machine = apply(machine, logs);
    let shorten = |value: &mut f64| *value = rounded(*value);
    if logs.contains_key(&Constant::Speed) {
        machine.accelerator.rates.values_mut().for_each(|rate| shorten(&mut rate.sustained));
        for rates in machine.accelerator.attention.values_mut() {
            shorten(&mut rates.forward.0);
            shorten(&mut rates.backward.0);
        }
    }
    if logs.contains_key(&Constant::NetworkEfficiency) {
        shorten(&mut machine.cluster.scale_out.efficiency);
    }
    machine
}

fn on(machine: &Machine, case: &Case) -> CasePrediction {
    let Machine { cluster, accelerator } = machine.clone();
    predict_case(&Case { cluster, accelerator, ..case.clone() })
}
