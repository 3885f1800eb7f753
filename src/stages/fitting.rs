//! Splits over several chunks per rank that every rank has the memory for, found by moving cuts between chunks.
//!
//! What a rank keeps, while so many micro-batches of each of its chunks are in flight, is a sum over its layers; so is its
//! time. Each sum is a share of what the rank may have of it, and a split is the better the less `sum of exp(share)` is,
//! shares counted in [`SHARPNESS`]: mostly the largest of them. To shorten one chunk all cuts up to another one move, so
//! moves of single cuts are not enough: of all ways to move every cut by a few layers, a short dynamic programme finds the
//! one that is best as far as the derivative says.

use super::Problem;
use super::chunked::Policy;
use super::loads::Loads;
use super::tables::Tables;
use super::walk::{Chunks, Row, Shown, Walk};

/// How much shares weigh more if they are larger: one after the other, as far as moves help.
const SHARPNESS: [f64; 6] = [6.0, 12.0, 24.0, 48.0, 96.0, 200.0];
/// Sums of floating-point numbers that should be equal differ by less.
const SLACK: f64 = 1e-9;
/// Chunks of which splits are walked through where moves find none, and for how many steps.
const FEW: usize = 8;
const STEPS: u64 = 12_000;
/// Layers that a cut moves at most, at first.
const REACH: i32 = 4;
/// Moves that are made at most, for one level of time.
const MOVES: usize = 160;
/// Levels of time that are tried between that of an average rank and that of the first split that fits.
const LEVELS: usize = 5;

/// A sum over layers of a rank that must not exceed what the rank may have.
#[derive(Debug)]
struct Sum {
    rank: usize,
    /// By chunk of the rank: micro-batches in flight; empty for the time of the rank.
    in_flight: Vec<u32>,
    /// What is had beside layers, and may be had.
    beside: f64,
    most: f64,
}

/// The sums of one problem under one policy.
pub(super) struct Fitting<'a> {
    problem: &'a Problem,
    tables: &'a Tables,
    policy: Policy,
    /// By kind of layers: bytes held, and kept per micro-batch.
    bytes: Vec<[f64; 2]>,
    time: Vec<f64>,
    sums: Vec<Sum>,
    /// By rank: what its largest sum of bytes says too little.
    unseen: Vec<f64>,
}

/// First layer of every chunk, and the end of the last.
type Cuts = Vec<u32>;

/// How much worse a split gets by one unit more of a sum.
fn price(sum: &Sum, share: f64, sharpness: f64) -> f64 {
    sharpness * (sharpness * share).exp() / sum.most
}

/// Layers of every chunk.
fn split_at(cuts: &[u32]) -> Vec<u32> {
    cuts.windows(2).map(|pair| pair[1] - pair[0]).collect()
}

fn cuts_of(split: &[u32]) -> Cuts {
    let ends = split.iter().scan(0, |at, n| {
        *at += n;
        Some(*at)
    });
    std::iter::once(0).chain(ends).collect()
}

/// Why no split was found.
enum Failed {
    /// None fits, as far as sums and what was seen beside them say.
    NothingFits,
    /// Moves of cuts lead to none.
    NoneFound,
}

/// What the layers of every chunk come to, and how much larger every sum is than what it may be.
#[derive(Debug, Default)]
struct Work {
    chunks: Vec<[f64; 3]>,
    shares: Vec<f64>,
}

impl<'a> Fitting<'a> {
    /// `bytes` are those of a layer of every kind under the policy: held, and kept per micro-batch.
    pub fn new(problem: &'a Problem, tables: &'a Tables, policy: Policy, bytes: &[(u64, u64)]) -> Self {
        let bytes = bytes.iter().map(|&(held, kept)| [held as f64, kept as f64]).collect();
        let time = problem.kinds.iter().map(|kind| (kind.forward.0 + kind.backward.0) as f64).collect();
        let all_fixed = problem.fixed_in(policy.way().as_slice());
        let mut sums = Vec::new();
        for (rank, order) in problem.pipeline.orders.iter().enumerate() {
            let fixed = || order.chunks.iter().map(|&k| &all_fixed[k as usize]);
            let held = problem.rank_bytes.0 + fixed().map(|fixed| fixed.held.0).sum::<u64>();
            for state in order.states() {
                let kept: u64 = fixed().zip(state).map(|(fixed, &n)| u64::from(n) * fixed.kept.0).sum();
                let (beside, most) = ((held + kept) as f64, problem.limit.0 as f64);
                sums.push(Sum { rank, in_flight: state.to_vec(), beside, most });
            }
            let time: u64 = fixed().map(|fixed| fixed.forward.0 + fixed.backward.0).sum();
            sums.push(Sum { rank, in_flight: Vec::new(), beside: time as f64, most: f64::INFINITY });
        }
        let unseen = vec![0.0; problem.pipeline.orders.len()];
        Self { problem, tables, policy, bytes, time, sums, unseen }
    }

