//! What programs print over texts that the script itself holds (`cat`, `echo`, `printf`, `seq`, `sed`, `tr`, `wc`, `grep`,
//! `getopt` and some more), and what they, `cp`, `mv` and `rm` do to files. Any other program's output is unknown, and so are
//! files that it is told of.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::options::getopt;
use super::run::{LONGEST, Shell};
use super::state::{Status, known, unknown};
use super::{Files, UNKNOWN, UNSET, UNTOLD, as_value, is_unknown};

/// What a character costs that is kept in a file, in characters that are copied.
const KEEPING: usize = 4;

/// Text that a script writes into a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Written {
    /// The text; none where only a running shell knows it.
    pub text: Option<String>,
    /// Line of the command that writes it, counted from 1.
    pub line: usize,
}

/// What a program does that is known here.
pub(super) struct Done {
    pub status: Status,
    /// What it prints; none where that is not known.
    pub text: Option<String>,
}

impl Done {
    fn well(text: Option<String>) -> Self {
        Self { status: Some(0), text }
    }
    fn silent() -> Self {
        Self::well(Some(String::new()))
    }
}

/// The characters of one of `tr`'s sets: ranges and some classes; none where it holds others.
fn characters(set: &str) -> Option<Vec<char>> {
    let set = [("[:upper:]", "A-Z"), ("[:lower:]", "a-z"), ("[:digit:]", "0-9")]
        .iter()
        .fold(set.replace("\\n", "\n").replace("\\t", "\t"), |set, (class, range)| set.replace(class, range));
    if set.contains("[:") || set.contains("[=") || set.contains(['*', '\\']) {
        return None;
    }
    let set: Vec<char> = set.chars().collect();
    let (mut all, mut at) = (Vec::new(), 0);
    while let Some(&first) = set.get(at) {
        match (set.get(at + 1), set.get(at + 2)) {
            (Some('-'), Some(&last)) if first.is_ascii() && last.is_ascii() => {
                if last < first {
                    return None;
                }
                all.extend(first..=last);
                at += 3;
            }
            _ => {
                all.push(first);
                at += 1;
            }
        }
    }
    Some(all)
}

/// What `tr` makes of a text; none where that is not followed.
fn translated(text: &str, words: &[String]) -> Option<String> {
    match words {
        [option, set] if matches!(option.as_str(), "-d" | "-dc" | "-cd") => {
            let (set, others) = (characters(set)?, option.contains('c'));
            Some(text.chars().filter(|c| set.contains(c) == others).collect())
        }
        [from, to] if from == "-" || !from.starts_with('-') => {
            let (from, to) = (characters(from)?, characters(to)?);
            // The last of the second set stands for all that it lacks, and of a character given twice the last counts.
            let last = *to.last()?;
            let new = |c: char| {
                let at = from.iter().rposition(|own| *own == c)?;
                Some(to.get(at).copied().unwrap_or(last))
            };
            Some(text.chars().map(|c| new(c).unwrap_or(c)).collect())
        }
        _ => None,
    }
}

/// The fields of every line that `cut -d X -f LIST` keeps; none for other options.
fn cut(text: &str, words: &[String]) -> Option<String> {
    let (mut between, mut list) = ('\t', None);
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let letter = word.get(..2)?;
        let given = if word.len() > 2 { &word[2..] } else { words.next()?.as_str() };
        match letter {
            "-d" => {
                let mut chars = given.chars();
                between = chars.next().filter(|_| chars.next().is_none())?;
            }
            "-f" => list = Some(given),
            _ => return None,
        }
    }
    let number = |text: &str, other: usize| if text.is_empty() { Some(other) } else { text.parse().ok() };
    let ranges: Option<Vec<(usize, usize)>> = list?
        .split(',')
        .map(|one| match one.split_once('-') {
            Some((first, last)) => Some((number(first, 1)?, number(last, usize::MAX)?)),
            None => one.parse().ok().map(|only| (only, only)),
        })
        .collect();
    let (ranges, separator) = (ranges?, between.to_string());
    let kept = |line: &str| {
        // A line without any is kept whole.
        if !line.contains(between) {
            return line.to_owned();
        }
        let fields = line.split(between).enumerate();
        let fields =
            fields.filter(|(at, _)| ranges.iter().any(|(low, high)| (*low..=*high).contains(&(at + 1))));
        fields.map(|(_, field)| field).collect::<Vec<_>>().join(&separator)
    };
    Some(text.lines().map(|line| kept(line) + "\n").collect())
}

