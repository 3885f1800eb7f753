//! What this project set out to reach, beside what it reaches: every goal is named, met or not.

use serde::Serialize;

use super::constants::Measurand;
use super::{Coverage, ErrorStatistics, ErrorTable, Ranking, Summary};

/// How much worse errors may be with a row's own source left out of the fit.
const LEFT_OUT: f64 = 1.5;

/// What a goal counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// A share: an error, a rate.
    Share,
    /// A correlation.
    Correlation,
    /// A count.
    Count,
}

/// A statistic of absolute errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Statistic {
    /// Half are smaller.
    Median,
    /// Mean.
    Mean,
    /// Nine of ten are smaller.
    P90,
}

impl Statistic {
    /// Its value.
    #[must_use]
    pub fn of(self, errors: &ErrorStatistics) -> f64 {
        match self {
            Self::Median => errors.median,
            Self::Mean => errors.mean,
            Self::P90 => errors.p90,
        }
    }
}

/// What a goal is counted over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum About {
    /// Errors of a class of rows.
    Errors {
        /// Of what.
        of: Measurand,
        /// Dimension of the class.
        dimension: &'static str,
        /// Class.
        class: &'static str,
        /// What of the errors.
        statistic: Statistic,
    },
    /// Rank correlations of groups of runs, with those that their source contradicts.
    Tau,
    /// Regrets of picks in them.
    Regret,
    /// Whether measured times lie inside twice the standard deviation of their predictions.
    TwiceSigma,
    /// Whether verdicts on memory are right.
    RightVerdicts,
    /// Whether runs that ran are called impossible.
    CalledImpossible,
    /// Picks by time and memory that ran out of memory.
    Picks,
    /// Anything else.
    Other,
}

/// A number with the bound that it should keep.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Goal {
    /// What is measured.
    pub name: String,
    /// What the numbers count.
    pub unit: Unit,
    /// Bound.
    pub bound: f64,
    /// Whether it is a lower bound.
    pub at_least: bool,
    /// What was reached.
    pub reached: f64,
    /// What was reached with the rows' own sources left out of the fit, where that is looked at.
    pub left_out: Option<f64>,
    /// What it is counted over.
    #[serde(skip)]
    pub about: About,
}

impl Goal {
    /// Whether the goal is met.
    #[must_use]
    pub fn met(&self) -> bool {
        if self.at_least { self.reached >= self.bound } else { self.reached <= self.bound }
    }
    /// Whether errors stay within half as much again where sources are left out.
    #[must_use]
    pub fn met_left_out(&self) -> Option<bool> {
        self.left_out.map(|value| {
            if self.at_least { value >= self.bound / LEFT_OUT } else { value <= self.bound * LEFT_OUT }
        })
    }
}

/// Bounds of the errors of a class of rows.
struct ClassBounds {
    name: &'static str,
    dimension: &'static str,
    class: &'static str,
    median: Option<f64>,
    mean: Option<f64>,
    p90: Option<f64>,
}

const fn class(name: &'static str, dimension: &'static str, class: &'static str, median: f64) -> ClassBounds {
    ClassBounds { name, dimension, class, median: Some(median), mean: None, p90: None }
}

const STEP_TIME: [ClassBounds; 7] = [
    ClassBounds { p90: Some(0.10), ..class("step time, dense, grade A", "grade", "A dense", 0.03) },
    ClassBounds { mean: Some(0.08), ..class("step time, dense", "kind", "dense", 0.04) },
    ClassBounds {
        p90: Some(0.18),
        ..class("step time, experts, balanced routing", "routing", "balanced", 0.05)
    },
    class("step time, FP8", "precision", "fp8", 0.05),
    class("step time, MXFP8", "precision", "mxfp8", 0.05),
    class("step time, NVFP4", "precision", "nvfp4", 0.05),
    class("step time, 512 GPUs and more", "scale", "512 GPUs and more", 0.04),
];
const MEMORY: [ClassBounds; 1] = [class("memory, nanotron", "framework", "nanotron", 0.06)];

fn classes(
    goals: &mut Vec<Goal>,
    (of, bounds): (Measurand, &[ClassBounds]),
    table: &ErrorTable,
    left_out: Option<&ErrorTable>,
) {
    for bounds in bounds {
        let find = |table: &ErrorTable| table.by.get(bounds.dimension)?.get(bounds.class).copied();
        let Some(reached) = find(table) else { continue };
        let without = left_out.and_then(find);
        let (dimension, class) = (bounds.dimension, bounds.class);
        let mut goal = |part: &str, bound: Option<f64>, statistic: Statistic| {
            goals.extend(bound.map(|bound| Goal {
                name: format!("{}: {part}", bounds.name),
                unit: Unit::Share,
                bound,
                at_least: false,
                reached: statistic.of(&reached),
                left_out: without.as_ref().map(|errors| statistic.of(errors)),
                about: About::Errors { of, dimension, class, statistic },
            }));
        };
        goal("median", bounds.median, Statistic::Median);
        goal("mean", bounds.mean, Statistic::Mean);
        goal("P90", bounds.p90, Statistic::P90);
    }
}

/// Goals over groups of runs, with those that their source contradicts.
const TAU: &str = "ranking: mean tau, with the runs that their source contradicts";
const REGRET: &str = "ranking: mean regret, with the runs that their source contradicts";
/// Goals of verdicts on memory.
const RIGHT_VERDICTS: &str = "right verdicts on memory";
const CALLED_IMPOSSIBLE: &str = "runs that ran and are called impossible";
const PICKS: &str = "picks by time and memory that ran out of memory";
/// The goal of runs inside twice what is said to be one standard deviation.
const TWICE_SIGMA: &str = "step times inside twice one sigma";

