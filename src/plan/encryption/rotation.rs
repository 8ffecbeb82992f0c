//! Pure. How a host changes its WireGuard key without the loss of a packet.
//!
//! A device takes in what comes from a network under one key alone, so that two keys of a host need two devices,
//! on that host and on all others. A host
//!
//! 1. is steady: its first device has its key;
//! 2. leaves: its second device has the key to come, which its record publishes beside the present one. Where a
//!    handshake succeeds there, both hosts send by it, each once it sees that; what still comes by the first
//!    devices is taken in;
//! 3. returns, once no host sends to its first device: that gets the new key, too, which its record publishes as
//!    the present one. Where a handshake succeeds there, both hosts send by it again;
//! 4. is steady, once no host sends to its second device, and the second devices go.
//!
//! Every stage works as long as it lasts, and two hosts may change keys at the same time. A host that is reached
//! by the device that is left and not by the other one is waited for: a change that cannot be carried out without
//! loss waits, and says for which hosts. It waits a day for a host, and loses packets with that one alone then: a
//! stolen host, which can pretend each of the reasons, delays the changes of others and does not prevent them.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use crate::lease::records::NodeName;
use crate::net::gather::Gather;
use crate::net::{Object, Problem, ProblemKind, PublicKey};
use crate::netlink::wireguard::WireguardPeer;
use crate::plan::encryption::{EncryptedPeer, device_name};

/// How long a session lasts after its handshake. Source: the WireGuard paper §6.2 (Reject-After-Time).
const SESSION: Duration = Duration::from_secs(180);

/// How long all hosts must have gone by one device before the other one is given up.
const HOLD: Duration = Duration::from_secs(15);

/// Bytes that a host may send in [`HOLD`] by the device that is given up: a handshake, and what keeps a session
/// alive. Less than four packets of a ping.
const SILENCE_BYTES: u64 = 400;

/// Where a host is in the change of its key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stage {
    #[default]
    Steady,
    /// To the second device.
    Leaving,
    /// To the first one, with its new key.
    Returning,
}

impl Stage {
    /// That of a host whose devices have these keys.
    pub fn of<Key: PartialEq>(first: &Key, second: Option<&Key>) -> Stage {
        match second {
            None => Stage::Steady,
            Some(second) if second == first => Stage::Returning,
            Some(_) => Stage::Leaving,
        }
    }
}

/// A key that was made then, in seconds since 1970, and has this age is due by its age, if `limit` is how old keys
/// become: up to an eighth earlier, and by another share than most others, so that keys that were made on one day
/// do not wait for each other for ever.
pub fn is_old(made_secs: u64, age: Duration, limit: Duration) -> bool {
    let share = limit / 8 * u32::from(made_secs.to_le_bytes()[0]) / 255;
    age >= limit - share
}

/// How far the change of a host's key is, for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyState {
    pub stage: Stage,
    pub made: SystemTime,
}

impl EncryptedPeer {
    fn stage(&self) -> Stage {
        Stage::of(&self.key, self.next.as_ref())
    }
}

/// What is known of packets to and from a host by one device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct DeviceSession {
    /// There was a handshake not long ago: both hosts send and take in.
    fresh: bool,
    received_bytes: u64,
}

/// The sessions of both devices.
#[derive(Clone, Debug, Default)]
pub struct Sessions([BTreeMap<PublicKey, DeviceSession>; 2]);

impl Sessions {
    /// Of the peers of the first and the second device. `now`: since 1970.
    pub fn of(devices: [&[WireguardPeer]; 2], now: Duration) -> Sessions {
        let session = |peer: &WireguardPeer| {
            let fresh = is_fresh(peer, now);
            (peer.key, DeviceSession { fresh, received_bytes: peer.received_bytes })
        };
        Sessions(devices.map(|peers| peers.iter().map(session).gather()))
    }

    fn with(&self, peer: &EncryptedPeer) -> [DeviceSession; 2] {
        let [first, second] = &self.0;
        let of = |device: &BTreeMap<_, _>, key| device.get(&key).copied().unwrap_or_default();
        [of(first, peer.key), of(second, peer.next.unwrap_or(peer.key))]
    }
}

/// There was a handshake not long before `now`, since 1970.
pub(super) fn is_fresh(peer: &WireguardPeer, now: Duration) -> bool {
    peer.last_handshake.is_some_and(|last| now.saturating_sub(last) < SESSION)
}

/// The peers of the second device of a host in this stage; none: it needs no such device.
pub fn on_second(peers: &[EncryptedPeer], own: Stage) -> Vec<EncryptedPeer> {
    let changes = |peer: &&EncryptedPeer| own != Stage::Steady || peer.next.is_some();
    let second = |peer: &EncryptedPeer| {
        let (port, key) = (peer.rotation_port?, peer.next.unwrap_or(peer.key));
        Some(EncryptedPeer { port, key, ..peer.clone() })
    };
    peers.iter().filter(changes).filter_map(second).collect()
}

