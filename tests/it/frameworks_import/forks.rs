//! What flags mean in forks of Megatron-LM, and programs that are no training.

use autoplan::frameworks::Target;
use autoplan::frameworks::megatron::import::Imported;
use autoplan::layers::parameter_count;
use autoplan::plan::{Dispatcher, Recompute};
use autoplan::spec::model::{FeedForward, Mixer, Moe, Position, RouterScore};

use super::{import, script, with_flags};
use crate::frameworks_cases::models;

#[test]
fn flags_of_the_deepspeed_fork_mean_what_they_mean_there() {
    let deepspeed = "--use-distributed-optimizer => --deepspeed\n    --zero-stage 1";
    let error = import(&script(&format!("{deepspeed}\n    --no-pipeline-parallel")), "x", None).unwrap_err();
    assert!(error.message.contains("excludes 2 pipeline stages"), "{error}");
    let alone = "--pipeline-model-parallel-size 2 => --no-pipeline-parallel";
    let experts = |numbers: &str| {
        let change = format!("{deepspeed}\n    --num-experts {numbers};{alone}");
        import(&script(&change), "x", None).map(|imported| format!("{:?}", imported.model))
    };
    assert!(experts("8 8").unwrap().contains("experts: 8,"));
    assert!(experts("8 16").unwrap_err().message.contains("differ in their number of experts"));
    let error = import(&script("--swiglu => --swiglu\n    --num-experts 8 8"), "x", None).unwrap_err();
    assert!(error.message.contains("takes one value"), "{error}");
}

/// The layers with experts, counted from 1, and the experts themselves.
fn experts(imported: &Imported) -> (Vec<usize>, Moe) {
    let model = &imported.model;
    let runs = model.layers.iter().flat_map(|segment| vec![segment.of.clone(); segment.repeat as usize]);
    let names: Vec<String> = runs.flatten().collect();
    let of = |name: &String| match &model.blocks[name].feed_forward {
        FeedForward::Moe(moe) => Some(moe.clone()),
        _ => None,
    };
    let at = names.iter().enumerate().filter(|(_, name)| of(name).is_some()).map(|(at, _)| at + 1);
    (at.collect(), names.iter().find_map(of).unwrap())
}

#[test]
fn experts_of_the_deepspeed_fork_are_read() {
    let change = |more: &str| {
        let fork =
            "--use-distributed-optimizer => --deepspeed\n    --zero-stage 1\n    --no-pipeline-parallel";
        let alone = "--pipeline-model-parallel-size 2 => --moe-expert-parallel-size 16";
        format!("{fork};{alone}\n    --moe-loss-coeff 0.01 --num-experts 64{more}")
    };
    let read = |more: &str| import(&script(&change(more)), "x", None);
    // Every second layer and one expert per token unless said otherwise.
    let imported = read("").unwrap();
    let (layers, moe) = experts(&imported);
    assert_eq!(layers, (1..=16).map(|n| 2 * n).collect::<Vec<_>>());
    assert_eq!((moe.experts, moe.top_k, moe.width, moe.shared_width), (64, 1, 14336, 0));
    assert_eq!(moe.router.score, RouterScore::SoftmaxBeforeTopK);
    let layout = imported.plan.layout();
    assert_eq!((layout.expert_parallel, layout.expert_tensor_parallel), (16, 1));
    assert_eq!((layout.tensor_parallel, layout.dispatcher), (4, Some(Dispatcher::AllToAll)));
    assert_eq!(imported.unknown, []);
    assert!(!imported.assumed.iter().any(|note| note.contains("refuses")), "{:?}", imported.assumed);
    // A switch in Megatron-LM; here it takes a value.
    let profiled = read(" --profile pt").unwrap();
    assert!(profiled.assumed.iter().any(|note| note.contains("--profile: what profiling costs")));

    let (layers, moe) = experts(&read(" --expert-interval 4 --topk 2 --mlp-type residual").unwrap());
    assert_eq!(layers, [4, 8, 12, 16, 20, 24, 28, 32]);
    assert_eq!((moe.top_k, moe.shared_width), (2, 14336));
    let split = read(" --enable-expert-tensor-parallelism").unwrap();
    assert_eq!(split.plan.layout().expert_tensor_parallel, 4);
    for (more, part) in [
        (" --expert-interval 40", "leaves no layer with experts"),
        (" --expert-interval 0", "leaves no layer with experts"),
        (" --topk 65", "65 of 64 experts cannot be chosen"),
        (" --mlp-type other", "expected one of standard, residual"),
    ] {
        let error = read(more).unwrap_err();
        assert!(error.message.contains(part), "{error}");
    }
    let error = import(&script(&change("").replace("size 16", "size 32")), "x", None).unwrap_err();
    assert!(error.message.contains("16 replicas do not divide by --moe-expert-parallel-size 32"), "{error}");
}

