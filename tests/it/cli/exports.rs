//! What is written for frameworks.

use super::*;

/// The interval of least loss reaches the scripts: Young's `sqrt(2 C M)` in steps, to a fifth.
#[test]
fn exported_scripts_save_at_the_best_interval() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("plan.ron");
    let plan = ["plan", "llama3.1-8b", "dgx-h100", "-g", "64", "-b", "512", "-s", "8192", "--top", "1"];
    std::fs::write(&path, stdout(&autoplan(&[&plan[..], &["--format", "ron"]].concat()))).unwrap();
    let path = path.to_str().unwrap();
    let value = autoplan(&["explain", path, "--tokens", "1T", "--alone", "--format", "json"]);
    let value: serde_json::Value = serde_json::from_str(&stdout(&value)).unwrap();
    let goodput = &value["run"]["goodput"];
    let figure = |name: &str| goodput[name].as_f64().unwrap();
    let young = (2.0 * figure("checkpoint_blocking_s") * figure("mean_time_between_failures_s")).sqrt();
    let script = stdout(&autoplan(&["export", path, "--to", "megatron"]));
    let (_, rest) = script.split_once("SAVE_INTERVAL:-").unwrap();
    let steps: f64 = rest.split('}').next().unwrap().parse().unwrap();
    let ratio = steps * value["step_time_s"].as_f64().unwrap() / young;
    assert!((0.8..1.2).contains(&ratio), "{ratio}");
    assert_eq!(steps, figure("checkpoint_interval_steps"));
    let header = stdout(&autoplan(&["export", path, "--to", "kubernetes"]));
    assert!(header.contains(&format!("# checkpoint every {steps} steps")), "{header}");
}

#[test]
fn plans_of_one_framework_go_to_another_only_with_a_word() {
    let folder = tempfile::tempdir().unwrap();
    let plan = folder.path().join("plan.ron");
    let output = small(&["--framework", "torchtitan", "--format", "ron"]);
    std::fs::write(&plan, &output.stdout).unwrap();
    let plan = plan.to_str().unwrap();
    for to in ["slurm", "kubernetes"] {
        let output = autoplan(&["export", plan, "--to", to]);
        assert_eq!(output.status.code(), Some(2));
        assert!(
            stderr(&output).contains("a plan for torchtitan, whose own launcher `--to torchtitan` writes")
        );
    }
    let output = autoplan(&["export", plan, "--to", "megatron"]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stderr(&output).contains("predicted anew for megatron"), "{}", stderr(&output));
}

/// A saved plan and what is written of it say the commands that made them.
#[test]
fn plans_and_exports_say_their_commands() {
    let folder = tempfile::tempdir().unwrap();
    let plan = folder.path().join("my plan.ron");
    let job = ["plan", "llama3.2-1b", "dgx-h100", "-g", "8", "-b", "16", "-s", "2048", "--format", "ron"];
    let two = autoplan(&[&job[..], &["--threads", "2"]].concat()).stdout;
    let one = autoplan(&[&job[..], &["--threads=1"]].concat()).stdout;
    assert_eq!(one, two);
    std::fs::write(&plan, one).unwrap();
    let output = autoplan(&["export", plan.to_str().unwrap(), "--to", "megatron"]);
    let text = stdout(&output);
    assert!(text.contains(&format!("# command    autoplan {}\n", job.join(" "))), "{text}");
    assert!(text.contains("# then       autoplan export '"), "{text}");
}

