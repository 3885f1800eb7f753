//! Scores the cost and memory models on measured runs: errors by class, verdicts on memory, ranking
//! of plans, and how honest the error bars are.

mod bars;
pub mod baseline;
pub mod case;
pub mod constants;
pub mod goals;
pub mod misses;
pub mod page;
mod publications;
mod rates;
pub mod refit;
pub mod sets;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;

use rayon::prelude::*;
use serde::Serialize;

use crate::cost::model::CostModel;
use crate::cost::step::{self, RankMemory};
use crate::frameworks::error_bars::{ErrorBars, Interval};
use crate::frameworks::profile::Profile;
use crate::spec::cluster::Accelerator;
use crate::spec::measured::{MeasuredError, MeasuredReader, MeasuredRow};
use crate::spec::special::Special;
pub use bars::error_bars;
use case::{Case, Labels, Measured, Shelf, Subject};
use constants::Measurand;

/// Rows are read and predicted this many at a time.
const BATCH: usize = 2048;

/// What is predicted of one row, beside what was measured.
#[derive(Debug, Clone, Serialize)]
pub struct RowReport {
    /// Id of the row, or its line where it has none.
    pub id: String,
    /// Seconds of one step.
    pub predicted_step_s: Option<f64>,
    /// One standard deviation of it in seconds, as `plan` prints it: that of its logarithm times the prediction.
    pub predicted_step_sigma: Option<f64>,
    /// What holds 95.4 % of such runs, in the same way.
    pub predicted_step_two_sigma: Option<f64>,
    /// The shortest and the longest step of what holds 95.4 % of such runs, in seconds, as of `plan`: bars are factors, not sums.
    pub predicted_step_range_s: Option<[f64; 2]>,
    /// Bytes of tensors on the fullest rank, in decimal GB.
    pub predicted_allocated_gb: Option<f64>,
    /// What the allocator reserves there.
    pub predicted_reserved_gb: Option<f64>,
    /// What `nvidia-smi` shows there.
    pub predicted_device_gb: Option<f64>,
    /// The one of the three that the row measured, allocated where it does not say, on the rank whose peak its framework
    /// reports: the fullest, or the first.
    pub predicted_mem_gb: Option<f64>,
    /// One standard deviation of it: that of its logarithm times the prediction. The other two have the same shares.
    pub predicted_mem_sigma_gb: Option<f64>,
    /// What holds 95.4 % of such runs, in the same way.
    pub predicted_mem_two_sigma_gb: Option<f64>,
    /// The least and the most memory of what holds 95.4 % of such runs.
    pub predicted_mem_range_gb: Option<[f64; 2]>,
    /// Whether the device can hold the plan.
    pub fits: Option<bool>,
    /// Columns that the row leaves empty and that were filled from the framework's defaults, those whose text was taken
    /// for something near it, and those that it names as not stated by its source.
    pub assumed: Vec<&'static str>,
    /// Run-time profile of the prediction.
    pub profile: Option<&'static str>,
    /// Why the row was not predicted.
    pub skipped: Option<String>,
    /// The kind of fault that this reason is of.
    #[serde(skip)]
    pub fault: Option<String>,
    /// Measured seconds of one step.
    pub measured_step_s: Option<f64>,
    /// Measured memory in decimal GB.
    pub measured_mem_gb: Option<f64>,
    /// Seconds of one step by the rate that the row prints in the place of a time (see [`rates`]).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate_step_s: Option<f64>,
    /// What that rate is taken to count.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate_counts: Option<&'static str>,
    /// Whether the run ran out of memory.
    pub out_of_memory: Option<bool>,
    /// Plan in one line.
    pub plan: Option<String>,
    /// Seconds of one step with constants that were fitted without the row's source.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub left_out_step_s: Option<f64>,
    /// Memory in decimal GB with such constants.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub left_out_mem_gb: Option<f64>,
    /// Whether the device can hold the plan by such constants.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub left_out_fits: Option<bool>,
    /// Labels for grouping.
    #[serde(skip)]
    pub labels: Labels,
    /// Number format.
    #[serde(skip)]
    pub precision: &'static str,
}

impl RowReport {
    /// Relative error of the predicted step time.
    #[must_use]
    pub fn step_error(&self) -> Option<f64> {
        Some(self.predicted_step_s? / self.measured_step_s? - 1.0)
    }
    /// Relative error against the step time that a printed rate says.
    #[must_use]
    pub fn rate_error(&self) -> Option<f64> {
        Some(self.predicted_step_s? / self.rate_step_s? - 1.0)
    }
    /// Relative error of the predicted memory.
    #[must_use]
    pub fn memory_error(&self) -> Option<f64> {
        Some(self.predicted_mem_gb? / self.measured_mem_gb? - 1.0)
    }
    /// Relative error of the step time with constants fitted without the row's source.
    #[must_use]
    pub fn left_out_step_error(&self) -> Option<f64> {
        Some(self.left_out_step_s? / self.measured_step_s? - 1.0)
    }
    /// Relative error of the memory with constants fitted without the row's source.
    #[must_use]
    pub fn left_out_memory_error(&self) -> Option<f64> {
        Some(self.left_out_mem_gb? / self.measured_mem_gb? - 1.0)
    }
}

