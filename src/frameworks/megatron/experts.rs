//! The experts of a launch: Megatron-LM's flags, and those of Megatron-DeepSpeed and MindSpeed where they differ.

use super::super::shell::ImportError;
use super::flags::{Flags, Read};
use super::layer_lists::flags_of;
use super::read_rules::ReadRule;
use crate::plan::Dispatcher;
use crate::spec::job::{ExpertCapacity, LEAST_CAPACITY, MOST_CAPACITY};
use crate::spec::model::{Activation, Moe, Router, RouterGroups, RouterScore};

/// What DeepSpeed's own layer of experts asks for that has no bearing on time or memory
/// (Megatron-DeepSpeed megatron/arguments.py).
const NEUTRAL_OF_FORK: &[&str] = &[
    "--moe-loss-coeff",
    "--moe-eval-capacity-factor",
    "--moe-min-capacity",
    "--create-moe-param-group",
    "--disable-moe-token-dropping",
    "--disable-moe-top2-2nd-expert-sampling",
];

/// The flag that says over how many ranks experts are spread.
pub(super) fn parallel_flag(f: &Flags) -> &'static str {
    const FORK: &str = "--moe-expert-parallel-size";
    if f.is_fork() && f.given.contains_key(FORK) { FORK } else { "--expert-model-parallel-size" }
}

/// A layer of experts, if the model has any; `width` and `activation` are those of the other layers.
///
/// # Errors
/// Values that are none, and what Megatron-LM refuses.
pub(super) fn read(
    f: &mut Flags,
    width: u64,
    activation: Activation,
    bias: bool,
    assumed: &mut Vec<String>,
) -> Read<Option<Moe>> {
    let differ = f.given.get("--num-experts").filter(|(values, _)| values.len() > 1);
    if let Some((values, line)) = differ.filter(|(values, _)| values.iter().any(|v| *v != values[0])) {
        let all = values.join(" ");
        let text = format!("layers differ in their number of experts, which no model here says: `{all}`");
        return Err(ImportError::new(*line, text));
    }
    // The fork takes a number per layer, and one expert for none (megatron/model/transformer.py).
    let fork = f.is_fork();
    if let Some((values, _)) = f.map.get_mut("--num-experts").filter(|_| fork) {
        values.truncate(1);
    }
    if fork {
        NEUTRAL_OF_FORK.iter().for_each(|flag| drop(f.take(flag)));
    }
    let least = if fork { 2 } else { 1 };
    let Some(experts) = f.number("--num-experts")?.filter(|&e| e >= least) else {
        let idle: Vec<&str> =
            OF_EXPERTS_ALONE.iter().copied().filter(|flag| !fork && f.take(flag).is_some()).collect();
        if !idle.is_empty() {
            assumed.push(format!("without --num-experts these change nothing: {}", idle.join(" ")));
        }
        return Ok(None);
    };
    if fork {
        return of_fork(f, (experts, width), activation, bias, assumed).map(Some);
    }
    let scores = [("softmax", false), ("sigmoid", true)];
    let sigmoid = f.choice("--moe-router-score-function", &scores)?.unwrap_or(false);
    let before = f.on("--moe-router-pre-softmax");
    let groups = f.number("--moe-router-num-groups")?.zip(f.number("--moe-router-group-topk")?);
    let top_k = f.number("--moe-router-topk")?.unwrap_or(2);
    // Of a list with other kinds it is not asked.
    let kinds = f.given.get("--moe-router-load-balancing-type");
    let sinkhorn = kinds.is_some_and(|(kinds, _)| matches!(kinds.as_slice(), [kind] if kind == "sinkhorn"));
    // core/transformer/transformer_config.py __post_init__
    let grouped = groups.is_none_or(|(count, chosen)| count > 0 && experts % count == 0 && chosen <= count);
    for (rule, holds, flag, text) in [
        (
            ReadRule::RouterGroups,
            grouped,
            "--moe-router-num-groups",
            format!(
                "{experts} experts do not divide into these groups, or more groups are chosen than there are"
            ),
        ),
        (
            ReadRule::RouterBias,
            sigmoid || !f.given.contains_key("--moe-router-enable-expert-bias"),
            "--moe-router-enable-expert-bias",
            "an expert bias needs --moe-router-score-function sigmoid".to_owned(),
        ),
        (
            ReadRule::RouterTop,
            (1..=experts).contains(&top_k),
            "--moe-router-topk",
            format!("{top_k} of {experts} experts cannot be chosen"),
        ),
        (
            ReadRule::RouterTopOne,
            top_k != 1 || sigmoid || before || sinkhorn,
            "--moe-router-topk",
            "one expert per token with softmax needs --moe-router-pre-softmax".to_owned(),
        ),
    ] {
        if !holds {
            return Err(rule.broken(f.line_of(&[flag]), text));
        }
    }
    let width = f.number("--moe-ffn-hidden-size")?.unwrap_or(width);
    // MindSpeed counts shared experts.
    let shared = f.number("--n-shared-experts")?.map(|count| count.saturating_mul(width));
    let shared = f.number("--moe-shared-expert-intermediate-size")?.or(shared);
    Ok(Some(Moe {
        experts,
        top_k,
        width,
        activation,
        expert_bias: bias,
        shared_width: shared.unwrap_or(0),
        shared_gate: f.on("--moe-shared-expert-gate"),
        latent_width: f.number("--moe-latent-size")?,
        router: Router {
            score: match (sigmoid, before) {
                (true, _) => RouterScore::Sigmoid,
                (false, true) => RouterScore::SoftmaxBeforeTopK,
                (false, false) => RouterScore::Softmax,
            },
            bias,
            balancing_bias: f.on("--moe-router-enable-expert-bias"),
            groups: groups.map(|(count, top_k)| RouterGroups { count, top_k }),
            // Zero stands for none (core/transformer/moe/moe_utils.py topk_routing_with_score_function).
            scaling_factor: f
                .decimal("--moe-router-topk-scaling-factor")?
                .filter(|n| *n != 0.0)
                .unwrap_or(1.0),
        },
    }))
}

