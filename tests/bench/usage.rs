//! CPU time of the agent on a host, as the kernel counts it.

use std::fs::{self, DirEntry};
use std::time::Duration;

use nix::unistd::Pid;

use crate::support::node::{Node, Place};

/// CPU time that all threads of the agent have used, from the scheduler's nanoseconds.
pub fn cpu(host: &Node) -> Duration {
    let schedstat = host.shell("cat /proc/$(pidof humanz-agent)/task/*/schedstat").ok();
    total(&schedstat)
}

/// The same of the process with this number.
pub fn of(process: Pid) -> Duration {
    let threads = fs::read_dir(format!("/proc/{process}/task")).expect("it runs");
    let schedstat = |thread: DirEntry| fs::read_to_string(thread.path().join("schedstat")).ok();
    let texts: String = threads.filter_map(|thread| schedstat(thread.ok()?)).collect();
    total(&texts)
}

fn total(schedstat: &str) -> Duration {
    let first =
        |line: &str| line.split(' ').next().and_then(|nanoseconds| nanoseconds.parse::<u64>().ok());
    Duration::from_nanos(schedstat.lines().filter_map(first).sum())
}

/// Memory of the agent in MiB: now, the most it ever had, and now without what it shares with others.
pub fn memory(host: &Node) -> (f64, f64, f64) {
    let file = |name: &str| host.shell(&format!("cat /proc/$(pidof humanz-agent)/{name}")).ok();
    let status = file("status") + &file("smaps_rollup");
    let value = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).expect(name);
        let kib: f64 = line.trim_end_matches("kB").trim().parse().expect("a number of KiB");
        kib / 1024.0
    };
    (value("VmRSS:"), value("VmHWM:"), value("Pss:"))
}
