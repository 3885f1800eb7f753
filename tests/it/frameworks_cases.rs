//! Random plans: what the validators of the frameworks are asked about (see docs/exports.md), and
//! what export and import must agree on.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use autoplan::frameworks::deepspeed::import as deepspeed;
use autoplan::frameworks::export::{
    Destination, ExportRequest, ExportedFile, Format, Prediction, export_or_nearest, inexpressible, write,
};
use autoplan::frameworks::{COMMON_PLAN_RULES, COMMON_RULES, Context, Hardware, Judge, Target, legal_plan};
use autoplan::layers::Layers;
use autoplan::plan::{
    Chunk, ContextComm, CudaGraphs, Layout, Module, Modules, Offload, Place, Plan, Recompute, Schedule,
};
use autoplan::spec::cluster::{Accelerator, Cluster};
use autoplan::spec::job::{ExpertCapacity, Job, Optimizer, Precision, Routing, Training};
use autoplan::spec::model::Model;
use autoplan::spec::{ron_options, shipped};
use autoplan::units::{Bytes, Seconds};
use serde_json::{Map, Value, json};

use crate::frameworks::{DENSE, HYBRID, LATENT_MOE, ODD_HEADS, WINDOWS, cases_by_hand, model};
use crate::frameworks_export::site;

/// A small generator of numbers: the same cases on every run.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
    pub fn below(&mut self, most: usize) -> usize {
        ((self.next() >> 33) % most as u64) as usize
    }
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }
    pub fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }
}

/// One question for a validator.
pub struct Question {
    pub model: Model,
    pub cluster: Cluster,
    pub accelerator: Accelerator,
    pub job: Job,
    pub plan: Plan,
}

impl Question {
    pub fn context(&self) -> Context {
        let layers = Layers::new(&self.model);
        Context::new(&self.model, &layers, &self.job, Hardware::of(&self.cluster, &self.accelerator))
    }
    pub fn request(&self, format: Format) -> ExportRequest<'_> {
        ExportRequest {
            model: &self.model,
            job: &self.job,
            cluster: &self.cluster,
            accelerator: &self.accelerator,
            plan: &self.plan,
            prediction: Some(Prediction {
                step_time: Seconds(12.3),
                memory: Bytes(61_200_000_000),
                checkpoints: None,
                notes: &[],
            }),
            version: "autoplan 0.0.0",
            command: "autoplan plan …",
            format,
        }
    }
}

/// Shipped models and those of the tests.
pub fn models() -> Vec<Model> {
    let shipped = shipped::models().into_iter().map(|file| {
        let model: Model = ron_options().from_str(file.text).unwrap();
        model
    });
    [DENSE, ODD_HEADS, LATENT_MOE, WINDOWS, HYBRID].into_iter().map(model).chain(shipped).collect()
}

/// How wild a question is: percentages of unlikely choices.
#[derive(Clone, Copy)]
pub struct Wild {
    pub degrees: usize,
    pub switches: usize,
}

