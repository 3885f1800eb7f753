//! Scaled rotary positions in the terms of Megatron-LM's command line, written and read.

use super::super::shell::ImportError;
use super::flags::Flags;
use super::read_rules::ReadRule;
use super::shape::Shape;
use crate::spec::model::{Model, Position, PositionScaling, Yarn};

/// What `--use-rope-scaling` stands for: core/models/common/embeddings/rotary_pos_embedding.py _apply_scaling, and the
/// factor of training/models/gpt.py GPTModelConfig, to which no flag is handed on.
const LLAMA3: PositionScaling = PositionScaling::Llama3 {
    factor: 8.0,
    low_frequency_factor: 1.0,
    high_frequency_factor: 4.0,
    original_length: 8192,
};

/// Defaults of core/transformer/transformer_config.py MLATransformerConfig, to which no flag is handed on.
const LATENT_LENGTH: u64 = 4096;
const LATENT_BETAS: (f64, f64) = (32.0, 1.0);

/// Flags with their values.
pub type Written = Vec<(&'static str, Vec<String>)>;

/// Flags of the way in which a model's positions are scaled; none where Megatron-LM has no such way.
#[must_use]
pub fn write(model: &Model, shape: &Shape) -> Option<Written> {
    let scaling = model.position.scaling();
    let flag = |name, number: f64| (name, vec![format!("{number:?}")]);
    let plain = shape.latent.is_none() && shape.hybrid.is_none();
    match scaling {
        PositionScaling::None => Some(Vec::new()),
        // training/argument_utils.py gpt_config_from_args
        PositionScaling::Linear { factor } if plain && factor.fract() == 0.0 && factor < 1e9 => {
            Some(vec![("--rotary-seq-len-interpolation-factor", vec![factor.to_string()])])
        }
        llama3 if plain && llama3 == LLAMA3 => Some(vec![("--use-rope-scaling", Vec::new())]),
        PositionScaling::Yarn(yarn) if shape.hybrid.is_none() && weighed(&yarn) => {
            let mut flags = vec![flag("--rotary-scaling-factor", yarn.factor)];
            flags.push(flag("--mscale", yarn.mscale));
            flags.push(flag("--mscale-all-dim", yarn.mscale_all_dim));
            if shape.latent.is_some() {
                let fixed = yarn.original_length == LATENT_LENGTH
                    && (yarn.beta_fast, yarn.beta_slow) == LATENT_BETAS
                    && yarn.truncate;
                return fixed.then_some(flags);
            }
            flags.push(("--yarn-original-max-position-embeddings", vec![yarn.original_length.to_string()]));
            flags.push(flag("--yarn-beta-fast", yarn.beta_fast));
            flags.push(flag("--yarn-beta-slow", yarn.beta_slow));
            let rounded = if yarn.truncate { ROUNDED } else { NOT_ROUNDED };
            flags.push((rounded, Vec::new()));
            yarn_fits(model).then_some(flags)
        }
        _ => None,
    }
}

const ROUNDED: &str = "--yarn-correction-range-round-to-int";
const NOT_ROUNDED: &str = "--no-yarn-correction-range-round-to-int";

/// Megatron-Core knows the size of rotated queries and keys by its two weights only
/// (yarn_rotary_pos_embedding.py _yarn_get_concentration_factor).
pub fn weighed(yarn: &Yarn) -> bool {
    yarn.attention_factor.is_none_or(|size| size == yarn.weighed_attention_factor())
}

/// Outside of latent attention YaRN rotates whole heads, and there is no multi-token prediction with it
/// (training/arguments.py validate_args).
pub fn yarn_fits(model: &Model) -> bool {
    model.mtp.is_none() && matches!(model.position, Position::RotaryWith { share, .. } if share == 1.0)
}

/// Whether positions of a model are of their own kind: YaRN outside of latent attention.
pub fn is_yarn(model: &Model, shape: &Shape) -> bool {
    shape.latent.is_none()
        && matches!(model.position.scaling(), PositionScaling::Yarn(_))
        && write(model, shape).is_some()
}

/// How rotary positions are scaled by the flags of a launch.
///
/// # Errors
/// A value that is no number.
pub(super) fn read(
    f: &mut Flags,
    latent: bool,
    yarn: bool,
    assumed: &mut Vec<String>,
) -> Result<PositionScaling, ImportError> {
    let line = f.line("--rope-type");
    let kind = f.choice("--rope-type", &[("rope", false), ("yarn", true)])?.unwrap_or(latent);
    if kind && !latent {
        let text =
            "--rope-type yarn needs --multi-latent-attention; others say --position-embedding-type yarn";
        return Err(ReadRule::RopeType.broken_by(f, line, text));
    }
    let factor = f.decimal("--rotary-scaling-factor")?.unwrap_or(1.0);
    let mscale = f.decimal("--mscale")?.unwrap_or(1.0);
    let mscale_all_dim = f.decimal("--mscale-all-dim")?.unwrap_or(0.0);
    let original_length = f.number("--yarn-original-max-position-embeddings")?;
    let (fast, slow) = (f.decimal("--yarn-beta-fast")?, f.decimal("--yarn-beta-slow")?);
    let rounded = f.on(ROUNDED);
    let truncate = !f.on(NOT_ROUNDED) || rounded;
    let of_yarn = Yarn {
        factor,
        original_length: original_length.unwrap_or(LATENT_LENGTH),
        beta_fast: fast.unwrap_or(LATENT_BETAS.0),
        beta_slow: slow.unwrap_or(LATENT_BETAS.1),
        mscale,
        mscale_all_dim,
        attention_factor: None,
        truncate,
    };
    let whole = f.number("--rotary-seq-len-interpolation-factor")?.map(|factor| factor as f64);
    let stretched = f.on("--use-rope-scaling");
    let stretch = f.decimal("--rope-scaling-factor")?;
    if latent {
        let fixed = Yarn {
            original_length: LATENT_LENGTH,
            beta_fast: LATENT_BETAS.0,
            beta_slow: LATENT_BETAS.1,
            truncate: true,
            ..of_yarn
        };
        return Ok(if kind && factor != 1.0 { PositionScaling::Yarn(fixed) } else { PositionScaling::None });
    }
    if yarn {
        return Ok(PositionScaling::Yarn(of_yarn));
    }
    Ok(match (stretched, stretch, whole) {
        (false, _, None) => PositionScaling::None,
        (false, _, Some(factor)) => PositionScaling::Linear { factor },
        (true, None, None) => LLAMA3,
        (true, Some(factor), None) => {
            if factor != 8.0 {
                assumed.push(format!(
                    "--rope-scaling-factor {factor}: Megatron-LM of August 2026 stretches positions by 8 whatever it says"
                ));
            }
            PositionScaling::Llama3 {
                factor,
                low_frequency_factor: 1.0,
                high_frequency_factor: 4.0,
                original_length: 8192,
            }
        }
        (true, _, Some(_)) => PositionScaling::Other,
    })
}
