//! Which command lines start training, directly or in scripts and texts that they hand on.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::accelerate;
use super::jobs::Job;
use super::parse::{Raw, parse_inside};
use super::printed::words_of_input;
use super::ranks::{host_file, values_among};
use super::run::{Run, Shell};
use super::state::{Status, unknown};
use super::wrappers::{
    Wrapped, batch_script, exported, is_closed, is_container, job_options, may_train, program_at,
    text_behind, unfollowed, without_job, without_wrappers, wrapped,
};
use super::{
    HANDED, ImportError, Launch, TELLING, Told, UNTOLD, Word, as_value, assignment, is_unknown, shown,
};

/// Most training commands that are told apart: one is expected.
const MOST_LAUNCHES: usize = 64;

impl Shell<'_> {
    /// Runs a program as far as it matters: one that prints or writes, another script, training.
    pub(super) fn program(&mut self, fields: &[Word], document: Option<usize>) -> Run<Status> {
        let mut fields = fields;
        while let Some(Wrapped::Command(at)) = wrapped(fields) {
            fields = &fields[at..];
        }
        let Some((first, arguments)) = fields.split_first() else { return Ok(Some(0)) };
        let name = program(&first.text).to_owned();
        match wrapped(fields) {
            Some(Wrapped::Text(text)) => {
                // What it reads is for the shell there.
                self.document = document;
                self.script_text(&text.text, text.line, &fields[..1], None)?;
                self.document = None;
                self.print(None);
                return Ok(None);
            }
            Some(Wrapped::Input { at, mark }) if may_train(&fields[at..]) => {
                let fields = self.with_input(&fields[at..], mark.as_deref());
                return self.nested(|shell| shell.program(&fields, document));
            }
            _ => {}
        }
        let texts: Vec<String> = arguments.iter().map(|w| w.text.clone()).collect();
        let given = self.state.input.clone().filter(|_| document.is_some());
        if let Some(done) = self.known_program(&name, &texts, first.line) {
            self.print(done.text);
            if let (Some(text), Some(line), "cat" | "tee") = (given, document, name.as_str())
                && self.documents.len() < MOST_DOCUMENTS
            {
                self.documents.push((text, line, self.state.clone()));
            }
            return Ok(done.status);
        }
        if QUIET.contains(&name.as_str()) {
            self.not_followed(fields);
            self.print(None);
            return Ok(None);
        }
        if let Some(status) = self.started_script(fields)? {
            return Ok(status);
        }
        if let Some(status) = self.read_script(fields, document)? {
            return Ok(status);
        }
        if first.text.starts_with("--") {
            // An argument list on its own, one or many lines.
            self.beside.extend(self.environment());
            self.arguments.extend(fields.iter().cloned());
            return Ok(Some(0));
        }
        let before = self.found.len() + self.perhaps.len();
        match self.training_command(fields)? {
            Some(launch) => {
                self.start(launch);
                self.print(None);
            }
            None if fields.len() == 1 && first.text.ends_with(".py") => {
                self.beside.extend(self.environment());
                self.start(Launch { script: Some(first.clone()), ..Launch::default() });
            }
            None if let (Some(text), Some(line)) = (given, document) => {
                self.document(&text, line, fields)?;
                self.unknown_program(&name, &texts, first.line);
            }
            None => {
                if self.found.len() + self.perhaps.len() == before {
                    self.not_followed(fields);
                }
                self.unknown_program(&name, &texts, first.line);
            }
        }
        Ok(None)
    }

    /// Remembers a program that may start training in a way that is not followed.
    fn not_followed(&mut self, fields: &[Word]) {
        if let Some((text, first)) = unfollowed(fields).zip(fields.first()) {
            self.unfollowed.get_or_insert_with(|| ImportError::new(first.line, text));
        }
    }

    /// A command with the lines of its input in the place of a mark, else their words behind it.
    fn with_input(&mut self, fields: &[Word], mark: Option<&str>) -> Vec<Word> {
        let input = self.state.input.take().filter(|text| text.trim().lines().count() == 1);
        let line = fields.first().map_or(1, |word| word.line);
        let Some(mark) = mark else {
            let words = input.as_deref().and_then(words_of_input).unwrap_or_else(|| vec![unknown()]);
            let behind = words.into_iter().map(|text| Word { text, line });
            return fields.iter().cloned().chain(behind).collect();
        };
        let line_of_input = input.as_deref().map_or_else(unknown, |text| text.trim().to_owned());
        let replaced = |word: &Word| Word { text: word.text.replace(mark, &line_of_input), line: word.line };
        fields.iter().map(replaced).collect()
    }

    /// Notes a training command, once.
    fn start(&mut self, launch: Launch) {
        let closed = is_closed(&launch.launcher);
        self.unread |= closed;
        let mut environment = if closed { BTreeMap::new() } else { self.environment() };
        environment.extend(launch.environment);
        environment.values_mut().for_each(|value| *value = as_value(value));
        let hosts = host_file(&launch.launcher).map(str::to_owned).and_then(|path| self.text_at(&path));
        let accelerate = accelerate::options(&launch.launcher).map(|options| {
            let text = options.get("config_file").map(|word| {
                let key = self.key_of(&word.text).ok_or_else(|| format!("its path {UNTOLD}"))?;
                self.text_of_file(&key)
            });
            Told::new(options, text)
        });
        let launch = Launch {
            environment,
            hosts,
            job: launch.job.clone().or_else(|| self.job.clone()),
            queue_nodes: self.queue_nodes,
            accelerate,
            written: self.state.written.clone(),
            folder: self.state.folder.clone(),
            ..launch
        };
        self.worked(
            launch.arguments.iter().map(|w| w.text.len()).sum::<usize>() + launch.environment.len() * 16,
        );
        let all = if self.uncertain > 0 { &mut self.perhaps } else { &mut self.found };
        if all.len() < MOST_LAUNCHES && !all.contains(&launch) {
            all.push(launch);
        }
    }

    /// `bash FILE`, `./FILE.sh`, `sbatch FILE`, also behind a launcher: followed where the file can be read.
    fn started_script(&mut self, fields: &[Word]) -> Run<Option<Status>> {
        let at = match (batch_script(fields), fields.iter().position(is_shell)) {
            (Some(script), _) => Some(script),
            (None, Some(shell)) => match operand_of_shell(&fields[shell + 1..]) {
                Operand::File(at) => Some(shell + 1 + at),
                Operand::Text | Operand::Input(_) => return Ok(None),
            },
            (None, None) => {
                let named = fields.iter().position(|w| is_script(&w.text));
                named.or_else(|| (0..fields.len()).find(|at| self.is_script_without_suffix(&fields[..=*at])))
            }
        };
        let Some(at) = at.filter(|at| !fields[*at].text.ends_with(".py")) else { return Ok(None) };
        // A launcher has options and numbers before it; anything else may only be told of the file.
        let launcher = &fields[..at];
        if !starts_shell(launcher) {
            return Ok(None);
        }
        let (found, perhaps) = (self.found.len(), self.perhaps.len());
        let (path, line) = (fields[at].text.clone(), fields[at].line);
        let Some(status) = self.script(&path, &fields[at + 1..], launcher, line)? else { return Ok(None) };
        let added = self.found.iter_mut().skip(found).chain(self.perhaps.iter_mut().skip(perhaps));
        let before = without_wrappers(&without_job(launcher)).into_iter();
        let before: Vec<Word> = before.filter(|w| !is_shell(w)).collect();
        added.for_each(|launch| drop(launch.launcher.splice(0..0, before.iter().cloned())));
        Ok(Some(status))
    }

    /// Whether the last of some words is the path of a file whose first line asks for a shell, right behind a launcher:
    /// `./job`, `srun ./job`.
    fn is_script_without_suffix(&self, words: &[Word]) -> bool {
        let Some((Word { text, .. }, before)) = words.split_last() else { return false };
        let starts = before.last().is_none_or(|word| LAUNCHERS.contains(&program(&word.text)));
        let named = text.contains('/') && !program(text).contains('.') && !is_unknown(text);
        starts && named && self.is_for_shell(text)
    }

    /// `bash`, `bash -s ARGUMENTS`, `sbatch`: what reads its script, followed where the text is known.
    fn read_script(&mut self, fields: &[Word], document: Option<usize>) -> Run<Option<Status>> {
        let batch = program_at(fields, |name| matches!(name, "sbatch" | "bsub"));
        let (at, launcher, arguments) = match (batch, fields.iter().position(is_shell)) {
            (Some(at), None)
                if job_options(fields).is_some_and(|(options, _)| options.end == fields.len()) =>
            {
                (at, fields, &[][..])
            }
            (_, Some(shell)) if starts_shell(&fields[..shell]) => {
                match operand_of_shell(&fields[shell + 1..]) {
                    Operand::Input(at) => (shell, &fields[..shell], &fields[shell + 1 + at..]),
                    Operand::Text | Operand::File(_) => return Ok(None),
                }
            }
            _ => return Ok(None),
        };
        let wraps = |word: &Word| word.text.starts_with("--wrap");
        let Some(text) = self.state.input.clone().filter(|_| !fields.iter().any(wraps)) else {
            return Ok(None);
        };
        let line = document.unwrap_or(fields[at].line);
        let text = as_value(&text);
        let list = match parse_inside(&text, self.places_of(&text, line)) {
            Ok(list) => list,
            Err(error) => {
                let name = program(&fields[at].text);
                let what = format!("what `{name}` reads is not followed: {}", error.message);
                self.unfollowed.get_or_insert(ImportError::new(error.line, what));
                return Ok(None);
            }
        };
        // Its commands read what is left.
        self.state.input = None;
        let arguments = arguments.iter().map(|word| word.text.clone()).collect();
        self.launched_by(launcher, |shell| shell.child(launcher, Some(arguments), (&list, &text))).map(Some)
    }

    /// The launch that an argument list stands for.
    pub(super) fn launch_of(mut self, words: &[Raw]) -> Launch {
        let mut rest = words;
        while let Some((word, others)) = rest.split_first()
            && let Some(text) = word.bare()
            && let Some((name, value)) = assignment(&text)
        {
            self.put(name, None, false, value.to_owned());
            rest = others;
        }
        let script = rest.first().filter(|word| word.bare().is_some_and(|text| text.ends_with(".py")));
        let arguments = if script.is_some() { &rest[1..] } else { rest };
        let script = script.and_then(|word| Some(Word { text: word.bare()?, line: word.line }));
        let arguments = self.all_fields(arguments).iter().map(clean).collect();
        let (environment, notes, unset) = (self.texts_of_variables(), self.notes, self.unset);
        Launch { script, arguments, environment, notes, unset, job: self.job, ..Launch::default() }
    }

    /// Where nothing starts training, what was printed or written may be what is to be started.
    pub(super) fn scripts_in_documents(&mut self) -> Run<()> {
        for (text, line, state) in std::mem::take(&mut self.documents) {
            self.state = state;
            self.document(&text, line, &[])?;
        }
        Ok(())
    }

    /// A here-document that holds a script of its own, for sbatch or a file.
    fn document(&mut self, text: &str, line: usize, launcher: &[Word]) -> Run<()> {
        let text = as_value(text);
        if !text.contains(".py") && !text.contains(".sh") {
            return Ok(());
        }
        // Any other text, such as a Python program, is no script.
        let Ok(list) = parse_inside(&text, self.places_of(&text, line)) else { return Ok(()) };
        self.launched_by(launcher, |shell| shell.child(launcher, None, (&list, &text)))?;
        Ok(())
    }

    /// Variables that a launcher hands on: `srun --export=ALL,NAME=value`, `mpirun -x NAME=value`, `docker run -e NAME=value`,
    /// `env NAME=value`; with no value those that are set here.
    pub(super) fn handed_on(&self, launcher: &[Word]) -> BTreeMap<String, String> {
        let own = self.environment();
        let mut all = BTreeMap::new();
        let closed = is_closed(launcher);
        if is_container(launcher) {
            let told = own.iter().filter_map(|(name, value)| {
                let name =
                    name.strip_prefix("APPTAINERENV_").or_else(|| name.strip_prefix("SINGULARITYENV_"))?;
                Some((name.to_owned(), value.clone()))
            });
            all.extend(told);
        }
        // Containers that know what is exported here take several behind commas, as Slurm does; others one.
        let several = is_container(launcher);
        let of_slurm = exported(launcher).into_iter().flat_map(|list| list.split(','));
        let of_pbs =
            program_at(launcher, |name| name == "qsub").map(|at| values_among(&launcher[at..], &["-v"]));
        let of_pbs: Vec<String> = of_pbs.into_iter().flatten().map(|(_, _, list)| list.text).collect();
        let files = self.env_files(launcher).unwrap_or_default();
        let mut pairs: Vec<&str> = of_slurm.collect();
        pairs.extend(of_pbs.iter().flat_map(|list| list.split(',')));
        pairs.extend(files.iter().map(String::as_str));
        for (at, word) in launcher.iter().enumerate() {
            let next = launcher.get(at + 1).map_or("", |next| next.text.as_str());
            let list = match word.text.split_once('=') {
                Some(("--env", list)) => list,
                _ if matches!(word.text.as_str(), "-x" | "-e" | "--env") => next,
                // `docker run -eNAME=value`.
                Some((option, _)) if closed && option.starts_with("-e") => {
                    word.text[2..].trim_start_matches('=')
                }
                _ => "",
            };
            if several && list.matches('=').count() > 1 {
                pairs.extend(list.split(','));
            } else {
                pairs.push(list);
            }
            if program(&word.text) == "env" {
                let named = launcher[at + 1..].iter().map(|w| w.text.as_str());
                pairs.extend(named.take_while(|text| text.contains('=')));
            }
        }
        for pair in pairs {
            let said = match pair.split_once('=') {
                Some(pair) => Some(pair),
                None => own.get_key_value(pair).map(|(name, value)| (name.as_str(), value.as_str())),
            };
            all.extend(said.map(|(name, value)| (name.to_owned(), as_value(value))));
        }
        all
    }

    /// The lines of the files of variables that a container is given; none where one is not known.
    pub(super) fn env_files(&self, launcher: &[Word]) -> Option<Vec<String>> {
        let files = values_among(launcher, &["--env-file"]);
        let texts: Option<Vec<String>> = files.iter().map(|(_, _, path)| self.text_at(&path.text)).collect();
        let lines = texts?.into_iter().flat_map(|text| text.lines().map(str::to_owned).collect::<Vec<_>>());
        Some(lines.filter(|line| !line.trim().is_empty() && !line.starts_with('#')).collect())
    }

    /// Splits a command at its training script, if it starts one.
    fn training_command(&mut self, fields: &[Word]) -> Run<Option<Launch>> {
        let wrapped = fields.iter().enumerate().find_map(|(at, w)| match w.text.as_str() {
            // `bash -c`, `bash -x -c`, `sh -lc`; but not `python -c`.
            text if text.starts_with('-') && !text.starts_with("--") && text.ends_with('c') => {
                let shell = fields[..at].iter().any(is_shell);
                fields.get(at + 1).filter(|_| shell).map(|inner| (at, inner.clone()))
            }
            "--wrap" => fields.get(at + 1).map(|inner| (at, inner.clone())),
            text => {
                text.strip_prefix("--wrap=").map(|inner| (at, Word { text: inner.to_owned(), line: w.line }))
            }
        });
        if let Some((at, inner)) = wrapped.or_else(|| text_behind(fields)) {
            if shown(&inner.text) == "$…" {
                let text =
                    format!("the commands that `{}` is given {UNTOLD}. {HANDED}", shown(&fields[at].text));
                self.unfollowed.get_or_insert_with(|| ImportError::new(inner.line, text));
            }
            // Behind the text stand the name that it goes by and its arguments.
            let behind = fields.get(at + 3..).filter(|_| fields[at].text.ends_with('c'));
            let behind = behind.map(|words| words.iter().map(|w| w.text.clone()).collect());
            self.script_text(&inner.text, inner.line, &fields[..at], behind)?;
            return Ok(None);
        }
        // Whatever starts it: a script with flags behind it.
        let script = fields.iter().position(|w| w.text.ends_with(".py"));
        let module = module(fields);
        let script = script.filter(|script| module.is_none_or(|module| *script < module));
        let found = script.or_else(|| unnamed_script(fields)).or(module);
        let Some(at) = found else { return Ok(None) };
        let flags = fields[at + 1..].iter().any(|w| w.text.starts_with("--") || is_unknown(&w.text));
        let launches = |w: &Word| {
            ["python", "torchrun", "deepspeed", "accelerate"].iter().any(|l| program(&w.text).starts_with(l))
        };
        if !flags && !fields[..at].iter().any(launches) {
            return Ok(None);
        }
        let launcher = &fields[..at];
        Ok(Some(Launch {
            launcher: without_wrappers(&without_job(launcher)),
            job: Job::asked_by(launcher, "").map(Arc::new),
            script: Some(clean(&fields[at])),
            arguments: fields[at + 1..].iter().map(clean).collect(),
            environment: self.handed_on(launcher),
            ..Launch::default()
        }))
    }
}

