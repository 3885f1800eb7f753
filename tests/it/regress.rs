//! Result files and the regression of best plans: every verdict, every exit code, and what happens when
//! files are damaged, folders refuse, disks are full and writers are killed.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

use autoplan::cost::model::CostModel;
use autoplan::cost::step::predict;
use autoplan::frameworks::profile::Profile;
use autoplan::layers::Layers;
use autoplan::plan::{Chunk, ContextComm, CudaGraphs, Layout, Offload, Plan, Recompute, Schedule};
use autoplan::regress::scenario::ScenarioPlanner;
use autoplan::regress::{FailOn, Observer, Options, Planner, Report, Silent, Verdict, regress};
use autoplan::results::{
    ChunkRun, Objective, Outcome, Planned, SCHEMA, Scenario, Store, StoredResult, read_scenarios,
    result_from_text, result_to_text, scenarios_from_text, write_atomically,
};
use autoplan::search::{Request, Silent as NoProgress};
use autoplan::spec::job::{Job, Optimizer, Precision, Routing, Training};
use autoplan::spec::{load_cluster, load_model};
use autoplan::units::Bytes;
use autoplan::validate::baseline::Worse;

/// Plans a scenario by predicting a few layouts with the real cost model.
#[derive(Clone)]
struct Few {
    /// Factor on the bandwidth of tensor-parallel collectives.
    ring: f64,
    /// Factor on the prices.
    price: f64,
    /// Limit on memory, in GB.
    limit: f64,
    /// Tensor-parallel degrees that the search looks at.
    degrees: Vec<u32>,
}

impl Default for Few {
    fn default() -> Self {
        Self { ring: 1.0, price: 1.0, limit: 80.0, degrees: vec![2, 4, 8] }
    }
}

impl Few {
    fn layout(tensor_parallel: u32, gpus: u32, batch: u32) -> Layout {
        let data_parallel = gpus / tensor_parallel;
        Layout {
            tensor_parallel,
            pipeline_parallel: 1,
            virtual_stages: 1,
            context_parallel: 1,
            expert_parallel: 1,
            expert_tensor_parallel: 1,
            data_parallel,
            sequence_parallel: tensor_parallel > 1,
            micro_batch_size: 1,
            gradient_accumulation_steps: batch / data_parallel,
            zero_stage: 1,
            shard_group: data_parallel,
            schedule: Schedule::OneFOneB,
            context_comm: ContextComm::Ring,
            dispatcher: None,
            tensor_overlap: false,
            data_overlap: true,
            expert_overlap: false,
            shared_overlap: false,
            mtp_standalone: false,
            cuda_graphs: CudaGraphs::None,
            offload: Offload::NONE,
        }
    }

    fn predict(&self, scenario: &Scenario, layout: Layout) -> Result<Planned, String> {
        let model = load_model(&scenario.model).map_err(|e| e.to_string())?;
        let mut machine = load_cluster(&scenario.clusters[0]).map_err(|e| e.to_string())?;
        let up = &mut machine.cluster.scale_up;
        up.ring = up.ring * self.ring;
        let gpus = scenario.gpus[0];
        let job = Job {
            gpus,
            global_batch_size: scenario.global_batch_size,
            sequence_length: scenario.sequence_length,
            precision: scenario.precision,
            optimizer: scenario.optimizer,
            training: Training::Full,
            memory_limit: Some(Bytes::from_f64(self.limit * 1e9)),
            tokens: None,
            routing: Routing::Balanced,
            packed: None,
            expert_capacity: None,
        };
        let layers = Layers::new(&model);
        let profile = Profile::find("megatron").unwrap();
        let cost = CostModel::new(&model, &layers, &machine.cluster, &machine.accelerator, profile, &job);
        let chunk = Chunk { layers: layers.count(), recompute: Recompute::None };
        let plan = Plan::new(layout, vec![chunk], gpus, scenario.global_batch_size, layers.count());
        let plan = plan.map_err(|e| e.to_string())?;
        let prediction = predict(&cost, &layers, &plan);
        if prediction.allocated > cost.memory_limit() {
            return Err(format!("needs {} of {}", prediction.allocated, cost.memory_limit()));
        }
        let memory = prediction.memory.iter().max_by_key(|rank| rank.total()).unwrap();
        let step = prediction.step();
        let rate = machine.cluster.price.on_demand * self.price;
        Ok(Planned {
            plan: plan.to_string(),
            cluster: scenario.clusters[0].clone(),
            gpus,
            step_time_ps: step.0,
            usd_per_step: (rate * step.seconds()).0 * f64::from(gpus),
            memory_bytes: memory.total().0,
            time_ps: prediction.times.iter().filter(|(_, t)| t.0 > 0).map(|(n, t)| (n.into(), t.0)).collect(),
            memory: [
                ("weights", memory.weights),
                ("gradients", memory.gradients),
                ("optimizer", memory.optimizer),
                ("activations", memory.activations),
                ("transient", memory.transient),
                ("pools", memory.pools),
                ("buffers", memory.buffers),
            ]
            .into_iter()
            .filter(|(_, bytes)| bytes.0 > 0)
            .map(|(name, bytes)| (name.to_owned(), bytes.0))
            .collect(),
            layout,
            chunks: ChunkRun::of(plan.chunks()),
        })
    }
}

impl Planner for Few {
    fn plan(&self, scenario: &Scenario) -> Result<Outcome, String> {
        load_model(&scenario.model).map_err(|e| e.to_string())?;
        let mut refused = String::new();
        let mut plans = Vec::new();
        for &degree in &self.degrees {
            let layout = Self::layout(degree, scenario.gpus[0], scenario.global_batch_size);
            match self.predict(scenario, layout) {
                Ok(planned) => plans.push(planned),
                Err(why) => refused = why,
            }
        }
        plans.sort_by_key(|p| (p.step_time_ps, p.plan.clone()));
        let mut plans = plans.into_iter();
        Ok(match plans.next() {
            Some(best) => Outcome::Planned { best, runners_up: plans.take(2).collect() },
            None => Outcome::Infeasible { reason: refused },
        })
    }
    fn price(&self, scenario: &Scenario, planned: &Planned) -> Result<Planned, String> {
        self.predict(scenario, planned.layout)
    }
}

