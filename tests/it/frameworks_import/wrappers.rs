//! Programs that start the training command: the same words reach it through each of them.

use autoplan::frameworks::shell::{Handed, Launch, no_files, read_launch, read_launch_with};

fn read(text: &str) -> Launch {
    read_launch(text, &no_files).unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn arguments(launch: &Launch) -> Vec<&str> {
    launch.arguments.iter().map(|word| word.text.as_str()).collect()
}

#[test]
fn commands_behind_other_programs_are_read() {
    let train = "torchrun --nnodes 4 --nproc-per-node 8 x.py --n 8";
    for start in [
        "conda run -n env",
        "conda run --no-capture-output --name=env",
        "micromamba run -p /opt/env",
        "nohup",
        "env A=b",
        "time",
        "/usr/bin/time -v",
        "numactl -N 0 --membind=0",
        "numactl -N0 -m0",
        "stdbuf -oL -e 0",
        "timeout -k 5 10h",
        "timeout --signal=INT 10",
        "nice -n 10",
        "nice -10 ionice -c3",
        "taskset -c 0-7",
        "flock -n /tmp/lock",
        "setsid -f",
        "singularity exec --nv --bind /data:/data image.sif",
        "apptainer exec --nv image.sif",
        "docker run --gpus all --rm -v /a:/b image",
        "podman run --rm image",
        "enroot start --rw image",
        "srun --container-image=image.sqsh --container-mounts=/a:/b",
        "srun -N 4 timeout 10 conda run -n env",
        "ssh -o StrictHostKeyChecking=no -p 22 host",
        "sshpass -p word ssh host",
        "pdsh -R ssh -w host[1-4]",
        "clush -bw host[1-4]",
        "parallel-ssh -h hosts -i",
        "echo host | xargs -I{} ssh {}",
        "cat hosts | xargs -P 4 -n1 -I% ssh %",
    ] {
        let text = format!("{start} {train}");
        let launch = read(&text);
        assert_eq!((arguments(&launch), launch.ranks()), (vec!["--n", "8"], Ok(Some(32))), "{text}");
    }
    // The same as a text for another shell.
    for start in [
        "ssh host",
        "for h in a b; do ssh me@$h",
        "pdsh -w a,b",
        "tmux new-session -d -s x",
        "tmux neww",
        "su me -c",
        "script -q -c",
    ] {
        let end = if start.starts_with("for") { "; done" } else { "" };
        let text = format!("N=8\n{start} \"cd /work && {}\"{end}", train.replace("--n 8", "--n $N"));
        let launch = read(&text);
        assert_eq!((arguments(&launch), launch.ranks()), (vec!["--n", "8"], Ok(Some(32))), "{text}");
    }
}

#[test]
fn options_of_wrappers_say_no_ranks() {
    for start in
        ["numactl -N 0 -m 0", "flock -n /tmp/lock", "nice -n 3", "conda run -n env", "ionice -n 7 -c 2"]
    {
        let text = format!("srun -N 4 --ntasks-per-node 8 {start} python x.py --n 8");
        assert_eq!(read(&text).ranks(), Ok(Some(32)), "{text}");
        let text = format!("{start} python x.py --n 8");
        assert_eq!(read(&text).ranks(), Ok(None), "{text}");
    }
}

#[test]
fn lines_of_the_input_are_arguments() {
    let text = "echo \"--n 8\" | xargs torchrun x.py --m 2";
    assert_eq!(arguments(&read(text)), ["--m", "2", "--n", "8"]);
    let text = "xargs torchrun x.py --m 2 < list";
    assert_eq!(arguments(&read(text)), ["--m", "2", "\u{fffc}"]);
    // What is not started is not read.
    assert!(read_launch("ls | xargs rm x.py", &no_files).is_err());
    // Several commands, or words parted otherwise.
    for text in ["echo 2 4 | xargs -n1 torchrun x.py --n", "printf 'a,b' | xargs -d, torchrun x.py --n 2"] {
        let error = read_launch(text, &no_files).expect_err("not followed");
        assert!(error.message.contains("`xargs`"), "{text}: {error}");
    }
    // What stands in a file of variables is not known here.
    let text = "docker run --env-file list image bash -c 'torchrun x.py --n ${A:-1}'";
    assert_eq!(arguments(&read(text)), ["--n", "\u{fffc}"]);
}

#[test]
fn wrappers_within_wrappers_end() {
    let many = format!("{} torchrun x.py --n 8", "timeout 1 ".repeat(100_000));
    assert_eq!(arguments(&read(&many)), ["--n", "8"]);
    for start in ["xargs ", "ssh host ", "nice ", "exec "] {
        let text = format!("{} torchrun x.py --n 8", start.repeat(10_000));
        assert!(read_launch(&text, &no_files).is_err(), "{start}");
    }
}

#[test]
fn other_hosts_and_containers_know_what_they_are_told() {
    let told = |text: &str| read(text).environment.get("A").cloned();
    for (text, value) in [
        ("export A=1; ssh host 'torchrun x.py --n $A'", None),
        ("export A=1; ssh host \"A=2 torchrun x.py --n 1\"", Some("2")),
        ("export A=1; docker run image torchrun x.py --n 1", None),
        ("export A=1; docker run -e A image torchrun x.py --n 1", Some("1")),
        ("docker run -e A=2 image bash -c 'torchrun x.py --n $A'", Some("2")),
        ("export A=1; apptainer exec image torchrun x.py --n 1", Some("1")),
        ("export A=1; timeout 5 torchrun x.py --n 1", Some("1")),
        ("docker run -eA=2 image torchrun x.py --n 1", Some("2")),
        ("export A=1; apptainer exec --cleanenv image torchrun x.py --n 1", None),
        ("export APPTAINERENV_A=3; apptainer exec --cleanenv image torchrun x.py --n 1", Some("3")),
        ("export A=1; srun --export=NONE bash -c 'torchrun x.py --n 1'", None),
        ("export A=1; srun --export=ALL,B=2 bash -c 'torchrun x.py --n 1'", Some("1")),
        ("export A=1 B=2; srun --export A,B bash -c 'torchrun x.py --n 1'", Some("1")),
        ("export A=1; env -u A torchrun x.py --n $A", None),
        ("export A=1; env --unset=B torchrun x.py --n 1", Some("1")),
        ("export A=1; env -i B=2 torchrun x.py --n 1", None),
        ("export A=1; env - A=2 torchrun x.py --n 1", Some("2")),
        ("export A=1; sudo torchrun x.py --n 1", None),
        ("export A=1; sudo -E torchrun x.py --n 1", Some("1")),
        ("export A=1; exec -c torchrun x.py --n 1", None),
        ("export A=1; srun -e err -C gpu apptainer exec image torchrun x.py --n 1", Some("1")),
        ("docker run -e=A=2 image torchrun x.py --n 1", Some("2")),
    ] {
        assert_eq!(told(text).as_deref(), value, "{text}");
    }
    assert_eq!(arguments(&read("docker run -e A=2 image bash -c 'torchrun x.py --n $A'")), ["--n", "2"]);
    assert_eq!(arguments(&read("export A=1; ssh host 'torchrun x.py --n $A'")), ["--n", "\u{fffc}"]);
}

#[test]
fn programs_that_are_not_followed_are_named() {
    for (start, name) in [
        ("conda run --cwd /x", "conda` with `--cwd"),
        ("clush --picky -w a", "clush` with `--picky"),
        ("parallel -j 4", "parallel"),
        ("tmux send-keys -t x", "tmux"),
    ] {
        let text = format!("\n{start} \"torchrun x.py --n 1\" C-m");
        let error = read_launch(&text, &no_files).unwrap_err();
        assert!(error.line == 2 && error.message.contains(name), "{text}: {error}");
        assert!(error.message.contains("give the training command alone"), "{error}");
        // Beside one that is read it is a note.
        let both = read(&format!("{text}\ntorchrun x.py --n 1"));
        assert!(both.notes.iter().any(|note| note.starts_with("line 2") && note.contains(name)), "{both:?}");
    }
    // What installs starts nothing.
    assert!(read("conda install deepspeed\ntorchrun x.py --n 1").notes.is_empty());
}

#[test]
fn accelerate_says_ranks_and_configurations() {
    let files = |path: &str| match path {
        "zero.yaml" => {
            Ok("deepspeed_config:\n  gradient_accumulation_steps: 4\n  offload_optimizer_device: cpu\n  \
                           zero_stage: 3\ndistributed_type: DEEPSPEED\nnum_machines: 2\nnum_processes: 16\n"
                .to_owned())
        }
        "file.yaml" => Ok("distributed_type: DEEPSPEED\nnum_processes: 8\ndeepspeed_config:\n  \
                           deepspeed_config_file: conf/ds.json\n"
            .to_owned()),
        "both.yaml" => Ok("distributed_type: DEEPSPEED\nnum_processes: 8\ndeepspeed_config:\n  \
                           deepspeed_config_file: ds.json\n  zero_stage: 3\n"
            .to_owned()),
        "mixed.yaml" => {
            Ok("distributed_type: DEEPSPEED\nnum_processes: 8\nmixed_precision: bf16\ndeepspeed_config:\n  \
                            deepspeed_config_file: ds.json\n"
                .to_owned())
        }
        "fsdp.yaml" => Ok("distributed_type: FSDP\nnum_processes: 8\n".to_owned()),
        "broken.yaml" => Ok("a: [1\n".to_owned()),
        _ => Err("there is no such file".to_owned()),
    };
    let read = |text: &str| {
        let launch = read_launch(text, &files).unwrap_or_else(|error| panic!("{text}: {error}"));
        (launch.ranks().unwrap(), launch.deepspeed_config().unwrap())
    };
    let file = |path: &str| Some(Handed::File(path.to_owned()));
    for (text, expected) in [
        (
            "accelerate launch --use_deepspeed --deepspeed_config_file ds.json --num_machines 4 --num_processes 32 t.py",
            (Some(32), file("ds.json")),
        ),
        ("accelerate launch --config_file file.yaml t.py --n 1", (Some(8), file("conf/ds.json"))),
        // Options count before the file.
        (
            "accelerate launch --config-file=file.yaml --num-processes=64 --deepspeed-config-file x.json t.py",
            (Some(64), file("x.json")),
        ),
        ("accelerate launch --config_file file.yaml --num_processes $N t.py", (None, file("conf/ds.json"))),
        // The script's own is what the trainer reads.
        ("accelerate launch --config_file file.yaml t.py --deepspeed own.json", (Some(8), file("own.json"))),
        ("accelerate launch --num_processes 32 t.py --num-layers 2", (Some(32), None)),
        // Modules, and Accelerate as one.
        (
            "accelerate launch --config_file file.yaml -m trl.scripts.sft --n 1",
            (Some(8), file("conf/ds.json")),
        ),
        (
            "accelerate launch --config_file file.yaml --module trl.scripts.sft",
            (Some(8), file("conf/ds.json")),
        ),
        (
            "python -m accelerate.commands.launch --config_file file.yaml t.py",
            (Some(8), file("conf/ds.json")),
        ),
        // Said by an option, the number format is not the file's.
        (
            "accelerate launch --config_file mixed.yaml --mixed_precision bf16 t.py",
            (Some(8), file("ds.json")),
        ),
    ] {
        assert_eq!(read(text), expected, "{text}");
    }
    let (ranks, made) = read("accelerate launch --config_file zero.yaml --offload_param_device nvme t.py");
    let Some(Handed::Made(made)) = made else { panic!("{made:?}") };
    let made: serde_json::Value = serde_json::from_str(&made).unwrap();
    let zero = &made["zero_optimization"];
    assert_eq!(
        (ranks, &zero["stage"], &made["gradient_accumulation_steps"]),
        (Some(16), &3.into(), &4.into())
    );
    assert_eq!(
        (&zero["offload_optimizer"]["device"], &zero["offload_param"]["device"]),
        (&"cpu".into(), &"nvme".into())
    );
    assert_eq!(made["train_micro_batch_size_per_gpu"], "auto");
    for (text, part) in [
        ("accelerate launch --config_file gone.yaml t.py", "`gone.yaml`: not read: there is no such file"),
        ("accelerate launch --config_file broken.yaml t.py", "`broken.yaml`: line 2: this is no YAML"),
        ("accelerate launch --config_file fsdp.yaml t.py", "Accelerate without DeepSpeed"),
        ("accelerate launch --config_file both.yaml t.py", "says zero_stage beside"),
        ("accelerate launch --config_file mixed.yaml t.py", "says mixed_precision beside"),
        ("accelerate launch --multi_gpu --config_file file.yaml t.py", "Accelerate without DeepSpeed"),
        (
            "accelerate launch --use_deepspeed --zero_stage two t.py",
            "zero_stage takes a whole number, found `two`",
        ),
    ] {
        let error = read_launch(text, &files).unwrap_err();
        assert!(error.line == 1 && error.message.contains(part), "{text}: {error}");
    }
}

#[test]
fn manifests_are_read_with_their_variables() {
    let job = "apiVersion: batch/v1\nkind: Job\nspec:\n  template:\n    spec:\n      initContainers:\n        - command: [python, other.py, --n, \"3\"]\n      containers:\n        - name: train\n";
    let list = "          env:\n            - {name: SIZE, value: \"8\"}\n            - name: TOKEN\n              valueFrom: {secretKeyRef: {name: x, key: y}}\n          command: [torchrun, --nnodes, \"2\", --nproc-per-node=8]\n          args:\n            - x.py\n            - --n\n            - $(SIZE)\n            - --rank=$(JOB_COMPLETION_INDEX)-$(TOKEN)-$(LEFT)-$$(SIZE)\n";
    let text = format!("{job}{list}");
    let launch = read(&text);
    assert_eq!(arguments(&launch), ["--n", "8", "--rank=\u{fffc}-\u{fffc}-$(LEFT)-$(SIZE)"]);
    assert_eq!((launch.ranks(), launch.arguments[1].line), (Ok(Some(16)), 18));
    assert_eq!(launch.environment.get("SIZE").map(String::as_str), Some("8"));
    // A script in a block, on its own lines.
    let block = "          command: [\"/bin/bash\", \"-c\"]\n          args:\n            - |\n              N=8\n              torchrun --nproc-per-node 8 \\\n                x.py --n $N\n";
    let text = format!("{job}{block}");
    let launch = read(&text);
    assert_eq!((arguments(&launch), launch.ranks()), (vec!["--n", "8"], Ok(Some(8))));
    assert_eq!(launch.script.unwrap().line, 15);
    // Another kind's controller says how many nodes there are.
    let text = text.replace("kind: Job", "kind: PyTorchJob");
    assert_eq!(read(&text).ranks(), Ok(None));
    let error = read_launch("apiVersion: v1\nkind: [Job\n", &no_files).unwrap_err();
    assert!(error.line == 3 && error.message.contains("no YAML"), "{error}");
    let error = read_launch("apiVersion: v1\nkind: Service\n", &no_files).unwrap_err();
    assert!(error.message.contains("no training command"), "{error}");
}

#[test]
fn torchrun_takes_numbers_from_its_variables() {
    for (text, ranks) in [
        ("export PET_NNODES=4 PET_NPROC_PER_NODE=8; torchrun x.py --n 1", Some(32)),
        ("export PET_NNODES=4; torchrun --nnodes 2 --nproc-per-node 8 x.py --n 1", Some(16)),
        ("export PET_NNODES=$(hostname); torchrun --nproc-per-node 8 x.py --n 1", None),
    ] {
        assert_eq!(read(text).ranks(), Ok(ranks), "{text}");
    }
}

const JOB: &str = "#!/bin/bash\n#SBATCH --nodes=4\n#SBATCH --ntasks-per-node=8\nsrun python x.py --n ${N:-1} --m ${1:-2} --k $SLURM_NNODES --t $SLURM_NTASKS\n";

fn beside(path: &str) -> Result<String, String> {
    if path == "job.sbatch" || path == "job" {
        Ok(JOB.to_owned())
    } else {
        Err("there is no such file".to_owned())
    }
}

#[test]
fn jobs_are_read_with_the_options_before_them() {
    let here = format!("cat > own.slurm <<'X'\n{JOB}X\nsbatch --nodes 2 own.slurm 7");
    for (text, words, ranks) in [
        ("sbatch job.sbatch", "--n 1 --m 2 --k 4 --t 32", 32),
        ("sbatch job", "--n 1 --m 2 --k 4 --t 32", 32),
        ("bash job", "--n 1 --m 2 --k 4 --t 32", 32),
        ("sbatch -N2 -J name --exclusive job.sbatch 3", "--n 1 --m 3 --k 2 --t 16", 16),
        ("N=8 sbatch --nodes=8 job.sbatch", "--n 8 --m 2 --k 8 --t 64", 64),
        ("export N=8; sbatch --export=NONE job.sbatch", "--n 1 --m 2 --k 4 --t 32", 32),
        ("sbatch --export=ALL,N=4 job.sbatch", "--n 4 --m 2 --k 4 --t 32", 32),
        ("sbatch -n 16 --ntasks-per-node=4 job.sbatch", "--n 1 --m 2 --k 4 --t 16", 16),
        ("cd /work && sbatch --parsable $PWD/job.sbatch || true", "", 0),
        (here.as_str(), "--n 1 --m 7 --k 2 --t 16", 16),
    ] {
        let launch = match read_launch(text, &beside) {
            Ok(launch) => launch,
            Err(error) => {
                // Another folder's file is not this one.
                assert!(
                    words.is_empty() && error.notes.iter().any(|n| n.contains("is not followed")),
                    "{text}: {error:?}"
                );
                continue;
            }
        };
        let expected: Vec<&str> = words.split(' ').collect();
        assert_eq!((arguments(&launch), launch.ranks()), (expected, Ok(Some(ranks))), "{text}");
    }
    // A job within a job has the header of its own.
    let text = "#!/bin/bash\n#SBATCH --nodes=1\n#SBATCH --ntasks-per-node=1\nsbatch job.sbatch\n";
    assert_eq!(read_launch(text, &beside).unwrap().ranks(), Ok(Some(32)));
    // What a job is told in a document counts with its variables.
    let text = "for n in 2; do sbatch <<X\n#!/bin/bash\n#SBATCH --nodes=$n --ntasks-per-node=8\nsrun python x.py --n \\$SLURM_NNODES\nX\ndone";
    let launch = read(text);
    assert_eq!((arguments(&launch), launch.ranks()), (vec!["--n", "2"], Ok(Some(16))));
}

/// LSF's `bsub` joins its words into one command; what a shell is asked for by its first line is a script without a suffix
/// as well.
#[test]
fn jobs_of_lsf_and_scripts_without_a_suffix_are_read() {
    let files = |path: &str| {
        match path {
        "job" => Ok("#!/usr/bin/env bash\n#BSUB -nnodes 2\ntorchrun --nnodes 2 --nproc-per-node 8 x.py --n ${1:-5} --m $A\n".to_owned()),
        "other" => Ok("#!/usr/bin/python\nimport torch\n".to_owned()),
        _ => Err("there is no such file".to_owned()),
    }
    };
    for (text, words) in [
        ("export A=3; bsub -nnodes 2 -W 60 -J name ./job 4", "--n 4 --m 3"),
        ("export A=3; bsub -n 16 -R 'span[ptile=8]' -gpu num=8 -Is bash ./job", "--n 5 --m 3"),
        ("export A=3; bsub -q long < job", "--n 5 --m 3"),
        ("bsub 'A=3 ./job 7'", "--n 7 --m 3"),
        ("export A=3; bsub -n 16 torchrun --nnodes 2 --nproc-per-node 8 x.py --n 9 --m 3", "--n 9 --m 3"),
        ("export A=3; ./job 4", "--n 4 --m 3"),
        ("A=3 srun ./job", "--n 5 --m 3"),
    ] {
        let launch = read_launch(text, &files).unwrap_or_else(|error| panic!("{text}: {error}"));
        let expected: Vec<&str> = words.split(' ').collect();
        assert_eq!((arguments(&launch), launch.ranks()), (expected, Ok(Some(16))), "{text}");
    }
    for text in ["./other --n 1", "./missing --n 1", "bsub -no_such_option x ./job"] {
        assert!(read_launch(text, &files).is_err(), "{text}");
    }
}

/// Where aliases count they are refused where they are used, not passed over: bash itself passes over them in scripts unless
/// told otherwise.
#[test]
fn aliases_are_refused_where_they_count() {
    let train = "torchrun --nnodes 2 --nproc-per-node 8 x.py --n 1";
    let alias = "alias torchrun='torchrun --nnodes 4'";
    for before in ["", "#!/bin/bash\n", "shopt -s expand_aliases\nshopt -u expand_aliases\n"] {
        assert_eq!(read(&format!("{before}{alias}\n{train}\n")).ranks(), Ok(Some(16)), "{before}");
    }
    for before in [
        "#!/bin/sh\n",
        "#!/usr/bin/env zsh\n",
        "shopt -s expand_aliases\n",
        "shopt -qs expand_aliases\n",
        "set -o posix\n",
        "shopt -so posix\n",
    ] {
        let error = read_launch(&format!("{before}{alias}\n{train}\n"), &no_files).unwrap_err();
        assert_eq!(error.line, 3, "{before}: {error}");
        assert!(
            error.message.contains("`torchrun` is an alias here (line 2), which is not followed"),
            "{error}"
        );
        // Another's, one that is taken back, one in quotes.
        for other in [alias.replace("torchrun=", "t="), format!("{alias}\nunalias torchrun")] {
            assert_eq!(read(&format!("{before}{other}\n{train}\n")).ranks(), Ok(Some(16)), "{other}");
        }
        let text = format!("{before}BASH_ALIASES[torchrun]='torchrun --nnodes 4'\n{train}\n");
        assert!(read_launch(&text, &no_files).is_err_and(|error| error.line == 3), "{text}");
        let quoted = format!("{before}{alias}\n{}\n", train.replacen("torchrun", "\\torchrun", 1));
        assert_eq!(read(&quoted).ranks(), Ok(Some(16)), "{quoted}");
    }
}

/// An alias replaces what is read while it stands: a line when those before have run, a function where it is defined. Bash has
/// the last word on which of the commands `t` is one.
#[test]
fn aliases_count_where_a_command_is_read() {
    let alias = "alias t='N=alias; :'";
    let on = "shopt -s expand_aliases\nt() { N=plain; }\n";
    for (text, replaced) in [
        (format!("{on}f() {{ t; }}\n{alias}\nf"), false),
        (format!("{on}{alias}\nf() {{ t; }}\nunalias t\nf"), true),
        (format!("{on}{alias}\nf() {{\n t\n}}\nshopt -u expand_aliases\nf"), true),
        (format!("{on}{alias}\nf() {{ g() {{ t; }}; }}\nunalias -a\nf; g"), true),
        (format!("{on}{alias}; t"), false),
        (format!("{on}{alias}; f() {{ t; }}\nf"), false),
        (format!("{on}{{ {alias}\nt\n}}"), false),
        (format!("{on}if true; then {alias}\nfi; t"), false),
        (format!("{on}if true; then {alias}\nfi\nt"), true),
        (format!("{on}{alias}\neval t"), true),
        (format!("{on}{alias}; eval t"), true),
        (format!("{on}eval \"{alias}\nt\""), true),
        (format!("{on}f() {{ t; }}\n{alias}\nf() {{ t; }}\nf"), true),
        (format!("{on}{alias}\nf() {{ t; }}\nunalias t\nf() {{ t; }}\nf"), false),
        (format!("{on}{alias}\n( t ); M=$N; t"), true),
        (format!("{on}{alias}; N=$(t; echo $N)"), true),
        (format!("{on}f() {{ N=$(t; echo $N); }}\n{alias}\nf"), true),
        (format!("t() {{ N=plain; }}\n{alias}\nt"), false),
        (format!("t() {{ N=plain; }}\n{alias}; shopt -s expand_aliases\nt"), true),
    ] {
        let read = read_launch(&format!("{text}\npython x.py --n $N\n"), &no_files);
        match &read {
            Ok(launch) => assert!(!replaced && launch.arguments[1].text == "plain", "{text}: {launch:?}"),
            Err(error) => assert!(replaced && error.message.contains("`t` is an alias"), "{text}: {error}"),
        }
        let script = format!("{text}\necho $N");
        if let Ok(output) =
            std::process::Command::new("bash").args(["--norc", "-c", &script]).env_clear().output()
        {
            let said = String::from_utf8_lossy(&output.stdout);
            assert_eq!(said.trim(), if replaced { "alias" } else { "plain" }, "{text}");
        }
    }
}

/// Nodes that only a running job knows are those that its header, or the command that submits it, asks for.
#[test]
fn nodes_of_lsf_and_pbs_are_those_asked_for() {
    let ours = |text: &str| read(text).ranks();
    let torch = "torchrun --nnodes $(sort -u $LSB_DJOB_HOSTFILE | wc -l) --nproc-per-node 8 x.py --n 1";
    for (header, ranks) in [
        ("#BSUB -nnodes 4", Some(32)),
        ("#BSUB -P X -W 2:00\n#BSUB -nnodes 4 -J train", Some(32)),
        ("#BSUB -n 64\n#BSUB -R \"rusage[mem=4] span[ptile=32]\"", Some(16)),
        ("#BSUB -n 16 -R span[hosts=1]", Some(8)),
        ("#BSUB -n 16", None),
        ("#PBS -l select=4:system=polaris\n#PBS -l walltime=1:00:00", Some(32)),
        ("#PBS -l walltime=1:00:00,nodes=2:ppn=8", Some(16)),
        ("#PBS -l select=1:ngpus=8+3:ngpus=8", Some(32)),
        ("#PBS -l select=32:ngpus=1", None),
        ("#PBS -l nodes=a:ppn=8", None),
        ("echo x\n#BSUB -nnodes 4", None),
        ("", None),
    ] {
        assert_eq!(ours(&format!("#!/bin/bash\n{header}\n{torch}\n")), Ok(ranks), "{header}");
    }
    let header = "#!/bin/bash\n#PBS -l select=4\nN=$(wc -l < $PBS_NODEFILE)\n";
    for (start, ranks) in [
        ("mpiexec -n $((N * 8)) --ppn 8 python x.py --n 1", Some(32)),
        ("mpiexec --ppn 8 python x.py --n 1", Some(32)),
        ("mpiexec -n $((N * 8)) python x.py --n 1", None),
        ("torchrun --nproc-per-node 8 x.py --n 1", Some(8)),
        ("torchrun --nnodes 2 --nproc-per-node 8 x.py --n 1", Some(16)),
    ] {
        assert_eq!(ours(&format!("{header}{start}\n")), Ok(ranks), "{start}");
    }
    let header = "#!/bin/bash\n#BSUB -nnodes 4\nN=$(cat $LSB_DJOB_HOSTFILE | uniq | wc -l)\n";
    assert_eq!(ours(&format!("{header}jsrun -n $N -r 1 -a 8 -g 8 python x.py --n 1\n")), Ok(Some(32)));
    // There its variables are set.
    for (header, name) in [("#BSUB -nnodes 4", "LSB_JOBID"), ("#PBS -l select=4", "PBS_NODEFILE")] {
        let text = format!("N=1\nif [ -n \"${name}\" ]; then N=2; fi\npython x.py --n $N");
        assert_eq!(arguments(&read(&format!("{header}\n{text}"))), ["--n", "\u{fffc}"], "{header}");
        assert_eq!(arguments(&read(&text)), ["--n", "1"], "{name}");
    }
    // What is told to the command that submits it counts for the script.
    let text = format!("bsub -nnodes 2 <<'X'\n#BSUB -W 1:00\n{torch}\nX\n");
    assert_eq!(ours(&text), Ok(Some(16)));
    let notes = read(&format!("#!/bin/bash\n#BSUB -nnodes 4\n{torch}\n")).disagreements();
    assert!(notes.iter().any(|note| note.contains("read as the 4 that the job asks for")), "{notes:?}");
}

#[test]
fn shells_that_read_their_script_run_it() {
    let train = "torchrun --nproc-per-node 8 x.py --n ${1:-5} --m $A";
    for text in [
        format!("A=3\nssh host bash -s 4 <<X\n{}\nX", train.replace("${1", "\\${1")),
        format!("export A=3\nbash -s -- 4 <<'X'\n{train}\nX"),
        format!("export A=3\ncat <<'X' | bash -ls 4\n{train}\nX"),
        format!("export A=3\necho '{train}' | bash -s 4"),
        format!("ssh host 'A=3 bash -s 4' <<'X'\n{train}\nX"),
        format!("bash -e -o pipefail <<'X'\nA=3; set 4\n{train}\nX"),
    ] {
        let launch = read(&text);
        assert_eq!(
            (arguments(&launch), launch.ranks()),
            (vec!["--n", "4", "--m", "3"], Ok(Some(8))),
            "{text}"
        );
    }
}

#[test]
fn last_commands_of_pipes_are_the_scripts_own_where_it_says_so() {
    let read = |option: &str| {
        let launch = read(&format!("{option}\necho 4 | read N\ntorchrun x.py --n ${{N:-2}}"));
        arguments(&launch).join(" ")
    };
    assert_eq!(read("shopt -s lastpipe"), "--n 4");
    assert_eq!(read("shopt -s lastpipe nocasematch; shopt -u lastpipe"), "--n 2");
    assert_eq!(read("shopt -q lastpipe"), "--n 2");
}

#[test]
fn functions_may_call_what_they_are_named_after() {
    for prefix in ["command", "env A=b", "exec", "nice -n 3"] {
        let text = format!(
            "torchrun() {{ {prefix} torchrun \"$@\" --m 2; }}\ntorchrun --nproc-per-node 8 x.py --n 1"
        );
        let launch = read(&text);
        assert_eq!(
            (arguments(&launch), launch.ranks()),
            (vec!["--n", "1", "--m", "2"], Ok(Some(8))),
            "{text}"
        );
    }
    // The function is still there afterwards.
    let text = "echo() { command echo 8; }\nA=$(command echo 2)\nB=$(echo 2)\ntorchrun x.py --n $A --m $B";
    assert_eq!(arguments(&read(text)), ["--n", "2", "--m", "8"]);
}

#[test]
fn processes_are_as_many_as_devices_are_seen() {
    for (text, ranks) in [
        ("CUDA_VISIBLE_DEVICES=0,1,2,3 torchrun --nproc-per-node gpu x.py --n 1", Some(4)),
        ("export CUDA_VISIBLE_DEVICES=0,1; torchrun --nproc-per-node 2 x.py --n 1", Some(2)),
        ("CUDA_VISIBLE_DEVICES=$D torchrun --nproc-per-node gpu x.py --n 1", None),
        ("docker run --gpus '\"device=0,1,2\"' image torchrun --nproc-per-node auto x.py --n 1", Some(3)),
        ("docker run --gpus all image torchrun --nproc-per-node 8 x.py --n 1", Some(8)),
        // Slurm's option counts those of all nodes.
        ("srun --gpus 16 -N 2 torchrun --nnodes 2 --nproc-per-node 8 x.py --n 1", Some(16)),
        // Every task may see one of its own.
        ("export CUDA_VISIBLE_DEVICES=0; srun -N 2 --ntasks-per-node 8 python x.py --n 1", Some(16)),
        ("CUDA_VISIBLE_DEVICES=0,1 deepspeed x.py --deepspeed_config x.json", Some(2)),
        // DeepSpeed passes the variable over.
        ("CUDA_VISIBLE_DEVICES=0,1 deepspeed --num_gpus 8 x.py --deepspeed_config x.json", Some(8)),
        ("docker run -e CUDA_VISIBLE_DEVICES=0,1,2,3 image torchrun --nproc-per-node 4 x.py --n 1", Some(4)),
        (
            "docker run --gpus '\"device=0,1\",capabilities=utility' image torchrun --nproc-per-node gpu x.py --n 1",
            Some(2),
        ),
    ] {
        assert_eq!(read(text).ranks(), Ok(ranks), "{text}");
    }
    for text in [
        "\nexport CUDA_VISIBLE_DEVICES=0,1; torchrun --nproc-per-node 4 x.py --n 1",
        "\nCUDA_VISIBLE_DEVICES=0,1,-1,3 torchrun --nproc-per-node 4 x.py --n 1",
        "\ndocker run --gpus device=0 image torchrun --nproc-per-node 2 x.py --n 1",
    ] {
        let error = read(text).ranks().unwrap_err();
        assert!(error.line == 2 && error.message.contains("processes on every node"), "{text}: {error}");
    }
}

#[test]
fn torchrun_starts_what_it_does_where_it_is_told_nothing() {
    let notes = |text: &str| {
        let launch = read(text);
        (launch.ranks().unwrap(), launch.disagreements().join("\n"))
    };
    let (ranks, said) = notes("torchrun x.py --n 1");
    assert!(ranks == Some(1) && said.contains("it starts one"), "{said}");
    let (ranks, said) = notes("torchrun --nprocs_per_node 8 x.py --n 1");
    assert!(ranks == Some(1) && said.contains("did you mean --nproc-per-node?"), "{said}");
    let (ranks, said) = notes("srun -N 4 torchrun --nproc-per-node 8 x.py --n 1");
    assert!(ranks == Some(8) && said.contains("each of them trains by itself"), "{said}");
    // What only a running shell knows may say it.
    for text in
        ["torchrun $OPTIONS x.py --n 1", "export PET_NPROC_PER_NODE=$(nvidia-smi); torchrun x.py --n 1"]
    {
        let (ranks, said) = notes(text);
        assert!(ranks.is_none() && said.is_empty(), "{text}: {said}");
    }
    let (ranks, said) = notes("torchrun --standalone --nproc_per 8 --rdzv_id=3 -r 3 x.py --n 1");
    assert!(ranks == Some(8) && said.is_empty(), "{said}");
    assert_eq!(notes("PET_NPROC_PER_NODE=4 torchrun --nnode 2 --nproc-per-n=8 x.py --n 1").0, Some(16));
    // A file that is not there may export the variables.
    assert_eq!(notes("source gone.sh; torchrun x.py --n 1").0, None);
    // Values of other programs' options are no launchers.
    for start in [
        "srun -J torchrun",
        "srun --output=logs/torchrun",
        "srun -o deepspeed",
        "srun -e err --export=ALL,A=b",
    ] {
        let (ranks, said) = notes(&format!("{start} -N 4 --ntasks-per-node 8 python x.py --n 1"));
        assert!(ranks == Some(32) && said.is_empty(), "{start}: {said}");
    }
    let (ranks, said) = notes("srun -N 2 --gres=gpu:8 python x.py --n 1");
    assert!(ranks == Some(16) && said.contains("of which it would start one"), "{said}");
    let (_, said) = notes("srun -N 2 --ntasks-per-node=8 torchrun --nnodes 2 --nproc-per-node 8 x.py --n 1");
    assert!(said.contains("8 tasks on every node"), "{said}");
}

#[test]
fn deepspeed_takes_the_hosts_of_its_file_that_it_is_not_told_to_leave() {
    let files = |_: &str| Ok("# hosts\na slots=8\nb slots=8\nc slots=4\n".to_owned());
    for (options, ranks) in [
        ("", Some(20)),
        ("--num_nodes 2", Some(16)),
        ("--num_gpus 4", Some(12)),
        ("--include a@b:0,1", Some(10)),
        ("-i c", Some(4)),
        ("--exclude b", Some(12)),
        ("-e a:0,1,2,3@c", Some(12)),
        ("--include a@a", Some(8)),
        ("--include a@a:0", Some(1)),
        ("--exclude a@a:0", Some(19)),
        ("--num_nodes 4", Some(20)),
        ("--num_accelerators 2 --num_nodes 1", Some(2)),
    ] {
        let text = format!("deepspeed --hostfile hosts {options} x.py --deepspeed_config x.json");
        let launch = read_launch(&text, &files).unwrap();
        assert_eq!(launch.ranks(), Ok(ranks), "{text}");
    }
    for (options, part) in [
        ("--include a@b --exclude a:7", "--include beside --exclude"),
        ("--include a --num_gpus 2", "numbers of nodes or GPUs beside"),
        ("--exclude d", "has no `d`"),
        ("--include a:9", "`a` has no slot 9"),
        ("--include a:0-3", "`0-3` is no slot"),
    ] {
        let text = format!("deepspeed --hostfile hosts {options} x.py --deepspeed_config x.json");
        let error = read_launch(&text, &files).unwrap().ranks().unwrap_err();
        assert!(error.message.contains(part), "{text}: {error}");
    }
    for (hosts, part) in [
        ("a slots=8\na slots=8\n", "`a` twice"),
        ("a x slots=8\n", "the line `a x slots=8`"),
        ("# none\n", "is empty"),
    ] {
        let files = |_: &str| Ok(hosts.to_owned());
        let text = "deepspeed --hostfile hosts x.py --deepspeed_config x.json";
        let error = read_launch(text, &files).unwrap().ranks().unwrap_err();
        assert!(error.message.contains(part), "{hosts}: {error}");
    }
    // Options of the same names before it are not its own.
    let text = "srun -e err.log deepspeed --num_nodes 2 --num_gpus 8 x.py --deepspeed_config x.json";
    assert_eq!(read(text).ranks(), Ok(Some(16)));
}

#[test]
fn manifests_hold_the_scripts_that_they_start() {
    let map = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: scripts}\ndata:\n  train.sh: |\n    N=$1\n    torchrun --nproc-per-node 8 x.py --n $N\n---\n";
    let job = "apiVersion: batch/v1\nkind: Job\nspec:\n  template:\n    spec:\n      containers:\n        - command: [bash, /scripts/train.sh, \"4\"]\n          volumeMounts:\n            - {name: code, mountPath: /scripts}\n      volumes:\n        - name: code\n          configMap: {name: scripts}\n";
    let launch = read(&format!("{map}{job}"));
    assert_eq!((arguments(&launch), launch.ranks()), (vec!["--n", "4"], Ok(Some(8))));
    let one = job.replace("mountPath: /scripts}", "mountPath: /scripts/train.sh, subPath: train.sh}");
    assert_eq!(arguments(&read(&format!("{map}{one}"))), ["--n", "4"]);
    let other = job.replace("name: scripts}", "name: others}");
    let error = read_launch(&format!("{map}{other}"), &no_files).unwrap_err();
    assert!(error.notes.iter().any(|note| note.contains("`/scripts/train.sh` is not followed")), "{error:?}");
}

