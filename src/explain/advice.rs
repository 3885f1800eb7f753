//! What to think about beside a plan: roofline, waste, batch and number ranges. Advice, no prediction.

use serde::Serialize;

use crate::cost::StateClass;
use crate::cost::advice::{
    BatchAdvice, BatchChange, BatchRamp, LearningRateSchedule, PrecisionAdvice, REFERENCE_WARM_UP_STEPS,
    RampCost, RampError, batch_advice, precision_advice, ramp_cost,
};
use crate::cost::goodput::NoProgress;
use crate::cost::model::CostModel;
use crate::cost::money::{Waste, run_cost, step_cost, waste};
use crate::cost::network::{Fabric, ring_all_reduce_volume};
use crate::cost::roofline::{Ceiling, Ceilings};
use crate::cost::scaling::{least_gpus, petaflop_days, time_at};
use crate::cost::step::{Prediction, predict};
use crate::frameworks::profile::OffloadedGradients;
use crate::frameworks::{Context, legal_plan};
use crate::layers::AttentionCount;
use crate::memory::{moment_bytes, states};
use crate::plan::{Layout, Place, Plan};
use crate::planner::Prepared;
use crate::spec::job::{Job, Phase, Training};
use crate::units::{Bytes, Flops, Picos, Seconds, Tokens, as_number};

/// Model-FLOPs utilisation that published runs of dense models reach in BF16 on H100: 38 to 54 %.
pub const ACHIEVABLE_MFU: f64 = 0.5;

/// Share of its peak to which a learning rate usually decays.
const DECAYED_RATE: f64 = 0.1;

/// The recipe that a plan's batch is compared with.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Reference {
    /// Sequences per step for which the recipe was made.
    pub batch: Option<u32>,
    /// Its peak learning rate.
    pub learning_rate: Option<f64>,
    /// Its warm-up steps.
    pub warm_up_steps: Option<u64>,
}

/// A kind of work on the roofline of its GPU.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct OnRoofline {
    /// FLOPs per byte of memory or network traffic.
    pub flops_per_byte: f64,
    /// FLOPs per byte at which compute would bind.
    pub ridge: f64,
    /// What binds.
    pub ceiling: Ceiling,
    /// The highest rate that it leaves, as a share of the peak.
    pub share_of_peak: f64,
}

/// The three walls of a run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Walls {
    /// Fewest GPUs that hold weights, gradients and optimizer states, all of them sharded, but for what is offloaded.
    pub least_gpus: u64,
    /// Training compute in days of 10^15 FLOP/s, by the count of [`crate::planner::Rates::mfu`].
    pub petaflop_days: Option<f64>,
    /// Days at [`ACHIEVABLE_MFU`] without any loss.
    pub days_at_achievable_mfu: Option<f64>,
}

/// Advice beside a plan.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Advice {
    /// Memory, time: what no plan gets around.
    pub walls: Walls,
    /// The matrix products of a layer against memory.
    pub products: OnRoofline,
    /// A step against the network cards, through the gradients' all-reduce alone, where that leaves a fast domain: what binds
    /// if nothing else stops both from going on at once.
    pub gradients: Option<OnRoofline>,
    /// Against a utilisation of [`ACHIEVABLE_MFU`].
    pub waste: Waste,
    /// Whether that is of the whole run, or of one step: no tokens are given, or it never ends.
    pub waste_of_run: bool,
    /// Number ranges.
    pub precision: PrecisionAdvice,
    /// The changed batch; none without a reference.
    pub batch: Option<BatchAdvice>,
    /// The learning rate that follows; none without a reference.
    pub schedule: Option<LearningRateSchedule>,
    /// A batch that grows at first; none without a ramp.
    pub ramp: Option<RampAdvice>,
}

/// Stages of a ramp that are priced.
const MOST_STAGES: u32 = 10_000;

