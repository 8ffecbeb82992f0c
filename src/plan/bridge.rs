//! Pure. What must change on the bridge.

use ipnetwork::IpNetwork;

use crate::net::{IfName, Mac, Object, Problem, ProblemKind, subnet};

/// The bridge as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bridge {
    pub name: IfName,
    /// Stable: pods have it in their neighbour tables.
    pub mac: Mac,
    /// In bytes.
    pub mtu: u32,
    /// Gateway addresses with the prefix length of the pod subnet.
    pub addresses: Vec<IpNetwork>,
    /// The pools of the cluster: an address inside one of them that is not wanted is of an earlier
    /// lease.
    pub pools: Vec<IpNetwork>,
}

/// The device of that name, or what was the bridge and has another name now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundBridge {
    pub name: IfName,
    pub kind: Option<String>,
    pub mac: Option<Mac>,
    /// In bytes.
    pub mtu: u32,
    /// Administratively up.
    pub up: bool,
    /// Spanning tree keeps new ports silent for seconds.
    pub delays_ports: bool,
    /// With host bits.
    pub addresses: Vec<IpNetwork>,
}

/// A bridge of another name that bears the mark of humanz and the MAC of the wanted one: it was renamed, or
/// copied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MarkedBridge {
    pub name: IfName,
    /// How many pods are plugged into it.
    pub pods: usize,
}

/// One step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BridgeChange {
    /// Create it with MAC and MTU, without spanning tree, and set it up.
    Create(Bridge),
    /// Give it, which now has the first name, its own one back: pods are plugged into it.
    Rename(IfName, IfName),
    SetMac(IfName, Mac),
    /// In bytes.
    SetMtu(IfName, u32),
    /// Turn spanning tree off.
    StopDelays(IfName),
    SetUp(IfName),
    /// An address of an earlier lease.
    RemoveAddress(IfName, IpNetwork),
    /// A missing gateway address.
    AddAddress(IfName, IpNetwork),
}

/// Which of the `marked` is the wanted bridge, where none has its name: the only one, or the only one with
/// pods. The others are problems, and are left alone.
pub fn renamed(
    wanted: &Bridge,
    is_chosen: bool,
    marked: &[MarkedBridge],
) -> (Option<IfName>, Vec<Problem>) {
    let mut used = marked.iter().filter(|bridge| bridge.pods > 0);
    let only = match (marked, used.next(), used.next()) {
        ([only], ..) | (_, Some(only), None) if !is_chosen => Some(only),
        _ => None,
    };
    let own = &wanted.name;
    let fix = |name: &IfName| match is_chosen || only.is_some() {
        true => {
            format!("ip link show master {name} # start its pods anew, then: ip link del {name}")
        }
        false => format!(
            "ip link set {name} down && ip link set {name} name {own} # if this is the right one; remove the \
             others"
        ),
    };
    let others = marked.iter().filter(|bridge| Some(*bridge) != only);
    let problem = |MarkedBridge { name, pods }: &MarkedBridge| {
        let what = format!("bridge {name} has the mark and the MAC of {own}, too, and {pods} pods");
        let subject = Object::Bridge(name.clone());
        Problem::new(ProblemKind::ForeignLink, subject, what).with_fix(fix(name))
    };
    (only.map(|bridge| bridge.name.clone()), others.map(problem).collect())
}

/// The steps that turn `found` into `wanted`, in the order to take them.
///
/// Addresses outside the cluster's pools are not ours and stay.
///
/// # Errors
/// [`ProblemKind::ForeignLink`] if the name belongs to something that is no bridge.
pub fn changes(
    wanted: &Bridge,
    found: Option<&FoundBridge>,
) -> Result<Vec<BridgeChange>, Box<Problem>> {
    let name = || wanted.name.clone();
    let Some(found) = found else {
        let addresses =
            wanted.addresses.iter().map(|address| BridgeChange::AddAddress(name(), *address));
        return Ok(std::iter::once(BridgeChange::Create(wanted.clone()))
            .chain(addresses)
            .collect());
    };
    if found.kind.as_deref() != Some("bridge") {
        return Err(foreign(&wanted.name, found.kind.as_deref()).into());
    }
    let mut changes = Vec::new();
    if found.name != wanted.name {
        changes.push(BridgeChange::Rename(found.name.clone(), name()));
    }
    if found.mac != Some(wanted.mac) {
        changes.push(BridgeChange::SetMac(name(), wanted.mac));
    }
    if found.mtu != wanted.mtu {
        changes.push(BridgeChange::SetMtu(name(), wanted.mtu));
    }
    if found.delays_ports {
        changes.push(BridgeChange::StopDelays(name()));
    }
    if !found.up {
        changes.push(BridgeChange::SetUp(name()));
    }
    let stale = |address: &&IpNetwork| {
        let of_a_pool = |pool: &IpNetwork| pool.contains(address.ip());
        !wanted.addresses.contains(address) && wanted.pools.iter().any(of_a_pool)
    };
    let remove = |address: &IpNetwork| BridgeChange::RemoveAddress(name(), *address);
    changes.extend(found.addresses.iter().filter(stale).map(remove));
    let missing = |address: &&IpNetwork| !found.addresses.contains(address);
    let add = |address: &IpNetwork| BridgeChange::AddAddress(name(), *address);
    changes.extend(wanted.addresses.iter().filter(missing).map(add));
    Ok(changes)
}

