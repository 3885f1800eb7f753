//! Plans scenarios with the search: the [`Planner`] of `autoplan regress`.

use std::collections::BTreeMap;

use super::Planner;
use crate::candidates::Restrictions;
use crate::cost::money::{Pricing, step_cost};
use crate::cost::step::Prediction;
use crate::frameworks::legal_plan;
use crate::frameworks::profile::Profile;
use crate::plan::Plan;
use crate::planner::{Prepared, Task};
use crate::results::{ChunkRun, Objective, Outcome, Planned, Scenario};
use crate::search::{Request, Silent};
use crate::spec::job::{Job, Routing, Training};
use crate::spec::{load_cluster, load_model};

/// Plans that are kept beside the best.
const RUNNERS_UP: usize = 2;

/// Searches the whole space of every cluster and GPU count of a scenario.
pub struct ScenarioPlanner<'a> {
    adjust: Box<dyn Fn(&mut Task) + Sync + 'a>,
}

impl Default for ScenarioPlanner<'_> {
    fn default() -> Self {
        Self::adjusted(|_| {})
    }
}

impl<'a> ScenarioPlanner<'a> {
    /// A planner whose every task is changed first: what if all-reduce were a tenth slower?
    #[must_use]
    pub fn adjusted(adjust: impl Fn(&mut Task) + Sync + 'a) -> Self {
        Self { adjust: Box::new(adjust) }
    }

    /// What is planned of a scenario on one of its clusters and one of its numbers of GPUs.
    ///
    /// # Errors
    /// Why nothing is: what does not exist, or what the machine lacks.
    pub fn task(&self, scenario: &Scenario, cluster: &str, gpus: u32) -> Result<Task, String> {
        let model = load_model(&scenario.model).map_err(|e| e.to_string())?;
        let machine = load_cluster(cluster).map_err(|e| e.to_string())?;
        let target = scenario.target().ok_or_else(|| format!("`{}` is no framework", scenario.framework))?;
        let (profile_name, profile) = Profile::of(target);
        if let Some(lack) = machine.accelerator.lacks(scenario.precision) {
            return Err(lack);
        }
        if machine.cluster.max_gpus.is_some_and(|most| gpus > most) {
            return Err(format!("{cluster} has fewer than {gpus} GPUs"));
        }
        let mut task = Task {
            model,
            machine,
            job: Job {
                gpus,
                global_batch_size: scenario.global_batch_size,
                sequence_length: scenario.sequence_length,
                precision: scenario.precision,
                optimizer: scenario.optimizer,
                training: Training::Full,
                memory_limit: None,
                tokens: None,
                routing: Routing::Balanced,
                packed: None,
                expert_capacity: None,
            },
            target,
            profile,
            profile_name,
            restrictions: Restrictions::default(),
            pricing: Pricing::OnDemand,
        };
        (self.adjust)(&mut task);
        Ok(task)
    }
}

/// A plan with its prediction as a result file keeps it.
fn planned(prepared: &Prepared, cluster: &str, plan: &Plan, prediction: &Prediction) -> Planned {
    let named = |items: &mut dyn Iterator<Item = (&'static str, u64)>| -> BTreeMap<String, u64> {
        items.filter(|(_, value)| *value > 0).map(|(name, value)| (name.to_owned(), value)).collect()
    };
    let fullest = prediction.memory.iter().max_by_key(|rank| rank.total()).copied().unwrap_or_default();
    let memory = [
        ("weights", fullest.weights),
        ("gradients", fullest.gradients),
        ("optimizer", fullest.optimizer),
        ("activations", fullest.activations),
        ("transient", fullest.transient),
        ("pools", fullest.pools),
        ("buffers", fullest.buffers),
    ];
    Planned {
        plan: plan.to_string(),
        cluster: cluster.to_owned(),
        gpus: prepared.task.job.gpus,
        step_time_ps: prediction.step().0,
        usd_per_step: step_cost(&prepared.run(prediction)).per_step.0,
        memory_bytes: fullest.total().0,
        time_ps: named(&mut prediction.times.iter().map(|(name, time)| (name, time.0))),
        memory: named(&mut memory.into_iter().map(|(name, bytes)| (name, bytes.0))),
        layout: *plan.layout(),
        chunks: ChunkRun::of(plan.chunks()),
    }
}

/// Why a task has no plan.
fn why_none(task: &Task) -> String {
    let prepared = task.prepare();
    let limit = prepared.cost().memory_limit();
    match prepared.nearest_miss(&Silent) {
        Some(miss) => {
            format!("nothing fits; nearest is {}, which needs {} of {limit}", miss.plan, miss.allocated)
        }
        None => "no legal plan".into(),
    }
}

impl Planner for ScenarioPlanner<'_> {
    fn plan(&self, scenario: &Scenario) -> Result<Outcome, String> {
        let mut plans: Vec<Planned> = Vec::new();
        let mut first: Option<Task> = None;
        for cluster in &scenario.clusters {
            for &gpus in &scenario.gpus {
                let task = self.task(scenario, cluster, gpus)?;
                let prepared = task.prepare();
                let request = Request { top: 1 + RUNNERS_UP, ..Request::default() };
                let answer = prepared.solve(&request, &Silent).answer;
                let found = answer.found.iter();
                plans.extend(found.map(|found| planned(&prepared, cluster, &found.plan, &found.prediction)));
                first.get_or_insert(task);
            }
        }
        plans.sort_by(|a, b| {
            let time = a.step_time_ps.cmp(&b.step_time_ps);
            let cost = a.usd_per_step.total_cmp(&b.usd_per_step);
            let objective = match scenario.objective {
                Objective::Time => time.then(cost),
                Objective::Cost => cost.then(time),
            };
            objective.then_with(|| (&a.plan, &a.cluster, a.gpus).cmp(&(&b.plan, &b.cluster, b.gpus)))
        });
        let mut plans = plans.into_iter();
        Ok(match plans.next() {
            Some(best) => Outcome::Planned { best, runners_up: plans.take(RUNNERS_UP).collect() },
            None => Outcome::Infeasible { reason: first.map_or_else(String::new, |task| why_none(&task)) },
        })
    }

    fn price(&self, scenario: &Scenario, stored: &Planned) -> Result<Planned, String> {
        let task = self.task(scenario, &stored.cluster, stored.gpus)?;
        let prepared = task.prepare();
        let plan = stored
            .to_plan(scenario.global_batch_size, prepared.layers.count())
            .map_err(|law| law.to_string())?;
        legal_plan(task.target, &prepared.context, &plan).map_err(|refusal| refusal.reason())?;
        let prediction = prepared.predict(&plan);
        let cost = prepared.cost();
        if prediction.allocated > cost.memory_limit() {
            return Err(format!("it needs {} of {}", prediction.allocated, cost.memory_limit()));
        }
        if !cost.fits(&prediction) {
            let host = prediction.off_gpu.host();
            return Err(format!("it needs {host} of a node's host memory"));
        }
        Ok(planned(&prepared, &stored.cluster, &plan, &prediction))
    }
}
