//! Accelerators and clusters: what `clusters/accelerators/*.ron` and `clusters/*.ron` say.
//!
//! Every number that a site could measure lives in these files, with its source in a comment or in
//! `sources`.

use std::collections::BTreeMap;
use std::fmt::Display;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::job::Precision;
use super::model::Fault;
use super::special::Special;
use crate::units::{Bandwidth, Bytes, DollarsPerHour, FlopRate, Seconds, Watts};

/// The schema version that this build reads and writes.
pub const SCHEMA: u32 = 1;
/// Fewest bytes that a GPU may be limited to.
pub const LEAST_MEMORY: Bytes = Bytes(1_000_000);

/// One accelerator.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Accelerator {
    /// Version of this format; see [`SCHEMA`].
    pub schema: u32,
    /// Published name.
    pub name: String,
    /// Silicon generation.
    pub architecture: Architecture,
    /// Memory that the framework can see.
    pub memory: Bytes,
    /// Default limit on allocated bytes, where it is below `(memory - 2.5 GB) / 1.02`.
    #[serde(default)]
    pub memory_limit: Option<Bytes>,
    /// Memory bandwidth of the data sheet.
    pub memory_bandwidth: Bandwidth,
    /// Share of it that a large copy reaches.
    pub memory_efficiency: f64,
    /// Streaming multiprocessors or compute units.
    pub multiprocessors: u32,
    /// Power cap of one card.
    pub power: Watts,
    /// Dense matrix rates, by number format.
    pub rates: BTreeMap<Format, Rate>,
    /// How matrix products behave by shape.
    pub gemm: Gemm,
    /// Attention kernels, by generation; `Vendor` (cuDNN or FA3 class) or `Flash2` must be there.
    pub attention: BTreeMap<AttentionKernel, AttentionRates>,
    /// Host link of one card, one direction.
    pub host_link: Bandwidth,
    /// Where the numbers come from.
    #[serde(default)]
    pub sources: Vec<String>,
}

/// How the rates of products and attention fall with a power cap: at 500 W, H100s train at 0.71 to 0.78 of what they do at
/// 700 W (torchtitan, benchmarks/llama3_h100_202412_torchtitan.md, against 700 W runs), and 0.8 lies between.
const POWER_EXPONENT: f64 = 0.8;
/// Share of a card's own power below which the law says nothing.
const LEAST_POWER: f64 = 0.5;

impl Accelerator {
    /// The same card under a lower power cap: clocks fall, memory keeps its own.
    ///
    /// # Errors
    /// A cap above the card's own, or so far below that nobody measured what comes of it.
    pub(super) fn capped(mut self, cap: Watts) -> Result<Self, Fault> {
        let least = Watts(self.power.0 * LEAST_POWER);
        At(Some("energy")).between("power_cap", cap, least, self.power)?;
        let slower = (cap.0 / self.power.0).powf(POWER_EXPONENT);
        self.rates.values_mut().for_each(|rate| rate.sustained *= slower);
        for rates in self.attention.values_mut() {
            rates.forward.0 *= slower;
            rates.backward.0 *= slower;
        }
        self.power = cap;
        Ok(self)
    }
}

/// Silicon generation; decides which formats and kernels exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Architecture {
    /// A100, A800.
    Ampere,
    /// L40S, RTX 4090.
    Ada,
    /// H100, H200, H800, GH200.
    Hopper,
    /// B200, B300, GB200, GB300.
    Blackwell,
    /// MI300X, MI325X.
    Cdna3,
    /// MI355X.
    Cdna4,
}

/// Number format of a matrix product.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Format {
    /// BF16 or FP16 with FP32 accumulation.
    Bf16,
    /// FP8 with one scale per tensor.
    Fp8,
    /// FP8 with one scale per 1x128 or 128x128 block.
    Fp8Blockwise,
    /// FP8 with one scale per 32 elements in hardware.
    Mxfp8,
    /// FP4 with one scale per 16 elements.
    Nvfp4,
}