#[test]
fn launches_of_other_sizes_are_told_apart() {
    for (text, part) in [
        (
            "for n in 1 2; do torchrun --nnodes $n --nproc-per-node 8 x.py --n 1; done",
            "starts 16 ranks, the first 8",
        ),
        ("for n in 2 4; do sbatch -N $n job.sbatch; done", "differs from the first"),
        (
            "for n in 2 4; do printf '#SBATCH --ntasks-per-node=8\\nsrun python x.py --n 1\\n' | sbatch -N $n; done",
            "starts 32 ranks, the first 16",
        ),
        (
            "for z in 1 2; do echo \"{\\\"zero_optimization\\\": $z}\" > ds.json; deepspeed --num_gpus 8 x.py --deepspeed ds.json; done",
            "is handed another file",
        ),
    ] {
        let error = read_launch(text, &beside).unwrap_err();
        assert!(error.message.contains(part), "{text}: {error}");
    }
    // The nodes of one job differ in their numbers alone.
    let text =
        "for i in 0 1; do ssh node$i torchrun --nnodes 2 --node-rank $i --nproc-per-node 8 x.py --n 1; done";
    assert_eq!(read(text).ranks(), Ok(Some(16)));
}

#[test]
fn headers_are_read_as_options_before_those_of_the_command_line() {
    let job = |header: &str| {
        format!("#!/bin/bash\n{header}\nsrun python x.py --n ${{N:-4}} --g $SLURM_GPUS_PER_NODE\n")
    };
    let files = |header: &str| {
        let job = job(header);
        move |path: &str| {
            if path == "job" { Ok(job.clone()) } else { Err("there is no such file".to_owned()) }
        }
    };
    for (header, start, words, ranks) in [
        ("#SBATCH --export=NONE -n 8", "export N=2; sbatch job", "--n 4", Some(8)),
        ("#SBATCH --export=ALL,N=3 -n 8", "sbatch job", "--n 3", Some(8)),
        ("#SBATCH --export=NONE -n 8", "export N=2; sbatch --export=ALL job", "--n 2", Some(8)),
        ("#SBATCH --nodes=\"4\" --tasks-per-node=8", "sbatch job", "--n 4", Some(32)),
        (
            "#SBATCH -N 4 --ntasks-per-node=8 --gpus-per-node=h100:8",
            "sbatch job",
            "--n 4 --g h100:8",
            Some(32),
        ),
        ("#SBATCH --nodes=2-4 --ntasks-per-node=8", "sbatch job", "--n 4", None),
        ("#SBATCH --ntasks-per-node=8", "sbatch -N 2-2 --exclusive=user job", "--n 4", None),
        ("#SBATCH --gpus=16 --ntasks-per-gpu=1", "sbatch job", "--n 4", Some(16)),
        ("#SBATCH -N 2 --ntasks-per-node=8", "sbatch -J docker job", "--n 4", Some(16)),
        ("#PBS -v N=6", "qsub -q gpu job", "--n 6", None),
        ("#PBS -v N=6", "export N=2; qsub -v N=7 job", "--n 7", None),
        ("", "export N=2; qsub job", "--n 4", None),
        ("", "export N=2; qsub -V job", "--n 2", None),
    ] {
        let launch = read_launch(start, &files(header)).unwrap_or_else(|error| panic!("{header}: {error:?}"));
        let said = arguments(&launch).join(" ");
        assert!(said.starts_with(words), "{header} {start}: {said}");
        assert_eq!(launch.ranks(), Ok(ranks), "{header} {start}");
    }
    // The script that is read may be the job.
    assert!(arguments(&read(&job("#SBATCH --export=ALL,N=3 -n 8"))).join(" ").starts_with("--n 3"));
    assert!(arguments(&read(&job("#PBS -v N=3,M"))).join(" ").starts_with("--n 3"));
    // Its options are not those of the launcher within.
    let mpi = |path: &str| match path {
        "job" => Ok("#SBATCH --ntasks-per-node=8\nmpirun python x.py --n 1\n".to_owned()),
        _ => Err("there is no such file".to_owned()),
    };
    assert_eq!(read_launch("sbatch -N 2 job", &mpi).unwrap().ranks(), Ok(Some(16)));
    // A list of arguments has a header as well.
    let text = "#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=8\npretrain_gpt.py --n 1";
    assert_eq!(read(text).ranks(), Ok(Some(16)));
    // What it reads is its script.
    for text in [
        "A=$(date) sbatch -N2 <<'X'\n#SBATCH -n 16\nsrun python x.py --n 1\nX",
        "f() { sbatch; }; f <<'X'\n#SBATCH -n 16\nsrun python x.py --n 1\nX",
        "ssh host 'cd /x && sbatch' <<'X'\n#SBATCH -n 16\nsrun python x.py --n 1\nX",
        "printf '#SBATCH -n 16\\nsrun python x.py --n 1\\n' | sbatch",
    ] {
        let launch = read(text);
        assert_eq!((arguments(&launch), launch.ranks()), (vec!["--n", "1"], Ok(Some(16))), "{text}");
    }
}

