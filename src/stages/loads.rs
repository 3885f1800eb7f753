//! What a split over several chunks per rank puts on every rank: tabulated once, so that a way to recompute
//! costs little more than a product per rank.

use smallvec::SmallVec;

use super::chunked::Policy;
use super::tables::{ModeCost, Tables};
use super::{Choice, Counts, Problem, RankOrder, shared_bytes};
use crate::units::Picos;

/// Loads of all ranks under one split.
#[derive(Debug, Clone, Default)]
pub(super) struct Loads {
    /// First layer of every chunk, and the end of the last.
    cuts: Vec<u32>,
    ranks: Vec<RankLoad>,
    /// Whether they are priced in many ways.
    often: bool,
    /// Work memory: what a micro-batch keeps on each chunk of one rank.
    kept: Vec<u64>,
}

/// Load of one rank.
#[derive(Debug, Clone, Default)]
struct RankLoad {
    counts: Counts,
    /// Most layers of a chunk.
    longest: u32,
    /// If all layers are of one kind and nothing else is recomputed.
    alike: Option<Alike>,
    /// Both passes of one micro-batch without recomputation, ends included.
    time: u64,
    /// What passes before the rank can start and after it ends, at least.
    idle: u64,
    /// Bytes whatever is recomputed.
    steady: u64,
    /// Largest transient of the ends.
    transient: u64,
    /// Bytes beside those, whatever is recomputed, at least.
    least: u64,
    /// Whether modules beside layers recompute as they do.
    recomputes: bool,
    /// If loads are priced often, moments of which none keeps no more than another in any mode, once they are needed:
    /// layers in flight of every kind, modules beside them that recompute, and bytes that are kept anyway.
    peaks: Vec<u64>,
}

/// A rank whose layers are all of one kind.
#[derive(Debug, Clone, Copy)]
struct Alike {
    kind: usize,
    /// The most of their micro-batches in flight, summed over layers.
    in_flight: u64,
    /// The most that each of its ends keeps, perhaps not at once.
    ends: u64,
}

impl Alike {
    /// Bytes that the rank keeps at least, and at most, if a layer keeps so many.
    fn kept(self, by_layer: u64) -> [u64; 2] {
        let layers = self.in_flight * by_layer;
        [layers, layers + self.ends]
    }
}

/// A rank under one way to recompute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RankCost {
    /// Bytes beyond the limit.
    pub excess: u64,
    /// Recomputation of one micro-batch.
    pub extra: u64,
    pub choice: Choice,
}

impl Loads {
    /// The loads of a split; of bytes [`Loads::hold`] takes care.
    pub fn of(problem: &Problem, tables: &Tables, layers: &[u32]) -> Self {
        let mut loads = Self::default();
        loads.place(problem, tables, layers);
        loads
    }

    /// The loads of a split all of whose layers keep at least what is `least` of their kind.
    pub fn keeping(problem: &Problem, tables: &Tables, layers: &[u32], least: &[ModeCost]) -> Self {
        let mut loads = Self::of(problem, tables, layers);
        loads.keep(problem, tables, least);
        loads.often = true;
        loads
    }