/// The field of every line that `awk '{print $N}'` prints, with `-F` and a plain character or without; none for other
/// programs.
fn field_by_awk(text: &str, words: &[String]) -> Option<String> {
    let (between, program) = match words {
        [program] => (None, program),
        [option, given, program] if option == "-F" => (Some(given.as_str()), program),
        [option, program] => (Some(option.strip_prefix("-F")?), program),
        _ => return None,
    };
    let plain = |c: char| c.is_ascii_alphanumeric() && c != 't' || "_-:,;=/@#".contains(c);
    if between.is_some_and(|between| between.len() != 1 || !between.contains(plain)) {
        return None;
    }
    let inner = program.trim().strip_prefix('{')?.strip_suffix('}')?.trim().trim_end_matches(';');
    let field = inner.strip_prefix("print")?.trim().strip_prefix('$')?;
    let number = if field == "NF" { None } else { Some(field.parse::<usize>().ok().filter(|n| *n > 0)?) };
    let of_line = |line: &str| {
        let fields: Vec<&str> = match between {
            Some(between) => line.split(between).collect(),
            None => line.split_whitespace().collect(),
        };
        let field = number.map_or(fields.last(), |number| fields.get(number - 1));
        format!("{}\n", field.unwrap_or(&""))
    };
    Some(text.lines().map(of_line).collect())
}

/// The first or last lines of a text, as many as `-n N` or `-N` says; none for other options.
fn lines_at_end(name: &str, text: &str, words: &[String]) -> Option<String> {
    // Behind `+` it is where to begin.
    let number = |text: &str| text.parse::<usize>().ok().filter(|_| !text.starts_with('+'));
    let count = match words {
        [] => 10,
        [option] => number(option.strip_prefix("-n").or(option.strip_prefix('-'))?)?,
        [option, count] if option == "-n" => number(count)?,
        _ => return None,
    };
    let lines: Vec<&str> = text.lines().collect();
    let count = count.min(lines.len());
    let kept = if name == "head" { &lines[..count] } else { &lines[lines.len() - count..] };
    Some(kept.iter().map(|line| format!("{line}\n")).collect())
}

/// Most files that a program's text names.
const MOST_NAMED: usize = 64;

/// Most hosts of a job that are told apart.
const MOST_HOSTS: u32 = 1 << 16;

/// The words of a text as `xargs` parts them; none where a comment of the shell's would begin.
pub(super) fn words_of_input(text: &str) -> Option<Vec<String>> {
    let comments = text.split_whitespace().any(|word| word.starts_with('#'));
    shlex::split(text).filter(|_| !comments)
}

/// A word for a host of a job, whose name is not known.
fn host_name(number: u32) -> String {
    format!("{UNKNOWN}.{number}")
}

/// The list of the hosts of a job.
pub(super) fn host_list() -> String {
    format!("{UNKNOWN}.hosts")
}

/// Whether a word is one host of a job.
pub(super) fn is_host(word: &str) -> bool {
    let number = word.strip_prefix(UNKNOWN).and_then(|rest| rest.strip_prefix('.'));
    number.is_some_and(|number| number.bytes().all(|b| b.is_ascii_digit()))
}

