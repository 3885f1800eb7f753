//! Reads a Megatron-LM launch script or argument list back into a model, a job and a plan.
//!
//! Defaults are those of Megatron-LM's parser; flags that have no bearing on time or memory are known
//! and skipped, all others that are not understood are listed.

use std::collections::BTreeMap;

use super::super::deepspeed::import::import_beside;
use super::super::export::{Settings, one_line};
use super::super::shell::{
    Files, ImportError, Launch, UNTOLD, is_unknown, no_files, read_launch_with, shown,
};
use super::super::{Context, Hardware, Judge, Target, legal_plan};
use super::flag_rules::{Command, FLAG_RULES, warnings};
use super::flags::{DEEPSPEED, Flags, Read, left_out_note, no_choice, real_number, whole_number};
use super::layer_lists::flags_of;
use super::read_rules::ReadRule;
use super::{batches, experts, left_out, other_jobs, positions, values, vocabulary};
use crate::cost::advice::BatchRamp;
use crate::layers::Layers;
use crate::plan::{
    Chunk, ContextComm, CudaGraphs, Layout, Module, Modules, Offload, Place, Plan, Recompute, Schedule,
};
use crate::spec::cluster::Architecture;
use crate::spec::job::{Job, Optimizer, Precision, Routing, Training};
use crate::spec::model::{
    Activation, Attention, Block, Dense, FeedForward, LatentAttention, Mamba2, Mixer, Model, Mtp, Norm,
    Position, PositionScaling, QkNorm, SCHEMA, Segment,
};
use crate::stages::layout::{LayoutError, Split, read_layout};
use crate::units::product;

/// What a launch says.
#[derive(Debug, Clone, PartialEq)]
pub struct Imported {
    /// The framework that the launch is for.
    pub target: Target,
    /// The run-time profile that predicts it.
    pub profile: &'static str,
    /// The model.
    pub model: Model,
    /// The job.
    pub job: Job,
    /// The plan, at the full batch.
    pub plan: Plan,
    /// How the batch grows to the full one.
    pub ramp: Option<BatchRamp>,
    /// Flags that were not understood, each with its line.
    pub unknown: Vec<(usize, String)>,
    /// What was filled in or read differently, for people.
    pub assumed: Vec<String>,
    /// Flags and variables of the environment as the launch has them, with their values.
    pub settings: Settings,
    /// Ranks on every node, where the launcher says so.
    pub ranks_per_node: Option<u32>,
}

/// Modules whose graphs are modelled.
const GRAPHED: [&str; 3] = ["attn", "moe_router", "moe_preprocess"];

/// Megatron-DeepSpeed's flags for attention that does not keep its scores (`megatron/arguments.py`).
const FLASH_ATTENTION: [&str; 5] = [
    "--use-flash-attn",
    "--use-flash-attn-v1",
    "--use-flash-attn-v2",
    "--use-flash-attn-triton",
    "--use-flash-attn-builder",
];

/// The profile of Megatron-DeepSpeed with none of them.
const UNFUSED: &str = "megatron-deepspeed-bloom";

/// What the text of a launch leaves open.
#[derive(Debug, Clone, Copy, Default)]
pub struct Given<'a> {
    /// Name of the model.
    pub name: &'a str,
    /// GPUs of the job; else as many as the launcher starts.
    pub gpus: Option<u32>,
    /// Entries of the vocabulary, where a tokenizer's file holds them.
    pub vocabulary: Option<u64>,
    /// Silicon of the GPUs, where the cluster is known.
    pub architecture: Option<Architecture>,
    /// What the script is started with: variables (`NAME=value`), then arguments of its own.
    pub words: &'a [String],
}

/// Reads a launch script or an argument list that needs no other file.
///
/// # Errors
/// As [`import_with`].
pub fn import(text: &str, given: Given) -> Read<Imported> {
    import_with(text, given, &no_files)
}

/// Reads a launch script, with the files that it sources, or an argument list.
///
/// # Errors
/// The first thing that cannot be read, contradicts itself, is missing or is refused by the framework's own
/// set-up code, with its line.
pub fn import_with(text: &str, given: Given, files: &Files) -> Read<Imported> {
    let launch = read_launch_with(text, given.words, files)?;
    let mut assumed = launch.notes.clone();
    // Notes may say why it came to an error.
    match imported(text, given, (&launch, files), &mut assumed) {
        Ok(imported) => Ok(Imported { assumed, ..imported }),
        Err(error) => {
            // What it is started with is why.
            let Some(line) = launch.gives_up.filter(|_| !given.words.is_empty()) else {
                return Err(ImportError { notes: assumed, ..error });
            };
            assumed.push(format!("read as if it went on, {error}"));
            let text = "the script ends here with an error for what it is given";
            Err(ImportError { notes: assumed, ..ImportError::new(line, text) })
        }
    }
}

/// Reads a launch; `assumed` takes what is filled in or read differently.
fn imported(
    text: &str,
    given: Given,
    (launch, files): (&Launch, &Files),
    assumed: &mut Vec<String>,
) -> Read<Imported> {
    launches_another(launch, given)?;
    let world = launch.ranks()?;
    if given.gpus.is_none() {
        launch.agrees()?;
    }
    assumed.extend(launch.disagreements());
    other_jobs::trains(launch)?;
    let mut f = Flags::new(launch, text, assumed)?;
    if !f.is_fork() {
        values::check(&mut f, text, assumed)?;
    }
    let mut read = of_flags(&mut f, given, (launch, text, files), world, assumed);
    let cut = f.cut_off(text).map(|(name, line)| {
        (line, format!("the text ends in `{name}`, with which longer flags begin: is the script cut off?"))
    });
    // A file that is whole ends with its last line; a site's own switch may begin like others.
    if let (Ok(_), Some((line, cut)), false) = (&read, &cut, text.ends_with('\n')) {
        return Err(ImportError::new(*line, cut.clone()));
    }
    assumed.extend(cut.map(|(line, text)| format!("line {line}: {text}")));
    if let Err(error) = &mut read {
        // What is wrong may be that a flag counts for nothing: one that is like a flag that was asked for. Others were not
        // come to.
        for one in f.misspelt().filter(|one| f.was_asked(one.near)) {
            let names = |text: &str| text.split([' ', '`', '?', ',']).any(|word| word == one.name);
            let told = names(&error.message) || error.further.iter().any(|(_, text)| names(text));
            match one.refused {
                _ if told => {}
                true => error.further.push((one.line, one.text)),
                false => assumed.push(format!("line {}: {}", one.line, one.text)),
            }
        }
    }
    read
}

/// Refuses a script that is told how many processes to start: a launcher that is not followed.
fn launches_another(launch: &Launch, given: Given) -> Read<()> {
    let told = ["--nproc_per_node", "--nproc-per-node"];
    let word =
        launch.arguments.iter().find(|word| told.contains(&word.text.split('=').next().unwrap_or_default()));
    match (word, &launch.script) {
        (Some(word), Some(script)) if given.gpus.is_none() => {
            let (flag, script) = (one_line(&word.text), shown(&one_line(&script.text)));
            let text = format!(
                "`{script}` is told {flag}: a launcher that is not followed; --gpus says how many ranks there are"
            );
            Err(ImportError::new(word.line, text))
        }
        _ => Ok(()),
    }
}

