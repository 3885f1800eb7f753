//! Splits over several chunks per rank, found by moving layers as long as simulated passes get shorter: one from a chunk to
//! another, or on all ranks together from one round of chunks to another.
//!
//! Where micro-batches do not divide among the ranks of a pipeline, groups of them take longer than the way round
//! the ranks: a rank may hold more than its share while others wait anyway. Where they are few, most of the step
//! is spent filling and draining the pipeline, and it matters which of its chunks a rank has longer. Where chunks have
//! few layers, one more or less is much, and the rank of a heavy head must be given one less just where others wait least
//! for it. No rule on single ranks or neighbouring chunks says so: on pipelines of 3 to 12 ranks with 2 to 10 chunks
//! each, the fastest split of the rules took up to 11 % longer than what this finds.

use std::cmp::Reverse;

use smallvec::SmallVec;

use super::{Pipeline, Problem};
use crate::cost::schedule::{
    Chain, LANE_MARGIN, LANES, Lanes, Load, MOST_EXACT, MOST_LANE_PASSES, Shape, Simulator,
};
use crate::plan::Schedule;
use crate::units::Picos;

/// Passes that are simulated for one problem: about a millisecond. With more, splits get faster that often do not fit, and
/// searches take longer.
const PASSES: u64 = 200_000;
/// Moves that should be tried at least: where fewer can be, none is.
const FEWEST: u64 = 24;
/// Layers per chunk, on average, below which they come in lumps.
const FEW_LAYERS: u64 = 4;
/// Share of level chunks' time that leaves little to gain.
const LITTLE: f64 = 1.02;
/// Moves from one split that are tried: those after them hardly ever help.
const TRIALS: usize = 64;
/// The same of moves on all ranks together.
const TOGETHER: usize = 6;

/// The shape of a problem whose splits are worth a descent: chunks have few layers, or micro-batches are few or do not
/// divide. Others gain 0.6 % at most in the scenarios of `results`, for up to five times the search.
pub(super) fn shape(problem: &Problem) -> Option<Shape> {
    let pipeline = &*problem.pipeline;
    let (p, v) = (pipeline.ranks, pipeline.chunks_per_rank);
    let short = u64::from(problem.layer_count()) < FEW_LAYERS * u64::from(p) * u64::from(v);
    any_shape(problem).filter(|_| v > 1 && (short || few(problem)))
}

/// Whether micro-batches are fewer than two rounds of the ranks, or do not divide among them.
fn few(problem: &Problem) -> bool {
    let (p, m) = (u64::from(problem.pipeline.ranks), problem.pipeline.micro_batches);
    m < 2 * p || !m.is_multiple_of(p)
}

/// The shape of a problem whose splits can be simulated often enough for a descent.
fn any_shape(problem: &Problem) -> Option<Shape> {
    let pipeline = &*problem.pipeline;
    let micro_batches = u32::try_from(pipeline.micro_batches).ok();
    let micro_batches = micro_batches.filter(|_| moves(problem) >= FEWEST)?;
    let schedule = if pipeline.split_backward { pipeline.schedule? } else { Schedule::Interleaved };
    Some(Shape { schedule, ranks: pipeline.ranks, virtual_stages: pipeline.chunks_per_rank, micro_batches })
}

/// About what chunks take that all last as long: a group of micro-batches fills the pipeline while the first chunks run.
fn level(problem: &Problem) -> u64 {
    let pipeline = &*problem.pipeline;
    let (p, v, m) = (u64::from(pipeline.ranks), u64::from(pipeline.chunks_per_rank), pipeline.micro_batches);
    let layers = problem.runs.iter().map(|run| {
        let kind = &problem.kinds[usize::from(run.kind)];
        u64::from(run.count) * (kind.forward.0 + kind.backward.0)
    });
    let ends = problem.fixed.iter().map(|fixed| fixed.forward.0 + fixed.backward.0);
    let all = layers.sum::<u64>() + ends.sum::<u64>();
    m * all / p + (p - 1) * all / (p * v)
}

/// The split that is reached from the fastest of some, none if that leaves little to gain.
pub(super) fn descend(
    problem: &Problem,
    shape: Shape,
    from: Vec<Vec<u32>>,
    simulator: &mut Simulator,
) -> Option<Vec<u32>> {
    let mut passes = Passes::new(problem, shape, simulator);
    let start = passes.fastest(from)?;
    if !few(problem) && start.0 <= Picos(level(problem)).scale(LITTLE) {
        return None;
    }
    Some(passes.descend(start, moves(problem), &mut |_| true))
}

