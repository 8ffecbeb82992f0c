//! What passed each interface of this host.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use anyhow::Context;

use crate::net::gather::Gather;
use crate::settings::exit::Exit;

/// Counters of every interface, as proc(5) has them.
const COUNTERS: &str = "/proc/net/dev";

/// Bytes and packets that an interface has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InterfaceCounters {
    pub received_bytes: u64,
    pub received_packets: u64,
    pub sent_bytes: u64,
    pub sent_packets: u64,
}

/// Of every interface of this network namespace, by name.
///
/// # Errors
/// /proc is not there.
pub fn counters() -> Result<BTreeMap<String, InterfaceCounters>, Exit> {
    let text = fs::read_to_string(COUNTERS).with_context(|| format!("read {COUNTERS}"))?;
    Ok(parse(&text))
}

/// Two lines of heading, then `name: bytes packets …` with eight numbers for each direction.
fn parse(text: &str) -> BTreeMap<String, InterfaceCounters> {
    let each = text.lines().filter_map(|line| {
        let (name, numbers) = line.split_once(':')?;
        let numbers = numbers.split_whitespace().map(|number| number.parse().ok());
        let numbers: Vec<u64> = numbers.collect::<Option<_>>()?;
        let counters = InterfaceCounters {
            received_bytes: *numbers.first()?,
            received_packets: *numbers.get(1)?,
            sent_bytes: *numbers.get(8)?,
            sent_packets: *numbers.get(9)?,
        };
        Some((name.trim().to_owned(), counters))
    });
    each.gather()
}

impl InterfaceCounters {
    /// In a second, on the average over `time`. An interface that was made anew counts from zero.
    pub fn since(&self, before: &InterfaceCounters, time: Duration) -> InterfaceCounters {
        let rate = |now: u64, before: u64| {
            let more = now.checked_sub(before).unwrap_or(now);
            (more as f64 / time.as_secs_f64()) as u64
        };
        InterfaceCounters {
            received_bytes: rate(self.received_bytes, before.received_bytes),
            received_packets: rate(self.received_packets, before.received_packets),
            sent_bytes: rate(self.sent_bytes, before.sent_bytes),
            sent_packets: rate(self.sent_packets, before.sent_packets),
        }
    }
}

/// Since this host was started, as proc(5) has it; two hosts cannot be compared by it.
pub fn uptime() -> Option<Duration> {
    let text = fs::read_to_string("/proc/uptime").ok()?;
    let seconds: f64 = text.split_whitespace().next()?.parse().ok()?;
    Duration::try_from_secs_f64(seconds).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_read_as_the_kernel_writes_them() {
        let text = "\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo:     100       2    0    0    0     0          0         0      300       4    0    0    0     0       0          0
hz12:5 6 0 0 0 0 0 0 7 8 0 0 0 0 0 0
broken: 1 2 x
short: 1 2
";
        let found = parse(text);
        let counters = |received_bytes, received_packets, sent_bytes, sent_packets| {
            InterfaceCounters { received_bytes, received_packets, sent_bytes, sent_packets }
        };
        assert_eq!(found["lo"], counters(100, 2, 300, 4));
        assert_eq!(found["hz12"], counters(5, 6, 7, 8));
        assert_eq!(found.len(), 2, "{found:?}");
        let rate = found["lo"].since(&counters(50, 0, 400, 0), Duration::from_secs(2));
        assert_eq!(rate, counters(25, 1, 150, 2), "one of which counts anew");
    }
}
