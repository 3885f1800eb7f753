//! Error bars from residuals, and how often the truth lies inside them.

use std::collections::{BTreeMap, BTreeSet};

use super::constants::Measurand;
use super::{Coverage, RowReport, median, quantile};
use crate::frameworks::error_bars::{
    Covered, ErrorBar, ErrorBars, FEWEST_KNOWN, FEWEST_RUNS, Interval, LEAST_SIGMA, Leaning, Measured, Read,
    Scale, Seen, SpecialBar,
};
use crate::spec::cluster::Architecture;
use crate::spec::special::Special;

impl Coverage {
    /// Of rows, each with its error, one standard deviation, and what is said to hold 95 %.
    fn of(rows: impl Iterator<Item = [f64; 3]>) -> Option<Self> {
        let (mut all, mut inside) = (0, [0; 3]);
        for [off, sigma, two_sigma] in rows {
            all += 1;
            let bounds = [sigma, two_sigma, 2.0 * sigma];
            inside.iter_mut().zip(bounds).for_each(|(count, bound)| *count += u32::from(off <= bound));
        }
        let [one_sigma, two_sigma, twice_one_sigma] = inside.map(|count| f64::from(count) / f64::from(all));
        (all > 0).then_some(Self { one_sigma, two_sigma, twice_one_sigma })
    }
}

/// What was measured of a row, predicted, predicted with constants that were fitted without the row's source, and the bars
/// of the prediction: one standard deviation and what holds 95.4 %, in its unit.
struct Readings {
    /// What a printed rate says where no time was measured.
    measured: Option<f64>,
    by_rate: bool,
    predicted: Option<f64>,
    left_out: Option<f64>,
    bars: Option<[f64; 2]>,
}

impl Readings {
    fn of(row: &RowReport, what: Measurand) -> Self {
        match what {
            Measurand::StepTime => Self {
                measured: row.measured_step_s.or(row.rate_step_s),
                by_rate: row.measured_step_s.is_none(),
                predicted: row.predicted_step_s,
                left_out: row.left_out_step_s,
                bars: row.predicted_step_sigma.zip(row.predicted_step_two_sigma).map(<[f64; 2]>::from),
            },
            Measurand::Memory => Self {
                measured: row.measured_mem_gb,
                by_rate: false,
                predicted: row.predicted_mem_gb,
                left_out: row.left_out_mem_gb,
                bars: row.predicted_mem_sigma_gb.zip(row.predicted_mem_two_sigma_gb).map(<[f64; 2]>::from),
            },
        }
    }
    /// Logarithm of predicted over measured.
    fn residual(&self) -> Option<f64> {
        Some((self.predicted? / self.measured?).ln())
    }
    fn left_out_residual(&self) -> Option<f64> {
        Some((self.left_out? / self.measured?).ln())
    }
}

/// Whether a row is coarse.
fn coarse(row: &RowReport) -> bool {
    row.labels.special.contains(&Special::Coarse)
}

