//! Patterns of the shell: `*`, `?`, classes in brackets, and with `extglob` groups such as `@(a|b)`; a backslash makes the
//! next character literal.

/// Most comparisons of one search; what takes more is not followed.
const MOST_STEPS: usize = 1 << 22;

/// Most groups inside one another.
const DEEPEST: usize = 32;

/// Comparisons that a search may still make.
pub(super) struct Steps {
    left: usize,
}

impl Steps {
    pub(super) fn new() -> Self {
        Self { left: MOST_STEPS }
    }

    /// How many were made.
    pub(super) fn made(&self) -> usize {
        MOST_STEPS - self.left
    }

    /// None where that is more than are left.
    pub(super) fn take(&mut self, steps: usize) -> Option<()> {
        let left = self.left.checked_sub(steps);
        self.left = left.unwrap_or(0);
        left.map(drop)
    }
}

/// Whether a pattern matches a text, in which `@(a|b)` and the like are patterns where it is `extended`; none where it
/// holds what is not followed.
pub(super) fn matches(
    pattern: &str,
    text: &str,
    (extended, ignore_case): (bool, bool),
    steps: &mut Steps,
) -> Option<bool> {
    let pieces = pieces(pattern, extended, steps)?;
    matched(&pieces, &text.chars().collect::<Vec<_>>(), ignore_case, steps)
}

/// A pattern taken apart.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Piece {
    One(char),
    Any,
    Many,
    Class {
        negated: bool,
        ranges: Vec<(char, char)>,
    },
    /// `@(a|b)`, or another of `?*+!` before it.
    Group {
        mark: char,
        ways: Vec<Vec<Piece>>,
    },
}

impl Piece {
    /// Whether it stands for a character.
    fn fits(&self, c: char, ignore_case: bool) -> bool {
        let same = |c: char| match self {
            Self::One(one) => *one == c,
            Self::Any => true,
            Self::Many | Self::Group { .. } => false,
            Self::Class { negated, ranges } => {
                ranges.iter().any(|(low, high)| (*low..=*high).contains(&c)) != *negated
            }
        };
        same(c) || ignore_case && (same(c.to_ascii_lowercase()) || same(c.to_ascii_uppercase()))
    }

    /// Comparisons that it takes with a character.
    fn steps(&self) -> usize {
        if let Self::Class { ranges, .. } = self { ranges.len() + 1 } else { 1 }
    }
}

/// The text that a pattern without wildcards stands for.
fn literal(pieces: &[Piece]) -> Option<String> {
    pieces.iter().map(|piece| if let Piece::One(c) = piece { Some(*c) } else { None }).collect()
}

/// A text as a pattern that matches nothing else.
pub(super) fn escaped(text: &str) -> String {
    with_backslashes(text, "*?[]\\()|!+@")
}

/// A text as a regular expression that matches nothing else.
pub(super) fn escaped_regular(text: &str) -> String {
    with_backslashes(text, "*?[]\\()+.^$|{}")
}

fn with_backslashes(text: &str, before: &str) -> String {
    let mut pattern = String::new();
    for c in text.chars() {
        if before.contains(c) {
            pattern.push('\\');
        }
        pattern.push(c);
    }
    pattern
}

fn pieces(pattern: &str, extended: bool, steps: &mut Steps) -> Option<Vec<Piece>> {
    let chars: Vec<char> = pattern.chars().collect();
    Reader { chars: &chars, at: 0, extended, depth: 0 }.pieces(steps)
}

/// Takes a pattern apart.
struct Reader<'p> {
    chars: &'p [char],
    at: usize,
    extended: bool,
    /// Groups that are open.
    depth: usize,
}