fn is_shell(word: &Word) -> bool {
    matches!(program(&word.text), "bash" | "sh" | "dash" | "ksh" | "zsh")
}

/// Whether these words start the script or the shell behind them.
fn starts_shell(launcher: &[Word]) -> bool {
    let other = launcher.iter().any(|word| matches!(word.text.as_str(), "--no-python" | "--no_python"));
    other || launcher.first().is_none_or(|word| LAUNCHERS.contains(&program(&word.text)) || is_shell(word))
}

/// Whether a word names a script of a shell's.
fn is_script(text: &str) -> bool {
    [".sh", ".bash", ".sbatch", ".slurm"].iter().any(|end| text.ends_with(end))
}

/// What a shell is to run.
enum Operand {
    /// A text behind `-c`.
    Text,
    /// The file that this word names.
    File(usize),
    /// What it reads; its arguments begin with this word.
    Input(usize),
}

/// What the words behind a shell say that it is to run.
fn operand_of_shell(words: &[Word]) -> Operand {
    let mut reads = false;
    let mut at = 0;
    while let Some(option) =
        words.get(at).map(|word| word.text.as_str()).filter(|text| text.starts_with(['-', '+']))
    {
        at += 1;
        if option == "-" || option == "--" {
            break;
        }
        let letters = if option.starts_with("--") { "" } else { &option[1..] };
        if letters.contains('c') {
            return Operand::Text;
        }
        reads |= letters.contains('s');
        // `-o pipefail`
        at += usize::from(letters.ends_with(['o', 'O']) || matches!(option, "--rcfile" | "--init-file"));
    }
    if reads || at >= words.len() { Operand::Input(at.min(words.len())) } else { Operand::File(at) }
}

