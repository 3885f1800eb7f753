//! Numbers near those of a job that more degrees divide, and what they are good for.

use std::collections::BTreeSet;
use std::fmt;

use super::output::{self, Section};
use super::progress::Bar;
use crate::planner::Task;
use crate::search::{Found, Request, Stop};
use crate::spec::job::Job;
use crate::units::Picos;

/// Which number of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Number {
    Gpus,
    GlobalBatch,
    SequenceLength,
}

/// A number near that of a job which divides better.
#[derive(Debug, Clone)]
pub(crate) struct BetterNumber {
    pub(crate) number: Number,
    pub(crate) value: u32,
    /// The best plan with it.
    pub(crate) plan: String,
    pub(crate) step: Picos,
    /// By what share each GPU does more.
    pub(crate) gain: f64,
}

impl fmt::Display for BetterNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { number, value, plan, step, gain } = self;
        match number {
            Number::Gpus => write!(f, "{value} GPUs"),
            Number::GlobalBatch => write!(f, "batches of {value}"),
            Number::SequenceLength => write!(f, "sequences of {value} tokens"),
        }?;
        let (step, more) = (output::seconds(step.seconds()), output::percent(*gain));
        write!(f, " divide better: {plan} ({step} a step, {more} more tokens per GPU)")
    }
}

impl Number {
    /// As in the options of a job and the fields of what is printed for programs.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Gpus => "gpus",
            Self::GlobalBatch => "global_batch_size",
            Self::SequenceLength => "sequence_length",
        }
    }

    fn of(self, job: &mut Job) -> &mut u32 {
        match self {
            Self::Gpus => &mut job.gpus,
            Self::GlobalBatch => &mut job.global_batch_size,
            Self::SequenceLength => &mut job.sequence_length,
        }
    }
}

/// Whether a number has no prime factor above 7.
pub(crate) fn smooth(mut n: u32) -> bool {
    for prime in [2, 3, 5, 7] {
        while n > 0 && n % prime == 0 {
            n /= prime;
        }
    }
    n == 1
}

/// Whether many degrees divide a number: one of few odd factors, or of so many twos beside them.
fn divides(n: u32, twos: u32) -> bool {
    /// Up to here odd factors are ordinary.
    const ORDINARY: u32 = 8;
    let own = n.trailing_zeros();
    smooth(n) && (own >= twos || n >> own <= ORDINARY)
}

/// Numbers of nodes, of sequences and of their tokens that few degrees divide have neighbours: the nearest below and above whose
/// GPUs do more each.
pub(crate) fn better_numbers(
    task: &Task,
    section: &Section,
    request: &Request,
    bar: &Bar,
) -> Vec<BetterNumber> {
    /// By what share more another number is worth a word.
    const WORTH: f64 = 0.01;
    // Where there is no plan, remedies say so.
    // Layers of other plans are not moved: what is compared are splits as ranked.
    let Some(best) = section.answer.found.first().map(Found::ranked_step) else { return Vec::new() };
    let each = |job: &Job, step: Picos| {
        let tokens = f64::from(job.global_batch_size) * f64::from(job.sequence_length);
        tokens / f64::from(job.gpus) / step.seconds().0
    };
    let own = each(&task.job, best);
    let better = |(number, value): (Number, u32)| {
        let mut task = task.clone();
        *number.of(&mut task.job) = value;
        let request = Request { top: 1, even_stages: request.even_stages, ..Request::default() };
        let answer = task.prepare().search(&request, bar);
        let found = answer.found.into_iter().next().filter(|_| answer.stop == Stop::Proved)?;
        let step = found.prediction.step();
        let gain = each(&task.job, step) / own - 1.0;
        (gain > WORTH).then(|| BetterNumber { number, value, plan: found.plan.to_string(), step, gain })
    };
    let cluster = &task.machine.cluster;
    let given = |&(number, value): &(Number, u32)| number != Number::Gpus || cluster.gives(value);
    candidates(&task.job, cluster.gpus_per_node).into_iter().filter(given).filter_map(better).collect()
}

