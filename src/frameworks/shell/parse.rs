//! Shell text to commands: words with their expansions, lists, `if`, `for`, `while`, `case`, functions,
//! here-documents. Nothing is expanded or run here.

use super::ImportError;

/// A piece of a word.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Part {
    /// Literal text.
    Text(String),
    /// `$NAME`, `${…}` or `$((…))` (which begins with `((`).
    Variable { expression: String, quoted: bool },
    /// `$(…)` or backquotes: the text inside.
    Command { text: String, quoted: bool },
}

/// A word before expansion.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Raw {
    pub parts: Vec<Part>,
    pub line: usize,
    /// Some part of it stands in quotes: it is a field even if it is empty.
    pub quoted: bool,
}

impl Raw {
    /// The text of a word without expansions.
    pub(super) fn plain(&self) -> Option<String> {
        self.parts.iter().map(|p| if let Part::Text(t) = p { Some(t.as_str()) } else { None }).collect()
    }
    /// A word that is not quoted and reads like this.
    fn is(&self, text: &str) -> bool {
        !self.quoted && self.plain().as_deref() == Some(text)
    }
}

/// An array in an assignment.
#[derive(Debug, Clone)]
pub(super) struct Array {
    pub name: String,
    pub append: bool,
    pub words: Vec<Raw>,
}

/// A here-document.
#[derive(Debug, Clone)]
pub(super) struct Document {
    /// Its text as one quoted word, or as it stands where the delimiter is quoted.
    pub body: Raw,
}

/// Where a command's files are: of those numbered otherwise than standard input and output nothing is kept.
#[derive(Debug, Clone, Default)]
pub(super) struct Streams {
    /// Here-documents and here-strings.
    pub documents: Vec<Document>,
    /// Here-documents whose text is still to come.
    waiting: usize,
    /// `< FILE`
    pub input: Option<Raw>,
    /// `> FILE`, `>> FILE`: whether the text goes behind what is there.
    pub output: Option<(Raw, bool)>,
}

/// What links a command to the one before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Link {
    /// A new line, `;` or `&`.
    Then,
    /// `|`
    Pipe,
    /// `&&`
    And,
    /// `||`
    Or,
}

pub(super) type List = Vec<(Link, Command)>;

#[derive(Debug, Clone)]
pub(super) enum Command {
    Simple { words: Vec<Raw>, arrays: Vec<Array>, streams: Streams, negated: bool },
    If { arms: Vec<(List, List)>, otherwise: List },
    While { test: List, body: List, until: bool },
    For { name: String, words: Vec<Raw>, body: List },
    Case { word: Raw, arms: Vec<(Vec<Raw>, List)> },
    Group(List),
    Function { name: String, body: List },
}

/// Deepest nesting of commands: beyond it a script is refused rather than the stack risked.
const DEEPEST: u32 = 64;

/// Reads a script.
pub(super) fn parse(text: &str) -> Result<List, ImportError> {
    read(text, None)
}

/// Reads the text of another file: its words stand on the line that asks for it.
pub(super) fn parse_sourced(text: &str, line: usize) -> Result<List, ImportError> {
    read(text, Some(line))
}

fn read(text: &str, fixed: Option<usize>) -> Result<List, ImportError> {
    let chars = text.chars().collect();
    let mut parser = Parser { chars, at: 0, line: 1, fixed, waiting: Vec::new(), depth: 0 };
    let list = parser.list(&[])?;
    match parser.peek() {
        None => Ok(list),
        Some(c) => Err(ImportError::new(parser.line, format!("unexpected `{c}`"))),
    }
}

/// Reads a text as if it stood in double quotes, without an end.
pub(super) fn template(text: &str, line: usize) -> Result<Raw, ImportError> {
    let chars = text.chars().collect();
    let mut parser = Parser { chars, at: 0, line, fixed: None, waiting: Vec::new(), depth: 0 };
    let mut raw = Raw { parts: Vec::new(), line, quoted: true };
    let mut text = String::new();
    parser.quoted_text(&mut raw, &mut text, None, line)?;
    flush(&mut raw, &mut text);
    Ok(raw)
}

