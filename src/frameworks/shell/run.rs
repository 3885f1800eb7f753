//! Follows a parsed script as far as its text decides: lists, pipes, branches, loops, functions, other files. No
//! program is started; what only a running shell knows stays unknown.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::parse::{
    Arm, ArmEnd, Command, Input, Link, List, Loop, Output, Part, Pipe, Raw, Streams, parse, parse_sourced,
};
use super::patterns::matches;
use super::printed::held;
use super::state::{Branch, Flow, State, Status, Variable, known, loose, unknown};
use super::undecided::{Effects, flags_in};
use super::{Files, ImportError, Launch, UNKNOWN, UNSET, UNTOLD, Word, as_value, shown};

/// Commands after which a script is taken to loop for ever.
const MOST_COMMANDS: u32 = 200_000;
/// Most turns of a loop that are followed.
const MOST_TURNS: usize = 10_000;
/// Most files that a script may source, counted as often as it does.
const MOST_FILES: u32 = 64;
/// Most words and characters of an expansion that are kept.
pub(super) const LONGEST: usize = 1 << 20;
/// Most characters that all expansions of a script may make.
const MOST_WORK: usize = 1 << 28;
/// Most calls inside one another: each is read by a call inside the one before.
pub(super) const MOST_DEPTH: usize = 48;
/// Most commands inside one another.
const MOST_NESTED: usize = 256;

/// What a script starts and says.
pub(super) struct Shell<'f> {
    pub(super) files: &'f Files<'f>,
    pub(super) state: State,
    pub(super) flow: Flow,
    /// States that left an undecided branch for the end of a loop or function.
    pending: Vec<Branch>,
    /// Files that are being read, each asked for by the one before.
    pub(super) sources: Vec<String>,
    sourced: u32,
    /// The script has a Slurm header.
    pub(super) slurm: bool,
    /// Bytes that it has written into files.
    pub(super) kept: usize,
    depth: usize,
    nested: usize,
    /// Expansions inside one another.
    pub(super) expanding: usize,
    commands: u32,
    work: usize,
    /// A test was decided by what nobody gave: a variable that is not set, the script's arguments.
    pub(super) assumed: bool,
    /// The status of the last `$(…)` of a command.
    pub(super) substitution: Option<Status>,
    /// Inside what may not run.
    pub(super) uncertain: u32,
    /// Loops inside one another.
    pub(super) loops: u32,
    /// The line of the here-document that a command reads.
    pub(super) document: Option<usize>,
    fault: Option<String>,
    /// Training commands.
    pub(super) found: Vec<Launch>,
    /// Those that may not run.
    pub(super) perhaps: Vec<Launch>,
    /// Flags that stand without a command.
    pub(super) arguments: Vec<Word>,
    /// Variables before them.
    pub(super) beside: BTreeMap<String, String>,
    /// A file that could have set anything was not read.
    pub(super) unread: bool,
    /// What was decided without knowing, for people.
    pub(super) notes: Vec<String>,
}

pub(super) type Run<T> = Result<T, ImportError>;

/// A path that a script names, from the script's folder; none where only a running shell knows it. A folder that a
/// command finds out, such as `$(dirname "$0")`, is taken for that of the file that asks: `asks`, if it was sourced.
fn from_folder(path: &str, asks: Option<&str>) -> Option<String> {
    let beside = path.strip_prefix(UNKNOWN).and_then(|rest| rest.strip_prefix('/'));
    let path = match beside {
        Some(rest) => {
            let folder = asks.and_then(|own| own.rsplit_once('/')).map(|(folder, _)| folder);
            folder.map_or_else(|| rest.to_owned(), |folder| format!("{folder}/{rest}"))
        }
        None => path.to_owned(),
    };
    known(&path).then(|| plain_path(&path))
}

/// A path without `.`, `..` and empty parts, as far as it goes.
pub(super) fn plain_path(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." if parts.last().is_some_and(|last| *last != ".." && known(last)) => {
                parts.pop();
            }
            ".." if parts.is_empty() && path.starts_with('/') => {}
            part => parts.push(part),
        }
    }
    let start = if path.starts_with('/') { "/" } else { "" };
    format!("{start}{}", parts.join("/"))
}

