//! Training frameworks: what each can express, how it behaves at run time, how it is written and read.
//!
//! A framework is one [`Target`]. Its [`Capabilities`] say which axes of a layout exist at all; its
//! rules, an ordered table with the source of each, say which layouts and plans it accepts
//! ([`legal`], [`legal_plan`]). Rules are integer arithmetic and run on every layout of a search:
//! they allocate nothing, and a [`Refusal`] formats itself only when it is shown.

pub mod accelerate;
pub mod bridge;
mod capabilities;
pub mod changes;
mod common;
mod context;
pub mod deepspeed;
pub mod error_bars;
pub mod export;
pub mod hf;
pub mod megatron;
mod nearest;
mod predicted;
pub mod profile;
mod rules;
pub mod shell;
pub mod torchtitan;
mod yaml;

use std::fmt;

use crate::plan::{Layout, Plan};

pub use capabilities::{Capabilities, ExpertTensor, RecomputeFamilies, SequenceParallel, ShardGroups};
use common::ARITHMETIC;
pub use common::{COMMON_PLAN_RULES, COMMON_RULES, mtp_stands_alone};
pub(crate) use common::{
    DROPLESS, heads_divide, overlap_in_domain, sequence_divides, tokens_divide, whole_experts, widths_divide,
};
pub use context::{Context, Hardware, HeadShape, MoeShape, Padded};
use predicted::{GENERIC_RULES, HAI_LLM, INTERNEVO, LLM_FOUNDRY, NANOTRON};
pub use rules::{Broken, Judge, PlanReach, PlanRule, Reach, Refusal, Rule};
pub(crate) use rules::{broken, ensure, joined, numbers};

/// A framework that plans are made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum Target {
    /// Megatron-LM with Megatron-Core.
    Megatron,
    /// Megatron-Bridge (NeMo), on Megatron-Core.
    Bridge,
    /// DeepSpeed with Hugging Face models; its pipeline engine where the plan has stages.
    DeepSpeed,
    /// Megatron-DeepSpeed, the fork of an early Megatron-LM.
    MegatronDeepSpeed,
    /// torchtitan.
    Torchtitan,
    /// Hugging Face Accelerate with FSDP2.
    Accelerate,
    /// nanotron; predicted, not exported.
    Nanotron,
    /// llm-foundry with FSDP1; predicted, not exported.
    LlmFoundry,
    /// InternEvo; predicted, not exported.
    InternEvo,
    /// HAI-LLM, which trained DeepSeek-V3; predicted, not exported.
    HaiLlm,
}

impl Target {
    /// Every target.
    pub const ALL: [Self; 10] = [
        Self::Megatron,
        Self::Bridge,
        Self::DeepSpeed,
        Self::MegatronDeepSpeed,
        Self::Torchtitan,
        Self::Accelerate,
        Self::Nanotron,
        Self::LlmFoundry,
        Self::InternEvo,
        Self::HaiLlm,
    ];

