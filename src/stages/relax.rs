//! A lower bound on every assignment of a problem, in a few microseconds and for any number of chunks per
//! rank: layers may be cut into fractions and put anywhere, but every rank has to stay within its memory
//! and within the bottleneck, and has its ends and the layers that its chunks must hold.
//!
//! With a bottleneck `theta`, rank `i` can hold a limited amount of work: for every price `lambda >= 0`
//! of a byte, `work <= (theta + lambda * free bytes) * max over kinds of (weight / priced cost)`. The least
//! `theta` at which all ranks together can hold the model is found by Newton's method on the sum of these
//! concave, piecewise linear capacities; it comes from below, so every iterate is a bound. Often it is enough
//! to know on which side of a `theta` the least one lies: whether the model is held there.

use std::ops::{Range, RangeInclusive};

use super::{Block, Freedom, Kind, LayerMode, MAX_KINDS, Mode, Problem, RankOrder, Way};
use crate::units::Picos;

/// Whatever it is, the bound is to be as high as is known.
pub const ANY: RangeInclusive<Picos> = Picos::ZERO..=Picos(u64::MAX);

/// Work memory of [`Relaxation::lower_bound`].
#[derive(Debug, Default)]
pub struct Relaxation {
    ranks: Vec<Rank>,
    /// A rank with modules that recompute as layers do, if there is one, and micro-batches in flight of their chunk.
    recomputing: Option<(usize, f64)>,
    /// Layers of each kind.
    counts: [u64; MAX_KINDS],
    /// Kinds that the model has, in the modes that were looked at last.
    present: Vec<Present>,
    /// Time of all that is no layer.
    ends: f64,
    /// What ranks can hold.
    all: Capacity,
    /// The same for whole layers of the commonest kind alone.
    whole: Capacity,
    /// By rank: from which bottleneck on it can take one layer more, and how many it has then.
    steps: Vec<(f64, u32)>,
    prices: Vec<f64>,
    /// By price, and by kind that the model has: least extra time with the price of the bytes kept, of all modes.
    cheapest: Vec<f64>,
    modes: Vec<usize>,
    /// The mode that was best in the last problem: likely the best of one like it.
    hint: usize,
    /// Offered modes, those that recompute least first, and what an average rank is busy with at least under each.
    by_least: Vec<usize>,
    least: Vec<f64>,
    /// Work memory of their order: what each recomputes of the whole model.
    extra: Vec<(u64, usize)>,
    /// Stretches of them that are yet to be bounded.
    open: Vec<Range<usize>>,
    hull: Vec<(f64, f64)>,
    in_flight: Vec<f64>,
    /// Layers that chunks must hold: how many, and which kinds they may be of, as bits.
    musts: Vec<(f64, u16)>,
    /// By chunk, the kinds that layers which it must hold may be of.
    possible_kinds: Vec<u16>,
    /// Whether chunks must hold more layers than there are.
    crowded: bool,
    /// By rank, for one set of modes: bytes free beside transients, and of these left for layers whatever their chunk.
    free: Vec<(f64, f64)>,
}

/// The work that every rank can hold, as the least of lines over the bottleneck.
#[derive(Debug, Default)]
struct Capacity {
    /// By rank, what time allows: `(at zero, per picosecond)`.
    time: Vec<(f64, f64)>,
    /// By rank, what memory allows.
    room: Vec<f64>,
    /// What both allow at a price per byte, as `time`; one stretch of so many lines per rank as there are prices.
    priced: Vec<(f64, f64)>,
    prices: usize,
}

/// What of a rank does not depend on recomputation.
#[derive(Debug, Clone, Copy, Default)]
struct Rank {
    /// Weights of forward and backward time in the bottleneck, by row.
    rows: [(f64, f64); 2],
    /// Time of what is not a layer, forward and backward.
    fixed: (f64, f64),
    /// Picoseconds that the rank idles at the ends whatever it holds.
    idle: f64,
    /// Bytes left for layers.
    free: f64,
    /// Largest transient of what is not a layer.
    transient: f64,
    /// Least number of micro-batches in flight of any of its chunks.
    in_flight: f64,
    /// How many more all of its chunks together have that must hold layers.
    more_in_flight: f64,
    /// Where those lie in the list of micro-batches in flight.
    chunks: (usize, usize),
    /// Where the layers that its chunks must hold lie in the list of those.
    musts: (usize, usize),
}

