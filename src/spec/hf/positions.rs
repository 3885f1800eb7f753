//! Rotary positions: base, share of a head, and how they are scaled, in both ways in which configurations say it
//! (transformers 4: flat fields and `rope_scaling`; 5: `rope_parameters`, where both meet).

use super::fields::{Fields, Read};
use crate::spec::diagnostic::list;
use crate::spec::model::{Position, PositionScaling, Yarn};

/// Kinds of scaling that the library knows (modeling_rope_utils.py ROPE_INIT_FUNCTIONS), old names among them.
const KINDS: &[&str] =
    &["default", "linear", "dynamic", "llama3", "yarn", "longrope", "su", "proportional", "mrope"];

impl<'a> Fields<'a> {
    /// Base of the rotary embedding, the share of a head that it rotates and how it is scaled, from the flat fields or
    /// from `rope_parameters`.
    pub fn rope(&self, base: f64, share: f64, head_dim: u64) -> Read<Position> {
        let mut found = self.number(["rope_theta", "rotary_emb_base", "rotary_base"])?;
        let mut part =
            self.number(["partial_rotary_factor", "rotary_pct", "rotary_percentage", "rope_percent"])?;
        if let Some(rotated) = self.optional("rotary_dim")? {
            part = part.or(Some(rotated as f64 / head_dim as f64));
        }
        let mut scaling = match self.object("rope_scaling")? {
            Some(inner) => self.scaling("rope_scaling", &inner)?,
            None => None,
        };
        if let Some(nested) = self.object("rope_parameters")? {
            // One object for all layers, or one for each kind of attention.
            let full = nested.object("full_attention")?;
            let from = full.as_ref().unwrap_or(&nested);
            found = from.number("rope_theta")?.or(found);
            part = from.number("partial_rotary_factor")?.or(part);
            let said = self.scaling("rope_parameters", from)?;
            if let (Some(old), Some(new)) = (scaling, said)
                && old != new
            {
                return Err(self.wrong(
                    "rope_scaling",
                    format!("positions are scaled ({old}) otherwise than `rope_parameters` says ({new})"),
                ));
            }
            scaling = said.or(scaling);
        }
        let (base, share) = (found.unwrap_or(base), part.unwrap_or(share));
        if base <= 0.0 {
            return Err(self.wrong("rope_theta", format!("expected a positive number, found {base}")));
        }
        if !(share > 0.0 && share <= 1.0) {
            return Err(self.wrong(
                "partial_rotary_factor",
                format!("expected a share of the head from 0 to 1, found {share}"),
            ));
        }
        Ok(Position::RotaryWith { base, share, scaling: scaling.unwrap_or_default() })
    }

    /// What an object of this name says of scaling; none where it names no kind.
    fn scaling(&self, name: &'static str, inner: &Fields<'a>) -> Read<Option<PositionScaling>> {
        let Some(kind) = inner.word(["rope_type", "type"])? else { return Ok(None) };
        if !KINDS.contains(&kind) {
            let message = format!("`{kind}` is no kind of scaling; known are {}", list(KINDS, "and"));
            return Err(inner.wrong("rope_type", message).nearest(kind, KINDS.iter().copied()));
        }
        let need = |name: &'static str| inner.number(name)?.ok_or_else(|| inner.missing(&name));
        let scaling = match kind {
            "linear" => PositionScaling::Linear { factor: need("factor")? },
            "dynamic" => PositionScaling::Dynamic { factor: need("factor")? },
            "llama3" => PositionScaling::Llama3 {
                factor: need("factor")?,
                low_frequency_factor: need("low_freq_factor")?,
                high_frequency_factor: need("high_freq_factor")?,
                original_length: self.original_length(inner)?,
            },
            "yarn" => PositionScaling::Yarn(self.yarn(inner)?),
            // The sections of `mrope` differ for images only.
            "default" | "mrope" => PositionScaling::None,
            _ => {
                self.note(format!("positions are scaled by `{kind}`, which no launch that is written says"));
                return Ok(Some(PositionScaling::Other));
            }
        };
        if let Some(fault) = scaling.fault() {
            return Err(self.wrong(name, fault));
        }
        inner.harmless(&["rope_theta", "partial_rotary_factor", "original_max_position_embeddings"]);
        inner.harmless(&["mrope_section", "mrope_interleaved"]);
        for field in inner.unread() {
            self.note(format!("`{name}` says `{field}`, which scaling of kind `{kind}` does not have"));
        }
        Ok(Some(scaling))
    }

    /// Tokens of the longest sequence before scaling: beside the object, in it, or the longest of all.
    fn original_length(&self, inner: &Fields) -> Read<u64> {
        let name = "original_max_position_embeddings";
        if let Some(length) = self.optional(name)?.or(inner.optional(name)?) {
            return Ok(length);
        }
        self.optional("max_position_embeddings")?.ok_or_else(|| inner.missing(&name))
    }

    fn yarn(&self, inner: &Fields) -> Read<Yarn> {
        // Zero stands for the default, as in Python's `or`.
        let given = |name: &'static str| inner.number(name).map(|number| number.filter(|n| *n != 0.0));
        let original_length = self.original_length(inner)?;
        let factor = match (inner.number("factor")?, self.number("max_position_embeddings")?) {
            (Some(factor), _) => factor,
            (None, Some(longest)) => longest / original_length as f64,
            (None, None) => return Err(inner.missing(&"factor")),
        };
        let truncate = !inner.has("truncate") || inner.flag("truncate", true)?;
        let mut yarn = Yarn {
            factor,
            original_length,
            beta_fast: given("beta_fast")?.unwrap_or(32.0),
            beta_slow: given("beta_slow")?.unwrap_or(1.0),
            mscale: 1.0,
            mscale_all_dim: 0.0,
            attention_factor: inner.number("attention_factor")?,
            truncate,
        };
        // Each counts beside the other only; scores of latent attention know one of them.
        match (given("mscale")?, given("mscale_all_dim")?) {
            (Some(mscale), Some(all)) => (yarn.mscale, yarn.mscale_all_dim) = (mscale, all),
            (None, Some(all)) => {
                yarn.attention_factor = yarn.attention_factor.or(Some(yarn.default_attention_factor()));
                yarn.mscale_all_dim = all;
            }
            (_, None) => {}
        }
        Ok(yarn)
    }
}
