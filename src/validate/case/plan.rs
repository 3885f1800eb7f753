//! The plan of a row: degrees, schedule, recomputation, where layers are.

use super::cells::{Cells, MOST_PASSES, Skip, at_most};
use super::framework::release;
use crate::frameworks::profile::{Placement, Profile};
use crate::frameworks::{Context, Hardware, consistent};
use crate::layers::Layers;
use crate::plan::{
    Chunk, ContextComm, CudaGraphs, Dispatcher, Layout, Module, Modules, Offload, ParseRecomputeError, Place,
    Plan, Recompute, Schedule,
};
use crate::spec::cluster::{Accelerator, Architecture, Cluster};
use crate::spec::job::Job;
use crate::spec::measured::MeasuredRow;
use crate::spec::model::{FeedForward, Model};

/// What leaves the GPU: activations, with or without a number of layers, the optimizer, parameters.
fn read_offload(row: &MeasuredRow) -> Result<Offload, Skip> {
    let Some(text) = row.text("offload") else { return Ok(Offload::NONE) };
    let mut offload = Offload::NONE;
    let lower = text.to_ascii_lowercase();
    let words = lower.split(|c: char| !c.is_ascii_alphabetic()).filter(|word| !word.is_empty());
    for word in words {
        match word {
            "activations" | "activation" => offload.activations = true,
            "optimizer" | "optimiser" => offload.optimizer = Place::Cpu,
            "parameters" | "params" | "weights" => offload.parameters = Place::Cpu,
            "none" | "no" | "cpu" | "and" | "of" | "layers" | "fine" | "grained" => {}
            _ => {
                return Err(Skip::unknown(
                    "offload",
                    text,
                    ["activations", "activations of N layers", "optimizer", "parameters"],
                ));
            }
        }
    }
    Ok(offload)
}

/// `activations of 40 layers`: the share of the layers whose activations are offloaded whole.
pub(super) fn offloaded_layers(row: &MeasuredRow, layers: u32) -> Option<f64> {
    let text = row.text("offload").filter(|text| text.contains("activations"))?;
    let number: u32 = text.split_whitespace().find_map(|word| word.parse().ok())?;
    Some(f64::from(number.min(layers)) / f64::from(layers.max(1)))
}

