//! Hugging Face `config.json` to a [`Model`], exact to the last weight.
//!
//! Every model type reads the fields it knows with the defaults of huggingface/transformers; a field
//! that is neither read nor known to be without effect is an error. What the library would instantiate
//! for causal language modelling is what is described: parameters that it stores without training them
//! (the balancing bias of DeepSeek-V3's router) count, multi-token-prediction modules are kept apart in
//! [`Model::mtp`], towers for images and sound are left out with a note.

mod decoder;
mod draft;
mod families;
mod fields;
mod positions;
mod special;

use super::diagnostic::{SpecError, list};
use super::json::{self, Object, Value};
use super::model::Model;
use super::saved::{PRINTED, is_printed, kind_of};
use draft::Draft;
use fields::{Fields, Read};

/// Why a configuration cannot be read: what was found and where, what was expected, the nearest choice.
pub type HfError = SpecError;

/// A model and what its reader should know about it.
#[derive(Debug, Clone, PartialEq)]
pub struct Import {
    /// The model, checked.
    pub model: Model,
    /// `model_type` of the language model.
    pub model_type: String,
    /// What was assumed or left out, in sentences.
    pub notes: Vec<String>,
}

/// Wrappers around a language model: `model_type`, field that holds it, its type where the field does
/// not say, and fields of the wrapper itself.
const WRAPPERS: &[(&str, &str, &[&str])] = &[
    (
        "gemma3",
        "gemma3_text",
        &[
            "boi_token_id",
            "boi_token_index",
            "eoi_token_id",
            "eoi_token_index",
            "image_token_id",
            "image_token_index",
            "mm_tokens_per_image",
        ],
    ),
    ("llama4", "llama4_text", &["boi_token_index", "eoi_token_index", "image_token_index", "image_token_id"]),
    ("qwen3_vl", "qwen3_vl_text", QWEN3_VL),
    ("qwen3_vl_moe", "qwen3_vl_moe_text", QWEN3_VL),
    (
        "mistral3",
        "mistral",
        &[
            "image_token_id",
            "image_token_index",
            "multimodal_projector_bias",
            "projector_hidden_act",
            "spatial_merge_size",
            "vision_feature_layer",
        ],
    ),
    (
        "kimi_k25",
        "kimi_k2",
        &[
            "ignore_index",
            "image_placeholder",
            "media_placeholder_token_id",
            "pad_token_id",
            "use_unified_vision_chunk",
            "video_placeholder",
        ],
    ),
];

const QWEN3_VL: &[&str] =
    &["image_token_id", "video_token_id", "vision_end_token_id", "vision_start_token_id"];

/// Every `model_type` that [`import`] reads, sorted.
#[must_use]
pub fn model_types() -> Vec<&'static str> {
    let mut all: Vec<&str> = families::DECODERS.iter().map(|(name, _)| *name).collect();
    all.extend(special::SPECIAL.iter().map(|(name, _)| *name));
    all.extend(WRAPPERS.iter().map(|(name, ..)| *name));
    all.sort_unstable();
    all
}

/// Reads the text of a `config.json`; `name` becomes the model's name.
///
/// # Errors
/// What is wrong, with its place in the text. The error names no file; see [`SpecError::in_source`].
pub fn import(config_json: &str, name: &str) -> Result<Model, HfError> {
    import_with_notes(config_json, name).map(|import| import.model)
}

/// As [`import`], with what was assumed or left out.
///
/// # Errors
/// As [`import`].
pub fn import_with_notes(config_json: &str, name: &str) -> Result<Import, HfError> {
    let top = json::parse(config_json).map_err(|error| match kind_of(config_json) {
        Some(kind) => SpecError::new("", format!("this is {kind} in RON; a config.json was expected")),
        None => error,
    })?;
    let Value::Object(object) = &top.value else {
        let title = format!("expected a JSON object, found {}", top.value.describe());
        return Err(SpecError::new("", title).mark(config_json, top.span.clone(), ""));
    };
    let model_type = model_type(config_json, object)?;
    architectures(config_json, object)?;
    let fields = Fields::new(config_json, object, top.span.clone(), model_type, false);
    let (draft, model_type, mut notes) = match WRAPPERS.iter().find(|(name, ..)| *name == model_type) {
        Some((_, inner, harmless)) => wrapped(&fields, inner, harmless)?,
        None => {
            let draft = read(&fields)?;
            (draft, model_type.to_owned(), Vec::new())
        }
    };
    notes.extend(fields.notes.take());
    let name = if name.trim().is_empty() { &model_type } else { name.trim() };
    let model = draft.finish(name);
    if let Err(fault) = model.validate() {
        return Err(SpecError::new("", format!("the model it describes is impossible: {}", fault.message)));
    }
    notes.extend(
        model
            .unstated
            .iter()
            .map(|text| format!("{text}: exports leave it open, as no part of a model says it")),
    );
    if model.mtp.is_some() {
        notes.push("multi-token-prediction modules are kept apart from the model's own parameters".into());
    }
    Ok(Import { model, model_type, notes })
}

