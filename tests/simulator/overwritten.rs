//! Keys that somebody else overwrites or deletes: a stolen host, or a program that was given the wrong key.

use humanz::lease::records::{Alive, Key, NodeName, NodeRecord};
use humanz::lease::transaction::{Transaction, Write};
use humanz::net::PerFamily;
use ipnetwork::IpNetwork;

use super::flaw::Flaw;
use super::world::{Scheduled, World};

/// The host that takes subnets of others, and has no agent.
const STOLEN: &str = "stolen";

/// How long the alive key of another machine lives.
const ALIVE: u64 = 30_000;

/// Which key of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    Claim,
    Host,
    Node,
    Alive,
}

impl World {
    /// One key of `host` gets another value, or is deleted; its others are true then.
    pub fn overwrite(&mut self, host: usize, target: Target) {
        let Some(subnet) = self.victim(host) else { return };
        let name = self.hosts[host].name(self.flaw);
        let key = match target {
            Target::Claim => Key::Claim(subnet),
            Target::Host => Key::Host(name),
            Target::Node => Key::Node(name),
            Target::Alive => Key::Alive(name),
        };
        let key = self.store.roots.key(&key);
        match self.foreign_value(target) {
            Some(value) => self.write_foreign(&key, &value),
            // The last proof against a host that has written the subnet into its own keys.
            None if self.is_stolen(subnet) && target != Target::Alive => return,
            None => {
                self.store.delete_now(std::slice::from_ref(&key));
                self.foreign.insert(key.clone());
            }
        }
        if target == Target::Host {
            self.hosts[host].doubtful = true;
        }
        if target == Target::Alive {
            // Another machine that stopped, or an operator who saw it.
            self.after(ALIVE, Scheduled::Forgotten(key));
        }
        self.notify_watches();
    }

    /// The stolen host writes the subnet and the WireGuard key of `host` into its own keys, and its name into the claim; then it
    /// overwrites one key of the host after the other, each of which is put back: the values of all of them
    /// are later than its own.
    pub fn steal(&mut self, host: usize) {
        let Some(subnet) = self.victim(host) else { return };
        let stolen: NodeName = STOLEN.parse().expect("a name");
        let claim = self.store.roots.key(&Key::Claim(subnet));
        let own = self.store.roots.key(&Key::Host(stolen.clone()));
        let node = self.store.roots.key(&Key::Node(stolen.clone()));
        let mut copied = record("m-stolen", subnet);
        copied.wireguard = self.hosts[host].wireguard();
        if let Some(end) = copied.wireguard {
            let key = self.store.roots.key(&Key::WireguardKey(stolen));
            self.write_foreign(&key, &end.public_key.to_string());
        }
        self.write_foreign(&node, &copied.to_json());
        self.write_foreign(&own, &subnet.to_string());
        self.write_foreign(&claim, STOLEN);
        self.notify_watches();
        for (step, target) in [Target::Claim, Target::Host, Target::Node].into_iter().enumerate() {
            self.after(2_000 * (step as u64 + 1), Scheduled::Wear(host, target));
        }
    }

    /// One key of `host` gets another value, if all were put back.
    pub fn wear(&mut self, host: usize, target: Target) {
        let Some(subnet) = self.victim(host) else { return };
        let name = self.hosts[host].name(self.flaw);
        let (key, value) = match target {
            Target::Claim => (Key::Claim(subnet), STOLEN.to_owned()),
            Target::Host => (Key::Host(name), "10.0.0.96/28".to_owned()),
            _ => (Key::Node(name), "{}".to_owned()),
        };
        let key = self.store.roots.key(&key);
        self.hosts[host].doubtful |= target == Target::Host;
        self.write_foreign(&key, &value);
        self.notify_watches();
    }

    /// The alive key of another machine expires.
    pub fn forget(&mut self, key: &str) {
        if !self.up {
            return self.after(1_000, Scheduled::Forgotten(key.to_owned()));
        }
        if self.foreign.contains(key) {
            self.store.delete_now(&[key.to_owned()]);
            self.notify_watches();
        }
    }

