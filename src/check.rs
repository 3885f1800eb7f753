//! Verifies a plan and what was predicted of it, with arithmetic of its own.
//!
//! The verifier knows nothing of how plans are found. It takes a model, a machine, a job and a framework
//! on one side, a plan with its prediction on the other, and derives everything in between once more:
//! what every rank holds from the model's shapes ([`holdings`]), the order of passes and the moment at
//! which each runs from explicit lists ([`replay`]), and the step from both ([`timing`]). It shares no
//! arithmetic with the planner's memory and step models; what it takes over unexamined is listed in
//! [`TAKEN_AS_GIVEN`].

mod holdings;
mod replay;
mod timing;

use std::fmt;

use crate::cost::model::CostModel;
use crate::cost::step::Prediction;
use crate::frameworks::profile::Profile;
use crate::frameworks::{Context, Hardware, Target, legal_plan};
use crate::layers::Layers;
use crate::plan::{Layout, Plan, Schedule};
use crate::spec::Machine;
use crate::spec::job::Job;
use crate::spec::model::{Block, Model};

use holdings::Holdings;
use replay::{Order, Replay};

/// What a plan was made for.
#[derive(Debug, Clone, Copy)]
pub struct Given<'a> {
    /// The model.
    pub model: &'a Model,
    /// Cluster and accelerator.
    pub machine: &'a Machine,
    /// The job.
    pub job: &'a Job,
    /// Framework whose rules hold.
    pub target: Target,
    /// Its run-time behaviour, as data.
    pub profile: &'a Profile,
}

/// What the verifier does not derive again.
pub const TAKEN_AS_GIVEN: [&str; 4] = [
    "seconds of one layer, of each end and of each recomputed module (the price list of a cell)",
    "seconds per parameter of reductions, gathers and updates, and which share of them overlap can hide",
    "latency and occupancy of one pipeline message, fixed time of a step, jitter at this scale",
    "figures of the framework's profile and of the accelerator's file",
];

/// Names of all checks with what each compares, in the order in which they run.
pub const CHECKS: [(&str, &str); 30] = [
    ("degrees", "every degree is at least 1, and tp x pp x cp x dp are the GPUs of the job"),
    ("batch", "micro-batch x accumulation x dp is the global batch"),
    ("chunks", "there are pp x vpp chunks, and the schedule runs so many on a rank"),
    ("layers", "the chunks hold every layer of the model once, in order"),
    ("expert-mesh", "ep x etp divides tp x cp x dp, and ep the experts of every layer"),
    ("shard-group", "states are sharded over a divisor of dp x cp"),
    ("framework-rules", "the framework accepts the plan"),
    ("chunk-ranks", "chunks lie on ranks in the schedule's order"),
    ("parameters", "parameters of every kind of layer and of the ends on one rank"),
    ("memory-weights", "weights of every rank"),
    ("memory-gradients", "gradients of every rank"),
    ("memory-optimizer", "master weights and moments of every rank"),
    ("memory-activations", "kept tensors times micro-batches in flight, walked through the list of passes"),
    ("memory-transient", "working set of the heaviest layer or of the loss, on every rank"),
    ("memory-pools", "pooled weight gradients and gathered units of every rank"),
    ("memory-buffers", "workspaces and message buffers of every rank"),
    ("memory-total", "allocated, reserved and device bytes of the fullest rank"),
    ("memory-limit", "no rank allocates more than the limit"),
    ("off-gpu", "states and activations that the fullest node keeps in host memory and on drives"),
    ("off-gpu-limit", "no node keeps more there than it has"),
    ("stage-forward", "forward time of every chunk"),
    ("stage-backward", "backward time of every chunk, recomputation included"),
    ("stage-messages", "messages that keep a rank busy"),
    ("order", "the passes of all ranks can run to the end"),
    ("makespan", "end of the last pass in an event replay"),
    ("bottleneck", "items of the busiest rank"),
    ("idle", "time that every rank waits"),
    ("bounds", "no lower bound exceeds the makespan"),
    ("tail", "exposed gathers and reductions, update, fixed time, stragglers"),
    ("total", "the step is the sum of its parts"),
];

