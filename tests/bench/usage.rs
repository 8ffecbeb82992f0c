//! What the agent on a host has used, as the kernel counts it.

use std::time::{Duration, Instant};

use crate::support::node::{Node, Place};
use crate::support::wait::eventually;

/// CPU time that all threads of the agent have used, from the scheduler's nanoseconds.
pub fn cpu(host: &Node) -> Duration {
    let told = host.shell("cat /proc/$(pidof humanz-agent)/task/*/schedstat").ok();
    let first =
        |line: &str| line.split(' ').next().and_then(|nanoseconds| nanoseconds.parse::<u64>().ok());
    Duration::from_nanos(told.lines().filter_map(first).sum())
}

/// Waits until it has had nothing to do for a while; gives [`cpu`].
pub fn cpu_when_idle(host: &Node) -> Duration {
    const QUIET: Duration = Duration::from_millis(100);
    const AT_MOST: Duration = Duration::from_millis(1);
    let (mut before, mut since) = (cpu(host), Instant::now());
    eventually("the agent is idle", Duration::from_secs(30), || {
        let now = cpu(host);
        if now > before + AT_MOST {
            (before, since) = (now, Instant::now());
        }
        if since.elapsed() >= QUIET { Ok(now) } else { Err("it works".into()) }
    })
}

/// Memory of the agent in MiB: now, and the most it ever had.
pub fn memory(host: &Node) -> (f64, f64) {
    let status = host.shell("cat /proc/$(pidof humanz-agent)/status").ok();
    let value = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).expect(name);
        let kib: f64 = line.trim_end_matches("kB").trim().parse().expect("a number of KiB");
        kib / 1024.0
    };
    (value("VmRSS:"), value("VmHWM:"))
}
