//! How many ranks a launcher starts: its own options, those of its Slurm job, a file of hosts, `WORLD_SIZE`.

use std::collections::BTreeSet;

use super::hosts::{Hosts, slots_listed};
use super::jobs::{GPUS_PER_NODE, Job, NODES as OF_JOB_NODES, TASKS, TASKS_PER_GPU, TASKS_PER_NODE};
use super::launches::program;
use super::state::{known, loose};
use super::wrappers::{program_at, starter_at, torch_at};
use super::{HANDED, ImportError, Launch, Origin, UNTOLD, Word, is_unknown, shown};
use crate::spec::shipped::nearest;

/// A number that a launch may say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Said {
    Not,
    /// It is named, and only a running shell knows it.
    Unread,
    Number(u32),
}

impl Said {
    pub(super) fn number(self) -> Option<u32> {
        if let Self::Number(n) = self { Some(n) } else { None }
    }
    pub(super) fn or(self, other: Self) -> Self {
        if self == Self::Not { other } else { self }
    }
    /// What only a running shell knows may be said elsewhere as well.
    fn or_read(self, other: Self) -> Self {
        if matches!(self, Self::Number(_)) || other == Self::Not { self } else { other }
    }
    pub(super) fn times(self, other: Self) -> Option<u32> {
        match (self, other) {
            (Self::Not, Self::Number(n)) => Some(n),
            (Self::Number(n), Self::Number(m)) => n.checked_mul(m),
            _ => None,
        }
    }
}

impl Launch {
    /// Ranks that the launcher starts: Accelerate's processes, torchrun's nodes times processes, Slurm's tasks, or
    /// `WORLD_SIZE`.
    ///
    /// # Errors
    /// A number of nodes or processes that is none; more processes on a node than GPUs that they see.
    pub fn ranks(&self) -> Result<Option<u32>, ImportError> {
        if let Some(told) = &self.accelerate {
            self.see_enough()?;
            // Where its file is not read, the number may be given otherwise.
            let processes = told.get("num_processes").unwrap_or_default();
            return processes.map_or(Ok(None), |word| Ok(read("--num_processes", word)?.number()));
        }
        if self.deepspeed().is_some() {
            return self.ranks_of_deepspeed();
        }
        if self.torch().is_some() { self.ranks_of_torch() } else { self.ranks_of_tasks() }
    }

    /// Refuses more processes on a node than GPUs that they see.
    fn see_enough(&self) -> Result<(), ImportError> {
        match (self.ranks_per_node()?, self.visible()) {
            (Some(per_node), Some((who, seen))) if per_node > seen => Err(ImportError::new(
                self.line(),
                format!(
                    "the launcher starts {per_node} processes on every node, and {who} shows them {seen} GPUs"
                ),
            )),
            _ => Ok(()),
        }
    }

    fn ranks_of_torch(&self) -> Result<Option<u32>, ImportError> {
        self.see_enough()?;
        let nodes = self.option(&NODES)?.or(self.variable("PET_NNODES")?);
        let of_job = if self.is_told_no_nodes() { Said::Not } else { self.nodes_of_job()? };
        Ok(nodes.or_read(of_job).times(self.per_node()?))
    }

    fn nodes_of_job(&self) -> Result<Said, ImportError> {
        Ok(self.option(OF_JOB_NODES)?.or_read(self.of_job(OF_JOB_NODES)).or_read(self.of_queue()))
    }

    /// Nodes of the job that LSF or PBS is asked for.
    fn of_queue(&self) -> Said {
        self.queue_nodes.map_or(Said::Not, Said::Number)
    }

    /// Whether torchrun takes its node for the only one (`torch/distributed/run.py`: the default of --nnodes).
    fn is_told_no_nodes(&self) -> bool {
        self.is_told_nothing_of(&NODES, "PET_NNODES")
    }

    /// Whether torchrun starts one process on every node (`torch/distributed/run.py`: the default of --nproc-per-node).
    fn is_told_no_processes(&self) -> bool {
        self.is_told_nothing_of(&PER_NODE, "PET_NPROC_PER_NODE")
    }

    /// Whether neither an option of torchrun's nor the variable says a number, nor what is not known here could.
    fn is_told_nothing_of(&self, names: &[&str], variable: &str) -> bool {
        let said = !self.values_of(names).is_empty() || self.environment.contains_key(variable);
        let open = self.unread || self.launcher.iter().any(|word| loose(&word.text));
        self.torch().is_some() && !said && !open
    }

