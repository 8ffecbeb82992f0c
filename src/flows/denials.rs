//! The thread that learns of packets that policies deny.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::flows::pod_names::PodNames;
use crate::flows::store::{FlowSource, FlowStore, Views};
use crate::netlink::connections::as_opened;
use crate::netlink::nflog::{LoggedPacket, PacketLog};
use crate::netlink::packet::Packet;
use crate::netlink::{NetlinkError, NetlinkProtocol, NetlinkSocket};
use crate::policy::knowledge::LOG_GROUP;

const SECOND: Duration = Duration::from_secs(1);

/// Rest after a batch, which the kernel has collected for 100 ms.
const BATCH: Duration = Duration::from_millis(20);

/// Before another attempt to read the group: another program may have it.
const RETRY: u32 = 5;

/// Attempts in [`SECOND`]s before a fault is shown: a process that is being started (between fork and exec) holds
/// sockets open that this one has closed, the former reader's too.
const ATTEMPTS: u32 = 3;

/// Counts until `stop`.
pub fn record(store: &Arc<FlowStore>, views: &Views, stop: &AtomicBool) {
    let _turn = store.turn(FlowSource::Denials);
    let mut failed = 0;
    while !stop.load(Ordering::Relaxed) {
        let opened = PacketLog::open(LOG_GROUP).inspect(|_| failed = 0);
        let Err(error) = opened.and_then(|log| receive(log, store, views, stop)) else { return };
        failed += 1;
        if failed < ATTEMPTS {
            thread::sleep(SECOND);
            continue;
        }
        let why = format!(
            "denied packets are not reported: netlink group {LOG_GROUP} cannot be read, \
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

fn receive(
    mut log: PacketLog,
    store: &FlowStore,
    views: &Views,
    stop: &AtomicBool,
) -> Result<(), NetlinkError> {
    store.set_fault(FlowSource::Denials, None);
    let lookup = NetlinkSocket::open(NetlinkProtocol::Netfilter)?;
    let mut names = PodNames::default();
    let mut rested = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        let mut packets = Vec::new();
        store.lose_reports(log.wait(SECOND, |packet| packets.push(packet))?);
        if packets.is_empty() {
            continue;
        }
        turn_answers(&lookup, &mut packets);
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

/// A denied answer is one of the connection that was opened: its own direction would have another port for each
/// connection.
fn turn_answers(lookup: &NetlinkSocket, packets: &mut [LoggedPacket]) {
    let mut known: HashMap<Packet, Packet> = HashMap::new();
    for packet in packets.iter_mut().filter_map(|logged| logged.packet.as_mut()) {
        let opened = known.entry(*packet).or_insert_with(|| {
            let failed = |error: &_| log::debug!("flows: {error}");
            as_opened(lookup, *packet).inspect_err(failed).unwrap_or(*packet)
        });
        *packet = *opened;
    }
}
