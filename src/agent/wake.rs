//! Pure. Why the loop looks again, and at what.

use nix::sys::signal::Signal;

use crate::agent::reach::Resolved;
use crate::lease::registry::Update;

/// A reason to look, from one of the other threads.
#[derive(Debug)]
pub enum Wake {
    /// The registry has something new.
    Registry(Update),
    /// Something changed in the kernel.
    Kernel(Look),
    /// Names of hosts resolve to other addresses.
    Names(Resolved),
    /// The operator or the service manager wants something.
    Signal(Signal),
}

/// What to look at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Look {
    /// Sysctls, the bridge and its addresses, this host's own addresses and segments.
    pub links: bool,
    /// Routes to other hosts.
    pub routes: bool,
    /// Our nftables table and foreign forward chains.
    pub firewall: bool,
    /// The installed plugin and the CNI configuration.
    pub files: bool,
}

impl Look {
    /// Everything.
    pub const ALL: Look = Look { links: true, routes: true, firewall: true, files: true };
    /// Links or addresses changed; routes hang on both.
    pub const LINKS: Look = Look { links: true, routes: true, firewall: false, files: false };
    /// Routes changed.
    pub const ROUTES: Look = Look { links: false, routes: true, firewall: false, files: false };
    /// nftables changed.
    pub const FIREWALL: Look = Look { links: false, routes: false, firewall: true, files: false };

    /// Nothing to look at.
    pub fn is_nothing(self) -> bool {
        self == Look::default()
    }

    /// This and `other`.
    pub fn and(self, other: Look) -> Look {
        Look {
            links: self.links || other.links,
            routes: self.routes || other.routes,
            firewall: self.firewall || other.firewall,
            files: self.files || other.files,
        }
    }
}
