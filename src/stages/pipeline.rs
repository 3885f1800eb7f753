//! What a schedule does to the time and memory of stages, as data.
//!
//! Every schedule here is a fixed list of passes per rank. Such a list gives, for every rank, how many
//! micro-batches its chunks hold at once, and lower bounds on the makespan: the chain of passes that the
//! rank's first backward pass waits for, then the rest of the rank's list, then the chain that its last
//! backward pass sets off (and the mirror image in time). Durations enter these bounds linearly.

use crate::cost::schedule::{Shape, in_flight_vectors};
use crate::plan::Schedule;
use crate::units::Picos;

/// Ranks, chunks, and the order of passes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pipeline {
    /// Ranks of the pipeline (PP).
    pub ranks: u32,
    /// Chunks per rank (VPP).
    pub chunks_per_rank: u32,
    /// Micro-batches per step.
    pub micro_batches: u64,
    /// Rank of every chunk, in model order.
    pub rank_of_chunk: Vec<u32>,
    /// By rank.
    pub orders: Vec<RankOrder>,
    /// The chain bound as the dynamic programme minimises it; none for several chunks per rank.
    pub form: Option<Form>,
    /// Backward passes come in two parts of which only the first is waited for, so that bounds may not
    /// chain whole backward passes.
    pub split_backward: bool,
    /// Every rank runs all its forward passes before any backward pass (GPipe).
    pub two_sweeps: bool,
    /// Whose lists of passes these are, where it is known.
    pub schedule: Option<Schedule>,
    /// The chain bound and its mirror image, averaged over ranks: weights of every chunk, times the
    /// number of ranks. Empty where there are no chains.
    pub average: Vec<[Weights; 2]>,
    /// How often the chains pay the hop latency.
    pub chain_hops: u64,
    /// Most micro-batches in flight on the chunks of one rank together.
    pub most_in_flight: u64,
}

/// Most micro-batches in flight on the chunks of one rank together.
fn most_in_flight(orders: &[RankOrder]) -> u64 {
    orders.iter().map(|order| order.most_in_flight).max().unwrap_or(0)
}

/// A factor on forward and on backward time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Weights {
    /// On forward time.
    pub forward: u64,
    /// On backward time.
    pub backward: u64,
}

impl Weights {
    /// The weighted sum.
    #[must_use]
    pub fn of(self, forward: u64, backward: u64) -> u64 {
        self.forward * forward + self.backward * backward
    }
}

/// What a rank's list of passes implies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RankOrder {
    /// Chunks of the rank, ascending.
    pub chunks: Vec<u32>,
    /// Micro-batches in flight, one entry per chunk; one such vector after the other, each a state that
    /// no other exceeds in every entry.
    pub in_flight: Vec<u32>,
    /// The most of them on all chunks together.
    pub most_in_flight: u64,
    /// Passes of each chunk that follow the first backward pass of the rank.
    pub after_first_backward: Vec<Weights>,
    /// Passes of each chunk that precede the last forward pass of the rank.
    pub before_last_forward: Vec<Weights>,
}

impl RankOrder {
    fn new(
        chunks: Vec<u32>,
        in_flight: Vec<u32>,
        after_first_backward: Vec<Weights>,
        before_last_forward: Vec<Weights>,
    ) -> Self {
        let order = Self { chunks, in_flight, most_in_flight: 0, after_first_backward, before_last_forward };
        let together = |counts: &[u32]| counts.iter().map(|&n| u64::from(n)).sum();
        Self { most_in_flight: order.states().map(together).max().unwrap_or(0), ..order }
    }

    /// The most that is kept in any state, if a micro-batch keeps so much on each of the chunks.
    pub(super) fn most_kept(&self, by_chunk: &[u64]) -> u64 {
        match by_chunk {
            [first, rest @ ..] if rest.iter().all(|kept| kept == first) => self.most_in_flight * first,
            _ => {
                let kept = |counts: &[u32]| {
                    counts.iter().zip(by_chunk).map(|(&n, &kept)| u64::from(n) * kept).sum::<u64>()
                };
                self.states().map(kept).max().unwrap_or(0)
            }
        }
    }