/// Peak and sustained rate of one format.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rate {
    /// Dense peak of the data sheet.
    pub peak: FlopRate,
    /// Share of the peak that well-shaped products sustain in training, power limit included.
    pub sustained: f64,
}

/// How matrix products behave by shape.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gemm {
    /// Tile shapes with their relative efficiency.
    pub tiles: Vec<(u32, u32, f64)>,
    /// How much of the wave quantisation is felt (1: all).
    pub wave_softening: f64,
    /// Inner length that costs as much as filling the pipeline.
    pub fill_length: f64,
    /// Exponent that joins compute and memory time; infinity would be the maximum.
    pub roofline_exponent: f64,
}

/// Attention kernel generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum AttentionKernel {
    /// Scores in memory: batched products and element-wise passes.
    Unfused,
    /// FlashAttention-2 class.
    Flash2,
    /// The vendor's best: cuDNN or FlashAttention-3 class.
    Vendor,
}

/// Rates of one attention kernel, forward and backward, as shares of the BF16 peak:
/// `rate = peak * efficiency * s / (s + half_length)`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AttentionRates {
    /// Forward: share of the peak for long sequences, and the length at which half of it is reached.
    pub forward: (f64, f64),
    /// Backward.
    pub backward: (f64, f64),
    /// Factor for heads narrower than 96.
    pub narrow_heads: f64,
    /// Factors for 192-wide query/key with 128-wide value heads (latent attention), forward, backward.
    pub latent_heads: (f64, f64),
}

/// A cluster of equal nodes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cluster {
    /// Version of this format; see [`SCHEMA`].
    pub schema: u32,
    /// Name for people.
    pub name: String,
    /// Name of a file in `clusters/accelerators/`, or a path beside this file.
    pub accelerator: String,
    /// GPUs that one operating system sees.
    pub gpus_per_node: u32,
    /// GPUs that exist; none means no limit.
    #[serde(default)]
    pub max_gpus: Option<u32>,
    /// The fast fabric inside a domain.
    pub scale_up: ScaleUp,
    /// The network between domains.
    pub scale_out: ScaleOut,
    /// Host of one node.
    pub host: Host,
    /// Checkpoint storage.
    pub storage: Storage,
    /// Prices of one GPU-hour.
    pub price: Price,
    /// Energy.
    pub energy: Energy,
    /// Failures.
    pub reliability: Reliability,
    /// What predictions of the site's own runs are off by; `autoplan calibrate` writes it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub own_runs: Vec<OwnRuns>,
    /// Where the numbers come from.
    #[serde(default)]
    pub sources: Vec<String>,
}

/// Runs of one kind that a site's constants were fitted to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OwnRuns {
    /// Run-time profile of their framework.
    pub profile: String,
    /// Of models with routed experts.
    pub experts: bool,
    /// What is special about them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub special: Vec<Special>,
    /// Format of their matrix products.
    pub format: Format,
    /// Fewest and most GPUs of a run.
    pub gpus: (u32, u32),
    /// How many plans were run: runs that differ in the batch alone, and repetitions, share what their plan is off by.
    pub runs: usize,
    /// How many of them are far off, whatever is fitted to the others.
    #[serde(default, skip_serializing_if = "is_none")]
    pub far_off: usize,
    /// Root mean square of the logarithm of predicted over measured step times, each plan predicted from the others.
    pub error: f64,
}

/// Zeros are not written.
fn is_none(count: &usize) -> bool {
    *count == 0
}

/// Line rate of the fastest network cards that are announced: 1,600 Gb/s (NVIDIA ConnectX-9, 2026).
const FASTEST_NIC: Bandwidth = Bandwidth(200e9);

/// More runs of a kind than anybody has.
const MOST_RUNS: usize = 1_000_000_000;