#[test]
fn settings_are_those_of_the_files_that_are_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let plan = path("plan.ron");
    let save = |framework: &str, fixed: &[&str]| {
        let fixed: Vec<&str> = fixed.iter().flat_map(|axis| ["--fix", axis]).collect();
        let job = ["plan", "llama3.1-8b", "dgx-h100", "-g", "16", "-b", "128", "-s", "4096", "--top", "1"];
        let output = autoplan(&[&job[..], &["--framework", framework, "--format", "ron"], &fixed].concat());
        assert!(output.status.success(), "{}", stderr(&output));
        std::fs::write(&plan, output.stdout).unwrap();
    };
    let full = "recompute=full:uniform:1";
    for (framework, fixed, expected) in [
        ("accelerate", &["mb=4", full][..], "train.py MICRO_BATCH_SIZE 4 -> "),
        ("deepspeed", &["mb=1", full, "tp=1", "pp=1"], "train.py RECOMPUTE True -> False"),
        ("bridge", &["tp=8", "pp=2", "mb=1"], "cfg.model.tensor_model_parallel_size 8 -> "),
    ] {
        save(framework, fixed);
        let text = stdout(&autoplan(&["explain", &plan]));
        assert!(text.contains(expected), "{framework}: {text}");
        assert!(!text.contains("activation_checkpointing.") || framework == "accelerate", "{text}");
    }
    // Our own script beside the configuration decides on recomputation, and is told so.
    save("deepspeed", &["mb=1", full, "tp=1", "pp=1"]);
    let output = autoplan(&["export", &plan, "--to", "deepspeed", "-o", &path("launch")]);
    assert!(output.status.success(), "{}", stderr(&output));
    let launch = path("launch/launch.sh");
    let explain =
        || autoplan(&["explain", &launch, "--cluster", "dgx-h100", "--model", "llama3.1-8b", "-s", "4096"]);
    let text = stdout(&explain());
    assert!(
        text.contains("rc-full:uniform:1") && text.contains("train.py RECOMPUTE True -> False"),
        "{text}"
    );
    assert!(!text.contains("activation_checkpointing"), "{text}");
    let script = std::fs::read_to_string(path("launch/train.py")).unwrap();
    std::fs::write(path("launch/train.py"), script.replace("RECOMPUTE = True", "RECOMPUTE = False")).unwrap();
    let text = stdout(&explain());
    assert!(text.lines().nth(1).is_some_and(|plan| plan.contains("rc-none")), "{text}");
}

#[test]
fn plans_of_every_framework_can_be_exported() {
    let folder = tempfile::tempdir().unwrap();
    for (framework, model, gpus) in [
        ("megatron", "nemotron-h-8b", "16"),
        ("bridge", "gpt-oss-20b", "16"),
        ("deepspeed", "mixtral-8x7b", "64"),
        ("megatron-deepspeed", "llama3.1-8b", "32"),
        ("torchtitan", "qwen3-30b-a3b", "32"),
        ("accelerate", "llama3.1-8b", "16"),
    ] {
        let batch = ["-b", "128", "-s", "4096", "--framework", framework, "--top", "1", "--format", "ron"];
        let output = autoplan(&[&["plan", model, "dgx-h100", "--gpus", gpus][..], &batch].concat());
        assert!(output.status.success(), "{framework} {model}: {}", stderr(&output));
        let plan = folder.path().join("plan.ron");
        std::fs::write(&plan, &output.stdout).unwrap();
        let exported = autoplan(&["export", plan.to_str().unwrap(), "--to", framework]);
        assert!(exported.status.success(), "{framework} {model}: {}", stderr(&exported));
    }
}

#[test]
fn a_named_framework_must_have_the_model() {
    let job = ["dgx-h100", "--gpus", "32", "-b", "128", "-s", "4096"];
    for (command, model, framework, others) in [
        ("plan", "mixtral-8x7b", "torchtitan", "megatron, bridge, deepspeed, accelerate"),
        ("explain", "mixtral-8x7b", "torchtitan", "megatron, bridge, deepspeed, accelerate"),
        ("plan", "gemma2-27b", "megatron", "deepspeed, accelerate"),
    ] {
        let named = autoplan(&[&[command, model][..], &job, &["--framework", framework]].concat());
        let text = stderr(&named);
        assert_eq!(named.status.code(), Some(2), "{command} {model} {framework}: {text}");
        assert!(named.stdout.is_empty());
        assert!(text.contains(&format!("{framework} cannot express")) && text.contains(others), "{text}");
    }
    // A run-time profile, a framework that is only predicted, and none at all are no wish for files.
    let folder = tempfile::tempdir().unwrap();
    for framework in [&["--framework", "jax"][..], &["--framework", "llm-foundry"], &[]] {
        let format = ["--top", "1", "--format", "ron", "--even-stages"];
        let output = autoplan(&[&["plan", "gemma2-27b"][..], &job, framework, &format].concat());
        assert!(output.status.success(), "{framework:?}: {}", stderr(&output));
        let exportable = framework.contains(&"llm-foundry");
        assert_eq!(stderr(&output).contains("predictions only"), !exportable, "{}", stderr(&output));
        let plan = folder.path().join("plan.ron");
        std::fs::write(&plan, &output.stdout).unwrap();
        let exported = autoplan(&["export", plan.to_str().unwrap(), "--to", "megatron"]);
        assert_eq!(exported.status.code(), Some(2));
        assert!(
            stderr(&exported).contains("frameworks that can: deepspeed, accelerate"),
            "{}",
            stderr(&exported)
        );
    }
}

