//! The model of a row, from sizes.

use std::collections::BTreeMap;

use super::cells::{Cells, Skip};
use crate::frameworks::profile::Profile;
use crate::spec::job::MOST_SEQUENCES;
use crate::spec::measured::MeasuredRow;
use crate::spec::model::{
    Activation, Attention, Block, Dense, FeedForward, LatentAttention, MOST_LAYERS, Mamba2, Mixer, Model,
    Moe, Mtp, Norm, Position, QkNorm, Router, RouterGroups, Segment,
};

pub(super) fn read_model(cells: &mut Cells, profile: &Profile) -> Result<Model, Skip> {
    let row = cells.row;
    let notes = row.text_or_empty("arch_notes").to_ascii_lowercase();
    let hidden = cells.need("hidden")?;
    let count = cells.size("layers", MOST_LAYERS)?;
    let heads = cells.need("heads")?;
    let kv_heads = cells.or("kv_heads", heads)?;
    let head_dim = row.whole("head_dim")?.unwrap_or(hidden / heads.max(1));
    let sequence = u64::from(cells.size("seq_len", MOST_SEQUENCES)?);
    let vocabulary = match (row.whole("vocab")?, row.whole("vocab_assumed")?) {
        (Some(n), _) => n,
        (None, padded) => {
            cells.assumed.push("vocab");
            padded.unwrap_or(51_200)
        }
    };
    let relu = notes.contains("squared-relu") || notes.contains("squared relu");
    let plain = notes.contains("gelu") || notes.contains("gpt");
    let gated = match row.flag("gated_mlp")? {
        Some(gated) => gated,
        None => {
            cells.assumed.push("gated_mlp");
            !(plain || relu)
        }
    };
    let activation = match (gated, relu) {
        (true, _) => Activation::SwiGlu,
        (false, true) => Activation::SquaredRelu,
        (false, false) => Activation::Gelu,
    };
    let old = !gated && !relu;
    let experts: Option<u64> = row.whole("experts")?.filter(|&n| n > 0);
    let first_dense = cells.count("first_k_dense", 0, count)?;
    let moe_every = cells.count("moe_every", 1, count)?.max(1);
    // Some layers have no experts.
    let mixed = first_dense > 0 || moe_every > 1;
    let ffn = match (row.whole::<u64>("ffn_hidden")?, experts) {
        (Some(n), _) => n,
        // Only layers without experts have one.
        (None, Some(_)) if !mixed => 4 * hidden,
        (None, _) => {
            cells.assumed.push("ffn_hidden");
            if gated { (8 * hidden / 3).next_multiple_of(256) } else { 4 * hidden }
        }
    };
    let latent = match row.whole::<u64>("mla_kv_lora")? {
        Some(kv_lora_rank) if kv_lora_rank > 0 => Some(LatentAttention {
            heads,
            q_lora_rank: row.whole("mla_q_lora")?.filter(|&n: &u64| n > 0),
            kv_lora_rank,
            qk_nope_dim: row.whole("mla_qk_nope")?.unwrap_or(128),
            qk_rope_dim: row.whole("mla_qk_rope")?.unwrap_or(64),
            v_dim: row.whole("mla_v_dim")?.unwrap_or(128),
            bias: false,
        }),
        _ => None,
    };
    let sinks = notes.contains("sink");
    let attention = |window: Option<u64>| match &latent {
        Some(latent) => Mixer::Latent(latent.clone()),
        None => Mixer::Attention(Attention {
            heads,
            kv_heads,
            head_dim,
            qkv_bias: old || notes.contains("qkv bias") || sinks,
            output_bias: old || sinks,
            qk_norm: if notes.contains("qk-norm") { QkNorm::PerHeadDim } else { QkNorm::None },
            sinks,
            window,
            chunk: None,
        }),
    };
    let dense = FeedForward::Dense(Dense { width: ffn, activation, bias: old });
    let moe = match experts {
        Some(experts) => {
            let top_k = cells.need("topk")?;
            // Where every layer has experts, tables call their width that of the feed-forward part.
            let width = match cells.stated("moe_ffn")? {
                Some(width) => width,
                None if mixed || row.text("ffn_hidden").is_none() => return Err(Skip::Missing("moe_ffn")),
                None => {
                    cells.assumed.push("moe_ffn");
                    ffn
                }
            };
            // Published routing facts of the DeepSeek-V3 family: 8 groups of which 4 are visited.
            let limited = latent.is_some() && experts == 256;
            Some(FeedForward::Moe(Moe {
                experts,
                top_k,
                width,
                activation,
                expert_bias: sinks,
                shared_width: row.whole("shared_expert_ffn")?.unwrap_or(0),
                shared_gate: false,
                latent_width: None,
                router: Router {
                    bias: sinks,
                    balancing_bias: latent.is_some(),
                    groups: limited.then_some(RouterGroups { count: 8, top_k: 4 }),
                    ..Router::default()
                },
            }))
        }
        None => None,
    };
    let block = |mixer, feed_forward| Block { mixer, feed_forward, norms: 2, parallel: false };
    let mut blocks = BTreeMap::new();
    let mut layers: Vec<Segment> = Vec::new();
    let mut order: Vec<&str> = Vec::new();
    if let Some(hybrid) = row.text("hybrid_layers") {
        order = hybrid_order(hybrid, count)?;
        // Where feed-forward parts are layers of their own, every layer is one operator under one norm (Nemotron-H);
        // otherwise each has a mixer and a feed-forward part (Qwen3-Next).
        let alone = order.iter().any(|kind| matches!(*kind, "mlp" | "moe"));
        let routed = || moe.clone().ok_or(Skip::Missing("experts"));
        let beside = match &moe {
            _ if alone => FeedForward::None,
            Some(experts) => experts.clone(),
            // Pure state-space models have none.
            None if row.text("ffn_hidden").is_none() => FeedForward::None,
            None => dense.clone(),
        };
        let norms = if alone { 1 } else { 2 };
        let one = |mixer, feed_forward| Block { mixer, feed_forward, norms, parallel: false };
        for &kind in &order {
            if blocks.contains_key(kind) {
                continue;
            }
            let block = match kind {
                "mlp" => one(Mixer::None, dense.clone()),
                "moe" => one(Mixer::None, routed()?),
                "mamba2" => one(Mixer::Mamba2(mamba2(row, hidden)?), beside.clone()),
                "gated_delta_net" => one(Mixer::Mamba2(gated_delta_net(row, hidden)?), beside.clone()),
                _ => one(attention(None), beside.clone()),
            };
            blocks.insert(kind.to_owned(), block);
        }
    } else {
        let window: Option<u64> = row.whole("attn_window")?.filter(|&n| n > 0);
        let window_every = cells.count("attn_window_every", 1, count)?.max(1);
        for layer in 0..count {
            let windowed = window.is_some() && layer % window_every == 0;
            let routed = moe.is_some() && layer >= first_dense && (layer + 1) % moe_every == 0;
            order.push(match (routed, windowed) {
                (true, true) => "moe_window",
                (true, false) => "moe",
                (false, true) => "dense_window",
                (false, false) => "dense",
            });
        }
        for &name in &order {
            if blocks.contains_key(name) {
                continue;
            }
            let mixer = attention(if name.ends_with("window") { window } else { None });
            let feed_forward = if name.starts_with("moe") { moe.clone() } else { Some(dense.clone()) };
            blocks.insert(name.to_owned(), block(mixer, feed_forward.unwrap_or_default()));
        }
    }
    for name in &order {
        match layers.last_mut() {
            Some(segment) if segment.of[0] == *name => segment.repeat += 1,
            _ => layers.push(Segment { repeat: 1, of: vec![(*name).to_owned()] }),
        }
    }
    let modules: Option<u32> = row.whole("mtp_layers")?.filter(|&n| n > 0);
    let mtp = modules.and_then(|modules| Some(Mtp { modules, block: (*order.last()?).to_owned() }));
    Ok(Model {
        schema: crate::spec::model::SCHEMA,
        name: row.text("model").unwrap_or("unnamed").to_owned(),
        hidden,
        vocabulary,
        vocabulary_divisor: 128,
        tied_embeddings: cells.flag("tied_embeddings", old)?,
        position: if old { Position::Learned(sequence) } else { Position::Rotary },
        norm: if gated { Norm::RmsNorm } else { Norm::LayerNorm },
        norm_epsilon: None,
        embedding_norm: false,
        final_norm: true,
        head_bias: false,
        embedding_width: None,
        max_sequence: sequence,
        dropout: old && profile.defaults.dropout,
        unstated: Vec::new(),
        blocks,
        layers,
        mtp,
    })
}

