//! Reading the fields of a configuration so that none is ever ignored by accident.
//!
//! Every field that a family asks for is marked; [`Fields::finish`] refuses whatever is left over and
//! not on a list of harmless fields.

use std::cell::RefCell;
use std::collections::BTreeSet;

use crate::spec::diagnostic::{SpecError, list};
use crate::spec::json::{Field, Node, Object, Value};
use crate::spec::model::Activation;
use crate::spec::shipped;

/// Result of reading.
pub(super) type Read<T> = Result<T, SpecError>;

/// Largest size of any field; [`Model::validate`](crate::spec::model::Model::validate) knows tighter ones.
const LARGEST: u64 = 1 << 26;

/// Fields of every configuration that say nothing about the shape of the language model: names,
/// tokens, generation, initialisation, numerics, caches, labels (`configuration_utils.py` of
/// huggingface/transformers 4.0 to 5.23 and what released files add).
const HARMLESS: &[&str] = &[
    "_attn_implementation",
    "_attn_implementation_autoset",
    "_attn_implementation_internal",
    "_commit_hash",
    "_experts_implementation",
    "_experts_implementation_internal",
    "_flash_attn_2_enabled",
    "_from_model_config",
    "_name_or_path",
    "_num_labels",
    "_output_attentions",
    "attention_dropout",
    "attention_probs_dropout_prob",
    "attn_implementation",
    "auto_map",
    "aux_loss_alpha",
    "aux_loss_coef",
    "bad_words_ids",
    "begin_suppress_tokens",
    "bos_token_id",
    "cache_implementation",
    "chunk_size_feed_forward",
    "classifier_dropout",
    "cls_token_id",
    "custom_pipelines",
    "decoder_start_token_id",
    "diversity_penalty",
    "do_sample",
    "dtype",
    "early_stopping",
    "encoder_no_repeat_ngram_size",
    "eod_token_id",
    "eos_token_id",
    "ep_size",
    "exponential_decay_length_penalty",
    "finetuning_task",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "gradient_checkpointing",
    "id2label",
    "im_end_id",
    "im_start_id",
    "init_std",
    "initializer_range",
    "is_decoder",
    "keys_to_ignore_at_inference",
    "label2id",
    "layer_norm_eps",
    "layer_norm_epsilon",
    "length_penalty",
    "mask_token_id",
    "max_length",
    "max_sequence_length",
    "min_length",
    "moe_router_dtype",
    "model_max_length",
    "model_type",
    "name_or_path",
    "neftune_noise_alpha",
    "no_repeat_ngram_size",
    "norm_eps",
    "norm_epsilon",
    "norm_topk_prob",
    "num_beam_groups",
    "num_beams",
    "num_labels",
    "num_logits_to_keep",
    "num_return_sequences",
    "output_attentions",
    "output_hidden_states",
    "output_past",
    "output_router_logits",
    "output_scores",
    "pad_token_id",
    "prefix",
    "pretraining_tp",
    "problem_type",
    "remove_invalid_values",
    "repetition_penalty",
    "return_dict",
    "return_dict_in_generate",
    "rms_norm_eps",
    "rope_scaling",
    "rope_type",
    "router_aux_loss_coef",
    "router_jitter_noise",
    "routed_scaling_factor",
    "sep_token_id",
    "seq_aux",
    "suppress_tokens",
    "task_specific_params",
    "temperature",
    "tf_legacy_loss",
    "tie_encoder_decoder",
    "tokenizer_class",
    "tokenizer_model",
    "tokenizer_type",
    "top_k",
    "top_p",
    "torch_dtype",
    "torchscript",
    "transformers.js_config",
    "transformers_version",
    "typical_p",
    "unk_token_id",
    "unsloth_fixed",
    "unsloth_version",
    "use_bfloat16",
    "use_cache",
    "use_flash_attention",
    "use_flash_attn",
];

