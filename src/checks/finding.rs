//! Pure. What is wrong on a host, how it was seen, and what to do: judged from what was looked at.

use std::path::Path;

use crate::net::Family;
use crate::os::disk_space::FreeSpace;

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Pods suffer, or will with the next change.
    Wrong,
    /// It will do harm one day.
    Warning,
    /// Good to know.
    Note,
}

/// Something that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Its name, the same in every release.
    pub name: &'static str,
    /// How bad it is.
    pub severity: Severity,
    /// What was found.
    pub seen: String,
    /// What to do.
    pub cure: String,
    /// Where that was seen: a file, a sysctl, the kernel.
    pub how: String,
}

impl Finding {
    /// One that is `severity` bad.
    pub fn new(
        severity: Severity,
        name: &'static str,
        how: impl Into<String>,
        seen: impl Into<String>,
        cure: impl Into<String>,
    ) -> Finding {
        Finding { name, severity, seen: seen.into(), cure: cure.into(), how: how.into() }
    }

    /// One that the agent would tell in a line: what is wrong, and behind the last semicolon or
    /// colon what to do.
    pub fn told(name: &'static str, line: &str) -> Finding {
        let parts = line.rsplit_once("; ").or_else(|| line.rsplit_once(": "));
        let (seen, cure) = parts.unwrap_or((line, "see the log of the agent"));
        Finding::new(Severity::Wrong, name, "as the agent looks", seen, cure)
    }
}

/// Below these a disk counts as full.
const LEAST_BYTES: u64 = 1 << 20;
const LEAST_FILES: u64 = 16;
/// Below this it soon will be.
const LITTLE_BYTES: u64 = 32 << 20;

/// Whether there is room for what humanz writes at `path`.
pub fn space(path: &Path, what: &str, found: &FreeSpace) -> Option<Finding> {
    let how = format!("statvfs {}", path.display());
    let place = path.display();
    if found.read_only {
        let seen = format!("{place} ({what}) is on a file system that is read-only");
        let cure = "mount it read-write: a disk with errors is remounted so (dmesg)";
        return Some(Finding::new(Severity::Wrong, "disk-read-only", how, seen, cure));
    }
    let few = found.free_files.is_some_and(|files| files < LEAST_FILES);
    let severity = match found.free_bytes {
        0..LEAST_BYTES => Severity::Wrong,
        _ if few => Severity::Wrong,
        LEAST_BYTES..LITTLE_BYTES => Severity::Warning,
        _ => return None,
    };
    let left = match found.free_files {
        Some(files) if few => format!("{files} files"),
        _ => format!("{} KiB", found.free_bytes / 1024),
    };
    let seen = format!("{place} ({what}) has {left} left");
    Some(Finding::new(severity, "disk-full", how, seen, "make room there"))
}

/// Whether the kernel may remember as many neighbours as there are pods and hosts: above the third
/// threshold it forgets those in use, and packets stop (arp(7)).
pub fn neighbours(family: Family, threshold: Option<u64>, wanted: u64) -> Option<Finding> {
    let threshold = threshold.filter(|most| *most < wanted.saturating_mul(2))?;
    let version = match family {
        Family::V4 => "ipv4",
        Family::V6 => "ipv6",
    };
    let key = format!("net.{version}.neigh.default.gc_thresh3");
    let severity = if threshold < wanted { Severity::Wrong } else { Severity::Warning };
    let seen = format!(
        "the kernel remembers {threshold} neighbours at most, and there are {wanted} pods and hosts"
    );
    let cure = format!("sysctl -w {key}={}", (wanted * 4).next_power_of_two());
    Some(Finding::new(severity, "neighbour-table", key, seen, cure))
}

/// Whether packets of pods fit on the way to other hosts.
pub fn mtu(pods: u32, underlay: u32, tunnel: Option<u32>) -> Option<Finding> {
    let least = tunnel.unwrap_or(underlay);
    (pods > least && least > 0).then(|| {
        let behind = if tunnel.is_some() { " through a tunnel" } else { "" };
        let seen = format!("pods get MTU {pods}, and the way to other hosts takes {least}{behind}");
        Finding::new(
            Severity::Warning,
            "mtu",
            "MTU of bridge and uplink",
            seen,
            "set MTU=auto, or to that number; then make pods anew",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_agent_is_split_into_what_is_wrong_and_what_to_do() {
        let check = |line: &str, seen: &str, cure: &str| {
            let found = Finding::told("x", line);
            assert_eq!((found.seen.as_str(), found.cure.as_str()), (seen, cure));
        };
        check("A is B: so C; remove A", "A is B: so C", "remove A");
        check("A is B: set it to 1", "A is B", "set it to 1");
        check("A", "A", "see the log of the agent");
    }

    #[test]
    fn a_disk_is_full_when_no_state_fits_on_it() {
        let check = |free_bytes, free_files, read_only, wanted: Option<(&str, Severity)>| {
            let found = FreeSpace { free_bytes, free_files, read_only };
            let found = space(Path::new("/x"), "state", &found);
            assert_eq!(found.as_ref().map(|found| (found.name, found.severity)), wanted);
        };
        check(1 << 30, Some(1000), false, None);
        check(1 << 30, None, false, None);
        check(1 << 30, Some(3), false, Some(("disk-full", Severity::Wrong)));
        check(1000, Some(1000), false, Some(("disk-full", Severity::Wrong)));
        check(2 << 20, Some(1000), false, Some(("disk-full", Severity::Warning)));
        check(1 << 30, Some(1000), true, Some(("disk-read-only", Severity::Wrong)));
    }

    #[test]
    fn a_table_of_neighbours_needs_room_for_all_pods_and_hosts() {
        let check = |threshold, wanted, severity: Option<Severity>| {
            let found = neighbours(Family::V4, threshold, wanted);
            assert_eq!(found.map(|found| found.severity), severity);
        };
        check(Some(1024), 500, None);
        check(Some(1024), 600, Some(Severity::Warning));
        check(Some(1024), 10_000, Some(Severity::Wrong));
        check(None, 10_000, None);
        let found = neighbours(Family::V6, Some(1024), 10_000).unwrap();
        assert_eq!(found.cure, "sysctl -w net.ipv6.neigh.default.gc_thresh3=65536");
    }

    #[test]
    fn pods_must_fit_on_the_way() {
        assert_eq!(mtu(1450, 1500, Some(1450)), None);
        assert_eq!(mtu(1500, 1500, None), None);
        assert!(mtu(1500, 1500, Some(1450)).is_some() && mtu(9000, 1500, None).is_some());
    }
}
