//! Pure. The settings of a pod's interface beyond its attachment: limits and tuning. They apply to an
//! interface of ours and to one of another plugin of the chain.

use std::collections::BTreeMap;

use crate::cni::{Bandwidth, Tuning};
use crate::net::IfName;
use crate::netlink::link_settings::LinkSettings;
use crate::plan::bandwidth::{Queues, queues};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestedSettings {
    /// The bandwidth limits.
    pub queues: Queues,
    /// The settings of the pod's end.
    pub tune: LinkSettings,
    /// Path below /proc/sys, value.
    pub sysctls: Vec<(String, String)>,
}

/// The present values of [`RequestedSettings`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FoundSettings {
    /// The rate of our queue at the host's end, bytes per second; `None` also if it was not read.
    pub host_rate: Option<u64>,
    /// The same at the pod's end.
    pub pod_rate: Option<u64>,
    pub tune: LinkSettings,
    /// Those that exist.
    pub sysctls: BTreeMap<String, String>,
}

impl RequestedSettings {
    /// What a configuration requests for the interface `ifname` with an MTU of `mtu` bytes. (MAC and
    /// MTU are for the plugin that creates the interface.)
    pub fn of(
        bandwidth: &Bandwidth,
        tuning: &Tuning,
        ifname: &IfName,
        mtu: u32,
    ) -> RequestedSettings {
        let tune = LinkSettings {
            mac: None,
            mtu: None,
            promisc: tuning.promisc.then_some(true),
            all_multicast: tuning.all_multicast,
            tx_queue_len: tuning.tx_queue_len,
        };
        let sysctls = tuning.sysctls.iter();
        let sysctls = sysctls.map(|sysctl| (sysctl.key.path(ifname), sysctl.value.clone()));
        RequestedSettings { queues: queues(bandwidth, mtu), tune, sysctls: sysctls.collect() }
    }
}
