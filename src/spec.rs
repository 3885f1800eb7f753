//! Text in, checked values out: models, accelerators, clusters and jobs.

pub mod cluster;
pub mod job;
pub mod model;
pub mod shipped;

/// How every RON file of this crate is read: an optional field takes its bare value (`window: 4096`),
/// a variant takes the fields of its struct (`mixer: Attention(heads: 32, ...)`), nesting is bounded.
#[must_use]
pub fn ron_options() -> ron::Options {
    use ron::extensions::Extensions;
    ron::Options::default()
        .with_default_extension(Extensions::IMPLICIT_SOME | Extensions::UNWRAP_VARIANT_NEWTYPES)
        .with_recursion_limit(32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shipped_accelerators_and_clusters_are_valid() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("clusters");
        let mut accelerators = Vec::new();
        for entry in std::fs::read_dir(folder.join("accelerators")).unwrap() {
            let path = entry.unwrap().path();
            let text = std::fs::read_to_string(&path).unwrap();
            let value: cluster::Accelerator =
                ron_options().from_str(&text).unwrap_or_else(|e| panic!("{path:?}: {e}"));
            assert_eq!(value.validate(), Ok(()), "{path:?}");
            accelerators.push(path.file_stem().unwrap().to_str().unwrap().to_owned());
        }
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                continue;
            }
            let text = std::fs::read_to_string(&path).unwrap();
            let value: cluster::Cluster =
                ron_options().from_str(&text).unwrap_or_else(|e| panic!("{path:?}: {e}"));
            assert_eq!(value.validate(), Ok(()), "{path:?}");
            assert!(accelerators.contains(&value.accelerator), "{path:?}");
        }
    }
}
