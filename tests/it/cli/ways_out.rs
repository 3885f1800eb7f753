//! Where there is no plan: why, and what would help.

use super::*;

#[test]
fn a_job_that_fits_nowhere_says_why_and_what_would_help() {
    let arguments =
        ["plan", "llama3.1-70b", "dgx-a100", "--gpus", "2", "-b", "32", "-s", "4096", "--format", "json"];
    let output = autoplan(&arguments);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let value: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(value["search"]["offload_opened"], true);
    assert!(value["plans"].as_array().unwrap().is_empty());
    let remedies = value["remedies"].as_array().unwrap();
    assert!(!remedies.is_empty());
    for remedy in remedies {
        assert!(remedy["step_time_s"].as_f64().unwrap() > 0.0);
    }
}

/// 16 bytes of state for each of 70 billion weights exceed 16 GPUs of 80 GB; without the optimizer's 12
/// they do not, and per token the offloading box is the cheapest of all.
#[test]
fn where_nothing_fits_offload_is_opened_and_ranks_beside_more_gpus() {
    let job = ["plan", "llama3.1-70b", "dgx-h100", "-b", "512", "-s", "8192"];
    let output = autoplan(&[&job[..], &["--gpus", "16,32,64", "--format", "json"]].concat());
    let value: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
    let opened: Vec<bool> =
        value["searches"].as_array().unwrap().iter().map(|s| s["offload_opened"] == true).collect();
    assert_eq!(opened, [true, false, false]);
    let plans = value["plans"].as_array().unwrap();
    for plan in plans {
        let offloads = plan["plan"]["offload"]["optimizer"] != "Gpu";
        assert_eq!(offloads, plan["gpus"] == 16, "{}", plan["name"]);
        assert!(plan["fits"] == true);
    }
    let of = |gpus: u64, field: &str| {
        plans.iter().find(|plan| plan["gpus"] == gpus).unwrap()[field].as_f64().unwrap()
    };
    assert!(of(16, "step_time_s") > of(64, "step_time_s"));
    assert!(of(16, "usd_per_trillion_tokens") < of(64, "usd_per_trillion_tokens"));
    let front: Vec<u64> =
        plans.iter().filter(|p| p["pareto"] == true).map(|p| p["gpus"].as_u64().unwrap()).collect();
    assert_eq!(front, [64, 16]);
    // The table says it, and so does whoever forbids offload.
    let table = stdout(&autoplan(&[&job[..], &["--gpus", "16", "--top", "1"]].concat()));
    assert!(table.contains("nothing fits without offload; these plans offload"), "{table}");
    let none = autoplan(&[&job[..], &["--gpus", "16", "--fix", "offload=none"]].concat());
    assert_eq!(none.status.code(), Some(1));
    let text = stdout(&none);
    assert!(text.contains("remedy: offload: --fix offload=optimizer (confirmed"), "{text}");
}

