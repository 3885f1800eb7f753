//! Named sets of measured rows: those that other planners publish their error over, and those that are too
//! noisy to rank plans by.

use std::collections::BTreeMap;

use serde::Serialize;

use super::case::Labels;
use super::{ErrorStatistics, RowReport};

/// Rows that cannot rank plans, with the reason: they differ between repeats, from their neighbours, or from what
/// their own source says elsewhere, by more than plans do.
#[derive(Debug, Clone, Copy)]
pub struct Noise {
    /// Source: prefix of the row's id.
    pub source: &'static str,
    /// Which of its rows, in words; empty: all.
    pub rows: &'static str,
    /// Whether a row of the source is meant.
    meant: fn(&Labels) -> bool,
    /// Why.
    pub why: &'static str,
    /// Whether constants are fitted to them all the same.
    pub fitted: bool,
}

/// The noisy rows of the published table.
pub const NOISE: [Noise; 5] = [
    Noise {
        source: "hfplay",
        rows: "512 GPUs and more",
        meant: |row| row.gpus >= 512,
        why: "ten of twelve nanotron runs on 512 GPUs are 1.25 to 3 times slower than their neighbours",
        fitted: true,
    },
    Noise {
        source: "hfplay",
        rows: "80.0B",
        meant: |row| row.model.contains("80.0B"),
        why: "sixteen of nineteen 80B runs of nanotron are slow in the same way; repeats of one plan differ by 13%",
        fitted: true,
    },
    Noise {
        source: "interne",
        rows: "256 GPUs and more",
        meant: |row| row.gpus >= 256,
        why: "InternEvo on Ethernet slows down with scale whatever the plan (congestion)",
        fitted: true,
    },
    Noise {
        source: "bloom",
        rows: "models of 200 billion parameters",
        meant: |row| row.model.contains("GPT 20"),
        why: "single iterations of the BLOOM tuning; identical runs differ by 9%",
        fitted: true,
    },
    // Trials 132404, 132399, 132393, 132337 (two stages) and 132405, 132401, 132394 (one), and 104137, 97409, 104139, 97401
    // with FlashAttention 1, of the sheet llama_13B_bfloat16_64_GPUs_all_runs.xlsx.
    Noise {
        source: "aalpha",
        rows: "LLaMA 13B, sequences of 2,048, 64 GPUs, two stages",
        meant: |row| {
            row.model == "LLaMA 13B"
                && row.sequence_length == 2048
                && row.gpus == 64
                && row.pipeline_parallel > 1
        },
        why: "the pipeline ran empty after every 256 sequences of a batch that is said to be 2,048: at micro-batches of \
              1, 2, 4 and 8 they took 44.1, 47.4, 55.6 and 72.8 s, which is 39.2, 37.9, 37.1 and 36.4 s times 1 + 1/m for m \
              micro-batches of 256 sequences (one stage: 37.5 to 36.7 s; the same holds without recomputation, with tensor \
              parallelism and with the fused norm), while the older FlashAttention took 42.4, 42.3, 42.5 and 44.7 s for the \
              same plans. Of the other sheets that of 13B on 32 GPUs has something of it (58.0 and 59.6 s at micro-batches of 1 and 2 \
              are 54.6 and 52.9 s times 1 + 1/m; one stage: 53.9 s), and those runs count",
        fitted: false,
    },
];

impl Noise {
    /// The entry that a row falls under.
    #[must_use]
    pub fn of(row: &Labels) -> Option<&'static Self> {
        NOISE.iter().find(|noise| noise.source == row.source && (noise.meant)(row))
    }
}

/// A set of rows with a published error to compare with.
#[derive(Debug, Clone, Copy)]
struct Named {
    name: &'static str,
    sources: &'static [&'static str],
    peer: &'static str,
}

const SETS: [Named; 4] = [
    Named {
        name: "Korthikanti et al. 2022, tables 4 and 5",
        sources: &["seqsel"],
        peer: "Calculon 3.65% mean over 8 of them",
    },
    Named {
        name: "Narayanan et al. 2021, weak scaling",
        sources: &["sc21t1"],
        peer: "Calculon 8.8% mean over 10",
    },
    Named { name: "vTrain, several nodes", sources: &["vtrain"], peer: "Calculon 15.3% mean over 109" },
    Named { name: "SimuMax on B200", sources: &["simumax"], peer: "SimuMax 5.6% mean" },
];