/// The fastest of the splits that are reached from some among those that fit; the first of them where simulation takes too
/// long. Times of layers are those of the problem, recomputation included.
pub(super) fn descend_among(
    problem: &Problem,
    splits: Vec<Vec<u32>>,
    simulator: &mut Simulator,
    fits: &mut dyn FnMut(&[u32]) -> bool,
) -> Option<Vec<u32>> {
    let Some(shape) = any_shape(problem) else { return splits.into_iter().next() };
    let mut passes = Passes::new(problem, shape, simulator);
    let mut descend = |split: Vec<u32>| {
        let time = passes.time(&split, Picos(u64::MAX))?;
        let reached = passes.descend((time, split), moves(problem), fits);
        Some((passes.time(&reached, Picos(u64::MAX))?, reached))
    };
    let reached = splits.into_iter().filter_map(&mut descend).min();
    reached.map(|(_, split)| split)
}

/// Passes that a simulation takes: steady rounds of whole backward passes are skipped.
pub(crate) fn simulated_passes(pipeline: &Pipeline) -> u64 {
    if pipeline.split_backward {
        return pipeline.passes();
    }
    pipeline.passes() / pipeline.micro_batches.max(1) * shown(pipeline.ranks, pipeline.micro_batches)
}

/// Micro-batches that are enough to see what many do, where they divide.
fn shown(ranks: u32, micro_batches: u64) -> u64 {
    let round = u64::from(ranks);
    if micro_batches.is_multiple_of(round) { micro_batches.min(4 * round) } else { micro_batches }
}

/// Whether several splits may be simulated at once: that takes four times the memory of one, and their times must be exact.
/// Splits that are looked at take not much longer than level ones whose passes all wait for messages.
fn in_lanes(problem: &Problem, shape: Shape) -> bool {
    let passes = problem.pipeline.passes();
    let level = level(problem).saturating_add(passes.saturating_mul(problem.hop.0));
    shape.schedule == Schedule::Interleaved && passes <= MOST_LANE_PASSES && level < MOST_EXACT / LANE_MARGIN
}

/// How many moves can be tried.
fn moves(problem: &Problem) -> u64 {
    PASSES / simulated_passes(&problem.pipeline).max(1)
}

/// Pairs of chunks: the first of each gives a layer to the second.
pub(crate) type Move = SmallVec<[(usize, usize); 1]>;

/// Makes a move in a split.
pub(super) fn make(pairs: &Move, layers: &mut [u32]) {
    for &(less, more) in pairs {
        layers[less] -= 1;
        layers[more] += 1;
    }
}

/// Moves that could shorten a split with such a longest chain, the most promising first: it mostly gets shorter only if it
/// runs through chunks that give more often than through those that take. First moves of all ranks together, then up to
/// `most` of one layer. Chunks that are not `bare` of ends take none with others.
pub(crate) fn shortening(
    shape: Shape,
    chain: &Chain,
    legal: impl Fn(usize, usize) -> bool,
    bare: impl Fn(usize) -> bool,
    most: usize,
) -> Vec<Move> {
    // A backward pass takes about twice as long, half of it for weight gradients.
    let passes = chain.forward.iter().zip(&chain.backward).zip(&chain.weight);
    let often: Vec<u64> = passes.map(|((f, b), w)| (f + 2 * b).saturating_add_signed(*w)).collect();
    let rank = |chunk: usize| shape.rank_of(chunk as u32);
    let p = shape.ranks as usize;
    let round = |round: usize| round * p..(round + 1) * p;
    let rounds: Vec<u64> = often.chunks(p).map(|own| own.iter().sum()).collect();
    let together = falls(&rounds, |_, _| true, TOGETHER).into_iter().map(|(less, more)| -> Move {
        let same = |less: usize| round(more).find(|&more| rank(more) == rank(less));
        let pairs = round(less).filter_map(|less| Some((less, same(less)?)));
        pairs.filter(|&(less, more)| bare(more) && legal(less, more)).collect()
    });
    let single = falls(&often, &legal, most).into_iter().map(|pair| Move::from_slice(&[pair]));
    together.filter(|pairs| pairs.len() > 1).chain(single).collect()
}