/// Errors of one class of rows, as shares of what was measured.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct ErrorStatistics {
    /// Rows.
    pub rows: usize,
    /// Median of absolute errors.
    pub median: f64,
    /// Mean of absolute errors.
    pub mean: f64,
    /// Nine of ten absolute errors are smaller.
    pub p90: f64,
    /// Largest absolute error.
    pub worst: f64,
    /// Median of signed errors: positive where predictions are slow.
    pub bias: f64,
}

impl ErrorStatistics {
    /// Statistics of signed errors; none where there are none.
    #[must_use]
    pub fn of(errors: &[f64]) -> Option<Self> {
        let mut signed = errors.to_vec();
        signed.sort_by(f64::total_cmp);
        let mut absolute: Vec<f64> = errors.iter().map(|e| e.abs()).collect();
        absolute.sort_by(f64::total_cmp);
        Some(Self {
            rows: errors.len(),
            median: quantile(&absolute, 0.5)?,
            mean: absolute.iter().sum::<f64>() / absolute.len() as f64,
            p90: quantile(&absolute, 0.9)?,
            worst: *absolute.last()?,
            bias: quantile(&signed, 0.5)?,
        })
    }
}

/// Quantile of sorted numbers, interpolated between neighbours.
fn quantile(sorted: &[f64], share: f64) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    let at = share * last as f64;
    let (low, high) = (at.floor() as usize, at.ceil() as usize);
    Some(sorted[low] + (sorted[high] - sorted[low]) * (at - low as f64))
}

/// Errors over all rows and by class.
#[derive(Debug, Clone, Default, Serialize)]
pub struct ErrorTable {
    /// All rows.
    pub all: Option<ErrorStatistics>,
    /// By dimension (gpu, framework, ...) and class.
    pub by: BTreeMap<&'static str, BTreeMap<String, ErrorStatistics>>,
}

/// What a row is predicted to take, and whether it is predicted to fit.
type Predicted = (fn(&RowReport) -> Option<f64>, fn(&RowReport) -> Option<bool>);

/// As shipped.
const SHIPPED: Predicted = (|row| row.predicted_step_s, |row| row.fits);
/// With constants that were fitted without the row's source.
const LEFT_OUT: Predicted = (|row| row.left_out_step_s, |row| row.left_out_fits);

/// Verdicts on memory against what happened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct MemoryVerdicts {
    /// Ran, and predicted to fit.
    pub ran_fits: usize,
    /// Ran, but called impossible.
    pub ran_rejected: usize,
    /// Ran out of memory, as predicted.
    pub failed_rejected: usize,
    /// Ran out of memory, but predicted to fit.
    pub failed_fits: usize,
}

impl MemoryVerdicts {
    fn of(rows: &[&RowReport], fits: fn(&RowReport) -> Option<bool>) -> Self {
        let mut verdicts = Self::default();
        for row in rows {
            match (row.out_of_memory, fits(row)) {
                (Some(false), Some(true)) => verdicts.ran_fits += 1,
                (Some(false), Some(false)) => verdicts.ran_rejected += 1,
                (Some(true), Some(false)) => verdicts.failed_rejected += 1,
                (Some(true), Some(true)) => verdicts.failed_fits += 1,
                _ => {}
            }
        }
        verdicts
    }
    /// Share of the runs that ran that were called impossible; 0 of none.
    #[must_use]
    pub fn called_impossible(&self) -> f64 {
        self.ran_rejected as f64 / (self.ran_fits + self.ran_rejected).max(1) as f64
    }
    /// Runs with a verdict.
    #[must_use]
    pub fn judged(&self) -> usize {
        self.ran_fits + self.ran_rejected + self.failed_rejected + self.failed_fits
    }
    /// Share of right verdicts; 0 of none.
    #[must_use]
    pub fn right(&self) -> f64 {
        (self.ran_fits + self.failed_rejected) as f64 / self.judged().max(1) as f64
    }
}

/// Runs that differ only in their plan.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RankedGroup {
    /// Source, model, accelerator, GPUs, precision, sequence length, batch.
    pub group: String,
    /// Runs with a step time.
    pub runs: usize,
    /// Kendall's rank correlation of predicted and measured times.
    pub tau: f64,
    /// How much slower the run that is predicted fastest was than the fastest.
    pub regret: f64,
    /// The same where only runs predicted to fit may be picked and runs out of memory count too;
    /// none where the pick ran out of memory.
    pub regret_with_memory: Option<f64>,
}

/// Ranking quality over groups of four runs and more.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Ranking {
    /// Groups.
    pub groups: Vec<RankedGroup>,
    /// Mean of tau.
    pub mean_tau: Option<f64>,
    /// Mean of regret.
    pub mean_regret: Option<f64>,
    /// Rows that picks by time and memory together took and that ran out of memory.
    pub picks_out_of_memory: Vec<String>,
}

