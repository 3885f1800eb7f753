//! Rules between flags that no plan says: an export cannot break them, a script of another hand can.

use std::collections::BTreeMap;

use super::super::export::{Change, Settings};
use super::super::shell::{is_unknown, shown};
use super::flags::{real_number, whole_number};
use super::layer_lists::flags_of;
use crate::plan::Layout;
use crate::spec::cluster::Architecture;
use crate::units::product;

/// One rule between flags.
pub struct FlagRule {
    /// Short name, unique.
    pub name: &'static str,
    /// File (and symbol) of Megatron-LM, below `megatron/`, that enforces it.
    pub source: &'static str,
    pub(super) check: fn(&Command) -> Result<(), Complaint>,
}

/// The flag to point at, and what is wrong with it.
pub(super) type Complaint = (&'static str, String);

/// What the rules look at.
pub(super) struct Command<'a> {
    /// Every flag with its values and its line.
    pub given: &'a BTreeMap<String, (Vec<String>, usize)>,
    /// Variables of the environment.
    pub environment: &'a BTreeMap<String, String>,
    /// The degrees that were read.
    pub layout: &'a Layout,
    /// Decoder layers.
    pub layers: u32,
    /// Silicon of the GPUs, where the cluster is known.
    pub architecture: Option<Architecture>,
    /// The command of a script, which sets its environment, not a list of arguments.
    pub script: bool,
    /// Whether all flags are known.
    pub whole: bool,
}

impl Command<'_> {
    fn has(&self, flag: &str) -> bool {
        self.given.contains_key(flag)
    }
    fn values(&self, flag: &str) -> &[String] {
        self.given.get(flag).map_or(&[], |(values, _)| values)
    }
    fn is(&self, flag: &str, value: &str) -> bool {
        self.values(flag).first().is_some_and(|v| v == value)
    }
    fn lists(&self, flag: &str, value: &str) -> bool {
        self.values(flag).iter().any(|v| v == value)
    }
    fn number(&self, flag: &str) -> Option<u32> {
        self.values(flag).first().and_then(|text| whole_number(text)).and_then(|n| u32::try_from(n).ok())
    }
    fn real(&self, flag: &str) -> Option<f64> {
        self.values(flag).first().and_then(|text| real_number(text))
    }
    /// Whether a variable may have this value: only a running shell knows some.
    fn may_be(&self, variable: &str, value: &str) -> bool {
        self.environment.get(variable).is_some_and(|v| v == value || is_unknown(v))
    }
    fn is_set(&self, variable: &str, value: &str) -> bool {
        self.environment.get(variable).is_some_and(|v| v == value)
    }
    /// One connection per device must order tensor- and context-parallel messages.
    fn orders_messages(&self) -> bool {
        let free = ["--use-torch-fsdp2", "--use-megatron-fsdp", "--overlap-moe-expert-parallel-comm"];
        let split = self.layout.tensor_parallel > 1 || self.layout.context_parallel > 1;
        split && !free.iter().any(|flag| self.has(flag))
    }
}

const EXPERT_TENSOR: &str = "--expert-tensor-parallel-size";
const CONNECTIONS: &str = "CUDA_DEVICE_MAX_CONNECTIONS";

/// What stops the launch in surroundings that are not known, or is slow in those that are.
pub(super) fn warnings(c: &Command) -> Vec<String> {
    let mut found = Vec::new();
    let before_blackwell = c.architecture != Some(Architecture::Blackwell);
    let split = c.layout.tensor_parallel > 1 || c.layout.context_parallel > 1;
    let known = c.script && c.architecture.is_some();
    if before_blackwell && c.orders_messages() && !known && !c.may_be(CONNECTIONS, "1") {
        found.push(format!(
            "tensor and context parallelism need {CONNECTIONS}=1 on GPUs before Blackwell: Megatron-LM stops without it"
        ));
    }
    // Who says how many has weighed that.
    let chosen = c.environment.get(CONNECTIONS).is_some_and(|value| !is_unknown(value));
    if before_blackwell && c.script && split && !c.orders_messages() && !chosen {
        found.push(format!(
            "before Blackwell, tensor and context parallelism are fastest with {CONNECTIONS}=1, FSDP and expert overlap with more"
        ));
    }
    if c.has("--deterministic-mode") {
        found.push("--deterministic-mode takes slower kernels and rings: predicted as without it".to_owned());
    }
    found
}

/// What a launch has to give up for the changes that lead to another plan: flags of its own that these exclude, and that
/// are not `meant` to be there.
#[must_use]
pub fn in_the_way(
    settings: &Settings,
    (changes, meant): (&[Change], &Settings),
    (layout, layers): (&Layout, u32),
    architecture: Architecture,
) -> Vec<Change> {
    let words = |value: &str| value.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    // Where two exclude each other, the later one is named: that of the launch.
    let own = settings.iter().map(|(name, value)| (name.clone(), (words(value), 2)));
    let mut given: BTreeMap<String, (Vec<String>, usize)> = own.collect();
    for Change { name, to, .. } in changes {
        match to {
            Some(value) => given.insert(name.clone(), (words(value), 1)),
            None => given.remove(name),
        };
    }
    let variables = given.iter().filter(|(name, _)| !name.starts_with("--"));
    let environment = variables.map(|(name, (words, _))| (name.clone(), words.join(" "))).collect();
    let mut found: Vec<Change> = Vec::new();
    loop {
        let command = Command {
            given: &given,
            environment: &environment,
            layout,
            layers,
            architecture: Some(architecture),
            script: false,
            whole: true,
        };
        let complaint = FLAG_RULES.iter().find_map(|rule| {
            let (flag, _) = (rule.check)(&command).err()?;
            (given.get(flag)?.1 == 2 && !meant.contains_key(flag)).then_some(flag)
        });
        let Some(flag) = complaint else { return found };
        found.push(Change { name: flag.to_owned(), from: settings.get(flag).cloned(), to: None });
        given.remove(flag);
    }
}

