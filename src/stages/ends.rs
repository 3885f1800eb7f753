//! What ranks gather before their first pass and reduce after their last, beside the chains of a programme.
//!
//! With columns for the end of the last pass `E` of every rank up to the deepest that matters, the reductions `R`, the end of all
//! reductions `F` and the wait for weights `G`, a step takes at least `F + G`, and
//!
//! - a chain of passes to the end of rank `r` is not longer than `E[r]`,
//! - `E[r]`, a hop and a backward pass of rank `r - 1` are over by `E[r - 1]`, where backward passes are whole,
//! - `E[r] + R[r] <= F`, and `R[r]` is not below its lines,
//! - what rank `r` gathers, less the forward passes before its first, is not above `G`.

use super::chains::{Programme, Row};
use super::{Line, Tail, Traffic};
use crate::cost::schedule::Chain;
use crate::units::Picos;

/// A rank is stated where its traffic would, were it so many times as much, matter to the split that is judged.
const MORE: f64 = 1.5;

/// Ranks whose traffic may matter.
#[derive(Debug, Clone)]
pub(super) struct Margins<'a> {
    pub traffic: &'a Traffic,
    gathering: Vec<usize>,
    reducing: Vec<usize>,
    /// Whether the last backward pass of a rank waits for that of the next.
    returns: bool,
}

impl<'a> Margins<'a> {
    /// Those of a split with such forward and backward passes and layers of each kind by rank.
    pub fn new(
        traffic: &'a Traffic,
        [forward, backward]: [&[f64]; 2],
        hop: Picos,
        counts: &[Vec<u32>],
        returns: bool,
    ) -> Self {
        let ranks = counts.len();
        let exposed = |tails: &[Tail], rank: usize| tails[rank].at(&counts[rank]) as f64;
        // Chunk `r` is the first of rank `r`.
        let before =
            |passes: &[f64], rank: usize| passes[..rank].iter().map(|pass| pass + hop.0 as f64).sum::<f64>();
        let first = exposed(&traffic.reduces, 0);
        let late = |&rank: &usize| {
            let own = exposed(&traffic.reduces, rank) * MORE;
            if returns { own > first + before(backward, rank) } else { own > 0.0 }
        };
        let waits = |&rank: &usize| exposed(&traffic.gathers, rank) * MORE > before(forward, rank);
        let gathering = (0..ranks).filter(waits).collect();
        let mut reducing: Vec<usize> = (1..ranks).filter(late).collect();
        if first > 0.0 || !reducing.is_empty() {
            reducing.insert(0, 0);
        }
        Self { traffic, gathering, reducing, returns }
    }

    /// The last rank whose end has a column.
    fn deepest(&self) -> Option<usize> {
        self.reducing.last().copied()
    }

    /// Columns of ends and of reductions.
    pub fn columns(&self) -> usize {
        self.deepest().map_or(0, |deepest| deepest + 1 + self.reducing.len())
    }

    /// The wait for weights of a split that starts so, and the end of all its reductions where passes end so.
    pub fn of(&self, counts: &[Vec<u32>], starts: &[Picos], ends: &[Picos]) -> (Picos, Picos) {
        let exposed = |tail: (&Tail, &Vec<u32>)| Picos(tail.0.at(tail.1));
        let gathers = self.traffic.gathers.iter().zip(counts).map(exposed).zip(starts);
        let reduces = self.traffic.reduces.iter().zip(counts).map(exposed).zip(ends);
        let wait = gathers.map(|(gather, start)| gather.saturating_sub(*start)).max();
        (wait.unwrap_or_default(), reduces.map(|(reduce, end)| reduce + *end).max().unwrap_or_default())
    }
}

/// What chains, and the rows of [`Programme::margin_rows`], weigh in the answer to a programme: no split is faster than they
/// are on average (the programme's dual).
#[derive(Debug, Clone)]
pub(super) struct Duals {
    /// Of the first so many chains; together 1.
    pub chains: Vec<f64>,
    pub margins: Vec<f64>,
}

