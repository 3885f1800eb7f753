//! A model in the terms of Megatron's command line: one attention shape, one feed-forward shape, one
//! mixture of experts, and patterns of where each stands. Models that need more are named as such.

use super::super::{Broken, broken};
use crate::layers::Layers;
use crate::spec::model::{
    Activation, Attention, Block, Dense, FeedForward, LatentAttention, Mamba2, Mixer, Model, Moe, Norm,
    Position, QkNorm, RouterScore,
};

/// A model in the terms of Megatron's command line.
#[derive(Debug, Clone, PartialEq)]
pub struct Shape {
    /// Plain attention (its window aside), if any layer has it.
    pub attention: Option<Attention>,
    /// Latent attention, if any layer has it.
    pub latent: Option<LatentAttention>,
    /// Mamba-2, if any layer has it.
    pub mamba: Option<Mamba2>,
    /// Dense feed-forward part, if any layer has it.
    pub dense: Option<Dense>,
    /// Mixture of experts, if any layer has it.
    pub moe: Option<Moe>,
    /// For every layer, whether it has experts.
    pub moe_pattern: Vec<bool>,
    /// Attention window, and for every layer whether it applies.
    pub window: Option<(u64, Vec<bool>)>,
    /// All linear layers have biases.
    pub linear_bias: bool,
    /// Query, key and value projections have biases.
    pub qkv_bias: bool,
    /// Activation of all feed-forward parts.
    pub activation: Activation,
    /// For hybrid models, the symbols of every layer.
    pub hybrid: Option<Vec<String>>,
    /// For hybrid models, the symbols of a multi-token-prediction module.
    pub hybrid_mtp: Option<String>,
}

/// Takes the common value of all layers that have one.
fn common<T: PartialEq + Clone>(slot: &mut Option<T>, value: &T, text: &'static str) -> Result<(), Broken> {
    match slot {
        None => *slot = Some(value.clone()),
        Some(known) if known == value => {}
        Some(_) => return Err(broken(text)),
    }
    Ok(())
}

