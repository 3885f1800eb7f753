//! Collective and point-to-point communication: textbook volumes and times, and the groups of a
//! layout on a fabric with a fast inner domain and a tapering network outside it.
//!
//! A collective of payload `V` over `n` ranks takes
//! `latency + delay (1 - exp(-V / scale)) + share(n) V / bus_bandwidth`, with `share` = `2 (n-1)/n` for
//! an all-reduce and `(n-1)/n` for all-gather, reduce-scatter and all-to-all. The middle term is the
//! switch of protocols and the ramp of channels in the megabyte range; without it the published
//! all-reduce curve of eight H100 is missed by up to 41 % (`NVIDIA/dgxc-benchmarking:nccl/README.md`).

use crate::spec::cluster::{Cluster, ScaleUp};
use crate::units::{Bandwidth, Bytes, Seconds};

/// `latency + payload / bandwidth`.
#[must_use]
pub fn alpha_beta(latency: Seconds, bandwidth: Bandwidth, payload: Bytes) -> Seconds {
    latency + payload / bandwidth
}

/// Payload whose transfer takes as long as the latency: half of the bandwidth is reached there.
#[must_use]
pub fn crossover(latency: Seconds, bandwidth: Bandwidth) -> Bytes {
    Bytes((latency.0 * bandwidth.0).round() as u64)
}

/// Bytes that each rank sends in a ring all-reduce of `payload`: `2 (n-1)/n` of it.
#[must_use]
pub fn ring_all_reduce_volume(ranks: u64, payload: Bytes) -> Bytes {
    Bytes((2.0 * ring_share(ranks) * payload.0 as f64).round() as u64)
}

/// Bytes that each rank sends in a ring all-gather (or reduce-scatter, or all-to-all) of `payload`.
#[must_use]
pub fn ring_gather_volume(ranks: u64, payload: Bytes) -> Bytes {
    Bytes((ring_share(ranks) * payload.0 as f64).round() as u64)
}

/// Ring all-reduce: `2 (n-1)` hops of latency and `2 (n-1)/n` of the payload over one link.
#[must_use]
pub fn ring_all_reduce(ranks: u64, payload: Bytes, bandwidth: Bandwidth, hop: Seconds) -> Seconds {
    let steps = 2.0 * ranks.saturating_sub(1) as f64;
    hop * steps + Seconds(2.0 * ring_share(ranks) * payload.0 as f64 / bandwidth.0)
}

/// Ring all-gather or reduce-scatter: half of [`ring_all_reduce`].
#[must_use]
pub fn ring_all_gather(ranks: u64, payload: Bytes, bandwidth: Bandwidth, hop: Seconds) -> Seconds {
    ring_all_reduce(ranks, payload, bandwidth, hop) / 2.0
}

/// Binomial-tree reduce followed by a broadcast without pipelining: the whole payload crosses
/// `2 ceil(log2 n)` hops one after the other.
#[must_use]
pub fn binomial_tree_all_reduce(ranks: u64, payload: Bytes, bandwidth: Bandwidth, hop: Seconds) -> Seconds {
    let hops = 2.0 * f64::from(ceil_log2(ranks));
    (hop + payload / bandwidth) * hops
}

/// Pipelined double binary tree (NCCL): logarithmic latency, every byte sent twice.
#[must_use]
pub fn double_tree_all_reduce(ranks: u64, payload: Bytes, bandwidth: Bandwidth, hop: Seconds) -> Seconds {
    if ranks < 2 {
        return Seconds(0.0);
    }
    hop * (2.0 * f64::from(ceil_log2(ranks))) + (payload / bandwidth) * 2.0
}

/// Bus bandwidth of an all-reduce that took `time`: what each link carried.
#[must_use]
pub fn all_reduce_bus_bandwidth(ranks: u64, payload: Bytes, time: Seconds) -> Bandwidth {
    Bandwidth(2.0 * ring_share(ranks) * payload.0 as f64 / time.0)
}

/// `(n - 1) / n`.
#[must_use]
pub fn ring_share(ranks: u64) -> f64 {
    if ranks == 0 { 0.0 } else { (ranks - 1) as f64 / ranks as f64 }
}

fn ceil_log2(n: u64) -> u32 {
    n.max(1).next_power_of_two().trailing_zeros()
}

/// Ranks that communicate, as they lie on the fabric.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Group {
    /// Ranks.
    pub ranks: u32,
    /// Of them, inside one fast domain.
    pub inside: u32,
    /// Fast domains that the group spans.
    pub domains: u32,
    /// Slow-down of ring traffic by a thin network.
    pub ring_taper: f64,
    /// Slow-down of all-to-all traffic by a thin network.
    pub exchange_taper: f64,
}

