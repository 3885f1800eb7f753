//! Better splits of plans that are printed: layers are moved as long as the simulated step gets shorter, and where much is
//! open after that, at random, longer steps less and less likely. It comes after the ranking, which it leaves alone, and only
//! where the certificate leaves something open.

use super::balance::{Balancing, TablesOf};
use super::bounds::Floor;
use super::{Scratch, Search};
use crate::cost::schedule::{LANE_MARGIN, LANES, Lanes, Load, MOST_EXACT, MOST_LANE_PASSES};
use crate::cost::step::shape;
use crate::plan::{Chunk, Layout, Plan, Schedule};
use crate::stages::{Assignment, Evaluation, Move, Problem, evaluate_into, shortening, simulated_passes};
use crate::units::Picos;

/// Which moves are tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tries {
    /// The first of those that shorten the longest chain.
    Chain,
    All,
}

/// What another split may gain from which on one is looked for: a little more than proofs end with.
pub(super) const WORTH: f64 = 0.021;
/// Moves of one layer by the longest chain that are tried, after those of all ranks, before the best of them is made.
const TRIALS: usize = 64;
/// Moves that are made at most, and passes that are simulated for one plan: about a tenth of a second.
const MOVES: usize = 64;
const PASSES: u64 = 10_000_000;

/// Other ways to recompute that splits are sought for, and how much longer than the present split, as a share of it, the
/// fastest of these may take before its layers are moved. With 3 and .04 a third of what this gains is not found.
const OTHERWISE: usize = 8;
const NEAR: f64 = 0.06;

/// Splits that are tried at random at most, and passes that are simulated of them: two seconds' work at most. Of how much longer ones
/// than the present one every third is taken in the beginning and in the end, as shares of a step.
const ANNEALED: u32 = 400_000;
const ANNEALED_PASSES: u64 = 120_000_000;
const WARM: f64 = 0.01;
const COLD: f64 = 2e-5;
/// Layers moved at once there.
const MOST_MOVED: u64 = 3;

/// A plan with a faster split, and what its step takes.
pub(super) struct Better {
    pub step: Picos,
    pub plan: Plan,
}

