//! Balancing of real models on real clusters, through the cost model.

use autoplan::cost::model::CostModel;
use autoplan::cost::schedule::{Load, Shape, Simulator, chain_bound, closed_form, interleave_group};
use autoplan::cost::step::{
    RankMemory, Tables, exposed, further_cost, mode_cost, once_per_step, predict, shape,
};
use autoplan::cost::{LocalParameters, Sharding};
use autoplan::frameworks::Target;
use autoplan::frameworks::profile::Profile;
use autoplan::layers::Layers;
use autoplan::plan::{
    ContextComm, CudaGraphs, Dispatcher, Layout, Module, Modules, Offload, Plan, Recompute, Schedule,
};
use autoplan::search::balance::{
    Balancing, LegalModes, RecomputeFamily, RecomputeMode, TablesOf, Ways, traffic,
};
use autoplan::spec::cluster::{Accelerator, Cluster};
use autoplan::spec::job::{Job, Optimizer, Precision, Routing, Training};
use autoplan::spec::model::Model;
use autoplan::spec::ron_options;
use autoplan::spec::shipped;
use autoplan::stages::{
    Assignment, Choice, Evaluation, Freedom, LayerMode, Pipeline, Tail, Violation, Way, evaluate, in_flight,
    steady,
};
use autoplan::units::{Bytes, Picos};

use super::oracle::Random;

/// A model on a cluster under a framework, Megatron of today unless it is changed.
pub struct Bench {
    pub target: Target,
    pub model: Model,
    pub layers: Layers,
    pub cluster: Cluster,
    pub accelerator: Accelerator,
    pub job: Job,
}

impl Bench {
    pub fn new(model: &str, cluster: &str, gpus: u32, batch: u32, sequence: u32) -> Self {
        let text = |found: Option<shipped::Shipped>| found.unwrap().text;
        let find = |all: Vec<shipped::Shipped>, name: &str| all.into_iter().find(|s| s.name == name);
        let model: Model = ron_options().from_str(text(find(shipped::models(), model))).unwrap();
        Self::of(model, cluster, gpus, batch, sequence)
    }
    pub fn of(model: Model, cluster: &str, gpus: u32, batch: u32, sequence: u32) -> Self {
        let text = |found: Option<shipped::Shipped>| found.unwrap().text;
        let find = |all: Vec<shipped::Shipped>, name: &str| all.into_iter().find(|s| s.name == name);
        let cluster: Cluster = ron_options().from_str(text(find(shipped::clusters(), cluster))).unwrap();
        let accelerator = text(find(shipped::accelerators(), &cluster.accelerator));
        let accelerator: Accelerator = ron_options().from_str(accelerator).unwrap();
        let job = Job {
            gpus,
            global_batch_size: batch,
            sequence_length: sequence,
            precision: Precision::Bf16,
            optimizer: Optimizer::Adamw,
            training: Training::Full,
            memory_limit: None,
            tokens: None,
            routing: Routing::Balanced,
            packed: None,
            expert_capacity: None,
        };
        let layers = Layers::new(&model);
        Self { target: Target::Megatron, model, layers, cluster, accelerator, job }
    }
    pub fn cost(&self) -> CostModel<'_> {
        let (_, profile) = Profile::of(self.target);
        CostModel::new(&self.model, &self.layers, &self.cluster, &self.accelerator, profile, &self.job)
    }
    /// A Megatron layout; the rest follows from the job.
    pub fn layout(&self, tp: u32, pp: u32, vpp: u32, ep: u32, mb: u32) -> Layout {
        let dp = self.job.gpus / (tp * pp);
        Layout {
            tensor_parallel: tp,
            pipeline_parallel: pp,
            virtual_stages: vpp,
            context_parallel: 1,
            expert_parallel: ep,
            expert_tensor_parallel: 1,
            data_parallel: dp,
            sequence_parallel: tp > 1,
            micro_batch_size: mb,
            gradient_accumulation_steps: self.job.global_batch_size / (dp * mb),
            zero_stage: 1,
            shard_group: dp,
            schedule: if vpp > 1 { Schedule::Interleaved } else { Schedule::OneFOneB },
            context_comm: ContextComm::Ring,
            dispatcher: (ep > 1).then_some(Dispatcher::AllToAll),
            tensor_overlap: tp > 1,
            data_overlap: true,
            expert_overlap: false,
            shared_overlap: false,
            mtp_standalone: false,
            cuda_graphs: CudaGraphs::None,
            offload: Offload::NONE,
        }
    }
}