/// Reads the flags of a launch that starts so many ranks.
fn of_flags(
    f: &mut Flags,
    given: Given,
    (launch, text_of_script, files): (&Launch, &str, &Files),
    world: Option<u32>,
    assumed: &mut Vec<String>,
) -> Read<Imported> {
    let gpus = match (world, given.gpus) {
        (Some(world), Some(gpus)) if world != gpus => {
            assumed.push(format!("{gpus} GPUs as given, not the {world} ranks that the launcher starts"));
            gpus
        }
        (_, Some(gpus)) | (Some(gpus), None) => gpus,
        (None, None) => {
            let text = "the launcher does not say how many ranks it starts: give the number of GPUs (--gpus)";
            return Err(ImportError::new(
                f.line,
                match launch.origin_of_ranks(text_of_script) {
                    Some(origin) => format!("{text}; of `{}` {}", origin.word, origin.remedy()),
                    None => text.to_owned(),
                },
            ));
        }
    };
    if gpus == 0 {
        return Err(ImportError::new(f.line, "the launcher starts no ranks"));
    }
    f.knows_degrees()?;
    let target = if f.on(DEEPSPEED) { Target::MegatronDeepSpeed } else { Target::Megatron };
    let (model, hybrid_split) = model(f, given, assumed)?;
    let sequence = f.small("--seq-length")?.ok_or_else(|| f.missing("--seq-length"))?;
    if u64::from(sequence) > model.max_sequence {
        return Err(ReadRule::Positions.broken_by(
            f,
            f.line_of(&["--max-position-embeddings", "--seq-length"]),
            format!("--max-position-embeddings {} is less than --seq-length {sequence}", model.max_sequence),
        ));
    }
    let precision = precision(f)?;
    let optimizer = optimizer(f, assumed)?;
    let mut profile = target.profile_name();
    if target == Target::MegatronDeepSpeed && !FLASH_ATTENTION.iter().any(|flag| f.given.contains_key(*flag))
    {
        profile = UNFUSED;
        let text = "attention keeps its scores, as it does without --use-flash-attn-v2";
        assumed.push(format!("{text}: predicted as {profile}"));
    }
    let mut layout = layout(f, &model, (gpus, target), assumed)?;
    if target == Target::MegatronDeepSpeed {
        configured(f, &mut layout, (launch, files), assumed)?;
        if layout.zero_stage == 0 && precision == Precision::Bf16 && pipeline_engine(f) {
            layout.zero_stage = 1;
            layout.shard_group = layout.data_parallel * layout.context_parallel;
            // runtime/engine.py _do_optimizer_sanity_check, runtime/bf16_optimizer.py.
            let text =
                "DeepSpeed's BF16 optimizer shards its states over the replicas of a pipeline at stage 0 too";
            assumed.push(format!("ZeRO stage 1: {text}"));
        }
    }
    let chunks = chunks(f, &model, &mut layout, hybrid_split, assumed)?;
    let recompute = recompute(f)?;
    let has_experts = model.blocks.values().any(|b| matches!(b.feed_forward, FeedForward::Moe(_)));
    let expert_capacity = experts::capacity(f, has_experts)?;
    left_out::notes(f, recompute != Recompute::None, assumed)?;
    let ramp = batches::ramp(f, assumed)?;
    let scheduled = batches::last_of_schedule(f, sequence, assumed)?;
    let batch_line = f.line_of(&["--global-batch-size", batches::SCHEDULE]);
    let per_step = product([layout.micro_batch_size, layout.data_parallel]);
    let Ok(per_step) = u32::try_from(per_step) else {
        let text = format!(
            "--micro-batch-size x {} replicas is {per_step}, which is out of range",
            layout.data_parallel
        );
        return Err(ImportError::new(f.line("--micro-batch-size"), text));
    };
    let global_batch_size = match f.small("--global-batch-size")?.or(scheduled) {
        Some(batch) => batch,
        None => {
            assumed.push(format!("global batch {per_step}: one micro-batch per replica"));
            per_step
        }
    };
    if global_batch_size % per_step != 0 {
        return Err(ReadRule::Batch.broken_by(
            f,
            batch_line,
            format!(
                "the global batch {global_batch_size} is no multiple of micro-batch {} x {} replicas = {per_step}",
                layout.micro_batch_size, layout.data_parallel
            ),
        ));
    }
    layout.gradient_accumulation_steps = global_batch_size / per_step;
    let job = Job {
        gpus,
        global_batch_size,
        sequence_length: sequence,
        precision,
        optimizer,
        training: Training::Full,
        memory_limit: None,
        tokens: None,
        routing: Routing::Balanced,
        packed: None,
        expert_capacity,
    };
    let chunks = chunks.into_iter().map(|layers| Chunk { layers, recompute }).collect();
    let line = f.line;
    let plan = Plan::new(layout, chunks, gpus, global_batch_size, model.layer_count()).map_err(|law| {
        let text = law.to_string();
        let expert = ["--expert-model-parallel-size", "--expert-tensor-parallel-size"];
        ImportError::new(if text.contains("expert") { f.line_of(&expert) } else { line }, text)
    })?;
    model.validate().map_err(|fault| {
        let flags = flags_of_field(&fault.field);
        let said = flags.iter().find(|flag| f.given.contains_key(**flag)).copied();
        let what = said.unwrap_or(&fault.field);
        ImportError::new(f.line_of(flags), format!("{what}: {}", fault.message))
    })?;
    // Only rules on number formats ask for the hardware.
    let architecture = given.architecture.unwrap_or(Hardware::UNKNOWN.architecture);
    let hardware = Hardware { architecture, ..Hardware::UNKNOWN };
    let context = Context::new(&model, &Layers::new(&model), &job, hardware);
    if let Err(refusal) = legal_plan(target, &context, &plan) {
        if refusal.judge == Judge::SetUp {
            let line = f.line_of(flags_of_rule(refusal.rule));
            let text = format!("{target} refuses: {} ({})", refusal.reason(), refusal.source);
            return Err(ImportError::new(line, text));
        }
        // Our plans for the pipeline engine are even; it splits what is not ([`parts_by_type`]).
        let forks_own = target == Target::MegatronDeepSpeed && context.has_experts();
        if !matches!(refusal.rule, "even-stages" | "uneven-stages") && !forks_own {
            assumed.push(refusal.to_string());
        }
    }
    if target == Target::Megatron {
        let (environment, layers) = (&launch.environment, model.layer_count());
        // What was not read may export what a rule asks for.
        let (architecture, script) = (given.architecture, launch.script.is_some() && !launch.unread);
        let layout = plan.layout();
        let whole = !f.leaves_out();
        let command = Command { given: &f.given, environment, layout, layers, architecture, script, whole };
        for rule in FLAG_RULES {
            if let Err((flag, text)) = (rule.check)(&command) {
                return Err(ImportError::new(f.line(flag), format!("{text} ({})", rule.source)));
            }
        }
        assumed.extend(warnings(&command));
    }
    if let Some(spare) = f.spare.take() {
        return Err(spare);
    }
    let flags = f.given.iter().map(|(name, (values, _))| (name.clone(), values.join(" ")));
    let variables = launch.environment.iter().map(|(name, value)| (name.clone(), value.clone()));
    let settings = flags.chain(variables).collect();
    for line in &f.behind_switches {
        assumed.push(left_out_note(*line));
    }
    // By now it is known behind which flags that take no value something unknown stands.
    f.knows_degrees()?;
    f.spells()?;
    let mut unknown: Vec<(usize, String)> = f
        .map
        .iter()
        .filter(|(name, _)| !values::is_neutral(name))
        .map(|(name, (values, line))| {
            let words: Vec<&str> = std::iter::once(name).chain(values).map(String::as_str).collect();
            let text = shown(&one_line(&words.join(" ")));
            match f.meant(name) {
                Some(near) => (*line, format!("{text} (did you mean {near}?)")),
                None => (*line, text),
            }
        })
        .collect();
    unknown.sort();
    let ranks_per_node = launch.ranks_per_node()?;
    let assumed = Vec::new();
    Ok(Imported { target, profile, model, job, plan, ramp, unknown, assumed, settings, ranks_per_node })
}

