//! List, watch; over and over.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::watch as latest;
use tokio::time::{Instant, sleep, sleep_until};

use crate::etcd::{Contact, Update};
use crate::kube::client::{Api, ApiError};
use crate::kube::nodes::Nodes;
use crate::kube::object::Event;
use crate::kube::own;
use crate::kube::{Setup, Start};
use crate::lease::{Attributes, Identity, Lease, NodeError, Snapshot};
use crate::net::time::rfc3339;
use crate::os::random;

/// Longest time before another attempt after the first failure; doubled for each further one …
const RETRY: Duration = Duration::from_millis(500);

/// … up to this.
const LONGEST_RETRY: Duration = Duration::from_secs(15);

/// Attempts with a list that may be what is wrong.
const TRIES: u32 = 3;

/// Nodes whose hosts ask again at once after an interruption; more of them take up to 1 ms each longer.
const AT_ONCE: usize = 100;

/// Age at which a list is made anew although nothing says that it should be.
const RELIST: Duration = Duration::from_secs(3600);

/// A watch that ended in order before had a reason that is not told.
const SHORT: Duration = Duration::from_secs(10);

/// Events that come closer together than this make one snapshot.
const COALESCE: Duration = Duration::from_millis(5);

/// What the agent tells a session while it runs.
#[derive(Clone)]
pub struct Told {
    pub setup: latest::Receiver<Setup>,
    pub attributes: latest::Receiver<Attributes>,
    /// The host is as it should be.
    pub ready: latest::Receiver<bool>,
}

/// Follows the nodes until that makes no sense.
pub async fn run(start: Start, told: Told, contact: &Contact, publish: impl FnMut(Update)) {
    let mut moved = told.setup.clone();
    let mut session = Session {
        identity: start.identity,
        has_served: start.has_served,
        contact,
        told,
        listed: None,
        lease: None,
        published: None,
        trouble: None,
        disconnected: Some(BTreeSet::new()),
        unable: false,
        attempts: 0,
        publish,
    };
    loop {
        let setup = moved.borrow_and_update().clone();
        tokio::select! { biased;
            told = moved.changed() => match told {
                // Another cluster, perhaps.
                Ok(()) => (session.listed, session.attempts) = (None, 0),
                // Nobody will tell any more: the agent is gone.
                Err(_) => return,
            },
            attempt = session.attempt(&setup) => if attempt.is_break() {
                return;
            }
        }
    }
}

struct Session<'a, P> {
    identity: Identity,
    contact: &'a Contact,
    /// The host has something to serve from.
    has_served: bool,
    told: Told,
    /// All nodes as of a version that can be watched from.
    listed: Option<Listed>,
    lease: Option<Lease>,
    published: Option<Arc<Snapshot>>,
    trouble: Option<NodeError>,
    /// The API does not answer, for the reasons told since.
    disconnected: Option<BTreeSet<String>>,
    /// It was told that this host may not say that its network works.
    unable: bool,
    attempts: u32,
    publish: P,
}

struct Listed {
    nodes: Nodes,
    version: String,
    at: Instant,
}

/// Why it cannot go on as it is.
enum End {
    Failed(ApiError),
    Refused(NodeError),
}

impl From<ApiError> for End {
    fn from(error: ApiError) -> End {
        End::Failed(error)
    }
}

