//! What holds predictions back: the sources and groups of runs without which a missed goal would stand otherwise, and what
//! is known to be wrong with rows, or with us.

use serde::Deserialize;

use super::bars::off_and_bars;
use super::case::{Labels, source_of};
use super::constants::Measurand;
use super::goals::{About, Goal};
use super::sets::Noise;
use super::{ErrorStatistics, RankedGroup, Report, RowReport, classes, counted};

static REMARKS: &str = include_str!("../../results/published/remarks.ron");

/// What is known of some rows that are predicted badly.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Remark {
    /// Source: prefix of the row's id.
    pub source: String,
    /// Which of its rows, in words; empty: all.
    pub rows: String,
    which: Which,
    /// Which of their readings.
    pub of: Measurand,
    /// Whether it is about what is predicted with the source left out of the fit.
    #[serde(default)]
    pub left_out: bool,
    /// Whether it is about step times that printed rates say.
    #[serde(default)]
    pub by_rate: bool,
    /// What is at fault.
    pub wrong: Fault,
    /// Why.
    pub why: String,
}

/// What is at fault where a prediction is far off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub enum Fault {
    /// The rows: they leave out what decides, or contradict themselves.
    Rows,
    /// The model, or its constants.
    Ours,
    /// Some of each.
    Both,
}

impl Fault {
    /// In a word.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Rows => "the rows",
            Self::Ours => "the model",
            Self::Both => "both",
        }
    }
}

/// Rows of a source; what is not named does not matter.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Which {
    profile: Option<String>,
    precision: Option<String>,
    /// Start of the accelerator's name.
    gpu: Option<String>,
    /// Part of the model's name.
    model: Option<String>,
    /// What is no part of it.
    not_model: Option<String>,
    /// A word of the plan.
    plan: Option<String>,
    /// Fewest and most GPUs.
    gpus: Option<(u32, u32)>,
    /// Whether tensor parallelism leaves the fast domain.
    crossing: Option<bool>,
    /// Whether it is pretraining.
    pretraining: Option<bool>,
    /// Fewest and most tokens of a sequence.
    sequence: Option<(u32, u32)>,
    /// Ids, where nothing else tells the rows apart.
    ids: Option<Vec<String>>,
}

impl Remark {
    /// The remarks that ship.
    ///
    /// # Panics
    /// Never: the embedded file is read by a test.
    #[must_use]
    pub fn shipped() -> Vec<Self> {
        crate::spec::ron_options().from_str(REMARKS).expect("the embedded file is valid")
    }

    /// Whether it is about a row.
    #[must_use]
    pub fn holds(&self, row: &RowReport) -> bool {
        let (which, labels): (&Which, &Labels) = (&self.which, &row.labels);
        let is = |wanted: &Option<String>, found: &str| wanted.as_ref().is_none_or(|w| w == found);
        let plan = row.plan.as_deref().unwrap_or_default();
        self.source == labels.source
            && is(&which.profile, labels.profile)
            && is(&which.precision, row.precision)
            && which.gpu.as_ref().is_none_or(|start| labels.gpu.starts_with(start.as_str()))
            && which.model.as_ref().is_none_or(|part| labels.model.contains(part.as_str()))
            && which.not_model.as_ref().is_none_or(|part| !labels.model.contains(part.as_str()))
            && which.plan.as_ref().is_none_or(|wanted| plan.split_whitespace().any(|word| word == wanted))
            && which.gpus.is_none_or(|(least, most)| (least..=most).contains(&labels.gpus))
            && which.sequence.is_none_or(|(least, most)| (least..=most).contains(&labels.sequence_length))
            && which.ids.as_ref().is_none_or(|ids| ids.contains(&row.id))
            && which.crossing.is_none_or(|crossing| crossing == labels.crossing)
            && which.pretraining.is_none_or(|pretraining| pretraining == (labels.training == "pretrain"))
    }

    /// Errors of its rows, and with their source left out.
    #[must_use]
    pub fn errors(&self, rows: &[&RowReport]) -> (Option<ErrorStatistics>, Option<ErrorStatistics>) {
        let of = |left_out: bool| {
            let mine = rows.iter().filter(|row| self.holds(row));
            let errors: Vec<f64> = mine.filter_map(|row| self.error(row, left_out)).collect();
            ErrorStatistics::of(&errors)
        };
        (of(false), of(true))
    }

    /// The error of a row in what it is about.
    fn error(&self, row: &RowReport, left_out: bool) -> Option<f64> {
        match (self.by_rate, left_out) {
            (false, _) => error(row, self.of, left_out),
            (true, false) => row.rate_error(),
            (true, true) => Some(row.left_out_step_s? / row.rate_step_s? - 1.0),
        }
    }
}