pub(super) fn read_plan(
    cells: &mut Cells,
    profile: &Profile,
    accelerator: &Accelerator,
    model: &Model,
    layers: &Layers,
    job: &Job,
    cluster: &Cluster,
) -> Result<Plan, Skip> {
    let (row, architecture) = (cells.row, accelerator.architecture);
    let defaults = &profile.defaults;
    // A single degree that is not stated follows from the others.
    let [tp, pp, cp, dp] =
        [cells.stated("tp")?, cells.stated("pp")?, cells.stated("cp")?, cells.stated::<u32>("dp")?];
    let left = |others: [Option<u32>; 3]| {
        let product: u128 = others.iter().map(|n| u128::from(n.unwrap_or(1))).product();
        u128::from(job.gpus).checked_div(product).filter(|n| n * product == u128::from(job.gpus))
    };
    let follows = |others: [Option<u32>; 3]| left(others).map_or(1, |n| n as u64);
    let (of_tensor, of_stages) = match (tp, pp, dp) {
        (None, Some(_), Some(_)) => (follows([pp, cp, dp]), 1),
        (Some(_), None, Some(_)) => (1, follows([tp, cp, dp])),
        _ => (1, 1),
    };
    let (tp, pp) = (cells.degree("tp", of_tensor)?, cells.degree("pp", of_stages)?);
    let cp = cells.degree("cp", if dp.is_some() { follows([Some(tp), Some(pp), dp]) } else { 1 })?;
    let per_rank = layers.count().div_ceil(pp);
    let stated = if pp > 1 { read_schedule(row)? } else { None };
    let usual = match defaults.layers_per_chunk {
        // Schedules whose chunks are fixed.
        _ if matches!(stated, Some(Schedule::ZeroBubbleV | Schedule::DualPipe)) => 2,
        _ if stated.is_some_and(|schedule| schedule != Schedule::Interleaved) => 1,
        // Layers that do not fill the stages evenly are laid out by hand, one chunk per stage.
        Some(_) if layers.count() % pp != 0 && (layers.count() + 2) % pp != 0 => 1,
        Some(each) => (1..=per_rank).rev().find(|v| per_rank % v == 0 && per_rank / v >= each).unwrap_or(1),
        None if stated == Some(Schedule::Interleaved) => 2,
        None => 1,
    };
    let vpp = if pp > 1 { cells.degree("vpp", u64::from(usual))? } else { cells.stated("vpp")?.unwrap_or(1) };
    let schedule = match stated {
        // One forward, one backward is what interleaved schedules do too.
        None | Some(Schedule::OneFOneB | Schedule::Interleaved) if vpp > 1 => Schedule::Interleaved,
        None | Some(Schedule::Interleaved) => Schedule::OneFOneB,
        Some(schedule) => schedule,
    };
    // Tables call a V of two chunks per rank one stage.
    let fixed = match schedule {
        Schedule::ZeroBubbleV | Schedule::DualPipe => Some(2),
        Schedule::GPipe | Schedule::ZeroBubbleH1 | Schedule::ZeroBubbleH2 => Some(1),
        Schedule::OneFOneB | Schedule::Interleaved => None,
    };
    let vpp = match fixed {
        Some(chunks) if vpp == 1 || vpp == chunks => chunks,
        Some(chunks) => {
            return Err(Skip::Contradiction(format!(
                "vpp is {vpp}, but the stated schedule has {chunks} per rank"
            )));
        }
        None => vpp,
    };
    let slots = u64::from(pp) * u64::from(vpp);
    if slots > u64::from(layers.count()) + 2 {
        return Err(Skip::Contradiction(format!("{slots} chunks for {} layers", layers.count())));
    }
    let experts = model.blocks.values().any(|b| matches!(b.feed_forward, FeedForward::Moe(_)));
    let (ep, etp) = if experts {
        // Unstated expert parallelism: as wide as the fast domain, as far as experts and ranks allow.
        // Where weights are sharded anyway, experts spread over all ranks: gathering them costs more.
        let reach = if defaults.zero_stage >= 3 { job.gpus } else { cluster.scale_up.domain };
        let split = cells.stated::<u32>("etp")?.unwrap_or(1).max(1);
        let widest = model.blocks.values().find_map(|b| match &b.feed_forward {
            FeedForward::Moe(e) => (1..=reach.min(job.gpus / pp.max(1))).rev().find(|&n| {
                e.experts % u64::from(n) == 0
                    && u64::from(job.gpus / pp) % (u64::from(n) * u64::from(split)) == 0
            }),
            _ => None,
        });
        let ep = cells.degree("ep", u64::from(widest.unwrap_or(1)))?;
        // Megatron-Core splits experts as it splits dense layers unless told otherwise; recipes with
        // many small experts do not split them.
        let coarse = model
            .blocks
            .values()
            .any(|b| matches!(&b.feed_forward, FeedForward::Moe(e) if e.width * 2 >= model.hidden * 3 && e.width % u64::from(tp) == 0));
        let alike = coarse && u64::from(job.gpus / pp) % (u64::from(ep) * u64::from(tp)) == 0;
        (ep, cells.degree("etp", if alike { u64::from(tp) } else { 1 })?)
    } else {
        // Where the row states experts, other columns say that no layer has them.
        let none = row.whole::<u64>("experts")?.is_none_or(|n| n == 0);
        (cells.stated("ep")?.filter(|_| none).unwrap_or(1), 1)
    };
    let product: u128 = [tp, pp, cp].map(u128::from).into_iter().product();
    if u128::from(job.gpus) % product != 0 {
        return Err(Skip::Contradiction(format!(
            "tp {tp} x pp {pp} x cp {cp} does not divide {} gpus",
            job.gpus
        )));
    }
    let dp = (u128::from(job.gpus) / product) as u32;
    if let Some(stated) = cells.stated::<u32>("dp")?.filter(|&n| n != dp) {
        return Err(Skip::Contradiction(format!("dp is {stated}, but the other degrees leave {dp}")));
    }
    // Without a stated micro-batch: one sequence, or the replica's share over as many micro-batches as
    // the pipeline has stages.
    let local_batch = u64::from(job.global_batch_size / dp.max(1));
    let usual = match defaults.micro_batches_fill_stages {
        true => (local_batch / slots).max(1),
        false => 1,
    };
    let micro_batch = cells.degree("micro_batch", usual)?;
    let per_step = u64::from(dp) * u64::from(micro_batch);
    if u64::from(job.global_batch_size) % per_step != 0 {
        return Err(Skip::Contradiction(format!(
            "micro-batch {micro_batch} x dp {dp} does not divide a global batch of {}",
            job.global_batch_size
        )));
    }
    let accumulation = (u64::from(job.global_batch_size) / per_step) as u32;
    // Chunks that nobody stated are none where there are too few micro-batches for them.
    let (vpp, schedule) = match schedule {
        Schedule::Interleaved
            if accumulation < pp && row.text("vpp").is_none() && stated != Some(Schedule::Interleaved) =>
        {
            (1, Schedule::OneFOneB)
        }
        _ => (vpp, schedule),
    };
    let slots = u64::from(pp) * u64::from(vpp);
    if vpp > 1 || !matches!(schedule, Schedule::OneFOneB | Schedule::GPipe) {
        at_most("the number of passes", slots * u64::from(accumulation), MOST_PASSES)?;
    }
    let ranks = dp * cp;
    let zero_stage = match row.whole::<u8>("zero_stage")? {
        Some(stage) if stage <= 3 => stage,
        Some(stage) => return Err(Skip::Contradiction(format!("zero_stage is {stage}"))),
        None => {
            cells.assumed.push("zero_stage");
            defaults.zero_stage
        }
    };
    let shard_group = cells.stated::<u32>("shard_group")?.unwrap_or(ranks);
    if ranks % shard_group != 0 {
        return Err(Skip::Contradiction(format!(
            "shard_group {shard_group} does not divide the {ranks} ranks of dp {dp} x cp {cp}"
        )));
    }
    let notes = row.text_or_empty("overlap_notes").to_ascii_lowercase();
    let tokens = job.sequence_length / cp;
    let sequence_parallel = tp > 1 && cells.flag("sp", defaults.sequence_parallel && tokens % tp == 0)?;
    let tensor_overlap = tp > 1 && sequence_parallel && cells.flag("tp_overlap", defaults.tensor_overlap)?;
    let data_overlap = row.flag("dp_overlap")?.unwrap_or(true);
    let recomputes = row.text("recompute").is_some_and(|text| text != "none");
    let expert_ranks = u64::from(ep) * u64::from(etp);
    let across = expert_ranks > u64::from(cluster.scale_up.domain);
    let drops = job.expert_capacity.is_some();
    let pads = job.expert_capacity.is_some_and(|capacity| capacity.padded);
    let recipe = defaults.experts.iter().find(|r| {
        experts
            && r.on == architecture
            && r.precision.is_none_or(|p| p == job.precision)
            && release(row).is_some_and(|at| at >= r.since)
            && !drops
    });
    let limited = model
        .blocks
        .values()
        .any(|b| matches!(&b.feed_forward, FeedForward::Moe(e) if e.router.groups.is_some()));
    let shares =
        model.blocks.values().any(|b| matches!(&b.feed_forward, FeedForward::Moe(e) if e.shared_width > 0));
    let dispatcher = experts.then(|| {
        // Padded experts are reached by the plain exchange alone (assertion of `apply_moe_token_drop`, see the profile's
        // `token_drop`), whatever recipes without capacity name.
        let plain = notes.contains("alltoall") || notes.contains("dispatcher_backend=none");
        if pads {
            if !plain {
                cells.assumed.push("dispatcher");
            }
            Dispatcher::AllToAll
        } else if notes.contains("deepep") {
            Dispatcher::DeepEp
        } else if notes.contains("hybridep") {
            Dispatcher::HybridEp
        } else if plain {
            Dispatcher::AllToAll
        } else if let [only] = profile.rules.capabilities().dispatchers {
            *only
        } else {
            cells.assumed.push("dispatcher");
            // Domains of many nodes run HybridEP in the published recipes, single-node domains NCCL.
            let library = limited && recipe.is_some_and(|r| r.library_where_limited);
            if library && across && architecture == Architecture::Hopper {
                Dispatcher::DeepEp
            } else if cluster.scale_up.domain > 8 || library && architecture == Architecture::Blackwell {
                Dispatcher::HybridEp
            } else {
                Dispatcher::AllToAll
            }
        }
    });
    let stated_graphs = if notes.contains("full_iteration") {
        Some(CudaGraphs::FullIteration)
    } else if notes.contains("moe_router") {
        let whole = limited && recipe.is_some_and(|r| r.whole_for_named_scopes_where_limited);
        if whole {
            cells.assumed.push("cuda_graphs");
        }
        Some(if whole { CudaGraphs::FullIteration } else { CudaGraphs::AttentionRouter })
    } else if notes.contains("cuda_graph_impl='transformer_engine'") {
        Some(CudaGraphs::Attention)
    } else {
        row.flag("cuda_graphs")?.map(|on| if on { CudaGraphs::Attention } else { CudaGraphs::None })
    };
    let cuda_graphs = stated_graphs.unwrap_or_else(|| {
        cells.assumed.push("cuda_graphs");
        match recipe {
            Some(r) if r.full_iteration_graphs && !recomputes => CudaGraphs::FullIteration,
            _ => CudaGraphs::None,
        }
    });
    let expert_overlap = experts
        && expert_ranks > 1
        && if notes.contains("overlap_moe_expert_parallel_comm=true") || notes.contains("a2a_overlap=1") {
            true
        } else if notes.contains("a2a_overlap=0") {
            false
        } else {
            row.flag("ep_overlap")?.unwrap_or_else(|| {
                cells.assumed.push("ep_overlap");
                defaults.expert_overlap
                    || recipe.is_some_and(|r| {
                        r.overlap_across_domains && across
                            || r.full_iteration_graphs && cuda_graphs == CudaGraphs::FullIteration
                    })
            })
        };
    let offload = read_offload(row)?;
    let context_comm = context_comm(&notes)?;
    let layout = Layout {
        tensor_parallel: tp,
        pipeline_parallel: pp,
        virtual_stages: vpp,
        context_parallel: cp,
        expert_parallel: ep,
        expert_tensor_parallel: etp,
        data_parallel: dp,
        sequence_parallel,
        micro_batch_size: micro_batch,
        gradient_accumulation_steps: accumulation,
        zero_stage,
        shard_group: if zero_stage > 0 { shard_group } else { 1 },
        schedule,
        context_comm,
        dispatcher,
        tensor_overlap,
        data_overlap,
        expert_overlap,
        shared_overlap: notes.contains("moe_shared_expert_overlap=true")
            && shares
            && expert_ranks > 1
            && !expert_overlap
            && dispatcher != Some(Dispatcher::AllGather),
        mtp_standalone: false,
        cuda_graphs,
        offload,
    };
    let mut context = Context::new(model, layers, job, Hardware::of(cluster, accelerator));
    if cells.assumed.contains(&"ffn_hidden") {
        // What nobody stated contradicts nothing.
        context.dense.clear();
    }
    consistent(&context, &layout).map_err(Skip::Contradiction)?;
    let recompute = match row.text("recompute") {
        Some(text) => read_recompute(text, profile)?,
        None => {
            cells.assumed.push("recompute");
            if defaults.full_recompute { Recompute::FullUniform(1) } else { Recompute::None }
        }
    };
    let counts = place(row, profile, model, layers, pp, vpp)?;
    let chunks = counts.into_iter().map(|layers| Chunk { layers, recompute }).collect();
    Plan::new(layout, chunks, job.gpus, job.global_batch_size, layers.count())
        .map_err(|law| Skip::Contradiction(law.to_string()))
}