/// The recompute modes of Megatron: every subset of what the model has, full, and block.
pub fn megatron_modes() -> Vec<Recompute> {
    let mut offered = vec![Recompute::None];
    for bits in 1..1_u8 << Module::ALL.len() {
        offered.push(Recompute::Selective(Modules(bits)));
    }
    offered.push(Recompute::FullUniform(1));
    offered
}

/// The balancing problem of a layout with every way to recompute that is listed.
pub fn build(bench: &Bench, layout: &Layout, offered: &[Recompute], block: Option<(u32, u32)>) -> Balancing {
    let cost = bench.cost();
    let tables = Tables::new(&cost, layout);
    let price = |&recompute: &Recompute| RecomputeMode {
        recompute,
        costs: tables.cell.layers.iter().map(|layer| mode_cost(layer, recompute).into()).collect(),
        further: further_cost(&tables.cell, recompute).into(),
    };
    let family = RecomputeFamily {
        modes: offered.iter().map(price).collect(),
        block,
        hopeless: Vec::new(),
        hopeless_block: false,
    };
    let capabilities = bench.target.capabilities();
    let balancing = Balancing::of(
        Pipeline::of(shape(layout)).into(),
        &cost,
        &bench.layers,
        layout,
        &tables,
        &Ways::new(&family, &tables.cell),
        capabilities,
    );
    balancing.problem.check().unwrap();
    balancing
}

/// Of the ways to recompute exactly those are left out that another is at least as good as in everything, whatever
/// the model; of equal ones the first stays.
#[test]
fn ways_to_recompute_are_those_that_no_other_beats() {
    for (model, ep) in [("llama3.1-8b", 1), ("deepseek-v3", 8), ("nemotron-h-56b", 1), ("gpt-oss-120b", 4)] {
        let bench = Bench::new(model, "dgx-h100", 256, 1024, 4096);
        let cost = bench.cost();
        for tp in [1, 4] {
            let tables = Tables::new(&cost, &bench.layout(tp, 2, 1, ep, 1));
            let lists = [
                megatron_modes(),
                [vec![Recompute::FullUniform(2)], megatron_modes(), vec![Recompute::FullUniform(1)]].concat(),
            ];
            for modes in lists {
                let price = |mode: Recompute| -> Vec<LayerMode> {
                    tables.cell.layers.iter().map(|layer| mode_cost(layer, mode).into()).collect()
                };
                let grouped = |mode: &Recompute| matches!(mode, Recompute::FullUniform(n) if *n > 1);
                let covers = |a: &[LayerMode], b: &[LayerMode]| {
                    let each = |(a, b): (&LayerMode, &LayerMode)| {
                        a.extra <= b.extra && a.kept <= b.kept && a.transient <= b.transient
                    };
                    a.iter().zip(b).all(each)
                };
                let mut expected: Vec<(Recompute, Vec<LayerMode>)> = Vec::new();
                for (at, &mode) in modes.iter().enumerate() {
                    let costs = price(mode);
                    let beaten = modes.iter().enumerate().any(|(other_at, &other)| {
                        let theirs = price(other);
                        let first = other_at < at || theirs != costs;
                        other_at != at && !grouped(&other) && first && covers(&theirs, &costs)
                    });
                    if grouped(&mode) || !beaten {
                        expected.push((mode, costs));
                    }
                }
                let alike = tables.cell.layers.windows(2).all(|pair| pair[0].full_kept == pair[1].full_kept);
                expected.retain(|(mode, _)| alike || !grouped(mode));
                let legal = LegalModes { modes, block: None };
                let found = RecomputeFamily::new(&legal, &tables.cell).modes;
                let found: Vec<_> =
                    found.into_iter().map(|mode| (mode.recompute, mode.costs.to_vec())).collect();
                assert_eq!(found, expected, "{model}");
            }
        }
    }
}

