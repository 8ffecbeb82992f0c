//! The agent among 100, 1,000 and 10,000 hosts.

use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::records::{join, subnet};
use crate::series::{middle, milliseconds, percentile};
use crate::support::node::{Node, Place, command};
use crate::support::watch::Watch;
use crate::support::{Agent, Cluster};
use crate::table::{Row, Table};
use crate::usage;
use crate::workspace::Workspace;

/// How often the whole start is measured.
const STARTS: usize = 3;
/// How often everything else is.
const SAMPLES: u32 = 30;
/// One /24 of 11.0.0.0/8 for each host.
const VARIABLES: [(&str, &str); 2] = [("IP_SUBNET", "11.0.0.0/8"), ("IP_SUBNET_MARGIN", "16")];

/// Numbers of hosts, and the targets of the design.
struct Case {
    peers: u32,
    limits: Limits,
}

#[derive(Default)]
struct Limits {
    /// `None`: the floor is too small a part of a start.
    times_floor: Option<f64>,
    mebibytes: Option<f64>,
    idle_pass_ms: Option<f64>,
}

pub fn hundred(workspace: &mut Workspace, table: &mut Table) {
    let limits = Limits { mebibytes: Some(12.0), ..Limits::default() };
    measure(&Case { peers: 100, limits }, workspace, table);
}

pub fn thousand(workspace: &mut Workspace, table: &mut Table) {
    measure(&Case { peers: 1_000, limits: Limits::default() }, workspace, table);
}

pub fn ten_thousand(workspace: &mut Workspace, table: &mut Table) {
    let limits = Limits { times_floor: Some(1.3), mebibytes: Some(40.0), idle_pass_ms: Some(30.0) };
    measure(&Case { peers: 10_000, limits }, workspace, table);
}

fn measure(case: &Case, workspace: &mut Workspace, table: &mut Table) {
    let cluster = Cluster::new(1);
    let host = &cluster.hosts[0];
    std::fs::copy(workspace.floor(), host.place("/opt").join("floor")).unwrap();
    // All of them on this segment.
    host.run("ip address add 10.99.255.254/16 dev eth0").ok();
    join(&cluster.etcd, 1..case.peers + 1);
    let (agent, direct) = starts(case, host, table);
    memory(case, host, table);
    agent.stop();
    tunnels(case, host, direct, table);
    idle_passes(case, host, table);
    let agent = Agent::start(host, &VARIABLES);
    agent.wait_ready();
    newcomers(case, &cluster, table);
    deletions(case, host, table);
}

/// From the start of the agent to its READY=1, beside the bare loop; the last agent keeps running. Also
/// the time, in milliseconds.
fn starts(case: &Case, host: &Node, table: &mut Table) -> (Agent, f64) {
    let (mut floors, mut owns, mut cpu) = (Vec::new(), Vec::new(), Duration::ZERO);
    let mut running: Option<Agent> = None;
    for _ in 0..STARTS {
        // One that was killed leaves a sign of life, for which a host without its state waits.
        running.take().iter().for_each(Agent::stop);
        host.shell("rm -rf /var/lib/humanz; ip route flush proto 104").ok();
        floors.push(floor(case, host));
        host.shell("ip route flush root 11.0.0.0/8 proto boot").ok();
        let agent = Agent::start(host, &VARIABLES);
        owns.push(milliseconds(&agent.wait_ready()));
        cpu = usage::cpu(host);
        let routes = host.run("ip -4 route show proto 104").ok().lines().count();
        assert_eq!(routes, case.peers as usize, "a route to each host\n{}", agent.log());
        running = Some(agent);
    }
    let (floor, own) = (middle(floors), middle(owns));
    table.push(Row {
        what: format!("{} peers: start → all routes", case.peers),
        floor: format!("{floor:.1} ms"),
        humanz: format!("{own:.0} ms (CPU {:.0})", milliseconds(&cpu)),
        target: case
            .limits
            .times_floor
            .map(|times| format!("≤ {times} × floor"))
            .unwrap_or_default(),
        reached: format!("{:.2} ×", own / floor),
        met: case.limits.times_floor.map(|times| own / floor <= times),
        ..Row::default()
    });
    (running.expect("it was started"), own)
}

