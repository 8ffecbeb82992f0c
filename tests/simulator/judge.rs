//! Invariants of every schedule.

use std::sync::Arc;

use humanz::lease::records::{Key, NodeName};
use humanz::lease::transaction::{Condition, Transaction, Write};
use humanz::lease::{LeaseError, Snapshot, peers};
use humanz::net::subnet;
use ipnetwork::IpNetwork;

use super::host::{AgentState, Host, network};
use super::overwritten::as_read;
use super::world::World;

/// How long survivors of a loss need until they have restored the known keys, in milliseconds.
pub const SURVIVORS: u64 = 1_000;

/// The outcome of a schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    Fine,
    /// A loss that no host could have prevented: the data lost with etcd was known to no
    /// agent that ran undisturbed. The rest is not checked.
    Unavoidable,
    /// Something happened that must not.
    Wrong(String),
}

/// Something that must not happen.
pub struct Violation {
    pub what: String,
    pub unavoidable: bool,
}

impl Violation {
    pub fn new(what: impl Into<String>) -> Violation {
        Violation { what: what.into(), unavoidable: false }
    }

    pub fn verdict(self) -> Verdict {
        if self.unavoidable { Verdict::Unavoidable } else { Verdict::Wrong(self.what) }
    }
}

impl World {
    pub(super) fn wrong(&mut self, what: impl Into<String>) {
        let what = what.into();
        self.wrong.get_or_insert(Violation { what, unavoidable: false });
    }

    /// As [`World::wrong`], but only if somebody could have kept the subnet of `victim`.
    fn wrong_about(&mut self, victim: usize, what: impl Into<String>) {
        let unavoidable = self.is_unrecoverable(victim);
        self.wrong.get_or_insert(Violation { what: what.into(), unavoidable });
    }

    /// Data was lost, and no agent that ran undisturbed since before knew of the host.
    fn is_unrecoverable(&self, victim: usize) -> bool {
        let Some(lost) = self.lost else { return false };
        // A host that is new cannot distinguish a backup from the store that it was made of; it claims a
        // subnet at once, and a survivor reads again within half a second.
        if self.restored && self.back > lost && self.now < self.back + SURVIVORS {
            return true;
        }
        let name = self.hosts[victim].name(self.flaw);
        !self.hosts.iter().any(|host| {
            let known = host.agent.as_ref().and_then(|agent| agent.machine.last_known());
            let undisturbed = host.disturbed < lost && host.cut.is_none();
            undisturbed && known.is_some_and(|known| known.hosts.contains_key(&name))
        })
    }

    /// A host begins to use a subnet, with running pods perhaps.
    pub fn judge_use(&mut self, host: usize, subnet: IpNetwork) {
        if let Some(used) = self.hosts[host].uses.filter(|used| *used != subnet) {
            self.wrong_about(host, format!("h{host} gets {subnet} under pods that have {used}"));
        }
        let twins = |other: &Host| other.identity() == self.hosts[host].identity();
        let others = self.hosts.iter().filter(|other| other.number != host && !twins(other));
        let clash = others
            .filter(|other| other.uses.is_some_and(|used| subnet::overlap(used, subnet)))
            .map(|other| other.number)
            .next();
        if let Some(other) = clash {
            let victim = if self.is_unrecoverable(host) { host } else { other };
            self.wrong_about(victim, format!("h{host} and h{other} both use {subnet}"));
        }
        let python = self.pythons.iter().find(|(_, used)| **used == Some(subnet));
        if let Some((python, _)) = python {
            self.wrong(format!("h{host} uses {subnet}, which p{python} took"));
        }
    }

    /// A host of the Python agent uses a subnet from now on, without having looked.
    pub fn judge_python(&mut self, python: usize, subnet: IpNetwork) {
        let clash = self.hosts.iter().find(|host| host.uses == Some(subnet));
        if let Some(host) = clash.map(|host| host.number) {
            self.wrong(format!("p{python} takes {subnet}, which h{host} uses already"));
        }
    }

