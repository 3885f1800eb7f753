//! Tables of one problem that solvers look up: counts of layers in an interval, costs of modes.

use std::sync::Arc;

use super::chunked::Policy;
use super::{Choice, Counts, Fixed, Modes, Problem, Run};

/// One kind of layer in one recompute mode.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ModeCost {
    pub extra: u64,
    pub kept: u64,
    pub transient: u64,
}

impl ModeCost {
    #[inline]
    pub fn add(&mut self, layer: &Self, count: u32) {
        if count > 0 {
            self.extra += u64::from(count) * layer.extra;
            self.kept += u64::from(count) * layer.kept;
            self.transient = self.transient.max(layer.transient);
        }
    }
}

/// What an interval of layers costs on a chunk whatever it recomputes, ends included.
#[derive(Debug, Clone, Copy)]
pub(super) struct Interval {
    pub forward: u64,
    pub backward: u64,
    pub held: u64,
    pub gathered: u64,
    pub touches: u64,
}

/// Look-ups for the problem that was loaded last.
#[derive(Debug, Default)]
pub(super) struct Tables {
    /// Number of layer kinds.
    pub kinds: usize,
    /// Number of layers.
    pub layers: u32,
    /// Kind of each layer.
    pub kind_at: Vec<u8>,
    /// Layers of each kind.
    pub totals: Counts,
    /// Modes that whole chunks may use, least recomputation of the whole model first.
    pub modes: Vec<u16>,
    /// Layers of each kind before each position, `kinds` rows of `layers + 1`; empty for one kind.
    prefix: Vec<u32>,
    /// Time of both passes of the layers before each position.
    time: Vec<u64>,
    /// Costs of each mode, kind by kind.
    table: Vec<ModeCost>,
    /// What each does to modules beside layers.
    beside: Vec<ModeCost>,
    /// Work memory: recomputation of the whole model in each mode.
    priced: Vec<(u64, u16)>,
    /// What was loaded: runs, ways to recompute, and both passes of a layer by kind.
    runs: Arc<[Run]>,
    ways: Option<Modes>,
    passes: Vec<u64>,
}

impl Tables {
    /// Loads a problem; those of one line of layouts mostly differ in nothing that is tabulated.
    pub fn load(&mut self, problem: &Problem) {
        let passes = || problem.kinds.iter().map(|kind| kind.forward.0 + kind.backward.0);
        let same_ways = self.ways.as_ref().is_some_and(|ways| ways.is(&problem.modes));
        if same_ways && self.runs == problem.runs && passes().eq(self.passes.iter().copied()) {
            return;
        }
        self.runs.clone_from(&problem.runs);
        self.ways = Some(problem.modes.clone());
        self.passes.clear();
        self.passes.extend(passes());
        self.kinds = problem.kinds.len();
        self.layers = problem.layer_count();
        self.kind_at.clear();
        self.totals = Counts::default();
        for run in &*problem.runs {
            self.kind_at.extend(std::iter::repeat_n(run.kind, run.count as usize));
            self.totals[usize::from(run.kind)] += run.count;
        }
        self.prefix.clear();
        if self.kinds > 1 {
            for kind in 0..self.kinds {
                let mut seen = 0;
                self.prefix.push(0);
                for &at in &self.kind_at {
                    seen += u32::from(usize::from(at) == kind);
                    self.prefix.push(seen);
                }
            }
        }
        self.time.clear();
        self.time.push(0);
        let mut time = 0;
        for &at in &self.kind_at {
            time += self.passes[usize::from(at)];
            self.time.push(time);
        }
        self.table.clear();
        for mode in problem.modes.iter() {
            self.table.extend((0..self.kinds).map(|kind| ModeCost {
                extra: mode.extra[kind].0,
                kept: mode.kept[kind].0,
                transient: mode.transient[kind].0,
            }));
        }
        self.beside.clear();
        self.beside.extend(problem.modes.iter().map(|mode| ModeCost {
            extra: mode.beside.extra.0,
            kept: mode.beside.kept.0,
            transient: mode.beside.transient.0,
        }));
        let mut priced = std::mem::take(&mut self.priced);
        priced.clear();
        for (at, _) in problem.modes.iter().enumerate().filter(|(_, mode)| mode.offered) {
            let costs = &self.table[at * self.kinds..][..self.kinds];
            let extra = costs.iter().zip(&self.totals).map(|(cost, &n)| cost.extra * u64::from(n)).sum();
            priced.push((extra, at as u16));
        }
        priced.sort_unstable();
        self.modes.clear();
        self.modes.extend(priced.iter().map(|(_, mode)| mode));
        self.priced = priced;
    }

