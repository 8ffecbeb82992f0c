//! Addresses of hosts that publish none: what their names resolve to.

use std::io;
use std::net::{IpAddr, ToSocketAddrs};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::inspect::state_file;
use crate::lease::records::NodeName;
use crate::lease::{Peers, Resolved};
use crate::net::{Family, PerFamily};
use crate::settings::Settings;

/// Longest wait of [`resolve_all`].
pub const PATIENCE: Duration = Duration::from_secs(5);

/// Names that are resolved in parallel: a name whose servers do not answer delays no other.
const AT_ONCE: usize = 16;

/// Addresses of the hosts among `peers` that publish none: what the agent knew when
/// it last saved its state, else what their names resolve to before [`PATIENCE`] ends.
pub fn resolve_all(peers: &Peers, settings: &Settings) -> Resolved {
    let saved = state_file::read(&settings.state_file())
        .ok()
        .flatten()
        .map(|saved| saved.resolved)
        .unwrap_or_default();
    let python = peers.by_name.iter().filter(|(_, peer)| peer.python).map(|(name, _)| name.clone());
    let (known, unknown): (Vec<_>, Vec<_>) = python.partition(|name| saved.contains_key(name));
    let mut resolved = saved;
    resolved.retain(|name, _| known.contains(name));
    let (answers, until) = (ask(unknown), Instant::now() + PATIENCE);
    while let Ok((name, answer)) =
        answers.recv_timeout(until.saturating_duration_since(Instant::now()))
    {
        resolved.insert(name, answer.unwrap_or_default());
    }
    resolved
}

/// Asks for `names`; each answer comes as soon as it is there, and after the last one nothing.
pub fn ask(names: Vec<NodeName>) -> Receiver<(NodeName, io::Result<PerFamily<IpAddr>>)> {
    let (sender, answers) = channel();
    let threads = names.len().min(AT_ONCE);
    let queue = Arc::new(Mutex::new(names.into_iter()));
    for _ in 0..threads {
        let (queue, sender) = (Arc::clone(&queue), sender.clone());
        let next = move || queue.lock().unwrap_or_else(PoisonError::into_inner).next();
        let work = move || {
            while let Some(name) = next() {
                let answer = resolve(name.as_str());
                if sender.send((name, answer)).is_err() {
                    return;
                }
            }
        };
        if let Err(error) = thread::Builder::new().name("name".into()).spawn(work) {
            log::warn!("start a thread for names of hosts: {error}");
        }
    }
    answers
}

/// The first address of each family that `name` resolves to.
fn resolve(name: &str) -> io::Result<PerFamily<IpAddr>> {
    let mut addresses = PerFamily::default();
    for address in (name, 0).to_socket_addrs()?.map(|socket| socket.ip()) {
        let family = Family::of(address);
        if addresses.get(family).is_none() && !address.is_loopback() {
            addresses.set(family, Some(address));
        }
    }
    if addresses.is_empty() {
        return Err(io::Error::other("resolves to no usable address"));
    }
    Ok(addresses)
}