    /// DeepSpeed takes the hosts of its file, or this one, less those that it is told to leave (`main`).
    fn ranks_of_deepspeed(&self) -> Result<Option<u32>, ImportError> {
        let refuse = |why: String| ImportError::new(self.line(), why);
        // 0 is none.
        let number = |names: &[&str]| {
            let said = self.option(names)?;
            Ok(if said == Said::Number(0) { Said::Not } else { said })
        };
        let (nodes, each) = (number(&NODES)?, number(&PER_NODE)?);
        let filter = |names: &[&str]| {
            let last = values_among(self.own_words(), names).pop();
            last.map(|(_, _, word)| word.text).filter(|list| !list.is_empty())
        };
        let (included, excluded) = (filter(&["--include", "-i"]), filter(&["--exclude", "-e"]));
        let beside = match (&included, &excluded) {
            (Some(_), Some(_)) => Some("--include beside --exclude"),
            (None, None) => None,
            _ if (nodes, each) != (Said::Not, Said::Not) => {
                Some("numbers of nodes or GPUs beside --include or --exclude")
            }
            _ => None,
        };
        if let Some(what) = beside {
            return Err(refuse(format!("DeepSpeed refuses {what}")));
        }
        let filter = included.as_ref().or(excluded.as_ref());
        if filter.is_some_and(|list| !known(list)) {
            return Ok(None);
        }
        if let Some(text) = &self.hosts {
            let Some(hosts) = Hosts::read(text).map_err(refuse)? else { return Ok(None) };
            if let Some(list) = filter {
                return hosts.filtered(list, excluded.is_some()).map(Some).map_err(refuse);
            }
            let unread = nodes == Said::Unread || each == Said::Unread;
            return Ok(hosts.first(nodes.number(), each.number()).filter(|_| !unread));
        }
        if let Some(list) = filter {
            return if excluded.is_some() { Ok(None) } else { slots_listed(list).map_err(refuse) };
        }
        if nodes == Said::Not && host_file(self.own_words()).is_some() {
            return Ok(None);
        }
        Ok(nodes.or_read(self.nodes_of_job()?).times(self.per_node()?))
    }

    /// Processes that torchrun or DeepSpeed starts on a node.
    fn per_node(&self) -> Result<Said, ImportError> {
        let said = self.option(&PER_NODE)?.or(self.variable("PET_NPROC_PER_NODE")?);
        if self.is_told_no_processes() {
            return Ok(Said::Number(1));
        }
        let visible = self.visible().map_or(Said::Not, |(_, seen)| Said::Number(seen));
        let text = self.values_of(&PER_NODE).pop().map(|(_, word)| word.text);
        let all = text.is_none_or(|text| matches!(text.as_str(), "gpu" | "auto"));
        Ok(said.or_read(if all { visible } else { Said::Not }).or_read(self.gpus_of_slurm()))
    }

    /// GPUs of a node by the options of Slurm's launcher or of its job.
    fn gpus_of_slurm(&self) -> Said {
        let said = self
            .values_of(GPUS_PER_NODE)
            .into_iter()
            .rev()
            .find_map(|(name, value)| gpus(&name, &value.text));
        said.unwrap_or_else(|| self.job.as_deref().map_or(Said::Not, Job::gpus_per_node))
    }

    /// GPUs of a node that processes see, and what says so.
    fn visible(&self) -> Option<(&'static str, u32)> {
        const OF_CUDA: &str = "CUDA_VISIBLE_DEVICES";
        if let Some(list) = self.environment.get(OF_CUDA).filter(|list| known(list)) {
            let devices = list.split(',').map(str::trim);
            let devices: Vec<_> = devices.take_while(|d| !d.is_empty() && *d != "-1").collect();
            // One that stands twice hides them all.
            let distinct = devices.iter().collect::<BTreeSet<_>>().len() == devices.len();
            return u32::try_from(devices.len()).ok().filter(|_| distinct).map(|n| (OF_CUDA, n));
        }
        let runtime = program_at(&self.launcher, |name| RUNTIMES.contains(&name))?;
        let (_, _, value) = values_among(&self.launcher[runtime..], &["--gpus"]).pop()?;
        // `"device=0,1",capabilities=utility`
        let quoted = value.text.strip_prefix('"').and_then(|rest| rest.split('"').next());
        let value = quoted.unwrap_or(&value.text);
        let devices = match value.strip_prefix("device=") {
            Some(list) => u32::try_from(list.split(',').count()).ok(),
            None => value.parse().ok(),
        };
        devices.filter(|_| known(value)).map(|n| ("--gpus of the container", n))
    }

