//! The machine of a row: GPUs by their many names, nodes and network.

use std::collections::BTreeMap;

use super::cells::{Cells, Skip};
use crate::spec::Machine;
use crate::spec::cluster::{Accelerator, Cluster};
use crate::units::Bandwidth;

/// Shipped clusters and accelerators, read once.
#[derive(Debug)]
pub struct Shelf {
    pub(super) clusters: BTreeMap<&'static str, Cluster>,
    pub(super) accelerators: BTreeMap<&'static str, Accelerator>,
}

impl Shelf {
    /// Reads what ships.
    #[must_use]
    pub fn shipped() -> Self {
        use crate::spec::{ron_options, shipped};
        Self {
            clusters: shipped::clusters()
                .into_iter()
                .filter_map(|s| Some((s.name, ron_options().from_str(s.text).ok()?)))
                .collect(),
            accelerators: shipped::accelerators()
                .into_iter()
                .filter_map(|s| Some((s.name, ron_options().from_str(s.text).ok()?)))
                .collect(),
        }
    }

    /// What a machine's accelerator is called in measured tables: its names in [`GPUS`] if it ships, its own name
    /// and that of its file. A shipped one is known by its name wherever its file lies.
    pub(super) fn called<'m>(&self, machine: &'m Machine) -> Vec<&'m str> {
        let file = machine.cluster.accelerator.rsplit(['/', '\\']).next().unwrap_or_default();
        let own = [machine.accelerator.name.as_str(), file.strip_suffix(".ron").unwrap_or(file)];
        let ships = |accelerator: &str| {
            own[1] == accelerator
                || self.accelerators.get(accelerator).is_some_and(|shipped| shipped.name == own[0])
        };
        let mut names = Vec::new();
        for &(name, accelerator, _) in GPUS.iter().filter(|(_, accelerator, _)| ships(accelerator)) {
            names.extend([name, accelerator]);
        }
        names.extend(own.into_iter().filter(|name| !names.contains(name)).collect::<Vec<_>>());
        names
    }
}

/// Names of accelerators in measured tables, with the shipped accelerator and cluster they mean.
pub(super) const GPUS: &[(&str, &str, &str)] = &[
    ("A100-SXM-80GB", "a100-80gb", "dgx-a100"),
    ("A100-SXM-40GB", "a100-40gb", "dgx-a100-40gb"),
    ("A800", "a800", "a800-ib"),
    ("H100-SXM-80GB", "h100-sxm", "dgx-h100"),
    ("H100-HBM2E-96GB-500W", "h100-hbm2e-500w", "dgx-h100"),
    ("H100-PCIE", "h100-pcie", "l40s-pcie"),
    ("H800", "h800", "h800-ib"),
    ("H20", "h20", "dgx-h100"),
    ("H200", "h200", "dgx-h200"),
    ("B200", "b200", "dgx-b200"),
    ("B300", "b300", "dgx-b300"),
    ("GB200", "gb200", "gb200-nvl72"),
    ("GB300", "gb300", "gb300-nvl72"),
    ("L40S", "l40s", "l40s-pcie"),
    ("MI300X", "mi300x", "mi300x-roce"),
    ("MI325X", "mi325x", "mi325x-roce"),
    ("MI355X", "mi355x", "mi355x-roce"),
];

/// Other spellings of those names: without the form factor or the memory that only one of the kind has, and as data
/// sheets write them.
const OTHER_GPUS: &[(&str, &str)] = &[
    ("A100", "A100-SXM-80GB"),
    ("A100-SXM", "A100-SXM-80GB"),
    ("A100-80GB", "A100-SXM-80GB"),
    ("A100-40GB", "A100-SXM-40GB"),
    ("A800-80GB", "A800"),
    ("A800-SXM", "A800"),
    ("A800-SXM-80GB", "A800"),
    ("H100", "H100-SXM-80GB"),
    ("H100-80GB", "H100-SXM-80GB"),
    ("H100-SXM", "H100-SXM-80GB"),
    ("H100-PCIE-80GB", "H100-PCIE"),
    ("H800-80GB", "H800"),
    ("H800-SXM", "H800"),
    ("H800-SXM-80GB", "H800"),
    ("H200-SXM", "H200"),
    ("H200-141GB", "H200"),
    ("H200-SXM-141GB", "H200"),
    ("H20-96GB", "H20"),
    ("H20-SXM-96GB", "H20"),
    ("B200-SXM", "B200"),
    ("B200-180GB", "B200"),
    ("B200-SXM-180GB", "B200"),
    ("B300-SXM", "B300"),
    ("L40S-48GB", "L40S"),
    ("L40S-PCIE", "L40S"),
    ("MI300X-192GB", "MI300X"),
    ("MI325X-256GB", "MI325X"),
    ("MI355X-288GB", "MI355X"),
];

/// Spellings that leave open which of several parts is meant; the first of [`OTHER_GPUS`] is taken, and the column is
/// listed as assumed.
pub(super) const UNSURE_GPUS: [&str; 7] =
    ["A100", "A100-SXM", "A100-80GB", "A100-40GB", "A800", "H100", "H100-80GB"];

/// A spelling without makers, generations of a socket (`SXM5`) and separators.
pub(super) fn plain_gpu(text: &str) -> String {
    let upper = text.trim().to_ascii_uppercase();
    let words = upper.split(|c: char| c == '-' || c == '_' || c.is_whitespace());
    let words: Vec<&str> = words
        .filter(|word| {
            let said = ["", "NVIDIA", "AMD", "INSTINCT", "TENSOR", "CORE", "OAM", "HBM3", "HBM3E"];
            !said.contains(word)
        })
        .map(|word| if matches!(word, "SXM4" | "SXM5" | "SXM6") { "SXM" } else { word })
        .collect();
    words.join("-")
}

/// The name in [`GPUS`] that a text means: makers, generations of a socket (`SXM5`) and separators do not matter.
pub(super) fn gpu_name(text: &str) -> Option<&'static (&'static str, &'static str, &'static str)> {
    let name = plain_gpu(text);
    let name = OTHER_GPUS.iter().find(|(other, _)| *other == name).map_or(name.as_str(), |(_, usual)| usual);
    GPUS.iter().find(|(known, accelerator, _)| {
        known.eq_ignore_ascii_case(name) || accelerator.eq_ignore_ascii_case(text.trim())
    })
}

pub(super) fn adapt_cluster(cells: &mut Cells, cluster: &mut Cluster) -> Result<(), Skip> {
    let gpus = cells.need("gpus")?;
    if let Some(stated) = cells.stated::<u32>("gpus_per_node")? {
        if stated != cluster.gpus_per_node {
            cluster.scale_out.nics_per_node =
                cluster.scale_out.nics_per_node.saturating_mul(stated).div_ceil(cluster.gpus_per_node).max(1);
            if cluster.scale_up.domain == cluster.gpus_per_node {
                cluster.scale_up.domain = stated;
            }
        }
        cluster.gpus_per_node = stated;
    }
    if let Some(domain) = cells.stated::<u32>("nvlink_domain")?
        && domain != cluster.scale_up.domain
    {
        cluster.scale_up.domain = domain;
        cluster.scale_up.allocation = None;
    }
    match cells.row.positive("nic_gbps_per_gpu")? {
        Some(rate) => {
            cluster.scale_out.nic = Bandwidth(rate * 1e9 / 8.0);
            cluster.scale_out.nics_per_node = cluster.gpus_per_node;
        }
        None if gpus > u64::from(cluster.scale_up.domain) => cells.assumed.push("nic_gbps_per_gpu"),
        None => {}
    }
    cluster.validate().map_err(Skip::of_fault)
}
