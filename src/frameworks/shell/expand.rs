//! Words to texts and fields: variables with their defaults and patterns, arrays, sums, braces, what commands print.

use super::parse::{Part, Quoting, Raw, template};
use super::patterns::{Place, escaped, replaced, without};
use super::printed::is_host;
use super::run::{LONGEST, MOST_DEPTH, Shell};
use super::state::{Value, in_order_of_bash, known, loose, unknown};
use super::{UNKNOWN, UNSET, Word, once};

/// Most words that braces make.
const MOST_BRACES: usize = 4096;

/// A word that is being split into fields.
struct Fields {
    all: Vec<Word>,
    open: Option<Word>,
    separators: String,
}

impl Fields {
    /// Text that stays together.
    fn push(&mut self, text: &str, line: usize) {
        self.open.get_or_insert_with(|| Word { text: String::new(), line }).text.push_str(text);
    }

    /// Text that is split at separators.
    fn split(&mut self, text: &str, line: usize) {
        for piece in text.split_inclusive(|c| self.separators.contains(c)).collect::<Vec<_>>() {
            let rest = piece.trim_end_matches(|c| self.separators.contains(c));
            if !rest.is_empty() {
                self.push(&once(rest), line);
            }
            let Some(separator) = piece[rest.len()..].chars().next() else { continue };
            match self.open.take() {
                Some(word) => self.all.push(word),
                None if !separator.is_whitespace() => self.all.push(Word { text: String::new(), line }),
                None => {}
            }
        }
    }

    fn end_word(&mut self) {
        self.all.extend(self.open.take());
    }
}

/// `NAME`, `NAME[INDEX]` and what is done to it.
struct Expansion<'a> {
    name: &'a str,
    index: Option<&'a str>,
    rest: &'a str,
}

impl<'a> Expansion<'a> {
    fn of(expression: &'a str) -> Self {
        let special = expression.starts_with(['#', '?', '$', '!', '-', '@', '*']);
        let end = if special {
            1
        } else {
            let ends = |c: char| !(c.is_ascii_alphanumeric() || c == '_');
            expression.find(ends).unwrap_or(expression.len())
        };
        let (name, rest) = expression.split_at(end);
        let mut depth = 0_usize;
        let close = rest.starts_with('[').then(|| {
            rest.char_indices().find(|(_, c)| {
                depth = if *c == '[' { depth + 1 } else { depth.saturating_sub(usize::from(*c == ']')) };
                depth == 0
            })
        });
        match close.flatten() {
            Some((at, _)) => Self { name, index: Some(&rest[1..at]), rest: &rest[at + 1..] },
            None => Self { name, index: None, rest },
        }
    }

    fn is_whole(&self) -> bool {
        matches!(self.name, "@" | "*") || matches!(self.index, Some("@" | "*"))
    }
}