/// Errors over a named set.
#[derive(Debug, Clone, Serialize)]
pub struct NamedSet {
    /// What it is.
    pub name: &'static str,
    /// Its sources.
    pub sources: Vec<&'static str>,
    /// What another planner reaches.
    pub peer: &'static str,
    /// Errors of step time.
    pub step_time: Option<ErrorStatistics>,
    /// Errors with the set's own sources left out of the fit.
    pub left_out: Option<ErrorStatistics>,
    /// Errors of memory.
    pub memory: Option<ErrorStatistics>,
    /// The same with the set's own sources left out of the fit.
    pub left_out_memory: Option<ErrorStatistics>,
    /// Least rank correlation (Spearman) of predicted and measured times within models of four and more rows.
    pub least_spearman: Option<f64>,
    /// The same with the set's own sources left out of the fit.
    pub left_out_spearman: Option<f64>,
}

/// Errors over all named sets.
#[must_use]
pub fn named_sets(rows: &[&RowReport]) -> Vec<NamedSet> {
    SETS.iter()
        .map(|set| {
            let of: Vec<&RowReport> = rows
                .iter()
                .copied()
                .filter(|row| set.sources.contains(&row.labels.source.as_str()))
                .collect();
            let statistics = |error: fn(&RowReport) -> Option<f64>| {
                ErrorStatistics::of(&of.iter().filter_map(|row| error(row)).collect::<Vec<_>>())
            };
            NamedSet {
                name: set.name,
                sources: set.sources.to_vec(),
                peer: set.peer,
                step_time: statistics(RowReport::step_error),
                left_out: statistics(RowReport::left_out_step_error),
                memory: statistics(RowReport::memory_error),
                left_out_memory: statistics(RowReport::left_out_memory_error),
                least_spearman: least_spearman(&of, |row| row.predicted_step_s),
                left_out_spearman: least_spearman(&of, |row| row.left_out_step_s),
            }
        })
        .filter(|set| set.step_time.is_some())
        .collect()
}

/// Least rank correlation of predicted and measured times within models of four and more rows.
fn least_spearman(rows: &[&RowReport], predicted: fn(&RowReport) -> Option<f64>) -> Option<f64> {
    let mut models: BTreeMap<&str, Vec<(f64, f64)>> = BTreeMap::new();
    for row in rows {
        if let Some(pair) = predicted(row).zip(row.measured_step_s) {
            models.entry(&row.labels.model).or_default().push(pair);
        }
    }
    // Runs that all took as long rank nothing, whatever is predicted; equal predictions of different ones rank wrongly.
    let varies = |pairs: &[(f64, f64)]| pairs.iter().any(|pair| pair.1 != pairs[0].1);
    let ranked = models.values().filter(|pairs| pairs.len() >= 4 && varies(pairs));
    ranked.map(|pairs| spearman(pairs).unwrap_or(0.0)).min_by(f64::total_cmp)
}

/// Spearman's rank correlation; none where all numbers of one side are equal, so that nothing is ranked.
#[must_use]
pub fn spearman(pairs: &[(f64, f64)]) -> Option<f64> {
    let ranks = |of: fn(&(f64, f64)) -> f64| -> Vec<f64> {
        // Ties share the mean of their ranks.
        let rank = |x: f64| {
            let below = pairs.iter().filter(|p| of(p) < x).count();
            let same = pairs.iter().filter(|p| of(p) == x).count();
            below as f64 + (same as f64 - 1.0) / 2.0
        };
        pairs.iter().map(|p| rank(of(p))).collect()
    };
    let (a, b) = (ranks(|p| p.0), ranks(|p| p.1));
    let mean = (pairs.len() as f64 - 1.0) / 2.0;
    let sum = |x: &[f64], y: &[f64]| x.iter().zip(y).map(|(x, y)| (x - mean) * (y - mean)).sum::<f64>();
    let scale = (sum(&a, &a) * sum(&b, &b)).sqrt();
    (scale > 0.0).then(|| sum(&a, &b) / scale)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spearman_of_known_orders() {
        let pairs = |order: [f64; 4]| [1.0, 2.0, 3.0, 4.0].into_iter().zip(order).collect::<Vec<_>>();
        assert_eq!(spearman(&pairs([1.0, 2.0, 3.0, 4.0])), Some(1.0));
        assert_eq!(spearman(&pairs([4.0, 3.0, 2.0, 1.0])), Some(-1.0));
        // 1 - 6 * 2 / (4 * 15)
        assert!((spearman(&pairs([1.0, 3.0, 2.0, 4.0])).unwrap() - 0.8).abs() < 1e-12);
        // One run four times ranks nothing.
        assert_eq!(spearman(&pairs([5.0; 4])), None);
        assert_eq!(spearman(&[]), None);
    }
}