    /// Options that torchrun or DeepSpeed does not know, for people.
    fn strange_options(&self) -> impl Iterator<Item = String> {
        let (launcher, options) = self.options_known();
        self.own_words().iter().filter(|word| !is_unknown(&word.text)).filter_map(move |word| {
            let Some(name) = word.text.strip_prefix("--") else {
                // Short ones stand for none of the rest but by their letters.
                let letter = word.text.strip_prefix('-')?.chars().next()?;
                let strange = letter.is_ascii_alphabetic() && !SHORT.contains(letter);
                return strange
                    .then(|| format!("line {}: {launcher} has no option {}", word.line, shown(&word.text)));
            };
            let name = name.split('=').next().filter(|name| !name.is_empty())?;
            if completed(name, options).is_some() {
                return None;
            }
            let near = nearest(name, options.iter().copied());
            let near = near.first().map_or(String::new(), |near| format!(": did you mean --{near}?"));
            Some(format!("line {}: {launcher} has no option --{}{near}", word.line, shown(name)))
        })
    }

    /// How many ranks the launcher starts on every node, where it says so.
    ///
    /// # Errors
    /// A number that is none.
    pub fn ranks_per_node(&self) -> Result<Option<u32>, ImportError> {
        if let Some(told) = &self.accelerate {
            let number = |name: &str| {
                let said = told.get(name).unwrap_or_default().map(|word| read(name, word)).transpose()?;
                Ok(said.and_then(Said::number))
            };
            let (processes, machines) = (number("num_processes")?, number("num_machines")?.unwrap_or(1));
            return Ok(processes.and_then(|processes| processes.checked_div(machines)));
        }
        if self.is_mpi() {
            return Ok(None);
        }
        let said = if self.deepspeed().is_some() && self.hosts.is_some() {
            self.option(&PER_NODE)?
        } else if self.torch().is_some() || self.deepspeed().is_some() {
            self.per_node()?
        } else if let Some(told) = self.per_node_of_site()? {
            told
        } else {
            self.option(TASKS_PER_NODE)?.or_read(self.of_job(TASKS_PER_NODE))
        };
        Ok(said.number())
    }

    /// What a launcher that is not known is told, with options like torchrun's.
    fn per_node_of_site(&self) -> Result<Option<Said>, ImportError> {
        let told = self.option(&PER_NODE)?;
        Ok(Some(told).filter(|told| !self.is_mpi() && *told != Said::Not))
    }

    /// Whether Slurm starts a script of a site's own fewer times on a node than there are GPUs: it may start the others.
    fn starts_fewer_than_gpus(&self) -> Result<bool, ImportError> {
        let of_site = |word: &Word| [".sh", ".py"].iter().any(|end| program(&word.text).ends_with(end));
        let tasks = self.option(TASKS_PER_NODE)?.or_read(self.of_job(TASKS_PER_NODE)).number();
        let fewer = tasks.zip(self.gpus_of_slurm().number()).is_some_and(|(tasks, gpus)| tasks < gpus);
        Ok(fewer && self.launcher.iter().any(of_site))
    }