/// The same hosts, all of them behind a tunnel: for each a route, a neighbour and a destination. The
/// host is left as if it had none.
fn tunnels(case: &Case, host: &Node, direct: f64, table: &mut Table) {
    let variables = [&VARIABLES[..], &[("BACKEND", "vxlan")]].concat();
    let mut times = Vec::new();
    for _ in 0..STARTS {
        host.shell("rm -rf /var/lib/humanz; ip route flush proto 104").ok();
        let agent = Agent::start(host, &variables);
        times.push(milliseconds(&agent.wait_ready()));
        let entries = host.shell("bridge fdb show dev humanz-vx4; ip neigh show dev humanz-vx4 nud permanent; ip -4 route show dev humanz-vx4 proto 104").ok();
        assert_eq!(entries.lines().count(), 3 * case.peers as usize, "{}", agent.log());
        agent.stop();
        host.run("ip link del humanz-vx4").ok();
    }
    let own = middle(times);
    let limit = (case.peers >= 10_000).then_some(2.0);
    table.push(Row {
        what: "  the same behind VXLAN".into(),
        floor: format!("{direct:.0} ms direct"),
        humanz: format!("{own:.0} ms"),
        target: limit.map(|times| format!("≤ {times} × direct")).unwrap_or_default(),
        reached: format!("{:.2} ×", own / direct),
        met: limit.map(|times| own / direct <= times),
        ..Row::default()
    });
}

/// The same routes by a loop that does nothing else, in milliseconds.
fn floor(case: &Case, host: &Node) -> f64 {
    let mut floor = command(&format!("/opt/floor routes {} eth0 IPv4", case.peers));
    let seconds = host.run_command(&mut floor, "").ok();
    seconds.trim().parse::<f64>().expect("seconds") * 1e3
}

fn memory(case: &Case, host: &Node, table: &mut Table) {
    let (now, most, _) = usage::memory(host);
    table.push(Row {
        what: "  its memory".into(),
        humanz: format!("{now:.1} MiB, at most {most:.1}"),
        target: case.limits.mebibytes.map(|limit| format!("< {limit} MiB")).unwrap_or_default(),
        reached: format!("{most:.1} MiB"),
        met: case.limits.mebibytes.map(|limit| most < limit),
        ..Row::default()
    });
}

/// A pass over everything that finds nothing to do, by the CPU time it takes: that of an agent
/// which makes one each second.
fn idle_passes(case: &Case, host: &Node, table: &mut Table) {
    let often = [&VARIABLES[..], &[("RESYNC_INTERVAL", "1s")]].concat();
    let agent = Agent::start(host, &often);
    agent.wait_ready();
    let mut passes = Vec::new();
    for _ in 0..SAMPLES / 3 {
        let before = usage::cpu(host);
        sleep(Duration::from_secs(1));
        passes.push(milliseconds(&(usage::cpu(host) - before)));
    }
    agent.stop();
    let pass = middle(passes);
    table.push(Row {
        what: "  a pass with nothing to do".into(),
        humanz: format!("{pass:.1} ms of CPU"),
        target: case.limits.idle_pass_ms.map(|limit| format!("< {limit} ms")).unwrap_or_default(),
        reached: format!("{pass:.1} ms"),
        met: case.limits.idle_pass_ms.map(|limit| pass < limit),
        ..Row::default()
    });
}

/// From the put in etcd to the route in the kernel.
fn newcomers(case: &Case, cluster: &Cluster, table: &mut Table) {
    let host = &cluster.hosts[0];
    let watch = Watch::start(host, "route");
    // Far from what the agent may have taken for itself.
    let first = case.peers + 1_000;
    let times = (first..first + SAMPLES).map(|number| {
        let put = join(&cluster.etcd, number..number + 1);
        watch.after(put, &[&subnet(number).to_string()])
    });
    within("  a peer joins → its route", times.collect(), 50.0, table);
}

/// From the kernel's word that a route went to its word that it is back.
fn deletions(case: &Case, host: &Node, table: &mut Table) {
    let watch = Watch::start(host, "route");
    let times = (1..=SAMPLES).map(|sample| {
        let route = subnet(sample * case.peers / SAMPLES).to_string();
        let asked = Instant::now();
        host.run(&format!("ip route del {route}")).ok();
        let gone = asked + watch.after(asked, &["Deleted", &route]);
        watch.after(gone, &[&route])
    });
    within("  its route deleted → back", times.collect(), 100.0, table);
}

pub fn within(what: &str, times: Vec<Duration>, limit: f64, table: &mut Table) {
    let times: Vec<f64> = times.iter().map(milliseconds).collect();
    let (median, most) = (middle(times.clone()), percentile(times, 100));
    table.push(Row {
        what: what.into(),
        humanz: format!("{median:.1} ms, slowest {most:.1}"),
        target: format!("< {limit} ms"),
        reached: format!("{median:.1} ms"),
        met: Some(median < limit),
        ..Row::default()
    });
}