#[test]
fn experts_of_other_forks_are_read() {
    let read = |flags: &str| {
        let flags = format!("--num-experts 64 --moe-router-topk 6 {flags}");
        import(&with_flags(&flags), "x", None).unwrap_or_else(|error| panic!("{flags}: {error}"))
    };
    let mindspeed = "--first-k-dense-replace 3 --moe-layer-freq 1 --n-shared-experts 2 --moe-intermediate-size 1408 \
                     --moe-token-dispatcher-type alltoall_seq";
    let imported = read(mindspeed);
    let (layers, moe) = experts(&imported);
    assert_eq!(layers, (4..=32).collect::<Vec<_>>());
    assert_eq!((moe.width, moe.shared_width, moe.top_k), (1408, 2816, 6));
    assert_eq!(imported.plan.layout().dispatcher, Some(Dispatcher::AllToAll));
    assert_eq!(imported.unknown, []);
    let all: Vec<usize> = (1..=32).collect();
    assert_eq!(experts(&read("--first-k-dense-replace -1 --moe-layer-freq -1")).0, all);
    // Megatron-LM itself knows no such switch of the DeepSpeed fork.
    assert_eq!(read("--expert-interval 4").unknown.len(), 1);
}

#[test]
fn attention_and_recomputation_of_forks_are_read() {
    let imported = import(&with_flags("--attention-head-type multiquery"), "x", None).unwrap();
    let mixer = &imported.model.blocks.values().next().unwrap().mixer;
    assert!(matches!(mixer, Mixer::Attention(a) if a.kv_heads == 1), "{mixer:?}");
    let recompute = |flags: &str, change: &str| {
        let text = with_flags(flags).replace("--use-distributed-optimizer", change);
        import(&text, "x", None).map(|imported| imported.plan.common_recompute().unwrap())
    };
    let full = "--recompute-granularity full --recompute-method";
    assert_eq!(recompute(&format!("{full} uniform"), "--deepspeed"), Ok(Recompute::FullUniform(1)));
    assert!(
        recompute(&format!("{full} uniform"), "").unwrap_err().message.contains("--recompute-num-layers")
    );
    assert_eq!(recompute(&format!("{full} block --recompute-num-layers 0"), ""), Ok(Recompute::None));
    assert!(recompute(&format!("{full} uniform --recompute-num-layers 0"), "").is_err());
}

#[test]
fn rotary_positions_of_blooms_fork_need_no_table() {
    let change = "--max-position-embeddings 4096 => --position-embedding-type rotary";
    let fork = script(&format!("{change};--use-distributed-optimizer => --deepspeed\n    --zero-stage 1"));
    let model = import(&fork, "x", None).unwrap().model;
    assert_eq!((model.max_sequence, model.position), (4096, Position::Rotary));
    let error = import(&script(&change.replace("rotary", "rope")), "x", None).unwrap_err();
    assert!(error.message.contains("no --max-position-embeddings"), "{error}");
}

#[test]
fn programs_that_do_not_train_a_language_model_are_refused() {
    let named = |name: &str| import(&script("").replace("pretrain_gpt.py", name), "x", None);
    for (name, part) in [
        ("tools/run_text_generation_server.py", "run_text_generation_server.py generates text"),
        ("text_generation_ptq.py", "generates text"),
        ("-m examples.inference.gpt_static_inference", "generates text"),
        ("evaluation.py", "evaluates a model"),
        ("tools/checkpoint/convert.py", "converts a model"),
        ("hf2mcore_qwen.py", "converts a model"),
        ("tools/preprocess_data.py", "prepares data"),
        ("pretrain_t5.py", "decoder-only"),
        ("pretrain_vision_classify.py", "decoder-only"),
    ] {
        let error = named(name).expect_err(name);
        assert!(error.message.contains(part) && error.message.contains("only"), "{error}");
    }
    // Their names hold parts of such words, or say that they train.
    for name in [
        "pretrain_gpt5.py",
        "albert/pretrain_gpt.py",
        "train_and_evaluate.py",
        "posttrain_gpt.py",
        "predict.py",
    ] {
        assert!(named(name).is_ok(), "{name}: {:?}", named(name).err());
    }
    for flags in ["--task RACE", "--max-new-tokens=5", "--img-h 336", "--lora-r 8", "--num-layers-teacher 24"]
    {
        let text = with_flags(flags);
        let flag = flags.split([' ', '=']).next().unwrap();
        let error = import(&text, "x", None).expect_err(flags);
        assert!(error.message.starts_with(flag), "{error}");
        assert!(text.lines().nth(error.line - 1).unwrap().contains(flag), "{error}");
    }
}

