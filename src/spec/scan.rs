//! A scanner that finds fields in RON (and JSON) text again, for diagnostics.
//!
//! It runs only after an error and accepts any text: it knows strings, comments and brackets, nothing
//! of types. Time and memory are linear in the text.

use std::ops::Range;

/// A `key: value` pair.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Key {
    /// Name; of a string key, what stands between the quotes.
    pub name: String,
    /// Where the key stands.
    pub span: Range<usize>,
    /// Where its value stands, without the comma.
    pub value: Range<usize>,
    /// The key whose value holds this one.
    pub parent: Option<usize>,
    /// Bracket that holds it, by its place in [`Scan::brackets`].
    pub bracket: Option<usize>,
}

/// A bracket and its partner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Bracket {
    /// Where it opens.
    pub open: usize,
    /// Where it closes; none if it never does.
    pub close: Option<usize>,
    /// The word right before it (`Attention(`) or the key whose value it is.
    pub head: Option<Range<usize>>,
}

/// What does not end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Unterminated {
    /// "string" or "block comment".
    pub what: &'static str,
    /// Where it begins. Of a string, where the first one begins that runs over a line's end: behind a
    /// missing quote every later quote changes its role.
    pub start: usize,
}

/// The structure of a text.
#[derive(Debug, Default)]
pub(crate) struct Scan {
    pub keys: Vec<Key>,
    pub brackets: Vec<Bracket>,
    pub unterminated: Option<Unterminated>,
    /// A closing bracket that no opening one, or one of another kind, precedes: its place and the
    /// opening bracket it meets.
    pub mismatched: Option<(usize, Option<usize>)>,
}

#[derive(Clone, Copy, PartialEq)]
enum Token {
    /// Identifier, number or anything else that is not punctuation.
    Word,
    Text,
    Punctuation(u8),
}

struct Tokens<'a> {
    text: &'a [u8],
    at: usize,
    unterminated: Option<Unterminated>,
    /// The first plain string with a line's end inside.
    long_string: Option<usize>,
}

impl Tokens<'_> {
    fn rest(&self) -> &[u8] {
        &self.text[self.at.min(self.text.len())..]
    }

    fn unterminated(&mut self, what: &'static str, start: usize) {
        self.unterminated.get_or_insert(Unterminated { what, start });
        self.at = self.text.len();
    }

    /// Skips blanks and comments.
    fn skip(&mut self) {
        loop {
            let rest = self.rest();
            if rest.first().is_some_and(u8::is_ascii_whitespace) {
                self.at += 1;
            } else if rest.starts_with(b"//") {
                self.at += rest.iter().position(|&b| b == b'\n').unwrap_or(rest.len());
            } else if rest.starts_with(b"/*") {
                let start = self.at;
                let mut depth = 0u32;
                loop {
                    let rest = self.rest();
                    if rest.is_empty() {
                        self.unterminated("block comment", start);
                        break;
                    } else if rest.starts_with(b"/*") {
                        depth += 1;
                        self.at += 2;
                    } else if rest.starts_with(b"*/") {
                        depth -= 1;
                        self.at += 2;
                        if depth == 0 {
                            break;
                        }
                    } else {
                        self.at += 1;
                    }
                }
            } else {
                return;
            }
        }
    }

    fn next(&mut self) -> Option<(Token, Range<usize>)> {
        self.skip();
        let start = self.at;
        let rest = self.rest();
        let &first = rest.first()?;
        // Raw strings: r"..", r#".."#, br#".."#.
        let prefix = usize::from(first == b'b');
        if rest.get(prefix) == Some(&b'r') {
            let hashes = rest[prefix + 1..].iter().take_while(|&&b| b == b'#').count();
            let quote = prefix + 1 + hashes;
            if rest.get(quote) == Some(&b'"') {
                let mut end = vec![b'"'];
                end.resize(hashes + 1, b'#');
                let body = &rest[quote + 1..];
                match find(body, &end) {
                    Some(length) => self.at += quote + 1 + length + end.len(),
                    None => self.unterminated("string", start),
                }
                return Some((Token::Text, start..self.at));
            }
        }
        if first == b'"' || (first == b'b' && rest.get(1) == Some(&b'"')) {
            self.at += if first == b'b' { 2 } else { 1 };
            loop {
                match self.rest().first() {
                    None => {
                        self.unterminated("string", self.long_string.unwrap_or(start));
                        break;
                    }
                    Some(b'\n') => {
                        self.long_string.get_or_insert(start);
                        self.at += 1;
                    }
                    Some(b'\\') => self.at += 2,
                    Some(b'"') => {
                        self.at += 1;
                        break;
                    }
                    Some(_) => self.at += 1,
                }
            }
            self.at = self.at.min(self.text.len());
            return Some((Token::Text, start..self.at));
        }
        if b"()[]{}:,".contains(&first) {
            self.at += 1;
            return Some((Token::Punctuation(first), start..self.at));
        }
        // A character literal such as '"' must not open a string.
        if first == b'\'' {
            let body = if rest.get(1) == Some(&b'\\') { 2 } else { 1 };
            if let Some(length) = rest.iter().skip(1 + body).take(8).position(|&b| b == b'\'') {
                self.at += 2 + body + length;
                return Some((Token::Word, start..self.at));
            }
        }
        let stop = |b: &u8| b.is_ascii_whitespace() || b"()[]{}:,\"'".contains(b);
        let mut length = rest.iter().skip(1).position(stop).map_or(rest.len(), |n| n + 1);
        // A comment may follow a word without a blank.
        if let Some(comment) = rest[..length].windows(2).position(|w| w == b"//" || w == b"/*") {
            length = comment.max(1);
        }
        self.at += length;
        Some((Token::Word, start..self.at))
    }
}

