//! Where this host's subnet and the other hosts come from.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ipnetwork::IpNetwork;

use crate::agent::exit::{self, Exit};
use crate::agent::settings::{Settings, Source as Wanted};
use crate::agent::start;
use crate::lease::registry::{Contact, Handle, Setup};
use crate::lease::saved::Saved;
use crate::lease::snapshot::Snapshot;
use crate::lease::{Attributes, Identity, Lease};
use crate::net::PerFamily;

/// How long a host that starts waits for etcd before it serves what it knew last.
const PATIENCE: Duration = Duration::from_secs(3);

/// The last known good state is saved at once, but with many hosts it is large: saving may take
/// one part in this many of the time.
const SAVE_SHARE: u32 = 50;

/// Where this host's subnet and the other hosts come from.
pub enum Source {
    /// etcd.
    Leased(Box<Leased>),
    /// The operator said so; there are no other hosts.
    Fixed(PerFamily<IpNetwork>),
}

/// A host whose subnet is leased from etcd.
pub struct Leased {
    /// The connection.
    pub registry: Handle,
    /// How it goes.
    pub contact: Arc<Contact>,
    /// This host.
    pub identity: Identity,
    /// What it knew when the agent last ran.
    pub known: Option<Saved>,
    /// Where that is kept.
    pub path: PathBuf,
    /// When the agent started.
    pub started: Instant,
    /// Why etcd does not answer, if it does not.
    pub down: Option<String>,
    /// What waits to be saved.
    pub unsaved: Option<Saved>,
    /// When something may be saved again.
    pub save_at: Instant,
}

impl Source {
    /// The subnets, if they need no etcd.
    pub fn fixed(&self) -> Option<PerFamily<IpNetwork>> {
        match self {
            Source::Fixed(subnets) => Some(*subnets),
            Source::Leased(_) => None,
        }
    }

    /// How the connection with etcd goes, if there is one.
    pub fn contact(&self) -> Option<&Arc<Contact>> {
        match self {
            Source::Leased(leased) => Some(&leased.contact),
            Source::Fixed(_) => None,
        }
    }

    /// When the agent has waited long enough for etcd, if it has something else to serve from.
    pub fn patience_ends(&self) -> Option<Instant> {
        let Source::Leased(leased) = self else { return None };
        leased.known.as_ref().map(|_| leased.started + PATIENCE)
    }

    /// When what waits to be saved may be.
    pub fn save_due(&self) -> Option<Instant> {
        let Source::Leased(leased) = self else { return None };
        leased.unsaved.as_ref().map(|_| leased.save_at)
    }

    /// What this host knew last. It is given once.
    pub fn last_known_good(&mut self) -> Option<(Saved, String)> {
        let Source::Leased(leased) = self else { return None };
        let down = leased.down.clone().unwrap_or_else(|| "no answer yet".to_owned());
        leased.known.take().map(|known| (known, down))
    }

    /// Reaches etcd as `settings` say from now on, and belongs to the network that they describe.
    pub fn set_up(&self, settings: &Settings) {
        if let (Source::Leased(leased), Wanted::Etcd { server, roots }) = (self, &settings.source) {
            let network = start::network(settings, roots);
            leased.registry.set_up(Setup { etcd: server.clone(), network });
        }
    }

    /// Connects with etcd anew.
    pub fn reconnect(&self) {
        if let Source::Leased(leased) = self {
            leased.registry.reconnect();
        }
    }

    /// Tells the other hosts how to reach this one now.
    pub fn publish(&self, attributes: Attributes) {
        if let Source::Leased(leased) = self {
            leased.registry.set_attributes(attributes);
        }
    }

    /// Keeps what was applied for the next start; it is saved when it is due.
    pub fn keep(&mut self, subnets: PerFamily<IpNetwork>, snapshot: &Arc<Snapshot>) {
        let Source::Leased(leased) = self else { return };
        leased.unsaved = Some(Saved {
            host: leased.identity.name.clone(),
            machine_id: leased.identity.machine_id.clone(),
            lease: Lease { subnets },
            snapshot: Arc::clone(snapshot),
        });
    }

    /// Saves what waits for it.
    pub fn save(&mut self) {
        let Source::Leased(leased) = self else { return };
        if let Some(unsaved) = leased.unsaved.take() {
            let begun = Instant::now();
            if let Err(error) = unsaved.save(&leased.path) {
                log::error!("{error}: after a reboot without etcd this host would have no subnet");
            }
            leased.save_at = Instant::now() + begun.elapsed() * SAVE_SHARE;
        }
    }

    /// The subnet cannot be had in time.
    pub fn unavailable(&self) -> Exit {
        let why = match self {
            Source::Leased(leased) => leased.down.as_deref().unwrap_or("no answer"),
            Source::Fixed(_) => "the host could not be brought into its state in time",
        };
        Exit::new(exit::UNAVAILABLE, format!("etcd: {why}"))
    }

    /// Ends the connection; the lease stays.
    pub fn stop(self) {
        if let Source::Leased(leased) = self {
            leased.registry.stop();
        }
    }
}
