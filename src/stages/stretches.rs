//! Every split of whole layers, by the stretches of layers that chunks may hold: what proves that no split is faster where
//! it is waiting between short chunks that takes the time, and where kinds of layers alternate.
//!
//! A schedule of fixed lists takes no less when a pass takes longer, so what one chunk takes beside others that take the
//! least they may is a bound on every split where it holds that. What takes too long is ruled out; then chunks before and
//! behind reach fewer places, ranks hold fewer layers together, chunks take more at least, and more takes too long
//! beside that. Where that ends a chunk is divided: either it holds the longest that it may, or not.

mod classes;
mod clauses;
mod fillings;

use std::ops::RangeInclusive;

use classes::{Classes, Stretches, bits, each, longest};
pub(super) use clauses::Clauses;
use clauses::Passes;
use fillings::{Fillings, Scale, Span, Sums};

use super::chains::{BYTE_SLACK, Programme};
use super::walk::{End, Row};
use crate::cost::schedule::{LANES, Lanes, Load, MOST_EXACT, MOST_LANE_PASSES, Shape, Simulator};
use crate::units::Picos;

/// Fillings of all ranks together: where chunks have more layers, they wait less, and there are too many. Four times as many
/// proved no more of `benches/held.sh`.
const MOST_FILLINGS: usize = 1 << 15;
/// What one that is listed, and one that is compared with another, counts as of what is looked at.
const LISTED: u64 = 64;
const COMPARED: u64 = 4;
/// What a stretch of a chunk counts as when it is seen what is reached.
const REACHED: u64 = 4;
/// Part of the steps that may be taken to see which fillings of ranks take too long.
const LISTING: u64 = 4;
/// A walk is given up where its first steps left so little fewer ways to fill ranks, in logarithms: three plans of
/// `benches/held.sh` that are proved had by a quarter of their steps from three to eight per cent fewer, one that is not half a
/// per cent.
const BEGINNING: f64 = 0.02;
/// Part of the limit that is not told apart.
const LITTLE: f32 = 1e-3;
/// Rounds of simulations until a chunk is divided.
const ROUNDS: usize = 4;
/// Simulations that a chain takes.
const CHAIN: u64 = 2;
/// What is looked at in the time of a step: fillings and stretches.
const LOOKS_PER_STEP: u64 = 256;
/// What rounding may take from a row.
const SLACK: f64 = 1e-6;

/// What is divided.
pub(super) struct Division<'a> {
    pub shape: Shape,
    pub hop: Picos,
    /// Sort of every layer; both passes of one in picoseconds, by sort. If the first layers of every chunk are recomputed, so
    /// many, then the sorts come twice, and those are of the second.
    pub order: Vec<u8>,
    pub sorts: Vec<[f64; 2]>,
    pub recomputed: usize,
    /// By chunk: both passes without layers, and the fewest layers, and whether it takes any.
    pub ends: Vec<[f64; 2]>,
    pub fewest: Vec<(u32, bool)>,
    /// By rank: its chunks.
    pub ranks: Vec<&'a [u32]>,
    /// Bytes of ranks.
    pub memory: Vec<Row>,
    /// What a step takes on average of its chains, each in a unit of so many picoseconds.
    pub averages: Vec<Row>,
    pub unit: f64,
}

/// What chunks may hold.
#[derive(Clone)]
struct State {
    /// By chunk: which layers may be its first, and by chunk and first layer the numbers of layers, each a bit.
    first: Vec<RangeInclusive<usize>>,
    lengths: Vec<u64>,
    /// By chunk: classes of those.
    left: Vec<Classes>,
    /// By rank: which of its fillings; and by chunk the classes of those.
    fillings: Vec<Vec<u32>>,
    used: Vec<Classes>,
    spans: Vec<Span>,
    /// Least passes at the latest simulations. By chunk how long all took with the longest that it may hold, and what that
    /// was if it was simulated since.
    floors: Vec<[f32; 2]>,
    ends: Vec<f32>,
    passed: Vec<Option<usize>>,
}

/// Splits whose passes take less than a time.
pub(super) struct Narrowing<'a> {
    of: &'a Division<'a>,
    stretches: Stretches,
    /// By chunk and class: passes in units, picoseconds of one, and units that are too long.
    times: Vec<[f32; 2]>,
    unit: f64,
    limit: f32,
    hop: f32,
    /// The same in picoseconds.
    below: Picos,
    /// By chunk and layer: what the layers before it add there to an average of chains, and beyond that if they are
    /// recomputed; and the most that all may add.
    average: Vec<[f64; 2]>,
    most: f64,
    scale: Scale,
    ranks: Vec<Fillings>,
    /// Chains that take too long somewhere.
    pub clauses: Clauses,
    simulator: Simulator,
    lanes: [Vec<Lanes>; 2],
    /// Least passes of the state, chunk by chunk.
    floors: Vec<[f32; 2]>,
    /// The same, and what each may take beyond, for chains.
    flat: Passes,
    beyond: Passes,
    /// Steps that are left, what a simulation counts as, and what was looked at since they were counted.
    steps: u64,
    each: u64,
    looks: u64,
    /// Chunks that are divided, and one; logarithm of the ways to fill ranks beside none, and at first; steps that are left when
    /// it is seen whether to go on.
    depth: usize,
    ways: f64,
    all_ways: f64,
    begun: u64,
    stop: &'a dyn Fn() -> bool,
}