    /// As [`Loads::of`], in place.
    pub fn place(&mut self, problem: &Problem, tables: &Tables, layers: &[u32]) {
        self.cuts.clear();
        self.cuts.reserve_exact(layers.len() + 1);
        self.cuts.push(0);
        let mut at = 0;
        for &n in layers {
            at += n;
            self.cuts.push(at);
        }
        self.ranks.clear();
        self.ranks.reserve_exact(problem.pipeline.orders.len());
        let (mut before, mut hops) = (0, 0);
        for (rank, order) in problem.pipeline.orders.iter().enumerate() {
            let first = order.chunks.first() == Some(&(rank as u32));
            let idle = if first { before + hops * problem.hop.0 } else { 0 };
            let mut load = RankLoad { idle, ..RankLoad::default() };
            for &chunk in &order.chunks {
                let k = chunk as usize;
                let (from, to) = (self.cuts[k], self.cuts[k + 1]);
                let fixed = &problem.fixed[k];
                load.time += fixed.forward.0 + fixed.backward.0 + tables.time(from, to);
                load.longest = load.longest.max(to - from);
                load.transient = load.transient.max(fixed.transient.0);
                load.recomputes |= fixed.recomputes;
                tables.count(from, to, &mut load.counts);
            }
            let mut kinds = (0..tables.kinds).filter(|&kind| load.counts[kind] > 0);
            if let (Some(kind), None, false) = (kinds.next(), kinds.next(), load.recomputes) {
                let chunks = || order.chunks.iter().map(|&k| k as usize);
                let layers: SmallVec<[u64; 32]> =
                    chunks().map(|k| u64::from(self.cuts[k + 1] - self.cuts[k])).collect();
                let in_flight = order.most_kept(&layers);
                let kept_by_end = |(at, k): (usize, usize)| match problem.fixed[k].kept.0 {
                    0 => 0,
                    kept => kept * order.states().map(|state| u64::from(state[at])).max().unwrap_or(0),
                };
                let ends = chunks().enumerate().map(kept_by_end).sum();
                load.alike = Some(Alike { kind, in_flight, ends });
            }
            // The first chunks of the ranks follow one another at both ends of the step, at its beginning
            // alone where weight gradients may come last.
            if first {
                let (fixed, at) = (&problem.fixed[rank], (self.cuts[rank], self.cuts[rank + 1]));
                if problem.pipeline.split_backward {
                    let counts = tables.counts(at.0, at.1);
                    let layers =
                        problem.kinds.iter().zip(counts).map(|(kind, n)| u64::from(n) * kind.forward.0);
                    before += fixed.forward.0 + layers.sum::<u64>();
                    hops += 1;
                } else {
                    before += fixed.forward.0 + fixed.backward.0 + tables.time(at.0, at.1);
                    hops += 2;
                }
            }
            self.ranks.push(load);
        }
    }

    /// Layers of every kind on a rank.
    pub fn counts(&self, rank: usize) -> &Counts {
        &self.ranks[rank].counts
    }

    /// Reads what the ranks hold; problems that share splits may differ in that.
    pub fn hold(&mut self, problem: &Problem) {
        for (load, order) in self.ranks.iter_mut().zip(&problem.pipeline.orders) {
            let (mut held, mut gathered, mut touches) = (problem.rank_bytes.0, 0, 0);
            for &chunk in &order.chunks {
                let fixed = &problem.fixed[chunk as usize];
                held += fixed.held.0;
                gathered = gathered.max(fixed.gathered.0);
                touches |= fixed.touches;
            }
            for (kind, &count) in problem.kinds.iter().zip(&load.counts).filter(|(_, n)| **n > 0) {
                held += u64::from(count) * kind.held.0;
                gathered = gathered.max(kind.gathered.0);
                touches |= kind.touches;
            }
            load.steady = held + gathered + shared_bytes(&problem.shared, touches);
        }
    }

    /// A time that the schedule takes at least where all layers recompute in one way: every rank is busy
    /// with its own, and waits for the first chunks of those before it.
    pub fn busy(&self, problem: &Problem, tables: &Tables, choice: Choice) -> Picos {
        let mode = match (choice, problem.block) {
            (Choice::Block(_), Some(block)) => block.rest,
            (Choice::Mode(mode), _) => mode,
            (Choice::Block(_), None) => return Picos::ZERO,
        };
        let costs = tables.mode(mode);
        let m = problem.pipeline.micro_batches;
        let busy = |load: &RankLoad| {
            let extra = costs.iter().zip(&load.counts).map(|(cost, &n)| u64::from(n) * cost.extra);
            load.idle + m * (load.time + extra.sum::<u64>())
        };
        Picos(self.ranks.iter().map(busy).max().unwrap_or(0))
    }

    /// The first rank from `guess` on, round and round, that lacks memory.
    pub fn lacking(
        &mut self,
        problem: &Problem,
        tables: &Tables,
        policy: Policy,
        guess: usize,
    ) -> Option<usize> {
        let ranks = self.ranks.len();
        let lacks = |rank: &usize| self.lacks(problem, tables, *rank, policy);
        (guess..ranks).chain(0..guess.min(ranks)).find(lacks)
    }

    /// Cost of a rank.
    pub fn rank(&mut self, problem: &Problem, tables: &Tables, rank: usize, policy: Policy) -> RankCost {
        match policy {
            Policy::All(choice) => self.cost(problem, tables, rank, choice),
            Policy::Cheapest => self.cheapest(problem, tables, rank),
        }
    }

