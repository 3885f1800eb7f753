//! Exports: complete, quoted, and the same for every shell that reads them.

use std::collections::BTreeSet;
use std::process::Command;

use autoplan::frameworks::Target;
use autoplan::frameworks::export::{Destination, ExportRequest, ExportedFile, Format, Prediction, export};
use autoplan::frameworks::hf::HfModel;
use autoplan::frameworks::megatron::import::{Given, import};
use autoplan::layers::Layers;
use autoplan::plan::{Chunk, CudaGraphs, Dispatcher, Offload, Place, Plan, Recompute, Schedule};
use autoplan::spec::cluster::{Accelerator, Cluster};
use autoplan::spec::job::{Job, Optimizer};
use autoplan::spec::model::{FeedForward, Model, Position, PositionScaling};
use autoplan::spec::{ron_options, shipped};
use autoplan::units::{Bytes, Seconds};

use crate::frameworks::{DENSE, HYBRID, LATENT_MOE, WINDOWS, fill, job, model, spread};

/// A shipped cluster with its accelerator.
pub fn site(name: &str) -> (Cluster, Accelerator) {
    let cluster = shipped::Kind::Cluster.find(name).unwrap();
    let cluster: Cluster = ron_options().from_str(cluster.text).unwrap();
    let accelerator = shipped::Kind::Accelerator.find(&cluster.accelerator).unwrap();
    (cluster, ron_options().from_str(accelerator.text).unwrap())
}

pub fn write(
    to: Destination,
    model: &Model,
    job: &Job,
    plan: &Plan,
    format: Format,
) -> Result<Vec<ExportedFile>, String> {
    let (cluster, accelerator) = site("dgx-h100");
    let request = ExportRequest {
        model,
        job,
        cluster: &cluster,
        accelerator: &accelerator,
        plan,
        prediction: Some(Prediction {
            step_time: Seconds(12.3),
            memory: Bytes(61_200_000_000),
            checkpoints: None,
            notes: &[],
        }),
        version: "autoplan 0.0.0",
        command: "autoplan plan model cluster --gpus 64\n$(touch injected) `id`; é",
        format,
    };
    let files = export(to, &request).map_err(|refusal| refusal.to_string())?;
    let main = to.main_file(&request);
    assert!(files.iter().any(|file| file.name == main), "{main}");
    Ok(files)
}

/// Without asking the rules: what is written of a model does not hang on the plan.
fn write_unjudged(to: Destination, model: &Model, job: &Job, plan: &Plan) -> Vec<ExportedFile> {
    let (cluster, accelerator) = site("dgx-h100");
    let request = ExportRequest {
        model,
        job,
        cluster: &cluster,
        accelerator: &accelerator,
        plan,
        prediction: None,
        version: "",
        command: "",
        format: Format::Script,
    };
    autoplan::frameworks::export::write(to, &request)
        .unwrap_or_else(|refusal| panic!("{}: {refusal}", model.name))
}

fn megatron_words(model_text: &str, job: &Job, plan: &Plan) -> Vec<String> {
    let to = Destination::Framework(Target::Megatron);
    let files = write(to, &model(model_text), job, plan, Format::Args).unwrap();
    let text: String = files[0].text.lines().filter(|l| !l.starts_with('#')).collect::<Vec<_>>().join("\n");
    shlex::split(&text).unwrap()
}

fn has(words: &[String], sequence: &[&str]) -> bool {
    words.windows(sequence.len()).any(|w| w == sequence)
}

