//! Collectives of tensor parallelism.

use super::{Cell, CostModel, Passes, REDUCE_INTERFERENCE, Work};
use crate::cost::Item;
use crate::spec::model::{Block, FeedForward, Mixer};

impl CostModel<'_> {
    /// Full tensor of a tensor-parallel collective, gathers in the operand format.
    pub(super) fn tensor_payload(&self, c: &Cell) -> (f64, f64) {
        let elements = self.model.hidden as f64 * c.tokens;
        (self.input_bytes() * elements, 2.0 * elements)
    }

    /// Adds the exposed forward collectives of `parts` parts of a layer.
    pub(super) fn add_tensor_collectives(&self, c: &Cell, work: &mut Work, parts: f64) {
        if c.key.tensor_parallel < 2 {
            return;
        }
        let t = &self.profile.tensor;
        let (gathered, reduced) = self.tensor_payload(c);
        let one = if c.key.sequence_parallel {
            let both = self.fabric.all_gather(&c.tensor_group, gathered)
                + self.fabric.all_gather(&c.tensor_group, reduced);
            let synchronous = t.synchronous_factor.get(self.architecture());
            if c.key.tensor_overlap {
                t.overlapped_exposed * both
            } else if synchronous > 0.0 {
                synchronous * both
            } else {
                both
            }
        } else {
            t.all_reduce_factor * self.fabric.all_reduce(&c.tensor_group, reduced)
        };
        work.add(Item::TensorParallel, parts * one);
    }

    pub(super) fn tensor_parallel(&self, c: &Cell, block: &Block, p: &mut Passes) {
        if c.key.tensor_parallel < 2 {
            return;
        }
        let t = &self.profile.tensor;
        let parts = tensor_parts(block);
        self.add_tensor_collectives(c, &mut p.forward, parts);
        let (gathered, reduced) = self.tensor_payload(c);
        let backward = if c.key.sequence_parallel {
            let gather = self.fabric.all_gather(&c.tensor_group, gathered);
            let scatter = self.fabric.all_gather(&c.tensor_group, reduced);
            let synchronous = t.synchronous_factor.get(self.architecture());
            if c.key.tensor_overlap {
                t.overlapped_exposed * (gather + scatter)
            } else if synchronous > 0.0 {
                synchronous * (2.0 * gather + scatter)
            } else {
                gather + REDUCE_INTERFERENCE * scatter
            }
        } else {
            t.all_reduce_backward * t.all_reduce_factor * self.fabric.all_reduce(&c.tensor_group, reduced)
        };
        p.backward.add(Item::TensorParallel, parts * backward);
    }
}

/// Parts of a block that end in a tensor-parallel reduction: parallel blocks share one, routed experts
/// have their own exchange, shared experts reduce.
fn tensor_parts(block: &Block) -> f64 {
    let mixer = f64::from(u8::from(block.mixer != Mixer::None));
    let feed_forward = match &block.feed_forward {
        FeedForward::Dense(_) => 1.0,
        FeedForward::Moe(e) => f64::from(u8::from(e.shared_width > 0)),
        FeedForward::None => 0.0,
    };
    if block.parallel { mixer.max(feed_forward) } else { mixer + feed_forward }
}
