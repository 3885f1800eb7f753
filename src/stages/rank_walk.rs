//! Every split of whole layers, rank by rank, with the fewest layers on ranks that are not filled yet: what proves that no
//! split is faster where it is waiting between short chunks that takes the time.
//!
//! A schedule of fixed lists takes no less when a pass takes longer, so what some ranks take beside others with as few
//! layers as those may hold is a bound on every split that fills them so. How ranks wait for one another shows as soon as a few
//! that are far apart are filled; in model order ([`super::walk`]) it shows when the last chunks are.

use super::chains::{BYTE_SLACK, Programme};
use super::walk::End;
use crate::cost::schedule::{LANES, Lanes, MOST_EXACT, MOST_LANE_PASSES, Shape, Simulator};
use crate::units::Picos;

/// Fillings of all ranks together: where chunks have more layers, they wait less, and there are too many.
const MOST_FILLINGS: usize = 4096;
/// Rounds in which what ranks can hold beside others tells what others can.
const ROUNDS: usize = 3;
/// After this part of its steps a walk is given up that is not through with that share of the ways to fill ranks: what is
/// seen first takes longest. With that, twice the steps take no longer on the jobs of `benches/held.sh` (104 s; 110 without).
const GLANCE: u64 = 8;
const HOPELESS: f64 = 0.01;

/// What is filled.
pub(super) struct Fillable<'a> {
    pub shape: Shape,
    pub hop: Picos,
    /// Layers of the model.
    pub layers: u32,
    /// By rank: its chunks.
    pub ranks: Vec<&'a [u32]>,
    /// By chunk: fewest layers, and both passes in picoseconds at least, by layers: as far as they may go.
    pub fewest: Vec<u32>,
    pub passes: Vec<Vec<[f64; 2]>>,
}

/// Layers of the chunks of a rank, and all of them together.
#[derive(Clone)]
struct Filling {
    chunks: Vec<u32>,
    sum: u32,
}

/// Splits whose passes take less than a time.
pub(super) struct RankWalk<'a> {
    of: &'a Fillable<'a>,
    simulator: Simulator,
    /// Which rank is filled after which.
    order: Vec<usize>,
    fillings: Vec<Vec<Filling>>,
    /// Fewest and most layers of the ranks from each place of the order on.
    left: Vec<(u32, u32)>,
    split: Vec<u32>,
    /// Picoseconds of one unit: simulated times are whole numbers of these.
    unit: f64,
    /// Passes of the split in units, by chunk.
    times: Vec<[f32; 2]>,
    lanes: [Vec<Lanes>; 2],
    /// Units that are too long.
    limit: f32,
    /// Steps that are left, when it is seen whether to go on, and what a simulation counts as.
    steps: u64,
    glance: u64,
    each: u64,
    /// Share of the ways to fill ranks that are seen or ruled out.
    done: f64,
    stop: &'a dyn Fn() -> bool,
}

/// Which ranks of a pipeline are filled after which: far from those that are.
fn far_apart(ranks: usize) -> Vec<usize> {
    let mut order = Vec::with_capacity(ranks);
    order.extend([0, ranks - 1]);
    order.dedup();
    let mut stretches = std::collections::VecDeque::from([(0, ranks - 1)]);
    while let Some((from, to)) = stretches.pop_front() {
        let middle = usize::midpoint(from, to);
        if middle > from {
            order.push(middle);
            stretches.extend([(from, middle), (middle, to)]);
        }
    }
    order
}