/// A plan that obeys the laws of plans, and otherwise anything.
pub fn question(random: &mut Random, target: Target, models: &[Model], wild: Wild) -> Option<Question> {
    let model = models[random.below(models.len())].clone();
    let layers = Layers::new(&model);
    let experts = layers.kinds.iter().find_map(|k| match &k.block.feed_forward {
        autoplan::spec::model::FeedForward::Moe(e) => Some(e.experts as u32),
        _ => None,
    });
    let (cluster, accelerator) = site(random.pick(&["dgx-h100", "dgx-a100", "dgx-b200", "gb200-nvl72"]));
    let k = target.capabilities();
    let usual: &[u32] = &[8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384];
    let gpus = if random.chance(wild.degrees) {
        random.pick(&[24, 48, 96, 160, 192, 384, 768, 1536, 6144, 12288])
    } else {
        random.pick(usual)
    };
    let odd = |random: &mut Random, usual: &[u32]| {
        if random.chance(wild.degrees) { random.pick(&[3, 5, 6, 12, 16, 24, 32]) } else { random.pick(usual) }
    };
    let sequence_length = if random.chance(wild.degrees) {
        random.pick(&[1000, 2049, 3072, 4090, 4095])
    } else {
        random.pick(&[2048, 4096, 8192])
    };
    let flip = |random: &mut Random| random.chance(30);
    let tensor_parallel = if k.tensor_parallel { odd(random, &[1, 1, 2, 4, 8]) } else { 1 };
    let staged = k.pipeline_parallel || target == Target::Accelerate && random.chance(wild.switches / 4);
    let pipeline_parallel = if staged { odd(random, &[1, 1, 2, 4, 8, 16]) } else { 1 };
    let context_parallel =
        if k.context_comms.is_empty() || random.chance(60) { 1 } else { odd(random, &[2, 4]) };
    let virtual_stages = if k.virtual_stages && pipeline_parallel > 1 && flip(random) {
        random.pick(&[2, 2, 3, 4])
    } else {
        1
    };
    let model_ranks = tensor_parallel * pipeline_parallel * context_parallel;
    if gpus % model_ranks != 0 {
        return None;
    }
    let data_parallel = gpus / model_ranks;
    let micro_batch_size = random.pick(&[1, 1, 2, 4]);
    let gradient_accumulation_steps = if random.chance(wild.degrees) {
        random.pick(&[1, 2, 3, 5, 7, 9, 12])
    } else {
        pipeline_parallel * random.pick(&[1, 2, 4])
    };
    let has_experts = experts.is_some() || random.chance(wild.switches / 8);
    let expert_parallel = match experts {
        Some(_) => odd(random, &[1, 2, 4, 8, 8, 16, 32]),
        None => 1,
    };
    let expert_tensor_parallel = if experts.is_some() && random.chance(20) {
        if random.chance(wild.degrees) {
            random.pick(&[3, 5, 6])
        } else {
            random.pick(&[2, tensor_parallel, 4])
        }
    } else if k.expert_tensor == autoplan::frameworks::ExpertTensor::Tensor && experts.is_some() {
        tensor_parallel
    } else {
        1
    };
    let zero_stage =
        if random.chance(wild.switches) { random.pick(&[0, 1, 2, 3]) } else { random.pick(k.zero_stages) };
    let ranks = data_parallel * context_parallel;
    let whole = if zero_stage == 0 { 1 } else { ranks };
    let divisors: Vec<u32> = (1..=ranks).filter(|d| ranks % d == 0).collect();
    let shard_group =
        if random.chance(wild.switches / 2) && zero_stage > 0 { random.pick(&divisors) } else { whole };
    let unlikely = |random: &mut Random| random.chance(wild.switches);
    let sequence_parallel = match k.sequence_parallel {
        autoplan::frameworks::SequenceParallel::Never => unlikely(random) && random.chance(20),
        _ if tensor_parallel > 1 => random.chance(75),
        _ => unlikely(random) && random.chance(20),
    };
    let offered = |random: &mut Random, on: bool, percent: usize| {
        (on || (unlikely(random) && random.chance(20))) && random.chance(percent)
    };
    let place = |random: &mut Random, places: &[Place]| {
        if random.chance(85) { Place::Gpu } else { random.pick(places) }
    };
    let always = matches!(target, Target::Torchtitan | Target::Accelerate) && !unlikely(random);
    let layout = Layout {
        tensor_parallel,
        pipeline_parallel,
        virtual_stages,
        context_parallel,
        expert_parallel,
        expert_tensor_parallel,
        data_parallel,
        sequence_parallel,
        micro_batch_size,
        gradient_accumulation_steps,
        zero_stage,
        shard_group,
        schedule: if virtual_stages > 1 { Schedule::Interleaved } else { Schedule::OneFOneB },
        context_comm: if k.context_comms.is_empty() {
            ContextComm::Ring
        } else {
            random.pick(k.context_comms)
        },
        dispatcher: if has_experts && !k.dispatchers.is_empty() {
            Some(random.pick(k.dispatchers))
        } else {
            None
        },
        tensor_overlap: (sequence_parallel || unlikely(random) && random.chance(20))
            && offered(random, k.tensor_overlap, 40),
        data_overlap: always || offered(random, k.data_overlap, 60),
        expert_overlap: experts.is_some() && offered(random, k.expert_overlap, 40),
        shared_overlap: experts.is_some() && k.shared_overlap && gpus % 3 == 1 && random.chance(60),
        mtp_standalone: if model.mtp.is_some() {
            random.chance(40)
        } else {
            random.chance(wild.switches / 8)
        },
        cuda_graphs: if random.chance(80) { CudaGraphs::None } else { random.pick(k.cuda_graphs) },
        offload: Offload {
            optimizer: place(random, k.optimizer_places),
            parameters: place(random, k.parameter_places),
            activations: offered(random, k.activation_offload, 10),
        },
    };
    let count = layers.count();
    let chunks_of = layout.chunk_count();
    let modules = [
        Module::CoreAttention,
        Module::LayerNorm,
        Module::Mlp,
        Module::MoeActivation,
        Module::Moe,
        Module::SharedExperts,
        Module::MlaUpProjection,
    ];
    let recompute = match random.below(6) {
        0 | 1 => Recompute::None,
        2 => Recompute::FullUniform(if k.recompute.full_uniform > 1 { random.pick(&[1, 1, 2]) } else { 1 }),
        3 if k.recompute.full_block => Recompute::FullBlock(random.pick(&[1, 2, 3])),
        4 | 5 if k.recompute.selective != Modules::NONE => {
            let mut set = Modules::NONE.with(random.pick(&modules));
            if random.chance(50) {
                set = set.with(random.pick(&modules));
            }
            Recompute::Selective(set)
        }
        _ => Recompute::None,
    };
    let mut chunks: Vec<Chunk> = (0..chunks_of)
        .map(|at| Chunk { layers: count / chunks_of + u32::from(at < count % chunks_of), recompute })
        .collect();
    if random.chance(40) && chunks.len() > 1 {
        // Move a few layers about.
        for _ in 0..random.below(4) {
            let (from, to) = (random.below(chunks.len()), random.below(chunks.len()));
            if chunks[from].layers > 1 {
                chunks[from].layers -= 1;
                chunks[to].layers += 1;
            }
        }
    }
    if layout.mtp_standalone && chunks.len() > 1 {
        let last = chunks.len() - 1;
        chunks[0].layers += std::mem::take(&mut chunks[last].layers);
    }
    let global_batch_size = u32::try_from(layout.global_batch_size()).ok()?;
    let precision = if random.chance(80) {
        Precision::Bf16
    } else {
        random.pick(&[
            Precision::Fp16,
            Precision::Fp8,
            Precision::Fp8Blockwise,
            Precision::Mxfp8,
            Precision::Nvfp4,
        ])
    };
    let optimizer = if random.chance(85) {
        Optimizer::Adamw
    } else {
        random.pick(&[Optimizer::AdamwBf16, Optimizer::Adam8bit, Optimizer::Muon, Optimizer::Sgd])
    };
    let job = Job {
        gpus,
        global_batch_size,
        sequence_length,
        precision,
        optimizer,
        training: Training::Full,
        memory_limit: None,
        tokens: None,
        routing: Routing::Balanced,
        packed: None,
        // Of some models with experts; of fewer where the framework has none.
        expert_capacity: {
            let often = if matches!(target, Target::Megatron | Target::Bridge) { 3 } else { 16 };
            let limited = layout.dispatcher.is_some() && (gpus / 2 + global_batch_size) % often == 0;
            limited.then(|| ExpertCapacity { factor: f64::from(gpus % 7 + 2) / 4.0, padded: gpus % 3 != 0 })
        },
    };
    let plan = Plan::new(layout, chunks, gpus, global_batch_size, count).ok()?;
    Some(Question { model, cluster, accelerator, job, plan })
}

