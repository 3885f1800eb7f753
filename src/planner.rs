//! One planning task from checked inputs to an answer: what the command line, the regression and
//! `explain` share.

use std::collections::BTreeMap;

use crate::candidates::{Axis, OFFLOADS, Restrictions, Space, SplitLost};
use crate::check::{Given, Report};
use crate::cost::goodput::{Checkpointing, Writing, checkpoint_bytes};
use crate::cost::model::CostModel;
use crate::cost::money::{Pricing, Run, straggler_time};
use crate::cost::step::{Prediction, StepItem};
use crate::cost::{CellKey, LocalParameters};
use crate::frameworks::export::inexpressible;
use crate::frameworks::export::needs_own_dispatcher;
use crate::frameworks::hf::eager_attention;
use crate::frameworks::profile::Profile;
use crate::frameworks::{Context, Hardware, Refusal, Target};
use crate::layers::{
    AttentionCount, Layers, ParameterCount, embedding_parameters, head_parameters, packed_model_flops,
    parameter_count,
};
use crate::plan::{Layout, Offload, Plan, Recompute};
use crate::search::{Answer, Found, Observer, Ranking, Request, Search, Stop};
use crate::spec::diagnostic::SpecError;
use crate::spec::job::{Job, Optimizer, Precision, Routing, Training};
use crate::spec::model::Model;
use crate::spec::{Machine, load_cluster, load_model};
use crate::units::{Bytes, Flops, Tokens};

/// Everything that decides an answer.
#[derive(Debug, Clone)]
pub struct Task {
    /// The model.
    pub model: Model,
    /// Cluster and accelerator.
    pub machine: Machine,
    /// The job.
    pub job: Job,
    /// Framework.
    pub target: Target,
    /// Its run-time behaviour.
    pub profile: &'static Profile,
    /// The behaviour's name.
    pub profile_name: String,
    /// What the user fixed.
    pub restrictions: Restrictions,
    /// Price of a GPU-hour.
    pub pricing: Pricing,
}

/// A task with what is derived from it once.
#[derive(Debug, Clone)]
pub struct Prepared<'a> {
    /// The task.
    pub task: &'a Task,
    /// Flat layers.
    pub layers: Layers,
    /// Facts for rules.
    pub context: Context,
    /// Exact parameter totals.
    pub parameters: ParameterCount,
}

/// Offload is tried beside everything else for no more GPUs than this: with more, states are shared by so many ranks
/// that it rarely pays, and searches with it take two to four times as long.
const FEW_GPUS: u32 = 32;

/// What came of offload where nothing was said about it.
#[derive(Debug, Clone)]
pub enum Offloading {
    /// It was not tried, or no plan with it is faster.
    Left,
    /// Nothing fits without: every plan offloads.
    Needed,
    /// It is faster by more than predictions of the job's plans err; the best plan without.
    Pays(Box<Found>),
    /// It is faster by less than that, and the answer is without; the best plan with it.
    Ties(Box<Found>),
}

impl Offloading {
    /// Whether the plans of the answer may offload.
    #[must_use]
    pub fn is_open(&self) -> bool {
        matches!(self, Self::Needed | Self::Pays(_))
    }
}

/// The answer to a task whose offload was opened where it is worth it.
#[derive(Debug, Clone)]
pub struct Solution {
    /// The plans; the counters are those of the search without offload too where the answer is of another.
    pub answer: Answer,
    /// Why they offload or do not.
    pub offloading: Offloading,
}

impl Solution {
    /// The same with better splits in the place of those that were ranked, in the order of the ranking; see
    /// [`Found::polished`].
    pub fn take_polished(&mut self) {
        self.answer.found.iter_mut().for_each(Found::take_polished);
        if let Offloading::Pays(other) | Offloading::Ties(other) = &mut self.offloading {
            other.take_polished();
        }
    }
}

