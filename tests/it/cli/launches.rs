//! Launch scripts and configurations, explained, changed and saved.

use super::*;

/// What runs today may grow its batch: the plan is that of the full batch, the ramp is advice.
#[test]
fn the_batch_ramp_of_a_launch_script_is_priced() {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("launch.sh");
    let explain = |ramp: &str| {
        let text = LAUNCH.replace("--my-flag 3", &format!("--rampup-batch-size {ramp}"));
        std::fs::write(&script, text).unwrap();
        let path = script.to_str().unwrap();
        autoplan(&["explain", path, "--cluster", "dgx-h100", "--alone", "--format", "json"])
    };
    let output = explain("32 32 1_000_000");
    let value: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(value["advice"]["ramp"]["stages"].as_array().unwrap().len(), 3);
    assert_eq!(value["plan"]["global_batch_size"], 128);
    assert!(stderr(&output).contains("--rampup-batch-size: the plan is that of the full batch"));
    // A ramp that does not end at the full batch is said, and the plan explained all the same.
    let output = explain("32 36 1000000");
    assert!(output.status.success());
    assert!(stderr(&output).contains("does not reach the global batch 128"), "{}", stderr(&output));
    let output = explain("32 32");
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("takes three whole numbers, found `32 32`"), "{}", stderr(&output));
}

#[test]
fn launch_scripts_of_every_framework_are_read_or_say_what_is() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    for (framework, read) in [
        ("deepspeed", None),
        ("megatron-deepspeed", None),
        ("torchtitan", Some("torchtitan, whose settings stand in a configuration of its own")),
        ("accelerate", Some("Accelerate without DeepSpeed, whose settings stand in a YAML file")),
        ("bridge", Some("autoplan_recipe.py is started without flags")),
    ] {
        let output = small(&["--framework", framework, "--format", "ron"]);
        let plan = path("plan.ron");
        std::fs::write(&plan, &output.stdout).unwrap();
        let to = path(framework);
        let output = autoplan(&["export", &plan, "--to", framework, "-o", &to]);
        assert!(output.status.success(), "{}", stderr(&output));
        let launch = format!("{to}/launch.sh");
        // Flags of Megatron-DeepSpeed's own launch say the model and the length themselves.
        let given: &[&str] =
            if framework == "deepspeed" { &["--model", "llama3.2-1b", "-s", "2048"] } else { &[] };
        let output =
            autoplan(&[&["explain", &launch, "--cluster", "dgx-a100", "--alone"][..], given].concat());
        let text = stderr(&output);
        match read {
            None => {
                assert!(output.status.success(), "{framework}: {text}");
                let saved = std::fs::read_to_string(&launch).unwrap();
                let plan = saved.lines().find_map(|l| l.strip_prefix("# plan")).unwrap().trim().to_owned();
                assert!(stdout(&output).contains(&plan), "{framework}: {}", stdout(&output));
            }
            Some(reason) => {
                assert_eq!(output.status.code(), Some(2), "{framework}");
                assert!(text.contains(reason), "{framework}: {text}");
            }
        }
    }
}

