//! Result files: what was planned for which scenario, kept in versioned files that an interrupted
//! writer cannot damage.
//!
//! A file is RON text for people to read and for [`crate::regress`] to compare. Its header has the
//! schema version, which is read before anything else, and a digest of the rest, which tells a file
//! that was edited by hand. Files are replaced whole: written beside, synchronised, renamed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::frameworks::Target;
use crate::plan::{Chunk, Layout, Plan, PlanLaw, Recompute};
use crate::spec::job::{Optimizer, Precision};
pub use crate::spec::sealed::SCHEMA;
use crate::spec::sealed::{check_schema, header, seal, unseal};
use crate::spec::{SpecError, parse_ron, read_text};

/// How files end that are not whole yet; they begin with a dot and six letters or digits.
const TEMPORARY: &str = ".tmp";
/// After this long no writer is still at it.
const STALE: Duration = Duration::from_secs(600);

/// What is best.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, Default)]
pub enum Objective {
    /// Least time per step.
    #[default]
    Time,
    /// Fewest dollars per step.
    Cost,
}

/// One planning task that is planned again and again, to see whether the answer changes.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Name of a shipped model.
    pub model: String,
    /// Names of shipped clusters; several leave the choice to the objective.
    pub clusters: Vec<String>,
    /// GPU counts; several leave the choice to the objective.
    pub gpus: Vec<u32>,
    /// Sequences per step.
    pub global_batch_size: u32,
    /// Tokens per sequence.
    pub sequence_length: u32,
    /// What is best.
    #[serde(default)]
    pub objective: Objective,
    /// Framework that has to accept the plan.
    #[serde(default = "megatron")]
    pub framework: String,
    /// Number format of the linear layers.
    #[serde(default = "bf16")]
    pub precision: Precision,
    /// Optimizer.
    #[serde(default = "adamw")]
    pub optimizer: Optimizer,
}

fn megatron() -> String {
    Target::Megatron.name().into()
}
fn bf16() -> Precision {
    Precision::Bf16
}
fn adamw() -> Optimizer {
    Optimizer::Adamw
}

impl Scenario {
    /// The scenario's name, from everything that distinguishes it; also its file's name.
    #[must_use]
    pub fn name(&self) -> String {
        let gpus: Vec<String> = self.gpus.iter().map(u32::to_string).collect();
        let mut name = format!(
            "{}_{}_{}gpu_b{}_s{}",
            self.model,
            self.clusters.join("+"),
            gpus.join("+"),
            self.global_batch_size,
            self.sequence_length
        );
        let target = self.framework.as_str();
        for (word, default) in [
            (target, Target::Megatron.name()),
            (self.precision.name(), Precision::Bf16.name()),
            (self.optimizer.name(), Optimizer::Adamw.name()),
        ] {
            if word != default {
                name = format!("{name}_{word}");
            }
        }
        if self.objective == Objective::Cost {
            name.push_str("_cost");
        }
        // A path may stand for a shipped name.
        name.replace(|c: char| !(c.is_ascii_alphanumeric() || "._+-".contains(c)), "-")
    }

    /// Checks sizes and words; whether model and clusters exist is seen when they are loaded.
    ///
    /// # Errors
    /// The field, the word that is wrong in it, and why.
    pub fn validate(&self) -> Result<(), ScenarioFault> {
        let fault = |field, word: String, message: String| Err(ScenarioFault { field, word, message });
        if self.clusters.is_empty() {
            return fault("clusters", String::new(), "at least one cluster is needed".into());
        }
        if self.gpus.is_empty() {
            return fault("gpus", String::new(), "at least one GPU count is needed".into());
        }
        if self.gpus.contains(&0) {
            return fault("gpus", "0".into(), "a job needs a GPU".into());
        }
        for (field, value) in
            [("global_batch_size", self.global_batch_size), ("sequence_length", self.sequence_length)]
        {
            if value == 0 {
                return fault(field, "0".into(), "must be at least 1".into());
            }
        }
        if Target::ALL.iter().all(|target| target.name() != self.framework) {
            let known: Vec<&str> = Target::ALL.iter().map(|target| target.name()).collect();
            let message = format!("`{}` is no framework; known are {}", self.framework, known.join(", "));
            return fault("framework", self.framework.clone(), message);
        }
        Ok(())
    }

