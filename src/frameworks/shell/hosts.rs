//! The hosts on which DeepSpeed's launcher starts ranks (`deepspeed/launcher/runner.py`).

use std::collections::{BTreeMap, BTreeSet};

use super::printed::is_host;
use super::shown;
use super::state::known;

/// Hosts of a file, in its order, with the slots of each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Hosts(Vec<(String, u32)>);

impl Hosts {
    /// Reads lines of `NAME slots=N` (`_parse_hostfile`); none where only a running shell knows the slots.
    ///
    /// # Errors
    /// A line that is none, a host that stands twice, no host at all.
    pub(super) fn read(text: &str) -> Result<Option<Self>, String> {
        let mut hosts = Vec::new();
        let mut names = BTreeSet::new();
        for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let slots = line.split_once(char::is_whitespace).and_then(|(name, rest)| {
                let rest = rest.trim_start().strip_prefix("slots=")?;
                let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
                Some((name.to_owned(), rest[..end].parse().ok()?))
            });
            let Some(host) = slots else {
                if !known(line) {
                    return Ok(None);
                }
                return Err(format!(
                    "the file of hosts has the line `{}`; expected `NAME slots=N`",
                    shown(line)
                ));
            };
            // Names that are not known may differ.
            if !names.insert(host.0.clone()) && (known(&host.0) || is_host(&host.0)) {
                return Err(format!(
                    "the file of hosts has `{}` twice, which DeepSpeed refuses",
                    shown(&host.0)
                ));
            }
            hosts.push(host);
        }
        if hosts.is_empty() {
            return Err("the file of hosts is empty, which DeepSpeed refuses".to_owned());
        }
        Ok(Some(Self(hosts)))
    }

    pub(super) fn number(&self) -> u32 {
        u32::try_from(self.0.len()).unwrap_or(u32::MAX)
    }

    /// Ranks on the first hosts, on all slots or so many each (`apply_num_nodes_and_gpus`).
    pub(super) fn first(&self, hosts: Option<u32>, each: Option<u32>) -> Option<u32> {
        let hosts = hosts.unwrap_or(self.number()).min(self.number());
        match each {
            Some(each) => hosts.checked_mul(each),
            None => {
                self.0.iter().take(hosts as usize).try_fold(0_u32, |sum, (_, slots)| sum.checked_add(*slots))
            }
        }
    }

    /// Ranks on what `--include` lists, or on the rest of what `--exclude` does (`parse_resource_filter`).
    ///
    /// # Errors
    /// A host or slot that is not there.
    pub(super) fn filtered(&self, list: &str, excludes: bool) -> Result<u32, String> {
        let listed = listed(list)?;
        let all: BTreeMap<&str, u32> = self.0.iter().map(|(host, own)| (host.as_str(), *own)).collect();
        for (name, slots) in &listed {
            let own = all.get(name).copied();
            let own = own.ok_or_else(|| format!("the file of hosts has no `{}`", shown(name)))?;
            if let Some(slot) = slots.iter().find(|slot| **slot >= own) {
                return Err(format!("`{}` has no slot {slot} in the file of hosts", shown(name)));
            }
        }
        let ranks = self.0.iter().map(|(name, own)| {
            let slots = listed.get(name.as_str()).map(|slots| match u32::try_from(slots.len()) {
                Ok(0) | Err(_) => *own,
                Ok(slots) => slots,
            });
            if excludes { own - slots.unwrap_or(0) } else { slots.unwrap_or(0) }
        });
        ranks.into_iter().try_fold(0_u32, u32::checked_add).ok_or_else(|| "too many slots".to_owned())
    }
}

/// Slots of `HOST:0,1@HOST:2` that are listed for every host; none where one is taken whole.
///
/// # Errors
/// What is no number.
pub(super) fn slots_listed(list: &str) -> Result<Option<u32>, String> {
    let listed = listed(list)?;
    let slots = listed.values().map(|slots| u32::try_from(slots.len()).ok().filter(|slots| *slots > 0));
    Ok(slots.sum())
}

/// The slots that a filter lists of every host; none: all of them (`parse_node_config_list`).
fn listed(list: &str) -> Result<BTreeMap<&str, BTreeSet<u32>>, String> {
    let mut all: BTreeMap<&str, BTreeSet<u32>> = BTreeMap::new();
    for host in list.split('@') {
        let (name, slots) = host.split_once(':').map_or((host, None), |(name, slots)| (name, Some(slots)));
        let own = all.entry(name).or_default();
        for slot in slots.into_iter().flat_map(|slots| slots.split(',')) {
            let number = slot.trim().parse();
            own.insert(number.map_err(|_| format!("`{}` is no slot of a host", shown(slot)))?);
        }
    }
    Ok(all)
}
