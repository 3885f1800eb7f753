//! Models that are known to need uneven stages, through whole searches and launch flags.

use autoplan::candidates::{Axis, Restrictions};
use autoplan::frameworks::Target;
use autoplan::frameworks::profile::Profile;
use autoplan::plan::Recompute;
use autoplan::planner::Task;
use autoplan::search::{Found, Request, Silent};
use autoplan::spec::load_model;
use autoplan::spec::model::Model;
use autoplan::stages::layout::{Mtp, Split, layout_chunks, module_names, write_layout};
use autoplan::stages::{Balancer, Choice, Freedom, Objective, Outcome};
use autoplan::units::Bytes;

use super::cases::{Bench, build};

/// The best plans of a job on a pipeline of `pp` ranks with `vpp` chunks each.
fn task(model: Model, cluster: &str, job: (u32, u32, u32), fixed: [u32; 3]) -> Task {
    let (gpus, global_batch_size, sequence_length) = job;
    let only = |value: u32| Axis { only: Some(vec![value]), max: None };
    let [tp, pp, vpp] = fixed;
    Task {
        model,
        restrictions: Restrictions {
            tensor_parallel: only(tp),
            pipeline_parallel: only(pp),
            virtual_stages: only(vpp),
            context_parallel: only(1),
            ..Restrictions::default()
        },
        ..Task::shipped("llama3.2-1b", cluster, gpus, global_batch_size, sequence_length).unwrap()
    }
}

/// The best plan; it has passed every check, among them layers, memory, stage times and the makespan by a
/// second simulation, and it is never slower than the even split.
fn best(task: &Task) -> Option<Found> {
    let prepared = task.prepare();
    let answer = prepared.search(&Request { top: 1, verified: 1, ..Request::default() }, &Silent);
    let found = answer.found.into_iter().next()?;
    let report = prepared.check(&found.plan, &found.prediction);
    assert!(report.passed(), "{:?}", report.failures().collect::<Vec<_>>());
    assert!(found.even.is_none_or(|even| found.prediction.step() <= even));
    #[cfg(feature = "milp")]
    if let Some(verified) = &found.verified {
        assert_eq!(verified.agrees, Some(true), "{verified:?}");
        assert!(verified.bound <= verified.chain);
    }
    Some(found)
}

fn shorten(model: &mut Model, layers: u32) {
    model.layers.truncate(1);
    model.layers[0].repeat = layers / model.layers[0].of.len() as u32;
}

fn counts(found: &Found) -> Vec<u32> {
    found.plan.chunks().iter().map(|chunk| chunk.layers).collect()
}

/// Share of its time that a plan saves against the even split.
fn gain(found: &Found) -> f64 {
    let even = found.even.expect("the even split fits");
    1.0 - found.prediction.step().0 as f64 / even.0 as f64
}

/// Published: 7 layers on the first and on the last of 16 stages, 8 on the others.
#[test]
fn llama_405b_has_fewer_layers_at_both_ends() {
    let model = load_model("llama3.1-405b").unwrap();
    let found = best(&task(model, "dgx-h100", (8_192, 4_096, 8_192), [8, 16, 1])).unwrap();
    let published = [&[7][..], &[8; 14], &[7]].concat();
    assert_eq!(counts(&found), published);
    assert_eq!(write_layout(&published, Mtp::NONE), "Et*7|(t*8|)*14,t*7,L");
    assert_eq!(Split::of(&published, 16, 1, Mtp::NONE), Split::Account { embedding: true, loss: true });
    assert!(gain(&found) > 0.05, "{}", gain(&found));
    assert!(found.split_gap < 0.02, "{}", found.split_gap);
}

