//! Extended regular expressions of `[[ text =~ expression ]]`, matched as POSIX has it: the leftmost match, and of those
//! the longest. What is GNU's own (`\w`), or bound to a language (`[[=a=]]`), is not followed.

use super::patterns::Steps;

/// One part of an expression.
#[derive(Debug, Clone)]
enum Node {
    One(Class),
    Start,
    End,
    /// `(…)`: its number, and its alternatives.
    Group(usize, Vec<Vec<Self>>),
    /// Where a group ends.
    Close(usize),
    /// A part so many times; no limit is [`usize::MAX`].
    Repeat(Box<Self>, usize, usize),
}

/// The characters that one place may hold.
#[derive(Debug, Clone)]
struct Class {
    negated: bool,
    ranges: Vec<(char, char)>,
    /// Whether the language says which characters beyond ASCII are among them: it has a range, or one by its name.
    open: bool,
}

impl Class {
    fn has(&self, c: char) -> bool {
        self.ranges.iter().any(|(from, to)| (*from..=*to).contains(&c)) != self.negated
    }
}

/// Where the whole and each group matched; none for groups that took no part.
type Spans = Vec<Option<(usize, usize)>>;

/// What an expression finds.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    No,
    /// The texts of the whole and of each group; none of these where another rule than "the longest from the left" says
    /// what groups hold.
    Yes(Option<Vec<String>>),
}

/// Most parts of an expression, and the most that a part is repeated.
const MOST: usize = 256;

/// Longest text that is searched: every character of it may stand on the stack.
const LONGEST_TEXT: usize = 1024;

/// What an expression finds in a text; none where it holds what is not followed, or takes too long.
pub(super) fn find(expression: &str, text: &str, steps: &mut Steps) -> Option<Found> {
    let mut parser = Parser { chars: expression.chars().collect(), at: 0, groups: 0, parts: 0 };
    let whole = parser.alternatives()?;
    if parser.at < parser.chars.len() {
        return None;
    }
    let plain = whole.len() == 1 && is_plain(&whole[0]);
    let whole = Node::Group(0, whole);
    let text: Vec<char> = text.chars().collect();
    if text.len() > LONGEST_TEXT {
        return None;
    }
    let mut search = Search { text: &text, steps, best: None };
    for from in 0..=text.len() {
        let mut spans: Spans = vec![None; parser.groups + 1];
        search.run(&[&whole], from, &mut spans)?;
        if let Some((_, spans)) = search.best {
            let texts = spans
                .into_iter()
                .map(|span| span.map_or(String::new(), |(a, b)| text[a..b].iter().collect()));
            return Some(Found::Yes(plain.then(|| texts.collect())));
        }
    }
    Some(Found::No)
}

/// Whether what groups hold follows from "each part takes the most, from the left": there is no choice, and no group is
/// repeated but as `(…)?`.
fn is_plain(nodes: &[Node]) -> bool {
    nodes.iter().all(|node| match node {
        Node::Group(_, all) => all.len() == 1 && is_plain(&all[0]),
        Node::Repeat(inner, _, most) => match &**inner {
            Node::Group(_, all) => *most == 1 && all.len() == 1 && is_plain(&all[0]),
            _ => true,
        },
        _ => true,
    })
}

fn may_be_empty(node: &Node) -> bool {
    match node {
        Node::One(_) => false,
        Node::Start | Node::End | Node::Close(_) => true,
        Node::Group(_, all) => all.iter().any(|one| one.iter().all(may_be_empty)),
        Node::Repeat(inner, least, _) => *least == 0 || may_be_empty(inner),
    }
}

struct Parser {
    chars: Vec<char>,
    at: usize,
    groups: usize,
    parts: usize,
}

impl Parser {
    fn peek(&self) -> Option<char> {
        self.chars.get(self.at).copied()
    }

    fn alternatives(&mut self) -> Option<Vec<Vec<Node>>> {
        let mut all = vec![self.sequence()?];
        while self.peek() == Some('|') {
            self.at += 1;
            all.push(self.sequence()?);
        }
        // Of an empty one POSIX says nothing.
        (all.len() == 1 || all.iter().all(|one| !one.is_empty())).then_some(all)
    }

