//! Shell text to commands: words with their expansions, lists, pipes, tests, arithmetic, `if`, `for`, `while`, `case`,
//! functions, here-documents. Nothing is expanded or run here.

mod tree;
mod words;

use std::sync::{Arc, OnceLock};

use super::ImportError;
pub(super) use tree::{Arm, ArmEnd, Command, Input, Link, List, Loop, Output, Part, Pipe, Raw, Streams};

/// Flags whose values part stages with bars.
const LAYER_PATTERNS: [&str; 3] =
    ["--pipeline-model-parallel-layout", "--hybrid-layer-pattern", "--hybrid-override-pattern"];

/// What stands in such values.
const LAYERS: &str = "EtmLMDG*+-,/|()0123456789";

/// Deepest nesting of commands: beyond it a script is refused rather than the stack risked.
const DEEPEST: u32 = 64;

/// Reads a script.
pub(super) fn parse(text: &str) -> Result<List, ImportError> {
    read(text, None)
}

/// Reads the text of another file: its words stand on the line that asks for it.
pub(super) fn parse_sourced(text: &str, line: usize) -> Result<List, ImportError> {
    read(text, Some(Arc::new(vec![line])))
}

/// Reads a text that stands in the script: `places` are the script's lines of its own.
pub(super) fn parse_inside(text: &str, places: Vec<usize>) -> Result<List, ImportError> {
    let places = Arc::new(places);
    let read = read(text, Some(Arc::clone(&places)));
    read.map_err(|error| ImportError { line: place(&places, error.line), ..error })
}

/// The script's line of a text's own: behind the last one that is known, that.
fn place(places: &[usize], line: usize) -> usize {
    places.get(line - 1).or(places.last()).copied().unwrap_or(line)
}

/// Reads a text of words alone, in which no operator has a meaning.
pub(super) fn words(text: &str) -> Result<Vec<Raw>, ImportError> {
    let mut parser = Parser { words: true, ..Parser::new(&text.replace("\r\n", "\n"), 1, None) };
    let mut words = Vec::new();
    loop {
        parser.lines()?;
        match parser.word()? {
            Some(word) => words.push(word),
            None => return Ok(words),
        }
    }
}

fn read(text: &str, places: Option<Arc<Vec<usize>>>) -> Result<List, ImportError> {
    let mut parser = Parser::new(&text.replace("\r\n", "\n"), 1, places);
    let list = parser.list(&[])?;
    match parser.peek() {
        None => Ok(list),
        Some(c) => Err(ImportError::new(parser.line, format!("unexpected `{c}`"))),
    }
}

/// How a text is read that is one word, whatever stands in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Quoting {
    /// A here-document.
    Document,
    /// Inside double quotes.
    Double,
    /// Outside quotes.
    None,
}

/// Reads a text as one word.
pub(super) fn template(text: &str, line: usize, quoting: Quoting) -> Result<Raw, ImportError> {
    let mut parser = Parser::new(text, line, None);
    let mut raw = Raw { parts: Vec::new(), line, quoted: quoting != Quoting::None, members: None };
    parser.whole(&mut raw, quoting)?;
    Ok(raw)
}

/// Words that begin a command of several.
const OPENING: [&str; 8] = ["{", "[[", "if", "for", "while", "until", "case", "select"];

/// Words that close or continue what another one begins.
const CLOSING: [&str; 8] = ["then", "elif", "else", "fi", "do", "done", "esac", "}"];

/// A here-document whose text is still to come.
struct Waiting {
    delimiter: String,
    literal: bool,
    /// `<<-`
    tabs: bool,
    body: Arc<OnceLock<Raw>>,
}

struct Parser {
    chars: Vec<char>,
    at: usize,
    line: usize,
    /// The script's lines of those of the text, where it is not the script itself.
    places: Option<Arc<Vec<usize>>>,
    waiting: Vec<Waiting>,
    depth: u32,
    /// Whether `@(a|b)` and the like are part of a word.
    patterns: bool,
    /// Whether operators are part of words.
    words: bool,
    /// A here-document had no end.
    cut_off: bool,
}