/// What a validator must resolve from the files of a legal plan.
fn expected(question: &Question) -> serde_json::Value {
    let (l, job) = (question.plan.layout(), &question.job);
    let p = l.pipeline_parallel as usize;
    let ranks: Vec<Vec<u32>> = (0..p)
        .map(|rank| question.plan.chunks().iter().skip(rank).step_by(p).map(|c| c.layers).collect())
        .collect();
    serde_json::json!({
        "world_size": job.gpus, "tp": l.tensor_parallel, "pp": l.pipeline_parallel, "vpp": l.virtual_stages,
        "cp": l.context_parallel, "dp": l.data_parallel, "ep": l.expert_parallel,
        "etp": l.expert_tensor_parallel, "sequence_parallel": l.sequence_parallel,
        "mbs": l.micro_batch_size, "gbs": job.global_batch_size, "num_microbatches": l.gradient_accumulation_steps,
        "seq_length": job.sequence_length, "layers_per_stage": ranks, "zero_stage": l.zero_stage,
        "shard_group": l.shard_group, "grad_accum": l.gradient_accumulation_steps,
        "padded_vocab_size": question.model.padded_vocabulary(u64::from(l.tensor_parallel)),
        "experts": question.context().has_experts(),
        "expert_count": question.context().moe.iter().map(|m| m.experts).min(),
    })
}

/// Rules that a framework does not find broken when it is set up, and that its own code can be asked about on a CPU all the
/// same: those of AutoEP's and Ulysses's checks, and stages, of which what is written leaves too few ranks.
const ASKED_TOO: &[(Target, &str)] = &[
    (Target::DeepSpeed, "ulysses-experts"),
    (Target::DeepSpeed, "deepep-tensor"),
    (Target::DeepSpeed, "experts-zero"),
    (Target::DeepSpeed, "experts-tensor-offload"),
    (Target::DeepSpeed, "ulysses-heads"),
    (Target::DeepSpeed, "ulysses-class"),
    (Target::DeepSpeed, "ulysses-sequence"),
    (Target::DeepSpeed, "tensor-class"),
    (Target::Accelerate, "pipeline-axis"),
];

