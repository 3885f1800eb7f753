//! What a running shell would hold: variables, arguments, functions, files. Where a script goes one way or another, both
//! states are joined: what they have in common stays, what differs is unknown.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::parse::{Command, Link, List, Pipe};
use super::printed::Written;
use super::run::{LONGEST, Shell};
use super::{HARMLESS, UNKNOWN, UNSET, Word, is_harmless};

/// The status of a command; none where only a running shell knows it.
pub(super) type Status = Option<u8>;

/// What a variable holds.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) enum Value {
    #[default]
    Unset,
    Text(String),
    Array(BTreeMap<i64, Word>),
    /// `declare -A`
    Table(BTreeMap<String, Word>),
    /// `declare -n`: the name of the variable that is meant.
    Reference(String),
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Variable {
    pub value: Value,
    pub exported: bool,
    /// `declare -i`
    pub number: bool,
    pub read_only: bool,
}

/// Switches of `set` and `shopt`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Options {
    /// `set -a`
    pub export_all: bool,
    /// `shopt -s extglob`
    pub extended: bool,
    /// `shopt -s nocasematch`
    pub ignore_case: bool,
    /// `set -o pipefail`
    pub pipe_fails: bool,
    /// `shopt -s lastpipe`
    pub last_pipe: bool,
    /// `shopt -s expand_aliases`, or a shell other than bash: words are replaced by what `alias` said of them.
    pub aliases: bool,
}

/// Names of aliases, each with the line that says what it stands for.
pub(super) type Aliases = Arc<BTreeMap<String, usize>>;

/// Variables that a function hides, by name.
pub(super) type Frame = BTreeMap<String, Option<Arc<Variable>>>;

#[derive(Debug, Clone, Default)]
pub(super) struct State {
    pub variables: BTreeMap<String, Arc<Variable>>,
    pub functions: BTreeMap<String, Arc<List>>,
    /// Names that `alias` gave, each with its line.
    pub aliases: Aliases,
    /// Those of them that replace words of what is being run: they stood when it was read.
    pub replaced: Aliases,
    /// The same of functions.
    pub replaced_in: BTreeMap<String, Aliases>,
    /// None: those of the script itself, which are its caller's and are taken to be none.
    pub positional: Option<Arc<Vec<String>>>,
    pub frames: Vec<Frame>,
    /// The folder that relative paths are from, by its path from the script's; empty: that one.
    pub folder: String,
    /// The one before, for `cd -`.
    pub left_folder: String,
    /// Those of `pushd`.
    pub folders: Vec<String>,
    pub options: Options,
    /// Files that the script writes, by their path from its folder.
    pub written: BTreeMap<String, Arc<Written>>,
    /// What was printed, where it is kept.
    pub output: Option<Option<String>>,
    /// What is left to read.
    pub input: Option<String>,
    pub status: Status,
    /// The word at which `getopts` stands, and where within it.
    pub option_at: (usize, usize),
    /// Names that are not there may have been set as well.
    pub anything: bool,
}

/// Where a script goes after a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Flow {
    #[default]
    Next,
    Break(u32),
    Continue(u32),
    Return,
    Exit,
}

/// A state and where it goes.
#[derive(Debug)]
pub(super) struct Branch {
    pub flow: Flow,
    pub state: State,
}

pub(super) fn unknown() -> String {
    UNKNOWN.to_string()
}

/// Most variables that are remembered as set by nothing.
const MOST_UNSET: usize = 4096;

/// Whether nothing is known of a text, not even whether it is one word. What is quoted is: it stands there twice.
pub(super) fn loose(text: &str) -> bool {
    let text = text.trim();
    let mut chars = text.strip_suffix(HARMLESS).unwrap_or(text).chars();
    matches!((chars.next(), chars.next()), (Some(UNKNOWN | UNSET), None))
}

