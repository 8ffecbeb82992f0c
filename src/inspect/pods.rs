//! The pods of this host: what the stores of all its networks have, and what of it is there.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, DirEntry, ReadDir};
use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use ipnetwork::IpNetwork;

use crate::cni::config::RangeConf;
use crate::inspect::identity::as_root;
use crate::inspect::interface_counters::InterfaceCounters;
use crate::ipam::import::Sources;
use crate::ipam::{RangeSet, Store, StoreContents, StoreEntry, StoreFault};
use crate::lease::records::HostPod;
use crate::net::gather::Gather;
use crate::net::{IfName, Object, Problem, ProblemKind};
use crate::netlink::rtnl::Rtnl;
use crate::os::{files, identity, netns};
use crate::plan::pod::LinkIdentity;
use crate::settings::Settings;
use crate::settings::exit::Exit;

/// The store of one network.
pub struct StoreNetwork {
    pub name: String,
    pub store: Store,
    pub contents: StoreContents,
}

/// A pod's interface, as the store has it.
#[derive(Clone, Debug)]
pub struct PodAttachment {
    /// The network whose store it is in.
    pub network: String,
    pub entry: StoreEntry,
}

impl PodAttachment {
    /// The name of its interface on the host.
    pub fn host_end(&self) -> String {
        let (network, entry) = (self.network.as_str(), &self.entry);
        let (container_id, ifname) = (entry.container_id.as_str(), entry.ifname.as_str());
        LinkIdentity { network, container_id, ifname }.host_ifname().as_str().to_owned()
    }

    /// With its addresses in `ranges`; `None` if it has none there. `counters`: of each interface of the host.
    pub fn reported(
        &self,
        ranges: &[IpNetwork],
        counters: &BTreeMap<String, InterfaceCounters>,
    ) -> Option<HostPod> {
        let is_reached = |address: &&IpAddr| ranges.iter().any(|range| range.contains(**address));
        let addresses: Vec<IpAddr> =
            self.entry.addresses.iter().filter(is_reached).copied().collect();
        (!addresses.is_empty()).then(|| HostPod {
            pod: self.name().into(),
            network: self.network.as_str().into(),
            addresses,
            // What the pod sends, the host's end receives.
            bytes: counters.get(&self.host_end()).map(|it| [it.received_bytes, it.sent_bytes]),
        })
    }

    /// The pod, or the container where the runtime gave no pod.
    pub fn name(&self) -> &str {
        self.entry.pod.as_deref().unwrap_or(&self.entry.container_id)
    }
}

/// Whether an attachment is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// Its interface is.
    Attached,
    /// Its namespace is, but no interface of ours: another plugin of the chain made it, or it is
    /// being made, or was removed.
    Present,
    /// Neither is.
    Gone,
    /// An earlier plugin made it, and did not say where.
    Unknown,
    /// Its interface is not; where its namespace would be cannot be seen from here.
    Unseen,
}

impl Life {
    /// Whether the attachment of `entry` is there. `links`: the interfaces of this host.
    pub fn of(entry: &StoreEntry, network: &str, links: &BTreeSet<IfName>) -> Life {
        let (container_id, ifname) = (entry.container_id.as_str(), entry.ifname.as_str());
        let host_end = LinkIdentity { network, container_id, ifname }.host_ifname();
        match &entry.netns {
            _ if entry.is_unowned() => Life::Unknown,
            _ if links.contains(&host_end) => Life::Attached,
            None => Life::Unknown,
            // A file may be left where it was mounted.
            Some(path) if netns::is_gone(Path::new(path)) => Life::Gone,
            Some(path) if Path::new(path).exists() => Life::Present,
            Some(_) => Life::Unseen,
        }
    }

    /// One word.
    pub fn word(self) -> &'static str {
        match self {
            Life::Attached => "attached",
            Life::Present => "present",
            Life::Gone => "gone",
            Life::Unknown => "unknown",
            Life::Unseen => "unseen",
        }
    }
}

/// The stores of all networks, by name; `of` alone if that is given.
///
/// # Errors
/// A folder or a file in it cannot be read.
pub fn networks(settings: &Settings, of: Option<&str>) -> Result<Vec<StoreNetwork>, Problem> {
    let names = names(settings)?.into_iter().filter(|name| of.is_none_or(|of| of == name));
    names.map(|name| network(settings, name)).collect()
}

/// Every attachment of every network, and what of the stores could not be read. Nothing is locked or
/// changed.
pub fn attachments(settings: &Settings) -> (Vec<PodAttachment>, Vec<Problem>) {
    let (mut all, mut unread) = (Vec::new(), Vec::new());
    let names = names(settings);
    for name in names.unwrap_or_else(|problem| {
        unread.push(problem);
        Vec::new()
    }) {
        match network(settings, name) {
            Ok(network) => {
                unread.extend(network.faults(settings));
                let entries = network.contents.entries.into_iter().map(Arc::unwrap_or_clone);
                let name = || network.name.clone();
                all.extend(entries.map(|entry| PodAttachment { network: name(), entry }));
            }
            Err(problem) => unread.push(problem),
        }
    }
    (all, unread)
}

