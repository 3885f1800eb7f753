//! Step times of rows that print a rate in their place: TFLOP/s of a GPU, or the share of its BF16 peak (MFU). What such a
//! number counts differs by source, so that the time that follows from it rests on a convention. It is reported under that
//! convention's name, apart from measured times; no constant is fitted to it, and no goal is about it.

use std::collections::BTreeMap;

use super::case::Case;
use super::{ErrorStatistics, RowReport};
use crate::layers::{AttentionCount, packed_model_flops};
use crate::spec::cluster::Format;
use crate::spec::measured::{MeasuredRow, UnreadableCell};

/// How the rates of a source count.
struct Convention {
    source: &'static str,
    attention: AttentionCount,
    words: &'static str,
}

/// All count what a model computes, the head included, recomputation not.
const CONVENTIONS: [Convention; 4] = [
    // Megatron-LM:megatron/training/training.py, num_floating_point_operations, since 2025.
    Convention {
        source: "moezoo",
        attention: AttentionCount::Causal,
        words: "causal half of attention, as Megatron-Core counts since 2025",
    },
    Convention {
        source: "fold",
        attention: AttentionCount::Causal,
        words: "causal half of attention, as Megatron-Core counts since 2025",
    },
    // "Model TFLOP per Appendix A of arXiv 2205.05198": docs/source/performance of NeMo.
    Convention {
        source: "NEMOLS",
        attention: AttentionCount::Full,
        words: "all of attention, as NeMo counts until 25.07",
    },
    // The same function in the Megatron-LM of 2024 that it forked.
    Convention {
        source: "vocabpp",
        attention: AttentionCount::Full,
        words: "all of attention, as Megatron-LM counted in 2024",
    },
];

/// The step time that a row's rate says, where it states no time, and how the rate is taken to count.
pub(super) fn step_of_rate(
    row: &MeasuredRow,
    case: &Case,
) -> Result<Option<(f64, &'static str)>, UnreadableCell> {
    let Some(convention) = CONVENTIONS.iter().find(|one| one.source == case.labels.source) else {
        return Ok(None);
    };
    let peak = case.accelerator.peak(Format::Bf16).0;
    let share = row.positive("mfu_pct")?.map(|percent| percent / 100.0 * peak);
    let rate = row.positive("tflops_per_gpu")?.map(|rate| rate * 1e12).or(share);
    let job = &case.job;
    let flops = packed_model_flops(
        &case.model,
        &case.layers,
        u64::from(job.global_batch_size),
        u64::from(job.sequence_length),
        job.packed.as_ref(),
        convention.attention,
    );
    Ok(rate
        .filter(|_| case.measured.step_s.is_none() && case.measured.out_of_memory != Some(true))
        .map(|rate| (flops.0 / f64::from(job.gpus) / rate, convention.words)))
}

/// Errors against such times: by source and convention, and of models with experts by how tokens are routed.
pub(super) fn table(rows: &[&RowReport]) -> BTreeMap<String, ErrorStatistics> {
    let mut classes: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for row in rows {
        let (Some(error), Some(words)) = (row.rate_error(), row.rate_counts) else { continue };
        let labels = &row.labels;
        classes.entry(format!("{} ({words})", labels.source)).or_default().push(error);
        if !labels.routing.is_empty() {
            classes.entry(format!("experts, {} routing", labels.routing)).or_default().push(error);
        }
    }
    classes.into_iter().filter_map(|(class, errors)| Some((class, ErrorStatistics::of(&errors)?))).collect()
}
