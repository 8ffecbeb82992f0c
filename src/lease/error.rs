//! Pure. Why this host cannot have its lease.

use std::net::IpAddr;

use ipnetwork::IpNetwork;

use crate::lease::node_error::NodeError;
use crate::lease::records::{NodeName, RecordError};
use crate::net::{Object, PerFamily, Problem, ProblemKind};

/// Why this host cannot have its lease. Most need an operator.
///
/// `Display` is what is wrong; [`LeaseError::fix`] is what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LeaseError {
    #[error(
        "the name {host} is in use by another machine: machine id {machine_id}, {}, \
        its agent runs since {since}",
        listed(addresses)
    )]
    HeldByOther { host: NodeName, machine_id: String, addresses: PerFamily<IpAddr>, since: String },
    #[error(
        "another agent with the name {host} and machine id {machine_id} runs since {since} ({}); one of \
        the two machines is a copy of the other, and this one, which came second, does not serve",
        listed(addresses)
    )]
    HeldByCopy { host: NodeName, machine_id: String, addresses: PerFamily<IpAddr>, since: String },
    #[error(
        "another agent with this host's name {host} and machine id, started at {since} on another address or in \
        another boot, may still live: this one waits until that one answers or its alive key expires, a minute \
        at most"
    )]
    MayBeCopy {
        host: NodeName,
        since: String,
        /// The node record has another address: this is hardly the machine that wrote it.
        moved: bool,
    },
    #[error(
        "a copy of this machine runs, with the same name {host} and machine id {machine_id}; its agent, \
        started at {since}, does not serve"
    )]
    Copied { host: NodeName, machine_id: String, since: String },
    #[error(
        "etcd went back from revision {from} to {to}: it was restored from an older snapshot, or lost its \
        data; the hosts put back what they knew"
    )]
    StoreWentBack { from: i64, to: i64 },
    #[error("this host's subnet {subnet} (etcd key {key}) lies outside the pool {pool}")]
    OutsidePool { subnet: IpNetwork, key: String, pool: IpNetwork },
    #[error("{variable} is {ours} on this host, but {theirs} in the network (etcd key {key})")]
    ConfigMismatch { variable: &'static str, theirs: String, ours: String, key: String },
    #[error("the network settings in etcd key {key} cannot be read: {reason}")]
    ConfigBroken { key: String, reason: RecordError },
    #[error("the pool {narrow} of the network cannot grow to {wide}: {why}")]
    CannotGrow { narrow: IpNetwork, wide: IpNetwork, why: String },
    #[error(
        "no subnet is free in the pool {pool}: {taken} of {slots} are taken{}",
        not_alive(dead)
    )]
    Exhausted { pool: IpNetwork, slots: u32, taken: u32, dead: Vec<NodeName> },
    #[error(
        "subnet {subnet}, which this host uses, belongs to host {owner} in etcd; this host keeps \
        it for its pods, and no new pod starts in it"
    )]
    SubnetLost { subnet: IpNetwork, owner: NodeName },
    #[error(
        "subnet {subnet} of host {host} was taken by host {other} too, which runs the Python agent; no \
        new pod starts in it on host {host}"
    )]
    SubnetShared { subnet: IpNetwork, host: NodeName, other: NodeName },
    #[error(transparent)]
    Node(#[from] NodeError),
}

impl LeaseError {
    /// It may pass without a change of settings (exit code 75, `EX_TEMPFAIL`).
    pub fn is_temporary(&self) -> bool {
        matches!(self, LeaseError::Exhausted { .. } | LeaseError::ConfigBroken { .. })
    }

    /// This host's subnets that it has no right to, not alone, or perhaps not: no new pod may start in them.
    pub fn disputed(&self, own: &PerFamily<IpNetwork>) -> Vec<IpNetwork> {
        match self {
            LeaseError::SubnetLost { subnet, .. } | LeaseError::SubnetShared { subnet, .. } => {
                vec![*subnet]
            }
            LeaseError::HeldByOther { .. }
            | LeaseError::HeldByCopy { .. }
            | LeaseError::MayBeCopy { .. }
            // Another node may have the former podCIDR by now.
            | LeaseError::Node(NodeError::Changed { .. }) => own.iter().copied().collect(),
            _ => Vec::new(),
        }
    }

    /// This machine is a copy.
    pub fn is_of_copy(&self) -> bool {
        matches!(self, LeaseError::HeldByCopy { .. })
    }

    /// The host moves to another subnet once no pod uses a disputed one.
    pub fn ends_without_pods(&self) -> bool {
        matches!(self, LeaseError::SubnetLost { .. } | LeaseError::SubnetShared { .. })
    }

