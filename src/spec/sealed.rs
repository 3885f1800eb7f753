//! Files that hold results: a schema version, which is read before anything else, and a digest of the content, which
//! tells a file that was changed by hand.

use ron::ser::PrettyConfig;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{SpecError, parse_ron, ron_options};

/// Version of the format of stored results, scenarios and accuracy.
pub const SCHEMA: u32 = 1;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Sealed<T> {
    schema: u32,
    digest: String,
    content: T,
}

#[derive(Deserialize)]
struct SchemaOnly {
    schema: u32,
}

/// The schema version, whatever else the text holds.
pub(crate) fn header(text: &str) -> Option<u32> {
    ron_options().from_str::<SchemaOnly>(text).ok().map(|header| header.schema)
}

/// Reads the schema version, whatever else the file holds, and refuses all but this build's.
pub(crate) fn check_schema(source: &str, text: &str, what: &str) -> Result<(), SpecError> {
    // A file too broken for its header is reported by the full parser.
    let Some(schema) = header(text) else { return Ok(()) };
    let at = text.find("schema").map_or(0..0, |at| at..at + "schema".len());
    let error = |title| SpecError::new(source, title).mark(text, at, "");
    match schema.cmp(&SCHEMA) {
        std::cmp::Ordering::Equal => Ok(()),
        std::cmp::Ordering::Greater => {
            let title = format!("these {what} have schema {schema}; this autoplan reads schema {SCHEMA}");
            Err(error(title).help("they were written by a newer autoplan: update this one"))
        }
        std::cmp::Ordering::Less => {
            let title = format!("these {what} have schema {schema}; this autoplan reads schema {SCHEMA}");
            Err(error(title)
                .help("they are older than this autoplan: write them anew with `autoplan regress --update`"))
        }
    }
}

/// A digest of the content: what an edit by hand does not keep.
fn digest<T: Serialize>(content: &T) -> Result<String, ron::Error> {
    let text = ron_options().to_string(content)?;
    let hash = Sha256::digest(text.as_bytes());
    Ok(hash.iter().take(16).map(|byte| format!("{byte:02x}")).collect())
}

/// The text of a file.
///
/// # Errors
/// A value that the format cannot hold.
pub(crate) fn seal<T: Serialize>(content: &T) -> Result<String, ron::Error> {
    let sealed = Sealed { schema: SCHEMA, digest: digest(content)?, content };
    let pretty = PrettyConfig::new().struct_names(false).separate_tuple_members(false);
    let mut text = ron_options().to_string_pretty(&sealed, pretty)?;
    text.push('\n');
    Ok(text)
}

/// Reads the text of a file of `what`.
///
/// # Errors
/// Another schema, what is wrong with the text, or a content that its digest is not of.
pub(crate) fn unseal<T: Serialize + DeserializeOwned>(
    source: &str,
    text: &str,
    what: &str,
) -> Result<T, SpecError> {
    check_schema(source, text, what)?;
    let sealed: Sealed<T> = parse_ron(source, text).map_err(|error| {
        error.help("restore the file from version control, or write it anew with --update")
    })?;
    let found = digest(&sealed.content).map_err(|e| SpecError::new(source, e.to_string()))?;
    if found != sealed.digest {
        let at = text.find("digest").map_or(0..0, |at| at..at + "digest".len());
        return Err(SpecError::new(
            source,
            "the content does not match its digest: the file was changed by hand",
        )
        .mark(text, at, format!("the content's digest is {found}"))
        .help("restore the file from version control, or write it anew with --update"));
    }
    Ok(sealed.content)
}