/// The error bars that the residuals of a report's rows ask for: every class of enough runs, the narrowest
/// classes first. A run that is to be predicted is none that constants were fitted to: a class is as wide as what is left
/// of its runs with their own publications left out of the fit, or as fitted where that is wider. Times that printed rates
/// say count, since no constant was fitted to them, but those of coarse rows only among coarse rows. A coarse row does not
/// count as a measurement of what it is about.
#[must_use]
pub fn error_bars(rows: &[RowReport]) -> ErrorBars {
    let round = |x: f64| (x * 1e4).round() / 1e4;
    // A run that made a bar is inside it.
    let above = |x: f64| (x * 1e4).ceil() / 1e4;
    // Runs, and how far those are off that are not special.
    let mut timed: BTreeMap<Covered, (usize, [Vec<f64>; 2])> = BTreeMap::new();
    let mut leanings: BTreeMap<Covered, Vec<f64>> = BTreeMap::new();
    let mut seen: BTreeMap<Seen, usize> = BTreeMap::new();
    for row in distinct(rows, Measurand::StepTime).into_iter().filter(|row| !coarse(row)) {
        let (labels, readings) = (&row.labels, Readings::of(row, Measurand::StepTime));
        let profile = labels.profile.to_owned();
        for &kind in &labels.special {
            *seen.entry(Seen { profile: profile.clone(), kind }).or_default() += 1;
        }
        if let Some(architecture) = labels.architecture {
            let of = Covered { profile, architecture, experts: labels.experts };
            if !readings.by_rate {
                let (runs, [own, apart]) = timed.entry(of.clone()).or_default();
                *runs += 1;
                if let Some(residual) = readings.residual().filter(|_| labels.special.is_empty()) {
                    own.push(residual.abs());
                    apart.push(readings.left_out_residual().unwrap_or(residual).abs());
                }
            }
            leanings.entry(of).or_default().extend(readings.residual());
        }
    }
    let leaning = |(of, residuals): (Covered, Vec<f64>)| {
        let median = round(median(&residuals)?);
        let runs = residuals.len();
        (median.abs() >= LEANS && runs >= FEWEST_KNOWN).then_some(Leaning { of, runs, median })
    };
    let mut read: BTreeMap<Read, usize> = BTreeMap::new();
    for row in distinct(rows, Measurand::Memory) {
        *read.entry(read_of(row)).or_default() += 1;
    }
    let measured = |(of, (runs, [own, apart])): (Covered, (usize, [Vec<f64>; 2]))| {
        let few = runs < FEWEST_RUNS && !own.is_empty();
        let spread = few.then(|| wider(&own, &apart)).map(|(sigma, most)| (above(sigma), above(most)));
        Measured { of, runs, spread }
    };
    let read = read.into_iter().filter(|(_, readings)| *readings >= FEWEST_KNOWN).map(|(read, _)| read);
    ErrorBars {
        measured: timed.into_iter().map(measured).collect(),
        transfer: round(transfer(rows, Measurand::StepTime)),
        read: read.collect(),
        memory_transfer: round(transfer(rows, Measurand::Memory)),
        leanings: leanings.into_iter().filter_map(leaning).collect(),
        bars: bars_of(rows, Measurand::StepTime),
        special: special_bars(rows),
        seen: seen.into_iter().filter(|(_, runs)| *runs >= FEWEST_KNOWN).map(|(seen, _)| seen).collect(),
        memory: bars_of(rows, Measurand::Memory),
    }
}

/// Rows with a prediction and a reading, without those that repeat another's reading of memory: the same value of the
/// same model under the same plan but for how many micro-batches are accumulated, which memory does not depend on.
fn distinct<'a>(rows: impl IntoIterator<Item = &'a RowReport>, what: Measurand) -> Vec<&'a RowReport> {
    let mut seen = BTreeSet::new();
    let mut new = |row: &RowReport| {
        let Some(value) = Readings::of(row, what).measured else { return false };
        let labels = &row.labels;
        let words = row.plan.as_deref().unwrap_or_default().split(' ');
        let accumulates = |word: &str| word.strip_prefix("ga").is_some_and(|n| n.parse::<u32>().is_ok());
        let plan: Vec<&str> = words.filter(|word| !accumulates(word)).collect();
        let run = (labels.profile, labels.gpu.clone(), labels.model.clone(), labels.gpus, plan.join(" "));
        seen.insert((run, labels.sequence_length, row.precision, labels.training, value.to_bits()))
    };
    let mut kept = Vec::new();
    for row in rows {
        let read = Readings::of(row, what).residual().is_some();
        if read && (what == Measurand::StepTime || new(row)) {
            kept.push(row);
        }
    }
    kept
}

/// The kind of memory reading that a row is.
fn read_of(row: &RowReport) -> Read {
    Read { profile: row.labels.profile.to_owned(), experts: row.labels.experts }
}

/// Whether so many readings of so many publications make a class: one that speaks for all frameworks rests on more than
/// one.
fn enough(key: &BarKey, what: Measurand, readings: usize, sources: impl FnOnce() -> usize) -> bool {
    let of_all = what == Measurand::Memory && key.profile.is_none();
    readings >= FEWEST_RUNS && (!of_all || sources() >= FEWEST_SOURCES)
}

