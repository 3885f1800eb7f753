//! The command line as a user meets it.

mod explanations;
mod exports;
mod launches;
mod refusals;
mod runs;
mod searches;
mod ways_out;

use std::process::{Command, Output};

pub(crate) fn autoplan(arguments: &[&str]) -> Output {
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

/// What a way out misses is said of it, and of no other.
fn labels_hold(remedies: &[serde_json::Value], days: f64, usd: f64) {
    for remedy in remedies {
        let what = remedy["what"].as_str().unwrap();
        let late = remedy["run"]["days"].as_f64().unwrap() > days;
        let dear = remedy["run"]["dollars"]["total_usd"].as_f64().unwrap() > usd;
        assert_eq!(what.contains("after the deadline"), late, "{remedy}");
        assert_eq!(what.contains("beyond the budget"), dear, "{remedy}");
    }
}

/// A launch that runs today, a little slower than it could.
const LAUNCH: &str = "#!/bin/bash
export CUDA_DEVICE_MAX_CONNECTIONS=1 GPUS_PER_NODE=8
ARGS=(
    --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32
    --group-query-attention --num-query-groups 8 --swiglu --disable-bias-linear
    --normalization RMSNorm --position-embedding-type rope --untie-embeddings-and-output-weights
    --seq-length 4096 --max-position-embeddings 8192
    --tokenizer-type HuggingFaceTokenizer --tokenizer-model meta-llama/Llama-3.1-8B
    --tensor-model-parallel-size 8 --pipeline-model-parallel-size 2
    --micro-batch-size 1 --global-batch-size 128 --bf16 --use-distributed-optimizer
    --hidden-dropout 0.0 --attention-dropout 0.0 --my-flag 3
)
torchrun --nnodes 2 --nproc-per-node $GPUS_PER_NODE pretrain_gpt.py \"${ARGS[@]}\"
";

/// What a command of several words does.
fn autoplan_says(command: &str) -> Output {
    autoplan(&command.split_whitespace().collect::<Vec<&str>>())
}

/// What a file exports for a plan, by name.
fn exported(job: &str, target: &str, name: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let plan = folder.path().join("plan.ron");
    let output = autoplan(&[&job.split(' ').collect::<Vec<&str>>()[..], &["--format", "ron"]].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    std::fs::write(&plan, &output.stdout).unwrap();
    let into = folder.path().join("launch");
    let output = autoplan(&["export", plan.to_str().unwrap(), "--to", target, "-o", into.to_str().unwrap()]);
    assert!(output.status.success(), "{}", stderr(&output));
    std::fs::read_to_string(into.join(name)).unwrap()
}