/// A chunk, and the class that it has.
type Change = (usize, usize);

/// No steps are left.
struct Stopped;

impl<'a> Narrowing<'a> {
    /// Splits whose passes take less than `below`; none if there are too many stretches, or schedules are too long. A
    /// simulation counts as `each` steps.
    pub fn new(of: &'a Division<'a>, below: Picos, each: u64, stop: &'a dyn Fn() -> bool) -> Option<Self> {
        let Shape { micro_batches, virtual_stages, ranks, .. } = of.shape;
        let passes = u64::from(ranks) * u64::from(virtual_stages) * u64::from(micro_batches);
        if passes > MOST_LANE_PASSES || below == Picos::ZERO {
            return None;
        }
        let longest = below.0 as f64 / f64::from(micro_batches);
        let stretches = Stretches::new(&of.order, &of.sorts, of.recomputed, longest)?;
        // Twice as much is exact: what is longer than the limit stays so.
        let unit = (below.0 as f64 / (MOST_EXACT / 2) as f64).max(1.0);
        let time = |ends: &[f64; 2], passes: &[f64; 2]| {
            [0, 1].map(|pass| ((ends[pass] + passes[pass]) / unit).floor() as f32)
        };
        let times = of.ends.iter().flat_map(|ends| stretches.passes.iter().map(move |own| time(ends, own)));
        let times = times.collect();
        let mut narrowing = Self {
            of,
            times,
            unit,
            limit: (below.0 as f64 / unit).ceil() as f32,
            hop: (of.hop.0 as f64 / unit).floor() as f32,
            below,
            average: Vec::new(),
            most: f64::MAX,
            scale: Scale::new(&stretches, &of.order, &of.sorts),
            stretches,
            ranks: Vec::new(),
            clauses: Clauses::default(),
            simulator: Simulator::default(),
            lanes: Default::default(),
            floors: vec![[0.0; 2]; of.ends.len()],
            flat: Passes::default(),
            beyond: Passes::default(),
            steps: 0,
            each,
            looks: 0,
            depth: 0,
            ways: 0.0,
            all_ways: 0.0,
            begun: 0,
            stop,
        };
        narrowing.weigh_best();
        Some(narrowing)
    }

    /// Sees every split that could take less than the limit, in at most so many steps, of which it leaves the rest; by `glance` of
    /// them it should have begun. What is seen says what takes too long from there on, if that has changed.
    pub fn run(
        &mut self,
        steps: &mut u64,
        glance: u64,
        seen: &mut impl FnMut(&[u32]) -> Option<Picos>,
    ) -> End {
        (self.steps, self.begun) = (*steps, steps.saturating_sub(glance));
        let mut state = self.everything();
        let searched =
            self.list(&mut state).and_then(|any| if any { self.search(state, seen) } else { Ok(()) });
        *steps = self.steps;
        if searched.is_ok() { End::Complete } else { End::Stopped }
    }

    /// Whether more layers of a chunk are no longer to be recomputed: no chunk may hold more.
    pub fn recomputes_all(&self) -> bool {
        self.stretches.lengths.iter().all(|&n| n as usize <= self.of.recomputed)
    }

    fn chunks(&self) -> usize {
        self.of.ends.len()
    }

    fn width(&self) -> usize {
        self.stretches.layers + 1
    }

    /// Whatever may be short enough.
    fn everything(&self) -> State {
        let (chunks, width) = (self.chunks(), self.width());
        let mut lengths = Vec::with_capacity(chunks * width);
        for &(fewest, open) in &self.of.fewest {
            let of =
                |from| self.stretches.lengths_from(from, fewest as usize) & if open { u64::MAX } else { 1 };
            lengths.extend((0..width).map(of));
        }
        State {
            first: vec![0..=width - 1; chunks],
            lengths,
            left: vec![0; chunks],
            fillings: Vec::new(),
            used: vec![0; chunks],
            spans: Vec::new(),
            floors: Vec::new(),
            ends: vec![0.0; chunks],
            passed: vec![None; chunks],
        }
    }

    /// Takes that average of chains which is the most at least.
    fn weigh_best(&mut self) {
        let mut highest = f64::NEG_INFINITY;
        let whole = self.everything();
        let again = if self.of.recomputed > 0 { self.of.sorts.len() / 2 } else { 0 };
        for row in &self.of.averages {
            let mut before = Vec::with_capacity(self.chunks() * self.width());
            for own in row.each.chunks(self.of.sorts.len()) {
                let mut sums = [0.0; 2];
                before.push(sums);
                before.extend(self.of.order.iter().map(|&sort| {
                    let sort = usize::from(sort);
                    sums = [sums[0] + own[sort], sums[1] + own[sort + again] - own[sort]];
                    sums
                }));
            }
            let (before, most) =
                (std::mem::replace(&mut self.average, before), std::mem::replace(&mut self.most, row.most));
            let least = self.least_before(&whole)[self.chunks() * self.width() + self.stretches.layers];
            if least - row.most > highest {
                highest = least - row.most;
            } else {
                (self.average, self.most) = (before, most);
            }
        }
    }

