//! Every level of bounds against the layouts below it, all of them settled.

use super::balance::TablesOf;
use super::best::{Settled, Threshold};
use super::groups::Seen;
use super::*;
use crate::candidates::{Axis, Restrictions};
use crate::cost::schedule::LANES;
use crate::frameworks::profile::Profile;
use crate::plan::{Recompute, Schedule};
use crate::planner::Task;
use crate::spec::model::Mtp;
use crate::spec::ron_options;
use crate::stages::{Assignment, Move};
use crate::units::Bytes;

fn tight(model: &str, gpus: u32, batch: u32, limit: u64) -> Task {
    let mut task = Task::shipped(model, "dgx-h100", gpus, batch, 4096).expect("ships");
    task.job.memory_limit = Some(Bytes(limit));
    task.restrictions.micro_batch_size = Axis { only: None, max: Some(2) };
    task.restrictions.virtual_stages = Axis { only: None, max: Some(2) };
    task
}

/// A model whose further predictions may stand alone, on few stages.
fn predicting() -> Task {
    let mut task = tight("llama3.2-1b", 16, 32, 24_000_000_000);
    let block = task.model.layers[0].of[0].clone();
    task.model.mtp = Some(Mtp { modules: 2, block });
    task.restrictions.pipeline_parallel = Axis { only: Some(vec![4]), max: None };
    task
}

/// A task with zero-bubble schedules, and few micro-batches, so that their bounds decide.
fn split_backward() -> Task {
    let mut task = tight("llama3.2-1b", 8, 8, 60_000_000_000);
    task.target = crate::frameworks::Target::Torchtitan;
    let zero_bubble = vec![Schedule::ZeroBubbleV, Schedule::DualPipe, Schedule::OneFOneB];
    task.restrictions.schedule = Some(zero_bubble);
    task
}

/// A model whose middle takes longest and whose first rank has most parameters.
const HUMPED: &str = r#"(
    schema: 1, name: "Humped", hidden: 2048, vocabulary: 32000, norm_epsilon: 1e-6, max_sequence: 16384,
    position: RotaryWith(base: 10000.0, share: 1.0),
    blocks: {
        "light": (
            mixer: Attention(heads: 16, kv_heads: 2, head_dim: 128, window: 256),
            feed_forward: Moe(experts: 64, top_k: 1, width: 1024),
        ),
        "heavy": (
            mixer: Attention(heads: 16, kv_heads: 2, head_dim: 128, window: 256),
            feed_forward: Dense(width: 32768),
        ),
    },
    layers: [(repeat: 3, of: ["light"]), (repeat: 2, of: ["heavy"]), (repeat: 3, of: ["light"])],
)"#;

/// Tasks with backward passes in two parts, the second of which others need not wait for: with fewer micro-batches than
/// ranks; and where others are at work when the first rank has ended and reduces its gradients.
fn delayed_weights() -> [Task; 2] {
    let few = tight("llama3.2-1b", 8, 4, 60_000_000_000);
    let mut humped = Task::shipped("llama3.2-1b", "h100-efa", 32, 64, 16_384).expect("ships");
    humped.model = ron_options().from_str(HUMPED).expect("a model");
    humped.job.memory_limit = Some(Bytes(4_000_000_000_000));
    let one = || Axis::exactly(1);
    humped.restrictions = Restrictions {
        tensor_parallel: one(),
        context_parallel: one(),
        expert_parallel: one(),
        micro_batch_size: one(),
        pipeline_parallel: Axis::exactly(4),
        schedule: Some(vec![Schedule::DualPipe]),
        data_overlap: Some(vec![false]),
        ..Restrictions::default()
    };
    [few, humped].map(|mut task| {
        task.target = crate::frameworks::Target::HaiLlm;
        (task.profile_name, task.profile) = Profile::of(task.target);
        task
    })
}

