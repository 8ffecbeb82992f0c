//! A pod, looked into.

use std::collections::BTreeMap;

use crate::cni::error::CniError;
use crate::net::IfName;
use crate::netlink::NetlinkError;
use crate::netlink::link::Link;
use crate::netlink::link_settings::LinkSettings;
use crate::netlink::rtnl::Rtnl;
use crate::os::netns::NetNs;
use crate::os::sysctl;
use crate::plan::pod::{FoundSettings, RequestedSettings};
use crate::plugin::failure;

/// A pod's namespace and the interface in it.
pub struct Inside<'a> {
    /// A socket in there.
    pub rtnl: Rtnl,
    /// The interface.
    pub link: Option<Link>,
    netns: &'a NetNs,
    what: String,
}

impl<'a> Inside<'a> {
    /// Looks for the interface `ifname` in `netns`, which the runtime calls `path`.
    ///
    /// # Errors
    /// Code 999: the namespace cannot be entered or asked.
    pub fn look(netns: &'a NetNs, path: &str, ifname: &IfName) -> Result<Inside<'a>, CniError> {
        let what = format!("look into {path}");
        let rtnl = netns.run(Rtnl::open).map_err(|error| failure::internal(&what, &error))?;
        let rtnl = rtnl.map_err(|error| failure::internal(&what, &error))?;
        let link = rtnl.link(ifname).map_err(|error| failure::internal(&what, &error))?;
        Ok(Inside { rtnl, link, netns, what })
    }

    /// How things are that were `asked` for, at this end and at the host's, which `host` knows.
    ///
    /// # Errors
    /// Code 999: somebody could not be asked.
    pub fn asked(
        &self,
        asked: &RequestedSettings,
        host: &Rtnl,
        host_end: Option<&Link>,
    ) -> Result<FoundSettings, CniError> {
        let failed = |error: NetlinkError| failure::internal(&self.what, &error);
        let mut found =
            FoundSettings { settings: self.settings(asked)?, ..FoundSettings::default() };
        if let Some(host_end) = host_end.filter(|_| asked.queues.host.is_some()) {
            found.host_rate = host.rate(host_end.index).map_err(failed)?;
        }
        let Some(link) = &self.link else { return Ok(found) };
        if asked.queues.pod.is_some() {
            found.pod_rate = self.rtnl.rate(link.index).map_err(failed)?;
        }
        if asked.tune != LinkSettings::default() {
            found.tune = self.rtnl.link_settings(link.index).map_err(failed)?;
        }
        Ok(found)
    }

    /// As many of the settings as there are.
    fn settings(&self, asked: &RequestedSettings) -> Result<BTreeMap<String, String>, CniError> {
        if asked.settings.is_empty() {
            return Ok(BTreeMap::new());
        }
        let read = |(path, _): &(String, String)| Some((path.clone(), sysctl::read(path).ok()?));
        let found = self.netns.run(|| asked.settings.iter().filter_map(read).collect());
        found.map_err(|error| failure::internal(&self.what, &error))
    }
}
