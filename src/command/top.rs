//! `top`: pods by what they send and receive.

mod all;
mod digits;

use std::time::{Duration, Instant};

use argh::{ArgsInfo, FromArgs};
use serde_json::{Value, json};

use crate::command::arguments::seconds;
use crate::command::call::{Call, Outcome};
use crate::command::json::whats;
use crate::command::table::{Cell, Table, Tone};
use crate::command::top::digits::short;
use crate::inspect::interface_counters::{InterfaceCounters, counters};
use crate::inspect::pods::{self, PodAttachment};
use crate::settings::exit::{self, Exit};

/// Most seconds between the two readings.
const LONGEST: u32 = 3600;

/// show pods by traffic, the busiest first: those of this host, or of all
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(
    subcommand,
    name = "top",
    example = "{command_name}",
    example = "{command_name} --seconds 10 --count 5",
    example = "{command_name} --all",
    note = "Shows what each sent and received meanwhile, and altogether since it was attached. Asks the kernel, so \
        that it needs neither agent nor etcd; with --all as pods --all, twice.",
    error_code(1, "some stores could not be read; with --all: a host did not answer"),
    error_code(69, "this user may not read the stores; with --all: etcd cannot be reached")
)]
pub struct TopPods {
    /// seconds between the two readings (default 1)
    #[argh(option, default = "1", from_str_fn(seconds))]
    seconds: u32,
    /// pods to list (default 20)
    #[argh(option, default = "20")]
    count: usize,
    /// the pods of all hosts, as their agents count them: an agent answers at most every 2 seconds, so that at least 3
    /// seconds pass between the two readings
    #[argh(switch)]
    all: bool,
    /// print one JSON object
    #[argh(switch)]
    json: bool,
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
    if !(1..=LONGEST).contains(&options.seconds) {
        let why = format!("--seconds must be 1 to {LONGEST}");
        return Err(Exit::new(exit::SETTINGS, why));
    }
    if options.count == 0 {
        return Err(Exit::new(exit::SETTINGS, "--count must be at least 1"));
    }
    if options.all {
        let mut settings = call.load()?.settings;
        let found = all::read(&mut settings, options.seconds)?;
        let text = found.text(options.count, call.style);
        let value = found.value(options.count);
        return call.answer(options.json, found.is_complete(), value, &text);
    }
    let settings = call.load_to_look()?.settings;
    let before = counters()?;
    let begun = Instant::now();
    std::thread::sleep(Duration::from_secs(options.seconds.into()));
    let (after, elapsed) = (counters()?, begun.elapsed());
    let (pods, unread) = pods::attachments(&settings);
    let mut traffic: Vec<PodTraffic<'_>> = pods
        .iter()
        .filter_map(|pod| {
            let name = pod.host_end();
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
    text.extend(unread.iter().map(|problem| call.style.fault(Tone::Plain, problem)));
    let values: Vec<Value> = traffic.iter().map(value).collect();
    let value = json!({ "pods": values, "faults": whats(&unread), "problems": unread });
    call.answer(options.json, unread.is_empty(), value, &text)
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
        "interface": pod.pod.host_end(),
        "sends": { "bytes_per_second": received_bytes, "packets_per_second": received_packets },
        "receives": { "bytes_per_second": sent_bytes, "packets_per_second": sent_packets },
        "sent_bytes": pod.total.received_bytes, "received_bytes": pod.total.sent_bytes,
    })
}
