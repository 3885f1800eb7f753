//! Errors in specifications: what was found, where, what was expected, and the nearest valid choice.

use std::fmt;
use std::ops::Range;

use annotate_snippets::{AnnotationKind, Group, Level, Origin, Renderer, Snippet};
use ron::error::{Error as RonError, SpannedError};
use serde::de::DeserializeOwned;

use super::model::Fault;
use super::scan::{Scan, scan};
use super::shipped;

/// Longest line that a report keeps; more is cut out around the marked text.
const LONGEST_LINE: usize = 2000;

/// An error in a file or an argument. [`SpecError::render`] is the report for people; `Display` is its
/// first line with file, line and column.
#[derive(Debug, Clone, thiserror::Error)]
pub struct SpecError(Box<Report>);

#[derive(Debug, Clone)]
struct Report {
    source: String,
    title: String,
    marks: Vec<Mark>,
    notes: Vec<String>,
    helps: Vec<String>,
}

/// A marked place, with the piece of its line that is shown.
#[derive(Debug, Clone)]
struct Mark {
    line: usize,
    column: usize,
    shown: String,
    /// `shown` is not the whole line.
    cut: bool,
    span: Range<usize>,
    label: String,
}

impl fmt::Display for SpecError {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let report = &self.0;
        if !report.source.is_empty() {
            write!(f, "{}:", report.source)?;
            if let Some(mark) = report.marks.first() {
                write!(f, "{}:{}:", mark.line, mark.column)?;
            }
            f.write_str(" ")?;
        }
        f.write_str(&report.title)
    }
}

impl SpecError {
    /// An error about `source`: a path, the name of a shipped file, or nothing.
    #[must_use]
    pub fn new(source: impl Into<String>, title: impl Into<String>) -> Self {
        let (source, title) = (printable(&source.into(), 400), printable(&title.into(), 600));
        Self(Box::new(Report { source, title, marks: Vec::new(), notes: Vec::new(), helps: Vec::new() }))
    }

    /// Marks a piece of the source's text (byte offsets; anything out of range is clamped). The first
    /// mark is the error's place, later ones are context.
    #[must_use]
    pub fn mark(mut self, text: &str, span: Range<usize>, label: impl Into<String>) -> Self {
        self.0.marks.push(Mark::new(text, span, printable(&label.into(), 200)));
        self
    }

    /// Adds a line that explains.
    #[must_use]
    pub fn note(mut self, text: impl Into<String>) -> Self {
        self.0.notes.push(printable(&text.into(), 1000));
        self
    }

    /// Adds a line that says what to do.
    #[must_use]
    pub fn help(mut self, text: impl Into<String>) -> Self {
        self.0.helps.push(printable(&text.into(), 1000));
        self
    }

