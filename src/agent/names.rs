//! Resolves the names of hosts that publish no address, on a thread of its own.
//!
//! Source: the original Python agent routes to what a host's name resolves to; an unresolvable
//! name must not hold up anything else, so no other thread waits for this one.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use crate::inspect::names::ask;
use crate::lease::Resolved;
use crate::lease::records::NodeName;
use crate::net::PerFamily;
use crate::os::heartbeat;
use crate::os::heartbeat::Heartbeat;
use crate::os::threads;

/// First wait after a failure; doubled up to [`REFRESH`].
const RETRY: Duration = Duration::from_secs(1);

/// How long an answer holds: a host may move.
const REFRESH: Duration = Duration::from_secs(60);

/// Longest time for one name: a resolver asks three servers twice, 5 s each (resolv.conf(5)), and
/// for each domain of a search list anew.
pub const LIMIT: Duration = Duration::from_secs(300);

/// The way to the resolving thread.
pub struct Names {
    wanted: Sender<BTreeSet<NodeName>>,
}

impl Names {
    /// Starts the thread, which knows `table` from before; `publish` gets every change of the whole
    /// table.
    pub fn spawn(
        beat: Arc<Heartbeat>,
        table: Resolved,
        publish: impl Fn(Resolved) + Send + 'static,
    ) -> io::Result<Names> {
        let (wanted, requests) = channel();
        let resolve = move || Resolver { table, due: Vec::new() }.serve(&requests, &publish, &beat);
        threads::spawn("names", resolve)?;
        Ok(Names { wanted })
    }

    /// The names that are needed from now on.
    pub fn want(&self, names: BTreeSet<NodeName>) {
        if self.wanted.send(names).is_err() {
            log::error!("the resolving thread has ended: names of hosts stay as they are");
        }
    }
}

struct Resolver {
    table: Resolved,
    due: Vec<Due>,
}

struct Due {
    name: NodeName,
    at: Instant,
    wait: Duration,
}

impl Resolver {
    /// Until the agent drops its end.
    fn serve(
        &mut self,
        requests: &Receiver<BTreeSet<NodeName>>,
        publish: &impl Fn(Resolved),
        beat: &Heartbeat,
    ) {
        loop {
            beat.beat();
            let next = self.due.iter().map(|due| due.at).min();
            let wait = next.map_or(REFRESH, |at| at.saturating_duration_since(Instant::now()));
            match requests.recv_timeout(wait.min(heartbeat::EVERY)) {
                Ok(names) => self.want(names),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            self.resolve_due(publish, beat);
        }
    }

    fn want(&mut self, names: BTreeSet<NodeName>) {
        self.due.retain(|due| names.contains(&due.name));
        self.table.retain(|name, _| names.contains(name));
        for name in names {
            if !self.due.iter().any(|due| due.name == name) {
                self.due.push(Due { name, at: Instant::now(), wait: RETRY });
            }
        }
    }

    /// Resolves what is due. A name that stops resolving keeps its last address.
    fn resolve_due(&mut self, publish: &impl Fn(Resolved), beat: &Heartbeat) {
        let now = Instant::now();
        let mut asked = Vec::new();
        for due in self.due.iter_mut().filter(|due| due.at <= now) {
            due.at = now + due.wait;
            asked.push(due.name.clone());
        }
        for (name, answer) in ask(asked) {
            self.take(name, answer, publish);
            beat.beat();
        }
    }

    fn take(
        &mut self,
        name: NodeName,
        answer: io::Result<PerFamily<IpAddr>>,
        publish: &impl Fn(Resolved),
    ) {
        let Some(due) = self.due.iter_mut().find(|due| due.name == name) else { return };
        due.wait = match &answer {
            Ok(_) => REFRESH,
            Err(_) => (due.wait * 2).min(REFRESH),
        };
        due.at = Instant::now() + due.wait;
        let addresses = answer.unwrap_or_else(|error| {
            log::debug!("host name {name}: {error}; again in {:?}", due.wait);
            self.table.get(&name).copied().unwrap_or_default()
        });
        if self.table.insert(name, addresses) != Some(addresses) {
            publish(self.table.clone());
        }
    }
}