    fn ranks_of_tasks(&self) -> Result<Option<u32>, ImportError> {
        let mpi = self.is_mpi();
        if program_at(&self.launcher, |name| name == "jsrun").is_some() {
            // Resource sets with tasks in each, or tasks alone.
            let (sets, each) = (self.option(&["-n", "--nrs"])?, self.option(&["-a", "--tasks_per_rs"])?);
            let of_host = self.option(&["-r", "--rs_per_host"])?.number();
            let of_hosts = of_host.zip(self.queue_nodes).and_then(|(one, nodes)| one.checked_mul(nodes));
            let sets = sets.or_read(of_hosts.map_or(Said::Not, Said::Number));
            return Ok(match (self.option(&["-p", "--np"])?, sets) {
                (Said::Not, Said::Not) => None,
                (Said::Not, sets) => sets.times(each.or(Said::Number(1))),
                (all, _) => all.number(),
            });
        }
        if let Some(per_node) = self.per_node_of_site()? {
            return Ok(self.option(&NODES)?.or_read(self.nodes_of_job()?).times(per_node));
        }
        if !mpi && self.starts_fewer_than_gpus()? {
            return Ok(None);
        }
        let tasks = self.option(&["--ntasks", "--tasks", "-n", "-np", "--np"])?;
        let per_node: &[&str] =
            if mpi { &["-N", "--npernode", "-npernode", "-ppn", "--ppn"] } else { TASKS_PER_NODE };
        let per_node = self.option(per_node)?;
        let all = if per_node == Said::Not { tasks.or_read(self.tasks_of_job()) } else { tasks };
        // The hosts of OpenMPI, each with its slots.
        let hosts = values_among(&self.launcher, &["-H", "--host", "-host"])
            .pop()
            .filter(|_| mpi && all == Said::Not);
        if let Some((_, _, hosts)) = hosts.filter(|(_, _, hosts)| known(&hosts.text)) {
            let slots = |host: &str| host.split_once(':').map_or(Some(1), |(_, slots)| slots.parse().ok());
            let names: BTreeSet<_> = hosts.text.split(',').map(|host| host.split(':').next()).collect();
            let hosts: Option<u32> = match per_node {
                _ if !values_among(&self.launcher, &["--map-by"]).is_empty() => None,
                Said::Not => hosts.text.split(',').map(slots).sum(),
                each => each.number().and_then(|each| each.checked_mul(u32::try_from(names.len()).ok()?)),
            };
            return Ok(hosts);
        }
        if all != Said::Not {
            let of_queue = self.of_queue().times(per_node).filter(|_| mpi && self.queue_nodes.is_some());
            return Ok(all.number().or(of_queue));
        }
        if let Some(size) = self.environment.get("WORLD_SIZE").and_then(|s| s.parse().ok()) {
            return Ok(Some(size));
        }
        let nodes = if mpi { Said::Not } else { self.option(OF_JOB_NODES)? };
        let of_queue = if mpi { self.of_queue() } else { Said::Not };
        let nodes = nodes.or_read(self.of_job(OF_JOB_NODES)).or_read(of_queue);
        let per_node = per_node.or_read(self.of_job(TASKS_PER_NODE)).or(self.gpus_of_slurm());
        Ok(nodes.times(per_node))
    }

    /// What a number of nodes or processes comes from that only a running shell knows. `text` is the script's.
    #[must_use]
    pub fn origin_of_ranks(&self, text: &str) -> Option<Origin> {
        let names = NODES.iter().chain(&PER_NODE).chain(&OF_TASKS);
        names.into_iter().find_map(|name| {
            let (written, value) =
                self.values_of(&[name]).pop().filter(|(_, value)| is_unknown(&value.text))?;
            self.origin_of(text, value.line, &written)
        })
    }

    /// Whether torchrun or DeepSpeed starts it.
    pub(super) fn is_distributed(&self) -> bool {
        self.torch().is_some() || self.deepspeed().is_some()
    }

    fn torch(&self) -> Option<usize> {
        torch_at(&self.launcher)
    }

    fn deepspeed(&self) -> Option<usize> {
        starter_at(&self.launcher, |name| name == "deepspeed")
    }

    /// The words of torchrun's or DeepSpeed's own; those before them are options of others, some of the same names.
    fn own_words(&self) -> &[Word] {
        let at = self.torch().or(self.deepspeed());
        at.map_or(&[], |at| &self.launcher[at + 1..])
    }

