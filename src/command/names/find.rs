//! Where the names of each kind are found: at the agent, on this host, in etcd.

use crate::agent::logger;
use crate::command::call::Call;
use crate::command::nodes::node;
use crate::command::objects::{stored, tenants};
use crate::command::policy::found;
use crate::command::table::Style;
use crate::inspect::cluster::{self, ClusterView};
use crate::inspect::{identity, pods};
use crate::policy::list;
use crate::settings::Settings;
use crate::settings::exit::Exit;
use crate::settings::loader::SettingsLoader;
use crate::sources::{Kind, PoliciesStart, StoredName, StoredPolicies, read_policies};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameKind {
    Pods,
    Hosts,
    Tenants,
    /// In force on this host.
    Policies,
    /// Networks of CNI configurations with pods on this host.
    Stores,
    /// Of this host's pods.
    Addresses,
    /// In etcd.
    Objects(&'static Kind),
}

impl NameKind {
    pub fn parse(text: &str) -> Option<NameKind> {
        Some(match text {
            "pods" => NameKind::Pods,
            "hosts" => NameKind::Hosts,
            "tenants" => NameKind::Tenants,
            "policies" => NameKind::Policies,
            "stores" => NameKind::Stores,
            "addresses" => NameKind::Addresses,
            other => NameKind::Objects(Kind::find(other)?),
        })
    }
}

/// Gives `take` the names that can be found, again when more is known; why nothing is known is not shown. `take`: whether
/// to go on.
pub fn find(origin: SettingsLoader, kind: NameKind, take: &dyn Fn(Vec<String>) -> bool) {
    let mut nowhere = std::io::sink();
    let loaded = Call::new(origin, Style::default(), &mut nowhere).load_to_look();
    logger::set("off");
    let Ok(loaded) = loaded else { return };
    let settings = &loaded.settings;
    if kind == NameKind::Hosts {
        // etcd may take longer than anybody waits.
        let saved =
            identity::node_name(settings).and_then(|own| cluster::saved(settings, &own, ""));
        if !saved.is_ok_and(|saved| take(hosts(&saved))) {
            return;
        }
    }
    if let Ok(names) = names(settings, kind) {
        take(names);
    }
}

fn names(settings: &Settings, kind: NameKind) -> Result<Vec<String>, Exit> {
    Ok(match kind {
        NameKind::Hosts => hosts(&cluster::read(settings)?),
        NameKind::Policies => policies(settings)?,
        NameKind::Stores => {
            pods::networks(settings, None)?.into_iter().map(|network| network.name).collect()
        }
        NameKind::Pods => {
            let all = pods::attachments(settings).0;
            all.iter().map(|pod| pod.name().to_owned()).collect()
        }
        NameKind::Addresses => {
            let all = pods::attachments(settings).0;
            let addresses = all.iter().flat_map(|pod| &pod.entry.addresses);
            addresses.map(ToString::to_string).collect()
        }
        NameKind::Tenants => {
            let (stored, range) = objects(settings)?;
            tenants(&stored::understood(&stored, &range).0)
        }
        NameKind::Objects(kind) => {
            let (stored, range) = objects(settings)?;
            let (objects, _) = stored.objects(&range);
            objects.keys().filter(|name| name.kind == kind).map(StoredName::short).collect()
        }
    })
}

fn hosts(cluster: &ClusterView) -> Vec<String> {
    node::names(&cluster.snapshot).into_iter().map(ToString::to_string).collect()
}

fn policies(settings: &Settings) -> Result<Vec<String>, Exit> {
    let known = found::of_view(&found::view(settings)?.0);
    Ok(list::policies(&known.rules).iter().map(list::PolicyObject::scoped).collect())
}

/// The objects in etcd, and the range that they are in.
fn objects(settings: &Settings) -> Result<(StoredPolicies, String), Exit> {
    let (etcd, roots) = cluster::etcd(settings)?;
    let start = PoliciesStart { etcd: etcd.clone(), roots: roots.clone() };
    let (stored, _) = read_policies(&start).map_err(|why| anyhow::anyhow!(why))?;
    Ok((stored, start.roots.policies_range()))
}
