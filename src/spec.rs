//! Text in, checked values out: models, accelerators, clusters and jobs.
//!
//! The functions here are the only ones of the library that read specification files. An argument is
//! the name of a shipped file or a path; whatever is wrong with it comes back as a [`SpecError`] that
//! says where.

pub mod cluster;
pub mod diagnostic;
pub mod hf;
pub mod job;
pub(crate) mod json;
pub mod measured;
pub mod model;
pub mod saved;
mod scan;
pub mod sealed;
pub mod shipped;
pub mod special;

use std::io::Read;
use std::path::{Path, PathBuf};

pub use diagnostic::{SpecError, parse_ron};

use cluster::{Accelerator, Cluster};
use model::{Fault, Model};
use shipped::Kind;

/// Largest specification that is read, in bytes; real ones are a few kilobytes.
pub const LARGEST_FILE: u64 = 4_000_000;

/// How every RON file of this crate is read: an optional field takes its bare value (`window: 4096`),
/// a variant takes the fields of its struct (`mixer: Attention(heads: 32, ...)`), nesting is bounded.
#[must_use]
pub fn ron_options() -> ron::Options {
    use ron::extensions::Extensions;
    ron::Options::default()
        .with_default_extension(Extensions::IMPLICIT_SOME | Extensions::UNWRAP_VARIANT_NEWTYPES)
        .with_recursion_limit(32)
}

/// A cluster together with its accelerator, both checked.
#[derive(Debug, Clone, PartialEq)]
pub struct Machine {
    /// Nodes, network, prices.
    pub cluster: Cluster,
    /// Each of its GPUs.
    pub accelerator: Accelerator,
}

/// Text of a specification and where it came from.
struct Source {
    /// Path or shipped name, for messages.
    name: String,
    /// The file; none for a shipped one.
    path: Option<PathBuf>,
    text: String,
}

/// Loads a model: a shipped name, a `.ron` file or a Hugging Face `config.json`.
///
/// # Errors
/// What is wrong with the argument, the file or its contents.
pub fn load_model(argument: &str) -> Result<Model, SpecError> {
    let source = open(Kind::Model, argument, None)?;
    model_from_text(&source.name, &source.text)
}

/// Loads a cluster and its accelerator: a shipped name or a `.ron` file. The accelerator of a file may
/// be a path relative to it.
///
/// # Errors
/// What is wrong with the argument, the files or their contents.
pub fn load_cluster(argument: &str) -> Result<Machine, SpecError> {
    let source = open(Kind::Cluster, argument, None)?;
    let cluster = cluster_from_text(&source.name, &source.text)?;
    let folder = source.path.as_deref().and_then(Path::parent);
    let wanted = &cluster.accelerator;
    let beside = open(Kind::Accelerator, wanted, folder).map_err(|error| {
        let near = Kind::Accelerator.all();
        let message = if error.title() == "no such file" {
            format!(
                "no such file as `{}`",
                folder.map_or_else(|| wanted.into(), |f| f.join(wanted)).display()
            )
        } else {
            error.to_string()
        };
        let fault = Fault { field: "accelerator".into(), within: None, message };
        SpecError::from_fault(&source.name, &source.text, &fault)
            .nearest(wanted, near.iter().map(|shipped| shipped.name))
            .note(format!("shipped accelerators are {}", names(Kind::Accelerator)))
    })?;
    let mut accelerator = accelerator_from_text(&beside.name, &beside.text)?;
    if let Some(cap) = cluster.energy.power_cap {
        let capped = accelerator.capped(cap);
        accelerator = capped.map_err(|fault| SpecError::from_fault(&source.name, &source.text, &fault))?;
    }
    Ok(Machine { cluster, accelerator })
}

/// Loads an accelerator: a shipped name or a `.ron` file.
///
/// # Errors
/// What is wrong with the argument, the file or its contents.
pub fn load_accelerator(argument: &str) -> Result<Accelerator, SpecError> {
    let source = open(Kind::Accelerator, argument, None)?;
    accelerator_from_text(&source.name, &source.text)
}

