//! The nearest plan that a framework accepts: a refused plan with one to three options changed.

use super::{Capabilities, Context, ExpertTensor, SequenceParallel, Target, legal_plan, mtp_stands_alone};
use crate::plan::{
    Chunk, ContextComm, CudaGraphs, Dispatcher, Layout, Modules, Offload, Place, Plan, Recompute, Schedule,
};

/// A plan's parts while it is being changed.
#[derive(Clone)]
struct Draft {
    layout: Layout,
    chunks: Vec<Chunk>,
}

/// A change of one option.
type Change = fn(&Capabilities, &Context, &mut Draft);

/// Changes from the harmless to the drastic: switches first, then what memory and time depend on,
/// degrees last.
const CHANGES: &[Change] = &[
    |k, _, d| d.layout.tensor_overlap &= k.tensor_overlap && d.layout.sequence_parallel,
    |_, _, d| d.layout.tensor_overlap = false,
    |k, _, d| d.layout.data_overlap = k.data_overlap,
    |_, _, d| d.layout.data_overlap = false,
    |_, _, d| d.layout.expert_overlap = false,
    |_, _, d| d.layout.shared_overlap = false,
    |_, _, d| d.layout.mtp_standalone = false,
    |_, _, d| d.layout.cuda_graphs = CudaGraphs::None,
    |k, _, d| {
        let on = k.sequence_parallel != SequenceParallel::Never && d.layout.tensor_parallel > 1;
        d.layout.sequence_parallel = on;
    },
    |_, _, d| d.layout.sequence_parallel = false,
    |k, _, d| {
        let l = &mut d.layout;
        if l.dispatcher == Some(Dispatcher::DeepEp) && k.dispatchers.contains(&Dispatcher::HybridEp) {
            l.dispatcher = Some(Dispatcher::HybridEp);
        }
    },
    |k, c, d| {
        let there = c.has_experts().then(|| k.dispatchers.contains(&Dispatcher::AllToAll));
        d.layout.dispatcher = there.map(|_| Dispatcher::AllToAll);
    },
    |_, c, d| d.layout.dispatcher = c.has_experts().then_some(Dispatcher::AllGather),
    |k, _, d| {
        for comm in [ContextComm::Ring, ContextComm::AllGather, ContextComm::AllToAll] {
            if k.context_comms.contains(&comm) {
                d.layout.context_comm = comm;
            }
        }
    },
    |_, _, d| d.layout.context_comm = ContextComm::Ring,
    |_, _, d| d.layout.context_comm = ContextComm::AllGather,
    |_, _, d| d.layout.context_comm = ContextComm::AllToAll,
    |_, _, d| {
        d.layout.schedule =
            if d.layout.virtual_stages > 1 { Schedule::Interleaved } else { Schedule::OneFOneB };
    },
    |_, _, d| common_recompute(d),
    |k, _, d| whole_layers(k, d),
    |_, _, d| d.chunks.iter_mut().for_each(|c| c.recompute = Recompute::None),
    |_, _, d| d.layout.offload = Offload::NONE,
    |_, _, d| d.layout.offload.activations = false,
    |_, _, d| d.layout.offload.parameters = d.layout.offload.optimizer,
    |k, _, d| {
        if !k.optimizer_places.contains(&d.layout.offload.optimizer) {
            d.layout.offload.optimizer = Place::Cpu;
        }
    },
    |_, _, d| d.layout.shard_group = d.layout.data_parallel * d.layout.context_parallel,
    |_, c, d| {
        // The largest group that experts divide among.
        let l = &mut d.layout;
        let ranks = l.data_parallel * l.context_parallel;
        let among = |g: u32| ranks % g == 0 && c.moe.iter().all(|m| m.experts % u64::from(g) == 0);
        if l.zero_stage > 0 {
            l.shard_group = (1..=l.shard_group).rev().find(|&g| among(g)).unwrap_or(l.shard_group);
        }
    },
    |k, _, d| shard(k, d, 1),
    |k, _, d| shard(k, d, -1),
    |_, _, d| even(d),
    |_, _, d| {
        d.layout.virtual_stages = 1;
        d.layout.schedule = Schedule::OneFOneB;
        resize(d);
    },
    |_, _, d| d.layout.expert_tensor_parallel = 1,
    |_, _, d| d.layout.expert_tensor_parallel = d.layout.tensor_parallel,
    |_, _, d| {
        d.layout.expert_parallel = 1;
        d.layout.expert_overlap = false;
        d.layout.shared_overlap = false;
    },
    |_, c, d| {
        // The largest expert-parallel degree that divides the experts and the ranks of a stage.
        let l = &mut d.layout;
        let block = l.tensor_parallel * l.context_parallel * l.data_parallel;
        let fits = |e: u32| {
            block % (e * l.expert_tensor_parallel) == 0 && c.moe.iter().all(|m| m.experts % u64::from(e) == 0)
        };
        l.expert_parallel = (1..=l.expert_parallel).rev().find(|&e| fits(e)).unwrap_or(1);
    },
    |_, c, d| hand_over(c, d, |l| std::mem::replace(&mut l.context_parallel, 1)),
    |_, c, d| hand_over(c, d, |l| halve(&mut l.tensor_parallel)),
    |_, c, d| hand_over(c, d, |l| std::mem::replace(&mut l.tensor_parallel, 1)),
    |_, c, d| hand_over(c, d, |l| halve(&mut l.pipeline_parallel)),
    |_, c, d| hand_over(c, d, |l| std::mem::replace(&mut l.pipeline_parallel, 1)),
];

