//! Error bars of predicted step times and of predicted memory, by class of run, from residuals of measured runs.
//!
//! The table `error_bars.ron` is written by `autoplan validate --error-bars`: what is left of runs whose own source no
//! constant was fitted to. A class that has too few runs is not in it; the next wider class stands in. Where nobody measured a profile on a generation of
//! silicon, what predictions lose when their own source is left out comes on top.

use std::sync::LazyLock;

use serde::{Deserialize, Serialize};

use crate::spec::cluster::Architecture;

static TEXT: &str = include_str!("error_bars.ron");
static TABLE: LazyLock<ErrorBars> = LazyLock::new(ErrorBars::read);

/// What the width of an error bar depends on.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Class {
    /// Runtime profile.
    pub profile: String,
    /// The model has routed experts.
    pub experts: bool,
    /// Generation of the GPUs.
    pub architecture: Architecture,
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
    /// One standard deviation of the logarithm of the step time, or of peak memory.
    pub sigma: f64,
    /// What the logarithms of 95.4 % of the runs err by at most.
    pub two_sigma: f64,
    /// One standard deviation of the ratio of two plans of one job.
    pub difference: f64,
}

/// How far the logarithm of a prediction, a step time or peak memory, may be off.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Interval {
    /// One standard deviation.
    pub sigma: f64,
    /// What holds 95.4 % of runs: more than twice the first where tails are heavy.
    pub two_sigma: f64,
    /// One standard deviation of the ratio of two plans of one job.
    pub difference: f64,
}

impl Interval {
    /// Where nothing was measured that is like a run.
    pub const ANYTHING: Self = Self { sigma: 0.1, two_sigma: 0.3, difference: 0.12 };

    /// The least and the greatest factor on a prediction inside 95.4 %: bars are those of logarithms.
    #[must_use]
    pub fn range(&self) -> [f64; 2] {
        [-1.0, 1.0].map(|sign| (sign * self.two_sigma).exp())
    }

    /// The same with an independent unknown on top.
    #[must_use]
    pub fn beside(self, unknown: f64) -> Self {
        let (sigma, two_sigma) = (self.sigma.hypot(unknown), self.two_sigma.hypot(2.0 * unknown));
        Self { sigma, two_sigma, ..self }
    }
}

impl ErrorBar {
    /// The interval.
    #[must_use]
    pub fn interval(&self) -> Interval {
        Interval { sigma: self.sigma, two_sigma: self.two_sigma, difference: self.difference }
    }

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

/// What some runs were measured of.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Covered {
    /// Runtime profile.
    pub profile: String,
    /// Generation of the GPUs.
    pub architecture: Architecture,
    /// Routed experts.
    pub experts: bool,
}

/// What memory was read of, whatever the generation of GPUs.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Read {
    /// Runtime profile.
    pub profile: String,
    /// Routed experts.
    pub experts: bool,
}

/// All classes, the narrowest first.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ErrorBars {
    /// What was measured.
    pub measured: Vec<Covered>,
    /// What comes on top of a standard deviation of the logarithm of the step time where nothing was, in squares:
    /// what predictions lose when all constants are fitted without the run's own source.
    pub transfer: f64,
    /// What memory was read of.
    pub read: Vec<Read>,
    /// The same as `transfer` of peak memory, where none was read.
    pub memory_transfer: f64,
    /// Classes of step times.
    pub bars: Vec<ErrorBar>,
    /// Classes of peak memory. Bytes are counted from shapes, so that the generation of the GPUs does not matter.
    pub memory: Vec<ErrorBar>,
}