fn network(settings: &Settings, name: String) -> Result<StoreNetwork, Problem> {
    let read = || -> anyhow::Result<StoreNetwork> {
        let store = store(settings, &name)?;
        let contents = store.contents()?;
        Ok(StoreNetwork { name, store, contents })
    };
    read().map_err(|error| store_problem(&settings.cni.ipam_dir, &error))
}

impl StoreNetwork {
    /// Its files that are not entries.
    pub fn faults(&self, settings: &Settings) -> impl Iterator<Item = Problem> {
        let subject = Object::File("store", settings.cni.ipam_dir.clone());
        self.contents.faults.iter().map(move |StoreFault { path, what, since }| {
            let fix = format!(
                "ls -la {} # see what wrote it (a disk with errors, or another program); an ADD or DEL that meets it \
                 moves it into quarantine",
                path.display()
            );
            let problem = Problem::new(ProblemKind::Quarantine, subject.clone(), what.as_str());
            Problem { since: *since, ..problem.with_fix(fix) }
        })
    }
}

/// A store that cannot be used: no pod starts. Or it is not known, where this user may not read it.
pub fn store_problem(ipam_dir: &Path, error: &anyhow::Error) -> Problem {
    let subject = Object::File("store", ipam_dir.to_owned());
    let mut causes = error.chain().filter_map(|cause| cause.downcast_ref::<io::Error>());
    if causes.any(|cause| cause.kind() == ErrorKind::PermissionDenied) {
        let what = format!("only root may read the addresses of pods: {error:#}");
        return Problem::new(ProblemKind::StoresUnread, subject, what).with_fix(as_root());
    }
    let fix = format!(
        "ls -la {} # make IPAM_DIR a directory that root can read and write, on a disk without errors",
        ipam_dir.display()
    );
    Problem::new(ProblemKind::IpamStore, subject, format!("{error:#}")).with_fix(fix)
}

/// Every attachment, with its network.
pub fn entries(networks: &[StoreNetwork]) -> impl Iterator<Item = (&StoreNetwork, &StoreEntry)> {
    let all = networks.iter().flat_map(|of| of.contents.entries.iter().map(move |it| (of, it)));
    all.map(|(network, entry)| (network, &**entry))
}

/// The store of a network, whether it is there or not.
pub fn store(settings: &Settings, network: &str) -> anyhow::Result<Store> {
    let boot_id = identity::boot_id().context("identify this boot")?;
    Ok(Store::open(&settings.cni.ipam_dir, network, &boot_id, Sources::default()))
}

/// What is in the folder of the stores; `None` if there is none yet.
///
/// # Errors
/// It cannot be read.
pub fn folder(ipam_dir: &Path) -> anyhow::Result<Option<ReadDir>> {
    let read = files::found(fs::read_dir(ipam_dir));
    read.with_context(|| format!("read {} (IPAM_DIR)", ipam_dir.display()))
}

/// The folder of the stores can be used, or is not there yet; of another one the problem of the store speaks.
pub fn is_usable(ipam_dir: &Path) -> bool {
    folder(ipam_dir).is_ok()
}

/// The names of the stores. An unreadable entry counts as one, and so does a file where the own network's
/// folder would be: reading it reports why not.
///
/// # Errors
/// Their folder cannot be read.
pub fn names(settings: &Settings) -> Result<Vec<String>, Problem> {
    let dir = &settings.cni.ipam_dir;
    let entries = folder(dir).map_err(|error| store_problem(dir, &error))?;
    let is_own = |entry: &DirEntry| entry.file_name() == settings.cni.name.as_str();
    let is_store = |entry: &DirEntry| {
        let path = entry.path();
        Store::is_at(&path).unwrap_or(true) || is_own(entry) && !path.is_dir()
    };
    let stores = entries.into_iter().flatten().filter_map(Result::ok).filter(is_store);
    let names = stores.filter_map(|entry| entry.file_name().into_string().ok());
    let mut names: Vec<String> = names.filter(|name| !name.starts_with('.')).collect();
    names.sort_unstable();
    Ok(names)
}

/// The names of this host's interfaces.
///
/// # Errors
/// The kernel's.
pub fn links() -> Result<BTreeSet<IfName>, Exit> {
    let rtnl = Rtnl::open().context("open a rtnetlink socket")?;
    let links = rtnl.links(None).context("list interfaces")?;
    Ok(links.into_iter().map(|link| link.name).gather())
}

/// How many addresses of `subnet` pods can have, and how many of these are not `taken`.
pub fn room<'a>(
    subnet: IpNetwork,
    taken: impl IntoIterator<Item = &'a IpAddr>,
) -> Option<(u128, u128)> {
    let conf = RangeConf { subnet, range_start: None, range_end: None, gateway: None };
    let set = RangeSet::new(vec![crate::ipam::Range::new(&conf).ok()?]).ok()?;
    let used = taken.into_iter().filter(|address| subnet.contains(**address)).count();
    // The gateway is the bridge's.
    let usable = set.count() - 1;
    Some((usable, usable.saturating_sub(used as u128)))
}