    /// The framework; [`Self::validate`] has found it.
    #[must_use]
    pub fn target(&self) -> Option<Target> {
        Target::ALL.into_iter().find(|target| target.name() == self.framework)
    }
}

/// What is wrong with a scenario.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScenarioFault {
    /// Field as written in the file.
    pub field: &'static str,
    /// The offending word in it, if there is one.
    pub word: String,
    /// Why.
    pub message: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ScenarioFile {
    schema: u32,
    scenarios: Vec<Scenario>,
}

/// Reads a list of scenarios.
///
/// # Errors
/// What is wrong with the file, with its place.
pub fn read_scenarios(path: &Path) -> Result<Vec<Scenario>, SpecError> {
    scenarios_from_text(&path.display().to_string(), &read_text(path)?)
}

/// Reads a list of scenarios from text; `source` names it in errors.
///
/// # Errors
/// Syntax errors, another schema, impossible sizes, an empty list, the same scenario twice.
pub fn scenarios_from_text(source: &str, text: &str) -> Result<Vec<Scenario>, SpecError> {
    check_schema(source, text, "scenarios")?;
    let file: ScenarioFile = parse_ron(source, text)?;
    debug_assert_eq!(file.schema, SCHEMA);
    if file.scenarios.is_empty() {
        return Err(SpecError::new(source, "the file lists no scenario"));
    }
    let entries = entry_places(text);
    let place = |index: usize| entries.get(index).cloned().unwrap_or(0..1);
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    for (index, scenario) in file.scenarios.iter().enumerate() {
        if let Err(fault) = scenario.validate() {
            let entry = place(index);
            let inside = &text[entry.clone()];
            let at = inside.find(fault.field).map_or(entry.clone(), |at| {
                let start = entry.start + at;
                start..start + fault.field.len()
            });
            let title = format!("invalid `{}`: {}", fault.field, fault.message);
            let error = SpecError::new(source, title).mark(text, at, "");
            return Err(error.nearest(&fault.word, Target::ALL.iter().map(|target| target.name())));
        }
        if let Some(first) = seen.insert(scenario.name(), index) {
            let title = format!("the scenario {} is listed twice", scenario.name());
            return Err(SpecError::new(source, title).mark(text, place(index), "again here").mark(
                text,
                place(first),
                "first here",
            ));
        }
    }
    Ok(file.scenarios)
}

/// Byte ranges of the entries of a scenario list: brackets of depth two, outside strings and comments.
fn entry_places(text: &str) -> Vec<std::ops::Range<usize>> {
    let (mut places, mut depth, mut start) = (Vec::new(), 0usize, 0);
    let mut bytes = text.bytes().enumerate().peekable();
    while let Some((at, byte)) = bytes.next() {
        match byte {
            b'"' => while bytes.next().is_some_and(|(_, b)| b != b'"') {},
            b'/' if bytes.peek().is_some_and(|&(_, b)| b == b'/') => {
                while bytes.next().is_some_and(|(_, b)| b != b'\n') {}
            }
            b'(' | b'[' => {
                depth += 1;
                if depth == 3 {
                    start = at;
                }
            }
            b')' | b']' => {
                if depth == 3 {
                    places.push(start..at + 1);
                }
                depth = depth.saturating_sub(1);
            }
            _ => {}
        }
    }
    places
}

/// What planning a scenario gave.
#[expect(clippy::large_enum_variant, reason = "there is one a scenario")]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub enum Outcome {
    /// Plans, best first.
    Planned {
        /// The best.
        best: Planned,
        /// The next ones, which say how close the decision was.
        runners_up: Vec<Planned>,
    },
    /// Nothing fits.
    Infeasible {
        /// Why.
        reason: String,
    },
}

/// A plan and what was predicted of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Planned {
    /// Its one-line name.
    pub plan: String,
    /// Cluster that it runs on.
    pub cluster: String,
    /// GPUs that it uses.
    pub gpus: u32,
    /// Step time in picoseconds.
    pub step_time_ps: u64,
    /// Dollars per step.
    pub usd_per_step: f64,
    /// Peak memory of the fullest rank in bytes.
    pub memory_bytes: u64,
    /// Step time by item, in picoseconds; zero items are left out; the rest sum to the step time.
    pub time_ps: BTreeMap<String, u64>,
    /// Memory of the fullest rank by item; zero items are left out; the rest sum to it.
    pub memory: BTreeMap<String, u64>,
    /// The layout.
    pub layout: Layout,
    /// Layers and recomputation of the chunks, in model order, as runs of equal ones.
    pub chunks: Vec<ChunkRun>,
}

