//! Further interfaces of a pod, which its runtime does not know: they come and go with the one that the runtime
//! names, whose entry in the store lists them.

use std::collections::BTreeSet;

use crate::cni::args::CniArgs;
use crate::cni::attachment::Attachment;
use crate::cni::config::NetConf;
use crate::cni::error::CniError;
use crate::cni::request::{Check, Del, Gc};
use crate::ipam::{LockedStore, StoreEntry};
use crate::net::IfName;
use crate::net::gather::Gather;
use crate::netlink::link::Link;
use crate::plan::pod::LinkIdentity;
use crate::plugin::store::lock_if_any;
use crate::plugin::{release, store};

/// What removes those of a dead attachment.
pub fn dels_of(conf: &NetConf, of: &Attachment, former: &StoreEntry) -> Vec<Del> {
    let del = |ifname: &IfName| Del {
        attachment: Attachment { ifname: ifname.clone(), ..of.clone() },
        netns: None,
        conf: NetConf { prev_result: None, ..conf.clone() },
        args: CniArgs::default(),
        ignored: Vec::new(),
    };
    former.further.iter().map(del).collect()
}

/// What removes them before `del`. A store that was lost is replaced by the result of ADD.
pub fn dels(del: &Del) -> Vec<Del> {
    let seen = release::seen(&del.conf, &del.attachment).unwrap_or_default();
    let further = seen.map(|seen| seen.entry().further.clone());
    let mut ifnames: BTreeSet<IfName> = further.unwrap_or_default().into_iter().gather();
    let answered = del.conf.prev_result.iter().flat_map(|result| &result.interfaces);
    let in_pod = answered.filter(|interface| interface.sandbox.is_some());
    ifnames.extend(in_pod.filter_map(|interface| interface.name.parse().ok()));
    ifnames.remove(&del.attachment.ifname);
    let further = |ifname| {
        let mut further = del.clone();
        further.attachment.ifname = ifname;
        further.conf.prev_result = further
            .conf
            .prev_result
            .map(|result| result.of_interface(further.attachment.ifname.as_str()));
        further.conf.runtime.port_mappings.clear();
        further
    };
    ifnames.into_iter().map(further).collect()
}

/// `check` of each interface of the pod, that of the runtime first.
///
/// # Errors
/// The store cannot be read.
pub fn checks(check: &Check) -> Result<Vec<Check>, CniError> {
    let further = of(&check.conf, &check.attachment)?;
    if further.is_empty() {
        return Ok(vec![check.clone()]);
    }
    let mut checks = Vec::new();
    for ifname in [check.attachment.ifname.clone()].into_iter().chain(further) {
        let mut one = check.clone();
        one.prev_result = check.prev_result.of_interface(ifname.as_str());
        if ifname != check.attachment.ifname {
            one.conf.runtime.port_mappings.clear();
            one.conf.routes.clear();
        }
        one.attachment.ifname = ifname;
        checks.push(one);
    }
    Ok(checks)
}

/// `gc` with those of the valid attachments.
///
/// # Errors
/// The store cannot be read: what is valid is not known.
pub fn with_valid(gc: &Gc) -> Result<Gc, CniError> {
    let mut all = gc.clone();
    let store = store::open(&gc.conf)?;
    let Some(locked) = lock_if_any(&store)? else { return Ok(all) };
    for attachment in &gc.valid {
        let further = listed(&locked, attachment)?;
        let further = further.into_iter().map(|ifname| Attachment { ifname, ..attachment.clone() });
        all.valid.extend(further);
    }
    Ok(all)
}

/// `gc` with every interface of the containers of valid attachments: what to go by without the store.
pub fn with_valid_links(gc: &Gc, links: &[Link]) -> Gc {
    let mut all = gc.clone();
    for found in links.iter().filter_map(|link| LinkIdentity::in_alias(link.alias.as_deref()?)) {
        let is_of = |valid: &&Attachment| valid.container_id.as_str() == found.container_id;
        let valid = gc.valid.iter().find(is_of);
        if let (Some(valid), Ok(ifname)) = (valid, found.ifname.parse()) {
            all.valid.insert(Attachment { ifname, ..valid.clone() });
        }
    }
    all
}

/// `gc` with what podman 5 has attached, which has no CNI, and is in no list of another runtime: as long as the links
/// exist.
pub fn with_podmans(mut gc: Gc, links: &[Link]) -> Gc {
    let aliases = links.iter().filter_map(|link| link.alias.as_deref());
    gc.valid.extend(aliases.filter_map(LinkIdentity::of_podman).filter_map(|of| {
        let (container_id, ifname) = (of.container_id.parse().ok()?, of.ifname.parse().ok()?);
        Some(Attachment { container_id, ifname })
    }));
    gc
}

fn of(conf: &NetConf, attachment: &Attachment) -> Result<Vec<IfName>, CniError> {
    let store = store::open(conf)?;
    match lock_if_any(&store)? {
        Some(locked) => listed(&locked, attachment),
        None => Ok(Vec::new()),
    }
}

fn listed(store: &LockedStore<'_>, attachment: &Attachment) -> Result<Vec<IfName>, CniError> {
    let (container_id, ifname) = (attachment.container_id.as_str(), attachment.ifname.as_str());
    let entry = store.entry(container_id, ifname)?;
    Ok(entry.map(|entry| entry.further).unwrap_or_default())
}