/// Weights and gradients of 8 billion parameters, 32 GB, fit on one GPU, and their optimizer states in host memory; frameworks
/// offload what may be sharded, be it over one rank. The plan of a configuration is the one that the search has.
#[test]
fn one_gpu_offloads_to_its_host() {
    let folder = tempfile::tempdir().unwrap();
    let job = ["-g", "1", "-b", "8", "-s", "2048"];
    for framework in ["megatron", "deepspeed", "torchtitan"] {
        let options = ["plan", "llama3.1-8b", "dgx-a100", "--framework", framework, "--format", "json"];
        let output = autoplan(&[&options[..], &job].concat());
        let value: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
        assert_eq!(value["search"]["offload_opened"], true, "{framework}");
        let plan = &value["plans"][0];
        assert_eq!(plan["plan"]["offload"]["optimizer"], "Cpu", "{framework}");
        assert!(plan["fits"] == true, "{framework}");
        // Pruned and unpruned searches agree.
        let all = autoplan(&[&options[..], &job, &["--exhaustive"]].concat());
        let all: serde_json::Value = serde_json::from_str(&stdout(&all)).unwrap();
        assert_eq!(all["plans"][0]["name"], plan["name"], "{framework}");
    }
    // What does not offload is the same whatever else may.
    let small =
        ["plan", "llama3.2-1b", "dgx-a100", "-g", "1", "-b", "8", "-s", "512", "--framework", "deepspeed"];
    let first = |options: &[&str]| {
        let output =
            autoplan(&[&small[..], &["--format", "json", "--memory-limit", "28GB"], options].concat());
        let value: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
        value["plans"][0]["name"].clone()
    };
    assert!(first(&["--fix", "offload=none"]).is_null());
    assert!(first(&[]).as_str().unwrap().contains("off-opt"));
    assert_eq!(first(&["--fix", "offload=none|optimizer"]), first(&[]));
    let configuration = folder.path().join("ds_config.json");
    let text = r#"{"train_batch_size": 8, "train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
        "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu", "pin_memory": true}}}"#;
    std::fs::write(&configuration, text).unwrap();
    let words = ["--model", "llama3.1-8b", "--cluster", "dgx-a100", "--gpus", "1", "--seq-len", "2048"];
    let output = autoplan(&[&["explain", configuration.to_str().unwrap()], &words[..]].concat());
    let text = stdout(&output);
    assert!(text.contains("the plan fits as predicted"), "{text}");
    // One change holds what lets the states leave.
    let change = text.lines().find(|line| line.trim_start().starts_with("mb 1 -> 2")).unwrap();
    assert!(change.contains("mb2") && change.contains("zero2 off-opt"), "{change}");
    assert!(text.contains("at least: the states alone need 1 GPU\n"), "{text}");
}

#[test]
fn empty_intersections_are_answered() {
    let output = small(&["--fix", "tp=2", "--fix", "tp=4"]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    // What no plan can have is named, not only that nothing is left.
    for (fix, reason) in [
        ("ep=2", "has no experts: ep is 1"),
        ("schedule=zb-v", "megatron has no schedule=zb-v; it has 1f1b, interleaved"),
        ("Schedule=ZB-V", "megatron has no schedule=zb-v; it has 1f1b, interleaved"),
        ("tp=8 pp=16", "need 128 GPUs or more"),
        ("pp=8 vpp=8", "1 have more chunks (pp x vpp) than layers and ends under --fix vpp"),
        (
            "offload=parameters-nvme",
            "megatron has no offload=parameters-nvme; it has none, optimizer, activations",
        ),
    ] {
        let fixes: Vec<&str> = fix.split(' ').flat_map(|fix| ["--fix", fix]).collect();
        let output = small(&fixes);
        assert_eq!(output.status.code(), Some(1), "{fix}");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.contains(reason), "{fix}: {text}");
    }
    let output = small(&["--fix", "tp=3"]);
    assert_eq!(output.status.code(), Some(1));
    let text = stdout(&output);
    assert!(text.contains("no plan") && text.contains("tp=3 does not divide the GPUs"), "{text}");
    for degree in [2, 4] {
        let remedy = format!("remedy: another degree: --fix tp={degree} (confirmed: tp{degree} ");
        assert!(text.contains(&remedy), "{text}");
    }
    assert!(text.contains("remedy: drop the --fix and --max restrictions (confirmed"), "{text}");
    // Degrees of experts have another number to divide.
    for (gpus, ep, reason) in [
        (16, 7, "ep=7 divides neither the 8 experts nor the GPUs"),
        (24, 3, "ep=3 does not divide the 8 experts"),
        (2, 8, "ep=8 does not divide the GPUs"),
    ] {
        let job = format!("plan mixtral-8x7b dgx-h100 -g {gpus} -b 48 -s 4096 --fix ep={ep} --format json");
        let text = stdout(&autoplan_says(&job));
        assert!(text.contains(reason), "{text}");
    }
}

