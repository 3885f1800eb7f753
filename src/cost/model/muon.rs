//! What Muon does at the update beside passing states through memory: it makes the momentum of every matrix orthogonal.

use crate::cost::compute::{Device, Product};
use crate::layers::Layers;
use crate::spec::model::{Block, FeedForward, Mixer};

/// Newton-Schulz iterations of one update (Jordan et al. 2024; `--muon-num-ns-steps`,
/// Megatron-LM:megatron/training/arguments.py; DeepSpeed:deepspeed/runtime/zero/muon/original_muon.py).
const ITERATIONS: f64 = 5.0;

/// The matrices of one class of states, of all layers together.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Orthogonal {
    /// Seconds of all of them, one after the other.
    seconds: f64,
    /// Seconds of the largest: a matrix is one rank's work.
    longest: f64,
    /// Parameters of matrices that tensor-parallel ranks split, and of those that each has whole.
    split: f64,
    whole: f64,
}

impl Orthogonal {
    /// Those outside routed experts, and those of the experts.
    pub fn of(layers: &Layers, hidden: u64, device: &Device) -> [Self; 2] {
        let mut sums = [Self::default(); 2];
        for (kind, &count) in layers.kinds.iter().zip(&layers.counts) {
            for (of, number, (rows, columns)) in matrices(&kind.block, hidden) {
                let (number, seconds) = (number as f64 * f64::from(count), seconds(device, rows, columns));
                let sum = &mut sums[usize::from(of == Of::Experts)];
                sum.seconds += number * seconds;
                sum.longest = sum.longest.max(seconds);
                *if of == Of::Replicas { &mut sum.whole } else { &mut sum.split } += number * rows * columns;
            }
        }
        sums
    }

    /// Seconds a parameter that a rank holds of an average one of so many parts of the model, where tensor parallelism splits
    /// matrices and each of its ranks works on whole ones, if so many ranks share them; and the share of what it holds that is
    /// split.
    pub fn per_parameter(&self, parts: u32, tensor: u32, ranks: u32) -> (f64, f64) {
        let split = self.split / f64::from(tensor);
        let held = split + self.whole;
        if held == 0.0 {
            return (0.0, 0.0);
        }
        let part = self.seconds / f64::from(parts);
        let share = (part / f64::from(ranks)).max(self.longest.min(part));
        (share * f64::from(parts) / held, split / held)
    }
}

/// Seconds of one matrix: with `m` the lesser side, products of `m x n` with its transpose, of that with itself, and of both
/// with the matrix, `4 m^2 n + 2 m^3` FLOPs an iteration.
fn seconds(device: &Device, rows: f64, columns: f64) -> f64 {
    let (m, n) = (rows.min(columns), rows.max(columns));
    let product = |columns: f64, inner: f64| {
        let product = Product { rows: m, columns, inner, groups: 1.0, operand_bytes: 2.0, result_bytes: 2.0 };
        device.product(&product, false)
    };
    ITERATIONS * (product(m, n) + product(m, m) + product(n, m))
}

/// Whose matrices they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Of {
    Experts,
    /// All else that tensor parallelism splits.
    Split,
    /// What every tensor-parallel rank has whole.
    Replicas,
}

/// Matrices of a layer: whose they are, how many, and their sides. Queries, keys and values are
/// matrices of their own (`muon_split_qkv`), the halves of a gated layer are not.
fn matrices(block: &Block, hidden: u64) -> Vec<(Of, u64, (f64, f64))> {
    let mut list = Vec::new();
    let mut add = |of: Of, number: u64, rows: u64, columns: u64| {
        if number * rows * columns > 0 {
            list.push((of, number, (rows as f64, columns as f64)));
        }
    };
    match &block.mixer {
        Mixer::Attention(a) => {
            add(Of::Split, 2, a.heads * a.head_dim, hidden);
            add(Of::Split, 2, a.kv_heads * a.head_dim, hidden);
        }
        Mixer::Latent(a) => {
            let queries = a.heads * (a.qk_nope_dim + a.qk_rope_dim);
            match a.q_lora_rank {
                Some(rank) => {
                    add(Of::Replicas, 1, rank, hidden);
                    add(Of::Split, 1, queries, rank);
                }
                None => add(Of::Split, 1, queries, hidden),
            }
            add(Of::Replicas, 1, a.kv_lora_rank + a.qk_rope_dim, hidden);
            add(Of::Split, 1, a.heads * (a.qk_nope_dim + a.v_dim), a.kv_lora_rank);
            add(Of::Split, 1, a.heads * a.v_dim, hidden);
        }
        Mixer::Mamba2(a) => {
            add(Of::Split, 1, 2 * (a.inner + a.groups * a.state) + a.heads, hidden);
            add(Of::Split, 1, a.inner, hidden);
        }
        Mixer::None => {}
    }
    match &block.feed_forward {
        FeedForward::Dense(d) => {
            add(Of::Split, 1, (d.activation.matrices() - 1) * d.width, hidden);
            add(Of::Split, 1, d.width, hidden);
        }
        FeedForward::Moe(e) => {
            let (width, into) = (e.latent_width.unwrap_or(hidden), e.activation.matrices() - 1);
            add(Of::Experts, e.experts, into * e.width, width);
            add(Of::Experts, e.experts, e.width, width);
            add(Of::Split, 1, into * e.shared_width, hidden);
            add(Of::Split, 1, e.shared_width, hidden);
            if e.latent_width.is_some() {
                add(Of::Replicas, 2, width, hidden);
            }
        }
        FeedForward::None => {}
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec;
    use crate::spec::cluster::{AttentionKernel, Format};

    /// Llama 3.1 8B: by hand 20.1 TFLOP a layer, so on an H100, which sustains some 600 to 800 TFLOP/s, 0.8 to 1.1 s for all 32,
    /// a fourth of it on each of four ranks; and no rank has less than the largest matrix.
    #[test]
    fn matrices_take_what_their_products_do() {
        let machine = spec::load_cluster("dgx-h100").unwrap();
        let model = spec::load_model("llama3.1-8b").unwrap();
        let device = Device::new(&machine.accelerator, Format::Bf16, 1.0, AttentionKernel::Flash2, None, 1.0);
        let [dense, experts] = Orthogonal::of(&Layers::new(&model), model.hidden, &device);
        assert_eq!(experts, Orthogonal::default());
        // 4096 x (2 x 4096 + 2 x 1024 + 3 x 14336) a layer.
        let parameters = 32.0 * 218_103_808.0;
        assert_eq!((dense.split, dense.whole), (parameters, 0.0));
        assert!((0.8..1.1).contains(&dense.seconds), "{}", dense.seconds);
        let taken = |tensor, ranks| {
            let (each, split) = dense.per_parameter(1, tensor, ranks);
            assert_eq!(split, 1.0);
            each * parameters / f64::from(tensor)
        };
        let whole = taken(1, 1);
        // Each of two ranks works on whole matrices.
        assert!((taken(2, 1) - whole).abs() < 1e-12);
        assert!((whole - dense.seconds).abs() < 1e-12);
        let quarter = taken(1, 4);
        assert!((4.0 * quarter - whole).abs() < 1e-9);
        let least = taken(1, 100_000);
        assert!((least - dense.longest).abs() < 1e-12, "{least}");
    }
}