/// Whether a text is the name of a variable.
pub(super) fn is_name(text: &str) -> bool {
    let first = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    first && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// Whether a text is known.
pub(super) fn known(text: &str) -> bool {
    !text.contains([UNKNOWN, UNSET])
}

/// What copying an entry of a map costs, in characters.
pub(super) const ENTRY: usize = 16;

/// Most names that stand for one another.
const MOST_REFERENCES: usize = 16;

/// The order in which bash (5.0 and later) gives the keys of a table: by their place among its 1,024 chains
/// (hashlib.c `hash_string`, assoc.h `ASSOC_HASH_BUCKETS`); none where two share a chain, or a key is not ASCII.
pub(super) fn in_order_of_bash<T>(table: &BTreeMap<String, T>) -> Option<Vec<(&String, &T)>> {
    const CHAINS: u32 = 1024;
    let chain = |key: &str| {
        let hash =
            key.bytes().fold(2_166_136_261_u32, |hash, c| hash.wrapping_mul(16_777_619) ^ u32::from(c));
        hash % CHAINS
    };
    let placed: BTreeMap<u32, _> = table.iter().map(|entry| (chain(entry.0), entry)).collect();
    let plain = table.keys().all(|key| key.is_ascii() && known(key));
    // Twice as many keys as chains make it grow.
    (plain && placed.len() == table.len()).then(|| placed.into_values().collect())
}

impl State {
    /// The variable that is meant by a name, behind `declare -n`; none where that is not known.
    pub(super) fn meant(&self, name: &str) -> Option<String> {
        let mut name = name;
        for _ in 0..MOST_REFERENCES {
            match self.variables.get(name).map(|variable| &variable.value) {
                Some(Value::Reference(target)) if is_name(target) => name = target,
                Some(Value::Reference(_)) => return None,
                _ => return Some(name.to_owned()),
            }
        }
        None
    }

    /// Makes a name stand for another one.
    pub(super) fn refer(&mut self, name: &str, target: &str) {
        // A name that stands for itself is that of the function's caller.
        let whose = is_name(target) && target != name;
        let value = Value::Reference(if whose { target.to_owned() } else { unknown() });
        self.variables.insert(name.to_owned(), Arc::new(Variable { value, ..Variable::default() }));
    }

    /// Makes a name that stood for another one hold the other's name.
    pub(super) fn end_reference(&mut self, name: &str) {
        let Some(variable) = self.variables.get_mut(name) else { return };
        if let Value::Reference(target) = &variable.value {
            let value = Value::Text(target.clone());
            *variable = Arc::new(Variable { value, ..Variable::clone(variable) });
        }
    }

    /// The aliases that replace words of what is read now.
    pub(super) fn aliases_now(&self) -> Aliases {
        if self.options.aliases { Arc::clone(&self.aliases) } else { Aliases::default() }
    }

    /// Forgets what all variables hold.
    pub(super) fn forget_variables(&mut self) {
        // Those that functions hide are meant by some names as well.
        let hidden = self.frames.iter_mut().flat_map(|frame| frame.values_mut().flatten());
        let all = self.variables.values_mut().chain(hidden);
        for variable in all.filter(|variable| !variable.read_only) {
            let value = Value::Text(unknown());
            let exported = variable.exported || self.options.export_all;
            *variable = Arc::new(Variable { value, exported, ..Variable::clone(variable) });
        }
        self.anything = true;
    }

    /// What a copy of it costs, in characters.
    pub(super) fn size(&self) -> usize {
        let hidden: usize = self.frames.iter().map(|frame| frame.len() + 1).sum();
        let functions = self.functions.len() + self.replaced_in.len();
        let entries = self.variables.len() + functions + self.written.len() + hidden;
        let texts = [self.output.as_ref().and_then(Option::as_ref), self.input.as_ref()];
        let texts = texts.into_iter().flatten().chain(&self.folders).map(|text| text.len() + ENTRY);
        entries * ENTRY + texts.sum::<usize>()
    }

    /// What is known whichever of two states it is.
    pub(super) fn joined(self, other: Self) -> Self {
        let mut variables = BTreeMap::new();
        let names: Vec<&String> = self.variables.keys().chain(other.variables.keys()).collect();
        for name in names {
            if !variables.contains_key(name) {
                let (one, two) = (self.variables.get(name), other.variables.get(name));
                variables.insert(name.clone(), joined_variables(one, two));
            }
        }
        let mut functions = self.functions;
        for (name, body) in other.functions {
            let either = match functions.get(&name) {
                Some(mine) if !Arc::ptr_eq(mine, &body) && *mine != body => {
                    let either = Command::Either(Arc::clone(mine), body);
                    Arc::new(vec![(
                        Link::Then,
                        Pipe { commands: vec![either], negated: false, background: false },
                    )])
                }
                Some(mine) => Arc::clone(mine),
                None => body,
            };
            functions.insert(name, either);
        }
        let mut frames = self.frames;
        for (frame, other) in frames.iter_mut().zip(other.frames) {
            for (name, value) in other {
                frame.entry(name).or_insert(value);
            }
        }
        let aliases = either(self.aliases, &other.aliases);
        let replaced = either(self.replaced, &other.replaced);
        let mut replaced_in = self.replaced_in;
        for (name, theirs) in other.replaced_in {
            let mine = replaced_in.remove(&name).unwrap_or_default();
            replaced_in.insert(name, either(mine, &theirs));
        }
        let mut written = self.written;
        for (key, theirs) in &other.written {
            let same = written.get(key).is_some_and(|mine| mine.text == theirs.text);
            if !same {
                written.insert(key.clone(), Arc::new(Written { text: None, line: theirs.line }));
            }
        }
        for (key, mine) in &mut written {
            if !other.written.contains_key(key) {
                *mine = Arc::new(Written { text: None, line: mine.line });
            }
        }
        let output = match (self.output, other.output) {
            (Some(one), Some(two)) => Some(one.filter(|text| two.as_ref() == Some(text))),
            (one, _) => one,
        };
        Self {
            variables,
            functions,
            aliases,
            replaced,
            replaced_in,
            positional: if self.positional == other.positional {
                self.positional
            } else {
                Some(Arc::new(vec![unknown()]))
            },
            frames,
            folder: if self.folder == other.folder { self.folder } else { unknown() },
            left_folder: if self.left_folder == other.left_folder { self.left_folder } else { unknown() },
            folders: if self.folders == other.folders { self.folders } else { Vec::new() },
            options: Options {
                export_all: self.options.export_all || other.options.export_all,
                // Written so where it is meant.
                extended: self.options.extended || other.options.extended,
                aliases: self.options.aliases || other.options.aliases,
                ..self.options
            },
            written,
            output,
            input: self.input.filter(|text| other.input.as_ref() == Some(text)),
            status: self.status.filter(|status| other.status == Some(*status)),
            option_at: if self.option_at == other.option_at { self.option_at } else { (0, 0) },
            anything: self.anything || other.anything,
        }
    }
}

/// Aliases that may stand.
fn either(mine: Aliases, theirs: &Aliases) -> Aliases {
    if Arc::ptr_eq(&mine, theirs) || theirs.is_empty() {
        return mine;
    }
    Arc::new(mine.iter().chain(theirs.iter()).map(|(name, line)| (name.clone(), *line)).collect())
}

fn joined_variables(one: Option<&Arc<Variable>>, two: Option<&Arc<Variable>>) -> Arc<Variable> {
    let (Some(one), Some(two)) = (one, two) else {
        let set = one.or(two).map(|v| Variable::clone(v)).unwrap_or_default();
        let value = match set.value {
            Value::Unset => Value::Unset,
            Value::Text(text) => Value::Text(joined_texts("", &text)),
            Value::Array(members) => joined_arrays(&BTreeMap::new(), &members),
            Value::Table(_) => Value::Text(unknown()),
            Value::Reference(_) => Value::Reference(unknown()),
        };
        return Arc::new(Variable { value, ..set });
    };
    if Arc::ptr_eq(one, two) || one == two {
        return Arc::clone(one);
    }
    let value = match (&one.value, &two.value) {
        (a, b) if a == b => a.clone(),
        (Value::Text(a), Value::Text(b)) => Value::Text(joined_texts(a, b)),
        (Value::Array(a), Value::Array(b)) => joined_arrays(a, b),
        (Value::Reference(_), _) | (_, Value::Reference(_)) => Value::Reference(unknown()),
        _ => Value::Text(unknown()),
    };
    Arc::new(Variable {
        value,
        exported: one.exported || two.exported,
        number: one.number && two.number,
        read_only: one.read_only && two.read_only,
    })
}

/// The words that two texts begin and end with, and something unknown between them.
fn joined_texts(one: &str, two: &str) -> String {
    let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    joined_words(&words(one), &words(two), String::as_str, |text| text).join(" ")
}

fn joined_arrays(one: &BTreeMap<i64, Word>, two: &BTreeMap<i64, Word>) -> Value {
    let dense = |array: &BTreeMap<i64, Word>| array.keys().copied().eq(0..array.len() as i64);
    if !dense(one) || !dense(two) {
        return Value::Text(unknown());
    }
    let words = |array: &BTreeMap<i64, Word>| array.values().cloned().collect::<Vec<_>>();
    let (one, two) = (words(one), words(two));
    let line = one.iter().chain(&two).map(|w| w.line).max().unwrap_or(0);
    array_of(joined_words(&one, &two, |word| &word.text, |text| Word { text, line }))
}

fn joined_words<T: Clone>(one: &[T], two: &[T], text: fn(&T) -> &str, word: impl Fn(String) -> T) -> Vec<T> {
    let same = |(a, b): &(&T, &T)| text(a) == text(b);
    let start = one.iter().zip(two).take_while(same).count();
    let (whole, one, two) = (one, &one[start..], &two[start..]);
    let end = one.iter().rev().zip(two.iter().rev()).take_while(same).count();
    let (head, tail) = (&whole[..start], &one[one.len() - end..]);
    let ways = [&one[..one.len() - end], &two[..two.len() - end]];
    let differs = ways.iter().any(|way| !way.is_empty());
    let flags_follow = tail.first().is_none_or(|next| text(next).starts_with("--"));
    let harmless = flags_follow && ways.iter().all(|way| harmless(way.iter().map(text)));
    let between = if harmless { format!("{UNKNOWN}{HARMLESS}") } else { unknown() };
    head.iter().cloned().chain(differs.then(|| word(between))).chain(tail.iter().cloned()).collect()
}

/// Whether words are whole flags of which none says degrees of parallelism, the shape of the model or the batch.
fn harmless<'w>(words: impl Iterator<Item = &'w str>) -> bool {
    let mut within = false;
    for word in words.filter(|word| !is_harmless(word)) {
        let name = word.split('=').next().unwrap_or_default();
        if loose(word) || is_shaping(name) {
            return false;
        }
        within |= name.starts_with("--");
        if !within {
            return false;
        }
    }
    true
}