#[test]
fn programs_of_other_queues_count_their_tasks() {
    for (text, ranks) in [
        ("jsrun -n 4 -a 8 -g 8 python x.py --n 1", Some(32)),
        ("jsrun -n4 -a4 python x.py --n 1", Some(16)),
        ("jsrun -p 4 -n 4 python x.py --n 1", Some(4)),
        ("jsrun python x.py --n 1", None),
        ("mpirun -H a:8,b:8 python x.py --n 1", Some(16)),
        ("mpirun -np 4 -H a:8,b:8 python x.py --n 1", Some(4)),
        ("srun -N 2 --tasks-per-node=4 python x.py --n 1", Some(8)),
    ] {
        assert_eq!(read(text).ranks(), Ok(ranks), "{text}");
    }
}

#[test]
fn wrappers_that_torchrun_starts_are_followed() {
    let files = |path: &str| match path {
        "wrap.sh" => Ok("python x.py \"$@\" --m 2\n".to_owned()),
        _ => Err("there is no such file".to_owned()),
    };
    for start in [
        "torchrun --nproc-per-node 8 --no-python ./wrap.sh",
        "torchrun --nproc-per-node 8 --no-python bash wrap.sh",
    ] {
        let launch = read_launch(&format!("{start} --n 1"), &files).unwrap();
        assert_eq!(
            (arguments(&launch), launch.ranks()),
            (vec!["--n", "1", "--m", "2"], Ok(Some(8))),
            "{start}"
        );
    }
}