#[test]
fn vocabularies_come_from_names_and_are_called_usual() {
    let size = |flags: &str| {
        let change = format!("--vocab-size 32000 => {}", flags.replace(" --", "\n    --"));
        let imported = import(&script(&change), "x", None).unwrap_or_else(|error| panic!("{flags}: {error}"));
        let note = imported.assumed.into_iter().find(|note| note.contains("vocabulary of")).unwrap();
        (imported.model.vocabulary, note)
    };
    for (flags, entries, part) in [
        (
            "--tokenizer-type HuggingFaceTokenizer --tokenizer-model mistralai/Mistral-Nemo-Base-2407",
            131_072,
            "usual for mistralai/Mistral-Nemo-Base-2407, which is not read",
        ),
        (
            "--tokenizer-type PretrainedFromHF --tokenizer-name-or-path ./model_from_hf/llama-2-7b-hf/",
            32_000,
            "usual for",
        ),
        (
            "--tokenizer-type QwenTokenizer",
            151_936,
            "usual for QwenTokenizer; the tokenizer's file is not read",
        ),
        (
            "--tokenizer-type GPT2BPETokenizer --vocab-file own.json --merge-file m.txt",
            50_257,
            "own.json is not read",
        ),
        (
            "--tokenizer-type GPTSentencePieceTokenizer --tokenizer-model own.model",
            128_256,
            "(usual; own.model is not read)",
        ),
        ("--tokenizer-model multilingual_015_256k.model", 256_000, "usual for"),
    ] {
        let (found, note) = size(flags);
        assert!(found == entries && note.contains(part), "{flags}: {note}");
    }
}

/// The launch of BLOOM's main run, by its published facts (arXiv:2211.05100, sections 3.2 to 3.4): 70 layers on 12 stages,
/// which its partition of 72 modules makes 5, 6 ... 6, 5, and ZeRO-1 states under the BF16 optimizer at stage 0.
#[test]
fn a_launch_of_blooms_fork_is_read() {
    let script = "#SBATCH --nodes=48
NNODES=48
CONFIG=ds_config.$SLURM_JOB_ID.json
cat <<EOT > $CONFIG
{\"train_micro_batch_size_per_gpu\": 2, \"train_batch_size\": 2048, \"zero_optimization\": {\"stage\": 0}, \"bf16\": {\"enabled\": true}}
EOT
ARGS=\" \\
    --pp-partition-method 'type:transformer|embedding' --num-layers 70 --hidden-size 14336 --num-attention-heads 112 \\
    --seq-length 2048 --max-position-embeddings 2048 --micro-batch-size 2 --global-batch-size 2048 --bf16 \\
    --tokenizer-type PretrainedFromHF --tokenizer-name-or-path t --embed-layernorm --position-embedding-type alibi \\
    --checkpoint-activations --pad-vocab-size-to 250880 --deepspeed --deepspeed_config $CONFIG --zero-stage 0\"
export LAUNCHER=\"python -u -m torch.distributed.run --nproc_per_node 8 --nnodes $NNODES\"
export CMD=\"pretrain_gpt.py --tensor-model-parallel-size 4 --pipeline-model-parallel-size 12 $ARGS\"
srun bash -c '$LAUNCHER --node_rank $SLURM_PROCID $CMD'
";
    let read = |from: &str, to: &str| import(&script.replace(from, to), "BLOOM 176B", None);
    let Imported { target, model, plan, job, assumed, unknown, .. } = read("", "").unwrap();
    assert_eq!(target, Target::MegatronDeepSpeed);
    let shipped = models().into_iter().find(|m| m.name == "BLOOM 176B").unwrap();
    assert_eq!(model.position, Position::Alibi);
    assert!(model.embedding_norm && model.vocabulary == 250_880);
    assert_eq!(parameter_count(&model).total, 176_247_271_424);
    assert_eq!(parameter_count(&shipped), parameter_count(&model));
    assert_eq!(
        (job.gpus, plan.layout().data_parallel, plan.layout().gradient_accumulation_steps),
        (384, 8, 128)
    );
    assert_eq!((plan.layout().zero_stage, plan.layout().shard_group), (1, 8));
    let layers: Vec<u32> = plan.chunks().iter().map(|chunk| chunk.layers).collect();
    assert_eq!(layers, [5, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 5]);
    assert_eq!(unknown, []);
    for part in ["shards its states", "stages of 5, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 5 layers"] {
        assert!(assumed.iter().any(|note| note.contains(part)), "{assumed:?}");
    }

    // Without the ends, those left over go to the first stages; 3 stages hold 24 modules each.
    let counts = |from: &str, to: &str| -> Vec<u32> {
        read(from, to).unwrap().plan.chunks().iter().map(|chunk| chunk.layers).collect()
    };
    assert_eq!(counts("|embedding", ""), [6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 5, 5]);
    assert_eq!(counts("parallel-size 12", "parallel-size 3"), [23, 24, 23]);
    let error = read("'type:transformer|embedding'", "parameters").unwrap_err();
    assert!(error.message.contains("`parameters`; expected type:transformer"), "{error}");
    assert_eq!(error.line, 8, "{error}");
    // Megatron-LM has neither.
    let megatron =
        import(&script.replace("--deepspeed --deepspeed_config $CONFIG --zero-stage 0", ""), "x", None);
    let error = megatron.unwrap_err();
    assert!(error.message.contains("`alibi`; expected one of rope, learned_absolute, none, yarn"), "{error}");
}
