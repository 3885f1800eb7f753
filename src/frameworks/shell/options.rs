//! Options that scripts take themselves: `getopts` of the shell, `getopt` of util-linux.

use super::run::Shell;
use super::state::{ENTRY, Status, known};

impl Shell<'_> {
    /// `getopts OPTIONS NAME [ARGUMENTS]`
    pub(super) fn options_of_caller(&mut self, words: &[String]) -> Status {
        let own = words.get(2..).filter(|words| !words.is_empty());
        let arguments = match (own, &self.state.positional) {
            (Some(own), _) => own.to_vec(),
            (None, Some(positional)) => positional.to_vec(),
            (None, None) => {
                self.assumed = true;
                return Some(1);
            }
        };
        let [options, name, ..] = words else { return Some(2) };
        self.worked(arguments.len().saturating_mul(ENTRY));
        let next = self.content("OPTIND", None).filter(|text| known(text));
        let next = next.map_or(Ok(1), |text| text.parse::<usize>());
        let (Ok(next @ 1..), true) = (next, known(options) && arguments.iter().all(|text| known(text)))
        else {
            [name.as_str(), "OPTARG", "OPTIND"].into_iter().for_each(|name| self.forget_name(name));
            return None;
        };
        // Where it stands within a word such as `-abc`.
        let (of, at) = self.state.option_at;
        let at = if of == next { at } else { 0 };
        let word = arguments.get(next - 1).map_or("", String::as_str);
        let ends = word == "--";
        let letters = word.strip_prefix('-').filter(|letters| !letters.is_empty() && !ends);
        let Some(letter) = letters.and_then(|letters| letters.chars().nth(at)) else {
            self.put("OPTIND", None, false, (next + usize::from(ends)).to_string());
            self.put(name, None, false, "?".to_owned());
            return Some(1);
        };
        let silent = options.starts_with(':');
        let place = options.find(letter).filter(|_| letter != ':');
        let takes = place.is_some_and(|place| options[place + letter.len_utf8()..].starts_with(':'));
        let rest: String = letters.into_iter().flat_map(|letters| letters.chars().skip(at + 1)).collect();
        let within = !takes && !rest.is_empty();
        let value = match (takes, rest.is_empty()) {
            (true, true) => arguments.get(next).cloned(),
            (true, false) => Some(rest.clone()),
            (false, _) => None,
        };
        let used = if within { 0 } else { 1 + usize::from(takes && rest.is_empty() && value.is_some()) };
        self.state.option_at = (next, if within { at + 1 } else { 0 });
        self.put("OPTIND", None, false, (next + used).to_string());
        let lacks = takes && value.is_none();
        let found = match (place.is_some(), lacks) {
            (true, false) => letter,
            (true, true) if silent => ':',
            _ => '?',
        };
        self.put(name, None, false, found.to_string());
        let value = if found == letter { value } else { Some(letter.to_string()).filter(|_| silent) };
        self.put("OPTARG", None, false, value.unwrap_or_default());
        Some(0)
    }
}

/// What `getopt -o LETTERS --long NAMES -- ARGUMENTS` prints: the options with their values, `--`, all else; none where it
/// fails or something is not known.
pub(super) fn getopt(words: &[String]) -> Option<String> {
    if words.iter().any(|word| !known(word)) {
        return None;
    }
    let (mut letters, mut names) = (String::new(), Vec::new());
    let mut words = words.iter();
    let (mut named, mut plain) = (false, false);
    while let Some(word) = words.next() {
        let (option, glued) =
            word.split_once('=').map_or((word.as_str(), None), |(o, value)| (o, Some(value)));
        let mut value = || glued.map(str::to_owned).or_else(|| words.next().cloned());
        match option {
            "--" => {
                if !named {
                    letters.clone_from(words.next()?);
                }
                break;
            }
            "-o" | "--options" => (letters, named) = (value()?, true),
            "-l" | "--long" | "--longoptions" => {
                names.extend(
                    value()?.split(',').map(|name| name.trim().to_owned()).filter(|name| !name.is_empty()),
                );
            }
            "-n" | "--name" => drop(value()?),
            "-q" | "--quiet" => {}
            // The letters may stand alone in front.
            _ if !named && !option.starts_with('-') => {
                letters.clone_from(word);
                plain = true;
                break;
            }
            _ => return None,
        }
    }
    let mut out = String::new();
    let mut others = Vec::new();
    // Orders of their own, and texts that are not quoted.
    if letters.starts_with(['+', '-']) {
        return None;
    }
    let quoted =
        |text: &str| if plain { format!(" {text}") } else { format!(" '{}'", text.replace('\'', "'\\''")) };
    while let Some(word) = words.next() {
        if word == "--" {
            others.extend(words.by_ref().cloned());
        } else if let Some(option) = word.strip_prefix("--") {
            let (begun, glued) = option.split_once('=').map_or((option, None), |(o, value)| (o, Some(value)));
            let plain = |name: &String| name.trim_end_matches(':').to_owned();
            let exact = names.iter().find(|name| plain(name) == begun);
            let mut starts = names.iter().filter(|name| name.starts_with(begun));
            let name = exact.or_else(|| starts.next().filter(|_| starts.next().is_none()))?;
            out.push_str(&format!(" --{}", plain(name)));
            match (name.ends_with("::"), name.ends_with(':'), glued) {
                (true, ..) => out.push_str(&quoted(glued.unwrap_or_default())),
                (false, true, Some(value)) => out.push_str(&quoted(value)),
                (false, true, None) => out.push_str(&quoted(words.next()?)),
                (false, false, None) => {}
                (false, false, Some(_)) => return None,
            }
        } else if let Some(bundle) = word.strip_prefix('-').filter(|bundle| !bundle.is_empty()) {
            let mut rest = bundle.chars();
            while let Some(letter) = rest.next() {
                let behind = &letters[letters.find(letter).filter(|_| letter != ':')? + letter.len_utf8()..];
                out.push_str(&format!(" -{letter}"));
                if behind.starts_with(':') {
                    let glued: String = rest.by_ref().collect();
                    let optional = behind.starts_with("::");
                    let value = if glued.is_empty() && !optional { words.next()?.clone() } else { glued };
                    out.push_str(&quoted(&value));
                }
            }
        } else {
            others.push(word.clone());
        }
    }
    out.push_str(" --");
    others.iter().for_each(|word| out.push_str(&quoted(word)));
    Some(out + "\n")
}
