//! What has been found, and what the rest has to beat.

use std::collections::HashMap;

use super::Request;
use crate::candidates::Group;
use crate::plan::{Layout, Plan};
use crate::units::Picos;

/// Degrees that decide what kind of plan it is; `--top` counts these.
pub(super) type Class = (u32, u32, u32, u32, u32);

pub(super) fn class_of(l: &Layout) -> Class {
    (l.tensor_parallel, l.pipeline_parallel, l.context_parallel, l.expert_parallel, l.expert_tensor_parallel)
}

pub(super) fn class_of_group(g: &Group) -> Class {
    (g.tensor_parallel, g.pipeline_parallel, g.context_parallel, g.expert_parallel, g.expert_tensor_parallel)
}

/// A settled layout.
#[derive(Debug, Clone)]
pub(super) struct Settled {
    pub time: Picos,
    pub plan: Plan,
}

impl Settled {
    pub fn key(&self) -> (Picos, &Plan) {
        (self.time, &self.plan)
    }
}

/// What a layout has to beat to matter: the time of the last class that is kept, and the last layout
/// that is kept of its own class.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Threshold {
    pub any: Option<Picos>,
    pub own: Option<(Picos, Layout)>,
}

impl Threshold {
    /// The smaller of two.
    pub fn min(self, other: Self) -> Self {
        let any = match (self.any, other.any) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        let own = match (self.own, other.own) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        Self { any, own }
    }

    /// What is faster than these by a share of them.
    pub fn lowered(self, share: f64) -> Self {
        let less = |time: Picos| time.scale(1.0 - share);
        Self { any: self.any.map(less), own: self.own.map(|(time, layout)| (less(time), layout)) }
    }

    /// Nothing that takes longer than this matters; what takes exactly as long may.
    pub fn time(self) -> Option<Picos> {
        match (self.any, self.own.map(|own| own.0)) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// Whether layouts that take at least `bound` cannot matter.
    pub fn excludes(self, bound: Picos) -> bool {
        self.time().is_some_and(|time| bound > time)
    }

    /// Whether this layout, which takes at least `bound`, cannot matter: equal times go by the layout.
    pub fn excludes_layout(self, bound: Picos, layout: &Layout) -> bool {
        self.excludes(bound) || self.own.is_some_and(|(time, other)| bound == time && *layout > other)
    }
}

/// The best `per_class` layouts of the best `top` classes.
#[derive(Debug, Clone)]
pub(super) struct Best {
    top: usize,
    per_class: usize,
    classes: HashMap<Class, Vec<Settled>>,
    /// Best times of all classes, ascending; only the first `top` matter.
    pub firsts: Vec<(Picos, Class)>,
}

impl Best {
    pub fn new(request: &Request) -> Self {
        Self {
            top: request.top.max(1),
            per_class: request.per_class.max(1),
            classes: HashMap::new(),
            firsts: Vec::new(),
        }
    }

    /// What a layout of this class has to beat.
    pub fn threshold(&self, class: Class) -> Threshold {
        let own = self.classes.get(&class).filter(|c| c.len() >= self.per_class);
        let own = own.map(|c| &c[self.per_class - 1]).map(|s| (s.time, *s.plan.layout()));
        Threshold { any: self.any_threshold(), own }
    }

    /// No class at all matters above this.
    pub fn any_threshold(&self) -> Option<Picos> {
        (self.firsts.len() >= self.top).then(|| self.firsts[self.top - 1].0)
    }

    /// The best layout of every class that is kept, best first.
    pub fn leaders(&self) -> impl Iterator<Item = &Layout> {
        let kept = self.firsts.iter().take(self.top);
        kept.filter_map(|(_, class)| self.classes.get(class)?.first()).map(|first| first.plan.layout())
    }

    pub fn offer(&mut self, settled: Settled) {
        let class = class_of(settled.plan.layout());
        let list = self.classes.entry(class).or_default();
        let at = list.partition_point(|s| s.key() <= settled.key());
        let known = at > 0 && list[at - 1].key() == settled.key();
        if known || at >= self.per_class {
            return;
        }
        list.insert(at, settled);
        list.truncate(self.per_class);
        let first = list[0].time;
        self.firsts.retain(|(_, c)| *c != class);
        let at = self.firsts.partition_point(|f| *f < (first, class));
        self.firsts.insert(at, (first, class));
    }

    pub fn into_sorted(mut self) -> Vec<Settled> {
        let mut all: Vec<Settled> = Vec::new();
        for (_, class) in self.firsts.iter().take(self.top) {
            all.extend(self.classes.remove(class).unwrap_or_default());
        }
        all.sort_by(|a, b| a.key().cmp(&b.key()));
        all
    }
}
