//! Error bars of predicted step times and of predicted memory, by class of run, from residuals of measured runs.
//!
//! The table `error_bars.ron` is written by `autoplan validate --error-bars`: what is left of runs whose own publication no
//! constant was fitted to. Classes of one generation of silicon come first; they alone know of times that printed rates say.
//! A class that has too few runs is not in it; the next wider class stands in. One of a single publication is no narrower than the
//! next wider one of its profile that several inform. Where nobody measured a profile on a
//! generation of silicon, what predictions lose when their own publication is left out comes on top. Runs of a profile on a
//! generation, with or without experts, that are too few for a class widen the bar to their own errors where one of them lies
//! outside it.
//!
//! Some runs are special whatever the framework ([`Special`]): adapters, fine-tuning, long sequences, tensor parallelism
//! across domains, GPUs that PCIe alone joins, rows of coarse tables. What is special is no better known than all such
//! runs, where at least two publications have twelve of them, and where a profile has fewer than three, what predictions
//! lose comes on top, once for everything that nobody measured.

use std::sync::LazyLock;

use serde::{Deserialize, Serialize};

use crate::spec::cluster::{Architecture, Cluster, OwnRuns};
use crate::spec::job::Job;
use crate::spec::special::Special;

static TEXT: &str = include_str!("error_bars.ron");
static TABLE: LazyLock<ErrorBars> = LazyLock::new(ErrorBars::read);

/// So many runs of a site say as much of its error bar as the class that ships. A variance is known from four runs within
/// 70 %, and those of the classes of one framework differ by as much (0.019 to 0.072 for NeMo).
const RUNS_OF_CLASS: f64 = 4.0;

/// Fewest runs after which a profile counts as measured on a generation of GPUs.
pub const FEWEST_KNOWN: usize = 3;

/// Fewest runs of a class with an error bar of its own; of memory, fewest readings that repeat no other.
pub const FEWEST_RUNS: usize = 12;

/// Repeated runs of one plan differ by this much (logarithm of the step time): nothing is better known.
pub const LEAST_SIGMA: f64 = 0.01;

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
    /// What is special about the run.
    pub special: Vec<Special>,
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
    /// Generation of the GPUs.
    #[serde(default)]
    pub architecture: Option<Architecture>,
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

    /// By what factor a prediction is exceeded where an error is so many standard deviations of a normal distribution.
    #[must_use]
    pub fn factor_at(&self, deviations: f64) -> f64 {
        let beyond = (deviations.abs() - 1.0).max(0.0) * self.second_sigma();
        let log = deviations.abs().min(1.0) * self.sigma + beyond;
        log.copysign(deviations).exp()
    }

    /// How much wider what holds 95.4 % is than what holds 68.3 %.
    fn second_sigma(&self) -> f64 {
        (self.two_sigma - self.sigma).max(LEAST_SIGMA)
    }

    /// The share of runs that stay below so many times what was predicted: the reverse of [`Self::factor_at`]. Errors are
    /// taken to be as often up as down.
    #[must_use]
    pub fn share_below(&self, factor: f64) -> f64 {
        let log = factor.ln();
        let within = (log.abs() / self.sigma).min(1.0);
        let beyond = (log.abs() - self.sigma).max(0.0) / self.second_sigma();
        let deviations = (within + beyond).copysign(log);
        libm::erfc(-deviations / std::f64::consts::SQRT_2) / 2.0
    }

    /// The same, no narrower than another.
    #[must_use]
    pub fn at_least(self, sigma: f64, two_sigma: f64) -> Self {
        Self { sigma: self.sigma.max(sigma), two_sigma: self.two_sigma.max(two_sigma), ..self }
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
            && self.architecture.is_none_or(|a| a == class.architecture)
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

impl Covered {
    fn is_of(&self, class: &Class) -> bool {
        let Self { profile, architecture, experts } = self;
        (profile, *architecture, *experts) == (&class.profile, class.architecture, class.experts)
    }
}

/// Timed runs of one kind.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Measured {
    /// What they are of.
    pub of: Covered,
    /// How many.
    pub runs: usize,
    /// Of fewer than [`FEWEST_RUNS`], what their logarithms err by, special ones aside: one standard deviation, and the most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spread: Option<(f64, f64)>,
}

