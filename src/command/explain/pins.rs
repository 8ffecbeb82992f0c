//! Ends that are pods with fixed addresses: these are known on every host, the pods on their own alone.

use std::net::IpAddr;

use crate::checks::explain::Hop;
use crate::checks::explain::pin::{PinHolder, PinnedEnd, hop, refused};
use crate::inspect::{Host, networks};
use crate::net::Family;
use crate::policy::PodName;
use crate::policy::network_plan::{NetworkPlans, PinPlan};

/// What this host knows of pins.
pub struct KnownPins(Option<NetworkPlans>);

impl KnownPins {
    /// None where the agent has written none, or what cannot be read: `status` and the plugin report that.
    pub fn read(host: &Host) -> KnownPins {
        KnownPins(networks::plans(&host.settings).ok().flatten())
    }

    fn of(&self, pod: &str) -> Option<&PinPlan> {
        let (namespace, name) = pod.split_once('/')?;
        let pod = PodName { namespace: namespace.parse().ok()?, name: name.parse().ok()? };
        self.0.as_ref()?.pin(&pod)
    }

    /// The fixed addresses of the pod `namespace/name`; or why it has none.
    pub fn addresses(&self, pod: &str) -> Option<Result<Vec<IpAddr>, String>> {
        let plan = self.of(pod)?;
        Some(match &plan.refused {
            Some(why) => Err(refused(pod, why, None).seen),
            None => Ok(plan.addresses.iter().map(|it| it.address).collect()),
        })
    }

    /// Where the fixed address of the pod is in this family; `runs_with`: that of the pod that runs here.
    pub fn hop(
        &self,
        pod: &str,
        family: Family,
        runs_with: Option<IpAddr>,
        host: &Host,
    ) -> Option<Hop> {
        let plan = self.of(pod)?;
        if let Some(why) = &plan.refused {
            return Some(refused(pod, why, runs_with));
        }
        let pinned = plan.addresses.iter().find(|it| Family::of(it.address) == family)?;
        let holder = match host.peer(pinned.address) {
            Some((name, ..)) => PinHolder::Other(name.to_string()),
            None if plan.here.contains(&pinned.address) => PinHolder::ThisHost,
            None => PinHolder::NoHost,
        };
        let network = pinned.network.to_string();
        let (pod, address) = (pod.to_owned(), pinned.address);
        Some(hop(&PinnedEnd { pod, address, network, holder, runs_with }))
    }
}
