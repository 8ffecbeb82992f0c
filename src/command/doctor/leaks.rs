//! Addresses and links that nobody has any more.

use std::collections::BTreeMap;
use std::path::Path;

use crate::checks::finding::{Finding, Severity};
use crate::command::doctor::DoctorContext;
use crate::command::json;
use crate::inspect::pods;
use crate::inspect::pods::Attachment;
use crate::netlink::link::Link;
use crate::os::netns::{NetNs, NetNsError};
use crate::plan::pod::{LinkIdentity, is_of_network};

/// So many are written out.
const SHOWN: usize = 5;

pub fn look(context: &DoctorContext<'_>) -> Vec<Finding> {
    let Ok(links) = context.host.links() else { return Vec::new() };
    unread(context)
        .into_iter()
        .chain(addresses(context))
        .chain(stray(context, links))
        .chain(quarantine(context))
        .chain(full(context))
        .collect()
}

fn identity(attachment: &Attachment) -> LinkIdentity<'_> {
    let Attachment { network, entry } = attachment;
    LinkIdentity { network, container_id: &entry.container_id, ifname: &entry.ifname }
}

/// Stores of which nobody knows what is in them.
fn unread(context: &DoctorContext<'_>) -> Option<Finding> {
    let unread = &context.host.unread_stores();
    let seen = format!("addresses and links of pods were not compared: {}", unread.first()?);
    let how = context.settings().cni.ipam_dir.display().to_string();
    let cure = "run this as root; if it is root, is the disk well?";
    Some(Finding::new(Severity::Warning, "stores-unread", how, seen, cure))
}

/// Addresses of pods whose namespace is gone.
fn addresses(context: &DoctorContext<'_>) -> Option<Finding> {
    let gone = |pod: &&Attachment| {
        let path = pod.entry.netns.as_deref().filter(|path| !path.is_empty());
        let open = path.map(|path| NetNs::open(Path::new(path)));
        matches!(open, Some(Err(NetNsError::Missing(_) | NetNsError::NotANamespace(_))))
    };
    let pods: Vec<&Attachment> = context.host.attachments().iter().filter(gone).collect();
    let first = pods.first()?;
    let named: Vec<String> = pods.iter().take(SHOWN).map(|pod| pod.entry.owner_text()).collect();
    let seen = format!(
        "{} addresses belong to pods whose network namespace is gone: {}",
        pods.len(),
        named.join("; ")
    );
    let cure = "humanz-agent ipam gc frees them, once nobody starts those containers again";
    let how = format!("{}/{}", context.settings().cni.ipam_dir.display(), first.network);
    Some(Finding::new(Severity::Warning, "leaked-addresses", how, seen, cure))
}

/// Links of pods without an address in the store. Where a store could not be read, each may have one
/// in there.
fn stray(context: &DoctorContext<'_>, links: &BTreeMap<u32, Link>) -> Option<Finding> {
    if !context.host.unread_stores().is_empty() {
        return None;
    }
    let attachments = &context.host.attachments();
    let network = &context.settings().cni.name;
    let known: Vec<String> =
        attachments.iter().map(|pod| identity(pod).host_ifname().to_string()).collect();
    let stray = links.values().filter(|link| {
        is_of_network(link.alias.as_deref(), network) && !known.contains(&link.name.to_string())
    });
    let names: Vec<&str> = stray.map(|link| link.name.as_str()).collect();
    (!names.is_empty()).then(|| {
        let few = names.iter().take(SHOWN).copied().collect::<Vec<&str>>().join(", ");
        let seen = format!("{} links of pods have no address in the store: {few}", names.len());
        let cure = "if their pods are gone: ip link delete NAME; if not, somebody emptied IPAM_DIR: \
                    make the pods anew before their addresses are given out again";
        Finding::new(Severity::Wrong, "stray-links", "links and store", seen, cure)
    })
}

/// The own network without a free address.
fn full(context: &DoctorContext<'_>) -> Vec<Finding> {
    let (settings, subnets) = (context.settings(), context.host.subnets);
    let networks = pods::networks(settings, Some(&settings.cni.name)).unwrap_or_default();
    let full = networks
        .iter()
        .flat_map(|network| json::full(network, &json::rooms(network, subnets.iter().copied())));
    let how = settings.cni.ipam_dir.join(&settings.cni.name).display().to_string();
    let finding = |seen| Finding::new(Severity::Wrong, "pool-full", how.as_str(), seen, json::FREE);
    full.map(finding).collect()
}

/// Entries that could not be read.
fn quarantine(context: &DoctorContext<'_>) -> Option<Finding> {
    let dir = &context.settings().cni.ipam_dir;
    let networks = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let mut full = networks
        .map(|network| network.path().join("quarantine"))
        .filter(|path| std::fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_some()));
    let path = full.next()?.display().to_string();
    let seen = format!("{path} holds entries that could not be read");
    let cure = "who wrote them? A disk with errors, or a tool of somebody else; then remove them";
    Some(Finding::new(Severity::Warning, "quarantine", path, seen, cure))
}