    /// The name used on the command line and in results.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Megatron => "megatron",
            Self::Bridge => "bridge",
            Self::DeepSpeed => "deepspeed",
            Self::MegatronDeepSpeed => "megatron-deepspeed",
            Self::Torchtitan => "torchtitan",
            Self::Accelerate => "accelerate",
            Self::Nanotron => "nanotron",
            Self::LlmFoundry => "llm-foundry",
            Self::InternEvo => "internevo",
            Self::HaiLlm => "hai-llm",
        }
    }

    /// Whether plans can be written out for it.
    #[must_use]
    pub fn exports(self) -> bool {
        !matches!(self, Self::Nanotron | Self::LlmFoundry | Self::InternEvo | Self::HaiLlm)
    }

    /// The run-time profile that predicts its plans.
    #[must_use]
    pub fn profile_name(self) -> &'static str {
        match self {
            // Its recipes as they are written here reduce and keep gradients in FP32, as Megatron-LM does.
            Self::Bridge => Self::Megatron.name(),
            _ => self.name(),
        }
    }

    /// Which axes of a layout it has.
    #[must_use]
    pub fn capabilities(self) -> &'static Capabilities {
        match self {
            Self::Megatron | Self::Bridge => &megatron::CAPABILITIES,
            Self::DeepSpeed => &deepspeed::CAPABILITIES,
            Self::MegatronDeepSpeed => &deepspeed::MEGATRON_CAPABILITIES,
            Self::Torchtitan => &torchtitan::CAPABILITIES,
            Self::Accelerate => &accelerate::CAPABILITIES,
            Self::Nanotron => &NANOTRON,
            Self::LlmFoundry => &LLM_FOUNDRY,
            Self::InternEvo => &INTERNEVO,
            Self::HaiLlm => &HAI_LLM,
        }
    }

    /// Its own rules on layouts, in the order in which they are asked; those that follow from
    /// [`Self::capabilities`] come before them and are shared ([`COMMON_RULES`]).
    #[must_use]
    pub fn rules(self) -> &'static [Rule] {
        match self {
            Self::Megatron => megatron::RULES,
            Self::Bridge => bridge::RULES,
            Self::DeepSpeed => deepspeed::RULES,
            Self::MegatronDeepSpeed => deepspeed::MEGATRON_RULES,
            Self::Torchtitan => torchtitan::RULES,
            Self::Accelerate => accelerate::RULES,
            Self::Nanotron | Self::LlmFoundry | Self::InternEvo | Self::HaiLlm => GENERIC_RULES,
        }
    }

    /// Its own rules on plans: placement of layers and recomputation.
    #[must_use]
    pub fn plan_rules(self) -> &'static [PlanRule] {
        match self {
            Self::Megatron | Self::Bridge => megatron::PLAN_RULES,
            Self::Torchtitan => torchtitan::PLAN_RULES,
            Self::DeepSpeed | Self::MegatronDeepSpeed => deepspeed::PLAN_RULES,
            _ => &[],
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A framework's name was not understood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{found}` is not a framework; did you mean `{nearest}`? (known: {})", Target::ALL.map(Target::name).join(", "))]
pub struct ParseTargetError {
    /// What was found.
    pub found: String,
    /// The most similar name.
    pub nearest: &'static str,
}

impl From<Target> for String {
    fn from(target: Target) -> Self {
        target.name().to_owned()
    }
}

impl TryFrom<String> for Target {
    type Error = ParseTargetError;
    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl std::str::FromStr for Target {
    type Err = ParseTargetError;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let plain = text.trim().to_ascii_lowercase().replace(['_', ' '], "-");
        let alias = match plain.as_str() {
            "megatron-lm" | "megatron-core" | "mcore" => Some(Self::Megatron),
            "megatron-bridge" | "nemo" => Some(Self::Bridge),
            "fsdp2" => Some(Self::Accelerate),
            _ => Self::ALL.into_iter().find(|t| t.name() == plain),
        };
        alias.ok_or_else(|| {
            let near = |t: &Self| (strsim::jaro_winkler(&plain, t.name()) * 1e6) as u64;
            let nearest = Self::ALL.into_iter().max_by_key(near).map_or("megatron", Self::name);
            ParseTargetError { found: text.to_owned(), nearest }
        })
    }
}

/// Whether a framework accepts a layout (its placement of layers and recomputation aside).
///
/// # Errors
/// The first rule that is broken, in the order of [`COMMON_RULES`] and [`Target::rules`].
pub fn legal(target: Target, context: &Context, layout: &Layout) -> Result<(), Refusal> {
    first_broken(target, context, layout, |_| true)
}

/// The first rule that a layout breaks of those that look at so much of it, and no more.
///
/// # Errors
/// That rule, in the order of [`legal`].
pub fn legal_within(target: Target, context: &Context, layout: &Layout, reach: Reach) -> Result<(), Refusal> {
    first_broken(target, context, layout, |rule| rule.reach == reach)
}

fn first_broken(
    target: Target,
    context: &Context,
    layout: &Layout,
    asked: impl Fn(&Rule) -> bool,
) -> Result<(), Refusal> {
    let capabilities = target.capabilities();
    for rule in COMMON_RULES.iter().chain(target.rules()).filter(|rule| asked(rule)) {
        if let Err(broken) = (rule.check)(capabilities, context, layout) {
            let Rule { name, source, judge, .. } = *rule;
            let judge = if target == Target::Bridge { bridge::judge(name, judge) } else { judge };
            return Err(Refusal { target, rule: name, source, judge, nearest: None, broken });
        }
    }
    Ok(())
}

/// Whether a framework accepts a plan: its layout, its placement of layers and its recomputation.
///
/// # Errors
/// The first rule that is broken.
pub fn legal_plan(target: Target, context: &Context, plan: &Plan) -> Result<(), Refusal> {
    legal(target, context, plan.layout())?;
    let capabilities = target.capabilities();
    for rule in COMMON_PLAN_RULES.iter().chain(target.plan_rules()) {
        if let Err(broken) = (rule.check)(capabilities, context, plan) {
            let PlanRule { name, source, judge, .. } = *rule;
            return Err(Refusal { target, rule: name, source, judge, nearest: None, broken });
        }
    }
    Ok(())
}

/// Whether the rules that look at one side of a plan accept it.
#[must_use]
pub fn plan_rules_hold(target: Target, context: &Context, plan: &Plan, reach: PlanReach) -> bool {
    let mut rules = COMMON_PLAN_RULES.iter().chain(target.plan_rules()).filter(|rule| rule.reach == reach);
    rules.all(|rule| (rule.check)(target.capabilities(), context, plan).is_ok())
}

/// The nearest plan to a refused one that a framework accepts, by changing as little as possible:
/// first one option, then two, then three, as long as the plan `fits`. None where no such change helps.
#[must_use]
pub fn nearest(target: Target, context: &Context, plan: &Plan, fits: &dyn Fn(&Plan) -> bool) -> Option<Plan> {
    nearest::search(target, context, plan, fits)
}

/// Whether a model, a job and a layout contradict each other, whatever the framework: what heads, widths, experts and
/// sequences divide among, and what the schedule needs. Key and value heads may be replicated.
///
/// # Errors
/// The first law that is broken, in words.
pub fn consistent(context: &Context, layout: &Layout) -> Result<(), String> {
    let any = Capabilities { kv_replication: true, ..NANOTRON };
    for law in ARITHMETIC {
        law(&any, context, layout).map_err(|broken| broken.in_words())?;
    }
    layout.schedule_runs().map_err(|law| law.to_string())
}