    /// The moments when no other has as many micro-batches in flight on every chunk: how many there are, by chunk.
    pub fn states(&self) -> impl Iterator<Item = &[u32]> + Clone {
        self.in_flight.chunks_exact(self.chunks.len().max(1))
    }
}

/// A bound that separates over ranks:
/// `base . (sum of forward, sum of backward) + max over ranks and rows of row . (forward, backward) + hops`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Form {
    /// Weights of the sums over all ranks.
    pub base: Weights,
    /// Two rows per rank.
    pub ranks: Vec<[Weights; 2]>,
    /// How often the hop latency is paid.
    pub hops: u64,
}

impl Form {
    /// The rank's part.
    #[must_use]
    pub fn rank(&self, rank: usize, forward: u64, backward: u64) -> u64 {
        let [one, other] = self.ranks[rank];
        one.of(forward, backward).max(other.of(forward, backward))
    }
}

impl Pipeline {
    /// The pipeline of a schedule.
    #[must_use]
    pub fn of(shape: Shape) -> Self {
        Self::with(shape, in_flight(shape))
    }

    /// The pipeline of a schedule whose [`in_flight`] is known.
    #[must_use]
    pub fn with(shape: Shape, in_flight: Vec<Vec<u32>>) -> Self {
        let (p, v, m) = (shape.ranks, shape.virtual_stages, u64::from(shape.micro_batches));
        let pipeline = match shape.schedule {
            Schedule::OneFOneB => Self::one_f_one_b(p, m),
            Schedule::GPipe => Self::gpipe(p, m),
            Schedule::Interleaved if v == 1 => Self::one_f_one_b(p, m),
            Schedule::Interleaved => Self::chunked(p, v, m, shape.group(), in_flight),
            _ => Self::by_work(m, p, (0..p * v).map(|chunk| shape.rank_of(chunk)).collect(), in_flight),
        };
        Self { schedule: Some(shape.schedule), ..pipeline }
    }

    /// Passes of a step on all chunks together.
    #[must_use]
    pub fn passes(&self) -> u64 {
        let each = if self.split_backward { 3 } else { 2 };
        each * self.rank_of_chunk.len() as u64 * self.micro_batches
    }

    /// One forward, one backward; also one stage alone.
    #[must_use]
    pub fn one_f_one_b(ranks: u32, micro_batches: u64) -> Self {
        let m = micro_batches;
        let orders = (0..ranks)
            .map(|rank| {
                let warm = u64::from(ranks - rank).min(m);
                RankOrder::new(
                    vec![rank],
                    vec![warm as u32],
                    vec![Weights { forward: m - warm, backward: m.saturating_sub(1) }],
                    vec![Weights { forward: m.saturating_sub(1), backward: m - warm }],
                )
            })
            .collect();
        Self::looped(ranks, 1, m, orders)
    }

    /// All forward passes, then all backward passes.
    #[must_use]
    pub fn gpipe(ranks: u32, micro_batches: u64) -> Self {
        let m = micro_batches;
        // All micro-batches pass the slowest forward before the last stage turns round, and the slowest
        // backward after it.
        let rest = vec![Weights { forward: m.saturating_sub(1), backward: m.saturating_sub(1) }];
        let orders = (0..ranks)
            .map(|rank| {
                let all = vec![u32::try_from(m).unwrap_or(u32::MAX)];
                RankOrder::new(vec![rank], all, rest.clone(), rest.clone())
            })
            .collect();
        Self { two_sweeps: true, ..Self::looped(ranks, 1, m, orders) }
    }