/// Classes of one kind of reading.
fn bars_of(rows: &[RowReport], what: Measurand) -> Vec<ErrorBar> {
    let mut residuals: BTreeMap<(u8, BarKey), [Vec<f64>; 2]> = BTreeMap::new();
    let mut timed: BTreeMap<(u8, BarKey), Vec<f64>> = BTreeMap::new();
    let mut groups: BTreeMap<&str, Vec<(f64, &RowReport)>> = BTreeMap::new();
    let mut differences: BTreeMap<(u8, BarKey), Vec<f64>> = BTreeMap::new();
    let mut sources: BTreeMap<(u8, BarKey), BTreeSet<&str>> = BTreeMap::new();
    for row in distinct(rows, what) {
        let readings = Readings::of(row, what);
        let Some(residual) = readings.residual() else { continue };
        let left_out = readings.left_out_residual();
        for key in informed(row, &readings, what) {
            sources.entry(key.clone()).or_default().insert(&row.labels.publication);
            let [own, apart] = residuals.entry(key).or_default();
            own.push(residual.abs());
            apart.push(left_out.unwrap_or(residual).abs());
        }
        // What a source counts in its rates is common to its plans.
        if !readings.by_rate {
            for key in bar_keys(row, what) {
                timed.entry(key).or_default().push(residual.abs());
            }
            groups.entry(&row.labels.group).or_default().push((residual, row));
        }
    }
    for runs in groups.values() {
        for (i, (a, row)) in runs.iter().enumerate() {
            for (b, other) in &runs[i + 1..] {
                if row.plan != other.plan {
                    let keys = bar_keys(row, what);
                    for key in keys.into_iter().filter(|key| key.0 >= ALL_SCALES) {
                        differences.entry(key).or_default().push((a - b).abs());
                    }
                }
            }
        }
    }
    let mut bars = Vec::new();
    for (class, [own, apart]) in &residuals {
        let (level, key) = class;
        if !enough(key, what, own.len(), || sources.get(class).map_or(0, BTreeSet::len)) {
            continue;
        }
        let round = |x: f64| (x * 1e4).round() / 1e4;
        let (sigma, two_sigma) = wider(own, apart);
        let several = |class: &&(u8, BarKey)| {
            let publications = sources.get(class).map_or(0, BTreeSet::len);
            publications >= FEWEST_SOURCES
                && residuals.get(class).is_some_and(|runs| runs[0].len() >= FEWEST_RUNS)
        };
        let next = widened_of_profile(class).into_iter().find(|class| several(&class));
        let next = next.filter(|_| !several(&class)).and_then(|class| residuals.get(&class));
        let (floor, two_floor) = next.map(|[own, apart]| wider(own, apart)).unwrap_or_default();
        let (own_sigma, sigma, two_sigma) = (sigma, sigma.max(floor), two_sigma.max(two_floor));
        // What the generation changes is common to the plans of a job.
        let level = ALL_SCALES.max(*level);
        let wide = (level, key.clone().widened(level));
        let pairs = differences.get(&wide).filter(|pairs| pairs.len() >= FEWEST_RUNS);
        let fitted =
            timed.get(&of_all_generations(class)).map_or(own_sigma, |residuals| deviation(residuals));
        // Without pairs: half of the error is common to both plans, as in the classes that have pairs.
        let difference = pairs.map_or(fitted, |pairs| share_within(pairs, ONE_SIGMA)).max(LEAST_SIGMA);
        bars.push(ErrorBar {
            profile: key.profile.clone(),
            experts: key.experts,
            architecture: key.architecture,
            narrow: key.narrow,
            scale: key.scale,
            crossing: key.crossing,
            runs: own.len(),
            sigma: round(sigma),
            two_sigma: round(two_sigma),
            difference: round(difference),
        });
    }
    bars
}

/// What is special about runs, of which there are enough, with their residuals as fitted and with their own publications left
/// out.
fn special_residuals<'a>(rows: impl IntoIterator<Item = &'a RowReport>) -> BTreeMap<Special, [Vec<f64>; 2]> {
    let mut kinds: BTreeMap<Special, ([Vec<f64>; 2], BTreeSet<&str>)> = BTreeMap::new();
    for row in distinct(rows, Measurand::StepTime) {
        let readings = Readings::of(row, Measurand::StepTime);
        let Some(residual) = readings.residual() else { continue };
        for &kind in &row.labels.special {
            if kind == Special::Coarse || !(readings.by_rate && coarse(row)) {
                let ([own, apart], publications) = kinds.entry(kind).or_default();
                own.push(residual.abs());
                apart.push(readings.left_out_residual().unwrap_or(residual).abs());
                publications.insert(&row.labels.publication);
            }
        }
    }
    let many = |own: &[f64], from: &BTreeSet<&str>| own.len() >= FEWEST_RUNS && from.len() >= FEWEST_SOURCES;
    kinds
        .into_iter()
        .filter_map(|(kind, (both, from))| many(&both[0], &from).then_some((kind, both)))
        .collect()
}

