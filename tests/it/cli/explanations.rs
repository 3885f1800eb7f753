//! Plans explained and compared.

use super::*;

#[test]
fn a_saved_plan_goes_through_explain_compare_and_export() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("plan.ron");
    let saved = small(&["--format", "ron", "--top", "1"]);
    std::fs::write(&path, &saved.stdout).unwrap();
    let path = path.to_str().unwrap();
    let explained = autoplan(&["explain", path, "--format", "json"]);
    assert!(explained.status.success(), "{}", stderr(&explained));
    let value: serde_json::Value = serde_json::from_str(&stdout(&explained)).unwrap();
    // A name tells nothing that the text does not.
    let named = folder.path().join("plan");
    std::fs::copy(path, &named).unwrap();
    let named = autoplan(&["explain", named.to_str().unwrap(), "--format", "json"]);
    assert_eq!(stdout(&named), stdout(&explained), "{}", stderr(&named));
    // Nothing beats the proved optimum.
    assert!(
        value["best"]["step_time_s"].as_f64().unwrap()
            >= value["step_time_s"].as_f64().unwrap() * (1.0 - 1e-12)
    );
    let compared = autoplan(&["compare", path, path]);
    assert!(compared.status.success(), "{}", stderr(&compared));
    let rows =
        ["step", "tokens/s per GPU", "MFU", "$ per trillion tokens", "memory of the fullest GPU", "fits"];
    let compared = stdout(&compared);
    assert!(
        rows.iter().all(|row| compared.lines().any(|line| line.trim_start().starts_with(row))),
        "{compared}"
    );
    let out = folder.path().join("launch");
    let out = out.to_str().unwrap();
    let exported = autoplan(&["export", path, "--to", "megatron", "-o", out]);
    assert!(exported.status.success(), "{}", stderr(&exported));
    assert!(std::fs::read_dir(out).unwrap().count() > 0);
    // A second export does not overwrite.
    let again = autoplan(&["export", path, "--to", "megatron", "-o", out]);
    assert_eq!(again.status.code(), Some(2));
    assert!(stderr(&again).contains("--force"));
    // Also where the plan could not be written, for which another one would be sought.
    let illegal = folder.path().join("illegal.ron");
    let text = std::fs::read_to_string(path).unwrap().replace("zero_stage: 1", "zero_stage: 2");
    std::fs::write(&illegal, text).unwrap();
    let illegal = autoplan(&["export", illegal.to_str().unwrap(), "--to", "megatron", "-o", out]);
    assert!(stderr(&illegal).contains("exists; --force overwrites it"), "{}", stderr(&illegal));
    // A folder that can never be made is refused before anything is worked out.
    let below = folder.path().join("plan.ron").join("launch");
    let below = autoplan(&["export", "no such plan", "--to", "megatron", "-o", below.to_str().unwrap()]);
    assert_eq!(below.status.code(), Some(2));
    assert!(stderr(&below).contains("plan.ron is not a folder"), "{}", stderr(&below));
    let gone = folder.path().join("gone");
    std::os::unix::fs::symlink("/no/such/folder", &gone).unwrap();
    let linked = autoplan(&["export", path, "--to", "megatron", "-o", gone.to_str().unwrap()]);
    assert_eq!(linked.status.code(), Some(2));
    assert!(stderr(&linked).contains("gone is a link to what is not there"), "{}", stderr(&linked));
}

/// The stages of every plan add up to the model, and no rank holds more than it may.
#[test]
fn stages_of_every_plan_are_printed() {
    let output = autoplan(&[
        "plan",
        "gemma2-27b",
        "dgx-h100",
        "--gpus",
        "32",
        "--global-batch",
        "64",
        "--seq-len",
        "8192",
        "--fix",
        "pp=4,vpp=1|2",
        "--top",
        "3",
        "--stages",
    ]);
    let text = stdout(&output);
    let plans: Vec<&str> = text.split("\n\n").skip(1).filter(|part| part.contains(" stages ")).collect();
    assert_eq!(plans.len(), 3, "{text}");
    for (at, plan) in plans.iter().enumerate() {
        assert!(plan.trim_start().starts_with(&format!("{}: E", at + 1)), "{plan}");
        assert!(plan.contains("no other split is more than"), "{plan}");
        let mut layers = 0;
        for line in plan.lines().filter(|line| line.trim_start().starts_with("chunk")) {
            let words: Vec<&str> = line.split_whitespace().collect();
            let ends: Vec<u32> = words[1].split('-').map(|end| end.parse().unwrap()).collect();
            layers += (ends[ends.len() - 1] - ends[0] + 1) * words[3].parse::<u32>().unwrap();
        }
        assert_eq!(layers, 46, "{plan}");
        // Every rank's memory, beside its chunk where it has one.
        let mut ranks = 0;
        for line in plan.lines().filter(|line| line.contains(" GB ")) {
            let words: Vec<&str> = line.split_whitespace().collect();
            let ends: Vec<u32> = words[1].split('-').map(|end| end.parse().unwrap()).collect();
            ranks += ends[ends.len() - 1] - ends[0] + 1;
            let at = words.iter().position(|word| *word == "GB").unwrap();
            assert!(words[at - 1].parse::<f64>().unwrap() <= 80.0, "{line}");
        }
        assert_eq!(ranks, 4, "{plan}");
    }
}