#[test]
fn limits_that_no_gpu_has_are_told() {
    let output = small(&["--memory-limit", "80"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("did you mean 80GB?"), "{}", stderr(&output));
    let output = small(&["--memory-limit", "120GB"]);
    let told =
        "120.0 GB may be allocated, more than the 80.9 of 85.0 GB that NVIDIA A100 SXM4 80GB has for tensors";
    assert!(stdout(&output).contains(told), "{}", stdout(&output));
    let output = small(&["--memory-limit", "120GB", "--format", "csv"]);
    assert!(stderr(&output).contains(told) && !stdout(&output).contains(told), "{}", stderr(&output));
    assert!(!stdout(&small(&["--memory-limit", "80GB"])).contains("may be allocated"));
}

#[test]
fn numbers_that_do_not_divide_are_named_with_their_neighbours() {
    let job = ["plan", "llama3.2-1b", "dgx-a100", "--gpus", "8", "-s", "2048", "--fix", "dp=8"];
    let output = autoplan(&[&job[..], &["-b", "30"]].concat());
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("have 8 replicas, which do not divide the batch"), "{text}");
    for batch in ["24", "32"] {
        assert!(
            text.contains(&format!("remedy: another batch: --global-batch {batch} (confirmed")),
            "{text}"
        );
        let output = autoplan(&[&job[..], &["-b", batch]].concat());
        assert!(output.status.success(), "{}", stderr(&output));
    }
    // What is named can be run: whole nodes, or a part of one.
    let output = autoplan(&[&job[..6], &["2048", "--fix", "dp=3", "-b", "27"]].concat());
    let text = stdout(&output);
    let numbers = text.split("another number of GPUs: --gpus ").skip(1);
    let numbers: Vec<&str> = numbers.filter_map(|rest| rest.split(' ').next()).collect();
    assert!(!numbers.is_empty(), "{text}");
    for gpus in numbers {
        let output = autoplan(&[
            "plan",
            "llama3.2-1b",
            "dgx-a100",
            "-g",
            gpus,
            "-s",
            "2048",
            "--fix",
            "dp=3",
            "-b",
            "27",
        ]);
        assert!(output.status.success(), "{gpus}: {}", stderr(&output));
    }
    // Where the nearest fewer GPUs divide badly, it is better to leave more idle, and that command has a plan as fast.
    let uneven = ["plan", "llama3.2-1b", "dgx-a100", "-g", "248", "-b", "512", "-s", "2048"];
    let text = stdout(&autoplan(&uneven));
    let line = text.lines().find(|line| line.contains("--gpus-at-most (confirmed")).expect("a remedy");
    let said = line.rsplit(", ").next().and_then(|rest| rest.split(" ms").next()).unwrap();
    let best = stdout(&autoplan(&[&uneven[..], &["--gpus-at-most", "--top", "1"]].concat()));
    assert!(best.contains(&format!("{said} ms")), "{line}\n{best}");
    // One GPU shards nothing, whatever its framework does where there are several.
    for framework in ["deepspeed", "accelerate", "megatron-deepspeed"] {
        let one = [
            "plan",
            "llama3.2-1b",
            "dgx-a100",
            "-g",
            "1",
            "-b",
            "16",
            "-s",
            "2048",
            "--framework",
            framework,
        ];
        let output = autoplan(&one);
        assert!(output.status.success(), "{framework}: {}", stdout(&output));
    }
    // Where only plans are read, the reasons go to people.
    for format in ["csv", "ron"] {
        let output = autoplan(&[&job[..], &["-b", "30", "--format", format]].concat());
        assert_eq!(output.status.code(), Some(1));
        assert!(!stdout(&output).contains("remedy") && stderr(&output).contains("remedy: another batch"));
    }
    let output = autoplan(&["plan", "llama3.2-1b", "dgx-a100", "--gpus", "8", "-b", "32", "-s", "8k"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("8192 or 8000?"), "{}", stderr(&output));
}

/// Fewer GPUs that divide the batch are faster than more that do not.
#[test]
fn fewer_gpus_that_divide_better_are_a_way_out() {
    let job = "plan llama3.2-1b dgx-a100 -s 2048 -b 24 --tokens 1T --fix cp=1,tp=1 -g 32 \
        --deadline 25d --budget-usd 25k --format json";
    let said: serde_json::Value = serde_json::from_str(&stdout(&autoplan_says(job))).unwrap();
    let remedies = said["remedies"].as_array().unwrap();
    assert_eq!(remedies[0]["what"], "fewer GPUs: --gpus 24", "{said}");
    labels_hold(remedies, 25.0, 25_000.0);
    // Where fewer do not fit, those between are tried.
    let job =
        "plan llama3.1-70b dgx-h100 -g 32 -b 96 -s 4096 --tokens 1T --fix offload=none --budget-usd 684.6k";
    let table = stdout(&autoplan_says(job));
    assert!(table.contains("remedy: fewer GPUs: --gpus 24 (confirmed"), "{table}");
}

/// A batch close by that divides in more ways is worth more than the closest.
#[test]
fn batches_that_divide_better_are_a_way_out() {
    let table = stdout(&autoplan_says("plan llama3.1-8b dgx-h100 -g 1000 -b 1024 -s 4096"));
    assert!(table.contains("remedy: another batch: --global-batch 1000 (confirmed"), "{table}");
}

/// A range means every number of whole nodes, not only those that divide well; a long one says once which it tries.
#[test]
fn ranges_of_gpus_try_every_number_of_nodes() {
    let plan = |on: &str| autoplan_says(&format!("plan llama3.1-8b {on} -b 1056 -s 4096 --top 40"));
    let near = stdout(&plan("dgx-h100 --gpus 257..287"));
    assert!(near.contains("on 3 choices of GPUs") && near.contains(" 264 "), "{near}");
    let one = stdout(&plan("dgx-h100 --gpus 81..95"));
    assert!(one.contains("on 88 x NVIDIA H100"), "{one}");
    let small = stdout(&plan("dgx-h100 --gpus 2..4"));
    assert!(small.contains("on 3 choices of GPUs"), "{small}");
    let long = stderr(&plan("dgx-h100,dgx-a100 --gpus 256..512"));
    assert_eq!(long.matches(" of 33 numbers are tried").count(), 1, "{long}");
}

/// What a job needs more of is searched for from where it could be enough, whatever the plan that is too slow loses time to.
#[test]
fn the_nearest_number_of_gpus_is_not_skipped() {
    // The fastest plan of 64 GPUs keeps its optimizer on the host; half as many more do without, 1.3 times as fast each.
    let job = "plan llama3.1-405b dgx-h100 -g 64 -b 480 -s 8192 --tokens 10B --deadline 5.75d";
    let table = stdout(&autoplan(&job.split(' ').collect::<Vec<&str>>()));
    assert!(table.contains("more GPUs: --gpus 96 "), "{table}");
}

/// Numbers without small divisors are tried too where a range has no others, and a range without whole nodes says so.
#[test]
fn ranges_have_numbers_or_say_that_they_have_none() {
    let plan = |gpus: &str| {
        autoplan(&["plan", "llama3.2-1b", "dgx-h100", "-g", gpus, "-b", "80256", "-s", "2048", "--top", "1"])
    };
    let range = plan("80008..80400");
    assert!(stderr(&range).contains("32 of 50 numbers are tried, some from all over"), "{}", stderr(&range));
    assert!(stdout(&range).contains("32 choices of GPUs"), "{}", stdout(&range));
    let none = plan("9..15");
    assert_eq!(none.status.code(), Some(2));
    assert!(stderr(&none).contains("no number of whole nodes of 8 GPUs"), "{}", stderr(&none));
}

/// What binds is said in words, with numbers of the job, and of several choices of GPUs of which.
#[test]
fn rules_are_told_by_example() {
    let job = |more: &str| stdout(&autoplan_says(&format!("plan {more}")));
    let heads = job("llama3.1-8b dgx-h100 -g 24 -b 24 -s 4096 --fix tp=3");
    assert!(heads.contains("rule: heads; for example: 32 heads do not divide among tp 3"), "{heads}");
    // Ways to split are counted without what combinations are counted with.
    let counted =
        " combinations of degrees, those of experts and micro-batch sizes included, break rule: heads";
    assert!(heads.contains(counted), "{heads}");
    let odd = job("llama3.2-1b dgx-h100 -g 8,16 -b 32 -s 8193 --fix tp=8,sp=on");
    for gpus in [8, 16] {
        let begin = format!("\n  {gpus} x dgx-h100: ");
        let line = odd.split_once(&begin).unwrap_or_else(|| panic!("{odd}")).1;
        let line = line.lines().next().unwrap();
        assert!(
            line.ends_with("; for example: 8193 tokens per context-parallel rank do not divide among tp 8")
        );
    }
    // A rule that only plans off the GPU break.
    let offload =
        job("mixtral-8x7b dgx-h100 -g 8 -b 24 -s 4096 --framework deepspeed --fix tp=2,ep=4,zero=3");
    assert!(offload.contains("rule: experts-tensor-offload; for example: "), "{offload}");
    let first = "\nno plan\n  nothing fits without offload, nor with it\n";
    assert!(offload.contains(first) && offload.matches("no plan").count() == 1, "{offload}");
}

/// A scheduler that hands out 64 of a rack's 72 GPUs: the answer says how many racks that takes, and the job asks for them.
#[test]
fn parts_of_racks_are_told_and_asked_for() {
    let job = "plan llama3.1-70b gb200-nvl72 -g 128 -b 256 -s 4096 --top 1";
    let table = stdout(&autoplan(&job.split(' ').collect::<Vec<&str>>()));
    assert!(table.contains("64 of the 72 GPUs of each NVLink domain are used: the other 8 count"), "{table}");
    // As many in one domain, of which 64 are predicted too.
    for job in [job, &job.replace("-g 128", "-g 64")] {
        let script = exported(job, "slurm", "llama-3.1-70b.sbatch");
        assert!(script.contains("\n#SBATCH --segment=16\n"), "{script}");
    }
    let whole =
        stdout(&autoplan(&["plan", "llama3.1-70b", "gb200-nvl72", "-g", "72", "-b", "72", "-s", "4096"]));
    assert!(!whole.contains("NVLink domain"), "{whole}");
    // Of several choices it is said which are meant; and it is in the JSON of phases, as in their table.
    let several = "plan llama3.1-70b gb200-nvl72,dgx-h100 -g 72,128,256 -b 2304 -s 4096";
    let table = stdout(&autoplan(&several.split(' ').collect::<Vec<&str>>()));
    assert!(
        table.contains("\n128, 256 x gb200-nvl72: 64 of the 72 GPUs of each NVLink domain are used"),
        "{table}"
    );
    let phases = "plan llama3.1-8b gb200-nvl72 -g 128 --phase 4096:512:1T --format json";
    let json = stdout(&autoplan(&phases.split(' ').collect::<Vec<&str>>()));
    assert_eq!(json.matches("64 of the 72 GPUs of each NVLink domain are used").count(), 1, "{json}");
}

/// Where the deadline alone is missed, nothing that makes up for dollars is a way out.
#[test]
fn bounds_that_are_kept_need_no_remedy() {
    let job = "plan llama3.1-8b dgx-h100 --gpus 8 -s 4096 -b 64 --tokens 15T --deadline 10d --budget-usd 5M";
    let output = autoplan_says(job);
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("after the deadline"), "{text}");
    assert!(!text.contains("fewer GPUs") && !text.contains("--price reserved"), "{text}");
}

