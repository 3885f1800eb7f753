//! What the stages of a plan hold and take, for people.

use std::ops::Range;

use comfy_table::{CellAlignment, Table};

use super::output::{by, percent, plain_table, seconds};
use crate::cost::step::{Idle, Prediction};
use crate::plan::{Plan, Recompute};
use crate::planner::Prepared;
use crate::search::Found;
use crate::stages::layout::{Mtp, write_layout};
use crate::units::{Bytes, Picos};

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
        Some(even) => match percent(even.0 as f64 / found.prediction.step().0 as f64 - 1.0).as_str() {
            "0.0%" => ("the even split takes as long".into(), "split"),
            longer => (format!("the even split takes {longer} longer"), "split"),
        },
        None => ("the even split does not fit".into(), "split"),
    };
    // Better splits stand beside plans that are printed as they were ranked.
    let known = match found.known_gap() {
        0.0 => "no".to_owned(),
        known => format!("one with layers moved is {} faster, and no", by(known)),
    };
    match found.split_gap {
        0.0 => format!("{said}; {known} other {other} is faster"),
        gap if percent(gap) == percent(0.0) => {
            format!("{said}; {known} other {other} is {} faster", percent(0.001))
        }
        gap => format!("{said}; {known} other {other} is more than {} faster", percent(gap)),
    }
}

/// How long ranks wait for one another, and for which of them.
pub(crate) fn idle(prepared: &Prepared, plan: &Plan, prediction: &Prediction) -> String {
    let Idle { busiest, mean, unequal, work, .. } = prediction.idle();
    let share = |time: Picos| percent(time.0 as f64 / prediction.step().0 as f64);
    let all = format!("ranks idle {} of the step on average", share(mean));
    if share(unequal) == percent(0.0) {
        return format!("{all}, as passes fill and drain");
    }
    let own = (0..plan.chunks().len()).filter(|&k| prediction.chunks[k].rank as usize == busiest);
    let beside: Vec<String> =
        own.map(|k| ends(prepared, plan, k)).filter(|beside| !beside.is_empty()).collect();
    let beside = if beside.is_empty() { String::new() } else { format!(" ({})", beside.join(", ")) };
    let more = percent(unequal.0 as f64 / work.saturating_sub(unequal).0.max(1) as f64);
    format!(
        "{all}: {} as passes fill and drain, {} as rank {busiest}{beside} has {more} more to do than the mean",
        share(mean.saturating_sub(unequal)),
        share(unequal),
    )
}

/// Chunk by chunk: its ranks, its layers, what it recomputes, its passes of one micro-batch, and what else it holds; where
/// every rank has one chunk also how long it idles and, where there is a `limit`, its bytes and what is left of the limit.
pub(crate) fn table(
    prepared: &Prepared,
    plan: &Plan,
    prediction: &Prediction,
    limit: Option<Bytes>,
) -> Table {
    let single = plan.layout().virtual_stages == 1;
    let limit = limit.filter(|_| single);
    let idle = prediction.idle();
    let mut header = vec!["stages", "rank", "layers", "recompute", "forward", "backward"];
    if single {
        header.push("idle");
    }
    if limit.is_some() {
        header.extend(["memory of rank", "free"]);
    }
    header.push("beside layers");
    let line = |k: usize| {
        let (own, cost) = (&plan.chunks()[k], &prediction.chunks[k]);
        let mut cells = vec![
            own.layers.to_string(),
            own.recompute.to_string(),
            seconds((cost.forward.total() + cost.messages).seconds()),
            seconds((cost.backward.total() + cost.messages).seconds()),
        ];
        cells.extend(single.then(|| idle_of(&idle, cost.rank as usize, prediction)));
        cells.extend(limit.into_iter().flat_map(|limit| memory_of(prediction, cost.rank, limit)));
        cells.push(ends(prepared, plan, k));
        cells
    };
    let mut table = plain_table(&header, 4);
    for (range, own) in alike(plan.chunks().len(), line) {
        let ranks = range.clone().map(|k| prediction.chunks[k].rank).collect();
        table.add_row([named("chunk", &range), ranges(ranks)].into_iter().chain(own));
    }
    if let Some(column) = table.column_iter_mut().last() {
        column.set_cell_alignment(CellAlignment::Left);
    }
    table
}

