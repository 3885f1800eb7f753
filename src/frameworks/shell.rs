//! Reads launch scripts: arrays, continuation lines, quotes, variables with simple expansion, `if` on
//! set or unset variables. Nothing is executed; what only a running shell knows stays unknown.

use std::collections::BTreeMap;

/// Why a launch could not be read, with the line at which it shows (counted from 1).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {message}")]
pub struct ImportError {
    /// Line, counted from 1.
    pub line: usize,
    /// What was found and what was expected.
    pub message: String,
}

impl ImportError {
    pub(crate) fn new(line: usize, message: impl Into<String>) -> Self {
        Self { line, message: message.into() }
    }
}

/// A word after expansion, with the line it stands on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Word {
    /// The text.
    pub text: String,
    /// Line, counted from 1.
    pub line: usize,
}

/// The training command of a launch.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Launch {
    /// Words before the training script: launcher and its options.
    pub launcher: Vec<Word>,
    /// The training script.
    pub script: Option<Word>,
    /// Its arguments.
    pub arguments: Vec<Word>,
    /// Variables that were exported or stand before the command.
    pub environment: BTreeMap<String, String>,
}

/// Stands for text that only a running shell knows.
const UNKNOWN: char = '\u{fffc}';

#[derive(Debug, Clone)]
enum Part {
    Text(String),
    Variable { expression: String, quoted: bool, line: usize },
    Unknown,
}

#[derive(Debug, Clone)]
struct Raw {
    parts: Vec<Part>,
    line: usize,
    quoted: bool,
}

enum Statement {
    Command(Vec<Raw>),
    Array { name: String, append: bool, words: Vec<Raw> },
}

struct Lexer {
    chars: Vec<char>,
    at: usize,
    line: usize,
}

impl Lexer {
    fn peek(&self) -> Option<char> {
        self.chars.get(self.at).copied()
    }
    fn next(&mut self) -> Option<char> {
        let c = self.peek()?;
        self.at += 1;
        self.line += usize::from(c == '\n');
        Some(c)
    }

    /// One word, or none at the end of a statement.
    fn word(&mut self) -> Result<Option<Raw>, ImportError> {
        loop {
            match (self.peek(), self.chars.get(self.at + 1)) {
                (Some('\\'), Some('\n')) => {
                    self.next();
                    self.next();
                }
                (Some('\\'), None) => {
                    return Err(ImportError::new(self.line, "the text ends in a continuation line"));
                }
                (Some(' ' | '\t' | '\r'), _) => {
                    self.next();
                }
                (Some('#'), _) => {
                    while self.peek().is_some_and(|c| c != '\n') {
                        self.next();
                    }
                }
                _ => break,
            }
        }
        let line = self.line;
        let mut raw = Raw { parts: Vec::new(), line, quoted: false };
        let mut text = String::new();
        let mut any = false;
        while let Some(c) = self.peek() {
            match c {
                ' ' | '\t' | '\r' | '\n' | ';' | '&' | '|' | ')' | '<' | '>' => break,
                '(' if any => break,
                '(' => break,
                _ => {}
            }
            any = true;
            self.next();
            match c {
                '\\' => match self.next() {
                    Some('\n') => {}
                    Some(c) => text.push(c),
                    None => {
                        return Err(ImportError::new(self.line, "the text ends in a continuation line"));
                    }
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
                    self.double_quoted(&mut raw, &mut text, line)?;
                }
                '$' => self.dollar(&mut raw, &mut text, false)?,
                '`' => {
                    while self.next().is_some_and(|c| c != '`') {}
                    flush(&mut raw, &mut text);
                    raw.parts.push(Part::Unknown);
                }
                c => text.push(c),
            }
        }
        flush(&mut raw, &mut text);
        Ok(any.then_some(raw))
    }

