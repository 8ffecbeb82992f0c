//! A new pod's policies: before its interface is up the agent puts them in force. An address that the
//! table does not know is in quarantine, so that a pod is never reached before.

use std::fs;
use std::net::IpAddr;

use nix::errno::Errno;

use crate::checks::service_manager::LOOK;
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
    if let (Err(why), AgentDown::Fail) = (&answered, on_agent_down) {
        return Err(again(format!("the agent does not answer: {why} (POLICY_ON_AGENT_DOWN=fail)")));
    }
    let table = TableInForce::open()?;
    match answered {
        // Without the table nothing would keep the pod in quarantine.
        Ok(PolicyAnswer { why, .. }) if !table.is_there => Err(no_table(&why)),
        Ok(PolicyAnswer { judged: false, why, .. }) if is_outside(add, entry) => {
            Err(again(not_judged(&why)))
        }
        Ok(PolicyAnswer { why, .. }) => {
            // The agent may not have come to the address yet.
            table.forget(&entry.addresses)?;
            Ok(format!("quarantine: {why}"))
        }
        Err(why) => {
            let became = without_agent(add, entry, on_agent_down, &table, &why)?;
            log::warn!("policies: the agent does not answer: {why}; {became}");
            Ok(format!("{became}: the agent does not answer: {why}"))
        }
    }
}

/// What becomes of a pod whose agent does not answer.
fn without_agent(
    add: &Add,
    entry: &StoreEntry,
    on_agent_down: AgentDown,
    table: &TableInForce,
    why: &str,
) -> Result<&'static str, CniError> {
    let is_unconcerned = is_unconcerned(add, entry);
    if !table.is_there {
        return match on_agent_down {
            AgentDown::Open => Ok(on_agent_down.name()),
            _ => Err(no_table(why)),
        };
    }
    table.forget(&entry.addresses)?;
    match on_agent_down {
        AgentDown::Quarantine if !is_unconcerned && is_outside(add, entry) => {
            Err(again(not_judged(&format!("the agent does not answer: {why}"))))
        }
        AgentDown::Quarantine if !is_unconcerned => Ok(on_agent_down.name()),
        _ => {
            match table.nft.change_elements(POLICY_TABLE, &opened(&entry.addresses)) {
                // The agent has the table for itself, and comes to the pod.
                Err(error) if error.errno() == Some(Errno::EPERM) => {
                    return Ok(AgentDown::Quarantine.name());
                }
                outcome => outcome.or_internal("open the pod")?,
            }
            let unconcerned = "no policy concerns its namespace";
            Ok(if is_unconcerned { unconcerned } else { on_agent_down.name() })
        }
    }
}

fn again(what: String) -> CniError {
    let fix = format!("is humanz-agent running on this host? ({LOOK})");
    CniError::new(code::TRY_AGAIN, format!("policies: {what}; {fix}"))
}

fn no_table(why: &str) -> CniError {
    again(format!("no table inet {POLICY_TABLE}: {why}"))
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

/// The table of policies.
struct TableInForce {
    nft: Nft,
    is_there: bool,
}

impl TableInForce {
    fn open() -> Result<TableInForce, CniError> {
        let nft = Nft::open().or_internal("open the table of policies")?;
        let tables = nft.tables().or_internal("look for the table of policies")?;
        let is_there = tables.iter().any(|table| table == POLICY_TABLE);
        Ok(TableInForce { nft, is_there })
    }

    fn forget(&self, addresses: &[IpAddr]) -> Result<(), CniError> {
        let what = "remove a former pod's policies";
        match forget(&self.nft, addresses) {
            Err(error) if error.errno() == Some(Errno::EPERM) => {
                Err(again(format!("{what}: the agent that does not answer has the table")))
            }
            outcome => outcome.or_internal(what),
        }
    }
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
