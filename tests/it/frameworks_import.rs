//! Import: what was exported comes back as it was; scripts of others are read or named as unreadable.

use std::collections::BTreeSet;

use autoplan::frameworks::deepspeed::import as deepspeed;
use autoplan::frameworks::export::{Change, Destination, Format, Settings, export, write};
use autoplan::frameworks::megatron::flag_rules::{FLAG_RULES, in_the_way};
use autoplan::frameworks::megatron::import::{Given, Imported, import as import_given, import_with};
use autoplan::frameworks::megatron::read_rules::ReadRule;
use autoplan::frameworks::shell::{Handed, ImportError, no_files, read_launch};
use autoplan::frameworks::{Judge, Target, legal_plan};
use autoplan::layers::Layers;
use autoplan::plan::{ContextComm, CudaGraphs, Dispatcher, Layout, Recompute, Schedule};
use autoplan::spec::cluster::Architecture;
use autoplan::spec::job::{Optimizer, Precision};
use autoplan::spec::model::{Block, FeedForward, Mixer, Model, Position, PositionScaling, RouterScore};

mod forks;
mod unknown;
mod wrappers;

use crate::frameworks_cases::{Question, Random, Wild, given_of, models, question};

fn import(text: &str, name: &str, gpus: Option<u32>) -> Result<Imported, ImportError> {
    import_given(text, Given { name, gpus, ..Given::default() })
}

/// A layout without what does not show: how sequences would be exchanged if they were split.
fn shown(layout: &Layout) -> Layout {
    let mut layout = *layout;
    if layout.context_parallel == 1 {
        layout.context_comm = ContextComm::Ring;
    }
    layout
}

/// A model as a launch holds it: what the header leaves open is what the framework's own defaults say.
fn as_launched(model: &Model, text: &str) -> Model {
    let open = text.lines().find(|line| line.starts_with("# left open")).unwrap_or_default();
    let mut model = model.clone();
    assert_eq!(open.contains("epsilon of the norms"), model.norm_epsilon.is_none(), "{open}");
    model.norm_epsilon = model.norm_epsilon.or(Some(1e-5));
    if open.contains("scaling of rotary positions") {
        let Position::RotaryWith { scaling, .. } = &mut model.position else { panic!("{open}") };
        assert!(open.contains(&scaling.to_string()), "{open}");
        *scaling = PositionScaling::None;
    }
    model
}

fn same_model(a: &Model, b: &Model) {
    let (one, two) = (Layers::new(a), Layers::new(b));
    let blocks = |layers: &Layers| {
        let mut blocks: Vec<Block> =
            layers.order.iter().map(|&k| layers.kinds[k as usize].block.clone()).collect();
        for block in &mut blocks {
            // Chunks as long as the sequence cut nothing and are not written.
            if let Mixer::Attention(a) = &mut block.mixer {
                a.chunk = None;
            }
        }
        blocks
    };
    assert_eq!(blocks(&one), blocks(&two));
    let (a, b) = (
        Model { blocks: b.blocks.clone(), layers: b.layers.clone(), mtp: b.mtp.clone(), ..a.clone() },
        Model { max_sequence: a.max_sequence, ..b.clone() },
    );
    assert_eq!(a, b);
    assert_eq!(one.mtp.map(|m| m.1), two.mtp.map(|m| m.1));
}

fn compare(question: &Question, imported: &Imported, text: &str, shown: fn(&Layout) -> Layout) {
    assert_eq!(shown(question.plan.layout()), shown(imported.plan.layout()));
    assert_eq!(question.plan.chunks(), imported.plan.chunks());
    assert_eq!(question.job, imported.job);
    same_model(&as_launched(&question.model, text), &imported.model);
    assert_eq!(imported.unknown, [], "every flag that is written is understood");
}

#[test]
fn thousands_of_plans_survive_export_and_import() {
    let models = models();
    let mut random = Random::new(3);
    let mut done = 0;
    let mut scaled = BTreeSet::new();
    let mut tries = 0;
    while done < 3000 {
        tries += 1;
        assert!(tries < 400_000, "only {done} plans");
        let wild = Wild { degrees: 8, switches: 8 };
        let Some(question) = question(&mut random, Target::Megatron, &models, wild) else { continue };
        if legal_plan(Target::Megatron, &question.context(), &question.plan).is_err() {
            continue;
        }
        let format = if done % 2 == 0 { Format::Args } else { Format::Script };
        let to = match done % 5 {
            0 => Destination::Slurm,
            1 => Destination::Kubernetes,
            _ => Destination::Framework(Target::Megatron),
        };
        // Models that Megatron's command line cannot say are refused; the others come back whole.
        let Ok(files) = export(to, &question.request(format)) else { continue };
        let says_no_ranks = format == Format::Args && to != Destination::Kubernetes;
        let gpus = says_no_ranks.then_some(question.job.gpus);
        let imported = import(&files[0].text, &question.model.name, gpus)
            .unwrap_or_else(|error| panic!("{error}\n{}", files[0].text));
        compare(&question, &imported, &files[0].text, shown);
        scaled.insert(
            format!("{:?}", imported.model.position.scaling()).split([' ', '(']).next().map(str::to_owned),
        );
        done += 1;
    }
    assert_eq!(scaled.len(), 3, "none, Llama 3's and YaRN: {scaled:?}");
}