    fn double_quoted(&mut self, raw: &mut Raw, text: &mut String, line: usize) -> Result<(), ImportError> {
        loop {
            match self.next() {
                Some('"') => return Ok(()),
                Some('\\') => match self.next() {
                    Some('\n') => {}
                    Some(c @ ('"' | '\\' | '$' | '`')) => text.push(c),
                    Some(c) => {
                        text.push('\\');
                        text.push(c);
                    }
                    None => return Err(ImportError::new(line, "this double quote is never closed")),
                },
                Some('$') => self.dollar(raw, text, true)?,
                Some('`') => {
                    while self.next().is_some_and(|c| c != '`') {}
                    flush(raw, text);
                    raw.parts.push(Part::Unknown);
                }
                Some(c) => text.push(c),
                None => return Err(ImportError::new(line, "this double quote is never closed")),
            }
        }
    }

    /// What follows a dollar.
    fn dollar(&mut self, raw: &mut Raw, text: &mut String, quoted: bool) -> Result<(), ImportError> {
        let line = self.line;
        match self.peek() {
            Some('{') => {
                self.next();
                let mut depth = 1;
                let mut expression = String::new();
                loop {
                    match self.next() {
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
                flush(raw, text);
                raw.parts.push(Part::Variable { expression, quoted, line });
            }
            Some('(') => {
                let mut depth = 0;
                let mut inner = String::new();
                loop {
                    match self.next() {
                        Some('(') => {
                            depth += 1;
                            inner.push('(');
                        }
                        Some(')') => {
                            depth -= 1;
                            inner.push(')');
                            if depth == 0 {
                                break;
                            }
                        }
                        Some(c) => inner.push(c),
                        None => return Err(ImportError::new(line, "this $( is never closed")),
                    }
                }
                flush(raw, text);
                match inner.strip_prefix("((").and_then(|s| s.strip_suffix("))")) {
                    Some(sum) => {
                        raw.parts.push(Part::Variable { expression: format!("(({sum}"), quoted, line })
                    }
                    None => raw.parts.push(Part::Unknown),
                }
            }
            Some(c) if c.is_ascii_alphabetic() || c == '_' => {
                let mut expression = String::new();
                while let Some(c) = self.peek().filter(|c| c.is_ascii_alphanumeric() || *c == '_') {
                    expression.push(c);
                    self.next();
                }
                flush(raw, text);
                raw.parts.push(Part::Variable { expression, quoted, line });
            }
            Some('@' | '*' | '#' | '?' | '!' | '0'..='9') => {
                // Arguments and states of the script: nothing that the text could say.
                self.next();
                flush(raw, text);
                raw.parts.push(Part::Variable { expression: "@".into(), quoted, line });
            }
            _ => text.push('$'),
        }
        Ok(())
    }

    fn statements(mut self) -> Result<Vec<Statement>, ImportError> {
        let mut all = Vec::new();
        let mut words: Vec<Raw> = Vec::new();
        loop {
            if let Some(word) = self.word()? {
                if self.peek() == Some('(') {
                    let name = plain(&word).unwrap_or_default();
                    let assigned = name.strip_suffix("+=").map(|n| (n, true));
                    if let Some((name, append)) = assigned.or(name.strip_suffix('=').map(|n| (n, false))) {
                        let (name, line) = (name.to_owned(), self.line);
                        self.next();
                        let words = self.array(line)?;
                        all.push(Statement::Array { name, append, words });
                        continue;
                    }
                    // A function's head: `name()`.
                    self.next();
                    continue;
                }
                words.push(word);
                continue;
            }
            let c = self.next();
            if matches!(c, Some('<' | '>')) {
                // A redirection: neither its target nor a number right before it (`2>`) is an argument.
                let before = self.at.checked_sub(2).and_then(|at| self.chars.get(at));
                if before.is_some_and(|c| c.is_ascii_digit())
                    && words.last().and_then(plain).is_some_and(|w| w.bytes().all(|b| b.is_ascii_digit()))
                {
                    words.pop();
                }
                while self.peek().is_some_and(|c| matches!(c, '<' | '>' | '&')) {
                    self.next();
                }
                self.word()?;
                continue;
            }
            if !words.is_empty() {
                all.push(Statement::Command(std::mem::take(&mut words)));
            }
            if c.is_none() {
                return Ok(all);
            }
        }
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
                    Some(c) => {
                        return Err(ImportError::new(
                            self.line,
                            format!("unexpected `{c}` in an array: quote it"),
                        ));
                    }
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

/// A word without expansions.
fn plain(raw: &Raw) -> Option<String> {
    raw.parts.iter().map(|p| if let Part::Text(t) = p { Some(t.as_str()) } else { None }).collect()
}

struct Scope {
    variables: BTreeMap<String, String>,
    arrays: BTreeMap<String, Vec<Word>>,
}

impl Scope {
    /// All fields of a word: unquoted variables are split at blanks, arrays give their members.
    fn expand(&self, raw: &Raw) -> Vec<Word> {
        let mut fields: Vec<String> = Vec::new();
        let mut open = raw.quoted.then(String::new);
        for part in &raw.parts {
            match part {
                Part::Text(text) => open.get_or_insert_default().push_str(text),
                Part::Unknown => open.get_or_insert_default().push(UNKNOWN),
                Part::Variable { expression, quoted, .. } => {
                    let array = expression.strip_suffix("[@]").or(expression.strip_suffix("[*]"));
                    if expression == "@" {
                        if raw.parts.len() == 1 {
                            return Vec::new();
                        }
                        open.get_or_insert_default();
                    } else if let Some(members) = array.and_then(|name| self.arrays.get(name)) {
                        if raw.parts.len() == 1 {
                            return members.clone();
                        }
                        let joined: Vec<&str> = members.iter().map(|w| w.text.as_str()).collect();
                        open.get_or_insert_default().push_str(&joined.join(" "));
                    } else if *quoted {
                        open.get_or_insert_default().push_str(&self.value(expression));
                    } else {
                        let value = self.value(expression);
                        let mut pieces = value.split_whitespace().peekable();
                        if value.starts_with(char::is_whitespace) {
                            fields.extend(open.take());
                        }
                        while let Some(piece) = pieces.next() {
                            open.get_or_insert_default().push_str(piece);
                            if pieces.peek().is_some() || value.ends_with(char::is_whitespace) {
                                fields.extend(open.take());
                            }
                        }
                    }
                }
            }
        }
        fields.extend(open);
        fields.into_iter().map(|text| Word { text, line: raw.line }).collect()
    }

    /// `NAME`, `NAME:-default`, `NAME:?message`, `((sum`.
    fn value(&self, expression: &str) -> String {
        if let Some(sum) = expression.strip_prefix("((") {
            return self.sum(sum).map_or_else(|| UNKNOWN.to_string(), |n| n.to_string());
        }
        let end =
            expression.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(expression.len());
        let (name, rest) = expression.split_at(end);
        let set = self.variables.get(name).filter(|v| !v.is_empty()).cloned();
        let default = rest.strip_prefix(":-").or(rest.strip_prefix("-")).or(rest.strip_prefix(":="));
        match (set, default) {
            (Some(value), _) => value,
            (None, Some(default)) => {
                let lexer = Lexer { chars: default.chars().collect(), at: 0, line: 1 };
                let words = lexer.statements().unwrap_or_default();
                let mut text = Vec::new();
                for statement in &words {
                    if let Statement::Command(words) = statement {
                        text.extend(words.iter().flat_map(|w| self.expand(w)).map(|w| w.text));
                    }
                }
                text.join(" ")
            }
            (None, None) if self.variables.contains_key(name) || rest.starts_with(":+") => String::new(),
            (None, None) => UNKNOWN.to_string(),
        }
    }

    /// Products, quotients, sums of numbers and variables, left to right by precedence.
    fn sum(&self, text: &str) -> Option<i64> {
        if text.contains(['(', ')']) {
            return None;
        }
        for operators in [&['+', '-'][..], &['*', '/', '%'][..]] {
            if let Some(at) = text.rfind(operators).filter(|&at| at > 0) {
                let (left, right) = (self.sum(&text[..at])?, self.sum(&text[at + 1..])?);
                return match text.as_bytes()[at] {
                    b'+' => left.checked_add(right),
                    b'-' => left.checked_sub(right),
                    b'*' => left.checked_mul(right),
                    b'/' => left.checked_div(right),
                    _ => left.checked_rem(right),
                };
            }
        }
        let name = text.trim().trim_start_matches('$').trim_matches(['{', '}']);
        name.parse().ok().or_else(|| self.variables.get(name)?.trim().parse().ok())
    }

    /// A test of an `if`, as far as the text decides it.
    fn test(&self, words: &[Word]) -> bool {
        let words: Vec<&str> = words
            .iter()
            .map(|w| w.text.as_str())
            .filter(|w| !matches!(*w, "[" | "]" | "[[" | "]]" | "test"))
            .collect();
        match words.as_slice() {
            ["-n", value] => !value.is_empty() && !value.contains(UNKNOWN),
            ["-z", value] => value.is_empty() || value.contains(UNKNOWN),
            [left, "=" | "==" | "-eq", right] => left == right,
            [left, "!=" | "-ne", right] => left != right,
            [left, operator @ ("-gt" | "-ge" | "-lt" | "-le"), right] => {
                let (Ok(left), Ok(right)) = (left.parse::<i64>(), right.parse::<i64>()) else { return false };
                match *operator {
                    "-gt" => left > right,
                    "-ge" => left >= right,
                    "-lt" => left < right,
                    _ => left <= right,
                }
            }
            _ => false,
        }
    }
}

/// Finds the training command of a launch script or an argument list.
///
/// # Errors
/// Quotes, arrays or continuation lines that never end; no training command, or several.
pub fn read_launch(text: &str) -> Result<Launch, ImportError> {
    let lexer = Lexer { chars: text.chars().collect(), at: 0, line: 1 };
    let statements = lexer.statements()?;
    let mut scope = Scope { variables: BTreeMap::new(), arrays: BTreeMap::new() };
    let mut environment = BTreeMap::new();
    // For every open `if`: whether its surroundings run, whether a branch was taken, whether this one runs.
    let mut branches: Vec<(bool, bool, bool)> = Vec::new();
    let mut found: Vec<Launch> = Vec::new();
    let mut arguments: Vec<Word> = Vec::new();
    for statement in &statements {
        let runs = branches.last().is_none_or(|b| b.2);
        let mut words: Vec<&Raw> = match statement {
            Statement::Array { name, append, words } => {
                if runs {
                    let members: Vec<Word> = words.iter().flat_map(|w| scope.expand(w)).collect();
                    let array = scope.arrays.entry(name.clone()).or_default();
                    if !*append {
                        array.clear();
                    }
                    array.extend(members);
                }
                continue;
            }
            Statement::Command(words) => words.iter().collect(),
        };
        while let Some(keyword) = words.first().and_then(|w| plain(w)) {
            match keyword.as_str() {
                "if" | "elif" => {
                    let test: Vec<Word> = words[1..].iter().flat_map(|w| scope.expand(w)).collect();
                    let holds = scope.test(&test);
                    if keyword == "if" {
                        branches.push((runs, holds, runs && holds));
                    } else if let Some(branch) = branches.last_mut() {
                        let now = !branch.1 && holds;
                        *branch = (branch.0, branch.1 || holds, branch.0 && now);
                    }
                    words.clear();
                }
                "else" => {
                    if let Some(branch) = branches.last_mut() {
                        *branch = (branch.0, true, branch.0 && !branch.1);
                    }
                    words.remove(0);
                }
                "fi" => {
                    branches.pop();
                    words.clear();
                }
                "then" | "do" | "{" | "}" | "exec" | "time" | "nohup" | "set" | "export" | "local"
                | "declare" | "readonly" => {
                    let exported = keyword == "export";
                    words.remove(0);
                    if keyword == "set" {
                        words.clear();
                    }
                    if exported {
                        for word in &words {
                            for field in scope.expand(word) {
                                if let Some((name, value)) = field.text.split_once('=') {
                                    environment.insert(name.to_owned(), value.to_owned());
                                }
                            }
                        }
                    }
                }
                _ => break,
            }
        }
        let runs = branches.last().is_none_or(|b| b.2);
        if !runs || words.is_empty() {
            continue;
        }
        let mut local = BTreeMap::new();
        while let Some(first) = words.first() {
            let Some(name) = assignment(first) else { break };
            let whole: String = scope.expand_joined(first);
            let value = whole.split_once('=').map_or("", |(_, v)| v).to_owned();
            local.insert(name, value);
            words.remove(0);
        }
        if words.is_empty() {
            for (name, value) in local {
                if environment.contains_key(&name) {
                    environment.insert(name.clone(), value.clone());
                }
                scope.variables.insert(name, value);
            }
            continue;
        }
        let fields: Vec<Word> = words.iter().flat_map(|w| scope.expand(w)).collect();
        if let Some(launch) = training_command(&fields) {
            let mut launch = launch;
            launch.environment = environment.clone();
            launch.environment.extend(local);
            found.push(launch);
        } else if fields.first().is_some_and(|w| w.text.starts_with("--")) {
            // An argument list on its own, one or many lines.
            environment.extend(local);
            arguments.extend(fields);
        } else if fields.len() == 1 && fields[0].text.ends_with(".py") {
            environment.extend(local);
            found.push(Launch { script: Some(fields[0].clone()), ..Launch::default() });
        }
    }
    if !branches.is_empty() {
        let last = text.lines().count().max(1);
        return Err(ImportError::new(last, "an `if` is never closed by `fi`"));
    }
    // Argument lists name the script on a line of its own, or not at all.
    if !arguments.is_empty() && found.iter().all(|l| l.arguments.is_empty()) {
        let script = found.pop().and_then(|l| l.script);
        for (name, value) in scope.variables {
            environment.entry(name).or_insert(value);
        }
        return Ok(Launch { launcher: Vec::new(), script, arguments, environment });
    }
    found.retain(|l| !l.arguments.is_empty());
    let mut launches = found.into_iter();
    let Some(first) = launches.next() else {
        let last = text.lines().count().max(1);
        return Err(ImportError::new(
            last,
            "no training command was found: expected torchrun, python, srun or deepspeed with a .py script, or a list of --flags",
        ));
    };
    if let Some(other) = launches.find(|l| l.arguments != first.arguments) {
        let line = other.script.as_ref().map_or(1, |w| w.line);
        return Err(ImportError::new(line, "a second training command differs from the first; expected one"));
    }
    Ok(first)
}

impl Scope {
    fn expand_joined(&self, raw: &Raw) -> String {
        let quoted = Raw {
            parts: raw
                .parts
                .iter()
                .map(|p| match p {
                    Part::Variable { expression, line, .. } => {
                        Part::Variable { expression: expression.clone(), quoted: true, line: *line }
                    }
                    other => other.clone(),
                })
                .collect(),
            ..raw.clone()
        };
        self.expand(&quoted).into_iter().map(|w| w.text).collect::<Vec<_>>().join(" ")
    }
}

/// `NAME=` at the front of a word.
fn assignment(raw: &Raw) -> Option<String> {
    let Some(Part::Text(text)) = raw.parts.first() else { return None };
    let (name, _) = text.split_once('=')?;
    let good = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    good.then(|| name.to_owned())
}

/// Splits a command at its training script, if it starts one.
fn training_command(fields: &[Word]) -> Option<Launch> {
    let first = fields.first()?;
    let program = first.text.rsplit('/').next().unwrap_or_default();
    if matches!(program, "bash" | "sh") || fields.iter().any(|w| w.text == "-c") {
        // `srun … bash -c '…'`: the quoted text is a command of its own.
        let at = fields.iter().position(|w| w.text == "-c")?;
        let inner = fields.get(at + 1)?;
        let launch = read_launch(&inner.text).ok()?;
        let shift = |w: Word| Word { line: w.line + inner.line - 1, ..w };
        let mut launcher: Vec<Word> = fields[..at].to_vec();
        launcher.extend(launch.launcher.into_iter().map(shift));
        return Some(Launch {
            launcher,
            script: launch.script.map(shift),
            arguments: launch.arguments.into_iter().map(shift).collect(),
            environment: launch.environment,
        });
    }
    let known = ["torchrun", "python", "srun", "deepspeed", "mpirun", "accelerate", "numactl", "nsys", "env"];
    if !known.iter().any(|k| program.starts_with(k)) {
        return None;
    }
    let at = fields.iter().position(|w| w.text.ends_with(".py"))?;
    Some(Launch {
        launcher: fields[..at].to_vec(),
        script: Some(fields[at].clone()),
        arguments: fields[at + 1..].to_vec(),
        environment: BTreeMap::new(),
    })
}

/// Whether a word holds something that only a running shell knows.
#[must_use]
pub fn is_unknown(text: &str) -> bool {
    text.contains(UNKNOWN)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        read_launch(text).unwrap().arguments.into_iter().map(|w| w.text).collect()
    }

    #[test]
    fn scripts_of_many_styles() {
        assert_eq!(words("torchrun --nnodes 2 pretrain_gpt.py --a 1 --b 'x y'"), ["--a", "1", "--b", "x y"]);
        assert_eq!(words("N=4\ntorchrun x.py --n $N \\\n  --m $((N*2+1)) # c\n"), ["--n", "4", "--m", "9"]);
        let arrays = "A=(--n 1\n  # comment\n --m \"a b\")\nA+=(--k)\npython -u x.py \"${A[@]}\" ${B:-\"--z 3\"} \"$@\"";
        assert_eq!(words(arrays), ["--n", "1", "--m", "a b", "--k", "--z", "3"]);
        let string = "ARGS=\"\n --n 1\n --m 2 \"\nsrun torchrun --x x.py $ARGS > log 2>&1";
        assert_eq!(words(string), ["--n", "1", "--m", "2"]);
        let branch = "if [[ -n \"${D:-}\" ]]; then\n A=(--d $D)\nelse\n A=(--mock)\nfi\nexec torchrun x.py \"${A[@]}\"";
        assert_eq!(words(branch), ["--mock"]);
        assert_eq!(words("CUDA=1 WORLD_SIZE=8\npretrain_gpt.py\n--a 1\n# c\n--b"), ["--a", "1", "--b"]);
        assert_eq!(words("srun bash -c 'RANK=$R python t.py --a \"$L\" --b'"), ["--a", "\u{fffc}", "--b"]);
    }

    #[test]
    fn unfinished_scripts_name_their_line() {
        for (text, line, part) in [
            ("A=(--n 1\n", 1, "array"),
            ("\ntorchrun x.py --a 'b", 2, "single quote"),
            ("torchrun x.py --a \\", 1, "continuation"),
            ("echo hello", 1, "no training command"),
            ("if [ -n x ]; then\ntorchrun x.py --a\n", 2, "fi"),
            ("torchrun x.py --a ${B", 1, "${"),
        ] {
            let error = read_launch(text).unwrap_err();
            assert!(error.line == line && error.message.contains(part), "{text:?}: {error}");
        }
    }
}
