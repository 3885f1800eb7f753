//! Reads a DeepSpeed configuration back into a job and a plan. The configuration names neither the model
//! nor the ranks: they are given beside it.

use crate::frameworks::export::one_line;
use crate::frameworks::hf::HfModel;
use crate::frameworks::megatron::flags::{misspelt, real_number, whole_number};
use crate::frameworks::megatron::other_jobs::ADAPTERS;
use crate::frameworks::shell::{ImportError, Launch, is_unknown, shown, untold_value};
use crate::frameworks::{Context, Hardware, Judge, Target, legal_plan};
use crate::layers::Layers;
use crate::plan::{Chunk, ContextComm, Dispatcher, Layout, Place, Plan, Recompute};
use crate::spec::SpecError;
use crate::spec::job::{Job, Optimizer, Precision, Routing, Training};
use crate::spec::json::{Field, Node, Object, Value, parse, without_comments};
use crate::spec::model::{FeedForward, Model};
use crate::units::product;

/// What stands beside the configuration.
#[derive(Debug, Clone, Copy)]
pub struct Given<'a> {
    /// The model.
    pub model: &'a Model,
    /// Ranks of the job.
    pub gpus: u32,
    /// Tokens per sequence; else what the trainer is told, else as many as the model was made for, at most 4096.
    pub sequence_length: Option<u32>,
    /// Pipeline stages of the script's `PipelineModule`.
    pub pipeline_parallel: u32,
    /// What the trainer is told.
    pub trainer: Trainer,
}

/// What the Hugging Face Trainer fills in where the configuration says `"auto"` (transformers/integrations/deepspeed.py
/// HfTrainerDeepSpeedConfig).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Trainer {
    /// Sequences of a micro-batch.
    pub micro_batch_size: Option<u32>,
    /// Micro-batches of a step.
    pub gradient_accumulation_steps: Option<u32>,
    /// Tokens per sequence.
    pub sequence_length: Option<u32>,
    /// The number format.
    pub precision: Option<Precision>,
    /// Whether layers are recomputed in the backward pass; else as the configuration has it.
    pub recompute: Option<bool>,
}

/// Arguments of the Hugging Face Trainer without bearing on a step's time or memory
/// (`transformers/training_args.py` TrainingArguments, 5.12), and the model's name, which is given beside the launch.
const NEUTRAL_OF_TRAINER: &str = "
    adam_beta1 adam_beta2 adam_epsilon batch_eval_metrics data_seed dataloader_drop_last
    dataloader_num_workers dataloader_persistent_workers dataloader_pin_memory dataloader_prefetch_factor
    ddp_timeout disable_tqdm do_eval do_predict do_train enable_jit_checkpoint
    eval_accumulation_steps eval_delay eval_do_concat_batches eval_on_start eval_steps eval_strategy
    eval_use_gather_object greater_is_better hub_always_push hub_model_id
    hub_private_repo hub_revision hub_strategy hub_token ignore_data_skip include_for_metrics
    include_num_input_tokens_seen label_names learning_rate load_best_model_at_end local_rank log_level
    log_level_replica log_on_each_node logging_dir logging_first_step logging_nan_inf_filter logging_steps
    logging_strategy lr_scheduler_kwargs lr_scheduler_type max_grad_norm max_steps metric_for_best_model
    model_name_or_path num_train_epochs output_dir overwrite_output_dir per_device_eval_batch_size
    prediction_loss_only project push_to_hub remove_unused_columns report_to
    restore_callback_states_from_checkpoint resume_from_checkpoint run_name save_on_each_node
    save_only_model save_steps save_strategy save_total_limit seed warmup_ratio warmup_steps weight_decay
";

impl Trainer {
    /// Sequences of a micro-batch unless it is told (transformers/training_args.py per_device_train_batch_size).
    const MICRO_BATCH: u32 = 8;

    /// Reads the trainer's flags of a launch, whose script is `text`; also gives those that are not understood, each
    /// with its values and its line.
    ///
    /// # Errors
    /// A value that is no number where one is due.
    pub fn read(launch: &Launch, text: &str) -> Result<(Self, Vec<(usize, String)>), ImportError> {
        let mut trainer = Self::default();
        let mut others = Vec::new();
        // What says whether adapters are trained counts before what says how large they are.
        let (mut switch, mut rank): (Option<bool>, bool) = (None, false);
        let mut adapters = None;
        let words = &launch.arguments;
        for (at, word) in words.iter().enumerate().filter(|(_, word)| is_flag(&word.text)) {
            let (name, glued) = match word.text.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (word.text.as_str(), None),
            };
            let next = words.get(at + 1).map(|w| w.text.as_str()).filter(|w| !w.starts_with('-'));
            let value = glued.or(next);
            let number = || -> Result<Option<u32>, ImportError> {
                let Some(value) = value else { return Ok(None) };
                if is_unknown(value) {
                    let origin = launch.origin_of(text, word.line, name);
                    let message = untold_value(name, value, origin.as_ref());
                    return Err(ImportError::new(word.line, message));
                }
                let number = whole_number(value).and_then(|n| u32::try_from(n).ok()).filter(|n| *n > 0);
                let message = || format!("{name} takes a whole number from 1, found `{}`", shown(value));
                number.map(Some).ok_or_else(|| ImportError::new(word.line, message()))
            };
            let on = value
                .filter(|text| !is_unknown(text))
                .is_none_or(|text| matches!(text.to_lowercase().as_str(), "true" | "1" | "yes" | "t" | "y"));
            match name.replace('-', "_").as_str() {
                "__per_device_train_batch_size" => trainer.micro_batch_size = number()?,
                "__gradient_accumulation_steps" => trainer.gradient_accumulation_steps = number()?,
                "__model_max_length" | "__max_seq_length" | "__max_seq_len" | "__max_length"
                | "__block_size" | "__cutoff_len" => {
                    trainer.sequence_length = number()?;
                }
                "__bf16" if on => trainer.precision = Some(Precision::Bf16),
                "__fp16" if on => trainer.precision = Some(Precision::Fp16),
                "__gradient_checkpointing" => trainer.recompute = Some(on),
                "__bf16" | "__fp16" | "__deepspeed" | "__deepspeed_config" => {}
                // Otherwise kernels wait for one another (transformers/trainer_utils.py enable_full_determinism).
                "__full_determinism" if !on => {}
                "__ddp_backend" if value == Some("nccl") => {}
                "__use_lora" | "__lora_enable" | "__use_peft" | "__use_qlora" | "__finetuning_type"
                | "__train_type" | "__peft_type" => {
                    let lora = value.is_some_and(|text| text.to_lowercase().contains("lora"));
                    switch = Some(on || lora);
                    adapters.get_or_insert((word.line, name.to_owned()));
                }
                "__lora_r" | "__lora_rank" | "__lora_dim" => {
                    rank |= value.and_then(real_number) != Some(0.0);
                    adapters.get_or_insert((word.line, name.to_owned()));
                }
                other
                    if NEUTRAL_OF_TRAINER
                        .split_whitespace()
                        .any(|known| other.strip_prefix("__") == Some(known)) => {}
                _ => {
                    let values = words[at + 1..].iter().map(|w| w.text.as_str()).take_while(|w| !is_flag(w));
                    let all: Vec<&str> = std::iter::once(word.text.as_str()).chain(values).collect();
                    others.push((word.line, shown(&one_line(&all.join(" ")))));
                }
            }
        }
        match adapters.filter(|_| switch.unwrap_or(rank)) {
            Some((line, name)) => Err(ImportError::new(line, format!("{name}: {ADAPTERS}"))),
            None => Ok((trainer, others)),
        }
    }
}

