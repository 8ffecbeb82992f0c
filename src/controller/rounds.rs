//! Follows etcd and the API, and looks at every custom resource whenever one of them changed.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde_json::Value;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, sleep_until};

use crate::controller::accepted::accepted;
use crate::controller::condition::{StatusCondition, WantedStatus};
use crate::controller::seen::{SeenObject, SeenObjects};
use crate::controller::settle::{Settling, api, etcd};
use crate::controller::start::ControllerStart;
use crate::controller::step::{NetworkStep, step};
use crate::controller::working::Working;
use crate::controller::writes;
use crate::etcd::Etcd;
use crate::kube::{Api, Query, Resource, follow};
use crate::lease::EtcdError;
use crate::lease::blocks::held::HeldBlock;
use crate::net::gather::Gather;
use crate::net::time::rfc3339;
use crate::sources::{StoredName, read_stored, retry};

/// Changes in the API that come closer together than this are looked at once; hosts that take and give back blocks …
const COALESCE: Duration = Duration::from_millis(20);

/// … change what is counted alone.
const COALESCE_ETCD: Duration = Duration::from_millis(500);

/// Writes in one round that may fail before it ends: an API that is away answers none of thousands.
const FAILURES: usize = 3;

/// Works for ever.
pub async fn run(start: &ControllerStart, working: &Working) -> Infallible {
    let etcd = Etcd::new(start.etcd.clone(), start.roots.clone());
    let changed = Notify::new();
    tokio::select! {
        never = watch_etcd(start, &changed) => never,
        never = rounds(start, &etcd, &changed, working) => never,
    }
}

async fn rounds(
    start: &ControllerStart,
    etcd: &Etcd,
    changed: &Notify,
    working: &Working,
) -> Infallible {
    // Somebody said that they are there.
    let query = |one: Resource| (one, Query { is_optional: false, ..one.query() });
    let mut followed = follow(&start.api, Resource::OWN.map(query).into(), SeenObject::read);
    let (mut seen, mut failures) = (SeenObjects::default(), 0u32);
    let (mut due, mut failed): (Option<Instant>, _) = (None, FailedObjects::default());
    loop {
        tokio::select! {
            Some((resource, received)) = followed.received.recv() => {
                if seen.take(resource, received) {
                    let soon = Instant::now() + COALESCE;
                    due = Some(due.map_or(soon, |due| due.min(soon)));
                }
                working.follows(seen.trouble().map(ToString::to_string), seen.is_whole());
            }
            () = changed.notified() => {
                let soon = Instant::now() + COALESCE_ETCD;
                due = Some(due.map_or(soon, |due| due.min(soon)));
            }
            () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                due = None;
                if !seen.is_whole() {
                    continue;
                }
                let done = Round { start, etcd, seen: &seen }.run(&mut failed).await;
                failures = if done.is_ok() { 0 } else { failures + 1 };
                if done.is_err() {
                    due = Some(Instant::now() + retry(failures));
                }
                working.writes(done.err());
            }
        }
    }
}

/// Says that something of policies or blocks has changed, and after each time in which that could not be learned.
async fn watch_etcd(start: &ControllerStart, changed: &Notify) -> Infallible {
    let etcd = Etcd::new(start.etcd.clone(), start.roots.clone());
    let mut failures = 0u32;
    loop {
        let Err(error) = follow_etcd(&etcd, start, changed, &mut failures).await;
        log::debug!("watch etcd: {error}");
        failures += 1;
        sleep(retry(failures)).await;
    }
}

async fn follow_etcd(
    etcd: &Etcd,
    start: &ControllerStart,
    changed: &Notify,
    failures: &mut u32,
) -> Result<Infallible, EtcdError> {
    let ranges = [start.roots.policies_range(), start.roots.blocks_range()];
    // Its own connection: what is watched from here on is not older than what the next round reads.
    let (_, revision) = read_stored(etcd, &ranges[0]).await?;
    let mut watch = etcd.watch_ranges(&ranges, revision + 1).await?;
    changed.notify_one();
    loop {
        if !watch.next().await?.is_empty() {
            changed.notify_one();
        }
        *failures = 0;
    }
}

/// One look at everything.
struct Round<'a> {
    start: &'a ControllerStart,
    etcd: &'a Etcd,
    seen: &'a SeenObjects,
}

/// Objects that could not be changed. They are tried after all others, each round others of them first: objects
/// that cannot be changed hold up no other.
#[derive(Default)]
struct FailedObjects {
    paths: BTreeSet<String>,
    /// The place of the first one to try.
    first: usize,
}

/// What etcd has of policies, and of networks' blocks.
struct StoredNetworks {
    objects: BTreeMap<StoredName, Value>,
    /// How many hosts have blocks of each.
    hosts: BTreeMap<String, usize>,
}