/// Here-documents that are remembered.
const MOST_DOCUMENTS: usize = 16;

/// Programs that start a script which stands behind their options.
const LAUNCHERS: &[&str] = &[
    "srun",
    "sbatch",
    "salloc",
    "mpirun",
    "mpiexec",
    "numactl",
    "timeout",
    "qsub",
    "bsub",
    "setsid",
    "stdbuf",
    "singularity",
    "apptainer",
    "enroot",
    "shifter",
    "sarus",
    "ch-run",
    "docker",
    "podman",
    "kubectl",
    "env",
    "nsys",
    "ncu",
    "jsrun",
    "aprun",
    "flux",
    "uv",
    "poetry",
];

/// Programs that start no training, whatever they are told of.
const QUIET: &[&str] = &[
    "conda",
    "pip",
    "pip3",
    "git",
    "grep",
    "egrep",
    "which",
    "type",
    "kill",
    "tail",
    "head",
    "ls",
    "test",
    "find",
    "diff",
    "stat",
    "wc",
    "sort",
    "cut",
    "jq",
    "md5sum",
    "du",
    "df",
    "scancel",
    "squeue",
    "scontrol",
    "nvidia-smi",
    "dirname",
    "realpath",
    "readlink",
    "xargs",
    "apt",
    "apt-get",
    "uniq",
    "sha256sum",
    "column",
    "cmp",
    "less",
    "more",
    "file",
    "nl",
    "paste",
    "vi",
    "nano",
    "history",
];