/// `count` chunks in a row with as many layers and the same recomputation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChunkRun {
    /// Chunks.
    pub count: u32,
    /// Layers of each.
    pub layers: u32,
    /// What they recompute.
    pub recompute: Recompute,
}

impl ChunkRun {
    /// Runs of equal chunks.
    #[must_use]
    pub fn of(chunks: &[Chunk]) -> Vec<Self> {
        let mut runs: Vec<Self> = Vec::new();
        for chunk in chunks {
            match runs.last_mut() {
                Some(run) if (run.layers, run.recompute) == (chunk.layers, chunk.recompute) => run.count += 1,
                _ => runs.push(Self { count: 1, layers: chunk.layers, recompute: chunk.recompute }),
            }
        }
        runs
    }
}

impl Planned {
    /// The plan itself, its laws checked again.
    ///
    /// # Errors
    /// The first law that it breaks.
    pub fn to_plan(&self, global_batch_size: u32, layers: u32) -> Result<Plan, PlanLaw> {
        let chunks = self.chunks.iter().flat_map(|run| {
            let chunk = Chunk { layers: run.layers, recompute: run.recompute };
            std::iter::repeat_n(chunk, run.count as usize)
        });
        // No plan has more chunks than ranks have layers; a made-up count must not fill the memory.
        let most = 1 + layers as usize * 64;
        Plan::new(self.layout, chunks.take(most).collect(), self.gpus, global_batch_size, layers)
    }

    fn sums(&self) -> Result<(), &'static str> {
        let total =
            |items: &BTreeMap<String, u64>| items.values().try_fold(0u64, |sum, &item| sum.checked_add(item));
        if total(&self.time_ps) != Some(self.step_time_ps) {
            return Err("the items of its step time do not sum to it");
        }
        if total(&self.memory) != Some(self.memory_bytes) {
            return Err("the items of its memory do not sum to it");
        }
        if !(self.usd_per_step.is_finite() && self.usd_per_step >= 0.0) {
            return Err("its price is no amount of money");
        }
        Ok(())
    }
}

/// The content of a result file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StoredResult {
    /// The program that wrote it, with its version.
    pub tool: String,
    /// What was planned.
    pub scenario: Scenario,
    /// What came out.
    pub outcome: Outcome,
}

/// A stored file that cannot be used.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{error}")]
pub struct ReadError {
    /// What is wrong with it, and where.
    pub error: SpecError,
    /// Whether writing it anew loses nothing. A newer autoplan's file must not be replaced.
    pub replaceable: bool,
}

impl From<SpecError> for ReadError {
    fn from(error: SpecError) -> Self {
        Self { error, replaceable: false }
    }
}

/// A file could not be written; the old one is as it was.
#[derive(Debug, thiserror::Error)]
#[error("cannot write {}: {why}; nothing was changed there", path.display())]
pub struct WriteError {
    /// The file.
    pub path: PathBuf,
    /// In words.
    why: String,
    /// What the system said.
    #[source]
    source: Option<io::Error>,
}

impl WriteError {
    fn io(path: &Path, source: io::Error) -> Self {
        let why = match source.kind() {
            io::ErrorKind::StorageFull => "the disk is full".into(),
            io::ErrorKind::QuotaExceeded => "the quota is used up".into(),
            io::ErrorKind::FileTooLarge => "the file would exceed the limit on file sizes".into(),
            io::ErrorKind::ReadOnlyFilesystem => "the file system is read-only".into(),
            io::ErrorKind::PermissionDenied => "no permission to write in this folder".into(),
            io::ErrorKind::NotFound => "the folder does not exist and cannot be made".into(),
            io::ErrorKind::NotADirectory => "a part of the path is no folder".into(),
            _ => source.to_string(),
        };
        Self { path: path.to_owned(), why, source: Some(source) }
    }
}

/// Replaces a file as a whole: a reader, or whoever kills this process, finds the old text or the new,
/// never a part. The text is written beside the file, synchronised with the disk, and renamed.
///
/// # Errors
/// [`WriteError`]; the old file is then untouched.
pub fn write_atomically(path: &Path, text: &str) -> Result<(), WriteError> {
    Replacement::write(path, text, None)?.put()
}

