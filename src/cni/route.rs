//! Pure. Routes of configurations and results.

use std::net::IpAddr;

use ipnetwork::IpNetwork;
use serde_json::{Value, json};

use crate::cni::json::{JsonField, object};
use crate::cni::version::Version;
use crate::net::Family;

/// One route of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CniRoute {
    /// Without host bits if from a configuration.
    pub dst: IpNetwork,
    /// Absent: the gateway of the container's address of that family.
    pub gw: Option<IpAddr>,
    /// Bytes; at least 1.
    pub mtu: Option<u32>,
    /// Bytes; at least 1.
    pub advmss: Option<u32>,
    /// The metric; at least 1.
    pub priority: Option<u32>,
    /// Routing table; 0 (unspecified) is not the same as absent.
    pub table: Option<u32>,
    /// `rtm_scope` of linux/rtnetlink.h; 0 (universe) is not the same as absent.
    pub scope: Option<u8>,
}

impl CniRoute {
    pub fn new(dst: IpNetwork, gw: Option<IpAddr>) -> CniRoute {
        CniRoute { dst, gw, mtu: None, advmss: None, priority: None, table: None, scope: None }
    }

    pub fn family(&self) -> Family {
        Family::of(self.dst.ip())
    }

    pub fn is_default(&self) -> bool {
        self.dst.prefix() == 0
    }

    /// A route of a configuration.
    pub(super) fn read_configured(field: &JsonField) -> Option<CniRoute> {
        let route = CniRoute::read(field)?;
        field.get("dst")?.network()?;
        match route.gw {
            Some(gw) if Family::of(gw) != route.family() => {
                field.fault(format!("gateway {gw} is not of the family of {}", route.dst))
            }
            _ => Some(route),
        }
    }

    /// A route of a result.
    pub(super) fn read(field: &JsonField) -> Option<CniRoute> {
        if !field.value().is_object() {
            return field.refuse("an object {dst, gw}");
        }
        let Some(dst) = field.get("dst") else {
            return field.fault("dst is missing");
        };
        let counted = |key: &str| field.get(key)?.number(0..=u32::MAX).filter(|n| *n != 0);
        let scope = field.get("scope").and_then(|scope| scope.number(0..=255));
        Some(CniRoute {
            dst: dst.cidr()?,
            gw: field.get("gw").and_then(|gw| gw.address()),
            mtu: counted("mtu"),
            advmss: counted("advmss"),
            priority: counted("priority"),
            table: field.get("table").and_then(|table| table.number(0..=u32::MAX)),
            scope: scope.and_then(|scope| u8::try_from(scope).ok()),
        })
    }

    /// As in a result of `version`: only `dst` and `gw` before 1.0.0.
    pub(super) fn to_json(self, version: Version) -> Value {
        let newer =
            |value: Option<u32>| value.filter(|_| version >= Version::V100).map(Value::from);
        object([
            ("dst", Some(json!(self.dst.to_string()))),
            ("gw", self.gw.map(|gw| json!(gw.to_string()))),
            ("mtu", newer(self.mtu)),
            ("advmss", newer(self.advmss)),
            ("priority", newer(self.priority)),
            ("table", newer(self.table)),
            ("scope", newer(self.scope.map(u32::from))),
        ])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cni::json::{FieldError, FieldErrors};

    fn read(document: Value) -> (Option<CniRoute>, Vec<String>) {
        let faults = FieldErrors::default();
        let route = CniRoute::read_configured(&JsonField::root(&document, &faults));
        (route, faults.into_vec().iter().map(FieldError::to_string).collect())
    }

    #[test]
    fn every_key_is_read_and_written() {
        let document = json!({
            "dst": "10.0.0.0/8", "gw": "10.1.2.1", "mtu": 1400, "advmss": 1360,
            "priority": 100, "table": 5000, "scope": 200,
        });
        let (route, faults) = read(document.clone());
        assert_eq!((route.unwrap().to_json(Version::V110), faults.len()), (document, 0));
    }

    #[test]
    fn older_results_have_only_destination_and_gateway() {
        let (route, _) = read(json!({ "dst": "::/0", "gw": "fd00::1", "mtu": 1400, "table": 0 }));
        let expected = json!({ "dst": "::/0", "gw": "fd00::1" });
        assert_eq!(route.unwrap().to_json(Version::V040), expected);
    }

    #[test]
    fn zero_is_absent_but_for_table_and_scope() {
        let zeros = json!({ "mtu": 0, "advmss": 0, "priority": 0, "table": 0, "scope": 0,
            "dst": "0.0.0.0/0", "gw": "" });
        let (route, faults) = read(zeros);
        let expected = json!({ "dst": "0.0.0.0/0", "table": 0, "scope": 0 });
        assert_eq!((route.unwrap().to_json(Version::V110), faults.len()), (expected, 0));
    }

    #[test]
    fn invalid_routes_are_refused() {
        for (bad, why) in [
            (json!({ "gw": "10.0.0.1" }), ": dst is missing"),
            (json!({ "dst": "10.0.0.1" }), "dst: must be an address with a prefix length"),
            (json!({ "dst": "10.0.0.1/8" }), "dst: 10.0.0.1/8 has host bits set"),
            (json!({ "dst": "::/0", "gw": "10.0.0.1" }), "gateway 10.0.0.1 is not of the family"),
            (json!({ "dst": "::/0", "scope": 256 }), "scope: must be a whole number from 0 to 255"),
            (json!({ "dst": "::/0", "table": -1 }), "table: must be"),
            (json!({ "dst": "::/0", "mtu": "1400" }), "mtu: must be"),
            (json!("default"), "must be an object"),
        ] {
            let (_, faults) = read(bad);
            assert!(faults.len() == 1 && faults[0].contains(why), "{why:?}: {faults:?}");
        }
    }
}