struct Parser {
    chars: Vec<char>,
    at: usize,
    line: usize,
    /// The line of all words, where the text is that of another file.
    fixed: Option<usize>,
    /// Here-documents whose text begins after this line: delimiter, whether it is quoted, `<<-`.
    waiting: Vec<(String, bool, bool)>,
    depth: u32,
}

impl Parser {
    fn peek(&self) -> Option<char> {
        self.chars.get(self.at).copied()
    }
    fn second(&self) -> Option<char> {
        self.chars.get(self.at + 1).copied()
    }
    fn next(&mut self) -> Option<char> {
        let c = self.peek()?;
        self.at += 1;
        self.line += usize::from(c == '\n');
        Some(c)
    }
    fn error<T>(&self, message: impl Into<String>) -> Result<T, ImportError> {
        Err(ImportError::new(self.line, message))
    }
    /// The last line that holds anything: where a script was cut off.
    fn last_line(&self) -> usize {
        let text: String = self.chars.iter().collect();
        text.trim_end().lines().count().max(1)
    }

    /// Skips blanks, comments and continuations.
    fn blanks(&mut self) -> Result<(), ImportError> {
        loop {
            match (self.peek(), self.second()) {
                (Some('\\'), Some('\n')) => {
                    if self.chars[self.at + 1..].iter().all(|c| c.is_whitespace()) {
                        return self.error("the text ends in a continuation line");
                    }
                    self.next();
                    self.next();
                }
                (Some('\\'), Some('\r')) if self.chars.get(self.at + 2) == Some(&'\n') => {
                    self.at += 2;
                    self.next();
                }
                (Some('\\'), None) => return self.error("the text ends in a continuation line"),
                (Some(' ' | '\t' | '\r'), _) => {
                    self.next();
                }
                (Some('#'), _) => {
                    while self.peek().is_some_and(|c| c != '\n') {
                        self.next();
                    }
                }
                _ => return Ok(()),
            }
        }
    }

    /// Skips blanks and empty lines; reads here-documents that wait.
    fn lines(&mut self, documents: &mut Vec<Document>) -> Result<(), ImportError> {
        loop {
            self.blanks()?;
            match self.peek() {
                Some('\n') => self.newline(documents)?,
                Some(';') if self.second() != Some(';') => {
                    self.next();
                }
                _ => return Ok(()),
            }
        }
    }

    fn newline(&mut self, documents: &mut Vec<Document>) -> Result<(), ImportError> {
        self.next();
        for (delimiter, literal, tabs) in std::mem::take(&mut self.waiting) {
            let line = self.line;
            let mut body = String::new();
            loop {
                let mut text = String::new();
                let mut ended = false;
                loop {
                    match self.next() {
                        Some('\n') => break,
                        Some(c) => text.push(c),
                        None => {
                            ended = true;
                            break;
                        }
                    }
                }
                let shown = if tabs { text.trim_start_matches('\t') } else { &text };
                if shown.trim_end_matches('\r') == delimiter {
                    break;
                }
                if ended {
                    let message = format!("this here-document is never closed by `{delimiter}`");
                    return Err(ImportError::new(line.saturating_sub(1), message));
                }
                body.push_str(shown);
                body.push('\n');
            }
            let shown = self.fixed.unwrap_or(line);
            let body = if literal {
                Raw { parts: vec![Part::Text(body)], line: shown, quoted: true }
            } else {
                template(&body, shown)?
            };
            documents.push(Document { body });
        }
        Ok(())
    }

    /// Commands up to one of these words, to a closing parenthesis or `;;`, or to the end.
    fn list(&mut self, ends: &[&str]) -> Result<List, ImportError> {
        self.depth += 1;
        if self.depth > DEEPEST {
            return self.error("commands are nested too deeply");
        }
        let mut list: List = Vec::new();
        let mut link = Link::Then;
        loop {
            let mut documents = Vec::new();
            self.lines(&mut documents)?;
            attach(&mut list, documents);
            match self.peek() {
                None | Some(')') => break,
                Some(';') => break,
                _ => {}
            }
            if self.word_ahead(ends) {
                break;
            }
            let command = self.command()?;
            list.push((link, command));
            link = Link::Then;
            self.blanks()?;
            match (self.peek(), self.second()) {
                (Some('&'), Some('&')) => {
                    self.at += 2;
                    link = Link::And;
                }
                (Some('|'), Some('|')) => {
                    self.at += 2;
                    link = Link::Or;
                }
                (Some('|'), Some('&')) => {
                    self.at += 2;
                    link = Link::Pipe;
                }
                (Some('|'), _) => {
                    self.at += 1;
                    link = Link::Pipe;
                }
                (Some('&'), _) => self.at += 1,
                _ => {}
            }
        }
        self.depth -= 1;
        Ok(list)
    }