/// Flags that a rule of the framework is about, the most telling first.
fn flags_of_rule(rule: &str) -> &'static [&'static str] {
    match rule {
        "heads" | "widths" | "mamba-heads" => {
            &["--tensor-model-parallel-size", "--expert-tensor-parallel-size", "--num-attention-heads"]
        }
        "yarn-context" => &["--context-parallel-size"],
        "sequence" => &["--context-parallel-size", "--seq-length"],
        "sequence-parallel" => &[
            "--tensor-model-parallel-size",
            "--sequence-parallel",
            "--context-parallel-size",
            "--seq-length",
        ],
        "interleaving" => &["--global-batch-size", "--micro-batch-size"],
        "context-all-to-all-heads" => &["--cp-comm-type"],
        "moe-tensor-needs-sequence" => &["--tensor-model-parallel-size"],
        "expert-bias" => &["--expert-tensor-parallel-size", "--tensor-model-parallel-size"],
        "experts-divide" | "expert-mesh" => &["--expert-model-parallel-size", "--num-experts"],
        "shared-overlap" | "recompute-shared-overlap" => &["--moe-shared-expert-overlap"],
        "expert-overlap" | "recompute-expert-overlap" => &["--overlap-moe-expert-parallel-comm"],
        "padded-experts" => &["--moe-pad-expert-input-to-capacity", "--moe-token-dispatcher-type"],
        "expert-instances" => &["--num-distributed-optimizer-instances"],
        "cuda-graphs" | "recompute-cuda-graphs" => {
            &["--cuda-graph-impl", "--external-cuda-graph", "--enable-cuda-graph"]
        }
        "recompute-modules" => &["--recompute-modules"],
        "optimizer" => &["--optimizer"],
        "optimizer-offload" => &["--optimizer-cpu-offload"],
        "pipeline-zero" => &["--zero-stage"],
        "ulysses-alone" | "ulysses-heads" | "ulysses-sequence" | "ulysses-grouped" => {
            &["--ds-sequence-parallel-size"]
        }
        _ => &[],
    }
}

/// Flags that say a field of a model, the most telling first.
fn flags_of_field(field: &str) -> &'static [&'static str] {
    match field {
        "hidden" => &["--hidden-size"],
        "vocabulary" => &["--vocab-size", "--padded-vocab-size"],
        "vocabulary_divisor" => &["--make-vocab-size-divisible-by"],
        "max_sequence" => &["--max-position-embeddings", "--seq-length"],
        "position" => &["--rotary-percent", "--rotary-base", "--max-position-embeddings"],
        "scaling" => {
            &["--rope-scaling-factor", "--rotary-scaling-factor", "--original-max-position-embeddings"]
        }
        "norm_epsilon" => &["--norm-epsilon"],
        "layers" => &["--hybrid-layer-pattern", "--num-layers"],
        "blocks" => &["--moe-layer-freq", "--hybrid-layer-pattern", "--num-layers"],
        "mtp" => &["--mtp-num-layers", "--hybrid-layer-pattern"],
        "heads" => &["--mamba-num-heads", "--num-attention-heads"],
        "kv_heads" => &["--num-query-groups", "--num-attention-heads"],
        "head_dim" => &["--kv-channels", "--num-attention-heads"],
        "q_lora_rank" => &["--q-lora-rank"],
        "kv_lora_rank" => &["--kv-lora-rank"],
        "qk_nope_dim" => &["--qk-head-dim"],
        "qk_rope_dim" => &["--qk-pos-emb-head-dim"],
        "v_dim" => &["--v-head-dim"],
        "window" => &["--window-size"],
        "inner" => &["--mamba-head-dim", "--mamba-num-heads"],
        "state" => &["--mamba-state-dim"],
        "groups" => &["--mamba-num-groups", "--moe-router-num-groups"],
        "width" => &["--moe-ffn-hidden-size", "--ffn-hidden-size"],
        "shared_width" => &["--moe-shared-expert-intermediate-size"],
        "latent_width" => &["--moe-latent-size"],
        "experts" => &["--num-experts"],
        "top_k" => &["--moe-router-topk"],
        "scaling_factor" => &["--moe-router-topk-scaling-factor"],
        _ => &[],
    }
}

/// The pattern of a hybrid model, if it is one: symbols of every layer, layers of every chunk, symbols of
/// multi-token-prediction modules.
struct Hybrid {
    layers: Vec<char>,
    stages: Vec<u32>,
    mtp: Vec<String>,
}

fn hybrid(f: &mut Flags) -> Read<Option<Hybrid>> {
    let Some((pattern, line)) = f.text("--hybrid-layer-pattern")? else { return Ok(None) };
    let mut parts = pattern.split('/');
    let main = parts.next().unwrap_or_default();
    if let Some(bad) = pattern.chars().find(|c| !"M*+-E|/".contains(*c)) {
        return Err(ImportError::new(
            line,
            format!("`{bad}` is no layer of a hybrid pattern that is understood"),
        ));
    }
    Ok(Some(Hybrid {
        layers: main.chars().filter(|&c| c != '|').collect(),
        stages: main.split('|').map(|s| s.len() as u32).collect(),
        mtp: parts.filter(|p| !p.is_empty()).map(String::from).collect(),
    }))
}

