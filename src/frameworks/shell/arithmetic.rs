//! Whole-number arithmetic of the shell, with what it assigns. A value that is not known makes those unknown that are
//! made of it.

use super::parse::{Quoting, template};
use super::run::Shell;
use super::{UNKNOWN, UNSET};

/// Deepest nesting of parentheses and of names that stand for expressions.
const DEEPEST: u32 = 32;

/// What reading a character of an expression costs, in characters that are copied.
const SUM_EFFORT: usize = 16;

/// None: not known.
type Value = Option<i64>;

/// The text is no expression.
struct Fault;

struct Sum<'s, 'f> {
    chars: Vec<char>,
    at: usize,
    shell: &'s mut Shell<'f>,
    /// Inside what is not evaluated.
    skipped: u32,
    /// Inside what may not be evaluated.
    doubted: u32,
    depth: u32,
}

/// A name or a member of an array.
struct Target {
    name: String,
    index: Option<String>,
}

impl Shell<'_> {
    /// The value of an expression; none where it is not known.
    pub(super) fn sum(&mut self, text: &str) -> Option<i64> {
        let text = match template(text, 1, Quoting::Double) {
            Ok(raw) => self.joined(&raw),
            Err(_) => UNKNOWN.to_string(),
        };
        self.sum_of(&text, 0)
    }

    fn sum_of(&mut self, text: &str, depth: u32) -> Option<i64> {
        // Names that stand for sums of names multiply.
        self.worked(text.len().saturating_mul(SUM_EFFORT));
        if depth > DEEPEST || self.is_spent() {
            return None;
        }
        let chars: Vec<char> = text.chars().filter(|c| *c != '"').collect();
        let mut sum = Sum { chars, at: 0, shell: self, skipped: 0, doubted: 0, depth };
        let value = sum.all();
        if let Ok(value) = value {
            return value;
        }
        for name in assigned_in(text) {
            self.forget_name(&name);
        }
        None
    }
}

/// Names that an expression may assign.
pub(super) fn assigned_in(text: &str) -> Vec<String> {
    let mut names = Vec::new();
    let chars: Vec<char> = text.chars().collect();
    let named = |c: &char| c.is_ascii_alphanumeric() || *c == '_';
    let mut at = 0;
    while at < chars.len() {
        let length = chars[at..].iter().take_while(|c| named(c)).count();
        if length == 0 {
            at += 1;
            continue;
        }
        let name: String = chars[at..at + length].iter().collect();
        let before: String = chars[..at].iter().rev().filter(|c| !c.is_whitespace()).take(2).collect();
        let mut rest = chars[at + length..].iter().filter(|c| !c.is_whitespace()).peekable();
        let indexed = rest.peek() == Some(&&'[');
        let after: String = rest.take(3).collect();
        let assigns = after.starts_with('=') && !after.starts_with("==")
            || after.starts_with("++")
            || after.starts_with("--")
            || after.starts_with(|c| "+-*/%&|^".contains(c)) && after.chars().nth(1) == Some('=')
            || after == "<<="
            || after == ">>=";
        if assigns || indexed || matches!(before.as_str(), "++" | "--") {
            names.push(name);
        }
        at += length;
    }
    names
}

/// Binary operators by how tightly they bind, the longest first among those that begin alike.
const OPERATORS: &[(&str, u32)] = &[
    ("||", 1),
    ("&&", 2),
    ("==", 6),
    ("!=", 6),
    ("<<", 8),
    (">>", 8),
    ("<=", 7),
    (">=", 7),
    ("**", 11),
    ("|", 3),
    ("^", 4),
    ("&", 5),
    ("<", 7),
    (">", 7),
    ("+", 9),
    ("-", 9),
    ("*", 10),
    ("/", 10),
    ("%", 10),
];

impl Sum<'_, '_> {
    fn all(&mut self) -> Result<Value, Fault> {
        self.blanks();
        // `(( ))` is nothing, which is zero.
        if self.at == self.chars.len() {
            return Ok(Some(0));
        }
        let value = self.list()?;
        if self.at == self.chars.len() { Ok(value) } else { Err(Fault) }
    }

    fn list(&mut self) -> Result<Value, Fault> {
        self.depth += 1;
        if self.depth > DEEPEST {
            return Err(Fault);
        }
        let mut value = self.assignment()?;
        while self.passes(",") {
            value = self.assignment()?;
        }
        self.depth -= 1;
        Ok(value)
    }

    fn assignment(&mut self) -> Result<Value, Fault> {
        self.depth += 1;
        if self.depth > DEEPEST {
            return Err(Fault);
        }
        let value = self.assignment_inside();
        self.depth -= 1;
        value
    }