/// A change of a DeepSpeed configuration, and whether DeepSpeed refuses it at a ZeRO stage.
type Break = (&'static str, fn(&mut Map<String, Value>, &mut Random), fn(u64) -> bool);

fn section<'a>(config: &'a mut Map<String, Value>, name: &str) -> &'a mut Map<String, Value> {
    config.entry(name).or_insert_with(|| json!({})).as_object_mut().unwrap()
}

/// Changes that break one rule on keys each, which no plan can break, and a few that only look as if they did.
const BREAKS: &[Break] = &[
    (
        "batch-product",
        |c, random| {
            c.insert("train_batch_size".into(), json!(1 + 2 * random.below(5000)));
            c.insert("train_micro_batch_size_per_gpu".into(), json!(2));
            c.insert("gradient_accumulation_steps".into(), json!(4));
        },
        |_| true,
    ),
    (
        "no-batch",
        |c, _| {
            ["train_batch_size", "train_micro_batch_size_per_gpu"].iter().for_each(|key| drop(c.remove(*key)))
        },
        |_| true,
    ),
    (
        "both-precisions",
        |c, _| {
            section(c, "fp16").insert("enabled".into(), json!(true));
            section(c, "bf16").insert("enabled".into(), json!(true));
        },
        |_| true,
    ),
    (
        "unknown-key",
        |c, random| {
            let name = random.pick(&["zero_optimization", "bf16", "tensor_parallel"]);
            section(c, name).insert("no_such_key".into(), json!(1));
        },
        |_| true,
    ),
    (
        "key-that-is-gone",
        |c, random| {
            let name = random.pick(&["elasticity", "sparse_attention", "curriculum_learning", "eigenvalue"]);
            c.insert(name.into(), json!({"enabled": true}));
        },
        |_| true,
    ),
    (
        "stage",
        |c, random| drop(section(c, "zero_optimization").insert("stage".into(), json!(4 + random.below(5)))),
        |_| true,
    ),
    (
        "partial-offload",
        |c, random| {
            let offload = json!({"device": "cpu", "ratio": 0.5});
            let zero = section(c, "zero_optimization");
            zero.insert("stage".into(), json!(1 + random.below(2)));
            zero.insert("offload_optimizer".into(), offload);
        },
        |_| true,
    ),
    (
        "drive-without-path",
        |c, random| {
            let zero = section(c, "zero_optimization");
            zero.insert("stage".into(), json!(3));
            zero.insert(
                random.pick(&["offload_optimizer", "offload_param"]).into(),
                json!({"device": "nvme"}),
            );
        },
        |_| true,
    ),
    (
        "parameter-offload",
        |c, _| drop(section(c, "zero_optimization").insert("offload_param".into(), json!({"device": "cpu"}))),
        |stage| stage < 3,
    ),
    (
        "secondary-shards",
        |c, random| {
            let zero = section(c, "zero_optimization");
            zero.insert("stage".into(), json!(3));
            // There are 8 ranks at least, and as many as a power of two.
            zero.insert("zero_hpz_partition_size".into(), json!(random.pick(&[3, 5, 7])));
        },
        |_| true,
    ),
    (
        "quantized-weights",
        |c, random| {
            let key = random.pick(&["zero_quantized_weights", "zero_quantized_gradients"]);
            section(c, "zero_optimization").insert(key.into(), json!(true));
        },
        |stage| stage < 3,
    ),
    (
        "sequence-mesh",
        |c, random| {
            c.insert("sequence_parallel_size".into(), json!(random.pick(&[5, 7])));
            c.insert("data_parallel_size".into(), json!(8));
        },
        |_| true,
    ),
    (
        "moments",
        |c, _| {
            c.remove("fp16");
            let states = json!({"enabled": true, "bf16_master_weights_and_grads": true, "bf16_optimizer_states": true});
            c.insert("bf16".into(), states);
            c.insert("zero_optimization".into(), json!({"stage": 0}));
        },
        |_| true,
    ),
    (
        "moments-alone",
        |c, _| {
            c.remove("fp16");
            c.insert("bf16".into(), json!({"enabled": true, "bf16_optimizer_states": true}));
            section(c, "zero_optimization").insert("stage".into(), json!(2));
        },
        |_| true,
    ),
    ("harmless", |c, _| drop(c.insert("gradient_clipping".into(), json!(0.5))), |_| false),
    (
        "harmless",
        |c, _| drop(section(c, "zero_optimization").insert("round_robin_gradients".into(), json!(true))),
        |_| false,
    ),
];

