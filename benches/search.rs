//! Whole searches, cold: tables, bounds, balancing and simulation, top 10, proved optimal.
//!
//! `cargo bench --bench search` runs all of it; a name after `--` picks one group. How to read the numbers
//! is told in `benches/README.md`.

use std::hint::black_box;
use std::time::Duration;

use autoplan::planner::Task;
use autoplan::search::{Request, Silent};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

/// A job on a shipped cluster: model, cluster, GPUs, sequences per step, tokens per sequence.
type Case = (&'static str, &'static str, u32, u32, u32);

fn task((model, cluster, gpus, batch, length): Case) -> Task {
    Task::shipped(model, cluster, gpus, batch, length).expect("a shipped model and cluster")
}

fn search(task: &Task) -> usize {
    let answer = task.prepare().search(&Request::default(), &Silent);
    assert!(answer.optimality_gap == 0.0, "a search that was not stopped proves its answer");
    answer.found.len()
}

fn whole(c: &mut Criterion) {
    let mut group = c.benchmark_group("search");
    group.sample_size(10).measurement_time(Duration::from_secs(10)).warm_up_time(Duration::from_millis(500));
    let cases: [Case; 6] = [
        ("llama3.1-8b", "dgx-a100", 8, 128, 4096),
        ("llama3.1-70b", "dgx-h100", 512, 1024, 8192),
        ("llama3.1-405b", "dgx-h100", 16_384, 2048, 8192),
        ("mixtral-8x22b", "dgx-h100", 128, 512, 4096),
        ("deepseek-v3", "h800-ib", 2048, 15_360, 4096),
        ("deepseek-v3", "h800-ib", 16_384, 15_360, 4096),
    ];
    for case in cases {
        let task = task(case);
        group.bench_function(format!("{} on {}", case.0, case.2), |b| b.iter(|| search(black_box(&task))));
    }
    group.finish();
}

/// The same search on one thread and on two.
fn threads(c: &mut Criterion) {
    let mut group = c.benchmark_group("threads");
    group.sample_size(10).measurement_time(Duration::from_secs(10)).warm_up_time(Duration::from_millis(500));
    let task = task(("llama3.1-405b", "dgx-h100", 16_384, 2048, 8192));
    for threads in [1, 2] {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("threads");
        group.bench_with_input(BenchmarkId::from_parameter(threads), &threads, |b, _| {
            b.iter(|| pool.install(|| search(black_box(&task))));
        });
    }
    group.finish();
}

/// How the time grows with the number of GPUs: powers of two, and numbers that few degrees divide.
fn growth(c: &mut Criterion) {
    let mut group = c.benchmark_group("gpus");
    group.sample_size(10).measurement_time(Duration::from_secs(5)).warm_up_time(Duration::from_millis(300));
    for gpus in [512, 1_536, 4_096, 10_240, 24_576, 131_072, 1_000_000] {
        // Eight sequences per GPU at most: the batch must divide.
        let task = task(("llama3.1-405b", "dgx-h100", gpus, gpus, 8192));
        group.throughput(Throughput::Elements(u64::from(gpus)));
        group.bench_function(gpus.to_string(), |b| b.iter(|| search(black_box(&task))));
    }
    group.finish();
}

criterion_group!(benches, whole, threads, growth);
criterion_main!(benches);
