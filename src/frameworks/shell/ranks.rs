//! How many ranks a launcher starts: its own options, Slurm's header, a file of hosts, `WORLD_SIZE`.

use std::collections::BTreeSet;

use super::launches::program;
use super::state::{known, loose};
use super::{HANDED, ImportError, Launch, Origin, Word, is_unknown, shown};
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
    fn number(self) -> Option<u32> {
        if let Self::Number(n) = self { Some(n) } else { None }
    }
    fn or(self, other: Self) -> Self {
        if self == Self::Not { other } else { self }
    }
    /// What only a running shell knows may be said elsewhere as well.
    fn or_read(self, other: Self) -> Self {
        if matches!(self, Self::Number(_)) || other == Self::Not { self } else { other }
    }
    fn times(self, other: Self) -> Option<u32> {
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
            // Where its file is not read, the number may be given otherwise.
            let processes = told.get("num_processes").unwrap_or_default();
            return processes.map_or(Ok(None), |word| Ok(read("--num_processes", word)?.number()));
        }
        let torch = self.names_torch() || self.names_deepspeed();
        if !torch {
            return self.ranks_of_tasks();
        }
        let ranks = if self.names_deepspeed() { self.ranks_of_deepspeed() } else { self.ranks_of_torch() }?;
        match (self.ranks_per_node()?, self.visible()) {
            (Some(per_node), Some((who, seen))) if per_node > seen => Err(ImportError::new(
                self.launcher.first().map_or(1, |word| word.line),
                format!(
                    "the launcher starts {per_node} processes on every node, and {who} shows them {seen} GPUs"
                ),
            )),
            _ => Ok(ranks),
        }
    }

    fn ranks_of_torch(&self) -> Result<Option<u32>, ImportError> {
        let nodes = self.option(&NODES)?.or(self.variable("PET_NNODES")?);
        let of_slurm = if self.is_told_no_nodes() { Said::Not } else { self.nodes_of_slurm()? };
        Ok(nodes.or_read(of_slurm).times(self.per_node()?))
    }

    fn nodes_of_slurm(&self) -> Result<Said, ImportError> {
        Ok(self.option(&["-N", "--nodes"])?.or_read(self.header(&["--nodes", "-N"])))
    }

    /// Whether torchrun takes its node for the only one (`torch/distributed/run.py`: the default of --nnodes).
    fn is_told_no_nodes(&self) -> bool {
        let said = self.names(&NODES) || self.environment.contains_key("PET_NNODES");
        self.names_torch() && !said && !self.leaves_words_open()
    }

    /// Whether torchrun starts one process on every node (`torch/distributed/run.py`: the default of --nproc-per-node).
    fn is_told_no_processes(&self) -> bool {
        let said = self.names(&PER_NODE) || self.environment.contains_key("PET_NPROC_PER_NODE");
        self.names_torch() && !said && !self.leaves_words_open()
    }

    /// DeepSpeed takes the hosts of its file, or this one, less those that it is told to leave
    /// (`deepspeed/launcher/runner.py` `parse_resource_filter` and `main`).
    fn ranks_of_deepspeed(&self) -> Result<Option<u32>, ImportError> {
        let (per_node, nodes) = (self.per_node()?, self.option(&NODES)?);
        let own = self.behind_deepspeed();
        let (names_hosts, filtered) = (own.names(&["--hostfile", "-H"]), own.filters());
        let hosts = self.hosts.as_deref().and_then(Hosts::read);
        if let Some(hosts) =
            hosts.filter(|_| names_hosts && (filtered || nodes == Said::Not || per_node == Said::Not))
        {
            let hosts = match own.values_of(&["--include", "-i"]).pop() {
                Some((_, list)) => hosts.only(&list.text),
                None => Some(hosts),
            };
            let left = own.values_of(&["--exclude", "-e"]).pop();
            let hosts = left.map_or(hosts.clone(), |(_, list)| hosts?.without(&list.text));
            return Ok(hosts.and_then(|hosts| hosts.ranks(nodes, per_node)));
        }
        if filtered {
            return Ok(own.included());
        }
        if names_hosts && nodes == Said::Not {
            return Ok(None);
        }
        Ok(nodes.or_read(self.nodes_of_slurm()?).times(per_node))
    }

    /// Processes that torchrun or DeepSpeed starts on a node.
    fn per_node(&self) -> Result<Said, ImportError> {
        let said = self.option(&PER_NODE)?.or(self.variable("PET_NPROC_PER_NODE")?);
        let visible = self.visible().map_or(Said::Not, |(_, seen)| Said::Number(seen));
        if self.is_told_no_processes() {
            return Ok(Said::Number(1));
        }
        Ok(said.or_read(visible).or_read(self.gpus_of_slurm()))
    }

    /// GPUs of a node by Slurm's options or header.
    fn gpus_of_slurm(&self) -> Said {
        let said = self.values_of(&GPUS_OF_SLURM).pop().map(|(_, value)| gpus_of(&value.text));
        said.unwrap_or_else(|| self.header(&GPUS_OF_SLURM))
    }

    /// GPUs of a node that processes see, and what says so.
    fn visible(&self) -> Option<(&'static str, u32)> {
        const OF_CUDA: &str = "CUDA_VISIBLE_DEVICES";
        if let Some(list) = self.environment.get(OF_CUDA) {
            let devices = list.split(',').map(str::trim);
            let devices = devices.take_while(|device| !device.is_empty() && *device != "-1").count();
            return u32::try_from(devices).ok().filter(|_| known(list)).map(|n| (OF_CUDA, n));
        }
        let inside = self.launcher.iter().skip_while(|word| !RUNTIMES.contains(&program(&word.text)));
        let inside = Self { launcher: inside.cloned().collect(), ..Self::default() };
        let (_, value) = inside.values_of(&["--gpus"]).pop()?;
        let value = value.text.trim_matches('"');
        let devices = match value.strip_prefix("device=") {
            Some(list) => u32::try_from(list.split(',').count()).ok(),
            None => value.parse().ok(),
        };
        devices.filter(|_| known(value)).map(|n| ("--gpus of the container", n))
    }

    /// Whether a word of the launcher may be any option.
    fn leaves_words_open(&self) -> bool {
        self.launcher.iter().any(|word| loose(&word.text))
    }

    /// Options that torchrun does not know, for people; its parser takes beginnings of names as well.
    fn strange_options(&self) -> impl Iterator<Item = String> {
        let own = self.launcher.iter().skip_while(|word| !is_torchrun(&word.text)).skip(1);
        own.filter(|word| !is_unknown(&word.text)).filter_map(|word| {
            let name = word.text.strip_prefix("--")?.split('=').next().filter(|name| !name.is_empty())?;
            let plain = name.replace('_', "-");
            if OF_TORCHRUN.iter().any(|known| known.starts_with(plain.as_str())) {
                return None;
            }
            let near = nearest(&plain, OF_TORCHRUN.iter().copied());
            let near = near.first().map_or(String::new(), |near| format!(": did you mean --{near}?"));
            Some(format!("line {}: torchrun has no option --{}{near}", word.line, shown(name)))
        })
    }

    /// How many ranks the launcher starts on every node, where it says so.
    ///
    /// # Errors
    /// A number that is none.
    pub fn ranks_per_node(&self) -> Result<Option<u32>, ImportError> {
        if self.accelerate.is_some() || self.is_mpi() {
            return Ok(None);
        }
        let said = if self.names_torch() || self.names_deepspeed() {
            self.per_node()?
        } else {
            self.option(&["--ntasks-per-node"])?.or_read(self.header(&["--ntasks-per-node"]))
        };
        Ok(said.number())
    }

    /// Variables that Slurm sets for a job by what its header and the options before its script say.
    pub(super) fn variables_of_job(&self) -> Result<Vec<(&'static str, Said)>, ImportError> {
        let said = |names: &[&str]| Ok(self.option(names)?.or(self.header(names)));
        let (nodes, per_node) = (said(&["--nodes", "-N"])?, said(&["--ntasks-per-node"])?);
        let tasks = said(&["--ntasks", "-n"])?.or(match nodes.times(per_node) {
            Some(product) if nodes != Said::Not => Said::Number(product),
            _ => Said::Not,
        });
        let gpus = self.gpus_of_slurm();
        Ok(vec![
            ("SLURM_NNODES", nodes),
            ("SLURM_JOB_NUM_NODES", nodes),
            ("SLURM_NTASKS", tasks),
            ("SLURM_NPROCS", tasks),
            ("SLURM_NTASKS_PER_NODE", per_node),
            ("SLURM_GPUS_ON_NODE", gpus),
            ("SLURM_GPUS_PER_NODE", gpus),
        ])
    }

    fn ranks_of_tasks(&self) -> Result<Option<u32>, ImportError> {
        let mpi = self.is_mpi();
        let tasks = self.option(&["--ntasks", "-n", "-np", "--np"])?;
        let per_node: &[&str] = if mpi { &["-N", "--npernode", "-ppn"] } else { &["--ntasks-per-node"] };
        let per_node = self.option(per_node)?;
        let all = if per_node == Said::Not { tasks.or_read(self.header(&["--ntasks", "-n"])) } else { tasks };
        if all != Said::Not {
            return Ok(all.number());
        }
        if let Some(size) = self.environment.get("WORLD_SIZE").and_then(|s| s.parse().ok()) {
            return Ok(Some(size));
        }
        let nodes = if mpi { Said::Not } else { self.option(&["-N", "--nodes"])? };
        let nodes = nodes.or_read(self.header(&["--nodes", "-N"]));
        let per_node = per_node.or_read(self.header(&["--ntasks-per-node"])).or(self.gpus_of_slurm());
        Ok(nodes.times(per_node))
    }

    /// What a number of nodes or processes comes from that only a running shell knows. `text` is the script's.
    #[must_use]
    pub fn origin_of_ranks(&self, text: &str) -> Option<Origin> {
        let names = NODES.iter().chain(&PER_NODE).chain(&OF_TASKS);
        names.into_iter().find_map(|name| {
            let (_, value) = self.values_of(&[name]).pop().filter(|(_, value)| is_unknown(&value.text))?;
            self.origin_of(text, value.line, name)
        })
    }

    /// A program of that name, or a module behind `-m`: an image of a container may be named after either.
    fn names_torch(&self) -> bool {
        let module = self.launcher.windows(2).any(|w| w[0].text == "-m" && w[1].text.starts_with("torch."));
        module || self.launcher.iter().any(|w| program(&w.text).starts_with("torchrun"))
    }

    /// The words of DeepSpeed's own launcher; those before it are options of others, some of the same names.
    fn behind_deepspeed(&self) -> Self {
        let own = self.launcher.iter().skip_while(|word| program(&word.text) != "deepspeed");
        Self { launcher: own.cloned().collect(), ..Self::default() }
    }

    /// Whether DeepSpeed is told which hosts or GPUs to take.
    fn filters(&self) -> bool {
        self.names(&["--include", "--exclude", "-i", "-e"])
    }

    fn names_deepspeed(&self) -> bool {
        self.launcher.iter().any(|w| program(&w.text) == "deepspeed")
    }

    /// A number that the header of the job's script says.
    fn header(&self, names: &[&str]) -> Said {
        self.header.as_deref().map_or(Said::Not, |text| header(text, names))
    }

    /// GPUs that `--include HOST:0,1@HOST:2` lists, where it lists those of every host.
    fn included(&self) -> Option<u32> {
        let (_, said) = self.values_of(&["--include", "-i"]).pop()?;
        let hosts = said.text.split('@').map(|host| {
            let (_, slots) = host.split_once(':')?;
            slots.split(',').map(|slot| slot.trim().parse::<u32>().ok().map(|_| 1)).sum::<Option<u32>>()
        });
        hosts.sum()
    }

    fn names(&self, names: &[&str]) -> bool {
        self.launcher.iter().any(|w| names.contains(&w.text.split('=').next().unwrap_or_default()))
    }

    /// The last value of an option of the launcher.
    fn option(&self, names: &[&str]) -> Result<Said, ImportError> {
        let values = self.values_of(names);
        values.last().map_or(Ok(Said::Not), |(name, value)| read(name, value))
    }

    /// A number that torchrun takes from the environment where no option says it (`torch/distributed/argparse_util.py`).
    fn variable(&self, name: &str) -> Result<Said, ImportError> {
        let Some(value) = self.environment.get(name).filter(|_| self.names_torch()) else {
            return Ok(Said::Not);
        };
        let line = self.launcher.first().map_or(1, |word| word.line);
        read(name, &Word { text: value.clone(), line })
    }

    /// All values of an option of the launcher, each with the name that it goes by there.
    fn values_of<'n>(&self, names: &[&'n str]) -> Vec<(&'n str, Word)> {
        let values = self.launcher.iter().enumerate().filter_map(|(at, word)| {
            names.iter().find_map(|name| {
                let rest = word.text.strip_prefix(name)?;
                let text = match rest.strip_prefix('=') {
                    Some(value) => value,
                    None if rest.is_empty() => &self.launcher.get(at + 1)?.text,
                    // `-N4`
                    None if name.len() == 2 && rest.starts_with(|c: char| c.is_ascii_digit()) => rest,
                    None => return None,
                };
                Some((*name, Word { text: text.to_owned(), line: word.line }))
            })
        });
        values.collect()
    }
}