fn scenario(model: &str, gpus: u32) -> Scenario {
    Scenario {
        model: model.into(),
        clusters: vec!["dgx-h100".into()],
        gpus: vec![gpus],
        global_batch_size: 64,
        sequence_length: 8192,
        objective: Objective::Time,
        framework: "megatron".into(),
        precision: Precision::Bf16,
        optimizer: Optimizer::Adamw,
    }
}

fn scenarios() -> Vec<Scenario> {
    vec![scenario("llama3.1-8b", 8), scenario("llama3.1-8b", 16), scenario("llama2-13b", 16)]
}

const UPDATE: Options = Options { tolerance: 0.005, update: true, partial: false };
const CHECK: Options = Options { tolerance: 0.005, update: false, partial: false };

fn stored(folder: &Path, planner: &Few) -> Store {
    let store = Store::new(folder.join("best"));
    let report = regress(&scenarios(), &store, planner, &UPDATE, &Silent);
    assert!(report.scenarios.iter().all(|e| e.verdict == Verdict::New && e.written), "{}", report.table());
    store
}

fn verdicts(report: &Report) -> Vec<Verdict> {
    report.scenarios.iter().map(|entry| entry.verdict).collect()
}

fn temporary() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

#[test]
fn nothing_changed_is_exit_0_and_writes_nothing() {
    let folder = temporary();
    let store = stored(folder.path(), &Few::default());
    let before = snapshot(folder.path());
    let counter = Counting(AtomicUsize::new(0));
    let report = regress(&scenarios(), &store, &Few::default(), &UPDATE, &counter);
    assert_eq!(verdicts(&report), [Verdict::Same; 3]);
    assert_eq!(report.exit_code(FailOn::Any), 0);
    assert_eq!(counter.0.load(Ordering::SeqCst), 3);
    assert!(report.scenarios.iter().all(|entry| !entry.written));
    assert_eq!(snapshot(folder.path()), before);
    assert_eq!(report.table(), "3 scenarios: 3 same\n");
}

struct Counting(AtomicUsize);
impl Observer for Counting {
    fn finished(&self, _: &str) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// Every file of a folder with its content.
fn snapshot(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                files.push((path.clone(), std::fs::read(&path).unwrap()));
            }
        }
    }
    files.sort();
    files
}

#[test]
fn a_slower_all_reduce_is_named_in_every_scenario_that_uses_it() {
    let folder = temporary();
    // Without a choice of degrees the plan stays, and its prediction moves.
    let fixed = Few { degrees: vec![8], ..Few::default() };
    let store = stored(folder.path(), &fixed);
    let slower = Few { ring: 0.9, ..fixed.clone() };
    let report = regress(&scenarios(), &store, &slower, &CHECK, &Silent);
    for entry in &report.scenarios {
        assert_eq!(entry.verdict, Verdict::Moved, "{}", entry.message);
        assert!(entry.change.unwrap() > 0.005);
        assert_eq!(entry.items[0].item, "tensor_parallel");
        // A ninth more of the part that grows with the payload; latency stays.
        let growth = entry.items[0].after / entry.items[0].before;
        assert!(growth > 1.05 && growth < 1.0 / 0.9 + 1e-9, "{growth}");
        assert!(entry.message.contains("tensor_parallel"), "{}", entry.message);
        assert!(report.table().contains(&entry.scenario));
    }
    assert_eq!(report.exit_code(FailOn::Any), 1);
    assert_eq!(report.exit_code(FailOn::Worse), 1);
    // Faster again is a change, and none that is worse.
    let faster = Few { ring: 1.2, ..fixed.clone() };
    let report = regress(&scenarios(), &store, &faster, &CHECK, &Silent);
    assert_eq!(verdicts(&report), [Verdict::Moved; 3]);
    assert_eq!((report.exit_code(FailOn::Any), report.exit_code(FailOn::Worse)), (1, 0));
    // A tolerance that covers it keeps quiet.
    let wide = Options { tolerance: 0.5, ..CHECK };
    assert_eq!(verdicts(&regress(&scenarios(), &store, &slower, &wide, &Silent)), [Verdict::Same; 3]);
}

#[test]
fn a_plan_that_the_search_loses_is_worse_and_one_that_it_finds_better() {
    let folder = temporary();
    let few = [scenario("llama3.1-8b", 8)];
    let narrow = Few { degrees: vec![8], ..Few::default() };
    let wide = Few::default();
    let store = Store::new(folder.path());
    let report = regress(&few, &store, &narrow, &UPDATE, &Silent);
    assert_eq!(verdicts(&report), [Verdict::New]);
    assert_eq!(report.exit_code(FailOn::Any), 1);

    let report = regress(&few, &store, &wide, &CHECK, &Silent);
    assert_eq!(verdicts(&report), [Verdict::Better]);
    assert!(report.scenarios[0].message.contains("the search found another"), "{}", report.table());
    assert_eq!((report.exit_code(FailOn::Any), report.exit_code(FailOn::Worse)), (1, 0));

    let report = regress(&few, &store, &wide, &UPDATE, &Silent);
    assert!(report.scenarios[0].written);
    assert!(report.commit_message().starts_with("Best plans: 1 of 1 results change"));
    assert!(report.commit_message().contains("better -"), "{}", report.commit_message());

    let report = regress(&few, &store, &narrow, &CHECK, &Silent);
    assert_eq!(verdicts(&report), [Verdict::Worse]);
    assert!(report.scenarios[0].message.contains("missed the stored plan"), "{}", report.table());
    assert_eq!(report.exit_code(FailOn::Worse), 1);
}