/// DeepSpeed's own layer of so many experts of a width (Megatron-DeepSpeed megatron/model/transformer.py
/// ParallelTransformerLayer, DeepSpeed moe/layer.py and moe/sharded_moe.py).
fn of_fork(
    f: &mut Flags,
    (experts, width): (u64, u64),
    activation: Activation,
    bias: bool,
    assumed: &mut Vec<String>,
) -> Read<Moe> {
    let top_k = f.number("--topk")?.unwrap_or(1);
    if !(1..=experts).contains(&top_k) {
        let text = format!("{top_k} of {experts} experts cannot be chosen");
        return Err(ImportError::new(f.line("--topk"), text));
    }
    if let Some(factor) = f.decimal("--moe-train-capacity-factor")?.filter(|factor| *factor != 1.0) {
        assumed.push(format!(
            "--moe-train-capacity-factor {factor}: predicted with as many tokens as are routed"
        ));
    }
    let residual = f.choice("--mlp-type", &[("standard", false), ("residual", true)])?.unwrap_or(false);
    if residual {
        assumed.push("--mlp-type residual: the layer beside the experts is read as a shared expert".into());
    }
    assumed.push(
        "the experts of Megatron-DeepSpeed are predicted as those of Megatron-Core, over all-to-all".into(),
    );
    Ok(Moe {
        experts,
        top_k,
        width,
        activation,
        expert_bias: bias,
        shared_width: if residual { width } else { 0 },
        shared_gate: residual,
        latent_width: None,
        router: Router {
            score: RouterScore::SoftmaxBeforeTopK,
            bias: false,
            balancing_bias: false,
            groups: None,
            scaling_factor: 1.0,
        },
    })
}