/// The bars of special runs.
fn special_bars(rows: &[RowReport]) -> Vec<SpecialBar> {
    let round = |x: f64| (x * 1e4).round() / 1e4;
    special_residuals(rows)
        .into_iter()
        .map(|(kind, [own, apart])| {
            let (sigma, two_sigma) = wider(&own, &apart);
            SpecialBar { kind, runs: own.len(), sigma: round(sigma), two_sigma: round(two_sigma) }
        })
        .collect()
}

/// What predictions lose, in standard deviations of their logarithm, when constants are fitted without the row's own
/// source.
fn transfer<'a>(rows: impl IntoIterator<Item = &'a RowReport>, what: Measurand) -> f64 {
    let (mut own, mut left_out) = (Vec::new(), Vec::new());
    for row in distinct(rows, what) {
        let readings = Readings::of(row, what);
        if readings.by_rate {
            continue;
        }
        if let Some((predicted, elsewhere)) = readings.residual().zip(readings.left_out_residual()) {
            own.push(predicted.abs());
            left_out.push(elsewhere.abs());
        }
    }
    let (own, left_out) = (deviation(&own), deviation(&left_out));
    (left_out * left_out - own * own).max(0.0).sqrt()
}

/// What so large a share of numbers does not exceed; 0 of none.
fn share_within(numbers: &[f64], share: f64) -> f64 {
    let mut sorted = numbers.to_vec();
    sorted.sort_by(f64::total_cmp);
    quantile(&sorted, share).unwrap_or(0.0)
}

/// Standard deviation of residuals with heavy tails, from their absolute values: the geometric mean of what holds
/// 68.3 % of them and of half of what holds 95.4 %.
fn deviation(residuals: &[f64]) -> f64 {
    (share_within(residuals, ONE_SIGMA) * share_within(residuals, TWO_SIGMA) / 2.0).sqrt()
}

/// One standard deviation, which holds 68.3 % of the residuals at least, and what holds 95.4 % of them and of one more like
/// them.
fn widths(residuals: &[f64]) -> (f64, f64) {
    let sigma = deviation(residuals).max(share_within(residuals, ONE_SIGMA)).max(LEAST_SIGMA);
    let mut sorted = residuals.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = ((residuals.len() + 1) as f64 * TWO_SIGMA).ceil() as usize;
    let most = sorted.get(at.min(sorted.len()).saturating_sub(1));
    (sigma, most.copied().unwrap_or_default().max(sigma))
}

/// The widths of residuals as fitted or with their own publications left out, whichever are wider.
fn wider(own: &[f64], apart: &[f64]) -> (f64, f64) {
    let ((sigma, two_sigma), (apart, two_apart)) = (widths(own), widths(apart));
    (sigma.max(apart), two_sigma.max(two_apart))
}

/// How often what was measured lies inside the error bars of its rows; none where nothing was.
pub(super) fn coverage(rows: &[&RowReport], what: Measurand) -> Option<Coverage> {
    Coverage::of(rows.iter().filter_map(|row| off_and_bars(row, what)))
}

/// How often they lie inside those bars around predictions whose constants were fitted without the row's own source.
pub(super) fn left_out_inside_shipped(rows: &[&RowReport], what: Measurand) -> Option<Coverage> {
    Coverage::of(rows.iter().filter_map(|row| {
        let [_, sigma, two_sigma] = off_and_bars(row, what)?;
        Some([Readings::of(row, what).left_out_residual()?.abs(), sigma, two_sigma])
    }))
}

/// How often what printed rates say does.
pub(super) fn rates_coverage(rows: &[&RowReport]) -> Option<Coverage> {
    let of_rates = rows.iter().map(|row| Readings::of(row, Measurand::StepTime)).filter(|of| of.by_rate);
    Coverage::of(of_rates.filter_map(|readings| readings.off_and_bars()))
}

impl Readings {
    /// How far off the prediction is, and its bars.
    fn off_and_bars(&self) -> Option<[f64; 3]> {
        let (predicted, [sigma, two_sigma]) = self.predicted.zip(self.bars)?;
        // Bars are those of logarithms.
        Some([self.residual()?.abs(), sigma / predicted, two_sigma / predicted])
    }
}

/// How far off a prediction is from what was measured, and its bars: one standard deviation, and what is said to hold 95 %.
pub(super) fn off_and_bars(row: &RowReport, what: Measurand) -> Option<[f64; 3]> {
    let readings = Readings::of(row, what);
    readings.off_and_bars().filter(|_| !readings.by_rate)
}