/// A kind of layers that the model has, in some set of modes.
#[derive(Debug, Clone, Copy, Default)]
struct Present {
    kind: usize,
    /// Its place among the kinds that the model has.
    at: usize,
    count: f64,
    forward: f64,
    backward: f64,
    /// Least extra backward time, and least bytes kept, of the modes.
    extra: f64,
    held: f64,
    kept: f64,
    /// What one layer counts in the work, at least and at most.
    weight: f64,
    heavy: f64,
}

/// What layers do with a set of modes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Used {
    /// All layers have the same of these: whichever it is, the bound is not above that of it alone.
    Alike,
    /// Every layer has one of its own.
    Mixed,
}

/// What is known of some modes of which layers all have the same.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Outlook {
    /// One may be fast enough.
    Open,
    /// None is: all take more than so much, or memory holds none of them.
    Closed(Option<f64>),
}

/// The largest ratio of weight and cost.
fn ratio(present: &[Present], weight: impl Fn(&Present) -> f64, cost: impl Fn(&Present) -> f64) -> f64 {
    let ratio = |k: &Present| {
        let cost = cost(k);
        if cost > 0.0 { weight(k) / cost } else { f64::INFINITY }
    };
    present.iter().map(ratio).fold(0.0, larger)
}

/// The larger of two numbers: one instruction, where [`f64::max`] minds what is none.
fn larger(a: f64, b: f64) -> f64 {
    if b > a { b } else { a }
}

/// The lesser of two numbers.
fn lesser(a: f64, b: f64) -> f64 {
    if b < a { b } else { a }
}

impl Capacity {
    fn clear(&mut self, prices: usize) {
        self.time.clear();
        self.room.clear();
        self.priced.clear();
        self.prices = prices;
    }

    fn priced(&self, rank: usize) -> &[(f64, f64)] {
        &self.priced[rank * self.prices..][..self.prices]
    }

    /// What a rank holds at a bottleneck.
    fn of(&self, rank: usize, theta: f64) -> f64 {
        let (a, b) = self.time[rank];
        let value = lesser(a + b * theta, self.room[rank]);
        self.priced(rank).iter().map(|&(a, b)| a + b * theta).fold(value, lesser)
    }

    /// Whole layers that a rank holds at a bottleneck, at most; rounding must not lower it.
    fn layers(&self, rank: usize, theta: f64, count: f64, weight: f64) -> u32 {
        lesser(larger(self.of(rank, theta), 0.0) / weight * CLEARLY, count) as u32
    }

    /// The bottleneck from which on a rank holds so much; rounding must not raise it.
    fn from(&self, rank: usize, work: f64) -> f64 {
        let target = work * SHRINK;
        if self.room[rank] < target {
            return f64::INFINITY;
        }
        let needs =
            self.priced(rank).iter().chain([&self.time[rank]]).map(|&(a, b)| match (a >= target, b > 0.0) {
                (true, _) => 0.0,
                (false, true) => (target - a) / b,
                (false, false) => f64::INFINITY,
            });
        needs.fold(0.0, larger)
    }

    /// One step of Newton's method up from `theta`, if the ranks do not hold the work there; none at all if
    /// they do nowhere.
    fn step(&self, work: f64, theta: f64) -> Option<Option<f64>> {
        let (mut at_zero, mut slope, mut capacity) = (0.0, 0.0, 0.0);
        for (rank, (&(a, b), &room)) in self.time.iter().zip(&self.room).enumerate() {
            let mut value = a + b * theta;
            let within = value < room;
            let mut least = (if within { a } else { room }, if within { b } else { 0.0 });
            value = lesser(value, room);
            for &(a, b) in self.priced(rank) {
                let now = a + b * theta;
                if now < value {
                    (value, least) = (now, (a, b));
                }
            }
            capacity += value;
            at_zero += least.0;
            slope += least.1;
        }
        if capacity >= work * SHRINK {
            return Some(None);
        }
        (slope > 0.0).then(|| Some((work - at_zero) / slope))
    }
}

/// A bound in whole picoseconds.
fn floor(time: f64) -> Picos {
    Picos((time.max(0.0) * SHRINK) as u64)
}

