//! The connection with the Kubernetes API: this host's subnets and all others from the nodes there.
//!
//! It runs in a thread of its own, for ever: an API that cannot be reached is tried again, and nothing
//! that was published is taken back because of it. Nodes are listed page by page and then watched;
//! what is published is always all of them.
//!
//! - `session`: list, watch
//! - `client`, `access`: the calls that are needed, and who answers them
//! - `object`, `nodes`, `own`, `kubeconfig`, `yaml`, `settings`: what is told there, pure

mod access;
mod client;
pub mod kubeconfig;
pub mod nodes;
pub mod object;
pub mod own;
mod session;
mod settings;
mod yaml;

pub use nodes::Nodes;
pub use settings::{KubeSettings, Server};

use std::io;
use std::sync::Arc;

use tokio::sync::watch as latest;

use crate::etcd::{Contact, Update};
use crate::lease::identity::{Attributes, Identity};
use crate::lease::records::NodeName;
use crate::net::PerFamily;
use crate::net::subnet::Pool;
use crate::os::event_loop::{self, EventLoop};
use crate::os::heartbeat::{self, Heartbeat};

/// What the operator may change while the connection is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setup {
    /// How the API is reached.
    pub api: KubeSettings,
    /// The pool of each family in use, at least one.
    pub pools: PerFamily<Pool>,
}

/// What is to be known at the start.
#[derive(Clone, Debug)]
pub struct Start {
    /// How the API is reached, and what for.
    pub setup: Setup,
    /// Who this host is; its name is that of its node.
    pub identity: Identity,
    /// How this host is reached, and therefore all others.
    pub attributes: Attributes,
    /// It has something to serve from until the API answers.
    pub has_served: bool,
}

/// The running connection. Dropped, it ends like [`Handle::stop`], but nobody waits for it.
#[derive(Debug)]
pub struct Handle {
    setup: latest::Sender<Setup>,
    attributes: latest::Sender<Attributes>,
    ready: latest::Sender<bool>,
    event_loop: EventLoop,
}

/// Starts the connection, which tells `contact` how it goes. `publish` is called from its thread and
/// must not block for long.
///
/// # Errors
/// If the thread or its event loop cannot be made.
pub fn spawn(
    start: Start,
    contact: Arc<Contact>,
    mut publish: impl FnMut(Update) + Send + 'static,
) -> io::Result<Handle> {
    let (setup, set_up) = latest::channel(start.setup.clone());
    let (attributes, changes) = latest::channel(start.attributes.clone());
    let (ready, is_ready) = latest::channel(false);
    let told = session::Told { setup: set_up, attributes: changes, ready: is_ready };
    let event_loop = EventLoop::spawn("kubernetes", async move |stopped| {
        tokio::select! {
            () = session::run(start, told, &contact, &mut publish) => {}
            _ = stopped => {}
            () = turn(&contact.beat) => {}
        }
    })?;
    Ok(Handle { setup, attributes, ready, event_loop })
}

/// Beats for as long as the event loop turns; every call in it has an end.
async fn turn(beat: &Heartbeat) {
    loop {
        beat.beat();
        tokio::time::sleep(heartbeat::EVERY).await;
    }
}

/// All nodes, read once. Writes nothing. `own`: the name of this host; `attributes`: how it is reached,
/// and therefore all others.
///
/// # Errors
/// The API does not answer, or refuses; the text says why.
pub fn read(api: &KubeSettings, own: &NodeName, attributes: Attributes) -> Result<Nodes, String> {
    event_loop::once(async || {
        let mut nodes = Nodes::new(own.clone(), attributes);
        let api = client::Api::open(api).map_err(|error| error.to_string())?;
        api.list(&mut nodes).await.map_err(|error| error.to_string())?;
        Ok(nodes)
    })
}

/// Whether the files that `settings` name say how to reach the API. Asks nobody.
///
/// # Errors
/// What is missing or cannot be used.
pub fn check(settings: &KubeSettings) -> Result<(), String> {
    access::Access::open(settings).and_then(|access| access.token()).map(drop)
}

impl Handle {
    /// Reaches the API in another way, or serves other pools, from now on. Returns at once.
    pub fn set_up(&self, setup: Setup) {
        event_loop::send_if_changed(&self.setup, setup);
    }

    /// Connects anew: an address of this host went, and with it perhaps the connection. Returns at once.
    pub fn reconnect(&self) {
        self.setup.send_modify(|_| {});
    }

    /// All hosts are reached in this way from now on. Returns at once.
    pub fn set_attributes(&self, attributes: Attributes) {
        event_loop::send_if_changed(&self.attributes, attributes);
    }

    /// The host is as it should be: its node may be told so. Returns at once.
    pub fn set_ready(&self) {
        self.ready.send_if_modified(|known| !std::mem::replace(known, true));
    }

    /// Ends the connection, and waits for that.
    pub fn stop(self) {
        self.event_loop.stop();
    }
}
