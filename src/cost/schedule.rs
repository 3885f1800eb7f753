//! Pipeline schedules: who runs what in which order, how much is in flight, how long it takes.
//!
//! A schedule is a fixed list of operations per rank, so its makespan is a longest path and monotone
//! in every duration. Four views of it: in-flight counts (memory), the event simulation (time, exact),
//! the chain bound (never above the simulation) and the closed form (for orientation).

mod bounds;
mod in_flight;
mod interleaved;
mod lists;
mod simulator;

use crate::plan::Schedule;
use crate::units::Picos;

pub use bounds::{bubble_fraction, bubble_ratio, chain_bound, closed_form};
pub use in_flight::in_flight_vectors;
pub use interleaved::{LANE_MARGIN, LANES, Lanes, MOST_EXACT, MOST_LANE_PASSES};
pub use simulator::Simulator;

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