/// Whether a word is a flag, long or short; negative numbers are none.
fn is_flag(word: &str) -> bool {
    word.starts_with("--")
        || word.starts_with('-') && word[1..].starts_with(|c: char| c.is_ascii_alphabetic())
}

/// What a configuration says.
#[derive(Debug, Clone, PartialEq)]
pub struct Imported {
    /// The job.
    pub job: Job,
    /// The plan.
    pub plan: Plan,
    /// Keys that were not understood, each with its line.
    pub unknown: Vec<(usize, String)>,
    /// What was filled in or read differently, for people.
    pub assumed: Vec<String>,
}

/// Top-level keys without bearing on a step's time or memory.
const NEUTRAL: &[&str] = &[
    "checkpoint",
    "comms_logger",
    "csv_monitor",
    "dump_state",
    "flops_profiler",
    "gradient_clipping",
    "gradient_predivide_factor",
    "memory_breakdown",
    "monitor_config",
    "prescale_gradients",
    "scheduler",
    "steps_per_print",
    "tensorboard",
    "wall_clock_breakdown",
    "wandb",
    "zero_allow_untested_optimizer",
    "zero_force_ds_cpu_optimizer",
];

/// Top-level keys that DeepSpeed 0.19 no longer has (runtime/config.py raises on them).
const GONE: &[&str] = &[
    "amp",
    "compression_training",
    "curriculum_learning",
    "eigenvalue",
    "elasticity",
    "graph_harvesting",
    "nebula",
    "progressive_layer_drop",
    "quantize_training",
    "sparse_attention",
    "sparse_gradients",
];

/// Keys of `zero_optimization` that it no longer has.
const ZERO_GONE: &[&str] = &["mics_hierarchical_params_gather", "mics_shard_size", "zeropp_loco_param"];

/// Sizes of `zero_optimization`, each with the least that it may be.
const SIZES: &[(&str, i64)] = &[
    ("allgather_bucket_size", 0),
    ("reduce_bucket_size", 1),
    ("stage3_max_live_parameters", 0),
    ("stage3_max_reuse_distance", 0),
    ("stage3_model_persistence_threshold", 0),
    ("stage3_param_persistence_threshold", 0),
    ("stage3_prefetch_bucket_size", 0),
    ("sub_group_size", 0),
];

/// Keys of `zero_optimization` that lower stages than 3 ignore.
const ZERO_THREE: &[&str] = &[
    "zero_hpz_partition_size",
    "zero_quantized_gradients",
    "zero_quantized_nontrainable_weights",
    "zero_quantized_weights",
];

/// Keys of `zero_optimization`.
const ZERO: &[&str] = &[
    "allgather_bucket_size",
    "allgather_partitions",
    "allgather_sequential",
    "compute_grad_norm",
    "contiguous_gradients",
    "cpu_offload",
    "cpu_offload_param",
    "cpu_offload_use_pin_memory",
    "elastic_checkpoint",
    "enable_sanity_checks",
    "gather_16bit_weights_on_model_save",
    "ignore_unused_parameters",
    "leaf_module",
    "legacy_stage1",
    "load_from_fp32_weights",
    "log_trace_cache_warnings",
    "max_live_parameters",
    "max_reuse_distance",
    "memory_efficient_linear",
    "mics_hierarchical_params_gather",
    "mics_shard_size",
    "model_persistence_threshold",
    "module_granularity_threshold",
    "offload_optimizer",
    "offload_param",
    "overlap_comm",
    "override_module_apply",
    "param_persistence_threshold",
    "parameter_alignment",
    "pipeline_loading_checkpoint",
    "prefetch_bucket_size",
    "reduce_bucket_size",
    "reduce_scatter",
    "round_robin_gradients",
    "save_muon_momentum_buffer_in_memory",
    "stage",
    "stage3_allgather_sequential",
    "stage3_gather_16bit_weights_on_model_save",
    "stage3_gather_fp16_weights_on_model_save",
    "stage3_max_live_parameters",
    "stage3_max_reuse_distance",
    "stage3_model_persistence_threshold",
    "stage3_module_granularity_threshold",
    "stage3_param_persistence_threshold",
    "stage3_prefetch_bucket_size",
    "stage3_use_all_reduce_for_fetch_params",
    "sub_group_size",
    "use_all_reduce_for_fetch_params",
    "use_multi_rank_bucket_allreduce",
    "zenflow",
    "zero_hpz_partition_size",
    "zero_quantized_gradients",
    "zero_quantized_nontrainable_weights",
    "zero_quantized_weights",
];

/// Keys of `zero_optimization` that change a step in ways that are not modelled.
const ZERO_NOT_MODELLED: &[&str] = &[
    "mics_shard_size",
    "zenflow",
    "zero_quantized_gradients",
    "zero_quantized_weights",
    "zero_quantized_nontrainable_weights",
];

/// Keys of `zero_optimization` that predictions take to be on.
const ZERO_ON: &[&str] = &["allgather_partitions", "contiguous_gradients"];

/// What measures a step and slows it, where it is on.
const MEASURING: &[&str] = &["flops_profiler", "comms_logger", "wall_clock_breakdown", "memory_breakdown"];

