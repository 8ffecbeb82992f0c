//! Follows what the Kubernetes API says of policies.

use std::io;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until};

use crate::kube::{FollowedObjects, KubeSettings, Query, Resource, follow};
use crate::net::node_name::NodeName;
use crate::os::event_loop::{self, EventLoop};
use crate::policy::rule::{PolicyKind, Rule};
use crate::policy::unread::UnderstoodRules;
use crate::policy::{ObjectSource, Scoped, SourceUpdate};
use crate::sources::cluster_state::{ClusterState, PodScope};
use crate::sources::item::Item;

/// Changes that come closer together than this make one update.
const COALESCE: Duration = Duration::from_millis(5);

/// Rest after an update, in multiples of the time that it took: a storm in a large cluster takes a
/// quarter of a processor at most.
const REST: u32 = 3;

/// Thousands of hosts that ask for what is not in force would be a load.
const SELDOM: Duration = Duration::from_secs(600);

/// Longest time in which the API must say everything to [`read`].
const READ_WITHIN: Duration = Duration::from_secs(60);

/// What to follow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiStart {
    pub api: KubeSettings,
    /// This host's node.
    pub host: NodeName,
    pub pods: PodScope,
    /// Whether custom resources of humanz are in force.
    pub ruling: ObjectSource,
    /// Of all pods: that of those that nothing else puts into a group.
    pub group: Option<Scoped>,
}

/// Starts following. `last`: the rules of the API that were in force. `publish` is called from its thread and
/// must not block for long.
///
/// # Errors
/// The thread or its event loop cannot be created.
pub fn spawn(
    start: ApiStart,
    last: UnderstoodRules,
    mut publish: impl FnMut(SourceUpdate) + Send + 'static,
) -> io::Result<EventLoop> {
    EventLoop::spawn("policies", async move |stopped| {
        run(&start, last, stopped, &mut publish).await
    })
}

/// Everything, read once.
///
/// # Errors
/// The API does not answer in time, or refuses.
pub fn read(start: &ApiStart) -> Result<SourceUpdate, String> {
    event_loop::once(async || {
        let (mut state, mut followed) = begin(start, UnderstoodRules::default());
        let until = Instant::now() + READ_WITHIN;
        loop {
            let update = state.update();
            if let (None, Some(problem)) = (&update.snapshot, update.problems.first()) {
                return Err(problem.what.clone());
            }
            if update.snapshot.is_some() {
                return Ok(update);
            }
            tokio::select! {
                Some((resource, received)) = followed.received.recv() => drop(state.take(resource, received)),
                () = sleep_until(until) => return Err("the Kubernetes API does not answer".to_owned()),
            }
        }
    })
}

fn begin(start: &ApiStart, last: UnderstoodRules) -> (ClusterState, FollowedObjects<Item>) {
    let queries = Resource::ALL.map(|resource| {
        let had_objects = last.rules.iter().any(|rule| stands_in(rule, resource));
        (resource, Query { had_objects, ..query(start, resource) })
    });
    let mut state = ClusterState::new(start.host.clone(), start.pods, start.ruling, last);
    state.group.clone_from(&start.group);
    (state, follow(&start.api, queries.into(), Item::read))
}

/// There is such a rule where the cluster has objects of `resource`. Those of humanz come together.
fn stands_in(rule: &Rule, resource: Resource) -> bool {
    match rule.origin.source {
        PolicyKind::GroupPolicy | PolicyKind::Group | PolicyKind::Network => resource.is_own(),
        kind => kind.name() == resource.kind(),
    }
}

/// Which objects of a resource are followed.
fn query(start: &ApiStart, resource: Resource) -> Query {
    match (start.pods, start.ruling) {
        (PodScope::Own, _) if matches!(resource, Resource::Pods | Resource::Nodes) => {
            resource.query_of(&start.host)
        }
        (_, ObjectSource::Etcd) if resource.is_own() => {
            Query { ask_again: SELDOM, ..resource.query() }
        }
        // Somebody said that they are there: without them nothing is known of tenants.
        (PodScope::Own, ObjectSource::Kubernetes) if resource.is_own() => {
            Query { is_optional: false, ..resource.query() }
        }
        _ => resource.query(),
    }
}

async fn run(
    start: &ApiStart,
    last: UnderstoodRules,
    mut stopped: oneshot::Receiver<()>,
    publish: &mut impl FnMut(SourceUpdate),
) {
    let (mut state, mut followed) = begin(start, last);
    let (mut due, mut rested) = (None, Instant::now());
    let mut published = None;
    loop {
        tokio::select! { biased;
            _ = &mut stopped => return,
            () = sleep_until(due.unwrap_or(rested)), if due.is_some() => {
                let begun = Instant::now();
                due = None;
                let update = state.update();
                let content = (update.snapshot.clone(), update.problems.clone());
                if published.as_ref() != Some(&content) {
                    published = Some(content);
                    publish(update);
                }
                rested = Instant::now() + begun.elapsed() * REST;
            }
            Some((resource, received)) = followed.received.recv() => {
                if state.take(resource, received) {
                    due.get_or_insert((Instant::now() + COALESCE).max(rested));
                }
            }
        }
    }
}
