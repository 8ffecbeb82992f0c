//! The state of a pod's network namespace.

use std::collections::BTreeMap;

use crate::cni::error::CniError;
use crate::net::IfName;
use crate::net::gather::Gather;
use crate::netlink::link::Link;
use crate::netlink::link_settings::LinkSettings;
use crate::netlink::rtnl::Rtnl;
use crate::os::netns::NetNs;
use crate::os::sysctl;
use crate::plan::pod::{FoundSettings, RequestedSettings};
use crate::plugin::failure::OrInternal;

/// A pod's namespace and the interface in it.
pub struct PodState<'a> {
    /// A socket in the namespace.
    pub rtnl: Rtnl,
    pub link: Option<Link>,
    netns: &'a NetNs,
    what: String,
}

impl<'a> PodState<'a> {
    /// Looks up the interface `ifname` in `netns`, whose path is `path`.
    ///
    /// # Errors
    /// Code 999: the namespace cannot be entered, or the kernel refused an answer.
    pub fn read(netns: &'a NetNs, path: &str, ifname: &IfName) -> Result<PodState<'a>, CniError> {
        let what = format!("look into {path}");
        let rtnl = netns.run(Rtnl::open).or_internal(&what)?.or_internal(&what)?;
        let link = rtnl.link(ifname).or_internal(&what)?;
        Ok(PodState { rtnl, link, netns, what })
    }

    /// The present values of the `requested` settings, at this end and at the host's end, which
    /// `host` reads.
    ///
    /// # Errors
    /// Code 999: the kernel refused an answer.
    pub fn settings(
        &self,
        requested: &RequestedSettings,
        host: &Rtnl,
        host_end: Option<&Link>,
    ) -> Result<FoundSettings, CniError> {
        let mut found =
            FoundSettings { sysctls: self.sysctls(requested)?, ..FoundSettings::default() };
        if let Some(host_end) = host_end.filter(|_| requested.queues.host.is_some()) {
            found.host_rate = host.rate(host_end.index).or_internal(&self.what)?;
        }
        let Some(link) = &self.link else { return Ok(found) };
        if requested.queues.pod.is_some() {
            found.pod_rate = self.rtnl.rate(link.index).or_internal(&self.what)?;
        }
        if requested.tune != LinkSettings::default() {
            found.tune = self.rtnl.link_settings(link.index).or_internal(&self.what)?;
        }
        Ok(found)
    }

    /// Those of the requested sysctls that exist.
    fn sysctls(&self, requested: &RequestedSettings) -> Result<BTreeMap<String, String>, CniError> {
        if requested.sysctls.is_empty() {
            return Ok(BTreeMap::new());
        }
        let read = |(path, _): &(String, String)| Some((path.clone(), sysctl::read(path).ok()?));
        let found = self.netns.run(|| requested.sysctls.iter().filter_map(read).gather());
        found.or_internal(&self.what)
    }
}