/// The pipeline schedule, if the row states one, by the names that Megatron-LM, torchtitan, DeepSpeed and Primus give it.
fn read_schedule(row: &MeasuredRow) -> Result<Option<Schedule>, Skip> {
    let Some(text) = row.text("pp_schedule") else { return Ok(None) };
    if text.to_ascii_lowercase().contains("vocab") {
        return Err(Skip::Unsupported(
            "a vocabulary that is split over all pipeline stages is not supported",
        ));
    }
    let name: String = text.to_ascii_lowercase().chars().filter(char::is_ascii_alphanumeric).collect();
    let has = |words: &[&str]| words.iter().any(|word| name.contains(word));
    let unlike = ["dualpipev", "interleavedzerobubble", "interleavedzb", "loopedbfs", "hanayo", "chimera"];
    Ok(if has(&unlike) {
        return Err(Skip::Unsupported("a pipeline schedule is not supported"));
    } else if has(&["noninterleaved", "novirtual"]) {
        Some(Schedule::OneFOneB)
    } else if has(&["vhalf", "vmin"]) {
        return Err(Skip::Unsupported("pipeline schedules of half and least memory are not supported"));
    } else if has(&["dualpipe"]) {
        Some(Schedule::DualPipe)
    } else if has(&["zbv", "zerobubblev"]) {
        Some(Schedule::ZeroBubbleV)
    } else if has(&["interleaved", "virtual"]) {
        Some(Schedule::Interleaved)
    } else if has(&["zbh2", "zerobubbleh2", "zb2p"]) {
        Some(Schedule::ZeroBubbleH2)
    } else if has(&["zb", "zerobubble"]) {
        Some(Schedule::ZeroBubbleH1)
    } else if has(&["gpipe", "afab", "allforward"]) {
        Some(Schedule::GPipe)
    } else if has(&["1f1b"]) {
        Some(Schedule::OneFOneB)
    } else if matches!(name.as_str(), "none" | "na" | "") {
        None
    } else {
        return Err(Skip::unknown(
            "pp_schedule",
            text,
            ["1F1B", "interleaved 1F1B", "GPipe", "ZB-H1", "ZB-H2", "ZBV"],
        ));
    })
}

