//! Dollars, energy and goodput against published runs, each within the error that its test states.

use autoplan::candidates::Axis;
use autoplan::cost::advice::{BatchRamp, ramp_cost};
use autoplan::cost::goodput::{
    Checkpointing, Goodput, IntervalRule, NoProgress, Writing, checkpoint_bytes, goodput,
};
use autoplan::cost::model::CostModel;
use autoplan::cost::money::{
    Pricing, Run, RunCost, energy, phased_cost, run_cost, step_cost, straggler_time, waste,
};
use autoplan::cost::step::StepItem;
use autoplan::cost::{CellKey, Item, LayerCost};
use autoplan::frameworks::Target;
use autoplan::frameworks::profile::Profile;
use autoplan::layers::{AttentionCount, Layers, model_flops, packed_model_flops, parameter_count};
use autoplan::plan::{Chunk, ContextComm, CudaGraphs, Layout, Offload, Place, Plan, Recompute};
use autoplan::planner::{Offloading, Task};
use autoplan::search::{Request, Silent};
use autoplan::spec::cluster::{Accelerator, Cluster};
use autoplan::spec::job::{Job, Optimizer, PackedLengths, Phase, Precision, Routing, Training};
use autoplan::spec::model::Model;
use autoplan::spec::ron_options;
use autoplan::units::{Bandwidth, Bytes, Dollars, DollarsPerHour, Picos, Seconds, Tokens, Watts};

fn read<T: serde::de::DeserializeOwned>(path: &str) -> T {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path:?}: {e}"));
    ron_options().from_str(&text).unwrap_or_else(|e| panic!("{path:?}: {e}"))
}

fn h100() -> (Cluster, Accelerator) {
    (read("clusters/dgx-h100.ron"), read("clusters/accelerators/h100-sxm.ron"))
}

fn a100() -> (Cluster, Accelerator) {
    (read("clusters/dgx-a100.ron"), read("clusters/accelerators/a100-80gb.ron"))
}

