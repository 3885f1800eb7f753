//! Programs that start the command behind their own options: in another environment, with other limits, or as a text for
//! the shell of another host or terminal. A program whose options are not all known here is not followed.

use std::ops::Range;

use super::launches::program;
use super::{UNKNOWN, Word, as_value, shown};

/// A program that starts another command.
struct Wrapper {
    names: &'static str,
    /// The words of which one must follow for a command to be started: `conda run`.
    verbs: &'static str,
    /// Options whose value may be the next word.
    valued: &'static str,
    /// Options without a value.
    switches: &'static str,
    /// Words between the options and the command: a duration, a host.
    operands: usize,
    kind: Kind,
}

/// What the words behind the options are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// A command, which keeps what is exported.
    Here,
    /// Words that are joined into one text for a shell elsewhere.
    Elsewhere,
    /// One word, which is a text for a shell elsewhere.
    Terminal,
    /// A command that lines of the input are put into.
    Input,
}

/// What a wrapper starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Wrapped {
    /// The command that begins at this word.
    Command(usize),
    /// A text for a shell that knows none of the variables here.
    Text(Word),
    /// The command that begins at this word, for every line of the input: in the place of a mark, else behind it.
    Input { at: usize, mark: Option<String> },
}

const WRAPPERS: &[Wrapper] = &[
    Wrapper {
        names: "conda mamba micromamba",
        verbs: "run",
        valued: "-n --name -p --prefix -r --root-prefix",
        switches: "-v --verbose --no-capture-output --live-stream --dev --debug-wrapper-scripts",
        operands: 0,
        kind: Kind::Here,
    },
    Wrapper {
        names: "numactl",
        verbs: "",
        valued: "-N --cpunodebind -m --membind -C --physcpubind -i --interleave -p --preferred",
        switches: "-l --localalloc -a --all -b --balancing",
        operands: 0,
        kind: Kind::Here,
    },
    Wrapper {
        names: "timeout",
        verbs: "",
        valued: "-s --signal -k --kill-after",
        switches: "--preserve-status --foreground -v --verbose",
        operands: 1,
        kind: Kind::Here,
    },
    Wrapper {
        names: "stdbuf",
        verbs: "",
        valued: "-i --input -o --output -e --error",
        switches: "",
        operands: 0,
        kind: Kind::Here,
    },
    Wrapper {
        names: "nohup unbuffer time",
        verbs: "",
        valued: "-o --output -f --format",
        switches: "-a --append -p --portability -v --verbose",
        operands: 0,
        kind: Kind::Here,
    },
    Wrapper {
        names: "setsid",
        verbs: "",
        valued: "",
        switches: "-c --ctty -f --fork -w --wait",
        operands: 0,
        kind: Kind::Here,
    },
    Wrapper {
        names: "nice ionice",
        verbs: "",
        valued: "-n --adjustment -c --class --classdata",
        switches: "-t --ignore",
        operands: 0,
        kind: Kind::Here,
    },
    Wrapper {
        names: "taskset",
        verbs: "",
        valued: "",
        switches: "-c --cpu-list -a --all-tasks",
        operands: 1,
        kind: Kind::Here,
    },
    Wrapper {
        names: "flock",
        verbs: "",
        valued: "-w --wait --timeout -E --conflict-exit-code",
        switches: "-n --nonblock -x -e --exclusive -s --shared -o --close -F --no-fork",
        operands: 1,
        kind: Kind::Here,
    },
    Wrapper {
        names: "sshpass",
        verbs: "",
        valued: "-p -f -d",
        switches: "-e",
        operands: 0,
        kind: Kind::Here,
    },
    Wrapper {
        names: "ssh",
        verbs: "",
        valued: "-B -b -c -D -E -e -F -I -i -J -L -l -m -O -o -P -p -Q -R -S -W -w",
        switches: "-4 -6 -A -a -C -f -g -K -k -n -q -T -t -v -X -x -Y -y",
        operands: 1,
        kind: Kind::Elsewhere,
    },
    Wrapper {
        names: "pdsh",
        verbs: "",
        valued: "-w -x -R -l -t -u -f -g -X -P -o",
        switches: "-S -N -b -A -a -i",
        operands: 0,
        kind: Kind::Elsewhere,
    },
    Wrapper {
        names: "clush",
        verbs: "",
        valued: "-w -x -g -X -l -f -t -u -o -O -m -R --hostfile --options",
        switches: "-a -b -B -L -N -q -S -v -n -D -G",
        operands: 0,
        kind: Kind::Elsewhere,
    },
    Wrapper {
        names: "pssh parallel-ssh",
        verbs: "",
        valued: "-h --hosts -H --host -l --user -p --par -o --outdir -e --errdir -t --timeout -O \
            --option -x --extra-args -X --extra-arg",
        switches: "-i --inline -v --verbose -A --askpass -P --print --inline-stdout",
        operands: 0,
        kind: Kind::Elsewhere,
    },
    Wrapper {
        names: "tmux",
        verbs: "new-session new new-window neww split-window splitw",
        valued: "-s -n -t -c -e -F -x -y -f -l",
        switches: "-d -A -D -P -X -h -v -b -k",
        operands: 0,
        kind: Kind::Terminal,
    },
    LSF,
    Wrapper {
        names: "xargs",
        verbs: "",
        valued: "-I --replace -n --max-args -P --max-procs -L --max-lines -a --arg-file -d -E -s",
        switches: "-r --no-run-if-empty -t --verbose -0 --null -x --exit",
        operands: 0,
        kind: Kind::Input,
    },
];