impl Reader<'_> {
    /// Up to the end, inside of a group to that of one of its ways.
    fn pieces(&mut self, steps: &mut Steps) -> Option<Vec<Piece>> {
        let mut pieces = Vec::new();
        while let Some(&c) = self.chars.get(self.at) {
            if self.depth > 0 && matches!(c, '|' | ')') {
                break;
            }
            self.at += 1;
            if self.extended && "?*+@!".contains(c) && self.chars.get(self.at) == Some(&'(') {
                self.at += 1;
                pieces.push(self.group(c, steps)?);
                continue;
            }
            match c {
                // It may end the group, or be closed inside of it.
                '(' if self.depth > 0 => return None,
                '*' if pieces.last() == Some(&Piece::Many) => {}
                '*' => pieces.push(Piece::Many),
                '?' => pieces.push(Piece::Any),
                '\\' => {
                    pieces.push(Piece::One(self.chars.get(self.at).copied().unwrap_or('\\')));
                    self.at += 1;
                }
                '[' => match class(&self.chars[self.at..]) {
                    Some((length, piece)) => {
                        steps.take(length)?;
                        pieces.push(piece?);
                        self.at += length;
                    }
                    None => {
                        steps.take(self.chars.len() - self.at)?;
                        pieces.push(Piece::One('['));
                    }
                },
                c => pieces.push(Piece::One(c)),
            }
        }
        Some(pieces)
    }

    /// The ways of a group, whose parenthesis was just opened.
    fn group(&mut self, mark: char, steps: &mut Steps) -> Option<Piece> {
        self.depth += 1;
        if self.depth > DEEPEST {
            return None;
        }
        let mut ways = Vec::new();
        loop {
            ways.push(self.pieces(steps)?);
            let end = *self.chars.get(self.at)?;
            self.at += 1;
            if end == ')' {
                self.depth -= 1;
                return Some(Piece::Group { mark, ways });
            }
        }
    }
}

/// A class in brackets after the opening one: its length and what it is, where that is followed; none if it never
/// closes.
fn class(chars: &[char]) -> Option<(usize, Option<Piece>)> {
    let negated = chars.first().is_some_and(|c| "!^".contains(*c));
    let start = usize::from(negated);
    let mut ranges = Vec::new();
    let mut known = true;
    let mut at = start;
    loop {
        let c = *chars.get(at)?;
        if c == ']' && at > start {
            let piece = Piece::Class { negated, ranges };
            return Some((at + 1, known.then_some(piece)));
        }
        if c == '[' && chars.get(at + 1).is_some_and(|c| ":.=".contains(*c)) {
            let length = chars[at + 2..].iter().position(|c| *c == ']')?;
            let name: String = chars[at + 2..at + 2 + length].iter().collect();
            match name.as_str() {
                "digit:" => ranges.push(('0', '9')),
                "alpha:" => ranges.extend([('a', 'z'), ('A', 'Z')]),
                "alnum:" => ranges.extend([('0', '9'), ('a', 'z'), ('A', 'Z')]),
                "upper:" => ranges.push(('A', 'Z')),
                "lower:" => ranges.push(('a', 'z')),
                "space:" => ranges.extend([(' ', ' '), ('\t', '\r')]),
                _ => known = false,
            }
            at += length + 3;
            continue;
        }
        let (low, next) = if c == '\\' { (*chars.get(at + 1)?, at + 2) } else { (c, at + 1) };
        let range = chars.get(next) == Some(&'-') && chars.get(next + 1).is_some_and(|c| *c != ']');
        let high = if range { chars[next + 1] } else { low };
        ranges.push((low, high));
        at = if range { next + 2 } else { next };
    }
}

fn matched(pieces: &[Piece], text: &[char], ignore_case: bool, steps: &mut Steps) -> Option<bool> {
    if has_groups(pieces) {
        let start = (0..=text.len()).map(|at| at == 0).collect();
        return reached(pieces, text, start, ignore_case, steps).map(|ends| ends.last() == Some(&true));
    }
    // Greedy with one place to come back to.
    let (mut p, mut t, mut star) = (0, 0, None);
    while t < text.len() {
        steps.take(pieces.get(p).map_or(1, Piece::steps))?;
        match pieces.get(p) {
            Some(Piece::Many) => {
                star = Some((p, t));
                p += 1;
            }
            Some(piece) if piece.fits(text[t], ignore_case) => {
                p += 1;
                t += 1;
            }
            _ => match star {
                Some((at, from)) => {
                    star = Some((at, from + 1));
                    p = at + 1;
                    t = from + 1;
                }
                None => return Some(false),
            },
        }
    }
    Some(pieces[p..].iter().all(|piece| *piece == Piece::Many))
}

