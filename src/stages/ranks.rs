//! Whole layers on ranks with one chunk each and whole backward passes, with traffic at both ends of the step
//! ([`super::ends`]): what every split takes at least, by dynamic programming.
//!
//! A chain through the list of rank `s` goes once, or not at all, through the ranks before and behind it, so its length
//! `U[s]` depends on nothing but which layers `s` has. On its way back to the first rank it ends the passes of every rank
//! `r <= s`, so that a step takes at least
//!
//! `U[s] + max(0, R[r] - (backward passes of the ranks before r)) + G`,
//!
//! where `R[r]` is what rank `r` reduces and the wait `G` is no less than what any rank gathers but for the forward passes
//! of the ranks before it: both depend on nothing but which layers that rank has. Whether any split stays below a time is
//! asked from the last rank to the first: of the splits of the last layers over the last ranks the one with the least
//! `max U` is the best, whatever comes before.

use super::chains::{BYTE_SLACK, Programme, SHRINK, listed};
use super::{Line, Tail};
use crate::cost::schedule::Chain;
use crate::units::Picos;

/// Waits for weights that are told apart, a power of two so that the last of them is the longest; and halvings of the
/// interval that holds the least time.
const WAITS: u32 = 64;
const HALVINGS: u32 = 12;

/// Layers of one rank: from which on is known, up to which is kept.
#[derive(Debug, Clone, Copy)]
struct Stage {
    to: usize,
    /// The longest chain through the rank, to the end of the first.
    chain: f64,
    /// By how much its reductions outlast the passes of the ranks before.
    flush: f64,
    /// What it gathers beyond the forward passes of the ranks before.
    wait: f64,
}

/// Stages of a rank by the layer they begin with.
type Stages = Vec<Vec<Stage>>;

/// Forward and backward passes.
type Passes = [f64; 2];