/// Sections with their keys that forbid others (`runtime/precision_config.py`, `runtime/zero/config.py`,
/// `runtime/zero/offload_config.py`, `runtime/tensor_parallel/config.py`).
const CLOSED: [(&str, &[&str]); 7] = [
    (
        "tensor_parallel",
        &[
            "autotp_size",
            "dtype",
            "injection_policy_tuple",
            "keep_module_on_host",
            "kernel_inject",
            "partition_config",
            "preset_model",
            "replace_with_kernel_inject",
            "tensor_parallel",
            "tp",
            "tp_overlap_comm",
            "vocab_parallel_ce_backend",
            "vocab_parallel_lm_head",
        ],
    ),
    ("bf16", BF16),
    ("bfloat16", BF16),
    (
        "fp16",
        &[
            "auto_cast",
            "consecutive_hysteresis",
            "enabled",
            "fp16_master_weights_and_grads",
            "hysteresis",
            "initial_scale_power",
            "loss_scale",
            "loss_scale_window",
            "min_loss_scale",
        ],
    ),
    ("zero_optimization", ZERO),
    ("offload_param", &["buffer_count", "buffer_size", "device", "max_in_cpu", "nvme_path", "pin_memory"]),
    (
        "offload_optimizer",
        &[
            "buffer_count",
            "cpuadam_cores_perc",
            "device",
            "fast_init",
            "nvme_path",
            "pin_memory",
            "pipeline_read",
            "pipeline_write",
            "ratio",
            "super_offload",
        ],
    ),
];

/// Sections with their keys that take others and say nothing of them (`runtime/config.py`,
/// `runtime/activation_checkpointing/config.py`, `module_inject/auto_ep_config.py`).
const OPEN: [(&str, &[&str]); 4] = [
    (
        "activation_checkpointing",
        &[
            "contiguous_memory_optimization",
            "cpu_checkpointing",
            "number_checkpoints",
            "partition_activations",
            "profile",
            "synchronize_checkpoint_boundary",
        ],
    ),
    ("data_types", &["buffer_dtype", "grad_accum_dtype", "param_dtype"]),
    (
        "expert_parallel",
        &[
            "async_split_plan",
            "autoep_size",
            "combine_impl",
            "comm_backend",
            "comm_max_tokens_per_rank",
            "comm_num_sm",
            "comm_qp_margin",
            "disable_triton_grouped_mm",
            "enabled",
            "expert_activation",
            "expert_pattern",
            "expert_tensor_parallel_size",
            "expert_w1",
            "expert_w2",
            "expert_w3",
            "gate_up_impl",
            "has_shared_experts",
            "load_balance_coeff",
            "moe_layer_pattern",
            "num_expert_groups",
            "num_experts_attr",
            "num_limited_groups",
            "preset_model",
            "route_norm",
            "route_scale",
            "routed_scaling_factor",
            "router_pattern",
            "row_weighting_impl",
            "score_apply",
            "score_func",
            "shared_experts_gate_pattern",
            "shared_experts_pattern",
            "top_k",
            "top_k_attr",
            "use_grouped_mm",
            "validate_folding_routing",
        ],
    ),
    ("optimizer", &["legacy_fusion", "params", "type"]),
];

/// Families whose experts AutoEP finds (`module_inject/auto_ep_presets`).
const EXPERT_PRESETS: [&str; 5] = ["deepseek_v2", "deepseek_v3", "mixtral", "qwen3_5_moe", "qwen3_moe"];

/// Fields of the section `bf16`, by either name.
const BF16: &[&str] = &[
    "bf16_master_weights_and_grads",
    "bf16_optimizer_states",
    "check_grad_overflow",
    "enabled",
    "immediate_grad_update",
];

type Read<T> = Result<T, SpecError>;

/// What of what is read here the Hugging Face Trainer fills in.
const FILLED: &[&str] =
    &["train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "enabled"];

/// Whether the Hugging Face Trainer is to fill a value in.
fn left(node: &Node) -> bool {
    matches!(&node.value, Value::Text(text) if text == "auto")
}

/// A section of the configuration.
struct Section<'a> {
    text: &'a str,
    /// Its name with a dot, for messages; empty at the top.
    path: String,
    fields: &'a [Field],
}

impl<'a> Section<'a> {
    /// The whole configuration.
    fn top(text: &'a str, root: &'a Node) -> Read<Self> {
        match &root.value {
            Value::Object(Object { fields }) => Ok(Self { text, path: String::new(), fields }),
            _ => Err(SpecError::new("", "expected a JSON object with DeepSpeed's settings").mark(
                text,
                root.span.start..root.span.start + 1,
                "",
            )),
        }
    }

    fn error(&self, node: &Node, message: String) -> SpecError {
        SpecError::new("", message).mark(self.text, node.span.clone(), "")
    }