impl Shell<'_> {
    /// What is printed here goes where the output is kept.
    pub(super) fn print(&mut self, text: Option<String>) {
        if let Some(kept) = self.state.output.take() {
            let all = joined([kept, text].into_iter());
            self.worked(all.as_ref().map_or(0, String::len));
            self.state.output = Some(all);
        }
    }

    /// What a program prints and writes, and whether it goes well; none where it is not one of those that are known.
    pub(super) fn known_program(&mut self, name: &str, words: &[String], line: usize) -> Option<Done> {
        let done = match name {
            "echo" => Done::well(echoed(words)),
            "printf" => return Some(self.printf(words)),
            "pwd" => Done::well(Some(self.working_folder() + "\n")),
            "expr" => Done { status: None, text: self.sum(&words.join(" ")).map(|n| format!("{n}\n")) },
            "seq" => Done::well(sequence(words)),
            "basename" => match words {
                [path] if known(path) => {
                    let name = path.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
                    Done::well(Some(format!("{name}\n")))
                }
                _ => Done::well(None),
            },
            "cat" => {
                let files: Vec<&String> = words.iter().filter(|w| *w == "-" || !w.starts_with('-')).collect();
                let plain =
                    words.iter().all(|w| !w.starts_with('-') || matches!(w.as_str(), "-" | "-s" | "-u"));
                let text = self.read_all(&files).filter(|_| plain);
                Done { status: text.as_ref().map(|_| 0), text }
            }
            "sed" => return Some(self.sed(words, line)),
            // Whole numbers without a scale are divided as the shell divides them.
            "bc" if words.is_empty() => {
                let plain =
                    |text: &String| text.chars().all(|c| c.is_ascii_digit() || "+-*/%() \n".contains(c));
                let sum = self.state.input.take();
                let sum = sum.map(|text| text.strip_prefix("scale=0;").unwrap_or(&text).to_owned());
                let sum = sum.filter(|text| plain(text) && text.trim().lines().count() == 1);
                Done::well(sum.and_then(|sum| self.sum(&sum)).map(|number| format!("{number}\n")))
            }
            "tr" => {
                let text = self.state.input.take().filter(|text| known(text));
                Done::well(text.and_then(|text| translated(&text, words)))
            }
            // Of files, and behind other options, nothing is known.
            "cut" | "awk" | "head" | "tail" if self.state.input.as_ref().is_some_and(|text| known(text)) => {
                let text = self.state.input.take().unwrap_or_default();
                let made = match name {
                    "cut" => cut(&text, words),
                    "awk" => field_by_awk(&text, words),
                    _ => lines_at_end(name, &text, words),
                };
                if made.is_none() {
                    self.state.input = Some(text);
                    return None;
                }
                Done::well(made)
            }
            "tee" => {
                let text = self.state.input.take();
                let append =
                    options(words).any(|w| w == "--append" || (!w.starts_with("--") && w.contains('a')));
                for path in operands(words) {
                    self.keep(path, append, text.clone(), line);
                }
                Done::well(text)
            }
            "cp" | "mv" | "ln" => {
                self.copy(name, words, line);
                Done::silent()
            }
            "rm" => {
                for path in operands(words) {
                    self.remove(path, line);
                }
                Done::silent()
            }
            "touch" => {
                for path in operands(words) {
                    self.keep(path, true, Some(String::new()), line);
                }
                Done::silent()
            }
            "mkdir" | "chmod" | "chown" | "sync" => Done::silent(),
            "getopt" => {
                self.worked(words.iter().map(String::len).sum::<usize>().saturating_mul(words.len()));
                let text = getopt(words);
                Done { status: text.as_ref().map(|_| 0), text }
            }
            "wc" => Done::well(self.counted(words)),
            "grep" => return self.grep(words),
            "xargs" if words.is_empty() => {
                let words =
                    self.state.input.take().filter(|text| known(text)).and_then(|text| words_of_input(&text));
                Done::well(words.map(|words| words.join(" ") + "\n"))
            }
            "scontrol" => return self.hosts_of_job(words).map(|text| Done::well(Some(text))),
            "module" | "date" | "hostname" => Done::well(None),
            _ => return None,
        };
        Some(done)
    }

    /// A program of which nothing is known may change files that it is told of, in a text too.
    pub(super) fn unknown_program(&mut self, name: &str, words: &[String], line: usize) {
        self.print(None);
        let program = self.state.input.take();
        for (at, word) in words.iter().enumerate() {
            // What names the hosts is read.
            let before = at.checked_sub(1).map_or("", |before| words[before].as_str());
            if matches!(before.trim_start_matches('-'), "hostfile" | "machinefile" | "f") {
                continue;
            }
            let path = word.split_once('=').map_or(word.as_str(), |(_, path)| path);
            if path.contains(['.', '/']) && !path.contains(char::is_whitespace) && !path.starts_with('-') {
                self.keep(path, false, None, line);
            }
        }
        if name.starts_with("python") || matches!(name, "perl" | "ruby" | "node" | "awk") {
            let texts = words.iter().filter(|word| word.contains(char::is_whitespace) || word.contains('('));
            let texts: Vec<&String> = texts.chain(&program).collect();
            let part = |c: char| c.is_ascii_alphanumeric() || "._/-".contains(c);
            let named: BTreeSet<String> = texts
                .iter()
                .flat_map(|text| text.split(|c| !part(c)))
                .filter(|name| name.trim_matches('.').contains('.') && !name.starts_with('-'))
                .take(MOST_NAMED)
                .map(str::to_owned)
                .collect();
            named.iter().for_each(|path| self.keep(path, false, None, line));
        }
    }

    /// `scontrol show hostnames LIST` of the job's own hosts: which these are is not known, but how many are.
    fn hosts_of_job(&mut self, words: &[String]) -> Option<String> {
        let [show, what, list @ ..] = words else { return None };
        let own = list.iter().all(|list| *list == host_list());
        if show != "show" || !what.starts_with("hostname") || !own {
            return None;
        }
        let nodes =
            self.content("SLURM_NNODES", None)?.parse::<u32>().ok().filter(|nodes| *nodes <= MOST_HOSTS)?;
        Some((0..nodes).map(|host| host_name(host) + "\n").collect())
    }

    /// `wc -l`, `-w` or `-c`, of the input or of a file.
    fn counted(&mut self, words: &[String]) -> Option<String> {
        let files: Vec<&String> = operands(words).collect();
        let [option] = options(words).collect::<Vec<_>>()[..] else { return None };
        let text = self.read_all(&files).filter(|_| files.len() <= 1)?;
        let number = match option.as_str() {
            "-l" | "--lines" if text.lines().all(|line| known(line) || is_host(line)) => {
                text.matches('\n').count()
            }
            "-w" | "--words" if known(&text) => text.split_whitespace().count(),
            "-c" | "--bytes" if known(&text) => text.len(),
            _ => return None,
        };
        Some(files.first().map_or(format!("{number}\n"), |file| format!("{number} {file}\n")))
    }

    /// `grep` for a plain text, at the start of a line behind `^`; none for other patterns and files of the system.
    fn grep(&mut self, words: &[String]) -> Option<Done> {
        let mut all = operands(words).filter(|_| !words.iter().any(|word| word == "--"));
        let pattern = all.next()?;
        let fixed = options(words).any(|option| option.contains('F'));
        let (start, plain) = match pattern.strip_prefix('^').filter(|_| !fixed) {
            Some(plain) => (true, plain),
            None => (false, pattern.as_str()),
        };
        let literal = |c: char| c.is_ascii_alphanumeric() || "_#=/ -:,".contains(c);
        let files: Vec<&String> = all.collect();
        let apart = files.iter().any(|path| path.starts_with('/') || !known(path));
        let letters: String = options(words).map(|option| option.trim_start_matches('-')).collect();
        if !plain.chars().all(literal)
            || apart
            || files.len() > 1
            || !letters.chars().all(|c| "vEFcqh".contains(c))
        {
            return None;
        }
        let text = self.read_all(&files).filter(|text| known(text))?;
        let has = |line: &&str| {
            (if start { line.starts_with(plain) } else { line.contains(plain) }) != letters.contains('v')
        };
        let lines: Vec<&str> = text.lines().filter(has).collect();
        let text = match (letters.contains('q'), letters.contains('c')) {
            (true, _) => String::new(),
            (_, true) => format!("{}\n", lines.len()),
            _ => lines.iter().map(|line| format!("{line}\n")).collect(),
        };
        Some(Done { status: Some(u8::from(lines.is_empty())), text: Some(text) })
    }

    fn printf(&mut self, words: &[String]) -> Done {
        let (name, words) = match words {
            [option, name, words @ ..] if option == "-v" => (Some(name), words),
            words => (None, words),
        };
        let words = words.strip_prefix(&["--".to_owned()]).unwrap_or(words);
        let text = words.split_first().and_then(|(form, values)| formatted(form, values));
        match name {
            None => Done::well(text),
            Some(name) => {
                let (name, index) = match name.strip_suffix(']').and_then(|n| n.split_once('[')) {
                    Some((name, index)) => (name, Some(index)),
                    None => (name.as_str(), None),
                };
                self.put(name, index, false, text.unwrap_or_else(unknown));
                Done::silent()
            }
        }
    }

    /// The texts of files one after the other, of standard input where there are none.
    fn read_all(&mut self, files: &[&String]) -> Option<String> {
        if files.is_empty() {
            return self.state.input.take();
        }
        let mut all = String::new();
        for path in files {
            let text = if *path == "-" { self.state.input.take() } else { self.text_at(path) };
            all.push_str(&text?);
            if all.len() > LONGEST {
                return None;
            }
        }
        Some(all)
    }

    fn sed(&mut self, words: &[String], line: usize) -> Done {
        let sed = Sed::of(words);
        if sed.in_place {
            for path in &sed.files {
                let text = self.text_at(path).and_then(|text| sed.edit(text));
                self.keep(path, false, text, line);
            }
            return Done::silent();
        }
        let files: Vec<&String> = sed.files.iter().collect();
        let text = self.read_all(&files).and_then(|text| sed.edit(text));
        Done { status: text.as_ref().map(|_| 0), text }
    }

    /// `cp`, `mv` and `ln`: into a file, or under their names into a folder.
    fn copy(&mut self, name: &str, words: &[String], line: usize) {
        let all: Vec<&String> = operands(words).collect();
        let into = options(words).any(|w| w.starts_with("-t") || w.starts_with("--target"));
        let Some((to, from)) = all.split_last().filter(|_| !into) else {
            all.iter().for_each(|path| self.keep(path, false, None, line));
            return;
        };
        // Whether these write at all depends on what is there.
        let certain = !options(words)
            .any(|w| !w.starts_with("--") && w.contains(['n', 'u', 'b']) || w.starts_with("--no-c"));
        let last = to.rsplit('/').next().unwrap_or_default();
        let folder = from.len() > 1 || matches!(last, "" | "." | "..");
        for path in from {
            let text = self.text_at(path).filter(|_| certain);
            let base = path.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
            if folder || !last.contains('.') {
                self.keep(&format!("{to}/{base}"), false, text.clone(), line);
            }
            if !folder {
                self.keep(to, false, text, line);
            }
            if name == "mv" {
                self.remove(path, line);
            }
        }
    }

    /// Nothing is left of a file, or of what a folder holds.
    fn remove(&mut self, path: &str, line: usize) {
        if path.contains(['*', '?', '[']) {
            let all: Vec<String> = self.state.written.keys().cloned().collect();
            all.iter().for_each(|key| self.forget_file(key, line));
            return;
        }
        let Some(key) = self.key_of(path) else { return };
        let inside = format!("{key}/");
        let gone = self.state.written.keys().filter(|other| other.starts_with(&inside)).cloned();
        for key in gone.chain([key.clone()]).collect::<Vec<_>>() {
            self.state.written.insert(key, Arc::new(Written { text: Some(String::new()), line }));
        }
    }

    /// What a file holds is no longer known.
    pub(super) fn forget_file(&mut self, key: &str, line: usize) {
        self.state.written.insert(key.to_owned(), Arc::new(Written { text: None, line }));
    }

    /// Keeps what is written into a file.
    pub(super) fn keep(&mut self, path: &str, append: bool, text: Option<String>, line: usize) {
        let Some(key) = self.key_of(path).filter(|key| !key.starts_with("/dev/")) else { return };
        let before = match self.state.written.get(&key) {
            _ if !append => Some(String::new()),
            Some(written) => written.text.clone(),
            None => Some(self.text_at(path).unwrap_or_default()),
        };
        let text = joined([before, text].into_iter()).map(|text| as_value(&text));
        self.worked(text.as_ref().map_or(0, String::len).saturating_mul(KEEPING));
        self.state.written.insert(key, Arc::new(Written { text, line }));
    }
}