/// What saves memory, the cheapest first: for plans that have given much up.
const SAVERS: &[Change] = &[
    |_, c, d| {
        d.layout.micro_batch_size = 1;
        hand_over(c, d, |_| 1);
    },
    |k, _, d| {
        d.chunks.iter_mut().for_each(|c| c.recompute = c.recompute.max(Recompute::FullUniform(1)));
        whole_layers(k, d);
    },
    |k, _, d| shard(k, d, 1),
    |k, _, d| {
        shard(k, d, 1);
        shard(k, d, 1);
    },
];

/// Gives up all at once that a framework does not offer.
fn offered(k: &Capabilities, c: &Context, d: &mut Draft) {
    if !k.pipeline_parallel {
        hand_over(c, d, |l| std::mem::replace(&mut l.pipeline_parallel, 1));
    }
    if !k.tensor_parallel {
        hand_over(c, d, |l| std::mem::replace(&mut l.tensor_parallel, 1));
    }
    if k.context_comms.is_empty() {
        hand_over(c, d, |l| std::mem::replace(&mut l.context_parallel, 1));
    }
    let l = &mut d.layout;
    if !k.expert_parallel {
        l.expert_parallel = 1;
    }
    match k.expert_tensor {
        ExpertTensor::Free => {}
        ExpertTensor::One => l.expert_tensor_parallel = 1,
        ExpertTensor::Tensor => l.expert_tensor_parallel = l.tensor_parallel,
    }
    l.tensor_overlap &= k.tensor_overlap;
    l.data_overlap = k.data_overlap;
    l.expert_overlap &= k.expert_overlap && l.expert_parallel > 1;
    l.shared_overlap &= k.shared_overlap && l.expert_parallel > 1;
    l.mtp_standalone &= mtp_stands_alone(k, c, l).is_ok();
    l.sequence_parallel &= k.sequence_parallel != SequenceParallel::Never;
    if !k.cuda_graphs.contains(&l.cuda_graphs) {
        l.cuda_graphs = CudaGraphs::None;
    }
    if let Some(&first) = k.context_comms.first().filter(|_| !k.context_comms.contains(&l.context_comm)) {
        l.context_comm = first;
    }
    if l.dispatcher.is_some_and(|dispatcher| !k.dispatchers.contains(&dispatcher)) {
        l.dispatcher = k.dispatchers.last().copied();
    }
    l.offload.activations &= k.activation_offload;
    if !k.optimizer_places.contains(&l.offload.optimizer)
        || !k.parameter_places.contains(&l.offload.parameters)
    {
        l.offload = Offload::NONE;
    }
    if !k.zero_stages.contains(&l.zero_stage) {
        shard(k, d, 1);
    }
    if !k.virtual_stages && d.layout.virtual_stages > 1 {
        d.layout.virtual_stages = 1;
        d.layout.schedule = Schedule::OneFOneB;
        resize(d);
    }
    if !k.uneven_stages {
        even(d);
    }
    if !k.recompute.per_stage {
        common_recompute(d);
    }
    let known = |recompute: Recompute| match recompute {
        Recompute::None => true,
        Recompute::Selective(modules) => modules.0 & !k.recompute.selective.0 == 0,
        Recompute::FullUniform(layers) => layers <= k.recompute.full_uniform,
        Recompute::FullBlock(_) => k.recompute.full_block,
    };
    if !d.chunks.iter().all(|chunk| known(chunk.recompute)) {
        whole_layers(k, d);
    }
}

/// Tries one change, then two, then three, the earlier in [`CHANGES`] the nearer; then the same of a plan that has
/// given up all that the framework does not offer, what saves memory first.
pub(super) fn search(
    target: Target,
    context: &Context,
    plan: &Plan,
    fits: &dyn Fn(&Plan) -> bool,
) -> Option<Plan> {
    let start = Draft { layout: *plan.layout(), chunks: plan.chunks().to_vec() };
    let mut reduced = start.clone();
    offered(target.capabilities(), context, &mut reduced);
    let near = changed_little(target, context, start, CHANGES, fits);
    let savers: Vec<Change> = SAVERS.iter().chain(CHANGES).copied().collect();
    near.or_else(|| changed_little(target, context, reduced, &savers, fits))
}

