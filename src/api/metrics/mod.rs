//! Everything that can be measured, as Prometheus reads it.

pub mod page;
mod policies;

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use crate::cni::error::code;
use crate::ipam::calls;
use crate::net::gather::Gather;
use crate::net::{Family, ProblemKind};
use crate::netlink::NetlinkError;
use crate::netlink::rtnl::Rtnl;
use crate::nft::Nft;
use crate::os::usage::Usage;
use crate::plan::firewall::encryption::{self as guard, ENCRYPTION_TABLE};
use crate::plan::firewall::tunnels::{FOREIGN, FROM_POD, TUNNELS_TABLE};
use crate::plan::guard::{DropReason, TABLE};
use crate::plan::pod::pod_or_container;
use crate::settings::Settings;

use crate::agent::active_problems::ProblemSource;
use crate::agent::counters::{BOUNDS_SECONDS, Counters, Durations, KINDS};
use crate::agent::readiness::not_ready;
use crate::agent::shared_state::SharedState;
use crate::agent::snapshot::AgentSnapshot;
use crate::api::encryption::{handshake_age, peers as peers_of_device};
use crate::api::metrics::page::{Page, Samples};
use crate::api::problems::problems;
use crate::inspect::pool_use::{Use, addresses};

/// The page of metrics of this moment. What cannot be measured now is not on it.
pub fn metrics(shared: &SharedState) -> String {
    let mut page = Page::default();
    let known = shared.snapshot();
    process(&mut page, shared);
    loops(&mut page, shared);
    let counters = shared.counters().clone();
    passes(&mut page, &counters);
    if let Some(known) = known.as_deref() {
        page.gauge(
            "humanz_ready",
            "Whether plugin and CNI configuration are there and all behind them was made.",
            f64::from(not_ready(shared, known).is_none()),
        );
        lease(&mut page, known);
        etcd(&mut page, known, &counters);
        peers(&mut page, known);
        probes(&mut page, shared);
        let uses = addresses(&known.settings, known.subnets);
        faults(&mut page, shared, known, &uses);
        bridge(&mut page, &known.settings);
        guards(&mut page);
        tunnels(&mut page);
        encryption(&mut page, known);
        policies::policies(&mut page, known.policies.as_deref());
        policies::flows(&mut page, &shared.flows);
        usage(&mut page, &uses);
        plugin(&mut page, &known.settings);
    }
    page.text()
}

fn process(page: &mut Page, shared: &SharedState) {
    let version = env!("CARGO_PKG_VERSION");
    page.gauges("humanz_build_info", "Version of the agent; always 1.")
        .sample(&[("version", version)], 1.0);
    let started = shared.started.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let help = "Start of the agent, in seconds since 1970.";
    page.gauge("process_start_time_seconds", help, started.as_secs_f64());
    if let Some(usage) = Usage::now() {
        let help = "Processor time of the agent, in seconds.";
        page.counters("process_cpu_seconds_total", help).sample(&[], usage.cpu.as_secs_f64());
        let help = "Memory of the agent, in bytes.";
        page.gauge("process_resident_memory_bytes", help, usage.resident_bytes as f64);
    }
}

fn loops(page: &mut Page, shared: &SharedState) {
    let heartbeats: Vec<_> = shared
        .heartbeats()
        .into_iter()
        .filter_map(|beat| Some((beat.name, beat.since()?, beat.limit)))
        .collect();
    let help = "Time since each loop of the agent last showed that it turns.";
    let mut ages = page.gauges("humanz_loop_beat_age_seconds", help);
    heartbeats.iter().for_each(|(name, age, _)| ages.sample(&[("loop", name)], age.as_secs_f64()));
    let help = "Age of a beat from which on the loop hangs.";
    let mut limits = page.gauges("humanz_loop_beat_limit_seconds", help);
    heartbeats
        .iter()
        .for_each(|(name, _, limit)| limits.sample(&[("loop", name)], limit.as_secs_f64()));
}