/// A path from a folder.
pub(super) fn in_folder(folder: &str, path: &str) -> String {
    let apart = folder.is_empty() || path.starts_with(['/', '~', UNKNOWN, UNSET]);
    if apart { path.to_owned() } else { format!("{folder}/{path}") }
}

/// What tells a file from others: its path from the script's folder, else the part of the path that is known; none
/// where that is nothing.
pub(super) fn file_key(path: &str, asks: Option<&str>) -> Option<String> {
    let path = as_value(path);
    let named = path.chars().any(char::is_alphanumeric);
    from_folder(&path, asks).or_else(|| Some(plain_path(&path))).filter(|_| named)
}

impl<'f> Shell<'f> {
    /// A shell that has run nothing yet.
    pub(super) fn new(files: &'f Files<'f>) -> Self {
        Self {
            files,
            state: State { status: Some(0), ..State::default() },
            flow: Flow::Next,
            pending: Vec::new(),
            sources: Vec::new(),
            sourced: 0,
            slurm: false,
            kept: 0,
            depth: 0,
            nested: 0,
            expanding: 0,
            commands: 0,
            work: 0,
            assumed: false,
            substitution: None,
            uncertain: 0,
            loops: 0,
            document: None,
            fault: None,
            beside: BTreeMap::new(),
            found: Vec::new(),
            perhaps: Vec::new(),
            arguments: Vec::new(),
            unread: false,
            notes: Vec::new(),
        }
    }

    /// Counts what an expansion made.
    pub(super) fn worked(&mut self, characters: usize) {
        self.work = self.work.saturating_add(characters);
        if self.work > MOST_WORK {
            self.fail("the texts of the script grow for longer than can be followed");
        }
    }

    /// Ends the script with the next command.
    pub(super) fn fail(&mut self, why: &str) {
        self.fault.get_or_insert_with(|| why.to_owned());
    }

    pub(super) fn note(&mut self, text: String) {
        if !self.notes.contains(&text) {
            self.notes.push(text);
        }
    }

    /// Runs a list; the status of its last command, where the text decides it.
    pub(super) fn list(&mut self, list: &List) -> Run<Status> {
        for (link, pipe) in list {
            let wanted = match link {
                Link::Then => None,
                Link::And => Some(true),
                Link::Or => Some(false),
            };
            let goes = wanted.map_or(Some(true), |wanted| self.state.status.map(|s| (s == 0) == wanted));
            // Of `test && command` only the test may rest on what nobody gave.
            let assumed = *link != Link::Then && self.assumed;
            if *link == Link::Then {
                self.assumed = false;
            }
            match goes {
                Some(false) => {}
                Some(true) if assumed => self.assumed_way(|shell| shell.pipe(pipe))?,
                Some(true) => {
                    self.pipe(pipe)?;
                }
                None => {
                    let other = self.branch(|shell| shell.pipe(pipe))?;
                    self.note_undecided(std::slice::from_ref(&(*link, pipe.clone())), &other);
                    self.join(vec![other]);
                }
            }
            if self.flow != Flow::Next {
                break;
            }
        }
        Ok(self.state.status)
    }

    fn pipe(&mut self, pipe: &Pipe) -> Run<Status> {
        if let ([command], false) = (pipe.commands.as_slice(), pipe.background) {
            self.command(command)?;
        } else if pipe.background {
            let alone = Pipe { background: false, ..pipe.clone() };
            self.subshell(|shell| shell.pipe(&alone))?;
            self.state.status = Some(0);
        } else {
            self.piped(&pipe.commands)?;
        }
        if pipe.negated {
            self.state.status = self.state.status.map(|status| u8::from(status == 0));
        }
        Ok(self.state.status)
    }

    /// The commands of a pipe, each in a shell of its own: what one prints the next one reads.
    fn piped(&mut self, commands: &[Command]) -> Run<()> {
        let (outer, mut printed) = (self.state.input.clone(), self.state.input.clone());
        let kept = self.state.output.take();
        let mut all = Some(0);
        for (at, command) in commands.iter().enumerate() {
            let last = at + 1 == commands.len();
            self.state.input = printed.take();
            self.state.output = if last { kept.clone() } else { Some(Some(String::new())) };
            let status = self.subshell(|shell| shell.command(command))?;
            all = if status == Some(0) { all } else { status };
            if !last {
                printed = self.state.output.take().flatten();
            }
        }
        self.state.input = outer;
        if self.state.options.pipe_fails {
            self.state.status = all.filter(|_| self.state.status.is_some());
        }
        Ok(())
    }

