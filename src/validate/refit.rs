//! Refits the constants of [`super::constants`] to a part of the measured rows: what a row is worth that
//! nothing was fitted to.
//!
//! The loss is Cauchy's on logarithms, with a pull of every constant towards its prior; it is minimised by
//! Gauss-Newton steps with reweighting. A constant depends on the rows of its own sources alone. Where all
//! of them are left out, only the prior remains. Constants that verdicts on memory chose have no slope to follow:
//! they keep their value or take their prior.

use std::collections::{BTreeMap, BTreeSet};

use rayon::prelude::*;

use super::case::Case;
use super::constants::{Constant, Constants, ConstantsError, Measurand, Settings};
use super::predict_on;
use super::sets::Noise;
use crate::frameworks::profile::Profile;
use crate::spec::cluster::Accelerator;

/// Residuals well beyond this share (of the logarithm) lose their weight: runs have a slow tail.
const CORE: f64 = 0.04;
/// Noise of a measured step or memory reading that no constant explains, as a share.
const NOISE: f64 = 0.03;
/// Step of the numeric derivative, of the logarithm of a constant.
const NUDGE: f64 = 0.02;
/// Largest change of the logarithm of a constant in one step.
const STRIDE: f64 = 0.3;
/// Gauss-Newton steps.
const STEPS: usize = 10;

/// Cases with the constants that bear on each.
#[derive(Debug)]
pub struct Refit<'a> {
    constants: &'a [Constant],
    cases: &'a [Case],
    shipped: Settings,
    start: Vec<f64>,
    /// By constant: cases that it was fitted to.
    informs: Vec<Vec<usize>>,
}

/// Rows by case and by what was measured of it.
type Readings = BTreeSet<(usize, u8)>;

/// Values of all constants, in the order of the list.
pub type Values = Vec<f64>;

/// What is predicted of a case under some values.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Outcome {
    /// Seconds of a step.
    pub step_s: f64,
    /// Bytes of memory, counted as the case measured them.
    pub memory: f64,
    /// Whether the device can hold the plan.
    pub fits: bool,
}

/// Profiles and accelerators under some values.
#[derive(Debug, Default)]
struct Built {
    profiles: BTreeMap<&'static str, Profile>,
    accelerators: BTreeMap<&'static str, Accelerator>,
}

impl<'a> Refit<'a> {
    /// Prepares cases.
    ///
    /// # Errors
    /// When the list of constants does not match the data files.
    pub fn new(constants: &'a Constants, cases: &'a [Case]) -> Result<Self, ConstantsError> {
        let constants = &constants.fitted;
        let shipped = Settings::shipped();
        let start = constants.iter().map(|c| shipped.value(c)).collect::<Result<_, _>>()?;
        let informs = constants
            .iter()
            .map(|constant| {
                let of_constant = |case: &Case| {
                    constant.sources.contains(&case.labels.source)
                        && Noise::of(&case.labels).is_none_or(|noise| noise.fitted)
                        && touches(constant, case)
                        && match constant.by_verdicts {
                            true => case.measured.out_of_memory.is_some(),
                            false => measured(case, constant.measured).is_some(),
                        }
                };
                (0..cases.len()).filter(|&i| of_constant(&cases[i])).collect()
            })
            .collect();
        Ok(Self { constants, cases, shipped, start, informs })
    }

    /// Values that ship.
    #[must_use]
    pub fn shipped(&self) -> &[f64] {
        &self.start
    }

    /// By constant: how many rows it was fitted to.
    #[must_use]
    pub fn rows(&self) -> Vec<usize> {
        self.informs.iter().map(Vec::len).collect()
    }