    /// What a stretch adds on a chunk to an average of chains.
    fn weight(&self, k: usize, from: usize, layers: usize) -> f64 {
        if self.average.is_empty() {
            return 0.0;
        }
        let before = &self.average[k * self.width() + from..];
        let own = before[layers][0] - before[0][0];
        if self.of.recomputed == 0 {
            return own;
        }
        own + before[layers.min(self.of.recomputed)][1] - before[0][1]
    }

    /// By chunk and layer: the least of the average of the chunks before, with the layers before; infinite where they cannot hold
    /// those.
    fn least_before(&self, state: &State) -> Vec<f64> {
        let (chunks, width) = (self.chunks(), self.width());
        let mut least = vec![f64::INFINITY; (chunks + 1) * width];
        least[0] = 0.0;
        for k in 0..chunks {
            let (own, next) = least[k * width..].split_at_mut(width);
            for from in state.first[k].clone() {
                if own[from].is_infinite() {
                    continue;
                }
                for n in bits(state.lengths[k * width + from]) {
                    next[from + n] = next[from + n].min(own[from] + self.weight(k, from, n));
                }
            }
        }
        least
    }

    /// Leaves the stretches of splits whose chains take less on average than the limit; false if there are none.
    fn reach(&mut self, state: &mut State) -> bool {
        let (chunks, width, layers) = (self.chunks(), self.width(), self.stretches.layers);
        let before = self.least_before(state);
        if before[chunks * width + layers] > self.most + SLACK {
            return false;
        }
        let mut behind = vec![f64::INFINITY; width];
        behind[layers] = 0.0;
        for k in (0..chunks).rev() {
            let mut own = vec![f64::INFINITY; width];
            let (mut first, mut last, mut classes) = (width, 0, 0);
            for from in state.first[k].clone() {
                let least = before[k * width + from];
                let mut left = 0;
                for n in bits(state.lengths[k * width + from]) {
                    let rest = self.weight(k, from, n) + behind[from + n];
                    if least + rest <= self.most + SLACK {
                        own[from] = own[from].min(rest);
                        left |= 1 << n;
                    }
                    self.looks += REACHED;
                }
                state.lengths[k * width + from] = left;
                if left != 0 {
                    (first, last) = (first.min(from), from);
                    classes |= self.stretches.classes(from, left);
                }
            }
            if classes == 0 {
                return false;
            }
            state.first[k] = first..=last;
            state.left[k] = classes;
            behind = own;
        }
        true
    }

    /// Leaves a chunk only stretches of some classes.
    fn keep(&self, state: &mut State, k: usize, classes: Classes) {
        let width = self.width();
        for class in each(state.left[k] & !classes) {
            let n = self.stretches.lengths[class] as usize;
            for from in state.first[k].clone() {
                let own = &mut state.lengths[k * width + from];
                if *own >> n & 1 == 1 && self.stretches.class(from, n) == Some(class) {
                    *own &= !(1 << n);
                }
            }
        }
        state.left[k] &= classes;
    }

    /// Leaves what ranks may hold beside others; whether chunks may hold less then, and nothing if they cannot hold all.
    fn share(&mut self, state: &mut State) -> Option<bool> {
        let Self { ranks, scale, .. } = &*self;
        if ranks.len() < self.of.ranks.len() {
            // They are not listed yet.
            return Some(false);
        }
        let mut looks = 0;
        let mut fewer = vec![false; ranks.len()];
        for (at, rank) in ranks.iter().enumerate() {
            if rank.chunks.iter().all(|&k| state.left[k] == state.used[k]) {
                continue;
            }
            let left: smallvec::SmallVec<[Classes; 4]> = rank.chunks.iter().map(|&k| state.left[k]).collect();
            looks += state.fillings[at].len() as u64;
            rank.keep(&mut state.fillings[at], &left);
            state.spans[at] = rank.span(scale, &state.fillings[at]);
            fewer[at] = true;
        }
        loop {
            if state.fillings.iter().any(Vec::is_empty) {
                return None;
            }
            let sums = Sums::new(state.spans.iter(), scale);
            if !sums.may_be_all(scale) {
                return None;
            }
            let mut any = false;
            for (at, rank) in ranks.iter().enumerate() {
                if sums.keep(rank, &mut state.fillings[at], &state.spans[at], scale) {
                    looks += state.fillings[at].len() as u64;
                    state.spans[at] = rank.span(scale, &state.fillings[at]);
                    (any, fewer[at]) = (true, true);
                }
            }
            if !any {
                break;
            }
        }
        let mut any = false;
        for at in (0..fewer.len()).filter(|&at| fewer[at]) {
            let used = self.ranks[at].used(&state.fillings[at]);
            looks += state.fillings[at].len() as u64;
            for (&k, used) in self.ranks[at].chunks.iter().zip(used) {
                any |= used != state.left[k];
                self.keep(state, k, used);
                state.used[k] = used;
            }
        }
        self.looks += looks;
        Some(any)
    }

