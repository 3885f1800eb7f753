//! Simple commands: assignments, what the shell itself knows, prefixes such as `env` and `time`. What is none of these
//! is a program.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::arithmetic::both;
use super::calls::{in_folder, plain_path};
use super::expand::word_of;
use super::launches::program;
use super::parse::{Command, List, Part, Raw, parse_sourced};
use super::run::{LONGEST, Run, Shell};
use super::state::{Flow, Options, Status, Value, known, loose, unknown};
use super::{UNKNOWN, UNSET, Word, as_value};

/// `NAME=`, `NAME+=` or `NAME[INDEX]=` at the front of a word.
pub(super) struct Assignment {
    pub name: String,
    index: Option<Raw>,
    append: bool,
    value: Raw,
}

/// The assignment that a word is, if it is one.
pub(super) fn assignment(raw: &Raw) -> Option<Assignment> {
    let Some(Part::Text { text, .. }) = raw.parts.first() else { return None };
    let end = text.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(text.len());
    let (name, rest) = text.split_at(end);
    if !name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') {
        return None;
    }
    let (index, rest, behind) = if rest.starts_with('[') { indexed(raw, end)? } else { (None, rest, 1) };
    let (append, text) = match rest.strip_prefix("+=") {
        Some(text) => (true, text),
        None => (false, rest.strip_prefix('=')?),
    };
    let text = Part::Text {
        text: text.to_owned(),
        quoted: matches!(&raw.parts[0], Part::Text { quoted: true, .. }),
    };
    let parts = std::iter::once(text).chain(raw.parts[behind..].iter().cloned()).collect();
    let value = Raw { parts, members: None, ..raw.clone() };
    Some(Assignment { name: name.to_owned(), index, append, value })
}

/// The index after a name, what stands behind its bracket, and the part that follows.
fn indexed(raw: &Raw, start: usize) -> Option<(Option<Raw>, &str, usize)> {
    let mut inside = Vec::new();
    for (at, part) in raw.parts.iter().enumerate() {
        let Part::Text { text, quoted } = part else {
            inside.push(part.clone());
            continue;
        };
        let from = if at == 0 { start + 1 } else { 0 };
        let close = ["]=", "]+="].iter().filter_map(|mark| text[from..].find(mark)).min();
        let end = close.map_or(text.len(), |close| from + close);
        inside.push(Part::Text { text: text[from..end].to_owned(), quoted: *quoted });
        if close.is_some() {
            let index = Raw { parts: inside, members: None, ..raw.clone() };
            return Some((Some(index), &text[end + 1..], at + 1));
        }
    }
    None
}

/// Programs whose output for `eval` sets paths up and no numbers of a launch.
const SET_UPS: &[&str] = &[
    "conda",
    "mamba",
    "micromamba",
    "ssh-agent",
    "direnv",
    "pyenv",
    "modulecmd",
    "brew",
    "spack",
    "dircolors",
];

/// `"$(conda shell.bash hook)"`, or the variable in which conda's own block for `.bashrc` keeps that.
fn sets_programs_up(word: &Raw) -> bool {
    word.parts.iter().any(|part| match part {
        Part::Command { list: Some(list), .. } => list.iter().all(|(_, pipe)| match pipe.commands.first() {
            Some(Command::Simple { words, .. }) => {
                words.first().and_then(Raw::plain).is_some_and(|name| SET_UPS.contains(&program(&name)))
            }
            _ => false,
        }),
        Part::Variable { expression, .. } => matches!(expression.as_str(), "__conda_setup" | "__mamba_setup"),
        _ => false,
    })
}

/// What `declare` and the like say of a name.
#[derive(Default)]
struct Attributes {
    exported: Option<bool>,
    number: Option<bool>,
    read_only: bool,
    table: bool,
    array: bool,
    /// `-g`
    global: bool,
    /// `-n`
    reference: bool,
    /// `+n`
    no_reference: bool,
    /// `-f`, `-l`, …
    other: bool,
}