impl<'a> RankWalk<'a> {
    /// Splits whose passes take less than `limit`; none if there are too many ways to fill ranks, `fits` saying which a rank
    /// may have memory for, or if schedules are too long. A simulation counts as `each` steps.
    pub fn new(
        of: &'a Fillable<'a>,
        limit: Picos,
        fits: impl Fn(usize, &[u32]) -> bool,
        each: u64,
        stop: &'a dyn Fn() -> bool,
    ) -> Option<Self> {
        let Shape { micro_batches, virtual_stages, ranks, .. } = of.shape;
        let passes = u64::from(ranks) * u64::from(virtual_stages) * u64::from(micro_batches);
        if passes > MOST_LANE_PASSES || limit == Picos::ZERO {
            return None;
        }
        let mut fillings = Vec::new();
        let mut room = MOST_FILLINGS;
        for (rank, own) in of.ranks.iter().enumerate() {
            let mut found = Vec::new();
            let most = limit.0 as f64 / f64::from(micro_batches) - of.least(own);
            let all = of.fill(own, most, &mut Vec::new(), &mut |filling| {
                if fits(rank, filling) {
                    found.push(Filling { chunks: filling.to_vec(), sum: filling.iter().sum() });
                }
                room = room.saturating_sub(1);
                room > 0
            });
            if !all {
                return None;
            }
            fillings.push(found);
        }
        let mut walk = Self {
            of,
            simulator: Simulator::default(),
            order: far_apart(fillings.len()),
            fillings,
            left: Vec::new(),
            split: of.fewest.clone(),
            unit: 1.0,
            times: vec![[0.0; 2]; of.fewest.len()],
            lanes: Default::default(),
            limit: 0.0,
            steps: 0,
            glance: 0,
            each,
            done: 0.0,
            stop,
        };
        // Twice as much is exact: what is longer than the limit stays so.
        walk.unit = (limit.0 as f64 / (MOST_EXACT / 2) as f64).max(1.0);
        walk.limit(limit);
        (0..of.fewest.len()).for_each(|k| walk.place(k, of.fewest[k]));
        Some(walk)
    }

    /// Looks for splits whose passes take less than so long.
    fn limit(&mut self, limit: Picos) {
        self.limit = (limit.0 as f64 / self.unit).ceil() as f32;
    }

    /// Sees every split that could take less than the limit, in at most so many steps, of which it leaves the rest. What is
    /// seen says what takes too long from there on, if that has changed.
    pub fn run(&mut self, steps: &mut u64, seen: &mut impl FnMut(&[u32]) -> Option<Picos>) -> End {
        self.steps = *steps;
        self.glance = *steps - *steps / GLANCE;
        let complete = match self.narrow() {
            Some(true) => self.fill(0, 0, 1.0, seen),
            Some(false) => true,
            None => false,
        };
        *steps = self.steps;
        if complete { End::Complete } else { End::Stopped }
    }

    /// Leaves out what ranks cannot hold beside others with the fewest layers; whether all can hold something, and all
    /// layers together. Nothing if it takes too many steps: then no more can be said of the ranks.
    fn narrow(&mut self) -> Option<bool> {
        let layers = self.of.layers;
        for _ in 0..ROUNDS {
            let before: usize = self.fillings.iter().map(Vec::len).sum();
            for rank in 0..self.fillings.len() {
                let others = self.fillings.iter().enumerate().filter(|&(other, _)| other != rank);
                let (fewest, most) = spans(others.map(|(_, own)| own));
                let mut own = std::mem::take(&mut self.fillings[rank]);
                own.retain(|filling| filling.sum + fewest <= layers && filling.sum + most >= layers);
                let short = self.short(rank, &own, &(0..own.len()).collect::<Vec<_>>())?;
                if short.is_empty() {
                    return Some(false);
                }
                self.fillings[rank] = short.into_iter().map(|(_, at)| own[at].clone()).collect();
                let chunks = self.of.ranks[rank];
                for (at, &k) in chunks.iter().enumerate() {
                    let fewest =
                        self.fillings[rank].iter().map(|filling| filling.chunks[at]).min().unwrap_or(0);
                    self.place(k as usize, fewest);
                }
            }
            if self.fillings.iter().map(Vec::len).sum::<usize>() == before {
                break;
            }
        }
        let of = |from: usize| spans(self.order[from..].iter().map(|&rank| &self.fillings[rank]));
        self.left = (0..=self.order.len()).map(of).collect();
        let (fewest, most) = self.left[0];
        Some((fewest..=most).contains(&layers))
    }

    /// Gives a chunk so many layers.
    fn place(&mut self, k: usize, layers: u32) {
        self.split[k] = layers;
        self.times[k] = self.of.passes[k][layers as usize].map(|time| (time / self.unit).floor() as f32);
    }