fn options(words: &[String]) -> impl Iterator<Item = &String> {
    words.iter().filter(|w| w.starts_with('-') && w.len() > 1)
}

fn operands(words: &[String]) -> impl Iterator<Item = &String> {
    words.iter().filter(|w| !(w.starts_with('-') && w.len() > 1))
}

fn echoed(words: &[String]) -> Option<String> {
    let options =
        words.iter().take_while(|w| matches!(w.as_str(), "-n" | "-e" | "-ne" | "-en" | "-E")).count();
    let has = |option: char| words[..options].iter().any(|w| w.contains(option));
    let text = words[options..].join(" ");
    let plain = !has('e') || !text.contains('\\');
    plain.then(|| text + if has('n') { "" } else { "\n" })
}

/// `printf` with `%s`, `%d` and plain escapes; none for anything cleverer.
fn formatted(form: &str, values: &[String]) -> Option<String> {
    let mut text = String::new();
    let mut values = values.iter();
    loop {
        let before = values.len();
        let mut chars = form.chars();
        while let Some(c) = chars.next() {
            match c {
                '%' => match chars.next()? {
                    '%' => text.push('%'),
                    's' => text.push_str(values.next().map_or("", String::as_str)),
                    'd' | 'i' => {
                        let value = values.next().map_or("0", String::as_str);
                        let whole =
                            !known(value) || value.parse::<i64>().is_ok_and(|n| n.to_string() == value);
                        text.push_str(whole.then_some(value)?);
                    }
                    _ => return None,
                },
                '\\' => text.push(match chars.next()? {
                    'n' => '\n',
                    't' => '\t',
                    c @ ('\\' | '"' | '\'') => c,
                    _ => return None,
                }),
                c => text.push(c),
            }
            if text.len() > LONGEST {
                return None;
            }
        }
        // The format is used again while values are left.
        if values.len() == 0 || values.len() == before {
            return Some(text);
        }
    }
}

