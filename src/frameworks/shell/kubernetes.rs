//! The training command of a Kubernetes manifest: that of its containers, with the variables that they are given.

use std::collections::BTreeMap;

use super::super::yaml::{Node, Value, documents};
use super::run::{LONGEST, Run, Shell};
use super::state::unknown;
use super::{ImportError, Word};

/// Kinds whose pods know only what their containers are told; controllers of others set torchrun's variables.
const PLAIN: [&str; 2] = ["Job", "Pod"];

/// Whether a text is a manifest.
#[must_use]
pub fn is_manifest(text: &str) -> bool {
    let begins = |key: &str| text.lines().any(|line| line.starts_with(key));
    begins("apiVersion:") && begins("kind:")
}

/// Most files of ConfigMaps and variables that containers see, counted for each of them.
const MOST_MOUNTED: usize = 4096;
/// Most keys of ConfigMaps that are gone through for a container.
const MOST_KEYS: usize = 1 << 20;
/// Most characters of a container's variables that are kept.
const MOST_TEXT: usize = 1 << 22;

/// What the ConfigMaps of a manifest hold, by their names.
type Maps<'n> = BTreeMap<&'n str, &'n [(String, Node)]>;

fn maps_of(documents: &[Node]) -> Maps<'_> {
    let maps = documents.iter().filter(|node| text_of(node, "kind") == Some("ConfigMap"));
    maps.filter_map(|node| Some((text_of(node.get("metadata")?, "name")?, node.get("data")?.entries())))
        .collect()
}

fn text_of<'n>(node: &'n Node, name: &str) -> Option<&'n str> {
    node.get(name).and_then(Node::text)
}

impl Shell<'_> {
    /// Runs the commands of all containers of a manifest.
    pub(super) fn manifest(&mut self, text: &str) -> Run<()> {
        let documents = documents(text)?;
        let maps = maps_of(&documents);
        let mut mounted = 0;
        for document in &documents {
            let plain = text_of(document, "kind").is_some_and(|kind| PLAIN.contains(&kind));
            let mut pods = Vec::new();
            pods_of(document, &mut pods);
            for pod in pods {
                for container in pod.get("containers").map(Node::members).unwrap_or_default() {
                    let (files, variables) = (mounts(pod, container, &maps), variables_of(container, &maps));
                    mounted += files.as_ref().map_or(MOST_MOUNTED, Vec::len) + variables.0.len();
                    let Some(files) = files.filter(|_| mounted <= MOST_MOUNTED) else {
                        let text = format!(
                            "containers see more than {MOST_MOUNTED} files of ConfigMaps and variables"
                        );
                        return Err(ImportError::new(container.line, text));
                    };
                    self.container(container, &files, variables, plain)?;
                }
            }
        }
        Ok(())
    }

    fn container(
        &mut self,
        container: &Node,
        files: &[Mounted],
        (variables, open): (BTreeMap<String, String>, bool),
        plain: bool,
    ) -> Run<()> {
        let words = ["command", "args"].into_iter().filter_map(|name| container.get(name));
        let words = words.flat_map(|list| list.members().iter());
        let words: Vec<Word> = words
            .filter_map(|node| Some(Word { text: with_variables(node.text()?, &variables), line: node.line }))
            .collect();
        self.unread |= open;
        // Other containers see other files.
        let outer = self.state.written.clone();
        self.subshell(|shell| {
            shell.state.anything |= open;
            // They say how many nodes there are.
            if !plain {
                shell.set("PET_NNODES", unknown());
                shell.set("PET_NPROC_PER_NODE", unknown());
                shell.set("WORLD_SIZE", unknown());
            }
            for (name, value) in variables {
                shell.set(&name, value);
            }
            for file in files {
                shell.keep(&file.path, false, file.node.text().map(str::to_owned), file.node.line);
                if shell.is_spent() {
                    break;
                }
            }
            shell.program(&words, None)
        })?;
        self.state.written = outer;
        Ok(())
    }
}

/// A file that a container sees.
struct Mounted<'n> {
    path: String,
    node: &'n Node,
}

