//! Asks every other host's gateway, again and again, whether pods' packets arrive: on a thread of
//! its own, which the loop neither waits for nor learns of.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::agent::active_problems::ProblemSource;
use crate::agent::reachability::{enforcement, paths};
use crate::agent::shared_state::SharedState;
use crate::checks::probe::{ProbeStats, Schedule};
use crate::lease::Peers;
use crate::lease::publish::{self, Publisher};
use crate::lease::records::ReachabilityReport;
use crate::net::gather::Gather;
use crate::net::subnet::gateway;
use crate::net::{Object, Problem, ProblemKind};
use crate::netlink::rtnl::Rtnl;
use crate::os::echo::{self, Echo};
use crate::os::echoes::{EchoOutcome, Echoes};
use crate::os::heartbeat::Heartbeat;
use crate::os::threads;

/// How long an answer is waited for.
pub const PATIENCE: Duration = Duration::from_secs(1);

/// So often it looks whether there are other hosts now.
const LOOK: Duration = Duration::from_secs(2);

/// An outage of more hosts is not logged host by host.
const LOGGED: usize = 20;

/// Wait from the first observation to the first reachability report: more hosts answer meanwhile.
const SETTLE: Duration = Duration::from_secs(5);

/// The thread must turn once in so much time.
const LIMIT: Duration = Duration::from_secs(30);

/// The addresses to ask: the gateway of each pod subnet of each other host.
pub fn targets(peers: &Peers) -> BTreeSet<IpAddr> {
    let subnets = peers.by_name.values().flat_map(|peer| peer.subnets.iter().copied());
    subnets.map(gateway).gather()
}

/// Starts the thread. It ends with the process.
///
/// # Errors
/// There can be no more threads.
pub fn spawn(shared: &Arc<SharedState>) -> std::io::Result<()> {
    let beat = shared.expect("probe", LIMIT);
    let shared = Arc::clone(shared);
    let work = move || {
        let why = match Rtnl::open() {
            Ok(rtnl) => Prober::new(Arc::clone(&shared), rtnl).serve(&beat).to_string(),
            Err(error) => error.to_string(),
        };
        end(&shared, &why);
        beat.retire();
    };
    threads::spawn("probe", work)?;
    Ok(())
}

/// What was seen of other hosts is no longer known.
fn end(shared: &SharedState, why: &str) {
    shared.probes.lock().clear();
    let what = format!("other hosts are not probed: whether they are reached is not known: {why}");
    let ended = Problem::new(ProblemKind::ProbesEnded, Object::named("probes"), what)
        .with_fix("systemctl cat humanz-agent # give it CAP_NET_RAW, as its unit and manifests do, and restart it");
    shared.problems.set(ProblemSource::Probes, Some(ended));
}

struct Prober {
    shared: Arc<SharedState>,
    rtnl: Rtnl,
    echoes: Echoes,
    schedule: Schedule,
    peers: Option<Arc<Peers>>,
    interval: Option<Duration>,
    start: Instant,
    look_at: Instant,
    publisher: Publisher,
    /// Time of the next reachability report; `None` before the first observation.
    publish_at: Option<Instant>,
}

impl Prober {
    fn new(shared: Arc<SharedState>, rtnl: Rtnl) -> Prober {
        let now = Instant::now();
        Prober {
            publisher: Publisher::default(),
            publish_at: None,
            shared,
            rtnl,
            echoes: Echoes::default(),
            schedule: Schedule::default(),
            peers: None,
            interval: None,
            start: now,
            look_at: now,
        }
    }

    /// Goes on until probing is not possible at all; gives why.
    fn serve(&mut self, beat: &Heartbeat) -> io::Error {
        // Later EPERM comes from a firewall or a route of this host, and may pass.
        if let Err(error) = Echo::open(Ipv4Addr::LOCALHOST.into(), None) {
            return error;
        }
        loop {
            beat.beat();
            if let Err(error) = self.turn() {
                return error;
            }
        }
    }

    fn turn(&mut self) -> io::Result<()> {
        let now = Instant::now();
        if now >= self.look_at {
            self.look_at = now + LOOK;
            self.take_snapshot();
            self.publish(now);
        }
        while let Some(target) = self.schedule.pop(self.start.elapsed()) {
            self.ask(target);
        }
        let due = self.schedule.next().map(|next| self.start + next);
        let until = due.map_or(self.look_at, |due| due.min(self.look_at));
        for EchoOutcome { to, bytes, time } in self.echoes.wait(until, PATIENCE)? {
            self.note(to, bytes, time);
        }
        Ok(())
    }

