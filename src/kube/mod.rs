//! The connections with the Kubernetes API: the subnets of all hosts from its nodes, and what policies need.
//!
//! That of the nodes runs in its own thread: an unreachable API is tried again forever, and nothing that was
//! published is revoked. Nodes are listed page by page and then watched; every published snapshot has
//! all of them.
//!
//! - `session`: lists and watches the nodes
//! - `follow`: lists and watches other resources
//! - `client`, `answer`, `watch`, `access`: API calls, address and credentials
//! - `discovery`: which versions the API has of a resource, pure
//! - `object`, `resource`, `query`, `nodes`, `own`, `kubeconfig`, `yaml`, `settings`: parsed values, pure

mod access;
mod answer;
mod client;
mod discovery;
mod follow;
pub mod kubeconfig;
pub mod nodes;
pub mod object;
pub mod own;
mod query;
pub mod resource;
mod session;
mod settings;
mod watch;
pub mod yaml;

pub use access::api_service;
pub use answer::ApiError;
pub use client::Api;
pub use follow::{FollowedObjects, ResourceUpdate, follow};
pub use nodes::Nodes;
pub use query::Query;
pub use resource::{ObjectKey, Resource};
pub use settings::{KubeSettings, Server, Setup, Start};

use std::io;
use std::sync::Arc;

use tokio::sync::watch as latest;

use crate::etcd::{Contact, Update};
use crate::lease::{HostAttributes, NodeName};
use crate::os::event_loop::{self, EventLoop, Steered};
use crate::os::heartbeat::{self, Heartbeat};

/// The running connection.
#[derive(Debug)]
pub struct KubeHandle {
    pub session: Steered<Setup, HostAttributes>,
    ready: latest::Sender<bool>,
}

/// Starts the connection. `contact`: its counters. `publish` is called from its thread and must not
/// block for long.
///
/// # Errors
/// The thread or its event loop cannot be created.
pub fn spawn(
    start: Start,
    contact: Arc<Contact>,
    mut publish: impl FnMut(Update) + Send + 'static,
) -> io::Result<KubeHandle> {
    let (setup, set_up) = latest::channel(start.setup.clone());
    let (attributes, changes) = latest::channel(start.attributes.clone());
    let (ready, is_ready) = latest::channel(false);
    let inputs = session::Inputs { setup: set_up, attributes: changes, ready: is_ready };
    let event_loop = EventLoop::spawn("kubernetes", async move |stopped| {
        tokio::select! {
            () = session::run(start, inputs, &contact, &mut publish) => {}
            _ = stopped => {}
            () = turn(&contact.beat) => {}
        }
    })?;
    Ok(KubeHandle { session: Steered { setup, attributes, event_loop }, ready })
}

/// Beats as long as the event loop turns; every call in it has a time limit.
async fn turn(beat: &Heartbeat) {
    loop {
        beat.beat();
        tokio::time::sleep(heartbeat::EVERY).await;
    }
}

/// All nodes, read once. Writes nothing. `own`: the name of this host; `attributes`: of every host.
///
/// # Errors
/// The API does not answer, or refuses.
pub fn read(
    api: &KubeSettings,
    own: &NodeName,
    attributes: HostAttributes,
) -> Result<Nodes, String> {
    event_loop::once(async || {
        let mut nodes = Nodes::new(own.clone(), attributes);
        let api = client::Api::open(api).map_err(|error| error.to_string())?;
        let listed = api.list(&nodes::query(), |page| nodes.take_page(page)).await;
        nodes.reached(&listed.map_err(|error| error.to_string())?);
        Ok(nodes)
    })
}

/// Whether the files in `settings` are sufficient to reach the API. Sends nothing.
///
/// # Errors
/// What is missing or unusable.
pub fn check(settings: &KubeSettings) -> Result<(), String> {
    access::Access::open(settings).and_then(|access| access.token()).map(drop)
}

impl KubeHandle {
    /// The host is ready: its node may get that condition. Returns at once.
    pub fn set_ready(&self) {
        self.ready.send_if_modified(|known| !std::mem::replace(known, true));
    }
}