impl Shell<'_> {
    /// A word as one text: nothing is split.
    pub(super) fn joined(&mut self, raw: &Raw) -> String {
        let mut text = String::new();
        for part in &raw.parts {
            match part {
                Part::Text { text: t, .. } => text.push_str(t),
                Part::Command { list, .. } => text.push_str(&self.substituted(list.as_deref())),
                Part::Process(_) => text.push(UNKNOWN),
                Part::Variable { expression, quoted } => text.push_str(&self.value(expression, *quoted)),
            }
            if text.len() > LONGEST {
                return unknown();
            }
        }
        self.worked(text.len());
        text
    }

    /// A word as a pattern: what is quoted matches itself.
    pub(super) fn pattern(&mut self, raw: &Raw) -> String {
        self.text_and_pattern(raw).1
    }

    /// A word as one text and as a pattern: what it assigns is assigned once.
    pub(super) fn text_and_pattern(&mut self, raw: &Raw) -> (String, String) {
        self.text_and_pattern_by(raw, escaped)
    }

    /// The same with what is quoted written by `escape`.
    pub(super) fn text_and_pattern_by(&mut self, raw: &Raw, escape: fn(&str) -> String) -> (String, String) {
        let (mut whole, mut pattern) = (String::new(), String::new());
        for part in &raw.parts {
            let (text, quoted) = match part {
                Part::Text { text, quoted } => (text.clone(), *quoted),
                Part::Command { list, quoted } => (self.substituted(list.as_deref()), *quoted),
                Part::Process(_) => (unknown(), false),
                Part::Variable { expression, quoted } => (self.value(expression, *quoted), *quoted),
            };
            whole.push_str(&text);
            pattern.push_str(&if quoted { escape(&text) } else { text });
            if pattern.len() > LONGEST {
                return (unknown(), unknown());
            }
        }
        self.worked(pattern.len());
        (whole, pattern)
    }

    /// All fields of words.
    pub(super) fn all_fields(&mut self, words: &[Raw]) -> Vec<Word> {
        let mut fields = Vec::new();
        for word in words {
            fields.extend(self.fields(word));
        }
        fields
    }

    /// All fields of a word: unquoted expansions are split at blanks, arrays give their members. Members
    /// of an array keep the line on which they were written.
    pub(super) fn fields(&mut self, raw: &Raw) -> Vec<Word> {
        match braced(raw) {
            Some(words) => words.iter().flat_map(|word| self.fields_of(word)).collect(),
            None => self.fields_of(raw),
        }
    }

    fn fields_of(&mut self, raw: &Raw) -> Vec<Word> {
        let separators = self.separators();
        let mut fields = Fields { all: Vec::new(), open: None, separators };
        let mut length = 0;
        for part in &raw.parts {
            let (value, quoted) = match part {
                // What is not known of a text that is read again may be several words.
                Part::Text { text, quoted } => (text.clone(), *quoted || known(text)),
                Part::Command { list, quoted } => (self.substituted(list.as_deref()), *quoted),
                Part::Process(_) => (unknown(), true),
                Part::Variable { expression, quoted } => match self.members(expression) {
                    Some(members) => {
                        let between = Some(self.between(expression)).filter(|_| *quoted).flatten();
                        for (n, member) in members.iter().enumerate() {
                            let line = if member.line > 0 { member.line } else { raw.line };
                            match &between {
                                Some(between) if n > 0 => fields.push(between, line),
                                None if n > 0 => fields.end_word(),
                                _ => {}
                            }
                            if *quoted {
                                fields.push(&member.text, line);
                            } else {
                                fields.split(&member.text, line);
                            }
                            length += member.text.len();
                            if length > LONGEST {
                                return vec![Word { text: unknown(), line }];
                            }
                        }
                        continue;
                    }
                    None => (self.value(expression, *quoted), *quoted),
                },
            };
            length += value.len();
            if length > LONGEST {
                return vec![Word { text: unknown(), line: raw.line }];
            }
            if quoted {
                fields.push(&value, raw.line);
                // One word, whatever it is.
                fields.push(if loose(&value) { &value } else { "" }, raw.line);
            } else {
                fields.split(&value, raw.line);
            }
        }
        self.worked(length + fields.all.len());
        fields.end_word();
        fields.all
    }

    /// What `IFS` says; blanks where that is not known.
    pub(super) fn separators(&mut self) -> String {
        self.content("IFS", None).filter(|text| known(text)).unwrap_or_else(|| " \t\n".to_owned())
    }

    /// What stands between members that `*` makes one word of: the first character of `IFS`.
    fn between(&mut self, expression: &str) -> Option<String> {
        let expansion = Expansion::of(expression);
        (expansion.name == "*" || expansion.index == Some("*")).then(|| match self.content("IFS", None) {
            None => " ".to_owned(),
            Some(text) => text.chars().take(1).collect(),
        })
    }

    /// The text of a default or an index: a word of its own.
    pub(super) fn text_of(&mut self, text: &str, quoted: bool) -> String {
        let quoting = if quoted { Quoting::Double } else { Quoting::None };
        self.within(|shell| template(text, 1, quoting).map_or_else(|_| unknown(), |raw| shell.joined(&raw)))
    }

    fn pattern_of(&mut self, text: &str) -> String {
        self.within(|shell| {
            template(text, 1, Quoting::None).map_or_else(|_| unknown(), |raw| shell.pattern(&raw))
        })
    }

    /// Expands inside an expansion: a script that does so too deeply ends.
    fn within(&mut self, expand: impl FnOnce(&mut Self) -> String) -> String {
        self.expanding += 1;
        let text = if self.expanding > MOST_DEPTH {
            self.fail("expansions stand inside one another too deeply");
            unknown()
        } else {
            expand(self)
        };
        self.expanding -= 1;
        text
    }

    /// `A[@]`, `A[*]`, `@`, `*`, with what is done to each.
    fn members(&mut self, expression: &str) -> Option<Vec<Word>> {
        if let Some(name) = expression.strip_prefix('!').and_then(|rest| rest.strip_suffix("[@]")) {
            return Some(self.keys(name));
        }
        // `R='A[@]'; "${!R}"`
        if let Some(name) = expression.strip_prefix('!').filter(|name| !name.is_empty()) {
            if matches!(self.state.variables.get(name).map(|v| &v.value), Some(Value::Reference(_))) {
                return None;
            }
            let target = self.content(name, None).filter(|text| known(text) && text.ends_with(']'))?;
            return Some(target)
                .filter(|target| !target.starts_with('!'))
                .and_then(|target| self.members(&target));
        }
        let expansion = Expansion::of(expression);
        if !expansion.is_whole() {
            return None;
        }
        let plain = |text: String| Word { text, line: 0 };
        let all: Vec<Word> = if matches!(expansion.name, "@" | "*") {
            let given = self.state.positional.clone();
            given.iter().flat_map(|all| all.iter().cloned()).map(plain).collect()
        } else {
            match self.variable(expansion.name).as_deref().map(|variable| &variable.value) {
                Some(Value::Array(array)) => array.values().cloned().collect(),
                Some(Value::Table(table)) => match in_order_of_bash(table) {
                    Some(all) => all.into_iter().map(|(_, word)| word.clone()).collect(),
                    None => vec![plain(unknown())],
                },
                Some(Value::Text(text)) => vec![plain(text.clone())],
                Some(Value::Unset) => Vec::new(),
                Some(Value::Reference(_)) => vec![plain(unknown())],
                None if self.state.anything => vec![plain(unknown())],
                None => vec![plain(UNSET.to_string())],
            }
        };
        let rest = expansion.rest;
        if rest.is_empty() {
            return Some(all);
        }
        let empty = all.iter().all(|word| word.text.is_empty() || word.text == UNSET.to_string());
        let undecided = all.iter().all(|word| loose(&word.text)) && !empty;
        for mark in [":-", "-", ":=", "="] {
            if let Some(default) = rest.strip_prefix(mark) {
                return Some(if empty { vec![plain(self.text_of(default, false))] } else { all });
            }
        }
        for mark in [":+", "+"] {
            if let Some(other) = rest.strip_prefix(mark) {
                return Some(match (empty, undecided) {
                    (true, _) => Vec::new(),
                    (_, true) => vec![plain(unknown())],
                    // `${A[@]+"${A[@]}"}`
                    _ => {
                        let raw = template(other, 1, Quoting::None).ok()?;
                        self.fields(&raw)
                    }
                });
            }
        }
        if let Some(range) = rest.strip_prefix(':') {
            let (from, count) = self.range(range);
            let Some(from) = from.filter(|_| !all.iter().any(|w| loose(&w.text))) else {
                return Some(vec![plain(unknown())]);
            };
            // Before the arguments stands the name of the script.
            let mut all = all;
            if matches!(expansion.name, "@" | "*") {
                all.insert(0, plain(unknown()));
            }
            // Of an array the first is the one from that index on.
            let indices: Vec<i64> = match self.variable(expansion.name).as_deref().map(|v| &v.value) {
                Some(Value::Array(array)) => array.keys().copied().collect(),
                _ => (0..).take(all.len()).collect(),
            };
            let end = indices.last().map_or(0, |last| last.saturating_add(1));
            let from = if from < 0 { end + from } else { from };
            let before = indices.iter().take_while(|index| **index < from).count();
            let from = usize::try_from(from).map(|_| before);
            return Some(match (from, count.map(|n| n.map(usize::try_from))) {
                (Ok(from), None) => all.into_iter().skip(from).collect(),
                (Ok(from), Some(Some(Ok(count)))) => all.into_iter().skip(from).take(count).collect(),
                _ => vec![plain(unknown())],
            });
        }
        let changed = all.into_iter().map(|word| Word { text: self.changed(&word.text, rest), ..word });
        Some(changed.collect())
    }

    /// `${!A[@]}`
    fn keys(&mut self, name: &str) -> Vec<Word> {
        let plain = |text: String| Word { text, line: 0 };
        match self.variable(name).as_deref().map(|variable| &variable.value) {
            Some(Value::Table(table)) if let Some(all) = in_order_of_bash(table) => {
                all.into_iter().map(|(key, _)| plain(key.clone())).collect()
            }
            Some(Value::Array(array)) if !array.values().any(|w| loose(&w.text)) => {
                array.keys().map(|key| plain(key.to_string())).collect()
            }
            _ => vec![plain(unknown())],
        }
    }

    /// The text of an expansion: a sum, a variable, the members of an array as one text.
    fn value(&mut self, expression: &str, quoted: bool) -> String {
        if let Some(sum) = expression.strip_prefix("((") {
            let sum = sum.to_owned();
            return self.within(|shell| shell.sum(&sum).map_or_else(unknown, |n| n.to_string()));
        }
        if let Some(members) = self.members(expression) {
            let length: usize = members.iter().map(|w| w.text.len() + 1).sum();
            if length > LONGEST {
                return unknown();
            }
            let all: Vec<&str> = members.iter().map(|w| w.text.as_str()).collect();
            return all.join(self.between(expression).as_deref().unwrap_or(" "));
        }
        if let Some(name) = expression.strip_prefix('#').filter(|n| !n.is_empty()) {
            return self.length(name);
        }
        if let Some(name) = expression.strip_prefix('!').filter(|n| !n.is_empty()) {
            // Of a name for another it is that other name.
            if let Some(Value::Reference(target)) = self.state.variables.get(name).map(|v| &v.value) {
                return target.clone();
            }
            let target = self.content(name, None).filter(|text| known(text));
            let is_name = |t: &String| t.chars().all(|c| c.is_ascii_alphanumeric() || "_[]@*".contains(c));
            return match target.filter(is_name) {
                Some(target) => self.within(|shell| shell.value(&target, quoted)),
                None => unknown(),
            };
        }
        let expansion = Expansion::of(expression);
        let (name, rest) = (expansion.name, expansion.rest);
        let set = match name {
            "#" => Some(self.number_of_arguments()),
            "?" => {
                let status = self.state.status.filter(|_| !self.hoped_before);
                Some(status.map_or_else(unknown, |status| status.to_string()))
            }
            "$" | "!" | "-" | "0" | "" => Some(unknown()),
            name if name.bytes().all(|b| b.is_ascii_digit()) => self.argument(name),
            name => self.content(name, expansion.index),
        };
        self.with_default(&expansion, set.as_deref(), quoted).unwrap_or_else(|| match set {
            None => {
                if name.bytes().all(|b| b.is_ascii_digit()) {
                    self.is_unset(name);
                }
                UNSET.to_string()
            }
            Some(value)
                if rest.is_empty()
                    || rest.starts_with([':', '?']) && rest.trim_start_matches(':').starts_with('?') =>
            {
                value
            }
            Some(value) => self.changed(&value, rest),
        })
    }

    /// `:-`, `-`, `:=`, `=`, `:+`, `+`; none for anything else.
    fn with_default(&mut self, expansion: &Expansion, set: Option<&str>, quoted: bool) -> Option<String> {
        let rest = expansion.rest;
        let (strict, mark, word) = match rest.strip_prefix(':') {
            Some(more) => (false, more.chars().next()?, more.get(1..)?),
            None => (true, rest.chars().next()?, rest.get(1..)?),
        };
        if !matches!(mark, '-' | '=' | '+') {
            return None;
        }
        let empty = set.is_none_or(|text| if strict { text == UNSET.to_string() } else { is_empty(text) });
        if mark == '+' {
            let undecided = !strict && set.is_some_and(loose);
            return Some(match (empty, undecided) {
                (true, _) => String::new(),
                (_, true) => unknown(),
                _ => self.text_of(word, quoted),
            });
        }
        match set {
            Some(text) if !empty => Some(text.to_owned()),
            _ => {
                let text = self.text_of(word, quoted);
                if set.is_none() && self.unread && text.parse::<u64>().is_ok() {
                    self.defaults.insert(expansion.name.to_owned(), text.clone());
                }
                if mark == '=' {
                    self.put(expansion.name, expansion.index, false, text.clone());
                }
                Some(text)
            }
        }
    }

    /// Whether a variable, or a member of it, is set; none where that is not known.
    pub(super) fn is_set(&mut self, expression: &str) -> Option<bool> {
        let expansion = Expansion::of(expression);
        if self.variable(expansion.name).is_none() {
            self.assumed = true;
            if self.state.anything {
                return None;
            }
        }
        let index = expansion.index.filter(|_| !expansion.is_whole());
        let content = self.content(expansion.name, index);
        // Of a member that is not known it is not known either whether it is there.
        if index.is_some() && content.as_deref().is_some_and(loose) { None } else { Some(content.is_some()) }
    }

    fn length(&mut self, name: &str) -> String {
        if matches!(name, "@" | "*") {
            return self.number_of_arguments();
        }
        let number = match self.members(name) {
            Some(all) if all.iter().any(|w| !known(&w.text) && !is_host(&w.text)) => None,
            Some(all) => Some(all.len()),
            None => {
                let expansion = Expansion::of(name);
                let text = self.content(expansion.name, expansion.index).unwrap_or_else(|| UNSET.to_string());
                known(&text).then(|| text.chars().count())
            }
        };
        number.map_or_else(unknown, |n| n.to_string())
    }

    fn number_of_arguments(&mut self) -> String {
        match &self.state.positional {
            Some(all) if all.iter().any(|text| loose(text)) => unknown(),
            Some(all) => all.len().to_string(),
            // Those of the script are its caller's.
            None => {
                self.assumed = true;
                "0".to_owned()
            }
        }
    }

    fn argument(&mut self, name: &str) -> Option<String> {
        let at = name.parse::<usize>().ok()?.checked_sub(1)?;
        let all = self.state.positional.as_ref()?;
        if all.iter().take(at + 1).any(|text| loose(text)) {
            return Some(unknown());
        }
        Some(all.get(at).cloned().unwrap_or_default())
    }

    /// `%`, `%%`, `#`, `##`, `/`, `//`, `^^`, `,,` and `:offset:length` of an expansion.
    fn changed(&mut self, value: &str, rest: &str) -> String {
        self.changed_if_followed(value, rest).unwrap_or_else(unknown)
    }

    fn changed_if_followed(&mut self, value: &str, rest: &str) -> Option<String> {
        let extended = self.state.options.extended;
        for (mark, at_end, longest) in
            [("%%", true, true), ("%", true, false), ("##", false, true), ("#", false, false)]
        {
            if let Some(pattern) = rest.strip_prefix(mark) {
                let pattern = self.pattern_of(pattern);
                self.worked(value.len());
                let left =
                    self.sought(|steps| without(value, (&pattern, extended), at_end, longest, steps))?;
                // What is not known may hold a shorter match; and only `*` matches all that it may be.
                let open = pattern.contains(['?', '[', '(']) && fewer_unknown(&left, value);
                let decided = known(value) || !pattern.contains(['*', '?', '[', '(']) || longest && !open;
                return Some(left).filter(|_| decided && known(&pattern));
            }
        }
        if let Some(both) = rest.strip_prefix('/') {
            let place = match both.chars().next()? {
                '/' => Place::All,
                '#' => Place::Start,
                '%' => Place::End,
                _ => Place::First,
            };
            let both = if place == Place::First { both } else { &both[1..] };
            let (from, to) = at_slash(both);
            let (from, to) = (self.pattern_of(from), self.text_of(to, false));
            self.worked(value.len());
            let changed =
                self.sought(|steps| replaced(value, (&from, extended), &to, place, LONGEST, steps))?;
            // A pattern says nothing of what it would replace in what is not known.
            return Some(changed).filter(|changed| known(&from) && !fewer_unknown(changed, value));
        }
        match rest {
            "^^" => return Some(value.to_uppercase()),
            ",," => return Some(value.to_lowercase()),
            "^" | "," => {
                let mut chars = value.chars();
                let first = chars
                    .next()
                    .map(|c| if rest == "^" { c.to_ascii_uppercase() } else { c.to_ascii_lowercase() });
                return Some(first.into_iter().chain(chars).collect());
            }
            _ => {}
        }
        let (from, count) = self.range(rest.strip_prefix(':')?);
        let (from, count) = (
            from?,
            match count {
                None => None,
                Some(count) => Some(count?),
            },
        );
        if !known(value) {
            return None;
        }
        let length = i64::try_from(value.chars().count()).ok()?;
        let from = if from < 0 { length + from } else { from };
        let end = match count {
            None => length,
            Some(count) if count < 0 => length + count,
            Some(count) => from.checked_add(count)?,
        };
        let from = usize::try_from(from).unwrap_or(usize::MAX);
        let end = usize::try_from(end).unwrap_or(0);
        Some(value.chars().skip(from).take(end.saturating_sub(from)).collect())
    }

    /// `offset:length`: each none where it is not known; the length outside where it is not said.
    fn range(&mut self, text: &str) -> (Option<i64>, Option<Option<i64>>) {
        let (from, count) = text.split_once(':').map_or((text, None), |(from, count)| (from, Some(count)));
        (self.sum(from), count.map(|count| self.sum(count)))
    }
}

