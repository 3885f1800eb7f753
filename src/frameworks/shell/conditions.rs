//! Tests of `[`, `[[` and `test`, as far as the text decides them. Variables that are not set are empty.

use super::arithmetic::both;
use super::parse::Raw;
use super::patterns::matches;
use super::run::Shell;
use super::state::{Status, known, loose};
use super::{UNKNOWN, UNSET};

/// Deepest nesting of parentheses.
const DEEPEST: u32 = 64;

/// A word of a test.
struct Token {
    text: String,
    /// What `==` compares with.
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
            let (text, pattern) = (self.joined(word), self.pattern(word));
            tokens.push(Token { text, pattern, bare: word.bare().is_some() });
        }
        self.decide(&tokens, true)
    }

    /// `[ … ]` and `test …`
    pub(super) fn test(&mut self, words: Vec<String>) -> Status {
        let token = |text: String| Token { pattern: super::patterns::escaped(&text), text, bare: true };
        let tokens: Vec<Token> = words.into_iter().map(token).collect();
        self.decide(&tokens, false)
    }

    fn decide(&mut self, tokens: &[Token], double: bool) -> Status {
        if tokens.is_empty() {
            return Some(1);
        }
        let mut test = Test { tokens, at: 0, depth: 0, double };
        let holds = test.either(self);
        // What is left over was not understood.
        holds.filter(|_| test.at == tokens.len()).map(|holds| u8::from(!holds))
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
                let name = name.split('[').next().unwrap_or_default().to_owned();
                if !self.state.variables.contains_key(&name) {
                    self.assumed = true;
                }
                Some(self.content(&name, None).is_some())
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
                    self.sought(|steps| matches(&pattern, &text, ignore_case && double, steps))
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
            "-eq" | "-ne" | "-gt" | "-ge" | "-lt" | "-le" => {
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
                if !double && (left.is_none() || right.is_none()) {
                    return Some(false);
                }
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
            // Regular expressions are not followed, nor what they find; one in quotes is a text.
            "=~" => {
                self.forget_name("BASH_REMATCH");
                let sought = self.tested(&right.text).filter(|_| !right.bare)?;
                Some(self.tested(&left.text)?.contains(&sought))
            }
            _ => None,
        }
    }
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
        let is_unary = (first.bare || !self.double)
            && first.text.len() == 2
            && first.text.starts_with('-')
            && first.text.as_bytes()[1].is_ascii_alphabetic();
        if is_unary && let Some(operand) = tokens.get(self.at + 1) {
            self.at += 2;
            return shell.unary(&first.text, &operand.text);
        }
        self.at += 1;
        if loose(&first.text) && first.text.contains(UNKNOWN) && !self.double {
            // `[ $X ]`: it may be a test of its own.
            return None;
        }
        shell.is_empty(&first.text).map(|empty| !empty)
    }
}