    /// The launcher's name, and the options that it knows.
    fn options_known(&self) -> (&'static str, &'static [&'static str]) {
        if self.torch().is_some() { ("torchrun", OF_TORCHRUN) } else { ("deepspeed", OF_DEEPSPEED) }
    }

    /// The line of the launcher.
    fn line(&self) -> usize {
        self.launcher.first().or(self.script.as_ref()).map_or(1, |word| word.line)
    }

    /// Tasks of the Slurm job, where it says a number of them or of those of a GPU.
    fn tasks_of_job(&self) -> Said {
        let by_gpu = self.job.as_deref().filter(|job| job.said(TASKS_PER_GPU) != Said::Not);
        self.of_job(TASKS).or(by_gpu.map_or(Said::Not, Job::tasks))
    }

    /// A number that the Slurm job says.
    fn of_job(&self, names: &[&str]) -> Said {
        self.job.as_deref().map_or(Said::Not, |job| job.said(names))
    }

    /// The last value of an option of the launcher.
    fn option(&self, names: &[&str]) -> Result<Said, ImportError> {
        let values = self.values_of(names);
        values.last().map_or(Ok(Said::Not), |(name, value)| read(name, value))
    }

    /// A number that torchrun takes from the environment where no option says it (`torch/distributed/argparse_util.py`).
    fn variable(&self, name: &str) -> Result<Said, ImportError> {
        let Some(value) = self.environment.get(name).filter(|_| self.torch().is_some()) else {
            return Ok(Said::Not);
        };
        read(name, &Word { text: value.clone(), line: self.line() })
    }

    /// All values of an option of the launcher, each with the name that it goes by there.
    fn values_of(&self, names: &[&str]) -> Vec<(String, Word)> {
        let own = self.launcher.len() - self.own_words().len();
        let (_, options) = self.options_known();
        let is_own = |at: usize, written: &str| {
            let full = written.strip_prefix("--").and_then(|name| completed(name, options));
            at >= own && full.is_some_and(|full| names.iter().any(|name| name[2..].replace('_', "-") == full))
        };
        // Its names and those of programs before it are told apart by where they stand.
        let of_own = names.iter().any(|name| NODES.contains(name) || PER_NODE.contains(name));
        let values = values_where(&self.launcher, names, is_own).into_iter();
        let values = values.filter(|(at, ..)| own == self.launcher.len() || of_own == (*at >= own));
        values.map(|(_, name, value)| (name, value)).collect()
    }
}

/// The name that an option's beginning stands for, as `argparse` completes it.
fn completed<'o>(name: &str, options: &'o [&'o str]) -> Option<&'o str> {
    let plain = name.replace('_', "-");
    let mut begun = options.iter().copied().filter(|option| option.starts_with(&plain));
    match (begun.clone().find(|option| *option == plain), begun.next(), begun.next()) {
        (Some(exact), ..) => Some(exact),
        (None, Some(only), None) => Some(only),
        _ => None,
    }
}

/// All values of an option among words: its place, the name that it goes by there, and the value.
pub(super) fn values_among(words: &[Word], names: &[&str]) -> Vec<(usize, String, Word)> {
    values_where(words, names, |_, _| false)
}

/// The same, also of options of which a place and a name as written say that they are meant.
fn values_where(
    words: &[Word],
    names: &[&str],
    is_meant: impl Fn(usize, &str) -> bool,
) -> Vec<(usize, String, Word)> {
    let values = words.iter().enumerate().filter_map(|(at, word)| {
        let (written, glued) = match word.text.split_once('=') {
            Some((written, value)) => (written, Some(value)),
            None => (word.text.as_str(), None),
        };
        if names.contains(&written) || is_meant(at, written) {
            let text = match glued {
                Some(value) => value,
                None => &words.get(at + 1)?.text,
            };
            return Some((at, written.to_owned(), Word { text: text.to_owned(), line: word.line }));
        }
        // `-N4`
        names.iter().filter(|name| name.len() == 2).find_map(|name| {
            let text =
                word.text.strip_prefix(name).filter(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))?;
            Some((at, (*name).to_owned(), Word { text: text.to_owned(), line: word.line }))
        })
    });
    values.collect()
}

/// Programs that start containers with `--gpus`.
const RUNTIMES: [&str; 3] = ["docker", "podman", "nvidia-docker"];

/// torchrun's options (`torch/distributed/run.py`, of all versions since 1.9; `torch/distributed/launch.py`).
const OF_TORCHRUN: &[&str] = &[
    "nnodes",
    "nproc-per-node",
    "rdzv-backend",
    "rdzv-endpoint",
    "rdzv-id",
    "rdzv-conf",
    "standalone",
    "max-restarts",
    "monitor-interval",
    "start-method",
    "event-log-handler",
    "role",
    "module",
    "no-python",
    "run-path",
    "log-dir",
    "redirects",
    "tee",
    "log-line-prefix-template",
    "local-ranks-filter",
    "duplicate-stdout-filters",
    "duplicate-stderr-filters",
    "node-rank",
    "master-addr",
    "master-port",
    "local-addr",
    "local-rank",
    "logs-specs",
    "logs-dir",
    "numa-binding",
    "signals-to-handle",
    "shutdown-timeout",
    "virtual-local-rank",
    "print-completion",
    "use-env",
    "help",
];

/// Letters of short options of both, and of Python's before them.
const SHORT: &str = "mrthHieqHuBOX";

/// DeepSpeed's (`deepspeed/launcher/runner.py` `parse_args`).
const OF_DEEPSPEED: &[&str] = &[
    "hostfile",
    "include",
    "exclude",
    "num-nodes",
    "num-gpus",
    "num-accelerators",
    "master-port",
    "master-addr",
    "node-rank",
    "launcher",
    "launcher-args",
    "module",
    "no-python",
    "no-local-rank",
    "no-ssh",
    "no-ssh-check",
    "force-multi",
    "save-pid",
    "enable-each-rank-log",
    "autotuning",
    "elastic-training",
    "min-elastic-nodes",
    "max-elastic-nodes",
    "bind-cores-to-rank",
    "bind-core-list",
    "ssh-port",
    "venv-script",
    "log-level",
    "quiet",
    "help",
];

/// Names of the options of torchrun and DeepSpeed.
const NODES: [&str; 3] = ["--nnodes", "--num_nodes", "--num-nodes"];
const PER_NODE: [&str; 5] =
    ["--nproc-per-node", "--nproc_per_node", "--num_gpus", "--num-gpus", "--num_accelerators"];
/// Names of those of Accelerate, Slurm and MPI that count processes.
const OF_TASKS: [&str; 5] = ["--num_processes", "--ntasks", "--ntasks-per-node", "-n", "-np"];

/// Who says a number, and which.
type Source = (String, u32);

impl Launch {
    /// Numbers that the launcher, Slurm's header and the file of hosts say differently, and options that the launcher does
    /// not have, for people.
    #[must_use]
    pub fn disagreements(&self) -> Vec<String> {
        if let Some(told) = &self.accelerate {
            return told.strange_options().collect();
        }
        let torch = self.torch().is_some() || self.deepspeed().is_some();
        // What lists hosts or GPUs says the rest as well.
        let filters = ["--include", "--exclude", "-i", "-e"];
        if self.deepspeed().is_some() && !values_among(self.own_words(), &filters).is_empty() {
            return Vec::new();
        }
        let mut notes = Vec::new();
        let open = self.option(&NODES) == Ok(Said::Unread) && self.nodes_of_job() == Ok(self.of_queue());
        notes.extend(self.queue_nodes.filter(|_| torch && open).map(|nodes| {
            format!("how many nodes the launcher is told {UNTOLD}: read as the {nodes} that the job asks for")
        }));
        let of_slurm = [OF_JOB_NODES, TASKS, TASKS_PER_NODE, GPUS_PER_NODE];
        for names in [&NODES[..], &PER_NODE].into_iter().filter(|_| torch).chain(of_slurm) {
            notes.extend(self.said_twice(names));
        }
        let slurm = |names: &[&str]| self.of_slurm(names);
        notes.extend(self.strange_options());
        let one =
            "torchrun is not told how many processes to start on a node (--nproc-per-node): it starts one";
        notes.extend(self.is_told_no_processes().then(|| one.to_owned()));
        let alone = slurm(OF_JOB_NODES).into_iter().find(|(_, nodes)| *nodes > 1 && self.is_told_no_nodes());
        notes.extend(alone.map(|(who, nodes)| {
            format!("{who} says {nodes} nodes, of which torchrun is not told (--nnodes): each of them trains by itself")
        }));
        if torch {
            notes.extend(self.launchers_per_node());
            let nodes =
                self.sources(&NODES).into_iter().chain(slurm(OF_JOB_NODES)).find(|(_, nodes)| *nodes > 1);
            let alone = self.deepspeed().is_some() && host_file(self.own_words()).is_none();
            notes.extend(nodes.filter(|_| alone).map(|(who, nodes)| {
                format!("{who} says {nodes} nodes, and DeepSpeed is given no file of hosts: without /job/hostfile it knows this one alone")
            }));
            let hosts = self.more_nodes_than_hosts();
            notes.extend(differing("nodes", [hosts, self.sources(&NODES), slurm(OF_JOB_NODES)].concat()));
            notes
                .extend(differing("GPUs per node", [self.sources(&PER_NODE), slurm(GPUS_PER_NODE)].concat()));
        } else if !self.is_mpi() {
            let (nodes, per_node) = (slurm(OF_JOB_NODES), slurm(TASKS_PER_NODE));
            let product = nodes
                .first()
                .zip(per_node.first())
                .and_then(|((one, n), (other, m))| Some((format!("{one} x {other}"), n.checked_mul(*m)?)));
            let world = self.environment.get("WORLD_SIZE").and_then(|size| size.parse().ok());
            let world: Option<Source> = world.map(|size| ("WORLD_SIZE".to_owned(), size));
            let tasks = slurm(TASKS).into_iter().chain(product).chain(world.clone()).collect();
            notes.extend(differing("ranks", tasks));
            let untold = slurm(TASKS).is_empty()
                && slurm(TASKS_PER_NODE).is_empty()
                && self.tasks_of_job() == Said::Not;
            let gpus = self.gpus_of_slurm().number().filter(|gpus| *gpus > 1 && untold);
            let starts = program_at(&self.launcher, |name| name == "srun").is_some();
            notes.extend(gpus.filter(|_| starts && world.is_none()).map(|gpus| {
                format!(
                    "Slurm is told of {gpus} GPUs on a node and of no tasks (--ntasks-per-node), of which it would start one: read as \
                     one for every GPU"
                )
            }));
        }
        notes
    }