/// What a rank sees of a cluster: bandwidths in bytes per second, latencies in seconds.
#[derive(Debug, Clone)]
pub struct Fabric {
    gpus: u32,
    domain: u32,
    ring: f64,
    reduce: f64,
    exchange: f64,
    dispatch: f64,
    latency: f64,
    ramp: (f64, f64),
    /// Line rate of the network cards of one GPU.
    nic: f64,
    nic_share: f64,
    nic_dispatch_share: f64,
    nic_latency: f64,
    taper: Vec<(u32, f64)>,
    in_network: bool,
    scale_up: ScaleUp,
}

impl Fabric {
    /// The fabric of a cluster as a job of `gpus` sees it. `network_share` scales what the framework
    /// gets out of the network cards (1: as the cluster's file says).
    #[must_use]
    pub fn new(cluster: &Cluster, gpus: u32, network_share: f64) -> Self {
        let up = &cluster.scale_up;
        let out = &cluster.scale_out;
        let domain = cluster.block_of(gpus).unwrap_or(up.domain);
        Self {
            gpus,
            domain: domain.max(1),
            ring: up.ring.0,
            reduce: up.in_network_reduce.unwrap_or(up.ring).0.max(up.ring.0),
            exchange: up.all_to_all.0,
            dispatch: up.dispatch.0,
            latency: up.latency.0,
            ramp: (up.ramp.0.0, up.ramp.1.0.max(1) as f64),
            nic: out.nic.0 * f64::from(out.nics_per_node) / f64::from(cluster.gpus_per_node) * network_share,
            nic_share: out.efficiency,
            nic_dispatch_share: out.dispatch_efficiency,
            nic_latency: out.latency.0,
            taper: out.oversubscription.clone(),
            in_network: out.in_network_reduce,
            scale_up: up.clone(),
        }
    }

    /// GPUs in one fast domain.
    #[must_use]
    pub fn domain(&self) -> u32 {
        self.domain
    }

    /// The group of `ranks` ranks that lie `stride` apart.
    #[must_use]
    pub fn group(&self, ranks: u32, stride: u32) -> Group {
        let (ranks, stride) = (ranks.max(1), stride.max(1));
        let inside = if self.gpus <= self.domain {
            ranks
        } else if self.domain % stride == 0 {
            gcd(ranks, self.domain / stride)
        } else {
            1
        };
        let mut group =
            Group { ranks, inside, domains: ranks / inside, ring_taper: 1.0, exchange_taper: 1.0 };
        let extent = u64::from(ranks) * u64::from(stride);
        for &(block, factor) in &self.taper {
            if group.domains < 2 || extent <= u64::from(block) {
                continue;
            }
            // A ring laid out in order leaves the block once, so the members that share a block share
            // its uplink; an exchange sends to every rank outside.
            let members = (block / (stride * inside).max(1)).max(1);
            group.ring_taper = group.ring_taper.max(factor / f64::from(members));
            let leaving = 1.0 - f64::from(block) / extent as f64;
            group.exchange_taper = group.exchange_taper.max(factor * leaving);
        }
        group
    }

    /// Share of the fast fabric's bandwidth that `inside` ranks of one domain can use; 1 behind switches.
    #[must_use]
    pub fn reach(&self, inside: u32) -> f64 {
        self.scale_up.reach(inside)
    }

    /// Bus bandwidth of ring collectives in a group.
    #[must_use]
    pub fn ring_bandwidth(&self, group: &Group) -> Bandwidth {
        Bandwidth(self.ring_rate(group))
    }

    fn ring_rate(&self, group: &Group) -> f64 {
        let ring = self.ring * self.reach(group.inside);
        if group.domains < 2 {
            return ring;
        }
        // One rank per domain has no fast link to share.
        let ring = if group.inside > 1 { ring } else { self.ring };
        ring.min(f64::from(group.inside) * self.nic * self.nic_share / group.ring_taper)
    }

    fn reduce_rate(&self, group: &Group) -> f64 {
        if group.domains < 2 {
            let rate = if group.ranks > 4 { self.reduce } else { self.ring };
            return rate * self.reach(group.ranks);
        }
        let sharp = if self.in_network { 2.0 } else { 1.0 };
        let reach = if group.inside > 1 { self.reach(group.inside) } else { 1.0 };
        (self.reduce * reach)
            .min(sharp * f64::from(group.inside) * self.nic * self.nic_share / group.ring_taper)
    }

