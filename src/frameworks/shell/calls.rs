//! Functions, files that are sourced, scripts that are started, and where they lie.

use std::sync::Arc;

use super::jobs::{Job, nodes_of_queue, of_pbs, variables_of_queue};
use super::launches::program;
use super::parse::{List, parse_inside, parse_sourced};
use super::printed::held;
use super::ranks::values_among;
use super::run::{Run, Shell};
use super::state::{Aliases, Branch, Flow, Options, Status, known, unknown};
use super::wrappers::{is_closed, program_at, without_job, without_wrappers};
use super::{UNKNOWN, UNSET, UNTOLD, Word, as_value, once, shown};

/// Most files that a script may source, counted as often as it does.
const MOST_FILES: u32 = 64;

/// Scripts that are started and cannot be followed, of which is told.
const MOST_NOT_STARTED: usize = 8;

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

/// The shell that the first line of a script asks for: `#!/bin/sh`, `#!/usr/bin/env bash`.
fn shell_asked_by(text: &str) -> Option<&str> {
    let mut words = text.lines().next()?.strip_prefix("#!")?.split_whitespace().map(program);
    let name =
        words.next().map(|name| if name == "env" { words.next().unwrap_or_default() } else { name })?;
    ["bash", "sh", "dash", "ksh", "zsh"].contains(&name).then_some(name)
}

/// Whether the shell that a script asks for replaces aliases unasked, as all but bash do.
pub(super) fn replaces_aliases(text: &str) -> bool {
    shell_asked_by(text).is_some_and(|name| name != "bash")
}

