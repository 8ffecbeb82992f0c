//! Backups with hosts that left since, and whose subnets others have.

use humanz::lease::records::{Key, NodeName};

use super::world::World;

impl World {
    /// A new host starts with a subnet that the backup gives to a host that has left.
    pub fn inherit(&mut self, host: usize) {
        if self.hosts[host].exists || !self.up {
            return;
        }
        let Some(backup) = self.backup.as_ref().map(|backup| backup.read()) else { return };
        let found = self.store.read();
        let taken = |subnet| found.hosts.values().any(|stored| stored.value == subnet);
        let had = backup.hosts.iter().filter(|(name, _)| self.has_left(name.as_str()));
        let free = had.map(|(_, stored)| stored.value).find(|subnet| !taken(*subnet));
        let Some(subnet) = free else { return };
        let name: NodeName = self.hosts[host].name(self.flaw);
        self.make_role(host, Some(subnet));
        let key = self.store.roots.key(&Key::Host(name));
        self.store.put_now(&key, &subnet.to_string());
        self.notify_watches();
        self.start(host);
    }

    /// The host of that name has left.
    pub fn has_left(&self, name: &str) -> bool {
        self.hosts.iter().any(|host| host.left && host.name(self.flaw).as_str() == name)
    }
}
