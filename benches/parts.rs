//! What a search is made of, one at a time: pricing a cell, bounding and balancing a layout, simulating a
//! schedule, predicting a plan with every item of its time and memory.

use std::hint::black_box;
use std::sync::Arc;

use autoplan::candidates::Space;
use autoplan::cost::CellKey;
use autoplan::cost::model::Parts;
use autoplan::cost::schedule::{LANES, Lanes, Load, Shape, Simulator};
use autoplan::cost::step::{Tables, predict_with, shape};
use autoplan::frameworks::legal;
use autoplan::plan::Schedule;
use autoplan::planner::Task;
use autoplan::search::balance::{Balancing, LegalModes, RecomputeFamily, Ways};
use autoplan::search::{Request, Silent};
use autoplan::stages::relax::{ANY, Relaxation};
use autoplan::stages::{Balancer, Objective, Pipeline};
use autoplan::survey::{Scratch, Surveyor};
use autoplan::units::Picos;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};

fn task(model: &str, cluster: &str, gpus: u32, batch: u32, length: u32) -> Task {
    Task::shipped(model, cluster, gpus, batch, length).expect("a shipped model and cluster")
}

/// Everything on the way from a layout to its plan, on the best layout of one chunk per rank.
fn layout(c: &mut Criterion, name: &str, task: &mut Task) {
    task.restrictions.virtual_stages.max = Some(1);
    task.restrictions.pipeline_parallel.only = Some(vec![16]);
    let prepared = task.prepare();
    let cost = prepared.cost();
    let answer = prepared.search(&Request { top: 1, ..Request::default() }, &Silent);
    let plan = &answer.found.first().expect("a plan").plan;
    let layout = *plan.layout();
    let key = CellKey::from(&layout);
    let space = Space::new(task.target, &prepared.context, &task.restrictions);
    let mut parts = Parts::default();
    let tables = Tables::new(&cost, &layout);
    let modes = LegalModes::new(task.target, &prepared.context, &layout, &tables.cell, None);
    let ways = Ways::new(&RecomputeFamily::new(&modes, &tables.cell), &tables.cell);
    let pipeline = Arc::new(Pipeline::of(shape(&layout)));
    let build = || {
        let capabilities = space.capabilities();
        Balancing::of(pipeline.clone(), &cost, &prepared.layers, &layout, &tables, &ways, capabilities)
    };
    let balancing = build();

    let mut group = c.benchmark_group(name);
    group.throughput(Throughput::Elements(1));
    group.bench_function("groups of the space", |b| b.iter(|| space.groups().len()));
    group.bench_function("total of a cell", |b| b.iter(|| cost.cell_total(black_box(&key), &mut parts)));
    group.bench_function("cell", |b| b.iter(|| cost.cell_with(black_box(&key), &mut parts)));
    group.bench_function("sharding", |b| b.iter(|| cost.sharding(black_box(&layout))));
    group.bench_function("rules", |b| {
        b.iter(|| legal(task.target, &prepared.context, black_box(&layout)).is_ok());
    });
    group.bench_function("recompute modes", |b| b.iter(|| RecomputeFamily::new(&modes, &tables.cell)));
    group.bench_function("balancing problem", |b| {
        b.iter(build);
    });
    let mut relaxation = Relaxation::default();
    group.bench_function("relaxed bound", |b| {
        b.iter(|| relaxation.lower_bound(black_box(&balancing.problem), ANY));
    });
    let mut balancer = Balancer::new();
    group.bench_function("balance, chain bound", |b| {
        b.iter(|| balancer.solve(black_box(&balancing.problem), Objective::Chain, None));
    });
    let mut simulator = Simulator::default();
    group.bench_function("predict, every item", |b| {
        b.iter(|| predict_with(&cost, &prepared.layers, black_box(plan), &tables, &mut simulator));
    });
    group.finish();
}

fn dense(c: &mut Criterion) {
    layout(c, "llama3.1-405b on 16384", &mut task("llama3.1-405b", "dgx-h100", 16_384, 2048, 8192));
}

fn experts(c: &mut Criterion) {
    layout(c, "deepseek-v3 on 2048", &mut task("deepseek-v3", "h800-ib", 2048, 15_360, 4096));
}

/// Every item of time and memory of every plan with equal stages, nothing skipped, on groups from all over a space.
fn survey(c: &mut Criterion) {
    let mut group = c.benchmark_group("survey");
    for (name, task, every) in [
        ("llama3.1-405b on 16384", task("llama3.1-405b", "dgx-h100", 16_384, 2048, 8192), 101),
        ("mixtral-8x22b on 128", task("mixtral-8x22b", "dgx-h100", 128, 1024, 4096), 101),
        ("deepseek-v3 on 2048", task("deepseek-v3", "h800-ib", 2048, 15_360, 4096), 10_007),
    ] {
        let prepared = task.prepare();
        let cost = prepared.cost();
        let space = Space::new(task.target, &prepared.context, &task.restrictions);
        let surveyor = Surveyor { cost: &cost, layers: &prepared.layers, space: &space };
        let groups: Vec<_> = space.groups().into_iter().step_by(every).collect();
        let mut scratch = Scratch::default();
        let mut all = || {
            let mut plans = 0;
            for group in &groups {
                surveyor.each(group, &mut scratch, |alike| plans += black_box(alike.plans).len() as u64);
            }
            plans
        };
        group.throughput(Throughput::Elements(all()));
        group.sample_size(10);
        group.bench_function(name, |b| b.iter(&mut all));
    }
    group.finish();
}

/// Event simulation with stages of unequal length, so that no steady state helps.
fn simulation(c: &mut Criterion) {
    let mut group = c.benchmark_group("simulate");
    for (schedule, virtual_stages) in [(Schedule::OneFOneB, 1), (Schedule::Interleaved, 4)] {
        let shape = Shape { schedule, ranks: 16, virtual_stages, micro_batches: 128 };
        let chunks = u64::from(shape.ranks * shape.virtual_stages);
        let forward: Vec<Picos> = (0..chunks).map(|k| Picos(1_000_000 + k * 7919 % 100_000)).collect();
        let backward: Vec<Picos> = forward.iter().map(|f| *f * 2).collect();
        let load = Load { forward: &forward, backward: &backward, weight: &backward, hop: Picos(10_000) };
        let mut simulator = Simulator::default();
        group.throughput(Throughput::Elements(2 * chunks * u64::from(shape.micro_batches)));
        group.bench_function(format!("{schedule:?}"), |b| b.iter(|| simulator.run(shape, load)));
        if schedule == Schedule::Interleaved {
            // Eight splits at once, in thousandths.
            let lanes = |times: &[Picos]| -> Vec<Lanes> {
                let of =
                    |time: &Picos| Lanes(std::array::from_fn(|lane| (time.0 / 1_000) as f32 + lane as f32));
                times.iter().map(of).collect()
            };
            let (forward, backward) = (lanes(&forward), lanes(&backward));
            let operations = 2 * chunks * u64::from(shape.micro_batches) * LANES as u64;
            group.throughput(Throughput::Elements(operations));
            group.bench_function("Interleaved, eight at once", |b| {
                b.iter(|| simulator.run_lanes(shape, [&forward, &backward], Picos(10), f32::INFINITY));
            });
        }
    }
    group.finish();
}

criterion_group!(benches, dense, experts, survey, simulation);
criterion_main!(benches);
