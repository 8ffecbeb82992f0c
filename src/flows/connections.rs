//! The thread that learns of new connections.

use std::cell::RefCell;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use neli::types::Buffer;
use nix::errno::Errno;

use crate::flows::pod_names::PodNames;
use crate::flows::store::{FlowSource, FlowStore, Views};
use crate::flows::table::{FlowKey, FlowTable};
use crate::net::Family;
use crate::netlink::connections::{self, Connection};
use crate::netlink::{Monitor, NetlinkError, NetlinkProtocol, Reply};

/// NFNLGRP_CONNTRACK_NEW of linux/netfilter/nfnetlink.h.
const GROUPS: [u32; 1] = [1];

/// NFNL_SUBSYS_CTNETLINK in the upper byte, IPCTNL_MSG_CT_NEW.
const NEW: u16 = 1 << 8;

/// Whether the kernel makes events at all.
const EVENTS: &str = "/proc/sys/net/netfilter/nf_conntrack_events";

/// Longest wait, and how often what is old is looked for.
const SECOND: Duration = Duration::from_secs(1);

/// Rest after a batch: events of the next one collect in the socket, which has room for some 10,000.
const BATCH: Duration = Duration::from_millis(20);

/// Events of one batch, at most.
const BATCH_LIMIT: usize = 4096;

/// Listed flows that are noted while others wait.
const LISTED: usize = 512;

/// Time between two lists of all connections, after overruns and where there are no events.
const LIST: Duration = Duration::from_secs(10);

const EXPIRE: Duration = Duration::from_secs(60);

/// Counts until `stop`.
pub fn record(store: &Arc<FlowStore>, views: &Views, stop: &AtomicBool) {
    let _turn = store.turn(FlowSource::Connections);
    let mut recorder = ConnectionRecorder {
        store,
        views,
        stop,
        names: PodNames::default(),
        list_at: Instant::now(),
        is_stale: true,
        expire_at: Instant::now() + EXPIRE,
    };
    while !stop.load(Ordering::Relaxed) {
        let Err(error) = recorder.receive() else { return };
        let why = format!("events of connections cannot be read: {error}");
        store.set_fault(FlowSource::Connections, Some(why));
        recorder.is_stale = true;
        recorder.list();
        recorder.rest(LIST);
    }
}

struct ConnectionRecorder<'a> {
    store: &'a FlowStore,
    views: &'a Views,
    stop: &'a AtomicBool,
    names: PodNames,
    /// Not listed before that.
    list_at: Instant,
    /// Connections may have been missed.
    is_stale: bool,
    expire_at: Instant,
}

impl ConnectionRecorder<'_> {
    /// Hears events until it is stopped, or the socket fails.
    fn receive(&mut self) -> Result<(), NetlinkError> {
        let mut monitor = Monitor::open(NetlinkProtocol::Netfilter, &GROUPS)?;
        self.store.set_fault(FlowSource::Connections, None);
        let mut batch = Vec::new();
        while !self.stop.load(Ordering::Relaxed) {
            self.look_for_events();
            self.list();
            self.fill(&mut monitor, &mut batch)?;
            if batch.is_empty() {
                continue;
            }
            self.names.update((self.views)());
            let names = &self.names;
            self.store.count(batch.drain(..).filter_map(|it| names.flow(&it)));
            thread::sleep(BATCH);
        }
        Ok(())
    }

    /// All events there are, after a wait for the first one.
    fn fill(
        &mut self,
        monitor: &mut Monitor,
        batch: &mut Vec<Connection>,
    ) -> Result<(), NetlinkError> {
        let mut patience = SECOND;
        loop {
            let before = batch.len();
            let received = monitor.wait(patience, |reply| batch.extend(began(reply)));
            match received {
                Err(error) if error.errno() == Some(Errno::ENOBUFS) => {
                    self.store.overrun();
                    self.is_stale = true;
                }
                received => received?,
            }
            if batch.len() == before || batch.len() >= BATCH_LIMIT {
                return Ok(());
            }
            patience = Duration::ZERO;
        }
    }

    /// Where the kernel makes no events, connections are listed now and then.
    fn look_for_events(&mut self) {
        let is_off = fs::read(EVENTS).is_ok_and(|text| text.trim_ascii() == b"0");
        let why = "the kernel makes no events (sysctl net.netfilter.nf_conntrack_events=0): \
                   short connections are missed";
        self.store.set_fault(FlowSource::Connections, is_off.then(|| why.to_owned()));
        self.is_stale |= is_off;
        if self.expire_at <= Instant::now() {
            self.expire_at = Instant::now() + EXPIRE;
            self.store.expire();
        }
    }

    /// Notes the connections there are, if some may have been missed and it is time to.
    fn list(&mut self) {
        if !self.is_stale || self.list_at > Instant::now() {
            return;
        }
        self.list_at = Instant::now() + LIST;
        self.names.update((self.views)());
        if self.names.is_empty() {
            self.list_at = Instant::now() + SECOND;
            return;
        }
        for family in Family::BOTH {
            match listed(family, &self.names) {
                Ok(found) => found.chunks(LISTED).for_each(|keys| self.store.see(keys)),
                Err(error) => {
                    log::debug!("flows: list connections: {error}");
                    return;
                }
            }
        }
        self.is_stale = false;
    }

    fn rest(&self, time: Duration) {
        let until = Instant::now() + time;
        while !self.stop.load(Ordering::Relaxed) && Instant::now() < until {
            thread::sleep(SECOND.min(time));
        }
    }
}

/// The flows of the connections there are, as many as a table has room for: connections themselves may be
/// a million.
fn listed(family: Family, names: &PodNames) -> Result<Vec<FlowKey>, NetlinkError> {
    let (found, now) = (RefCell::new(FlowTable::default()), SystemTime::now());
    let keep_none = |connection: &Connection| {
        names.flow(connection).into_iter().for_each(|key| found.borrow_mut().see(key, now));
        false
    };
    connections::of_family(family, keep_none)?;
    let found = found.into_inner();
    Ok(found.flows().map(|(key, _)| key.clone()).collect())
}

/// The connection that an event says has begun.
fn began(reply: &Reply<'_>) -> Option<Connection> {
    let family = match i32::from(*reply.body().first()?) {
        nix::libc::AF_INET => Family::V4,
        nix::libc::AF_INET6 => Family::V6,
        _ => return None,
    };
    if reply.kind != NEW {
        return None;
    }
    let (_, flow) = reply.parse::<Buffer>(4).ok()?;
    connections::connection(family, &flow).ok()?
}