/// Runs that lean to one side of their predictions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Leaning {
    /// What they are of.
    pub of: Covered,
    /// How many, printed rates among them.
    pub runs: usize,
    /// Median of the logarithms of predicted over measured step times, as fitted.
    pub median: f64,
}

impl Leaning {
    /// By what share of the prediction such a run takes longer, in the median; below zero, less long.
    #[must_use]
    pub fn longer(&self) -> f64 {
        (-self.median).exp_m1()
    }
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

/// The step times of all runs that are special in one way.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SpecialBar {
    /// What is special.
    pub kind: Special,
    /// Runs behind it.
    pub runs: usize,
    /// One standard deviation of the logarithm.
    pub sigma: f64,
    /// What the logarithms of 95.4 % of the runs err by at most.
    pub two_sigma: f64,
}

/// A profile with runs that are special in one way.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Seen {
    /// Runtime profile.
    pub profile: String,
    /// What is special.
    pub kind: Special,
}

/// All classes, the narrowest first.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ErrorBars {
    /// What was measured, if by one run.
    pub measured: Vec<Measured>,
    /// What comes on top of a standard deviation of the logarithm of the step time where nothing was, in squares:
    /// what predictions lose when all constants are fitted without the run's own source.
    pub transfer: f64,
    /// What memory was read of.
    pub read: Vec<Read>,
    /// The same as `transfer` of peak memory, where none was read.
    pub memory_transfer: f64,
    /// Runs most of which err to one side, by more than a little: bars know no side.
    pub leanings: Vec<Leaning>,
    /// Classes of step times.
    pub bars: Vec<ErrorBar>,
    /// Special runs of all profiles: what is special is no better known.
    pub special: Vec<SpecialBar>,
    /// Profiles that special runs were measured of.
    pub seen: Vec<Seen>,
    /// Classes of peak memory. Bytes are counted from shapes, so that the generation of the GPUs does not matter.
    pub memory: Vec<ErrorBar>,
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
        self.at_site(class, None)
    }

    /// The same at a site with runs of its own like it. They say nothing of what is special about the class and not about
    /// them, which is no better known than all such runs.
    #[must_use]
    pub fn at_site(&self, class: &Class, own: Option<&OwnRuns>) -> Interval {
        let bar = self.bar(class);
        let interval = bar.map_or(Interval::ANYTHING, ErrorBar::interval);
        let known = bar.is_some_and(|bar| bar.architecture.is_some()) || self.measured(class);
        let (shared, beyond): (Vec<Special>, Vec<Special>) =
            class.special.iter().partition(|kind| own.is_none_or(|own| own.special.contains(kind)));
        let interval = self.widened(interval, &class.profile, &shared, u32::from(!known));
        let outside = self.outside(class, interval).and_then(|runs| runs.spread);
        let interval = outside.map_or(interval, |(sigma, most)| interval.at_least(sigma, most));
        self.widened(interval.at_site(own), &class.profile, &beyond, 0)
    }

    /// The narrowest class of step times that holds another.
    #[must_use]
    pub fn bar(&self, class: &Class) -> Option<&ErrorBar> {
        self.bars.iter().find(|bar| bar.holds(class))
    }

    /// The runs of a class's profile on its generation of GPUs, whatever their number format, that are too few for a bar of
    /// their own, if one of them lies outside an interval, which then reaches as far as they do. Those without experts stand in where none with
    /// experts was timed.
    #[must_use]
    pub fn outside(&self, class: &Class, interval: Interval) -> Option<&Measured> {
        let runs = self.runs_of(class).or_else(|| self.runs_of(&Class { experts: false, ..class.clone() }));
        runs.filter(|runs| runs.spread.is_some_and(|(_, most)| most >= interval.two_sigma))
    }

    /// The timed runs of a class's profile on its generation of GPUs, with or without experts.
    #[must_use]
    pub fn runs_of(&self, class: &Class) -> Option<&Measured> {
        self.measured.iter().find(|runs| runs.of.is_of(class))
    }

    /// An interval of a profile's runs where some things are special and so many others are unknown: as wide as all special
    /// runs at least, with what predictions lose on top for everything that nobody measured.
    #[must_use]
    pub fn widened(&self, interval: Interval, profile: &str, special: &[Special], unknown: u32) -> Interval {
        let floors = self.special.iter().filter(|bar| special.contains(&bar.kind));
        let interval = floors.fold(interval, |interval, bar| interval.at_least(bar.sigma, bar.two_sigma));
        // A row that is coarse says nothing about its framework.
        let unseen = special.iter().filter(|kind| {
            **kind != Special::Coarse
                && !self.seen.iter().any(|seen| seen.profile == profile && seen.kind == **kind)
        });
        let unknown = f64::from(unknown) + unseen.count() as f64;
        if unknown > 0.0 { interval.beside(self.transfer * unknown.sqrt()) } else { interval }
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

    /// Other profiles that were timed on a class's generation of GPUs, with or without experts, the most often first.
    #[must_use]
    pub fn others(&self, class: &Class) -> Vec<&Measured> {
        let like = |runs: &&Measured| {
            runs.of.profile != class.profile
                && (runs.of.architecture, runs.of.experts) == (class.architecture, class.experts)
        };
        let mut others: Vec<&Measured> = self.measured.iter().filter(like).collect();
        others.sort_by_key(|runs| std::cmp::Reverse(runs.runs));
        others
    }

    /// How runs like those of a class lean, if they do.
    #[must_use]
    pub fn leaning(&self, class: &Class) -> Option<&Leaning> {
        self.leanings.iter().find(|leaning| leaning.of.is_of(class))
    }

    /// Whether runs of the class's profile on its generation of GPUs, with or without experts, were measured.
    #[must_use]
    pub fn measured(&self, class: &Class) -> bool {
        self.runs_of(class).is_some_and(|measured| measured.runs >= FEWEST_KNOWN)
    }

    /// Whether such runs are known by printed rates alone, from which their times follow.
    #[must_use]
    pub fn known_by_rates(&self, class: &Class) -> bool {
        let bar = self.bar(class);
        !self.measured(class) && bar.is_some_and(|bar| bar.architecture.is_some())
    }
}

