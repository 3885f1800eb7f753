//! What a Slurm job asks for: by the `#SBATCH` lines of its script and by the options of `sbatch` or `salloc` before it,
//! which count more.

use super::printed::host_list;
use super::ranks::{Said, amount_of, gpus, values_among};
use super::state::unknown;
use super::wrappers::{job_options, program_at};
use super::{Word, is_unknown};

/// A Slurm job.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Job {
    /// Options of the header, then those of the command line.
    words: Vec<Word>,
    of_header: usize,
}

pub(super) const NODES: &[&str] = &["--nodes", "-N"];
pub(super) const TASKS: &[&str] = &["--ntasks", "--tasks", "-n"];
pub(super) const TASKS_PER_NODE: &[&str] = &["--ntasks-per-node", "--tasks-per-node"];
pub(super) const TASKS_PER_GPU: &[&str] = &["--ntasks-per-gpu"];
pub(super) const GPUS: &[&str] = &["--gpus", "-G"];
pub(super) const GPUS_PER_NODE: &[&str] = &["--gpus-per-node", "--gres"];

impl Job {
    /// The job that a script asks for which is started without `sbatch`; none where it has no header.
    pub(super) fn of_script(text: &str) -> Option<Self> {
        let asks = text.lines().any(|line| line.trim_start().starts_with("#SBATCH"));
        asks.then(|| Self::new(text, &[]))
    }

    /// The job that a launcher asks for before a script.
    pub(super) fn asked_by(launcher: &[Word], text: &str) -> Option<Self> {
        let (options, _) = job_options(launcher)?;
        program_at(launcher, |name| matches!(name, "sbatch" | "salloc"))?;
        // `salloc` starts any program, and reads no header.
        let batch = program_at(launcher, |name| name == "sbatch").is_some();
        Some(Self::new(if batch { text } else { "" }, &launcher[options]))
    }

    fn new(text: &str, options: &[Word]) -> Self {
        let mut words = header(text, "#SBATCH");
        let of_header = words.len();
        words.extend(options.iter().cloned());
        Self { words, of_header }
    }

    /// Its options, those that count more behind the others.
    pub(super) fn options(&self) -> &[Word] {
        &self.words
    }

    /// The last value of an option.
    pub(super) fn text(&self, names: &[&str]) -> Option<String> {
        values_among(&self.words, names).pop().map(|(_, _, value)| value.text)
    }

    /// A number.
    pub(super) fn said(&self, names: &[&str]) -> Said {
        self.text(names).map_or(Said::Not, |text| amount_of(&text))
    }

    /// GPUs of a node.
    pub(super) fn gpus_per_node(&self) -> Said {
        let values = values_among(&self.words, GPUS_PER_NODE).into_iter().rev();
        values.into_iter().find_map(|(_, name, value)| gpus(&name, &value.text)).unwrap_or(Said::Not)
    }

    /// A number and what says it, for people.
    pub(super) fn source(&self, names: &[&str]) -> Option<(String, u32)> {
        let (at, name, _) = values_among(&self.words, names).pop()?;
        let place = if at < self.of_header { "#SBATCH" } else { "the job" };
        Some((format!("{name} of {place}"), self.said(names).number()?))
    }

    /// What says that the job has more than one of anything, with how many.
    pub(super) fn several(&self) -> Option<(String, u32)> {
        let all = [NODES, TASKS, TASKS_PER_NODE, GPUS, GPUS_PER_NODE];
        all.iter().find_map(|names| self.source(names).filter(|(_, n)| *n > 1))
    }

    /// Tasks of the job, as a number or as a product.
    pub(super) fn tasks(&self) -> Said {
        let (nodes, per_node) = (self.said(NODES), self.said(TASKS_PER_NODE));
        let product = |one: Said, other: Said| match one.times(other) {
            Some(product) if one != Said::Not => Said::Number(product),
            _ => Said::Not,
        };
        let gpus = self.said(GPUS).or(product(nodes, self.gpus_per_node()));
        self.said(TASKS).or(product(nodes, per_node)).or(product(gpus, self.said(TASKS_PER_GPU)))
    }

