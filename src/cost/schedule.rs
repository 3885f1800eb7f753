//! Pipeline schedules: who runs what in which order, how much is in flight, how long it takes.
//!
//! A schedule is a fixed list of operations per rank, so its makespan is a longest path and monotone
//! in every duration. Four views of it: in-flight counts (memory), the event simulation (time, exact),
//! the chain bound (never above the simulation) and the closed form (for orientation).

mod interleaved;

use crate::plan::Schedule;
use crate::units::Picos;

use interleaved::{Interleaved, Time, Times};
pub use interleaved::{LANE_MARGIN, LANES, Lanes, MOST_EXACT, MOST_LANE_PASSES};

/// What one micro-batch costs on every chunk, in model order, and what a hop between ranks costs.
#[derive(Debug, Clone, Copy)]
pub struct Load<'a> {
    /// Forward time of each of the `p * v` chunks.
    pub forward: &'a [Picos],
    /// Backward time of each chunk, recomputation included.
    pub backward: &'a [Picos],
    /// The part of each chunk's backward time that computes weight gradients (only zero-bubble
    /// schedules move it).
    pub weight: &'a [Picos],
    /// Latency between an operation and its successor on another rank.
    pub hop: Picos,
}

/// The schedule's shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shape {
    /// Order of operations.
    pub schedule: Schedule,
    /// Pipeline ranks.
    pub ranks: u32,
    /// Chunks per rank.
    pub virtual_stages: u32,
    /// Micro-batches.
    pub micro_batches: u32,
}

/// Smallest group of micro-batches that Megatron's interleaved schedule accepts: `p <= G <= m` and
/// `m mod G` zero or at least `p` (`Megatron-LM:megatron/core/pipeline_parallel/schedules.py`).
/// None where there are fewer micro-batches than ranks.
#[must_use]
pub fn interleave_group(ranks: u32, micro_batches: u32) -> Option<u32> {
    if micro_batches < ranks {
        return None;
    }
    (ranks..=micro_batches).find(|g| micro_batches % g == 0 || micro_batches % g >= ranks)
}

impl Shape {
    /// Group size of the interleaved schedule.
    #[must_use]
    pub fn group(&self) -> u32 {
        interleave_group(self.ranks, self.micro_batches).unwrap_or(self.micro_batches)
    }

    /// Largest number of chunk activations alive on `rank` at once; under 1F1B and interleaving also
    /// the forward passes that it runs before its first backward pass.
    #[must_use]
    pub fn in_flight(&self, rank: u32) -> u32 {
        let (p, v, m) = (self.ranks, self.virtual_stages, self.micro_batches);
        match self.schedule {
            Schedule::GPipe => m * v,
            Schedule::OneFOneB => (p - rank).min(m),
            Schedule::Interleaved => (2 * (p - rank - 1) + (v - 1) * self.group() + 1).min(m * v),
            // Zero-bubble schedules keep a micro-batch until its weight gradient is done: every rank
            // holds p, 2p - 1 or (two chunks) p or p + 1 micro-batches (Qi et al. 2023; DeepSeek-V3).
            Schedule::ZeroBubbleH1 => p.min(m),
            Schedule::ZeroBubbleH2 => (2 * p - 1).min(m),
            Schedule::ZeroBubbleV => (2 * p).min(2 * m),
            Schedule::DualPipe => (2 * p + 2).min(2 * m),
        }
    }

    /// Pipeline rank that holds chunk `k` in model order.
    #[must_use]
    pub fn rank_of(&self, chunk: u32) -> u32 {
        let p = self.ranks;
        match self.schedule {
            Schedule::ZeroBubbleV | Schedule::DualPipe if chunk / p % 2 == 1 => p - 1 - chunk % p,
            _ => chunk % p,
        }
    }
}

/// One forward operation of a rank: its chunk on that rank and the micro-batch.
type Slot = (u32, u32);

/// Passes that wait for one another, whatever they take: on a schedule of fixed lists no split of the same shape
/// is faster than any of its chains.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Chain {
    /// Forward passes by chunk, in model order.
    pub forward: Vec<u64>,
    /// Backward passes by chunk, as if whole.
    pub backward: Vec<u64>,
    /// Weight gradients by chunk beyond those of whole backward passes: fewer where backward passes are run in parts
    /// of which the chain has the first.
    pub weight: Vec<i64>,
    /// How often the latency between ranks is paid.
    pub hops: u64,
    /// The rank whose last pass it ends with.
    pub end: u32,
}

impl Chain {
    /// A chain of no passes through so many chunks.
    #[must_use]
    pub fn none(chunks: usize) -> Self {
        Self { forward: vec![0; chunks], backward: vec![0; chunks], weight: vec![0; chunks], hops: 0, end: 0 }
    }

    /// What it takes.
    #[must_use]
    pub fn length(&self, load: Load<'_>) -> Picos {
        let sum = |counts: &[u64], times: &[Picos]| -> u64 {
            counts.iter().zip(times).map(|(n, time)| n * time.0).sum()
        };
        let whole = sum(&self.forward, load.forward) + sum(&self.backward, load.backward);
        let weights: i64 = self.weight.iter().zip(load.weight).map(|(n, time)| n * time.0 as i64).sum();
        Picos((whole + self.hops * load.hop.0).saturating_add_signed(weights))
    }
}

/// Forward operations of the interleaved schedule, in order, the same on every rank; backward
/// operations are the same with chunk `v - 1 - chunk`.
fn interleaved_order(v: u32, m: u32, group: u32, order: &mut Vec<Slot>) {
    order.clear();
    let mut first = 0;
    while first < m {
        let size = group.min(m - first);
        for chunk in 0..v {
            order.extend((first..first + size).map(|j| (chunk, j)));
        }
        first += size;
    }
}

/// A pass of a schedule that splits backward passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pass {
    Forward,
    /// Gradient of the input.
    Input,
    /// Gradient of the weights.
    Weight,
    /// Both, layer by layer.
    Whole,
}

impl Pass {
    /// Which of the two it is that other ranks wait for: a forward pass or a backward pass.
    fn awaited(self) -> Option<usize> {
        match self {
            Self::Forward => Some(0),
            Self::Input | Self::Whole => Some(1),
            Self::Weight => None,
        }
    }
}

/// Operation lists of zero bubble H1 (Qi et al. 2023): 1F1B whose rank `r` runs its weight gradients
/// `r` micro-batches late, so that the cool-down is full of them. Its bubble is
/// `(p - 1) (F + B - W)`, a third of 1F1B's where the three passes are equal.
fn zero_bubble_h1_lists(p: usize, m: usize, lists: &mut Vec<PassList>) {
    for rank in 0..p {
        let k = rank as u32;
        let (mut forwards, mut weights) = ((p - rank).min(m), 0);
        let mut list: Vec<_> = (0..forwards).map(|j| (Pass::Forward, k, j as u32)).collect();
        for j in 0..m {
            list.push((Pass::Input, k, j as u32));
            if j >= rank {
                list.push((Pass::Weight, k, weights));
                weights += 1;
            }
            if forwards < m {
                list.push((Pass::Forward, k, forwards as u32));
                forwards += 1;
            }
        }
        list.extend((weights..m as u32).map(|j| (Pass::Weight, k, j)));
        lists.push(list);
    }
}

