//! The verifier: every plan that the search finds passes, and every kind of error is noticed by the
//! check that is there for it.

use std::sync::LazyLock;

use autoplan::candidates::Axis;
use autoplan::check::{CHECKS, Given, Outcome, Report, check};
use autoplan::cost::Item;
use autoplan::cost::step::{Prediction, StepItem};
use autoplan::frameworks::Target;
use autoplan::frameworks::profile::{OffloadedActivations, Profile};
use autoplan::plan::{
    Chunk, ContextComm, CudaGraphs, Layout, Modules, Offload, Place, Plan, Recompute, Schedule,
};
use autoplan::planner::Task;
use autoplan::search::{Request, Silent};
use autoplan::spec;
use autoplan::spec::job::{Optimizer, Precision, Routing, Training};
use autoplan::spec::model::Mtp;
use autoplan::units::{Bytes, Picos};
use proptest::prelude::*;

/// A job in one line: model, cluster, GPUs, batch, tokens of a sequence, framework.
fn task(model: &str, cluster: &str, gpus: u32, batch: u32, length: u32, framework: &str) -> Task {
    let target: Target = framework.parse().unwrap();
    let (profile_name, profile) = Profile::of(target);
    let task = Task::shipped(model, cluster, gpus, batch, length).unwrap();
    Task { target, profile, profile_name, ..task }
}

/// A layout of plain choices.
fn layout(tp: u32, pp: u32, vpp: u32, dp: u32, micro_batches: u32) -> Layout {
    Layout {
        tensor_parallel: tp,
        pipeline_parallel: pp,
        virtual_stages: vpp,
        context_parallel: 1,
        expert_parallel: 1,
        expert_tensor_parallel: 1,
        data_parallel: dp,
        sequence_parallel: tp > 1,
        micro_batch_size: 1,
        gradient_accumulation_steps: micro_batches,
        zero_stage: 1,
        shard_group: dp,
        schedule: if vpp > 1 { Schedule::Interleaved } else { Schedule::OneFOneB },
        context_comm: ContextComm::Ring,
        dispatcher: None,
        tensor_overlap: false,
        data_overlap: true,
        expert_overlap: false,
        shared_overlap: false,
        mtp_standalone: false,
        cuda_graphs: CudaGraphs::None,
        offload: Offload::NONE,
    }
}

fn chunks(layers: &[u32], recompute: Recompute) -> Vec<Chunk> {
    layers.iter().map(|&layers| Chunk { layers, recompute }).collect()
}

/// Llama-3.1 70B on 64 H100: 4 stages of two chunks.
static TASK: LazyLock<Task> = LazyLock::new(|| task("llama3.1-70b", "dgx-h100", 64, 128, 4096, "megatron"));
const SPLIT: [u32; 8] = [10, 10, 10, 10, 10, 10, 10, 10];

fn plan_of(task: &Task, layout: Layout, layers: &[u32], recompute: Recompute) -> Plan {
    let total = task.model.layer_count();
    let (gpus, batch) = (task.job.gpus, task.job.global_batch_size);
    Plan::new(layout, chunks(layers, recompute), gpus, batch, total).unwrap()
}

fn good() -> (Plan, Prediction) {
    let plan = plan_of(&TASK, layout(4, 4, 2, 4, 32), &SPLIT, Recompute::None);
    let prediction = TASK.prepare().predict(&plan);
    (plan, prediction)
}

fn report(plan: &Plan, prediction: &Prediction) -> Report {
    TASK.prepare().check(plan, prediction)
}

fn failed(report: &Report) -> Vec<&'static str> {
    report.failures().map(|check| check.name).collect()
}

/// The check notices, and says what it derived and what it found.
fn noticed(report: &Report, name: &str) {
    assert!(CHECKS.iter().any(|(known, _)| *known == name), "{name} is no check");
    match report.outcome(name) {
        Some(Outcome::Failed { what, expected, found }) => {
            assert!(!what.is_empty() && expected != found, "{name}: {what}: {expected}, {found}");
        }
        other => panic!("{name} is {other:?}; failed: {:?}", failed(report)),
    }
    assert!(!report.passed());
    assert!(report.to_string().contains(name));
}