/// How often the truth lies inside the error bars.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct Coverage {
    /// Share of rows inside one standard deviation (68 % if honest).
    pub one_sigma: f64,
    /// Share of rows inside what is said to hold 95 %.
    pub two_sigma: f64,
    /// Share of rows inside twice one standard deviation.
    pub twice_one_sigma: f64,
}

/// Everything about a file.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Summary {
    /// Rows read.
    pub rows: usize,
    /// Rows predicted.
    pub predicted: usize,
    /// Rows skipped, by kind of fault, the most frequent first.
    pub skipped: Vec<SkippedRows>,
    /// Rows that repeat another row's run and were not counted again.
    pub repeated: usize,
    /// Errors of step time.
    pub step_time: ErrorTable,
    /// Errors of peak memory.
    pub memory: ErrorTable,
    /// Errors against step times that printed rates say, by the convention that they are taken to follow, and by how tokens
    /// are routed. They are in no other table.
    pub by_rates: BTreeMap<String, ErrorStatistics>,
    /// Verdicts on memory.
    pub out_of_memory: MemoryVerdicts,
    /// Ranking of plans, noisy rows aside (see [`sets::NOISE`]).
    pub ranking: Ranking,
    /// The same with the runs that their own source contradicts.
    pub ranking_with_contradicted: Ranking,
    /// Ranking of plans over all rows.
    pub ranking_of_all: Ranking,
    /// Sets of rows that other planners publish their errors over.
    pub named_sets: Vec<sets::NamedSet>,
    /// Error bars of step times.
    pub coverage: Option<Coverage>,
    /// The same bars around predictions with constants that were fitted without the row's source.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub left_out_inside_shipped: Option<Coverage>,
    /// Such predictions inside bars that the row's source did not inform, as for a framework that nobody measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub left_out_coverage: Option<Coverage>,
    /// The bars of step times around those of rows that print a rate in their place: as shipped...
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rates_coverage: Option<Coverage>,
    /// ...and bars that the row's publication did not inform.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub left_out_rates_coverage: Option<Coverage>,
    /// Error bars of peak memory.
    pub memory_coverage: Option<Coverage>,
    /// The same bars around memory predicted with constants that were fitted without the row's source.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub left_out_memory_inside_shipped: Option<Coverage>,
    /// Memory predicted so inside bars that the row's source did not inform.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub left_out_memory_coverage: Option<Coverage>,
    /// Fitted constants behind the predictions.
    pub fitted_constants: usize,
    /// Of them, those that are never fitted again.
    pub held_constants: usize,
    /// Errors of step time of rows whose source no constant was fitted to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub of_other_sources: Option<ErrorStatistics>,
    /// Bounds that these errors should keep.
    pub goals: Vec<goals::Goal>,
    /// Errors of rows whose source was left out of the fit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub left_out: Option<LeftOut>,
}

/// Rows that were skipped for one kind of fault.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SkippedRows {
    /// The reason, where it is the same for all; else what all reasons have in common.
    pub reason: String,
    /// How many rows.
    pub rows: usize,
    /// The first of them, and why they were skipped where reasons differ.
    pub examples: Vec<String>,
}

/// Most examples of a kind of fault where reasons are the same, and where they differ.
const EXAMPLES: (usize, usize) = (3, 2);

/// Rows that were skipped, by kind of fault, the most frequent first.
fn faults(rows: &[RowReport]) -> Vec<SkippedRows> {
    struct Kind<'r> {
        rows: usize,
        alike: bool,
        first: Vec<(&'r str, &'r str)>,
    }
    let mut kinds: BTreeMap<&str, Kind> = BTreeMap::new();
    for row in rows {
        let (Some(fault), Some(reason)) = (&row.fault, &row.skipped) else { continue };
        let kind = kinds.entry(fault).or_insert(Kind { rows: 0, alike: true, first: Vec::new() });
        kind.rows += 1;
        kind.alike &= kind.first.first().is_none_or(|(_, other)| other == reason);
        if kind.first.len() < EXAMPLES.0 {
            kind.first.push((&row.id, reason));
        }
    }
    let mut skipped: Vec<SkippedRows> = kinds
        .into_iter()
        .map(|(fault, kind)| {
            let one = kind.first.first().filter(|_| kind.alike).map(|(_, reason)| *reason);
            let example = |(id, reason): &(&str, &str)| match (one, *id) {
                (Some(_), id) => id.to_owned(),
                // A row that could not be read has no name; its reason has the line.
                (None, "") => (*reason).to_owned(),
                (None, id) => format!("{id}: {reason}"),
            };
            let most = if one.is_some() { EXAMPLES.0 } else { EXAMPLES.1 };
            SkippedRows {
                reason: one.unwrap_or(fault).to_owned(),
                rows: kind.rows,
                examples: kind.first.iter().take(most).map(example).filter(|text| !text.is_empty()).collect(),
            }
        })
        .collect();
    skipped.sort_by(|a, b| b.rows.cmp(&a.rows).then_with(|| a.reason.cmp(&b.reason)));
    skipped
}