/// The passes of a rank in order: each with its chunk and micro-batch.
type PassList = Vec<(Pass, u32, u32)>;

/// Passes of one rank that holds two chunks of a model folded into a V, written in order.
struct Folded {
    list: PassList,
    /// The rank's chunk on the way up and the one on the way back.
    chunks: [u32; 2],
    /// Forward and backward passes of each so far.
    forwards: [u32; 2],
    backwards: [u32; 2],
    /// Weight gradients that are still to be computed, the oldest first.
    deferred: Vec<(usize, u32)>,
    micro_batches: u32,
}

impl Folded {
    fn new(rank: u32, shape: Shape) -> Self {
        Self {
            list: Vec::with_capacity(6 * shape.micro_batches as usize),
            chunks: [rank, 2 * shape.ranks - 1 - rank],
            forwards: [0; 2],
            backwards: [0; 2],
            deferred: Vec::new(),
            micro_batches: shape.micro_batches,
        }
    }

    /// The lists are those of as many micro-batches as fill the pipeline; what is beyond the last is left out.
    fn push(&mut self, pass: Pass, side: usize, j: u32) {
        if j < self.micro_batches {
            self.list.push((pass, self.chunks[side], j));
        }
    }

    fn forward(&mut self, side: usize) {
        self.push(Pass::Forward, side, self.forwards[side]);
        self.forwards[side] += 1;
    }

    fn whole(&mut self, side: usize) {
        self.push(Pass::Whole, side, self.backwards[side]);
        self.backwards[side] += 1;
    }

    /// The weight gradient comes later.
    fn input(&mut self, side: usize) {
        self.push(Pass::Input, side, self.backwards[side]);
        self.deferred.push((side, self.backwards[side]));
        self.backwards[side] += 1;
    }

    /// A backward pass in its two parts, one after the other.
    fn parts(&mut self, side: usize) {
        self.input(side);
        self.weight(Some(side));
    }

    /// The oldest weight gradient, of one side or of both.
    fn weight(&mut self, of: Option<usize>) {
        if let Some(at) = self.deferred.iter().position(|(side, _)| of.is_none_or(|of| of == *side)) {
            let (side, j) = self.deferred.remove(at);
            self.push(Pass::Weight, side, j);
        }
    }

    /// ZB-V (Qi et al. 2024; `pytorch:torch/distributed/pipelining/schedules.py`, `ScheduleZBVZeroBubble`).
    fn zero_bubble_v(mut self, rank: u32, shape: Shape) -> PassList {
        let behind = shape.ranks - rank;
        let all = shape.micro_batches.max(2 * shape.ranks - 1);
        (1..2 * behind).for_each(|_| self.forward(0));
        for _ in 0..rank {
            self.forward(1);
            self.forward(0);
        }
        for _ in 0..behind {
            self.forward(1);
            self.parts(1);
        }
        while self.forwards[1] < self.forwards[0] || self.forwards[0] < all {
            if self.forwards[0] < all {
                self.forward(0);
            }
            self.parts(0);
            self.forward(1);
            self.parts(1);
        }
        for _ in 0..rank {
            self.input(0);
            self.input(1);
        }
        for _ in 0..behind {
            self.input(0);
            self.weight(Some(0));
        }
        (0..rank).for_each(|_| self.weight(Some(1)));
        while !self.deferred.is_empty() {
            self.weight(Some(0));
        }
        self.list
    }

    /// DualPipe, whose two directions on `p` ranks and stages are one direction on half of the ranks, folded; written here with
    /// stages cut into halves on all ranks, which has the same bubble (`DualPipe:dualpipe/dualpipev.py`, `step`). Of two passes that overlap the forward one is written first, and ends before the other begins.
    fn dual_pipe(mut self, rank: u32, shape: Shape) -> PassList {
        let (p, behind) = (shape.ranks, shape.ranks - rank - 1);
        let all = shape.micro_batches.max(2 * p);
        (0..2 * behind).for_each(|_| self.forward(0));
        for _ in 0..=rank {
            self.forward(0);
            self.forward(1);
        }
        for _ in 0..behind {
            self.parts(1);
            self.forward(1);
        }
        for _ in 0..=all - 2 * p + rank {
            self.forward(0);
            self.whole(1);
            self.forward(1);
            self.whole(0);
        }
        for _ in 0..behind {
            self.whole(1);
            self.forward(1);
            self.whole(0);
        }
        // Towards the end weight gradients fill gaps.
        let half = rank.div_ceil(2);
        for i in 0..=rank {
            let late = [i >= half, i > half || i == half && rank % 2 == 1];
            for side in [1, 0] {
                if late[side] { self.input(side) } else { self.whole(side) }
            }
        }
        for _ in 0..behind {
            self.weight(None);
            self.input(0);
        }
        while !self.deferred.is_empty() {
            self.weight(None);
        }
        self.list
    }
}

/// Operation lists of a schedule that splits backward passes, rank by rank: as published, and of zero bubble H2
/// what a greedy scheduler does when every pass takes one unit and no rank holds more than
/// [`Shape::in_flight`] chunks. The lists depend on the shape alone, so they are fixed whatever the passes really
/// take.
fn split_lists(shape: Shape, lists: &mut Vec<PassList>) {
    let (p, m) = (shape.ranks as usize, shape.micro_batches as usize);
    let folded = |written: fn(Folded, u32, Shape) -> PassList| {
        (0..shape.ranks).map(move |rank| written(Folded::new(rank, shape), rank, shape))
    };
    lists.clear();
    match shape.schedule {
        Schedule::ZeroBubbleH1 => zero_bubble_h1_lists(p, m, lists),
        Schedule::ZeroBubbleV => lists.extend(folded(Folded::zero_bubble_v)),
        Schedule::DualPipe => lists.extend(folded(Folded::dual_pipe)),
        _ => greedy_lists(shape, lists),
    }
}

/// Those of zero bubble H2.
fn greedy_lists(shape: Shape, lists: &mut Vec<PassList>) {
    let (p, m) = (shape.ranks as usize, shape.micro_batches as usize);
    lists.resize(p, Vec::new());
    let never = usize::MAX;
    // Time at which a pass has ended, and how many of each rank's passes are done.
    let mut forward = vec![never; p * m];
    let mut input = vec![never; p * m];
    let mut done = vec![[0usize; 3]; p];
    let mut clock = 0;
    while lists.iter().any(|list| list.len() < 3 * m) {
        for (k, list) in lists.iter_mut().enumerate() {
            let room = shape.in_flight(k as u32) as usize - (done[k][0] - done[k][2]);
            let ended = |ends: &[usize], k: usize, j: usize| ends[k * m + j] <= clock;
            let [forwards, inputs, weights] = done[k];
            let due = || if k + 1 == p { ended(&forward, k, inputs) } else { ended(&input, k + 1, inputs) };
            let pass = if inputs < forwards && due() {
                Pass::Input
            } else if forwards < m && room > 0 && (k == 0 || ended(&forward, k - 1, forwards)) {
                Pass::Forward
            } else if weights < inputs {
                Pass::Weight
            } else {
                continue;
            };
            let j = done[k][pass as usize];
            done[k][pass as usize] += 1;
            match pass {
                Pass::Forward => forward[k * m + j] = clock + 1,
                Pass::Input => input[k * m + j] = clock + 1,
                Pass::Weight | Pass::Whole => {}
            }
            list.push((pass, k as u32, j as u32));
        }
        clock += 1;
    }
}

