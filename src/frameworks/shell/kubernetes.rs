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
        let documents = documents(text)?;
        for document in &documents {
            let kind = document.get("kind").and_then(Node::text).unwrap_or_default().to_owned();
            let mut containers = Vec::new();
            containers_of(document, &mut containers);
            for container in containers {
                self.mount(document, container, &documents);
                self.container(container, PLAIN.contains(&kind.as_str()))?;
            }
        }
        Ok(())
    }

    /// Files that a container sees of the ConfigMaps beside it.
    fn mount(&mut self, document: &Node, container: &Node, documents: &[Node]) {
        let mut volumes = Vec::new();
        lists_of(document, "volumes", &mut volumes);
        let named = |node: &Node, name: &str| node.get("name").and_then(Node::text) == Some(name);
        for mount in container.get("volumeMounts").map(Node::members).unwrap_or_default() {
            let text = |name: &str| mount.get(name).and_then(Node::text);
            let Some((volume, folder)) = text("name").zip(text("mountPath")) else { continue };
            let volume = volumes.iter().find(|node| named(node, volume));
            let Some(source) = volume.and_then(|node| node.get("configMap")) else { continue };
            let Some(name) = source.get("name").and_then(Node::text) else { continue };
            let holds = |node: &&Node| {
                node.get("kind").and_then(Node::text) == Some("ConfigMap")
                    && node.get("metadata").is_some_and(|about| named(about, name))
            };
            let data = documents.iter().find(holds).and_then(|node| node.get("data"));
            for (key, node) in data.map(Node::entries).unwrap_or_default() {
                // `subPath` mounts one file under a name of its own.
                let path = match text("subPath") {
                    Some(part) if part == key => folder.to_owned(),
                    Some(_) => continue,
                    None => format!("{folder}/{key}"),
                };
                self.keep(&path, false, node.text().map(str::to_owned), node.line);
            }
        }
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
                shell.set("PET_NPROC_PER_NODE", unknown());
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
    lists_of(node, "containers", all);
}

/// The members of all lists of a name below a node.
fn lists_of<'n>(node: &'n Node, wanted: &str, all: &mut Vec<&'n Node>) {
    match &node.value {
        Value::Map(entries) => {
            for (name, inner) in entries {
                if name == wanted {
                    all.extend(inner.members());
                } else {
                    lists_of(inner, wanted, all);
                }
            }
        }
        Value::List(nodes) => nodes.iter().for_each(|node| lists_of(node, wanted, all)),
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