/// Whether a row says how attention crosses context-parallel ranks.
pub(super) fn states_context_comm(row: &MeasuredRow) -> bool {
    let notes = row.text_or_empty("overlap_notes").to_ascii_lowercase();
    let rings = ["cp p2p", "p2p cp", "ring", "cp_comm_type=p2p", "cp_comm_type='p2p'"];
    rings.iter().any(|word| notes.contains(word))
        || context_comm(&notes).is_ok_and(|comm| comm != ContextComm::Ring)
}

/// How attention crosses context-parallel ranks, by what is noted of it: a ring unless said otherwise.
fn context_comm(notes: &str) -> Result<ContextComm, Skip> {
    // Not what is said to be missing.
    let has = |words: &[&str]| {
        words.iter().any(|word| {
            notes.match_indices(word).any(|(at, _)| {
                let before = notes[..at].trim_end();
                !["no", "not", "without"].iter().any(|no| before.split_whitespace().next_back() == Some(no))
            })
        })
    };
    if has(&["a2a+p2p"]) {
        return Err(Skip::Unsupported("context parallelism of two levels is not supported"));
    }
    Ok(if has(&["ulysses", "cp a2a", "a2a cp", "a2a-cp", "cp_comm_type=a2a", "cp_comm_type='a2a'"]) {
        ContextComm::AllToAll
    } else if has(&["cp all-gather", "all-gather cp", "cp_comm_type=all_gather", "cp_comm_type='all_gather'"])
    {
        ContextComm::AllGather
    } else {
        ContextComm::Ring
    })
}

