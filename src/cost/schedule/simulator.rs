//! The event simulation: how long a schedule takes, exactly.

use super::interleaved::{Interleaved, LANES, Lanes, Time, Times};
use super::lists::{Pass, PassList, split_lists};
use super::{Chain, Load, Shape};
use crate::plan::Schedule;
use crate::units::Picos;

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
    /// [`super::MOST_EXACT`] exact.
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