/// Whether a word is a flag that says them.
fn is_shaping(name: &str) -> bool {
    name.starts_with("--") && SHAPING.split_whitespace().any(|part| name.contains(part))
}

/// Whether a word is a flag that says degrees, batches or sizes but that of the vocabulary, which tokenizers say as well.
pub(super) fn is_degree(name: &str) -> bool {
    const OTHERS: &[&str] = &["vocab", "token", "workers", "log", "save", "load"];
    is_shaping(name) && !OTHERS.iter().any(|part| name.contains(part))
}

/// Parts of the names of flags that say degrees, shapes, batches or which framework trains.
const SHAPING: &str = "parallel size num- num_ layer expert head seq length batch pattern group vocab token deepspeed \
    zero fsdp rank lora glu untie latent bias norm moe mtp mamba position rotary rope spec";

/// Members in their order.
pub(super) fn array_of(words: Vec<Word>) -> Value {
    Value::Array((0..).zip(words).collect())
}

/// What the surroundings of every script set; of a Slurm job some more.
pub(super) fn is_surrounding(name: &str, slurm: bool) -> bool {
    const ALWAYS: &[&str] = &[
        "HOME",
        "PATH",
        "USER",
        "LOGNAME",
        "PWD",
        "OLDPWD",
        "HOSTNAME",
        "SHELL",
        "TERM",
        "RANDOM",
        "SECONDS",
        "UID",
        "EUID",
        "PPID",
        "BASHPID",
        "BASH",
        "BASH_VERSION",
        "BASH_VERSINFO",
        "BASH_SUBSHELL",
        "BASHOPTS",
        "SHELLOPTS",
        "SRANDOM",
        "EPOCHREALTIME",
        "GROUPS",
        "DIRSTACK",
        "BASH_SOURCE",
        "BASH_LINENO",
        "BASH_REMATCH",
        "LINENO",
        "FUNCNAME",
        "HOSTTYPE",
        "OSTYPE",
        "MACHTYPE",
        "EPOCHSECONDS",
        "SHLVL",
        "OPTIND",
        "REPLY",
        "PIPESTATUS",
    ];
    const OF_SLURM: &[&str] = &[
        "JOB_ID",
        "JOBID",
        "JOB_NAME",
        "NNODES",
        "JOB_NUM_NODES",
        "NODELIST",
        "JOB_NODELIST",
        "PROCID",
        "LOCALID",
        "NODEID",
        "SUBMIT_DIR",
        "NTASKS",
        "NPROCS",
        "CPUS_ON_NODE",
        "TASKS_PER_NODE",
    ];
    let of_slurm = name.strip_prefix("SLURM_").filter(|_| slurm);
    ALWAYS.contains(&name) || of_slurm.is_some_and(|rest| OF_SLURM.contains(&rest))
}