#[test]
fn files_that_a_program_is_told_of_are_not_known_behind_it() {
    let files = |path: &str| match path {
        "conf.sh" => Ok("N=1\n".to_owned()),
        _ => Err("there is no such file".to_owned()),
    };
    for program in [
        "make conf.sh",
        "./tools/tune --out conf.sh",
        "./tools/tune --out=conf.sh",
        "python3 -c 'open(\"conf.sh\", \"w\").write(\"N=2\")'",
        "python3 - <<'X'\nopen('conf.sh', 'w').write('N=2')\nX",
    ] {
        let text = format!("{program}\n. ./conf.sh\ntorchrun --nproc-per-node 8 x.py --n $N");
        let launch = read_launch(&text, &files).unwrap();
        assert_ne!(arguments(&launch), ["--n", "1"], "{text}");
        assert!(
            launch.notes.iter().any(|note| note.contains("`./conf.sh` is not read")),
            "{text}: {:?}",
            launch.notes
        );
    }
    let text = "make conf.sh\n. ./conf.sh\ntorchrun --nproc-per-node 8 x.py --n ${N:-3}";
    assert_eq!(arguments(&read_launch(text, &files).unwrap()), ["--n", "\u{fffc}"]);
    let launch =
        read_launch("make other\n. ./conf.sh\ntorchrun --nproc-per-node 8 x.py --n $N", &files).unwrap();
    assert_eq!(arguments(&launch), ["--n", "1"]);
}

