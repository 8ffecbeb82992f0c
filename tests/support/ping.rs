//! Reachability by ping: all pairs once, or one pair continuously.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use super::node::{Place, command};
use super::process::Process;
use super::wait::{SOON, eventually};

/// One ping from each place to each address, every source at the same time.
///
/// # Panics
/// Naming every pair without an answer.
pub fn all_reach(sources: &[&dyn Place], addresses: &[IpAddr]) {
    let lost = unreached(sources, addresses);
    let pairs = sources.len() * addresses.len();
    assert!(lost.is_empty(), "{} of {pairs} pairs:\n{}", lost.len(), lost.join("\n"));
}

/// The pairs without an answer, as text.
pub fn unreached(sources: &[&dyn Place], addresses: &[IpAddr]) -> Vec<String> {
    let from = |source: &dyn Place| -> Vec<String> {
        let pings = addresses.iter().filter_map(|address| round_trip(source, *address).err());
        pings.collect()
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            sources.iter().map(|&source| scope.spawn(move || from(source))).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    })
}

/// One ping: how long the answer took, as the sender measured it.
///
/// # Errors
/// The source, the target and the output of the failed ping.
pub fn round_trip(from: &dyn Place, to: IpAddr) -> Result<Duration, String> {
    let ping = from.run(&format!("ping -n -c 1 -W 3 {to}"));
    let no_answer = || format!("{} -> {to}: {}{}", from.label(), ping.stdout, ping.stderr);
    let (_, rest) = ping.stdout.split_once(" time=").ok_or_else(no_answer)?;
    let number = rest.split(' ').next().unwrap_or_default();
    let milliseconds: f64 = number.parse().map_err(|_| no_answer())?;
    Ok(Duration::from_secs_f64(milliseconds / 1000.0))
}

/// Every address of these places.
pub fn addresses(places: &[&dyn Place]) -> Vec<IpAddr> {
    places.iter().flat_map(|place| place.addresses()).collect()
}

/// Of a [`Pinger`]; a busy machine makes it longer.
const INTERVAL: Duration = Duration::from_millis(10);

/// Pings without a pause until it is asked for its report.
pub struct Pinger {
    ping: Process,
    name: String,
    started: Instant,
}

/// How long the answer to the last packet is waited for.
const LAST_ANSWER: Duration = Duration::from_secs(3);

/// Packets of a [`Pinger`]. Those in flight at the stop do not count: on a slow machine these are several.
#[derive(Debug)]
pub struct Report {
    pub name: String,
    pub sent: u32,
    pub lost: Vec<u32>,
    pub took: Duration,
}

impl Pinger {
    /// Returns when the first answer came.
    pub fn start(from: &dyn Place, to: IpAddr) -> Self {
        let seconds = INTERVAL.as_secs_f64();
        let name = format!("{} -> {to}", from.label());
        let started = Instant::now();
        let ping = from.spawn(&mut command(&format!("ping -n -O -i {seconds} {to}")));
        let pinger = Self { ping, name, started };
        eventually(&format!("{}: first answer", pinger.name), SOON, || {
            let log = pinger.ping.log();
            if answered(&log).is_empty() { Err(log) } else { Ok(()) }
        });
        pinger
    }

    /// Packets that have been answered.
    pub fn answers(&self) -> usize {
        answered(&self.ping.log()).len()
    }

    pub fn report(self) -> Report {
        let asked = sequence_numbers(&self.ping.log()).last().copied().unwrap_or(0);
        let end = Instant::now() + LAST_ANSWER;
        while answered(&self.ping.log()).last() < Some(&asked) && Instant::now() < end {
            std::thread::sleep(INTERVAL);
        }
        self.ping.signal(Signal::SIGINT);
        self.ping.wait(SOON);
        let took = self.started.elapsed();
        // The readers may be a line behind the end.
        let log = eventually(&format!("{}: statistics", self.name), SOON, || {
            let log = self.ping.log();
            if log.contains("packets transmitted") { Ok(log) } else { Err(log) }
        });
        let answered = answered(&log);
        let sent = match answered.last() {
            Some(&last) if last >= asked => last,
            _ => sequence_numbers(&log).last().copied().unwrap_or(0),
        };
        // What was sent before there was a way was not lost on it.
        let first = answered.first().copied().unwrap_or(1);
        let lost = (first..=sent).filter(|number| !answered.contains(number)).collect();
        Report { name: self.name, sent, lost, took }
    }
}

impl Report {
    /// # Panics
    /// If a packet was lost, or so few were sent that it was not really pinging.
    pub fn assert_nothing_lost(&self) {
        assert!(self.lost.is_empty(), "{self}: {:?}", self.lost);
        let due = self.took.as_millis() / INTERVAL.as_millis();
        assert!(u128::from(self.sent) > due / 5, "{self}: {due} were due");
    }

    /// The longest time without an answer.
    pub fn longest_gap(&self) -> Duration {
        let mut longest = 0;
        let mut run = 0;
        let mut before = None;
        for &number in &self.lost {
            run = if before == Some(number - 1) { run + 1 } else { 1 };
            longest = longest.max(run);
            before = Some(number);
        }
        (self.took / self.sent.max(1)) * longest
    }
}

impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {} sent, {} lost", self.name, self.sent, self.lost.len())
    }
}

fn answered(log: &str) -> BTreeSet<u32> {
    sequence_numbers_of(log.lines().filter(|line| line.contains("bytes from")))
}

fn sequence_numbers(log: &str) -> BTreeSet<u32> {
    sequence_numbers_of(log.lines())
}

fn sequence_numbers_of<'a>(lines: impl Iterator<Item = &'a str>) -> BTreeSet<u32> {
    let number = |line: &str| {
        let digits = line.split_once("icmp_seq=")?.1;
        digits.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
    };
    lines.filter_map(number).collect()
}