    /// Both passes of a chunk with the stretch of a class.
    fn time(&self, (k, class): Change) -> [f32; 2] {
        self.times[k * self.stretches.count() + class]
    }

    /// The least passes of chunks; whether those are others than before.
    fn raise_floors(&mut self, state: &State) -> bool {
        let mut raised = false;
        for k in 0..self.chunks() {
            let times = each(state.left[k]).map(|class| self.time((k, class)));
            let least =
                times.fold([f32::INFINITY; 2], |least, time| [least[0].min(time[0]), least[1].min(time[1])]);
            raised |= self.floors[k] != least;
            self.floors[k] = least;
        }
        self.flat.set(self.floors.iter().copied());
        raised
    }

    /// Leaves what chains that were seen before do not rule out; whether that is less, and nothing if they rule out all.
    fn recall(&mut self, state: &mut State) -> Option<bool> {
        let mut left = state.left.clone();
        self.looks += (self.clauses.len() * left.len()) as u64;
        let Self { clauses, stretches, times, floors, flat, beyond, hop, limit, .. } = self;
        let classes = stretches.count();
        let more = |k: usize, own: Classes| {
            let [forward, backward] = times[k * classes + longest(own)];
            [forward - floors[k][0], backward - floors[k][1]]
        };
        beyond.set(
            left.iter()
                .enumerate()
                .map(|(k, &own)| if own.count_ones() > 1 { more(k, own) } else { [0.0; 2] }),
        );
        let possible = clauses.all((flat, beyond), *hop, *limit, |room, chain| {
            let mut fewer = false;
            for (k, own) in left.iter_mut().enumerate() {
                while own.count_ones() > 1 {
                    let ([forward, backward], [forwards, backwards]) = (more(k, *own), chain.of(k));
                    if forward * forwards + backward * backwards < room {
                        break;
                    }
                    *own &= !stretches.above[longest(*own)];
                    fewer = true;
                }
            }
            fewer
        });
        if !possible || left.contains(&0) {
            return None;
        }
        let fewer = left != state.left;
        for (k, left) in left.into_iter().enumerate() {
            self.keep(state, k, left);
        }
        Some(fewer)
    }

    /// How long all take at least with each of up to eight changes.
    fn simulate(&mut self, changes: &[&[Change]]) -> Result<[f32; LANES], Stopped> {
        self.count(self.each)?;
        for (pass, lanes) in self.lanes.iter_mut().enumerate() {
            lanes.clear();
            lanes.extend(self.floors.iter().map(|times| Lanes([times[pass]; LANES])));
        }
        for (lane, &change) in changes.iter().enumerate() {
            for &at in change {
                let time = self.time(at);
                self.lanes.iter_mut().zip(time).for_each(|(lanes, time)| lanes[at.0].0[lane] = time);
            }
        }
        let stands = std::array::from_fn(|lane| lane < changes.len());
        let [forward, backward] = &mut self.lanes;
        [&mut *forward, &mut *backward].into_iter().for_each(|lanes| Lanes::fill(lanes, stands));
        let hop = Picos(self.hop as u64);
        let ends = self.simulator.run_lanes(self.of.shape, [forward, backward], hop, self.limit);
        Ok(ends.map_or([f32::INFINITY; LANES], |ends| ends.0))
    }

    /// Takes steps, and those of what was looked at.
    fn count(&mut self, steps: u64) -> Result<(), Stopped> {
        let steps = steps + std::mem::take(&mut self.looks) / LOOKS_PER_STEP;
        if self.steps < steps || (self.stop)() {
            return Err(Stopped);
        }
        self.steps -= steps;
        Ok(())
    }

    /// Remembers the chain that takes too long with some changes.
    fn learn(&mut self, change: &[Change]) {
        let mut times = self.floors.clone();
        for &at in change {
            times[at.0] = self.time(at);
        }
        let pass = |pass: usize| times.iter().map(|times| Picos(times[pass] as u64)).collect::<Vec<_>>();
        let (forward, backward) = (pass(0), pass(1));
        let hop = Picos(self.hop as u64);
        let load = Load { forward: &forward, backward: &backward, weight: &backward, hop };
        let chain = self.simulator.longest_chain(self.of.shape, load, &[]);
        self.steps = self.steps.saturating_sub(CHAIN * self.each);
        let passes = chain.forward.iter().zip(&chain.backward).map(|(&f, &b)| [f as f32, b as f32]);
        self.clauses.add(passes, chain.hops as f32);
    }

    /// Rules out what does not reach the ends, what ranks cannot hold and what chains forbid, as long as there is more; false
    /// if nothing is left.
    fn settle(&mut self, state: &mut State) -> bool {
        loop {
            if !self.reach(state) {
                return false;
            }
            match self.share(state) {
                None => return false,
                Some(true) => continue,
                Some(false) => {}
            }
            if !self.raise_floors(state) && !state.floors.is_empty() {
                return true;
            }
            match self.recall(state) {
                None => return false,
                Some(true) => {}
                Some(false) => return true,
            }
        }
    }