impl Shell<'_> {
    /// Whether a variable is set by what the script runs in.
    fn is_surrounding(&self, name: &str) -> bool {
        let of_queue = self.queue_sets.is_some_and(|start| name.starts_with(start));
        of_queue || is_surrounding(name, self.job.is_some())
    }

    /// Remembers what is used and set by nothing.
    pub(super) fn is_unset(&mut self, name: &str) {
        if self.unset.len() < MOST_UNSET {
            self.unset.insert(name.to_owned());
        }
    }

    /// What is held by the variable that is meant by a name.
    pub(super) fn variable(&self, name: &str) -> Option<Arc<Variable>> {
        match self.state.meant(name) {
            Some(name) => self.state.variables.get(&name).map(Arc::clone),
            None => Some(Arc::new(Variable { value: Value::Text(unknown()), ..Variable::default() })),
        }
    }

    /// The text of a variable or of one member; none where it is not set.
    pub(super) fn content(&mut self, name: &str, index: Option<&str>) -> Option<String> {
        let Some(variable) = self.variable(name) else {
            let name = self.state.meant(name).unwrap_or_default();
            return match name.as_str() {
                "PWD" => Some(self.working_folder()),
                name if self.state.anything || self.is_surrounding(name) => Some(unknown()),
                name => {
                    self.is_unset(name);
                    None
                }
            };
        };
        match &variable.value {
            Value::Unset => None,
            Value::Reference(_) => Some(unknown()),
            Value::Text(text) if index.is_none() || loose(text) => Some(text.clone()),
            Value::Text(text) => match self.sum(index.unwrap_or_default()) {
                Some(0 | -1) => Some(text.clone()),
                Some(_) => None,
                None => Some(unknown()),
            },
            Value::Table(table) => {
                let key = self.text_of(index.unwrap_or("0"), false);
                let some_unknown = !known(&key) || table.keys().any(|key| !known(key));
                if some_unknown { Some(unknown()) } else { table.get(&key).map(|w| w.text.clone()) }
            }
            Value::Array(array) => {
                let Some(index) = index.map_or(Some(0), |index| self.sum(index)) else {
                    return Some(unknown());
                };
                let end = array.keys().next_back().map_or(0, |last| last + 1);
                let at = if index < 0 { end.checked_add(index)? } else { index };
                // What stands before it may be several words or none.
                let reached = array.values().any(|w| loose(&w.text))
                    && (index < 0 || array.iter().any(|(i, w)| *i <= at && loose(&w.text)));
                if reached { Some(unknown()) } else { array.get(&at).map(|w| w.text.clone()) }
            }
        }
    }

    /// Assigns a text to a variable or to a member of it.
    pub(super) fn put(&mut self, name: &str, index: Option<&str>, append: bool, text: String) {
        let old = self.variable(name).unwrap_or_default();
        if old.read_only {
            return;
        }
        let key = match (&old.value, index) {
            (Value::Table(_), index) => Some(self.text_of(index.unwrap_or("0"), false)),
            _ => None,
        };
        let at = match (&old.value, index) {
            (Value::Table(_), _) => None,
            (Value::Array(_), None) => Some(0),
            (_, Some(index)) => self.sum(index),
            (_, None) => None,
        };
        let before = if append { self.content(name, index).unwrap_or_default() } else { String::new() };
        let text = if old.number {
            let text = if append { format!("({before})+({text})") } else { text };
            self.sum(&text).map_or_else(unknown, |n| n.to_string())
        } else {
            before + &text
        };
        let text = if text.len() > LONGEST { unknown() } else { text };
        let word = Word { text, line: 0 };
        let value = match (old.value.clone(), key, at) {
            (Value::Table(mut table), Some(key), _) => {
                table.insert(key, word);
                Value::Table(table)
            }
            (Value::Array(mut array), _, Some(at)) => {
                let end = array.keys().next_back().map_or(0, |last| last + 1);
                let at = if at < 0 { end.saturating_add(at) } else { at };
                if array.iter().any(|(i, w)| *i <= at && loose(&w.text)) || at < 0 {
                    Value::Text(unknown())
                } else {
                    array.insert(at, word);
                    Value::Array(array)
                }
            }
            (Value::Text(text), _, Some(at)) if at >= 0 && !loose(&text) => {
                let first = Word { text, line: 0 };
                let mut array = BTreeMap::from([(0, first)]);
                array.insert(at, word);
                Value::Array(array)
            }
            (Value::Unset, _, Some(at)) if at >= 0 => Value::Array(BTreeMap::from([(at, word)])),
            (_, _, None) if index.is_none() => Value::Text(word.text),
            _ => Value::Text(unknown()),
        };
        self.store(name, value);
    }

    /// Assigns a whole value; attributes of the name stay.
    pub(super) fn store(&mut self, name: &str, value: Value) {
        let Some(name) = self.state.meant(name) else { return self.state.forget_variables() };
        let old = self.state.variables.get(&name).map(|v| Variable::clone(v)).unwrap_or_default();
        if old.read_only {
            return;
        }
        let exported = old.exported || self.state.options.export_all;
        self.state.variables.insert(name, Arc::new(Variable { value, exported, ..old }));
    }

    /// Changes the attributes of a name.
    pub(super) fn mark(&mut self, name: &str, change: impl FnOnce(&mut Variable)) {
        let Some(name) = self.state.meant(name) else { return };
        let mut variable = self.state.variables.get(&name).map(|v| Variable::clone(v)).unwrap_or_default();
        change(&mut variable);
        self.state.variables.insert(name, Arc::new(variable));
    }

    /// Forgets what a name holds.
    pub(super) fn forget_name(&mut self, name: &str) {
        self.store(name, Value::Text(unknown()));
    }

    /// Hides a variable until the function ends.
    pub(super) fn hide(&mut self, name: &str) {
        let before = self.state.variables.get(name).cloned();
        let Some(frame) = self.state.frames.last_mut() else { return };
        if !frame.contains_key(name) {
            frame.insert(name.to_owned(), before.clone());
            let exported = before.is_some_and(|variable| variable.exported);
            self.state
                .variables
                .insert(name.to_owned(), Arc::new(Variable { exported, ..Variable::default() }));
        }
    }

    /// Whether a name stands for another one and is of the function that runs.
    pub(super) fn refers_here(&self, name: &str) -> bool {
        let refers = matches!(self.state.variables.get(name).map(|v| &v.value), Some(Value::Reference(_)));
        refers && self.state.frames.last().is_some_and(|frame| frame.contains_key(name))
    }

    /// Exported variables with their texts.
    pub(super) fn environment(&self) -> BTreeMap<String, String> {
        let exported = self.state.variables.iter().filter(|(_, variable)| variable.exported);
        exported
            .filter_map(|(name, variable)| match &variable.value {
                Value::Text(text) => Some((name.clone(), text.clone())),
                _ => None,
            })
            .collect()
    }

    /// Variables that have a text, exported or not.
    pub(super) fn texts_of_variables(&self) -> BTreeMap<String, String> {
        let texts = self.state.variables.iter().filter_map(|(name, variable)| match &variable.value {
            Value::Text(text) => Some((name.clone(), text.clone())),
            _ => None,
        });
        texts.collect()
    }
}
