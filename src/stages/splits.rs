//! The short, fixed list of completions for several chunks per rank.
//!
//! No bound on a single rank sees how passes of unequal chunks make ranks wait for one another, and a
//! search cannot simulate every split of every layout. What the fastest splits have in common: all chunks
//! hold the same number of layers or one more, those with one more are neighbours, and the last chunk,
//! where the pipeline turns round, holds fewer by about what the head takes. Among those, three are
//! listed, beside the even split: with the least load of the fullest rank, the ones whose longer chunks
//! come first and last, and the one where in addition the fewest ranks have a longer chunk, as near the
//! middle as possible. On 140 pipelines of 2 to 16 ranks, 2 to 20 chunks per rank and heads of 0 to 3
//! layers, the fastest of the four was 0.3 % slower on average than the fastest of the whole family; the
//! even split alone, 3.1 %.
//!
//! Each split takes the recomputation with which it fits and has the least lower bound on the makespan.
//! Where no split fits with one that might take less, one more is listed, in which ranks that lack memory
//! hold fewer layers.

use super::chunked::{ChunkWork, Chunked, Policy};
use super::tables::Tables;
use super::{Assignment, Block, Choice, Freedom, Problem, Way};
use crate::units::Picos;

/// Splits of a problem over several chunks per rank, whatever the memory. Problems that differ in held bytes
/// alone share them.
#[derive(Debug, Clone, Default)]
pub struct Splits {
    list: Vec<Split>,
    uneven: bool,
}

#[derive(Debug, Clone)]
struct Split {
    layers: Vec<u32>,
    /// Lower bounds on the makespan, once computed.
    bounds: Vec<(Choice, Picos)>,
}

/// Recomputation of one micro-batch on all ranks together at least, and what recomputes so.
type Priced = (u64, Policy);

impl Splits {
    pub(super) fn new(problem: &Problem, tables: &Tables, work: &mut ChunkWork, uneven: bool) -> Self {
        let mut list: Vec<Split> = Vec::new();
        let mut add = |layers: Vec<u32>| {
            let placed = layers.iter().sum::<u32>() == tables.layers;
            let enough = layers.iter().enumerate().all(|(k, &n)| n >= problem.least(k));
            if placed && enough && list.iter().all(|split| split.layers != layers) {
                list.push(Split { bounds: Vec::new(), layers });
            }
        };
        add(problem.even_layers());
        if uneven {
            let one_kind = tables.totals.iter().filter(|&&n| n > 0).count() == 1;
            let found = if one_kind && problem.fixed.iter().all(|fixed| !fixed.closed) {
                banded(problem, tables)
            } else {
                Chunked::new(problem, tables, work).level_splits()
            };
            found.into_iter().for_each(add);
        }
        Self { list, uneven }
    }

    /// The completions of one problem whose lower bounds are `most` or less: every split with the
    /// recomputation that fits and has the least bound, and a split relieved where memory lacks.
    pub(super) fn completions(
        &mut self,
        problem: &Problem,
        tables: &Tables,
        work: &mut ChunkWork,
        most: Picos,
    ) -> Vec<Assignment> {
        let longest = self.list.iter().flat_map(|split| &split.layers).copied().max().unwrap_or(0);
        let mut policies = policies(problem, tables, longest);
        // What takes longer without waiting does so with it.
        policies.retain(|&(extra, _)| busy(problem, tables, extra) <= most);
        let mut found = Vec::new();
        // Least bound of all splits, and which policies fit on some split.
        let (mut least, mut fitting) = (Picos(u64::MAX), vec![false; policies.len()]);
        for split in &mut self.list {
            let fastest = split.fastest(problem, tables, work, &policies, &mut fitting);
            let Some((bound, policy)) = fastest else { continue };
            least = least.min(bound);
            if bound <= most {
                found.push(Chunked::new(problem, tables, work).assignment(split.layers.clone(), policy));
            }
        }
        // Without even the even split there are more chunks than layers.
        if self.uneven && !self.list.is_empty() {
            let mut fitting = fitting.iter();
            policies.retain(|&(extra, _)| {
                !fitting.next().is_some_and(|fits| *fits) && busy(problem, tables, extra) < least
            });
            found.extend(relieved(problem, tables, work, &policies, least, most));
        }
        found
    }
}

