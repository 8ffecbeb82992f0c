//! Lists and watches resources of the Kubernetes API, each by a task of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::Value;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

use crate::kube::answer::ApiError;
use crate::kube::client::Api;
use crate::kube::discovery;
use crate::kube::query::Query;
use crate::kube::resource::{ObjectEvent, ObjectKey, Resource};
use crate::kube::settings::KubeSettings;
use crate::net::FailureReason;
use crate::os::random;

/// Longest time before another attempt after the first failure; doubled for each further one …
const RETRY: Duration = Duration::from_millis(500);

/// … up to this.
const LONGEST_RETRY: Duration = Duration::from_secs(15);

/// Attempts from the same version, which may be the reason of the failure.
const TRIES: u32 = 3;

/// Age at which everything is listed again in any case.
const RELIST: Duration = Duration::from_secs(3600);

/// A watch that ends earlier failed, even without an error.
const SHORT: Duration = Duration::from_secs(10);

/// Answers in a row by which a resource that was there is gone: a server that starts may not have it yet.
const ABSENCES: u32 = 3;

/// A watch that goes on where another one broke begins with what happened meanwhile: it comes within this. One that
/// comes after several that failed must last so long.
const MISSED: Duration = Duration::from_secs(1);

/// Of resources of humanz that the API does not have, and that are in force.
const NOT_DEFINED: &str = "kubectl get crd # the definitions of humanz are missing there: apply packaging/crds.yaml, or set \
                           POLICY_OBJECTS=etcd on all hosts";

/// Changes that may wait to be taken.
const QUEUE: usize = 256;

/// What was learned of a resource. `T`: its objects as they are kept.
#[derive(Debug)]
pub enum ResourceUpdate<T> {
    /// Everything, in place of what was there before.
    All(BTreeMap<ObjectKey, T>),
    Put(ObjectKey, T),
    Gone(ObjectKey),
    /// It is followed; what was received is up to date.
    Connected,
    /// It is not followed now; what was received before stays. Repeated for every new reason.
    Disconnected {
        why: FailureReason,
    },
}

/// The tasks; dropping them ends them.
#[derive(Debug)]
pub struct FollowedObjects<T> {
    pub received: mpsc::Receiver<(Resource, ResourceUpdate<T>)>,
    _tasks: JoinSet<()>,
}

/// Follows `queries`, and keeps of each object what `parse` makes of it. To be called in an event loop.
///
/// A resource that the cluster lacks has no objects; it is asked for again now and then.
pub fn follow<T: Send + 'static>(
    api: &KubeSettings,
    queries: Vec<(Resource, Query)>,
    parse: fn(Resource, &Value) -> T,
) -> FollowedObjects<T> {
    let (sender, received) = mpsc::channel(QUEUE);
    let mut tasks = JoinSet::new();
    for (resource, query) in queries {
        let follower = Follower {
            api: api.clone(),
            resource,
            has_objects: query.had_objects,
            query,
            parse,
            sender: sender.clone(),
            listed: None,
            disconnected: Some(BTreeSet::new()),
            attempts: 0,
            absences: 0,
        };
        tasks.spawn(follower.run());
    }
    FollowedObjects { received, _tasks: tasks }
}

struct Follower<T> {
    api: KubeSettings,
    resource: Resource,
    query: Query,
    parse: fn(Resource, &Value) -> T,
    sender: mpsc::Sender<(Resource, ResourceUpdate<T>)>,
    /// The version received last, and when everything was listed.
    listed: Option<(String, Instant)>,
    /// A list of them was received, perhaps before the start.
    has_objects: bool,
    /// The API does not answer, for the reasons reported since.
    disconnected: Option<BTreeSet<FailureReason>>,
    attempts: u32,
    absences: u32,
}

/// What is received has no receiver any more.
struct ReceiverGone;

impl<T> Follower<T> {
    async fn run(mut self) {
        while self.attempt().await.is_ok() {}
    }

    async fn attempt(&mut self) -> Result<(), ReceiverGone> {
        self.attempts += 1;
        match self.serve().await? {
            Ok(()) => self.ended("it ends at once").await?,
            Err(ApiError::Expired(why)) => {
                log::debug!("listing {} again: {why}", self.query.name);
                self.listed = None;
                self.ended(&why).await?;
            }
            Err(ApiError::Missing(why)) if self.query.is_optional => {
                self.listed = None;
                match self.served_version().await {
                    Ok(Some(path)) if path != self.query.path => {
                        log::debug!("{}: following {path}: {why}", self.query.name);
                        self.query.path = path.into();
                    }
                    Ok(_) => return self.absent(why).await,
                    Err(error) => self.disconnected(error.into()).await?,
                }
            }
            Err(ApiError::Missing(why)) if self.resource.is_own() => {
                self.disconnected(FailureReason::new(why, NOT_DEFINED)).await?;
            }
            Err(error) => self.disconnected(error.into()).await?,
        }
        if self.attempts >= TRIES {
            self.listed = None;
        }
        if self.attempts > 0 {
            let longest = RETRY * 2u32.pow(self.attempts.min(8) - 1);
            sleep(random::jittered(LONGEST_RETRY.min(longest))).await;
        }
        Ok(())
    }

