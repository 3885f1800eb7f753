//! Specifications: shipped ones load, broken ones give diagnostics, and no text makes a parser panic.

use std::path::{Path, PathBuf};

use autoplan::cost::model::CostModel;
use autoplan::cost::step::{Prediction, predict};
use autoplan::frameworks::profile::Profile;
use autoplan::layers::Layers;
use autoplan::plan::{
    Chunk, ContextComm, CudaGraphs, Dispatcher, Layout, Offload, Plan, Recompute, Schedule,
};
use autoplan::spec::cluster::Format;
use autoplan::spec::job::{Job, Optimizer, Precision, Routing, Training};
use autoplan::spec::model::Model;
use autoplan::spec::saved::SavedPlan;
use autoplan::spec::shipped::{self, Kind, Shipped};
use autoplan::spec::{self, Machine, SpecError};
use proptest::prelude::*;

fn folder(name: &str) -> PathBuf {
    // Relative, so that the paths in diagnostics are the same on every machine; tests run in the
    // package's folder.
    Path::new("tests/specs").join(name)
}

fn files(name: &str) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> =
        std::fs::read_dir(folder(name)).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
}

/// Loads a test file; the first word of its name says what it is.
fn load(path: &Path) -> Result<(), SpecError> {
    let argument = path.to_str().unwrap();
    let name = path.file_name().unwrap().to_str().unwrap();
    match name.split('-').next().unwrap() {
        "model" => spec::load_model(argument).map(drop),
        "cluster" => spec::load_cluster(argument).map(drop),
        "accelerator" => spec::load_accelerator(argument).map(drop),
        other => panic!("what is a {other}?"),
    }
}

#[test]
fn shipped_files_load() {
    let report = |shipped: Shipped, error: SpecError| panic!("{}: {}", shipped.name, error.render(false));
    for shipped in shipped::models() {
        spec::load_model(shipped.name).map_or_else(|error| report(shipped, error), drop);
    }
    for shipped in shipped::accelerators() {
        spec::load_accelerator(shipped.name).map_or_else(|error| report(shipped, error), drop);
    }
    for shipped in shipped::clusters() {
        spec::load_cluster(shipped.name).map_or_else(|error| report(shipped, error), drop);
    }
    assert!(shipped::accelerators().len() >= 16);
    assert!(shipped::clusters().len() >= 16);
}

#[test]
fn shipped_files_survive_saving() {
    fn written<T: serde::Serialize>(value: &T) -> String {
        spec::ron_options().to_string_pretty(value, ron::ser::PrettyConfig::default()).unwrap()
    }
    let shown = |error: SpecError| -> String { error.render(false) };
    for shipped in shipped::models() {
        let model = spec::load_model(shipped.name).unwrap();
        assert_eq!(spec::model_from_text("saved", &written(&model)).map_err(shown), Ok(model));
    }
    for shipped in shipped::clusters() {
        let machine = spec::load_cluster(shipped.name).unwrap();
        let (cluster, accelerator) = (machine.cluster, machine.accelerator);
        assert_eq!(spec::cluster_from_text("saved", &written(&cluster)).map_err(shown), Ok(cluster));
        assert_eq!(
            spec::accelerator_from_text("saved", &written(&accelerator)).map_err(shown),
            Ok(accelerator)
        );
    }
}

#[test]
fn valid_files_load() {
    for path in files("valid") {
        if let Err(error) = load(&path) {
            panic!("{}", error.render(false));
        }
    }
}

#[test]
fn invalid_files_give_diagnostics() {
    let paths = files("invalid");
    assert!(paths.len() >= 25);
    for path in paths {
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let Err(error) = load(&path) else { panic!("{name} was accepted") };
        insta::with_settings!({ snapshot_path => "../specs/snapshots", prepend_module_to_snapshot => false, omit_expression => true }, {
            insta::assert_snapshot!(name, error.render(false));
        });
    }
}

#[test]
fn arguments_that_name_nothing_give_diagnostics() {
    let shown = |error: SpecError| error.render(false);
    let model = |argument: &str| shown(spec::load_model(argument).unwrap_err());
    let cluster = |argument: &str| shown(spec::load_cluster(argument).unwrap_err());
    let all = [
        cluster("dgx-h10"),
        cluster("h100"),
        cluster("DGX H100"),
        cluster("no such thing"),
        cluster(""),
        cluster("$(rm -rf /); `x` | \"y\""),
        cluster("clusters"),
        cluster("clusters/dgx-h1000.ron"),
        cluster("dgx-h100.ron"),
        model("tests/specs/missing.ron"),
        model("meta-llama/no-such-model"),
        model("x\u{1b}[31m\ny.ron"),
        shown(spec::load_accelerator("h100").unwrap_err()),
    ];
    insta::with_settings!({ snapshot_path => "../specs/snapshots", prepend_module_to_snapshot => false, omit_expression => true }, {
        insta::assert_snapshot!("arguments", all.join("\n\n"));
    });
}