/// Mamba-2 with the sizes that rows do not state as Nemotron-H has them: an inner width of twice the hidden size, heads
/// of 64, 8 groups.
fn mamba2(row: &MeasuredRow, hidden: u64) -> Result<Mamba2, Skip> {
    let heads = (2 * hidden / 64).max(1);
    Ok(Mamba2 {
        inner: 64 * heads,
        state: row.whole("ssm_state")?.filter(|&n| n > 0).unwrap_or(128),
        // Groups hold whole heads.
        groups: [8, 4, 2].into_iter().find(|groups| heads % groups == 0).unwrap_or(1),
        heads,
        conv_kernel: 4,
        bias: false,
        conv_bias: true,
    })
}

/// A gated delta rule has the projections, convolution and gated norm of Mamba-2, with a key and a query head per group and
/// a value head per head, and one gate more per head, a thousandth of its weights. Its chunked kernels move the same inputs
/// and chunk states. Sizes are Qwen3-Next's: values of twice the hidden size, keys as wide as it, heads of 128.
fn gated_delta_net(row: &MeasuredRow, hidden: u64) -> Result<Mamba2, Skip> {
    let state: u64 = row.whole("ssm_state")?.filter(|&n| n > 0).unwrap_or(128);
    let groups = (hidden / state).max(1);
    Ok(Mamba2 {
        inner: 2 * groups * state,
        state,
        groups,
        heads: 2 * groups,
        conv_kernel: 4,
        bias: false,
        conv_bias: false,
    })
}

