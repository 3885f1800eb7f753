//! The roofline with three ceilings: what bounds an operator or a step, and by how much.
//!
//! For explanations. Step times come from the itemised model, which has its own shape-dependent
//! rooflines.

use serde::Serialize;

use crate::spec::cluster::{Accelerator, Cluster, Format};
use crate::units::{Bandwidth, FlopRate};

/// Peak rates of one GPU.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ceilings {
    /// Matrix products.
    pub compute: FlopRate,
    /// Memory.
    pub memory: Bandwidth,
    /// The link that its traffic crosses, one direction.
    pub network: Bandwidth,
}

/// The ceiling that binds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Ceiling {
    /// Matrix products.
    Compute,
    /// Memory bandwidth.
    Memory,
    /// Network bandwidth.
    Network,
}

impl Ceilings {
    /// Data-sheet ceilings of one GPU of a cluster; traffic crosses the network cards, which the GPUs
    /// of a node share.
    #[must_use]
    pub fn of(cluster: &Cluster, accelerator: &Accelerator, format: Format) -> Self {
        let rate = accelerator.rates.get(&format).or_else(|| accelerator.rates.get(&Format::Bf16));
        let cards = f64::from(cluster.scale_out.nics_per_node) / f64::from(cluster.gpus_per_node);
        Self {
            compute: rate.map_or(FlopRate(0.0), |rate| rate.peak),
            memory: accelerator.memory_bandwidth,
            network: cluster.scale_out.nic * cards,
        }
    }
    /// FLOPs per byte of memory traffic at which products and memory take equally long.
    #[must_use]
    pub fn memory_ridge(&self) -> f64 {
        self.compute.0 / self.memory.0
    }
    /// FLOPs per byte of network traffic at which products and network take equally long.
    #[must_use]
    pub fn network_ridge(&self) -> f64 {
        self.compute.0 / self.network.0
    }
    /// The rate that work of these intensities (FLOPs per byte of memory and of network traffic) can
    /// reach at most, and the ceiling that says so; of ceilings that are equal up to rounding the first in
    /// the order of [`Ceiling`].
    #[must_use]
    pub fn attainable(&self, memory_intensity: f64, network_intensity: f64) -> (FlopRate, Ceiling) {
        let mut least = (self.compute, Ceiling::Compute);
        for (rate, ceiling) in [
            (self.memory.0 * memory_intensity, Ceiling::Memory),
            (self.network.0 * network_intensity, Ceiling::Network),
        ] {
            if rate < least.0.0 * (1.0 - 1e-12) {
                least = (FlopRate(rate), ceiling);
            }
        }
        least
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_ceiling_binds() {
        let h100 =
            Ceilings { compute: FlopRate(989e12), memory: Bandwidth(3.35e12), network: Bandwidth(50e9) };
        assert_eq!(h100.attainable(1000.0, 1e6), (FlopRate(989e12), Ceiling::Compute));
        assert_eq!(h100.attainable(100.0, 1e6), (FlopRate(335e12), Ceiling::Memory));
        assert_eq!(h100.attainable(1000.0, 1000.0), (FlopRate(50e12), Ceiling::Network));
        // Exactly on the ridge, compute binds.
        assert_eq!(h100.attainable(h100.memory_ridge(), 1e6).1, Ceiling::Compute);
    }
}
