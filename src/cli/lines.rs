//! Lines for people, no longer than their terminal is wide.

use std::io::{self, Write};

use textwrap::{Options, WordSplitter};

/// Breaks lines between words; tables go through as they are.
pub(crate) struct Lines<W> {
    to: W,
    /// Columns, if lines are to be broken.
    width: Option<usize>,
    /// What there is of a line that has no end yet.
    begun: Vec<u8>,
}

impl<W: Write> Lines<W> {
    /// Lines of at most so many columns.
    pub(crate) fn new(to: W, width: Option<u16>) -> Self {
        Self { to, width: width.map(usize::from), begun: Vec::new() }
    }

    /// Writes a table, a line below another.
    pub(crate) fn table(&mut self, table: &str) -> io::Result<()> {
        writeln!(self.to, "{table}")
    }
}

impl<W: Write> Write for Lines<W> {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        self.begun.extend_from_slice(text);
        while let Some(end) = self.begun.iter().position(|&byte| byte == b'\n') {
            let line: Vec<u8> = self.begun.drain(..=end).collect();
            let line = String::from_utf8_lossy(&line[..end]);
            match self.width {
                Some(width) => writeln!(self.to, "{}", broken(&line, width))?,
                None => writeln!(self.to, "{line}")?,
            }
        }
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

/// A line broken between words, what follows further in; a word that is longer than that stays whole.
fn broken(line: &str, width: usize) -> String {
    let text = line.trim_start();
    let indent = &line[..line.len() - text.len()];
    let further = format!("{indent}  ");
    let options = Options::new(width)
        .initial_indent(indent)
        .subsequent_indent(&further)
        .word_splitter(WordSplitter::NoHyphenation)
        .break_words(false);
    textwrap::fill(text, options)
}