fn error(row: &RowReport, of: Measurand, left_out: bool) -> Option<f64> {
    match (of, left_out) {
        (Measurand::StepTime, false) => row.step_error(),
        (Measurand::StepTime, true) => row.left_out_step_error(),
        (Measurand::Memory, false) => row.memory_error(),
        (Measurand::Memory, true) => row.left_out_memory_error(),
    }
}

/// A part of the rows behind a goal: how it stands by itself, and how the goal would stand without it.
#[derive(Debug, Clone, PartialEq)]
pub struct Part {
    /// Source, or group of runs.
    pub name: String,
    /// Rows, or runs.
    pub rows: usize,
    /// The number over these alone.
    pub own: f64,
    /// The number over all others.
    pub without: f64,
}

/// Most parts that are named for a goal.
const MOST_PARTS: usize = 6;

/// The parts that hold a goal back, those that weigh most first.
#[must_use]
pub fn parts(report: &Report, goal: &Goal, left_out: bool) -> Vec<Part> {
    let Some(reached) = (if left_out { goal.left_out } else { Some(goal.reached) }) else {
        return Vec::new();
    };
    let mean = |numbers: &[f64]| Some(numbers.iter().sum::<f64>() / numbers.len().max(1) as f64);
    let mut parts = match goal.about {
        About::Errors { of, dimension, class, statistic } => {
            let rows: Vec<(&str, f64)> = counted(&report.rows)
                .into_iter()
                .filter(|row| classes(row).iter().any(|(d, c)| *d == dimension && c == class))
                .filter_map(|row| Some((row.labels.source.as_str(), error(row, of, left_out)?)))
                .collect();
            by_name(&rows, |errors| Some(statistic.of(&ErrorStatistics::of(errors)?)))
        }
        About::Tau | About::Regret => {
            let number: fn(&RankedGroup) -> f64 =
                if goal.about == About::Tau { |group| group.tau } else { |group| group.regret };
            let summary = &report.summary;
            let apart = summary.left_out.as_ref().filter(|_| left_out);
            let groups =
                &apart.map_or(&summary.ranking_with_contradicted, |l| &l.ranking_with_contradicted).groups;
            let rows: Vec<(&str, f64)> = groups.iter().map(|g| (g.group.as_str(), number(g))).collect();
            let runs = |name: &str| groups.iter().find(|g| g.group == name).map_or(0, |g| g.runs);
            by_name(&rows, mean).into_iter().map(|part| Part { rows: runs(&part.name), ..part }).collect()
        }
        About::TwiceSigma if !left_out => {
            let inside = |row: &RowReport| {
                let [off, sigma, _] = off_and_bars(row, Measurand::StepTime)?;
                Some(f64::from(u8::from(off <= 2.0 * sigma)))
            };
            let rows = counted(&report.rows).into_iter();
            let rows: Vec<(&str, f64)> =
                rows.filter_map(|row| Some((row.labels.source.as_str(), inside(row)?))).collect();
            by_name(&rows, mean)
        }
        About::Picks => {
            let apart = report.summary.left_out.as_ref().filter(|_| left_out);
            let ranking = apart.map_or(&report.summary.ranking, |l| &l.ranking);
            // Sources, by the beginning of their rows' ids.
            let picks: Vec<(&str, f64)> =
                ranking.picks_out_of_memory.iter().map(|id| (source_of(id), 1.0)).collect();
            let all = picks.len();
            let mut parts = by_name(&picks, |picks| Some(picks.len() as f64));
            if let ([], Some((name, _))) = (parts.as_slice(), picks.first()) {
                // Nothing is left without the only one.
                parts.push(Part { name: (*name).to_owned(), rows: all, own: all as f64, without: 0.0 });
            }
            parts
        }
        About::RightVerdicts | About::CalledImpossible => {
            let rows: Vec<(&str, f64)> = counted(&report.rows)
                .into_iter()
                .filter_map(|row| {
                    let fits = if left_out { row.left_out_fits? } else { row.fits? };
                    let failed = row.out_of_memory?;
                    let of_ran = goal.about == About::CalledImpossible;
                    let counts = if of_ran { !fits } else { fits != failed };
                    (!of_ran || !failed).then(|| (row.labels.source.as_str(), f64::from(u8::from(counts))))
                })
                .collect();
            by_name(&rows, mean)
        }
        About::TwiceSigma | About::Other => Vec::new(),
    };
    let gain = |part: &Part| {
        let gain = part.without - reached;
        if goal.at_least { gain } else { -gain }
    };
    parts.retain(|part| gain(part) > 0.0);
    parts.sort_by(|a, b| gain(b).total_cmp(&gain(a)).then_with(|| a.name.cmp(&b.name)));
    parts.truncate(MOST_PARTS);
    parts
}