/// A vocabulary of 262,144 on the last of eight stages: that the others wait for it is said, as each rank's passes have it.
#[test]
fn waits_of_unequal_stages_are_named() {
    let job = ["plan", "gemma3-27b", "dgx-h100", "--gpus", "128", "-b", "512", "-s", "8192"];
    let fixed = ["--fix", "pp=8,vpp=1", "--even-stages", "--top", "1"];
    let output = autoplan(&[&job[..], &fixed, &["--format", "json"]].concat());
    let value: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
    let plan = &value["plans"][0];
    let seconds = |value: &serde_json::Value| value.as_f64().unwrap();
    let micro_batches = seconds(&plan["plan"]["gradient_accumulation_steps"]);
    let busy = |chunk: &serde_json::Value| {
        (seconds(&chunk["forward_s"]) + seconds(&chunk["backward_s"])) * micro_batches
    };
    let busy: Vec<f64> = plan["chunks"].as_array().unwrap().iter().map(busy).collect();
    let after = ["weight_gather", "gradient_reduction", "optimizer_update", "step_overhead", "stragglers"];
    let makespan =
        seconds(&plan["step_time_s"]) - after.iter().map(|&item| seconds(&plan["time"][item])).sum::<f64>();
    let waits: Vec<f64> = busy.iter().map(|busy| makespan - busy).collect();
    let near = |a: f64, b: f64| (a - b).abs() < 1e-6;
    let told = plan["idle"]["ranks_s"].as_array().unwrap();
    assert!(told.iter().zip(&waits).all(|(told, waits)| near(seconds(told), *waits)), "{told:?} {waits:?}");
    let mean = waits.iter().sum::<f64>() / 8.0;
    assert!(near(seconds(&plan["idle"]["mean_s"]), mean));
    let unequal = mean - (makespan - busy[7]);
    assert!(near(seconds(&plan["idle"]["unequal_stages_s"]), unequal));
    assert_eq!(
        (plan["idle"]["busiest_rank"].as_u64(), &plan["limiting"]),
        (Some(7), &"unequal_stages".into())
    );

    let share = format!("{:.1}%", 100.0 * unequal / seconds(&plan["step_time_s"]));
    let more = format!("{:.1}%", 100.0 * unequal / (busy.iter().sum::<f64>() / 8.0));
    let text = stdout(&autoplan(&[&job[..], &fixed].concat()));
    let line = format!("{share} as rank 7 (head) has {more} more to do than the mean");
    assert!(text.contains(&line) && text.contains("unequal stages"), "{line}\n{text}");
}

/// What is to be known of a plan is said wherever the plan is: in tables, for programs, beside what is saved, in
/// explanations and in what is written out.
#[test]
fn warnings_go_where_their_plan_goes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("plan.ron");
    for (job, file, some) in [
        (
            "plan mixtral-8x22b dgx-h100 -g 128 -b 1024 -s 4096 --top 3",
            "mixtral-8x22b.sh",
            &["± : ", "CUDA_DEVICE_MAX_CONNECTIONS"][..],
        ),
        (
            "plan llama3.1-8b dgx-h100 -g 8 -b 128 -s 8192 --top 3",
            "llama-3.1-8b.sh",
            &["memory: fits only if the allocator returns cached blocks in time"],
        ),
    ] {
        let value = |output: &Output| -> serde_json::Value { serde_json::from_str(&stdout(output)).unwrap() };
        let notes = |value: &serde_json::Value| -> Vec<String> {
            let notes = value["notes"].as_array().unwrap().iter();
            notes.map(|note| note.as_str().unwrap().to_owned()).collect()
        };
        let json = value(&autoplan_says(&format!("{job} --format json")));
        let of_first = notes(&json["plans"][0]);
        for part in some {
            assert!(of_first.iter().any(|note| note.contains(part)), "{part}: {of_first:?}");
        }
        let table = stdout(&autoplan_says(job));
        let sheet = stderr(&autoplan_says(&format!("{job} --format csv")));
        let saved = autoplan_says(&format!("{job} --format ron"));
        std::fs::write(&path, stdout(&saved)).unwrap();
        let explain = ["explain", path.to_str().unwrap(), "--alone"];
        let explained = stdout(&autoplan(&explain));
        let explained_json = value(&autoplan(&[&explain[..], &["--format", "json"]].concat()));
        let script = exported(job, "megatron", file);
        for note in &of_first {
            assert!(table.contains(&format!("\n{note}")), "{note}: {table}");
            assert!(notes(&json).iter().any(|told| told.starts_with(note)), "{note}: {json}");
            assert!(sheet.contains(&format!("note: {note}")), "{note}: {sheet}");
            assert!(stderr(&saved).contains(&format!("note: {note}\n")), "{note}");
            assert!(explained.contains(&format!("\n{note}\n")), "{note}: {explained}");
            assert!(notes(&explained_json).contains(note), "{note}");
            assert!(script.contains(&format!("# note       {note}\n")), "{note}: {script}");
        }
    }
}

