//! The policies that a subcommand is about: the agent's, those that held last, or those of files.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Context;

use crate::command::call::Call;
use crate::command::objects::files;
use crate::inspect::{Host, HostList, agent_socket, policies};
use crate::net::Problem;
use crate::net::gather::Gather;
use crate::nft::Nft;
use crate::policy::compile::{POLICY_TABLE, counter};
use crate::policy::read::documents;
use crate::policy::sources::SourceState;
use crate::policy::view::{Quarantined, View};
use crate::policy::{Endpoint, Members, Origin, PolicySnapshot, Rule, Rules, members};
use crate::settings::Settings;
use crate::settings::exit::{self, Exit};

/// Packets by the counter's name.
pub type PacketCounts = BTreeMap<String, u64>;

/// Policies and the pods that are known.
#[derive(Debug, Default)]
pub struct KnownPolicies {
    pub rules: Rules,
    /// Of this host; of files all.
    pub pods: Vec<Endpoint>,
    pub members: Members,
    pub sources: Vec<SourceState>,
    pub quarantined: Vec<Quarantined>,
    /// What is wrong with the objects of files.
    pub problems: Vec<Problem>,
    /// Why this is not what an agent knows.
    pub note: Option<String>,
    /// What holds for pods while no policies are known.
    pub unknown: Option<String>,
}

/// Those in `files`, if there are any; else what this host knows.
///
/// # Errors
/// A file that is not understood; policies are off; this user may not use the agent's socket.
pub fn find(
    call: &mut Call<'_>,
    files: &[String],
    free_groups: bool,
) -> Result<KnownPolicies, Exit> {
    if files.is_empty() {
        let settings = call.load()?.settings;
        let (view, note) = view(&settings)?;
        return Ok(KnownPolicies { note, ..of_view(&view) });
    }
    let read = documents::read(&files::read_policies(files)?, free_groups).isolated();
    let peers = members::peers(read.rules.iter());
    Ok(KnownPolicies {
        members: members::find(&peers, &read.endpoints),
        rules: read.rules,
        pods: read.endpoints.pods,
        problems: read.problems,
        ..KnownPolicies::default()
    })
}

/// What the agent knows; without one what held last, and why.
///
/// # Errors
/// Policies are off, or this user may not use the agent's socket.
pub fn view(settings: &Settings) -> Result<(View, Option<String>), Exit> {
    let why = match settings.agentless {
        true => {
            "this machine has no policies: humanz-agent init set it up without an agent, which would enforce them"
        }
        false => "policies are off on this host: POLICY=on turns them on",
    };
    let off = || Exit::new(exit::SETTINGS, why);
    match policies::asked(settings) {
        Ok(Some(view)) => Ok((view, None)),
        Ok(None) if settings.policy.is_none() => Err(off()),
        Ok(None) => Err(Exit::new(exit::UNAVAILABLE, "the agent has no policies yet: it starts")),
        Err(why) if agent_socket::is_denied(settings) => Err(Exit::new(exit::UNAVAILABLE, why)),
        Err(why) => {
            let host = Host::inspect(settings, HostList::Saved)?;
            let last = policies::last(settings, host.subnets.iter().copied(), &host.kernel.nft)?;
            let view = last.ok_or_else(off)?;
            Ok((view, Some(format!("{why}; this is what held last"))))
        }
    }
}

/// What a host knows, with its pods.
pub fn of_view(view: &View) -> KnownPolicies {
    let pods = view.endpoints();
    let known = view.known.as_deref().cloned().unwrap_or_default();
    let PolicySnapshot { rules, members, .. } = known.on_host(pods.clone(), &view.subnets);
    KnownPolicies {
        rules,
        pods,
        members,
        sources: view.sources.clone(),
        quarantined: view.quarantined(),
        unknown: view.without_policies().map(|holds| format!("pods are {holds}")),
        ..KnownPolicies::default()
    }
}

impl KnownPolicies {
    /// Where an object is from.
    pub fn source(&self, origin: &Origin) -> Option<&'static str> {
        let source = self.sources.iter().find(|source| source.policies.contains(origin));
        source.map(|source| source.provider.name())
    }
}

/// What the table of this host has counted, if that is wanted.
///
/// # Errors
/// The kernel's.
pub fn counters(wanted: bool) -> Result<Option<PacketCounts>, Exit> {
    if !wanted {
        return Ok(None);
    }
    let nft = Nft::open().context("open nftables socket")?;
    let counters = nft.counters(POLICY_TABLE).context("read counters of policies")?;
    Ok(Some(counters.into_iter().map(|(name, count)| (name, count.packets)).gather()))
}

/// Packets of these rules.
pub fn packets<'a>(counters: &PacketCounts, rules: impl IntoIterator<Item = &'a Rule>) -> u64 {
    let names: BTreeSet<String> = rules.into_iter().map(counter).gather();
    names.iter().filter_map(|name| counters.get(name)).sum()
}
