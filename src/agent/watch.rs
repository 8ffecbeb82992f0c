//! The threads that forward events of the kernel and of files as triggers.

use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::thread;
use std::time::Duration;

use anyhow::Context;

use crate::agent::event_filter::EventFilter;
use crate::agent::own_writes::OwnWrites;
use crate::agent::shared_state::{self, SharedState};
use crate::agent::trigger::{self, SETTLE, Scope, Trigger};
use crate::net::IfName;
use crate::netlink::NetlinkProtocol;
use crate::netlink::events::{Events, KernelEvent};
use crate::os::file_watch::{FileEvents, FileWatch};
use crate::os::heartbeat::{self, Heartbeat};
use crate::os::threads;
use crate::settings::exit::Exit;

/// Starts the threads that receive the kernel's events.
pub fn kernel(
    bridge: &IfName,
    own: &Arc<OwnWrites>,
    triggers: &Sender<Trigger>,
    shared: &SharedState,
) -> Result<(), Exit> {
    for (protocol, name) in
        [(NetlinkProtocol::Route, "rtnetlink"), (NetlinkProtocol::Netfilter, "nftables")]
    {
        let events = Events::open(protocol).context("watch the kernel")?;
        let (filter, triggers) = (EventFilter::new(bridge, Arc::clone(own)), triggers.clone());
        let beat = shared.expect(name, shared_state::LIMIT);
        let forward = move || forward_kernel_events(events, protocol, filter, &triggers, &beat);
        threads::spawn(name, forward).context("start a thread")?;
    }
    Ok(())
}

/// Starts the thread that learns of changes by iptables-legacy, and of changes to the files that the agent keeps.
/// Without it both are found at the next full look.
pub fn files(
    triggers: Sender<Trigger>,
    shared: &SharedState,
) -> Result<Option<Arc<FileWatch>>, Exit> {
    let watch = match FileWatch::open() {
        Ok(watch) => Arc::new(watch),
        Err(error) => {
            log::warn!("watch files (inotify): {error}; {LATER}");
            return Ok(None);
        }
    };
    let beat = shared.expect("files", shared_state::LIMIT);
    let shared = Arc::clone(&watch);
    let receive = move || {
        if let Err(error) = forward_file_events(&shared, &triggers, &beat) {
            log::warn!("watch files (inotify): {error}; {LATER}");
            beat.retire();
        }
    };
    threads::spawn("files", receive).context("start a thread")?;
    Ok(Some(watch))
}

/// What becomes of a change that is not received.
const LATER: &str = "runs of iptables-legacy, and changes to the plugin and the CNI configuration, \
                     are noticed at the next full check (RESYNC_INTERVAL)";

/// Hands on what is received, until that is no longer possible.
fn forward_file_events(
    watch: &FileWatch,
    triggers: &Sender<Trigger>,
    beat: &Heartbeat,
) -> std::io::Result<()> {
    loop {
        beat.beat();
        let FileEvents { iptables, files } = watch.wait(heartbeat::EVERY)?;
        if iptables {
            trigger::send(triggers, Trigger::Kernel(Scope::FIREWALL));
        }
        if !files.is_empty() {
            trigger::send(triggers, Trigger::Files(files));
        }
        // Whoever writes without end in a folder that is watched costs a look at it now and then.
        thread::sleep(SETTLE);
    }
}

/// Hands on what is received; a socket that breaks is replaced, and everything looked at.
fn forward_kernel_events(
    mut events: Events,
    protocol: NetlinkProtocol,
    mut filter: EventFilter,
    triggers: &Sender<Trigger>,
    beat: &Heartbeat,
) {
    loop {
        beat.beat();
        match events.wait(filter.patience()).map(|batch| filter.classify(&batch)) {
            Ok(scope) => {
                if !scope.is_empty() {
                    trigger::send(triggers, Trigger::Kernel(scope));
                }
                if let Some(ports) = filter.take_ports() {
                    trigger::send(triggers, Trigger::Ports(ports));
                }
                thread::sleep(REST);
            }
            Err(error) => {
                log::error!("watch the kernel: {error}; restarting the watch");
                thread::sleep(WATCH_AGAIN);
                match Events::open(protocol) {
                    Ok(opened) => events = opened,
                    Err(error) => log::error!("watch the kernel: {error}"),
                }
                trigger::send(triggers, Trigger::Kernel(filter.classify(&[KernelEvent::Lost])));
            }
        }
    }
}

/// Time in which more events come: a pod that comes or goes causes some sixteen, and a wake-up for each takes the
/// processor from the plugin.
const REST: Duration = Duration::from_millis(5);

/// Wait before a broken socket is replaced.
const WATCH_AGAIN: Duration = Duration::from_secs(1);