/// Whether what is sent to the host goes by the second device.
pub fn uses_second(own: Stage, peer: &EncryptedPeer, sessions: &Sessions) -> bool {
    let [first, second] = sessions.with(peer);
    match (own, peer.stage()) {
        (Stage::Steady, Stage::Steady) => false,
        (Stage::Leaving, _) | (_, Stage::Leaving) => second.fresh,
        _ => second.fresh && !first.fresh,
    }
}

/// A handshake is waited for, or a change goes on: what the kernel reports by no event must be looked at soon.
pub fn is_pending(own: Stage, peers: &[EncryptedPeer], sessions: &Sessions) -> bool {
    own != Stage::Steady
        || peers.iter().any(|peer| {
            let [first, second] = sessions.with(peer).map(|session| session.fresh);
            match peer.stage() {
                Stage::Steady => false,
                Stage::Leaving => first && !second,
                Stage::Returning => second && !first,
            }
        })
}

/// What this host knows of the change of its key.
#[derive(Debug)]
pub struct Rotation<'a> {
    pub own: Stage,
    /// Its key is old enough, or somebody asked for another one.
    pub is_due: bool,
    /// Another host claims or publishes its key.
    pub is_contested: bool,
    pub peers: &'a [EncryptedPeer],
    pub sessions: &'a Sessions,
    /// Of a clock that only goes on.
    pub now: Duration,
}

/// To the next stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RotationStep {
    /// Make a key, and leave.
    Begin,
    /// Give the new key to the first device, and return.
    TakeOver,
    /// Forget the second device.
    Finish,
}

/// Why the next step waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Blocker {
    /// Another host has this host's key, as far as etcd says.
    Contested,
    /// A version that does not know of changes of keys.
    Older(NodeName),
    /// It changes its own key.
    Changes(NodeName),
    /// It is reached by the device that is left, and not by the other one.
    Behind(NodeName),
    /// It still sends by the device that is left.
    Sends(NodeName),
}

/// What must be remembered between two looks.
#[derive(Debug, Default)]
pub struct RotationWatch {
    stage: Stage,
    hold: Option<Hold>,
    /// Since when a host blocks the next step, and with what at last; `None`: etcd does.
    blocked: BTreeMap<Option<NodeName>, (Duration, Blocker)>,
}

/// Since when all hosts go by one device, and the bytes that had come by the other one.
#[derive(Debug)]
struct Hold {
    since: Duration,
    received_bytes: BTreeMap<PublicKey, u64>,
}

impl RotationWatch {
    /// The step to take now.
    pub fn step(&mut self, seen: &Rotation<'_>) -> Option<RotationStep> {
        if self.stage != seen.own {
            *self = RotationWatch { stage: seen.own, ..RotationWatch::default() };
        }
        if self.waits_for(seen.blockers(), seen.now) {
            self.hold = None;
            return None;
        }
        let left = match seen.own {
            Stage::Steady => {
                self.blocked.clear();
                return seen.is_due.then_some(RotationStep::Begin);
            }
            Stage::Leaving => 0,
            Stage::Returning => 1,
        };
        let received = |peer: &EncryptedPeer| (peer.key, seen.sessions.with(peer)[left]);
        let hold = self.hold.get_or_insert_with(|| Hold::start(seen, left));
        if seen.now.saturating_sub(hold.since) < HOLD {
            return None;
        }
        let sends = |peer: &&EncryptedPeer| {
            let (key, session) = received(peer);
            let before = hold.received_bytes.get(&key).copied().unwrap_or_default();
            session.received_bytes.saturating_sub(before) > SILENCE_BYTES
        };
        let blockers = seen.peers.iter().filter(sends);
        let blockers: Vec<_> = blockers.map(|peer| Blocker::Sends(peer.host.clone())).collect();
        if self.waits_for(blockers, seen.now) {
            self.hold = Some(Hold::start(seen, left));
            return None;
        }
        Some(if left == 0 { RotationStep::TakeOver } else { RotationStep::Finish })
    }

    /// Whether one of them has not blocked for too long.
    fn waits_for(&mut self, blockers: Vec<Blocker>, now: Duration) -> bool {
        if blockers.is_empty() {
            return false;
        }
        let entry = |blocker: Blocker| {
            let host = blocker.host().cloned();
            let since = self.blocked.get(&host).map_or(now, |(since, _)| *since);
            (host, (since, blocker))
        };
        self.blocked = blockers.into_iter().map(entry).gather();
        let waits = |(since, blocker): &(Duration, Blocker)| {
            *blocker == Blocker::Contested || now.saturating_sub(*since) < LIMIT
        };
        self.blocked.values().any(waits)
    }

