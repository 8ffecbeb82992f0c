//! Pure. What a host knows of policies, and what follows from it for its pods.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use ipnetwork::IpNetwork;

use crate::net::gather::Gather;
use crate::net::node_name::NodeName;
use crate::policy::ask::{Index, LocalPod};
use crate::policy::compile::{Compiler, HostPolicy, MarkBits, PolicyTable};
use crate::policy::described::DescribedPods;
use crate::policy::endpoint::Endpoint;
use crate::policy::held::{HeldReason, PodOwners, Sharing};
use crate::policy::local::Pods;
use crate::policy::snapshot::PolicySnapshot;

/// The netlink group that reports of drops go to.
pub const LOG_GROUP: u16 = 104;

/// What is known of policies on a host.
#[derive(Clone, Debug)]
pub struct HostKnowledge {
    pub host: NodeName,
    /// `None` before any source has said anything.
    pub known: Option<Arc<PolicySnapshot>>,
    /// How other hosts know this one's pods.
    pub sharing: Sharing,
    /// The bits of a connection's mark that hold the epoch.
    pub mark: MarkBits,
}

impl HostKnowledge {
    /// Takes over in `described` what is known of `pods` now; without any source that is nothing.
    pub fn describe(&self, pods: &Pods, described: &mut DescribedPods) {
        let nothing = Arc::default();
        described.update(self.known.as_ref().unwrap_or(&nothing), &self.host, pods);
    }

    /// The table of a host with these pods, of which some were `released` before; without any source all of
    /// them are in quarantine.
    pub fn table<'a>(
        &self,
        pods: &DescribedPods,
        released: &PodOwners,
        (subnets, own): (&[IpNetwork], &BTreeSet<IpAddr>),
        compiler: &'a mut Compiler,
    ) -> &'a PolicyTable {
        let known = self.known.clone().unwrap_or_default();
        let open = self.judged(pods, released).filter(|(_, _, held)| held.is_none());
        let open: Vec<_> = open.map(|(_, endpoint, _)| endpoint).collect();
        let is_outside = |address: &IpAddr| !subnets.iter().any(|it| it.contains(*address));
        let outside = pods.addresses().filter(is_outside).gather();
        compiler.compile(&HostPolicy {
            known: &known,
            pods: &open,
            addresses: &outside,
            subnets,
            own,
            mark_bits: self.mark,
            log_group: LOG_GROUP,
        })
    }

    /// What plugins go by while there is no agent.
    pub fn index(&self, pods: &DescribedPods) -> Index {
        match &self.sharing {
            Sharing::Off => Index { open: pods.unconcerned(), held: BTreeSet::new() },
            Sharing::On(published) if !published.is_known() => Index::default(),
            Sharing::On(published) => {
                Index { open: pods.unconcerned(), held: published.addresses() }
            }
        }
    }

    /// Makes `released` the addresses of `pods` that are in no quarantine, and whose they are. Where pods only
    /// came, it costs nothing for each of the others.
    pub fn release(&self, pods: &mut DescribedPods, released: &mut Arc<PodOwners>) {
        let Some(new) = pods.take_new(&self.sharing) else {
            return self.release_all(pods, released);
        };
        for (pod, endpoint) in new.iter().filter_map(|key| pods.get(key)) {
            if self.hold(pods, pod, endpoint, released).is_none() {
                let owned = pod.addresses.iter().map(|it| (*it, pod.container_id.clone()));
                Arc::make_mut(released).extend(owned);
            }
        }
    }

    fn release_all(&self, pods: &DescribedPods, released: &mut Arc<PodOwners>) {
        let open = self.judged(pods, released).filter(|(_, _, held)| held.is_none());
        let owned = open.flat_map(|(pod, ..)| {
            pod.addresses.iter().map(|address| (*address, pod.container_id.clone()))
        });
        let now: PodOwners = owned.gather();
        if now != **released {
            *released = Arc::new(now);
        }
    }

    /// The containers of `pods` whose policies are known, and which are in quarantine until other hosts know
    /// them.
    pub fn held(&self, pods: &DescribedPods, released: &PodOwners) -> BTreeMap<String, HeldReason> {
        let judged = self.judged(pods, released);
        judged.filter_map(|(pod, _, held)| Some((pod.container_id.clone(), held?))).gather()
    }

    fn judged<'a>(
        &'a self,
        pods: &'a DescribedPods,
        released: &'a PodOwners,
    ) -> impl Iterator<Item = (&'a LocalPod, &'a Arc<Endpoint>, Option<HeldReason>)> {
        pods.iter()
            .map(move |(pod, endpoint)| (pod, endpoint, self.hold(pods, pod, endpoint, released)))
    }

    /// Why `pod`, which is one of `pods`, is held.
    fn hold(
        &self,
        pods: &DescribedPods,
        pod: &LocalPod,
        endpoint: &Endpoint,
        released: &PodOwners,
    ) -> Option<HeldReason> {
        match pods.is_crowded(pod) {
            true => Some(HeldReason::TooManyLines),
            false => self.sharing.hold(pod, || pods.is_denied(endpoint), released),
        }
    }
}