/// A plan that would fit if memory were a little larger.
#[derive(Debug, Clone)]
pub struct NearestMiss {
    /// The plan.
    pub plan: Plan,
    /// What it allocates on its fullest rank.
    pub allocated: Bytes,
    /// The search was stopped: others may come nearer.
    pub stopped: bool,
}

fn with_none(ways: Vec<Offload>) -> Vec<Offload> {
    std::iter::once(Offload::NONE).chain(ways).collect()
}

/// Throughput and utilisation of a predicted step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rates {
    /// Tokens per second of one GPU.
    pub tokens_per_s_per_gpu: f64,
    /// Model FLOPs utilisation, causal attention counted once (as kernels compute it).
    pub mfu: f64,
    /// Model FLOPs utilisation with the whole attention square counted (PaLM's convention).
    pub mfu_full_attention: f64,
    /// Hardware FLOPs utilisation: recomputation and FlashAttention's second pass counted.
    pub hfu: f64,
}

/// Which of a refused plan's tensor-, pipeline-, context- and expert-parallel degrees [`Prepared::nearest_accepted`]
/// keeps, the most first. A pipeline's stages, then tensors' shards, are kept longest: they decide which weights are
/// where.
const DEGREES_KEPT: [[bool; 4]; 8] = [
    [true, true, true, true],
    [true, true, true, false],
    [true, true, false, false],
    [false, true, false, false],
    [true, false, true, true],
    [true, false, true, false],
    [true, false, false, false],
    [false, false, false, false],
];

impl Task {
    /// A plain job of a shipped model on a shipped cluster under Megatron-LM: BF16, AdamW, all weights
    /// trained, nothing restricted.
    ///
    /// # Errors
    /// A name that does not ship.
    pub fn shipped(
        model: &str,
        cluster: &str,
        gpus: u32,
        global_batch_size: u32,
        sequence_length: u32,
    ) -> Result<Self, SpecError> {
        let (profile_name, profile) = Profile::of(Target::Megatron);
        Ok(Self {
            model: load_model(model)?,
            machine: load_cluster(cluster)?,
            job: Job {
                gpus,
                global_batch_size,
                sequence_length,
                precision: Precision::Bf16,
                optimizer: Optimizer::Adamw,
                training: Training::Full,
                memory_limit: None,
                tokens: None,
                routing: Routing::Balanced,
                packed: None,
                expert_capacity: None,
            },
            target: Target::Megatron,
            profile,
            profile_name,
            restrictions: Restrictions::default(),
            pricing: Pricing::OnDemand,
        })
    }

    /// Derives layers, rules' facts and totals.
    #[must_use]
    pub fn prepare(&self) -> Prepared<'_> {
        let layers = Layers::new(&self.model);
        let context = Context::new(
            &self.model,
            &layers,
            &self.job,
            Hardware::of(&self.machine.cluster, &self.machine.accelerator),
        )
        .of_profile(self.profile);
        let parameters = parameter_count(&self.model);
        Prepared { task: self, layers, context, parameters }
    }
}

