//! Pure. `vlan`, `vlanTrunk` and `preserveDefaultVlan`: the VLANs of a pod's bridge port.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use crate::cni::json::JsonField;
use crate::net::IfName;
use crate::net::gather::Gather;

/// The numbers of VLANs. Source: IEEE 802.1Q; 0 is none, and 4095 is reserved.
const NUMBERS: RangeInclusive<u32> = 1..=4094;

/// The VLANs that the port of every pod of the network is in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VlanConf {
    /// `vlan`: that of frames without a tag.
    pub access: Option<u16>,
    /// `vlanTrunk`: with tags. Never `access`.
    pub trunk: BTreeSet<u16>,
    /// `preserveDefaultVlan`: the port stays in the VLAN that the bridge gives each new port.
    pub keeps_default: bool,
    /// The interface with the gateways' addresses, where it is not the bridge: `BRIDGE.VLAN`.
    pub gateway: Option<IfName>,
}

/// What VLANs do not go together with.
pub(super) struct Beside<'a> {
    pub bridge: &'a IfName,
    pub create_bridge: bool,
    pub is_gateway: bool,
    pub has_policy: bool,
    pub has_host_ports: bool,
    pub is_guarded: bool,
}

impl VlanConf {
    /// The port is in other VLANs than the bridge gives it.
    pub fn is_any(&self) -> bool {
        self.access.is_some() || !self.trunk.is_empty()
    }

    pub(super) fn read(conf: &JsonField, beside: &Beside<'_>) -> VlanConf {
        let access = conf.get("vlan").and_then(|field| field.number(0..=*NUMBERS.end()));
        let access = access.filter(|number| *number != 0).map(id);
        let right = "VLANs {id} or {minID, maxID}";
        let trunk = conf.get("vlanTrunk");
        let ranges = trunk.and_then(|field| field.list(right, |member| Some(range(&member))));
        let trunk: BTreeSet<u16> = ranges.unwrap_or_default().into_iter().flatten().gather();
        let preserve = conf.get("preserveDefaultVlan").and_then(|flag| flag.bool());
        let read = VlanConf { access, trunk, ..VlanConf::default() };
        if !read.is_any() {
            return VlanConf::default();
        }
        read.refuse(conf, beside);
        let gateway = access.filter(|_| beside.is_gateway);
        let gateway = gateway.and_then(|vlan| gateway_name(conf, beside.bridge, vlan));
        VlanConf { keeps_default: preserve.unwrap_or_default(), gateway, ..read }
    }

    /// The errors of VLANs that cannot be had together with other keys.
    fn refuse(&self, conf: &JsonField, beside: &Beside<'_>) {
        let key = if self.access.is_some() { "vlan" } else { "vlanTrunk" };
        if !beside.create_bridge {
            conf.fault_at(key, "the agent's bridge (createBridge: false) has no VLANs");
        }
        if beside.has_policy {
            conf.fault_at(key, "a network with policy has no VLANs");
        }
        // Where br_netfilter is loaded, netfilter sees what a pod sends come in by the bridge, not by the
        // interface for the VLAN (kernel: net/bridge/br_netfilter_hooks.c), and the rules of host ports do not hold.
        if self.access.is_some() && beside.has_host_ports {
            conf.fault_at("runtimeConfig.portMappings", "pods in a vlan have no host ports");
        }
        if !self.trunk.is_empty() && beside.is_guarded {
            let text = "what pods send with a tag cannot be guarded; podGuard: false does without";
            conf.fault_at("vlanTrunk", text);
        }
        if let Some(access) = self.access.filter(|access| self.trunk.contains(access)) {
            let text = format!("{access} is the port's vlan, and cannot have a tag there as well");
            conf.fault_at("vlanTrunk", text);
        }
    }
}

/// The VLANs of one member of `vlanTrunk`; none if it is invalid.
fn range(member: &JsonField) -> Vec<u16> {
    let number = |key: &str| member.get(key).and_then(|field| field.number(NUMBERS));
    let has = |key: &str| member.get(key).is_some();
    if !has("id") && !has("minID") && !has("maxID") {
        member.refuse::<()>("a VLAN {id} or {minID, maxID}");
    }
    if has("minID") != has("maxID") {
        member.fault::<()>("minID and maxID are both needed");
    }
    let mut vlans: Vec<u16> = number("id").into_iter().map(id).collect();
    if let (Some(first), Some(last)) = (number("minID"), number("maxID")) {
        if first > last {
            member.fault::<()>(format!("minID {first} is greater than maxID {last}"));
        }
        vlans.extend((first..=last).map(id));
    }
    vlans
}

/// The name of the interface with the gateways' addresses: that of the reference plugin bridge.
fn gateway_name(conf: &JsonField, bridge: &IfName, vlan: u16) -> Option<IfName> {
    match format!("{bridge}.{vlan}").parse() {
        Ok(name) => Some(name),
        Err(error) => {
            conf.fault_at("bridge", format!("the gateway's interface for vlan {vlan}: {error}"));
            None
        }
    }
}

