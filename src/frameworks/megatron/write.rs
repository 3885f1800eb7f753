//! Megatron-LM's files: a launch script, its arguments alone, a Slurm batch script, a Kubernetes job.

use crate::spec::cluster::Architecture;
use std::fmt::Write;

use super::super::Broken;
use super::super::export::{ExportRequest, ExportedFile, Format, quote};
use super::arguments::{Arguments, arguments};

/// A script for torchrun on every node, or the arguments alone.
pub fn launch(request: &ExportRequest) -> Result<Vec<ExportedFile>, Broken> {
    let arguments = arguments(request)?;
    let file = match request.format {
        Format::Args => ExportedFile {
            name: format!("{}.args", request.slug()),
            text: argument_list(request, &arguments),
            executable: false,
        },
        Format::Script => ExportedFile {
            name: format!("{}.sh", request.slug()),
            text: script(request, &arguments),
            executable: true,
        },
    };
    Ok(vec![file])
}

/// One flag with its values per line; leading `NAME=value` words are the environment.
fn argument_list(request: &ExportRequest, arguments: &Arguments) -> String {
    let mut text = request.header("#", &arguments.written_for);
    let _ = writeln!(text, "#\n# Leading NAME=value words belong into the environment of every rank.");
    for (name, value) in &arguments.environment {
        let _ = writeln!(text, "{name}={}", quote(value));
    }
    let _ = writeln!(text, "{}", arguments.entry);
    for section in &arguments.sections {
        let _ = writeln!(text, "# {}", section.comment);
        for (flag, values) in &section.flags {
            text.push_str(&flag_line(flag, values));
            text.push('\n');
        }
    }
    text.push_str("# Synthetic data\n--mock-data\n--tokenizer-type NullTokenizer\n");
    text
}

fn flag_line(flag: &str, values: &[String]) -> String {
    let mut line = flag.to_owned();
    for value in values {
        line.push(' ');
        line.push_str(&quote(value));
    }
    line
}

/// Environment, argument arrays and data choice: the part that every shell script shares.
fn body(request: &ExportRequest, arguments: &Arguments) -> String {
    let mut text = String::new();
    for (name, value) in &arguments.environment {
        let _ = writeln!(text, "export {name}={}", quote(value));
    }
    for section in &arguments.sections {
        let _ = writeln!(text, "\n# {}.\n{}=(", section.comment, section.name);
        for (flag, values) in &section.flags {
            let _ = writeln!(text, "    {}", flag_line(flag, values));
        }
        text.push_str(")\n");
    }
    text.push_str(DATA);
    let steps = request.checkpoints().map_or(UNPREDICTED_SAVE_INTERVAL, |c| c.steps);
    let _ = write!(
        text,
        r#"if [[ -n "${{SAVE:-}}" ]]; then
    DATA+=(--save "$SAVE" --load "$SAVE" --save-interval "${{SAVE_INTERVAL:-{steps}}}")
fi
"#
    );
    text
}

/// Steps between checkpoints where no interval was predicted.
const UNPREDICTED_SAVE_INTERVAL: u64 = 1000;

/// The data set is the user's: named by variables, synthetic without them.
const DATA: &str = r#"
# Data: synthetic, unless DATA_PATH names a preprocessed data set (the prefix of its .bin and .idx
# files) and TOKENIZER_MODEL the tokenizer that made it. SAVE names a folder for checkpoints,
# SAVE_INTERVAL another number of steps between them.
if [[ -n "${DATA_PATH:-}" ]]; then
    DATA=(--data-path "$DATA_PATH" --split "${DATA_SPLIT:-99,1,0}"
        --tokenizer-type "${TOKENIZER_TYPE:-HuggingFaceTokenizer}"
        --tokenizer-model "${TOKENIZER_MODEL:?DATA_PATH needs TOKENIZER_MODEL}")
else
    DATA=(--mock-data --tokenizer-type NullTokenizer)
fi
"#;

/// `"${MODEL[@]}" "${PARALLEL[@]}" …`, one array per line.
fn expansions(arguments: &Arguments) -> String {
    let arrays = arguments.sections.iter().map(|s| s.name).chain(["DATA"]);
    let lines: Vec<String> = arrays.map(|name| format!("    \"${{{name}[@]}}\"")).collect();
    lines.join(" \\\n")
}

fn script(request: &ExportRequest, arguments: &Arguments) -> String {
    let (nodes, per_node) = request.nodes();
    let header = request.header("#", &arguments.written_for);
    let start = if nodes == 1 {
        "# Run it on the node.".to_owned()
    } else {
        format!(
            "# Run it on each of the {nodes} nodes, with NODE_RANK (0 to {}) and MASTER_ADDR (the first node) set.",
            nodes - 1
        )
    };
    format!(
        r#"#!/usr/bin/env bash
{header}#
{start}
# MEGATRON_LM names the checkout. Further arguments are handed on to the training script.
set -euo pipefail

MEGATRON_LM=${{MEGATRON_LM:-$PWD}}

{body}
# One launcher per node.
LAUNCHER=(
    --nnodes {nodes}
    --nproc-per-node {per_node}
    --node-rank "${{NODE_RANK:-0}}"
    --master-addr "${{MASTER_ADDR:-localhost}}"
    --master-port "${{MASTER_PORT:-29500}}"
)

exec torchrun "${{LAUNCHER[@]}}" "$MEGATRON_LM/{entry}" \
{expansions} \
    "$@"
"#,
        body = body(request, arguments),
        entry = arguments.entry,
        expansions = expansions(arguments),
    )
}

