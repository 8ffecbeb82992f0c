//! Is something mounted on a directory? Source: proc_pid_mountinfo(5).

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nix::sys::stat::{major, minor};

/// Something is mounted on `directory`, also a bind mount of the same file system. False if that cannot
/// be read.
pub fn is_on(directory: &Path) -> bool {
    any(directory, is_of)
}

/// A directory of the same name is mounted on `directory`, as `ip netns` mounts it on itself, or as that of
/// the host is mounted into a container.
pub fn is_of_same_name(directory: &Path) -> bool {
    // The list also has mounts that later ones hide.
    let Ok(device) = fs::metadata(directory).map(|found| found.dev()) else { return false };
    let device = format!("{}:{}", major(device), minor(device));
    any(directory, |line, path| {
        let mut fields = line.split(|byte| *byte == b' ').skip(2);
        let is_this = fields.next() == Some(device.as_bytes()) && is_of(line, path);
        let root = fields.next().map(unescaped).unwrap_or_default();
        is_this && Path::new(OsStr::from_bytes(&root)).file_name() == path.file_name()
    })
}

fn any(directory: &Path, is_meant: impl Fn(&[u8], &Path) -> bool) -> bool {
    let (Ok(path), Ok(mounts)) = (directory.canonicalize(), fs::read("/proc/self/mountinfo"))
    else {
        return false;
    };
    mounts.split(|byte| *byte == b'\n').any(|line| is_meant(line, &path))
}

/// The line is of a mount on `path`.
fn is_of(line: &[u8], path: &Path) -> bool {
    let point = line.split(|byte| *byte == b' ').nth(4);
    point.is_some_and(|point| unescaped(point) == path.as_os_str().as_bytes())
}

/// Space, tab, line end and backslash are written as three octal digits.
fn unescaped(text: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let [first, behind @ ..] = rest {
        let number = |digits: &[u8]| u8::from_str_radix(str::from_utf8(digits).ok()?, 8).ok();
        let escaped = (*first == b'\\').then(|| behind.get(..3).and_then(number)).flatten();
        bytes.push(escaped.unwrap_or(*first));
        rest = if escaped.is_some() { &behind[3..] } else { behind };
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_is_matched_by_its_whole_path() {
        let check = |point: &str, path: &str| {
            let line = format!("36 35 98:0 / {point} rw,noatime - ext4 /dev/root rw");
            is_of(line.as_bytes(), Path::new(path))
        };
        assert!(check("/run/humanz", "/run/humanz"));
        assert!(!check("/run", "/run/humanz") && !check("/run/humanz", "/run"));
        assert!(check("/a\\040b\\134c", "/a b\\c") && check("/a\\04", "/a\\04"));
        assert!(is_on(Path::new("/proc")) && is_on(Path::new("/")));
        assert!(!is_on(Path::new("/proc/self")) && !is_on(Path::new("/nowhere")));
    }
}