/// Where the module stands that a launcher starts as it would a script.
fn module(fields: &[Word]) -> Option<usize> {
    let launches = |w: &Word| {
        let launchers = ["accelerate", "accelerate.commands.launch", "deepspeed", "torchrun"];
        launchers.contains(&program(&w.text))
    };
    let launcher = fields.iter().position(launches)?;
    let flag = fields.iter().skip(launcher).position(|w| matches!(w.text.as_str(), "-m" | "--module"))?;
    // It may stand right behind the flag, which is a switch, or behind other options.
    let mut at = launcher + flag + 1;
    while let Some(option) =
        fields.get(at).map(|word| word.text.as_str()).filter(|text| text.starts_with('-'))
    {
        at += if option.contains('=') || SWITCHES.contains(&option) { 1 } else { 2 };
    }
    (at < fields.len()).then_some(at)
}

/// Options without a value of torchrun, DeepSpeed and Accelerate that stand beside modules.
const SWITCHES: &[&str] = &[
    "--standalone",
    "--no-python",
    "--no_python",
    "--run-path",
    "--run_path",
    "--no_local_rank",
    "--no_ssh",
    "--force_multi",
    "--bind_cores_to_rank",
    "--no_ssh_check",
    "--save_pid",
    "--multi_gpu",
    "--dynamo_use_dynamic",
    "--use_deepspeed",
    "--use_fsdp",
];