fn find(text: &[u8], wanted: &[u8]) -> Option<usize> {
    // `wanted` is a quote and a few hashes: jumping from quote to quote keeps this linear.
    let mut at = 0;
    while let Some(next) = text[at..].iter().position(|b| *b == wanted[0]) {
        at += next;
        if text[at..].starts_with(wanted) {
            return Some(at);
        }
        at += 1;
    }
    None
}

/// Scans a text.
pub(crate) fn scan(text: &str) -> Scan {
    let mut tokens = Tokens { text: text.as_bytes(), at: 0, unterminated: None, long_string: None };
    let mut found = Scan::default();
    // Open brackets, and the key that is open at each level (the first entry is the file's own level).
    let mut open: Vec<usize> = Vec::new();
    let mut key: Vec<Option<usize>> = vec![None];
    let mut previous: Option<(Token, Range<usize>)> = None;
    while let Some((token, span)) = tokens.next() {
        let last_end = previous.as_ref().map_or(0, |(_, span)| span.end);
        let end_value = |keys: &mut Vec<Key>, level: &Option<usize>| {
            if let Some(key) = *level {
                let value = &mut keys[key].value;
                value.end = last_end.max(value.start);
            }
        };
        let level = key.len() - 1;
        match token {
            Token::Punctuation(b':') => {
                if let Some((Token::Word | Token::Text, at)) = &previous {
                    let name = text[at.clone()].trim_start_matches("r#").trim_matches('"').to_owned();
                    let parent = key[..level].iter().rev().find_map(|k| *k);
                    let value = span.end..span.end;
                    key[level] = Some(found.keys.len());
                    let bracket = open.last().copied();
                    found.keys.push(Key { name, span: at.clone(), value, parent, bracket });
                }
            }
            Token::Punctuation(b',') => {
                end_value(&mut found.keys, &key[level]);
                key[level] = None;
            }
            Token::Punctuation(bracket @ (b'(' | b'[' | b'{')) => {
                let head = match &previous {
                    Some((Token::Word, at)) => Some(at.clone()),
                    Some((Token::Punctuation(b':'), _)) => key[level].map(|k| found.keys[k].span.clone()),
                    _ => None,
                };
                let _ = bracket;
                open.push(found.brackets.len());
                found.brackets.push(Bracket { open: span.start, close: None, head });
                key.push(None);
            }
            Token::Punctuation(bracket) => {
                end_value(&mut found.keys, &key[level]);
                let partner = open.last().copied();
                let matches = partner.is_some_and(|p| {
                    let opening = text.as_bytes()[found.brackets[p].open];
                    matches!((opening, bracket), (b'(', b')') | (b'[', b']') | (b'{', b'}'))
                });
                if !matches {
                    found.mismatched.get_or_insert((span.start, partner));
                }
                if let Some(p) = open.pop() {
                    if matches {
                        found.brackets[p].close = Some(span.start);
                    }
                    key.pop();
                }
            }
            Token::Word | Token::Text => {}
        }
        // The value begins with the first token after the colon.
        if !matches!(token, Token::Punctuation(_)) || matches!(token, Token::Punctuation(b'(' | b'[' | b'{'))
        {
            let owner = if matches!(token, Token::Punctuation(_)) { key.len() - 2 } else { key.len() - 1 };
            if let Some(k) = key[owner]
                && matches!(previous, Some((Token::Punctuation(b':'), _)))
            {
                found.keys[k].value = span.clone();
            }
        }
        previous = Some((token, span));
    }
    let end = previous.map_or(0, |(_, span)| span.end);
    for k in key.into_iter().flatten() {
        let value = &mut found.keys[k].value;
        value.end = end.max(value.start);
    }
    found.unterminated = tokens.unterminated;
    found
}

