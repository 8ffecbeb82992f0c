//! What happens in a network namespace, with the time: `ip monitor`.

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
        let label = place.label();
        let before = netlink_sockets(place);
        let monitor = place.spawn(&mut command(&format!("ip -o monitor {objects}")));
        // It says nothing when it begins to listen, but its socket shows.
        eventually(&format!("{label}: ip monitor listens"), SOON, || {
            let now = netlink_sockets(place);
            if now > before { Ok(()) } else { Err(format!("{now} sockets")) }
        });
        Self { monitor, label }
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

/// Rtnetlink sockets that listen to some group in the place's network namespace.
fn netlink_sockets(place: &dyn Place) -> usize {
    let table = place.run("cat /proc/self/net/netlink").ok();
    let listening = |line: &&str| {
        let columns: Vec<_> = line.split_whitespace().collect();
        columns.len() > 3 && columns[1] == "0" && columns[3] != "00000000"
    };
    table.lines().skip(1).filter(listening).count()
}
