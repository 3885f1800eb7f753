//! Plans for spreadsheets.

use std::io::Write;

use serde_json::Value;

use super::{Row, layout_json};
use crate::cli::fix::offload_name;
use crate::cli::{Failure, stages};
use crate::cost::money::RunCost;

/// Prints a line for every plan.
pub(super) fn csv(rows: &[Row], out: &mut impl Write) -> Result<(), Failure> {
    let mut writer = csv::Writer::from_writer(out);
    let io = Failure::of_csv;
    let header = [
        "rank",
        "ties_with_first",
        "plan",
        "cluster",
        "gpus",
        "step_time_s",
        "step_time_sigma",
        "step_time_low_s",
        "step_time_high_s",
        "tokens_per_s_per_gpu",
        "mfu",
        "hfu",
        "allocated_bytes",
        "allocated_bytes_sigma",
        "allocated_bytes_low",
        "allocated_bytes_high",
        "chance_to_fit",
        "usd_per_step",
        "usd_per_trillion_tokens",
        "days",
        "usd_total",
        "usd_per_trillion_tokens_with_losses",
        "limiting",
        "layout",
        "tensor_parallel",
        "pipeline_parallel",
        "virtual_stages",
        "context_parallel",
        "expert_parallel",
        "expert_tensor_parallel",
        "data_parallel",
        "micro_batch_size",
        "gradient_accumulation_steps",
        "zero_stage",
        "recompute",
        "framework",
        "precision",
        "offload",
    ];
    /// Further fields of a layout, by the names that JSON has.
    const CHOICES: [&str; 11] = [
        "schedule",
        "shard_group",
        "sequence_parallel",
        "context_comm",
        "dispatcher",
        "tensor_overlap",
        "data_overlap",
        "expert_overlap",
        "shared_overlap",
        "cuda_graphs",
        "mtp_standalone",
    ];
    writer.write_record(header.iter().chain(&CHOICES)).map_err(io)?;
    for row in rows {
        let p = &row.found.prediction;
        let [low, high] = p.step_range();
        let [least, most] = p.allocated_range();
        let degrees = row.found.plan.layout();
        let of_run =
            |of: fn(&RunCost) -> f64| row.run.as_ref().map(of).map_or_else(String::new, |x| x.to_string());
        let record = [
            row.number().to_string(),
            row.ties_with_first.to_string(),
            row.found.plan.to_string(),
            row.section.cluster.clone(),
            row.section.prepared.task.job.gpus.to_string(),
            row.step().0.to_string(),
            (row.step().0 * p.interval.sigma).to_string(),
            low.seconds().0.to_string(),
            high.seconds().0.to_string(),
            row.rates.tokens_per_s_per_gpu.to_string(),
            row.rates.mfu.to_string(),
            row.rates.hfu.to_string(),
            p.allocated.0.to_string(),
            (p.allocated.0 as f64 * p.memory_interval.sigma).to_string(),
            least.0.to_string(),
            most.0.to_string(),
            row.chance_to_fit().to_string(),
            row.usd_per_step.0.to_string(),
            row.usd_per_trillion.0.to_string(),
            of_run(|run| run.days),
            of_run(|run| run.dollars.total.0),
            of_run(|run| run.per_trillion_tokens.0),
            p.limiting().to_owned(),
            stages::layout(row.section.prepared, &row.found.plan),
            degrees.tensor_parallel.to_string(),
            degrees.pipeline_parallel.to_string(),
            degrees.virtual_stages.to_string(),
            degrees.context_parallel.to_string(),
            degrees.expert_parallel.to_string(),
            degrees.expert_tensor_parallel.to_string(),
            degrees.data_parallel.to_string(),
            degrees.micro_batch_size.to_string(),
            degrees.gradient_accumulation_steps.to_string(),
            degrees.zero_stage.to_string(),
            row.found.plan.common_recompute().map_or_else(|| "mixed".to_owned(), |mode| mode.to_string()),
            row.section.prepared.task.target.name().to_owned(),
            row.section.prepared.task.job.precision.name().to_owned(),
            offload_name(degrees.offload),
        ];
        let layout = layout_json(degrees);
        let choice = |name: &str| match layout.get(name) {
            Some(Value::String(text)) => text.clone(),
            None | Some(Value::Null) => String::new(),
            Some(value) => value.to_string(),
        };
        let choices = CHOICES.map(choice);
        writer.write_record(record.iter().chain(&choices)).map_err(io)?;
    }
    writer.flush()?;
    Ok(())
}
