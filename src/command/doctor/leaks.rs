//! Addresses and links that no pod has any more.

use std::collections::{BTreeMap, BTreeSet};

use crate::command::doctor::context::DoctorContext;
use crate::inspect::pods::{Life, PodAttachment};
use crate::inspect::pool_use::{addresses as in_use, scarce};
use crate::net::gather::Gather;
use crate::net::{IfName, Object, Problem, ProblemKind};
use crate::netlink::link::Link;
use crate::plan::pod::{LinkIdentity, is_of_network};

/// So many are written out.
const SHOWN: usize = 5;

pub fn problems(context: &DoctorContext<'_>) -> Vec<Problem> {
    let Ok(links) = context.host.links() else { return Vec::new() };
    let unread = context.host.unread_stores().iter().cloned();
    unread
        .chain(addresses(context, links))
        .chain(stray(context, links))
        .chain(quarantine(context))
        .chain(full(context))
        .collect()
}

fn identity(attachment: &PodAttachment) -> LinkIdentity<'_> {
    let PodAttachment { network, entry } = attachment;
    LinkIdentity { network, container_id: &entry.container_id, ifname: &entry.ifname }
}

/// Addresses of pods that are gone.
fn addresses(context: &DoctorContext<'_>, links: &BTreeMap<u32, Link>) -> Option<Problem> {
    let links: BTreeSet<IfName> = links.values().map(|link| link.name.clone()).gather();
    let gone = |pod: &&PodAttachment| Life::of(&pod.entry, &pod.network, &links) == Life::Gone;
    let pods: Vec<&PodAttachment> = context.host.attachments().iter().filter(gone).collect();
    let first = pods.first()?;
    let named: Vec<String> = pods.iter().take(SHOWN).map(|pod| pod.entry.owner_text()).collect();
    let what = format!(
        "{} addresses belong to pods whose network namespace is gone: {}",
        pods.len(),
        named.join("; ")
    );
    let fix = "humanz-agent ipam gc # frees them, unless those containers start again";
    let subject = Object::File("store", context.settings().cni.ipam_dir.join(&first.network));
    Some(Problem::new(ProblemKind::LeakedAddresses, subject, what).with_fix(fix))
}

/// Links of pods without an address in the store. Where a store could not be read, each may have one
/// in there.
fn stray(context: &DoctorContext<'_>, links: &BTreeMap<u32, Link>) -> Option<Problem> {
    if !context.host.unread_stores().is_empty() {
        return None;
    }
    let attachments = &context.host.attachments();
    let network = &context.settings().cni.name;
    let stray = links.values().filter(|link| {
        let alias = link.alias.as_deref();
        let is_known = || attachments.iter().any(|pod| identity(pod).owns(alias));
        is_of_network(alias, network) && !is_known()
    });
    let names: Vec<&str> = stray.map(|link| link.name.as_str()).collect();
    (!names.is_empty()).then(|| {
        let few = names.iter().take(SHOWN).copied().collect::<Vec<&str>>().join(", ");
        let what = format!("{} links of pods have no address in the store: {few}", names.len());
        let delete: Vec<String> =
            names.iter().take(SHOWN).map(|name| format!("ip link delete {name}")).collect();
        let settings = context.settings();
        let then = match (settings.policy.is_some(), settings.guard.is_on) {
            (true, _) => {
                "policies keep them in quarantine, only this host reaches them: recreate them now"
            }
            (false, true) => {
                "no other pod gets their addresses while they run; recreate them when convenient"
            }
            // Without it the kernel forgets the neighbour entries of pods that are silent.
            (false, false) => {
                "without POD_GUARD other pods may get their addresses: recreate them now"
            }
        };
        let fix = format!(
            "humanz-agent pods # if theirs are gone: {}; if not, IPAM_DIR was emptied: {then}",
            delete.join("; ")
        );
        Problem::new(ProblemKind::StrayLinks, Object::named("links of pods"), what).with_fix(fix)
    })
}

/// Subnets of the own network without a free address, or hardly any.
fn full(context: &DoctorContext<'_>) -> Vec<Problem> {
    let subnets = context.host.subnets;
    scarce(&in_use(context.settings(), (!subnets.is_empty()).then_some(subnets)))
}

/// Entries that could not be read.
fn quarantine(context: &DoctorContext<'_>) -> Option<Problem> {
    let dir = &context.settings().cni.ipam_dir;
    let networks = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let mut full = networks
        .map(|network| network.path().join("quarantine"))
        .filter(|path| std::fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_some()));
    let path = full.next()?;
    let what = format!("{} holds entries that could not be read", path.display());
    let fix = format!(
        "ls -l {} # find what wrote them (a disk with errors, or another program), then remove them",
        path.display()
    );
    let subject = Object::File("directory", path);
    Some(Problem::new(ProblemKind::Quarantine, subject, what).with_fix(fix))
}
