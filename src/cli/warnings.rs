//! What is to be known of a plan and of what is predicted for it, wherever they are shown.

use std::fmt;
use std::sync::LazyLock;

use super::calibrate::{kind_of, runs_of};
use super::models::group;
use super::output::{money, seconds};
use super::surer::SURE;
use crate::cost::money::{Run, RunCost, run_cost};
use crate::cost::step::Prediction;
use crate::frameworks::Target;
use crate::frameworks::error_bars::{Class, ErrorBars, Leaning};
use crate::plan::Plan;
use crate::planner::Prepared;
use crate::spec::cluster::Architecture;
use crate::spec::{load_accelerator, shipped};
use crate::units::Picos;

/// Names of the accelerators that ship.
static SHIPPED: LazyLock<Vec<String>> = LazyLock::new(|| {
    let known = shipped::accelerators();
    let loaded = known.iter().filter_map(|one| load_accelerator(one.name).ok());
    loaded.map(|one| one.name).collect()
});

/// An error bar beyond which a prediction says little.
const UNSURE: f64 = 0.5;

/// All that is to be known of a plan beside its job: where its error bar comes from, what of it nobody measured, and what
/// it needs when it runs.
pub(crate) fn warnings(prepared: &Prepared, plan: &Plan, prediction: &Prediction) -> Vec<String> {
    let unsure = (prediction.interval.sigma > UNSURE)
        .then(|| format!("± : beyond {:.0}% a prediction says little", UNSURE * 100.0));
    let lines = error_bar(prepared).into_iter().chain(unsure);
    lines.chain(unmeasured(prepared, plan)).chain(at_run_time(prepared, plan, prediction)).collect()
}

/// The same with what is to be known of its job, which comes first.
pub(crate) fn with_job(prepared: &Prepared, plan: &Plan, prediction: &Prediction) -> Vec<String> {
    [warnings_of_job(prepared), warnings(prepared, plan, prediction)].concat()
}

/// What is to be known of a job, whatever its plan: domains that are not used, memory that is left out or not there, and
/// sequences that the model was not made for.
pub(crate) fn warnings_of_job(prepared: &Prepared) -> Vec<String> {
    let all = [beyond_memory(prepared), beyond_positions(prepared), blocks(prepared), below_memory(prepared)];
    all.into_iter().flatten().collect()
}

/// How runs like a plan's lean, where these inform its bar.
pub(crate) fn leaning(prepared: &Prepared) -> Option<&'static Leaning> {
    let cost = prepared.cost();
    let informed = cost.own_runs().is_none() && (cost.is_measured() || cost.is_known_by_rates());
    cost.leaning().filter(|_| informed)
}

/// What a plan takes where it errs as measured runs like it do in the median.
pub(crate) struct Leaned {
    /// By what share of the prediction they took longer; below zero, less long.
    pub(crate) longer: f64,
    /// The step.
    pub(crate) step: Picos,
    /// The whole run, where tokens are given.
    pub(crate) run: Option<RunCost>,
}

impl Leaned {
    /// Of a plan whose runs are known to lean.
    pub(crate) fn of(prepared: &Prepared, prediction: &Prediction) -> Option<Self> {
        let longer = leaning(prepared)?.longer();
        let of_prediction = prepared.run(prediction);
        let scaled = |time: Picos| time.scale(1.0 + longer);
        let (step, stragglers) = (scaled(of_prediction.step), scaled(of_prediction.stragglers));
        let run = Run { step, stragglers, ..of_prediction };
        let run = prepared.task.job.tokens.and_then(|tokens| run_cost(&run, tokens).ok());
        Some(Self { longer, step, run })
    }
}

impl fmt::Display for Leaned {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{} a step", seconds(self.step.seconds()))?;
        self.run
            .as_ref()
            .map_or(Ok(()), |run| write!(f, ", {:.1} days and {} in all", run.days, money(run.dollars.total)))
    }
}

