//! What `accelerate launch` is told by its options and, where they say nothing, by the file that they name
//! (`accelerate/commands/launch.py` `_validate_launch_command`), and the DeepSpeed configuration that it makes of that
//! (`accelerate/utils/dataclasses.py` `DeepSpeedPlugin`).

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::super::yaml;
use super::wrappers::program_at;
use super::{ImportError, Word};
use crate::spec::shipped::nearest;

/// Switches that each pick another way to train than the file's.
const MODES: [&str; 6] = ["cpu", "multi_gpu", "tpu", "use_deepspeed", "use_fsdp", "use_megatron_lm"];

/// Settings of its file that may not stand beside a configuration of DeepSpeed's
/// (`accelerate/utils/dataclasses.py` `_deepspeed_config_checks`).
const CONFIGURED: [&str; 9] = [
    "gradient_accumulation_steps",
    "gradient_clipping",
    "zero_stage",
    "offload_optimizer_device",
    "offload_param_device",
    "offload_param_nvme_path",
    "offload_optimizer_nvme_path",
    "zero3_save_16bit_model",
    "mixed_precision",
];

/// Long options of `accelerate launch`, with underscores (`accelerate/commands/launch.py`, 1.15); it takes none cut short.
const OPTIONS: &str = "
    aws_access_key_id aws_secret_access_key config_file cpu debug deepspeed_config_file
    deepspeed_exclusion_filter deepspeed_hostfile deepspeed_inclusion_filter
    deepspeed_moe_layer_cls_names deepspeed_multinode_launcher downcast_bf16 dynamo_backend dynamo_mode
    dynamo_use_dynamic dynamo_use_fullgraph dynamo_use_regional_compilation enable_cpu_affinity env
    fp8_amax_compute_algo fp8_amax_history_len fp8_backend fp8_enable_fsdp_float8_all_gather fp8_format
    fp8_interval fp8_margin fp8_opt_level fp8_override_linear_precision fp8_pad_inner_dim
    fp8_use_autocast_during_eval fsdp_activation_checkpointing fsdp_activation_checkpointing_offload
    fsdp_auto_wrap_policy fsdp_backward_prefetch fsdp_cpu_ram_efficient_loading fsdp_forward_prefetch
    fsdp_min_num_params fsdp_offload_params fsdp_reshard_after_forward fsdp_sharding_strategy
    fsdp_state_dict_type fsdp_sync_module_states fsdp_transformer_layer_cls_to_wrap fsdp_use_orig_params
    fsdp_version gpu_ids gradient_accumulation_steps gradient_clipping help log_dir machine_rank
    main_process_ip main_process_port main_training_function max_restarts megatron_lm_attention_backend
    megatron_lm_attention_dropout megatron_lm_attention_softmax_in_fp32
    megatron_lm_calculate_per_token_loss megatron_lm_context_parallel_size
    megatron_lm_decoder_last_pipeline_num_layers megatron_lm_eod_mask_loss
    megatron_lm_expert_model_parallel_size megatron_lm_expert_tensor_parallel_size
    megatron_lm_gradient_clipping megatron_lm_hidden_dropout megatron_lm_no_load_optim
    megatron_lm_no_save_optim megatron_lm_num_micro_batches megatron_lm_optimizer_cpu_offload
    megatron_lm_overlap_cpu_optimizer_d2h_h2d megatron_lm_pp_degree megatron_lm_recompute_activations
    megatron_lm_recompute_granularity megatron_lm_recompute_method megatron_lm_recompute_num_layers
    megatron_lm_sequence_parallelism megatron_lm_tp_degree megatron_lm_use_custom_fsdp
    megatron_lm_use_distributed_optimizer megatron_lm_use_precision_aware_optimizer
    megatron_lm_use_rotary_position_embeddings mixed_precision module monitor_interval mpirun_hostfile
    multi_gpu no_python no_tpu_cluster num_cpu_threads_per_process num_machines num_processes
    offload_optimizer_device offload_optimizer_nvme_path offload_param_device offload_param_nvme_path
    parallelism_config_cp_backend parallelism_config_cp_comm_strategy parallelism_config_cp_size
    parallelism_config_dp_replicate_size parallelism_config_dp_shard_size
    parallelism_config_sp_attn_implementation parallelism_config_sp_backend
    parallelism_config_sp_seq_length parallelism_config_sp_seq_length_is_variable
    parallelism_config_sp_size parallelism_config_tp_size quiet rdzv_backend rdzv_conf role same_network
    tee tpu tpu_cluster tpu_use_sudo use_deepspeed use_fsdp use_megatron_lm use_parallelism_config vm
    zero3_init_flag zero3_save_16bit_model zero_stage
";

/// What it is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Told {
    options: BTreeMap<String, Word>,
    file: BTreeMap<String, Word>,
    /// Why the file is not read.
    fault: Option<ImportError>,
}

/// The options of `accelerate launch` among the words of a launcher, by their names with underscores.
pub(super) fn options(launcher: &[Word]) -> Option<BTreeMap<String, Word>> {
    let module = launcher.iter().position(|word| word.text == "accelerate.commands.launch");
    let words = match module {
        Some(at) => &launcher[at..],
        None => {
            let at = program_at(launcher, |name| name == "accelerate")?;
            launcher.get(at + 1..).filter(|words| words.first().is_some_and(|w| w.text == "launch"))?
        }
    };
    let mut options = BTreeMap::new();
    for (at, word) in words.iter().enumerate() {
        let Some(option) = word.text.strip_prefix("--") else { continue };
        let next = words.get(at + 1).map_or("", |next| next.text.as_str());
        let (name, value) = option.split_once('=').unwrap_or((option, next));
        options.insert(name.replace('-', "_"), Word { text: value.to_owned(), line: word.line });
    }
    Some(options)
}