/// Whether a word of a launcher starts torchrun, or its module behind `-m`.
fn is_torchrun(text: &str) -> bool {
    matches!(text, "torch.distributed.run" | "torch.distributed.launch") || program(text) == "torchrun"
}

/// Programs that start containers with `--gpus`.
const RUNTIMES: [&str; 3] = ["docker", "podman", "nvidia-docker"];

/// Slurm's options of the GPUs of a node.
const GPUS_OF_SLURM: [&str; 2] = ["--gpus-per-node", "--gres"];

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

/// Names of the options of torchrun and DeepSpeed.
const NODES: [&str; 3] = ["--nnodes", "--num_nodes", "--num-nodes"];
const PER_NODE: [&str; 4] = ["--nproc-per-node", "--nproc_per_node", "--num_gpus", "--num-gpus"];
/// Names of those of Accelerate, Slurm and MPI that count processes.
const OF_TASKS: [&str; 5] = ["--num_processes", "--ntasks", "--ntasks-per-node", "-n", "-np"];
/// Names of Slurm's.
const OF_SLURM: [(&str, &[&str]); 4] = [
    ("nodes", &["--nodes", "-N"]),
    ("tasks", &["--ntasks", "-n"]),
    ("tasks per node", &["--ntasks-per-node"]),
    ("GPUs per node", &["--gpus-per-node", "--gres"]),
];