    /// Megatron's interleaved one forward, one backward; `group` micro-batches run through a chunk
    /// before the next chunk's turn (`--microbatch-group-size-per-virtual-pipeline-stage`, by default
    /// the number of ranks).
    #[must_use]
    pub fn interleaved(ranks: u32, chunks_per_rank: u32, micro_batches: u64, group: u32) -> Self {
        if chunks_per_rank == 1 {
            return Self::one_f_one_b(ranks, micro_batches);
        }
        let in_flight = interleaved_states(ranks, chunks_per_rank, micro_batches, group);
        Self::chunked(ranks, chunks_per_rank, micro_batches, group, in_flight)
    }

    fn chunked(
        ranks: u32,
        chunks_per_rank: u32,
        micro_batches: u64,
        group: u32,
        in_flight: Vec<Vec<u32>>,
    ) -> Self {
        let (p, v, m, g) = (u64::from(ranks), u64::from(chunks_per_rank), micro_batches, u64::from(group));
        let orders = (0..p)
            .zip(in_flight)
            .map(|(rank, in_flight)| {
                let first = (warm_up(p, v, m, g, rank) + 1).min(m * v);
                let early = passes_by_chunk(v, m, g, first, false);
                let late = passes_by_chunk(v, m, g, first, true);
                let once = |chunk: usize| u64::from(chunk as u64 == v - 1);
                RankOrder::new(
                    (0..v).map(|chunk| (chunk * p + rank) as u32).collect(),
                    in_flight,
                    (0..v as usize)
                        .map(|c| Weights { forward: m - early[c], backward: m - once(c) })
                        .collect(),
                    (0..v as usize)
                        .map(|c| Weights { forward: m - once(c), backward: m - late[c] })
                        .collect(),
                )
            })
            .collect();
        Self::looped(ranks, chunks_per_rank, m, orders)
    }

    /// A schedule of which only the placement and the micro-batches in flight are known, or whose
    /// backward passes are split (zero bubble, DualPipe): bounded by the work of the busiest rank.
    /// `in_flight` has one list of vectors per rank, as [`RankOrder::in_flight`].
    #[must_use]
    pub fn by_work(
        micro_batches: u64,
        ranks: u32,
        rank_of_chunk: Vec<u32>,
        in_flight: Vec<Vec<u32>>,
    ) -> Self {
        let m = micro_batches;
        let v = (rank_of_chunk.len() as u32 / ranks.max(1)).max(1);
        let orders: Vec<RankOrder> = in_flight
            .into_iter()
            .enumerate()
            .map(|(rank, in_flight)| {
                let on_rank = |&chunk: &u32| rank_of_chunk[chunk as usize] as usize == rank;
                let chunks: Vec<u32> = (0..rank_of_chunk.len() as u32).filter(on_rank).collect();
                let all = vec![Weights { forward: m, backward: m }; chunks.len()];
                RankOrder::new(chunks, in_flight, all.clone(), all)
            })
            .collect();
        let rows = [Weights { forward: m, backward: m }; 2];
        let most_in_flight = most_in_flight(&orders);
        Self {
            ranks,
            chunks_per_rank: v,
            micro_batches: m,
            rank_of_chunk,
            orders,
            form: (v == 1).then(|| Form {
                base: Weights::default(),
                ranks: vec![rows; ranks as usize],
                hops: 0,
            }),
            split_backward: true,
            two_sweeps: false,
            schedule: None,
            average: Vec::new(),
            chain_hops: 0,
            most_in_flight,
        }
    }

