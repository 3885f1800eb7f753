//! Lists of passes of every pipeline rank, and the moments at which they run.
//!
//! Orders: one forward, one backward after a warm-up (Narayanan et al. 2021); its interleaved form
//! (`Megatron-LM:megatron/core/pipeline_parallel/schedules.py`); zero bubble (Qi et al. 2023); two
//! directions (DeepSeek-V3 report). Each list is written out pass by pass; the replay walks all lists at
//! once, a rank stopping where its next pass waits for another rank.

use crate::plan::{Layout, Schedule};

/// What fixes the order of passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Order {
    schedule: Schedule,
    ranks: usize,
    /// Chunks of a rank.
    rounds: usize,
    micro_batches: usize,
    /// Micro-batches that pass through a chunk before the next chunk's turn.
    group: usize,
}

/// A pass of a micro-batch through a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pass {
    Forward,
    /// The whole backward pass, or its part for inputs where the weights' part comes on its own.
    Backward,
    Weight,
    /// The whole backward pass where others come in parts.
    Whole,
}

/// One entry of a list.
#[derive(Debug, Clone, Copy)]
struct Entry {
    pass: Pass,
    chunk: u32,
    micro_batch: u32,
}

/// Lists of all ranks.
#[derive(Debug, Clone)]
pub(super) struct Passes {
    lists: Vec<Vec<Entry>>,
    /// Backward passes come in two parts.
    split: bool,
}

impl Order {
    pub(super) fn of(layout: &Layout) -> Self {
        let ranks = layout.pipeline_parallel as usize;
        let micro_batches = layout.gradient_accumulation_steps as usize;
        // A group is as long as the pipeline, or a little longer where a remainder would be shorter.
        let fits = |group: &usize| {
            let rest = micro_batches % group;
            rest == 0 || rest >= ranks
        };
        let group = (ranks..=micro_batches).find(fits).unwrap_or(micro_batches);
        Self {
            schedule: layout.schedule,
            ranks,
            rounds: layout.virtual_stages as usize,
            micro_batches,
            group,
        }
    }

    fn chunks(&self) -> usize {
        self.ranks * self.rounds
    }

    fn rank_of(&self, chunk: usize) -> usize {
        let folded = matches!(self.schedule, Schedule::ZeroBubbleV | Schedule::DualPipe);
        let place = chunk % self.ranks;
        if folded && chunk / self.ranks % 2 == 1 { self.ranks - 1 - place } else { place }
    }
}

/// Writes the lists of all ranks; none where they do not end.
pub(super) fn lists(order: &Order) -> Option<Passes> {
    let split = matches!(
        order.schedule,
        Schedule::ZeroBubbleH1 | Schedule::ZeroBubbleH2 | Schedule::ZeroBubbleV | Schedule::DualPipe
    );
    let lists = match order.schedule {
        Schedule::GPipe => (0..order.ranks).map(|rank| all_then_all(order, rank)).collect(),
        Schedule::OneFOneB | Schedule::Interleaved => {
            (0..order.ranks).map(|rank| one_by_one(order, rank)).collect()
        }
        Schedule::ZeroBubbleH1 => (0..order.ranks).map(|rank| late_weights(order, rank)).collect(),
        Schedule::ZeroBubbleH2 => greedy(order)?,
        Schedule::ZeroBubbleV => {
            (0..order.ranks).map(|rank| spelled(order, rank, folded_zero_bubble(order, rank))).collect()
        }
        Schedule::DualPipe => {
            (0..order.ranks).map(|rank| spelled(order, rank, both_directions(order, rank))).collect()
        }
    };
    Some(Passes { lists, split })
}

fn entry(pass: Pass, chunk: usize, micro_batch: usize) -> Entry {
    Entry { pass, chunk: chunk as u32, micro_batch: micro_batch as u32 }
}

fn all_then_all(order: &Order, rank: usize) -> Vec<Entry> {
    let each = |pass| (0..order.micro_batches).map(move |j| entry(pass, rank, j));
    each(Pass::Forward).chain(each(Pass::Backward)).collect()
}