/// `attention:10 mlp:54 mamba2:54`: spreads the kinds evenly over the depth.
fn hybrid_order(text: &str, count: u32) -> Result<Vec<&'static str>, Skip> {
    let unknown = || {
        let text: String = text.chars().take(60).collect();
        Skip::Contradiction(format!(
            "hybrid_layers is `{text}`; expected every kind once, such as attention:4 mlp:28 mamba2:28"
        ))
    };
    let mut counts: Vec<(&str, u32)> = Vec::new();
    for part in text.split_whitespace() {
        let (name, number) = part.split_once(':').ok_or_else(unknown)?;
        let name = match name {
            "attention" => "attention",
            "mlp" => "mlp",
            "moe" => "moe",
            "mamba" | "mamba2" => "mamba2",
            "gated_delta_net" | "gdn" => "gated_delta_net",
            _ => return Err(Skip::Unsupported("a kind of hybrid layer is not supported")),
        };
        if counts.iter().any(|(known, _)| *known == name) {
            return Err(unknown());
        }
        counts.push((name, number.parse().map_err(|_| unknown())?));
    }
    if counts.iter().map(|(_, n)| u64::from(*n)).sum::<u64>() != u64::from(count) {
        return Err(Skip::Contradiction(format!("hybrid_layers `{text}` do not sum to {count} layers")));
    }
    // Largest remainder first: the kind that lags most behind its share comes next.
    let mut placed = vec![0u32; counts.len()];
    let mut order = Vec::with_capacity(count as usize);
    for at in 1..=count {
        let lag = |k: usize| f64::from(counts[k].1) * f64::from(at) / f64::from(count) - f64::from(placed[k]);
        let next = (0..counts.len()).max_by(|&a, &b| lag(a).total_cmp(&lag(b))).ok_or_else(unknown)?;
        placed[next] += 1;
        order.push(counts[next].0);
    }
    Ok(order)
}