impl Round<'_> {
    /// # Errors
    /// etcd or the API does not answer or refuses; what could be done was done.
    async fn run(&self, failed: &mut FailedObjects) -> Result<(), String> {
        let connection = Api::open(&self.start.api).map_err(api)?;
        let custom = Arc::new(self.seen.custom());
        let (mut stored, mut unread, mut failures) = (None, None, Vec::new());
        if self.seen.of(Resource::Networks).next().is_some() {
            match self.stored().await {
                Ok(found) => stored = Some(found),
                Err(why) => unread = Some(why),
            }
        }
        let settling = Settling {
            start: self.start,
            etcd: self.etcd,
            api: &connection,
            custom: Arc::clone(&custom),
        };
        for object in self.objects(failed) {
            let done = match (object.resource, &stored) {
                (Resource::Networks, Some(stored)) => keep(&settling, object, stored).await,
                (Resource::Networks, None) => continue,
                _ => {
                    let wanted = WantedStatus { condition: accepted(object, &custom), hosts: None };
                    say(&connection, object, &wanted).await
                }
            };
            match done {
                Ok(()) => drop(failed.paths.remove(&object.path())),
                Err(why) => {
                    failed.paths.insert(object.path());
                    failures.push(why);
                }
            }
            if failures.len() >= FAILURES {
                break;
            }
        }
        // Of objects the same one each time, whatever their order.
        unread.or_else(|| failures.into_iter().min()).map_or(Ok(()), Err)
    }

    /// Networks first, and after everything what failed.
    fn objects(&self, failed: &mut FailedObjects) -> Vec<&SeenObject> {
        let others = Resource::OWN.into_iter().filter(|it| *it != Resource::Networks);
        let others = others.flat_map(|it| self.seen.of(it)).filter(|it| !it.is_deleting);
        let all = self.seen.of(Resource::Networks).chain(others);
        let (mut failing, mut objects): (Vec<&SeenObject>, Vec<&SeenObject>) =
            all.partition(|it| failed.paths.contains(&it.path()));
        failed.paths = failing.iter().map(|it| it.path()).gather();
        failed.first = (failed.first + FAILURES).checked_rem(failing.len()).unwrap_or(0);
        failing.rotate_left(failed.first);
        objects.extend(failing);
        objects
    }

    async fn stored(&self) -> Result<StoredNetworks, String> {
        let range = self.start.roots.policies_range();
        let (stored, _) = read_stored(self.etcd, &range).await.map_err(etcd)?;
        let (blocks, _) = self.etcd.held_blocks().await.map_err(etcd)?;
        Ok(StoredNetworks { objects: stored.objects(&range).0, hosts: hosts(&blocks) })
    }
}

/// Brings a network to where it should be, and says so in its status.
async fn keep(
    settling: &Settling<'_>,
    network: &SeenObject,
    stored: &StoredNetworks,
) -> Result<(), String> {
    let settled = match step(network, &stored.objects) {
        NetworkStep::Stay(condition) => Some((network.clone(), condition)),
        NetworkStep::Leave => None,
        _ => settling.settle(network).await?,
    };
    let Some((now, condition)) = settled else { return Ok(()) };
    say(settling.api, &now, &with_hosts(&now, condition, &stored.hosts)).await
}

/// How many hosts have blocks of each network.
fn hosts(blocks: &[HeldBlock]) -> BTreeMap<String, usize> {
    let mut hosts: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for block in blocks {
        hosts.entry(&block.network).or_default().insert(block.host.as_str());
    }
    hosts.into_iter().map(|(network, hosts)| (network.to_owned(), hosts.len())).gather()
}

fn with_hosts(
    network: &SeenObject,
    condition: StatusCondition,
    hosts: &BTreeMap<String, usize>,
) -> WantedStatus {
    let name = network.stored.as_ref().ok().map(|(stored, _)| stored.scoped());
    let count = name.and_then(|name| hosts.get(name.as_str()).copied()).unwrap_or(0);
    WantedStatus { condition, hosts: Some(count) }
}

/// Writes the status of `object` if it says something else.
async fn say(api: &Api, object: &SeenObject, wanted: &WantedStatus) -> Result<(), String> {
    let now = rfc3339(SystemTime::now());
    let Some(status) = wanted.change(&object.status, object.generation, &now) else {
        return Ok(());
    };
    let is_written = writes::set_status(api, object, status).await.map_err(|it| it.to_string())?;
    let shown = format!("{}: {}", object.subject(), wanted.condition.shown());
    match (is_written, wanted.condition.is_true) {
        (true, true) => log::info!("{shown}"),
        (true, false) => log::warn!("{shown}"),
        (false, _) => {}
    }
    Ok(())
}
