//! Shipped specifications, embedded in the binary so that it works from any folder.

use include_dir::{Dir, include_dir};

static MODELS: Dir = include_dir!("$CARGO_MANIFEST_DIR/models");
static CLUSTERS: Dir = include_dir!("$CARGO_MANIFEST_DIR/clusters");

/// One shipped file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shipped {
    /// Name as users type it: the file name without `.ron`.
    pub name: &'static str,
    /// Contents.
    pub text: &'static str,
}

/// What kinds of files ship.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `models/*.ron`
    Model,
    /// `clusters/*.ron`
    Cluster,
    /// `clusters/accelerators/*.ron`
    Accelerator,
}

impl Kind {
    /// The folder of the repository that holds these files.
    #[must_use]
    pub fn folder(self) -> &'static str {
        match self {
            Self::Model => "models",
            Self::Cluster => "clusters",
            Self::Accelerator => "clusters/accelerators",
        }
    }
    /// The word for it in messages.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Model => "model",
            Self::Cluster => "cluster",
            Self::Accelerator => "accelerator",
        }
    }
    /// The same after its article.
    #[must_use]
    pub fn called(self) -> &'static str {
        match self {
            Self::Model => "a model",
            Self::Cluster => "a cluster",
            Self::Accelerator => "an accelerator",
        }
    }
    /// The kind of the shipped file of this name.
    #[must_use]
    pub fn of(name: &str) -> Option<Self> {
        [Self::Model, Self::Cluster, Self::Accelerator].into_iter().find(|kind| kind.find(name).is_some())
    }
    /// All shipped files of this kind, sorted by name.
    #[must_use]
    pub fn all(self) -> Vec<Shipped> {
        match self {
            Self::Model => models(),
            Self::Cluster => clusters(),
            Self::Accelerator => accelerators(),
        }
    }
    /// The shipped file of this name; upper and lower case are the same.
    #[must_use]
    pub fn find(self, name: &str) -> Option<Shipped> {
        self.all().into_iter().find(|shipped| shipped.name.eq_ignore_ascii_case(name))
    }
}

/// All shipped models, sorted by name.
#[must_use]
pub fn models() -> Vec<Shipped> {
    files(&MODELS)
}

/// All shipped clusters, sorted by name.
#[must_use]
pub fn clusters() -> Vec<Shipped> {
    files(&CLUSTERS)
}

/// All shipped accelerators, sorted by name.
#[must_use]
pub fn accelerators() -> Vec<Shipped> {
    CLUSTERS.get_dir("accelerators").map(files).unwrap_or_default()
}

fn files(dir: &'static Dir<'static>) -> Vec<Shipped> {
    let mut found: Vec<Shipped> = dir
        .files()
        .filter(|file| file.path().extension().is_some_and(|extension| extension == "ron"))
        .filter_map(|file| {
            let name = file.path().file_stem()?.to_str()?;
            Some(Shipped { name, text: file.contents_utf8()? })
        })
        .collect();
    found.sort_by_key(|shipped| shipped.name);
    found
}

/// The candidates nearest to a misspelt name, best first, at most three; clearly worse ones than the
/// best are left out.
///
/// Case, spaces and separators do not count; a candidate that contains the name (or the reverse)
/// counts as near.
#[must_use]
pub fn nearest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    let plain = |text: &str| -> String {
        text.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).take(64).collect()
    };
    let wanted = plain(name);
    let mut scored: Vec<(f64, &str)> = candidates
        .into_iter()
        .map(|candidate| {
            let have = plain(candidate);
            let mut score = strsim::jaro_winkler(&wanted, &have)
                .max(strsim::normalized_damerau_levenshtein(&wanted, &have));
            if wanted.len() >= 3 && (have.contains(&wanted) || wanted.contains(&have)) && have.len() >= 2 {
                score = score.max(0.9);
            }
            (score, candidate)
        })
        .filter(|&(score, _)| score >= 0.75)
        .collect();
    scored.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| a.1.cmp(b.1)));
    let best = scored.first().map_or(1.0, |&(score, _)| score);
    scored.retain(|&(score, _)| score >= if best > 0.999 { best } else { best - 0.07 });
    scored.truncate(3);
    scored.into_iter().map(|(_, candidate)| candidate).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_names_ignore_case_and_separators() {
        let names = ["dgx-h100", "dgx-h200", "h800-ib", "mi300x-roce", "l40s-pcie"];
        assert_eq!(nearest("DGX_H100", names)[0], "dgx-h100");
        assert_eq!(nearest("mi300", names), ["mi300x-roce"]);
        assert_eq!(nearest("zzz", names), Vec::<&str>::new());
    }

    #[test]
    fn shipped_files_are_found_by_name() {
        assert_eq!(Kind::Cluster.find("DGX-H100").map(|s| s.name), Some("dgx-h100"));
        assert_eq!(Kind::Accelerator.find("h100-sxm").map(|s| s.name), Some("h100-sxm"));
        assert_eq!(Kind::Cluster.find("h100-sxm"), None);
    }
}