    fn looped(ranks: u32, chunks_per_rank: u32, micro_batches: u64, orders: Vec<RankOrder>) -> Self {
        let v = u64::from(chunks_per_rank);
        let hops = if ranks == 1 { 0 } else { u64::from(ranks) * (v + 1) - 2 };
        let rows = |order: &RankOrder| [order.after_first_backward[0], order.before_last_forward[0]];
        let form = (v == 1).then(|| Form {
            base: Weights { forward: 1, backward: 1 },
            ranks: orders.iter().map(rows).collect(),
            hops,
        });
        let average = (0..ranks * chunks_per_rank)
            .map(|chunk| {
                let (rank, own) = (chunk % ranks, (chunk / ranks) as usize);
                let order = &orders[rank as usize];
                // Ranks whose chain passes this chunk beside their own list: from their last chunk on, and up
                // to their first.
                let behind = (chunk + 1).saturating_sub((chunks_per_rank - 1) * ranks).min(ranks);
                let passing = u64::from(behind + (ranks - 1).saturating_sub(chunk));
                let (early, late) = (order.after_first_backward[own], order.before_last_forward[own]);
                let p = u64::from(ranks);
                [
                    Weights { forward: p + early.forward, backward: passing + early.backward },
                    Weights { forward: passing + late.forward, backward: p + late.backward },
                ]
            })
            .collect();
        let most_in_flight = most_in_flight(&orders);
        Self {
            ranks,
            chunks_per_rank,
            micro_batches,
            rank_of_chunk: (0..ranks * chunks_per_rank).map(|chunk| chunk % ranks).collect(),
            orders,
            form,
            split_backward: false,
            schedule: None,
            two_sweeps: false,
            average,
            chain_hops: hops,
            most_in_flight,
        }
    }

    /// The chain bound as solvers minimise it, and the larger of it and the busy bound.
    #[must_use]
    pub fn chain_and_bound(&self, forward: &[Picos], backward: &[Picos], hop: Picos) -> (Picos, Picos) {
        let total = |times: &[Picos]| times.iter().map(|t| t.0).sum::<u64>();
        let (all_f, all_b) = (total(forward), total(backward));
        let bound = self.exact_bound(forward, backward, hop, all_f, all_b);
        let Some(form) = &self.form else { return (Picos(bound), Picos(bound)) };
        let passes = forward.iter().zip(backward).enumerate();
        let peak = passes.map(|(rank, (f, b))| form.rank(rank, f.0, b.0)).max().unwrap_or(0);
        let chain = form.base.of(all_f, all_b) + peak + form.hops * hop.0;
        (Picos(chain), Picos(bound.max(chain)))
    }

    /// The chain bound with every chunk's own duration, its mirror image, and the busy bound.
    fn exact_bound(&self, forward: &[Picos], backward: &[Picos], hop: Picos, all_f: u64, all_b: u64) -> u64 {
        let chunks = self.rank_of_chunk.len();
        // Sums and rank changes before each chunk.
        let mut before = Vec::with_capacity(chunks + 1);
        let (mut f, mut b, mut hops) = (0, 0, 0);
        for k in 0..chunks {
            if k > 0 && self.rank_of_chunk[k] != self.rank_of_chunk[k - 1] {
                hops += 1;
            }
            before.push((f, b, hops));
            f += forward[k].0;
            b += backward[k].0;
        }
        let mut bound = 0;
        if self.two_sweeps {
            let longest = |times: &[Picos]| times.iter().map(|t| t.0).max().unwrap_or(0);
            let more = self.micro_batches.saturating_sub(1) * (longest(forward) + longest(backward));
            bound = all_f + all_b + more + 2 * hops * hop.0;
        }
        for order in &self.orders {
            let (Some(&first), Some(&last)) = (order.chunks.first(), order.chunks.last()) else { continue };
            let (head_f, head_b, head_hops) = before[first as usize];
            let (last_f, last_b, last_hops) = before[last as usize];
            let own = |weights: &[Weights]| -> u64 {
                let of = |(w, &k): (&Weights, &u32)| w.of(forward[k as usize].0, backward[k as usize].0);
                weights.iter().zip(&order.chunks).map(of).sum()
            };
            let m = self.micro_batches;
            let work: u64 =
                order.chunks.iter().map(|&k| m * (forward[k as usize].0 + backward[k as usize].0)).sum();
            if self.split_backward {
                bound = bound.max(head_f + work + head_hops * hop.0);
                continue;
            }
            bound = bound.max(head_f + head_b + work + 2 * head_hops * hop.0);
            let latency = (2 * hops - last_hops + head_hops) * hop.0;
            let to_first = all_f + (all_b - last_b) + head_b;
            let to_last = all_b + (all_f - last_f) + head_f;
            bound = bound.max(to_first + own(&order.after_first_backward) + latency);
            bound = bound.max(to_last + own(&order.before_last_forward) + latency);
        }
        bound
    }

