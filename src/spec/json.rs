//! JSON with the place of every value, for diagnostics that point into the file.
//!
//! Beside standard JSON it reads `NaN` and `Infinity`, which Python writes. Nesting is bounded, a field
//! given twice is an error.

use std::ops::Range;

use super::diagnostic::SpecError;

/// Deepest nesting that is read.
const DEEPEST: usize = 64;

/// A value and where it stands (byte offsets).
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Node {
    pub value: Value,
    pub span: Range<usize>,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Value {
    Null,
    Flag(bool),
    /// A number without fraction and exponent that fits.
    Whole(i64),
    Number(f64),
    Text(String),
    List(Vec<Node>),
    Object(Object),
}

impl Value {
    /// What it is, for "expected ..., found ...".
    pub fn describe(&self) -> String {
        match self {
            Self::Null => "null".into(),
            Self::Flag(flag) => flag.to_string(),
            Self::Whole(number) => number.to_string(),
            Self::Number(number) => number.to_string(),
            Self::Text(text) => format!("\"{}\"", text.chars().take(40).collect::<String>()),
            Self::List(_) => "a list".into(),
            Self::Object(_) => "an object".into(),
        }
    }
}

/// Fields in the order of the file.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Object {
    pub fields: Vec<Field>,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Field {
    pub name: String,
    /// Where the name stands, with its quotes.
    pub span: Range<usize>,
    pub node: Node,
}

/// A text with blanks where it has comments, which readers of Hjson such as DeepSpeed's pass over.
pub(crate) fn without_comments(text: &str) -> String {
    let stripped = std::io::read_to_string(json_comments::StripComments::new(text.as_bytes()));
    let Some(stripped) = stripped.ok().filter(|stripped| stripped.len() == text.len()) else {
        return text.to_owned();
    };
    // Lines stay where they are.
    let kept = stripped.bytes().zip(text.bytes());
    let kept = kept.map(|(blank, own)| if own == b'\n' { own } else { blank }).collect();
    String::from_utf8(kept).unwrap_or(stripped)
}

/// Reads a whole text.
///
/// # Errors
/// The first thing that is not JSON, with its place; the source's name is left empty.
pub(crate) fn parse(text: &str) -> Result<Node, SpecError> {
    let mut parser = Parser { text, bytes: text.as_bytes(), at: 0 };
    parser.blanks();
    if parser.peek().is_none() {
        return Err(SpecError::new("", "the file is empty; a JSON object was expected"));
    }
    let node = parser.value(0)?;
    parser.blanks();
    if parser.peek().is_some() {
        return Err(parser.error(parser.at..parser.word_end(), "text after the end of the JSON value"));
    }
    Ok(node)
}

struct Parser<'a> {
    text: &'a str,
    bytes: &'a [u8],
    at: usize,
}

