//! Which sources are one publication: prefixes of ids whose rows name the same one in the column `source`. They share authors
//! and machines, so that none says anything about another that it was not fitted to.

use std::collections::BTreeMap;

use super::case::Labels;

/// The first source, in alphabetical order, that is one publication with a source, directly or through others.
#[derive(Debug, Default)]
struct Publications {
    /// By source: one that is joined with it, and before it.
    joined: BTreeMap<String, String>,
}

impl Publications {
    fn first<'p>(&'p self, mut source: &'p str) -> &'p str {
        while let Some(before) = self.joined.get(source) {
            source = before;
        }
        source
    }

    fn join(&mut self, a: &str, b: &str) {
        let (a, b) = (self.first(a).to_owned(), self.first(b).to_owned());
        if a != b {
            let (before, after) = if a < b { (a, b) } else { (b, a) };
            self.joined.insert(after, before);
        }
    }
}

/// Tells labels of rows which publication they are of.
pub(super) fn join<'l>(labels: impl Iterator<Item = &'l mut Labels>) {
    let mut labels: Vec<&mut Labels> = labels.collect();
    let mut publications = Publications::default();
    let mut sources: BTreeMap<&str, &str> = BTreeMap::new();
    for row in labels.iter().filter(|row| !row.published.is_empty()) {
        let first = *sources.entry(&row.published).or_insert(&row.source);
        if first != row.source {
            publications.join(first, &row.source);
        }
    }
    for row in &mut labels {
        publications.first(&row.source).clone_into(&mut row.publication);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_that_name_one_publication_are_one() {
        let rows =
            [("b", "paper"), ("a", "paper"), ("a", "site"), ("c", "site"), ("d", ""), ("e", ""), ("f", "x")];
        let mut labels = rows.map(|(source, published)| Labels {
            source: source.to_owned(),
            published: published.to_owned(),
            ..Labels::default()
        });
        join(labels.iter_mut());
        assert_eq!(labels.map(|row| row.publication), ["a", "a", "a", "a", "d", "e", "f"]);
    }
}