fn has_groups(pieces: &[Piece]) -> bool {
    pieces.iter().any(|piece| matches!(piece, Piece::Group { .. }))
}

/// Where in a text, before one of its characters or at its end, pieces may end that begin at one of these places.
fn reached(
    pieces: &[Piece],
    text: &[char],
    from: Vec<bool>,
    ignore_case: bool,
    steps: &mut Steps,
) -> Option<Vec<bool>> {
    let mut places = from;
    for piece in pieces {
        steps.take(places.len().saturating_mul(piece.steps()))?;
        places = match piece {
            Piece::Many => {
                let first = places.iter().position(|here| *here).unwrap_or(places.len());
                (0..places.len()).map(|at| at >= first).collect()
            }
            Piece::Group { mark, ways } => behind_group(*mark, ways, text, places, ignore_case, steps)?,
            _ => {
                let behind = text.iter().zip(&places).map(|(c, here)| *here && piece.fits(*c, ignore_case));
                std::iter::once(false).chain(behind).collect()
            }
        };
    }
    Some(places)
}

/// The same of a group: one of its ways, once or as often as its mark says, or behind `!` anything else.
fn behind_group(
    mark: char,
    ways: &[Vec<Piece>],
    text: &[char],
    from: Vec<bool>,
    ignore_case: bool,
    steps: &mut Steps,
) -> Option<Vec<bool>> {
    let either = |one: &[bool], other: &[bool]| one.iter().zip(other).map(|(a, b)| *a || *b).collect();
    let mut once = |from: &[bool]| {
        let mut ends = vec![false; from.len()];
        for way in ways {
            // A way may be empty.
            steps.take(from.len())?;
            ends = either(&ends, &reached(way, text, from.to_vec(), ignore_case, steps)?);
        }
        Some::<Vec<bool>>(ends)
    };
    match mark {
        '@' => once(&from),
        '?' => Some(either(&from, &once(&from)?)),
        '!' => {
            let mut ends = vec![false; from.len()];
            for start in (0..from.len()).filter(|at| from[*at]) {
                let alone: Vec<bool> = (0..from.len()).map(|at| at == start).collect();
                let excluded = once(&alone)?;
                (start..from.len()).for_each(|end| ends[end] |= !excluded[end]);
            }
            Some(ends)
        }
        _ => {
            let mut ends = if mark == '*' { from.clone() } else { vec![false; from.len()] };
            let mut fresh = from;
            while fresh.contains(&true) {
                let next = once(&fresh)?;
                fresh = next.iter().zip(&ends).map(|(new, old)| *new && !*old).collect();
                ends = either(&ends, &fresh);
            }
            Some(ends)
        }
    }
}

/// The longest or shortest end (or start) of a text that a pattern matches, as what is left without it; none where it is not followed
/// or too long to try.
pub(super) fn without(
    text: &str,
    (pattern, extended): (&str, bool),
    at_end: bool,
    longest: bool,
    steps: &mut Steps,
) -> Option<String> {
    let pieces = pieces(pattern, extended, steps)?;
    if let Some(part) = literal(&pieces) {
        let rest = if at_end { text.strip_suffix(&part) } else { text.strip_prefix(&part) };
        return Some(rest.unwrap_or(text).to_owned());
    }
    let chars: Vec<char> = text.chars().collect();
    let mut cuts: Vec<usize> = (0..=chars.len()).collect();
    if at_end != longest {
        cuts.reverse();
    }
    let mut found = None;
    for cut in cuts {
        if matched(&pieces, if at_end { &chars[cut..] } else { &chars[..cut] }, false, steps)? {
            found = Some(cut);
            break;
        }
    }
    Some(match found {
        Some(cut) if at_end => chars[..cut].iter().collect(),
        Some(cut) => chars[cut..].iter().collect(),
        None => text.to_owned(),
    })
}

/// Where a pattern is sought in a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    First,
    All,
    Start,
    End,
}