impl Parser<'_> {
    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn blanks(&mut self) {
        while self.peek().is_some_and(|b| matches!(b, b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn error(&self, span: Range<usize>, title: impl Into<String>) -> SpecError {
        SpecError::new("", title).mark(self.text, span, "")
    }

    /// End of the word or character at the place, for marking.
    fn word_end(&self) -> usize {
        let rest = &self.text[self.at..];
        let word = rest.find(|c: char| !(c.is_alphanumeric() || "+-._".contains(c))).unwrap_or(rest.len());
        self.at + if word == 0 { rest.chars().next().map_or(0, char::len_utf8) } else { word }
    }

    fn unexpected(&self, expected: &str) -> SpecError {
        if self.peek().is_none() {
            let end = self.text.trim_end().len();
            return self.error(end..end, format!("the file ends too early: expected {expected}"));
        }
        let end = self.word_end();
        let found: String = self.text[self.at..end].chars().take(40).collect();
        self.error(self.at..end, format!("expected {expected}, found `{found}`"))
    }

    fn value(&mut self, depth: usize) -> Result<Node, SpecError> {
        if depth > DEEPEST {
            return Err(self.error(self.at..self.at + 1, format!("nested deeper than {DEEPEST} levels")));
        }
        let start = self.at;
        let value = match self.peek() {
            Some(b'{') => self.object(depth)?,
            Some(b'[') => self.list(depth)?,
            Some(b'"') => Value::Text(self.string()?),
            Some(b'-' | b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z') => self.word()?,
            _ => return Err(self.unexpected("a value")),
        };
        Ok(Node { value, span: start..self.at })
    }

    fn object(&mut self, depth: usize) -> Result<Value, SpecError> {
        let open = self.at;
        self.at += 1;
        let mut object = Object::default();
        let mut seen = std::collections::HashMap::new();
        self.blanks();
        if self.peek() == Some(b'}') {
            self.at += 1;
            return Ok(Value::Object(object));
        }
        loop {
            self.blanks();
            if self.peek() != Some(b'"') {
                return Err(self.inside(open, "a field name in quotes"));
            }
            let start = self.at;
            let name = self.string()?;
            let span = start..self.at;
            if let Some(first) = seen.insert(name.clone(), span.clone()) {
                return Err(SpecError::new("", format!("field `{name}` is given twice"))
                    .mark(self.text, span, "again here")
                    .mark(self.text, first, "first here"));
            }
            self.blanks();
            if self.peek() != Some(b':') {
                return Err(self.inside(open, "a colon"));
            }
            self.at += 1;
            self.blanks();
            if self.peek().is_none() {
                return Err(self.inside(open, "a value"));
            }
            let node = self.value(depth + 1)?;
            object.fields.push(Field { name, span, node });
            self.blanks();
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b'}') => {
                    self.at += 1;
                    return Ok(Value::Object(object));
                }
                _ => return Err(self.inside(open, "a comma or `}`")),
            }
        }
    }

    fn list(&mut self, depth: usize) -> Result<Value, SpecError> {
        let open = self.at;
        self.at += 1;
        let mut items = Vec::new();
        self.blanks();
        if self.peek() == Some(b']') {
            self.at += 1;
            return Ok(Value::List(items));
        }
        loop {
            self.blanks();
            if self.peek().is_none() {
                return Err(self.inside(open, "a value"));
            }
            items.push(self.value(depth + 1)?);
            self.blanks();
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b']') => {
                    self.at += 1;
                    return Ok(Value::List(items));
                }
                _ => return Err(self.inside(open, "a comma or `]`")),
            }
        }
    }

    /// An error inside a bracket; at the end of the file it says which bracket is open.
    fn inside(&self, open: usize, expected: &str) -> SpecError {
        let error = self.unexpected(expected);
        if self.peek().is_none() {
            let bracket = self.bytes[open] as char;
            return error.mark(self.text, open..open + 1, format!("this `{bracket}` is never closed"));
        }
        error
    }

    /// A string without its quotes; the parser stands on the opening one.
    fn string(&mut self) -> Result<String, SpecError> {
        let start = self.at;
        self.at += 1;
        let mut out = String::new();
        loop {
            let rest = &self.text[self.at..];
            let Some(c) = rest.chars().next() else {
                let line = self.text[start..].find('\n').map_or(self.text.len(), |n| start + n);
                return Err(self.error(start..line, "the file ends inside this text"));
            };
            self.at += c.len_utf8();
            match c {
                '"' => return Ok(out),
                '\\' => out.push(self.escape(start)?),
                c if (c as u32) < 0x20 => {
                    return Err(self.error(start..self.at - 1, "this text has no closing quote on its line"));
                }
                c => out.push(c),
            }
        }
    }

    fn escape(&mut self, start: usize) -> Result<char, SpecError> {
        let escape = self.at - 1;
        let Some(c) = self.text[self.at..].chars().next() else {
            return Err(self.error(start..escape, "the file ends inside this text"));
        };
        self.at += c.len_utf8();
        Ok(match c {
            '"' | '\\' | '/' => c,
            'b' => '\u{8}',
            'f' => '\u{c}',
            'n' => '\n',
            'r' => '\r',
            't' => '\t',
            'u' => {
                let first = self.hex(escape)?;
                // A pair of surrogates is one character; a lone one becomes the replacement character.
                if (0xd800..0xdc00).contains(&first) && self.text[self.at..].starts_with("\\u") {
                    let back = self.at;
                    self.at += 2;
                    let second = self.hex(escape)?;
                    if (0xdc00..0xe000).contains(&second) {
                        let code = 0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00);
                        return Ok(char::from_u32(code).unwrap_or('\u{fffd}'));
                    }
                    self.at = back;
                }
                char::from_u32(first).unwrap_or('\u{fffd}')
            }
            _ => return Err(self.error(escape..self.at, "this escape is not known in JSON")),
        })
    }

    fn hex(&mut self, escape: usize) -> Result<u32, SpecError> {
        let digits = self.text.get(self.at..self.at + 4).filter(|d| d.bytes().all(|b| b.is_ascii_hexdigit()));
        let Some(code) = digits.and_then(|digits| u32::from_str_radix(digits, 16).ok()) else {
            return Err(self.error(escape..self.at, "expected four hexadecimal digits after `\\u`"));
        };
        self.at += 4;
        Ok(code)
    }

    /// A number or one of the words.
    fn word(&mut self) -> Result<Value, SpecError> {
        let end = self.word_end();
        let word = &self.text[self.at..end];
        let value = match word {
            "null" => Value::Null,
            "true" => Value::Flag(true),
            "false" => Value::Flag(false),
            "NaN" => Value::Number(f64::NAN),
            "Infinity" => Value::Number(f64::INFINITY),
            "-Infinity" => Value::Number(f64::NEG_INFINITY),
            _ => number(word).ok_or_else(|| {
                let error = self.unexpected("a value");
                match word {
                    "True" | "False" | "None" => {
                        error.help("this is Python; JSON writes `true`, `false` and `null`")
                    }
                    _ => error,
                }
            })?,
        };
        self.at = end;
        Ok(value)
    }
}

