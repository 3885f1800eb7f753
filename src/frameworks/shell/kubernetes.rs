//! The training command of a Kubernetes manifest: that of its containers, with the variables that they are given.

use std::collections::BTreeMap;

use super::super::yaml::{Node, Value, documents};
use super::Word;
use super::run::{Run, Shell};
use super::state::unknown;

/// Kinds whose pods know only what their containers are told; controllers of others set torchrun's variables.
const PLAIN: [&str; 2] = ["Job", "Pod"];

/// Whether a text is a manifest.
#[must_use]
pub fn is_manifest(text: &str) -> bool {
    let begins = |key: &str| text.lines().any(|line| line.starts_with(key));
    begins("apiVersion:") && begins("kind:")
}

impl Shell<'_> {
    /// Runs the commands of all containers of a manifest.
    pub(super) fn manifest(&mut self, text: &str) -> Run<()> {
        for document in documents(text)? {
            let kind = document.get("kind").and_then(Node::text).unwrap_or_default().to_owned();
            let mut containers = Vec::new();
            containers_of(&document, &mut containers);
            for container in containers {
                self.container(container, PLAIN.contains(&kind.as_str()))?;
            }
        }
        Ok(())
    }

    fn container(&mut self, container: &Node, plain: bool) -> Run<()> {
        let variables = variables_of(container);
        let words = ["command", "args"].into_iter().filter_map(|name| container.get(name));
        let words = words.flat_map(|list| list.members().iter());
        let words: Vec<Word> = words
            .filter_map(|node| Some(Word { text: with_variables(node.text()?, &variables), line: node.line }))
            .collect();
        self.subshell(|shell| {
            // They say how many nodes there are.
            if !plain {
                shell.set("PET_NNODES", unknown());
                shell.set("WORLD_SIZE", unknown());
            }
            for (name, value) in variables {
                shell.set(&name, value);
            }
            shell.program(&words, None)
        })?;
        Ok(())
    }
}

/// The containers below a node, without those that only prepare.
fn containers_of<'n>(node: &'n Node, all: &mut Vec<&'n Node>) {
    match &node.value {
        Value::Map(entries) => {
            for (name, inner) in entries {
                match name.as_str() {
                    "containers" => all.extend(inner.members()),
                    _ => containers_of(inner, all),
                }
            }
        }
        Value::List(nodes) => nodes.iter().for_each(|node| containers_of(node, all)),
        Value::Text(_) | Value::Null => {}
    }
}

/// The variables of a container; unknown is what comes from elsewhere, and which of its job's pods this is.
fn variables_of(container: &Node) -> BTreeMap<String, String> {
    let mut all = BTreeMap::from([("JOB_COMPLETION_INDEX".to_owned(), unknown())]);
    for variable in container.get("env").map(Node::members).unwrap_or_default() {
        let Some(name) = variable.get("name").and_then(Node::text) else { continue };
        let value = match variable.get("value") {
            Some(node) => with_variables(node.text().unwrap_or_default(), &all),
            None if variable.get("valueFrom").is_some() => unknown(),
            None => String::new(),
        };
        all.insert(name.to_owned(), value);
    }
    all
}

/// A text with the values of `$(NAME)`; two dollars stand for one, and a name that is not set stays as it is.
fn with_variables(text: &str, variables: &BTreeMap<String, String>) -> String {
    let mut all = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        let (before, from) = rest.split_at(at);
        all.push_str(before);
        let value = from.strip_prefix("$(").and_then(|inner| {
            let (name, behind) = inner.split_once(')')?;
            Some((variables.get(name)?, behind))
        });
        (rest, _) = match (value, from.strip_prefix("$$")) {
            (Some((value, behind)), _) => (behind, all.push_str(value)),
            (None, Some(behind)) => (behind, all.push('$')),
            (None, None) => (&from[1..], all.push('$')),
        };
    }
    all.push_str(rest);
    all
}

#[cfg(test)]
mod tests {
    use super::super::UNKNOWN;
    use super::*;

    #[test]
    fn variables_are_put_in_as_kubernetes_does() {
        let variables =
            BTreeMap::from([("A".to_owned(), "1".to_owned()), ("B".to_owned(), UNKNOWN.to_string())]);
        for (text, expected) in [
            ("--n $(A)", "--n 1"),
            ("$(A)$(A)x", "11x"),
            ("$$(A)", "$(A)"),
            ("$(C) $A ${A}", "$(C) $A ${A}"),
            ("$(B)", "\u{fffc}"),
            ("$(A", "$(A"),
            ("5$", "5$"),
            ("$$$(A)", "$1"),
        ] {
            assert_eq!(with_variables(text, &variables), expected, "{text}");
        }
    }
}