/// Tasks with a micro-batch or two per replica, so that gradients and weights on the network decide; from ZeRO-2 on they
/// are there in the passes as well.
fn short_steps() -> [Task; 2] {
    let mut sharded = tight("llama3.2-1b", 16, 16, 60_000_000_000);
    sharded.target = crate::frameworks::Target::DeepSpeed;
    [tight("llama3.2-1b", 32, 32, 60_000_000_000), sharded]
}

/// Looks at every group of the spaces of some tasks, and its first bound.
fn each_group(tasks: &[Task], mut look: impl FnMut(&Search<'_>, Group, Picos, &mut Scratch)) {
    for task in tasks {
        let prepared = task.prepare();
        let cost = prepared.cost();
        let space = Space::new(task.target, &prepared.context, &task.restrictions);
        let search = Search { cost: &cost, layers: &prepared.layers, space: &space };
        let mut scratch = Scratch::default();
        for (first, group) in search.first_bounds(&space.groups()) {
            look(&search, group, first, &mut scratch);
        }
    }
}

/// Every layout of a group that could matter, with its time.
fn settled(
    search: &Search<'_>,
    group: Group,
    exhaustive: bool,
    any: Option<Picos>,
    scratch: &mut Scratch,
) -> Vec<Settled> {
    let request = Request { top: usize::MAX, per_class: usize::MAX, exhaustive, ..Request::default() };
    let next = Bounded { bound: Picos::ZERO, group, third: true };
    let opened = search.open(&next, &request, Threshold { any, own: None }, Seen::Every, &Silent, scratch);
    opened.expect("nobody told it to stop").settled
}

/// No bound on a group is above the time of any layout of it, and no way to recompute that a layout uses
/// is called hopeless at the layout's own time.
#[test]
fn no_bound_on_a_group_is_above_its_layouts() {
    let tasks = [
        tight("llama3.1-8b", 16, 64, 20_000_000_000),
        tight("deepseek-v2-lite", 8, 32, 45_000_000_000),
        tight("nemotron-h-8b", 8, 32, 30_000_000_000),
        predicting(),
    ];
    let tasks = [&tasks[..], &delayed_weights()].concat();
    let (mut groups, mut recomputing, mut sharper) = (0, 0, 0);
    each_group(&tasks, |search, group, first, scratch| {
        let settled = settled(search, group, true, None, scratch);
        let Some(least) = settled.iter().map(|settled| settled.time).min() else { return };
        assert!(first <= least, "{group:?}: first bound {first}, time {least}");
        let second = search.second_bound(first, None, &group, scratch).expect("something fits");
        assert!(second <= least, "{group:?}: second bound {second}, time {least}");
        let next = Bounded { bound: second, group, third: false };
        let third = search.third_bound(&next, None, scratch).expect("something fits");
        assert!(third <= least, "{group:?}: third bound {third}, time {least}");
        sharper += u32::from(second > first) + u32::from(third > second);
        groups += 1;
        for one in settled.iter().step_by(31) {
            let limit = Threshold { any: Some(one.time), own: None };
            let hopeless = search.hopeless(&group, Offload::NONE, limit, scratch);
            for chunk in one.plan.chunks().iter().filter(|chunk| chunk.layers > 0) {
                let block = matches!(chunk.recompute, Recompute::FullBlock(_)) && hopeless.block;
                assert!(!block && !hopeless.modes.contains(&chunk.recompute), "{}", one.plan);
                recomputing += u32::from(chunk.recompute != Recompute::None);
            }
        }
    });
    assert!(groups > 30 && recomputing > 100 && sharper > 20, "{groups} {recomputing} {sharper}");
}

/// Whatever has to be beaten, a group yields every layout that does not take longer, with the plan that it
/// has where nothing has to be beaten.
#[test]
fn a_threshold_drops_nothing_below_it() {
    let tasks = [
        tight("llama3.1-8b", 16, 64, 20_000_000_000),
        tight("llama3.2-1b", 8, 16, 60_000_000_000),
        tight("nemotron-h-8b", 8, 16, 75_000_000_000),
        tight("deepseek-v2-lite", 8, 32, 45_000_000_000),
        predicting(),
        split_backward(),
    ];
    let tasks = [&tasks[..], &short_steps(), &delayed_weights()].concat();
    let mut below = 0;
    each_group(&tasks, |search, group, _, scratch| {
        let mut sorted = |exhaustive: bool, any: Option<Picos>| {
            let mut settled = settled(search, group, exhaustive, any, scratch);
            settled.retain(|one| any.is_none_or(|any| one.time <= any));
            settled.sort_by(|a, b| a.key().cmp(&b.key()));
            settled.into_iter().map(|one| (one.time, one.plan)).collect::<Vec<_>>()
        };
        let everything = sorted(true, None);
        for (time, _) in everything.iter().take(24).chain(everything.iter().skip(24).step_by(97)) {
            let found = sorted(false, Some(*time));
            let expected = &everything[..everything.partition_point(|(other, _)| other <= time)];
            assert_eq!(found.len(), expected.len(), "{group:?}, threshold {time}");
            assert!(found == expected, "{group:?}, threshold {time}");
            below += found.len();
        }
    });
    assert!(below > 10_000, "{below}");
}

/// What splits take at least when several are simulated at once is not above what each takes, as far as it matters which is
/// faster than the split they come from; and nearly all that are slower are seen to be.
#[test]
fn a_glance_at_moved_layers_is_not_above_their_times() {
    let tasks = [
        tight("llama3.1-8b", 16, 64, 20_000_000_000),
        tight("nemotron-h-8b", 8, 32, 30_000_000_000),
        tight("deepseek-v2-lite", 8, 32, 45_000_000_000),
    ];
    let (mut faster, mut slower, mut seen, mut refused) = (0, 0, 0, 0);
    each_group(&tasks, |search, group, _, scratch| {
        let settled = settled(search, group, true, None, scratch);
        let chunked = settled.iter().filter(|one| one.plan.layout().virtual_stages > 1);
        for Settled { time, plan } in chunked.step_by(61) {
            let layout = plan.layout();
            let priced = search.price(&CellKey::from(layout), scratch);
            let sharding = search.cost.sharding(layout);
            let tables = TablesOf { cell: &priced.cell, sharding: &sharding, hop: search.cost.hop(layout) };
            let balancing = search.balancing(layout, tables, scratch);
            let from = balancing.assignment(plan.chunks());
            let count = from.layers.len();
            let pairs = (0..count).flat_map(|less| (0..count).map(move |more| (less, more)));
            let legal = |&(less, more): &(usize, usize)| less != more && from.layers[less] > 0;
            let moves: Vec<Move> = pairs.filter(legal).map(|pair| Move::from_slice(&[pair])).collect();
            for moves in moves.chunks(LANES) {
                let trials: Vec<Assignment> = moves.iter().map(|pairs| from.after(pairs)).collect();
                let least = search.glance(layout, &balancing, &trials, tables, *time, scratch);
                for (trial, least) in trials.iter().zip(least) {
                    let Some(plan) = search.completion(layout, &balancing, trial, tables, |_| true, scratch)
                    else {
                        refused += 1;
                        continue;
                    };
                    scratch.known.clear();
                    let taken = search.time(layout, trial, &plan, tables, scratch);
                    if taken < *time {
                        assert!(least <= taken, "{plan}: {least} is above {taken}");
                        faster += 1;
                    } else if taken > time.scale(1.02) {
                        // Traffic at the ends of a step is not simulated.
                        slower += 1;
                        seen += u32::from(least >= *time);
                    }
                }
            }
        }
    });
    println!("{faster} faster, {seen} of {slower} slower, {refused} refused");
    assert!(faster > 100 && slower > 500 && refused > 100);
    assert!(10 * seen > 9 * slower, "{seen} of {slower}");
}