/// Floating point: give away far more than its error.
const SHRINK: f64 = 1.0 - 1e-9;
/// Newton's method ends after this many steps; it has always converged before.
const STEPS: usize = 32;
/// More by far more than the error of floating point.
const CLEARLY: f64 = 1.0 + 1e-9;
/// Modes that are bounded together at first.
const TOGETHER: usize = 8;
/// A bottleneck beyond all others: eleven days.
const FAR: f64 = 1e18;

impl Relaxation {
    /// A time that no schedule of an assignment of `problem` goes below; none if no assignment fits in
    /// memory. Outside of `range` it need not be the highest that is known: only on which side of the range
    /// it lies. Where nothing fits it may be something above the range instead of none.
    pub fn lower_bound(&mut self, problem: &Problem, range: RangeInclusive<Picos>) -> Option<Picos> {
        self.prepare(problem);
        // So far above that rounding does not bring it back.
        let (enough, most) = (range.start().0 as f64, range.end().0 as f64 / SHRINK / SHRINK);
        let either = |a: Option<f64>, b: Option<f64>| match (a, b) {
            (Some(a), Some(b)) => Some(lesser(a, b)),
            (a, b) => a.or(b),
        };
        let mut best: Option<f64> = None;
        match problem.freedom {
            Freedom::PerStage => best = self.mixed(problem, None, (enough, most)),
            Freedom::Global => {
                if problem.modes.get(self.hint).is_some_and(|mode| mode.offered) {
                    // Above the range it must not show which mode was tried first.
                    best = self.single(problem, self.hint, (enough, most)).filter(|best| *best <= most);
                    if best.is_some_and(|best| best <= enough) {
                        return best.map(floor);
                    }
                }
                let (tried, busy) = (best.map(|_| self.hint), self.sort_modes(problem));
                while let Some(modes) = self.open.pop() {
                    let highest = best.unwrap_or(most).min(most);
                    let (least, first) = (self.least[modes.start], self.by_least[modes.start]);
                    // Neither these modes nor others that recompute more can lower the bound any further.
                    if best.is_some_and(|best| best <= enough || best <= least) {
                        break;
                    }
                    if least > most {
                        best = Some(least);
                        break;
                    }
                    if modes.len() > 1 {
                        match self.alike(problem, &modes, highest) {
                            Outlook::Open => self.halve(modes),
                            Outlook::Closed(bound) => best = either(best, bound),
                        }
                        continue;
                    }
                    if tried == Some(first) {
                        continue;
                    }
                    let bound = self.single(problem, first, (enough, highest));
                    if bound.is_some_and(|bound| best.is_none_or(|best| bound < best)) {
                        (best, self.hint) = (bound, first);
                    }
                }
                if let Some(block) = problem.block.filter(|block| !block.hopeless)
                    && best.is_none_or(|best| best > enough && best > busy)
                {
                    let range = (enough, best.unwrap_or(most).min(most));
                    best = either(best, self.mixed(problem, Some(block), range));
                }
            }
        }
        best.map(floor)
    }

    /// Lists the ways to recompute with which something fits and need not take longer than `most`.
    pub fn ways(&mut self, problem: &Problem, most: Picos, into: &mut Vec<Way>) {
        self.prepare(problem);
        into.clear();
        // So far above that rounding does not bring it back.
        let most = most.0 as f64 / SHRINK / SHRINK;
        let mut offer = |bound: Option<f64>, way: Way| {
            if bound.is_some_and(|bound| bound <= most) {
                into.push(way);
            }
        };
        match problem.freedom {
            Freedom::PerStage => offer(self.mixed(problem, None, (most, most)), Way::PerRank),
            Freedom::Global => {
                let busy = self.sort_modes(problem);
                while let Some(modes) = self.open.pop().filter(|modes| self.least[modes.start] <= most) {
                    let first = self.by_least[modes.start];
                    if modes.len() == 1 {
                        offer(self.single(problem, first, (most, most)), Way::Mode(first as u16));
                    } else if self.alike(problem, &modes, most) == Outlook::Open {
                        self.halve(modes);
                    }
                }
                if let Some(block) = problem.block
                    && busy <= most
                {
                    offer(self.mixed(problem, Some(block), (most, most)), Way::Block);
                }
            }
        }
    }

