//! Pure. Requested settings of a pod's interface and network namespace.

use std::collections::BTreeSet;

use crate::cni::json::JsonField;
use crate::cni::sysctl::{self, Sysctl, SysctlKey};
use crate::net::gather::Gather;

/// The keys of the reference plugin `tuning` except `mac`, which every plugin has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tuning {
    /// `mtu`, bytes.
    pub mtu: Option<u32>,
    /// `promisc`: receive frames for every MAC.
    pub promisc: bool,
    /// `allmulti`: receive every multicast frame.
    pub all_multicast: Option<bool>,
    /// `txQLen`, packets.
    pub tx_queue_len: Option<u32>,
    /// `sysctl`, without duplicates.
    pub sysctls: Vec<Sysctl>,
}

impl Tuning {
    /// These keys of an object; `mtu`, which depends on other keys, has been read.
    pub(super) fn read(field: &JsonField, mtu: Option<u32>) -> Tuning {
        let flag = |key: &str| field.get(key).and_then(|flag| flag.bool());
        let length = field.get("txQLen").and_then(|length| length.number(0..=u32::MAX));
        Tuning {
            mtu,
            promisc: flag("promisc").unwrap_or(false),
            all_multicast: flag("allmulti"),
            tx_queue_len: length,
            sysctls: field.object("sysctl").map(|map| sysctls(&map)).unwrap_or_default(),
        }
    }

    /// `self`; what it does not have, from `other`.
    ///
    /// Source: the reference plugin: `args.cni` takes precedence over the configuration, by key.
    pub(super) fn or(self, other: Tuning) -> Tuning {
        let mut sysctls = other.sysctls;
        let own: BTreeSet<&SysctlKey> = self.sysctls.iter().map(|sysctl| &sysctl.key).gather();
        sysctls.retain(|sysctl| !own.contains(&sysctl.key));
        sysctls.extend(self.sysctls);
        Tuning {
            mtu: self.mtu.or(other.mtu),
            promisc: self.promisc || other.promisc,
            all_multicast: self.all_multicast.or(other.all_multicast),
            tx_queue_len: self.tx_queue_len.or(other.tx_queue_len),
            sysctls,
        }
    }
}

fn sysctls(map: &JsonField) -> Vec<Sysctl> {
    let (mut found, mut keys) = (Vec::new(), BTreeSet::new());
    for (name, field) in map.entries() {
        let Some(text) = field.text() else { continue };
        let read = name.parse::<SysctlKey>().and_then(|key| Ok((key, sysctl::value(text)?)));
        let sysctl = match read {
            Err(error) => field.fault(error.to_string()),
            Ok((key, _)) if !keys.insert(key.clone()) => field.fault("is a duplicate"),
            Ok((key, value)) => Some(Sysctl { key, value }),
        };
        found.extend(sysctl);
    }
    found
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::cni::json::{FieldError, FieldErrors};

    fn read(document: Value) -> (Tuning, Vec<String>) {
        let faults = FieldErrors::default();
        let tuning = Tuning::read(&JsonField::root(&document, &faults), None);
        (tuning, faults.into_vec().iter().map(FieldError::to_string).collect())
    }

    fn pairs(tuning: &Tuning) -> Vec<String> {
        let text = |sysctl: &Sysctl| format!("{}={}", sysctl.key, sysctl.value);
        tuning.sysctls.iter().map(text).collect()
    }

    #[test]
    fn the_keys_of_the_reference_plugin_are_read() {
        let (tuning, faults) = read(json!({ "promisc": true, "allmulti": false, "txqlen": 500,
            "sysctl": { "net.core.somaxconn": "500", "net/ipv4/conf/IFNAME/rp_filter": "2" } }));
        assert_eq!(faults, Vec::<String>::new());
        assert!(tuning.promisc);
        assert_eq!((tuning.all_multicast, tuning.tx_queue_len), (Some(false), Some(500)));
        let wanted = ["net/core/somaxconn=500", "net/ipv4/conf/IFNAME/rp_filter=2"];
        assert_eq!(pairs(&tuning), wanted);
        assert_eq!(read(json!({})).0, Tuning::default());
    }

    #[test]
    fn errors_have_path_and_reason() {
        for (bad, why) in [
            (json!({ "sysctl": { "kernel.panic": "1" } }), "sysctl.kernel.panic: \"kernel.panic\""),
            (json!({ "sysctl": { "net.core.somaxconn": 500 } }), "must be a text, not 500"),
            (json!({ "sysctl": { "net.core.somaxconn": "" } }), "the value is empty"),
            (
                json!({ "sysctl": { "net.core.somaxconn": "1", "net/core/somaxconn": "2" } }),
                "is a duplicate",
            ),
            (json!({ "sysctl": [] }), "sysctl: must be an object"),
            (json!({ "txQLen": -1 }), "txQLen: must be a whole number"),
            (json!({ "promisc": "yes" }), "promisc: must be true or false"),
        ] {
            let (_, faults) = read(bad);
            assert!(faults.len() == 1 && faults[0].contains(why), "{why:?}: {faults:?}");
        }
    }

    #[test]
    fn precedence_is_by_key() {
        let strong = json!({ "txQLen": 7, "sysctl": { "net.core.somaxconn": "1" } });
        let weak = json!({ "txQLen": 8, "promisc": true,
            "sysctl": { "net/core/somaxconn": "2", "net.unix.max_dgram_qlen": "3" } });
        let both = read(strong).0.or(read(weak).0);
        assert_eq!((both.tx_queue_len, both.promisc), (Some(7), true));
        assert_eq!(pairs(&both), ["net/unix/max_dgram_qlen=3", "net/core/somaxconn=1"]);
    }
}