    /// `(m-1) max t + sum t` for one chunk per rank, `m max t + (p-1)/(p v) sum t` for more, where `t`
    /// is the time of one micro-batch on a rank.
    #[must_use]
    pub fn closed_form(&self, forward: &[Picos], backward: &[Picos]) -> Picos {
        let rank = |order: &RankOrder| {
            order.chunks.iter().map(|&k| forward[k as usize].0 + backward[k as usize].0).sum::<u64>()
        };
        let (mut longest, mut sum) = (0, 0);
        for order in &self.orders {
            let t = rank(order);
            longest = longest.max(t);
            sum += t;
        }
        let m = self.micro_batches;
        if self.chunks_per_rank == 1 {
            return Picos(m.saturating_sub(1) * longest + sum);
        }
        let (p, v) = (u128::from(self.ranks), u128::from(self.chunks_per_rank));
        let fill = u128::from(sum) * (p - 1) / (p * v);
        Picos(m * longest + u64::try_from(fill).unwrap_or(u64::MAX))
    }
}

/// The forward passes of a rank of the interleaved schedule, in order: runs of passes on the same chunk.
#[derive(Debug, Clone)]
struct Runs {
    chunks: u64,
    micro_batches: u64,
    group: u64,
    /// First micro-batch of the group, chunk, and passes left on it.
    first: u64,
    chunk: u64,
    left: u64,
}

impl Runs {
    fn new(chunks: u64, micro_batches: u64, group: u64) -> Self {
        let group = group.max(1);
        Self { chunks, micro_batches, group, first: 0, chunk: 0, left: group.min(micro_batches) }
    }

    /// The chunk of the next pass, and how many are on it.
    fn next(&self) -> Option<(u64, u64)> {
        (self.left > 0).then_some((self.chunk, self.left))
    }

    /// Goes on by so many passes of this run, no more than it has.
    fn advance(&mut self, passes: u64) {
        self.left -= passes;
        if self.left == 0 {
            self.chunk += 1;
            if self.chunk == self.chunks {
                (self.first, self.chunk) = (self.first + self.group, 0);
            }
            self.left = self.group.min(self.micro_batches.saturating_sub(self.first));
        }
    }

    /// Goes on by so many passes, and says of which chunks.
    fn take(&mut self, passes: u64, mut of: impl FnMut(u64, u64)) {
        let mut passes = passes;
        while let Some((chunk, left)) = self.next().filter(|_| passes > 0) {
            let some = left.min(passes);
            of(chunk, some);
            self.advance(some);
            passes -= some;
        }
    }
}

/// Among the first (or last) passes of a rank, how many are of each chunk. Forward passes walk chunks
/// upwards; backward passes downwards, so that the last of them are those of the first chunks.
fn passes_by_chunk(v: u64, m: u64, group: u64, passes: u64, last_backward: bool) -> Vec<u64> {
    let mut counts = vec![0; v as usize];
    let mut runs = Runs::new(v, m, group);
    // Whole groups are the same from both ends.
    if last_backward && !m.is_multiple_of(group) {
        runs.take(v * m - passes, |_, _| {});
        runs.take(passes, |chunk, n| counts[(v - 1 - chunk) as usize] += n);
    } else {
        runs.take(passes, |chunk, n| counts[chunk as usize] += n);
    }
    counts
}

