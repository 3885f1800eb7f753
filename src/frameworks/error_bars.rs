//! Error bars of predicted step times, by class of run, from residuals of measured runs.
//!
//! The table `error_bars.ron` is written by `autoplan validate --error-bars`. A class that has too few
//! runs is not in it; the next wider class stands in.

use std::sync::LazyLock;

use serde::{Deserialize, Serialize};

static TEXT: &str = include_str!("error_bars.ron");
static TABLE: LazyLock<ErrorBars> = LazyLock::new(ErrorBars::read);

/// What the width of an error bar depends on.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Class {
    /// Runtime profile.
    pub profile: String,
    /// The model has routed experts.
    pub experts: bool,
    /// Products in 8 bits or fewer.
    pub narrow: bool,
    /// GPUs.
    pub scale: Scale,
    /// Tensor parallelism leaves the fast domain.
    pub crossing: bool,
}

/// Buckets of numbers of GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Scale {
    /// Up to 8.
    Node,
    /// Up to 64.
    Rack,
    /// Up to 511.
    Row,
    /// 512 and more.
    Hall,
}

impl Scale {
    /// The bucket of so many GPUs.
    #[must_use]
    pub fn of(gpus: u32) -> Self {
        match gpus {
            0..=8 => Self::Node,
            9..=64 => Self::Rack,
            65..=511 => Self::Row,
            _ => Self::Hall,
        }
    }
}

/// One row of the table: a class, narrower fields unset where it is wider.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ErrorBar {
    /// Runtime profile.
    #[serde(default)]
    pub profile: Option<String>,
    /// Routed experts.
    pub experts: bool,
    /// Narrow formats.
    #[serde(default)]
    pub narrow: Option<bool>,
    /// GPUs.
    #[serde(default)]
    pub scale: Option<Scale>,
    /// Tensor parallelism across domains.
    #[serde(default)]
    pub crossing: Option<bool>,
    /// Runs behind it.
    pub runs: usize,
    /// One standard deviation of the logarithm of the step time.
    pub sigma: f64,
    /// That of the ratio of two plans of one job.
    pub difference: f64,
}

impl ErrorBar {
    /// Whether a class lies in this one.
    #[must_use]
    pub fn holds(&self, class: &Class) -> bool {
        self.profile.as_ref().is_none_or(|p| *p == class.profile)
            && self.experts == class.experts
            && self.narrow.is_none_or(|n| n == class.narrow)
            && self.scale.is_none_or(|s| s == class.scale)
            && self.crossing.is_none_or(|c| c == class.crossing)
    }
}

/// All classes, the narrowest first.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ErrorBars {
    /// Classes.
    pub bars: Vec<ErrorBar>,
}

impl ErrorBars {
    /// # Panics
    /// Never: the embedded file is read by a test.
    fn read() -> Self {
        crate::spec::ron_options().from_str(TEXT).expect("the embedded file is valid")
    }

    /// The table that ships.
    #[must_use]
    pub fn shipped() -> &'static Self {
        &TABLE
    }

    /// The narrowest class of the table that holds this one: standard deviation of a time and of the ratio
    /// of two. Wide bars where nothing was measured that is like it.
    #[must_use]
    pub fn of(&self, class: &Class) -> (f64, f64) {
        self.bars.iter().find(|bar| bar.holds(class)).map_or((0.1, 0.12), |bar| (bar.sigma, bar.difference))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn narrow_classes_come_before_wide_ones() {
        let bars = &ErrorBars::shipped().bars;
        let class = |profile: &str, gpus| Class {
            profile: profile.to_owned(),
            experts: false,
            narrow: false,
            scale: Scale::of(gpus),
            crossing: false,
        };
        assert!(bars.iter().all(|bar| bar.sigma > 0.0 && bar.sigma < 1.5 && bar.difference > 0.0));
        let table = ErrorBars::shipped();
        // A measured class, and one that nobody measured.
        assert!(table.of(&class("nemo", 64)).0 < 0.06);
        assert_eq!(table.of(&class("nobody's", 64)), table.of(&class("nobody's", 65)));
        // Small runs of nanotron scatter less than large ones.
        assert!(table.of(&class("nanotron", 8)).0 < table.of(&class("nanotron", 256)).0);
    }
}