    /// Takes note of what ranks keep at least, where every layer keeps at least what is `least` of its kind.
    fn keep(&mut self, problem: &Problem, tables: &Tables, least: &[ModeCost]) {
        let Self { cuts, ranks, .. } = self;
        for (load, order) in ranks.iter_mut().zip(&problem.pipeline.orders) {
            let kept_by = |k: u32| {
                let counts = tables.counts(cuts[k as usize], cuts[k as usize + 1]);
                let layers = least.iter().zip(counts).map(|(cost, n)| u64::from(n) * cost.kept);
                problem.fixed[k as usize].kept.0 + layers.sum::<u64>()
            };
            let kept = match load.alike {
                Some(alike) if alike.ends == 0 => alike.kept(least[alike.kind].kept)[0],
                // One state of the many: most ranks lack memory in the first.
                _ => {
                    order.in_flight.iter().zip(&order.chunks).map(|(&n, &k)| u64::from(n) * kept_by(k)).sum()
                }
            };
            let present = least.iter().zip(&load.counts).filter(|(_, n)| **n > 0);
            let transient = present.map(|(cost, _)| cost.transient).max().unwrap_or(0);
            load.least = kept + load.transient.max(transient);
        }
    }

    /// Whether some rank lacks memory in every way, of loads from [`Loads::keeping`] that [`Loads::hold`].
    pub fn lack_always(&self, problem: &Problem) -> bool {
        self.ranks.iter().any(|load| load.steady + load.least > problem.limit.0)
    }

    /// Whether a rank holds more than the limit.
    fn lacks(&mut self, problem: &Problem, tables: &Tables, rank: usize, policy: Policy) -> bool {
        let Policy::All(choice) = policy else { return self.rank(problem, tables, rank, policy).excess > 0 };
        if let Some((alike, cost)) = self.alike(problem, tables, rank, choice) {
            let [least, most] =
                alike.kept(cost.kept).map(|kept| self.beyond(problem, rank, kept, cost.transient));
            if least > 0 || most == 0 {
                return least > 0;
            }
        }
        if let (Choice::Mode(mode), true) = (choice, self.often)
            && problem.modes[usize::from(mode)].group == 1
        {
            let (kept, transient) = self.at_peaks(problem, tables, rank, mode);
            return self.beyond(problem, rank, kept, transient) > 0;
        }
        let (_, transient) = self.price_chunks(problem, tables, rank, choice);
        let load = &self.ranks[rank];
        let most = problem.limit.0.checked_sub(load.steady + load.transient.max(transient));
        most.is_none_or(|most| problem.pipeline.orders[rank].most_kept(&self.kept) > most)
    }

    /// What a rank keeps at most in a mode of single layers, and the largest transient of that.
    fn at_peaks(&mut self, problem: &Problem, tables: &Tables, rank: usize, mode: u16) -> (u64, u64) {
        let load = &mut self.ranks[rank];
        if load.peaks.is_empty() {
            load.peaks = peaks(problem, tables, &self.cuts, &problem.pipeline.orders[rank]);
        }
        let (costs, beside) = (tables.mode(mode), tables.beside(mode));
        let kept = |moment: &[u64]| {
            let layers = moment.iter().zip(costs).map(|(n, cost)| n * cost.kept).sum::<u64>();
            layers + moment[costs.len()] * beside.kept + moment[costs.len() + 1]
        };
        let kept = load.peaks.chunks_exact(costs.len() + 2).map(kept).max().unwrap_or(0);
        let present = costs.iter().zip(&load.counts).filter(|(_, n)| **n > 0).map(|(cost, _)| cost.transient);
        let beside = load.recomputes.then_some(beside.transient);
        (kept, present.chain(beside).max().unwrap_or(0))
    }

    fn cost(&mut self, problem: &Problem, tables: &Tables, rank: usize, choice: Choice) -> RankCost {
        if let Some((alike, cost)) = self.alike(problem, tables, rank, choice)
            && let [kept, most] = alike.kept(cost.kept)
            && kept == most
        {
            let extra = u64::from(self.ranks[rank].counts[alike.kind]) * cost.extra;
            return RankCost { extra, excess: self.beyond(problem, rank, kept, cost.transient), choice };
        }
        let (extra, transient) = self.price_chunks(problem, tables, rank, choice);
        let kept = problem.pipeline.orders[rank].most_kept(&self.kept);
        RankCost { extra, excess: self.beyond(problem, rank, kept, transient), choice }
    }