    /// Takes over the hosts to probe and the interval.
    fn take_snapshot(&mut self) {
        let Some(known) = self.shared.snapshot() else { return };
        let same = match (&known.peers, &self.peers) {
            (Some(now), Some(before)) => Arc::ptr_eq(now, before),
            (None, None) => true,
            _ => false,
        };
        if same && self.interval == known.settings.probe {
            return;
        }
        (self.peers, self.interval) = (known.peers.clone(), known.settings.probe);
        let wanted = self.peers.as_deref().filter(|_| self.interval.is_some());
        let targets = wanted.map(targets).unwrap_or_default();
        let interval = self.interval.unwrap_or_default();
        self.schedule.set(&targets, interval, &self.shared.name, self.start.elapsed());
        self.shared.probes.lock().retain(|target, _| targets.contains(target));
    }

    /// Publishes the reachability report, if it is due.
    fn publish(&mut self, now: Instant) {
        let hosts = 1 + self.peers.iter().map(|peers| peers.by_name.len()).sum::<usize>();
        if self.publish_at.is_some_and(|at| now < at) {
            return;
        }
        let at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let paths = self.peers.as_deref().map(|peers| paths(peers, &self.shared.probes.all()));
        let report = paths.and_then(|paths| ReachabilityReport::new(&paths, at));
        let problems = self.shared.problems.all();
        let known = self.shared.snapshot();
        let policies = known.and_then(|known| enforcement(&known, &problems));
        let report = report.map(|it| it.with_problems(&problems).with_policies(policies));
        if self.publish_at.is_none() {
            let first = now + SETTLE + publish::offset(&self.shared.name, hosts);
            self.publish_at = report.map(|_| first);
            return;
        }
        self.publish_at =
            Some(now + publish::interval(hosts, self.interval.unwrap_or(Duration::MAX)));
        if self.publisher.is_due(&report, hosts) {
            self.shared.reports.publish(report.as_ref(), publish::spread(hosts));
        }
    }

    fn ask(&mut self, target: IpAddr) {
        let seen = self.shared.probes.of(target).unwrap_or_default();
        let large = match seen.wants_large() {
            true => self.rtnl.path_mtu(target).ok().flatten(),
            false => None,
        };
        let large = large.filter(|bytes| *bytes > echo::SMALLEST);
        if let Err(error) = self.echoes.send(target, large.unwrap_or(echo::SMALLEST)) {
            log::debug!("probe {target}: {error}");
            self.note(target, echo::SMALLEST, None);
        } else if large.is_some() {
            self.shared.probes.lock().entry(target).or_default().expect_large();
        }
    }

    fn note(&self, target: IpAddr, bytes: u32, time: Option<Duration>) {
        let mut all = self.shared.probes.lock();
        let seen = all.entry(target).or_default();
        let before = *seen;
        seen.note(bytes, echo::SMALLEST, time);
        let has_changed =
            (before.reachable(), before.black_hole()) != (seen.reachable(), seen.black_hole());
        if has_changed {
            seen.since = Some(SystemTime::now());
        }
        let now = *seen;
        if !has_changed {
            return;
        }
        let lost = all.values().filter(|seen| seen.reachable() == Some(false));
        let many = lost.take(LOGGED + 1).count() > LOGGED;
        drop(all);
        if !many {
            self.log(target, &before, &now);
        }
    }

    /// Says what changed, but for an outage of many: then this host is more likely cut off.
    fn log(&self, target: IpAddr, before: &ProbeStats, now: &ProbeStats) {
        let peers = self.peers.iter().flat_map(|peers| peers.by_name.iter());
        let mut owners = peers.filter(|(_, peer)| peer.subnets.iter().any(|s| s.contains(target)));
        let mut owner =
            || owners.next().map_or_else(|| "?".to_owned(), |(name, _)| name.to_string());
        match (before.reachable(), now.reachable()) {
            (Some(false), Some(true)) => log::info!("host {} answers again ({target})", owner()),
            (Some(true) | None, Some(false)) => log::warn!(
                "host {} does not answer echoes to {target}; humanz-agent probe # tests this now",
                owner()
            ),
            _ => {}
        }
        if let (None, Some(bytes)) = (before.black_hole(), now.black_hole()) {
            log::warn!(
                "packets of {bytes} bytes do not reach host {} ({target}), smaller ones do; set MTU \
                 lower, or let ICMP through between hosts",
                owner()
            );
        }
    }
}
