//! Effective values of settings without one: as the agent reports, else as it would determine them.

use crate::api::status::{NodeStatus, Status};
use crate::inspect::agent_socket;
use crate::inspect::host_state::{self, HostState};
use crate::inspect::identity;
use crate::net::Family;
use crate::netlink::rtnl::Rtnl;
use crate::plan::peer_routes::LocalBackend;
use crate::plan::tunnel::inner_mtu;
use crate::settings::{Settings, Source};

/// An effective value, and its origin.
pub struct EffectiveValue {
    /// `None` if it cannot be determined without an agent.
    pub value: Option<String>,
    /// Its origin.
    pub why: String,
}

/// The sources of effective values.
pub struct Places<'a> {
    settings: &'a Settings,
    /// `node` of the agent's status; `None` if no agent answers.
    agent: Option<NodeStatus>,
    here: Option<HostState>,
}

impl Places<'_> {
    /// Asks the agent, and inspects the host.
    pub fn of(settings: &Settings) -> Places<'_> {
        let status =
            agent_socket::of(settings).and_then(|path| agent_socket::get(path, "/v1/status")).ok();
        let node = status.and_then(|status| Some(Status::read(status).ok()?.node));
        let agent = node.filter(|node| node.pod_mtu.is_some());
        let here =
            Rtnl::open().ok().and_then(|rtnl| host_state::observe(&rtnl, settings, None).ok());
        Places { settings, agent, here }
    }

    /// The effective value of a setting, if it is one that is determined.
    pub fn found(&self, name: &str) -> Option<EffectiveValue> {
        match name {
            "NODE_NAME" => {
                let name = identity::node_name(self.settings).ok()?.to_string();
                Some(EffectiveValue { value: Some(name), why: "host name".to_owned() })
            }
            "NODE_IP" if self.settings.node_addresses.is_empty() => self.addresses(),
            "MTU" if self.settings.mtu_bytes.is_none() => self.mtu(),
            "CNI_PLUGIN_LOCATION" => {
                let path = self.settings.cni.plugin.display().to_string();
                Some(EffectiveValue { value: Some(path), why: "CNI_TYPE".to_owned() })
            }
            _ => None,
        }
    }

    fn addresses(&self) -> Option<EffectiveValue> {
        let addresses = match (&self.agent, &self.here) {
            (Some(agent), _) => agent.addresses.clone().unwrap_or_default(),
            (None, Some(here)) => here.own.addresses.iter().map(ToString::to_string).collect(),
            (None, None) => return None,
        };
        let route = format!("default route, {}", self.uplinks());
        let why = match (&self.settings.source, &self.agent) {
            (Source::Kubernetes(_), None) => {
                format!("{route}; InternalIP counts first, and no agent answers")
            }
            (Source::Kubernetes(_), Some(_)) => format!("InternalIP or {route}"),
            _ => route,
        };
        (!addresses.is_empty()).then(|| EffectiveValue { value: Some(addresses.join(",")), why })
    }

    fn mtu(&self) -> Option<EffectiveValue> {
        let (outer, pods) = match (&self.agent, &self.here) {
            (Some(agent), _) => {
                let pods = agent.pod_mtu?;
                // An older agent reports the MTU of pods alone.
                let own = self.here.as_ref().map(|here| here.own.mtu_bytes);
                (agent.mtu.or(own).unwrap_or(pods), Some(pods))
            }
            (None, Some(here)) => (here.own.mtu_bytes, self.mtu_without_agent(here)),
            (None, None) => return None,
        };
        let uplinks = format!("{} {outer}", self.uplinks());
        let known = |value: u32, why| Some(EffectiveValue { value: Some(value.to_string()), why });
        match pods {
            Some(pods) if pods == outer => known(pods, uplinks),
            Some(pods) if [50, 70].contains(&outer.saturating_sub(pods)) => {
                known(pods, format!("{uplinks} less {} for VXLAN", outer - pods))
            }
            Some(pods) => {
                let why = format!("{uplinks}; the running agent has MTU={pods}");
                Some(EffectiveValue { value: None, why })
            }
            None => {
                let why = format!(
                    "{uplinks}, less 50 (over IPv6 70) once a host is behind a tunnel; no agent answers"
                );
                Some(EffectiveValue { value: None, why })
            }
        }
    }

    /// `None` if it depends on where the other hosts are.
    fn mtu_without_agent(&self, here: &HostState) -> Option<u32> {
        let (own, pools) = (&here.own.addresses, &self.settings.pools);
        let alone = own.iter().count() == 1;
        match self.settings.backend {
            _ if !self.settings.has_others() => Some(here.own.mtu_bytes),
            LocalBackend::Direct => Some(here.own.mtu_bytes),
            LocalBackend::Auto => None,
            LocalBackend::Vxlan => {
                let used = |family: &Family| {
                    own.get(*family).is_some() && (pools.get(*family).is_some() || alone)
                };
                let inner = |family| inner_mtu(here.own.mtu_bytes, family, pools);
                Family::BOTH.into_iter().filter(used).map(inner).min()
            }
        }
    }

    /// The names of the interfaces that lead to the other hosts.
    fn uplinks(&self) -> String {
        let reported = self.agent.as_ref().and_then(|agent| agent.uplinks.clone());
        let reported = reported.unwrap_or_default();
        let here = self.here.iter().flat_map(|here| here.uplinks.iter().map(ToString::to_string));
        let names: Vec<String> = if reported.is_empty() { here.collect() } else { reported };
        if names.is_empty() { "no interface".to_owned() } else { names.join("+") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inspect::host_state::NodeAddresses;
    use crate::settings::{Texts, parse, values_only};

    /// `node` of an agent that does not report the MTU of the host.
    #[test]
    fn an_older_agent_does_not_hide_the_mtu_of_the_host() {
        let texts = Texts::from([("ETCD_HOST", "etcd".to_owned())]);
        let settings = parse(&texts, values_only).unwrap();
        let own = NodeAddresses { mtu_bytes: 1500, ..NodeAddresses::default() };
        let here = HostState {
            own,
            all_addresses: Default::default(),
            connected: Vec::new(),
            underlay: Default::default(),
            uplinks: ["eth0".parse().unwrap()].into(),
            down: Default::default(),
        };
        let mtu = |agent, here| {
            let found =
                Places { settings: &settings, agent: Some(agent), here }.found("MTU").unwrap();
            (found.value, found.why)
        };
        let pods = |why: &str| (Some("1450".to_owned()), why.to_owned());
        let old = || NodeStatus { pod_mtu: Some(1450), ..NodeStatus::default() };
        let uplinks = Some(vec!["eth0".to_owned()]);
        let reported = NodeStatus { mtu: Some(1500), uplinks, ..old() };
        let less = pods("eth0 1500 less 50 for VXLAN");
        assert_eq!(mtu(reported, None), less);
        assert_eq!(mtu(old(), Some(here)), less);
        assert_eq!(mtu(old(), None), pods("no interface 1450"));
    }
}
