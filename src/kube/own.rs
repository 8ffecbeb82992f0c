//! Pure. The pod subnets of this host, by its node.

use crate::kube::object::NodeObject;
use crate::lease::{Identity, Lease, NodeError, choose};
use crate::net::PerFamily;
use crate::net::subnet::{self, Pool};

/// The subnets that this host gets: those of its `node`, of each family that has a pool.
///
/// # Errors
/// [`NodeError`].
pub fn lease(
    node: Option<&NodeObject>,
    identity: &Identity,
    pools: &PerFamily<Pool>,
) -> Result<Lease, NodeError> {
    let name = identity.name.clone();
    let node = node.ok_or_else(|| NodeError::Unknown(name.clone()))?;
    if is_another_machine(node, identity) {
        let (theirs, ours) = (node.machine_id.to_string(), identity.machine_id.clone());
        return Err(NodeError::AnotherMachine { name, theirs, ours });
    }
    if node.subnets.is_empty() {
        return Err(NodeError::NoSubnet(name));
    }
    let mut lease = Lease::default();
    for (family, pool) in pools.entries() {
        let name = name.clone();
        let Some(subnet) = node.subnets.get(family).copied() else {
            return Err(NodeError::NoFamily { name, family });
        };
        let pool_network = pool.network();
        // A cluster of one node may have given it everything.
        if !choose::possible(pool, subnet) && subnet != pool_network {
            return Err(NodeError::OutsidePool { name, subnet, pool: pool_network });
        }
        if subnet.prefix() > family.bits() - 2 {
            return Err(NodeError::TooSmall { name, subnet });
        }
        lease.subnets.set(family, Some(subnet));
    }
    Ok(lease)
}

/// What this host serves of `given`: of each family what its pods have of `kept`, as far as that is in the pool.
pub fn beside(given: Lease, kept: Option<Lease>, pools: &PerFamily<Pool>) -> Lease {
    let mut lease = given;
    for (family, subnet) in kept.iter().flat_map(|kept| kept.subnets.entries()) {
        let pool = pools.get(family).map(Pool::network);
        if pool.is_some_and(|pool| subnet::contains(pool, *subnet)) {
            lease.subnets.set(family, Some(*subnet));
        }
    }
    lease
}

/// The contradiction between the node and the lease `kept`, which this host keeps.
pub fn disagreement(
    kept: &Lease,
    node: Option<&NodeObject>,
    identity: &Identity,
    pools: &PerFamily<Pool>,
) -> Option<NodeError> {
    match lease(node, identity, pools) {
        Ok(lease) if lease == *kept => None,
        Ok(lease) => {
            let (theirs, ours) = (listed(&lease), listed(kept));
            Some(NodeError::Changed { name: identity.name.clone(), theirs, ours })
        }
        Err(error) => Some(error),
    }
}

/// Two hosts with one name would serve one subnet. A kubelet in a container may report another machine
/// id, and after a reboot for a moment the previous boot id: only both together identify another machine.
fn is_another_machine(node: &NodeObject, identity: &Identity) -> bool {
    let differs = |theirs: &str, ours: &str| !theirs.is_empty() && theirs != ours;
    differs(&node.machine_id, &identity.machine_id) && differs(&node.boot_id, &identity.boot_id)
}

fn listed(lease: &Lease) -> String {
    lease.subnets.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::subnet::{self, parse};

    /// The lease or error of h1 (machine m, boot b, pools 10.244.0.0/16 and, if `dual`, fd10:244::/48).
    fn check(subnets: &[&str], (machine, boot): (&str, &str), dual: bool) -> String {
        let mut node = NodeObject {
            name: "h1".parse().unwrap(),
            subnets: PerFamily::default(),
            fault: None,
            addresses: PerFamily::default(),
            created: 1,
            machine_id: machine.into(),
            boot_id: boot.into(),
            ready: true,
            unavailable: false,
        };
        for text in subnets {
            let subnet = parse(text).unwrap();
            node.subnets.set(subnet::family(subnet), Some(subnet));
        }
        match lease(Some(&node), &identity(), &pools(dual)) {
            Ok(lease) => listed(&lease),
            Err(error) => format!("{error}; {}", error.fix()),
        }
    }

    fn identity() -> Identity {
        Identity {
            name: "h1".parse().unwrap(),
            machine_id: "m".to_owned(),
            boot_id: "b".to_owned(),
            version: "0".to_owned(),
        }
    }

    fn pools(dual: bool) -> PerFamily<Pool> {
        let pool = |text: &str, margin| Pool::new(parse(text).unwrap(), margin).ok();
        let v6 = dual.then(|| pool("fd10:244::/48", 16)).flatten();
        PerFamily { v4: pool("10.244.0.0/16", 8), v6 }
    }

    fn says(text: &str, words: &str) {
        assert!(text.contains(words), "{text}");
    }

    #[test]
    fn a_host_serves_what_its_node_has_of_the_families_in_use() {
        let both = ["10.244.0.0/24", "fd10:244::/64"];
        assert_eq!(check(&both, ("m", "b"), true), "10.244.0.0/24, fd10:244::/64");
        assert_eq!(check(&both, ("", ""), false), "10.244.0.0/24");
        assert_eq!(check(&["10.244.0.0/16"], ("m", "b"), false), "10.244.0.0/16");
    }

    #[test]
    fn errors_include_the_fix() {
        says(&check(&[], ("m", "b"), false), "--allocate-node-cidrs");
        says(&check(&["10.9.0.0/24"], ("m", "b"), false), "set IP_SUBNET to the --cluster-cidr");
        says(
            &check(&["10.244.1.0/24"], ("m", "b"), true),
            "has no IPv6 podCIDR, but there is IPV6_SUBNET",
        );
        says(&check(&["10.244.1.0/31"], ("m", "b"), false), "too small");
        let unknown = lease(None, &identity(), &pools(false)).unwrap_err().to_string();
        says(&unknown, "has no node h1");
    }

    #[test]
    fn two_machines_under_one_name_do_not_serve_one_subnet() {
        let node = ["10.244.1.0/24"];
        says(&check(&node, ("other", "other"), false), "another machine");
        assert_eq!(check(&node, ("other", "b"), false), node[0], "a kubelet in a container");
        assert_eq!(check(&node, ("m", "earlier"), false), node[0], "just rebooted");
    }

    #[test]
    fn a_subnet_that_pods_have_stays_whatever_the_node_gets() {
        let kept = Lease { subnets: PerFamily { v4: parse("10.244.7.0/24").ok(), v6: None } };
        let error =
            |node| disagreement(&kept, node, &identity(), &pools(false)).unwrap().to_string();
        says(&error(None), "has no node h1");
        let mut node = NodeObject {
            name: "h1".parse().unwrap(),
            subnets: kept.subnets,
            fault: None,
            addresses: PerFamily::default(),
            created: 1,
            machine_id: "".into(),
            boot_id: "".into(),
            ready: true,
            unavailable: false,
        };
        assert_eq!(disagreement(&kept, Some(&node), &identity(), &pools(false)), None);
        node.subnets.v4 = parse("10.244.8.0/24").ok();
        says(&error(Some(&node)), "10.244.8.0/24 now, and this host serves 10.244.7.0/24");
    }
}