    /// Of some fillings of a rank those that do not take too long beside the split, shortest first. Nothing if no steps are
    /// left, or it is seen that they are not enough.
    fn short(&mut self, rank: usize, fillings: &[Filling], which: &[usize]) -> Option<Vec<(u32, usize)>> {
        let own = self.of.ranks[rank];
        let kept: Vec<u32> = own.iter().map(|&k| self.split[k as usize]).collect();
        let hop = Picos((self.of.hop.0 as f64 / self.unit) as u64);
        let mut short = Vec::new();
        for some in which.chunks(LANES) {
            let hopeless = self.steps < self.glance && self.done < HOPELESS;
            if self.steps < self.each || hopeless || (self.stop)() {
                return None;
            }
            self.steps -= self.each;
            for (pass, lanes) in self.lanes.iter_mut().enumerate() {
                lanes.clear();
                lanes.extend(self.times.iter().map(|times| Lanes([times[pass]; LANES])));
            }
            for (lane, &at) in some.iter().enumerate() {
                for (&k, &layers) in own.iter().zip(&fillings[at].chunks) {
                    self.place(k as usize, layers);
                    for (pass, lanes) in self.lanes.iter_mut().enumerate() {
                        lanes[k as usize].0[lane] = self.times[k as usize][pass];
                    }
                }
            }
            let stands = std::array::from_fn(|lane| lane < some.len());
            let [forward, backward] = &mut self.lanes;
            [&mut *forward, &mut *backward].into_iter().for_each(|lanes| Lanes::fill(lanes, stands));
            let ends = self.simulator.run_lanes(self.of.shape, [forward, backward], hop, self.limit);
            let ends = ends.iter().flat_map(|ends| ends.0).zip(some);
            short.extend(ends.filter(|(end, _)| *end < self.limit).map(|(end, &at)| (end as u32, at)));
        }
        own.iter().zip(kept).for_each(|(&k, layers)| self.place(k as usize, layers));
        short.sort_unstable();
        Some(short)
    }

    /// Fills the ranks from a place of the order on, after others hold so many layers: a `share` of all ways. False if it
    /// takes too many steps.
    fn fill(
        &mut self,
        depth: usize,
        held: u32,
        share: f64,
        seen: &mut impl FnMut(&[u32]) -> Option<Picos>,
    ) -> bool {
        let Some(&rank) = self.order.get(depth) else {
            self.done += share;
            if let Some(limit) = seen(&self.split) {
                self.limit(limit);
            }
            return true;
        };
        let fillings = std::mem::take(&mut self.fillings[rank]);
        let (fewest, most) = self.left[depth + 1];
        let layers = self.of.layers;
        let adds_up = |sum: u32| held + sum + fewest <= layers && held + sum + most >= layers;
        let which: Vec<usize> = (0..fillings.len()).filter(|&at| adds_up(fillings[at].sum)).collect();
        let each = share / which.len().max(1) as f64;
        let short = self.short(rank, &fillings, &which);
        let ruled_out = which.len() - short.as_ref().map_or(0, Vec::len);
        self.done += if which.is_empty() { share } else { each * ruled_out as f64 };
        let own = self.of.ranks[rank];
        let kept: Vec<u32> = own.iter().map(|&k| self.split[k as usize]).collect();
        let complete = short.is_some_and(|short| {
            short.into_iter().all(|(end, at)| {
                if end as f32 >= self.limit {
                    self.done += each;
                    return true;
                }
                let Filling { chunks, sum } = &fillings[at];
                own.iter().zip(chunks).for_each(|(&k, &layers)| self.place(k as usize, layers));
                self.fill(depth + 1, held + sum, each, seen)
            })
        });
        own.iter().zip(kept).for_each(|(&k, layers)| self.place(k as usize, layers));
        self.fillings[rank] = fillings;
        complete
    }
}