    /// [`Relaxation::lower_bound`] of assignments that recompute in one way; above `most` it need not be the
    /// highest that is known. The problem must have been [`Relaxation::prepare`]d.
    pub(super) fn bound_of(&mut self, problem: &Problem, way: Way, most: Picos) -> Option<Picos> {
        // So far above that rounding does not bring it back.
        let most = most.0 as f64 / SHRINK / SHRINK;
        let bound = match way {
            Way::Mode(mode) => self.single(problem, usize::from(mode), (0.0, most)),
            Way::Block => self.mixed(problem, Some(problem.block?), (0.0, most)),
            Way::PerRank => self.mixed(problem, None, (0.0, most)),
        };
        bound.map(floor)
    }

    /// Sorts the offered modes by what an average rank is busy with at least, and opens them, some at a time; what it is
    /// busy with where nothing is recomputed.
    fn sort_modes(&mut self, problem: &Problem) -> f64 {
        let time = |(count, kind): (&u64, &Kind)| count * (kind.forward.0 + kind.backward.0);
        let layers: u64 = self.counts.iter().zip(&problem.kinds).map(time).sum();
        let idle: f64 = self.ranks.iter().map(|rank| rank.idle).sum();
        let (m, ranks) = (problem.pipeline.micro_batches as f64, self.ranks.len() as f64);
        let busy = (m * (layers as f64 + self.ends) + idle) / ranks;
        let counts = &self.counts;
        let extra = |mode: &Mode| counts.iter().zip(&mode.extra).map(|(count, extra)| count * extra.0).sum();
        let offered = problem.modes.iter().enumerate().filter(|(_, mode)| mode.offered);
        self.extra.clear();
        self.extra.extend(offered.map(|(at, mode)| (extra(mode), at)));
        self.extra.sort_unstable();
        self.by_least.clear();
        self.least.clear();
        for &(extra, at) in &self.extra {
            self.by_least.push(at);
            self.least.push(busy + m / ranks * extra as f64);
        }
        self.open.clear();
        let starts = (0..self.by_least.len()).step_by(TOGETHER).rev();
        self.open.extend(starts.map(|start| start..(start + TOGETHER).min(self.by_least.len())));
        busy
    }

    /// Bounds the halves of some modes later, that with the least recomputation first.
    fn halve(&mut self, modes: Range<usize>) {
        let middle = modes.start + modes.len() / 2;
        self.open.extend([middle..modes.end, modes.start..middle]);
    }

    /// Reads what does not depend on recomputation.
    pub(super) fn prepare(&mut self, problem: &Problem) {
        let pipeline = &*problem.pipeline;
        let m = pipeline.micro_batches as f64;
        // The chain bound separates over ranks only with one chunk each; else the busy time counts.
        let chain = pipeline.chunks_per_rank == 1 && !pipeline.split_backward;
        let looped = !pipeline.split_backward;
        self.counts = [0; MAX_KINDS];
        for run in &*problem.runs {
            self.counts[usize::from(run.kind)] += u64::from(run.count);
        }
        self.present.clear();
        for (kind, of) in problem.kinds.iter().enumerate().filter(|(kind, _)| self.counts[*kind] > 0) {
            self.present.push(Present {
                kind,
                at: self.present.len(),
                count: self.counts[kind] as f64,
                forward: of.forward.0 as f64,
                backward: of.backward.0 as f64,
                held: of.held.0 as f64,
                ..Present::default()
            });
        }
        let present = self.counts.iter().zip(&problem.kinds).filter(|(count, _)| **count > 0);
        let least_layer = present.map(|(_, kind)| kind.forward.0 + kind.backward.0).min().unwrap_or(0) as f64;
        self.ranks.clear();
        self.recomputing = None;
        self.in_flight.clear();
        self.find_possible_kinds(problem);
        for (at, order) in pipeline.orders.iter().enumerate() {
            let start = self.in_flight.len();
            let fullest = order
                .states()
                .max_by_key(|counts| counts.iter().map(|&n| u64::from(n)).sum::<u64>())
                .unwrap_or(&[]);
            // Of chunks that must hold layers.
            let bound = || order.chunks.iter().zip(fullest).filter(|&(&k, _)| problem.least(k as usize) > 0);
            self.in_flight.extend(bound().map(|(_, &n)| f64::from(n)));
            let mut rank = Rank {
                rows: [(m, m); 2],
                free: problem.limit.0 as f64 - problem.rank_bytes.0 as f64,
                in_flight: fullest.iter().copied().min().map_or(0.0, f64::from),
                more_in_flight: {
                    let least = fullest.iter().copied().min().unwrap_or(0);
                    bound().map(|(_, &n)| f64::from(n - least)).sum()
                },
                chunks: (start, self.in_flight.len()),
                musts: self.list_musts(problem, order),
                ..Rank::default()
            };
            if let (true, Some(form)) = (chain, &pipeline.form) {
                rank.rows = form.ranks[at].map(|w| (w.forward as f64, w.backward as f64));
            } else if looped {
                rank.idle = least_layer * f64::from((0..at).map(|k| problem.least(k)).sum::<u32>());
            }
            let mut gathered = 0;
            for (&chunk, &n) in order.chunks.iter().zip(fullest) {
                let fixed = &problem.fixed[chunk as usize];
                rank.fixed.0 += fixed.forward.0 as f64;
                rank.fixed.1 += fixed.backward.0 as f64;
                rank.free -= (fixed.held.0 + fixed.kept.0 * u64::from(n)) as f64;
                rank.transient = rank.transient.max(fixed.transient.0 as f64);
                if fixed.recomputes {
                    self.recomputing = Some((at, f64::from(n)));
                }
                gathered = gathered.max(fixed.gathered.0);
            }
            rank.free -= gathered as f64;
            self.ranks.push(rank);
        }
        self.ends = self.ranks.iter().map(|rank| rank.fixed.0 + rank.fixed.1).sum();
    }