    fn get(&self, name: &str) -> Option<&'a Node> {
        self.fields.iter().find(|f| f.name == name).map(|f| &f.node)
    }

    fn wrong<T>(&self, node: &Node, name: &str, expected: &str) -> Read<T> {
        let found = node.value.describe();
        Err(self.error(node, format!("`{}{name}`: expected {expected}, found {found}", self.path)))
    }

    /// A number from `least` up; `5e8` is one.
    fn number(&self, name: &str, least: u32) -> Read<Option<u32>> {
        let Some(node) = self.get(name) else { return Ok(None) };
        let number = match &node.value {
            Value::Null => return Ok(None),
            _ if left(node) && FILLED.contains(&name) => return Ok(None),
            Value::Whole(n) => u32::try_from(*n).ok(),
            Value::Number(n) if n.fract() == 0.0 && *n >= 0.0 && *n <= f64::from(u32::MAX) => Some(*n as u32),
            _ => None,
        };
        match number.filter(|n| *n >= least) {
            Some(number) => Ok(Some(number)),
            None => self.wrong(node, name, &format!("a whole number from {least}")),
        }
    }

    fn flag(&self, name: &str) -> Read<Option<bool>> {
        let Some(node) = self.get(name) else { return Ok(None) };
        match &node.value {
            Value::Null => Ok(None),
            Value::Flag(flag) => Ok(Some(*flag)),
            _ if left(node) && FILLED.contains(&name) => Ok(None),
            _ => self.wrong(node, name, "true or false"),
        }
    }

    fn section(&self, name: &str) -> Read<Option<Section<'a>>> {
        let Some(node) = self.get(name) else { return Ok(None) };
        match &node.value {
            Value::Null => Ok(None),
            Value::Object(Object { fields }) => {
                Ok(Some(Section { text: self.text, path: format!("{}{name}.", self.path), fields }))
            }
            _ => self.wrong(node, name, "an object"),
        }
    }

    fn place(&self, name: &str) -> Read<Place> {
        let Some(section) = self.section(name)? else { return Ok(Place::Gpu) };
        let Some(node) = section.get("device") else { return Ok(Place::Gpu) };
        match &node.value {
            Value::Text(device) if device == "none" => Ok(Place::Gpu),
            Value::Text(device) if device == "cpu" => Ok(Place::Cpu),
            Value::Text(device) if device == "nvme" => match section.get("nvme_path").map(|path| &path.value)
            {
                Some(Value::Text(_)) => Ok(Place::Nvme),
                _ => Err(section.error(node, format!("{name} to nvme needs `nvme_path`"))),
            },
            Value::Null => Ok(Place::Gpu),
            _ => section.wrong(node, "device", "\"none\", \"cpu\" or \"nvme\""),
        }
    }

    /// Refuses keys that DeepSpeed no longer has, at the top and inside of `zero_optimization`.
    fn gone(&self) -> Read<()> {
        let refuse = |section: &Self, keys: &[&str]| match section
            .fields
            .iter()
            .find(|f| keys.contains(&f.name.as_str()))
        {
            Some(gone) => {
                let message = format!("`{}{}` no longer exists in DeepSpeed", section.path, gone.name);
                Err(SpecError::new("", message).mark(section.text, gone.span.clone(), ""))
            }
            None => Ok(()),
        };
        refuse(self, GONE)?;
        match self.section("zero_optimization")? {
            Some(zero) => refuse(&zero, ZERO_GONE),
            None => Ok(()),
        }
    }

    /// Refuses keys of the sections that forbid others, at the top and inside of `zero_optimization`.
    fn closed(&self) -> Read<()> {
        for (name, keys) in CLOSED {
            let Some(section) = self.section(name)? else { continue };
            if let Some(field) = section.fields.iter().find(|field| !keys.contains(&field.name.as_str())) {
                let message = format!("`{}{name}` has no `{}`; DeepSpeed refuses it", self.path, field.name);
                let error = SpecError::new("", message).mark(self.text, field.span.clone(), "");
                return Err(error.nearest(&field.name, keys.iter().copied()));
            }
            if name == "zero_optimization" {
                section.closed()?;
            }
        }
        Ok(())
    }

    /// Keys of the whole configuration that are neither read nor without bearing, each with its line: DeepSpeed says
    /// nothing of those that it does not know.
    fn unread(&self) -> Read<Vec<(usize, String)>> {
        let top: Vec<&str> = READ.iter().chain(NEUTRAL).copied().collect();
        let mut unread = self.keys_beside(&top);
        for field in self.fields.iter().filter(|field| MEASURING.contains(&field.name.as_str())) {
            let on = match &field.node.value {
                Value::Flag(on) => *on,
                Value::Object(Object { fields }) => fields
                    .iter()
                    .any(|inner| inner.name == "enabled" && matches!(inner.node.value, Value::Flag(true))),
                _ => false,
            };
            unread.extend(on.then(|| (self.line(field.span.start), field.name.clone())));
        }
        for (name, keys) in OPEN {
            if let Some(section) = self.section(name)? {
                unread.extend(section.keys_beside(keys));
            }
        }
        Ok(unread)
    }

    /// Keys that are none of these, each with its line and the one that it may be meant for.
    fn keys_beside(&self, known: &[&str]) -> Vec<(usize, String)> {
        let others = self.fields.iter().filter(|field| !known.contains(&field.name.as_str()));
        let others = others.map(|field| {
            let near = known.iter().find(|known| misspelt(&field.name, &known.replace('_', "-")));
            let meant = near.map_or(String::new(), |known| format!(" (did you mean {known}?)"));
            (self.line(field.span.start), format!("{}{}{meant}", self.path, field.name))
        });
        others.collect()
    }

    /// An error at a place, where there is one.
    fn error_at(&self, node: Option<&Node>, message: String) -> SpecError {
        match node {
            Some(node) => self.error(node, message),
            None => SpecError::new("", message),
        }
    }

    fn line(&self, at: usize) -> usize {
        self.text[..at.min(self.text.len())].matches('\n').count() + 1
    }
}

/// Reads a configuration.
///
/// # Errors
/// The first thing that is no JSON, is missing, contradicts itself or is refused by DeepSpeed's own set-up
/// code, with its place; the source's name is left empty.
pub fn import(text: &str, given: Given) -> Read<Imported> {
    let text = &without_comments(text);
    let root = parse(text)?;
    let top = Section::top(text, &root)?;
    top.gone()?;
    top.closed()?;
    let mut assumed = Vec::new();
    let mut unknown = Vec::new();
    for (section, low) in
        [("bf16", "bf16_master_weights_and_grads"), ("fp16", "fp16_master_weights_and_grads")]
    {
        if let Some(inner) = top.section(section)?
            && inner.flag(low)?.unwrap_or(false)
            // Beside states of 16 bits it is an optimizer of its own.
            && !inner.flag("bf16_optimizer_states")?.unwrap_or(false)
            && let Some(node) = inner.get(low)
        {
            unknown.push((inner.line(node.span.start), format!("{section}.{low}")));
        }
    }
    let zero = top.section("zero_optimization")?;
    let mut layout = degrees(&top, given)?;
    let precision = precision(&top, given.trainer.precision, &mut assumed)?;
    let optimizer = optimizer(&top, precision, &mut assumed)?;
    left_out(&top, precision, &mut assumed)?;
    if let Some(zero) = &zero {
        sharding(zero, &mut layout, &mut unknown)?;
        experts_reduce(zero, &layout)?;
        // Muon needs whole gradients.
        if optimizer != Optimizer::Muon && zero.flag("reduce_scatter")? == Some(false) {
            let line = zero.get("reduce_scatter").map_or(1, |node| zero.line(node.span.start));
            unknown.push((line, "zero_optimization.reduce_scatter: false".to_owned()));
        }
    }
    low_precision_states(&top, layout.zero_stage)?;
    let (micro_batch, accumulation, batch) = batch(&top, given, &layout, &mut assumed)?;
    layout.micro_batch_size = micro_batch;
    layout.gradient_accumulation_steps = accumulation;
    let sequence = given.sequence_length.or(given.trainer.sequence_length).unwrap_or_else(|| {
        let length = u32::try_from(given.model.max_sequence).unwrap_or(u32::MAX).clamp(1, 4096);
        assumed.push(format!("sequences of {length} tokens: the configuration does not say"));
        length
    });
    let checkpointing = top.section("activation_checkpointing")?;
    let to_host =
        checkpointing.as_ref().map(|section| section.flag("cpu_checkpointing")).transpose()?.flatten();
    let recompute = match (checkpointing, given.trainer.recompute) {
        (_, Some(false)) => {
            assumed.push("no layer is recomputed: the script says so".into());
            Recompute::None
        }
        (Some(_), _) => {
            layout.offload.activations = to_host.unwrap_or(false);
            let text =
                "activation_checkpointing recomputes what the model calls it for: taken to be every layer";
            assumed.push(text.into());
            Recompute::FullUniform(1)
        }
        (None, Some(true)) => Recompute::FullUniform(1),
        (None, None) => {
            assumed.push("no layer is recomputed: there is no activation_checkpointing".into());
            Recompute::None
        }
    };
    let job = Job {
        gpus: given.gpus,
        global_batch_size: batch,
        sequence_length: sequence,
        precision,
        optimizer,
        training: Training::Full,
        memory_limit: None,
        tokens: None,
        routing: Routing::Balanced,
        packed: None,
        expert_capacity: None,
    };
    let layers = given.model.layer_count();
    let stages = layout.pipeline_parallel;
    let even = |at: u32| layers / stages + u32::from(at < layers % stages);
    let chunks = (0..stages).map(|at| Chunk { layers: even(at), recompute }).collect();
    let plan = Plan::new(layout, chunks, given.gpus, batch, layers).map_err(|law| {
        let text = law.to_string();
        let expert = top.get("expert_parallel").filter(|_| text.contains("expert"));
        let node = expert.map(|node| inside(node, "autoep_size"));
        top.error_at(node.or(top.get("train_batch_size")), text)
    })?;
    legality(&top, given.model, &job, &plan, &mut assumed)?;
    unknown.extend(top.unread()?);
    unknown.sort();
    Ok(Imported { job, plan, unknown, assumed })
}

