//! Pure. What a host says of its members of a group, as a value in etcd.
//!
//! ```json
//! {"selector": "{\"pods\":…}", "members": [{"addresses": ["10.244.1.2"], "ports": []}]}
//! ```

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use ipnetwork::IpNetwork;
use serde::{Deserialize, Serialize};

use crate::net::gather::Gather;
use crate::net::hash;
use crate::net::node_name::NodeName;
use crate::net::subnet;
use crate::policy::members::FoundMembers;
use crate::policy::{Member, Selector};

/// What may be among the members of a host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostAddresses {
    /// Of its pods.
    pub subnets: Vec<IpNetwork>,
    /// Its own.
    pub nodes: Vec<IpAddr>,
}

/// The hosts of the network, as etcd has them.
pub type Hosts = BTreeMap<NodeName, HostAddresses>;

/// The id of a group: 32 hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupId(String);

/// Why what a host says of a group is ignored, all of it or a part.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SharedFault {
    #[error("more than {VALUE_LIMIT} bytes")]
    TooLong,
    #[error("{0}")]
    Malformed(String),
    #[error("it is about another group, {0}, with the same id")]
    Other(String),
    #[error("more than {MEMBERS_LIMIT} members")]
    TooMany,
    #[error("a member with more than {ADDRESSES_LIMIT} addresses")]
    TooManyAddresses,
    #[error("address {0} is not in that host's subnets")]
    Foreign(IpAddr),
}

/// Longest value, in bytes.
pub const VALUE_LIMIT: usize = 512 * 1024;

/// Members of one host in a group; a bridge has 1,023 ports.
const MEMBERS_LIMIT: usize = 4096;

/// Addresses of one member. A rule with a named port needs an element for each address and port of a
/// member: without a limit a value of [`VALUE_LIMIT`] bytes would become 10⁸ of them.
const ADDRESSES_LIMIT: usize = 16;

/// Characters of a text of others that are shown.
const SHOWN: usize = 120;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct AnnouncedMembers {
    selector: String,
    members: BTreeSet<Member>,
}

impl GroupId {
    /// The id of `selector`, the same on every host.
    pub fn of(selector: &Selector) -> GroupId {
        let text = selector.text();
        let (first, second) = (hash::stable(&["group", &text]), hash::stable(&["group 2", &text]));
        GroupId(format!("{first:016x}{second:016x}"))
    }