/// What a chunk holds beside layers, in words.
fn ends(prepared: &Prepared, plan: &Plan, chunk: usize) -> String {
    let last = plan.chunks().len() - 1;
    let predicts = plan.layout().mtp_chunk().map_or(last, |mtp| mtp as usize);
    // Beside layers that recompute modules may not.
    let recompute = plan.chunks()[chunk].recompute;
    let own = recompute.of_modules(prepared.task.profile.memory.further_recomputed);
    let further = if own == Recompute::None && recompute != Recompute::None {
        "multi-token prediction (not recomputed)"
    } else {
        "multi-token prediction"
    };
    let words = [
        ("embedding", chunk == 0),
        (further, chunk == predicts && prepared.layers.mtp.is_some()),
        ("head", chunk == last),
    ];
    let here = words.into_iter().filter(|(_, here)| *here).map(|(word, _)| word);
    here.collect::<Vec<_>>().join(", ")
}

/// Rank by rank: how long it idles and, where there is a `limit`, its bytes and what is left of the limit; none where
/// [`table`] says it.
pub(crate) fn ranks(plan: &Plan, prediction: &Prediction, limit: Option<Bytes>) -> Option<Table> {
    if plan.layout().virtual_stages == 1 {
        return None;
    }
    let mut header = vec!["ranks", "idle"];
    if limit.is_some() {
        header.extend(["memory", "free"]);
    }
    let mut table = plain_table(&header, 1);
    let idle = prediction.idle();
    let line = |rank: usize| {
        let mut cells = vec![idle_of(&idle, rank, prediction)];
        cells.extend(limit.into_iter().flat_map(|limit| memory_of(prediction, rank as u32, limit)));
        cells
    };
    for (range, own) in alike(prediction.memory.len(), line) {
        table.add_row([named("rank", &range)].into_iter().chain(own));
    }
    Some(table)
}

fn idle_of(idle: &Idle, rank: usize, prediction: &Prediction) -> String {
    percent(idle.ranks[rank].0 as f64 / prediction.step().0 as f64)
}

fn memory_of(prediction: &Prediction, rank: u32, limit: Bytes) -> [String; 2] {
    let used = prediction.memory[rank as usize].total();
    let free = limit.0.saturating_sub(used.0) as f64 / limit.0 as f64;
    [format!("{:.1} GB", used.gigabytes()), percent(free)]
}

/// Neighbours that are alike, with what they share.
fn alike(count: usize, line: impl Fn(usize) -> Vec<String>) -> Vec<(Range<usize>, Vec<String>)> {
    let mut runs: Vec<(Range<usize>, Vec<String>)> = Vec::new();
    for k in 0..count {
        let own = line(k);
        match runs.last_mut() {
            Some((range, known)) if *known == own => range.end = k + 1,
            _ => runs.push((k..k + 1, own)),
        }
    }
    runs
}

fn named(what: &str, range: &Range<usize>) -> String {
    match range.len() {
        1 => format!("  {what} {}", range.start),
        _ => format!("  {what}s {}-{}", range.start, range.end - 1),
    }
}

/// Numbers as ranges: `2-5`, `0-1,6-7`.
fn ranges(mut numbers: Vec<u32>) -> String {
    numbers.sort_unstable();
    numbers.dedup();
    let runs = numbers.chunk_by(|a, b| a + 1 == *b);
    let text = runs.map(|run| match run {
        [one] => one.to_string(),
        run => format!("{}-{}", run[0], run[run.len() - 1]),
    });
    text.collect::<Vec<_>>().join(",")
}