/// Who says a number, and which.
type Source = (String, u32);

impl Launch {
    /// Numbers that the launcher, Slurm's header and the file of hosts say differently, for people.
    #[must_use]
    pub fn disagreements(&self) -> Vec<String> {
        if self.accelerate.is_some() {
            return Vec::new();
        }
        let torch = self.names_torch() || self.names_deepspeed();
        // An option that lists hosts or GPUs says the rest as well.
        if self.names_deepspeed() && self.behind_deepspeed().filters() {
            return Vec::new();
        }
        let mut notes = Vec::new();
        for names in [&NODES[..], &PER_NODE].into_iter().filter(|_| torch).chain(OF_SLURM.map(|(_, n)| n)) {
            notes.extend(self.said_twice(names));
        }
        let slurm = |what: &str| self.of_slurm(what);
        notes.extend(self.strange_options());
        let one =
            "torchrun is not told how many processes to start on a node (--nproc-per-node): it starts one";
        notes.extend(self.is_told_no_processes().then(|| one.to_owned()));
        let alone = slurm("nodes").into_iter().find(|(_, nodes)| *nodes > 1 && self.is_told_no_nodes());
        notes.extend(alone.map(|(who, nodes)| {
            format!("{who} says {nodes} nodes, of which torchrun is not told (--nnodes): each of them trains by itself")
        }));
        if torch {
            let hosts = self.more_nodes_than_hosts();
            notes.extend(differing("nodes", [self.sources(&NODES), slurm("nodes"), hosts].concat()));
            notes.extend(differing(
                "GPUs per node",
                [self.sources(&PER_NODE), slurm("GPUs per node")].concat(),
            ));
        } else if !self.is_mpi() {
            let (nodes, per_node) = (slurm("nodes"), slurm("tasks per node"));
            let product = nodes
                .first()
                .zip(per_node.first())
                .and_then(|((one, n), (other, m))| Some((format!("{one} x {other}"), n.checked_mul(*m)?)));
            let world = self.environment.get("WORLD_SIZE").and_then(|size| size.parse().ok());
            let world = world.map(|size| ("WORLD_SIZE".to_owned(), size));
            let tasks = slurm("tasks").into_iter().chain(product).chain(world).collect();
            notes.extend(differing("ranks", tasks));
        }
        notes
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
        let said = last.and_then(|(name, value)| Some((name.to_owned(), read(name, &value).ok()?.number()?)));
        said.into_iter().collect()
    }

