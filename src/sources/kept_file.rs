//! Files in which this host keeps what its sources said, for its next start.

use std::io::{self, Read};
use std::path::Path;

use serde::de::DeserializeOwned;

use crate::os::files;

/// What the file at `path` holds; `None` if there is none, or none that can be used, which is logged.
pub fn read<T: DeserializeOwned>(path: &Path) -> Option<T> {
    let bytes = match files::found(contents(path)) {
        Ok(bytes) => bytes?,
        Err(error) => {
            log::error!("read {}: {error}", path.display());
            return None;
        }
    };
    match serde_json::from_slice(&bytes) {
        Ok(kept) => Some(kept),
        Err(error) => {
            log::error!("{}: {error}", path.display());
            None
        }
    }
}

fn contents(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    files::open(path)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;

    use super::*;

    #[test]
    fn a_file_that_cannot_be_used_is_as_none_and_does_not_block() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kept.json");
        let found = || read::<u32>(&path);
        assert_eq!(found(), None);
        fs::write(&path, "7").unwrap();
        assert_eq!(found(), Some(7));
        fs::write(&path, "{").unwrap();
        assert_eq!(found(), None);
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert_eq!(found(), None, "a folder");
        fs::remove_dir(&path).unwrap();
        mkfifo(&path, Mode::S_IRWXU).unwrap();
        assert_eq!(found(), None, "a pipe without a writer");
    }
}