#[test]
fn large_files_are_refused_quickly() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model-large.ron");
    std::fs::write(&path, "(\n".repeat(5_000_000)).unwrap();
    let error = spec::load_model(path.to_str().unwrap()).unwrap_err();
    assert!(error.title().contains("larger than 4 MB"), "{}", error.title());
    // Just below the limit: every pattern that could be slow must end soon.
    let started = std::time::Instant::now();
    for pattern in
        ["(", "((", "[", "{\"a\":", "a:", "\"", "/*", "/* */", "//\n", "r#\"", "'", "\\", ",", "é", "1"]
    {
        let text = pattern.repeat(3_900_000 / pattern.len());
        std::fs::write(&path, text).unwrap();
        let error = load(&path).unwrap_err();
        assert!(error.render(false).len() < 2000);
    }
    assert!(started.elapsed().as_secs() < 60, "{:?}", started.elapsed());
}

/// Whatever the text: a value, or an error that renders.
fn never_panics(kind: Kind, text: &str) {
    let result = match kind {
        Kind::Model => spec::model_from_text("f.ron", text).map(drop),
        Kind::Cluster => spec::cluster_from_text("f.ron", text).map(drop),
        Kind::Accelerator => spec::accelerator_from_text("f.ron", text).map(drop),
    };
    if let Err(error) = result {
        let rendered = error.render(false);
        assert!(rendered.starts_with("error: "), "{rendered}");
        assert!(rendered.contains("f.ron"), "{rendered}");
        assert!(!error.render(true).is_empty());
        assert!(!error.to_string().contains('\n'));
    }
}

/// A small plan with everything around it, as text.
fn saved_plan() -> &'static str {
    static TEXT: std::sync::LazyLock<String> = std::sync::LazyLock::new(|| {
        let model = spec::load_model("mixtral-8x7b").unwrap();
        let machine = spec::load_cluster("dgx-h100").unwrap();
        let job = Job {
            gpus: 16,
            global_batch_size: 64,
            sequence_length: 4096,
            precision: Precision::Bf16,
            optimizer: Optimizer::Adamw,
            training: Training::Full,
            memory_limit: None,
            tokens: None,
            routing: Routing::Balanced,
            packed: None,
            expert_capacity: None,
        };
        let layout = Layout {
            tensor_parallel: 2,
            pipeline_parallel: 2,
            virtual_stages: 1,
            context_parallel: 1,
            expert_parallel: 4,
            expert_tensor_parallel: 1,
            data_parallel: 4,
            sequence_parallel: true,
            micro_batch_size: 1,
            gradient_accumulation_steps: 16,
            zero_stage: 1,
            shard_group: 4,
            schedule: Schedule::OneFOneB,
            context_comm: ContextComm::Ring,
            dispatcher: Some(Dispatcher::AllToAll),
            tensor_overlap: false,
            data_overlap: true,
            expert_overlap: false,
            shared_overlap: false,
            mtp_standalone: false,
            cuda_graphs: CudaGraphs::None,
            offload: Offload::NONE,
        };
        let chunk = Chunk { layers: 16, recompute: Recompute::None };
        let plan = Plan::new(layout, vec![chunk; 2], 16, 64, 32).unwrap();
        let prediction = predicted(&model, &machine, &job, &plan);
        SavedPlan::new(("megatron", "megatron"), &model, &machine, &job, &plan, &prediction)
            .to_text()
            .unwrap()
    });
    &TEXT
}

fn predicted(model: &Model, machine: &Machine, job: &Job, plan: &Plan) -> Prediction {
    let layers = Layers::new(model);
    let profile = Profile::find("megatron").unwrap();
    let cost = CostModel::new(model, &layers, &machine.cluster, &machine.accelerator, profile, job);
    predict(&cost, &layers, plan)
}

#[test]
fn saved_plans_predict_the_same_again() {
    let (saved, plan) = SavedPlan::from_text("saved.ron", saved_plan()).unwrap();
    let again = predicted(&saved.model, &saved.machine(), &saved.job, &plan);
    assert_eq!(again.step().seconds().0.to_bits(), saved.predicted_step_s.to_bits());
    assert_eq!(again.allocated, saved.predicted_allocated);
}