/// Reads a model from RON text, or from the JSON text of a Hugging Face configuration; `source` names it
/// in errors.
///
/// # Errors
/// Syntax errors and faults, each with its place.
pub fn model_from_text(source: &str, text: &str) -> Result<Model, SpecError> {
    if is_json(source, text) {
        return hf_from_text(source, text).map(|import| import.model);
    }
    checked(Kind::Model, source, text, Model::validate)
}

/// Loads a Hugging Face `config.json` with what was assumed while reading it.
///
/// # Errors
/// What is wrong with the file or its contents.
pub fn load_hf(path: &Path) -> Result<hf::Import, SpecError> {
    hf_from_text(&path.display().to_string(), &read_text(path)?)
}

/// A model's name is that of its file, or of the folder where the file is a plain `config.json`.
fn hf_from_text(source: &str, text: &str) -> Result<hf::Import, SpecError> {
    let path = Path::new(source);
    let stem = |path: &Path| path.file_stem().and_then(|stem| stem.to_str()).map(str::to_owned);
    let name = match stem(path) {
        Some(name) if name != "config" => Some(name),
        _ => path.parent().and_then(Path::file_name).and_then(|name| name.to_str()).map(str::to_owned),
    };
    hf::import_with_notes(text, &name.unwrap_or_default()).map_err(|error| error.in_source(source))
}

/// A model in RON begins with `(`, a JSON object with `{`.
fn is_json(source: &str, text: &str) -> bool {
    text.trim_start().starts_with('{')
        || Path::new(source).extension().is_some_and(|extension| extension.eq_ignore_ascii_case("json"))
}

/// Reads a cluster (without its accelerator) from RON text.
///
/// # Errors
/// Syntax errors and faults, each with its place.
pub fn cluster_from_text(source: &str, text: &str) -> Result<Cluster, SpecError> {
    checked(Kind::Cluster, source, text, Cluster::validate)
}

/// Reads an accelerator from RON text.
///
/// # Errors
/// Syntax errors and faults, each with its place.
pub fn accelerator_from_text(source: &str, text: &str) -> Result<Accelerator, SpecError> {
    checked(Kind::Accelerator, source, text, Accelerator::validate)
}

fn checked<T: serde::de::DeserializeOwned>(
    kind: Kind,
    source: &str,
    text: &str,
    validate: impl Fn(&T) -> Result<(), Fault>,
) -> Result<T, SpecError> {
    let value = parse_ron(source, text).map_err(|error| match saved::kind_of(text) {
        Some(found) if found != kind.called() => {
            let error = SpecError::new(source, format!("this is {found}, no {}", kind.word()));
            match found {
                saved::SAVED_PLAN => {
                    error.help("`autoplan check`, `explain`, `export` and `compare` read it")
                }
                _ => error,
            }
        }
        _ => error,
    })?;
    validate(&value).map_err(|fault| SpecError::from_fault(source, text, &fault))?;
    Ok(value)
}

fn names(kind: Kind) -> String {
    let all = kind.all();
    diagnostic::list(&all.iter().map(|shipped| shipped.name).collect::<Vec<_>>(), "and")
}

/// Finds what an argument means: a path if it looks like one, else a shipped name, else a path.
fn open(kind: Kind, argument: &str, folder: Option<&Path>) -> Result<Source, SpecError> {
    let path = folder.map_or_else(|| PathBuf::from(argument), |folder| folder.join(argument));
    let extension = Path::new(argument).extension().and_then(|e| e.to_str()).unwrap_or_default();
    let written_as_path = argument.contains(['/', '\\'])
        || ["ron", "json", "yaml", "yml", "toml"].iter().any(|e| extension.eq_ignore_ascii_case(e));
    if !written_as_path {
        if let Some(shipped) = kind.find(argument) {
            let name = format!("{}/{}.ron", kind.folder(), shipped.name);
            return Ok(Source { name, path: None, text: shipped.text.to_owned() });
        }
        if !path.exists() {
            return Err(unknown(kind, argument));
        }
    }
    match read_text(&path) {
        Ok(text) => Ok(Source { name: path.display().to_string(), path: Some(path), text }),
        Err(error) if !path.exists() => {
            // `meta-llama/Llama-3.1-8B` or `dgx-h100.ron` may mean a shipped one.
            let last = argument.rsplit(['/', '\\']).next().unwrap_or(argument);
            let last = last.strip_suffix(".ron").unwrap_or(last);
            Err(error.nearest(last, kind.all().iter().map(|shipped| shipped.name)))
        }
        Err(error) => Err(error),
    }
}