/// Errors of rows whose source was left out of the fit.
#[derive(Debug, Clone, Default, Serialize)]
pub struct LeftOut {
    /// Of step time.
    pub step_time: ErrorTable,
    /// Of peak memory.
    pub memory: ErrorTable,
    /// Verdicts on memory.
    pub out_of_memory: MemoryVerdicts,
    /// Ranking of plans by step times predicted so, noisy rows aside.
    pub ranking: Ranking,
    /// The same with the runs that their own source contradicts.
    pub ranking_with_contradicted: Ranking,
}

/// Rows and summary.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Report {
    /// Rows in order of the file.
    pub rows: Vec<RowReport>,
    /// Columns of the file without a meaning.
    pub unknown_columns: Vec<String>,
    /// Summary.
    pub summary: Summary,
}

/// Predicts every row of a measured table that `keep` lets through. `progress` is told how many rows
/// of how many are done, those that are not kept included.
///
/// # Errors
/// When the text is no such table; single rows never fail, they are skipped with a reason.
pub fn validate(
    input: impl Read,
    keep: impl Fn(&MeasuredRow) -> bool + Sync,
    mut progress: impl FnMut(usize, usize),
) -> Result<Report, MeasuredError> {
    let shelf = Shelf::shipped();
    let mut reader = MeasuredReader::new(input)?;
    let unknown_columns = reader.unknown_columns().map(str::to_owned).collect();
    let (mut done, of) = (0, reader.rows());
    let mut rows = Vec::new();
    loop {
        let mut batch = Vec::with_capacity(BATCH);
        for row in reader.by_ref().take(BATCH) {
            batch.push(row);
        }
        if batch.is_empty() {
            break;
        }
        let reports: Vec<Option<RowReport>> = batch
            .par_iter()
            .map(|row| match row {
                Ok(row) => keep(row).then(|| report_row(row, &shelf)),
                Err(error) => {
                    let reason = error.to_string();
                    Some(skipped(String::new(), case::without_particulars(&reason), reason))
                }
            })
            .collect();
        rows.extend(reports.into_iter().flatten());
        done += batch.len();
        progress(done, of);
    }
    publications::join(rows.iter_mut().map(|row: &mut RowReport| &mut row.labels));
    let summary = summarise(&rows);
    Ok(Report { rows, unknown_columns, summary })
}

/// Reads all rows of a measured table that can be predicted.
///
/// # Errors
/// When the text is no such table.
pub fn cases(input: impl Read) -> Result<Vec<Case>, MeasuredError> {
    let shelf = Shelf::shipped();
    let rows = MeasuredReader::new(input)?.filter_map(Result::ok);
    let mut cases: Vec<Case> = rows.filter_map(|row| Case::read(&row, &shelf).ok()).collect();
    publications::join(cases.iter_mut().map(|case| &mut case.labels));
    Ok(cases)
}

/// Predicts the rows of a report once more, each with constants that were fitted without its source.
/// `cases`: the measured rows that the constants were fitted to.
///
/// # Errors
/// When the list of constants does not match the data files.
pub fn leave_sources_out(
    report: &mut Report,
    cases: &[Case],
    progress: impl FnMut(usize, usize),
) -> Result<(), constants::ConstantsError> {
    let list = constants::Constants::shipped()?;
    let refit = refit::Refit::new(&list, cases)?;
    let found: BTreeMap<&str, refit::Outcome> =
        cases.iter().map(|case| case.id.as_str()).zip(refit.leave_sources_out(progress)).collect();
    for row in &mut report.rows {
        if let Some(outcome) = found.get(row.id.as_str()) {
            row.left_out_step_s = Some(outcome.step_s);
            row.left_out_mem_gb = Some(outcome.memory / 1e9);
            row.left_out_fits = Some(outcome.fits);
        }
    }
    report.summary = summarise(&report.rows);
    Ok(())
}

fn skipped(id: String, fault: String, reason: String) -> RowReport {
    RowReport {
        id,
        predicted_step_s: None,
        predicted_step_sigma: None,
        predicted_step_two_sigma: None,
        predicted_step_range_s: None,
        predicted_allocated_gb: None,
        predicted_reserved_gb: None,
        predicted_device_gb: None,
        predicted_mem_gb: None,
        predicted_mem_sigma_gb: None,
        predicted_mem_two_sigma_gb: None,
        predicted_mem_range_gb: None,
        fits: None,
        assumed: Vec::new(),
        profile: None,
        skipped: Some(reason),
        fault: Some(fault),
        measured_step_s: None,
        measured_mem_gb: None,
        rate_step_s: None,
        rate_counts: None,
        out_of_memory: None,
        plan: None,
        left_out_step_s: None,
        left_out_mem_gb: None,
        left_out_fits: None,
        labels: Labels::default(),
        precision: "",
    }
}