/// A batch script: one torchrun per node, rendezvous on the first.
pub fn slurm(request: &ExportRequest) -> Result<Vec<ExportedFile>, Broken> {
    let arguments = arguments(request)?;
    let (nodes, per_node) = request.nodes();
    // Nodes of one fast domain each: without it neighbouring ranks may be of two.
    let (cluster, gpus) = (request.cluster, request.job.gpus);
    let within = (nodes > 1 && gpus <= cluster.scale_up.domain).then_some(gpus);
    let segment = within.or_else(|| cluster.block_of(gpus)).filter(|block| block % per_node == 0);
    let segment = segment.map_or(String::new(), |block| format!("#SBATCH --segment={}\n", block / per_node));
    let text = format!(
        r#"#!/usr/bin/env bash
#SBATCH --job-name={slug}
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node={per_node}
{segment}#SBATCH --exclusive
#SBATCH --output=%x-%j.out
{header}#
# Submit with sbatch, from the Megatron-LM checkout or with MEGATRON_LM set to it. Partition, account,
# time and containers are the site's: give them to sbatch, and options for srun in SRUN_OPTIONS.
set -euo pipefail

MEGATRON_LM=${{MEGATRON_LM:-$PWD}}

{body}
# Ranks meet on the first node of the job; sed reads the whole list, a closed pipe would end the script.
HEAD=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed -n 1p)
LAUNCHER=(
    --nnodes {nodes}
    --nproc-per-node {per_node}
    --rdzv-backend c10d
    --rdzv-endpoint "$HEAD:${{MASTER_PORT:-29500}}"
    --rdzv-id "$SLURM_JOB_ID"
)

# One launcher per node, with all of its processors: srun gives a task one unless it is told. SRUN_OPTIONS is split
# into words on purpose.
# shellcheck disable=SC2086
srun --kill-on-bad-exit=1 ${{SLURM_CPUS_ON_NODE:+--cpus-per-task="$SLURM_CPUS_ON_NODE"}} ${{SRUN_OPTIONS:-}} \
    torchrun "${{LAUNCHER[@]}}" "$MEGATRON_LM/{entry}" \
{expansions} \
    "$@"
"#,
        slug = request.slug(),
        header = request.header("#", &arguments.written_for),
        body = body(request, &arguments),
        entry = arguments.entry,
        expansions = expansions(&arguments),
    );
    Ok(vec![ExportedFile { name: format!("{}.sbatch", request.slug()), text, executable: true }])
}

/// An indexed job with a headless service: pod 0 is the rendezvous.
pub fn kubernetes(request: &ExportRequest) -> Result<Vec<ExportedFile>, Broken> {
    let arguments = arguments(request)?;
    let (nodes, per_node) = request.nodes();
    // Names of services are DNS labels: no dots, at most 63 characters with the pod's number.
    let name: String = request.slug().replace('.', "-").chars().take(40).collect();
    let name = name.trim_end_matches('-');
    let name = if name.starts_with(|c: char| c.is_ascii_alphabetic()) {
        name.to_owned()
    } else {
        format!("model-{name}")
    };
    // JSON strings are YAML strings.
    let string = |text: &str| serde_json::Value::from(text).to_string();
    let mut command = vec![
        "torchrun".to_owned(),
        "--nnodes".into(),
        nodes.to_string(),
        "--nproc-per-node".into(),
        per_node.to_string(),
        "--node-rank".into(),
        "$(JOB_COMPLETION_INDEX)".into(),
        "--master-addr".into(),
        format!("{name}-0.{name}"),
        "--master-port".into(),
        "29500".into(),
        arguments.entry.to_owned(),
    ];
    // `$(` is how Kubernetes refers to variables; two dollars stand for one.
    command.extend(arguments.words().map(|word| word.replace("$(", "$$(")));
    command.extend(["--mock-data", "--tokenizer-type", "NullTokenizer"].map(String::from));
    let command: String = command.iter().map(|word| format!("            - {}\n", string(word))).collect();
    let mut variables = String::new();
    for (name, value) in &arguments.environment {
        let _ = writeln!(variables, "            - {{name: {name}, value: {}}}", string(value));
    }
    let resource = match request.accelerator.architecture {
        Architecture::Cdna3 | Architecture::Cdna4 => "amd.com/gpu",
        _ => "nvidia.com/gpu",
    };
    let text = format!(
        r#"{header}#
# Write an image in place of IMAGE_WITH_MEGATRON_LM that holds it in its working directory, of the age named above; then
# kubectl apply -f this file. Data are synthetic (--mock-data) until other arguments take its place. The network between
# nodes is the site's: without its own resources (RDMA devices, hostNetwork, EFA) NCCL falls back to TCP, far below what
# is predicted.
apiVersion: v1
kind: Service
metadata:
  name: {name}
spec:
  clusterIP: None
  publishNotReadyAddresses: true
  selector:
    job-name: {name}
---
apiVersion: batch/v1
kind: Job
metadata:
  name: {name}
spec:
  completionMode: Indexed
  completions: {nodes}
  parallelism: {nodes}
  backoffLimit: 0
  template:
    spec:
      subdomain: {name}
      restartPolicy: Never
      containers:
        - name: train
          image: IMAGE_WITH_MEGATRON_LM
          workingDir: /opt/megatron-lm
          command:
{command}          env:
{variables}          resources:
            limits:
              {resource}: {per_node}
          volumeMounts:
            - {{name: shm, mountPath: /dev/shm}}
      volumes:
        - name: shm
          emptyDir: {{medium: Memory}}
"#,
        header = request.header("#", &arguments.written_for),
    );
    Ok(vec![ExportedFile { name: format!("{}.kubernetes.yaml", request.slug()), text, executable: false }])
}