#[test]
fn another_plan_at_equal_cost_is_no_failure() {
    /// Two plans of one cost, in an order that can change.
    struct Tie(bool);
    impl Planner for Tie {
        fn plan(&self, scenario: &Scenario) -> Result<Outcome, String> {
            let few = Few::default();
            let mut a = few.predict(scenario, Few::layout(8, 8, 64))?;
            let mut b = few.predict(scenario, Few::layout(4, 8, 64))?;
            b.time_ps = a.time_ps.clone();
            (b.step_time_ps, b.usd_per_step) = (a.step_time_ps, a.usd_per_step);
            if self.0 {
                std::mem::swap(&mut a, &mut b);
            }
            Ok(Outcome::Planned { best: a, runners_up: vec![b] })
        }
        fn price(&self, _: &Scenario, planned: &Planned) -> Result<Planned, String> {
            Ok(planned.clone())
        }
    }
    let folder = temporary();
    let store = Store::new(folder.path());
    let few = [scenario("llama3.1-8b", 8)];
    let _ = regress(&few, &store, &Tie(false), &UPDATE, &Silent);
    let report = regress(&few, &store, &Tie(true), &CHECK, &Silent);
    assert_eq!(verdicts(&report), [Verdict::EqualCost]);
    assert_eq!(report.exit_code(FailOn::Any), 0);
    // It is written all the same: the file shows today's answer.
    assert!(regress(&few, &store, &Tie(true), &UPDATE, &Silent).scenarios[0].written);
}

#[test]
fn plans_that_fit_no_more_are_infeasible_now() {
    let folder = temporary();
    let store = stored(folder.path(), &Few::default());
    let small = Few { limit: 5.0, ..Few::default() };
    let report = regress(&scenarios(), &store, &small, &UPDATE, &Silent);
    assert_eq!(verdicts(&report), [Verdict::InfeasibleNow; 3]);
    assert!(report.scenarios[0].message.contains("refused now: needs"), "{}", report.table());
    assert_eq!(report.exit_code(FailOn::Worse), 1);
    let report = regress(&scenarios(), &store, &small, &CHECK, &Silent);
    assert_eq!(verdicts(&report), [Verdict::Same; 3]);
    let report = regress(&scenarios(), &store, &Few::default(), &CHECK, &Silent);
    assert_eq!(verdicts(&report), [Verdict::FeasibleNow; 3]);
    assert_eq!((report.exit_code(FailOn::Any), report.exit_code(FailOn::Worse)), (1, 0));
    // A memory model that refuses the stored plan leads to another one.
    let folder = temporary();
    let few = [scenario("llama3.1-8b", 8)];
    let store = Store::new(folder.path());
    let _ = regress(&few, &store, &Few { degrees: vec![4, 8], ..Few::default() }, &UPDATE, &Silent);
    let Ok(Some(result)) = store.read(&few[0].name()) else { panic!() };
    let Outcome::Planned { best, runners_up } = result.outcome else { panic!() };
    let between = 0.5 * (best.memory_bytes.max(runners_up[0].memory_bytes) as f64 / 1e9)
        + 0.5 * (best.memory_bytes.min(runners_up[0].memory_bytes) as f64 / 1e9);
    if best.memory_bytes > runners_up[0].memory_bytes {
        let tight = Few { limit: between, degrees: vec![4, 8], ..Few::default() };
        let report = regress(&few, &store, &tight, &CHECK, &Silent);
        assert_eq!(verdicts(&report), [Verdict::Worse]);
        assert!(report.scenarios[0].message.contains("refused now"), "{}", report.table());
    }
}

#[test]
fn prices_move_the_cost_objective_alone() {
    let folder = temporary();
    let store = Store::new(folder.path());
    let time = scenario("llama3.1-8b", 8);
    let few = [time.clone(), Scenario { objective: Objective::Cost, ..time }];
    let _ = regress(&few, &store, &Few::default(), &UPDATE, &Silent);
    let dearer = Few { price: 1.25, ..Few::default() };
    let report = regress(&few, &store, &dearer, &CHECK, &Silent);
    assert_eq!(verdicts(&report), [Verdict::Same, Verdict::Moved]);
    let items = &report.scenarios[1].items;
    assert_eq!(items.iter().map(|i| i.item.as_str()).collect::<Vec<_>>(), ["price_per_gpu_hour"]);
    assert!((items[0].after / items[0].before - 1.25).abs() < 1e-9);
}

