//! Resolves the names of hosts that publish no address, on a thread of its own.
//!
//! Source: the original Python agent routes to what a host's name resolves to; an unresolvable
//! name must not hold up anything else, so nobody waits for this thread.

use std::collections::BTreeSet;
use std::net::{IpAddr, ToSocketAddrs};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use crate::agent::reach::Resolved;
use crate::lease::records::NodeName;
use crate::linux::beat::{self, Beat};
use crate::net::{Family, PerFamily};

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
    /// Starts the thread; `publish` gets every change of the whole table.
    pub fn spawn(
        beat: Arc<Beat>,
        publish: impl Fn(Resolved) + Send + 'static,
    ) -> std::io::Result<Names> {
        let (wanted, requests) = channel();
        let name = thread::Builder::new().name("names".into());
        name.spawn(move || Resolver::default().serve(&requests, &publish, &beat))?;
        Ok(Names { wanted })
    }

    /// The names that are needed from now on.
    pub fn want(&self, names: BTreeSet<NodeName>) {
        if self.wanted.send(names).is_err() {
            log::error!("the resolving thread has ended: names of hosts stay as they are");
        }
    }
}

#[derive(Default)]
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
        beat: &Beat,
    ) {
        loop {
            beat.beat();
            let next = self.due.iter().map(|due| due.at).min();
            let wait = next.map_or(REFRESH, |at| at.saturating_duration_since(Instant::now()));
            match requests.recv_timeout(wait.min(beat::EVERY)) {
                Ok(names) => self.want(names),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            if self.resolve_due(beat) {
                publish(self.table.clone());
            }
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

    /// Resolves what is due; true if the table changed. A name that stops resolving keeps its
    /// last address.
    fn resolve_due(&mut self, beat: &Beat) -> bool {
        let mut changed = false;
        for due in self.due.iter_mut().filter(|due| due.at <= Instant::now()) {
            match resolve(due.name.as_str()) {
                Ok(addresses) => {
                    due.wait = REFRESH;
                    changed |= self.table.insert(due.name.clone(), addresses) != Some(addresses);
                }
                Err(error) => {
                    due.wait = (due.wait * 2).min(REFRESH);
                    log::debug!("host name {}: {error}; again in {:?}", due.name, due.wait);
                }
            }
            due.at = Instant::now() + due.wait;
            beat.beat();
        }
        changed
    }
}

/// The first address of each family that `name` resolves to.
pub fn resolve(name: &str) -> std::io::Result<PerFamily<IpAddr>> {
    let mut addresses = PerFamily::default();
    for address in (name, 0).to_socket_addrs()?.map(|socket| socket.ip()) {
        let family = Family::of(address);
        if addresses.get(family).is_none() && !address.is_loopback() {
            addresses.set(family, Some(address));
        }
    }
    if addresses.is_empty() {
        return Err(std::io::Error::other("resolves to no usable address"));
    }
    Ok(addresses)
}