    /// Rules out what takes too long beside the least of others; false if nothing is left.
    fn narrow(&mut self, state: &mut State) -> Result<bool, Stopped> {
        for _ in 0..ROUNDS {
            if !self.settle(state) {
                return Ok(false);
            }
            let raised = state.floors != self.floors;
            if raised {
                state.floors.clone_from(&self.floors);
                state.passed.fill(None);
            }
            match self.test(state, raised)? {
                None => return Ok(false),
                Some(false) => return Ok(true),
                Some(true) => {}
            }
        }
        Ok(self.settle(state))
    }

    /// Simulates chunks with the longest that they may hold, where that takes too long with the next: first those that took
    /// longest before, until some do not. Whether they may hold less then, and nothing if they may hold nothing; the least
    /// of all as well, if that is others than before.
    fn test(&mut self, state: &mut State, raised: bool) -> Result<Option<bool>, Stopped> {
        let mut waiting: Vec<Change> = (0..self.chunks())
            .filter(|&k| state.left[k].count_ones() > 1)
            .map(|k| (k, longest(state.left[k])))
            .filter(|&(k, class)| state.passed[k] != Some(class))
            .collect();
        waiting.sort_by(|a, b| state.ends[b.0].total_cmp(&state.ends[a.0]));
        let mut fewer = false;
        let mut all = raised;
        while all || !waiting.is_empty() {
            let some: Vec<Change> = waiting.drain(..waiting.len().min(LANES - usize::from(all))).collect();
            let none: Option<&[Change]> = std::mem::take(&mut all).then_some(&[]);
            let changes: Vec<&[Change]> = some.chunks(1).chain(none).collect();
            let ends = self.simulate(&changes)?;
            if none.is_some() && ends[some.len()] >= self.limit {
                self.learn(&[]);
                return Ok(None);
            }
            let mut any = false;
            for (&(k, class), end) in some.iter().zip(ends) {
                if end < self.limit {
                    state.ends[k] = end;
                    state.passed[k] = Some(class);
                    continue;
                }
                if !any {
                    self.learn(&[(k, class)]);
                }
                any = true;
                self.keep(state, k, !self.stretches.above[class]);
                if state.left[k] == 0 {
                    return Ok(None);
                }
                waiting.push((k, longest(state.left[k])));
            }
            fewer |= any;
            if !any {
                break;
            }
        }
        Ok(Some(fewer))
    }

    /// Lists what ranks may hold, as far as that is short enough and they have the memory; whether each may hold something.
    fn list(&mut self, state: &mut State) -> Result<bool, Stopped> {
        if !self.narrow(state)? {
            return Ok(false);
        }
        let mut room = MOST_FILLINGS;
        for chunks in &self.of.ranks {
            let mut rank = Fillings::new(chunks.iter().map(|&k| k as usize).collect());
            let lightest: f64 = rank.chunks.iter().map(|&k| both(self.floors[k])).sum();
            let beyond = f64::from(self.limit) / f64::from(self.of.shape.micro_batches) - lightest;
            let mut fitting = Vec::new();
            let memory = self.memory_of(&rank.chunks);
            if !self.fill(state, &rank.chunks, beyond, &mut Vec::new(), &mut |filling, beyond| {
                if self.has_memory(&memory, &rank.chunks, filling) {
                    fitting.push((beyond, filling.to_vec()));
                }
                room = room.saturating_sub(1);
                room > 0
            }) {
                return Err(Stopped);
            }
            self.looks += fitting.len() as u64 * LISTED;
            let simulations = (fitting.len() * self.of.ranks.len() / LANES) as u64;
            if simulations * self.each < self.steps / LISTING {
                fitting.sort_by(|(a, _), (b, _)| a.total_cmp(b));
                let fillings = fitting.into_iter().map(|(_, filling)| filling).collect();
                self.test_fillings(&rank.chunks, fillings)?.iter().for_each(|own| rank.add(own, &self.scale));
            } else {
                fitting.iter().for_each(|(_, own)| rank.add(own, &self.scale));
            }
            let all: Vec<u32> = (0..rank.len() as u32).collect();
            state.spans.push(rank.span(&self.scale, &all));
            state.fillings.push(all);
            self.ranks.push(rank);
        }
        Ok(state.fillings.iter().all(|all| !all.is_empty()))
    }

    /// All ways to fill some chunks that take less than so long beyond the least, as long as more are wanted, with what each
    /// leaves of it.
    fn fill(
        &self,
        state: &State,
        chunks: &[usize],
        beyond: f64,
        filling: &mut Vec<u8>,
        more: &mut impl FnMut(&[u8], f64) -> bool,
    ) -> bool {
        let Some(&k) = chunks.get(filling.len()) else { return more(filling, beyond) };
        for class in each(state.left[k]) {
            let left = beyond - (both(self.time((k, class))) - both(self.floors[k]));
            if left <= 0.0 {
                continue;
            }
            filling.push(class as u8);
            let wanted = self.fill(state, chunks, left, filling, more);
            filling.pop();
            if !wanted {
                return false;
            }
        }
        true
    }

