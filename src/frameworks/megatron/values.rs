//! Values of flags that change neither time nor memory: the parser of Megatron-LM refuses them where they are of the
//! wrong kind, and so does the import. Kinds are those of its parser (`training/arguments.py`, August 2026).

use super::super::export::one_line;
use super::super::shell::{ImportError, is_unknown, shown};
use super::flags::{Flags, Read, integer, no_choice, real_number};

/// Flags that take no value.
const SWITCHES: &str = "
    --accumulate-allreduce-grads-in-fp32 --apply-layernorm-1p --async-ckpt-use-cpu-shm --async-save
    --attention-softmax-in-fp32 --auto-detect-ckpt-format --calculate-per-token-loss
    --check-for-large-grads --check-for-spiky-loss --ckpt-assume-constant-structure
    --ckpt-convert-update-legacy-dist-opt-format --ckpt-drop-redundant-extra-state
    --ckpt-fully-parallel-load --ckpt-fully-parallel-load-per-rank-objects --ckpt-fully-parallel-save
    --ckpt-pg-tensors-cache-create --cross-entropy-loss-fusion --data-parallel-random-init
    --dataloader-defer-npy-index-mmap --dataloader-fast-cache-load --dataloader-inter-document-masking
    --deterministic-mode --disable-bf16-reduced-precision-matmul --dist-ckpt-optim-fully-reshardable
    --dist-ckpt-save-pre-mcore-014 --distribute-saved-activations --eod-mask-loss
    --exit-on-missing-checkpoint --exit-signal-handler --exit-signal-handler-for-dataloader
    --exit-signal-handler-for-training --finetune --fp8-param-gather --grad-reduce-in-bf16
    --init-method-xavier-uniform
    --init-model-with-meta-device --is-hybrid-model --load-main-params-from-ckpt
    --log-device-memory-used --log-energy --log-max-attention-logit --log-memory-to-tensorboard
    --log-num-zeros-in-grad --log-params-norm --log-progress --log-straggler --log-throughput
    --log-timers-to-tensorboard --log-validation-ppl-to-tensorboard --log-world-size-to-tensorboard
    --manual-gc --mock-data --moe-grouped-gemm --moe-per-layer-logging --moe-permute-fusion
    --moe-router-padding-for-quantization --no-barrier-with-level-1-timing --no-bias-dropout-fusion
    --no-bias-gelu-fusion --no-bias-swiglu-fusion --no-check-for-nan-in-loss-and-grad
    --no-create-attention-mask-in-dataloader --no-gradient-accumulation-fusion --no-load-optim
    --no-load-rng --no-log-loss-scale-to-tensorboard --no-masked-softmax-fusion --no-mmap-bin-files
    --no-position-embedding --no-rope-fusion --no-save-optim --no-save-rng --no-save-tokenizer-assets
    --one-logger-async --overlap-cpu-optimizer-d2h-h2d --override-opt-param-scheduler
    --override-opt_param-scheduler --profile --reset-attention-mask --reset-position-ids
    --te-rng-tracker --test-mode --tokenizer-hf-no-include-special-tokens --tokenizer-hf-no-use-fast
    --tokenizer-sentencepiece-legacy --use-checkpoint-args --use-checkpoint-opt-param-scheduler
    --use-checkpoint-opt_param-scheduler --use-cpu-initialization --use-dist-ckpt --use-flash-attn
    --use-mcore-models --use-precision-aware-optimizer --use-pytorch-profiler
";

