//! A new pod's policies: before its interface is up the agent puts them in force. An address that the
//! table does not know is in quarantine, so that a pod is never reached before.

use std::fs;
use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use nix::errno::Errno;

use crate::checks::service_manager::LOOK;
use crate::cni::config::{AgentDown, NetConf};
use crate::cni::error::{CniError, code};
use crate::cni::request::{Add, Check};
use crate::inspect::local_socket::{self, SentQuestion};
use crate::ipam::StoreEntry;
use crate::netlink::NetlinkError;
use crate::nft::{Element, ElementChange, Nft, Set, TableEdit};
use crate::plugin::call_time::{self, Wait};
use crate::plugin::failure::OrInternal;
use crate::plugin::release;
use crate::policy::ask::{self, Index, PolicyAnswer};
use crate::policy::compile::POLICY_TABLE;
use crate::policy::compile::address::{epoch, nothing_judged, opened, places, removed};
use crate::policy::local::question;

/// How often the agent is asked that changes the pod's policies while the plugin acts on its answer.
const TRIES: usize = 3;

/// For so long after its ADD a pod is in quarantine as ADD has answered. CRI-O calls CHECK at the end of every ADD, and
/// takes the pod away again if that fails.
const JUST_ADDED: Duration = Duration::from_secs(10);

/// What was asked about a new pod. The agent works on it while the plugin goes on.
pub struct PodQuestion<'a> {
    add: &'a Add,
    entry: &'a StoreEntry,
    on_agent_down: AgentDown,
    sent: SentQuestion,
}

/// How far the policies of a new pod are.
pub enum PolicyRequest<'a> {
    /// The agent works on them.
    Pending(PodQuestion<'a>),
    /// What became of them, for the log.
    Done(String),
}

/// Asks the agent to put the pod's policies in force. If there is none to be asked, the pod gets at once what
/// `on_agent_down` says.
///
/// # Errors
/// Code 11: there is no agent, and the pod is not to start without; no time is left to ask.
pub fn ask<'a>(
    add: &'a Add,
    entry: &'a StoreEntry,
    on_agent_down: AgentDown,
) -> Result<PolicyRequest<'a>, CniError> {
    let socket = ask::socket(&add.conf.data_dir);
    let question = question(add.conf.name.as_str(), entry);
    let Some(deadline) = call_time::any_left(ask::DEADLINE) else {
        return Err(CniError::try_again("policies: no time to wait for the agent's answer"));
    };
    Ok(match local_socket::send(&socket, &question, deadline) {
        Ok(sent) => PolicyRequest::Pending(PodQuestion { add, entry, on_agent_down, sent }),
        Err(error) => {
            let became = unanswered(add, entry, on_agent_down, &at(&socket, &error))?;
            PolicyRequest::Done(became.ok_or_else(not_removed)?)
        }
    })
}

impl PolicyRequest<'_> {
    /// Waits for the agent; gives what became of the pod's policies, for the log. Without an answer the pod gets
    /// what the settings say, and nothing that a former pod with one of its addresses had.
    ///
    /// # Errors
    /// Code 11: the agent does not answer, and the pod is not to start without.
    pub fn wait(self) -> Result<String, CniError> {
        let (mut asked, mut is_mute) = (self, false);
        for _ in 0..TRIES {
            let mut question = match asked {
                PolicyRequest::Done(became) => return Ok(became),
                PolicyRequest::Pending(question) => question,
            };
            let answered = call_time::noted(Wait::Policies, || question.answer());
            let PodQuestion { add, entry, on_agent_down, .. } = question;
            let became = match answered {
                Ok(answer) => follow(add, entry, answer)?,
                Err(why) => {
                    let became = unanswered(add, entry, on_agent_down, &why)?;
                    if became.is_none() && std::mem::replace(&mut is_mute, true) {
                        return Err(not_removed());
                    }
                    became
                }
            };
            if let Some(became) = became {
                return Ok(became);
            }
            asked = ask(add, entry, on_agent_down)?;
        }
        Err(CniError::try_again(format!(
            "policies: humanz-agent answered {TRIES} times that the pod is in quarantine, and put policies of its \
             addresses in force each time; its log says why the pod comes and goes ({LOOK})"
        )))
    }
}