    /// Adds the nearest of the candidates, if one is near.
    #[must_use]
    pub fn nearest<'a>(self, found: &str, candidates: impl IntoIterator<Item = &'a str>) -> Self {
        let near = shipped::nearest(found, candidates);
        if near.is_empty() { self } else { self.help(format!("did you mean {}?", list(&near, "or"))) }
    }

    /// The same error about a source that has a name.
    #[must_use]
    pub fn in_source(mut self, source: impl Into<String>) -> Self {
        self.0.source = printable(&source.into(), 400);
        self
    }

    /// What is wrong, in one line, without the place.
    #[must_use]
    pub fn title(&self) -> &str {
        &self.0.title
    }

    /// Line and column (from 1) of the error, where it has a place in a text.
    #[must_use]
    pub fn place(&self) -> Option<(usize, usize)> {
        self.0.marks.first().map(|mark| (mark.line, mark.column))
    }

    /// The whole report, with ANSI colours or without.
    #[must_use]
    pub fn render(&self, colour: bool) -> String {
        let report = &*self.0;
        let renderer = if colour { Renderer::styled() } else { Renderer::plain() };
        let mut group = Group::with_title(Level::ERROR.primary_title(&*report.title));
        for (index, mark) in report.marks.iter().enumerate() {
            let kind = if index == 0 { AnnotationKind::Primary } else { AnnotationKind::Context };
            let mut annotation = kind.span(mark.span.clone());
            if !mark.label.is_empty() {
                annotation = annotation.label(&*mark.label);
            }
            // The renderer counts columns itself, which a cut line would falsify.
            let snippet = Snippet::source(&*mark.shown).line_start(mark.line).annotation(annotation);
            group = if mark.cut {
                let place = format!("{}:{}:{}", report.source, mark.line, mark.column);
                group.element(snippet.line_numbering(false).path(format!("{place} (cut)")))
            } else {
                group.element(snippet.path(&*report.source))
            };
        }
        if report.marks.is_empty() && !report.source.is_empty() {
            group = group.element(Origin::path(&*report.source));
        }
        for note in &report.notes {
            group = group.element(Level::NOTE.message(&**note));
        }
        for help in &report.helps {
            group = group.element(Level::HELP.message(&**help));
        }
        renderer.render(&[group])
    }

    /// An error of [`Fault`]'s kind: finds the field again in the text.
    #[must_use]
    pub fn from_fault(source: &str, text: &str, fault: &Fault) -> Self {
        let found = scan(text);
        let within = fault.within.as_deref();
        let title = match within {
            Some(within) => format!("invalid `{}` in `{within}`: {}", fault.field, fault.message),
            None => format!("invalid `{}`: {}", fault.field, fault.message),
        };
        let mut error = Self::new(source, title);
        if let Some(key) = found.key(&fault.field, within) {
            // The word that the message quotes, where the value is a list of words.
            let value = &text[key.value.clone()];
            let word = fault.message.split('`').nth(1).unwrap_or_default();
            let inside = value.find(&format!("\"{word}\"")).filter(|_| !word.is_empty());
            if let Some(at) = inside {
                let start = key.value.start + at;
                error = error.mark(text, start..start + word.len() + 2, "");
                let blocks = found
                    .keys
                    .iter()
                    .filter(|k| k.parent.is_some_and(|parent| found.keys[parent].name == "blocks"));
                error = error.nearest(word, blocks.map(|k| k.name.as_str()));
            } else if value.contains('\n') {
                error = error.mark(text, key.span.clone(), "");
            } else {
                error = error.mark(text, key.value.clone(), "");
            }
        } else if let Some(key) = within.and_then(|within| found.key(within, None)) {
            error = error.mark(text, key.span.clone(), format!("`{}` is not given here", fault.field));
        }
        error
    }

    /// A JSON syntax or type error.
    #[must_use]
    pub fn from_json(source: &str, text: &str, error: &serde_json::Error) -> Self {
        let whole = error.to_string();
        let title = whole.split(" at line ").next().unwrap_or(&whole);
        if error.line() == 0 {
            return Self::new(source, title);
        }
        let end = offset(text, error.line(), error.column());
        // serde_json stands behind the last byte it read.
        Self::new(source, title).mark(text, end.saturating_sub(1)..end, "")
    }
}

/// Reads a value from RON text; `source` names the text in errors.
///
/// # Errors
/// Syntax errors, unknown and missing fields, wrong types and quantities, each with its place.
pub fn parse_ron<T: DeserializeOwned>(source: &str, text: &str) -> Result<T, SpecError> {
    super::ron_options().from_str(text).map_err(|error| from_ron(source, text, &error))
}