    /// The variables that Slurm sets for it.
    pub(super) fn variables(&self) -> Vec<(&'static str, String)> {
        let (nodes, tasks) = (self.said(NODES), self.tasks());
        let numbers = [
            ("SLURM_NNODES", nodes),
            ("SLURM_JOB_NUM_NODES", nodes),
            ("SLURM_NTASKS", tasks),
            ("SLURM_NPROCS", tasks),
            ("SLURM_NTASKS_PER_NODE", self.said(TASKS_PER_NODE)),
            ("SLURM_GPUS_ON_NODE", self.gpus_per_node()),
        ];
        let numbers = numbers.into_iter().filter_map(|(name, said)| match said {
            Said::Number(number) => Some((name, number.to_string())),
            Said::Unread => Some((name, unknown())),
            Said::Not => None,
        });
        // As it is written there, with the kind of GPU.
        let gpus = self.text(&GPUS_PER_NODE[..1]);
        let gpus = gpus.map(|text| if is_unknown(&text) || text.contains('$') { unknown() } else { text });
        let hosts = ["SLURM_JOB_NODELIST", "SLURM_NODELIST"].map(|name| (name, host_list()));
        numbers.chain(gpus.map(|text| ("SLURM_GPUS_PER_NODE", text))).chain(hosts).collect()
    }
}

/// The words that a launcher hands to `qsub`, behind those of the `#PBS` lines of the script that it is given.
pub(super) fn of_pbs(launcher: &[Word], text: &str) -> Vec<Word> {
    let mut words = header(text, "#PBS");
    if let Some(at) = program_at(launcher, |name| name == "qsub") {
        words.extend(launcher[at + 1..].iter().cloned());
    }
    words
}

/// How many nodes a script asks LSF or PBS for, by its header and by the options of `bsub` or `qsub` before it.
pub(super) fn nodes_of_queue(launcher: &[Word], text: &str) -> Option<u32> {
    nodes_of_lsf(launcher, text).or_else(|| nodes_of_pbs(&of_pbs(launcher, text)))
}

/// What the names of the variables begin with that LSF or PBS sets for a script, by its header or what submits it.
pub(super) fn variables_of_queue(launcher: &[Word], text: &str) -> Option<&'static str> {
    let queues = [("#BSUB", "bsub", "LSB_"), ("#PBS", "qsub", "PBS_")];
    let mut own = queues.iter().filter(|(mark, program, _)| {
        !header(text, mark).is_empty() || program_at(launcher, |name| name == *program).is_some()
    });
    own.next().map(|(_, _, start)| *start)
}

/// `-nnodes 4`; `-n 32` tasks, as many on every node as `-R "span[ptile=8]"` says.
fn nodes_of_lsf(launcher: &[Word], text: &str) -> Option<u32> {
    let mut words = header(text, "#BSUB");
    if let Some(at) = program_at(launcher, |name| name == "bsub") {
        words.extend(launcher[at + 1..].iter().cloned());
    }
    let number = |name: &str| values_among(&words, &[name]).pop()?.2.text.parse::<u32>().ok();
    number("-nnodes").or_else(|| {
        let spans = values_among(&words, &["-R"]).into_iter().map(|(_, _, value)| value.text);
        let spans: Vec<String> = spans.collect();
        if spans.iter().any(|span| span.contains("span[hosts=1]")) {
            return Some(1);
        }
        let each = spans.iter().rev().find_map(|span| {
            let digits = span.split_once("span[ptile=")?.1.split(']').next()?;
            digits.parse::<u32>().ok().filter(|each| *each > 0)
        })?;
        number("-n").map(|tasks| tasks.div_ceil(each))
    })
}

/// `-l select=4:ngpus=8`, `-l nodes=4:ppn=8`: chunks that are nodes, so none of a single GPU or core.
fn nodes_of_pbs(words: &[Word]) -> Option<u32> {
    let asked = values_among(words, &["-l"]).into_iter().rev();
    let mut lists = asked.flat_map(|(_, _, value)| {
        let lists = value
            .text
            .split(',')
            .filter_map(|one| one.strip_prefix("select=").or(one.strip_prefix("nodes=")).map(str::to_owned));
        lists.collect::<Vec<_>>()
    });
    let chunk = |text: &str| {
        let mut parts = text.split(':');
        let count = parts.next()?;
        let single = parts.any(|part| matches!(part, "ngpus=1" | "ncpus=1" | "gpus=1" | "ppn=1"));
        let count = if count.contains('=') { Some(1) } else { count.parse::<u32>().ok() };
        count.filter(|_| !single)
    };
    lists.next()?.split('+').map(chunk).sum()
}

/// The words of a script's `#SBATCH` lines. They begin their line, end with a comment and stand before the first command
/// (Slurm's `sbatch/opt.c`).
fn header(text: &str, mark: &str) -> Vec<Word> {
    let lines = text.lines().enumerate().take_while(|(_, line)| {
        let text = line.trim_start();
        text.is_empty() || text.starts_with('#')
    });
    let lines = lines.filter_map(|(at, line)| Some((at + 1, line.strip_prefix(mark)?)));
    let words = lines.flat_map(|(line, options)| {
        let words =
            shlex::split(options).unwrap_or_else(|| options.split_whitespace().map(str::to_owned).collect());
        words.into_iter().map(move |text| Word { text, line })
    });
    words.collect()
}