    /// Whether one of these words comes next; stays before it.
    fn word_ahead(&self, words: &[&str]) -> bool {
        let rest = &self.chars[self.at..];
        words.iter().any(|word| {
            let n = word.chars().count();
            rest.len() >= n
                && rest[..n].iter().copied().eq(word.chars())
                && rest.get(n).is_none_or(|c| " \t\r\n;&|()<>".contains(*c))
        })
    }

    /// Passes a keyword that must come now.
    fn keyword(&mut self, word: &str, open: &str, line: usize) -> Result<(), ImportError> {
        let mut documents = Vec::new();
        self.lines(&mut documents)?;
        if self.word_ahead(&[word]) {
            self.at += word.chars().count();
            return Ok(());
        }
        let at = if self.peek().is_none() { self.last_line() } else { self.line };
        Err(ImportError::new(at, format!("the `{open}` of line {line} is never closed by `{word}`")))
    }

    fn command(&mut self) -> Result<Command, ImportError> {
        let line = self.line;
        let take = |parser: &mut Self, word: &str| {
            let there = parser.word_ahead(&[word]);
            parser.at += if there { word.chars().count() } else { 0 };
            there
        };
        if take(self, "if") {
            let mut arms = Vec::new();
            let mut otherwise = Vec::new();
            loop {
                let test = self.list(&["then"])?;
                self.keyword("then", "if", line)?;
                let body = self.list(&["elif", "else", "fi"])?;
                arms.push((test, body));
                if take(self, "elif") {
                    continue;
                }
                if take(self, "else") {
                    otherwise = self.list(&["fi"])?;
                }
                self.keyword("fi", "if", line)?;
                return self.redirected(Command::If { arms, otherwise });
            }
        }
        for (word, until) in [("while", false), ("until", true)] {
            if take(self, word) {
                let test = self.list(&["do"])?;
                self.keyword("do", word, line)?;
                let body = self.list(&["done"])?;
                self.keyword("done", word, line)?;
                return self.redirected(Command::While { test, body, until });
            }
        }
        if take(self, "for") {
            self.blanks()?;
            let (name, words) = if self.peek() == Some('(') {
                self.parentheses()?;
                (String::new(), vec![Raw { parts: Vec::new(), line, quoted: true }])
            } else {
                let name = self.word()?.and_then(|w| w.plain()).unwrap_or_default();
                self.lines(&mut Vec::new())?;
                let mut words = Vec::new();
                if take(self, "in") {
                    while let Some(word) = self.word()? {
                        words.push(word);
                    }
                }
                (name, words)
            };
            self.keyword("do", "for", line)?;
            let body = self.list(&["done"])?;
            self.keyword("done", "for", line)?;
            return self.redirected(Command::For { name, words, body });
        }
        if take(self, "case") {
            let Some(word) = self.word()? else { return self.error("`case` needs a word") };
            self.keyword("in", "case", line)?;
            let mut arms = Vec::new();
            loop {
                self.lines(&mut Vec::new())?;
                if take(self, "esac") {
                    return self.redirected(Command::Case { word, arms });
                }
                if self.peek().is_none() {
                    return self.keyword("esac", "case", line).map(|()| Command::Group(Vec::new()));
                }
                if self.peek() == Some('(') {
                    self.next();
                }
                let mut patterns = Vec::new();
                while let Some(pattern) = self.word()? {
                    patterns.push(pattern);
                    self.blanks()?;
                    if self.peek() == Some('|') {
                        self.next();
                    }
                }
                if self.next() != Some(')') {
                    return self.error("expected `)` after a pattern of `case`");
                }
                let body = self.list(&["esac"])?;
                if self.peek() == Some(';') {
                    while self.peek().is_some_and(|c| ";&".contains(c)) {
                        self.next();
                    }
                }
                arms.push((patterns, body));
            }
        }
        if take(self, "{") {
            let body = self.list(&["}"])?;
            self.keyword("}", "{", line)?;
            return self.redirected(Command::Group(body));
        }
        if self.peek() == Some('(') {
            if self.second() == Some('(') {
                self.parentheses()?;
                return Ok(Command::Group(Vec::new()));
            }
            self.next();
            let body = self.list(&[])?;
            if self.next() != Some(')') {
                return Err(ImportError::new(line, "this parenthesis is never closed"));
            }
            return self.redirected(Command::Group(body));
        }
        if take(self, "function") {
            let name = self.word()?.and_then(|w| w.plain()).unwrap_or_default();
            self.blanks()?;
            if self.peek() == Some('(') {
                self.parentheses()?;
            }
            return self.function(name);
        }
        self.simple()
    }