    /// The layers of a rank if they are all of one kind, and what one of them costs.
    fn alike<'a>(
        &self,
        problem: &Problem,
        tables: &'a Tables,
        rank: usize,
        choice: Choice,
    ) -> Option<(Alike, &'a ModeCost)> {
        let (Choice::Mode(mode), Some(alike)) = (choice, self.ranks[rank].alike) else { return None };
        (problem.modes[usize::from(mode)].group == 1).then(|| (alike, &tables.mode(mode)[alike.kind]))
    }

    /// Bytes of a rank beyond the limit.
    fn beyond(&self, problem: &Problem, rank: usize, kept: u64, transient: u64) -> u64 {
        let load = &self.ranks[rank];
        (load.steady + kept + load.transient.max(transient)).saturating_sub(problem.limit.0)
    }

    /// Prices the chunks of a rank; recomputation of all, and the largest transient.
    fn price_chunks(
        &mut self,
        problem: &Problem,
        tables: &Tables,
        rank: usize,
        choice: Choice,
    ) -> (u64, u64) {
        self.kept.clear();
        let (mut extra, mut transient) = (0, 0);
        for &k in &problem.pipeline.orders[rank].chunks {
            let fixed = &problem.fixed[k as usize];
            let at = (self.cuts[k as usize], self.cuts[k as usize + 1]);
            let cost = match choice {
                Choice::Mode(mode) => tables.in_mode(problem, fixed, &tables.counts(at.0, at.1), mode),
                Choice::Block(n) => tables.in_block(problem, fixed, at, n),
            };
            extra += cost.extra;
            transient = transient.max(cost.transient);
            self.kept.push(cost.kept);
        }
        (extra, transient)
    }

    /// The choice with the fewest bytes beyond the limit, and of those the least recomputation.
    fn cheapest(&mut self, problem: &Problem, tables: &Tables, rank: usize) -> RankCost {
        let longest = self.ranks[rank].longest;
        let mut best: Option<RankCost> = None;
        let mut consider = |choice: Choice| {
            let cost = self.cost(problem, tables, rank, choice);
            if best.is_none_or(|best| (cost.excess, cost.extra) < (best.excess, best.extra)) {
                best = Some(cost);
            }
            cost
        };
        for &mode in &tables.modes {
            let cost = consider(Choice::Mode(mode));
            if cost.excess == 0 && (cost.extra == 0 || tables.kinds == 1 && !problem.recomputes_beside()) {
                break;
            }
        }
        if let Some(block) = problem.block {
            // More layers only cost more.
            let most = block.counts.1.min(longest.max(block.counts.0));
            let _ = (block.counts.0..=most).any(|n| consider(Choice::Block(n)).excess == 0);
        }
        best.unwrap_or(RankCost { extra: 0, excess: u64::MAX, choice: Choice::Mode(0) })
    }
}

/// See [`RankLoad::peaks`].
fn peaks(problem: &Problem, tables: &Tables, cuts: &[u32], order: &RankOrder) -> Vec<u64> {
    let width = tables.kinds + 2;
    let mut chunks: Vec<u64> = Vec::with_capacity(width * order.chunks.len());
    for &k in &order.chunks {
        let (k, fixed) = (k as usize, &problem.fixed[k as usize]);
        let counts = tables.counts(cuts[k], cuts[k + 1]);
        chunks.extend(counts[..tables.kinds].iter().map(|&n| u64::from(n)));
        chunks.extend([u64::from(fixed.recomputes), fixed.kept.0]);
    }
    let no_more = |one: &[u64], other: &[u64]| one.iter().zip(other).all(|(one, other)| one <= other);
    let mut peaks: Vec<u64> = Vec::new();
    let mut moment = vec![0; width];
    for state in order.states() {
        moment.fill(0);
        for (&n, chunk) in state.iter().zip(chunks.chunks_exact(width)) {
            moment.iter_mut().zip(chunk).for_each(|(sum, own)| *sum += u64::from(n) * own);
        }
        if peaks.chunks_exact(width).any(|peak| no_more(&moment, peak)) {
            continue;
        }
        let mut left = Vec::with_capacity(peaks.len() + width);
        peaks.chunks_exact(width).filter(|peak| !no_more(peak, &moment)).for_each(|peak| left.extend(peak));
        left.extend(&moment);
        peaks = left;
    }
    peaks
}
