//! Layers of experts: what a capacity, overlap and biases do to time and memory, against sums by hand.

use autoplan::cost::model::CostModel;
use autoplan::cost::step::mode_cost;
use autoplan::cost::{CellKey, Item, LayerCost};
use autoplan::frameworks::profile::Profile;
use autoplan::layers::Layers;
use autoplan::plan::{
    ContextComm, CudaGraphs, Dispatcher, Layout, Module, Modules, Offload, Recompute, Schedule,
};
use autoplan::spec::job::{ExpertCapacity, Job, Routing};
use autoplan::spec::model::{FeedForward, Model};
use autoplan::spec::{load_cluster, load_model};
use autoplan::validate::validate;

fn job() -> Job {
    crate::frameworks::job(8, 8)
}

fn key() -> CellKey {
    CellKey {
        tensor_parallel: 1,
        context_parallel: 1,
        expert_parallel: 8,
        expert_tensor_parallel: 1,
        micro_batch_size: 1,
        sequence_parallel: false,
        context_comm: ContextComm::Ring,
        dispatcher: Some(Dispatcher::AllToAll),
        tensor_overlap: false,
        expert_overlap: false,
        shared_overlap: false,
        cuda_graphs: CudaGraphs::None,
        offload: Offload::NONE,
    }
}

/// A layer of experts of a shipped model on a node of H100.
fn layer(model: &str, job: &Job, key: &CellKey) -> LayerCost {
    layer_of(&load_model(model).unwrap(), job, key)
}

fn layer_of(model: &Model, job: &Job, key: &CellKey) -> LayerCost {
    let machine = load_cluster("dgx-h100").unwrap();
    let layers = Layers::new(model);
    let profile = Profile::find("megatron").unwrap();
    let cost = CostModel::new(model, &layers, &machine.cluster, &machine.accelerator, profile, job);
    let last = *layers.order.last().unwrap() as usize;
    cost.cell(key).layers.swap_remove(last)
}

fn with_capacity(factor: f64, padded: bool) -> Job {
    Job { expert_capacity: Some(ExpertCapacity { factor, padded }), ..job() }
}

/// Where experts are padded no layer waits for counts: the longer of device and host; elsewhere their norm.
#[test]
fn padded_experts_hide_the_host() {
    let experts = &Profile::find("megatron").unwrap().experts;
    // Qwen3-30B: 128 experts on 8 ranks, launched one by one; all of them from the host.
    let (attention, router, rest) = experts.launches;
    let host = experts.launch.0 * (attention + router + rest + experts.launches_per_expert.0 * 128.0 / 8.0);
    let forward = |job: &Job| {
        let layer = layer("qwen3-30b-a3b", job, &key());
        let (all, host) = (layer.forward.total().seconds().0, layer.forward.get(Item::Host).seconds().0);
        (all - host, host)
    };
    let (device, waits) = forward(&job());
    let norm = (device.powf(experts.host_exponent) + host.powf(experts.host_exponent))
        .powf(1.0 / experts.host_exponent);
    assert!((waits - (norm - device)).abs() < 1e-9, "{waits} {norm} {device}");
    let (padded, rest) = forward(&with_capacity(1.0, true));
    assert!((padded - device).abs() < 1e-9);
    assert!((rest - (host - device).max(0.0)).abs() < 1e-9, "{rest}");
    // Dropped but not padded, counts are read all the same.
    assert_eq!(forward(&with_capacity(1.0, false)), (device, waits));
}

/// Padding is work: tokens on the wire and kept inputs of the products follow the factor exactly.
#[test]
fn capacity_takes_the_place_of_imbalance() {
    let at = |job: &Job| layer("qwen3-30b-a3b", job, &key());
    let (one, more) = (at(&with_capacity(1.0, true)), at(&with_capacity(1.5, true)));
    let exchange = |layer: &LayerCost| {
        layer.forward.get(Item::ExpertParallel).0 as f64 + layer.backward.get(Item::ExpertParallel).0 as f64
    };
    assert!((exchange(&more) / exchange(&one) - 1.5).abs() < 1e-6);
    // 4,096 tokens go to 8 experts each: half as many copies again, of an input (2 bytes a channel of 2,048), the
    // activation's two inputs and its output (2 bytes each, 768 wide).
    let copies = 0.5 * 8.0 * 4096.0;
    assert_eq!((more.kept - one.kept).0, (copies * (2.0 * 2048.0 + 6.0 * 768.0)) as u64);
    // What is dropped without padding is at most what a natural router sends.
    let natural = |capacity| Job { routing: Routing::Natural, expert_capacity: capacity, ..job() };
    let loose = ExpertCapacity { factor: 4.0, padded: false };
    assert_eq!(at(&natural(Some(loose))).kept, at(&natural(None)).kept);
    let tight = ExpertCapacity { factor: 1.0, padded: false };
    assert_eq!(at(&natural(Some(tight))).kept, at(&job()).kept);
}