    fn sequence(&mut self) -> Option<Vec<Node>> {
        let mut nodes = Vec::new();
        while let Some(c) = self.peek().filter(|c| !matches!(c, '|' | ')')) {
            self.parts += 1;
            self.at += 1;
            let node = match c {
                '^' => Node::Start,
                '$' => Node::End,
                '(' => {
                    self.groups += 1;
                    let number = self.groups;
                    if number > MOST / 8 {
                        return None;
                    }
                    let inside = self.alternatives()?;
                    if self.peek() != Some(')') {
                        return None;
                    }
                    self.at += 1;
                    Node::Group(number, inside)
                }
                '[' => Node::One(self.class()?),
                '.' => Node::One(Class { negated: true, ranges: Vec::new(), open: false }),
                '*' | '+' | '?' | '{' => return None,
                '\\' => {
                    let c = self
                        .peek()
                        .filter(|c| !c.is_alphanumeric() && !matches!(c, '<' | '>' | '`' | '\''))?;
                    self.at += 1;
                    Node::One(Class { negated: false, ranges: vec![(c, c)], open: false })
                }
                c => Node::One(Class { negated: false, ranges: vec![(c, c)], open: false }),
            };
            nodes.push(self.repeated(node)?);
            if self.parts > MOST {
                return None;
            }
        }
        Some(nodes)
    }

    fn repeated(&mut self, node: Node) -> Option<Node> {
        let (least, most) = match self.peek() {
            Some('*') => (0, usize::MAX),
            Some('+') => (1, usize::MAX),
            Some('?') => (0, 1),
            Some('{') => {
                let inside: String = self.chars[self.at + 1..].iter().take_while(|c| **c != '}').collect();
                self.at += inside.chars().count() + 1;
                self.peek()?;
                let number = |text: &str| text.parse::<usize>().ok().filter(|n| *n <= MOST);
                match inside.split_once(',') {
                    None => (number(&inside)?, number(&inside)?),
                    Some((least, "")) => (number(least)?, usize::MAX),
                    Some((least, most)) => {
                        (number(least)?, number(most).filter(|m| Some(*m) >= number(least))?)
                    }
                }
            }
            _ => return Some(node),
        };
        self.at += 1;
        // A repeated repetition, a repeated anchor, or nothing repeated.
        let again = matches!(self.peek(), Some('*' | '+' | '?' | '{'));
        let endless = most > 1 && may_be_empty(&node);
        (!(again || endless || matches!(node, Node::Start | Node::End)))
            .then(|| Node::Repeat(Box::new(node), least, most))
    }

    /// `[a-z0-9_]`, behind its bracket.
    fn class(&mut self) -> Option<Class> {
        let negated = self.peek() == Some('^');
        self.at += usize::from(negated);
        let mut ranges: Vec<(char, char)> = Vec::new();
        let first = self.at;
        let mut open = false;
        loop {
            let c = self.peek()?;
            self.at += 1;
            match c {
                ']' if self.at - 1 > first => return Some(Class { negated, ranges, open }),
                '\\' => return None,
                '[' if self.peek() == Some(':') => {
                    open = true;
                    let rest: String = self.chars[self.at + 1..].iter().collect();
                    let name = rest.split(":]").next()?;
                    ranges.extend_from_slice(match name {
                        "digit" => &[('0', '9')],
                        "lower" => &[('a', 'z')],
                        "upper" => &[('A', 'Z')],
                        "alpha" => &[('a', 'z'), ('A', 'Z')],
                        "alnum" => &[('a', 'z'), ('A', 'Z'), ('0', '9')],
                        "xdigit" => &[('a', 'f'), ('A', 'F'), ('0', '9')],
                        "space" => &[(' ', ' '), ('\t', '\r')],
                        "blank" => &[(' ', ' '), ('\t', '\t')],
                        _ => return None,
                    });
                    self.at += name.chars().count() + 3;
                }
                '[' if matches!(self.peek(), Some('.' | '=')) => return None,
                c => match (self.peek(), self.chars.get(self.at + 1)) {
                    (Some('-'), Some(&end)) if end != ']' => {
                        self.at += 2;
                        open = true;
                        // Other ranges are ordered by the language.
                        let kind =
                            |c: char| [c.is_ascii_digit(), c.is_ascii_lowercase(), c.is_ascii_uppercase()];
                        let same = kind(c) == kind(end) && kind(c).contains(&true) && c <= end;
                        ranges.push(same.then_some((c, end))?);
                    }
                    _ => ranges.push((c, c)),
                },
            }
        }
    }
}

struct Search<'t, 's> {
    text: &'t [char],
    steps: &'s mut Steps,
    /// The end of the longest match so far; of equals the first, where each part took the most it could.
    best: Option<(usize, Spans)>,
}

