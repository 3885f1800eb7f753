//! Reads launch scripts as a shell would: quotes, arrays, expansions, arithmetic, `if`, `case`, loops,
//! functions, here-documents, commands in strings, other files by `source`. Nothing is executed; what only a
//! running shell knows stays unknown.

mod accelerate;
mod arithmetic;
mod builtins;
mod calls;
mod conditions;
mod expand;
mod hosts;
mod jobs;
mod kubernetes;
mod launches;
mod loops;
mod options;
mod origins;
mod parse;
mod patterns;
mod printed;
mod ranks;
mod regular;
mod run;
mod state;
mod undecided;
mod wrappers;

use super::export::quote;
pub use accelerate::{Handed, Told};
use calls::{file_key, in_folder};
pub use jobs::Job;
use jobs::{nodes_of_queue, of_pbs, variables_of_queue};
pub use kubernetes::is_manifest;
pub use launches::program;
pub use origins::Origin;
pub(super) use origins::untold_value;
pub use printed::Written;
use printed::held;
use ranks::values_among;
use state::Value;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Why a launch could not be read, with the line at which it shows (counted from 1).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {message}")]
pub struct ImportError {
    /// Line, counted from 1.
    pub line: usize,
    /// What was found and what was expected.
    pub message: String,
    /// What else is wrong that was found with it, each with its line.
    pub further: Vec<(usize, String)>,
    /// What had been decided before without knowing it, for people.
    pub notes: Vec<String>,
}

impl ImportError {
    pub(crate) fn new(line: usize, message: impl Into<String>) -> Self {
        Self { line, message: message.into(), further: Vec::new(), notes: Vec::new() }
    }

    /// All that is wrong, by line; nothing may be.
    pub(crate) fn all(mut found: Vec<(usize, String)>) -> Result<(), Self> {
        found.sort();
        let mut found = found.into_iter();
        match found.next() {
            Some((line, message)) => Err(Self { further: found.collect(), ..Self::new(line, message) }),
            None => Ok(()),
        }
    }
}

/// A word after expansion, with the line it stands on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Word {
    /// The text.
    pub text: String,
    /// Line, counted from 1.
    pub line: usize,
}

/// The training command of a launch.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Launch {
    /// Words before the training script: launcher and its options.
    pub launcher: Vec<Word>,
    /// The training script.
    pub script: Option<Word>,
    /// Its arguments.
    pub arguments: Vec<Word>,
    /// Variables that were exported or stand before the command.
    pub environment: BTreeMap<String, String>,
    /// Files that the script has written, by their path from its folder.
    pub written: BTreeMap<String, Arc<Written>>,
    /// The folder in which it is started, from the script's; empty: that one.
    pub folder: String,
    /// What `accelerate launch` is told, where that is the launcher.
    pub accelerate: Option<Told>,
    /// What the launcher's file of hosts holds.
    pub hosts: Option<String>,
    /// The Slurm job in which it starts, where one is asked for.
    pub job: Option<Arc<Job>>,
    /// A file that could have set any variable was not read.
    pub unread: bool,
    /// The line that ends the script with an error, as it is written and started; it is read as if it went on.
    pub gives_up: Option<usize>,
    /// Lines of flags that may or may not be set, none of which says degrees, shapes or batches.
    pub perhaps_set: Vec<usize>,
    /// Variables and arguments that are used and that nothing sets.
    pub unset: BTreeSet<String>,
    /// Flags that say degrees, shapes or batches, in branches that may or may not be taken, with their lines.
    pub undecided: BTreeSet<(usize, String)>,
    /// Nodes of the job that LSF or PBS is asked for.
    pub queue_nodes: Option<u32>,
    /// What was decided without knowing it, for people.
    pub notes: Vec<String>,
}

