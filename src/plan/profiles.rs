//! Pure. Which profile each pod's port has, and the classes of the device that holds pods to their rates.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::net::IfName;
use crate::net::gather::Gather;
use crate::netlink::shaper::ShapedClass;
use crate::plan::bandwidth::bucket;
use crate::plan::pod::LinkIdentity;
use crate::policy::ask::LocalPod;
use crate::policy::{Endpoint, NetProfile, Profiles, Scoped};

/// By the host's end of the pod's veth; ports without a profile are not among them.
pub type PortProfiles = BTreeMap<IfName, PortProfile>;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortProfile {
    /// `tenant/name`, for people.
    pub name: Scoped,
    pub profile: NetProfile,
    /// If it has a limit that is kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shaped: Option<Shaped>,
}

/// What a port sends goes through the class with this number, of the device with this index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shaped {
    pub class: u16,
    pub device: u32,
}

/// Bytes of a packet, for bursts that were not asked for.
const MTU: u32 = 1500;

/// The profiles of `pods`, as policies describe them.
pub fn port_profiles<'a>(
    profiles: &Profiles,
    pods: impl Iterator<Item = (&'a LocalPod, &'a Endpoint)>,
) -> PortProfiles {
    if profiles.is_empty() {
        return PortProfiles::new();
    }
    let of = |(pod, endpoint): (&'_ LocalPod, &'_ Endpoint)| {
        let (group, network) = (endpoint.group.as_ref(), endpoint.network.as_ref());
        let (name, profile) = profiles.of_pod(group, network)?;
        Some((host_end(pod), PortProfile { name: name.clone(), profile, shaped: None }))
    };
    pods.filter_map(of).gather()
}

/// The host's end of a pod's veth.
pub fn host_end(pod: &LocalPod) -> IfName {
    let LocalPod { network, container_id, ifname, .. } = pod;
    LinkIdentity { network, container_id, ifname }.host_ifname()
}

/// Gives each port with a limit a class of `device`: the one that it had `before`, else a free one.
pub fn shape(ports: &mut PortProfiles, before: &PortProfiles, device: u32) {
    let mut taken = BTreeSet::from([0]);
    for (port, limited) in ports.iter_mut().filter(|(_, it)| it.profile.egress.is_some()) {
        let kept = before.get(port).and_then(|it| it.shaped).map(|it| it.class);
        let kept = kept.filter(|class| taken.insert(*class));
        limited.shaped = kept.map(|class| Shaped { class, device });
    }
    for limited in ports.values_mut().filter(|it| it.profile.egress.is_some()) {
        if limited.shaped.is_none() {
            let free = (1..=u16::MAX).find(|class| taken.insert(*class));
            limited.shaped = free.map(|class| Shaped { class, device });
        }
    }
}

/// The classes of the device of limits.
pub fn classes(ports: &PortProfiles) -> BTreeMap<u16, ShapedClass> {
    let class = |it: &PortProfile| {
        let bucket = bucket(&it.profile.egress?, MTU);
        Some((it.shaped?.class, ShapedClass::new(bucket.rate_bytes, bucket.burst_bytes)))
    };
    ports.values().filter_map(class).gather()
}