/// One name of a field, or several that mean the same.
pub(super) trait Names {
    fn names(&self) -> &[&'static str];
}
impl Names for &'static str {
    fn names(&self) -> &[&'static str] {
        std::slice::from_ref(self)
    }
}
impl<const N: usize> Names for [&'static str; N] {
    fn names(&self) -> &[&'static str] {
        self
    }
}
impl Names for &[&'static str] {
    fn names(&self) -> &[&'static str] {
        self
    }
}

/// The fields of one object of a configuration.
pub(super) struct Fields<'a> {
    text: &'a str,
    object: &'a Object,
    /// Where the object stands.
    place: std::ops::Range<usize>,
    /// `model_type`, for messages.
    pub family: &'a str,
    /// Objects inside others are released without what equals the default.
    pub nested: bool,
    asked: RefCell<BTreeSet<&'static str>>,
    /// What a reader of the result should know.
    pub notes: RefCell<Vec<String>>,
    /// What the model computes that no part of the result says.
    pub unstated: RefCell<Vec<String>>,
}

impl<'a> Fields<'a> {
    pub fn new(
        text: &'a str,
        object: &'a Object,
        place: std::ops::Range<usize>,
        family: &'a str,
        nested: bool,
    ) -> Self {
        let (asked, notes, unstated) = Default::default();
        Self { text, object, place, family, nested, asked, notes, unstated }
    }

    /// The same fields for another family.
    pub fn renamed(&self, family: &'a str) -> Self {
        Self::new(self.text, self.object, self.place.clone(), family, self.nested)
    }

    pub fn note(&self, note: String) {
        self.notes.borrow_mut().push(note);
    }