/// How one check ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Derived and predicted values agree.
    Passed,
    /// They do not.
    Failed {
        /// Which value: the rank, chunk or item.
        what: String,
        /// As derived here.
        expected: String,
        /// As planned or predicted.
        found: String,
    },
    /// An earlier failure leaves nothing to compare.
    NotReached,
}

/// One check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Check {
    /// Name, one of [`CHECKS`].
    pub name: &'static str,
    /// What it compares.
    pub about: &'static str,
    /// How it ended.
    pub outcome: Outcome,
}

/// All checks of one plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// In the order of [`CHECKS`].
    pub checks: Vec<Check>,
}

impl Report {
    /// Whether every check passed.
    #[must_use]
    pub fn passed(&self) -> bool {
        self.checks.iter().all(|check| check.outcome == Outcome::Passed)
    }
    /// Checks that failed.
    pub fn failures(&self) -> impl Iterator<Item = &Check> {
        self.checks.iter().filter(|check| matches!(check.outcome, Outcome::Failed { .. }))
    }
    /// The outcome of a check by its name.
    #[must_use]
    pub fn outcome(&self, name: &str) -> Option<&Outcome> {
        self.checks.iter().find(|check| check.name == name).map(|check| &check.outcome)
    }
}

impl fmt::Display for Report {
    /// The failures, one line each.
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        if self.passed() {
            return write!(f, "all {} checks passed", self.checks.len());
        }
        for (i, check) in self.failures().enumerate() {
            if let Outcome::Failed { what, expected, found } = &check.outcome {
                let end = if i == 0 { "" } else { "\n" };
                write!(f, "{end}{}: {what}: derived {expected}, found {found}", check.name)?;
            }
        }
        Ok(())
    }
}

/// Collects outcomes; the first disagreement of a check counts.
#[derive(Debug, Default)]
struct Ledger {
    outcomes: Vec<(&'static str, Outcome)>,
}

impl Ledger {
    fn put(&mut self, name: &'static str, outcome: Outcome) {
        match self.outcomes.iter_mut().find(|(n, _)| *n == name) {
            Some((_, old @ Outcome::Passed)) => *old = outcome,
            Some(_) => {}
            None => self.outcomes.push((name, outcome)),
        }
    }
    /// Records a comparison under a name; several may share it.
    fn hold(
        &mut self,
        name: &'static str,
        holds: bool,
        what: impl FnOnce() -> String,
        expected: impl fmt::Display,
        found: impl fmt::Display,
    ) {
        let outcome = if holds {
            Outcome::Passed
        } else {
            Outcome::Failed { what: what(), expected: expected.to_string(), found: found.to_string() }
        };
        self.put(name, outcome);
    }
    fn same<T: PartialEq + fmt::Display>(
        &mut self,
        name: &'static str,
        what: impl FnOnce() -> String,
        expected: T,
        found: T,
    ) {
        self.hold(name, expected == found, what, expected, found);
    }
    /// Compares whole numbers that may differ by `slack`.
    fn near(
        &mut self,
        name: &'static str,
        what: impl FnOnce() -> String,
        expected: u64,
        found: u64,
        slack: u64,
    ) {
        self.hold(name, expected.abs_diff(found) <= slack, what, expected, found);
    }
    fn passed(&self, name: &str) -> bool {
        self.outcomes.iter().any(|(n, outcome)| *n == name && *outcome == Outcome::Passed)
    }
    fn failed(&self) -> bool {
        self.outcomes.iter().any(|(_, outcome)| *outcome != Outcome::Passed)
    }
    fn report(mut self) -> Report {
        let checks = CHECKS
            .iter()
            .map(|&(name, about)| {
                let at = self.outcomes.iter().position(|(n, _)| *n == name);
                let outcome = at.map_or(Outcome::NotReached, |at| self.outcomes.swap_remove(at).1);
                Check { name, about, outcome }
            })
            .collect();
        Report { checks }
    }
}

/// The layers of a model: distinct blocks, and which one comes when.
struct Sequence<'a> {
    blocks: Vec<&'a Block>,
    /// Index into `blocks`, layer by layer.
    order: Vec<usize>,
    /// Block of the multi-token-prediction modules and their number.
    further: Option<(usize, u64)>,
}

