//! What simple commands print: `cat`, `echo`, `printf`, `tee` and `sed` over texts that the script itself holds, alone,
//! in a pipe or into a file, and what `cp` and `mv` do to them. Any other program's output is unknown.

use std::collections::BTreeMap;

use super::parse::{Command, Link, List, Raw, Streams};
use super::run::{LONGEST, Shell};
use super::{Files, UNKNOWN, UNSET, UNTOLD, as_value, is_unknown};

/// Most bytes that a script may write into files; what it writes beyond is unknown.
const MOST_KEPT: usize = 64 * LONGEST;

/// Text that a script writes into a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Written {
    /// The text; none where only a running shell knows it.
    pub text: Option<String>,
    /// Line of the command that writes it, counted from 1.
    pub line: usize,
}

impl Shell<'_> {
    /// What a list of commands prints, where it is one pipe of commands that only print.
    pub(super) fn printed_by(&self, list: &List) -> Option<String> {
        let mut text = None;
        for (at, (link, command)) in list.iter().enumerate() {
            let Command::Simple { words, streams, .. } = command else { return None };
            if (at > 0) != (*link == Link::Pipe) {
                return None;
            }
            text = self.printed(words, streams, text);
        }
        text
    }

    /// What a command prints; `piped` is what the one before it in a pipe did.
    fn printed(&self, words: &[Raw], streams: &Streams, piped: Option<String>) -> Option<String> {
        let Some(first) = words.first() else {
            // `$(< FILE)`
            return streams.input.as_ref().and_then(|_| self.read_in(streams, &piped));
        };
        let program = first.plain()?;
        if !matches!(program.as_str(), "echo" | "printf" | "cat" | "sed" | "tee") {
            return None;
        }
        let rest = self.texts(&words[1..]);
        let read =
            |path: &String| if path == "-" { self.read_in(streams, &piped) } else { self.text_at(path) };
        let text = match program.as_str() {
            "echo" => {
                let options =
                    rest.iter().take_while(|w| matches!(w.as_str(), "-n" | "-e" | "-ne" | "-en")).count();
                let has = |option: char| rest[..options].iter().any(|w| w.contains(option));
                let text = rest[options..].join(" ");
                let plain = !has('e') || !text.contains('\\');
                plain.then(|| text + if has('n') { "" } else { "\n" })
            }
            "printf" => match rest.as_slice() {
                [text] if !text.contains('%') => Some(text.replace("\\n", "\n")),
                [form, text] if form == "%s" => Some(text.clone()),
                [form, text] if form == "%s\\n" => Some(format!("{text}\n")),
                _ => None,
            },
            "cat" => {
                let files: Vec<&String> = rest.iter().filter(|w| *w == "-" || !w.starts_with('-')).collect();
                if files.is_empty() {
                    self.read_in(streams, &piped)
                } else {
                    joined(files.into_iter().map(read))
                }
            }
            "sed" => {
                let sed = Sed::of(&rest).filter(|sed| !sed.in_place)?;
                let text = match sed.files.as_slice() {
                    [] => self.read_in(streams, &piped),
                    files => joined(files.iter().map(read)),
                };
                sed.edit(text?)
            }
            _ => self.read_in(streams, &piped),
        };
        text.filter(|text| text.len() <= LONGEST)
    }

    /// Follows what a command prints and writes: into files, which are kept, or for the next in a pipe.
    pub(super) fn print(
        &mut self,
        words: &[Raw],
        streams: &Streams,
        piped: Option<String>,
    ) -> Option<String> {
        let first = words.first()?;
        let printed = self.printed(words, streams, piped);
        let rest = |shell: &Self| shell.texts(&words[1..]);
        match first.plain().as_deref() {
            Some("cp" | "mv") => {
                if let [from, to] = rest(self).as_slice() {
                    let text = self.text_at(from);
                    self.keep(to, false, text, first.line);
                }
            }
            Some("tee") => {
                let rest = rest(self);
                let append = rest.iter().any(|w| w == "-a");
                for path in rest.iter().filter(|w| !w.starts_with('-')) {
                    self.keep(path, append, printed.clone(), first.line);
                }
            }
            Some("sed") => {
                let rest = rest(self);
                let in_place = rest.iter().any(|w| w.starts_with("-i") || w == "--in-place");
                if let (Some(path), true) = (rest.last(), in_place) {
                    let text = Sed::of(&rest).and_then(|sed| sed.edit(self.text_at(path)?));
                    self.keep(path, false, text, first.line);
                }
            }
            _ => {}
        }
        let Some((path, append)) = &streams.output else { return printed };
        let name = self.joined(path);
        self.keep(&name, *append, printed, path.line);
        None
    }

    /// Standard input of a command.
    fn read_in(&self, streams: &Streams, piped: &Option<String>) -> Option<String> {
        match (streams.documents.first(), &streams.input) {
            (Some(document), _) => Some(self.joined(&document.body)),
            (None, Some(path)) => self.text_at(&self.joined(path)),
            (None, None) => piped.clone(),
        }
    }

    /// Keeps what is written into a file.
    fn keep(&mut self, path: &str, append: bool, text: Option<String>, line: usize) {
        let Some(key) = self.key_of(path) else { return };
        let before = match self.written.get(&key) {
            _ if !append => Some(String::new()),
            Some(written) => written.text.clone(),
            None => Some(self.text_at(path).unwrap_or_default()),
        };
        let text = joined([before, text].into_iter()).map(|text| as_value(&text));
        self.kept += text.as_ref().map_or(0, String::len);
        let text = text.filter(|_| self.kept <= MOST_KEPT);
        self.written.insert(key, Written { text, line });
    }

    /// Words as texts.
    fn texts(&self, words: &[Raw]) -> Vec<String> {
        words.iter().flat_map(|w| self.fields(w)).map(|w| w.text).collect()
    }
}