#[test]
fn damaged_files_are_named_and_the_rest_is_reported() {
    let folder = temporary();
    let store = stored(folder.path(), &Few::default());
    let list = scenarios();
    let path = store.path(&list[1].name());
    let good = std::fs::read_to_string(&path).unwrap();
    let step = good.split("step_time_ps: ").nth(1).unwrap().split(',').next().unwrap();
    let damage: Vec<(&str, Vec<u8>, &str)> = vec![
        ("empty", Vec::new(), "the file is empty"),
        ("truncated", good.as_bytes()[..good.len() / 2].to_vec(), "never closed"),
        (
            "cut at a line",
            good.lines().take(12).flat_map(|l| [l.as_bytes(), b"\n"].concat()).collect(),
            "never closed",
        ),
        ("binary", vec![0, 159, 146, 150], "byte 0 is zero"),
        ("not UTF-8", [good.as_bytes(), &[0xff, 0xfe]].concat(), "not UTF-8"),
        ("edited", good.replace(step, &format!("1{step}")).into_bytes(), "changed by hand"),
        ("an unknown field", good.replacen("digest:", "mood: 3, digest:", 1).into_bytes(), "unknown field"),
        ("older", good.replacen(&format!("schema: {SCHEMA}"), "schema: 0", 1).into_bytes(), "schema 0"),
    ];
    for (what, bytes, says) in damage {
        std::fs::write(&path, &bytes).unwrap();
        let report = regress(&list, &store, &Few::default(), &CHECK, &Silent);
        assert_eq!(verdicts(&report), [Verdict::Same, Verdict::Unreadable, Verdict::Same], "{what}");
        let message = &report.scenarios[1].message;
        assert!(message.contains(says), "{what}: {message}");
        assert!(message.contains(&path.display().to_string()), "{what}: {message}");
        assert_eq!(report.exit_code(FailOn::Worse), 2, "{what}");
        assert_eq!(std::fs::read(&path).unwrap(), bytes, "{what}: a check changes nothing");
        // An update makes it whole again, and says that it did.
        let report = regress(&list, &store, &Few::default(), &UPDATE, &Silent);
        assert_eq!(verdicts(&report), [Verdict::Same, Verdict::New, Verdict::Same], "{what}");
        assert!(report.scenarios[1].message.contains("replaces an unusable file"), "{what}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), good, "{what}");
    }
}

#[test]
fn files_of_a_newer_autoplan_are_never_replaced() {
    let folder = temporary();
    let store = stored(folder.path(), &Few::default());
    let list = scenarios();
    let path = store.path(&list[0].name());
    // The future has other fields.
    let newer = "(schema: 2, seal: \"abc\", content: (plans: [], proofs: Some(3)))\n";
    std::fs::write(&path, newer).unwrap();
    for options in [CHECK, UPDATE] {
        let report = regress(&list, &store, &Few::default(), &options, &Silent);
        assert_eq!(verdicts(&report), [Verdict::Unreadable, Verdict::Same, Verdict::Same]);
        assert!(report.scenarios[0].message.contains("have schema 2; this autoplan reads schema 1"));
        assert_eq!(report.exit_code(FailOn::Any), 2);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), newer);
    }
    let error = store.read(&list[0].name()).unwrap_err();
    assert!(
        error.error.render(false).contains("newer autoplan: update this one"),
        "{}",
        error.error.render(false)
    );
}

#[test]
fn a_model_that_is_gone_fails_alone() {
    let folder = temporary();
    let store = stored(folder.path(), &Few::default());
    let mut list = scenarios();
    list[1].model = "llama3.1-9b".into();
    let report = regress(&list, &store, &Few::default(), &CHECK, &Silent);
    assert_eq!(
        verdicts(&report),
        [Verdict::Same, Verdict::Failed, Verdict::Same, Verdict::Orphan],
        "the file of the scenario that was is an orphan"
    );
    assert!(report.scenarios[1].message.contains("no model `llama3.1-9b` ships"), "{}", report.table());
    assert_eq!(report.exit_code(FailOn::Any), 2);
    // A selection of scenarios makes no orphans.
    let partial = Options { partial: true, ..CHECK };
    assert_eq!(verdicts(&regress(&list[..1], &store, &Few::default(), &partial, &Silent)), [Verdict::Same]);
}

#[test]
fn a_defect_is_exit_70_and_loses_nothing() {
    struct Broken;
    impl Planner for Broken {
        fn plan(&self, scenario: &Scenario) -> Result<Outcome, String> {
            assert!(scenario.model != "llama2-13b", "a stage without layers");
            Few::default().plan(scenario)
        }
        fn price(&self, scenario: &Scenario, planned: &Planned) -> Result<Planned, String> {
            Few::default().price(scenario, planned)
        }
    }
    let folder = temporary();
    let store = stored(folder.path(), &Few::default());
    let before = snapshot(folder.path());
    let report = regress(&scenarios(), &store, &Broken, &UPDATE, &Silent);
    assert_eq!(verdicts(&report), [Verdict::Same, Verdict::Same, Verdict::Internal]);
    assert!(report.scenarios[2].message.contains("a stage without layers"));
    assert_eq!(report.exit_code(FailOn::Worse), 70);
    assert_eq!(snapshot(folder.path()), before);
}

#[test]
fn reports_do_not_depend_on_threads() {
    let folder = temporary();
    let store = stored(folder.path(), &Few::default());
    let slower = Few { ring: 0.8, ..Few::default() };
    let text = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        let report = pool.install(|| regress(&scenarios(), &store, &slower, &CHECK, &Silent));
        report.json().unwrap() + &report.table() + &report.github()
    };
    assert_eq!(text(1), text(4));
}

#[test]
fn formats_say_the_same() {
    let folder = temporary();
    let store = stored(folder.path(), &Few::default());
    let slower = Few { ring: 0.7, ..Few::default() };
    let report = regress(&scenarios()[..1], &store, &slower, &Options { partial: true, ..CHECK }, &Silent);
    let json: serde_json::Value = serde_json::from_str(&report.json().unwrap()).unwrap();
    let entry = &json["scenarios"][0];
    assert_eq!(entry["scenario"], scenarios()[0].name());
    assert!(entry["change"].as_f64().unwrap() > 0.0);
    assert!(entry["before"]["step_time_s"].as_f64() < entry["after"]["step_time_s"].as_f64());
    let github = report.github();
    let line = github.lines().next().unwrap();
    assert!(line.starts_with("::error file="), "{line}");
    let file = line.split("file=").nth(1).unwrap().split(',').next().unwrap();
    assert!(!file.contains(':'), "properties are escaped: {file}");
    assert!(line.contains("%25"), "percent signs are escaped: {line}");
    assert_eq!(github.lines().count(), 2);
}

#[test]
fn worse_predictions_of_measured_runs_fail() {
    let mut report = regress(&[], &Store::new("/no/such/folder"), &Few::default(), &CHECK, &Silent);
    assert_eq!(report.exit_code(FailOn::Any), 0);
    report.accuracy = vec![Worse {
        class: "step time: all".into(),
        figure: "median error",
        before: 0.05,
        now: Some(0.0612),
    }];
    assert_eq!(report.exit_code(FailOn::Worse), 1);
    assert!(
        report.table().contains("accuracy fell           median error 5.00 % -> 6.12 %"),
        "{}",
        report.table()
    );
    assert!(
        report.github().starts_with("::error title=accuracy fell::step time: all: median error 5.00 %25")
    );
}

// Scenario files.