/// Two files are told apart by their names, and what is the same is said to be.
#[test]
fn what_is_compared_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let save = |name: &str, more: &[&str]| {
        let path = folder.path().join(name);
        std::fs::write(&path, small(&[more, &["--format", "ron"]].concat()).stdout).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (one, same, other) = (save("a.ron", &[]), save("b.ron", &[]), save("c.ron", &["--price", "9"]));
    let compared = |second: &str| stdout(&autoplan(&["compare", &one, second]));
    for (second, said) in
        [(&same, "differs in nothing that is compared"), (&other, "differs in: price on-demand -> 9\n")]
    {
        let text = compared(second);
        assert!(text.starts_with(&format!("first, {one}: Llama 3.2 1B on 8 x ")), "{text}");
        assert!(text.contains(&format!("\nsecond, {second}: ")), "{text}");
        assert!(text.contains(", batch 32 x 2048 tokens: tp") && text.contains(said), "{text}");
    }
}

/// One kind of percentage, and nothing of what a launch says is kept back from programs.
#[test]
fn an_explanation_is_whole_and_counts_in_one_way() {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("launch.sh");
    std::fs::write(&script, LAUNCH).unwrap();
    let explain = |more: &[&str]| {
        stdout(&autoplan(
            &[&["explain", script.to_str().unwrap(), "--cluster", "dgx-h100"][..], more].concat(),
        ))
    };
    let value: serde_json::Value = serde_json::from_str(&explain(&["--format", "json"])).unwrap();
    assert_eq!(value["not_understood"][0][1], "--my-flag 3");
    assert!(value["assumed"].as_array().is_some_and(|notes| !notes.is_empty()));
    let best = value["best"]["step_time_s"].as_f64().unwrap() / value["step_time_s"].as_f64().unwrap();
    let text = explain(&[]);
    assert!(text.contains(&format!("better by {:.1}% of the step", 100.0 * (1.0 - best))), "{text}");
}

/// Who saves one plan learns of one that moved layers made faster.
#[test]
fn a_faster_plan_is_told_where_the_best_is_saved() {
    let job = "plan gemma3-27b dgx-h100 -g 64 -b 512 -s 8192 --fix pp=8,vpp=2";
    let table = stdout(&autoplan_says(job));
    let (_, faster) = table.split_once("  with that, ").unwrap_or_else(|| panic!("{table}"));
    let faster = faster.lines().next().unwrap();
    assert!(faster.contains("(--pick "), "{faster}");
    for format in ["ron", "json", "csv"] {
        let saved = autoplan_says(&format!("{job} --format {format}"));
        let noted = stderr(&saved);
        let times = noted.lines().filter(|line| line.starts_with("note: ") && line.ends_with(faster)).count();
        assert_eq!(times, 1, "{noted}");
    }
    let alone = autoplan_says(&format!("{job} --format ron --as-ranked"));
    assert!(!stderr(&alone).contains("is faster than the first"), "{}", stderr(&alone));
}

/// Layers of a plan that is explained were moved, and so are those of what it is compared with.
#[test]
fn single_changes_are_compared_with_layers_moved() {
    let value = |output: &Output| -> serde_json::Value { serde_json::from_str(&stdout(output)).unwrap() };
    let job = "gemma3-27b dgx-h100 -g 64 -b 512 -s 8192 --format json --fix pp=8,vpp=2,cp=1,mb=1,zero=1";
    let explained = value(&autoplan_says(&format!("explain {job},tp=4")));
    let changes = explained["changes"].as_array().unwrap();
    let change = changes.iter().find(|change| change["axis"] == "tp" && change["to"] == 2).unwrap();
    let plan = &value(&autoplan_says(&format!("plan {job},tp=2")))["plans"][0];
    let step = |plan: &serde_json::Value| plan["step_time_s"].as_f64().unwrap();
    assert_eq!(change["name"], plan["name"]);
    // What proofs see beside is little.
    assert!((step(change) / step(plan) - 1.0).abs() < 0.01, "{change} {}", step(plan));
    assert!(step(change) < 0.95 * step(&plan["ranked"]), "{change} {}", plan["ranked"]);
}

