//! Bad input, and options that would do nothing.

use super::*;

#[test]
fn bad_input_is_refused_with_exit_code_2_and_without_output() {
    let cases: &[(&[&str], &str)] = &[
        (&["plan", "llama3.1-9b", "dgx-a100", "--gpus", "8", "-b", "32", "-s", "2048"], "llama3.1-8b"),
        (&["plan", "llama3.1-8b", "dgx-a101", "--gpus", "8", "-b", "32", "-s", "2048"], "dgx-a100"),
        (&["plan", "llama3.1-8b", "dgx-a100", "--gpus", "0", "-b", "32", "-s", "2048"], "--gpus"),
        (&["plan", "llama3.1-8b", "dgx-a100", "--gpus", "12", "-b", "32", "-s", "2048"], "8 and 16"),
        (&["plan", "llama3.1-8b", "dgx-a100", "--gpus", "64..8", "-b", "32", "-s", "2048"], "8..64"),
        (&["plan", "llama3.1-8b", "dgx-a100", "-g", "2,048", "-b", "32", "-s", "2048"], "did you mean 2048?"),
        (
            &["plan", "llama3.1-8b", "dgx-a100", "-g", "8,016,32", "-b", "32", "-s", "2048"],
            "016 begins with 0",
        ),
        (
            &["plan", "dgx-a100", "llama3.1-8b", "-g", "8", "-b", "32", "-s", "2048"],
            "`llama3.1-8b` is a model",
        ),
        (
            &["plan", "llama3.1-8b", "dgx-a100", "--gpus", "8", "-b", "32", "-s", "2048", "--tokens", "15"],
            "a run of 15 tokens is shorter than one step, of 32 x 2048 tokens; did you mean 15B or 15T?",
        ),
        (
            &["plan", "llama3.1-8b", "dgx-a100", "--gpus", "8", "-b", "32", "-s", "2048", "--max-tp", "0"],
            "a whole number from 1 to",
        ),
        (
            &["plan", "llama3.1-8b", "dgx-a100", "--gpus", "8", "--phase", "2048:32:1B", "--top", "2"],
            "of each phase the fastest plan alone is printed",
        ),
        (&["plan", "llama3.1-8b", "dgx-a100", "--gpus", "8", "-b", "0", "-s", "2048"], "global-batch"),
        (
            &["plan", "llama3.1-8b", "dgx-a100", "--gpus", "8", "-b", "32", "-s", "2048", "--fix", "tq=4"],
            "tp",
        ),
        (
            &["plan", "llama3.1-8b", "dgx-a100", "--gpus", "8", "-b", "32", "-s", "2048", "--fix", "tp=x"],
            "whole numbers",
        ),
        (
            &["plan", "llama3.1-8b", "dgx-a100", "--gpus", "8", "-b", "32", "-s", "2048", "--fix", "zero=4"],
            "from 0 to 3",
        ),
        (
            &[
                "plan",
                "llama3.1-8b",
                "dgx-a100",
                "-b",
                "32",
                "-s",
                "2048",
                "--gpus",
                "8",
                "--fix",
                "recompute=selective:core_atn",
            ],
            "selective:core_attn",
        ),
        (
            &["plan", "llama3.1-8b", "dgx-a100", "--gpus", "8", "-b", "32", "-s", "2048", "--tokens", "0"],
            "tokens above 0",
        ),
        (&["explain", "nothing.sh", "--cluster", "dgx-a100"], "there is no such file"),
        (&["explain", "llama3.1-9b", "--cluster", "dgx-a100"], "llama3.1-8b"),
        (&["validate", "--filter", "gpu=H1000"], "gpu=H1000; gpu is H100-SXM-80GB ("),
        (&["validate", "--filter", "gpu=H200", "--filter", "training=lora"], "training is pretrain ("),
        (&["import", "hf", "models/llama3.1-8b.ron"], "this is a model in RON"),
        (&["validate", "--filter", "gpu=B200", "--filter", "gpu=H200"], "gpu=H200; gpu is B200 (71)"),
        (
            &[
                "plan",
                "llama3.1-8b",
                "dgx-a100",
                "-g",
                "8",
                "-b",
                "32",
                "-s",
                "2048",
                "--fix",
                "mtp=standalone",
            ],
            "--fix mtp is of models that predict further tokens",
        ),
        (
            &["plan", "llama3.1-8b", "dgx-a100", "--gpus", "8", "-b", "32", "-s", "2048", "--price", "NaN"],
            "price",
        ),
        (
            &[
                "plan",
                "llama3.1-8b",
                "dgx-a100",
                "--gpus",
                "8",
                "-b",
                "32",
                "-s",
                "2048",
                "--precision",
                "fp8",
            ],
            "bf16, fp16",
        ),
        (
            &[
                "plan",
                "llama3.1-8b",
                "dgx-a100",
                "--gpus",
                "8",
                "-b",
                "32",
                "-s",
                "2048",
                "--framework",
                "megatrom",
            ],
            "megatron",
        ),
        (&["plan", ".", "dgx-a100", "--gpus", "8", "-b", "32", "-s", "2048"], "folder"),
        (&["plan", "nowhere.ron", "dgx-a100", "--gpus", "8", "-b", "32", "-s", "2048"], "nowhere.ron"),
        (&["plan", "$(touch pwned)", "dgx-a100", "--gpus", "8", "-b", "32", "-s", "2048"], "model"),
        (&["explain", "nowhere.ron"], "nowhere.ron"),
        (&["export", "nowhere.ron", "--to", "megatron"], "nowhere.ron"),
        (&["validate", "--filter", "colour=red"], "gpu"),
        (&["validate", "--measured", "."], "folder"),
        (&["plann"], "plan"),
    ];
    for (arguments, expected) in cases {
        let output = autoplan(arguments);
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {text}");
        assert!(output.stdout.is_empty(), "{arguments:?} printed {}", stdout(&output));
        assert!(text.contains(expected), "{arguments:?}: expected `{expected}` in: {text}");
        assert!(!text.contains("panicked"), "{arguments:?}: {text}");
    }
}

