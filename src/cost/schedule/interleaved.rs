//! Megatron's interleaved order, of one split or of several at once: they have the same lists of passes, and what they take
//! differs.

use super::Shape;

/// When something happens, or how long it takes; or all of that of several splits. By default before everything.
pub(super) trait Time: Copy + Default {
    /// Later by so much.
    fn plus(self, time: Self) -> Self;
    /// The later of two.
    fn or_later(self, other: Self) -> Self;
    /// Earlier by so much, but not before everything.
    fn less(self, time: Self) -> Self;
    /// So many times as long.
    fn times(self, count: usize) -> Self;
    /// Whether one is later than the other, of all splits.
    fn is_beyond(self, other: Self) -> bool;
    /// Whether both are the same, of all splits.
    fn is(self, other: Self) -> bool;
}

impl Time for u64 {
    fn plus(self, time: Self) -> Self {
        self + time
    }

    fn or_later(self, other: Self) -> Self {
        Ord::max(self, other)
    }

    fn less(self, time: Self) -> Self {
        self.saturating_sub(time)
    }

    fn times(self, count: usize) -> Self {
        self.saturating_mul(count as u64)
    }

    fn is_beyond(self, other: Self) -> bool {
        self > other
    }

    fn is(self, other: Self) -> bool {
        self == other
    }
}

/// Splits that are simulated at once.
pub const LANES: usize = 8;
/// Whole numbers up to this are exact in lanes.
pub const MOST_EXACT: u64 = 1 << 24;
/// How many times as long as one known split others may take and still be exact.
pub const LANE_MARGIN: u64 = 4;
/// Passes up to which several splits are simulated at once: a megabyte of their ends.
pub const MOST_LANE_PASSES: u64 = 1 << 15;

/// A time of each of so many splits: whole numbers up to [`MOST_EXACT`], in the type that processors of all kinds have
/// the larger of two of in one instruction.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Lanes(pub [f32; LANES]);

impl Lanes {
    /// Gives lanes that stand for no split the times of one that does, if any does: they must not be waited for.
    pub fn fill(chunks: &mut [Self], stands: [bool; LANES]) {
        let Some(first) = stands.iter().position(|stands| *stands) else { return };
        for Self(times) in chunks {
            let of = times[first];
            times.iter_mut().zip(stands).filter(|(_, stands)| !stands).for_each(|(time, _)| *time = of);
        }
    }

    fn with(self, other: Self, of: impl Fn(f32, f32) -> f32) -> Self {
        Self(std::array::from_fn(|lane| of(self.0[lane], other.0[lane])))
    }
}

impl Time for Lanes {
    fn plus(self, time: Self) -> Self {
        self.with(time, |a, b| a + b)
    }

    fn or_later(self, other: Self) -> Self {
        self.with(other, |a, b| if b > a { b } else { a })
    }

    fn less(self, time: Self) -> Self {
        self.with(time, |a, b| if a > b { a - b } else { 0.0 })
    }

    fn times(self, count: usize) -> Self {
        Self(self.0.map(|time| time * count as f32))
    }

    fn is_beyond(self, other: Self) -> bool {
        self.0.iter().zip(&other.0).all(|(a, b)| a > b)
    }

    fn is(self, other: Self) -> bool {
        self.0 == other.0
    }
}

/// How far a rank is.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Walk<T> {
    /// Passes done, and when the first of them started and the last ended.
    forward: Place,
    backward: Place,
    pub start: T,
    pub clock: T,
    /// How long it may wait in all, and has waited.
    patience: T,
    waited: T,
}

/// The next of a rank's forward (or backward) passes: all micro-batches of a group on one chunk, then on the next.
#[derive(Debug, Default, Clone, Copy)]
struct Place {
    /// Passes before it.
    done: usize,
    /// Chunks before it, of this group.
    chunk: usize,
    /// Micro-batches from it on, of this chunk.
    left: usize,
    /// First micro-batch of the group, and how many there are.
    first: usize,
    size: usize,
}

impl Place {
    fn start(micro_batches: usize, group: usize) -> Self {
        let size = group.min(micro_batches);
        Self { left: size, size, ..Self::default() }
    }