    /// What is wrong where `srun` starts several launchers on a node.
    fn launchers_per_node(&self) -> Option<String> {
        let starts = program_at(&self.launcher, |name| name == "srun").is_some();
        let tasks = self.of_slurm(TASKS_PER_NODE).into_iter().next();
        tasks.filter(|(_, tasks)| starts && *tasks > 1).map(|(who, tasks)| {
            format!("{who} says {tasks} tasks on every node, and each of them starts a launcher of its own: expected one")
        })
    }

    /// Refuses numbers with which torchrun and the job around it cannot go together.
    ///
    /// # Errors
    /// The first two that contradict each other, at the line of the launcher's.
    pub fn agrees(&self) -> Result<(), ImportError> {
        let first = self.launcher.iter().find(|word| !word.text.contains('='));
        let python = first.is_some_and(|word| program(&word.text).starts_with("python"));
        if let Some((who, n)) = self.job.as_deref().and_then(Job::several)
            && python
            && self.torch().is_none()
            && !self.environment.contains_key("WORLD_SIZE")
        {
            let text = format!("{who} is {n}, and this command is started once, on the first node");
            let ways = "srun or torchrun starts it on all GPUs; --gpus says how many there are";
            return Err(ImportError::new(self.line(), format!("{text}: {ways}")));
        }
        if self.torch().is_none() {
            return Ok(());
        }
        let refuse = |names: &[&str], text: String| {
            let line = self.values_of(names).last().map_or(self.line(), |(_, value)| value.line);
            Err(ImportError::new(line, format!("{text}; --gpus says how many GPUs there are")))
        };
        let (nodes, per_node) = (self.sources(&NODES), self.sources(&PER_NODE));
        if let Some((who, n)) = nodes.iter().find(|(_, n)| *n > 1)
            && self.launcher.iter().any(|word| word.text == "--standalone")
        {
            return refuse(&NODES, format!("--standalone is one node, and {who} is {n}"));
        }
        let starts = program_at(&self.launcher, |name| name == "srun").is_some();
        if let Some(text) = self.launchers_per_node() {
            return refuse(&PER_NODE, text);
        }
        // One command may be for some of the nodes, and then says which.
        let own = [OF_JOB_NODES, TASKS].iter().any(|names| !self.sources(names).is_empty());
        let chosen = self.launcher.iter().any(|word| {
            word.text == "-w" || word.text.starts_with("--nodelist") || word.text.starts_with("--exclude")
        });
        let job = self.job.as_deref().and_then(|job| job.source(OF_JOB_NODES));
        if let (Some((who, n)), Some((other, m))) = (nodes.first(), job)
            && (*n > m || starts && *n < m && !own && !chosen)
        {
            return refuse(&NODES, format!("{who} is {n}, and {other} {m}"));
        }
        if let (Some((who, n)), Some((other, m))) = (per_node.first(), self.of_slurm(GPUS_PER_NODE).first())
            && n > m
        {
            return refuse(
                &PER_NODE,
                format!("{who} starts {n} processes on every node, of which {other} gives {m} GPUs"),
            );
        }
        Ok(())
    }