/// Most tokens that an expert takes, if that is limited. A factor below zero stands for none
/// (core/transformer/transformer_config.py).
///
/// # Errors
/// What is no number, and a factor that no job has.
pub(super) fn capacity(f: &mut Flags, has_experts: bool) -> Read<Option<ExpertCapacity>> {
    let flag = "--moe-expert-capacity-factor";
    let line = f.line(flag);
    let (factor, padded) = (f.decimal(flag)?, f.on("--moe-pad-expert-input-to-capacity"));
    let capacity = factor.filter(|factor| *factor >= 0.0 && has_experts);
    if let Some(factor) = capacity.filter(|factor| !(LEAST_CAPACITY..=MOST_CAPACITY).contains(factor)) {
        let text = format!("{flag} is {factor}; {LEAST_CAPACITY} to {MOST_CAPACITY} is predicted");
        return Err(ImportError::new(line, text));
    }
    Ok(capacity.map(|factor| ExpertCapacity { factor, padded }))
}

/// Flags that Megatron-LM takes for a model without experts, and does not look at.
const OF_EXPERTS_ALONE: &[&str] = &[
    "--moe-expert-capacity-factor",
    "--moe-layer-freq",
    "--moe-router-enable-expert-bias",
    "--moe-router-num-groups",
    "--moe-router-pre-softmax",
    "--moe-router-score-function",
    "--moe-router-topk",
    "--moe-router-topk-scaling-factor",
    "--moe-shared-expert-gate",
    "--moe-shared-expert-intermediate-size",
    "--moe-shared-expert-overlap",
];

/// Which of a model's layers have experts.
///
/// # Errors
/// A list that is none or has another number of layers.
pub(super) fn layers_with_experts(f: &mut Flags, has_experts: bool, layers: u64) -> Read<Vec<bool>> {
    let frequency = f.text("--moe-layer-freq")?;
    let interval_line = f.line("--expert-interval");
    let interval = if f.is_fork() { f.number("--expert-interval")? } else { None };
    // MindSpeed and others begin with layers that have none; -1 is as good as 0.
    let dense = match f.given.get("--first-k-dense-replace") {
        Some((values, _)) if values == &["-1"] => f.take("--first-k-dense-replace").map(|_| 0),
        _ => f.number("--first-k-dense-replace")?,
    };
    let dense = dense.unwrap_or(0);
    let list = match frequency {
        _ if !has_experts => vec![false; layers as usize],
        Some((text, line)) => flags_of(&text, layers, line)?,
        // Every second one unless said otherwise, counted from 1 (get_num_experts_per_layer).
        None if f.is_fork() => {
            let interval = interval.unwrap_or(2);
            if interval == 0 || interval > layers {
                let text = format!("--expert-interval {interval} leaves no layer with experts");
                return Err(ImportError::new(interval_line, text));
            }
            (1..=layers).map(|layer| layer % interval == 0).collect()
        }
        None => vec![true; layers as usize],
    };
    Ok(list.into_iter().enumerate().map(|(at, on)| on && at as u64 >= dense).collect())
}

/// How tokens are brought to experts.
///
/// # Errors
/// A way that is unknown or not modelled.
pub(super) fn dispatcher(f: &mut Flags, has_experts: bool) -> Read<Option<Dispatcher>> {
    // Forks have the second in an order of their own.
    let kinds = [("allgather", 0), ("alltoall", 1), ("alltoall_seq", 1), ("flex", 2)];
    let usual = if f.is_fork() { 1 } else { 0 };
    let kind = f.choice("--moe-token-dispatcher-type", &kinds)?.unwrap_or(usual);
    let flag = "--moe-flex-dispatcher-backend";
    let backends =
        [("deepep", Some(Dispatcher::DeepEp)), ("hybridep", Some(Dispatcher::HybridEp)), ("ncclep", None)];
    let backend = f.choice(flag, &backends)?.unwrap_or(Some(Dispatcher::DeepEp)).ok_or_else(|| {
        ImportError::new(f.line(flag), "the dispatcher ncclep is not modelled; deepep and hybridep are")
    })?;
    f.on("--moe-enable-deepep");
    Ok(has_experts.then_some(match kind {
        0 => Dispatcher::AllGather,
        1 => Dispatcher::AllToAll,
        _ => backend,
    }))
}