/// Runs schedules; holds the scratch memory so that repeated simulations allocate nothing.
#[derive(Debug, Default, Clone)]
pub struct Simulator {
    forward_end: Vec<u64>,
    backward_end: Vec<u64>,
    clock: Vec<u64>,
    next: Vec<[u32; 2]>,
    /// Passes of all chunks in plain numbers.
    forward: Vec<u64>,
    backward: Vec<u64>,
    single: Interleaved<u64>,
    several: Interleaved<Lanes>,
    lists: Vec<PassList>,
    listed: Option<Shape>,
    /// End of the last operation of every rank, after a run.
    pub ends: Vec<Picos>,
    /// Start of the first operation of every rank, after a run.
    pub starts: Vec<Picos>,
}

const UNKNOWN: u64 = u64::MAX;

impl Simulator {
    /// Makespan of one step's forward and backward passes; leaves `starts` and `ends` per rank.
    ///
    /// `load` holds one entry per chunk in model order.
    pub fn run(&mut self, shape: Shape, load: Load<'_>) -> Picos {
        self.follow(shape, load, u64::MAX, false);
        self.ends.iter().copied().max().unwrap_or_default()
    }

    /// [`Simulator::run`] if the makespan is `most` or less; a schedule that is known to take longer is not followed
    /// to its end.
    pub fn run_within(&mut self, shape: Shape, load: Load<'_>, most: Picos) -> Option<Picos> {
        self.follow(shape, load, most.0, false);
        self.ends.iter().copied().max().filter(|makespan| *makespan <= most)
    }

    /// Runs a schedule; where it takes longer than `most`, some end is beyond that. `every` says whether the end of every
    /// pass is to be known.
    fn follow(&mut self, shape: Shape, load: Load<'_>, most: u64, every: bool) {
        self.clock.clear();
        self.clock.resize(shape.ranks as usize, 0);
        self.starts.clear();
        self.starts.resize(shape.ranks as usize, Picos(UNKNOWN));
        match shape.schedule {
            Schedule::OneFOneB => self.one_f_one_b(shape, load),
            Schedule::Interleaved => self.interleaved(shape, load, most, every),
            Schedule::GPipe => self.gpipe(shape, load),
            _ => self.zero_bubble(shape, load),
        }
        self.ends.clear();
        self.ends.extend(self.clock.iter().map(|&c| Picos(c)));
    }

    /// 1F1B, one micro-batch column at a time with O(p) state. Once a column shifts the whole state by
    /// one amount the rest is linear (the recurrence commutes with adding a constant), so the steady
    /// state is skipped without changing a bit.
    fn one_f_one_b(&mut self, shape: Shape, load: Load<'_>) {
        let p = shape.ranks as usize;
        let m = shape.micro_batches as usize;
        let x = load.hop.0;
        let (f, b) = (load.forward, load.backward);
        let warm = |r: usize| (p - r).min(m);
        // Forward j of rank r ends at slot j mod 3: a neighbour is never more than two behind.
        const RING: usize = 3;
        self.forward_end.clear();
        self.forward_end.resize(p * RING, 0);
        // Clocks before the column, and the latest forward ends before it.
        self.backward_end.clear();
        self.backward_end.resize(2 * p, 0);
        // Warm-up: all but the last forward of each rank's first w, in micro-batch order so that the
        // ring suffices.
        for j in 0..warm(0) {
            for r in 0..p {
                if j + 1 < warm(r) {
                    self.forward(r, j, RING, f[r].0, x);
                }
            }
        }
        // Column k: forward warm(r)-1+k on every rank while there is one, then backward k.
        let mut k = 0;
        while k < m {
            let (clocks, forwards) = self.backward_end.split_at_mut(p);
            clocks.copy_from_slice(&self.clock);
            for r in 0..p {
                forwards[r] = if k > 0 { self.forward_end[r * RING + (warm(r) + k - 2) % RING] } else { 0 };
            }
            for r in 0..p {
                let j = warm(r) + k - 1;
                if j < m {
                    self.forward(r, j, RING, f[r].0, x);
                }
            }
            let mut from_next = None;
            for r in (0..p).rev() {
                let ready = from_next.map_or(0, |end: u64| end + x);
                self.clock[r] = self.clock[r].max(ready) + b[r].0;
                from_next = Some(self.clock[r]);
            }
            k += 1;
            // Columns in which the first rank still has a forward pass (then all have).
            let skip = (m - warm(0)).saturating_sub(k);
            if k >= 2 && skip > 0 {
                let shift = self.clock[0] - self.backward_end[0];
                let latest = |r: usize| self.forward_end[r * RING + (warm(r) + k - 2) % RING];
                let steady = (0..p).all(|r| {
                    self.clock[r] - self.backward_end[r] == shift
                        && latest(r) - self.backward_end[p + r] == shift
                });
                if steady {
                    let jump = shift * skip as u64;
                    self.clock.iter_mut().for_each(|c| *c += jump);
                    for row in self.forward_end.chunks_exact_mut(RING) {
                        row.rotate_right(skip % RING);
                        row.iter_mut().for_each(|end| *end += jump);
                    }
                    k += skip;
                }
            }
        }
    }

    #[inline]
    fn forward(&mut self, r: usize, j: usize, ring: usize, time: u64, x: u64) {
        let ready = if r == 0 { 0 } else { self.forward_end[(r - 1) * ring + j % ring] + x };
        let begin = self.clock[r].max(ready);
        self.starts[r] = self.starts[r].min(Picos(begin));
        self.clock[r] = begin + time;
        self.forward_end[r * ring + j % ring] = self.clock[r];
    }

    fn gpipe(&mut self, shape: Shape, load: Load<'_>) {
        let p = shape.ranks as usize;
        let x = load.hop.0;
        for _ in 0..shape.micro_batches {
            let mut from = None;
            for r in 0..p {
                let begin = self.clock[r].max(from.map_or(0, |end: u64| end + x));
                self.starts[r] = self.starts[r].min(Picos(begin));
                self.clock[r] = begin + load.forward[r].0;
                from = Some(self.clock[r]);
            }
        }
        for _ in 0..shape.micro_batches {
            let mut from = None;
            for r in (0..p).rev() {
                self.clock[r] = self.clock[r].max(from.map_or(0, |end: u64| end + x)) + load.backward[r].0;
                from = Some(self.clock[r]);
            }
        }
    }

    fn reset_ends(&mut self, shape: Shape) {
        let operations = (shape.ranks * shape.virtual_stages * shape.micro_batches) as usize;
        for ends in [&mut self.forward_end, &mut self.backward_end] {
            ends.clear();
            ends.resize(operations, UNKNOWN);
        }
        self.next.clear();
        self.next.resize(shape.ranks as usize, [0; 2]);
    }

    /// A rank that has waited too long to end within `most` ends beyond it at once.
    fn interleaved(&mut self, shape: Shape, load: Load<'_>, most: u64, every: bool) {
        let plain = |times: &[Picos], into: &mut Vec<u64>| {
            into.clear();
            into.extend(times.iter().map(|time| time.0));
        };
        plain(load.forward, &mut self.forward);
        plain(load.backward, &mut self.backward);
        let times = Times { forward: &self.forward, backward: &self.backward, hop: load.hop.0 };
        if !self.single.run(shape, times, most, every) {
            self.clock.fill(u64::MAX);
            return;
        }
        for (r, walk) in self.single.walks.iter().enumerate() {
            self.clock[r] = walk.clock;
            self.starts[r] = Picos(walk.start);
        }
    }

