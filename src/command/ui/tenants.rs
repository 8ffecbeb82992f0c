//! What there is of policies and tenants, for the page: networks with their use on this host, groups with their
//! members, who may reach what.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ipnetwork::IpNetwork;
use serde_json::{Value, json};

use crate::api::status::{LeaseStatus, Status};
use crate::command::policy::here::HostPolicies;
use crate::command::ui::groups::groups;
use crate::command::ui::pod_policies::pod_policies;
use crate::inspect::pods::{self, room};
use crate::inspect::{agent_socket, policies};
use crate::net::gather::Gather;
use crate::net::subnet::gateway;
use crate::policy::change::Surroundings;
use crate::policy::pairs::{self as reach, PairVerdicts};
use crate::policy::view::Quarantined;
use crate::policy::{Endpoint, Networks, PolicySnapshot, Scoped, TenantNetwork};
use crate::settings::Settings;

/// Every user of this host can ask, and an answer costs a look at all policies …
const EVERY: Duration = Duration::from_secs(5);

/// … which are followed by this many times as long without one.
const REST: u32 = 10;

/// The text of an answer, or why there is none.
type TenantsAnswer = Result<Arc<[u8]>, String>;

/// What was found last, by one look after the other.
#[derive(Default)]
pub struct KnownTenants {
    looking: Mutex<()>,
    last: Mutex<Option<LastTenants>>,
}

struct LastTenants {
    /// It holds until then.
    until: Instant,
    found: TenantsAnswer,
}

impl KnownTenants {
    /// What was found last, seconds ago at most, or before the look that is being taken.
    ///
    /// # Errors
    /// Why the agent does not say what it knows, or the store of addresses cannot be read; the first look is being
    /// taken.
    pub fn get(&self, settings: &Settings) -> TenantsAnswer {
        self.get_by(|| Ok(find(settings)?.to_string().into_bytes().into()))
    }

    fn get_by(&self, find: impl FnOnce() -> TenantsAnswer) -> TenantsAnswer {
        let last = || self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(last) = last().as_ref().filter(|last| Instant::now() < last.until) {
            return last.found.clone();
        }
        // Who waited here would hold a thread of those that serve the rest of the page.
        let Ok(_alone) = self.looking.try_lock() else {
            let looking = || Err("policies are being read: ask again".to_owned());
            return last().as_ref().map_or_else(looking, |last| last.found.clone());
        };
        let began = Instant::now();
        let found = find();
        let rest = if found.is_ok() { REST * began.elapsed() } else { EVERY };
        let until = Instant::now() + EVERY.max(rest);
        *last() = Some(LastTenants { until, found: found.clone() });
        found
    }
}

/// `networks`, `groups`, `pairs`, `quarantined`, `pods` (which policies hold for each): empty where policies are off, or nothing is known of them; `pairs` is
/// null where there are too many.
fn find(settings: &Settings) -> Result<Value, String> {
    let mut all = json!({"networks": [], "groups": [], "pairs": [], "quarantined": [], "pods": []});
    let Some(view) = policies::asked(settings)? else { return Ok(all) };
    let quarantined = view.quarantined();
    all["quarantined"] = quarantined.iter().map(shown_quarantined).collect();
    all["pods"] = pod_policies(&view).into();
    if view.known.is_none() {
        return Ok(all);
    }
    let here = HostPolicies::of(settings, view).map_err(|exit| exit.why)?;
    let known = &here.known;
    if !known.networks.is_empty() {
        all["networks"] = networks(settings, known)?.into();
    }
    all["groups"] = groups(known, &here.view.endpoints())
        .iter()
        .map(|(name, group)| group.json(name))
        .collect();
    all["pairs"] = pairs(&here, &here.view.judged());
    Ok(all)
}

fn shown_quarantined(one: &Quarantined) -> Value {
    json!({"pod": one.pod, "why": one.reason.to_string()})
}