/// What a launch or a saved plan says itself is asked for in vain, and nobody is left to believe otherwise.
#[test]
fn options_that_would_change_nothing_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    std::fs::write(path("launch.sh"), LAUNCH).unwrap();
    let config = r#"{"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true}}"#;
    std::fs::write(path("ds.json"), config).unwrap();
    std::fs::write(path("plan.ron"), small(&["--top", "1", "--format", "ron"]).stdout).unwrap();
    let on = ["--cluster", "dgx-h100"];
    let model = ["--cluster", "dgx-h100", "--model", "llama3.1-8b", "-g", "8"];
    let job = ["dgx-h100", "-g", "8", "-b", "8", "-s", "4096"];
    let numbers = [
        ("--micro-batch", "2"),
        ("--accumulation", "2"),
        ("--pipeline-stages", "2"),
        ("--model", "llama3.1-8b"),
        ("--vocab-size", "9"),
        ("--name", "x"),
        ("--seq-len", "4096"),
    ];
    for (what, given, refused) in [
        (path("launch.sh"), &on[..], &[0, 1, 2, 3, 6][..]),
        (path("ds.json"), &model, &[4, 5]),
        (path("plan.ron"), &[], &[0, 1, 2, 3, 4, 5, 6]),
        ("llama3.1-8b".to_owned(), &job, &[0, 1, 2, 3, 4, 5]),
    ] {
        for (option, value) in refused.iter().map(|at| numbers[*at]) {
            let output = autoplan(&[&["explain", &what, option, value, "--alone"][..], given].concat());
            assert_eq!(output.status.code(), Some(2), "{what} {option}");
            assert!(stderr(&output).contains(option), "{what} {option}: {}", stderr(&output));
        }
    }
    // A framework that would not run the launch.
    let output = autoplan(
        &[&["explain", &path("launch.sh"), "--alone", "--framework", "torchtitan"][..], &on].concat(),
    );
    assert_eq!(output.status.code(), Some(2));
    let text = stderr(&output);
    assert!(
        text.contains("a launch of megatron is not predicted as torchtitan") && text.contains("nemo"),
        "{text}"
    );
}

