//! Writing files: whole or not at all, and never over an existing one unless asked.

use std::io::Write;
use std::path::Path;

use super::Failure;

/// Checks that files can be created in a folder, before any work is done for them.
pub(crate) fn check_folder(folder: &Path) -> Result<(), Failure> {
    if folder.is_dir() {
        return tempfile::tempfile_in(folder)
            .map(drop)
            .map_err(|e| Failure::Usage(format!("cannot write into {}: {e}", folder.display())));
    }
    if folder.exists() {
        return Err(Failure::Usage(format!("{} is not a folder", folder.display())));
    }
    Ok(())
}

/// Writes a file by way of a temporary one beside it.
pub(crate) fn write(path: &Path, text: &str, executable: bool, force: bool) -> Result<(), Failure> {
    if path.exists() && !force {
        return Err(Failure::Usage(format!("{} exists; --force overwrites it", path.display())));
    }
    let failed = |e: std::io::Error| Failure::Usage(format!("cannot write {}: {e}", path.display()));
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder).map_err(failed)?;
    let mut file = tempfile::NamedTempFile::new_in(folder).map_err(failed)?;
    file.write_all(text.as_bytes()).map_err(failed)?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let mode = if executable { 0o755 } else { 0o644 };
        file.as_file().set_permissions(std::fs::Permissions::from_mode(mode)).map_err(failed)?;
    }
    #[cfg(not(unix))]
    let _ = executable;
    file.as_file().sync_all().map_err(failed)?;
    file.persist(path).map_err(|e| failed(e.error))?;
    Ok(())
}
