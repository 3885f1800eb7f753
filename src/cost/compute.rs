//! Time of kernels on one accelerator: matrix products by shape, attention, memory-bound operators.
//!
//! Products follow a tile and wave model joined with a roofline:
//! `compute = 2 M N K groups / (peak sustained) * min over tiles [(1 + soft (q - 1)) pad / tile_efficiency] *
//! (1 + fill / K)`, `memory = bytes / (bandwidth efficiency)`, `time = (compute^x + memory^x)^(1/x)`
//! plus a launch gap. `q` is the wave quantisation `ceil(tiles/SM) / (tiles/SM)`, `pad` the tile
//! quantisation. "Sustained" is what the power limit leaves, not the burst rate.

use crate::frameworks::profile::EagerScores;
use crate::spec::cluster::{Accelerator, Architecture, AttentionKernel, AttentionRates, Format};

/// Gap between dependent kernels on the GPU.
/// Source: launch gaps of back-to-back kernels in published traces, about 3 us.
const LAUNCH_GAP_S: f64 = 3e-6;

/// Exponent that joins compute and memory time of grouped products: many small problems overlap
/// their weight reads badly. Fitted to the 108 grouped products of
/// `SimuMax:configs/system/b200_bf16_ceperm.json`.
const GROUPED_EXPONENT: f64 = 1.5;

/// A batch of equal matrix products `C[M,N] += A[M,K] B[K,N]`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Product {
    /// Rows of the result.
    pub rows: f64,
    /// Columns of the result.
    pub columns: f64,
    /// Inner length.
    pub inner: f64,
    /// Independent problems.
    pub groups: f64,
    /// Bytes of one operand element.
    pub operand_bytes: f64,
    /// Bytes moved for one element of the result (8 for accumulation in place in FP32).
    pub result_bytes: f64,
}

/// An accelerator with the scalars of a runtime profile applied.
#[derive(Debug, Clone)]
pub struct Device {
    /// Bytes per second that streaming kernels reach.
    pub bandwidth: f64,
    /// Bytes per second of the data sheet.
    pub bandwidth_peak: f64,
    multiprocessors: f64,
    tiles: Vec<(f64, f64, f64)>,
    wave_softening: f64,
    fill: f64,
    exponent: f64,
    bf16: f64,
    low: f64,
    /// Fill length of the low format: a fixed fill time costs more elements at a higher rate.
    low_fill: f64,
    bf16_peak: f64,
    attention: AttentionRates,
    /// Scores in memory; none where kernels are fused.
    scores: Option<EagerScores>,
    attention_scale: f64,
    architecture: Architecture,
}

impl Device {
    /// `gemm` and `attention` scale sustained rates (1: as the accelerator's file says); `format` is
    /// the format of linear layers. A format or kernel that the file does not list falls back to
    /// BF16 and to the other attention generation.
    #[must_use]
    pub fn new(
        accelerator: &Accelerator,
        format: Format,
        gemm: f64,
        kernel: AttentionKernel,
        scores: Option<EagerScores>,
        attention: f64,
    ) -> Self {
        let fallback = crate::spec::cluster::Rate { peak: crate::units::FlopRate(1e12), sustained: 0.5 };
        let bf16 = accelerator.rates.get(&Format::Bf16).copied().unwrap_or(fallback);
        let low = accelerator.rates.get(&format).copied().unwrap_or(bf16);
        let (bf16_rate, low_rate) = (bf16.peak.0 * bf16.sustained, low.peak.0 * low.sustained);
        let g = &accelerator.gemm;
        let kernels = &accelerator.attention;
        let rates = kernels
            .get(&kernel)
            .or_else(|| kernels.get(&AttentionKernel::Vendor))
            .or_else(|| kernels.get(&AttentionKernel::Flash2))
            .copied();
        Self {
            bandwidth: accelerator.memory_bandwidth.0 * accelerator.memory_efficiency,
            bandwidth_peak: accelerator.memory_bandwidth.0,
            multiprocessors: f64::from(accelerator.multiprocessors),
            tiles: g.tiles.iter().map(|&(m, n, e)| (f64::from(m), f64::from(n), e)).collect(),
            wave_softening: g.wave_softening,
            fill: g.fill_length,
            exponent: g.roofline_exponent,
            bf16: bf16_rate * gemm,
            low: low_rate * gemm,
            low_fill: g.fill_length * low_rate / bf16_rate,
            bf16_peak: bf16.peak.0,
            attention: rates.unwrap_or(AttentionRates {
                forward: (0.5, 500.0),
                backward: (0.4, 500.0),
                narrow_heads: 0.8,
                latent_heads: (0.9, 0.9),
            }),
            scores,
            attention_scale: attention,
            architecture: accelerator.architecture,
        }
    }

    /// Scores that attention computes in memory; none where its kernels are fused.
    #[must_use]
    pub fn scores(&self) -> Option<EagerScores> {
        self.scores
    }