    fn advance(&mut self, shape: Shape, group: usize) {
        self.done += 1;
        self.left -= 1;
        if self.left == 0 {
            self.chunk += 1;
            if self.chunk == shape.virtual_stages as usize {
                self.chunk = 0;
                self.first += self.size;
                self.size = group.min(shape.micro_batches as usize - self.first);
            }
            self.left = self.size;
        }
    }

    /// The same pass so many groups later, all of them whole.
    fn skip(&mut self, shape: Shape, groups: usize) {
        self.done += groups * self.size * shape.virtual_stages as usize;
        self.first += groups * self.size;
    }
}

/// What passes take by chunk, in model order, and a hop between ranks.
#[derive(Debug, Clone, Copy)]
pub(super) struct Times<'a, T> {
    pub forward: &'a [T],
    pub backward: &'a [T],
    pub hop: T,
}

/// Whole rounds from which on it is looked for a steady state.
const ROUNDS: usize = 4;

/// Runs the schedule; holds the memory that takes.
#[derive(Debug, Clone)]
pub(super) struct Interleaved<T> {
    /// Ends of passes, by rank and place in its list.
    pub forward_end: Vec<T>,
    pub backward_end: Vec<T>,
    /// By rank.
    pub walks: Vec<Walk<T>>,
    /// The same before the latest round.
    walked: Vec<Walk<T>>,
}

impl<T> Default for Interleaved<T> {
    fn default() -> Self {
        Self { forward_end: Vec::new(), backward_end: Vec::new(), walks: Vec::new(), walked: Vec::new() }
    }
}

impl<T: Time> Interleaved<T> {
    /// Every rank walks its fixed list; ranks take turns and stop where an input is missing. False if some
    /// rank has waited too long to end within `most`, in every split; such schedules are not followed to their end. `every` says whether
    /// the end of every pass is to be known.
    ///
    /// Ranks go round by round: in each, every rank runs as many backward passes as one group of micro-batches has,
    /// rank `r` being `r` ahead, so that inputs are of this round or the last. Once a round is the last one, later by
    /// some time, so are all that follow until forward passes run out (a pass's end is a maximum of sums, to which a
    /// constant may be added), and they are skipped without changing a bit.
    pub fn run(&mut self, shape: Shape, times: Times<'_, T>, most: T, every: bool) -> bool {
        let (p, v, m) = (shape.ranks as usize, shape.virtual_stages as usize, shape.micro_batches as usize);
        let (group, total) = (shape.group() as usize, m * v);
        for ends in [&mut self.forward_end, &mut self.backward_end] {
            if ends.len() < p * total {
                ends.resize(p * total, T::default());
            }
        }
        // A rank does its own work, and after its end the last backward pass goes through all ranks before it.
        let (mut drain, start) = (T::default(), Place::start(m, group));
        self.walks.clear();
        for r in 0..p {
            let chunks = (r..p * v).step_by(p);
            let work =
                chunks.fold(T::default(), |work, k| work.plus(times.forward[k]).plus(times.backward[k]));
            let patience = most.less(work.times(m).plus(drain));
            let walk = Walk { forward: start, backward: start, patience, ..Walk::default() };
            self.walks.push(walk);
            drain = drain.plus(times.backward[r]).plus(times.hop);
        }
        let cycle = v * group;
        // Rounds in which every backward pass follows a forward pass.
        let rounds = total.saturating_sub(2 * (p - 1) + (v - 1) * group) / cycle;
        let rounds = if every || m % group != 0 || rounds < ROUNDS { 0 } else { rounds };
        let mut round = 0;
        loop {
            round += 1;
            self.walked.clone_from(&self.walks);
            let until = |r: usize| if round <= rounds { round * cycle + r } else { total };
            if !self.walk(shape, times, group, until) {
                return false;
            }
            if round > rounds {
                return true;
            }
            if round < rounds && round > 1 && self.is_steady(total, cycle) {
                if !self.skip(shape, cycle, rounds - round) {
                    return false;
                }
                round = rounds;
            }
        }
    }