    /// Redirections and here-documents behind a compound command. What it writes into a file is not followed: a
    /// command that prints what nobody knows stands for it.
    fn redirected(&mut self, command: Command) -> Result<Command, ImportError> {
        let mut streams = Streams::default();
        let line = self.fixed.unwrap_or(self.line);
        self.blanks()?;
        while matches!(self.peek(), Some('<' | '>')) {
            self.redirection(&mut streams)?;
            self.blanks()?;
        }
        if streams.output.is_none() {
            return Ok(command);
        }
        let word = Raw { parts: vec![Part::Text(":".into())], line, quoted: false };
        let streams = Streams { output: streams.output, ..Streams::default() };
        let unknown = Command::Simple { words: vec![word], arrays: Vec::new(), streams, negated: false };
        Ok(Command::Group(vec![(Link::Then, unknown), (Link::Then, command)]))
    }

    fn function(&mut self, name: String) -> Result<Command, ImportError> {
        self.lines(&mut Vec::new())?;
        let body = match self.command()? {
            Command::Group(list) => list,
            other => vec![(Link::Then, other)],
        };
        Ok(Command::Function { name, body })
    }

    fn simple(&mut self) -> Result<Command, ImportError> {
        let (mut words, mut arrays): (Vec<Raw>, Vec<Array>) = (Vec::new(), Vec::new());
        let mut streams = Streams::default();
        let mut negated = false;
        loop {
            self.blanks()?;
            if words.is_empty() && self.word_ahead(&["!"]) {
                self.next();
                negated = !negated;
                continue;
            }
            if words.first().is_some_and(|w| w.is("[[")) && !words.last().is_some_and(|w| w.is("]]")) {
                // Inside a test, `&&`, `<` and parentheses are words.
                let line = self.fixed.unwrap_or(self.line);
                let operator = match (self.peek(), self.second()) {
                    (Some('&'), Some('&')) => "&&",
                    (Some('|'), Some('|')) => "||",
                    (Some('('), _) => "(",
                    (Some(')'), _) => ")",
                    (Some('<'), _) => "<",
                    (Some('>'), _) => ">",
                    (Some('\n'), _) => {
                        self.next();
                        continue;
                    }
                    _ => "",
                };
                if !operator.is_empty() {
                    self.at += operator.len();
                    words.push(Raw { parts: vec![Part::Text(operator.into())], line, quoted: false });
                    continue;
                }
            }
            if let Some(word) = self.word()? {
                if self.peek() == Some('(') {
                    let name = word.plain().unwrap_or_default();
                    let assigned = name.strip_suffix("+=").map(|n| (n, true));
                    if let Some((name, append)) = assigned.or(name.strip_suffix('=').map(|n| (n, false))) {
                        let (name, line) = (name.to_owned(), self.line);
                        self.next();
                        arrays.push(Array { name, append, words: self.array(line)? });
                        continue;
                    }
                    if words.is_empty() && self.second() == Some(')') {
                        self.at += 2;
                        return self.function(name);
                    }
                    return self.error(format!("unexpected `(` after `{name}`: quote it"));
                }
                words.push(word);
                continue;
            }
            match (self.peek(), self.second()) {
                (Some('('), Some(')')) if words.len() == 1 => {
                    self.at += 2;
                    return self.function(words[0].plain().unwrap_or_default());
                }
                (Some('<' | '>'), _) => {
                    // `2>`: the number right before belongs to the redirection.
                    let glued = self.at > 0 && self.chars[self.at - 1].is_ascii_digit();
                    let number = words
                        .last()
                        .and_then(Raw::plain)
                        .filter(|w| glued && w.bytes().all(|b| b.is_ascii_digit()));
                    let mut elsewhere = Streams::default();
                    let standard = number.as_ref().is_none_or(|n| n == "0" || n == "1");
                    if number.is_some() {
                        words.pop();
                    }
                    self.redirection(if standard { &mut streams } else { &mut elsewhere })?;
                }
                (Some('&'), Some('>')) => {
                    self.next();
                    self.redirection(&mut streams)?;
                }
                _ => break,
            }
        }
        Ok(Command::Simple { words, arrays, streams, negated })
    }