/// What of the degrees of experts is not searched is said where it leaves nothing.
#[test]
fn expert_tensor_parallelism_beyond_tp_is_told() {
    let plan = |fixed: &str| {
        let job = "plan qwen3-30b-a3b dgx-h100 -g 8 -b 64 -s 4096 --framework";
        let output = autoplan_says(&format!("{job} {fixed}"));
        assert_eq!(output.status.code(), Some(1), "{fixed}");
        stdout(&output)
    };
    let searched = "etp is searched up to tp";
    let text = plan("megatron --fix tp=2,etp=4");
    assert!(text.contains(&format!("etp=4 is above tp, which is 2 at most, and {searched}")), "{text}");
    let text = plan("megatron --fix tp=1|4,etp=4,pp=4");
    assert!(text.contains(&format!("leave no degrees of experts ({searched}")), "{text}");
    // It is told of what was asked for alone, and where the framework has one degree nothing else could be searched.
    let text = plan("megatron --fix tp=1|2,ep=8,pp=4");
    assert!(text.contains("leave no degrees of experts") && !text.contains(searched), "{text}");
    let text = plan("torchtitan --fix tp=2,etp=4");
    assert!(!text.contains(searched), "{text}");
}

/// Few degrees divide 4,097 tokens. Programs are told what people are.
#[test]
fn sequences_that_few_degrees_divide_have_better_neighbours() {
    let job = "plan llama3.1-70b dgx-h100 -g 256 -b 512 -s 4097 --top 1";
    let output = autoplan_says(&format!("{job} --format json"));
    let value: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert!(!stderr(&output).contains("divide better"), "{}", stderr(&output));
    let better = value["better_numbers"].as_array().unwrap();
    let of = |one: &serde_json::Value| {
        assert_eq!(one["number"], "sequence_length");
        let (tokens, more) = (one["value"].as_u64().unwrap(), one["more_per_gpu"].as_f64().unwrap());
        format!("note: sequences of {tokens} tokens divide better: {}", one["plan"].as_str().unwrap())
            + &format!(
                " ({:.3} s a step, {:.1}% more tokens per GPU)",
                one["step_time_s"].as_f64().unwrap(),
                more * 100.0
            )
    };
    let told: Vec<String> = better.iter().map(of).collect();
    assert!(told.len() == 2 && told[0].contains(" 4096 ") && told[1].contains(" 4352 "), "{told:?}");
    let said = stderr(&autoplan_says(job));
    let lines: Vec<&str> = said.lines().filter(|line| line.contains("divide better")).collect();
    assert_eq!(lines, told);
}