fn model(f: &mut Flags, given: Given, assumed: &mut Vec<String>) -> Read<(Model, Option<Vec<u32>>)> {
    let hybrid = hybrid(f)?;
    let layers = match &hybrid {
        Some(h) => {
            let (line, said) = (f.line("--num-layers"), f.number("--num-layers")?);
            let layers = h.layers.len() as u64;
            if let Some(other) = said.filter(|said| *said != layers) {
                assumed.push(format!(
                    "line {line}: the hybrid pattern has {layers} layers, which count; --num-layers {other} does not"
                ));
            }
            layers
        }
        None => f.need("--num-layers")?,
    };
    if layers == 0 || layers > 100_000 {
        return Err(ImportError::new(f.line("--num-layers"), format!("{layers} layers are out of range")));
    }
    let hidden = f.need("--hidden-size")?;
    if !(1..=1 << 24).contains(&hidden) {
        let text = format!("a hidden size of {hidden} is out of range");
        return Err(ImportError::new(f.line("--hidden-size"), text));
    }
    let gated = f.on("--swiglu");
    let quick = f.on("--quick-geglu");
    let squared = f.on("--squared-relu");
    if gated && quick {
        let line = f.line("--quick-geglu");
        return Err(ReadRule::Activations.broken_by(f, line, "--swiglu excludes --quick-geglu"));
    }
    let activation = match (gated || quick, squared) {
        (true, true) => {
            let text = "--squared-relu excludes --swiglu and --quick-geglu";
            return Err(ReadRule::Activations.broken_by(f, f.line("--squared-relu"), text));
        }
        (true, false) => Activation::SwiGlu,
        (false, true) => Activation::SquaredRelu,
        (false, false) => Activation::Gelu,
    };
    let width = match f.number("--ffn-hidden-size")? {
        Some(width) => width,
        None if gated => (8 * hidden / 3) / 64 * 64,
        None => 4 * hidden,
    };
    let bias = !f.on("--disable-bias-linear");
    let qkv_bias = f.on("--add-qkv-bias") || bias;
    let mixers = mixers(f, hidden, qkv_bias, bias)?;
    let moe = experts::read(f, width, activation, bias, assumed)?;
    let dense = FeedForward::Dense(Dense { width, activation, bias });
    let with_experts = experts::layers_with_experts(f, moe.is_some(), layers)?;
    let windows = windows(f, layers)?;
    let mut model = Model {
        schema: SCHEMA,
        name: given.name.to_owned(),
        hidden,
        vocabulary: vocabulary::read(f, given.vocabulary, assumed)?,
        vocabulary_divisor: f.number("--make-vocab-size-divisible-by")?.unwrap_or(128),
        tied_embeddings: !f.on("--untie-embeddings-and-output-weights"),
        position: Position::None,
        norm: f
            .choice(
                "--normalization",
                // Megatron-DeepSpeed writes them in lower case.
                &[
                    ("RMSNorm", Norm::RmsNorm),
                    ("LayerNorm", Norm::LayerNorm),
                    ("rmsnorm", Norm::RmsNorm),
                    ("layernorm", Norm::LayerNorm),
                ],
            )?
            .unwrap_or(Norm::LayerNorm),
        norm_epsilon: Some(f.decimal("--norm-epsilon")?.unwrap_or(EPSILON)),
        embedding_norm: f.on("--embed-layernorm"),
        final_norm: true,
        head_bias: false,
        embedding_width: None,
        max_sequence: 0,
        dropout: f.text("--hidden-dropout")?.is_none_or(|(share, _)| real_number(&share) != Some(0.0)),
        unstated: Vec::new(),
        blocks: BTreeMap::new(),
        layers: Vec::new(),
        mtp: None,
    };
    let latent = matches!(mixers.attention, Mixer::Latent(_));
    read_positions(f, &mut model, latent, assumed)?;
    let windowed = |at: usize| {
        let mut mixer = mixers.attention.clone();
        if let (Mixer::Attention(a), Some((window, on))) = (&mut mixer, &windows) {
            a.window = on[at].then_some(*window);
        }
        mixer
    };
    let mut names: Vec<String> = Vec::new();
    for at in 0..layers as usize {
        let (mixer, feed_forward) = match &hybrid {
            Some(h) => match h.layers[at] {
                'M' => (mixers.mamba.clone(), FeedForward::None),
                '+' if !latent => {
                    let text = "`+` layers have latent attention: --multi-latent-attention and its widths are missing";
                    return Err(ImportError::new(f.line("--hybrid-layer-pattern"), text));
                }
                '*' | '+' => (windowed(at), FeedForward::None),
                'E' => (Mixer::None, moe.clone().map_or(FeedForward::None, FeedForward::Moe)),
                _ => (Mixer::None, dense.clone()),
            },
            None => {
                let mixer = windowed(at);
                let experts = moe.clone().filter(|_| with_experts[at]);
                (mixer, experts.map_or_else(|| dense.clone(), FeedForward::Moe))
            }
        };
        let norms = u32::from(mixer != Mixer::None) + u32::from(feed_forward != FeedForward::None);
        let block = Block { mixer, feed_forward, norms, parallel: false };
        names.push(name_block(&mut model.blocks, block));
    }
    model.layers = segments(&names);
    let modules = match f.given.get("--mtp-num-layers") {
        // None, as for the trainer.
        Some((values, _)) if values.len() == 1 && values[0] == "0" => {
            f.take("--mtp-num-layers");
            None
        }
        _ => f.small("--mtp-num-layers")?,
    };
    if modules.is_some() && matches!(model.position, Position::Learned(_)) {
        let line = f.line_of(&["--mtp-num-layers"]);
        let text = "multi-token prediction needs --position-embedding-type rope or none";
        return Err(ReadRule::PredictedTokens.broken_by(f, line, text));
    }
    match &hybrid {
        Some(h) if !h.mtp.is_empty() => {
            let symbols = &h.mtp[0];
            let at = h.layers.iter().position(|c| symbols.len() == 1 && symbols.starts_with(*c));
            let Some(at) = at else {
                let text =
                    format!("a multi-token-prediction module of `{symbols}` stands for several layers");
                return Err(ImportError::new(f.line("--hybrid-layer-pattern"), text));
            };
            model.mtp = Some(Mtp { modules: h.mtp.len() as u32, block: names[at].clone() });
        }
        _ => {
            let last = names.last().cloned().unwrap_or_default();
            model.mtp = modules.map(|modules| Mtp { modules, block: last });
        }
    }
    Ok((model, hybrid.map(|h| h.stages)))
}

/// Epsilon of norms unless a flag says another (core/transformer/transformer_config.py; the fork's
/// megatron/arguments.py).
const EPSILON: f64 = 1e-5;

fn read_positions(f: &mut Flags, model: &mut Model, latent: bool, assumed: &mut Vec<String>) -> Read<()> {
    let old = f.on("--use-rotary-position-embeddings");
    let kinds = [("rope", 0), ("learned_absolute", 1), ("none", 2), ("yarn", 3)];
    // BigScience's fork (its megatron/enums.py PositionEmbeddingType).
    let of_fork = [("rotary", 0), ("absolute", 1), ("alibi", 4)];
    let fork = f.is_fork();
    let kinds: Vec<_> = kinds.into_iter().chain(of_fork.into_iter().filter(|_| fork)).collect();
    let kind = f.choice("--position-embedding-type", &kinds)?.unwrap_or(if old { 0 } else { 1 });
    // BigScience's fork asks for none of rotary ones.
    let length = f.given.get("--seq-length").and_then(|(values, _)| whole_number(values.first()?));
    let rotary = fork && kind == 0 && !f.given.contains_key("--max-position-embeddings");
    let rows = match length.filter(|_| rotary) {
        Some(length) => length,
        None => f.need("--max-position-embeddings")?,
    };
    model.max_sequence = rows;
    let base = f.number("--rotary-base")?.map(|base| base as f64);
    let share = f.decimal("--rotary-percent")?;
    let scaling = positions::read(f, latent, kind == 3, assumed)?;
    model.position = match kind {
        0 | 3 if base.is_none() && share.is_none() && scaling == PositionScaling::None => Position::Rotary,
        0 | 3 => {
            Position::RotaryWith { base: base.unwrap_or(10_000.0), share: share.unwrap_or(1.0), scaling }
        }
        1 => Position::Learned(rows),
        4 => Position::Alibi,
        _ => Position::None,
    };
    Ok(())
}

struct Mixers {
    attention: Mixer,
    mamba: Mixer,
}

fn mixers(f: &mut Flags, hidden: u64, qkv_bias: bool, output_bias: bool) -> Read<Mixers> {
    let heads = f.need("--num-attention-heads")?.max(1);
    let channels = f.number("--kv-channels")?;
    let latent = f.on("--multi-latent-attention");
    let grouped_line = f.line("--group-query-attention");
    let grouped = f.on("--group-query-attention");
    let groups = f.number("--num-query-groups")?;
    // BigCode's fork.
    let head_types = [("multihead", false), ("multiquery", true)];
    let one_group = f.choice("--attention-head-type", &head_types)?.unwrap_or(false);
    let normed = f.on("--qk-layernorm");
    let squared = f.on("--qk-l2-norm");
    let softmax = f.choice("--softmax-type", &[("vanilla", false), ("learnable", true)])?.unwrap_or(false);
    let attention = if latent {
        if grouped {
            return Err(ReadRule::LatentGroups.broken_by(
                f,
                grouped_line,
                "--group-query-attention excludes --multi-latent-attention",
            ));
        }
        Mixer::Latent(LatentAttention {
            heads,
            q_lora_rank: f.number("--q-lora-rank")?,
            kv_lora_rank: f.number("--kv-lora-rank")?.unwrap_or(32),
            qk_nope_dim: f.number("--qk-head-dim")?.unwrap_or(128),
            qk_rope_dim: f.number("--qk-pos-emb-head-dim")?.unwrap_or(64),
            v_dim: f.number("--v-head-dim")?.unwrap_or(128),
            bias: false,
        })
    } else {
        // Without the switch the number of groups is ignored; Megatron-DeepSpeed has no switch.
        let fork = f.is_fork();
        let ungrouped = if one_group { 1 } else { heads };
        let kv_heads =
            if grouped { groups.unwrap_or(1) } else { groups.filter(|_| fork).unwrap_or(ungrouped) };
        Mixer::Attention(Attention {
            heads,
            kv_heads,
            head_dim: match channels {
                Some(channels) => channels,
                None if hidden % heads == 0 => hidden / heads,
                None => {
                    let line = f.line_of(&["--num-attention-heads"]);
                    let text = format!(
                        "hidden size {hidden} does not divide among {heads} heads; --kv-channels says their size"
                    );
                    return Err(ReadRule::HeadSize.broken_by(f, line, text));
                }
            },
            qkv_bias,
            output_bias,
            qk_norm: match (normed, squared) {
                (true, _) => QkNorm::PerHeadDim,
                (false, true) => QkNorm::NoParameters,
                (false, false) => QkNorm::None,
            },
            sinks: softmax,
            window: None,
            chunk: None,
        })
    };
    let head_dim = f.number("--mamba-head-dim")?.unwrap_or(64);
    let mamba_heads = f.number("--mamba-num-heads")?.unwrap_or(2 * hidden / head_dim.max(1));
    let mamba = Mixer::Mamba2(Mamba2 {
        inner: mamba_heads.saturating_mul(head_dim),
        state: f.number("--mamba-state-dim")?.unwrap_or(128),
        groups: f.number("--mamba-num-groups")?.unwrap_or(8),
        heads: mamba_heads,
        conv_kernel: 4,
        bias: false,
        conv_bias: true,
    });
    Ok(Mixers { attention, mamba })
}