#[test]
fn a_launch_script_is_explained_with_the_flags_to_change() {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("my launch $(id).sh");
    std::fs::write(&script, LAUNCH).unwrap();
    let script = script.to_str().unwrap();
    let output = autoplan(&["explain", script, "--cluster", "dgx-h100"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let (text, notes) = (stdout(&output), stderr(&output));
    for part in [
        "tp8 pp2",
        "the plan fits",
        "better by",
        "settings of megatron to change",
        "--tensor-model-parallel-size 8 -> ",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(
        notes.contains("line 11: not understood, and left out of the prediction: --my-flag 3"),
        "{notes}"
    );
    assert!(
        notes.contains("128256 entries (usual for meta-llama/Llama-3.1-8B, which is not read)"),
        "{notes}"
    );
    let output = autoplan(&["explain", script, "--cluster", "dgx-h100", "--format", "json"]);
    let value: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert!(value["best"]["faster_by"].as_f64().unwrap() > 0.05);
    let settings = value["best"]["settings"].as_array().unwrap();
    assert!(settings.iter().any(|s| s["name"] == "--tensor-model-parallel-size" && s["from"] == "8"));
    // Nothing is to be changed or removed that the script does not have.
    for setting in settings.iter().filter(|s| !s["from"].is_null()) {
        assert!(LAUNCH.contains(setting["name"].as_str().unwrap()), "{setting}");
    }
    // Nor is one that stands beside it as that of a model does.
    let beside = autoplan(&["explain", script, "dgx-h100"]);
    assert!(stderr(&beside).contains("takes its cluster as --cluster dgx-h100"), "{}", stderr(&beside));
    // Without a cluster there is nothing to predict.
    let output = autoplan(&["explain", script]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("--cluster"), "{}", stderr(&output));
    // On one node it is not the same job; what cannot be is said with its line.
    let output = autoplan(&["explain", script, "--cluster", "dgx-h100", "--gpus", "24"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("error: 24 ranks do not divide"), "{}", stderr(&output));
    assert!(stderr(&output).contains(".sh:9:"), "{}", stderr(&output));
    // Before Blackwell the framework stops without its variable.
    std::fs::write(script, LAUNCH.replace("export CUDA_DEVICE_MAX_CONNECTIONS=1 ", "")).unwrap();
    let output = autoplan(&["explain", script, "--cluster", "dgx-h100"]);
    assert_eq!(output.status.code(), Some(2));
    let text = stderr(&output);
    assert!(text.contains(".sh:9:") && text.contains("need CUDA_DEVICE_MAX_CONNECTIONS=1"), "{text}");
    let output = autoplan(&["explain", script, "--cluster", "dgx-b200"]);
    assert!(output.status.success(), "{}", stderr(&output));
}

#[test]
fn an_imported_plan_can_be_saved_checked_and_exported() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    std::fs::write(path("launch.sh"), LAUNCH).unwrap();
    let save = ["import", "megatron", &path("launch.sh"), "--cluster", "dgx-h100", "-o", &path("plan.ron")];
    assert!(autoplan(&save).status.success());
    let again = autoplan(&save);
    assert_eq!(again.status.code(), Some(2));
    assert!(stderr(&again).contains("--force"), "{}", stderr(&again));
    let checked = autoplan(&["check", &path("plan.ron")]);
    assert!(checked.status.success(), "{}{}", stdout(&checked), stderr(&checked));
    let exported = autoplan(&["export", &path("plan.ron"), "--to", "megatron", "--format", "args"]);
    assert!(stdout(&exported).contains("--tensor-model-parallel-size 8"), "{}", stderr(&exported));
}

#[test]
fn a_deepspeed_configuration_is_explained() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("ds_config.json");
    let text = r#"{"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 16, "bf16": {"enabled": true},
        "zero_optimization": {"stage": 1}, "autotuning": {}}"#;
    std::fs::write(&config, text).unwrap();
    let config = config.to_str().unwrap();
    let with = ["--cluster", "dgx-h100", "--model", "llama3.1-8b", "--gpus", "64", "-s", "4096"];
    let output = autoplan(&[&["explain", config][..], &with].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    let text = stdout(&output);
    assert!(text.contains("under deepspeed") && text.contains("GB allocated"), "{text}");
    assert!(
        stderr(&output).contains("not understood, and left out of the prediction: autotuning"),
        "{}",
        stderr(&output)
    );
    let output = autoplan(&["explain", config, "--cluster", "dgx-h100"]);
    assert!(stderr(&output).contains("give --model"), "{}", stderr(&output));
    let output = autoplan(&["import", "deepspeed", config, "--model", "llama3.1-8b", "--gpus", "64"]);
    let value: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(value["plan"]["gradient_accumulation_steps"], 16);
    assert_eq!(value["global_batch_size"], 1024);
}

/// A launch of Accelerate with DeepSpeed says ranks, configuration and number format; a manifest says the whole plan.
#[test]
fn launches_of_accelerate_and_manifests_are_explained() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let yaml = "deepspeed_config:\n  zero_stage: 3\n  gradient_accumulation_steps: 4\ndistributed_type: DEEPSPEED\n\
                mixed_precision: fp16\nnum_machines: 2\nnum_processes: 16\n";
    std::fs::write(path("zero3.yaml"), yaml).unwrap();
    let script = "#!/bin/bash\nHERE=$(dirname \"$0\")\naccelerate launch --config_file \"$HERE/zero3.yaml\" train.py \
                  recipe.yaml --per_device_train_batch_size 2\n";
    std::fs::write(path("launch.sh"), script).unwrap();
    let import = ["import", "deepspeed", &path("launch.sh"), "--model", "llama3.1-8b", "-s", "4096"];
    let output = autoplan(&import);
    let value: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(value["name"], "tp1 pp1 vp1 cp1 ep1 dp16 mb2 ga4 zero3 rc-none");
    assert_eq!((&value["gpus"], &value["precision"]), (&16.into(), &"fp16".into()));
    assert!(stderr(&output).contains("`recipe.yaml` is handed to the training script and not read"));
    let output = autoplan(&["explain", &path("zero3.yaml"), "--cluster", "dgx-h100"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("a .yaml file of this kind is not read"), "{}", stderr(&output));

    let job =
        ["plan", "llama3.2-3b", "dgx-h100", "-g", "32", "-b", "128", "-s", "8192", "--fix", "pp=2,tp=2"];
    let plan = path("plan.ron");
    std::fs::write(&plan, stdout(&autoplan(&[&job[..], &["--format", "ron"]].concat()))).unwrap();
    let manifest = path("job.yaml");
    std::fs::write(&manifest, stdout(&autoplan(&["export", &plan, "--to", "kubernetes"]))).unwrap();
    let own = stdout(&autoplan(&["explain", &plan, "--alone"]));
    let read = stdout(&autoplan(&["explain", &manifest, "--cluster", "dgx-h100", "--alone"]));
    assert_eq!((read.lines().nth(1), read.lines().nth(3)), (own.lines().nth(1), own.lines().nth(3)));
    assert!(own.lines().nth(1).is_some_and(|line| line.starts_with("tp2 pp2")), "{own}");
}

/// Ranks per node that are not the machine's: fewer are a note, more cannot start, and given GPUs count before both.
#[test]
fn ranks_per_node_are_compared_with_the_machine() {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("launch.sh");
    let job = [
        "plan",
        "llama3.2-3b",
        "dgx-h100",
        "-g",
        "8",
        "-b",
        "64",
        "-s",
        "4096",
        "--fix",
        "tp=8",
        "--format",
        "ron",
    ];
    let plan = folder.path().join("plan.ron");
    std::fs::write(&plan, stdout(&autoplan(&job))).unwrap();
    let export = ["export", plan.to_str().unwrap(), "--to", "megatron", "--format", "args"];
    let arguments = stdout(&autoplan(&export));
    let arguments: Vec<&str> = arguments.lines().filter(|line| line.starts_with("--")).collect();
    let launch = |nodes: u32, ranks: u32| {
        let arguments = arguments.join(" \\\n");
        format!(
            "export CUDA_DEVICE_MAX_CONNECTIONS=1\ntorchrun --nnodes {nodes} --nproc_per_node {ranks} pretrain_gpt.py \\\n{arguments}\n"
        )
    };
    let explain = |more: &[&str]| {
        let path = script.to_str().unwrap();
        autoplan(&[&["explain", path, "--cluster", "dgx-h100", "--alone"], more].concat())
    };
    for (nodes, ranks, note, code) in [
        (1, 8, None, 0),
        (2, 4, Some("4 ranks on every node, and is predicted with all 8 GPUs of fewer nodes"), 0),
        (1, 16, Some("16 ranks on every node, but"), 2),
    ] {
        std::fs::write(&script, launch(nodes, ranks)).unwrap();
        let output = explain(&[]);
        assert_eq!(output.status.code(), Some(code), "{}", stderr(&output));
        assert_eq!(note.is_some(), stderr(&output).contains("on every node"), "{}", stderr(&output));
        assert!(note.is_none_or(|note| stderr(&output).contains(note)), "{}", stderr(&output));
    }
    let output = explain(&["-g", "16"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
}

/// What is printed as not understood is in the answer for programs as well: keys of the configuration, flags of the
/// training script. What changes no step is understood; options that the launcher does not have are a note.
#[test]
fn what_is_not_understood_is_told_to_programs_too() {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("sft.sh");
    let config = r#"{"train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto",
        "bf16": {"enabled": true}, "zero_optimization": {"stage": 3}, "steps_per_prin": 10}"#;
    std::fs::write(folder.path().join("ds.json"), config).unwrap();
    let flags = "--per_device_train_batch_size 2 --bf16 --learning_rate 1e-5 --output_dir x \\\n  --my_list 1 2 --torch_compile";
    for (launcher, note) in [
        (
            "torchrun --nnodes 2 --nproc_per_node 8 --bogus 3 t.py --deepspeed ds.json",
            "torchrun has no option --bogus",
        ),
        (
            "accelerate launch --num_processes 16 --num_machines 2 --mixed_precison bf16 --use_deepspeed --deepspeed_config_file ds.json t.py",
            "accelerate launch has no option --mixed_precison: did you mean --mixed_precision?",
        ),
    ] {
        std::fs::write(&script, format!("{launcher} {flags}\n")).unwrap();
        let path = script.to_str().unwrap();
        let explain =
            ["explain", path, "--cluster", "dgx-h100", "--model", "llama3.1-8b", "--format", "json"];
        let output = autoplan(&explain);
        let notes = stderr(&output);
        let value: serde_json::Value = serde_json::from_str(&stdout(&output)).expect(&notes);
        let listed = value["not_understood"].as_array().unwrap();
        let texts: Vec<&str> = listed.iter().filter_map(|one| one[1].as_str()).collect();
        let of = format!("(a flag of {path})");
        let expected = [
            "steps_per_prin (did you mean steps_per_print?)".to_owned(),
            format!("--my_list 1 2 {of}"),
            format!("--torch_compile {of}"),
        ];
        assert_eq!(texts, expected, "{launcher}");
        assert_eq!((&listed[1][0], &listed[2][0]), (&2.into(), &2.into()));
        for text in expected {
            assert!(
                notes.contains(&format!("not understood, and left out of the prediction: {text}")),
                "{notes}"
            );
        }
        assert!(notes.contains(note), "{notes}");
    }
}

/// A change that leaves a single replica leaves nothing to shard.
#[test]
fn a_change_may_take_the_last_replica() {
    let folder = tempfile::tempdir().unwrap();
    let plan = folder.path().join("plan.ron");
    let fixed = ["--fix", "tp=4", "--fix", "pp=1", "--fix", "cp=1", "--fix", "zero=1", "--top", "1"];
    let job = ["plan", "llama3.2-1b", "dgx-h100", "-g", "8", "-b", "16", "-s", "2048", "--format", "ron"];
    std::fs::write(&plan, autoplan(&[&job[..], &fixed].concat()).stdout).unwrap();
    let output = autoplan(&["explain", plan.to_str().unwrap(), "--format", "json"]);
    let value: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
    let changes = value["changes"].as_array().unwrap();
    let stages = changes.iter().find(|c| c["axis"] == "pp" && c["to"] == 2).unwrap();
    assert!(stages["name"].as_str().is_some_and(|name| name.contains("dp1 ")), "{stages}");
}

/// Errors in a launch mark what they are about.
#[test]
fn errors_in_a_launch_have_line_and_column() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("launch.sh");
    std::fs::write(&path, LAUNCH.replace("--bf16", "--bf16 --fp16")).unwrap();
    let output = autoplan(&["explain", path.to_str().unwrap(), "--cluster", "dgx-h100"]);
    assert_eq!(output.status.code(), Some(2));
    let text = stderr(&output);
    let at = LAUNCH.lines().position(|line| line.contains("--bf16")).unwrap();
    let line = std::fs::read_to_string(&path).unwrap().lines().nth(at).unwrap().to_owned();
    let place = format!("launch.sh:{}:{}", at + 1, line.find("--bf16").unwrap() + 1);
    assert!(text.contains(&place) && text.contains("^^^^^^"), "{place}: {text}");
}

/// A DeepSpeed configuration says nothing of the length of sequences: our training script does, and where it is the
/// user's own, the header of the launch.
#[test]
fn deepspeed_launches_keep_the_length_of_sequences() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    for (model, ours) in [("llama3.1-8b", true), ("gemma2-27b", false)] {
        let plan = path("plan.ron");
        let job = ["--gpus", "64", "-b", "128", "-s", "8192", "--framework", "deepspeed", "--format", "ron"];
        let output = autoplan(&[&["plan", model, "dgx-h100", "--top", "1"][..], &job].concat());
        assert!(output.status.success(), "{model}: {}", stderr(&output));
        std::fs::write(&plan, output.stdout).unwrap();
        let output = autoplan(&["export", &plan, "--to", "deepspeed", "-o", &path(model)]);
        assert!(output.status.success(), "{model}: {}", stderr(&output));
        assert_eq!(std::path::Path::new(&path(&format!("{model}/train.py"))).exists(), ours);
        let launch = path(&format!("{model}/launch.sh"));
        let explain = |more: &[&str]| {
            autoplan(
                &[&["explain", &launch, "--cluster", "dgx-h100", "--model", model, "--alone"], more].concat(),
            )
        };
        let own = stdout(&autoplan(&["explain", &plan, "--alone"]));
        let output = explain(&[]);
        let text = stdout(&output);
        assert!(text.contains("batch 128 x 8192 tokens"), "{model}: {text} {}", stderr(&output));
        // The same plan takes as long.
        assert_eq!(text.lines().nth(1), own.lines().nth(1), "{model}");
        assert_eq!(text.lines().nth(3), own.lines().nth(3), "{model}");
        assert_eq!(stderr(&output).contains("the header of the script says so"), !ours);
        assert!(stdout(&explain(&["-s", "2048"])).contains("x 2048 tokens"));
        if !ours {
            continue;
        }
        // A constant that contradicts the configuration.
        let script = path(&format!("{model}/train.py"));
        let text = std::fs::read_to_string(&script).unwrap();
        std::fs::write(&script, text.replace("SEQUENCE_PARALLEL = 1", "SEQUENCE_PARALLEL = 2")).unwrap();
        let output = explain(&[]);
        assert_eq!(output.status.code(), Some(2));
        assert!(stderr(&output).contains("`train.py SEQUENCE_PARALLEL` is 2"), "{}", stderr(&output));
        for same in ["1  # as configured", "arguments.ranks"] {
            let text = text.replace("SEQUENCE_PARALLEL = 1", &format!("SEQUENCE_PARALLEL = {same}"));
            std::fs::write(&script, text).unwrap();
            assert!(explain(&[]).status.success(), "{same}");
        }
    }
}

/// DeepSpeed's stages run in Megatron-DeepSpeed: a plan with stages is written for it and read back as its own.
#[test]
fn deepspeed_stages_are_those_of_megatron_deepspeed() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let job = [
        "llama3.1-8b",
        "dgx-a100",
        "--gpus",
        "64",
        "-b",
        "256",
        "-s",
        "4096",
        "--fix",
        "pp=2",
        "--framework",
    ];
    let output = autoplan(&[&["plan"][..], &job, &["deepspeed"]].concat());
    assert_eq!(output.status.code(), Some(1));
    let told = "deepspeed has pp=1 alone; more have megatron, bridge, megatron-deepspeed, torchtitan";
    assert!(stdout(&output).contains(told), "{}", stdout(&output));
    // Only frameworks that have the model are named.
    for (model, told) in [
        ("mixtral-8x22b", "deepspeed has pp=1 alone; more have megatron, bridge\n"),
        ("gemma2-27b", "deepspeed has pp=1 alone; no framework with more has Gemma 2 27B\n"),
    ] {
        let job = [&["plan", model][..], &job[1..], &["deepspeed"]].concat();
        let output = stdout(&autoplan(&job));
        assert!(output.contains(told), "{output}");
    }
    let output = autoplan(&[&["plan"][..], &job, &["megatron-deepspeed", "--format", "ron"]].concat());
    let plan = path("plan.ron");
    std::fs::write(&plan, output.stdout).unwrap();
    let output = autoplan(&["export", &plan, "--to", "deepspeed", "-o", &path("launch")]);
    assert!(stderr(&output).contains("2 pipeline stages run in megatron-deepspeed"), "{}", stderr(&output));
    let own = stdout(&autoplan(&["explain", &plan, "--alone"]));
    let launch = path("launch/launch.sh");
    let read = stdout(&autoplan(&["explain", &launch, "--cluster", "dgx-a100", "--alone"]));
    assert!(read.contains("under megatron-deepspeed (profile megatron-deepspeed)"), "{read}");
    assert_eq!(read.lines().nth(1), own.lines().nth(1));
    assert_eq!(read.lines().nth(3), own.lines().nth(3));
}

