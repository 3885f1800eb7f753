//! Options that several commands share, and how they become a [`Task`].

use clap::Args;

use super::{Failure, fix};
use crate::candidates::Restrictions;
use crate::cost::money::Pricing;
use crate::frameworks::Target;
use crate::frameworks::profile::Profile;
use crate::planner::Task;
use crate::spec::job::{
    ExpertCapacity, Job, LEAST_CAPACITY, MOST_CAPACITY, MOST_SEQUENCES, Optimizer, PackedLengths, Precision,
    Routing, Training, too_little,
};
use crate::spec::{self, Machine};
use crate::units::{Bytes, Tokens};

/// The job beside its GPUs.
#[derive(Debug, Clone, Args)]
pub(crate) struct JobArgs {
    /// Sequences per optimizer step.
    #[arg(long, short = 'b', alias = "global-batch-size", value_name = "N", value_parser = whole)]
    pub global_batch: Option<u32>,
    /// Tokens per sequence.
    #[arg(long, short = 's', aliases = ["seq-length", "sequence-length"], value_name = "N", value_parser = whole)]
    pub seq_len: Option<u32>,
    /// Framework whose rules and behaviour hold: megatron, bridge, deepspeed, megatron-deepspeed, torchtitan,
    /// accelerate, nanotron, llm-foundry, internevo, hai-llm, or the name of a run-time profile; megatron unless
    /// given. A framework that is named must have the model.
    #[arg(long)]
    pub framework: Option<String>,
    /// Number format of the linear layers; bf16 unless given.
    #[arg(long, value_enum)]
    pub precision: Option<Precision>,
    /// Optimizer; adamw unless given.
    #[arg(long, value_enum)]
    pub optimizer: Option<Optimizer>,
    /// Train low-rank adapters of this rank instead of all weights. Fine-tuning of all weights needs no flag: it is
    /// planned as pretraining, with its documents in --packed.
    #[arg(long, value_name = "RANK", value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub lora: Option<u32>,
    /// How experts are chosen in practice; balanced unless given.
    #[arg(long, value_enum)]
    pub routing: Option<Routing>,
    /// Most tokens that an expert takes, in equal shares: 1, 1.25. The rest is dropped.
    #[arg(long, value_name = "FACTOR", value_parser = some_capacity)]
    pub expert_capacity: Option<f64>,
    /// Pad every expert's tokens to its capacity: then the host need not wait for their numbers.
    #[arg(long, requires = "expert_capacity")]
    pub pad_to_capacity: bool,
    /// Documents packed into the sequences, as LENGTHxCOUNT of a histogram: 512x70,4096x25,8192x5. Attention
    /// does not cross documents.
    #[arg(long, value_name = "HISTOGRAM")]
    pub packed: Option<PackedLengths>,
    /// Tokens of the whole run, for days and dollars: 15T, 800B.
    #[arg(long, value_name = "TOKENS", value_parser = some_tokens, allow_hyphen_values = true)]
    pub tokens: Option<Tokens>,
    /// Limit on allocated bytes per GPU, instead of the accelerator's: 75e9, 70GiB.
    #[arg(long, value_name = "BYTES", value_parser = some_memory)]
    pub memory_limit: Option<Bytes>,
    /// Price of a GPU-hour: on-demand, reserved, dollars such as 2.5, or 1.1+power.
    /// [default: on-demand, or what a saved plan was made with]
    #[arg(long, allow_negative_numbers = true)]
    pub price: Option<Pricing>,
    /// Fix an axis: tp=8, pp=16, vpp=4, dp=.., cp=.., ep=.., etp=.., mb=.., ga=.., zero=1,
    /// shard=8|all (ranks that share states), recompute=none|selective:a+b|full:uniform:N|full:block:N,
    /// schedule=1f1b, offload=none|optimizer|any, and the flags sp, tp-overlap, dp-overlap, ep-overlap,
    /// shared-overlap=on|off, cp-comm=ring|all-gather|all-to-all,
    /// dispatcher=all-gather|all-to-all|deepep|hybridep, graphs=none|attention|attention-router|full,
    /// mtp=head|standalone (multi-token prediction with the head, or on the stage before it);
    /// several values with |, as in tp=4|8; several axes with commas, or in options of their own.
    #[arg(long, value_name = "AXIS=VALUE")]
    pub fix: Vec<String>,
    /// Largest tensor-parallel degree.
    #[arg(long, value_name = "N", value_parser = degree)]
    pub max_tp: Option<u32>,
    /// Largest pipeline-parallel degree.
    #[arg(long, value_name = "N", value_parser = degree)]
    pub max_pp: Option<u32>,
    /// Largest number of virtual stages per rank.
    #[arg(long, value_name = "N", value_parser = degree)]
    pub max_vpp: Option<u32>,
    /// Largest context-parallel degree.
    #[arg(long, value_name = "N", value_parser = degree)]
    pub max_cp: Option<u32>,
    /// Largest expert-parallel degree.
    #[arg(long, value_name = "N", value_parser = degree)]
    pub max_ep: Option<u32>,
    /// Largest micro-batch.
    #[arg(long, value_name = "N", value_parser = degree)]
    pub max_mb: Option<u32>,
    /// Highest ZeRO stage.
    #[arg(long, value_name = "STAGE", value_parser = clap::value_parser!(u32).range(0..=3))]
    pub max_zero: Option<u32>,
}