/// Files that a container of a pod sees of ConfigMaps; none where these are too many.
fn mounts<'n>(pod: &Node, container: &Node, maps: &Maps<'n>) -> Option<Vec<Mounted<'n>>> {
    let volumes = pod.get("volumes").map(Node::members).unwrap_or_default();
    let (mut files, mut keys) = (Vec::new(), 0);
    for mount in container.get("volumeMounts").map(Node::members).unwrap_or_default() {
        let Some((name, folder)) = text_of(mount, "name").zip(text_of(mount, "mountPath")) else { continue };
        let volume = volumes.iter().find(|volume| text_of(volume, "name") == Some(name));
        let Some(source) = volume.and_then(|volume| volume.get("configMap")) else { continue };
        let data = text_of(source, "name").and_then(|name| maps.get(name)).copied().unwrap_or_default();
        let items = source.get("items").map(Node::members);
        let paths: BTreeMap<_, _> =
            items.unwrap_or_default().iter().map(|i| (text_of(i, "key"), text_of(i, "path"))).collect();
        keys += data.len() + paths.len() + volumes.len();
        if keys > MOST_KEYS {
            return None;
        }
        for (key, node) in data {
            // Listed are those that are there at all, each with its name.
            let name = match items {
                None => Some(key.as_str()),
                Some(_) => paths.get(&Some(key.as_str())).copied().flatten(),
            };
            // `subPath` mounts one file under a name of its own.
            let path = match (name, text_of(mount, "subPath")) {
                (Some(name), None) => format!("{folder}/{name}"),
                (Some(name), Some(part)) if part == name => folder.to_owned(),
                _ => continue,
            };
            files.push(Mounted { path, node });
            if files.len() > MOST_MOUNTED {
                return None;
            }
        }
    }
    Some(files)
}

/// What holds containers below a node, but for those that only prepare.
fn pods_of<'n>(node: &'n Node, all: &mut Vec<&'n Node>) {
    match &node.value {
        Value::Map(entries) => {
            if entries.iter().any(|(name, _)| name == "containers") {
                all.push(node);
            }
            let others = entries.iter().filter(|(name, _)| name != "containers");
            others.for_each(|(_, inner)| pods_of(inner, all));
        }
        Value::List(nodes) => nodes.iter().for_each(|node| pods_of(node, all)),
        Value::Text(_) | Value::Null => {}
    }
}

/// The variables of a container, and whether others may set any; unknown is what comes from elsewhere, and which of its
/// job's pods this is.
fn variables_of(container: &Node, maps: &Maps) -> (BTreeMap<String, String>, bool) {
    let mut all = BTreeMap::from([("JOB_COMPLETION_INDEX".to_owned(), unknown())]);
    let (mut open, mut text) = (false, 0);
    for source in container.get("envFrom").map(Node::members).unwrap_or_default() {
        let prefix = text_of(source, "prefix").unwrap_or_default();
        let name = source.get("configMapRef").and_then(|map| text_of(map, "name"));
        match name.and_then(|name| maps.get(name)) {
            Some(data) => {
                // One more tells that there are too many.
                all.extend(data.iter().take(MOST_MOUNTED + 1).map(|(key, node)| {
                    (format!("{prefix}{key}"), node.text().unwrap_or_default().to_owned())
                }))
            }
            None => open = true,
        }
    }
    for variable in container.get("env").map(Node::members).unwrap_or_default() {
        let Some(name) = text_of(variable, "name") else { continue };
        let of_map =
            variable.get("valueFrom").and_then(|from| from.get("configMapKeyRef")).and_then(|place| {
                let data = maps.get(text_of(place, "name")?)?;
                let (_, node) = data.iter().find(|(key, _)| Some(key.as_str()) == text_of(place, "key"))?;
                node.text().map(str::to_owned)
            });
        let value = match variable.get("value") {
            Some(node) => with_variables(node.text().unwrap_or_default(), &all),
            None if of_map.is_some() => of_map.unwrap_or_default(),
            None if variable.get("valueFrom").is_some() => unknown(),
            None => String::new(),
        };
        text += value.len();
        let value = if text > MOST_TEXT { unknown() } else { value };
        all.insert(name.to_owned(), value);
    }
    (all, open)
}

/// A text with the values of `$(NAME)`; two dollars stand for one, and a name that is not set stays as it is.
fn with_variables(text: &str, variables: &BTreeMap<String, String>) -> String {
    let mut all = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        if all.len() > LONGEST {
            return unknown();
        }
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