/// `sbatch`, whose options `salloc` and, for the most part, `srun` have too: behind them stand a script, of which it takes a
/// copy, and the script's arguments.
const BATCH: Wrapper = Wrapper {
    names: "sbatch",
    verbs: "",
    valued: "-A --account --acctg-freq -a --array --batch --bb --bbf -b --begin -D --chdir --cluster-constraint -M \
        --clusters --comment -C --constraint --container --container-id -S --core-spec --cores-per-socket --cpu-freq \
        --cpus-per-gpu -c --cpus-per-task --deadline --delay-boot -d --dependency -m --distribution -e --error -x \
        --exclude --export --export-file --extra -B --extra-node-info --gid --gpu-bind --gpu-freq -G --gpus \
        --gpus-per-node --gpus-per-socket --gpus-per-task --gres --gres-flags --hint -i --input -J --job-name \
        --kill-on-invalid-dep -L --licenses --mail-type --mail-user --mcs-label --mem --mem-bind --mem-per-cpu \
        --mem-per-gpu --mincpus --network -F --nodefile -w --nodelist -N --nodes -n --ntasks --ntasks-per-core \
        --ntasks-per-gpu --ntasks-per-node --ntasks-per-socket --open-mode -o --output -p --partition --power \
        --prefer --priority --profile -q --qos --reservation --segment --signal --sockets-per-node --switches \
        --thread-spec --threads-per-core -t --time --time-min --tmp --tres-bind --tres-per-task --uid \
        --wait-all-nodes --wckey",
    switches: "--contiguous --exclusive --get-user-env -H --hold --ignore-pbs --nice -k --no-kill --no-requeue -O \
        --overcommit -s --oversubscribe --parsable --propagate -Q --quiet --reboot --requeue --spread-job --stepmgr \
        --test-only --use-min-nodes -v --verbose -W --wait",
    operands: 0,
    kind: Kind::Here,
};

/// `bsub` of LSF, which joins the words behind its options into one command.
const LSF: Wrapper = Wrapper {
    names: "bsub",
    verbs: "",
    valued: "-a -alloc_flags -app -b -C -c -clusters -cn_cu -cn_mem -core_isolation -csm -cu -cwd -D -data -datagrp -E -Ep \
        -e -eo -env -eptl -ext -F -f -freq -G -g -gpu -hostfile -i -is -J -Jd -jobaff -jsdl -jsm -k -L -Lp -ln_mem \
        -ln_slots -M -m -mig -n -network -nnodes -o -oo -outdir -P -p -pack -ptl -Q -q -R -rnc -S -s -sla -smt -sp \
        -stage -step_cgroup -T -t -ti -U -u -v -W -We -w -wa -wt",
    switches: "-B -H -hl -I -Ip -Is -IS -ISp -ISs -IX -K -N -Ne -r -rn -ul -x -XF -Zs",
    operands: 0,
    kind: Kind::Elsewhere,
};

/// `qsub` of PBS and its kin.
const PBS: Wrapper = Wrapper {
    names: "qsub",
    verbs: "",
    valued: "-a -A -b -c -C -d -D -e -F -h -j -J -k -l -m -M -N -o -p -P -q -r -S -t -u -v -w -W",
    switches: "-f -I -n -V -x -X -z",
    operands: 0,
    kind: Kind::Here,
};