    /// Runs something whose variables nobody sees: what it prints and writes stays.
    pub(super) fn subshell(&mut self, run: impl FnOnce(&mut Self) -> Run<Status>) -> Run<Status> {
        let before = self.state.clone();
        let pending = std::mem::take(&mut self.pending);
        self.state.status = run(self)?;
        for branch in std::mem::replace(&mut self.pending, pending) {
            self.state = std::mem::take(&mut self.state).joined(branch.state);
        }
        self.flow = Flow::Next;
        let after = std::mem::replace(&mut self.state, before);
        self.state.written = after.written;
        self.state.output = after.output;
        self.state.input = after.input;
        self.state.status = after.status;
        Ok(self.state.status)
    }

    /// What commands print in place of `$(…)`.
    pub(super) fn substituted(&mut self, list: Option<&List>) -> String {
        let Some(list) = list else {
            self.substitution = Some(None);
            return unknown();
        };
        let outer = self.state.output.replace(Some(String::new()));
        self.uncertain += 1;
        // `$(< FILE)`
        let ran = match file_alone(list) {
            Some(path) => {
                let path = self.joined(path);
                let text = self.text_at(&path);
                self.print(text);
                Ok(Some(0))
            }
            None => self.nested(|shell| shell.subshell(|shell| shell.list(list))),
        };
        self.uncertain -= 1;
        let text = std::mem::replace(&mut self.state.output, outer).flatten();
        self.substitution = Some(self.state.status);
        match (ran, text) {
            (Ok(_), Some(text)) => text.trim_end_matches('\n').to_owned(),
            (Err(error), _) => {
                self.fail(&error.message);
                unknown()
            }
            _ => unknown(),
        }
    }

    /// A call inside others.
    pub(super) fn nested<T>(&mut self, run: impl FnOnce(&mut Self) -> Run<T>) -> Run<T> {
        self.depth += 1;
        if self.depth > MOST_DEPTH {
            return Err(ImportError::new(1, "the script calls itself too deeply"));
        }
        let result = run(self);
        self.depth -= 1;
        result
    }

    fn command(&mut self, command: &Command) -> Run<Status> {
        if let Some(why) = self.fault.take() {
            return Err(ImportError::new(line_of(command).unwrap_or(1), why));
        }
        self.commands += 1;
        if self.commands > MOST_COMMANDS {
            return Err(ImportError::new(1, "the script loops for longer than can be followed"));
        }
        self.nested += 1;
        if self.nested > MOST_NESTED {
            return Err(ImportError::new(line_of(command).unwrap_or(1), "commands are nested too deeply"));
        }
        let status = self.run(command)?;
        self.nested -= 1;
        self.state.status = status;
        match self.fault.take() {
            Some(why) => Err(ImportError::new(line_of(command).unwrap_or(1), why)),
            None => Ok(status),
        }
    }

    fn run(&mut self, command: &Command) -> Run<Status> {
        match command {
            Command::Simple { words, streams } if streams.outputs.is_empty() && streams.input.is_none() => {
                self.simple(words)
            }
            Command::Simple { words, streams } => self.redirected(streams, |shell| {
                shell.document = streams.document();
                shell.simple(words)
            }),
            Command::Redirected(command, streams) => self.redirected(streams, |shell| shell.command(command)),
            Command::Test(words) => Ok(self.double_test(words)),
            Command::Arithmetic(sum) => Ok(self.sum(sum).map(|n| u8::from(n == 0))),
            Command::If { arms, otherwise } => self.branches(arms, otherwise),
            Command::Loop { kind, body, line } => self.turns(kind, body, *line),
            Command::Case { word, arms } => {
                let value = self.joined(word);
                self.assumed = value.contains(UNSET);
                self.arms(&value.replace(UNSET, ""), arms)
            }
            Command::Group(list) => self.list(list),
            Command::Subshell(list) => self.subshell(|shell| shell.list(list)),
            Command::Function { name, body } => {
                self.state.functions.insert(name.clone(), Arc::clone(body));
                Ok(Some(0))
            }
            Command::Either(one, other) => {
                let branch = self.branch(|shell| shell.list(one))?;
                self.list(other)?;
                self.join(vec![branch]);
                Ok(self.state.status)
            }
        }
    }