/// Random legal plans for DeepSpeed, each with a change of its configuration: the name of the change, whether DeepSpeed
/// refuses it, the plan, its files and the changed configuration.
fn broken_configurations(
    seed: u64,
    count: usize,
) -> impl Iterator<Item = (&'static str, bool, Question, Vec<ExportedFile>, String)> {
    let models = models();
    let mut random = Random::new(seed);
    let mut found = 0;
    std::iter::from_fn(move || {
        loop {
            let question =
                question(&mut random, Target::DeepSpeed, &models, Wild { degrees: 0, switches: 5 });
            let Some(question) = question else { continue };
            if legal_plan(Target::DeepSpeed, &question.context(), &question.plan).is_err() {
                continue;
            }
            let request = question.request(Format::Script);
            let Ok(files) = write(Destination::Framework(Target::DeepSpeed), &request) else { continue };
            let Some(config) = files.iter().find(|file| file.name == "ds_config.json") else { continue };
            let mut config: Map<String, Value> = serde_json::from_str(&config.text).unwrap();
            let (name, change, refused) = BREAKS[found % BREAKS.len()];
            // Another key may be broken by Ulysses' or AutoTP's own.
            let meshed = ["sequence_parallel_size", "tensor_parallel", "expert_parallel"];
            if meshed.iter().any(|key| config.contains_key(*key)) && name != "harmless" {
                continue;
            }
            change(&mut config, &mut random);
            found += 1;
            let refused = refused(u64::from(question.plan.layout().zero_stage));
            let text = serde_json::to_string_pretty(&Value::Object(config)).unwrap();
            return Some((name, refused, question, files, text));
        }
    })
    .take(count)
}

/// What a launch would give beside a configuration.
pub(crate) fn given_of(question: &Question) -> deepspeed::Given<'_> {
    deepspeed::Given {
        model: &question.model,
        gpus: question.job.gpus,
        sequence_length: Some(question.job.sequence_length),
        pipeline_parallel: 1,
        trainer: deepspeed::Trainer::default(),
    }
}

fn import_of(question: &Question, text: &str) -> Result<(), String> {
    deepspeed::import(text, given_of(question)).map(drop).map_err(|error| error.title().to_owned())
}

/// Rules on keys, which no plan can break, are broken in the configurations of random plans and refused on import.
#[test]
fn broken_configurations_of_random_plans_are_refused() {
    let mut refusals: BTreeMap<&str, usize> = BTreeMap::new();
    for (name, refused, question, _, text) in broken_configurations(17, 300) {
        let verdict = import_of(&question, &text);
        assert_eq!(verdict.is_err(), refused, "{name}: {verdict:?}\n{}\n{text}", question.plan);
        *refusals.entry(name).or_default() += usize::from(refused);
    }
    let missed: Vec<_> =
        BREAKS.iter().filter(|one| one.0 != "harmless" && !refusals.contains_key(one.0)).collect();
    assert!(missed.is_empty() && refusals.values().filter(|n| **n > 0).count() == 14, "{refusals:?}");
}

/// Writes such configurations for the validators, as [`write_cases`] writes plans.
#[test]
#[ignore = "writes files for validators that are not part of this repository"]
fn write_broken_configurations() {
    let folder = std::env::var("AUTOPLAN_CASES").expect("AUTOPLAN_CASES names a folder");
    let folder = Path::new(&folder).join("deepspeed-keys");
    let count: usize = std::env::var("AUTOPLAN_COUNT").map_or(200, |n| n.parse().unwrap());
    let seed: u64 = std::env::var("AUTOPLAN_SEED").map_or(11, |n| n.parse().unwrap());
    let mut manifest = String::new();
    for (at, (name, _, question, _, text)) in broken_configurations(seed, count).enumerate() {
        let id = format!("{at:03}");
        let case = folder.join(&id);
        std::fs::create_dir_all(&case).unwrap();
        std::fs::write(case.join("ds_config.json"), &text).unwrap();
        let reason = import_of(&question, &text).err();
        let line = json!({
            "id": id, "target": "deepspeed", "model": question.model.name, "plan": question.plan.to_string(),
            "legal": reason.is_none(), "rule": name, "reason": reason, "files": ["ds_config.json"],
            "expected": expected(&question),
        });
        writeln!(manifest, "{line}").unwrap();
    }
    std::fs::write(folder.join("manifest.jsonl"), manifest).unwrap();
}