/// A file whose new text is on the disk and takes its place with [`Replacement::put`]; until then, and if it is dropped,
/// the old one stays.
#[derive(Debug)]
pub struct Replacement {
    path: PathBuf,
    folder: PathBuf,
    file: tempfile::NamedTempFile,
}

impl Replacement {
    /// Writes the text beside the file. Its permissions stay unless it is a program; new files are readable by all.
    ///
    /// # Errors
    /// [`WriteError`].
    pub fn new(path: &Path, text: &str, program: bool) -> Result<Self, WriteError> {
        Self::write(path, text, program.then_some(0o755))
    }

    fn write(path: &Path, text: &str, mode: Option<u32>) -> Result<Self, WriteError> {
        let folder = match path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        let write = || -> io::Result<tempfile::NamedTempFile> {
            std::fs::create_dir_all(folder)?;
            let mut file = tempfile::Builder::new().prefix(".").suffix(TEMPORARY).tempfile_in(folder)?;
            #[cfg(unix)]
            {
                // Temporary files are private; results are not.
                use std::os::unix::fs::PermissionsExt;
                let kept = || std::fs::metadata(path).map_or(0o644, |old| old.permissions().mode());
                let mode = mode.unwrap_or_else(kept);
                file.as_file().set_permissions(std::fs::Permissions::from_mode(mode))?;
            }
            #[cfg(not(unix))]
            let _ = mode;
            file.write_all(text.as_bytes())?;
            file.as_file().sync_all()?;
            Ok(file)
        };
        let file = write().map_err(|error| WriteError::io(path, error))?;
        Ok(Self { path: path.to_owned(), folder: folder.to_owned(), file })
    }

    /// Puts the new text in place.
    ///
    /// # Errors
    /// [`WriteError`]; the old file is then untouched.
    pub fn put(self) -> Result<(), WriteError> {
        let Self { path, folder, file } = self;
        let put = || -> io::Result<()> {
            file.persist(&path).map_err(|error| error.error)?;
            // The rename is durable once the folder is; systems that cannot synchronise folders say so.
            #[cfg(unix)]
            File::open(&folder)?.sync_all().or_else(|error| {
                if error.kind() == io::ErrorKind::InvalidInput { Ok(()) } else { Err(error) }
            })?;
            Ok(())
        };
        put().map_err(|error| WriteError::io(&path, error))
    }
}

/// A folder of result files.
#[derive(Debug, Clone)]
pub struct Store {
    folder: PathBuf,
}

impl Store {
    /// The result files in a folder, which need not exist yet.
    #[must_use]
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into() }
    }

    /// The file of a scenario.
    #[must_use]
    pub fn path(&self, scenario: &str) -> PathBuf {
        self.folder.join(format!("{scenario}.ron"))
    }

    /// Names of all scenarios that have a file, sorted.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn names(&self) -> Result<BTreeSet<String>, SpecError> {
        let fail = |error: io::Error| SpecError::new(self.folder.display().to_string(), error.to_string());
        let entries = match std::fs::read_dir(&self.folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeSet::new()),
            entries => entries.map_err(fail)?,
        };
        let mut names = BTreeSet::new();
        for entry in entries {
            let name = entry.map_err(fail)?.file_name();
            if let Some(name) = name.to_str().and_then(|name| name.strip_suffix(".ron"))
                && !name.starts_with('.')
            {
                names.insert(name.to_owned());
            }
        }
        Ok(names)
    }

    /// Reads a scenario's result; none where there is no file.
    ///
    /// # Errors
    /// Unreadable, damaged, edited, older and newer files, each with its place.
    pub fn read(&self, scenario: &str) -> Result<Option<StoredResult>, ReadError> {
        let path = self.path(scenario);
        read_stored(&path, |source, text| result_from_text(source, scenario, text))
    }

    /// Writes a scenario's result if it differs from the file; says whether it did.
    ///
    /// # Errors
    /// [`WriteError`]; the old file is then untouched.
    pub fn write(&self, result: &StoredResult) -> Result<bool, WriteError> {
        let path = self.path(&result.scenario.name());
        let text =
            seal(result).map_err(|e| WriteError { path: path.clone(), why: e.to_string(), source: None })?;
        write_if_changed(&path, &text)
    }

    /// Removes what writers that were killed have left, once they cannot be running any more.
    pub fn sweep(&self) {
        let Ok(entries) = std::fs::read_dir(&self.folder) else { return };
        for entry in entries.flatten() {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            let ours =
                name.strip_prefix('.').and_then(|name| name.strip_suffix(TEMPORARY)).is_some_and(|random| {
                    random.len() == 6 && random.bytes().all(|byte| byte.is_ascii_alphanumeric())
                });
            let age = entry.metadata().and_then(|about| about.modified()).map(|at| at.elapsed());
            if ours && matches!(age, Ok(Ok(age)) if age > STALE) {
                // Where it cannot be removed it does no harm.
                let _ = std::fs::remove_file(entry.path());
            }
        }
    }

    /// Makes sure that files can be written, before hours of work depend on it.
    ///
    /// # Errors
    /// [`WriteError`].
    pub fn check_writable(&self) -> Result<(), WriteError> {
        let probe = || -> io::Result<()> {
            std::fs::create_dir_all(&self.folder)?;
            tempfile::Builder::new().prefix(".").suffix(TEMPORARY).tempfile_in(&self.folder)?.close()
        };
        probe().map_err(|error| WriteError::io(&self.folder, error))
    }
}

