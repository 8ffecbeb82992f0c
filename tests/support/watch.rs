//! Events in a network namespace, with timestamps: `ip monitor` and `nft monitor`.

use std::time::{Duration, Instant};

use super::node::{Place, command};
use super::process::Process;
use super::wait::{SOON, eventually};

pub struct Watch {
    monitor: Process,
    label: String,
}

impl Watch {
    /// `objects` as `ip monitor` names them: `route`, `address`, `link`.
    pub fn start(place: &dyn Place, objects: &str) -> Self {
        Self::listen(place, &format!("ip -o monitor {objects}"), 0)
    }

    /// Links, addresses and routes.
    pub fn links(place: &dyn Place) -> Self {
        Self::start(place, "link address route")
    }

    /// Entries of bridges' and tunnels' tables of MACs.
    pub fn fdb(place: &dyn Place) -> Self {
        Self::listen(place, "bridge -o monitor fdb", 0)
    }

    /// nftables.
    pub fn firewall(place: &dyn Place) -> Self {
        Self::listen(place, "nft monitor", 12)
    }

    /// `protocol`: of the netlink sockets that `line` listens with.
    fn listen(place: &dyn Place, line: &str, protocol: u8) -> Self {
        let label = place.label();
        let before = listeners(place, protocol);
        let monitor = place.spawn(&mut command(line));
        // It says nothing when it begins to listen, but its socket shows.
        eventually(&format!("{label}: {line} listens"), SOON, || {
            let now = listeners(place, protocol);
            if now > before { Ok(()) } else { Err(format!("{now} sockets")) }
        });
        Self { monitor, label }
    }

    /// All lines so far.
    pub fn log(&self) -> String {
        self.monitor.log()
    }

    /// The first line since `event` that contains all of `words`: how long after `event` it came.
    ///
    /// A removal is a line that begins with `Deleted`: it must be among the words to count.
    pub fn after(&self, event: Instant, words: &[&str]) -> Duration {
        let removal = words.contains(&"Deleted");
        eventually(&format!("{}: {words:?} in the kernel", self.label), SOON, || {
            let lines = self.monitor.lines();
            let mut since = lines.iter().filter(|(at, _)| *at >= event);
            let hit = since.find(|(_, line)| {
                line.contains("Deleted") == removal && words.iter().all(|word| line.contains(word))
            });
            hit.map(|(at, _)| at.duration_since(event)).ok_or_else(|| self.monitor.log())
        })
    }
}

/// Netlink sockets that listen to some group in the place's network namespace.
fn listeners(place: &dyn Place, protocol: u8) -> usize {
    let table = place.run("cat /proc/self/net/netlink").ok();
    let listens = |line: &&str| {
        let columns: Vec<_> = line.split_whitespace().collect();
        columns.len() > 3 && columns[1] == protocol.to_string() && columns[3] != "00000000"
    };
    table.lines().skip(1).filter(listens).count()
}
