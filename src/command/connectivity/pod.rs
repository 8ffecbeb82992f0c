//! A pod of this program: a network namespace of its own that the plugins attach, for as long as it is held.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nix::sched::{CloneFlags, unshare};
use serde_json::Value;

use crate::command::connectivity::runtime::{RuntimeNetwork, TestContainer};
use crate::inspect::pods::{self, Life};
use crate::ipam::TEST_CONTAINER;
use crate::net::{Family, IfName, PerFamily};
use crate::netlink::link::{self, LinkChange, LinkRef};
use crate::netlink::rtnl::Rtnl;
use crate::os::netns::NetNs;
use crate::os::threads;
use crate::settings::Settings;
use crate::settings::exit::{self, Exit};

/// Where each of them answers by TCP.
pub const PORT: u16 = 8471;

/// The answer.
const GREETING: &[u8] = b"humanz\n";

/// What is that old and has no interface was left by a run that was killed.
const OLD: Duration = Duration::from_secs(5);

/// It is detached when it is dropped.
pub struct TestPod<'a> {
    network: &'a RuntimeNetwork,
    container: TestContainer,
    result: Value,
    pub netns: NetNs,
    pub addresses: PerFamily<IpAddr>,
    pub gateways: PerFamily<IpAddr>,
}

impl<'a> TestPod<'a> {
    /// Number `number` of this process. `host_port` leads to [`PORT`].
    ///
    /// # Errors
    /// No namespace can be made, or a plugin refuses the pod.
    pub fn add(
        network: &'a RuntimeNetwork,
        number: usize,
        host_port: Option<u16>,
    ) -> Result<TestPod<'a>, Exit> {
        let failed =
            |why: String| Exit::new(exit::FAILURE, format!("a new pod cannot be attached: {why}"));
        let netns =
            fresh().map_err(|error| failed(format!("make a network namespace: {error}")))?;
        let own = std::process::id();
        let container = TestContainer {
            id: format!("{TEST_CONTAINER}{own}-{number}"),
            netns: format!("/proc/{own}/fd/{}", netns.file().as_raw_fd()),
            host_port: host_port.map(|port| (port, PORT)),
        };
        let result = network.add(&container);
        // From here on it is detached in any case: a plugin that fails may leave a part.
        let mut pod = TestPod {
            network,
            container,
            result: result.as_ref().cloned().unwrap_or_default(),
            netns,
            addresses: PerFamily::default(),
            gateways: PerFamily::default(),
        };
        result.map_err(failed)?;
        pod.take_addresses();
        pod.listen().map_err(|error| failed(format!("listen in it: {error}")))?;
        Ok(pod)
    }

    fn take_addresses(&mut self) {
        for ip in self.result["ips"].as_array().into_iter().flatten() {
            let address = ip["address"].as_str().and_then(|text| text.split('/').next());
            let Some(address) = address.and_then(|text| text.parse().ok()) else { continue };
            let family = Family::of(address);
            let gateway = ip["gateway"].as_str().and_then(|text| text.parse().ok());
            if self.addresses.get(family).is_none() {
                self.addresses.set(family, Some(address));
                self.gateways.set(family, gateway);
            }
        }
    }

    /// Answers on [`PORT`] of each address until the process ends.
    fn listen(&self) -> io::Result<()> {
        for address in self.addresses.iter().copied() {
            let listen = || TcpListener::bind(SocketAddr::new(address, PORT));
            let listener = self.netns.run(listen).map_err(io::Error::other)??;
            threads::spawn("answer", move || {
                for mut client in listener.incoming().flatten() {
                    // One that has gone has its answer already, or wants none.
                    let _gone = client.write_all(GREETING);
                }
            })?;
        }
        Ok(())
    }
}

impl Drop for TestPod<'_> {
    fn drop(&mut self) {
        if let Err(why) = self.network.del(&self.container, &self.result) {
            log::error!("the pod {} is not detached: {why}", self.container.id);
        }
    }
}

/// The time to connect with a [`TestPod`] and to read its answer.
///
/// # Errors
/// No connection, or the answer of somebody else.
pub fn greeted(to: SocketAddr, patience: Duration) -> io::Result<Duration> {
    let begun = Instant::now();
    let mut stream = TcpStream::connect_timeout(&to, patience)?;
    stream.set_read_timeout(Some(patience))?;
    let mut answer = [0; GREETING.len()];
    stream.read_exact(&mut answer)?;
    match answer == GREETING {
        true => Ok(begun.elapsed()),
        false => Err(io::Error::other("another program answers there")),
    }
}

/// A network namespace with its loopback device up; nothing but the returned file holds it.
fn fresh() -> io::Result<NetNs> {
    let make = || {
        unshare(CloneFlags::CLONE_NEWNET)?;
        let netns = NetNs::current().map_err(io::Error::other)?;
        let lo: IfName = "lo".parse().map_err(io::Error::other)?;
        let up = LinkChange { up: true, ..LinkChange::default() };
        let rtnl = Rtnl::open().map_err(io::Error::other)?;
        rtnl.apply(&[link::change(LinkRef::Name(&lo), &up)]).map_err(io::Error::other)?;
        Ok(netns)
    };
    thread::scope(|scope| {
        let thread = thread::Builder::new().spawn_scoped(scope, make)?;
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Detaches what runs that were killed have left.
///
/// # Errors
/// The kernel's.
pub fn remove_stale(network: &RuntimeNetwork, settings: &Settings) -> Result<(), Exit> {
    let links = pods::links()?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let (all, _) = pods::attachments(settings);
    for pod in all.iter().filter(|pod| pod.network == network.name()) {
        let entry = &pod.entry;
        let is_old = now.saturating_sub(Duration::from_secs(entry.time_secs)) > OLD;
        let is_ours = entry.container_id.starts_with(TEST_CONTAINER);
        if is_ours && is_old && Life::of(entry, &pod.network, &links) != Life::Attached {
            let id = entry.container_id.clone();
            let container = TestContainer { id, netns: String::new(), host_port: None };
            let removed = network.del(&container, &Value::Null);
            removed.map_err(|why| Exit::new(exit::FAILURE, why))?;
        }
    }
    Ok(())
}