    /// The field under any of its names; names that contradict each other are an error, and a value
    /// counts before `null`.
    pub(super) fn find(&self, names: &impl Names) -> Read<Option<&'a Field>> {
        let mut found: Option<&Field> = None;
        for name in names.names() {
            self.asked.borrow_mut().insert(name);
            let Some(field) = self.object.fields.iter().find(|field| field.name == *name) else { continue };
            match found {
                None => found = Some(field),
                Some(first) if first.node.value == Value::Null => found = Some(field),
                Some(first) if field.node.value != Value::Null && field.node.value != first.node.value => {
                    let title = format!("`{}` and `{}` mean the same and disagree", first.name, field.name);
                    return Err(SpecError::new("", title).mark(self.text, field.node.span.clone(), "").mark(
                        self.text,
                        first.node.span.clone(),
                        "the other value",
                    ));
                }
                Some(_) => {}
            }
        }
        Ok(found)
    }

    /// An error at the value of a field.
    pub fn invalid(&self, field: &Field, message: impl std::fmt::Display) -> SpecError {
        SpecError::new("", format!("invalid `{}`: {message}", field.name)).mark(
            self.text,
            field.node.span.clone(),
            "",
        )
    }

    /// An error at a field by its name, or at the object if it is not there.
    pub fn wrong(&self, name: &'static str, message: impl std::fmt::Display) -> SpecError {
        match self.object.fields.iter().find(|field| field.name == name) {
            Some(field) => self.invalid(field, message),
            None => SpecError::new("", format!("invalid `{name}`: {message}")).mark(
                self.text,
                self.place.start..self.place.start + 1,
                "in this object",
            ),
        }
    }

    pub(super) fn missing(&self, names: &impl Names) -> SpecError {
        let names = names.names();
        let name = names[0];
        let mut error = SpecError::new("", format!("field `{name}` is missing")).mark(
            self.text,
            self.place.start..self.place.start + 1,
            format!("a `{}` configuration needs it", self.family),
        );
        if names.len() > 1 {
            error = error.note(format!("it may also be called {}", list(&names[1..], "or")));
        }
        let unread = self.object.fields.iter().map(|field| field.name.as_str());
        let near = shipped::nearest(name, unread.filter(|field| !self.asked.borrow().contains(field)));
        if near.is_empty() {
            return error;
        }
        error.help(format!("is {} meant for it?", list(&near, "or")))
    }

    fn whole(&self, field: &Field, least: u64) -> Read<u64> {
        match field.node.value {
            Value::Whole(number) if number >= 0 && (least..=LARGEST).contains(&(number as u64)) => {
                Ok(number as u64)
            }
            ref other => {
                let found = match other {
                    // Such as 36.0, which Python does not take for whole either.
                    Value::Number(number) if number.fract() == 0.0 && number.abs() < 1e15 => {
                        format!("{number:.1}")
                    }
                    other => other.describe(),
                };
                Err(self.invalid(
                    field,
                    format!("expected a whole number from {least} to {LARGEST}, found {found}"),
                ))
            }
        }
    }

    /// A size that defines the model. Released files always state it, except inside another object,
    /// where the library leaves out what equals its default.
    pub fn core(&self, names: impl Names, default: u64) -> Read<u64> {
        match self.find(&names)? {
            Some(field) => self.whole(field, 1),
            None if self.nested => {
                let name = names.names()[0];
                self.note(format!(
                    "`{name}` is missing; the default of `{}`, {default}, is used",
                    self.family
                ));
                Ok(default)
            }
            None => Err(self.missing(&names)),
        }
    }

    /// As [`Fields::core`], but zero is a size.
    pub fn core_count(&self, names: impl Names, default: u64) -> Read<u64> {
        match self.find(&names)? {
            Some(field) => self.whole(field, 0),
            None => self.core(names, default),
        }
    }

    /// A size with the library's default.
    pub fn size(&self, names: impl Names, default: u64) -> Read<u64> {
        self.find(&names)?.map_or(Ok(default), |field| self.whole(field, 1))
    }

    /// A number from zero on, with the library's default; `null` is the default, too.
    pub fn count(&self, names: impl Names, default: u64) -> Read<u64> {
        match self.find(&names)? {
            Some(field) if field.node.value != Value::Null => self.whole(field, 0),
            _ => Ok(default),
        }
    }

    /// A size that may be missing or `null`.
    pub fn optional(&self, names: impl Names) -> Read<Option<u64>> {
        self.optional_or(names, None)
    }

    /// A size that may be `null`, with the library's default where it is missing.
    pub fn optional_or(&self, names: impl Names, default: Option<u64>) -> Read<Option<u64>> {
        match self.find(&names)? {
            None => Ok(default),
            Some(field) if field.node.value == Value::Null => Ok(None),
            Some(field) => self.whole(field, 1).map(Some),
        }
    }

    /// A switch with the library's default; `null` is off, as in Python.
    pub fn flag(&self, names: impl Names, default: bool) -> Read<bool> {
        match self.find(&names)? {
            None => Ok(default),
            Some(Field { node: Node { value: Value::Flag(flag), .. }, .. }) => Ok(*flag),
            Some(Field { node: Node { value: Value::Null, .. }, .. }) => Ok(false),
            Some(field) => {
                Err(self
                    .invalid(field, format!("expected true or false, found {}", field.node.value.describe())))
            }
        }
    }

    /// A finite number; missing and `null` are none.
    pub fn number(&self, names: impl Names) -> Read<Option<f64>> {
        let Some(field) = self.find(&names)? else { return Ok(None) };
        self.number_of(field)
    }

    fn number_of(&self, field: &Field) -> Read<Option<f64>> {
        match field.node.value {
            Value::Null => Ok(None),
            Value::Whole(number) => Ok(Some(number as f64)),
            Value::Number(number) if number.is_finite() => Ok(Some(number)),
            ref other => Err(self.invalid(field, format!("expected a number, found {}", other.describe()))),
        }
    }

    /// Epsilon of the norms, with the library's default.
    pub fn epsilon(&self, name: &'static str, default: f64) -> Read<Option<f64>> {
        let epsilon = self.number(name)?.unwrap_or(default);
        if !(epsilon > 0.0 && epsilon < 1.0) {
            return Err(self.wrong(name, format!("expected a number between 0 and 1, found {epsilon}")));
        }
        Ok(Some(epsilon))
    }

    /// Factor on the weights of routed experts, with the library's default.
    pub fn routed_factor(&self, default: f64) -> Read<f64> {
        let factor = self.number("routed_scaling_factor")?.unwrap_or(default);
        if factor <= 0.0 {
            let message = format!("expected a positive number, found {factor}");
            return Err(self.wrong("routed_scaling_factor", message));
        }
        Ok(factor)
    }

    /// A word; missing and `null` are none.
    pub fn word(&self, names: impl Names) -> Read<Option<&'a str>> {
        match self.find(&names)? {
            None => Ok(None),
            Some(Field { node: Node { value: Value::Text(text), .. }, .. }) => Ok(Some(text)),
            Some(Field { node: Node { value: Value::Null, .. }, .. }) => Ok(None),
            Some(field) => Err(self
                .invalid(field, format!("expected text in quotes, found {}", field.node.value.describe()))),
        }
    }

    /// A text of at least one letter, all of them known; anything that is no text is none.
    pub fn letters(&self, names: impl Names, known: &str) -> Read<Option<Vec<char>>> {
        let Some(field) = self.find(&names)? else { return Ok(None) };
        let Value::Text(text) = &field.node.value else { return Ok(None) };
        if text.is_empty() || text.len() > 4096 || !text.chars().all(|letter| known.contains(letter)) {
            let found = field.node.value.describe();
            return Err(self.invalid(field, format!("expected letters out of {known}, found {found}")));
        }
        Ok(Some(text.chars().collect()))
    }

    /// A list; missing and `null` are none.
    pub fn list(&self, names: impl Names) -> Read<Option<(&'a Field, &'a [Node])>> {
        match self.find(&names)? {
            None => Ok(None),
            Some(field @ Field { node: Node { value: Value::List(items), .. }, .. }) => {
                Ok(Some((field, items)))
            }
            Some(Field { node: Node { value: Value::Null, .. }, .. }) => Ok(None),
            Some(field) => {
                Err(self.invalid(field, format!("expected a list, found {}", field.node.value.describe())))
            }
        }
    }

    /// An object inside this one; missing and `null` are none.
    pub fn object(&self, name: &'static str) -> Read<Option<Fields<'a>>> {
        match self.find(&name)? {
            None => Ok(None),
            Some(Field { node: Node { value: Value::Null, .. }, .. }) => Ok(None),
            Some(Field { node: Node { value: Value::Object(object), span }, .. }) => {
                Ok(Some(Fields::new(self.text, object, span.clone(), self.family, true)))
            }
            Some(field) => {
                Err(self.invalid(field, format!("expected an object, found {}", field.node.value.describe())))
            }
        }
    }

    /// The elements of a list of whole numbers below `limit`.
    pub fn numbers(&self, name: &'static str, limit: u64) -> Read<Option<Vec<u64>>> {
        let Some((field, items)) = self.list(name)? else { return Ok(None) };
        let number = |node: &Node| match node.value {
            Value::Whole(n) if n >= 0 && (n as u64) < limit => Ok(n as u64),
            ref other => Err(self.element(
                field,
                node,
                format!("expected whole numbers below {limit}, found {}", other.describe()),
            )),
        };
        items.iter().map(number).collect::<Read<_>>().map(Some)
    }

    /// The elements of a list of words, each one of `known`.
    pub fn words(&self, names: impl Names, known: &[&'static str]) -> Read<Option<Vec<&'static str>>> {
        let Some((field, items)) = self.list(names)? else { return Ok(None) };
        let word = |node: &Node| match &node.value {
            Value::Text(text) if known.contains(&text.as_str()) => {
                Ok(*known.iter().find(|k| **k == text).expect("just found"))
            }
            other => Err(self.element(
                field,
                node,
                format!("expected {}, found {}", list(known, "or"), other.describe()),
            )),
        };
        items.iter().map(word).collect::<Read<_>>().map(Some)
    }

    /// An error at an element of a list.
    pub fn element(&self, field: &Field, node: &Node, message: impl std::fmt::Display) -> SpecError {
        SpecError::new("", format!("invalid `{}`: {message}", field.name)).mark(
            self.text,
            node.span.clone(),
            "",
        )
    }

    /// A field that this family knows with certain values only: others would change the shape in a way
    /// that is not modelled.
    pub fn only(&self, name: &'static str, expected: &str, accept: impl Fn(&Value) -> bool) -> Read<()> {
        match self.find(&name)? {
            Some(field) if field.node.value != Value::Null && !accept(&field.node.value) => Err(self
                .invalid(
                    field,
                    format!("only {expected} is understood, found {}", field.node.value.describe()),
                )
                .note(format!("what a `{}` with another value computes is not known here", self.family))),
            _ => Ok(()),
        }
    }

    /// Fields that must be off.
    pub fn off(&self, names: &[&'static str]) -> Read<()> {
        names
            .iter()
            .try_for_each(|name| self.only(name, "false", |value| matches!(value, Value::Flag(false))))
    }

    /// Fields that must be off unless the family reads them.
    pub fn off_if_unread(&self, names: &[&'static str]) -> Read<()> {
        let unread: Vec<_> = names.iter().copied().filter(|n| !self.asked.borrow().contains(n)).collect();
        self.off(&unread)
    }

    /// Fields that must be on.
    pub fn on(&self, names: &[&'static str]) -> Read<()> {
        names.iter().try_for_each(|name| self.only(name, "true", |value| matches!(value, Value::Flag(true))))
    }

    /// Activation of a feed-forward part.
    pub fn activation(&self, names: impl Names, default: &str, gated: bool) -> Read<Activation> {
        let field = self.find(&names)?;
        let word = self.word(names)?.unwrap_or(default);
        let gelu = word.contains("gelu");
        let known = match (word, gated) {
            ("silu" | "swish", true) => Some(Activation::SwiGlu),
            ("relu", true) => Some(Activation::ReGlu),
            (_, true) if gelu => Some(Activation::GeGlu),
            ("silu" | "swish", false) => Some(Activation::Silu),
            ("relu", false) => Some(Activation::Relu),
            ("relu2" | "relu_squared" | "squared_relu", false) => Some(Activation::SquaredRelu),
            (_, false) if gelu => Some(Activation::Gelu),
            _ => None,
        };
        match (known, field) {
            (Some(activation), _) => Ok(activation),
            (None, Some(field)) => {
                let known = if gated { "silu, gelu and relu" } else { "gelu, relu, relu2 and silu" };
                Err(self.invalid(
                    field,
                    format!("activation `{word}` is not known here; {known} (and their variants) are"),
                ))
            }
            (None, None) => Err(self.wrong("hidden_act", "no default is known")),
        }
    }

    /// Longest sequence; it does not change the parameters of a rotary model, so any number goes.
    pub fn longest(&self, names: impl Names, default: u64) -> Read<u64> {
        let Some(field) = self.find(&names)? else { return Ok(default) };
        match self.number_of(field)? {
            None => Ok(default),
            Some(number) if (1.0..=4e9).contains(&number) => Ok(number as u64),
            Some(number) => {
                Err(self.invalid(field, format!("expected a number of tokens from 1 on, found {number}")))
            }
        }
    }

    /// Dropout of the residual stream: any of the fields above zero.
    pub fn dropout(&self, names: &[&'static str], default: f64) -> Read<bool> {
        let mut any = None;
        for name in names {
            if let Some(rate) = self.number(*name)? {
                if !(0.0..=1.0).contains(&rate) {
                    return Err(self.wrong(name, format!("expected a rate from 0 to 1, found {rate}")));
                }
                any = Some(any.unwrap_or(false) || rate > 0.0);
            }
        }
        Ok(any.unwrap_or(default > 0.0))
    }

    /// A switch without a default.
    pub fn stated_flag(&self, name: &'static str) -> Read<Option<bool>> {
        if self.has(name) { self.flag(name, false).map(Some) } else { Ok(None) }
    }

    /// Whether a field is there and not `null`.
    pub fn has(&self, name: &str) -> bool {
        self.object.fields.iter().any(|field| field.name == name && field.node.value != Value::Null)
    }

    /// Marks `model_type` in an error.
    pub fn mark_model_type(&self, error: SpecError) -> SpecError {
        let field = self.object.fields.iter().find(|field| field.name == "model_type");
        let place = field.map_or(self.place.start..self.place.start + 1, |field| field.node.span.clone());
        error.mark(self.text, place, "")
    }

    /// Fields that may be there and change nothing here.
    pub fn harmless(&self, names: &[&'static str]) {
        self.asked.borrow_mut().extend(names);
    }

    /// Something that no part of the result says.
    pub fn leaves(&self, what: &str) {
        self.unstated.borrow_mut().push(what.to_owned());
    }

    /// Fields that change what is computed and neither time nor memory, unless they have their usual value.
    pub fn beside(&self, usual: &[(&'static str, Value)]) -> Read<()> {
        let number = |value: &Value| match value {
            Value::Whole(n) => Some(*n as f64),
            Value::Number(n) => Some(*n),
            _ => None,
        };
        for (name, usual) in usual {
            let Some(field) = self.find(name)? else { continue };
            let value = &field.node.value;
            let (same, expected) = match (value, usual) {
                (Value::Null, _) => continue,
                (Value::Flag(_), Value::Flag(_)) => (value == usual, None),
                (_, Value::Flag(_)) => (false, Some("true or false")),
                _ => (number(value) == number(usual), number(value).is_none().then_some("a number")),
            };
            if let Some(expected) = expected {
                return Err(self.invalid(field, format!("expected {expected}, found {}", value.describe())));
            }
            if !same {
                self.leaves(&format!("{name} {}", value.describe()));
            }
        }
        Ok(())
    }

    /// Names of fields that nobody asked for.
    pub fn unread(&self) -> Vec<&'a str> {
        let asked = self.asked.borrow();
        let fields = self.object.fields.iter().map(|field| field.name.as_str());
        fields.filter(|name| !asked.contains(name)).collect()
    }

    /// Refuses what nobody asked for.
    pub fn finish(&self) -> Read<()> {
        self.off(&["is_encoder_decoder", "add_cross_attention"])?;
        self.only(
            "pruned_heads",
            "an empty object",
            |value| matches!(value, Value::Object(object) if object.fields.is_empty()),
        )?;
        self.only("cross_attention_hidden_size", "null", |_| false)?;
        self.quantization()?;
        self.asked.borrow_mut().extend(["architectures"]);
        let asked = self.asked.borrow();
        let unknown = self.object.fields.iter().find(|field| {
            let name = field.name.as_str();
            field.node.value != Value::Null && !asked.contains(name) && !HARMLESS.contains(&name)
        });
        let Some(field) = unknown else { return Ok(()) };
        let title = format!("field `{}` of a `{}` configuration is not known", field.name, self.family);
        Err(SpecError::new("", title)
            .mark(self.text, field.span.clone(), "")
            .nearest(&field.name, asked.iter().copied())
            .note("it may change the model's parameters, so it is not ignored")
            .help("if it changes neither shapes nor layers, remove it from the file"))
    }

    /// Quantised releases stand for the weights they were made from.
    fn quantization(&self) -> Read<()> {
        for name in ["quantization_config", "compression_config", "quantization"] {
            if let Some(inner) = self.object(name)? {
                let method = match inner.object.fields.iter().find(|field| field.name == "quant_method") {
                    Some(Field { node: Node { value: Value::Text(method), .. }, .. }) => {
                        format!(" ({})", method.chars().take(40).collect::<String>())
                    }
                    _ => String::new(),
                };
                self.note(format!(
                    "the released weights are quantised{method}; the parameters they stand for are counted"
                ));
            }
        }
        Ok(())
    }
}