/// Modules that predict further tokens recompute as Megatron-Core has them: a whole one where every layer is recomputed,
/// from its stream and the embedding; the parts of its layer with theirs; nothing beside the first few layers. torchtitan
/// wraps decoder layers alone.
#[test]
fn modules_that_predict_further_tokens_recompute_as_their_framework_does() {
    for modules in [1_u32, 2] {
        let mut bench = Bench::new("deepseek-v3", "dgx-h100", 256, 1024, 4096);
        bench.model.mtp.as_mut().unwrap().modules = modules;
        bench.layers = Layers::new(&bench.model);
        let tables = Tables::new(&bench.cost(), &bench.layout(1, 4, 1, 8, 1));
        let cell = &tables.cell;
        let layer = &cell.layers[usize::from(bench.layers.mtp.unwrap().0)];
        let all = u64::from(modules);
        // 16-bit numbers: one stream of 7,168 for each of 4,096 tokens.
        let stream = Bytes(2 * 7_168 * 4_096);
        let none = further_cost(cell, Recompute::None);
        assert_eq!((none.extra.total(), none.kept), (Picos::ZERO, (layer.kept + stream * 4) * all));
        assert_eq!(none.transient, layer.transient);
        assert_eq!(further_cost(cell, Recompute::FullBlock(3)), none);
        let whole = further_cost(cell, Recompute::FullUniform(1));
        assert_eq!(whole.kept, stream * all);
        assert_eq!(whole.transient, layer.transient + layer.kept + stream * 3);
        // All that runs forward runs again, but for what only the head has.
        let ends = cell.standalone.as_ref().unwrap();
        let forward = ends[0].forward.total();
        assert!(whole.extra.total() >= layer.full_extra.total() * all && whole.extra.total() <= forward);
        let set = Modules::NONE.with(Module::LayerNorm).with(Module::MlaUpProjection);
        let some = further_cost(cell, Recompute::Selective(set));
        let of_layer = mode_cost(layer, Recompute::Selective(set));
        assert_eq!(some.kept, (of_layer.kept + stream * 4) * all);
        assert_eq!(some.extra.total(), of_layer.extra.total() * all);
        assert!(some.kept < none.kept && some.extra.total() > Picos::ZERO);
        // Beside the head every module leaves the stream of its loss; apart from it also the one that it gets.
        assert_eq!(ends[0].kept, stream * all);
        assert_eq!(ends[1].kept, cell.head.kept);

        bench.target = Target::Torchtitan;
        let tables = Tables::new(&bench.cost(), &bench.layout(1, 1, 1, 8, 1));
        let none = further_cost(&tables.cell, Recompute::None);
        for mode in [Recompute::FullUniform(1), Recompute::Selective(set)] {
            assert_eq!(further_cost(&tables.cell, mode), none);
        }
    }
}

/// A problem restated for another sharding is the one that would be stated of it.
#[test]
fn restated_problems_are_those_of_the_other_sharding() {
    for (model, ep) in [("llama3.1-8b", 1), ("deepseek-v3", 8), ("nemotron-h-56b", 1), ("gemma3-27b", 1)] {
        let bench = Bench::new(model, "dgx-h100", 256, 1024, 4096);
        let cost = bench.cost();
        for (pp, vpp) in [(1, 1), (2, 1), (4, 1), (4, 2), (2, 4)] {
            let one = bench.layout(2, pp, vpp, ep, 1);
            let mut balancing = build(&bench, &one, &megatron_modes(), None);
            for (zero_stage, data_overlap) in [(0, false), (2, true), (3, false), (3, true), (1, true)] {
                let other = Layout { zero_stage, data_overlap, ..one };
                let tables = Tables::new(&cost, &other);
                balancing.restate(&other, TablesOf::from(&tables));
                let stated = build(&bench, &other, &megatron_modes(), None).problem;
                assert_eq!(balancing.problem.kinds, stated.kinds, "{model} {other:?}");
                assert_eq!(balancing.problem.fixed, stated.fixed, "{model} {other:?}");
            }
        }
    }
}