/// A plan need not be of the space that is searched unasked: what is faster with its own ZeRO stage is not passed over.
#[test]
fn what_is_faster_beyond_the_space_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let job = "plan llama3.1-70b dgx-h100 -g 96 -b 12 -s 8192 --framework torchtitan --format ron";
    std::fs::write(path("plan.ron"), autoplan_says(job).stdout).unwrap();
    autoplan(&["export", &path("plan.ron"), "--to", "megatron", "-o", &path("launch")]);
    let script = path("launch/llama-3.1-70b.sh");
    let explained = stdout(&autoplan(&["explain", &script, "--cluster", "dgx-h100"]));
    let (_, settings) = explained.split_once("none: its degrees, other settings").unwrap();
    let faster = settings.lines().next().unwrap().split_whitespace().collect::<Vec<_>>();
    let said = format!("\nfaster with the same degrees and ZeRO stage: {} (", faster[3..].join(" "));
    assert!(faster[2].starts_with('-') && explained.contains(&said), "{said} {explained}");
    assert!(!explained.contains("nothing in the space is faster"), "{explained}");
}

/// Plans of two jobs differ in whatever the jobs do.
#[test]
fn compared_jobs_show_all_that_differs() {
    let folder = tempfile::tempdir().unwrap();
    let saved = |name: &str, more: &[&str]| {
        let path = folder.path().join(name).to_str().unwrap().to_owned();
        let fixed = ["--fix", "tp=1,pp=1,cp=1,mb=1,zero=0,recompute=none", "--format", "ron"];
        std::fs::write(&path, small(&[&fixed[..], more].concat()).stdout).unwrap();
        path
    };
    let plain = saved("plain.ron", &[]);
    for (more, said) in [
        (["--optimizer", "muon"], "optimizer adamw -> muon"),
        (["--packed", "512x4"], "packed none -> 512x4"),
    ] {
        let text = stdout(&autoplan(&["compare", &plain, &saved("other.ron", &more)]));
        assert!(text.lines().any(|line| line.starts_with("differs in: ") && line.contains(said)), "{text}");
    }
}

/// What only launches can say, such as weights beside activations off the GPU, has names too.
#[test]
fn compared_plans_show_what_is_offloaded() {
    let folder = tempfile::tempdir().unwrap();
    let text = stdout(&small(&["--fix", "tp=1,pp=1,mb=1,recompute=none,offload=none", "--format", "ron"]));
    let saved = |name: &str, offload: [&str; 3]| {
        let [optimizer, parameters, activations] = offload;
        let path = folder.path().join(name).to_str().unwrap().to_owned();
        let text = text.replace("optimizer: Gpu", &format!("optimizer: {optimizer}"));
        let text = text.replace("parameters: Gpu", &format!("parameters: {parameters}"));
        std::fs::write(&path, text.replace("activations: false", &format!("activations: {activations}")))
            .unwrap();
        path
    };
    let listed = saved("listed.ron", ["Cpu", "Gpu", "false"]);
    let one = saved("one.ron", ["Cpu", "Cpu", "true"]);
    let other = saved("other.ron", ["Cpu", "Nvme", "false"]);
    for (first, second, said) in [
        (&listed, &one, "offload optimizer -> off-opt off-par off-act"),
        (&one, &other, "offload off-opt off-par off-act -> off-opt off-par-nvme"),
    ] {
        let output = autoplan(&["compare", first, second]);
        let text = stdout(&output);
        assert!(text.contains(&format!("differs in: {said}")), "{text}{}", stderr(&output));
    }
}

/// A GPU's cards carry its part of what the node's replicas sum, however the replicas lie.
#[test]
fn gradients_cross_the_network_once_a_node() {
    let intensity = |degrees: &str| {
        let fixed = format!("pp=1,cp=1,mb=1,zero=1,{degrees}");
        let job = "explain llama3.1-8b dgx-h100 -g 64 -b 128 -s 4096 --alone --format json --fix";
        let output = autoplan_says(&format!("{job} {fixed}"));
        let value: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        value["advice"]["gradients"].clone()
    };
    // Of 2 bytes a weight, each of eight nodes sends 2 x 7/8 by its eight GPUs.
    let weights = 8_030_261_248.0;
    let sent = 2.0 * 7.0 / 8.0 * 2.0 * weights / 8.0;
    let expected = 6.0 * weights * 128.0 * 4096.0 / 64.0 / sent;
    for degrees in ["tp=1", "tp=2", "tp=8"] {
        let gradients = intensity(degrees);
        let found = gradients["flops_per_byte"].as_f64().unwrap();
        assert!((found / expected - 1.0).abs() < 0.002, "{degrees}: {found}, not {expected}");
        assert_eq!(gradients["ceiling"], "compute", "{degrees}");
    }
}