/// XLA's rematerialisation policies, as MaxText names them (src/maxtext/layers/nnx_decoders.py, `get_remat_policy`), by
/// what they do not save: what attention gives (`context`), products of the feed-forward part, and always what is cheap.
fn rematerialisation(policy: &str) -> Result<Recompute, Skip> {
    use Module::{CoreAttention, LayerNorm, Mlp};
    const POLICIES: [(&str, &[Module]); 9] = [
        ("minimal", &[CoreAttention, LayerNorm]),
        ("minimal_with_quantization", &[CoreAttention, LayerNorm]),
        ("minimal_with_context", &[LayerNorm]),
        ("minimal_flash", &[LayerNorm]),
        ("minimal_with_context_and_quantization", &[LayerNorm]),
        ("save_dot_with_context_except_mlp", &[Mlp, LayerNorm]),
        ("save_dot_except_mlp", &[CoreAttention, Mlp, LayerNorm]),
        // The last product is saved, which the backward pass does not need.
        ("save_dot_except_mlpwi", &[CoreAttention, Mlp, LayerNorm]),
        ("save_qkv_proj", &[CoreAttention, Mlp, LayerNorm]),
    ];
    match policy {
        "none" | "save_everything" => return Ok(Recompute::None),
        // One product is saved, which the backward pass does not need.
        "full" | "save_nothing" | "save_out_proj" => return Ok(Recompute::FullUniform(1)),
        "custom" => return Err(Skip::Unsupported("a rematerialisation policy of its own is not supported")),
        _ if policy.ends_with("_offloaded") => {
            return Err(Skip::Unsupported("a rematerialisation policy that offloads is not supported"));
        }
        _ => {}
    }
    let unsaved = POLICIES.iter().find(|(name, _)| *name == policy).map(|(_, modules)| *modules);
    let known = || ["none", "full", "save_out_proj"].into_iter().chain(POLICIES.map(|(name, _)| name));
    let unsaved = unsaved.ok_or_else(|| Skip::unknown("recompute remat", policy, known()))?;
    Ok(Recompute::Selective(unsaved.iter().fold(Modules::NONE, |all, module| all.with(*module))))
}