/// Flags that take one whole number.
const WHOLE: &str = "
    --async-ckpt-cpu-priority --async-ckpt-io-priority --check-weight-hash-across-dp-replicas-interval
    --ckpt-step --cuda-graph-warmup-steps --dist-ckpt-workers --distributed-timeout-minutes
    --eval-global-batch-size --eval-interval --eval-iters --eval-micro-batch-size
    --exit-duration-in-mins --exit-interval --fine-grained-offloading-max-inflight-offloads
    --fp8-amax-history-len --fp8-interval --fp8-margin --hysteresis --local-rank --log-interval
    --log-memory-interval --logging-level --lr-decay-iters --lr-decay-samples --lr-warmup-iters
    --lr-warmup-samples --lr-wsd-decay-iters --lr-wsd-decay-samples --manual-gc-interval
    --non-persistent-save-interval --num-workers --profile-step-end --profile-step-start
    --save-activations-interval --save-dgrads-interval --save-interval --save-params-interval
    --save-retain-interval --save-tokens-per-expert-interval --save-wgrads-interval --seed
    --tensorboard-log-interval --tensorboard-queue-size --tiktoken-num-special-tokens
    --train-iters --train-samples --train-sync-interval
";

/// Flags that take one number.
const REAL: &str = "
    --activation-func-clamp-value --adam-beta1 --adam-beta2 --adam-eps --attention-dropout --clip-grad
    --data-per-class-fraction --decoupled-lr --decoupled-min-lr --end-weight-decay --glu-linear-offset
    --init-method-std --initial-loss-scale --loss-scale --loss-scale-window --lr --lr-warmup-fraction
    --lr-warmup-init --min-loss-scale --min-lr --moe-router-bias-update-rate --moe-z-loss-coeff
    --mtp-loss-scaling-factor --sgd-momentum --short-seq-prob --start-weight-decay --weight-decay
";

/// Flags that take one number and are read elsewhere.
const REAL_ELSEWHERE: &str = "--hidden-dropout --optimizer-offload-fraction";

/// Flags that take one word.
const TEXT: &str = "
    --ckpt-convert-save --ckpt-pg-tensors-cache-path --config-logger-dir --data-args-path
    --data-cache-path --dist-ckpt-format --load --memory-snapshot-path --merge-file
    --nccl-communicator-config-path --non-persistent-global-ckpt-dir --non-persistent-local-ckpt-dir
    --one-logger-project --one-logger-run-name --per-split-data-args-path --save --split
    --tensorboard-dir --tokenizer-metadata --tokenizer-model --vocab-file
    --wandb-entity --wandb-exp-name --wandb-project --wandb-save-dir
";

/// Names of Python's `signal.Signals` on Linux: numbers are refused.
const SIGNALS: &[&str] = &[
    "SIGABRT",
    "SIGALRM",
    "SIGBUS",
    "SIGCHLD",
    "SIGCLD",
    "SIGCONT",
    "SIGFPE",
    "SIGHUP",
    "SIGILL",
    "SIGINT",
    "SIGIO",
    "SIGIOT",
    "SIGKILL",
    "SIGPIPE",
    "SIGPOLL",
    "SIGPROF",
    "SIGPWR",
    "SIGQUIT",
    "SIGRTMAX",
    "SIGRTMIN",
    "SIGSEGV",
    "SIGSTKFLT",
    "SIGSTOP",
    "SIGSYS",
    "SIGTERM",
    "SIGTRAP",
    "SIGTSTP",
    "SIGTTIN",
    "SIGTTOU",
    "SIGURG",
    "SIGUSR1",
    "SIGUSR2",
    "SIGVTALRM",
    "SIGWINCH",
    "SIGXCPU",
    "SIGXFSZ",
];

/// Kinds of tokenizers.
const TOKENIZERS: &[&str] = &[
    "BertWordPieceLowerCase",
    "BertWordPieceCase",
    "GPT2BPETokenizer",
    "SentencePieceTokenizer",
    "GPTSentencePieceTokenizer",
    "HuggingFaceTokenizer",
    "Llama2Tokenizer",
    "TikTokenizer",
    "MultimodalTokenizer",
    "NullTokenizer",
    "NullMultimodalTokenizer",
    "SFTTokenizer",
];