#[test]
fn a_good_plan_passes_every_check() {
    let (plan, prediction) = good();
    let report = report(&plan, &prediction);
    assert!(report.passed(), "{report}");
    assert_eq!(report.checks.len(), CHECKS.len());
    assert!(report.to_string().contains("all"));
}

#[test]
fn a_moved_layer_is_noticed() {
    let (_, prediction) = good();
    let moved = [11, 10, 10, 10, 10, 10, 10, 9];
    let plan = plan_of(&TASK, layout(4, 4, 2, 4, 32), &moved, Recompute::None);
    let report = report(&plan, &prediction);
    for name in ["stage-forward", "stage-backward", "memory-weights", "memory-activations", "makespan"] {
        noticed(&report, name);
    }
}

#[test]
fn a_lost_layer_is_noticed() {
    let (_, prediction) = good();
    let lost = chunks(&[10, 10, 10, 10, 10, 10, 10, 9], Recompute::None);
    let plan = Plan::new(layout(4, 4, 2, 4, 32), lost, 64, 128, 79).unwrap();
    noticed(&report(&plan, &prediction), "layers");
}

#[test]
fn degrees_and_batch_of_another_job_are_noticed() {
    let (_, prediction) = good();
    let plan =
        |layout, gpus, batch| Plan::new(layout, chunks(&SPLIT, Recompute::None), gpus, batch, 80).unwrap();
    noticed(&report(&plan(layout(4, 4, 2, 2, 64), 32, 128), &prediction), "degrees");
    noticed(&report(&plan(layout(4, 4, 2, 4, 16), 64, 64), &prediction), "batch");
    let zero = Layout { zero_stage: 0, ..layout(4, 4, 2, 4, 32) };
    noticed(&report(&plan(zero, 64, 128), &prediction), "shard-group");
    let folded = Layout { schedule: Schedule::ZeroBubbleH1, ..layout(4, 4, 2, 4, 32) };
    noticed(&report(&plan(folded, 64, 128), &prediction), "chunks");
    // Eight ranks of experts that do not divide the block are refused by the plan itself; experts that
    // do not divide are found here.
    let experts = task("mixtral-8x7b", "dgx-h100", 48, 48, 4096, "megatron");
    let uneven = Layout { expert_parallel: 3, ..layout(2, 2, 1, 12, 4) };
    let plan = plan_of(&experts, uneven, &[16, 16], Recompute::None);
    noticed(&experts.prepare().check(&plan, &prediction), "expert-mesh");
}

#[test]
fn a_layout_that_the_framework_refuses_is_noticed() {
    // Sequence parallelism without tensor parallelism.
    let mut roomy = TASK.clone();
    roomy.job.memory_limit = Some(Bytes(1 << 40));
    let illegal = Layout { sequence_parallel: true, ..layout(1, 8, 1, 8, 16) };
    let plan = plan_of(&TASK, illegal, &[10; 8], Recompute::FullUniform(1));
    let prediction = roomy.prepare().predict(&plan);
    let report = roomy.prepare().check(&plan, &prediction);
    noticed(&report, "framework-rules");
    // Whatever else it may be, it is right about time and memory.
    assert_eq!(failed(&report), ["framework-rules"]);
}

#[test]
fn chunks_in_another_order_are_noticed() {
    let (plan, mut prediction) = good();
    prediction.chunks.swap(0, 1);
    noticed(&report(&plan, &prediction), "chunk-ranks");
    let (plan, mut prediction) = good();
    // The same ranks, but the first and the last round exchanged: the head would come first.
    for k in 0..4 {
        prediction.chunks.swap(k, k + 4);
    }
    noticed(&report(&plan, &prediction), "stage-forward");
    let (plan, mut prediction) = good();
    prediction.chunks.pop();
    noticed(&report(&plan, &prediction), "chunk-ranks");
    let (plan, mut prediction) = good();
    prediction.memory.pop();
    noticed(&report(&plan, &prediction), "memory-total");
}

