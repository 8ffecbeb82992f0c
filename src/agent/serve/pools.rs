//! Follows pools that grow in etcd, also before this host's settings say so.

use std::net::IpAddr;

use ipnetwork::IpNetwork;

use crate::agent::active_problems::ProblemSource;
use crate::agent::trigger::Scope;
use crate::inspect::host_state;
use crate::lease::records::Key;
use crate::lease::{LeaseError, Snapshot, growth};
use crate::net::subnet::{self, Pool};
use crate::net::{Family, Object, PerFamily, Problem, ProblemKind};
use crate::settings::{Source, parse, values_only};

use crate::agent::serve::agent::Agent;

impl Agent {
    /// Takes over pools that grew in etcd, so that routes and firewall are right before the operator
    /// has changed the settings here.
    pub(super) fn follow_pools(&mut self, found: &Snapshot) {
        self.hold_pools(found);
        let before = self.settings.pools;
        for (family, pool) in growth::followed(&before, &self.settings.limits, found).entries() {
            if before.get(family) != Some(pool) && self.address_inside(pool).is_none() {
                log::info!("the {family} pool of the network grew to {}", pool.network());
                self.settings.pools.set(family, Some(*pool));
                self.want_policies();
                self.state.scope = Scope::ALL;
            }
        }
        self.report_pools_of(found);
    }

    /// Goes on with the pools of the network where these cannot grow to those of the settings.
    pub(super) fn hold_pools(&mut self, found: &Snapshot) {
        let Source::Etcd { roots, .. } = &self.settings.source else { return };
        let mut held = growth::held_back(&self.settings.pools, found, roots, &self.tenant_pools());
        let network = found.config.as_ref().map(|config| config.value.pools()).unwrap_or_default();
        if let Some(LeaseError::CannotGrow { narrow, wide, .. }) = &self.state.etcd.trouble {
            let family = subnet::family(*wide);
            let is_refused = |pool: &Pool, of: &IpNetwork| pool.network() == *of;
            let theirs = network.get(family).filter(|pool| is_refused(pool, narrow));
            if let (Some(_), Some(theirs)) =
                (held.get(family).filter(|pool| is_refused(pool, wide)), theirs)
            {
                held.set(family, Some(*theirs));
            }
        }
        if held != self.settings.pools {
            let pools: Vec<String> = held.iter().map(|pool| pool.network().to_string()).collect();
            log::warn!("the pools of the network stay {}", pools.join(", "));
            self.settings.pools = held;
            self.want_policies();
            self.state.scope = Scope::ALL;
        }
    }

    /// Reports pools that differ between settings and network, with the settings to change.
    pub(super) fn report_pools(&mut self) {
        if let Some(found) = self.state.snapshot.clone() {
            self.report_pools_of(&found);
        }
    }

    fn report_pools_of(&mut self, found: &Snapshot) {
        let configured =
            parse(&self.texts, values_only).map(|settings| settings.pools).unwrap_or_default();
        let network = found.config.as_ref().map(|config| config.value.pools()).unwrap_or_default();
        let differing =
            Family::BOTH.iter().filter_map(|family| self.advice(*family, &configured, &network));
        self.shared.problems.set(ProblemSource::Pools, differing);
    }

    /// What to do about the pool of one family: `configured` here, and that of the `network`.
    fn advice(
        &self,
        family: Family,
        configured: &PerFamily<Pool>,
        network: &PerFamily<Pool>,
    ) -> Option<Problem> {
        let used = self.settings.pools.get(family)?;
        let wide = network.get(family).filter(|wide| wide.widens(used)).unwrap_or(used);
        let configured = configured.get(family);
        // Where it cannot grow to that of the settings, the lease says so.
        if configured == Some(wide) || configured.is_some_and(|own| own.widens(wide)) {
            return None;
        }
        let variable = match family {
            Family::V4 => "IP_SUBNET",
            Family::V6 => "IPV6_SUBNET",
        };
        let (pool, margin) = (wide.network(), wide.margin());
        let grown = format!("the {family} pool of the network grew to {pool}");
        let set = format!(
            "humanz-agent config # set {variable}={pool} and {variable}_MARGIN={margin} here as well"
        );
        let (what, fix) = match (wide == used, self.address_inside(wide)) {
            (true, _) => (format!("{grown}; this host uses it"), set),
            (_, Some(address)) => (
                format!("{grown}, which contains this host's address {address}"),
                "ip address # give the host another one".to_owned(),
            ),
            _ => (
                format!(
                    "{grown}, which this host does not adopt: {variable}_LIMIT is {}",
                    self.settings.limits.get(family).map_or("none".to_owned(), ToString::to_string)
                ),
                format!(
                    "{set}, if you grew the pool; if not, the etcd key {} was changed by \
                     somebody else: delete it, and the agents write what they know",
                    self.config_key()
                ),
            ),
        };
        let subject = Object::Setting(variable, String::new());
        Some(Problem::new(ProblemKind::PoolGrown, subject, what).with_fix(fix))
    }

    fn config_key(&self) -> String {
        match &self.settings.source {
            Source::Etcd { roots, .. } => roots.key(&Key::Config),
            _ => "HUMANZ_PREFIX/config".to_owned(),
        }
    }

    /// An address of this host that a pool must not contain. Those inside the present pool are ours.
    fn address_inside(&self, pool: &Pool) -> Option<IpAddr> {
        let present = self.settings.pools;
        let ours = |address: IpAddr| present.iter().any(|p| p.network().contains(address));
        let inside = |address: &IpAddr| pool.network().contains(*address) && !ours(*address);
        match &self.state.host_state {
            Some(host_state) => host_state.all_addresses.iter().copied().find(inside),
            None => {
                let host_state =
                    host_state::observe(&self.kernel.rtnl, &self.settings, None).ok()?;
                host_state.all_addresses.into_iter().find(inside)
            }
        }
    }
}
