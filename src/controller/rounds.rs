//! Follows etcd and the API, and looks at every custom resource whenever one of them changed.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

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
use crate::net::time::rfc3339;
use crate::sources::{read_stored, retry};

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
    let mut due: Option<Instant> = None;
    loop {
        tokio::select! {
            Some((resource, heard)) = followed.heard.recv() => {
                if seen.take(resource, heard) {
                    let soon = Instant::now() + COALESCE;
                    due = Some(due.map_or(soon, |due| due.min(soon)));
                }
                working.follows(seen.trouble().map(ToString::to_string), seen.is_whole());
            }
            () = changed.notified() => {
                due.get_or_insert(Instant::now() + COALESCE_ETCD);
            }
            () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                due = None;
                if !seen.is_whole() {
                    continue;
                }
                let done = Round { start, etcd, seen: &seen }.run().await;
                failures = if done.is_ok() { 0 } else { failures + 1 };
                if done.is_err() {
                    due = Some(Instant::now() + retry(failures));
                }
                working.writes(done.err());
            }
        }
    }
}

/// Says that something of policies or blocks has changed, and after each time in which that could not be heard.
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

impl Round<'_> {
    /// # Errors
    /// etcd or the API does not answer or refuses; what could be done was done.
    async fn run(&self) -> Result<(), String> {
        let connection = Api::open(&self.start.api).map_err(api)?;
        let mut failed = Vec::new();
        let custom = Arc::new(self.seen.custom());
        let networks: Vec<&SeenObject> = self.seen.of(Resource::Networks).collect();
        if !networks.is_empty() {
            let custom = Arc::clone(&custom);
            let settling =
                Settling { start: self.start, etcd: self.etcd, api: &connection, custom };
            self.networks(&settling, &networks, &mut failed).await?;
        }
        let others = Resource::OWN.into_iter().filter(|it| *it != Resource::Networks);
        for object in others.flat_map(|it| self.seen.of(it)).filter(|it| !it.is_deleting) {
            let wanted = WantedStatus { condition: accepted(object, &custom), hosts: None };
            say(&connection, object, &wanted, &mut failed).await;
            stop_after(&failed)?;
        }
        failed.pop().map_or(Ok(()), Err)
    }

    async fn networks(
        &self,
        settling: &Settling<'_>,
        networks: &[&SeenObject],
        failed: &mut Vec<String>,
    ) -> Result<(), String> {
        let range = self.start.roots.policies_range();
        let (stored, _) = read_stored(self.etcd, &range).await.map_err(etcd)?;
        let (blocks, _) = self.etcd.held_blocks().await.map_err(etcd)?;
        let (there, hosts) = (stored.objects(&range).0, hosts(&blocks));
        for network in networks {
            let settled = match step(network, &there) {
                NetworkStep::Stay(condition) => Ok(Some(((*network).clone(), condition))),
                NetworkStep::Leave => Ok(None),
                _ => settling.settle(network).await,
            };
            match settled {
                Ok(Some((now, condition))) => {
                    say(settling.api, &now, &with_hosts(&now, condition, &hosts), failed).await;
                }
                Ok(None) => {}
                Err(why) => failed.push(why),
            }
            stop_after(failed)?;
        }
        Ok(())
    }
}

/// The hosts that have blocks of each network, by what they took them for.
fn hosts(blocks: &[HeldBlock]) -> BTreeMap<&str, BTreeSet<&str>> {
    let mut hosts: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for block in blocks {
        hosts.entry(&block.network).or_default().insert(block.host.as_str());
    }
    hosts
}

fn with_hosts(
    network: &SeenObject,
    condition: StatusCondition,
    hosts: &BTreeMap<&str, BTreeSet<&str>>,
) -> WantedStatus {
    let name = network.stored.as_ref().ok().map(|(stored, _)| stored.scoped());
    let count = name.and_then(|name| hosts.get(name.as_str())).map_or(0, BTreeSet::len);
    WantedStatus { condition, hosts: Some(count) }
}

/// Writes the status of `object` if it says something else.
async fn say(api: &Api, object: &SeenObject, wanted: &WantedStatus, failed: &mut Vec<String>) {
    let now = rfc3339(SystemTime::now());
    let Some(status) = wanted.change(&object.status, object.generation, &now) else { return };
    match writes::set_status(api, object, status).await {
        Ok(true) if wanted.condition.is_true => {
            log::info!("{}: {}", object.subject(), wanted.condition.shown());
        }
        Ok(true) => log::warn!("{}: {}", object.subject(), wanted.condition.shown()),
        Ok(false) => {}
        Err(error) => failed.push(error.to_string()),
    }
}

fn stop_after(failed: &[String]) -> Result<(), String> {
    match failed {
        [.., last] if failed.len() >= FAILURES => Err(last.clone()),
        _ => Ok(()),
    }
}