fn passes(page: &mut Page, counters: &Counters) {
    let help = "Duration of a reconcile.";
    let mut durations = page.histograms("humanz_reconcile_duration_seconds", help);
    for (scope, passes) in [("whole", &counters.whole), ("part", &counters.part)] {
        histogram(&mut durations, &[("scope", scope)], passes);
    }
    let help = "Passes that left something undone.";
    page.counter("humanz_reconcile_failures_total", help, counters.failed);
    let mut changes = page.counters("humanz_changes_total", "What was changed on the host.");
    for ((kind, action), count) in &counters.changes {
        changes.sample(&[("kind", kind), ("action", action)], *count as f64);
    }
    let help = "Changes that reverted modifications by other software.";
    let mut repairs = page.counters("humanz_drift_repaired_total", help);
    for kind in KINDS {
        let count = counters.repairs.get(kind).copied().unwrap_or_default();
        repairs.sample(&[("kind", kind)], count as f64);
    }
}

fn histogram(samples: &mut Samples<'_>, labels: page::MetricLabels<'_>, durations: &Durations) {
    samples.histogram(labels, &BOUNDS_SECONDS, &durations.classes, durations.sum);
}

fn lease(page: &mut Page, known: &AgentSnapshot) {
    let help = "Whether this host has a pod subnet of the family.";
    let mut held = page.gauges("humanz_lease_held", help);
    for (family, _) in known.settings.pools.entries() {
        let has = known.subnets.is_some_and(|subnets| subnets.get(family).is_some());
        held.sample(&[("family", label(family))], f64::from(has));
    }
}

fn label(family: Family) -> &'static str {
    match family {
        Family::V4 => "ipv4",
        Family::V6 => "ipv6",
    }
}

/// Nothing on a host without etcd.
fn etcd(page: &mut Page, known: &AgentSnapshot, counters: &Counters) {
    let Some(contact) = &known.contact else { return };
    let connected = f64::from(known.etcd.endpoint.is_some());
    page.gauge("humanz_etcd_connected", "Whether a member of etcd answers.", connected);
    let help = "Whether etcd and this host disagree about its subnet.";
    page.gauge("humanz_etcd_disagrees", help, f64::from(known.etcd.trouble.is_some()));
    if let Some(age) = contact.received_at().and_then(|at| at.elapsed().ok()) {
        let help = "Time since etcd last confirmed what this host knows of the others.";
        page.gauge("humanz_snapshot_age_seconds", help, age.as_secs_f64());
    }
    let help = "End of this host's certificate for etcd, if it has one, in seconds since 1970.";
    let mut end = page.gauges("humanz_etcd_certificate_expiry_timestamp_seconds", help);
    let until = known.etcd.certificate_until;
    if let Some(until) = until.and_then(|at| at.duration_since(SystemTime::UNIX_EPOCH).ok()) {
        end.sample(&[], until.as_secs_f64());
    }
    if let Some(revision) = known.revision {
        let help = "Revision of etcd that this host's routes are made from.";
        page.gauge("humanz_snapshot_revision", help, revision as f64);
    }
    let help = "Calls to etcd that failed, by kind.";
    let mut errors = page.counters("humanz_etcd_errors_total", help);
    contact.errors().for_each(|(kind, count)| errors.sample(&[("kind", kind)], count as f64));
    let help = "Time from receiving a change of etcd until the kernel agrees with it.";
    histogram(&mut page.histograms("humanz_watch_lag_seconds", help), &[], &counters.lag);
}

fn peers(page: &mut Page, known: &AgentSnapshot) {
    let Some(peers) = &known.peers else { return };
    let alive = peers.by_name.values().filter(|peer| peer.alive).count();
    let mut samples = page.gauges("humanz_peers", "Other hosts, by whether their agents run.");
    samples.sample(&[("agent", "alive")], alive as f64);
    samples.sample(&[("agent", "silent")], (peers.by_name.len() - alive) as f64);
}

/// Of all other hosts together: with a label for each, thousands of hosts would be millions of series.
fn probes(page: &mut Page, shared: &SharedState) {
    let all = shared.probes.all();
    if all.is_empty() {
        return;
    }
    let mut samples = page.gauges(
        "humanz_probe_addresses",
        "Gateways of other hosts that are probed by ICMP echo, by whether they answer.",
    );
    for (label, is) in [("yes", Some(true)), ("no", Some(false)), ("unknown", None)] {
        let count = all.values().filter(|seen| seen.reachable() == is).count();
        samples.sample(&[("answers", label)], count as f64);
    }
    let lost = all.values().filter(|seen| seen.black_hole().is_some()).count();
    page.gauge(
        "humanz_probe_large_lost",
        "Gateways of other hosts that answer small echoes and no large ones.",
        lost as f64,
    );
    let mut times: Vec<f64> =
        all.values().filter_map(|seen| Some(seen.time?.as_secs_f64())).collect();
    times.sort_unstable_by(f64::total_cmp);
    if let (Some(median), Some(slowest)) = (times.get(times.len() / 2), times.last()) {
        let mut samples = page.gauges(
            "humanz_probe_round_trip_seconds",
            "How long the last answer of other hosts took.",
        );
        samples.sample(&[("of", "median")], *median);
        samples.sample(&[("of", "slowest")], *slowest);
    }
}