impl Fillable<'_> {
    /// Both passes of some chunks with their fewest layers.
    fn least(&self, chunks: &[u32]) -> f64 {
        let least = |&k: &u32| self.passes[k as usize][self.fewest[k as usize] as usize];
        chunks.iter().map(least).map(|[forward, backward]| forward + backward).sum()
    }

    /// All ways to fill some chunks with which both passes of one micro-batch take less than so many picoseconds beyond
    /// those with the fewest layers, as long as more are wanted.
    fn fill(
        &self,
        chunks: &[u32],
        beyond: f64,
        filling: &mut Vec<u32>,
        more: &mut impl FnMut(&[u32]) -> bool,
    ) -> bool {
        let Some(&k) = chunks.get(filling.len()) else { return more(filling) };
        let least = self.least(&[k]);
        for layers in self.fewest[k as usize]..self.passes[k as usize].len() as u32 {
            let [forward, backward] = self.passes[k as usize][layers as usize];
            let left = beyond - (forward + backward - least);
            if left <= 0.0 {
                break;
            }
            filling.push(layers);
            let wanted = self.fill(chunks, left, filling, more);
            filling.pop();
            if !wanted {
                return false;
            }
        }
        true
    }
}

/// Fewest and most layers of some ranks together.
fn spans<'a>(ranks: impl Iterator<Item = &'a Vec<Filling>>) -> (u32, u32) {
    let sums = |own: &'a Vec<Filling>| own.iter().map(|filling| filling.sum);
    ranks.fold((0, 0), |(fewest, most), own| {
        (fewest + sums(own).min().unwrap_or(0), most + sums(own).max().unwrap_or(0))
    })
}