/// Warm-up, then a forward and a backward pass by turns, then the backward passes that are left. A group
/// of micro-batches visits the chunks of a rank one after the other, upwards forward, downwards backward.
fn one_by_one(order: &Order, rank: usize) -> Vec<Entry> {
    let (p, v, m) = (order.ranks, order.rounds, order.micro_batches);
    let total = m * v;
    let visit = |at: usize| {
        if v == 1 {
            return (0, at);
        }
        let begun = at / (order.group * v);
        let size = order.group.min(m - begun * order.group);
        let inside = at - begun * order.group * v;
        (inside / size, begun * order.group + inside % size)
    };
    let forward = |at: usize| {
        let (round, j) = visit(at);
        entry(Pass::Forward, round * p + rank, j)
    };
    let backward = |at: usize| {
        let (round, j) = visit(at);
        entry(Pass::Backward, (v - 1 - round) * p + rank, j)
    };
    let behind = p - 1 - rank;
    let warm_up = if v == 1 { behind } else { 2 * behind + (v - 1) * order.group };
    let warm_up = warm_up.min(total);
    let mut list = Vec::with_capacity(2 * total);
    list.extend((0..warm_up).map(forward));
    for at in warm_up..total {
        list.push(forward(at));
        list.push(backward(at - warm_up));
    }
    list.extend((total - warm_up..total).map(backward));
    list
}

/// Zero bubble H1: as above, but rank `r` computes weight gradients `r` micro-batches late.
fn late_weights(order: &Order, rank: usize) -> Vec<Entry> {
    let m = order.micro_batches;
    let ahead = (order.ranks - rank).min(m);
    let mut list: Vec<Entry> = (0..ahead).map(|j| entry(Pass::Forward, rank, j)).collect();
    for j in 0..m {
        list.push(entry(Pass::Backward, rank, j));
        list.extend(j.checked_sub(rank).map(|j| entry(Pass::Weight, rank, j)));
        list.extend((ahead + j < m).then(|| entry(Pass::Forward, rank, ahead + j)));
    }
    list.extend((m.saturating_sub(rank)..m).map(|j| entry(Pass::Weight, rank, j)));
    list
}

/// Zero bubble H2, whose order comes from a rule: time goes in ticks, every pass takes one, and a free rank takes a
/// backward pass if it can, else a forward pass if it has room, else weights.
fn greedy(order: &Order) -> Option<Vec<Vec<Entry>>> {
    let (p, m) = (order.ranks, order.micro_batches);
    // Ticks after which passes are done.
    let mut forward: Vec<Vec<u32>> = vec![Vec::new(); p];
    let mut backward: Vec<Vec<u32>> = vec![Vec::new(); p];
    let mut weights = vec![0usize; p];
    let mut lists: Vec<Vec<Entry>> = vec![Vec::with_capacity(3 * m); p];
    let mut open = 3 * p * m;
    // Even one pass at a time would end within so many ticks.
    for tick in 0..=(3 * p * m) as u32 {
        if open == 0 {
            return Some(lists);
        }
        for k in 0..p {
            // Passes that ended before this tick count as done.
            let done = |ends: &Vec<u32>, j: usize| ends.get(j).is_some_and(|&end| end <= tick);
            let (ahead, back) = (forward[k].len(), backward[k].len());
            let due = if k + 1 == p { done(&forward[k], back) } else { done(&backward[k + 1], back) };
            let next = if back < ahead && due {
                backward[k].push(tick + 1);
                entry(Pass::Backward, k, back)
            } else if ahead < m
                && ahead - weights[k] < (2 * p - 1).min(m)
                && (k == 0 || done(&forward[k - 1], ahead))
            {
                forward[k].push(tick + 1);
                entry(Pass::Forward, k, ahead)
            } else if weights[k] < back {
                weights[k] += 1;
                entry(Pass::Weight, k, weights[k] - 1)
            } else {
                continue;
            };
            lists[k].push(next);
            open -= 1;
        }
    }
    (open == 0).then_some(lists)
}

/// A word of the orders of two chunks per rank: on its chunk of the first half of the model, or of the second half.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Word {
    Forward(usize),
    Whole(usize),
    Input(usize),
    Weight(usize),
    /// The weights that have waited longest, whichever half they are of.
    Oldest,
}

