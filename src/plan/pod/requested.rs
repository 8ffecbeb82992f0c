//! Pure. What a pod's interface shall be beyond plugged in: limited, tuned. It holds for an interface
//! of ours as for one that another plugin of the chain made.

use std::collections::BTreeMap;

use crate::cni::{Bandwidth, Tuning};
use crate::net::IfName;
use crate::netlink::link_settings::LinkSettings;
use crate::os::sysctl;
use crate::plan::bandwidth::{Queues, queues};
use crate::plan::pod::PodDifference;

const HOST: &str = "on the host";
const POD: &str = "in the pod";

/// What is asked for beyond the interface itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestedSettings {
    /// What holds it to its bandwidth.
    pub queues: Queues,
    /// How the pod's end is set.
    pub tune: LinkSettings,
    /// Settings of the pod's namespace: path below /proc/sys, value.
    pub settings: Vec<(String, String)>,
}

/// What of it there is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FoundSettings {
    /// What our queue holds the host's end to, bytes in a second; `None` also if nobody looked.
    pub host_rate: Option<u64>,
    /// What our queue holds the pod's end to.
    pub pod_rate: Option<u64>,
    /// How the pod's end is set.
    pub tune: LinkSettings,
    /// Settings of the pod's namespace, as far as they are there.
    pub settings: BTreeMap<String, String>,
}

impl RequestedSettings {
    /// What a configuration asks for of the interface `ifname` with an MTU of `mtu` bytes. (MAC and
    /// MTU are for whoever makes the interface.)
    pub fn of(
        bandwidth: &Bandwidth,
        tuning: &Tuning,
        ifname: &IfName,
        mtu: u32,
    ) -> RequestedSettings {
        let tune = LinkSettings {
            mac: None,
            mtu: None,
            promisc: tuning.promisc.then_some(true),
            all_multicast: tuning.all_multicast,
            tx_queue_len: tuning.tx_queue_len,
        };
        let settings = tuning.sysctls.iter();
        let settings = settings.map(|sysctl| (sysctl.key.path(ifname), sysctl.value.clone()));
        RequestedSettings { queues: queues(bandwidth, mtu), tune, settings: settings.collect() }
    }

    /// What in `found` is not so, of the links `host` and `pod`.
    pub fn differences(
        &self,
        found: &FoundSettings,
        host: &IfName,
        pod: &IfName,
    ) -> Vec<PodDifference> {
        let mut differences = Vec::new();
        for (place, link, wanted, found) in [
            (HOST, host, self.queues.host, found.host_rate),
            (POD, pod, self.queues.pod, found.pod_rate),
        ] {
            let wanted = wanted.map(|bucket| bucket.rate_bytes);
            if let Some(wanted) = wanted.filter(|wanted| found != Some(*wanted)) {
                differences.push(PodDifference::WrongRate(place, link.clone(), wanted, found));
            }
        }
        differences.extend(not_tuned(pod, &self.tune, &found.tune));
        for (path, wanted) in &self.settings {
            let found = found.settings.get(path);
            if !found.is_some_and(|found| sysctl::is_same(found, wanted)) {
                let (path, wanted) = (path.clone(), wanted.clone());
                differences.push(PodDifference::WrongSetting(path, wanted, found.cloned()));
            }
        }
        differences
    }
}

fn not_tuned(link: &IfName, wanted: &LinkSettings, found: &LinkSettings) -> Vec<PodDifference> {
    let flag = |word: &'static str, wanted: Option<bool>, found: Option<bool>| {
        let wanted = wanted.filter(|_| wanted != found)?;
        Some(format!("is{} {word}", if wanted { " not" } else { "" }))
    };
    let number = |wanted: Option<u32>, found| wanted.filter(|_| wanted != found);
    let texts = [
        flag("promiscuous", wanted.promisc, found.promisc),
        flag("open to all multicast", wanted.all_multicast, found.all_multicast),
        number(wanted.tx_queue_len, found.tx_queue_len)
            .map(|length| format!("has no queue of {length} packets")),
        number(wanted.mtu, found.mtu).map(|mtu| format!("has no MTU of {mtu}")),
    ];
    let mac = wanted.mac.filter(|_| wanted.mac != found.mac);
    let mac = mac.map(|mac| PodDifference::WrongMac(POD, link.clone(), mac, found.mac));
    let texts = texts.into_iter().flatten();
    texts.map(|text| PodDifference::NotTuned(link.clone(), text)).chain(mac).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::qdisc::TokenBucket;

    fn check(asked: &RequestedSettings, found: &FoundSettings, texts: &[&str]) {
        let [host, pod] = ["hz1", "eth0"].map(|name| name.parse().unwrap());
        let differences = asked.differences(found, &host, &pod);
        assert_eq!(differences.iter().map(PodDifference::to_string).collect::<Vec<_>>(), texts);
    }

    #[test]
    fn a_limit_that_was_asked_for_is_compared() {
        let bucket = Some(TokenBucket { rate_bytes: 1000, burst_bytes: 1, limit_bytes: 1 });
        let queues = Queues { host: bucket, pod: bucket };
        let limited = RequestedSettings { queues, ..RequestedSettings::default() };
        let found =
            |host_rate, pod_rate| FoundSettings { host_rate, pod_rate, ..FoundSettings::default() };
        check(&limited, &found(Some(1000), Some(1000)), &[]);
        let host = "interface hz1 on the host is limited to nothing, not 1000 bytes a second";
        let pod = "interface eth0 in the pod is limited to 999, not 1000 bytes a second";
        check(&limited, &found(None, Some(999)), &[host, pod]);
        check(&RequestedSettings::default(), &found(Some(7), Some(7)), &[]);
    }

    #[test]
    fn what_was_tuned_is_compared() {
        let tune = LinkSettings {
            promisc: Some(true),
            all_multicast: Some(false),
            tx_queue_len: Some(500),
            mtu: Some(1400),
            ..LinkSettings::default()
        };
        let key = || "net/ipv4/ip_local_port_range".to_owned();
        let settings = vec![(key(), "1024 65535".to_owned())];
        let tuned = RequestedSettings { tune, settings, ..RequestedSettings::default() };
        let found = |tune, value: &str| FoundSettings {
            tune,
            settings: BTreeMap::from([(key(), value.to_owned())]),
            ..FoundSettings::default()
        };
        check(&tuned, &found(tune, "1024\t65535"), &[]);
        let other = LinkSettings {
            promisc: Some(false),
            all_multicast: Some(true),
            tx_queue_len: Some(1000),
            mtu: Some(1500),
            ..LinkSettings::default()
        };
        let texts = [
            "interface eth0 in the pod is not promiscuous",
            "interface eth0 in the pod is open to all multicast",
            "interface eth0 in the pod has no queue of 500 packets",
            "interface eth0 in the pod has no MTU of 1400",
            "sysctl net/ipv4/ip_local_port_range in the pod is 1, not 1024 65535",
        ];
        check(&tuned, &found(other, "1"), &texts);
    }
}