/// What a launch leaves open is asked for where the plan depends on it, and said where it does not.
#[test]
fn launches_that_leave_much_open_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("launch.sh");
    let flags = "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 4096 \
                 --max-position-embeddings 4096 --vocab-size 32000 --micro-batch-size 1 --global-batch-size 64 --bf16 \
                 --tokenizer-type NullTokenizer --train-iters 10 --lr 1e-4 --mock-data";
    let config = r#"{"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true}}"#;
    std::fs::write(folder.path().join("ds.json"), config).unwrap();
    let megatron = "torchrun --nproc_per_node 8 pretrain_gpt.py";
    let deepspeed = "deepspeed --num_gpus 8 train.py --deepspeed ds.json";
    let explain = |text: &str, more: &[&str]| {
        std::fs::write(&path, text).unwrap();
        let command = ["explain", path.to_str().unwrap(), "--cluster", "dgx-h100", "--alone"];
        autoplan(&[&command[..], more].concat())
    };
    let cut = format!("B=\"{flags}\"\nP=(\n  --pipeline-model-parallel-size 2\n)\n{megatron} $B \\\n");
    let unused = cut.replace("$B \\", "$B \"${P[@]}\" \\");
    let left_out = format!("{megatron} {flags} $P\n");
    let printed = format!("==> ds_config.json <==\n{config}\n==> launch.sh <==\n{deepspeed}\n");
    let model: &[&str] = &["--model", "llama3.1-8b"];
    for (text, more, told) in [
        (left_out.clone(), &[][..], "error: part of the command is known only when the script runs"),
        (cut, &[], "error: the text ends in a continuation line, and `P` is set and never used"),
        (printed, model, "write them with `export -o DIR`"),
        (format!("{megatron} {flags} --lora-rank 8\n"), &[], "training of adapters is not read"),
        (format!("{deepspeed} --use_lora True\n"), model, "--use_lora: the training of adapters"),
        (
            format!("{deepspeed} --finetuning_type lora\n"),
            model,
            "--finetuning_type: the training of adapters",
        ),
        ("echo nothing\n".to_owned(), model, "no training command was found"),
        (
            format!("{deepspeed} --model_name_or_path meta-llama/Llama-3.1-8B\n"),
            &[],
            "give --model llama3.1-8b if that is what `meta-llama/Llama-3.1-8B` names",
        ),
        (
            format!("{deepspeed}\n"),
            &[],
            "give --model, a config.json, a .ron file or a name that `autoplan models`",
        ),
    ] {
        let output = explain(&text, more);
        assert_eq!(output.status.code(), Some(2), "{told}: {}", stdout(&output));
        assert!(stderr(&output).contains(told), "{told}: {}", stderr(&output));
    }
    let hosts = deepspeed.replace("--num_gpus 8", "--include=\"w1:0,1,2,3@w2:0,1,2,3\"");
    for (text, more) in [
        (unused, &[][..]),
        (format!("{megatron} {flags} --pipeline-model-parallel-size 2 $P\n"), &[]),
        (left_out, &["--", "P=--pipeline-model-parallel-size 2"]),
        (format!("{deepspeed} --use_lora False --lora_r 64\n"), model),
        (format!("{deepspeed} --finetuning_type full --lora_target all --lora_rank 8\n"), model),
        (format!("{deepspeed} --lora_rank 0.0\n"), model),
        (format!("{deepspeed} 2>&1|tee log\n"), model),
        (format!("time ( {megatron} {flags} )\n"), &[]),
        (format!("foo ( ) {{ echo hi; }}\n{megatron} {flags} --lora-r 0\n"), &[]),
        (
            format!(
                "{megatron} {flags} --pipeline-model-parallel-size 2 --pipeline-model-parallel-layout 'Et*16|t*16L' 2>&1|tee log\n"
            ),
            &[],
        ),
        (format!("HF_TOKEN=''\nexport HF_TOKEN\nOPTS=(a)\ndeclare -n R=OPTS\n{megatron} {flags} \\\n"), &[]),
        (format!("{hosts}\n"), model),
    ] {
        let output = explain(&text, more);
        assert!(output.status.success(), "{text}: {}", stderr(&output));
        assert!(stdout(&output).contains("on 8 x NVIDIA H100"), "{text}: {}", stdout(&output));
    }
}