    /// Every write is conditional on the values that were read.
    pub fn judge_transaction(&mut self, host: usize, transaction: &Transaction) {
        for write in &transaction.writes {
            let key = match write {
                Write::Put { key, .. } | Write::Delete { key } => key,
                Write::Try(inner) => {
                    self.judge_transaction(host, inner);
                    continue;
                }
            };
            let compares = |condition: &Condition| matches!(condition, Condition::Unchanged { key: compared, .. } | Condition::Created { key: compared, .. } if compared == key);
            if !transaction.conditions.iter().any(compares) {
                self.wrong(format!("h{host} writes {key} without a condition on it"));
            }
        }
    }

    /// An existing claim is written by its owner only, and slot 0 has no owner.
    pub fn judge_writes(&mut self, host: usize, transaction: &Transaction) {
        let zero = network(self.script.margin, false).pools.v4.map(|pool| pool.subnet(0));
        let Some(writes) = self.store.judge(transaction) else { return };
        let mut wrong = None;
        for write in writes {
            let Write::Put { key, value, .. } = write else { continue };
            let Ok(Some(Key::Claim(subnet))) = self.store.roots.parse(key.as_bytes()) else {
                continue;
            };
            if Some(subnet) == zero {
                wrong = Some(format!("h{host} claims slot 0, {subnet}"));
            }
            let before = self.store.keys.get(key).map(|stored| &stored.value);
            // It puts its own back, or that of another host which a backup gives to one that left.
            let uses = |other: &Host| other.number != host && other.uses == Some(subnet);
            let is_own = self.foreign.contains(key) && !self.hosts.iter().any(uses);
            let is_back = |before: &&String| self.restored && self.has_left(before);
            let before = before.filter(|before| *before != value && !is_own);
            if let Some(before) = before.filter(|before| !is_back(before)) {
                wrong = Some(format!("h{host} takes {subnet} from {before} for {value}"));
            }
        }
        if let Some(wrong) = wrong {
            self.wrong(wrong);
        }
    }

    /// The published snapshot: it lacks no host that the host knew and that has not left, unless somebody took
    /// its host key. One that a loss of
    /// data gave another subnet than the known one may just have come.
    pub fn judge_snapshot(&mut self, host: usize, snapshot: &Snapshot) {
        let Some(known) = self.hosts[host].disk.as_ref().map(|saved| &saved.snapshot) else {
            return;
        };
        let missing = |other: &&Host| {
            let name = other.name(self.flaw);
            let is_known = known.hosts.get(&name).map(|stored| stored.value) == other.uses;
            let is_missing = is_known && !snapshot.hosts.contains_key(&name);
            let counts = other.uses.is_some() && !other.left && !other.doubtful;
            counts && other.number != host && is_missing
        };
        if let Some(other) = self.hosts.iter().find(missing).map(|other| other.number) {
            let what = format!("the snapshot of h{host} lacks h{other}");
            let unavoidable = self.is_unrecoverable(other) || self.may_live_instead(other);
            self.wrong.get_or_insert(Violation { what, unavoidable });
        }
    }

    /// A backup gives its subnet to a host that left, with an alive key that has not expired yet: hosts that may not
    /// put back others cannot know that it is of the past.
    fn may_live_instead(&self, victim: usize) -> bool {
        let (host, found) = (&self.hosts[victim], self.store.read());
        let name = host.name(self.flaw);
        let mut others = found.hosts.iter().filter(|(other, _)| **other != name);
        let has =
            |other: &NodeName, subnet| host.uses == Some(subnet) && found.alive.contains_key(other);
        self.script.own_keys_only && others.any(|(other, stored)| has(other, stored.value))
    }

    /// At the end every host has a subnet and knows every other host.
    pub fn judge_rest(&mut self) {
        let found = self.store.read();
        let full = self.hosts.len() + self.pythons.len() >= (1 << self.script.margin) - 1;
        let present: Vec<usize> = (0..self.hosts.len())
            .filter(|host| self.hosts[*host].exists && !self.hosts[*host].left)
            .filter(|host| !self.stands_back(*host))
            .collect();
        self.judge_copies(&present);
        self.judge_blocks_at_rest();
        for host in &present {
            let fault = self.fault_at_rest(*host, &found, &present);
            if let Some(fault) = fault.filter(|_| !full) {
                self.wrong_about(*host, format!("at rest, h{host}: {fault}"));
            }
        }
    }