#[test]
fn scenario_files_are_checked_with_places() {
    let file = |entries: &str| format!("(\n  schema: 1,\n  scenarios: [\n{entries}\n  ],\n)\n");
    let good = "    (model: \"llama3.1-8b\", clusters: [\"dgx-h100\"], gpus: [8], global_batch_size: 64, sequence_length: 8192),";
    assert_eq!(scenarios_from_text("s.ron", &file(good)).unwrap(), [scenario("llama3.1-8b", 8)]);
    let cost = good.replace("8192)", "8192, objective: Cost, precision: fp8)");
    let name = scenarios_from_text("s.ron", &file(&cost)).unwrap()[0].name();
    assert_eq!(name, "llama3.1-8b_dgx-h100_8gpu_b64_s8192_fp8_cost");
    for (bad, says, place) in [
        (file(&format!("{good}\n{good}")), "is listed twice", "5:5"),
        (file(&good.replace("gpus: [8]", "gpus: [0]")), "a job needs a GPU", "4:"),
        (file(&good.replace("gpus: [8]", "gpus: []")), "at least one GPU count", "4:"),
        (file(&good.replace("_size: 64", "_size: 0")), "must be at least 1", "4:"),
        (file(&good.replace("8192)", "8192, framework: \"megatronn\")")), "is no framework", "4:"),
        (file(&good.replace("gpus", "gpu")), "unknown field `gpu`", "4:"),
        (file(&good.replace("gpus: [8], ", "")), "missing field `gpus`", "4:"),
        (file(&good.replace("64", "-64")), "global_batch_size", "4:"),
        (file(&good.replace("64", "5000000000")), "global_batch_size", "4:"),
        (file(""), "lists no scenario", ""),
        (file(good).replace("schema: 1", "schema: 2"), "this autoplan reads schema 1", "2:3"),
        (file(good)[..80].to_owned(), "", ""),
        (String::new(), "the file is empty", ""),
    ] {
        let error = scenarios_from_text("s.ron", &bad).expect_err(&bad);
        let text = error.to_string();
        assert!(text.contains(says) && text.contains(place), "{text}\n{bad}");
        assert!(text.starts_with("s.ron"), "{text}");
    }
    assert!(read_scenarios(Path::new("/no/such/file.ron")).unwrap_err().to_string().contains("no such file"));
    assert!(read_scenarios(Path::new("/")).unwrap_err().to_string().contains("this is a folder"));
}

/// What benches/README.md says of split gaps.
#[test]
#[ignore = "plans every scenario on each of its clusters: a minute"]
fn printed_plans_are_within_five_percent_of_any_other_split() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("results/scenarios.ron");
    let planner = ScenarioPlanner::default();
    let mut gaps: Vec<(f64, String)> = Vec::new();
    for scenario in read_scenarios(&path).unwrap() {
        for (cluster, &gpus) in
            scenario.clusters.iter().flat_map(|c| scenario.gpus.iter().map(move |n| (c, n)))
        {
            let Ok(task) = planner.task(&scenario, cluster, gpus) else { continue };
            let request = Request { verified: 10, ..Request::default() };
            for mut found in task.prepare().search(&request, &NoProgress).found {
                found.take_polished();
                gaps.push((
                    found.split_gap,
                    format!("{} on {gpus} of {cluster}: {}", scenario.model, found.plan),
                ));
            }
        }
    }
    gaps.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (median, worst) = (&gaps[gaps.len() / 2], &gaps[gaps.len() - 1]);
    let said = format!(
        "{} plans, half within {:.2}%, all within {:.2}%: {}",
        gaps.len(),
        median.0 * 100.0,
        worst.0 * 100.0,
        worst.1
    );
    println!("{said}");
    assert!(gaps.len() > 1_000 && worst.0 < 0.05, "{said}");
}

/// The scenarios that ship: enough of them, on shipped models and clusters, with both objectives.
#[test]
fn the_shipped_scenarios_can_be_planned() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("results/scenarios.ron");
    let list = read_scenarios(&path).unwrap_or_else(|e| panic!("{}", e.render(false)));
    assert!(list.len() >= 60, "{}", list.len());
    assert!(list.iter().filter(|s| s.objective == Objective::Cost).count() >= 10);
    for scenario in &list {
        let name = scenario.name();
        load_model(&scenario.model).unwrap_or_else(|e| panic!("{name}: {e}"));
        for cluster in &scenario.clusters {
            let machine = load_cluster(cluster).unwrap_or_else(|e| panic!("{name}: {e}"));
            let most = machine.cluster.max_gpus.unwrap_or(u32::MAX);
            assert!(scenario.gpus.iter().any(|&gpus| gpus <= most), "{name}: {cluster} has {most} GPUs");
        }
        assert!(name.len() < 200, "{name} is too long for a file name");
    }
}

// Files.

fn result(note: &str) -> StoredResult {
    let scenario = scenario("llama3.1-8b", 8);
    let outcome = Few::default().plan(&scenario).unwrap();
    StoredResult { tool: note.into(), scenario, outcome }
}

#[test]
fn results_read_as_they_were_written() {
    let result = result("autoplan 0.1.0");
    let name = result.scenario.name();
    let text = result_to_text(&result).unwrap();
    assert_eq!(result_from_text("x.ron", &name, &text).unwrap(), result);
    assert!(text.starts_with(&format!("(\n    schema: {SCHEMA},\n    digest: \"")), "{text}");
    // The plan inside obeys its laws.
    let Outcome::Planned { best, .. } = &result.outcome else { panic!() };
    assert_eq!(best.to_plan(64, 32).unwrap().to_string(), best.plan);
    assert!(best.to_plan(65, 32).is_err());
    let flood = ChunkRun { count: u32::MAX, layers: 1, recompute: Recompute::None };
    assert!(Planned { chunks: vec![flood], ..best.clone() }.to_plan(64, 32).is_err());
    // A file under another scenario's name is refused.
    let error = result_from_text("x.ron", "other", &text).unwrap_err();
    assert!(error.to_string().contains("this is the result of the scenario llama3.1-8b"), "{error}");
    // Comments and spaces are no edits.
    let spaced = text.replacen("(\n", "(\n    // checked by hand\n\n", 1);
    assert_eq!(result_from_text("x.ron", &name, &spaced).unwrap(), result);
}