#[test]
fn a_json_list_is_no_deepspeed_configuration() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ds.json");
    std::fs::write(&path, "[]").unwrap();
    let output =
        autoplan(&["import", "deepspeed", path.to_str().unwrap(), "--model", "llama3.1-8b", "--gpus", "8"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("expected a JSON object"), "{}", stderr(&output));
}

#[test]
fn a_launch_script_and_the_files_it_sources_are_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (sizes, rest) = LAUNCH.split_once("ARGS=(").unwrap();
    std::fs::write(path("sizes.sh"), sizes).unwrap();
    std::fs::write(path("launch.sh"), format!("#!/bin/bash\n. ./sizes.sh\nsource gone.sh\nARGS=({rest}"))
        .unwrap();
    std::fs::write(path("one.sh"), LAUNCH).unwrap();
    let import = |script: &str| autoplan(&["import", "megatron", script, "--name", "x", "--format", "json"]);
    let (two, one) = (import(&path("launch.sh")), import(&path("one.sh")));
    assert!(two.status.success(), "{}", stderr(&two));
    let read = |output: &Output| serde_json::from_str::<serde_json::Value>(&stdout(output)).unwrap();
    for key in ["plan", "model", "gpus"] {
        assert_eq!(read(&two)[key], read(&one)[key]);
    }
    // One that only starts the other.
    std::fs::write(path("start.sh"), "cd \"$(dirname \"$0\")\"\nsrun bash one.sh\n").unwrap();
    let started = import(&path("start.sh"));
    assert_eq!(read(&started)["plan"], read(&one)["plan"], "{}", stderr(&started));
    assert!(
        stderr(&two).contains("line 3: `gone.sh` is not read: there is no such file"),
        "{}",
        stderr(&two)
    );
    // A folder, a device and a file that is too large are not read either.
    std::fs::create_dir(path("gone.sh")).unwrap();
    assert!(stderr(&import(&path("launch.sh"))).contains("`gone.sh` is not read: it is no file"));
    std::fs::remove_dir(path("gone.sh")).unwrap();
    std::fs::write(path("gone.sh"), "#".repeat(20_000_000)).unwrap();
    assert!(stderr(&import(&path("launch.sh"))).contains("`gone.sh` is not read: larger than"));
}