/// The `most` pairs of which the first number is higher by the most.
fn falls(numbers: &[u64], legal: impl Fn(usize, usize) -> bool, most: usize) -> Vec<(usize, usize)> {
    let count = numbers.len();
    let pairs = (0..count).flat_map(|less| (0..count).map(move |more| (less, more)));
    let falling = pairs.filter(|&(less, more)| numbers[less] > numbers[more] && legal(less, more));
    let mut falls: Vec<_> =
        falling.map(|(less, more)| (Reverse(numbers[less] - numbers[more]), less, more)).collect();
    if most < falls.len() {
        falls.select_nth_unstable(most);
        falls.truncate(most);
    }
    falls.sort_unstable();
    falls.into_iter().map(|(_, less, more)| (less, more)).collect()
}

/// Times of the passes of splits.
struct Passes<'a> {
    problem: &'a Problem,
    shape: Shape,
    simulator: &'a mut Simulator,
    /// Passes of the layers before each: forward, backward, and its weight gradients.
    before: Vec<[Picos; 3]>,
    /// The same of all chunks.
    times: [Vec<Picos>; 3],
    /// Whether several splits may be simulated at once, and forward and backward passes of all their chunks.
    in_lanes: bool,
    lanes: [Vec<Lanes>; 2],
    /// Splits that are tried.
    trials: Vec<Vec<u32>>,
}

impl<'a> Passes<'a> {
    fn new(problem: &'a Problem, shape: Shape, simulator: &'a mut Simulator) -> Self {
        let mut all = [Picos::ZERO; 3];
        let mut before = vec![all];
        for run in &*problem.runs {
            let kind = &problem.kinds[usize::from(run.kind)];
            for _ in 0..run.count {
                let own = [kind.forward, kind.backward, kind.weight];
                all.iter_mut().zip(own).for_each(|(all, own)| *all += own);
                before.push(all);
            }
        }
        let in_lanes = in_lanes(problem, shape);
        let (times, lanes, trials) = Default::default();
        Self { problem, shape, simulator, before, times, in_lanes, lanes, trials }
    }

    /// The split that is reached from one when at most so many moves are tried.
    fn descend(
        &mut self,
        (mut time, mut best): (Picos, Vec<u32>),
        mut left: u64,
        fits: &mut dyn FnMut(&[u32]) -> bool,
    ) -> Vec<u32> {
        let problem = self.problem;
        // A chain takes about as long as two simulations, and all pairs of chunks are looked at.
        let chunks = best.len() as u64;
        let look = 2 + chunks * chunks / (4 * simulated_passes(&problem.pipeline)).max(1);
        while left > 0 {
            left = left.saturating_sub(look);
            let from = &best;
            let legal =
                |less: usize, more: usize| from[less] > problem.least(less) && !problem.fixed[more].closed;
            let chain = self.chain(from);
            let bare = problem.bare();
            let mut moves = shortening(self.shape, &chain, legal, bare, TRIALS);
            moves.truncate(left as usize);
            let (tried, shorter) = self.first_shorter(&best, time, &moves, fits);
            left -= tried as u64;
            let Some((shorter, split)) = shorter else { break };
            (time, best) = (shorter, split);
        }
        best
    }

    /// The fastest of some splits, with its time.
    fn fastest(&mut self, splits: Vec<Vec<u32>>) -> Option<(Picos, Vec<u32>)> {
        if !self.in_lanes {
            let mut time = |split: &[u32]| self.time(split, Picos(u64::MAX));
            return splits.into_iter().filter_map(|split| Some((time(&split)?, split))).min();
        }
        let mut best: Option<(Picos, Vec<u32>)> = None;
        for splits in splits.chunks(LANES) {
            let ends = self.ends(splits, f32::INFINITY);
            let ends = ends.iter().flat_map(|ends| ends.0).map(|end| Picos(end as u64));
            let timed = ends.zip(splits).map(|(end, split)| (end, split.clone()));
            best = best.into_iter().chain(timed).min();
        }
        best
    }