/// Digits of the longest number that is counted with, sign included.
const LONGEST_NUMBER: usize = 20;

/// `seq LAST`, `seq FIRST LAST`, `seq FIRST STEP LAST`, behind `-s SEPARATOR` and `-w`.
fn sequence(words: &[String]) -> Option<String> {
    let (mut separator, mut wide, mut words) = ("\n", false, words);
    while let Some((option, rest)) = words.split_first()
        && option.starts_with('-')
        && option.parse::<i64>().is_err()
    {
        words = rest;
        let letters = option[1..].trim_start_matches('w');
        wide |= option == "--equal-width" || option.starts_with("-w");
        match (option.as_str(), letters) {
            ("--", _) => break,
            ("--equal-width", _) | (_, "") => {}
            ("--separator", _) | (_, "s") => {
                let (given, rest) = words.split_first()?;
                (separator, words) = (given, rest);
            }
            // A format of its own is not followed.
            (long, _) => separator = long.strip_prefix("--separator=").or(letters.strip_prefix('s'))?,
        }
    }
    let numbers: Vec<i64> = words.iter().map(|w| w.parse().ok()).collect::<Option<_>>()?;
    let (first, step, last) = match numbers.as_slice() {
        [last] => (1, 1, *last),
        [first, last] => (*first, 1, *last),
        [first, step, last] if *step != 0 => (*first, *step, *last),
        _ => return None,
    };
    let digits = |word: &String| word.bytes().all(|b| b.is_ascii_digit());
    if !known(separator) || wide && !words.iter().all(digits) {
        return None;
    }
    // Zeros that an end begins with count.
    let ends = [words.first().filter(|_| words.len() > 1), words.last()];
    let width = ends.into_iter().flatten().map(String::len).max().filter(|_| wide).unwrap_or(0);
    if width > LONGEST_NUMBER {
        return None;
    }
    let mut text = String::new();
    let mut n = first;
    while if step > 0 { n <= last } else { n >= last } {
        if n != first {
            text.push_str(separator);
        }
        text.push_str(&format!("{n:0width$}"));
        n = n.checked_add(step).filter(|_| text.len() <= LONGEST)?;
    }
    if !text.is_empty() {
        text.push('\n');
    }
    Some(text)
}

