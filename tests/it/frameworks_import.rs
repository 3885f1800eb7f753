//! Import: what was exported comes back as it was; scripts of others are read or named as unreadable.

use autoplan::frameworks::export::{Destination, Format, export};
use autoplan::frameworks::megatron::import::{Imported, import};
use autoplan::frameworks::{Target, legal_plan};
use autoplan::layers::Layers;
use autoplan::plan::{ContextComm, Layout, Recompute, Schedule};
use autoplan::spec::job::Precision;
use autoplan::spec::model::{Block, Mixer, Model};

use crate::frameworks_cases::{Question, Random, Wild, models, question};

/// A layout without what does not show: how sequences would be exchanged if they were split.
fn shown(layout: &Layout) -> Layout {
    let mut layout = *layout;
    if layout.context_parallel == 1 {
        layout.context_comm = ContextComm::Ring;
    }
    layout
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

fn compare(question: &Question, imported: &Imported) {
    assert_eq!(shown(question.plan.layout()), shown(imported.plan.layout()));
    assert_eq!(question.plan.chunks(), imported.plan.chunks());
    assert_eq!(question.job, imported.job);
    same_model(&question.model, &imported.model);
    assert_eq!(imported.unknown, [], "every flag that is written is understood");
}

#[test]
fn thousands_of_plans_survive_export_and_import() {
    let models = models();
    let mut random = Random::new(3);
    let mut done = 0;
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
        let to = if done % 3 == 0 { Destination::Slurm } else { Destination::Framework(Target::Megatron) };
        // Models that Megatron's command line cannot say are refused; the others come back whole.
        let Ok(files) = export(to, &question.request(format)) else { continue };
        let gpus = (format == Format::Args).then_some(question.job.gpus);
        let imported = import(&files[0].text, &question.model.name, gpus)
            .unwrap_or_else(|error| panic!("{error}\n{}", files[0].text));
        compare(&question, &imported);
        done += 1;
    }
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
        (SCRIPT.replace("--vocab-size 51200", "--vocab-size 51200 --num-layers 12"), 8, "given again"),
        (SCRIPT.replace("--global-batch-size 1536", "--global-batch-size 1537"), 12, "no multiple"),
        (
            SCRIPT.replace("stage 1\"", "stage 1 --num-virtual-stages-per-pipeline-rank 6\""),
            11,
            "more than one way",
        ),
        (SCRIPT.replace("stage 1\"", "stage 4\""), 11, "do not divide"),
        (SCRIPT.replace("LAYERS=$((12 * 8))", ""), 7, "known only when the script runs"),
        (
            SCRIPT.replace("--recompute-granularity selective", "--recompute-granularity full"),
            12,
            "needs --recompute-method",
        ),
        (SCRIPT.replace("size 8 --seq", "size 7 --seq"), 11, "do not divide"),
        (SCRIPT.replace("--hidden-size 12288", ""), 11, "no --hidden-size"),
        (SCRIPT.replace("--hidden-size 12288", "--hidden-size wide"), 7, "whole number"),
    ] {
        let error = import(&text, "x", None).expect_err(part);
        assert!(error.message.contains(part) && error.line == line, "{part}: {error}");
    }
}
