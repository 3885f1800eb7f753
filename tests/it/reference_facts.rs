//! The reference facts (`results/reference/reference_facts.csv`): formulas, exercises and claims about
//! training at scale, each with the value that is right. Every row is computed by the library's own
//! functions, or listed as prose with the reason why there is nothing to compute; a row that is neither
//! fails the test.

use std::collections::BTreeMap;

use autoplan::cost::advice::{
    BatchAdvice, BatchChange, LearningRateSchedule, NumberFormat, REFERENCE_WARM_UP_STEPS, batch_advice,
    linear_rule, optimizer_steps, precision_advice, square_root_rule, warm_up_steps,
};
use autoplan::cost::goodput::{checkpoint_bytes, first_order_loss, young_interval};
use autoplan::cost::model::CostModel;
use autoplan::cost::money::{energy, failure_cost, waste};
use autoplan::cost::network::{
    Fabric, all_reduce_bus_bandwidth, alpha_beta, binomial_tree_all_reduce, crossover,
    double_tree_all_reduce, ring_all_reduce, ring_all_reduce_volume, ring_gather_volume,
};
use autoplan::cost::roofline::{Ceiling, Ceilings};
use autoplan::cost::scaling::{
    CHINCHILLA, least_gpus, micro_batches_for_bubble, petaflop_days, time_at, tokens_factor, training_flops,
    utilisation,
};
use autoplan::cost::schedule::{Load, Shape, Simulator, bubble_fraction, bubble_ratio};
use autoplan::cost::step::{STEP_ITEMS, StepItem, StepTimes, exposed, predict};
use autoplan::cost::{CellCosts, CellKey, Item, LayerCost, StateClass, Times};
use autoplan::frameworks::profile::Profile;
use autoplan::layers::{
    AttentionCount, LayerParameters, Layers, core_flops_per_token, linear_flops_per_token, model_flops,
    parameter_count,
};
use autoplan::memory::{LowPrecision, moment_bytes, plain_layer_activations, states, zero_bytes};
use autoplan::plan::{Chunk, ContextComm, Dispatcher, Layout, Offload, Place, Plan, Recompute, Schedule};
use autoplan::spec::cluster::{Accelerator, Architecture, Cluster, Format};
use autoplan::spec::job::{Job, Optimizer, Phase, Precision, Routing, Training};
use autoplan::spec::model::{Activation, Model};
use autoplan::spec::ron_options;
use autoplan::units::{
    Bandwidth, Bytes, Dollars, DollarsPerHour, FlopRate, Flops, Picos, Seconds, Tokens, Watts,
};

const FACTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/results/reference/reference_facts.csv");

/// Values are printed with up to ten digits.
const PRINTED: f64 = 1e-9;

struct Row {
    id: String,
    inputs: BTreeMap<String, String>,
    /// What has to be asserted: the expectation where it is right, else its correction.
    asserted: String,
    tolerance: f64,
}

impl Row {
    /// An input by name; `1e9` and `70e9` read as numbers.
    fn get(&self, name: &str) -> f64 {
        let text = self.inputs.get(name).unwrap_or_else(|| panic!("{} has no input {name}", self.id));
        text.parse().unwrap_or_else(|_| panic!("{}: {name}={text} is not a number", self.id))
    }
    fn int(&self, name: &str) -> u32 {
        self.get(name) as u32
    }
}