    fn redirection(&mut self, streams: &mut Streams) -> Result<(), ImportError> {
        let mut operator = String::new();
        while let Some(c) = self.peek().filter(|c| "<>&|".contains(*c)) {
            operator.push(c);
            self.next();
        }
        if operator.starts_with("<<") && operator != "<<<" {
            let tabs = self.peek() == Some('-');
            if tabs {
                self.next();
            }
            let Some(word) = self.word()? else { return self.error("a here-document without a delimiter") };
            let literal = word.quoted;
            self.waiting.push((word.plain().unwrap_or_default(), literal, tabs));
            streams.waiting += 1;
            return Ok(());
        }
        if self.peek() == Some('-') {
            self.next();
            return Ok(());
        }
        self.blanks()?;
        if self.peek() == Some('(') {
            return self.parentheses().map(drop);
        }
        if matches!(self.peek(), Some('<' | '>')) && self.second() == Some('(') {
            self.next();
            return self.parentheses().map(drop);
        }
        let Some(word) = self.word()? else { return Ok(()) };
        match operator.as_str() {
            ">" | ">|" => streams.output = Some((word, false)),
            ">>" => streams.output = Some((word, true)),
            "<" => streams.input = Some(word),
            "<<<" => streams.documents.push(Document { body: word }),
            _ => {}
        }
        Ok(())
    }