/// The link of the bridge's name is of `kind`; `None`: a physical device.
fn foreign(name: &IfName, kind: Option<&str>) -> Problem {
    let kind = kind.map_or("a physical device".into(), |kind| format!("a {kind}"));
    let what = format!("interface {name} exists and is {kind}, not a bridge");
    let fix = format!("ip link show {name} # remove it or set BRIDGE_NAME to another name");
    Problem::new(ProblemKind::ForeignLink, Object::Bridge(name.clone()), what).with_fix(fix)
}

/// The gateway address of `subnet` with the subnet's prefix length.
pub fn gateway(pod_subnet: IpNetwork) -> IpNetwork {
    subnet::with_prefix(subnet::gateway(pod_subnet), pod_subnet.prefix())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Describe;

    fn wanted() -> Bridge {
        Bridge {
            name: "humanz0".parse().unwrap(),
            mac: "0a:58:0a:f4:03:01".parse().unwrap(),
            mtu: 1500,
            addresses: vec![
                gateway("10.244.3.0/24".parse().unwrap()),
                gateway("fd00::/64".parse().unwrap()),
            ],
            pools: vec!["10.244.0.0/16".parse().unwrap(), "fd00::/48".parse().unwrap()],
        }
    }

    fn right() -> FoundBridge {
        FoundBridge {
            name: wanted().name,
            kind: Some("bridge".into()),
            mac: Some(wanted().mac),
            mtu: 1500,
            up: true,
            delays_ports: false,
            addresses: vec![
                "fe80::1/64".parse().unwrap(),
                "10.244.3.1/24".parse().unwrap(),
                "fd00::1/64".parse().unwrap(),
            ],
        }
    }

    #[test]
    fn of_several_bridges_with_our_mark_the_one_with_pods_is_ours_or_none() {
        let marked = |name: &str, pods| MarkedBridge { name: name.parse().unwrap(), pods };
        let check = |is_chosen, found: &[MarkedBridge], ours: &str, others: &[&str]| {
            let (renamed, problems) = renamed(&wanted(), is_chosen, found);
            assert_eq!(renamed.map_or(String::new(), |name| name.to_string()), ours);
            let subjects: Vec<String> =
                problems.iter().map(|problem| problem.subject.to_string()).collect();
            assert_eq!(subjects, others);
        };
        check(false, &[], "", &[]);
        check(false, &[marked("a", 0)], "a", &[]);
        check(false, &[marked("a", 0), marked("b", 2)], "b", &["bridge a"]);
        check(false, &[marked("a", 0), marked("b", 0)], "", &["bridge a", "bridge b"]);
        check(false, &[marked("a", 1), marked("b", 2)], "", &["bridge a", "bridge b"]);
        check(true, &[marked("a", 1)], "", &["bridge a"]);
    }

    fn check(found: Option<&FoundBridge>, expected: &[&str]) {
        let changes = changes(&wanted(), found).unwrap();
        let lines: Vec<String> = changes.iter().map(|change| change.line().to_string()).collect();
        assert_eq!(lines, expected);
    }

    #[test]
    fn a_missing_bridge_is_created_with_all_its_addresses() {
        check(
            None,
            &[
                "+ bridge humanz0 (mac 0a:58:0a:f4:03:01, mtu 1500)",
                "+ address 10.244.3.1/24 on bridge humanz0",
                "+ address fd00::1/64 on bridge humanz0",
            ],
        );
    }

    #[test]
    fn a_correct_bridge_is_not_changed() {
        check(Some(&right()), &[]);
    }

    #[test]
    fn a_renamed_bridge_gets_its_name_back() {
        let renamed = FoundBridge { name: "other".parse().unwrap(), up: false, ..right() };
        check(Some(&renamed), &["~ bridge humanz0: renamed from other", "~ bridge humanz0: up"]);
    }

    #[test]
    fn an_incomplete_bridge_is_completed() {
        let half = FoundBridge {
            mac: None,
            mtu: 1280,
            up: false,
            delays_ports: true,
            addresses: vec![],
            ..right()
        };
        check(
            Some(&half),
            &[
                "~ bridge humanz0: mac 0a:58:0a:f4:03:01",
                "~ bridge humanz0: mtu 1500",
                "~ bridge humanz0: spanning tree off",
                "~ bridge humanz0: up",
                "+ address 10.244.3.1/24 on bridge humanz0",
                "+ address fd00::1/64 on bridge humanz0",
            ],
        );
    }

    #[test]
    fn the_address_of_an_earlier_lease_is_replaced_and_a_foreign_one_stays() {
        let mut found = right();
        found.addresses[1] = "10.244.9.1/24".parse().unwrap();
        found.addresses.push("198.51.100.1/24".parse().unwrap());
        check(
            Some(&found),
            &[
                "- address 10.244.9.1/24 on bridge humanz0",
                "+ address 10.244.3.1/24 on bridge humanz0",
            ],
        );
    }

    #[test]
    fn the_network_address_that_the_python_agent_used_is_replaced() {
        let mut found = right();
        found.addresses[1] = "10.244.3.0/24".parse().unwrap();
        check(
            Some(&found),
            &[
                "- address 10.244.3.0/24 on bridge humanz0",
                "+ address 10.244.3.1/24 on bridge humanz0",
            ],
        );
    }

    #[test]
    fn a_device_that_is_not_a_bridge_is_refused_with_its_kind() {
        let veth = FoundBridge { kind: Some("veth".into()), ..right() };
        let error = changes(&wanted(), Some(&veth)).unwrap_err();
        assert_eq!(error.key(), (ProblemKind::ForeignLink, Object::Bridge(wanted().name)));
        assert_eq!(error.what, "interface humanz0 exists and is a veth, not a bridge");
    }
}