    /// An option that the launcher has twice with different values.
    fn said_twice(&self, names: &[&str]) -> Option<String> {
        let values = self.values_of(names);
        let (name, last) = values.last()?;
        let (other, first) = values.iter().find(|(_, value)| value.text != last.text)?;
        Some(format!(
            "line {}: the launcher has {other} {} and {name} {}: the last one counts",
            last.line,
            shown(&first.text),
            shown(&last.text)
        ))
    }

    /// The number that an option says.
    fn sources(&self, names: &[&str]) -> Vec<Source> {
        let last = self.values_of(names).pop();
        let said = last.and_then(|(name, value)| {
            let said =
                if names == GPUS_PER_NODE { gpus(&name, &value.text)? } else { read(&name, &value).ok()? };
            Some((name, said.number()?))
        });
        said.into_iter().collect()
    }

    /// The numbers that `srun` and the job say.
    fn of_slurm(&self, names: &[&str]) -> Vec<Source> {
        // mpirun's `-N` counts processes.
        let mut all = if self.is_mpi() { Vec::new() } else { self.sources(names) };
        all.extend(self.job.as_deref().and_then(|job| job.source(names)));
        all
    }

    /// DeepSpeed takes all hosts of its file where it is told of more.
    fn more_nodes_than_hosts(&self) -> Vec<Source> {
        let hosts = self
            .hosts
            .as_deref()
            .and_then(|text| Hosts::read(text).ok().flatten())
            .map(|hosts| hosts.number());
        let nodes = self.sources(&NODES).first().map(|(_, nodes)| *nodes);
        let fewer = hosts.filter(|hosts| nodes.is_some_and(|nodes| nodes > *hosts));
        fewer.map(|hosts| ("the file of hosts".to_owned(), hosts)).into_iter().collect()
    }