    /// Splits that fit, reached from another: one whose fullest rank takes as little time as is found, and those on the way
    /// there. None if none is found.
    pub fn splits(&mut self, from: &[u32], loads: &mut Loads) -> Vec<Vec<u32>> {
        let cuts = cuts_of(from);
        self.see(&cuts, loads);
        let mut best = match self.under(f64::INFINITY, cuts, loads) {
            Ok(cuts) => cuts,
            Err(Failed::NothingFits) => return Vec::new(),
            Err(Failed::NoneFound) => match self.walk(loads) {
                Some(cuts) => cuts,
                None => return Vec::new(),
            },
        };
        let mut found = vec![split_at(&best)];
        let (mut high, mut low) = self.times(&best);
        for _ in 0..LEVELS {
            let level = low.midpoint(high);
            match self.under(level, best.clone(), loads) {
                Ok(cuts) => {
                    found.push(split_at(&cuts));
                    (high, best) = (self.times(&cuts).0, cuts);
                }
                Err(_) => low = level,
            }
        }
        found.reverse();
        found
    }

    /// The first split that fits of few chunks.
    fn walk(&mut self, loads: &mut Loads) -> Option<Cuts> {
        let (problem, tables) = (self.problem, self.tables);
        if problem.chunks() > FEW {
            return None;
        }
        let least = self.least();
        let chunks = Chunks {
            order: &tables.kind_at,
            sorts: tables.kinds,
            least: &least,
            ranks: &self.problem.pipeline.rank_of_chunk,
        };
        let bytes = self.sums.iter().filter(|sum| !sum.in_flight.is_empty());
        let row = |sum: &Sum| {
            let mut each = vec![0.0; problem.chunks() * tables.kinds];
            self.weigh(sum, 1.0 / sum.most, &mut each);
            Row { most: (1.0 - sum.beside / sum.most) * (1.0 + SLACK), each, lowers: false }
        };
        let rows: Vec<Row> = bytes.map(row).collect();
        let mut found = None;
        let mut seen = |split: &[u32]| {
            if !self.fits(split, loads) {
                return Shown::Nothing;
            }
            found = Some(cuts_of(split));
            Shown::Enough
        };
        let mut steps = STEPS;
        Walk::new(chunks, &rows, 8, &|| false).run(&mut steps, &mut seen);
        found
    }

    /// By chunk: the fewest layers, and whether it takes any.
    fn least(&self) -> Vec<(u32, bool)> {
        let fixed = self.problem.fixed.iter().enumerate();
        fixed.map(|(k, fixed)| (self.problem.least(k), !fixed.closed)).collect()
    }

    /// Adds what a layer counts in a sum, by chunk and kind, at a price.
    fn weigh(&self, sum: &Sum, price: f64, into: &mut [f64]) {
        let kinds = self.tables.kinds;
        for (at, &k) in self.problem.pipeline.orders[sum.rank].chunks.iter().enumerate() {
            for kind in 0..kinds {
                into[k as usize * kinds + kind] += price * self.each(sum, at, kind);
            }
        }
    }

    /// Time of the fullest rank, and of an average one.
    fn times(&self, cuts: &[u32]) -> (f64, f64) {
        let mut chunks = Vec::new();
        self.chunks(cuts, &mut chunks);
        let times = self.sums.iter().filter(|sum| sum.in_flight.is_empty());
        let times = times.map(|sum| self.amount(sum, &chunks));
        let (most, all) = times.fold((0.0, 0.0), |(most, all), time| (f64::max(most, time), all + time));
        (most, all / self.unseen.len() as f64)
    }

    /// What a layer of a kind counts on a chunk of a sum's rank.
    fn each(&self, sum: &Sum, at: usize, kind: usize) -> f64 {
        match sum.in_flight.get(at) {
            Some(&n) => self.bytes[kind][0] + f64::from(n) * self.bytes[kind][1],
            None => self.time[kind],
        }
    }

    /// Bytes held, bytes kept per micro-batch, and time of the layers of every chunk.
    fn chunks(&self, cuts: &[u32], into: &mut Vec<[f64; 3]>) {
        into.clear();
        into.extend(cuts.windows(2).map(|pair| {
            let mut all = [0.0; 3];
            for (kind, n) in
                self.tables.counts(pair[0], pair[1]).into_iter().enumerate().take(self.tables.kinds)
            {
                let each = [self.bytes[kind][0], self.bytes[kind][1], self.time[kind]];
                all.iter_mut().zip(each).for_each(|(all, each)| *all += f64::from(n) * each);
            }
            all
        }));
    }