/// What a file holds by its key: what a script has written into it, with the line, or what stands beside the script.
///
/// # Errors
/// Why it cannot be read.
pub(super) fn held(
    written: &BTreeMap<String, Written>,
    key: &str,
    files: &Files,
) -> Result<(String, Option<usize>), String> {
    match written.get(key) {
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
}

impl Sed {
    /// Reads its arguments; none where there are others than these.
    fn of(words: &[String]) -> Option<Self> {
        let mut sed = Self { commands: Vec::new(), files: Vec::new(), in_place: false };
        let mut words = words.iter();
        while let Some(word) = words.next() {
            match word.as_str() {
                "-e" => sed.commands.push(words.next()?.clone()),
                "-E" | "-r" => {}
                "--in-place" => sed.in_place = true,
                word if word.starts_with("-i") => sed.in_place = true,
                word if word.starts_with('-') => return None,
                _ if sed.commands.is_empty() => sed.commands.push(word.clone()),
                _ => sed.files.push(word.clone()),
            }
        }
        Some(sed)
    }

    /// What becomes of a text.
    fn edit(&self, text: String) -> Option<String> {
        self.commands.iter().try_fold(text, |text, command| substituted(&text, command))
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

/// `s/plain text/other/g` of sed on every line; none for anything cleverer.
fn substituted(text: &str, command: &str) -> Option<String> {
    let rest = command.trim().strip_prefix('s')?;
    let mark = rest.chars().next().filter(|c| c.is_ascii_punctuation())?;
    let mut parts: Vec<String> = vec![String::new()];
    let mut chars = rest[mark.len_utf8()..].chars();
    while let Some(c) = chars.next() {
        let sought = parts.len() == 1;
        match c {
            '\\' => match chars.next()? {
                other if other == mark => parts.last_mut()?.push(mark),
                other if sought && "+?|(){}".contains(other) => return None,
                other if other.is_ascii_punctuation() => parts.last_mut()?.push(other),
                _ => return None,
            },
            c if c == mark => parts.push(String::new()),
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
    let lines = text.split_inclusive('\n');
    Some(lines.map(|line| if all { line.replace(from, to) } else { line.replacen(from, to, 1) }).collect())
}

#[cfg(test)]
mod tests {
    use super::substituted;

    #[test]
    fn sed_substitutes_plain_text() {
        assert_eq!(substituted("a A\na A A\n", "s/A/1/").as_deref(), Some("a 1\na 1 A\n"));
        assert_eq!(substituted("A A\n", "s|A|x/y|g").as_deref(), Some("x/y x/y\n"));
        assert_eq!(substituted("a/b", "s/a\\/b/c/").as_deref(), Some("c"));
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
        ] {
            assert_eq!(substituted("A", command), None, "{command}");
        }
    }
}