#[test]
fn folders_that_refuse_are_named() {
    let folder = temporary();
    let file = folder.path().join("file");
    std::fs::write(&file, "x").unwrap();
    // A file where a folder should be.
    let store = Store::new(file.join("best"));
    let error = store.check_writable().unwrap_err();
    assert!(error.to_string().contains("no folder"), "{error}");
    let report = regress(&scenarios(), &store, &Few::default(), &UPDATE, &Silent);
    assert_eq!(report.exit_code(FailOn::Any), 2);
    assert!(report.scenarios[0].write_error.as_ref().unwrap().contains("nothing was changed there"));
    assert!(report.table().contains("not written"), "{}", report.table());
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "x");

    // A folder in the place of a result file.
    let store = stored(folder.path(), &Few::default());
    let path = store.path(&scenarios()[0].name());
    std::fs::remove_file(&path).unwrap();
    std::fs::create_dir(&path).unwrap();
    let report = regress(&scenarios(), &store, &Few::default(), &UPDATE, &Silent);
    assert_eq!(verdicts(&report), [Verdict::Unreadable, Verdict::Same, Verdict::Same]);
    assert!(report.scenarios[0].message.contains("this is a folder"), "{}", report.table());
}

/// Even an administrator cannot make files in `/sys`.
#[cfg(target_os = "linux")]
#[test]
fn read_only_folders_are_named_and_nothing_is_lost() {
    let store = Store::new("/sys");
    let error = store.check_writable().unwrap_err();
    let text = error.to_string();
    assert!(text.contains("no permission") || text.contains("read-only"), "{text}");
    let report =
        regress(&scenarios(), &store, &Few::default(), &Options { partial: true, ..UPDATE }, &Silent);
    assert_eq!(verdicts(&report), [Verdict::New; 3], "every scenario is reported");
    assert!(report.scenarios.iter().all(|entry| entry.write_error.is_some() && !entry.written));
    assert_eq!(report.exit_code(FailOn::Worse), 2);
}

/// Runs a hidden test of this file in a process of its own.
fn child(test: &str, shell: &str, folder: &Path) -> Command {
    let program = std::env::current_exe().unwrap();
    let mut command = Command::new("sh");
    command
        .arg("-c")
        .arg(format!("{shell} exec \"$0\" --exact regress::{test} --ignored --nocapture"))
        .arg(program)
        .env("AUTOPLAN_TEST_FOLDER", folder)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

fn child_folder() -> PathBuf {
    PathBuf::from(std::env::var_os("AUTOPLAN_TEST_FOLDER").expect("runs as a child of another test only"))
}

/// A text of a few hundred kilobytes that says at both ends which one it is.
fn long_text(name: char) -> String {
    format!("{name}{}{name}\n", "x".repeat(300_000))
}

#[test]
#[ignore = "a child of `a_full_disk_leaves_the_old_file`"]
fn child_writes_beyond_its_limit() {
    let error = write_atomically(&child_folder().join("file"), &long_text('b')).unwrap_err();
    println!("said: {error}");
}

/// A limit on file sizes fails writes in the middle, as a full disk does.
#[cfg(unix)]
#[test]
fn a_full_disk_leaves_the_old_file() {
    let folder = temporary();
    let path = folder.path().join("file");
    write_atomically(&path, &long_text('a')).unwrap();
    let limited = child("child_writes_beyond_its_limit", "trap '' XFSZ; ulimit -f 100;", folder.path());
    let output = { limited }.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains("said: cannot write") && said.contains("nothing was changed there"), "{said}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), long_text('a'));
    assert_eq!(snapshot(folder.path()).len(), 1, "no leftovers");
}

#[test]
#[ignore = "a child of `a_killed_writer_leaves_the_old_or_the_new_file`"]
fn child_writes_until_it_is_killed() {
    let path = child_folder().join("file");
    let texts = [long_text('a'), long_text('b')];
    println!("writing");
    for turn in 0.. {
        write_atomically(&path, &texts[turn % 2]).unwrap();
    }
}

#[cfg(unix)]
#[test]
fn a_killed_writer_leaves_the_old_or_the_new_file() {
    use std::io::{BufRead, BufReader};
    let folder = temporary();
    let path = folder.path().join("file");
    write_atomically(&path, &long_text('a')).unwrap();
    let mut seen = [0, 0];
    for round in 0..12u64 {
        let mut writer = child("child_writes_until_it_is_killed", "", folder.path()).spawn().unwrap();
        let mut lines = BufReader::new(writer.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().contains("writing")), "the child never started");
        std::thread::sleep(std::time::Duration::from_micros(700 * round + 100));
        // SIGKILL: no handler runs.
        writer.kill().unwrap();
        writer.wait().unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        let which = [long_text('a'), long_text('b')].iter().position(|whole| *whole == text);
        seen[which.unwrap_or_else(|| panic!("round {round}: {} bytes, half-written", text.len()))] += 1;
    }
    println!("old {} times, new {} times", seen[0], seen[1]);
}

#[test]
#[ignore = "a child of `a_killed_update_leaves_whole_results`"]
fn child_updates_until_it_is_killed() {
    let store = Store::new(child_folder());
    println!("writing");
    for turn in 0.. {
        let planner = Few { price: 1.0 + f64::from(turn % 2), ..Few::default() };
        let _ = regress(&scenarios(), &store, &planner, &UPDATE, &Silent);
    }
}