/// Where the script stands that `sbatch` or `qsub` is given; none where it is given a text or none, or an option is not
/// known.
pub(super) fn batch_script(fields: &[Word]) -> Option<usize> {
    let (at, queue) =
        queue(fields).filter(|(at, _)| !matches!(program(&fields[*at].text), "salloc" | "bsub"))?;
    let script = at + queue.command(&fields[at..]).ok()?;
    (script < fields.len()).then_some(script)
}

/// The program that asks for a job of its own.
fn queue(launcher: &[Word]) -> Option<(usize, &'static Wrapper)> {
    let at = program_at(launcher, |name| matches!(name, "sbatch" | "salloc" | "qsub" | "bsub"))?;
    let queue = match program(&launcher[at].text) {
        "qsub" => &PBS,
        "bsub" => &LSF,
        _ => &BATCH,
    };
    Some((at, queue))
}

/// Where the options stand of a program that asks for a job of its own, and where the command begins that `salloc` starts.
pub(super) fn job_options(launcher: &[Word]) -> Option<(Range<usize>, usize)> {
    let (at, queue) = queue(launcher)?;
    let options = queue.command(&launcher[at..]).unwrap_or(launcher.len() - at);
    Some((at + 1..at + options, at + options))
}

/// The words of a launcher without those that ask Slurm for a job.
pub(super) fn without_job(launcher: &[Word]) -> Vec<Word> {
    match job_options(launcher) {
        Some((options, command)) => [&launcher[..options.start - 1], &launcher[command..]].concat(),
        None => launcher.to_vec(),
    }
}

/// Where the first program stands that is meant by its name; options and the values of Slurm's may be named alike.
pub(super) fn program_at(words: &[Word], is_meant: impl Fn(&str) -> bool) -> Option<usize> {
    let has = |words: &[Word], names: &[&str]| words.iter().any(|word| names.contains(&program(&word.text)));
    let is_value = |at: usize| {
        let Some((option, before)) = words[..at].split_last() else { return false };
        let option = option.text.as_str();
        holds(NAMING, option)
            || option.starts_with("--container-") && !option.contains('=')
            || has(before, &["srun", "sbatch", "salloc"]) && holds(BATCH.valued, option)
            || has(before, &["qsub"]) && holds(PBS.valued, option)
            || has(before, &["bsub"]) && holds(LSF.valued, option)
    };
    let may = |at: usize| !words[at].text.starts_with('-') && !is_value(at);
    (0..words.len()).find(|&at| is_meant(program(&words[at].text)) && may(at))
}

/// Options of containers and of MPI whose values are names or folders.
const NAMING: &str = "--name --pwd --workdir -w -wdir --wdir --output-filename --hostname --mpi --cpu-bind";

/// Where a program of one of these names starts what follows: no interpreter stands between, unless it says that one may.
pub(super) fn starter_at(words: &[Word], is_meant: impl Fn(&str) -> bool) -> Option<usize> {
    let at = program_at(words, is_meant)?;
    let behind = &words[at + 1..];
    let python = behind.iter().any(|word| program(&word.text).starts_with("python"));
    let told = behind.iter().any(|word| matches!(word.text.as_str(), "--no-python" | "--no_python"));
    (!python || told).then_some(at)
}

/// Where torchrun stands, or its module behind `-m`.
pub(super) fn torch_at(words: &[Word]) -> Option<usize> {
    let module = |pair: &[Word]| {
        pair[0].text == "-m"
            && matches!(pair[1].text.as_str(), "torch.distributed.run" | "torch.distributed.launch")
    };
    let module = words.windows(2).position(module).map(|at| at + 1);
    module.or_else(|| starter_at(words, |name| name == "torchrun"))
}

/// Programs that take a text for a shell behind `-c` or `--command`.
const SHELL_TEXTS: &[&str] = &["su", "script", "runuser", "flock", "sg"];

/// Programs whose commands know only the variables that they are told of, not what is exported here.
const CLOSED: &[&str] = &[
    "ssh",
    "pdsh",
    "clush",
    "pssh",
    "parallel-ssh",
    "tmux",
    "docker",
    "podman",
    "nvidia-docker",
    "kubectl",
    "oc",
];

