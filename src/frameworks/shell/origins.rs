//! Which variable an unknown value comes from, for messages: found in the script's text and not carried along.

use super::state::is_surrounding;
use super::{Launch, UNTOLD, assignment, shown};

/// Most variables that are followed from one to the next.
const MOST_STEPS: usize = 8;

/// Where an unknown value comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// The word as the script has it: `$TP`.
    pub word: String,
    /// The variable or argument that nothing sets.
    unset: Option<String>,
    /// The line that sets it on a way that is not taken.
    passed: Option<usize>,
    /// The variable that a running shell finds in its surroundings.
    around: Option<String>,
    /// The line and the program whose output it is.
    by: Option<(usize, String)>,
}

/// That a flag's value is known only when the script runs, and how it can be given.
pub(in crate::frameworks) fn untold_value(flag: &str, value: &str, origin: Option<&Origin>) -> String {
    match origin {
        Some(origin) => format!("the value of {flag} (`{}`) {UNTOLD}; {}", origin.word, origin.remedy()),
        None => format!("the value of {flag} (`{}`) {UNTOLD}; write it out", shown(value)),
    }
}

impl Origin {
    /// How the value can be given, as the end of a sentence.
    pub(in crate::frameworks) fn remedy(&self) -> String {
        // Giving the name of a file that a program reads says nothing of what it holds.
        if let Some((line, program)) = self.by.as_ref().filter(|(_, name)| READERS.contains(&name.as_str())) {
            return format!("line {line} takes it from `{program}`, which is not followed: write it out");
        }
        match &self.unset {
            Some(name) if name.bytes().all(|b| b.is_ascii_digit()) => format!(
                "nobody gives the script its argument {name}: write it out, or give the script's arguments behind `--`"
            ),
            Some(name) if let Some(line) = self.passed => format!(
                "line {line} sets `{name}`, but not on the way that the script takes as it is started: what it asks for can be given \
                 behind `--`"
            ),
            Some(name) => format!(
                "nothing sets `{name}`: write it out, or give it behind `--`, as in `-- {name}=VALUE`"
            ),
            None if let Some((line, program)) = &self.by => {
                format!("line {line} takes it from `{program}`, which is not followed: write it out")
            }
            None => match &self.around {
                Some(name) => format!(
                    "`{name}` is set where the script runs: write it out, or give it behind `--`, as in `-- {name}=VALUE`"
                ),
                // The script sets it itself, whatever it is given.
                None => "write it out".to_owned(),
            },
        }
    }
}

impl Launch {
    /// Where the value of a flag comes from that stands on a line of the script.
    #[must_use]
    pub fn origin_of(&self, text: &str, line: usize, flag: &str) -> Option<Origin> {
        let own = text.lines().nth(line.checked_sub(1)?)?;
        let part = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
        let (at, _) = own.match_indices(flag).find(|(at, _)| !own[at + flag.len()..].starts_with(part))?;
        let behind = own[at + flag.len()..].trim_start_matches([' ', '\t', '=', '"', '\'']);
        let word =
            behind.split([' ', '\t', '"', '\'', '\\', ')', ';']).next().filter(|word| word.contains('$'))?;
        let unset = self.unset_in(word, text, MOST_STEPS);
        let passed = unset.as_deref().and_then(|name| set_on(name, text));
        let around = around_in(word, text, MOST_STEPS);
        Some(Origin {
            word: word.to_owned(),
            unset,
            passed,
            around,
            by: program_in(behind, line, text, MOST_STEPS),
        })
    }

    /// The first variable of a line of the script that nothing sets.
    #[must_use]
    pub fn unset_on(&self, text: &str, line: usize) -> Option<Origin> {
        let own = text.lines().nth(line.checked_sub(1)?)?;
        let unset = self.unset_in(own, text, MOST_STEPS)?;
        let (word, passed) = (format!("${unset}"), set_on(&unset, text));
        Some(Origin { word, unset: Some(unset), passed, around: None, by: None })
    }

    /// The first variable named in a text that nothing sets, or that what it names is set to.
    fn unset_in(&self, words: &str, text: &str, steps: usize) -> Option<String> {
        names_in(words).find_map(|name| {
            if self.unset.contains(name) {
                return Some(name.to_owned());
            }
            let (_, value) = last_set(name, text).filter(|_| steps > 0)?;
            self.unset_in(value, text, steps - 1)
        })
    }
}

/// The first line of a script on which a variable is set, wherever it stands there.
fn set_on(name: &str, text: &str) -> Option<usize> {
    let mark = format!("{name}=");
    let before = |c: char| c.is_ascii_alphanumeric() || "_-$".contains(c);
    let sets = |line: &str| {
        let mut all = line.match_indices(&mark).map(|(at, _)| &line[..at]);
        !line.trim_start().starts_with('#') && all.any(|head| !head.ends_with(before))
    };
    text.lines().position(sets).map(|at| at + 1)
}

/// The first variable named in a text, or in what those are set to, that the surroundings of a script set.
fn around_in(words: &str, text: &str, steps: usize) -> Option<String> {
    names_in(words).find_map(|name| match last_set(name, text) {
        Some((_, value)) => around_in(value, text, steps.checked_sub(1)?),
        None => is_surrounding(name, true).then(|| name.to_owned()),
    })
}

/// Programs whose output is what a file or the machine holds.
const READERS: &[&str] = &[
    "cat",
    "wc",
    "sort",
    "uniq",
    "head",
    "tail",
    "awk",
    "sed",
    "cut",
    "grep",
    "jq",
    "yq",
    "nvidia-smi",
    "lspci",
];

/// The program whose output stands first in words on a line, or in what the first variable there is set to.
fn program_in(words: &str, line: usize, text: &str, steps: usize) -> Option<(usize, String)> {
    let word = words.trim_start_matches('"');
    if let Some(command) =
        word.strip_prefix("$(").or(word.strip_prefix('`')).filter(|rest| !rest.starts_with('('))
    {
        // The last of a pipe prints.
        let command = command.split([')', '`', '\n']).next()?.rsplit('|').next()?;
        let program = command.split_whitespace().next().filter(|name| !name.starts_with('<'))?;
        return Some((line, program.rsplit('/').next().unwrap_or(program).to_owned()));
    }
    let name = names_in(word.strip_prefix('$').map(|_| word)?).next()?;
    let (line, value) = last_set(name, text).filter(|_| steps > 0)?;
    program_in(value, line, text, steps - 1)
}

/// The last line of a script that sets a variable, counted from 1, and what to.
fn last_set<'t>(name: &str, text: &'t str) -> Option<(usize, &'t str)> {
    let set = text.lines().enumerate().filter_map(|(at, line)| {
        let line = line.trim_start();
        let line = line.strip_prefix("export ").or(line.strip_prefix("local ")).unwrap_or(line);
        assignment(line).filter(|(own, _)| *own == name).map(|(_, value)| (at + 1, value))
    });
    set.last()
}

/// Names behind `$` and `${`.
fn names_in(text: &str) -> impl Iterator<Item = &str> {
    text.split('$').skip(1).filter_map(|rest| {
        let rest = rest.trim_start_matches(['{', '(']);
        let end = rest.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(rest.len());
        Some(&rest[..end]).filter(|name| !name.is_empty())
    })
}