/// The first plan that is legal and fits among those with up to three changes.
fn changed_little(
    target: Target,
    context: &Context,
    start: Draft,
    changes: &[Change],
    fits: &dyn Fn(&Plan) -> bool,
) -> Option<Plan> {
    let capabilities = target.capabilities();
    let accepted = |draft: &Draft| {
        let plan = finish(context, as_searched(capabilities, draft));
        plan.filter(|plan| legal_plan(target, context, plan).is_ok() && fits(plan))
    };
    if let Some(plan) = accepted(&start) {
        return Some(plan);
    }
    let changed = |draft: &Draft, change: &Change| {
        let mut next = draft.clone();
        change(capabilities, context, &mut next);
        (next.layout != draft.layout || next.chunks != draft.chunks).then_some(next)
    };
    let mut level = vec![start];
    for _ in 0..3 {
        let mut next = Vec::new();
        for draft in &level {
            next.extend(changes.iter().filter_map(|change| changed(draft, change)));
        }
        if let Some(plan) = next.iter().find_map(accepted) {
            return Some(plan);
        }
        level = next;
    }
    None
}

/// The draft as the search writes it: tensor-parallel collectives overlap beside sequence parallelism alone, and where
/// no token leaves its rank one dispatcher stands for all.
fn as_searched(k: &Capabilities, draft: &Draft) -> Draft {
    let mut draft = draft.clone();
    let l = &mut draft.layout;
    l.tensor_overlap &= l.sequence_parallel;
    if l.expert_parallel == 1 && l.dispatcher.is_some() && k.dispatchers.len() > 1 {
        l.dispatcher = Some(Dispatcher::AllToAll);
    }
    draft
}

fn finish(context: &Context, draft: Draft) -> Option<Plan> {
    let (gpus, batch, layers) = (context.gpus, context.global_batch_size, context.layers);
    Plan::new(draft.layout, draft.chunks, gpus, batch, layers).ok()
}

/// The most that any stage recomputes, for all of them.
fn common_recompute(d: &mut Draft) {
    if let Some(most) = d.chunks.iter().map(|c| c.recompute).max() {
        d.chunks.iter_mut().for_each(|c| c.recompute = most);
    }
}

/// Whole layers everywhere, if the framework has that and anything is recomputed.
fn whole_layers(k: &Capabilities, d: &mut Draft) {
    let any = d.chunks.iter().any(|c| c.recompute != Recompute::None);
    if any && k.recompute.full_uniform > 0 {
        d.chunks.iter_mut().for_each(|c| c.recompute = Recompute::FullUniform(1));
    } else if any && k.recompute.selective != Modules::NONE {
        d.chunks.iter_mut().for_each(|c| c.recompute = Recompute::Selective(k.recompute.selective));
    }
}

/// The next ZeRO stage up or down that the framework has.
fn shard(k: &Capabilities, d: &mut Draft, step: i32) {
    let stage = d.layout.zero_stage;
    let found = if step > 0 {
        k.zero_stages.iter().find(|&&s| s > stage)
    } else {
        k.zero_stages.iter().rev().find(|&&s| s < stage)
    };
    if let Some(&found) = found {
        d.layout.zero_stage = found;
        d.layout.shard_group =
            if found == 0 { 1 } else { d.layout.data_parallel * d.layout.context_parallel };
    }
}

/// As many layers on every chunk as divide.
fn even(d: &mut Draft) {
    d.layout.mtp_standalone = false;
    let layers: u32 = d.chunks.iter().map(|c| c.layers).sum();
    let count = d.chunks.len() as u32;
    for (at, chunk) in (0..).zip(&mut d.chunks) {
        chunk.layers = layers / count + u32::from(at < layers % count);
    }
}

/// As many chunks as stages and virtual stages need, evenly filled.
fn resize(d: &mut Draft) {
    let layers: u32 = d.chunks.iter().map(|c| c.layers).sum();
    let recompute = d.chunks.iter().find(|c| c.layers > 0).map_or(Recompute::None, |c| c.recompute);
    let count = d.layout.chunk_count() as usize;
    d.chunks = vec![Chunk { layers: 0, recompute }; count];
    if let Some(first) = d.chunks.first_mut() {
        first.layers = layers;
    }
    even(d);
}

/// Halves an even degree; the factor taken away.
fn halve(degree: &mut u32) -> u32 {
    if *degree % 2 == 0 {
        *degree /= 2;
        return 2;
    }
    1
}

/// Gives a factor of another degree to data parallelism, keeping GPUs and batch.
fn hand_over(c: &Context, d: &mut Draft, take: fn(&mut Layout) -> u32) {
    let l = &mut d.layout;
    let whole = l.zero_stage > 0 && l.shard_group == l.data_parallel * l.context_parallel;
    let factor = take(l);
    l.data_parallel *= factor;
    if c.global_batch_size % (l.data_parallel * l.micro_batch_size).max(1) != 0 {
        l.micro_batch_size = 1;
    }
    let per_step = l.data_parallel * l.micro_batch_size;
    if per_step == 0 || c.global_batch_size % per_step != 0 {
        return;
    }
    l.gradient_accumulation_steps = c.global_batch_size / per_step;
    if whole {
        l.shard_group = l.data_parallel * l.context_parallel;
    }
    if l.pipeline_parallel == 1 {
        l.virtual_stages = 1;
        l.schedule = Schedule::OneFOneB;
    }
    l.sequence_parallel &= l.tensor_parallel > 1;
    l.tensor_overlap &= l.tensor_parallel > 1;
    if d.chunks.len() != d.layout.chunk_count() as usize {
        resize(d);
    }
}