/// What is asked of flags that a plan has no use for is no promise about it, and that is said of the plan that is printed.
#[test]
fn restrictions_that_say_nothing_are_named() {
    let says = |arguments: &[&str]| {
        let output = small(arguments);
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", stderr(&output));
        let lines = stdout(&output) + &stderr(&output);
        lines.lines().filter(|line| line.contains(" nothing of plan ")).map(str::to_owned).collect::<Vec<_>>()
    };
    for (fixes, said) in [
        ("tp=1,sp=on,tp-overlap=on", "--fix `sp` and `tp-overlap` say nothing of plan 1: its tp is 1"),
        ("cp=1,cp-comm=ring", "--fix `cp-comm` says nothing of plan 1: its cp is 1"),
        ("cp=1,dp=1,dp-overlap=on", "--fix `dp-overlap` says nothing of plan 1: its dp and cp are 1"),
    ] {
        let said_of = says(&["--top", "1", "--fix", fixes]);
        assert!(said_of.len() == 1 && said_of[0].ends_with(said), "{fixes}: {said_of:?}");
    }
    // What is off anyway is as it was asked for.
    for fixes in ["tp=1,sp=off,tp-overlap=off", "tp=2,sp=on", "tp=1,sp=on|off"] {
        assert_eq!(says(&["--top", "1", "--fix", fixes]), Vec::<String>::new(), "{fixes}");
    }
    // Of the plan that is picked, and in every format.
    let picked = says(&["--fix", "tp=1,sp=on", "--pick", "2", "--format", "ron"]);
    assert!(picked.len() == 1 && picked[0].contains("of plan 2"), "{picked:?}");
    let printed = says(&["--fix", "tp=1,sp=on", "--top", "1", "--format", "json"]);
    assert_eq!(printed.len(), 1, "{printed:?}");
    let experts = "plan deepseek-v2-lite dgx-a100 -g 8 -b 32 -s 2048 --top 1 --fix ep=1,shared-overlap=on,ep-overlap=on,dispatcher=all-to-all";
    let text = stdout(&autoplan_says(experts));
    let said = "--fix `ep-overlap`, `shared-overlap` and `dispatcher` say nothing of plan 1: its ep is 1";
    assert!(text.contains(said), "{text}");
}

/// A file of another kind is called what it is.
#[test]
fn files_that_are_no_saved_plans_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    std::fs::write(path("launch.sh"), LAUNCH).unwrap();
    std::fs::write(path("flags.txt"), "--num-layers 2\n").unwrap();
    std::fs::write(path("ds.json"), "{}").unwrap();
    std::fs::write(path("empty.ron"), "").unwrap();
    std::fs::write(path("plan.ron"), small(&["--top", "1", "--format", "ron"]).stdout).unwrap();
    // On one line.
    let json: serde_json::Value =
        serde_json::from_str(&stdout(&small(&["--top", "1", "--format", "json"]))).unwrap();
    std::fs::write(path("plan.json"), json.to_string()).unwrap();
    let counts = "plan llama3.2-1b dgx-a100 -g 8,16 -b 32 -s 2048 --format json";
    std::fs::write(path("counts.json"), autoplan_says(counts).stdout).unwrap();
    let phases = "plan llama3.2-1b dgx-a100 -g 8 --phase 2048:32:1B --phase 4096:16:1B --format json";
    std::fs::write(path("phases.json"), autoplan_says(phases).stdout).unwrap();
    let plan = path("plan.ron");
    for (what, kind) in [
        (path("launch.sh"), "no saved plan, but a script"),
        (path("flags.txt"), "no saved plan, but a launch script or a list of arguments"),
        (path("ds.json"), "no saved plan, but a JSON file"),
        (path("empty.ron"), "no saved plan, but an empty file"),
        ("models/llama3.1-8b.ron".to_owned(), "no saved plan, but a model"),
        ("clusters/dgx-h100.ron".to_owned(), "no saved plan, but a cluster"),
        (path("plan.json"), "no saved plan, but what `autoplan plan --format json` printed"),
        (path("phases.json"), "no saved plan, but what `autoplan plan --format json` printed"),
        (path("counts.json"), "no saved plan, but what `autoplan plan --format json` printed"),
        ("llama3.1-8b".to_owned(), "`llama3.1-8b` is a model that ships"),
        ("h100-sxm".to_owned(), "`h100-sxm` is an accelerator that ships"),
    ] {
        for command in
            [&["check", &what][..], &["compare", &plan, &what], &["export", &what, "--to", "megatron"]]
        {
            let output = autoplan(command);
            assert_eq!(output.status.code(), Some(2), "{command:?}");
            let text = stderr(&output);
            assert!(text.contains(kind) && text.contains("autoplan import"), "{command:?}: {text}");
        }
    }
    let output = autoplan(&["explain", &plan, "--cluster", "dgx-h100"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("a saved plan names its cluster"), "{}", stderr(&output));
}

