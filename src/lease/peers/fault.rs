//! Pure. What of the data of other hosts is ignored or contradicts that of others, and what helps.

use std::net::IpAddr;

use ipnetwork::IpNetwork;

use crate::lease::records::NodeName;
use crate::net::{Object, Problem, ProblemKind};

/// Data of another host that is ignored.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PeerFault {
    #[error("host {host}: subnet {subnet} is ignored: it is not in the pool {pool}")]
    OutsidePool {
        host: NodeName,
        subnet: IpNetwork,
        /// The pool of that family, `(none)` if there is none.
        pool: String,
    },
    #[error("host {host}: subnet {subnet} is ignored: it overlaps {theirs} \
        of host {owner}{}", if *ours { " (this host)" } else { "" })]
    Overlap {
        host: NodeName,
        subnet: IpNetwork,
        /// The owner of what it overlaps.
        owner: NodeName,
        theirs: IpNetwork,
        /// The owner is this host.
        ours: bool,
    },
    #[error("host {host}: address {address} is ignored: {reason}")]
    Address { host: NodeName, address: IpAddr, reason: &'static str },
    /// Both keep it: packets for the pods of the one without the right go to the other, and no
    /// other host is affected.
    #[error("host {host}: its address {address} is that of host {other} as well{}",
        if *alive { "" } else { ", whose agent does not run" })]
    SharedAddress {
        /// Whose record is the later one.
        host: NodeName,
        address: IpAddr,
        other: NodeName,
        /// The agent of `other` runs.
        alive: bool,
    },
    #[error("host {host}: its WireGuard key is ignored: it is that of host {owner}, which had it first{}",
        if *alive { "" } else { " and whose agent does not run" })]
    SharedKey {
        host: NodeName,
        owner: NodeName,
        /// The agent of `owner` runs.
        alive: bool,
        /// It is a key that this host publishes.
        is_own: bool,
    },
    /// Of this host. Those of other hosts may be of versions that know no claims.
    #[error("host {own}: its WireGuard key is not claimed in etcd: another host could take it")]
    UnclaimedKey { own: NodeName },
    #[error(
        "the claim of subnet {subnet} says {claimant} since revision {modified}, but host \
        {owner} has had the subnet since revision {since}; the claim is ignored"
    )]
    Claim { subnet: IpNetwork, claimant: NodeName, modified: i64, owner: NodeName, since: i64 },
    #[error("POLICY_GROUP is not the same on all hosts: {here} on this one, {others}")]
    Group { here: String, others: String },
}

impl PeerFault {
    pub fn problem(&self) -> Problem {
        let fix = match self {
            PeerFault::OutsidePool { host, .. } => format!(
                "humanz-agent nodes ls # if {host} was removed for good: humanz-agent nodes rm {host}, on Kubernetes kubectl \
                 delete node {host}; else set the same IP_SUBNET and IPV6_SUBNET on both hosts (there --cluster-cidr)"
            ),
            PeerFault::Overlap { host, .. } => format!(
                "humanz-agent nodes show {host} # two hosts share a name, a disk or a hand-made key: repair it there"
            ),
            PeerFault::Address { host, .. }
            | PeerFault::SharedAddress { host, alive: true, .. } => {
                format!("humanz-agent nodes show {host} # set NODE_IP there")
            }
            PeerFault::SharedAddress { other, .. } => format!(
                "humanz-agent nodes ls # if {other} is permanently gone: humanz-agent nodes rm {other}, on Kubernetes \
                 kubectl delete node {other}"
            ),
            PeerFault::SharedKey { host, owner, alive, .. } => own_key(host, owner, *alive),
            PeerFault::UnclaimedKey { own } => format!(
                "humanz-agent nodes roles --apply {own} # gives it the permission to write its claim"
            ),
            PeerFault::Claim { owner, .. } => format!(
                "humanz-agent nodes roles # the agent of {owner} puts the claim back; take the permission to \
                 write it from all other hosts"
            ),
            PeerFault::Group { .. } => {
                "humanz-agent config # set the same POLICY_GROUP on all hosts, and reload their agents".to_owned()
            }
        };
        let (kind, subject) = match self {
            PeerFault::UnclaimedKey { own } => (ProblemKind::EtcdRecord, Object::Host(own.clone())),
            PeerFault::Claim { subnet, .. } => (ProblemKind::OtherHost, Object::Subnet(*subnet)),
            PeerFault::Group { .. } => {
                (ProblemKind::Policy, Object::Setting("POLICY_GROUP", String::new()))
            }
            PeerFault::OutsidePool { host, .. }
            | PeerFault::Overlap { host, .. }
            | PeerFault::Address { host, .. }
            | PeerFault::SharedAddress { host, .. }
            | PeerFault::SharedKey { host, .. } => {
                (ProblemKind::OtherHost, Object::Host(host.clone()))
            }
        };
        Problem::new(kind, subject, self.to_string()).with_fix(fix)
    }
}

/// How `host` gets another key than that of `owner`.
fn own_key(host: &NodeName, owner: &NodeName, alive: bool) -> String {
    let gone = match alive {
        true => String::new(),
        false => format!("if {owner} is permanently gone: humanz-agent nodes rm {owner}; "),
    };
    format!(
        "humanz-agent nodes ls # {gone}if {host} was copied from it, {host} needs a key of its own: remove \
         wireguard.key from its state directory and its link humanz-wg, and restart its agent"
    )
}
