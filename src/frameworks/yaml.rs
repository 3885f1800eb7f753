//! YAML files of launchers, with the lines of what they hold.

use saphyr::{LoadableYamlNode, MarkedYaml, Scalar, YamlData};

use super::shell::ImportError;

/// Most collections inside one another.
const MOST_NESTED: usize = 64;

/// A value with the line that it begins on, counted from 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Node {
    pub line: usize,
    pub value: Value,
}

/// What a value is; numbers and truth values are their texts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Value {
    Null,
    Text(String),
    List(Vec<Node>),
    Map(Vec<(String, Node)>),
}

/// The documents of a file.
///
/// # Errors
/// What is no YAML, with its line.
pub(super) fn documents(text: &str) -> Result<Vec<Node>, ImportError> {
    // The parser's own nodes are let go of by calls inside calls.
    let begins = |line: &str| line.chars().take_while(|c| " -?:".contains(*c)).filter(|c| *c != ' ').count();
    if let Some(at) = text.lines().position(|line| begins(line) > MOST_NESTED) {
        return Err(too_deep(at + 1));
    }
    let documents = MarkedYaml::load_from_str(text)
        .map_err(|e| ImportError::new(e.marker().line(), format!("this is no YAML: {}", e.info())))?;
    documents.iter().map(|node| read(node, 0)).collect()
}

fn too_deep(line: usize) -> ImportError {
    ImportError::new(line, format!("more than {MOST_NESTED} lists and maps inside one another"))
}

fn read(node: &MarkedYaml, depth: usize) -> Result<Node, ImportError> {
    let line = node.span.start.line();
    if depth > MOST_NESTED {
        return Err(too_deep(line));
    }
    let value = match &node.data {
        YamlData::Value(scalar) => match scalar {
            Scalar::Null => Value::Null,
            Scalar::Boolean(on) => Value::Text(on.to_string()),
            Scalar::Integer(number) => Value::Text(number.to_string()),
            Scalar::FloatingPoint(number) => Value::Text(number.to_string()),
            Scalar::String(text) => Value::Text(text.to_string()),
        },
        YamlData::Representation(text, ..) => Value::Text(text.to_string()),
        YamlData::Sequence(nodes) => {
            Value::List(nodes.iter().map(|node| read(node, depth + 1)).collect::<Result<_, _>>()?)
        }
        YamlData::Mapping(pairs) => {
            let read_pair = |(name, node): (&MarkedYaml, &MarkedYaml)| {
                let node = read(node, depth + 1)?;
                Ok(match read(name, depth + 1)?.value {
                    Value::Text(name) => Some((name, node)),
                    _ => None,
                })
            };
            let pairs: Result<Vec<_>, ImportError> = pairs.iter().map(read_pair).collect();
            Value::Map(pairs?.into_iter().flatten().collect())
        }
        YamlData::Tagged(_, node) => return read(node, depth + 1),
        YamlData::Alias(_) | YamlData::BadValue => Value::Null,
    };
    Ok(Node { line, value })
}

impl Node {
    /// The entries of a map.
    pub(super) fn entries(&self) -> &[(String, Node)] {
        if let Value::Map(pairs) = &self.value { pairs } else { &[] }
    }

    /// The members of a list.
    pub(super) fn members(&self) -> &[Node] {
        if let Value::List(nodes) = &self.value { nodes } else { &[] }
    }

    /// An entry of a map.
    pub(super) fn get(&self, name: &str) -> Option<&Node> {
        self.entries().iter().find(|(own, _)| own == name).map(|(_, node)| node)
    }

    /// The text that a value is.
    pub(super) fn text(&self) -> Option<&str> {
        if let Value::Text(text) = &self.value { Some(text) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_numbers_and_lines_are_read() {
        let text = "# head\na: 1\nb: [x, 'y: z', \"\\u00e9\"]\nc:\n  d: true\n  e: |\n    one\n    two\n---\n- 1.5\n- null\n";
        let documents = documents(text).unwrap();
        let [first, second] = documents.as_slice() else { panic!("{documents:?}") };
        assert_eq!(first.get("a").and_then(Node::text), Some("1"));
        let texts: Vec<_> = first.get("b").unwrap().members().iter().map(Node::text).collect();
        assert_eq!(texts, [Some("x"), Some("y: z"), Some("é")]);
        let inner = first.get("c").unwrap();
        assert_eq!(inner.get("e").and_then(Node::text), Some("one\ntwo\n"));
        assert_eq!((inner.line, inner.get("d").map(|node| node.line)), (5, Some(5)));
        assert_eq!(second.members().iter().map(Node::text).collect::<Vec<_>>(), [Some("1.5"), None]);
    }

    #[test]
    fn what_is_no_yaml_names_its_line_and_depth_ends() {
        assert_eq!(documents("a: 1\nb: [1, 2\n").unwrap_err().line, 3);
        for text in ["[".repeat(100_000), "- ".repeat(100_000), "? - ".repeat(100_000), "{a: ".repeat(1000)] {
            assert!(documents(&text).is_err());
        }
        let deep: String = (0..200).map(|depth| format!("{}a:\n", " ".repeat(depth))).collect();
        assert!(documents(&deep).unwrap_err().message.contains("inside one another"));
    }
}
