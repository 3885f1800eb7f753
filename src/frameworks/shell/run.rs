//! Follows a parsed script as far as its text decides: assignments, tests, loops, functions, sourced files. No
//! program is started; what only a running shell knows stays unknown.

use std::collections::BTreeMap;

use super::parse::{Array, Command, Link, List, Part, Raw, Streams, parse, parse_sourced, template};
use super::printed::{Written, held};
use super::{Files, ImportError, Launch, UNKNOWN, UNSET, UNTOLD, Word, as_value, is_unknown, shown};

/// Commands after which a script is taken to loop for ever.
const MOST_COMMANDS: u32 = 200_000;
/// Most files that a script may source, counted as often as it does.
const MOST_FILES: u32 = 64;
/// Most words and characters of an expansion that are kept.
pub(super) const LONGEST: usize = 1 << 20;
/// Most commands inside one another, in a word or otherwise: each is read by a call inside the one before.
const MOST_DEPTH: usize = 48;
/// Most flags and numbers that a note on an undecided branch names.
const MOST_NAMED: usize = 12;

/// What a script starts and says.
pub(super) struct Shell<'f> {
    files: &'f Files<'f>,
    /// Files that are being read, each asked for by the one before.
    sources: Vec<String>,
    sourced: u32,
    variables: BTreeMap<String, String>,
    arrays: BTreeMap<String, Vec<Word>>,
    pub(super) environment: BTreeMap<String, String>,
    /// Files that the script writes, by their path from its folder.
    pub(super) written: BTreeMap<String, Written>,
    /// Bytes that it has written into them.
    pub(super) kept: usize,
    /// What the command before a pipe printed.
    piped: Option<String>,
    functions: BTreeMap<String, List>,
    positional: Vec<String>,
    /// Inside a function, where arguments are known.
    called: u32,
    depth: usize,
    commands: u32,
    /// Training commands.
    pub(super) found: Vec<Launch>,
    /// Flags that stand without a command.
    pub(super) arguments: Vec<Word>,
    /// What was decided without knowing, for people.
    pub(super) notes: Vec<String>,
}

type Run<T> = Result<T, ImportError>;

/// A path that a script names, from the script's folder; none where only a running shell knows it. A folder that a
/// command finds out, such as `$(dirname "$0")`, is taken for that of the file that asks: `asks`, if it was sourced.
fn from_folder(path: &str, asks: Option<&str>) -> Option<String> {
    let beside = path.strip_prefix(UNKNOWN).and_then(|rest| rest.strip_prefix('/'));
    let path = match beside {
        Some(rest) => {
            let folder = asks.and_then(|own| own.rsplit_once('/')).map(|(folder, _)| folder);
            folder.map_or_else(|| rest.to_owned(), |folder| format!("{folder}/{rest}"))
        }
        None => path.strip_prefix("./").unwrap_or(path).to_owned(),
    };
    (!is_unknown(&path) && !path.contains(UNSET)).then_some(path)
}

/// What tells a file from others: its path from the script's folder, else the part of the path that is known; none
/// where that is nothing.
pub(super) fn file_key(path: &str, asks: Option<&str>) -> Option<String> {
    let path = as_value(path);
    let named = path.chars().any(char::is_alphanumeric);
    from_folder(&path, asks).or(Some(path)).filter(|_| named)
}

