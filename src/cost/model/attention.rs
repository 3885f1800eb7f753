//! Attention of every kind, state-space scans, and context parallelism.

use super::{Adapted, Cell, CostModel, Kept, Passes};
use crate::cost::Item;
use crate::cost::compute::AttentionShape;
use crate::layers::{AttentionCount, attention_extent};
use crate::plan::{ContextComm, Module};
use crate::spec::model::{Block, LatentAttention, Mixer, Position, QkNorm};

/// Attention over ring chunks loses this much for every doubling of the ring.
const RING_LOSS: f64 = 0.06;

/// Traffic of a chunked state-space scan with its convolution and gated norm, bytes per inner channel and
/// token, forward; the backward pass moves 2.5 times as much. The published kernels are bound by memory and by
/// their chunk states, not by matrix rates. Fitted on four Nemotron-H rows of DGX Cloud.
const SCAN_BYTES: f64 = 187.0;

impl CostModel<'_> {
    pub(super) fn attention(
        &self,
        c: &Cell,
        block: &Block,
        p: &mut Passes,
        kept: &mut Kept,
        modules: &mut Vec<(Module, f64, f64)>,
        shapes: &mut Vec<(u64, u64)>,
    ) {
        let tp = u64::from(c.key.tensor_parallel);
        let sequence = u64::from(self.job.sequence_length);
        let low_copy = self.low.map_or(0.0, |l| l.operand_bytes);
        let in_memory = self.device.scores();
        let tokens = c.tokens;
        let (shape, heads, key_value_bytes, output_dim, window);
        // Chunked attention sees no more than its chunk of a sequence.
        let mut reach = sequence;
        match &block.mixer {
            Mixer::Attention(a) => {
                heads = a.heads.div_ceil(tp);
                let kv_local = a.kv_heads.div_ceil(tp);
                window = a.window;
                // Scores in memory are whole squares, whatever is masked.
                let chunk = a.chunk.filter(|_| in_memory.is_none());
                reach = chunk.map_or(sequence, |chunk| chunk.min(sequence));
                let outputs = (heads + 2 * kv_local) * a.head_dim;
                self.column(c, outputs * tp, p, shapes);
                if self.adapted == Adapted::QueryKeyValue {
                    self.adapter_products(tokens, outputs as f64, self.model.hidden as f64 / c.tp, p);
                    self.column_adapter_collectives(c, p);
                }
                self.row(c, a.heads * a.head_dim, p, shapes);
                let (ad, gd) = ((heads * a.head_dim) as f64, (kv_local * a.head_dim) as f64);
                if !matches!(self.model.position, Position::Learned(_) | Position::Alibi | Position::None) {
                    let rotary = self.device.stream(4.0 * (ad + gd) * tokens, 2.0);
                    p.forward.add(Item::ElementWise, rotary);
                    p.backward.add(Item::ElementWise, rotary);
                }
                if a.qk_norm != QkNorm::None {
                    // As norms of the residual stream.
                    let elements = (ad + gd) * tokens;
                    let moved = elements * self.profile.kernels.norm_traffic.get(self.architecture());
                    p.forward.add(Item::ElementWise, self.device.stream(4.0 * moved, 2.0));
                    p.backward.add(Item::ElementWise, self.device.stream(8.0 * moved, 4.0));
                    kept.local += (2.0 + self.profile.memory.norm_kept) * elements;
                }
                kept.local += (2.0 * ad + 4.0 * gd + (2.0 + low_copy) * ad) * tokens;
                key_value_bytes = 4.0 * gd;
                output_dim = ad;
                shape = (a.head_dim as f64, a.head_dim as f64);
            }
            Mixer::Latent(a) => {
                heads = a.heads.div_ceil(tp);
                window = None;
                self.latent(c, a, p, kept, modules, shapes);
                key_value_bytes = 2.0 * heads as f64 * (a.qk_nope_dim + a.qk_rope_dim + a.v_dim) as f64;
                output_dim = (heads * a.v_dim) as f64;
                shape = ((a.qk_nope_dim + a.qk_rope_dim) as f64, a.v_dim as f64);
            }
            Mixer::Mamba2(_) | Mixer::None => return,
        }
        // After a head exchange a rank holds fewer heads over the whole sequence; otherwise all of its
        // heads for its share of the queries. The work is the same.
        let (queries, local_heads) = match (c.key.context_parallel > 1, c.key.context_comm) {
            (true, ContextComm::AllToAll) => (tokens * c.cp, heads as f64 / c.cp),
            _ => (tokens, heads as f64),
        };
        // Scores in memory are computed whole and masked, whatever is packed into the sequence.
        let packed = self.job.packed.as_ref().filter(|_| in_memory.is_none());
        let window = window.filter(|_| in_memory.is_none());
        let (seen, length) = attention_extent(reach, packed, window, AttentionCount::Causal);
        let (mut forward, mut backward) = self.device.attention(&AttentionShape {
            queries,
            seen,
            length,
            heads: local_heads,
            key_dim: shape.0,
            value_dim: shape.1,
        });
        if c.key.context_parallel > 1 {
            if c.key.context_comm == ContextComm::Ring {
                let loss = 1.0 + RING_LOSS * c.cp.log2();
                forward *= loss;
                backward *= loss;
            }
            let (f, b) = self.context_parallel(
                c,
                key_value_bytes * tokens,
                shape.0 * heads as f64 * tokens * 2.0,
                output_dim * tokens * 2.0,
                (forward, backward),
            );
            p.forward.add(Item::ContextParallel, f);
            p.backward.add(Item::ContextParallel, b);
            if c.key.context_comm == ContextComm::AllToAll {
                kept.local += 2.0 * output_dim * tokens;
            }
        }
        if self.profile.memory.output_reordered && c.key.micro_batch_size > 1 {
            kept.local += 2.0 * output_dim * tokens;
        }
        p.forward.add(Item::Attention, forward);
        p.backward.add(Item::Attention, backward);
        // Scores in memory, or the statistics of a fused kernel.
        let of_a_head = in_memory.map_or(4.0, |scores| scores.kept * sequence as f64 / c.cp);
        let scores = of_a_head * heads as f64;
        kept.local += scores * tokens;
        modules.push((Module::CoreAttention, forward, scores * tokens));
    }

    /// Projections of multi-head latent attention. Down projections are replicated over tensor-parallel
    /// ranks and work on the sequence share where there is one.
    pub(super) fn latent(
        &self,
        c: &Cell,
        a: &LatentAttention,
        p: &mut Passes,
        kept: &mut Kept,
        modules: &mut Vec<(Module, f64, f64)>,
        shapes: &mut Vec<(u64, u64)>,
    ) {
        let h = self.model.hidden;
        let tp = u64::from(c.key.tensor_parallel);
        let heads = a.heads.div_ceil(tp);
        let low = self.low.is_some();
        let (tokens, shared) = (c.tokens, c.tokens / c.split as f64);
        let qk = a.qk_nope_dim + a.qk_rope_dim;
        let mut up = Passes::default();
        let mut norm_width = a.kv_lora_rank;
        match a.q_lora_rank {
            Some(rank) => {
                self.adapted(shared, rank as f64, h as f64, low, p);
                shapes.push((rank, h));
                self.adapted(tokens, (heads * qk) as f64, rank as f64, low, &mut up);
                shapes.push((heads * qk, rank));
                self.quantise((h + rank) as f64 * shared, (heads * qk) as f64 * tokens, p);
                kept.hidden += 4.0 * rank as f64;
                norm_width += rank;
            }
            None => {
                self.adapted(tokens, (heads * qk) as f64, h as f64, low, &mut up);
                shapes.push((heads * qk, h));
                self.quantise(h as f64 * shared, (heads * qk) as f64 * tokens, p);
            }
        }
        let compressed = a.kv_lora_rank + a.qk_rope_dim;
        self.adapted(shared, compressed as f64, h as f64, low, p);
        shapes.push((compressed, h));
        let expanded = heads * (a.qk_nope_dim + a.v_dim);
        self.adapted(tokens, expanded as f64, a.kv_lora_rank as f64, low, &mut up);
        shapes.push((expanded, a.kv_lora_rank));
        self.quantise(a.kv_lora_rank as f64 * shared, expanded as f64 * tokens, p);
        kept.hidden += 2.0 * compressed as f64 + 2.0 * a.kv_lora_rank as f64;
        kept.hidden += self.profile.memory.norm_kept * norm_width as f64;
        // Rotation, split, concatenation and the copies of up projections.
        let assembly = 8.0 * (2 * qk + a.v_dim) as f64 * heads as f64 * tokens;
        up.forward.add(Item::ElementWise, self.device.stream(assembly, 4.0));
        up.backward.add(Item::ElementWise, self.device.stream(1.5 * assembly, 6.0));
        let norms = norm_width as f64 * shared * self.profile.kernels.norm_traffic.get(self.architecture());
        p.forward.add(Item::ElementWise, self.device.stream(4.0 * norms, 2.0));
        p.backward.add(Item::ElementWise, self.device.stream(8.0 * norms, 4.0));
        self.row(c, a.heads * a.v_dim, p, shapes);
        let saved = 2.0 * (heads * (2 * qk + a.v_dim)) as f64 * tokens;
        kept.local += saved + 2.0 * (heads * a.v_dim) as f64 * tokens;
        modules.push((Module::MlaUpProjection, up.forward.total(), saved));
        self.add(p, &up);
    }

    /// The chunked scan of Mamba-2, its convolution and its gated norm.
    pub(super) fn scan(&self, c: &Cell, a: &crate::spec::model::Mamba2, p: &mut Passes) {
        let local = c.tokens / c.tp;
        let elements = a.inner as f64 * local;
        let forward = self.device.stream(SCAN_BYTES * elements, 8.0);
        p.forward.add(Item::Attention, forward);
        p.backward.add(Item::Attention, 2.5 * forward);
    }

    /// Exposed time of context-parallel communication, forward and backward.
    /// `key_values`, `queries`, `outputs`: local bytes of those tensors.
    pub(super) fn context_parallel(
        &self,
        c: &Cell,
        key_values: f64,
        queries: f64,
        outputs: f64,
        attention: (f64, f64),
    ) -> (f64, f64) {
        let f = &self.fabric;
        let group = &c.context_group;
        match c.key.context_comm {
            ContextComm::Ring => {
                let step = f.all_gather(group, key_values * c.cp);
                let hidden = (c.cp - 1.0) / c.cp;
                ((step - attention.0 * hidden).max(0.0), (2.0 * step - attention.1 * hidden).max(0.0))
            }
            ContextComm::AllGather => {
                let gather = f.all_gather(group, key_values * c.cp);
                // The backward pass gathers again and reduce-scatters the gradients.
                (gather, 2.0 * gather)
            }
            ContextComm::AllToAll => {
                let exchange = |bytes: f64| f.all_to_all(group, bytes);
                let all = exchange(queries) + exchange(outputs) + 2.0 * exchange(key_values / 2.0);
                (all, all)
            }
        }
    }
}