/// Chunk times, rank memory and bounds of random plans are to the picosecond and the byte those of the
/// prediction, whatever the model, the schedule and the recomputation.
#[test]
fn evaluation_agrees_with_the_prediction() {
    let mut random = Random(11);
    for (model, cluster, gpus, ep) in [
        ("llama3.1-405b", "dgx-h100", 1024, 1),
        ("llama3.1-8b", "dgx-a100", 64, 1),
        ("deepseek-v3", "h800-ib", 1024, 8),
        ("nemotron-h-56b", "dgx-h100", 256, 1),
        ("gemma3-27b", "dgx-b200", 256, 1),
        ("gpt-oss-120b", "gb200-nvl72", 256, 4),
    ] {
        let bench = Bench::new(model, cluster, gpus, 1024, 4096);
        let layers = bench.layers.count();
        for _ in 0..12 {
            let pp = 1 << random.within(0, 4);
            let tp = 1 << random.within(0, 2);
            let mut vpp = if pp == 1 { 1 } else { random.within(1, 3) as u32 };
            let mut layout = bench.layout(tp, pp, vpp, ep, 1);
            if interleave_group(pp, layout.gradient_accumulation_steps).is_none() {
                vpp = 1;
                layout = bench.layout(tp, pp, vpp, ep, 1);
            }
            if random.chance(30) {
                layout.schedule = [Schedule::GPipe, Schedule::ZeroBubbleH1][random.within(0, 1) as usize];
                layout.virtual_stages = 1;
            } else if random.chance(20) && pp > 1 {
                layout.schedule = Schedule::ZeroBubbleV;
                layout.virtual_stages = 2;
            }
            if random.chance(30) {
                (layout.zero_stage, layout.data_overlap) = (3, random.chance(50));
            }
            if layout.expert_parallel * layout.expert_tensor_parallel > layout.data_parallel * tp {
                continue;
            }
            let chunks = (layout.pipeline_parallel * layout.virtual_stages) as usize;
            let offered =
                [megatron_modes(), vec![Recompute::FullUniform(2), Recompute::FullUniform(3)]].concat();
            let balancing = build(&bench, &layout, &offered, Some((1, 4)));
            let mut problem = balancing.problem.clone();
            problem.freedom = Freedom::PerStage;
            problem.min_layers = 0;
            problem.limit = Bytes(u64::MAX / 16);
            let mut counts = vec![0_u32; chunks];
            for _ in 0..layers {
                counts[random.within(0, chunks as u64 - 1) as usize] += 1;
            }
            let rank_choice: Vec<Choice> = (0..layout.pipeline_parallel)
                .map(|_| {
                    let mode = random.within(0, problem.modes.len() as u64 + 1);
                    match problem.modes.get(mode as usize) {
                        Some(mode_costs) if mode_costs.offered => Choice::Mode(mode as u16),
                        _ => Choice::Block(random.within(1, 4) as u32),
                    }
                })
                .collect();
            let recompute =
                problem.pipeline.rank_of_chunk.iter().map(|&rank| rank_choice[rank as usize]).collect();
            let assignment = Assignment { layers: counts, recompute };
            let plan =
                Plan::new(layout, balancing.chunks(&assignment), gpus, 1024, layers).expect("a lawful plan");
            let found: Evaluation = evaluate(&problem, &assignment).unwrap();
            let cost = bench.cost();
            let predicted = predict(&cost, &bench.layers, &plan);
            let times: Vec<[Picos; 2]> = predicted
                .chunks
                .iter()
                .map(|c| [c.forward.total() + c.messages, c.backward.total() + c.messages])
                .collect();
            let own: Vec<[Picos; 2]> =
                found.forward.iter().zip(&found.backward).map(|(&f, &b)| [f, b]).collect();
            assert_eq!(own, times, "{model} {plan}");
            let memory: Vec<Bytes> = predicted.memory.iter().map(RankMemory::total).collect();
            assert_eq!(found.memory, memory, "{model} {plan}");
            // The limit is judged on the same bytes.
            let most = memory.iter().max().unwrap().0;
            problem.limit = Bytes(most - 1);
            assert!(matches!(evaluate(&problem, &assignment), Err(Violation::Memory { .. })));
            // The bound: against the one of the schedule, and below simulation plus reduction.
            let load = Load {
                forward: &found.forward,
                backward: &found.backward,
                weight: &vec![Picos::ZERO; chunks],
                hop: problem.hop,
            };
            let shape = shape(&layout);
            if !problem.pipeline.split_backward {
                assert_eq!(found.bound - found.tail, chain_bound(shape, load), "{model} {plan}");
                assert_eq!(found.closed - found.tail, closed_form(shape, load), "{model} {plan}");
            }
            let simulated = Simulator::default().run(shape, load);
            let reduction = predicted.times.iter().find(|item| item.0 == "gradient_reduction").unwrap().1;
            assert!(
                found.bound <= simulated + reduction,
                "{model} {plan}: {:?} {simulated:?} {reduction:?}",
                found.bound
            );
        }
    }
}

