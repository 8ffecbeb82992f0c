//! `watch --drops`: the packets that policies of this host deny.

use std::io::{BufRead, BufReader, ErrorKind};
use std::ops::ControlFlow;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant, SystemTime};

use anyhow::Context;
use nix::errno::Errno;
use nix::net::if_::if_indextoname;
use serde_json::{Value, json};

use crate::command::call::{Call, Outcome, SCHEMA, complain};
use crate::command::policy::found;
use crate::command::table::printable;
use crate::flows::reply::DropLine;
use crate::inspect::{agent_socket, pods};
use crate::ipam::{ReadEntries, Store};
use crate::net::time::timestamp;
use crate::netlink::NetlinkError;
use crate::netlink::nflog::{LoggedPacket, PacketLog};
use crate::policy::drops::{Denial, DenialReason, Reporters};
use crate::policy::knowledge::LOG_GROUP;
use crate::policy::view::View;
use crate::settings::Settings;
use crate::settings::exit::{self, Exit};

/// Lines of one second; the packets beyond are counted.
const LINES_PER_SECOND: u32 = 50;

/// Rules and pods are asked for again after this time; sooner, but not more often than each second, for a rule that is
/// not known, and than this where a pod has come or gone: the kernel collects packets as long.
const FRESH: Duration = Duration::from_secs(5);
const SECOND: Duration = Duration::from_secs(1);
const MOMENT: Duration = Duration::from_millis(100);

/// Shows them until the reader has gone.
///
/// # Errors
/// Policies are off, or another program reads the packets.
pub fn run(call: &mut Call<'_>, settings: &Settings, as_json: bool) -> Result<Outcome, Exit> {
    let mut log = DropSource::open(settings)?;
    let (view, note) = found::view(settings)?;
    note.into_iter().for_each(|note| complain(&note));
    let mut known = ReporterCache::new(settings, &view);
    let mut budget = Budget::new(Instant::now());
    loop {
        let mut packets = Vec::new();
        budget.hidden += log.wait(|packet| packets.push(packet))?;
        for packet in packets {
            if let Some(hidden) = budget.next_second(Instant::now())
                && line(call, as_json, &too_many(hidden), json!({ "lost": hidden }))?.is_break()
            {
                return Ok(Outcome::Fine);
            }
            if budget.takes() && show(call, as_json, &mut known, &packet)?.is_break() {
                return Ok(Outcome::Fine);
            }
        }
        if let Some(hidden) = budget.next_second(Instant::now())
            && line(call, as_json, &too_many(hidden), json!({ "lost": hidden }))?.is_break()
        {
            return Ok(Outcome::Fine);
        }
    }
}

/// Where denied packets are read: the kernel gives them to one program, which is the agent while it counts
/// flows.
enum DropSource {
    Kernel(PacketLog),
    Agent(BufReader<UnixStream>, Vec<u8>),
}

impl DropSource {
    fn open(settings: &Settings) -> Result<DropSource, Exit> {
        let error = match PacketLog::open(LOG_GROUP) {
            Ok(log) => return Ok(DropSource::Kernel(log)),
            Err(error) => error,
        };
        let followed = agent_socket::of(settings)
            .and_then(|path| agent_socket::follow(path, "/v1/drops"))
            .map_err(|why| refused(error, &why))?;
        let timeout = followed.get_ref().set_read_timeout(Some(SECOND));
        timeout.context("read from the agent")?;
        Ok(DropSource::Agent(followed, Vec::new()))
    }

    /// As [`PacketLog::wait`].
    fn wait(&mut self, mut receive: impl FnMut(LoggedPacket)) -> Result<u64, Exit> {
        let (stream, line) = match self {
            DropSource::Kernel(log) => {
                let lost = log.wait(SECOND, receive).context("read dropped packets")?;
                return Ok(lost);
            }
            DropSource::Agent(stream, line) => (stream, line),
        };
        match stream.read_until(b'\n', line) {
            Ok(0) => {
                return Err(Exit::new(
                    exit::UNAVAILABLE,
                    "the agent reads no denied packets any more",
                ));
            }
            Ok(_) => {}
            // What has arrived of a line is kept.
            Err(error) if [ErrorKind::WouldBlock, ErrorKind::TimedOut].contains(&error.kind()) => {
                return Ok(0);
            }
            Err(error) => {
                return Err(Exit::new(exit::UNAVAILABLE, format!("read from the agent: {error}")));
            }
        }
        match serde_json::from_slice(&std::mem::take(line)) {
            Ok(DropLine::Packet(packet)) => receive(packet),
            Ok(DropLine::Lost { lost }) => return Ok(lost),
            Err(_) => {}
        }
        Ok(0)
    }
}

/// Rules and pods, as they were read last.
struct ReporterCache<'a> {
    settings: &'a Settings,
    reporters: Reporters,
    read: Instant,
    /// Where pods come and go, and what it had then.
    store: Option<Store>,
    entries: ReadEntries,
}