    /// Every rank runs so many of its backward passes in all, and the forward passes that come before these. False if
    /// one loses its patience.
    fn walk(
        &mut self,
        shape: Shape,
        times: Times<'_, T>,
        group: usize,
        until: impl Fn(usize) -> usize,
    ) -> bool {
        let (p, v, m) = (shape.ranks as usize, shape.virtual_stages as usize, shape.micro_batches as usize);
        let (total, last) = (m * v, p - 1);
        let mut open = true;
        while open {
            open = false;
            for r in 0..p {
                let (end, warm) = (until(r), (2 * (last - r) + (v - 1) * group + 1).min(total));
                let Walk { mut forward, mut backward, mut start, mut clock, patience, mut waited } =
                    self.walks[r];
                // Whom it waits for, and how many of their passes are done. Of its own all that matter are.
                let (above, below) = (if r == 0 { last } else { r - 1 }, if r == last { 0 } else { r + 1 });
                let (known_forward, known_backward) = if p == 1 {
                    (usize::MAX, usize::MAX)
                } else {
                    (self.walks[above].forward.done, self.walks[below].backward.done)
                };
                let (own, above, below) = (r * total, above * total, below * total);
                while backward.done < end {
                    if forward.done < total && forward.done < warm + backward.done {
                        let mut begin = clock;
                        if r > 0 || forward.chunk > 0 {
                            let at = if r > 0 { forward.done } else { forward.done - forward.size };
                            if at >= known_forward {
                                break;
                            }
                            begin = begin.or_later(self.forward_end[above + at].plus(times.hop));
                        }
                        if forward.done == 0 {
                            start = begin;
                        }
                        waited = waited.plus(begin.less(clock));
                        clock = begin.plus(times.forward[forward.chunk * p + r]);
                        self.forward_end[own + forward.done] = clock;
                        forward.advance(shape, group);
                    } else {
                        let ready = if r == last && backward.chunk == 0 {
                            self.forward_end[own + backward.done + (v - 1) * backward.size]
                        } else {
                            let at = if r < last { backward.done } else { backward.done - backward.size };
                            if at >= known_backward {
                                break;
                            }
                            self.backward_end[below + at].plus(times.hop)
                        };
                        let begin = clock.or_later(ready);
                        waited = waited.plus(begin.less(clock));
                        clock = begin.plus(times.backward[(v - 1 - backward.chunk) * p + r]);
                        self.backward_end[own + backward.done] = clock;
                        backward.advance(shape, group);
                    }
                }
                if waited.is_beyond(patience) {
                    return false;
                }
                self.walks[r] = Walk { forward, backward, start, clock, patience, waited };
                open |= backward.done < end;
            }
        }
        true
    }

    /// Whether every pass of the latest round ended as much later as every other than in the round before.
    fn is_steady(&self, total: usize, cycle: usize) -> bool {
        let Some(later) =
            self.walks.first().zip(self.walked.first()).map(|(now, then)| now.clock.less(then.clock))
        else {
            return false;
        };
        let ranks = || self.walks.iter().zip(&self.walked).enumerate();
        let shifted = |ends: &[T], r: usize, done: usize| {
            let (then, now) = ends[r * total..][done - 2 * cycle..done].split_at(cycle);
            then.iter().zip(now).all(|(then, now)| now.less(*then).is(later))
        };
        ranks().all(|(_, (now, then))| now.clock.less(then.clock).is(later))
            && ranks().all(|(r, (now, _))| {
                shifted(&self.forward_end, r, now.forward.done)
                    && shifted(&self.backward_end, r, now.backward.done)
            })
    }

    /// Repeats a steady round so many times. False if a rank loses its patience.
    fn skip(&mut self, shape: Shape, cycle: usize, rounds: usize) -> bool {
        let total = (shape.virtual_stages * shape.micro_batches) as usize;
        for (r, (now, then)) in self.walks.iter_mut().zip(&self.walked).enumerate() {
            let all = now.clock.less(then.clock).times(rounds);
            now.waited = now.waited.plus(now.waited.less(then.waited).times(rounds));
            if now.waited.is_beyond(now.patience) {
                return false;
            }
            for (ends, place) in
                [(&mut self.forward_end, &mut now.forward), (&mut self.backward_end, &mut now.backward)]
            {
                let (from, to) = ends[r * total..].split_at_mut(place.done);
                let to = &mut to[(rounds - 1) * cycle..][..cycle];
                for (to, from) in to.iter_mut().zip(&from[place.done - cycle..]) {
                    *to = from.plus(all);
                }
                place.skip(shape, rounds);
            }
            now.clock = now.clock.plus(all);
        }
        true
    }
}
