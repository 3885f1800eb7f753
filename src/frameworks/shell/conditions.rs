//! Tests of `[`, `[[` and `test`, as far as the text decides them. Variables that are not set are empty.

use super::arithmetic::both;
use super::parse::Raw;
use super::patterns::{escaped, escaped_regular, matches};
use super::regular::{Found, find};
use super::run::Shell;
use super::state::{Status, Value, known, loose};
use super::{UNKNOWN, UNSET, Word};

/// Deepest nesting of parentheses.
const DEEPEST: u32 = 64;

/// A word of a test.
struct Token {
    text: String,
    /// What `==` compares with, or `=~` looks for.
    pattern: String,
    /// It may be an operator.
    bare: bool,
}

struct Test<'t> {
    tokens: &'t [Token],
    at: usize,
    depth: u32,
    /// `[[`: patterns, and words that are quoted are no operators.
    double: bool,
}

impl Shell<'_> {
    /// `[[ … ]]`
    pub(super) fn double_test(&mut self, words: &[Raw]) -> Status {
        let mut tokens = Vec::new();
        for word in words {
            let regular = tokens.last().is_some_and(|before: &Token| before.bare && before.text == "=~");
            let escape = if regular { escaped_regular } else { escaped };
            let (text, pattern) = self.text_and_pattern_by(word, escape);
            tokens.push(Token { text, pattern, bare: word.bare().is_some() });
        }
        if tokens.is_empty() {
            return Some(1);
        }
        let mut test = Test { tokens: &tokens, at: 0, depth: 0, double: true };
        let holds = test.either(self);
        // What is left over was not understood.
        holds.filter(|_| test.at == tokens.len()).map(|holds| u8::from(!holds))
    }

    /// `[ … ]` and `test …`
    pub(super) fn test(&mut self, words: Vec<String>) -> Status {
        let token = |text: String| Token { pattern: escaped(&text), text, bare: true };
        let compares = words.iter().any(|w| NUMERIC.contains(&w.as_str()));
        let before = words.len();
        // Without quotes, what is not set is no word at all.
        let words: Vec<String> = words.into_iter().filter(|w| *w != UNSET.to_string()).collect();
        if words.len() < before {
            self.assumed = true;
            // As a number it may be anything that the surroundings set.
            if compares {
                return None;
            }
        }
        // It may be a test of its own.
        if words.iter().any(|w| loose(w) && w.contains(UNKNOWN)) {
            return None;
        }
        let tokens: Vec<Token> = words.into_iter().map(token).collect();
        match self.by_count(&tokens) {
            Ok(holds) => holds.map(|holds| u8::from(!holds)),
            Err(Fault) => Some(2),
        }
    }

    /// What up to four words mean depends on how many there are, as POSIX has it; more are read as an expression.
    fn by_count(&mut self, tokens: &[Token]) -> Result<Option<bool>, Fault> {
        let at = |n: usize| tokens.get(n).map_or("", |token| token.text.as_str());
        let negated = |holds: Option<bool>| holds.map(|holds| !holds);
        let count = tokens.len();
        match count {
            0 => Ok(Some(false)),
            1 => Ok(self.is_empty(at(0)).map(|empty| !empty)),
            3 if BINARY.contains(&at(1)) => {
                if NUMERIC.contains(&at(1)) && [at(0), at(2)].iter().any(|w| !may_be_number(w)) {
                    return Err(Fault);
                }
                Ok(self.binary(&tokens[0], at(1), &tokens[2], false))
            }
            3 if matches!(at(1), "-a" | "-o") => {
                let (one, two) = (self.by_count(&tokens[..1])?, self.by_count(&tokens[2..])?);
                Ok(if at(1) == "-a" { both(one, two) } else { negated(both(negated(one), negated(two))) })
            }
            2..=4 if at(0) == "!" => Ok(negated(self.by_count(&tokens[1..])?)),
            2 if is_unary(at(0)) => Ok(self.unary(at(0), at(1))),
            3 | 4 if at(0) == "(" && at(count - 1) == ")" => self.by_count(&tokens[1..count - 1]),
            2 | 3 => Err(Fault),
            _ => {
                let faulty = |n: usize| {
                    NUMERIC.contains(&at(n))
                        && n > 0
                        && [at(n - 1), at(n + 1)].iter().any(|w| !may_be_number(w))
                };
                if (0..count).any(faulty) {
                    return Err(Fault);
                }
                let mut test = Test { tokens, at: 0, depth: 0, double: false };
                let holds = test.either(self);
                if test.at == count || self.is_spent() { Ok(holds) } else { Err(Fault) }
            }
        }
    }

    /// A text in a test: what is not set is empty.
    fn tested(&mut self, text: &str) -> Option<String> {
        if text.contains(UNSET) {
            self.assumed = true;
        }
        let text = text.replace(UNSET, "");
        known(&text).then_some(text)
    }

    /// Whether a text is empty.
    fn is_empty(&mut self, text: &str) -> Option<bool> {
        if text.chars().any(|c| c != UNKNOWN && c != UNSET) {
            return Some(false);
        }
        self.tested(text).map(|text| text.is_empty())
    }

    fn unary(&mut self, operator: &str, text: &str) -> Option<bool> {
        match operator {
            "-n" => self.is_empty(text).map(|empty| !empty),
            "-z" => self.is_empty(text),
            "-f" | "-e" | "-r" | "-s" => self.is_there(text),
            "-v" => {
                let name = self.tested(text)?;
                self.is_set(&name)
            }
            _ => None,
        }
    }

    fn binary(&mut self, left: &Token, operator: &str, right: &Token, double: bool) -> Option<bool> {
        let ignore_case = self.state.options.ignore_case;
        match operator {
            "=" | "==" | "!=" => {
                let pattern = self.tested(&right.pattern)?;
                let equal = if double && pattern == "*" {
                    Some(true)
                } else {
                    let text = self.tested(&left.text)?;
                    self.sought(|steps| matches(&pattern, &text, (double, ignore_case && double), steps))
                };
                equal.map(|equal| equal == (operator != "!="))
            }
            "<" | ">" => {
                let (left, right) = (self.tested(&left.text)?, self.tested(&right.text)?);
                // Letters are ordered by the language of the surroundings.
                let plain = |text: &str| text.bytes().all(|b| b.is_ascii_digit() || b.is_ascii_lowercase());
                let order = (plain(&left) && plain(&right)).then(|| left.cmp(&right))?;
                Some(if operator == "<" { order.is_lt() } else { order.is_gt() })
            }
            operator if NUMERIC.contains(&operator) => {
                // As a number, what is not set may be anything that the surroundings set.
                if !known(&left.text) || !known(&right.text) {
                    return None;
                }
                let mut number = |text: &str| match text.trim() {
                    "" => Some(0),
                    text if double => self.sum(text),
                    text => text.parse::<i64>().ok(),
                };
                let (left, right) = (number(&left.text), number(&right.text));
                let order = left?.cmp(&right?);
                Some(match operator {
                    "-eq" => order.is_eq(),
                    "-ne" => order.is_ne(),
                    "-gt" => order.is_gt(),
                    "-ge" => order.is_ge(),
                    "-lt" => order.is_lt(),
                    _ => order.is_le(),
                })
            }
            "=~" => {
                // Whatever is not followed may have found anything.
                self.forget_name("BASH_REMATCH");
                let (expression, text) = (self.tested(&right.pattern)?, self.tested(&left.text)?);
                if ignore_case {
                    return None;
                }
                let found = self.sought(|steps| find(&expression, &text, steps))?;
                let texts = match &found {
                    Found::No => Some(Vec::new()),
                    Found::Yes(texts) => texts.clone(),
                };
                if let Some(texts) = texts {
                    let words = texts.into_iter().map(|text| Word { text, line: 0 });
                    self.store("BASH_REMATCH", Value::Array((0..).zip(words).collect()));
                }
                Some(found != Found::No)
            }
            _ => None,
        }
    }
}

