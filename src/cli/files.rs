//! Reading tables, and writing files: whole or not at all, and never over an existing one unless asked.

use std::fs::File;
use std::io::ErrorKind;
use std::path::Path;

use super::Failure;
use crate::results::{Replacement, WriteError};

/// Opens a table of measured runs.
pub(crate) fn open_runs(path: &Path) -> Result<File, Failure> {
    let name = path.display();
    if path.is_dir() {
        return Err(Failure::Usage(format!("{name} is a folder, not a CSV file")));
    }
    File::open(path).map_err(|error| {
        Failure::Usage(match error.kind() {
            ErrorKind::NotFound => {
                format!("{name}: there is no such file; expected a CSV of measured runs (docs/measured.md)")
            }
            _ => format!("cannot read {name}: {error}"),
        })
    })
}

/// Checks that files can be created in a folder, before any work is done for them. One that is not there is made later,
/// in the nearest one above it that is.
pub(crate) fn check_folder(folder: &Path) -> Result<(), Failure> {
    let there = folder.ancestors().find(|above| above.symlink_metadata().is_ok()).unwrap_or(Path::new("."));
    if !there.exists() {
        return Err(Failure::Usage(format!("{} is a link to what is not there", there.display())));
    }
    if !there.is_dir() {
        return Err(Failure::Usage(format!("{} is not a folder", there.display())));
    }
    tempfile::tempfile_in(there)
        .map(drop)
        .map_err(|e| Failure::Usage(format!("cannot write into {}: {e}", there.display())))
}

/// Checks that a file may take a path, before any work is done for it.
pub(crate) fn check_place(path: &Path, force: bool) -> Result<(), Failure> {
    if path.is_dir() {
        return Err(Failure::Usage(format!("{} is a folder", path.display())));
    }
    // A link whose file is gone is there all the same.
    if path.symlink_metadata().is_ok() && !force {
        return Err(Failure::Usage(format!("{} exists; --force overwrites it", path.display())));
    }
    Ok(())
}

/// Checks that a file can be created, before any work is done for it.
pub(crate) fn check_file(path: &Path, force: bool) -> Result<(), Failure> {
    check_place(path, force)?;
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    check_folder(folder)
}

/// A file to be written.
pub(crate) struct Written<'a> {
    pub path: &'a Path,
    pub text: &'a str,
    pub executable: bool,
}

/// Writes a file by way of a temporary one beside it.
pub(crate) fn write(path: &Path, text: &str, force: bool) -> Result<(), Failure> {
    write_all(&[Written { path, text, executable: false }], force)
}

/// Writes files that belong together: none takes its place before the texts of all are on the disk.
pub(crate) fn write_all(files: &[Written<'_>], force: bool) -> Result<(), Failure> {
    let fail = |error: WriteError| Failure::Usage(error.to_string());
    for file in files {
        check_place(file.path, force)?;
    }
    let new = |file: &Written<'_>| Replacement::new(file.path, file.text, file.executable);
    let all = files.iter().map(new).collect::<Result<Vec<_>, _>>().map_err(fail)?;
    all.into_iter().try_for_each(Replacement::put).map_err(fail)
}
