//! Hosts with roles of their own in etcd: each may write its own keys only.

use humanz::lease::claim::leave;
use humanz::lease::records::Key;
use humanz::lease::transaction::{Transaction, Write};
use ipnetwork::IpNetwork;

use super::host::network;
use super::world::{Scheduled, World};

/// How long the operator looks on before removing hosts that a backup brought back.
const OPERATOR: u64 = 30_000;

impl World {
    /// The first key that `host` may not write, of those that it would.
    pub fn denied(&self, host: usize, transaction: &Transaction) -> Option<String> {
        if !self.script.own_keys_only {
            return None;
        }
        transaction.writes.iter().find_map(|write| {
            let key = match write {
                Write::Put { key, .. } | Write::Delete { key } => key,
                Write::Try(inner) => return self.denied(host, inner),
            };
            (!self.may_write(host, key)).then(|| key.clone())
        })
    }

    /// The keys in its name, and the claim of its subnet.
    fn may_write(&self, host: usize, key: &str) -> bool {
        let own = self.hosts[host].name(self.flaw);
        match self.store.roots.parse(key.as_bytes()) {
            Ok(Some(Key::Claim(subnet))) => self.hosts[host].reserved == Some(subnet),
            Ok(Some(
                Key::Host(name)
                | Key::Node(name)
                | Key::Alive(name)
                | Key::Contender(name)
                | Key::WireguardKey(name),
            )) => name == own,
            _ => true,
        }
    }

    /// The operator makes a role for the host, with `subnet` or one of its own.
    pub fn make_role(&mut self, host: usize, subnet: Option<IpNetwork>) {
        if !self.script.own_keys_only || self.hosts[host].reserved.is_some() {
            return;
        }
        let pool = network(self.script.margin, false).pools.v4;
        let own = || pool.map(|pool| pool.subnet(host as u32 + 1));
        self.hosts[host].reserved = subnet.or_else(own);
        self.reserve(host);
    }

    /// Puts the claim of its subnet, if nobody has that.
    fn reserve(&mut self, host: usize) {
        let Some(subnet) = self.hosts[host].reserved else { return };
        let key = self.store.roots.key(&Key::Claim(subnet));
        if !self.store.keys.contains_key(&key) {
            let name = self.hosts[host].name(self.flaw);
            self.store.put_now(&key, name.as_str());
        }
    }

    /// The operator removes hosts that have left and are back with a backup, and makes the roles of those without a
    /// claim again.
    pub fn operator_removes(&mut self) {
        if !self.up {
            return self.after(1_000, Scheduled::OperatorRemoves);
        }
        let found = self.store.read();
        for host in found.hosts.keys().chain(found.nodes.keys()) {
            if self.has_left(host.as_str()) {
                let keys = leave::all(&found, host);
                let transaction = leave::transaction(&found, &keys, &self.store.roots);
                let gone = self.store.commit(&transaction);
                self.note(|_| format!("the operator removes {host}: {gone:?}"));
                self.remove_blocks(host);
            }
        }
        for host in 0..self.hosts.len() {
            if !self.hosts[host].left {
                self.reserve(host);
            }
        }
        self.notify_watches();
    }

    /// After everything is repaired.
    pub fn await_operator(&mut self) {
        if self.script.own_keys_only {
            self.after(OPERATOR, Scheduled::OperatorRemoves);
        }
    }
}
