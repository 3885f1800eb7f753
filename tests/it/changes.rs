//! Settings to change: what is listed for a launch makes it run the other plan.

use std::collections::BTreeMap;

use autoplan::frameworks::changes::{Change, Settings, Written, settings_of_json};
use autoplan::frameworks::deepspeed::import as deepspeed;
use autoplan::frameworks::export::{Destination, ExportRequest, Format, export};
use autoplan::frameworks::megatron::import::{Given, Imported, import, import_with};
use autoplan::frameworks::{Target, legal_plan};
use autoplan::plan::{ContextComm, Dispatcher, Layout, Plan};
use autoplan::spec::model::Model;
use serde_json::Value;

use crate::frameworks_cases::{Question, Random, Wild, models, question};

fn settings(pairs: &[(&str, &str)]) -> Settings {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

/// What is listed for a launch, as it is printed.
fn told(own: &[(&str, &str)], from: &[(&str, &str)], to: &[(&str, &str)]) -> Vec<String> {
    let written = Written { from: settings(from), to: settings(to) };
    written.changes_of(&settings(own)).iter().map(Change::to_string).collect()
}

#[test]
fn changes_are_told_in_the_terms_of_the_launch() {
    // What it does not have is neither changed nor removed, and layers of a stage are said in its own way.
    let own = [
        ("--tensor-model-parallel-size", "8"),
        ("--num-layers-per-virtual-pipeline-stage", "1"),
        ("--recompute-activations", ""),
    ];
    let from = [
        ("--tensor-model-parallel-size", "8"),
        ("--num-virtual-stages-per-pipeline-rank", "6"),
        ("--recompute-granularity", "selective"),
        ("--recompute-modules", "core_attn"),
        ("--cp-comm-type", "p2p"),
    ];
    let to = [
        ("--tensor-model-parallel-size", "4"),
        ("--recompute-granularity", "selective"),
        ("--recompute-modules", "layernorm"),
        ("--sequence-parallel", ""),
    ];
    let expected = [
        "remove --num-layers-per-virtual-pipeline-stage 1",
        "remove --recompute-activations",
        "add --recompute-granularity selective",
        "add --recompute-modules layernorm",
        "add --sequence-parallel",
        "--tensor-model-parallel-size 8 -> 4",
    ];
    assert_eq!(told(&own, &from, &to), expected);
    // A launch's own words stay as long as the plans agree.
    let kept = told(&own[2..], &from[2..4], &from[2..4]);
    assert!(kept.is_empty(), "{kept:?}");
}

#[test]
fn what_a_launch_only_implies_is_added() {
    // Sharded weights imply a sharded optimizer as long as they are there.
    let distributed = ("--use-distributed-optimizer", "");
    let sharded = [
        distributed,
        ("--use-megatron-fsdp", ""),
        ("--data-parallel-sharding-strategy", "optim_grads_params"),
    ];
    for (own, removed) in [
        ("--use-megatron-fsdp", "remove --use-megatron-fsdp"),
        ("--use-torch-fsdp2", "remove --use-torch-fsdp2"),
    ] {
        assert_eq!(
            told(&[(own, "")], &sharded, &[distributed]),
            ["add --use-distributed-optimizer", removed]
        );
        assert!(told(&[(own, "")], &sharded, &sharded).is_empty());
    }
    // Experts are cut as all else is unless it is said.
    let (tp, etp) = ("--tensor-model-parallel-size", "--expert-tensor-parallel-size");
    assert_eq!(
        told(&[(tp, "2")], &[(tp, "2"), (etp, "2")], &[(tp, "4"), (etp, "2")]),
        ["add --expert-tensor-parallel-size 2", "--tensor-model-parallel-size 2 -> 4"]
    );
    assert_eq!(
        told(&[(tp, "2")], &[(tp, "2"), (etp, "2")], &[(tp, "4"), (etp, "4")]),
        ["--tensor-model-parallel-size 2 -> 4"]
    );
    // The plan counts on both overlaps.
    let overlaps = [("--overlap-grad-reduce", ""), ("--overlap-param-gather", "")];
    assert_eq!(told(&overlaps[..1], &overlaps, &overlaps), ["add --overlap-param-gather"]);
    // Nothing means true at stage 3 alone.
    let (stage, overlap) = ("zero_optimization.stage", "zero_optimization.overlap_comm");
    let at = |stage_now| [(stage, stage_now), (overlap, "true")];
    for own in [&[(stage, "3")][..], &[(stage, "3"), (overlap, "null")]] {
        let list = told(own, &at("3"), &at("2"));
        assert!(list[0].ends_with("overlap_comm true") || list[0].ends_with("null -> true"), "{list:?}");
        assert_eq!(list[1..], ["zero_optimization.stage 3 -> 2"]);
        assert!(told(own, &at("3"), &at("3")).is_empty());
    }
    // The old word for offload is one.
    let device = ("zero_optimization.offload_optimizer.device", "\"cpu\"");
    let own = [("zero_optimization.cpu_offload", "true"), (stage, "2")];
    assert_eq!(
        told(&own, &[(stage, "2"), device], &[(stage, "2")]),
        ["remove zero_optimization.cpu_offload true"]
    );
    let own = [device, ("zero_optimization.offload_optimizer.buffer_count", "4"), (stage, "2")];
    assert_eq!(
        told(&own, &[(stage, "2"), device], &[(stage, "2")]),
        ["remove zero_optimization.offload_optimizer"]
    );
}

#[test]
fn trainers_and_scripts_are_told_what_they_decide_on() {
    let kept = ("activation_checkpointing.cpu_checkpointing", "false");
    let stage = ("zero_optimization.stage", "3");
    let micro = |number| ("train_micro_batch_size_per_gpu", number);
    // The trainer's flag, written as in the launch.
    for value in ["", "True"] {
        let list = told(&[("--gradient_checkpointing", value), stage], &[kept, stage], &[stage]);
        assert_eq!(list, [format!("remove --gradient_checkpointing {value}").trim_end()]);
    }
    // What is left to it.
    let own = [micro("\"auto\""), ("--per-device-train-batch-size", "1"), ("--gradient-checkpointing", "")];
    let list = told(&own, &[micro("1"), kept], &[micro("4")]);
    assert_eq!(list, ["remove --gradient-checkpointing", "--per-device-train-batch-size 1 -> 4"]);
    // The script that is written beside a configuration has a constant, and asks for no section.
    let script = |on| ("train.py RECOMPUTE", on);
    let (from, to) = ([kept, script("True"), micro("1")], [script("False"), micro("1")]);
    assert_eq!(told(&from, &from, &to), ["train.py RECOMPUTE True -> False"]);
    let written = Written { from: settings(&from), to: settings(&to) };
    let list: Vec<String> = written.changes().iter().map(Change::to_string).collect();
    assert_eq!(list, ["train.py RECOMPUTE True -> False"]);
    // A configuration alone has nothing but the section.
    assert_eq!(told(&[kept, stage], &[kept, stage], &[stage]), ["remove activation_checkpointing"]);
}

#[test]
fn variables_of_the_environment_are_named_as_such() {
    let offload = ("--fine-grained-activation-offloading", "");
    let variable = ("NVTE_CPU_OFFLOAD_V1", "1");
    assert_eq!(
        told(&[], &[], &[offload, variable]),
        ["add --fine-grained-activation-offloading", "add environment variable NVTE_CPU_OFFLOAD_V1=1"]
    );
    let change = Change { name: variable.0.into(), from: Some("0".into()), to: Some("1".into()) };
    assert_eq!(change.to_string(), "environment variable NVTE_CPU_OFFLOAD_V1=0 -> 1");
    assert_eq!(serde_json::to_value(&change).unwrap()["kind"], "environment variable");
    // One queue is needed where messages must keep their order.
    let connections = |number| ("CUDA_DEVICE_MAX_CONNECTIONS", number);
    let at = |tp| [("--tensor-model-parallel-size", tp), connections("1")];
    assert_eq!(
        told(&[connections("8")], &at("1"), &at("2")),
        ["add --tensor-model-parallel-size 2", "environment variable CUDA_DEVICE_MAX_CONNECTIONS=8 -> 1"]
    );
    assert!(told(&[connections("8")], &at("1"), &at("1")).is_empty());
}

/// Launches and other plans of the same job, as they come.
fn pairs(
    target: Target,
    seed: u64,
    names: &[&str],
    wanted: usize,
    mut check: impl FnMut(&Question, &Question, &mut Random) -> bool,
) {
    let models: Vec<Model> = models().into_iter().filter(|m| names.contains(&m.name.as_str())).collect();
    assert_eq!(models.len(), names.len());
    let mut random = Random::new(seed);
    let mut waiting: BTreeMap<(String, u32, u32), Question> = BTreeMap::new();
    let mut done = 0;
    for _ in 0..400_000 {
        if done == wanted {
            return;
        }
        let wild = Wild { degrees: 4, switches: 8 };
        let Some(mut question) = question(&mut random, target, &models, wild) else { continue };
        let layout = question.plan.layout();
        // Copies that are sharded over one rank are not sharded: DeepSpeed takes a group of 1 for none.
        let single = target != Target::Megatron && layout.zero_stage == 3 && layout.shard_group == 1;
        if single || legal_plan(target, &question.context(), &question.plan).is_err() {
            continue;
        }
        let key = (question.model.name.clone(), question.job.gpus, question.job.global_batch_size);
        let Some(launch) = waiting.remove(&key) else {
            waiting.insert(key, question);
            continue;
        };
        question.job = launch.job.clone();
        question.cluster = launch.cluster.clone();
        question.accelerator = launch.accelerator.clone();
        if legal_plan(target, &question.context(), &question.plan).is_ok() {
            done += usize::from(check(&launch, &question, &mut random));
        }
    }
    panic!("only {done} of {wanted} pairs");
}

/// The launch with what is listed for it.
fn applied(own: &Settings, changes: &[Change]) -> Settings {
    let mut all = own.clone();
    for Change { name, from, to } in changes {
        assert_eq!(own.get(name), from.as_ref(), "{name}: what is changed is what is there");
        match to {
            Some(value) => all.insert(name.clone(), value.clone()),
            None => all.remove(name),
        };
    }
    all
}

/// Settings as a list of arguments.
fn arguments(all: &Settings) -> String {
    let (flags, variables): (Vec<_>, Vec<_>) = all.iter().partition(|(name, _)| name.starts_with("--"));
    let quoted = |value: &str| {
        value.split(' ').map(|w| shlex::try_quote(w).unwrap().into_owned()).collect::<Vec<_>>().join(" ")
    };
    let mut text = String::new();
    for (name, value) in variables {
        text += &format!("{name}={}\n", quoted(value));
    }
    text += "pretrain_gpt.py\n";
    for (name, value) in flags {
        text += &if value.is_empty() { format!("{name}\n") } else { format!("{name} {}\n", quoted(value)) };
    }
    text
}

/// A launch of another hand: what it may leave to the framework it sometimes does, and says the rest in older words.
fn of_another_hand(own: &mut Settings, random: &mut Random) {
    let is = |own: &Settings, name: &str, value: &str| own.get(name).is_some_and(|v| v == value);
    let tp = own.get("--tensor-model-parallel-size").cloned().unwrap_or_default();
    for (name, usual) in [
        ("--expert-tensor-parallel-size", tp.as_str()),
        ("--tensor-model-parallel-size", "1"),
        ("--pipeline-model-parallel-size", "1"),
        ("--context-parallel-size", "1"),
        ("--expert-model-parallel-size", "1"),
        ("--cp-comm-type", "p2p"),
        ("--moe-token-dispatcher-type", "allgather"),
        ("--moe-flex-dispatcher-backend", "deepep"),
        ("--data-parallel-sharding-strategy", "optim_grads_params"),
        ("--overlap-param-gather", ""),
        ("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True"),
    ] {
        if random.chance(60) && is(own, name, usual) {
            own.remove(name);
        }
    }
    if own.contains_key("--use-megatron-fsdp") && random.chance(60) {
        own.remove("--use-distributed-optimizer");
        if random.chance(50) && !own.contains_key("--data-parallel-sharding-strategy") {
            for name in ["--use-megatron-fsdp", "--ckpt-format", "--init-model-with-meta-device"] {
                own.remove(name);
            }
            own.insert("--use-torch-fsdp2".to_owned(), String::new());
        }
    }
    if is(own, "--recompute-modules", "core_attn") && random.chance(70) {
        own.remove("--recompute-modules");
        if random.chance(50) {
            own.remove("--recompute-granularity");
            own.insert("--recompute-activations".to_owned(), String::new());
        }
    }
    if random.chance(20) {
        own.insert("--sequence-parallel".to_owned(), String::new());
    }
    let number = |name: &str| own.get(name).and_then(|value| value.parse::<u32>().ok());
    let stages = "--num-virtual-stages-per-pipeline-rank";
    let parts = (number("--num-layers"), number("--pipeline-model-parallel-size"), number(stages));
    let uneven = own.keys().any(|name| name.starts_with("--decoder-") || name.starts_with("--account-"));
    if let (Some(layers), Some(ranks), Some(chunks)) = parts
        && layers % (ranks * chunks) == 0
        && !uneven
        && random.chance(70)
    {
        own.remove(stages);
        let each = (layers / ranks / chunks).to_string();
        own.insert("--num-layers-per-virtual-pipeline-stage".to_owned(), each);
    }
    for name in ["--cuda-graph-modules", "--optimizer-offload-fraction", "--overlap-cpu-optimizer-d2h-h2d"] {
        if random.chance(30) {
            own.remove(name);
        }
    }
}

fn shown(plan: &Plan) -> Plan {
    let mut layout: Layout = *plan.layout();
    if layout.context_parallel == 1 {
        layout.context_comm = ContextComm::Ring;
    }
    let layers = plan.chunks().iter().map(|c| c.layers).sum();
    let (gpus, batch) = (layout.gpus() as u32, layout.global_batch_size() as u32);
    Plan::new(layout, plan.chunks().to_vec(), gpus, batch, layers).unwrap()
}

#[test]
fn a_script_with_its_changes_runs_the_other_plan() {
    let names = ["Llama 3.1 8B", "Mixtral 8x7B", "Qwen3 30B-A3B", "Llama 3.1 70B", "Nemotron-H 8B"];
    let target = Target::Megatron;
    let mut kinds: BTreeMap<String, usize> = BTreeMap::new();
    pairs(target, 71, &names, 600, |launch, other, random| {
        let Ok(files) = export(Destination::Framework(target), &launch.request(Format::Args)) else {
            return false;
        };
        let given = Given { name: &launch.model.name, gpus: Some(launch.job.gpus), ..Given::default() };
        let written: Imported = import(&files[0].text, given).unwrap();
        let mut own = written.settings;
        of_another_hand(&mut own, random);
        // What a framework would refuse is no launch.
        let Ok(read) = import(&arguments(&own), given) else { return false };
        let request = |plan| ExportRequest {
            model: &read.model,
            job: &read.job,
            plan,
            prediction: None,
            ..launch.request(Format::Args)
        };
        let written = Written::new(target, &request(&read.plan), &request(&other.plan)).unwrap();
        let plan = (other.plan.layout(), read.model.layer_count());
        let changes = written.changes_of_command(&own, plan, launch.accelerator.architecture);
        let text = arguments(&applied(&own, &changes));
        let list: Vec<String> = changes.iter().map(Change::to_string).collect();
        let again = import(&text, given)
            .unwrap_or_else(|error| panic!("{error}\n{text}\n{} to {}\n{list:#?}", read.plan, other.plan));
        assert_eq!(shown(&again.plan), shown(&other.plan), "from {}\n{list:#?}\n{text}", read.plan);
        assert_eq!(again.job, read.job);
        for change in changes {
            *kinds.entry(change.name).or_default() += 1;
        }
        true
    });
    for name in [
        "--use-torch-fsdp2",
        "--use-distributed-optimizer",
        "--expert-tensor-parallel-size",
        "--overlap-param-gather",
    ] {
        assert!(kinds.contains_key(name), "{name}: {kinds:?}");
    }
}

/// Its engine is told by flags and by a configuration.
#[test]
fn a_script_of_megatron_deepspeed_with_its_changes_runs_the_other_plan() {
    let names = ["Llama 3.1 8B", "Llama 2 7B", "Llama 3.1 70B"];
    let target = Target::MegatronDeepSpeed;
    let shown = |plan: &Plan| {
        let mut layout = *plan.layout();
        layout.context_comm = ContextComm::AllToAll;
        layout.data_overlap &= layout.zero_stage > 0;
        (layout, plan.chunks().to_vec())
    };
    pairs(target, 79, &names, 300, |launch, other, random| {
        let Ok(files) = export(Destination::Framework(target), &launch.request(Format::Args)) else {
            return false;
        };
        let file = |name: &str| files.iter().find(|f| f.name == name).unwrap().text.clone();
        let given = Given { name: &launch.model.name, gpus: Some(launch.job.gpus), ..Given::default() };
        let beside = |root: &Value| {
            let text = root.to_string();
            move |_: &str| Ok(text.clone())
        };
        let mut root: Value = serde_json::from_str(&file("ds_config.json")).unwrap();
        configured_by_another_hand(&mut root, launch.plan.layout().zero_stage, random);
        let mut own = import_with(&file("arguments.args"), given, &beside(&root)).unwrap().settings;
        of_another_hand(&mut own, random);
        let Ok(read) = import_with(&arguments(&own), given, &beside(&root)) else { return false };
        let request = |plan| ExportRequest {
            model: &read.model,
            job: &read.job,
            plan,
            prediction: None,
            ..launch.request(Format::Args)
        };
        let Ok(written) = Written::new(target, &request(&read.plan), &request(&other.plan)) else {
            return false;
        };
        let mut whole = own.clone();
        whole.extend(settings_of_json(&root.to_string()));
        let changes = written.changes_of(&whole);
        let (flags, keys): (Vec<Change>, Vec<Change>) =
            changes.into_iter().partition(|c| c.name.starts_with("--") || c.name.starts_with("CUDA"));
        let (text, after) = (arguments(&applied(&own, &flags)), configured(root.clone(), &keys));
        let list: Vec<String> = flags.iter().chain(&keys).map(Change::to_string).collect();
        let again = import_with(&text, given, &beside(&after)).unwrap_or_else(|error| {
            panic!("{error}\n{text}\n{root:#}\n{} to {}\n{list:#?}", read.plan, other.plan)
        });
        assert_eq!(shown(&again.plan), shown(&other.plan), "from {}\n{list:#?}\n{root:#}\n{text}", read.plan);
        assert_eq!(again.job, read.job);
        true
    });
}

/// A configuration with what is listed for it.
fn configured(mut root: Value, changes: &[Change]) -> Value {
    for Change { name, to, .. } in changes.iter().filter(|change| !change.name.starts_with("--")) {
        let mut path: Vec<&str> = name.split('.').collect();
        let last = path.pop().unwrap();
        let mut at = &mut root;
        for part in path {
            at = at.as_object_mut().unwrap().entry(part).or_insert_with(|| serde_json::json!({}));
        }
        let fields = at.as_object_mut().unwrap();
        match to {
            Some(value) => drop(fields.insert(last.to_owned(), serde_json::from_str(value).unwrap())),
            None => drop(fields.remove(last)),
        }
    }
    root
}

/// A configuration of another hand.
fn configured_by_another_hand(root: &mut Value, stage: u8, random: &mut Random) {
    let top = root.as_object_mut().unwrap();
    if random.chance(40) && top.contains_key("train_batch_size") {
        top.remove(random.pick(&[
            "gradient_accumulation_steps",
            "train_micro_batch_size_per_gpu",
            "train_batch_size",
        ]));
    }
    let zero = top["zero_optimization"].as_object_mut().unwrap();
    if random.chance(60) && zero.get("overlap_comm").is_some_and(|on| *on == Value::Bool(stage == 3)) {
        zero.remove("overlap_comm");
        if random.chance(50) {
            zero.insert("overlap_comm".to_owned(), Value::Null);
        }
    }
    for (new, old) in [("offload_optimizer", "cpu_offload"), ("offload_param", "cpu_offload_param")] {
        if random.chance(60) && zero.get(new).is_some_and(|place| place["device"] == "cpu") {
            zero.remove(new);
            zero.insert(old.to_owned(), Value::Bool(true));
        }
    }
}

#[test]
fn a_configuration_with_its_changes_runs_the_other_plan() {
    let names = ["Llama 3.1 8B", "Mixtral 8x7B", "Qwen3 30B-A3B", "Llama 3.1 70B"];
    let target = Target::DeepSpeed;
    let shown = |plan: &Plan| {
        let mut layout = *plan.layout();
        layout.context_comm = ContextComm::AllToAll;
        layout.data_overlap &= layout.zero_stage > 0;
        if layout.expert_parallel == 1 && layout.dispatcher.is_some() {
            layout.dispatcher = Some(Dispatcher::AllToAll);
        }
        (layout, plan.chunks().to_vec())
    };
    pairs(target, 73, &names, 600, |launch, other, random| {
        let Ok(files) = export(Destination::Framework(target), &launch.request(Format::Script)) else {
            return false;
        };
        let config = &files.iter().find(|f| f.name == "ds_config.json").unwrap().text;
        let mut root: Value = serde_json::from_str(config).unwrap();
        configured_by_another_hand(&mut root, launch.plan.layout().zero_stage, random);
        let given = deepspeed::Given {
            model: &launch.model,
            gpus: launch.job.gpus,
            sequence_length: Some(launch.job.sequence_length),
            pipeline_parallel: 1,
            trainer: deepspeed::Trainer::default(),
        };
        let read = deepspeed::import(&root.to_string(), given)
            .unwrap_or_else(|e| panic!("{}\n{root:#}", e.render(false)));
        let request = |plan| ExportRequest { plan, prediction: None, ..launch.request(Format::Args) };
        let Ok(written) = Written::new(target, &request(&read.plan), &request(&other.plan)) else {
            return false;
        };
        let changes = written.changes_of(&settings_of_json(&root.to_string()));
        let after = configured(root.clone(), &changes);
        let list: Vec<String> = changes.iter().map(Change::to_string).collect();
        let again = deepspeed::import(&after.to_string(), given)
            .unwrap_or_else(|e| panic!("{}\n{root:#}\n{list:#?}", e.render(false)));
        assert_eq!(shown(&again.plan), shown(&other.plan), "from {}\n{list:#?}\n{root:#}", read.plan);
        assert_eq!(again.job, read.job);
        true
    });
}