fn kind() -> impl Strategy<Value = Kind> {
    prop_oneof![Just(Kind::Model), Just(Kind::Cluster), Just(Kind::Accelerator)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_bytes_never_panic(kind in kind(), bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        never_panics(kind, &String::from_utf8_lossy(&bytes));
    }

    #[test]
    fn random_structure_never_panics(kind in kind(), text in "[(){}\\[\\]:,\"'/*a-z0-9 \\n#rb\\\\.é-]{0,200}") {
        never_panics(kind, &text);
    }

    #[test]
    fn mutated_files_never_panic(
        (kind, which, cut, edits) in (
            kind(),
            any::<prop::sample::Index>(),
            proptest::option::of(any::<prop::sample::Index>()),
            proptest::collection::vec((any::<prop::sample::Index>(), 0..3u8, "[(){}\\[\\]:,\"'/*0-9a-z\\n é.-]"), 0..6),
        )
    ) {
        let all = kind.all();
        prop_assume!(!all.is_empty());
        let mut characters: Vec<char> = which.get(&all).text.chars().collect();
        if let Some(cut) = cut {
            characters.truncate(cut.index(characters.len()));
        }
        for (place, action, new) in edits {
            if characters.is_empty() {
                break;
            }
            let at = place.index(characters.len());
            let new = new.chars().next().unwrap_or('x');
            match action {
                0 => characters[at] = new,
                1 => characters.insert(at, new),
                _ => drop(characters.remove(at)),
            }
        }
        never_panics(kind, &characters.into_iter().collect::<String>());
    }

    #[test]
    fn mutated_saved_plans_never_panic(
        which in any::<prop::sample::Index>(),
        value in prop_oneof!["[0-9]{1,3}", "-?[0-9]{1,25}(\\.[0-9]{0,3})?", Just("NaN".to_owned()), "[a-zA-Z(){}\\[\\]]{0,8}"],
    ) {
        let text = saved_plan();
        let colons: Vec<usize> = text.match_indices(':').map(|(at, _)| at + 1).collect();
        let at = *which.get(&colons);
        let end = at + text[at..].find([',', '\n', ')']).unwrap_or(0);
        let changed = format!("{}{value}{}", &text[..at], &text[end..]);
        match SavedPlan::from_text("f.ron", &changed) {
            // What passes can be predicted.
            Ok((saved, plan)) => drop(predicted(&saved.model, &saved.machine(), &saved.job, &plan)),
            Err(error) => assert!(error.render(false).starts_with("error: ")),
        }
    }

    #[test]
    fn numbers_of_any_kind_never_panic(
        which in any::<prop::sample::Index>(),
        value in prop_oneof!["-?[0-9]{1,25}(\\.[0-9]{0,3})?(e-?[0-9]{1,4})?", Just("NaN".to_owned()), Just("-inf".to_owned()), "\"-?[0-9.eE]{0,9}[a-zA-Z/]{0,6}\""],
    ) {
        // Any value of the file, replaced.
        let text = Kind::Cluster.find("dgx-h100").unwrap().text;
        let colons: Vec<usize> = text.match_indices(": ").map(|(at, _)| at + 2).collect();
        let at = *which.get(&colons);
        let end = at + text[at..].find([',', '\n']).unwrap_or(0);
        never_panics(Kind::Cluster, &format!("{}{value}{}", &text[..at], &text[end..]));
    }
}

/// Cards that run at 500 W instead of 700 W were measured, and their rates fitted by themselves: the law of the cap, which was
/// not fitted to those, comes within a twentieth of them.
#[test]
fn a_power_cap_slows_a_card_as_capped_ones_were_measured() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("capped.ron");
    let own = std::fs::read_to_string("clusters/dgx-h100.ron").unwrap();
    let load = |cap: &str| {
        let text = own.replacen("energy: (", &format!("energy: (\n        power_cap: \"{cap}\","), 1);
        std::fs::write(&path, text).unwrap();
        spec::load_cluster(path.to_str().unwrap())
    };
    let capped = load("500W").unwrap().accelerator;
    let measured = spec::load_accelerator("h100-hbm2e-500w").unwrap();
    for format in [Format::Bf16, Format::Fp8] {
        let (ours, theirs) = (capped.rates[&format].sustained, measured.rates[&format].sustained);
        assert!((ours / theirs - 1.0).abs() < 0.05, "{format:?}: {ours} {theirs}");
    }
    let whole = spec::load_cluster("dgx-h100").unwrap().accelerator;
    assert_eq!(load("700W").unwrap().accelerator, whole);
    assert_eq!((capped.power.0, capped.memory_bandwidth), (500.0, whole.memory_bandwidth));
    for (kernel, rates) in &whole.attention {
        let slower = capped.attention[kernel];
        assert!(slower.forward.0 < rates.forward.0 && slower.backward.0 < rates.backward.0);
    }
    let line = own.lines().position(|line| line.contains("energy: (")).unwrap() + 2;
    for cap in ["800W", "100W"] {
        let error = load(cap).unwrap_err().render(false);
        let place = format!("capped.ron:{line}:");
        assert!(error.contains(&place) && error.contains("expected 350W to 700W"), "{error}");
    }
}