    fn assignment_inside(&mut self) -> Result<Value, Fault> {
        let start = self.at;
        if let Some(target) = self.target()? {
            let signs = ["=", "+=", "-=", "*=", "/=", "%=", "<<=", ">>=", "&=", "^=", "|="];
            let sign = signs.iter().find(|sign| self.ahead(sign) && !(**sign == "=" && self.ahead("==")));
            if let Some(sign) = sign {
                self.passes(sign);
                let operator = sign.strip_suffix('=').filter(|operator| !operator.is_empty());
                // What is there before the other side assigns to it.
                let left = operator.map(|_| self.read(&target)).transpose()?.flatten();
                let right = self.assignment()?;
                let value = match operator {
                    None => right,
                    Some(operator) => {
                        left.zip(right).and_then(|(left, right)| applied(operator, left, right))
                    }
                };
                self.write(&target, value);
                return Ok(value);
            }
        }
        self.at = start;
        self.choice()
    }

    /// `test ? one : other`
    fn choice(&mut self) -> Result<Value, Fault> {
        let test = self.binary(1)?;
        if !self.passes("?") {
            return Ok(test);
        }
        let one = self.when(test.map(|n| n != 0), Self::assignment)?;
        if !self.passes(":") {
            return Err(Fault);
        }
        let other = self.when(test.map(|n| n == 0), Self::assignment)?;
        Ok(match test {
            Some(0) => other,
            Some(_) => one,
            None => one.filter(|_| one == other),
        })
    }

    /// Reads what is evaluated only under a condition.
    fn when(
        &mut self,
        goes: Option<bool>,
        read: impl FnOnce(&mut Self) -> Result<Value, Fault>,
    ) -> Result<Value, Fault> {
        let (skipped, doubted) = (u32::from(goes == Some(false)), u32::from(goes.is_none()));
        self.skipped += skipped;
        self.doubted += doubted;
        let value = read(self);
        self.skipped -= skipped;
        self.doubted -= doubted;
        value
    }

    fn binary(&mut self, least: u32) -> Result<Value, Fault> {
        let mut left = self.signed()?;
        while let Some((operator, tightness)) = self.operator().filter(|(_, tightness)| *tightness >= least) {
            self.passes(operator);
            let truth = left.map(|n| n != 0);
            left = match operator {
                "&&" => {
                    let right = self.when(truth, |sum| sum.binary(tightness + 1))?.map(|n| n != 0);
                    both(truth, right).map(i64::from)
                }
                "||" => {
                    let right =
                        self.when(truth.map(|t| !t), |sum| sum.binary(tightness + 1))?.map(|n| n == 0);
                    both(truth.map(|t| !t), right).map(|neither| i64::from(!neither))
                }
                // Powers are read from the right.
                "**" => {
                    self.depth += 1;
                    if self.depth > DEEPEST {
                        return Err(Fault);
                    }
                    let right = self.binary(tightness)?;
                    self.depth -= 1;
                    left.zip(right).and_then(|(a, b)| applied(operator, a, b))
                }
                _ => {
                    let right = self.binary(tightness + 1)?;
                    left.zip(right).and_then(|(a, b)| applied(operator, a, b))
                }
            };
        }
        Ok(left)
    }

    fn operator(&mut self) -> Option<(&'static str, u32)> {
        self.blanks();
        OPERATORS.iter().find(|(operator, _)| self.ahead(operator)).copied()
    }

    /// An operand with the signs before it.
    fn signed(&mut self) -> Result<Value, Fault> {
        let mut signs = Vec::new();
        loop {
            self.blanks();
            for (step, by) in [("++", 1), ("--", -1)] {
                let at = self.at;
                if self.ahead(step) {
                    self.passes(step);
                    if let Some(target) = self.target()? {
                        let value = self.read(&target)?.and_then(|n| n.checked_add(by));
                        self.write(&target, value);
                        return Ok(signed(value, &signs));
                    }
                    self.at = at;
                }
            }
            match self.chars.get(self.at) {
                Some(sign @ ('-' | '+' | '!' | '~')) => {
                    signs.push(*sign);
                    self.at += 1;
                }
                _ => break,
            }
        }
        Ok(signed(self.operand()?, &signs))
    }

    fn operand(&mut self) -> Result<Value, Fault> {
        match self.chars.get(self.at) {
            Some('(') => {
                self.at += 1;
                let value = self.list()?;
                if self.passes(")") { Ok(value) } else { Err(Fault) }
            }
            Some(c) if c.is_ascii_digit() => self.number(),
            Some(&(UNKNOWN | UNSET)) => {
                // What stands beside it belongs to it.
                while self
                    .chars
                    .get(self.at)
                    .is_some_and(|c| c.is_alphanumeric() || [UNKNOWN, UNSET].contains(c))
                {
                    self.at += 1;
                }
                Ok(None)
            }
            _ => {
                let target = self.target()?.ok_or(Fault)?;
                let value = self.read(&target)?;
                for (step, by) in [("++", 1), ("--", -1)] {
                    if self.ahead(step) {
                        self.passes(step);
                        self.write(&target, value.and_then(|n| n.checked_add(by)));
                    }
                }
                Ok(value)
            }
        }
    }

