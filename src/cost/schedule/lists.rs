//! The fixed lists of passes of schedules that split backward passes: which rank runs what after what. Those of others are in
//! [`super::simulator`] and [`super::interleaved`].

use super::Shape;
use crate::plan::Schedule;

/// A pass of a schedule that splits backward passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pass {
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
    pub fn awaited(self) -> Option<usize> {
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
pub type PassList = Vec<(Pass, u32, u32)>;

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
pub fn split_lists(shape: Shape, lists: &mut Vec<PassList>) {
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