    /// Layers by kind in an interval.
    #[inline]
    pub fn counts(&self, from: u32, to: u32) -> Counts {
        let mut counts = Counts::default();
        self.count(from, to, &mut counts);
        counts
    }

    /// Adds the layers of an interval, by kind.
    #[inline]
    pub fn count(&self, from: u32, to: u32, into: &mut Counts) {
        if self.kinds == 1 {
            into[0] += to - from;
        } else {
            let width = self.layers as usize + 1;
            for (kind, count) in into.iter_mut().enumerate().take(self.kinds) {
                let row = kind * width;
                *count += self.prefix[row + to as usize] - self.prefix[row + from as usize];
            }
        }
    }

    /// Time of both passes of an interval, nothing recomputed.
    #[inline]
    pub fn time(&self, from: u32, to: u32) -> u64 {
        self.time[to as usize] - self.time[from as usize]
    }

    /// What so many layers by kind cost on a chunk.
    #[inline]
    pub fn interval(&self, problem: &Problem, fixed: &Fixed, counts: &Counts) -> Interval {
        let mut sum = Interval {
            forward: fixed.forward.0,
            backward: fixed.backward.0,
            held: fixed.held.0,
            gathered: fixed.gathered.0,
            touches: fixed.touches,
        };
        for (kind, &count) in problem.kinds.iter().zip(counts) {
            if count > 0 {
                let n = u64::from(count);
                sum.forward += n * kind.forward.0;
                sum.backward += n * kind.backward.0;
                sum.held += n * kind.held.0;
                sum.gathered = sum.gathered.max(kind.gathered.0);
                sum.touches |= kind.touches;
            }
        }
        sum
    }

    /// No more than any mode costs, by kind, whether whole chunks may use it or not.
    pub fn least(&self, problem: &Problem) -> Vec<ModeCost> {
        let all = |kind: usize| (0..problem.modes.len()).map(move |mode| (mode, mode * self.kinds + kind));
        let least = |kind: usize| ModeCost {
            extra: all(kind).map(|(_, at)| self.table[at].extra).min().unwrap_or(0),
            kept: all(kind)
                .map(|(mode, at)| self.table[at].kept / u64::from(problem.modes[mode].group.max(1)))
                .min()
                .unwrap_or(0),
            transient: all(kind).map(|(_, at)| self.table[at].transient).min().unwrap_or(0),
        };
        (0..self.kinds).map(least).collect()
    }

    /// Costs of a mode by kind.
    #[inline]
    pub fn mode(&self, mode: u16) -> &[ModeCost] {
        let start = usize::from(mode) * self.kinds;
        &self.table[start..start + self.kinds]
    }

    /// What a mode does to modules beside layers that recompute as those do.
    #[inline]
    pub fn beside(&self, mode: u16) -> &ModeCost {
        &self.beside[usize::from(mode)]
    }

    /// Recomputation, kept bytes and transient of what stands beside layers in one mode.
    #[inline]
    pub fn ends(&self, fixed: &Fixed, mode: u16) -> ModeCost {
        let own = ModeCost { extra: 0, kept: fixed.kept.0, transient: fixed.transient.0 };
        if !fixed.recomputes {
            return own;
        }
        let beside = self.beside(mode);
        ModeCost {
            extra: beside.extra,
            kept: own.kept + beside.kept,
            transient: own.transient.max(beside.transient),
        }
    }

