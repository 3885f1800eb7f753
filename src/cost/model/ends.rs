//! Embedding, head and loss, and modules that predict further tokens.

use super::{Cell, CostModel, Passes, REDUCE_INTERFERENCE, Trunk};
use crate::cost::{EndCost, Further, Item, LayerCost, LocalParameters, StateClass, Times};
use crate::layers::{embedding_parameters, embedding_width, head_parameters, norm_parameters};
use crate::units::{Bytes, Seconds};

impl CostModel<'_> {
    pub(super) fn embedding(&self, c: &Cell) -> EndCost {
        let h = self.model.hidden as f64;
        let mut p = Passes::default();
        p.forward.add(Item::ElementWise, self.device.stream(6.0 * h * c.tokens, 2.0));
        p.backward.add(Item::ElementWise, self.device.stream(10.0 * h * c.tokens, 2.0));
        if self.model.embedding_norm {
            p.forward.add(Item::ElementWise, self.device.stream(4.0 * h * c.tokens / c.split as f64, 1.0));
            p.backward.add(Item::ElementWise, self.device.stream(8.0 * h * c.tokens / c.split as f64, 1.0));
        }
        let mut shapes = Vec::new();
        let width = embedding_width(self.model);
        if width != self.model.hidden {
            self.linear(c.tokens / c.split as f64, h, width as f64, false, &mut p);
            shapes.push((self.model.hidden, width));
        }
        if c.key.tensor_parallel > 1 {
            let (_, payload) = self.tensor_payload(c);
            let time = if c.key.sequence_parallel {
                self.fabric.all_gather(&c.tensor_group, payload)
            } else {
                self.fabric.all_reduce(&c.tensor_group, payload)
            };
            p.forward.add(Item::TensorParallel, time);
            if c.key.sequence_parallel {
                p.backward.add(Item::TensorParallel, time);
            }
        }
        let tp = u64::from(c.key.tensor_parallel);
        let table = self.model.padded_vocabulary(tp) * width;
        let rest = embedding_parameters(self.model, self.model.vocabulary) - self.model.vocabulary * width;
        let mut parameters = LocalParameters::default();
        parameters.0[self.base_class(StateClass::Ends) as usize] += table / tp + rest;
        p.backward.add(Item::ElementWise, self.gradient_addition(&parameters));
        EndCost {
            forward: p.forward.times(),
            backward: p.backward.times(),
            weight_gradient: Seconds(p.weight).picos(),
            kept: Bytes::from_f64(2.0 * h * c.tokens / c.split as f64 + 8.0 * c.tokens),
            parameters,
            weight_shapes: self.pooled(shapes),
            ..EndCost::default()
        }
    }

    /// A base weight's class: frozen under LoRA.
    pub(super) fn base_class(&self, class: StateClass) -> StateClass {
        if self.training_base() { class } else { StateClass::Frozen }
    }

    /// Final norm, head and loss of one prediction.
    pub(super) fn head_passes(&self, c: &Cell) -> Passes {
        let h = self.model.hidden as f64;
        let tp = u64::from(c.key.tensor_parallel);
        let width = embedding_width(self.model) as f64;
        let vocabulary = self.model.padded_vocabulary(tp) as f64;
        let local = vocabulary / c.tp;
        let mut p = Passes::default();
        let elements =
            h * c.tokens / c.split as f64 * self.profile.kernels.norm_traffic.get(self.architecture());
        p.forward.add(Item::ElementWise, self.device.stream(4.0 * elements, 1.0));
        p.backward.add(Item::ElementWise, self.device.stream(8.0 * elements, 2.0));
        if width != h {
            self.linear(c.tokens / c.split as f64, width, h, false, &mut p);
        }
        self.linear(c.tokens, local, width, false, &mut p);
        let (forward, backward) = self.profile.loss(self.release).0;
        let logits = c.tokens * if self.profile.kernels.loss_gathered { vocabulary } else { local };
        p.forward.add(Item::ElementWise, self.device.stream(forward * logits, 4.0));
        p.backward.add(Item::ElementWise, self.device.stream(backward * logits, 2.0));
        if c.key.tensor_parallel > 1 {
            let g = &c.tensor_group;
            let payload = 2.0 * h * c.tokens;
            if c.key.sequence_parallel {
                let gather = self.fabric.all_gather(g, payload);
                p.forward.add(Item::TensorParallel, gather);
                // Re-gather under the data gradient, reduce-scatter under the weight gradient.
                let synchronous = self.profile.tensor.synchronous_factor.get(self.architecture());
                let factor = if synchronous > 0.0 { 2.0 * synchronous } else { REDUCE_INTERFERENCE };
                p.backward.add(Item::TensorParallel, factor * gather);
            } else {
                p.backward.add(Item::TensorParallel, self.fabric.all_reduce(g, payload));
            }
            p.forward.add(Item::TensorParallel, 3.0 * self.fabric.all_reduce(g, 4.0 * c.tokens));
            if self.profile.kernels.loss_gathered {
                p.forward.add(Item::TensorParallel, self.fabric.all_gather(g, 2.0 * c.tokens * vocabulary));
            }
        }
        p
    }

    /// The head with the modules that predict further tokens, and, if there are some, the modules and the head with
    /// the losses of all predictions, each on its own.
    ///
    /// Megatron computes all losses on the last stage, whichever has the modules
    /// (Megatron-LM:megatron/core/models/gpt/gpt_model.py `_postprocess`).
    pub(super) fn head(
        &self,
        c: &Cell,
        layers: &[LayerCost],
        trunk: &Trunk,
    ) -> (EndCost, Option<[EndCost; 2]>) {
        let h = self.model.hidden as f64;
        let tp = u64::from(c.key.tensor_parallel);
        let width = embedding_width(self.model);
        let vocabulary = self.model.padded_vocabulary(tp);
        let local = vocabulary as f64 / c.tp;
        let m = &self.profile.memory;
        let (loss_bytes, logit_bytes) = self.profile.loss(self.release);
        let mut head = trunk.head;
        let logits = c.tokens
            * if m.logits_gathered && tp > 1 {
                // The gathered FP32 loss stands beside the local BF16 logits.
                logit_bytes * vocabulary as f64 + 2.0 * local
            } else {
                logit_bytes * local
            };
        // The head's backward pass: its gathered input and the input's gradient before and after the
        // reduction, or the gradient alone where nothing is gathered.
        let stream = 2.0 * h * c.tokens;
        let gradient = if c.split > 1 && !c.floor { 2.0 * stream + stream / c.split as f64 } else { stream };
        let mut parameters = LocalParameters::default();
        let own = head_parameters(self.model, vocabulary);
        let matrix = if self.model.tied_embeddings { 0 } else { vocabulary * width };
        let bias = if self.model.head_bias { vocabulary } else { 0 };
        parameters.0[self.base_class(StateClass::Ends) as usize] +=
            (matrix + bias) / tp + (own - matrix - bias);
        head.backward.add(Item::ElementWise, self.gradient_addition(&parameters));
        let mut shapes = vec![((vocabulary / tp), width)];
        if width != self.model.hidden {
            shapes.push((width, self.model.hidden));
        }
        let alone = EndCost {
            forward: head.forward.times(),
            backward: head.backward.times(),
            weight_gradient: Seconds(head.weight).picos(),
            // Input and output of the final norm.
            kept: Bytes::from_f64(4.0 * h * c.tokens / c.split as f64),
            transient: Bytes::from_f64(logits + gradient),
            parameters,
            ..EndCost::default()
        };
        let Some((kind, modules)) = self.layers.mtp else {
            return (EndCost { weight_shapes: self.pooled(shapes), ..alone }, None);
        };
        let (layer, own) = (&layers[kind as usize], &trunk.mtp);
        let (count, shared) = (u64::from(modules), c.tokens / c.split as f64);
        let hidden = self.model.hidden;
        let mut parameters = LocalParameters::default().plus(&layer.parameters, count);
        parameters.0[self.base_class(StateClass::Dense) as usize] += count * 2 * hidden * hidden / tp;
        parameters.0[self.base_class(StateClass::Ends) as usize] += count * 3 * norm_parameters(self.model);
        let mut own_shapes = vec![(hidden / tp, 2 * hidden)];
        own_shapes.extend(layer.weight_shapes.iter().copied());
        let modules = EndCost {
            forward: Times::default().plus(&layer.forward, count).plus(&own.forward.times(), count),
            backward: Times::default().plus(&layer.backward, count).plus(&own.backward.times(), count),
            weight_gradient: (layer.weight_gradient + Seconds(own.weight).picos()) * count,
            further: true,
            parameters,
            weight_shapes: self.pooled(own_shapes.clone()),
            ..EndCost::default()
        };
        // The loss of every depth keeps the stream that it gets, and a softmax.
        let stream = Bytes::from_f64(2.0 * h * shared);
        let softmax = if loss_bytes.0 > 10.0 { 4.0 } else { 2.0 };
        let losses = EndCost {
            forward: alone.forward.plus(&head.forward.times(), count),
            backward: alone.backward.plus(&head.backward.times(), count),
            weight_gradient: alone.weight_gradient * (1 + count),
            kept: alone.kept + (stream + Bytes::from_f64(softmax * c.tokens * local)) * count,
            weight_shapes: self.pooled(shapes.clone()),
            ..alone
        };
        shapes.extend(own_shapes);
        let both = EndCost {
            forward: losses.forward.plus(&modules.forward, 1),
            backward: losses.backward.plus(&modules.backward, 1),
            weight_gradient: losses.weight_gradient + modules.weight_gradient,
            kept: losses.kept,
            transient: losses.transient,
            further: true,
            parameters: losses.parameters.plus(&modules.parameters, 1),
            weight_shapes: self.pooled(shapes),
        };
        // With the head, the stream that modules get is the one that the head or the module before keeps.
        let modules = EndCost { kept: stream * count, ..modules };
        (both, Some([modules, losses]))
    }

    /// Modules that predict further tokens, as far as it depends on what layers recompute.
    pub(super) fn further(&self, c: &Cell, trunk: &Trunk) -> Option<Further> {
        let (kind, modules) = self.layers.mtp?;
        let stream = 2.0 * self.model.hidden as f64 * c.tokens / c.split as f64;
        Some(Further {
            kind: kind as usize,
            modules: u64::from(modules),
            recomputed: self.profile.memory.further_recomputed,
            full_extra: trunk.mtp.forward.times(),
            kept: Bytes::from_f64(4.0 * stream),
            full_kept: Bytes::from_f64(stream),
        })
    }

    /// The input table's copy on another stage, where the head is tied to it or multi-token
    /// prediction embeds again.
    pub(super) fn tied_copy(&self, c: &Cell) -> LocalParameters {
        let tp = u64::from(c.key.tensor_parallel);
        let mut parameters = LocalParameters::default();
        if self.model.tied_embeddings || self.layers.mtp.is_some() {
            let table = self.model.padded_vocabulary(tp) * embedding_width(self.model) / tp;
            parameters.0[self.base_class(StateClass::Ends) as usize] = table;
        }
        parameters
    }
}
