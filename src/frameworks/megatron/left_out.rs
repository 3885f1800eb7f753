//! Flags that bear on a step's time or memory and that no prediction counts: each is said.

use super::flags::{Flags, Read, real_number};

/// Switches, and what the prediction takes in their place.
const SWITCHES: &[(&str, &str)] = &[
    (
        "--distribute-saved-activations",
        "predicted with saved activations whole on every tensor-parallel rank",
    ),
    (
        "--use-checkpoint-args",
        "the checkpoint says sizes and degrees of its own, which are not read: predicted as the flags say",
    ),
    ("--no-bias-gelu-fusion", "predicted as with the fused activation"),
    ("--no-bias-swiglu-fusion", "predicted as with the fused activation"),
    ("--no-rope-fusion", "predicted as with fused rotary positions"),
    ("--no-gradient-accumulation-fusion", "predicted as with gradients added inside of the products"),
    ("--grad-reduce-in-bf16", "predicted with gradients of 32 bits: it takes less memory and traffic"),
    ("--fp8-param-gather", "predicted with weights of 16 bits: it takes less memory and traffic"),
    ("--first-last-layers-bf16", "predicted with all layers in low precision"),
    ("--log-params-norm", "what it computes at every logged step is not predicted"),
    ("--log-num-zeros-in-grad", "what it computes at every step is not predicted"),
    ("--profile", "what profiling costs is not predicted"),
    ("--batch-invariant-mode", "its kernels are slower: predicted as without it"),
    (
        "--check-weight-hash-across-dp-replicas-interval",
        "the sums over all weights that it takes are not predicted",
    ),
];

/// Values of flags, and what the prediction takes in their place.
const VALUES: &[(&str, &str, &str)] = &[
    ("--attention-backend", "unfused", FUSED),
    ("--attention-backend", "local", FUSED),
    ("--transformer-impl", "local", FUSED),
    (
        "--transformer-impl",
        "inference_optimized",
        "predicted with the layers of Transformer Engine, which training has",
    ),
    (
        "--distributed-backend",
        "gloo",
        "it moves messages through the memory of the host, many times slower: predicted as with nccl",
    ),
];

const FUSED: &str = "predicted with fused attention; attention that keeps its scores needs far more memory";

/// Flags that keep attention within documents.
const DOCUMENTS: &[&str] =
    &["--reset-attention-mask", "--reset-position-ids", "--dataloader-inter-document-masking"];

/// States in fewer bits than a plan counts.
const STATES: &[(&str, &str)] =
    &[("--main-grads-dtype", "gradients"), ("--main-params-dtype", "master weights")];

/// Tells of such flags; of the recomputation's where nothing is recomputed.
pub(super) fn notes(f: &mut Flags, recomputes: bool, assumed: &mut Vec<String>) -> Read<()> {
    for (flag, what) in STATES {
        if let Some((format, _)) = f.text(flag)?
            && format != "fp32"
        {
            assumed.push(format!("{flag} {format}: predicted with {what} of 32 bits, it takes less memory"));
        }
    }
    for (flag, what) in SWITCHES {
        // Its own sharding of all states takes no such products, and asks for the flag.
        let asked =
            *flag == "--no-gradient-accumulation-fusion" && f.given.contains_key("--use-megatron-fsdp");
        if f.given.contains_key(*flag) && !asked {
            assumed.push(format!("{flag}: {what}"));
        }
    }
    for (flag, value, what) in VALUES {
        let given = f.given.get(*flag).and_then(|(values, _)| values.first());
        if given.is_some_and(|given| given == value) {
            assumed.push(format!("{flag} {value}: {what}"));
        }
    }
    let dropped = f.given.get("--attention-dropout");
    let dropped =
        dropped.map_or(Some(0.1), |(values, _)| values.first().and_then(|value| real_number(value)));
    if !f.is_fork() && dropped.is_none_or(|share| share != 0.0) {
        let usual = if f.given.contains_key("--attention-dropout") { "" } else { ", as is usual" };
        assumed.push(format!(
            "attention drops some of its scores (--attention-dropout{usual}): what their choice takes is not predicted"
        ));
    }
    // Any other module may hold any layers, and hybrid ones need their pattern: it is listed.
    let pattern = f.given.contains_key("--hybrid-layer-pattern");
    let own = |values: &[String]| {
        let hybrid = |word: &String| word.contains("mamba") || word.contains("hybrid");
        let known = |first: &String| first == "local" || first.starts_with("megatron.core.models.");
        values.first().is_some_and(known) && (pattern || !values.iter().any(hybrid))
    };
    if f.given.get("--spec").is_some_and(|(values, _)| own(values))
        && let Some((values, _)) = f.take("--spec")
        && values.iter().any(|value| value.contains("local"))
    {
        assumed.push("--spec: predicted with the layers of Transformer Engine, not with these".to_owned());
    }
    let documents: Vec<&str> = DOCUMENTS.iter().copied().filter(|flag| f.given.contains_key(*flag)).collect();
    // Positions alone change no work.
    if documents.iter().any(|flag| *flag != "--reset-position-ids") {
        assumed.push(format!(
            "{}: attention stays within documents; predicted over whole sequences",
            documents.join(" ")
        ));
    }
    let groups = "--num-query-groups";
    if !f.is_fork() && f.given.contains_key(groups) && !f.given.contains_key("--group-query-attention") {
        assumed.push(format!("{groups} changes nothing without --group-query-attention"));
    }
    if !f.is_fork() && !f.given.contains_key("--cross-entropy-loss-fusion") {
        let text = "the loss keeps more copies of the logits than with it: predicted as with it";
        assumed.push(format!("no --cross-entropy-loss-fusion: {text}"));
    }
    let recipe = f.given.get("--fp8-recipe").and_then(|(values, _)| values.first());
    if f.given.contains_key("--fp8-format") && recipe.is_none_or(|recipe| recipe == "delayed") {
        let usual = if recipe.is_some() { "" } else { ", as is usual" };
        assumed.push(format!(
            "--fp8-recipe delayed{usual}: predicted as tensorwise, which reads what it quantises once more for its scale"
        ));
    }
    for flag in ["--recompute-modules", "--recompute-num-layers"] {
        if !recomputes && f.given.contains_key(flag) && !f.given.contains_key("--recompute-granularity") {
            assumed.push(format!("{flag} changes nothing without --recompute-granularity"));
        }
    }
    Ok(())
}