/// The words of `[` are no test: its status is 2.
struct Fault;

/// Operators between two numbers.
const NUMERIC: &[&str] = &["-eq", "-ne", "-gt", "-ge", "-lt", "-le"];

fn is_unary(text: &str) -> bool {
    matches!(text.as_bytes(), [b'-', letter] if letter.is_ascii_alphabetic())
}

fn may_be_number(text: &str) -> bool {
    !known(text) || text.trim().parse::<i64>().is_ok()
}

/// Operators between two words.
const BINARY: &[&str] =
    &["=", "==", "!=", "<", ">", "=~", "-eq", "-ne", "-gt", "-ge", "-lt", "-le", "-nt", "-ot", "-ef"];

impl Test<'_> {
    fn ahead(&self, offset: usize, words: &[&str]) -> bool {
        let token = self.tokens.get(self.at + offset);
        token.is_some_and(|token| (token.bare || !self.double) && words.contains(&token.text.as_str()))
    }

    fn passes(&mut self, words: &[&str]) -> bool {
        let there = self.ahead(0, words);
        self.at += usize::from(there);
        there
    }

    fn either(&mut self, shell: &mut Shell) -> Option<bool> {
        let mut none = self.each(shell).map(|holds| !holds);
        while self.passes(if self.double { &["||"] } else { &["-o"] }) {
            none = both(none, self.each(shell).map(|holds| !holds));
        }
        none.map(|none| !none)
    }

    fn each(&mut self, shell: &mut Shell) -> Option<bool> {
        let mut all = self.one(shell);
        while self.passes(if self.double { &["&&"] } else { &["-a"] }) {
            all = both(all, self.one(shell));
        }
        all
    }

    fn one(&mut self, shell: &mut Shell) -> Option<bool> {
        let mut negated = false;
        while self.ahead(0, &["!"]) && !self.compares() {
            self.at += 1;
            negated = !negated;
        }
        let holds = self.term(shell);
        holds.map(|holds| holds != negated)
    }

    /// Whether the next three words are a comparison.
    fn compares(&self) -> bool {
        let ends = |token: &Token| token.bare && matches!(token.text.as_str(), "&&" | "||" | ")");
        let third = self.tokens.get(self.at + 2);
        self.ahead(1, BINARY) && third.is_some_and(|token| !(self.double && ends(token)))
    }

    fn term(&mut self, shell: &mut Shell) -> Option<bool> {
        let tokens = self.tokens;
        let first = tokens.get(self.at)?;
        if self.compares() {
            let (operator, right) = (&tokens.get(self.at + 1)?.text, tokens.get(self.at + 2)?);
            self.at += 3;
            return shell.binary(first, operator, right, self.double);
        }
        if self.ahead(0, &["("]) && self.tokens.len() > 1 {
            self.at += 1;
            self.depth += 1;
            if self.depth > DEEPEST {
                shell.fail("the parentheses of a test stand inside one another too deeply");
                return None;
            }
            let holds = self.either(shell);
            self.depth -= 1;
            return if self.passes(&[")"]) { holds } else { None };
        }
        if (first.bare || !self.double)
            && is_unary(&first.text)
            && let Some(operand) = tokens.get(self.at + 1)
        {
            self.at += 2;
            return shell.unary(&first.text, &operand.text);
        }
        self.at += 1;
        shell.is_empty(&first.text).map(|empty| !empty)
    }
}
