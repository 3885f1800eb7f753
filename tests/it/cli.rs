//! The command line as a user meets it.

use std::process::{Command, Output};

fn autoplan(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_autoplan")).args(arguments).env("NO_COLOR", "1").output().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

const SMALL: [&str; 9] =
    ["plan", "llama3.2-1b", "dgx-a100", "--gpus", "8", "--global-batch", "32", "--seq-len", "2048"];

fn small(more: &[&str]) -> Output {
    autoplan(&[&SMALL[..], more].concat())
}

#[test]
fn json_has_the_promised_shape_and_items_sum_to_the_step() {
    let output = small(&["--format", "json", "--top", "3", "--tokens", "1T"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let value: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(value["framework"], "megatron");
    assert_eq!(value["precision"], "bf16");
    assert_eq!(value["optimizer"], "adamw");
    assert_eq!(value["search"]["optimality_gap"], 0.0);
    assert!(value["search"]["candidates"].as_u64().unwrap() > 100);
    let plans = value["plans"].as_array().unwrap();
    assert!(!plans.is_empty() && plans.len() <= 3);
    for plan in plans {
        let step = plan["step_time_s"].as_f64().unwrap();
        let sum: f64 = plan["time"].as_object().unwrap().values().map(|v| v.as_f64().unwrap()).sum();
        assert!((sum - step).abs() < 1e-9 * step, "{sum} != {step}");
        let degrees = ["tensor_parallel", "pipeline_parallel", "context_parallel", "data_parallel"];
        let product: u64 = degrees.iter().map(|d| plan["plan"][d].as_u64().unwrap()).product();
        assert_eq!(product, 8);
        let layers: u64 = plan["stages"].as_array().unwrap().iter().map(|l| l.as_u64().unwrap()).sum();
        assert_eq!(layers, 16);
        for key in [
            "step_time_sigma",
            "tokens_per_s_per_gpu",
            "mfu",
            "hfu",
            "usd_per_step",
            "usd_per_trillion_tokens",
        ] {
            assert!(plan[key].as_f64().unwrap() > 0.0, "{key}");
        }
        assert!(plan["split_gap"].as_f64().unwrap() >= 0.0);
        let fullest =
            plan["memory"]["stages"].as_array().unwrap().iter().map(|s| s["total"].as_u64().unwrap()).max();
        assert_eq!(fullest, plan["memory"]["allocated"].as_u64());
        assert!(plan["run"]["days"].as_f64().unwrap() > 0.0);
    }
}

#[test]
fn output_is_the_same_at_any_thread_count() {
    let one = small(&["--format", "json", "--threads", "1"]);
    let four = small(&["--format", "json", "--threads", "4"]);
    assert!(one.status.success());
    assert_eq!(one.stdout, four.stdout);
}

#[test]
fn fixing_an_axis_holds() {
    let output = small(&["--format", "json", "--fix", "tp=2", "--fix", "recompute=full:uniform:1"]);
    let value: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
    for plan in value["plans"].as_array().unwrap() {
        assert_eq!(plan["plan"]["tensor_parallel"], 2);
        assert_eq!(plan["plan"]["recompute"], "full:uniform:1");
    }
}

#[test]
fn a_saved_plan_goes_through_explain_compare_and_export() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("plan.ron");
    let saved = small(&["--format", "ron", "--top", "1"]);
    std::fs::write(&path, &saved.stdout).unwrap();
    let path = path.to_str().unwrap();
    let explained = autoplan(&["explain", path, "--format", "json"]);
    assert!(explained.status.success(), "{}", stderr(&explained));
    let value: serde_json::Value = serde_json::from_str(&stdout(&explained)).unwrap();
    // Nothing beats the proved optimum.
    assert!(
        value["best"]["step_time_s"].as_f64().unwrap()
            >= value["step_time_s"].as_f64().unwrap() * (1.0 - 1e-12)
    );
    let compared = autoplan(&["compare", path, path]);
    assert!(compared.status.success(), "{}", stderr(&compared));
    let out = folder.path().join("launch");
    let out = out.to_str().unwrap();
    let exported = autoplan(&["export", path, "--to", "megatron", "-o", out]);
    assert!(exported.status.success(), "{}", stderr(&exported));
    assert!(std::fs::read_dir(out).unwrap().count() > 0);
    // A second export does not overwrite.
    let again = autoplan(&["export", path, "--to", "megatron", "-o", out]);
    assert_eq!(again.status.code(), Some(2));
    assert!(stderr(&again).contains("--force"));
}

#[test]
fn bad_input_is_refused_with_exit_code_2_and_without_output() {
    let cases: &[(&[&str], &str)] = &[
        (&["plan", "llama3.1-9b", "dgx-a100", "--gpus", "8", "-b", "32", "-s", "2048"], "llama3.1-8b"),
        (&["plan", "llama3.1-8b", "dgx-a101", "--gpus", "8", "-b", "32", "-s", "2048"], "dgx-a100"),
        (&["plan", "llama3.1-8b", "dgx-a100", "--gpus", "0", "-b", "32", "-s", "2048"], "--gpus"),
        (&["plan", "llama3.1-8b", "dgx-a100", "--gpus", "12", "-b", "32", "-s", "2048"], "8 and 16"),
        (&["plan", "llama3.1-8b", "dgx-a100", "--gpus", "64..8", "-b", "32", "-s", "2048"], "8..64"),
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
            "Bf16",
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

#[test]
fn a_job_that_fits_nowhere_says_why_and_what_would_help() {
    let arguments =
        ["plan", "llama3.1-70b", "dgx-a100", "--gpus", "8", "-b", "32", "-s", "4096", "--format", "json"];
    let output = autoplan(&arguments);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let value: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert!(value["plans"].as_array().unwrap().is_empty());
    let remedies = value["remedies"].as_array().unwrap();
    assert!(!remedies.is_empty());
    for remedy in remedies {
        assert!(remedy["step_time_s"].as_f64().unwrap() > 0.0);
    }
}

#[test]
fn empty_intersections_are_answered() {
    let output = small(&["--fix", "tp=2", "--fix", "tp=4"]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let output = small(&["--fix", "tp=3"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stdout(&output).contains("no plan"));
}

#[test]
fn lists_and_completions_print() {
    for arguments in
        [&["models"][..], &["clusters"], &["models", "--json"], &["completions", "bash"], &["--help"]]
    {
        let output = autoplan(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", stderr(&output));
        assert!(output.stdout.len() > 200);
    }
}