impl Launch {
    /// The DeepSpeed configuration that a script or its launcher hands on, where the model is not told by flags.
    ///
    /// # Errors
    /// What the launcher is told cannot be read.
    pub fn deepspeed_config(&self) -> Result<Option<Handed>, ImportError> {
        let words = &self.arguments;
        let name = |word: &Word| word.text.split('=').next().unwrap_or_default().to_owned();
        if words.iter().any(|w| TELLING.contains(&name(w).as_str())) {
            return Ok(None);
        }
        // Before the second, which is a switch beside the first.
        let value = ["--deepspeed_config", "--deepspeed"].into_iter().find_map(|flag| {
            let at = words.iter().position(|w| name(w) == flag)?;
            let value = words[at].text.split_once('=').map(|(_, value)| value);
            value.or_else(|| words.get(at + 1).map(|w| w.text.as_str())).filter(|v| !v.starts_with('-'))
        });
        match value.filter(|path| path.ends_with(".json") && file_key(path, None).is_some()) {
            Some(path) => {
                // Its trainer makes the same plugin of it.
                self.accelerate.as_ref().map_or(Ok(()), Told::leaves_configured)?;
                Ok(Some(Handed::File(path.to_owned())))
            }
            None => self.accelerate.as_ref().map_or(Ok(None), Told::deepspeed),
        }
    }

    /// Takes out the words for flags that may or may not be set and change neither degrees nor the model, and says so.
    fn leave_out_harmless(&mut self) {
        let harmless = self.arguments.iter().filter(|word| is_harmless(&word.text));
        self.perhaps_set = harmless.map(|word| word.line).collect();
        self.arguments.retain(|word| !is_harmless(&word.text));
        for word in &mut self.arguments {
            word.text = word.text.replace(HARMLESS, "");
        }
        if let Some(line) = self.perhaps_set.first() {
            self.notes.push(format!(
                "line {line}: flags that may or may not be set are left out: none of them says degrees of parallelism, sizes of \
                 the model or the batch"
            ));
        }
    }

    /// What a file holds that the script names, the line on which the script writes it if it does, and its path from
    /// the script's folder.
    ///
    /// # Errors
    /// Why it cannot be read.
    pub fn text_of(&self, path: &str, files: &Files) -> Result<(String, Option<usize>, String), String> {
        let key =
            file_key(&in_folder(&self.folder, path), None).ok_or_else(|| format!("its path {UNTOLD}"))?;
        held(&self.written, &key, files).map(|(text, line)| (text, line, key))
    }
}

/// Reads a file that a script asks for with `source`, by its path from the script's folder; else says why not.
pub type Files<'a> = dyn Fn(&str) -> Result<String, String> + 'a;

/// For scripts that come without a folder: no file is read.
///
/// # Errors
/// Always.
pub fn no_files(_: &str) -> Result<String, String> {
    Err("files are not read here".to_owned())
}

/// How the words of a script reach it.
pub(super) const HANDED: &str = "Variables and arguments of the script can be given behind `--`";
/// Of a text that the script does not hold.
pub(super) const UNTOLD: &str = "is known only when the script runs";

/// Stands for text that only a running shell knows.
const UNKNOWN: char = '\u{fffc}';

/// Behind [`UNKNOWN`]: it stands for flags that may or may not be set, none of which says degrees, shapes or batches.
const HARMLESS: char = '\u{fff9}';

/// Stands for a variable that the script does not set: unknown as a value, empty in a test.
const UNSET: char = '\u{fffb}';

/// A text as a value: what is not set is unknown.
fn as_value(text: &str) -> String {
    once(&text.replace(UNSET, &UNKNOWN.to_string()))
}

/// A text in which what is not known stands once where it stands several times in a row.
fn once(text: &str) -> String {
    let mut last = None;
    text.chars().filter(|&c| last.replace(c) != Some(c) || (c != UNKNOWN && c != UNSET)).collect()
}

/// Flags of which a training command of these frameworks has at least one.
const TELLING: &[&str] =
    &["--num-layers", "--hidden-size", "--micro-batch-size", "--hybrid-layer-pattern", "--seq-length"];