/// Predicts one row.
#[must_use]
pub fn report_row(row: &MeasuredRow, shelf: &Shelf) -> RowReport {
    let id = row.text("id").map_or_else(|| format!("line {}", row.line()), str::to_owned);
    match Case::read(row, shelf) {
        Ok(case) => match rates::step_of_rate(row, &case) {
            Ok(rate) => RowReport {
                rate_step_s: rate.map(|rate| rate.0),
                rate_counts: rate.map(|rate| rate.1),
                ..report_case(case)
            },
            Err(cell) => {
                let reason = case::Skip::Cell(cell);
                skipped(id, reason.kind(), reason.to_string())
            }
        },
        Err(reason) => skipped(id, reason.kind(), reason.to_string()),
    }
}

/// What is predicted of a case.
#[derive(Debug, Clone, Copy)]
pub struct CasePrediction {
    /// Seconds of one step.
    pub step_s: f64,
    /// How far its logarithm may be off.
    pub interval: Interval,
    /// Bytes of tensors, reserved, and on the device, on the fullest rank.
    pub memory: [f64; 3],
    /// The same on the rank whose peak the framework reports.
    pub reported: [f64; 3],
    /// How far their logarithms may be off.
    pub memory_interval: Interval,
    /// Whether the device can hold it.
    pub fits: bool,
}

/// Predicts a case.
#[must_use]
pub fn predict_case(case: &Case) -> CasePrediction {
    predict_on(case, &case.accelerator, case.profile)
}

/// Predicts a case with another accelerator and profile than its own.
#[must_use]
pub fn predict_on(case: &Case, accelerator: &Accelerator, profile: &Profile) -> CasePrediction {
    let cost = CostModel::new(&case.model, &case.layers, &case.cluster, accelerator, profile, &case.job);
    let cost = match case.offloaded_layers {
        Some(share) => cost.offloading_layers(share),
        None => cost,
    }
    .adapting(case.adapted)
    .released(case.labels.era);
    let prediction = step::predict(&cost, &case.layers, &case.plan);
    let bars = ErrorBars::shipped();
    // What the job does not say of the run.
    let job = Special::of(&case.job, &case.cluster, case.labels.crossing);
    let special: Vec<Special> =
        case.labels.special.iter().copied().filter(|kind| !job.contains(kind)).collect();
    let interval = bars.widened(prediction.interval, case.labels.profile, &special, 0);
    // Nobody measured a framework that another stands in for.
    let stands_in = case.assumed.contains(&"framework_family");
    let reserve = cost.reserve();
    let counts =
        |tensors| [tensors, reserve.reserved(tensors), reserve.device(tensors)].map(|bytes| bytes.0 as f64);
    let first = prediction.memory.first().filter(|_| profile.memory.first_rank_reports);
    let reported = first.map(RankMemory::total);
    let own = |interval: Interval, unknown: f64| match stands_in {
        true => interval.beside(unknown),
        false => interval,
    };
    CasePrediction {
        step_s: prediction.step().seconds().0 * case.release_factor(profile),
        interval: own(interval, bars.transfer),
        memory_interval: own(prediction.memory_interval, bars.memory_transfer),
        memory: counts(prediction.allocated),
        reported: counts(reported.unwrap_or(prediction.allocated)),
        fits: prediction.allocated <= cost.device_limit(),
    }
}

fn report_case(case: Case) -> RowReport {
    let prediction = predict_case(&case);
    let Measured { step_s, memory, memory_kind, out_of_memory } = case.measured;
    let [allocated, reserved, device] = prediction.memory.map(|bytes| bytes / 1e9);
    let same_kind = memory_kind.of(prediction.reported) / 1e9;
    RowReport {
        id: case.id,
        predicted_step_s: Some(prediction.step_s),
        predicted_step_sigma: Some(prediction.step_s * prediction.interval.sigma),
        predicted_step_two_sigma: Some(prediction.step_s * prediction.interval.two_sigma),
        predicted_step_range_s: Some(prediction.interval.range().map(|factor| prediction.step_s * factor)),
        predicted_allocated_gb: Some(allocated),
        predicted_reserved_gb: Some(reserved),
        predicted_device_gb: Some(device),
        predicted_mem_gb: Some(same_kind),
        predicted_mem_sigma_gb: Some(same_kind * prediction.memory_interval.sigma),
        predicted_mem_two_sigma_gb: Some(same_kind * prediction.memory_interval.two_sigma),
        predicted_mem_range_gb: Some(prediction.memory_interval.range().map(|factor| same_kind * factor)),
        fits: Some(prediction.fits),
        assumed: case.assumed,
        profile: Some(case.labels.profile),
        skipped: None,
        fault: None,
        measured_step_s: step_s,
        measured_mem_gb: memory.map(|bytes| bytes / 1e9),
        rate_step_s: None,
        rate_counts: None,
        out_of_memory,
        plan: Some(case.plan.to_string()),
        left_out_step_s: None,
        left_out_mem_gb: None,
        left_out_fits: None,
        precision: case.job.precision.name(),
        labels: case.labels,
    }
}