#[test]
fn megatron_arguments_say_what_the_plan_says() {
    let job = job(1024, 2048);
    let layout = fill(&job, |l| {
        l.tensor_parallel = 8;
        l.sequence_parallel = true;
        l.pipeline_parallel = 4;
        l.virtual_stages = 5;
        l.schedule = Schedule::Interleaved;
        l.data_overlap = true;
        l.tensor_overlap = true;
    });
    let words = megatron_words(DENSE, &job, &spread(layout, &job, 80, "full:block:2".parse().unwrap()));
    for sequence in [
        &["--num-layers", "80"][..],
        &["--group-query-attention", "--num-query-groups", "8"],
        &["--ffn-hidden-size", "28672"],
        &["--tensor-model-parallel-size", "8", "--sequence-parallel", "--tp-comm-overlap"],
        &["--num-virtual-stages-per-pipeline-rank", "5"],
        &["--recompute-method", "block", "--recompute-num-layers", "2"],
        &["--use-distributed-optimizer", "--overlap-grad-reduce", "--overlap-param-gather"],
        &["--global-batch-size", "2048"],
    ] {
        assert!(has(&words, sequence), "{sequence:?} in {words:?}");
    }
    assert!(words.contains(&"CUDA_DEVICE_MAX_CONNECTIONS=1".to_owned()));
    let layout = fill(&job, |l| {
        l.pipeline_parallel = 16;
        l.virtual_stages = 2;
        l.schedule = Schedule::Interleaved;
        l.expert_parallel = 64;
        l.dispatcher = Some(Dispatcher::DeepEp);
    });
    let words = megatron_words(LATENT_MOE, &job, &spread(layout, &job, 61, Recompute::None));
    for sequence in [
        &["--moe-layer-freq", "([0]*3+[1]*58)"][..],
        &["--pipeline-model-parallel-layout", "Ett|(tt|)*28,(t|)*2,tmL"],
        &["--moe-token-dispatcher-type", "flex", "--moe-flex-dispatcher-backend", "deepep"],
        &["--expert-model-parallel-size", "64", "--expert-tensor-parallel-size", "1"],
        &["--multi-latent-attention", "--q-lora-rank", "1536"],
        &["--mtp-num-layers", "1"],
        &["--moe-router-num-groups", "8", "--moe-router-group-topk", "4"],
    ] {
        assert!(has(&words, sequence), "{sequence:?} in {words:?}");
    }
}

/// The layout of Megatron-Core's guide for DeepSeek-V3, written and read back.
#[test]
fn multi_token_prediction_on_a_stage_of_its_own_is_written_and_read() {
    let job = job(1024, 2048);
    let layout = fill(&job, |l| {
        l.pipeline_parallel = 16;
        l.virtual_stages = 2;
        l.schedule = Schedule::Interleaved;
        l.expert_parallel = 64;
        l.dispatcher = Some(Dispatcher::DeepEp);
        l.mtp_standalone = true;
        l.data_overlap = true;
    });
    let counts = [&[3][..], &[2; 29], &[0, 0]].concat();
    let chunks = counts.into_iter().map(|layers| Chunk { layers, recompute: Recompute::None }).collect();
    let plan = Plan::new(layout, chunks, 1024, 2048, 61).unwrap();
    let published = "Et*3|(tt|)*29,m|L";
    let words = megatron_words(LATENT_MOE, &job, &plan);
    assert!(has(&words, &["--pipeline-model-parallel-layout", published]), "{words:?}");
    let recipe = text_of(Target::Bridge, "autoplan_recipe.py", LATENT_MOE, &job, &plan);
    assert!(recipe.contains(&format!("pipeline_model_parallel_layout=\"{published}\"")), "{recipe}");
    let to = Destination::Framework(Target::Megatron);
    let files = write(to, &model(LATENT_MOE), &job, &plan, Format::Script).unwrap();
    let read = |text: &str| import(text, Given { name: "x", ..Given::default() }).unwrap();
    assert_eq!(read(&files[0].text).plan, plan);
    // Before an empty stage it is taken as if it were with the head, and that is said.
    let elsewhere = files[0].text.replace(published, "Et*3|(tt|)*28,ttm||L");
    let read = read(&elsewhere);
    assert!(!read.plan.layout().mtp_standalone);
    assert!(
        read.assumed.iter().any(|note| note.contains("others without layers follow")),
        "{:?}",
        read.assumed
    );
}