    /// Which kinds of layers chunks may hold: before and behind the layers of one there are those that the others must
    /// have.
    fn find_possible_kinds(&mut self, problem: &Problem) {
        self.musts.clear();
        self.possible_kinds.clear();
        let chunks = problem.chunks();
        let all = self.present.iter().fold(0, |kinds, present| kinds | 1 << present.kind);
        let least: u32 = (0..chunks).map(|k| problem.least(k)).sum();
        self.crowded = least > problem.layer_count();
        let loose = problem.layer_count().saturating_sub(least);
        // Then most layers may be in most chunks.
        if 2 * loose > problem.layer_count() || problem.runs.len() == 1 {
            self.possible_kinds.resize(chunks, all);
            return;
        }
        // The first layer that a chunk may hold, and the run it is of, which begins there.
        let (mut first, mut run, mut begins) = (0, 0, 0);
        for chunk in 0..chunks {
            let own = problem.least(chunk);
            while run < problem.runs.len() && begins + problem.runs[run].count <= first {
                begins += problem.runs[run].count;
                run += 1;
            }
            let (mut kinds, mut at) = (0, begins);
            for run in &problem.runs[run..] {
                if at >= first + own + loose {
                    break;
                }
                kinds |= 1 << run.kind;
                at += run.count;
            }
            self.possible_kinds.push(kinds);
            first += own;
        }
    }

    /// Lists the layers that a rank's chunks must hold, and says where.
    fn list_musts(&mut self, problem: &Problem, order: &RankOrder) -> (usize, usize) {
        let from = self.musts.len();
        for &chunk in &order.chunks {
            let (least, kinds) =
                (f64::from(problem.least(chunk as usize)), self.possible_kinds[chunk as usize]);
            match self.musts[from..].last_mut().filter(|last| last.1 == kinds) {
                Some(last) => last.0 += least,
                None if least > 0.0 => self.musts.push((least, kinds)),
                None => {}
            }
        }
        (from, self.musts.len())
    }

    /// All layers in one mode. Outside of `range` only the side is certain.
    fn single(&mut self, problem: &Problem, mode: usize, range: (f64, f64)) -> Option<f64> {
        self.prices.clear();
        self.bottleneck(problem, (&[mode], Used::Alike), range)
    }

    /// Whether all layers in one of some modes, by their places in the order, may take `most` or less.
    fn alike(&mut self, problem: &Problem, modes: &Range<usize>, most: f64) -> Outlook {
        self.prices.clear();
        // Rounding must not rule out what one of them alone would show.
        let most = most * CLEARLY;
        let by_least = std::mem::take(&mut self.by_least);
        let bound = self.bottleneck(problem, (&by_least[modes.clone()], Used::Alike), (0.0, most));
        self.by_least = by_least;
        if bound.is_some_and(|bound| bound <= most) { Outlook::Open } else { Outlook::Closed(bound) }
    }

