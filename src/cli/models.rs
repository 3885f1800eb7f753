//! `autoplan models` and `autoplan clusters`.

use std::io::Write;

use comfy_table::{CellAlignment, Table};

use super::explain::Format;
use super::{Ending, Failure};
use crate::layers::parameter_count;
use crate::spec;

/// Options of the lists.
#[derive(Debug, clap::Args)]
pub(crate) struct ListArgs {
    /// Output format.
    #[arg(long, value_enum, default_value = "table")]
    format: Format,
}

/// Lists models.
pub(crate) fn models(args: &ListArgs) -> Result<Ending, Failure> {
    let mut table = Table::new();
    table.load_style(comfy_table::presets::NOTHING);
    table.set_header(["name", "model", "parameters", "active", "layers", "hidden", "vocabulary"]);
    let mut rows = Vec::new();
    for spec::shipped::Shipped { name, text } in spec::shipped::models() {
        let model = spec::model_from_text(name, text)?;
        let count = parameter_count(&model);
        table.add_row([
            name.to_owned(),
            model.name.clone(),
            group(count.total),
            group(count.active),
            model.layer_count().to_string(),
            model.hidden.to_string(),
            model.vocabulary.to_string(),
        ]);
        rows.push(serde_json::json!({
            "name": name, "model": model.name, "parameters": count.total, "active_parameters": count.active,
            "layers": model.layer_count(), "hidden": model.hidden, "vocabulary": model.vocabulary,
        }));
    }
    print(args, table, &rows, 2..7)
}

/// Lists clusters.
pub(crate) fn clusters(args: &ListArgs) -> Result<Ending, Failure> {
    let mut table = Table::new();
    table.load_style(comfy_table::presets::NOTHING);
    table.set_header(["name", "cluster", "accelerator", "memory", "domain", "NIC per GPU", "$/GPU-h"]);
    let mut rows = Vec::new();
    for spec::shipped::Shipped { name, .. } in spec::shipped::clusters() {
        let machine = spec::load_cluster(name)?;
        let c = &machine.cluster;
        let nic = c.scale_out.nic * f64::from(c.scale_out.nics_per_node) / f64::from(c.gpus_per_node);
        table.add_row([
            name.to_owned(),
            c.name.clone(),
            machine.accelerator.name.clone(),
            machine.accelerator.memory.to_string(),
            c.scale_up.domain.to_string(),
            nic.to_string(),
            format!("{:.2}", c.price.on_demand.0),
        ]);
        rows.push(serde_json::json!({
            "name": name, "cluster": c.name, "accelerator": machine.accelerator.name,
            "memory_bytes": machine.accelerator.memory.0, "gpus_per_node": c.gpus_per_node,
            "scale_up_domain": c.scale_up.domain, "nic_bytes_per_s_per_gpu": nic.0,
            "usd_per_gpu_hour": c.price.on_demand.0,
        }));
    }
    print(args, table, &rows, 3..7)
}

fn print(
    args: &ListArgs,
    mut table: Table,
    rows: &[serde_json::Value],
    numeric: std::ops::Range<usize>,
) -> Result<Ending, Failure> {
    let mut out = std::io::stdout().lock();
    if args.format == Format::Json {
        writeln!(out, "{}", serde_json::to_string_pretty(rows).unwrap_or_default())?;
        return Ok(Ending::Done);
    }
    for column in numeric {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    writeln!(out, "{table}")?;
    Ok(Ending::Done)
}

/// Digits in groups of three.
pub(crate) fn group(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