/// Writes the files of one case, and says what its manifest says of it; nothing where they cannot be written.
fn put(
    folder: &Path,
    number: usize,
    target: Target,
    question: &Question,
    rule: &str,
    reason: Option<String>,
) -> Option<Value> {
    let request = question.request(Format::Script);
    let mut files = write(Destination::Framework(target), &request).ok()?;
    if target == Target::Bridge {
        // What Bridge leaves to Megatron-Core is put before Megatron-Core.
        let core = write(Destination::Framework(Target::Megatron), &request).ok()?;
        let file = core.into_iter().next().unwrap();
        files.push(ExportedFile { name: "core.sh".into(), ..file });
    }
    let id = format!("{number:03}");
    let case = folder.join(&id);
    std::fs::create_dir_all(&case).unwrap();
    for file in &files {
        std::fs::write(case.join(&file.name), &file.text).unwrap();
    }
    Some(json!({
        "id": id, "target": target.name(), "model": question.model.name, "cluster": question.cluster.name,
        "architecture": format!("{:?}", question.accelerator.architecture),
        "gpus_per_node": request.nodes().1,
        "plan": question.plan.to_string(), "legal": reason.is_none(), "rule": rule, "reason": reason,
        "files": files.iter().map(|f| f.name.clone()).collect::<Vec<_>>(),
        "expected": expected(question),
    }))
}

/// Which frameworks are asked for cases, each with its folder; how many cases, and which random sequence.
fn asked_for(count: usize) -> (Vec<(Target, PathBuf)>, usize, u64) {
    let folder = std::env::var("AUTOPLAN_CASES").expect("AUTOPLAN_CASES names a folder");
    let only = std::env::var("AUTOPLAN_TARGET").ok();
    let count = std::env::var("AUTOPLAN_COUNT").map_or(count, |n| n.parse().unwrap());
    let seed = std::env::var("AUTOPLAN_SEED").map_or(11, |n| n.parse().unwrap());
    let wanted =
        |target: &Target| target.exports() && only.as_deref().is_none_or(|name| name == target.name());
    let targets = Target::ALL.into_iter().filter(wanted).map(|target| {
        let folder = Path::new(&folder).join(target.name());
        std::fs::create_dir_all(&folder).unwrap();
        (target, folder)
    });
    (targets.collect(), count, seed)
}

/// Writes, as [`write_cases`] does, a few random plans for every rule of a framework that break this one and no other,
/// whoever finds out: what they are refused for is the rule.
#[test]
#[ignore = "writes files for validators that are not part of this repository"]
fn write_rule_cases() {
    let (targets, count, seed) = asked_for(3);
    let models = models();
    for (target, folder) in targets {
        let (mut manifest, mut random) = (String::new(), Random::new(seed));
        let mut found: BTreeMap<&str, usize> = BTreeMap::new();
        let tries_of_all = 600_000;
        for tries in 0..tries_of_all {
            let wild = Wild { degrees: [0, 25, 5][tries % 3], switches: [15, 5, 40][tries % 3] };
            let Some(question) = question(&mut random, target, &models, wild) else { continue };
            let (k, context, plan) = (target.capabilities(), question.context(), &question.plan);
            if context.gpus > 1024 && tries < tries_of_all / 2 {
                continue;
            }
            let rules = COMMON_RULES.iter().chain(target.rules());
            let layout_rules =
                rules.filter(|r| (r.check)(k, &context, plan.layout()).is_err()).map(|r| r.name);
            let rules = COMMON_PLAN_RULES.iter().chain(target.plan_rules());
            let plan_rules = rules.filter(|r| (r.check)(k, &context, plan).is_err()).map(|r| r.name);
            let broken: Vec<&str> = layout_rules.chain(plan_rules).collect();
            let &[rule] = broken.as_slice() else { continue };
            if found.get(rule).is_some_and(|n| *n >= count) {
                continue;
            }
            let reason = legal_plan(target, &context, plan).err().map(|refusal| refusal.reason());
            let number = found.values().sum();
            let Some(line) = put(&folder, number, target, &question, rule, reason) else { continue };
            *found.entry(rule).or_default() += 1;
            writeln!(manifest, "{line}").unwrap();
        }
        // What no random plan breaks alone is broken by hand.
        for (rule, model, job, layout) in cases_by_hand(target) {
            let layers = Layers::new(&model).count();
            let (count, recompute) = (layout.chunk_count(), Recompute::None);
            let chunks = (0..count)
                .map(|at| Chunk { layers: layers / count + u32::from(at < layers % count), recompute })
                .collect();
            let Ok(plan) = Plan::new(layout, chunks, job.gpus, job.global_batch_size, layers) else {
                continue;
            };
            if found.get(rule).is_some_and(|n| *n > 0) {
                continue;
            }
            let (cluster, accelerator) = site("dgx-h100");
            let question = Question { model, cluster, accelerator, job, plan };
            let number = found.values().sum();
            let Some(line) = put(&folder, number, target, &question, rule, Some("by hand".into())) else {
                continue;
            };
            *found.entry(rule).or_default() += 1;
            writeln!(manifest, "{line}").unwrap();
        }
        std::fs::write(folder.join("manifest.jsonl"), manifest).unwrap();
        let names = COMMON_RULES.iter().chain(target.rules()).map(|r| r.name);
        let all = names.chain(COMMON_PLAN_RULES.iter().chain(target.plan_rules()).map(|r| r.name));
        let missed: Vec<&str> = all.filter(|name| !found.contains_key(name)).collect();
        println!("{target}: {found:?}; none breaks {missed:?} alone");
    }
}