/// Bridge builds no model with CUDA graphs without Transformer Engine's random numbers, and HybridEP is told where ranks lie.
#[test]
fn graphs_and_dispatchers_have_what_they_need() {
    let job = job(64, 256);
    for (graphs, needed) in [(CudaGraphs::None, false), (CudaGraphs::AttentionRouter, true)] {
        let layout = fill(&job, |l| {
            l.expert_parallel = 16;
            l.cuda_graphs = graphs;
            l.dispatcher = Some(if needed { Dispatcher::HybridEp } else { Dispatcher::AllToAll });
        });
        let plan = spread(layout, &job, 61, Recompute::None);
        let recipe = text_of(Target::Bridge, "autoplan_recipe.py", LATENT_MOE, &job, &plan);
        assert_eq!(recipe.contains("use_te_rng_tracker=True,"), needed, "{recipe}");
        let words = megatron_words(LATENT_MOE, &job, &plan);
        for told in ["NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN=8", "NVLINK_DOMAIN_SIZE=8", "USE_MNNVL=0"] {
            assert_eq!(words.contains(&told.to_owned()), needed, "{told} {words:?}");
        }
    }
}

/// What a target's named file says of a plan.
fn text_of(target: Target, name: &str, model_text: &str, job: &Job, plan: &Plan) -> String {
    let files = write(Destination::Framework(target), &model(model_text), job, plan, Format::Script).unwrap();
    files.into_iter().find(|file| file.name == name).unwrap().text
}

#[test]
fn recipes_say_that_attention_is_latent() {
    let job = job(64, 256);
    let layout = fill(&job, |l| l.dispatcher = Some(Dispatcher::AllToAll));
    let plan = spread(layout, &job, 61, Recompute::None);
    let recipe = text_of(Target::Bridge, "autoplan_recipe.py", LATENT_MOE, &job, &plan);
    assert!(recipe.contains("multi_latent_attention=True,"), "{recipe}");
    let plan = spread(fill(&job, |_| {}), &job, 80, Recompute::None);
    let recipe = text_of(Target::Bridge, "autoplan_recipe.py", DENSE, &job, &plan);
    assert!(!recipe.contains("latent"), "{recipe}");
}

