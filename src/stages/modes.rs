//! The ways to recompute of a problem, with what every problem that shares them asks of all of them.

use std::ops::Deref;
use std::sync::Arc;

use smallvec::SmallVec;

use super::{LayerMode, Mode, PerKind, ProblemError};
use crate::units::Picos;

/// Ways to recompute, shared by the problems of many layouts.
#[derive(Debug, Clone)]
pub struct Modes(Arc<Told>);

#[derive(Debug)]
struct Told {
    list: Vec<Mode>,
    any_offered: bool,
    most: PerKind<Most>,
    most_beside: LayerMode,
    /// What is wrong with one of them, whatever the problem.
    fault: Option<&'static str>,
}

/// The most of one kind of layers over all modes, in picoseconds and bytes.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Most {
    pub extra: u64,
    pub kept: u64,
    pub transient: u64,
}

impl Modes {
    /// Whether whole chunks may use any.
    pub(super) fn any_offered(&self) -> bool {
        self.0.any_offered
    }

    /// Whether both are one and the same list.
    pub(super) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// The most that recomputing a layer of a kind takes.
    #[must_use]
    pub fn most_extra(&self, kind: usize) -> Picos {
        Picos(self.0.most.get(kind).map_or(0, |most| most.extra))
    }

    /// The most that any does to modules beside layers.
    #[must_use]
    pub fn most_beside(&self) -> LayerMode {
        self.0.most_beside
    }

    /// The most of every kind of layers, if each mode lists just so many kinds.
    pub(super) fn most(&self, kinds: usize) -> Result<&[Most], ProblemError> {
        match self.0.fault {
            Some(fault) => Err(ProblemError::Malformed(fault)),
            None if self.0.most.len() == kinds || self.is_empty() => Ok(&self.0.most),
            None => Err(ProblemError::Malformed(OTHER_KINDS)),
        }
    }
}

const OTHER_KINDS: &str = "a recompute mode does not list every kind";

impl From<Vec<Mode>> for Modes {
    fn from(list: Vec<Mode>) -> Self {
        let kinds = list.first().map_or(0, |mode| mode.extra.len());
        let mut most: PerKind<Most> = SmallVec::from_elem(Most::default(), kinds);
        let mut fault = None;
        for mode in &list {
            if [mode.extra.len(), mode.kept.len(), mode.transient.len()] != [kinds; 3] {
                fault = Some(OTHER_KINDS);
                break;
            }
            if mode.group == 0 || mode.group > 1 && mode.kept.windows(2).any(|pair| pair[0] != pair[1]) {
                fault = Some("grouped layers keep different inputs");
                break;
            }
            for (kind, most) in most.iter_mut().enumerate() {
                most.extra = most.extra.max(mode.extra[kind].0);
                most.kept = most.kept.max(mode.kept[kind].0);
                most.transient = most.transient.max(mode.transient[kind].0);
            }
        }
        let most_beside = list.iter().fold(LayerMode::default(), |most, mode| LayerMode {
            extra: most.extra.max(mode.beside.extra),
            kept: most.kept.max(mode.beside.kept),
            transient: most.transient.max(mode.beside.transient),
        });
        let any_offered = list.iter().any(|mode| mode.offered);
        Self(Arc::new(Told { list, any_offered, most, most_beside, fault }))
    }
}

impl FromIterator<Mode> for Modes {
    fn from_iter<T: IntoIterator<Item = Mode>>(modes: T) -> Self {
        modes.into_iter().collect::<Vec<_>>().into()
    }
}

impl Deref for Modes {
    type Target = [Mode];
    fn deref(&self) -> &[Mode] {
        &self.0.list
    }
}