/// Values that earlier versions (`zarr`, `Llama3Tokenizer`) or forks (MindSpeed, BigCode's, Pai's) take.
const EARLIER_VALUES: &[(&str, &[&str])] = &[
    ("--ckpt-format", &["zarr"]),
    (
        "--tokenizer-type",
        &[
            "HFTokenizer",
            "Llama3Tokenizer",
            "PretrainedFromHF",
            "Qwen2Tokenizer",
            "Qwen2VLTokenizer",
            "QwenTokenizer",
            "TokenizerFromHF",
            "TokenizerFromHFWithFixedLength",
        ],
    ),
];

/// Flags that take one of a few words.
const CHOICES: &[(&str, &[&str])] = &[
    ("--async-strategy", &["nvrx", "mcore"]),
    ("--attention-backend", &["flash", "fused", "unfused", "local", "auto"]),
    ("--ckpt-convert-format", &["torch", "torch_dist"]),
    ("--ckpt-format", &["torch", "torch_dist", "torch_dcp", "fsdp_dtensor"]),
    ("--ckpt-fully-parallel-load-exchange-algo", &["broadcast", "gather_rounds", "gather_object"]),
    ("--ckpt-fully-parallel-load-process-group", &["dp", "ep_dp"]),
    ("--ckpt-fully-parallel-save-process-group", &["dp", "ep_dp"]),
    ("--cross-entropy-fusion-impl", &["native", "te"]),
    ("--dataloader-type", &["single", "cyclic", "external"]),
    (
        "--dist-ckpt-strictness",
        &[
            "assume_ok_unexpected",
            "log_unexpected",
            "log_all",
            "raise_unexpected",
            "raise_all",
            "return_unexpected",
            "return_all",
            "ignore_all",
        ],
    ),
    ("--distributed-backend", &["nccl", "gloo"]),
    ("--exit-signal", SIGNALS),
    ("--fp4-format", &["e2m1"]),
    ("--fp8-amax-compute-algo", &["most_recent", "max"]),
    ("--fp8-format", &["e4m3", "hybrid"]),
    ("--lr-decay-style", &["constant", "linear", "cosine", "inverse-square-root", "WSD"]),
    ("--lr-wsd-decay-style", &["exponential", "linear", "cosine", "minus_sqrt"]),
    ("--moe-router-dtype", &["fp32", "fp64"]),
    ("--non-persistent-ckpt-type", &["global", "local", "in_memory"]),
    ("--non-persistent-local-ckpt-algo", &["fully_parallel", "atomic"]),
    ("--rerun-mode", &["disabled", "validate_results", "report_stats"]),
    ("--tiktoken-pattern", &["v1", "v2"]),
    ("--timing-log-level", &["0", "1", "2"]),
    ("--timing-log-option", &["max", "minmax", "all"]),
    ("--tokenizer-type", TOKENIZERS),
    ("--tp-comm-bootstrap-backend", &["nccl", "mpi", "gloo"]),
    ("--transformer-impl", &["local", "transformer_engine", "inference_optimized"]),
    ("--weight-decay-incr-style", &["constant", "linear", "cosine"]),
];

/// Flags that take several whole numbers.
const WHOLES: &str = "--profile-ranks";

/// The same that are read elsewhere.
const WHOLES_ELSEWHERE: &str = "--hierarchical-context-parallel-sizes";

/// Flags that take several numbers.
const REALS: &str = "--moe-aux-loss-coeff";

/// Flags that take several of a few words.
const CHOICES_OF_MANY: &[(&str, &[&str])] = &[(
    "--moe-router-load-balancing-type",
    &["aux_loss", "seq_aux_loss", "global_aux_loss", "sinkhorn", "quantile_balancing", "none"],
)];

/// The same that are read elsewhere; the last three are of earlier versions, and known to the parser of today.
const CHOICES_OF_MANY_ELSEWHERE: &[(&str, &[&str])] = &[(
    "--cuda-graph-modules",
    &[
        "attn",
        "mlp",
        "moe",
        "moe_router",
        "moe_preprocess",
        "mamba",
        "full",
        "full_iteration",
        "full_iteration_inference",
    ],
)];