/// Whether less of a text is unknown than of what it was made from.
fn fewer_unknown(text: &str, of: &str) -> bool {
    text.matches(UNKNOWN).count() < of.matches(UNKNOWN).count()
}

/// Whether a text counts as empty where a default stands beside it.
fn is_empty(text: &str) -> bool {
    text.chars().all(|c| c == UNSET)
}

/// Pattern and replacement: they part at a slash that is neither escaped nor quoted.
fn at_slash(text: &str) -> (&str, &str) {
    let mut quote = None;
    let mut braces = 0_usize;
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match (quote, c) {
            (_, '\\') => {
                chars.next();
            }
            (Some(open), c) if open == c => quote = None,
            (None, '\'' | '"') => quote = Some(c),
            (None, '{') => braces += 1,
            (None, '}') => braces = braces.saturating_sub(1),
            (None, '/') if braces == 0 => return (&text[..at], &text[at + 1..]),
            _ => {}
        }
    }
    (text, "")
}

/// A field as a word again: what is not even known to be one word stays so.
pub(super) fn word_of(field: &Word) -> Raw {
    if loose(&field.text) { Raw::not_understood(field.line) } else { Raw::quoted(&field.text, field.line) }
}

/// The words that braces make of one, `a{b,c}` or `{1..3}`; none where there are none.
fn braced(raw: &Raw) -> Option<Vec<Raw>> {
    let mut made = vec![raw.clone()];
    let mut any = false;
    while made.len() <= MOST_BRACES {
        let Some((at, words)) =
            made.iter().enumerate().find_map(|(at, word)| Some((at, first_braces(word)?)))
        else {
            return any.then_some(made);
        };
        any = true;
        made.splice(at..=at, words);
    }
    // Too many to follow.
    let part = Part::Command { list: None, quoted: false };
    Some(vec![Raw { parts: vec![part], ..raw.clone() }])
}