impl Told {
    /// `text` is what the file of the options holds, or why it is not read.
    pub(super) fn new(options: BTreeMap<String, Word>, text: Option<Result<String, String>>) -> Self {
        let mut told = Self { options, file: BTreeMap::new(), fault: None };
        let Some((path, text)) = told.options.get("config_file").cloned().zip(text) else { return told };
        let of_file =
            |fault: String| ImportError::new(path.line, format!("`{}`: {fault}", super::shown(&path.text)));
        let documents = text.map_err(|why| of_file(format!("not read: {why}"))).and_then(|text| {
            yaml::documents(&text).map_err(|e| of_file(format!("line {}: {}", e.line, e.message)))
        });
        match documents {
            Err(fault) => told.fault = Some(fault),
            Ok(documents) => {
                let top = documents.iter().flat_map(|node| node.entries());
                for (name, node) in top {
                    let inner = node.entries().iter().filter(|_| name == "deepspeed_config");
                    for (name, node) in inner.chain([&(name.clone(), node.clone())]) {
                        if let Some(text) = node.text() {
                            let word = Word { text: text.to_owned(), line: path.line };
                            told.file.insert(name.clone(), word);
                        }
                    }
                }
            }
        }
        told
    }

    /// A setting, of the options before the file's.
    ///
    /// # Errors
    /// The file that would say it is not read.
    pub fn get(&self, name: &str) -> Result<Option<&Word>, ImportError> {
        match (self.options.get(name).or_else(|| self.file.get(name)), &self.fault) {
            (None, Some(fault)) => Err(fault.clone()),
            (word, _) => Ok(word.filter(|word| word.text != "none")),
        }
    }

    /// Options that it does not have, each with its line and the nearest that it has.
    pub(super) fn strange_options(&self) -> impl Iterator<Item = String> {
        let strange = self.options.iter().filter(|(name, _)| {
            !name.is_empty() && !OPTIONS.split_whitespace().any(|known| known == name.as_str())
        });
        strange.map(|(name, word)| {
            let near = nearest(name, OPTIONS.split_whitespace());
            let near = near.first().map_or(String::new(), |near| format!(": did you mean --{near}?"));
            format!("line {}: accelerate launch has no option --{}{near}", word.line, super::shown(name))
        })
    }

    fn uses_deepspeed(&self) -> Result<bool, ImportError> {
        if MODES.iter().any(|mode| self.options.contains_key(*mode)) {
            return Ok(self.options.contains_key("use_deepspeed"));
        }
        Ok(self.get("distributed_type")?.is_some_and(|kind| kind.text == "DEEPSPEED"))
    }

    /// Refuses a file that says what a configuration of DeepSpeed's has to say.
    ///
    /// # Errors
    /// Such a setting.
    pub fn leaves_configured(&self) -> Result<(), ImportError> {
        if !self.uses_deepspeed()? {
            return Ok(());
        }
        let said = |name: &str| !(name == "mixed_precision" && self.options.contains_key(name));
        let mut settings =
            self.file.iter().filter(|(name, _)| CONFIGURED.contains(&name.as_str()) && said(name));
        settings.next().map_or(Ok(()), |(name, word)| {
            let text = format!(
                "Accelerate refuses a file that says {name} beside a configuration of DeepSpeed's: say it there alone"
            );
            Err(ImportError::new(word.line, text))
        })
    }

    /// The configuration that DeepSpeed is told; none where something else trains.
    ///
    /// # Errors
    /// As [`Told::get`]; numbers that are none.
    pub fn deepspeed(&self) -> Result<Option<Handed>, ImportError> {
        if !self.uses_deepspeed()? {
            return Ok(None);
        }
        if let Some(path) = self.get("deepspeed_config_file")? {
            self.leaves_configured()?;
            return Ok(Some(Handed::File(path.text.clone())));
        }
        let number = |name: &str| {
            let Some(word) = self.get(name)? else { return Ok(None) };
            let text = format!("{name} takes a whole number, found `{}`", super::shown(&word.text));
            word.text.parse::<u32>().map(Some).map_err(|_| ImportError::new(word.line, text))
        };
        let place = |name: &str| -> Result<Value, ImportError> {
            let device = self.get(name)?.map_or("none", |word| word.text.as_str());
            Ok(json!({ "device": device }))
        };
        let accumulation = number("gradient_accumulation_steps")?.map_or(json!("auto"), |steps| json!(steps));
        let text = json!({
            "train_batch_size": "auto",
            "train_micro_batch_size_per_gpu": "auto",
            "gradient_accumulation_steps": accumulation,
            "zero_optimization": {
                "stage": number("zero_stage")?.unwrap_or(2),
                "offload_optimizer": place("offload_optimizer_device")?,
                "offload_param": place("offload_param_device")?,
            },
        });
        Ok(Some(Handed::Made(text.to_string())))
    }
}

/// A DeepSpeed configuration as a launch hands it on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Handed {
    /// A file, by its path as the launch says it.
    File(String),
    /// What Accelerate makes of its own settings.
    Made(String),
}
