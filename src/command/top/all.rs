//! `top --all`: every agent answers two requests in etcd with what it has counted.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use crate::command::pods::all::{self, AllPods};
use crate::command::pods::judged::JudgedPods;
use crate::command::table::{Cell, Style, Table, Tone};
use crate::command::top::digits::short;
use crate::lease::records::{HostPod, NodeName};
use crate::settings::Settings;
use crate::settings::exit::Exit;

/// Least seconds between the requests: an agent rests for two after an answer.
const LEAST: u32 = 3;

/// The pods of all hosts, the busiest first.
pub struct AllTraffic {
    pods: Vec<CountedPod>,
    hosts: usize,
    /// Hosts that say what their pods send.
    counting: usize,
    own: NodeName,
    remarks: Vec<String>,
}

/// Bytes that a pod has sent and received.
struct CountedPod {
    host: NodeName,
    pod: HostPod,
    /// Since it was attached.
    total: [u64; 2],
    /// In a second.
    rate: [u64; 2],
}

/// # Errors
/// etcd does not answer, or this host has none.
pub fn read(settings: &mut Settings, seconds: u32) -> Result<AllTraffic, Exit> {
    let before = all::read(settings)?;
    thread::sleep(Duration::from_secs(seconds.max(LEAST).into()));
    Ok(compared(&before, all::read(settings)?))
}

fn compared(before: &AllPods, after: AllPods) -> AllTraffic {
    let mut found = AllTraffic {
        pods: Vec::new(),
        hosts: after.hosts.len(),
        counting: 0,
        own: after.own,
        remarks: after.remarks,
    };
    for host in after.hosts {
        found.remarks.extend(host.remark());
        let Ok(now) = host.answer else { continue };
        let earlier = before.hosts.iter().find(|it| it.host == host.host);
        match counted(&host.host, earlier.and_then(|it| it.answer.as_ref().ok()), now) {
            Ok(pods) => {
                found.counting += 1;
                found.pods.extend(pods);
            }
            Err(why) => found.remarks.push(format!("{}: {why}", host.host)),
        }
    }
    found.pods.sort_by_key(|it| std::cmp::Reverse(u128::from(it.rate[0]) + u128::from(it.rate[1])));
    found
}

/// The pods of `host`, by two of its answers.
fn counted(
    host: &NodeName,
    before: Option<&JudgedPods>,
    now: JudgedPods,
) -> Result<Vec<CountedPod>, &'static str> {
    let at = now.counted_at.ok_or("it does not say what its pods send: an earlier version")?;
    let before = before.ok_or("it answered the second request only")?;
    let begun = before.counted_at.filter(|begun| *begun < at);
    let millis = at - begun.ok_or("it was started anew between the requests")?;
    let earlier: BTreeMap<CountedKey<'_>, [u64; 2]> =
        before.pods.iter().filter_map(|pod| Some((key(pod), pod.bytes?))).collect();
    let each = now.pods.into_iter().filter_map(|pod| {
        let total = pod.bytes?;
        // A pod that was attached meanwhile, and one whose interface was made anew, counts from zero.
        let from = earlier.get(&key(&pod)).copied().unwrap_or_default();
        let rate = [0, 1].map(|way| {
            let more = total[way].checked_sub(from[way]).unwrap_or(total[way]);
            u64::try_from(u128::from(more) * 1000 / u128::from(millis)).unwrap_or(u64::MAX)
        });
        Some(CountedPod { host: host.clone(), pod, total, rate })
    });
    Ok(each.collect())
}

/// A pod, its network and its addresses there.
type CountedKey<'a> = (&'a str, &'a str, &'a [IpAddr]);

fn key(pod: &HostPod) -> CountedKey<'_> {
    (&pod.pod, &pod.network, &pod.addresses)
}

impl AllTraffic {
    /// Every host says it.
    pub fn is_complete(&self) -> bool {
        self.remarks.is_empty()
    }

    /// With the first `count` pods.
    pub fn value(&self, count: usize) -> Value {
        let pod = |it: &CountedPod| {
            json!({
                "host": it.host, "pod": it.pod.pod, "network": it.pod.network, "addresses": it.pod.addresses,
                "sends": { "bytes_per_second": it.rate[0] },
                "receives": { "bytes_per_second": it.rate[1] },
                "sent_bytes": it.total[0], "received_bytes": it.total[1],
            })
        };
        let pods: Vec<Value> = self.pods.iter().take(count).map(pod).collect();
        json!({ "pods": pods, "faults": self.remarks })
    }