    /// The first of some moves from a split after which it takes less than a time, with that and how many were tried.
    fn first_shorter(
        &mut self,
        from: &[u32],
        time: Picos,
        moves: &[Move],
        fits: &mut dyn FnMut(&[u32]) -> bool,
    ) -> (usize, Option<(Picos, Vec<u32>)>) {
        let most = Picos(time.0.saturating_sub(1));
        let at_once = if self.in_lanes { LANES } else { 1 };
        let mut trials = std::mem::take(&mut self.trials);
        trials.resize_with(at_once, Vec::new);
        let (mut tried, mut found) = (0, None);
        for moves in moves.chunks(at_once) {
            for (trial, pairs) in trials.iter_mut().zip(moves) {
                trial.clear();
                trial.extend_from_slice(from);
                make(pairs, trial);
            }
            let trials = &trials[..moves.len()];
            let shorter = match trials {
                [one] if !fits(one) => None,
                [one] => self.time(one, most).map(|time| (0, time)),
                several => self.first_within(several, most, fits),
            };
            if let Some((at, time)) = shorter {
                tried += at + 1;
                found = Some((time, trials[at].clone()));
                break;
            }
            tried += moves.len();
        }
        self.trials = trials;
        (tried, found)
    }

    /// The first of so many splits as there are lanes at most that fits and does not take longer than a time, with its own.
    fn first_within(
        &mut self,
        splits: &[Vec<u32>],
        most: Picos,
        fits: &mut dyn FnMut(&[u32]) -> bool,
    ) -> Option<(usize, Picos)> {
        let ends = self.ends(splits, most.0 as f32)?;
        let ends = ends.0.into_iter().zip(splits).enumerate();
        let mut within = ends.filter(|&(_, (end, split))| end <= most.0 as f32 && fits(split));
        within.next().map(|(at, (end, _))| (at, Picos(end as u64)))
    }

    /// What so many splits as there are lanes at most take; if it is longer than a time for all, perhaps nothing.
    fn ends(&mut self, splits: &[Vec<u32>], most: f32) -> Option<Lanes> {
        for (lane, split) in splits.iter().enumerate() {
            self.place(split);
            for (lanes, times) in self.lanes.iter_mut().zip(&self.times) {
                lanes.resize(times.len(), Lanes::default());
                lanes.iter_mut().zip(times).for_each(|(lanes, time)| lanes.0[lane] = time.0 as f32);
            }
        }
        let Self { problem, shape, simulator, lanes: [forward, backward], .. } = self;
        let stands = std::array::from_fn(|lane| lane < splits.len());
        [&mut *forward, &mut *backward].into_iter().for_each(|chunks| Lanes::fill(chunks, stands));
        simulator.run_lanes(*shape, [forward, backward], problem.hop, most)
    }

    /// Prices the chunks of a split.
    fn place(&mut self, split: &[u32]) {
        let mut from = 0;
        self.times.iter_mut().for_each(Vec::clear);
        for (&n, fixed) in split.iter().zip(&self.problem.fixed) {
            let to = from + n as usize;
            let ends = [fixed.forward, fixed.backward, fixed.weight];
            for (pass, times) in self.times.iter_mut().enumerate() {
                times.push(ends[pass] + self.before[to][pass] - self.before[from][pass]);
            }
            from = to;
        }
    }

    /// What a split takes, if it is not above a time.
    fn time(&mut self, split: &[u32], most: Picos) -> Option<Picos> {
        self.place(split);
        let Self { problem, shape, simulator, times: [forward, backward, weight], .. } = self;
        let load = Load { forward, backward, weight, hop: problem.hop };
        simulator.run_within(*shape, load, most)
    }