fn faults(page: &mut Page, shared: &SharedState, known: &AgentSnapshot, uses: &[Use]) {
    let all = problems(shared, known, uses);
    let help = "What is wrong now, by kind; humanz-agent status shows each with its fix.";
    let mut samples = page.gauges("humanz_problems", help);
    for kind in ProblemKind::ALL {
        let count = all.iter().filter(|problem| problem.kind == *kind).count();
        if count > 0 {
            let severity = kind.severity().name();
            let labels = [("kind", kind.name()), ("severity", severity)];
            samples.sample(&labels, count as f64);
        }
    }
    let help = "What is wrong now, by where it was found; humanz_problems has it by kind.";
    let mut samples = page.gauges("humanz_faults", help);
    for (kind, checks) in [
        ("failure", &[ProblemSource::Reconcile][..]),
        ("unreachable", &[ProblemSource::PeerRoutes]),
        ("firewall", &[ProblemSource::Firewall]),
        ("host", &[ProblemSource::Host, ProblemSource::ContestedFiles]),
        ("record", &[ProblemSource::Records]),
        ("pool", &[ProblemSource::Pools]),
        ("addresses", &[ProblemSource::PoolUse]),
    ] {
        let count: usize = checks.iter().map(|check| shared.problems.of(*check).len()).sum();
        samples.sample(&[("kind", kind)], count as f64);
    }
}

/// A Linux bridge takes 1,023 pods.
fn bridge(page: &mut Page, settings: &Settings) {
    let Ok(links) = Rtnl::open().and_then(|rtnl| rtnl.links(None)) else { return };
    let Some(own) = links.iter().find(|link| link.name == settings.bridge) else { return };
    let ports = links.iter().filter(|link| link.master == Some(own.index)).count();
    let help = "Pods plugged into the bridge, which takes 1,023.";
    page.gauge("humanz_bridge_ports", help, ports as f64);
}

/// By pod and reason, as far as there were any.
fn guards(page: &mut Page) {
    let found = || -> Result<_, NetlinkError> {
        let nft = Nft::open()?;
        let counts = DropReason::ALL.map(|reason| nft.frame_counts(TABLE, &reason.counters()));
        let counts = counts.into_iter().collect::<Result<Vec<_>, _>>()?;
        Ok((counts, nft.device_chain_names(TABLE)?, Rtnl::open()?.links(None)?))
    };
    let Ok((counts, chains, links)) = found() else { return };
    if chains.is_empty() {
        return;
    }
    let help = "Frames of pods that the guard at their port dropped.";
    let mut dropped = page.counters("humanz_guard_dropped_frames_total", help);
    for link in &links {
        let owner = pod_or_container(link.alias.as_deref().unwrap_or_default());
        for (reason, counts) in DropReason::ALL.into_iter().zip(&counts) {
            if let Some(packets) = counts.get(&link.index) {
                dropped.sample(&[("pod", owner), ("reason", reason.word())], *packets as f64);
            }
        }
    }
}

/// By reason.
fn tunnels(page: &mut Page) {
    let Ok(counts) = Nft::open().and_then(|nft| nft.counts(TUNNELS_TABLE)) else { return };
    if counts.is_empty() {
        return;
    }
    let help = "Packets to tunnels that were dropped: of pods, and such as no other host sends.";
    let mut dropped = page.counters("humanz_tunnel_dropped_packets_total", help);
    for (reason, comment) in [("pod", FROM_POD), ("foreign", FOREIGN)] {
        let counted = counts.iter().filter(|(found, _)| found == comment);
        let packets: u64 = counted.map(|(_, packets)| packets).sum();
        dropped.sample(&[("reason", reason)], packets as f64);
    }
}