    /// Runs something with its files: what it reads is told before, what it prints is written after.
    pub(super) fn redirected(
        &mut self,
        streams: &Streams,
        run: impl FnOnce(&mut Self) -> Run<Status>,
    ) -> Run<Status> {
        let outer_input = match &streams.input {
            None => None,
            Some(input) => {
                let text = self.text_of_input(input);
                Some(std::mem::replace(&mut self.state.input, text))
            }
        };
        let status;
        if streams.outputs.is_empty() {
            status = run(self)?;
        } else {
            let outer = self.state.output.replace(Some(String::new()));
            status = run(self)?;
            let printed = std::mem::replace(&mut self.state.output, outer).flatten();
            self.deliver(&streams.outputs, printed);
        }
        if let Some(input) = outer_input {
            self.state.input = input;
        }
        Ok(status)
    }

    fn text_of_input(&mut self, input: &Input) -> Option<String> {
        match input {
            Input::Elsewhere => None,
            Input::Text(cell) => cell.get().map(|body| self.joined(body)),
            Input::File(path) => match path.parts.as_slice() {
                [Part::Process(list)] => {
                    let list = list.clone()?;
                    let text = self.substituted(Some(&list));
                    Some(text + "\n").filter(|text| known(text))
                }
                _ => {
                    let path = self.joined(path);
                    self.text_at(&path)
                }
            },
        }
    }

    /// Writes what a command printed: the last of its files gets it.
    fn deliver(&mut self, outputs: &[Output], printed: Option<String>) {
        for (at, output) in outputs.iter().enumerate() {
            let text = if at + 1 == outputs.len() { printed.clone() } else { Some(String::new()) };
            match output {
                Output::Elsewhere => {}
                Output::File { path, append } => {
                    let name = self.joined(path);
                    self.keep(&name, *append, text, path.line);
                }
                Output::Errors(path) => {
                    let name = self.joined(path);
                    self.keep(&name, false, None, path.line);
                    if at + 1 == outputs.len() {
                        // Standard output is not this one.
                        self.print(printed.clone());
                    }
                }
            }
        }
    }

    // Branches.

    /// Runs what may or may not run, on a copy of the state.
    pub(super) fn branch(&mut self, run: impl FnOnce(&mut Self) -> Run<Status>) -> Run<Branch> {
        let before = self.state.clone();
        self.uncertain += 1;
        let status = run(self)?;
        self.uncertain -= 1;
        let mut state = std::mem::replace(&mut self.state, before);
        state.status = status;
        // Copies are work as well.
        self.worked(self.state.variables.len() * 16);
        Ok(Branch { flow: std::mem::take(&mut self.flow), state })
    }

    /// A way that rests on what nobody gave: where it ends the script before its training command, the other way is
    /// meant.
    fn assumed_way(&mut self, run: impl FnOnce(&mut Self) -> Run<Status>) -> Run<()> {
        let (before, found) = (self.state.clone(), self.found.len() + self.perhaps.len());
        run(self)?;
        if self.flow == Flow::Exit && self.found.len() + self.perhaps.len() == found {
            self.flow = Flow::Next;
            self.state = before;
        }
        Ok(())
    }

    /// Goes on with what is the same in all branches that go on.
    pub(super) fn join(&mut self, others: Vec<Branch>) {
        if others.is_empty() {
            return;
        }
        let own = Branch { flow: std::mem::take(&mut self.flow), state: std::mem::take(&mut self.state) };
        let (going, mut leaving): (Vec<Branch>, Vec<Branch>) =
            std::iter::once(own).chain(others).partition(|branch| branch.flow == Flow::Next);
        // A script that ends there starts no training afterwards.
        let mut ended = None;
        leaving.retain_mut(|branch| {
            let ends = branch.flow == Flow::Exit;
            if ends {
                ended = Some(std::mem::take(&mut branch.state));
            }
            !ends
        });
        let joined = going.into_iter().map(|branch| branch.state).reduce(State::joined);
        (self.flow, self.state) = match (joined, leaving.pop()) {
            (Some(state), last) => {
                leaving.extend(last);
                (Flow::Next, state)
            }
            (None, Some(last)) => (last.flow, last.state),
            (None, None) => (Flow::Exit, ended.unwrap_or_default()),
        };
        self.pending.extend(leaving);
    }