impl JobArgs {
    /// Options that say what a launch says itself, as far as they are given.
    pub fn beside_a_launch(&self) -> Vec<&'static str> {
        let max = [
            (self.max_tp, "--max-tp"),
            (self.max_pp, "--max-pp"),
            (self.max_vpp, "--max-vpp"),
            (self.max_cp, "--max-cp"),
            (self.max_ep, "--max-ep"),
            (self.max_mb, "--max-mb"),
            (self.max_zero, "--max-zero"),
        ];
        let all = [
            (self.global_batch.is_some(), "--global-batch"),
            (self.precision.is_some(), "--precision"),
            (self.optimizer.is_some(), "--optimizer"),
            (self.lora.is_some(), "--lora"),
            (self.expert_capacity.is_some(), "--expert-capacity"),
            (!self.fix.is_empty(), "--fix"),
        ];
        let max = max.into_iter().map(|(value, name)| (value.is_some(), name));
        all.into_iter().chain(max).filter(|(given, _)| *given).map(|(_, name)| name).collect()
    }

    /// Options that say what a saved plan says itself, as far as they are given.
    pub fn beside_a_plan(&self) -> Vec<&'static str> {
        let all = [
            (self.seq_len.is_some(), "--seq-len"),
            (self.framework.is_some(), "--framework"),
            (self.routing.is_some(), "--routing"),
            (self.packed.is_some(), "--packed"),
            (self.memory_limit.is_some(), "--memory-limit"),
        ];
        let given = all.into_iter().filter(|(given, _)| *given).map(|(_, name)| name);
        self.beside_a_launch().into_iter().chain(given).collect()
    }

    /// The task on one cluster with so many GPUs.
    pub fn task(&self, model: &str, machine: &Machine, gpus: u32) -> Result<Task, Failure> {
        let needed = |what: &str| Failure::Usage(what.to_owned());
        let global_batch = self.global_batch.ok_or_else(|| {
            needed("--global-batch is needed: sequences of one optimizer step, such as --global-batch 512")
        })?;
        let seq_len = self
            .seq_len
            .ok_or_else(|| needed("--seq-len is needed: tokens of one sequence, such as --seq-len 4096"))?;
        let model = spec::load_model(model)?;
        let named = self.framework.as_deref();
        let (target, profile_name, profile) = framework(named.unwrap_or(Target::Megatron.name()))?;
        let job = Job {
            gpus,
            global_batch_size: global_batch,
            sequence_length: seq_len,
            precision: self.precision.unwrap_or(Precision::Bf16),
            optimizer: self.optimizer.unwrap_or(Optimizer::Adamw),
            training: self.lora.map_or(Training::Full, |rank| Training::Lora { rank }),
            memory_limit: self.memory_limit,
            tokens: self.tokens,
            routing: self.routing.unwrap_or(Routing::Balanced),
            packed: self.packed.clone(),
            expert_capacity: self
                .expert_capacity
                .map(|factor| ExpertCapacity { factor, padded: self.pad_to_capacity }),
        };
        if let Some(lack) = machine.accelerator.lacks(job.precision) {
            return Err(Failure::Usage(lack));
        }
        // Balanced routing says nothing of models without.
        let natural = self.routing == Some(Routing::Natural);
        let of_experts = [(self.expert_capacity.is_some(), "--expert-capacity"), (natural, "--routing")];
        if let Some((_, option)) = of_experts.iter().find(|(given, _)| *given && !model.has_experts()) {
            return Err(Failure::Usage(format!(
                "{option} is of models with experts, and {} has none",
                model.name
            )));
        }
        let per_step = u64::from(global_batch) * u64::from(seq_len);
        if let Some(Tokens(few)) = self.tokens.filter(|tokens| tokens.0 < per_step) {
            // A unit that was left out, where there is hardly a number.
            let meant = if few < 1000 { format!("; did you mean {few}B or {few}T?") } else { String::new() };
            return Err(Failure::Usage(format!(
                "a run of {few} tokens is shorter than one step, of {global_batch} x {seq_len} tokens{meant}"
            )));
        }
        let restrictions = self.restrictions()?;
        for (axis, of_shared) in restrictions.of_experts() {
            let (has, which) = match of_shared {
                true => (model.has_shared_experts(), "shared experts"),
                false => (model.has_experts(), "experts"),
            };
            if !has {
                return Err(Failure::Usage(format!(
                    "--fix {axis} is of models with {which}, and {} has none",
                    model.name
                )));
            }
        }
        if restrictions.mtp_standalone.is_some() && model.mtp.is_none() {
            return Err(Failure::Usage(format!(
                "--fix mtp is of models that predict further tokens, and {} predicts the next alone",
                model.name
            )));
        }
        if u64::from(seq_len) > model.max_sequence * 64 {
            return Err(Failure::Usage(format!(
                "--seq-len {} is far beyond the {} tokens that {} was made for",
                seq_len, model.max_sequence, model.name
            )));
        }
        let task = Task {
            model,
            machine: machine.clone(),
            job,
            target,
            profile,
            profile_name,
            restrictions,
            pricing: self.price.unwrap_or_default(),
        };
        // A run-time profile says how a framework behaves, not that its files are wanted; nor are there files for adapters.
        if named.is_some_and(|name| !is_mere_profile(name))
            && task.job.training == Training::Full
            && let Some(reason) = inexpressible(&task)
        {
            return Err(Failure::Usage(reason));
        }
        Ok(task)
    }

    fn restrictions(&self) -> Result<Restrictions, Failure> {
        let mut r = Restrictions::default();
        for text in &self.fix {
            // Several may stand in one: tp=2,pp=4.
            for text in text.split(',') {
                fix::fix(&mut r, text)?;
            }
        }
        for (axis, max) in [
            (&mut r.tensor_parallel, self.max_tp),
            (&mut r.pipeline_parallel, self.max_pp),
            (&mut r.virtual_stages, self.max_vpp),
            (&mut r.context_parallel, self.max_cp),
            (&mut r.expert_parallel, self.max_ep),
            (&mut r.micro_batch_size, self.max_mb),
            (&mut r.zero_stage, self.max_zero),
        ] {
            axis.max = max;
        }
        Ok(r)
    }
}

