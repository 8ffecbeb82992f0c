//! Lists the nodes and watches them, repeatedly.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::watch as latest;
use tokio::time::{Instant, sleep, sleep_until};

use crate::etcd::{Contact, Update};
use crate::kube::answer::ApiError;
use crate::kube::client::Api;
use crate::kube::nodes::{self, Nodes};
use crate::kube::object::{self, NodeEvent, NodeObject};
use crate::kube::own;
use crate::kube::settings::{Setup, Start};
use crate::lease::{HostAttributes, Identity, Lease, NodeError, Snapshot};
use crate::net::FailureReason;
use crate::net::time::rfc3339;
use crate::os::random;

/// Longest time before another attempt after the first failure; doubled for each further one …
const RETRY: Duration = Duration::from_millis(500);

/// … up to this.
const LONGEST_RETRY: Duration = Duration::from_secs(15);

/// Attempts with the same list, which may be the reason of the failure.
const TRIES: u32 = 3;

/// Hosts that reconnect at once after an interruption; further ones take up to 1 ms each longer.
const AT_ONCE: usize = 100;

/// Age at which the nodes are listed again in any case.
const RELIST: Duration = Duration::from_secs(3600);

/// A watch that ends earlier failed, even without an error.
const SHORT: Duration = Duration::from_secs(10);

/// One that comes after several that failed must last so long.
const LASTING: Duration = Duration::from_secs(1);

/// Time after which the API is asked again for what it refused, if the node is as it was.
const REFUSED: Duration = Duration::from_secs(300);

/// Events that come closer together than this make one snapshot.
const COALESCE: Duration = Duration::from_millis(5);

/// What the agent may change while a session runs.
#[derive(Clone)]
pub struct Inputs {
    pub setup: latest::Receiver<Setup>,
    pub attributes: latest::Receiver<HostAttributes>,
    /// The host is ready.
    pub ready: latest::Receiver<bool>,
}

/// Follows the nodes until the agent ends or a fatal error.
pub async fn run(start: Start, inputs: Inputs, contact: &Contact, publish: impl FnMut(Update)) {
    let mut setup_changes = inputs.setup.clone();
    let mut session = KubeSession {
        identity: start.identity,
        has_served: start.has_served,
        kept: start.kept,
        contact,
        inputs,
        listed: None,
        lease: None,
        published: None,
        trouble: None,
        disconnected: Some(BTreeSet::new()),
        refused: None,
        attempts: 0,
        publish,
    };
    loop {
        let setup = setup_changes.borrow_and_update().clone();
        tokio::select! { biased;
            changed = setup_changes.changed() => match changed {
                // Another cluster, perhaps.
                Ok(()) => (session.listed, session.attempts) = (None, 0),
                // The agent has ended.
                Err(_) => return,
            },
            attempt = session.attempt(&setup) => if attempt.is_break() {
                return;
            }
        }
    }
}

struct KubeSession<'a, P> {
    identity: Identity,
    contact: &'a Contact,
    /// The host has a state to serve.
    has_served: bool,
    kept: Option<Lease>,
    inputs: Inputs,
    /// All nodes, at a version from which they can be watched.
    listed: Option<Listed>,
    lease: Option<Lease>,
    published: Option<Arc<Snapshot>>,
    trouble: Option<NodeError>,
    /// The API does not answer, for the reasons published since.
    disconnected: Option<BTreeSet<FailureReason>>,
    /// The node whose condition the API refused to change, and when; logged.
    refused: Option<(NodeObject, Instant)>,
    attempts: u32,
    publish: P,
}

struct Listed {
    nodes: Nodes,
    version: String,
    at: Instant,
}

/// Why an attempt ended.
enum Interruption {
    Failed(ApiError),
    Refused(NodeError),
}

impl From<ApiError> for Interruption {
    fn from(error: ApiError) -> Interruption {
        Interruption::Failed(error)
    }
}