/// Three dense layers, 58 with experts and a module of multi-token prediction, which is an `m` of the layout
/// and no layer of a stage.
#[test]
fn deepseek_v3_with_and_without_virtual_stages() {
    for vpp in [1, 2] {
        let model = load_model("deepseek-v3").unwrap();
        let mut task = task(model, "h800-ib", (2_048, 15_360, 4_096), [1, 16, vpp]);
        task.restrictions.expert_parallel = Axis { only: Some(vec![64]), max: None };
        task.restrictions.micro_batch_size = Axis { only: Some(vec![1]), max: None };
        task.restrictions.mtp_standalone = Some(vec![false]);
        let found = best(&task).unwrap();
        let layers = counts(&found);
        assert_eq!((layers.len() as u32, layers.iter().sum::<u32>()), (16 * vpp, 61));
        let text = write_layout(&layers, Mtp::beside_loss(1));
        assert!(text.ends_with("mL"), "{text}");
        assert_eq!(layout_chunks(&text, 61, 16, Some(1)), Ok(layers.clone()));
        let on_last: u32 = layers.iter().skip(15).step_by(16).sum();
        let most = (0..16).map(|rank| layers.iter().skip(rank).step_by(16).sum::<u32>()).max();
        assert!(Some(on_last) < most, "{layers:?}");
        if vpp == 1 {
            // With the even split the last stage has room for its head only where more is recomputed on all.
            assert!(gain(&found) > 0.2, "{}", gain(&found));
            assert!(found.split_gap < 0.02, "{}", found.split_gap);
        }
    }
}

/// A vocabulary of 256k beside small layers: published, half of the throughput is lost when the head is not
/// counted.
#[test]
fn a_vocabulary_of_256k_empties_the_last_stage() {
    let mut model = load_model("llama3.2-3b").unwrap();
    model.vocabulary = 256_000;
    let found = best(&task(model, "dgx-h100", (64, 512, 4_096), [1, 8, 1])).unwrap();
    let layers = counts(&found);
    assert!(layers[7] <= 1, "{layers:?}");
    assert!(gain(&found) > 0.15, "{}", gain(&found));
    assert!(found.split_gap < 0.02, "{}", found.split_gap);
}

/// Mamba, attention and feed-forward layers of different weight in no regular order.
#[test]
fn a_hybrid_is_balanced_by_time_and_not_by_count() {
    let model = load_model("nemotron-h-8b").unwrap();
    let found = best(&task(model, "dgx-h100", (32, 256, 8_192), [1, 4, 1])).unwrap();
    assert_eq!(counts(&found).iter().sum::<u32>(), 52);
    assert!(gain(&found) > 0.01, "{}", gain(&found));
    assert!(found.split_gap < 0.05, "{}", found.split_gap);
}

/// Early stages hold more micro-batches in flight: where every stage may choose, there are limits under
/// which only they recompute, and a choice for all is slower.
#[test]
fn only_the_first_stages_recompute() {
    let bench = Bench::new("llama3.1-8b", "dgx-h100", 16, 256, 8_192);
    let layout = bench.layout(1, 8, 1, 1, 1);
    let mut problem = build(&bench, &layout, &[Recompute::None, Recompute::FullUniform(1)], None).problem;
    let mut balancer = Balancer::new();
    problem.limit = Bytes(u64::MAX / 16);
    let (_, roomy) = balancer.even(&problem).unwrap();
    let need = roomy.memory.iter().max().unwrap().0;
    let mut seen = 0;
    for percent in 40..100 {
        problem.limit = Bytes(need * percent / 100);
        problem.freedom = Freedom::PerStage;
        let Outcome::Found(value) = balancer.solve(&problem, Objective::Chain, None) else { continue };
        let choices = balancer.assignment().recompute.clone();
        let first = choices.iter().take_while(|&&choice| choice != Choice::Mode(0)).count();
        if first == 0 || choices[first..].iter().any(|&choice| choice != Choice::Mode(0)) {
            continue;
        }
        assert!(first < choices.len() || percent < 60, "{percent} % {choices:?}");
        #[cfg(feature = "milp")]
        if seen % 4 == 0 {
            use autoplan::stages::milp;
            let answer = milp::solve(&problem, Objective::Chain, milp::Limits::default());
            let milp::Outcome::Found(answer) = answer else { panic!("{answer:?}") };
            assert!(answer.value.0.abs_diff(value.0) as f64 <= 1e-6 * value.0 as f64, "{percent} %");
        }
        problem.freedom = Freedom::Global;
        if let Outcome::Found(global) = balancer.solve(&problem, Objective::Chain, None) {
            assert!(first == choices.len() || value < global, "{percent} %");
        }
        seen += u32::from(first < choices.len());
    }
    assert!(seen > 3, "{seen}");
}