/// Every policy that a problem offers, the least recomputation first.
fn policies(problem: &Problem, tables: &Tables, longest: u32) -> Vec<Priced> {
    if problem.freedom == Freedom::PerStage {
        return vec![(0, Policy::Cheapest)];
    }
    let none = super::Fixed::default();
    let extra = |mode: u16| tables.in_mode(problem, &none, &tables.totals, mode).extra;
    let modes = tables.modes.iter().map(|&mode| (extra(mode), Policy::All(Choice::Mode(mode))));
    let mut list: Vec<Priced> = modes.collect();
    if let Some(Block { rest, counts: (fewest, most), .. }) = problem.block {
        let counts = fewest..=most.min(longest.max(fewest));
        list.extend(counts.map(|n| (extra(rest), Policy::All(Choice::Block(n)))));
    }
    list.sort_unstable();
    list
}

impl Split {
    /// Of the policies that fit, the one with the least bound on the makespan. Notes which fit; not of
    /// those that certainly take longer.
    fn fastest(
        &mut self,
        problem: &Problem,
        tables: &Tables,
        work: &mut ChunkWork,
        policies: &[Priced],
        fitting: &mut [bool],
    ) -> Option<(Picos, Policy)> {
        let ranks = problem.pipeline.ranks as usize;
        let mut search = Chunked::new(problem, tables, work);
        search.set_cuts(&self.layers);
        // The rank that lacked memory last lacks it first.
        let mut lacking = 0;
        let mut best: Option<(Picos, Policy)> = None;
        for (&(extra, policy), noted) in policies.iter().zip(fitting) {
            if best.is_some_and(|(bound, _)| bound < busy(problem, tables, extra)) {
                break;
            }
            let no_better = |(_, other)| policy > other && tables.recomputes_no_less(problem, policy, other);
            if best.is_some_and(no_better) {
                continue;
            }
            let fails = std::iter::once(lacking).chain(0..ranks);
            let fails = { fails }.find(|&rank| search.rank(rank, policy).excess > 0);
            if let Some(rank) = fails {
                lacking = rank;
                continue;
            }
            *noted = true;
            let bound = self.bound(&mut search, policy)?;
            if best.is_none_or(|least| (bound, policy) < least) {
                best = Some((bound, policy));
            }
        }
        best
    }

    /// The lower bound on the makespan.
    fn bound(&mut self, search: &mut Chunked<'_>, policy: Policy) -> Option<Picos> {
        let Policy::All(choice) = policy else { return search.bound(&self.layers, policy) };
        if let Some((_, bound)) = self.bounds.iter().find(|(known, _)| *known == choice) {
            return Some(*bound);
        }
        let bound = search.bound(&self.layers, policy)?;
        self.bounds.push((choice, bound));
        Some(bound)
    }
}

/// What an average rank is busy with at least, where one micro-batch recomputes for `extra` on all ranks
/// together: a little less, so that it is below every relaxed bound whatever their rounding.
fn busy(problem: &Problem, tables: &Tables, extra: u64) -> Picos {
    let pipeline = &*problem.pipeline;
    let ends: u64 = problem.fixed.iter().map(|fixed| fixed.forward.0 + fixed.backward.0).sum();
    let all = tables.time(0, tables.layers) + ends + extra;
    let busy = all * pipeline.micro_batches / u64::from(pipeline.ranks);
    Picos(busy.saturating_sub(2 + (busy >> 28)))
}

/// A split in which ranks that lack memory hold fewer layers: of the `policies`, in the order of their
/// relaxed bounds, the first that can be made to fit and may stay below `least` and not above `most`.
fn relieved(
    problem: &Problem,
    tables: &Tables,
    work: &mut ChunkWork,
    policies: &[Priced],
    least: Picos,
    most: Picos,
) -> Option<Assignment> {
    if policies.is_empty() {
        return None;
    }
    let mut relaxation = std::mem::take(&mut work.relaxation);
    relaxation.prepare(problem);
    // Of whole layers all counts share a bound.
    let mut block = None;
    let mut bound = |policy: Policy| match policy {
        Policy::All(Choice::Mode(mode)) => relaxation.bound_of(problem, Way::Mode(mode)),
        Policy::All(Choice::Block(_)) => {
            *block.get_or_insert_with(|| relaxation.bound_of(problem, Way::Block))
        }
        Policy::Cheapest => relaxation.bound_of(problem, Way::PerRank),
    };
    let bounds = policies.iter().map(|&(_, policy)| (bound(policy).unwrap_or(Picos(u64::MAX)), policy));
    let mut bounds: Vec<(Picos, Policy)> =
        bounds.filter(|(bound, _)| *bound < least && *bound <= most).collect();
    bounds.sort_unstable();
    work.relaxation = relaxation;
    let relief = Relief::new(problem, tables);
    bounds.into_iter().find_map(|(_, policy)| relief.split(work, policy))
}