    /// `None` if it is no id.
    pub fn parse(text: &str) -> Option<GroupId> {
        let digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        (text.len() == 32 && text.bytes().all(digit)).then(|| GroupId(text.to_owned()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// `members` as far as they fit into a value: those with the most ports by name lose these first, so that no host takes
/// away those of others. `None`: they do not fit at all.
pub fn fitting(selector: &Selector, members: &FoundMembers) -> Option<FoundMembers> {
    let room = VALUE_LIMIT.checked_sub(2 * selector.text().len() + 64)?;
    let size = |member: &Member| 48 + 48 * member.addresses.len() + ports_size(member);
    let mut all: usize = members.iter().map(size).sum();
    if all <= room {
        return Some(Arc::clone(members));
    }
    let mut members: Vec<Member> = members.iter().cloned().collect();
    members.sort_by_key(|member| Reverse(ports_size(member)));
    for member in &mut members {
        if all > room {
            all -= ports_size(member);
            member.ports.clear();
        }
    }
    (all <= room).then(|| Arc::new(members.into_iter().collect()))
}

/// At most so many bytes in a value.
fn ports_size(member: &Member) -> usize {
    member.ports.iter().map(|port| 64 + port.name.as_str().len()).sum()
}

/// The value for `members` of a group.
pub fn write(selector: &Selector, members: &BTreeSet<Member>) -> String {
    let value = AnnouncedMembers { selector: selector.text(), members: members.clone() };
    serde_json::to_string(&value).expect("texts and numbers")
}

/// The members of the group `selector` in `bytes`, as far as a host may name them, and what is wrong with
/// the others.
pub fn read(
    bytes: &[u8],
    selector: &Selector,
    host: &HostAddresses,
) -> (BTreeSet<Member>, Option<SharedFault>) {
    let read = || -> Result<AnnouncedMembers, SharedFault> {
        if bytes.len() > VALUE_LIMIT {
            return Err(SharedFault::TooLong);
        }
        let shown = |text: &str| text.chars().take(SHOWN).collect();
        let malformed =
            |error: serde_json::Error| SharedFault::Malformed(shown(&error.to_string()));
        let value: AnnouncedMembers = serde_json::from_slice(bytes).map_err(malformed)?;
        if value.selector != selector.text() {
            return Err(SharedFault::Other(shown(&value.selector)));
        }
        if value.members.len() > MEMBERS_LIMIT {
            return Err(SharedFault::TooMany);
        }
        Ok(value)
    };
    let value = match read() {
        Ok(value) => value,
        Err(fault) => return (BTreeSet::new(), Some(fault)),
    };
    let (mut members, mut fault) = (BTreeSet::new(), None);
    for mut member in value.members {
        if member.addresses.len() > ADDRESSES_LIMIT {
            fault = fault.or(Some(SharedFault::TooManyAddresses));
            continue;
        }
        let foreign = member.addresses.iter().find(|address| !host.has(selector, **address));
        fault = fault.or(foreign.map(|address| SharedFault::Foreign(*address)));
        member.addresses.retain(|address| host.has(selector, *address));
        if !member.addresses.is_empty() {
            members.insert(member);
        }
    }
    (members, fault)
}

/// The hosts whose pods, or which themselves, have an address of `members`.
pub fn owners(members: &BTreeSet<Member>, hosts: &Hosts) -> BTreeSet<NodeName> {
    let addresses: BTreeSet<IpAddr> =
        members.iter().flat_map(|member| member.addresses.iter().copied()).gather();
    let has_some = |host: &&NodeName| {
        let HostAddresses { subnets, nodes } = &hosts[*host];
        let mut subnets =
            subnets.iter().map(|subnet| addresses.range(subnet.network()..=subnet.broadcast()));
        nodes.iter().any(|address| addresses.contains(address))
            || subnets.any(|mut found| found.next().is_some())
    };
    hosts.keys().filter(has_some).cloned().gather()
}

impl HostAddresses {
    /// Those of `members` of `selector` that are on this host.
    pub fn own(&self, selector: &Selector, members: &BTreeSet<Member>) -> BTreeSet<Member> {
        let is_own = |member: &&Member| member.addresses.iter().all(|it| self.has(selector, *it));
        members.iter().filter(is_own).cloned().gather()
    }

    /// A member of `selector` on this host may have `address`.
    fn has(&self, selector: &Selector, address: IpAddr) -> bool {
        match selector {
            Selector::Nodes(_) => {
                let gateway = |subnet: &IpNetwork| subnet::gateway(*subnet) == address;
                self.nodes.contains(&address) || self.subnets.iter().any(gateway)
            }
            _ => self.subnets.iter().any(|subnet| subnet.contains(address)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::Protocol;
    use crate::policy::NamedPort;

    fn host() -> HostAddresses {
        let subnets = ["10.244.1.0/24", "fd10:244:0:1::/64"];
        HostAddresses {
            subnets: subnets.map(|text| text.parse().unwrap()).into(),
            nodes: vec!["192.0.2.11".parse().unwrap()],
        }
    }

    fn members(addresses: &[&str]) -> BTreeSet<Member> {
        let member =
            |text: &&str| Member { addresses: vec![text.parse().unwrap()], ports: Vec::new() };
        addresses.iter().map(member).collect()
    }

    #[test]
    fn members_are_read_back_as_they_were_written() {
        let all = members(&["10.244.1.2", "fd10:244:0:1::2"]);
        let text = write(&Selector::every_pod(), &all);
        assert_eq!(read(text.as_bytes(), &Selector::every_pod(), &host()), (all, None));
        let id = GroupId::of(&Selector::every_pod());
        assert_eq!(GroupId::parse(id.as_str()), Some(id));
        for bad in ["", "x", &"g".repeat(32), &"A".repeat(32), "../../../../../../../../../../.."] {
            assert_eq!(GroupId::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn the_host_with_the_most_ports_loses_its_own_and_addresses_are_never_lost() {
        let every = Selector::every_pod();
        let pod = |number: u16, ports: u16| {
            let port = |port| {
                let name = format!("port-{port}").parse().unwrap();
                NamedPort { name, protocol: Protocol::Tcp, port }
            };
            let [high, low] = number.to_be_bytes();
            let address = IpAddr::from([10, 244, high, low]);
            Member { addresses: vec![address], ports: (1..=ports).map(port).collect() }
        };
        let check = |many: u16, ports: u16, with_few: usize| {
            let all: BTreeSet<Member> = (0..many)
                .map(|it| pod(it, ports))
                .chain((2000..2200).map(|it| pod(it, 5)))
                .collect();
            let fitting = fitting(&every, &Arc::new(all.clone())).unwrap();
            assert!(write(&every, &fitting).len() <= VALUE_LIMIT);
            let addresses = |members: &BTreeSet<Member>| -> BTreeSet<IpAddr> {
                members.iter().flat_map(|it| it.addresses.clone()).collect()
            };
            assert_eq!(addresses(&fitting), addresses(&all));
            assert_eq!(fitting.iter().filter(|it| it.ports.len() == 5).count(), with_few);
            fitting.iter().map(|it| it.ports.len()).sum::<usize>()
        };
        assert_eq!(check(5, 100, 200), 1500, "all fit");
        assert!(check(100, 128, 200) < 7400);
        check(1000, 6, 200);
        let large = (0..800).map(|number| Member {
            addresses: (0..16)
                .map(|it| IpAddr::from([10, it, 0, 0].map(|octet| octet ^ (number % 251) as u8)))
                .collect(),
            ports: vec![NamedPort {
                name: "x".parse().unwrap(),
                protocol: Protocol::Tcp,
                port: number,
            }],
        });
        assert_eq!(fitting(&every, &Arc::new(large.collect())), None);
    }

    #[test]
    fn a_host_names_its_own_addresses_only() {
        let every = Selector::every_pod();
        let nodes = Selector::Nodes(Default::default());
        let check = |selector: &Selector, given: &[&str], kept: &[&str], foreign: Option<&str>| {
            let text = write(selector, &members(given));
            let fault = foreign.map(|text| SharedFault::Foreign(text.parse().unwrap()));
            assert_eq!(read(text.as_bytes(), selector, &host()), (members(kept), fault));
        };
        check(&every, &["10.244.1.2", "10.244.2.2"], &["10.244.1.2"], Some("10.244.2.2"));
        check(&every, &["192.0.2.11"], &[], Some("192.0.2.11"));
        check(&nodes, &["192.0.2.11", "10.244.1.1"], &["192.0.2.11", "10.244.1.1"], None);
        check(&nodes, &["10.244.1.2"], &[], Some("10.244.1.2"));
        check(&nodes, &["192.0.2.12"], &[], Some("192.0.2.12"));
    }

    #[test]
    fn members_are_of_the_hosts_with_their_addresses() {
        let hosts: Hosts =
            [("n1".parse().unwrap(), host()), ("n2".parse().unwrap(), HostAddresses::default())]
                .into();
        let check = |address: &str, wanted: usize| {
            assert_eq!(owners(&members(&[address]), &hosts).len(), wanted, "{address}");
        };
        check("10.244.1.2", 1);
        check("10.244.1.255", 1);
        check("10.244.2.0", 0);
        check("10.244.0.255", 0);
        check("fd10:244:0:1::2", 1);
        check("192.0.2.11", 1);
        check("192.0.2.12", 0);
    }

    #[test]
    fn hostile_values_give_no_member() {
        let every = Selector::every_pod();
        let fault = |bytes: &[u8]| {
            let (members, fault) = read(bytes, &every, &host());
            assert!(members.is_empty(), "{members:?}");
            fault.unwrap().to_string()
        };
        let other = Selector::Nodes(Default::default());
        assert!(
            fault(write(&other, &members(&["10.244.1.2"])).as_bytes()).contains("another group")
        );
        let text = write(&every, &members(&["10.244.1.2"]));
        assert!(fault(text.replace("members", "people").as_bytes()).contains("unknown field"));
        assert!(fault(text.replace("10.244.1.2", "$(reboot)").as_bytes()).contains("invalid"));
        assert!(fault(b"").contains("EOF"));
        assert!(fault(b"\xff").len() < 200);
        assert!(fault(&vec![b' '; VALUE_LIMIT + 1]).contains("bytes"));
        let depth = "[".repeat(100_000);
        assert!(fault(depth.as_bytes()).len() < 300);
        let many: BTreeSet<Member> = (0..=MEMBERS_LIMIT)
            .map(|number| Member {
                addresses: vec![format!("fd10:244:0:1::{number:x}").parse().unwrap()],
                ports: Vec::new(),
            })
            .collect();
        assert!(fault(write(&every, &many).as_bytes()).contains("members"));
        let address = "10.244.1.2".parse().unwrap();
        let repeated = Member { addresses: vec![address; ADDRESSES_LIMIT + 1], ports: Vec::new() };
        assert!(fault(write(&every, &[repeated].into()).as_bytes()).contains("addresses"));
    }
}