    /// Profiles and accelerators of some cases under `values`.
    fn build(&self, values: &[f64], cases: impl Iterator<Item = usize>) -> Built {
        let mut settings = self.shipped.clone();
        for ((constant, &value), &start) in self.constants.iter().zip(values).zip(&self.start) {
            if value.to_bits() != start.to_bits() {
                constant.places.iter().for_each(|place| settings.set(place, value));
            }
        }
        let mut built = Built::default();
        for i in cases {
            let labels = &self.cases[i].labels;
            let (profile, accelerator) = (labels.profile, labels.accelerator);
            built.profiles.entry(profile).or_insert_with(|| {
                settings.profile(profile).unwrap_or_else(|| self.cases[i].profile.clone())
            });
            built.accelerators.entry(accelerator).or_insert_with(|| {
                settings.accelerator(accelerator).unwrap_or_else(|| self.cases[i].accelerator.clone())
            });
        }
        built
    }

    fn predict(&self, built: &Built, at: usize) -> Outcome {
        let case = &self.cases[at];
        let profile = built.profiles.get(case.labels.profile).unwrap_or(case.profile);
        let accelerator = built.accelerators.get(case.labels.accelerator).unwrap_or(&case.accelerator);
        let found = predict_on(case, accelerator, profile);
        let memory = case.measured.memory_kind.of(found.reported);
        Outcome { step_s: found.step_s, memory, fits: found.fits }
    }

    /// What is predicted of cases under some values.
    #[must_use]
    pub fn predictions(&self, values: &[f64], cases: &[usize]) -> Vec<Outcome> {
        let built = self.build(values, cases.iter().copied());
        cases.iter().map(|&at| self.predict(&built, at)).collect()
    }

    /// Fits the constants `free` to the rows that `keep` lets through, starting from `values`.
    #[must_use]
    pub fn fit(&self, values: &[f64], free: &[usize], keep: impl Fn(&Case) -> bool + Sync) -> Values {
        let mut values = values.to_vec();
        let mut informed = Vec::new();
        for &c in free {
            if !self.informs[c].iter().any(|&i| keep(&self.cases[i])) {
                values[c] = self.constants[c].prior;
            } else if !self.constants[c].by_verdicts {
                informed.push(c);
            }
        }
        for block in self.blocks(&informed) {
            values = self.fit_block(values, &block, &keep);
        }
        values
    }

    /// Constants that share rows, directly or through others, belong together: groups in order of the list.
    fn blocks(&self, free: &[usize]) -> Vec<Vec<usize>> {
        let mut blocks: Vec<(Vec<usize>, Readings)> = Vec::new();
        for &c in free {
            let what = self.constants[c].measured as u8;
            let mut rows: Readings = self.informs[c].iter().map(|&i| (i, what)).collect();
            let mut members = Vec::new();
            blocks.retain_mut(|(others, theirs)| {
                let apart = theirs.is_disjoint(&rows);
                if !apart {
                    members.append(others);
                    rows.append(theirs);
                }
                apart
            });
            members.push(c);
            blocks.push((members, rows));
        }
        let mut blocks: Vec<Vec<usize>> = blocks.into_iter().map(|(members, _)| members).collect();
        blocks.iter_mut().for_each(|members| members.sort_unstable());
        blocks.sort_unstable();
        blocks
    }

    fn fit_block(&self, values: Values, free: &[usize], keep: &(impl Fn(&Case) -> bool + Sync)) -> Values {
        let mut rows: Vec<(usize, Measurand)> = free
            .iter()
            .flat_map(|&c| self.informs[c].iter().map(move |&i| (i, self.constants[c].measured)))
            .filter(|&(i, _)| keep(&self.cases[i]))
            .collect();
        rows.sort_unstable_by_key(|&(i, what)| (i, what as u8));
        rows.dedup();
        let mut best = (self.loss(&values, free, &rows), values);
        for _ in 0..STEPS {
            let step = self.step(&best.1, free, &rows);
            let mut scale = 1.0;
            let mut gain = 0.0;
            for _ in 0..5 {
                let mut trial = best.1.clone();
                for (&c, d) in free.iter().zip(&step) {
                    trial[c] *= (scale * d.clamp(-STRIDE, STRIDE)).exp();
                }
                let loss = self.loss(&trial, free, &rows);
                if loss < best.0 {
                    gain = best.0 - loss;
                    best = (loss, trial);
                    break;
                }
                scale *= 0.4;
            }
            if gain <= 1e-4 * best.0 {
                break;
            }
        }
        best.1
    }