#[test]
fn what_is_not_searched_is_refused_at_once() {
    for (command, said) in [
        ("plan llama3.1-8b dgx-h100 -g 64 -b 64 -s 4096 --fix recompute=full:uniform:9", "full:uniform:8"),
        ("plan llama3.1-8b dgx-h100 -g 64 -b 64 -s 4096 --tokens 1T --deadline 0d", "must be positive"),
        ("explain llama3.1-8b dgx-h100 -g 100 -b 100 -s 4096", "the nearest counts are 96 and 104"),
        ("survey llama3.1-8b dgx-h100 -g 64 -b 64 -s 4096 --tokens 1T", "leave --tokens and --price"),
        ("survey llama3.1-8b dgx-h100,dgx-b200 -g 64 -b 64 -s 4096", "a survey is of one cluster"),
    ] {
        let refused = autoplan_says(command);
        assert_eq!(refused.status.code(), Some(2), "{command}");
        assert!(stderr(&refused).contains(said), "{}", stderr(&refused));
    }
}

/// What a job cannot be seen to assume, or asks of a model or a network that is not made for it, is said.
#[test]
fn what_models_and_networks_are_not_made_for_is_noted() {
    let table = |job: &str| stdout(&autoplan(&job.split(' ').collect::<Vec<&str>>()));
    let dense = table("plan llama2-7b dgx-h100 -g 8 -b 32 -s 8192 --top 1");
    assert!(dense.contains("longer than the 4096"), "{dense}");
    assert!(!dense.contains("routing"), "{dense}");
    assert!(!table("plan llama2-7b dgx-h100 -g 8 -b 32 -s 4096 --top 1").contains("longer than the"));
    // Experts on two nodes; on one, and over InfiniBand, released builds do.
    let experts = |cluster: &str, ep: u32| {
        table(&format!(
            "plan mixtral-8x7b {cluster} -g 32 -b 64 -s 4096 --top 1 --fix ep={ep},dispatcher=deepep,etp=4"
        ))
    };
    for (cluster, ep, noted) in [("h100-efa", 4, true), ("h100-efa", 2, false), ("dgx-h100", 4, false)] {
        let table = experts(cluster, ep);
        assert!(table.contains("balanced routing") && table.contains(" deepep "), "{table}");
        assert_eq!(table.contains("released builds do not run"), noted, "{table}");
        let job = format!(
            "plan mixtral-8x7b {cluster} -g 32 -b 64 -s 4096 --top 1 --fix ep={ep},dispatcher=deepep,etp=4"
        );
        let value = stdout(&autoplan_says(&format!("{job} --format json")));
        assert_eq!(value.contains("released builds do not run"), noted, "{value}");
        assert_eq!(
            exported(&job, "slurm", "mixtral-8x7b.sbatch").contains("that sends through hosts"),
            noted
        );
    }
}

/// What one knows nothing of is said: GPUs that do not ship, memory that is left out, options of experts for a dense model.
#[test]
fn what_is_not_known_or_used_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let h100 = include_str!("../../../clusters/accelerators/h100-sxm.ron");
    let own = h100.replacen("NVIDIA H100 SXM5 80GB", "Rubin X", 1).replacen("memory: \"", "memory: \"1", 1);
    std::fs::write(folder.path().join("rubin.ron"), own).unwrap();
    let cluster = include_str!("../../../clusters/dgx-h100.ron").replace("\"h100-sxm\"", "\"rubin.ron\"");
    let path = folder.path().join("cluster.ron");
    std::fs::write(&path, cluster).unwrap();
    let job = ["plan", "llama3.2-1b", path.to_str().unwrap(), "-g", "8", "-b", "32", "-s", "2048"];
    let output = autoplan(&job);
    let table = stdout(&output);
    assert!(table.contains("Rubin X is no accelerator that ships"), "{table} {}", stderr(&output));
    assert!(table.contains("has for tensors may be allocated, by `memory_limit` in its file"), "{table}");
    assert!(!stdout(&small(&[])).contains("no accelerator that ships"));
    for option in [
        &["--routing", "natural"][..],
        &["--expert-capacity", "1.25"],
        &["--fix", "dispatcher=deepep"],
        &["--fix", "ep-overlap=on"],
    ] {
        let output = small(option);
        assert_eq!(output.status.code(), Some(2));
        assert!(stderr(&output).contains("is of models with experts"), "{}", stderr(&output));
    }
}