#[cfg(unix)]
#[test]
fn a_killed_update_leaves_whole_results() {
    use std::io::{BufRead, BufReader};
    let folder = temporary();
    let store = Store::new(folder.path());
    let _ = regress(&scenarios(), &store, &Few::default(), &UPDATE, &Silent);
    for round in 0..6u64 {
        let mut writer = child("child_updates_until_it_is_killed", "", folder.path()).spawn().unwrap();
        let mut lines = BufReader::new(writer.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().contains("writing")), "the child never started");
        std::thread::sleep(std::time::Duration::from_millis(5 + 7 * round));
        writer.kill().unwrap();
        writer.wait().unwrap();
        for scenario in scenarios() {
            let result = store.read(&scenario.name());
            assert!(matches!(result, Ok(Some(_))), "round {round}: {result:?}");
        }
        // Temporary files that the kill left are no results.
        assert_eq!(store.names().unwrap().len(), 3);
    }
}

// The whole thing: real searches, and the command.

fn searched(scenario: &Scenario) -> Planned {
    match ScenarioPlanner::default().plan(scenario).unwrap() {
        Outcome::Planned { best, .. } => best,
        Outcome::Infeasible { reason } => panic!("{reason}"),
    }
}

#[test]
fn a_search_under_a_slower_network_says_which_item_moved() {
    let folder = temporary();
    let store = Store::new(folder.path());
    // 13B on 40 GB cards has to be split.
    let list = [Scenario { clusters: vec!["dgx-a100-40gb".into()], ..scenario("llama2-13b", 8) }];
    let report = regress(&list, &store, &ScenarioPlanner::default(), &UPDATE, &Silent);
    assert_eq!(verdicts(&report), [Verdict::New], "{}", report.table());
    let report = regress(&list, &store, &ScenarioPlanner::default(), &CHECK, &Silent);
    assert_eq!(verdicts(&report), [Verdict::Same], "{}", report.table());
    let slower = ScenarioPlanner::adjusted(|task| {
        let up = &mut task.machine.cluster.scale_up;
        up.ring = up.ring * 0.9;
    });
    let options = Options { tolerance: 0.0005, ..CHECK };
    let report = regress(&list, &store, &slower, &options, &Silent);
    let entry = &report.scenarios[0];
    assert!(matches!(entry.verdict, Verdict::Moved | Verdict::Worse), "{}", report.table());
    assert!(entry.change.unwrap() > 0.0);
    let moved: Vec<&str> = entry.items.iter().map(|item| item.item.as_str()).collect();
    let network = ["tensor_parallel", "gradient_reduction", "weight_gather", "pipeline_messages"];
    assert!(moved.iter().any(|item| network.contains(item)), "{moved:?}");
    assert!(entry.message.contains(moved[0]), "{}", entry.message);
}

/// Eight GPUs take longest and cost least: each of more GPUs does less of the step, for the batch is
/// fixed, and what they say to each other is paid for as well.
#[test]
fn dollars_and_time_choose_different_plans() {
    let free = Scenario { gpus: vec![8, 64], global_batch_size: 64, ..scenario("llama3.2-1b", 8) };
    let fastest = searched(&free);
    let cheapest = searched(&Scenario { objective: Objective::Cost, ..free.clone() });
    assert_eq!((fastest.gpus, cheapest.gpus), (64, 8));
    assert!(fastest.step_time_ps < cheapest.step_time_ps);
    assert!(fastest.usd_per_step > cheapest.usd_per_step);
    // Where no count, cluster or price is free, dollars follow time.
    let only = Scenario { gpus: vec![8], ..free };
    let alike = [Objective::Time, Objective::Cost]
        .map(|objective| searched(&Scenario { objective, ..only.clone() }).plan);
    assert_eq!(alike[0], alike[1], "with nothing free both objectives agree");
}