impl<P: FnMut(Update)> Session<'_, P> {
    /// Serves until something breaks, then rests.
    async fn attempt(&mut self, setup: &Setup) -> ControlFlow<()> {
        self.attempts += 1;
        match self.serve(setup).await {
            Ok(()) => {}
            Err(End::Failed(ApiError::Expired(why))) => log::debug!("listing nodes again: {why}"),
            Err(End::Failed(error)) => self.tell_disconnected(error.to_string()),
            Err(End::Refused(error)) => {
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

    async fn serve(&mut self, setup: &Setup) -> Result<(), End> {
        let api = Api::open(&setup.api)?;
        let mut listed = match self.listed.take() {
            Some(listed) if listed.at.elapsed() < RELIST => listed,
            _ => self.list(&api).await?,
        };
        let followed = self.follow(&api, setup, &mut listed).await;
        if !matches!(followed, Err(End::Failed(ApiError::Expired(_)))) {
            self.listed = Some(listed);
        }
        followed
    }

    async fn list(&mut self, api: &Api) -> Result<Listed, End> {
        let attributes = self.told.attributes.borrow_and_update().clone();
        let mut nodes = Nodes::new(self.identity.name.clone(), attributes);
        let version = api.list(&mut nodes).await?;
        self.contact.heard();
        Ok(Listed { nodes, version, at: Instant::now() })
    }

    /// Publishes what there is and what a watch brings, until that ends.
    async fn follow(&mut self, api: &Api, setup: &Setup, listed: &mut Listed) -> Result<(), End> {
        let mut watch = api.watch(&listed.version).await?;
        let begun = Instant::now();
        self.tell_connected(api);
        self.take(&listed.nodes, setup)?;
        self.say_that_the_network_works(api, &listed.nodes).await;
        let mut due = None;
        loop {
            tokio::select! {
                told = watch.next() => {
                    let Some(events) = told? else { break };
                    self.contact.heard();
                    self.contact.changed();
                    events.into_iter().for_each(|event| listed.take_in(event));
                    self.attempts = 0;
                    due.get_or_insert(Instant::now() + COALESCE);
                }
                () = sleep_until(due.unwrap_or(begun)), if due.is_some() => {
                    due = None;
                    self.take(&listed.nodes, setup)?;
                    self.say_that_the_network_works(api, &listed.nodes).await;
                }
                Ok(()) = self.told.attributes.changed() => {
                    let attributes = self.told.attributes.borrow_and_update().clone();
                    listed.nodes.reach_by(attributes);
                    self.take(&listed.nodes, setup)?;
                }
                Ok(()) = self.told.ready.changed() => {
                    self.say_that_the_network_works(api, &listed.nodes).await;
                }
            }
        }
        if begun.elapsed() > SHORT {
            self.attempts = 0;
        }
        Ok(())
    }

    /// Publishes what changed: this host's subnets, and all hosts once it has some.
    fn take(&mut self, nodes: &Nodes, setup: &Setup) -> Result<(), End> {
        match &self.lease {
            Some(kept) => {
                let trouble = own::disagreement(kept, nodes.own(), &self.identity, &setup.pools);
                self.tell_trouble(trouble);
            }
            None => match own::lease(nodes.own(), &self.identity, &setup.pools) {
                Ok(lease) => {
                    self.tell_trouble(None);
                    self.lease = Some(lease.clone());
                    (self.publish)(Update::Lease(lease));
                }
                Err(error) if error.is_setting() && !self.has_served => {
                    return Err(End::Refused(error));
                }
                Err(error) => {
                    self.tell_trouble(Some(error));
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

    /// Providers of clouds keep pods from a new node until its network is said to work. Where nobody
    /// does that nothing is written.
    async fn say_that_the_network_works(&mut self, api: &Api, nodes: &Nodes) {
        let ready = *self.told.ready.borrow();
        let Some(node) = nodes.own().filter(|node| ready && node.unavailable) else { return };
        let now = rfc3339(SystemTime::now());
        let patch = format!(
            r#"{{"status":{{"conditions":[{{"type":"NetworkUnavailable","status":"False",
            "reason":"HumanzIsUp","message":"humanz serves the pods of this node",
            "lastHeartbeatTime":"{now}","lastTransitionTime":"{now}"}}]}}}}"#
        );
        match api.patch_status(&node.name, patch).await {
            Ok(()) => {
                self.unable = false;
                log::info!("node {}: condition NetworkUnavailable set to False", node.name);
            }
            Err(error) if !std::mem::replace(&mut self.unable, true) => log::warn!(
                "{error}; it has the condition NetworkUnavailable, so no pod is put there: let the \
                 role patch nodes/status"
            ),
            Err(error) => log::debug!("{error}"),
        }
    }

    /// How long to wait before the next attempt.
    fn pause(&self) -> Duration {
        if self.attempts == 0 {
            return Duration::ZERO;
        }
        let nodes = self.published.as_ref().map_or(0, |published| published.hosts.len());
        let spread = Duration::from_millis(nodes.saturating_sub(AT_ONCE) as u64);
        let longest = LONGEST_RETRY.min(RETRY * 2u32.pow(self.attempts.min(8) - 1));
        random::up_to(spread) + random::jittered(longest)
    }

    fn tell_connected(&mut self, api: &Api) {
        if self.disconnected.take().is_some() {
            (self.publish)(Update::Connected { endpoint: api.endpoint().to_owned() });
        }
    }

    fn tell_disconnected(&mut self, why: String) {
        if self.disconnected.get_or_insert_default().insert(why.clone()) {
            (self.publish)(Update::Disconnected { why });
        }
    }

    fn tell_trouble(&mut self, trouble: Option<NodeError>) {
        if self.trouble != trouble {
            self.trouble = trouble.clone();
            (self.publish)(Update::Trouble(trouble.map(NodeError::into)));
        }
    }
}

impl Listed {
    fn take_in(&mut self, event: Event) {
        let version = match event {
            Event::Put(version, node) => {
                self.nodes.put(*node);
                version
            }
            Event::Gone(version, name) => {
                self.nodes.remove(&name);
                version
            }
            Event::Faulty(version, fault) => {
                self.nodes.put_faulty(fault);
                version
            }
            Event::Bookmark(version) => version,
            Event::Error(..) => return,
        };
        self.nodes.reached(&version);
        self.version = version;
    }
}