#[test]
fn options_that_scripts_take_are_read_as_the_shell_reads_them() {
    let script = |options: &str| {
        format!(
            "T=1; P=1; V=0\nwhile getopts '{options}' o; do case $o in t) T=$OPTARG;; p) P=$OPTARG;; v) V=1;; *) P=bad;; esac; done\n\
             shift $((OPTIND-1))\ntorchrun x.py --n $T --p $P --v $V \"$@\""
        )
    };
    let read = |text: &str, words: &str| {
        let words: Vec<String> = words.split_whitespace().map(str::to_owned).collect();
        let launch =
            read_launch_with(text, &words, &no_files).unwrap_or_else(|error| panic!("{words:?}: {error}"));
        arguments(&launch).join(" ")
    };
    for (words, expected) in [
        ("-t 4 -p 2 rest", "--n 4 --p 2 --v 0 rest"),
        ("-t4 -vp2", "--n 4 --p 2 --v 1"),
        ("-v -- -t 4", "--n 1 --p 1 --v 1 -t 4"),
        ("-x", "--n 1 --p bad --v 0"),
        ("-t", "--n 1 --p bad --v 0"),
    ] {
        assert_eq!(read(&script("t:p:v"), words), expected, "{words}");
        assert_eq!(read(&script(":t:p:v"), words), expected, "{words}");
    }
    let long = "TEMP=$(getopt -o t:v --long tp:,pp:,verbose -n x -- \"$@\")\neval set -- \"$TEMP\"\nT=1; P=1\nwhile true; do case \"$1\" in \
                -t|--tp) T=$2; shift 2;; --pp) P=$2; shift 2;; -v|--verbose) shift;; --) shift; break;; esac; done\n\
                torchrun x.py --n $T --p $P \"$@\"";
    for (words, expected) in [
        ("--tp 4 --pp=2", "--n 4 --p 2"),
        ("-t4 rest --verb --pp 2", "--n 4 --p 2 rest"),
        ("-v -- --tp 3", "--n 1 --p 1 --tp 3"),
    ] {
        assert_eq!(read(long, words), expected, "{words}");
    }
}

