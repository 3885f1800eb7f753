//! Accuracy that was reached, and whether it still is.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::{ErrorStatistics, Summary};
use crate::spec::sealed::{seal, unseal};
use crate::spec::{SpecError, read_text};

/// Fewest rows of a class whose median is held to.
const FEWEST_ROWS: usize = 5;

/// Errors by class, as they were when the file was written.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Baseline {
    /// An error may get worse by this share of it...
    pub relative_margin: f64,
    /// ...plus this much, if it is a median or a share...
    pub absolute_margin: f64,
    /// ...or this much, if it is a mean, a P90 or a bias, which few rows move.
    pub absolute_margin_of_few: f64,
    /// By `what: dimension: class`.
    pub classes: BTreeMap<String, Reached>,
    /// Other figures that should be small, with the rows or groups behind them.
    pub shares: BTreeMap<String, (usize, f64)>,
}

/// Errors of one class.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reached {
    /// Rows.
    pub rows: usize,
    /// Median of absolute errors.
    pub median: f64,
    /// Mean of absolute errors.
    pub mean: f64,
    /// Nine of ten are smaller.
    pub p90: f64,
    /// Absolute median of signed errors.
    pub bias: f64,
}

impl Reached {
    fn of(errors: &ErrorStatistics) -> Self {
        Self {
            rows: errors.rows,
            median: round(errors.median),
            mean: round(errors.mean),
            p90: round(errors.p90),
            bias: round(errors.bias.abs()),
        }
    }
}

/// An error that is worse than it was.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Worse {
    /// The class.
    pub class: String,
    /// What of it.
    pub figure: &'static str,
    /// The figure before.
    pub before: f64,
    /// And now; none where the class has no rows any more.
    pub now: Option<f64>,
}

impl Baseline {
    /// What a summary reaches.
    #[must_use]
    pub fn of(summary: &Summary) -> Self {
        let mut classes = BTreeMap::new();
        for (what, table) in [("step time", &summary.step_time), ("memory", &summary.memory)] {
            if let Some(all) = &table.all {
                classes.insert(format!("{what}: all"), Reached::of(all));
            }
            for (dimension, by) in &table.by {
                for (class, errors) in by.iter().filter(|(_, errors)| errors.rows >= FEWEST_ROWS) {
                    classes.insert(format!("{what}: {dimension}: {class}"), Reached::of(errors));
                }
            }
        }
        let mut shares = BTreeMap::new();
        let verdicts = &summary.out_of_memory;
        if verdicts.judged() > 0 {
            let mut put =
                |name: &str, share| shares.insert(name.to_owned(), (verdicts.judged(), round(share)));
            put("memory verdicts: wrong", 1.0 - verdicts.right());
            put("memory verdicts: ran and called impossible", verdicts.called_impossible());
        }
        let ranking = &summary.ranking;
        for (name, figure) in [
            ("ranking: 1 - mean tau", ranking.mean_tau.map(|tau| 1.0 - tau)),
            ("ranking: mean regret", ranking.mean_regret),
        ] {
            shares.extend(figure.map(|figure| (name.to_owned(), (ranking.groups.len(), round(figure)))));
        }
        Self { relative_margin: 0.10, absolute_margin: 0.003, absolute_margin_of_few: 0.01, classes, shares }
    }

    /// The text of its file.
    ///
    /// # Errors
    /// A value that the format cannot hold.
    pub fn to_text(&self) -> Result<String, ron::Error> {
        seal(self)
    }

    /// Reads a file.
    ///
    /// # Errors
    /// What is wrong with it, with its place; another schema.
    pub fn read(path: &Path) -> Result<Self, SpecError> {
        let (source, text) = (path.display().to_string(), read_text(path)?);
        unseal(&source, &text, "errors")
    }

    /// Figures that are worse than here by more than the margin.
    #[must_use]
    pub fn worse(&self, summary: &Summary) -> Vec<Worse> {
        let now = Self::of(summary);
        let mut worse = Vec::new();
        let mut hold = |class: &str, figure, before: f64, now: Option<f64>, margin: f64| {
            if now.is_none_or(|now| now > before * (1.0 + self.relative_margin) + margin) {
                worse.push(Worse { class: class.to_owned(), figure, before, now });
            }
        };
        let (margin, of_few) = (self.absolute_margin, self.absolute_margin_of_few);
        for (class, before) in &self.classes {
            let now = now.classes.get(class);
            hold(class, "median error", before.median, now.map(|now| now.median), margin);
            if let Some(now) = now {
                hold(class, "mean error", before.mean, Some(now.mean), of_few);
                hold(class, "P90", before.p90, Some(now.p90), of_few);
                hold(class, "bias", before.bias, Some(now.bias), of_few);
            }
        }
        for (name, &(_, before)) in &self.shares {
            hold(name, "share", before, now.shares.get(name).map(|&(_, now)| now), margin);
        }
        worse
    }
}

/// Four decimals: what a file needs to be stable.
fn round(share: f64) -> f64 {
    (share * 1e4).round() / 1e4
}
