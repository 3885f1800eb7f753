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
//! Each split takes the cheapest recomputation with which it fits. Where memory makes that a dear one,
//! one more split is listed, in which ranks that lack memory hold fewer layers.

use super::chunked::{ChunkWork, Chunked, Policy};
use super::relax::ANY;
use super::tables::Tables;
use super::{Assignment, Choice, Freedom, Problem, measure, measure_parts};
use crate::units::Picos;

/// Splits of a problem over several chunks per rank, whatever the memory, and what every way to
/// recompute needs beside what layers hold. Problems that differ in held bytes alone share them.
#[derive(Debug, Clone, Default)]
pub struct Splits {
    list: Vec<Split>,
    uneven: bool,
}

#[derive(Debug, Clone)]
struct Split {
    layers: Vec<u32>,
    /// Cheapest first.
    ways: Vec<Way>,
}

/// One way to recompute, the same on all ranks.
#[derive(Debug, Clone)]
struct Way {
    choice: Choice,
    /// Time of the recomputation of one micro-batch on all ranks together.
    extra: u64,
    /// Once computed: bytes of every rank beside those held for the whole step, empty if it is no way.
    rest: Option<Vec<u64>>,
    /// Once computed: the lower bound on the makespan.
    bound: Option<Picos>,
}

/// Completions of one problem.
#[derive(Debug, Clone, Default)]
pub struct Completions {
    /// Those that could matter.
    pub list: Vec<Assignment>,
    /// Whether any fits, or might if it mattered.
    pub fits: bool,
}