/// What a configuration says beside the flags of a script that hands it on.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Beside {
    /// Sequences of a micro-batch.
    pub micro_batch_size: Option<u32>,
    /// Sequences of a step.
    pub global_batch_size: Option<u32>,
    /// Micro-batches of a step.
    pub gradient_accumulation_steps: Option<u32>,
    /// FP16 is enabled.
    pub fp16: bool,
    /// BF16 is enabled.
    pub bf16: bool,
    /// Keys that were not understood, each with its line.
    pub unknown: Vec<(usize, String)>,
    /// What the prediction leaves out, for people.
    pub notes: Vec<String>,
}

/// What a configuration says of sharding, overlap and offload, into a layout whose degrees are known.
///
/// # Errors
/// What is no JSON, or no key or value of DeepSpeed's, with its place; the source's name is left empty.
pub fn import_beside(text: &str, layout: &mut Layout) -> Read<Beside> {
    let text = &without_comments(text);
    let root = parse(text)?;
    let top = Section::top(text, &root)?;
    top.closed()?;
    // Keys that DeepSpeed has dropped are listed: scripts of the fork are often older than that.
    let mut beside = Beside::default();
    (layout.zero_stage, layout.shard_group, layout.data_overlap) = (0, 1, false);
    if let Some(zero) = top.section("zero_optimization")? {
        sharding(&zero, layout, &mut beside.unknown)?;
    }
    if let Some(section) = top.section("activation_checkpointing")? {
        layout.offload.activations = section.flag("cpu_checkpointing")?.unwrap_or(false);
    }
    for name in FILLED {
        if let Some(node) = top.get(name).filter(|node| left(node)) {
            return top.wrong(node, name, "a whole number: no trainer fills it in");
        }
    }
    beside.micro_batch_size = top.number("train_micro_batch_size_per_gpu", 1)?;
    beside.global_batch_size = top.number("train_batch_size", 1)?;
    beside.gradient_accumulation_steps = top.number("gradient_accumulation_steps", 1)?;
    let enabled = |name: &str| match top.section(name)? {
        Some(section) => Ok(section.flag("enabled")?.unwrap_or(false)),
        None => Ok(false),
    };
    beside.fp16 = enabled("fp16")?;
    beside.bf16 = enabled("bf16")? || enabled("bfloat16")?;
    let precision = if beside.fp16 { Precision::Fp16 } else { Precision::Bf16 };
    left_out(&top, precision, &mut beside.notes)?;
    beside.unknown.extend(top.unread()?);
    beside.unknown.sort();
    Ok(beside)
}

/// Top-level keys that are read.
const READ: &[&str] = &[
    "activation_checkpointing",
    "bf16",
    "bfloat16",
    "communication_data_type",
    "data_parallel_size",
    "data_types",
    "expert_parallel",
    "fp16",
    "gradient_accumulation_steps",
    "optimizer",
    "sequence_parallel_size",
    "tensor_parallel",
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "zero_optimization",
];

/// Degrees of parallelism, nothing sharded, one sequence at a time.
fn degrees(top: &Section, given: Given) -> Read<Layout> {
    let tensor = top.section("tensor_parallel")?;
    let tp = match &tensor {
        Some(tensor) => tensor.number("autotp_size", 0)?.unwrap_or(1).max(1),
        None => 1,
    };
    let tensor_overlap = match &tensor {
        Some(tensor) => tensor.flag("tp_overlap_comm")?.unwrap_or(false) && tp > 1,
        None => false,
    };
    let cp = top.number("sequence_parallel_size", 1)?.unwrap_or(1);
    let (mut ep, mut dispatcher) = (1, None);
    let has_experts = given.model.blocks.values().any(|b| matches!(b.feed_forward, FeedForward::Moe(_)));
    if has_experts {
        dispatcher = Some(Dispatcher::AllToAll);
    }
    if let Some(expert) = top.section("expert_parallel")?
        && expert.flag("enabled")?.unwrap_or(false)
    {
        ep = expert.number("autoep_size", 1)?.unwrap_or(1);
        experts_fit(&expert, ep, given.model)?;
        if matches!(expert.get("comm_backend").map(|n| &n.value), Some(Value::Text(t)) if t == "deepep") {
            dispatcher = Some(Dispatcher::DeepEp);
        }
        let told = |tensor: &Section| {
            let named = |key: &str| tensor.get(key).is_some_and(|node| node.value != Value::Null);
            named("partition_config") || named("preset_model")
        };
        if let Some(tensor) = tensor.as_ref().filter(|tensor| tp > 1 && ep > 1 && !told(tensor)) {
            // module_inject/tp_plan_converter.py TPPlanConverter.convert, with the plans of Transformers 5.
            let message = "AutoTP refuses Transformers' plan for a model with experts: `partition_config` must say what is split";
            return Err(tensor.error_at(tensor.get("autotp_size"), message.to_owned()));
        }
    }
    let pp = given.pipeline_parallel.max(1);
    let ranks = product([tp, cp, pp]);
    if u64::from(given.gpus) % ranks != 0 {
        let message =
            format!("{} GPUs do not divide by tp {tp} x Ulysses {cp} x {pp} stages = {ranks}", given.gpus);
        return Err(top.error_at(top.get("tensor_parallel").or(top.get("sequence_parallel_size")), message));
    }
    let dp = (u64::from(given.gpus) / ranks) as u32;
    if let (Some(said), Some(node)) = (top.number("data_parallel_size", 1)?, top.get("data_parallel_size"))
        && said != dp
    {
        let message =
            format!("data_parallel_size {said} x sequence_parallel_size {cp} is not the {} ranks", dp * cp);
        return Err(top.error(node, message));
    }
    Ok(Layout {
        tensor_parallel: tp,
        pipeline_parallel: pp,
        context_parallel: cp,
        expert_parallel: ep,
        data_parallel: dp,
        context_comm: ContextComm::AllToAll,
        dispatcher,
        tensor_overlap,
        ..Layout::ONE
    })
}