/// Time of one layer of a model of one kind, and of every chunk's ends.
fn layer_and_ends(problem: &Problem, tables: &Tables) -> (u64, Vec<u64>) {
    let kind = tables.totals.iter().position(|&n| n > 0).unwrap_or(0);
    let layer = problem.kinds[kind].forward.0 + problem.kinds[kind].backward.0;
    (layer, problem.fixed.iter().map(|fixed| fixed.forward.0 + fixed.backward.0).collect())
}

/// What makes one split better than another: least first.
type Key = (u64, u64, u64);

/// Keeps the best split by three measures.
#[derive(Debug)]
pub(super) struct Pick<T> {
    best: [Option<(Key, T)>; 3],
}

impl<T> Default for Pick<T> {
    fn default() -> Self {
        Self { best: [None, None, None] }
    }
}

impl<T: Clone> Pick<T> {
    /// `load` of the fullest rank, `waits` of the others for it, position of the longer chunks and how
    /// far they are from the middle.
    pub fn offer(&mut self, load: u64, waits: u64, start: u64, off_middle: u64, split: &T) {
        let keys = [(load, start, 0), (load, u64::MAX - start, 0), (load + waits, off_middle, start)];
        for (best, key) in self.best.iter_mut().zip(keys) {
            if best.as_ref().is_none_or(|(known, _)| key < *known) {
                *best = Some((key, split.clone()));
            }
        }
    }
    pub fn into_list(self) -> Vec<T> {
        self.best.into_iter().flatten().map(|(_, split)| split).collect()
    }
}

/// Splits of a model of one kind of layers: `base` or one more per chunk, fewer in the last.
fn banded(problem: &Problem, tables: &Tables) -> Vec<Vec<u32>> {
    let (chunks, layers) = (problem.chunks(), u64::from(tables.layers));
    let pipeline = &*problem.pipeline;
    let (layer, ends) = layer_and_ends(problem, tables);
    let (k, last) = (chunks as u64, chunks - 1);
    if layer == 0 || chunks < 2 {
        return Vec::new();
    }
    let least = u64::from(problem.min_layers);
    let average = (ends.iter().sum::<u64>() + layers * layer) / k;
    let fitting = average.saturating_sub(ends[last]) / layer;
    let rank_of = |chunk: usize| pipeline.rank_of_chunk[chunk] as usize;
    let turning = rank_of(last);
    let m = pipeline.micro_batches;
    let mut pick: Pick<(u64, u64, u64, usize)> = Pick::default();
    let mut base_load = vec![0; pipeline.ranks as usize];
    let mut extras = vec![0_u64; pipeline.ranks as usize];
    for end in fitting.saturating_sub(1).max(least)..=(fitting + 2).min(layers) {
        let (base, more) = ((layers - end) / (k - 1), ((layers - end) % (k - 1)) as usize);
        if base < least {
            continue;
        }
        base_load.fill(0);
        for (chunk, end_time) in ends.iter().enumerate() {
            base_load[rank_of(chunk)] += end_time + layer * if chunk == last { end } else { base };
        }
        extras.fill(0);
        (0..more).for_each(|chunk| extras[rank_of(chunk)] += 1);
        for start in 0..=last - more {
            if start > 0 {
                if more == 0 {
                    break;
                }
                extras[rank_of(start - 1)] -= 1;
                extras[rank_of(start + more - 1)] += 1;
            }
            let load = base_load.iter().zip(&extras).map(|(load, &n)| load + n * layer).max().unwrap_or(0);
            let longer = extras.iter().enumerate().filter(|&(rank, &n)| rank != turning && n > 0).count();
            let waits = layer * ((u64::from(pipeline.ranks) - 1) * base + longer as u64);
            let off_middle = (2 * start + more).abs_diff(last) as u64;
            pick.offer(m * load, waits, start as u64, off_middle, &(end, base, more as u64, start));
        }
    }
    let split = |(end, base, more, start): (u64, u64, u64, usize)| {
        let band = start..start + more as usize;
        let layers = |chunk: usize| if chunk == last { end } else { base + u64::from(band.contains(&chunk)) };
        (0..chunks).map(|chunk| layers(chunk) as u32).collect()
    };
    pick.into_list().into_iter().map(split).collect()
}

