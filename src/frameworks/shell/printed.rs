//! What simple commands print: `cat`, `echo`, `printf` and `sed` over texts that the script itself holds, alone, in
//! a pipe or into a file. Any other program's output is unknown.

use super::parse::{Command, Link, List, Raw, Streams};
use super::run::{Shell, UNSET};
use super::{UNKNOWN, is_unknown};

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
                files.into_iter().map(read).collect()
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
                    files => files.iter().map(|path| read(path)).collect(),
                };
                commands.into_iter().try_fold(text?, |text, command| substituted(&text, command))
            }
            _ => None,
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
        let before = if *append { self.text_at(&name) } else { Some(String::new()) };
        let text = match (before, text) {
            (before, Some(text)) => Some(before.unwrap_or_default() + &text),
            (_, None) => None,
        };
        let text = text.map(|text| text.replace(UNSET, &UNKNOWN.to_string()));
        self.written.insert(name, Written { text, line: path.line });
    }
}

/// `s/plain text/other/g` of sed on every line; none for anything cleverer.
fn substituted(text: &str, command: &str) -> Option<String> {
    let rest = command.trim().strip_prefix('s')?;
    let mark = rest.chars().next().filter(|c| c.is_ascii_punctuation())?;
    let mut parts: Vec<String> = vec![String::new()];
    let mut chars = rest[mark.len_utf8()..].chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next()? {
                other if other == mark => parts.last_mut()?.push(mark),
                // A dot, a star or a backslash that is meant as such.
                other if other.is_ascii_punctuation() => parts.last_mut()?.push(other),
                _ => return None,
            },
            c if c == mark => parts.push(String::new()),
            c => parts.last_mut()?.push(c),
        }
    }
    let [from, to, how] = parts.as_slice() else { return None };
    // What is unknown is put in all the same; as what is sought it decides nothing.
    if from.is_empty() || from.contains(['*', '[', '^', '$', UNKNOWN]) || to.contains('&') || is_unknown(how)
    {
        return None;
    }
    let lines = text.split_inclusive('\n');
    Some(
        lines
            .map(|l| if how.contains('g') { l.replace(from, to) } else { l.replacen(from, to, 1) })
            .collect(),
    )
}

#[cfg(test)]
mod tests {
    use super::substituted;

    #[test]
    fn sed_substitutes_plain_text() {
        assert_eq!(substituted("a A\na A A\n", "s/A/1/").as_deref(), Some("a 1\na 1 A\n"));
        assert_eq!(substituted("A A\n", "s|A|x/y|g").as_deref(), Some("x/y x/y\n"));
        assert_eq!(substituted("a/b", "s/a\\/b/c/").as_deref(), Some("c"));
        for command in ["s/[A-Z]/x/", "s/A.*/x/", "/A/d", "s/A/x", "y/a/b/", "s/A/&&/", "s//x/", ""] {
            assert_eq!(substituted("A", command), None, "{command}");
        }
    }
}