/// Nothing on a host that encrypts nothing. Of all other hosts together, as with probes.
fn encryption(page: &mut Page, known: &AgentSnapshot) {
    /// A session ends after 180 seconds, and a host is probed at least every minute.
    const RECENT: Duration = Duration::from_secs(300);
    let peers = peers_of_device(&known.settings);
    let ages: Vec<Option<Duration>> = peers.values().map(handshake_age).collect();
    let help =
        "Hosts that packets are encrypted to, by their last handshake (recent: 300 seconds).";
    let mut samples = page.gauges("humanz_encryption_peers", help);
    let recent = ages.iter().flatten().filter(|age| **age <= RECENT).count();
    let never = ages.iter().filter(|age| age.is_none()).count();
    for (label, count) in
        [("recent", recent), ("old", ages.len() - recent - never), ("never", never)]
    {
        samples.sample(&[("handshake", label)], count as f64);
    }
    if known.settings.encryption.is_none() {
        return;
    }
    let help = "Bytes of encrypted packets, from and to hosts that are known now.";
    let mut bytes = page.counters("humanz_encryption_bytes_total", help);
    let received: u64 = peers.values().map(|peer| peer.received_bytes).sum();
    let sent: u64 = peers.values().map(|peer| peer.sent_bytes).sum();
    bytes.sample(&[("direction", "received")], received as f64);
    bytes.sample(&[("direction", "sent")], sent as f64);
    if let Some(rotation) = known.rotation {
        let help = "Age of this host's WireGuard key.";
        let age = rotation.made.elapsed().unwrap_or_default();
        page.gauges("humanz_encryption_key_age_seconds", help).sample(&[], age.as_secs_f64());
    }
    kept_in(page);
}

/// Packets that the table of the encryption dropped, by the comments of its rules.
fn kept_in(page: &mut Page) {
    let Ok(counts) = Nft::open().and_then(|nft| nft.counts(ENCRYPTION_TABLE)) else { return };
    let help =
        "Packets that were dropped to keep clear text in, or to keep strangers from the port.";
    let mut dropped = page.counters("humanz_encryption_dropped_packets_total", help);
    for (reason, comment) in [
        ("leaving", guard::LEAVING),
        ("arriving", guard::ARRIVING),
        ("pod", guard::FROM_POD),
        ("foreign", guard::FOREIGN),
    ] {
        let counted = counts.iter().filter(|(found, _)| found == comment);
        dropped.sample(
            &[("reason", reason)],
            counted.map(|(_, packets)| *packets).sum::<u64>() as f64,
        );
    }
}

fn usage(page: &mut Page, uses: &[Use]) {
    let mut samples = page.gauges("humanz_addresses", "Addresses of this host's pod subnets.");
    for Use { family, used, free, .. } in uses {
        samples.sample(&[("family", label(*family)), ("state", "used")], *used as f64);
        samples.sample(&[("family", label(*family)), ("state", "free")], *free as f64);
    }
}

fn plugin(page: &mut Page, settings: &Settings) {
    let Ok(calls) = calls::read(&settings.cni.ipam_dir) else { return };
    let bounds = calls::BOUNDS_MICROS.map(|micros| micros as f64 / 1e6);
    let help =
        "Time that the plugin took for each call of the runtime, from its start to its answer.";
    let mut durations = page.histograms("humanz_cni_call_duration_seconds", help);
    for verb in calls::VERBS {
        let mut all = calls::Series::default();
        let of_verb = calls.iter().filter(|((of, _), _)| *of == verb);
        of_verb.for_each(|(_, series)| all.join(series));
        let sum = all.micros as f64 / 1e6;
        durations.histogram(&[("verb", verb)], &bounds, &all.classes, sum);
    }
    let help = "Calls of the runtime that the plugin refused, by error code of CNI.";
    let mut errors = page.counters("humanz_cni_errors_total", help);
    // A series that began with its first call would hide that one from increase().
    let mut counts: BTreeMap<(&str, u32), u64> =
        calls::VERBS.iter().flat_map(|verb| code::ALL.map(|code| ((*verb, code), 0))).gather();
    let found = calls.iter().filter(|((_, code), _)| *code != 0);
    counts.extend(found.map(|((verb, code), series)| ((*verb, *code), series.count())));
    for ((verb, code), count) in counts {
        errors.sample(&[("verb", verb), ("code", &code.to_string())], count as f64);
    }
}
