//! What simple commands print: `cat`, `echo`, `printf` and `sed` over texts that the script itself holds, alone, in
//! a pipe or into a file. Any other program's output is unknown.

use super::UNKNOWN;
use super::parse::{Command, Link, List, Raw, Streams};
use super::run::{LONGEST, Shell, UNSET};

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
    pub(super) fn printed(&self, words: &[Raw], streams: &Streams, piped: Option<String>) -> Option<String> {
        self.printed_text(words, streams, piped).filter(|text| text.len() <= LONGEST)
    }

    fn printed_text(&self, words: &[Raw], streams: &Streams, piped: Option<String>) -> Option<String> {
        let fields: Vec<String> = words.iter().flat_map(|w| self.fields(w)).map(|w| w.text).collect();
        let read =
            |path: &String| if path == "-" { self.read_in(streams, &piped) } else { self.text_at(path) };
        let Some((program, rest)) = fields.split_first() else {
            // `$(< FILE)`
            return streams.input.as_ref().and_then(|_| self.read_in(streams, &piped));
        };
        match program.as_str() {
            "echo" => {
                let quiet =
                    rest.iter().take_while(|w| matches!(w.as_str(), "-n" | "-e" | "-ne" | "-en")).count();
                let end = if rest[..quiet].iter().any(|w| w.contains('n')) { "" } else { "\n" };
                Some(format!("{}{end}", rest[quiet..].join(" ")))
            }
            "printf" => match rest {
                [text] if !text.contains('%') => Some(text.replace("\\n", "\n")),
                [form, text] if matches!(form.as_str(), "%s" | "%s\\n") => {
                    Some(format!("{text}{}", if form == "%s" { "" } else { "\n" }))
                }
                _ => None,
            },
            "cat" => {
                let files: Vec<&String> = rest.iter().filter(|w| *w == "-" || !w.starts_with('-')).collect();
                if files.is_empty() {
                    return self.read_in(streams, &piped);
                }
                joined(files.into_iter().map(read))
            }
            "sed" => {
                let mut commands = Vec::new();
                let mut files = Vec::new();
                let mut words = rest.iter();
                while let Some(word) = words.next() {
                    match word.as_str() {
                        "-e" => commands.push(words.next()?),
                        "-E" | "-r" => {}
                        word if word.starts_with('-') => return None,
                        _ if commands.is_empty() => commands.push(word),
                        _ => files.push(word),
                    }
                }
                let text = match files.as_slice() {
                    [] => self.read_in(streams, &piped),
                    files => joined(files.iter().map(|path| read(path))),
                };
                commands.into_iter().try_fold(text?, |text, command| substituted(&text, command))
            }
            "tee" => self.read_in(streams, &piped),
            _ => None,
        }
    }

    /// Keeps what `cp`, `mv`, `tee` and `sed -i` write.
    pub(super) fn copied(&mut self, words: &[Raw], printed: &Option<String>) {
        let fields: Vec<String> = words.iter().flat_map(|w| self.fields(w)).map(|w| w.text).collect();
        let Some((program, rest)) = fields.split_first() else { return };
        let line = words.first().map_or(1, |word| word.line);
        let named: Vec<&String> = rest.iter().filter(|w| !w.starts_with('-')).collect();
        let (path, text) = match (program.as_str(), named.as_slice()) {
            ("cp" | "mv", [from, to]) => (*to, self.text_at(from)),
            ("tee", [to]) => (*to, printed.clone()),
            ("sed", [.., file]) if rest.iter().any(|w| w.starts_with("-i")) => {
                let commands = rest.iter().filter(|w| w.starts_with('s') && *w != *file);
                let text = commands.fold(self.text_at(file), |text, command| substituted(&text?, command));
                (*file, text)
            }
            _ => return,
        };
        // A file that is neither written nor beside the script stays what it is.
        if let Some(name) = self.key_of(path).filter(|name| name.ends_with(".json")) {
            let text = text.map(|text| text.replace(UNSET, &UNKNOWN.to_string()));
            self.written.insert(name, Written { text, line });
        }
    }

    /// Standard input of a command.
    fn read_in(&self, streams: &Streams, piped: &Option<String>) -> Option<String> {
        match (streams.documents.first(), &streams.input) {
            (Some(document), _) => Some(self.joined(&document.body)),
            (None, Some(path)) => self.text_at(&self.joined(path)),
            (None, None) => piped.clone(),
        }
    }

    /// Keeps what a command writes into a file.
    pub(super) fn write(&mut self, (path, append): &(Raw, bool), text: Option<String>) {
        let Some(name) = self.key_of(&self.joined(path)) else { return };
        let before = match self.written.get(&name) {
            _ if !*append => Some(String::new()),
            Some(written) => written.text.clone(),
            None => Some(self.text_at(&name).unwrap_or_default()),
        };
        let text = joined([before, text].into_iter());
        let text = text.map(|text| text.replace(UNSET, &UNKNOWN.to_string()));
        self.written.insert(name, Written { text, line: path.line });
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
