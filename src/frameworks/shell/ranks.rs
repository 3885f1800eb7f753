//! How many ranks a launcher starts: its own options, Slurm's header, a file of hosts, `WORLD_SIZE`.

use super::launches::program;
use super::{HANDED, ImportError, Launch, Origin, Word, is_unknown, shown};

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
    /// `WORLD_SIZE`. `text` is the script's.
    ///
    /// # Errors
    /// A number of nodes or processes that is none.
    pub fn ranks(&self, text: &str) -> Result<Option<u32>, ImportError> {
        if let Some(told) = &self.accelerate {
            // Where its file is not read, the number may be given otherwise.
            let processes = told.get("num_processes").unwrap_or_default();
            return processes.map_or(Ok(None), |word| Ok(read("--num_processes", word)?.number()));
        }
        let torch = self.names_torch() || self.names_deepspeed();
        if torch { self.ranks_of_torch(text) } else { self.ranks_of_tasks(text) }
    }

    fn ranks_of_torch(&self, text: &str) -> Result<Option<u32>, ImportError> {
        let per_node = self.torch_per_node(text)?;
        if self.names(&["--include", "--exclude", "-i", "-e"]) && self.names_deepspeed() {
            return Ok(self.included());
        }
        let nodes = self.option(&NODES)?.or(self.variable("PET_NNODES")?);
        if nodes == Said::Not && self.names(&["--hostfile", "-H"]) {
            let Some(slots) = self.hosts.as_deref().and_then(slots) else { return Ok(None) };
            return Ok(match (per_node, u32::try_from(slots.len())) {
                (Said::Number(n), Ok(hosts)) => hosts.checked_mul(n),
                (Said::Not, _) => slots.into_iter().try_fold(0, u32::checked_add),
                _ => None,
            });
        }
        let of_slurm = self.option(&["-N", "--nodes"])?.or_read(header(text, &["--nodes", "-N"]));
        Ok(nodes.or_read(of_slurm).times(per_node))
    }

    fn torch_per_node(&self, text: &str) -> Result<Said, ImportError> {
        let gpus = self.option(&["--gpus-per-node"])?.or(gpus_of_header(text));
        Ok(self.option(&PER_NODE)?.or(self.variable("PET_NPROC_PER_NODE")?).or_read(gpus))
    }

    /// How many ranks the launcher starts on every node, where it says so. `text` is the script's.
    ///
    /// # Errors
    /// A number that is none.
    pub fn ranks_per_node(&self, text: &str) -> Result<Option<u32>, ImportError> {
        if self.accelerate.is_some() || self.is_mpi() {
            return Ok(None);
        }
        let said = if self.names_torch() || self.names_deepspeed() {
            self.torch_per_node(text)?
        } else {
            self.option(&["--ntasks-per-node"])?.or_read(header(text, &["--ntasks-per-node"]))
        };
        Ok(said.number())
    }

    fn ranks_of_tasks(&self, text: &str) -> Result<Option<u32>, ImportError> {
        let mpi = self.is_mpi();
        let tasks = self.option(&["--ntasks", "-n", "-np", "--np"])?;
        let per_node: &[&str] = if mpi { &["-N", "--npernode", "-ppn"] } else { &["--ntasks-per-node"] };
        let per_node = self.option(per_node)?;
        let all =
            if per_node == Said::Not { tasks.or_read(header(text, &["--ntasks", "-n"])) } else { tasks };
        if all != Said::Not {
            return Ok(all.number());
        }
        if let Some(size) = self.environment.get("WORLD_SIZE").and_then(|s| s.parse().ok()) {
            return Ok(Some(size));
        }
        let nodes = if mpi { Said::Not } else { self.option(&["-N", "--nodes"])? };
        let nodes = nodes.or_read(header(text, &["--nodes", "-N"]));
        let gpus = self.option(&["--gpus-per-node"])?.or(gpus_of_header(text));
        let per_node = per_node.or_read(header(text, &["--ntasks-per-node"])).or(gpus);
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

    fn names_deepspeed(&self) -> bool {
        self.launcher.iter().any(|w| program(&w.text) == "deepspeed")
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
    /// Numbers that the launcher, Slurm's header and the file of hosts say differently, for people. `text` is the
    /// script's.
    #[must_use]
    pub fn disagreements(&self, text: &str) -> Vec<String> {
        if self.accelerate.is_some() {
            return Vec::new();
        }
        let torch = self.names_torch() || self.names_deepspeed();
        // An option that lists hosts or GPUs says the rest as well.
        if self.names_deepspeed() && self.names(&["--include", "--exclude", "-i", "-e"]) {
            return Vec::new();
        }
        let mut notes = Vec::new();
        for names in [&NODES[..], &PER_NODE].into_iter().filter(|_| torch).chain(OF_SLURM.map(|(_, n)| n)) {
            notes.extend(self.said_twice(names));
        }
        let slurm = |what: &str| self.of_slurm(what, text);
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
    fn of_slurm(&self, what: &str, text: &str) -> Vec<Source> {
        let names = OF_SLURM.iter().find(|(known, _)| *known == what).map_or(&[][..], |(_, names)| names);
        // mpirun's `-N` counts processes.
        let mut all = if self.is_mpi() { Vec::new() } else { self.sources(names) };
        let of_header = header(text, names).number();
        all.extend(of_header.map(|number| (format!("{} of #SBATCH", names.join(" or ")), number)));
        all
    }

    /// DeepSpeed takes the first of the hosts in its file: fewer than there are may be meant.
    fn more_nodes_than_hosts(&self) -> Vec<Source> {
        let hosts = self.hosts.as_deref().and_then(slots).and_then(|slots| u32::try_from(slots.len()).ok());
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

/// Slots of the hosts in a file of `NAME slots=N`.
fn slots(text: &str) -> Option<Vec<u32>> {
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
    let hosts = lines.filter(|line| !line.is_empty());
    let slots: Option<Vec<u32>> = hosts
        .map(|line| line.split_whitespace().find_map(|w| w.strip_prefix("slots="))?.parse().ok())
        .collect();
    slots.filter(|slots| !slots.is_empty())
}

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

/// GPUs of a node by a script's `#SBATCH` lines.
pub(super) fn gpus_of_header(text: &str) -> Said {
    header(text, &["--gpus-per-node", "--gres"])
}

/// A number that a script's `#SBATCH` lines say, the last one that does. They begin their line, end with a comment and
/// stand before the first command (Slurm's `sbatch/opt.c`), of the script or of one that it hands to `sbatch`.
pub(super) fn header(text: &str, names: &[&str]) -> Said {
    let lines = text.lines().scan(true, |open, line| {
        let text = line.trim_start();
        let comment = text.is_empty() || text.starts_with('#');
        if !comment {
            *open = line.contains("sbatch") && line.contains("<<");
        }
        Some((comment && *open).then_some(line))
    });
    let lines = lines.flatten().filter_map(|line| line.strip_prefix("#SBATCH"));
    let lines = lines.map(|options| options.split_once('#').map_or(options, |(options, _)| options));
    let said = lines.flat_map(|options| names.iter().filter_map(move |name| header_option(options, name)));
    said.last().map_or(Said::Not, |value| match amount(value) {
        Some(n) => Said::Number(n),
        None if value.starts_with(|c: char| c.is_ascii_digit() || c == '$') => Said::Unread,
        None => Said::Not,
    })
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
