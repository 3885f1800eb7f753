//! Batches that grow: the plan is that of the full one.

use super::super::export::one_line;
use super::super::shell::ImportError;
use super::flags::{Flags, Read, real_number};
use super::read_rules::ReadRule;
use crate::cost::advice::BatchRamp;

/// `--rampup-batch-size`.
pub(super) fn ramp(f: &mut Flags, assumed: &mut Vec<String>) -> Read<Option<BatchRamp>> {
    let Some((values, line)) = f.values("--rampup-batch-size")? else { return Ok(None) };
    let note = "--rampup-batch-size: the plan is that of the full batch";
    assumed.push(if f.is_fork() {
        note.to_owned()
    } else {
        format!(
            "{note}; Megatron-LM of August 2026 ignores the flag (core/num_microbatches_calculator.py), earlier ones grow the batch"
        )
    });
    let ramp = values.join(" ").parse();
    ramp.map(Some).map_err(|_| {
        let text = format!("--rampup-batch-size takes three whole numbers, found `{}`", values.join(" "));
        ImportError::new(line, text)
    })
}

/// The batch that `--step-batch-size-schedule` ends with.
pub(super) fn last_of_schedule(f: &mut Flags, sequence: u32, assumed: &mut Vec<String>) -> Read<Option<u32>> {
    let Some((text, line)) = f.text(SCHEDULE)? else { return Ok(None) };
    let last = scheduled(&text, sequence).map_err(|why| {
        ReadRule::BatchSchedule.broken(line, format!("{SCHEDULE} `{}`: {why}", one_line(&text)))
    })?;
    assumed.push(format!("{SCHEDULE}: the plan is that of the full batch, {last}"));
    Ok(Some(last))
}

pub(super) const SCHEDULE: &str = "--step-batch-size-schedule";

/// The last batch of `THRESHOLD:BATCH …`, thresholds in tokens (core/num_microbatches_calculator.py
/// `_parse_schedule`, `_validate_schedule`).
fn scheduled(text: &str, sequence: u32) -> Result<u32, String> {
    let entries = text.split(|c: char| c == ',' || c.is_whitespace()).filter(|entry| !entry.is_empty());
    let mut steps: Vec<(f64, u32)> = Vec::new();
    for entry in entries {
        let step = entry.split_once(':').and_then(|(threshold, batch)| {
            let samples = (amount(threshold)? / f64::from(sequence)).floor();
            let batch = amount(batch).filter(|batch| (1.0..=f64::from(u32::MAX)).contains(batch))?;
            Some((samples, batch as u32))
        });
        let expected = "expected THRESHOLD:BATCH, each with K, M, B or T behind it or nothing";
        steps.push(step.ok_or_else(|| format!("`{entry}`: {expected}"))?);
    }
    steps.sort_by(|one, other| one.0.total_cmp(&other.0));
    if steps.first().is_some_and(|(samples, _)| *samples != 0.0) {
        return Err("the first threshold must be 0".to_owned());
    }
    if steps.windows(2).any(|two| two[0].0 >= two[1].0) {
        return Err(format!("thresholds must grow by whole sequences of {sequence} tokens"));
    }
    steps.last().map(|(_, batch)| *batch).ok_or_else(|| "no steps".to_owned())
}

/// `250B`, as the schedule reads it.
fn amount(text: &str) -> Option<f64> {
    const TIMES: [(char, f64); 4] = [('K', 1e3), ('M', 1e6), ('B', 1e9), ('T', 1e12)];
    let text = text.trim().to_ascii_uppercase();
    let (digits, times) = TIMES
        .into_iter()
        .find_map(|(letter, times)| Some((text.strip_suffix(letter)?, times)))
        .unwrap_or((&text, 1.0));
    real_number(digits).map(|number| (number * times).trunc()).filter(|number| number.is_finite())
}