impl Search<'_> {
    /// A better split than that of a plan, which takes so long.
    pub(super) fn better(
        &self,
        plan: &Plan,
        step: Picos,
        balancing: &Balancing,
        tables: TablesOf<'_>,
        scratch: &mut Scratch,
    ) -> Option<Better> {
        let (layout, own) = (plan.layout(), balancing.assignment(plan.chunks()));
        let mut left = PASSES / simulated_passes(&balancing.problem.pipeline).max(1);
        let mut best: (Picos, Assignment, Option<Plan>) = (step, own, None);
        // Where no move that the longest chain suggests helps, all are tried: several chains may be as long.
        let mut tries = Tries::Chain;
        for _ in 0..MOVES {
            let from = best.1.clone();
            if evaluate_into(&balancing.problem, &from, &mut scratch.evaluation).is_err() {
                break;
            }
            let before = best.0;
            let mut moves = moves(layout, &from, &balancing.problem, tries, scratch);
            moves.truncate(left as usize);
            left -= moves.len() as u64;
            for pairs in moves.chunks(LANES) {
                let trials: Vec<Assignment> = pairs.iter().map(|pairs| from.after(pairs)).collect();
                let least = self.glance(layout, balancing, &trials, tables, best.0, scratch);
                for (trial, least) in trials.into_iter().zip(least) {
                    if least >= best.0 {
                        continue;
                    }
                    scratch.known.clear();
                    let open = |least: Picos| least < best.0;
                    let plan = self.completion(layout, balancing, &trial, tables, open, scratch);
                    let Some(plan) = plan else { continue };
                    let time = self.time(layout, &trial, &plan, tables, scratch);
                    if time < best.0 {
                        best = (time, trial, Some(plan));
                    }
                }
            }
            tries = match tries {
                _ if best.0 < before => Tries::Chain,
                Tries::Chain => Tries::All,
                Tries::All => break,
            };
        }
        let (step, _, plan) = best;
        Some(Better { step, plan: plan? })
    }

    /// What steps of some splits take at least, as far as it matters whether that is less than `most`; of what does not fit,
    /// more than anything. They are simulated at once, all passes rounded down to what lanes hold exactly.
    pub(super) fn glance(
        &self,
        layout: &Layout,
        balancing: &Balancing,
        splits: &[Assignment],
        tables: TablesOf<'_>,
        most: Picos,
        scratch: &mut Scratch,
    ) -> [Picos; LANES] {
        if !in_lanes(layout, &balancing.problem) {
            return [Picos::ZERO; LANES];
        }
        let unit = most.0 / (MOST_EXACT / LANE_MARGIN) + 1;
        let whole = |time: Picos| (time.0 / unit) as f32;
        let mut fits = [false; LANES];
        let mut chunks = [(); 2].map(|()| vec![Lanes::default(); layout.chunk_count() as usize]);
        for (lane, split) in splits.iter().enumerate() {
            fits[lane] = evaluate_into(&balancing.problem, split, &mut scratch.evaluation).is_ok();
            let Evaluation { forward, backward, .. } = &scratch.evaluation;
            for (lanes, times) in chunks.iter_mut().zip([forward, backward]).filter(|_| fits[lane]) {
                lanes.iter_mut().zip(times).for_each(|(lanes, &time)| lanes.0[lane] = whole(time));
            }
        }
        chunks.iter_mut().for_each(|chunks| Lanes::fill(chunks, fits));
        let [forward, backward] = &chunks;
        let hop = Picos(tables.hop.latency.0 / unit);
        let ends = scratch.simulator.run_lanes(shape(layout), [forward, backward], hop, whole(most) + 1.0);
        let floor = Floor { once: tables.sharding.step_overhead, jitter: tables.sharding.jitter };
        let least = |lane: usize| floor.step(ends.map_or(most, |ends| Picos(ends.0[lane] as u64 * unit)));
        std::array::from_fn(|lane| if fits[lane] { least(lane) } else { Picos(u64::MAX) })
    }

    /// A better split than that of a plan, with another way to recompute: one in which ranks that lack memory hold fewer layers,
    /// which rules do not list where some split fits without, and whose layers are moved like any other's.
    pub(super) fn otherwise(
        &self,
        plan: &Plan,
        step: Picos,
        balancing: &Balancing,
        tables: TablesOf<'_>,
        most: Picos,
        scratch: &mut Scratch,
    ) -> Option<Better> {
        let (layout, chunks) = (plan.layout(), plan.chunks());
        if layout.virtual_stages == 1 {
            // Those are optima whatever is recomputed.
            return None;
        }
        let own = balancing.choice(chunks[0].recompute);
        let splits = scratch.balancer.relieved_otherwise(&balancing.problem, (own, most), OTHERWISE);
        let mut best: Option<Better> = None;
        for split in splits {
            let Some(found) = self.timed(layout, &split, balancing, tables, scratch) else { continue };
            if best.as_ref().is_none_or(|best| found.step < best.step) {
                best = Some(found);
            }
        }
        let best = best.filter(|best| best.step <= step + step.scale(NEAR))?;
        let moved = self.better(&best.plan, best.step, balancing, tables, scratch);
        Some(moved.unwrap_or(best)).filter(|best| best.step < step)
    }

    /// The plan with a split, if that fits.
    pub(super) fn timed(
        &self,
        layout: &Layout,
        split: &Assignment,
        balancing: &Balancing,
        tables: TablesOf<'_>,
        scratch: &mut Scratch,
    ) -> Option<Better> {
        self.timed_below(Picos(u64::MAX), layout, split, balancing, tables, scratch)
    }

    /// The same if its step takes less than so long.
    pub(super) fn timed_below(
        &self,
        most: Picos,
        layout: &Layout,
        split: &Assignment,
        balancing: &Balancing,
        tables: TablesOf<'_>,
        scratch: &mut Scratch,
    ) -> Option<Better> {
        scratch.known.clear();
        let plan = self.completion(layout, balancing, split, tables, |least| least < most, scratch)?;
        let step = self.time(layout, split, &plan, tables, scratch);
        (step < most).then_some(Better { step, plan })
    }

    /// A better split than that of a plan, from the chunks of another plan of its shape.
    pub(super) fn alike(
        &self,
        plan: &Plan,
        step: Picos,
        chunks: &[Chunk],
        balancing: &Balancing,
        tables: TablesOf<'_>,
        scratch: &mut Scratch,
    ) -> Option<Better> {
        let layout = plan.layout();
        if chunks == plan.chunks() || !chunks.iter().all(|chunk| balancing.offers(chunk.recompute)) {
            return None;
        }
        let found = self.timed(layout, &balancing.assignment(chunks), balancing, tables, scratch)?;
        let moved = self.better(&found.plan, found.step, balancing, tables, scratch);
        Some(moved.unwrap_or(found)).filter(|found| found.step < step)
    }

    /// The best split that simulated annealing (Kirkpatrick, Gelatt and Vecchi 1983) comes by from that of a plan, if it is
    /// better. The random numbers are the same every time.
    pub(super) fn annealed(
        &self,
        plan: &Plan,
        step: Picos,
        balancing: &Balancing,
        tables: TablesOf<'_>,
        stop: &dyn Fn() -> bool,
        scratch: &mut Scratch,
    ) -> Option<Better> {
        let (layout, problem) = (plan.layout(), &balancing.problem);
        let mut present = balancing.assignment(plan.chunks());
        let (mut time, mut best) = (step, None);
        let mut random = Random(1);
        let (passes, mut simulated) = (simulated_passes(&problem.pipeline), 0);
        let at_once = if in_lanes(layout, problem) { LANES } else { 1 };
        let (mut tried, mut over) = (0, false);
        while !over {
            // All are moves from the present split: what comes after the first that is taken is forgotten.
            let mut trials: Vec<(Assignment, Picos)> = Vec::with_capacity(at_once);
            while trials.len() < at_once && !over {
                let done = f64::from(tried) / f64::from(ANNEALED);
                let done = done.max(simulated as f64 / ANNEALED_PASSES as f64);
                let warmth = step.0 as f64 * WARM * libm::pow(COLD / WARM, done);
                over = done >= 1.0 || stop();
                tried += 1;
                let mut trial = present.clone();
                for _ in 0..=random.below(MOST_MOVED) {
                    let count = trial.layers.len() as u64;
                    let (less, more) = (random.below(count) as usize, random.below(count) as usize);
                    if trial.layers[less] > problem.least(less) && !problem.fixed[more].closed {
                        trial.layers[less] -= 1;
                        trial.layers[more] += 1;
                    }
                }
                // Drawn before it is known how long the trial takes: what its bound rules out is not simulated.
                let slack = -libm::log(random.share()) * warmth;
                let most = Picos(time.0.saturating_add(slack as u64));
                let open = |least: Picos| least <= most;
                if trial.layers != present.layers
                    && self.completion(layout, balancing, &trial, tables, open, scratch).is_some()
                {
                    trials.push((trial, most));
                }
            }
            let mut least = [Picos::ZERO; LANES];
            if trials.len() > 1 {
                let (splits, longest): (Vec<Assignment>, Vec<Picos>) = trials.iter().cloned().unzip();
                let longest = longest.into_iter().fold(time, Picos::max);
                least = self.glance(layout, balancing, &splits, tables, longest, scratch);
                simulated += passes;
            }
            for ((trial, most), least) in trials.into_iter().zip(least) {
                let open = |known: Picos| known.max(least) <= most;
                // Its evaluation is what is simulated.
                let plan = self.completion(layout, balancing, &trial, tables, open, scratch);
                let Some(plan) = plan else { continue };
                scratch.known.clear();
                simulated += passes;
                let taken = self.time(layout, &trial, &plan, tables, scratch);
                if taken > most {
                    continue;
                }
                (time, present) = (taken, trial);
                if time < best.as_ref().map_or(step, |best: &Better| best.step) {
                    best = Some(Better { step: time, plan });
                }
                break;
            }
        }
        best
    }
}