#[test]
fn texts_are_counted_and_searched() {
    let files = |path: &str| match path {
        "hosts" => Ok("a\nb\nc\n".to_owned()),
        ".env" => Ok("# sizes\nN=8\nM=2\n".to_owned()),
        _ => Err("there is no such file".to_owned()),
    };
    for (text, expected) in [
        ("torchrun x.py --n $(wc -l < hosts)", "--n 3"),
        ("torchrun x.py --n $(cat hosts | wc -w)", "--n 3"),
        ("set -- $(wc -l hosts); torchrun x.py --n $1 --m $2", "--n 3 --m hosts"),
        ("torchrun x.py --n $(grep -c -v b hosts)", "--n 2"),
        ("if grep -q c hosts; then N=1; else N=2; fi; torchrun x.py --n $N", "--n 1"),
        ("export $(grep -v '^#' .env | xargs); torchrun x.py --n $N --m $M", "--n 8 --m 2"),
        (
            "#SBATCH --nodes=4\nH=($(scontrol show hostnames $SLURM_JOB_NODELIST)); torchrun x.py --n ${#H[@]}",
            "--n 4",
        ),
        ("docker run --env-file .env image bash -c 'torchrun x.py --n $N'", "--n 8"),
    ] {
        let launch = read_launch(text, &files).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(arguments(&launch).join(" "), expected, "{text}");
    }
}

