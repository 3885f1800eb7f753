//! A survey against the prediction of the same plans.

use crate::cli::autoplan;
use autoplan::candidates::Space;
use autoplan::cost::step::{RankMemory, STEP_ITEMS, StepItem, predict};
use autoplan::frameworks::profile::Profile;
use autoplan::frameworks::{Target, legal_plan};
use autoplan::plan::{CudaGraphs, Plan};
use autoplan::planner::Task;
use autoplan::survey::{Scratch, Surveyor, even_chunks};

fn task(model: &str, cluster: &str, gpus: u32, batch: u32, length: u32, target: Target) -> Task {
    let mut task = Task::shipped(model, cluster, gpus, batch, length).unwrap();
    task.target = target;
    (task.profile_name, task.profile) = Profile::of(target);
    task
}

fn tasks() -> Vec<Task> {
    let mut tasks = vec![
        task("llama3.1-8b", "dgx-h100", 16, 64, 8192, Target::Megatron),
        task("llama3.1-70b", "dgx-h100", 64, 128, 4096, Target::Megatron),
        task("mixtral-8x7b", "dgx-h100", 32, 64, 4096, Target::Megatron),
        task("deepseek-v3", "h800-ib", 256, 512, 4096, Target::Megatron),
        task("nemotron-h-8b", "dgx-h100", 16, 32, 8192, Target::Megatron),
        task("gemma2-27b", "dgx-a100", 32, 64, 4096, Target::Megatron),
        task("llama3.1-8b", "dgx-h100", 16, 64, 8192, Target::Torchtitan),
        task("llama3.1-8b", "dgx-a100", 16, 64, 4096, Target::DeepSpeed),
        task("llama3.1-8b", "dgx-a100", 16, 64, 4096, Target::Nanotron),
    ];
    // A few corners of spaces of hundreds of millions of plans.
    for (at, pipeline, micro_batch, expert) in [
        (1, vec![1, 4, 8], vec![1, 2], vec![1]),
        (2, vec![1, 4], vec![1], vec![1, 8]),
        (3, vec![16], vec![1], vec![8, 32]),
    ] {
        let restrictions = &mut tasks[at].restrictions;
        restrictions.pipeline_parallel.only = Some(pipeline);
        restrictions.micro_batch_size.only = Some(micro_batch);
        restrictions.expert_parallel.only = Some(expert);
        restrictions.tensor_overlap = Some(vec![true]);
        restrictions.cuda_graphs = Some(vec![CudaGraphs::None]);
    }
    tasks
}

#[test]
fn plans_have_the_memory_and_the_items_that_are_predicted() {
    let mut compared = 0;
    for task in tasks() {
        let prepared = task.prepare();
        let cost = prepared.cost();
        let space = Space::new(task.target, &prepared.context, &task.restrictions);
        let surveyor = Surveyor { cost: &cost, layers: &prepared.layers, space: &space };
        let mut scratch = Scratch::default();
        let mut seen = 0usize;
        for group in space.groups() {
            surveyor.each(&group, &mut scratch, |alike| {
                for (&recompute, evaluated) in alike.modes.iter().zip(alike.plans) {
                    seen += 1;
                    if seen % 1_009 != 0 {
                        continue;
                    }
                    let layout = alike.layout;
                    let layers = prepared.layers.count();
                    let chunks = even_chunks(layers, layout.chunk_count(), recompute);
                    let job = &task.job;
                    let plan = Plan::new(layout, chunks, job.gpus, job.global_batch_size, layers).unwrap();
                    assert_eq!(legal_plan(task.target, &prepared.context, &plan), Ok(()), "{plan}");
                    let predicted = predict(&cost, &prepared.layers, &plan);
                    let fullest = predicted.memory.iter().map(RankMemory::total).max().unwrap();
                    assert_eq!(evaluated.memory.total(), fullest, "{}: {plan}", task.model.name);
                    assert!(
                        predicted.memory.contains(&evaluated.memory),
                        "{}: {plan}: {:?}",
                        task.model.name,
                        evaluated.memory
                    );
                    // Everything that does not depend on the order of passes is the same.
                    let ordered = [
                        StepItem::PipelineBubble,
                        StepItem::WeightGather,
                        StepItem::GradientReduction,
                        StepItem::Stragglers,
                    ]
                    .map(|item| item as usize);
                    for item in (0..STEP_ITEMS).filter(|item| !ordered.contains(item)) {
                        assert_eq!(evaluated.times.0[item], predicted.times.0[item], "{item}: {plan}");
                    }
                    let ratio = evaluated.times.total().0 as f64 / predicted.step().0 as f64 - 1.0;
                    // Only interleaved chunks that differ leave the closed form.
                    let most = if layout.virtual_stages > 1 { 0.15 } else { 1e-3 };
                    assert!(ratio.abs() < most, "{plan}: {ratio}");
                    compared += 1;
                }
            });
        }
    }
    assert!(compared > 1_000, "{compared}");
}

#[test]
fn what_a_survey_says_adds_up_and_does_not_depend_on_threads() {
    let job = ["survey", "llama3.2-1b", "dgx-a100", "--gpus", "8", "-b", "32", "-s", "4096"];
    let one = autoplan(&[&job[..], &["--format", "json", "--threads", "1"]].concat());
    let two = autoplan(&[&job[..], &["--format", "json", "--threads", "2"]].concat());
    assert!(one.status.success() && one.stdout == two.stdout);
    let survey: serde_json::Value = serde_json::from_slice(&one.stdout).unwrap();
    let number = |value: &serde_json::Value| value.as_u64().unwrap();
    assert!(number(&survey["plans"]) > 10_000 && number(&survey["fitting"]) <= number(&survey["plans"]));
    let axes = survey["axes"].as_object().unwrap();
    for (axis, values) in axes {
        let values = values.as_array().unwrap();
        let sum = |of: &str| values.iter().map(|value| number(&value[of])).sum::<u64>();
        // Every plan has one value of each axis, and the best plan the best value.
        assert_eq!(
            (sum("plans"), sum("fitting")),
            (number(&survey["plans"]), number(&survey["fitting"])),
            "{axis}"
        );
        let best = values.iter().filter_map(|value| value["best"]["step_time_s"].as_f64());
        assert_eq!(best.reduce(f64::min), survey["best"]["step_time_s"].as_f64(), "{axis}");
    }
    // What may be had of the space is at least what is best with equal stages, to the closed form's error.
    let plan = autoplan(&[&["plan"], &job[1..], &["--format", "json", "--top", "1"]].concat());
    let plan: serde_json::Value = serde_json::from_slice(&plan.stdout).unwrap();
    let step = plan["plans"][0]["step_time_s"].as_f64().unwrap();
    assert!((survey["best"]["step_time_s"].as_f64().unwrap() / step - 1.0).abs() < 0.02, "{step}");
    // How far the closed form may be off is said where plans differ in what it is off for.
    let said = |more: &[&str]| {
        let survey = autoplan(&[&job[..], more].concat());
        String::from_utf8(survey.stdout).unwrap().contains("Of several virtual stages")
    };
    assert!(said(&["--fix", "pp=2"]) && !said(&["--fix", "pp=2,vpp=2"]));
    // Interrupted it says so, and of what.
    let none = autoplan(&[&job[..], &["--fix", "mb=64"]].concat());
    assert_eq!(none.status.code(), Some(1));
    let offload = autoplan(&[&job[..], &["--fix", "offload=optimizer"]].concat());
    assert_eq!(offload.status.code(), Some(2));
}