/// What each rank of a plan gathers and reduces outside of its passes, as the cost model charges it.
fn charged(bench: &Bench, plan: &Plan, tables: &Tables, windows: &[[Picos; 2]]) -> Vec<[u64; 2]> {
    let (layout, cell) = (plan.layout(), &tables.cell);
    let (first, last) = (layout.rank_of_chunk(0), layout.rank_of_chunk(layout.chunk_count() - 1));
    let mut ranks = vec![LocalParameters::default(); windows.len()];
    let mut add = |rank: u32, parameters: &LocalParameters| {
        ranks[rank as usize] = ranks[rank as usize].plus(parameters, 1);
    };
    let mut order = bench.layers.order.iter();
    for (k, chunk) in plan.chunks().iter().enumerate() {
        for &kind in order.by_ref().take(chunk.layers as usize) {
            add(layout.rank_of_chunk(k as u32), &cell.layers[kind as usize].parameters);
        }
    }
    add(first, &cell.embedding.parameters);
    add(last, &cell.head.parameters);
    if last != first {
        add(last, &cell.tied_copy);
    }
    let Sharding { exposed_floor, hidden_share, interference, .. } = tables.sharding;
    let of = |(rank, (parameters, [forward, backward])): (usize, (&LocalParameters, &[Picos; 2]))| {
        let floor = if rank == 0 { exposed_floor.0 } else { exposed_floor.1 };
        let once = once_per_step(&tables.sharding, parameters);
        let gather = exposed(once.gather, floor, hidden_share.1, interference, *forward);
        let reduce = exposed(once.reduce, floor, hidden_share.0, interference, *backward);
        [gather.0, reduce.0]
    };
    ranks.iter().zip(windows).enumerate().map(of).collect()
}