/// The window of attention layers, and which layers have it.
fn windows(f: &mut Flags, layers: u64) -> Read<Option<(u64, Vec<bool>)>> {
    let Some((text, line)) = f.text("--window-size")? else { return Ok(None) };
    let left = text.trim_matches(['(', ')']).split(',').next().and_then(whole_number);
    let left = left
        .ok_or_else(|| ImportError::new(line, format!("--window-size takes `left,right`, found `{text}`")))?;
    let on = match f.text("--window-attn-skip-freq")? {
        None => vec![true; layers as usize],
        Some((text, line)) => match whole_number(&text) {
            // Every n-th layer sees everything.
            Some(n) if n > 0 => (1..=layers).map(|layer| layer % n != 0).collect(),
            _ => flags_of(&text, layers, line)?,
        },
    };
    Ok(Some((left.saturating_add(1), on)))
}

/// The name of a block, new or known.
fn name_block(blocks: &mut BTreeMap<String, Block>, block: Block) -> String {
    if let Some((name, _)) = blocks.iter().find(|(_, known)| **known == block) {
        return name.clone();
    }
    let base = match (&block.mixer, &block.feed_forward) {
        (Mixer::Mamba2(_), _) => "mamba",
        (_, FeedForward::Moe(_)) => "moe",
        (Mixer::None, _) => "mlp",
        (_, FeedForward::None) => "attention",
        _ => "dense",
    };
    let mut name = base.to_owned();
    while blocks.contains_key(&name) {
        name.push('_');
    }
    blocks.insert(name.clone(), block);
    name
}

/// Runs of equal layers; alternating patterns as one repeated group.
fn segments(names: &[String]) -> Vec<Segment> {
    let n = names.len();
    let period = (2..=8).find(|&p| n % p == 0 && n > p && (p..n).all(|k| names[k] == names[k - p]));
    if let Some(p) = period.filter(|_| names.iter().any(|name| *name != names[0])) {
        return vec![Segment { repeat: (n / p) as u32, of: names[..p].to_vec() }];
    }
    let mut all: Vec<Segment> = Vec::new();
    for name in names {
        match all.last_mut() {
            Some(segment) if segment.of[0] == *name => segment.repeat += 1,
            _ => all.push(Segment { repeat: 1, of: vec![name.clone()] }),
        }
    }
    all
}

fn precision(f: &mut Flags) -> Read<Precision> {
    let (bf16, fp16) = (f.on("--bf16"), f.on("--fp16"));
    if bf16 && fp16 {
        let line = f.line("--bf16").max(f.line("--fp16"));
        return Err(ReadRule::Halves.broken_by(f, line, "--bf16 and --fp16 exclude each other"));
    }
    let fp4 = f.text("--fp4-format")?;
    let fp8 = f.text("--fp8-format")?;
    let recipes = [
        ("tensorwise", Precision::Fp8),
        ("delayed", Precision::Fp8),
        ("blockwise", Precision::Fp8Blockwise),
        ("mxfp8", Precision::Mxfp8),
    ];
    let recipe = f.choice("--fp8-recipe", &recipes)?;
    match (fp4, fp8) {
        (Some((_, one)), Some((_, other))) => {
            let line = one.max(other);
            let text = "--fp8-format and --fp4-format exclude each other";
            Err(ReadRule::LowPrecisions.broken_by(f, line, text))
        }
        (Some((_, line)), None) | (None, Some((_, line))) if !bf16 => {
            let text = "low-precision matrix products are modelled beside --bf16 alone";
            Err(ImportError::new(line, text))
        }
        (Some(_), None) => Ok(Precision::Nvfp4),
        (None, Some(_)) => Ok(recipe.unwrap_or(Precision::Fp8)),
        (None, None) if fp16 => Ok(Precision::Fp16),
        (None, None) if bf16 => Ok(Precision::Bf16),
        (None, None) => {
            Err(ImportError::new(f.line, "neither --bf16 nor --fp16: training in fp32 is not modelled"))
        }
    }
}

fn optimizer(f: &mut Flags, assumed: &mut Vec<String>) -> Read<Optimizer> {
    let kinds = [
        ("adam", Optimizer::Adamw),
        ("sgd", Optimizer::Sgd),
        ("muon", Optimizer::Muon),
        ("dist_muon", Optimizer::Muon),
    ];
    let kind = f.choice("--optimizer", &kinds)?.unwrap_or(Optimizer::Adamw);
    let formats = [("fp32", 4), ("bf16", 2), ("fp16", 2), ("fp8", 1)];
    let first = f.choice("--exp-avg-dtype", &formats)?.unwrap_or(4);
    let second = f.choice("--exp-avg-sq-dtype", &formats)?.unwrap_or(4);
    if first != second {
        let wider = first.max(second);
        let text = format!("moments of {first} and {second} bytes: predicted as of {wider} both");
        assumed.push(text);
    }
    Ok(match (kind, first.max(second)) {
        (Optimizer::Adamw, 2) => Optimizer::AdamwBf16,
        (Optimizer::Adamw, 1) => Optimizer::Adam8bit,
        (kind, _) => kind,
    })
}

