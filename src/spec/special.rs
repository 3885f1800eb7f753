//! What is special about a job on a cluster, whatever the framework: few such runs were measured.

use serde::{Deserialize, Serialize};

use super::cluster::Cluster;
use super::job::{Job, Training};
use crate::units::Bandwidth;

/// Tokens of a sequence from which it counts as long: attention, and how ranks share it, weigh most there, and four in five
/// measured runs have a quarter of it or less.
const LONG_SEQUENCE: u32 = 16_384;

/// What PCI Express 5.0 carries over 16 lanes in a direction (PCI-SIG; 32 GT/s a lane): GPUs whose collectives are no
/// faster have no fabric of their own.
const PCIE: Bandwidth = Bandwidth(64e9);

/// What sets runs apart, whatever the framework, and was measured seldom.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Special {
    /// Adapters are trained beside frozen weights.
    Adapters,
    /// All weights are tuned, on packed documents.
    FineTuning,
    /// Sequences of 16,384 tokens and more.
    LongSequences,
    /// Tensor parallelism leaves the fast domain.
    Crossing,
    /// PCIe alone joins the GPUs.
    NoFastDomain,
    /// The row that tells of a run is coarse (grade C): it leaves out what decides.
    Coarse,
}

impl Special {
    /// What is special about a job on a cluster, where tensor parallelism leaves the fast domain or does not.
    #[must_use]
    pub fn of(job: &Job, cluster: &Cluster, crossing: bool) -> Vec<Self> {
        let adapters = matches!(job.training, Training::Lora { .. });
        [
            (Self::Adapters, adapters),
            (Self::FineTuning, !adapters && job.packed.is_some()),
            (Self::LongSequences, job.sequence_length >= LONG_SEQUENCE),
            (Self::Crossing, crossing),
            (Self::NoFastDomain, job.gpus > 1 && cluster.scale_up.ring.0 <= PCIE.0),
        ]
        .into_iter()
        .filter_map(|(kind, is)| is.then_some(kind))
        .collect()
    }
}