/// Predicted rows, without those that repeat another row's run.
#[must_use]
pub fn counted(rows: &[RowReport]) -> Vec<&RowReport> {
    let mut seen: BTreeSet<&str> = BTreeSet::new();
    let mut counted = Vec::new();
    for row in rows.iter().filter(|row| row.skipped.is_none()) {
        if !row.labels.same_as.iter().any(|other| seen.contains(other.as_str())) {
            seen.insert(&row.id);
            counted.push(row);
        }
    }
    counted
}

/// Summarises predicted rows.
#[must_use]
pub fn summarise(rows: &[RowReport]) -> Summary {
    let mut summary = Summary { rows: rows.len(), skipped: faults(rows), ..Summary::default() };
    summary.predicted = rows.iter().filter(|row| row.skipped.is_none()).count();
    let counted = counted(rows);
    summary.repeated = summary.predicted - counted.len();
    if let Ok(list) = constants::Constants::shipped() {
        (summary.fitted_constants, summary.held_constants) = (list.count(), list.held.len());
        let informed = list.sources();
        let informed: BTreeSet<&str> = counted
            .iter()
            .filter(|row| informed.contains(row.labels.source.as_str()))
            .map(|row| row.labels.publication.as_str())
            .collect();
        let others = counted.iter().filter(|row| !informed.contains(row.labels.publication.as_str()));
        summary.of_other_sources =
            ErrorStatistics::of(&others.filter_map(|row| row.step_error()).collect::<Vec<_>>());
    }
    let quiet: Vec<&RowReport> =
        counted.iter().copied().filter(|row| sets::Noise::of(&row.labels).is_none()).collect();
    let contradicted = |row: &&RowReport| sets::Noise::of(&row.labels).is_none_or(|noise| !noise.fitted);
    let with_contradicted: Vec<&RowReport> = counted.iter().copied().filter(contradicted).collect();
    if counted.iter().any(|row| row.left_out_step_s.is_some()) {
        summary.left_out = Some(LeftOut {
            step_time: table(&counted, RowReport::left_out_step_error),
            memory: table(&counted, RowReport::left_out_memory_error),
            out_of_memory: MemoryVerdicts::of(&counted, LEFT_OUT.1),
            ranking: rank(&quiet, LEFT_OUT),
            ranking_with_contradicted: rank(&with_contradicted, LEFT_OUT),
        });
    }
    summary.step_time = table(&counted, RowReport::step_error);
    summary.memory = table(&counted, RowReport::memory_error);
    summary.by_rates = rates::table(&counted);
    summary.out_of_memory = MemoryVerdicts::of(&counted, SHIPPED.1);
    summary.ranking = rank(&quiet, SHIPPED);
    summary.ranking_with_contradicted = rank(&with_contradicted, SHIPPED);
    summary.ranking_of_all = rank(&counted, SHIPPED);
    summary.named_sets = sets::named_sets(&counted);
    let time = Measurand::StepTime;
    summary.coverage = bars::coverage(&counted, time);
    summary.left_out_inside_shipped = bars::left_out_inside_shipped(&counted, time);
    summary.left_out_coverage = bars::left_out_coverage(&counted, time);
    summary.rates_coverage = bars::rates_coverage(&counted);
    summary.left_out_rates_coverage = bars::left_out_rates_coverage(&counted);
    summary.memory_coverage = bars::coverage(&counted, Measurand::Memory);
    summary.left_out_memory_inside_shipped = bars::left_out_inside_shipped(&counted, Measurand::Memory);
    summary.left_out_memory_coverage = bars::left_out_coverage(&counted, Measurand::Memory);
    summary.goals = goals::goals(&summary);
    summary
}

/// Classes of a row, by dimension.
fn classes(row: &RowReport) -> Vec<(&'static str, String)> {
    let scale = match row.labels.gpus {
        0..=8 => "1-8 GPUs",
        9..=64 => "9-64 GPUs",
        65..=511 => "65-511 GPUs",
        _ => "512 GPUs and more",
    };
    let kind = if row.labels.experts { "moe" } else { "dense" };
    let subjects: BTreeSet<Subject> = row.assumed.iter().map(|column| Subject::of(column)).collect();
    let stated = match subjects.first() {
        None => "complete",
        Some(Subject::Runtime | Subject::Reading) => "model, plan and machine stated, run time assumed",
        Some(Subject::Machine) => "model and plan stated, parts of the machine assumed",
        Some(Subject::Plan) => "model stated, parts of the plan assumed",
        Some(Subject::Model) if subjects.contains(&Subject::Plan) => "parts of model and plan assumed",
        Some(Subject::Model) => "plan stated, parts of the model assumed",
    };
    let mut classes = vec![
        ("gpu", row.labels.gpu.clone()),
        ("framework", row.labels.framework.clone()),
        ("profile", row.labels.profile.to_owned()),
        ("precision", row.precision.to_owned()),
        ("kind", kind.to_owned()),
        ("grade", format!("{} {kind}", row.labels.quality)),
        ("scale", scale.to_owned()),
        ("inputs", stated.to_owned()),
        ("training", row.labels.training.to_owned()),
    ];
    if !row.labels.routing.is_empty() {
        classes.push(("routing", row.labels.routing.to_owned()));
    }
    if !row.labels.optimizer.is_empty() {
        classes.push(("optimizer", row.labels.optimizer.to_owned()));
    }
    classes
}

