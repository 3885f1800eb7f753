//! Plans for programs.

use serde_json::{Map, Value, json};

use super::{Report, Row, notes, premises};
use crate::cli::no_plan::{self, NoPlan};
use crate::cli::stages;
use crate::cli::surer::{Sure, Surer};
use crate::cli::warnings::{Leaned, warnings};
use crate::cost::money::{goodput_of, run_cost, step_cost};
use crate::cost::step::Prediction;
use crate::plan::{Layout, Plan};
use crate::planner::Prepared;
use crate::search::OtherSplit;

/// The degrees of a layout by their full names.
pub(crate) fn layout_json(layout: &Layout) -> Map<String, Value> {
    match serde_json::to_value(layout) {
        Ok(Value::Object(map)) => map,
        _ => Map::new(),
    }
}

/// A plan and its prediction, itemised.
pub(crate) fn prediction_json(prepared: &Prepared, plan: &Plan, p: &Prediction) -> Value {
    let mut layout = layout_json(plan.layout());
    layout.insert("global_batch_size".into(), json!(plan.layout().global_batch_size()));
    let mode = plan.common_recompute().map_or_else(|| "mixed".to_owned(), |r| r.to_string());
    layout.insert("recompute".into(), json!(mode));
    let time: Map<String, Value> =
        p.times.iter().map(|(name, time)| (name.to_owned(), json!(time.seconds().0))).collect();
    let memory: Vec<Value> = p
        .memory
        .iter()
        .map(|m| {
            let mut value = serde_json::to_value(m).unwrap_or_default();
            value["total"] = json!(m.total().0);
            value
        })
        .collect();
    let chunks: Vec<Value> = plan
        .chunks()
        .iter()
        .zip(&p.chunks)
        .map(|(chunk, times)| {
            json!({
                "layers": chunk.layers, "recompute": chunk.recompute, "rank": times.rank,
                "forward_s": (times.forward.total() + times.messages).seconds().0,
                "backward_s": (times.backward.total() + times.messages).seconds().0,
            })
        })
        .collect();
    let stages: Vec<u32> = plan.chunks().iter().map(|c| c.layers).collect();
    let rates = prepared.rates(plan, p);
    let run = prepared.run(p);
    let step = step_cost(&run);
    let limit = prepared.cost().memory_limit();
    let [low, high] = p.step_range();
    let idle = p.idle();
    let idle = json!({
        "mean_s": idle.mean.seconds().0,
        "unequal_stages_s": idle.unequal.seconds().0,
        "busiest_rank": idle.busiest,
        "ranks_s": idle.ranks.iter().map(|time| time.seconds().0).collect::<Vec<f64>>(),
    });
    let [least, most] = p.allocated_range();
    let mut value = json!({
        "name": plan.to_string(),
        "plan": layout,
        "gpus": prepared.task.job.gpus,
        "step_time_s": p.step().seconds().0,
        "step_time_sigma": p.step().seconds().0 * p.interval.sigma,
        "step_time_low_s": low.seconds().0,
        "step_time_high_s": high.seconds().0,
        "limiting": p.limiting(),
        "idle": idle,
        "tokens_per_s_per_gpu": rates.tokens_per_s_per_gpu,
        "mfu": rates.mfu,
        "mfu_full_attention": rates.mfu_full_attention,
        "hfu": rates.hfu,
        "usd_per_step": step.per_step.0,
        "usd_per_trillion_tokens": step.per_trillion_tokens.0,
        "cost": step,
        "fits": prepared.cost().fits(p),
        "memory": {
            "allocated": p.allocated.0, "reserved": p.reserved.0, "device": p.device.0,
            "allocated_sigma": p.allocated.0 as f64 * p.memory_interval.sigma,
            "allocated_low": least.0, "allocated_high": most.0,
            "limit": limit.0, "chance_to_fit": prepared.cost().chance_to_fit(p), "stages": memory,
        },
        "off_gpu_per_node": p.off_gpu,
        "time": time,
        "stages": stages,
        "chunks": chunks,
        "layout": stages::layout(prepared, plan),
        "notes": warnings(prepared, plan, p),
    });
    match prepared.task.job.tokens.map(|tokens| run_cost(&run, tokens)) {
        Some(Ok(run)) => value["run"] = serde_json::to_value(run).unwrap_or_default(),
        Some(Err(_)) => {}
        None => value["goodput"] = serde_json::to_value(goodput_of(&run).ok()).unwrap_or_default(),
    }
    if let Some(Leaned { longer, step, run }) = Leaned::of(prepared, p) {
        value["leaned"] = json!({ "longer": longer, "step_time_s": step.seconds().0, "run": run });
    }
    value
}