    /// Makespans of several splits of the interleaved schedule at once; if all are above `most`, they need not be those.
    /// `forward` and `backward` hold one entry per chunk in model order; all times are whole numbers, and makespans up to
    /// [`MOST_EXACT`] exact.
    pub fn run_lanes(
        &mut self,
        shape: Shape,
        [forward, backward]: [&[Lanes]; 2],
        hop: Picos,
        most: f32,
    ) -> Option<Lanes> {
        let times = Times { forward, backward, hop: Lanes([hop.0 as f32; LANES]) };
        let complete = self.several.run(shape, times, Lanes([most; LANES]), false);
        let ends = || self.several.walks.iter().map(|walk| walk.clock);
        complete.then(|| ends().fold(Lanes::default(), Time::or_later))
    }

    /// The chain that takes as long as the rank that ends last: of the interleaved schedule of several chunks per rank, or
    /// of one that splits backward passes. What comes `after` the passes of ranks, nothing on those that it does not list,
    /// decides which rank that is, and is no part of the chain.
    pub fn longest_chain(&mut self, shape: Shape, load: Load<'_>, after: &[Picos]) -> Chain {
        if shape.schedule.splits_backward() {
            return self.longest_listed_chain(shape, load, after);
        }
        let (p, v, m) = (shape.ranks as usize, shape.virtual_stages as usize, shape.micro_batches as usize);
        self.follow(shape, load, u64::MAX, true);
        let (total, last, group) = (m * v, p - 1, shape.group() as usize);
        let mut r = self.last_rank(after);
        let mut chain = Chain { end: r as u32, ..Chain::none(p * v) };
        // Forward and backward passes of rank `r` up to the pass that is looked at, and when it ends.
        let (mut forwards, mut backwards, mut end) = (total, total, self.ends[r].0);
        let warm = |r: usize| (2 * (last - r) + (v - 1) * group + 1).min(total);
        while forwards + backwards > 0 {
            let is_forward = backwards == 0 || forwards == warm(r) + backwards;
            let at = if is_forward { forwards - 1 } else { backwards - 1 };
            // Its group's size, and its chunk in the order of the list.
            let first = at / (v * group) * group;
            let size = group.min(m - first);
            let chunk = (at - first * v) / size;
            let k = if is_forward { chunk * p + r } else { (v - 1 - chunk) * p + r };
            let (time, counts) = if is_forward {
                (load.forward[k], &mut chain.forward)
            } else {
                (load.backward[k], &mut chain.backward)
            };
            counts[k] += 1;
            let start = end - time.0;
            // The pass on another chunk that it waits for, if it starts when that arrives.
            let before = match is_forward {
                true if r > 0 => Some((true, r - 1, at, 1)),
                true if chunk == 0 => None,
                true => Some((true, last, at - size, 1)),
                false if r < last => Some((false, r + 1, at, 1)),
                false if chunk == 0 => Some((true, r, at + (v - 1) * size, 0)),
                false => Some((false, 0, at - size, 1)),
            };
            let ended = |&(forward, other, at, _): &(bool, usize, usize, u64)| {
                if forward {
                    self.single.forward_end[other * total + at]
                } else {
                    self.single.backward_end[other * total + at]
                }
            };
            match before.filter(|before| ended(before) + before.3 * load.hop.0 == start) {
                Some(before) => {
                    let (forward, other, at, hops) = before;
                    chain.hops += hops;
                    (r, end) = (other, ended(&before));
                    (forwards, backwards) = if forward {
                        (at + 1, (at + 1).saturating_sub(warm(r)))
                    } else {
                        (total.min(warm(r) + at), at + 1)
                    };
                }
                None => {
                    end = start;
                    (forwards, backwards) =
                        if is_forward { (forwards - 1, backwards) } else { (forwards, backwards - 1) };
                }
            }
        }
        chain
    }

    /// The first of the ranks that end last, with what comes after their passes.
    fn last_rank(&self, after: &[Picos]) -> usize {
        let end = |r: usize| self.ends[r] + after.get(r).copied().unwrap_or_default();
        (0..self.ends.len()).rev().max_by_key(|&r| end(r)).unwrap_or(0)
    }

    /// [`Simulator::longest_chain`] of the lists of [`split_lists`].
    fn longest_listed_chain(&mut self, shape: Shape, load: Load<'_>, after: &[Picos]) -> Chain {
        let m = shape.micro_batches as usize;
        let n = (shape.ranks * shape.virtual_stages) as usize;
        self.follow(shape, load, u64::MAX, true);
        let mut r = self.last_rank(after);
        let mut chain = Chain { end: r as u32, ..Chain::none(n) };
        // Places of forward passes and of backward passes for inputs in the lists of their ranks.
        let mut places = vec![[0_u32; 2]; n * m];
        for list in &self.lists {
            for (at, &(pass, k, j)) in list.iter().enumerate() {
                if let Some(kind) = pass.awaited() {
                    places[k as usize * m + j as usize][kind] = at as u32;
                }
            }
        }
        let (mut end, mut left) = (self.ends[r].0, self.lists[r].len());
        while left > 0 {
            let (pass, k, j) = self.lists[r][left - 1];
            let (k, j) = (k as usize, j as usize);
            let (start, before) = match pass {
                Pass::Forward => {
                    chain.forward[k] += 1;
                    (end - load.forward[k].0, k.checked_sub(1).map(|from| (0, from)))
                }
                Pass::Input | Pass::Whole => {
                    chain.backward[k] += 1;
                    let mut time = load.backward[k];
                    if pass == Pass::Input {
                        chain.weight[k] -= 1;
                        time = time.saturating_sub(load.weight[k]);
                    }
                    (end - time.0, Some(if k + 1 == n { (0, k) } else { (1, k + 1) }))
                }
                Pass::Weight => {
                    chain.weight[k] += 1;
                    (end - load.weight[k].0, None)
                }
            };
            // The pass that it waits for, if it starts when that arrives; else it follows the one before it.
            let awaited = before.and_then(|(kind, from): (usize, usize)| {
                let other = shape.rank_of(from as u32) as usize;
                let apart = other != shape.rank_of(k as u32) as usize;
                let ended = [&self.forward_end, &self.backward_end][kind][from * m + j];
                let arrives = ended + if apart { load.hop.0 } else { 0 };
                let place = places[from * m + j][kind];
                (arrives == start).then_some((other, ended, place as usize + 1, u64::from(apart)))
            });
            match awaited {
                Some((other, ended, place, hops)) => {
                    chain.hops += hops;
                    (r, end, left) = (other, ended, place);
                }
                None => (end, left) = (start, left - 1),
            }
        }
        chain
    }

