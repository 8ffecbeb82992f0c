//! The status of a host from what its agent knows, or a command has found.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::SystemTime;

use ipnetwork::IpNetwork;

use crate::agent::journal::JournalEntry;
use crate::agent::readiness::not_ready;
use crate::agent::shared_state::SharedState;
use crate::agent::snapshot::AgentSnapshot;
use crate::api::encryption;
use crate::api::problems::{gateways, problems};
use crate::api::status::policies::policies;
use crate::api::status::{
    Addresses, BlockStatus, ChangeStatus, ConnectionStatus, EncryptionStatus, EtcdStatus,
    FirewallStatus, KeyStage, KeyStatus, KubernetesStatus, LeaseStatus, Loop, NodeStatus, PathKind,
    PeerStatus, ProbeStatus, Problems, SCHEMA, Status,
};
use crate::checks::probe::ProbeStats;
use crate::inspect::pool_use::{Use, addresses};
use crate::net::gather::Gather;
use crate::net::node_name::NodeName;
use crate::net::time::timestamp;
use crate::net::{PerFamily, Problem, ProblemKind, PublicKey};
use crate::netlink::wireguard::WireguardPeer;
use crate::plan::encryption::{EncryptedPeer, KeyState, Stage};
use crate::plan::peer_routes::{LocalBackend, PeerRoutes};
use crate::policy::Scoped;
use crate::settings::Source;

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
    probed: &BTreeMap<IpAddr, ProbeStats>,
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
        encryption: snapshot.rotation.map(key),
        firewall: Some(firewall(&problems)),
        policies: Some(policies(snapshot, &problems)),
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

fn key(of: KeyState) -> KeyStatus {
    let stage = match of.stage {
        Stage::Steady => KeyStage::Steady,
        Stage::Leaving => KeyStage::Leaving,
        Stage::Returning => KeyStage::Returning,
    };
    let age_seconds = of.made.elapsed().unwrap_or_default().as_secs_f64();
    KeyStatus { made: moment(of.made), age_seconds, stage }
}

fn node((name, machine_id): (&str, &str), snapshot: Option<&AgentSnapshot>) -> NodeStatus {
    let host_state = snapshot.and_then(|snapshot| snapshot.host_state.as_ref());
    NodeStatus {
        name: name.to_owned(),
        machine_id: machine_id.to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        pid: None,
        started: None,
        addresses: host_state.map(|host| texts(&host.own.addresses)),
        uplinks: host_state.map(|host| host.uplinks.iter().map(ToString::to_string).collect()),
        mtu: host_state.map(|host| host.own.mtu_bytes),
        pod_mtu: host_state.map(|host| host.own.pod_mtu_bytes),
    }
}

fn block((block, network): &(IpNetwork, Scoped)) -> BlockStatus {
    BlockStatus { block: *block, network: network.to_string() }
}

fn lease(snapshot: &AgentSnapshot) -> LeaseStatus {
    let source = match (&snapshot.settings.source, snapshot.in_sync) {
        (Source::Static(_), _) => "static",
        (Source::Etcd { .. }, true) => "etcd",
        (Source::Kubernetes(_), true) => "kubernetes",
        (Source::Etcd { .. } | Source::Kubernetes(_), false) => "last known good state",
    };
    LeaseStatus {
        subnets: snapshot.subnets.map(|subnets| subnets.iter().copied().collect()),
        blocks: snapshot.blocks.iter().map(block).collect(),
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
    let received_at = snapshot.contact.as_ref().and_then(|contact| contact.received_at());
    ConnectionStatus {
        connected: store.endpoint.clone(),
        last_contact_seconds: received_at.and_then(|at| Some(at.elapsed().ok()?.as_secs_f64())),
        error: {
            let down = store.down.as_ref().map(ToString::to_string);
            down.or_else(|| Some(store.trouble.as_ref()?.to_string()))
        },
    }
}

fn backend(backend: LocalBackend) -> &'static str {
    match backend {
        LocalBackend::Direct => "direct",
        LocalBackend::Vxlan => "vxlan",
        LocalBackend::Auto => "auto",
    }
}

