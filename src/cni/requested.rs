//! Pure. Addresses and MAC that a pod requests, and the precedence of several sources.

use ipnetwork::IpNetwork;

use crate::cni::json::{JsonField, address_or_cidr};
use crate::cni::pod_keys;
use crate::net::Mac;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestedAddresses {
    /// All of them must be available; empty: any. The prefix length (/32 or /128 if none was written)
    /// is used only without ranges.
    pub ips: Vec<IpNetwork>,
    pub mac: Option<Mac>,
}

impl RequestedAddresses {
    /// `self`; what it does not have, from `other`. Addresses are never mixed.
    ///
    /// Source: CNI conventions: a capability takes precedence over `args`, and `args` over `CNI_ARGS`.
    pub fn or(self, other: RequestedAddresses) -> RequestedAddresses {
        let ips = if self.ips.is_empty() { other.ips } else { self.ips };
        RequestedAddresses { ips, mac: self.mac.or(other.mac) }
    }

    /// The annotation `humanz.io/ip`: addresses separated by commas.
    pub(super) fn annotated(annotations: &JsonField) -> RequestedAddresses {
        let asked = annotations.get(pod_keys::IP).and_then(|asked| {
            let right = "addresses separated by commas, as in 10.244.1.7,fd00::7";
            let addresses = asked.filled()?.split(',').map(str::trim).map(address_or_cidr);
            addresses.collect::<Option<Vec<_>>>().or_else(|| asked.refuse(right))
        });
        RequestedAddresses { ips: asked.unwrap_or_default(), mac: None }
    }

    /// The keys `ips` (with or without prefix lengths) and `mac` of an object.
    pub(super) fn read(field: &JsonField) -> RequestedAddresses {
        let list = field.get("ips");
        let ips = list.and_then(|list| list.list("addresses", |ip| ip.address_or_cidr()));
        let mac = field.get("mac").and_then(|mac| mac.parsed());
        RequestedAddresses { ips: ips.unwrap_or_default(), mac }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cni::json::FieldErrors;

    fn requested(ips: &[&str], mac: &str) -> RequestedAddresses {
        let ips = ips.iter().map(|ip| ip.parse().unwrap()).collect();
        RequestedAddresses { ips, mac: mac.parse().ok() }
    }

    #[test]
    fn an_annotation_requests_addresses() {
        let read = |text: &str| {
            let document = serde_json::json!({ "humanz.io/ip": text, "other": 7 });
            let faults = FieldErrors::default();
            let requested = RequestedAddresses::annotated(&JsonField::root(&document, &faults));
            (requested, faults.into_vec().len())
        };
        let asked = requested(&["10.1.2.3/32", "fd00::3/128"], "");
        assert_eq!(read("10.1.2.3, fd00::3"), (asked, 0));
        assert_eq!(read(""), (RequestedAddresses::default(), 0));
        for bad in ["10.1.2.300", "10.1.2.3,", "10.1.2.3;reboot", "default"] {
            assert_eq!(read(bad), (RequestedAddresses::default(), 1), "{bad:?}");
        }
    }

    #[test]
    fn precedence_is_by_key() {
        let strong = requested(&["10.1.2.3"], "");
        let weak = requested(&["10.1.2.4", "fd00::4"], "0a:00:00:00:00:04");
        assert_eq!(strong.clone().or(weak.clone()), requested(&["10.1.2.3"], "0a:00:00:00:00:04"));
        assert_eq!(weak.clone().or(strong), weak);
        assert_eq!(RequestedAddresses::default().or(weak.clone()), weak);
    }
}
