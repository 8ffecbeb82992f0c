//! Resource usage of this process.

use std::fs;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Processor time of all its threads, since it started.
    pub cpu: Duration,
    pub resident_bytes: u64,
}

impl Usage {
    /// `None` without /proc.
    pub fn now() -> Option<Usage> {
        let cpu = clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).ok()?.into();
        let status = fs::read_to_string("/proc/self/status").ok()?;
        Some(Usage { cpu, resident_bytes: resident_bytes(&status)? })
    }
}

/// `VmRSS:     1234 kB` of proc(5).
fn resident_bytes(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_has_used_something() {
        let usage = Usage::now().unwrap();
        assert!(usage.resident_bytes > 1 << 20 && usage.resident_bytes < 1 << 40, "{usage:?}");
        assert_eq!(resident_bytes("Name:\tx\nVmRSS:\t   12 kB\n"), Some(12 << 10));
        assert_eq!(resident_bytes("VmRSS:\t99999999999999999999 kB\n"), None);
    }
}