fn precision(top: &Section, told: Option<Precision>, assumed: &mut Vec<String>) -> Read<Precision> {
    let mut open = Vec::new();
    let mut on = |name: &'static str, format: Precision| -> Read<bool> {
        let Some(section) = top.section(name)? else { return Ok(false) };
        if section.get("enabled").is_some_and(left) {
            open.push(format);
            return Ok(told == Some(format));
        }
        Ok(section.flag("enabled")?.unwrap_or(false))
    };
    let (bf16, fp16) =
        (on("bf16", Precision::Bf16)? | on("bfloat16", Precision::Bf16)?, on("fp16", Precision::Fp16)?);
    let other = told.filter(|told| (bf16 && *told == Precision::Fp16) || (fp16 && *told == Precision::Bf16));
    if let (Some(told), Some(node)) = (other, top.get("bf16").or(top.get("fp16"))) {
        return Err(
            top.error(node, format!("the trainer is told {}, and another format is enabled", told.name()))
        );
    }
    if !bf16 && !fp16 && told.is_none() && !open.is_empty() {
        let format = if open.contains(&Precision::Bf16) { Precision::Bf16 } else { Precision::Fp16 };
        assumed.push(format!("{}: \"auto\" leaves the number format to the trainer", format.name()));
        return Ok(format);
    }
    match (bf16, fp16) {
        (true, true) => {
            let node = top.get("fp16").or(top.get("bf16"));
            Err(top.error_at(node, "bf16 and fp16 are both enabled; DeepSpeed takes one".to_owned()))
        }
        (_, true) => Ok(Precision::Fp16),
        (true, _) => Ok(Precision::Bf16),
        (false, false) => Ok(told.unwrap_or_else(|| {
            let text = "neither bf16 nor fp16 is enabled, so the model keeps the format in which the script makes it";
            assumed.push(format!("bf16: {text}; fp32 is slower, takes more memory and is not modelled"));
            Precision::Bf16
        })),
    }
}

/// The optimizer, with states of 16 bits where the enabled section `bf16` asks for them.
fn optimizer(top: &Section, precision: Precision, assumed: &mut Vec<String>) -> Read<Optimizer> {
    let kind = optimizer_kind(top, assumed)?;
    let mut low = false;
    for name in ["bf16", "bfloat16"] {
        let Some(section) = top.section(name)? else { continue };
        let auto = section.get("enabled").is_some_and(left) && precision == Precision::Bf16;
        let enabled = auto || section.flag("enabled")?.unwrap_or(false);
        low |= enabled && section.flag("bf16_optimizer_states")?.unwrap_or(false);
    }
    Ok(match (low, kind) {
        (false, kind) => kind,
        (true, Optimizer::Adamw) => Optimizer::AdamwBf16,
        (true, kind) => {
            let name = kind.name();
            assumed.push(format!("bf16_optimizer_states beside {name}: predicted with states of 32 bits"));
            kind
        }
    })
}

/// Refuses weights, gradients and moments of 16 bits where DeepSpeed does, whatever optimizer they belong to
/// (`runtime/config.py` `_do_error_check`).
fn low_precision_states(top: &Section, zero_stage: u8) -> Read<()> {
    let weights = ["bf16_master_weights_and_grads", "fp16_master_weights_and_grads"];
    for section in ["bf16", "bfloat16", "fp16"].iter().map(|name| top.section(name)) {
        let Some(section) = section? else { continue };
        let mut masters = false;
        for key in weights.into_iter().chain(["bf16_optimizer_states"]) {
            let Some(node) = section.get(key).filter(|_| matches!(section.flag(key), Ok(Some(true)))) else {
                continue;
            };
            let needs = if zero_stage == 0 {
                "ZeRO stage 1, 2 or 3"
            } else if key == "bf16_optimizer_states" && !masters {
                weights[0]
            } else {
                masters = true;
                continue;
            };
            return Err(section.error(node, format!("{key} needs {needs} (runtime/config.py)")));
        }
    }
    Ok(())
}

fn optimizer_kind(top: &Section, assumed: &mut Vec<String>) -> Read<Optimizer> {
    let Some(section) = top.section("optimizer")? else {
        assumed.push("AdamW: the training script brings the optimizer".into());
        return Ok(Optimizer::Adamw);
    };
    let Some(node) = section.get("type") else { return Ok(Optimizer::Adamw) };
    let Value::Text(name) = &node.value else { return section.wrong(node, "type", "an optimizer's name") };
    Ok(match name.to_lowercase().as_str() {
        "adam" | "adamw" => Optimizer::Adamw,
        "sgd" => Optimizer::Sgd,
        "muon" => Optimizer::Muon,
        _ => {
            assumed.push(format!("{name} is predicted as AdamW"));
            Optimizer::Adamw
        }
    })
}