/// By rank, [`RankOrder::in_flight`] of a schedule's pipeline. The same for all shapes with the same
/// [`steady`] one.
#[must_use]
pub fn in_flight(shape: Shape) -> Vec<Vec<u32>> {
    match shape.schedule {
        Schedule::Interleaved if shape.virtual_stages > 1 => {
            let m = u64::from(shape.micro_batches);
            interleaved_states(shape.ranks, shape.virtual_stages, m, shape.group())
        }
        _ => in_flight_vectors(shape).iter().map(|vectors| vectors.concat()).collect(),
    }
}

/// The shape with the fewest micro-batches whose states in flight are all that this one has: the pattern
/// repeats with every group of micro-batches.
#[must_use]
pub fn steady(shape: Shape) -> Shape {
    let (p, m) = (shape.ranks, shape.micro_batches);
    let micro_batches = match shape.schedule {
        Schedule::Interleaved if m.is_multiple_of(p) => m.min(STEADY_GROUPS * p),
        _ => m,
    };
    Shape { micro_batches, ..shape }
}

/// Groups of micro-batches after which the interleaved schedule of `p` ranks has shown all its states: a rank runs
/// less than `(v + 1) p` forward passes before its first backward pass, and `v p` more show every state, of `v p` a
/// group.
const STEADY_GROUPS: u32 = 3;

fn interleaved_states(ranks: u32, chunks_per_rank: u32, micro_batches: u64, group: u32) -> Vec<Vec<u32>> {
    let (p, v, m, g) = (u64::from(ranks), u64::from(chunks_per_rank), micro_batches, u64::from(group));
    (0..p).map(|rank| interleaved_in_flight(v, m, g, warm_up(p, v, m, g, rank))).collect()
}

/// Forward passes of a rank before its first backward pass in the interleaved schedule, less one.
fn warm_up(p: u64, v: u64, m: u64, group: u64, rank: u64) -> u64 {
    (2 * (p - rank - 1) + (v - 1) * group).min(m * v)
}

/// The states of micro-batches in flight that no other state exceeds, after `warm` forward passes and
/// then one forward, one backward.
fn interleaved_in_flight(v: u64, m: u64, group: u64, warm: u64) -> Vec<u32> {
    let mut counts = vec![0_u32; v as usize];
    let (mut forward, mut backward) = (Runs::new(v, m, group), Runs::new(v, m, group));
    forward.take(warm, |chunk, n| counts[chunk as usize] += n as u32);
    let mut states: Vec<Vec<u32>> = Vec::new();
    let push = |state: &[u32], states: &mut Vec<Vec<u32>>| {
        let below = |a: &[u32], b: &[u32]| a.iter().zip(b).all(|(x, y)| x <= y);
        if states.iter().any(|known| below(state, known)) {
            return;
        }
        states.retain(|known| !below(known, state));
        states.push(state.to_vec());
    };
    push(&counts, &mut states);
    let mut peak = counts.clone();
    // States repeat with every group until the last forward pass, and then only empty; the last group may be
    // shorter.
    let period = v * group;
    let repeats = m.is_multiple_of(group) && warm + period <= m * v;
    let mut steps = if repeats { period + 1 } else { u64::MAX };
    while let Some(((up, more), (down, less))) = forward.next().zip(backward.next()).filter(|_| steps > 0) {
        // While the same pair of chunks goes on, every entry changes linearly: only the ends of such a
        // stretch can be extreme.
        let stretch = more.min(less).min(steps);
        let (up, down) = (up as usize, (v - 1 - down) as usize);
        push(&peak, &mut states);
        counts[up] += 1;
        push(&counts, &mut states);
        counts[up] += stretch as u32 - 1;
        counts[down] -= stretch as u32 - 1;
        peak.copy_from_slice(&counts);
        counts[down] -= 1;
        forward.advance(stretch);
        backward.advance(stretch);
        steps -= stretch;
    }
    push(&peak, &mut states);
    push(&counts, &mut states);
    states.sort_unstable_by(|a, b| b.cmp(a));
    states.concat()
}