impl Shape {
    /// What Megatron-Core makes of the model that it does not have: latent attention whose queries are not compressed
    /// gets a norm before their projection (`core/models/gpt/gpt_layer_specs.py`), and without `--qk-layernorm` there
    /// would be none of keys and values.
    #[must_use]
    pub fn added(&self) -> Option<&'static str> {
        let plain = self.latent.as_ref().is_some_and(|latent| latent.q_lora_rank.is_none());
        plain.then_some("a norm of the queries, which the model does not have")
    }

    /// Reduces a model to Megatron's terms.
    ///
    /// # Errors
    /// What the command line cannot say, with the model's feature named.
    pub fn of(model: &Model, layers: &Layers, sequence_length: u64) -> Result<Self, Broken> {
        model_wide(model)?;
        let mut shape = Self {
            attention: None,
            latent: None,
            mamba: None,
            dense: None,
            moe: None,
            moe_pattern: Vec::new(),
            window: None,
            linear_bias: false,
            qkv_bias: false,
            activation: Activation::default(),
            hybrid: None,
            hybrid_mtp: None,
        };
        let mut windows = Vec::new();
        let mut window = None;
        let mut activation = None;
        for kind in &layers.kinds {
            let block = &kind.block;
            if block.parallel {
                return Err(broken("attention and feed-forward part read the same input (parallel blocks)"));
            }
            match &block.mixer {
                Mixer::Attention(a) => {
                    if a.chunk.is_some_and(|chunk| chunk < sequence_length) {
                        return Err(broken("attention is cut into chunks shorter than the sequence"));
                    }
                    let plain = Attention { window: None, chunk: None, ..a.clone() };
                    common(&mut shape.attention, &plain, "layers differ in their attention heads")?;
                    if let Some(size) = a.window {
                        common(&mut window, &size, "layers differ in the length of their attention windows")?;
                    }
                }
                Mixer::Latent(a) => {
                    if a.bias {
                        return Err(broken("the projections of latent attention have biases"));
                    }
                    common(&mut shape.latent, a, "layers differ in their latent attention")?;
                }
                Mixer::Mamba2(a) => common(&mut shape.mamba, a, "layers differ in their Mamba parts")?,
                Mixer::None => {}
            }
            match &block.feed_forward {
                FeedForward::Dense(d) => {
                    common(&mut shape.dense, d, "layers differ in their dense feed-forward parts")?;
                    common(&mut activation, &d.activation, "layers differ in their activation functions")?;
                }
                FeedForward::Moe(e) => {
                    common(&mut shape.moe, e, "layers differ in their experts")?;
                    common(&mut activation, &e.activation, "layers differ in their activation functions")?;
                }
                FeedForward::None => {}
            }
        }
        if shape.attention.is_some() && shape.latent.is_some() {
            return Err(broken("plain and latent attention stand in one model"));
        }
        let block = |kind: u8| &layers.kinds[kind as usize].block;
        for &kind in &layers.order {
            shape.moe_pattern.push(matches!(block(kind).feed_forward, FeedForward::Moe(_)));
            windows.push(matches!(&block(kind).mixer, Mixer::Attention(a) if a.window.is_some()));
        }
        shape.window = window.map(|size| (size, windows));
        shape.activation = activation.unwrap_or_default();
        if !matches!(shape.activation, Activation::SwiGlu | Activation::Gelu | Activation::SquaredRelu) {
            return Err(broken("the activation function is none of SwiGLU, GELU and squared ReLU"));
        }
        shape.biases()?;
        shape.experts()?;
        shape.order(model, layers)?;
        Ok(shape)
    }

    /// Heads of whatever attention there is; of Mamba where there is none.
    #[must_use]
    pub fn heads(&self) -> u64 {
        let latent = self.latent.as_ref().map(|a| a.heads);
        let plain = self.attention.as_ref().map(|a| a.heads);
        plain.or(latent).or(self.mamba.as_ref().map(|a| a.heads)).unwrap_or(1)
    }

    /// Megatron has one switch for the biases of all linear layers and one for those of queries, keys
    /// and values.
    fn biases(&mut self) -> Result<(), Broken> {
        let mut parts = Vec::new();
        if let Some(a) = &self.attention {
            parts.push(a.output_bias);
            self.qkv_bias = a.qkv_bias;
        }
        parts.extend(self.dense.as_ref().map(|d| d.bias));
        if let Some(e) = &self.moe {
            parts.push(e.expert_bias);
            parts.push(e.router.bias);
        }
        self.linear_bias = parts.first().copied().unwrap_or(false);
        if parts.iter().any(|&bias| bias != self.linear_bias) || (self.linear_bias && !self.qkv_bias) {
            return Err(broken("some linear layers have biases and others do not"));
        }
        Ok(())
    }

    fn experts(&self) -> Result<(), Broken> {
        let Some(e) = &self.moe else { return Ok(()) };
        if e.router.balancing_bias && !e.router.score.is_sigmoid() {
            return Err(broken("a balancing bias on the router needs sigmoid scores"));
        }
        if e.top_k == 1 && e.router.score == RouterScore::Softmax {
            return Err(broken("a softmax over one chosen expert is constant: the scores must come first"));
        }
        // core/transformer/moe/moe_utils.py topk_routing_with_score_function
        if e.top_k > 1 && e.router.score == RouterScore::SigmoidAlone {
            return Err(broken(
                "the weights of the chosen experts are sigmoids that are not brought to a sum of one",
            ));
        }
        if e.shared_gate && e.shared_width == 0 {
            return Err(broken("a gate on shared experts, but no shared experts"));
        }
        Ok(())
    }

    /// Transformer layers all have both parts; anything else is a hybrid pattern.
    fn order(&mut self, model: &Model, layers: &Layers) -> Result<(), Broken> {
        let block = |kind: u8| &layers.kinds[kind as usize].block;
        let hybrid = !layers.order.iter().all(|&kind| block(kind).is_whole());
        for kind in &layers.kinds {
            let parts = u32::from(kind.block.mixer != Mixer::None)
                + u32::from(kind.block.feed_forward != FeedForward::None);
            if kind.block.norms != parts {
                return Err(broken("layers have norms beyond one before each part (post-norms)"));
            }
        }
        let symbols = |b: &Block| {
            let mixer = match b.mixer {
                Mixer::Attention(_) => "*",
                Mixer::Latent(_) => "+",
                Mixer::Mamba2(_) => "M",
                Mixer::None => "",
            };
            let feed_forward = match b.feed_forward {
                FeedForward::Dense(_) => "-",
                FeedForward::Moe(_) => "E",
                FeedForward::None => "",
            };
            format!("{mixer}{feed_forward}")
        };
        if hybrid {
            self.hybrid = Some(layers.order.iter().map(|&kind| symbols(block(kind))).collect());
            if self.window.is_some() {
                return Err(broken("attention windows in a hybrid model"));
            }
            if let Some(a) = &self.mamba
                && (a.conv_kernel != 4 || !a.conv_bias || a.bias)
            {
                return Err(broken(
                    "a Mamba part other than a biased convolution of 4 and unbiased projections",
                ));
            }
        }
        if let Some((kind, _)) = layers.mtp {
            if hybrid {
                self.hybrid_mtp = Some(symbols(block(kind)));
            } else if layers.order.last().is_none_or(|&last| {
                // The module repeats the last decoder layer, whatever its window.
                Shape::parts(block(last)) != Shape::parts(block(kind))
            }) {
                return Err(broken("multi-token-prediction modules differ from the last decoder layer"));
            }
            if !matches!(model.position, Position::Rotary | Position::RotaryWith { .. } | Position::None) {
                return Err(broken("multi-token prediction needs rotary positions or none"));
            }
        }
        Ok(())
    }

    fn parts(block: &Block) -> (Mixer, FeedForward) {
        let mixer = match &block.mixer {
            Mixer::Attention(a) => Mixer::Attention(Attention { window: None, chunk: None, ..a.clone() }),
            other => other.clone(),
        };
        (mixer, block.feed_forward.clone())
    }
}