/// What a configuration says counts, and what contradicts the flags is named.
#[test]
fn configurations_beside_a_script_are_read() {
    let script = SCRIPT
        .replace("--use-distributed-optimizer", "--deepspeed --deepspeed_config $D/ds.json --zero-stage 1")
        .replace("--sequence-parallel", "");
    let read = |json: &str| {
        let beside = |name: &str| if name == "ds.json" { Ok(json.to_owned()) } else { Err(name.to_owned()) };
        let script = script.replace("pipeline-model-parallel-size 16", "pipeline-model-parallel-size 1");
        let script = script.replace("--num-layers-per-virtual-pipeline-stage 1", "");
        import_with(&script, Given { name: "x", gpus: None, ..Given::default() }, &beside)
    };
    let plain = read("{}").unwrap();
    // The pipeline engine's BF16 optimizer shards its states.
    assert_eq!((plain.plan.layout().zero_stage, plain.plan.layout().shard_group), (1, 128));
    assert!(
        plain.assumed.iter().any(|note| note.contains("stage 0 of the DeepSpeed")),
        "{:?}",
        plain.assumed
    );
    let sharded =
        read(r#"{"zero_optimization": {"stage": 2, "overlap_comm": true}, "train_batch_size": 1536}"#)
            .unwrap();
    assert_eq!((sharded.plan.layout().zero_stage, sharded.plan.layout().data_overlap), (2, true));
    // Scripts of the fork are often older than what DeepSpeed has dropped since.
    let older = read(r#"{"curriculum_learning": {"enabled": false}}"#).unwrap();
    let note = older.assumed.iter().find(|note| note.contains("`curriculum_learning`"));
    assert!(note.is_some_and(|n| n.contains("line 1")), "{:?}", older.assumed);
    for (json, part) in [
        (r#"{"train_batch_size": 512}"#, "--global-batch-size is 1536, and train_batch_size"),
        (r#"{"train_micro_batch_size_per_gpu": 4}"#, "--micro-batch-size is 1"),
        ("{", "the DeepSpeed configuration"),
    ] {
        let error = read(json).unwrap_err();
        assert!(error.message.contains(part), "{json}: {error}");
    }
}

#[test]
fn both_spellings_hand_a_configuration_on() {
    for flags in [
        "--deepspeed --deepspeed_config ds.json",
        "--deepspeed_config ds.json --deepspeed",
        "--deepspeed --deepspeed_config=ds.json",
        "--deepspeed ds.json",
        "--deepspeed=ds.json",
    ] {
        let launch =
            read_launch(&format!("deepspeed --num_gpus 8 train.py {flags} --lr 1"), &no_files).unwrap();
        assert_eq!(launch.deepspeed_config(), Ok(Some(Handed::File("ds.json".to_owned()))), "{flags}");
        assert_eq!(launch.ranks(), Ok(Some(8)));
    }
    let launch = read_launch("torchrun pretrain_gpt.py --deepspeed --num-layers 2", &no_files).unwrap();
    assert_eq!(launch.deepspeed_config(), Ok(None));
}

#[test]
fn numbers_of_a_slurm_header_are_known_to_its_script() {
    let script = SCRIPT
        .replace("NNODES=${NNODES:-128}", "NNODES=$SLURM_NNODES; BATCH=$((NNODES * 12))\n#SBATCH --nodes=4");
    let script = script.replace("batch-size 1536", "batch-size $BATCH");
    // Slurm reads no comments, and no lines after the first command.
    let header =
        "#!/bin/bash\n#SBATCH --nodes=128 # was --nodes=64\n\n  # GPUs:\n#SBATCH --gpus-per-node=8\n";
    let imported = import(&format!("{header}{script}"), "x", None).unwrap();
    assert_eq!((imported.job.gpus, imported.job.global_batch_size), (1024, 1536));
}

#[test]
fn launches_of_megatron_deepspeed_survive_export_and_import() {
    let models = models();
    let mut random = Random::new(5);
    let mut done = 0;
    for _ in 0..400_000 {
        if done == 500 {
            break;
        }
        let wild = Wild { degrees: 8, switches: 8 };
        let Some(question) = question(&mut random, Target::MegatronDeepSpeed, &models, wild) else {
            continue;
        };
        if legal_plan(Target::MegatronDeepSpeed, &question.context(), &question.plan).is_err() {
            continue;
        }
        let to = Destination::Framework(Target::MegatronDeepSpeed);
        let Ok(files) = export(to, &question.request(Format::Script)) else { continue };
        let text = &files.iter().find(|f| f.name == "launch.sh").unwrap().text;
        let given = Given { name: &question.model.name, ..Given::default() };
        let beside = |name: &str| {
            files.iter().find(|f| f.name == name).map(|f| f.text.clone()).ok_or("no such file".to_owned())
        };
        let imported = import_with(text, given, &beside).unwrap_or_else(|error| panic!("{error}\n{text}"));
        assert_eq!(imported.target, Target::MegatronDeepSpeed);
        compare(&question, &imported, text, shown_by_deepspeed);
        // What is exported is predicted with the attention that it asks for, and what is imported as well.
        assert_eq!(imported.profile, Target::MegatronDeepSpeed.profile_name());
        let unfused = text.replace("    --use-flash-attn-v2\n", "");
        assert_ne!(unfused, *text);
        let imported = import_with(&unfused, given, &beside).unwrap();
        assert_eq!(imported.profile, "megatron-deepspeed-bloom");
        done += 1;
    }
    assert_eq!(done, 500);
}

const SCRIPT: &str = r#"#!/bin/bash
export CUDA_DEVICE_MAX_CONNECTIONS=1
NNODES=${NNODES:-128}
GPUS_PER_NODE=8
LAYERS=$((12 * 8))
DIST=(--nnodes "$NNODES" --nproc-per-node "$GPUS_PER_NODE" --rdzv-id gpt3)
MODEL=(--num-layers $LAYERS --hidden-size 12288 --num-attention-heads 96
       --seq-length 2048 --max-position-embeddings 2048 --vocab-size 51200)
PARALLEL="--tensor-model-parallel-size 8 --sequence-parallel \
  --pipeline-model-parallel-size 16 --num-layers-per-virtual-pipeline-stage 1"
torchrun "${DIST[@]}" pretrain_gpt.py "${MODEL[@]}" $PARALLEL --my-own-flag 3 \
  --micro-batch-size 1 --global-batch-size 1536 --bf16 --recompute-granularity selective --use-distributed-optimizer
"#;

#[test]
fn a_script_of_another_hand() {
    let imported = import(SCRIPT, "gpt3", None).unwrap();
    let layout = imported.plan.layout();
    assert_eq!(imported.job.gpus, 1024);
    assert_eq!((layout.tensor_parallel, layout.pipeline_parallel, layout.virtual_stages), (8, 16, 6));
    assert_eq!((layout.data_parallel, layout.gradient_accumulation_steps), (8, 192));
    assert_eq!(layout.schedule, Schedule::Interleaved);
    assert_eq!(imported.job.precision, Precision::Bf16);
    assert_eq!(imported.plan.common_recompute(), "selective:core_attn".parse::<Recompute>().ok());
    assert_eq!(imported.unknown, [(11, "--my-own-flag 3".to_owned())]);
}

#[test]
fn broken_scripts_name_the_line() {
    let cut = |at: &str| SCRIPT[..SCRIPT.find(at).unwrap()].to_owned();
    for (text, line, part) in [
        (cut(" --rdzv-id gpt3)"), 6, "array"),
        (cut("--bf16"), 11, "neither --bf16 nor --fp16"),
        (SCRIPT.replace("--global-batch-size 1536", "--global-batch-size"), 12, "no value"),
        (SCRIPT.replace("--global-batch-size 1536", "--global-batch-size 1537"), 12, "no multiple"),
        (
            SCRIPT.replace("stage 1\"", "stage 1 --num-virtual-stages-per-pipeline-rank 6\""),
            10,
            "more than one way",
        ),
        (SCRIPT.replace("stage 1\"", "stage 4\""), 10, "do not divide"),
        (SCRIPT.replace("LAYERS=$((12 * 8))", ""), 7, "known only when the script runs"),
        (
            SCRIPT.replace("--recompute-granularity selective", "--recompute-granularity full"),
            12,
            "needs --recompute-method",
        ),
        (SCRIPT.replace("size 8 --seq", "size 7 --seq"), 9, "do not divide"),
        (SCRIPT.replace("--hidden-size 12288", ""), 11, "no --hidden-size"),
        (SCRIPT.replace("--hidden-size 12288", "--hidden-size wide"), 7, "whole number"),
    ] {
        let error = import(&text, "x", None).expect_err(part);
        assert!(error.message.contains(part) && error.line == line, "{part}: {error}");
    }
}

/// As for Python's argparse and int.
#[test]
fn the_last_of_two_values_counts_and_numbers_may_have_underscores() {
    let twice = SCRIPT.replace("--vocab-size 51200", "--vocab-size 51200 --num-layers 1_92");
    let imported = import(&twice, "x", None).unwrap();
    assert_eq!(imported.model.layer_count(), 192);
    let note = "--num-layers is given twice, as `96` in line 7 and as `1_92` in line 8: the last one counts";
    assert!(imported.assumed.contains(&note.to_owned()), "{:?}", imported.assumed);
    // Notes come with the error that they may explain.
    let error = import(&twice.replace("--hidden-size 12288", ""), "x", None).unwrap_err();
    assert!(error.notes.contains(&note.to_owned()), "{:?}", error.notes);
    for wrong in ["_96", "9__6", "96_", "9_x"] {
        let error =
            import(&SCRIPT.replace("--num-layers $LAYERS", &format!("--num-layers {wrong}")), "x", None);
        assert!(error.unwrap_err().message.contains("takes a whole number"), "{wrong}");
    }
}

/// Numbers that change no time, as Megatron-LM's flags say them.
#[test]
fn numbers_of_the_model_are_read() {
    let read = |flags: &str| {
        let text = SCRIPT.replace("--vocab-size 51200", &format!("--vocab-size 51200 {flags}"));
        import(&text, "x", None).unwrap_or_else(|error| panic!("{flags}: {error}"))
    };
    assert_eq!(read("").model.norm_epsilon, Some(1e-5));
    assert_eq!(read("--norm-epsilon 1e-6").model.norm_epsilon, Some(1e-6));
    assert_eq!(read("--layernorm-epsilon 1e-6").model.norm_epsilon, Some(1e-6));
    let scaled = |flags: &str| read(flags).model.position.scaling();
    let rope = "--position-embedding-type rope";
    assert_eq!(scaled(rope), PositionScaling::None);
    assert_eq!(
        scaled(&format!("{rope} --rotary-seq-len-interpolation-factor 4")),
        PositionScaling::Linear { factor: 4.0 }
    );
    let PositionScaling::Llama3 { factor, original_length, .. } =
        scaled(&format!("{rope} --use-rope-scaling"))
    else {
        panic!("not Llama 3's")
    };
    assert_eq!((factor, original_length), (8.0, 8192));
    let other = read(&format!("{rope} --use-rope-scaling --rope-scaling-factor 32"));
    let note = other.assumed.iter().find(|note| note.contains("--rope-scaling-factor 32"));
    assert!(note.is_some_and(|note| note.contains("by 8")), "{:?}", other.assumed);
    let yarn = "--position-embedding-type yarn --rotary-scaling-factor 32 --yarn-beta-fast 16";
    let PositionScaling::Yarn(yarn) = scaled(yarn) else { panic!("no YaRN") };
    assert_eq!((yarn.factor, yarn.beta_fast, yarn.beta_slow, yarn.truncate), (32.0, 16.0, 1.0, true));
    let latent = "--multi-latent-attention --position-embedding-type rope";
    assert_eq!(scaled(latent), PositionScaling::None);
    assert_eq!(
        scaled(&format!("{latent} --rotary-scaling-factor 40 --rope-type rope --no-rope-fusion")),
        PositionScaling::None
    );
    let PositionScaling::Yarn(yarn) =
        scaled(&format!("{latent} --rotary-scaling-factor 40 --mscale-all-dim 1"))
    else {
        panic!("no YaRN")
    };
    assert_eq!((yarn.factor, yarn.original_length, yarn.mscale_all_dim), (40.0, 4096, 1.0));
    let experts = read(
        "--num-experts 8 --disable-bias-linear --moe-router-score-function sigmoid --moe-router-topk-scaling-factor 2.5",
    );
    let router = experts.model.blocks.values().find_map(|block| match &block.feed_forward {
        FeedForward::Moe(moe) => Some(moe.router.clone()),
        _ => None,
    });
    let router = router.unwrap();
    assert_eq!((router.score, router.scaling_factor), (RouterScore::Sigmoid, 2.5));
}

/// A layout without what a DeepSpeed configuration does not show.
fn shown_by_deepspeed(layout: &Layout) -> Layout {
    let mut layout = *layout;
    layout.context_comm = ContextComm::AllToAll;
    if layout.zero_stage == 0 {
        layout.data_overlap = false;
    }
    if layout.expert_parallel == 1 && layout.dispatcher.is_some() {
        layout.dispatcher = Some(Dispatcher::AllToAll);
    }
    layout
}

#[test]
fn thousands_of_configurations_survive_export_and_import() {
    let models = models();
    let mut random = Random::new(17);
    let (mut done, mut tries) = (0, 0);
    while done < 2000 {
        tries += 1;
        assert!(tries < 400_000, "only {done} plans");
        let wild = Wild { degrees: 8, switches: 8 };
        let Some(question) = question(&mut random, Target::DeepSpeed, &models, wild) else { continue };
        if legal_plan(Target::DeepSpeed, &question.context(), &question.plan).is_err() {
            continue;
        }
        let to = Destination::Framework(Target::DeepSpeed);
        let Ok(files) = export(to, &question.request(Format::Script)) else { continue };
        let config = files.iter().find(|f| f.name == "ds_config.json").unwrap();
        let imported = deepspeed::import(&config.text, given_of(&question))
            .unwrap_or_else(|error| panic!("{}\n{}", error.render(false), config.text));
        assert_eq!(
            shown_by_deepspeed(question.plan.layout()),
            shown_by_deepspeed(imported.plan.layout()),
            "{}",
            config.text
        );
        assert_eq!(question.plan.chunks(), imported.plan.chunks());
        assert_eq!(question.job, imported.job);
        assert_eq!(imported.unknown, [], "{}", config.text);
        done += 1;
    }
}

#[test]
fn broken_configurations_name_the_place() {
    let models = models();
    let model = models.iter().find(|m| m.name == "Llama 3.1 8B").unwrap();
    let good = r#"{
  "train_batch_size": 64,
  "train_micro_batch_size_per_gpu": 2,
  "gradient_accumulation_steps": 4,
  "bf16": {"enabled": true},
  "zero_optimization": {"stage": 3, "overlap_comm": true}
}"#;
    let trainer = deepspeed::Trainer::default();
    let given = deepspeed::Given { model, gpus: 8, sequence_length: None, pipeline_parallel: 1, trainer };
    let imported = deepspeed::import(good, given).unwrap();
    let layout = imported.plan.layout();
    assert_eq!((layout.zero_stage, layout.shard_group, layout.micro_batch_size), (3, 8, 2));
    assert!(layout.data_overlap && imported.job.sequence_length == 4096);
    for (from, to, line, part) in [
        ("64", "65", 2, "65 is not micro-batch 2 x accumulation 4 x 8 ranks = 64"),
        ("\"stage\": 3", "\"stage\": 4", 6, "stages 0 to 3"),
        ("overlap_comm", "overlap_com", 6, "no `overlap_com`"),
        (
            "\"bf16\": {\"enabled\": true}",
            "\"bf16\": {\"enabled\": true}, \"fp16\": {\"enabled\": true}",
            5,
            "both enabled",
        ),
        ("64", "\"many\"", 2, "expected a whole number from 1"),
        ("\"stage\": 3", "\"stage\": 2, \"offload_param\": {\"device\": \"cpu\"}", 6, "need ZeRO stage 3"),
        ("\"stage\": 3", "\"stage\": 3, \"zero_hpz_partition_size\": 3", 6, "does not divide the 8 ranks"),
        ("\"bf16\": {\"enabled\": true}", "\"elasticity\": {}", 5, "no longer exists"),
        ("true}\n}", "true}", 6, "ends too early"),
        (
            "\"train_micro_batch_size_per_gpu\": 2,\n  \"gradient_accumulation_steps\": 4,",
            "\"tensor_parallel\": {\"autotp_sise\": 4},",
            3,
            "`tensor_parallel` has no `autotp_sise`",
        ),
        (
            "\"train_batch_size\": 64,\n  \"train_micro_batch_size_per_gpu\": 2,\n  \"gradient_accumulation_steps\": 4,",
            "\"train_batch_size\": 4,",
            2,
            "4 is less than micro-batch 1 x 8 ranks = 8",
        ),
        ("steps\": 4", "steps\": 40", 2, "64 is not micro-batch 2 x accumulation 40 x 8 ranks = 640"),
        (
            "\"bf16\": {\"enabled\": true}",
            "\"expert_parallel\": {\"enabled\": true,\n\"autoep_size\": 2}",
            6,
            "the model has no experts",
        ),
        ("\"bf16\"", "\"communication_data_type\": \"fp8\",\"bf16\"", 5, "expected fp16, bf16 or fp32"),
        ("steps\": 4", "steps\": 0", 4, "whole number from 1"),
    ] {
        let text = good.replacen(from, to, 1);
        let error = deepspeed::import(&text, given).expect_err(part);
        assert!(error.title().contains(part), "{part}: {}", error.render(false));
        assert_eq!(error.place().map(|p| p.0), Some(line), "{part}: {}", error.render(false));
    }
}

/// What a configuration says in vain, or of what is not predicted.
#[test]
fn what_a_configuration_says_in_vain_is_told() {
    let models = models();
    let read = |name: &str, text: &str, pipeline_parallel: u32| {
        let model = models.iter().find(|model| model.name == name).unwrap();
        let trainer = deepspeed::Trainer::default();
        let given =
            deepspeed::Given { model, gpus: 8, sequence_length: Some(4096), pipeline_parallel, trainer };
        let start = "{\"train_micro_batch_size_per_gpu\": 2,\n\"zero_optimization\": {\"stage\": 2},\n";
        deepspeed::import(&format!("{start}{text}}}"), given)
    };
    let (llama, qwen) = ("Llama 3.1 8B", "Qwen3 30B-A3B");
    for (name, text, listed) in [
        (
            qwen,
            r#""expert_parallel": {"enabled": true, "autoep_sise": 8}"#,
            "expert_parallel.autoep_sise (did you mean autoep_size?)",
        ),
        (llama, r#""activation_checkpointing": {"bogus": 1}"#, "activation_checkpointing.bogus"),
        (llama, r#""optimizer": {"typ": "AdamW", "params": {"lr": 1}}"#, "optimizer.typ"),
        (llama, r#""stepsper_print": 2"#, "stepsper_print (did you mean steps_per_print?)"),
    ] {
        let read = read(name, text, 1).unwrap_or_else(|error| panic!("{text}: {}", error.render(false)));
        assert_eq!(read.unknown, [(3, listed.to_owned())], "{text}");
    }
    for (text, part) in [
        (r#""data_types": {"grad_accum_dtype": "bf16"}"#, "gradients accumulated in 32 bits"),
        (r#""communication_data_type": "fp32""#, "gradients exchanged in the 16 bits of bf16"),
        (r#""activation_checkpointing": {"partition_activations": true}"#, "whole on every tensor"),
        (
            r#""train_batch_size": 64, "tensor_parallel": {"autotp_size": 2}"#,
            "a step trains 32 sequences: train_batch_size 64 counts all 8 ranks, of which 4 are replicas",
        ),
    ] {
        let read = read(llama, text, 1).unwrap_or_else(|error| panic!("{text}: {}", error.render(false)));
        assert!(read.assumed.iter().any(|note| note.contains(part)), "{text}: {:?}", read.assumed);
    }
    for (text, part) in [
        (r#""expert_parallel": {"enabled": true, "autoep_size": 5}"#, "expert-parallel 5"),
        (
            r#""tensor_parallel": {"autotp_size": 2}, "expert_parallel": {"enabled": true, "autoep_size": 4}"#,
            "AutoTP refuses Transformers' plan",
        ),
        (
            r#""expert_parallel": {"enabled": true, "autoep_size": 8, "preset_model": "mixtral"}"#,
            "`mixtral` is not that of Qwen3 30B-A3B: `qwen3_moe`",
        ),
        (
            r#""expert_parallel": {"enabled": true, "autoep_size": 8, "preset_model": "qwen"}"#,
            "AutoEP has no preset `qwen`; it has deepseek_v2",
        ),
    ] {
        let error = read(qwen, text, 1).expect_err(part);
        assert!(error.title().contains(part), "{text}: {}", error.title());
        assert_eq!(error.place().map(|(line, _)| line), Some(3), "{text}");
    }
    // How gradients of experts are reduced.
    let reduced = |stage: u32, key: &str| {
        let model = models.iter().find(|model| model.name == qwen).unwrap();
        let trainer = deepspeed::Trainer::default();
        let given = deepspeed::Given { model, gpus: 8, sequence_length: None, pipeline_parallel: 1, trainer };
        let text = format!(
            r#"{{"train_micro_batch_size_per_gpu": 1, "zero_optimization": {{"stage": {stage}, "{key}": false}},
            "expert_parallel": {{"enabled": true, "autoep_size": 4}}}}"#
        );
        deepspeed::import(&text, given).map(drop).map_err(|error| error.title().to_owned())
    };
    for (stage, key) in [(1, "reduce_scatter"), (2, "reduce_scatter"), (2, "contiguous_gradients")] {
        assert_eq!(reduced(stage, key), Err(format!("AutoEP needs {key} at ZeRO stage {stage}")));
    }
    assert_eq!(reduced(3, "reduce_scatter").and(reduced(1, "contiguous_gradients")), Ok(()));
    // Tensor-parallel ranks of a pipeline stand elsewhere.
    let batch = read(llama, "\"train_batch_size\": 4, \"gradient_accumulation_steps\": 1", 2).unwrap_err();
    assert!(batch.render(false).contains("give the launch script"), "{}", batch.render(false));
    // States of 16 bits are AdamW's, and those of a section that is on.
    let states = |enabled: &str, optimizer: &str| {
        let text = format!(
            r#""bf16": {{"enabled": {enabled}, "bf16_master_weights_and_grads": true, "bf16_optimizer_states": true}},
            "zero_allow_untested_optimizer": true, "optimizer": {{"type": "{optimizer}"}}"#
        );
        read(llama, &text, 1).unwrap_or_else(|error| panic!("{text}: {}", error.render(false)))
    };
    assert_eq!(states("true", "AdamW").job.optimizer, Optimizer::AdamwBf16);
    assert_eq!(states("\"auto\"", "AdamW").job.optimizer, Optimizer::AdamwBf16);
    assert_eq!(states("false", "AdamW").job.optimizer, Optimizer::Adamw);
    let muon = states("true", "Muon");
    assert_eq!(muon.job.optimizer, Optimizer::Muon);
    let note = "bf16_optimizer_states beside muon: predicted with states of 32 bits";
    assert!(muon.assumed.contains(&note.to_owned()), "{:?}", muon.assumed);
}

#[test]
fn what_a_configuration_leaves_to_the_trainer_comes_from_its_flags() {
    let auto = r#"{
  "train_batch_size": "auto",
  "train_micro_batch_size_per_gpu": "auto",
  "gradient_accumulation_steps": "auto",
  "bf16": {"enabled": "auto"},
  "fp16": {"enabled": "auto"},
  "zero_optimization": {"stage": 3, "overlap_comm": true, "reduce_bucket_size": "auto"}
}"#;
    let script = "torchrun --nproc_per_node 8 train.py --model_name_or_path x --fp16 True --bf16 False \
--per_device_train_batch_size 2 --gradient-accumulation-steps=16 --model_max_length 2048 \
--gradient_checkpointing True --deepspeed ds.json --learning_rate 1e-5 --lr 1e-5";
    let launch = read_launch(script, &no_files).unwrap();
    assert_eq!(launch.deepspeed_config(), Ok(Some(Handed::File("ds.json".to_owned()))));
    let (trainer, others) = deepspeed::Trainer::read(&launch, script).unwrap();
    // What changes no step, such as the learning rate under its own name, is understood.
    assert_eq!(others, [(1, "--lr 1e-5".to_owned())]);
    let models = models();
    let model = models.iter().find(|m| m.name == "Llama 3.1 8B").unwrap();
    let mut given = deepspeed::Given { model, gpus: 8, sequence_length: None, pipeline_parallel: 1, trainer };
    let imported = deepspeed::import(auto, given).unwrap();
    assert_eq!((imported.job.global_batch_size, imported.job.sequence_length), (256, 2048));
    assert_eq!(imported.job.precision, Precision::Fp16);
    assert_eq!(imported.plan.to_string(), "tp1 pp1 vp1 cp1 ep1 dp8 mb2 ga16 zero3 rc-full:uniform:1");
    // The trainer does not ask DeepSpeed to recompute.
    let asks = auto.replacen('{', "{\"activation_checkpointing\": {\"cpu_checkpointing\": true},", 1);
    let recompute = |recompute| {
        let trainer = deepspeed::Trainer { recompute, ..trainer };
        deepspeed::import(&asks, deepspeed::Given { trainer, ..given }).unwrap().plan.to_string()
    };
    assert!(recompute(None).ends_with("off-act rc-full:uniform:1"), "{}", recompute(None));
    assert!(recompute(Some(false)).ends_with("zero3 rc-none"), "{}", recompute(Some(false)));
    // A number that the configuration does say must be the trainer's.
    let other = auto.replacen(
        "\"train_micro_batch_size_per_gpu\": \"auto\"",
        "\"train_micro_batch_size_per_gpu\": 4",
        1,
    );
    let error = deepspeed::import(&other, given).unwrap_err();
    assert!(error.title().contains("is 4, and the trainer is told 2"), "{}", error.title());
    // Nobody says: the trainer's own defaults, and each is listed.
    given.trainer = deepspeed::Trainer::default();
    let imported = deepspeed::import(auto, given).unwrap();
    assert_eq!(imported.plan.to_string(), "tp1 pp1 vp1 cp1 ep1 dp8 mb8 ga1 zero3 rc-none");
    for part in ["micro-batches of 8", "no accumulation", "bf16: \"auto\" leaves"] {
        assert!(imported.assumed.iter().any(|note| note.contains(part)), "{part}: {:?}", imported.assumed);
    }
    for value in ["x", "$1"] {
        let text = format!("python train.py --per_device_train_batch_size {value} --deepspeed ds.json");
        let launch = read_launch(&text, &no_files).unwrap();
        assert!(deepspeed::Trainer::read(&launch, &text).is_err(), "{text}");
    }
    // Of anything else nobody fills an "auto" in.
    for (from, to) in
        [("\"stage\": 3", "\"stage\": \"auto\""), ("\"overlap_comm\": true", "\"overlap_comm\": \"auto\"")]
    {
        let error = deepspeed::import(&auto.replacen(from, to, 1), given).unwrap_err();
        assert!(error.title().contains("expected"), "{}", error.title());
    }
    given.trainer.precision = Some(Precision::Bf16);
    let fp16 = auto.replacen("\"fp16\": {\"enabled\": \"auto\"}", "\"fp16\": {\"enabled\": true}", 1);
    assert!(deepspeed::import(&fp16, given).unwrap_err().title().contains("the trainer is told"));
}

#[test]
fn a_configuration_that_the_script_writes_is_read() {
    let flags = format!("{COMMAND} --deepspeed --zero-stage 1 --deepspeed_config $CONFIG")
        .replace(" --sequence-parallel --pipeline-model-parallel-size 2 --use-distributed-optimizer", "");
    let body = "{\n\"train_batch_size\": $BATCH,\n\"bf16\": {\"enabled\": true},\n\"zero_optimization\": {\"stage\": $ZERO, \"overlap_comm\": true}\n}";
    let launch = format!("deepspeed --num_nodes 8 --num_gpus 8 pretrain_gpt.py {flags}\n");
    let template = body.replace("$BATCH", "A_BATCH").replace("$ZERO", "A_STAGE");
    let ways = [
        format!("CONFIG=ds.json\ncat <<EOT > $CONFIG\n{body}\nEOT\n{launch}"),
        format!("CONFIG=/tmp/x/$NAME.json\ncat > \"$CONFIG\" << EOT\n{body}\nEOT\n{launch}"),
        format!(
            "CONFIG=`pwd`/ds.json\ncat template.json | sed \"s/A_BATCH/${{BATCH}}/\" | sed -e \"s|A_STAGE|$ZERO|g\" > ${{CONFIG}}\n{launch}"
        ),
        format!(
            "CONFIG=ds.json\nT=$(cat template.json)\nT=${{T/A_BATCH/$BATCH}}\necho \"${{T/A_STAGE/$ZERO}}\" > $CONFIG\n{launch}"
        ),
        format!(
            "CONFIG=ds.json\nread -r -d '' FLAGS <<EOF\n{flags}\nEOF\ncat <<EOT > $CONFIG\n{body}\nEOT\ndeepspeed --num_nodes 8 --num_gpus 8 pretrain_gpt.py $FLAGS\n"
        ),
        format!(
            "CONFIG=ds.json\nread -r -d '' X <<EOC || true\nx\nEOC\ncp template.json $CONFIG\nsed -i -e \"s/A_BATCH/$BATCH/\" -e \"s/A_STAGE/$ZERO/\" $CONFIG\n{launch}"
        ),
        format!("CONFIG=ds.json\ncat <<EOT | tee $CONFIG\n{body}\nEOT\n{launch}"),
    ];
    let files = |path: &str| match path {
        "template.json" => Ok(template.clone()),
        other => Err(format!("{other}: no such file")),
    };
    for way in &ways {
        let text = format!("BATCH=256; ZERO=2\n{way}");
        let given = Given { name: "x", gpus: None, ..Given::default() };
        let imported = import_with(&text, given, &files).unwrap_or_else(|error| panic!("{error}\n{text}"));
        let layout = imported.plan.layout();
        assert_eq!((layout.zero_stage, layout.data_overlap), (2, true), "{:?}\n{text}", imported.assumed);
        let note = "the DeepSpeed configuration is what line";
        assert!(imported.assumed.iter().any(|n| n.contains(note)), "{:?}\n{text}", imported.assumed);
        // What it says must agree with the flags, and what is not known is no number.
        for (batch, part) in [
            ("64", "train_batch_size of the DeepSpeed configuration 64"),
            ("$1", "only when the script runs"),
        ] {
            let text = text.replacen("BATCH=256", &format!("BATCH={batch}"), 1);
            let error = import_with(&text, given, &files).unwrap_err();
            assert!(error.message.contains(part), "{error}\n{text}");
        }
    }
}

/// What the script holds only in part is not taken for the whole, and never for an older file of that name.
#[test]
fn what_is_written_by_what_is_not_followed_is_unknown() {
    let launch = format!("deepspeed --num_nodes 8 --num_gpus 8 pretrain_gpt.py {COMMAND} --deepspeed")
        .replace(" --sequence-parallel --pipeline-model-parallel-size 2 --use-distributed-optimizer", "");
    let files = |_: &str| Ok("{\"zero_optimization\": {\"stage\": 3}}".to_owned());
    let stage = "{\"zero_optimization\": {\"stage\": 2}}";
    for (writer, known) in [
        (format!("echo '{stage}' > ds.json"), true),
        (format!("printf '%s\\n' '{stage}' > ds.json"), true),
        (format!("echo -e '{stage}\\n' > ds.json"), false),
        (format!("{{ echo '{stage}'; }} > ds.json"), true),
        (format!("for x in 1; do echo '{stage}'; done > ds.json"), true),
        (format!("for x in $LIST; do echo '{stage}'; done > ds.json"), false),
        (format!("w() {{ echo '{stage}'; }}; w > ds.json"), true),
        (format!("echo '{stage}' > ./a/..//ds.json"), true),
        (format!("cd out; echo '{{}}' > ds.json; cd ..; echo '{stage}' > ds.json"), true),
        (format!("rm -f ds.json; echo '{stage}' >> ds.json"), true),
        (format!("> ds.json; echo '{stage}' >> ds.json"), true),
        (format!("echo '{stage}' | sudo tee ds.json"), true),
        (format!("echo '{stage}' > c/ds.json; cp -f c/ds.json ."), true),
        (format!("echo '{stage}' > c.json; mv c.json ds.json"), true),
        (format!("echo '{stage}' > ds.json 2> log"), true),
        (format!("cd out; cd -; echo '{stage}' > $PWD/ds.json"), true),
        (format!("echo '{stage}' > ds.json; cd out; echo '{{}}' > $PWD/ds.json; cd .."), true),
        (format!("cat <<A > ds.json <<B\n{{}}\nA\n{stage}\nB"), true),
        (format!("echo '{}' > ds.json; sed -Ei s/7/2/ ds.json other.json", stage.replace('2', "7")), true),
        (format!("echo '{}' > ds.json; sed --in-place=.bak s/7/2/ ds.json", stage.replace('2', "7")), true),
        (format!("echo '{stage}' > ds.json; sed -ri 's/\\<2\\>/3/' ds.json"), false),
        (format!("echo '{stage}' > ds.json; perl -pi -e s/2/3/ ds.json"), false),
        (format!("echo '{stage}' > ds.json; [ -d /x ] && echo x > ds.json"), false),
        (format!("if [ -d /x ]; then cp a.json ds.json; else echo '{stage}' > ds.json; fi"), false),
        (format!("python make.py > ds.json\necho '{stage}' >> ds.json"), false),
        (format!("echo '{stage}' | jq . > ds.json"), false),
        (format!("echo '{stage}' | sed -E 's/2+/2/' > ds.json"), false),
        (format!("echo '{stage}' | sed 's/2/2/2' > ds.json"), false),
        (format!("echo '{stage}' > ds.json\nsed -i '/x/d' ds.json"), false),
    ] {
        let text = format!("{writer}\n{launch} --zero-stage 1 --deepspeed_config ds.json\n");
        let given = Given { name: "x", gpus: None, ..Given::default() };
        let imported = import_with(&text, given, &files).unwrap_or_else(|error| panic!("{error}\n{text}"));
        assert_eq!(imported.plan.layout().zero_stage, if known { 2 } else { 1 }, "{text}");
        let told = imported.assumed.iter().any(|note| note.contains("only when the script runs"));
        assert_eq!(told, !known, "{:?}\n{text}", imported.assumed);
    }
}

#[test]
fn texts_that_grow_without_end_are_unknown() {
    let double = "for i in 1 2 3 4 5 6 7 8; do for j in 1 2 3 4 5 6 7 8; do cat f f > f; done; done\n";
    let sed = "| sed s/a/aaaaaaaaaaaaaaaaaaaa/g ".repeat(12);
    let deep = format!("{}x{}", "$(echo ".repeat(20_000), ")".repeat(20_000));
    for start in [format!("echo aaaaaaaaaa > f\n{double}"), format!("echo aaaaaaaaaa {sed}> f\n")] {
        let launch = read_launch(&format!("{start}X=$(cat f)\npython x.py --n $X\n"), &no_files).unwrap();
        assert_eq!(launch.arguments[1].text, "\u{fffc}");
    }
    let launch = read_launch(&format!("python x.py --n \"{deep}\"\n"), &no_files).unwrap();
    assert_eq!(launch.arguments[1].text, "\u{fffc}");
}

/// Scripts before `--n $N`, and the value that bash gives it; `?` where only a running shell knows it.
const VALUES: &[(&str, &str)] = &[
    // Members, and what a pattern would take out of what is not known.
    ("declare -A k=([tp]=4); N=1; [[ -v k[tp] ]] && N=${k[tp]}", "4"),
    ("declare -A k=([tp]=4); N=1; [[ -v k[pp] ]] && N=2", "1"),
    ("a=(1 2 3); N=1; [[ -v a[7] ]] || N=2", "2"),
    ("a=(1 2 3); N=1; [[ -v a[2] ]] && N=2", "2"),
    ("a=(1 2 3); N=1; [[ -v a ]] && N=2", "2"),
    ("a=(); N=1; [[ -v a[@] ]] || N=2", "2"),
    ("G=$(lspci); N=${G//[^,]/}", "?"),
    ("G=$(lspci); N=${G//?/x}", "?"),
    ("G=$(lspci); N=${G##?}", "?"),
    ("G=$(lspci); N=${G%%[!,]*}", "?"),
    ("G=$(lspci)/x7; N=${G##*/x}", "7"),
    ("G=0,1,2,3; G=${G//[^,]/}; N=${#G}", "3"),
    // Arithmetic.
    ("M=4; if (( M > 8 )); then N=8; else N=2; fi", "2"),
    ("N=4; (( N = 8 ))", "8"),
    ("N=7; (( N++ ))", "8"),
    ("let N=8", "8"),
    ("M=4; N=2; (( M > 8 )) && N=8", "2"),
    ("N=1; (( $(nproc) > 8 )) && N=8", "?"),
    ("N=$((010))", "8"),
    ("N=$((2**3**1))", "8"),
    ("M=8; N=$(( M == 8 ? 4 : 2 ))", "4"),
    ("N=$(( 1 + (1 == 2 < 3) ))", "2"),
    ("N=16; while [[ $((N -= 3)) -gt 8 ]]; do :; done", "7"),
    ("N=2; [[ $((N *= 2)) == 4 ]] && N=$((N + 4))", "8"),
    ("N=3; (( N += (N *= 3) ))", "12"),
    ("N=$[ 4 * 2 ]", "8"),
    ("declare -i N=4*2", "8"),
    ("A=1; B=A; N=${!B}", "1"),
    // Lengths and parts of what is not known.
    ("H=($(scontrol show hostnames)); N=${#H[@]}", "?"),
    ("H=$(hostname); N=${#H}", "?"),
    ("H=$(hostname); N=${H:3:1}", "?"),
    // Ways out.
    ("for i in 2 4 8; do N=$i; if [ $i -eq 4 ]; then break; fi; done", "4"),
    ("N=1; for i in 2 4 8; do if [ $i -gt 4 ]; then continue; fi; N=$i; done", "4"),
    ("N=4; f() { N=2; return; N=8; }; f", "2"),
    ("f() { return 1; }; N=2; if f; then N=8; fi", "2"),
    ("N=4; for i in 1 2; do N=$i; [ -d /nowhere/$X ] && break; done", "?"),
    // Loops.
    ("N=1; for i in {1..3}; do N=$((N*2)); done", "8"),
    ("N=1; for ((i=0;i<3;i++)); do N=$((N*2)); done", "8"),
    ("N=1; for i in $(seq 1 3); do N=$((N*2)); done", "8"),
    ("N=1; while true; do N=$((N*2)); if [ $N -ge 8 ]; then break; fi; done", "8"),
    ("N=0; while [ $N -lt 100 ]; do N=$((N+1)); done", "100"),
    ("N=2; while [ -e /tmp/$X ]; do N=8; done", "?"),
    ("N=2; for i in $(ls); do N=8; done", "?"),
    ("N=2; for i in *; do N=8; done", "?"),
    ("N=2; while true; do N=$((N+0)); done", "?"),
    ("while read -r N; do M=$N; done <<< 8; N=$M", "8"),
    // Scopes.
    ("N=4; f() { local N=8; }; f", "4"),
    ("N=4; ( N=8 )", "4"),
    ("N=4; echo x | N=8", "4"),
    ("N=4; N=8 & wait", "4"),
    ("N=2; f() { M=$N; }; N=8 f; N=$M", "8"),
    ("N=2; M=3; f() { M=$N; }; N=8 f", "2"),
    // Order.
    ("TP=8; TP=2 N=$TP", "2"),
    // Programs that are not known.
    ("N=2; if python3 -c x; then N=8; fi", "?"),
    ("N=2; if which x >/dev/null; then N=8; fi", "?"),
    ("N=2; if ! grep -q x /etc/x; then N=8; fi", "?"),
    ("N=2; if ! true | false; then N=8; fi", "8"),
    ("false; N=$(( $? + 1 ))", "2"),
    ("python3 prepare; N=8", "8"),
    ("cd x || exit 1; N=8", "8"),
    ("mkdir -p /nowhere/x && N=8", "8"),
    ("N=2; [ -d /usr ] && N=8 || N=4", "?"),
    ("N=2; if [ -d /usr ]; then if true; then N=8; fi; fi", "?"),
    ("M=a; if [ -d /usr ]; then M=b; fi; N=$M", "?"),
    ("python3 prepare || exit 1; N=8", "8"),
    ("if [ -d /usr ]; then exit 1; fi; N=8", "8"),
    ("if [ -z \"$1\" ]; then echo usage; exit 1; fi; N=8", "8"),
    // Patterns.
    ("M=7b; case $M in [0-9]*) N=8;; *) N=2;; esac", "8"),
    ("M='x*'; case xyz in \"$M\") N=8;; *) N=2;; esac", "2"),
    ("case a in a) N=8;& b) N=4;; esac", "4"),
    ("case ab in a*) N=8;;& *b) M=1;; esac; N=$N$M", "81"),
    ("N=2; case $(hostname) in a) N=8;; esac", "?"),
    ("N=2; case $(hostname) in *) N=8;; esac", "8"),
    ("A=1; B=0; C=0; N=2; if [[ ( $A == 1 || $B == 1 ) && $C == 1 ]]; then N=8; fi", "2"),
    ("A=1; B=0; N=2; if [[ ! ( $A == 1 && $B == 1 ) ]]; then N=8; fi", "8"),
    ("N=4; if [[ 7b =~ ^(7|8)b$ ]]; then N=8; fi", "8"),
    // Regular expressions and what they find.
    ("M=llama-8b-tp4; N=2; if [[ $M =~ tp([0-9]+)$ ]]; then N=${BASH_REMATCH[1]}; fi", "4"),
    ("M=llama; N=2; [[ $M =~ tp([0-9]+)$ ]] && N=${BASH_REMATCH[1]}", "2"),
    ("R='^(-?)([0-9]+)b'; N=2; [[ 70b =~ $R ]] && N=\"${BASH_REMATCH[1]}|${BASH_REMATCH[2]}\"", "|70"),
    ("N=2; [[ 7.5b =~ ^7\\.5 ]] && N=4; [[ 7x5b =~ ^7\\.5 ]] && N=8", "4"),
    ("N=2; R=.; [[ 7x5b =~ 7\"$R\"5 ]] && N=8", "2"),
    ("N=2; [[ 'a b' =~ ^(a b)$ ]] && N=${#BASH_REMATCH[@]}", "2"),
    ("N=2; [[ aab =~ a*(ab)? ]] && N=${BASH_REMATCH[0]}", "aab"),
    ("N=2; [[ 0x1F =~ ^0[xX][[:xdigit:]]{1,4}$ ]] && N=8", "8"),
    ("N=2; [[ x =~ y ]]; N=${#BASH_REMATCH[@]}", "0"),
    ("N=2; [[ ab =~ ^(a|ab)+$ ]] && N=${BASH_REMATCH[1]}", "?"),
    ("N=2; [[ a7 =~ \\w[0-9] ]] && N=8", "?"),
    ("N=2; [[ $(date) =~ ^2 ]] && N=8", "?"),
    // Names for other names.
    ("declare -n R=N; N=1; R=4", "4"),
    ("f() { local -n R=$1; R=4; }; N=1; f N", "4"),
    ("f() { local -n out=$1; shift; out+=(\"$@\"); }; A=(2); f A 4 8; N=\"${A[*]}\"", "2 4 8"),
    ("f() { local -n R=$1; N=${R[1]}; }; A=(2 4); f A", "4"),
    ("f() { local -n R=$1; N=${!R}; }; f ABC", "ABC"),
    ("f() { local -n R=$1; R[b]=4; }; declare -A A=([a]=2); f A; N=${A[b]}", "4"),
    ("f() { local -n R=N; unset R; }; N=8; f; N=${N-unset}", "unset"),
    ("declare -n R=N; N=8; unset -n R; R=4", "8"),
    ("A=1; B=2; declare -n R=A; for R in A B; do R=7; done; N=$A$B", "77"),
    ("R=5; f() { local -n R=N; R=4; }; f; N=$N$R", "45"),
    ("declare -n R=N S=R; S=8", "8"),
    ("N=8; declare -n R=$(hostname); R=4", "?"),
    ("N=1; declare -n R=N; declare +n R; R=5; N=$N$R", "15"),
    ("N=1; declare -n R=N; declare +n R; N=$R", "N"),
    ("f() { local -n R=$1; R=4; }; R=1; f R; N=$R", "?"),
    ("add() { local -n args=$1; args+=(8); }; args=(4); add args; N=\"${args[*]}\"", "?"),
    ("f() { local -n R=N; local R; R=5; }; N=1; f", "?"),
    ("N=8; for i in $(seq $(nproc)); do declare -n R=N; R=4; done", "?"),
    // Keys in the order of bash 5.
    (
        "declare -A A=([tp]=4 [pp]=2 [cp]=1 [ep]=8); for k in \"${!A[@]}\"; do N+=\"$k=${A[$k]} \"; done; N=${N% }",
        "pp=2 cp=1 tp=4 ep=8",
    ),
    ("declare -A A=([--bf16]= [--lr]=1e-4 [--seed]=1); N=\"${A[*]} ${!A[@]}\"", "1e-4  1 --lr --bf16 --seed"),
    ("declare -A A=([$(date)]=4); N=${!A[@]}", "?"),
    ("A=(4 8); N=2; if [[ \" ${A[*]} \" =~ \" 8 \" ]]; then N=8; fi", "8"),
    ("M=\"\"; if [[ -z \"$M\" ]]; then echo needed; exit 1; fi; N=8", "8"),
    ("P=a/b; N=${P//\\//_}", "a_b"),
    ("M=28; N=${M/#2/}", "8"),
    ("M=82; N=${M/%2/}", "8"),
    ("M=4x12; N=${M%x[0-9]*}", "4"),
    // Groups of patterns, which `[[` always has, and all else with `extglob`.
    ("M=16; N=2; [[ $M == +([0-9]) ]] && N=8", "8"),
    ("M=f16; N=2; [[ $M == f+([0-9]) ]] && N=8", "8"),
    ("M=f16a; N=2; [[ $M == f+([0-9]) ]] && N=8", "2"),
    ("M=; N=2; [[ $M == *(a) && $M == ?(a) && $M != +(a) ]] && N=8", "8"),
    ("M=c; N=2; [[ $M != @(a|b) && $M == !(a|b) ]] && N=8", "8"),
    ("M=ab; N=2; [[ $M == a!(b)b ]] && N=8", "8"),
    ("M=foobar; N=2; [[ $M == !(foo) && foo != !(foo) ]] && N=8", "8"),
    ("M=8x7b; N=2; [[ $M == +([0-9])x+([0-9])@([bB]) ]] && N=8", "8"),
    ("P='+([0-9])'; M=12; N=2; [[ $M == $P && $M != \"$P\" ]] && N=8", "8"),
    ("A=foo; M=foo; N=2; [[ $M == @($A|bar) ]] && N=8", "8"),
    ("M='a|b'; N=2; [[ $M == @(\"a|b\"|c) && a != @(\"a|b\") ]] && N=8", "8"),
    ("M='a b'; N=2; [[ $M == @(a b|c) ]] && N=8", "8"),
    ("M=405B; N=2; shopt -s nocasematch; [[ $M == +([0-9])b ]] && N=8", "8"),
    ("M='+(a)'; N=2; [ $M == '+(a)' ] && N=8", "8"),
    ("M=tp12; N=${M##+([a-z])}", "tp12"),
    ("M='a+(b)'; N=${M%+(b)}", "a"),
    ("shopt -s extglob\nM=tp12; N=${M##+([a-z])}", "12"),
    ("shopt -s extglob\nM=tp12; N=${M#+([a-z])}", "p12"),
    ("shopt -s extglob\nM=1,2,,3; N=${M//+(,)/;}", "1;2;3"),
    ("shopt -s extglob\nM=aXb; N=${M//?(a)/y}", "?"),
    ("shopt -s extglob\nG=$(hostname); N=${G//+([0-9])/}", "?"),
    ("shopt -s extglob\nG=$(hostname); N=${G%%+([0-9])}", "?"),
    ("shopt -s extglob\ncase tp4 in @(tp|pp)[0-9]) N=8;; *) N=2;; esac", "8"),
    // Numbers in a row.
    ("N=$(seq -s , 0 7)", "0,1,2,3,4,5,6,7"),
    ("N=$(seq -s, 1 2 7)", "1,3,5,7"),
    ("N=$(seq --separator=: 3)", "1:2:3"),
    ("N=$(seq --separator : 3)", "1:2:3"),
    ("N=$(seq -s '' 3)", "123"),
    ("N=$(seq -ws: 8 10)", "08:09:10"),
    ("N=$(seq --equal-width -s: 008 9)", "008:009"),
    ("N=$(seq -s: -- -1 1)", "-1:0:1"),
    ("N=$(seq -s: 3 -1 1)", "3:2:1"),
    ("N=x$(seq 3 1)", "x"),
    ("N=$(seq -s $(hostname) 3)", "?"),
    ("N=$(seq -f n%g 3)", "?"),
    ("N=$(seq -w -1 1)", "?"),
    ("N=$(seq -w 0000000000000000000001 1)", "?"),
    ("CUDA=$(seq -s , 0 3); IFS=, read -ra G <<< \"$CUDA\"; N=${#G[@]}", "4"),
    ("N=$(echo 'scale=0; 17 * 8 % 5' | bc)", "1"),
    // Arrays and names.
    ("A=(1 2 4); A[1]=8; N=${A[1]}", "8"),
    ("N=4; N=(8)", "8"),
    ("mapfile -t A < <(echo 8); N=${A[0]}", "8"),
    ("printf -v N '%d' 8", "8"),
    ("N=$(echo 4,8 | tr , ' ')", "4 8"),
    ("N=$(printf '4\\n8\\n' | tr '\\n' ' ')", "4 8 "),
    ("N=$(echo abcd | tr abc xy)", "xyyd"),
    ("N=$(echo a-b | tr -d ab)", "-"),
    ("N=$(echo Qwen-70B | tr -dc '0-9')", "70"),
    ("N=$(echo Qwen-70B | tr '[:upper:]' '[:lower:]')", "qwen-70b"),
    ("N=$(echo '[Ab]' | tr '[a-z]' '[A-Z]')", "[AB]"),
    ("N=$(echo a-b | tr - _)", "a_b"),
    ("N=$(echo 'a*b' | tr '[=a=]' x)", "?"),
    // Parts of lines.
    ("N=$(echo llama_70b_tp4 | cut -d_ -f2)", "70b"),
    ("N=$(echo a-b-c-d | cut -d '-' -f 1,3-)", "a-c-d"),
    ("N=$(echo a-b-c | cut -f2 -d -)", "b"),
    ("N=$(echo abc | cut -d- -f2)", "abc"),
    ("N=$(echo abc | cut -c1-2)", "?"),
    ("N=$(echo ' a  b c' | awk '{print $2}')", "b"),
    ("N=$(echo a:b:c | awk -F: '{ print $NF }')", "c"),
    ("N=$(echo a_b | awk -F _ '{print $1;}')", "a"),
    ("N=x$(echo a_b | awk -F_ '{print $3}')", "x"),
    ("N=$(echo 7 | awk '{print $1*2}')", "?"),
    ("N=$(hostname | cut -d. -f1)", "?"),
    ("N=$(printf '4\\n8\\n2\\n' | head -n 1)", "4"),
    ("N=$(printf '4\\n8\\n2\\n' | head -2 | tail -n1)", "8"),
    ("N=$(printf '4\\n8\\n' | tail -n +2)", "?"),
    ("N=$(printf '4\\n8\\n' | tail -n+2)", "?"),
    ("N=2; if (( BASH_VERSINFO[0] < 4 )); then N=8; fi", "?"),
    ("N=$(echo '(2 + 7 * 2) / 2' | bc)", "8"),
    ("N=$(echo '17 / 2' | bc)", "8"),
    ("N=$(echo '(9 - 1) % 16 / 1' | bc)", "8"),
    ("A=(4 8); R='A[@]'; B=(\"${!R}\"); N=\"${B[1]}\"", "8"),
    ("A=(4 8); R='A[1]'; N=${!R}", "8"),
    ("read -r -a A <<< '4 8'; N=${A[1]}", "8"),
    ("A=(4 8); unset 'A[0]'; N=\"${A[*]}\"", "8"),
    ("declare -A A=([7]=4 [13]=8); N=${A[13]}", "8"),
    ("declare -A A; A[a]=4; A[b]=8; K=b; N=${A[$K]}", "8"),
    ("A=(2 4 8); B=(\"${A[@]:2}\"); N=${B[0]}", "8"),
    ("read -r N M <<< \"8 4\"", "8"),
    ("IFS=, read -r A N <<< '8,4'", "4"),
    ("read -r N", "?"),
    ("set -- 4 8; shift; N=$1", "8"),
    ("f() { shift; N=$1; }; f \"$(hostname)\" 8", "8"),
    ("f() { shift; N=$1; }; f $(hostname) 8", "?"),
    ("M=; N=${M+8}", "8"),
    ("N=; : ${N:=8}", "8"),
    ("M=$(echo 8 >&2); N=${M:-2}", "2"),
    ("N=$'8'", "8"),
    ("f() { echo $1; }; N=$(f 8)", "8"),
    ("N=2; if [ -z \"$HOME\" ]; then N=8; fi", "?"),
    ("N=2; if [ -z \"$SIZE_THAT_NOBODY_SETS\" ]; then N=8; fi", "8"),
    // What stands inside substitutions.
    ("X=$(cat <<EOF\nit's 8 (\nEOF\n); N=8", "8"),
    ("N=$( # don't\necho 8)", "8"),
    ("N=$(case x in x) echo 8;; esac)", "8"),
    ("N=8; Z=${M:-'}'}", "8"),
    // All words of a command are expanded before any is assigned.
    ("A=0; export A=8 N=$((A*2))", "0"),
    ("A=1; export A=8 N=$A", "1"),
    ("f() { local a=$1 b=$((a*2)); N=$b; }; a=3; f 8", "6"),
    ("declare -i A=2 N=A+1", "3"),
    ("readonly A=4; export N=\"x y\" M=$A", "x y"),
    ("((xé=1)); N=8", "8"),
    // In which order words are expanded and assigned.
    ("f() { N=$1; }; X=8; X=2 f $X", "8"),
    // Tests by their number of words.
    ("X='a b'; N=2; [ -n $X ] && N=8", "2"),
    ("X='a b'; N=2; [ $X = 'a b' ] || N=8", "8"),
    ("[ \"\" -lt 5 ]; N=$?", "2"),
    ("[ ! 1 -eq x ]; N=$?", "2"),
    ("N=2; [[ \"\" -lt 5 ]] && N=8", "8"),
    ("N=2; [ -n $NAME_THAT_NOBODY_SETS ] && N=8", "8"),
    ("[ = ] && [ ! \"\" ] && [ -z ] && N=8", "8"),
    ("N=2; [ 1 = 1 -a ! 2 = 3 ] && N=8", "8"),
    // Arguments, separators, braces.
    ("set -- 4 8; N=\"${@: -1}\"", "8"),
    ("set -- 4 8; N=\"${*:2}\"", "8"),
    ("A=(4 8); IFS=,; N=\"${A[*]}\"", "4,8"),
    ("A=(4 8); IFS=; N=\"${A[*]}\"", "48"),
    ("N=$(echo {08..10} {c..a})", "08 09 10 c b a"),
    // What may have set anything.
    ("N=2; eval \"$(hostname)\"", "?"),
    ("N=2; export $(hostname)", "?"),
    ("eval \"$(hostname)\"; N=${M:-2}", "?"),
    ("eval \"$(hostname)\"; N=8", "8"),
    ("N=8; eval \"$(/opt/conda/bin/conda shell.bash hook 2>/dev/null)\"", "8"),
    ("N=8; eval $(ssh-agent -s)", "8"),
    ("N=8; __conda_setup=\"$(hostname)\"; if [ $? -eq 0 ]; then eval \"$__conda_setup\"; fi", "8"),
    ("for i in $(hostname); do set -- \"$@\" 4; done; N=$#", "?"),
];

#[test]
fn training_commands_read_and_are_handed_arguments() {
    for text in [
        "python x.py --n 8 <<< yes",
        "python x.py --n 8 <<EOF\nyes\nEOF",
        "bash -c 'python x.py \"$@\"' _ --n 8",
        "srun bash -c 'python x.py --n \"$1\"' _ 8",
    ] {
        let launch = read_launch(text, &no_files).unwrap_or_else(|error| panic!("{text}: {error}"));
        let texts: Vec<&str> = launch.arguments.iter().map(|w| w.text.as_str()).collect();
        assert_eq!(texts, ["--n", "8"], "{text}");
    }
    // An image of a container does not start torchrun, which would start a rank on each GPU.
    let text =
        "srun --ntasks 4 --gpus-per-node 8 apptainer exec nvcr.io/nvidia/pytorch:24.05 python x.py --n 8";
    assert_eq!(read_launch(text, &no_files).unwrap().ranks(), Ok(Some(4)));
}

#[test]
fn work_that_multiplies_ends() {
    let mut sums: String = (0..30).map(|n| format!("a{n}=a{}+a{}\n", n + 1, n + 1)).collect();
    sums += "a30=1\nN=$((a0))";
    let functions: String = (0..20_000).map(|n| format!("f{n}() {{ :; }}\n")).collect();
    let loops = "for i in {1..4000}; do for j in {1..40}; do (:); done; done";
    // Too deep to be followed, and soon known to be.
    let read = read_launch(&format!("{sums}\npython x.py --n $N\n"), &no_files);
    assert!(read.is_err() || read.unwrap().arguments[1].text == "\u{fffc}");
    for script in [
        "M=aaaaaaaaaaaaaaaa; for i in {1..12}; do M+=$M; done; for i in {1..4000}; do N=${M%%*b}; done"
            .to_owned(),
        format!("{functions}{loops}"),
        format!("M=aaaaaaaaaaaaaaaa; for i in {{1..12}}; do M+=$M; done; {{ echo $M; {loops}; }} | cat"),
    ] {
        let error = read_launch(&format!("{script}\npython x.py --n 1\n"), &no_files).unwrap_err();
        assert!(error.message.contains("longer than can be followed"), "{error}");
    }
}

#[test]
fn variables_have_the_values_that_bash_gives_them() {
    for &(preamble, expected) in VALUES {
        let launch = read_launch(&format!("{preamble}\npython x.py --n \"$N\"\n"), &no_files);
        let launch = launch.unwrap_or_else(|error| panic!("{preamble}: {error}"));
        let value = launch.arguments[1].text.replace('\u{fffc}', "?");
        assert_eq!(value, expected, "{preamble}");
        // Where there is a bash, it has the last word on what is known; it is asked nothing that looks at files.
        if expected == "?" || preamble.contains('/') {
            continue;
        }
        let text = format!("{preamble}\necho \"$N\"");
        let bash = std::process::Command::new("bash").args(["--norc", "-c", &text]).env_clear().output();
        if let Some(output) = bash.ok().filter(|output| output.status.success()) {
            let said = String::from_utf8_lossy(&output.stdout);
            assert_eq!(said.lines().last().unwrap_or_default(), expected, "{preamble}");
        }
    }
}

#[test]
fn what_a_script_does_not_reach_is_not_read() {
    let read = |text: &str| read_launch(text, &no_files);
    for text in [
        "python x.py --n 8\nexit 0\npython x.py --n 4",
        "if true; then python x.py --n 8; exit; fi\npython x.py --n 4",
        "exec python x.py --n 8\npython x.py --n 4",
        // What may run counts where nothing else does.
        "if [ -d /x ]; then python x.py --n 8; fi",
        "python prepare && python x.py --n 8",
    ] {
        assert_eq!(read(text).unwrap().arguments[1].text, "8", "{text}");
    }
    // Where it ends before, that is what is said.
    for (text, line, behind) in [
        ("exit 0\npython x.py --n 4", 1, 2),
        ("echo edit me\nexit 1\n# torchrun y.py\ntorchrun x.py $ARGS", 2, 4),
        ("python prepare.py --input x\nif true; then\n exit 0\nfi\ntorchrun x.py --num-layers 4", 3, 5),
        ("A='--num-layers 4'\nexec bash\npython x.py $A", 2, 3),
    ] {
        let error = read(text).unwrap_err();
        let told = format!("the script ends here, before line {behind}, which would start training");
        assert!(error.line == line && error.message == told, "{text}: {error}");
    }
    // An error that does not rest on what nobody gave is told of.
    let launch = read("A=1\nif [ $A -eq 1 ]; then exit 1; fi\npython x.py --n 8").unwrap();
    assert!(launch.notes[0].starts_with("line 2: the script ends here with an error"), "{:?}", launch.notes);
    assert!(read("if [ -z \"$1\" ]; then exit 1; fi\npython x.py --n 8").unwrap().notes.is_empty());
    // What prepares data is no training, so that an error behind it is not taken either.
    let text = "python prepare.py --input x\nif [ -z \"$D\" ]; then exit 1; fi\npython x.py --num-layers 8";
    assert_eq!(read(text).unwrap().arguments[1].text, "8");
    // Flags that may be there are unknown, and those around them stay.
    let launch = read("A=(--n 8)\n[ -d /x ] && A+=(--m 4)\npython x.py \"${A[@]}\" --k").unwrap();
    let texts: Vec<&str> = launch.arguments.iter().map(|w| w.text.as_str()).collect();
    assert_eq!(texts, ["--n", "8", "--k"]);
    assert_eq!(launch.perhaps_set.len(), 1);
    assert!(launch.notes[0].contains("line 2: whether --m is set"), "{:?}", launch.notes);
}

#[test]
fn documents_are_scripts_where_nothing_else_starts_training() {
    let number = |text: &str| {
        let launch = read_launch(text, &no_files).unwrap_or_else(|error| panic!("{text}: {error}"));
        launch.arguments[1].text.clone()
    };
    // A usage text starts nothing; a file that is written is followed where it is started, with its arguments.
    assert_eq!(number("cat <<EOF\nusage: torchrun x.py --n N\nEOF\npython x.py --n 8\n"), "8");
    assert_eq!(number("cat > inner.sh <<'EOF'\npython x.py --n ${1:-9}\nEOF\nbash inner.sh 8\n"), "8");
    assert_eq!(number("cat > inner.sh <<'EOF'\npython x.py --n $Q\nEOF\nexport Q=8\nbash inner.sh\n"), "8");
    assert_eq!(number("cat > job.sh <<EOF\npython x.py --n 8\nEOF\n"), "8");
    // What a training command reads is no script.
    for document in ["<<< y", "<<EOF\ny\nEOF"] {
        assert_eq!(number(&format!("torchrun x.py --n 8 {document}\n")), "8");
    }
    // A text's arguments stand behind its name.
    for start in ["bash -c", "srun -N 2 bash -c"] {
        assert_eq!(number(&format!("{start} 'python x.py \"$@\"' name --n 8\n")), "8");
    }
}

/// The image that a container is made from starts nothing.
#[test]
fn misspelt_flags_are_named_beside_other_errors() {
    let text = "torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 \
                --seq-length 4096 --max-position-embeddings 4096 --micro-batch-size 1 --global-batch-size 64 \
                --vocab-size 32000 --bf16 --tensor-model-paralel-size 4 --pipeline-model-parallel-size 3";
    let given = Given { name: "x", gpus: None, ..Given::default() };
    let error = import_given(text, given).unwrap_err();
    assert!(error.message.contains("8 ranks do not divide by tp 1 x pp 3"), "{}", error.message);
    let note = "--tensor-model-paralel-size is not understood: did you mean --tensor-model-parallel-size?";
    assert_eq!(error.further, [(1, note.to_owned())]);
    // Without the flag another layout is legal too.
    let legal = text.replace("--pipeline-model-parallel-size 3", "--pipeline-model-parallel-size 2");
    let error = import_given(&legal, given).unwrap_err();
    let said = "--tensor-model-paralel-size is not understood: did you mean --tensor-model-parallel-size?";
    assert_eq!(error.message, said);
    assert!(!error.notes.iter().any(|n| n.contains("is not understood")), "{:?}", error.notes);
    let right = legal.replace("paralel", "parallel") + " --overlap-grad-reduse";
    let error = import_given(&right, given).unwrap_err();
    assert!(error.message.contains("did you mean --overlap-grad-reduce?"), "{error}");
    // Of a fork not all flags are known: one that says no degree is left out of the prediction.
    let fork = import_given(&format!("{right} --layernorm-epsilon 1e-5"), given).unwrap();
    assert!(fork.unknown[0].1.contains("did you mean --overlap-grad-reduce?"), "{:?}", fork.unknown);
    // What was not come to before the error is not called misspelt.
    let short =
        text.replace("paralel-size 4", "parallel-size 4").replace("embeddings 4096", "embeddings 2048");
    let error = import_given(&short, given).unwrap_err();
    assert!(error.message.contains("is less than --seq-length"), "{}", error.message);
    assert!(!error.notes.iter().any(|n| n.contains("is not understood")), "{:?}", error.notes);
}

#[test]
fn images_are_no_launchers() {
    let header = "#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=4\n#SBATCH --gpus-per-node=8\n";
    let image = "--container-image=nvcr.io/nvidia/pytorch:24.01-py3";
    let text = format!("#!/bin/bash\n{header}srun {image} python x.py --n 1\n");
    assert_eq!(read_launch(&text, &no_files).unwrap().ranks(), Ok(Some(8)));
}

#[test]
fn scripts_that_are_started_are_followed() {
    let files = |path: &str| match path {
        "inner.sh" => Ok("python x.py --n $1 --m $M --k ${K:-0}".to_owned()),
        "hosts" => Ok("a slots=8\nb slots=8\n".to_owned()),
        other => Err(other.to_owned()),
    };
    for start in ["bash inner.sh 8", "./inner.sh 8", "srun -N 2 bash ./inner.sh 8"] {
        let launch = read_launch(&format!("export M=4; K=5\n{start}\n"), &files).unwrap();
        let texts: Vec<&str> = launch.arguments.iter().map(|w| w.text.as_str()).collect();
        assert_eq!(texts, ["--n", "8", "--m", "4", "--k", "0"], "{start}");
    }
    let text = "deepspeed --hostfile hosts x.py --n 1";
    assert_eq!(read_launch(text, &files).unwrap().ranks(), Ok(Some(16)));
    for (hosts, ranks) in [("localhost:0,1,2", Some(3)), ("a:0,1@b:3", Some(3)), ("a", None)] {
        let text = format!("deepspeed --include {hosts} x.py --n 1");
        assert_eq!(read_launch(&text, &files).unwrap().ranks(), Ok(ranks), "{hosts}");
    }
}

#[test]
fn nesting_and_growth_are_bounded() {
    let double = format!("B=x\n{}", "B=$B$B\n".repeat(20));
    for (text, error) in [
        (format!("N=$(({}1))", "-".repeat(400_000)), false),
        (format!("N=$(({}1{}))", "(".repeat(9000), ")".repeat(9000)), false),
        (format!("N=1; if [[ {} 1 = 1 ]]; then N=2; fi", " 1 = 2 ||".repeat(100_000)), false),
        (format!("N=1; if [ {} 1 = 1 ]; then N=2; fi", "! ".repeat(100_000)), false),
        (format!("N=1; if [[ {} 1 = 1 {} ]]; then N=2; fi", "( ".repeat(9000), ") ".repeat(9000)), true),
        (format!("{}{{ N=1; }}", "a() ".repeat(100_000)), true),
        (format!("N={}1{}", "${a:-".repeat(20_000), "}".repeat(20_000)), true),
        (format!("{double}N=${{B//x/$B}}"), false),
        (format!("{double}N=${{B%%z*y}}"), false),
        (format!("{double}N=1; for i in {{1..900}}; do C=\"$B\"; done"), true),
        (format!("A=(x)\n{}N=1", "A+=(\"${A[@]}\")\n".repeat(40)), false),
        ("f() { f; }; f".to_owned(), true),
        (format!("f() {{ {} f; {} }}; f", "if true; then".repeat(60), "fi;".repeat(60)), true),
        (format!("N={}", "{1,2}".repeat(40)), false),
    ] {
        let read = read_launch(&format!("{text}\npython x.py --n $N\n"), &no_files);
        let start: String = text.chars().take(40).collect();
        assert_eq!(read.is_err(), error, "{start}: {:?}", read.err());
    }
}

#[test]
fn variables_are_exported_in_many_ways() {
    let exported = |text: &str| read_launch(text, &no_files).unwrap().environment.get("V").cloned();
    for text in [
        "declare -x V=1; python x.py --n 1",
        "typeset -x V=1; python x.py --n 1",
        "set -a; V=1; python x.py --n 1",
        "export V; V=1; python x.py --n 1",
        "env V=1 python x.py --n 1",
        "run() { python x.py \"$@\"; }; V=1 run --n 1",
        "V=1 nohup python x.py --n 1",
        "srun env V=1 python x.py --n 1",
    ] {
        assert_eq!(exported(text).as_deref(), Some("1"), "{text}");
    }
    assert_eq!(exported("V=1; python x.py --n 1"), None);
    // What was not read may export it.
    assert!(read_launch("source gone.sh\npython x.py --n 1", &no_files).unwrap().unread);
}

#[test]
fn what_may_be_missing_is_said_or_refused() {
    let given = Given { name: "x", gpus: Some(64), ..Given::default() };
    let start = "torchrun --nnodes 8 --nproc-per-node 8 pretrain_gpt.py";
    for (text, part) in [
        (format!("{start} {COMMAND} $MORE\n"), "line 1: flags that only a running shell knows"),
        (format!("{start} {COMMAND} --seed 1 $MORE\n"), "line 1: flags that only a running shell knows"),
        (
            format!("if [ \"$SLURM_NNODES\" -ge 4 ]; then P='--seed 1'; fi\n{start} {COMMAND} $P\n"),
            "line 1: whether --seed is set",
        ),
        (format!("MB=1\n[ -f x ] && MB=4\n{start} {COMMAND}\n"), "line 2: whether MB is set"),
        (format!("{start} {COMMAND} --attention-backend unfused\n"), "predicted with fused attention"),
        (format!("{start} {COMMAND} --grad-reduce-in-bf16\n"), "predicted with gradients of 32 bits"),
        (format!("{start} {COMMAND} --distributed-backend gloo\n"), "predicted as with nccl"),
        (
            format!("{start} {COMMAND} --transformer-impl inference_optimized\n"),
            "predicted with the layers of Transformer Engine",
        ),
        (
            format!("{start} {COMMAND} --attention-backend local --spec local\n"),
            "predicted with fused attention",
        ),
        (
            format!("{start} {COMMAND} --check-weight-hash-across-dp-replicas-interval 9\n"),
            "the sums over all weights",
        ),
        (format!("{start} {COMMAND}\n"), "attention drops some of its scores"),
        (
            format!("{start} {COMMAND} --spec megatron.core.models.gpt.gpt_layer_specs local_spec\n"),
            "--spec: predicted with the layers of Transformer Engine",
        ),
        (format!("{start} {COMMAND} --moe-layer-freq 2\n"), "change nothing: --moe-layer-freq"),
        (format!("{start} {COMMAND} --num-query-groups 8\n"), "changes nothing without --group-query"),
        (
            format!("{start} {COMMAND} --moe-shared-expert-overlap\n"),
            "change nothing: --moe-shared-expert-overlap",
        ),
        (
            format!(
                "{start} {COMMAND} --num-experts 8 --moe-grouped-gemm --cuda-graph-impl transformer_engine --cuda-graph-modules moe_router --recompute-activations\n"
            ),
            "graphs of moe_router alone: predicted as without graphs",
        ),
        (format!("{start} {COMMAND} \\\n"), "line 1: the text ends in a continuation line"),
    ] {
        let imported = import_given(&text, given).unwrap_or_else(|error| panic!("{error}\n{text}"));
        assert!(imported.assumed.iter().any(|n| n.contains(part)), "{:?}\n{text}", imported.assumed);
    }
    for (text, line, part) in [
        (format!("{start} {COMMAND}\n  --seed 1\n"), 2, "begins a command of its own"),
        (format!("{start} $EVERYTHING --seed 1\n"), 1, "the degrees of parallelism may be in it"),
    ] {
        let error = import_given(&text, given).unwrap_err();
        assert!(error.line == line && error.message.contains(part), "{error}\n{text}");
    }
}

#[test]
fn launchers_say_ranks_and_variables_in_many_ways() {
    let read = |text: &str| read_launch(text, &no_files).unwrap();
    for text in [
        "#SBATCH --nodes=4 --ntasks-per-node=8\nsrun python x.py --n 1",
        "#SBATCH -N 4 -n 32\nsrun python x.py --n 1",
        "#SBATCH -n 32\nsrun python x.py --n 1",
    ] {
        assert_eq!(read(text).ranks().unwrap(), Some(32), "{text}");
    }
    for (text, ranks) in [
        ("srun -N4 --ntasks-per-node=8 python x.py --n 1", Some(32)),
        ("srun --nodes=$NNODES --ntasks-per-node=8 python x.py --n 1", None),
        ("deepspeed --num_nodes $NNODES --num_gpus 8 x.py --n 1", None),
        ("deepspeed --hostfile hosts --num_gpus 8 x.py --n 1", None),
        ("export WORLD_SIZE=16; torchrun --nnodes $WORLD_SIZE --nproc_per_node 8 x.py --n 1", Some(128)),
        ("torchrun --nnodes 1:4 --nproc_per_node 8 x.py --n 1", None),
        ("#SBATCH --nodes=8\n#SBATCH --gres=gpu:8,nvme:4\nsrun python x.py --n 1", Some(64)),
        ("#SBATCH --ntasks=32\n#SBATCH --gpus-per-node=8\nsrun python x.py --n 1", Some(32)),
        (
            "#SBATCH --nodes=2\n#SBATCH --nodes=4\n#SBATCH --ntasks-per-node=8\nsrun python x.py --n 1",
            Some(32),
        ),
        ("#SBATCH --nodes=2-4\n#SBATCH --ntasks-per-node=8\nsrun python x.py --n 1", None),
        (
            "#SBATCH -N 4\nH=($(scontrol show hostnames)); torchrun --nnodes ${#H[@]} --nproc_per_node 8 x.py --n 1",
            Some(32),
        ),
    ] {
        assert_eq!(read(text).ranks().unwrap(), ranks, "{text}");
    }
    let text = "torchrun --nproc-per-node=gpu x.py --n 1";
    assert_eq!(read(text).ranks().unwrap(), None);
    for text in [
        "srun --export=ALL,A=1 python x.py --n 1",
        "mpirun -np 2 -x A=1 python x.py --n 1",
        "docker run -e A=1 image torchrun x.py --n 1",
    ] {
        assert_eq!(read(text).environment.get("A").map(String::as_str), Some("1"), "{text}");
    }
}

/// What a script says for the case that a command fails may be meant; bash runs what stands behind one that succeeds.
#[test]
fn commands_that_may_fail_are_not_taken_for_granted() {
    let start = "torchrun --nnodes 8 --nproc-per-node 8 pretrain_gpt.py";
    let command = format!("{start} {}\n", COMMAND.replace("parallel-size 4", "parallel-size $TP"));
    for (before, tp) in [
        ("TP=2; cd /data/x 2>/dev/null || TP=4", None),
        ("TP=2; pushd /data/x || TP=4", None),
        ("TP=2; mkdir /data/x || TP=4", None),
        ("TP=2; ulimit -n 99 || TP=4", None),
        ("TP=2; : > /data/x || TP=4", None),
        ("TP=2; cd /x && TP=4 || TP=8", None),
        ("if cd /x; then TP=2; else TP=4; fi", None),
        ("if ! cd /x; then TP=2; else TP=4; fi", None),
        ("if hash nvcc 2>/dev/null; then TP=2; else TP=4; fi", None),
        ("TP=2; false & wait $! || TP=4", None),
        ("TP=2; jobs %3 || TP=4", None),
        ("TP=2; shopt -q nullglob || TP=4", None),
        ("TP=2; declare -p NOPE &>/dev/null || TP=4", Some(4)),
        ("TP=2; declare -p TP &>/dev/null || TP=4", Some(2)),
        ("TP=2; if ! declare -F f >/dev/null; then TP=4; fi", Some(4)),
        ("f() { :; }; TP=2; if ! declare -F f >/dev/null; then TP=4; fi", Some(2)),
        ("TP=2; cd /x || exit 1; mkdir -p logs || true; wait", Some(2)),
        ("i=1; export A=$((i++)); TP=$i", Some(2)),
        ("false; case a in a) ;; esac; TP=$((2+$?))", Some(2)),
        ("false; eval; TP=$((2+$?))", Some(2)),
        ("false; break; TP=$((2+$?))", Some(2)),
        ("cd /x; TP=$((2+$?))", None),
        ("TP=2; command TP=4", Some(2)),
        ("TP=2; [ $(ulimit -n) -lt 10000000 ] && TP=4", None),
        ("TP=2; set -o | grep -q pipefail && TP=4", None),
        ("TP=2; shopt | grep -q extglob && TP=4", None),
        ("TP=2; umask | grep -q 0022 && TP=4", None),
        ("TP=$(set -e; echo 2)", Some(2)),
        ("exec {lock}>/tmp/lock; TP=2", Some(2)),
        ("if [ \"$(printf a)\" = a ]; then TP=2; else TP=4; fi", Some(2)),
        ("[ 1 = \"$(echo 1 | tee x)\" ] && TP=2 || TP=4", Some(2)),
        ("TP=2; X=$(cd /x) || TP=4", None),
        ("until cd /x; do TP=4; break; done; TP=${TP:-2}", None),
        ("TP=2; cd /x && TP=4", Some(4)),
        ("TP=2; : > /dev/null || TP=4", Some(2)),
        ("A=(); A[3]=4; A[1]=2; TP=${A[*]:1:1}", Some(2)),
        ("A=(1 2 4); unset 'A[0]'; TP=${A[@]:1:1}", Some(2)),
        ("A=(1 2 4); TP=${A[@]: -2:1}", Some(2)),
    ] {
        let text = format!("{before}\n{command}");
        match (import(&text, "x", None), tp) {
            (Ok(imported), Some(tp)) => assert_eq!(imported.plan.layout().tensor_parallel, tp, "{before}"),
            (Err(error), None) => {
                assert!(error.message.contains("known only when the script runs"), "{before}: {error}")
            }
            (read, _) => panic!("{before}: {read:?}"),
        }
    }
    // A command that starts behind one that may fail starts.
    for text in [
        format!("TP=2\nif cd /x; then {command}\nfi\n"),
        format!("TP=2\ncd /x && {command}"),
        format!("TP=2\nmkdir -p log && cd /x && {command}"),
    ] {
        assert_eq!(import(&text, "x", None).unwrap().plan.layout().tensor_parallel, 2, "{text}");
    }
}

/// A script that ends for what it is started with says so, and where, whatever else is wrong.
#[test]
fn scripts_that_end_for_what_they_are_given_say_so() {
    let command = COMMAND.replace("parallel-size 4", "parallel-size $TP");
    let text = format!(
        "die() {{ echo \"$1\"; exit 1; }}\nwhile [ $# -gt 0 ]; do\n  case $1 in\n    --tp) TP=$2; shift 2 ;;\n    *) die \"unknown $1\" ;;\n  esac\ndone\ntorchrun --nnodes 8 --nproc-per-node 8 pretrain_gpt.py {command}\n"
    );
    let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let given = |words: &[String]| import_given(&text, Given { name: "x", words, ..Given::default() });
    assert_eq!(given(&words("--tp 2")).unwrap().plan.layout().tensor_parallel, 2);
    let error = given(&words("--zp 2")).unwrap_err();
    assert!(error.line == 5 && error.message.contains("ends here with an error"), "{error}");
}

/// What bash does not run for its syntax is no launch: most of it is what a cut leaves.
#[test]
fn scripts_that_bash_cannot_read_are_refused() {
    let command = format!("torchrun --nnodes 8 --nproc-per-node 8 pretrain_gpt.py {COMMAND}");
    for (text, line, part) in [
        (format!("{command} &&\n"), 1, "nothing stands behind `&&`"),
        (format!("{command} ||"), 1, "nothing stands behind `||`"),
        (format!(":\n{command} 2>&1 |\n\n"), 2, "nothing stands behind `|`"),
        (format!("{command} >"), 1, "nothing stands behind `>`"),
        (format!("{command}\nfi\n"), 2, "`fi` belongs to nothing"),
        (format!("done\n{command}"), 1, "`done` belongs to nothing"),
        (format!("{command}\n}}\n"), 2, "`}` belongs to nothing"),
        (format!("then\n{command}"), 1, "`then` belongs to nothing"),
        (format!("&& true\n{command}"), 1, "unexpected `&`"),
        (format!("| cat\n{command}"), 1, "unexpected `|`"),
        (format!("; true\n{command}"), 1, "unexpected `;`"),
        (format!("true & && true\n{command}"), 1, "unexpected `&`"),
        (format!("if ; then :; fi\n{command}"), 1, "unexpected `;`"),
        (format!("if true; then fi\n{command}"), 1, "no command stands behind `then`"),
        (format!("f() {{ }}\n{command}"), 1, "no command stands behind `{`"),
        (format!("( )\n{command}"), 1, "no command stands behind `(`"),
        (format!("f() {{}}\n{command}"), 1, "a function's commands stand in braces"),
        (format!("case a in\n a) A=1\n  B=1\n b) A=2 ;;\nesac\n{command}"), 4, "does `;;` lack before it?"),
        (
            format!("if true; then A=1; fi B=2\n{command}"),
            1,
            "unexpected `B` behind commands that have ended",
        ),
        (format!("for i in 1; do :; done x\n{command}"), 1, "behind commands that have ended"),
    ] {
        let error = import(&text, "x", None).expect_err(part);
        assert!(error.line == line && error.message.contains(part), "{part}: {error}");
    }
    for text in [
        format!(
            "{{ (true) }}; if [[ -f x ]] then :; fi; {{ {{ :; }} }}; (: ) & wait\nf() {{ :; }}\n(( 1 )) # c\n{command}\n"
        ),
        // A template whose names of files are still to be filled in.
        format!("DATA=<Specify path and file prefix>_text\nSAVE=<Specify path>\n{command} --load $SAVE\n"),
        format!("case x in a) ;; *) :;; esac; if true; then\n :\nfi;\n{command}\n"),
        format!("f() {{ :; }}; f &\nwait\n{command} &> log &\nwait\n"),
        format!("for i in 1 2; do :; done; {command} 2>&1 |\n\n  tee log; exit ${{PIPESTATUS[0]}}\n"),
        format!("{{ :; }} && ( : ) ||\n\n true\n&>/dev/null echo x\n{command} #\n"),
        format!(
            "time {{ :; }}\ntime -p for i in 1; do :; done\ncoproc {{ :; }}\ncoproc X {{ :; }}\ntime {command}\n"
        ),
    ] {
        import(&text, "x", None).unwrap_or_else(|error| panic!("{error}\n{text}"));
    }
}

#[test]
fn launchers_that_cannot_go_with_their_job_are_refused() {
    let torch = |options: &str| format!("srun torchrun {options} pretrain_gpt.py {COMMAND}\n");
    for (text, line, part) in [
        (
            format!("#!/bin/bash\n#SBATCH --nodes=4\n{}", torch("--nnodes 2 --nproc-per-node 8")),
            3,
            "--nnodes is 2, and --nodes of #SBATCH 4",
        ),
        (
            format!("#!/bin/bash\n#SBATCH --gpus-per-node=8\n{}", torch("--nnodes 8 --nproc-per-node 16")),
            3,
            "--nproc-per-node starts 16 processes on every node, of which --gpus-per-node of #SBATCH gives 8",
        ),
        (
            format!("#!/bin/bash\n#SBATCH --ntasks-per-node=8\n{}", torch("--nnodes 8 --nproc-per-node 8")),
            3,
            "8 tasks on every node, and each of them starts a launcher of its own",
        ),
        (
            format!(
                "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --gpus-per-node=8\npython pretrain_gpt.py {COMMAND}\n"
            ),
            4,
            "--nodes of #SBATCH is 2, and this command is started once, on the first node",
        ),
        (
            torch("--standalone --nnodes 8 --nproc-per-node 8"),
            1,
            "--standalone is one node, and --nnodes is 8",
        ),
    ] {
        let error = import(&text, "x", None).expect_err(part);
        assert!(error.line == line && error.message.contains(part), "{part}: {error}");
        // Who gives the number has decided.
        import(&text, "x", Some(64)).unwrap_or_else(|error| panic!("{error}\n{text}"));
    }
    // A site's own launchers: with torchrun's options, and those of which nothing is known.
    let (of_job, train) = (
        "#!/bin/bash\n#SBATCH --nodes=8\n#SBATCH --gpus-per-node=8\n#SBATCH --ntasks-per-node=1\n",
        format!("pretrain_gpt.py {COMMAND}\n"),
    );
    let read = |launcher: &str| import(&format!("{of_job}srun {launcher} {train}"), "x", None);
    assert_eq!(read("my_launcher --nproc_per_node=8 --nnodes=8").unwrap().job.gpus, 64);
    assert!(read("./start.sh").unwrap_err().message.contains("give the number of GPUs"));
    let error = read("python tools/launch.py --nproc_per_node 8 --nnodes 8").unwrap_err();
    assert!(error.line == 5 && error.message.contains("a launcher that is not followed"), "{error}");
    // Some of the nodes of a job, one command for each node, and what the command itself says of its tasks.
    let train = format!("pretrain_gpt.py {COMMAND}\n");
    for text in [
        format!("#SBATCH --nodes=16\npdsh -w n[0-7] torchrun --nnodes 8 --nproc-per-node 8 {train}"),
        format!("#SBATCH --nodes=16\nsrun -N 8 torchrun --nnodes 8 --nproc-per-node 8 {train}"),
        format!("#SBATCH --nodes=8\nsrun -N 1 -n 1 -w n1 torchrun --nnodes 8 --nproc-per-node 8 {train}"),
        format!(
            "#SBATCH --nodes=8\n#SBATCH --ntasks-per-node=8\nsrun --ntasks-per-node=1 torchrun --nnodes 8 --nproc-per-node 8 {train}"
        ),
    ] {
        import(&format!("#!/bin/bash\n{text}"), "x", None).unwrap_or_else(|error| panic!("{error}\n{text}"));
    }
}

#[test]
fn launchers_that_contradict_themselves_are_told_of() {
    let files = |path: &str| match path {
        "hosts" => Ok((0..8).map(|host| format!("a{host} slots=8\n")).collect()),
        other => Err(other.to_owned()),
    };
    let said = |text: &str| read_launch(text, &files).unwrap().disagreements();
    for (text, expected) in [
        (
            "#SBATCH --nodes=4\nsrun torchrun --nnodes 2 --nproc-per-node 8 x.py --n 1",
            "--nnodes says 2 nodes, and --nodes of #SBATCH 4: read as 2",
        ),
        (
            "srun -N 4 torchrun --nnodes 2 --nproc-per-node 8 x.py --n 1",
            "--nnodes says 2 nodes, and -N 4: read as 2",
        ),
        (
            "#SBATCH --gres=gpu:8\ntorchrun --nproc_per_node 4 x.py --n 1",
            "--nproc_per_node says 4 GPUs per node, and --gres of #SBATCH 8: read as 4",
        ),
        (
            "deepspeed --hostfile hosts --num_nodes 16 --num_gpus 8 x.py --n 1",
            "the file of hosts says 8 nodes, and --num_nodes 16: read as 8",
        ),
        (
            "\ntorchrun --nnodes 4 --nnodes 2 --nproc-per-node 8 x.py --n 1",
            "line 2: the launcher has --nnodes 4 and --nnodes 2: the last one counts",
        ),
        (
            "#SBATCH -N 4\n#SBATCH --ntasks-per-node=8\n#SBATCH -n 16\nsrun python x.py --n 1",
            "-n of #SBATCH says 16 ranks, and -N of #SBATCH x --ntasks-per-node of #SBATCH 32: read as 16",
        ),
        (
            "export WORLD_SIZE=64\nsrun -n 32 python x.py --n 1",
            "-n says 32 ranks, and WORLD_SIZE 64: read as 32",
        ),
    ] {
        assert_eq!(said(text), [expected], "{text}");
    }
    for text in [
        "#SBATCH --nodes=4\nsrun torchrun --nnodes $SLURM_NNODES --nproc-per-node 8 x.py --n 1",
        "deepspeed --hostfile hosts --num_nodes 4 --num_gpus 8 x.py --n 1",
        "deepspeed --hostfile hosts --include a@b --num_nodes 16 x.py --n 1",
        "torchrun --nnodes 1:4 --nnodes 1:4 --nproc-per-node 8 x.py --n 1",
        "mpirun -np 32 -N 8 python x.py --n 1",
        "#SBATCH -N 4 -n 32\nsrun --ntasks-per-node=8 python x.py --n 1",
    ] {
        assert!(said(text).is_empty(), "{text}: {:?}", said(text));
    }
    let text = script("").replace("--nnodes 8", "--nnodes 4 --nnodes 8");
    let notes = import(&text, "x", None).unwrap().assumed;
    assert!(notes.iter().any(|note| note.contains("--nnodes 4 and --nnodes 8")), "{notes:?}");
}

/// A list of arguments is no program: in its words no operator has a meaning.
#[test]
fn argument_lists_are_read_as_words() {
    let list = |flags: &str| COMMAND.replace("--sequence-parallel", &format!("--sequence-parallel {flags}"));
    let layout = "--pipeline-model-parallel-layout Et*16|t*16L";
    for text in [
        list(layout),
        list(&format!("--tokenizer-model a&b;c {layout}")).replace(" --", "\n--"),
        format!("# comment & more\nA=1 pretrain_gpt.py\n{}", list(layout).replace(" --", " \\\n  --")),
        list(&format!("--tokenizer-model 'a b' # it's\n{layout}")),
    ] {
        let read = import(&text, "x", Some(64)).unwrap_or_else(|error| panic!("{error}\n{text}"));
        let layout = read.plan.layout();
        assert_eq!((layout.tensor_parallel, layout.pipeline_parallel), (4, 2), "{text}");
        assert_eq!(read.unknown, [], "{text}");
    }
    // Variables before it are those of its words; commands around it make it a script.
    let words = |text: &str| -> Vec<String> {
        read_launch(text, &no_files).unwrap().arguments.into_iter().map(|w| w.text).collect()
    };
    assert_eq!(
        words("N=8\nx.py --n $N --m ${M:-4} --l ([0]*3+[1]*5)"),
        ["--n", "8", "--m", "4", "--l", "([0]*3+[1]*5)"]
    );
    assert_eq!(words("./x.py --n 8 | tee log"), ["--n", "8"]);
    assert_eq!(words("./x.py --n 8 > log"), ["--n", "8"]);
}

/// Notes and errors of a text that holds commands name the lines of the script.
#[test]
fn lines_inside_texts_are_those_of_the_script() {
    let rest = COMMAND.replace("--num-layers 32 ", "");
    let start = "torchrun --nnodes 8 --nproc-per-node 8 pretrain_gpt.py";
    let inner = format!("  [ -f x ] && M=2\n  {start} \\\n  --num-layers 32 \\\n    --num-layers 16 {rest}");
    let comments = "# more\n".repeat(4);
    let variable =
        format!("X=\"\n[ -f x ] && M=2\n{start} --num-layers 32 {rest}\n\"\n# more\nsrun bash -c \"$X\"\n");
    for (text, first, one, two) in [
        (format!("{comments}srun bash -c \"\n{inner}\"\n"), 6, 8, 9),
        (format!("{comments}srun bash -c '\n{inner}'\n"), 6, 8, 9),
        (format!("{comments}sbatch <<EOF\n#!/bin/bash\n{inner}\nEOF\n"), 7, 9, 10),
        (format!("{comments}sbatch <<'EOF'\n#!/bin/bash\n{inner}\nEOF\n"), 7, 9, 10),
    ] {
        let notes = import(&text, "x", Some(64)).unwrap_or_else(|error| panic!("{error}\n{text}")).assumed;
        let undecided = format!("line {first}: whether M is set is known only when the script runs");
        assert!(notes.contains(&undecided), "{notes:?}\n{text}");
        let twice = format!("`32` in line {one} and as `16` in line {two}");
        assert!(notes.iter().any(|note| note.contains(&twice)), "{notes:?}\n{text}");
    }
    let notes = import(&variable, "x", Some(64)).unwrap().assumed;
    assert!(notes.iter().any(|note| note.starts_with("line 6: whether M is set")), "{notes:?}");
    let error =
        import(&variable.replace("--hidden-size 4096", "--hidden-size x"), "x", Some(64)).unwrap_err();
    assert_eq!(error.line, 3, "{error}");
    // A here-document without an end leaves `$(` open, as in bash.
    let cut = format!("A=$(cat <<EOF\n{COMMAND}\n)\n{start} $A\n");
    let error = import(&cut, "x", Some(64)).unwrap_err();
    assert!(error.line == 1 && error.message.contains("never closed"), "{error}");
}

#[test]
fn misspelt_flags_are_named_with_what_was_meant() {
    let given = Given { name: "x", gpus: Some(64), ..Given::default() };
    for (from, to) in
        [("--num-layers", "--num-layer"), ("--seq-length", "--seq_length"), ("--hidden-size", "--hiden-size")]
    {
        let error = import_given(&script(&format!("{from} => {to}")), given).unwrap_err();
        assert!(error.message.contains(&format!("no {from}: did you mean it by {to}?")), "{error}");
    }
    // All of them at once, each with its line.
    let change = "--use-distributed-optimizer => --use-distributed-optimiser\n    --overlap-grad-reduse";
    let error = import_given(&script(&format!("{change};--sequence-parallel => --x")), given).unwrap_err();
    assert_eq!(
        error.message,
        "--use-distributed-optimiser is not understood: did you mean --use-distributed-optimizer?"
    );
    let further = "--overlap-grad-reduse is not understood: did you mean --overlap-grad-reduce?";
    assert_eq!(error.further, [(error.line + 1, further.to_owned())]);
    // Once each: what the command cannot be without says so already.
    let error = import_given(&script("--micro-batch-size => --micro-batchsize"), given).unwrap_err();
    assert!(
        error.message.contains("no --micro-batch-size: did you mean it by --micro-batchsize?"),
        "{error}"
    );
    assert_eq!(error.further, []);
    // So are values of wrong kinds.
    let change = "--swiglu => --swiglu\n    --seed x\n    --lr y\n    --position-embedding-type rop";
    let error = import_given(&script(change), given).unwrap_err();
    assert_eq!(error.message, "--seed takes a whole number, found `x`");
    assert!(error.further[0].1.starts_with("--lr takes a number, found `y`"), "{error:?}");
    // Without a degree it would be another layout.
    let text = script("--tensor-model-parallel-size 4 => --tensor-model-paralel-size 4");
    let error = import_given(&text, given).unwrap_err();
    let said = "--tensor-model-paralel-size is not understood: did you mean --tensor-model-parallel-size?";
    assert_eq!(error.message, said);
}

/// Flags that begin like known ones are no known ones: each is listed.
#[test]
fn flags_that_nobody_knows_are_listed() {
    for (flag, meant) in [
        ("--data-parallel-size 4", None),
        ("--save-foo", None),
        ("--o-lora-rank 1024", None),
        ("--spec my.module my_layers", None),
        ("--spec megatron.core.models.mamba.mamba_layer_specs mamba_stack_spec", None),
        ("--lrank 5", None),
        ("--loading-balance 5", None),
        ("--adam-beta3 0.9", Some("--adam-beta2")),
        ("--expert-parallel-size 8", Some("--expert-model-parallel-size")),
        ("--mtp-layers 1", Some("--mtp-num-layers")),
    ] {
        let imported = import(&with_flags(flag), "x", None).unwrap_or_else(|error| panic!("{flag}: {error}"));
        let meant = meant.map_or(String::new(), |meant| format!(" (did you mean {meant}?)"));
        let listed: Vec<&str> = imported.unknown.iter().map(|(_, text)| text.as_str()).collect();
        assert_eq!(listed, [format!("{flag}{meant}")]);
    }
    // Those that are spelt all but like a known one are mistakes.
    for (flag, meant) in [
        ("--data-parallel-sharding-stategy optim", "--data-parallel-sharding-strategy"),
        ("--train-itres 5", "--train-iters"),
        ("--lr-warmup-iter 5", "--lr-warmup-iters"),
    ] {
        let error = import(&with_flags(flag), "x", None).unwrap_err();
        assert!(error.message.ends_with(&format!("did you mean {meant}?")), "{flag}: {error}");
    }
    let known = "--train-data-path x --profile-ranks 0 1 --log-interval 1 --lr 1e-4 --wandb-project x --data-impl mmap";
    assert_eq!(import(&with_flags(known), "x", None).unwrap().unknown, []);
}

/// One command, started in as many ways as there are sites.
const COMMAND: &str = "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 4096 \
--max-position-embeddings 4096 --micro-batch-size 1 --global-batch-size 256 --bf16 --swiglu \
--ffn-hidden-size 14336 --disable-bias-linear --vocab-size 32000 --tensor-model-parallel-size 4 \
--sequence-parallel --pipeline-model-parallel-size 2 --use-distributed-optimizer";

#[test]
fn scripts_of_many_sites_say_the_same() {
    let array = COMMAND.replace(" --", "\n    --");
    let scripts = [
        format!("torchrun --nnodes=8 --nproc_per_node=8 pretrain_gpt.py {COMMAND}"),
        format!(
            "#!/bin/bash\nWORLD_SIZE=64 python -u /opt/megatron/pretrain_gpt.py {COMMAND} > log 2>&1 &\nwait\n"
        ),
        format!(
            "#!/bin/bash\n#SBATCH --nodes=8\n#SBATCH --ntasks-per-node=8\nARGS=\"\n{COMMAND}\n\"\nCMD=\"cd /opt; python pretrain_gpt.py ${{ARGS}}\"\nsrun -l --container-image x bash -x -c \"${{CMD}}\" 2>&1 | tee log\n"
        ),
        format!(
            "GPUS=8\nNODES=${{1:-8}}\nA=(\n    {array}\n)\nlaunch() {{\n  local script=$1; shift\n  torchrun --nnodes $NODES --nproc-per-node $GPUS \"$script\" \"$@\"\n}}\nlaunch pretrain_gpt.py \"${{A[@]}}\" || exit 1\n"
        ),
        format!(
            "case ${{SIZE:=8b}} in\n 8b|8B) NODES=8; TP=4 ;;\n *) echo no; exit 1 ;;\nesac\nif [ -z \"$SLURM_JOB_ID\" ] && [[ $TP == 4 || $TP -gt 8 ]]; then\n  L=\"torchrun --nnodes $((NODES * (1 + 1) / 2)) --nproc-per-node 8\"\nelse\n  L=false\nfi\n$L pretrain_gpt.py {}\n",
            COMMAND.replace("parallel-size 4", "parallel-size $TP")
        ),
        format!(
            "DATA=$(find /data -name '*.bin' | head -n 1)\nsbatch <<EOF\n#!/bin/bash\n#SBATCH -N 8\n#SBATCH --gres=gpu:h100:8\nsrun torchrun --nnodes \\$SLURM_NNODES --nproc-per-node 8 pretrain_gpt.py {COMMAND}\nEOF\n"
        ),
        format!(
            "for tp in 4; do\n  deepspeed --num_nodes 8 --num_gpus 8 pretrain_gpt.py {}\ndone\n",
            COMMAND.replace("parallel-size 4", "parallel-size ${tp}")
        ),
        format!(
            "python tools/preprocess_data.py --input x --workers 4\n$LAUNCHER torchrun --nnodes 8 --nproc-per-node 8 pretrain_gpt.py \\\n  {}\n",
            COMMAND.replace(" --", " \\\n  --")
        ),
        format!("# environment\nexport WORLD_SIZE=64\neval \"python pretrain_gpt.py {COMMAND}\"\n"),
        serde_json::to_string(&COMMAND.split(' ').collect::<Vec<_>>()).unwrap(),
        serde_json::to_string(
            &format!("torchrun --nnodes 8 --nproc-per-node 8 pretrain_gpt.py {COMMAND}")
                .split(' ')
                .collect::<Vec<_>>(),
        )
        .unwrap(),
    ];
    let mut plans = Vec::new();
    for script in &scripts {
        let gpus = script.starts_with("[\"--").then_some(64);
        let imported = import(script, "x", gpus).unwrap_or_else(|error| panic!("{error}\n{script}"));
        assert_eq!(imported.unknown, [], "{script}");
        assert_eq!(
            imported.plan.to_string(),
            "tp4 pp2 vp1 cp1 ep1 dp8 mb1 ga32 zero1 no-dp-ov rc-none",
            "{script}"
        );
        plans.push((imported.plan, imported.model, imported.job));
    }
    assert!(plans.windows(2).all(|two| two[0] == two[1]));
}

/// The command as a script with a flag per line and changes `FROM => TO; …`.
fn script(change: &str) -> String {
    let array = COMMAND.replace(" --", "\n    --");
    let mut text = format!("A=(\n    {array}\n)\n");
    for edit in change.split(';').filter(|e| !e.is_empty()) {
        let (from, to) = edit.split_once(" => ").unwrap();
        assert!(text.contains(from), "{from}");
        text = text.replacen(from, to, 1);
    }
    text + "torchrun --nnodes 8 --nproc-per-node 8 pretrain_gpt.py \"${A[@]}\"\n"
}

#[test]
fn contradictions_are_told_at_their_flag() {
    for (change, flag, part) in [
        ("--bf16 => --bf16\n--fp16", "--fp16", "exclude each other"),
        (
            "--swiglu => --swiglu\n--group-query-attention\n--num-query-groups 5",
            "--num-query-groups",
            "32 query heads do not divide among 5",
        ),
        ("--swiglu => --swiglu\n--fp8-format e4m3\n--fp4-format e2m1", "--fp4-format", "exclude each other"),
        (
            "--swiglu => --swiglu\n--enable-cuda-graph\n--external-cuda-graph",
            "--external",
            "exclude each other",
        ),
        ("--swiglu => --swiglu\n--norm-epsilon 7", "--norm-epsilon", "between 0 and 1"),
    ] {
        let text = script(change);
        let error = import(&text, "x", None).expect_err(part);
        let at = text.lines().position(|line| line.trim_start().starts_with(flag)).unwrap() + 1;
        assert!(error.line == at && error.message.contains(part), "{flag}: {error}");
    }
}

#[test]
fn commands_that_are_cut_within_a_flag_say_so() {
    let start = "torchrun --nnodes 8 --nproc-per-node 8 pretrain_gpt.py";
    let error = import(&format!("{start} {COMMAND} --train-iters 5 --t"), "x", None).unwrap_err();
    assert!(error.message.contains("ends in `--t`, with which longer flags begin"), "{error}");
    let (before, _) = COMMAND.split_once("f16").unwrap();
    let error = import(&format!("{start} {before}"), "x", None).unwrap_err();
    assert!(error.notes.iter().any(|note| note.contains("the text ends in `--b`")), "{error:?}");
    // A whole flag with which longer ones begin, and one with which none does.
    for flag in ["--profile", "--my-own-flag"] {
        import(&format!("{start} {COMMAND} {flag}"), "x", None).unwrap();
    }
}

/// Flags that break one rule between flags each, the flag that is pointed at, and what is said of it.
const BROKEN_FLAGS: &[(&str, &str, &str, &str)] = &[
    (
        "deterministic",
        "--deterministic-mode --cross-entropy-loss-fusion",
        "--cross-entropy",
        "exclude each other",
    ),
    ("deterministic", "--tp-comm-overlap --deterministic-mode", "--deterministic", "exclude each other"),
    ("predicted-positions", "--mtp-num-layers 1 --position-embedding-type yarn", "--position", "needs rope"),
    ("no-positions", "--no-position-embedding --position-embedding-type none", "--no-position", "type rope"),
    (
        "old-deepep",
        "--num-experts 8 --moe-token-dispatcher-type alltoall --moe-enable-deepep",
        "--moe-enable-deepep",
        "type flex",
    ),
    (
        "padded-routing",
        "--num-experts 8 --moe-router-padding-for-quantization",
        "--moe-router-padding",
        "needs --fp8-format",
    ),
    ("fsdp-version", "--use-megatron-fsdp --megatron-fsdp-version 2", "--megatron-fsdp-v", "2 excludes"),
    ("sharded-checkpoints", "--ckpt-format fsdp_dtensor", "--ckpt-format", "needs --use-megatron-fsdp"),
    ("save-interval", "--save /x", "--save", "needs --save-interval"),
    ("evaluation-batch", "--eval-global-batch-size 7", "--eval-global", "is no multiple"),
    ("evaluation-batch", "--eval-micro-batch-size 3", "--eval-micro", "is no multiple"),
    ("evaluation-batch", "--eval-global-batch-size 1_0", "--eval-global", "is no multiple"),
    ("batch-schedules", "--step-batch-size-schedule 0:8", "--step-batch-size-schedule", "exclude each other"),
    (
        "iterations-or-samples",
        "--train-iters 10 --train-samples 100",
        "--train-samples",
        "exclude each other",
    ),
    ("iterations-or-samples", "--train-iters 10 --lr-decay-samples 9", "--lr-decay", "exclude each other"),
    ("iterations-or-samples", "--train-samples 10 --lr-decay-iters 9", "--lr-decay", "exclude each other"),
    ("iterations-or-samples", "--train-iters 10 --lr-warmup-samples 9", "--lr-warm", "exclude each other"),
    ("iterations-or-samples", "--train-samples 10 --lr-warmup-iters 9", "--lr-warm", "exclude each other"),
    (
        "iterations-or-samples",
        "--train-iters 10 --lr-warmup-fraction 0.1 --lr-warmup-iters 1",
        "--lr-warmup-iters",
        "exclude each other",
    ),
    (
        "iterations-or-samples",
        "--train-samples 10 --lr-warmup-samples 1 --lr-warmup-fraction 0.1",
        "--lr-warmup-fraction",
        "exclude each other",
    ),
    ("one-data-source", "--mock-data --data-path x", "--data-path", "exclude each other"),
    ("one-data-source", "--mock-data --valid-data-path x", "--valid-data-path", "exclude each other"),
    ("one-data-source", "--train-data-path y --data-path x", "--data-path", "exclude each other"),
    ("one-data-source", "--data-args-path y --data-path x", "--data-path", "exclude each other"),
    (
        "emerging-checkpoints",
        "--optimizer muon --ckpt-format torch_dcp",
        "--ckpt-format",
        "needs --ckpt-format torch or torch_dist",
    ),
    (
        "dense-expert-ranks",
        "--expert-tensor-parallel-size 3",
        "--expert-tensor",
        "3 does not divide the 32 ranks of a stage",
    ),
    ("sharded-checkpoints", "--ckpt-format torch_dcp", "--ckpt-format", "needs --use-torch-fsdp2"),
    (
        "graph-modules",
        "--enable-cuda-graph --external-cuda-graph",
        "--external-cuda-graph",
        "exclude each other",
    ),
    ("graph-modules", "--enable-cuda-graph --cuda-graph-impl local", "--cuda-graph", "exclude each other"),
    (
        "graph-modules",
        "--cuda-graph-impl transformer_engine --external-cuda-graph",
        "--external-cuda-graph",
        "exclude each other",
    ),
    (
        "graph-modules",
        "--external-cuda-graph --cuda-graph-modules moe",
        "--cuda-graph-modules",
        "needs experts padded",
    ),
    (
        "graph-modules",
        "--num-experts 8 --cuda-graph-impl local --cuda-graph-modules attn mlp --moe-layer-freq 1",
        "--cuda-graph-modules",
        "needs dense layers",
    ),
    (
        "graph-modules",
        "--num-experts 8 --enable-cuda-graph --cuda-graph-modules mlp --moe-layer-freq [1]*32",
        "--cuda-graph-modules",
        "needs dense layers",
    ),
    ("one-fully-sharded", "--use-megatron-fsdp --use-torch-fsdp2", "--use-torch-fsdp2", "exclude each other"),
    (
        "one-bucket-size",
        "--ddp-bucket-size 1000 --ddp-num-buckets 2",
        "--ddp-num-buckets",
        "exclude each other",
    ),
    (
        "rank-order",
        "--use-tp-pp-dp-mapping --num-experts 8 --expert-model-parallel-size 8",
        "--use-tp-pp-dp-mapping",
        "ep x etp = tp x cp",
    ),
    (
        "hierarchical-context",
        "--context-parallel-size 2 --cp-comm-type a2a+p2p",
        "--cp-comm-type",
        "needs --hierarchical",
    ),
    (
        "hierarchical-context",
        "--context-parallel-size 2 --cp-comm-type a2a+p2p --hierarchical-context-parallel-sizes 2 2",
        "--hierarchical",
        "multiply to 4, but cp is 2",
    ),
    (
        "context-per-layer",
        "--context-parallel-size 2 --cp-comm-type p2p p2p",
        "--cp-comm-type",
        "2 kinds of exchange for 32 layers",
    ),
    (
        "unoverlapped-stages",
        "--num-virtual-stages-per-pipeline-rank 2 --no-overlap-p2p-communication",
        "--no-overlap-p2p",
        "at least 3 pipeline stages",
    ),
    (
        "interleave-group",
        "--num-virtual-stages-per-pipeline-rank 2 --microbatch-group-size-per-virtual-pipeline-stage 31",
        "--microbatch-group-size",
        "32 micro-batches cannot run in groups of 31",
    ),
    (
        "gather-with-step",
        "--overlap-grad-reduce --overlap-param-gather --overlap-param-gather-with-optimizer-step",
        "--overlap-param-gather-with",
        "needs virtual stages",
    ),
    ("torch-fsdp2", "--use-torch-fsdp2", "--use-torch-fsdp2", "excludes pipeline stages"),
    ("megatron-fsdp", "--use-megatron-fsdp", "--use-megatron-fsdp", "needs --ckpt-format fsdp_dtensor"),
    (
        "megatron-fsdp",
        "--use-megatron-fsdp --ckpt-format fsdp_dtensor --megatron-fsdp-version 2",
        "--megatron-fsdp-version",
        "excludes --use-distributed-optimizer",
    ),
    (
        "megatron-fsdp",
        "--num-experts 8 --moe-single-grouped-weight --use-megatron-fsdp --ckpt-format fsdp_dtensor",
        "--use-megatron-fsdp",
        "exclude each other",
    ),
    ("learning-rates", "--lr 1e-4 --min-lr 3e-4", "--min-lr", "above --lr"),
    ("weight-decays", "--start-weight-decay 0.1", "--start-weight-decay", "needs --weight-decay-incr-style"),
    (
        "weight-decays",
        "--weight-decay-incr-style linear --start-weight-decay 0.1",
        "--weight-decay-incr-style",
        "needs --end-weight-decay",
    ),
    ("converted-checkpoints", "--ckpt-convert-format torch", "--ckpt-convert-format", "--ckpt-convert-save"),
    (
        "checkpoints-between",
        "--non-persistent-ckpt-type in_memory",
        "--non-persistent",
        "only global and local",
    ),
    ("checkpoints-between", "--non-persistent-ckpt-type local", "--non-persistent", "local-ckpt-dir"),
    (
        "kept-checkpoints",
        "--save /x --save-interval 4 --save-retain-interval 6",
        "--save-retain-interval",
        "6 is no multiple of --save-interval 4",
    ),
    (
        "kept-checkpoints",
        "--overlap-grad-reduce --overlap-param-gather --save /x --save-interval 4 --save-params-interval 2",
        "--save-params-interval",
        "exclude each other",
    ),
    ("loaded-master-weights", "--load-main-params-from-ckpt", "--load-main", "needs --no-load-optim"),
    ("local-attention", "--attention-backend local", "--attention-backend", "needs --spec local"),
    ("warm-up", "--lr 1e-4 --lr-warmup-init 1e-3", "--lr-warmup-init", "is above --lr"),
    ("warm-up", "--train-iters 10 --lr-warmup-iters 10", "--lr-warmup-iters", "not below --train-iters 10"),
    (
        "warm-up",
        "--train-samples 10 --lr-decay-samples 8 --lr-warmup-samples 9",
        "--lr-warmup-samples",
        "not below --lr-decay-samples 8",
    ),
    ("warm-up", "--train-iters 10 --lr-decay-style WSD", "--lr-decay-style", "needs --lr-wsd-decay-iters"),
    (
        "warm-up",
        "--override-opt-param-scheduler --use-checkpoint-opt-param-scheduler",
        "--use-checkpoint",
        "exclude each other",
    ),
    ("gated-activation", "--glu-linear-offset 1", "--glu-linear-offset", "needs --no-bias-swiglu-fusion"),
    ("gated-activation", "--activation-func-clamp-value 0", "--activation-func", "a finite number above 0"),
    ("gated-activation", "--activation-func-clamp-value 7", "--activation-func", "needs --num-experts"),
    (
        "gated-activation",
        "--num-experts 8 --no-bias-swiglu-fusion --activation-func-clamp-value 7 --glu-linear-offset 1",
        "--glu-linear-offset",
        "excludes --activation-func-clamp-value",
    ),
    (
        "weight-decays",
        "--weight-decay-incr-style linear --start-weight-decay 0.2 --end-weight-decay 0.1",
        "--end-weight-decay",
        "is below --start-weight-decay",
    ),
    ("experts-needed", "--overlap-moe-expert-parallel-comm", "--overlap-moe", "needs --num-experts"),
    ("experts-needed", "--moe-ffn-hidden-size 512", "--moe-ffn", "needs --num-experts"),
    ("experts-needed", "--moe-latent-size 512", "--moe-latent", "needs --num-experts"),
    ("experts-needed", "--moe-router-group-topk 2", "--moe-router-group", "needs --moe-router-num-groups"),
    (
        "experts-needed",
        "--moe-router-num-groups 4 --moe-router-group-topk 2",
        "--moe-router-group-topk",
        "needs --num-experts",
    ),
    (
        "experts-needed",
        "--moe-router-enable-expert-bias",
        "--moe-router-enable",
        "needs --moe-router-score-function sigmoid",
    ),
    (
        "balancing-coefficients",
        "--moe-router-load-balancing-type aux_loss seq_aux_loss --moe-aux-loss-coeff 1e-2",
        "--moe-router-load-balancing-type",
        "2 ways to balance need as many of --moe-aux-loss-coeff, found 1",
    ),
    ("batch-invariant", "--batch-invariant-mode", "--batch-invariant", "needs --attention-backend flash"),
    (
        "batch-invariant",
        "--batch-invariant-mode --attention-backend flash",
        "--batch-invariant",
        "needs --flash-attention-version 3 or 4",
    ),
    (
        "batch-invariant",
        "--batch-invariant-mode --attention-backend flash --flash-attention-version 3",
        "--batch-invariant",
        "needs --attention-dropout 0",
    ),
    (
        "batch-invariant",
        "--batch-invariant-mode --attention-backend flash --flash-attention-version 3 --context-parallel-size 2 --attention-dropout 0",
        "--batch-invariant",
        "excludes context parallelism",
    ),
    ("half-cross-entropy", "--fp16-lm-cross-entropy", "--fp16-lm", "needs --fp16"),
    (
        "hierarchical-heads",
        "--context-parallel-size 4 --cp-comm-type a2a+p2p --hierarchical-context-parallel-sizes 4 1 --group-query-attention --num-query-groups 8",
        "--hierarchical",
        "8 heads and 2 key/value heads per rank",
    ),
    (
        "hybrid-context",
        "--context-parallel-size 2 --hybrid-context-parallel",
        "--hybrid-context-parallel",
        "excludes pipeline stages",
    ),
    (
        "layout-alone",
        "--pipeline-model-parallel-layout 'Et*16|t*16L' --account-for-loss-in-pipeline-split",
        "--account-for-loss",
        "exclude each other",
    ),
    (
        "rope-fusion",
        "--multi-latent-attention --rope-type rope --position-embedding-type rope",
        "--rope-type",
        "needs --no-rope-fusion",
    ),
    (
        "messages-at-ends",
        "--overlap-p2p-communication-warmup-flush",
        "--overlap-p2p-communication-warmup",
        "needs virtual stages",
    ),
    (
        "deferred-embedding",
        "--defer-embedding-wgrad-compute --no-gradient-accumulation-fusion",
        "--no-gradient-accumulation-fusion",
        "exclude each other",
    ),
    (
        "gather-with-step",
        "--overlap-grad-reduce --overlap-param-gather --overlap-param-gather-with-optimizer-step --num-virtual-stages-per-pipeline-rank 2",
        "--overlap-param-gather-with",
        "needs --ckpt-format torch",
    ),
    (
        "precision-aware",
        "--optimizer-cpu-offload --use-precision-aware-optimizer --fp8-format hybrid --fp8-recipe blockwise --fp8-param-gather",
        "--fp8-param-gather",
        "only with --fp8-recipe delayed",
    ),
    (
        "delayed-scaling",
        "--fp8-format hybrid --fp8-recipe tensorwise --first-last-layers-bf16 --num-layers-at-start-in-bf16 17",
        "--num-layers-at-start",
        "more than the 16 layers of a stage",
    ),
    (
        "offload-modules",
        "--fine-grained-activation-offloading --offload-modules core_attn --transformer-impl local",
        "--transformer-impl",
        "needs Transformer Engine",
    ),
    (
        "precision-aware",
        "--main-grads-dtype bf16",
        "--main-grads-dtype",
        "needs --use-precision-aware-optimizer",
    ),
    (
        "precision-aware",
        "--optimizer-cpu-offload",
        "--optimizer-cpu-offload",
        "needs --use-precision-aware-optimizer",
    ),
    (
        "precision-aware",
        "--exp-avg-sq-dtype bf16",
        "--exp-avg-sq-dtype",
        "needs --use-precision-aware-optimizer",
    ),
    (
        "precision-aware",
        "--use-precision-aware-optimizer --optimizer sgd",
        "--optimizer",
        "needs --optimizer adam",
    ),
    ("quantized-gather", "--fp8-param-gather", "--fp8-param-gather", "needs --fp8-format"),
    (
        "delayed-scaling",
        "--fp8-format hybrid --recompute-granularity selective --recompute-modules layernorm",
        "--recompute-modules",
        "delayed FP8 scaling excludes",
    ),
    (
        "delayed-scaling",
        "--fp8-format hybrid --first-last-layers-bf16",
        "--first-last-layers-bf16",
        "no first and last layers in BF16",
    ),
    (
        "dispatcher-overlap",
        "--num-experts 8 --moe-shared-expert-intermediate-size 512 --moe-shared-expert-overlap",
        "--moe-shared-expert-overlap",
        "alltoall or flex",
    ),
    (
        "delayed-weight-gradients",
        "--delay-wgrad-compute",
        "--delay-wgrad-compute",
        "needs --overlap-moe-expert",
    ),
    (
        "expert-capacity",
        "--num-experts 8 --moe-pad-expert-input-to-capacity",
        "--moe-pad",
        "needs --moe-expert-capacity",
    ),
    (
        "balancing-coefficients",
        "--num-experts 8 --moe-router-load-balancing-type aux_loss seq_aux_loss --moe-aux-loss-coeff 1e-2",
        "--moe-router-load-balancing-type",
        "2 ways to balance need as many of --moe-aux-loss-coeff, found 1",
    ),
    (
        "expert-capacity",
        "--num-experts 8 --moe-expert-capacity-factor 1.0 --moe-router-load-balancing-type sinkhorn",
        "--moe-expert-capacity-factor",
        "aux_loss",
    ),
    (
        "saved-activations",
        "--distribute-saved-activations",
        "--distribute-saved",
        "needs --recompute-granularity full",
    ),
    (
        "recompute-grouped-experts",
        "--num-experts 8 --recompute-granularity selective --recompute-modules moe_act",
        "--recompute-modules",
        "needs --moe-grouped-gemm",
    ),
    (
        "graph-modules",
        "--cuda-graph-impl transformer_engine --cuda-graph-modules attn moe_preprocess",
        "--cuda-graph-modules",
        "needs that of moe_router",
    ),
    ("graph-modules", "--cuda-graph-impl full_iteration", "--cuda-graph-impl", "--no-check-for-nan"),
    (
        "layer-offload",
        "--cpu-offloading-num-layers 4",
        "--cpu-offloading-num-layers",
        "excludes pipeline stages",
    ),
    (
        "offload-modules",
        "--fine-grained-activation-offloading --offload-modules attn_proj",
        "--offload-modules",
        "needs core_attn",
    ),
    (
        "cross-entropy",
        "--cross-entropy-loss-fusion --cross-entropy-fusion-impl te",
        "--cross-entropy-fusion-impl",
        "expected native",
    ),
];

/// The script with more flags, one per line.
fn with_flags(flags: &str) -> String {
    script(&format!("--swiglu => --swiglu\n    {}", flags.replace(" --", "\n    --")))
}

#[test]
fn flags_that_the_prediction_leaves_out_are_said() {
    for (flags, part) in [
        ("--use-precision-aware-optimizer --main-grads-dtype bf16", "gradients of 32 bits"),
        ("--use-precision-aware-optimizer --main-params-dtype fp16", "master weights of 32 bits"),
        (
            "--use-precision-aware-optimizer --optimizer-cpu-offload --optimizer-offload-fraction 0.25",
            "all of the optimizer offloaded",
        ),
        ("--use-checkpoint-args", "predicted as the flags say"),
        ("--no-bias-swiglu-fusion", "with the fused activation"),
        ("--no-rope-fusion", "fused rotary positions"),
        ("--no-gradient-accumulation-fusion", "added inside of the products"),
        ("--log-params-norm", "is not predicted"),
        ("--profile", "what profiling costs"),
        ("--reset-attention-mask --reset-position-ids", "predicted over whole sequences"),
        ("--dataloader-inter-document-masking", "predicted over whole sequences"),
        ("--recompute-num-layers 4", "--recompute-num-layers changes nothing"),
        ("--recompute-modules core_attn", "--recompute-modules changes nothing"),
        ("--swiglu", "no --cross-entropy-loss-fusion: the loss keeps more copies"),
        ("--fp8-format hybrid", "--fp8-recipe delayed, as is usual: predicted as tensorwise"),
        ("--fp8-format hybrid --fp8-recipe delayed", "--fp8-recipe delayed: predicted as tensorwise"),
        (
            "--fp8-format hybrid --fp8-recipe tensorwise --first-last-layers-bf16",
            "--first-last-layers-bf16: predicted with all layers in low precision",
        ),
        (
            "--rampup-batch-size 64 64 1000",
            "--rampup-batch-size: the plan is that of the full batch; Megatron-LM of August 2026 ignores",
        ),
    ] {
        let imported =
            import(&with_flags(flags), "x", None).unwrap_or_else(|error| panic!("{flags}: {error}"));
        assert!(imported.assumed.iter().any(|note| note.contains(part)), "{flags}: {:?}", imported.assumed);
    }
    let full = "--recompute-granularity full\n--recompute-method uniform\n--recompute-num-layers 1";
    let kept = format!("--sequence-parallel => {full}\n--distribute-saved-activations");
    let notes = import(&script(&kept), "x", None).unwrap().assumed;
    assert!(notes.iter().any(|n| n.contains("whole on every tensor-parallel rank")), "{notes:?}");
    let plain = import(&with_flags("--cross-entropy-loss-fusion --reset-position-ids"), "x", None).unwrap();
    assert!(
        !plain.assumed.iter().any(|n| n.contains("entropy") || n.contains("--reset")),
        "{:?}",
        plain.assumed
    );
    let imported = import(&with_flags("--mtp-num-layers 0"), "x", None).unwrap();
    assert_eq!(imported.model.mtp, None);
}

/// Graphs by the switches of earlier versions, and batches of a schedule.
#[test]
fn earlier_and_other_ways_to_say_it_are_read() {
    for (flags, graphs) in [
        ("--enable-cuda-graph --cuda-graph-modules attn", CudaGraphs::Attention),
        ("--external-cuda-graph --cuda-graph-scope attn", CudaGraphs::Attention),
        ("--cuda-graph-impl none --enable-cuda-graph --cuda-graph-scope attn", CudaGraphs::Attention),
        (
            "--enable-cuda-graph --cuda-graph-scope full_iteration --no-check-for-nan-in-loss-and-grad",
            CudaGraphs::FullIteration,
        ),
    ] {
        let read = import(&with_flags(flags), "x", None).unwrap_or_else(|error| panic!("{flags}: {error}"));
        assert_eq!(read.plan.layout().cuda_graphs, graphs, "{flags}");
    }
    let error = import(&with_flags("--cuda-graph-scope attn --cuda-graph-modules attn"), "x", None);
    assert!(error.unwrap_err().message.contains("are one flag"));
    let batch = |schedule: &str| {
        let schedule = format!("--global-batch-size 256 => --step-batch-size-schedule \"{schedule}\"");
        import(&script(&schedule), "x", None)
    };
    for (schedule, expected) in
        [("0:64 100B:768", 768), ("100B:768, 0:64", 768), ("0:1K", 1000), ("0:64 1.5M:6_4", 64)]
    {
        let read = batch(schedule).unwrap_or_else(|error| panic!("{schedule}: {error}"));
        assert_eq!(read.job.global_batch_size, expected, "{schedule}");
        let note = format!("--step-batch-size-schedule: the plan is that of the full batch, {expected}");
        assert!(read.assumed.contains(&note), "{:?}", read.assumed);
    }
    for (schedule, part) in [
        ("0:64 100B:770", "is no multiple of micro-batch 1"),
        ("0:64 100B", "expected THRESHOLD:BATCH"),
        ("0:64 1B:0", "expected THRESHOLD:BATCH"),
        ("0:64 1G:128", "expected THRESHOLD:BATCH"),
        ("1M:64", "first threshold must be 0"),
        ("0:64 100:128", "must grow by whole sequences of 4096"),
        ("", "no steps"),
    ] {
        let error = batch(schedule).expect_err(schedule);
        assert!(error.message.contains(part), "{schedule}: {error}");
    }
}

#[test]
fn numbers_beyond_reason_are_refused() {
    for (change, part) in [
        ("--micro-batch-size 1 => --micro-batch-size 2147483648", "out of range"),
        (
            "--tensor-model-parallel-size 4 => --tensor-model-parallel-size 2147483648 \
             --context-parallel-size 2147483648",
            "do not divide",
        ),
    ] {
        let error = import(&script(change), "x", None).expect_err(change);
        assert!(error.message.contains(part), "{error}");
    }
}

#[test]
fn every_rule_between_flags_refuses_what_it_says() {
    for &(rule, flags, flag, part) in BROKEN_FLAGS {
        let text = with_flags(flags);
        let error = import(&text, "x", None).expect_err(rule);
        let source = FLAG_RULES.iter().find(|r| r.name == rule).map(|r| r.source).expect(rule);
        assert!(error.message.contains(part) && error.message.contains(source), "{rule}: {error}");
        let line = text.lines().nth(error.line - 1).unwrap();
        assert!(line.contains(flag), "{rule}: line {} `{line}`: {error}", error.line);
    }
    for rule in FLAG_RULES {
        let flags = BROKEN_FLAGS.iter().any(|case| case.0 == rule.name);
        let environment = BROKEN_ENVIRONMENTS.iter().any(|case| case.0 == rule.name);
        assert!(flags || environment, "nothing breaks the rule {}", rule.name);
    }
}

/// Changes of a script (`FROM => TO; …`) that break one rule each which is asked while it is read, and what is said of it.
const BROKEN_READS: &[(ReadRule, &str, &str)] = &[
    (
        ReadRule::Ranks,
        "--tensor-model-parallel-size 4 => --tensor-model-parallel-size 3",
        "64 ranks do not divide by",
    ),
    (
        ReadRule::Batch,
        "--global-batch-size 256 => --global-batch-size 255",
        "the global batch 255 is no multiple",
    ),
    (
        ReadRule::Positions,
        "--max-position-embeddings 4096 => --max-position-embeddings 2048",
        "--max-position-embeddings 2048 is less than --seq-length 4096",
    ),
    (ReadRule::Activations, "--swiglu => --swiglu --quick-geglu", "--swiglu excludes --quick-geglu"),
    (ReadRule::Activations, "--swiglu => --swiglu --squared-relu", "--squared-relu excludes --swiglu"),
    (
        ReadRule::HeadSize,
        "--num-attention-heads 32 => --num-attention-heads 36",
        "does not divide among 36 heads",
    ),
    (
        ReadRule::LatentGroups,
        "--swiglu => --swiglu --multi-latent-attention --group-query-attention --num-query-groups 8",
        "--group-query-attention excludes --multi-latent-attention",
    ),
    (
        ReadRule::PredictedTokens,
        "--swiglu => --swiglu --mtp-num-layers 1",
        "needs --position-embedding-type rope or none",
    ),
    (
        ReadRule::RopeType,
        "--swiglu => --swiglu --position-embedding-type rope --rope-type yarn",
        "needs --multi-latent-attention",
    ),
    (ReadRule::Halves, "--bf16 => --bf16 --fp16", "exclude each other"),
    (ReadRule::LowPrecisions, "--bf16 => --bf16 --fp8-format hybrid --fp4-format e2m1", "exclude each other"),
    (ReadRule::Experts, "--swiglu => --swiglu --expert-model-parallel-size 2", "needs --num-experts"),
    (
        ReadRule::RouterGroups,
        "--swiglu => --swiglu --num-experts 8 --moe-router-num-groups 3 --moe-router-group-topk 1",
        "8 experts do not divide into these groups",
    ),
    (
        ReadRule::RouterGroups,
        "--swiglu => --swiglu --num-experts 8 --moe-router-num-groups 4 --moe-router-group-topk 5",
        "more groups are chosen than there are",
    ),
    (
        ReadRule::RouterBias,
        "--swiglu => --swiglu --num-experts 8 --moe-router-enable-expert-bias",
        "an expert bias needs --moe-router-score-function sigmoid",
    ),
    (
        ReadRule::RouterTopOne,
        "--swiglu => --swiglu --num-experts 8 --moe-router-topk 1",
        "one expert per token with softmax needs --moe-router-pre-softmax",
    ),
    (
        ReadRule::RouterTopOne,
        "--swiglu => --swiglu --num-experts 8 --moe-router-topk 1 --moe-router-load-balancing-type sinkhorn aux_loss \
         --moe-aux-loss-coeff 1 1",
        "one expert per token with softmax needs --moe-router-pre-softmax",
    ),
    (
        ReadRule::RouterTop,
        "--swiglu => --swiglu --num-experts 8 --moe-router-topk 0",
        "0 of 8 experts cannot be chosen",
    ),
    (
        ReadRule::RouterTop,
        "--swiglu => --swiglu --num-experts 8 --moe-router-topk 9",
        "9 of 8 experts cannot be chosen",
    ),
    (
        ReadRule::Instances,
        "--swiglu => --swiglu --num-distributed-optimizer-instances 3",
        "8 ranks do not divide among 3 optimizer instances",
    ),
    (ReadRule::Gathers, "--swiglu => --swiglu --overlap-param-gather", "needs --overlap-grad-reduce"),
    (
        ReadRule::Gathers,
        "--use-distributed-optimizer => --overlap-param-gather --overlap-grad-reduce",
        "and the distributed optimizer",
    ),
    (
        ReadRule::TensorOverlap,
        "--sequence-parallel => --tp-comm-overlap",
        "--tp-comm-overlap needs --sequence-parallel",
    ),
    (
        ReadRule::VirtualStages,
        "--swiglu => --swiglu --num-layers-per-virtual-pipeline-stage 8 --num-virtual-stages-per-pipeline-rank 2",
        "virtual stages are said in more than one way",
    ),
    (
        ReadRule::VirtualNeedsStages,
        "--pipeline-model-parallel-size 2 => --num-virtual-stages-per-pipeline-rank 2",
        "virtual stages need at least 2 pipeline stages",
    ),
    (
        ReadRule::Ends,
        "--swiglu => --swiglu --decoder-first-pipeline-num-layers 15 --account-for-loss-in-pipeline-split",
        "first and last stage counts exclude every other way",
    ),
    (
        ReadRule::Ends,
        "--swiglu => --swiglu --decoder-last-pipeline-num-layers 15 --num-layers-per-virtual-pipeline-stage 5",
        "first and last stage counts exclude every other way",
    ),
    (ReadRule::Layers, "--num-layers 32 => --num-layers 33", "33 layers do not divide among 2 stages"),
    (ReadRule::Layers, "--swiglu => --swiglu --account-for-loss-in-pipeline-split", "33 layers"),
    (
        ReadRule::Layers,
        "--swiglu => --swiglu --num-layers-per-virtual-pipeline-stage 5",
        "32 layers do not divide into 2 stages of chunks of 5",
    ),
    (ReadRule::Layers, "--swiglu => --swiglu --num-virtual-stages-per-pipeline-rank 3", "do not divide"),
    (
        ReadRule::LayoutString,
        "--swiglu => --swiglu --position-embedding-type rope --pipeline-model-parallel-layout 'Et*15|t*16L'",
        "31",
    ),
    (
        ReadRule::LayoutString,
        "--swiglu => --swiglu --position-embedding-type rope --pipeline-model-parallel-layout 'Et*10|t*11|t*11L'",
        "3 stages",
    ),
    (
        ReadRule::LayoutString,
        "--swiglu => --swiglu --position-embedding-type rope --pipeline-model-parallel-layout 't*16|Et*16L'",
        "E",
    ),
    (
        ReadRule::FullRecomputation,
        "--swiglu => --swiglu --recompute-granularity full --recompute-num-layers 1",
        "full recomputation needs --recompute-method and --recompute-num-layers",
    ),
    (
        ReadRule::FullRecomputation,
        "--swiglu => --swiglu --recompute-granularity full --recompute-method uniform",
        "full recomputation needs --recompute-method and --recompute-num-layers",
    ),
    (
        ReadRule::SelectiveRecomputation,
        "--swiglu => --swiglu --recompute-granularity selective --recompute-method uniform",
        "selective recomputation takes neither",
    ),
    (
        ReadRule::BatchSchedule,
        "--global-batch-size 256 => --step-batch-size-schedule '10B:64 1B:128'",
        "the first threshold must be 0",
    ),
    (
        ReadRule::OneName,
        "--num-layers 32 => --num-layers 32 --encoder-num-layers 32",
        "are one flag: the command has both",
    ),
    (
        ReadRule::Vocabulary,
        "--vocab-size 32000 => --tokenizer-type NullTokenizer",
        "--tokenizer-type NullTokenizer needs --vocab-size",
    ),
    (
        ReadRule::Withdrawn,
        "--swiglu => --swiglu --checkpoint-activations",
        "today it is --recompute-activations",
    ),
    (ReadRule::Withdrawn, "--micro-batch-size => --batch-size", "today it is --micro-batch-size"),
    (
        ReadRule::Withdrawn,
        "--tensor-model-parallel-size => --model-parallel-size",
        "today it is --tensor-model-parallel-size",
    ),
    (ReadRule::Withdrawn, "--swiglu => --swiglu --warmup 0.01", "today it is --lr-warmup-fraction"),
];

#[test]
fn every_rule_asked_while_reading_refuses_what_it_says() {
    for &(rule, change, part) in BROKEN_READS {
        let error = import(&script(change), "x", None).expect_err(change);
        let message = &error.message;
        assert!(
            message.contains(part) && message.ends_with(&format!("({})", rule.source())),
            "{change}: {error}"
        );
    }
    for rule in ReadRule::ALL {
        assert!(BROKEN_READS.iter().any(|case| case.0 == *rule), "nothing breaks the rule {}", rule.name());
    }
}

/// Variables and flags that break one rule together on a Hopper cluster, the flag that is pointed at, and what is
/// said of it.
const BROKEN_ENVIRONMENTS: &[(&str, &str, &str, &str, &str)] = &[
    (
        "connections",
        "",
        "",
        "--tensor-model-parallel-size",
        "the script does not export it (where the surroundings do: -- CUDA_DEVICE_MAX_CONNECTIONS=1)",
    ),
    ("connections", "CUDA_DEVICE_MAX_CONNECTIONS=8", "", "--tensor-model", "the script sets it to 8"),
    (
        "stage-messages",
        "CUDA_DEVICE_MAX_CONNECTIONS=1",
        "--swiglu => --swiglu\n--pipeline-model-parallel-comm-backend ucc",
        "--pipeline-model-parallel-comm",
        "above 1, or not set",
    ),
    (
        "delayed-weight-gradients",
        "CUDA_DEVICE_MAX_CONNECTIONS=32 NVTE_CPU_OFFLOAD_V1=1",
        "--swiglu => --swiglu\n--num-experts 8\n--moe-token-dispatcher-type alltoall\n--expert-model-parallel-size 8\n\
         --num-virtual-stages-per-pipeline-rank 2\n--overlap-moe-expert-parallel-comm\n--delay-wgrad-compute\n\
         --transformer-impl local",
        "--transformer-impl",
        "needs Transformer Engine",
    ),
    (
        "activation-fusion",
        "CUDA_DEVICE_MAX_CONNECTIONS=1",
        "--swiglu => --squared-relu;--disable-bias-linear => ",
        "--squared-relu",
        "needs --disable-bias-linear",
    ),
    (
        "hybrid-stages",
        "CUDA_DEVICE_MAX_CONNECTIONS=1",
        "--num-layers 32 => --hybrid-layer-pattern M-M*M-M-\n--account-for-loss-in-pipeline-split;--swiglu => ",
        "--account-for-loss",
        "beside --hybrid-layer-pattern",
    ),
    (
        "hybrid-stages",
        "CUDA_DEVICE_MAX_CONNECTIONS=1",
        "--num-layers 32 => --hybrid-layer-pattern 'M-M*|M-M-'\n--decoder-last-pipeline-num-layers 4;--swiglu => ",
        "--decoder-last",
        "where --hybrid-layer-pattern",
    ),
    (
        "torch-fsdp2",
        "CUDA_DEVICE_MAX_CONNECTIONS=1",
        "--tensor-model-parallel-size 4 => ;--sequence-parallel => ;--pipeline-model-parallel-size 2 => ;\
         --use-distributed-optimizer => --use-torch-fsdp2\n--no-gradient-accumulation-fusion\n--untie-embeddings-and-output-weights",
        "--use-torch-fsdp2",
        "above 1, or not set",
    ),
    (
        "torch-fsdp2",
        "",
        "--tensor-model-parallel-size 4 => ;--sequence-parallel => ;--pipeline-model-parallel-size 2 => ;\
         --use-distributed-optimizer => --use-torch-fsdp2\n--no-gradient-accumulation-fusion\n--untie-embeddings-and-output-weights\n--ckpt-format torch",
        "--ckpt-format",
        "torch_dist or torch_dcp",
    ),
    (
        "megatron-fsdp",
        "CUDA_DEVICE_MAX_CONNECTIONS=1",
        "--swiglu => --swiglu\n--use-megatron-fsdp",
        "--use-megatron-fsdp",
        "above 1, or not set",
    ),
    (
        "graph-modules",
        "CUDA_DEVICE_MAX_CONNECTIONS=1 PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        "--swiglu => --swiglu\n--cuda-graph-impl transformer_engine\n--cuda-graph-modules attn",
        "--cuda-graph-impl",
        "NCCL_GRAPH_REGISTER=0",
    ),
    (
        "offload-modules",
        "CUDA_DEVICE_MAX_CONNECTIONS=1",
        "--swiglu => --swiglu\n--fine-grained-activation-offloading\n--offload-modules core_attn",
        "--fine-grained",
        "NVTE_CPU_OFFLOAD_V1=1",
    ),
];

/// The changed script after exports of these variables.
fn with_environment(variables: &str, change: &str) -> String {
    let exports: String = variables.split_whitespace().map(|v| format!("export {v}\n")).collect();
    exports + &script(change)
}

#[test]
fn variables_are_part_of_a_launch() {
    let on = |text: &str, architecture| {
        import_given(text, Given { name: "x", gpus: None, architecture, ..Given::default() })
    };
    let hopper = Some(Architecture::Hopper);
    for &(rule, variables, change, flag, part) in BROKEN_ENVIRONMENTS {
        let text = with_environment(variables, change);
        let error = on(&text, hopper).expect_err(rule);
        let source = FLAG_RULES.iter().find(|r| r.name == rule).map(|r| r.source).expect(rule);
        assert!(error.message.contains(part) && error.message.contains(source), "{rule}: {error}");
        let line = text.lines().nth(error.line - 1).unwrap();
        assert!(line.contains(flag), "{rule}: line {} `{line}`: {error}", error.line);
    }
    let said =
        |imported: &Imported| imported.assumed.iter().any(|n| n.contains("CUDA_DEVICE_MAX_CONNECTIONS"));
    let (right, none) = (with_environment("CUDA_DEVICE_MAX_CONNECTIONS=1", ""), script(""));
    assert!(!said(&on(&right, hopper).unwrap()));
    assert!(!said(&on(&none, Some(Architecture::Blackwell)).unwrap()));
    // Where the GPUs are not known, or there is no script that could set a variable, it is a note.
    assert!(said(&on(&none, None).unwrap()) && !said(&on(&right, None).unwrap()));
    let arguments = serde_json::to_string(&COMMAND.split(' ').collect::<Vec<_>>()).unwrap();
    let given = Given { name: "x", gpus: Some(64), architecture: hopper, ..Given::default() };
    assert!(said(&import_given(&arguments, given).unwrap()));
    // A value that only the running shell knows may be right.
    on(&with_environment("CUDA_DEVICE_MAX_CONNECTIONS=$(connections)", ""), hopper).unwrap();
    // Expert overlap and FSDP want more connections: the framework warns.
    let change = "--swiglu => --swiglu\n--use-megatron-fsdp\n--ckpt-format fsdp_dtensor";
    assert!(said(&on(&script(change), hopper).unwrap()));
}

/// Writes these scripts for the validator; see docs/exports.md.
#[test]
#[ignore = "writes files for validators that are not part of this repository"]
fn write_flag_cases() {
    let folder = std::env::var("AUTOPLAN_CASES").expect("AUTOPLAN_CASES names a folder");
    let folder = std::path::Path::new(&folder).join("flags");
    std::fs::create_dir_all(&folder).unwrap();
    let of_flags = BROKEN_FLAGS.iter().map(|&(rule, flags, ..)| {
        // Nothing else is wrong with them.
        let connections = if flags.contains("fsdp") {
            ""
        } else {
            "export CUDA_DEVICE_MAX_CONNECTIONS=1 NVTE_CPU_OFFLOAD_V1=1\n"
        };
        (rule, format!("{connections}{}", with_flags(flags)))
    });
    let environments = BROKEN_ENVIRONMENTS;
    let of_variables = environments.iter().map(|&(rule, v, change, ..)| (rule, with_environment(v, change)));
    let of_reads = BROKEN_READS.iter().map(|&(rule, change, _)| {
        (rule.name(), format!("export CUDA_DEVICE_MAX_CONNECTIONS=1\n{}", script(change)))
    });
    for (at, (rule, text)) in of_flags.chain(of_variables).chain(of_reads).enumerate() {
        let dry = "--tokenizer-type NullTokenizer --mock-data --lr 1e-4 --train-iters 10";
        let dry =
            if text.contains("--train-iters") { "--tokenizer-type NullTokenizer --mock-data" } else { dry };
        std::fs::write(
            folder.join(format!("{at:02}-{rule}.sh")),
            text.replace("--swiglu", &format!("--swiglu\n{dry}")),
        )
        .unwrap();
    }
}

#[test]
fn what_the_framework_refuses_is_refused_at_its_flag() {
    import(&script(""), "x", None).unwrap();
    for (change, flag, part) in [
        (
            "parallel-size 4 => parallel-size 8;--num-attention-heads 32 => --num-attention-heads 36 --kv-channels 128",
            "--tensor-model",
            "36 heads",
        ),
        (
            "--seq-length 4096 => --seq-length 4098;--max-position-embeddings 4096 => --max-position-embeddings 5000",
            "--tensor-model",
            "do not divide among tp 4",
        ),
        (
            "--max-position-embeddings 4096 => --max-position-embeddings 2048",
            "--max-position",
            "less than --seq-length",
        ),
        (
            "--pipeline-model-parallel-size 2 => --pipeline-model-parallel-size 8\n    --num-virtual-stages-per-pipeline-rank 2;--global-batch-size 256 => --global-batch-size 8",
            "--global-batch-size",
            "at least 8 micro-batches",
        ),
        (
            "--swiglu => --swiglu\n    --num-experts 6\n    --expert-model-parallel-size 4",
            "--expert-model",
            "6 experts do not divide",
        ),
        ("--sequence-parallel\n => \n    --num-experts 8\n", "--tensor-model", "needs sequence parallelism"),
        ("--bf16 => --bf16\n    --fp16", "", "exclude each other"),
        ("--swiglu => --swiglu\n    --use-megatron-fsdp\n    --optimizer muon", "--optimizer", "no Muon"),
        (
            "--swiglu => --swiglu\n    --recompute-granularity full\n    --recompute-method block\n    --recompute-num-layers 1\n    --cuda-graph-impl transformer_engine\n    --cuda-graph-modules attn",
            "--cuda-graph-impl",
            "graph of the whole iteration",
        ),
        (
            "--swiglu => --swiglu\n    --recompute-granularity selective\n    --recompute-modules mla_up_proj",
            "--recompute-modules",
            "latent attention",
        ),
        ("--num-layers 32 => --num-layers 33", "--pipeline-model", "do not divide"),
        (
            "--hidden-size 4096 => --hidden-size 4100",
            "--num-attention-heads",
            "does not divide among 32 heads",
        ),
        ("--micro-batch-size 1 => --micro-batch-size 3", "--global-batch-size", "no multiple"),
    ] {
        let text = script(change);
        let error = import(&text, "x", None).expect_err(part);
        let line = text.lines().nth(error.line - 1).unwrap();
        assert!(error.message.contains(part), "{part}: {error}");
        assert!(line.contains(flag), "{part}: line {} `{line}`: {error}", error.line);
    }
}

#[test]
fn names_in_a_script_stay_names() {
    // Nothing in a script is run, whatever it holds.
    let nasty = "N='$(touch injected)'\nM=`touch injected`\nP=$(injected; echo 8)\neval \"touch injected\"\n";
    let script = format!(
        "{nasty}torchrun --nnodes 8 --nproc-per-node 8 pretrain_gpt.py {COMMAND} --save \"$N\" --save-interval 9 --load $M\n"
    );
    let imported = import(&script, "a $(touch injected)\n`x` 'é'", None).unwrap();
    assert_eq!(imported.model.name, "a $(touch injected)\n`x` 'é'");
    assert!(!std::path::Path::new("injected").exists());
    let unknown = script.replace("parallel-size 4", "parallel-size $P");
    let error = import(&unknown, "x", None).unwrap_err();
    assert!(error.message.contains("known only when the script runs"), "{error}");
}

#[test]
fn scripts_of_refused_plans_are_refused_at_a_flag() {
    let models = models();
    let mut random = Random::new(23);
    let mut refused = std::collections::BTreeMap::new();
    let mut accepted = 0;
    for _ in 0..60_000 {
        let wild = Wild { degrees: 20, switches: 30 };
        let Some(question) = question(&mut random, Target::Megatron, &models, wild) else { continue };
        let verdict = legal_plan(Target::Megatron, &question.context(), &question.plan);
        let rule = match &verdict {
            Ok(()) => "",
            Err(refusal) if refusal.judge == Judge::SetUp => refusal.rule,
            Err(_) => continue,
        };
        let done = refused.entry(rule).or_insert(0);
        *done += 1;
        if *done > 60 {
            continue;
        }
        let to = Destination::Framework(Target::Megatron);
        let Ok(files) = write(to, &question.request(Format::Script)) else { continue };
        match import(&files[0].text, &question.model.name, None) {
            Ok(imported) if rule.is_empty() => {
                assert_eq!(shown(question.plan.layout()), shown(imported.plan.layout()));
                accepted += 1;
            }
            Ok(_) => panic!("{rule}: {} is read back as if it were legal", question.plan),
            Err(error) => {
                assert!(!rule.is_empty(), "{error}\n{}", files[0].text);
                let line = files[0].text.lines().nth(error.line - 1).unwrap();
                assert!(line.contains("--"), "{rule}: line {} `{line}`: {error}", error.line);
            }
        }
    }
    assert!(accepted > 30 && refused.len() > 14, "{accepted} accepted; {refused:?}");
}

/// Scripts that leave everything to what they are started with.
#[test]
fn a_script_is_read_with_its_own_variables_and_arguments() {
    let script = format!(
        "ENV=$1\nif [ $ENV = dlc ]; then\n  NNODES=${{WORLD_SIZE}}\n  GPUS=${{KUBERNETES_GPUS}}\nfi\nMICRO=$2\nshift 2\n\
         run_cmd=\"torchrun --nproc_per_node $GPUS --nnodes $NNODES pretrain_gpt.py {} \n$@\"\neval ${{run_cmd}}\n",
        COMMAND.replace("--micro-batch-size 1", "--micro-batch-size ${MICRO}")
    );
    let read = |words: &[&str]| {
        let words: Vec<String> = words.iter().map(|&word| word.to_owned()).collect();
        import_given(&script, Given { name: "x", words: &words, ..Given::default() })
    };
    let words = ["WORLD_SIZE=2", "KUBERNETES_GPUS=8", "dlc", "4", "--wandb-exp-name", "A=1"];
    let Imported { plan, job, unknown, .. } = read(&words).unwrap();
    assert_eq!((job.gpus, plan.layout().micro_batch_size, plan.layout().data_parallel), (16, 4, 2));
    assert_eq!(unknown, []);
    // What is evaluated stands where it is.
    let error = read(&[]).unwrap_err();
    assert_eq!(error.line, 10, "{error}");
    assert!(error.message.contains("--nproc_per_node has no value"), "{error}");
    let error = read(&["dlc=1", "x"]).unwrap_err();
    assert!(error.message.contains("has no value"), "{error}");
    let list = r#"["--num-layers", "2"]"#;
    let words = ["dlc".to_owned()];
    let error = import_given(list, Given { name: "x", words: &words, ..Given::default() }).unwrap_err();
    assert!(error.message.contains("a list of arguments is no script"), "{error}");
}

#[test]
fn what_the_parser_refuses_is_refused() {
    for (change, part) in [
        ("--sequence-parallel => --sequence-parallel false", "takes no value, found `false`"),
        ("--swiglu => --swiglu -tensor-model-parallel-size 8", "flags begin with `--`"),
        ("--bf16 => --fp16 --fp8-format hybrid", "beside --bf16 alone"),
        ("--bf16 => --bf16 --fp8-format e3m4", "--fp8-format is `e3m4`; expected one of e4m3, hybrid"),
        ("--swiglu => --swiglu --lr 1e-4x", "--lr takes a number, found `1e-4x`"),
        ("--swiglu => --swiglu --train-iters 1e6", "--train-iters takes a whole number, found `1e6`"),
        ("--swiglu => --swiglu --seed 1 2", "--seed takes one value, found `1 2`"),
        ("--swiglu => --swiglu --load a b", "--load takes one value, found `a b`"),
        ("--swiglu => --swiglu --rotary-base 1e6", "--rotary-base takes a whole number, found `1e6`"),
        ("--swiglu => --swiglu --profile-ranks 0 x", "--profile-ranks takes whole numbers, found `x`"),
        ("--swiglu => --swiglu --profile-ranks 0,1", "--profile-ranks takes whole numbers, found `0,1`"),
        ("--swiglu => --swiglu --moe-aux-loss-coeff 0 y", "--moe-aux-loss-coeff takes numbers, found `y`"),
        (
            "--swiglu => --swiglu --hierarchical-context-parallel-sizes 2 two",
            "--hierarchical-context-parallel-sizes takes whole numbers, found `two`",
        ),
        ("--swiglu => --swiglu --exit-signal 15", "--exit-signal is `15`; expected one of SIGABRT, "),
        ("--swiglu => --swiglu --exit-signal sigterm", "SIGXFSZ: did you mean SIGTERM?"),
        (
            "--swiglu => --swiglu --recompute-granularity selective --recompute-modules mlp core_atn",
            "--recompute-modules is `core_atn`; expected one of core_attn, layernorm, mla_up_proj, moe_act, mlp, moe, \
             shared_experts: did you mean core_attn?",
        ),
        (
            "--swiglu => --swiglu --recompute-granularity selectiv",
            "--recompute-granularity is `selectiv`; expected one of full, selective: did you mean selective?",
        ),
        ("--swiglu => --swiglu --timing-log-level 3", "--timing-log-level is `3`; expected one of 0, 1, 2"),
        ("--swiglu => --offload-modules --swiglu", "--offload-modules has no value"),
        (
            "--swiglu => --swiglu --rotary-seq-len-interpolation-factor 1.5",
            "--rotary-seq-len-interpolation-factor takes a whole number, found `1.5`",
        ),
        (
            "--swiglu => --swiglu --cuda-graph-impl local --cuda-graph-modules attention",
            "--cuda-graph-modules is `attention`; expected one of attn, mlp, ",
        ),
        ("--swiglu => --swiglu --exit-signal-handler SIGTERM", "takes no value, found `SIGTERM`"),
        (
            "--swiglu => --swiglu --tokenizer-type HuggingFace",
            "--tokenizer-type is `HuggingFace`; expected one of BertWordPieceLowerCase, ",
        ),
        ("--swiglu => --swiglu --tokenizer-type LlamaTokenizer", "did you mean Llama2Tokenizer?"),
        (
            "--swiglu => --swiglu --moe-router-load-balancing-type aux_loss seq_aux",
            "--moe-router-load-balancing-type is `seq_aux`; expected one of aux_loss, seq_aux_loss, global_aux_loss, \
             sinkhorn, quantile_balancing, none: did you mean seq_aux_loss?",
        ),
        (
            "--swiglu => --swiglu --ckpt-format torch-dist",
            "expected one of torch, torch_dist, torch_dcp, fsdp_dtensor: did you mean torch_dist?",
        ),
        (
            "--tensor-model-parallel-size => --model-parallel-size",
            "Megatron-LM refuses --model-parallel-size: today it is --tensor-model-parallel-size",
        ),
        (
            "--swiglu => --swiglu --checkpoint-activations",
            "refuses --checkpoint-activations: today it is --recompute-activations, or --recompute-granularity",
        ),
        ("--micro-batch-size => --batch-size", "refuses --batch-size: today it is --micro-batch-size"),
        ("--swiglu => --swiglu --warmup 0.1", "refuses --warmup: today it is --lr-warmup-fraction"),
        ("--swiglu => --swiglu --train-iters 1__0", "--train-iters takes a whole number, found `1__0`"),
        ("--swiglu => --swiglu --lr _1e-4", "--lr takes a number, found `_1e-4`"),
        ("--swiglu => --swiglu --mock-data yes", "--mock-data takes no value, found `yes`"),
        ("--swiglu => --seed --swiglu", "--seed has no value"),
        ("--swiglu => --swiglu --seed x --seed 1", "--seed takes a whole number, found `x`"),
        (
            "--hidden-size => --hidden-size abc --hidden-size",
            "--hidden-size takes a whole number, found `abc`",
        ),
        ("--hidden-size => --hidden-size --hidden-size", "--hidden-size has no value"),
        ("--swiglu => --swiglu --adam-beta1 7", "--adam-beta1 takes a number from 0 to below 1, found `7`"),
        ("--swiglu => --swiglu --hidden-dropout 1.5", "takes a number from 0 to 1, found `1.5`"),
        ("--swiglu => --swiglu --log-interval 0", "takes a number other than 0, found `0`"),
        ("--bf16 => --fp16 --hysteresis 0", "takes a number above 0, found `0`"),
        ("--swiglu => --swiglu --ddp-num-buckets 0", "takes a number above 0, found `0`"),
        ("--swiglu => --swiglu --num-workers -1", "takes a number of 0 or more, found `-1`"),
        ("--swiglu => --swiglu --weight-decay nan", "takes a number of 0 or more, found `nan`"),
        (
            "--swiglu => --swiglu --experimental-attention-variant dsa",
            "attention of other kinds is not modelled",
        ),
        (
            "--swiglu => --swiglu --tensor-parallel-num-weight-shards 8",
            "more shards than tensor-parallel ranks",
        ),
        (
            "--swiglu => --swiglu\n--num-experts 8\n--moe-token-dispatcher-type flex\n--moe-flex-dispatcher-backend ncclep",
            "not modelled",
        ),
    ] {
        let error = import(&script(change), "x", None).expect_err(part);
        assert!(error.message.contains(part), "{part}: {error}");
    }
    // Of an earlier version or of a fork, as another flag shows.
    for (change, parts) in [
        (
            "--tensor-model-parallel-size => --model-parallel-size;--use-distributed-optimizer => --deepspeed --zero-stage 1",
            &[
                "--model-parallel-size is read as --tensor-model-parallel-size: Megatron-DeepSpeed of today refuses",
            ][..],
        ),
        (
            "--micro-batch-size => --DDP-impl local --checkpoint-activations --batch-size",
            &[
                "flags that Megatron-LM of today refuses are read as those of an earlier version or of a fork",
                "--DDP-impl (line ",
                "--checkpoint-activations (line ",
                ", today --micro-batch-size)",
            ][..],
        ),
        (
            "--swiglu => --swiglu --layernorm-epsilon 1e-6",
            &["--layernorm-epsilon (line ", ", today --norm-epsilon)"],
        ),
        (
            "--swiglu => --swiglu --tokenizer-type PretrainedFromHF --tokenizer-name-or-path x",
            &["--tokenizer-type PretrainedFromHF is read as of an earlier version or of a fork"],
        ),
    ] {
        let notes =
            import(&script(change), "x", None).unwrap_or_else(|error| panic!("{change}: {error}")).assumed;
        let told = |part: &&str| notes.iter().any(|note| note.contains(*part));
        assert!(parts.iter().all(told), "{change}: {notes:?}");
    }
    // Cut off behind a flag, however little it matters.
    let cut = format!(
        "torchrun --nnodes 8 --nproc-per-node 8 pretrain_gpt.py {COMMAND} \\\n  --seed 1 \\\n  --lr\n"
    );
    let error = import(&cut, "x", None).unwrap_err();
    assert!(
        error.message.contains("--lr has no value") && error.line == 3 + COMMAND.matches('\n').count(),
        "{error}"
    );
    // Names are often left to be filled in, and what is handed to the script is not known.
    let open = import(&script("--swiglu => --tokenizer-model --seed $1 --swiglu"), "x", None).unwrap();
    assert!(
        open.assumed.iter().any(|note| note.contains("--tokenizer-model has no value")),
        "{:?}",
        open.assumed
    );
    assert!(!open.assumed.iter().any(|note| note.contains("--seed")), "{:?}", open.assumed);
    let none = format!("WORLD_SIZE=0 python pretrain_gpt.py {COMMAND}");
    let error = import(&none, "x", None).unwrap_err();
    assert!(error.message.contains("no ranks"), "{error}");
    // As wide as numbers go.
    assert!(import(&script("--swiglu => --swiglu\n--window-size 18446744073709551615,0"), "x", None).is_ok());
    // Megatron-LM has no stages of ZeRO by number.
    let foreign = import(&script("--swiglu => --swiglu\n--zero-stage 3"), "x", None).unwrap();
    assert!(foreign.unknown.iter().any(|(_, flag)| flag.contains("--zero-stage 3")), "{:?}", foreign.unknown);
    // A shell ends or breaks the command at characters that no quotes protect.
    for (flag, part) in [
        (
            "--pipeline-model-parallel-layout Et*4|t*28|L",
            "ends the command inside of --pipeline-model-parallel-layout",
        ),
        ("--hybrid-layer-pattern=M-M-|M-M-", "ends the command inside of --hybrid-layer-pattern"),
        ("--moe-layer-freq ([0]*1+[1]*31)", "unexpected `(` among the words of a command"),
    ] {
        let text = format!("set -e\ntorchrun --nproc_per_node 8 pretrain_gpt.py {flag} --num-layers 32\n");
        let error = import(&text, "x", None).expect_err(part);
        assert!(error.line == 2 && error.message.contains(part), "{part}: {error}");
    }
}

#[test]
fn flags_in_the_way_of_another_plan_are_removed() {
    let imported = import(&script("--swiglu => --swiglu\n--deterministic-mode"), "x", None).unwrap();
    let change = |name: &str| Change { name: name.to_owned(), from: None, to: Some(String::new()) };
    let plan = (imported.plan.layout(), imported.model.layer_count());
    let removed = |changes: &[Change]| {
        let all = in_the_way(&imported.settings, (changes, &Settings::new()), plan, Architecture::Hopper);
        all.into_iter().map(|change| change.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(removed(&[change("--tp-comm-overlap")]), ["remove --deterministic-mode"]);
    assert!(removed(&[change("--overlap-grad-reduce")]).is_empty());
}

#[test]
fn configurations_are_read_as_deepspeed_reads_them() {
    let llama = models().into_iter().find(|model| model.name == "Llama 2 7B").unwrap();
    let read = |zero: &str| {
        let text = format!(
            "{{ // Hjson has comments: \"//\" and\n  \"train_batch_size\": 64, # this\n  \"bf16\": {{\"enabled\": true}},\n  /* and\n this */ \"zero_optimization\": {{{zero}}} }}"
        );
        deepspeed::import(
            &text,
            deepspeed::Given {
                model: &llama,
                gpus: 8,
                sequence_length: Some(4096),
                pipeline_parallel: 1,
                trainer: deepspeed::Trainer::default(),
            },
        )
    };
    assert_eq!(read("\"stage\": 2").unwrap().plan.layout().zero_stage, 2);
    let unknown = |zero: &str| read(zero).unwrap().unknown;
    let partly = "\"stage\": 3, \"offload_optimizer\": {\"device\": \"cpu\", \"ratio\": 0.3}";
    assert_eq!(unknown(partly), [(5, "zero_optimization.offload_optimizer.ratio".to_owned())]);
    assert_eq!(
        unknown("\"stage\": 3, \"zero_quantized_weights\": true"),
        [(5, "zero_optimization.zero_quantized_weights".to_owned())]
    );
    for (zero, part) in [
        ("\"stage\": 3, \"mics_shard_size\": 8", "`zero_optimization.mics_shard_size` no longer exists"),
        ("\"stage\": 2, \"zero_hpz_partition_size\": 8", "needs ZeRO stage 3"),
        ("\"stage\": 2, \"reduce_bucket_size\": 0", "reduce_bucket_size"),
        ("\"stage\": 3, \"sub_group_size\": \"large\"", "sub_group_size"),
        ("\"stage\": 1, \"zero_quantized_gradients\": true", "needs ZeRO stage 3"),
        ("\"stage\": 3, \"offload_optimizer\": {\"device\": \"nvme\"}", "needs `nvme_path`"),
        ("\"stage\": 2, \"offload_optimizer\": {\"device\": \"cpu\", \"ratio\": 0.3}", "needs ZeRO stage 3"),
        ("\"stage\": 3, \"offload_param\": {\"device\": \"cpu\", \"pin_memry\": true}", "has no `pin_memry`"),
        ("\"stage\": 3}, \"bfloat16\": {\"enabld\": true", "`bfloat16` has no `enabld`"),
    ] {
        let error = read(zero).unwrap_err();
        assert!(error.title().contains(part), "{error}");
        assert_eq!(error.place().map(|(line, _)| line), Some(5), "{error}");
    }
}

#[test]
fn declarations_reach_the_script_as_in_bash() {
    let degree = |setting: &str| {
        let command = COMMAND.replace("tensor-model-parallel-size 4", "tensor-model-parallel-size $TP");
        let text = format!("{setting}\ntorchrun --nnodes 8 --nproc-per-node 8 pretrain_gpt.py {command}\n");
        import(&text, "x", None).map(|imported| imported.plan.layout().tensor_parallel)
    };
    for (setting, expected) in [
        ("TP=2; cmd=\"export TP=4\"; $cmd", 4),
        ("TP=2; A=(export TP=4); \"${A[@]}\"", 4),
        // A function's alone, and a background list's own.
        ("TP=2; local TP=4", 2),
        ("TP=2; true && TP=4 & wait", 2),
        ("TP=2; TP=4 && true & wait", 2),
    ] {
        assert_eq!(degree(setting).unwrap_or(0), expected, "{setting}");
    }
}