/// Where the error bar comes from.
fn error_bar(prepared: &Prepared) -> Vec<String> {
    let (cost, profile, machine) = (prepared.cost(), &prepared.task.profile_name, &prepared.task.machine);
    if let Some(own) = cost.own_runs() {
        return vec![format!(
            "± : from {} on {} ({}), and from the class that ships",
            runs_of(own),
            machine.cluster.name,
            kind_of(own)
        )];
    }
    let mut lines = Vec::new();
    if !machine.cluster.own_runs.is_empty() {
        lines.push(
            "± : none of this site's own runs is like this job, so that the bar is the one that ships"
                .to_owned(),
        );
    }
    let with = |experts: bool| if experts { "with experts" } else { "without experts" };
    let experts = with(prepared.context.has_experts());
    let gpus = format!("GPUs like {}", machine.accelerator.name);
    if cost.is_known_by_rates() {
        lines.push(format!(
            "± : of runs of `{profile}` {experts} on {gpus} only rates were printed, no times: the bar is from these"
        ));
    } else if let Some(few) = cost.outside() {
        let which =
            if few.runs == 1 { "the one run".to_owned() } else { format!("one of {} runs", few.runs) };
        lines.push(format!(
            "± : {which} of `{profile}` {} on {gpus} was predicted wrong by a factor of {:.1}: the bar reaches as far",
            with(few.of.experts),
            few.spread.unwrap_or_default().1.exp()
        ));
    } else if !cost.is_measured() {
        lines.push(borrowed(cost.class(), &gpus));
    }
    if let Some(leaning) = leaning(prepared) {
        let (longer, runs) = (leaning.longer(), leaning.runs);
        let took = if longer > 0.0 { "longer" } else { "less" };
        lines.push(format!(
            "± : {runs} runs of `{profile}` {experts} on such GPUs took {:.1}% {took} than predicted, in the median",
            longer.abs() * 100.0
        ));
    }
    lines
}

/// Whose bar stands in for a class that was hardly timed on its GPUs, and how often it and others were.
fn borrowed(class: &Class, gpus: &str) -> String {
    /// More would hide what it is about.
    const NAMED: usize = 2;
    let table = ErrorBars::shipped();
    let (runs, few) = match table.runs_of(class).map_or(0, |timed| timed.runs) {
        0 => ("no run".to_owned(), ""),
        1 => ("1 run".to_owned(), ", too few for a bar"),
        some => (format!("{some} runs"), ", too few for a bar"),
    };
    let others = table.others(class).into_iter().take(NAMED);
    let others: Vec<String> =
        others.map(|other| format!("{} of `{}`", other.runs, other.of.profile)).collect();
    let others = if others.is_empty() { String::new() } else { format!(" (beside {})", others.join(", ")) };
    let whose = match table.bar(class) {
        Some(bar) if bar.profile.is_some() => format!("of its {} runs on all GPUs", group(bar.runs as u64)),
        Some(bar) => format!("of {} runs of all frameworks", group(bar.runs as u64)),
        None => "a guess".to_owned(),
    };
    let (profile, with) = (&class.profile, if class.experts { "with" } else { "without" });
    format!(
        "± : {runs} of `{profile}` {with} experts on {gpus} gave step times{others}{few}: the bar is {whose}, \
         wider by what predictions lose where nobody measured"
    )
}

/// What of a plan nobody measured.
fn unmeasured(prepared: &Prepared, plan: &Plan) -> Vec<String> {
    let (task, layout) = (prepared.task, plan.layout());
    let mut lines = Vec::new();
    if layout.offload.moves_states() {
        lines.push(
            "± : nobody measured plans with states off the GPU: what that may hide is in the bar".into(),
        );
    }
    // The few runs that the bar reaches as far as are what caveats are about.
    if let Some(caveat) = task.profile.caveat.as_ref().filter(|_| prepared.cost().outside().is_none()) {
        lines.push(format!("± : `{}`: {caveat}", task.profile_name));
    }
    let name = &task.machine.accelerator.name;
    if prepared.cost().own_runs().is_none() && !SHIPPED.contains(name) {
        lines.push(format!(
            "± : {name} is no accelerator that ships: its rates are as good as its file, and the bar is that of others of its generation"
        ));
    }
    if prepared.has_unmeasured_attention() {
        lines.push("± : attention with position biases is computed eagerly by its class of transformers: nobody measured that, and what it takes is that of gpt-oss".into());
    }
    if layout.mtp_standalone {
        lines.push("mtp-standalone: further tokens are predicted on the stage before the last, and the last has nothing but the losses; no measured run has it, and what its messages cost follows from the framework's code (--fix mtp=head is without)".into());
    }
    lines
}