impl Prepared<'_> {
    /// The cost model of the task.
    #[must_use]
    pub fn cost(&self) -> CostModel<'_> {
        let t = self.task;
        CostModel::new(&t.model, &self.layers, &t.machine.cluster, &t.machine.accelerator, t.profile, &t.job)
    }

    /// Searches the whole space.
    #[must_use]
    pub fn search(&self, request: &Request, observer: &dyn Observer) -> Answer {
        self.with_search(|search| search.run(request, observer))
    }

    /// The same where the ranking of a part of the space is known, with the ranking.
    #[must_use]
    pub fn search_from(
        &self,
        request: &Request,
        known: Option<&Ranking>,
        observer: &dyn Observer,
    ) -> (Ranking, Answer) {
        self.with_search(|search| {
            let ranking = search.rank(request, known, observer);
            let answer = search.finish(ranking.clone(), request, observer);
            (ranking, answer)
        })
    }

    fn with_search<R>(&self, work: impl FnOnce(&Search<'_>) -> R) -> R {
        let cost = self.cost();
        let space = self.space(self.task.target);
        work(&Search { cost: &cost, layers: &self.layers, space: &space })
    }

    /// Searches the space without offload. Where nothing was said about offload, the framework has it, and either
    /// nothing fits, or only splits far from even ones do, or the GPUs are few, it is tried as well, and is the answer where
    /// it is needed or pays.
    #[must_use]
    pub fn solve(&self, request: &Request, observer: &dyn Observer) -> Solution {
        self.with_search(|search| {
            let ranking = search.rank(request, None, observer);
            let left = |ranking| Solution {
                answer: search.finish(ranking, request, observer),
                offloading: Offloading::Left,
            };
            let memory_binds = ranking.step().is_none() && ranking.counters.pruned.contains_key("memory");
            let (ways, said) = (self.ways_to_offload(), self.task.restrictions.offload.is_some());
            let few = (self.task.job.gpus <= FEW_GPUS || ranking.insisted) && ranking.step().is_some();
            if !(memory_binds || few) || ranking.stop == Stop::Interrupted || said || ways.is_empty() {
                return left(ranking);
            }
            if memory_binds {
                return self.offloading(ways).prepare().with_search(|open| {
                    let offloads = open.rank(request, None, observer).after(&ranking);
                    let answer = open.finish(offloads, request, observer);
                    Solution { answer, offloading: Offloading::Needed }
                });
            }
            // Mostly one look tells that no plan with offload is faster, or none by enough.
            let first = Request { top: 1, per_class: 1, ..request.clone() };
            let (fastest, pays, tie) = self.offloading(ways.clone()).prepare().with_search(|only| {
                let fastest = only.rank(&first, Some(&ranking), observer);
                let gain = match (ranking.step(), fastest.step()) {
                    (Some(without), Some(with)) => (without.0 as f64 / with.0 as f64).ln(),
                    _ => 0.0,
                };
                let difference = |plan: &Plan| only.cost.interval(plan.layout()).difference;
                let pays = fastest.plan().is_some_and(|plan| gain > difference(plan));
                let ties = gain > 0.0 && !pays && fastest.stop == Stop::Proved;
                let tie = ties.then(|| only.finish_best(&fastest, request, observer)).flatten();
                (fastest, pays, tie)
            });
            if pays {
                let known = ranking.clone().with(fastest);
                let pays = self.offloading(with_none(ways)).prepare().with_search(|open| {
                    let offloads = open.rank(request, Some(&known), observer).after(&ranking);
                    offloads.plan().filter(|plan| plan.layout().offload != Offload::NONE)?;
                    let answer = open.finish(offloads, request, observer);
                    let without = search.finish_best(&ranking, request, observer).map(Box::new)?;
                    Some(Solution { answer, offloading: Offloading::Pays(without) })
                });
                return pays.unwrap_or_else(|| left(ranking));
            }
            let ranking = if fastest.stop == Stop::Interrupted { ranking.beside(&fastest) } else { ranking };
            let offloading = tie.map_or(Offloading::Left, |tie| Offloading::Ties(Box::new(tie)));
            Solution { offloading, ..left(ranking) }
        })
    }

    /// The same task where plans may keep these off the GPU.
    fn offloading(&self, ways: Vec<Offload>) -> Task {
        let mut task = self.task.clone();
        task.restrictions.offload = Some(ways);
        task
    }

    /// What the search does not try where nothing is said of it, each with the option that opens it; `offloads`: its plans
    /// may offload.
    #[must_use]
    pub fn left_out(&self, offloads: bool) -> Vec<(String, String)> {
        let mut left = Vec::new();
        if self.leaves_offload_out() && !offloads {
            left.push(("offload".to_owned(), "--fix offload=any".to_owned()));
        }
        let can = self.task.target.capabilities();
        let unsaid = self.task.restrictions.zero_stage == Axis::default();
        let tried = can.default_zero_stages.iter().max();
        let beyond: Vec<String> =
            can.zero_stages.iter().filter(|stage| Some(*stage) > tried).map(u8::to_string).collect();
        if let Some(most) = beyond.last().filter(|_| unsaid && self.task.job.gpus > 1) {
            left.push((format!("ZeRO {}", beyond.join(" and ")), format!("--max-zero {most}")));
        }
        left
    }

    /// Whether [`Prepared::solve`] tries offload only where nothing fits without it.
    fn leaves_offload_out(&self) -> bool {
        let unsaid = self.task.restrictions.offload.is_none();
        unsaid && self.task.job.gpus > FEW_GPUS && !self.ways_to_offload().is_empty()
    }

    /// What the framework can keep off the GPU.
    fn ways_to_offload(&self) -> Vec<Offload> {
        let can = self.task.target.capabilities();
        let possible = |offload: &Offload| *offload != Offload::NONE && can.offloads(*offload);
        OFFLOADS.iter().map(|(_, offload)| *offload).filter(possible).collect()
    }

    fn space(&self, target: Target) -> Space<'_> {
        Space::new(target, &self.context, &self.task.restrictions)
    }

    /// The framework's rules that forbid degrees of this job, each with how many combinations it forbids;
    /// most first.
    #[must_use]
    pub fn forbidden_degrees(&self) -> Vec<(&'static str, u64)> {
        self.space(self.task.target).forbidden_degrees()
    }

    /// How a layout of the job breaks a rule of the framework, in words.
    #[must_use]
    pub fn example_of(&self, rule: &str) -> Option<String> {
        let target = self.task.target;
        let restrictions = &self.task.restrictions;
        let open = Restrictions { offload: Some(self.ways_to_offload()), ..restrictions.clone() };
        let own = self.space(target).example_of(rule);
        own.or_else(|| {
            let opened = restrictions.offload.is_none().then(|| Space::new(target, &self.context, &open));
            opened?.example_of(rule)
        })
    }

    /// Whether the model has routed experts.
    #[must_use]
    pub fn has_experts(&self) -> bool {
        self.context.has_experts()
    }

    /// Whether attention is computed eagerly for the sake of position biases: what was measured of that is of models with sinks.
    #[must_use]
    pub fn has_unmeasured_attention(&self) -> bool {
        let architecture = self.task.machine.accelerator.architecture;
        let scores = |eager| self.task.profile.kernels.scores(architecture, eager).is_some();
        let eager = eager_attention(&self.task.model, &self.layers) && !self.layers.have_sinks();
        eager && scores(true) && !scores(false)
    }

    /// Whether tokens go to the experts of a plan by a library whose released builds do not run over the cluster's network.
    #[must_use]
    pub fn needs_own_dispatcher(&self, plan: &Plan) -> bool {
        needs_own_dispatcher(plan.layout(), &self.task.machine.cluster)
    }

    /// Whether GPUs and batch divide into any degrees that the framework and the user allow.
    #[must_use]
    pub fn divides(&self) -> bool {
        !self.space(self.task.target).groups().is_empty()
    }

    /// What forbids splits of the GPUs, with how many.
    #[must_use]
    pub fn splits_lost(&self) -> BTreeMap<SplitLost, u64> {
        self.space(self.task.target).splits_lost()
    }

    /// Numbers of replicas that do not divide the batch, of splits that nothing before that forbids.
    #[must_use]
    pub fn refused_replicas(&self) -> Vec<u32> {
        let refused = |lost: SplitLost| match lost {
            SplitLost::Batch { replicas } => Some(replicas),
            _ => None,
        };
        self.splits_lost().into_keys().filter_map(refused).collect()
    }

    /// Numbers of replicas of all splits, whether they divide the batch or not.
    #[must_use]
    pub fn possible_replicas(&self) -> Vec<u32> {
        self.space(self.task.target).possible_replicas()
    }

    /// Why the framework cannot run the job whatever the layout, and the frameworks that can and have the model.
    #[must_use]
    pub fn refusal(&self) -> Option<(Refusal, Vec<Target>)> {
        let refusal = |target| self.space(target).job_refusal();
        let own = refusal(self.task.target)?;
        // Adapters are planned for frameworks for which no files of them are written; nothing is known of the adapters of
        // those for which no files are written at all.
        let all = Job { training: Training::Full, ..self.task.job.clone() };
        let adapters = self.task.job.training != Training::Full;
        let can = |&target: &Target| {
            refusal(target).is_none()
                && self.missing(target, &all).is_none()
                && (!adapters || target.exports())
        };
        Some((own, Target::ALL.into_iter().filter(can).collect()))
    }

    /// Why a framework has no such model for a job.
    fn missing(&self, target: Target, job: &Job) -> Option<Refusal> {
        let Task { model, machine, .. } = self.task;
        inexpressible(target, model, job, (&machine.cluster, &machine.accelerator))
    }

    /// Why the framework has no such model, and the frameworks that have it and can run the job.
    #[must_use]
    pub fn inexpressible(&self) -> Option<(Refusal, Vec<Target>)> {
        let own = self.missing(self.task.target, &self.task.job)?;
        let can = |&t: &Target| {
            t.exports() && self.missing(t, &self.task.job).is_none() && self.space(t).job_refusal().is_none()
        };
        Some((own, Target::ALL.into_iter().filter(can).collect()))
    }

    /// The plan nearest to one that the framework refuses, by search: the fastest of those that keep most of its
    /// degrees. None where no plan for the job is legal and fits, or the observer ended the search before one was
    /// found.
    #[must_use]
    pub fn nearest_accepted(&self, refused: &Layout, observer: &dyn Observer) -> Option<Plan> {
        let request = Request { top: 1, ..Request::default() };
        DEGREES_KEPT.iter().find_map(|kept| {
            let mut task = self.task.clone();
            let r = &mut task.restrictions;
            let axes = [
                (&mut r.tensor_parallel, refused.tensor_parallel),
                (&mut r.pipeline_parallel, refused.pipeline_parallel),
                (&mut r.context_parallel, refused.context_parallel),
                (&mut r.expert_parallel, refused.expert_parallel),
            ];
            for ((axis, degree), _) in axes.into_iter().zip(kept).filter(|(_, kept)| **kept) {
                *axis = Axis::exactly(degree);
            }
            let found = task.prepare().solve(&request, observer).answer.found;
            found.into_iter().next().map(|found| found.plan)
        })
    }

    /// Where nothing fits: the plan that needs the least memory, to within a twentieth of the limit, if any
    /// plan exists at all. Found by searches under raised limits, which end when the observer says so.
    #[must_use]
    pub fn nearest_miss(&self, observer: &dyn Observer) -> Option<NearestMiss> {
        let limit = self.cost().memory_limit();
        let under = |limit: Bytes, kept: Option<&Layout>| {
            let mut task = self.task.clone();
            task.job.memory_limit = Some(limit);
            if let Some(layout) = kept {
                let r = &mut task.restrictions;
                let axes = [
                    (&mut r.tensor_parallel, layout.tensor_parallel),
                    (&mut r.pipeline_parallel, layout.pipeline_parallel),
                    (&mut r.virtual_stages, layout.virtual_stages),
                    (&mut r.context_parallel, layout.context_parallel),
                    (&mut r.expert_parallel, layout.expert_parallel),
                    (&mut r.micro_batch_size, layout.micro_batch_size),
                ];
                for (axis, degree) in axes {
                    *axis = Axis::exactly(degree);
                }
            }
            // Larger micro-batches only need more.
            if task.restrictions.micro_batch_size.only.is_none() {
                task.restrictions.micro_batch_size.max = Some(1);
            }
            let request = Request { top: 1, insist: kept.is_some(), ..Request::default() };
            let found = task.prepare().search(&request, observer).found.into_iter().next()?;
            let stopped = observer.stop();
            Some(NearestMiss { plan: found.plan, allocated: found.prediction.allocated, stopped })
        };
        // A thousand times the memory is beyond every remedy.
        let mut below = limit;
        let mut miss = (1..=10).find_map(|doublings| {
            let raised = Bytes(limit.0.saturating_mul(1 << doublings));
            let miss = under(raised, None);
            if miss.is_none() {
                below = raised;
            }
            miss
        })?;
        // First of all layouts; then of the one that is found, with layers moved.
        for keeps in [false, true] {
            let layout = *miss.plan.layout();
            let mut below = if keeps { limit } else { below };
            while miss.allocated.0.saturating_sub(below.0) > limit.0 / 20 && !observer.stop() {
                let middle = Bytes(below.0 + (miss.allocated.0 - below.0) / 2);
                match under(middle, keeps.then_some(&layout)) {
                    Some(nearer) => miss = nearer,
                    None => below = middle,
                }
            }
        }
        Some(NearestMiss { stopped: observer.stop(), ..miss })
    }

    /// Predicts one plan.
    #[must_use]
    pub fn predict(&self, plan: &Plan) -> Prediction {
        crate::cost::step::predict(&self.cost(), &self.layers, plan)
    }

    /// Verifies a plan and what was predicted of it, with arithmetic that shares nothing with the search.
    #[must_use]
    pub fn check(&self, plan: &Plan, prediction: &Prediction) -> Report {
        let t = self.task;
        let given =
            Given { model: &t.model, machine: &t.machine, job: &t.job, target: t.target, profile: t.profile };
        crate::check::check(&given, plan, prediction)
    }

    /// Tokens of one step.
    #[must_use]
    pub fn tokens_per_step(&self) -> Tokens {
        Tokens(u64::from(self.task.job.global_batch_size) * u64::from(self.task.job.sequence_length))
    }

    /// Throughput and utilisation of a prediction.
    #[must_use]
    pub fn rates(&self, plan: &Plan, prediction: &Prediction) -> Rates {
        let job = &self.task.job;
        let step = prediction.step().seconds();
        let peak = self.task.machine.accelerator.peak(job.precision.format());
        let available = peak.0 * f64::from(job.gpus) * step.0;
        let model = self.step_flops(AttentionCount::Causal);
        Rates {
            tokens_per_s_per_gpu: self.tokens_per_step().0 as f64 / step.0 / f64::from(job.gpus),
            mfu: model.0 / available,
            mfu_full_attention: self.step_flops(AttentionCount::Full).0 / available,
            hfu: self.hardware_flops(plan, model).0 / available,
        }
    }

    /// Model FLOPs of one step.
    #[must_use]
    pub fn step_flops(&self, count: AttentionCount) -> Flops {
        let job = &self.task.job;
        let (batch, length) = (u64::from(job.global_batch_size), u64::from(job.sequence_length));
        let packed = job.packed.as_ref();
        let all = packed_model_flops(&self.task.model, &self.layers, batch, length, packed, count);
        all - self.frozen_flops(all, count)
    }

    /// FLOPs of the weight gradients that a frozen base does without: a third of what its products take (`all`, of a
    /// model that is trained whole, counts `count` of the attention, which keeps its own).
    fn frozen_flops(&self, all: Flops, count: AttentionCount) -> Flops {
        let job = &self.task.job;
        if job.training == Training::Full {
            return Flops(0.0);
        }
        let length = u64::from(job.sequence_length);
        let attention = |kind: u8| {
            let block = &self.layers.kinds[usize::from(kind)].block;
            crate::layers::core_flops_per_packed_token(block, length, job.packed.as_ref(), count)
        };
        let per_token: Flops = self.layers.order.iter().map(|&kind| attention(kind)).sum();
        let tokens = f64::from(job.global_batch_size) * length as f64;
        (all - per_token * (3.0 * tokens)) * (1.0 / 3.0)
    }

    /// FLOPs that the GPUs execute: model FLOPs, the second pass of FlashAttention's backward, and
    /// recomputed layers.
    fn hardware_flops(&self, plan: &Plan, model: Flops) -> Flops {
        let job = &self.task.job;
        let tokens = f64::from(job.global_batch_size) * f64::from(job.sequence_length);
        // Of one layer beyond its model FLOPs; and of what runs again with it if it runs again as a whole.
        let beyond = |kind: u8, recompute: Recompute, with: Flops| {
            let block = &self.layers.kinds[usize::from(kind)].block;
            let core = crate::layers::core_flops_per_packed_token(
                block,
                u64::from(job.sequence_length),
                job.packed.as_ref(),
                AttentionCount::Causal,
            );
            let linear = crate::layers::linear_flops_per_token(&self.task.model, block);
            // FlashAttention's backward pass computes the scores again: 2.5 instead of 2 forward passes.
            let mut extra = core * 0.5;
            match recompute {
                Recompute::FullUniform(_) | Recompute::FullBlock(_) => extra += linear + core + with,
                Recompute::Selective(set) => {
                    if set.has(crate::plan::Module::CoreAttention) {
                        extra += core;
                    }
                    let (mixer_only, _) = split_linear(&self.task.model, block);
                    if set.has(crate::plan::Module::Mlp) || set.has(crate::plan::Module::Moe) {
                        extra += linear - mixer_only;
                    }
                }
                Recompute::None => {}
            }
            extra
        };
        let mut extra = Flops(0.0);
        let mut order = self.layers.order.iter();
        for chunk in plan.chunks() {
            for (i, &kind) in order.by_ref().take(chunk.layers as usize).enumerate() {
                let recompute = match chunk.recompute {
                    Recompute::FullBlock(n) if i as u32 >= n => Recompute::None,
                    mode => mode,
                };
                extra += beyond(kind, recompute, Flops(0.0));
            }
        }
        if let (Some((kind, modules)), Some(last)) = (self.layers.mtp, plan.chunks().last()) {
            let at = plan.layout().mtp_chunk().and_then(|at| plan.chunks().get(at as usize)).unwrap_or(last);
            let recompute = at.recompute.of_modules(self.task.profile.memory.further_recomputed);
            let projection = crate::layers::projection_flops_per_token(&self.task.model);
            extra += beyond(kind, recompute, projection) * f64::from(modules);
        }
        model + extra * tokens
    }

    /// Parameters of a rank that holds all layers of a layout, by class.
    #[must_use]
    pub fn parameters_under(&self, layout: &Layout) -> LocalParameters {
        self.cost().cell(&CellKey::from(layout)).parameters(&self.layers.runs)
    }

    /// The run as the money model sees it.
    #[must_use]
    pub fn run<'s>(&'s self, prediction: &Prediction) -> Run<'s> {
        let model = &self.task.model;
        let step = prediction.step();
        let ends = embedding_parameters(model, model.vocabulary) + head_parameters(model, model.vocabulary);
        let total = self.parameters.total + self.parameters.mtp;
        // Of adapters nothing else is saved.
        let adapters = self.task.job.training != Training::Full;
        let (saved, ends) = match adapters {
            true => (self.parameters_under(&Layout::ONE).trained(), 0),
            false => (total, ends),
        };
        Run {
            cluster: &self.task.machine.cluster,
            accelerator: &self.task.machine.accelerator,
            gpus: self.task.job.gpus,
            pricing: self.task.pricing,
            step,
            stragglers: prediction.times.0[StepItem::Stragglers as usize].min(straggler_time(step, f64::MAX)),
            tokens_per_step: self.tokens_per_step(),
            checkpointing: Checkpointing {
                bytes: checkpoint_bytes(saved, ends, self.task.job.optimizer),
                writing: Writing::Asynchronous,
                interval: None,
            },
        }
    }
}

/// Forward FLOPs per token of the mixer's matrices, and of the rest.
fn split_linear(model: &Model, block: &crate::spec::model::Block) -> (Flops, Flops) {
    let mixer =
        crate::spec::model::Block { feed_forward: crate::spec::model::FeedForward::None, ..block.clone() };
    let all = crate::layers::linear_flops_per_token(model, block);
    let mixer = crate::layers::linear_flops_per_token(model, &mixer);
    (mixer, all - mixer)
}