impl Programme<'_> {
    /// A time that no split of whole layers goes below, no higher than `enough` and, where it is not above `known`, of no
    /// use.
    pub(super) fn least_of_ranks(&self, known: Picos, enough: Picos) -> Picos {
        let (known, mut least) = (known.0 as f64, enough.0 as f64);
        let ranks = self.stages(least);
        let waits = ranks.iter().flatten().flatten().map(|stage| stage.wait);
        let step = waits.fold(0.0, f64::max) / f64::from(WAITS);
        for at in 0..=WAITS {
            // Waits up to this, and from the one before on.
            let (most, fewest) = (f64::from(at) * step, f64::from(at.saturating_sub(1)) * step);
            let possible = |time: f64| possible(&ranks, time - fewest, most);
            if !possible(least) {
                continue;
            }
            let mut below = known;
            for _ in 0..HALVINGS {
                let middle = f64::midpoint(below, least);
                *if possible(middle) { &mut least } else { &mut below } = middle;
            }
            least = below;
            if least <= known {
                break;
            }
        }
        Picos(least as u64).scale(SHRINK)
    }

    /// By rank, every stage that has the memory and does not make a step longer than `most`.
    fn stages(&self, most: f64) -> Vec<Stages> {
        let (problem, order) = (self.problem, self.order());
        let hop = problem.hop.0 as f64;
        let fixed = |rank: usize| {
            let fixed = &self.fixed[rank];
            [fixed.forward.0 as f64, fixed.backward.0 as f64]
        };
        let layer = |at: u8| self.sorts[usize::from(at)].passes();
        let ends = (0..problem.chunks()).map(fixed);
        let all = order.iter().map(|&at| layer(at)).chain(ends).fold([0.0; 2], plus);
        let chains = listed(problem, false);
        let memory: Vec<(f64, Vec<f64>)> = self.memory().into_iter().map(|row| self.by_layer(row)).collect();
        let mut ends_before = [0.0; 2];
        let mut ranks = Vec::new();
        for (rank, chains) in chains.chunks_exact(chains.len() / problem.chunks()).enumerate() {
            let own_layers = self.layers(rank, 0)..self.layers(rank + 1, 0);
            let memory = memory.iter().map(|(most, each)| (most + BYTE_SLACK, &each[own_layers.clone()]));
            let memory: Vec<(f64, &[f64])> =
                memory.filter(|(_, each)| each.iter().any(|each| *each != 0.0)).collect();
            let traffic = self.margins.as_ref().map(|margins| margins.traffic);
            let tails = traffic.map(|traffic| [&traffic.gathers[rank], &traffic.reduces[rank]]);
            let mut before = ends_before;
            let mut stages = vec![Vec::new(); order.len() + 1];
            for (from, stages) in stages.iter_mut().enumerate() {
                let mut own = fixed(rank);
                let mut counts = vec![0.0; self.sorts.len()];
                let most_layers = if problem.fixed[rank].closed { 0 } else { order.len() - from };
                for n in 0..=most_layers {
                    if let Some(&at) = order[from..].get(n.wrapping_sub(1)) {
                        counts[usize::from(at)] += 1.0;
                        own = plus(own, layer(at));
                    }
                    let behind = [0, 1].map(|pass| all[pass] - before[pass] - own[pass]);
                    let length = |chain: &Chain| length(chain, rank, [before, own, behind], hop);
                    let chain = chains.iter().map(length).fold(0.0, f64::max);
                    let bytes = |each: &[f64]| counts.iter().zip(each).map(|(n, each)| n * each).sum::<f64>();
                    // More layers take longer, and more memory.
                    if chain > most || memory.iter().any(|(most, each)| bytes(each) > *most) {
                        break;
                    }
                    if n < problem.least(rank) as usize {
                        continue;
                    }
                    let exposed = |tail: &Tail| {
                        let line = |line: &Line| {
                            let own = counts.iter().zip(&self.sorts);
                            let own = own.map(|(n, sort)| n * line.per_layer[sort.kind] as f64);
                            line.constant as f64 + own.sum::<f64>()
                        };
                        tail.lines.iter().map(line).fold(0.0, f64::max)
                    };
                    let exposed = tails.map_or([0.0; 2], |tails| tails.map(exposed));
                    let [wait, flush] =
                        [0, 1].map(|at| (exposed[at] - before[at] - rank as f64 * hop).max(0.0));
                    if chain + flush + wait <= most {
                        stages.push(Stage { to: from + n, chain, flush, wait });
                    }
                }
                if let Some(&at) = order.get(from) {
                    before = plus(before, layer(at));
                }
            }
            ranks.push(stages);
            ends_before = plus(ends_before, fixed(rank));
        }
        ranks
    }
}

fn plus(a: Passes, b: Passes) -> Passes {
    [a[0] + b[0], a[1] + b[1]]
}

/// Whether all layers can be placed so that no chain with what is reduced behind it exceeds `most` and nobody waits longer
/// than `wait`.
fn possible(ranks: &[Stages], most: f64, wait: f64) -> bool {
    // By first layer: the least that the longest chain through the ranks behind takes.
    let mut behind: Vec<f64> = Vec::new();
    for stages in ranks.iter().rev() {
        let last = stages.len() - 1;
        let longest = |stage: &Stage| {
            let others = behind.get(stage.to).copied();
            stage.chain.max(others.unwrap_or(if stage.to == last { 0.0 } else { f64::INFINITY }))
        };
        let fits = |stage: &&Stage| stage.wait <= wait && longest(stage) + stage.flush <= most;
        let least = |of: &Vec<Stage>| of.iter().filter(fits).map(longest).fold(f64::INFINITY, f64::min);
        behind = stages.iter().map(least).collect();
    }
    behind.first().is_some_and(|all| all.is_finite())
}

/// What a chain through the list of a rank takes with such passes before, on and behind that rank.
fn length(chain: &Chain, rank: usize, [before, own, behind]: [Passes; 3], hop: f64) -> f64 {
    let count = |counts: &[u64], at: usize| counts.get(at).map_or(0.0, |&n| n as f64);
    let sum = |counts: &[u64], pass: usize| {
        count(counts, rank.wrapping_sub(1)) * before[pass]
            + count(counts, rank) * own[pass]
            + count(counts, rank + 1) * behind[pass]
    };
    sum(&chain.forward, 0) + sum(&chain.backward, 1) + chain.hops as f64 * hop
}