#[test]
fn manifests_know_what_config_maps_hold() {
    let map = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\ndata:\n  N: \"8\"\n  b.sh: |\n    torchrun --nproc-per-node 8 x.py --n 2\n  a.sh: |\n    torchrun --nproc-per-node 8 x.py --n 4\n---\n";
    let job = |container: &str, volumes: &str| {
        format!(
            "{map}apiVersion: batch/v1\nkind: Job\nspec:\n  template:\n    spec:\n      containers:\n{container}{volumes}"
        )
    };
    let from = "        - command: [bash, -c, \"torchrun --nproc-per-node 8 x.py --n ${P_N:-1}\"]\n          envFrom:\n            - {configMapRef: {name: c}, prefix: P_}\n";
    assert_eq!(arguments(&read(&job(from, ""))), ["--n", "8"]);
    // Another's may say anything.
    assert_eq!(arguments(&read(&job(&from.replace("name: c}", "name: d}"), ""))), ["--n", "\u{fffc}"]);
    let mounted = "        - command: [bash, /s/a.sh]\n          volumeMounts:\n            - {name: v, mountPath: /s}\n";
    let volumes =
        |items: &str| format!("      volumes:\n        - name: v\n          configMap: {{name: c{items}}}\n");
    assert_eq!(arguments(&read(&job(mounted, &volumes("")))), ["--n", "4"]);
    assert_eq!(arguments(&read(&job(mounted, &volumes(", items: [{key: b.sh, path: a.sh}]")))), ["--n", "2"]);
    // Other containers do not see them.
    let beside = "        - command: [bash, /s/b.sh]\n";
    let text = job(&format!("{mounted}{beside}"), &volumes(""));
    assert_eq!(
        arguments(&read_launch(&text, &|path| Err(format!("{path}: there is no such file"))).unwrap()),
        ["--n", "4"]
    );
    let many: String =
        (0..5000).map(|at| format!("            - {{name: v, mountPath: /s{at}}}\n")).collect();
    let error = read_launch(&job(&format!("{mounted}{many}"), &volumes("")), &no_files).unwrap_err();
    assert!(error.message.contains("more than 4096 files"), "{error}");
}

