//! Which command lines start training, directly or in scripts and texts that they hand on.

use std::collections::BTreeMap;

use super::parse::{Raw, parse_inside};
use super::ranks::host_file;
use super::run::{Run, Shell};
use super::state::Status;
use super::{Launch, TELLING, Word, as_value, assignment, is_unknown, shown};

/// Most training commands that are told apart: one is expected.
const MOST_LAUNCHES: usize = 64;

impl Shell<'_> {
    /// Runs a program as far as it matters: one that prints or writes, another script, training.
    pub(super) fn program(&mut self, fields: &[Word], document: Option<usize>) -> Run<Status> {
        let Some((first, arguments)) = fields.split_first() else { return Ok(Some(0)) };
        let name = program(&first.text).to_owned();
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
            self.print(None);
            return Ok(None);
        }
        if let Some(status) = self.started_script(fields)? {
            return Ok(status);
        }
        if first.text.starts_with("--") {
            // An argument list on its own, one or many lines.
            self.beside.extend(self.environment());
            self.arguments.extend(fields.iter().cloned());
            return Ok(Some(0));
        }
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
            None => self.unknown_program(&name, &texts, first.line),
        }
        Ok(None)
    }

    /// Notes a training command, once.
    fn start(&mut self, launch: Launch) {
        let mut environment = self.environment();
        environment.extend(launch.environment);
        let hosts = host_file(&launch.launcher).map(str::to_owned).and_then(|path| self.text_at(&path));
        let launch = Launch {
            environment,
            hosts,
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

    /// `bash FILE`, `./FILE.sh`, also behind a launcher: followed where the file can be read.
    fn started_script(&mut self, fields: &[Word]) -> Run<Option<Status>> {
        let is_shell = |w: &Word| matches!(program(&w.text), "bash" | "sh" | "zsh");
        let at = match fields.iter().position(is_shell) {
            Some(shell) => {
                let rest = &fields[shell + 1..];
                if rest.iter().take_while(|w| w.text.starts_with('-')).any(|w| w.text.ends_with('c')) {
                    return Ok(None);
                }
                rest.iter().position(|w| !w.text.starts_with('-')).map(|at| shell + 1 + at)
            }
            None => fields.iter().position(|w| w.text.ends_with(".sh")),
        };
        let Some(at) = at.filter(|at| fields[*at].text.ends_with(".sh")) else { return Ok(None) };
        // A launcher has options and numbers before it; anything else may only be told of the file.
        let launcher = &fields[..at];
        let launches = launcher.first().is_none_or(|w| LAUNCHERS.contains(&program(&w.text)) || is_shell(w));
        if !launches {
            return Ok(None);
        }
        let (found, perhaps) = (self.found.len(), self.perhaps.len());
        let (path, line) = (fields[at].text.clone(), fields[at].line);
        let Some(status) = self.script(&path, &fields[at + 1..], line)? else { return Ok(None) };
        let added = self.found.iter_mut().skip(found).chain(self.perhaps.iter_mut().skip(perhaps));
        let before: Vec<Word> = launcher.iter().filter(|w| !is_shell(w)).map(clean).collect();
        added.for_each(|launch| drop(launch.launcher.splice(0..0, before.iter().cloned())));
        Ok(Some(status))
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
        let (environment, notes) = (self.texts_of_variables(), self.notes);
        Launch { script, arguments, environment, notes, ..Launch::default() }
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
        self.launched_by(launcher, |shell| shell.child(None, &list))?;
        Ok(())
    }

    /// Splits a command at its training script, if it starts one.
    fn training_command(&mut self, fields: &[Word]) -> Run<Option<Launch>> {
        let wrapped = fields.iter().enumerate().find_map(|(at, w)| match w.text.as_str() {
            // `bash -c`, `bash -x -c`, `sh -lc`; but not `python -c`.
            text if text.starts_with('-') && !text.starts_with("--") && text.ends_with('c') => {
                let shell = fields[..at].iter().any(|w| matches!(program(&w.text), "bash" | "sh" | "zsh"));
                fields.get(at + 1).filter(|_| shell).map(|inner| (at, inner.clone()))
            }
            "--wrap" => fields.get(at + 1).map(|inner| (at, inner.clone())),
            text => {
                text.strip_prefix("--wrap=").map(|inner| (at, Word { text: inner.to_owned(), line: w.line }))
            }
        });
        if let Some((at, inner)) = wrapped {
            // Behind the text stand the name that it goes by and its arguments.
            let behind = fields.get(at + 3..).filter(|_| fields[at].text.ends_with('c'));
            let behind = behind.map(|words| words.iter().map(|w| w.text.clone()).collect());
            self.script_text(&inner.text, inner.line, &fields[..at], behind)?;
            return Ok(None);
        }
        // Whatever starts it: a script with flags behind it.
        let script = fields.iter().position(|w| w.text.ends_with(".py"));
        let Some(at) = script.or_else(|| unnamed_script(fields)) else { return Ok(None) };
        let flags = fields[at + 1..].iter().any(|w| w.text.starts_with("--") || is_unknown(&w.text));
        let launches =
            |w: &Word| ["python", "torchrun", "deepspeed"].iter().any(|l| program(&w.text).starts_with(l));
        if !flags && !fields[..at].iter().any(launches) {
            return Ok(None);
        }
        Ok(Some(Launch {
            launcher: fields[..at].iter().map(clean).collect(),
            script: Some(clean(&fields[at])),
            arguments: fields[at + 1..].iter().map(clean).collect(),
            environment: handed_on(&fields[..at]),
            ..Launch::default()
        }))
    }
}

/// Here-documents that are remembered.
const MOST_DOCUMENTS: usize = 16;

/// Programs that start a script which stands behind their options.
const LAUNCHERS: &[&str] = &[
    "srun",
    "sbatch",
    "mpirun",
    "mpiexec",
    "numactl",
    "timeout",
    "qsub",
    "setsid",
    "stdbuf",
    "singularity",
    "apptainer",
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
    "tr",
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
    "vi",
    "nano",
    "history",
];

/// Variables that a launcher hands on: `srun --export=ALL,NAME=value`, `mpirun -x NAME=value`, `docker run -e NAME=value`,
/// `env NAME=value`.
fn handed_on(launcher: &[Word]) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    for (at, word) in launcher.iter().enumerate() {
        let next = launcher.get(at + 1).map_or("", |next| next.text.as_str());
        let list = match word.text.split_once('=') {
            Some(("--export" | "--env", list)) => list,
            _ if matches!(word.text.as_str(), "-x" | "-e" | "--env" | "--export") => next,
            _ => "",
        };
        let named = launcher[at + 1..].iter().map_while(|w| w.text.split_once('='));
        let by_env = named.filter(|_| program(&word.text) == "env");
        for (name, value) in list.split(',').filter_map(|one| one.split_once('=')).chain(by_env) {
            all.insert(name.to_owned(), as_value(value));
        }
    }
    all
}

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