    /// What a sum comes to.
    fn amount(&self, sum: &Sum, chunks: &[[f64; 3]]) -> f64 {
        let own = self.problem.pipeline.orders[sum.rank].chunks.iter().map(|&k| &chunks[k as usize]);
        if sum.in_flight.is_empty() {
            return sum.beside + own.map(|chunk| chunk[2]).sum::<f64>();
        }
        let bytes = own.zip(&sum.in_flight).map(|(chunk, &n)| chunk[0] + f64::from(n) * chunk[1]);
        sum.beside + self.unseen[sum.rank] + bytes.sum::<f64>()
    }

    /// How good a split is: the less the better; and by how much of what it may every sum is larger than that.
    fn measure(&self, cuts: &[u32], sharpness: f64, work: &mut Work) -> f64 {
        let Work { chunks, shares } = work;
        self.chunks(cuts, chunks);
        shares.clear();
        shares.extend(self.sums.iter().map(|sum| self.amount(sum, chunks) / sum.most - 1.0));
        shares.iter().map(|share| (sharpness * share).exp()).sum()
    }

    /// A split that fits and in which no rank takes longer than a level.
    fn under(&mut self, level: f64, mut cuts: Cuts, loads: &mut Loads) -> Result<Cuts, Failed> {
        self.sums.iter_mut().filter(|sum| sum.in_flight.is_empty()).for_each(|sum| sum.most = level);
        let (mut work, mut trial_work) = (Work::default(), Work::default());
        let mut moves = MOVES;
        for sharpness in SHARPNESS {
            let mut value = self.measure(&cuts, sharpness, &mut work);
            let mut reach = REACH;
            while moves > 0 {
                moves -= 1;
                if work.shares.iter().all(|&share| share <= 0.0) {
                    if self.fits(&split_at(&cuts), loads) {
                        return Ok(cuts);
                    }
                    self.see(&cuts, loads);
                    value = self.measure(&cuts, sharpness, &mut work);
                    reach = REACH;
                }
                let weights = self.derivative(&work.shares, sharpness);
                let trial = self.moved(&cuts, &weights, reach);
                let mut next = Some((self.measure(&trial, sharpness, &mut trial_work), trial));
                if reach == 1 && next.as_ref().is_some_and(|next| next.0 >= value) {
                    next = self.neighbour(&cuts, &weights, value, sharpness, &mut trial_work);
                }
                match next {
                    None if self.nothing_fits(&work.shares, &weights, sharpness) => {
                        return Err(Failed::NothingFits);
                    }
                    None => break,
                    Some(next) if next.0 < value => {
                        (value, cuts) = next;
                        std::mem::swap(&mut work, &mut trial_work);
                    }
                    Some(_) => reach /= 2,
                }
            }
        }
        Err(Failed::NoneFound)
    }

    /// How much worse a split gets with a layer more, by chunk and kind.
    fn derivative(&self, shares: &[f64], sharpness: f64) -> Vec<f64> {
        let mut weights = vec![0.0; self.problem.chunks() * self.tables.kinds];
        for (sum, share) in self.sums.iter().zip(shares) {
            self.weigh(sum, price(sum, *share, sharpness), &mut weights);
        }
        weights
    }

    /// Whether no split at all fits: even the lightest weighs more than one of which every sum is what it may be. `weights`
    /// are those of a split with such shares.
    fn nothing_fits(&self, shares: &[f64], weights: &[f64], sharpness: f64) -> bool {
        let least = self.least();
        let chunks = Chunks {
            order: &self.tables.kind_at,
            sorts: self.tables.kinds,
            least: &least,
            ranks: &self.problem.pipeline.rank_of_chunk,
        };
        let allowed = self.sums.iter().zip(shares).map(|(sum, share)| {
            let unseen = if sum.in_flight.is_empty() { 0.0 } else { self.unseen[sum.rank] };
            let left = sum.most - sum.beside - unseen;
            if left.is_finite() { price(sum, *share, sharpness) * left } else { 0.0 }
        });
        chunks.lightest(weights)[0] > allowed.sum::<f64>() * (1.0 + SLACK)
    }

    /// Whether a chunk may hold the layers between two cuts.
    fn holds(&self, k: usize, from: u32, to: u32) -> bool {
        let closed = self.problem.fixed[k].closed;
        to.checked_sub(from).is_some_and(|n| n >= self.problem.least(k) && (n == 0 || !closed))
    }