/// Programs whose commands know what is exported here, unless an option says otherwise.
const CONTAINERS: &[&str] = &["apptainer", "singularity"];

/// Such options.
const CLEANING: &[&str] = &["--cleanenv", "-e", "--containall", "-C"];

/// What the command that starts with these words starts in turn; none where it is no wrapper or not followed.
pub(super) fn wrapped(fields: &[Word]) -> Option<Wrapped> {
    let wrapper = wrapper(fields.first()?)?;
    let at = wrapper.command(fields).ok()?;
    let rest = fields.get(at..).filter(|rest| !rest.is_empty())?;
    Some(match wrapper.kind {
        Kind::Here => Wrapped::Command(at),
        Kind::Terminal if rest.len() > 1 => return None,
        Kind::Elsewhere | Kind::Terminal => {
            let text = rest.iter().map(|word| word.text.as_str()).collect::<Vec<_>>().join(" ");
            Wrapped::Text(Word { text, line: rest[0].line })
        }
        Kind::Input => {
            let mark = mark(&fields[1..at]);
            let splits = |word: &Word| SPLITTING.iter().any(|option| word.text.starts_with(option));
            if mark.is_none() && fields[1..at].iter().any(splits) {
                return None;
            }
            Wrapped::Input { at, mark }
        }
    })
}

/// Options with which the words of `xargs`'s input are others, or start several commands.
const SPLITTING: &[&str] =
    &["-n", "--max-args", "-L", "--max-lines", "-d", "--delimiter", "-0", "--null", "-a", "--arg-file"];

/// What `xargs -I MARK` puts the lines of its input in the place of.
fn mark(options: &[Word]) -> Option<String> {
    options.iter().enumerate().find_map(|(at, word)| {
        let glued = word.text.strip_prefix("--replace=").or_else(|| word.text.strip_prefix("-I"))?;
        let next = options.get(at + 1).map(|word| word.text.clone());
        if glued.is_empty() { next } else { Some(glued.to_owned()) }
    })
}

/// The text for a shell of the same host that a program takes as an option: `su user -c TEXT`.
pub(super) fn text_behind(fields: &[Word]) -> Option<(usize, Word)> {
    let first = fields.iter().position(|word| SHELL_TEXTS.contains(&program(&word.text)))?;
    fields.iter().enumerate().skip(first + 1).find_map(|(at, word)| {
        if let Some(text) = word.text.strip_prefix("--command=") {
            return Some((at, Word { text: text.to_owned(), line: word.line }));
        }
        let text = matches!(word.text.as_str(), "-c" | "--command" | "-qc" | "-lc" | "-qec");
        fields.get(at + 1).filter(|_| text).map(|inner| (at, inner.clone()))
    })
}

/// Whether words may be those of a training command, or name a script that has one.
pub(super) fn may_train(words: &[Word]) -> bool {
    const PARTS: [&str; 4] = ["torchrun", "deepspeed", ".py", ".sh"];
    words.iter().any(|word| PARTS.iter().any(|part| word.text.contains(part)))
}

/// Why a command that seems to start training behind a wrapper is not followed.
pub(super) fn unfollowed(fields: &[Word]) -> Option<String> {
    let first = fields.first()?;
    let name = program(&first.text);
    let trains = may_train(&fields[1..]);
    let verb = |wrapper: &&Wrapper| {
        let word = fields.get(1).map_or("", |word| word.text.as_str());
        wrapper.verbs.is_empty() || holds(wrapper.verbs, word)
    };
    let known = wrapper(first).filter(verb).map(|wrapper| wrapper.command(fields));
    let starts = known.is_some() || OTHERS.contains(&name);
    let why = match known {
        Some(Err(option)) => format!(" with `{}`", shown(&as_value(&option))),
        _ => String::new(),
    };
    (starts && trains).then(|| {
        format!(
            "what `{name}`{why} starts is not followed: give the training command alone, without `{name}`"
        )
    })
}

/// Programs that start commands in ways that are not followed.
const OTHERS: &[&str] = &["tmux", "parallel", "screen", "watch", "at", "batch", "expect"];