/// The site's own runs that are like a job: of its framework, kind of model and format, on about as many GPUs, special in no
/// way that the job is not, and in as many of its ways as any. Where only one of the two trains adapters, or has tensor
/// parallelism across domains, they are not alike.
#[must_use]
pub fn own_runs<'a>(
    cluster: &'a Cluster,
    profile: &str,
    experts: bool,
    job: &Job,
    crossing: bool,
) -> Option<&'a OwnRuns> {
    let special = Special::of(job, cluster, crossing);
    let like = |runs: &&OwnRuns| {
        let scales = Scale::of(runs.gpus.0)..=Scale::of(runs.gpus.1);
        runs.profile == profile
            && runs.experts == experts
            && runs.special.iter().all(|kind| special.contains(kind))
            && [Special::Adapters, Special::Crossing]
                .iter()
                .all(|kind| runs.special.contains(kind) == special.contains(kind))
            && runs.format == job.precision.format()
            && scales.contains(&Scale::of(job.gpus))
    };
    cluster.own_runs.iter().filter(like).max_by_key(|runs| (runs.special.len(), runs.runs))
}

impl Interval {
    /// What it becomes at a site whose own runs are off by what they are: their variance and that of the class, each with its
    /// weight, and no less than [`LEAST_SIGMA`]. Tails stay as heavy as they are in the class, and of the differences between
    /// plans the runs say nothing.
    #[must_use]
    pub fn at_site(self, runs: Option<&OwnRuns>) -> Self {
        let Some(OwnRuns { runs, error, .. }) = runs else { return self };
        let runs = *runs as f64;
        let variance = (RUNS_OF_CLASS * self.sigma.powi(2) + runs * error.powi(2)) / (RUNS_OF_CLASS + runs);
        let sigma = variance.sqrt().max(LEAST_SIGMA);
        Self { sigma, two_sigma: self.two_sigma * sigma / self.sigma, ..self }
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
            special: Vec::new(),
        };
        let wider = |bar: &ErrorBar| bar.sigma > 0.0 && bar.two_sigma >= bar.sigma && bar.two_sigma < 2.0;
        assert!(bars.iter().all(|bar| wider(bar) && bar.difference > 0.0));
        let table = ErrorBars::shipped();
        // A measured class, and one that nobody measured.
        assert!(table.of(&class("nemo", 64)).sigma < 0.06);
        assert_eq!(table.of(&class("nobody's", 64)), table.of(&class("nobody's", 65)));
        // Nobody measured NeMo on AMD's GPUs; that says nothing of two plans there.
        let elsewhere = Class { architecture: Architecture::Cdna3, ..class("nemo", 64) };
        assert!(table.of(&elsewhere).sigma > 0.03 + table.of(&class("nemo", 64)).sigma);
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