    /// Zero-bubble schedules and DualPipe: passes for inputs go first, weight gradients fill the gaps
    /// (Qi et al. 2023; DeepSeek-V3 report), in the fixed lists of [`split_lists`].
    fn zero_bubble(&mut self, shape: Shape, load: Load<'_>) {
        let (p, v, m) = (shape.ranks as usize, shape.virtual_stages as usize, shape.micro_batches as usize);
        let x = load.hop.0;
        self.reset_ends(shape);
        if self.listed != Some(shape) {
            split_lists(shape, &mut self.lists);
            self.listed = Some(shape);
        }
        let n = p * v;
        let hop = |from: usize, to: usize| {
            if shape.rank_of(from as u32) == shape.rank_of(to as u32) { 0 } else { x }
        };
        let mut open = true;
        while open {
            open = false;
            for (r, list) in self.lists.iter().enumerate() {
                let mut at = self.next[r][0] as usize;
                while let Some(&(pass, k, j)) = list.get(at) {
                    let (k, j) = (k as usize, j as usize);
                    let (ready, time) = match pass {
                        Pass::Weight => (0, load.weight[k]),
                        Pass::Forward if k == 0 => (0, load.forward[k]),
                        Pass::Forward => {
                            let end = self.forward_end[(k - 1) * m + j];
                            (end.saturating_add(hop(k - 1, k)), load.forward[k])
                        }
                        Pass::Input | Pass::Whole => {
                            let later = if pass == Pass::Input { load.weight[k] } else { Picos::ZERO };
                            let time = load.backward[k].saturating_sub(later);
                            if k + 1 == n {
                                (self.forward_end[k * m + j], time)
                            } else {
                                (self.backward_end[(k + 1) * m + j].saturating_add(hop(k, k + 1)), time)
                            }
                        }
                    };
                    if ready == UNKNOWN {
                        open = true;
                        break;
                    }
                    let begin = self.clock[r].max(ready);
                    self.starts[r] = self.starts[r].min(Picos(begin));
                    self.clock[r] = begin + time.0;
                    match pass {
                        Pass::Forward => self.forward_end[k * m + j] = self.clock[r],
                        Pass::Input | Pass::Whole => self.backward_end[k * m + j] = self.clock[r],
                        Pass::Weight => {}
                    }
                    at += 1;
                }
                self.next[r][0] = at as u32;
            }
        }
    }
}

/// By rank, the vectors of in-flight micro-batches per chunk at the moments when none dominates another:
/// one memory condition each (the chunks of a rank may hold different layers).
#[must_use]
pub fn in_flight_vectors(shape: Shape) -> Vec<Vec<Vec<u32>>> {
    let (v, m) = (shape.virtual_stages as usize, shape.micro_batches);
    if v == 1 {
        return (0..shape.ranks).map(|rank| vec![vec![shape.in_flight(rank)]]).collect();
    }
    if shape.schedule == Schedule::Interleaved {
        // The pattern repeats with every group: four groups show all vectors.
        let group = shape.group();
        let shown = if m > 4 * group && m % group == 0 { 4 * group } else { m };
        let mut order = Vec::new();
        interleaved_order(shape.virtual_stages, shown, group, &mut order);
        let of = |rank| interleaved_vectors(v, shape.in_flight(rank) as usize, &order);
        return (0..shape.ranks).map(of).collect();
    }
    // Like the lists, the counts settle after a few rounds of the pipeline.
    let shown = Shape { micro_batches: m.min(6 * shape.ranks + 6), ..shape };
    let mut lists = Vec::new();
    split_lists(shown, &mut lists);
    let vectors = lists.iter().map(|list| listed_vectors(shape, list));
    if shape.schedule != Schedule::DualPipe {
        return vectors.collect();
    }
    // Ranks of DualPipe hold whole stages of a model cut into as many as there are ranks, where the list has halves of
    // them: of p + 1 stages one half is not in it.
    let wholly = |vectors: Vec<Vec<u32>>| {
        let mut all = Undominated::default();
        for vector in &vectors {
            for chunk in 0..v {
                let mut vector = vector.clone();
                vector[chunk] = (vector[chunk] + 1).min(m);
                all.keep(&vector);
            }
        }
        all.sorted()
    };
    vectors.map(wholly).collect()
}

/// In-flight vectors of which none dominates another.
#[derive(Default)]
struct Undominated(Vec<Vec<u32>>);

impl Undominated {
    fn keep(&mut self, now: &[u32]) {
        let dominates = |one: &[u32], other: &[u32]| one.iter().zip(other).all(|(a, b)| a >= b);
        if !self.0.iter().any(|seen| dominates(seen, now)) {
            self.0.retain(|seen| !dominates(now, seen));
            self.0.push(now.to_vec());
        }
    }
    fn sorted(mut self) -> Vec<Vec<u32>> {
        self.0.sort();
        self.0
    }
}

/// Those of a rank of the interleaved schedule that runs `warm` forward passes before its first backward.
fn interleaved_vectors(v: usize, warm: usize, order: &[Slot]) -> Vec<Vec<u32>> {
    let mut now = vec![0u32; v];
    let mut vectors = Undominated::default();
    for (k, &(chunk, _)) in order.iter().enumerate() {
        now[chunk as usize] += 1;
        if k + 1 < warm.min(order.len()) {
            continue;
        }
        vectors.keep(&now);
        let (chunk, _) = order[(k + 1).saturating_sub(warm)];
        let freed = &mut now[v - 1 - chunk as usize];
        *freed = freed.saturating_sub(1);
    }
    vectors.sorted()
}

/// Those of a rank with a list of passes.
fn listed_vectors(shape: Shape, list: &[(Pass, u32, u32)]) -> Vec<Vec<u32>> {
    let mut now = vec![0u32; shape.virtual_stages as usize];
    let mut vectors = Undominated::default();
    for &(pass, k, _) in list {
        let chunk = (k / shape.ranks) as usize;
        match pass {
            Pass::Forward => {
                now[chunk] += 1;
                vectors.keep(&now);
            }
            Pass::Input => {}
            Pass::Weight | Pass::Whole => now[chunk] -= 1,
        }
    }
    vectors.sorted()
}