fn unknown(kind: Kind, argument: &str) -> SpecError {
    let word = kind.word();
    if argument.trim().is_empty() {
        return SpecError::new("", format!("the name of the {word} is empty"));
    }
    let error = SpecError::new("", format!("no {word} `{argument}` ships, and no file has that name"));
    if let Some(other) = Kind::of(argument) {
        return error.help(format!("`{argument}` is {}, no {word}", other.called()));
    }
    let error = error.nearest(argument, kind.all().iter().map(|shipped| shipped.name));
    match kind {
        Kind::Accelerator => error.note(format!("shipped accelerators are {}", names(kind))),
        _ => error
            .help(format!("`autoplan {word}s` lists all shipped {word}s; a file may be given by its path")),
    }
}

/// Reads a text file whole: UTF-8, at most [`LARGEST_FILE`] bytes, a byte-order mark dropped.
///
/// # Errors
/// Missing files, folders, files that are too large, and what is not text.
pub fn read_text(path: &Path) -> Result<String, SpecError> {
    let name = path.display().to_string();
    let fail = |title: String| SpecError::new(name.clone(), title);
    if path.is_dir() {
        let inside = path.join("config.json");
        let error = fail("this is a folder; a file was expected".into());
        return Err(if inside.is_file() {
            error.help(format!("did you mean `{}`?", inside.display()))
        } else {
            error
        });
    }
    let file = std::fs::File::open(path).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => fail("no such file".into()),
        std::io::ErrorKind::PermissionDenied => fail("no permission to read this file".into()),
        _ => fail(format!("cannot be read: {error}")),
    })?;
    text_of(&name, file)
}

/// What standard input is called in errors.
pub const STANDARD_INPUT: &str = "<stdin>";

/// Reads standard input as [`read_text`] does a file.
///
/// # Errors
/// As [`read_text`].
pub fn read_standard_input() -> Result<String, SpecError> {
    text_of(STANDARD_INPUT, std::io::stdin().lock())
}

/// The text of a source of that name.
fn text_of(name: &str, source: impl Read) -> Result<String, SpecError> {
    let fail = |title: String| SpecError::new(name, title);
    let mut bytes = Vec::new();
    let read = source.take(LARGEST_FILE + 1).read_to_end(&mut bytes);
    read.map_err(|error| fail(format!("cannot be read: {error}")))?;
    if bytes.len() as u64 > LARGEST_FILE {
        let title = format!("larger than {} MB; no specification is", LARGEST_FILE / 1_000_000);
        return Err(fail(title).note("specifications are a few kilobytes of text"));
    }
    if bytes.starts_with(&[0xff, 0xfe]) || bytes.starts_with(&[0xfe, 0xff]) {
        return Err(fail("the text is UTF-16; UTF-8 was expected".into()).help("save it as UTF-8"));
    }
    if let Some(at) = bytes.iter().position(|&b| b == 0) {
        return Err(fail(format!("not a text file: byte {at} is zero")));
    }
    let text = String::from_utf8(bytes).map_err(|error| {
        fail(format!("not UTF-8 text: byte {} is invalid", error.utf8_error().valid_up_to()))
    })?;
    Ok(text.strip_prefix('\u{feff}').map_or_else(|| text.clone(), str::to_owned))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shipped_accelerators_and_clusters_are_valid() {
        for shipped in shipped::accelerators() {
            load_accelerator(shipped.name).unwrap_or_else(|e| panic!("{}", e.render(false)));
        }
        for shipped in shipped::clusters() {
            load_cluster(shipped.name).unwrap_or_else(|e| panic!("{}", e.render(false)));
        }
    }
}