/// Whether several splits of a layout can be simulated at once.
fn in_lanes(layout: &Layout, problem: &Problem) -> bool {
    layout.schedule == Schedule::Interleaved && problem.pipeline.passes() <= MOST_LANE_PASSES
}

/// Random numbers, those of Knuth's MMIX.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }
    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
    /// Above 0, up to 1.
    fn share(&mut self) -> f64 {
        (self.next() + 1) as f64 / (1_u64 << 31) as f64
    }
}

/// Moves that could shorten a split whose evaluation is in `scratch`, the most promising first.
fn moves(
    layout: &Layout,
    split: &Assignment,
    problem: &Problem,
    tries: Tries,
    scratch: &mut Scratch,
) -> Vec<Move> {
    let count = split.layers.len();
    let legal = |less: usize, more: usize| {
        less != more && split.layers[less] > problem.least(less) && !problem.fixed[more].closed
    };
    if tries == Tries::All || layout.schedule != Schedule::Interleaved {
        let pairs = (0..count).flat_map(|less| (0..count).map(move |more| (less, more)));
        let legal = pairs.filter(|&(less, more)| legal(less, more));
        return legal.map(|pair| Move::from_slice(&[pair])).collect();
    }
    let Evaluation { forward, backward, .. } = &scratch.evaluation;
    let shape = shape(layout);
    let load = Load { forward, backward, weight: backward, hop: problem.hop };
    let chain = scratch.simulator.longest_chain(shape, load, &[]);
    shortening(shape, &chain, legal, problem.bare(), TRIALS)
}
