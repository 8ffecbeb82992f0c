//! Pure. Hosts of the Python agent in the same network.
//!
//! Such a host takes a number (it puts the counter key, then reads its version) and writes its host
//! key in a second step, without a check for the owner of that subnet; it never gives way.

use ipnetwork::IpNetwork;

use crate::lease::claim::owners;
use crate::lease::identity::{Claimant, Lease};
use crate::lease::records::{Key, NodeName, Roots};
use crate::lease::snapshot::Snapshot;
use crate::net::subnet;

/// As [`sharing`], if no pod of this host uses the subnets of `lease`: it gives them up.
pub fn taken_by(found: &Snapshot, own: &Claimant, lease: &Lease) -> Option<NodeName> {
    let is_unused = own.keep.is_empty() && own.remembered != lease.subnets;
    let gives_up = is_unused || own.vacated == lease.subnets;
    sharing(found, own, lease).filter(|_| gives_up).map(|(_, host)| host)
}

/// Another host with the Python agent that has one of the subnets of `lease`, and which. A later key
/// does not take a subnet that this host [adopted](is_adopted).
pub fn sharing(found: &Snapshot, own: &Claimant, lease: &Lease) -> Option<(IpNetwork, NodeName)> {
    let name = &own.identity.name;
    let ours = found.hosts.get(name).filter(|_| is_adopted(found, name));
    let others = found.hosts.iter().filter(|(host, _)| {
        let is_python = is_python(found, &own.network.roots, host);
        *host != name && is_python && !own.without_record.contains(*host)
    });
    let mut overlapping = others.filter_map(|(host, stored)| {
        if ours.is_some_and(|ours| ours.created < stored.created) {
            return None;
        }
        let mut shared = lease.subnets.iter().filter(|own| subnet::overlap(**own, stored.value));
        let counts = owners::is_slot(&own.network.pools, stored.value);
        shared.next().filter(|_| counts).map(|subnet| (*subnet, host.clone()))
    });
    overlapping.next()
}

/// The host key is older than the claim: pods of the Python agent may use the subnet. A host that
/// chooses a subnet writes both at once.
fn is_adopted(found: &Snapshot, host: &NodeName) -> bool {
    let Some(key) = found.hosts.get(host) else { return false };
    let claim = found.claims.get(&key.value).filter(|claim| claim.value == *host);
    claim.is_none_or(|claim| key.modified < claim.modified)
}

/// Some host runs the Python agent.
pub fn any(found: &Snapshot, roots: &Roots) -> bool {
    found.hosts.keys().any(|host| is_python(found, roots, host))
}

/// The host has a subnet but no node record, not even a faulty one.
pub fn is_python(found: &Snapshot, roots: &Roots, host: &NodeName) -> bool {
    let key = Key::Node(host.clone());
    !found.nodes.contains_key(host) && !found.faults.contains_key(roots.key(&key).as_str())
}