/// Published runs that drop tokens, none of which was fitted with a capacity.
#[test]
fn runs_that_drop_tokens_are_predicted() {
    let report = validate(
        &include_bytes!("../../results/published/measured.csv")[..],
        |row| row.flag("token_drop").ok().flatten() == Some(true),
        |_, _| {},
    )
    .unwrap();
    let errors: Vec<f64> = report.rows.iter().filter_map(|row| row.step_error()).collect();
    assert_eq!(errors.len(), 5);
    assert!(errors.iter().all(|error| error.abs() < 0.13), "{errors:?}");
}

/// Mixtral 8x7B has 46,702,792,704 parameters, 45,097,156,608 of them in experts; over 8 ranks of experts and 64 replicas,
/// in buckets of 64 million: 26 dense ones of 1,605,636,096 and 89 of 5,637,144,576 expert ones.
#[test]
fn buckets_hold_what_a_rank_has() {
    let machine = load_cluster("dgx-h100").unwrap();
    let model = load_model("mixtral-8x7b").unwrap();
    let layers = Layers::new(&model);
    let job = Job { gpus: 64, global_batch_size: 128, ..job() };
    let floor = |profile: &str, layout: &Layout| {
        let profile = Profile::find(profile).unwrap();
        CostModel::new(&model, &layers, &machine.cluster, &machine.accelerator, profile, &job)
            .sharding(layout)
            .exposed_floor
    };
    let one = Layout {
        data_parallel: 64,
        gradient_accumulation_steps: 2,
        expert_parallel: 8,
        zero_stage: 1,
        shard_group: 64,
        dispatcher: Some(Dispatcher::AllToAll),
        data_overlap: true,
        ..Layout::ONE
    };
    let last = (1_605_636_096.0 / 26.0 + 5_637_144_576.0 / 89.0) / (1_605_636_096.0 + 5_637_144_576.0);
    assert!((floor("megatron", &one).0 - last).abs() < 1e-9, "{:?} {last}", floor("megatron", &one));
    // Beyond the first stage Megatron-Core has no buckets: half of two chunks is there only at the end. Others have.
    let piped = Layout {
        pipeline_parallel: 4,
        virtual_stages: 2,
        data_parallel: 16,
        gradient_accumulation_steps: 8,
        shard_group: 16,
        schedule: Schedule::Interleaved,
        ..one
    };
    let (first, others) = floor("megatron", &piped);
    assert!(first < 0.1 && others == 0.5, "{first} {others}");
    assert_eq!(floor("deepspeed", &piped), (first, first));
}

/// gpt-oss adds biases behind both products of its experts, 5,760 and 2,880 wide; those of the first once more where the
/// activation is recomputed: two thirds of all (physics of `beta`, split by width).
#[test]
fn recomputed_activations_add_their_biases_again() {
    let with = load_model("gpt-oss-20b").unwrap();
    let mut without = with.clone();
    for block in without.blocks.values_mut() {
        if let FeedForward::Moe(e) = &mut block.feed_forward {
            e.expert_bias = false;
        }
    }
    let priced = |model: &Model| {
        let layer = layer_of(model, &job(), &key());
        let recomputed = layer.modules.iter().find(|cost| cost.module == Module::MoeActivation).unwrap();
        (layer.forward.get(Item::Experts).0 as f64, recomputed.extra.total().0 as f64)
    };
    let ((forward, again), (plain, plain_again)) = (priced(&with), priced(&without));
    let share = (again - plain_again) / (forward - plain);
    assert!((share - 2.0 / 3.0).abs() < 1e-4, "{share}");
}