/// Flags that take several words, at least one.
const TEXTS: &str = "--offload-modules --tokenizer-special-tokens";

/// Flags of any number of values, which are not looked at.
const LISTS: &str = "--data-path --test-data-path --train-data-path --valid-data-path";

/// What a number must be for the run to begin, and to pass its first steps.
#[derive(Clone, Copy)]
enum Span {
    Positive,
    NotNegative,
    NotZero,
    /// From 0 to below 1.
    BelowOne,
    UnderOne,
    /// From 0 to 1.
    Share,
}

impl Span {
    fn holds(self, number: f64) -> bool {
        match self {
            Self::Positive => number > 0.0,
            Self::NotNegative => number >= 0.0,
            Self::NotZero => number != 0.0,
            Self::UnderOne => number < 1.0,
            Self::BelowOne => (0.0..1.0).contains(&number),
            Self::Share => (0.0..=1.0).contains(&number),
        }
    }

    fn words(self) -> &'static str {
        match self {
            Self::Positive => "above 0",
            Self::NotNegative => "of 0 or more",
            Self::NotZero => "other than 0",
            Self::UnderOne => "below 1",
            Self::BelowOne => "from 0 to below 1",
            Self::Share => "from 0 to 1",
        }
    }
}

/// Numbers that the parser takes and what comes behind it does not: with the flag without which nobody looks at it, and
/// the file that stops.
const SPANS: &[(&str, Span, Option<&str>, &str)] = &[
    ("--adam-beta1", Span::BelowOne, None, "torch/optim/adamw.py"),
    ("--adam-beta2", Span::BelowOne, None, "torch/optim/adamw.py"),
    ("--adam-eps", Span::NotNegative, None, "torch/optim/adamw.py"),
    ("--attention-dropout", Span::Share, None, "torch/nn/modules/dropout.py"),
    ("--ddp-num-buckets", Span::Positive, None, "core/distributed/distributed_data_parallel_config.py"),
    ("--eval-global-batch-size", Span::NotNegative, None, "training/arguments.py validate_args"),
    ("--eval-interval", Span::NotZero, None, "training/training.py, a division"),
    ("--eval-micro-batch-size", Span::NotZero, None, "training/arguments.py, a division"),
    ("--hidden-dropout", Span::Share, None, "torch/nn/functional.py dropout"),
    ("--hysteresis", Span::Positive, Some("--fp16"), "core/optimizer/grad_scaler.py"),
    ("--init-method-std", Span::NotNegative, None, "torch normal_"),
    ("--initial-loss-scale", Span::Positive, Some("--fp16"), "core/optimizer/grad_scaler.py"),
    ("--log-interval", Span::NotZero, None, "training/training.py training_log, a division"),
    ("--loss-scale", Span::NotNegative, None, "core/optimizer/grad_scaler.py"),
    ("--loss-scale-window", Span::Positive, Some("--fp16"), "core/optimizer/grad_scaler.py"),
    ("--lr", Span::Positive, None, "training/arguments.py"),
    ("--lr-decay-iters", Span::Positive, None, "core/optimizer_param_scheduler.py"),
    ("--lr-decay-samples", Span::Positive, None, "core/optimizer_param_scheduler.py"),
    ("--lr-warmup-fraction", Span::UnderOne, None, "core/optimizer_param_scheduler.py"),
    ("--manual-gc-interval", Span::NotNegative, Some("--manual-gc"), "training/training.py train"),
    ("--min-loss-scale", Span::Positive, Some("--fp16"), "core/optimizer/grad_scaler.py"),
    ("--min-lr", Span::NotNegative, None, "core/optimizer_param_scheduler.py"),
    ("--num-workers", Span::NotNegative, None, "torch/utils/data/dataloader.py"),
    ("--seed", Span::Positive, None, "training/initialize.py _set_random_seed"),
    ("--train-iters", Span::Positive, None, "training/training.py get_optimizer_param_scheduler"),
    ("--train-samples", Span::Positive, None, "training/training.py get_optimizer_param_scheduler"),
    ("--weight-decay", Span::NotNegative, None, "core/optimizer_param_scheduler.py"),
];