/// The same of predictions without the row's own publication inside the bars that the rows of others ask for by the rule of
/// [`error_bars`].
pub(super) fn left_out_coverage(rows: &[&RowReport], what: Measurand) -> Option<Coverage> {
    inside_others(rows, what, false)
}

/// That of printed rates.
pub(super) fn left_out_rates_coverage(rows: &[&RowReport]) -> Option<Coverage> {
    inside_others(rows, Measurand::StepTime, true)
}

fn inside_others(rows: &[&RowReport], what: Measurand, by_rate: bool) -> Option<Coverage> {
    let mut residuals: BTreeMap<(u8, BarKey), Vec<(&str, f64)>> = BTreeMap::new();
    let mut read: BTreeMap<Read, Vec<&str>> = BTreeMap::new();
    for row in distinct(rows.iter().copied(), what) {
        let publication = row.labels.publication.as_str();
        read.entry(read_of(row)).or_default().push(publication);
        let readings = Readings::of(row, what);
        let Some(residual) = readings.left_out_residual() else { continue };
        for key in informed(row, &readings, what) {
            residuals.entry(key).or_default().push((publication, residual.abs()));
        }
    }
    let publications: BTreeSet<&str> = rows.iter().map(|row| row.labels.publication.as_str()).collect();
    let without = |publication: &str| {
        let publication = publication.to_owned();
        rows.iter().copied().filter(move |row| row.labels.publication != publication)
    };
    type Elsewhere = (f64, BTreeMap<Special, (f64, f64)>);
    let elsewhere: BTreeMap<&str, Elsewhere> = publications
        .into_iter()
        .map(|publication| {
            let special = special_residuals(without(publication)).into_iter();
            let special = special.map(|(kind, [_, apart])| (kind, widths(&apart))).collect();
            (publication, (transfer(without(publication), what), special))
        })
        .collect();
    let inside = |row: &&RowReport| {
        let readings = Readings::of(row, what);
        let off = readings.left_out_residual().filter(|_| readings.by_rate == by_rate)?.abs();
        let own: &str = &row.labels.publication;
        let (transfer, special) = &elsewhere[own];
        let others = read.get(&read_of(row)).into_iter().flatten().filter(|of| **of != own).count();
        // Step times have none on top here.
        let known = what == Measurand::StepTime || others >= FEWEST_KNOWN;
        let of_others = |key: &(u8, BarKey)| -> Option<(Vec<f64>, usize)> {
            let all = residuals.get(key)?.iter().filter(|(of, _)| *of != own);
            let numbers: Vec<f64> = all.clone().map(|(_, residual)| *residual).collect();
            let sources = all.map(|(of, _)| of).collect::<BTreeSet<_>>().len();
            enough(&key.1, what, numbers.len(), || sources).then_some((numbers, sources))
        };
        let classes = match what {
            Measurand::StepTime => bar_keys(row, what),
            Measurand::Memory => memory_keys(row, known),
        };
        let narrowest = classes.iter().find_map(|key| Some((key, of_others(key)?)));
        let interval = narrowest.map_or(Interval::ANYTHING, |(key, (numbers, sources))| {
            let (sigma, two_sigma) = widths(&numbers);
            let own = Interval { sigma, two_sigma, difference: sigma };
            let several = |(_, sources): &(Vec<f64>, usize)| *sources >= FEWEST_SOURCES;
            let wide = widened_of_profile(key).iter().filter_map(of_others).find(several);
            wide.filter(|_| sources < FEWEST_SOURCES).map_or(own, |(numbers, _)| {
                let (sigma, two_sigma) = widths(&numbers);
                own.at_least(sigma, two_sigma)
            })
        });
        let interval = if known { interval } else { interval.beside(*transfer) };
        let kinds = row.labels.special.iter().filter(|_| what == Measurand::StepTime);
        let floors = kinds.filter_map(|kind| special.get(kind));
        let interval = floors.fold(interval, |interval, &(sigma, two)| interval.at_least(sigma, two));
        Some([off, interval.sigma, interval.two_sigma])
    };
    Coverage::of(rows.iter().filter_map(inside))
}

/// Shares of the residuals inside one and two standard deviations, if they were normal.
const ONE_SIGMA: f64 = 0.683;
const TWO_SIGMA: f64 = 0.954;

/// Runs whose median errs by less than this share do not lean.
const LEANS: f64 = 0.05;

