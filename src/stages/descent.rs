//! Splits over several chunks per rank, found by moving layers one at a time as long as simulated passes get
//! shorter.
//!
//! Where micro-batches do not divide among the ranks of a pipeline, groups of them take longer than the way round
//! the ranks: a rank may hold more than its share while others wait anyway. Where they are few, most of the step
//! is spent filling and draining the pipeline, and it matters which of its chunks a rank has longer. No rule on single
//! ranks or neighbouring chunks says so: on pipelines of 3 to 12 ranks with 2 to 10 chunks each, the fastest split
//! of the rules took up to 11 % longer than what this finds.
//!
//! Times are rounded to a fraction of a layer: so many problems have the same splits, which are found once.

use std::cmp::Reverse;

use super::{Fixed, Kind, Problem};
use crate::cost::schedule::{Chain, Load, Shape, Simulator};
use crate::plan::Schedule;
use crate::units::Picos;

/// Parts of an average layer's time that are told apart.
const PARTS: u64 = 16;

/// Passes that are simulated for one problem: about two milliseconds.
const PASSES: u64 = 200_000;
/// Moves that should be tried at least: where fewer can be, none is.
const FEWEST: u64 = 24;
/// Moves from one split that are tried: those after them hardly ever help.
const TRIALS: usize = 64;

/// The shape of a problem whose splits are worth a descent: its micro-batches are fewer than two rounds of the ranks, or
/// do not divide among them. Others gain 0.6 % at most in the scenarios of `results`, for up to five times the search.
pub(super) fn shape(problem: &Problem) -> Option<Shape> {
    let pipeline = &*problem.pipeline;
    let (p, v, m) = (pipeline.ranks, pipeline.chunks_per_rank, pipeline.micro_batches);
    let few = m < 2 * u64::from(p) || !m.is_multiple_of(u64::from(p));
    any_shape(problem).filter(|_| v > 1 && few)
}

/// The shape of a problem whose splits can be simulated often enough for a descent.
fn any_shape(problem: &Problem) -> Option<Shape> {
    let pipeline = &*problem.pipeline;
    let micro_batches = u32::try_from(pipeline.micro_batches).ok();
    let micro_batches = micro_batches.filter(|_| moves(problem) >= FEWEST)?;
    let schedule = if pipeline.split_backward { pipeline.schedule? } else { Schedule::Interleaved };
    Some(Shape { schedule, ranks: pipeline.ranks, virtual_stages: pipeline.chunks_per_rank, micro_batches })
}

/// A problem with all times in parts of a layer, its ends without bytes.
pub(super) fn rounded(problem: &Problem) -> Problem {
    let both = |kind: u8| {
        let kind = &problem.kinds[usize::from(kind)];
        kind.forward.0 + kind.backward.0
    };
    let all: u64 = problem.runs.iter().map(|run| u64::from(run.count) * both(run.kind)).sum();
    let part = (all / u64::from(problem.layer_count()).max(1) / PARTS).max(1);
    let round = |time: Picos| Picos((time.0 + part / 2) / part);
    let kind = |kind: &Kind| Kind {
        forward: round(kind.forward),
        backward: round(kind.backward),
        weight: round(kind.weight),
        ..Kind::default()
    };
    let fixed = |fixed: &Fixed| Fixed {
        forward: round(fixed.forward),
        backward: round(fixed.backward),
        weight: round(fixed.weight),
        closed: fixed.closed,
        optional: fixed.optional,
        ..Fixed::default()
    };
    Problem {
        kinds: problem.kinds.iter().map(kind).collect(),
        fixed: problem.fixed.iter().map(fixed).collect(),
        hop: round(problem.hop),
        tail: None,
        ..problem.clone()
    }
}

/// The split that is reached from the fastest of some.
pub(super) fn descend(
    problem: &Problem,
    shape: Shape,
    from: Vec<Vec<u32>>,
    simulator: &mut Simulator,
) -> Option<Vec<u32>> {
    let mut passes = Passes::new(problem, shape, simulator);
    let timed = from.into_iter().filter_map(|split| Some((passes.time(&split, Picos(u64::MAX))?, split)));
    let start = timed.min()?;
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

/// How many moves can be tried.
fn moves(problem: &Problem) -> u64 {
    PASSES / problem.pipeline.passes().max(1)
}

/// The `most` most promising moves of one layer from a chunk to another, of those that are `legal` and could shorten a
/// split with such a longest chain: it mostly gets shorter only if it runs through the one more often than through the other.
pub(crate) fn shorter_chains(
    chain: &Chain,
    legal: impl Fn(usize, usize) -> bool,
    most: usize,
) -> Vec<(usize, usize)> {
    // A backward pass takes about twice as long, half of it for weight gradients.
    let passes = chain.forward.iter().zip(&chain.backward).zip(&chain.weight);
    let often = passes.map(|((f, b), w)| (f + 2 * b).saturating_add_signed(*w));
    let often: Vec<u64> = often.collect();
    let count = often.len();
    let pairs = (0..count).flat_map(|less| (0..count).map(move |more| (less, more)));
    let shorter = pairs.filter(|&(less, more)| often[less] > often[more] && legal(less, more));
    let mut moves: Vec<_> =
        shorter.map(|(less, more)| (Reverse(often[less] - often[more]), less, more)).collect();
    if most < moves.len() {
        moves.select_nth_unstable(most);
        moves.truncate(most);
    }
    moves.sort_unstable();
    moves.into_iter().map(|(_, less, more)| (less, more)).collect()
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
}

impl<'a> Passes<'a> {
    fn new(problem: &'a Problem, shape: Shape, simulator: &'a mut Simulator) -> Self {
        let mut all = [Picos::ZERO; 3];
        let mut before = vec![all];
        for run in &problem.runs {
            let kind = &problem.kinds[usize::from(run.kind)];
            for _ in 0..run.count {
                let own = [kind.forward, kind.backward, kind.weight];
                all.iter_mut().zip(own).for_each(|(all, own)| *all += own);
                before.push(all);
            }
        }
        Self { problem, shape, simulator, before, times: Default::default() }
    }

    /// The split that is reached from one when at most so many moves are tried.
    fn descend(
        &mut self,
        (mut time, mut best): (Picos, Vec<u32>),
        mut left: u64,
        fits: &mut dyn FnMut(&[u32]) -> bool,
    ) -> Vec<u32> {
        let problem = self.problem;
        let mut trial = best.clone();
        // A chain takes about as long as two simulations, and all pairs of chunks are looked at.
        let chunks = best.len() as u64;
        let look = 2 + chunks * chunks / (4 * problem.pipeline.passes()).max(1);
        while left > 0 {
            left = left.saturating_sub(look);
            let from = &best;
            let legal =
                |less: usize, more: usize| from[less] > problem.least(less) && !problem.fixed[more].closed;
            let moves = shorter_chains(&self.chain(from), legal, TRIALS.min(left as usize)).into_iter();
            let mut tried = 0;
            let shorter = moves.inspect(|_| tried += 1).find_map(|(less, more)| {
                trial.clone_from(from);
                trial[less] -= 1;
                trial[more] += 1;
                if fits(&trial) { self.time(&trial, Picos(time.0.saturating_sub(1))) } else { None }
            });
            left -= tried;
            match shorter {
                Some(shorter) => time = shorter,
                None => break,
            }
            best.clone_from(&trial);
        }
        best
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
        simulator.longest_chain(*shape, load, &[])
    }
}