/// ZB-V (Qi et al. 2024, as PyTorch's `ScheduleZBVZeroBubble` writes it): so many times these words.
fn folded_zero_bubble(order: &Order, rank: usize) -> Vec<(usize, Vec<Word>)> {
    use Word::{Forward, Input, Weight};
    let (ahead, behind) = (rank, order.ranks - rank);
    let all = order.micro_batches.max(2 * order.ranks - 1);
    let turn = [Input(0), Weight(0), Forward(1), Input(1), Weight(1)];
    let warm = 2 * behind - 1 + ahead;
    vec![
        (2 * behind - 1, vec![Forward(0)]),
        (ahead, vec![Forward(1), Forward(0)]),
        (behind, vec![Forward(1), Input(1), Weight(1)]),
        (all - warm, [&[Forward(0)], &turn[..]].concat()),
        (warm - ahead - behind, turn.to_vec()),
        (ahead, vec![Input(0), Input(1)]),
        (behind, vec![Input(0), Weight(0)]),
        (ahead, vec![Weight(1)]),
        (ahead, vec![Weight(0)]),
    ]
}

/// Both directions of DualPipe, folded (DeepSeek's `DualPipe:dualpipe/dualpipev.py`): so many times these words.
fn both_directions(order: &Order, rank: usize) -> Vec<(usize, Vec<Word>)> {
    use Word::{Forward, Input, Oldest, Weight, Whole};
    let (own, behind) = (rank + 1, order.ranks - rank - 1);
    let all = order.micro_batches.max(2 * order.ranks);
    // The first half of the last turns are whole backward passes, on the first, third, ... rank one more of the second
    // half of the model than of the first.
    let (whole, late) = (own / 2, own - own / 2 - 1);
    let middle = if rank % 2 == 1 { [Input(1), Input(0)] } else { [Whole(1), Input(0)] };
    vec![
        (2 * behind, vec![Forward(0)]),
        (own, vec![Forward(0), Forward(1)]),
        (behind, vec![Input(1), Weight(1), Forward(1)]),
        (all + own - 2 * order.ranks, vec![Forward(0), Whole(1), Forward(1), Whole(0)]),
        (behind, vec![Whole(1), Forward(1), Whole(0)]),
        (whole, vec![Whole(1), Whole(0)]),
        (1, middle.to_vec()),
        (late, vec![Input(1), Input(0)]),
        (behind, vec![Oldest, Input(0)]),
        (own, vec![Oldest]),
    ]
}

/// The list that words stand for: every kind of pass of a chunk takes its micro-batches in order, and those that there
/// are not are left out.
fn spelled(order: &Order, rank: usize, words: Vec<(usize, Vec<Word>)>) -> Vec<Entry> {
    let chunks = [rank, order.chunks() - 1 - rank];
    let (mut forward, mut backward) = ([0usize; 2], [0usize; 2]);
    let mut waiting: Vec<(usize, usize)> = Vec::new();
    let mut list = Vec::with_capacity(6 * order.micro_batches);
    for word in words.into_iter().flat_map(|(times, words)| words.repeat(times)) {
        let (pass, half, j) = match word {
            Word::Forward(half) => {
                forward[half] += 1;
                (Pass::Forward, half, forward[half] - 1)
            }
            Word::Whole(half) | Word::Input(half) => {
                let j = backward[half];
                backward[half] += 1;
                if matches!(word, Word::Input(_)) {
                    waiting.push((half, j));
                    (Pass::Backward, half, j)
                } else {
                    (Pass::Whole, half, j)
                }
            }
            Word::Weight(_) | Word::Oldest => {
                let fits = |one: &(usize, usize)| word == Word::Oldest || word == Word::Weight(one.0);
                let Some(at) = waiting.iter().position(fits) else { continue };
                let (half, j) = waiting.remove(at);
                (Pass::Weight, half, j)
            }
        };
        if j < order.micro_batches {
            list.push(entry(pass, chunks[half], j));
        }
    }
    list
}

impl Passes {
    /// The most that each rank keeps at once if a micro-batch leaves `kept[chunk]` bytes on a chunk from
    /// its forward pass to the end of its backward pass.
    pub(super) fn peaks(&self, order: &Order, kept: &[f64]) -> Vec<f64> {
        let last = if self.split { Pass::Weight } else { Pass::Backward };
        let mut peaks = vec![0.0; order.ranks];
        let mut counts = vec![0u64; kept.len()];
        for (rank, (peak, list)) in peaks.iter_mut().zip(&self.lists).enumerate() {
            let own: Vec<usize> = (0..kept.len()).filter(|&chunk| order.rank_of(chunk) == rank).collect();
            // Counts, not sums of bytes: nothing is lost by rounding.
            for e in list {
                if e.pass == Pass::Forward {
                    counts[e.chunk as usize] += 1;
                    let mut held: f64 = own.iter().map(|&k| counts[k] as f64 * kept[k]).sum();
                    if order.schedule == Schedule::DualPipe {
                        // Its stages are not halved: half a stage more is alive.
                        let more = own.iter().filter(|&&k| counts[k] < order.micro_batches as u64);
                        held += more.map(|&k| kept[k]).fold(0.0, f64::max);
                    }
                    *peak = f64::max(*peak, held);
                } else if e.pass == last || e.pass == Pass::Whole {
                    counts[e.chunk as usize] = counts[e.chunk as usize].saturating_sub(1);
                }
            }
        }
        peaks
    }
}