    pub fn fix(&self) -> String {
        match self {
            LeaseError::HeldByOther { .. } => {
                "humanz-agent nodes ls # give one of the two machines another NODE_NAME".to_owned()
            }
            LeaseError::StoreWentBack { from, .. } => format!(
                "humanz-agent nodes ls # remove hosts that had been removed and are back; this is reported until \
                 etcd has passed revision {from}, or the agent starts again"
            ),
            LeaseError::HeldByCopy { .. }
            | LeaseError::Copied { .. }
            | LeaseError::MayBeCopy { .. } => {
                "cat /etc/machine-id # on the copy: stop its agent, remove its state directory, renew /etc/machine-id \
                 (systemd-machine-id-setup), set another NODE_NAME, start its agent"
                    .to_owned()
            }
            LeaseError::OutsidePool { subnet, key, .. } => format!(
                "etcdctl get {key} # set IP_SUBNET or IPV6_SUBNET back to a pool with {subnet}, or drain this \
                 host and delete the key"
            ),
            LeaseError::ConfigMismatch { variable, key, .. } => format!(
                "etcdctl get {key} # all hosts must agree: correct {variable} here, or stop all agents and delete the \
                 key"
            ),
            LeaseError::ConfigBroken { key, .. } => {
                format!("etcdctl get {key} # correct the value, or stop all agents and delete the key")
            }
            LeaseError::CannotGrow { narrow, .. } => {
                format!("humanz-agent config # set IP_SUBNET or IPV6_SUBNET back to {narrow}")
            }
            LeaseError::Exhausted { dead, .. } => match dead.first() {
                None => "humanz-agent nodes ls # widen the pool or remove hosts".to_owned(),
                Some(host) => format!(
                    "humanz-agent nodes ls # remove hosts that no longer exist, such as: humanz-agent nodes rm {host}"
                ),
            },
            LeaseError::SubnetLost { owner, .. } => format!(
                "humanz-agent nodes ls # if host {owner} no longer exists: humanz-agent nodes rm {owner}; else drain \
                 this host: it takes another subnet as soon as its last pod is gone"
            ),
            LeaseError::SubnetShared { host, other, .. } => format!(
                "humanz-agent nodes ls # drain host {host}: it takes another subnet as soon as its last pod is gone; or remove \
                 host {other} and its key, and let it join again"
            ),
            LeaseError::Node(error) => error.fix(),
        }
    }

    /// `store`: etcd or the Kubernetes API.
    pub fn problem(&self, store: &str) -> Problem {
        Problem::new(ProblemKind::Lease, Object::named(store), self.to_string())
            .with_fix(self.fix())
    }

    /// What is wrong and what to do, for a program that ends with it.
    pub fn with_fix(&self) -> String {
        format!("{self}; {}", self.fix())
    }
}

fn listed(addresses: &PerFamily<IpAddr>) -> String {
    let addresses: Vec<_> = addresses.iter().map(IpAddr::to_string).collect();
    if addresses.is_empty() { "no address".to_owned() } else { addresses.join(" and ") }
}

/// Lists at most ten hosts.
fn not_alive(dead: &[NodeName]) -> String {
    if dead.is_empty() {
        return String::new();
    }
    let names: Vec<_> = dead.iter().take(10).map(NodeName::as_str).collect();
    let more = if dead.len() > 10 { ", …" } else { "" };
    format!("; {} hosts are not alive: {}{more}", dead.len(), names.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_pool_lists_the_hosts_that_are_not_alive() {
        let error = LeaseError::Exhausted {
            pool: "10.0.0.0/20".parse().unwrap(),
            slots: 15,
            taken: 15,
            dead: (0..11).map(|n| format!("h{n}").parse().unwrap()).collect(),
        };
        assert_eq!(
            error.with_fix(),
            "no subnet is free in the pool 10.0.0.0/20: 15 of 15 are taken; 11 hosts are not alive: \
             h0, h1, h2, h3, h4, h5, h6, h7, h8, h9, …; humanz-agent nodes ls # remove hosts that no longer \
             exist, such as: humanz-agent nodes rm h0"
        );
        assert!(error.is_temporary());
    }

    #[test]
    fn a_name_in_use_includes_the_other_machine() {
        let error = LeaseError::HeldByOther {
            host: "h1".parse().unwrap(),
            machine_id: "abc".to_owned(),
            addresses: PerFamily { v4: Some("192.0.2.1".parse().unwrap()), v6: None },
            since: "2026-11-20T18:46:00Z".to_owned(),
        };
        assert_eq!(
            error.with_fix(),
            "the name h1 is in use by another machine: machine id abc, 192.0.2.1, its agent runs \
             since 2026-11-20T18:46:00Z; humanz-agent nodes ls # give one of the two machines another NODE_NAME"
        );
    }
}