/// What lines say that ranks gather and reduce is never more than what the cost model charges: with the recomputation
/// of the plan that but for rounding, and as far as messages do not widen the window that hides it; with any at most as
/// much.
#[test]
fn lines_of_traffic_are_what_is_charged() {
    let mut random = Random(23);
    // Ranks, those that pay something, of these those with a window that hides a part, and plans whose step ends with it.
    let (mut ranks, mut paying, mut hiding, mut ending) = (0, 0, 0, 0);
    for (model, cluster, gpus, ep) in [
        ("llama3.1-8b", "dgx-a100", 64, 1),
        ("llama3.2-1b", "h100-efa", 256, 1),
        ("deepseek-v3", "h800-ib", 1024, 8),
        ("nemotron-h-56b", "dgx-h100", 256, 1),
        ("gemma3-27b", "mi300x-roce", 256, 1),
        ("gpt-oss-120b", "gb200-nvl72", 256, 4),
    ] {
        let mut bench = Bench::new(model, cluster, gpus, 1024, 2048);
        let layers = bench.layers.count();
        for _ in 0..60 {
            bench.target = Target::ALL[random.within(0, Target::ALL.len() as u64 - 1) as usize];
            let pp = 1 << random.within(0, 4);
            let vpp = if pp == 1 { 1 } else { random.within(1, 3) as u32 };
            let mut layout = bench.layout(1 << random.within(0, 2), pp, vpp, ep, 1);
            let wanted = layout.expert_parallel > layout.data_parallel * layout.tensor_parallel;
            if wanted || interleave_group(pp, layout.gradient_accumulation_steps).is_none() {
                continue;
            }
            if random.chance(30) && pp > 1 {
                (layout.schedule, layout.virtual_stages) = (Schedule::ZeroBubbleV, 2);
            }
            layout.zero_stage = random.within(0, 3) as u8;
            layout.data_overlap = random.chance(70);
            let cost = bench.cost();
            let tables = Tables::new(&cost, &layout);
            let mut balancing = build(&bench, &layout, &megatron_modes(), None);
            balancing.problem.limit = Bytes(u64::MAX / 16);
            let problem = &balancing.problem;

            // Some split that the problem has, in one way to recompute.
            let mut counts: Vec<u32> = (0..problem.chunks()).map(|chunk| problem.least(chunk)).collect();
            let Some(rest) = layers.checked_sub(counts.iter().sum()) else { continue };
            for _ in 0..rest {
                counts[random.within(0, problem.chunks() as u64 - 1) as usize] += 1;
            }
            let mode = random.within(0, problem.modes.len() as u64 - 1) as u16;
            let recompute = vec![Choice::Mode(mode); counts.len()];
            let assignment = Assignment { layers: counts, recompute };
            let plan = Plan::new(layout, balancing.chunks(&assignment), gpus, 1024, layers).expect("lawful");
            let evaluation = evaluate(problem, &assignment).unwrap();
            let predicted = predict(&cost, &bench.layers, &plan);

            let mut windows = vec![[Picos::ZERO; 2]; pp as usize];
            let mut messages = vec![0; pp as usize];
            let mut by_kind = vec![vec![0; problem.kinds.len()]; pp as usize];
            let mut order = bench.layers.order.iter();
            for (chunk, &n) in predicted.chunks.iter().zip(&assignment.layers) {
                let rank = chunk.rank as usize;
                windows[rank][0] += chunk.forward.total();
                windows[rank][1] += chunk.backward.total();
                messages[rank] += chunk.messages.0;
                order.by_ref().take(n as usize).for_each(|&kind| by_kind[rank][kind as usize] += 1);
            }
            let charged = charged(&bench, &plan, &tables, &windows);
            let every: Vec<Way> = (0..problem.modes.len() as u16).map(Way::Mode).collect();
            let own = traffic(&layout, problem, TablesOf::from(&tables), &[Way::Mode(mode)]);
            let any = traffic(&layout, problem, TablesOf::from(&tables), &every);
            let Sharding { latency, hidden_share, interference, .. } = tables.sharding;
            let sides = [
                (&own.gathers, &any.gathers, hidden_share.1, latency.1),
                (&own.reduces, &any.reduces, hidden_share.0, latency.0),
            ];
            let said = |lines: &[Tail], rank: usize| lines[rank].at(&by_kind[rank]);
            for rank in 0..pp as usize {
                for (at, (own, any, hidden, latency)) in sides.into_iter().enumerate() {
                    let (charged, said, least) = (charged[rank][at], said(own, rank), said(any, rank));
                    let place = format!("{} {plan}: rank {rank}, {at}", bench.target);
                    assert!(least <= said && said <= charged, "{place}: {least} <= {said} <= {charged}");
                    // A rank that may hold nothing with traffic need not pay its latency.
                    let orders = &problem.pipeline.orders[rank];
                    let certain = orders.chunks.iter().any(|&k| problem.least(k as usize) > 0);
                    let unsure = if certain { 0.0 } else { latency.0 as f64 * (1.0 + interference) };
                    let rounding = 4.0 * f64::from(by_kind[rank].iter().sum::<u32>() + 2);
                    let less = hidden * messages[rank] as f64 + unsure + rounding;
                    assert!(said as f64 + less >= charged as f64, "{place}: {said} + {less} < {charged}");
                    ranks += 1;
                    paying += u32::from(said as f64 > 10.0 * less);
                    hiding += u32::from(said as f64 > 10.0 * less && hidden > 0.0);
                }
            }
            // With the passes of the plan, the step that is predicted.
            let mut order = bench.layers.order.iter();
            let weight = problem.fixed.iter().zip(&assignment.layers).map(|(fixed, &n)| {
                let own = order.by_ref().take(n as usize).map(|&kind| problem.kinds[kind as usize].weight);
                fixed.weight + own.sum()
            });
            let weight: Vec<Picos> = weight.collect();
            let (forward, backward) = (&evaluation.forward, &evaluation.backward);
            let load = Load { forward, backward, weight: &weight, hop: problem.hop };
            let mut simulator = Simulator::default();
            let makespan = simulator.run(shape(&layout), load).0;
            let all = 0..pp as usize;
            let wait = |rank: usize| said(&own.gathers, rank).saturating_sub(simulator.starts[rank].0);
            let end = |rank: usize| said(&own.reduces, rank) + simulator.ends[rank].0;
            let step = all.clone().map(wait).max().unwrap() + all.map(end).max().unwrap().max(makespan);
            let item = |name| predicted.times.iter().find(|item| item.0 == name).unwrap().1.0;
            let charged = item("weight_gather") + makespan + item("gradient_reduction");
            assert!(step <= charged, "{} {plan}: {step} > {charged}", bench.target);
            ending += u32::from(charged - makespan < 2 * (step - makespan) && step > makespan);
        }
    }
    let said = format!("{ranks} ends of ranks, {paying} pay, {hiding} of them hide; {ending} plans end so");
    println!("{said}");
    assert!(paying > 1_000 && hiding > 300 && ending > 100, "{said}");
}