/// Bounds of the errors over a named set of rows.
struct SetBounds {
    source: &'static str,
    /// Mean error of step times.
    mean: f64,
    /// Least rank correlation within models.
    correlation: Option<f64>,
    /// Mean and largest error of memory.
    memory: Option<(f64, f64)>,
}

const SETS: [SetBounds; 4] = [
    SetBounds { source: "seqsel", mean: 0.03, correlation: None, memory: None },
    SetBounds { source: "sc21t1", mean: 0.06, correlation: None, memory: None },
    SetBounds { source: "vtrain", mean: 0.07, correlation: Some(0.9), memory: None },
    SetBounds { source: "simumax", mean: 0.04, correlation: None, memory: Some((0.006, 0.02)) },
];

fn sets(goals: &mut Vec<Goal>, summary: &Summary) {
    let mut goal = |name: String, bound: f64, reached: Option<f64>, left_out: Option<f64>| {
        let unit = Unit::Share;
        let about = About::Other;
        goals.extend(reached.map(|reached| Goal {
            name,
            unit,
            bound,
            at_least: false,
            reached,
            left_out,
            about,
        }));
    };
    let mut correlations = Vec::new();
    for SetBounds { source, mean, correlation, memory } in SETS {
        let Some(set) = summary.named_sets.iter().find(|set| set.sources.contains(&source)) else { continue };
        let name = format!("step time, {}: mean", set.name);
        goal(name, mean, set.step_time.map(|e| e.mean), set.left_out.map(|e| e.mean));
        if let Some((bound, reached)) = correlation.zip(set.least_spearman) {
            let name = format!("rank correlation, {}: least", set.name);
            correlations.push(Goal {
                name,
                unit: Unit::Correlation,
                bound,
                at_least: true,
                reached,
                left_out: set.left_out_spearman,
                about: About::Other,
            });
        }
        if let Some((mean, worst)) = memory {
            let [own, apart] = [set.memory, set.left_out_memory];
            goal(format!("memory, {}: mean", set.name), mean, own.map(|e| e.mean), apart.map(|e| e.mean));
            goal(format!("memory, {}: worst", set.name), worst, own.map(|e| e.worst), apart.map(|e| e.worst));
        }
    }
    goals.extend(correlations);
}

/// All goals that the rows of a report bear on.
#[must_use]
pub fn goals(summary: &Summary) -> Vec<Goal> {
    let mut goals = Vec::new();
    let left_out = summary.left_out.as_ref();
    let times = (Measurand::StepTime, &STEP_TIME[..]);
    classes(&mut goals, times, &summary.step_time, left_out.map(|l| &l.step_time));
    sets(&mut goals, summary);
    let memory = (Measurand::Memory, &MEMORY[..]);
    classes(&mut goals, memory, &summary.memory, left_out.map(|l| &l.memory));
    let verdicts = summary.out_of_memory;
    let mut goal =
        |name: &str, (unit, at_least): (Unit, bool), bound: f64, reached: f64, left_out: Option<f64>| {
            let about = match name {
                TAU => About::Tau,
                REGRET => About::Regret,
                TWICE_SIGMA => About::TwiceSigma,
                RIGHT_VERDICTS => About::RightVerdicts,
                CALLED_IMPOSSIBLE => About::CalledImpossible,
                PICKS => About::Picks,
                _ => About::Other,
            };
            goals.push(Goal { name: name.to_owned(), unit, bound, at_least, reached, left_out, about });
        };
    if verdicts.failed_fits + verdicts.failed_rejected > 0 {
        let apart = left_out.map(|l| l.out_of_memory);
        goal(RIGHT_VERDICTS, (Unit::Share, true), 0.96, verdicts.right(), apart.map(|v| v.right()));
        let (rejected, without) = (verdicts.called_impossible(), apart.map(|v| v.called_impossible()));
        goal(CALLED_IMPOSSIBLE, (Unit::Share, false), 0.02, rejected, without);
    }
    let of = |ranking: fn(&Ranking) -> Option<f64>| left_out.and_then(|l| ranking(&l.ranking));
    if let Some((tau, regret)) = summary.ranking.mean_tau.zip(summary.ranking.mean_regret) {
        goal("ranking: mean tau", (Unit::Correlation, true), 0.75, tau, of(|r| r.mean_tau));
        goal("ranking: mean regret", (Unit::Share, false), 0.02, regret, of(|r| r.mean_regret));
        let all = &summary.ranking_with_contradicted;
        if let Some((tau, regret)) = all.mean_tau.zip(all.mean_regret) {
            let of = |ranking: fn(&Ranking) -> Option<f64>| {
                left_out.and_then(|l| ranking(&l.ranking_with_contradicted))
            };
            goal(TAU, (Unit::Correlation, true), 0.75, tau, of(|r| r.mean_tau));
            goal(REGRET, (Unit::Share, false), 0.02, regret, of(|r| r.mean_regret));
        }
        let picks = summary.ranking.picks_out_of_memory.len() as f64;
        let without = of(|r| Some(r.picks_out_of_memory.len() as f64));
        goal(PICKS, (Unit::Count, false), 0.0, picks, without);
    }
    if let Some(Coverage { one_sigma, two_sigma, twice_one_sigma }) = summary.coverage {
        let left_out = summary.left_out_inside_shipped;
        let share = (Unit::Share, true);
        goal("step times inside one sigma", share, 0.68, one_sigma, left_out.map(|c| c.one_sigma));
        goal("step times inside the bar for 95.4%", share, 0.95, two_sigma, left_out.map(|c| c.two_sigma));
        let twice = left_out.map(|c| c.twice_one_sigma);
        goal(TWICE_SIGMA, share, 0.95, twice_one_sigma, twice);
    }
    goals
}
