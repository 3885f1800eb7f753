//! What commands could set, without running them: for branches that may or may not be taken and loops that are not
//! followed to their end.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::arithmetic::assigned_in;
use super::builtins::assignment;
use super::parse::{Command, Link, List, Loop, Output, Part, Pipe, Raw, Streams};

/// Most flags and numbers that a note on an undecided branch names.
const MOST_NAMED: usize = 12;
/// Most functions inside one another that are looked into.
const MOST_CALLS: usize = 16;

/// What commands could change.
#[derive(Debug, Default)]
pub(super) struct Effects {
    pub names: BTreeSet<String>,
    /// The arguments.
    pub arguments: bool,
    /// The arguments, also where the script's own are taken to be none.
    pub new_arguments: bool,
    /// The folder that paths are from.
    pub folder: bool,
    /// Anything.
    pub everything: bool,
    /// Functions that were looked into.
    seen: BTreeSet<String>,
}

type Functions = BTreeMap<String, Arc<List>>;

impl Effects {
    pub(super) fn of_loop(&mut self, kind: &Loop, body: &List, functions: &Functions) {
        match kind {
            Loop::While { test, .. } => self.of_list(test, functions),
            Loop::For { name, .. } => {
                self.names.insert(name.clone());
            }
            Loop::Count { start, test, step } => {
                for text in [start, test, step] {
                    self.names.extend(assigned_in(text));
                }
            }
        }
        self.of_list(body, functions);
    }

    fn of_list(&mut self, list: &List, functions: &Functions) {
        for (_, pipe) in list {
            for command in &pipe.commands {
                self.of_command(command, functions);
            }
        }
    }

    fn of_command(&mut self, command: &Command, functions: &Functions) {
        match command {
            Command::Simple { words, .. } => self.of_words(words, functions),
            Command::Test(words) => words.iter().for_each(|word| self.of_word(word)),
            Command::Arithmetic(sum) => self.names.extend(assigned_in(sum)),
            Command::If { arms, otherwise } => {
                for (test, body) in arms {
                    self.of_list(test, functions);
                    self.of_list(body, functions);
                }
                self.of_list(otherwise, functions);
            }
            Command::Loop { kind, body, .. } => self.of_loop(kind, body, functions),
            Command::Case { arms, .. } => arms.iter().for_each(|arm| self.of_list(&arm.body, functions)),
            Command::Group(list) => self.of_list(list, functions),
            Command::Redirected(command, _) => self.of_command(command, functions),
            Command::Either(one, other) => {
                self.of_list(one, functions);
                self.of_list(other, functions);
            }
            Command::Subshell(_) | Command::Function { .. } => {}
        }
    }

    /// `$((NAME = …))`, `${NAME:=…}`
    fn of_word(&mut self, word: &Raw) {
        for part in &word.parts {
            let Part::Variable { expression, .. } = part else { continue };
            match expression.strip_prefix("((") {
                Some(sum) => self.names.extend(assigned_in(sum)),
                None if expression.contains('=') => {
                    let ends = |c: char| !(c.is_ascii_alphanumeric() || c == '_');
                    self.names.extend(expression.split(ends).next().map(str::to_owned));
                }
                None => {}
            }
        }
    }

    fn of_words(&mut self, words: &[Raw], functions: &Functions) {
        words.iter().for_each(|word| self.of_word(word));
        let leading: Vec<_> = words.iter().map_while(assignment).collect();
        let mut words = &words[leading.len()..];
        if words.is_empty() {
            self.names.extend(leading.into_iter().map(|one| one.name));
            return;
        }
        let prefixes = ["exec", "time", "command", "builtin", "nohup"];
        while words.len() > 1 && words[0].plain().is_some_and(|w| prefixes.contains(&w.as_str())) {
            words = &words[1..];
        }
        let Some(first) = words.first().and_then(Raw::plain) else {
            // It may be anything.
            self.everything |= !functions.is_empty();
            return;
        };
        if let Some(body) = functions.get(&first) {
            let fresh = self.seen.insert(first);
            if self.seen.len() > MOST_CALLS {
                self.everything = true;
            } else if fresh {
                self.of_list(body, functions);
            }
            return;
        }
        match first.as_str() {
            "export" | "local" | "declare" | "readonly" | "typeset" | "unset" | "read" | "mapfile"
            | "readarray" | "printf" | "getopts" | "let" => {
                // A name for another one: whatever it is given, any variable may be.
                let refers =
                    |word: &Raw| word.plain().is_some_and(|w| w.starts_with(['-', '+']) && w.contains('n'));
                let declares = matches!(first.as_str(), "local" | "declare" | "typeset");
                self.everything |= declares && words[1..].iter().any(refers);
                for word in &words[1..] {
                    let Some(text) = word.plain() else {
                        match assignment(word) {
                            Some(one) => self.names.extend([one.name]),
                            None => self.everything |= first != "printf",
                        }
                        continue;
                    };
                    self.names.extend(assigned_in(&text));
                    let is_name =
                        !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
                    self.names.extend(is_name.then_some(text));
                }
                self.names.extend(["REPLY", "OPTARG", "OPTIND"].map(str::to_owned));
            }
            "shift" => self.arguments = true,
            "set" => {
                self.arguments = true;
                // Options stay options.
                let replaces =
                    |word: &Raw| word.plain().is_none_or(|w| w == "--" || !w.starts_with(['-', '+']));
                self.new_arguments |= words[1..].iter().any(replaces);
            }
            "cd" | "pushd" | "popd" => self.folder = true,
            "eval" | "source" | "." => self.everything = true,
            _ => {}
        }
    }
}