/// A time that no order of the schedule's fixed lists can beat: `max` over ranks of the chain through
/// that rank's first backward pass, its mirror through the last forward pass, and its busy time.
///
/// v = 1: with `S` the sum of all passes and `w_i` the warm-up of rank i,
/// `S + (m-1) b_i + (m-w_i) f_i + 2 (p-1) x`, the mirror `S + (m-1) f_i + (m-w_i) b_i + 2 (p-1) x`,
/// and `m t_i + sum_{j<i} t_j + 2 i x`.
#[must_use]
pub fn chain_bound(shape: Shape, load: Load<'_>) -> Picos {
    let (p, v, m) = (shape.ranks as usize, shape.virtual_stages as usize, u64::from(shape.micro_batches));
    let x = load.hop.0;
    let (f, b) = (load.forward, load.backward);
    let all_f: u64 = f.iter().map(|t| t.0).sum();
    let all_b: u64 = b.iter().map(|t| t.0).sum();
    let mut best = 0;
    match shape.schedule {
        Schedule::OneFOneB => {
            let sum = all_f + all_b + 2 * (p as u64 - 1) * x;
            let mut before = 0;
            for i in 0..p {
                let w = u64::from(shape.in_flight(i as u32));
                let (fi, bi) = (f[i].0, b[i].0);
                let chain = sum + (m - 1) * bi + (m - w) * fi;
                let mirror = sum + (m - 1) * fi + (m - w) * bi;
                let busy = before + m * (fi + bi) + 2 * i as u64 * x;
                best = best.max(chain).max(mirror).max(busy);
                before += fi + bi;
            }
        }
        Schedule::GPipe => {
            // The last rank runs all forwards before its first backward: two full sweeps.
            let longest = |t: &[Picos]| t.iter().map(|t| t.0).max().unwrap_or(0);
            best = all_f + all_b + 2 * (p as u64 - 1) * x + (m - 1) * (longest(f) + longest(b));
        }
        Schedule::Interleaved => {
            let (pu, vu) = (p as u64, v as u64);
            let hops = (pu * vu + pu - 2) * x;
            for i in 0..p {
                let w = u64::from(shape.in_flight(i as u32));
                let on = |t: &[Picos]| (0..v).map(|c| t[c * p + i].0).sum::<u64>();
                let (rank_f, rank_b) = (on(f), on(b));
                // Forwards after the first w, and (by symmetry) backwards before the last w.
                let mut later_f = m * rank_f;
                let mut earlier_b = m * rank_b;
                for c in 0..v {
                    let first = first_of_chunk(shape, w, c as u64);
                    later_f -= first * f[c * p + i].0;
                    earlier_b -= last_of_chunk(shape, w, c as u64) * b[c * p + i].0;
                }
                // First backward of rank i: all forwards of one micro-batch, the last chunks' backwards
                // down to rank i, the rest of its list, the first chunks' backwards down to rank 0.
                let last_chunk = |t: &[Picos]| (i..p).map(|j| t[(v - 1) * p + j].0).sum::<u64>();
                let first_chunk = |t: &[Picos]| (0..i).map(|j| t[j].0).sum::<u64>();
                let rest_b = m * rank_b - b[(v - 1) * p + i].0;
                let rest_f = m * rank_f - f[(v - 1) * p + i].0;
                let chain = all_f + last_chunk(b) + rest_b + later_f + first_chunk(b) + hops;
                let mirror = first_chunk(f) + rest_f + earlier_b + last_chunk(f) + all_b + hops;
                let busy = first_chunk(f) + m * (rank_f + rank_b) + first_chunk(b) + 2 * i as u64 * x;
                best = best.max(chain).max(mirror).max(busy);
            }
        }
        _ => {
            // Any list: every rank is busy for all its passes, and one micro-batch goes all the way
            // through (its weight gradients may wait).
            best = all_f + all_b - load.weight.iter().map(|t| t.0).sum::<u64>().min(all_b);
            for i in 0..shape.ranks {
                let on = |t: &[Picos]| {
                    (0..(p * v) as u32)
                        .filter(|&k| shape.rank_of(k) == i)
                        .map(|k| t[k as usize].0)
                        .sum::<u64>()
                };
                best = best.max(m * (on(f) + on(b)));
            }
        }
    }
    Picos(best)
}

/// How many of the first `w` forwards of the interleaved order belong to chunk `c`.
fn first_of_chunk(shape: Shape, w: u64, c: u64) -> u64 {
    let (v, m, group) =
        (u64::from(shape.virtual_stages), u64::from(shape.micro_batches), u64::from(shape.group()));
    let (mut left, mut first, mut count) = (w, 0, 0);
    while first < m && left > 0 {
        let size = group.min(m - first);
        count += left.saturating_sub(c * size).min(size);
        left = left.saturating_sub(v * size);
        first += size;
    }
    count
}

/// How many of the last `w` backwards of the interleaved order belong to chunk `c`: backwards walk the
/// forward order with chunk `v - 1 - c`.
fn last_of_chunk(shape: Shape, w: u64, c: u64) -> u64 {
    let (v, m) = (u64::from(shape.virtual_stages), u64::from(shape.micro_batches));
    m - first_of_chunk(shape, m * v - w, v - 1 - c)
}

/// The textbook makespan from the slowest and the average rank: 1F1B and GPipe
/// `(m-1) max t + sum t`, interleaved `m max t + (p-1)/(p v) sum t`, zero bubble `m max t`.
#[must_use]
pub fn closed_form(shape: Shape, load: Load<'_>) -> Picos {
    let (p, v, m) = (u64::from(shape.ranks), u64::from(shape.virtual_stages), u64::from(shape.micro_batches));
    let (mut longest, mut sum) = (0, 0);
    for rank in 0..shape.ranks {
        let mine = (0..(p * v) as u32).filter(|&k| shape.rank_of(k) == rank);
        let busy: u64 = mine.map(|k| load.forward[k as usize].0 + load.backward[k as usize].0).sum();
        longest = longest.max(busy);
        sum += busy;
    }
    Picos(match shape.schedule {
        Schedule::OneFOneB | Schedule::GPipe => (m - 1) * longest + sum,
        Schedule::Interleaved => m * longest + sum * (p - 1) / (p * v),
        _ => m * longest,
    })
}

/// Bubble of equal stages as a ratio to useful time: `(p-1) / (v m)`.
#[must_use]
pub fn bubble_ratio(pipeline_parallel: u32, virtual_stages: u32, micro_batches: u32) -> f64 {
    f64::from(pipeline_parallel - 1) / (f64::from(virtual_stages) * f64::from(micro_batches))
}