/// The fast fabric (NVLink, Infinity Fabric, or PCIe where there is none).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScaleUp {
    /// GPUs in one domain.
    pub domain: u32,
    /// Schedulers hand out whole blocks of this many GPUs of a domain (64 of an NVL72's 72).
    #[serde(default)]
    pub allocation: Option<u32>,
    /// How the GPUs of a domain are wired; decides what a group smaller than the domain gets.
    #[serde(default)]
    pub topology: Topology,
    /// Bus bandwidth of ring collectives (all-gather, reduce-scatter) per GPU over the whole domain, measured.
    pub ring: Bandwidth,
    /// Bus bandwidth of all-reduce with in-network reduction, where the switch has it.
    #[serde(default)]
    pub in_network_reduce: Option<Bandwidth>,
    /// Bandwidth of an all-to-all per GPU, measured.
    pub all_to_all: Bandwidth,
    /// Bandwidth of an expert-dispatch library (DeepEP, HybridEP) per GPU.
    pub dispatch: Bandwidth,
    /// Latency of one collective.
    pub latency: Seconds,
    /// Ramp of medium messages: extra time `delay * (1 - exp(-bytes / bytes_scale))`.
    pub ramp: (Seconds, Bytes),
}

/// How the GPUs of a scale-up domain are wired.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
pub enum Topology {
    /// Through switches (NVSwitch, PCIe): any group has the full bandwidth of each member.
    #[default]
    Switched,
    /// One link per pair (Infinity Fabric): a group of `k` uses `k - 1` of the `domain - 1` links of each
    /// member. Two MI300X reach 48 GB/s where eight reach 313
    /// (stas00/ml-engineering:network/README.md).
    Mesh,
}

impl ScaleUp {
    /// Share of the domain's bandwidths that a group of this many of its GPUs can use, in (0, 1].
    #[must_use]
    pub fn reach(&self, group: u32) -> f64 {
        match self.topology {
            Topology::Mesh if group < self.domain => {
                f64::from(group.max(2) - 1) / f64::from(self.domain.max(2) - 1)
            }
            _ => 1.0,
        }
    }
}

/// The network between domains.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScaleOut {
    /// Line rate of one network card, one direction.
    pub nic: Bandwidth,
    /// Network cards of one node.
    pub nics_per_node: u32,
    /// Share of the line rate that collectives reach.
    pub efficiency: f64,
    /// Share of the line rate that expert dispatch libraries reach.
    pub dispatch_efficiency: f64,
    /// Latency of one hop.
    pub latency: Seconds,
    /// Where the network thins out: `(gpus, factor)` means that traffic leaving a block of that many
    /// GPUs finds `1 / factor` of the bandwidth.
    #[serde(default)]
    pub oversubscription: Vec<(u32, f64)>,
    /// Switches reduce (SHARP).
    #[serde(default)]
    pub in_network_reduce: bool,
    /// Hosts alone tell network cards to send: without IBGDA, on which released libraries that bring tokens to experts rest.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub host_initiated: bool,
}

/// Host of one node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Host {
    /// Memory of a node.
    pub memory: Bytes,
    /// Its bandwidth, all sockets.
    pub memory_bandwidth: Bandwidth,
    /// Local NVMe of a node: size and bandwidth.
    #[serde(default)]
    pub nvme: Option<(Bytes, Bandwidth)>,
}

/// Checkpoint storage.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Storage {
    /// Bandwidth of the whole storage system, writing.
    pub total: Bandwidth,
    /// Bandwidth of one node to it.
    pub per_node: Bandwidth,
}

/// Prices of one GPU-hour.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Price {
    /// Without commitment.
    pub on_demand: DollarsPerHour,
    /// With a year's commitment or more.
    pub reserved: DollarsPerHour,
}

