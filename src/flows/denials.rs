//! The thread that hears of packets that policies deny.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::flows::pod_names::PodNames;
use crate::flows::store::{FlowSource, FlowStore, Views};
use crate::netlink::NetlinkError;
use crate::netlink::nflog::PacketLog;
use crate::policy::local::LOG_GROUP;

const SECOND: Duration = Duration::from_secs(1);

/// Rest after a batch, which the kernel has collected for 100 ms.
const BATCH: Duration = Duration::from_millis(20);

/// Before another attempt to read the group: another program may have it.
const RETRY: u32 = 5;

/// Counts until `stop`.
pub fn record(store: &Arc<FlowStore>, views: &Views, stop: &AtomicBool) {
    let _turn = store.turn(FlowSource::Denials);
    while !stop.load(Ordering::Relaxed) {
        if let Err(error) = hear(store, views, stop) {
            let why = format!(
                "denied packets are not heard of: netlink group {LOG_GROUP} cannot be read, \
                 which has one reader at a time: {error}"
            );
            store.set_fault(FlowSource::Denials, Some(why));
            for _ in 0..RETRY {
                if !stop.load(Ordering::Relaxed) {
                    thread::sleep(SECOND);
                }
            }
        }
    }
}

fn hear(store: &FlowStore, views: &Views, stop: &AtomicBool) -> Result<(), NetlinkError> {
    let mut log = PacketLog::open(LOG_GROUP)?;
    store.set_fault(FlowSource::Denials, None);
    let mut names = PodNames::default();
    let mut rested = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        let mut packets = Vec::new();
        store.lose_reports(log.wait(SECOND, |packet| packets.push(packet))?);
        if packets.is_empty() {
            continue;
        }
        names.update(views());
        let reported = packets
            .iter()
            .filter_map(|logged| names.reported(logged.packet.as_ref()?, &logged.prefix));
        store.count(reported);
        packets.iter().for_each(|packet| store.publish(packet));
        thread::sleep(BATCH.saturating_sub(rested.elapsed()));
        rested = Instant::now();
    }
    Ok(())
}
