//! Parameters of a rank, working sets, and activations that go to the host.

use super::{Adapted, Cell, CostModel};
use crate::cost::{Item, LayerCost, LocalParameters, OffloadedInput, StateClass, Times};
use crate::frameworks::profile::EagerScores;
use crate::layers::LayerKind;
use crate::spec::job::Training;
use crate::spec::model::{Block, FeedForward, Mixer, QkNorm};
use crate::units::{Bytes, Picos, Seconds};

/// Share of a layer's forward (backward) pass under which offloaded activations move for free.
const OFFLOAD_HIDDEN_SHARE: f64 = 0.9;

impl CostModel<'_> {
    pub(super) fn local_parameters(&self, c: &Cell, kind: &LayerKind) -> LocalParameters {
        let tp = u64::from(c.key.tensor_parallel);
        let (ep, etp) = (u64::from(c.key.expert_parallel), u64::from(c.key.expert_tensor_parallel));
        let p = &kind.parameters;
        let h = self.model.hidden;
        let mut dense = p.sharded.div_ceil(tp);
        // Replicated matrices follow the recipe of linear layers; norms, routers and biases do not.
        let mut linear = 0;
        let (mut inputs_outputs, mut expert_adapters) = (0, 0);
        let mut query_key_value = 0;
        match &kind.block.mixer {
            Mixer::Attention(a) => {
                // Fewer key/value heads than ranks: each rank holds a whole one, with its biases and norms.
                let bias = u64::from(a.qkv_bias);
                let norm = u64::from(a.qk_norm == QkNorm::Full);
                let head = (2 * (h + bias) + norm) * a.head_dim;
                dense += (head * (a.kv_heads.div_ceil(tp) * tp - a.kv_heads)).div_ceil(tp);
                let (q, k) = (a.heads * a.head_dim, a.kv_heads * a.head_dim);
                query_key_value = h + q + 2 * k;
                inputs_outputs += h + q + 2 * k + q + h;
            }
            Mixer::Latent(a) => {
                linear += a.q_lora_rank.unwrap_or(0) * h + (a.kv_lora_rank + a.qk_rope_dim) * h;
                let qk = a.heads * (a.qk_nope_dim + a.qk_rope_dim);
                // Down and up projection of the queries, or a plain one.
                inputs_outputs += a.q_lora_rank.map_or(h + qk, |rank| h + rank + rank + qk);
                inputs_outputs += h + a.kv_lora_rank + a.qk_rope_dim;
                inputs_outputs += a.kv_lora_rank + a.heads * (a.qk_nope_dim + a.v_dim);
                inputs_outputs += a.heads * a.v_dim + h;
            }
            Mixer::Mamba2(a) => {
                inputs_outputs += h + 2 * a.inner + 2 * a.groups * a.state + a.heads + a.inner + h
            }
            Mixer::None => {}
        }
        match &kind.block.feed_forward {
            FeedForward::Dense(d) => {
                inputs_outputs += h + (d.activation.matrices() - 1) * d.width + d.width + h;
            }
            FeedForward::Moe(e) => {
                let width = e.latent_width.unwrap_or(h);
                if e.latent_width.is_some() {
                    linear += 2 * h * width;
                    inputs_outputs += 2 * (h + width);
                }
                if e.shared_width > 0 {
                    inputs_outputs += h + (e.activation.matrices() - 1) * e.shared_width + e.shared_width + h;
                }
                expert_adapters =
                    e.experts * (width + (e.activation.matrices() - 1) * e.width + e.width + width);
            }
            FeedForward::None => {}
        }
        let mut local = LocalParameters::default();
        let expert = p.expert.div_ceil(ep * etp);
        match self.job.training {
            Training::Full => {
                local.0[StateClass::Dense as usize] = dense + linear;
                local.0[StateClass::Ends as usize] = p.replicated - linear;
                local.0[StateClass::Expert as usize] = expert;
            }
            Training::Lora { rank } => {
                let rank = u64::from(rank);
                if self.adapted == Adapted::QueryKeyValue {
                    (inputs_outputs, expert_adapters) = (query_key_value, 0);
                }
                local.0[StateClass::Frozen as usize] = dense + p.replicated + expert;
                local.0[StateClass::Dense as usize] = rank * inputs_outputs.div_ceil(tp);
                local.0[StateClass::Expert as usize] = rank * expert_adapters.div_ceil(ep * etp);
            }
        }
        local
    }

    /// Bytes that the backward pass of one layer needs beyond what is kept, at its worst operator: the
    /// gradients of a gated activation's inputs while the inputs are still there, attention's gradients
    /// with an FP32 accumulator for the queries, or the exchanged and permuted gradients of routed
    /// tokens; and the gradient of the residual stream.
    pub(super) fn working_set(&self, c: &Cell, block: &Block) -> f64 {
        let h = self.model.hidden as f64;
        let shared = c.tokens / c.split as f64;
        let local = c.tokens / c.tp;
        let feed_forward = match &block.feed_forward {
            FeedForward::Dense(d) => 2.0 * (d.activation.matrices() - 1) as f64 * d.width as f64 * local,
            FeedForward::Moe(e) => {
                let etp = f64::from(c.key.expert_tensor_parallel);
                let copies = self.imbalance(e) * e.top_k as f64 * shared * etp;
                let width = e.latent_width.map_or(h, |w| w as f64);
                copies * (6.0 * width + 6.0 * e.width as f64 / etp)
            }
            FeedForward::None => 0.0,
        };
        let mixer = match &block.mixer {
            Mixer::Attention(a) => {
                ((8 * a.heads + 4 * a.kv_heads) as f64 * a.head_dim as f64 + self.working_scores(c, a.heads))
                    * local
            }
            Mixer::Latent(a) => {
                let qk = (a.qk_nope_dim + a.qk_rope_dim) as f64;
                (a.heads as f64 * (8.0 * qk + 4.0 * a.v_dim as f64) + self.working_scores(c, a.heads)) * local
            }
            Mixer::Mamba2(a) => 8.0 * a.inner as f64 * local,
            Mixer::None => 0.0,
        };
        feed_forward.max(mixer) + 2.0 * h * shared
    }

    /// Bytes per token of gradients of scores in memory, of so many heads.
    pub(super) fn working_scores(&self, c: &Cell, heads: u64) -> f64 {
        let of_a_head = |scores: EagerScores| scores.working * f64::from(self.job.sequence_length) / c.cp;
        self.device.scores().map_or(0.0, of_a_head) * heads as f64
    }

    /// Norms whose output goes to the host with what attention keeps; a parallel feed-forward part reads the same one.
    pub(super) fn moved_norms(&self, block: &Block, before: f64) -> f64 {
        let attends = matches!(block.mixer, Mixer::Attention(_) | Mixer::Latent(_));
        if attends && !block.parallel { before.min(1.0) } else { 0.0 }
    }

    pub(super) fn offload_activations(&self, cost: &mut LayerCost, bytes: Bytes, floor: bool) {
        let link = self.accelerator.host_link.0;
        cost.offloaded = bytes;
        let moved = bytes.0 as f64 / link;
        if floor {
            // How the passes divide is not known; their exposed transfers together are least at halves.
            let half = 0.5 * (cost.forward.total() + cost.backward.total()).seconds().0;
            let exposed = 2.0 * (moved - OFFLOAD_HIDDEN_SHARE * half).max(0.0);
            cost.backward.add(Item::Offload, Seconds(exposed).picos());
            cost.kept = cost.kept - bytes;
            return;
        }
        let hidden = |times: &Times| OFFLOAD_HIDDEN_SHARE * times.total().seconds().0;
        let forward = (moved - hidden(&cost.forward)).max(0.0);
        let backward = (moved - hidden(&cost.backward)).max(0.0);
        cost.forward.add(Item::Offload, Seconds(forward).picos());
        cost.backward.add(Item::Offload, Seconds(backward).picos());
        cost.kept = cost.kept - bytes;
    }

    /// Of layers that are recomputed together, the input goes to the host.
    pub(super) fn offload_inputs(&self, cost: &mut LayerCost, floor: bool) {
        let bytes = cost.full_kept;
        // Of a floor it is not known how the passes divide.
        let hidden = if floor {
            Picos(u64::MAX)
        } else {
            Seconds(OFFLOAD_HIDDEN_SHARE * cost.forward.total().seconds().0).picos()
        };
        let moved = Seconds(bytes.0 as f64 / self.accelerator.host_link.0).picos();
        cost.full_offloaded = OffloadedInput { bytes, moved, hidden };
        cost.full_kept = Bytes::ZERO;
    }
}
