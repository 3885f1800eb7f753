//! Loops, turned as often as their text decides.

use super::Word;
use super::parse::{List, Loop, Part, Raw};
use super::run::{Run, Shell};
use super::state::{Branch, Flow, State, Status, Value, loose};
use super::undecided::Effects;

/// Most turns of a loop that are followed, and those of one that may have been left before.
const MOST_TURNS: usize = 10_000;
const DOUBTFUL_TURNS: usize = 100;

impl Shell<'_> {
    pub(super) fn turns(&mut self, kind: &Loop, body: &List, line: usize) -> Run<Status> {
        let outer = std::mem::take(&mut self.pending);
        self.loops += 1;
        let decided = match kind {
            Loop::While { test, until } => self.while_loop(test, *until, body)?,
            Loop::For { name, words } => self.for_loop(name, words.as_deref(), body)?,
            Loop::Count { start, test, step } => {
                self.sum(start);
                self.count_loop(test, step, body)?
            }
        };
        if !decided {
            self.undecided_loop(kind, body, line)?;
        }
        self.loops -= 1;
        self.end_of_loop();
        self.pending.splice(0..0, outer);
        Ok(self.state.status)
    }

    /// Turns a `while` loop; whether its text decides them all.
    fn while_loop(&mut self, test: &List, until: bool, body: &List) -> Run<bool> {
        let mut status = Some(0);
        for turn in 0..MOST_TURNS {
            if turn >= DOUBTFUL_TURNS && !self.pending.is_empty() {
                return Ok(false);
            }
            let status_of_test = self.list(test)?.filter(|_| !self.hoped);
            let Some(holds) = status_of_test.map(|status| status == 0) else { return Ok(false) };
            if self.flow != Flow::Next {
                return Ok(true);
            }
            if holds == until {
                self.state.status = status;
                return Ok(true);
            }
            status = self.list(body)?;
            if !self.turned() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn for_loop(&mut self, name: &str, words: Option<&[Raw]>, body: &List) -> Run<bool> {
        let items: Vec<Word> = match words {
            // Names of files are not looked up.
            Some(words) if words.iter().any(is_glob) => return Ok(false),
            Some(words) => self.all_fields(words),
            None => {
                let given = self.state.positional.clone();
                given
                    .iter()
                    .flat_map(|all| all.iter())
                    .map(|text| Word { text: text.clone(), line: 0 })
                    .collect()
            }
        };
        if items.len() > MOST_TURNS || items.iter().any(|word| loose(&word.text)) {
            return Ok(false);
        }
        for item in items {
            // A name for others means each in turn.
            if matches!(self.state.variables.get(name).map(|v| &v.value), Some(Value::Reference(_))) {
                self.state.refer(name, &item.text);
            } else {
                self.put(name, None, false, item.text);
            }
            self.list(body)?;
            if !self.turned() {
                break;
            }
        }
        Ok(true)
    }

    fn count_loop(&mut self, test: &str, step: &str, body: &List) -> Run<bool> {
        for _ in 0..MOST_TURNS {
            let holds = if test.trim().is_empty() { Some(1) } else { self.sum(test) };
            match holds {
                None => return Ok(false),
                Some(0) => return Ok(true),
                Some(_) => self.list(body)?,
            };
            if !self.turned() {
                return Ok(true);
            }
            self.sum(step);
        }
        Ok(false)
    }

    /// After a turn: whether another may follow.
    fn turned(&mut self) -> bool {
        if self.flow == Flow::Continue(1) {
            self.flow = Flow::Next;
        }
        let (next, rest): (Vec<Branch>, Vec<Branch>) = std::mem::take(&mut self.pending)
            .into_iter()
            .partition(|branch| branch.flow == Flow::Continue(1));
        self.pending = rest;
        if self.flow == Flow::Next || self.flow == Flow::Break(1) {
            for branch in next {
                self.state = std::mem::take(&mut self.state).joined(branch.state);
            }
        } else if let Some(state) = next.into_iter().map(|branch| branch.state).reduce(State::joined) {
            let own = Branch {
                flow: std::mem::take(&mut self.flow),
                state: std::mem::replace(&mut self.state, state),
            };
            if own.flow != Flow::Exit {
                self.pending.push(own);
            }
        }
        self.flow == Flow::Next
    }

    /// A loop of which it is not known how often it turns: what it could assign is unknown.
    fn undecided_loop(&mut self, kind: &Loop, body: &List, line: usize) -> Run<()> {
        let mut effects = Effects::default();
        effects.of_loop(kind, body, &self.state.functions);
        self.forget(&effects);
        let branch = self.branch(|shell| shell.list(body))?;
        if let Some((_, names)) = self.may_be_set(body) {
            self.note(format!(
                "line {line}: how often this loop sets {names} is known only when the script runs"
            ));
        }
        let written = branch.state.written;
        for key in written
            .keys()
            .filter(|key| written.get(*key) != self.state.written.get(*key))
            .cloned()
            .collect::<Vec<_>>()
        {
            self.forget_file(&key, line);
        }
        self.forget(&effects);
        self.state.status = None;
        Ok(())
    }

    /// States that left a loop meet behind it; those that leave several go on.
    fn end_of_loop(&mut self) {
        let outward = |flow: Flow| match flow {
            Flow::Break(1) => Flow::Next,
            Flow::Break(n) => Flow::Break(n - 1),
            Flow::Continue(n) if n > 1 => Flow::Continue(n - 1),
            flow => flow,
        };
        self.flow = outward(self.flow);
        let others = std::mem::take(&mut self.pending).into_iter();
        let others: Vec<Branch> =
            others.map(|branch| Branch { flow: outward(branch.flow), ..branch }).collect();
        self.join(others);
    }
}

/// Whether a word stands for names of files.
fn is_glob(raw: &Raw) -> bool {
    raw.parts
        .iter()
        .any(|part| matches!(part, Part::Text { text, quoted: false } if text.contains(['*', '?', '['])))
}