/// What a target's files say of a model's numbers, and what they leave open.
#[test]
fn numbers_of_the_model_are_written_or_named_as_open() {
    let job = job(64, 256);
    let text = |target: Target, name: &str| {
        let model = model(shipped::Kind::Model.find(name).map_or(name, |file| file.text));
        let sharded = !matches!(target, Target::Megatron | Target::Bridge | Target::MegatronDeepSpeed);
        let layout = fill(&job, |l| {
            if sharded {
                l.zero_stage = 3;
            }
            if model.blocks.values().any(|b| matches!(b.feed_forward, FeedForward::Moe(_))) {
                l.dispatcher = Some(Dispatcher::AllToAll);
            }
        });
        let plan = spread(layout, &job, model.layer_count(), Recompute::None);
        let files = write_unjudged(Destination::Framework(target), &model, &job, &plan);
        files.into_iter().map(|file| file.text).collect::<Vec<_>>().join("\n")
    };
    let open = |text: &str| text.lines().find_map(|l| l.strip_prefix("# left open  ")).map(str::to_owned);
    let yarn_of_deepseek =
        "rope_factor=40.0, beta_fast=32.0, beta_slow=1.0, original_seq_len=4096, truncate=True";
    let yarn_of_gpt_oss =
        "rope_factor=32.0, beta_fast=32.0, beta_slow=1.0, original_seq_len=4096, truncate=False";
    for (target, name, parts) in [
        (Target::Megatron, "llama3.1-8b", &["--norm-epsilon 1e-5", "--use-rope-scaling"][..]),
        (
            Target::Megatron,
            "deepseek-v3",
            &[
                "--norm-epsilon 1e-6",
                "--rotary-scaling-factor 40.0",
                "--mscale 1.0",
                "--mscale-all-dim 1.0",
                "--moe-router-topk-scaling-factor 2.5",
                "--position-embedding-type rope",
            ],
        ),
        (
            Target::Megatron,
            "gpt-oss-20b",
            &[
                "--position-embedding-type yarn",
                "--rotary-scaling-factor 32.0",
                "--yarn-original-max-position-embeddings 4096",
                "--yarn-beta-fast 32.0",
                "--yarn-beta-slow 1.0",
                "--no-yarn-correction-range-round-to-int",
            ],
        ),
        (
            Target::Bridge,
            "llama3.1-8b",
            &["rope_scaling=True", "rope_scaling_factor=8.0", "layernorm_epsilon=1e-5"],
        ),
        (Target::Bridge, "llama3.2-1b", &["rope_scaling=True", "rope_scaling_factor=32.0"]),
        (
            Target::Bridge,
            "kimi-k2",
            &[
                "rope_type=\"yarn\"",
                "rotary_scaling_factor=32.0",
                "original_max_position_embeddings=4096",
                "beta_fast=1.0",
                "mscale_all_dim=1.0",
                "moe_router_topk_scaling_factor=2.827",
            ],
        ),
        (
            Target::Bridge,
            "gpt-oss-20b",
            &[
                "position_embedding_type=\"yarn\"",
                "yarn_rotary_scaling_factor=32.0",
                "yarn_correction_range_round_to_int=False",
            ],
        ),
        (
            Target::Torchtitan,
            "llama3.2-1b",
            &[
                "scaling=\"llama\", scaling_factor=32.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192",
                "norm.eps = 1e-5",
            ],
        ),
        (
            Target::Torchtitan,
            "deepseek-v3",
            &[
                yarn_of_deepseek,
                "mscale=1.0",
                "router_route_scale=2.5",
                "router_route_norm=True",
                "norm.eps = 1e-6",
            ],
        ),
        (Target::Torchtitan, "gpt-oss-20b", &[yarn_of_gpt_oss]),
        (Target::Torchtitan, "qwen3-8b", &["norm.eps = 1e-6"]),
        (
            Target::Accelerate,
            "llama3.2-1b",
            &[
                "\"rope_type\": \"llama3\"",
                "\"factor\": 32.0",
                "\"rms_norm_eps\": 0.00001",
                "\"rope_theta\": 500000.0",
            ],
        ),
        (Target::DeepSpeed, "gpt-neox-20b", &["\"layer_norm_eps\": 0.00001"]),
        (Target::DeepSpeed, "deepseek-v2", &["\"routed_scaling_factor\": 16.0", "\"mscale_all_dim\": 1.0"]),
        (Target::MegatronDeepSpeed, "llama2-7b", &["--layernorm-epsilon 1e-5"]),
    ] {
        let text = text(target, name);
        for part in parts {
            assert!(text.contains(part), "{target} {name}: {part}\n{text}");
        }
        assert_eq!(open(&text), None, "{target} {name}");
    }
    let defaults = ": the framework's defaults hold";
    for (target, name, left) in [
        (Target::Megatron, "llama3.2-1b", "scaling of rotary positions (Llama 3's, factor 32)"),
        (Target::Megatron, "kimi-k2", "scaling of rotary positions (YaRN, factor 32)"),
        (Target::MegatronDeepSpeed, "llama3.1-8b", "scaling of rotary positions (Llama 3's, factor 8)"),
        (Target::Megatron, DENSE, "epsilon of the norms"),
    ] {
        let text = text(target, name);
        assert_eq!(open(&text).as_deref(), Some(&*format!("{left}{defaults}")), "{target} {name}");
        assert!(!text.contains("--use-rope-scaling") && !text.contains("--rotary-scaling-factor"), "{text}");
    }
    for target in [Target::Megatron, Target::Bridge] {
        let open = open(&text(target, "deepseek-v2-lite")).unwrap_or_default();
        assert!(open.contains("a norm of the queries, which the model does not have"), "{target}: {open}");
    }
    let mut model = model(shipped::Kind::Model.find("llama3.1-8b").unwrap().text);
    model.unstated = vec!["residual_multiplier 0.22".to_owned()];
    let plan = spread(fill(&job, |_| {}), &job, model.layer_count(), Recompute::None);
    for target in [Target::Megatron, Target::Torchtitan] {
        let files = write_unjudged(Destination::Framework(target), &model, &job, &plan);
        assert!(files.iter().any(|file| file.text.contains("residual_multiplier 0.22")), "{target}");
    }
}

