//! `top`: the pods of this host by what they send and receive.

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

use anyhow::Context;
use argh::{ArgsInfo, FromArgs};
use serde_json::{Value, json};

use crate::command::call::{Call, Outcome};
use crate::command::table::{Cell, Table, Tone};
use crate::inspect::pods::{self, PodAttachment};
use crate::ipam::StoreEntry;
use crate::net::gather::Gather;
use crate::plan::pod::LinkIdentity;
use crate::settings::exit::{self, Exit};

/// Counters of every interface, as proc(5) has them.
const COUNTERS: &str = "/proc/net/dev";

/// show the pods of this host by traffic, the busiest first
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(
    subcommand,
    name = "top",
    example = "{command_name}",
    example = "{command_name} --seconds 10 --count 5",
    note = "Shows what each sent and received meanwhile, and altogether since it was attached. Asks the kernel, so \
        that it needs neither agent nor etcd.",
    error_code(1, "some stores could not be read"),
    error_code(69, "this user may not read the stores")
)]
pub struct TopPods {
    /// time between the two looks (default 1)
    #[argh(option, default = "1")]
    seconds: u32,
    /// pods to list (default 20)
    #[argh(option, default = "20")]
    count: usize,
    /// print one JSON object
    #[argh(switch)]
    json: bool,
}

/// Bytes and packets that an interface has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InterfaceCounters {
    pub received_bytes: u64,
    received_packets: u64,
    pub sent_bytes: u64,
    sent_packets: u64,
}

/// A pod and what passed its interface. What the pod sends, the host's end of its veth receives.
struct PodTraffic<'a> {
    pod: &'a PodAttachment,
    total: InterfaceCounters,
    /// In a second.
    rate: InterfaceCounters,
}

/// # Errors
/// The counters or the stores cannot be read.
pub fn run(call: &mut Call<'_>, options: &TopPods) -> Result<Outcome, Exit> {
    let settings = call.load_to_look()?.settings;
    if options.seconds == 0 {
        return Err(Exit::new(exit::SETTINGS, "--seconds must be at least 1"));
    }
    let before = counters()?;
    let begun = Instant::now();
    std::thread::sleep(Duration::from_secs(options.seconds.into()));
    let (after, elapsed) = (counters()?, begun.elapsed());
    let (pods, unread) = pods::attachments(&settings);
    let unread: Vec<String> = unread.into_iter().map(|exit| exit.why).collect();
    let mut traffic: Vec<PodTraffic<'_>> = pods
        .iter()
        .filter_map(|pod| {
            let name = host_end(&pod.network, &pod.entry);
            let total = *after.get(&name)?;
            let rate = total.since(&before.get(&name).copied().unwrap_or_default(), elapsed);
            Some(PodTraffic { pod, total, rate })
        })
        .collect();
    traffic.sort_by_key(|pod| std::cmp::Reverse(pod.rate.received_bytes + pod.rate.sent_bytes));
    traffic.truncate(options.count);
    let mut table = Table::new(&["POD", "ADDRESS", "SENDS", "RECEIVES", "SENT", "RECEIVED"]);
    traffic.iter().for_each(|pod| table.row(row(pod)));
    let mut text = match table.is_empty() {
        true => "no pod of humanz is attached here\n".to_owned(),
        false => table.render(call.style),
    };
    text.extend(unread.iter().map(|why| call.style.remark(Tone::Plain, why)));
    let values: Vec<Value> = traffic.iter().map(value).collect();
    call.answer(options.json, unread.is_empty(), json!({ "pods": values, "faults": unread }), &text)
}

/// The name of the interface on the host.
pub fn host_end(network: &str, entry: &StoreEntry) -> String {
    let (container_id, ifname) = (entry.container_id.as_str(), entry.ifname.as_str());
    LinkIdentity { network, container_id, ifname }.host_ifname().as_str().to_owned()
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
    fn since(&self, before: &InterfaceCounters, time: Duration) -> InterfaceCounters {
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

fn row(pod: &PodTraffic<'_>) -> [Cell; 6] {
    let rate = |bytes, packets| format!("{} B/s, {} p/s", short(bytes), short(packets));
    [
        Cell::new(pod.pod.name()),
        Cell::new(addresses(pod.pod).join(",")),
        Cell::new(rate(pod.rate.received_bytes, pod.rate.received_packets)),
        Cell::new(rate(pod.rate.sent_bytes, pod.rate.sent_packets)),
        Cell::new(format!("{} B", short(pod.total.received_bytes))),
        Cell::new(format!("{} B", short(pod.total.sent_bytes))),
    ]
}

fn addresses(pod: &PodAttachment) -> Vec<String> {
    pod.entry.addresses.iter().map(ToString::to_string).collect()
}

fn value(pod: &PodTraffic<'_>) -> Value {
    let InterfaceCounters { received_bytes, received_packets, sent_bytes, sent_packets } = pod.rate;
    json!({
        "pod": pod.pod.entry.pod, "container": pod.pod.entry.container_id,
        "network": pod.pod.network, "addresses": addresses(pod.pod),
        "interface": host_end(&pod.pod.network, &pod.pod.entry),
        "sends": { "bytes_per_second": received_bytes, "packets_per_second": received_packets },
        "receives": { "bytes_per_second": sent_bytes, "packets_per_second": sent_packets },
        "sent_bytes": pod.total.received_bytes, "received_bytes": pod.total.sent_bytes,
    })
}

/// With three digits: `999`, `12.3 k`, `1.20 G`.
fn short(number: u64) -> String {
    const UNITS: [&str; 6] = ["", " k", " M", " G", " T", " P"];
    let (mut value, mut unit) = (number as f64, 0);
    // What would be rounded to 1000 has the next unit.
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    let digits = match value {
        _ if unit == 0 => 0,
        value if value < 9.995 => 2,
        value if value < 99.95 => 1,
        _ => 0,
    };
    format!("{value:.digits$}{}", UNITS[unit])
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

    #[test]
    fn numbers_have_three_digits() {
        for (number, text) in [
            (0, "0"),
            (999, "999"),
            (1_000, "1.00 k"),
            (9_996, "10.0 k"),
            (99_960, "100 k"),
            (999_499, "999 k"),
            (999_600, "1.00 M"),
            (u64::MAX, "18447 P"),
        ] {
            assert_eq!(short(number), text);
        }
    }
}