#[test]
fn what_is_not_known_is_not_counted() {
    for text in [
        "H=$(getent hosts); torchrun --nnodes $(echo \"$H\" | wc -l) --nproc-per-node 8 x.py --n 1",
        "A=$(nvidia-smi -L); N=$(echo \"$A\" | wc -l); torchrun --nproc-per-node $N x.py --n 1",
    ] {
        assert_eq!(read(text).ranks(), Ok(None), "{text}");
    }
    for list in ["node[01-04]", "'node[01-04]'", "$SLURM_JOB_NODELIST_HET_GROUP_1"] {
        let text =
            format!("#SBATCH -N 8\nH=($(scontrol show hostnames {list})); torchrun x.py --n ${{#H[@]}}");
        assert_eq!(arguments(&read(&text)), ["--n", "\u{fffc}"], "{text}");
    }
    // What a comment would cut off.
    let files = |_: &str| Ok("--z #1 --n 4\n".to_owned());
    let launch = read_launch("A=$(cat args | xargs)\ntorchrun x.py --m 1 $A", &files).unwrap();
    assert_eq!(arguments(&launch), ["--m", "1", "\u{fffc}"]);
}

#[test]
fn names_of_folders_and_containers_are_no_launchers() {
    for (text, ranks) in [
        ("srun -N 2 --ntasks-per-node=8 --container-name torchrun python x.py --n 1", Some(16)),
        ("srun -N 2 --ntasks-per-node=8 --container-workdir /w/deepspeed python x.py --n 1", Some(16)),
        ("mpirun -np 16 --output-filename logs/torchrun python x.py --n 1", Some(16)),
        ("mpirun -np 16 -wdir /home/me/deepspeed python x.py --n 1", Some(16)),
        ("srun -N 2 --ntasks-per-node=8 docker run deepspeed/deepspeed python x.py --n 1", Some(16)),
        ("docker run deepspeed/deepspeed deepspeed --num_gpus 8 x.py --deepspeed_config x.json", Some(8)),
        ("torchrun --nproc-per-node 8 --no-python python x.py --n 1", Some(8)),
        (
            "apptainer exec --env CUDA_VISIBLE_DEVICES=0,1,2,3 image torchrun --nproc-per-node 4 x.py --n 1",
            Some(4),
        ),
        ("mpirun --host a:8,b:8 -npernode 4 python x.py --n 1", Some(8)),
        ("mpirun --host a:8,b:8 --map-by ppr:4:node python x.py --n 1", None),
        ("srun -N 2 --gpus-per-node=8 --gres=nvme:4 python x.py --n 1", Some(16)),
        ("deepspeed --num_nodes 0 --num_gpus 8 --include \"\" x.py --deepspeed_config x.json", Some(8)),
    ] {
        assert_eq!(read(text).ranks(), Ok(ranks), "{text}");
    }
    let job = |path: &str| match path {
        "job.pbs" => Ok("#PBS -V\n#PBS -N docker\npython x.py --n ${N:-4}\n".to_owned()),
        _ => Err("there is no such file".to_owned()),
    };
    for start in ["qsub job.pbs", "qsub -N docker job.pbs"] {
        assert_eq!(
            arguments(&read_launch(&format!("export N=2; {start}"), &job).unwrap()),
            ["--n", "2"],
            "{start}"
        );
    }
    let said =
        read("srun -N 4 deepspeed --num_gpus 8 x.py --deepspeed_config x.json").disagreements().join("\n");
    assert!(said.contains("without /job/hostfile"), "{said}");
    let said = read("torchrun -z 3 --nproc-per-node 8 x.py --n 1").disagreements().join("\n");
    assert!(said.contains("torchrun has no option -z"), "{said}");
    let text = "torchrun --nnodes 1 --nproc-per-node 8 x.py --n 1; torchrun --nnodes 2 --nproc-per-node 4 x.py --n 1";
    let error = read_launch(text, &no_files).unwrap_err();
    assert!(error.message.contains("another number of ranks on a node"), "{error}");
}

#[test]
fn files_of_hosts_may_hold_what_is_not_known() {
    for (hosts, ranks) in [
        ("echo \"$A slots=8\" > h; echo \"$(hostname) slots=8\" >> h", Some(16)),
        ("echo \"a slots=$(nvidia-smi -L | wc -l)\" > h", None),
    ] {
        let text = format!("{hosts}\ndeepspeed --hostfile h x.py --deepspeed_config x.json");
        assert_eq!(read(&text).ranks(), Ok(ranks), "{text}");
    }
    // Programs that are given them read them.
    let files = |_: &str| Ok("a slots=8\n".to_owned());
    let text = "mpirun --hostfile h hostname; uniq h\ndeepspeed --hostfile h x.py --deepspeed_config x.json";
    assert_eq!(read_launch(text, &files).unwrap().ranks(), Ok(Some(8)));
}

#[test]
fn forms_of_getopt_that_order_otherwise_are_unknown() {
    for form in ["getopt -o +t: -- pre -t 4", "getopt -o -ab -- x", "getopt -a -o t: -l tp: -- -tp 4"] {
        let text = format!("eval set -- $({form})\ntorchrun x.py --n $2");
        assert_eq!(arguments(&read(&text)), ["--n", "\u{fffc}"], "{text}");
    }
    assert_eq!(
        arguments(&read("set -- $(getopt t: -t 4 rest)\ntorchrun x.py --n $2 --r $4")),
        ["--n", "4", "--r", "rest"]
    );
    assert_eq!(arguments(&read("eval set -- $(getopt -- t: -t 4)\ntorchrun x.py --n $2")), ["--n", "4"]);
}

#[test]
fn variables_of_manifests_are_bounded() {
    let variables: String = (1..64)
        .map(|at| format!("            - {{name: A{at}, value: \"$(A{0})$(A{0})\"}}\n", at - 1))
        .collect();
    let text = format!(
        "apiVersion: v1\nkind: Pod\nspec:\n      containers:\n        - command: [torchrun, x.py, --n, $(A63), --m, $(A2)]\n          env:\n            - {{name: A0, value: ab}}\n{variables}"
    );
    assert_eq!(arguments(&read(&text)), ["--n", "\u{fffc}", "--m", "abababab"]);
}