#[test]
fn every_lowered_or_raised_memory_item_is_noticed() {
    for raise in [false, true] {
        for (item, name) in [
            (0, "memory-weights"),
            (1, "memory-gradients"),
            (2, "memory-optimizer"),
            (3, "memory-activations"),
            (4, "memory-transient"),
            (5, "memory-pools"),
            (6, "memory-buffers"),
        ] {
            let (plan, mut prediction) = good();
            let rank = &mut prediction.memory[2];
            let bytes = [
                &mut rank.weights,
                &mut rank.gradients,
                &mut rank.optimizer,
                &mut rank.activations,
                &mut rank.transient,
                &mut rank.pools,
                &mut rank.buffers,
            ];
            let bytes = &mut bytes.into_iter().nth(item).unwrap().0;
            // One part in ten thousand.
            let change = *bytes / 10_000 + 8192;
            *bytes = if raise { *bytes + change } else { *bytes - change };
            let report = report(&plan, &prediction);
            noticed(&report, name);
        }
    }
}

#[test]
fn one_micro_batch_more_or_less_in_flight_is_noticed() {
    // Rank 0 of 1F1B holds four micro-batches.
    let plan = plan_of(&TASK, layout(4, 4, 1, 4, 32), &[20; 4], Recompute::None);
    let prediction = TASK.prepare().predict(&plan);
    assert!(report(&plan, &prediction).passed());
    for held in [3, 5] {
        let mut wrong = prediction.clone();
        let rank = &mut wrong.memory[0].activations;
        *rank = Bytes(rank.0 * held / 4);
        noticed(&report(&plan, &wrong), "memory-activations");
    }
}

#[test]
fn wrong_totals_of_memory_are_noticed() {
    let (plan, prediction) = good();
    let mut wrong = prediction.clone();
    wrong.allocated = Bytes(wrong.allocated.0 - 1_000_000_000);
    noticed(&report(&plan, &wrong), "memory-total");
    let mut wrong = prediction.clone();
    wrong.reserved = wrong.allocated;
    noticed(&report(&plan, &wrong), "memory-total");
    let mut wrong = prediction;
    wrong.device = wrong.reserved;
    noticed(&report(&plan, &wrong), "memory-total");
}

#[test]
fn a_rank_over_the_limit_is_noticed() {
    let (plan, prediction) = good();
    let mut small = TASK.clone();
    small.job.memory_limit = Some(Bytes(prediction.allocated.0 - 10_000_000));
    let report = small.prepare().check(&plan, &prediction);
    noticed(&report, "memory-limit");
    assert_eq!(failed(&report), ["memory-limit"]);
    small.job.memory_limit = Some(prediction.allocated);
    assert!(small.prepare().check(&plan, &prediction).passed());
}

#[test]
fn a_changed_stage_time_is_noticed() {
    let (plan, prediction) = good();
    let mut wrong = prediction.clone();
    wrong.chunks[3].forward.add(Item::Gemm, Picos(1_000_000));
    noticed(&report(&plan, &wrong), "stage-forward");
    let mut wrong = prediction.clone();
    wrong.chunks[5].backward.0[Item::ElementWise as usize].0 -= 1_000_000;
    noticed(&report(&plan, &wrong), "stage-backward");
    let mut wrong = prediction;
    wrong.chunks[1].messages += Picos(1);
    noticed(&report(&plan, &wrong), "stage-messages");
}

#[test]
fn a_changed_item_of_the_step_is_noticed() {
    let (plan, prediction) = good();
    for (item, name) in [
        (Item::Gemm as usize, "bottleneck"),
        (Item::TensorParallel as usize, "bottleneck"),
        (StepItem::PipelineBubble as usize, "makespan"),
        (StepItem::WeightGather as usize, "tail"),
        (StepItem::GradientReduction as usize, "tail"),
        (StepItem::OptimizerUpdate as usize, "tail"),
        (StepItem::StepOverhead as usize, "tail"),
        (StepItem::Stragglers as usize, "tail"),
    ] {
        let mut wrong = prediction.clone();
        wrong.times.0[item] += Picos(1_000_000_000);
        let report = report(&plan, &wrong);
        noticed(&report, name);
        // A step that takes a millisecond more than its parts.
        noticed(&report, "total");
    }
    // A microsecond moved from one item to another leaves the total as it was.
    let mut wrong = prediction;
    wrong.times.0[Item::Gemm as usize].0 -= 1_000_000;
    wrong.times.0[StepItem::PipelineBubble as usize].0 += 1_000_000;
    let report = report(&plan, &wrong);
    assert_eq!(failed(&report), ["bottleneck", "idle"]);
}