/// The largest value of an axis.
fn degree(text: &str) -> Result<u32, String> {
    let number = text.parse().ok().filter(|&n: &u32| n > 0);
    number.ok_or_else(|| format!("expected a whole number from 1 to {}", u32::MAX))
}

/// Tokens of a run: more than none.
fn some_tokens(text: &str) -> Result<Tokens, String> {
    let tokens: Tokens = text.parse().map_err(|error| format!("{error}"))?;
    if tokens.0 == 0 { Err("expected tokens above 0, such as 15T".to_owned()) } else { Ok(tokens) }
}

/// A capacity of experts in equal shares.
fn some_capacity(text: &str) -> Result<f64, String> {
    let factor = text.parse().ok().filter(|factor| (LEAST_CAPACITY..=MOST_CAPACITY).contains(factor));
    factor.ok_or_else(|| format!("expected {LEAST_CAPACITY} to {MOST_CAPACITY}, such as 1.25"))
}

/// Memory of a GPU that something may fit into.
fn some_memory(text: &str) -> Result<Bytes, String> {
    let bytes: Bytes = text.parse().map_err(|error| format!("{error}"))?;
    too_little(bytes).map_or(Ok(bytes), Err)
}

/// A whole number of sequences or tokens.
pub(crate) fn whole(text: &str) -> Result<u32, String> {
    text.parse().ok().filter(|n| (1..=MOST_SEQUENCES).contains(n)).ok_or_else(|| {
        let thousands = text.to_lowercase().strip_suffix('k').and_then(|n| n.parse::<u32>().ok());
        match thousands.filter(|n| (1..=MOST_SEQUENCES >> 10).contains(n)) {
            Some(n) => format!("expected a whole number: {} or {}?", n * 1024, n * 1000),
            None => format!("expected a whole number from 1 to {MOST_SEQUENCES}, such as 4096"),
        }
    })
}

/// Why the framework of a task has no such model, and which do.
pub(crate) fn inexpressible(task: &Task) -> Option<String> {
    let (refusal, others) = task.prepare().inexpressible()?;
    if task.job.training != Training::Full {
        return Some(format!("no files are written for adapters: {}", refusal.reason()));
    }
    let (target, model) = (task.target, &task.model.name);
    let reason = match target {
        // Recipes are written through the flags of Megatron-LM.
        Target::Bridge => format!("no recipe of {model} is written for {target}, which may have it"),
        _ => format!("{target} cannot express {model}"),
    };
    let reason = format!("{reason}: {}", refusal.reason());
    let names: Vec<&str> = others.iter().map(|target| target.name()).collect();
    Some(match names.as_slice() {
        [] => format!("{reason}; no framework that plans are exported for can"),
        names => format!("{reason}; frameworks that can: {}", names.join(", ")),
    })
}