fn from_ron(source: &str, text: &str, error: &SpannedError) -> SpecError {
    let found = scan(text);
    let start = offset(text, error.span.start.line, error.span.start.col);
    let end = offset(text, error.span.end.line, error.span.end.col).max(start);
    if let Some(unterminated) = &found.unterminated {
        let begin = unterminated.start;
        let title = format!("this {} never ends", unterminated.what);
        return SpecError::new(source, title).mark(text, begin..begin + 1, "it begins here");
    }
    if text.trim().is_empty() {
        return SpecError::new(source, "the file is empty");
    }
    if leading(text) == text.len() {
        return SpecError::new(source, "the file holds comments only");
    }
    let mut spot = token_at(text, start, end);
    // The parser stands behind the opening quote of a string whose contents are refused.
    if let (RonError::Message(_), Some(key)) = (&error.code, found.key_at(spot.start))
        && key.value.start < spot.start
        && text[key.value.start..spot.start].trim_matches('"').is_empty()
    {
        spot = key.value.clone();
    }
    // A file that ends too early may end in the middle of a word.
    if found.unclosed().is_some() && text[spot.end..].trim().is_empty() {
        return syntax(source, text, &error.code, start, spot, &found);
    }
    match &error.code {
        RonError::NoSuchStructField { expected, found: name, outer } => {
            let outer = outer.as_deref().map(|o| format!(" in `{o}`")).unwrap_or_default();
            let error = SpecError::new(source, format!("unknown field `{name}`{outer}")).mark(text, spot, "");
            alternatives(brackets(error, text, &found), name, expected, "fields")
        }
        RonError::NoSuchEnumVariant { expected, found: name, outer } => {
            let outer = outer.as_deref().map(|o| format!(" of `{o}`")).unwrap_or_default();
            alternatives(
                SpecError::new(source, format!("unknown variant `{name}`{outer}")).mark(text, spot, ""),
                name,
                expected,
                "variants",
            )
        }
        RonError::MissingStructField { field, outer } => {
            let title = match outer {
                Some(outer) => format!("missing field `{field}` in `{outer}`"),
                None => format!("missing field `{field}`"),
            };
            let bracket = found.bracket_at(start).or_else(|| found.bracket_at(start.saturating_sub(1)));
            let place = bracket.map_or(spot, |b| b.head.clone().unwrap_or(b.open..b.open + 1));
            let error = SpecError::new(source, title).mark(text, place, format!("`{field}` is needed here"));
            let error = brackets(error, text, &found);
            if *field == "schema" {
                error.help("add `schema: 1,`: the version of this format")
            } else {
                error
            }
        }
        RonError::DuplicateStructField { field, .. } => {
            let again = found.keys.iter().rfind(|k| k.name == *field && k.span.start < end);
            let first = again.and_then(|again| {
                found.keys.iter().find(|k| k.name == *field && k.bracket == again.bracket && k != &again)
            });
            let place = again.map_or(spot, |k| k.span.clone());
            let error = SpecError::new(source, format!("field `{field}` is given twice"));
            let error = error.mark(text, place, "again here");
            match first {
                Some(first) => error.mark(text, first.span.clone(), "first here"),
                None => error,
            }
        }
        RonError::ExceededRecursionLimit => {
            SpecError::new(source, "nested deeper than 32 levels").mark(text, start..start + 1, "")
        }
        code => syntax(source, text, code, start, spot, &found),
    }
}