    /// Every layer in a mode of its own: of all offered ones, or of those of block recomputation. Outside
    /// of `range` only the side is certain.
    fn mixed(&mut self, problem: &Problem, only: Option<Block>, range: (f64, f64)) -> Option<f64> {
        let mut modes = std::mem::take(&mut self.modes);
        modes.clear();
        match only {
            Some(block) => modes.extend([usize::from(block.rest), usize::from(block.full)]),
            None => {
                let block = problem.block.map(|b| [usize::from(b.full), usize::from(b.rest)]);
                modes.extend(
                    (0..problem.modes.len()).filter(|mode| {
                        problem.modes[*mode].offered || block.is_some_and(|b| b.contains(mode))
                    }),
                );
            }
        }
        // Prices at which the cheapest mode of the commonest kind changes.
        let common = problem.runs.iter().max_by_key(|run| run.count).map_or(0, |run| usize::from(run.kind));
        self.hull.clear();
        for &mode in &modes {
            let m = &problem.modes[mode];
            self.hull.push((m.kept[common].0 as f64 / f64::from(m.group), m.extra[common].0 as f64));
        }
        self.hull.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.total_cmp(&b.1)));
        self.prices.clear();
        let mut at = 0;
        while at + 1 < self.hull.len() {
            let (kept, extra) = self.hull[at];
            let slope = |&(k, e): &(f64, f64)| (e - extra) / (kept - k);
            let next = (at + 1..self.hull.len())
                .filter(|&i| self.hull[i].0 < kept)
                .min_by(|&a, &b| slope(&self.hull[a]).total_cmp(&slope(&self.hull[b])));
            let Some(next) = next else { break };
            let price = slope(&self.hull[next]);
            if price > 0.0 {
                self.prices.push(price);
            }
            at = next;
        }
        let bound = self.bottleneck(problem, (&modes, Used::Mixed), range);
        self.modes = modes;
        bound
    }

    /// The bound if layers use `modes`; none if memory cannot hold that. Where it is not within a range,
    /// something that is on the same side.
    fn bottleneck(
        &mut self,
        problem: &Problem,
        (modes, used): (&[usize], Used),
        range: (f64, f64),
    ) -> Option<f64> {
        let Some((at, in_flight)) = self.recomputing else {
            return self.bottleneck_of(problem, (modes, used), range);
        };
        // What stands beside layers recomputes as they do.
        let beside = modes.iter().map(|&mode| problem.modes[mode].beside).reduce(LayerMode::least);
        let beside = beside.unwrap_or_default();
        let (rank, ends) = (self.ranks[at], self.ends);
        let with = &mut self.ranks[at];
        with.fixed.1 += beside.extra.0 as f64;
        with.free -= in_flight * beside.kept.0 as f64;
        with.transient = with.transient.max(beside.transient.0 as f64);
        self.ends += beside.extra.0 as f64;
        let bound = self.bottleneck_of(problem, (modes, used), range);
        (self.ranks[at], self.ends) = (rank, ends);
        bound
    }

    /// [`Relaxation::bottleneck`] of ranks as they are.
    fn bottleneck_of(
        &mut self,
        problem: &Problem,
        (modes, used): (&[usize], Used),
        (enough, most): (f64, f64),
    ) -> Option<f64> {
        if self.crowded {
            return None;
        }
        let chain = problem.pipeline.chunks_per_rank == 1 && !problem.pipeline.split_backward;
        let several = used == Used::Alike && modes.len() > 1;
        // Cheapest mode in time, in bytes, and least transient, by kind.
        let mut transient = f64::INFINITY;
        let (mut forward, mut backward, mut work) = (0.0, 0.0, 0.0);
        for k in &mut self.present {
            (k.extra, k.kept) = (f64::INFINITY, f64::INFINITY);
            let mut extra_at_most = 0.0;
            for mode in modes.iter().map(|&mode| &problem.modes[mode]) {
                let extra = mode.extra[k.kind].0 as f64;
                (k.extra, extra_at_most) = (lesser(k.extra, extra), larger(extra_at_most, extra));
                k.kept = lesser(k.kept, mode.kept[k.kind].0 as f64 / f64::from(mode.group));
                transient = lesser(transient, mode.transient[k.kind].0 as f64);
            }
            k.weight = k.forward + k.backward + k.extra;
            k.heavy = match used {
                Used::Alike => k.forward + k.backward + extra_at_most,
                Used::Mixed => k.weight,
            };
            forward += k.count * k.forward;
            backward += k.count * (k.backward + k.extra);
            work += k.count * k.weight;
        }
        let present = &self.present[..];
        let hops = problem.hop.0 as f64 * problem.pipeline.form.as_ref().map_or(0, |form| form.hops) as f64;
        let base = if chain { forward + backward + self.ends + hops } else { 0.0 };
        if work <= 0.0 {
            return Some(base);
        }
        let mandatory = f64::from(problem.min_layers);
        let common =
            (0..present.len()).max_by(|&a, &b| present[a].count.total_cmp(&present[b].count)).unwrap_or(0);
        let own = &present[common..=common];
        let (weight, heavy) = (|k: &Present| k.weight, |k: &Present| k.heavy);
        let line = |at_zero: f64, rate: f64| {
            if rate.is_finite() { (at_zero * rate, rate) } else { (f64::INFINITY, 0.0) }
        };
        // Bytes alone: what most sets of modes fail at.
        let least_kept = present.iter().map(|k| k.kept).fold(f64::INFINITY, lesser);
        let mut room = 0.0;
        self.all.clear(self.prices.len());
        self.whole.clear(self.prices.len());
        self.free.clear();
        for rank in &self.ranks {
            let layers = if rank.musts.0 < rank.musts.1 { transient } else { 0.0 };
            let free = rank.free - larger(rank.transient, layers);
            // A chunk with more micro-batches in flight holds its layers as well.
            let left = free - rank.more_in_flight * least_kept * mandatory;
            if left < 0.0 {
                return None;
            }
            let work = line(left, ratio(present, heavy, |k| k.held + rank.in_flight * k.kept)).0;
            room += work;
            self.free.push((free, left));
            self.all.room.push(work);
        }
        if room < work * SHRINK {
            return None;
        }
        // By price and kind, what the cheapest mode takes with its bytes.
        self.cheapest.clear();
        for &price in &self.prices {
            self.cheapest.extend(present.iter().map(|k| {
                let of = |&mode: &usize| {
                    let m = &problem.modes[mode];
                    m.extra[k.kind].0 as f64 + price * (m.kept[k.kind].0 as f64 / f64::from(m.group))
                };
                modes.iter().map(of).fold(f64::INFINITY, lesser)
            }));
        }
        // Rates of time alone, of the last weights: the same for all ranks of most schedules.
        let mut known = ((f64::NAN, f64::NAN), 0.0, 0.0);
        // A bottleneck that some rank has whatever the others hold.
        let mut forced = 0.0;
        for (rank, &(free, left)) in self.ranks.iter().zip(&self.free) {
            self.whole.room.push(line(left, ratio(own, weight, |k| k.held + rank.in_flight * k.kept)).0);
            let row = {
                let [a, b] = rank.rows;
                let value = |r: (f64, f64)| r.0 * forward + r.1 * backward;
                if several {
                    // Which of them counts depends on the mode.
                    (lesser(a.0, b.0), lesser(a.1, b.1))
                } else if value(a) >= value(b) {
                    a
                } else {
                    b
                }
            };
            let fixed = row.0 * rank.fixed.0 + row.1 * rank.fixed.1 + rank.idle;
            let time = |k: &Present| row.0 * k.forward + row.1 * (k.backward + k.extra);
            if known.0 != row {
                let mut rate = ratio(present, weight, time);
                if several {
                    // Of weights in between, the ratio is in between.
                    let heaviest = |k: &Present| time(k) + row.1 * (k.heavy - k.weight);
                    rate = larger(rate, ratio(present, heavy, heaviest));
                }
                known = (row, rate, ratio(own, weight, time));
            }
            let fastest = |&(count, kinds): &(f64, u16)| {
                let possible = present.iter().filter(|k| kinds >> k.kind & 1 == 1);
                count * possible.map(time).fold(f64::INFINITY, lesser)
            };
            let musts: f64 = self.musts[rank.musts.0..rank.musts.1].iter().map(fastest).sum();
            forced = larger(forced, fixed + musts);
            self.all.time.push(line(-fixed, known.1));
            self.whole.time.push(line(-fixed, known.2));
            let in_flight = &self.in_flight[rank.chunks.0..rank.chunks.1];
            let fuller = || in_flight.iter().copied().filter(|&n| n > rank.in_flight);
            // Both, at a price per byte and micro-batch.
            for (&per_layer, cheapest) in self.prices.iter().zip(self.cheapest.chunks_exact(present.len())) {
                let price = if rank.in_flight > 0.0 { per_layer * row.1 / rank.in_flight } else { 0.0 };
                let with =
                    |k: &Present, mode: f64| row.0 * k.forward + row.1 * k.backward + price * k.held + mode;
                // Of the ranks' micro-batches in flight the price makes one.
                let priced = |k: &Present| with(k, row.1 * cheapest[k.at]);
                let fuller_by = |k: &Present, n: f64| {
                    let modes = modes.iter().map(|&mode| {
                        let m = &problem.modes[mode];
                        let kept = m.kept[k.kind].0 as f64 / f64::from(m.group);
                        row.1 * m.extra[k.kind].0 as f64 + price * n * kept
                    });
                    with(k, modes.fold(f64::INFINITY, lesser)) - priced(k)
                };
                let chunk = |n: f64| {
                    let of = present.iter().map(|k| fuller_by(k, n));
                    mandatory * of.fold(f64::INFINITY, f64::min).max(0.0)
                };
                let more: f64 = fuller().map(chunk).sum();
                let at_zero = price * free - fixed - more;
                self.all.priced.push(line(at_zero, ratio(present, weight, priced)));
                self.whole.priced.push(line(at_zero, ratio(own, weight, priced)));
            }
        }
        let (count, layer) = (own[0].count, own[0].weight);
        if base > most {
            return Some(base);
        }
        let highest = (most - base).min(FAR);
        if forced > highest {
            return Some(base + forced);
        }
        let theta = larger(forced, self.fractions(work, highest)?);
        if base + theta > most || layer <= 0.0 {
            return Some(base + theta);
        }
        if base + theta <= enough && self.held(enough - base, count, layer) >= count {
            return Some(base + theta);
        }
        if highest < FAR && self.held(highest, count, layer) < count {
            return Some(most.next_up());
        }
        Some(base + self.whole_layers(theta, count, layer)?)
    }

    /// How many whole layers of the commonest kind all ranks together hold at a bottleneck, at most.
    fn held(&self, theta: f64, count: f64, weight: f64) -> f64 {
        let ranks = 0..self.whole.time.len();
        ranks.map(|rank| f64::from(self.whole.layers(rank, theta, count, weight))).sum()
    }

    /// The least bottleneck at which all ranks together hold the work, or something above `highest` if that
    /// is above.
    fn fractions(&self, work: f64, highest: f64) -> Option<f64> {
        // Where Newton's method starts must not show in the result, or it would depend on what was asked
        // before.
        if highest < FAR
            && let Some(next) = self.all.step(work, highest)?
        {
            return Some(next);
        }
        let mut theta = 0.0;
        for _ in 0..STEPS {
            let Some(next) = self.all.step(work, theta)? else { break };
            if next <= theta * (1.0 + 1e-12) {
                break;
            }
            theta = next;
        }
        Some(theta)
    }

    /// The least bottleneck from `theta` on at which all ranks together hold `count` layers of the
    /// commonest kind, none of them cut.
    fn whole_layers(&mut self, theta: f64, count: f64, weight: f64) -> Option<f64> {
        let mut all = 0;
        self.steps.clear();
        for rank in 0..self.whole.time.len() {
            let own = self.whole.layers(rank, theta, count, weight);
            all += own;
            self.steps.push((self.whole.from(rank, f64::from(own + 1) * weight), own + 1));
        }
        let mut theta = theta;
        while f64::from(all) < count {
            // One layer more where that takes least.
            let (rank, &(next, layers)) =
                self.steps.iter().enumerate().min_by(|(_, a), (_, b)| a.0.total_cmp(&b.0))?;
            if next.is_infinite() {
                return None;
            }
            theta = theta.max(next);
            all += 1;
            self.steps[rank] = (self.whole.from(rank, f64::from(layers + 1) * weight), layers + 1);
        }
        Some(theta)
    }
}