/// One stage of a batch ramp, with the plan's layout.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct RampStage {
    /// Sequences per step.
    pub global_batch_size: u32,
    /// Micro-batches per pipeline and step.
    pub gradient_accumulation_steps: u32,
    /// Tokens trained in this stage.
    pub tokens: Tokens,
    /// Predicted time of a step.
    #[serde(rename = "step_time_s", serialize_with = "as_number")]
    pub step: Seconds,
}

/// What a batch ramp costs under a plan.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RampAdvice {
    /// The ramp.
    pub ramp: BatchRamp,
    /// Its stages below the full batch.
    pub stages: Vec<RampStage>,
    /// Against the same tokens at the full batch.
    pub cost: RampCost,
}

/// Why a plan cannot run a batch ramp.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum RampRefusal {
    /// The increments miss the full batch.
    #[error(transparent)]
    Ramp(#[from] RampError),
    /// More stages than are priced.
    #[error("the ramp has {0} stages; at most {MOST_STAGES} are priced")]
    Stages(u32),
    /// The run ends before the ramp does.
    #[error("the ramp trains {ramp} tokens, the whole run only {run}")]
    Tokens {
        /// Tokens of the ramp.
        ramp: Tokens,
        /// Tokens of the run.
        run: Tokens,
    },
    /// The layout does not divide a batch of the ramp, or the framework does not run it.
    #[error("the ramp passes a batch of {batch}: {reason}{}", nearest_text(.nearest))]
    Batch {
        /// The batch.
        batch: u32,
        /// Why not.
        reason: String,
        /// The nearest batches below and above that the plan runs.
        nearest: Vec<u32>,
    },
    /// Failures come faster than the run recovers.
    #[error(transparent)]
    NoProgress(#[from] NoProgress),
}

fn nearest_text(nearest: &[u32]) -> String {
    let nearest: Vec<String> = nearest.iter().map(u32::to_string).collect();
    if nearest.is_empty() {
        String::new()
    } else {
        format!("; nearest that this plan runs: {}", nearest.join(" and "))
    }
}

/// The plan at another global batch: the same layout with other accumulation.
///
/// # Errors
/// Why the layout cannot, in words.
fn at_batch(prepared: &Prepared<'_>, plan: &Plan, batch: u32) -> Result<Plan, String> {
    let layout = plan.layout();
    let unit = u64::from(layout.micro_batch_size) * u64::from(layout.data_parallel);
    if batch == 0 || u64::from(batch) % unit != 0 {
        return Err(format!(
            "{} replicas with micro-batches of {} do not divide it",
            layout.data_parallel, layout.micro_batch_size
        ));
    }
    let gradient_accumulation_steps = (u64::from(batch) / unit) as u32;
    let layout = Layout { gradient_accumulation_steps, ..*layout };
    let chunks = plan.chunks().to_vec();
    let gpus = prepared.task.job.gpus;
    let small =
        Plan::new(layout, chunks, gpus, batch, prepared.layers.count()).map_err(|law| law.to_string())?;
    let target = prepared.task.target;
    // A launch may run with what this release of its framework refuses: that is not the ramp's doing.
    if legal_plan(target, &prepared.context, plan).is_ok() {
        let context = Context { global_batch_size: batch, ..prepared.context.clone() };
        legal_plan(target, &context, &small).map_err(|refusal| refusal.to_string())?;
    }
    Ok(small)
}

/// Prices a batch ramp under the layout of a plan.
///
/// # Errors
/// [`RampRefusal`] where the plan cannot run it.
pub fn ramp_advice(
    prepared: &Prepared<'_>,
    plan: &Plan,
    prediction: &Prediction,
    ramp: BatchRamp,
) -> Result<RampAdvice, RampRefusal> {
    let task = prepared.task;
    let full = task.job.global_batch_size;
    let stages = full.saturating_sub(ramp.start) / ramp.increment.max(1);
    if stages > MOST_STAGES {
        return Err(RampRefusal::Stages(stages));
    }
    let phases = ramp.phases(full, task.job.sequence_length)?;
    let tokens: Tokens = phases.iter().map(|phase| phase.tokens).sum();
    if let Some(run) = task.job.tokens.filter(|&run| run < tokens) {
        return Err(RampRefusal::Tokens { ramp: tokens, run });
    }
    let mut stages: Vec<RampStage> = Vec::new();
    let mut priced: Vec<(Phase, Picos)> = Vec::new();
    for phase in phases {
        let batch = phase.global_batch_size;
        let small = at_batch(prepared, plan, batch).map_err(|reason| {
            let layout = plan.layout();
            let unit = u64::from(layout.micro_batch_size) * u64::from(layout.data_parallel);
            let unit = u32::try_from(unit).unwrap_or(u32::MAX);
            let runs = |units: u32| units.checked_mul(unit).filter(|&b| at_batch(prepared, plan, b).is_ok());
            let below = (1..=(batch / unit)).rev().find_map(runs);
            let above = (batch / unit + 1..=full / unit).find_map(runs);
            RampRefusal::Batch { batch, reason, nearest: [below, above].into_iter().flatten().collect() }
        })?;
        let job = Job { global_batch_size: batch, ..task.job.clone() };
        let machine = &task.machine;
        let layers = &prepared.layers;
        let cost =
            CostModel::new(&task.model, layers, &machine.cluster, &machine.accelerator, task.profile, &job);
        let step = predict(&cost, layers, &small).step();
        priced.push((phase, step));
        stages.push(RampStage {
            global_batch_size: batch,
            gradient_accumulation_steps: small.layout().gradient_accumulation_steps,
            tokens: phase.tokens,
            step: step.seconds(),
        });
    }
    let cost = ramp_cost(&prepared.run(prediction), &priced)?;
    Ok(RampAdvice { ramp, stages, cost })
}

/// What a GPU's share of the network cards carries of the gradients' all-reduce at least: the ranks of a fast domain make
/// one sum, of which each sends its part.
fn gradients_on_the_network(prepared: &Prepared<'_>, layout: &Layout) -> Bytes {
    let cluster = &prepared.task.machine.cluster;
    let fabric = Fabric::new(cluster, prepared.task.job.gpus, 1.0);
    let own = prepared.parameters_under(layout);
    let of = |classes: &[StateClass], ranks: u32, stride: u32| {
        let group = fabric.group(ranks, stride);
        let parameters: u64 = classes.iter().map(|&class| own.0[class as usize]).sum();
        let part = Bytes(2 * parameters / u64::from(layout.pipeline_parallel) / u64::from(group.inside));
        // Switches that sum take every part once.
        let once = cluster.scale_out.in_network_reduce && group.domains > 1;
        if once { part } else { ring_all_reduce_volume(u64::from(group.domains), part) }
    };
    let replicas = layout.data_parallel * layout.context_parallel;
    let expert_stride = layout.expert_parallel * layout.expert_tensor_parallel;
    of(&[StateClass::Dense, StateClass::Ends], replicas, layout.tensor_parallel)
        + of(&[StateClass::Expert], layout.expert_data_parallel(), expert_stride)
}

/// Advises on a plan.
#[must_use]
pub fn advice(prepared: &Prepared<'_>, plan: &Plan, prediction: &Prediction, reference: Reference) -> Advice {
    let task = prepared.task;
    let (job, layout) = (&task.job, plan.layout());
    let machine = &task.machine;
    let ceilings = Ceilings::of(&machine.cluster, &machine.accelerator, job.precision.format());
    let on = |flops: f64, memory: Option<f64>, network: Option<f64>| {
        let intensity = |bytes: Option<f64>| bytes.map_or(f64::INFINITY, |bytes| flops / bytes);
        let (rate, ceiling) = ceilings.attainable(intensity(memory), intensity(network));
        OnRoofline {
            flops_per_byte: flops / memory.or(network).unwrap_or(1.0),
            ridge: if memory.is_some() { ceilings.memory_ridge() } else { ceilings.network_ridge() },
            ceiling,
            share_of_peak: rate.0 / ceilings.compute.0,
        }
    };

    // A layer's matrices taken as one of hidden rows, on one rank.
    let tokens = f64::from(layout.micro_batch_size) * f64::from(job.sequence_length)
        / f64::from(layout.context_parallel);
    let hidden = task.model.hidden as f64;
    let active = prepared.layers.kinds.first().map_or(0, |kind| kind.parameters.active()) as f64;
    let columns = active / hidden / f64::from(layout.tensor_parallel);
    let moved = 2.0 * (tokens * hidden + tokens * columns + hidden * columns);
    let products = on(2.0 * tokens * hidden * columns, Some(moved), None);

    let flops = 6.0 * prepared.parameters.active as f64 * prepared.tokens_per_step().0 as f64;
    let sent = gradients_on_the_network(prepared, layout);
    let gradients = (sent > Bytes::ZERO).then(|| on(flops / f64::from(job.gpus), None, Some(sent.0 as f64)));

    let recipe = states(task.profile, job.precision);
    let owned = recipe.owned + moment_bytes(job.optimizer, StateClass::Dense);
    let total = prepared.parameters.total as f64;
    let kept = task.profile.memory.gradients_of(layout);
    let gradient = if kept == OffloadedGradients::OnGpu { recipe.gradients } else { 0.0 };
    let (held, trained) = match job.training {
        Training::Full => (total, total),
        _ => {
            let adapters = prepared.parameters_under(&Layout::ONE).trained() as f64;
            (total + adapters, adapters)
        }
    };
    // Weights leave the GPU between uses at stage 3 alone.
    let off = layout.offload;
    let weights = if off.parameters == Place::Gpu || layout.zero_stage < 3 { recipe.weights } else { 0.0 };
    let owned = if off.optimizer == Place::Gpu { owned } else { 0.0 };
    let state = held * weights + trained * (gradient + owned);
    let run = prepared.run(prediction);
    let whole = job.tokens.and_then(|tokens| run_cost(&run, tokens).ok());
    let cost = whole.map_or_else(|| step_cost(&run).per_step, |run| run.dollars.total);
    let steps = |tokens: Tokens| tokens.0 as f64 / prepared.tokens_per_step().0 as f64;
    let training =
        job.tokens.map(|tokens| Flops(prepared.step_flops(AttentionCount::Causal).0 * steps(tokens)));
    let batch = reference.batch.map(|from| {
        batch_advice(&BatchChange {
            from,
            to: job.global_batch_size,
            sequence_length: job.sequence_length,
            parameters: prepared.parameters.active,
            // Twenty tokens a weight where the job names none (Hoffmann et al. 2022).
            tokens: job.tokens.unwrap_or(Tokens(20 * prepared.parameters.active)),
            learning_rate: reference.learning_rate,
            warm_up_steps: reference.warm_up_steps.unwrap_or(REFERENCE_WARM_UP_STEPS),
            pipeline_parallel: layout.pipeline_parallel,
            virtual_stages: layout.virtual_stages,
            data_parallel: layout.data_parallel,
            micro_batch_size: layout.micro_batch_size,
        })
    });
    Advice {
        waste_of_run: whole.is_some(),
        walls: Walls {
            least_gpus: least_gpus(Bytes::from_f64(state), prepared.cost().memory_limit()),
            petaflop_days: training.map(petaflop_days),
            days_at_achievable_mfu: training
                .map(|flops| time_at(flops, job.gpus, ceilings.compute, ACHIEVABLE_MFU).0 / 86_400.0),
        },
        products,
        gradients,
        waste: waste(cost, prepared.rates(plan, prediction).mfu, ACHIEVABLE_MFU),
        precision: precision_advice(job.precision),
        schedule: batch.as_ref().and_then(|batch| batch.schedule(DECAYED_RATE)),
        batch,
        ramp: None,
    }
}