fn layout(
    f: &mut Flags,
    model: &Model,
    (gpus, target): (u32, Target),
    assumed: &mut Vec<String>,
) -> Read<Layout> {
    let deepspeed = target == Target::MegatronDeepSpeed;
    let tp_line = f.line("--tensor-model-parallel-size");
    let tp = f.small("--tensor-model-parallel-size")?.unwrap_or(1);
    let pp = f.small("--pipeline-model-parallel-size")?.unwrap_or(1);
    let flag = "--no-pipeline-parallel";
    if pp > 1 && f.given.contains_key(flag) {
        return Err(ImportError::new(f.line(flag), format!("{flag} excludes {pp} pipeline stages")));
    }
    let ulysses = f.small("--ds-sequence-parallel-size")?.filter(|_| deepspeed);
    let cp = f.small("--context-parallel-size")?.or(ulysses).unwrap_or(1);
    let ranks = product([tp, pp, cp]);
    if u64::from(gpus) % ranks != 0 {
        return Err(ReadRule::Ranks.broken_by(
            f,
            tp_line,
            format!(
                "{gpus} ranks do not divide by tp {tp} x pp {pp} x cp {cp} = {ranks}; --gpus says another number"
            ),
        ));
    }
    let dp = (u64::from(gpus) / ranks) as u32;
    let has_experts = model.blocks.values().any(|b| matches!(b.feed_forward, FeedForward::Moe(_)));
    let ep_flag = experts::parallel_flag(f);
    let ep_line = f.line(ep_flag);
    let ep = f.small(ep_flag)?.unwrap_or(1);
    let etp = f.small("--expert-tensor-parallel-size")?;
    for (flag, ranks) in [
        ("--tensor-parallel-num-weight-shards", tp),
        ("--expert-tensor-parallel-num-weight-shards", etp.unwrap_or(tp)),
    ] {
        let line = f.line(flag);
        if f.small(flag)?.is_some_and(|shards| shards != ranks) {
            let text = format!("{flag}: weights in more shards than tensor-parallel ranks are not modelled");
            return Err(ImportError::new(line, text));
        }
    }
    let split = deepspeed && f.on("--enable-expert-tensor-parallelism");
    if ep > 1 && !has_experts {
        return Err(ReadRule::Experts.broken_by(f, ep_line, format!("{ep_flag} needs --num-experts")));
    }
    if deepspeed && dp % ep != 0 {
        // DeepSpeed utils/groups.py _create_expert_data_and_model_parallel
        return Err(ImportError::new(ep_line, format!("{dp} replicas do not divide by {ep_flag} {ep}")));
    }
    let etp = match (has_experts, etp) {
        (true, Some(etp)) => etp,
        (true, None) if deepspeed && !split => 1,
        (true, None) => tp,
        (false, _) => 1,
    };
    let sequence_parallel = f.on("--sequence-parallel");
    if sequence_parallel && tp == 1 {
        assumed.push("--sequence-parallel does nothing at tensor-parallel size 1".into());
    }
    let fsdp = f.on("--use-megatron-fsdp");
    let strategies = [("no_shard", 0), ("optim", 1), ("optim_grads", 2), ("optim_grads_params", 3)];
    let strategy = f.choice("--data-parallel-sharding-strategy", &strategies)?;
    let distributed = f.on("--use-distributed-optimizer");
    let torch_fsdp = f.on("--use-torch-fsdp2");
    if torch_fsdp {
        assumed.push(
            "--use-torch-fsdp2 is predicted as Megatron-FSDP: weights, gradients and states sharded".into(),
        );
    }
    let stages = [("0", 0), ("1", 1), ("2", 2), ("3", 3)];
    // Megatron-LM itself has no such flag.
    let stage = if deepspeed { f.choice("--zero-stage", &stages)? } else { None };
    let zero_stage = match (fsdp || torch_fsdp, distributed) {
        _ if deepspeed => stage.unwrap_or(1),
        (true, _) => strategy.unwrap_or(3),
        (false, true) => 1,
        (false, false) => 0,
    };
    let instances_line = f.line("--num-distributed-optimizer-instances");
    let instances = f.small("--num-distributed-optimizer-instances")?.unwrap_or(1);
    if (dp * cp) % instances != 0 {
        return Err(ReadRule::Instances.broken_by(
            f,
            instances_line,
            format!("{} ranks do not divide among {instances} optimizer instances", dp * cp),
        ));
    }
    let layerwise = f.given.get("--optimizer").is_some_and(|(values, _)| values == &["dist_muon"]);
    let reduce = f.on("--overlap-grad-reduce");
    let gather_line = f.line("--overlap-param-gather");
    let gather = f.on("--overlap-param-gather");
    if gather && (!reduce || (zero_stage == 0 && !fsdp && !layerwise)) {
        return Err(ReadRule::Gathers.broken_by(
            f,
            gather_line,
            "--overlap-param-gather needs --overlap-grad-reduce and the distributed optimizer",
        ));
    }
    if reduce && !gather && zero_stage >= 1 {
        assumed.push(
            "data-parallel overlap: gradients only in the script, gradients and weights in the plan".into(),
        );
    }
    let comms = [
        ("p2p", ContextComm::Ring),
        ("all_gather", ContextComm::AllGather),
        ("allgather", ContextComm::AllGather),
        ("a2a", ContextComm::AllToAll),
    ];
    let context_comm = context_comm(f, &comms, assumed)?;
    let context_comm = if deepspeed { ContextComm::AllToAll } else { context_comm };
    let dispatcher = experts::dispatcher(f, has_experts)?;
    let overlap_line = f.line("--tp-comm-overlap");
    let tensor_overlap = f.on("--tp-comm-overlap");
    if tensor_overlap && !(sequence_parallel && tp > 1) {
        let text = "--tp-comm-overlap needs --sequence-parallel";
        return Err(ReadRule::TensorOverlap.broken_by(f, overlap_line, text));
    }
    let cuda_graphs = cuda_graphs(f, assumed)?;
    let offloads = f.on("--optimizer-cpu-offload");
    if let Some((share, _)) = f.text("--optimizer-offload-fraction")?
        && offloads
        && real_number(&share) != Some(1.0)
    {
        assumed.push(format!(
            "--optimizer-offload-fraction {share}: predicted with all of the optimizer offloaded"
        ));
    }
    Ok(Layout {
        tensor_parallel: tp,
        pipeline_parallel: pp,
        virtual_stages: 1,
        context_parallel: cp,
        expert_parallel: ep,
        expert_tensor_parallel: etp,
        data_parallel: dp,
        sequence_parallel: sequence_parallel && tp > 1,
        micro_batch_size: f.small("--micro-batch-size")?.ok_or_else(|| f.missing("--micro-batch-size"))?,
        gradient_accumulation_steps: 1,
        zero_stage,
        shard_group: if zero_stage == 0 { 1 } else { dp * cp / instances },
        schedule: Schedule::OneFOneB,
        context_comm,
        dispatcher,
        tensor_overlap,
        data_overlap: reduce,
        expert_overlap: f.on("--overlap-moe-expert-parallel-comm"),
        // Beside nothing, or of nothing, it changes nothing.
        shared_overlap: f.on("--moe-shared-expert-overlap") && ep > 1 && has_shared_experts(model),
        mtp_standalone: false,
        cuda_graphs,
        offload: Offload {
            optimizer: if offloads || f.on("--cpu-optimizer") { Place::Cpu } else { Place::Gpu },
            parameters: Place::Gpu,
            activations: f.on("--fine-grained-activation-offloading"),
        },
    })
}

fn has_shared_experts(model: &Model) -> bool {
    model.blocks.values().any(|b| matches!(&b.feed_forward, FeedForward::Moe(e) if e.shared_width > 0))
}

/// Whether DeepSpeed's pipeline engine runs the model.
fn pipeline_engine(f: &Flags) -> bool {
    f.is_fork() && !f.given.contains_key("--no-pipeline-parallel")
}