    /// Where the API has the resource in another version, or this one, now.
    async fn served_version(&self) -> Result<Option<String>, ApiError> {
        let Some(group) = self.resource.versioned_group() else { return Ok(None) };
        let api = Api::open(&self.api)?;
        let Some(found) = api.discover(&format!("/apis/{group}"), discovery::versions).await?
        else {
            return Ok(None);
        };
        let (mut served, mut unread) = (Vec::new(), None);
        for version in found {
            let path = format!("/apis/{group}/{version}");
            let has = |bytes: &[u8]| discovery::has(bytes, self.query.name);
            match api.discover(&path, has).await {
                Ok(Some(true)) => served.push(version),
                Ok(_) => {}
                Err(error) => unread = Some(error),
            }
        }
        match (discovery::preferred(served), unread) {
            (Some(version), _) => Ok(Some(format!("/apis/{group}/{version}/{}", self.query.name))),
            // That one may have the resource.
            (None, Some(error)) => Err(error),
            (None, None) => Ok(None),
        }
    }

    /// The cluster has no such resource.
    async fn absent(&mut self, why: String) -> Result<(), ReceiverGone> {
        self.absences += 1;
        if self.has_objects && self.absences < ABSENCES {
            self.disconnected(why.into()).await?;
        } else {
            if self.absences == 1 || self.has_objects {
                self.send(ResourceUpdate::All(BTreeMap::new())).await?;
            }
            if self.disconnected.take().is_some() {
                self.send(ResourceUpdate::Connected).await?;
            }
            self.has_objects = false;
            self.attempts = 0;
        }
        sleep(random::jittered(self.query.ask_again)).await;
        Ok(())
    }

    async fn serve(&mut self) -> Result<Result<(), ApiError>, ReceiverGone> {
        let api = match Api::open(&self.api) {
            Ok(api) => api,
            Err(error) => return Ok(Err(error)),
        };
        let mut missed = if self.attempts > TRIES { MISSED } else { Duration::ZERO };
        let version = match &self.listed {
            Some((version, at)) if at.elapsed() < RELIST => {
                missed = MISSED;
                version.clone()
            }
            _ => match self.list(&api).await {
                Ok((version, objects)) => {
                    self.has_objects = true;
                    self.absences = 0;
                    self.listed = Some((version.clone(), Instant::now()));
                    self.send(ResourceUpdate::All(objects)).await?;
                    version
                }
                Err(error) => return Ok(Err(error)),
            },
        };
        self.watch(&api, &version, missed).await
    }

    async fn list(&self, api: &Api) -> Result<(String, BTreeMap<ObjectKey, T>), ApiError> {
        let mut objects = BTreeMap::new();
        let take = |bytes: &[u8]| {
            let (page, end) = self.resource.page(&self.query, bytes)?;
            let parsed =
                page.into_iter().map(|(key, one)| (key, (self.parse)(self.resource, &one)));
            objects.extend(parsed);
            Ok(end)
        };
        let version = api.list(&self.query, take).await?;
        Ok((version, objects))
    }

    /// `missed`: how long it may take until everything since `version` was received.
    async fn watch(
        &mut self,
        api: &Api,
        version: &str,
        missed: Duration,
    ) -> Result<Result<(), ApiError>, ReceiverGone> {
        let (resource, query) = (self.resource, self.query.clone());
        let mut watch = match api.watch(&query, version).await {
            Ok(watch) => watch,
            Err(error) => return Ok(Err(error)),
        };
        let begun = Instant::now();
        loop {
            let received = tokio::select! { biased;
                () = sleep_until(begun + missed), if self.disconnected.is_some() => {
                    self.disconnected = None;
                    self.send(ResourceUpdate::Connected).await?;
                    continue;
                }
                received = watch.next(|line| resource.event(&query, line)) => received,
            };
            if begun.elapsed() > SHORT {
                self.attempts = 0;
            }
            let events = match received {
                Ok(Some(events)) => events,
                Ok(None) => return Ok(Ok(())),
                Err(error) => return Ok(Err(error)),
            };
            for event in events {
                self.take(event).await?;
            }
        }
    }

    async fn take(&mut self, event: ObjectEvent) -> Result<(), ReceiverGone> {
        let version = match event {
            ObjectEvent::Put(key, object, version) => {
                let parsed = (self.parse)(self.resource, &object);
                self.send(ResourceUpdate::Put(key, parsed)).await?;
                version
            }
            ObjectEvent::Gone(key, version) => {
                self.send(ResourceUpdate::Gone(key)).await?;
                version
            }
            ObjectEvent::Bookmark(version) => version,
        };
        if let Some((reached, _)) = &mut self.listed {
            *reached = version;
        }
        Ok(())
    }

    /// A watch that ended is no failure; several in a row are: until the next list changes are missed.
    async fn ended(&mut self, why: &str) -> Result<(), ReceiverGone> {
        if self.attempts < TRIES {
            return Ok(());
        }
        self.disconnected(format!("watch {}: {why}", self.query.name).into()).await
    }

    async fn disconnected(&mut self, why: FailureReason) -> Result<(), ReceiverGone> {
        if self.disconnected.get_or_insert_default().insert(why.clone()) {
            self.send(ResourceUpdate::Disconnected { why }).await?;
        }
        Ok(())
    }

    async fn send(&self, received: ResourceUpdate<T>) -> Result<(), ReceiverGone> {
        self.sender.send((self.resource, received)).await.map_err(|_| ReceiverGone)
    }
}
