//! The file of the secret that all hosts have (`ENCRYPTION_PSK_FILE`).

use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use nix::libc;
use nix::unistd::geteuid;

use crate::net::shell::word;
use crate::net::{PresharedSecret, Problem};
use crate::settings::invalid;

const VARIABLE: &str = "ENCRYPTION_PSK_FILE";

/// Bytes of a key, and some room.
const LIMIT_BYTES: u64 = 128;

/// Permissions of anybody but the owner.
const OTHERS: u32 = 0o077;

/// What the file says.
///
/// # Errors
/// It cannot be read, somebody else can read it, or it has no key. The text never has what is in it.
pub fn read(path: &Path) -> Result<PresharedSecret, Problem> {
    let shown = path.display().to_string();
    let fault = |why: &str, fix: String| invalid(VARIABLE, &shown, why).with_fix(fix);
    let failed = |error: std::io::Error| {
        let fix = "humanz-agent config # put the same file on every host, as root and with mode 0600 (below /home, /root and /run \
                   the unit of the agent does not see it)";
        fault(&format!("cannot be read: {error}"), fix.to_owned())
    };
    // A pipe would block.
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path);
    let file = file.map_err(failed)?;
    is_private(&file).map_err(|why| {
        let file = word(&shown);
        fault(&why, format!("chown root {file} && chmod 0600 {file} # who could read it may have it: make another \
            one"))
    })?;
    let mut text = String::new();
    file.take(LIMIT_BYTES).read_to_string(&mut text).map_err(failed)?;
    text.trim().parse().map_err(|_| {
        let why = "its content is not a secret: one line of 44 characters of base64, not all zero";
        fault(
            why,
            format!(
                "(umask 077; wg genpsk >{shown}) # on one host, then the same file on every host"
            ),
        )
    })
}

/// It is a file, and only its owner, who is root or this user, can read it.
fn is_private(file: &File) -> Result<(), String> {
    let found = file.metadata().map_err(|error| error.to_string())?;
    let (mode, owner) = (found.mode(), found.uid());
    if !found.is_file() {
        Err("not a file".to_owned())
    } else if owner != 0 && owner != geteuid().as_raw() {
        Err(format!("it belongs to user {owner}, who can read it"))
    } else if mode & OTHERS != 0 {
        Err(format!("others than root can read or change it (mode {:04o})", mode & 0o7777))
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    const SECRET: &str = "AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyA=";

    fn read_of(content: &[u8], mode: u32) -> Result<PresharedSecret, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("psk");
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        read(&path).map_err(|problem| format!("{problem} {:?}", problem.fix))
    }

    #[test]
    fn what_wg_genpsk_writes_is_read() {
        for text in [SECRET.to_owned(), format!("{SECRET}\n"), format!(" {SECRET}\r\n")] {
            assert_eq!(read_of(text.as_bytes(), 0o600), Ok(SECRET.parse().unwrap()), "{text:?}");
        }
        assert!(read_of(SECRET.as_bytes(), 0o400).is_ok());
    }

    #[test]
    fn a_file_that_others_can_read_or_change_is_refused() {
        for mode in [0o640, 0o604, 0o644, 0o620, 0o602, 0o660] {
            let fault = read_of(SECRET.as_bytes(), mode).unwrap_err();
            assert!(fault.contains("others than root can read or change it"), "{mode:o}: {fault}");
            assert!(!fault.contains(SECRET), "{fault}");
        }
        let folder = tempfile::tempdir().unwrap();
        let (path, link) = (folder.path().join("psk"), folder.path().join("link"));
        fs::write(&path, SECRET).unwrap();
        symlink(&path, &link).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        assert!(read(&link).is_err(), "the mode of what the link leads to counts");
        fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        assert!(read(&link).is_ok());
    }

    #[test]
    fn what_is_no_secret_is_refused_and_never_shown() {
        let hex = "0102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f20";
        let zero = "A".repeat(43) + "=";
        let two = format!("{SECRET}\n{SECRET}\n");
        let long = SECRET.repeat(1 << 12);
        for bad in ["", "\n", "hunter2hunter2", hex, &zero, &SECRET[1..], &two, &long] {
            let fault = read_of(bad.as_bytes(), 0o600).unwrap_err();
            assert!(fault.contains("its content is not a secret"), "{fault}");
            let shown = bad.trim();
            assert!(shown.is_empty() || !fault.contains(&shown[..shown.len().min(12)]), "{fault}");
        }
        assert!(read_of(&[0xff; 44], 0o600).unwrap_err().contains("cannot be read"));
    }

    #[test]
    fn what_is_no_file_is_refused_and_does_not_block() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("psk");
        let fault = |path: &Path| read(path).unwrap_err().to_string();
        assert!(fault(&path).contains("cannot be read: No such file"), "{}", fault(&path));
        assert!(fault(folder.path()).contains("not a file"));
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(fault(&path).contains("not a file"));
    }
}