    fn is_mpi(&self) -> bool {
        program_at(&self.launcher, |name| matches!(name, "mpirun" | "mpiexec")).is_some()
    }
}

/// What of the sources says another number than the first, which counts.
fn differing(what: &str, sources: Vec<Source>) -> Option<String> {
    let ((first, number), others) = sources.split_first()?;
    let (other, differs) = others.iter().find(|(_, other)| other != number)?;
    Some(format!("{first} says {number} {what}, and {other} {differs}: read as {number}"))
}

/// The option whose file says which hosts there are.
pub(super) fn host_file(launcher: &[Word]) -> Option<&str> {
    launcher.iter().enumerate().find_map(|(at, word)| match word.text.split_once('=') {
        Some(("--hostfile", path)) => Some(path),
        _ if matches!(word.text.as_str(), "--hostfile" | "-H") => {
            launcher.get(at + 1).map(|w| w.text.as_str())
        }
        _ => None,
    })
}

/// Reads the value of an option.
fn read(name: &str, value: &Word) -> Result<Said, ImportError> {
    let text = value.text.as_str();
    if let Ok(n) = text.parse() {
        return Ok(Said::Number(n));
    }
    // torchrun counts the GPUs itself, or takes as many nodes as come.
    let range = text.split_once([':', '-']).map(|(least, most)| (least.parse::<u32>(), most.parse::<u32>()));
    match range {
        Some((Ok(least), Ok(most))) if least == most => return Ok(Said::Number(least)),
        Some((Ok(_), Ok(_))) => return Ok(Said::Unread),
        _ => {}
    }
    if is_unknown(text) || matches!(text, "gpu" | "auto" | "cpu" | "xpu") {
        return Ok(Said::Unread);
    }
    let fault = if text.is_empty() || text.starts_with('-') {
        format!("{name} has no value: what stands for it is empty. {HANDED}")
    } else {
        format!("`{text}` is no number of nodes or processes")
    };
    Err(ImportError::new(value.line, fault))
}

/// What one of Slurm's options says of GPUs: of the resources that `--gres` lists some may be GPUs.
pub(super) fn gpus(option: &str, value: &str) -> Option<Said> {
    let counts =
        option != "--gres" || value.split(',').any(|one| one.starts_with("gpu")) || is_unknown(value);
    counts.then(|| amount_of(value))
}

/// What the value of one of Slurm's options says: a number, or one of GPUs.
pub(super) fn amount_of(value: &str) -> Said {
    match amount(value) {
        Some(n) => Said::Number(n),
        None if is_unknown(value) || value.starts_with(|c: char| c.is_ascii_digit() || c == '$') => {
            Said::Unread
        }
        None => Said::Not,
    }
}

/// `8`, `h100:8`, `gpu:8,nvme:4`
fn amount(value: &str) -> Option<u32> {
    let plain = |text: &str| {
        let number = text.rsplit(':').next()?.split('(').next()?;
        number.parse().ok()
    };
    match value.split(',').find(|one| one.starts_with("gpu")) {
        Some(gpus) => plain(gpus.split('(').next()?),
        None if value.contains(',') => None,
        None if value.starts_with(|c: char| c.is_ascii_alphabetic()) && value.split(':').count() > 2 => None,
        None => plain(value),
    }
}