/// What a file holds by its key: what a script has written into it, with the line, or what stands beside the script.
///
/// # Errors
/// Why it cannot be read.
pub(super) fn held(
    written: &BTreeMap<String, Arc<Written>>,
    key: &str,
    files: &Files,
) -> Result<(String, Option<usize>), String> {
    match written.get(key).map(Arc::as_ref) {
        Some(Written { text: Some(text), line }) => Ok((text.clone(), Some(*line))),
        Some(Written { text: None, line }) => Err(format!("what line {line} writes into it {UNTOLD}")),
        None if is_unknown(key) => Err(format!("its path {UNTOLD}")),
        None => Ok((files(key)?, None)),
    }
}

/// A call of `sed`: substitutions of plain text.
struct Sed {
    commands: Vec<String>,
    files: Vec<String>,
    in_place: bool,
    /// All its options are understood.
    plain: bool,
}

impl Sed {
    fn of(words: &[String]) -> Self {
        let mut sed = Self { commands: Vec::new(), files: Vec::new(), in_place: false, plain: true };
        let mut operands = Vec::new();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            match word.strip_prefix('-') {
                Some("") | None => operands.push(word.clone()),
                Some(long) if long.starts_with('-') => match long.split('=').next().unwrap_or_default() {
                    "-in-place" => sed.in_place = true,
                    "-regexp-extended" => {}
                    _ => sed.plain = false,
                },
                Some(letters) => sed.options(letters, &mut words),
            }
        }
        if sed.commands.is_empty() && sed.plain && !operands.is_empty() {
            sed.commands.push(operands.remove(0));
        }
        sed.files = operands;
        sed
    }

    /// Letters behind one dash: those behind `i` are a suffix, those behind `e` a command.
    fn options(&mut self, letters: &str, words: &mut std::slice::Iter<String>) {
        for (at, letter) in letters.char_indices() {
            match letter {
                'E' | 'r' | 's' | 'u' => {}
                'i' => {
                    self.in_place = true;
                    return;
                }
                'e' => {
                    let rest = &letters[at + 1..];
                    let command = if rest.is_empty() { words.next().cloned() } else { Some(rest.to_owned()) };
                    self.plain &= command.is_some();
                    self.commands.extend(command);
                    return;
                }
                _ => self.plain = false,
            }
        }
    }

    /// What becomes of a text.
    fn edit(&self, text: String) -> Option<String> {
        let commands = Some(&self.commands).filter(|_| self.plain)?;
        commands.iter().try_fold(text, |text, command| substituted(&text, command))
    }
}