    /// What blocks the next step, and for how long; at the time `now` of [`Rotation`].
    pub fn blocked(&self, now: Duration) -> Vec<(Duration, Blocker)> {
        let waited =
            |(since, blocker): &(Duration, Blocker)| (now.saturating_sub(*since), blocker.clone());
        self.blocked.values().map(waited).collect()
    }
}

impl Hold {
    fn start(seen: &Rotation<'_>, left: usize) -> Hold {
        let received =
            |peer: &EncryptedPeer| (peer.key, seen.sessions.with(peer)[left].received_bytes);
        Hold { since: seen.now, received_bytes: seen.peers.iter().map(received).gather() }
    }
}

impl Rotation<'_> {
    fn blockers(&self) -> Vec<Blocker> {
        let contested = (self.own == Stage::Steady && self.is_due && self.is_contested)
            .then_some(Blocker::Contested);
        let of_peer = |peer: &EncryptedPeer| {
            let [first, second] = self.sessions.with(peer).map(|session| session.fresh);
            let host = || peer.host.clone();
            match self.own {
                Stage::Steady if !self.is_due => None,
                Stage::Steady if peer.rotation_port.is_none() => Some(Blocker::Older(host())),
                // One that is down sends nothing by a second device, which is about to get another key.
                Stage::Steady => (peer.next.is_some() && (peer.alive || first || second))
                    .then(|| Blocker::Changes(host())),
                Stage::Leaving => (first && !second).then(|| Blocker::Behind(host())),
                Stage::Returning => (second && !first).then(|| Blocker::Behind(host())),
            }
        };
        contested.into_iter().chain(self.peers.iter().filter_map(of_peer)).collect()
    }
}

/// How long it is normal that the next step waits.
const PATIENCE: Duration = Duration::from_secs(600);

/// How long it is normal that another host changes its key.
const TURN: Duration = Duration::from_secs(3600);

/// How long the next step waits for a host.
const LIMIT: Duration = Duration::from_secs(24 * 3600);

/// Hosts that a problem lists.
const LISTED: usize = 5;

impl Blocker {
    fn host(&self) -> Option<&NodeName> {
        match self {
            Blocker::Contested => None,
            Blocker::Older(host)
            | Blocker::Changes(host)
            | Blocker::Behind(host)
            | Blocker::Sends(host) => Some(host),
        }
    }

    fn patience(&self) -> Duration {
        match self {
            Blocker::Contested | Blocker::Older(_) => Duration::ZERO,
            Blocker::Changes(_) => TURN,
            Blocker::Behind(_) | Blocker::Sends(_) => PATIENCE,
        }
    }

    fn what(&self) -> String {
        match self {
            Blocker::Contested => "another host claims this host's key".to_owned(),
            Blocker::Older(host) => format!("host {host} has a version that cannot follow"),
            Blocker::Changes(host) => format!("host {host} does not finish the change of its own"),
            Blocker::Behind(host) => format!("host {host} is not reached by the other device"),
            Blocker::Sends(host) => format!("host {host} still sends by the device that is left"),
        }
    }

    fn fix(&self, port: u16) -> String {
        match self {
            Blocker::Contested => {
                "humanz-agent status # see the problem of the key that two hosts have".to_owned()
            }
            Blocker::Older(host) => {
                format!(
                    "humanz-agent nodes show {host} # upgrade humanz-agent there, or set ENCRYPTION_ROTATE=off"
                )
            }
            Blocker::Changes(host) => format!(
                "humanz-agent nodes ls # if {host} is gone: humanz-agent nodes rm {host}; else status there says for \
                 which host it waits"
            ),
            Blocker::Behind(host) | Blocker::Sends(host) => format!(
                "humanz-agent nodes ls # if {host} is gone: humanz-agent nodes rm {host}; else start its agent, and let \
                 UDP from and to port {port} (here) and the port after ENCRYPTION_PORT (there) through"
            ),
        }
    }
}

/// What keeps this host from changing its key, once that is not normal any more. `blocked`: as
/// [`RotationWatch::blocked`] says. `port`: that of the second device.
pub fn problem(own: Stage, blocked: &[(Duration, Blocker)], port: u16) -> Option<Problem> {
    let late = || {
        let late = blocked.iter().filter(|(waited, blocker)| blocker.patience() <= *waited);
        late.map(|(_, blocker)| blocker)
    };
    let first = late().next()?;
    let listed: Vec<String> = late().take(LISTED).map(Blocker::what).collect();
    let more = late().count().saturating_sub(LISTED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let state = match own {
        Stage::Steady => "does not begin",
        Stage::Leaving | Stage::Returning => "waits, with both devices in use",
    };
    let what =
        format!("the change of this host's WireGuard key {state}: {}{more}", listed.join(", "));
    let object = Object::Tunnel(device_name());
    Some(Problem::new(ProblemKind::KeyRotation, object, what).with_fix(first.fix(port)))
}

#[cfg(test)]
mod tests;