/// The guard of one of `ports` differs by the profile that it had before.
pub fn guards_differ(
    before: &PortProfiles,
    after: &PortProfiles,
    ports: &BTreeSet<IfName>,
) -> bool {
    let of = |profiles: &PortProfiles, port: &IfName| {
        profiles.get(port).map(|it| (it.profile.dscp, it.shaped)).unwrap_or_default()
    };
    before != after && ports.iter().any(|port| of(before, port) != of(after, port))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::read::cluster::Cluster;
    use crate::policy::read::documents;
    use serde_json::json;

    fn dscp_of(found: &PortProfiles, port: &IfName) -> Option<u8> {
        found.get(port)?.profile.dscp.map(u8::from)
    }

    fn profiles(dscp: u8) -> Profiles {
        let own = |kind: &str, name: &str, spec| json!({"apiVersion": "humanz.io/v1", "kind": kind, "metadata": {"name": name}, "spec": spec});
        let objects = [
            own("NetProfile", "gold", json!({"dscp": dscp, "egressRate": "8M"})),
            own("Group", "web", json!({"profile": "gold"})),
        ];
        let read = documents::read(&objects, true);
        assert_eq!(read.problems, []);
        read.profiles
    }

    fn pods() -> Vec<(LocalPod, Endpoint)> {
        let pod = |name: &str, address: &str, group: Option<&str>| {
            let pod = LocalPod::in_shop(name, name, address);
            let (shop, host) = ("shop".parse().unwrap(), "n1".parse().unwrap());
            let annotations = group.map(|it| ("humanz.io/group".into(), it.into()));
            let annotations = annotations.into_iter().collect();
            let (endpoint, _) = Cluster::new(true).standalone(
                (shop, name.parse().unwrap()),
                &annotations,
                Default::default(),
                host,
            );
            (pod, endpoint)
        };
        vec![pod("web", "10.1.2.3", Some("web")), pod("db", "10.1.2.4", None)]
    }

    fn found(profiles: &Profiles) -> PortProfiles {
        port_profiles(profiles, pods().iter().map(|(pod, endpoint)| (pod, endpoint)))
    }

    #[test]
    fn a_port_has_the_profile_of_its_pods_group() {
        let found = found(&profiles(46));
        let [web, db] = [0, 1].map(|at: usize| host_end(&pods()[at].0));
        assert_eq!(found.len(), 1);
        assert_eq!(dscp_of(&found, &web), Some(46));
        assert_eq!(dscp_of(&found, &db), None);
        let text = serde_json::to_string(&found).unwrap();
        assert_eq!(serde_json::from_str::<PortProfiles>(&text).unwrap(), found);
    }

    #[test]
    fn only_guards_of_ports_that_are_there_differ() {
        let (before, after) = (found(&profiles(46)), found(&profiles(8)));
        let [web, db] = [0, 1].map(|at: usize| BTreeSet::from([host_end(&pods()[at].0)]));
        assert!(guards_differ(&before, &after, &web) && !guards_differ(&before, &after, &db));
        assert!(guards_differ(&before, &PortProfiles::new(), &web));
        assert!(!guards_differ(&before, &before, &web));
    }

    #[test]
    fn a_port_keeps_its_class_and_no_two_have_one() {
        let all = || {
            let one = found(&profiles(1)).into_values().next().unwrap();
            let named = |name: &str| (name.parse().unwrap(), one.clone());
            PortProfiles::from(["hz1", "hz2", "hz3"].map(named))
        };
        let numbers = |ports: &PortProfiles| -> Vec<u16> {
            ports.values().map(|it| it.shaped.unwrap().class).collect()
        };
        let mut first = all();
        shape(&mut first, &PortProfiles::new(), 9);
        assert_eq!(numbers(&first), [1, 2, 3]);
        assert_eq!(classes(&first).len(), 3);
        assert_eq!(classes(&first)[&1], ShapedClass::new(1_000_000, 20_000));
        let mut before = first.clone();
        before.remove(&"hz1".parse().unwrap());
        let mut again = all();
        shape(&mut again, &before, 9);
        assert_eq!(numbers(&again), [1, 2, 3]);
        // Whoever wrote into the file gave two ports one class, and one the root.
        for (port, class) in [("hz1", 3), ("hz2", 0)] {
            let shaped = Some(Shaped { class, device: 9 });
            before.insert(
                port.parse().unwrap(),
                PortProfile { shaped, ..first.values().next().unwrap().clone() },
            );
        }
        let mut repaired = all();
        shape(&mut repaired, &before, 9);
        assert_eq!(numbers(&repaired), [3, 1, 2]);
    }
}