impl Search<'_, '_> {
    /// Tries all ways in which what is left matches from here; none where that takes too long.
    fn run(&mut self, rest: &[&Node], at: usize, spans: &mut Spans) -> Option<()> {
        self.steps.take(1 + rest.len())?;
        let Some((node, rest)) = rest.split_first() else {
            if self.best.as_ref().is_none_or(|(end, _)| at > *end) {
                self.best = Some((at, spans.clone()));
            }
            return Some(());
        };
        match node {
            Node::Start if at > 0 => Some(()),
            Node::End if at < self.text.len() => Some(()),
            Node::Start | Node::End => self.run(rest, at, spans),
            Node::One(class) if class.open && self.text.get(at).is_some_and(|c| !c.is_ascii()) => None,
            Node::One(class) => match self.text.get(at).filter(|c| class.has(**c)) {
                Some(_) => self.run(rest, at + 1, spans),
                None => Some(()),
            },
            Node::Group(number, all) => {
                let (before, close) = (spans[*number], Node::Close(*number));
                for one in all {
                    let inside: Vec<&Node> = one.iter().chain([&close]).chain(rest.iter().copied()).collect();
                    spans[*number] = Some((at, at));
                    self.run(&inside, at, spans)?;
                }
                spans[*number] = before;
                Some(())
            }
            Node::Close(number) => {
                let before = spans[*number];
                spans[*number] = before.map(|(from, _)| (from, at));
                self.run(rest, at, spans)?;
                spans[*number] = before;
                Some(())
            }
            Node::Repeat(inner, least, most) => {
                if *most > 0 {
                    let fewer = if *most == usize::MAX { *most } else { most - 1 };
                    let again = Node::Repeat(inner.clone(), least.saturating_sub(1), fewer);
                    let inside: Vec<&Node> =
                        [&**inner, &again].into_iter().chain(rest.iter().copied()).collect();
                    self.run(&inside, at, spans)?;
                }
                if *least == 0 { self.run(rest, at, spans) } else { Some(()) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What bash itself finds, with random texts and expressions of the kinds that scripts have.
    #[test]
    fn finds_what_bash_finds() {
        let pieces = [
            "^",
            "$",
            "a",
            "b",
            "1",
            "-",
            "\\.",
            ".",
            "[0-9]+",
            "[ab]*",
            "([a-b]+)",
            "([0-9]+)b",
            "(a|ab|1)",
            "(a)?",
            "(-([0-9]*))?",
            "[^a]",
            "a{2}",
            "[[:digit:]]{1,2}",
            "(ab)+",
            "b|1",
            "a*",
        ];
        let mut seed = 7_u64;
        let mut below = |most: usize| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            ((seed >> 33) % most as u64) as usize
        };
        let cases: Vec<(String, String)> = (0..400)
            .map(|_| {
                let expression = (0..1 + below(4)).map(|_| pieces[below(pieces.len())]).collect();
                let text = (0..below(7)).map(|_| ['a', 'b', '1', '-', '.', '2'][below(6)]).collect();
                (expression, text)
            })
            .collect();
        let script: String = cases
            .iter()
            .map(|(expression, text)| {
                format!(
                    "re='{expression}'; [[ '{text}' =~ $re ]]; s=$?; printf '%s' $s; [[ $s == 0 ]] && printf '/%s' \
                     \"${{BASH_REMATCH[@]}}\"; echo\n"
                )
            })
            .collect();
        let output = std::process::Command::new("bash").args(["--norc", "-c", &script]).output().unwrap();
        let output = String::from_utf8(output.stdout).unwrap();
        let mut judged = (0, 0);
        for ((expression, text), bash) in cases.iter().zip(output.lines()) {
            let told = match find(expression, text, &mut Steps::new()) {
                None => continue,
                Some(Found::No) => "1".to_owned(),
                Some(Found::Yes(None)) => "0".to_owned(),
                Some(Found::Yes(Some(texts))) => {
                    judged.1 += 1;
                    format!("0/{}", texts.join("/"))
                }
            };
            judged.0 += 1;
            let bash = if told == "0" { &bash[..1] } else { bash };
            assert_eq!(told, bash, "[[ '{text}' =~ {expression} ]]");
        }
        assert!(judged.0 > 250 && judged.1 > 60, "{judged:?}");
    }

    #[test]
    fn classes_beyond_ascii_are_of_the_language() {
        for expression in ["[[:alpha:]]", "[^a-z]", "[0-9]"] {
            assert_eq!(find(expression, "é", &mut Steps::new()), None, "{expression}");
        }
        for expression in [".", "é", "[é]", "[^a]"] {
            assert!(matches!(find(expression, "é", &mut Steps::new()), Some(Found::Yes(_))), "{expression}");
        }
    }

    #[test]
    fn what_is_gnus_or_endless_is_not_followed() {
        for expression in
            ["\\w+", "[[=a=]]", "[\\d]", "(a*)*", "a**", "^*", "(a", "a|", "x{2,1}", "[z-a]", "[a-Z]"]
        {
            assert_eq!(find(expression, "a", &mut Steps::new()), None, "{expression}");
        }
        assert_eq!(find("(a|aa|aaa)+$", &("a".repeat(200) + "b"), &mut Steps::new()), None);
    }
}