fn autoplan(folder: &Path, arguments: &[&str]) -> (i32, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_autoplan"))
        .arg("regress")
        .args(arguments)
        .current_dir(folder)
        .output()
        .unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

#[test]
fn the_command_ends_with_the_promised_codes() {
    let folder = temporary();
    let list = "(schema: 1, scenarios: [
        (model: \"llama3.2-1b\", clusters: [\"dgx-a100\"], gpus: [8], global_batch_size: 8, sequence_length: 2048),
        (model: \"llama3.2-3b\", clusters: [\"dgx-a100\"], gpus: [8], global_batch_size: 8, sequence_length: 2048),
    ])";
    std::fs::create_dir(folder.path().join("results")).unwrap();
    let scenarios = folder.path().join("results/scenarios.ron");
    std::fs::write(&scenarios, list).unwrap();
    let run = |arguments: &[&str]| {
        let mut all = vec!["--accuracy", "-"];
        all.extend(arguments);
        autoplan(folder.path(), &all)
    };
    let (code, out, _) = run(&[]);
    assert_eq!(code, 1, "new results are a change: {out}");
    let (code, out, err) = run(&["--update"]);
    assert_eq!(code, 0, "{out}{err}");
    assert!(out.contains("Best plans: 2 of 2 results change"), "{out}");
    let before = snapshot(folder.path());
    for format in ["table", "json", "github"] {
        let one = run(&["--format", format, "--threads", "1"]);
        assert_eq!(one.0, 0, "{}", one.1);
        assert_eq!(one.1, run(&["--format", format, "--threads", "2"]).1, "{format}");
    }
    assert_eq!(snapshot(folder.path()), before);

    // One file damaged: the other scenario is reported, the code is 2.
    let damaged = before.iter().find(|(path, _)| path.to_string_lossy().contains("llama3.2-1b")).unwrap();
    std::fs::write(&damaged.0, "(schema: 1,").unwrap();
    let (code, out, _) = run(&["--format", "json"]);
    assert_eq!(code, 2);
    let json: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(json["scenarios"][0]["verdict"], "unreadable");
    assert_eq!(json["scenarios"][1]["verdict"], "same");
    assert_eq!(run(&["--filter", "3b"]).0, 0, "the damaged one is not asked for");

    // Input errors of every kind.
    for (arguments, says) in [
        (vec!["--tolerance", "lots"], "expected a share"),
        (vec!["--tolerance", "NaN"], "expected a share"),
        (vec!["--filter", "gpt5"], "none of 2 scenarios"),
        (vec!["--scenarios", "gone.ron"], "no such file"),
        (vec!["--scenarios", "results"], "this is a folder"),
        (vec!["--threads", "0"], "0 is not in"),
    ] {
        let (code, out, err) = run(&arguments);
        assert_eq!((code, out.as_str()), (2, ""), "{arguments:?}");
        assert!(err.contains(says), "{arguments:?}: {err}");
    }
    std::fs::write(&scenarios, list.replace("3b", "4b")).unwrap();
    let (code, out, _) = run(&["--filter", "4b"]);
    assert_eq!(code, 2);
    assert!(out.contains("no model `llama3.2-4b` ships"), "{out}");
    std::fs::write(&scenarios, &list[..list.len() / 2]).unwrap();
    let (code, _, err) = run(&[]);
    assert_eq!(code, 2);
    assert!(err.contains("scenarios.ron:"), "{err}");
}

/// `kill -9` in the middle of `autoplan regress --update`, at different moments.
#[cfg(unix)]
#[test]
fn a_killed_command_leaves_whole_results() {
    let folder = temporary();
    let list = "(schema: 1, scenarios: [
        (model: \"llama3.2-1b\", clusters: [\"dgx-a100\"], gpus: [8], global_batch_size: 8, sequence_length: 2048),
    ])";
    std::fs::write(folder.path().join("list.ron"), list).unwrap();
    let store = Store::new(folder.path().join("best"));
    let name = scenarios_from_text("list", list).unwrap()[0].name();
    for round in 0..8u64 {
        let mut process = Command::new(env!("CARGO_BIN_EXE_autoplan"))
            .args(["regress", "--accuracy", "-", "--scenarios", "list.ron", "--results", "best", "--update"])
            .current_dir(folder.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(std::time::Duration::from_millis(5 + 15 * round));
        let _ = process.kill();
        process.wait().unwrap();
        // No file yet, or a whole one.
        assert!(store.read(&name).is_ok(), "round {round}: {:?}", store.read(&name));
    }
}

/// A folder with one scenario.
fn one_scenario() -> tempfile::TempDir {
    let folder = temporary();
    let list = "(schema: 1, scenarios: [
        (model: \"llama3.2-1b\", clusters: [\"dgx-a100\"], gpus: [8], global_batch_size: 8, sequence_length: 2048),
    ])";
    std::fs::create_dir(folder.path().join("results")).unwrap();
    std::fs::write(folder.path().join("results/scenarios.ron"), list).unwrap();
    folder
}

#[test]
fn scenarios_are_reported_where_nothing_can_be_written() {
    let folder = one_scenario();
    std::fs::write(folder.path().join("file"), "").unwrap();
    let (code, out, err) =
        autoplan(folder.path(), &["--accuracy", "-", "--update", "--results", "file/best"]);
    assert_eq!(code, 2, "{out}{err}");
    assert!(out.contains("llama3.2-1b_dgx-a100_8gpu_b8_s2048") && out.contains("not written"), "{out}");
    assert!(err.contains("file/best"), "{err}");
}

#[test]
fn a_report_that_cannot_be_printed_is_no_fault_of_the_program() {
    let Ok(full) = std::fs::OpenOptions::new().write(true).open("/dev/full") else { return };
    let folder = one_scenario();
    let status = Command::new(env!("CARGO_BIN_EXE_autoplan"))
        .args(["regress", "--accuracy", "-"])
        .current_dir(folder.path())
        .stdout(full)
        .status();
    assert_eq!(status.unwrap().code(), Some(2));
}

#[test]
fn damaged_errors_are_named_beside_the_scenarios_and_restored() {
    let folder = one_scenario();
    let accuracy = folder.path().join("results/accuracy.ron");
    assert_eq!(autoplan(folder.path(), &["--update"]).0, 0);
    assert_eq!(autoplan(folder.path(), &[]).0, 0);
    let whole = std::fs::read_to_string(&accuracy).unwrap();
    let by_hand = whole.replace("relative_margin: 0.1,", "relative_margin: 9.0,");
    let newer = whole.replace("schema: 1,", "schema: 7,").replace("relative_margin", "share");
    for (text, said, restored) in [
        (&whole[..whole.len() / 2], "accuracy.ron", true),
        (by_hand.as_str(), "changed by hand", true),
        (newer.as_str(), "written by a newer autoplan", false),
    ] {
        assert_ne!(text, whole);
        std::fs::write(&accuracy, text).unwrap();
        let (code, out, err) = autoplan(folder.path(), &[]);
        assert_eq!(code, 2, "{err}");
        assert!(out.contains("1 scenario: 1 same") && err.contains(said), "{out}{err}");
        let (code, _, err) = autoplan(folder.path(), &["--update"]);
        assert_eq!(code, if restored { 0 } else { 2 }, "{err}");
        let now = std::fs::read_to_string(&accuracy).unwrap();
        assert_eq!(now, if restored { whole.as_str() } else { text });
    }
}

#[test]
fn what_killed_writers_left_is_swept() {
    let folder = temporary();
    let at = |name: &str| folder.path().join(name);
    for name in [".aB3xYz.tmp", ".new123.tmp", "keep.tmp", ".longer-name.tmp"] {
        std::fs::write(at(name), "").unwrap();
    }
    let old = std::time::SystemTime::now() - std::time::Duration::from_secs(3600);
    for name in [".aB3xYz.tmp", "keep.tmp", ".longer-name.tmp"] {
        std::fs::File::options().write(true).open(at(name)).unwrap().set_modified(old).unwrap();
    }
    Store::new(folder.path()).sweep();
    // Another's, and what may still be written, stay.
    assert!(!at(".aB3xYz.tmp").exists() && at(".new123.tmp").exists());
    assert!(at("keep.tmp").exists() && at(".longer-name.tmp").exists());
}