/// Picoseconds of the passes of one micro-batch through each chunk, messages included.
#[derive(Debug, Clone)]
pub(super) struct Durations {
    pub(super) forward: Vec<u64>,
    pub(super) backward: Vec<u64>,
    /// The part of `backward` that weight gradients take.
    pub(super) weight: Vec<u64>,
    /// Between the end of a pass and the start of the next on another rank.
    pub(super) hop: u64,
}

/// When passes ran.
#[derive(Debug, Clone)]
pub(super) struct Replay {
    /// End of the last pass.
    pub(super) makespan: u64,
    /// Start of the first pass of every rank.
    pub(super) starts: Vec<u64>,
    /// End of the last pass of every rank.
    pub(super) ends: Vec<u64>,
}

impl Replay {
    /// Runs every pass as early as its list and its input allow; none where a rank waits for ever.
    pub(super) fn run(order: &Order, passes: &Passes, durations: &Durations) -> Option<Self> {
        let (n, m) = (order.chunks(), order.micro_batches);
        const NOT_YET: u64 = u64::MAX;
        let mut forward_end = vec![NOT_YET; n * m];
        let mut backward_end = vec![NOT_YET; n * m];
        let home: Vec<usize> = (0..n).map(|chunk| order.rank_of(chunk)).collect();
        let mut clocks = vec![0u64; order.ranks];
        let mut starts = vec![None; order.ranks];
        let mut next = vec![0usize; order.ranks];
        let mut ready: Vec<usize> = (0..order.ranks).rev().collect();
        let mut waiting = vec![false; order.ranks];
        while let Some(rank) = ready.pop() {
            waiting[rank] = false;
            let list = &passes.lists[rank];
            while let Some(e) = list.get(next[rank]) {
                let (k, j) = (e.chunk as usize, e.micro_batch as usize);
                // What must have ended, on which chunk; and who waits for this pass.
                let (needed, duration, heir) = match e.pass {
                    Pass::Forward => (
                        k.checked_sub(1).map(|before| (forward_end[before * m + j], before)),
                        durations.forward[k],
                        (k + 1 < n).then_some(k + 1),
                    ),
                    Pass::Backward | Pass::Whole => {
                        let needed = if k + 1 == n {
                            (forward_end[k * m + j], k)
                        } else {
                            (backward_end[(k + 1) * m + j], k + 1)
                        };
                        let parts = passes.split && e.pass == Pass::Backward;
                        let later = if parts { durations.weight[k] } else { 0 };
                        (Some(needed), durations.backward[k].saturating_sub(later), k.checked_sub(1))
                    }
                    Pass::Weight => (Some((backward_end[k * m + j], k)), durations.weight[k], None),
                };
                let mut begin = clocks[rank];
                if let Some((end, chunk)) = needed {
                    if end == NOT_YET {
                        waiting[rank] = true;
                        break;
                    }
                    let travel = if home[chunk] == rank { 0 } else { durations.hop };
                    begin = begin.max(end + travel);
                }
                starts[rank].get_or_insert(begin);
                clocks[rank] = begin + duration;
                match e.pass {
                    Pass::Forward => forward_end[k * m + j] = clocks[rank],
                    Pass::Backward | Pass::Whole => backward_end[k * m + j] = clocks[rank],
                    Pass::Weight => {}
                }
                next[rank] += 1;
                // A rank that waits may be waiting for this; if not, it will find out.
                if let Some(heir) = heir.map(|chunk| home[chunk]).filter(|&heir| waiting[heir]) {
                    waiting[heir] = false;
                    ready.push(heir);
                }
            }
        }
        let complete = next.iter().zip(&passes.lists).all(|(&next, list)| next == list.len());
        complete.then(|| Self {
            makespan: clocks.iter().copied().max().unwrap_or(0),
            starts: starts.into_iter().map(Option::unwrap_or_default).collect(),
            ends: clocks,
        })
    }
}
