//! All hosts of the network: as etcd has them now, or as this host knew them last.

use std::fs;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::etcd::{self, EtcdSettings};
use crate::inspect::host_state::{self, NodeAddresses};
use crate::inspect::identity;
use crate::inspect::state_file;
use crate::kube;
use crate::lease::records::{NodeName, Roots};
use crate::lease::{Lease, Peers, Snapshot, growth, peers};
use crate::net::Family;
use crate::settings::exit::{self, Exit};
use crate::settings::{Settings, Source};

/// Why etcd cannot be asked.
const NOT_SET: &str = "ETCD_HOST is not set";

/// What could be known of all hosts.
#[derive(Clone, Debug)]
pub struct ClusterView {
    /// Everything that was read.
    pub snapshot: Arc<Snapshot>,
    /// This host's subnets, if it has some.
    pub lease: Lease,
    /// This host's name.
    pub own: NodeName,
    /// The store that has them, in one word.
    pub store: &'static str,
    /// Since when it is no longer up to date; `None`: the store said so now.
    pub stale: Option<Stale>,
}

/// What is known instead of what etcd, or the Kubernetes API, says.
#[derive(Clone, Debug)]
pub struct Stale {
    /// The store that should have answered, for people.
    pub asked: &'static str,
    /// Why no store could be asked.
    pub why: String,
    /// How old it is, if known.
    pub age: Option<Duration>,
}

impl ClusterView {
    /// The other hosts; the pools of `settings` become those of the network.
    pub fn others(&self, settings: &mut Settings) -> Peers {
        settings.pools = growth::followed(&settings.pools, &settings.limits, &self.snapshot);
        peers(&self.snapshot, &self.own, &self.lease.subnets, &settings.pools)
    }
}

/// Where etcd is.
///
/// # Errors
/// This host has none.
pub fn etcd(settings: &Settings) -> Result<(&EtcdSettings, &Roots), Exit> {
    match &settings.source {
        Source::Etcd { .. } if settings.is_etcd_unknown() => {
            let why = match nix::unistd::geteuid().is_root() {
                true => format!("{NOT_SET}: list its members there (host, host:port or URL)"),
                false => format!("{NOT_SET} where this user may read: run this as root, or set it"),
            };
            Err(Exit::new(exit::SETTINGS, why))
        }
        Source::Etcd { server, roots } => Ok((server, roots)),
        Source::Kubernetes(_) => {
            let why = "the hosts are nodes of Kubernetes (SUBNET_SOURCE=kubernetes): see kubectl";
            Err(Exit::new(exit::SETTINGS, why))
        }
        Source::Static(_) if settings.agentless => {
            let why = "this machine serves itself alone, without agent and etcd (humanz-agent init set it up): it knows of no other hosts and no objects there";
            Err(Exit::new(exit::SETTINGS, why))
        }
        Source::Static(_) => {
            let why = "this host serves itself alone and asks no etcd (SUBNET_SOURCE=static): it knows of no other hosts and no objects there";
            Err(Exit::new(exit::SETTINGS, why))
        }
    }
}

fn store(settings: &Settings) -> &'static str {
    match settings.source {
        Source::Kubernetes(_) => "kubernetes",
        _ => "etcd",
    }
}

/// All hosts.
///
/// # Errors
/// Neither etcd answers nor is there a last known good state, or there can be neither.
pub fn read(settings: &Settings) -> Result<ClusterView, Exit> {
    let own = identity::node_name(settings)?;
    let found = match &settings.source {
        Source::Kubernetes(api) => {
            kube::read(api, &own, host_state::attributes(settings, NodeAddresses::default()))
                .map(|nodes| nodes.snapshot().clone())
        }
        _ if settings.is_etcd_unknown() => Err(NOT_SET.to_owned()),
        _ => etcd(settings).map(|(server, roots)| etcd::read(server, roots))?,
    };
    let why = match found {
        Ok(snapshot) => {
            let subnets = snapshot.nodes.get(&own).map(|node| node.value.subnets);
            let mut lease = Lease { subnets: subnets.unwrap_or_default() };
            // A node has podCIDRs of families, too, that the network has not.
            for family in Family::BOTH.into_iter().filter(|it| settings.pools.get(*it).is_none()) {
                lease.subnets.set(family, None);
            }
            let snapshot = Arc::new(snapshot);
            return Ok(ClusterView { snapshot, lease, own, store: store(settings), stale: None });
        }
        Err(why) => why,
    };
    saved(settings, &own, &why)
}

/// All hosts as this one knew them last; `why` etcd is not asked.
///
/// # Errors
/// It knew none.
pub fn saved(settings: &Settings, own: &NodeName, why: &str) -> Result<ClusterView, Exit> {
    let path = settings.state_file();
    let nothing = |reason: String| Exit::new(exit::UNAVAILABLE, format!("{why}; and {reason}"));
    let state = state_file::read(&path).map_err(|error| nothing(error.to_string()))?;
    let state = state.ok_or_else(|| {
        nothing(format!("there is no last known good state in {}", path.display()))
    })?;
    let written = fs::metadata(&path).and_then(|file| file.modified()).ok();
    let age = written.and_then(|at| SystemTime::now().duration_since(at).ok());
    let asked = match settings.source {
        Source::Kubernetes(_) => "the Kubernetes API",
        _ => "etcd",
    };
    Ok(ClusterView {
        snapshot: state.snapshot,
        lease: state.lease,
        own: own.clone(),
        store: store(settings),
        stale: Some(Stale { asked, why: why.to_owned(), age }),
    })
}