    /// As many as the standard deviations say, and each way the reverse of the other.
    #[test]
    fn shares_are_those_of_the_bars() {
        for interval in [
            Interval { sigma: 0.05, two_sigma: 0.3, difference: 0.05 },
            Interval { sigma: 0.1, two_sigma: 0.11, difference: 0.1 },
            Interval::ANYTHING,
        ] {
            let share = |deviations| interval.share_below(interval.factor_at(deviations));
            // Percentiles of the normal distribution.
            let known =
                [(0.0, 0.5), (1.0, 0.841_345), (-1.0, 0.158_655), (2.0, 0.977_250), (-1.645, 0.049_985)];
            for (deviations, expected) in known {
                assert!((share(deviations) - expected).abs() < 1e-5, "{interval:?} {deviations}");
            }
            let [least, most] = interval.range();
            assert!((interval.share_below(most) - interval.share_below(least) - 0.9545).abs() < 1e-4);
            assert!(interval.share_below(1e-9) < 1e-6 && interval.share_below(1e9) > 1.0 - 1e-6);
        }
    }

    #[test]
    fn what_nobody_measured_is_never_better_known() {
        let table = ErrorBars::shipped();
        let class = |profile: &str, special: &[Special]| Class {
            profile: profile.to_owned(),
            experts: false,
            architecture: Architecture::Hopper,
            narrow: false,
            scale: Scale::Rack,
            crossing: special.contains(&Special::Crossing),
            special: special.to_vec(),
        };
        for profile in ["nemo", "megatron", "torchtitan", "nobody's"] {
            let plain = table.of(&class(profile, &[]));
            for kind in [Special::Adapters, Special::FineTuning, Special::LongSequences] {
                let interval = table.of(&class(profile, &[kind]));
                let all = table.special.iter().find(|bar| bar.kind == kind).unwrap();
                assert!(interval.sigma >= plain.sigma.max(all.sigma), "{profile} {kind:?}");
                assert!(interval.two_sigma >= plain.two_sigma.max(all.two_sigma), "{profile} {kind:?}");
                assert_eq!(interval.difference, plain.difference);
            }
        }
        // Nobody ran NeMo's tensor parallelism across nodes, or over PCIe; both at once is less known still.
        let sigma = |special: &[Special]| table.of(&class("nemo", special)).sigma;
        let (crossing, pcie) = (sigma(&[Special::Crossing]), sigma(&[Special::NoFastDomain]));
        assert!(crossing.min(pcie) >= table.transfer);
        assert!(sigma(&[Special::Crossing, Special::NoFastDomain]) > crossing.max(pcie));
        // NeMo's fine-tuning was measured, torchtitan's was not.
        let seen = |profile: &str| {
            table.seen.contains(&Seen { profile: profile.to_owned(), kind: Special::FineTuning })
        };
        assert!(seen("nemo") && !seen("torchtitan"));
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
            special: Vec::new(),
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