/// The language model inside a wrapper.
fn wrapped<'a>(
    fields: &Fields<'a>,
    default: &'a str,
    harmless: &[&'static str],
) -> Read<(Draft, String, Vec<String>)> {
    let Some(mut inner) = fields.object("text_config")? else {
        if fields.has("hidden_size") {
            // Some tools write the language model's fields without the object around them.
            let flat = fields.renamed(default);
            let draft = read(&flat)?;
            let mut notes = flat.notes.take();
            notes.push(format!("`text_config` is missing; the fields are read as `{default}`"));
            return Ok((draft, default.to_owned(), notes));
        }
        return Err(fields.wrong("text_config", "the language model's configuration is missing"));
    };
    let name = inner.word("model_type")?.unwrap_or(default);
    if WRAPPERS.iter().any(|(wrapper, ..)| *wrapper == name) {
        return Err(inner.wrong("model_type", format!("`{name}` is no language model")));
    }
    inner.family = name;
    let mut draft = read(&inner)?;
    // The wrapper's word counts, since it owns the head.
    if let Some(tied) = fields.stated_flag("tie_word_embeddings")? {
        draft.tied = tied;
    }
    fields.harmless(harmless);
    let towers = ["vision_config", "audio_config"];
    let left_out = towers.iter().any(|tower| fields.has(tower));
    fields.harmless(&towers);
    fields.finish()?;
    let mut notes = inner.notes.take();
    if left_out {
        notes.push("this is the language model alone: towers for images and sound are left out".into());
    }
    Ok((draft, name.to_owned(), notes))
}

/// Reads with the family's reader and refuses what is left over.
fn read(fields: &Fields) -> Read<Draft> {
    let family = fields.family;
    let mut draft = if let Some((_, decoder)) = families::DECODERS.iter().find(|(name, _)| *name == family) {
        decoder.read(fields)?
    } else if let Some((_, reader)) = special::SPECIAL.iter().find(|(name, _)| *name == family) {
        reader(fields)?
    } else {
        return Err(unsupported(family, |error| fields.mark_model_type(error)));
    };
    fields.finish()?;
    draft.unstated = fields.unstated.take();
    Ok(draft)
}

fn model_type<'a>(text: &str, object: &'a Object) -> Read<&'a str> {
    let Some(field) = object.fields.iter().find(|field| field.name == "model_type") else {
        let has = |name: &str| object.fields.iter().any(|field| field.name == name);
        if is_printed(object) {
            let error = SpecError::new("", format!("this is {PRINTED}, not a model"));
            return Err(error.help("`--format ron` prints a plan that `check`, `explain` and `export` read"));
        }
        let error = SpecError::new("", "field `model_type` is missing: this is not a model's config.json");
        let error = error.mark(text, 0..1, "in this object");
        return Err(match has("peft_type") {
            true => error.note("it describes an adapter; give the configuration of the model under it"),
            false => error.note(format!("it may be {}", list(&model_types(), "or"))),
        });
    };
    let Value::Text(found) = &field.node.value else {
        let title = format!("invalid `model_type`: expected text, found {}", field.node.value.describe());
        return Err(SpecError::new("", title).mark(text, field.node.span.clone(), ""));
    };
    if model_types().contains(&found.as_str()) {
        return Ok(found);
    }
    Err(unsupported(found, |error| error.mark(text, field.node.span.clone(), "")))
}

fn unsupported(found: &str, mark: impl Fn(SpecError) -> SpecError) -> SpecError {
    let known = model_types();
    let shown: String = found.chars().take(60).collect();
    mark(SpecError::new("", format!("model type `{shown}` is not supported")))
        .nearest(found, known.iter().copied())
        .note(format!("supported are {}", list(&known, "and")))
}

/// Heads other than a language model's have other parameters.
fn architectures(text: &str, object: &Object) -> Read<()> {
    let Some(field) = object.fields.iter().find(|field| field.name == "architectures") else { return Ok(()) };
    let items = match &field.node.value {
        Value::Null => return Ok(()),
        Value::List(items) => items,
        other => {
            let title = format!("invalid `architectures`: expected a list, found {}", other.describe());
            return Err(SpecError::new("", title).mark(text, field.node.span.clone(), ""));
        }
    };
    const OTHER_HEADS: &[&str] = &[
        "ForSequenceClassification",
        "ForTokenClassification",
        "ForQuestionAnswering",
        "ForMaskedLM",
        "ForMultipleChoice",
        "ForRewardModel",
        "RewardModel",
        "DoubleHeadsModel",
        "ForProcessRewardModel",
    ];
    for item in items {
        let Value::Text(name) = &item.value else {
            let title = format!("invalid `architectures`: expected text, found {}", item.value.describe());
            return Err(SpecError::new("", title).mark(text, item.span.clone(), ""));
        };
        if let Some(head) = OTHER_HEADS.iter().find(|head| name.ends_with(*head)) {
            let title = format!("`{head}` is not a language model's head");
            return Err(SpecError::new("", title)
                .mark(text, item.span.clone(), "")
                .help("give the configuration of the causal language model it was made from"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_families_are_unique() {
        let all = model_types();
        assert!(all.windows(2).all(|pair| pair[0] < pair[1]), "{all:?}");
        for (_, inner, _) in WRAPPERS {
            assert!(all.contains(inner));
        }
    }
}