/// The same bubble as a fraction of the whole step: `r / (1 + r)`.
#[must_use]
pub fn bubble_fraction(pipeline_parallel: u32, virtual_stages: u32, micro_batches: u32) -> f64 {
    let ratio = bubble_ratio(pipeline_parallel, virtual_stages, micro_batches);
    ratio / (1.0 + ratio)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Longest path through explicit operation lists, written without sharing anything with
    /// [`Simulator`]: repeated relaxation until nothing moves.
    fn oracle(shape: Shape, f: &[u64], b: &[u64], x: u64) -> u64 {
        let (p, v, m) = (shape.ranks as usize, shape.virtual_stages as usize, shape.micro_batches as usize);
        let n = p * v;
        // Operation ids: forward (k, j) = k*m+j, backward = n*m + k*m+j.
        let mut lists: Vec<Vec<usize>> = Vec::new();
        for r in 0..p {
            let mut forwards = Vec::new();
            let g = if v == 1 { m } else { shape.group() as usize };
            let mut first = 0;
            while first < m {
                let size = g.min(m - first);
                for c in 0..v {
                    for j in first..first + size {
                        forwards.push((c, j));
                    }
                }
                first += size;
            }
            let warm = match (shape.schedule, v) {
                (Schedule::GPipe, _) => m,
                (_, 1) => (p - r).min(m),
                _ => (2 * (p - r - 1) + (v - 1) * g + 1).min(m * v),
            };
            let (mut list, mut backwards) = (Vec::new(), 0);
            for (i, &(c, j)) in forwards.iter().enumerate() {
                list.push((c * p + r) * m + j);
                if i + 1 >= warm {
                    let (c, j) = forwards[backwards];
                    list.push(n * m + ((v - 1 - c) * p + r) * m + j);
                    backwards += 1;
                }
            }
            for &(c, j) in &forwards[backwards..] {
                list.push(n * m + ((v - 1 - c) * p + r) * m + j);
            }
            lists.push(list);
        }
        let mut end = vec![0u64; 2 * n * m];
        loop {
            let mut moved = false;
            for list in &lists {
                let mut clock = 0;
                for &op in list {
                    let (k, j) = ((op % (n * m)) / m, op % m);
                    let (ready, time) = if op < n * m {
                        (if k == 0 { 0 } else { end[(k - 1) * m + j] + x }, f[k])
                    } else if k + 1 == n {
                        (end[k * m + j], b[k])
                    } else {
                        (end[n * m + (k + 1) * m + j] + x, b[k])
                    };
                    clock = clock.max(ready) + time;
                    if end[op] != clock {
                        end[op] = clock;
                        moved = true;
                    }
                }
            }
            if !moved {
                return end.into_iter().max().unwrap();
            }
        }
    }

    fn picos(t: &[u64]) -> Vec<Picos> {
        t.iter().map(|&t| Picos(t)).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1000))]
        #[test]
        fn simulation_equals_the_oracle_and_never_undercuts_the_chain_bound(
            p in 1u32..8, v in 1u32..5, m in 1u32..60, x in 0u64..40,
            times in prop::collection::vec(1u64..200, 80), gpipe in any::<bool>(), flat in any::<bool>(),
        ) {
            let v = if p == 1 || interleave_group(p, m).is_none() { 1 } else { v };
            let schedule =
                if v > 1 { Schedule::Interleaved } else if gpipe { Schedule::GPipe } else { Schedule::OneFOneB };
            let shape = Shape { schedule, ranks: p, virtual_stages: v, micro_batches: m };
            let n = (p * v) as usize;
            let (mut f, mut b) = (times[..n].to_vec(), times[40..40 + n].to_vec());
            if flat {
                f.fill(100);
                b.fill(200);
            }
            let (fp, bp) = (picos(&f), picos(&b));
            let load = Load { forward: &fp, backward: &bp, weight: &bp, hop: Picos(x) };
            let simulated = Simulator::default().run(shape, load);
            prop_assert_eq!(simulated.0, oracle(shape, &f, &b, x));
            for most in [simulated.0 / 2, simulated.0 - 1, simulated.0, simulated.0 + 1].map(Picos) {
                let within = Simulator::default().run_within(shape, load, most);
                prop_assert_eq!(within, Some(simulated).filter(|time| *time <= most));
            }
            prop_assert!(chain_bound(shape, load) <= simulated, "{:?} > {:?}", chain_bound(shape, load), simulated);
        }

        /// Splits simulated together take what each takes alone; where all take longer than a time, perhaps nothing is said.
        #[test]
        fn several_splits_at_once_take_what_each_takes_alone(
            p in 1u32..7, v in 2u32..5, groups in 1u32..12, odd in 0u32..3, x in 0u64..20, flat in any::<bool>(),
            times in prop::collection::vec(1u64..200, 24 * 2 * LANES), below in 0usize..LANES,
        ) {
            let micro_batches = p * groups + if odd == 0 { 0 } else { odd % p };
            let shape = Shape { schedule: Schedule::Interleaved, ranks: p, virtual_stages: v, micro_batches };
            let n = (p * v) as usize;
            let time = |lane: usize, pass: usize, k: usize| {
                if flat { 50 + (lane + pass) as u64 } else { times[(lane * 2 + pass) * 24 + k] }
            };
            let alone: Vec<Picos> = (0..LANES).map(|lane| {
                let of = |pass| (0..n).map(|k| Picos(time(lane, pass, k))).collect::<Vec<_>>();
                let (f, b) = (of(0), of(1));
                Simulator::default().run(shape, Load { forward: &f, backward: &b, weight: &b, hop: Picos(x) })
            }).collect();
            let of = |pass| -> Vec<Lanes> {
                let lanes = |k| Lanes(std::array::from_fn(|lane| time(lane, pass, k) as f32));
                (0..n).map(lanes).collect()
            };
            let (forward, backward) = (of(0), of(1));
            let mut simulator = Simulator::default();
            for most in [f32::INFINITY, alone[below].0 as f32, alone.iter().min().map_or(0.0, |t| t.0 as f32 - 1.0)] {
                let together = simulator.run_lanes(shape, [&forward, &backward], Picos(x), most);
                match together {
                    Some(together) => for (together, alone) in together.0.iter().zip(&alone) {
                        prop_assert_eq!(*together as u64, alone.0);
                    }
                    None => prop_assert!(alone.iter().all(|alone| alone.0 as f32 > most)),
                }
            }
        }

        #[test]
        fn the_longest_chain_takes_as_long_as_the_schedule_and_no_other_schedule_is_shorter(
            p in 1u32..6, v in 2u32..5, groups in 1u32..5, odd in 0u32..5, x in 0u64..40,
            times in prop::collection::vec(0u64..200, 100), other in prop::collection::vec(0u64..200, 100),
        ) {
            let m = p * groups + odd;
            let shape = Shape { schedule: Schedule::Interleaved, ranks: p, virtual_stages: v, micro_batches: m };
            let n = (p * v) as usize;
            let (f, b) = (picos(&times[..n]), picos(&times[50..50 + n]));
            let load = Load { forward: &f, backward: &b, weight: &b, hop: Picos(x) };
            let mut simulator = Simulator::default();
            let chain = simulator.longest_chain(shape, load, &[]);
            prop_assert_eq!(chain.length(load), simulator.run(shape, load));
            let after = picos(&times[40..40 + p as usize]);
            let longest = simulator.longest_chain(shape, load, &after);
            let last = simulator.ends.iter().zip(&after).map(|(end, after)| *end + *after).max();
            let end = longest.end as usize;
            prop_assert_eq!(Some(longest.length(load) + after[end]), last);
            let (f, b) = (picos(&other[..n]), picos(&other[50..50 + n]));
            let load = Load { forward: &f, backward: &b, weight: &b, hop: Picos(x) };
            prop_assert!(chain.length(load) <= simulator.run(shape, load));
            prop_assert!(longest.length(load) <= simulator.ends[end]);
        }

        #[test]
        fn so_does_that_of_a_schedule_that_splits_backward_passes(
            p in 1u32..6, m in 1u32..14, kind in 0usize..4, x in 0u64..40,
            times in prop::collection::vec(0u64..200, 30), other in prop::collection::vec(0u64..200, 30),
        ) {
            let schedule =
                [Schedule::ZeroBubbleH1, Schedule::ZeroBubbleH2, Schedule::ZeroBubbleV, Schedule::DualPipe][kind];
            let v = 1 + u32::from(kind >= 2);
            let shape = Shape { schedule, ranks: p, virtual_stages: v, micro_batches: m };
            let n = (p * v) as usize;
            let mut simulator = Simulator::default();
            let mut chain = None;
            for times in [&times, &other] {
                let (f, w) = (picos(&times[..n]), picos(&times[10..10 + n]));
                let b: Vec<Picos> = w.iter().zip(picos(&times[20..])).map(|(w, rest)| *w + rest).collect();
                let load = Load { forward: &f, backward: &b, weight: &w, hop: Picos(x) };
                let makespan = simulator.run(shape, load);
                match &chain {
                    None => {
                        let longest = simulator.longest_chain(shape, load, &[]);
                        prop_assert_eq!(longest.length(load), makespan);
                        // Whatever rank it ends on.
                        let end = times[0] as usize % p as usize;
                        let after: Vec<Picos> = (0..=end).map(|r| Picos(u64::from(r == end) << 40)).collect();
                        let to_end = simulator.longest_chain(shape, load, &after);
                        prop_assert_eq!((to_end.end as usize, to_end.length(load)), (end, simulator.ends[end]));
                        chain = Some((longest, to_end));
                    }
                    Some((longest, to_end)) => {
                        prop_assert!(longest.length(load) <= makespan);
                        prop_assert!(to_end.length(load) <= simulator.ends[to_end.end as usize]);
                    }
                }
            }
        }

        #[test]
        fn zero_bubble_schedules_finish_and_respect_the_bound(
            p in 1u32..6, m in 1u32..20, f in 1u64..100, bx in 1u64..100, w in 1u64..100, kind in 0usize..4,
        ) {
            let schedule =
                [Schedule::ZeroBubbleH1, Schedule::ZeroBubbleH2, Schedule::ZeroBubbleV, Schedule::DualPipe][kind];
            let v = if kind >= 2 { 2 } else { 1 };
            let shape = Shape { schedule, ranks: p, virtual_stages: v, micro_batches: m };
            let n = (p * v) as usize;
            let (fp, bp, wp) = (vec![Picos(f); n], vec![Picos(bx + w); n], vec![Picos(w); n]);
            let load = Load { forward: &fp, backward: &bp, weight: &wp, hop: Picos(0) };
            let simulated = Simulator::default().run(shape, load);
            prop_assert!(chain_bound(shape, load) <= simulated);
        }
    }

    #[test]
    fn equal_stages_meet_the_closed_forms() {
        let f = vec![Picos(100); 16];
        let b = vec![Picos(200); 16];
        for (schedule, p, v) in
            [(Schedule::OneFOneB, 16, 1), (Schedule::GPipe, 16, 1), (Schedule::Interleaved, 4, 4)]
        {
            let shape = Shape { schedule, ranks: p, virtual_stages: v, micro_batches: 64 };
            let load = Load { forward: &f, backward: &b, weight: &b, hop: Picos(0) };
            assert_eq!(Simulator::default().run(shape, load), closed_form(shape, load), "{schedule:?}");
        }
        assert!((bubble_fraction(4, 1, 12) - 0.2).abs() < 1e-12);
    }

    #[test]
    fn zero_bubble_schedules_shrink_the_bubble() {
        let (p, m) = (8u32, 32u32);
        let one = [Picos(100); 16];
        let two = [Picos(200); 16];
        let bubble = |schedule, v: u32| {
            let n = (p * v) as usize;
            let load = Load { forward: &one[..n], backward: &two[..n], weight: &one[..n], hop: Picos(0) };
            let shape = Shape { schedule, ranks: p, virtual_stages: v, micro_batches: m };
            Simulator::default().run(shape, load).0 - u64::from(v) * 300 * u64::from(m)
        };
        assert_eq!(bubble(Schedule::OneFOneB, 1), 7 * 300);
        // The papers count each rank from its own start; the last rank starts 700 late, so 700 is the
        // least that a makespan can show for one chunk (Qi et al. 2023, table 1, with f = b_x = w).
        assert!(bubble(Schedule::ZeroBubbleH1, 1) <= 900);
        assert!(bubble(Schedule::ZeroBubbleH2, 1) <= 700);
    }

    #[test]
    fn folded_schedules_have_the_bubbles_of_their_authors() {
        for (p, m) in [(2_u32, 8_u32), (3, 9), (4, 10), (8, 16), (8, 33), (16, 120)] {
            for (f, b, w) in [(100, 200, 100), (100, 200, 80), (120, 200, 60), (90, 230, 110)] {
                let n = 2 * p as usize;
                let (fs, bs, ws) = (vec![Picos(f); n], vec![Picos(b); n], vec![Picos(w); n]);
                let load = Load { forward: &fs, backward: &bs, weight: &ws, hop: Picos(0) };
                let mut simulator = Simulator::default();
                let mut run = |schedule| {
                    let shape = Shape { schedule, ranks: p, virtual_stages: 2, micro_batches: m };
                    let bubble = simulator.run(shape, load).0 - u64::from(m) * 2 * (f + b);
                    let spans =
                        simulator.ends.iter().zip(&simulator.starts).map(|(end, start)| end.0 - start.0);
                    let idle = spans.map(|span| span - u64::from(m) * 2 * (f + b));
                    (bubble, idle.max().unwrap_or(0))
                };
                // Qi et al. 2024: no rank waits once it has begun, if the three passes are equal.
                let (_, idle) = run(Schedule::ZeroBubbleV);
                assert!(idle == 0 || f != b - w || b - w != w, "{p} {m} {f} {b} {w}: {idle}");
                let spread = f.max(b - w).max(w) - f.min(b - w).min(w);
                assert!(idle <= u64::from(p - 1) * 2 * spread, "{p} {m} {f} {b} {w}: {idle}");
                // DeepSeek: `(p - 1) (F&B + B - 3W)`, where a forward pass ends with the backward pass beside it;
                // here it ends before that begins.
                let (bubble, _) = run(Schedule::DualPipe);
                let published = u64::from(p - 1) * (f + 2 * b - 3 * w);
                assert!(bubble <= published, "{p} {m} {f} {b} {w}: {bubble}");
                assert!(bubble + u64::from(p - 1) * (b - w) >= published, "{p} {m} {f} {b} {w}: {bubble}");
            }
        }
    }

    #[test]
    fn no_rank_holds_more_than_it_may() {
        for schedule in [Schedule::ZeroBubbleH2, Schedule::ZeroBubbleV, Schedule::DualPipe] {
            for (ranks, micro_batches) in [(1, 1), (2, 1), (2, 3), (4, 5), (4, 8), (5, 30), (8, 40)] {
                let virtual_stages = if schedule == Schedule::ZeroBubbleH2 { 1 } else { 2 };
                let shape = Shape { schedule, ranks, virtual_stages, micro_batches };
                for (rank, vectors) in (0..ranks).zip(in_flight_vectors(shape)) {
                    let most = vectors.iter().map(|vector| vector.iter().sum::<u32>()).max();
                    assert!(most <= Some(shape.in_flight(rank)), "{shape:?} {rank}: {most:?}");
                    assert!(
                        micro_batches < 2 * ranks || most == Some(shape.in_flight(rank)),
                        "{shape:?} {rank}"
                    );
                }
            }
        }
    }

    #[test]
    fn in_flight_counts_are_those_of_the_papers() {
        // Interleaving holds p (1 + (p-1)/(p v)) full-stage units on the first rank (Korthikanti 2022).
        let shape = Shape { schedule: Schedule::Interleaved, ranks: 8, virtual_stages: 4, micro_batches: 64 };
        let units = f64::from(shape.in_flight(0)) / 4.0;
        assert!((units - 8.0 * (1.0 + 7.0 / 32.0)).abs() < 0.26, "{units}");
        for (rank, vectors) in (0..).zip(in_flight_vectors(shape)) {
            for vector in vectors {
                assert!(vector.iter().sum::<u32>() <= shape.in_flight(rank));
            }
        }
        let plain = Shape { schedule: Schedule::OneFOneB, ranks: 8, virtual_stages: 1, micro_batches: 3 };
        assert_eq!((0..8).map(|r| plain.in_flight(r)).collect::<Vec<_>>(), [3, 3, 3, 3, 3, 3, 2, 1]);
    }
}