    fn number(&mut self) -> Result<Value, Fault> {
        let word: String = self.chars[self.at..]
            .iter()
            .take_while(|c| c.is_ascii_alphanumeric() || "#@_".contains(**c) || [UNKNOWN, UNSET].contains(c))
            .collect();
        self.at += word.chars().count();
        if word.contains([UNKNOWN, UNSET]) {
            return Ok(None);
        }
        let (base, digits) = match word.split_once('#') {
            Some((base, digits)) => (base.parse().map_err(|_| Fault)?, digits),
            None if word.starts_with("0x") || word.starts_with("0X") => (16, &word[2..]),
            None if word.starts_with('0') && word.len() > 1 => (8, &word[1..]),
            None => (10, word.as_str()),
        };
        if !(2..=36).contains(&base) {
            return Err(Fault);
        }
        i64::from_str_radix(digits, base).map(Some).map_err(|_| Fault)
    }

    /// A name, or a name with an index.
    fn target(&mut self) -> Result<Option<Target>, Fault> {
        self.blanks();
        if !self.chars.get(self.at).is_some_and(|c| c.is_ascii_alphabetic() || *c == '_') {
            return Ok(None);
        }
        let rest = &self.chars[self.at..];
        let name: String = rest.iter().take_while(|c| c.is_ascii_alphanumeric() || **c == '_').collect();
        self.at += name.len();
        let mut index = None;
        if self.chars.get(self.at) == Some(&'[') {
            let mut depth = 0_usize;
            let length = self.chars[self.at..].iter().position(|c| {
                depth = if *c == '[' { depth + 1 } else { depth.saturating_sub(usize::from(*c == ']')) };
                depth == 0
            });
            let end = self.at + length.ok_or(Fault)?;
            index = Some(self.chars[self.at + 1..end].iter().collect());
            self.at = end + 1;
        }
        self.blanks();
        Ok(Some(Target { name, index }))
    }

    fn read(&mut self, target: &Target) -> Result<Value, Fault> {
        if self.skipped > 0 {
            return Ok(None);
        }
        let Some(text) = self.shell.content(&target.name, target.index.as_deref()) else { return Ok(None) };
        if text.contains([UNKNOWN, UNSET]) {
            return Ok(None);
        }
        match text.trim() {
            "" => Ok(Some(0)),
            text => Ok(self.shell.sum_of(text, self.depth + 1)),
        }
    }

    fn write(&mut self, target: &Target, value: Value) {
        if self.skipped > 0 {
            return;
        }
        let text = value.filter(|_| self.doubted == 0).map_or(UNKNOWN.to_string(), |n| n.to_string());
        self.shell.put(&target.name, target.index.as_deref(), false, text);
    }

    fn blanks(&mut self) {
        while self.chars.get(self.at).is_some_and(|c| c.is_whitespace()) {
            self.at += 1;
        }
    }

    fn ahead(&self, text: &str) -> bool {
        text.chars().enumerate().all(|(i, c)| self.chars.get(self.at + i) == Some(&c))
    }

    fn passes(&mut self, text: &str) -> bool {
        self.blanks();
        let there = self.ahead(text);
        if there {
            self.at += text.len();
            self.blanks();
        }
        there
    }
}

/// Whether both hold, where that is decided.
pub(super) fn both(one: Option<bool>, other: Option<bool>) -> Option<bool> {
    match (one, other) {
        (Some(false), _) | (_, Some(false)) => Some(false),
        (Some(true), Some(true)) => Some(true),
        _ => None,
    }
}

fn signed(value: Value, signs: &[char]) -> Value {
    signs.iter().rev().try_fold(value?, |value, sign| match sign {
        '-' => value.checked_neg(),
        '!' => Some(i64::from(value == 0)),
        '~' => Some(!value),
        _ => Some(value),
    })
}

fn applied(operator: &str, left: i64, right: i64) -> Value {
    let shift = u32::try_from(right).ok();
    match operator {
        "+" => left.checked_add(right),
        "-" => left.checked_sub(right),
        "*" => left.checked_mul(right),
        "/" => left.checked_div(right),
        "%" => left.checked_rem(right),
        "**" => left.checked_pow(shift?),
        "<<" => left.checked_shl(shift?),
        ">>" => left.checked_shr(shift?),
        "&" => Some(left & right),
        "^" => Some(left ^ right),
        "|" => Some(left | right),
        "==" => Some(i64::from(left == right)),
        "!=" => Some(i64::from(left != right)),
        "<=" => Some(i64::from(left <= right)),
        ">=" => Some(i64::from(left >= right)),
        "<" => Some(i64::from(left < right)),
        ">" => Some(i64::from(left > right)),
        _ => None,
    }
}