#[test]
fn an_import_prints_what_it_would_write() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    std::fs::write(path("launch.sh"), LAUNCH).unwrap();
    let import = |more: &[&str]| autoplan(&[&["import", "megatron", &path("launch.sh")][..], more].concat());
    for more in [&["--cluster", "dgx-h100"][..], &["--format", "json"], &["--format", "model"]] {
        let file = path("out");
        let printed = import(more);
        assert!(printed.status.success(), "{more:?}: {}", stderr(&printed));
        let written = import(&[more, &["-o", &file, "--force"]].concat());
        assert!(written.status.success() && written.stdout.is_empty(), "{more:?}: {}", stderr(&written));
        assert_eq!(std::fs::read(&file).unwrap(), printed.stdout, "{more:?}");
    }
    // A saved plan names its cluster.
    for more in [&["--format", "ron"][..], &["-o", &path("plan.ron")]] {
        let refused = import(more);
        assert_eq!(refused.status.code(), Some(2), "{more:?}");
        assert!(stderr(&refused).contains("--cluster"), "{}", stderr(&refused));
    }
}

/// Every flag that is misspelt is marked, each with what was meant, before anything is predicted.
#[test]
fn misspelt_flags_of_a_launch_are_marked_together() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("launch.sh");
    let text = LAUNCH.replace("--tensor-model-parallel", "--tensor-model-paralel");
    std::fs::write(&path, text.replace("--micro-batch-size 1", "--micro-batch-size 1 --overlap-grad-reduse"))
        .unwrap();
    let output = autoplan(&["explain", path.to_str().unwrap(), "--cluster", "dgx-h100"]);
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains("launch.sh:9:5") && output.stdout.is_empty(), "{text}");
    for (found, meant) in [
        ("--tensor-model-paralel-size", "--tensor-model-parallel-size"),
        ("--overlap-grad-reduse", "--overlap-grad-reduce"),
    ] {
        assert!(text.contains(&format!("{found} is not understood: did you mean {meant}?")), "{text}");
    }
}