impl Splits {
    pub(super) fn new(problem: &Problem, tables: &Tables, work: &mut ChunkWork, uneven: bool) -> Self {
        let mut list: Vec<Split> = Vec::new();
        let mut add = |layers: Vec<u32>| {
            let placed = layers.iter().sum::<u32>() == tables.layers;
            let enough = layers.iter().enumerate().all(|(k, &n)| n >= problem.least(k));
            if placed && enough && list.iter().all(|split| split.layers != layers) {
                list.push(Split { ways: Vec::new(), layers });
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

    /// Time of the cheapest recomputation of the first split.
    fn least_extra(&self) -> u64 {
        self.list.first().and_then(|split| split.ways.first()).map_or(0, |way| way.extra)
    }

    /// The completions of one problem whose lower bounds are worth a simulation.
    pub(super) fn completions(
        &mut self,
        problem: &Problem,
        tables: &Tables,
        work: &mut ChunkWork,
        worth: &dyn Fn(Picos) -> bool,
    ) -> Completions {
        let mut found = Completions::default();
        let mut least_extra = u64::MAX;
        for (at, split) in self.list.iter_mut().enumerate() {
            if problem.freedom == Freedom::PerStage && self.uneven && at > 0 {
                let layers = split.layers.clone();
                let mut search = Chunked::new(problem, tables, work);
                if let Some(assignment) = search.assignment(layers, Policy::Cheapest) {
                    found.fits = true;
                    found.list.push(assignment);
                }
                continue;
            }
            let Some((choice, extra, bound)) = split.cheapest(problem, tables, work) else { continue };
            found.fits = true;
            least_extra = least_extra.min(extra);
            if worth(bound) {
                let recompute = vec![choice; split.layers.len()];
                found.list.push(Assignment { layers: split.layers.clone(), recompute });
            }
        }
        // The cheapest recomputation of all leaves nothing to relieve.
        // Without even the even split there are more chunks than layers.
        if self.uneven && !self.list.is_empty() && (!found.fits || least_extra > self.least_extra()) {
            let (relieved, cut) = relieved(problem, tables, work, least_extra, worth);
            found.fits |= cut || relieved.is_some();
            found.list.extend(relieved);
        }
        found
    }
}

impl Split {
    /// The cheapest way to recompute, the same on all ranks, that fits; its recomputation, and a lower
    /// bound on the makespan.
    fn cheapest(
        &mut self,
        problem: &Problem,
        tables: &Tables,
        work: &mut ChunkWork,
    ) -> Option<(Choice, u64, Picos)> {
        if self.ways.is_empty() {
            self.ways = ways(problem, tables, &self.layers);
        }
        let held = held_by_rank(problem, &self.layers);
        let (evaluation, trial) = work.trial();
        trial.layers.clone_from(&self.layers);
        let everywhere = |trial: &mut Assignment, choice: Choice| {
            trial.recompute.clear();
            trial.recompute.resize(trial.layers.len(), choice);
        };
        let at = self.ways.iter_mut().position(|way| {
            let rest = way.rest.get_or_insert_with(|| {
                everywhere(trial, way.choice);
                match measure_parts(problem, trial, evaluation) {
                    Ok(()) => evaluation.memory.iter().zip(&held).map(|(all, held)| all.0 - held).collect(),
                    Err(_) => Vec::new(),
                }
            });
            !rest.is_empty() && held.iter().zip(&*rest).all(|(held, rest)| held + rest <= problem.limit.0)
        })?;
        let way = &mut self.ways[at];
        let bound = way.bound.get_or_insert_with(|| {
            everywhere(trial, way.choice);
            measure(problem, trial, evaluation).map_or(Picos::ZERO, |()| evaluation.bound)
        });
        Some((way.choice, way.extra, *bound))
    }
}

/// Ways to recompute a whole split, cheapest first.
fn ways(problem: &Problem, tables: &Tables, layers: &[u32]) -> Vec<Way> {
    let mut from = 0;
    let intervals: Vec<(u32, u32)> = layers
        .iter()
        .map(|&n| {
            from += n;
            (from - n, from)
        })
        .collect();
    let none = super::Fixed::default();
    let mut ways: Vec<Way> = Vec::new();
    for &mode in &tables.modes {
        let extra = tables.in_mode(problem, &none, &tables.totals, mode).extra;
        ways.push(Way { choice: Choice::Mode(mode), extra, rest: None, bound: None });
    }
    if let Some(block) = problem.block {
        let longest = layers.iter().copied().max().unwrap_or(0);
        for n in block.counts.0..=block.counts.1.min(longest.max(block.counts.0)) {
            let extra = intervals.iter().map(|&at| tables.in_block(problem, &none, at, n).extra).sum();
            ways.push(Way { choice: Choice::Block(n), extra, rest: None, bound: None });
        }
    }
    ways.sort_by_key(|way| way.extra);
    ways
}

/// Bytes that every rank holds for the whole step under given layer counts.
fn held_by_rank(problem: &Problem, layers: &[u32]) -> Vec<u64> {
    let mut held = vec![0; problem.pipeline.ranks as usize];
    let (mut run, mut used) = (0, 0);
    for (k, &count) in layers.iter().enumerate() {
        let rank = &mut held[problem.pipeline.rank_of_chunk[k] as usize];
        *rank += problem.fixed[k].held.0;
        let mut left = count;
        while left > 0 {
            let this = &problem.runs[run];
            let take = left.min(this.count - used);
            *rank += u64::from(take) * problem.kinds[usize::from(this.kind)].held.0;
            left -= take;
            used += take;
            if used == this.count {
                (run, used) = (run + 1, 0);
            }
        }
    }
    held
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

/// A split in which ranks that lack memory hold fewer layers: of the ways to recompute that take less than
/// `least_extra`, in the order of their relaxed bounds, the first that can be made to fit. Bounds that are
/// not worth a simulation end the search, as the second value says; a completion behind them is not worth
/// one either.
fn relieved(
    problem: &Problem,
    tables: &Tables,
    work: &mut ChunkWork,
    least_extra: u64,
    worth: &dyn Fn(Picos) -> bool,
) -> (Option<Assignment>, bool) {
    let least: u32 = (0..problem.chunks()).map(|chunk| problem.least(chunk)).sum();
    if tables.layers < least || problem.fixed.iter().all(|fixed| fixed.closed) {
        return (None, false);
    }
    let even = problem.even_layers();
    let mut policies: Vec<(Picos, u64, Policy)> = Vec::new();
    let mut cut = false;
    work.relaxation.prepare(problem);
    match problem.freedom {
        Freedom::PerStage => {
            if let Some(bound) = work.relaxation.lower_bound(problem, ANY) {
                policies.push((bound, 0, Policy::Cheapest));
            }
        }
        Freedom::Global => {
            // Of whole layers all counts share a bound.
            let mut block = None;
            for way in ways(problem, tables, &even).iter().take_while(|way| way.extra < least_extra) {
                if !worth(busy(problem, tables, way.extra)) {
                    // Nor is any that recomputes more.
                    cut = true;
                    break;
                }
                let bound = match way.choice {
                    Choice::Mode(_) => work.relaxation.bound_of(problem, way.choice),
                    Choice::Block(_) => {
                        *block.get_or_insert_with(|| work.relaxation.bound_of(problem, way.choice))
                    }
                };
                if let Some(bound) = bound {
                    policies.push((bound, way.extra, Policy::All(way.choice)));
                }
            }
        }
    }
    policies.sort_by_key(|&(bound, extra, _)| (bound, extra));
    let one_kind = tables.totals.iter().filter(|&&n| n > 0).count() == 1;
    let one_kind = one_kind && problem.fixed.iter().all(|fixed| !fixed.closed);
    let room = Room::new(problem);
    let (layer, ends) = layer_and_ends(problem, tables);
    let mut search = Chunked::new(problem, tables, work);
    let mut caps = Vec::new();
    let mut fit = |search: &mut Chunked<'_>, policy: Policy| {
        if one_kind {
            room.caps(problem, tables, policy, &even, &mut caps);
            relieve(search, policy, layer, &ends, &mut caps)
        } else if room.may_suffice(problem, tables, policy, &even) {
            search.lower_ceilings(policy)
        } else {
            None
        }
    };
    let worthy = policies.iter().position(|&(bound, ..)| !worth(bound)).unwrap_or(policies.len());
    cut |= worthy < policies.len();
    policies.truncate(worthy);
    let relieved = policies.into_iter().find_map(|(_, _, policy)| {
        let layers = fit(&mut search, policy)?;
        search.assignment(layers, policy)
    });
    (relieved, cut)
}

/// What an average rank is busy with at least, where one micro-batch recomputes for `extra` on all ranks
/// together: a little less, so that it is below every relaxed bound whatever their rounding.
fn busy(problem: &Problem, tables: &Tables, extra: u64) -> Picos {
    let pipeline = &*problem.pipeline;
    let layers = tables.totals.iter().zip(&problem.kinds);
    let layers: u64 = layers.map(|(&n, kind)| u64::from(n) * (kind.forward.0 + kind.backward.0)).sum();
    let ends: u64 = problem.fixed.iter().map(|fixed| fixed.forward.0 + fixed.backward.0).sum();
    let busy = (layers + ends + extra) * pipeline.micro_batches / u64::from(pipeline.ranks);
    Picos(busy.saturating_sub(2 + (busy >> 28)))
}

/// What ranks have left for layers.
struct Room {
    /// Bytes, by rank.
    free: Vec<u64>,
    /// Micro-batches in flight on an average chunk when most are, by rank, times the chunks per rank.
    in_flight: Vec<u64>,
    chunks_per_rank: u64,
}

impl Room {
    fn new(problem: &Problem) -> Self {
        let chunks_per_rank = u64::from(problem.pipeline.chunks_per_rank.max(1));
        let (mut free, mut in_flight) = (Vec::new(), Vec::new());
        for order in &problem.pipeline.orders {
            let states = order.in_flight.chunks_exact(order.chunks.len());
            let totals = states.clone().map(|counts| counts.iter().map(|&n| u64::from(n)).sum());
            in_flight.push(totals.max().unwrap_or(0));
            let mut used = problem.rank_bytes.0;
            for (at, &k) in order.chunks.iter().enumerate() {
                let fixed = &problem.fixed[k as usize];
                let most = states.clone().map(|counts| u64::from(counts[at])).max().unwrap_or(0);
                used += fixed.held.0 + if chunks_per_rank == 1 { most * fixed.kept.0 } else { 0 };
            }
            free.push(problem.limit.0.saturating_sub(used));
        }
        Self { free, in_flight, chunks_per_rank }
    }

    /// Bytes that a layer of a kind keeps per micro-batch under a policy, on average over a chunk.
    fn kept(problem: &Problem, tables: &Tables, policy: Policy, even: &[u32], kind: usize) -> u64 {
        let least = |modes: &mut dyn Iterator<Item = u16>| {
            let kept = modes.map(|mode| {
                let group = u64::from(problem.modes[usize::from(mode)].group);
                tables.mode(mode)[kind].kept / group.max(1)
            });
            kept.min().unwrap_or(0)
        };
        match (policy, problem.block) {
            (Policy::All(Choice::Mode(mode)), _) => least(&mut std::iter::once(mode)),
            (Policy::All(Choice::Block(n)), Some(block)) => {
                let longest = even.iter().copied().max().unwrap_or(1).max(1) + 1;
                let (full, rest) = (tables.mode(block.full)[kind].kept, tables.mode(block.rest)[kind].kept);
                let n = u64::from(n.min(longest));
                (n * full.min(rest) + (u64::from(longest) - n) * rest) / u64::from(longest)
            }
            _ => least(&mut (0..problem.modes.len() as u16)),
        }
    }

    /// About the most layers that each rank can hold, rather too many, in a model of one kind.
    fn caps(&self, problem: &Problem, tables: &Tables, policy: Policy, even: &[u32], caps: &mut Vec<u32>) {
        let kind = tables.totals.iter().position(|&n| n > 0).unwrap_or(0);
        let (held, kept) = (problem.kinds[kind].held.0, Self::kept(problem, tables, policy, even, kind));
        caps.clear();
        caps.extend(self.free.iter().zip(&self.in_flight).map(|(&free, &in_flight)| {
            let each = held + kept * in_flight / self.chunks_per_rank;
            let most = (free + each / 2).checked_div(each).unwrap_or(u64::from(tables.layers));
            most.min(u64::from(tables.layers)) as u32
        }));
    }

    /// Whether a model of several kinds may fit.
    fn may_suffice(&self, problem: &Problem, tables: &Tables, policy: Policy, even: &[u32]) -> bool {
        let fewest = self.in_flight.iter().copied().min().unwrap_or(0);
        let need: u64 = (0..tables.kinds)
            .map(|kind| {
                let kept = Self::kept(problem, tables, policy, even, kind);
                let each = problem.kinds[kind].held.0 + kept * fewest / self.chunks_per_rank;
                u64::from(tables.totals[kind]) * each
            })
            .sum();
        need <= self.free.iter().sum()
    }
}

/// Fewer layers for ranks that lack memory, in a model of one kind; `caps` are the most that each rank
/// may hold.
fn relieve(
    search: &mut Chunked<'_>,
    policy: Policy,
    layer: u64,
    ends: &[u64],
    caps: &mut [u32],
) -> Option<Vec<u32>> {
    let problem = search.problem();
    let (pipeline, chunks) = (&*problem.pipeline, problem.chunks());
    let ranks = pipeline.ranks as usize;
    let layers = problem.layer_count();
    let least = problem.min_layers;
    let mut counts = vec![0; chunks];
    let mut loads = vec![0; ranks];
    let mut totals = vec![0; ranks];
    // Every round lowers a ceiling by what a rank lacks.
    for _ in 0..8 {
        if caps.iter().sum::<u32>() < layers {
            return None;
        }
        for (rank, order) in pipeline.orders.iter().enumerate() {
            totals[rank] = order.chunks.len() as u32 * least;
            let own: u64 = order.chunks.iter().map(|&k| ends[k as usize]).sum();
            loads[rank] = own + u64::from(totals[rank]) * layer;
        }
        if totals.iter().zip(&*caps).any(|(total, cap)| total > cap) {
            return None;
        }
        // As far as all ranks stay below one level; the rest one by one.
        let left = u64::from(layers - totals.iter().sum::<u32>()) * layer;
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
            let more = level.saturating_sub(loads[rank]).checked_div(layer).unwrap_or(0) as u32;
            let more = more.min(caps[rank] - totals[rank]);
            totals[rank] += more;
            loads[rank] += u64::from(more) * layer;
        }
        for _ in totals.iter().sum::<u32>()..layers {
            let open = (0..ranks).filter(|&rank| totals[rank] < caps[rank]);
            let next = open.min_by_key(|&rank| loads[rank])?;
            totals[next] += 1;
            loads[next] += layer;
        }
        for (rank, order) in pipeline.orders.iter().enumerate() {
            spread(totals[rank], order.chunks.as_slice(), ends, layer, least, &mut counts);
        }
        search.set_cuts(&counts);
        let mut fits = true;
        for rank in 0..ranks {
            let excess = search.rank(rank, policy).excess;
            if excess > 0 {
                fits = false;
                let share = search.need(rank, excess) / u64::from(totals[rank].max(1));
                let fewer = (excess / share.max(1)).clamp(1, u64::from(layers));
                caps[rank] = totals[rank].checked_sub(fewer as u32)?;
            }
        }
        if fits {
            return Some(counts);
        }
    }
    None
}

/// Spreads a rank's layers over its chunks: chunks of equal time, longer ones in the middle.
fn spread(total: u32, chunks: &[u32], ends: &[u64], layer: u64, least: u32, counts: &mut [u32]) {
    let v = chunks.len() as u32;
    for &k in chunks {
        counts[k as usize] = least;
    }
    let from_middle = |at: usize| (2 * at as u32 + 1).abs_diff(v);
    for _ in least * v..total {
        let time = |k: u32| (ends[k as usize] + layer / 2) / layer.max(1) + u64::from(counts[k as usize]);
        let next = (0..chunks.len()).min_by_key(|&at| (time(chunks[at]), from_middle(at), at));
        if let Some(at) = next {
            counts[chunks[at] as usize] += 1;
        }
    }
}
