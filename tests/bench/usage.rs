//! CPU time of the agent on a host, and of the machine, as the kernel counts it.

use std::fs::{self, DirEntry};
use std::thread::sleep;
use std::time::{Duration, Instant};

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

/// Waits until nearly all processors have had nothing to do for a second: the kernel ends the network namespaces of
/// hundreds of pods for many seconds after their tests. At most a minute.
pub fn wait_idle() {
    let begun = Instant::now();
    loop {
        let (idle, all) = machine();
        sleep(Duration::from_secs(1));
        let (idle_then, all_then) = machine();
        if (idle_then - idle) * 20 >= (all_then - all) * 19 {
            return;
        }
        if begun.elapsed() > Duration::from_secs(60) {
            println!("  (other work goes on: the figures are not those of a quiet machine)");
            return;
        }
    }
}

/// Of all processors since the start: the time without work, and all of it.
fn machine() -> (u64, u64) {
    let stat = fs::read_to_string("/proc/stat").expect("proc(5)");
    let line = stat.lines().next().expect("the line of all processors");
    let times: Vec<u64> = line.split(' ').filter_map(|time| time.parse().ok()).collect();
    // user, nice, system, idle, iowait …
    (times[3] + times[4], times.iter().sum())
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