fn number(word: &str) -> Option<Value> {
    let digits = word.strip_prefix('-').unwrap_or(word);
    let plain = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let (mantissa, exponent) = match digits.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent)),
        None => (digits, None),
    };
    let (whole, fraction) = match mantissa.split_once('.') {
        Some((whole, fraction)) => (whole, Some(fraction)),
        None => (mantissa, None),
    };
    if !plain(whole)
        || (whole.len() > 1 && whole.starts_with('0'))
        || !fraction.is_none_or(plain)
        || !exponent.is_none_or(|e| plain(e.strip_prefix(['+', '-']).unwrap_or(e)))
    {
        return None;
    }
    if fraction.is_none()
        && exponent.is_none()
        && let Ok(number) = word.parse()
    {
        return Some(Value::Whole(number));
    }
    word.parse().ok().map(Value::Number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(text: &str) -> Object {
        match parse(text).unwrap().value {
            Value::Object(object) => object,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn values_and_places() {
        let text =
            r#"{"a": [1, -2.5e3, true], "b": {"c": null, "d": "x\"\u00e9\ud83d\ude00"}, "e": Infinity}"#;
        let top = object(text);
        assert_eq!(top.fields.len(), 3);
        assert_eq!(&text[top.fields[0].node.span.clone()], "[1, -2.5e3, true]");
        assert_eq!(&text[top.fields[1].span.clone()], "\"b\"");
        let Value::Object(inner) = &top.fields[1].node.value else { panic!() };
        assert_eq!(inner.fields[0].node.value, Value::Null);
        assert_eq!(inner.fields[1].node.value, Value::Text("x\"\u{e9}\u{1f600}".into()));
        assert_eq!(top.fields[2].node.value, Value::Number(f64::INFINITY));
        assert_eq!(parse("9223372036854775808").unwrap().value, Value::Number(9223372036854775808.0));
    }

    /// Our reader and serde_json agree on what is JSON.
    #[test]
    fn agrees_with_serde_json() {
        for text in [
            "{}",
            "[]",
            "[1,]",
            "{\"a\":1,}",
            "01",
            "-",
            "-0",
            "1.",
            ".5",
            "1e",
            "1e+5",
            "\"\\x\"",
            "\"\t\"",
            "nul",
            "[1 2]",
            "{\"a\" 1}",
            "{a:1}",
            "[[]",
            "]",
            "\"\\u12\"",
            "tru",
            "\u{feff}{}",
            "{\"a\":1}x",
            " [ ] ",
            "1.5E-3",
        ] {
            let theirs = serde_json::from_str::<serde_json::Value>(text);
            assert_eq!(parse(text).is_ok(), theirs.is_ok(), "{text}");
        }
    }

    #[test]
    fn errors_have_places() {
        for (text, title, place) in [
            ("{\n  \"a\": 1,\n  \"a\": 2\n}", "field `a` is given twice", (3, 3)),
            ("{\n  \"a\": 1,\n  \"b\"", "the file ends too early: expected a colon", (3, 6)),
            ("{\"a\": 1", "the file ends too early: expected a comma or `}`", (1, 8)),
            ("{\"a\": True}", "expected a value, found `True`", (1, 7)),
            ("{\"a\": 1} x", "text after the end of the JSON value", (1, 10)),
            ("{\"a\": \"x", "the file ends inside this text", (1, 7)),
            ("", "the file is empty; a JSON object was expected", (0, 0)),
        ] {
            let error = parse(text).unwrap_err();
            assert_eq!(error.title(), title, "{text}");
            assert_eq!(error.place().unwrap_or((0, 0)), place, "{text}");
        }
        let bomb = "[".repeat(1_000_000);
        assert_eq!(parse(&bomb).unwrap_err().title(), "nested deeper than 64 levels");
        assert_eq!(parse(&"{\"a\":".repeat(1_000_000)).unwrap_err().title(), "nested deeper than 64 levels");
    }
}