#[test]
fn a_changed_recomputation_is_noticed() {
    let (plan, prediction) = good();
    let full = plan_of(&TASK, *plan.layout(), &SPLIT, Recompute::FullUniform(1));
    let report = report(&full, &prediction);
    noticed(&report, "stage-backward");
    noticed(&report, "memory-activations");
}

#[test]
fn another_recipe_is_noticed() {
    // The same plan with less sharding, another optimizer, another number format.
    let (plan, prediction) = good();
    let less = plan_of(&TASK, Layout { shard_group: 2, ..*plan.layout() }, &SPLIT, Recompute::None);
    noticed(&report(&less, &prediction), "memory-optimizer");
    let mut other = TASK.clone();
    other.job.optimizer = Optimizer::AdamwBf16;
    noticed(&other.prepare().check(&plan, &prediction), "memory-optimizer");
    other.job.precision = Precision::Fp8;
    noticed(&other.prepare().check(&plan, &prediction), "memory-weights");
    let mut adapters = TASK.clone();
    adapters.job.training = Training::Lora { rank: 16 };
    noticed(&adapters.prepare().check(&plan, &prediction), "memory-gradients");
    // Another model of the same shape but one more norm per layer.
    let mut normed = TASK.clone();
    normed.model.blocks.values_mut().for_each(|block| block.norms += 1);
    noticed(&normed.prepare().check(&plan, &prediction), "memory-weights");
}

/// Searches a job and checks what is found.
fn all_pass(task: &Task, top: usize) -> usize {
    let prepared = task.prepare();
    let answer = prepared.search(&Request { top, ..Request::default() }, &Silent);
    for found in &answer.found {
        let report = prepared.check(&found.plan, &found.prediction);
        let job = format!("{} under {} ({})", task.model.name, task.target, task.job.precision.name());
        assert!(report.passed(), "{job}: {}\n{report}", found.plan);
    }
    answer.found.len()
}

#[test]
fn plans_of_a_search_pass() {
    let full =
        |model, cluster, gpus, batch, length, framework| task(model, cluster, gpus, batch, length, framework);
    let mut jobs = vec![
        full("llama3.1-8b", "dgx-h100", 16, 32, 4096, "megatron"),
        full("mixtral-8x7b", "dgx-h100", 32, 32, 4096, "megatron"),
        full("deepseek-v2-lite", "h800-ib", 8, 8, 4096, "megatron"),
        full("nemotron-h-8b", "dgx-h100", 16, 16, 8192, "megatron"),
        full("gemma2-27b", "dgx-h200", 32, 16, 4096, "megatron"),
        full("gpt-oss-20b", "dgx-b200", 16, 32, 4096, "bridge"),
        full("llama3.1-8b", "dgx-h100", 16, 32, 4096, "torchtitan"),
        full("qwen3-8b", "dgx-h100", 16, 32, 4096, "deepspeed"),
        full("llama3.2-3b", "dgx-a100", 8, 16, 4096, "accelerate"),
        full("llama2-7b", "dgx-a100", 16, 32, 4096, "nanotron"),
        full("llama2-13b", "dgx-a100", 16, 32, 4096, "internevo"),
        full("llama2-13b", "dgx-a100", 16, 32, 4096, "llm-foundry"),
    ];
    let with = |job: usize, change: &dyn Fn(&mut Task)| {
        let mut task = jobs[job].clone();
        change(&mut task);
        task
    };
    let more = vec![
        with(0, &|t| t.job.precision = Precision::Fp8),
        with(5, &|t| t.job.precision = Precision::Mxfp8),
        with(1, &|t| t.job.routing = Routing::Natural),
        with(0, &|t| t.job.optimizer = Optimizer::Muon),
        with(0, &|t| t.job.optimizer = Optimizer::Adam8bit),
        with(0, &|t| t.job.training = Training::Lora { rank: 32 }),
        with(2, &|t| t.job.training = Training::Lora { rank: 8 }),
        with(6, &|t| t.restrictions.zero_stage = Axis { only: Some(vec![3]), max: None }),
        with(6, &|t| t.restrictions.schedule = Some(vec![Schedule::ZeroBubbleV])),
        with(0, &|t| {
            let optimizer = Offload { optimizer: Place::Cpu, ..Offload::NONE };
            t.restrictions.offload = Some(vec![optimizer, Offload { activations: true, ..Offload::NONE }]);
        }),
        with(0, &|t| t.job.memory_limit = Some(Bytes(22_000_000_000))),
    ];
    jobs.extend(more);
    let found: usize = jobs.iter().map(|job| all_pass(job, 6)).sum();
    assert!(found > 60, "only {found} plans were found");
}