/// Splits in which ranks that lack memory hold fewer layers, all layers taken for average ones.
struct Relief<'a> {
    problem: &'a Problem,
    tables: &'a Tables,
    /// Time of an average layer.
    layer: u64,
    /// Time of every chunk beside as many average layers as it has, all of it higher by the same.
    ends: Vec<u64>,
    /// Bytes left for layers, by rank.
    free: Vec<u64>,
    /// Micro-batches in flight on an average chunk when most are, by rank, times the chunks per rank.
    in_flight: Vec<u64>,
}

impl<'a> Relief<'a> {
    fn new(problem: &'a Problem, tables: &'a Tables) -> Self {
        let layers = u64::from(tables.layers).max(1);
        let layer = tables.time(0, tables.layers) / layers;
        // How much longer the layers of every chunk of the even split take than average ones.
        let mut from = 0;
        let longer: Vec<i64> = problem
            .even_layers()
            .iter()
            .map(|&n| {
                from += n;
                tables.time(from - n, from) as i64 - (u64::from(n) * layer) as i64
            })
            .collect();
        let least = longer.iter().copied().min().unwrap_or(0);
        let ends = problem.fixed.iter().zip(longer);
        let ends =
            ends.map(|(fixed, longer)| fixed.forward.0 + fixed.backward.0 + longer.abs_diff(least)).collect();
        let single = problem.pipeline.chunks_per_rank == 1;
        let (mut free, mut in_flight) = (Vec::new(), Vec::new());
        for order in &problem.pipeline.orders {
            let states = order.in_flight.chunks_exact(order.chunks.len());
            let totals = states.clone().map(|counts| counts.iter().map(|&n| u64::from(n)).sum());
            in_flight.push(totals.max().unwrap_or(0));
            let mut used = problem.rank_bytes.0;
            for (at, &k) in order.chunks.iter().enumerate() {
                let fixed = &problem.fixed[k as usize];
                let most = states.clone().map(|counts| u64::from(counts[at])).max().unwrap_or(0);
                used += fixed.held.0 + if single { most * fixed.kept.0 } else { 0 };
            }
            free.push(problem.limit.0.saturating_sub(used));
        }
        Self { problem, tables, layer, ends, free, in_flight }
    }

    /// Bytes that an average layer holds, and keeps per micro-batch under a policy.
    fn bytes(&self, policy: Policy) -> (u64, u64) {
        let (problem, tables) = (self.problem, self.tables);
        let least = |kind: usize, modes: &mut dyn Iterator<Item = u16>| {
            let kept = modes.map(|mode| {
                let group = u64::from(problem.modes[usize::from(mode)].group);
                tables.mode(mode)[kind].kept / group.max(1)
            });
            kept.min().unwrap_or(0)
        };
        let longest = problem.even_layers().into_iter().max().unwrap_or(1).max(1) + 1;
        let kept = |kind: usize| match (policy, problem.block) {
            (Policy::All(Choice::Mode(mode)), _) => least(kind, &mut std::iter::once(mode)),
            (Policy::All(Choice::Block(n)), Some(block)) => {
                let (full, rest) = (tables.mode(block.full)[kind].kept, tables.mode(block.rest)[kind].kept);
                let n = u64::from(n.min(longest));
                (n * full.min(rest) + (u64::from(longest) - n) * rest) / u64::from(longest)
            }
            _ => least(kind, &mut (0..problem.modes.len() as u16)),
        };
        let (mut held, mut all_kept) = (0, 0);
        for (kind, &n) in tables.totals[..tables.kinds].iter().enumerate().filter(|(_, n)| **n > 0) {
            held += u64::from(n) * problem.kinds[kind].held.0;
            all_kept += u64::from(n) * kept(kind);
        }
        let layers = u64::from(tables.layers).max(1);
        (held / layers, all_kept / layers)
    }

