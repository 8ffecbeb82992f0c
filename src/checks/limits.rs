//! Pure. Limits of a host: disk space, neighbour table, MTU.

use std::path::Path;

use crate::net::{Family, Object, Problem, ProblemKind};
use crate::os::disk_space::FreeSpace;

/// Below these a disk counts as full.
const LEAST_BYTES: u64 = 1 << 20;
const LEAST_FILES: u64 = 16;
/// Below this it soon will be.
const LITTLE_BYTES: u64 = 32 << 20;

/// Whether there is room for what humanz writes at `path`. `what`: it holds.
pub fn space(path: &Path, what: &str, found: &FreeSpace) -> Option<Problem> {
    let place = path.display();
    let problem =
        |kind, what: String| Problem::new(kind, Object::File("disk of", path.to_owned()), what);
    if found.read_only {
        let what = format!("{place} ({what}) is on a file system that is read-only");
        let fix = "dmesg # a disk with errors is remounted read-only: mount it read-write";
        return Some(problem(ProblemKind::DiskReadOnly, what).with_fix(fix));
    }
    let few = found.free_files.is_some_and(|files| files < LEAST_FILES);
    let kind = match found.free_bytes {
        0..LEAST_BYTES => ProblemKind::DiskFull,
        _ if few => ProblemKind::DiskFull,
        LEAST_BYTES..LITTLE_BYTES => ProblemKind::DiskLow,
        _ => return None,
    };
    let left = match found.free_files {
        Some(files) if few => format!("{files} files"),
        _ => format!("{} KiB", found.free_bytes / 1024),
    };
    Some(
        problem(kind, format!("{place} ({what}) has {left} left"))
            .with_fix(format!("df -h {place} # make room there")),
    )
}

/// Whether the kernel may remember as many neighbours as there are pods and hosts: above the third
/// threshold it forgets those in use, and packets stop (arp(7)).
pub fn neighbours(family: Family, threshold: Option<u64>, wanted: u64) -> Option<Problem> {
    let threshold = threshold.filter(|most| *most < wanted.saturating_mul(2))?;
    let version = match family {
        Family::V4 => "ipv4",
        Family::V6 => "ipv6",
    };
    let kind = match threshold < wanted {
        true => ProblemKind::NeighbourTable,
        false => ProblemKind::NeighbourTableLow,
    };
    let what = format!(
        "the kernel remembers {threshold} neighbours at most, and there are {wanted} pods and hosts"
    );
    let subject = Object::Sysctl(format!("net/{version}/neigh/default/gc_thresh3"));
    let room = (wanted * 4).next_power_of_two();
    let fix = format!("sysctl -w net.{version}.neigh.default.gc_thresh3={room}");
    Some(Problem::new(kind, subject, what).with_fix(fix))
}

/// Whether packets of pods fit on the path to other hosts.
pub fn mtu(pods: u32, underlay: u32, tunnel: Option<u32>) -> Option<Problem> {
    let least = tunnel.unwrap_or(underlay);
    (pods > least && least > 0).then(|| {
        let behind = if tunnel.is_some() { " through a tunnel" } else { "" };
        let what =
            format!("pods get MTU {pods}, and the path to other hosts takes {least}{behind}");
        Problem::new(ProblemKind::Mtu, Object::named("MTU of bridge and uplink"), what).with_fix(
            format!("humanz-agent config # set MTU=auto or MTU={least}; then recreate the pods"),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_is_full_when_no_state_fits_on_it() {
        let check = |free_bytes, free_files, read_only, wanted: Option<ProblemKind>| {
            let found = FreeSpace { free_bytes, free_files, read_only };
            let found = space(Path::new("/x"), "state", &found);
            assert_eq!(found.map(|problem| problem.kind), wanted);
        };
        check(1 << 30, Some(1000), false, None);
        check(1 << 30, None, false, None);
        check(1 << 30, Some(3), false, Some(ProblemKind::DiskFull));
        check(1000, Some(1000), false, Some(ProblemKind::DiskFull));
        check(2 << 20, Some(1000), false, Some(ProblemKind::DiskLow));
        check(1 << 30, Some(1000), true, Some(ProblemKind::DiskReadOnly));
    }

    #[test]
    fn a_neighbour_table_needs_room_for_all_pods_and_hosts() {
        let check = |threshold, wanted, kind: Option<ProblemKind>| {
            let found = neighbours(Family::V4, threshold, wanted);
            assert_eq!(found.map(|problem| problem.kind), kind);
        };
        check(Some(1024), 500, None);
        check(Some(1024), 600, Some(ProblemKind::NeighbourTableLow));
        check(Some(1024), 10_000, Some(ProblemKind::NeighbourTable));
        check(None, 10_000, None);
        let found = neighbours(Family::V6, Some(1024), 10_000).unwrap();
        let fix = "sysctl -w net.ipv6.neigh.default.gc_thresh3=65536";
        assert_eq!(found.fix.as_deref(), Some(fix));
    }

    #[test]
    fn pods_must_fit_on_the_path() {
        assert_eq!(mtu(1450, 1500, Some(1450)), None);
        assert_eq!(mtu(1500, 1500, None), None);
        assert!(mtu(1500, 1500, Some(1450)).is_some() && mtu(9000, 1500, None).is_some());
    }
}