/// What is written out is read with its model's name, and without a word on flags that its sharding asks for.
#[test]
fn what_is_written_is_read_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let job = "plan llama3.2-1b dgx-h100 -g 8 -b 32 -s 2048 --max-zero 3 --fix zero=3";
    let script = exported(job, "megatron", "llama-3.2-1b.sh");
    assert!(script.contains("--use-megatron-fsdp") && script.contains("--no-gradient-accumulation-fusion"));
    let path = folder.path().join("launch.sh");
    std::fs::write(&path, &script).unwrap();
    let explain = ["explain", path.to_str().unwrap(), "--cluster", "dgx-h100", "--alone"];
    let read = autoplan(&explain);
    assert!(stdout(&read).starts_with("Llama 3.2 1B on 8 x "), "{}", stdout(&read));
    assert!(!stderr(&read).contains("accumulation-fusion"), "{}", stderr(&read));
    // Of another's script the file names the model.
    let other = script.replace("# made by    autoplan", "# made by    hand");
    std::fs::write(&path, other).unwrap();
    assert!(stdout(&autoplan(&explain)).starts_with("launch on 8 x "));
}

/// What an export assumes and does not write down is said, in the file and beside it; what no layout of the target can do
/// comes before what is wrong with the plan; a name that is taken, if only by a link, is left alone.
#[test]
fn exports_say_what_they_assume_and_refuse_for_the_reason_that_counts() {
    let folder = tempfile::tempdir().unwrap();
    let saved = |name: &str, words: &[&str]| {
        let planned = autoplan(&[words, &["--top", "1", "--format", "ron"]].concat());
        let path = folder.path().join(name);
        std::fs::write(&path, stdout(&planned)).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let job = ["plan", "llama3.1-8b", "dgx-h100", "-g", "8", "-b", "64", "-s", "8192"];
    let packed = saved("packed.ron", &[&job[..], &["--packed", "512x70,4096x25,8192x5"]].concat());
    let output = autoplan(&["export", &packed, "--to", "megatron"]);
    for said in [stdout(&output), stderr(&output)] {
        assert!(
            said.contains("documents of 512x70,4096x25,8192x5 tokens packed into the sequences"),
            "{said}"
        );
    }
    let plain = saved("plain.ron", &job);
    let output = autoplan(&["export", &plain, "--to", "megatron"]);
    assert!(!stdout(&output).contains("assumes") && stderr(&output).is_empty());
    let natural = ["plan", "qwen3-30b-a3b", "dgx-h100", "-g", "32", "-b", "64", "-s", "4096"];
    let natural = saved("natural.ron", &[&natural[..], &["--routing", "natural"]].concat());
    let output = autoplan(&["export", &natural, "--to", "megatron"]);
    assert!(stdout(&output).contains("# assumes    experts chosen as unevenly as in practice\n"));

    let narrow =
        ["plan", "llama3.1-8b", "dgx-b200", "-g", "8", "-b", "64", "-s", "8192", "--precision", "mxfp8"];
    let narrow = saved("narrow.ron", &narrow);
    let said = stderr(&autoplan(&["export", &narrow, "--to", "deepspeed"]));
    assert!(said.contains("the configuration knows bf16 and fp16 only"), "{said}");
    let adapters = saved("adapters.ron", &[&job[..], &["--lora", "16", "--framework", "bridge"]].concat());
    let said = stderr(&autoplan(&["export", &adapters, "--to", "bridge"]));
    assert!(said.contains("no files are written for adapters"), "{said}");

    let out = folder.path().join("out");
    std::fs::create_dir(&out).unwrap();
    let name = out.join("llama-3.1-8b.sh");
    std::os::unix::fs::symlink(folder.path().join("gone"), &name).unwrap();
    let to = ["export", &plain, "--to", "megatron", "-o", out.to_str().unwrap()];
    let refused = autoplan(&to);
    assert_eq!(refused.status.code(), Some(2));
    assert!(stderr(&refused).contains("exists; --force overwrites it"));
    assert!(name.symlink_metadata().unwrap().is_symlink());
    std::fs::remove_file(&name).unwrap();
    std::fs::create_dir(&name).unwrap();
    let refused = autoplan(&[&to[..], &["--force"]].concat());
    assert_eq!(refused.status.code(), Some(2));
    assert!(stderr(&refused).contains("is a folder"));
}

/// Torch's context parallelism knows causal attention without masks alone, and so do the plans that are found, and the
/// nearest ones, which `plan` finds again.
#[test]
fn plans_for_accelerate_and_deepspeed_are_those_that_they_train() {
    let degree = |words: &[&str], name: &str| {
        let planned = autoplan(&[words, &["--format", "json"]].concat());
        let value: serde_json::Value = serde_json::from_str(&stdout(&planned)).unwrap();
        let plans = value["plans"].as_array().unwrap();
        plans.iter().map(|plan| plan["plan"][name].as_u64().unwrap()).max()
    };
    let accelerate = ["--framework", "accelerate"];
    for (job, most) in [
        (["plan", "gpt-oss-20b", "dgx-h100", "-g", "64", "-b", "64", "-s", "4096"], 1),
        (["plan", "nemotron-h-8b", "dgx-h100", "-g", "16", "-b", "96", "-s", "8192"], 1),
        (["plan", "gemma3-27b", "dgx-h100", "-g", "64", "-b", "64", "-s", "8192"], 1),
        (["plan", "llama3.1-8b", "dgx-h100", "-g", "64", "-b", "32", "-s", "32768"], 2),
    ] {
        let found = degree(&[&job[..], &accelerate].concat(), "context_parallel");
        assert!(if most == 1 { found == Some(1) } else { found >= Some(most) }, "{job:?}: {found:?}");
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("plan.ron");
    let job = ["plan", "llama2-13b", "dgx-h100", "-g", "96", "-b", "96", "-s", "8192"];
    let planned = autoplan(&[&job[..], &["--top", "1", "--format", "ron"]].concat());
    std::fs::write(&path, stdout(&planned)).unwrap();
    let said = stderr(&autoplan(&["export", path.to_str().unwrap(), "--to", "deepspeed"]));
    let (_, near) = said.split_once("the nearest plan it accepts is ").unwrap();
    let near = near.split(';').next().unwrap();
    let mut again = job.to_vec();
    again.extend([
        "--framework",
        "deepspeed",
        "--top",
        "100",
        "--per-layout",
        "100",
        "--fix",
        "tp=2",
        "--fix",
        "mb=1",
    ]);
    let table = stdout(&autoplan(&again));
    assert!(near.starts_with("tp2 ") && table.contains(near), "{near}\n{table}");
}

/// Gradients of sharded weights go to their shards in every micro-batch, as is predicted: accelerate/accelerator.py leaves them
/// whole until the last one otherwise.
#[test]
fn accelerate_shards_gradients_of_every_micro_batch() {
    let job =
        "plan llama3.2-3b dgx-h100 -g 8 -b 64 -s 4096 --framework accelerate --fix mb=1,ga=8,cp=1,tp=1,zero=";
    let sharded = exported(&format!("{job}3"), "accelerate", "train.py");
    assert!(sharded.contains("num_steps=ACCUMULATION, sync_each_batch=True"), "{sharded}");
    let whole = exported(&format!("{job}0"), "accelerate", "train.py");
    assert!(whole.contains("Accelerator(gradient_accumulation_steps=ACCUMULATION)"), "{whole}");
}

/// Windows that cut sequences ask for the kernels that are predicted; SDPA would compute whole squares.
#[test]
fn windows_ask_for_kernels_that_skip() {
    for (framework, file) in [("accelerate", "train.py"), ("deepspeed", "train.py")] {
        let job =
            |length: u32| format!("plan mistral-7b dgx-h100 -g 8 -b 16 -s {length} --framework {framework}");
        let script = |length: u32| exported(&job(length), framework, file);
        let cut = script(8192);
        assert!(cut.contains("flash_attention_2") && cut.contains("package flash-attn"), "{cut}");
        assert!(script(4096).contains("sdpa"));
        // They are predicted too: without windows, attention of twice the length has a faster kernel.
        let folder = tempfile::tempdir().unwrap();
        let (with, without) =
            (include_str!("../../../models/mistral-7b.ron"), folder.path().join("whole.ron"));
        let whole = with.replace("window: 4096", "window: 8192");
        assert_ne!(whole, with);
        std::fs::write(&without, whole).unwrap();
        let attention = |model: &str| {
            let job = job(8192).replace("mistral-7b", model);
            let value = stdout(&autoplan_says(&format!("{job} --top 1 --fix tp=1,cp=1,mb=1 --format json")));
            let value: serde_json::Value = serde_json::from_str(&value).unwrap();
            value["plans"][0]["time"]["attention"].as_f64().unwrap()
        };
        // The window leaves three quarters of the scores, but H100's own kernel is 1.5 times as fast as flash-attn 2.
        let ratio = attention("mistral-7b") / attention(without.to_str().unwrap());
        assert!((1.0..1.3).contains(&ratio), "{ratio}");
    }
    // Where no script is written, the launcher says what attention is predicted.
    let launcher = |model: &str| {
        let job = format!("plan {model} dgx-h100 -g 8 -b 16 -s 16384 --framework accelerate");
        exported(&job, "accelerate", "launch.sh")
    };
    assert!(launcher("gemma3-27b").contains("as by flash-attn, which skips"));
    assert!(!launcher("mistral-7b").contains("The prediction counts"));
}