fn model_wide(model: &Model) -> Result<(), Broken> {
    match model.position {
        Position::Rotary | Position::None | Position::Learned(_) => {}
        Position::RotaryWith { base, .. } => {
            if base.fract() != 0.0 || base > 1e18 {
                return Err(broken("the base of the rotary embedding is no whole number"));
            }
        }
        Position::Alibi => return Err(broken("positions enter as linear biases (ALiBi)")),
    }
    if !matches!(model.norm, Norm::RmsNorm | Norm::LayerNorm) {
        return Err(broken("the norm is neither RMSNorm nor LayerNorm with a shift"));
    }
    if model.embedding_norm {
        return Err(broken("a norm follows the embedding"));
    }
    if !model.final_norm {
        return Err(broken("no norm stands before the head"));
    }
    if model.head_bias {
        return Err(broken("the output head has a bias"));
    }
    if model.embedding_width.is_some_and(|width| width != model.hidden) {
        return Err(broken("the embedding is narrower than the residual stream"));
    }
    for block in model.blocks.values() {
        if let Mixer::Attention(a) = &block.mixer
            && !matches!(a.qk_norm, QkNorm::None | QkNorm::PerHeadDim | QkNorm::NoParameters)
        {
            return Err(broken("queries and keys are normalised over all heads at once"));
        }
    }
    Ok(())
}

/// A list of flags as the expression that Megatron evaluates, e.g. `([0]*3+[1]*58)`.
#[must_use]
pub fn pattern(flags: &[bool]) -> String {
    let n = flags.len();
    let digit = |&flag: &bool| if flag { "1" } else { "0" };
    // The shortest period that is not the whole list.
    let period = (1..n).find(|&p| n % p == 0 && p > 1 && (p..n).all(|k| flags[k] == flags[k - p]));
    if let Some(p) = period.filter(|&p| p <= 8) {
        let digits: Vec<&str> = flags[..p].iter().map(digit).collect();
        return format!("([{}]*{})", digits.join(","), n / p);
    }
    let mut runs: Vec<(bool, usize)> = Vec::new();
    for &flag in flags {
        match runs.last_mut() {
            Some((last, count)) if *last == flag => *count += 1,
            _ => runs.push((flag, 1)),
        }
    }
    let runs: Vec<String> = runs.iter().map(|(flag, count)| format!("[{}]*{count}", digit(flag))).collect();
    format!("({})", runs.join("+"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_short() {
        let of = |text: &str| pattern(&text.chars().map(|c| c == '1').collect::<Vec<_>>());
        assert_eq!(of("00011111"), "([0]*3+[1]*5)");
        assert_eq!(of("10101010"), "([1,0]*4)");
        assert_eq!(of("1111"), "([1,1]*2)");
        assert_eq!(of("0001"), "([0]*3+[1]*1)");
    }
}