impl PodQuestion<'_> {
    /// # Errors
    /// Why there is none.
    fn answer(&mut self) -> Result<PolicyAnswer, String> {
        let mut answered = self.sent.answer(ask::LIMIT);
        let is_late =
            |error: &io::Error| matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::WouldBlock);
        if answered.as_ref().is_err_and(is_late)
            && TableInForce::open().is_ok_and(|table| table.knows(&self.entry.addresses))
        {
            answered = self.sent.late_answer(ask::LIMIT, call_time::left(ask::LATE));
        }
        let socket = ask::socket(&self.add.conf.data_dir);
        let answer = answered.map_err(|error| at(&socket, &error))?;
        serde_json::from_slice(&answer).map_err(|error| error.to_string())
    }
}

/// For STATUS: a pod gets its policies, or starts without an answer of the agent.
///
/// # Errors
/// Code 11: no agent answers, and no pod starts without: by the settings, or because the table is not there that would
/// keep it in quarantine.
pub fn allow_pods(conf: &NetConf) -> Result<(), CniError> {
    let answers = || agent_answers(conf);
    match conf.policy {
        None | Some(AgentDown::Open) => Ok(()),
        Some(AgentDown::Fail) => answers().map_err(|why| no_answer(&why)),
        Some(AgentDown::Quarantine) if TableInForce::open()?.is_there => Ok(()),
        Some(AgentDown::Quarantine) => answers().map_err(|why| no_table(&why)),
    }
}

/// For CHECK of one interface: its pod does not wait in quarantine for an agent that does not answer.
///
/// # Errors
/// Code 11: it does.
pub fn refuse_waiting(check: &Check, since_1970: Duration) -> Result<(), CniError> {
    let seen = check.conf.policy.map(|_| release::seen(&check.conf, &check.attachment));
    let Some(seen) = seen.transpose()?.flatten() else { return Ok(()) };
    let entry = seen.entry();
    let age = since_1970.saturating_sub(Duration::from_secs(entry.time_secs));
    if age < JUST_ADDED || !TableInForce::open()?.quarantines(&entry.addresses)? {
        return Ok(());
    }
    let pod = entry.pod.as_deref().unwrap_or(&entry.container_id);
    agent_answers(&check.conf).map_err(|why| {
        again(format!(
            "pod {pod} is in quarantine, and waits for the agent, which does not answer: {why}"
        ))
    })
}

/// # Errors
/// Why no process reads questions.
fn agent_answers(conf: &NetConf) -> Result<(), String> {
    let socket = ask::socket(&conf.data_dir);
    local_socket::greet(&socket, ask::DEADLINE).map_err(|error| at(&socket, &error))
}

fn at(socket: &Path, error: &io::Error) -> String {
    format!("{}: {error}", socket.display())
}

/// Does what the agent answered. `None`: the agent, which alone changes its table, has put something of the pod in
/// force since.
fn follow(add: &Add, entry: &StoreEntry, answer: PolicyAnswer) -> Result<Option<String>, CniError> {
    let PolicyAnswer { in_force, judged, why } = answer;
    if in_force {
        return Ok(Some("in force".to_owned()));
    }
    let table = TableInForce::open()?;
    // Without the table nothing would keep the pod in quarantine.
    if !table.is_there {
        return Err(no_table(&why));
    }
    if !judged && is_outside(add, entry) {
        return Err(again(not_judged(&why)));
    }
    // The agent may not have come to the address yet.
    let is_forgotten = table.forget(&entry.addresses)?;
    Ok(is_forgotten.then(|| format!("quarantine: {why}")))
}

/// Does what is to be done without an answer. `None`: the agent, which alone changes its table, has something of the
/// pod there: of a former one, or put in force since.
fn unanswered(
    add: &Add,
    entry: &StoreEntry,
    on_agent_down: AgentDown,
    why: &str,
) -> Result<Option<String>, CniError> {
    if on_agent_down == AgentDown::Fail {
        return Err(no_answer(why));
    }
    let table = TableInForce::open()?;
    let Some(became) = without_agent(add, entry, on_agent_down, &table, why)? else {
        return Ok(None);
    };
    log::warn!("policies: the agent does not answer: {why}; {became}");
    Ok(Some(format!("{became}: the agent does not answer: {why}")))
}