/// A flag, a number or a file that commands would set.
#[derive(Debug)]
pub(super) struct Named {
    pub line: usize,
    pub name: String,
    /// In the value of a variable, where a training command may take it from.
    pub kept: bool,
}

/// Flags, numbers and files that the commands of a list would set.
pub(super) fn flags_in(list: &[(Link, Pipe)]) -> Vec<Named> {
    let mut flags = Vec::new();
    add_list(list, &mut flags);
    flags.truncate(MOST_NAMED);
    flags
}

fn add_list(list: &[(Link, Pipe)], flags: &mut Vec<Named>) {
    for (_, pipe) in list {
        pipe.commands.iter().for_each(|command| add_command(command, flags));
    }
}

fn add_command(command: &Command, flags: &mut Vec<Named>) {
    if flags.len() > MOST_NAMED {
        return;
    }
    match command {
        Command::Simple { words, streams } => {
            if words
                .first()
                .and_then(Raw::plain)
                .is_none_or(|w| !matches!(w.as_str(), "echo" | "printf" | "["))
            {
                add_words(words, false, flags);
            }
            add_files(streams, flags);
        }
        Command::If { arms, otherwise } => {
            arms.iter().for_each(|(_, body)| add_list(body, flags));
            add_list(otherwise, flags);
        }
        Command::Loop { body, .. } => add_list(body, flags),
        Command::Case { arms, .. } => arms.iter().for_each(|arm| add_list(&arm.body, flags)),
        Command::Group(list) | Command::Subshell(list) => add_list(list, flags),
        Command::Redirected(command, streams) => {
            add_command(command, flags);
            add_files(streams, flags);
        }
        Command::Test(_) | Command::Arithmetic(_) | Command::Function { .. } | Command::Either(..) => {}
    }
}

fn add_words(words: &[Raw], kept: bool, flags: &mut Vec<Named>) {
    for word in words {
        add_words(word.members.as_deref().unwrap_or_default(), true, flags);
        // Variables within are no flags of this branch.
        let text: String = word
            .parts
            .iter()
            .map(|part| match part {
                Part::Text { text, .. } => text.as_str(),
                _ => " ",
            })
            .collect();
        let said = assignment(word).and_then(|one| text.split_once('=').map(|(_, value)| (one.name, value)));
        // Numbers that are set here decide what is known elsewhere.
        if let Some((name, value)) = &said
            && value.parse::<u64>().is_ok()
        {
            flags.push(Named { line: word.line, name: name.clone(), kept: true });
        }
        let text = said.as_ref().map_or(text.as_str(), |(_, value)| value);
        let pieces = text.split_whitespace().map(|piece| piece.trim_end_matches('='));
        let pieces = pieces.filter(|piece| piece.starts_with("--") && piece.len() > 2);
        let kept = kept || said.is_some();
        let named = |piece: &str| Named { line: word.line, name: piece.to_owned(), kept };
        flags.extend(pieces.take(MOST_NAMED).map(named));
    }
}

fn add_files(streams: &Streams, flags: &mut Vec<Named>) {
    for output in &streams.outputs {
        if let Output::File { path, .. } = output
            && let Some(name) = path.plain().filter(|name| name.ends_with(".json"))
        {
            flags.push(Named { line: path.line, name, kept: false });
        }
    }
}
