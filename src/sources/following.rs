//! Follows the Kubernetes API or etcd while policies of it are wanted.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::kube::KubeSettings;
use crate::lease::blocks::session::BlockInputs;
use crate::net::node_name::NodeName;
use crate::os::event_loop::EventLoop;
use crate::policy::held::PodOwners;
use crate::policy::members::peers;
use crate::policy::shares::Excess;
use crate::policy::unread::UnderstoodRules;
use crate::policy::{Members, ObjectSource, Selector, SourceUpdate};
use crate::sources::blocks::{Blocks, BlocksStart, BlocksUpdate, blocks};
use crate::sources::cluster_state::PodScope;
use crate::sources::exchange::{Exchange, exchange};
use crate::sources::exchanged::{ExchangeInputs, ExchangeStart, Exchanged};
use crate::sources::inputs::{ExchangedFrom, hosts};
use crate::sources::kubernetes::{self, ApiStart};
use crate::sources::policies::{PoliciesStart, policies};
use crate::sources::shared::Hosts;

/// What to follow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Followed {
    Kubernetes(ApiStart),
    /// Policies, and members of groups, for this host.
    Etcd {
        start: PoliciesStart,
        host: NodeName,
        state_dir: PathBuf,
        /// Further policies, and this host's pods, are there.
        api: Option<Box<KubeSettings>>,
        /// The source of groups, networks and so on.
        ruling: ObjectSource,
    },
}

/// What follows them, and what it was started with.
pub struct Following {
    publish: Arc<dyn Fn(SourceUpdate) + Send + Sync>,
    publish_members: Arc<dyn Fn(Exchanged) + Send + Sync>,
    publish_blocks: Arc<dyn Fn(BlocksUpdate) + Send + Sync>,
    running: Option<Running>,
}

struct Running {
    of: Followed,
    _sources: Vec<EventLoop>,
    exchange: Option<Exchange>,
    blocks: Option<Blocks>,
    /// What was exchanged last.
    exchanged: Option<(ExchangedFrom, Arc<Hosts>)>,
    owners: Option<Arc<PodOwners>>,
    /// Groups that rules had, and when those went.
    former: BTreeMap<Selector, Instant>,
}

/// What is in force when following begins.
pub struct PoliciesInForce {
    /// The rules of the Kubernetes API.
    pub of_api: UnderstoodRules,
    /// Policies of etcd are in force.
    pub has_etcd: bool,
    /// The members on other hosts.
    pub members: Members,
    /// The networks of tenants: what hosts have of them holds from the first look on.
    pub blocks: BlockInputs,
}

/// So long members of a group are published after the last rule about it went: other hosts may learn of
/// that later.
const FORMER: Duration = Duration::from_secs(10);

impl Following {
    /// Nothing is followed yet. All are called from other threads and must not block for long.
    pub fn new(
        publish: impl Fn(SourceUpdate) + Send + Sync + 'static,
        publish_members: impl Fn(Exchanged) + Send + Sync + 'static,
        publish_blocks: impl Fn(BlocksUpdate) + Send + Sync + 'static,
    ) -> Following {
        let (publish, publish_members) = (Arc::new(publish), Arc::new(publish_members));
        let publish_blocks = Arc::new(publish_blocks);
        Following { publish, publish_members, publish_blocks, running: None }
    }

    /// Follows `wanted` alone. Nothing that was received is revoked by that. `in_force`: what is.
    pub fn set(&mut self, wanted: Option<Followed>, in_force: impl FnOnce() -> PoliciesInForce) {
        if self.running.as_ref().map(|running| &running.of) == wanted.as_ref() {
            return;
        }
        self.running = None;
        let Some(of) = wanted else { return };
        let PoliciesInForce { of_api, has_etcd, members: kept, blocks } = in_force();
        let (sources, exchange, blocks) = match of.clone() {
            Followed::Kubernetes(start) => (self.api(start, of_api).map(|it| vec![it]), None, None),
            Followed::Etcd { start, host, state_dir, api, ruling } => {
                let (host_name, pods) = (host.clone(), PodScope::Own);
                let own = |api| ApiStart { api, host: host_name, pods, ruling, group: None };
                let api = api.map(|api| self.api(own(*api), of_api));
                let PoliciesStart { etcd, roots } = start.clone();
                let members = Arc::clone(&self.publish_members);
                let blocks = self.blocks(BlocksStart {
                    etcd: etcd.clone(),
                    roots: roots.clone(),
                    host: host.clone(),
                    state_dir: state_dir.clone(),
                    inputs: blocks,
                });
                let start_exchange = ExchangeStart { etcd, roots, host, kept, state_dir };
                let exchange = exchange(start_exchange, move |exchanged| members(exchanged));
                let publish = Arc::clone(&self.publish);
                let etcd = policies(start, ruling, has_etcd, move |update| publish(update));
                (api.into_iter().chain([etcd]).collect(), Some(exchange), Some(blocks))
            }
        };
        self.running = running(of, sources, exchange.transpose(), blocks.transpose());
    }