/// What is written for Hugging Face models is read back as the same numbers.
#[test]
fn configurations_of_hugging_face_models_say_the_numbers() {
    let mut kinds = BTreeSet::new();
    for file in shipped::models() {
        let model: Model = ron_options().from_str(file.text).unwrap();
        let Some(hf) = HfModel::of(&model, &Layers::new(&model)) else { continue };
        let text = serde_json::Value::Object(hf.config).to_string();
        let back =
            autoplan::spec::hf::import(&text, file.name).unwrap_or_else(|e| panic!("{}: {e}", file.name));
        let bare = |position: Position| match position {
            Position::Rotary => {
                Position::RotaryWith { base: 1e4, share: 1.0, scaling: PositionScaling::None }
            }
            other => other,
        };
        assert_eq!(bare(back.position), bare(model.position), "{}", file.name);
        if model.norm_epsilon.is_some() {
            assert_eq!(back.norm_epsilon, model.norm_epsilon, "{}", file.name);
        }
        let routers = |model: &Model| -> Vec<_> {
            let routers = model.blocks.values().map(|block| match &block.feed_forward {
                FeedForward::Moe(moe) => Some(moe.router.clone()),
                _ => None,
            });
            routers.flatten().collect()
        };
        assert_eq!(routers(&back), routers(&model), "{}", file.name);
        kinds.insert(back.position.scaling().to_string());
    }
    assert!(kinds.len() >= 5, "{kinds:?}");
}

/// The swapper of DeepSpeed takes no shard larger than its buffer.
#[test]
fn buffers_of_weights_on_drives_hold_the_largest_shard() {
    let job = job(8, 8);
    let layout = fill(&job, |l| {
        l.zero_stage = 3;
        l.offload = Offload { optimizer: Place::Nvme, parameters: Place::Nvme, activations: false };
    });
    let plan = spread(layout, &job, 80, Recompute::FullUniform(1));
    let text = text_of(Target::DeepSpeed, "ds_config.json", DENSE, &job, &plan);
    let config: serde_json::Value = serde_json::from_str(&text).unwrap();
    let weights = &config["zero_optimization"]["offload_param"];
    assert_eq!(weights["device"], "nvme");
    // The embedding has 128,256 rows of 8,192: an eighth of it is the largest shard.
    assert!(weights["buffer_size"].as_u64().unwrap() >= 128_256 * 8192 / 8, "{text}");
    assert_eq!(config["zero_optimization"]["offload_optimizer"]["device"], "nvme");
}

