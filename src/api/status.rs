//! The status of a host as one JSON object, schema 1: filled by the agent or, without one, by a
//! command, and read by commands and the page.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::SystemTime;

use ipnetwork::IpNetwork;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::agent::journal::JournalEntry;
use crate::agent::readiness::not_ready;
use crate::agent::shared_state::SharedState;
use crate::agent::snapshot::AgentSnapshot;
use crate::api::problems::{gateways, problems};
use crate::checks::probe::Seen;
use crate::inspect::pool_use::{Use, addresses};
use crate::lease::peers::Peer;
use crate::net::node_name::NodeName;
use crate::net::time::timestamp;
use crate::net::{Object, PerFamily, Problem, ProblemKind};
use crate::plan::peer_routes::Backend;
use crate::plan::peer_routes::PeerRoutes;
use crate::settings::Source;

/// The version of [`Status`]. Fields may be added; none changes its meaning.
const SCHEMA: u32 = 1;

/// Everything that is known of a host; `None` where that is not known (yet). Of a large network it is
/// some megabytes. Texts in it are for people; times are RFC 3339.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Status {
    pub schema: u32,
    /// Pods can be plugged in. `None` without an agent.
    pub ready: Option<bool>,
    pub node: NodeStatus,
    pub lease: Option<LeaseStatus>,
    /// `None` on a host without etcd.
    pub etcd: Option<EtcdStatus>,
    /// `None` on a host whose subnet is not given by Kubernetes.
    pub kubernetes: Option<KubernetesStatus>,
    pub backend: Option<String>,
    pub peers: Option<Vec<PeerStatus>>,
    pub firewall: Option<FirewallStatus>,
    pub addresses: Option<Vec<Addresses>>,
    pub loops: Vec<Loop>,
    /// The latest changes, and those of them that repaired what another program had changed.
    pub changes: Option<Vec<ChangeStatus>>,
    pub repairs: Option<Vec<ChangeStatus>>,
    #[serde(flatten)]
    pub problems: Problems,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeStatus {
    pub name: String,
    pub machine_id: String,
    pub version: String,
    /// Of the agent.
    pub pid: Option<u32>,
    pub started: Option<String>,
    pub addresses: Option<Vec<String>>,
    pub uplinks: Option<Vec<String>>,
    /// Bytes that a packet to other hosts may have.
    pub mtu: Option<u32>,
    pub pod_mtu: Option<u32>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LeaseStatus {
    pub subnets: Option<Vec<String>>,
    /// `etcd`, `kubernetes`, `static` or `last known good state`.
    pub source: Option<String>,
    pub since: Option<String>,
}

/// The connection with etcd or the Kubernetes API.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ConnectionStatus {
    /// The server that answers.
    pub connected: Option<String>,
    pub last_contact_seconds: Option<f64>,
    /// Why none answers, or what it refuses.
    pub error: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct EtcdStatus {
    #[serde(flatten)]
    pub connection: ConnectionStatus,
    pub endpoints: Vec<String>,
    pub revision: Option<i64>,
    pub certificate_until: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct KubernetesStatus {
    #[serde(flatten)]
    pub connection: ConnectionStatus,
    pub kubeconfig: Option<String>,
    pub version: Option<i64>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PeerStatus {
    pub name: String,
    pub addresses: Vec<String>,
    pub subnets: Vec<String>,
    /// For each subnet: `direct via 192.0.2.12`, `tunnel to 203.0.113.13`, or none.
    pub via: Vec<Option<String>>,
    /// Its agent runs.
    pub alive: bool,
    pub reachable: bool,
    /// Why not.
    pub fault: Option<String>,
    pub probe: Option<ProbeStatus>,
}

/// Of all addresses of a host: the slowest answer, the most lost in a row, the least size.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProbeStatus {
    pub seconds: Option<f64>,
    pub lost: Option<u32>,
    pub mtu: Option<u32>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct FirewallStatus {
    /// Firewalls of other programs let pods through.
    pub ok: bool,
    pub fault: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Addresses {
    /// `IPv4` or `IPv6`.
    pub family: String,
    pub used: u64,
    /// As many as fit, if there are more.
    pub free: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Loop {
    pub name: String,
    pub seconds_since_beat: f64,
    pub limit: f64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ChangeStatus {
    pub number: u64,
    pub at: String,
    pub what: String,
    pub why: String,
    pub repair: bool,
}

/// What is wrong, the worst first; `None` as long as nothing was looked at. In JSON it is `problems`,
/// and once more `faults`, of which each has `what` and `cure`, as earlier releases have it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Problems(pub Option<Vec<Problem>>);

#[derive(Serialize, Deserialize)]
struct EarlierFault {
    what: String,
    cure: Option<String>,
}

#[derive(Serialize, Deserialize)]
struct ProblemsJson {
    problems: Option<Vec<Problem>>,
    faults: Option<Vec<EarlierFault>>,
}

impl Serialize for Problems {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let fault = |problem: &Problem| EarlierFault {
            what: problem.what.clone(),
            cure: problem.fix.clone(),
        };
        let faults = self.0.as_ref().map(|all| all.iter().map(fault).collect());
        ProblemsJson { problems: self.0.clone(), faults }.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Problems {
    fn deserialize<D: Deserializer<'de>>(reader: D) -> Result<Problems, D::Error> {
        let ProblemsJson { problems, faults } = ProblemsJson::deserialize(reader)?;
        let problem = |EarlierFault { what, cure }| Problem {
            fix: cure,
            ..Problem::new(ProblemKind::Other, Object::named("agent"), what)
        };
        let faults = || faults.map(|all| all.into_iter().map(problem).collect());
        Ok(Problems(problems.or_else(faults)))
    }
}

impl Status {
    /// Of the JSON that an agent gave; an error says why it is none.
    pub fn read(value: serde_json::Value) -> Result<Status, String> {
        serde_json::from_value(value).map_err(|error| format!("the agent's answer: {error}"))
    }
}

/// What the agent knows.
pub fn status(shared: &SharedState) -> Status {
    let (changes, repairs) = shared.journal.all();
    let list = |entries: &[JournalEntry]| Some(entries.iter().map(change).collect());
    let snapshot = shared.snapshot();
    let host = snapshot.as_deref().map(|snapshot| {
        let uses = addresses(&snapshot.settings, snapshot.subnets);
        let problems = problems(shared, snapshot, &uses);
        host((&shared.name, &shared.machine_id), snapshot, &uses, &shared.probes.all(), problems)
    });
    let host = host.unwrap_or_else(|| Status {
        schema: SCHEMA,
        node: node((&shared.name, &shared.machine_id), None),
        ..Status::default()
    });
    let is_ready = |snapshot: &AgentSnapshot| not_ready(shared, snapshot).is_none();
    Status {
        ready: Some(snapshot.as_deref().is_some_and(is_ready)),
        node: NodeStatus {
            pid: Some(std::process::id()),
            started: Some(moment(shared.started)),
            ..host.node
        },
        loops: loops(shared),
        changes: list(&changes),
        repairs: list(&repairs),
        ..host
    }
}

/// What can be known with and without an agent. `name`: of the host, and its machine id.
pub fn host(
    name: (&str, &str),
    snapshot: &AgentSnapshot,
    uses: &[Use],
    probed: &BTreeMap<IpAddr, Seen>,
    problems: Vec<Problem>,
) -> Status {
    Status {
        schema: SCHEMA,
        node: node(name, Some(snapshot)),
        lease: Some(lease(snapshot)),
        etcd: etcd(snapshot),
        kubernetes: kubernetes(snapshot),
        backend: Some(backend(snapshot.settings.backend).to_owned()),
        peers: peers(snapshot, probed),
        firewall: Some(firewall(&problems)),
        addresses: Some(uses.iter().map(usage).collect()),
        problems: Problems(Some(problems)),
        ..Status::default()
    }
}

pub fn change(entry: &JournalEntry) -> ChangeStatus {
    ChangeStatus {
        number: entry.number,
        at: moment(entry.at),
        what: entry.what.clone(),
        why: entry.why.clone(),
        repair: entry.repair,
    }
}

fn moment(at: SystemTime) -> String {
    timestamp(at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default())
}

fn node((name, machine_id): (&str, &str), snapshot: Option<&AgentSnapshot>) -> NodeStatus {
    let facts = snapshot.and_then(|snapshot| snapshot.facts.as_ref());
    NodeStatus {
        name: name.to_owned(),
        machine_id: machine_id.to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        pid: None,
        started: None,
        addresses: facts.map(|facts| texts(&facts.own.addresses)),
        uplinks: facts.map(|facts| facts.uplinks.iter().map(ToString::to_string).collect()),
        mtu: facts.map(|facts| facts.own.mtu_bytes),
        pod_mtu: facts.map(|facts| facts.own.pod_mtu_bytes),
    }
}

fn lease(snapshot: &AgentSnapshot) -> LeaseStatus {
    let source = match (&snapshot.settings.source, snapshot.in_sync) {
        (Source::Static(_), _) => "static",
        (Source::Etcd { .. }, true) => "etcd",
        (Source::Kubernetes(_), true) => "kubernetes",
        (Source::Etcd { .. } | Source::Kubernetes(_), false) => "last known good state",
    };
    LeaseStatus {
        subnets: snapshot.subnets.as_ref().map(texts),
        source: snapshot.subnets.map(|_| source.to_owned()),
        since: snapshot.since.map(moment),
    }
}

fn etcd(snapshot: &AgentSnapshot) -> Option<EtcdStatus> {
    let Source::Etcd { server, .. } = &snapshot.settings.source else { return None };
    Some(EtcdStatus {
        connection: connection(snapshot),
        endpoints: server.endpoints.clone(),
        revision: snapshot.revision,
        certificate_until: snapshot.etcd.certificate_until.map(moment),
    })
}

fn kubernetes(snapshot: &AgentSnapshot) -> Option<KubernetesStatus> {
    let Source::Kubernetes(api) = &snapshot.settings.source else { return None };
    Some(KubernetesStatus {
        connection: connection(snapshot),
        kubeconfig: api.kubeconfig.as_ref().map(|path| path.display().to_string()),
        version: snapshot.revision,
    })
}

fn connection(snapshot: &AgentSnapshot) -> ConnectionStatus {
    let store = &snapshot.etcd;
    let heard_at = snapshot.contact.as_ref().and_then(|contact| contact.heard_at());
    ConnectionStatus {
        connected: store.endpoint.clone(),
        last_contact_seconds: heard_at.and_then(|at| Some(at.elapsed().ok()?.as_secs_f64())),
        error: store.down.clone().or_else(|| Some(store.trouble.as_ref()?.to_string())),
    }
}

fn backend(backend: Backend) -> &'static str {
    match backend {
        Backend::Direct => "direct",
        Backend::Vxlan => "vxlan",
        Backend::Auto => "auto",
    }
}

fn texts<T: ToString>(values: &PerFamily<T>) -> Vec<String> {
    values.iter().map(ToString::to_string).collect()
}

fn peers(snapshot: &AgentSnapshot, probed: &BTreeMap<IpAddr, Seen>) -> Option<Vec<PeerStatus>> {
    let peers = snapshot.peers.as_deref()?;
    let ways = snapshot.ways.as_deref()?;
    let tunnels: BTreeMap<IpNetwork, IpAddr> =
        ways.remotes.iter().map(|remote| (remote.subnet, remote.address)).collect();
    let mut faults: BTreeMap<&NodeName, Vec<String>> = BTreeMap::new();
    for unreachable in &ways.unreachable {
        let problem = unreachable.problem().to_string();
        faults.entry(&unreachable.host).or_default().push(problem);
    }
    for (name, peer) in &peers.by_name {
        let seen = gateways(peer).filter_map(|at| Some((at, probed.get(&at)?)));
        let lost: Vec<String> = seen.filter_map(|(at, seen)| seen.fault(at)).collect();
        if !lost.is_empty() {
            faults.entry(name).or_default().extend(lost);
        }
    }
    let peers = peers.by_name.iter().map(|(name, peer)| {
        let fault = faults.get(name).map(|faults| faults.join("; "));
        PeerStatus {
            name: name.to_string(),
            addresses: texts(&peer.addresses),
            subnets: texts(&peer.subnets),
            via: via(peer, ways, &tunnels),
            alive: peer.alive,
            reachable: fault.is_none(),
            fault,
            probe: probe(gateways(peer).filter_map(|at| probed.get(&at))),
        }
    });
    Some(peers.collect())
}

fn probe<'a>(seen: impl Iterator<Item = &'a Seen>) -> Option<ProbeStatus> {
    let seen: Vec<&Seen> = seen.collect();
    let slowest = seen.iter().filter_map(|seen| seen.time).max();
    (!seen.is_empty()).then(|| ProbeStatus {
        seconds: slowest.map(|time| time.as_secs_f64()),
        lost: seen.iter().map(|seen| seen.lost).max(),
        mtu: seen.iter().filter_map(|seen| seen.mtu).min(),
    })
}

fn via(
    peer: &Peer,
    ways: &PeerRoutes,
    tunnels: &BTreeMap<IpNetwork, IpAddr>,
) -> Vec<Option<String>> {
    let way = |subnet: &IpNetwork| match (ways.direct.get(subnet), tunnels.get(subnet)) {
        (Some(hop), _) => Some(format!("direct via {}", hop.via)),
        (None, Some(address)) => Some(format!("tunnel to {address}")),
        (None, None) => None,
    };
    peer.subnets.iter().map(way).collect()
}

fn usage(of: &Use) -> Addresses {
    let number = |count: u128| u64::try_from(count).unwrap_or(u64::MAX);
    Addresses { family: of.family.to_string(), used: number(of.used), free: number(of.free) }
}

fn firewall(problems: &[Problem]) -> FirewallStatus {
    use ProblemKind::{Flowtable, ForwardBlocked, ForwardUnreadable, InputBlocked};
    let kinds = [Flowtable, ForwardBlocked, ForwardUnreadable, InputBlocked];
    let blocked = problems.iter().filter(|problem| kinds.contains(&problem.kind));
    let blocked: Vec<String> = blocked.map(ToString::to_string).collect();
    FirewallStatus {
        ok: blocked.is_empty(),
        fault: (!blocked.is_empty()).then(|| blocked.join("; ")),
    }
}

fn loops(shared: &SharedState) -> Vec<Loop> {
    let heartbeats = shared.heartbeats();
    let running = heartbeats.iter().filter_map(|beat| Some((beat, beat.since()?)));
    let of = |(beat, since): (&std::sync::Arc<crate::os::heartbeat::Heartbeat>, _)| Loop {
        name: beat.name.to_owned(),
        seconds_since_beat: std::time::Duration::as_secs_f64(&since),
        limit: beat.limit.as_secs_f64(),
    };
    running.map(of).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    /// Everything that the JSON had before there was a type for it, and `problems`.
    const FIELDS: &[&str] = &[
        "addresses[] family free used",
        "backend",
        "changes[] at number repair what why",
        "etcd certificate_until connected endpoints error last_contact_seconds revision",
        "faults[] cure what",
        "firewall fault ok",
        "kubernetes connected error kubeconfig last_contact_seconds version",
        "lease since source subnets",
        "loops[] limit name seconds_since_beat",
        "node addresses machine_id mtu name pid pod_mtu started uplinks version",
        "peers[] addresses alive fault name probe reachable subnets via",
        "peers[].probe lost mtu seconds",
        "problems[] fix kind severity since subject what",
        "ready",
        "repairs[] at number repair what why",
        "schema",
    ];

    fn keys(value: &Value) -> String {
        value.as_object().into_iter().flatten().map(|(key, _)| format!(" {key}")).collect()
    }

    fn full() -> Status {
        let problem = Problem::new(ProblemKind::Etcd, Object::named("etcd"), "no answer")
            .with_fix("start it")
            .with_since(SystemTime::UNIX_EPOCH);
        let peer = PeerStatus { probe: Some(ProbeStatus::default()), ..PeerStatus::default() };
        Status {
            ready: Some(true),
            lease: Some(LeaseStatus::default()),
            etcd: Some(EtcdStatus::default()),
            kubernetes: Some(KubernetesStatus::default()),
            backend: Some("auto".to_owned()),
            peers: Some(vec![peer]),
            firewall: Some(FirewallStatus::default()),
            addresses: Some(vec![Addresses::default()]),
            loops: vec![Loop::default()],
            changes: Some(vec![ChangeStatus::default()]),
            repairs: Some(vec![ChangeStatus::default()]),
            problems: Problems(Some(vec![problem])),
            ..Status::default()
        }
    }

    #[test]
    fn the_fields_in_json_are_those_of_schema_1() {
        let value = serde_json::to_value(full()).unwrap();
        let mut found = Vec::new();
        for (name, part) in value.as_object().unwrap() {
            match part {
                Value::Array(list) => found.push(format!("{name}[]{}", keys(&list[0]))),
                part => found.push(format!("{name}{}", keys(part))),
            }
        }
        found.push(format!("peers[].probe{}", keys(&value["peers"][0]["probe"])));
        found.sort();
        assert_eq!(found, FIELDS);
    }

    #[test]
    fn a_status_is_read_back() {
        let value = serde_json::to_value(full()).unwrap();
        assert_eq!(Status::read(value).unwrap(), full());
    }

    #[test]
    fn what_is_unknown_is_null() {
        let value = serde_json::to_value(Status::default()).unwrap();
        for part in ["ready", "lease", "etcd", "peers", "firewall", "faults", "problems"] {
            assert!(value.as_object().unwrap().contains_key(part), "{part}");
            assert_eq!(value[part], Value::Null, "{part}");
        }
    }
}