fn table(rows: &[&RowReport], error: impl Fn(&RowReport) -> Option<f64>) -> ErrorTable {
    let mut all = Vec::new();
    let mut by: BTreeMap<&'static str, BTreeMap<String, Vec<f64>>> = BTreeMap::new();
    for row in rows {
        let Some(error) = error(row) else { continue };
        all.push(error);
        for (dimension, class) in classes(row) {
            by.entry(dimension).or_default().entry(class).or_default().push(error);
        }
    }
    let statistics = |classes: BTreeMap<String, Vec<f64>>| {
        classes
            .into_iter()
            .filter_map(|(class, errors)| Some((class, ErrorStatistics::of(&errors)?)))
            .collect()
    };
    ErrorTable {
        all: ErrorStatistics::of(&all),
        by: by.into_iter().map(|(dimension, classes)| (dimension, statistics(classes))).collect(),
    }
}

/// Runs of one plan in a group: predicted and measured time (medians over repeats), and memory verdicts.
#[derive(Default)]
struct Repeats {
    id: String,
    predicted: Vec<f64>,
    measured: Vec<f64>,
    fits: bool,
    out_of_memory: bool,
}

fn median(numbers: &[f64]) -> Option<f64> {
    let mut sorted = numbers.to_vec();
    sorted.sort_by(f64::total_cmp);
    quantile(&sorted, 0.5)
}

fn rank(rows: &[&RowReport], (time, fits): Predicted) -> Ranking {
    let mut groups: BTreeMap<&str, BTreeMap<&str, Repeats>> = BTreeMap::new();
    for row in rows {
        let (Some(plan), Some(predicted)) = (&row.plan, time(row)) else { continue };
        let of_plan = groups.entry(&row.labels.group).or_default().entry(plan).or_default();
        of_plan.id.clone_from(&row.id);
        of_plan.predicted.push(predicted);
        of_plan.measured.extend(row.measured_step_s);
        of_plan.fits = fits(row) == Some(true);
        of_plan.out_of_memory |= row.out_of_memory == Some(true);
    }
    let mut ranking = Ranking::default();
    for (group, plans) in groups {
        let times: Vec<(f64, f64)> =
            plans.values().filter_map(|p| median(&p.predicted).zip(median(&p.measured))).collect();
        if times.len() < 4 {
            continue;
        }
        let best = times.iter().map(|t| t.1).fold(f64::INFINITY, f64::min);
        let pick = times.iter().min_by(|a, b| a.0.total_cmp(&b.0)).map_or(best, |t| t.1);
        let fitting = plans
            .values()
            .filter(|p| p.fits && (!p.measured.is_empty() || p.out_of_memory))
            .min_by(|a, b| {
                let predicted = |p: &Repeats| median(&p.predicted).unwrap_or(f64::INFINITY);
                predicted(a).total_cmp(&predicted(b))
            });
        ranking.picks_out_of_memory.extend(fitting.filter(|p| p.measured.is_empty()).map(|p| p.id.clone()));
        ranking.groups.push(RankedGroup {
            group: group.to_owned(),
            runs: times.len(),
            tau: kendall_tau(&times),
            regret: pick / best - 1.0,
            regret_with_memory: fitting.and_then(|p| Some(median(&p.measured)? / best - 1.0)),
        });
    }
    let count = ranking.groups.len();
    if count > 0 {
        let mean = |of: fn(&RankedGroup) -> f64| ranking.groups.iter().map(of).sum::<f64>() / count as f64;
        ranking.mean_tau = Some(mean(|g| g.tau));
        ranking.mean_regret = Some(mean(|g| g.regret));
    }
    ranking
}