/// The launcher's words without wrappers and their options, some of which are named like those that say ranks.
pub(super) fn without_wrappers(launcher: &[Word]) -> Vec<Word> {
    let (mut words, mut at) = (Vec::new(), 0);
    while let Some(word) = launcher.get(at) {
        let skipped = wrapper(word).and_then(|wrapper| wrapper.command(&launcher[at..]).ok());
        match skipped {
            Some(skipped) => at += skipped,
            None => {
                words.push(Word { text: as_value(&word.text), line: word.line });
                at += 1;
            }
        }
    }
    words
}

/// Whether commands behind this launcher know only what they are told.
pub(super) fn is_closed(launcher: &[Word]) -> bool {
    let logs_in = |pair: &[Word]| {
        program(&pair[0].text) == "su" && matches!(pair[1].text.as_str(), "-" | "-l" | "--login")
    };
    let exports = |list: &str| list.split(',').any(|one| one == "ALL");
    let starts = |names: &[&str]| program_at(launcher, |name| names.contains(&name));
    let cleans = |at: usize| launcher[at..].iter().any(|word| CLEANING.contains(&word.text.as_str()));
    starts(CLOSED).is_some()
        || launcher.windows(2).any(logs_in)
        || exported(launcher).is_some_and(|list| !exports(list))
        || starts(&["qsub"]).is_some_and(|at| !launcher[at..].iter().any(|word| word.text == "-V"))
        || starts(CONTAINERS).is_some_and(cleans)
}

/// What Slurm is told to hand on, the last time.
pub(super) fn exported(launcher: &[Word]) -> Option<&str> {
    program_at(launcher, |name| matches!(name, "srun" | "sbatch" | "salloc"))?;
    launcher.iter().enumerate().rev().find_map(|(at, word)| match word.text.as_str() {
        "--export" => launcher.get(at + 1).map(|list| list.text.as_str()),
        text => text.strip_prefix("--export="),
    })
}

/// Whether these words start a command in a container that knows what is exported here, unless told otherwise.
pub(super) fn is_container(launcher: &[Word]) -> bool {
    program_at(launcher, |name| CONTAINERS.contains(&name)).is_some()
}

/// Whether a list of words has one.
fn holds(list: &str, word: &str) -> bool {
    list.split_whitespace().any(|known| known == word)
}

fn wrapper(word: &Word) -> Option<&'static Wrapper> {
    WRAPPERS.iter().find(|wrapper| holds(wrapper.names, program(&word.text)))
}

impl Wrapper {
    /// Where the command stands; else the word that is not understood.
    fn command(&self, fields: &[Word]) -> Result<usize, String> {
        let mut at = 1;
        if !self.verbs.is_empty() {
            let verb = fields.get(1).map_or("", |word| word.text.as_str());
            if !holds(self.verbs, verb) {
                return Err(verb.to_owned());
            }
            at = 2;
        }
        let mut operands = self.operands;
        while let Some(word) = fields.get(at) {
            let text = word.text.as_str();
            if text == "--" && operands == 0 {
                return Ok(at + 1);
            }
            if text.starts_with('-') && text != "-" {
                at += self.option(text).ok_or_else(|| text.to_owned())?;
            } else if text.starts_with(UNKNOWN) && operands == 0 {
                return Err(text.to_owned());
            } else if operands > 0 {
                operands -= 1;
                at += 1;
            } else {
                break;
            }
        }
        Ok(at)
    }

    /// How many words an option takes; none where it is not known.
    fn option(&self, text: &str) -> Option<usize> {
        if text == "--" {
            return Some(1);
        }
        if holds(self.valued, text) {
            return Some(2);
        }
        let glued = |name: &str| match text.strip_prefix(name) {
            Some(rest) => name.len() == 2 || rest.starts_with('='),
            None => false,
        };
        let letters = &text[1..];
        let bundled = |letter: char| holds(self.switches, &format!("-{letter}"));
        // `-bw HOSTS`
        if let Some(last) = letters.chars().next_back().filter(|_| !letters.starts_with('-'))
            && holds(self.valued, &format!("-{last}"))
            && letters[..letters.len() - last.len_utf8()].chars().all(bundled)
        {
            return Some(2);
        }
        let number = holds(self.names, "nice") && letters.parse::<u8>().is_ok();
        // `--exclusive=user`
        let plain = text.split('=').next().unwrap_or_default();
        let known = holds(self.switches, if plain.starts_with("--") { plain } else { text })
            || self.valued.split_whitespace().any(glued)
            || letters.chars().all(bundled)
            || number;
        known.then_some(1)
    }
}