impl<'f> Shell<'f> {
    /// A shell that has run nothing yet.
    pub(super) fn new(files: &'f Files<'f>) -> Self {
        Self {
            files,
            sources: Vec::new(),
            sourced: 0,
            variables: BTreeMap::new(),
            arrays: BTreeMap::new(),
            environment: BTreeMap::new(),
            written: BTreeMap::new(),
            kept: 0,
            piped: None,
            functions: BTreeMap::new(),
            positional: Vec::new(),
            called: 0,
            depth: 0,
            commands: 0,
            found: Vec::new(),
            arguments: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// Variables that were set, exported or not.
    pub(super) fn into_environment(mut self) -> BTreeMap<String, String> {
        for (name, value) in self.variables {
            self.environment.entry(name).or_insert(value);
        }
        self.environment
    }

    /// Runs a list; the status of its last command, where the text decides it.
    pub(super) fn list(&mut self, list: &List) -> Run<Option<bool>> {
        let mut status = Some(true);
        let mut goes = true;
        for (link, command) in list {
            if *link != Link::Pipe {
                self.piped = None;
            }
            goes = match link {
                Link::Then => true,
                Link::Pipe => goes,
                Link::And => status == Some(true),
                // Not known: the way without complaint.
                Link::Or => status == Some(false),
            };
            if goes {
                status = self.command(command)?;
            } else if *link == Link::And && status.is_none() {
                self.undecided(std::slice::from_ref(&(Link::Then, command.clone())));
            }
        }
        Ok(status)
    }

    fn nested<T>(&mut self, line: usize, run: impl FnOnce(&mut Self) -> Run<T>) -> Run<T> {
        self.depth += 1;
        if self.depth > MOST_DEPTH {
            return Err(ImportError::new(line, "the script calls itself too deeply"));
        }
        let result = run(self);
        self.depth -= 1;
        result
    }

    fn command(&mut self, command: &Command) -> Run<Option<bool>> {
        self.commands += 1;
        if self.commands > MOST_COMMANDS {
            return Err(ImportError::new(1, "the script loops for longer than can be followed"));
        }
        match command {
            Command::Simple { words, arrays, streams, negated } => {
                for array in arrays {
                    self.assign_array(array);
                }
                let status = self.simple(words, streams)?;
                Ok(if *negated { status.map(|s| !s) } else { status })
            }
            Command::If { arms, otherwise } => {
                for (test, body) in arms {
                    match self.list(test)? {
                        Some(true) => return self.list(body),
                        Some(false) => {}
                        None => self.undecided(body),
                    }
                }
                self.list(otherwise)
            }
            Command::While { test, body, until } => {
                let endless = matches!(test.as_slice(), [(_, Command::Simple { words, .. })]
                    if words.first().and_then(Raw::plain).is_some_and(|w| !matches!(w.as_str(), "[" | "[[" | "test")));
                for _ in 0..if endless { 1 } else { 64 } {
                    if self.list(test)? != Some(!until) {
                        break;
                    }
                    self.list(body)?;
                }
                Ok(Some(true))
            }
            Command::For { name, words, body } => {
                let items: Vec<Word> = words.iter().flat_map(|w| self.fields(w)).collect();
                for item in items.into_iter().take(64) {
                    self.variables.insert(name.clone(), item.text);
                    self.list(body)?;
                }
                Ok(Some(true))
            }
            Command::Case { word, arms } => {
                let value = self.joined(word).replace(UNSET, "");
                for (patterns, body) in arms {
                    let matches = patterns.iter().any(|pattern| {
                        let pattern = self.joined(pattern);
                        matches(&pattern, &value) && (!is_unknown(&value) || pattern == "*")
                    });
                    if matches {
                        return self.list(body);
                    }
                }
                Ok(Some(true))
            }
            Command::Group(list) => self.nested(1, |shell| shell.list(list)),
            Command::Function { name, body } => {
                self.functions.insert(name.clone(), body.clone());
                Ok(Some(true))
            }
        }
    }

    /// A branch that may or may not be taken: says which flags are left out with it.
    fn undecided(&mut self, body: &[(Link, Command)]) {
        let mut flags: Vec<(usize, String)> = Vec::new();
        flags_in(body, &mut flags);
        if let (Some((line, _)), false) = (flags.first(), flags.is_empty()) {
            let names: Vec<&str> = flags.iter().map(|f| f.1.as_str()).collect();
            self.notes.push(format!(
                "line {line}: whether {} is set is known only when the script runs; taken as not",
                names.join(" ")
            ));
        }
    }

    fn assign_array(&mut self, array: &Array) {
        let members: Vec<Word> = array.words.iter().flat_map(|w| self.fields(w)).collect();
        let all = self.arrays.entry(array.name.clone()).or_default();
        if !array.append {
            all.clear();
        }
        if all.len() + members.len() <= LONGEST {
            all.extend(members);
        }
    }

    fn assign(&mut self, raw: &Raw, exported: bool) -> bool {
        let Some((name, append)) = assignment(raw) else { return false };
        let whole = self.joined(raw);
        let value = whole.split_once('=').map_or("", |(_, v)| v);
        let mut text =
            if append { self.variables.get(&name).cloned().unwrap_or_default() } else { String::new() };
        text.push_str(value);
        text.truncate(text.char_indices().nth(LONGEST).map_or(text.len(), |c| c.0));
        if exported || self.environment.contains_key(&name) {
            self.environment.insert(name.clone(), text.clone());
        }
        // One word with members: `A="${A[@]} --flag"` makes a plain variable of an array.
        self.arrays.remove(&name);
        self.variables.insert(name, text);
        true
    }

    fn simple(&mut self, words: &[Raw], streams: &Streams) -> Run<Option<bool>> {
        for word in words {
            self.set_defaults(word);
        }
        let document = streams.documents.first().map(|d| &d.body);
        let before = self.piped.take();
        self.piped = self.print(words, streams, before);
        let mut words: &[Raw] = words;
        // Prefixes that change nothing here.
        while let Some(word) = words.first().and_then(Raw::plain) {
            match word.as_str() {
                "exec" | "time" | "nohup" | "command" | "builtin" | "do" | "then" | "sudo" => {
                    words = &words[1..]
                }
                _ => break,
            }
        }
        let Some(first) = words.first() else { return Ok(Some(true)) };
        if first.plain().is_some_and(|word| word.starts_with('-') && !word.starts_with("--")) {
            // `command -v name`: whether a program is there.
            return Ok(None);
        }
        let line = first.line;
        let keyword = first.plain().unwrap_or_default();
        match keyword.as_str() {
            "export" | "local" | "declare" | "readonly" | "typeset" => {
                for word in &words[1..] {
                    if !self.assign(word, keyword == "export") && keyword == "export" {
                        let name = self.joined(word);
                        if let Some(value) = self.variables.get(&name) {
                            self.environment.insert(name, value.clone());
                        }
                    }
                }
                return Ok(Some(true));
            }
            "unset" => {
                for word in &words[1..] {
                    let name = self.joined(word);
                    self.variables.remove(&name);
                    self.environment.remove(&name);
                    self.arrays.remove(&name);
                }
                return Ok(Some(true));
            }
            "shift" => {
                let count = words.get(1).map_or(Some(1), |w| self.joined(w).parse().ok()).unwrap_or(1);
                self.positional.drain(..count.min(self.positional.len()));
                return Ok(Some(true));
            }
            "[" | "[[" | "test" => {
                let words: Vec<String> = words[1..].iter().map(|w| self.joined(w)).collect();
                let words: Vec<&str> =
                    words.iter().map(String::as_str).filter(|w| !matches!(*w, "]" | "]]")).collect();
                return Ok(match words.as_slice() {
                    ["-f" | "-e" | "-r" | "-s", path] => self.is_there(path),
                    ["!", "-f" | "-e" | "-r" | "-s", path] => self.is_there(path).map(|there| !there),
                    words => test(words),
                });
            }
            "source" | "." => {
                let fields: Vec<Word> = words[1..].iter().flat_map(|w| self.fields(w)).collect();
                let Some((path, arguments)) = fields.split_first() else { return Ok(None) };
                return self.source(&path.text, arguments, line);
            }
            // `read -r -d '' NAME <<END`: the whole of a here-document, or its first line.
            "read" => {
                let fields: Vec<String> =
                    words[1..].iter().flat_map(|w| self.fields(w)).map(|w| w.text).collect();
                if let (Some(body), Some(name)) = (document, fields.last()) {
                    let text = self.joined(body);
                    let whole = fields.iter().any(|w| w.starts_with('-') && w.ends_with('d'));
                    let text = if whole { &text } else { text.lines().next().unwrap_or_default() };
                    self.variables.insert(name.clone(), text.trim().to_owned());
                }
                return Ok(Some(true));
            }
            "true" | ":" => return Ok(Some(true)),
            "false" => return Ok(Some(false)),
            "set" | "echo" | "printf" | "cd" | "mkdir" | "rm" | "cp" | "mv" | "ls" | "cat" | "tee"
            | "sed" | "module" | "conda" | "pip" | "git" | "wget" | "curl" | "trap" | "wait" | "sleep"
            | "exit" | "return" | "break" | "continue" | "grep" | "chmod" | "ln" | "date" | "hostname"
            | "ulimit" | "pushd" | "popd" | "alias" | "which" | "kill" | "tail" | "head" => {
                if let (Some(body), "cat" | "tee") = (document, keyword.as_str()) {
                    self.document(body, &[])?;
                }
                return Ok(if keyword == "grep" { None } else { Some(true) });
            }
            _ => {}
        }
        let mut local = BTreeMap::new();
        while let Some(raw) = words.first() {
            let Some((name, append)) = assignment(raw) else { break };
            let whole = self.joined(raw);
            local.insert((name, append), (raw, whole.split_once('=').map_or("", |(_, v)| v).to_owned()));
            words = &words[1..];
        }
        if words.is_empty() {
            for (raw, _) in local.into_values() {
                self.assign(raw, false);
            }
            return Ok(Some(true));
        }
        let local = local.into_iter().map(|((name, _), (_, value))| (name, value));
        let mut fields: Vec<Word> = words.iter().flat_map(|w| self.fields(w)).collect();
        // A launcher that the script leaves to its surroundings.
        while fields.len() > 1 && fields[0].text.chars().all(|c| c == UNSET || c == UNKNOWN) {
            fields.remove(0);
        }
        let Some(first) = fields.first() else { return Ok(Some(true)) };
        if let Some(body) = self.functions.get(&first.text).cloned() {
            let arguments = fields[1..].iter().map(|w| w.text.clone()).collect();
            let before = std::mem::replace(&mut self.positional, arguments);
            self.called += 1;
            let status = self.nested(line, |shell| shell.list(&body));
            self.called -= 1;
            self.positional = before;
            return status;
        }
        if first.text == "eval" {
            let text: Vec<&str> = fields[1..].iter().map(|w| w.text.as_str()).collect();
            let list = parse(&text.join(" ").replace(UNSET, "")).map_err(|e| shifted(e, line))?;
            return self.nested(line, |shell| shell.list(&list));
        }
        if let Some(body) = document {
            self.document(body, &fields)?;
            return Ok(Some(true));
        }
        if let Some(mut launch) = self.training_command(&fields)? {
            launch.environment = self.environment.clone();
            launch.environment.extend(local);
            self.found.push(launch);
        } else if first.text.starts_with("--") {
            // An argument list on its own, one or many lines.
            self.environment.extend(local);
            self.arguments.extend(fields);
        } else if fields.len() == 1 && first.text.ends_with(".py") {
            self.environment.extend(local);
            self.found.push(Launch { script: Some(fields[0].clone()), ..Launch::default() });
        }
        Ok(Some(true))
    }

    /// Sets a variable that the shell is started with.
    pub(super) fn set(&mut self, name: &str, value: String) {
        self.variables.insert(name.to_owned(), value);
    }

    /// The path of a file that the script names, from the script's folder.
    fn path_of(&self, path: &str) -> Option<String> {
        from_folder(path, self.sources.last().map(String::as_str))
    }

    /// What tells a file that the script names from others.
    pub(super) fn key_of(&self, path: &str) -> Option<String> {
        file_key(path, self.sources.last().map(String::as_str))
    }

    /// What a file holds that the script has written or that stands beside it.
    fn text_of_file(&self, key: &str) -> Result<String, String> {
        held(&self.written, key, self.files).map(|(text, _)| text)
    }

    /// The same by the path as the script says it; none where it cannot be read.
    pub(super) fn text_at(&self, path: &str) -> Option<String> {
        self.text_of_file(&self.key_of(path)?).ok()
    }

    /// Whether a script that could be sourced is there; not known of any other file.
    fn is_there(&self, path: &str) -> Option<bool> {
        let path = self.path_of(path).filter(|p| p.ends_with(".sh") || p.ends_with(".env"))?;
        self.text_of_file(&path).is_ok().then_some(true)
    }

    /// `source FILE ARGUMENTS`: its commands run here. A file that cannot be followed is named and changes nothing.
    fn source(&mut self, path: &str, arguments: &[Word], line: usize) -> Run<Option<bool>> {
        let followed = self.path_of(path).ok_or_else(|| format!("its path {UNTOLD}"));
        let followed = followed.and_then(|path| {
            if self.sources.contains(&path) {
                return Err("it asks for itself".to_owned());
            }
            self.sourced += 1;
            if self.sourced > MOST_FILES {
                return Err(format!("more than {MOST_FILES} files are asked for"));
            }
            let text = self.text_of_file(&path)?;
            let list =
                parse_sourced(&text, line).map_err(|e| format!("its line {}: {}", e.line, e.message))?;
            Ok((path, list))
        });
        let (path, list) = match followed {
            Ok(followed) => followed,
            Err(reason) => {
                let note = format!("line {line}: `{}` is not read: {reason}", shown(path));
                if !self.notes.contains(&note) {
                    self.notes.push(note);
                }
                return Ok(None);
            }
        };
        self.sources.push(path);
        let own: Vec<String> = arguments.iter().map(|w| w.text.clone()).collect();
        let before = (!own.is_empty()).then(|| std::mem::replace(&mut self.positional, own));
        let status = self.nested(line, |shell| shell.list(&list));
        if let Some(before) = before {
            self.positional = before;
        }
        self.sources.pop();
        status
    }

    /// A here-document that holds a script of its own, for sbatch or a file.
    fn document(&mut self, body: &Raw, launcher: &[Word]) -> Run<()> {
        let text = as_value(&self.joined(body));
        if !text.contains(".py") {
            return Ok(());
        }
        // Any other text, such as a Python program, is no script.
        let Ok(list) = parse(&text) else { return Ok(()) };
        let before = self.found.len();
        self.nested(body.line, |shell| shell.list(&list))?;
        for launch in &mut self.found[before..] {
            let shift = |w: &mut Word| w.line += body.line - 1;
            launch.launcher.iter_mut().for_each(shift);
            launch.script.iter_mut().for_each(shift);
            launch.arguments.iter_mut().for_each(shift);
            launch.launcher.splice(0..0, launcher.iter().cloned());
        }
        Ok(())
    }

    /// Splits a command at its training script, if it starts one.
    fn training_command(&mut self, fields: &[Word]) -> Run<Option<Launch>> {
        let Some(first) = fields.first() else { return Ok(None) };
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
            let list = parse(&as_value(&inner.text)).map_err(|e| shifted(e, inner.line))?;
            let before = self.found.len();
            self.nested(inner.line, |shell| shell.list(&list))?;
            for launch in &mut self.found[before..] {
                let shift = |w: &mut Word| w.line += inner.line - 1;
                launch.launcher.iter_mut().for_each(shift);
                launch.script.iter_mut().for_each(shift);
                launch.arguments.iter_mut().for_each(shift);
                launch.launcher.splice(0..0, fields[..at].iter().cloned());
            }
            return Ok(None);
        }
        // Whatever starts it: a script with flags behind it.
        let Some(at) = fields.iter().position(|w| w.text.ends_with(".py")) else { return Ok(None) };
        let flags = fields[at + 1..].iter().any(|w| w.text.starts_with("--") || is_unknown(&w.text));
        let launchers = ["python", "torchrun", "deepspeed"];
        if !flags && !launchers.iter().any(|l| program(&first.text).starts_with(l)) {
            return Ok(None);
        }
        for (at, word) in fields[..at].iter().enumerate() {
            // `srun --export=ALL,NAME=value`, `mpirun -x NAME=value`, `docker run -e NAME=value`
            let list = match word.text.split_once('=') {
                Some(("--export" | "--env", list)) => list,
                _ if matches!(word.text.as_str(), "-x" | "-e" | "--env" | "--export") => {
                    fields.get(at + 1).map_or("", |next| next.text.as_str())
                }
                _ => continue,
            };
            for (name, value) in list.split(',').filter_map(|one| one.split_once('=')) {
                self.environment.insert(name.to_owned(), value.to_owned());
            }
        }
        let clean = |w: &Word| Word { text: as_value(&w.text), line: w.line };
        Ok(Some(Launch {
            launcher: fields[..at].iter().map(clean).collect(),
            script: Some(clean(&fields[at])),
            arguments: fields[at + 1..].iter().map(clean).collect(),
            ..Launch::default()
        }))
    }

    /// `${NAME:=default}` sets the variable.
    fn set_defaults(&mut self, raw: &Raw) {
        for part in &raw.parts {
            let Part::Variable { expression, .. } = part else { continue };
            let (name, rest) = split_name(expression);
            let default = rest.strip_prefix(":=").or_else(|| rest.strip_prefix('='));
            if let (Some(default), false) = (default, self.variables.contains_key(name)) {
                let value = self.text_of(default);
                self.variables.insert(name.to_owned(), value);
            }
        }
    }

    /// A word as one text: nothing is split.
    pub(super) fn joined(&self, raw: &Raw) -> String {
        let mut text = String::new();
        for part in &raw.parts {
            match part {
                Part::Text(t) => text.push_str(t),
                Part::Command { text: t, .. } => text.push_str(&self.substituted(t)),
                Part::Variable { expression, .. } => match self.members(expression) {
                    Some(members) => {
                        let all: Vec<&str> = members.iter().map(|w| w.text.as_str()).collect();
                        text.push_str(&all.join(" "));
                    }
                    None => text.push_str(&self.value(expression)),
                },
            }
            if text.len() > LONGEST {
                break;
            }
        }
        text
    }

    /// `A[@]`, `A[*]`, `@`, `*`.
    fn members(&self, expression: &str) -> Option<Vec<Word>> {
        if matches!(expression, "@" | "*") {
            return Some(self.positional.iter().map(|p| Word { text: p.clone(), line: 0 }).collect());
        }
        let name = expression.strip_suffix("[@]").or(expression.strip_suffix("[*]"))?;
        if let Some(members) = self.arrays.get(name) {
            return Some(members.clone());
        }
        let value = self.variables.get(name)?;
        Some(vec![Word { text: value.clone(), line: 0 }])
    }

    /// All fields of a word: unquoted expansions are split at blanks, arrays give their members. Members
    /// of an array keep the line on which they were written.
    pub(super) fn fields(&self, raw: &Raw) -> Vec<Word> {
        let mut fields: Vec<Word> = Vec::new();
        let mut open: Option<Word> = raw.quoted.then(|| Word { text: String::new(), line: raw.line });
        let new = || Word { text: String::new(), line: raw.line };
        let split = |fields: &mut Vec<Word>, open: &mut Option<Word>, value: &str, line: usize| {
            if value.starts_with(char::is_whitespace) {
                fields.extend(open.take().filter(|w| !w.text.is_empty()));
            }
            let mut pieces = value.split_whitespace().peekable();
            while let Some(piece) = pieces.next() {
                open.get_or_insert_with(|| Word { text: String::new(), line }).text.push_str(piece);
                if pieces.peek().is_some() || value.ends_with(char::is_whitespace) {
                    fields.extend(open.take());
                }
            }
        };
        for part in &raw.parts {
            match part {
                Part::Text(text) => open.get_or_insert_with(new).text.push_str(text),
                Part::Command { text, quoted } => {
                    let value = self.substituted(text);
                    if *quoted {
                        open.get_or_insert_with(new).text.push_str(&value);
                    } else {
                        split(&mut fields, &mut open, &value, raw.line);
                    }
                }
                Part::Variable { expression, quoted } => match self.members(expression) {
                    Some(members) => {
                        let alone = raw.parts.len() == 1;
                        if alone {
                            open = None;
                        }
                        let joined = *quoted && expression.ends_with("[*]");
                        for (n, member) in members.iter().enumerate() {
                            let line = if member.line > 0 { member.line } else { raw.line };
                            if n > 0 && !joined {
                                fields.extend(open.take());
                            } else if n > 0 {
                                open.get_or_insert_with(new).text.push(' ');
                            }
                            if *quoted {
                                let word = open.get_or_insert_with(|| Word { text: String::new(), line });
                                word.text.push_str(&member.text);
                            } else {
                                split(&mut fields, &mut open, &member.text, line);
                            }
                        }
                    }
                    None => {
                        let value = self.value(expression);
                        if *quoted {
                            open.get_or_insert_with(new).text.push_str(&value);
                        } else {
                            split(&mut fields, &mut open, &value, raw.line);
                        }
                    }
                },
            }
            if fields.len() > LONGEST {
                break;
            }
        }
        fields.extend(open);
        fields
    }

    /// What commands print in place of `$(…)`: `expr`, or texts that the script holds.
    fn substituted(&self, text: &str) -> String {
        let unknown = || UNKNOWN.to_string();
        if text.matches("$(").count() + text.matches('`').count() > MOST_DEPTH {
            return unknown();
        }
        let Ok(list) = parse(text) else { return unknown() };
        if let [(_, Command::Simple { words, .. })] = list.as_slice()
            && words.first().and_then(Raw::plain).as_deref() == Some("expr")
        {
            let fields: Vec<String> =
                words[1..].iter().flat_map(|w| self.fields(w)).map(|w| w.text).collect();
            return sum(&fields.join(" "), &|_| None).map_or_else(unknown, |n| n.to_string());
        }
        self.printed_by(&list).map_or_else(unknown, |text| text.trim_end_matches('\n').to_owned())
    }

    /// The text of a default: a word of its own.
    fn text_of(&self, text: &str) -> String {
        let plain = text.replace(['"', '\''], "");
        template(&plain, 1).map_or_else(|_| UNKNOWN.to_string(), |raw| self.joined(&raw))
    }

    /// `NAME`, `NAME:-default`, `NAME%.py`, `#NAME`, `((sum`, …
    fn value(&self, expression: &str) -> String {
        if let Some(text) = expression.strip_prefix("((") {
            let text = self.text_of(text);
            let of = |name: &str| self.variables.get(name).cloned();
            return sum(&text, &of).map_or_else(|| UNKNOWN.to_string(), |n| n.to_string());
        }
        if let Some(name) = expression.strip_prefix('#').filter(|n| !n.is_empty()) {
            let array = name.strip_suffix("[@]").or(name.strip_suffix("[*]"));
            let length = match array {
                Some(name) => self.arrays.get(name).map_or(0, Vec::len),
                None => self.variables.get(name).map_or(0, |v| v.chars().count()),
            };
            return length.to_string();
        }
        let (name, rest) = split_name(expression);
        let set =
            match name {
                "#" => return self.positional.len().to_string(),
                "?" => return "0".into(),
                "$" | "!" | "-" | "0" | "" => return UNKNOWN.to_string(),
                name if name.bytes().all(|b| b.is_ascii_digit()) => {
                    let at: usize = name.parse().unwrap_or(usize::MAX);
                    let given = self.positional.get(at.wrapping_sub(1)).cloned();
                    // Arguments of the script are the caller's; those of a function are all known.
                    if given.is_none() && self.called > 0 { Some(String::new()) } else { given }
                }
                name => {
                    let (base, index) = rest
                        .strip_prefix('[')
                        .and_then(|r| r.split_once(']'))
                        .map_or((name, None), |(i, _)| (name, Some(i)));
                    match index {
                        Some(index) => {
                            let index = sum(&self.text_of(index), &|n| self.variables.get(n).cloned());
                            let array = self.arrays.get(base);
                            return match (array, index.and_then(|i| usize::try_from(i).ok())) {
                                (Some(array), Some(i)) => {
                                    array.get(i).map(|w| w.text.clone()).unwrap_or_default()
                                }
                                _ => UNKNOWN.to_string(),
                            };
                        }
                        None => self.variables.get(base).cloned().or_else(|| {
                            self.arrays.get(base).and_then(|a| a.first()).map(|w| w.text.clone())
                        }),
                    }
                }
            };
        let filled = set.clone().filter(|v| !v.is_empty());
        for (mark, strict) in [(":-", false), (":=", false), ("-", true), ("=", true)] {
            if let Some(default) = rest.strip_prefix(mark) {
                let value = if strict { set.clone() } else { filled.clone() };
                return value.unwrap_or_else(|| self.text_of(default));
            }
        }
        for mark in [":+", "+"] {
            if let Some(other) = rest.strip_prefix(mark) {
                return if filled.is_some() { self.text_of(other) } else { String::new() };
            }
        }
        let Some(value) = set else { return UNSET.to_string() };
        if rest.is_empty() || rest.starts_with(":?") || rest.starts_with('?') {
            return value;
        }
        changed(&value, rest, |text| self.text_of(text)).unwrap_or_else(|| UNKNOWN.to_string())
    }
}

/// `%`, `%%`, `#`, `##`, `/`, `//`, `^^`, `,,` and `:offset:length` of an expansion.
fn changed(value: &str, rest: &str, text_of: impl Fn(&str) -> String) -> Option<String> {
    let ends = |longest: bool| -> Vec<usize> {
        let mut at: Vec<usize> = value.char_indices().map(|c| c.0).chain([value.len()]).collect();
        if longest {
            at.reverse();
        }
        at
    };
    for (mark, longest) in [("%%", true), ("%", false)] {
        if let Some(pattern) = rest.strip_prefix(mark) {
            let pattern = text_of(pattern);
            let mut ends = ends(longest);
            ends.reverse();
            let at = ends.into_iter().find(|&at| matches(&pattern, &value[at..]));
            return Some(value[..at.unwrap_or(value.len())].to_owned());
        }
    }
    for (mark, longest) in [("##", true), ("#", false)] {
        if let Some(pattern) = rest.strip_prefix(mark) {
            let pattern = text_of(pattern);
            let at = ends(longest).into_iter().find(|&at| matches(&pattern, &value[..at]));
            return Some(value[at.unwrap_or(0)..].to_owned());
        }
    }
    for (mark, all) in [("//", true), ("/", false)] {
        if let Some(both) = rest.strip_prefix(mark) {
            let (from, to) = both.split_once('/').unwrap_or((both, ""));
            let (from, to) = (text_of(from), text_of(to));
            if from.is_empty() || from.contains(['*', '?', '[']) {
                return None;
            }
            return Some(if all { value.replace(&from, &to) } else { value.replacen(&from, &to, 1) });
        }
    }
    match rest {
        "^^" => return Some(value.to_uppercase()),
        ",," => return Some(value.to_lowercase()),
        _ => {}
    }
    let mut numbers = rest.strip_prefix(':')?.splitn(2, ':').map(|n| n.trim().parse::<usize>().ok());
    let offset = numbers.next()??;
    let length = match numbers.next() {
        Some(length) => length?,
        None => usize::MAX,
    };
    Some(value.chars().skip(offset).take(length).collect())
}

/// The name at the front of an expansion, and what follows it.
fn split_name(expression: &str) -> (&str, &str) {
    if expression.starts_with(['#', '?', '$', '!', '-', '@', '*']) {
        return expression.split_at(1);
    }
    let end = expression.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(expression.len());
    expression.split_at(end)
}

/// `NAME=` or `NAME+=` at the front of a word.
fn assignment(raw: &Raw) -> Option<(String, bool)> {
    let Some(Part::Text(text)) = raw.parts.first() else { return None };
    let (name, _) = text.split_once('=')?;
    let (name, append) = name.strip_suffix('+').map_or((name, false), |name| (name, true));
    let good = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    good.then(|| (name.to_owned(), append))
}

fn program(text: &str) -> &str {
    text.rsplit('/').next().unwrap_or_default()
}

fn shifted(error: ImportError, line: usize) -> ImportError {
    ImportError { line: error.line + line - 1, ..error }
}

/// Flags that the commands of a list would add.
fn flags_in(list: &[(Link, Command)], flags: &mut Vec<(usize, String)>) {
    let mut add = |words: &[Raw]| {
        for word in words {
            // Numbers that are set here decide what is known elsewhere.
            if let (Some((name, _)), Some(text)) = (assignment(word), word.plain())
                && text.split_once('=').is_some_and(|(_, value)| value.parse::<u64>().is_ok())
                && flags.len() < MOST_NAMED
            {
                flags.push((word.line, name));
            }
            if let Some(text) = word.plain() {
                let text = assignment(word).and(text.split_once('=')).map_or(text.as_str(), |(_, v)| v);
                for piece in text.split_whitespace().filter(|p| p.starts_with("--") && p.len() > 2) {
                    if flags.len() < MOST_NAMED {
                        flags.push((word.line, piece.to_owned()));
                    }
                }
            }
        }
    };
    for (_, command) in list {
        if let Command::Simple { words, arrays, .. } = command {
            if words.first().and_then(Raw::plain).is_none_or(|w| w != "echo") {
                add(words);
            }
            for array in arrays {
                add(&array.words);
            }
        }
    }
}

/// A test of `[`, `[[` or `test`, as far as the text decides it. Variables that are not set are empty.
fn test(words: &[&str]) -> Option<bool> {
    for (operators, or) in [(["||", "-o"], true), (["&&", "-a"], false)] {
        if let Some(at) = words.iter().position(|w| operators.contains(w)) {
            let (left, right) = (test(&words[..at]), test(&words[at + 1..]));
            return match (left, right) {
                (Some(a), _) | (_, Some(a)) if a == or => Some(or),
                (Some(_), Some(_)) => Some(!or),
                _ => None,
            };
        }
    }
    let words: Vec<&str> = words.iter().copied().filter(|w| !matches!(*w, "(" | ")")).collect();
    if let Some((&"!", rest)) = words.split_first() {
        return test(rest).map(|holds| !holds);
    }
    let known = |text: &str| {
        let text = text.replace(UNSET, "");
        (!is_unknown(&text)).then_some(text)
    };
    match words.as_slice() {
        [] => Some(false),
        // A value from the command line or a command counts as given by nobody.
        ["-n", value] => Some(known(value).is_some_and(|v| !v.is_empty())),
        ["-n"] => Some(false),
        ["-z", value] => Some(known(value).is_none_or(|v| v.is_empty())),
        ["-z"] => Some(true),
        [value] => Some(known(value)?.chars().next().is_some()),
        [_, _] => None,
        [left, "=" | "==", right] => Some(matches(&known(right)?, &known(left)?)),
        [left, "!=", right] => Some(!matches(&known(right)?, &known(left)?)),
        // As a number, what is not set may be anything that the surroundings set.
        [left, operator, right] if !left.contains(UNSET) && !right.contains(UNSET) => {
            let (left, right) = (known(left)?, known(right)?);
            let number = |text: &str| if text.is_empty() { Some(0) } else { text.trim().parse::<i64>().ok() };
            let order = number(&left)?.cmp(&number(&right)?);
            match *operator {
                "-eq" => Some(order.is_eq()),
                "-ne" => Some(order.is_ne()),
                "-gt" => Some(order.is_gt()),
                "-ge" => Some(order.is_ge()),
                "-lt" => Some(order.is_lt()),
                "-le" => Some(order.is_le()),
                _ => None,
            }
        }
        _ => None,
    }
}

/// Whether a pattern with `*` and `?` matches a text.
fn matches(pattern: &str, text: &str) -> bool {
    let (pattern, text): (Vec<char>, Vec<char>) = (pattern.chars().collect(), text.chars().collect());
    // Greedy with one place to come back to.
    let (mut p, mut t, mut star) = (0, 0, None);
    while t < text.len() {
        match pattern.get(p) {
            Some('*') => {
                star = Some((p, t));
                p += 1;
            }
            Some(c) if *c == '?' || *c == text[t] => {
                p += 1;
                t += 1;
            }
            _ => match star {
                Some((at, from)) => {
                    star = Some((at, from + 1));
                    p = at + 1;
                    t = from + 1;
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|c| *c == '*')
}

/// Whole-number arithmetic of the shell; none where a name has no number or the text is none.
fn sum(text: &str, of: &dyn Fn(&str) -> Option<String>) -> Option<i64> {
    let chars: Vec<char> =
        text.chars().filter(|c| !c.is_whitespace() && !matches!(c, '$' | '{' | '}')).collect();
    let mut at = 0;
    let value = binary(&chars, &mut at, of, 0, 0)?;
    (at == chars.len()).then_some(value)
}

const OPERATORS: [&[&str]; 4] = [&["==", "!=", "<=", ">=", "<", ">"], &["+", "-"], &["*", "/", "%"], &["**"]];

fn binary(
    chars: &[char],
    at: &mut usize,
    of: &dyn Fn(&str) -> Option<String>,
    level: usize,
    depth: u32,
) -> Option<i64> {
    if depth > 64 {
        return None;
    }
    let Some(operators) = OPERATORS.get(level) else { return operand(chars, at, of, depth) };
    let mut value = binary(chars, at, of, level + 1, depth)?;
    loop {
        let rest = &chars[*at..];
        let found = operators.iter().find(|o| o.chars().enumerate().all(|(i, c)| rest.get(i) == Some(&c)));
        let Some(operator) = found.filter(|o| !(**o == "*" && rest.get(1) == Some(&'*'))) else {
            return Some(value);
        };
        *at += operator.len();
        let right = binary(chars, at, of, level + 1, depth)?;
        value = match *operator {
            "+" => value.checked_add(right)?,
            "-" => value.checked_sub(right)?,
            "*" => value.checked_mul(right)?,
            "/" => value.checked_div(right)?,
            "%" => value.checked_rem(right)?,
            "**" => value.checked_pow(u32::try_from(right).ok()?)?,
            "==" => i64::from(value == right),
            "!=" => i64::from(value != right),
            "<=" => i64::from(value <= right),
            ">=" => i64::from(value >= right),
            "<" => i64::from(value < right),
            _ => i64::from(value > right),
        };
    }
}

fn operand(chars: &[char], at: &mut usize, of: &dyn Fn(&str) -> Option<String>, depth: u32) -> Option<i64> {
    match chars.get(*at)? {
        '(' => {
            *at += 1;
            let value = binary(chars, at, of, 0, depth + 1)?;
            (chars.get(*at) == Some(&')')).then_some(())?;
            *at += 1;
            Some(value)
        }
        '-' => {
            *at += 1;
            operand(chars, at, of, depth + 1)?.checked_neg()
        }
        '+' => {
            *at += 1;
            operand(chars, at, of, depth + 1)
        }
        _ => {
            let word: String =
                chars[*at..].iter().take_while(|c| c.is_ascii_alphanumeric() || **c == '_').collect();
            *at += word.len();
            word.parse().ok().or_else(|| of(&word)?.trim().parse().ok())
        }
    }
}