impl<P: FnMut(Update)> KubeSession<'_, P> {
    /// Serves until something breaks, then pauses.
    async fn attempt(&mut self, setup: &Setup) -> ControlFlow<()> {
        self.attempts += 1;
        match self.serve(setup).await {
            Ok(()) => self.note_ended("it ends at once"),
            Err(Interruption::Failed(ApiError::Expired(why))) => {
                log::debug!("listing nodes again: {why}");
                self.note_ended(&why);
            }
            Err(Interruption::Failed(error)) => self.publish_disconnected(error.into()),
            Err(Interruption::Refused(error)) => {
                (self.publish)(Update::Fatal(error.into()));
                return ControlFlow::Break(());
            }
        }
        if self.attempts >= TRIES {
            self.listed = None;
        }
        sleep(self.pause()).await;
        ControlFlow::Continue(())
    }

    async fn serve(&mut self, setup: &Setup) -> Result<(), Interruption> {
        let api = Api::open(&setup.api)?;
        let mut listed = match self.listed.take() {
            Some(listed) if listed.at.elapsed() < RELIST => listed,
            _ => self.list(&api).await?,
        };
        let followed = self.follow(&api, setup, &mut listed).await;
        if !matches!(followed, Err(Interruption::Failed(ApiError::Expired(_)))) {
            self.listed = Some(listed);
        }
        followed
    }

    async fn list(&mut self, api: &Api) -> Result<Listed, Interruption> {
        let attributes = self.inputs.attributes.borrow_and_update().clone();
        let mut nodes = Nodes::new(self.identity.name.clone(), attributes);
        let version = api.list(&nodes::query(), |page| nodes.take_page(page)).await?;
        nodes.reached(&version);
        self.contact.received();
        Ok(Listed { nodes, version, at: Instant::now() })
    }

    /// Publishes the list and then the changes from a watch, until that ends.
    async fn follow(
        &mut self,
        api: &Api,
        setup: &Setup,
        listed: &mut Listed,
    ) -> Result<(), Interruption> {
        let mut watch = api.watch(&nodes::query(), &listed.version).await?;
        let begun = Instant::now();
        if self.attempts <= TRIES {
            self.publish_connected(api);
        }
        self.take(&listed.nodes, setup)?;
        self.clear_network_unavailable(api, &listed.nodes).await;
        let mut due = None;
        loop {
            tokio::select! {
                events = watch.next(object::event) => {
                    if begun.elapsed() > SHORT {
                        self.attempts = 0;
                    }
                    let Some(events) = events? else { return Ok(()) };
                    self.contact.received();
                    self.contact.changed();
                    events.into_iter().for_each(|event| listed.take_in(event));
                    due.get_or_insert(Instant::now() + COALESCE);
                }
                () = sleep_until(begun + LASTING), if self.disconnected.is_some() => {
                    self.publish_connected(api);
                }
                () = sleep_until(due.unwrap_or(begun)), if due.is_some() => {
                    due = None;
                    self.take(&listed.nodes, setup)?;
                    self.clear_network_unavailable(api, &listed.nodes).await;
                }
                Ok(()) = self.inputs.attributes.changed() => {
                    let attributes = self.inputs.attributes.borrow_and_update().clone();
                    listed.nodes.set_attributes(attributes);
                    self.take(&listed.nodes, setup)?;
                }
                Ok(()) = self.inputs.ready.changed() => {
                    self.clear_network_unavailable(api, &listed.nodes).await;
                }
            }
        }
    }

    /// Publishes what changed: this host's subnets, and all hosts once it has some.
    fn take(&mut self, nodes: &Nodes, setup: &Setup) -> Result<(), Interruption> {
        match &self.lease {
            Some(kept) => {
                let trouble = own::disagreement(kept, nodes.own(), &self.identity, &setup.pools);
                self.publish_trouble(trouble);
            }
            None => match own::lease(nodes.own(), &self.identity, &setup.pools) {
                Ok(given) => {
                    let lease = own::beside(given, self.kept.take(), &setup.pools);
                    let trouble =
                        own::disagreement(&lease, nodes.own(), &self.identity, &setup.pools);
                    self.publish_trouble(trouble);
                    self.lease = Some(lease.clone());
                    (self.publish)(Update::Lease(lease));
                }
                Err(error) if error.is_setting() && !self.has_served => {
                    return Err(Interruption::Refused(error));
                }
                Err(error) => {
                    self.publish_trouble(Some(error));
                    return Ok(());
                }
            },
        }
        let known = self.published.as_ref();
        if !known.is_some_and(|known| nodes.snapshot().says_the_same(known)) {
            let snapshot = Arc::new(nodes.snapshot().clone());
            self.published = Some(Arc::clone(&snapshot));
            (self.publish)(Update::Snapshot(snapshot));
        }
        Ok(())
    }

    /// Providers of clouds keep pods from a new node until its network is said to work. Elsewhere
    /// nothing is written.
    async fn clear_network_unavailable(&mut self, api: &Api, nodes: &Nodes) {
        let ready = *self.inputs.ready.borrow();
        let Some(node) = nodes.own().filter(|node| ready && node.unavailable) else { return };
        let refused = self.refused.as_ref();
        if refused.is_some_and(|(known, at)| known == node && at.elapsed() < REFUSED) {
            return;
        }
        let now = rfc3339(SystemTime::now());
        let patch = format!(
            r#"{{"status":{{"conditions":[{{"type":"NetworkUnavailable","status":"False",
            "reason":"HumanzIsUp","message":"humanz serves the pods of this node",
            "lastHeartbeatTime":"{now}","lastTransitionTime":"{now}"}}]}}}}"#
        );
        match api.patch_status(&node.name, patch).await {
            Ok(()) => {
                self.refused = None;
                log::info!("node {}: condition NetworkUnavailable set to False", node.name);
            }
            Err(error) => {
                if self.refused.replace((node.clone(), Instant::now())).is_none() {
                    log::warn!(
                        "{error}; it has the condition NetworkUnavailable, so no pod is scheduled there: let \
                         the role patch nodes/status"
                    );
                }
            }
        }
    }

    /// Wait before the next attempt.
    fn pause(&self) -> Duration {
        if self.attempts == 0 {
            return Duration::ZERO;
        }
        let nodes = self.published.as_ref().map_or(0, |published| published.hosts.len());
        let spread = Duration::from_millis(nodes.saturating_sub(AT_ONCE) as u64);
        let longest = LONGEST_RETRY.min(RETRY * 2u32.pow(self.attempts.min(8) - 1));
        random::up_to(spread) + random::jittered(longest)
    }

    fn publish_connected(&mut self, api: &Api) {
        if self.disconnected.take().is_some() {
            (self.publish)(Update::Connected { endpoint: api.endpoint().to_owned() });
        }
    }

    /// A watch that ended is no failure; several in a row are: until the next list changes are missed.
    fn note_ended(&mut self, why: &str) {
        if self.attempts >= TRIES {
            self.publish_disconnected(format!("watch nodes: {why}").into());
        }
    }

    fn publish_disconnected(&mut self, why: FailureReason) {
        if self.disconnected.get_or_insert_default().insert(why.clone()) {
            (self.publish)(Update::Disconnected { why });
        }
    }

    fn publish_trouble(&mut self, trouble: Option<NodeError>) {
        if self.trouble != trouble {
            self.trouble = trouble.clone();
            (self.publish)(Update::Trouble(trouble.map(NodeError::into)));
        }
    }
}

impl Listed {
    fn take_in(&mut self, event: NodeEvent) {
        let version = match event {
            NodeEvent::Put(version, node) => {
                self.nodes.put(*node);
                version
            }
            NodeEvent::Gone(version, name) => {
                self.nodes.remove(&name);
                version
            }
            NodeEvent::Faulty(version, fault) => {
                self.nodes.put_faulty(fault);
                version
            }
            NodeEvent::Bookmark(version) => version,
        };
        self.nodes.reached(&version);
        self.version = version;
    }
}