/// In-flight vectors are told apart only as far as memory can tell them apart: the largest weighted sum
/// is that of all states of the schedule.
#[test]
fn in_flight_vectors_lose_no_state() {
    let mut random = Random(5);
    for _ in 0..400 {
        let ranks = random.within(2, 9) as u32;
        let virtual_stages = random.within(2, 6) as u32;
        let micro_batches = random.within(u64::from(ranks), 90) as u32;
        let shape = Shape { schedule: Schedule::Interleaved, ranks, virtual_stages, micro_batches };
        if interleave_group(ranks, micro_batches).is_none() {
            continue;
        }
        let pipeline = Pipeline::of(shape);
        assert_eq!(in_flight(steady(shape)), in_flight(shape), "{shape:?}");
        let vectors = autoplan::cost::schedule::in_flight_vectors(shape);
        for (rank, (order, all)) in pipeline.orders.iter().zip(vectors).enumerate() {
            for _ in 0..20 {
                let weights: Vec<u64> = (0..virtual_stages).map(|_| random.within(0, 50)).collect();
                let sum = |counts: &[u32]| counts.iter().zip(&weights).map(|(&n, w)| u64::from(n) * w).sum();
                let expected: u64 = all.iter().map(|counts| sum(counts)).max().unwrap();
                let found: u64 = order.in_flight.chunks(virtual_stages as usize).map(sum).max().unwrap();
                assert_eq!(found, expected, "{shape:?} rank {rank}");
            }
        }
    }
}