    /// Recomputation, kept bytes and transient of so many layers in one mode, on top of the ends'.
    #[inline]
    pub fn in_mode(&self, problem: &Problem, fixed: &Fixed, counts: &Counts, mode: u16) -> ModeCost {
        let mut total = self.ends(fixed, mode);
        let ends_kept = total.kept;
        let costs = self.mode(mode);
        let mut all = 0;
        for (cost, &count) in costs.iter().zip(counts) {
            total.add(cost, count);
            all += count;
        }
        let group = problem.modes[usize::from(mode)].group;
        if group > 1 && all > 0 {
            total.kept = ends_kept + u64::from(all.div_ceil(group)) * costs[0].kept;
        }
        total
    }

    /// The same with the first `n` layers of the interval recomputed wholly.
    #[inline]
    pub fn in_block(&self, problem: &Problem, fixed: &Fixed, (from, to): (u32, u32), n: u32) -> ModeCost {
        let mut total = ModeCost::default();
        if let Some(block) = problem.block {
            total = self.ends(fixed, block.rest);
            let edge = to.min(from.saturating_add(n));
            for (mode, from, to) in [(block.full, from, edge), (block.rest, edge, to)] {
                let counts = self.counts(from, to);
                for (cost, &count) in self.mode(mode).iter().zip(&counts) {
                    total.add(cost, count);
                }
            }
        }
        total
    }

    /// Whether no chunk needs fewer bytes under one policy than under another.
    pub fn keeps_no_less(&self, problem: &Problem, one: Policy, other: Policy) -> bool {
        let alone = |mode: u16| problem.modes[usize::from(mode)].group <= 1;
        let costs =
            |(one, other): (&ModeCost, &ModeCost)| one.kept >= other.kept && one.transient >= other.transient;
        let no_less = |one: u16, other: u16| {
            let kinds = self.totals.iter().zip(self.mode(one).iter().zip(self.mode(other)));
            let mut kinds = kinds.filter(|(n, _)| **n > 0);
            alone(one) && alone(other) && kinds.all(|(_, both)| costs(both))
        };
        let beside =
            |one: u16, other: u16| costs((&self.beside[usize::from(one)], &self.beside[usize::from(other)]));
        match (one, other, problem.block) {
            _ if one == other => true,
            (Policy::All(Choice::Mode(one)), Policy::All(Choice::Mode(other)), _) => {
                no_less(one, other) && beside(one, other)
            }
            (Policy::All(Choice::Block(_)), Policy::All(Choice::Mode(other)), Some(block)) => {
                no_less(block.full, other) && no_less(block.rest, other) && beside(block.rest, other)
            }
            _ => false,
        }
    }

    /// Whether no chunk recomputes for less time under one policy than under another.
    pub fn recomputes_no_less(&self, problem: &Problem, one: Policy, other: Policy) -> bool {
        // Of what is recomputed, of the rest, and of what is beside.
        let extra = |choice: Choice| match (choice, problem.block) {
            (Choice::Mode(mode), _) => Some((self.mode(mode), self.mode(mode), mode)),
            (Choice::Block(_), Some(block)) => {
                Some((self.mode(block.full), self.mode(block.rest), block.rest))
            }
            (Choice::Block(_), None) => None,
        };
        match (one, other) {
            (Policy::All(Choice::Block(one)), Policy::All(Choice::Block(other))) => one >= other,
            (Policy::All(one), Policy::All(other)) => {
                // The least of the one's layers, the most of the other's.
                let (Some((_, one, one_beside)), Some((other, _, other_beside))) = (extra(one), extra(other))
                else {
                    return false;
                };
                let mut kinds = self.totals.iter().zip(one.iter().zip(other)).filter(|(n, _)| **n > 0);
                let beside = |mode: u16| self.beside[usize::from(mode)].extra;
                kinds.all(|(_, (one, other))| one.extra >= other.extra)
                    && beside(one_beside) >= beside(other_beside)
            }
            _ => false,
        }
    }
}