    /// Everything between balanced parentheses, the outer ones included.
    fn parentheses(&mut self) -> Result<String, ImportError> {
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
    fn word(&mut self) -> Result<Option<Raw>, ImportError> {
        self.blanks()?;
        let line = self.line;
        let mut raw = Raw { parts: Vec::new(), line: self.fixed.unwrap_or(line), quoted: false };
        let mut text = String::new();
        let mut any = false;
        while let Some(c) = self.peek() {
            if matches!(c, ' ' | '\t' | '\r' | '\n' | ';' | '&' | '|' | ')' | '(' | '<' | '>') {
                break;
            }
            any = true;
            self.next();
            match c {
                '\\' => match self.next() {
                    Some('\n') => {}
                    Some('\r') if self.peek() == Some('\n') => {
                        self.next();
                    }
                    Some(c) => text.push(c),
                    None => return self.error("the text ends in a continuation line"),
                },
                '\'' => {
                    raw.quoted = true;
                    loop {
                        match self.next() {
                            Some('\'') => break,
                            Some(c) => text.push(c),
                            None => return Err(ImportError::new(line, "this single quote is never closed")),
                        }
                    }
                }
                '"' => {
                    raw.quoted = true;
                    let open = self.line;
                    self.quoted_text(&mut raw, &mut text, Some('"'), open)?;
                }
                '$' => self.dollar(&mut raw, &mut text, false)?,
                '`' => self.backquoted(&mut raw, &mut text, false)?,
                c => text.push(c),
            }
        }
        flush(&mut raw, &mut text);
        Ok(any.then_some(raw))
    }

    /// Text with expansions up to a closing quote, or to the end where there is none.
    fn quoted_text(
        &mut self,
        raw: &mut Raw,
        text: &mut String,
        end: Option<char>,
        line: usize,
    ) -> Result<(), ImportError> {
        loop {
            let c = self.next();
            match c {
                None if end.is_none() => return Ok(()),
                None => return Err(ImportError::new(line, "this double quote is never closed")),
                Some(c) if Some(c) == end => return Ok(()),
                Some('\\') => match self.next() {
                    Some('\n') => {}
                    Some(c @ ('"' | '\\' | '$' | '`')) => text.push(c),
                    Some(c) => {
                        text.push('\\');
                        text.push(c);
                    }
                    None => text.push('\\'),
                },
                Some('$') => self.dollar(raw, text, true)?,
                Some('`') => self.backquoted(raw, text, true)?,
                Some(c) => text.push(c),
            }
        }
    }

    fn backquoted(&mut self, raw: &mut Raw, text: &mut String, quoted: bool) -> Result<(), ImportError> {
        let line = self.line;
        let mut inner = String::new();
        loop {
            match self.next() {
                Some('`') => break,
                Some('\\') => inner.extend(self.next()),
                Some(c) => inner.push(c),
                None => return Err(ImportError::new(line, "this backquote is never closed")),
            }
        }
        flush(raw, text);
        raw.parts.push(Part::Command { text: inner, quoted });
        Ok(())
    }

    /// What follows a dollar.
    fn dollar(&mut self, raw: &mut Raw, text: &mut String, quoted: bool) -> Result<(), ImportError> {
        let line = self.line;
        let mut push = |raw: &mut Raw, part: Part| {
            flush(raw, text);
            raw.parts.push(part);
        };
        match self.peek() {
            Some('{') => {
                self.next();
                let mut depth = 1;
                let mut expression = String::new();
                loop {
                    match self.next() {
                        Some('\\') => {
                            expression.push('\\');
                            expression.extend(self.next());
                        }
                        Some('{') => {
                            depth += 1;
                            expression.push('{');
                        }
                        Some('}') => {
                            depth -= 1;
                            if depth == 0 {
                                break;
                            }
                            expression.push('}');
                        }
                        Some(c) => expression.push(c),
                        None => return Err(ImportError::new(line, "this ${ is never closed")),
                    }
                }
                push(raw, Part::Variable { expression, quoted });
            }
            Some('(') => {
                let inner = self.parentheses()?;
                match inner.strip_prefix("((").and_then(|s| s.strip_suffix("))")) {
                    Some(sum) => push(raw, Part::Variable { expression: format!("(({sum}"), quoted }),
                    None => {
                        let text = inner[1..inner.len() - 1].to_owned();
                        push(raw, Part::Command { text, quoted });
                    }
                }
            }
            Some(c) if c.is_ascii_alphabetic() || c == '_' => {
                let mut expression = String::new();
                while let Some(c) = self.peek().filter(|c| c.is_ascii_alphanumeric() || *c == '_') {
                    expression.push(c);
                    self.next();
                }
                push(raw, Part::Variable { expression, quoted });
            }
            Some(c @ ('@' | '*' | '#' | '?' | '!' | '$' | '-' | '0'..='9')) => {
                self.next();
                push(raw, Part::Variable { expression: c.to_string(), quoted });
            }
            Some('\'' | '"') if !quoted => {}
            _ => text.push('$'),
        }
        Ok(())
    }

    /// Words up to the closing parenthesis.
    fn array(&mut self, line: usize) -> Result<Vec<Raw>, ImportError> {
        let mut words = Vec::new();
        loop {
            match self.word()? {
                Some(word) => words.push(word),
                None => match self.next() {
                    Some(')') => return Ok(words),
                    Some('\n') => {}
                    Some(c) => return self.error(format!("unexpected `{c}` in an array: quote it")),
                    None => return Err(ImportError::new(line, "this array is never closed")),
                },
            }
        }
    }
}

fn flush(raw: &mut Raw, text: &mut String) {
    if !text.is_empty() {
        raw.parts.push(Part::Text(std::mem::take(text)));
    }
}

/// Here-documents belong to the simple commands that asked for them, in order.
fn attach(list: &mut List, found: Vec<Document>) {
    let mut found = found.into_iter();
    for (_, command) in list.iter_mut() {
        if let Command::Simple { streams, .. } = command {
            let before = streams.documents.len();
            streams.documents.extend(found.by_ref().take(streams.waiting));
            streams.waiting -= streams.documents.len() - before;
        }
    }
}
