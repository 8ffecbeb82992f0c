//! Copied machines: two hosts with one name, one machine id and one disk.

use humanz::lease::LeaseError;

use super::host::Host;
use super::world::{REPAIRED, REST, Scheduled, World};

/// Time between two looks of a copy's agent.
const LOOK: u64 = 20_000;

impl World {
    /// The machine of `host` is copied, and the copy booted; once for each.
    pub fn clone_machine(&mut self, host: usize) {
        if self.has_copy(host) || !self.hosts[host].exists || self.hosts[host].left {
            return;
        }
        let number = self.hosts.len();
        let mut copy = Host::new(number);
        copy.copy_of = Some(host);
        copy.installed = self.hosts[host].installed;
        copy.wide = self.hosts[host].wide;
        copy.disk = self.hosts[host].disk.clone();
        copy.blocks.kept = self.hosts[host].blocks.kept.clone();
        self.hosts.push(copy);
        self.start(number);
    }

    pub fn has_copy(&self, host: usize) -> bool {
        self.hosts.iter().any(|other| other.copy_of == Some(host))
    }

    /// The agent of a copy without a lease waits.
    pub fn stand_back(&mut self, host: usize) {
        let life = self.hosts[host].life;
        self.note(|_| format!("h{host} stands back"));
        if !self.repaired || self.now < REPAIRED + REST / 2 {
            self.after(LOOK, Scheduled::Begin(host, life));
        }
    }

    /// The agent was answered by another one that was first.
    pub fn stands_back(&self, host: usize) -> bool {
        let agent = self.hosts[host].agent.as_ref();
        agent.and_then(|agent| agent.machine.trouble()).is_some_and(LeaseError::is_of_copy)
    }

    /// Of two machines with one identity one serves: those that are `present` do.
    pub fn judge_copies(&mut self, present: &[usize]) {
        for copy in 0..self.hosts.len() {
            let Some(original) = self.hosts[copy].copy_of else { continue };
            let serving = [original, copy].iter().filter(|host| present.contains(host)).count();
            let reinstalled = self.hosts[original].installed != self.hosts[copy].installed;
            match serving {
                2 if !reinstalled => {
                    self.wrong(format!("h{original} and its copy h{copy} both serve"))
                }
                0 if !self.hosts[original].left => {
                    self.wrong(format!("neither h{original} nor its copy h{copy} serves"));
                }
                _ => {}
            }
        }
    }
}