impl Scan {
    /// The key of this name, inside the key `within` if that is given: the shallowest, then the first.
    pub(crate) fn key(&self, name: &str, within: Option<&str>) -> Option<&Key> {
        let ancestors = |key: &Key| {
            std::iter::successors(key.parent, |&k| self.keys[k].parent).map(|k| self.keys[k].name.as_str())
        };
        self.keys
            .iter()
            .filter(|key| key.name == name)
            .filter(|key| within.is_none_or(|within| ancestors(key).any(|a| a == within)))
            .min_by_key(|key| (ancestors(key).count(), key.span.start))
    }

    /// The innermost key whose key or value covers the place.
    pub(crate) fn key_at(&self, at: usize) -> Option<&Key> {
        self.keys
            .iter()
            .filter(|key| key.span.start <= at && at <= key.value.end)
            .max_by_key(|key| key.span.start)
    }

    /// The innermost bracket around the place (a closing bracket counts as inside).
    pub(crate) fn bracket_at(&self, at: usize) -> Option<&Bracket> {
        self.brackets
            .iter()
            .filter(|bracket| bracket.open < at && bracket.close.is_none_or(|close| at <= close))
            .max_by_key(|bracket| bracket.open)
    }

    /// The last bracket that never closes.
    pub(crate) fn unclosed(&self) -> Option<&Bracket> {
        self.brackets.iter().rev().find(|bracket| bracket.close.is_none())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_past_comments_and_strings() {
        let text = r####"( // hidden: 1
            /* hidden: 2 /* nested */ still */ name: "hidden: 3, \" )", raw: r#"hidden: "4""#,
            quote: '"', hidden: 5, blocks: { "a": (mixer: Attention(heads: 8)), "b": (heads: 9) } )"####;
        let found = scan(text);
        let value = |name, within| found.key(name, within).map(|k| &text[k.value.clone()]);
        assert_eq!(value("hidden", None), Some("5"));
        assert_eq!(value("heads", Some("a")), Some("8"));
        assert_eq!(value("heads", Some("b")), Some("9"));
        assert_eq!(value("heads", None), Some("9"));
        assert_eq!(value("mixer", None), Some("Attention(heads: 8)"));
        assert_eq!(value("heads", Some("c")), None);
        assert!(found.mismatched.is_none() && found.unclosed().is_none() && found.unterminated.is_none());
    }

    #[test]
    fn brackets_and_strings_that_do_not_end_are_found() {
        let found = scan("(a: [1, 2)");
        assert_eq!(found.mismatched, Some((9, Some(1))));
        let found = scan("(a: (b: 1,");
        assert_eq!(found.unclosed().map(|b| b.open), Some(4));
        assert_eq!(scan("(a: \"x").unterminated.map(|u| u.start), Some(4));
        assert_eq!(scan("(a: 1 /* x").unterminated.map(|u| u.what), Some("block comment"));
        for text in ["\"\\", "'", "b\"", "r#", "br##\"", ":::", "/", "}{", "r", "b", "'\\"] {
            scan(text);
        }
    }
}