    pub fn text(&self, count: usize, style: Style) -> String {
        let heads = ["HOST", "POD", "ADDRESSES", "SENDS", "RECEIVES", "SENT", "RECEIVED"];
        let mut table = Table::new(&heads).without_if_narrow(&["ADDRESSES", "RECEIVED", "SENT"]);
        for CountedPod { host, pod, total, rate } in self.pods.iter().take(count) {
            let own = if *host == self.own { "*" } else { "" };
            let addresses: Vec<String> = pod.addresses.iter().map(ToString::to_string).collect();
            let rate = rate.map(|bytes| Cell::new(format!("{} B/s", short(bytes))));
            let total = total.map(|bytes| Cell::new(format!("{} B", short(bytes))));
            let first = [format!("{host}{own}"), pod.pod.to_string(), addresses.join(",")];
            table.row(first.map(Cell::new).into_iter().chain(rate).chain(total));
        }
        let mut text = if table.is_empty() { String::new() } else { table.render(style) + "\n" };
        text.extend(self.remarks.iter().map(|remark| style.remark(Tone::Bad, remark)));
        let (shown, all) = (self.pods.len().min(count), self.pods.len());
        let last = format!("{shown} of {all} pods, of {} of {} hosts", self.counting, self.hosts);
        text + &style.sentence(if self.is_complete() { Tone::Good } else { Tone::Bad }, &last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::pods::all::HostAnswer;

    fn answer(at: Option<u64>, pods: &[(&str, Option<[u64; 2]>)]) -> Result<JudgedPods, String> {
        let pod = |(name, bytes): &(&str, Option<[u64; 2]>)| HostPod {
            pod: (*name).into(),
            network: "humanz".into(),
            addresses: Vec::new(),
            bytes: *bytes,
        };
        let pods = pods.iter().map(pod).collect();
        Ok(JudgedPods { pods, more: 0, foreign: Vec::new(), foreign_count: 0, counted_at: at })
    }

    fn all(hosts: [(&str, Result<JudgedPods, String>); 5]) -> AllPods {
        let hosts = hosts.map(|(host, answer)| HostAnswer { host: host.parse().unwrap(), answer });
        AllPods {
            hosts: hosts.into(),
            own: "h1".parse().unwrap(),
            remarks: Vec::new(),
            plans: None,
        }
    }

    #[test]
    fn rates_are_by_the_clock_of_each_host_and_the_busiest_pod_comes_first() {
        let before = all([
            ("h1", answer(Some(1_000), &[("a", Some([0, 10])), ("b", Some([500, 500]))])),
            ("h2", answer(Some(9), &[("most", Some([0, 0]))])),
            ("h3", answer(None, &[("old", None)])),
            ("h4", answer(Some(7), &[])),
            ("h5", Err("it is away".to_owned())),
        ]);
        let after = all([
            (
                "h1",
                answer(
                    Some(3_000),
                    &[
                        ("a", Some([4_000, 10])),
                        ("b", Some([8, 500])),
                        ("new", Some([2, 0])),
                        ("gone", None),
                    ],
                ),
            ),
            ("h2", answer(Some(10), &[("most", Some([u64::MAX, u64::MAX]))])),
            ("h3", answer(None, &[("old", None)])),
            ("h4", answer(Some(7), &[])),
            ("h5", answer(Some(3), &[])),
        ]);
        let found = compared(&before, after);
        let shown = found.pods.iter().map(|it| (it.host.as_str(), &*it.pod.pod, it.rate));
        let rates = [
            ("h2", "most", [u64::MAX, u64::MAX]),
            ("h1", "a", [2_000, 0]),
            ("h1", "b", [4, 0]),
            ("h1", "new", [1, 0]),
        ];
        assert_eq!(shown.collect::<Vec<_>>(), rates);
        let remarks = [
            "h3: it does not say what its pods send: an earlier version",
            "h4: it was started anew between the requests",
            "h5: it answered the second request only",
        ];
        assert_eq!(
            (found.remarks.as_slice(), found.counting),
            (&remarks.map(str::to_owned)[..], 2)
        );
        assert!(!found.is_complete());
        let text = found.text(2, Style::default());
        assert!(text.contains("\nh1*   a     -          2.00 k B/s"), "{text}");
        assert!(text.ends_with("\n2 of 4 pods, of 2 of 5 hosts\n"), "{text}");
        assert_eq!(found.value(1)["pods"].as_array().map(Vec::len), Some(1));
    }
}