/// Fewest publications of a class that speaks for all frameworks, and of one whose runs tell how far runs elsewhere are off: one
/// of fewer is no narrower than the next wider class of its profile that has as many.
const FEWEST_SOURCES: usize = 2;

/// A class of error bars; see [`ErrorBar`].
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct BarKey {
    profile: Option<String>,
    experts: bool,
    architecture: Option<Architecture>,
    narrow: Option<bool>,
    scale: Option<Scale>,
    crossing: Option<bool>,
}

/// What a class keeps of its runs, by level, the narrowest first: profile, generation of GPUs, number format, number of
/// GPUs, and whether tensor parallelism leaves the fast domain.
const LEVELS: [[bool; 5]; 9] = [
    [true, true, true, true, true],
    [true, true, true, true, false],
    [true, true, true, false, false],
    [true, false, true, true, true],
    [true, false, true, true, false],
    [true, false, true, false, false],
    [true, false, false, false, false],
    [false, false, true, false, false],
    [false, false, false, false, false],
];

impl BarKey {
    /// The class without what is narrower than a level.
    fn widened(self, level: u8) -> Self {
        let [profile, architecture, narrow, scale, crossing] = LEVELS[usize::from(level)];
        Self {
            profile: self.profile.filter(|_| profile),
            architecture: self.architecture.filter(|_| architecture),
            narrow: self.narrow.filter(|_| narrow),
            scale: self.scale.filter(|_| scale),
            crossing: self.crossing.filter(|_| crossing),
            ..self
        }
    }
}

/// The level from which classes are of all generations of GPUs.
const ALL_GENERATIONS: u8 = 3;
/// The level from which they are of all numbers of GPUs too.
const ALL_SCALES: u8 = 5;

/// The class whose generation of GPUs does not matter, and that is as narrow otherwise.
fn of_all_generations((level, key): &(u8, BarKey)) -> (u8, BarKey) {
    let level = if *level < ALL_GENERATIONS { level + ALL_GENERATIONS } else { *level };
    (level, BarKey { architecture: None, ..key.clone() })
}

/// The wider classes of the same profile.
fn widened_of_profile((level, key): &(u8, BarKey)) -> Vec<(u8, BarKey)> {
    let of_profile = |level: &u8| key.profile.is_some() && LEVELS[usize::from(*level)][0];
    let wider = (level + 1..LEVELS.len() as u8).filter(of_profile);
    wider.map(|level| (level, key.clone().widened(level))).collect()
}

/// The classes of a row, by level: the narrowest is level 0.
fn bar_keys(row: &RowReport, what: Measurand) -> Vec<(u8, BarKey)> {
    let key = BarKey {
        profile: Some(row.labels.profile.to_owned()),
        experts: row.labels.experts,
        architecture: row.labels.architecture,
        narrow: Some(!matches!(row.precision, "bf16" | "fp16")),
        scale: Some(Scale::of(row.labels.gpus)),
        crossing: Some(row.labels.crossing),
    };
    // Bytes are counted from shapes, whatever the GPU.
    let narrowest = if what == Measurand::StepTime { 0 } else { ALL_GENERATIONS };
    (narrowest..LEVELS.len() as u8).map(|level| (level, key.clone().widened(level))).collect()
}

/// The classes that a reading informs: what a source counts in its rates says nothing about other generations of GPUs, and
/// where a coarse row states no time either it says nothing about its class.
fn informed(row: &RowReport, readings: &Readings, what: Measurand) -> Vec<(u8, BarKey)> {
    let mut keys = bar_keys(row, what);
    if readings.by_rate {
        keys.retain(|(level, _)| *level < ALL_GENERATIONS && !coarse(row));
    }
    keys
}

/// The classes that stand for a row's memory, in order, as [`ErrorBars::of_memory`] has them; `known`: its profile was
/// read, with or without experts.
fn memory_keys(row: &RowReport, known: bool) -> Vec<(u8, BarKey)> {
    let own = bar_keys(row, Measurand::Memory);
    let dense: Vec<(u8, BarKey)> =
        own.iter().cloned().map(|(level, key)| (level, BarKey { experts: false, ..key })).collect();
    let both = |of_profile: bool| {
        let all = own.iter().chain(&dense).filter(move |(_, key)| key.profile.is_some() == of_profile);
        all.cloned().collect::<Vec<_>>()
    };
    let profile = if known { both(true) } else { Vec::new() };
    [profile, both(false)].concat()
}