fn first_braces(raw: &Raw) -> Option<Vec<Raw>> {
    raw.parts.iter().enumerate().find_map(|(at, part)| {
        let Part::Text { text, quoted: false } = part else { return None };
        let (start, end, choices) = choices(text)?;
        let words = choices.into_iter().map(|choice| {
            let text = format!("{}{choice}{}", &text[..start], &text[end..]);
            let mut word = raw.clone();
            word.parts[at] = Part::Text { text, quoted: false };
            word
        });
        Some(words.collect())
    })
}

/// Where the first braces that make words stand in a text, and which they make.
fn choices(text: &str) -> Option<(usize, usize, Vec<String>)> {
    text.match_indices('{').take(16).find_map(|(start, _)| {
        let (mut depth, mut from, mut parts) = (0_usize, start + 1, Vec::new());
        for (at, c) in text[start..].char_indices().map(|(at, c)| (start + at, c)) {
            match c {
                '{' => depth += 1,
                ',' if depth == 1 => {
                    parts.push(text[from..at].to_owned());
                    from = at + 1;
                }
                '}' => {
                    depth -= 1;
                    if depth > 0 {
                        continue;
                    }
                    if parts.is_empty() {
                        return Some((start, at + 1, sequence(&text[from..at])?));
                    }
                    parts.push(text[from..at].to_owned());
                    return Some((start, at + 1, parts));
                }
                _ => {}
            }
        }
        None
    })
}