/// Errors of syntax, types and quantities.
fn syntax(
    source: &str,
    text: &str,
    code: &RonError,
    start: usize,
    spot: Range<usize>,
    found: &Scan,
) -> SpecError {
    if let Some((close, open)) = found.mismatched {
        let bracket = &text[close..=close];
        let error = SpecError::new(source, format!("`{bracket}` closes no bracket of its kind"));
        let error = error.mark(text, close..close + 1, "");
        return match open.map(|open| found.brackets[open].open) {
            Some(open) => error.mark(text, open..open + 1, "the bracket open here is another"),
            None => error,
        };
    }
    if let Some(bracket) = found.unclosed() {
        let open = bracket.open;
        let title = format!("`{}` is never closed", &text[open..=open]);
        return SpecError::new(source, title).mark(text, open..open + 1, "it opens here");
    }
    // A parser that stops inside or right behind a value means the whole of it.
    let key = found.key_at(spot.start).filter(|key| key.value.start <= spot.start);
    let spot = match (key, code) {
        (
            Some(key),
            RonError::IntegerOutOfBounds
            | RonError::ExpectedDifferentLength { .. }
            | RonError::InvalidValueForType { .. },
        ) => key.value.clone(),
        _ => spot,
    };
    let word = &text[spot.clone()];
    let of = key.map(|key| format!("invalid `{}`: ", key.name)).unwrap_or_default();
    if let (Some(key), RonError::ExpectedComma) = (key, code)
        && key.value.start < spot.start
        && key.value.end == spot.end
        && !text[key.value.clone()].contains(char::is_whitespace)
    {
        let title = format!("{of}expected a whole number, found {}", quoted(&text[key.value.clone()]));
        return SpecError::new(source, title).mark(text, key.value.clone(), "");
    }
    let expected = |what: &str| {
        let label = if word.is_empty() { String::new() } else { format!("expected {what}") };
        let title = format!("{of}expected {what}, found {}", quoted(word));
        SpecError::new(source, title).mark(text, spot.clone(), label)
    };
    match code {
        RonError::Message(message) => SpecError::new(source, format!("{of}{message}")).mark(text, spot, ""),
        RonError::InvalidValueForType { expected: what, .. } => {
            let title = format!("{of}expected {what}, found {}", quoted(word));
            SpecError::new(source, title).mark(text, spot, "")
        }
        RonError::ExpectedDifferentLength { expected: what, found } => {
            let title = format!("{of}expected {what}, found {found}");
            SpecError::new(source, title).mark(text, spot, "")
        }
        RonError::ExpectedInteger => expected("a whole number"),
        RonError::ExpectedFloat => expected("a number"),
        RonError::ExpectedBoolean => expected("`true` or `false`"),
        RonError::ExpectedString => expected("text in quotes"),
        RonError::ExpectedArray => expected("a list `[...]`"),
        RonError::ExpectedMap => expected("a map `{...}`"),
        RonError::ExpectedStructLike => expected("fields in parentheses `(...)`"),
        RonError::ExpectedNamedStructLike(_) if word.starts_with('{') && spot.start == leading(text) => {
            expected("fields in parentheses `(...)`")
                .help("this is JSON; only models are read from JSON, everything else is RON")
        }
        RonError::ExpectedNamedStructLike(name) => expected(&format!("`{name}(...)`")),
        RonError::ExpectedIdentifier => expected("a name"),
        RonError::ExpectedComma => expected("a comma or a closing bracket"),
        RonError::ExpectedMapColon => expected("a colon"),
        RonError::ExpectedOption => expected("a value"),
        RonError::ExpectedArrayEnd => expected("`]`"),
        RonError::ExpectedMapEnd => expected("`}`"),
        RonError::ExpectedStructLikeEnd | RonError::ExpectedOptionEnd => expected("`)`"),
        RonError::IntegerOutOfBounds => {
            let size = if word.starts_with('-') { "is negative" } else { "is too large" };
            SpecError::new(source, format!("{of}{} {size}", quoted(word))).mark(text, spot, "")
        }
        RonError::TrailingCharacters => SpecError::new(source, "text after the end of the specification")
            .mark(text, spot, "nothing may follow the closing bracket"),
        RonError::Eof => SpecError::new(source, "the file ends too early").mark(text, start..start, ""),
        other => {
            let message = other.to_string();
            let mut characters = message.chars();
            let lower = characters.next().map(|c| c.to_lowercase().to_string()).unwrap_or_default();
            SpecError::new(source, format!("{of}{lower}{}", characters.as_str())).mark(text, spot, "")
        }
    }
}

fn alternatives(error: SpecError, found: &str, expected: &[&str], what: &str) -> SpecError {
    let error = error.nearest(found, expected.iter().copied());
    if expected.is_empty() {
        return error.note(format!("there are no {what} here"));
    }
    let mut sorted = shipped::nearest(found, expected.iter().copied());
    sorted.extend(expected.iter().filter(|name| !sorted.contains(name)).collect::<Vec<_>>());
    error.note(format!("{what} are {}", list(&sorted, "and")))
}

/// Says where brackets do not match: fields then seem to belong elsewhere.
fn brackets(error: SpecError, text: &str, found: &Scan) -> SpecError {
    let line = |at: usize| 1 + text[..at].matches('\n').count();
    if let Some((close, Some(open))) = found.mismatched {
        let (open, closing) = (found.brackets[open].open, &text[close..=close]);
        let opening = &text[open..=open];
        return error.help(format!(
            "brackets do not match: `{closing}` in line {} meets `{opening}` of line {}",
            line(close),
            line(open)
        ));
    }
    if let Some(bracket) = found.unclosed() {
        let open = bracket.open;
        return error.help(format!("`{}` in line {} is never closed", &text[open..=open], line(open)));
    }
    error
}

/// "`a`, `b` or `c`".
pub(crate) fn list(names: &[&str], conjunction: &str) -> String {
    let quoted: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
    match quoted.split_last() {
        None => String::new(),
        Some((only, [])) => only.clone(),
        Some((last, rest)) => format!("{} {conjunction} {last}", rest.join(", ")),
    }
}

fn quoted(word: &str) -> String {
    if word.trim().is_empty() { "nothing".to_owned() } else { format!("`{}`", printable(word, 60)) }
}

/// One line without control characters, cut to a length.
fn printable(text: &str, longest: usize) -> String {
    let mut line: String = text
        .chars()
        .take(longest + 1)
        .map(|c| if c.is_control() || is_bidirectional(c) { ' ' } else { c })
        .collect();
    if line.chars().count() > longest {
        line.pop();
        line.push_str("...");
    }
    line
}

