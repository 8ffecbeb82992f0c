//! Pure. What makes the loop reconcile, and the scope of that.

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;
use std::sync::mpsc::Sender;
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::agent::new_pods::PluginRequest;
use crate::etcd;
use crate::lease::Resolved;
use crate::net::IfName;
use crate::policy::SourceUpdate;
use crate::sources::{BlocksUpdate, Exchanged};

/// A message of another thread that may make the loop reconcile.
#[derive(Debug)]
pub enum Trigger {
    Registry(etcd::Update),
    /// Something changed in the kernel.
    Kernel(Scope),
    /// Pods' ends were plugged in a moment ago.
    Ports(Vec<IfName>),
    /// Names of hosts resolve to other addresses.
    Names(Resolved),
    /// Somebody changed these files of the agent.
    Files(BTreeSet<PathBuf>),
    Signal(Signal),
    /// A source of policies says something else.
    Policy(Box<SourceUpdate>),
    /// Other hosts say something else of their members of groups.
    Members(Exchanged),
    /// Hosts have other blocks of tenants' networks.
    Blocks(BlocksUpdate),
    /// The policies for the next start were written, in so many bytes, or could not be.
    Kept(anyhow::Result<usize>),
    /// A plugin asks for something.
    Plugin(PluginRequest),
}

/// Quiet time after a reconcile: a storm of events costs one reconcile each 20 ms, a single one waits for
/// nothing.
pub const SETTLE: Duration = Duration::from_millis(20);

/// Sends `trigger` to the loop; one that has ended needs none.
pub fn send(triggers: &Sender<Trigger>, trigger: Trigger) {
    let _ended = triggers.send(trigger);
}

/// The parts of the host that a reconcile covers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scope {
    /// Sysctls, the bridge and its addresses, this host's own addresses and segments.
    pub links: bool,
    /// Routes to other hosts.
    pub routes: bool,
    /// Our nftables table and foreign forward chains.
    pub firewall: bool,
    /// The installed plugin and the CNI configuration.
    pub files: bool,
    /// The table of policies.
    pub policy: bool,
    /// Which pods this host has, by its store of addresses.
    pub pods: bool,
}

impl Scope {
    pub const ALL: Scope =
        Scope { links: true, routes: true, firewall: true, files: true, policy: true, pods: true };
    const NONE: Scope = Scope {
        links: false,
        routes: false,
        firewall: false,
        files: false,
        policy: false,
        pods: false,
    };
    /// Links or addresses changed; routes hang on both.
    pub const LINKS: Scope = Scope { links: true, routes: true, ..Scope::NONE };
    /// Routes changed.
    pub const ROUTES: Scope = Scope { routes: true, ..Scope::NONE };
    /// nftables changed.
    pub const FIREWALL: Scope = Scope { firewall: true, ..Scope::NONE };
    /// Policies changed.
    pub const POLICY: Scope = Scope { policy: true, ..Scope::NONE };
    /// Pods came or went, which policies may concern.
    pub const PODS: Scope = Scope { pods: true, ..Scope::POLICY };

    pub fn is_empty(self) -> bool {
        self == Scope::default()
    }

    pub fn and(self, other: Scope) -> Scope {
        Scope {
            links: self.links || other.links,
            routes: self.routes || other.routes,
            firewall: self.firewall || other.firewall,
            files: self.files || other.files,
            policy: self.policy || other.policy,
            pods: self.pods || other.pods,
        }
    }
}

/// Everything that made the loop reconcile, for people.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TriggerReason(BTreeSet<&'static str>);

impl TriggerReason {
    /// The agent started.
    pub const START: &str = "the agent started";
    /// The kernel said that something changed.
    pub const KERNEL: &str = "the kernel changed";
    /// Somebody touched the plugin or the CNI configuration.
    pub const FILES: &str = "the agent's files changed";
    /// It was time.
    pub const RESYNC: &str = "the regular check";
    /// Names of hosts resolve to other addresses.
    pub const NAMES: &str = "a host's name resolves to another address";
    /// The settings were read again.
    pub const SETTINGS: &str = "the settings were read again";
    /// A pod came or went.
    pub const PODS: &str = "pods came or went";
    /// The registry has other hosts or pools.
    pub const HOSTS: &str = "the hosts of the network changed";
    /// This host or another one changes its WireGuard key.
    pub const KEYS: &str = "a WireGuard key is changed";
    /// A source of policies says something else.
    pub const POLICIES: &str = "policies changed";

    /// This, too.
    pub fn and(&mut self, why: &'static str) {
        self.0.insert(why);
    }

    /// These, too.
    pub fn and_all(&mut self, others: &TriggerReason) {
        self.0.extend(&others.0);
    }

    /// Nothing that is wanted can have changed: what differs was changed by somebody else.
    pub fn is_external(&self) -> bool {
        self.0.iter().all(|why| {
            [TriggerReason::KERNEL, TriggerReason::FILES, TriggerReason::RESYNC].contains(why)
        })
    }
}

impl fmt::Display for TriggerReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all: Vec<&str> = self.0.iter().copied().collect();
        f.write_str(&all.join("; "))
    }
}