/// Writes cases for the validators: `AUTOPLAN_CASES` names the folder, `AUTOPLAN_TARGET` a target, `AUTOPLAN_SEED`
/// which of the random sequences.
/// Legal plans of many sizes, and as many random ones for the comparison of verdicts.
#[test]
#[ignore = "writes files for validators that are not part of this repository"]
fn write_cases() {
    let (targets, count, seed) = asked_for(200);
    let models = models();
    for (target, folder) in targets {
        let mut manifest = String::new();
        let mut random = Random::new(seed);
        let mut seen: BTreeMap<&'static str, usize> = BTreeMap::new();
        let mut written = 0;
        let mut sizes: BTreeMap<u32, usize> = BTreeMap::new();
        let mut tries = 0_u64;
        while written < count && tries < 3_000_000 {
            tries += 1;
            let wild = if written % 2 == 0 {
                Wild { degrees: 0, switches: 5 }
            } else {
                Wild { degrees: 25, switches: 40 }
            };
            let Some(question) = question(&mut random, target, &models, wild) else { continue };
            let refusal = legal_plan(target, &question.context(), &question.plan).err();
            let (rule, judge) = refusal.as_ref().map_or(("", Judge::SetUp), |r| (r.rule, r.judge));
            let judge = if ASKED_TOO.contains(&(target, rule)) { Judge::SetUp } else { judge };
            // Half legal; of the illegal, as many of each rule as come.
            let legal = refusal.is_none();
            let enough = if legal {
                let size = sizes.entry(question.job.gpus).or_default();
                seen.get("").copied().unwrap_or(0) * 2 > count || *size > count / 16
            } else {
                seen.get(rule).copied().unwrap_or(0) > 3 + (tries / 50_000) as usize
            };
            if enough || judge != Judge::SetUp {
                *seen.entry(if judge == Judge::SetUp { rule } else { "-" }).or_default() +=
                    usize::from(judge != Judge::SetUp);
                continue;
            }
            let piped =
                question.plan.layout().pipeline_parallel > 1 && question.plan.layout().tensor_parallel > 1;
            if rule == "pipeline-zero" && piped {
                // The pipeline engine is built only where no outside tensor parallelism is needed.
                continue;
            }
            if rule == "pipeline-axis" && question.plan.layout().zero_stage == 0 {
                // Plain replicas are as many as there are ranks: nothing that is written is too few.
                continue;
            }
            let reason = refusal.as_ref().map(|r| r.reason());
            let Some(line) = put(&folder, written, target, &question, rule, reason) else { continue };
            *seen.entry(rule).or_default() += 1;
            if legal {
                *sizes.entry(question.job.gpus).or_default() += 1;
            }
            writeln!(manifest, "{line}").unwrap();
            written += 1;
        }
        std::fs::write(folder.join("manifest.jsonl"), manifest).unwrap();
        println!("{target}: {written} cases after {tries} tries: {seen:?}");
    }
}