/// Files of the wrong kind are called by their names, and a saved plan may come from standard input.
#[test]
fn saved_plans_are_told_from_models() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let saved = small(&["--format", "ron"]);
    std::fs::write(path("plan.ron"), &saved.stdout).unwrap();
    std::fs::write(path("plan.json"), small(&["--format", "json"]).stdout).unwrap();
    let whole = r#"{"model_type": "llama", "hidden_size": 64, "vocab_size": 99, "num_attention_heads": 4,
        "intermediate_size": 128, "rms_norm_eps": 1e-5, "max_position_embeddings": 4096, "num_hidden_layers": 36.0}"#;
    std::fs::write(path("whole.json"), whole).unwrap();
    for (name, said) in [
        ("plan.ron", "this is a saved plan, no model"),
        ("plan.json", "this is what `autoplan plan --format json` printed, not a model"),
        ("whole.json", "found 36.0"),
    ] {
        let output = autoplan(&["plan", &path(name), "dgx-a100", "-g", "8", "-b", "32", "-s", "2048"]);
        assert_eq!(output.status.code(), Some(2));
        assert!(stderr(&output).contains(said), "{}", stderr(&output));
    }
    let output = autoplan(&["plan", "llama3.2-1b", &path("plan.ron"), "-g", "8", "-b", "32", "-s", "2048"]);
    assert!(stderr(&output).contains("this is a saved plan, no cluster"), "{}", stderr(&output));
    for command in [&["check", "-"][..], &["export", "-", "--to", "megatron"]] {
        let mut given = Command::new(env!("CARGO_BIN_EXE_autoplan"));
        let input = std::fs::File::open(path("plan.ron")).unwrap();
        let output = given.args(command).stdin(input).output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
    }
    let empty = autoplan(&["check", "-"]);
    assert_eq!(empty.status.code(), Some(2));
    assert!(stderr(&empty).contains("--> <stdin>"), "{}", stderr(&empty));
}

/// What is missing or misspelt is named, with what was expected.
#[test]
fn what_is_missing_or_misspelt_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let job = "plan llama3.2-1b dgx-h100 -g 8";
    for (words, said) in [
        (
            job.to_owned(),
            "error: --global-batch is needed: sequences of one optimizer step, such as --global-batch 512\n",
        ),
        (
            format!("{job} -b 8"),
            "error: --seq-len is needed: tokens of one sequence, such as --seq-len 4096\n",
        ),
        (format!("{job} --seqlen 8"), "error: there is no option `--seqlen`; did you mean `--seq-len`?\n"),
        (
            format!("{job} -b 8 -s 8 --qqqq"),
            "error: there is no option `--qqqq`; --help lists those there are\n",
        ),
        (
            "calibrate nowhere.csv --cluster dgx-h100".to_owned(),
            "error: nowhere.csv: there is no such file; expected a CSV",
        ),
        (
            "validate --measured nowhere.csv".to_owned(),
            "error: nowhere.csv: there is no such file; expected a CSV",
        ),
        (format!("{job} -b 8 -s 2048 --time-limit soon"), "expected something like \"10s\""),
    ] {
        let output = autoplan_says(&words);
        assert_eq!(output.status.code(), Some(2), "{words}");
        let at = stderr(&output).find(said);
        assert!(
            at.is_some() && (at == Some(0) || !said.starts_with("error")),
            "{words}: {}",
            stderr(&output)
        );
    }
    let runs = folder.path().join("runs.csv");
    std::fs::write(&runs, "id,gpu,gpus,layers,hidden,heads,seq_len\na,H100,8,1,1,1,1\n").unwrap();
    let output = autoplan(&["calibrate", runs.to_str().unwrap(), "--cluster", "dgx-h100"]);
    let missing =
        "the header has no column `global_batch` nor `framework_family`, which every prediction needs";
    assert!(stderr(&output).contains(missing), "{}", stderr(&output));
    // A file that ends in the middle of a word is cut off, whatever the word.
    let whole = stdout(&small(&["--format", "ron"]));
    let (before, _) = whole.split_once("recompute: ").unwrap();
    let cut = folder.path().join("cut.ron");
    std::fs::write(&cut, format!("{before}recomp")).unwrap();
    let output = autoplan(&["check", cut.to_str().unwrap()]);
    assert!(stderr(&output).starts_with("error: `(` is never closed\n"), "{}", stderr(&output));
}