fn refuse(wrong: bool, flag: &'static str, text: impl Into<String>) -> Result<(), Complaint> {
    if wrong { Err((flag, text.into())) } else { Ok(()) }
}

/// `flag` needs `other`, unless that may be among the flags that are not known.
fn needs(c: &Command, flag: &'static str, other: &str) -> Result<(), Complaint> {
    refuse(c.whole && c.has(flag) && !c.has(other), flag, format!("{flag} needs {other}"))
}

/// Two flags exclude each other; the later one is pointed at.
fn excludes(c: &Command, one: &'static str, other: &'static str) -> Result<(), Complaint> {
    let (Some((_, a)), Some((_, b))) = (c.given.get(one), c.given.get(other)) else { return Ok(()) };
    Err((if a > b { one } else { other }, format!("{one} and {other} exclude each other")))
}

const ARGUMENTS: &str = "training/arguments.py validate_args";
const CONFIG: &str = "core/transformer/transformer_config.py __post_init__";

/// Rules between flags, in the order in which they are asked.
pub static FLAG_RULES: &[FlagRule] = &[
    FlagRule {
        name: "connections",
        source: ARGUMENTS,
        check: |c| {
            let known = c.script && c.architecture.is_some_and(|a| a != Architecture::Blackwell);
            let flags = ["--tensor-model-parallel-size", "--context-parallel-size"];
            let flag = flags.into_iter().find(|f| c.number(f).is_some_and(|n| n > 1)).unwrap_or(flags[0]);
            let said = match c.environment.get(CONNECTIONS) {
                Some(value) => format!("the script sets it to {}", shown(value)),
                None => {
                    format!("the script does not export it (where the surroundings do: -- {CONNECTIONS}=1)")
                }
            };
            refuse(
                known && c.orders_messages() && !c.may_be(CONNECTIONS, "1"),
                flag,
                format!("tensor and context parallelism before Blackwell need {CONNECTIONS}=1; {said}"),
            )
        },
    },
    FlagRule {
        name: "stage-messages",
        source: "core/parallel_state.py initialize_model_parallel, pipeline_model_parallel_comm_backend",
        check: |c| {
            let flag = "--pipeline-model-parallel-comm-backend";
            let one = c.is(flag, "ucc") && c.is_set(CONNECTIONS, "1");
            refuse(one, flag, format!("{flag} ucc needs {CONNECTIONS} above 1, or not set"))
        },
    },
    FlagRule {
        name: "learning-rates",
        source: ARGUMENTS,
        check: |c| {
            let (Some(most), Some(least)) = (c.real("--lr"), c.real("--min-lr")) else { return Ok(()) };
            refuse(least > most, "--min-lr", "--min-lr is above --lr")
        },
    },
    FlagRule {
        name: "warm-up",
        source: "core/optimizer_param_scheduler.py __init__",
        check: |c| {
            let (most, first) = ("--lr", "--lr-warmup-init");
            if let (Some(most), Some(start)) = (c.real(most), c.real(first)) {
                let below = start <= most;
                refuse(!below, first, format!("{first} is above --lr"))?;
            }
            for (warm, decay, train) in [
                ("--lr-warmup-iters", "--lr-decay-iters", "--train-iters"),
                ("--lr-warmup-samples", "--lr-decay-samples", "--train-samples"),
            ] {
                let end = if c.has(decay) { decay } else { train };
                if let (Some(warm_up), Some(steps)) = (c.number(warm), c.number(end)) {
                    let text = format!("{warm} {warm_up} is not below {end} {steps}");
                    refuse(c.has(train) && warm_up >= steps, warm, text)?;
                }
            }
            let (style, long) = ("--lr-decay-style", ["--lr-wsd-decay-iters", "--lr-wsd-decay-samples"]);
            let long = long[usize::from(c.has("--train-samples"))];
            if c.is(style, "WSD") {
                needs(c, style, long)?;
            }
            excludes(c, "--override-opt-param-scheduler", "--use-checkpoint-opt-param-scheduler")
        },
    },
    FlagRule {
        name: "gated-activation",
        source: CONFIG,
        check: |c| {
            if !c.has("--swiglu") {
                return Ok(());
            }
            let (clamp, offset) = ("--activation-func-clamp-value", "--glu-linear-offset");
            let moved = c.real(offset).is_some_and(|offset| offset != 0.0);
            let fused = !c.has("--no-bias-swiglu-fusion");
            refuse(
                c.whole && moved && fused,
                offset,
                format!("{offset} with --swiglu needs --no-bias-swiglu-fusion"),
            )?;
            if let Some(most) = c.real(clamp) {
                let text = format!("{clamp} takes a finite number above 0");
                refuse(!(most.is_finite() && most > 0.0), clamp, text)?;
                needs(c, clamp, "--num-experts")?;
                refuse(moved, offset, format!("{offset} excludes {clamp} with --swiglu"))?;
            }
            Ok(())
        },
    },
    FlagRule {
        name: "weight-decays",
        source: ARGUMENTS,
        check: |c| {
            let (style, start, end) =
                ("--weight-decay-incr-style", "--start-weight-decay", "--end-weight-decay");
            if c.is(style, "linear") || c.is(style, "cosine") {
                [start, end].into_iter().try_for_each(|other| needs(c, style, other))?;
                let falls = c.real(start).zip(c.real(end)).is_some_and(|(start, end)| end < start);
                return refuse(falls, end, format!("{end} is below {start}"));
            }
            // It is constant unless said otherwise.
            let known = c.whole && !c.values(style).iter().any(|value| is_unknown(value));
            let given = [start, end].into_iter().find(|flag| known && c.has(flag));
            refuse(given.is_some(), given.unwrap_or(start), format!("it needs {style} linear or cosine"))
        },
    },
    FlagRule {
        name: "converted-checkpoints",
        source: ARGUMENTS,
        check: |c| {
            let others = ["--ckpt-convert-save", "--load"];
            others.into_iter().try_for_each(|other| needs(c, "--ckpt-convert-format", other))
        },
    },
    FlagRule {
        name: "checkpoints-between",
        source: ARGUMENTS,
        check: |c| {
            let flag = "--non-persistent-ckpt-type";
            refuse(c.is(flag, "in_memory"), flag, "only global and local checkpoints are supported")?;
            if c.is(flag, "local") { needs(c, flag, "--non-persistent-local-ckpt-dir") } else { Ok(()) }
        },
    },
    FlagRule {
        name: "kept-checkpoints",
        source: ARGUMENTS,
        check: |c| {
            let (retain, params) = ("--save-retain-interval", "--save-params-interval");
            if !c.has("--save") {
                return Ok(());
            }
            if let (Some(kept), Some(saved)) = (c.number(retain), c.number("--save-interval")) {
                let wrong = kept == 0 || saved > 0 && kept % saved != 0;
                refuse(wrong, retain, format!("{kept} is no multiple of --save-interval {saved}"))?;
            }
            if c.has(params) { excludes(c, params, "--overlap-param-gather") } else { Ok(()) }
        },
    },
    FlagRule {
        name: "loaded-master-weights",
        source: ARGUMENTS,
        check: |c| needs(c, "--load-main-params-from-ckpt", "--no-load-optim"),
    },
    FlagRule {
        name: "local-attention",
        source: ARGUMENTS,
        check: |c| {
            let flag = "--attention-backend";
            let wrong = c.whole && c.is(flag, "local") && !c.is("--spec", "local");
            refuse(wrong, flag, format!("{flag} local needs --spec local"))
        },
    },
    FlagRule {
        name: "batch-invariant",
        source: CONFIG,
        check: |c| {
            let (flag, kind, version) =
                ("--batch-invariant-mode", "--attention-backend", "--flash-attention-version");
            let known = c.whole && !c.values(kind).iter().any(|value| is_unknown(value));
            refuse(c.has(flag) && known && !c.is(kind, "flash"), flag, format!("{flag} needs {kind} flash"))?;
            let old = !c.values(version).iter().any(|v| is_unknown(v) || v == "3" || v == "4");
            refuse(c.has(flag) && c.whole && old, flag, format!("{flag} needs {version} 3 or 4"))?;
            needs(c, flag, "--bf16")?;
            let split = c.layout.context_parallel > 1;
            refuse(c.has(flag) && split, flag, format!("{flag} excludes context parallelism"))?;
            // It is 0.1 unless said otherwise.
            let dropout = "--attention-dropout";
            let dropped = !c.values(dropout).iter().any(|v| is_unknown(v) || real_number(v) == Some(0.0));
            refuse(c.has(flag) && c.whole && dropped, flag, format!("{flag} needs {dropout} 0"))
        },
    },
    FlagRule {
        name: "half-cross-entropy",
        source: ARGUMENTS,
        check: |c| needs(c, "--fp16-lm-cross-entropy", "--fp16"),
    },
    FlagRule {
        name: "hierarchical-heads",
        source: "TE attention/dot_product_attention/context_parallel.py, heads divisible by cp",
        check: |c| {
            let flag = "--hierarchical-context-parallel-sizes";
            let (Some(first), Some(heads)) = (c.number(flag), c.number("--num-attention-heads")) else {
                return Ok(());
            };
            let tp = c.layout.tensor_parallel;
            let grouped = c.has("--group-query-attention");
            let keys = c.number("--num-query-groups").filter(|_| grouped).unwrap_or(heads);
            let (heads, keys) = (heads / tp, (keys / tp).max(1));
            refuse(
                c.is("--cp-comm-type", "a2a+p2p") && first > 0 && (heads % first != 0 || keys % first != 0),
                flag,
                format!(
                    "{heads} heads and {keys} key/value heads per rank do not divide among groups of {first}"
                ),
            )
        },
    },
    FlagRule {
        name: "hybrid-context",
        source: ARGUMENTS,
        check: |c| {
            let flag = "--hybrid-context-parallel";
            excludes(c, flag, "--use-megatron-fsdp")?;
            refuse(
                c.has(flag) && c.layout.pipeline_parallel > 1,
                flag,
                format!("{flag} excludes pipeline stages"),
            )?;
            needs(c, flag, "--calculate-per-token-loss")
        },
    },
    FlagRule {
        name: "messages-at-ends",
        source: "core/model_parallel_config.py __post_init__, overlap_p2p_comm_warmup_flush",
        check: |c| {
            let flag = "--overlap-p2p-communication-warmup-flush";
            excludes(c, flag, "--no-overlap-p2p-communication")?;
            refuse(c.has(flag) && c.layout.virtual_stages == 1, flag, format!("{flag} needs virtual stages"))
        },
    },
    FlagRule {
        name: "deferred-embedding",
        source: "core/model_parallel_config.py __post_init__, defer_embedding_wgrad_compute",
        check: |c| {
            let flag = "--defer-embedding-wgrad-compute";
            refuse(
                c.has(flag) && c.layout.pipeline_parallel == 1,
                flag,
                format!("{flag} needs pipeline stages"),
            )?;
            excludes(c, flag, "--no-gradient-accumulation-fusion")
        },
    },
    FlagRule {
        name: "layout-alone",
        source: CONFIG,
        check: |c| {
            let flag = "--pipeline-model-parallel-layout";
            excludes(c, flag, "--account-for-embedding-in-pipeline-split")?;
            excludes(c, flag, "--account-for-loss-in-pipeline-split")
        },
    },
    FlagRule {
        name: "hybrid-stages",
        source: ARGUMENTS,
        check: |c| {
            let pattern = "--hybrid-layer-pattern";
            for flag in [
                "--num-layers-per-virtual-pipeline-stage",
                "--num-virtual-stages-per-pipeline-rank",
                "--pipeline-model-parallel-layout",
                "--account-for-embedding-in-pipeline-split",
                "--account-for-loss-in-pipeline-split",
            ] {
                let text = format!("{flag} is refused beside {pattern}, which says the stages itself");
                refuse(c.has(pattern) && c.has(flag), flag, text)?;
            }
            let split =
                c.values(pattern).iter().any(|p| p.split('/').next().unwrap_or_default().contains('|'));
            for flag in ["--decoder-first-pipeline-num-layers", "--decoder-last-pipeline-num-layers"] {
                let text = format!("{flag} is refused where {pattern} says the stages itself");
                refuse(split && c.has(flag), flag, text)?;
            }
            Ok(())
        },
    },
    FlagRule {
        name: "activation-fusion",
        source: CONFIG,
        check: |c| {
            let flag = "--squared-relu";
            let fused = !c.has("--disable-bias-linear") && !c.has("--no-bias-gelu-fusion");
            refuse(
                c.whole && c.has(flag) && fused,
                flag,
                format!("{flag} needs --disable-bias-linear or --no-bias-gelu-fusion"),
            )
        },
    },
    FlagRule {
        name: "fsdp-version",
        source: ARGUMENTS,
        check: |c| {
            let (flag, other) = ("--megatron-fsdp-version", "--use-distributed-optimizer");
            let second = c.has("--use-megatron-fsdp") && c.is(flag, "2");
            refuse(second && c.has(other), flag, format!("{flag} 2 excludes {other}"))
        },
    },
    FlagRule {
        name: "rope-fusion",
        source: "core/transformer/transformer_config.py MLATransformerConfig __post_init__",
        check: |c| {
            // Rotary positions are fused unless it is switched off.
            let rotary =
                c.is("--position-embedding-type", "rope") || c.has("--use-rotary-position-embeddings");
            let latent = c.has("--multi-latent-attention") && c.is("--rope-type", "rope");
            refuse(
                latent && rotary && !c.has("--no-rope-fusion"),
                "--rope-type",
                "latent attention fuses only yarn positions: --rope-type rope needs --no-rope-fusion",
            )
        },
    },
    FlagRule {
        name: "batch-schedules",
        source: ARGUMENTS,
        check: |c| excludes(c, "--global-batch-size", "--step-batch-size-schedule"),
    },
    FlagRule {
        name: "iterations-or-samples",
        source: ARGUMENTS,
        check: |c| {
            if c.has("--skip-train") {
                return Ok(());
            }
            excludes(c, "--train-iters", "--train-samples")?;
            excludes(c, "--train-iters", "--lr-decay-samples")?;
            excludes(c, "--train-samples", "--lr-decay-iters")?;
            // Warming up over none is as good as no flag.
            for (train, warm_up, other) in [
                ("--train-iters", "--lr-warmup-iters", "--lr-warmup-samples"),
                ("--train-samples", "--lr-warmup-samples", "--lr-warmup-iters"),
            ] {
                if !c.has(train) {
                    continue;
                }
                for (one, other) in [(train, other), ("--lr-warmup-fraction", warm_up)] {
                    if c.number(other) != Some(0) {
                        excludes(c, one, other)?;
                    }
                }
            }
            Ok(())
        },
    },
    FlagRule {
        name: "one-data-source",
        source: ARGUMENTS,
        check: |c| {
            excludes(c, "--mock-data", "--data-path")?;
            for split in ["--train-data-path", "--valid-data-path", "--test-data-path"] {
                excludes(c, "--mock-data", split)?;
                excludes(c, "--data-path", split)?;
            }
            excludes(c, "--data-path", "--data-args-path")
        },
    },
    FlagRule {
        name: "emerging-checkpoints",
        source: ARGUMENTS,
        check: |c| {
            let (kind, flag) = ("--optimizer", "--ckpt-format");
            let emerging = c.has(kind) && !c.is(kind, "adam") && !c.is(kind, "sgd");
            let known = !c.has(flag) || c.is(flag, "torch") || c.is(flag, "torch_dist");
            refuse(emerging && !known, flag, format!("{kind} muon needs {flag} torch or torch_dist"))
        },
    },
    FlagRule {
        name: "one-fully-sharded",
        source: ARGUMENTS,
        check: |c| excludes(c, "--use-megatron-fsdp", "--use-torch-fsdp2"),
    },
    FlagRule {
        name: "one-bucket-size",
        source: ARGUMENTS,
        check: |c| excludes(c, "--ddp-bucket-size", "--ddp-num-buckets"),
    },
    FlagRule {
        name: "rank-order",
        source: "core/parallel_state.py initialize_model_parallel",
        check: |c| {
            let l = c.layout;
            // Without experts the expert grid is the tensor-parallel one, or what a flag says.
            let experts = if c.has("--num-experts") {
                l.expert_parallel * l.expert_tensor_parallel
            } else {
                c.number(EXPERT_TENSOR).unwrap_or(l.tensor_parallel)
            };
            refuse(
                c.has("--use-tp-pp-dp-mapping")
                    && l.pipeline_parallel > 1
                    && experts != l.tensor_parallel * l.context_parallel,
                "--use-tp-pp-dp-mapping",
                "--use-tp-pp-dp-mapping with stages needs as many replicas of the experts as of all else: ep x etp = tp x cp",
            )
        },
    },
    FlagRule {
        name: "dense-expert-ranks",
        source: "core/parallel_state.py initialize_model_parallel",
        check: |c| {
            let l = c.layout;
            let ranks = product([l.tensor_parallel, l.context_parallel, l.data_parallel]);
            let Some(split) = c.number(EXPERT_TENSOR).filter(|_| !c.has("--num-experts")) else {
                return Ok(());
            };
            refuse(
                split == 0 || ranks % u64::from(split) != 0,
                EXPERT_TENSOR,
                format!("{EXPERT_TENSOR} {split} does not divide the {ranks} ranks of a stage"),
            )
        },
    },
    FlagRule {
        name: "hierarchical-context",
        source: ARGUMENTS,
        check: |c| {
            let flag = "--hierarchical-context-parallel-sizes";
            let product: u64 =
                c.values(flag).iter().filter_map(|n| whole_number(n)).fold(1, u64::saturating_mul);
            refuse(
                c.is("--cp-comm-type", "a2a+p2p") && !c.has(flag),
                "--cp-comm-type",
                format!("a2a+p2p needs {flag}"),
            )?;
            refuse(
                c.has(flag) && product != u64::from(c.layout.context_parallel),
                flag,
                format!("the sizes multiply to {product}, but cp is {}", c.layout.context_parallel),
            )
        },
    },
    FlagRule {
        name: "context-per-layer",
        source: CONFIG,
        check: |c| {
            let count = c.values("--cp-comm-type").len();
            refuse(
                c.layout.context_parallel > 1 && count > 1 && count != c.layers as usize,
                "--cp-comm-type",
                format!(
                    "{count} kinds of exchange for {} layers: expected one, or one for every layer",
                    c.layers
                ),
            )
        },
    },
    FlagRule {
        name: "unoverlapped-stages",
        source: ARGUMENTS,
        check: |c| {
            let l = c.layout;
            refuse(
                c.has("--no-overlap-p2p-communication") && l.virtual_stages > 1 && l.pipeline_parallel <= 2,
                "--no-overlap-p2p-communication",
                "virtual stages without overlapped messages need at least 3 pipeline stages",
            )
        },
    },
    FlagRule {
        name: "interleave-group",
        source: "core/pipeline_parallel/schedules.py forward_backward_pipelining_with_interleaving",
        check: |c| {
            let flag = "--microbatch-group-size-per-virtual-pipeline-stage";
            let (stages, count) = (c.layout.pipeline_parallel, c.layout.gradient_accumulation_steps);
            let group = c.number(flag).unwrap_or(stages);
            let whole = group > 0 && (count % group == 0 || count % group >= stages);
            refuse(
                c.layout.virtual_stages > 1 && !(whole && (stages..=count).contains(&group)),
                if c.has(flag) { flag } else { "--global-batch-size" },
                format!(
                    "{count} micro-batches cannot run in groups of {group} over {stages} stages: {flag} says another size"
                ),
            )
        },
    },
    FlagRule {
        name: "gather-with-step",
        source: ARGUMENTS,
        check: |c| {
            let flag = "--overlap-param-gather-with-optimizer-step";
            needs(c, flag, "--use-distributed-optimizer")?;
            needs(c, flag, "--overlap-param-gather")?;
            refuse(
                c.has(flag) && c.layout.virtual_stages == 1,
                flag,
                format!("{flag} needs virtual stages"),
            )?;
            // Checkpoints are distributed ones unless another format is named.
            let format = "--ckpt-format";
            refuse(c.has(flag) && !c.is(format, "torch"), flag, format!("{flag} needs {format} torch"))
        },
    },
    FlagRule {
        name: "torch-fsdp2",
        source: ARGUMENTS,
        check: |c| {
            let flag = "--use-torch-fsdp2";
            if !c.has(flag) {
                return Ok(());
            }
            let l = c.layout;
            refuse(l.pipeline_parallel > 1, flag, format!("{flag} excludes pipeline stages"))?;
            refuse(l.expert_parallel > 1, flag, format!("{flag} excludes expert parallelism"))?;
            excludes(c, flag, "--use-distributed-optimizer")?;
            excludes(c, flag, "--fp16")?;
            let one = c.is_set(CONNECTIONS, "1");
            refuse(one, flag, format!("{flag} needs {CONNECTIONS} above 1, or not set"))?;
            let format = "--ckpt-format";
            let known = c.is(format, "torch_dist") || c.is(format, "torch_dcp");
            refuse(
                c.has(format) && !known,
                format,
                format!("{flag} needs {format} torch_dist or torch_dcp"),
            )?;
            needs(c, flag, "--no-gradient-accumulation-fusion")?;
            needs(c, flag, "--untie-embeddings-and-output-weights")
        },
    },
    FlagRule {
        name: "megatron-fsdp",
        source: ARGUMENTS,
        check: |c| {
            let flag = "--use-megatron-fsdp";
            if !c.has(flag) {
                return Ok(());
            }
            let one = c.is_set(CONNECTIONS, "1");
            refuse(one, flag, format!("{flag} needs {CONNECTIONS} above 1, or not set"))?;
            refuse(
                !c.is("--ckpt-format", "fsdp_dtensor"),
                if c.has("--ckpt-format") { "--ckpt-format" } else { flag },
                format!("{flag} needs --ckpt-format fsdp_dtensor"),
            )?;
            let second = c.is("--megatron-fsdp-version", "2") && c.has("--use-distributed-optimizer");
            refuse(
                second,
                "--megatron-fsdp-version",
                "--megatron-fsdp-version 2 excludes --use-distributed-optimizer",
            )?;
            excludes(c, flag, "--moe-single-grouped-weight")?;
            excludes(c, flag, "--moe-single-grouped-bias")?;
            let whole = c.is("--data-parallel-sharding-strategy", "no_shard");
            let meta = "--init-model-with-meta-device";
            refuse(whole && c.has(meta), meta, format!("{meta} needs weights that are sharded"))
        },
    },
    FlagRule {
        name: "precision-aware",
        source: "core/optimizer/optimizer_config.py __post_init__",
        check: |c| {
            let aware = "--use-precision-aware-optimizer";
            for flag in ["--main-grads-dtype", "--main-params-dtype", "--exp-avg-dtype", "--exp-avg-sq-dtype"]
            {
                let low = c.has(flag) && !c.is(flag, "fp32");
                refuse(low && !c.has(aware), flag, format!("{flag} below fp32 needs {aware}"))?;
            }
            needs(c, "--optimizer-cpu-offload", aware)?;
            let delayed = !c.has("--fp8-recipe") || c.is("--fp8-recipe", "delayed");
            refuse(
                c.has("--optimizer-cpu-offload") && c.has("--fp8-param-gather") && !delayed,
                "--fp8-param-gather",
                "--optimizer-cpu-offload gathers FP8 weights only with --fp8-recipe delayed",
            )?;
            let other = c.has("--optimizer") && !c.is("--optimizer", "adam");
            refuse(c.has(aware) && other, "--optimizer", format!("{aware} needs --optimizer adam"))
        },
    },
    FlagRule {
        name: "quantized-gather",
        source: ARGUMENTS,
        check: |c| {
            needs(c, "--fp8-param-gather", "--fp8-format")?;
            needs(c, "--fp4-param-gather", "--fp4-format")?;
            for flag in ["--fp8-param-gather", "--fp4-param-gather"] {
                let text = format!("{flag} needs a sharded optimizer");
                refuse(c.has(flag) && c.layout.zero_stage == 0, flag, text)?;
            }
            Ok(())
        },
    },
    FlagRule {
        name: "delayed-scaling",
        source: "core/transformer/transformer_config.py __post_init__, fp8_recipe and first_last_layers_bf16",
        check: |c| {
            // The recipe is the delayed one unless another is named.
            let delayed =
                c.has("--fp8-format") && (!c.has("--fp8-recipe") || c.is("--fp8-recipe", "delayed"));
            let modules = "--recompute-modules";
            let kept = c.lists(modules, "moe_act") || c.lists(modules, "layernorm");
            refuse(
                delayed && kept,
                modules,
                "delayed FP8 scaling excludes recomputing moe_act and layernorm",
            )?;
            let ends = "--first-last-layers-bf16";
            refuse(delayed && c.has(ends), ends, "delayed FP8 scaling has no first and last layers in BF16")?;
            let per_stage = c.layers / c.layout.pipeline_parallel;
            for flag in ["--num-layers-at-start-in-bf16", "--num-layers-at-end-in-bf16"] {
                let many = c.number(flag).is_some_and(|n| n > per_stage);
                let text = format!("{flag} is more than the {per_stage} layers of a stage");
                refuse(c.has(ends) && many, flag, text)?;
            }
            Ok(())
        },
    },
    FlagRule {
        name: "experts-needed",
        source: CONFIG,
        check: |c| {
            let (groups, chosen) = ("--moe-router-num-groups", "--moe-router-group-topk");
            needs(c, chosen, groups)?;
            if c.has("--num-experts") && c.number("--num-experts") != Some(0) {
                return Ok(());
            }
            let score = "--moe-router-score-function";
            let bias = "--moe-router-enable-expert-bias";
            let other = !c.is(score, "sigmoid") && !c.is(score, "sqrtsoftplus");
            refuse(c.whole && c.has(bias) && other, bias, format!("{bias} needs {score} sigmoid"))?;
            ["--overlap-moe-expert-parallel-comm", "--moe-ffn-hidden-size", "--moe-latent-size", chosen]
                .into_iter()
                .try_for_each(|flag| {
                    refuse(c.whole && c.has(flag), flag, format!("{flag} needs --num-experts"))
                })
        },
    },
    FlagRule {
        name: "dispatcher-overlap",
        source: CONFIG,
        check: |c| {
            let flag = "--moe-shared-expert-overlap";
            let kind = "--moe-token-dispatcher-type";
            let gathers = !c.has(kind) || c.is(kind, "allgather");
            let shared = c.has("--moe-shared-expert-intermediate-size");
            let wrong = c.has(flag) && shared && gathers;
            refuse(wrong, flag, format!("{flag} needs {kind} alltoall or flex"))?;
            excludes(c, "--overlap-moe-expert-parallel-comm", flag)?;
            let both = c.has(flag) && c.lists("--recompute-modules", "shared_experts");
            refuse(both, flag, format!("{flag} excludes recomputing shared_experts"))
        },
    },
    FlagRule {
        name: "delayed-weight-gradients",
        source: ARGUMENTS,
        check: |c| {
            let (flag, kind) = ("--delay-wgrad-compute", "--transformer-impl");
            needs(c, flag, "--overlap-moe-expert-parallel-comm")?;
            let other = c.has(kind) && !c.is(kind, "transformer_engine");
            refuse(c.has(flag) && other, kind, format!("{flag} needs Transformer Engine"))
        },
    },
    FlagRule {
        name: "balancing-coefficients",
        source: CONFIG,
        check: |c| {
            let (kind, flag) = ("--moe-router-load-balancing-type", "--moe-aux-loss-coeff");
            let (kinds, factors) = (c.values(kind), c.values(flag));
            let known = c.whole && !kinds.iter().chain(factors).any(|value| is_unknown(value));
            refuse(
                known && kinds.len() > 1 && factors.len() != kinds.len(),
                kind,
                format!("{} ways to balance need as many of {flag}, found {}", kinds.len(), factors.len()),
            )
        },
    },
    FlagRule {
        name: "expert-capacity",
        source: CONFIG,
        check: |c| {
            let factor = "--moe-expert-capacity-factor";
            let kind = "--moe-router-load-balancing-type";
            let balanced = !c.has(kind)
                || c.values(kind)
                    .iter()
                    .all(|v| matches!(v.as_str(), "aux_loss" | "seq_aux_loss" | "global_aux_loss" | "none"));
            refuse(
                c.has(factor) && !balanced,
                factor,
                format!("{factor} needs {kind} aux_loss, seq_aux_loss, global_aux_loss or none"),
            )?;
            let pad = "--moe-pad-expert-input-to-capacity";
            needs(c, pad, factor)?;
            let flex = c.is("--moe-token-dispatcher-type", "flex");
            let deep =
                !c.has("--moe-flex-dispatcher-backend") || c.is("--moe-flex-dispatcher-backend", "deepep");
            refuse(c.has(pad) && flex && deep, pad, format!("{pad} does not work with DeepEP"))
        },
    },
    FlagRule {
        name: "saved-activations",
        source: "training/arguments.py validate_args; core/transformer/transformer_config.py __post_init__",
        check: |c| {
            let flag = "--distribute-saved-activations";
            if !c.has(flag) {
                return Ok(());
            }
            refuse(c.layout.tensor_parallel == 1, flag, format!("{flag} needs tensor parallelism"))?;
            refuse(
                !c.is("--recompute-granularity", "full"),
                flag,
                format!("{flag} needs --recompute-granularity full"),
            )?;
            refuse(
                c.has("--sequence-parallel"),
                flag,
                format!("{flag} and --sequence-parallel exclude each other"),
            )
        },
    },
    FlagRule {
        name: "recompute-grouped-experts",
        source: CONFIG,
        check: |c| {
            let modules = "--recompute-modules";
            let selective = c.is("--recompute-granularity", "selective") || c.has("--recompute-activations");
            let apart = c.has("--num-experts") && !c.has("--moe-grouped-gemm");
            refuse(
                selective && apart && c.lists(modules, "moe_act"),
                modules,
                "recomputing moe_act needs --moe-grouped-gemm",
            )
        },
    },
    FlagRule {
        name: "graph-modules",
        source: "core/transformer/transformer_config.py __post_init__, cuda_graph_impl",
        check: |c| {
            let (kind, flag) = ("--cuda-graph-impl", "--cuda-graph-modules");
            let (local, external) = ("--enable-cuda-graph", "--external-cuda-graph");
            excludes(c, local, external)?;
            for old in [local, external] {
                if !c.is(kind, "none") {
                    excludes(c, old, kind)?;
                }
            }
            let engine = c.is(kind, "transformer_engine") || c.has(external);
            let grows = c.environment.get("PYTORCH_CUDA_ALLOC_CONF");
            let grows = grows.is_some_and(|conf| conf.contains("expandable_segments:True"));
            refuse(
                engine && grows && !c.may_be("NCCL_GRAPH_REGISTER", "0"),
                kind,
                "graphs beside expandable segments need NCCL_GRAPH_REGISTER=0",
            )?;
            let whole = c.is(kind, "full_iteration");
            refuse(whole && c.has(flag), flag, "a graph of the whole iteration takes no modules")?;
            refuse(
                // Dynamic loss scaling switches the check off itself.
                whole && !c.has("--no-check-for-nan-in-loss-and-grad") && !c.has("--fp16"),
                kind,
                "a graph of the whole iteration needs --no-check-for-nan-in-loss-and-grad",
            )?;
            if !engine && !c.is(kind, "local") && !c.has(local) {
                return Ok(());
            }
            let named = |module: &str| c.lists(flag, module);
            refuse(
                engine && named("moe_preprocess") && !named("moe_router"),
                flag,
                "a graph of moe_preprocess needs that of moe_router",
            )?;
            refuse(
                named("moe") && named("moe_router"),
                flag,
                "graphs of moe and moe_router exclude each other",
            )?;
            let padded = c.has("--moe-expert-capacity-factor") && c.has("--moe-pad-expert-input-to-capacity");
            refuse(named("moe") && !padded, flag, "a graph of moe needs experts padded to a capacity")?;
            // Every layer has experts unless a flag says which do.
            let everywhere = c.values("--moe-layer-freq").first().is_none_or(|frequency| {
                flags_of(frequency, u64::from(c.layers), 0).is_ok_and(|layers| layers.iter().all(|has| *has))
            });
            refuse(
                named("mlp") && c.has("--num-experts") && everywhere,
                flag,
                "a graph of mlp needs dense layers",
            )
        },
    },
    FlagRule {
        name: "layer-offload",
        source: CONFIG,
        check: |c| {
            let flag = "--cpu-offloading-num-layers";
            let Some(count) = c.number(flag).filter(|&n| n > 0) else { return Ok(()) };
            refuse(count >= c.layers, flag, format!("{count} of {} layers cannot be offloaded", c.layers))?;
            refuse(c.layout.pipeline_parallel > 1, flag, format!("{flag} excludes pipeline stages"))?;
            let recomputes = c.has("--recompute-granularity") || c.has("--recompute-activations");
            refuse(recomputes, flag, format!("{flag} excludes recomputation"))
        },
    },
    FlagRule {
        name: "offload-modules",
        source: "core/transformer/transformer_config.py __post_init__, fine_grained_activation_offloading",
        check: |c| {
            let (on, flag) = ("--fine-grained-activation-offloading", "--offload-modules");
            needs(c, on, flag)?;
            let other = c.has("--transformer-impl") && !c.is("--transformer-impl", "transformer_engine");
            refuse(c.has(on) && other, "--transformer-impl", format!("{on} needs Transformer Engine"))?;
            excludes(c, on, "--cpu-offloading-num-layers")?;
            refuse(
                c.lists(flag, "attn_proj") && !c.lists(flag, "core_attn"),
                flag,
                "offloading attn_proj needs core_attn",
            )?;
            let inside = c.lists(flag, "expert_fc1") || c.lists(flag, "moe_act");
            let whole = c.lists("--recompute-modules", "moe");
            refuse(inside && whole, flag, "nothing inside a recomputed moe module can be offloaded")?;
            let variable = "NVTE_CPU_OFFLOAD_V1";
            refuse(
                c.has(on) && c.script && !c.may_be(variable, "1"),
                on,
                format!("{on} needs {variable}=1, and the script does not export it"),
            )
        },
    },
    FlagRule {
        name: "deterministic",
        source: "training/determinism.py",
        check: |c| {
            let flag = "--deterministic-mode";
            excludes(c, flag, "--cross-entropy-loss-fusion")?;
            excludes(c, flag, "--tp-comm-overlap")?;
            let known = ["Ring", "CollnetDirect", "CollnetChain", "^NVLS"];
            let Some(chosen) = c.environment.get("NCCL_ALGO").filter(|_| c.has(flag)) else { return Ok(()) };
            let all = is_unknown(chosen) || chosen.split(',').all(|one| known.contains(&one.trim()));
            refuse(!all, flag, format!("{flag} needs NCCL_ALGO of {}", known.join(", ")))
        },
    },
    FlagRule {
        name: "predicted-positions",
        source: ARGUMENTS,
        check: |c| {
            let flag = "--position-embedding-type";
            let predicts = c.number("--mtp-num-layers").is_some_and(|n| n > 0);
            let kept = c.is(flag, "rope") || c.is(flag, "none") || c.has("--use-rotary-position-embeddings");
            refuse(predicts && c.has(flag) && !kept, flag, "--mtp-num-layers needs rope positions, or none")
        },
    },
    FlagRule {
        name: "no-positions",
        source: ARGUMENTS,
        check: |c| {
            let rotary =
                c.is("--position-embedding-type", "rope") || c.has("--use-rotary-position-embeddings");
            let flag = "--no-position-embedding";
            refuse(c.has(flag) && !rotary, flag, format!("{flag} needs --position-embedding-type rope"))
        },
    },
    FlagRule {
        name: "old-deepep",
        source: CONFIG,
        check: |c| {
            let (flag, kind) = ("--moe-enable-deepep", "--moe-token-dispatcher-type");
            refuse(c.has(flag) && !c.is(kind, "flex"), flag, format!("{flag} needs {kind} flex"))?;
            let other = c.is("--moe-flex-dispatcher-backend", "hybridep");
            refuse(c.has(flag) && other, flag, format!("{flag} excludes the backend hybridep"))
        },
    },
    FlagRule {
        name: "padded-routing",
        source: CONFIG,
        check: |c| {
            let flag = "--moe-router-padding-for-quantization";
            let low = c.has("--fp8-format") || c.has("--fp4-format");
            refuse(c.has(flag) && !low, flag, format!("{flag} needs --fp8-format or --fp4-format"))
        },
    },
    FlagRule {
        name: "sharded-checkpoints",
        source: ARGUMENTS,
        check: |c| {
            let flag = "--ckpt-format";
            let sharded = c.is(flag, "fsdp_dtensor") && !c.has("--use-megatron-fsdp");
            refuse(sharded, flag, "--ckpt-format fsdp_dtensor needs --use-megatron-fsdp")?;
            let of_torch = c.is(flag, "torch_dcp");
            let whole = c.whole && !c.has("--use-torch-fsdp2");
            refuse(of_torch && whole, flag, "--ckpt-format torch_dcp needs --use-torch-fsdp2")?;
            let split = c.layout.tensor_parallel > 1 || c.layout.pipeline_parallel > 1;
            refuse(of_torch && split, flag, "--ckpt-format torch_dcp excludes tensor parallelism and stages")
        },
    },
    FlagRule {
        name: "save-interval",
        source: ARGUMENTS,
        check: |c| {
            let interval = "--save-interval";
            needs(c, "--save", interval)?;
            let never = c.has("--save") && c.number(interval) == Some(0);
            refuse(never, interval, "--save needs a --save-interval above 0")
        },
    },
    FlagRule {
        name: "evaluation-batch",
        source: ARGUMENTS,
        check: |c| {
            let (flag, micro) = ("--eval-global-batch-size", "--eval-micro-batch-size");
            let l = c.layout;
            let step = product([c.number(micro).unwrap_or(l.micro_batch_size), l.data_parallel]);
            // Beside a schedule of batches, training's is taken to be one micro-batch per replica.
            let steps = if c.has("--step-batch-size-schedule") { 1 } else { l.gradient_accumulation_steps };
            let of_training = product([l.micro_batch_size, l.data_parallel, steps]);
            let batch = c.number(flag).map_or(of_training, u64::from);
            refuse(
                (c.has(flag) || c.has(micro)) && (step == 0 || batch % step != 0),
                if c.has(flag) { flag } else { micro },
                format!("an evaluation batch of {batch} is no multiple of micro-batch x replicas = {step}"),
            )
        },
    },
    FlagRule {
        name: "cross-entropy",
        source: ARGUMENTS,
        check: |c| {
            let flag = "--cross-entropy-fusion-impl";
            refuse(
                c.has("--cross-entropy-loss-fusion") && c.is(flag, "te"),
                flag,
                "--cross-entropy-loss-fusion with --cross-entropy-fusion-impl te is refused; expected native",
            )
        },
    },
];
