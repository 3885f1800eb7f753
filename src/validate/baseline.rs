//! Accuracy that was reached, and whether it still is.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::Summary;
use crate::spec::sealed::{seal, unseal};
use crate::spec::{SpecError, read_text};

/// Fewest rows of a class whose median is held to.
const FEWEST_ROWS: usize = 5;

/// Median errors by class, as they were when the file was written.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Baseline {
    /// A class may get worse by this share of its error...
    pub relative_margin: f64,
    /// ...plus this much.
    pub absolute_margin: f64,
    /// By `what: dimension: class`: rows and median absolute error.
    pub classes: BTreeMap<String, (usize, f64)>,
}

/// A class that is worse than it was.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Worse {
    /// The class.
    pub class: String,
    /// Its median error before.
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
            if let Some(all) = table.all {
                classes.insert(format!("{what}: all"), (all.rows, round(all.median)));
            }
            for (dimension, by) in &table.by {
                for (class, errors) in by {
                    if errors.rows >= FEWEST_ROWS {
                        classes.insert(
                            format!("{what}: {dimension}: {class}"),
                            (errors.rows, round(errors.median)),
                        );
                    }
                }
            }
        }
        let verdicts = &summary.out_of_memory;
        if verdicts.judged() > 0 {
            let wrong = round(1.0 - verdicts.right());
            classes.insert("memory verdicts: wrong".into(), (verdicts.judged(), wrong));
        }
        if let Some(tau) = summary.ranking.mean_tau {
            classes.insert("ranking: 1 - mean tau".into(), (summary.ranking.groups.len(), round(1.0 - tau)));
        }
        Self { relative_margin: 0.10, absolute_margin: 0.003, classes }
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

    /// Classes that are worse than here by more than the margin.
    #[must_use]
    pub fn worse(&self, summary: &Summary) -> Vec<Worse> {
        let now = Self::of(summary);
        self.classes
            .iter()
            .filter_map(|(class, &(_, before))| {
                let after = now.classes.get(class).map(|&(_, median)| median);
                let most = before * (1.0 + self.relative_margin) + self.absolute_margin;
                (after.is_none_or(|median| median > most)).then(|| Worse {
                    class: class.clone(),
                    before,
                    now: after,
                })
            })
            .collect()
    }
}

/// Four decimals: what a file needs to be stable.
fn round(share: f64) -> f64 {
    (share * 1e4).round() / 1e4
}
