//! A new pod's policies: before its interface is up the agent puts them in force. An address that the
//! table does not know is in quarantine, so that a pod is never reached before.

use std::net::IpAddr;
use std::path::Path;
use std::{fs, io};

use nix::errno::Errno;

use crate::checks::service_manager::LOOK;
use crate::cni::config::AgentDown;
use crate::cni::error::{CniError, code};
use crate::cni::request::Add;
use crate::inspect::local_socket::{self, SentQuestion};
use crate::ipam::StoreEntry;
use crate::netlink::NetlinkError;
use crate::nft::{ElementChange, Nft};
use crate::plugin::failure::OrInternal;
use crate::policy::ask::{self, Index, PolicyAnswer};
use crate::policy::compile::POLICY_TABLE;
use crate::policy::compile::address::{epoch, opened, places, removed};
use crate::policy::local::question;

/// What was asked about a new pod. The agent works on it while the plugin goes on.
pub struct PodQuestion<'a> {
    add: &'a Add,
    entry: &'a StoreEntry,
    on_agent_down: AgentDown,
    sent: SentQuestion,
}

/// How far the policies of a new pod are.
pub enum Asked<'a> {
    /// The agent works on them.
    Waits(PodQuestion<'a>),
    /// What became of them, for the log.
    Done(String),
}

/// Asks the agent to put the pod's policies in force. If there is none to be asked, the pod gets at once what
/// `on_agent_down` says.
///
/// # Errors
/// Code 11: there is no agent, and the pod is not to start without.
pub fn ask<'a>(
    add: &'a Add,
    entry: &'a StoreEntry,
    on_agent_down: AgentDown,
) -> Result<Asked<'a>, CniError> {
    let socket = ask::socket(&add.conf.data_dir);
    let question = question(add.conf.name.as_str(), entry);
    Ok(match local_socket::send(&socket, &question, ask::DEADLINE) {
        Ok(sent) => Asked::Waits(PodQuestion { add, entry, on_agent_down, sent }),
        Err(error) => Asked::Done(follow(add, entry, on_agent_down, Err(at(&socket, &error)))?),
    })
}

impl Asked<'_> {
    /// Waits for the agent; gives what became of the pod's policies, for the log. Without an answer the pod gets
    /// what the settings say, and nothing that a former pod with one of its addresses had.
    ///
    /// # Errors
    /// Code 11: the agent does not answer, and the pod is not to start without.
    pub fn wait(self) -> Result<String, CniError> {
        match self {
            Asked::Done(became) => Ok(became),
            Asked::Waits(PodQuestion { add, entry, on_agent_down, sent }) => {
                let socket = ask::socket(&add.conf.data_dir);
                let answered = sent.answer(ask::LIMIT).map_err(|error| at(&socket, &error));
                let answered = answered.and_then(|answer| {
                    serde_json::from_slice(&answer).map_err(|error| error.to_string())
                });
                follow(add, entry, on_agent_down, answered)
            }
        }
    }
}

fn at(socket: &Path, error: &io::Error) -> String {
    format!("{}: {error}", socket.display())
}

/// Does what the agent answered, or what is to be done without it.
fn follow(
    add: &Add,
    entry: &StoreEntry,
    on_agent_down: AgentDown,
    answered: Result<PolicyAnswer, String>,
) -> Result<String, CniError> {
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