/// Layouts beyond what a search would choose.
fn any_layout() -> impl Strategy<Value = (Layout, Recompute, u64, usize)> {
    let degrees = (0u32..4, 0u32..4, 1u32..4, 0u32..3, 0u32..3, 1u32..4);
    let flags = (0usize..7, 0u8..4, any::<[bool; 5]>(), 0usize..3, 0usize..3);
    (degrees, flags, 0usize..12, any::<u64>(), 0usize..5).prop_map(|(degrees, flags, mode, seed, profile)| {
        let (tp, pp, vpp, dp, ep, rounds) = degrees;
        let (tp, pp, dp) = (1 << tp, 1 << pp, 1 << dp);
        let (schedule, zero_stage, [sp, overlap, data, offload, gather], comm, cp) = flags;
        let schedule = [
            Schedule::OneFOneB,
            Schedule::GPipe,
            Schedule::Interleaved,
            Schedule::ZeroBubbleH1,
            Schedule::ZeroBubbleH2,
            Schedule::ZeroBubbleV,
            Schedule::DualPipe,
        ][schedule];
        let schedule =
            if pp == 1 && schedule == Schedule::Interleaved { Schedule::OneFOneB } else { schedule };
        let virtual_stages = match schedule {
            Schedule::Interleaved => vpp + 1,
            Schedule::ZeroBubbleV | Schedule::DualPipe => 2,
            _ => 1,
        };
        let context_parallel = [1, 2, 4][cp];
        let replicas = dp * context_parallel;
        let layout = Layout {
            context_parallel,
            expert_parallel: (1 << ep).min(tp * replicas),
            virtual_stages,
            schedule,
            zero_stage,
            shard_group: if zero_stage == 0 { 1 } else { replicas >> (seed % 2).min(replicas as u64 / 2) },
            sequence_parallel: sp && tp > 1,
            tensor_overlap: overlap && sp && tp > 1,
            data_overlap: data,
            context_comm: [ContextComm::Ring, ContextComm::AllGather, ContextComm::AllToAll][comm],
            offload: Offload { activations: offload, ..Offload::NONE },
            dispatcher: Some(if gather {
                autoplan::plan::Dispatcher::AllGather
            } else {
                autoplan::plan::Dispatcher::DeepEp
            }),
            ..layout(tp, pp, 1, dp, pp * rounds + (seed % 5) as u32)
        };
        let recompute = match mode {
            0..3 => Recompute::None,
            3..8 => Recompute::Selective(Modules((seed as u8 & 0x7f).max(1))),
            8 => Recompute::Selective(Modules(0x80)),
            9 => Recompute::FullBlock(1 + (seed % 3) as u32),
            10 => Recompute::FullUniform(1),
            _ => Recompute::FullUniform(2 + (seed % 3) as u32),
        };
        (layout, recompute, seed, profile)
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() })]
    /// Whatever a framework may say about it, derived and predicted values of any plan agree.
    #[test]
    fn derivation_and_prediction_agree((layout, recompute, seed, profile) in any_layout()) {
        const MODELS: [&str; 8] = [
            "llama3.2-1b", "mixtral-8x7b", "deepseek-v2-lite", "nemotron-h-8b",
            "deepseek-v3", "gpt3-175b", "gpt-oss-20b", "olmo2-32b",
        ];
        const PROFILES: [&str; 5] = ["megatron", "torchtitan", "nemo", "nanotron", "deepspeed"];
        let model = MODELS[(seed >> 8) as usize % MODELS.len()];
        let mut task = task(model, "dgx-h100", 1, 1, 4096, "megatron");
        task.profile = Profile::find(PROFILES[profile]).unwrap();
        task.job.precision = [Precision::Bf16, Precision::Fp8, Precision::Fp16][(seed >> 16) as usize % 3];
        task.job.routing = if seed >> 24 & 1 == 1 { Routing::Natural } else { Routing::Balanced };
        task.job.optimizer = [Optimizer::Adamw, Optimizer::Muon, Optimizer::Adam8bit][(seed >> 25) as usize % 3];
        if seed >> 28 & 7 == 0 {
            task.job.training = Training::Lora { rank: 16 };
        }
        task.job.gpus = layout.gpus() as u32;
        task.job.global_batch_size = layout.global_batch_size() as u32;
        let experts = task.model.blocks.values().any(|b| {
            matches!(b.feed_forward, spec::model::FeedForward::Moe(_))
        });
        let plain = Layout { expert_parallel: 1, dispatcher: None, ..layout };
        let layout = if experts { layout } else { plain };
        // Further predictions, on a chunk of their own or with the head.
        if seed >> 40 & 3 == 0 {
            let block = task.model.layers[0].of[0].clone();
            task.model.mtp = Some(Mtp { modules: 1 + (seed >> 42 & 1) as u32, block });
        }
        let standalone = task.model.mtp.is_some() && layout.chunk_count() > 1 && seed >> 43 & 1 == 1;
        let layout = Layout { mtp_standalone: standalone, ..layout };
        // Layers anywhere, some chunks empty.
        let total = task.model.layer_count();
        let mut left = total;
        let count = layout.chunk_count();
        let mut layers: Vec<u32> = Vec::new();
        let mut dice = seed | 1;
        for k in 0..count {
            dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let fair = total.div_ceil(count);
            let next = if k + 1 + u32::from(standalone) >= count { left } else { ((dice >> 33) as u32 % (2 * fair + 1)).min(left) };
            layers.push(next);
            left -= next;
        }
        // No framework that offloads what layers keep recomputes groups of layers beside it.
        let kept = task.profile.memory.offloaded_activations == OffloadedActivations::Kept;
        let recompute = match recompute {
            Recompute::FullUniform(_) if kept && layout.offload.activations => Recompute::FullUniform(1),
            recompute => recompute,
        };
        let plan = plan_of(&task, layout, &layers, recompute);
        let prepared = task.prepare();
        let prediction = prepared.predict(&plan);
        let report = prepared.check(&plan, &prediction);
        let beyond = ["framework-rules", "memory-limit", "off-gpu-limit"];
        let wrong: Vec<_> = failed(&report).into_iter().filter(|name| !beyond.contains(name)).collect();
        prop_assert!(wrong.is_empty(), "{model} {plan} {layers:?}\n{report}");
    }
}