    fn api(&self, start: ApiStart, last: UnderstoodRules) -> io::Result<EventLoop> {
        let publish = Arc::clone(&self.publish);
        kubernetes::spawn(start, last, move |update| publish(update))
    }

    fn blocks(&self, start: BlocksStart) -> io::Result<Blocks> {
        let publish = Arc::clone(&self.publish_blocks);
        blocks(start, move |update| publish(update))
    }

    /// What this host wants of tenants' networks.
    pub fn set_blocks(&self, inputs: BlockInputs) {
        if let Some(blocks) = self.running.as_ref().and_then(|running| running.blocks.as_ref()) {
            blocks.set(inputs);
        }
    }

    /// Members go to other hosts and come from them.
    pub fn exchanges(&self) -> bool {
        self.running.as_ref().is_some_and(|running| running.exchange.is_some())
    }

    /// Says what follows from `from`, if that has changed, and returns what other hosts do not learn then. `prepare`:
    /// before etcd may have other owners of addresses; nothing is said if that fails.
    pub fn exchange(
        &mut self,
        from: &ExchangedFrom,
        prepare: impl FnOnce(&Arc<PodOwners>) -> bool,
    ) -> Option<Excess> {
        let running = self.running.as_mut()?;
        let (Followed::Etcd { host: own, .. }, Some(exchange)) = (&running.of, &running.exchange)
        else {
            return None;
        };
        let is_same = running.exchanged.as_ref().is_some_and(|(last, _)| last.is_same(from));
        if is_same && running.former.values().all(|since| since.elapsed() < FORMER) {
            return None;
        }
        let hosts = match &running.exchanged {
            Some((last, hosts))
                if Arc::ptr_eq(&last.peers, &from.peers)
                    && last.known.networks == from.known.networks =>
            {
                Arc::clone(hosts)
            }
            _ => Arc::new(hosts(&from.peers, &from.known.networks)),
        };
        let now = Instant::now();
        let last = running.exchanged.as_ref().map(|(last, _)| &last.known);
        if let Some(last) = last.filter(|last| !Arc::ptr_eq(last, &from.known)) {
            running.former.extend(peers(last.rules.iter()).into_iter().map(|group| (group, now)));
            let in_use = peers(from.known.rules.iter());
            running.former.retain(|group, _| !in_use.contains(group));
        }
        running.former.retain(|_, since| now.duration_since(*since) < FORMER);
        let former = running.former.keys().cloned();
        let mut inputs = ExchangeInputs::of(from, former, own, Arc::clone(&hosts));
        match &running.owners {
            Some(last) if *last == inputs.owners => inputs.owners = Arc::clone(last),
            _ if !prepare(&inputs.owners) => return None,
            _ => running.owners = Some(Arc::clone(&inputs.owners)),
        }
        let excess = inputs.excess.clone();
        exchange.set(inputs);
        running.exchanged = Some((from.clone(), hosts));
        Some(excess)
    }
}

/// `None` if one of them could not be started: both are then, with the next look.
fn running(
    of: Followed,
    sources: io::Result<Vec<EventLoop>>,
    exchange: io::Result<Option<Exchange>>,
    blocks: io::Result<Option<Blocks>>,
) -> Option<Running> {
    match (sources, exchange, blocks) {
        (Ok(sources), Ok(exchange), Ok(blocks)) => Some(Running {
            of,
            _sources: sources,
            exchange,
            blocks,
            exchanged: None,
            owners: None,
            former: BTreeMap::new(),
        }),
        (Err(error), ..) | (_, Err(error), _) | (.., Err(error)) => {
            log::error!("follow policies: {error}; this is tried again");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_not_be_started_does_not_count_as_followed() {
        let host: NodeName = "n1".parse().unwrap();
        let (api, ruling) = (KubeSettings::default(), ObjectSource::Kubernetes);
        let start = ApiStart { api, host, pods: PodScope::All, ruling, group: None };
        let of = || Followed::Kubernetes(start.clone());
        let failed = || io::Error::from(io::ErrorKind::WouldBlock);
        let source = || EventLoop::spawn("test", async |stopped| drop(stopped.await));
        let sources = || Ok(vec![source().unwrap()]);
        assert!(running(of(), Err(failed()), Ok(None), Ok(None)).is_none());
        assert!(running(of(), sources(), Err(failed()), Ok(None)).is_none());
        assert!(running(of(), sources(), Ok(None), Ok(None)).is_some());
    }
}