/// A number in [`NUMBERS`].
fn id(number: u32) -> u16 {
    u16::try_from(number).expect("at most 4094")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::cni::json::FieldErrors;

    /// The VLANs that `keys` mean on the bridge `br0` of a host without an agent, or the errors.
    fn read(keys: &Value, is_guarded: bool) -> Result<VlanConf, Vec<String>> {
        let bridge = "br0".parse().unwrap();
        let beside = Beside {
            bridge: &bridge,
            create_bridge: true,
            is_gateway: true,
            has_policy: false,
            has_host_ports: false,
            is_guarded,
        };
        read_beside(keys, &beside)
    }

    fn read_beside(keys: &Value, beside: &Beside<'_>) -> Result<VlanConf, Vec<String>> {
        let faults = FieldErrors::default();
        let conf = VlanConf::read(&JsonField::root(keys, &faults), beside);
        let faults: Vec<String> = faults.into_vec().iter().map(ToString::to_string).collect();
        if faults.is_empty() { Ok(conf) } else { Err(faults) }
    }

    #[test]
    fn a_vlan_has_its_own_gateway_and_leaves_the_default_one() {
        for keys in [json!({ "vlan": 100 }), json!({ "vlan": 100, "preserveDefaultVlan": false })] {
            let conf = read(&keys, true).unwrap();
            assert_eq!((conf.access, conf.keeps_default), (Some(100), false));
            assert_eq!(conf.gateway.unwrap().as_str(), "br0.100");
        }
        let keys = json!({ "vlan": 1, "preserveDefaultVlan": true });
        assert!(read(&keys, true).unwrap().keeps_default);
        for none in [json!({}), json!({ "vlan": 0, "vlanTrunk": [], "preserveDefaultVlan": true })]
        {
            assert_eq!(read(&none, true), Ok(VlanConf::default()));
        }
    }

    #[test]
    fn a_trunk_is_the_union_of_its_members_without_the_default_vlan() {
        let trunk = json!([{ "id": 101 }, { "minID": 200, "maxID": 203 }, { "minID": 202, "maxID": 204, "id": 9 }]);
        let conf = read(&json!({ "vlanTrunk": trunk }), false).unwrap();
        assert_eq!(conf.trunk, BTreeSet::from([9, 101, 200, 201, 202, 203, 204]));
        assert_eq!((conf.access, conf.gateway, conf.keeps_default), (None, None, false));
        let keys = json!({ "vlanTrunk": trunk, "preserveDefaultVlan": true });
        assert!(read(&keys, false).unwrap().keeps_default);
        let conf = read(&json!({ "vlan": 7, "vlanTrunk": trunk }), false).unwrap();
        assert_eq!((conf.access, conf.keeps_default), (Some(7), false));
        let whole = read(&json!({ "vlanTrunk": [{ "minID": 1, "maxID": 4094 }] }), false).unwrap();
        assert_eq!(whole.trunk.len(), 4094);
    }

    #[test]
    fn every_invalid_number_and_range_is_refused_with_its_place() {
        let trunk = |member: Value| json!({ "vlanTrunk": [member] });
        for (keys, expected) in [
            (json!({ "vlan": -1 }), "vlan: must be a whole number from 0 to 4094"),
            (json!({ "vlan": 4095 }), "vlan: must be"),
            (json!({ "vlan": 65636 }), "vlan: must be"),
            (json!({ "vlan": "5" }), "vlan: must be"),
            (json!({ "vlanTrunk": 5 }), "vlanTrunk: must be a list"),
            (trunk(json!(5)), "vlanTrunk[0]: must be a VLAN"),
            (trunk(json!({})), "vlanTrunk[0]: must be a VLAN"),
            (trunk(json!({ "id": 0 })), "vlanTrunk[0].id: must be"),
            (trunk(json!({ "id": 4095 })), "vlanTrunk[0].id: must be"),
            (trunk(json!({ "minID": 5 })), "vlanTrunk[0]: minID and maxID are both needed"),
            (trunk(json!({ "maxID": 5 })), "vlanTrunk[0]: minID and maxID are both needed"),
            (trunk(json!({ "minID": 0, "maxID": 5 })), "vlanTrunk[0].minID: must be"),
            (
                trunk(json!({ "minID": 1, "maxID": 4_294_967_295u32 })),
                "vlanTrunk[0].maxID: must be",
            ),
            (
                trunk(json!({ "minID": 9, "maxID": 5 })),
                "vlanTrunk[0]: minID 9 is greater than maxID 5",
            ),
            (
                json!({ "vlan": 5, "vlanTrunk": [{ "minID": 4, "maxID": 6 }] }),
                "vlanTrunk: 5 is the port's vlan",
            ),
            (json!({ "vlan": 5, "preserveDefaultVlan": 1 }), "preserveDefaultVlan: must be"),
        ] {
            let faults = read(&keys, false).unwrap_err();
            assert!(faults.len() == 1 && faults[0].starts_with(expected), "{keys}: {faults:?}");
        }
    }

    #[test]
    fn what_cannot_be_kept_apart_or_guarded_is_refused() {
        let trunk = json!({ "vlanTrunk": [{ "id": 5 }] });
        assert!(read(&trunk, true).unwrap_err()[0].contains("podGuard: false"));
        let long: IfName = "bridge-of-12".parse().unwrap();
        let beside = Beside {
            bridge: &long,
            create_bridge: false,
            is_gateway: true,
            has_policy: true,
            has_host_ports: true,
            is_guarded: false,
        };
        let faults = read_beside(&json!({ "vlan": 4000 }), &beside).unwrap_err();
        assert_eq!(faults.len(), 4, "{faults:?}");
        for (fault, expected) in
            faults.iter().zip(["createBridge", "policy", "host ports", "longer than 15"])
        {
            assert!(fault.contains(expected), "{fault}");
        }
        let without = Beside {
            is_gateway: false,
            create_bridge: true,
            has_policy: false,
            has_host_ports: false,
            ..beside
        };
        assert_eq!(read_beside(&json!({ "vlan": 4000 }), &without).unwrap().gateway, None);
    }
}
