//! Pure. Which profile each pod's port has.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::net::IfName;
use crate::plan::pod::LinkIdentity;
use crate::policy::ask::LocalPod;
use crate::policy::{Dscp, Endpoint, NetProfile, Profiles, Scoped};

/// By the host's end of the pod's veth; ports without a profile are not among them.
pub type PortProfiles = BTreeMap<IfName, PortProfile>;

/// The profile of a port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortProfile {
    /// `tenant/name`, for people.
    pub name: Scoped,
    pub profile: NetProfile,
}

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
        Some((host_end(pod), PortProfile { name: name.clone(), profile }))
    };
    pods.filter_map(of).collect()
}

/// The host's end of a pod's veth.
pub fn host_end(pod: &LocalPod) -> IfName {
    let LocalPod { network, container_id, ifname, .. } = pod;
    LinkIdentity { network, container_id, ifname }.host_ifname()
}

/// How packets are marked at `port`.
pub fn dscp_of(profiles: &PortProfiles, port: &IfName) -> Option<Dscp> {
    profiles.get(port).and_then(|it| it.profile.dscp)
}

/// The packets of one of `ports` are to be marked otherwise than before.
pub fn marks_differ(before: &PortProfiles, after: &PortProfiles, ports: &BTreeSet<IfName>) -> bool {
    before != after && ports.iter().any(|port| dscp_of(before, port) != dscp_of(after, port))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::read::cluster::Cluster;
    use crate::policy::read::documents;
    use serde_json::json;

    fn profiles(dscp: u8) -> Profiles {
        let own = |kind: &str, name: &str, spec| json!({"apiVersion": "humanz.io/v1", "kind": kind, "metadata": {"name": name}, "spec": spec});
        let objects = [
            own("NetProfile", "gold", json!({"dscp": dscp})),
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
        assert_eq!(dscp_of(&found, &web).map(Dscp::number), Some(46));
        assert_eq!(dscp_of(&found, &db), None);
        let text = serde_json::to_string(&found).unwrap();
        assert_eq!(serde_json::from_str::<PortProfiles>(&text).unwrap(), found);
    }

    #[test]
    fn only_marks_of_ports_that_are_there_differ() {
        let (before, after) = (found(&profiles(46)), found(&profiles(8)));
        let [web, db] = [0, 1].map(|at: usize| BTreeSet::from([host_end(&pods()[at].0)]));
        assert!(marks_differ(&before, &after, &web) && !marks_differ(&before, &after, &db));
        assert!(marks_differ(&before, &PortProfiles::new(), &web));
        assert!(!marks_differ(&before, &before, &web));
    }
}