    /// Rows of memory that some chunks count in.
    fn memory_of(&self, chunks: &[usize]) -> Vec<&'a Row> {
        let sorts = self.of.sorts.len();
        let counts =
            |row: &&Row| chunks.iter().any(|k| row.each[k * sorts..][..sorts].iter().any(|&n| n != 0.0));
        self.of.memory.iter().filter(counts).collect()
    }

    /// Whether a rank may have the memory to hold stretches of some classes on its chunks.
    fn has_memory(&self, rows: &[&Row], chunks: &[usize], filling: &[u8]) -> bool {
        let sorts = self.of.sorts.len();
        rows.iter().all(|row| {
            let bytes = |(&k, &class): (&usize, &u8)| {
                let counts = self.stretches.counts[usize::from(class)].iter();
                counts.zip(&row.each[k * sorts..]).map(|(&n, each)| f64::from(n) * each).sum::<f64>()
            };
            chunks.iter().zip(filling).map(bytes).sum::<f64>() <= row.most + BYTE_SLACK
        })
    }

    /// Of some fillings of a rank, those that take longest first, the ones that do not take too long.
    fn test_fillings(&mut self, chunks: &[usize], fillings: Vec<Vec<u8>>) -> Result<Vec<Vec<u8>>, Stopped> {
        let mut short = Vec::new();
        let mut compared = 0;
        let mut open = std::collections::VecDeque::from(fillings);
        while !open.is_empty() {
            let some: Vec<Vec<u8>> = open.drain(..open.len().min(LANES)).collect();
            let change = |filling: &Vec<u8>| -> Vec<Change> {
                chunks.iter().zip(filling).map(|(&k, &class)| (k, usize::from(class))).collect()
            };
            let changes: Vec<Vec<Change>> = some.iter().map(change).collect();
            let changes: Vec<&[Change]> = changes.iter().map(Vec::as_slice).collect();
            self.looks += std::mem::take(&mut compared);
            let ends = self.simulate(&changes)?;
            for (filling, end) in some.into_iter().zip(ends) {
                if end < self.limit {
                    short.push(filling);
                    continue;
                }
                let longer = |other: &[u8]| {
                    let above =
                        |(&own, &other): (&u8, &u8)| self.stretches.above[usize::from(own)] >> other & 1 == 1;
                    filling.iter().zip(other).all(above)
                };
                open.retain(|other| !longer(other));
                compared += open.len() as u64 * COMPARED;
            }
        }
        Ok(short)
    }

    /// Sees every split of a state that does not take too long.
    fn search(
        &mut self,
        mut state: State,
        seen: &mut impl FnMut(&[u32]) -> Option<Picos>,
    ) -> Result<(), Stopped> {
        self.depth += 1;
        while self.narrow(&mut state)? {
            let Some(k) = self.open(&state) else {
                self.places(state, seen)?;
                break;
            };
            self.glance(&state)?;
            let class = 1 << longest(state.left[k]);
            let mut with = state.clone();
            self.keep(&mut with, k, class);
            self.search(with, seen)?;
            self.keep(&mut state, k, !class);
        }
        self.depth -= 1;
        Ok(())
    }

    /// The chunk that is divided next, if any is to be: where little more takes too long, on a rank that may be filled in few
    /// ways. On four jobs of `benches/held.sh` either alone takes up to half as long again, or ten times as long.
    fn open(&self, state: &State) -> Option<usize> {
        let room = |k: usize| 1.0 - state.ends[k] / self.limit + LITTLE;
        let several = state.fillings.iter().zip(&self.ranks).filter(|(ways, _)| ways.len() > 1);
        let next = several.filter_map(|(ways, rank)| {
            let open = rank.chunks.iter().copied().filter(|&k| state.left[k].count_ones() > 1);
            let k = open.min_by(|&a, &b| room(a).total_cmp(&room(b)))?;
            Some((room(k) * (ways.len() as f32).ln(), k))
        });
        next.min_by(|(a, _), (b, _)| a.total_cmp(b)).map(|(_, k)| k)
    }

    /// Gives up where what was done is not a beginning.
    fn glance(&mut self, state: &State) -> Result<(), Stopped> {
        if self.depth == 1 {
            self.ways = state.fillings.iter().map(|ways| (ways.len() as f64).ln()).sum();
            self.all_ways = self.all_ways.max(self.ways);
        }
        let hopeless = self.steps < self.begun && self.ways > (1.0 - BEGINNING) * self.all_ways;
        if hopeless { Err(Stopped) } else { Ok(()) }
    }

    /// The same where chunks take the same wherever they begin.
    fn places(
        &mut self,
        mut state: State,
        seen: &mut impl FnMut(&[u32]) -> Option<Picos>,
    ) -> Result<(), Stopped> {
        loop {
            if !self.reach(&mut state) {
                return Ok(());
            }
            self.count(1)?;
            let (mut from, mut split) = (0, Vec::new());
            let mut several = None;
            for k in 0..self.chunks() {
                let own = state.lengths[k * self.width() + from];
                let n = own.trailing_zeros();
                if own.count_ones() > 1 {
                    several = several.or(Some((k, from, n)));
                }
                split.push(n);
                from += n as usize;
            }
            let Some((k, from, n)) = several else {
                if let Some(below) = seen(&split) {
                    self.lower(below);
                }
                return Ok(());
            };
            let mut with = state.clone();
            let at = k * self.width() + from;
            with.first[k] = from..=from;
            with.lengths[at] = 1 << n;
            self.places(with, seen)?;
            state.lengths[at] &= !(1 << n);
        }
    }

    /// From here on only what takes less than so long is of interest.
    fn lower(&mut self, below: Picos) {
        self.most -= self.below.saturating_sub(below).0 as f64 / self.of.unit;
        self.below = below;
        self.limit = (below.0 as f64 / self.unit).ceil() as f32;
    }
}