/// Characters that reorder the text around them.
fn is_bidirectional(c: char) -> bool {
    matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Byte offset of a line and column, both from 1, the column in characters.
fn offset(text: &str, line: usize, column: usize) -> usize {
    let start = match line {
        0 | 1 => 0,
        _ => text.match_indices('\n').nth(line - 2).map_or(text.len(), |(at, _)| at + 1),
    };
    let rest = &text[start..];
    start + rest.char_indices().nth(column.max(1) - 1).map_or(rest.len(), |(at, _)| at)
}

/// The word at a place: the parser's own span where it lies on one line, else the word that begins
/// there.
fn token_at(text: &str, start: usize, end: usize) -> Range<usize> {
    // The parser's span may begin with the blanks and comments before the value.
    let begin = start + leading(&text[start..end]);
    let own = &text[begin..end];
    if !own.trim_end().is_empty() && !own.contains('\n') {
        return begin..begin + own.trim_end().len();
    }
    let rest = &text[begin..];
    if rest.starts_with('"') {
        let mut escaped = false;
        for (at, c) in rest.char_indices().skip(1) {
            match c {
                _ if escaped => escaped = false,
                '\\' => escaped = true,
                '"' => return begin..begin + at + 1,
                '\n' => break,
                _ => {}
            }
        }
    }
    let stop = |c: char| c.is_whitespace() || "()[]{}:,".contains(c);
    let mut length = rest.find(stop).unwrap_or(rest.len());
    if length == 0 {
        length = rest.chars().next().filter(|c| !c.is_whitespace()).map_or(0, char::len_utf8);
    }
    begin..begin + length
}

/// Bytes of blanks and comments at the beginning.
fn leading(text: &str) -> usize {
    let mut rest = text.trim_start();
    loop {
        rest = if let Some(comment) = rest.strip_prefix("//") {
            comment.split_once('\n').map_or("", |(_, after)| after).trim_start()
        } else if let Some(comment) = rest.strip_prefix("/*") {
            comment.split_once("*/").map_or("", |(_, after)| after).trim_start()
        } else {
            return text.len() - rest.len();
        };
    }
}

impl Mark {
    fn new(text: &str, span: Range<usize>, label: String) -> Self {
        let floor =
            |at: usize| (0..=at.min(text.len())).rev().find(|&i| text.is_char_boundary(i)).unwrap_or(0);
        let start = floor(span.start);
        let end = floor(span.end).max(start);
        let line_start = text[..start].rfind('\n').map_or(0, |at| at + 1);
        let line_end = text[start..].find(['\n', '\r']).map_or(text.len(), |at| start + at);
        let line = 1 + text[..line_start].matches('\n').count();
        let column = 1 + text[line_start..start].chars().count();
        let end = end.min(line_end);
        // A long line is cut around the marked piece.
        let from = if line_end - line_start > LONGEST_LINE {
            floor(start.saturating_sub(40)).max(line_start)
        } else {
            line_start
        };
        let longest = if line_end - line_start > LONGEST_LINE { 120 } else { LONGEST_LINE };
        let to = floor((from + longest).min(line_end)).max(start);
        let shown = &text[from..to];
        let span = start - from..end.min(to) - from;
        let cut = to - from < line_end - line_start;
        Self { line, column, shown: shown.to_owned(), cut, span, label }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_and_columns_count_characters() {
        let text = "a\u{e4}b\ncd\n";
        assert_eq!(offset(text, 1, 3), 3);
        assert_eq!(offset(text, 2, 2), 6);
        assert_eq!(offset(text, 99, 99), text.len());
        let mark = Mark::new(text, 6..7, String::new());
        assert_eq!((mark.line, mark.column), (2, 2));
        for start in 0..20 {
            for end in 0..20 {
                let error = SpecError::new("x", "y").mark(text, start..end, "z");
                assert!(error.render(true).contains("error"));
            }
        }
    }

    #[test]
    fn long_lines_are_cut_around_the_mark() {
        let text = format!("{}here{}", "x ".repeat(100_000), " y".repeat(100_000));
        let error = SpecError::new("f.ron", "wrong").mark(&text, 200_000..200_004, "");
        let shown = error.render(false);
        assert!(shown.len() < 600 && shown.contains("here"), "{shown}");
        assert_eq!(error.place(), Some((1, 200_001)));
    }
}