    /// A key written by others that its host does not put back.
    pub fn leaves_foreign(&self, transaction: &Transaction) -> bool {
        let key = |write: &Write| match write {
            Write::Put { key, .. } | Write::Delete { key } => self.foreign.contains(key),
            Write::Try(_) => false,
        };
        transaction.writes.iter().any(key)
    }

    /// The subnet of a host whose keys are all as it wrote them. Once its claim or its host key was deleted,
    /// nothing but their values proves its right: who may delete keys of others can then take the subnet, one
    /// write after the other.
    fn victim(&self, host: usize) -> Option<IpNetwork> {
        let subnet = self.hosts[host].uses.filter(|_| self.up && !self.hosts[host].left)?;
        let (found, name) = (self.store.read(), self.hosts[host].name(self.flaw));
        let key = found.hosts.get(&name).is_some_and(|stored| stored.value == subnet);
        let claim = found.claims.get(&subnet).is_some_and(|stored| stored.value == name);
        let has = |node: &NodeRecord| node.subnets.v4 == Some(subnet);
        let node = found.nodes.get(&name).is_some_and(|stored| has(&stored.value));
        let created = |host: &NodeName| found.hosts.get(host).map(|stored| stored.created);
        let is_proven = created(&name) == found.claims.get(&subnet).map(|stored| stored.created);
        if self.is_stolen(subnet) && !is_proven {
            return None;
        }
        let alive = self.store.roots.key(&Key::Alive(name));
        (key && claim && node && !self.foreign.contains(&alive)).then_some(subnet)
    }

    fn is_stolen(&self, subnet: IpNetwork) -> bool {
        let found = self.store.read();
        found.hosts.get(STOLEN).is_some_and(|stored| stored.value == subnet)
    }

    fn write_foreign(&mut self, key: &str, value: &str) {
        self.note(|_| format!("somebody writes {value:?} to {key}"));
        self.store.put_now(key, value);
        self.foreign.insert(key.to_owned());
    }

    /// What is written to a key of that kind; `None`: it is deleted.
    fn foreign_value(&mut self, target: Target) -> Option<String> {
        let other = self.random.below(self.hosts.len() as u64) as usize;
        let theirs = self.hosts[other].uses.map_or("10.0.0.96/28".to_owned(), |s| s.to_string());
        let subnet = theirs.parse().expect("a subnet");
        let machine_id = self.hosts[other].machine_id();
        let values = match target {
            Target::Claim => [self.hosts[other].name(self.flaw).to_string(), STOLEN.to_owned()],
            Target::Host => [theirs, "192.168.7.0/24".to_owned()],
            Target::Node => [record(&machine_id, subnet).to_json(), "{}".to_owned()],
            Target::Alive => {
                let alive = Alive::new(&machine_id, std::time::UNIX_EPOCH);
                [alive.of("another", None).to_json(), "{}".to_owned()]
            }
        };
        let garbage = "\u{202e}\u{1b}[2J".to_owned();
        let [first, second] = values;
        [Some(first), Some(second), Some(garbage), None][self.random.below(4) as usize].take()
    }
}

fn record(machine_id: &str, subnet: IpNetwork) -> NodeRecord {
    let mut node = NodeRecord::new(machine_id, "b", "0");
    node.subnets = PerFamily { v4: Some(subnet), v6: None };
    node
}

/// What agents with [`Flaw::LaterWriteWins`] or [`Flaw::TransactionProvesNothing`] read.
pub fn as_read(flaw: Flaw, mut found: humanz::lease::Snapshot) -> humanz::lease::Snapshot {
    if flaw == Flaw::LaterWriteWins
        && let Some(stored) = std::sync::Arc::make_mut(&mut found.hosts).get_mut(STOLEN)
    {
        (stored.created, stored.modified) = (0, 0);
    }
    if flaw == Flaw::TransactionProvesNothing {
        for stored in std::sync::Arc::make_mut(&mut found.hosts).values_mut() {
            stored.created = stored.modified;
        }
        for stored in std::sync::Arc::make_mut(&mut found.claims).values_mut() {
            stored.created = stored.modified;
        }
    }
    found
}