fn read_recompute(text: &str, profile: &Profile) -> Result<Recompute, Skip> {
    let selective = |modules: &[Module]| {
        Recompute::Selective(modules.iter().fold(Modules::NONE, |all, module| all.with(*module)))
    };
    let text = text.to_ascii_lowercase();
    if let Some(policy) = text.strip_prefix("remat:") {
        return rematerialisation(policy);
    }
    match text.as_str() {
        "selective:op-level-sac" => return Ok(selective(&[Module::Operators])),
        "selective" if profile.defaults.selective_by_operator => return Ok(selective(&[Module::Operators])),
        _ => {}
    }
    let text = text.replace("shared_expert", "shared_experts").replace("expertss", "experts");
    let text = text.replace("core_attention", "core_attn").replace("rmsnorm", "layernorm");
    text.parse().map_err(|error: ParseRecomputeError| Skip::Contradiction(error.to_string()))
}

/// Layers per chunk, by the row's word or by the framework's own rule. There are at most two more chunks than
/// layers.
fn place(
    row: &MeasuredRow,
    profile: &Profile,
    model: &Model,
    layers: &Layers,
    pp: u32,
    vpp: u32,
) -> Result<Vec<u32>, Skip> {
    let (count, slots) = (layers.count(), pp * vpp);
    if let Placement::Greedy { head_weight } = profile.pipeline.placement
        && vpp == 1
    {
        return Ok(greedy(model, layers, pp, head_weight));
    }
    let even = count % slots == 0;
    let ends = row.text("pp_layout") == Some("embedding+loss as layers") || !even && (count + 2) % slots == 0;
    if ends && (count + 2) % slots == 0 && slots > 1 {
        let each = (count + 2) / slots;
        let mut counts = vec![each; slots as usize];
        counts[0] -= 1;
        counts[slots as usize - 1] -= 1;
        return Ok(counts);
    }
    if even {
        return Ok(vec![count / slots; slots as usize]);
    }
    if layers.mtp.is_some() || model.blocks.values().any(|b| matches!(b.feed_forward, FeedForward::Moe(_))) {
        // Full slots from the front; the head (and what predicts further tokens) stands in for layers
        // of the last one.
        let tail = 1 + layers.mtp.map_or(0, |(_, modules)| modules);
        let each = (count + tail).div_ceil(slots);
        let mut left = count;
        return Ok((0..slots)
            .map(|_| {
                let here = each.min(left);
                left -= here;
                here
            })
            .collect());
    }
    // Spread the remainder over the first slots.
    let (each, more) = (count / slots, count % slots);
    Ok((0..slots).map(|k| each + u32::from(k < more)).collect())
}

/// nanotron's rule: see [`Placement::Greedy`].
fn greedy(model: &Model, layers: &Layers, pp: u32, head_weight: f64) -> Vec<u32> {
    let h = model.hidden as f64;
    let width = layers.kinds.first().map_or(0.0, |kind| match &kind.block.feed_forward {
        FeedForward::Dense(d) => d.width as f64,
        _ => 4.0 * h,
    });
    let layer = 4.0 * h * h + 3.0 * h * width;
    let head = head_weight * model.vocabulary as f64 * h;
    let total = f64::from(layers.count()) * layer + head;
    let last = pp as usize - 1;
    let mut counts = vec![0u32; pp as usize];
    let (mut rank, mut sum) = (0usize, 0.0);
    for _ in 0..layers.count() {
        sum += layer;
        counts[rank] += 1;
        if sum > (rank + 1) as f64 / f64::from(pp) * total && rank < last {
            rank += 1;
        }
    }
    // The head goes to the rank that is being filled; ranks behind it stay empty. Here the head always
    // belongs to the last chunk, so what shares its rank moves there with it.
    counts.swap(rank, last);
    counts
}
