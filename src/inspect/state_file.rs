//! The state file: the last known good state of this host, on its disk.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use crate::lease::Saved;
use crate::os::files::{self, FileError};

/// Why the state file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StateFileError {
    #[error("only root may read {path}: try sudo", path = .0.display())]
    Denied(PathBuf),
    #[error("read {path}: {error}", path = path.display())]
    Unreadable { path: PathBuf, error: io::Error },
    /// The file is damaged, or not a state file.
    #[error("{path}: {reason}", path = path.display())]
    Damaged { path: PathBuf, reason: String },
}

/// The state at `path`; `None` if there is no such file.
///
/// # Errors
/// [`StateFileError`].
pub fn read(path: &Path) -> Result<Option<Saved>, StateFileError> {
    let text = match fs::read(path) {
        Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            return Err(StateFileError::Denied(path.to_owned()));
        }
        Err(error) => return Err(StateFileError::Unreadable { path: path.to_owned(), error }),
    };
    let damaged = |reason| StateFileError::Damaged { path: path.to_owned(), reason };
    Saved::from_text(&text).map(Some).map_err(damaged)
}

/// As [`read`]; a damaged file is renamed to `PATH.damaged`, so that the next [`write`] does not
/// destroy it.
///
/// # Errors
/// [`StateFileError`]; the reason includes the new name.
pub fn take(path: &Path) -> Result<Option<Saved>, StateFileError> {
    read(path).map_err(|error| {
        let StateFileError::Damaged { path, reason } = error else { return error };
        let mut moved = path.clone().into_os_string();
        moved.push(".damaged");
        let moved = PathBuf::from(moved);
        let reason = match fs::rename(&path, &moved) {
            Ok(()) => format!("ignored: {reason}; it was moved to {}", moved.display()),
            Err(error) => format!("ignored: {reason}; moving it to {}: {error}", moved.display()),
        };
        StateFileError::Damaged { path, reason }
    })
}

/// Replaces the file at `path` atomically; mode 0600.
///
/// # Errors
/// [`FileError`].
pub fn write(path: &Path, state: &Saved) -> Result<(), FileError> {
    files::replace(path, state.to_text().as_bytes(), 0o600)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::lease::saved::tests::saved;

    #[test]
    fn the_state_is_read_back_as_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state.json");
        assert_eq!(read(&path).unwrap(), None);
        write(&path, &saved()).unwrap();
        assert_eq!(read(&path).unwrap(), Some(saved()));
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "no temporary file remains");
        serde_json::from_slice::<serde_json::Value>(&fs::read(&path).unwrap()).unwrap();
    }

    #[test]
    fn a_damaged_file_is_reported_and_renamed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state.json");
        fs::write(&path, "garbage").unwrap();
        assert!(read(&path).is_err());
        assert!(path.exists(), "read changes nothing");
        let error = take(&path).unwrap_err().to_string();
        assert!(error.contains("ignored: it is no state of humanz"), "{error}");
        assert!(!path.exists());
        assert_eq!(fs::read(folder.path().join("state.json.damaged")).unwrap(), b"garbage");
    }

    #[test]
    fn errors_include_the_path() {
        let folder = tempfile::tempdir().unwrap();
        let error = take(folder.path()).unwrap_err().to_string();
        assert!(error.starts_with(&format!("read {}: Is a directory", folder.path().display())));
        let path = folder.path().join("state.json");
        fs::create_dir(&path).unwrap();
        let error = write(&path, &saved()).unwrap_err().to_string();
        assert!(error.contains(&path.display().to_string()), "{error}");
    }
}