/// Both passes together.
fn both([forward, backward]: [f32; 2]) -> f64 {
    f64::from(forward) + f64::from(backward)
}

impl Programme<'_> {
    /// What it divides, of a schedule of such a shape, if so many of the first layers of every chunk are recomputed.
    /// `averages` are of its chains.
    pub(super) fn division(&self, shape: Shape, recomputed: usize, averages: &[Row]) -> Division<'_> {
        let passes = |fixed: &super::Fixed| [fixed.forward.0 as f64, fixed.backward.0 as f64];
        let bytes = |(most, terms)| Row { most, each: self.apart(&self.by_column(terms)), lowers: false };
        let average = |row: &Row| Row { each: self.apart(&row.each), ..*row };
        let recompute = self.sorts.iter().filter_map(super::chains::Sort::recomputed);
        Division {
            shape,
            hop: self.problem.hop,
            order: self.order(),
            sorts: self.sorts.iter().map(super::chains::Sort::passes).chain(recompute).collect(),
            recomputed,
            ends: self.fixed.iter().map(passes).collect(),
            fewest: self.fewest(),
            ranks: self.problem.pipeline.orders.iter().map(|order| order.chunks.as_slice()).collect(),
            memory: self.memory().into_iter().map(bytes).collect(),
            averages: averages.iter().map(average).collect(),
            unit: self.time_unit,
        }
    }

    /// By chunk what layers of each sort count, then the same of those that are recomputed wholly, if any are.
    fn apart(&self, columns: &[f64]) -> Vec<f64> {
        let (layers, whole) = columns.split_at(self.problem.chunks() * self.sorts.len());
        if whole.is_empty() {
            return layers.to_vec();
        }
        let chunks = layers.chunks(self.sorts.len()).zip(whole.chunks(self.sorts.len()));
        let recomputed = |(own, more): (&'_ [f64], &'_ [f64])| -> Vec<f64> {
            let with = own.iter().zip(more).map(|(own, more)| own + more);
            own.iter().copied().chain(with).collect()
        };
        chunks.flat_map(recomputed).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::walk::tests::{Random, every_split};
    use super::*;
    use crate::plan::Schedule;

    /// A pipeline whose layers differ.
    struct Case {
        shape: Shape,
        hop: Picos,
        layers: Vec<[u64; 2]>,
        ends: Vec<[u64; 2]>,
        fewest: Vec<u32>,
        /// Layers of every chunk that are recomputed, and that take so much longer backward.
        recomputed: usize,
    }

    /// What a layer weighs in memory, and one that is recomputed.
    const KEEPS: [u32; 2] = [3, 2];

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
            let kinds: Vec<[u64; 2]> = (0..1 + random.below(3))
                .map(|_| [0; 2].map(|_| 1_000_000 + random.below(9_000_000)))
                .collect();
            let layers = chunks + random.below(4);
            let layers = (0..layers).map(|_| kinds[random.below(kinds.len() as u64) as usize]).collect();
            let end = |random: &mut Random| if random.below(4) == 0 { random.below(5_000_000) } else { 0 };
            let ends: Vec<[u64; 2]> = (0..chunks).map(|_| [end(random), end(random)]).collect();
            let mut fewest = vec![1; chunks as usize];
            fewest[0] = random.below(2) as u32;
            let recomputed = random.below(3) as usize;
            Self { shape, hop: Picos(random.below(300_000)), layers, ends, fewest, recomputed }
        }

        fn time(&self, split: &[u32], simulator: &mut Simulator) -> Picos {
            let mut layers = self.layers.iter();
            let mut passes = [Vec::new(), Vec::new()];
            for (&n, ends) in split.iter().zip(&self.ends) {
                let mut own = *ends;
                for (at, layer) in layers.by_ref().take(n as usize).enumerate() {
                    let again = if at < self.recomputed { layer[0] } else { 0 };
                    own = [own[0] + layer[0], own[1] + layer[1] + again];
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

        /// What chunks of so many layers weigh.
        fn keeps(&self, layers: &[u32]) -> u32 {
            let of = |&n: &u32| {
                let recomputed = n.min(self.recomputed as u32);
                (n - recomputed) * KEEPS[0] + recomputed * KEEPS[1]
            };
            layers.iter().map(of).sum()
        }

        /// What is divided, of ranks whose layers may weigh so much: what each works is below a limit.
        fn division<'a>(&self, ranks: &'a [Vec<u32>], most: &[u32], limit: Picos) -> Division<'a> {
            let mut sorts: Vec<[u64; 2]> = self.layers.clone();
            sorts.sort_unstable();
            sorts.dedup();
            let picos = |times: &[u64; 2]| times.map(|time| time as f64);
            let different = sorts.clone();
            let sort = |layer| different.iter().position(|sort| sort == layer).unwrap() as u8;
            let mut keeps = vec![f64::from(KEEPS[0]); sorts.len()];
            if self.recomputed > 0 {
                sorts.extend(different.iter().map(|[forward, backward]| [*forward, forward + backward]));
                keeps.extend(vec![f64::from(KEEPS[1]); different.len()]);
            }
            let sorts = sorts;
            let row = |(own, &most): (&Vec<u32>, &u32)| Row {
                most: f64::from(most),
                each: (0..self.ends.len())
                    .flat_map(|k| {
                        let mine = f64::from(u8::from(own.contains(&(k as u32))));
                        keeps.iter().map(move |n| n * mine).collect::<Vec<f64>>()
                    })
                    .collect(),
                lowers: false,
            };
            let works = |own: &Vec<u32>| {
                let each = f64::from(self.shape.micro_batches);
                let ends = own.iter().map(|&k| self.ends[k as usize].iter().sum::<u64>()).sum::<u64>();
                let of = |sort: &[u64; 2]| each * sort.iter().sum::<u64>() as f64;
                let mine = |k: usize| f64::from(u8::from(own.contains(&(k as u32))));
                let all = (0..self.ends.len()).flat_map(|k| sorts.iter().map(move |sort| mine(k) * of(sort)));
                Row { most: limit.0 as f64 - each * ends as f64, each: all.collect(), lowers: true }
            };
            Division {
                shape: self.shape,
                hop: self.hop,
                averages: ranks.iter().map(works).collect(),
                order: self.layers.iter().map(sort).collect(),
                recomputed: self.recomputed,
                ends: self.ends.iter().map(picos).collect(),
                fewest: self.fewest.iter().map(|&n| (n, true)).collect(),
                ranks: ranks.iter().map(Vec::as_slice).collect(),
                memory: ranks.iter().zip(most).map(row).collect(),
                unit: 1.0,
                sorts: sorts.iter().map(picos).collect(),
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
            let ranks = case.ranks();
            let most: Vec<u32> = (0..p).map(|_| 9 + random.below(24) as u32).collect();
            let fits = |rank: usize, filling: &[u32]| case.keeps(filling) <= most[rank];
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
                let division = case.division(&ranks, &most, limit);
                let mut walk = Narrowing::new(&division, limit, 1, &|| false).unwrap();
                let end = walk.run(&mut 1_000_000, 250_000, &mut |split| {
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
        let most = vec![99; ranks.len()];
        let long = Picos(5_000_000_000);
        let division = case.division(&ranks, &most, long);
        let mut walk = Narrowing::new(&division, long, 500, &|| false).unwrap();
        let mut steps = 1_050;
        assert_eq!(walk.run(&mut steps, 250, &mut |_| None), End::Stopped);
        assert!(steps < 500, "{steps}");
        assert!(Narrowing::new(&division, Picos::ZERO, 1, &|| false).is_none());
        let layers = vec![[1, 2]; 80];
        let longer = Case { layers, ..case };
        assert!(Narrowing::new(&longer.division(&ranks, &most, long), long, 1, &|| false).is_none());
    }

    /// Where a quarter of the steps is no beginning, the others are not taken.
    #[test]
    fn it_gives_up_what_it_does_not_begin() {
        let mut case = Case { recomputed: 0, ..Case::new(&mut Random(5)) };
        case.layers = vec![case.layers[0]; 24];
        let ranks = case.ranks();
        let long = Picos(2_000_000_000);
        let division = case.division(&ranks, &vec![99; ranks.len()], long);
        let mut walk = Narrowing::new(&division, long, 1, &|| false).unwrap();
        let (mut steps, mut seen) = (20_000, 0);
        let end = walk.run(&mut steps, 5_000, &mut |_| {
            seen += 1;
            None
        });
        assert_eq!(end, End::Stopped);
        assert!(seen > 100 && (14_000..=15_000).contains(&steps), "{seen} {steps}");
    }

    /// Where a chunk takes too long with its fewest layers, nothing is seen.
    #[test]
    fn nothing_is_below_what_one_chunk_takes() {
        let case = Case::new(&mut Random(5));
        let ranks = case.ranks();
        let division = case.division(&ranks, &vec![99; ranks.len()], Picos(1_000_000));
        let mut walk = Narrowing::new(&division, Picos(1_000_000), 1, &|| false).unwrap();
        let end = walk.run(&mut 1_000, 250, &mut |split| panic!("{split:?}"));
        assert_eq!(end, End::Complete);
    }
}