/// `1..3`, `8..1..2`
fn sequence(text: &str) -> Option<Vec<String>> {
    if let [from, to] = text.split("..").collect::<Vec<_>>().as_slice()
        && let (Some(from), Some(to)) = (letter(from), letter(to))
    {
        let letters = from.min(to)..=from.max(to);
        let text = |letter: u8| char::from(letter).to_string();
        return Some(if from <= to {
            letters.map(text).collect()
        } else {
            letters.rev().map(text).collect()
        });
    }
    // Zeros before one of the numbers make all as wide.
    let ends = || text.split("..").take(2);
    let zeros =
        |end: &str| end.trim_start_matches('-').starts_with('0') && end.trim_start_matches('-').len() > 1;
    let width = if ends().any(zeros) { ends().map(str::len).max().unwrap_or(0) } else { 0 };
    let numbers: Vec<i64> = text.split("..").map(|n| n.parse().ok()).collect::<Option<_>>()?;
    let (from, to, step) = match numbers.as_slice() {
        [from, to] => (*from, *to, 1),
        [from, to, step] => (*from, *to, step.checked_abs()?.max(1)),
        _ => return None,
    };
    let count = from.abs_diff(to) / step.unsigned_abs() + 1;
    let count = i64::try_from(count).ok().filter(|n| *n <= MOST_BRACES as i64 + 1)?;
    let step = if from <= to { step } else { -step };
    Some((0..count).map(|n| format!("{:0width$}", from + n * step)).collect())
}

fn letter(text: &str) -> Option<u8> {
    let [letter] = text.as_bytes() else { return None };
    letter.is_ascii_alphabetic().then_some(*letter)
}
