//! What a script is made of: lists of pipes, commands, and words before expansion.

use std::sync::{Arc, OnceLock};

/// A piece of a word.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    /// Literal text.
    Text { text: String, quoted: bool },
    /// `$NAME`, `${…}` or `$((…))` (which begins with `((`).
    Variable { expression: String, quoted: bool },
    /// `$(…)` or backquotes; none where the commands inside are not understood.
    Command { list: Option<Arc<List>>, quoted: bool },
    /// `<(…)`, `>(…)`.
    Process(Option<Arc<List>>),
}

/// A word before expansion.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Raw {
    pub parts: Vec<Part>,
    pub line: usize,
    /// Some part of it stands in quotes.
    pub quoted: bool,
    /// The members of an array that is assigned: the word ends in `=`.
    pub members: Option<Vec<Raw>>,
}

impl Raw {
    /// A word that stands as it is.
    pub fn literal(text: &str, line: usize) -> Self {
        let parts = vec![Part::Text { text: text.to_owned(), quoted: false }];
        Self { parts, line, quoted: false, members: None }
    }

    /// A text in which nothing is expanded any more.
    pub fn quoted(text: &str, line: usize) -> Self {
        let parts = vec![Part::Text { text: text.to_owned(), quoted: true }];
        Self { parts, ..Self::literal("", line) }
    }

    /// Output of commands of which nothing is known.
    pub fn not_understood(line: usize) -> Self {
        let parts = vec![Part::Command { list: None, quoted: false }];
        Self { parts, ..Self::literal("", line) }
    }

    /// The text of a word without expansions.
    pub fn plain(&self) -> Option<String> {
        self.parts
            .iter()
            .map(|p| if let Part::Text { text, .. } = p { Some(text.as_str()) } else { None })
            .collect()
    }

    /// The text of a word of which nothing is quoted.
    pub fn bare(&self) -> Option<String> {
        self.plain().filter(|_| !self.quoted)
    }
}

/// Where a command reads from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// `< FILE`
    File(Raw),
    /// A here-document or here-string; its text follows its command.
    Text(Arc<OnceLock<Raw>>),
    /// `<&3` and the like.
    Elsewhere,
}

/// Where a command writes to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// `> FILE`, `>> FILE`: whether the text goes behind what is there.
    File { path: Raw, append: bool },
    /// `2> FILE`: what it will hold is not followed.
    Errors(Raw),
    /// `>&2` and the like.
    Elsewhere,
}

/// The files of a command, in the order in which they stand.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Streams {
    pub input: Option<Input>,
    pub outputs: Vec<Output>,
}

impl Streams {
    /// The line of the here-document that stands for standard input.
    pub fn document(&self) -> Option<usize> {
        match &self.input {
            Some(Input::Text(cell)) => cell.get().map(|body| body.line),
            _ => None,
        }
    }
}

/// What links a pipe to the one before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Link {
    /// `;` or `&`.
    Then,
    /// A new line, which a shell reads when all before it has run.
    Line,
    /// `&&`
    And,
    /// `||`
    Or,
}

/// Commands joined by `|`, often one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pipe {
    pub commands: Vec<Command>,
    /// `!` before it.
    pub negated: bool,
    /// `&` behind it.
    pub background: bool,
}

impl Link {
    /// Whether a pipe runs whatever becomes of the one before.
    pub fn is_end(self) -> bool {
        matches!(self, Self::Then | Self::Line)
    }
}

pub type List = Vec<(Link, Pipe)>;

/// How an arm of `case` ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArmEnd {
    /// `;;`
    Done,
    /// `;&`: the next arm's commands follow.
    Through,
    /// `;;&`: the patterns behind it are tried.
    Further,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Arm {
    pub patterns: Vec<Raw>,
    pub body: List,
    pub end: ArmEnd,
}

/// What a loop turns over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Loop {
    While {
        test: List,
        until: bool,
    },
    /// No words: the arguments.
    For {
        name: String,
        words: Option<Vec<Raw>>,
    },
    /// `for ((start; test; step))`
    Count {
        start: String,
        test: String,
        step: String,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    Simple {
        words: Vec<Raw>,
        streams: Streams,
    },
    /// `[[ … ]]`
    Test(Vec<Raw>),
    /// `(( … ))`
    Arithmetic(String),
    If {
        arms: Vec<(List, List)>,
        otherwise: List,
    },
    Loop {
        kind: Loop,
        body: List,
        line: usize,
    },
    Case {
        word: Raw,
        arms: Vec<Arm>,
    },
    Group(List),
    Subshell(List),
    Function {
        name: String,
        body: Arc<List>,
    },
    Redirected(Box<Command>, Streams),
    /// One or the other: a function that was defined in two ways.
    Either(Arc<List>, Arc<List>),
}