/// What the configuration that a script of Megatron-DeepSpeed hands to the engine says of sharding and offload.
fn configured(
    f: &Flags,
    layout: &mut Layout,
    (launch, files): (&Launch, &Files),
    assumed: &mut Vec<String>,
) -> Read<()> {
    let Some((values, line)) = f.given.get("--deepspeed_config") else { return Ok(()) };
    let name = values.first().map_or("", String::as_str);
    let (text, written, _) = match launch.text_of(name, files) {
        Ok(found) => found,
        Err(why) => {
            assumed
                .push(format!("no overlap and no offload: the DeepSpeed configuration is not read, {why}"));
            return Ok(());
        }
    };
    let flag = layout.zero_stage;
    let beside = import_beside(&text, layout).map_err(|error| {
        let place = error.place().map_or(String::new(), |(line, _)| format!("line {line} of "));
        let why = if is_unknown(&text) { format!("; part of it {UNTOLD}") } else { String::new() };
        ImportError::new(*line, format!("{place}the DeepSpeed configuration: {}{why}", error.title()))
    })?;
    if let Some(line) = written {
        assumed.push(format!("the DeepSpeed configuration is what line {line} writes"));
    } else if is_unknown(name) {
        let path = name.rsplit('/').next().unwrap_or_default();
        assumed.push(format!("the DeepSpeed configuration is {path} in the folder of the script"));
    }
    if flag != layout.zero_stage {
        assumed.push(format!("ZeRO stage {} of the DeepSpeed configuration, not {flag}", layout.zero_stage));
    }
    for (what, said, flag) in [
        ("train_micro_batch_size_per_gpu", beside.micro_batch_size, "--micro-batch-size"),
        ("train_batch_size", beside.global_batch_size, "--global-batch-size"),
    ] {
        let given = f.given.get(flag).and_then(|(values, line)| Some((values.first()?, *line)));
        if let (Some(said), Some((given, at))) = (said, given)
            && whole_number(given) != Some(u64::from(said))
        {
            let text = format!("{flag} is {given}, and {what} of the DeepSpeed configuration {said}");
            return Err(ImportError::new(at, text));
        }
    }
    let number = |flag: &str| f.given.get(flag).and_then(|(values, _)| whole_number(values.first()?));
    if let (Some(said), Some(batch), Some(micro)) =
        (beside.gradient_accumulation_steps, number("--global-batch-size"), number("--micro-batch-size"))
        && u64::from(said) * micro * u64::from(layout.data_parallel) != batch
    {
        let text = format!(
            "--global-batch-size is {batch}, and gradient_accumulation_steps {said} of the DeepSpeed configuration x \
             micro-batch {micro} x {} replicas {}",
            layout.data_parallel,
            u64::from(said) * micro * u64::from(layout.data_parallel)
        );
        return Err(ImportError::new(f.line_of(&["--global-batch-size"]), text));
    }
    for (key, flag, on) in [("fp16", "--fp16", beside.fp16), ("bf16", "--bf16", beside.bf16)] {
        let other = if flag == "--fp16" { "--bf16" } else { "--fp16" };
        if on && f.given.contains_key(other) && !f.given.contains_key(flag) {
            let text = format!("{other} is given, and the DeepSpeed configuration enables {key}");
            return Err(ImportError::new(f.line_of(&[other]), text));
        }
    }
    let place = "of the DeepSpeed configuration";
    assumed.extend(beside.notes.iter().map(|note| format!("{note} ({place})")));
    for (at, key) in beside.unknown {
        assumed.push(format!("line {at} of the DeepSpeed configuration: `{key}` changes nothing here"));
    }
    Ok(())
}

/// `--cp-comm-type` with one value, or one for every layer.
fn context_comm(
    f: &mut Flags,
    kinds: &[(&str, ContextComm)],
    assumed: &mut Vec<String>,
) -> Read<ContextComm> {
    f.values("--hierarchical-context-parallel-sizes")?;
    let Some((values, line)) = f.values("--cp-comm-type")? else { return Ok(ContextComm::Ring) };
    let Some(first) = values.first().filter(|first| values.iter().all(|v| v == *first)) else {
        return Err(ImportError::new(line, "--cp-comm-type differs between layers, which no plan says"));
    };
    if first == "a2a+p2p" {
        assumed.push("--cp-comm-type a2a+p2p is predicted as p2p".into());
        return Ok(ContextComm::Ring);
    }
    let found = kinds.iter().find(|(word, _)| word == first).map(|k| k.1);
    found.ok_or_else(|| {
        let text = format!("--cp-comm-type is `{first}`; expected p2p, a2a, allgather or a2a+p2p");
        ImportError::new(line, text)
    })
}

fn cuda_graphs(f: &mut Flags, assumed: &mut Vec<String>) -> Read<CudaGraphs> {
    let kinds = [("none", 0), ("local", 1), ("transformer_engine", 1), ("full_iteration", 2)];
    // Switches of earlier versions.
    let old = f.on("--enable-cuda-graph") | f.on("--external-cuda-graph");
    let kind = f.choice("--cuda-graph-impl", &kinds)?.unwrap_or(0).max(u32::from(old));
    let modules = f.values("--cuda-graph-modules")?.map(|v| v.0).unwrap_or_default();
    // What it was once called among the modules.
    let kind = if modules == ["full_iteration"] { 2 } else { kind };
    let named = |module: &str| modules.iter().any(|m| m == module);
    let other = modules.iter().find(|module| !GRAPHED.contains(&module.as_str()));
    // Without attention's the host launches nearly as much as before.
    let router_alone = !modules.is_empty() && other.is_none() && !named("attn");
    if kind == 1 {
        if modules.is_empty() || other.is_some() {
            let what = other.map_or("whole layers", String::as_str);
            assumed.push(format!("graphs of {what}: predicted as those of attention"));
        } else if router_alone {
            assumed.push(format!("graphs of {} alone: predicted as without graphs", modules.join(" ")));
        } else if named("moe_router") && !named("moe_preprocess") {
            assumed.push("graphs of moe_router: predicted as with those of moe_preprocess".into());
        }
    }
    Ok(match kind {
        0 => CudaGraphs::None,
        2 => CudaGraphs::FullIteration,
        _ if router_alone => CudaGraphs::None,
        _ if named("moe_router") => CudaGraphs::AttentionRouter,
        _ => CudaGraphs::Attention,
    })
}