impl Shell<'_> {
    /// Calls a function.
    pub(super) fn call(&mut self, name: &str, body: &List, arguments: Vec<String>) -> Run<Status> {
        let replaced = self.state.replaced_in.get(name).cloned().unwrap_or_default();
        let replaced = std::mem::replace(&mut self.state.replaced, replaced);
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
        self.state.replaced = replaced;
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
        from_folder(&once(&path), self.sources.last().map(String::as_str))
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

    /// Whether the first line of a file that can be read asks for a shell.
    pub(super) fn is_for_shell(&self, path: &str) -> bool {
        let text = self.path_of(path).and_then(|path| self.text_of_file(&path).ok());
        text.is_some_and(|text| shell_asked_by(&text).is_some())
    }

    /// The commands of a file that the script asks for, with its path and its text.
    fn followed(&mut self, path: &str, line: usize) -> Result<(String, List, String), String> {
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
        Ok((path, list, text))
    }

    /// `source FILE ARGUMENTS`: its commands run here. A file that cannot be followed is named and changes nothing.
    pub(super) fn source(&mut self, path: &str, arguments: &[Word], line: usize) -> Run<Status> {
        let (path, list, _) = match self.followed(path, line) {
            Ok(followed) => followed,
            Err(reason) => {
                self.unread |= reason != "it asks for itself";
                // A file that is there sets something.
                let written = self.path_of(path).is_some_and(|path| self.state.written.contains_key(&path));
                self.state.anything |= written;
                self.note(format!("line {line}: `{}` is not read: {reason}", shown(path)));
                return Ok(None);
            }
        };
        self.sources.push(path);
        let own: Vec<String> = arguments.iter().map(|w| w.text.clone()).collect();
        let before = (!own.is_empty()).then(|| self.state.positional.replace(Arc::new(own)));
        let outer = std::mem::take(&mut self.pending);
        self.nested(|shell| shell.text(&list))?;
        self.end_of_call();
        self.pending.splice(0..0, outer);
        if let Some(before) = before {
            self.state.positional = before;
        }
        self.sources.pop();
        Ok(self.state.status)
    }

    /// A script that is started, with only what is exported: a file beside this one. None where it cannot be read.
    pub(super) fn script(
        &mut self,
        path: &str,
        arguments: &[Word],
        launcher: &[Word],
        line: usize,
    ) -> Run<Option<Status>> {
        let (path, list, text) = match self.followed(path, line) {
            Ok(followed) => followed,
            Err(reason) => {
                if self.not_started.len() < MOST_NOT_STARTED {
                    let path = shown(path);
                    self.not_started
                        .push(format!("line {line}: the script `{path}` is not followed: {reason}"));
                }
                return Ok(None);
            }
        };
        self.sources.push(path);
        let mut arguments: Vec<String> = arguments.iter().map(|w| w.text.clone()).collect();
        // `qsub -F "ARGUMENTS" FILE`
        if let Some((_, _, own)) = values_among(&of_pbs(launcher, &text), &["-F"]).pop()
            && program_at(launcher, |name| name == "qsub").is_some()
        {
            arguments = shlex::split(&own.text).unwrap_or_else(|| vec![unknown()]);
        }
        let status = self.child(launcher, Some(arguments), (&list, &text))?;
        self.sources.pop();
        Ok(Some(status))
    }

    /// Runs the commands of a text as a program of their own does, which a launcher tells of variables.
    pub(super) fn child(
        &mut self,
        launcher: &[Word],
        arguments: Option<Vec<String>>,
        (list, text): (&List, &str),
    ) -> Run<Status> {
        let job = Job::asked_by(launcher, text);
        // Options in the header count as those before it do.
        let mut words = launcher.to_vec();
        words.extend(job.iter().flat_map(Job::options).cloned());
        if program_at(launcher, |name| name == "qsub").is_some() {
            words.extend(of_pbs(launcher, text));
        }
        let (closed, told) = (is_closed(&words), self.handed_on(&words));
        let job = job.or_else(|| Job::of_script(text).filter(|_| self.job.is_none()));
        // Files of variables that are not read.
        let more = self.env_files(launcher).is_none();
        self.unread |= closed || more;
        let outer = (self.job.clone(), self.queue_nodes, self.queue_sets);
        self.queue_sets = variables_of_queue(launcher, text).or(self.queue_sets);
        self.queue_nodes = nodes_of_queue(launcher, text).or(self.queue_nodes);
        let status = self.nested(|shell| {
            shell.subshell(|shell| {
                shell.state.variables.retain(|_, variable| variable.exported && !closed);
                shell.state.anything |= more;
                for (name, value) in told {
                    shell.set(&name, value);
                }
                shell.state.functions.clear();
                shell.state.frames.clear();
                shell.state.aliases = Aliases::default();
                shell.state.replaced_in.clear();
                shell.state.options = Options { aliases: replaces_aliases(text), ..Options::default() };
                shell.state.positional = arguments.map(Arc::new);
                if let Some(job) = job {
                    shell.begin_job(job);
                }
                shell.text(list)
            })
        })?;
        (self.job, self.queue_nodes, self.queue_sets) = outer;
        Ok(status)
    }

    /// What a script knows of the Slurm job that it is.
    pub(super) fn begin_job(&mut self, job: Job) {
        for (variable, value) in job.variables() {
            self.set(variable, value);
        }
        if let Some(folder) = job.text(&["--chdir", "-D"]) {
            self.change_folder("cd", &[folder]);
        }
        self.job = Some(Arc::new(job));
    }

    /// A text that holds a script of its own: where it stands and what starts it is told of its training commands.
    pub(super) fn script_text(
        &mut self,
        text: &str,
        line: usize,
        launcher: &[Word],
        arguments: Option<Vec<String>>,
    ) -> Run<Status> {
        let text = as_value(text);
        let list = parse_inside(&text, self.places_of(&text, line))?;
        self.launched_by(launcher, |shell| shell.child(launcher, arguments, (&list, &text)))
    }

    /// The script's lines of those of a text that begins on a line of it; that line for all where the text stands
    /// elsewhere, as that of a variable does.
    pub(super) fn places_of(&self, text: &str, line: usize) -> Vec<usize> {
        let mut places = Vec::new();
        let mut at = line;
        for inner in text.split('\n') {
            let Some(own) = self.script.get(at.wrapping_sub(1)).filter(|own| may_hold(own, inner)) else {
                return vec![line];
            };
            places.push(at);
            // Between double quotes, lines that a backslash joins are one.
            let mut joined = own.ends_with('\\') && !inner.ends_with('\\');
            while joined {
                at += 1;
                joined = self.script.get(at.wrapping_sub(1)).is_some_and(|own| own.ends_with('\\'));
            }
            at += 1;
        }
        places
    }

    /// Runs what starts training commands for a launcher.
    pub(super) fn launched_by(
        &mut self,
        launcher: &[Word],
        run: impl FnOnce(&mut Self) -> Run<Status>,
    ) -> Run<Status> {
        let (found, perhaps) = (self.found.len(), self.perhaps.len());
        let status = run(self)?;
        let (found, perhaps) = (found.min(self.found.len()), perhaps.min(self.perhaps.len()));
        for launch in self.found[found..].iter_mut().chain(&mut self.perhaps[perhaps..]) {
            launch.launcher.splice(0..0, without_wrappers(&without_job(launcher)));
        }
        Ok(status)
    }
}

/// Whether a line of the script may be a line of a text before expansion: its first word is there, or anything may be.
fn may_hold(own: &str, text: &str) -> bool {
    text.split_whitespace().next().is_none_or(|word| own.contains(word) || own.contains(['$', '`']))
}