/// Tells of what bears on time or memory and is not predicted.
fn left_out(top: &Section, precision: Precision, assumed: &mut Vec<String>) -> Read<()> {
    if let Some(types) = top.section("data_types")?
        && let Some(Node { value: Value::Text(format), .. }) = types.get("grad_accum_dtype")
        && !matches!(format.to_lowercase().as_str(), "fp32" | "float32" | "torch.float32")
    {
        assumed.push(format!(
            "data_types.grad_accum_dtype {format}: predicted with gradients accumulated in 32 bits"
        ));
    }
    if let Some(node) = top.get("communication_data_type") {
        let format = match &node.value {
            Value::Null => None,
            Value::Text(format) => Some(format.to_lowercase()),
            _ => return top.wrong(node, "communication_data_type", "fp16, bf16 or fp32"),
        };
        match format.as_deref() {
            None | Some("fp16" | "bf16") => {}
            Some("fp32") => assumed.push(format!(
                "communication_data_type fp32: predicted with gradients exchanged in the 16 bits of {}",
                precision.name()
            )),
            Some(_) => return top.wrong(node, "communication_data_type", "fp16, bf16 or fp32"),
        }
    }
    if let Some(section) = top.section("activation_checkpointing")?
        && section.flag("partition_activations")?.unwrap_or(false)
    {
        let text = "predicted with saved activations whole on every tensor-parallel rank";
        assumed.push(format!("partition_activations: {text}"));
    }
    Ok(())
}

/// Whether AutoEP finds experts to spread in the model (`module_inject/auto_ep.py`, `auto_ep_presets/base.py`
/// `_validate_hf_model_type`).
fn experts_fit(expert: &Section, degree: u32, model: &Model) -> Read<()> {
    let has_experts = model.blocks.values().any(|b| matches!(b.feed_forward, FeedForward::Moe(_)));
    if let Some(node) = expert.get("autoep_size").filter(|_| degree > 1 && !has_experts) {
        return Err(expert.error(node, format!("autoep_size {degree}: the model has no experts")));
    }
    let ranks = "expert_tensor_parallel_size";
    if let (Some(split), Some(node)) = (expert.number(ranks, 1)?.filter(|n| *n > 1), expert.get(ranks)) {
        return Err(
            expert.error(node, format!("{ranks} {split}: experts that AutoEP splits are not modelled"))
        );
    }
    let Some(node) = expert.get("preset_model") else { return Ok(()) };
    let preset = match &node.value {
        Value::Null => return Ok(()),
        Value::Text(preset) => preset.as_str(),
        _ => return expert.wrong(node, "preset_model", "the name of a family"),
    };
    if !EXPERT_PRESETS.contains(&preset) {
        let text = format!("AutoEP has no preset `{preset}`; it has {}", EXPERT_PRESETS.join(", "));
        return Err(expert.error(node, text));
    }
    let own = HfModel::of(model, &Layers::new(model)).and_then(|family| family.expert_preset);
    match own.filter(|own| *own != preset) {
        Some(own) => {
            let text = format!("AutoEP's preset `{preset}` is not that of {}: `{own}`", model.name);
            Err(expert.error(node, text))
        }
        None => Ok(()),
    }
}

/// How gradients of experts that AutoEP spreads are reduced below stage 3 (`runtime/zero/stage_1_and_2.py`
/// `_configure_moe_settings`).
fn experts_reduce(zero: &Section, layout: &Layout) -> Read<()> {
    for (key, from) in [("reduce_scatter", 1), ("contiguous_gradients", 2)] {
        let asked = layout.expert_parallel > 1 && (from..3).contains(&layout.zero_stage);
        if let Some(node) = zero.get(key).filter(|_| asked)
            && zero.flag(key)? == Some(false)
        {
            let stage = layout.zero_stage;
            return Err(zero.error(node, format!("AutoEP needs {key} at ZeRO stage {stage}")));
        }
    }
    Ok(())
}

/// The value of a section's key, else the section.
fn inside<'n>(node: &'n Node, name: &str) -> &'n Node {
    match &node.value {
        Value::Object(Object { fields }) => fields.iter().find(|f| f.name == name).map_or(node, |f| &f.node),
        _ => node,
    }
}

fn sharding(zero: &Section, layout: &mut Layout, unknown: &mut Vec<(usize, String)>) -> Read<()> {
    for field in zero.fields {
        if ZERO_NOT_MODELLED.contains(&field.name.as_str())
            && !matches!(field.node.value, Value::Flag(false) | Value::Whole(-1))
        {
            unknown.push((zero.line(field.span.start), format!("zero_optimization.{}", field.name)));
        }
    }
    for field in zero.fields {
        if ZERO_ON.contains(&field.name.as_str()) && matches!(field.node.value, Value::Flag(false)) {
            unknown.push((zero.line(field.span.start), format!("zero_optimization.{}: false", field.name)));
        }
    }
    for (name, least) in SIZES {
        let Some(node) = zero.get(name).filter(|node| !left(node)) else { continue };
        let size = match &node.value {
            Value::Whole(size) => Some(*size as f64),
            Value::Number(size) => Some(*size),
            // Numbers may be written as texts.
            Value::Text(text) => text.trim().parse().ok(),
            _ => None,
        };
        if !size.is_some_and(|size| size.fract() == 0.0 && size >= *least as f64) {
            return zero.wrong(node, name, &format!("a whole number from {least}"));
        }
    }
    let stage = zero.number("stage", 0)?.unwrap_or(0);
    if stage > 3 {
        return Err(zero.error_at(zero.get("stage"), format!("ZeRO has stages 0 to 3, found {stage}")));
    }
    layout.zero_stage = stage as u8;
    let set = |field: &&Field| {
        ZERO_THREE.contains(&field.name.as_str())
            && !matches!(field.node.value, Value::Null | Value::Flag(false) | Value::Whole(1))
    };
    if let Some(field) = zero.fields.iter().find(set).filter(|_| stage < 3) {
        let message = format!("{} needs ZeRO stage 3: DeepSpeed ignores it at stage {stage}", field.name);
        return Err(zero.error(&field.node, message));
    }
    let ranks = layout.data_parallel * layout.context_parallel;
    layout.shard_group = if stage == 0 { 1 } else { ranks };
    if let Some(group) = zero.number("zero_hpz_partition_size", 1)?.filter(|g| *g > 1) {
        // More than there are counts as all (utils/groups.py _create_zero_param_parallel_group).
        let group = group.min(ranks);
        if let Some(node) = zero.get("zero_hpz_partition_size").filter(|_| ranks % group != 0) {
            let message = format!("zero_hpz_partition_size {group} does not divide the {ranks} ranks");
            return Err(zero.error(node, message));
        }
        layout.shard_group = group;
    }
    layout.data_overlap = zero.flag("overlap_comm")?.unwrap_or(stage == 3) && stage > 0;
    if let Some(section) = zero.section("offload_optimizer")?
        && let Some(ratio) = section.get("ratio").filter(|node| {
            !matches!(node.value, Value::Null | Value::Whole(1)) && node.value != Value::Number(1.0)
        })
    {
        if stage != 3 {
            let message =
                "a ratio of offloaded states needs ZeRO stage 3 (runtime/zero/config.py)".to_owned();
            return Err(section.error(ratio, message));
        }
        unknown.push((section.line(ratio.span.start), "zero_optimization.offload_optimizer.ratio".into()));
    }
    layout.offload.optimizer = zero.place("offload_optimizer")?;
    layout.offload.parameters = zero.place("offload_param")?;
    for (old, place) in [
        ("cpu_offload", &mut layout.offload.optimizer),
        ("cpu_offload_param", &mut layout.offload.parameters),
    ] {
        if zero.flag(old)?.unwrap_or(false) {
            *place = Place::Cpu;
        }
    }
    Ok(())
}

