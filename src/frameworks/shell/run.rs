//! Follows a parsed script as far as its text decides: lists, pipes, branches, loops, functions, other files. No
//! program is started; what only a running shell knows stays unknown.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::jobs::Job;
use super::parse::{Arm, ArmEnd, Command, Input, Link, List, Output, Part, Pipe, Raw, Streams};
use super::patterns::{Steps, matches};
use super::state::{Branch, Flow, State, Status, Variable, is_degree, known, unknown};
use super::undecided::{Effects, flags_in};
use super::{Files, ImportError, Launch, UNSET, Word, tells};

/// Commands after which a script is taken to loop for ever.
const MOST_COMMANDS: u32 = 200_000;
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
    pub(super) pending: Vec<Branch>,
    /// Files that are being read, each asked for by the one before.
    pub(super) sources: Vec<String>,
    pub(super) sourced: u32,
    /// The lines of the script.
    pub(super) script: Vec<String>,
    /// The Slurm job that this is, if it is one.
    pub(super) job: Option<Arc<Job>>,
    depth: usize,
    nested: usize,
    /// Expansions inside one another.
    pub(super) expanding: usize,
    commands: u32,
    work: usize,
    /// A test was decided by what nobody gave: a variable that is not set, the script's arguments.
    pub(super) assumed: bool,
    /// The last status is a success that is only hoped for: of a folder that is entered, a file that is written.
    pub(super) hoped: bool,
    /// The same of the command before this one.
    pub(super) hoped_before: bool,
    /// The status of the last `$(…)` of a command.
    pub(super) substitution: Option<Status>,
    /// Whether that is hoped for.
    pub(super) substitution_hoped: bool,
    /// Inside what may not run.
    pub(super) uncertain: u32,
    /// Loops inside one another.
    pub(super) loops: u32,
    /// The line of the here-document that a command reads.
    pub(super) document: Option<usize>,
    fault: Option<String>,
    /// Here-documents that were printed or written, where they stand, and the state there: scripts, if nothing else
    /// starts training.
    pub(super) documents: Vec<(String, usize, State)>,
    /// Scripts that are started and cannot be followed, for people.
    pub(super) not_started: Vec<String>,
    /// The first program that may start training in a way that is not followed.
    pub(super) unfollowed: Option<ImportError>,
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
    /// Variables and arguments that are used and that nothing sets.
    pub(super) unset: BTreeSet<String>,
    /// Numbers that count where a file that was not read does not set a variable.
    pub(super) defaults: BTreeMap<String, String>,
    /// Flags that say degrees, shapes or batches, in branches that may or may not be taken, with their lines.
    pub(super) undecided: BTreeSet<(usize, String)>,
    /// The last line that ended a script.
    pub(super) ended: Option<usize>,
    /// The first line that ends the script with an error, where it is read as if it went on.
    pub(super) gives_up: Option<usize>,
    /// Nodes of the job that LSF or PBS is asked for.
    pub(super) queue_nodes: Option<u32>,
    /// What the names of the variables begin with that LSF or PBS sets, in a job of theirs.
    pub(super) queue_sets: Option<&'static str>,
    /// What was decided without knowing, for people.
    pub(super) notes: Vec<String>,
}