/// Kendall's tau-b of pairs: 1 where both orders agree, -1 where they are opposite.
#[must_use]
pub fn kendall_tau(pairs: &[(f64, f64)]) -> f64 {
    let (mut agree, mut ties_a, mut ties_b, mut all) = (0i64, 0i64, 0i64, 0i64);
    for (i, a) in pairs.iter().enumerate() {
        for b in &pairs[i + 1..] {
            let (x, y) = (a.0.total_cmp(&b.0) as i64, a.1.total_cmp(&b.1) as i64);
            agree += x * y;
            ties_a += i64::from(x == 0);
            ties_b += i64::from(y == 0);
            all += 1;
        }
    }
    let scale = (((all - ties_a) * (all - ties_b)) as f64).sqrt();
    if scale == 0.0 { 0.0 } else { agree as f64 / scale }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tau_of_known_orders() {
        let pairs = |order: [f64; 4]| [1.0, 2.0, 3.0, 4.0].into_iter().zip(order).collect::<Vec<_>>();
        assert_eq!(kendall_tau(&pairs([1.0, 2.0, 3.0, 4.0])), 1.0);
        assert_eq!(kendall_tau(&pairs([4.0, 3.0, 2.0, 1.0])), -1.0);
        // One swapped neighbour of six pairs: (5 - 1) / 6.
        assert!((kendall_tau(&pairs([1.0, 3.0, 2.0, 4.0])) - 4.0 / 6.0).abs() < 1e-12);
    }

    #[test]
    fn statistics_of_known_errors() {
        let s = ErrorStatistics::of(&[-0.1, 0.2, 0.3, -0.4, 0.5]).unwrap();
        assert_eq!((s.rows, s.median, s.worst, s.bias), (5, 0.3, 0.5, 0.2));
        assert!((s.mean - 0.3).abs() < 1e-12 && (s.p90 - 0.46).abs() < 1e-12);
        assert!(ErrorStatistics::of(&[]).is_none());
    }

    #[test]
    fn broken_rows_are_skipped_with_a_reason() {
        let header = "id,gpu,gpus,layers,hidden,heads,seq_len,global_batch,framework_family,tp,pp";
        let rows = [
            "a,H100-SXM-80GB,8,32,4096,32,4096,64,megatron-core,1,1",
            "b,H100-SXM-80GB,8,32,4096,32,4096,64,megatron-core,3,1",
            "c,TPUv4,8,32,4096,32,4096,64,megatron-core,1,1",
            "d,H100-SXM-80GB,many,32,4096,32,4096,64,megatron-core,1,1",
            "e,H100-SXM-80GB,8,32,4096,32,4096,,megatron-core,1,1",
            "f,H100-SXM-80GB,8",
            "g,H100-SXM-80GB,8,32,4096,32,4096,64,my-own,1,1",
        ];
        let text = format!("{header}\n{}\n", rows.join("\n"));
        let report = validate(text.as_bytes(), |_| true, |_, _| {}).unwrap();
        let reasons: Vec<Option<&str>> = report.rows.iter().map(|r| r.skipped.as_deref()).collect();
        assert_eq!(reasons[0], None);
        assert!(report.rows[0].predicted_step_s.is_some_and(|s| s > 0.0));
        assert!(reasons[1..].iter().all(Option::is_some), "{reasons:?}");
        assert!(validate("a,b\n1,2\n".as_bytes(), |_| true, |_, _| {}).is_err());
    }

    /// Every row with a text and numbers of its own: one line for each kind of fault.
    #[test]
    fn faults_of_one_kind_are_counted_together() {
        let header = "id,gpu,gpus,layers,hidden,heads,seq_len,global_batch,framework_family,tp,pp";
        let row = |n: usize| match n % 4 {
            0 => format!("r{n},TPU`v{n},8,32,4096,32,4096,64,megatron-core,1,1"),
            1 => format!("r{n},H100-SXM-80GB,8,32,4096,32,4096,64,megatron-core,{},1", 8 * n + 3),
            2 => format!("r{n},H100-SXM-80GB,m{n},32,4096,32,4096,64,megatron-core,1,1"),
            _ => format!("r{n},H100-SXM-80GB,8,32,4096,32,4096,64,megatron-core,1,1,{n}"),
        };
        let rows: Vec<String> = (0..400).map(row).collect();
        let report =
            validate(format!("{header}\n{}\n", rows.join("\n")).as_bytes(), |_| true, |_, _| {}).unwrap();
        let found: Vec<(&str, usize)> =
            report.summary.skipped.iter().map(|kind| (kind.reason.as_str(), kind.rows)).collect();
        assert_eq!(
            found,
            [
                ("gpu is not known", 100),
                ("gpus cannot be read; expected a whole number in range", 100),
                ("line N: the row has more cells than the header has columns (N)", 100),
                ("tp N x pp N x cp N does not divide N gpus", 100),
            ]
        );
        // Each row has its own reason all the same.
        let reasons: BTreeSet<&str> = report.rows.iter().filter_map(|row| row.skipped.as_deref()).collect();
        assert_eq!(reasons.len(), 400);
        assert_eq!(report.summary.skipped[3].examples[0], "r1: tp 11 x pp 1 x cp 1 does not divide 8 gpus");
    }

    #[test]
    fn shipped_measurements_are_predicted() {
        let text = include_str!("../results/published/measured.csv");
        let report = validate(text.as_bytes(), |_| true, |_, _| {}).unwrap();
        let summary = &report.summary;
        assert!(summary.predicted > 2000, "{:?}", summary.skipped);
        let time = summary.step_time.all.unwrap();
        assert!(time.median < 0.06, "{time:?}");
        for row in report.rows.iter().filter(|row| row.skipped.is_none()) {
            assert!(row.predicted_step_s.is_some_and(|s| s.is_finite() && s > 0.0), "{}", row.id);
            assert!(row.predicted_allocated_gb.is_some_and(|gb| gb.is_finite() && gb > 0.0), "{}", row.id);
        }
    }
}