/// A text with what a pattern matches replaced; none where it is not followed, or too long.
pub(super) fn replaced(
    text: &str,
    (pattern, extended): (&str, bool),
    to: &str,
    place: Place,
    most: usize,
    steps: &mut Steps,
) -> Option<String> {
    if pattern.is_empty() && matches!(place, Place::First | Place::All) {
        return Some(text.to_owned());
    }
    let pieces = pieces(pattern, extended, steps)?;
    // Where a group stands for nothing, what is put in its place is not followed.
    if has_groups(&pieces) && matched(&pieces, &[], false, steps)? {
        return None;
    }
    if let Some(from) = literal(&pieces) {
        let times = if place == Place::All { text.matches(from.as_str()).count() } else { 1 };
        if times.saturating_mul(to.len()) > most {
            return None;
        }
        return Some(match place {
            Place::First => text.replacen(&from, to, 1),
            Place::All => text.replace(&from, to),
            Place::Start => text.strip_prefix(&from).map_or(text.to_owned(), |rest| format!("{to}{rest}")),
            Place::End => text.strip_suffix(&from).map_or(text.to_owned(), |rest| format!("{rest}{to}")),
        });
    }
    let chars: Vec<char> = text.chars().collect();
    if chars.len().saturating_mul(to.len()) > most {
        return None;
    }
    let mut result = String::new();
    let mut at = 0;
    let mut done = false;
    while at < chars.len() {
        let here = !done && (place != Place::Start || at == 0);
        let ends = if place == Place::End { chars.len()..=chars.len() } else { at + 1..=chars.len() };
        let mut found = None;
        for end in ends.rev().filter(|_| here) {
            steps.take(1)?;
            if matched(&pieces, &chars[at..end], false, steps)? {
                found = Some(end);
                break;
            }
        }
        match found {
            Some(end) => {
                result.push_str(to);
                at = end;
                done = place != Place::All;
            }
            None => {
                result.push(chars[at]);
                at += 1;
            }
        }
    }
    Some(result)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_in_bash() {
        for (pattern, text, expected) in [
            ("a*b?", "aXXbY", true),
            ("*", "", true),
            ("[0-9]*", "7b", true),
            ("[!0-9]*", "7b", false),
            ("[a-c]", "d", false),
            ("[]x]", "]", true),
            ("[[:digit:]x]", "4", true),
            ("x\\*", "xy", false),
            ("x\\*", "x*", true),
            ("[", "[", true),
        ] {
            assert_eq!(
                matches(pattern, text, (true, false), &mut Steps::new()),
                Some(expected),
                "{pattern} {text}"
            );
        }
        let steps = &mut Steps::new();
        assert_eq!(matches("@(a|b)", "a", (false, false), steps), Some(false));
        assert_eq!(matches("@(a|b)", "@(a|b)", (false, false), steps), Some(true));
        for open in ["@(a|b", "@(a(b)c)", &"@(".repeat(100)] {
            assert_eq!(matches(open, "a", (true, false), steps), None, "{open}");
        }
        let (many, long) = ("+(a|aa|*(a))".repeat(200), "a".repeat(2000));
        assert_eq!(matches(&many, &long, (true, false), &mut Steps::new()), None);
        let (empty, long) = (format!("!({})", "|".repeat(100_000)), "a".repeat(100_000));
        assert_eq!(matches(&empty, &long, (true, false), &mut Steps::new()), None);
        assert_eq!(without("4x12", ("x[0-9]*", false), true, false, steps).as_deref(), Some("4"));
        assert_eq!(replaced("a1b22", ("[0-9]", false), "", Place::All, 99, steps).as_deref(), Some("ab"));
        // Work that multiplies is given up, not done.
        let (almost, long) = (format!("*{}b", "a".repeat(5000)), "a".repeat(100_000));
        assert_eq!(matches(&almost, &long, (false, false), &mut Steps::new()), None);
        assert_eq!(without(&long, ("*[!a]", false), true, false, &mut Steps::new()), None);
        assert_eq!(matches(&"[".repeat(100_000), "a", (false, false), &mut Steps::new()), None);
        assert_eq!(replaced("28", ("2", false), "", Place::Start, 99, steps).as_deref(), Some("8"));
    }
}