/// Finds the training command of a launch script or an argument list (lines of flags, or a JSON list of
/// strings). Files that it sources are followed; what they hold stands on the line that asks for them.
///
/// # Errors
/// Quotes, arrays or blocks that never end; no training command, or several.
pub fn read_launch(text: &str, files: &Files) -> Result<Launch, ImportError> {
    read_launch_with(text, &[], files)
}

/// A variable that is set to flags, or to a list, and that nothing names again.
fn unused_flags(text: &str) -> Option<&str> {
    let set = text.lines().filter_map(|line| {
        let (name, value) = assignment(line.trim_start())?;
        let value = value.trim_start_matches(['"', '\'', ' ']);
        (value.starts_with('(') || value.starts_with("--")).then_some(name)
    });
    let part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    // Named only where it is set.
    let unused = |name: &&str| {
        let mut named = text
            .match_indices(*name)
            .map(|(at, _)| (&text[..at], &text[at + name.len()..]))
            .filter(|(before, after)| !before.ends_with(part) && !after.starts_with(part));
        named.all(|(_, after)| after.trim_start_matches('+').starts_with('='))
    };
    set.into_iter().find(unused)
}

/// The variable and the value of `NAME=value`.
fn assignment(word: &str) -> Option<(&str, &str)> {
    let (name, value) = word.split_once('=')?;
    let starts = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    (starts && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')).then_some((name, value))
}

/// As [`read_launch`], of a script that is started with words: variables (`NAME=value`), then arguments of its own.
///
/// # Errors
/// As [`read_launch`].
pub fn read_launch_with(text: &str, started_with: &[String], files: &Files) -> Result<Launch, ImportError> {
    let mut launch = launch_of(text, started_with, files)?;
    launch.leave_out_harmless();
    Ok(launch)
}

/// As [`read_launch_with`], with words for what may or may not be set.
fn launch_of(text: &str, started_with: &[String], files: &Files) -> Result<Launch, ImportError> {
    if text.trim_start().starts_with('[')
        && let Ok(words) = serde_json::from_str::<Vec<serde_json::Value>>(text)
    {
        let word = |value: &serde_json::Value| match value {
            serde_json::Value::String(text) => Some(text.clone()),
            serde_json::Value::Number(number) => Some(number.to_string()),
            _ => None,
        };
        let Some(words) = words.iter().map(word).collect::<Option<Vec<String>>>() else {
            return Err(ImportError::new(1, "a list of arguments holds texts and numbers alone"));
        };
        if let Some(word) = started_with.first() {
            let text = format!(
                "a list of arguments is no script, so nothing can be handed to it: `{}`",
                shown(word)
            );
            return Err(ImportError::new(1, text));
        }
        // A launcher or a script before them: the words of a command.
        if words.first().is_some_and(|first| !first.starts_with("--")) {
            let quoted: Vec<String> = words.iter().map(|word| quote(word)).collect();
            return launch_of(&quoted.join(" "), started_with, files);
        }
        let arguments = words.into_iter().map(|text| Word { text, line: 1 }).collect();
        return Ok(Launch { arguments, ..Launch::default() });
    }
    if is_manifest(text) {
        if let Some(word) = started_with.first() {
            let text = format!("a manifest is no script, so nothing can be handed to it: `{}`", shown(word));
            return Err(ImportError::new(1, text));
        }
        let mut shell = run::Shell::new(files);
        shell.script = text.split('\n').map(str::to_owned).collect();
        shell.manifest(text)?;
        return launch_found(shell, text);
    }
    let list = argument_list(text);
    let commands = if list.is_some() { Vec::new() } else { parse::parse(text)? };
    let mut shell = run::Shell::new(files);
    shell.script = text.lines().map(str::to_owned).collect();
    shell.state.options.aliases = calls::replaces_aliases(text);
    if list.is_none() && text.contains("\r\n") {
        shell.note(
            "lines end as on Windows (CR LF), which bash does not take; they are read without".to_owned(),
        );
    }
    let end = text.trim_end();
    if let Some(last) =
        end.lines().last().filter(|last| last.ends_with('\\') && !last.trim_start().starts_with('#'))
    {
        let (line, last) = (end.lines().count(), shown(last.trim()));
        if let Some(name) = unused_flags(text) {
            let text = format!(
                "the text ends in a continuation line, and `{name}` is set and never used: is the rest cut off?"
            );
            return Err(ImportError::new(line, text));
        }
        shell.note(format!(
            "line {line}: the text ends in a continuation line, `{last}`: is the rest cut off?"
        ));
    }
    if let Some(job) = Job::of_script(text) {
        let list = job.text(&["--export"]).unwrap_or_default();
        set_pairs(&mut shell, &list);
        shell.begin_job(job);
    }
    for (_, _, list) in values_among(&of_pbs(&[], text), &["-v"]) {
        set_pairs(&mut shell, &list.text);
    }
    let mut arguments = started_with;
    while let Some((word, rest)) = arguments.split_first()
        && let Some((name, value)) = assignment(word)
    {
        shell.set(name, value.to_owned());
        arguments = rest;
    }
    shell.give(arguments);
    if let Some(list) = list {
        return Ok(shell.launch_of(&list));
    }
    shell.queue_nodes = nodes_of_queue(&[], text);
    shell.queue_sets = variables_of_queue(&[], text);
    shell.text(&commands)?;
    given_in_vain(&mut shell, text, started_with);
    if shell.found.is_empty() && shell.perhaps.is_empty() && shell.arguments.is_empty() {
        shell.scripts_in_documents()?;
    }
    launch_found(shell, text)
}

/// Notes what the script is started with and sets itself, or takes no heed of.
fn given_in_vain(shell: &mut run::Shell, text: &str, words: &[String]) {
    let mut pairs = words.iter().map_while(|word| assignment(word));
    for (name, value) in pairs.by_ref() {
        let Some(set) = shell.state.variables.get(name).cloned() else { continue };
        if let Value::Text(own) = &set.value
            && own != value
            // `PATH=$PATH:…`
            && (value.parse::<u64>().is_ok() || !own.contains(value))
        {
            let own = if is_unknown(own) { String::new() } else { format!(" to `{own}`") };
            shell.note(format!("`{name}={value}` is given, and the script itself sets {name}{own}"));
        }
    }
    let arguments = &words[words.iter().take_while(|word| assignment(word).is_some()).count()..];
    let takes = |mark: &str| {
        let mut behind = text.match_indices(mark).map(|(at, _)| &text[at + mark.len()..]);
        behind.any(|rest| rest.starts_with(|c: char| c.is_ascii_digit() && c != '0' || "@*#".contains(c)))
    };
    let heeds =
        takes("$") || takes("${") || ["shift", "getopt", "BASH_ARGV"].iter().any(|w| text.contains(w));
    if let Some(first) = arguments.first().filter(|_| !heeds) {
        shell.note(format!(
            "arguments are given behind `--`, of which the script takes none: `{}`",
            shown(first)
        ));
    }
}

/// Whether the flags of a launch say what is trained.
fn tells(launch: &Launch) -> bool {
    launch.arguments.iter().any(|w| TELLING.contains(&w.text.split('=').next().unwrap_or_default()))
}

/// Why nothing is trained where a script ends before.
fn ended_before(shell: &run::Shell, text: &str, starts: impl Fn(&str) -> bool) -> Option<ImportError> {
    let line = shell.ended.filter(|_| shell.flow == state::Flow::Exit)?;
    let mut behind =
        text.lines().enumerate().skip(line).filter(|(_, own)| !own.trim_start().starts_with('#'));
    let (at, _) = behind.find(|(_, own)| starts(own))?;
    let message = format!("the script ends here, before line {}, which would start training", at + 1);
    Some(ImportError::new(line, message))
}

/// Whether a line starts training by a launcher or has flags that tell what is trained.
fn trains(line: &str) -> bool {
    const LAUNCHERS: &[&str] = &["torchrun", "torch.distributed", "deepspeed ", "accelerate launch"];
    LAUNCHERS.iter().chain(TELLING).any(|word| line.contains(word))
}

/// Sets the variables of a list, those with values.
fn set_pairs(shell: &mut run::Shell, list: &str) {
    let pairs = list.split(',').filter_map(|pair| pair.split_once('='));
    pairs.for_each(|(name, value)| shell.set(name, value.to_owned()));
}

/// The one training command that a script starts.
fn launch_found(mut shell: run::Shell, text: &str) -> Result<Launch, ImportError> {
    let (unread, gives_up) = (shell.unread, shell.gives_up);
    let (unset, undecided) = (std::mem::take(&mut shell.unset), std::mem::take(&mut shell.undecided));
    let (mut found, arguments) = (std::mem::take(&mut shell.found), std::mem::take(&mut shell.arguments));
    let mut notes = std::mem::take(&mut shell.notes);
    let defaults = shell
        .defaults
        .iter()
        .filter(|(name, _)| !["PORT", "RANK", "SEED"].iter().any(|end| name.ends_with(end)));
    let defaults: Vec<String> = defaults.map(|(name, value)| format!("{name}={value}")).collect();
    if !defaults.is_empty() {
        notes.push(format!(
            "a file that is not read may set what counts as its default here: {}",
            defaults.join(", ")
        ));
    }
    // What may not run counts where nothing else does.
    if found.iter().all(|launch| launch.arguments.is_empty())
        && arguments.is_empty()
        && let Some(line) = shell.perhaps.first().and_then(|launch| launch.script.as_ref()).map(|w| w.line)
    {
        notes.push(format!("line {line}: whether this command starts is known only when the script runs"));
        found.append(&mut shell.perhaps);
    }
    // Argument lists name the script on a line of its own, or not at all.
    if !arguments.is_empty() && found.iter().all(|l| l.arguments.is_empty()) {
        let script = found.pop().and_then(|l| l.script);
        let mut environment = shell.texts_of_variables();
        environment.extend(std::mem::take(&mut shell.beside));
        let (written, folder) = (shell.state.written, shell.state.folder);
        return Ok(Launch {
            script,
            arguments,
            job: shell.job,
            written,
            folder,
            environment,
            notes,
            unread,
            unset,
            undecided,
            ..Launch::default()
        });
    }
    if let Some(word) = arguments.first() {
        let text = format!(
            "`{}` begins a command of its own: does the line before lack its `\\`?",
            shown(word.text.split('=').next().unwrap_or_default())
        );
        return Err(ImportError::new(word.line, text));
    }
    let started = found.iter().any(Launch::is_distributed);
    let bare = found.iter().find(|l| l.arguments.is_empty()).and_then(|l| l.script.clone());
    found.retain(|l| !l.arguments.is_empty() || l.deepspeed_config() != Ok(None));
    if found.iter().any(tells) {
        // Scripts that prepare data are started in the same way.
        found.retain(tells);
    } else {
        let configurations: Result<Vec<_>, _> = found.iter().map(Launch::deepspeed_config).collect();
        if configurations?.iter().all(Option::is_none)
            && let Some(error) =
                ended_before(&shell, text, trains).filter(|_| !started).or_else(|| elsewhere(text))
        {
            return Err(ImportError { notes, ..error });
        }
    }
    let mut launches = found.into_iter();
    let Some(first) = launches.next() else {
        notes.append(&mut shell.not_started);
        let ended = ended_before(&shell, text, |line| trains(line) || line.contains(".py"));
        let ended = ended.filter(|_| !started);
        let error = ended.or(shell.unfollowed.take()).unwrap_or_else(|| no_command(text, bare));
        return Err(ImportError { notes, ..error });
    };
    if let Some(ImportError { line, message, .. }) = shell.unfollowed.take() {
        notes.push(format!("line {line}: {message}"));
    }
    let first = Launch { unread, ..first };
    let line = first.script.as_ref().map_or(0, |word| word.line);
    notes.extend(shell.not_started.drain(..).filter(|note| note.starts_with(&format!("line {line}:"))));
    let files = |l: &Launch| {
        let paths = l.arguments.iter().map(|w| w.text.rsplit('=').next().unwrap_or_default());
        let keys = paths.filter_map(|path| file_key(&in_folder(&l.folder, path), None));
        let written = keys.filter_map(|key| l.written.get(&key).map(|written| written.text.clone()));
        (written.collect::<Vec<_>>(), l.accelerate.clone())
    };
    let texts = |l: &Launch| l.arguments.iter().map(|w| w.text.clone()).collect::<Vec<_>>();
    let ranks = |l: &Launch| l.ranks().unwrap_or_default();
    let per_node = |l: &Launch| l.ranks_per_node().unwrap_or_default();
    for other in launches {
        let other = Launch { unread, ..other };
        let what = match (texts(&other) == texts(&first), ranks(&first), ranks(&other)) {
            (true, one, two) if one == two && per_node(&other) != per_node(&first) => {
                "a second training command starts another number of ranks on a node".to_owned()
            }
            (true, one, two) if one == two && files(&other) == files(&first) => continue,
            (true, one, two) if one == two => "a second training command is handed another file".to_owned(),
            (true, Some(one), Some(two)) => {
                format!("a second training command starts {two} ranks, the first {one}")
            }
            (true, ..) => {
                "a second training command starts another number of ranks than the first".to_owned()
            }
            (false, ..) => "a second training command differs from the first".to_owned(),
        };
        let line = other.script.as_ref().map_or(1, |w| w.line);
        return Err(ImportError { notes, ..ImportError::new(line, format!("{what}; expected one")) });
    }
    Ok(Launch { notes, unset, undecided, gives_up, ..first })
}

/// The words of a text that holds variables, perhaps a script, and flags, and no command.
fn argument_list(text: &str) -> Option<Vec<parse::Raw>> {
    let words = parse::words(text).ok()?;
    let plain = |word: &parse::Raw| word.bare().unwrap_or_default();
    let operator = |word: &parse::Raw| {
        let text = plain(word);
        matches!(text.as_str(), "|" | "&" | "&&" | "||")
            || text.ends_with(';')
            || text.starts_with(['>', '<'])
            || text.starts_with("2>")
    };
    let sets = |word: &parse::Raw| assignment(&plain(word)).is_some_and(|(_, value)| !value.starts_with('('));
    let variables = words.iter().take_while(|word| sets(word)).count();
    let script = words.get(variables).is_some_and(|word| plain(word).ends_with(".py"));
    let first = words.get(variables + usize::from(script))?;
    let flag = matches!(first.parts.first(), Some(parse::Part::Text { text, .. }) if text.starts_with("--"));
    (flag && !words.iter().any(operator)).then_some(words)
}

/// What launches can be read, for messages.
pub const READABLE: &str = "read are launch scripts and Kubernetes manifests of Megatron-LM and Megatron-DeepSpeed, DeepSpeed configurations and saved plans";

/// The launcher of a framework whose settings stand in other files, if a script starts one.
fn elsewhere(text: &str) -> Option<ImportError> {
    const ELSEWHERE: &[(&str, &str)] = &[
        ("torchtitan.train", "torchtitan, whose settings stand in a configuration of its own"),
        (
            "accelerate launch",
            "Accelerate without DeepSpeed, whose settings stand in a YAML file and a Python script",
        ),
        ("run_train.py --config-file", "nanotron, whose settings stand in a YAML file"),
        ("--config-name", "a program of Hydra's such as NeMo's, whose settings stand in YAML files"),
        ("llamafactory-cli train", "LLaMA-Factory, whose settings stand in a YAML file"),
        ("axolotl train", "Axolotl, whose settings stand in a YAML file"),
        ("swift sft", "ms-swift, whose flags name a model of Hugging Face's"),
        ("composer ", "Composer, whose settings stand in a YAML file and a Python script"),
        ("colossalai run", "Colossal-AI, whose settings stand in a Python script"),
        ("trainer.devices=", "a program of NeMo's, whose settings are Hydra's"),
    ];
    let mut lines = text.lines().enumerate().filter(|(_, line)| !line.trim_start().starts_with('#'));
    lines.find_map(|(number, line)| {
        let (_, what) = ELSEWHERE.iter().find(|(word, _)| line.contains(word))?;
        Some(ImportError::new(number + 1, format!("this starts {what}; {READABLE}")))
    })
}

/// Why a script has no training command that can be read: `bare` is a script that is started without arguments.
fn no_command(text: &str, bare: Option<Word>) -> ImportError {
    if let Some(error) = elsewhere(text) {
        return error;
    }
    if let Some(script) = bare {
        let name = script.text.rsplit('/').next().unwrap_or_default();
        let message =
            format!("{name} is started without flags, so what it trains stands in that file; {READABLE}");
        return ImportError::new(script.line, message);
    }
    ImportError::new(
        text.trim_end().lines().count().max(1),
        "no training command was found: expected torchrun, python, srun or deepspeed with a .py script, or a list of --flags",
    )
}

/// A word for people: what only a running shell knows is `$…`.
#[must_use]
pub fn shown(text: &str) -> String {
    as_value(text).replace(HARMLESS, "").replace(UNKNOWN, "$…")
}

/// Whether a word stands for nothing but flags that say no degrees, shapes or batches.
fn is_harmless(text: &str) -> bool {
    let mut rest = text;
    while let Some(behind) = rest.strip_prefix(UNKNOWN).and_then(|rest| rest.strip_prefix(HARMLESS)) {
        rest = behind;
    }
    rest.is_empty() && !text.is_empty()
}

/// Whether a word holds something that only a running shell knows.
#[must_use]
pub fn is_unknown(text: &str) -> bool {
    text.contains(UNKNOWN)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        read_launch(text, &no_files).unwrap().arguments.into_iter().map(|w| w.text).collect()
    }

    #[test]
    fn scripts_of_many_styles() {
        assert_eq!(words("torchrun --nnodes 2 pretrain_gpt.py --a 1 --b 'x y'"), ["--a", "1", "--b", "x y"]);
        assert_eq!(words("N=4\ntorchrun x.py --n $N \\\n  --m $((N*2+1)) # c\n"), ["--n", "4", "--m", "9"]);
        let arrays = "A=(--n 1\n  # comment\n --m \"a b\")\nA+=(--k)\npython -u x.py \"${A[@]}\" ${B:-\"--z 3\"} \"$@\"";
        assert_eq!(words(arrays), ["--n", "1", "--m", "a b", "--k", "--z", "3"]);
        let string = "ARGS=\"\n --n 1\n --m 2 \"\nsrun torchrun --x x.py $ARGS > log 2>&1";
        assert_eq!(words(string), ["--n", "1", "--m", "2"]);
        let branch = "if [[ -n \"${D:-}\" ]]; then\n A=(--d $D)\nelse\n A=(--mock)\nfi\nexec torchrun x.py \"${A[@]}\"";
        assert_eq!(words(branch), ["--mock"]);
        assert_eq!(words("CUDA=1 WORLD_SIZE=8\npretrain_gpt.py\n--a 1\n# c\n--b"), ["--a", "1", "--b"]);
        assert_eq!(words("srun bash -c 'RANK=$R python t.py --a \"$L\" --b'"), ["--a", "\u{fffc}", "--b"]);
    }

    #[test]
    fn sourced_files_are_followed() {
        let files = |path: &str| match path {
            "env.sh" => Ok("# sizes\nN=4\nA=(--n $N\n --k)\n. conf/more.sh".to_owned()),
            "conf/more.sh" => Ok("f() { torchrun x.py \"$@\"; }\nsource env.sh\nM=$1\nset -- x".to_owned()),
            "open.sh" => Ok("A=(--n 1\n".to_owned()),
            "here.sh" => Ok("source $(dirname \"$0\")/next.sh\n".to_owned()),
            "sub/here.sh" => Ok("source \"$(dirname \"${BASH_SOURCE[0]}\")/next.sh\"\n".to_owned()),
            "next.sh" => Ok("N=1".to_owned()),
            "sub/next.sh" => Ok("N=2".to_owned()),
            other => Err(format!("{other}: no such file")),
        };
        let read = |text: &str| read_launch(text, &files).unwrap();
        let texts = |launch: &Launch| launch.arguments.iter().map(|w| w.text.clone()).collect::<Vec<_>>();
        let launch = read("#!/bin/bash\n\nsource ./env.sh 8\nf \"${A[@]}\" --m 1\n");
        assert_eq!(texts(&launch), ["--n", "4", "--k", "--m", "1"]);
        // What a file holds stands where it is asked for.
        assert_eq!(launch.arguments.iter().map(|w| w.line).collect::<Vec<_>>(), [3; 5]);
        // A file that asks for itself is read once.
        assert_eq!(launch.notes.len(), 1, "{:?}", launch.notes);
        assert!(
            launch.notes[0].contains("line 3: `env.sh` is not read: it asks for itself"),
            "{:?}",
            launch.notes
        );
        // Beside the script, or beside the file that asks.
        assert_eq!(
            texts(&read("HERE=$(cd $(dirname $0) && pwd)\n. $HERE/here.sh\npython x.py --n $N")),
            ["--n", "1"]
        );
        assert_eq!(texts(&read("[ -f sub/here.sh ] && . sub/here.sh\npython x.py --n $N")), ["--n", "2"]);
        assert_eq!(
            texts(&read("if [ ! -f sub/here.sh ]; then N=3; else N=4; fi\npython x.py --n $N")),
            ["--n", "4"]
        );
        // What is not there, cannot be read or is not known changes nothing and is said.
        for (text, part) in [
            ("source gone.sh", "line 1: `gone.sh` is not read: gone.sh: no such file"),
            ("\nsource open.sh", "line 2: `open.sh` is not read: its line 1: this array is never closed"),
            (
                "source \"$ROOT/env.sh\"",
                "line 1: `$…/env.sh` is not read: its path is known only when the script runs",
            ),
        ] {
            let launch = read(&format!("{text}\npython x.py --n 1"));
            assert_eq!(texts(&launch), ["--n", "1"]);
            assert!(launch.notes.iter().any(|n| n == part), "{:?}", launch.notes);
        }
    }

    #[test]
    fn sourcing_ends() {
        // Two files that ask for each other often, and a chain without end.
        let many = |path: &str| Ok(format!("{}\nN=1", format!(". x{path}; . y{path};").repeat(40)));
        let launch = read_launch(". a\npython x.py --n $N", &many);
        assert!(launch.is_err() || launch.is_ok_and(|l| l.notes.len() < 100));
    }

    #[test]
    fn unfinished_scripts_name_their_line() {
        for (text, line, part) in [
            ("A=(--n 1\n", 1, "array"),
            ("\ntorchrun x.py --a 'b", 2, "single quote"),
            ("echo hello", 1, "no training command"),
            ("if [ -n x ]; then\ntorchrun x.py --a\n", 2, "fi"),
            ("torchrun x.py --a ${B", 1, "${"),
        ] {
            let error = read_launch(text, &no_files).unwrap_err();
            assert!(error.line == line && error.message.contains(part), "{text:?}: {error}");
        }
    }
}