/// Commands whose success a script mostly takes for granted, and may ask for.
const HOPED: &[&str] = &[
    "cd", "pushd", "popd", "ulimit", "umask", "alias", "unalias", "disown", "printf", "shopt", "set", "trap",
    "unset", "mkdir", "chmod", "chown", "sync", "cp", "mv", "ln", "rm", "touch", "tee", "sed", "module",
    "date", "hostname",
];

/// Whether an option alone sets something: `set -e`, and not `set -o`.
fn sets(command: &str, option: &str) -> bool {
    command == "set" && !matches!(option, "-o" | "+o")
}

/// Whether a command declares variables.
fn declares(keyword: &str) -> bool {
    matches!(keyword, "export" | "local" | "declare" | "readonly" | "typeset")
}

impl Shell<'_> {
    pub(super) fn simple(&mut self, words: &[Raw]) -> Run<Status> {
        self.substitution = None;
        let leading = words.iter().take_while(|word| assignment(word).is_some()).count();
        let (assignments, words) = words.split_at(leading);
        if words.is_empty() {
            for word in assignments {
                self.assign(word);
            }
            self.hoped = self.substitution.is_some() && self.substitution_hoped;
            return Ok(self.substitution.unwrap_or(Some(0)));
        }
        // Before a command they are its own, and it is expanded without them.
        let expanded: Vec<Raw>;
        let words = if assignments.is_empty() {
            words
        } else {
            expanded = self.all_fields(words).iter().map(word_of).collect();
            &expanded
        };
        let mut before = Vec::new();
        for word in assignments {
            let Some(assignment) = assignment(word) else { continue };
            let name = self.state.meant(&assignment.name).unwrap_or_else(|| assignment.name.clone());
            before.push((name.clone(), self.state.variables.get(&name).cloned()));
            self.assign(word);
            self.mark(&assignment.name, |variable| variable.exported = true);
        }
        let status = self.invoke(words)?;
        for (name, value) in before.into_iter().rev() {
            match value {
                Some(value) => self.state.variables.insert(name, value),
                None => self.state.variables.remove(&name),
            };
        }
        Ok(status)
    }

    fn assign(&mut self, raw: &Raw) {
        let Some(assignment) = assignment(raw) else { return };
        let index = assignment.index.map(|index| self.joined(&index));
        match assignment.name.as_str() {
            // Where the name is not known, any may be an alias.
            "BASH_ALIASES" => {
                let name = index.clone().filter(|name| known(name)).unwrap_or_else(unknown);
                Arc::make_mut(&mut self.state.aliases).insert(name, raw.line);
            }
            "POSIXLY_CORRECT" => self.state.options.aliases = true,
            _ => {}
        }
        if let Some(members) = &raw.members {
            let value = self.members_of(&assignment.name, assignment.append, members);
            self.store(&assignment.name, value);
            return;
        }
        let text = self.joined(&assignment.value);
        self.put(&assignment.name, index.as_deref(), assignment.append, text);
    }

    /// `(a b)`, `([2]=a b)`, `([key]=a)`
    fn members_of(&mut self, name: &str, append: bool, members: &[Raw]) -> Value {
        let before = self.variable(name).map(|variable| variable.value.clone()).unwrap_or_default();
        if matches!(before, Value::Table(_)) {
            let Value::Table(mut table) = before else { return Value::Unset };
            if !append {
                table.clear();
            }
            for member in members {
                let Some((key, text)) = self.keyed(member) else { return Value::Text(unknown()) };
                table.insert(key, Word { text, line: member.line });
            }
            return Value::Table(table);
        }
        let mut array = match before {
            _ if !append => BTreeMap::new(),
            Value::Array(array) => array,
            Value::Text(text) => BTreeMap::from([(0, Word { text, line: 0 })]),
            _ => BTreeMap::new(),
        };
        let mut next = array.keys().next_back().map_or(0, |last| last + 1);
        for member in members {
            match self.keyed(member) {
                Some((key, text)) => {
                    let Some(at) = self.sum(&key).filter(|at| (0..LONGEST as i64).contains(at)) else {
                        return Value::Text(unknown());
                    };
                    array.insert(at, Word { text, line: member.line });
                    next = at + 1;
                }
                None => {
                    for word in self.fields(member) {
                        array.insert(next, word);
                        next += 1;
                    }
                }
            }
            if array.len() > LONGEST / 4 {
                return Value::Text(unknown());
            }
        }
        Value::Array(array)
    }

    /// `[key]=value`
    fn keyed(&mut self, member: &Raw) -> Option<(String, String)> {
        let Some(Part::Text { text, quoted: false }) = member.parts.first() else { return None };
        if !text.starts_with('[') {
            return None;
        }
        let (index, rest, behind) = indexed(member, 0)?;
        let rest = rest.strip_prefix('=')?.to_owned();
        let head = Part::Text { text: rest, quoted: true };
        let parts = std::iter::once(head).chain(member.parts[behind..].iter().cloned()).collect();
        let value = Raw { parts, ..member.clone() };
        Some((self.joined(&index?), self.joined(&value)))
    }

    /// Runs a command that is more than assignments.
    fn invoke(&mut self, words: &[Raw]) -> Run<Status> {
        let document = self.document.take();
        let Some(first) = words.first() else { return Ok(Some(0)) };
        let line = first.line;
        let keyword = first.plain().unwrap_or_default();
        let replaced = &self.state.replaced;
        if !replaced.is_empty()
            && first.parts.iter().all(|part| matches!(part, Part::Text { quoted: false, .. }))
            && let Some(at) = replaced.get(&keyword).or_else(|| replaced.get(&unknown()))
        {
            let text = format!(
                "`{keyword}` is an alias here (line {at}), which is not followed: write out what it stands for"
            );
            return Err(super::ImportError::new(line, text));
        }
        if let Some(body) = self.state.functions.get(&keyword).cloned() {
            let arguments = self.all_fields(&words[1..]).into_iter().map(|w| w.text).collect();
            return self.called(&keyword, &body, arguments, line);
        }
        match keyword.as_str() {
            "exec" | "time" | "nohup" | "command" | "builtin" | "sudo" | "nice" | "env" => {
                return self.prefixed(&keyword, &words[1..]);
            }
            _ if declares(&keyword) => return Ok(self.declare(&keyword, &words[1..])),
            "[" | "test" => {
                let mut words: Vec<String> =
                    self.all_fields(&words[1..]).into_iter().map(|w| w.text).collect();
                if keyword == "[" && words.pop().is_none_or(|w| w != "]") {
                    return Ok(Some(2));
                }
                return Ok(self.test(words));
            }
            "let" => {
                let mut value = None;
                for word in &words[1..] {
                    let text = self.joined(word);
                    value = self.sum(&text);
                }
                return Ok(value.map(|n| u8::from(n == 0)));
            }
            "eval" if words[1..].iter().any(sets_programs_up) => return Ok(None),
            _ => {}
        }
        let mut fields = self.all_fields(words);
        // A launcher that the script leaves to its surroundings.
        while fields.len() > 1 && loose(&fields[0].text) {
            fields.remove(0);
        }
        let Some((name, arguments)) = fields.split_first() else {
            return Ok(self.substitution.unwrap_or(Some(0)));
        };
        if let Some(body) = self.state.functions.get(&name.text).cloned() {
            let words = arguments.iter().map(|w| w.text.clone()).collect();
            return self.called(&name.text, &body, words, line);
        }
        // A declaration that a variable holds.
        if declares(&name.text) {
            let words: Vec<Raw> = arguments.iter().map(|word| Raw::quoted(&word.text, word.line)).collect();
            return Ok(self.declare(&name.text, &words));
        }
        let status = match self.built_in(&name.text, arguments, line)? {
            Some(status) => status,
            None => self.program(&fields, document)?,
        };
        self.hoped |= status == Some(0) && HOPED.contains(&program(&name.text));
        Ok(status)
    }

    /// Calls a function: a script that ends in it ends where it is called.
    fn called(&mut self, name: &str, body: &Arc<List>, words: Vec<String>, line: usize) -> Run<Status> {
        let status = self.call(name, body, words)?;
        if self.flow == Flow::Exit && self.ended.is_some() {
            self.ended = Some(line);
        }
        Ok(status)
    }

    /// What stands behind a word that changes nothing here.
    fn prefixed(&mut self, prefix: &str, words: &[Raw]) -> Run<Status> {
        let mut words = words;
        // What the command is not to know of what is exported here: all, or some names.
        let (mut clean, mut without) = (prefix == "sudo", Vec::new());
        // Its own files may keep some.
        self.unread |= prefix == "sudo";
        while let Some(option) =
            words.first().and_then(Raw::plain).filter(|w| w.starts_with('-') && w.len() > 1)
        {
            if prefix == "command" && matches!(option.as_str(), "-v" | "-V") {
                // Whether a program is there.
                self.print(None);
                return Ok(None);
            }
            let valued = matches!(
                (prefix, option.as_str()),
                ("sudo", "-u" | "-g" | "-H") | ("nice", "-n") | ("env", "-u" | "-C" | "-S") | ("exec", "-a")
            ) && option != "-H";
            match (prefix, option.as_str()) {
                ("env", "-i" | "--ignore-environment") | ("exec", "-c") => clean = true,
                ("sudo", option) if option == "-E" || option.starts_with("--preserve-env") => clean = false,
                ("env", "-u") => without.extend(words.get(1).and_then(Raw::plain)),
                ("env", option) => without.extend(option.strip_prefix("--unset=").map(str::to_owned)),
                _ => {}
            }
            words = words.get(1 + usize::from(valued)..).unwrap_or_default();
        }
        if prefix == "env" && words.first().and_then(Raw::plain).is_some_and(|word| word == "-") {
            (clean, words) = (true, &words[1..]);
        }
        if !matches!(prefix, "env" | "sudo" | "time")
            && words.first().is_some_and(|word| assignment(word).is_some())
        {
            // It is the name of a program.
            return Ok(Some(127));
        }
        if words.is_empty() {
            if prefix == "env" {
                self.print(None);
            }
            return Ok(Some(0));
        }
        // A function of the program's name that calls it by this.
        let name = words.iter().find(|word| assignment(word).is_none()).and_then(Raw::plain);
        let name = name.filter(|_| prefix != "time");
        let hidden = name.and_then(|name| self.state.functions.remove_entry(&name));
        let status = self.nested(|shell| {
            if !clean && without.is_empty() {
                return shell.simple(words);
            }
            shell.subshell(|shell| {
                let names: Vec<String> = shell.state.variables.keys().cloned().collect();
                for name in names.iter().filter(|name| clean || without.contains(name)) {
                    shell.mark(name, |variable| variable.exported = false);
                }
                shell.simple(words)
            })
        })?;
        if let Some((name, body)) = hidden {
            self.state.functions.entry(name).or_insert(body);
        }
        if prefix == "exec" && self.flow == Flow::Next {
            self.flow = Flow::Exit;
            self.ended = words.first().map(|word| word.line);
        }
        Ok(status)
    }

    /// A command of the shell itself that sees fields; none for a program.
    fn built_in(&mut self, name: &str, arguments: &[Word], line: usize) -> Run<Option<Status>> {
        let texts: Vec<String> = arguments.iter().map(|w| w.text.clone()).collect();
        // What is shown is of the surroundings.
        let operands = texts.iter().any(|text| !text.starts_with(['-', '+']));
        let shows = match name {
            "ulimit" | "umask" | "shopt" | "set" => !operands && !texts.iter().any(|text| sets(name, text)),
            "alias" => !texts.iter().any(|text| text.contains('=')),
            "jobs" | "hash" | "times" | "trap" => !operands,
            _ => false,
        };
        if shows {
            self.print(None);
        }
        let status = match name {
            "true" | ":" => Some(0),
            "false" => Some(1),
            "unset" => self.unset(&texts),
            "shift" => self.shift(texts.first().map(String::as_str)),
            "set" => self.set_options(&texts),
            "shopt" => {
                let named = |name: &str| texts.iter().any(|w| w == name);
                let flag = |flag: char| texts.iter().any(|w| w.starts_with('-') && w[1..].contains(flag));
                let (on, of_set) = (flag('s'), flag('o'));
                let options = &mut self.state.options;
                // Whether they are on: the surroundings may have set any.
                if !on && !flag('u') {
                    return Ok(Some(None));
                }
                if of_set {
                    options.pipe_fails = if named("pipefail") { on } else { options.pipe_fails };
                    options.export_all = if named("allexport") { on } else { options.export_all };
                    options.aliases |= on && named("posix");
                } else {
                    options.ignore_case = if named("nocasematch") { on } else { options.ignore_case };
                    options.last_pipe = if named("lastpipe") { on } else { options.last_pipe };
                    options.extended = if named("extglob") { on } else { options.extended };
                    options.aliases = if named("expand_aliases") { on } else { options.aliases };
                }
                Some(0)
            }
            "read" => self.read(&texts),
            "mapfile" | "readarray" => self.read_lines(&texts),
            "getopts" => self.options_of_caller(&texts),
            "cd" | "pushd" | "popd" => self.change_folder(name, &texts),
            "break" | "continue" | "return" | "exit" => {
                self.ended = if name == "exit" { Some(line) } else { self.ended };
                self.leave(name, texts.first())
            }
            "source" | "." => match arguments.split_first() {
                Some((path, arguments)) => self.source(&path.text, arguments, line)?,
                None => None,
            },
            "eval" => {
                let text = texts.join(" ").replace(UNSET, "");
                if loose(&text) || text.chars().all(|c| c == UNKNOWN) && !text.is_empty() {
                    self.unread = true;
                    self.forget_everything("`eval`", line);
                    return Ok(Some(None));
                }
                let list = parse_sourced(&text, line).map_err(|e| super::ImportError { line, ..e })?;
                if list.is_empty() {
                    return Ok(Some(Some(0)));
                }
                self.nested(|shell| shell.text(&list))?
            }
            "alias" => {
                let names = texts.iter().filter_map(|text| text.split_once('='));
                Arc::make_mut(&mut self.state.aliases).extend(names.map(|(name, _)| (name.to_owned(), line)));
                Some(0)
            }
            "unalias" => {
                let all = texts.iter().any(|text| text == "-a");
                Arc::make_mut(&mut self.state.aliases).retain(|name, _| !all && !texts.contains(name));
                Some(0)
            }
            // Whether programs and jobs are there, and how those ended.
            "hash" | "jobs" | "wait" if texts.iter().any(|text| !text.starts_with('-')) => None,
            "trap" | "ulimit" | "sleep" | "umask" | "jobs" | "disown" | "hash" | "wait" => Some(0),
            _ => return Ok(None),
        };
        Ok(Some(status))
    }

    fn leave(&mut self, how: &str, argument: Option<&String>) -> Status {
        let number = argument.map(|text| text.trim().parse::<u32>().ok());
        let levels = number.flatten().unwrap_or(1).clamp(1, self.loops.max(1));
        let in_file = !self.state.frames.is_empty() || !self.sources.is_empty();
        self.flow = match how {
            "break" if self.loops > 0 => Flow::Break(levels),
            "continue" if self.loops > 0 => Flow::Continue(levels),
            "return" if in_file => Flow::Return,
            "exit" => Flow::Exit,
            "return" => return Some(2),
            _ => return Some(0),
        };
        match (how, number) {
            ("break" | "continue", _) => Some(0),
            (_, None) => self.state.status,
            (_, Some(status)) => status.map(|status| (status % 256) as u8),
        }
    }

    /// `export`, `declare`, …
    fn declare(&mut self, keyword: &str, words: &[Raw]) -> Status {
        if keyword == "local" && self.state.frames.is_empty() {
            return Some(1);
        }
        if let Some(status) = self.shown(keyword, words) {
            return status;
        }
        let mut attributes = Attributes {
            exported: (keyword == "export").then_some(true),
            read_only: keyword == "readonly",
            ..Attributes::default()
        };
        // All are expanded before the first is assigned.
        let expanded: Vec<Raw> = words.iter().flat_map(|word| self.declared(word)).collect();
        for word in &expanded {
            match word.plain().filter(|w| w.starts_with(['-', '+']) && w.len() > 1) {
                Some(options) => attributes.add(&options, keyword),
                None => self.declare_one(keyword, &attributes, word),
            }
        }
        Some(0)
    }

    /// The status of `declare -p NAME`, which shows a variable, and `declare -f NAME`, which shows a function; none of what
    /// declares.
    fn shown(&mut self, keyword: &str, words: &[Raw]) -> Option<Status> {
        let options: Vec<String> =
            words.iter().map_while(Raw::plain).take_while(|word| word.starts_with('-')).collect();
        let has = |letters: &[char]| options.iter().any(|option| option.contains(letters));
        let names = &words[options.len()..];
        let functions = has(&['f', 'F']);
        if !(functions || has(&['p'])) || matches!(keyword, "export" | "readonly") && !names.is_empty() {
            return None;
        }
        self.print(None);
        let names: Vec<String> = names.iter().map(|word| self.joined(word)).collect();
        let there = names.iter().map(|name| match functions {
            // A file that was not read may define any.
            true if self.unread && !self.state.functions.contains_key(name) => None,
            true => Some(self.state.functions.contains_key(name)),
            false => self.is_set(name),
        });
        let all = there.collect::<Vec<_>>().into_iter().fold(Some(true), both);
        Some(all.map(|all| u8::from(!all)))
    }

    /// A word of `declare` with what it stands for.
    fn declared(&mut self, word: &Raw) -> Vec<Raw> {
        let Some(said) = assignment(word) else {
            return self.fields(word).iter().map(|field| Raw::quoted(&field.text, field.line)).collect();
        };
        if word.members.is_some() {
            return vec![word.clone()];
        }
        let index = said.index.map_or(String::new(), |index| format!("[{}]", self.joined(&index)));
        let (sign, text) = (if said.append { "+=" } else { "=" }, self.joined(&said.value));
        vec![Raw::quoted(&format!("{}{index}{sign}{text}", said.name), word.line)]
    }

    fn declare_one(&mut self, keyword: &str, attributes: &Attributes, word: &Raw) {
        let said = assignment(word);
        let name = said.map_or_else(|| word.plain().unwrap_or_default(), |said| said.name);
        if !known(&name) {
            // Any name may be given any value.
            if name.contains(UNKNOWN) {
                self.forget_everything(&format!("`{keyword}`"), word.line);
            }
            return;
        }
        if name.is_empty() {
            return;
        }
        let hides = !attributes.global && matches!(keyword, "local" | "declare" | "typeset");
        // One of this function that is declared again is no reference any more, or still is one.
        let again = hides && !attributes.reference && !attributes.no_reference && self.refers_here(&name);
        if hides {
            self.hide(&name);
        }
        if attributes.reference {
            let text = word.plain().unwrap_or_default();
            self.state.refer(&name, text.split_once('=').map_or("", |(_, target)| target));
            return;
        }
        if attributes.no_reference {
            self.state.end_reference(&name);
        }
        if again {
            self.state.refer(&name, "");
            return;
        }
        if attributes.other {
            self.forget_name(&name);
            return;
        }
        self.mark(&name, |variable| {
            variable.exported = attributes.exported.unwrap_or(variable.exported);
            variable.number = attributes.number.unwrap_or(variable.number);
            let fresh = variable.value == Value::Unset;
            match variable.value {
                _ if fresh && attributes.table => variable.value = Value::Table(BTreeMap::new()),
                _ if fresh && attributes.array => variable.value = Value::Array(BTreeMap::new()),
                _ => {}
            }
        });
        self.assign(word);
        if attributes.read_only {
            self.mark(&name, |variable| variable.read_only = true);
        }
    }

    fn unset(&mut self, names: &[String]) -> Status {
        let functions = names.iter().any(|w| w == "-f");
        let reference = names.iter().any(|w| w == "-n");
        for name in names.iter().filter(|w| !w.starts_with('-')) {
            if functions {
                self.state.functions.remove(name);
                continue;
            }
            if let Some((name, index)) = name.strip_suffix(']').and_then(|n| n.split_once('[')) {
                self.unset_member(name, index);
                continue;
            }
            let Some(name) = (if reference { Some(name.clone()) } else { self.state.meant(name) }) else {
                self.state.forget_variables();
                continue;
            };
            let there = self.state.variables.get(&name);
            if there.is_some_and(|variable| variable.read_only) {
                continue;
            }
            if there.is_none() {
                self.state.functions.remove(&name);
            }
            self.state.variables.insert(name, Arc::default());
        }
        Some(0)
    }

    fn unset_member(&mut self, name: &str, index: &str) {
        let value = self.variable(name).map(|variable| variable.value.clone()).unwrap_or_default();
        let value = match value {
            Value::Array(mut array) => match self.sum(index) {
                Some(at) if at >= 0 && !array.values().any(|w| loose(&w.text)) => {
                    array.remove(&at);
                    Value::Array(array)
                }
                _ => Value::Text(unknown()),
            },
            Value::Table(mut table) => {
                let key = self.text_of(index, false);
                table.remove(&key);
                if known(&key) { Value::Table(table) } else { Value::Text(unknown()) }
            }
            Value::Text(_) => Value::Text(unknown()),
            Value::Unset | Value::Reference(_) => return,
        };
        self.store(name, value);
    }

    fn shift(&mut self, count: Option<&str>) -> Status {
        let Some(all) = &self.state.positional else {
            self.assumed = true;
            return Some(1);
        };
        let count = count.map_or(Some(1), |text| text.parse::<usize>().ok());
        let Some(count) = count.filter(|_| !all.iter().any(|text| loose(text))) else {
            self.state.positional = Some(Arc::new(vec![unknown()]));
            return None;
        };
        if count > all.len() {
            return Some(1);
        }
        self.state.positional = Some(Arc::new(all[count..].to_vec()));
        Some(0)
    }

    fn set_options(&mut self, words: &[String]) -> Status {
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let on = word.starts_with('-');
            let letters = word.get(1..).unwrap_or_default();
            let option = |options: &mut Options, name: &str| match name {
                "allexport" => options.export_all = on,
                "pipefail" => options.pipe_fails = on,
                // Without it they may be as they were before.
                "posix" => options.aliases |= on,
                _ => {}
            };
            match word.as_str() {
                "--" => {
                    self.state.positional = Some(Arc::new(words.cloned().collect()));
                    return Some(0);
                }
                _ if !on && !word.starts_with('+') => {
                    let given = std::iter::once(word).chain(words).cloned().collect();
                    self.state.positional = Some(Arc::new(given));
                    return Some(0);
                }
                _ => {}
            }
            if letters.contains('a') && !letters.starts_with('-') {
                self.state.options.export_all = on;
            }
            if letters.contains('o')
                && let Some(name) = words.next()
            {
                option(&mut self.state.options, name);
            }
        }
        Some(0)
    }

    /// `read`: a line, or with `-d ''` the whole text.
    fn read(&mut self, words: &[String]) -> Status {
        let mut names: Vec<&String> = Vec::new();
        let (mut array, mut whole, mut plain) = (None, false, true);
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let Some(options) = word.strip_prefix('-') else {
                names.push(word);
                continue;
            };
            let Some(at) = options.find(|c: char| "adinNptu".contains(c)) else { continue };
            let given = &options[at + 1..];
            let value = if given.is_empty() { words.next().map_or("", String::as_str) } else { given };
            match &options[at..=at] {
                "a" => array = Some(value.to_owned()),
                "d" if value.is_empty() => whole = true,
                "p" | "t" | "i" => {}
                _ => plain = false,
            }
        }
        let text = self.state.input.take().filter(|text| plain && known(text));
        let Some(text) = text else {
            for name in names.into_iter().chain(&array) {
                self.forget_name(name);
            }
            return None;
        };
        let (line, rest) = match text.split_once('\n') {
            _ if whole => (text.as_str(), None),
            Some((line, rest)) => (line, Some(rest)),
            None => (text.as_str(), None),
        };
        self.worked(text.len());
        self.state.input = Some(rest.unwrap_or_default().to_owned());
        let separators = self.separators();
        if let Some(name) = array {
            let separates = |c: char| separators.contains(c);
            let pieces = line.split(separates).filter(|piece| !piece.is_empty());
            let words = pieces.map(|text| Word { text: text.to_owned(), line: 0 }).collect();
            self.store(&name, super::state::array_of(words));
        } else {
            self.split_among(line, &names, &separators);
        }
        Some(u8::from(rest.is_none() || text.is_empty()))
    }

    /// The words of a line to names: the last gets what is left.
    fn split_among(&mut self, line: &str, names: &[&String], separators: &str) {
        let blank = |c: char| separators.contains(c) && c.is_whitespace();
        let reply = "REPLY".to_owned();
        let names = if names.is_empty() { vec![&reply] } else { names.to_vec() };
        let mut rest = line.trim_matches(blank);
        for (at, name) in names.iter().enumerate() {
            let text = if at + 1 == names.len() {
                rest
            } else {
                let end = rest.find(|c| separators.contains(c)).unwrap_or(rest.len());
                let (word, more) = rest.split_at(end);
                let more = more.trim_start_matches(blank);
                let mark = more.chars().next().filter(|c| separators.contains(*c));
                rest = mark.map_or(more, |c| &more[c.len_utf8()..]).trim_start_matches(blank);
                word
            };
            self.put(name, None, false, text.to_owned());
        }
    }

    /// `mapfile -t NAME`
    fn read_lines(&mut self, words: &[String]) -> Status {
        let name =
            words.iter().rfind(|w| !w.starts_with('-')).cloned().unwrap_or_else(|| "MAPFILE".to_owned());
        let followed = words.iter().all(|w| *w == name || w == "-t");
        match self.state.input.take().filter(|text| followed && known(text)) {
            Some(text) => {
                let trims = words.iter().any(|w| w == "-t");
                let lines = text
                    .split_inclusive('\n')
                    .map(|line| if trims { line.trim_end_matches('\n') } else { line });
                let words = lines.map(|text| Word { text: text.to_owned(), line: 0 }).collect();
                self.store(&name, super::state::array_of(words));
                self.state.input = Some(String::new());
                Some(0)
            }
            None => {
                self.forget_name(&name);
                None
            }
        }
    }

    pub(super) fn change_folder(&mut self, how: &str, words: &[String]) -> Status {
        let path = words.iter().find(|w| !w.starts_with('-') || *w == "-").map(String::as_str);
        let to = match (how, path) {
            ("popd", _) => self.state.folders.pop().unwrap_or_else(unknown),
            (_, Some("-")) => self.state.left_folder.clone(),
            (_, Some(path)) => in_folder(&self.state.folder, &as_value(path)),
            _ => unknown(),
        };
        if how == "pushd" {
            self.state.folders.push(self.state.folder.clone());
        }
        self.state.left_folder = std::mem::replace(&mut self.state.folder, plain_path(&to));
        Some(0)
    }

    /// The folder that commands run in.
    pub(super) fn working_folder(&self) -> String {
        match self.state.folder.as_str() {
            "" => unknown(),
            folder if folder.starts_with(['/', '~', UNKNOWN]) => folder.to_owned(),
            folder => format!("{UNKNOWN}/{folder}"),
        }
    }
}

impl Attributes {
    fn add(&mut self, options: &str, keyword: &str) {
        let on = options.starts_with('-');
        for option in options[1..].chars() {
            match option {
                'x' => self.exported = Some(on),
                'n' if keyword == "export" => self.exported = Some(false),
                'i' => self.number = Some(on),
                'r' => self.read_only = on,
                'A' => self.table = true,
                'a' => self.array = true,
                'g' => self.global = true,
                'n' => (self.reference, self.no_reference) = (on, !on),
                'f' | 'F' | 'p' | 'l' | 'u' | 'c' => self.other = true,
                _ => {}
            }
        }
    }
}