/// What a plan needs when it runs.
fn at_run_time(prepared: &Prepared, plan: &Plan, prediction: &Prediction) -> Vec<String> {
    let (task, layout) = (prepared.task, plan.layout());
    let (accelerator, cluster) = (&task.machine.accelerator, &task.machine.cluster);
    let mut lines = Vec::new();
    if holds_too_much(prepared, prediction) {
        lines.push(format!(
            "memory: fits only if the allocator returns cached blocks in time (expandable segments): else it holds more than the {:.1} GB of the GPU",
            accelerator.memory.gigabytes()
        ));
    }
    if prepared.needs_own_dispatcher(plan) {
        lines.push(format!(
            "deepep, hybridep: released builds do not run over the network of {}, where GPUs tell no network card to send; one that goes through hosts is needed (--fix dispatcher=all-to-all is without)",
            cluster.name
        ));
    }
    let split = layout.tensor_parallel > 1 || layout.context_parallel > 1;
    let asks = matches!(task.target, Target::Megatron | Target::Bridge);
    if asks && layout.expert_overlap && split && accelerator.architecture < Architecture::Blackwell {
        lines.push("ep-ov with tp or cp: before Blackwell Megatron-LM warns of the two, as one is fast with CUDA_DEVICE_MAX_CONNECTIONS=1 and the other with 32, which is exported; what the former loses by that is not predicted: try both (--fix ep-overlap=off is without)".into());
    }
    lines
}

/// Whether a plan fits, but the allocator would hold more than the GPU has if it returned nothing.
pub(crate) fn holds_too_much(prepared: &Prepared, prediction: &Prediction) -> bool {
    prepared.cost().fits(prediction) && prediction.device > prepared.task.machine.accelerator.memory
}

/// How many of 100 runs like a plan may run out of memory, if those are more than a few.
pub(crate) fn risk(prepared: &Prepared, prediction: &Prediction) -> Option<String> {
    let chance = prepared.cost().chance_to_fit(prediction);
    (chance < SURE.0).then(|| {
        format!(
            "memory: of 100 runs like this plan {:.0} may run out of it, by how far measured ones were off; `plan` says in its table what fits more surely",
            (1.0 - chance) * 100.0
        )
    })
}

/// Where jobs get a part of every domain.
fn blocks(prepared: &Prepared) -> Option<String> {
    let (cluster, gpus) = (&prepared.task.machine.cluster, prepared.task.job.gpus);
    let (block, domain) = (cluster.block_of(gpus)?, cluster.scale_up.domain);
    let left = domain - block;
    (block < domain).then(|| {
        format!(
            "{block} of the {domain} GPUs of each NVLink domain are used: the other {left} count neither as GPUs nor in dollars (`allocation` in the cluster's file)"
        )
    })
}

/// Which GPUs' own files leave much of their memory out.
fn below_memory(prepared: &Prepared) -> Option<String> {
    /// What is left out for the sake of other programs is less.
    const MUCH: f64 = 0.9;
    let (task, most) = (prepared.task, prepared.cost().device_limit());
    let accelerator = &task.machine.accelerator;
    let limit = accelerator.memory_limit.filter(|limit| limit.0 as f64 <= MUCH * most.0 as f64)?;
    task.job.memory_limit.is_none().then(|| {
        format!(
            "{limit} of the {most} that {} has for tensors may be allocated, by `memory_limit` in its file",
            accelerator.name
        )
    })
}

/// Whether sequences are longer than the model was made for.
fn beyond_positions(prepared: &Prepared) -> Option<String> {
    let (model, length) = (&prepared.task.model, prepared.task.job.sequence_length);
    let longest = model.max_sequence;
    (u64::from(length) > longest).then(|| {
        format!("sequences of {length} tokens are longer than the {longest} that {} is made for", model.name)
    })
}

/// Which GPUs a limit on memory is above the memory of, which helps to see what more would bring.
fn beyond_memory(prepared: &Prepared) -> Option<String> {
    let (limit, most) = (prepared.cost().memory_limit(), prepared.cost().device_limit());
    let accelerator = &prepared.task.machine.accelerator;
    (limit > most).then(|| {
        format!(
            "{:.1} GB may be allocated, more than the {:.1} of {:.1} GB that {} has for tensors: plans may not run there",
            limit.gigabytes(),
            most.gigabytes(),
            accelerator.memory.gigabytes(),
            accelerator.name
        )
    })
}
