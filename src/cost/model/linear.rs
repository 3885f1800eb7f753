//! Linear layers, their adapters, and what quantising costs.

use super::{Adapted, Cell, CostModel, Passes};
use crate::cost::Item;
use crate::cost::compute::Product;
use crate::memory;
use crate::spec::job::Training;

impl CostModel<'_> {
    /// A linear layer of `groups` problems: forward, data gradient and weight gradient. `tokens` rows
    /// meet a weight of `outputs x inputs` on this rank. Quantisation is added where the format needs
    /// it: the input forward, the output's gradient backward, over as many elements as each has here.
    pub(super) fn linear(&self, tokens: f64, outputs: f64, inputs: f64, low: bool, p: &mut Passes) {
        let bytes = if low { self.input_bytes() } else { 2.0 };
        let product = |rows, columns, inner, result_bytes| Product {
            rows,
            columns,
            inner,
            groups: 1.0,
            operand_bytes: bytes,
            result_bytes,
        };
        let d = &self.device;
        p.forward.add(Item::Gemm, d.product(&product(tokens, outputs, inputs, 2.0), low));
        p.backward.add(Item::Gemm, d.product(&product(tokens, inputs, outputs, 2.0), low));
        if self.training_base() {
            let result = self.weight_gradient_bytes();
            let weight = d.product(&product(outputs, inputs, tokens, result), low);
            p.backward.add(Item::Gemm, weight);
            p.weight += weight;
        }
    }

    /// A linear layer of a block that is whole on this rank, and its adapter.
    pub(super) fn adapted(&self, tokens: f64, outputs: f64, inputs: f64, low: bool, p: &mut Passes) {
        self.linear(tokens, outputs, inputs, low, p);
        self.adapter(tokens, outputs, inputs, p);
    }

    /// What an adapter adds to a linear layer: two thin BF16 products into and out of its rank, with the gradients of their
    /// data and weights, and the sum with the layer's own result, and of both gradients of the input
    /// (NVIDIA-NeMo/Megatron-Bridge:src/megatron/bridge/peft/lora_layers.py). `outputs` and `inputs` are its shares of this rank.
    pub(super) fn adapter(&self, tokens: f64, outputs: f64, inputs: f64, p: &mut Passes) {
        if self.adapted == Adapted::AllLinear {
            self.adapter_products(tokens, outputs, inputs, p);
        }
    }

    pub(super) fn adapter_products(&self, tokens: f64, outputs: f64, inputs: f64, p: &mut Passes) {
        let Training::Lora { rank } = self.job.training else { return };
        let (rank, d) = (f64::from(rank), &self.device);
        for (outputs, inputs) in [(rank, inputs), (outputs, rank)] {
            let [forward, data, weight] = thin(tokens, outputs, inputs, 1.0).map(|p| d.product(&p, false));
            p.forward.add(Item::Gemm, forward);
            p.backward.add(Item::Gemm, data + weight);
            p.weight += weight;
        }
        p.forward.add(Item::ElementWise, d.stream(6.0 * outputs * tokens, 1.0));
        p.backward.add(Item::ElementWise, d.stream(6.0 * inputs * tokens, 1.0));
    }

    /// The rank of adapters that have collectives of their own.
    pub(super) fn gathering_adapters(&self, c: &Cell) -> Option<f64> {
        match self.job.training {
            Training::Lora { rank } => Some(f64::from(rank)),
            Training::Full => None,
        }
        .filter(|_| self.profile.tensor.adapter_collectives && c.key.tensor_parallel > 1)
    }

    /// Collectives of the adapter of a column-parallel layer: its ranks' parts of the thin product are gathered, and their
    /// gradients summed. A layer that gathers its input piece by piece, while it multiplies, leaves the adapter to gather it
    /// again, and to reduce and scatter its gradient (ParallelLinearAdapter and get_adapter_attributes_from_linear of
    /// NVIDIA-NeMo/Megatron-Bridge:src/megatron/bridge/peft/utils.py).
    pub(super) fn column_adapter_collectives(&self, c: &Cell, p: &mut Passes) {
        let Some(rank) = self.gathering_adapters(c) else { return };
        let (f, g) = (&self.fabric, &c.tensor_group);
        let thin = 2.0 * rank * c.tokens;
        let input = match c.key.tensor_overlap {
            true => f.all_gather(g, self.tensor_payload(c).1),
            false => 0.0,
        };
        p.forward.add(Item::TensorParallel, f.all_gather(g, thin) + input);
        p.backward.add(Item::TensorParallel, f.all_reduce(g, thin) + input);
    }

    /// Those of a row-parallel layer's: parts of the thin product are summed, their gradients gathered; results for all hidden
    /// channels are gathered before each rank takes its tokens, whose gradients are gathered back (same file).
    pub(super) fn row_adapter_collectives(&self, c: &Cell, p: &mut Passes) {
        let Some(rank) = self.gathering_adapters(c) else { return };
        let (f, g) = (&self.fabric, &c.tensor_group);
        let thin = 2.0 * rank * c.tokens;
        let result = f.all_gather(g, self.tensor_payload(c).1);
        p.forward.add(Item::TensorParallel, f.all_reduce(g, thin) + result);
        let gradient = if c.key.sequence_parallel { result } else { 0.0 };
        p.backward.add(Item::TensorParallel, f.all_gather(g, thin) + gradient);
    }

    /// Bytes that a weight gradient's product moves per element of the result.
    pub(super) fn weight_gradient_bytes(&self) -> f64 {
        let gradients = memory::states(self.profile, self.job.precision).gradients;
        if self.profile.kernels.fused_gradient_accumulation { 2.0 * gradients } else { 2.0 }
    }

    /// Quantises `inputs` elements forward and `gradients` elements backward.
    pub(super) fn quantise(&self, inputs: f64, gradients: f64, p: &mut Passes) {
        if let Some(low) = self.low {
            p.forward.add(Item::ElementWise, self.device.stream(low.quantise_bytes * inputs, 1.0));
            p.backward.add(Item::ElementWise, self.device.stream(low.quantise_bytes * gradients, 1.0));
        }
    }

    /// A column-parallel linear layer from `hidden` to `outputs` channels in all.
    pub(super) fn column(&self, c: &Cell, outputs: u64, p: &mut Passes, shapes: &mut Vec<(u64, u64)>) {
        let h = self.model.hidden;
        let local = outputs.div_ceil(u64::from(c.key.tensor_parallel));
        self.linear(c.tokens, local as f64, h as f64, self.low.is_some(), p);
        self.adapter(c.tokens, local as f64, h as f64 / c.tp, p);
        if self.adapted == Adapted::AllLinear {
            self.column_adapter_collectives(c, p);
        }
        // With sequence parallelism the input is quantised before it is gathered.
        self.quantise(h as f64 * c.tokens / c.split as f64, local as f64 * c.tokens, p);
        shapes.push((local, h));
    }

    /// A row-parallel linear layer from `inputs` channels in all to `hidden`.
    pub(super) fn row(&self, c: &Cell, inputs: u64, p: &mut Passes, shapes: &mut Vec<(u64, u64)>) {
        let h = self.model.hidden;
        let local = inputs.div_ceil(u64::from(c.key.tensor_parallel));
        self.linear(c.tokens, h as f64, local as f64, self.low.is_some(), p);
        self.adapter(c.tokens, h as f64 / c.tp, local as f64, p);
        if self.adapted == Adapted::AllLinear {
            self.row_adapter_collectives(c, p);
        }
        self.quantise(local as f64 * c.tokens, h as f64 * c.tokens / c.split as f64, p);
        shapes.push((h, local));
    }
}

/// The BF16 products of a thin weight of `outputs x inputs` that `tokens` rows meet: forward, of data and weight gradients.
pub(super) fn thin(tokens: f64, outputs: f64, inputs: f64, groups: f64) -> [Product; 3] {
    let product = |rows, columns, inner| Product {
        rows,
        columns,
        inner,
        groups,
        operand_bytes: 2.0,
        result_bytes: 2.0,
    };
    [product(tokens, outputs, inputs), product(tokens, inputs, outputs), product(outputs, inputs, tokens)]
}