/// Whether a framework has a model does not depend on the plan: it writes every plan that it accepts, or none.
#[test]
fn a_framework_writes_all_its_plans_of_a_model_or_none() {
    let models = models();
    for target in Target::ALL.into_iter().filter(|t| t.exports()) {
        let mut random = Random::new(31);
        let (mut written, mut refused) = (0, 0);
        for _ in 0..6000 {
            let wild = Wild { degrees: 5, switches: 5 };
            let Some(question) = question(&mut random, target, &models, wild) else { continue };
            if legal_plan(target, &question.context(), &question.plan).is_err() {
                continue;
            }
            let files = write(Destination::Framework(target), &question.request(Format::Script));
            let (model, machine) = (&question.model, (&question.cluster, &question.accelerator));
            match inexpressible(target, model, &question.job, machine) {
                None => {
                    assert!(files.is_ok(), "{target} {}: {}: {:?}", model.name, question.plan, files.err());
                    written += 1;
                }
                Some(reason) => {
                    assert_eq!(files.unwrap_err().reason(), reason.reason(), "{target} {}", model.name);
                    refused += 1;
                }
            }
        }
        assert!(written > 20, "{target}: {written} written, {refused} refused");
    }
}

/// A plan of one framework that another refuses is refused with one near it that the other accepts, where the batch
/// leaves one.
#[test]
fn a_refusal_names_a_plan_that_is_accepted() {
    let models = models();
    for target in [Target::DeepSpeed, Target::Torchtitan, Target::Accelerate] {
        let mut random = Random::new(47);
        let (mut named, mut open) = (0, 0);
        while named + open < 150 {
            let wild = Wild { degrees: 0, switches: 0 };
            let Some(question) = question(&mut random, Target::Megatron, &models, wild) else { continue };
            let Question { model, cluster, accelerator, job, .. } = &question;
            let elsewhere = inexpressible(target, model, job, (cluster, accelerator)).is_some();
            // No plan of theirs drops tokens.
            if elsewhere
                || job.expert_capacity.is_some()
                || legal_plan(Target::Megatron, &question.context(), &question.plan).is_err()
            {
                continue;
            }
            let request = question.request(Format::Script);
            let Err(refusal) = export_or_nearest(Destination::Framework(target), &request, &|_| true) else {
                continue;
            };
            let Some(near) = &refusal.nearest else {
                open += 1;
                continue;
            };
            // DeepSpeed's stages run in Megatron-DeepSpeed.
            assert!(legal_plan(refusal.target, &question.context(), near).is_ok(), "{target}: {near}");
            assert!(refusal.to_string().contains(&near.to_string()), "{refusal}");
            named += 1;
        }
        assert!(named >= 100, "{target}: a plan is named in {named} of {} refusals", named + open);
    }
}

/// Rules of a framework that random plans reach: no rule of the table is dead.
#[test]
fn random_plans_reach_legal_and_illegal() {
    let models = models();
    for target in [Target::Megatron, Target::DeepSpeed, Target::Torchtitan, Target::Accelerate] {
        let mut random = Random::new(5);
        let (mut legal, mut illegal) = (0, 0);
        for _ in 0..4000 {
            let wild = Wild { degrees: 10, switches: 10 };
            let Some(question) = question(&mut random, target, &models, wild) else { continue };
            match legal_plan(target, &question.context(), &question.plan) {
                Ok(()) => legal += 1,
                Err(_) => illegal += 1,
            }
        }
        assert!(legal > 50 && illegal > 50, "{target}: {legal} legal, {illegal} illegal");
    }
}

/// Every rule of a framework's own is broken by some random plan, but for those on training that the generator has none of
/// and on compiled layers. Of the rules that all share, laws of every plan and options that a framework does not have are
/// left to the tests that break each.
#[test]
fn random_plans_break_every_rule_of_a_framework() {
    let models = models();
    for target in Target::ALL.into_iter().filter(|t| t.exports()) {
        let mut random = Random::new(20_261_126);
        let mut broken: BTreeSet<&str> = BTreeSet::new();
        let k = target.capabilities();
        for tries in 0..40_000 {
            let wild = Wild { degrees: 25, switches: if tries % 2 == 0 { 15 } else { 40 } };
            let Some(question) = question(&mut random, target, &models, wild) else { continue };
            let (context, plan) = (question.context(), &question.plan);
            let rules = target.rules().iter().filter(|r| (r.check)(k, &context, plan.layout()).is_err());
            broken.extend(rules.map(|r| r.name));
            let rules = target.plan_rules().iter().filter(|r| (r.check)(k, &context, plan).is_err());
            broken.extend(rules.map(|r| r.name));
        }
        let all = target.rules().iter().map(|r| r.name).chain(target.plan_rules().iter().map(|r| r.name));
        let left_out = ["training", "tensor-overlap-compiled"];
        let unbroken: Vec<&str> =
            all.filter(|name| !broken.contains(name) && !left_out.contains(name)).collect();
        assert_eq!(unbroken, [""; 0], "{target}");
    }
}
