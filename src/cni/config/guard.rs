//! Pure. What the configuration says of the guard at each pod's port.

use ipnetwork::IpNetwork;

use crate::cni::json::JsonField;

/// What pods may send, and which way it takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuardConf {
    /// `podGuard`: pods send under their own MAC and addresses alone.
    pub is_on: bool,
    /// `podRouting` is `host`: the host routes unicast between its pods; else they are bridged.
    pub routes: bool,
    /// `allowedAddresses`: further sources of every pod; multicast ones are destinations.
    pub allowed: Vec<IpNetwork>,
}

impl Default for GuardConf {
    fn default() -> GuardConf {
        GuardConf { is_on: true, routes: true, allowed: Vec::new() }
    }
}

impl GuardConf {
    pub(super) fn read(conf: &JsonField) -> GuardConf {
        let usual = GuardConf::default();
        let routes = conf.get("podRouting").and_then(|field| match field.text() {
            Some("host") => Some(true),
            Some("bridge") => Some(false),
            _ => field.refuse("\"host\" or \"bridge\""),
        });
        let allowed = conf
            .get("allowedAddresses")
            .and_then(|field| field.list("subnets", |member| member.network()));
        GuardConf {
            is_on: conf.get("podGuard").and_then(|flag| flag.bool()).unwrap_or(usual.is_on),
            routes: routes.unwrap_or(usual.routes),
            allowed: allowed.unwrap_or_default(),
        }
    }
}