impl<'a> ReporterCache<'a> {
    fn new(settings: &'a Settings, view: &View) -> ReporterCache<'a> {
        ReporterCache {
            settings,
            reporters: Reporters::new(view),
            read: Instant::now(),
            // Never looked at, so that the first packet asks again.
            entries: ReadEntries::default(),
            store: pods::store(settings, &settings.cni.name).ok(),
        }
    }

    fn refresh(&mut self, prefix: &str) {
        let patience = match &self.store {
            Some(store) if !store.is_as_read(&self.entries) => MOMENT,
            _ if self.reporters.knows(prefix) => FRESH,
            _ => SECOND,
        };
        if self.read.elapsed() < patience {
            return;
        }
        // What comes meanwhile is noticed at the next packet.
        let looked = self.store.as_ref().map(|store| store.contents_after(&mut self.entries));
        looked.and_then(Result::err).into_iter().for_each(|error| log::debug!("{error}"));
        // Without an answer what was known last is still the best.
        if let Ok((view, _)) = found::view(self.settings) {
            self.reporters = Reporters::new(&view);
        }
        self.read = Instant::now();
    }
}

/// How many lines a second may still have.
struct Budget {
    since: Instant,
    shown: u32,
    hidden: u64,
}

impl Budget {
    fn new(now: Instant) -> Budget {
        Budget { since: now, shown: 0, hidden: 0 }
    }

    /// Begins the next second, if it is time; how many packets the last one hid, if any.
    fn next_second(&mut self, now: Instant) -> Option<u64> {
        if now.duration_since(self.since) < SECOND {
            return None;
        }
        let hidden = self.hidden;
        *self = Budget::new(now);
        (hidden > 0).then_some(hidden)
    }

    /// One more is shown, or counted as hidden.
    fn takes(&mut self) -> bool {
        let takes = self.shown < LINES_PER_SECOND;
        self.shown += u32::from(takes);
        self.hidden += u64::from(!takes);
        takes
    }
}

fn show(
    call: &mut Call<'_>,
    as_json: bool,
    known: &mut ReporterCache<'_>,
    logged: &LoggedPacket,
) -> Result<ControlFlow<()>, Exit> {
    known.refresh(&logged.prefix);
    let Some(packet) = logged.packet else {
        let text = format!("a packet without readable addresses: {}", logged.prefix.trim_end());
        return line(call, as_json, &text, json!({}));
    };
    let denial = known.reporters.denial(&logged.prefix, packet);
    line(call, as_json, &denial.to_string(), object(&denial, logged))
}

/// Its time stands before the text.
fn line(
    call: &mut Call<'_>,
    as_json: bool,
    text: &str,
    mut value: Value,
) -> Result<ControlFlow<()>, Exit> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let (at, what) = (timestamp(now), printable(text));
    if !as_json {
        return call.line(&format!("{at}  {what}"));
    }
    value["schema"] = SCHEMA.into();
    value["at"] = at.into();
    value["what"] = what.into();
    call.line(&value.to_string())
}

fn object(denial: &Denial, logged: &LoggedPacket) -> Value {
    let packet = &denial.packet;
    let name = |index: Option<u32>| if_indextoname(index?).ok()?.into_string().ok();
    let mut value = json!({
        "source": packet.source,
        "source_pod": denial.source_pod,
        "destination": packet.destination,
        "destination_pod": denial.destination_pod,
        "protocol": denial.service(),
        "port": packet.ports.map(|(_, port)| port),
        "audit": denial.is_audited(),
        "in": name(logged.input),
        "out": name(logged.output),
    });
    if let DenialReason::Rule(rule) = &denial.reason {
        value["policy"] = rule.origin.to_string().into();
        value["direction"] = rule.direction.name().into();
        value["rule"] = rule.to_string().into();
    }
    value
}

fn too_many(hidden: u64) -> String {
    format!("({hidden} packets came too fast to be shown)")
}

/// The kernel gives the same error to users without the right and for a group in use. `agent`: why they
/// cannot be read from the agent.
fn refused(error: NetlinkError, agent: &str) -> Exit {
    if error.errno() != Some(Errno::EPERM) {
        let why = format!("{:#}", anyhow::Error::from(error));
        return Exit::new(exit::FAILURE, format!("{why}; try: modprobe nfnetlink_log"));
    }
    if !nix::unistd::geteuid().is_root() {
        return Exit::new(exit::UNAVAILABLE, "only root may read dropped packets: try sudo");
    }
    let why = format!(
        "another program reads netlink group {LOG_GROUP} already (an agent with FLOWS=on, another watch \
         --drops, tcpdump -i nflog:{LOG_GROUP}, ulogd), and the kernel has room for one: end it first \
         (/proc/net/netfilter/nfnetlink_log shows the port of its socket, mostly its process ID). From \
         the agent they cannot be read: {agent}"
    );
    Exit::new(exit::UNAVAILABLE, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_has_a_bounded_number_of_lines_and_the_rest_is_counted() {
        let begin = Instant::now();
        let mut budget = Budget::new(begin);
        let shown = (0..10_000).filter(|_| budget.takes()).count();
        assert_eq!(shown, LINES_PER_SECOND as usize);
        assert_eq!(budget.next_second(begin), None);
        assert_eq!(budget.next_second(begin + SECOND), Some(9950));
        assert_eq!(budget.next_second(begin + SECOND * 2), None);
        assert!(budget.takes());
    }
}