/// Energy.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Energy {
    /// Power cap of the site's GPUs, where it is below the accelerator's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power_cap: Option<Watts>,
    /// Average draw of a GPU under training as a share of its cap.
    pub utilisation: f64,
    /// Host and network power per GPU.
    pub host_per_gpu: Watts,
    /// Power usage effectiveness of the building.
    pub pue: f64,
    /// Dollars per kilowatt-hour.
    pub dollars_per_kwh: f64,
}

/// Failures.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reliability {
    /// GPU-hours between two interruptions of a job.
    pub gpu_hours_between_failures: f64,
    /// Detection, rescheduling and reload after one.
    pub restart: Seconds,
    /// Seconds for which a checkpoint blocks training beside its write time share.
    pub checkpoint_blocking: Seconds,
}

/// Where a field stands, for faults: the section's key, or the top of the file.
#[derive(Clone, Copy)]
struct At<'a>(Option<&'a str>);

impl At<'_> {
    fn fault(self, field: &str, message: impl Into<String>) -> Fault {
        Fault { field: field.into(), within: self.0.map(Into::into), message: message.into() }
    }

    /// Finite and within bounds, both included.
    fn between<T: PartialOrd + Display>(self, field: &str, value: T, low: T, high: T) -> Result<(), Fault> {
        if low <= value && value <= high {
            return Ok(());
        }
        Err(self.fault(field, format!("expected {low} to {high}, found {value}")))
    }

    /// A share in (0, 1].
    fn share(self, field: &str, value: f64) -> Result<(), Fault> {
        if value > 0.0 && value <= 1.0 {
            return Ok(());
        }
        let percent = if value > 1.0 && value <= 100.0 {
            format!("; {value} % is {}", value / 100.0)
        } else {
            String::new()
        };
        Err(self.fault(field, format!("expected a share above 0 and at most 1, found {value}{percent}")))
    }

    fn bandwidth(self, field: &str, value: Bandwidth) -> Result<(), Fault> {
        self.between(field, value, Bandwidth(1e6), Bandwidth(1e16))
    }

    fn memory(self, field: &str, value: Bytes) -> Result<(), Fault> {
        self.between(field, value, Bytes(1_000_000), Bytes(1_000_000_000_000_000_000))
    }

    /// At most so long; zero is allowed.
    fn time(self, field: &str, value: Seconds, longest: Seconds) -> Result<(), Fault> {
        self.between(field, value, Seconds(0.0), longest)
    }
}

fn schema(found: u32) -> Result<(), Fault> {
    if found == SCHEMA {
        return Ok(());
    }
    Err(At(None).fault("schema", format!("schema {found} is not known; this build reads schema {SCHEMA}")))
}

fn named(name: &str) -> Result<(), Fault> {
    if name.trim().is_empty() { Err(At(None).fault("name", "the name is empty")) } else { Ok(()) }
}

impl Accelerator {
    /// Dense peak of a number format; that of BF16 where the format is not listed.
    #[must_use]
    pub fn peak(&self, format: Format) -> FlopRate {
        let rate = self.rates.get(&format).or_else(|| self.rates.get(&Format::Bf16));
        rate.map_or(FlopRate(0.0), |rate| rate.peak)
    }

    /// What to say where it has no matrix units for a precision, with those that it has.
    #[must_use]
    pub fn lacks(&self, precision: Precision) -> Option<String> {
        let has = |precision: Precision| self.rates.contains_key(&precision.format());
        if has(precision) {
            return None;
        }
        let names = Precision::value_variants().iter().filter(|p| has(**p)).map(|p| p.name());
        let names = names.collect::<Vec<_>>().join(", ");
        Some(format!(
            "{} has no {} matrix units; precisions that it has: {names}",
            self.name,
            precision.name()
        ))
    }

