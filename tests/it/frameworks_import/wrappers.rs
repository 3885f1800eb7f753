//! Programs that start the training command: the same words reach it through each of them.

use autoplan::frameworks::shell::{Launch, no_files, read_launch};

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
        assert_eq!((arguments(&launch), launch.ranks(&text)), (vec!["--n", "8"], Ok(Some(32))), "{text}");
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
        assert_eq!((arguments(&launch), launch.ranks(&text)), (vec!["--n", "8"], Ok(Some(32))), "{text}");
    }
}

#[test]
fn options_of_wrappers_say_no_ranks() {
    for start in
        ["numactl -N 0 -m 0", "flock -n /tmp/lock", "nice -n 3", "conda run -n env", "ionice -n 7 -c 2"]
    {
        let text = format!("srun -N 4 --ntasks-per-node 8 {start} python x.py --n 8");
        assert_eq!(read(&text).ranks(&text), Ok(Some(32)), "{text}");
        let text = format!("{start} python x.py --n 8");
        assert_eq!(read(&text).ranks(&text), Ok(None), "{text}");
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