    /// Every cut moved by `reach` layers at most, so that the layers weigh least.
    fn moved(&self, cuts: &[u32], weights: &[f64], reach: i32) -> Cuts {
        let (count, kinds, layers) = (cuts.len() - 1, self.tables.kinds, self.tables.layers);
        let width = (2 * reach + 1) as usize;
        let place = |k: usize, step: usize| {
            let at = i64::from(cuts[k]) + step as i64 - i64::from(reach);
            let free = k > 0 && k < count;
            u32::try_from(at).ok().filter(|&at| if free { at <= layers } else { at == cuts[k] })
        };
        let mut least = vec![f64::INFINITY; (count + 1) * width];
        let mut came = vec![0_usize; (count + 1) * width];
        least[reach as usize] = 0.0;
        for k in 0..count {
            let own = &weights[k * kinds..][..kinds];
            for step in 0..width {
                let (Some(from), before) = (place(k, step), least[k * width + step]) else { continue };
                if before.is_infinite() {
                    continue;
                }
                for next in 0..width {
                    let Some(to) = place(k + 1, next).filter(|&to| self.holds(k, from, to)) else { continue };
                    let counts = self.tables.counts(from, to);
                    let weight: f64 = own.iter().zip(counts).map(|(each, n)| each * f64::from(n)).sum();
                    let at = (k + 1) * width + next;
                    if before + weight < least[at] {
                        least[at] = before + weight;
                        came[at] = step;
                    }
                }
            }
        }
        let mut moved = cuts.to_vec();
        let mut step = reach as usize;
        for k in (0..=count).rev() {
            moved[k] = place(k, step).unwrap_or(cuts[k]);
            step = came[k * width + step];
        }
        moved
    }

    /// A better split in which neighbouring cuts move by one layer together, if there is one.
    fn neighbour(
        &self,
        cuts: &[u32],
        weights: &[f64],
        value: f64,
        sharpness: f64,
        work: &mut Work,
    ) -> Option<(f64, Cuts)> {
        let (count, kinds) = (cuts.len() - 1, self.tables.kinds);
        let weight =
            |k: usize, layer: u32| weights[k * kinds + usize::from(self.tables.kind_at[layer as usize])];
        // No split is better by more than the derivative says.
        let mut moves: Vec<(f64, usize, usize, bool)> = Vec::new();
        for up in [true, false] {
            for first in 1..count {
                let mut change = 0.0;
                for last in first..count {
                    let cut = cuts[last];
                    change += match up {
                        true if cut < self.tables.layers => weight(last - 1, cut) - weight(last, cut),
                        false if cut > 0 => weight(last, cut - 1) - weight(last - 1, cut - 1),
                        _ => break,
                    };
                    if change < 0.0 {
                        moves.push((change, first, last, up));
                    }
                }
            }
        }
        moves.sort_unstable_by(|one, other| one.0.total_cmp(&other.0));
        moves.into_iter().find_map(|(_, first, last, up)| {
            let mut trial = cuts.to_vec();
            trial[first..=last].iter_mut().for_each(|cut| *cut = if up { *cut + 1 } else { *cut - 1 });
            let legal = |k: usize| self.holds(k, trial[k], trial[k + 1]);
            let next = (legal(first - 1) && legal(last)).then(|| self.measure(&trial, sharpness, work));
            next.filter(|next| *next < value).map(|next| (next, trial))
        })
    }

    fn place(&self, split: &[u32], loads: &mut Loads) {
        loads.place(self.problem, self.tables, split);
        loads.hold(self.problem);
    }

    /// Whether every rank has the memory.
    pub fn fits(&self, split: &[u32], loads: &mut Loads) -> bool {
        self.place(split, loads);
        loads.lacking(self.problem, self.tables, self.policy, 0).is_none()
    }

    /// Sees what ranks need beside what sums say: transients, say.
    fn see(&mut self, cuts: &[u32], loads: &mut Loads) {
        self.place(&split_at(cuts), loads);
        let mut chunks = Vec::new();
        self.chunks(cuts, &mut chunks);
        for rank in 0..self.unseen.len() {
            let excess = loads.rank(self.problem, self.tables, rank, self.policy).excess;
            if excess > 0 {
                let bytes = self.sums.iter().filter(|sum| sum.rank == rank && !sum.in_flight.is_empty());
                let most = bytes.map(|sum| self.amount(sum, &chunks)).fold(0.0, f64::max);
                self.unseen[rank] += (self.problem.limit.0 + excess) as f64 - most;
            }
        }
    }
}