    /// Logarithmic residuals of rows under some values.
    fn residuals(&self, values: &[f64], rows: &[(usize, Measurand)]) -> Vec<f64> {
        let built = self.build(values, rows.iter().map(|&(i, _)| i));
        rows.par_iter().map(|&(i, what)| self.residual(&built, i, what)).collect()
    }

    fn residual(&self, built: &Built, at: usize, what: Measurand) -> f64 {
        let found = self.predict(built, at);
        let predicted = match what {
            Measurand::StepTime => found.step_s,
            Measurand::Memory => found.memory,
        };
        measured(&self.cases[at], what).map_or(0.0, |truth| (predicted / truth).ln())
    }

    fn loss(&self, values: &[f64], free: &[usize], rows: &[(usize, Measurand)]) -> f64 {
        let data: f64 = self.residuals(values, rows).iter().map(|r| loss_of(*r)).sum();
        let prior: f64 = free.iter().map(|&c| 0.5 * self.pull(values, c).powi(2)).sum();
        data + prior
    }

    /// Distance of a constant from its prior, in spreads.
    fn pull(&self, values: &[f64], c: usize) -> f64 {
        let constant = &self.constants[c];
        (values[c] / constant.prior).ln() / constant.spread
    }

    /// One Gauss-Newton step of the logarithms of the free constants.
    fn step(&self, values: &[f64], free: &[usize], rows: &[(usize, Measurand)]) -> Vec<f64> {
        let base = self.residuals(values, rows);
        let columns: Vec<Vec<f64>> = free
            .par_iter()
            .map(|&c| {
                let mut nudged = values.to_vec();
                nudged[c] *= NUDGE.exp();
                let of: BTreeSet<usize> = self.informs[c].iter().copied().collect();
                let built = self.build(&nudged, rows.iter().map(|&(i, _)| i).filter(|i| of.contains(i)));
                rows.iter()
                    .zip(&base)
                    .map(|(&(i, what), &before)| {
                        let bears = of.contains(&i) && what == self.constants[c].measured;
                        if bears { (self.residual(&built, i, what) - before) / NUDGE } else { 0.0 }
                    })
                    .collect()
            })
            .collect();
        let weights: Vec<f64> =
            base.iter().map(|r| 1.0 / (1.0 + (r / CORE).powi(2)) / (NOISE * NOISE)).collect();
        let n = free.len();
        let mut matrix = vec![vec![0.0; n + 1]; n];
        for a in 0..n {
            for b in 0..n {
                matrix[a][b] =
                    weights.iter().zip(&columns[a]).zip(&columns[b]).map(|((w, x), y)| w * x * y).sum();
            }
            let constant = &self.constants[free[a]];
            matrix[a][a] += constant.spread.powi(-2);
            let gradient: f64 = weights.iter().zip(&columns[a]).zip(&base).map(|((w, x), r)| w * x * r).sum();
            matrix[a][n] = -(gradient + self.pull(values, free[a]) / constant.spread);
        }
        solve(matrix)
    }

    /// Fits with every publication left out in turn, all of its sources at once; gives what is predicted of each case then.
    #[must_use]
    pub fn leave_sources_out(&self, mut progress: impl FnMut(usize, usize)) -> Vec<Outcome> {
        let mut publications: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        for (at, case) in self.cases.iter().enumerate() {
            publications.entry(&case.labels.publication).or_default().push(at);
        }
        let mut all = vec![Outcome { step_s: f64::NAN, memory: f64::NAN, fits: false }; self.cases.len()];
        for (done, (&publication, own)) in publications.iter().enumerate() {
            let sources: BTreeSet<&str> =
                own.iter().map(|&at| self.cases[at].labels.source.as_str()).collect();
            let free: Vec<usize> = (0..self.constants.len())
                .filter(|&c| self.constants[c].sources.iter().any(|source| sources.contains(source.as_str())))
                .collect();
            let values = self.fit(&self.start, &free, |case| case.labels.publication != publication);
            for (&at, prediction) in own.iter().zip(self.predictions(&values, own)) {
                all[at] = prediction;
            }
            progress(done + 1, publications.len());
        }
        all
    }
}