/// Reads a stored file; none where there is no file.
fn read_stored<T>(
    path: &Path,
    parse: impl Fn(&str, &str) -> Result<T, SpecError>,
) -> Result<Option<T>, ReadError> {
    // A file that is there and cannot be read is an error, a dangling link too.
    match std::fs::symlink_metadata(path) {
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(None);
        }
        _ => {}
    }
    let text = match read_text(path) {
        Ok(text) => text,
        // Not text: damaged. Anything else that the system refuses is not for us to replace.
        Err(error) => {
            return Err(ReadError { replaceable: File::open(path).is_ok() && path.is_file(), error });
        }
    };
    parse(&path.display().to_string(), &text).map(Some).map_err(|error| {
        let newer = header(&text).is_some_and(|schema| schema > SCHEMA);
        ReadError { error, replaceable: !newer }
    })
}

/// Writes a file atomically if its content is not this text already; says whether it did.
///
/// # Errors
/// [`WriteError`]; the old file is then untouched.
pub fn write_if_changed(path: &Path, text: &str) -> Result<bool, WriteError> {
    if std::fs::read(path).is_ok_and(|old| old == text.as_bytes()) {
        return Ok(false);
    }
    write_atomically(path, text)?;
    Ok(true)
}

/// Reads a result file's text; `source` names it in errors, `scenario` is what it has to be about.
///
/// # Errors
/// Damaged, edited, older and newer files, each with its place.
pub fn result_from_text(source: &str, scenario: &str, text: &str) -> Result<StoredResult, SpecError> {
    let result: StoredResult = unseal(source, text, "results")?;
    let name = result.scenario.name();
    if name != scenario {
        return Err(SpecError::new(source, format!("this is the result of the scenario {name}"))
            .help(format!("rename the file to {name}.ron, or write it anew with --update")));
    }
    if let Outcome::Planned { best, runners_up } = &result.outcome {
        for planned in std::iter::once(best).chain(runners_up) {
            if let Err(why) = planned.sums() {
                return Err(SpecError::new(source, format!("the plan {}: {why}", planned.plan)));
            }
        }
    }
    Ok(result)
}

/// The text of a result file.
///
/// # Errors
/// A value that the format cannot hold.
pub fn result_to_text(result: &StoredResult) -> Result<String, ron::Error> {
    seal(result)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What was written and not put in place changes nothing, and leaves nothing behind.
    #[test]
    fn a_replacement_that_is_dropped_leaves_the_old_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("file");
        write_atomically(&path, "old").expect("is written");
        drop(Replacement::new(&path, "new", false).expect("is written"));
        assert_eq!(std::fs::read_to_string(&path).expect("is there"), "old");
        assert_eq!(std::fs::read_dir(folder.path()).expect("is there").count(), 1);
        Replacement::new(&path, "new", false).and_then(Replacement::put).expect("is put in place");
        assert_eq!(std::fs::read_to_string(&path).expect("is there"), "new");
        assert_eq!(std::fs::read_dir(folder.path()).expect("is there").count(), 1);
    }
}