pub(super) type Run<T> = Result<T, ImportError>;

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
            script: Vec::new(),
            job: None,
            depth: 0,
            nested: 0,
            expanding: 0,
            commands: 0,
            work: 0,
            assumed: false,
            hoped: false,
            hoped_before: false,
            substitution: None,
            substitution_hoped: false,
            uncertain: 0,
            loops: 0,
            document: None,
            fault: None,
            documents: Vec::new(),
            beside: BTreeMap::new(),
            found: Vec::new(),
            perhaps: Vec::new(),
            arguments: Vec::new(),
            unread: false,
            unset: BTreeSet::new(),
            defaults: BTreeMap::new(),
            undecided: BTreeSet::new(),
            ended: None,
            gives_up: None,
            queue_nodes: None,
            queue_sets: None,
            not_started: Vec::new(),
            unfollowed: None,
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

    /// Whether the script ends with the next command: nothing more needs to be found out for this one.
    pub(super) fn is_spent(&self) -> bool {
        self.fault.is_some()
    }

    /// Looks for a pattern and counts what that takes.
    pub(super) fn sought<T>(&mut self, seek: impl FnOnce(&mut Steps) -> Option<T>) -> Option<T> {
        if self.is_spent() {
            return None;
        }
        let mut steps = Steps::new();
        let found = seek(&mut steps);
        self.worked(steps.made());
        found
    }

    /// A copy of the state: what it holds by itself is copied, the rest shared.
    fn copied(&mut self) -> State {
        self.worked(self.state.size());
        self.state.clone()
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

    /// Runs the commands of a text, of which a shell reads a line when those before have run: aliases replace what is
    /// read behind them.
    pub(super) fn text(&mut self, list: &List) -> Run<Status> {
        let outer = Arc::clone(&self.state.replaced);
        let mut rest = list.as_slice();
        while !rest.is_empty() && self.flow == Flow::Next {
            let behind = rest.iter().skip(1).position(|(link, _)| *link == Link::Line);
            let (line, others) = rest.split_at(behind.map_or(rest.len(), |at| at + 1));
            self.state.replaced = self.state.aliases_now();
            self.list(line)?;
            rest = others;
        }
        self.state.replaced = outer;
        Ok(self.state.status)
    }

    /// Runs a list; the status of its last command, where the text decides it.
    pub(super) fn list(&mut self, list: &[(Link, Pipe)]) -> Run<Status> {
        for (link, pipe) in list {
            let wanted = match link {
                Link::Then | Link::Line => None,
                Link::And => Some(true),
                Link::Or => Some(false),
            };
            let goes = wanted.map_or(Some(true), |wanted| self.state.status.map(|s| (s == 0) == wanted));
            // What is said for the case that it fails may be meant.
            let goes = goes.filter(|_| wanted != Some(false) || !self.hoped);
            let hoped = !link.is_end() && self.hoped;
            // Of `test && command` only the test may rest on what nobody gave.
            let assumed = !link.is_end() && self.assumed;
            if link.is_end() {
                self.assumed = false;
            }
            match goes {
                Some(false) => {}
                Some(true) if link.is_end() => {
                    self.pipe(pipe)?;
                }
                Some(true) => {
                    self.way(assumed, |shell| shell.pipe(pipe))?;
                }
                None => {
                    let other = self.branch(|shell| shell.pipe(pipe))?;
                    self.note_undecided(std::slice::from_ref(&(*link, pipe.clone())), &other);
                    self.join(vec![other]);
                }
            }
            self.hoped |= hoped;
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
            self.hoped = false;
        } else {
            self.piped(&pipe.commands)?;
        }
        if pipe.negated {
            let certain = self.state.status.filter(|_| !self.hoped);
            self.state.status = certain.map(|status| u8::from(status == 0));
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
            let status = if last && self.state.options.last_pipe {
                self.command(command)?
            } else {
                self.subshell(|shell| shell.command(command))?
            };
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
        let before = self.copied();
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
        let hoped = self.hoped;
        self.uncertain += 1;
        // `$(< FILE)`
        let ran = match file_alone(list) {
            Some(path) => {
                let path = self.joined(path);
                let text = self.text_at(&path);
                self.print(text);
                Ok(Some(0))
            }
            // It is read when it runs.
            None => self.nested(|shell| shell.subshell(|shell| shell.text(list))),
        };
        self.uncertain -= 1;
        let text = std::mem::replace(&mut self.state.output, outer).flatten();
        self.substitution = Some(self.state.status);
        self.substitution_hoped = std::mem::replace(&mut self.hoped, hoped);
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

    pub(super) fn command(&mut self, command: &Command) -> Run<Status> {
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
        self.hoped_before = std::mem::take(&mut self.hoped);
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
                self.state.replaced_in.remove(name);
                if !self.state.replaced.is_empty() {
                    self.state.replaced_in.insert(name.clone(), Arc::clone(&self.state.replaced));
                }
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
        let file = |output: &Output| match output {
            Output::File { path, .. } | Output::Errors(path) => {
                !path.plain().is_some_and(|path| path.starts_with("/dev/"))
            }
            Output::Elsewhere => false,
        };
        let files = matches!(streams.input, Some(Input::File(_))) || streams.outputs.iter().any(file);
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
        self.hoped |= files && status == Some(0);
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
        let last = outputs.iter().rposition(|output| !matches!(output, Output::Errors(_)));
        if last.is_none() {
            self.print(printed.clone());
        }
        for (at, output) in outputs.iter().enumerate() {
            match output {
                Output::Elsewhere => {}
                Output::File { path, append } => {
                    let text = if Some(at) == last { printed.clone() } else { Some(String::new()) };
                    let name = self.joined(path);
                    self.keep(&name, *append, text, path.line);
                }
                Output::Errors(path) => {
                    let name = self.joined(path);
                    self.keep(&name, false, None, path.line);
                }
            }
        }
    }

    /// Runs what may or may not run, on a copy of the state.
    pub(super) fn branch(&mut self, run: impl FnOnce(&mut Self) -> Run<Status>) -> Run<Branch> {
        let before = self.copied();
        self.uncertain += 1;
        let status = run(self)?;
        self.uncertain -= 1;
        let mut state = std::mem::replace(&mut self.state, before);
        state.status = status;
        Ok(Branch { flow: std::mem::take(&mut self.flow), state })
    }

    /// A way that the script takes under a condition; whether it is meant. A script is taken to get to its training command, so
    /// one that fails before is not, nor one that ends because of what nobody gave.
    fn way(&mut self, assumed: bool, run: impl FnOnce(&mut Self) -> Run<Status>) -> Run<bool> {
        let (before, found) = (self.copied(), self.found.len() + self.perhaps.len());
        let trains = self.found.iter().chain(&self.perhaps).any(tells);
        run(self)?;
        let fails = self.state.status != Some(0);
        let starts = self.found.len() + self.perhaps.len() > found;
        let meant = self.flow != Flow::Exit || starts || trains || !(assumed || fails);
        if !meant {
            if let Some(line) = self.ended.filter(|_| !assumed) {
                self.gives_up.get_or_insert(line);
                self.note(format!(
                    "line {line}: the script ends here with an error, as it is written and started: read as if it went on"
                ));
            }
            self.flow = Flow::Next;
            self.state = before;
        }
        Ok(meant)
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
        if let Some((line, names)) = self.may_be_set(body) {
            self.note(format!("line {line}: whether {names} is set is known only when the script runs"));
        }
    }

    /// The flags and files that commands would set, for people, and the first line that has one; keeps those that say
    /// degrees, sizes or batches.
    pub(super) fn may_be_set(&mut self, body: &[(Link, Pipe)]) -> Option<(usize, String)> {
        let flags = flags_in(body);
        let shaping = flags.iter().filter(|flag| flag.kept && is_degree(&flag.name));
        self.undecided.extend(shaping.map(|flag| (flag.line, flag.name.clone())));
        let names: Vec<&str> = flags.iter().map(|flag| flag.name.as_str()).collect();
        Some((flags.first()?.line, names.join(" ")))
    }

    fn branches(&mut self, arms: &[(List, List)], otherwise: &List) -> Run<Status> {
        let mut others = Vec::new();
        let mut taken = false;
        for (at, (test, body)) in arms.iter().enumerate() {
            self.assumed = false;
            let status = self.list(test)?;
            if self.flow != Flow::Next {
                taken = true;
                break;
            }
            // A success that is hoped for is taken, and the rest may be meant as well.
            if self.hoped && status == Some(0) {
                let rest = &arms[at + 1..];
                let other = self.branch(|shell| shell.branches(rest, otherwise))?;
                let bodies = rest.iter().map(|(_, body)| body).chain([otherwise]);
                bodies.for_each(|body| self.note_undecided(body, &other));
                others.push(other);
            }
            match status {
                // Where its end is taken back, what stands behind it is meant.
                Some(0) => taken = self.way(self.assumed, |shell| shell.list(body))?,
                Some(_) => {}
                None => {
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
            let assumed = self.assumed && others.is_empty();
            self.way(assumed, |shell| shell.list(otherwise))?;
        }
        self.assumed = false;
        self.join(others);
        Ok(self.state.status)
    }

    /// The arms of `case`.
    fn arms(&mut self, value: &str, arms: &[Arm]) -> Run<Status> {
        let (mut others, mut taken) = (Vec::new(), false);
        let assumed = std::mem::take(&mut self.assumed);
        for (at, arm) in arms.iter().enumerate() {
            match self.fits(value, &arm.patterns) {
                Some(false) => {}
                Some(true) => {
                    self.way(assumed, |shell| shell.arm(value, &arms[at..]))?;
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

    fn fits(&mut self, value: &str, patterns: &[Raw]) -> Option<bool> {
        let mut fits = Some(false);
        for pattern in patterns {
            let pattern = self.pattern(pattern);
            let one = if pattern == "*" {
                Some(true)
            } else if known(value) && known(&pattern) {
                let options = self.state.options;
                let how = (options.extended, options.ignore_case);
                self.sought(|steps| matches(&pattern, value, how, steps))
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
            if arm.body.is_empty() {
                self.state.status = Some(0);
            }
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

    /// Forgets what commands could have changed.
    pub(super) fn forget(&mut self, effects: &Effects) {
        if effects.everything {
            self.state.forget_variables();
        }
        effects.names.iter().for_each(|name| self.forget_name(name));
        if effects.new_arguments || effects.arguments && self.state.positional.is_some() {
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

    /// After a command that could set any variable.
    pub(super) fn forget_everything(&mut self, what: &str, line: usize) {
        self.state.forget_variables();
        self.note(format!("line {line}: what {what} sets here is known only when the script runs: no variable is known behind it"));
    }

    /// Sets an exported variable that the shell is started with.
    pub(super) fn set(&mut self, name: &str, value: String) {
        self.put(name, None, false, value);
        self.mark(name, |variable: &mut Variable| variable.exported = true);
    }

    /// The script's own arguments; without any they are its caller's.
    pub(super) fn give(&mut self, arguments: &[String]) {
        if !arguments.is_empty() {
            self.state.positional = Some(Arc::new(arguments.to_vec()));
        }
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