    /// Says which flags and files a branch that may or may not be taken would set.
    fn note_undecided(&mut self, body: &[(Link, Pipe)], branch: &Branch) {
        if branch.flow == Flow::Exit {
            return;
        }
        let flags = flags_in(body);
        if let Some((line, _)) = flags.first() {
            let names: Vec<&str> = flags.iter().map(|f| f.1.as_str()).collect();
            let names = names.join(" ");
            self.note(format!("line {line}: whether {names} is set is known only when the script runs"));
        }
    }

    fn branches(&mut self, arms: &[(List, List)], otherwise: &List) -> Run<Status> {
        let mut others = Vec::new();
        let mut taken = false;
        for (test, body) in arms {
            self.assumed = false;
            let status = self.list(test)?;
            if self.flow != Flow::Next {
                taken = true;
                break;
            }
            match (status, self.assumed) {
                (Some(0), false) => {
                    self.list(body)?;
                    taken = true;
                }
                (Some(0), true) => {
                    // Where its end is taken back, what stands behind it is meant.
                    let exits = self.state.clone();
                    self.list(body)?;
                    taken = !(self.flow == Flow::Exit && self.nothing_found());
                    if !taken {
                        self.flow = Flow::Next;
                        self.state = exits;
                    }
                }
                (Some(_), _) => {}
                (None, _) => {
                    let other = self.branch(|shell| shell.list(body))?;
                    self.note_undecided(body, &other);
                    others.push(other);
                }
            }
            if taken {
                break;
            }
        }
        if !taken {
            self.state.status = Some(0);
            let assumed = std::mem::take(&mut self.assumed);
            if assumed && others.is_empty() {
                self.assumed_way(|shell| shell.list(otherwise))?;
            } else {
                self.list(otherwise)?;
            }
        }
        self.assumed = false;
        self.join(others);
        Ok(self.state.status)
    }

    fn nothing_found(&self) -> bool {
        self.found.is_empty() && self.perhaps.is_empty()
    }

    /// The arms of `case`.
    fn arms(&mut self, value: &str, arms: &[Arm]) -> Run<Status> {
        let (mut others, mut taken) = (Vec::new(), false);
        let assumed = std::mem::take(&mut self.assumed);
        for (at, arm) in arms.iter().enumerate() {
            match self.fits(value, &arm.patterns) {
                Some(false) => {}
                Some(true) => {
                    self.assumed_if(assumed, |shell| shell.arm(value, &arms[at..]))?;
                    taken = true;
                    break;
                }
                None => {
                    let other = self.branch(|shell| shell.arm(value, &arms[at..]))?;
                    self.note_undecided(&arm.body, &other);
                    others.push(other);
                }
            }
        }
        if !taken {
            self.state.status = Some(0);
        }
        self.join(others);
        Ok(self.state.status)
    }

    fn assumed_if(&mut self, assumed: bool, run: impl FnOnce(&mut Self) -> Run<Status>) -> Run<()> {
        if assumed { self.assumed_way(run) } else { run(self).map(drop) }
    }

    fn fits(&mut self, value: &str, patterns: &[Raw]) -> Option<bool> {
        let mut fits = Some(false);
        for pattern in patterns {
            let pattern = self.pattern(pattern);
            let one = if pattern == "*" {
                Some(true)
            } else if known(value) && known(&pattern) {
                matches(&pattern, value, self.state.options.ignore_case)
            } else {
                None
            };
            match one {
                Some(true) => return Some(true),
                Some(false) => {}
                None => fits = None,
            }
        }
        fits
    }

    /// The first of these arms, and what follows it.
    fn arm(&mut self, value: &str, arms: &[Arm]) -> Run<Status> {
        for (at, arm) in arms.iter().enumerate() {
            self.list(&arm.body)?;
            if self.flow != Flow::Next {
                break;
            }
            match arm.end {
                ArmEnd::Done => break,
                ArmEnd::Through => {}
                ArmEnd::Further => return self.nested(|shell| shell.arms(value, &arms[at + 1..])),
            }
        }
        Ok(self.state.status)
    }

    // Loops.

