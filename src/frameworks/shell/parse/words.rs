//! Words: quotes, escapes, expansions and arrays.

use std::sync::Arc;

use super::super::{ImportError, UNKNOWN};
use super::{Parser, Part, Quoting, Raw};

/// Literal text of a word that is being read.
#[derive(Default)]
struct Pending {
    text: String,
    quoted: bool,
}

impl Pending {
    fn push(&mut self, raw: &mut Raw, c: char, quoted: bool) {
        if quoted != self.quoted {
            self.flush(raw);
            self.quoted = quoted;
        }
        self.text.push(c);
    }

    fn flush(&mut self, raw: &mut Raw) {
        if !self.text.is_empty() {
            raw.parts.push(Part::Text { text: std::mem::take(&mut self.text), quoted: self.quoted });
        }
    }
}

impl Parser {
    /// Everything between balanced parentheses, the outer ones included.
    pub(super) fn parentheses(&mut self) -> Result<String, ImportError> {
        let line = self.line;
        let (mut depth, mut inner) = (0, String::new());
        let mut quote: Option<char> = None;
        loop {
            let Some(c) = self.next() else {
                return Err(ImportError::new(line, "this $( is never closed"));
            };
            inner.push(c);
            match (quote, c) {
                (Some('\''), '\'') | (Some('"'), '"') => quote = None,
                (Some('\''), _) => {}
                (_, '\\') => inner.extend(self.next()),
                (None, '\'' | '"') => quote = Some(c),
                (None, '(') => depth += 1,
                (None, ')') => {
                    depth -= 1;
                    if depth == 0 {
                        return Ok(inner);
                    }
                }
                _ => {}
            }
        }
    }

    /// One word, or none before an operator or the end of a line.
    pub(super) fn word(&mut self) -> Result<Option<Raw>, ImportError> {
        self.blanks()?;
        let line = self.line;
        let mut raw = Raw { parts: Vec::new(), line: self.shown(line), quoted: false, members: None };
        let mut pending = Pending::default();
        let mut any = false;
        while let Some(c) = self.peek() {
            if matches!(c, '<' | '>') && self.second() == Some('(') && !any && !self.words {
                self.next();
                raw.parts.push(Part::Process(self.commands()?));
                any = true;
                continue;
            }
            if self.patterns && "?*+@!".contains(c) && self.second() == Some('(') {
                self.pattern_group(&mut raw, &mut pending)?;
                any = true;
                continue;
            }
            let operator = matches!(c, ';' | '&' | '|' | ')' | '(' | '<' | '>') && !self.words;
            if operator || matches!(c, ' ' | '\t' | '\r' | '\n') {
                break;
            }
            any = true;
            self.piece(&mut raw, &mut pending)?;
        }
        pending.flush(&mut raw);
        Ok(any.then_some(raw))
    }

    /// `@(a|b)` and the like, in which blanks and bars are text.
    fn pattern_group(&mut self, raw: &mut Raw, pending: &mut Pending) -> Result<(), ImportError> {
        let line = self.line;
        let mut depth = 0_u32;
        while let Some(c) = self.peek() {
            if matches!(c, '(' | ')') {
                depth = if c == '(' { depth + 1 } else { depth.saturating_sub(1) };
                self.next();
                pending.push(raw, c, false);
                if depth == 0 {
                    return Ok(());
                }
            } else {
                self.piece(raw, pending)?;
            }
        }
        Err(ImportError::new(line, "this pattern is never closed by `)`"))
    }