    /// Checks ranges.
    ///
    /// # Errors
    /// The first [`Fault`] found.
    pub fn validate(&self) -> Result<(), Fault> {
        let at = At(None);
        schema(self.schema)?;
        named(&self.name)?;
        at.memory("memory", self.memory)?;
        if let Some(limit) = self.memory_limit {
            at.between("memory_limit", limit, LEAST_MEMORY, self.memory)?;
        }
        at.bandwidth("memory_bandwidth", self.memory_bandwidth)?;
        at.share("memory_efficiency", self.memory_efficiency)?;
        at.between("multiprocessors", self.multiprocessors, 1, 100_000)?;
        at.between("power", self.power, Watts(1.0), Watts(1e6))?;
        at.bandwidth("host_link", self.host_link)?;
        if !self.rates.contains_key(&Format::Bf16) {
            return Err(at.fault("rates", "the rate of `Bf16` is missing"));
        }
        for (format, rate) in &self.rates {
            let name = format!("{format:?}");
            let at = At(Some(&name));
            at.between("peak", rate.peak, FlopRate(1e9), FlopRate(1e20))?;
            at.share("sustained", rate.sustained)?;
        }
        let at = At(Some("gemm"));
        if self.gemm.tiles.is_empty() || self.gemm.tiles.len() > 64 {
            return Err(at.fault("tiles", "expected 1 to 64 tiles of (rows, columns, relative efficiency)"));
        }
        for &(rows, columns, efficiency) in &self.gemm.tiles {
            at.between("tiles", rows.min(columns), 1, 65_536)?;
            at.between("tiles", rows.max(columns), 1, 65_536)?;
            at.share("tiles", efficiency)?;
        }
        at.between("wave_softening", self.gemm.wave_softening, 0.0, 1.0)?;
        at.between("fill_length", self.gemm.fill_length, 0.0, 1e5)?;
        at.between("roofline_exponent", self.gemm.roofline_exponent, 1.0, 16.0)?;
        if !self.attention.contains_key(&AttentionKernel::Vendor)
            && !self.attention.contains_key(&AttentionKernel::Flash2)
        {
            return Err(At(None).fault("attention", "rates of `Vendor` or `Flash2` are missing"));
        }
        for (kernel, rates) in &self.attention {
            let name = format!("{kernel:?}");
            let at = At(Some(&name));
            for (field, (efficiency, half_length)) in
                [("forward", rates.forward), ("backward", rates.backward)]
            {
                at.share(field, efficiency)?;
                at.between(field, half_length, 0.0, 1e6)?;
            }
            at.between("narrow_heads", rates.narrow_heads, 0.01, 1.5)?;
            at.between("latent_heads", rates.latent_heads.0, 0.01, 1.5)?;
            at.between("latent_heads", rates.latent_heads.1, 0.01, 1.5)?;
        }
        Ok(())
    }
}

impl Cluster {
    /// GPUs that a job of so many gets of each domain, where that is not all of them: a block scheduler hands out blocks once
    /// a job outgrows a domain.
    #[must_use]
    pub fn block_of(&self, gpus: u32) -> Option<u32> {
        self.scale_up.allocation.filter(|&block| gpus > self.scale_up.domain && gpus % block == 0)
    }

    /// Whether there are so many GPUs on whole nodes, or on a part of one.
    #[must_use]
    pub fn gives(&self, gpus: u32) -> bool {
        let whole = gpus <= self.gpus_per_node || gpus % self.gpus_per_node == 0;
        gpus > 0 && whole && self.max_gpus.is_none_or(|most| gpus <= most)
    }