    /// A split that fits under a policy, if one is found.
    fn split(&self, work: &mut ChunkWork, policy: Policy) -> Option<Assignment> {
        let (problem, tables) = (self.problem, self.tables);
        let (pipeline, layer, ends) = (&*problem.pipeline, self.layer, &self.ends);
        let mut search = Chunked::new(problem, tables, work);
        // About the most layers that each rank can hold, rather too many.
        let (held, kept) = self.bytes(policy);
        let most = |(&free, &in_flight): (&u64, &u64)| {
            let each = held + kept * in_flight / u64::from(pipeline.chunks_per_rank.max(1));
            let most = (free + each / 2).checked_div(each).unwrap_or(u64::from(tables.layers));
            most.min(u64::from(tables.layers)) as u32
        };
        let mut caps: Vec<u32> = self.free.iter().zip(&self.in_flight).map(most).collect();
        let ranks = pipeline.ranks as usize;
        let mut counts = vec![0; problem.chunks()];
        let mut loads = vec![0; ranks];
        let mut totals = vec![0; ranks];
        // Every round lowers a ceiling by what a rank lacks.
        for _ in 0..8 {
            if caps.iter().map(|&cap| u64::from(cap)).sum::<u64>() < u64::from(tables.layers) {
                return None;
            }
            for (rank, order) in pipeline.orders.iter().enumerate() {
                totals[rank] = order.chunks.iter().map(|&k| problem.least(k as usize)).sum();
                let own: u64 = order.chunks.iter().map(|&k| ends[k as usize]).sum();
                loads[rank] = own + u64::from(totals[rank]) * layer;
            }
            if totals.iter().zip(&caps).any(|(total, cap)| total > cap) {
                return None;
            }
            // As far as all ranks stay below one level; the rest one by one.
            let left = u64::from(tables.layers.checked_sub(totals.iter().sum::<u32>())?) * layer;
            let mut level = u64::MAX;
            loop {
                let below = loads.iter().filter(|&&load| load < level);
                let (count, sum) = below.fold((0, 0), |(count, sum), load| (count + 1, sum + load));
                let next = (sum + left).checked_div(count).unwrap_or(0);
                if next >= level {
                    break;
                }
                level = next;
            }
            for rank in 0..ranks {
                let more = level.saturating_sub(loads[rank]).checked_div(layer).unwrap_or(0);
                let more = more.min(u64::from(caps[rank] - totals[rank])) as u32;
                totals[rank] += more;
                loads[rank] += u64::from(more) * layer;
            }
            for _ in totals.iter().sum::<u32>()..tables.layers {
                let open = (0..ranks).filter(|&rank| totals[rank] < caps[rank]);
                let next = open.min_by_key(|&rank| loads[rank])?;
                totals[next] += 1;
                loads[next] += layer;
            }
            for (rank, order) in pipeline.orders.iter().enumerate() {
                spread(totals[rank], order.chunks.as_slice(), ends, layer, problem, &mut counts);
            }
            search.set_cuts(&counts);
            let mut fits = true;
            for rank in 0..ranks {
                let excess = search.rank(rank, policy).excess;
                if excess > 0 {
                    fits = false;
                    let share = search.need(rank, excess) / u64::from(totals[rank].max(1));
                    let fewer = (excess / share.max(1)).clamp(1, u64::from(tables.layers));
                    caps[rank] = totals[rank].checked_sub(fewer as u32)?;
                }
            }
            if fits {
                return Some(search.assignment(counts, policy));
            }
        }
        None
    }
}

/// Spreads a rank's layers over its chunks: chunks of equal time, longer ones in the middle.
fn spread(total: u32, chunks: &[u32], ends: &[u64], layer: u64, problem: &Problem, counts: &mut [u32]) {
    let v = chunks.len() as u32;
    let mut placed = 0;
    for &k in chunks {
        counts[k as usize] = problem.least(k as usize);
        placed += counts[k as usize];
    }
    let from_middle = |at: usize| (2 * at as u32 + 1).abs_diff(v);
    for _ in placed..total {
        let time = |k: u32| (ends[k as usize] + layer / 2) / layer.max(1) + u64::from(counts[k as usize]);
        let open = (0..chunks.len()).filter(|&at| !problem.fixed[chunks[at] as usize].closed);
        if let Some(at) = open.min_by_key(|&at| (time(chunks[at]), from_middle(at), at)) {
            counts[chunks[at] as usize] += 1;
        }
    }
}