/// Under overlap of the exchange one more layer is there while passes are merged, in whatever mode; graphs hold what
/// Megatron-Bridge's guide says.
#[test]
fn merged_passes_and_graphs_take_memory() {
    let priced = |key: &CellKey| layer("qwen3-30b-a3b", &job(), key);
    let (plain, merged) = (priced(&key()), priced(&CellKey { expert_overlap: true, ..key() }));
    for recompute in [Recompute::None, Recompute::Selective(Modules::NONE.with(Module::MoeActivation))] {
        let [plain, merged] = [&plain, &merged].map(|layer| mode_cost(layer, recompute));
        assert_eq!(merged.kept, plain.kept);
        assert_eq!(merged.transient, plain.transient + plain.kept, "{recompute:?}");
    }
    let machine = load_cluster("dgx-h100").unwrap();
    let model = load_model("qwen3-30b-a3b").unwrap();
    let layers = Layers::new(&model);
    let profile = Profile::find("megatron").unwrap();
    let job = job();
    let cost = CostModel::new(&model, &layers, &machine.cluster, &machine.accelerator, profile, &job);
    let buffers = |pipeline_parallel, cuda_graphs| {
        let layout = Layout {
            pipeline_parallel,
            data_parallel: 8 / pipeline_parallel,
            cuda_graphs,
            dispatcher: Some(Dispatcher::AllToAll),
            gradient_accumulation_steps: pipeline_parallel,
            ..Layout::ONE
        };
        (cost.cell(&CellKey::from(&layout)).buffers + cost.hop(&layout).buffers).0
    };
    for (stages, bytes) in [(1, 3_000_000_000), (2, 10_000_000_000)] {
        for graphs in [CudaGraphs::Attention, CudaGraphs::AttentionRouter, CudaGraphs::FullIteration] {
            assert_eq!(buffers(stages, graphs) - buffers(stages, CudaGraphs::None), bytes);
        }
    }
}

/// Group-limited routing visits whole groups: with as many domains as groups (or fewer) no more domains than groups; with
/// four times as many, each of four groups in four of them, as many as eight experts reach freely.
#[test]
fn groups_may_lie_in_several_domains() {
    let machine = load_cluster("h800-ib").unwrap();
    let limited = load_model("deepseek-v3").unwrap();
    let mut free = limited.clone();
    for block in free.blocks.values_mut() {
        if let FeedForward::Moe(e) = &mut block.feed_forward {
            e.router.groups = None;
        }
    }
    let profile = Profile::find("megatron").unwrap();
    let job = Job { gpus: 2048, global_batch_size: 2048, ..job() };
    let exchange = |model: &Model, expert_parallel| {
        let layers = Layers::new(model);
        let cost = CostModel::new(model, &layers, &machine.cluster, &machine.accelerator, profile, &job);
        let key = CellKey { expert_parallel, dispatcher: Some(Dispatcher::DeepEp), ..key() };
        let last = *layers.order.last().unwrap() as usize;
        cost.cell(&key).layers[last].forward.get(Item::ExpertParallel)
    };
    // Eight domains: four are visited, not 7 (1 - (7/8)^8) = 4.6.
    assert!(exchange(&limited, 64) < exchange(&free, 64));
    assert_eq!(exchange(&limited, 256), exchange(&free, 256));
}

/// Beside a long exchange shared experts take no time; beside them a short one takes none.
#[test]
fn shared_experts_run_beside_the_exchange() {
    let machine = load_cluster("h800-ib").unwrap();
    let job = Job { gpus: 64, global_batch_size: 64, ..job() };
    let profile = Profile::find("megatron").unwrap();
    let of = |shared: u64, expert_parallel, shared_overlap| {
        let mut model = load_model("deepseek-v3").unwrap();
        for block in model.blocks.values_mut() {
            if let FeedForward::Moe(e) = &mut block.feed_forward {
                e.shared_width = shared;
            }
        }
        let layers = Layers::new(&model);
        let cost = CostModel::new(&model, &layers, &machine.cluster, &machine.accelerator, profile, &job);
        // Without the host, which joins all of it.
        let cuda_graphs = CudaGraphs::FullIteration;
        let key = CellKey { expert_parallel, shared_overlap, cuda_graphs, ..key() };
        let last = *layers.order.last().unwrap() as usize;
        cost.cell(&key).layers.swap_remove(last)
    };
    let total = |layer: &LayerCost| (layer.forward.total() + layer.backward.total()).0;
    let exchange = |layer: &LayerCost| {
        layer.forward.get(Item::ExpertParallel) + layer.backward.get(Item::ExpertParallel)
    };
    // Eight nodes: the exchange of eight copies is far longer than the products of one expert of 2,048.
    let (alone, beside) = (of(0, 64, false), of(2048, 64, true));
    assert!(total(&of(2048, 64, false)) > total(&alone));
    assert!(total(&beside).abs_diff(total(&alone)) < 100, "{} {}", total(&beside), total(&alone));
    // Two ranks of a node, and shared experts of forty times that width.
    assert!(exchange(&of(81_920, 2, false)).0 > 0);
    assert_eq!(exchange(&of(81_920, 2, true)).0, 0);
}