    /// Checks ranges.
    ///
    /// # Errors
    /// The first [`Fault`] found.
    pub fn validate(&self) -> Result<(), Fault> {
        let at = At(None);
        schema(self.schema)?;
        named(&self.name)?;
        at.between("gpus_per_node", self.gpus_per_node, 1, 1024)?;
        if let Some(gpus) = self.max_gpus {
            at.between("max_gpus", gpus, 1, u32::MAX)?;
        }

        let (at, up) = (At(Some("scale_up")), &self.scale_up);
        at.between("domain", up.domain, 1, 4096)?;
        let (domain, node) = (up.domain, self.gpus_per_node);
        if domain % node != 0 && node % domain != 0 {
            let message =
                format!("a domain of {domain} GPUs does not fit nodes of {node}: one must divide the other");
            return Err(at.fault("domain", message));
        }
        if let Some(allocation) = up.allocation {
            at.between("allocation", allocation, 1, domain)?;
        }
        at.bandwidth("ring", up.ring)?;
        if let Some(bandwidth) = up.in_network_reduce {
            at.bandwidth("in_network_reduce", bandwidth)?;
        }
        at.bandwidth("all_to_all", up.all_to_all)?;
        at.bandwidth("dispatch", up.dispatch)?;
        at.time("latency", up.latency, Seconds(1.0))?;
        at.time("ramp", up.ramp.0, Seconds(1.0))?;
        at.between("ramp", up.ramp.1, Bytes(1), Bytes(1_000_000_000_000))?;

        let (at, out) = (At(Some("scale_out")), &self.scale_out);
        at.bandwidth("nic", out.nic)?;
        if out.nic > FASTEST_NIC {
            let bits = |rate: Bandwidth| rate.0 * 8e-9;
            let (own, most) = (bits(out.nic), bits(FASTEST_NIC));
            let message = format!(
                "{} are {own:.0} Gb/s, and the fastest network cards have {most:.0}: line rates are told in bits, such as \"400Gb/s\"",
                out.nic
            );
            return Err(at.fault("nic", message));
        }
        at.between("nics_per_node", out.nics_per_node, 1, 1024)?;
        at.share("efficiency", out.efficiency)?;
        at.share("dispatch_efficiency", out.dispatch_efficiency)?;
        at.time("latency", out.latency, Seconds(1.0))?;
        for &(gpus, factor) in &out.oversubscription {
            at.between("oversubscription", gpus, 1, u32::MAX)?;
            at.between("oversubscription", factor, 1.0, 1000.0)?;
        }

        let at = At(Some("host"));
        at.memory("memory", self.host.memory)?;
        at.bandwidth("memory_bandwidth", self.host.memory_bandwidth)?;
        if let Some((size, bandwidth)) = self.host.nvme {
            at.memory("nvme", size)?;
            at.bandwidth("nvme", bandwidth)?;
        }
        let at = At(Some("storage"));
        at.bandwidth("total", self.storage.total)?;
        at.bandwidth("per_node", self.storage.per_node)?;

        let (at, highest) = (At(Some("price")), DollarsPerHour(1e6));
        at.between("on_demand", self.price.on_demand, DollarsPerHour(0.0), highest)?;
        at.between("reserved", self.price.reserved, DollarsPerHour(0.0), highest)?;

        let at = At(Some("energy"));
        at.share("utilisation", self.energy.utilisation)?;
        at.between("host_per_gpu", self.energy.host_per_gpu, Watts(0.0), Watts(1e6))?;
        at.between("pue", self.energy.pue, 1.0, 10.0)?;
        at.between("dollars_per_kwh", self.energy.dollars_per_kwh, 0.0, 1000.0)?;

        let (at, day) = (At(Some("reliability")), Seconds(86_400.0));
        at.between("gpu_hours_between_failures", self.reliability.gpu_hours_between_failures, 1.0, 1e12)?;
        at.time("restart", self.reliability.restart, day)?;
        at.time("checkpoint_blocking", self.reliability.checkpoint_blocking, day)?;

        let at = At(Some("own_runs"));
        for kind in &self.own_runs {
            at.between("gpus", kind.gpus.0, 1, kind.gpus.1)?;
            at.between("runs", kind.runs, 1, MOST_RUNS)?;
            at.between("far_off", kind.far_off, 0, kind.runs)?;
            at.between("error", kind.error, 0.0, 10.0)?;
        }
        Ok(())
    }
}