    /// Silicon generation.
    #[must_use]
    pub fn architecture(&self) -> Architecture {
        self.architecture
    }

    /// Seconds of a product in the format of linear layers (`low`) or in BF16.
    #[must_use]
    pub fn product(&self, p: &Product, low: bool) -> f64 {
        self.join(p, low, self.exponent)
    }

    /// Seconds of grouped products: one problem per local expert.
    #[must_use]
    pub fn grouped(&self, p: &Product, low: bool) -> f64 {
        self.join(p, low, GROUPED_EXPONENT)
    }

    fn join(&self, p: &Product, low: bool, exponent: f64) -> f64 {
        if p.rows <= 0.0 || p.columns <= 0.0 || p.inner <= 0.0 {
            return 0.0;
        }
        let (rate, fill) = if low { (self.low, self.low_fill) } else { (self.bf16, self.fill) };
        let mut shape = f64::INFINITY;
        for &(tm, tn, efficiency) in &self.tiles {
            let (rows, columns) = ((p.rows / tm).ceil(), (p.columns / tn).ceil());
            let waves = p.groups * rows * columns / self.multiprocessors;
            let quantised = waves.ceil() / waves;
            let pad = rows * tm * columns * tn / (p.rows * p.columns);
            shape = shape.min((1.0 + self.wave_softening * (quantised - 1.0)) * pad / efficiency);
        }
        let elements = p.rows * p.columns * p.groups;
        let compute = 2.0 * elements * p.inner / rate * shape * (1.0 + fill / p.inner);
        let operands = p.groups * (p.rows + p.columns) * p.inner * p.operand_bytes;
        let memory = (operands + elements * p.result_bytes) / self.bandwidth;
        let (large, small) = if compute > memory { (compute, memory) } else { (memory, compute) };
        large * (1.0 + (small / large).powf(exponent)).powf(1.0 / exponent) + LAUNCH_GAP_S
    }

    /// Seconds of passing `bytes` through memory in `kernels` kernels.
    #[must_use]
    pub fn stream(&self, bytes: f64, kernels: f64) -> f64 {
        bytes / self.bandwidth + kernels * LAUNCH_GAP_S
    }

    /// Forward and backward seconds of core attention on one rank.
    #[must_use]
    pub fn attention(&self, a: &AttentionShape) -> (f64, f64) {
        if let Some(scores) = self.scores {
            return self.unfused(a, scores);
        }
        let flops = 2.0 * a.queries * a.seen * a.heads * (a.key_dim + a.value_dim);
        let width = if a.key_dim < 96.0 { self.attention.narrow_heads } else { 1.0 };
        let latent = if a.key_dim > a.value_dim { self.attention.latent_heads } else { (1.0, 1.0) };
        let length = a.length;
        let rate = |(efficiency, half): (f64, f64)| {
            self.bf16_peak * efficiency * length / (length + half) * self.attention_scale * width
        };
        // Forward kernels give one block of rows of one head to a multiprocessor. With few of them the
        // longest rows of the causal triangle set the time. Shape from the B200 table of
        // `SimuMax:configs/system` (4, 8, 16 and 64 heads at 4,096 tokens: 188, 349, 650, 980 TFLOP/s).
        let blocks = a.heads * (a.queries / ATTENTION_ROWS).ceil() / self.multiprocessors / FULL_GRID;
        let fill = blocks / (1.0 + blocks.powi(3)).cbrt();
        let forward = flops / (rate(self.attention.forward) * latent.0 * fill) + LAUNCH_GAP_S;
        let backward = 2.5 * flops / (rate(self.attention.backward) * latent.1) + 2.0 * LAUNCH_GAP_S;
        (forward, backward)
    }

    /// Scores in memory: batched products over the full square at half of the peak, and element-wise passes.
    fn unfused(&self, a: &AttentionShape, EagerScores { moved, .. }: EagerScores) -> (f64, f64) {
        let scores = a.queries * a.length * a.heads;
        let products = 2.0 * scores * (a.key_dim + a.value_dim) / (0.5 * self.bf16_peak);
        let forward = products + self.stream(moved.0 * scores, 5.0);
        let backward = 2.0 * products + self.stream(moved.1 * scores, 7.0);
        (forward, backward)
    }
}

/// Rows of queries that one block of an attention kernel takes.
const ATTENTION_ROWS: f64 = 256.0;
/// Blocks per multiprocessor that fill the grid of a causal forward pass.
const FULL_GRID: f64 = 2.2;

/// Core attention of one layer on one rank.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AttentionShape {
    /// Query tokens.
    pub queries: f64,
    /// Keys that an average query sees under the mask.
    pub seen: f64,
    /// Keys that the longest query sees: the length that decides a kernel's efficiency.
    pub length: f64,
    /// Query heads on this rank.
    pub heads: f64,
    /// Width of a query and key head.
    pub key_dim: f64,
    /// Width of a value head.
    pub value_dim: f64,
}