    /// Latency and ramp of one collective of `payload` bytes.
    fn start(&self, payload: f64, network_hops: f64) -> f64 {
        let (delay, scale) = self.ramp;
        self.latency + delay * -(-payload / scale).exp_m1() + network_hops * self.nic_latency
    }

    /// Seconds of an all-gather or reduce-scatter of `payload` bytes (the full tensor).
    #[must_use]
    pub fn all_gather(&self, group: &Group, payload: f64) -> f64 {
        if group.ranks < 2 {
            return 0.0;
        }
        let share = ring_share(u64::from(group.ranks));
        self.start(payload, f64::from(group.domains - 1)) + share * payload / self.ring_rate(group)
    }

    /// Seconds of an all-reduce of `payload` bytes.
    #[must_use]
    pub fn all_reduce(&self, group: &Group, payload: f64) -> f64 {
        if group.ranks < 2 {
            return 0.0;
        }
        let share = 2.0 * ring_share(u64::from(group.ranks));
        let hops = 2.0 * f64::from(ceil_log2(u64::from(group.domains)));
        self.start(payload, hops) + share * payload / self.reduce_rate(group)
    }

    /// Seconds of an all-to-all in which each rank holds `payload` bytes for all ranks together.
    #[must_use]
    pub fn all_to_all(&self, group: &Group, payload: f64) -> f64 {
        if group.ranks < 2 {
            return 0.0;
        }
        let n = f64::from(group.ranks);
        let near = payload * f64::from(group.inside - 1) / n / (self.exchange * self.reach(group.inside));
        let far = payload * f64::from(group.ranks - group.inside) / n / (self.nic * self.nic_share)
            * group.exchange_taper.max(1.0);
        self.start(payload, f64::from(ceil_log2(u64::from(group.domains)))) + near.max(far)
    }

    /// Seconds of sending `payload` bytes to the rank `stride` away.
    #[must_use]
    pub fn send(&self, stride: u32, payload: f64) -> f64 {
        let within = self.gpus <= self.domain || stride < self.domain && self.domain % (2 * stride) == 0;
        let rate =
            if within { self.ring * self.reach(2) } else { (self.nic * self.nic_share).min(self.ring) };
        // A send has no tree or ring to set up: the hop's own latency.
        self.nic_latency + payload / rate
    }

    /// Latency of one small collective in a group.
    #[must_use]
    pub fn collective_latency(&self, group: &Group) -> f64 {
        if group.ranks < 2 { 0.0 } else { self.latency + f64::from(group.domains - 1) * self.nic_latency }
    }

    /// Seconds of one dispatch or combine given each rank's bytes inside and outside its domain.
    /// `library`: a dispatch library (DeepEP, HybridEP) instead of NCCL's all-to-all.
    #[must_use]
    pub fn dispatch(&self, near: f64, far: f64, library: bool) -> f64 {
        let (inner, share) =
            if library { (self.dispatch, self.nic_dispatch_share) } else { (self.exchange, self.nic_share) };
        (near / inner).max(far / (self.nic * share))
    }

    /// Seconds per payload byte of an all-gather or reduce-scatter, latency aside.
    #[must_use]
    pub fn gather_slope(&self, group: &Group) -> f64 {
        ring_share(u64::from(group.ranks)) / self.ring_rate(group)
    }

    /// Seconds per payload byte of an all-reduce, latency aside.
    #[must_use]
    pub fn reduce_slope(&self, group: &Group) -> f64 {
        2.0 * ring_share(u64::from(group.ranks)) / self.reduce_rate(group)
    }
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::shipped::Kind;

    fn fabric(name: &str, gpus: u32) -> Fabric {
        let text = Kind::Cluster.find(name).unwrap().text;
        Fabric::new(&crate::spec::ron_options().from_str(text).unwrap(), gpus, 1.0)
    }

    #[test]
    fn a_full_mesh_gives_small_groups_few_links() {
        let mesh = fabric("mi300x-roce", 8);
        let rate = |ranks| mesh.ring_bandwidth(&mesh.group(ranks, 1)).0 / 1e9;
        // Measured: 47.7 GB/s with two GPUs, 312.9 with eight.
        assert!((rate(2) - 47.7).abs() < 5.0, "{}", rate(2));
        assert!((rate(8) - 312.9).abs() < 1.0, "{}", rate(8));
        let switched = fabric("dgx-h100", 8);
        let rate = |ranks| switched.ring_bandwidth(&switched.group(ranks, 1));
        assert_eq!(rate(2), rate(8));
    }
}