/// Micro-batch, accumulation and global batch: any two give the third (runtime/config.py
/// _set_batch_related_parameters).
fn batch(top: &Section, given: Given, layout: &Layout, assumed: &mut Vec<String>) -> Read<(u32, u32, u32)> {
    let (dp, gpus, trainer) = (layout.data_parallel, given.gpus, given.trainer);
    // The trainer refuses a configuration that says otherwise than its own arguments.
    let either = |name: &str, told: Option<u32>| -> Read<Option<u32>> {
        match (top.number(name, 1)?, told, top.get(name)) {
            (Some(said), Some(told), Some(node)) if said != told => {
                Err(top.error(node, format!("`{name}` is {said}, and the trainer is told {told}")))
            }
            (said, told, _) => Ok(said.or(told)),
        }
    };
    let mut micro = either("train_micro_batch_size_per_gpu", trainer.micro_batch_size)?;
    let accumulation = either("gradient_accumulation_steps", trainer.gradient_accumulation_steps)?;
    if micro.is_none() && top.get("train_micro_batch_size_per_gpu").is_some_and(left) {
        micro = Some(Trainer::MICRO_BATCH);
        let text =
            "micro-batches of 8, the trainer's default for \"auto\": --micro-batch says another number";
        assumed.push(text.into());
    }
    let batch = top.number("train_batch_size", 1)?;
    // Where tensor parallelism is DeepSpeed's own, its rule counts every rank.
    let counted = if layout.tensor_parallel > 1 && layout.pipeline_parallel == 1 { gpus } else { dp };
    let place = top.get("train_batch_size").or(top.get("train_micro_batch_size_per_gpu"));
    let hinted = |error: SpecError| {
        match given.pipeline_parallel {
        0 | 1 => error,
        _ => error.help(
            "tensor-parallel ranks beside pipeline stages stand in the script's arguments: give the launch script",
        ),
    }
    };
    let wrong = |micro: u32, accumulation: u32, batch: u32| {
        let all = product([micro, accumulation, counted]);
        let factors = format!("micro-batch {micro} x accumulation {accumulation} x {counted} ranks = {all}");
        hinted(top.error_at(place, format!("train_batch_size {batch} is not {factors}")))
    };
    // What is left of the batch for the third number: one at least.
    let rest = |batch: u32, what: &str, other: u32| {
        let least = product([other, counted]);
        if u64::from(batch) >= least {
            return Ok(batch / other / counted);
        }
        let text =
            format!("train_batch_size {batch} is less than {what} {other} x {counted} ranks = {least}");
        Err(hinted(top.error_at(place, text)))
    };
    let (micro, accumulation) = match (micro, accumulation, batch) {
        (Some(m), Some(a), _) => (m, a),
        (Some(m), None, Some(b)) => (m, rest(b, "micro-batch", m)?),
        (None, Some(a), Some(b)) => (rest(b, "accumulation", a)?, a),
        (Some(m), None, None) => (m, 1),
        (None, None, Some(b)) => (rest(b, "micro-batch", 1)?, 1),
        (None, _, None) => {
            return Err(SpecError::new(
                "",
                "neither train_batch_size nor train_micro_batch_size_per_gpu: one of them is needed",
            ));
        }
    };
    let all = product([micro, accumulation, counted]);
    if let Some(batch) = batch.filter(|b| u64::from(*b) != all) {
        return Err(wrong(micro, accumulation, batch));
    }
    let told = trainer.gradient_accumulation_steps.is_some()
        || top.get("gradient_accumulation_steps").is_some_and(|node| !left(node));
    if batch.is_none() && accumulation == 1 && !told {
        assumed.push("no accumulation: gradient_accumulation_steps is not given".into());
    }
    let whole = product([micro, accumulation, dp]);
    let whole = u32::try_from(whole).map_err(|_| wrong(micro, accumulation, u32::MAX))?;
    if let Some(batch) = batch.filter(|batch| *batch != whole) {
        assumed.push(format!(
            "a step trains {whole} sequences: train_batch_size {batch} counts all {counted} ranks, of which {dp} are replicas"
        ));
    }
    Ok((micro, accumulation, whole))
}

/// Whose plan it is: pipeline stages are those of Megatron-DeepSpeed, as far as anything is known of them.
#[must_use]
pub fn target(plan: &Plan) -> Target {
    match plan.layout().pipeline_parallel {
        1 => Target::DeepSpeed,
        _ => Target::MegatronDeepSpeed,
    }
}

/// DeepSpeed's own rules: what its set-up refuses is an error, the rest a note.
fn legality(top: &Section, model: &Model, job: &Job, plan: &Plan, assumed: &mut Vec<String>) -> Read<()> {
    // The hardware is not known yet; only rules on number formats ask for it.
    let context = Context::new(model, &Layers::new(model), job, Hardware::UNKNOWN);
    let target = target(plan);
    let Err(refusal) = legal_plan(target, &context, plan) else { return Ok(()) };
    if plan.layout().offload.activations && refusal.rule == "offload-axis" {
        let text = "works where the script calls DeepSpeed's own checkpointing: taken to be so here";
        assumed.push(format!("cpu_checkpointing {text}; plans that are written for {target} do not"));
        return Ok(());
    }
    if refusal.judge != Judge::SetUp {
        assumed.push(refusal.to_string());
        return Ok(());
    }
    let key = match refusal.rule {
        "ulysses-tensor" => "sequence_parallel_size",
        "experts-divide" | "expert-mesh" | "experts-tensor" => "expert_parallel",
        "optimizer-states" => "bf16",
        _ => "zero_optimization",
    };
    let message = format!("{target} refuses: {} ({})", refusal.reason(), refusal.source);
    Err(top.get(key).map_or_else(
        || SpecError::new("", message.clone()),
        |node| {
            let end = node.span.start + 1;
            SpecError::new("", message.clone()).mark(top.text, node.span.start..end, "")
        },
    ))
}