/// What the library says to a row.
enum Found {
    /// Numbers, in the row's unit.
    Numbers(Vec<f64>),
    /// The row's text, and whether what it says holds.
    Holds(&'static str, bool),
    /// Nothing to compute, for this reason.
    Prose(&'static str),
}
use Found::{Holds, Prose};

fn number(value: f64) -> Option<Found> {
    Some(Found::Numbers(vec![value]))
}

fn numbers<const N: usize>(values: [f64; N]) -> Option<Found> {
    Some(Found::Numbers(values.to_vec()))
}

fn holds(text: &'static str, truth: bool) -> Option<Found> {
    Some(Holds(text, truth))
}

fn close(found: f64, expected: f64, tolerance: f64) -> bool {
    (found - expected).abs() <= tolerance * expected.abs()
}

fn parse_numbers(text: &str) -> Option<Vec<f64>> {
    text.split(';').map(|part| part.trim().parse().ok()).collect()
}

fn rows() -> Vec<Row> {
    let mut reader = csv::Reader::from_path(FACTS).unwrap();
    let headers = reader.headers().unwrap().clone();
    let column = |name: &str| headers.iter().position(|h| h == name).unwrap();
    let [id, inputs, expected, tolerance, verdict, corrected] =
        ["id", "inputs", "expected", "tolerance", "verdict", "corrected_expected"].map(column);
    let mut rows = Vec::new();
    for record in reader.records() {
        let record = record.unwrap();
        let right = match &record[verdict] {
            "right" => true,
            "loose" | "wrong" => false,
            other => panic!("{}: verdict {other}", &record[id]),
        };
        let (expected, corrected) = (&record[expected], &record[corrected]);
        // A right row may print its number only in the correction (what the document lost).
        let lost = parse_numbers(expected).is_none()
            && (parse_numbers(corrected).is_some() || (expected == "-" && corrected != "same"));
        let asserted = if right && !lost { expected } else { corrected };
        rows.push(Row {
            id: record[id].to_owned(),
            inputs: record[inputs]
                .split(';')
                .filter_map(|pair| pair.split_once('='))
                .map(|(key, value)| (key.trim().to_owned(), value.trim().to_owned()))
                .collect(),
            asserted: asserted.to_owned(),
            tolerance: record[tolerance].parse().unwrap(),
        });
    }
    rows
}

fn read<T: serde::de::DeserializeOwned>(path: &str) -> T {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path:?}: {e}"));
    ron_options().from_str(&text).unwrap_or_else(|e| panic!("{path:?}: {e}"))
}

fn h100() -> Accelerator {
    read("clusters/accelerators/h100-sxm.ron")
}

fn dgx() -> Cluster {
    read("clusters/dgx-h100.ron")
}

/// A model of equal layers.
fn model(h: u64, layers: u32, attention: &str, feed_forward: &str, vocabulary: u64) -> Model {
    let text = format!(
        "(schema: 1, name: \"facts\", hidden: {h}, vocabulary: {vocabulary}, max_sequence: 131072,
          blocks: {{\"layer\": (mixer: Attention({attention}), feed_forward: {feed_forward})}},
          layers: [(repeat: {layers}, of: [\"layer\"])])"
    );
    ron_options().from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

fn heads(heads: u64, kv_heads: u64, head_dim: u64) -> String {
    format!("heads: {heads}, kv_heads: {kv_heads}, head_dim: {head_dim}")
}

/// A layer of 12 d^2 parameters: full heads and a plain feed-forward part of 4 d.
fn typical(d: u64) -> Model {
    model(d, 1, &heads(32, 32, d / 32), &format!("Dense(width: {}, activation: Gelu)", 4 * d), 128)
}

fn llama_70b() -> Model {
    model(8192, 80, &heads(64, 8, 128), "Dense(width: 28672)", 128_256)
}

fn llama_405b() -> Model {
    model(16_384, 126, &heads(128, 8, 128), "Dense(width: 53248)", 128_256)
}

fn layer_of(model: &Model) -> LayerParameters {
    Layers::new(model).kinds[0].parameters
}

/// Training FLOPs of the first layer for one sequence, half of the attention square counted.
fn layer_flops(model: &Model, sequence: u64) -> f64 {
    let block = &model.blocks["layer"];
    let token =
        linear_flops_per_token(model, block) + core_flops_per_token(block, sequence, AttentionCount::Causal);
    3.0 * token.0 * sequence as f64
}

fn layout() -> Layout {
    Layout { data_overlap: true, ..Layout::ONE }
}

fn job(gpus: u32, sequence_length: u32) -> Job {
    Job {
        gpus,
        global_batch_size: gpus,
        sequence_length,
        precision: Precision::Bf16,
        optimizer: Optimizer::Adamw,
        training: Training::Full,
        memory_limit: None,
        tokens: None,
        routing: Routing::Balanced,
        packed: None,
        expert_capacity: None,
    }
}

/// Runs `then` on the cost model of `model` on H100 nodes.
fn priced<T>(
    model: &Model,
    gpus: u32,
    sequence_length: u32,
    change: impl FnOnce(&mut Accelerator, &mut Cluster, &mut Profile, &mut Job),
    then: impl FnOnce(&CostModel) -> T,
) -> T {
    let (mut accelerator, mut cluster) = (h100(), dgx());
    let mut profile = Profile::find("megatron").unwrap().clone();
    let mut job = job(gpus, sequence_length);
    change(&mut accelerator, &mut cluster, &mut profile, &mut job);
    let layers = Layers::new(model);
    then(&CostModel::new(model, &layers, &cluster, &accelerator, &profile, &job))
}

fn cell(model: &Model, sequence_length: u32, layout: &Layout) -> CellCosts {
    let gpus = layout.gpus() as u32;
    priced(model, gpus, sequence_length, |_, _, _, _| {}, |cost| cost.cell(&CellKey::from(layout)))
}

fn first_layer(model: &Model, sequence_length: u32, layout: &Layout) -> LayerCost {
    cell(model, sequence_length, layout).layers.swap_remove(0)
}

/// ZeRO bytes of the row's recipe (2 + 2 + 12) in GB.
fn zero(parameters: f64, stage: u8, ranks: u32) -> f64 {
    zero_bytes(
        parameters,
        stage,
        u64::from(ranks),
        2.0,
        2.0,
        4.0 + moment_bytes(Optimizer::Adamw, StateClass::Dense),
    ) / 1e9
}

fn milliseconds(seconds: Seconds) -> f64 {
    seconds.0 * 1e3
}

fn gigabytes(value: f64) -> Bytes {
    Bytes((value * 1e9) as u64)
}

fn rate(gigabytes_per_second: f64) -> Bandwidth {
    Bandwidth(gigabytes_per_second * 1e9)
}

/// Ring all-reduce of `payload` GB over `ranks` at `bandwidth` GB/s without latency, in ms.
fn ring(ranks: u32, payload: f64, bandwidth: f64) -> f64 {
    milliseconds(ring_all_reduce(u64::from(ranks), gigabytes(payload), rate(bandwidth), Seconds(0.0)))
}

/// Equal stages of forward and backward time `f` and `b`, of which `weight` can move.
fn simulate(schedule: Schedule, p: u32, v: u32, m: u32, f: u64, b: u64, weight: u64) -> u64 {
    let count = (p * v) as usize;
    let (forward, backward) = (vec![Picos(f); count], vec![Picos(b); count]);
    let weight = vec![Picos(weight); count];
    let shape = Shape { schedule, ranks: p, virtual_stages: v, micro_batches: m };
    let load = Load { forward: &forward, backward: &backward, weight: &weight, hop: Picos::ZERO };
    Simulator::default().run(shape, load).0
}

fn in_flight(schedule: Schedule, p: u32, m: u32, rank: u32) -> u32 {
    Shape { schedule, ranks: p, virtual_stages: 1, micro_batches: m }.in_flight(rank)
}

fn change(from: u32, to: u32, data_parallel: u32, micro_batch_size: u32) -> BatchAdvice {
    batch_advice(&BatchChange {
        from,
        to,
        sequence_length: 4096,
        parameters: 7_000_000_000,
        tokens: Tokens(2_000_000_000_000),
        learning_rate: Some(3e-4),
        warm_up_steps: REFERENCE_WARM_UP_STEPS,
        pipeline_parallel: 1,
        virtual_stages: 1,
        data_parallel,
        micro_batch_size,
    })
}

fn accumulation(batch: u32, micro_batch: u32, data_parallel: u32) -> Option<u32> {
    let advice = change(batch, batch, data_parallel, micro_batch);
    advice.accumulation.to.map(|a| a.gradient_accumulation_steps)
}

/// A step of the given parts, by item.
fn step_of(parts: &[(usize, f64)]) -> StepTimes {
    let mut times = StepTimes([Picos::ZERO; STEP_ITEMS]);
    for &(item, seconds) in parts {
        times.0[item] += Seconds(seconds).picos();
    }
    times
}

/// Layer with experts of half width, as many shared as routed to each token.
fn expert_model(
    h: u64,
    layers: u32,
    attention: &str,
    experts: u64,
    top_k: u64,
    width: u64,
    shared: u64,
) -> Model {
    let moe = format!("Moe(experts: {experts}, top_k: {top_k}, width: {width}, shared_width: {shared})");
    model(h, layers, attention, &moe, 128_256)
}

fn energy_dollars(row: &Row) -> f64 {
    let (mut accelerator, mut cluster) = (h100(), dgx());
    accelerator.power = Watts(row.get("W"));
    cluster.energy.utilisation = 1.0;
    cluster.energy.host_per_gpu = Watts(0.0);
    cluster.energy.pue = 1.0;
    cluster.energy.dollars_per_kwh = row.get("usd_kwh");
    let time = Seconds(row.get("days") * 86_400.0);
    energy(&cluster, &accelerator, row.int("gpus"), time).price.0
}

/// Seconds per parameter that moving gradients down and weights up adds to a step whose optimizer lives
/// in host memory behind a link of `bandwidth`.
fn offload_seconds(bandwidth: f64) -> f64 {
    let with_link = |link: f64| {
        let layout = Layout { offload: Offload { optimizer: Place::Cpu, ..Offload::NONE }, ..layout() };
        let change = |a: &mut Accelerator, _: &mut Cluster, p: &mut Profile, _: &mut Job| {
            a.host_link = Bandwidth(link);
            // BF16 gradients leave the GPU.
            p.memory.bf16.gradients = 2.0;
        };
        let sharding = priced(&typical(4096), 1, 4096, change, |cost| cost.sharding(&layout));
        sharding.classes[StateClass::Dense as usize].update / 1e12
    };
    with_link(bandwidth) - with_link(1e30)
}

/// Bytes of an 80 GB H100 that a framework sees.
const VISIBLE: u64 = 84_900_000_000;

const CONCEPT: &str = "a concept without a value or a rule to compute";
const RUNTIME: &str = "arithmetic that the trainer does while it runs; a plan does not change it";
const RULE: &str = "a rule for how to write, kept by the names in the code";

#[expect(clippy::too_many_lines, reason = "one arm for each row of the table")]
fn check(row: &Row) -> Option<Found> {
    match row.id.as_str() {
        // Notation.
        "N01" => number(Bytes::parse("1GB").unwrap().0 as f64),
        "N02" => number(Bytes::parse("1GiB").unwrap().0 as f64),
        "N03" => number(h100().rates[&Format::Bf16].peak.0 / 1e12),
        "N04" => number(
            alpha_beta(Seconds(row.get("alpha")), Bandwidth(row.get("beta")), Bytes(row.get("n") as u64)).0,
        ),
        "N05" => number(crossover(Seconds(row.get("alpha")), Bandwidth(row.get("beta"))).0 as f64),
        "N06" => {
            let parts = [
                (Item::Gemm as usize, row.get("T_comp")),
                (Item::TensorParallel as usize, row.get("T_comm")),
                (StepItem::PipelineBubble as usize, row.get("T_sync")),
            ];
            number(step_of(&parts).total().seconds().0)
        }
        "N07" => {
            let (compute, traffic) = (Seconds(row.get("T_comp")).picos(), Seconds(row.get("T_comm")).picos());
            let inside = [0.0, 0.5, 0.8, 1.0].into_iter().all(|hidden| {
                let step = compute + exposed(traffic, 0.05, hidden, 0.05, compute);
                step >= compute.max(traffic) && step <= compute + traffic
            });
            holds("max(T_comp,T_comm)<=T<=T_comp+T_comm", inside)
        }
        "N08" => {
            let phase =
                Phase { sequence_length: row.int("S"), global_batch_size: row.int("B"), tokens: Tokens(1) };
            number(phase.tokens_per_step().0 as f64)
        }
        "N09" => {
            let owned = 4.0 + moment_bytes(Optimizer::Adamw, StateClass::Dense);
            let recipe = states(Profile::find("megatron").unwrap(), Precision::Fp16);
            numbers([recipe.weights, recipe.gradients, owned])
        }
        "N10" => {
            Some(Prose("spacing of checkpoints is the framework's: recompute modes are searched instead"))
        }
        "N11" => {
            let law = CHINCHILLA;
            numbers([law.alpha, law.beta, law.a, law.b, law.irreducible])
        }
        "N12" => {
            // Degrees beyond the published ranges are plans like any other.
            let wide = Layout {
                tensor_parallel: 16,
                data_parallel: 1024,
                expert_parallel: 2048,
                context_parallel: 64,
                ..layout()
            };
            let chunk = Chunk { layers: 61, recompute: Recompute::None };
            holds("search must not hard-code", Plan::new(wide, vec![chunk], 1 << 20, 1024, 61).is_ok())
        }
        "N13" => Some(Prose(RULE)),
        "N14" => {
            let layer = first_layer(&typical(8192), 4096, &layout());
            let (plain, more) = (layer.forward.total() + layer.backward.total(), layer.full_extra.total());
            holds("HFU>=MFU", more > Picos::ZERO && more < plain)
        }
        "N15" => {
            Some(Prose("dropless routing has no capacity factor; the profiles hold an imbalance factor"))
        }

        // The three walls.
        "S01" => number(zero_bytes(row.get("psi"), 0, 1, row.get("bytes"), 0.0, 0.0) / 1e9),
        "S02" | "S06" => number(zero(row.get("psi"), 0, 1)),
        "S03" => number(training_flops(row.get("psi") as u64, Tokens(row.get("D") as u64)).0),
        "S04" | "S08" => {
            let flops = training_flops(row.get("psi") as u64, Tokens(row.get("D") as u64));
            let share = if row.inputs.contains_key("eta") { row.get("eta") } else { 1.0 };
            number(time_at(flops, 1, FlopRate(row.get("F")), share).0 / 86_400.0)
        }
        "S05" => {
            let used = row.get("util");
            let against = |achievable| waste(Dollars(1.0), used, achievable).share;
            let truth = close(against(1.0), 0.6, PRINTED) && close(against(0.5), 0.2, PRINTED);
            holds("60% of peak, 20% of the achievable 50%", truth)
        }
        "S07" => number(least_gpus(gigabytes(row.get("state_GB")), gigabytes(row.get("hbm_GB"))) as f64),
        "S09" => number(100.0 * waste(Dollars(1.0), row.get("mfu"), row.get("achievable")).share),
        "S10" => number(waste(Dollars(row.get("cost")), 1.0 - row.get("waste"), 1.0).dollars.0),
        "S11" => number(100.0 * waste(Dollars(1.0), row.get("mfu0"), row.get("mfu1")).extra_training),
        "S12" => {
            let c = Ceilings {
                compute: FlopRate(row.get("F")),
                memory: Bandwidth(row.get("Bmem")),
                network: Bandwidth(row.get("Bnet")),
            };
            let nvlink = Ceilings { network: rate(450.0), ..c };
            let ridges = close(c.memory_ridge(), row.get("I_mem"), 1e-3)
                && close(c.network_ridge(), row.get("I_net"), 1e-3)
                && close(nvlink.network_ridge(), 2198.0, 1e-3);
            // Left of each ridge its ceiling binds, right of both compute does.
            let binds = c.attainable(295.0, 19_781.0).1 == Ceiling::Memory
                && c.attainable(296.0, 19_779.0).1 == Ceiling::Network
                && c.attainable(296.0, 19_781.0) == (c.compute, Ceiling::Compute);
            holds("min(F, Bmem*I_mem, Bnet*I_net)", ridges && binds)
        }
        "S12a" => number(ceilings(row.get("F"), row.get("Bmem"), 1.0).memory_ridge()),
        "S12b" | "S12c" => number(ceilings(row.get("F"), 1.0, row.get("Bnet")).network_ridge()),
        "S13" => {
            Some(Prose("a range of published runs, which `results/published/measured.csv` holds one by one"))
        }
        "S14" => Some(Prose(CONCEPT)),
        "S15" => {
            // The numerator counts no recomputation, whatever the plan recomputes.
            let m = llama_70b();
            let flops = model_flops(&m, &Layers::new(&m), 16, 4096, AttentionCount::Causal);
            let used = utilisation(flops, 8, FlopRate(989.4e12), Seconds(10.0));
            let truth = close(used, flops.0 / (8.0 * 989.4e12 * 10.0), PRINTED);
            holds("model FLOPs / (time*peak)", truth)
        }

        // Lesson overview.
        "L01" => number(zero_bytes(row.get("P"), 0, 1, 2.0, 0.0, 0.0) / 1e9),
        "L02" => number(row.get("P") * moment_bytes(Optimizer::Adamw, StateClass::Dense) / 1e9),
        "L03" => number(zero(row.get("P"), 0, 1)),
        "L04" => number(zero(row.get("M") / 16.0, 3, row.int("N"))),
        "L05" => {
            let l = Layout {
                micro_batch_size: row.int("b"),
                gradient_accumulation_steps: row.int("accum"),
                data_parallel: row.int("dp"),
                ..layout()
            };
            number(l.global_batch_size() as f64)
        }
        "L06" => Some(Prose(RUNTIME)),
        "L07" => {
            // Two moments in single precision.
            let bytes = moment_bytes(Optimizer::Adamw, StateClass::Dense);
            holds("m=b1*m+(1-b1)g; v=b2*v+(1-b2)g^2", bytes == 2.0 * 4.0)
        }
        "L08" | "L09" => Some(Prose(RUNTIME)),
        "L10" => {
            let schedule = LearningRateSchedule {
                peak: row.get("eta_max"),
                floor: 0.0,
                warm_up_steps: u64::from(row.int("T")),
                steps: 100_000,
            };
            number(schedule.at(u64::from(row.int("t"))))
        }
        "L11" => {
            let (peak, floor) = (row.get("eta_max"), row.get("eta_min"));
            let schedule = LearningRateSchedule { peak, floor, warm_up_steps: 0, steps: 1000 };
            number(schedule.at((row.get("s") * 1000.0) as u64))
        }
        "L12" => {
            let truth = close(change(256, 1024, 8, 1).gradient_variance_factor, 0.25, PRINTED);
            holds("only in the useful regime", truth)
        }
        "L13" => {
            let l = Layout {
                data_parallel: row.int("dp"),
                tensor_parallel: row.int("tp"),
                pipeline_parallel: row.int("pp"),
                context_parallel: row.int("cp"),
                ..layout()
            };
            number(l.gpus() as f64)
        }
        "L14" => {
            // Column-parallel matrices lose rows of outputs, row-parallel ones columns of inputs.
            let m = model(8192, 1, &heads(64, 64, 128), "Dense(width: 32768, activation: Gelu)", 128);
            let shapes = |tensor_parallel| {
                let l = Layout { tensor_parallel, ..layout() };
                first_layer(&m, 4096, &l).weight_shapes
            };
            let (one, eight) = (shapes(1), shapes(8));
            let truth = one == [(24_576, 8192), (8192, 8192), (32_768, 8192), (8192, 32_768)]
                && eight == [(3072, 8192), (8192, 1024), (4096, 8192), (8192, 4096)];
            holds("column: concat, row: sum", truth)
        }
        "L15" => {
            // Sequence parallelism divides only what tensor parallelism leaves whole; context parallelism
            // divides all that a layer keeps.
            let kept = |l: Layout| first_layer(&llama_70b(), 8192, &l).kept.0 as f64;
            let tp = Layout { tensor_parallel: 8, ..layout() };
            let (whole, split) = (kept(tp), kept(Layout { sequence_parallel: true, ..tp }));
            let halved = kept(Layout { context_parallel: 2, sequence_parallel: true, ..tp });
            let truth = whole > 1.5 * split && close(halved, split / 2.0, 1e-6);
            holds("two different schemes", truth)
        }
        "L16" => number(row.get("psi") * offload_seconds(row.get("pcie"))),
        "L17" => {
            let layer = first_layer(&typical(8192), 4096, &layout());
            let same = close(layer.full_extra.total().0 as f64, layer.forward.total().0 as f64, 1e-6);
            // Of three units of FLOPs, forward is one.
            let m = llama_70b();
            let token = model_flops(&m, &Layers::new(&m), 1, 8192, AttentionCount::Causal).0 / 8192.0;
            let block = &m.blocks["layer"];
            let forward =
                linear_flops_per_token(&m, block) + core_flops_per_token(block, 8192, AttentionCount::Causal);
            let head = 2.0 * 8192.0 * 128_256.0;
            let truth = same && close((80.0 * forward.0 + head) / token, 1.0 / 3.0, PRINTED);
            holds("trade memory for FLOPs", truth)
        }
        "L18" => number(bubble_fraction(row.int("p"), 1, row.int("m"))),
        "L19" => {
            // Each limit that a step can have is named; memory limits before there is a step, and data
            // by the token budget.
            let limits =
                |item: usize| step_of(&[(Item::Gemm as usize, 1.0), (item, 0.5)]).limiting(Picos::ZERO);
            let truth = step_of(&[(Item::Gemm as usize, 1.0)]).limiting(Picos::ZERO) == "compute"
                && limits(Item::TensorParallel as usize) == "tensor_parallel"
                && limits(StepItem::GradientReduction as usize) == "gradient_reduction"
                && limits(StepItem::PipelineBubble as usize) == "pipeline_bubble";
            Some(Holds("-", truth))
        }
        "L20" => {
            // At a fixed global batch fewer seconds are more tokens per second: every plan trains alike.
            let step = |seconds: f64| 16_777_216.0 / Seconds(seconds).picos().seconds().0;
            Some(Holds("-", step(6.4) > step(6.5)))
        }

        // Collectives.
        "W0.1" => {
            number(ring_all_reduce_volume(u64::from(row.int("N")), gigabytes(row.get("M_GB"))).gigabytes())
        }
        "W0.2" | "W0.4a" => number(ring(row.int("N"), row.get("M_GB"), row.get("bw_GBs"))),
        "W0.3" => {
            let time = Seconds(row.get("t_ms") / 1e3);
            let bus = all_reduce_bus_bandwidth(u64::from(row.int("N")), gigabytes(row.get("M_GB")), time);
            number(100.0 * (bus / rate(row.get("peak_GBs"))))
        }
        "W0.4" => {
            let (n, payload, bandwidth) =
                (u64::from(row.int("N")), gigabytes(row.get("M_GB")), rate(row.get("bw_GBs")));
            let zero = Seconds(0.0);
            let times = [ring_all_reduce, binomial_tree_all_reduce, double_tree_all_reduce]
                .map(|f| milliseconds(f(n, payload, bandwidth, zero)));
            let truth = times.iter().zip([140.0, 480.0, 160.0]).all(|(&t, e)| close(t, e, row.tolerance));
            // With latency and many ranks the tree wins.
            let hop = Seconds(5e-6);
            let tree_wins = double_tree_all_reduce(1024, Bytes(1 << 20), bandwidth, hop)
                < ring_all_reduce(1024, Bytes(1 << 20), bandwidth, hop);
            holds(
                "ring 140; unpipelined binomial tree 480; pipelined double binary tree 160",
                truth && tree_wins,
            )
        }
        "W0.4b" | "W0.4c" => {
            let tree = if row.id == "W0.4b" { binomial_tree_all_reduce } else { double_tree_all_reduce };
            let (payload, bandwidth) = (gigabytes(row.get("M_GB")), rate(row.get("bw_GBs")));
            number(milliseconds(tree(u64::from(row.int("N")), payload, bandwidth, Seconds(0.0))))
        }
        "W0.5" => {
            let (payload, bandwidth) = (gigabytes(row.get("M_GB")), rate(row.get("bw_GBs")));
            let hop = Seconds(row.get("lat_us") * 1e-6);
            number(milliseconds(ring_all_reduce(u64::from(row.int("N")), payload, bandwidth, hop)))
        }
        "W0.6" => {
            // 2 (n - 1) steps of an n-th of the payload each, and no further factor of two.
            let (n, payload) = (8, gigabytes(1.0));
            let one = alpha_beta(Seconds(5e-6), rate(50.0), payload / n);
            let all = ring_all_reduce(n, payload, rate(50.0), Seconds(5e-6));
            holds("line 6", close(all.0, one.0 * 2.0 * (n - 1) as f64, PRINTED))
        }
        "W0.T1" => {
            // The root receives one payload from every other rank: what it gathers of n payloads.
            let (n, payload) = (8, gigabytes(1.0));
            holds("in (N-1)M, out (N-1)M", ring_gather_volume(n, payload * n) == payload * (n - 1))
        }

        // ZeRO.
        "W1.1" | "W1.2" | "W1.3" | "W1.4" | "W1.6b" => {
            number(zero(row.get("psi"), row.int("stage") as u8, row.int("N")))
        }
        "I05.0" | "I05.1" | "I05.2" | "I05.3" => {
            let stage = row.id.as_bytes()[4] - b'0';
            let ranks = u64::from(row.int("nd"));
            number(zero_bytes(row.get("psi"), stage, ranks, 2.0, 2.0, row.get("k")) / 1e9)
        }
        "W1.5" => {
            // Two gathers and a scatter.
            let one = ring_gather_volume(u64::from(row.int("N")), gigabytes(row.get("M_GB")));
            number((one * 3).gigabytes())
        }
        "W1.6" => {
            let room = |stage| zero(row.get("psi"), stage, row.int("N")) + row.get("act_GB");
            let least = (0..=3).find(|&stage| room(stage) <= row.get("hbm_GB"));
            let no_headroom = close(room(3), row.get("hbm_GB"), PRINTED);
            holds("ZeRO-3, but with zero headroom under an 80e9 limit", least == Some(3) && no_headroom)
        }
        "W1.T1" => {
            let (n, payload) = (64, gigabytes(14.0));
            let sharded = ring_gather_volume(n, payload) * 3;
            let volume = sharded.0 as f64 / ring_all_reduce_volume(n, payload).0 as f64;
            let stage = |s| zero(7e9, s, 64);
            let truth = close(volume, 1.5, PRINTED)
                && close(stage(2) / stage(3), 8.875, PRINTED)
                && close(stage(1) / stage(3), 16.75, PRINTED);
            holds("1.5x; 8-17x", truth)
        }

        // Accumulation.
        "W2.1" => number(f64::from(accumulation(row.int("B"), row.int("mbs"), row.int("dp"))?)),
        "W2.2" => {
            // Replicated gradients travel once per step; ZeRO-2 would reduce them after every micro-batch.
            let (n, t) = (u64::from(row.int("n")), row.get("t_ms"));
            let classes = |zero_stage| {
                let l = Layout { data_parallel: 64, zero_stage, shard_group: 64, ..layout() };
                priced(&typical(4096), 64, 4096, |_, _, _, _| {}, |cost| cost.sharding(&l)).classes
            };
            let dense = StateClass::Dense as usize;
            assert!(classes(1)[dense].reduce > 0.0 && classes(1)[dense].micro_reduce == 0.0);
            assert!(classes(2)[dense].reduce == 0.0 && classes(2)[dense].micro_reduce > 0.0);
            let mut reduction = Times::default();
            reduction.add(Item::Sharding, Seconds(t / 1e3).picos());
            let every = Times::default().plus(&reduction, n);
            number(milliseconds((every.total() - reduction.total()).seconds()))
        }
        "W2.3" => {
            let step = step_of(&[
                (Item::Gemm as usize, row.get("n") * row.get("t_ms") / 1e3),
                (StepItem::GradientReduction as usize, row.get("ar_ms") / 1e3),
                (StepItem::OptimizerUpdate as usize, row.get("opt_ms") / 1e3),
            ]);
            number(row.get("B") / step.total().seconds().0)
        }
        "W2.4" => {
            let l =
                Layout { micro_batch_size: 4, gradient_accumulation_steps: 64, data_parallel: 8, ..layout() };
            let truth = l.global_batch_size() == 2048
                && accumulation(2048, 4, 8) == Some(64)
                && accumulation(2050, 4, 8).is_none();
            holds("2048;64 and reject non-divisible targets", truth)
        }
        "W2.5" => {
            let (batch, dp) = (row.int("B"), row.int("dp"));
            let micro_batches = |size| f64::from(accumulation(batch, size, dp).unwrap());
            // A micro-batch of 8 takes T, one of 16 twice that; recomputation adds a third, 33 %.
            let layer = first_layer(&typical(8192), 4096, &layout());
            assert!(layer.full_extra.total() > Picos::ZERO);
            let flops = 1.0 + (100.0_f64 / 3.0).round() / 100.0;
            let truth = micro_batches(8) == 32.0 && close(micro_batches(16) * 2.0 * flops, 42.56, PRINTED);
            holds("32T vs 42.56T (+33%)", truth)
        }
        "W2.T1" => {
            let recipe = states(Profile::find("megatron").unwrap(), Precision::Bf16);
            holds("needs a persistent gradient buffer", recipe.gradients == 4.0)
        }

        // Learning rate.
        "W3.1" => number(linear_rule(row.get("lr"), row.get("b1") / row.get("b0"))),
        "W3.2" => number(square_root_rule(row.get("lr"), row.get("b1") / row.get("b0"))),
        "W3.3" => number(warm_up_steps(REFERENCE_WARM_UP_STEPS, row.get("ratio")) as f64),
        "W3.4" => {
            let critical = Tokens(1_000_000);
            let steps = |batch: u64| tokens_factor(Tokens(batch), critical) / batch as f64;
            let below = steps(20_000) / steps(10_000);
            let beyond = steps(200_000_000) / steps(100_000_000);
            holds("beyond it more batch does not cut steps", below < 0.51 && beyond > 0.99)
        }
        "W3.5" => {
            // Twice the batch halves the steps over which the rate decays: 100,000 become the row's.
            let tokens = Tokens(100_000 * 1_048_576);
            assert_eq!(optimizer_steps(tokens, Tokens(1_048_576)), 100_000);
            number(optimizer_steps(tokens, Tokens(2 * 1_048_576)) as f64)
        }

        // Communication overhead.
        "W4.1" => {
            // BF16 gradients at the rate of one direction.
            number(ring(row.int("N"), 2.0 * row.get("P") / 1e9, row.get("bw_GBs") / 2.0))
        }
        "W4.2" => {
            let traffic = Seconds(row.get("L") * row.get("t_ms") / 1e3).picos();
            let left = exposed(traffic, 1.0 / row.get("L"), 1.0, 0.0, traffic * 10);
            number(100.0 * (1.0 - left.0 as f64 / traffic.0 as f64))
        }
        "W4.3" => {
            let (nodes, size) = (row.int("nodes"), row.get("S_GB"));
            let truth = close(ring(nodes, size, 100.0), 350.0, row.tolerance)
                && close(ring(nodes, size / 8.0, 100.0), 43.75, row.tolerance)
                && close(ring(nodes, size / 8.0, 400.0 / 8.0), 87.5, row.tolerance);
            holds(
                "350 if 100 GB/s is the node aggregate; 43.75 if 100 GB/s per GPU (8 NICs); 87.5 at 400 GB/s per node",
                truth,
            )
        }
        "W4.3a" => {
            let share = row.get("S_GB") / row.get("gpus_per_node");
            number(ring(row.int("nodes"), share, row.get("bw_GBs")))
        }
        "W4.3b" => number(ring(row.int("nodes"), row.get("S_GB"), row.get("node_bw_GBs"))),
        "W4.4" => {
            let compute = time_at(Flops(row.get("flop")), 1, FlopRate(row.get("rate")), 1.0);
            number(row.get("comm_ms") / milliseconds(compute))
        }
        "W4.5" => {
            let traffic = ring(row.int("N"), 2.0 * row.get("params_B"), row.get("bw"));
            let flops = Flops(row.get("flops_T") * 1e12);
            number(traffic / milliseconds(time_at(flops, 1, FlopRate(row.get("tflops") * 1e12), 1.0)))
        }
        "W4.T1" => Some(Prose(
            "a default of PyTorch's DDP, which no exported plan uses; Megatron's rule is in the model",
        )),

        // Pipeline.
        "W5.1" => number(100.0 * bubble_fraction(row.int("p"), 1, row.int("m"))),
        "W5.2" => {
            let live = in_flight(Schedule::OneFOneB, row.int("p"), row.int("m"), 0);
            number(f64::from(live) * row.get("act_GB"))
        }
        "W5.3" => number(100.0 * bubble_fraction(row.int("p"), row.int("v"), row.int("m"))),
        "W5.4" => {
            // Every boundary between chunks is crossed forward and backward by every micro-batch.
            let l = Layout {
                pipeline_parallel: row.int("p"),
                virtual_stages: row.int("v"),
                schedule: Schedule::Interleaved,
                ..layout()
            };
            number(2.0 * f64::from(l.chunk_count() - 1) * row.get("m") * row.get("act_GB"))
        }
        "W5.5" => number(bubble_fraction(row.int("pp"), row.int("v"), row.int("m"))),
        "W5.6" => {
            let (p, v) = (row.int("p"), row.int("v"));
            let by_ratio = (1..).find(|&m| bubble_ratio(p, v, m) < 0.05);
            let truth = by_ratio == Some(141) && micro_batches_for_bubble(p, v, 0.05) == 134;
            holds("141 (ratio) or 134 (fraction of time)", truth)
        }
        "W5.6a" => number(f64::from((1..).find(|&m| bubble_ratio(row.int("p"), 1, m) < 0.05)?)),
        "W5.6b" => number(f64::from(micro_batches_for_bubble(row.int("p"), row.int("v").max(1), 0.05))),
        "W5.T1" => {
            let equal = [(4, 12), (8, 8), (16, 64)].into_iter().all(|(p, m)| {
                let length = |schedule| simulate(schedule, p, 1, m, 10, 20, 10);
                let makespan = u64::from(m + p - 1) * 30;
                length(Schedule::GPipe) == makespan && length(Schedule::OneFOneB) == makespan
            });
            holds("identical schedules length", equal)
        }
        "W5.T2" => {
            let boundaries = |v| {
                let l = Layout { pipeline_parallel: 4, virtual_stages: v, ..layout() };
                f64::from(l.chunk_count() - 1)
            };
            let (p, v) = (4.0, 4.0);
            let exact = v * ((p * v - 1.0) / (v * (p - 1.0)));
            holds("v", close(boundaries(4) / boundaries(1), exact, PRINTED))
        }

        // Tensor parallelism.
        "W6.1" => {
            let d = u64::from(row.int("d"));
            let m = model(d, 1, &heads(64, 64, 128), &format!("Dense(width: {d}, activation: Gelu)"), 128);
            let l = Layout { tensor_parallel: row.int("tp"), ..layout() };
            let layer = first_layer(&m, 4096, &l);
            holds("[8192,1024]", layer.weight_shapes[2] == (1024, 8192))
        }
        "W6.2" => {
            let tensor = Bytes((row.get("s") * row.get("d") * row.get("bytes")) as u64);
            number(ring_all_reduce_volume(u64::from(row.int("tp")), tensor).0 as f64 / 1e6)
        }
        "W6.2b" => {
            // What a stage hands on: two buffers of it.
            let d = u64::from(row.int("d"));
            let m = model(d, 2, &heads(64, 64, 128), "Dense(width: 8192)", 128);
            let l = Layout { pipeline_parallel: 2, ..layout() };
            let hop = priced(&m, 2, row.int("s"), |_, _, _, _| {}, |cost| cost.hop(&l));
            number(hop.buffers.0 as f64 / 2.0 / 1e6)
        }
        "W6.2c" => {
            let one = ring_all_reduce_volume(8, Bytes(4096 * 8192 * 2));
            number((one * u64::from(row.int("n"))).gigabytes())
        }
        "W6.3" => {
            let total = parameter_count(&llama_70b()).total;
            number(2.0 * total as f64 / row.get("tp") / 1e9)
        }
        "W6.4" => {
            let m = model(8192, 1, &heads(64, 8, 128), "Dense(width: 8192)", 128);
            let rows = |tensor_parallel| {
                let l = Layout { tensor_parallel, ..layout() };
                first_layer(&m, 4096, &l).weight_shapes[0].0
            };
            // Queries, keys and values on a rank; with 16 ranks a key/value head lies on two of them.
            holds("8 Q + 1 KV", rows(8) == (8 + 2) * 128 && rows(16) == (4 + 2) * 128)
        }
        "W6.5" => {
            // As printed: 117.44 MB each.
            let volume = ring_all_reduce_volume(8, Bytes(4096 * 8192 * 2));
            let printed = Bytes((volume.0 as f64 / 1e4).round() as u64 * 10_000);
            let one = milliseconds(printed / rate(600.0));
            number(100.0 * row.get("n") * one / row.get("compute_ms"))
        }
        "W6.T1" => {
            let m = model(8192, 1, &heads(64, 64, 128), "Dense(width: 28672)", 128);
            let l = Layout { tensor_parallel: 8, ..layout() };
            let layer = first_layer(&m, 4096, &l);
            let fabric = Fabric::new(&dgx(), 8, 1.0);
            let one = fabric.all_reduce(&fabric.group(8, 1), 2.0 * 4096.0 * 8192.0);
            let forward = layer.forward.get(Item::TensorParallel).seconds().0 / one;
            let backward = layer.backward.get(Item::TensorParallel).seconds().0 / one;
            // Two backward as well, of which a framework may hide a part under weight gradients.
            assert!(backward > 0.0 && backward <= 2.0 + 1e-6, "{backward} all-reduces backward");
            number(forward)
        }

        // Checkpoints.
        "W7.1" => number(checkpoint_bytes(row.get("psi") as u64, 0, Optimizer::Adamw).gigabytes()),
        "W7.2" => number((gigabytes(row.get("GB")) / rate(row.get("bw"))).0),
        "W7.3" => {
            let interval = young_interval(Seconds(row.get("C_s")), Seconds(row.get("mtbf_h") * 3600.0));
            number(interval.0 / 60.0)
        }
        "W7.4" => {
            let minutes = |name| Seconds(row.get(name) * 60.0);
            let dollars = failure_cost(
                DollarsPerHour(row.get("usd")),
                row.int("gpus"),
                minutes("interval_min"),
                minutes("recovery_min"),
            );
            number(dollars.0)
        }
        "W7.5" => {
            let (c, m) = (Seconds(row.get("ckpt_s")), Seconds(row.get("mtbf_h") * 3600.0));
            let interval = young_interval(c, m);
            numbers([interval.0 / 60.0, 100.0 * first_order_loss(interval, c, m, Seconds(0.0))])
        }

        // Number formats.
        "W8.1" => number(NumberFormat::FP16.smallest_normal() * 1e5),
        "W8.2" | "W8.6" => Some(Prose(RUNTIME)),
        "W8.3" => {
            let moments = moment_bytes(Optimizer::Adamw, StateClass::Dense);
            let single = zero_bytes(row.get("psi"), 0, 1, 4.0, 4.0, moments) / 1e9;
            number(zero(row.get("psi"), 0, 1) / single)
        }
        "W8.4" => numbers([NumberFormat::E4M3.largest(), NumberFormat::E5M2.largest()]),
        "W8.5" => {
            // A layer keeps the inputs of two column-parallel matrices.
            let elements = 2.0 * row.get("b") * row.get("s") * row.get("d") * row.get("L");
            let fp8 = LowPrecision::of(Precision::Fp8, Architecture::Hopper)?;
            number(elements * (2.0 - fp8.operand_bytes) / 1e9)
        }

        // Capstone: Llama-3.1 405B.
        "W9.1" => {
            let (gpus, tp, pp) = (row.int("gpus"), row.int("tp"), row.int("pp"));
            let with = |data_parallel| Layout {
                tensor_parallel: tp,
                pipeline_parallel: pp,
                data_parallel,
                ..layout()
            };
            number(f64::from((1..=gpus).find(|&dp| with(dp).gpus() == u64::from(gpus))?))
        }
        "W9.2" => holds("8 (14 x 8 + 2 x 7)", best_short_stages(row.int("L"), row.int("pp")) == (0, 15)),
        "W9.3" => {
            let layer = layer_of(&llama_405b()).total();
            assert_eq!(layer, 3_187_703_808);
            number(row.get("layers") * layer as f64 / row.get("tp") * 2.0 / 1e9)
        }
        "W9.4" => number(petaflop_days(training_flops(row.get("N") as u64, Tokens(row.get("D") as u64)))),
        "W9.5" => {
            let flops = training_flops(405_000_000_000, Tokens(15_600_000_000_000));
            number(time_at(flops, row.int("gpus"), FlopRate(row.get("F")), row.get("mfu")).0 / 86_400.0)
        }
        "W9.5b" => {
            let flops = training_flops(405_000_000_000, Tokens(15_600_000_000_000));
            let time = Seconds(row.get("days") * 86_400.0);
            number(100.0 * utilisation(flops, 16_384, FlopRate(989e12), time))
        }
        "W9.6" => {
            let p = row.int("p");
            let percent = |v| (1000.0 * bubble_fraction(p, v, 16)).round() / 10.0;
            let truth = percent(1) == 48.4 && percent(2) == 31.9 && percent(8) == 10.5;
            holds("real batch: m=16; v=1 48.4%, v=2 31.9%, v=8 10.5% of time", truth)
        }
        "W9.6c" | "W9.6d" | "W9.6e" | "W9.6f" => {
            number(100.0 * bubble_fraction(row.int("p"), row.int("v"), row.int("m")))
        }
        "W9.6b" => {
            // The accumulation of the 16,384-GPU phase was 16.
            let l = Layout {
                micro_batch_size: row.int("mbs"),
                gradient_accumulation_steps: 16,
                data_parallel: row.int("dp"),
                ..layout()
            };
            number(l.global_batch_size() as f64 * row.get("s"))
        }
        "W9.7" => {
            number(ring_all_reduce_volume(u64::from(row.int("N")), gigabytes(row.get("S_GB"))).gigabytes())
        }
        "W9.8" => Some(Prose(
            "the order of one run; plans follow Megatron's tp-cp-ep-dp-pp, whose bandwidths the fabric prices",
        )),
        "W9.9" => number(energy_dollars(row)),
        "W9.9b" => {
            let time = Seconds(row.get("days") * 86_400.0);
            let rent = DollarsPerHour(row.get("usd")) * time * row.get("gpus");
            number(rent.0 / 1e6)
        }
        "W9.9c" => number(waste(Dollars(row.get("cost_MUSD") * 1e6), 0.40, 0.40).per_mfu_point.0 / 1e3),
        "W9.T1" => Some(Prose("an estimate of a model that nobody has described; nothing may depend on it")),

        // Infrastructure.
        "I01" => number(zero_bytes(1.0, 0, 1, 4.0, 4.0, moment_bytes(Optimizer::Adamw, StateClass::Dense))),
        "I02" => {
            let profile = Profile::find("megatron").unwrap();
            let total = |precision| {
                let recipe = states(profile, precision);
                let owned = recipe.owned + moment_bytes(Optimizer::Adamw, StateClass::Dense);
                zero_bytes(1.0, 0, 1, recipe.weights, recipe.gradients, owned)
            };
            holds("18 (Megatron) or 20", total(Precision::Bf16) == 18.0 && total(Precision::Fp16) == 20.0)
        }
        "I03" => {
            let int = |name: &str| u64::from(row.int(name));
            let bytes = plain_layer_activations(int("s"), int("b"), int("h"), int("a"), 1, false, true);
            number(bytes * row.get("L") / 1e9)
        }
        "I04" => {
            let l = Layout {
                micro_batch_size: row.int("mbs"),
                gradient_accumulation_steps: row.int("acc"),
                data_parallel: row.int("nd"),
                ..layout()
            };
            number(l.global_batch_size() as f64)
        }
        "I06" => {
            // The pair of a column- and a row-parallel matrix reduces once: an MLP alone, one all-reduce.
            let m: Model = ron_options()
                .from_str(
                    "(schema: 1, name: \"facts\", hidden: 8192, vocabulary: 128, max_sequence: 8192,
                      blocks: {\"layer\": (norms: 1, feed_forward: Dense(width: 28672))},
                      layers: [(repeat: 1, of: [\"layer\"])])",
                )
                .unwrap();
            let layer = first_layer(&m, 4096, &Layout { tensor_parallel: 8, ..layout() });
            let fabric = Fabric::new(&dgx(), 8, 1.0);
            let one = fabric.all_reduce(&fabric.group(8, 1), 2.0 * 4096.0 * 8192.0);
            let truth = close(layer.forward.get(Item::TensorParallel).seconds().0, one, 1e-6);
            holds("column then row: one all-reduce (or RS+AG with SP) per pair", truth)
        }
        "I07" => {
            // Everything that a rank keeps is divided by t once.
            let bytes = |t, sp| plain_layer_activations(4096, 1, 8192, 64, t, sp, false);
            let truth =
                close(bytes(8, true), bytes(1, false) / 8.0, PRINTED) && bytes(8, false) > bytes(8, true);
            holds("b*s*h/N_tp", truth)
        }
        "I08" => {
            let times =
                [ContextComm::Ring, ContextComm::AllGather, ContextComm::AllToAll].map(|context_comm| {
                    let l = Layout { context_parallel: 2, context_comm, ..layout() };
                    let m = model(8192, 1, &heads(64, 64, 128), "Dense(width: 28672)", 128);
                    let layer = first_layer(&m, 8192, &l);
                    layer.forward.get(Item::Attention) + layer.forward.get(Item::ContextParallel)
                });
            let truth = times[0] != times[1] && times[1] != times[2] && times[0] != times[2];
            holds("also all-gather (Llama-3) and all-to-all (Ulysses)", truth)
        }
        "I09" => {
            let (f, b) = (u64::from(row.int("tf")), u64::from(row.int("tb")));
            number(simulate(Schedule::OneFOneB, 1, 1, row.int("m"), f, b, 1) as f64)
        }
        "I10" => {
            // What four stages take longer than one; any number of micro-batches.
            let (f, b) = (u64::from(row.int("tf")), u64::from(row.int("tb")));
            let bubble = |m| {
                simulate(Schedule::OneFOneB, row.int("p"), 1, m, f, b, 1)
                    - simulate(Schedule::OneFOneB, 1, 1, m, f, b, 1)
            };
            assert_eq!(bubble(12), bubble(40));
            number(bubble(12) as f64)
        }
        "I11" => number(bubble_ratio(row.int("p"), 1, row.int("m"))),
        "I12" => number(f64::from(in_flight(Schedule::OneFOneB, row.int("p"), 12, 0))),
        "I13" => {
            let rates = h100().rates;
            let exact = rates[&Format::Fp8].peak.0 / rates[&Format::Bf16].peak.0;
            // The data sheet prints 1979 and 989.4.
            number((exact * 1000.0).round() / 1000.0)
        }
        "I14" => {
            // Recipes of the table of bytes per parameter differ by what they keep, not by a law.
            let fp8 = LowPrecision::of(Precision::Fp8, Architecture::Hopper)?;
            let recipe = states(Profile::find("megatron").unwrap(), Precision::Bf16);
            let owned = |o| recipe.owned + moment_bytes(o, StateClass::Dense);
            let bytes = |weights, o| zero_bytes(1.0, 0, 1, weights, recipe.gradients, owned(o));
            let truth = bytes(fp8.weight_bytes - 1.0, Optimizer::Adamw) == 17.0
                && bytes(fp8.weight_bytes, Optimizer::Adamw) == 18.0
                && bytes(recipe.weights, Optimizer::AdamwBf16) == 14.0;
            holds("recipe dependent", truth)
        }
        "I15" => format_bits(NumberFormat::FP32),
        "I16" => format_bits(NumberFormat::BF16),
        "I17" => format_bits(NumberFormat::E4M3),
        "I18" => {
            let needed = |precision| precision_advice(precision).loss_scaling;
            holds("no", !needed(Precision::Bf16) && needed(Precision::Fp16))
        }
        "I19" => {
            // Equal thirds F = B = W: zero bubble H1 idles a third of what 1F1B does.
            let (p, m) = (8, 24);
            let idle = |schedule| simulate(schedule, p, 1, m, 10, 20, 10) - u64::from(m) * 30;
            let truth = 3 * idle(Schedule::ZeroBubbleH1) == idle(Schedule::OneFOneB);
            holds("see src/cost/schedule/lists.rs", truth)
        }
        "I20" => {
            // Three matrices hold what two of 4 d hold.
            let width = 4.0 * row.get("d") * Activation::Gelu.matrices() as f64;
            number(width / Activation::SwiGlu.matrices() as f64)
        }
        "I21" => number(layer_of(&typical(u64::from(row.int("d")))).sharded as f64),
        "I22" => {
            let m = typical(4096);
            assert_eq!(layer_of(&m).sharded, row.get("n") as u64);
            number(3.0 * linear_flops_per_token(&m, &m.blocks["layer"]).0 * row.get("s"))
        }
        "I23" | "I24" => number(layer_flops(&typical(u64::from(row.int("d"))), u64::from(row.int("s")))),
        "I25" => {
            // So wide that the experts a token visits hold as much as the dense layer.
            let dense =
                model(4096, 1, &heads(32, 32, 128), &format!("Dense(width: {})", row.int("dffn")), 128);
            let width = u64::from(row.int("dffn") / row.int("act"));
            let moe = expert_model(4096, 1, &heads(32, 32, 128), 8, 1, width, width);
            let active = layer_of(&moe).sharded + layer_of(&moe).expert_active;
            assert_eq!(active, layer_of(&dense).sharded);
            number(width as f64)
        }
        "I26" => {
            // Width 8/3 h over two experts a token; 1/8 to all heads of keys.
            let h = 12_288;
            let (a, act) = (96, 2);
            let truth = [1, 12, 96].into_iter().all(|kv| {
                let p = layer_of(&expert_model(h, 1, &heads(a, kv, 128), 32, act, 8 * h / 3 / act, 0));
                let ratio = p.expert as f64 / (p.sharded + p.expert_active) as f64;
                let (kv, a, act) = (kv as f64, a as f64, act as f64);
                close(ratio, 8.0 * row.get("E") / ((10.0 + 2.0 * kv / a) * act), PRINTED)
            });
            holds("8E/((10+2kv/a)*act)", truth)
        }
        "I27" => {
            let half = 53_248 / 2;
            let experts = u64::from(row.int("E"));
            let m = expert_model(16_384, 126, &heads(128, 8, 128), experts, 1, half, half);
            number(parameter_count(&m).total as f64)
        }
        "I28" => {
            let (s, d) = (u64::from(row.int("s")), 4096);
            let m = expert_model(d, 1, &heads(32, 32, 128), 8, 1, 7168, 7168);
            let p = layer_of(&m);
            // The router's matrix is a matrix too.
            let active = (p.sharded + p.expert_active + d * 8) as f64;
            let (s, d) = (s as f64, d as f64);
            let flops = layer_flops(&m, s as u64);
            holds("6 s n_act + 6 s^2 d", close(flops, 6.0 * s * active + 6.0 * s * s * d, PRINTED))
        }
        "I29" => {
            let (h, a, kv, s) = (12_288_u64, 96, 12, 4096_u64);
            let m = model(h, 1, &heads(a, kv, 128), &format!("Dense(width: {})", 8 * h / 3), 128);
            let (d, s_, share) = (h as f64, s as f64, kv as f64 / a as f64);
            let form = 6.0 * (2.0 * (5.0 + share) * d * s_ + s_ * s_) * d;
            holds("6(2(5+kv/a) d s + s^2) d", close(layer_flops(&m, s), form, PRINTED))
        }
        "I30" => {
            let fp8 = LowPrecision::of(Precision::Fp8, Architecture::Hopper)?;
            number(row.get("msl") * row.get("d") * fp8.operand_bytes)
        }
        "I31" => {
            // What is scattered stays in BF16: the message of a pipeline stage has the same size.
            let m = model(u64::from(row.int("d")), 2, &heads(64, 64, 128), "Dense(width: 8192)", 128);
            let l = Layout { pipeline_parallel: 2, ..layout() };
            let fp8 = |_: &mut Accelerator, _: &mut Cluster, _: &mut Profile, job: &mut Job| {
                job.precision = Precision::Fp8;
            };
            number(priced(&m, 2, row.int("msl"), fp8, |cost| cost.hop(&l)).buffers.0 as f64 / 2.0)
        }
        "I32" => {
            let (d, t) = (row.get("d"), u64::from(row.int("tp")));
            let tokens = 4096.0;
            let scattered = ring_gather_volume(t, Bytes((2.0 * tokens * d) as u64));
            number(2.0 * tokens * d * d / t as f64 / scattered.0 as f64)
        }
        "I33" => {
            // The link at whose ridge 4 PFLOP/s lie, in TB/s.
            let needed = ceilings(4e15, 1.0, row.get("ratio"));
            number(needed.network_ridge() / 1e12)
        }
        "I34" => {
            let (d, x, y) = (row.get("d"), u64::from(row.int("tpx")), u64::from(row.int("tpy")));
            let tokens = 4096.0;
            let gathered = ring_gather_volume(y, Bytes((tokens * d / x as f64) as u64));
            let scattered = ring_gather_volume(x, Bytes((2.0 * tokens * d / y as f64) as u64));
            number(2.0 * tokens * d * d / (x * y) as f64 / (gathered + scattered).0 as f64)
        }
        "I35" => {
            let m = llama_70b();
            let layer = layer_of(&m).total() as f64;
            assert_eq!(layer, row.get("n"));
            // Forward FLOPs of the rank's tokens over the gathered weights.
            let forward = layer_flops(&m, u64::from(row.int("s"))) / 3.0;
            number(forward * row.get("msl") / row.get("s") / (layer * row.get("bytes")))
        }
        "I36" => {
            // Four times the experts: four times the parameters, the same activations.
            let l = Layout { dispatcher: Some(Dispatcher::AllToAll), ..layout() };
            let kept = |experts| {
                let m = expert_model(4096, 1, &heads(32, 8, 128), experts, 2, 4096, 0);
                (first_layer(&m, 4096, &l).kept.0 as f64, layer_of(&m).expert)
            };
            let (few, many) = (kept(8), kept(32));
            // The router's scores are all that grows.
            let truth = close(many.0, few.0, 0.01) && many.1 == 4 * few.1;
            holds("in_flight * (L/PP) * s*b*h*c", truth && in_flight(Schedule::OneFOneB, 4, 12, 0) == 4)
        }
        "I37" => number(zero(row.get("n"), 0, 1)),
        "I38" => number(zero(row.get("n"), 3, row.int("N"))),
        _ => None,
    }
}

fn ceilings(compute: f64, memory: f64, network: f64) -> Ceilings {
    Ceilings { compute: FlopRate(compute), memory: Bandwidth(memory), network: Bandwidth(network) }
}

fn format_bits(format: NumberFormat) -> Option<Found> {
    numbers([1.0, f64::from(format.exponent_bits), f64::from(format.mantissa_bits)])
}

/// Which two of 16 stages are best one layer shorter than the others, in 405B on 16,384 GPUs: the
/// fastest choice whose fullest rank an 80 GB card can hold at all.
fn best_short_stages(layers: u32, stages: u32) -> (u32, u32) {
    let l = Layout {
        tensor_parallel: 8,
        pipeline_parallel: stages,
        data_parallel: 128,
        sequence_parallel: true,
        gradient_accumulation_steps: 16,
        zero_stage: 1,
        shard_group: 128,
        ..layout()
    };
    let each = layers.div_ceil(stages);
    assert_eq!(each * stages - layers, 2);
    let m = llama_405b();
    let all = Layers::new(&m);
    priced(
        &m,
        16_384,
        8192,
        |_, _, _, _| {},
        |cost| {
            let pairs = (0..stages).flat_map(|first| (first + 1..stages).map(move |second| (first, second)));
            let step = |&(first, second): &(u32, u32)| {
                let chunk = |stage| Chunk {
                    layers: each - u32::from(stage == first || stage == second),
                    recompute: Recompute::None,
                };
                let plan = Plan::new(l, (0..stages).map(chunk).collect(), 16_384, 2048, layers).unwrap();
                let prediction = predict(cost, &all, &plan);
                (prediction.allocated.0 <= VISIBLE).then(|| prediction.step())
            };
            let fitting = pairs.filter_map(|pair| Some((step(&pair)?, pair)));
            fitting.min().unwrap().1
        },
    )
}

#[test]
fn every_fact_is_computed_or_prose() {
    let rows = rows();
    let (mut computed, mut prose, mut wrong) = (0, 0, Vec::new());
    let mut seen = std::collections::BTreeSet::new();
    for row in &rows {
        assert!(seen.insert(&row.id), "{} comes twice", row.id);
        let numeric = parse_numbers(&row.asserted);
        match (check(row), numeric) {
            (Some(Found::Numbers(found)), Some(expected)) => {
                let tolerance = row.tolerance.max(PRINTED);
                let equal = found.len() == expected.len()
                    && found.iter().zip(&expected).all(|(&f, &e)| close(f, e, tolerance));
                if !equal {
                    wrong.push(format!("{}: {found:?}, expected {expected:?} within {tolerance}", row.id));
                }
                computed += 1;
            }
            (Some(Holds(text, truth)), None) => {
                if !truth {
                    wrong.push(format!("{}: `{text}` does not hold", row.id));
                }
                if text != row.asserted {
                    wrong.push(format!("{}: the table says `{}`, the test `{text}`", row.id, row.asserted));
                }
                computed += 1;
            }
            (Some(Prose(reason)), _) => {
                println!("{}: {reason}", row.id);
                prose += 1;
            }
            (Some(_), _) => {
                wrong.push(format!("{}: a number is asserted as text, or text as a number", row.id))
            }
            (None, _) => wrong.push(format!("{}: neither computed nor listed as prose", row.id)),
        }
    }
    println!("{computed} facts computed, {prose} prose, of {}", rows.len());
    assert!(wrong.is_empty(), "{} rows fail:\n{}", wrong.len(), wrong.join("\n"));
    assert_eq!((computed, prose, rows.len()), (165, 13, 178));
}