impl<'a> Sequence<'a> {
    fn of(model: &'a Model) -> Self {
        let mut names: Vec<&str> = Vec::new();
        let mut blocks = Vec::new();
        let mut index = |name: &'a str| {
            names.iter().position(|known| *known == name).unwrap_or_else(|| {
                names.push(name);
                blocks.push(&model.blocks[name]);
                names.len() - 1
            })
        };
        let mut order = Vec::new();
        for segment in &model.layers {
            let group: Vec<usize> = segment.of.iter().map(|name| index(name)).collect();
            (0..segment.repeat).for_each(|_| order.extend(&group));
        }
        let further = model.mtp.as_ref().map(|mtp| (index(&mtp.block), u64::from(mtp.modules)));
        Self { blocks, order, further }
    }
}

/// The layers of every chunk: how much of the model lies before it, and how much on it.
fn spans(plan: &Plan) -> impl Iterator<Item = std::ops::Range<usize>> + '_ {
    let mut end = 0;
    plan.chunks().iter().map(move |chunk| {
        let start = end;
        end += chunk.layers as usize;
        start..end
    })
}

/// Pipeline rank of a chunk: round robin, every other round backwards where the schedule folds.
fn rank_of(layout: &Layout, chunk: usize) -> usize {
    let ranks = layout.pipeline_parallel as usize;
    let (round, place) = (chunk / ranks, chunk % ranks);
    let folded = matches!(layout.schedule, Schedule::ZeroBubbleV | Schedule::DualPipe);
    if folded && round % 2 == 1 { ranks - 1 - place } else { place }
}

/// Verifies a plan and its prediction.
#[must_use]
pub fn check(given: &Given<'_>, plan: &Plan, prediction: &Prediction) -> Report {
    let mut ledger = Ledger::default();
    let layout = plan.layout();
    structure(given, plan, &mut ledger);
    if ledger.failed() {
        return ledger.report();
    }

    let layers = Layers::new(given.model);
    let machine = given.machine;
    let context =
        Context::new(given.model, &layers, given.job, Hardware::of(&machine.cluster, &machine.accelerator))
            .of_profile(given.profile);
    match legal_plan(given.target, &context, plan) {
        Ok(()) => ledger.put("framework-rules", Outcome::Passed),
        Err(refusal) => ledger.hold(
            "framework-rules",
            false,
            || format!("rule {}", refusal.rule),
            "a plan that it accepts",
            refusal.reason(),
        ),
    }
    let chunks = plan.chunks().len();
    let ranks = layout.pipeline_parallel as usize;
    ledger.same("chunk-ranks", || "predicted chunks".into(), chunks, prediction.chunks.len());
    for (k, times) in prediction.chunks.iter().enumerate().take(chunks) {
        ledger.same("chunk-ranks", || format!("chunk {k}"), rank_of(layout, k), times.rank as usize);
    }
    ledger.same("memory-total", || "predicted ranks".into(), ranks, prediction.memory.len());
    if !ledger.passed("chunk-ranks") || !ledger.passed("memory-total") {
        return ledger.report();
    }

    let sequence = Sequence::of(given.model);
    let holdings = Holdings::new(given, layout, &sequence);
    let order = Order::of(layout);
    let passes = replay::lists(&order);
    let cost = CostModel::new(
        given.model,
        &layers,
        &machine.cluster,
        &machine.accelerator,
        given.profile,
        given.job,
    );
    let prices = timing::Prices::new(&cost, layout, &layers, &sequence);
    holdings.compare_parameters(&sequence, &prices, &mut ledger);
    let Some(passes) = passes else {
        ledger.hold("order", false, || "lists of passes".into(), "lists that end", "none");
        return ledger.report();
    };
    holdings.compare_memory(&sequence, plan, &order, &passes, prediction, &mut ledger);
    holdings.compare_off_gpu(&sequence, plan, &order, &passes, prediction, &mut ledger);
    let stages = timing::Stages::new(&holdings, &sequence, plan, &prices);
    stages.compare(prediction, &mut ledger);
    let durations = stages.durations(&prices, prediction, &ledger);
    let Some(run) = Replay::run(&order, &passes, &durations) else {
        ledger.hold("order", false, || "replay".into(), "every pass runs", "a deadlock");
        return ledger.report();
    };
    ledger.put("order", Outcome::Passed);
    stages.compare_step(layout, &durations, &run, &prices, prediction, &mut ledger);
    ledger.report()
}