/// Flags of earlier versions and of forks (Megatron-DeepSpeed's and BigScience's `megatron/arguments.py`).
const EARLIER: &str = "
    --bias-gelu-fusion --create-attention-mask-in-dataloader
    --data-impl --DDP-impl --deepspeed_config --load-model-opt-format --load-tag
    --load-teacher --log-batch-size-to-tensorboard --log-level --log-level-replica
    --log-optimizer-states-to-tensorboard --log-path --lr-decay-tokens --lr-warmup-tokens
    --no-async-tensor-model-parallel-allreduce --no-load-lr-state --no-log-learnig-rate-to-tensorboard
    --no-pipeline-parallel --no-query-key-layer-scaling --no-scatter-gather-tensors-in-pipeline
    --one-logger-entity --override-lr-scheduler --profile-backward --reset-iteration --reset-progress
    --test-weighted-split-paths --test-weighted-split-paths-path --tiktoken-special-tokens
    --tokenizer-hf-include-special-tokens --tokenizer-hf-use-fast
    --tokenizer-name-or-path --train-data-exact-num-epochs
    --train-desc-path --train-doc-idx-path --train-idx-path --train-sample-idx-path
    --train-shuffle-idx-path --train-tokens --train-weighted-split-paths
    --train-weighted-split-paths-path --use-checkpoint-lr-scheduler --use-flash-attn-builder
    --use-flash-attn-triton --use-flash-attn-v1 --use-flash-attn-v2 --valid-weighted-split-paths
    --valid-weighted-split-paths-path --wandb-entity-name --wandb-group --wandb-id
    --wandb-log-interval --wandb-name
";

/// What a flag takes.
#[derive(Clone, Copy)]
enum Kind {
    Nothing,
    Whole,
    Real,
    Text,
    Word(&'static [&'static str]),
}

/// What a flag takes and whether it takes several of these; none of flags whose values are not looked at here.
fn kind_of(name: &str) -> Option<(Kind, bool)> {
    let in_list = |list: &str| list.split_whitespace().any(|known| known == name);
    let words = |table: &[(&str, &'static [&'static str])]| {
        table.iter().find(|(flag, _)| *flag == name).map(|(_, words)| Kind::Word(words))
    };
    let lists = [
        (SWITCHES, Kind::Nothing, false),
        (WHOLE, Kind::Whole, false),
        (REAL, Kind::Real, false),
        (REAL_ELSEWHERE, Kind::Real, false),
        (TEXT, Kind::Text, false),
        (TEXTS, Kind::Text, true),
        (WHOLES, Kind::Whole, true),
        (WHOLES_ELSEWHERE, Kind::Whole, true),
        (REALS, Kind::Real, true),
    ];
    let listed = lists.iter().find(|(list, ..)| in_list(list)).map(|(_, kind, several)| (*kind, *several));
    listed
        .or_else(|| words(CHOICES).map(|kind| (kind, false)))
        .or_else(|| words(CHOICES_OF_MANY).or(words(CHOICES_OF_MANY_ELSEWHERE)).map(|kind| (kind, true)))
}

/// Flags that change neither a step's time nor its memory, or that are implied by what is read elsewhere.
pub(super) fn neutral() -> impl Iterator<Item = &'static str> {
    let lists = [SWITCHES, WHOLE, REAL, TEXT, TEXTS, WHOLES, REALS, LISTS, EARLIER];
    let lists = lists.into_iter().flat_map(str::split_whitespace);
    lists.chain(CHOICES.iter().chain(CHOICES_OF_MANY).map(|(name, _)| *name))
}