/// What is tried instead of the numbers of a job that few degrees divide.
fn candidates(job: &Job, per_node: u32) -> Vec<(Number, u32)> {
    /// Twos beside many odd factors without which others are tried, of nodes and of batches, and that these have at least.
    const OF_NODES: u32 = 2;
    const OF_BATCH: u32 = 4;
    const OF_BETTER_BATCH: u32 = 6;
    /// Twos of a sequence, which tensor and context parallelism divide: many are twice 8 x 2. Beside the odd factors of GPUs
    /// that divide badly fewer are enough: context parallelism takes those.
    const OF_SEQUENCE: u32 = 5;
    const OF_BETTER_SEQUENCE: u32 = 8;
    /// By what share of it another number is larger or smaller at most: what is far is another job.
    const FAR: f64 = 0.15;
    let &Job { gpus, global_batch_size: batch, sequence_length: sequence, .. } = job;
    /// The nearest numbers on either side that are good, if any near one is.
    fn beside(own: u32, good: impl Fn(u32) -> bool) -> impl Iterator<Item = u32> {
        let near = |n: &u32| is_near(own, *n);
        let below = (1..own).rev().take_while(near).find(|&n| good(n));
        let above = (own.saturating_add(1)..=u32::MAX).take_while(near).find(|&n| good(n));
        [below, above].into_iter().flatten()
    }
    fn is_near(own: u32, n: u32) -> bool {
        f64::from(n.abs_diff(own)) <= FAR * f64::from(own)
    }
    let mut list = Vec::new();
    let nodes = gpus / per_node;
    let odd_nodes = gpus % per_node == 0 && nodes > 1 && !divides(nodes, OF_NODES);
    if odd_nodes {
        let below = (1..nodes).rev().find(|&n| divides(n, OF_NODES));
        let above = (nodes + 1..nodes.saturating_mul(2)).find(|&n| divides(n, OF_NODES));
        list.extend([below, above].into_iter().flatten().map(|nodes| (Number::Gpus, nodes * per_node)));
    }
    if batch % gpus != 0 && !divides(batch, OF_BATCH) {
        let whole = [Some(batch - batch % gpus), batch.checked_next_multiple_of(gpus)];
        let whole = whole.into_iter().flatten().filter(|&n| is_near(batch, n));
        let near: BTreeSet<u32> = beside(batch, |n| divides(n, OF_BETTER_BATCH)).chain(whole).collect();
        list.extend(near.into_iter().map(|batch| (Number::GlobalBatch, batch)));
    }
    // Lengths of packed documents are as they are.
    let mut lengths: BTreeSet<u32> = BTreeSet::new();
    if sequence.trailing_zeros() < OF_SEQUENCE {
        lengths.extend(beside(sequence, |n| n.trailing_zeros() >= OF_BETTER_SEQUENCE));
    }
    let odd = gpus >> gpus.trailing_zeros();
    if odd_nodes && sequence % odd != 0 {
        lengths.extend(beside(sequence, |n| n.trailing_zeros() >= OF_SEQUENCE && n % odd == 0));
    }
    lengths.retain(|_| job.packed.is_none());
    list.extend(lengths.into_iter().map(|sequence| (Number::SequenceLength, sequence)));
    list
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::planner::Task;

    #[test]
    fn numbers_that_divide_badly_have_neighbours() {
        let of = |gpus, batch, sequence| {
            let task = Task::shipped("llama3.1-8b", "dgx-h100", gpus, batch, sequence).unwrap();
            candidates(&task.job, 8)
        };
        assert_eq!(of(64, 512, 4096), []);
        assert_eq!(of(64, 512, 4097), [(Number::SequenceLength, 4096), (Number::SequenceLength, 4352)]);
        let lengths = [8096, 8448].map(|length| (Number::SequenceLength, length));
        assert_eq!(of(88, 880, 8192)[..2], [(Number::Gpus, 80), (Number::Gpus, 96)]);
        assert_eq!(of(88, 880, 8192)[2..], lengths);
        assert_eq!(of(64, 500, 8192), [(Number::GlobalBatch, 448), (Number::GlobalBatch, 512)]);
        // 63 nodes: 4,032 tokens are 2,016 times two.
        let lengths = of(504, 504 * 64, 4096);
        assert!(lengths.contains(&(Number::SequenceLength, 4032)), "{lengths:?}");
        // What is far is another job.
        assert_eq!(of(64, 64, 101), []);
    }
}