/// A dense model as its paper's table has it.
fn dense(layers: u32, h: u64, ffn: u64, heads: u64, kv: u64, vocabulary: u64, activation: &str) -> Model {
    let text = format!(
        "(schema: 1, name: \"dense\", hidden: {h}, vocabulary: {vocabulary}, max_sequence: 131072,
          blocks: {{\"layer\": (mixer: Attention(heads: {heads}, kv_heads: {kv}, head_dim: {}),
                               feed_forward: Dense(width: {ffn}, activation: {activation}))}},
          layers: [(repeat: {layers}, of: [\"layer\"])])",
        h / heads
    );
    ron_options().from_str(&text).unwrap()
}

fn llama3_405b() -> Model {
    dense(126, 16_384, 53_248, 128, 8, 128_256, "SwiGlu")
}

/// Step time at a published rate of model FLOP/s per GPU (half of the attention square counted).
fn step_at(model: &Model, phase: &Phase, gpus: u32, flops_per_gpu: f64) -> Picos {
    let (sequences, length) = (u64::from(phase.global_batch_size), u64::from(phase.sequence_length));
    let flops = model_flops(model, &Layers::new(model), sequences, length, AttentionCount::Causal);
    Seconds(flops.0 / (f64::from(gpus) * flops_per_gpu)).picos()
}

fn within(what: &str, found: f64, published: f64, percent: f64) {
    let error = 100.0 * (found / published - 1.0);
    assert!(error.abs() <= percent, "{what}: {found} against {published} published: {error:+.2} %");
}

fn checkpointing(model: &Model) -> Checkpointing {
    Checkpointing {
        bytes: checkpoint_bytes(parameter_count(model).total, 0, Optimizer::Adamw),
        writing: Writing::Asynchronous,
        interval: None,
    }
}

/// The Llama 3 report: 16,384 H100 at 400 TFLOP/s for 8k and 380 TFLOP/s for 128k sequences, 15.6T
/// tokens of which 800B at long context; more than 90 % of the time effective; 30.84M GPU-hours on
/// the model card.
#[test]
fn llama3_405b_takes_its_published_gpu_hours() {
    let (cluster, accelerator) = h100();
    let model = llama3_405b();
    assert_eq!(parameter_count(&model).total, 405_853_388_800);
    let phases = [("8192:2048:14.8T", 400e12), ("131072:128:800B", 380e12)].map(|(phase, rate)| {
        let phase: Phase = phase.parse().unwrap();
        let run = Run {
            cluster: &cluster,
            accelerator: &accelerator,
            gpus: 16_384,
            pricing: Pricing::Reserved,
            step: step_at(&model, &phase, 16_384, rate),
            stragglers: Picos::ZERO,
            tokens_per_step: phase.tokens_per_step(),
            checkpointing: checkpointing(&model),
        };
        (run, phase.tokens)
    });
    let cost = phased_cost(&phases).unwrap();
    within("GPU-hours", cost.gpu_hours, 30.84e6, 2.0);
    within("days", cost.days, 30.84e6 / 16_384.0 / 24.0, 2.0);
    for phase in &cost.phases {
        let ratio = phase.goodput.effective_training_time_ratio;
        assert!(ratio > 0.90 && ratio < 0.96, "{ratio}");
        assert_eq!(phase.goodput.checkpoint_interval_rule, IntervalRule::Optimum);
    }
    // 419 unexpected interruptions in 54 days.
    within("failures in 54 days", cost.phases[0].failures * 54.0 / cost.phases[0].days, 419.0, 1.0);
    println!(
        "Llama-3.1 405B: {:.2}M GPU-hours, {:.1} days, effective {:.3}",
        cost.gpu_hours / 1e6,
        cost.days,
        cost.phases[0].goodput.effective_training_time_ratio
    );
}

/// DeepSeek-V3: 19.926 s per step of 15,360 sequences of 4,096 on 2,048 H800 ("Insights into
/// DeepSeek-V3", table 4), 2.664M GPU-hours for 14.8T tokens, which its report prices at 2 dollars each.
#[test]
fn deepseek_v3_takes_its_published_gpu_hours() {
    let (cluster, accelerator): (Cluster, Accelerator) =
        (read("clusters/h800-ib.ron"), read("clusters/accelerators/h800.ron"));
    let run = Run {
        cluster: &cluster,
        accelerator: &accelerator,
        gpus: 2048,
        pricing: "2".parse().unwrap(),
        step: Seconds(19.926).picos(),
        stragglers: Picos::ZERO,
        tokens_per_step: Tokens(15_360 * 4096),
        checkpointing: Checkpointing {
            bytes: checkpoint_bytes(671_026_419_200, 0, Optimizer::AdamwBf16),
            writing: Writing::Asynchronous,
            interval: None,
        },
    };
    let cost = run_cost(&run, "14.8T".parse().unwrap()).unwrap();
    within("GPU-hours", cost.gpu_hours, 2.664e6, 3.0);
    within("dollars", cost.dollars.total.0, 5.328e6, 3.0);
    within("hours per trillion tokens", cost.gpu_hours / 14.8, 180e3, 3.0);
    println!("DeepSeek-V3: {:.3}M GPU-hours, {}", cost.gpu_hours / 1e6, cost.dollars.total);
}

/// LLaMA 65B ran at 380 tokens per second and A100 (its report, section 2.4) and took 1,022,362 hours
/// for 1.4T tokens. Llama-2 70B has no published speed: the same model FLOP/s carry over.
#[test]
fn llama_and_llama2_take_their_published_gpu_hours() {
    let (cluster, accelerator) = a100();
    let hours = |model: &Model, sequence: u32, tokens: &str, step: Picos, batch: u32| {
        let run = Run {
            cluster: &cluster,
            accelerator: &accelerator,
            gpus: 2048,
            pricing: Pricing::OnDemand,
            step,
            stragglers: Picos::ZERO,
            tokens_per_step: Tokens(u64::from(batch) * u64::from(sequence)),
            checkpointing: checkpointing(model),
        };
        run_cost(&run, tokens.parse().unwrap()).unwrap()
    };
    let llama1 = dense(80, 8192, 22_016, 64, 64, 32_000, "SwiGlu");
    let step = Seconds(2048.0 * 2048.0 / (2048.0 * 380.0)).picos();
    let first = hours(&llama1, 2048, "1.4T", step, 2048);
    within("LLaMA 65B", first.gpu_hours, 1_022_362.0, 3.0);

    let flops = |model: &Model, length| {
        model_flops(model, &Layers::new(model), 1, length, AttentionCount::Causal).0 / length as f64
    };
    let rate = 380.0 * flops(&llama1, 2048);
    let llama2 = dense(80, 8192, 28_672, 64, 8, 32_000, "SwiGlu");
    let phase: Phase = "4096:1024:2T".parse().unwrap();
    let second = hours(&llama2, 4096, "2T", step_at(&llama2, &phase, 2048, rate), 1024);
    within("Llama-2 70B", second.gpu_hours, 1_720_320.0, 8.0);
    println!("LLaMA 65B {:.0}, Llama-2 70B {:.0} GPU-hours", first.gpu_hours, second.gpu_hours);
}

/// OPT-175B: 992 A100 at 147 TFLOP/s, recomputation counted (its report, section 2.4), batches of 2M
/// tokens, 300B tokens; 809,472 GPU-hours and 356 MWh at 400 W and PUE 1.1 (LLaMA report, table 15).
/// Those hours are training time: the two months of wall time held over a hundred restarts.
#[test]
fn opt_175b_takes_its_published_gpu_hours_and_energy() {
    let (mut cluster, accelerator) = a100();
    let (b, s, l, h, v) = (1024.0, 2048.0, 96.0, 12_288.0, 50_272.0);
    let hardware_flops = 96.0 * b * s * l * h * h * (1.0 + s / (6.0 * h) + v / (16.0 * l * h));
    let run = Run {
        cluster: &cluster,
        accelerator: &accelerator,
        gpus: 992,
        pricing: Pricing::OnDemand,
        step: Seconds(hardware_flops / (992.0 * 147e12)).picos(),
        stragglers: Picos::ZERO,
        tokens_per_step: Tokens(1024 * 2048),
        checkpointing: Checkpointing {
            bytes: checkpoint_bytes(175_000_000_000, 0, Optimizer::Adamw),
            writing: Writing::Asynchronous,
            interval: None,
        },
    };
    let cost = run_cost(&run, "300B".parse().unwrap()).unwrap();
    let hours = 992.0 * cost.time.training.0 / 3600.0;
    within("training hours", hours, 809_472.0, 1.0);
    println!("OPT-175B: {hours:.0} GPU-hours of training, {:.0} with losses", cost.gpu_hours);

    cluster.energy.utilisation = 1.0;
    cluster.energy.host_per_gpu = Watts(0.0);
    cluster.energy.pue = 1.1;
    let used = energy(&cluster, &accelerator, 992, Seconds(809_472.0 * 3600.0 / 992.0));
    within("energy", used.total.0, 356e6, 0.1);
}

fn example<'a>(cluster: &'a Cluster, accelerator: &'a Accelerator, gpus: u32) -> Run<'a> {
    let step = Seconds(6.5).picos();
    Run {
        cluster,
        accelerator,
        gpus,
        pricing: Pricing::OnDemand,
        step,
        stragglers: straggler_time(step, 1.02),
        tokens_per_step: Tokens(1 << 24),
        checkpointing: Checkpointing {
            bytes: checkpoint_bytes(405_853_388_800, 0, Optimizer::Adamw),
            writing: Writing::Asynchronous,
            interval: None,
        },
    }
}

fn shares(g: &Goodput) -> f64 {
    g.effective_training_time_ratio + g.checkpoint_share + g.lost_work_share + g.restart_share
}

#[test]
fn items_add_up_to_every_total() {
    let (cluster, accelerator) = h100();
    for gpus in [8, 1024, 16_384, 100_000] {
        for pricing in ["on-demand", "reserved", "3.5", "0.4+power"] {
            let run = Run { pricing: pricing.parse().unwrap(), ..example(&cluster, &accelerator, gpus) };
            let c: RunCost = run_cost(&run, "1T".parse().unwrap()).unwrap();
            assert!((shares(&c.goodput) - 1.0).abs() < 1e-12);
            let t = &c.time;
            assert_eq!(t.total, t.training + t.stragglers + t.checkpoints + t.lost_work + t.restarts);
            let d = &c.dollars;
            let sum = d.training + d.stragglers + d.checkpoints + d.lost_work + d.restarts;
            assert_eq!(d.total, sum + d.electricity);
            let e = &c.energy;
            assert_eq!(e.total, e.accelerators + e.hosts + e.building);
            // Steps alone: the run without its losses.
            let bare = c.step.per_step * c.steps as f64 * (1.0 / c.goodput.effective_training_time_ratio);
            assert!((d.total / bare - 1.0).abs() < 1e-9, "{pricing}: {} against {bare}", d.total);
            assert!((t.training + t.stragglers) / (run.step.seconds() * c.steps as f64) - 1.0 < 1e-12);
            let electricity_extra = pricing.ends_with("power");
            assert_eq!(d.electricity.0 > 0.0, electricity_extra);
        }
    }
}

#[test]
fn larger_jobs_fail_more_and_save_more_often() {
    let (cluster, accelerator) = h100();
    let at = |gpus| run_cost(&example(&cluster, &accelerator, gpus), "1T".parse().unwrap()).unwrap();
    let costs = [256, 4096, 16_384, 65_536].map(at);
    for pair in costs.windows(2) {
        let (small, large) = (&pair[0].goodput, &pair[1].goodput);
        assert!(large.effective_training_time_ratio < small.effective_training_time_ratio);
        assert!(large.interval < small.interval);
    }
    // At a million GPUs a failure comes every three minutes; a restart takes five.
    let huge = example(&cluster, &accelerator, 1_000_000);
    assert!(run_cost(&huge, "1T".parse().unwrap()).unwrap().goodput.effective_training_time_ratio < 0.2);
    let error = run_cost(&Run { gpus: 4_000_000_000, ..huge }, "1T".parse().unwrap()).unwrap_err();
    assert!(matches!(error, NoProgress { gpus: 4_000_000_000, .. }));
    assert!(error.to_string().contains("makes no progress"), "{error}");
}

#[test]
fn slow_storage_and_waiting_for_it_cost_time() {
    let (mut cluster, accelerator) = h100();
    let of = |cluster: &Cluster, writing| {
        let run = example(cluster, &accelerator, 16_384);
        let checkpointing = Checkpointing { writing, ..run.checkpointing };
        goodput(cluster, 16_384, run.step.seconds(), &checkpointing).unwrap()
    };
    let fast = of(&cluster, Writing::Asynchronous);
    let waiting = of(&cluster, Writing::Synchronous);
    assert!(waiting.checkpoint_blocking > fast.checkpoint_blocking);
    assert!(waiting.effective_training_time_ratio < fast.effective_training_time_ratio);
    cluster.storage.total = Bandwidth(5e9);
    let slow = of(&cluster, Writing::Asynchronous);
    assert_eq!(slow.checkpoint_interval_rule, IntervalRule::Storage);
    assert!(slow.interval >= slow.checkpoint_write);
    assert!(slow.effective_training_time_ratio < fast.effective_training_time_ratio);
    // A given interval is kept to the step, and is never better than the optimum.
    let step = Seconds(6.5);
    let given =
        Checkpointing { bytes: Bytes(1), writing: Writing::Asynchronous, interval: Some(Seconds(3600.0)) };
    let hourly = goodput(&h100().0, 16_384, step, &given).unwrap();
    assert_eq!(hourly.checkpoint_interval_steps, 554);
    assert!(hourly.effective_training_time_ratio < fast.effective_training_time_ratio);
}

#[test]
fn prices_read_and_refuse() {
    let own = |text: &str| text.parse::<Pricing>();
    let rate = DollarsPerHour(2.5);
    assert_eq!(own("2.5"), Ok(Pricing::Own { per_gpu_hour: rate, electricity_extra: false }));
    assert_eq!(own("2.5USD/h"), own("2.5"));
    assert_eq!(own("2.5+power"), Ok(Pricing::Own { per_gpu_hour: rate, electricity_extra: true }));
    for bad in ["NaN", "inf", "-1", "", "cheap", "+power", "1e400"] {
        assert!(own(bad).is_err(), "{bad}");
    }
}

/// Dearer GPUs that are faster, and more GPUs for less time: time and dollars disagree.
#[test]
fn the_cheapest_run_is_not_the_fastest() {
    let (cluster, accelerator) = h100();
    let run = example(&cluster, &accelerator, 1024);
    // Twice the GPUs at 90 % scaling efficiency.
    let twice = Run { gpus: 2048, step: run.step.scale(0.5 / 0.9), ..run };
    let (small, large) =
        (run_cost(&run, Tokens(1 << 40)).unwrap(), run_cost(&twice, Tokens(1 << 40)).unwrap());
    assert!(large.days < small.days);
    assert!(large.dollars.total > small.dollars.total);
    assert!(step_cost(&twice).per_trillion_tokens > step_cost(&run).per_trillion_tokens);
}

#[test]
fn a_batch_ramp_costs_what_its_small_batches_lose() {
    let (cluster, accelerator) = h100();
    let full = example(&cluster, &accelerator, 16_384);
    let phases = BatchRamp { start: 512, increment: 512, samples: 6_000_000 }.phases(2048, 8192).unwrap();
    // A fixed second per step beside time in proportion to the batch.
    let step = |batch: u32| Seconds(1.0 + 5.5 * f64::from(batch) / 2048.0).picos();
    let stages: Vec<_> = phases.iter().map(|p| (*p, step(p.global_batch_size))).collect();
    let ramp = ramp_cost(&full, &stages).unwrap();
    assert_eq!(ramp.tokens, Tokens(6_000_000 * 8192));
    // Extra steps of the ramp, a second each, over the effective share.
    let extra = 2e6 * (1.0 / 512.0 + 1.0 / 1024.0 + 1.0 / 1536.0 - 3.0 / 2048.0);
    within("extra seconds", ramp.extra.0, extra / 0.93, 2.0);
    assert!(ramp.extra_dollars > Dollars(0.0));
}

/// A 13B model on two GPUs of 80 GB: 16 bytes a weight do not fit, so the optimizer goes to the host. By
/// hand: each GPU owns half of the 13,015,864,320 weights; per step their FP32 gradients (4 B) go down the
/// link and new BF16 weights (2 B) come up, while the host walks master weight and moments.
#[test]
fn offloaded_states_move_at_the_bandwidth_of_the_link() {
    let mut task = Task::shipped("llama2-13b", "dgx-a100", 2, 64, 4096).unwrap();
    (task.target, task.profile) = (Target::DeepSpeed, Profile::find("deepspeed").unwrap());
    let solution = task.prepare().solve(&Request { top: 1, ..Request::default() }, &Silent);
    assert!(matches!(solution.offloading, Offloading::Needed));
    let plan = solution.answer.found[0].plan.clone();
    let layout = plan.layout();
    assert_eq!(layout.offload.optimizer, Place::Cpu, "{plan}");
    let update = |task: &Task| {
        let prediction = task.prepare().predict(&plan);
        prediction.times.0[StepItem::OptimizerUpdate as usize].seconds().0
    };
    let link = task.machine.accelerator.host_link;
    assert_eq!(link, Bandwidth(25e9));
    let before = update(&task);
    task.machine.accelerator.host_link = Bandwidth(link.0 / 2.0);
    let slower = update(&task) - before;
    // Half the link: the transfer takes its own time once more.
    assert!(layout.zero_stage >= 2 && layout.gradient_accumulation_steps > 1, "{plan}");
    let moved = (4.0 + 2.0) * 13_015_864_320.0 / 2.0;
    within("transfer", slower, moved / 25e9, 0.1);
    // The rest is the host's walk, 34 B a weight at an eighth of its 410 GB/s, and little on the GPU.
    let walk = 34.0 * 13_015_864_320.0 / 2.0 / (410e9 / 8.0);
    within("update", before, walk + moved / 25e9, 3.0);
    // In host memory: the states, 12 B a weight, and the gradients of both GPUs, 2 B as they are summed up and 4 B as the
    // update reads them. On the GPUs there are none.
    let found = &solution.answer.found[0].prediction;
    within("host memory", found.off_gpu.states.0 as f64, 18.0 * 13.016e9, 0.1);
    assert!(found.memory.iter().all(|rank| rank.gradients == Bytes::ZERO));
}

/// Gradients that leave with the optimizer go down with every micro-batch: of DeepSpeed 2 B a weight, which come up as well, to
/// be summed on the GPU, at ZeRO-2 but for the first; of FSDP2 4 B, which are summed on the host, where that takes 12 B of its
/// memory's 410 GB/s for eight GPUs. Each GPU has a quarter of the weights, and a link of 25 GB/s.
#[test]
fn gradients_leave_with_every_micro_batch() {
    let task = Task::shipped("llama2-13b", "dgx-a100", 4, 32, 4096).unwrap();
    let off = Offload { optimizer: Place::Cpu, parameters: Place::Cpu, activations: false };
    let down = |bytes: f64| bytes / 25e9;
    let sum = 12.0 / (410e9 / 8.0);
    for (target, profile, stage, micro_batches, expected) in [
        (Target::DeepSpeed, "deepspeed", 3, 8, down(2.0 + 2.0)),
        (Target::DeepSpeed, "deepspeed", 3, 1, down(2.0 + 2.0)),
        (Target::DeepSpeed, "deepspeed", 2, 8, down(2.0 + 2.0 * 7.0 / 8.0)),
        (Target::DeepSpeed, "deepspeed", 2, 1, 0.0),
        (Target::Accelerate, "accelerate", 3, 8, down(4.0) + 7.0 / 8.0 * sum),
        (Target::Torchtitan, "torchtitan", 3, 1, down(4.0)),
    ] {
        let profile = Profile::find(profile).unwrap();
        let task = Task { target, profile, ..task.clone() };
        let prepared = task.prepare();
        let cost = prepared.cost();
        let layout = Layout {
            data_parallel: 4,
            gradient_accumulation_steps: micro_batches,
            zero_stage: stage,
            shard_group: 4,
            ..Layout::ONE
        };
        // Weights that are sharded are fetched from the host for both passes.
        let fetched = if stage == 3 { 2.0 / 4.0 / 25e9 } else { 0.0 };
        let passes = |offload: Offload| {
            let dense = cost.sharding(&Layout { offload, ..layout }).classes[0];
            (dense.micro_reduce * 1e-12, dense.gradients)
        };
        let ((before, held), (after, left)) = (passes(Offload::NONE), passes(off));
        let more = after - before - fetched;
        assert!((more - expected / 4.0).abs() < 1e-3 * down(2.0), "{target} {stage} {micro_batches}: {more}");
        assert!(held > 0.0 && left == 0.0, "{held} {left}");
    }
}

/// States on local drives are read and written there: 34 B a weight at the drives' rate, an eighth of 40 GB/s for each
/// GPU, instead of the memory's, an eighth of 614 GB/s.
#[test]
fn states_on_drives_move_at_the_bandwidth_of_the_drives() {
    let mut task = Task::shipped("llama3.1-8b", "dgx-h100", 8, 8, 4096).unwrap();
    (task.target, task.profile) = (Target::DeepSpeed, Profile::find("deepspeed").unwrap());
    task.restrictions.zero_stage = Axis { only: Some(vec![3]), max: None };
    let best = |task: &Task, offload: Offload| {
        let mut task = task.clone();
        task.restrictions.offload = Some(vec![offload]);
        let prepared = task.prepare();
        let found = prepared.search(&Request { top: 1, ..Request::default() }, &Silent).found.swap_remove(0);
        assert!(prepared.check(&found.plan, &found.prediction).passed());
        found
    };
    let off = |optimizer, parameters| Offload { optimizer, parameters, activations: false };
    let weights = parameter_count(&task.model).total as f64;
    let update = |place| {
        let found = best(&task, off(place, Place::Gpu));
        found.prediction.times.0[StepItem::OptimizerUpdate as usize].seconds().0
    };
    let walk = |bandwidth: f64| 34.0 * weights / bandwidth;
    within("update", update(Place::Nvme) - update(Place::Cpu), walk(40e9) - walk(614e9), 1.0);

    // Weights on drives too: 2 B beside the 12 B of states and 4 B of gradients, and in host memory their sum, 2 B.
    let found = best(&task, off(Place::Nvme, Place::Nvme));
    within("drives", found.prediction.off_gpu.drives.0 as f64, 18.0 * weights, 0.1);
    within("gradients", found.prediction.off_gpu.states.0 as f64, 2.0 * weights, 0.1);
    let plan = found.plan;
    // Weights come back for both passes of every micro-batch.
    let traffic = |task: &Task| task.prepare().predict(&plan).times.total().seconds().0;
    let before = traffic(&task);
    let (size, bandwidth) = task.machine.cluster.host.nvme.unwrap();
    task.machine.cluster.host.nvme = Some((size, Bandwidth(bandwidth.0 / 2.0)));
    let passes = 2.0 * f64::from(plan.layout().gradient_accumulation_steps);
    let slower = walk(40e9) + passes * 2.0 * weights / 40e9;
    within("half the drives", traffic(&task) - before, slower, 5.0);
    task.machine.cluster.host.nvme = None;
    assert!(!task.prepare().cost().fits(&task.prepare().predict(&plan)), "there are no drives");
}

/// Where host memory holds neither weights nor states, drives do.
#[test]
fn drives_open_where_host_memory_is_too_small() {
    let mut task = Task::shipped("qwen2.5-72b", "dgx-a100-40gb", 8, 8, 4096).unwrap();
    (task.target, task.profile) = (Target::DeepSpeed, Profile::find("deepspeed").unwrap());
    let places = |task: &Task| {
        let solution = task.prepare().solve(&Request { top: 1, ..Request::default() }, &Silent);
        solution.answer.found.first().map(|best| best.plan.layout().offload)
    };
    let off = |parameters| Offload { optimizer: Place::Nvme, parameters, activations: false };
    // 145 GB of gradients fit, and so many of weights; 870 GB of states do not.
    task.machine.cluster.host.memory = Bytes(400_000_000_000);
    assert_eq!(places(&task), Some(off(Place::Gpu)));
    // An eighth of the weights alone is 18 GB.
    task.job.memory_limit = Some(Bytes(17_000_000_000));
    assert_eq!(places(&task), Some(off(Place::Cpu)));
    task.machine.cluster.host.memory = Bytes(200_000_000_000);
    assert_eq!(places(&task), Some(off(Place::Nvme)));
    // Gradients have nowhere else to be.
    let enough = task.machine.cluster.host.memory;
    task.machine.cluster.host.memory = Bytes(140_000_000_000);
    assert_eq!(places(&task), None);
    task.machine.cluster.host.memory = enough;
    task.machine.cluster.host.nvme = None;
    assert_eq!(places(&task), None);
}

/// DeepSpeed offloads the inputs of layers that it recomputes, `2 h` bytes a token and layer: eight GPUs with a sequence
/// of 8,192 each send 17 GB to their host; the copies back, 67 MB a layer, are waited for.
#[test]
fn offloaded_inputs_are_held_by_the_host_and_waited_for() {
    let mut task = Task::shipped("llama3.1-8b", "dgx-h100", 8, 64, 8192).unwrap();
    (task.target, task.profile) = (Target::MegatronDeepSpeed, Profile::find("deepspeed").unwrap());
    let one = || Axis { only: Some(vec![1]), max: None };
    let r = &mut task.restrictions;
    (r.tensor_parallel, r.pipeline_parallel, r.context_parallel) = (one(), one(), one());
    r.micro_batch_size = one();
    r.zero_stage = Axis { only: Some(vec![2]), max: None };
    r.offload = Some(vec![Offload { activations: true, ..Offload::NONE }]);
    r.recompute = Some(vec![Recompute::FullUniform(1)]);
    let prepared = task.prepare();
    let found = prepared.search(&Request { top: 1, ..Request::default() }, &Silent).found.swap_remove(0);
    assert!(prepared.check(&found.plan, &found.prediction).passed());
    let input = 2.0 * 4096.0 * 8192.0;
    within("inputs", found.prediction.off_gpu.activations.0 as f64, input * 32.0 * 8.0, 0.1);

    let mut layout = *found.plan.layout();
    layout.offload = Offload::NONE;
    let chunks = found.plan.chunks().to_vec();
    let plain = Plan::new(layout, chunks, 8, 64, 32).unwrap();
    let plain = prepared.predict(&plain);
    // Of 32 inputs three stay: the newest, and two on their way.
    let saved = plain.allocated.0 as f64 - found.prediction.allocated.0 as f64;
    within("memory", saved, 29.0 * input, 10.0);
    let waited = found.prediction.times.total().seconds().0 - plain.times.total().seconds().0;
    within("time", waited, 8.0 * 32.0 * input / 55e9, 5.0);

    // Four layers that are recomputed together have one input.
    let grouped = |layout| {
        let chunk = Chunk { layers: 32, recompute: Recompute::FullUniform(4) };
        let plan = Plan::new(layout, vec![chunk], 8, 64, 32).unwrap();
        let prediction = prepared.predict(&plan);
        assert!(prepared.check(&plan, &prediction).passed());
        prediction
    };
    let fours = grouped(*found.plan.layout());
    within("inputs of fours", fours.off_gpu.activations.0 as f64, input * 8.0 * 8.0, 0.1);
    let waited = fours.times.total().seconds().0 - grouped(layout).times.total().seconds().0;
    within("time of fours", waited, 8.0 * 8.0 * input / 55e9, 5.0);
}

/// Llama 3.1 8B keeps `8 h + 2 d (a + 2 g) + 2 a d + 4 a + 6 f` bytes a token and layer. Megatron-Core has hooks for what
/// attention reads and leaves, `2 h + 2 d (a + 2 g) + 2 a d + 4 a`, and none for a dense feed-forward part: its `6 f`
/// stay, and both norms' inputs. Eight GPUs with a sequence of 4,096 each send 30 GB to their host.
#[test]
fn offloaded_activations_are_held_by_the_host_or_refused() {
    let mut task = Task::shipped("llama3.1-8b", "dgx-h100", 8, 64, 4096).unwrap();
    let one = || Axis { only: Some(vec![1]), max: None };
    let r = &mut task.restrictions;
    (r.tensor_parallel, r.pipeline_parallel, r.context_parallel) = (one(), one(), one());
    r.micro_batch_size = one();
    r.recompute = Some(vec![Recompute::None]);
    r.offload = Some(vec![Offload { activations: true, ..Offload::NONE }]);
    let request = Request { top: 1, ..Request::default() };
    let found = task.prepare().search(&request, &Silent).found.swap_remove(0);
    let (h, d, a, g, f) = (4096.0, 128.0, 32.0, 8.0, 14_336.0);
    let token = 2.0 * h + 2.0 * d * (a + 2.0 * g) + 2.0 * a * d + 4.0 * a;
    let off = found.prediction.off_gpu;
    within("activations in host memory", off.activations.0 as f64, token * 4096.0 * 32.0 * 8.0, 0.1);
    let stays = 6.0 * h + 6.0 * f;
    let kept: f64 = found.prediction.memory.iter().map(|rank| rank.activations.0 as f64).sum();
    // Beside the layers the ends keep a little.
    within("activations on the GPU", kept, stays * 4096.0 * 32.0, 1.0);
    assert_eq!((off.states, off.drives), (Bytes::ZERO, Bytes::ZERO));
    assert!(task.prepare().check(&found.plan, &found.prediction).passed());

    let mut half = found.prediction.clone();
    half.off_gpu.activations = Bytes(off.activations.0 / 2);
    let report = task.prepare().check(&found.plan, &half).to_string();
    assert!(report.starts_with("off-gpu: host memory"), "{report}");

    // A node with less refuses the plan, in the search and in its verification.
    task.machine.cluster.host.memory = Bytes(off.activations.0 - 1);
    let prepared = task.prepare();
    assert!(prepared.search(&request, &Silent).found.iter().all(|other| other.plan != found.plan));
    let report = prepared.check(&found.plan, &prepared.predict(&found.plan));
    assert!(!report.passed() && report.to_string().contains("off-gpu-limit: fullest node"), "{report}");
    assert!(!prepared.cost().fits(&found.prediction));
}

#[test]
fn waste_is_measured_against_what_good_runs_reach() {
    let w = waste(Dollars(10e6), 0.35, 0.5);
    assert!((w.share - 0.3).abs() < 1e-12 && (w.dollars.0 - 3e6).abs() < 1e-3);
    assert!((w.extra_training - 3.0 / 7.0).abs() < 1e-12);
    assert_eq!(waste(Dollars(10e6), 0.55, 0.5).share, 0.0);
}

/// The names and units that `--format json` shows.
#[test]
fn figures_are_itemised_in_json() {
    let (cluster, accelerator) = h100();
    let cost = run_cost(&example(&cluster, &accelerator, 16_384), "15T".parse().unwrap()).unwrap();
    let json = serde_json::to_value(cost).unwrap();
    for path in [
        "/step/usd_per_step",
        "/step/usd_per_trillion_tokens",
        "/goodput/effective_training_time_ratio",
        "/goodput/mean_time_between_failures_s",
        "/goodput/young_interval_s",
        "/goodput/daly_interval_s",
        "/goodput/checkpoint_bytes",
        "/goodput/checkpoint_write_s",
        "/time/training_s",
        "/time/stragglers_s",
        "/time/lost_work_s",
        "/time/restarts_s",
        "/dollars/total_usd",
        "/energy/total_wh",
        "/gpu_hours",
        "/days",
    ] {
        assert!(json.pointer(path).is_some_and(serde_json::Value::is_number), "{path} of {json:#}");
    }
}

/// Short documents packed into long sequences: attention counts the sum of squares, the rest nothing.
#[test]
fn packed_documents_shorten_attention_alone() {
    let (cluster, accelerator) = h100();
    let model = dense(2, 8192, 28_672, 64, 8, 128_256, "SwiGlu");
    let layers = Layers::new(&model);
    let profile = Profile::find("megatron").unwrap();
    let layer = |packed: Option<&str>| {
        let job = Job {
            gpus: 8,
            global_batch_size: 8,
            sequence_length: 32_768,
            precision: Precision::Bf16,
            optimizer: Optimizer::Adamw,
            training: Training::Full,
            memory_limit: None,
            tokens: None,
            routing: Routing::Balanced,
            packed: packed.map(|text| text.parse().unwrap()),
            expert_capacity: None,
        };
        let cost = CostModel::new(&model, &layers, &cluster, &accelerator, profile, &job);
        let key = CellKey {
            tensor_parallel: 8,
            context_parallel: 1,
            expert_parallel: 1,
            expert_tensor_parallel: 1,
            micro_batch_size: 1,
            sequence_parallel: true,
            context_comm: ContextComm::Ring,
            dispatcher: None,
            tensor_overlap: false,
            expert_overlap: false,
            shared_overlap: false,
            cuda_graphs: CudaGraphs::None,
            offload: Offload::NONE,
        };
        cost.cell(&key).layers.swap_remove(0)
    };
    let plain = layer(None);
    let one_document = layer(Some("32768x1"));
    assert_eq!(plain.forward, one_document.forward);
    // Longer documents are cut at the sequence's end: nothing changes.
    assert_eq!(plain.forward, layer(Some("65536x3")).forward);
    let eighths = layer(Some("4096x8"));
    let ratio =
        |a: &LayerCost, b: &LayerCost, item| a.forward.get(item).0 as f64 / b.forward.get(item).0 as f64;
    let attention = ratio(&plain, &eighths, Item::Attention);
    // An eighth of the work, at a rate that is somewhat lower.
    assert!(attention > 6.0 && attention < 8.0, "{attention}");
    for item in [Item::Gemm, Item::ElementWise, Item::TensorParallel] {
        assert_eq!(plain.forward.get(item), eighths.forward.get(item), "{item:?}");
    }
    // Model FLOPs follow the same sum: half of the tokens in documents of 4,096, half in one of 32,768.
    let count = AttentionCount::Causal;
    let flops = |packed: Option<&str>| {
        let packed = packed.map(|text| text.parse::<PackedLengths>().unwrap());
        packed_model_flops(&model, &layers, 1, 32_768, packed.as_ref(), count).0
    };
    let (long, short, mixed) = (flops(None), flops(Some("4096x8")), flops(Some("4096x8,32768x1")));
    assert!((mixed / (0.5 * (long + short)) - 1.0).abs() < 1e-12);
    let saved = 2.0 * 3.0 * 2.0 * (64.0 * 2.0 * 128.0) * (32_768.0 - 4096.0) / 2.0 * 32_768.0;
    assert!(((long - short) / saved - 1.0).abs() < 1e-9);
}