    fn turns(&mut self, kind: &Loop, body: &List, line: usize) -> Run<Status> {
        let outer = std::mem::take(&mut self.pending);
        self.loops += 1;
        let decided = match kind {
            Loop::While { test, until } => self.while_loop(test, *until, body)?,
            Loop::For { name, words } => self.for_loop(name, words.as_deref(), body)?,
            Loop::Count { start, test, step } => {
                self.sum(start);
                self.count_loop(test, step, body)?
            }
        };
        if !decided {
            self.undecided_loop(kind, body, line)?;
        }
        self.loops -= 1;
        self.end_of_loop();
        self.pending.splice(0..0, outer);
        Ok(self.state.status)
    }

    /// Turns a `while` loop; whether its text decides them all.
    fn while_loop(&mut self, test: &List, until: bool, body: &List) -> Run<bool> {
        let mut status = Some(0);
        for _ in 0..MOST_TURNS {
            let Some(holds) = self.list(test)?.map(|status| status == 0) else { return Ok(false) };
            if self.flow != Flow::Next {
                return Ok(true);
            }
            if holds == until {
                self.state.status = status;
                return Ok(true);
            }
            status = self.list(body)?;
            if !self.turned() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn for_loop(&mut self, name: &str, words: Option<&[Raw]>, body: &List) -> Run<bool> {
        let items: Vec<Word> = match words {
            // Names of files are not looked up.
            Some(words) if words.iter().any(is_glob) => return Ok(false),
            Some(words) => self.all_fields(words),
            None => {
                let given = self.state.positional.clone();
                given
                    .iter()
                    .flat_map(|all| all.iter())
                    .map(|text| Word { text: text.clone(), line: 0 })
                    .collect()
            }
        };
        if items.len() > MOST_TURNS || items.iter().any(|word| loose(&word.text)) {
            return Ok(false);
        }
        for item in items {
            self.put(name, None, false, item.text);
            self.list(body)?;
            if !self.turned() {
                break;
            }
        }
        Ok(true)
    }

    fn count_loop(&mut self, test: &str, step: &str, body: &List) -> Run<bool> {
        for _ in 0..MOST_TURNS {
            let holds = if test.trim().is_empty() { Some(1) } else { self.sum(test) };
            match holds {
                None => return Ok(false),
                Some(0) => return Ok(true),
                Some(_) => self.list(body)?,
            };
            if !self.turned() {
                return Ok(true);
            }
            self.sum(step);
        }
        Ok(false)
    }

    /// After a turn: whether another may follow.
    fn turned(&mut self) -> bool {
        if self.flow == Flow::Continue(1) {
            self.flow = Flow::Next;
        }
        let (next, rest): (Vec<Branch>, Vec<Branch>) = std::mem::take(&mut self.pending)
            .into_iter()
            .partition(|branch| branch.flow == Flow::Continue(1));
        self.pending = rest;
        if self.flow == Flow::Next || self.flow == Flow::Break(1) {
            for branch in next {
                self.state = std::mem::take(&mut self.state).joined(branch.state);
            }
        } else if let Some(state) = next.into_iter().map(|branch| branch.state).reduce(State::joined) {
            let own = Branch {
                flow: std::mem::take(&mut self.flow),
                state: std::mem::replace(&mut self.state, state),
            };
            if own.flow != Flow::Exit {
                self.pending.push(own);
            }
        }
        self.flow == Flow::Next
    }

    /// A loop of which it is not known how often it turns: what it could assign is unknown.
    fn undecided_loop(&mut self, kind: &Loop, body: &List, line: usize) -> Run<()> {
        let mut effects = Effects::default();
        effects.of_loop(kind, body, &self.state.functions);
        self.forget(&effects);
        let branch = self.branch(|shell| shell.list(body))?;
        let flags = flags_in(body);
        if !flags.is_empty() {
            let names: Vec<&str> = flags.iter().map(|f| f.1.as_str()).collect();
            let names = names.join(" ");
            self.note(format!(
                "line {line}: how often this loop sets {names} is known only when the script runs"
            ));
        }
        let written = branch.state.written;
        for key in written
            .keys()
            .filter(|key| written.get(*key) != self.state.written.get(*key))
            .cloned()
            .collect::<Vec<_>>()
        {
            self.forget_file(&key, line);
        }
        self.forget(&effects);
        self.state.status = None;
        Ok(())
    }

    /// States that left a loop meet behind it; those that leave several go on.
    fn end_of_loop(&mut self) {
        let outward = |flow: Flow| match flow {
            Flow::Break(1) => Flow::Next,
            Flow::Break(n) => Flow::Break(n - 1),
            Flow::Continue(n) if n > 1 => Flow::Continue(n - 1),
            flow => flow,
        };
        self.flow = outward(self.flow);
        let others = std::mem::take(&mut self.pending).into_iter();
        let others: Vec<Branch> =
            others.map(|branch| Branch { flow: outward(branch.flow), ..branch }).collect();
        self.join(others);
    }

    // Functions and other files.

    /// Calls a function.
    pub(super) fn call(&mut self, body: &List, arguments: Vec<String>) -> Run<Status> {
        let before = self.state.positional.replace(Arc::new(arguments));
        let outer = std::mem::take(&mut self.pending);
        let loops = std::mem::take(&mut self.loops);
        self.state.frames.push(Default::default());
        self.nested(|shell| shell.list(body))?;
        self.end_of_call();
        self.loops = loops;
        if let Some(frame) = self.state.frames.pop() {
            for (name, value) in frame {
                match value {
                    Some(value) => self.state.variables.insert(name, value),
                    None => self.state.variables.remove(&name),
                };
            }
        }
        self.pending.splice(0..0, outer);
        self.state.positional = before;
        Ok(self.state.status)
    }

    fn end_of_call(&mut self) {
        if self.flow == Flow::Return {
            self.flow = Flow::Next;
        }
        let others = std::mem::take(&mut self.pending).into_iter().map(|branch| Branch {
            flow: if branch.flow == Flow::Return { Flow::Next } else { branch.flow },
            ..branch
        });
        let others = others.collect();
        self.join(others);
    }

    /// The path of a file that the script names, from the script's folder.
    fn path_of(&self, path: &str) -> Option<String> {
        let path = in_folder(&self.state.folder, path);
        from_folder(&as_value(&path), self.sources.last().map(String::as_str))
    }

    /// What tells a file that the script names from others.
    pub(super) fn key_of(&self, path: &str) -> Option<String> {
        file_key(&in_folder(&self.state.folder, path), self.sources.last().map(String::as_str))
    }

    /// What a file holds that the script has written or that stands beside it.
    pub(super) fn text_of_file(&self, key: &str) -> Result<String, String> {
        held(&self.state.written, key, self.files).map(|(text, _)| text)
    }

    /// The same by the path as the script says it; none where it cannot be read.
    pub(super) fn text_at(&self, path: &str) -> Option<String> {
        self.text_of_file(&self.key_of(path)?).ok()
    }

    /// Whether a script that could be sourced is there; not known of any other file.
    pub(super) fn is_there(&self, path: &str) -> Option<bool> {
        let path = self.path_of(path).filter(|p| p.ends_with(".sh") || p.ends_with(".env"))?;
        self.text_of_file(&path).is_ok().then_some(true)
    }

    /// The commands of a file that the script asks for, with its path.
    fn followed(&mut self, path: &str, line: usize) -> Result<(String, List), String> {
        let path = self.path_of(path).ok_or_else(|| format!("its path {UNTOLD}"))?;
        if self.sources.contains(&path) {
            return Err("it asks for itself".to_owned());
        }
        self.sourced += 1;
        if self.sourced > MOST_FILES {
            return Err(format!("more than {MOST_FILES} files are asked for"));
        }
        let text = self.text_of_file(&path)?;
        let list = parse_sourced(&text, line).map_err(|e| format!("its line {}: {}", e.line, e.message))?;
        Ok((path, list))
    }

    /// `source FILE ARGUMENTS`: its commands run here. A file that cannot be followed is named and changes nothing.
    pub(super) fn source(&mut self, path: &str, arguments: &[Word], line: usize) -> Run<Status> {
        let (path, list) = match self.followed(path, line) {
            Ok(followed) => followed,
            Err(reason) => {
                self.unread |= reason != "it asks for itself";
                self.note(format!("line {line}: `{}` is not read: {reason}", shown(path)));
                return Ok(None);
            }
        };
        self.sources.push(path);
        let own: Vec<String> = arguments.iter().map(|w| w.text.clone()).collect();
        let before = (!own.is_empty()).then(|| self.state.positional.replace(Arc::new(own)));
        let outer = std::mem::take(&mut self.pending);
        self.nested(|shell| shell.list(&list))?;
        self.end_of_call();
        self.pending.splice(0..0, outer);
        if let Some(before) = before {
            self.state.positional = before;
        }
        self.sources.pop();
        Ok(self.state.status)
    }

    /// A script that is started, with only what is exported: a file beside this one. None where it cannot be read.
    pub(super) fn script(&mut self, path: &str, arguments: &[Word], line: usize) -> Run<Option<Status>> {
        let Ok((path, list)) = self.followed(path, line) else { return Ok(None) };
        self.sources.push(path);
        let arguments = arguments.iter().map(|w| w.text.clone()).collect();
        let status = self.child(Some(arguments), &list)?;
        self.sources.pop();
        Ok(Some(status))
    }

    /// Runs commands as a program of their own does.
    pub(super) fn child(&mut self, arguments: Option<Vec<String>>, list: &List) -> Run<Status> {
        self.nested(|shell| {
            shell.subshell(|shell| {
                shell.state.variables.retain(|_, variable| variable.exported);
                shell.state.functions.clear();
                shell.state.frames.clear();
                shell.state.options = Default::default();
                shell.state.positional = arguments.map(Arc::new);
                shell.list(list)
            })
        })
    }

    /// A text that holds a script of its own: where it stands and what starts it is told of its training commands.
    pub(super) fn script_text(&mut self, text: &str, line: usize, launcher: &[Word]) -> Run<Status> {
        let list = parse(&as_value(text)).map_err(|e| shifted(e, line))?;
        self.launched_by(line, launcher, |shell| shell.child(None, &list))
    }

    /// Runs what starts training commands for a launcher.
    pub(super) fn launched_by(
        &mut self,
        line: usize,
        launcher: &[Word],
        run: impl FnOnce(&mut Self) -> Run<Status>,
    ) -> Run<Status> {
        let (found, perhaps) = (self.found.len(), self.perhaps.len());
        let status = run(self)?;
        let (found, perhaps) = (found.min(self.found.len()), perhaps.min(self.perhaps.len()));
        for launch in self.found[found..].iter_mut().chain(&mut self.perhaps[perhaps..]) {
            let shift = |w: &mut Word| w.line += line - 1;
            launch.launcher.iter_mut().for_each(shift);
            launch.script.iter_mut().for_each(shift);
            launch.arguments.iter_mut().for_each(shift);
            launch.launcher.splice(0..0, launcher.iter().cloned());
        }
        Ok(status)
    }

    /// Forgets what commands could have changed.
    fn forget(&mut self, effects: &Effects) {
        if effects.everything {
            let names: Vec<String> = self.state.variables.keys().cloned().collect();
            names.iter().for_each(|name| self.forget_name(name));
        }
        effects.names.iter().for_each(|name| self.forget_name(name));
        if effects.arguments && self.state.positional.is_some() {
            self.state.positional = Some(Arc::new(vec![unknown()]));
        }
        if effects.folder {
            self.state.folder = unknown();
        }
        if self.state.output.is_some() {
            self.state.output = Some(None);
        }
        self.state.input = None;
    }

    /// Sets an exported variable that the shell is started with.
    pub(super) fn set(&mut self, name: &str, value: String) {
        self.put(name, None, false, value);
        self.mark(name, |variable: &mut Variable| variable.exported = true);
    }
}

/// `< FILE` and nothing else.
fn file_alone(list: &List) -> Option<&Raw> {
    let [(_, pipe)] = list.as_slice() else { return None };
    let [Command::Simple { words, streams }] = pipe.commands.as_slice() else { return None };
    match &streams.input {
        Some(Input::File(path)) if words.is_empty() && streams.outputs.is_empty() => Some(path),
        _ => None,
    }
}

/// Whether a word stands for names of files.
fn is_glob(raw: &Raw) -> bool {
    raw.parts
        .iter()
        .any(|part| matches!(part, Part::Text { text, quoted: false } if text.contains(['*', '?', '['])))
}

/// The line of the first word of a command.
fn line_of(command: &Command) -> Option<usize> {
    match command {
        Command::Simple { words, .. } | Command::Test(words) => words.first().map(|word| word.line),
        Command::Redirected(command, _) => line_of(command),
        Command::Loop { line, .. } => Some(*line),
        Command::Case { word, .. } => Some(word.line),
        _ => None,
    }
}

pub(super) fn shifted(error: ImportError, line: usize) -> ImportError {
    ImportError { line: error.line + line - 1, ..error }
}