/// Layers of every chunk; sets the virtual stages and the schedule.
fn chunks(
    f: &mut Flags,
    model: &Model,
    layout: &mut Layout,
    hybrid: Option<Vec<u32>>,
    assumed: &mut Vec<String>,
) -> Read<Vec<u32>> {
    let pp = layout.pipeline_parallel;
    let layers = model.layer_count();
    let per_stage_line = f.line("--num-layers-per-virtual-pipeline-stage");
    let per_stage = f.small("--num-layers-per-virtual-pipeline-stage")?;
    let stages_line = f.line("--num-virtual-stages-per-pipeline-rank");
    let stages = f.small("--num-virtual-stages-per-pipeline-rank")?;
    let text = f.text("--pipeline-model-parallel-layout")?;
    let ends_line =
        f.line("--decoder-first-pipeline-num-layers").max(f.line("--decoder-last-pipeline-num-layers"));
    let first = f.small("--decoder-first-pipeline-num-layers")?;
    let last = f.small("--decoder-last-pipeline-num-layers")?;
    let embedding = f.on("--account-for-embedding-in-pipeline-split");
    let loss = f.on("--account-for-loss-in-pipeline-split");
    let group = f.small("--microbatch-group-size-per-virtual-pipeline-stage")?;
    if let Some(group) = group {
        assumed.push(format!(
            "micro-batch groups of {group} per virtual stage: the plan takes the smallest that works"
        ));
    }
    let uneven = first.is_some() || last.is_some();
    if usize::from(per_stage.is_some()) + usize::from(stages.is_some()) + usize::from(text.is_some()) > 1 {
        let line = per_stage_line.max(stages_line);
        return Err(ReadRule::VirtualStages.broken_by(
            f,
            line,
            "virtual stages are said in more than one way (layers per stage, stages per rank, layout)",
        ));
    }
    if uneven && (embedding || loss || text.is_some() || per_stage.is_some()) {
        return Err(ReadRule::Ends.broken_by(
            f,
            ends_line,
            "first and last stage counts exclude every other way to place layers",
        ));
    }
    let fork = f.is_fork();
    let fail_by = |rule: ReadRule, line: usize, error: String| {
        if fork { ImportError::new(line, error) } else { rule.broken(line, error) }
    };
    let fail = |line: usize| move |error: LayoutError| fail_by(ReadRule::Layers, line, error.to_string());
    let fail_text = |line: usize| {
        move |error: LayoutError| {
            let error = format!("--pipeline-model-parallel-layout: {error}");
            fail_by(ReadRule::LayoutString, line, error)
        }
    };
    let mut virtual_stages = stages.unwrap_or(1);
    let chunks = if let Some(stages) = hybrid {
        let count = stages.len() as u32;
        if count == 1 && pp > 1 {
            Split::FirstLast { first, last }
                .chunks(layers, pp, 1)
                .or_else(|e| if uneven { Err(e) } else { Split::Even.chunks(layers, pp, 1) })
                .map_err(fail(ends_line))?
        } else {
            if count % pp != 0 {
                return Err(ImportError::new(
                    f.line("--hybrid-layer-pattern"),
                    format!("{count} segments of the hybrid pattern do not divide among {pp} stages"),
                ));
            }
            virtual_stages = count / pp;
            stages
        }
    } else if let Some((text, line)) = text {
        let modules = model.mtp.as_ref().map_or(0, |m| m.modules);
        let chunks = crate::stages::layout::layout_chunks(&text, layers, pp, Some(modules))
            .map_err(fail_text(line))?;
        virtual_stages = chunks.len() as u32 / pp;
        let stages = read_layout(&text).map_err(fail_text(line))?;
        let behind = stages.iter().rev().position(|stage| stage.mtp > 0).unwrap_or(0);
        layout.mtp_standalone = behind == 1 && pp > 2;
        if behind > 0 && !layout.mtp_standalone {
            let place =
                if behind == 1 { "the first rank" } else { "a stage that others without layers follow" };
            assumed.push(format!(
                "multi-token prediction stands on {place}: predicted as if it were with the loss"
            ));
        }
        chunks
    } else {
        let by_type = pipeline_engine(f)
            && !uneven
            && !embedding
            && !loss
            && virtual_stages == 1
            && per_stage.is_none();
        if by_type {
            return parts_by_type(f, layers, pp, assumed);
        }
        let split = match (uneven, embedding || loss) {
            (true, _) => Split::FirstLast { first, last },
            (false, true) => Split::Account { embedding, loss },
            (false, false) => Split::Even,
        };
        if let Some(per_stage) = per_stage {
            let counted = layers + u32::from(embedding) + u32::from(loss);
            if counted % pp != 0 || (counted / pp) % per_stage != 0 {
                return Err(ReadRule::Layers.broken_by(
                    f,
                    per_stage_line,
                    format!("{counted} layers do not divide into {pp} stages of chunks of {per_stage}"),
                ));
            }
            virtual_stages = counted / pp / per_stage;
        }
        let line = f.line_of(&[
            "--num-virtual-stages-per-pipeline-rank",
            "--decoder-first-pipeline-num-layers",
            "--decoder-last-pipeline-num-layers",
            "--pipeline-model-parallel-size",
        ]);
        split.chunks(layers, pp, virtual_stages).map_err(fail(line))?
    };
    if virtual_stages > 1 {
        if pp == 1 {
            let text = "virtual stages need at least 2 pipeline stages";
            return Err(ReadRule::VirtualNeedsStages.broken_by(f, stages_line, text));
        }
        layout.virtual_stages = virtual_stages;
        layout.schedule = Schedule::Interleaved;
    }
    Ok(chunks)
}

/// Layers of the stages of DeepSpeed's pipeline engine: as many modules whose names a pattern matches in each, those
/// that are left over in the first ones (runtime/pipe/module.py `_partition_layers`, runtime/utils.py
/// `partition_balanced`). The embedding and the head are such modules where the pattern says so, as BLOOM's does.
fn parts_by_type(f: &mut Flags, layers: u32, pp: u32, assumed: &mut Vec<String>) -> Read<Vec<u32>> {
    let ends = match f.text("--pp-partition-method")? {
        None => 0,
        // Quotes within an array of arguments reach the program.
        Some((text, line)) => match text.trim_matches(['\'', '"']) {
            "type:transformer" => 0,
            "type:transformer|embedding" => 1,
            _ => {
                let expected = "type:transformer or type:transformer|embedding";
                return Err(ImportError::new(
                    line,
                    format!("--pp-partition-method is `{text}`; expected {expected}"),
                ));
            }
        },
    };
    let modules = layers + 2 * ends;
    if modules < pp {
        let text = format!("{modules} layers do not fill {pp} stages");
        return Err(ImportError::new(f.line_of(&["--pipeline-model-parallel-size", "--num-layers"]), text));
    }
    let mut parts: Vec<u32> = (0..pp).map(|stage| modules / pp + u32::from(stage < modules % pp)).collect();
    parts[0] -= ends;
    let last = parts.len() - 1;
    parts[last] = parts[last].saturating_sub(ends);
    if modules % pp != 0 || ends > 0 && pp > 1 {
        let counts: Vec<String> = parts.iter().map(u32::to_string).collect();
        assumed.push(format!("stages of {} layers, as the pipeline engine counts", counts.join(", ")));
    }
    Ok(parts)
}

fn recompute(f: &mut Flags) -> Read<Recompute> {
    let line = f.line("--recompute-granularity");
    let old = f.on("--checkpoint-activations") | f.on("--deepspeed-activation-checkpointing");
    let shorthand = f.on("--recompute-activations");
    let granularity = f.choice("--recompute-granularity", &[("full", 1), ("selective", 2)])?;
    // It overrides the other (training/arguments.py validate_args).
    let granularity = shorthand.then_some(2).or(granularity);
    let method_line = f.line("--recompute-method");
    let method = f.choice("--recompute-method", &[("uniform", true), ("block", false)])?;
    // The fork has a default of one layer (megatron/arguments.py).
    let usual = (f.is_fork() && granularity == Some(1)).then_some(1);
    let number = match f.given.get("--recompute-num-layers") {
        // The first none of each stage.
        Some((values, _)) if values == &["0"] && method == Some(false) && !f.is_fork() => {
            f.take("--recompute-num-layers");
            Some(0)
        }
        _ => f.small("--recompute-num-layers")?.or(usual),
    };
    let flag = "--recompute-modules";
    let modules = f.values(flag)?;
    match granularity {
        None if old || method.is_some() && f.given.contains_key("--DDP-impl") => {
            let n = number.unwrap_or(1);
            Ok(if method == Some(false) { Recompute::FullBlock(n) } else { Recompute::FullUniform(n) })
        }
        None if method.is_some() => {
            let text = "--recompute-method needs --recompute-granularity full";
            Err(ImportError::new(method_line, text))
        }
        None => Ok(Recompute::None),
        Some(1) => match (method, number) {
            (Some(false), Some(0)) => Ok(Recompute::None),
            (Some(true), Some(n)) => Ok(Recompute::FullUniform(n)),
            (Some(false), Some(n)) => Ok(Recompute::FullBlock(n)),
            _ => Err(ReadRule::FullRecomputation.broken_by(
                f,
                line,
                "full recomputation needs --recompute-method and --recompute-num-layers",
            )),
        },
        Some(_) => {
            if method.is_some() || number.is_some() {
                return Err(ReadRule::SelectiveRecomputation.broken_by(
                    f,
                    f.line_of(&["--recompute-method", "--recompute-num-layers"]),
                    "selective recomputation takes neither a method nor a number of layers",
                ));
            }
            let Some((names, line)) = modules else {
                return Ok(Recompute::Selective(Modules::NONE.with(Module::CoreAttention)));
            };
            let mut set = Modules::NONE;
            for name in names {
                let module = Module::ALL.into_iter().find(|m| m.name() == name);
                let module = module.ok_or_else(|| {
                    let known = Target::Megatron.capabilities().recompute.selective;
                    let known: Vec<&str> = known.iter().map(Module::name).collect();
                    ImportError::new(line, no_choice(flag, &one_line(&name), &known))
                })?;
                set = set.with(module);
            }
            Ok(Recompute::Selective(set))
        }
    }
}