/// A number over every name's own rows, and over all but those.
fn by_name(rows: &[(&str, f64)], number: impl Fn(&[f64]) -> Option<f64>) -> Vec<Part> {
    let mut names: Vec<&str> = rows.iter().map(|(name, _)| *name).collect();
    names.sort_unstable();
    names.dedup();
    let part = |name: &&str| {
        let (own, others): (Vec<_>, Vec<_>) = rows.iter().partition(|(of, _)| of == name);
        let of = |rows: Vec<&(&str, f64)>| rows.into_iter().map(|(_, x)| *x).collect::<Vec<f64>>();
        let (own, others) = (of(own), of(others));
        Some(Part {
            name: (*name).to_owned(),
            rows: own.len(),
            own: number(&own)?,
            without: number(&others)?,
        })
    };
    names.iter().filter_map(part).collect()
}

/// How much of what is far off is spoken of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Explained {
    /// Readings that are further off than a tenth.
    pub far: usize,
    /// Those among them that a remark is about, most of whose rows are.
    pub remarked: usize,
    /// Those beside them that fall under an entry of the noisy rows, or under a remark most of whose rows are right.
    pub among_others: usize,
}

/// What of the readings more than a tenth off is spoken of.
#[must_use]
pub fn explained(rows: &[&RowReport], remarks: &[Remark], of: Measurand) -> Explained {
    let far = |row: &RowReport| error(row, of, false).is_some_and(|error| error.abs() > 0.1);
    let mut explained = Explained { far: 0, remarked: 0, among_others: 0 };
    let about: Vec<(&Remark, bool)> = remarks
        .iter()
        .filter(|remark| remark.of == of && !remark.left_out && !remark.by_rate)
        .map(|remark| {
            let held = || rows.iter().filter(|row| remark.holds(row) && error(row, of, false).is_some());
            (remark, 2 * held().filter(|row| far(row)).count() > held().count())
        })
        .collect();
    for row in rows.iter().filter(|row| far(row)) {
        explained.far += 1;
        let says = |mostly: bool| about.iter().any(|(remark, most)| *most == mostly && remark.holds(row));
        let noisy = of == Measurand::StepTime && Noise::of(&row.labels).is_some();
        if says(true) {
            explained.remarked += 1;
        } else if noisy || says(false) {
            explained.among_others += 1;
        }
    }
    explained
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::validate::{cases, validate};

    #[test]
    fn a_part_without_which_a_number_falls_holds_it_back() {
        let rows = [("a", 0.1), ("a", 0.2), ("b", 0.9), ("c", 0.3)];
        let largest = |errors: &[f64]| errors.iter().copied().max_by(f64::total_cmp);
        let parts = by_name(&rows, largest);
        assert_eq!(parts[1], Part { name: "b".into(), rows: 1, own: 0.9, without: 0.3 });
        assert_eq!((parts[0].rows, parts[0].without), (2, 0.9));
        // Nothing is left without the only one.
        assert!(by_name(&rows[2..3], largest).is_empty());
    }

    #[test]
    fn every_remark_is_about_rows_that_are_further_off_than_others() {
        let text = include_str!("../../results/published/measured.csv");
        let mut report = validate(text.as_bytes(), |_| true, |_, _| {}).unwrap();
        crate::validate::leave_sources_out(&mut report, &cases(text.as_bytes()).unwrap(), |_, _| {}).unwrap();
        let rows = counted(&report.rows);
        for remark in Remark::shipped() {
            let errors = |meant: &dyn Fn(&RowReport) -> bool| {
                let rows = rows.iter().filter(|row| meant(row));
                let errors: Vec<f64> = rows.filter_map(|row| remark.error(row, remark.left_out)).collect();
                ErrorStatistics::of(&errors)
            };
            let own =
                errors(&|row| remark.holds(row)).unwrap_or_else(|| panic!("{remark:?} is about no row"));
            // Beside the rest of the source; a whole source beside all others.
            let rest = errors(&|row| row.labels.source == remark.source && !remark.holds(row));
            let others = rest.or_else(|| errors(&|row| !remark.holds(row))).unwrap();
            let further = own.median > others.median || own.mean > others.mean || own.p90 > others.p90;
            assert!(further, "{remark:?}: {own:?}, others {others:?}");
        }
    }
}