/// The interval of the first class that holds this one.
fn first(bars: &[ErrorBar], class: &Class) -> Interval {
    bars.iter().find(|bar| bar.holds(class)).map_or(Interval::ANYTHING, ErrorBar::interval)
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

    /// The interval of the narrowest class of the table that holds this one. A wide one where nothing was measured that
    /// is like it. What is unknown of the hardware is the same for two plans of one job.
    #[must_use]
    pub fn of(&self, class: &Class) -> Interval {
        let interval = first(&self.bars, class);
        if self.measured(class) { interval } else { interval.beside(self.transfer) }
    }

    /// That of peak memory. Where a profile was read with experts, but too seldom for a class, its classes without them
    /// stand in, and where all profiles were, those of all without. A profile that nobody read, with or without experts,
    /// has the interval of all profiles, and what predictions lose without their own source on top.
    #[must_use]
    pub fn of_memory(&self, class: &Class) -> Interval {
        let dense = Class { experts: false, ..class.clone() };
        let narrowest = |of_profile: bool| {
            let holding = |class: &Class| {
                self.memory.iter().find(|bar| bar.profile.is_some() == of_profile && bar.holds(class))
            };
            holding(class).or_else(|| holding(&dense))
        };
        let read = self.memory_was_read(class);
        let bar = narrowest(true).filter(|_| read).or_else(|| narrowest(false));
        let interval = bar.map_or(Interval::ANYTHING, ErrorBar::interval);
        if read { interval } else { interval.beside(self.memory_transfer) }
    }

    /// Whether memory of the class's profile, with or without experts, was read.
    #[must_use]
    pub fn memory_was_read(&self, class: &Class) -> bool {
        self.read.iter().any(|read| (&read.profile, read.experts) == (&class.profile, class.experts))
    }

    /// Whether runs of the class's profile on its generation of GPUs, with or without experts, were measured.
    #[must_use]
    pub fn measured(&self, class: &Class) -> bool {
        self.measured.iter().any(|m| {
            (&m.profile, m.architecture, m.experts) == (&class.profile, class.architecture, class.experts)
        })
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
            architecture: Architecture::Hopper,
            narrow: false,
            scale: Scale::of(gpus),
            crossing: false,
        };
        let wider = |bar: &ErrorBar| bar.sigma > 0.0 && bar.two_sigma >= bar.sigma && bar.two_sigma < 2.0;
        assert!(bars.iter().all(|bar| wider(bar) && bar.difference > 0.0));
        let table = ErrorBars::shipped();
        // A measured class, and one that nobody measured.
        assert!(table.of(&class("nemo", 64)).sigma < 0.06);
        assert_eq!(table.of(&class("nobody's", 64)), table.of(&class("nobody's", 65)));
        // Nobody measured NeMo on AMD's GPUs; that says nothing of two plans there.
        let elsewhere = Class { architecture: Architecture::Cdna3, ..class("nemo", 64) };
        assert!(table.of(&elsewhere).sigma > 0.05 + table.of(&class("nemo", 64)).sigma);
        assert_eq!(table.of(&elsewhere).difference, table.of(&class("nemo", 64)).difference);
        // What was measured of memory with precision is predicted with precision; nobody measured PyTorch FSDP's.
        assert!(table.memory.iter().all(|bar| wider(bar) && bar.difference > 0.0));
        assert!(
            table.of_memory(&class("megatron", 8)).sigma < table.of_memory(&class("pytorch-fsdp", 8)).sigma
        );
        assert_eq!(table.of_memory(&elsewhere), table.of_memory(&class("nemo", 64)));
        // Small runs of nanotron scatter less than large ones.
        assert!(table.of(&class("nanotron", 8)).sigma < table.of(&class("nanotron", 256)).sigma);
    }
    #[test]
    fn memory_that_nobody_read_is_no_better_known_than_all_that_was() {
        let table = ErrorBars::shipped();
        let class = |profile: &str, experts, gpus| Class {
            profile: profile.to_owned(),
            experts,
            architecture: Architecture::Hopper,
            narrow: false,
            scale: Scale::of(gpus),
            crossing: false,
        };
        let of_all = table.memory.iter().find(|bar| bar.profile.is_none() && !bar.experts).unwrap();
        for gpus in [8, 64, 256, 1024] {
            let unread = [("nanotron", true), ("deepspeed", true), ("nemo", true), ("deepspeed", false)];
            for (profile, experts) in unread {
                let class = class(profile, experts, gpus);
                assert!(!table.memory_was_read(&class), "{class:?}");
                let interval = table.of_memory(&class);
                assert!(interval.sigma > of_all.sigma && interval.two_sigma > of_all.two_sigma, "{class:?}");
            }
            // Four readings with experts, all of them right, are not more than dozens without.
            let [dense, experts] = [false, true].map(|experts| class("megatron", experts, gpus));
            assert_eq!(table.of_memory(&experts), table.of_memory(&dense));
        }
    }
}