#[test]
fn a_million_passes_are_replayed() {
    let job = task("llama3.1-405b", "dgx-h100", 128, 16_384, 4096, "megatron");
    let layers: Vec<u32> = (0..64).map(|k| if k == 0 || k == 63 { 1 } else { 2 }).collect();
    let plan = plan_of(&job, layout(8, 16, 4, 1, 16_384), &layers, Recompute::FullUniform(1));
    let prepared = job.prepare();
    let prediction = prepared.predict(&plan);
    let report = prepared.check(&plan, &prediction);
    for name in ["order", "makespan", "bottleneck", "bounds", "total", "memory-activations"] {
        assert_eq!(report.outcome(name), Some(&Outcome::Passed), "{name}: {report}");
    }
}

fn autoplan(arguments: &[&str]) -> (Option<i32>, String, String) {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_autoplan"));
    let output = command.args(arguments).env("NO_COLOR", "1").output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
fn the_command_says_what_does_not_hold() {
    let job = ["llama3.2-1b", "dgx-a100", "-g", "8", "-b", "32", "-s", "2048"];
    let (code, saved, _) = autoplan(&[&["plan"], &job[..], &["--top", "1", "--format", "ron"]].concat());
    assert_eq!(code, Some(0));
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let run = |path: &str, format: &str| autoplan(&["check", path, "--format", format]);

    let good = file("good.ron", &saved);
    let (code, out, _) = run(&good, "table");
    assert_eq!(code, Some(0), "{out}");
    assert!(out.starts_with("all 30 checks passed: tp") && out.contains("taken as given"), "{out}");
    let (code, out, _) = run(&good, "json");
    let value: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, &value["passed"]), (Some(0), &serde_json::Value::Bool(true)));
    assert_eq!(value["checks"].as_array().unwrap().len(), CHECKS.len());

    // Less memory than the plan takes: a check fails, and nothing is exported.
    assert!(saved.contains("memory_limit: None"));
    let tight = file("tight.ron", &saved.replace("memory_limit: None", "memory_limit: Some(1000000000)"));
    let (code, out, _) = run(&tight, "json");
    let value: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, &value["passed"]), (Some(1), &serde_json::Value::Bool(false)));
    let limit = value["checks"].as_array().unwrap().iter().find(|c| c["name"] == "memory-limit").unwrap();
    assert_eq!(limit["outcome"], "failed");
    let (code, out, error) = autoplan(&["export", &tight, "--to", "megatron"]);
    assert_eq!((code, out.as_str()), (Some(2), ""));
    assert!(error.contains("does not fit") && error.contains("of 1.0 GB"), "{error}");

    // A figure that was not predicted.
    let from = saved.find("predicted_step_s: ").unwrap();
    let to = from + saved[from..].find(',').unwrap();
    let boast = format!("{}predicted_step_s: 0.001{}", &saved[..from], &saved[to..]);
    let boast = file("boast.ron", &boast);
    let (code, out, _) = run(&boast, "table");
    assert_eq!(code, Some(1));
    assert!(out.contains("states predicted_step_s = 0.001"), "{out}");
    // Nor a name that is another plan's.
    assert!(saved.contains("name: \"tp1 pp1"));
    let alias = file("alias.ron", &saved.replace("name: \"tp1 pp1", "name: \"tp8 pp1"));
    let (code, out, _) = run(&alias, "json");
    let value: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, &value["stated"][0]["agrees"]), (Some(1), &serde_json::Value::Bool(false)), "{out}");
    // Who predicts such a plan anew is told.
    for (arguments, wrong) in [
        (&["explain", "--alone", &boast][..], &["boast.ron: the file states predicted_step_s = 0.001"][..]),
        (&["export", &alias, "--to", "megatron"], &["alias.ron: the file states name = \"tp8"]),
        (&["compare", &alias, &boast], &["states name = \"tp8", "states predicted_step_s"]),
        (&["compare", &good, &good], &[]),
    ] {
        let (code, _, error) = autoplan(arguments);
        assert_eq!((code, error.matches("the file states").count()), (Some(0), wrong.len()), "{error}");
        assert!(wrong.iter().all(|one| error.contains(one)), "{arguments:?}: {error}");
    }

    // What is no plan is bad input.
    let folded = file("folded.ron", &saved.replace("OneFOneB", "DualPipe"));
    for (path, message) in [(folded.as_str(), "DualPipe needs vpp 2"), ("nowhere.ron", "no such file")] {
        let (code, _, error) = run(path, "table");
        assert_eq!(code, Some(2), "{error}");
        assert!(error.contains(message), "{error}");
    }
}

/// The verifier alone, without a task around it.
#[test]
fn the_parts_of_a_task_suffice() {
    let (plan, prediction) = good();
    let given = Given {
        model: &TASK.model,
        machine: &TASK.machine,
        job: &TASK.job,
        target: TASK.target,
        profile: TASK.profile,
    };
    assert_eq!(check(&given, &plan, &prediction), report(&plan, &prediction));
}