#[test]
fn thirty_layers_on_four_stages() {
    let mut model = load_model("llama3.1-8b").unwrap();
    shorten(&mut model, 30);
    let found = best(&task(model.clone(), "dgx-h100", (32, 256, 8_192), [1, 4, 1])).unwrap();
    let layers = counts(&found);
    assert_eq!(layers.iter().sum::<u32>(), 30);
    assert!(layers[3] < layers[1], "{layers:?}");
    // Seven and a half per stage cannot be even; whatever was found is written without loss.
    assert_eq!(Split::of(&layers, 4, 1, Mtp::NONE).chunks(30, 4, 1), Ok(layers.clone()));
    let names: Vec<String> = module_names(&layers).concat();
    assert_eq!(names.iter().filter(|name| name.starts_with("layers.")).count(), 30);
    // DeepSpeed has equal stages alone.
    let mut task = task(model, "dgx-h100", (32, 256, 8_192), [1, 4, 1]);
    task.target = Target::DeepSpeed;
    task.profile = Profile::find("deepspeed").unwrap();
    task.profile_name = "deepspeed".into();
    assert!(best(&task).is_none());
}

/// The embedding, the head and the modules that predict further tokens may be alone, but no stage is empty.
#[test]
fn a_stage_for_every_layer_and_every_end_is_the_most() {
    let mut model = load_model("glm4.5-air").unwrap();
    assert!(model.mtp.is_some());
    for (layers, standalone, plan) in [(6, false, true), (5, false, false), (5, true, true), (4, true, false)]
    {
        shorten(&mut model, layers);
        let mut task = task(model.clone(), "dgx-h200", (8, 64, 4_096), [1, 8, 1]);
        task.restrictions.mtp_standalone = Some(vec![standalone]);
        let alone = 1 + usize::from(standalone);
        let counts = best(&task).map(|found| counts(&found));
        let expected = [&[0][..], &vec![1; layers as usize], &vec![0; alone]].concat();
        assert_eq!(counts, plan.then_some(expected));
    }
}

/// The layout that Megatron-Core's guide shows for DeepSeek-V3 loses nothing on its way in and out, is verified, and takes
/// the head's chunk below the longest.
#[test]
fn deepseek_v3_with_multi_token_prediction_on_a_stage_of_its_own() {
    let model = load_model("deepseek-v3").unwrap();
    let mut task = task(model, "h800-ib", (2_048, 15_360, 4_096), [2, 16, 2]);
    task.restrictions.expert_parallel = Axis { only: Some(vec![32]), max: None };
    task.restrictions.micro_batch_size = Axis { only: Some(vec![1]), max: None };
    let steps = [false, true].map(|standalone| {
        let restrictions =
            Restrictions { mtp_standalone: Some(vec![standalone]), ..task.restrictions.clone() };
        let task = Task { restrictions, ..task.clone() };
        let found = best(&task).unwrap();
        assert_eq!(found.plan.layout().mtp_standalone, standalone);
        assert!(task.prepare().check(&found.plan, &found.prediction).passed());
        let layers = counts(&found);
        let text = write_layout(&layers, Mtp { modules: 1, standalone });
        assert!(text.ends_with(if standalone { "m|L" } else { "mL" }), "{text}");
        assert_eq!(layout_chunks(&text, 61, 16, Some(1)), Ok(layers));
        found.prediction.step()
    });
    assert!(steps[1] < steps[0], "{steps:?}");
}

/// More stages than layers: Megatron leaves stages empty, and a framework that cannot has no plan.
#[test]
fn more_stages_than_layers() {
    let mut model = load_model("llama3.1-8b").unwrap();
    shorten(&mut model, 6);
    let found = best(&task(model.clone(), "dgx-h100", (8, 64, 4_096), [1, 8, 1])).unwrap();
    let layers = counts(&found);
    assert_eq!((layers.len(), layers.iter().sum::<u32>()), (8, 6));
    assert!(write_layout(&layers, Mtp::NONE).contains('|'));
    let mut task = task(model, "dgx-h100", (8, 64, 4_096), [1, 8, 1]);
    task.target = "torchtitan".parse().unwrap();
    task.profile = Profile::find("torchtitan").unwrap();
    task.profile_name = "torchtitan".into();
    assert_eq!(task.target.capabilities().empty_stages, best(&task).is_some());
}