fn texts<T: ToString>(values: &PerFamily<T>) -> Vec<String> {
    values.iter().map(ToString::to_string).collect()
}

fn peers(
    snapshot: &AgentSnapshot,
    probed: &BTreeMap<IpAddr, ProbeStats>,
) -> Option<Vec<PeerStatus>> {
    let peers = snapshot.peers.as_deref()?;
    let peer_routes = snapshot.peer_routes.as_deref()?;
    let tunnels: BTreeMap<IpNetwork, IpAddr> =
        peer_routes.remotes.iter().map(|remote| (remote.subnet, remote.address)).gather();
    let keys: BTreeMap<PublicKey, &EncryptedPeer> =
        peer_routes.encrypted.iter().map(|peer| (peer.key, peer)).gather();
    let found = encryption::peers(&snapshot.settings);
    let mut faults: BTreeMap<&NodeName, Vec<String>> = BTreeMap::new();
    for unreachable in &peer_routes.unreachable {
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
        let encrypted = peer.wireguard.and_then(|end| keys.get(&end.public_key));
        let way = |subnet| way(subnet, encrypted.copied(), peer_routes, &tunnels);
        let ways: Vec<Option<(PathKind, String)>> = peer.subnets.iter().map(way).collect();
        PeerStatus {
            name: name.to_string(),
            addresses: texts(&peer.addresses),
            subnets: texts(&peer.subnets),
            via: ways.iter().map(|way| way.as_ref().map(|(_, text)| text.clone())).collect(),
            paths: ways.iter().map(|way| way.as_ref().map(|(kind, _)| *kind)).collect(),
            alive: peer.alive,
            reachable: fault.is_none(),
            fault,
            probe: probe(gateways(peer).filter_map(|at| probed.get(&at))),
            encryption: encrypted.map(|to| encryption_status(to.key, found.get(&to.key))),
        }
    });
    Some(peers.collect())
}

fn encryption_status(key: PublicKey, found: Option<&WireguardPeer>) -> EncryptionStatus {
    let age = found.and_then(encryption::handshake_age);
    EncryptionStatus {
        public_key: key.to_string(),
        preshared: found.map(|peer| peer.preshared.is_some()),
        handshake_seconds: age.map(|age| age.as_secs_f64()),
        received_bytes: found.map(|peer| peer.received_bytes),
        sent_bytes: found.map(|peer| peer.sent_bytes),
    }
}

fn probe<'a>(seen: impl Iterator<Item = &'a ProbeStats>) -> Option<ProbeStatus> {
    let seen: Vec<&ProbeStats> = seen.collect();
    let slowest = seen.iter().filter_map(|seen| seen.time).max();
    (!seen.is_empty()).then(|| ProbeStatus {
        seconds: slowest.map(|time| time.as_secs_f64()),
        lost: seen.iter().map(|seen| seen.lost).max(),
        mtu: seen.iter().filter_map(|seen| seen.mtu).min(),
    })
}

/// How packets reach a subnet of a host, and where that leads.
fn way(
    subnet: &IpNetwork,
    encrypted: Option<&EncryptedPeer>,
    peer_routes: &PeerRoutes,
    tunnels: &BTreeMap<IpNetwork, IpAddr>,
) -> Option<(PathKind, String)> {
    if let Some(to) = encrypted {
        let text = || (PathKind::Encrypted, format!("encrypted to {}", to.address));
        return to.subnets.contains(subnet).then(text);
    }
    if let Some(hop) = peer_routes.direct.get(subnet) {
        return Some((PathKind::Direct, format!("direct via {}", hop.via)));
    }
    tunnels.get(subnet).map(|address| (PathKind::Tunnel, format!("tunnel to {address}")))
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