    fn fault_at_rest(&self, host: usize, found: &Snapshot, present: &[usize]) -> Option<String> {
        let Some(agent) = &self.hosts[host].agent else {
            return Some("its agent does not run".to_owned());
        };
        let (name, machine) = (self.hosts[host].name(self.flaw), &agent.machine);
        let Some(lease) = machine.lease() else { return Some("it has no subnet".to_owned()) };
        let subnet = lease.subnets.v4?;
        if agent.state != AgentState::Follows(self.epoch) {
            return Some(format!("it does not watch: {:?}", agent.state));
        }
        let serves = |trouble: &&LeaseError| {
            !matches!(trouble, LeaseError::StoreWentBack { .. } | LeaseError::Copied { .. })
        };
        if let Some(trouble) = machine.trouble().filter(serves) {
            return Some(trouble.to_string());
        }
        if found.hosts.get(&name).map(|stored| stored.value) != Some(subnet) {
            return Some(format!("its key does not say {subnet}"));
        }
        if found.claims.get(&subnet).is_none_or(|claim| claim.value != name) {
            return Some(format!("it has no claim on {subnet}"));
        }
        let key = self.hosts[host].wireguard().map(|end| end.public_key);
        let claimed = found.wireguard_keys.get(&name).map(|claim| claim.value.key);
        if key.is_some() && claimed != key {
            return Some("it has no claim on its WireGuard key".to_owned());
        }
        let address = self.hosts[host].attributes().addresses;
        if found.nodes.get(&name).is_none_or(|node| node.value.addresses != address) {
            return Some("its record is not true".to_owned());
        }
        let instance = &machine.claimant().instance;
        if found.alive.get(&name).is_none_or(|alive| *alive.value.instance != **instance) {
            return Some("its alive key is missing, or another one".to_owned());
        }
        let known = machine.last_known()?;
        let read = |snapshot: &Snapshot| as_read(self.flaw, snapshot.clone());
        let in_etcd = match self.script.own_keys_only {
            true => without_remembered(known),
            false => Snapshot::clone(known),
        };
        let in_etcd = without_memory_of_keys(in_etcd, found);
        if !read(&in_etcd).says_the_same(&read(found)) {
            return Some("it does not know what etcd holds".to_owned());
        }
        let pools = &machine.claimant().network.pools;
        let peers = peers(known, &name, &lease.subnets, pools);
        present.iter().filter(|other| **other != host).find_map(|other| {
            let theirs = self.hosts[*other].uses;
            let peer = peers.by_name.get(&self.hosts[*other].name(self.flaw));
            let knows = peer.is_some_and(|peer| peer.subnets.v4 == theirs);
            let key = self.hosts[*other].wireguard();
            if knows && peer.is_some_and(|peer| peer.wireguard != key) {
                return Some(format!("it does not know the WireGuard key of h{other}"));
            }
            (!knows).then(|| format!("it does not know that h{other} has {theirs:?}"))
        })
    }
}

/// `known` without the hosts that are only remembered: they left while this one did not learn of it.
fn without_remembered(known: &Snapshot) -> Snapshot {
    let mut rest = known.clone();
    Arc::make_mut(&mut rest.hosts).retain(|_, stored| stored.created > 0);
    Arc::make_mut(&mut rest.nodes).retain(|_, stored| stored.created > 0);
    Arc::make_mut(&mut rest.claims).retain(|_, stored| stored.created > 0);
    rest
}

/// `known`, with the age in `found` of claims that are older for those who remember a loss of data.
fn without_memory_of_keys(mut known: Snapshot, found: &Snapshot) -> Snapshot {
    let claims = Arc::make_mut(&mut known.wireguard_keys);
    claims.retain(|_, claim| claim.modified > 0);
    for (host, claim) in claims.iter_mut().filter(|(_, claim)| claim.created == 0) {
        let age = found.wireguard_keys.get(host).map(|found| found.created);
        claim.created = age.unwrap_or_default();
    }
    known
}