fn plan_json(row: &Row, all: &[Row]) -> Value {
    let found = row.found;
    let others = all.iter().filter(|other| other.place != row.place);
    let tied: Vec<usize> = others.filter(|other| row.ties(other)).map(Row::number).collect();
    let mut value = prediction_json(row.section.prepared, &found.plan, &found.prediction);
    value["cluster"] = json!(row.section.cluster);
    value["rank"] = json!(row.number());
    // By rank, of all plans where one is picked.
    value["tied_with"] = json!(tied);
    value["pareto"] = json!(row.pareto);
    if let Some(never) = &row.never {
        value["never_ends"] = json!(never.to_string());
    }
    value["even_split_step_time_s"] = json!(found.even.map(|t| t.seconds().0));
    value["split_gap"] = json!(found.split_gap);
    value["proof_cut_short"] = json!(found.cut_short);
    let split = |split: &OtherSplit| {
        json!({
            "stages": split.plan.chunks().iter().map(|chunk| chunk.layers).collect::<Vec<u32>>(),
            "layout": stages::layout(row.section.prepared, &split.plan),
            "recompute": split.plan.common_recompute().map(|way| way.to_string()),
            "step_time_s": split.prediction.step().seconds().0,
            "split_gap": split.split_gap,
        })
    };
    value["polished"] = json!(found.polished.as_deref().map(split));
    value["ranked"] = json!(found.ranked.as_deref().map(split));
    #[cfg(feature = "milp")]
    {
        value["integer_programme"] = json!(found.verified.as_ref().map(|verified| json!({
            "stages": verified.layers,
            "step_time_s": verified.step.seconds().0,
            "chain_bound_s": verified.chain.seconds().0,
            "lower_bound_s": verified.bound.seconds().0,
            "agrees": verified.agrees,
        })));
    }
    value
}

/// What a search did not try unasked.
pub(super) fn left_out_json(prepared: &Prepared, offloads: bool) -> Value {
    prepared.left_out(offloads).into_iter().map(|(what, _)| what).collect()
}

/// A report as one value: `rows` are printed, of `all`.
pub(super) fn json(report: &Report, rows: &[Row], all: &[Row]) -> Value {
    let Some(first) = report.sections.first() else { return Value::Null };
    let prepared = first.prepared;
    let task = prepared.task;
    let premises = premises(task, report.job);
    let searches: Vec<Value> = report
        .sections
        .iter()
        .map(|s| {
            let mut search = json!({
                "cluster": s.cluster, "gpus": s.prepared.task.job.gpus,
                "candidates": s.answer.counters.candidates, "evaluated": s.answer.counters.evaluated,
                "simulated": s.answer.counters.simulated, "pruned": s.answer.counters.pruned,
                "optimality_gap": s.answer.optimality_gap, "offload_opened": s.offloading.is_open(),
                "left_out": left_out_json(s.prepared, s.offloading.is_open()),
            });
            if let Some(own) = s.prepared.cost().own_runs() {
                search["own_runs"] = json!(own);
            }
            if let Some(missed) = no_plan::beyond(s, report.bounds) {
                search["missed"] = json!(missed);
            }
            search
        })
        .collect();
    let mut value = json!({
        "model": report.model,
        "parameters": prepared.parameters.total,
        "active_parameters": prepared.parameters.active,
        "framework": task.target.name(), "profile": task.profile_name,
        "precision": task.job.precision.name(),
        "optimizer": task.job.optimizer.name(),
        "global_batch_size": task.job.global_batch_size,
        "sequence_length": task.job.sequence_length,
        "packed": task.job.packed,
        "given": premises.given,
        "assumed": premises.assumed,
        "expert_capacity": task.job.expert_capacity,
        "notes": ([notes::notes(report, rows), notes::of_plans(rows)].concat()),
        "plans": rows.iter().map(|row| plan_json(row, all)).collect::<Vec<_>>(),
    });
    if let [only] = searches.as_slice() {
        value["search"] = only.clone();
    } else {
        value["searches"] = json!(searches);
    }
    let surer = notes::surer_of(report, rows);
    if let Some(Surer { limit, plan, other }) = surer {
        let of = |Sure { found, chance, .. }: Sure| {
            json!({
                "name": found.plan.to_string(), "plan": layout_json(found.plan.layout()),
                "step_time_s": found.prediction.step().seconds().0, "chance_to_fit": chance,
            })
        };
        let (plan, other) = (plan.map(of), other.map(of));
        value["surer"] =
            json!({ "memory_limit": limit.0, "with_same_degrees": plan, "with_other_degrees": other });
    }
    if rows.is_empty() {
        let NoPlan { nearest, reasons, remedies, stopped } = NoPlan::of(report);
        let nearest = nearest.iter().map(|(section, miss)| {
            json!({
                "name": miss.plan.to_string(), "plan": layout_json(miss.plan.layout()),
                "allocated": miss.allocated.0, "limit": section.prepared.cost().memory_limit().0,
            })
        });
        value["nearest"] = json!(nearest.collect::<Vec<Value>>());
        value["reasons"] = json!(reasons);
        let remedies = remedies
            .into_iter()
            .map(|r| json!({"what": r.what, "plan": r.plan, "step_time_s": r.step.0, "run": r.run, "odds": r.odds}));
        value["remedies"] = json!(remedies.collect::<Vec<Value>>());
        value["ways_out_cut_short"] = json!(stopped);
    }
    if let (Some(asked), Some(best)) = (report.asked, rows.first()) {
        value["gpus_at_most"] = json!(asked);
        value["gpus_idle"] = json!(asked.saturating_sub(best.section.prepared.task.job.gpus));
    }
    if let Some(wall) = report.wall {
        value["wall_s"] = json!(wall.as_secs_f64());
    }
    // They are sought last, as by who reads a table.
    let better = (report.better_numbers)().into_iter().map(|better| {
        json!({
            "number": better.number.name(), "value": better.value, "plan": better.plan,
            "step_time_s": better.step.seconds().0, "more_per_gpu": better.gain,
        })
    });
    value["better_numbers"] = json!(better.collect::<Vec<Value>>());
    value
}