/// Where a script stands that is told by the flags of a training command behind it: a module behind `-m`, or a word of
/// which nothing is known.
fn unnamed_script(fields: &[Word]) -> Option<usize> {
    let name = |w: &Word| w.text.split('=').next().unwrap_or_default().to_owned();
    let takes_value =
        |w: &Word| w.text.starts_with("--") && !w.text.contains('=') && w.text != "--standalone";
    let telling = fields.iter().position(|w| TELLING.contains(&name(w).as_str()));
    // Behind DeepSpeed's launcher what trains is told by its configuration, after any other flags.
    let configured = || fields.iter().position(|w| name(w) == "--deepspeed_config");
    let open = |at: usize| shown(&fields[at].text) == "$…";
    if telling.is_none()
        && let Some(end) = configured()
        && let Some(launcher) = fields[..end].iter().position(|w| program(&w.text) == "deepspeed")
    {
        return (launcher + 1..end).find(|&at| open(at) && !takes_value(&fields[at - 1]));
    }
    let telling = telling?;
    (1..telling).rev().find(|&at| {
        let before = &fields[at - 1];
        let module = before.text == "-m" && fields[at + 1].text.starts_with("--");
        module || open(at) && !takes_value(before)
    })
}

fn clean(word: &Word) -> Word {
    Word { text: as_value(&word.text), line: word.line }
}

/// The name of a program, without its folder.
pub fn program(text: &str) -> &str {
    text.rsplit('/').next().unwrap_or_default()
}