/// Whether a case's profile or accelerator holds a place of the constant, in a format that it uses.
fn touches(constant: &Constant, case: &Case) -> bool {
    constant.places.iter().any(|place| {
        let Some((file, field)) = place.split_once(": ") else { return false };
        match file.split_once('/') {
            Some(("profiles", name)) => name == case.labels.profile,
            Some((_, name)) => {
                let mut parts = field.split('.');
                let rate = parts.next() == Some("rates");
                name == case.labels.accelerator
                    && (!rate || parts.next() == Some(&format!("{:?}", case.job.precision.format())))
            }
            None => false,
        }
    })
}

fn measured(case: &Case, what: Measurand) -> Option<f64> {
    match what {
        Measurand::StepTime => case.measured.step_s,
        Measurand::Memory => case.measured.memory,
    }
    .filter(|x| *x > 0.0)
}

/// Cauchy's loss.
fn loss_of(residual: f64) -> f64 {
    0.5 * (CORE / NOISE).powi(2) * (residual / CORE).powi(2).ln_1p()
}

/// Solves a linear system given as an augmented matrix; unknowns without a pivot stay 0.
pub(crate) fn solve(mut m: Vec<Vec<f64>>) -> Vec<f64> {
    let n = m.len();
    for i in 0..n {
        let pivot = (i..n).max_by(|&a, &b| m[a][i].abs().total_cmp(&m[b][i].abs())).unwrap_or(i);
        m.swap(i, pivot);
        if m[i][i].abs() < 1e-12 {
            continue;
        }
        for row in 0..n {
            if row != i {
                let factor = m[row][i] / m[i][i];
                for column in i..=n {
                    m[row][column] -= factor * m[i][column];
                }
            }
        }
    }
    (0..n).map(|i| if m[i][i].abs() < 1e-12 { 0.0 } else { m[i][n] / m[i][i] }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_linear_system_is_solved() {
        let x = solve(vec![vec![0.0, 2.0, 4.0], vec![1.0, 1.0, 3.0]]);
        assert!((x[0] - 1.0).abs() < 1e-12 && (x[1] - 2.0).abs() < 1e-12);
        assert_eq!(solve(vec![vec![0.0, 1.0]]), [0.0]);
    }

    #[test]
    fn a_refit_recovers_a_constant_and_falls_back_to_the_prior_without_rows() {
        let mut cases =
            crate::validate::cases(include_str!("../../results/published/measured.csv").as_bytes()).unwrap();
        cases.retain(|case| case.labels.source == "MOSAIC");
        let list = Constants::shipped().unwrap();
        let at =
            list.fitted.iter().position(|c| c.name.starts_with("llm-foundry: matrix products on H")).unwrap();
        // Runs that are a tenth slower in their products than what ships.
        let refit = Refit::new(&list, &cases).unwrap();
        let mut slow = refit.shipped().to_vec();
        slow[at] *= 0.9;
        let all: Vec<usize> = (0..cases.len()).collect();
        let truth = refit.predictions(&slow, &all);
        let mut runs = cases.clone();
        for (case, outcome) in runs.iter_mut().zip(&truth) {
            case.measured.step_s = Some(outcome.step_s);
        }
        let refit = Refit::new(&list, &runs).unwrap();
        let fitted = refit.fit(refit.shipped(), &[at], |_| true);
        assert!((fitted[at] / slow[at] - 1.0).abs() < 0.01, "{} {}", fitted[at], slow[at]);
        let without = refit.fit(refit.shipped(), &[at], |_| false);
        assert_eq!(without[at], list.fitted[at].prior);
    }
}