    /// The numbers that `srun` and the header say.
    fn of_slurm(&self, what: &str) -> Vec<Source> {
        let names = OF_SLURM.iter().find(|(known, _)| *known == what).map_or(&[][..], |(_, names)| names);
        // mpirun's `-N` counts processes.
        let mut all = if self.is_mpi() { Vec::new() } else { self.sources(names) };
        let of_header = self.header(names).number();
        all.extend(of_header.map(|number| (format!("{} of #SBATCH", names.join(" or ")), number)));
        all
    }

    /// DeepSpeed takes the first of the hosts in its file: fewer than there are may be meant.
    fn more_nodes_than_hosts(&self) -> Vec<Source> {
        let hosts = self.hosts.as_deref().and_then(Hosts::read).and_then(|hosts| hosts.number());
        let nodes = self.sources(&NODES).first().map(|(_, nodes)| *nodes);
        let fewer = hosts.filter(|hosts| nodes.is_some_and(|nodes| nodes > *hosts));
        fewer.map(|hosts| ("the file of hosts".to_owned(), hosts)).into_iter().collect()
    }

    fn is_mpi(&self) -> bool {
        self.launcher.iter().any(|w| matches!(program(&w.text), "mpirun" | "mpiexec"))
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

/// Hosts with the slots of each, of a file of `NAME slots=N`.
#[derive(Debug, Clone)]
struct Hosts(Vec<(String, BTreeSet<u32>)>);

impl Hosts {
    /// None where a line says no slots.
    fn read(text: &str) -> Option<Self> {
        let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
        let hosts = lines.filter(|line| !line.is_empty()).map(|line| {
            let mut words = line.split_whitespace();
            let name = words.next()?.to_owned();
            let slots =
                words.find_map(|w| w.strip_prefix("slots="))?.parse().ok().filter(|n| *n <= MOST_SLOTS)?;
            Some((name, (0..slots).collect()))
        });
        hosts.collect::<Option<Vec<_>>>().filter(|hosts| !hosts.is_empty()).map(Self)
    }

    /// `HOST:0,1@HOST`: the hosts that a filter names, each with the slots that it lists.
    fn named(list: &str) -> Option<Vec<(&str, BTreeSet<u32>)>> {
        let hosts = list.split('@').map(|host| {
            let (name, slots) = host.trim().split_once(':').unwrap_or((host.trim(), ""));
            let slots = slots.split(',').map(str::trim).filter(|slot| !slot.is_empty());
            Some((name, slots.map(|slot| slot.parse().ok()).collect::<Option<_>>()?))
        });
        hosts.collect()
    }

    /// None where it names a host or a slot that is not there.
    fn only(self, list: &str) -> Option<Self> {
        let mut kept = Vec::new();
        for (name, slots) in Self::named(list)? {
            let (_, own) = self.0.iter().find(|(host, _)| host == name)?;
            let slots = if slots.is_empty() { own.clone() } else { slots };
            kept.push((name.to_owned(), Some(slots).filter(|slots| slots.is_subset(own))?));
        }
        Some(Self(kept))
    }

    /// None where it names a host or a slot that is not there.
    fn without(mut self, list: &str) -> Option<Self> {
        for (name, slots) in Self::named(list)? {
            let (_, own) = self.0.iter_mut().find(|(host, _)| host == name)?;
            if !slots.is_subset(own) {
                return None;
            }
            own.retain(|slot| !slots.is_empty() && !slots.contains(slot));
        }
        self.0.retain(|(_, slots)| !slots.is_empty());
        Some(self)
    }

    fn number(&self) -> Option<u32> {
        u32::try_from(self.0.len()).ok()
    }

    /// Ranks on the first hosts, as many as are asked for, and as many on each.
    fn ranks(self, nodes: Said, per_node: Said) -> Option<u32> {
        let hosts = match nodes {
            Said::Not => self.0.len(),
            Said::Number(nodes) => usize::try_from(nodes).ok()?,
            Said::Unread => return None,
        };
        let slots = self.0.iter().take(hosts).map(|(_, slots)| u32::try_from(slots.len()).ok());
        match per_node {
            Said::Unread => None,
            Said::Number(each) => u32::try_from(slots.len()).ok()?.checked_mul(each),
            Said::Not => slots.sum(),
        }
    }
}

/// Most slots of a host that are told apart.
const MOST_SLOTS: u32 = 4096;

/// Reads the value of an option.
fn read(name: &str, value: &Word) -> Result<Said, ImportError> {
    let text = value.text.as_str();
    if let Ok(n) = text.parse() {
        return Ok(Said::Number(n));
    }
    // torchrun counts the GPUs itself, or takes as many nodes as come.
    let range = text.split_once(':').map(|(least, most)| (least.parse::<u32>(), most.parse::<u32>()));
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

/// A number that a script's `#SBATCH` lines say, the last one that does. They begin their line, end with a comment and
/// stand before the first command (Slurm's `sbatch/opt.c`).
fn header(text: &str, names: &[&str]) -> Said {
    let lines = text.lines().take_while(|line| {
        let text = line.trim_start();
        text.is_empty() || text.starts_with('#')
    });
    let lines = lines.filter_map(|line| line.strip_prefix("#SBATCH"));
    let lines = lines.map(|options| options.split_once('#').map_or(options, |(options, _)| options));
    let said = lines.flat_map(|options| names.iter().filter_map(move |name| header_option(options, name)));
    said.last().map_or(Said::Not, gpus_of)
}

/// What the value of one of Slurm's options says: a number, or one of GPUs.
fn gpus_of(value: &str) -> Said {
    match amount(value) {
        Some(n) => Said::Number(n),
        None if is_unknown(value) || value.starts_with(|c: char| c.is_ascii_digit() || c == '$') => {
            Said::Unread
        }
        None => Said::Not,
    }
}

fn header_option<'t>(options: &'t str, name: &str) -> Option<&'t str> {
    let ends = |rest: &str| rest.starts_with(['=', ' ', '\t']) || (name.len() == 2 && !rest.is_empty());
    let places = options.match_indices(name).map(|(at, _)| at);
    let at = places
        .filter(|&at| options[..at].ends_with(char::is_whitespace) && ends(&options[at + name.len()..]))
        .last()?;
    options[at + name.len()..].trim_start_matches(['=', ' ', '\t']).split_whitespace().next()
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