/// What becomes of a pod whose agent does not answer; `None` as in [`unanswered`].
fn without_agent(
    add: &Add,
    entry: &StoreEntry,
    on_agent_down: AgentDown,
    table: &TableInForce,
    why: &str,
) -> Result<Option<&'static str>, CniError> {
    let is_unconcerned = is_unconcerned(add, entry);
    if !table.is_there {
        return match on_agent_down {
            AgentDown::Open => Ok(Some(on_agent_down.name())),
            _ => Err(no_table(why)),
        };
    }
    if !table.forget(&entry.addresses)? {
        return Ok(None);
    }
    match on_agent_down {
        AgentDown::Quarantine if !is_unconcerned && is_outside(add, entry) => {
            Err(again(not_judged(&format!("the agent does not answer: {why}"))))
        }
        AgentDown::Quarantine if !is_unconcerned => Ok(Some(on_agent_down.name())),
        _ => {
            match table.nft.change_elements(POLICY_TABLE, &opened(&entry.addresses)) {
                // The agent has the table for itself, and comes to the pod.
                Err(error) if error.errno() == Some(Errno::EPERM) => {
                    return Ok(Some(AgentDown::Quarantine.name()));
                }
                outcome => outcome.or_internal("open the pod")?,
            }
            let unconcerned = "no policy concerns its namespace";
            Ok(Some(if is_unconcerned { unconcerned } else { on_agent_down.name() }))
        }
    }
}

fn again(what: String) -> CniError {
    let fix = format!("is humanz-agent running on this host? ({LOOK})");
    CniError::new(code::TRY_AGAIN, format!("policies: {what}; {fix}"))
}

fn no_answer(why: &str) -> CniError {
    again(format!("the agent does not answer: {why} (POLICY_ON_AGENT_DOWN=fail)"))
}

fn not_removed() -> CniError {
    let what = "remove a former pod's policies: the agent that does not answer has the table";
    again(what.to_owned())
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

    /// It has something of one of `addresses`.
    fn knows(&self, addresses: &[IpAddr]) -> bool {
        self.is_there && found(&self.nft, addresses).is_ok_and(|found| !found.is_empty())
    }

    /// It lets nothing through to one of `addresses`: what a new pod has before the agent has answered.
    fn quarantines(&self, addresses: &[IpAddr]) -> Result<bool, CniError> {
        for address in addresses.iter().filter(|_| self.is_there) {
            let [(to_pods, element), ..] = &places(*address)[..] else { continue };
            let found = self.nft.element(POLICY_TABLE, to_pods, &element.key);
            if found.or_internal("look for a pod's policies")?.is_none() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Removes what there is of a former pod with one of `addresses`; false: there is something, and the agent
    /// has the table for itself.
    fn forget(&self, addresses: &[IpAddr]) -> Result<bool, CniError> {
        // The agent, or another call, may remove the same meanwhile.
        let again = |error: NetlinkError| match error.errno() {
            Some(Errno::ENOENT) => forget(&self.nft, addresses),
            _ => Err(error),
        };
        match forget(&self.nft, addresses).or_else(again).or_else(again).or_else(again) {
            Err(error) if error.errno() == Some(Errno::EPERM) => Ok(false),
            outcome => outcome.map(|()| true).or_internal("remove a former pod's policies"),
        }
    }
}

/// Removes what the table has of these addresses. If it has anything, connections of the former pod
/// may bear the mark of the present epoch, which ends with it.
fn forget(nft: &Nft, addresses: &[IpAddr]) -> Result<(), NetlinkError> {
    let found = found(nft, addresses)?.into_iter();
    let mut changes: Vec<ElementChange> =
        found.map(|(set, element)| removed(&set, [element])).collect();
    if changes.is_empty() {
        return Ok(());
    }
    let epoch = epoch();
    let marks = nft.elements(POLICY_TABLE, &epoch)?;
    changes.extend((!marks.is_empty()).then(|| removed(&epoch, marks)));
    let edits = changes.into_iter().map(TableEdit::Elements).chain(nothing_judged());
    nft.edit(POLICY_TABLE, &[edits.collect()])
}

/// What the table has of these addresses.
fn found(nft: &Nft, addresses: &[IpAddr]) -> Result<Vec<(Set, Element)>, NetlinkError> {
    let mut all = Vec::new();
    for (set, element) in addresses.iter().flat_map(|address| places(*address)) {
        let found = nft.element(POLICY_TABLE, &set, &element.key)?;
        all.extend(found.map(|found| (set, found)));
    }
    Ok(all)
}