fn pairs(here: &HostPolicies, pods: &[Endpoint]) -> Value {
    let known = &here.known;
    if known.rules.is_empty() {
        return json!([]);
    }
    // From a loopback address no pod can be reached.
    let own = here.own.iter().copied().filter(|address| !address.is_loopback()).gather();
    let around = Surroundings {
        members: &known.members,
        subnets: &here.view.subnets,
        own: &own,
        pools: &here.pools(),
    };
    let found = reach::pairs(&here.knowledge(&known.rules, &known.members, pods), &around);
    json!(found.map(|found| found.iter().map(shown_pair).collect::<Vec<_>>()))
}

fn shown_pair(pair: &PairVerdicts) -> Value {
    json!({
        "from": pair.source,
        "to": pair.destination,
        "allowed": pair.allowed,
        "denied": pair.denied,
        "unknown": pair.unknown,
        "elsewhere": pair.judged_elsewhere,
    })
}

fn networks(settings: &Settings, known: &PolicySnapshot) -> Result<Vec<Value>, String> {
    let status = agent_socket::get(agent_socket::of(settings)?, "/v1/status")?;
    let lease = Status::read(status)?.lease.unwrap_or_default();
    let taken = pods::store(settings, &settings.cni.name).and_then(|store| Ok(store.taken()?));
    let broken = |error| pods::store_problem(&settings.cni.ipam_dir, &error).to_string();
    let taken = taken.map_err(broken)?;
    let shown = known.networks.iter();
    Ok(shown.map(|(name, network)| shown_network(known, name, network, &lease, &taken)).collect())
}

fn shown_network(
    known: &PolicySnapshot,
    name: &Scoped,
    network: &TenantNetwork,
    lease: &LeaseStatus,
    taken: &[IpAddr],
) -> Value {
    let pools = known.networks.pools().filter(|(_, of)| of == name);
    let blocks = own_blocks(name, lease).into_iter().filter_map(|block| {
        let (usable, free) = room(block, taken)?;
        let used = usable.saturating_sub(free);
        // JSON has no larger number.
        let free = u64::try_from(free).unwrap_or(u64::MAX);
        Some(json!({"block": block, "gateway": gateway(block), "used": used, "free": free}))
    });
    json!({
        "name": name.to_string(),
        "subnets": pools.map(|(pool, _)| pool).collect::<Vec<_>>(),
        "blocks": blocks.collect::<Vec<_>>(),
        "nat": network.nat,
        "shared": network.shared,
        "host_ports": network.host_ports,
    })
}

/// Where this host's pods of the network have their addresses, as its agent says.
fn own_blocks(name: &Scoped, lease: &LeaseStatus) -> Vec<IpNetwork> {
    if *name == Networks::default_name() {
        return lease.subnets.clone().unwrap_or_default();
    }
    let name = name.to_string();
    let own = lease.blocks.iter().filter(|block| block.network == name);
    own.map(|block| block.block).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    fn text(text: &str) -> Arc<[u8]> {
        text.as_bytes().into()
    }

    #[test]
    fn no_request_waits_for_a_refresh_and_all_get_the_same_bytes() {
        let known = KnownTenants::default();
        let (begin, begun) = channel();
        let (end, ended) = channel::<()>();
        let slow = move || {
            begin.send(()).unwrap();
            ended.recv().unwrap();
            Ok(text("new"))
        };
        let never = || -> TenantsAnswer { panic!("a second look") };
        std::thread::scope(|threads| {
            // Dropped when anything here fails: the other thread ends then.
            let end = end;
            let first = threads.spawn(|| known.get_by(slow));
            begun.recv().unwrap();
            assert!(known.get_by(never).unwrap_err().contains("ask again"));
            let until = Instant::now();
            *known.last.lock().unwrap() = Some(LastTenants { until, found: Ok(text("old")) });
            assert_eq!(known.get_by(never), Ok(text("old")));
            end.send(()).unwrap();
            let first = first.join().unwrap().unwrap();
            assert!(Arc::ptr_eq(&known.get_by(never).unwrap(), &first));
        });
    }

    #[test]
    fn a_long_look_is_followed_by_a_longer_rest() {
        let known = KnownTenants::default();
        let slow = || {
            std::thread::sleep(Duration::from_millis(600));
            Ok(text("new"))
        };
        known.get_by(slow).unwrap();
        let until = known.last.lock().unwrap().as_ref().unwrap().until;
        assert!(until > Instant::now() + EVERY);
    }
}