    fn chain(&mut self, split: &[u32]) -> Chain {
        self.place(split);
        let Self { problem, shape, simulator, times: [forward, backward, weight], .. } = self;
        let load = Load { forward, backward, weight, hop: problem.hop };
        let micro_batches = match shape.schedule {
            Schedule::Interleaved => shown(shape.ranks, shape.micro_batches.into()) as u32,
            _ => shape.micro_batches,
        };
        simulator.longest_chain(Shape { micro_batches, ..*shape }, load, &[])
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::stages::{Fixed, Freedom, Kind, Run};
    use crate::units::Bytes;

    pub fn shape(schedule: Schedule, ranks: u32, virtual_stages: u32, micro_batches: u32) -> Shape {
        Shape { schedule, ranks, virtual_stages, micro_batches }
    }

    /// A model of two kinds of layers with a heavy head, in parts of a layer.
    pub fn problem(shape: Shape, layers: u32) -> Problem {
        let chunks = (shape.ranks * shape.virtual_stages) as usize;
        let kind =
            |forward| Kind { forward: Picos(forward), backward: Picos(2 * forward), ..Kind::default() };
        let mut fixed = vec![Fixed::default(); chunks];
        fixed[chunks - 1] = Fixed { forward: Picos(13), backward: Picos(26), ..Fixed::default() };
        Problem {
            pipeline: Arc::new(Pipeline::of(shape)),
            kinds: vec![kind(3), kind(5)],
            runs: [Run { kind: 0, count: 3 }, Run { kind: 1, count: layers - 3 }].into(),
            modes: Vec::new().into(),
            block: None,
            hopeless: 0..0,
            freedom: Freedom::Global,
            fixed,
            rank_bytes: Bytes::ZERO,
            shared: Vec::new(),
            limit: Bytes(1),
            hop: Picos(1),
            min_layers: 0,
            tail: None,
        }
    }

    #[test]
    fn several_splits_at_once_lead_where_one_after_the_other_does() {
        let mut shorter = 0;
        for (ranks, virtual_stages, micro_batches) in
            [(4, 3, 8), (4, 2, 32), (8, 2, 10), (3, 5, 7), (8, 3, 40)]
        {
            let shape = shape(Schedule::Interleaved, ranks, virtual_stages, micro_batches);
            for layers in [ranks * virtual_stages, 2 * ranks * virtual_stages + 1] {
                let problem = problem(shape, layers);
                let mut simulator = Simulator::default();
                let mut reached = |in_lanes: bool| {
                    let mut passes = Passes { in_lanes, ..Passes::new(&problem, shape, &mut simulator) };
                    let start = passes.fastest(vec![problem.even_layers()]).unwrap();
                    let reached = passes.descend(start.clone(), 200, &mut |_| true);
                    let time = passes.time(&reached, Picos(u64::MAX)).unwrap();
                    (start.0, time, reached)
                };
                let (one, several) = (reached(false), reached(true));
                assert_eq!(one, several);
                assert!(one.1 <= one.0);
                shorter += u32::from(one.1 < one.0);
            }
        }
        assert!(shorter >= 8, "{shorter}");
    }

    /// With many micro-batches there is little to gain where ranks and chunks are level, and more where they are not.
    #[test]
    fn level_splits_are_left_alone() {
        let shape = shape(Schedule::Interleaved, 4, 2, 32);
        let lumpy = problem(shape, 17);
        let mut level = problem(shape, 16);
        level.runs = [Run { kind: 1, count: 16 }].into();
        level.fixed.fill(Fixed::default());
        let mut simulator = Simulator::default();
        let mut descend = |problem: &Problem| {
            let from = vec![problem.even_layers()];
            descend(problem, super::shape(problem).unwrap(), from, &mut simulator)
        };
        assert_eq!(descend(&level), None);
        assert!(descend(&lumpy).is_some_and(|reached| reached != lumpy.even_layers()));
    }

    /// Layers of all ranks go to the chunk that the same rank has in another round, whatever the order of ranks there.
    #[test]
    fn moves_of_all_ranks_leave_ranks_what_they_have() {
        for schedule in [Schedule::Interleaved, Schedule::ZeroBubbleV, Schedule::DualPipe] {
            let shape = shape(schedule, 5, 2, 20);
            let mut chain = Chain::none(10);
            chain.forward[5..].fill(1);
            let moves = shortening(shape, &chain, |less, _| less != 6, |more| more != 0, 3);
            let (together, single): (Vec<Move>, Vec<Move>) =
                moves.into_iter().partition(|pairs| pairs.len() > 1);
            assert_eq!((together.len(), single.len()), (1, 3));
            assert_eq!(together[0].len(), 3, "{together:?}");
            for &(less, more) in together.iter().flatten() {
                assert!(less != 6 && more != 0 && less >= 5 && more < 5);
                assert_eq!(shape.rank_of(less as u32), shape.rank_of(more as u32));
            }
            assert!(single.iter().all(|pairs| pairs[0].0 >= 5 && pairs[0].0 != 6 && pairs[0].1 < 5));
        }
    }
}