    /// The next character of a word outside quotes, with what belongs to it.
    fn piece(&mut self, raw: &mut Raw, pending: &mut Pending) -> Result<(), ImportError> {
        let line = self.line;
        match self.next() {
            Some('\\') => match self.next() {
                Some('\n') | None => {}
                Some(c) => pending.push(raw, c, true),
            },
            Some('\'') => {
                raw.quoted = true;
                let start = self.at;
                loop {
                    match self.next() {
                        Some('\'') => break,
                        Some(c) => pending.push(raw, c, true),
                        None => return Err(ImportError::new(line, "this single quote is never closed")),
                    }
                }
                if self.at == start + 1 {
                    empty_quotes(raw, pending);
                }
            }
            Some('"') => {
                raw.quoted = true;
                let start = self.at;
                self.quoted_text(raw, pending, line)?;
                if self.at == start + 1 {
                    empty_quotes(raw, pending);
                }
            }
            Some('$') => self.dollar(raw, pending, false)?,
            Some('`') => self.backquoted(raw, pending, false)?,
            Some(c) => pending.push(raw, c, false),
            None => {}
        }
        Ok(())
    }

    /// Text with expansions up to the closing quote.
    fn quoted_text(&mut self, raw: &mut Raw, pending: &mut Pending, line: usize) -> Result<(), ImportError> {
        loop {
            match self.peek() {
                None => return Err(ImportError::new(line, "this double quote is never closed")),
                Some('"') => {
                    self.next();
                    return Ok(());
                }
                Some(_) => self.quoted_piece(raw, pending, "\"\\$`")?,
            }
        }
    }

    /// The next character inside quotes, with what belongs to it; a backslash is dropped before one of `escaped`.
    fn quoted_piece(
        &mut self,
        raw: &mut Raw,
        pending: &mut Pending,
        escaped: &str,
    ) -> Result<(), ImportError> {
        match self.next() {
            Some('\\') => match self.next() {
                Some('\n') => {}
                Some(c) => {
                    if !escaped.contains(c) {
                        pending.push(raw, '\\', true);
                    }
                    pending.push(raw, c, true);
                }
                None => pending.push(raw, '\\', true),
            },
            Some('$') => self.dollar(raw, pending, true)?,
            Some('`') => self.backquoted(raw, pending, true)?,
            Some(c) => pending.push(raw, c, true),
            None => {}
        }
        Ok(())
    }

    /// The rest of the text as one word.
    pub(super) fn whole(&mut self, raw: &mut Raw, quoting: Quoting) -> Result<(), ImportError> {
        let mut pending = Pending::default();
        while let Some(c) = self.peek() {
            match quoting {
                Quoting::Document => self.quoted_piece(raw, &mut pending, "\\$`")?,
                Quoting::Double if c == '"' => {
                    self.next();
                }
                Quoting::Double => self.quoted_piece(raw, &mut pending, "\"\\$`}")?,
                Quoting::None => self.piece(raw, &mut pending)?,
            }
        }
        pending.flush(raw);
        Ok(())
    }

    fn backquoted(&mut self, raw: &mut Raw, pending: &mut Pending, quoted: bool) -> Result<(), ImportError> {
        let line = self.line;
        let mut inner = String::new();
        loop {
            match self.next() {
                Some('`') => break,
                Some('\\') => match self.next() {
                    Some(c) if "`\\$".contains(c) || (quoted && c == '"') => inner.push(c),
                    Some(c) => inner.extend(['\\', c]),
                    None => {}
                },
                Some(c) => inner.push(c),
                None => return Err(ImportError::new(line, "this backquote is never closed")),
            }
        }
        let mut parser = Self::new(&inner, line, self.places.clone());
        parser.depth = self.depth;
        let list = parser.list(&[]).ok().filter(|_| parser.peek().is_none());
        pending.flush(raw);
        raw.parts.push(Part::Command { list: list.map(Arc::new), quoted });
        Ok(())
    }