/// Whether degrees, batch, chunks and layers add up: without this nothing else has a meaning.
fn structure(given: &Given<'_>, plan: &Plan, ledger: &mut Ledger) {
    let l = plan.layout();
    let product = |numbers: &[u32]| numbers.iter().map(|&n| u128::from(n)).product::<u128>();
    let degrees = [
        ("tp", l.tensor_parallel),
        ("pp", l.pipeline_parallel),
        ("cp", l.context_parallel),
        ("dp", l.data_parallel),
        ("vpp", l.virtual_stages),
        ("ep", l.expert_parallel),
        ("etp", l.expert_tensor_parallel),
        ("micro-batch", l.micro_batch_size),
        ("accumulation", l.gradient_accumulation_steps),
        ("shard group", l.shard_group),
    ];
    for (name, degree) in degrees {
        ledger.hold("degrees", degree > 0, || name.into(), "at least 1", degree);
    }
    let gpus = product(&[l.tensor_parallel, l.pipeline_parallel, l.context_parallel, l.data_parallel]);
    ledger.same("degrees", || "tp x pp x cp x dp".into(), u128::from(given.job.gpus), gpus);
    let batch = product(&[l.micro_batch_size, l.gradient_accumulation_steps, l.data_parallel]);
    let wanted = u128::from(given.job.global_batch_size);
    ledger.same("batch", || "micro-batch x accumulation x dp".into(), wanted, batch);

    let chunks = product(&[l.pipeline_parallel, l.virtual_stages]);
    ledger.same("chunks", || "number of chunks".into(), chunks, plan.chunks().len() as u128);
    let (v, m, p) = (l.virtual_stages, l.gradient_accumulation_steps, l.pipeline_parallel);
    let (fits, wanted) = match l.schedule {
        Schedule::Interleaved => (v > 1 && p > 1 && m >= p, "vpp > 1, pp > 1 and at least pp micro-batches"),
        Schedule::ZeroBubbleV | Schedule::DualPipe => (v == 2, "vpp 2"),
        _ => (v == 1, "vpp 1"),
    };
    let found = format!("vpp {v}, pp {p} and {m} micro-batches");
    ledger.hold("chunks", fits, || format!("chunks of {:?}", l.schedule), wanted, found);

    let total = Sequence::of(given.model).order.len() as u64;
    let placed: u64 = plan.chunks().iter().map(|chunk| u64::from(chunk.layers)).sum();
    ledger.same("layers", || "layers of all chunks".into(), total, placed);

    let block = product(&[l.tensor_parallel, l.context_parallel, l.data_parallel]);
    let experts = product(&[l.expert_parallel, l.expert_tensor_parallel]).max(1);
    ledger.hold(
        "expert-mesh",
        block % experts == 0,
        || "ep x etp".into(),
        format!("a divisor of tp x cp x dp = {block}"),
        experts,
    );
    for (name, block) in &given.model.blocks {
        if let crate::spec::model::FeedForward::Moe(moe) = &block.feed_forward {
            let divides = l.expert_parallel > 0 && moe.experts % u64::from(l.expert_parallel) == 0;
            ledger.hold(
                "expert-mesh",
                divides,
                || format!("ep, for block `{name}`"),
                format!("a divisor of {} experts", moe.experts),
                l.expert_parallel,
            );
        }
    }
    let replicas = product(&[l.data_parallel, l.context_parallel]);
    let group = u128::from(l.shard_group.max(1));
    let (fits, wanted) = if l.zero_stage == 0 {
        (group == 1, "1, as nothing is sharded".to_owned())
    } else {
        (replicas % group == 0, format!("a divisor of dp x cp = {replicas}"))
    };
    ledger.hold("shard-group", fits && l.zero_stage <= 3, || "shard group".into(), wanted, group);
}
