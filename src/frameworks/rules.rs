//! What a rule is, and what is said where one is broken.

use std::fmt;

use super::{Capabilities, Context, Target};
use crate::plan::{Layout, Plan};

/// Why a check failed: a sentence with `{0}` … `{3}` for its numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Broken {
    text: &'static str,
    numbers: [u64; 4],
}

impl Broken {
    /// The sentence with its numbers.
    #[must_use]
    pub fn in_words(&self) -> String {
        let mut text = self.text.to_owned();
        for (at, number) in self.numbers.iter().enumerate() {
            text = text.replace(&format!("{{{at}}}"), &number.to_string());
        }
        text
    }
}

/// `Ok` if `holds`, else the sentence with its numbers.
pub(crate) fn ensure(holds: bool, text: &'static str, numbers: [u64; 4]) -> Result<(), Broken> {
    if holds { Ok(()) } else { Err(Broken { text, numbers }) }
}

/// A sentence without numbers.
pub(crate) fn broken(text: &'static str) -> Broken {
    Broken { text, numbers: [0; 4] }
}

/// Shorthand for up to four numbers of a [`Broken`].
pub(crate) fn numbers<const N: usize>(given: [u64; N]) -> [u64; 4] {
    let mut all = [0; 4];
    all[..N].copy_from_slice(&given);
    all
}

/// Who finds out that a rule is broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Judge {
    /// The framework's parser, validator or set-up code, before training starts.
    SetUp,
    /// The framework or a library beneath it, in the first training steps.
    Run,
    /// No one: the option does not exist, or the framework would quietly run something else.
    Nobody,
}

/// What of a layout a rule looks at, beside the job. Micro-batch and accumulation count as degrees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// Nothing: what breaks it, no layout can do.
    Job,
    /// Degrees.
    Group,
    /// Degrees and a [`crate::candidates::Order`]: schedule, virtual stages, where multi-token prediction is.
    Order,
    /// Degrees and the flags of a [`crate::cost::CellKey`].
    Cell,
    /// Degrees, offload, and how states are sharded.
    Sharding,
    /// What [`Reach::Order`] is, and how and when experts' tokens are exchanged.
    Exchange,
    /// Everything.
    Layout,
}

/// One rule on layouts.
#[derive(Clone, Copy)]
pub struct Rule {
    /// Short name, unique within a target.
    pub name: &'static str,
    /// File (and symbol) of the framework that enforces it.
    pub source: &'static str,
    /// Who finds out.
    pub judge: Judge,
    /// What it looks at.
    pub reach: Reach,
    /// The check: integers only, no allocation.
    pub check: Check,
}

/// What of a plan a rule looks at, beside the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlanReach {
    /// The flags of a cell and what is recomputed, by chunks that hold layers.
    Recompute,
    /// Which layers are where.
    Placement,
}

/// One rule on plans.
pub struct PlanRule {
    /// Short name, unique within a target.
    pub name: &'static str,
    /// File (and symbol) of the framework that enforces it.
    pub source: &'static str,
    /// Who finds out.
    pub judge: Judge,
    /// What it looks at.
    pub reach: PlanReach,
    /// The check: integers only, no allocation.
    pub check: fn(&Capabilities, &Context, &Plan) -> Result<(), Broken>,
}

/// A layout or plan that a framework does not accept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The framework.
    pub target: Target,
    /// Name of the rule.
    pub rule: &'static str,
    /// Where the framework enforces it.
    pub source: &'static str,
    /// Who finds out.
    pub judge: Judge,
    /// The nearest plan that it accepts, where one was looked for and found.
    pub nearest: Option<Box<Plan>>,
    pub(super) broken: Broken,
}

impl Refusal {
    /// Why, with the numbers; without the rule's name and source.
    #[must_use]
    pub fn reason(&self) -> String {
        self.broken.in_words()
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{} refuses: {} (rule {}; {})", self.target, self.reason(), self.rule, self.source)?;
        if let Some(plan) = &self.nearest {
            write!(f, "; the nearest plan it accepts is {plan}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Refusal {}

/// What a rule checks of a layout.
pub type Check = fn(&Capabilities, &Context, &Layout) -> Result<(), Broken>;

/// Shared rules and one of a framework's own.
pub(crate) const fn joined<const N: usize>(shared: &[Rule], own: Rule) -> [Rule; N] {
    let mut all = [own; N];
    let mut at = 0;
    while at < shared.len() {
        all[at] = shared[at];
        at += 1;
    }
    all
}