    /// What follows a dollar.
    fn dollar(&mut self, raw: &mut Raw, pending: &mut Pending, quoted: bool) -> Result<(), ImportError> {
        match self.peek() {
            Some('{') => {
                let expression = self.braces(quoted)?;
                pending.flush(raw);
                raw.parts.push(Part::Variable { expression, quoted });
            }
            Some('(') => {
                let part = match self.arithmetic() {
                    Some(sum) => Part::Variable { expression: format!("(({sum}"), quoted },
                    None => Part::Command { list: self.commands()?, quoted },
                };
                pending.flush(raw);
                raw.parts.push(part);
            }
            // `$[sum]`, as it was once written.
            Some('[') => {
                let mut sum = String::new();
                self.next();
                while let Some(c) = self.next().filter(|c| *c != ']') {
                    sum.push(c);
                }
                pending.flush(raw);
                raw.parts.push(Part::Variable { expression: format!("(({sum}"), quoted });
            }
            Some(c) if c.is_ascii_alphabetic() || c == '_' => {
                let mut expression = String::new();
                while let Some(c) = self.peek().filter(|c| c.is_ascii_alphanumeric() || *c == '_') {
                    expression.push(c);
                    self.next();
                }
                pending.flush(raw);
                raw.parts.push(Part::Variable { expression, quoted });
            }
            Some(c @ ('@' | '*' | '#' | '?' | '!' | '$' | '-' | '0'..='9')) => {
                self.next();
                pending.flush(raw);
                raw.parts.push(Part::Variable { expression: c.to_string(), quoted });
            }
            Some('\'') if !quoted => self.escapes(raw, pending)?,
            Some('"') if !quoted => {}
            _ => pending.push(raw, '$', quoted),
        }
        Ok(())
    }

    /// `$'a\tb'`, from its quote on.
    fn escapes(&mut self, raw: &mut Raw, pending: &mut Pending) -> Result<(), ImportError> {
        let line = self.line;
        raw.quoted = true;
        self.next();
        loop {
            match self.next() {
                Some('\'') => return Ok(()),
                Some('\\') => match self.next() {
                    Some('n') => pending.push(raw, '\n', true),
                    Some('t') => pending.push(raw, '\t', true),
                    Some('r') => pending.push(raw, '\r', true),
                    Some(c @ ('\\' | '\'' | '"' | '?')) => pending.push(raw, c, true),
                    // By number, and what no flag holds.
                    Some(_) => pending.push(raw, UNKNOWN, true),
                    None => {}
                },
                Some(c) => pending.push(raw, c, true),
                None => return Err(ImportError::new(line, "this single quote is never closed")),
            }
        }
    }

    /// What stands between the braces of `${ … }`, which come next.
    fn braces(&mut self, quoted: bool) -> Result<String, ImportError> {
        let line = self.line;
        let mut expression = String::new();
        // What closes the braces, parentheses and quotes that are open.
        let mut open: Vec<char> = Vec::new();
        loop {
            let Some(c) = self.next() else {
                return Err(ImportError::new(line, "this ${ is never closed"));
            };
            expression.push(c);
            let inside = open.last().copied();
            if inside == Some('\'') {
                if c == '\'' {
                    open.pop();
                }
                continue;
            }
            if c == '\\' {
                expression.extend(self.next());
                continue;
            }
            if inside == Some(c) {
                open.pop();
                if open.is_empty() {
                    expression.pop();
                    return Ok(expression.split_off(1));
                }
                continue;
            }
            let doubled = inside == Some('"') || (quoted && open.iter().all(|c| *c == '}'));
            match c {
                '{' if open.is_empty() || expression.ends_with("${") => open.push('}'),
                '(' if expression.ends_with("$(") || inside == Some(')') => open.push(')'),
                '`' => open.push('`'),
                '"' => open.push('"'),
                '\'' if !doubled => open.push('\''),
                _ => {}
            }
        }
    }

    /// Words up to the closing parenthesis.
    pub(super) fn array(&mut self, line: usize) -> Result<Vec<Raw>, ImportError> {
        let mut words = Vec::new();
        loop {
            match self.word()? {
                Some(word) => words.push(word),
                None => match self.peek() {
                    Some(')') => {
                        self.next();
                        return Ok(words);
                    }
                    Some('\n') => self.newline()?,
                    Some(c) => return self.error(format!("unexpected `{c}` in an array: quote it")),
                    None => return Err(ImportError::new(line, "this array is never closed")),
                },
            }
        }
    }
}

/// Empty quotes are a word, or part of one.
fn empty_quotes(raw: &mut Raw, pending: &mut Pending) {
    pending.flush(raw);
    raw.parts.push(Part::Text { text: String::new(), quoted: true });
}