/// Texts one after the other; none where one is unknown or all are too long.
fn joined(texts: impl Iterator<Item = Option<String>>) -> Option<String> {
    let mut all = String::new();
    for text in texts {
        all.push_str(&text?);
        if all.len() > LONGEST {
            return None;
        }
    }
    Some(all)
}

/// `s/plain text/other/g` of sed on every line, with `*` behind the last character at most; none for anything cleverer.
fn substituted(text: &str, command: &str) -> Option<String> {
    let rest = command.trim().strip_prefix('s')?;
    let mark = rest.chars().next().filter(|c| c.is_ascii_punctuation())?;
    let mut parts: Vec<String> = vec![String::new()];
    let mut chars = rest[mark.len_utf8()..].chars().peekable();
    let mut run = None;
    while let Some(c) = chars.next() {
        let sought = parts.len() == 1;
        match c {
            '\\' => match chars.next()? {
                other if other == mark => parts.last_mut()?.push(mark),
                other if sought && "+?|(){}<>'`".contains(other) => return None,
                other if other.is_ascii_punctuation() => parts.last_mut()?.push(other),
                _ => return None,
            },
            c if c == mark => parts.push(String::new()),
            '*' if sought && chars.peek() == Some(&mark) => run = Some(parts[0].pop()?),
            // Of one sort of pattern or the other; an unknown text decides nothing.
            c if sought && (".*[^$+?|(){}".contains(c) || c == UNKNOWN || c == UNSET) => return None,
            '&' if parts.len() == 2 => return None,
            c => parts.last_mut()?.push(c),
        }
    }
    let [from, to, how] = parts.as_slice() else { return None };
    let all = match how.as_str() {
        "" => false,
        "g" => true,
        _ => return None,
    };
    if from.is_empty() || text.matches(from.as_str()).count().saturating_mul(to.len()) > LONGEST {
        return None;
    }
    let mut edited = String::with_capacity(text.len());
    for mut line in text.split_inclusive('\n') {
        while let Some((before, after)) = line.split_once(from) {
            edited.push_str(before);
            edited.push_str(to);
            line = run.map_or(after, |c| after.trim_start_matches(c));
            if !all {
                break;
            }
        }
        edited.push_str(line);
    }
    Some(edited)
}

#[cfg(test)]
mod tests {
    use super::substituted;

    #[test]
    fn sed_substitutes_plain_text() {
        assert_eq!(substituted("a A\na A A\n", "s/A/1/").as_deref(), Some("a 1\na 1 A\n"));
        assert_eq!(substituted("A A\n", "s|A|x/y|g").as_deref(), Some("x/y x/y\n"));
        assert_eq!(substituted("a/b", "s/a\\/b/c/").as_deref(), Some("c"));
        assert_eq!(substituted("a   b c\n  d\n", "s/  */ /g").as_deref(), Some("a b c\n d\n"));
        assert_eq!(substituted("xabbb ab", "s/ab*/-/").as_deref(), Some("x- ab"));
        for command in [
            "s/[A-Z]/x/",
            "s/A.*/x/",
            "/A/d",
            "s/A/x",
            "y/a/b/",
            "s/A/&&/",
            "s//x/",
            "",
            "s/A/x/2",
            "s/A\\+/x/",
            "s/A+/x/",
            "s/A*/x/",
            "s/*/x/",
            "s/BA*C/x/",
        ] {
            assert_eq!(substituted("A", command), None, "{command}");
        }
    }
}
