//! What the stages of a plan hold and take, for people.

use comfy_table::Table;

use super::output::{percent, plain_table, seconds};
use crate::cost::step::Prediction;
use crate::plan::Plan;
use crate::planner::Prepared;
use crate::search::Found;
use crate::stages::layout::{Mtp, write_layout};
use crate::units::Bytes;

/// The layout in Megatron's words.
pub(crate) fn layout(prepared: &Prepared, plan: &Plan) -> String {
    let layers: Vec<u32> = plan.chunks().iter().map(|chunk| chunk.layers).collect();
    let modules = prepared.layers.mtp.map_or(0, |(_, modules)| modules);
    write_layout(&layers, Mtp { modules, standalone: plan.layout().mtp_standalone })
}

/// How much longer the even split takes, and how much faster any other could be.
pub(crate) fn balance(prepared: &Prepared, found: &Found) -> String {
    let target = prepared.task.target;
    let (said, other) = match found.even {
        _ if !target.capabilities().uneven_stages => {
            (format!("{} splits layers evenly", target.name()), "recomputation")
        }
        Some(even) => {
            let longer = even.0 as f64 / found.prediction.step().0 as f64 - 1.0;
            (format!("the even split takes {} longer", percent(longer)), "split")
        }
        None => ("the even split does not fit".into(), "split"),
    };
    format!("{said}; no other {other} is more than {} faster", percent(found.split_gap))
}

/// Chunk by chunk: its rank, its layers, what it recomputes, and its passes of one micro-batch; with a `limit` also the
/// bytes of the whole rank and what is left of the limit. Neighbours that are alike share a line.
pub(crate) fn table(plan: &Plan, prediction: &Prediction, limit: Option<Bytes>) -> Table {
    let mut header = vec!["stages", "rank", "layers", "recompute", "forward", "backward"];
    if limit.is_some() {
        header.extend(["memory of rank", "free"]);
    }
    let mut table = plain_table(&header, 4);
    let line = |k: usize| {
        let (own, cost) = (&plan.chunks()[k], &prediction.chunks[k]);
        let mut cells = vec![
            own.layers.to_string(),
            own.recompute.to_string(),
            seconds((cost.forward.total() + cost.messages).seconds()),
            seconds((cost.backward.total() + cost.messages).seconds()),
        ];
        if let Some(limit) = limit {
            let used = prediction.memory[cost.rank as usize].total();
            let free = limit.0.saturating_sub(used.0) as f64 / limit.0 as f64;
            cells.extend([format!("{:.1} GB", used.gigabytes()), percent(free)]);
        }
        cells
    };
    let count = plan.chunks().len();
    let (mut from, mut own) = (0, line(0));
    for k in 0..count {
        let next = (k + 1 < count).then(|| line(k + 1));
        if next.as_ref() == Some(&own) {
            continue;
        }
        let rank = |k: usize| prediction.chunks[k].rank;
        let (name, ranks) = if from == k {
            (format!("  chunk {k}"), rank(k).to_string())
        } else {
            (format!("  chunks {from}-{k}"), format!("{}-{}", rank(from), rank(k)))
        };
        table.add_row([name, ranks].into_iter().chain(own));
        (from, own) = (k + 1, next.unwrap_or_default());
    }
    table
}
