//! Balancing the stages of one layout: the dynamic programme that the search calls, with one chunk per rank
//! and several, and the integer programme that checks what is printed. Before criterion runs, the spread of
//! single calls is printed: mean, 99th percentile and maximum.
//!
//! `cargo bench --bench balance` runs all of it.

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use autoplan::cost::schedule::Shape;
use autoplan::plan::Schedule;
use autoplan::stages::milp::{self, Limits};
use autoplan::stages::{
    Balancer, Block, Fixed, Freedom, Kind, Mode, Objective, Outcome, Pipeline, Problem, Run, Spread,
};
use autoplan::units::{Bytes, Picos};
use criterion::{Criterion, criterion_group, criterion_main};

const LAYERS: u32 = 128;
const RANKS: u32 = 16;

/// A model of 128 layers on 16 ranks with the proportions of real ones: a head of 0.3 to 2.5 layers, a dozen
/// ways to recompute and whole layers beside, memory such that many splits need some of it.
fn problem(seed: u64, kinds: usize, virtual_stages: u32, freedom: Freedom) -> Problem {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut within = |low: u64, high: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        low + (state >> 33) % (high - low + 1)
    };
    let us = |x: u64| Picos(x * 1_000_000);
    let mb = |x: u64| Bytes(x * 1_000_000);
    let m = RANKS * within(1, 16) as u32;
    let f = within(900, 1_100);
    let scale: Vec<u64> = (0..kinds).map(|q| if q == 0 { 100 } else { within(30, 300) }).collect();
    let kind = |&s: &u64| Kind {
        forward: us(f * s / 100),
        backward: us(2 * f * s / 100),
        held: mb(600 * s / 100),
        ..Kind::default()
    };
    let mode = |z: u64| Mode {
        extra: scale.iter().map(|s| us(f * s * z * z / 100 / 121)).collect(),
        kept: scale.iter().map(|s| mb((300 - 24 * z) * s / 100)).collect(),
        transient: scale.iter().map(|s| mb((400 + 20 * z) * s / 100)).collect(),
        group: 1,
        offered: true,
        ..Mode::default()
    };
    let runs = if kinds == 1 {
        vec![Run { kind: 0, count: LAYERS }]
    } else {
        vec![Run { kind: 1, count: 3 }, Run { kind: 0, count: LAYERS - 3 }]
    };
    let chunks = (RANKS * virtual_stages) as usize;
    let mut fixed = vec![Fixed::default(); chunks];
    fixed[0] = Fixed { forward: us(50), backward: us(100), held: mb(2_000), kept: mb(30), ..fixed[0] };
    let head = within(30, 250);
    fixed[chunks - 1] = Fixed {
        forward: us(f * head / 100),
        backward: us(2 * f * head / 100),
        held: mb(2_000),
        transient: mb(3_000),
        ..Fixed::default()
    };
    let schedule = if virtual_stages > 1 { Schedule::Interleaved } else { Schedule::OneFOneB };
    let shape = Shape { schedule, ranks: RANKS, virtual_stages, micro_batches: m };
    let problem = Problem {
        pipeline: Arc::new(Pipeline::of(shape)),
        kinds: scale.iter().map(kind).collect(),
        runs: runs.into(),
        modes: (0..12).map(mode).collect(),
        block: Some(Block { full: 11, rest: 0, counts: (1, LAYERS), hopeless: false }),
        freedom,
        fixed,
        rank_bytes: mb(1_000),
        shared: vec![],
        limit: mb(within(20_000, 45_000)),
        hop: us(10),
        min_layers: 1,
        tail: None,
        hopeless: 0..0,
    };
    problem.check().expect("a sound problem");
    problem
}

fn spread(name: &str, problems: &[Problem], mut solve: impl FnMut(&Problem)) {
    let mut times: Vec<Duration> = problems
        .iter()
        .map(|problem| {
            let start = Instant::now();
            solve(problem);
            start.elapsed()
        })
        .collect();
    times.sort_unstable();
    let mean = times.iter().sum::<Duration>() / times.len() as u32;
    let at = |share: usize| times[(times.len() - 1) * share / 100];
    println!("{name}: mean {mean:?}, median {:?}, p99 {:?}, max {:?}", at(50), at(99), at(100));
}

fn balance(c: &mut Criterion) {
    let families = [("one kind", 1), ("dense, then MoE", 2)];
    let mut balancer = Balancer::new();
    for (name, kinds) in families {
        for freedom in [Freedom::Global, Freedom::PerStage] {
            let set = |v: u32, count: u64| -> Vec<Problem> {
                (0..count).map(|seed| problem(seed, kinds, v, freedom)).collect()
            };
            let single = set(1, 1_000);
            spread(&format!("dynamic, {name}, {freedom:?}"), &single, |problem| {
                black_box(balancer.solve(problem, Objective::Chain, None));
            });
            let mut next = single.iter().cycle();
            c.bench_function(&format!("dynamic/{name}/{freedom:?}"), |b| {
                b.iter(|| next.next().map(|problem| balancer.solve(problem, Objective::Chain, None)));
            });
            let chunked = set(4, 500);
            spread(&format!("four chunks per rank, {name}, {freedom:?}"), &chunked, |problem| {
                let mut splits = balancer.splits(problem, Spread::Uneven);
                black_box(balancer.completions(problem, &mut splits, Picos(u64::MAX)));
            });
            let limits = Limits { seconds: 2.0, nodes: 2_000, gap: 0.0 };
            spread(&format!("integer programme, {name}, {freedom:?}"), &single[..20], |problem| {
                // As in the product: it has to find again what the dynamic programme has, and prove it.
                if let Outcome::Found(known) = balancer.solve(problem, Objective::Chain, None) {
                    black_box(milp::solve_chain_then_closed(problem, Some(known), limits));
                }
            });
        }
    }
}

criterion_group!(benches, balance);
criterion_main!(benches);