/// Whether a name is that of a run-time profile and of no framework.
fn is_mere_profile(name: &str) -> bool {
    Profile::find(name).is_some() && Target::ALL.into_iter().all(|target| target.name() != name)
}

/// A framework, or a run-time profile of one.
pub(crate) fn framework(name: &str) -> Result<(Target, String, &'static Profile), Failure> {
    // Names of profiles come before aliases of frameworks.
    if let Some(profile) = Profile::find(name).filter(|_| is_mere_profile(name)) {
        return Ok((profile.rules, name.to_owned(), profile));
    }
    let target: Target = name.parse().map_err(|error| {
        let names: Vec<&str> = Profile::names().collect();
        Failure::Usage(format!("{error}; run-time profiles: {}", names.join(", ")))
    })?;
    let (name, profile) = Profile::of(target);
    Ok((target, name, profile))
}

/// Numbers in a range up to which all of them are tried.
const EVERY: usize = 32;

/// Numbers of GPUs that are asked for.
pub(crate) struct GpuCounts {
    /// Ascending, each once; none where a range has none.
    pub(crate) counts: Vec<u32>,
    /// What a range leaves out, or what else a list may mean, if anything.
    pub(crate) note: Option<String>,
}

/// The most GPUs that may be asked for.
pub(crate) const MOST_GPUS: u32 = 10_000_000;

/// One number of GPUs.
pub(crate) fn number_of_gpus(text: &str) -> Option<u32> {
    text.trim().parse().ok().filter(|number| (1..=MOST_GPUS).contains(number))
}

/// Numbers of GPUs: `N`, `A,B,C` or `A..B`. A range means every number of whole nodes in it, and of GPUs of one node; where
/// those are too many, the ones that are products of 2, 3, 5 and 7, and where there are none, some from all over the range.
pub(crate) fn gpu_counts(text: &str, per_node: u32) -> Result<GpuCounts, Failure> {
    let bad = || {
        Failure::Usage(format!(
            "--gpus {text}: expected a number from 1 to {MOST_GPUS}, a list A,B,C or a range A..B"
        ))
    };
    let number = |text: &str| number_of_gpus(text).ok_or_else(bad);
    if let Some((from, to)) = text.split_once("..") {
        let (from, to) = (number(from)?, number(to)?);
        if from > to {
            return Err(Failure::Usage(format!(
                "--gpus {text}: the range is empty; did you mean {to}..{from}?"
            )));
        }
        let within_node = from..=to.min(per_node.saturating_sub(1));
        let nodes = from.div_ceil(per_node).max(1)..=to / per_node;
        let mut counts: Vec<u32> = within_node.chain(nodes.map(|nodes| nodes * per_node)).collect();
        let all = counts.len();
        if all == 0 {
            let none =
                format!("--gpus {text}: no number of whole nodes of {per_node} GPUs lies in the range");
            return Ok(GpuCounts { counts, note: Some(none) });
        }
        let mut which = "products of 2, 3, 5 and 7 nodes";
        if all > EVERY {
            let divide =
                |&n: &u32| super::better_numbers::smooth(if n < per_node { n } else { n / per_node });
            let smooth: Vec<u32> = counts.iter().copied().filter(divide).collect();
            counts = if smooth.is_empty() {
                which = "some from all over the range";
                (0..EVERY).map(|at| counts[at * (all - 1) / (EVERY - 1)]).collect()
            } else {
                smooth
            };
        }
        let note = (counts.len() < all).then(|| {
            let tried = counts.len();
            format!("--gpus {text}: {tried} of {all} numbers are tried, {which}; a list A,B,C names others")
        });
        return Ok(GpuCounts { counts, note });
    }
    let parts: Vec<&str> = text.split(',').map(str::trim).collect();
    // Perhaps one number with commas between its thousands.
    let thousands = parts.len() > 1 && parts[1..].iter().all(|part| part.len() == 3);
    let whole = number(&parts.concat()).ok().filter(|_| thousands);
    let zeros = |part: &&&str| part.len() > 1 && part.starts_with('0');
    if let Some(part) = parts[1..].iter().find(zeros) {
        let meant = whole.map_or(String::new(), |whole| format!("; did you mean {whole}?"));
        return Err(Failure::Usage(format!(
            "--gpus {text}: commas stand between several numbers, and {part} begins with 0{meant}"
        )));
    }
    let count = parts.len();
    let mut counts = parts.into_iter().map(number).collect::<Result<Vec<u32>, Failure>>()?;
    counts.sort_unstable();
    counts.dedup();
    // Few lists make one number that splits well: 64,128 does not.
    let whole = whole.filter(|&whole| super::better_numbers::smooth(whole));
    let note = whole.map(|whole| format!("--gpus {text}: taken as {count} numbers; one is written {whole}"));
    Ok(GpuCounts { counts, note })
}