impl Programme<'_> {
    /// Column of the end of a rank: of all passes, where it has none of its own.
    pub(super) fn end(&self, rank: usize) -> usize {
        match self.margins.as_ref().and_then(Margins::deepest) {
            Some(deepest) if rank <= deepest => self.wait() + 1 + rank,
            _ => self.flush(),
        }
    }

    /// Rows of ranks' ends and traffic, in this order: passes that return through the ranks, reductions after the ends
    /// of ranks, lines of reductions, lines of gathers.
    pub(super) fn margin_rows(&self) -> Vec<Row> {
        let Some(margins) = &self.margins else { return Vec::new() };
        let mut rows = Vec::new();
        let Some(deepest) = margins.deepest() else { return self.gathers(margins) };
        let count = self.problem.chunks();
        let reduction = |at: usize| self.wait() + 1 + deepest + 1 + at;
        if margins.returns {
            for rank in 1..=deepest {
                let mut pass = Chain { hops: 1, ..Chain::none(count) };
                pass.backward[rank - 1] = 1;
                let (most, mut terms) = self.sum(&pass);
                terms.extend([(self.end(rank), 1.0), (self.end(rank - 1), -1.0)]);
                rows.push((most, terms));
            }
        }
        for rank in 0..=deepest {
            let own = margins.reducing.iter().position(|&other| other == rank);
            let own = own.map(|at| (reduction(at), 1.0));
            let last = [(self.end(rank), 1.0), (self.flush(), -1.0)];
            rows.push((0.0, last.into_iter().chain(own).collect()));
        }
        for (at, &rank) in margins.reducing.iter().enumerate() {
            for line in &margins.traffic.reduces[rank].lines {
                let (most, mut terms) = self.line(rank, line);
                terms.push((reduction(at), -1.0));
                rows.push((most, terms));
            }
        }
        rows.extend(self.gathers(margins));
        rows
    }

    /// Lines of gathers, of [`Programme::margin_rows`].
    fn gathers(&self, margins: &Margins) -> Vec<Row> {
        let mut rows = Vec::new();
        for &rank in &margins.gathering {
            let mut before = Chain { hops: rank as u64, ..Chain::none(self.problem.chunks()) };
            before.forward[..rank].fill(1);
            let (least, before) = self.sum(&before);
            for line in &margins.traffic.gathers[rank].lines {
                let (most, mut terms) = self.line(rank, line);
                terms.extend(before.iter().map(|&(at, n)| (at, -n)));
                terms.push((self.wait(), -1.0));
                rows.push((most - least, terms));
            }
        }
        rows
    }

    /// A line of a rank.
    fn line(&self, rank: usize, line: &Line) -> Row {
        let chunks = self.problem.pipeline.orders[rank].chunks.iter();
        let terms = chunks.flat_map(|&chunk| {
            self.sorts.iter().enumerate().map(move |(at, sort)| {
                (self.layers(chunk as usize, at), line.per_layer[sort.kind] as f64 / self.time_unit)
            })
        });
        (-(line.constant as f64) / self.time_unit, terms.collect())
    }

    /// What a step of any split takes at least beside a chain to the end of a rank: what the first rank gathers before, and
    /// that rank reduces behind.
    pub(super) fn least_margin(&self, end: u32) -> Picos {
        let Some(margins) = &self.margins else { return Picos::ZERO };
        let least = |tail: &Tail| {
            let line = |line: &Line| {
                let layers = self.sorts.iter();
                let layers = layers.map(|sort| i64::from(sort.count) * line.per_layer[sort.kind].min(0));
                line.constant + layers.sum::<i64>()
            };
            let most = tail.lines.iter().map(line).max().and_then(|least| u64::try_from(least).ok());
            Picos(most.unwrap_or(0))
        };
        least(&margins.traffic.gathers[0]) + least(&margins.traffic.reduces[end as usize])
    }

    /// Exposed reductions of ranks with so many layers, by rank and kind.
    pub(super) fn reductions(&self, layers: impl Fn(usize, usize) -> f64) -> Vec<f64> {
        let Some(margins) = &self.margins else { return Vec::new() };
        let exposed = |(rank, tail): (usize, &Tail)| {
            let line = |line: &Line| {
                let own = line.per_layer.iter().enumerate();
                line.constant as f64 + own.map(|(kind, &each)| layers(rank, kind) * each as f64).sum::<f64>()
            };
            tail.lines.iter().map(line).fold(0.0, f64::max)
        };
        margins.traffic.reduces.iter().enumerate().map(exposed).collect()
    }

    /// What rows weigh in an answer: of its duals those of the `first` chains, of the margins, and of chains stated later.
    pub(super) fn weights(&self, duals: &[f64], first: usize, later: &[f64]) -> Duals {
        let sum: f64 = duals[..first].iter().chain(later).map(|dual| dual.abs()).sum();
        let share = |dual: &f64| if sum > 0.0 { dual.abs() / sum } else { 0.0 };
        let margins = self.margin_rows().len();
        Duals {
            chains: duals[..first].iter().chain(later).map(share).collect(),
            margins: duals[first..].iter().take(margins).map(share).collect(),
        }
    }

    /// Weights of the margins with which, beside those of the chains, no column of theirs counts: what rounding, or
    /// another problem's ranks, leave over is not taken.
    pub(super) fn balanced(&self, chains: &[Chain], weights: &Duals) -> Vec<f64> {
        let Some(margins) = &self.margins else { return Vec::new() };
        let mut given = weights.margins.iter().map(|weight| weight.max(0.0)).chain(std::iter::repeat(0.0));
        let mut balanced = Vec::new();
        let mut take = |count: usize, room: f64, into: &mut Vec<f64>| {
            let own: Vec<f64> = given.by_ref().take(count).collect();
            let sum: f64 = own.iter().sum();
            let share = if sum > room { room / sum } else { 1.0 };
            into.extend(own.iter().map(|weight| weight * share));
        };
        if let Some(deepest) = margins.deepest() {
            // What arrives at the ends of ranks goes on to the ranks before them, or to their reductions.
            let mut arrives = vec![0.0; deepest + 1];
            for (chain, weight) in chains.iter().zip(&weights.chains) {
                if let Some(arrives) = arrives.get_mut(chain.end as usize) {
                    *arrives += weight;
                }
            }
            if margins.returns {
                take(deepest, f64::INFINITY, &mut balanced);
                for rank in (1..=deepest).rev() {
                    let on = balanced[rank - 1].min(arrives[rank]);
                    balanced[rank - 1] = on;
                    arrives[rank] -= on;
                    arrives[rank - 1] += on;
                }
            }
            take(deepest + 1, 0.0, &mut Vec::new());
            balanced.extend(&arrives);
            for &rank in &margins.reducing {
                take(margins.traffic.reduces[rank].lines.len(), arrives[rank], &mut balanced);
            }
        }
        let gathers = margins.gathering.iter().map(|&rank| margins.traffic.gathers[rank].lines.len()).sum();
        take(gathers, 1.0, &mut balanced);
        balanced
    }
}