impl Programme<'_> {
    /// What its passes take at least, as far as one chunk could go in a step below a time, and with the fewest layers in any case.
    pub(super) fn fillable(&self, shape: Shape, below: Picos) -> Fillable<'_> {
        let problem = self.problem;
        let fewest: Vec<u32> = (0..problem.chunks()).map(|k| problem.least(k)).collect();
        let layers = problem.layer_count();
        let mut before = vec![[0.0; 2]];
        for sort in self.order() {
            let [forward, backward] = before[before.len() - 1];
            let own = self.sorts[usize::from(sort)].passes();
            before.push([forward + own[0], backward + own[1]]);
        }
        // The chunks before and behind it hold layers as well.
        let (mut from, mut to) = (0, layers - fewest.iter().sum::<u32>().min(layers));
        let mut passes = Vec::new();
        for (fixed, &least) in self.fixed.iter().zip(&fewest) {
            to += least;
            let most = if fixed.closed { 0 } else { to - from };
            let ends = [fixed.forward.0 as f64, fixed.backward.0 as f64];
            let lightest = |pass: usize, n: u32| {
                let stretch = |at: u32| before[(at + n) as usize][pass] - before[at as usize][pass];
                ends[pass] + (from..=to - n).map(stretch).fold(f64::INFINITY, f64::min)
            };
            let by_layers = (0..=most).map(|n| (n, [lightest(0, n), lightest(1, n)]));
            // The fewest layers may take too long already.
            let short = |(n, [forward, backward]): &(u32, [f64; 2])| {
                *n <= least || (forward + backward) * f64::from(shape.micro_batches) < below.0 as f64
            };
            passes.push(by_layers.take_while(short).map(|(_, passes)| passes).collect());
            from += least;
        }
        let ranks = problem.pipeline.orders.iter().map(|order| order.chunks.as_slice()).collect();
        Fillable { shape, hop: problem.hop, layers, ranks, fewest, passes }
    }

    /// Which rank may have the memory to hold so many layers by chunk.
    pub(super) fn may_hold(&self) -> impl Fn(usize, &[u32]) -> bool {
        let orders = &self.problem.pipeline.orders;
        let mut by_rank: Vec<Vec<(f64, Vec<f64>)>> = vec![Vec::new(); orders.len()];
        for row in self.memory() {
            let (most, each) = self.by_layer(row);
            let lightest: Vec<f64> = each
                .chunks(self.sorts.len())
                .map(|own| own.iter().copied().fold(f64::INFINITY, f64::min))
                .collect();
            for (rows, order) in by_rank.iter_mut().zip(orders) {
                let own: Vec<f64> = order.chunks.iter().map(|&k| lightest[k as usize]).collect();
                if own.iter().any(|weight| *weight > 0.0) {
                    rows.push((most + BYTE_SLACK, own));
                }
            }
        }
        move |rank, filling| {
            let bytes =
                |each: &[f64]| each.iter().zip(filling).map(|(each, &n)| each * f64::from(n)).sum::<f64>();
            by_rank[rank].iter().all(|(most, each)| bytes(each) <= *most)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::walk::tests::{Random, every_split};
    use super::*;
    use crate::cost::schedule::Load;
    use crate::plan::Schedule;

    /// Of a pipeline whose layers differ: passes of a split, and the least of any chunk with so many.
    struct Case {
        shape: Shape,
        hop: Picos,
        layers: Vec<[u64; 2]>,
        ends: Vec<[u64; 2]>,
        fewest: Vec<u32>,
    }

    impl Case {
        fn new(random: &mut Random) -> Self {
            let (ranks, virtual_stages) = (2 + random.below(2) as u32, 2 + random.below(2) as u32);
            let micro_batches = u64::from(ranks) * (1 + random.below(3)) + random.below(2);
            let shape = Shape {
                schedule: Schedule::Interleaved,
                ranks,
                virtual_stages,
                micro_batches: micro_batches as u32,
            };
            let chunks = u64::from(ranks * virtual_stages);
            let kinds: Vec<[u64; 2]> = (0..1 + random.below(2))
                .map(|_| [0; 2].map(|_| 1_000_000 + random.below(9_000_000)))
                .collect();
            let layers = chunks + random.below(4);
            let layers = (0..layers).map(|_| kinds[random.below(kinds.len() as u64) as usize]).collect();
            let end = |random: &mut Random| if random.below(4) == 0 { random.below(5_000_000) } else { 0 };
            let ends: Vec<[u64; 2]> = (0..chunks).map(|_| [end(random), end(random)]).collect();
            let mut fewest = vec![1; chunks as usize];
            fewest[0] = random.below(2) as u32;
            Self { shape, hop: Picos(random.below(300_000)), layers, ends, fewest }
        }

        fn time(&self, split: &[u32], simulator: &mut Simulator) -> Picos {
            let mut layers = self.layers.iter();
            let mut passes = [Vec::new(), Vec::new()];
            for (&n, ends) in split.iter().zip(&self.ends) {
                let mut own = *ends;
                for layer in layers.by_ref().take(n as usize) {
                    own = [own[0] + layer[0], own[1] + layer[1]];
                }
                passes.iter_mut().zip(own).for_each(|(passes, own)| passes.push(Picos(own)));
            }
            let [forward, backward] = &passes;
            simulator.run(self.shape, Load { forward, backward, weight: backward, hop: self.hop })
        }

        /// Chunks by rank.
        fn ranks(&self) -> Vec<Vec<u32>> {
            let p = self.shape.ranks;
            (0..p).map(|rank| (rank..p * self.shape.virtual_stages).step_by(p as usize).collect()).collect()
        }

        /// Of every stretch of so many layers the least.
        fn fillable<'a>(&self, ranks: &'a [Vec<u32>]) -> Fillable<'a> {
            let lightest = |pass: usize, n: usize| {
                let stretches = (0..=self.layers.len() - n).map(|at| &self.layers[at..at + n]);
                stretches.map(|own| own.iter().map(|layer| layer[pass]).sum::<u64>()).min().unwrap()
            };
            let passes = self.ends.iter().map(|ends| {
                let of = |n: usize| [0, 1].map(|pass| (ends[pass] + lightest(pass, n)) as f64);
                (0..=self.layers.len()).map(of).collect()
            });
            Fillable {
                shape: self.shape,
                hop: self.hop,
                layers: self.layers.len() as u32,
                ranks: ranks.iter().map(Vec::as_slice).collect(),
                fewest: self.fewest.clone(),
                passes: passes.collect(),
            }
        }
    }

    /// The fastest of all splits whose ranks hold what they may is among those that are seen, if it is below the limit; and
    /// most splits are not seen.
    #[test]
    fn the_fastest_of_all_splits_is_seen() {
        let (mut seen_all, mut all, mut fastest_seen) = (0, 0, 0);
        let mut simulator = Simulator::default();
        for seed in 0..300 {
            let mut random = Random(seed);
            let case = Case::new(&mut random);
            let p = case.shape.ranks;
            let ranks: Vec<Vec<u32>> = (0..p)
                .map(|rank| (rank..p * case.shape.virtual_stages).step_by(p as usize).collect())
                .collect();
            let most: Vec<u32> = (0..p).map(|_| 3 + random.below(8) as u32).collect();
            let fits = |rank: usize, filling: &[u32]| filling.iter().sum::<u32>() <= most[rank];
            let fewest: Vec<(u32, bool)> = case.fewest.iter().map(|&n| (n, true)).collect();
            let mut splits = Vec::new();
            every_split(&fewest, case.layers.len() as u32, &mut Vec::new(), &mut splits);
            all += splits.len();
            let fitting = splits.into_iter().filter(|split| {
                let own = |chunks: &[u32]| chunks.iter().map(|&k| split[k as usize]).collect::<Vec<_>>();
                ranks.iter().enumerate().all(|(rank, chunks)| fits(rank, &own(chunks)))
            });
            let least = fitting.map(|split| case.time(&split, &mut simulator)).min();
            let even = least.unwrap_or(Picos(case.layers.len() as u64 * 10_000_000));
            // Above and below the fastest.
            for percent in [97, 104, 130] {
                let limit = Picos(even.0 * percent / 100);
                let mut lowest = limit;
                let chunks = case.fillable(&ranks);
                let mut walk = RankWalk::new(&chunks, limit, fits, 1, &|| false).unwrap();
                let end = walk.run(&mut 1_000_000, &mut |split| {
                    seen_all += 1;
                    lowest = lowest.min(case.time(split, &mut simulator));
                    Some(lowest)
                });
                assert_eq!(end, End::Complete);
                let expected = least.map_or(limit, |least| least.min(limit));
                assert_eq!(lowest, expected, "seed {seed}, {percent} %");
                fastest_seen += u32::from(lowest < limit);
            }
        }
        // Of three times all.
        assert!(fastest_seen > 300 && seen_all < all, "{fastest_seen} {seen_all} {all}");
    }

    /// It gives up rather than take too long, and where chunks may hold too much.
    #[test]
    fn it_stops_after_its_steps() {
        let case = Case::new(&mut Random(5));
        let ranks = case.ranks();
        let chunks = case.fillable(&ranks);
        let long = Picos(u64::MAX / 4);
        let mut walk = RankWalk::new(&chunks, long, |_, _| true, 500, &|| false).unwrap();
        let mut steps = 1_050;
        assert_eq!(walk.run(&mut steps, &mut |_| None), End::Stopped);
        // An eighth of them was enough to see it.
        assert_eq!(steps, 550);
        assert!(RankWalk::new(&chunks, Picos::ZERO, |_, _| true, 1, &|| false).is_none());
        let layers = vec![[1, 2]; 40];
        let longer = Case { layers, ..case };
        assert!(RankWalk::new(&longer.fillable(&ranks), long, |_, _| true, 1, &|| false).is_none());
    }

    /// Where a chunk takes too long with its fewest layers, nothing is seen.
    #[test]
    fn nothing_is_below_what_one_chunk_takes() {
        let case = Case::new(&mut Random(5));
        let ranks = case.ranks();
        let mut fillable = case.fillable(&ranks);
        for (passes, &fewest) in fillable.passes.iter_mut().zip(&fillable.fewest) {
            passes.truncate(fewest as usize + 1);
        }
        let mut walk = RankWalk::new(&fillable, Picos(1_000_000), |_, _| true, 1, &|| false).unwrap();
        let end = walk.run(&mut 1_000, &mut |split| panic!("{split:?}"));
        assert_eq!(end, End::Complete);
    }

    #[test]
    fn ranks_are_filled_far_apart() {
        assert_eq!(far_apart(1), [0]);
        assert_eq!(far_apart(2), [0, 1]);
        assert_eq!(far_apart(9), [0, 8, 4, 2, 6, 1, 3, 5, 7]);
        for ranks in 1..40 {
            let mut order = far_apart(ranks);
            order.sort_unstable();
            assert!(order.into_iter().eq(0..ranks));
        }
    }
}
