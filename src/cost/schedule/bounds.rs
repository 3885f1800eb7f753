//! Times of a schedule in closed form: what no order of its lists can beat, and what textbooks say.

use super::{Load, Shape};
use crate::plan::Schedule;
use crate::units::Picos;

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