impl Parser {
    fn new(text: &str, line: usize, places: Option<Arc<Vec<usize>>>) -> Self {
        let chars = text.chars().collect();
        let (waiting, cut_off) = (Vec::new(), false);
        Self { chars, at: 0, line, places, waiting, depth: 0, patterns: false, words: false, cut_off }
    }
    fn shown_line(&self) -> usize {
        self.shown(self.line)
    }
    /// The script's line of one of the text.
    fn shown(&self, line: usize) -> usize {
        self.places.as_ref().map_or(line, |places| place(places, line))
    }
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
                // At the end, the shell drops it.
                (Some('\\'), Some('\n') | None) => {
                    self.next();
                    self.next();
                }
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

    /// Skips blanks and empty lines; reads here-documents that wait. Whether a line ended.
    fn lines(&mut self) -> Result<bool, ImportError> {
        let mut ended = false;
        loop {
            self.blanks()?;
            match self.peek() {
                Some('\n') => {
                    ended = true;
                    self.newline()?;
                }
                Some(';') if !self.words && self.second() != Some(';') && self.second() != Some('&') => {
                    self.next();
                }
                _ => return Ok(ended),
            }
        }
    }

    fn newline(&mut self) -> Result<(), ImportError> {
        self.next();
        for Waiting { delimiter, literal, tabs, body: cell } in std::mem::take(&mut self.waiting) {
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
                if shown == delimiter {
                    break;
                }
                if ended {
                    self.cut_off = true;
                    let message = format!("this here-document is never closed by `{delimiter}`");
                    return Err(ImportError::new(line.saturating_sub(1), message));
                }
                body.push_str(shown);
                body.push('\n');
            }
            let shown = self.shown(line);
            let body = if literal {
                let parts = vec![Part::Text { text: body, quoted: true }];
                Raw { parts, line: shown, quoted: true, members: None }
            } else {
                template(&body, shown, Quoting::Document)?
            };
            // It is set once: the command that waits for it asked once.
            let _ = cell.set(body);
        }
        Ok(())
    }

    /// Commands up to one of these words, to a closing parenthesis or `;;`, or to the end.
    fn list(&mut self, ends: &[&str]) -> Result<List, ImportError> {
        self.deeper(|parser| parser.list_inside(ends))
    }

    fn deeper<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<T, ImportError>,
    ) -> Result<T, ImportError> {
        self.depth += 1;
        if self.depth > DEEPEST {
            return self.error("commands are nested too deeply");
        }
        let result = read(self);
        self.depth -= 1;
        result
    }

    fn list_inside(&mut self, ends: &[&str]) -> Result<List, ImportError> {
        let mut list: List = Vec::new();
        let mut link = Link::Then;
        // A command stands before that nothing has ended.
        let mut open = false;
        loop {
            if self.separators(open)? && link == Link::Then {
                link = Link::Line;
            }
            if matches!(self.peek(), None | Some(')' | ';')) || self.word_ahead(ends) {
                return match link {
                    Link::And => self.missing("&&"),
                    Link::Or => self.missing("||"),
                    Link::Then | Link::Line => Ok(list),
                };
            }
            let mut pipe = self.pipe()?;
            let next = match (self.peek(), self.second()) {
                (Some('&'), Some('&')) => Link::And,
                (Some('|'), Some('|')) => Link::Or,
                _ => Link::Then,
            };
            if next != Link::Then {
                self.at += 2;
            } else if self.peek() == Some('&') {
                self.at += 1;
                pipe.background = true;
                // What it is linked to runs beside the script as well.
                let from = if link.is_end() {
                    list.len()
                } else {
                    list.iter().rposition(|one| one.0.is_end()).unwrap_or(0)
                };
                list[from..].iter_mut().for_each(|(_, linked)| linked.background = true);
            }
            open = next == Link::Then && !pipe.background;
            list.push((link, pipe));
            link = next;
        }
    }

    /// Passes what ends a command: lines, and a semicolon where one is open. Whether a line ended.
    fn separators(&mut self, mut open: bool) -> Result<bool, ImportError> {
        let mut ended = false;
        loop {
            self.blanks()?;
            match self.peek() {
                Some('\n') => {
                    (ended, open) = (true, false);
                    self.newline()?;
                }
                Some(';') if !matches!(self.second(), Some(';' | '&')) => {
                    if !open {
                        return self.error("unexpected `;`: no command stands before it");
                    }
                    open = false;
                    self.next();
                }
                _ => return Ok(ended),
            }
        }
    }

    /// Commands that must not be none: a body or a test, behind a word.
    fn filled(&mut self, ends: &[&str], word: &str) -> Result<List, ImportError> {
        let list = self.list(ends)?;
        if list.is_empty() && self.peek().is_some() {
            return self.error(format!("no command stands behind `{word}`"));
        }
        Ok(list)
    }

    /// Whether what was just read ends a `<path to file>` of this line, as templates leave them to be filled in.
    fn closes_placeholder(&self) -> bool {
        let line = self.chars[..self.at].iter().rev().take_while(|c| **c != '\n');
        line.skip_while(|c| **c != '>').skip(1).any(|c| *c == '<')
    }

    /// Nothing stands where something must.
    fn missing<T>(&self, before: &str) -> Result<T, ImportError> {
        let line = if self.peek().is_none() { self.last_line() } else { self.line };
        Err(ImportError::new(line, format!("nothing stands behind `{before}`: is the script cut off?")))
    }

    fn pipe(&mut self) -> Result<Pipe, ImportError> {
        let mut negated = false;
        while self.word_ahead(&["!"]) {
            self.next();
            self.blanks()?;
            negated = !negated;
        }
        let mut commands = vec![self.command()?];
        loop {
            self.blanks()?;
            match (self.peek(), self.second()) {
                (Some('|'), Some('|')) => break,
                (Some('|'), second) => {
                    self.open_pattern(commands.last())?;
                    self.at += if second == Some('&') { 2 } else { 1 };
                    self.separators(false)?;
                    if matches!(self.peek(), None | Some(')' | ';' | '|')) {
                        return self.missing("|");
                    }
                    commands.push(self.command()?);
                }
                _ => break,
            }
        }
        Ok(Pipe { commands, negated, background: false })
    }

    /// Refuses a bar, which comes next, inside of a pattern of layers that lacks its quotes.
    fn open_pattern(&self, command: Option<&Command>) -> Result<(), ImportError> {
        let blank = |c: Option<&char>| c.is_none_or(|c| c.is_whitespace());
        let glued = !blank(self.at.checked_sub(1).and_then(|at| self.chars.get(at)))
            && !blank(self.chars.get(self.at + 1));
        let Some(Command::Simple { words, streams }) = command.filter(|_| glued) else { return Ok(()) };
        let plain = |word: &Raw| word.bare().unwrap_or_default();
        // A whole value may well be piped, and other programs have other names.
        let mut piped = self.chars[self.at + 1..].iter().take_while(|c| !c.is_whitespace());
        let quoted = words.last().is_none_or(|word| word.bare().is_none());
        if quoted || *streams != Streams::default() || !piped.all(|&c| LAYERS.contains(c)) {
            return Ok(());
        }
        let flag = words.iter().rev().take(2).map(plain);
        let flag = flag
            .filter_map(|word| LAYER_PATTERNS.into_iter().find(|flag| word.split('=').next() == Some(flag)));
        match flag.into_iter().next() {
            Some(flag) => {
                self.error(format!("the `|` ends the command inside of {flag}: quote the whole value"))
            }
            None => Ok(()),
        }
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

    /// Passes a word if it comes next.
    fn take(&mut self, word: &str) -> bool {
        let there = self.word_ahead(&[word]);
        self.at += if there { word.chars().count() } else { 0 };
        there
    }

    /// Passes a keyword that must come now.
    fn keyword(&mut self, word: &str, open: &str, line: usize) -> Result<(), ImportError> {
        self.lines()?;
        if self.take(word) {
            return Ok(());
        }
        let at = if self.peek().is_none() { self.last_line() } else { self.line };
        Err(ImportError::new(at, format!("the `{open}` of line {line} is never closed by `{word}`")))
    }

    fn command(&mut self) -> Result<Command, ImportError> {
        self.deeper(Self::command_inside)
    }

    fn command_inside(&mut self) -> Result<Command, ImportError> {
        let line = self.line;
        if let Some(c) = self.peek().filter(|c| *c == '|' || *c == '&' && self.second() != Some('>')) {
            return self.error(format!("unexpected `{c}`: no command stands before it"));
        }
        if let Some(word) = CLOSING.into_iter().find(|word| self.word_ahead(&[word])) {
            return self.error(format!("`{word}` belongs to nothing: is the script cut off before it?"));
        }
        if let Some(command) = self.timed()? {
            return Ok(command);
        }
        if self.take("if") {
            let command = self.branches(line)?;
            return self.redirected(command);
        }
        for (word, until) in [("while", false), ("until", true)] {
            if self.take(word) {
                let test = self.filled(&["do"], word)?;
                return self.turns(Loop::While { test, until }, word, line);
            }
        }
        for word in ["for", "select"] {
            if self.take(word) {
                let kind = self.for_head(line, word)?;
                return self.turns(kind, word, line);
            }
        }
        if self.take("case") {
            let command = self.case(line)?;
            return self.redirected(command);
        }
        if self.take("{") {
            let body = self.filled(&["}"], "{")?;
            self.keyword("}", "{", line)?;
            return self.redirected(Command::Group(body));
        }
        if self.take("[[") {
            let words = self.test(line)?;
            return self.redirected(Command::Test(words));
        }
        if self.peek() == Some('(') {
            if let Some(sum) = self.arithmetic() {
                return self.redirected(Command::Arithmetic(sum));
            }
            self.next();
            let body = self.filled(&[], "(")?;
            if self.next() != Some(')') {
                return Err(ImportError::new(line, "this parenthesis is never closed"));
            }
            return self.redirected(Command::Subshell(body));
        }
        if self.take("function") {
            let name = self.word()?.and_then(|w| w.plain()).unwrap_or_default();
            self.blanks()?;
            if self.peek() == Some('(') {
                self.parentheses()?;
            }
            return self.function(name);
        }
        self.simple()
    }

    /// `time` and `coproc` before a command of several.
    fn timed(&mut self) -> Result<Option<Command>, ImportError> {
        let start = self.at;
        let beside = self.word_ahead(&["coproc"]);
        if !self.take("time") && !self.take("coproc") {
            return Ok(None);
        }
        self.blanks()?;
        if !beside && self.take("-p") {
            self.blanks()?;
        }
        let compound = |parser: &Self| parser.peek() == Some('(') || parser.word_ahead(&OPENING);
        if beside && !compound(self) {
            // `coproc NAME {`
            let named = self.at;
            while self.peek().is_some_and(|c| c.is_ascii_alphanumeric() || c == '_') {
                self.next();
            }
            self.blanks()?;
            if !compound(self) {
                self.at = named;
            }
        }
        if !compound(self) {
            self.at = start;
            return Ok(None);
        }
        let command = self.command()?;
        if !beside {
            return Ok(Some(command));
        }
        let pipe = Pipe { commands: vec![command], negated: false, background: true };
        Ok(Some(Command::Subshell(vec![(Link::Then, pipe)])))
    }

    fn branches(&mut self, line: usize) -> Result<Command, ImportError> {
        let mut arms = Vec::new();
        let mut otherwise = Vec::new();
        loop {
            let test = self.filled(&["then"], "if")?;
            self.keyword("then", "if", line)?;
            let body = self.filled(&["elif", "else", "fi"], "then")?;
            arms.push((test, body));
            if self.take("elif") {
                continue;
            }
            if self.take("else") {
                otherwise = self.filled(&["fi"], "else")?;
            }
            self.keyword("fi", "if", line)?;
            return Ok(Command::If { arms, otherwise });
        }
    }

    /// The body of a loop.
    fn turns(&mut self, kind: Loop, word: &str, line: usize) -> Result<Command, ImportError> {
        self.lines()?;
        let body = if self.take("{") {
            let body = self.filled(&["}"], "{")?;
            self.keyword("}", word, line)?;
            body
        } else {
            self.keyword("do", word, line)?;
            let body = self.filled(&["done"], "do")?;
            self.keyword("done", word, line)?;
            body
        };
        self.redirected(Command::Loop { kind, body, line: self.shown(line) })
    }

    fn for_head(&mut self, line: usize, word: &str) -> Result<Loop, ImportError> {
        self.blanks()?;
        if self.peek() == Some('(') {
            let text = self.arithmetic();
            let parts: Vec<String> = text.iter().flat_map(|t| t.split(';')).map(str::to_owned).collect();
            return match <[String; 3]>::try_from(parts) {
                Ok([start, test, step]) => Ok(Loop::Count { start, test, step }),
                Err(_) => Err(ImportError::new(line, format!("`{word} ((` needs three parts"))),
            };
        }
        let name = self.word()?.and_then(|w| w.plain()).unwrap_or_default();
        self.lines()?;
        if !self.take("in") {
            return Ok(Loop::For { name, words: None });
        }
        let mut words = Vec::new();
        while let Some(word) = self.word()? {
            words.push(word);
        }
        // Which of them `select` takes is asked.
        let asked = (word == "select").then(|| Raw::not_understood(line));
        Ok(Loop::For { name, words: Some(words.into_iter().chain(asked).collect()) })
    }

    fn case(&mut self, line: usize) -> Result<Command, ImportError> {
        let Some(word) = self.word()? else { return self.error("`case` needs a word") };
        self.keyword("in", "case", line)?;
        let mut arms = Vec::new();
        loop {
            self.lines()?;
            if self.take("esac") {
                return Ok(Command::Case { word, arms });
            }
            if self.peek().is_none() {
                self.keyword("esac", "case", line)?;
            }
            if self.peek() == Some('(') {
                self.next();
            }
            let mut patterns = Vec::new();
            while let Some(pattern) = self.pattern_word()? {
                patterns.push(pattern);
                self.blanks()?;
                if self.peek() == Some('|') {
                    self.next();
                }
            }
            if self.next() != Some(')') {
                return self.error("expected `)` after a pattern of `case`");
            }
            if patterns.is_empty() {
                return self.error("no pattern stands before this `)` of `case`: does `;;` lack before it?");
            }
            let body = self.list(&["esac"])?;
            let mut mark = String::new();
            while let Some(c) = self.peek().filter(|c| ";&".contains(*c)) {
                mark.push(c);
                self.next();
            }
            let end = match mark.as_str() {
                ";&" => ArmEnd::Through,
                ";;&" => ArmEnd::Further,
                _ => ArmEnd::Done,
            };
            arms.push(Arm { patterns, body, end });
        }
    }

    /// The words of `[[ … ]]`: `&&`, `||`, `<`, `>` and parentheses are words of their own.
    fn test(&mut self, line: usize) -> Result<Vec<Raw>, ImportError> {
        let mut words: Vec<Raw> = Vec::new();
        loop {
            self.blanks()?;
            if self.take("]]") {
                return Ok(words);
            }
            let regular = words.last().is_some_and(|w| w.bare().as_deref() == Some("=~"));
            if regular {
                words.push(self.regular_expression()?);
                continue;
            }
            let operator = match (self.peek(), self.second()) {
                (Some('&'), Some('&')) => "&&",
                (Some('|'), Some('|')) => "||",
                (Some('('), _) => "(",
                (Some(')'), _) => ")",
                (Some('<'), _) => "<",
                (Some('>'), _) => ">",
                (Some('\n'), _) => {
                    self.newline()?;
                    continue;
                }
                _ => "",
            };
            if !operator.is_empty() {
                self.at += operator.len();
                words.push(Raw::literal(operator, self.shown_line()));
                continue;
            }
            match self.pattern_word()? {
                Some(word) => words.push(word),
                None => {
                    return Err(ImportError::new(line, "this `[[` is never closed by `]]`"));
                }
            }
        }
    }

    fn pattern_word(&mut self) -> Result<Option<Raw>, ImportError> {
        let before = std::mem::replace(&mut self.patterns, true);
        let word = self.word();
        self.patterns = before;
        word
    }

    /// What stands behind `=~`, where parentheses and bars are text.
    fn regular_expression(&mut self) -> Result<Raw, ImportError> {
        let (mut depth, mut quote, mut gnus) = (0_usize, None, false);
        let start = self.at;
        while let Some(c) = self.peek() {
            match (quote, c) {
                (_, '\\') => {
                    let escaped = self.second();
                    gnus |=
                        quote.is_none() && escaped.is_some_and(|c| c.is_alphanumeric() || "<>`'".contains(c));
                    self.next();
                }
                (Some(open), c) if open == c => quote = None,
                (Some(_), _) => {}
                (None, '"' | '\'') => quote = Some(c),
                (None, '(') => depth += 1,
                (None, ')') => depth = depth.saturating_sub(1),
                (None, c) if c.is_whitespace() && (depth == 0 || c == '\n') => break,
                _ => {}
            }
            self.next();
        }
        let text: String = self.chars[start..self.at.min(self.chars.len())].iter().collect();
        // `\w` and its like are GNU's own.
        if gnus {
            return Ok(Raw::literal("\\w", self.shown_line()));
        }
        template(&text, self.shown_line(), Quoting::None)
    }

    /// `(( … ))` to its text; stays where it is before anything else.
    fn arithmetic(&mut self) -> Option<String> {
        if self.second() != Some('(') {
            return None;
        }
        let (at, line) = (self.at, self.line);
        let text = self.parentheses().ok();
        let sum = text.as_deref().and_then(|t| t.strip_prefix("((")).and_then(|t| t.strip_suffix("))"));
        if sum.is_none_or(closes_early) {
            (self.at, self.line) = (at, line);
            return None;
        }
        sum.map(str::to_owned)
    }

    /// Redirections and here-documents behind a compound command.
    fn redirected(&mut self, command: Command) -> Result<Command, ImportError> {
        let mut streams = Streams::default();
        self.blanks()?;
        loop {
            let glued =
                matches!(self.second(), Some('<' | '>')) && self.peek().is_some_and(|c| c.is_ascii_digit());
            let both = self.peek() == Some('&') && self.second() == Some('>');
            if !glued && !both && !matches!(self.peek(), Some('<' | '>')) {
                break;
            }
            let number = if glued { self.next().map(|c| c.to_string()) } else { None };
            if both {
                self.next();
            }
            self.redirection(&mut streams, number.as_deref())?;
            self.blanks()?;
        }
        if let Some(c) = self.peek().filter(|c| !"\n;&|)".contains(*c))
            && !self.word_ahead(&CLOSING)
        {
            return self.error(format!("unexpected `{c}` behind commands that have ended"));
        }
        if streams == Streams::default() {
            return Ok(command);
        }
        Ok(Command::Redirected(Box::new(command), streams))
    }

    fn function(&mut self, name: String) -> Result<Command, ImportError> {
        self.lines()?;
        let body = match self.command()? {
            Command::Group(list) => list,
            Command::Simple { .. } => return self.error("a function's commands stand in braces"),
            other => {
                let pipe = Pipe { commands: vec![other], negated: false, background: false };
                vec![(Link::Then, pipe)]
            }
        };
        Ok(Command::Function { name, body: Arc::new(body) })
    }

    /// Passes parentheses that hold nothing, if they come next.
    fn empty_parentheses(&mut self) -> bool {
        let rest = &self.chars[self.at..];
        let inside = rest.iter().skip(1).take_while(|c| matches!(c, ' ' | '\t')).count();
        let empty = rest.first() == Some(&'(') && rest.get(inside + 1) == Some(&')');
        self.at += if empty { inside + 2 } else { 0 };
        empty
    }

    fn simple(&mut self) -> Result<Command, ImportError> {
        let mut words: Vec<Raw> = Vec::new();
        let mut streams = Streams::default();
        loop {
            self.blanks()?;
            if let Some(mut word) = self.word()? {
                if self.peek() == Some('(') {
                    let name = word.plain().unwrap_or_default();
                    if name.ends_with('=') {
                        let line = self.line;
                        self.next();
                        word.members = Some(self.array(line)?);
                        words.push(word);
                        continue;
                    }
                    if words.is_empty() && self.empty_parentheses() {
                        return self.function(name);
                    }
                    return self.error(format!("unexpected `(` after `{name}`: quote it"));
                }
                words.push(word);
                continue;
            }
            if words.len() == 1 && self.empty_parentheses() {
                return self.function(words[0].plain().unwrap_or_default());
            }
            match (self.peek(), self.second()) {
                (Some('('), _)
                    if words.last().and_then(Raw::bare).is_some_and(|word| word.starts_with("--")) =>
                {
                    let text = "unexpected `(` among the words of a command: quote the word that it begins";
                    return self.error(text);
                }
                (Some('<' | '>'), _) => {
                    // `2>`: the number right before belongs to the redirection.
                    let glued = self.at > 0 && self.chars[self.at - 1].is_ascii_digit();
                    // `{lock}>`: the name of a variable for a number of its own.
                    let named = self.at > 0 && self.chars[self.at - 1] == '}';
                    let is_name = |word: &str| {
                        let name = word.strip_prefix('{').and_then(|word| word.strip_suffix('}'));
                        name.is_some_and(|name| name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_'))
                    };
                    let number = words
                        .last()
                        .and_then(Raw::bare)
                        .filter(|w| glued && w.bytes().all(|b| b.is_ascii_digit()) || named && is_name(w));
                    if number.is_some() {
                        words.pop();
                    }
                    self.redirection(&mut streams, number.as_deref())?;
                }
                (Some('&'), Some('>')) => {
                    self.next();
                    self.redirection(&mut streams, None)?;
                }
                _ => break,
            }
        }
        Ok(Command::Simple { words, streams })
    }

    /// A redirection; `number` is that of the file that stands before it.
    fn redirection(&mut self, streams: &mut Streams, number: Option<&str>) -> Result<(), ImportError> {
        let standard = number.is_none_or(|n| n == "0" || n == "1");
        let mut operator = String::new();
        while let Some(c) = self.peek().filter(|c| "<>&|".contains(*c)) {
            // `< <(…)` without a blank.
            if !operator.is_empty() && c != '&' && c != '|' && self.second() == Some('(') {
                break;
            }
            operator.push(c);
            self.next();
        }
        if operator.starts_with("<<") && operator != "<<<" {
            let tabs = self.peek() == Some('-');
            if tabs {
                self.next();
            }
            let Some(word) = self.word()? else { return self.error("a here-document without a delimiter") };
            let (literal, body) = (word.quoted, Arc::new(OnceLock::new()));
            let delimiter = word.plain().unwrap_or_default();
            self.waiting.push(Waiting { delimiter, literal, tabs, body: Arc::clone(&body) });
            if standard {
                streams.input = Some(Input::Text(body));
            }
            return Ok(());
        }
        if self.peek() == Some('-') {
            self.next();
            return Ok(());
        }
        let Some(word) = self.word()? else {
            return if operator == ">" && self.closes_placeholder() {
                Ok(())
            } else {
                self.missing(&operator)
            };
        };
        let numbered = word.plain().is_some_and(|w| w.bytes().all(|b| b.is_ascii_digit() || b == b'-'));
        match operator.as_str() {
            "<" if standard => streams.input = Some(Input::File(word)),
            "<<<" if standard => {
                let body = Raw {
                    parts: [word.parts, vec![Part::Text { text: "\n".into(), quoted: true }]].concat(),
                    ..Raw::literal("", word.line)
                };
                streams.input = Some(Input::Text(Arc::new(OnceLock::from(body))));
            }
            "<&" if standard => streams.input = Some(Input::Elsewhere),
            ">&" if numbered && standard => streams.outputs.push(Output::Elsewhere),
            ">&" if numbered => {}
            ">" | ">|" | ">>" | ">&" | ">>&" | "<>" => streams.outputs.push(if standard {
                Output::File { path: word, append: operator.starts_with(">>") }
            } else {
                Output::Errors(word)
            }),
            _ => {}
        }
        Ok(())
    }

    /// The commands of `( … )`, of which the parenthesis comes next; none where they are not understood.
    fn commands(&mut self) -> Result<Option<Arc<List>>, ImportError> {
        let (at, line, depth) = (self.at, self.line, self.depth);
        let outer = std::mem::take(&mut self.waiting);
        self.next();
        let read = self.list(&[]);
        let closed = read.is_ok() && self.next() == Some(')');
        let inner = std::mem::replace(&mut self.waiting, outer);
        if let (Ok(list), true) = (read, closed) {
            self.waiting.extend(inner);
            return Ok(Some(Arc::new(list)));
        }
        if self.cut_off {
            return Err(ImportError::new(line, "this $( is never closed: a here-document inside has no end"));
        }
        (self.at, self.line, self.depth) = (at, line, depth);
        self.parentheses().map(|_| None)
    }
}

/// Whether the parentheses of what should stand inside `((…))` do not match: `((a); (b))` are two subshells.
fn closes_early(text: &str) -> bool {
    let mut depth = 0_i64;
    text.chars().any(|c| {
        depth += i64::from(c == '(') - i64::from(c == ')');
        depth < 0
    })
}
