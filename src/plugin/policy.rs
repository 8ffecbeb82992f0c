//! A new pod's policies: before its interface is up the agent puts them in force. An address that the
//! table does not know is in quarantine, so that a pod is never reached before.

use std::fs;
use std::net::IpAddr;

use crate::cni::config::AgentDown;
use crate::cni::error::{CniError, code};
use crate::cni::request::Add;
use crate::inspect::local_socket;
use crate::ipam::StoreEntry;
use crate::netlink::NetlinkError;
use crate::nft::{ElementChange, Nft};
use crate::plugin::failure::OrInternal;
use crate::policy::ask::{self, Index, PolicyAnswer};
use crate::policy::compile::POLICY_TABLE;
use crate::policy::compile::address::{epoch, opened, places, removed};
use crate::policy::local::question;

/// Has the policies of the pod put in force; gives what became of that, for the log. Without an agent
/// the pod gets what `on_agent_down` says, and nothing that a former pod with one of its addresses had.
///
/// # Errors
/// Code 11: there is no agent, and the pod is not to start without.
pub fn put_in_force(
    add: &Add,
    entry: &StoreEntry,
    on_agent_down: AgentDown,
) -> Result<String, CniError> {
    let answered = answer(add, entry);
    if matches!(answered, Ok(PolicyAnswer { in_force: true, .. })) {
        return Ok("in force".to_owned());
    }
    let again = |what: String| {
        let fix = "is humanz-agent running on this host? (systemctl status humanz-agent)";
        CniError::new(code::TRY_AGAIN, format!("policies: {what}; {fix}"))
    };
    if let (Err(why), AgentDown::Fail) = (&answered, on_agent_down) {
        return Err(again(format!("the agent does not answer: {why} (POLICY_ON_AGENT_DOWN=fail)")));
    }
    let nft = Nft::open().or_internal("open the table of policies")?;
    let tables = nft.tables().or_internal("look for the table of policies")?;
    let is_there = tables.iter().any(|table| table == POLICY_TABLE);
    let no_table = |why: &str| again(format!("no table inet {POLICY_TABLE}: {why}"));
    let why = match answered {
        // Without the table nothing would keep the pod in quarantine.
        Ok(PolicyAnswer { why, .. }) if !is_there => return Err(no_table(&why)),
        Ok(PolicyAnswer { judged: false, why, .. }) if is_outside(add, entry) => {
            return Err(again(not_judged(&why)));
        }
        Ok(PolicyAnswer { why, .. }) => {
            // The agent may not have come to the address yet.
            forget(&nft, &entry.addresses).or_internal("remove a former pod's policies")?;
            return Ok(format!("quarantine: {why}"));
        }
        Err(why) => why,
    };
    let is_unconcerned = is_unconcerned(add, entry);
    if is_there {
        forget(&nft, &entry.addresses).or_internal("remove a former pod's policies")?;
    }
    let became = match on_agent_down {
        AgentDown::Open if !is_there => on_agent_down.name(),
        _ if !is_there => return Err(no_table(&why)),
        AgentDown::Quarantine if !is_unconcerned && is_outside(add, entry) => {
            return Err(again(not_judged(&format!("the agent does not answer: {why}"))));
        }
        AgentDown::Quarantine if !is_unconcerned => on_agent_down.name(),
        _ => {
            let opened = nft.change_elements(POLICY_TABLE, &opened(&entry.addresses));
            opened.or_internal("open the pod")?;
            if is_unconcerned { "no policy concerns its namespace" } else { on_agent_down.name() }
        }
    };
    log::warn!("policies: the agent does not answer: {why}; {became}");
    Ok(format!("{became}: the agent does not answer: {why}"))
}

/// The pod has an address that is not judged without the agent: it is in no range of the network.
fn is_outside(add: &Add, entry: &StoreEntry) -> bool {
    let ranges = || add.conf.ranges.iter().flatten();
    entry.addresses.iter().any(|address| !ranges().any(|range| range.subnet.contains(*address)))
}

fn not_judged(why: &str) -> String {
    format!("a pod outside the network's subnets cannot be kept in quarantine: {why}")
}

/// The agent knew, when it was there, that no policy concerns the pod's namespace.
fn is_unconcerned(add: &Add, entry: &StoreEntry) -> bool {
    let path = ask::index(&add.conf.data_dir);
    let index = fs::read(path).ok().and_then(|bytes| serde_json::from_slice::<Index>(&bytes).ok());
    index.zip(entry.pod.as_deref()).is_some_and(|(index, pod)| index.opens(pod, &entry.addresses))
}

fn answer(add: &Add, entry: &StoreEntry) -> Result<PolicyAnswer, String> {
    let question = question(add.conf.name.as_str(), entry);
    let socket = ask::socket(&add.conf.data_dir);
    let answer = local_socket::ask(&socket, &question, ask::LIMIT, ask::DEADLINE);
    let answer = answer.map_err(|error| format!("{}: {error}", socket.display()))?;
    serde_json::from_slice(&answer).map_err(|error| error.to_string())
}

/// Removes what the table has of these addresses. If it has anything, connections of the former pod
/// may bear the mark of the present epoch, which ends with it.
fn forget(nft: &Nft, addresses: &[IpAddr]) -> Result<(), NetlinkError> {
    let mut changes: Vec<ElementChange> = Vec::new();
    for (set, element) in addresses.iter().flat_map(|address| places(*address)) {
        if let Some(found) = nft.element(POLICY_TABLE, &set, &element.key)? {
            changes.push(removed(&set, [found]));
        }
    }
    if changes.is_empty() {
        return Ok(());
    }
    let epoch = epoch();
    let marks = nft.elements(POLICY_TABLE, &epoch)?;
    changes.extend((!marks.is_empty()).then(|| removed(&epoch, marks)));
    nft.change_elements(POLICY_TABLE, &changes)
}