/// Whether a flag is one of them.
pub(super) fn is_neutral(name: &str) -> bool {
    neutral().any(|known| known == name)
}

/// Whether Megatron-LM's parser no longer has a flag, or never had: one of an earlier version or of a fork.
pub(super) fn is_earlier(name: &str) -> bool {
    EARLIER.split_whitespace().any(|known| known == name)
}

/// Looks at the values of such flags; `assumed` takes what a person has to know of them.
///
/// # Errors
/// Values of another kind than their flags take, several where one is taken, and none where the text ends, each at its flag's
/// line; where all are of their kinds, numbers that are too large or too small.
pub(super) fn check(f: &mut Flags, text: &str, assumed: &mut Vec<String>) -> Read<()> {
    let (mut behind_switches, mut wrong) = (Vec::new(), Vec::new());
    for (name, (values, line)) in f.given.iter().chain(f.earlier.iter().map(|(name, given)| (name, given))) {
        let mut refuse = |text: String| wrong.push((*line, text));
        let Some((kind, several)) = kind_of(name) else { continue };
        if let Kind::Nothing = kind {
            match values.first() {
                Some(value) if is_unknown(value) => behind_switches.push(*line),
                Some(value) => refuse(format!("{name} takes no value, found `{}`", one_line(value))),
                None => {}
            }
            continue;
        }
        if values.is_empty() {
            if !matches!(kind, Kind::Text) || several || text.trim_end().ends_with(name.as_str()) {
                refuse(format!("{name} has no value: is the script cut off, or what stands for it empty?"));
            } else {
                // Names of files are often left to be filled in.
                assumed.push(format!("line {line}: {name} has no value; it is left out of the prediction"));
            }
            continue;
        }
        // What only a running shell knows may be any number of words.
        if values.len() > 1 && !several && !values.iter().any(|value| is_unknown(value)) {
            refuse(format!("{name} takes one value, found `{}`", one_line(&values.join(" "))));
            continue;
        }
        for value in values.iter().filter(|value| !is_unknown(value)) {
            let found = shown(&one_line(value));
            match kind {
                Kind::Whole if integer(value).is_none() => {
                    refuse(format!("{name} takes {}, found `{found}`", numbers("whole", several)));
                }
                Kind::Real if real_number(value).is_none() => {
                    refuse(format!("{name} takes {}, found `{found}`", numbers("", several)));
                }
                Kind::Word(words) if !words.contains(&value.as_str()) => {
                    let earlier = EARLIER_VALUES.iter().find(|(flag, _)| flag == name);
                    if earlier.is_some_and(|(_, words)| words.contains(&value.as_str())) {
                        assumed.push(format!(
                            "line {line}: {name} {found} is read as of an earlier version or of a fork: Megatron-LM's \
                             parser of today refuses it"
                        ));
                        continue;
                    }
                    refuse(no_choice(name, &found, words));
                }
                _ => {}
            }
        }
    }
    f.behind_switches.extend(behind_switches);
    ImportError::all(wrong)?;
    ImportError::all(f.given.iter().filter_map(|(name, given)| out_of_span(f, name, given)).collect())
}

/// A number that the framework refuses, where a flag has one.
fn out_of_span(f: &Flags, name: &str, (values, line): &(Vec<String>, usize)) -> Option<(usize, String)> {
    let (_, span, beside, source) = SPANS.iter().find(|(flag, ..)| *flag == name)?;
    let counts = beside.is_none_or(|beside| f.given.contains_key(beside));
    let found = values.first().filter(|_| counts)?;
    let wrong = !span.holds(real_number(found)?);
    let text = || format!("{name} takes a number {}, found `{}` ({source})", span.words(), one_line(found));
    wrong.then(|| (*line, text()))
}

/// What a flag takes, in words.
fn numbers(kind: &str, several: bool) -> String {
    let words = if several { "numbers" } else { "a number" };
    if kind.is_empty() { words.to_owned() } else { words.replace("number", &format!("{kind} number")) }
}