/// A batch with many odd factors leaves few degrees; its neighbours are told with what they gain, which planning them confirms.
#[test]
fn batches_that_few_degrees_divide_have_better_neighbours() {
    let job = "plan llama3.1-70b dgx-h100 -g 256 -s 4096 --as-ranked --top 1 --format json -b ";
    let of = |batch: u32| {
        let value: serde_json::Value =
            serde_json::from_str(&stdout(&autoplan_says(&format!("{job}{batch}")))).unwrap();
        let step = value["plans"][0]["step_time_s"].as_f64().unwrap();
        let better = value["better_numbers"].as_array().unwrap().iter().map(|better| {
            assert_eq!(better["number"], "global_batch_size");
            (better["value"].as_u64().unwrap() as u32, better["more_per_gpu"].as_f64().unwrap())
        });
        (f64::from(batch) / step, better.collect::<Vec<(u32, f64)>>())
    };
    let (own, told) = of(500);
    assert_eq!(told.iter().map(|one| one.0).collect::<Vec<u32>>(), [448, 512]);
    for (batch, gain) in told {
        let (better, said) = of(batch);
        assert!((better / own - 1.0 - gain).abs() < 1e-9, "{batch}: {better} {own} {gain}");
        assert!(said.is_empty(), "{said:?}");
    }
}