/// DeepSpeed refuses Transformers' plans for experts (module_inject/tp_plan_converter.py): what AutoTP splits beside AutoEP is
/// written down.
#[test]
fn tensor_parallelism_beside_experts_names_what_is_split() {
    let shipped = |name: &str| shipped::models().into_iter().find(|m| m.name == name).unwrap().text;
    let job = job(64, 256);
    let tensor = |name: &str, layers: u32| -> serde_json::Value {
        let layout = fill(&job, |l| {
            (l.tensor_parallel, l.expert_parallel) = (2, 4);
            l.dispatcher = Some(Dispatcher::AllToAll);
        });
        let plan = spread(layout, &job, layers, Recompute::None);
        let text = text_of(Target::DeepSpeed, "ds_config.json", shipped(name), &job, &plan);
        let config: serde_json::Value = serde_json::from_str(&text).unwrap();
        config["tensor_parallel"].clone()
    };
    let kinds = |tensor: &serde_json::Value| -> Vec<String> {
        let layers = tensor["partition_config"]["layer_specs"].as_array().unwrap();
        layers.iter().map(|one| one["partition_type"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(kinds(&tensor("mixtral-8x7b", 32)), ["column", "row", "column"]);
    let qwen = tensor("qwen3-30b-a3b", 48);
    assert_eq!(kinds(&qwen), ["column", "row", "skip", "column"]);
    assert_eq!(qwen["partition_config"]["layer_specs"][2]["grad_allreduce"], true);
    // Muon leaves AutoEP its scattered gradients below stage 3.
    let mut muon = job.clone();
    muon.optimizer = Optimizer::Muon;
    for (stage, scattered) in [(1, true), (3, false)] {
        let layout = fill(&muon, |l| {
            (l.expert_parallel, l.zero_stage) = (4, stage);
            l.dispatcher = Some(Dispatcher::AllToAll);
        });
        let plan = spread(layout, &muon, 48, Recompute::None);
        let text = text_of(Target::DeepSpeed, "ds_config.json", shipped("qwen3-30b-a3b"), &muon, &plan);
        assert!(text.contains(&format!("\"reduce_scatter\": {scattered}")), "{text}");
    }
    let dense = spread(fill(&job, |l| l.tensor_parallel = 2), &job, 80, Recompute::None);
    let text = text_of(Target::DeepSpeed, "ds_config.json", DENSE, &job, &dense);
    assert!(!text.contains("partition_config"), "{text}");
}

#[test]
fn windows_sinks_and_hybrids_have_their_flags() {
    let job = job(64, 256);
    let layout = fill(&job, |l| l.dispatcher = Some(Dispatcher::AllToAll));
    let words = megatron_words(WINDOWS, &job, &spread(layout, &job, 36, Recompute::None));
    assert!(has(&words, &["--window-size", "127,0", "--window-attn-skip-freq", "([1,0]*18)"]), "{words:?}");
    assert!(has(&words, &["--softmax-type", "learnable"]));
    assert!(!words.contains(&"--disable-bias-linear".to_owned()));
    let layout = fill(&job, |l| l.pipeline_parallel = 4);
    let words = megatron_words(HYBRID, &job, &spread(layout, &job, 52, Recompute::None));
    let pattern = "M-M-M-M-M-M-M|-M-M-M-M-M-M-|M-M-M-M-M-M-M|-M-M-M-M-****";
    assert!(has(&words, &["--hybrid-layer-pattern", pattern]), "{words:?}");
    assert!(has(&words, &["pretrain_hybrid.py"]));
}

/// Names that would break out of comments, arrays and job names.
const NASTY: &[&str] = &[
    "plain",
    "a b  c",
    "it's \"quoted\"",
    "$(touch injected)",
    "`touch injected`",
    "line\nbreak\r\ntouch injected",
    "\u{2028}touch injected",
    "日本語 モデル é",
    "*?[a]|&;<>(){}!#",
    "'; touch injected; '",
    "*/ touch injected #",
    "\"\"\"\nimport os; os.system('touch injected')",
];

#[test]
fn no_name_breaks_or_injects() {
    let job = job(64, 256);
    let layout = fill(&job, |l| l.data_overlap = true);
    let sharded = fill(&job, |l| {
        l.zero_stage = 3;
        l.data_overlap = true;
    });
    for name in NASTY {
        let mut model = model(DENSE);
        model.name = (*name).to_owned();
        for destination in Destination::names() {
            let to: Destination = destination.parse().unwrap();
            let plain = matches!(to.target(), Target::Megatron | Target::Bridge | Target::MegatronDeepSpeed);
            let plan = spread(if plain { layout } else { sharded }, &job, 80, Recompute::None);
            for format in [Format::Script, Format::Args] {
                let files = write(to, &model, &job, &plan, format)
                    .unwrap_or_else(|error| panic!("{destination} {name:?}: {error}"));
                for file in &files {
                    let bare = file
                        .name
                        .trim_start_matches(|c: char| c.is_ascii_alphanumeric() || "._-".contains(c));
                    assert_eq!(bare, "", "{}", file.name);
                    check_syntax(file);
                }
            }
        }
    }
}

/// DeepSpeed's launcher hands other nodes few variables of its own, and those of a file: `KEY=VALUE` in every line.
#[test]
fn other_nodes_have_the_environment_too() {
    for (gpus, said) in [(64, "CUDA_DEVICE_MAX_CONNECTIONS=1\n"), (8, "")] {
        let job = job(gpus, 256);
        let plan = spread(fill(&job, |l| l.data_overlap = true), &job, 80, Recompute::None);
        let text = text_of(Target::MegatronDeepSpeed, "launch.sh", DENSE, &job, &plan);
        let folder = tempfile::tempdir().unwrap();
        let output = run_with_stubs(&text, folder.path(), "[ -z \"$DS_ENV_FILE\" ] || cat \"$DS_ENV_FILE\"");
        assert!(output.status.success(), "{text}");
        assert_eq!(String::from_utf8_lossy(&output.stdout), said, "{text}");
    }
}

/// DeepSpeed's launcher does not quote paths for other nodes: a script there ends before it.
#[test]
fn folders_that_other_nodes_would_expand_are_refused() {
    for (name, runs) in
        [("plain-1.2_x", true), ("a b", false), ("$(touch injected)", false), ("é`id`", false)]
    {
        for (target, gpus) in
            [(Target::MegatronDeepSpeed, 64), (Target::DeepSpeed, 64), (Target::DeepSpeed, 8)]
        {
            let job = job(gpus, 256);
            let sharded = u8::from(target == Target::DeepSpeed) * 2 + 1;
            let layout = fill(&job, |l| (l.data_overlap, l.zero_stage) = (true, sharded));
            let plan = spread(layout, &job, 80, Recompute::None);
            let text = text_of(target, "launch.sh", DENSE, &job, &plan);
            let outer = tempfile::tempdir().unwrap();
            let folder = outer.path().join(name);
            std::fs::create_dir(&folder).unwrap();
            let output = run_with_stubs(&text, &folder, "exit 0");
            let said = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(if runs || gpus == 8 { 0 } else { 2 }), "{name}: {said}");
            assert!(output.status.success() || said.contains("plain one"), "{name}: {said}");
        }
    }
}

/// Runs a script in a folder, with launchers that do no more than this.
fn run_with_stubs(text: &str, folder: &std::path::Path, launchers: &str) -> std::process::Output {
    use std::os::unix::fs::PermissionsExt;
    let (script, stubs) = (folder.join("script.sh"), folder.join("stubs"));
    std::fs::write(&script, text).unwrap();
    std::fs::create_dir(&stubs).unwrap();
    for program in ["torchrun", "srun", "scontrol", "deepspeed", "accelerate"] {
        let stub = stubs.join(program);
        std::fs::write(&stub, format!("#!/bin/sh\n{launchers}\n")).unwrap();
        std::fs::set_permissions(&stub, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    let output = Command::new("bash")
        .arg(script)
        .current_dir(folder)
        .env_clear()
        .env("PATH", format!("{}:/usr/bin:/bin", stubs.display()))
        .env("SLURM_JOB_NODELIST", "node[0-7]")
        .env("SLURM_JOB_ID", "1")
        .env("SLURM_NNODES", "8")
        .output();
    output.unwrap()
}

/// Puts a file before the interpreter that will read it, where there is one; runs shell scripts with
/// launchers that do nothing.
fn check_syntax(file: &ExportedFile) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(&file.name);
    std::fs::write(&path, &file.text).unwrap();
    let run = |program: &str, args: &[&str]| {
        Command::new(program).args(args).arg(&path).current_dir(folder.path()).output()
    };
    let extension = path.extension().map_or("", |e| e.to_str().unwrap());
    let output = match extension {
        "sh" | "sbatch" => Some(run_with_stubs(&file.text, folder.path(), "exit 0")),
        "py" => {
            run("python3", &["-c", "import sys, ast; ast.parse(open(sys.argv[1], encoding='utf-8').read())"])
                .ok()
        }
        "json" => {
            serde_json::from_str::<serde_json::Value>(&file.text).unwrap();
            None
        }
        "yaml" => {
            use saphyr::LoadableYamlNode;
            assert!(!saphyr::Yaml::load_from_str(&file.text).unwrap().is_empty(), "{}", file.text);
            None
        }
        _ => None,
    };
    if let Some(output) = output {
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}: {error}\n{}", file.name, file.text);
    }
    assert!(!folder.path().join("injected").exists(), "{}", file.text);
    let commented = file.text.lines().take_while(|l| l.starts_with('#')).count();
    let inside = file.text.contains("autoplan 0.0.0") && file.text.contains("12.3s");
    assert!(inside && (commented > 7 || extension == "json"), "{}: {}", file.name, file.text);
}
