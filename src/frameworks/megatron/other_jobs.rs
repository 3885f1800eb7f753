//! Scripts that start something else than the training of a decoder-only language model, told by the program's
//! name and by flags that only such programs have.

use super::super::shell::{ImportError, Launch, program};

/// Words in the names of programs that train other models: `pretrain_t5.py`, `train_vlm.py`.
const OTHER_MODELS: &[&str] =
    &["t5", "bert", "ict", "retro", "vision", "vlm", "multimodal", "mimo", "realm", "biencoder"];

/// Words in the names of programs that train nothing: `run_text_generation_server.py`, `convert.py`.
const OTHER_WORK: &[(&[&str], &str)] = &[
    (&["generation", "generate", "inference", "server", "serve"], "generates text"),
    (&["evaluate", "evaluation", "eval", "zeroshot"], "evaluates a model"),
    (&["convert", "converter", "conversion", "export", "ptq", "quantize"], "converts a model"),
    (&["preprocess", "tokenize", "dataset", "sampling"], "prepares data"),
];

/// Words in the names of programs that train, whatever else their name says.
const TRAINS: &[&str] = &["train", "pretrain", "posttrain", "finetune", "sft"];

/// Why a launch that trains adapters is refused.
pub(in crate::frameworks) const ADAPTERS: &str = "the training of adapters is not read from scripts; `autoplan plan --lora RANK` plans it for bridge, deepspeed and accelerate";

/// Flags of programs whatever their name.
const OTHER_FLAGS: &[(&str, &str)] = &[
    // tasks/main.py of Megatron-LM and its forks.
    ("--task", "the program runs a task of its own, no training as it is modelled"),
    // training/arguments.py load_yaml, in the place of all flags.
    ("--yaml-cfg", "the settings stand in a YAML file, which is not read"),
    // Generation from a model (megatron/inference, MindSpeed-LLM's inference.py).
    ("--max-new-tokens", "the program generates text"),
    ("--out-seq-length", "the program generates text"),
    ("--num-tokens-to-generate", "the program generates text"),
    // Conversion of weights.
    ("--export-quant-cfg", "the program converts a model"),
    ("--target-tensor-parallel-size", "the program converts a model"),
    ("--target_tensor_model_parallel_size", "the program converts a model"),
    // examples/multimodal, pretrain_vlm.py and the vision models.
    ("--img-h", "models of images are not modelled"),
    ("--vision-model-type", "models of images are not modelled"),
    // tools/retro and pretrain_retro.py.
    ("--retro-add-retriever", "models that retrieve are not modelled"),
    ("--retro-project-dir", "models that retrieve are not modelled"),
    ("--retro-workdir", "models that retrieve are not modelled"),
    // MindSpeed-LLM's adapters.
    ("--lora-r", ADAPTERS),
    ("--lora-rank", ADAPTERS),
    ("--lora-dim", ADAPTERS),
    ("--lora-target-modules", ADAPTERS),
    ("--peft-type", ADAPTERS),
    // Gated delta nets and sparse attention, which change most layers.
    ("--experimental-attention-variant", "attention of other kinds is not modelled"),
    // Megatron-DeepSpeed's distillation.
    ("--num-layers-teacher", "distillation from a teacher is not modelled"),
    // Experts of forks whose flags say too little of them to be read.
    ("--moe-num-experts", "the experts of MegaBlocks are not read"),
    ("--num-experts-switch", "switch experts that every rank holds are not modelled"),
];

/// Whether a launch trains a decoder-only language model.
///
/// # Errors
/// What it does instead, at the line that says so.
pub(super) fn trains(launch: &Launch) -> Result<(), ImportError> {
    if let Some(script) = &launch.script {
        let name = program(&script.text);
        let lower = name.to_lowercase();
        let words: Vec<&str> = lower.split(|c: char| !c.is_ascii_alphanumeric()).collect();
        let has = |list: &[&str]| words.iter().any(|word| list.contains(word));
        let work = OTHER_WORK.iter().find(|(list, _)| has(list)).map(|(_, what)| *what);
        let work = work.or(words.iter().any(|w| w.starts_with("hf2")).then_some("converts a model"));
        let text = match work.filter(|_| !has(TRAINS)) {
            _ if has(OTHER_MODELS) => {
                format!("{name} does not train a decoder-only language model; only these are modelled")
            }
            Some(what) => format!("{name} {what}; only scripts that train are read"),
            None => String::new(),
        };
        if !text.is_empty() {
            return Err(ImportError::new(script.line, text));
        }
    }
    for (at, word) in launch.arguments.iter().enumerate() {
        let (name, glued) = match word.text.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (word.text.as_str(), None),
        };
        let value = glued.or_else(|| launch.arguments.get(at + 1).map(|next| next.text.as_str()));
        let other = OTHER_FLAGS.iter().find(|(flag, _)| *flag == name);
        // Adapters of rank 0 are none.
        if let Some((_, what)) = other.filter(|(_, what)| *what != ADAPTERS || value != Some("0")) {
            return Err(ImportError::new(word.line, format!("{name}: {what}")));
        }
    }
    Ok(())
}
