//! Pure. The status of a host as one JSON object, schema 1: filled by the agent or, without one, by a
//! command, and read by commands and the page.

mod fill;
mod policies;

use ipnetwork::IpNetwork;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::net::{Object, Problem, ProblemKind};

pub use fill::{change, host, status};

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
    /// This host's WireGuard key; `None`: unknown, or it encrypts nothing.
    pub encryption: Option<KeyStatus>,
    pub firewall: Option<FirewallStatus>,
    pub policies: Option<PolicyStatus>,
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
    pub subnets: Option<Vec<IpNetwork>>,
    /// Blocks of tenants' networks.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub blocks: Vec<BlockStatus>,
    /// `etcd`, `kubernetes`, `static` or `last known good state`.
    pub source: Option<String>,
    pub since: Option<String>,
}

/// A block of a tenant's network: `10.32.0.64/26` of `blue/front`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BlockStatus {
    pub block: IpNetwork,
    pub network: String,
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
    /// For each subnet: `direct via 192.0.2.12`, `tunnel to 203.0.113.13`, `encrypted to 192.0.2.12`, or none.
    pub via: Vec<Option<String>>,
    /// Of which kind that is, for each subnet.
    pub paths: Vec<Option<PathKind>>,
    /// Its agent runs.
    pub alive: bool,
    pub reachable: bool,
    /// Why not.
    pub fault: Option<String>,
    pub probe: Option<ProbeStatus>,
    /// `None`: packets to it are not encrypted.
    pub encryption: Option<EncryptionStatus>,
}

/// How packets reach the pods of another host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PathKind {
    Direct,
    Tunnel,
    Encrypted,
}

/// This host's WireGuard key.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct KeyStatus {
    pub made: String,
    pub age_seconds: f64,
    pub stage: KeyStage,
}

/// Where the change of a host's WireGuard key is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KeyStage {
    /// It is not changed.
    #[default]
    Steady,
    /// Peers switch to the second device.
    Leaving,
    /// Peers switch back to the first device, with its new key.
    Returning,
    /// Of an agent of another release.
    #[serde(other)]
    Unknown,
}

/// A host that packets are encrypted to.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct EncryptionStatus {
    pub public_key: String,
    /// There is a pre-shared key besides; `None`: the kernel does not say.
    pub preshared: Option<bool>,
    /// Since the last handshake; `None`: there was none, or the kernel does not say.
    pub handshake_seconds: Option<f64>,
    pub received_bytes: Option<u64>,
    pub sent_bytes: Option<u64>,
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

/// Policies between pods.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PolicyStatus {
    /// `POLICY=on` or `POLICY=kubernetes`.
    pub on: bool,
    /// `etcd` or `kubernetes`: where groups and rules of namespaces are. Networks are in etcd.
    pub objects: Option<String>,
    /// Some source has said which policies there are; before that nothing is enforced anew.
    pub known: bool,
    /// Objects with rules.
    pub policies: usize,
    pub rules: usize,
    /// Of this host.
    pub pods: usize,
    pub quarantine: Vec<QuarantineStatus>,
    /// No policies are known, and there is no table: every packet of running pods passes.
    pub unjudged: bool,
    pub sources: Vec<PolicySourceStatus>,
}

/// A pod that only its own node reaches.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct QuarantineStatus {
    pub pod: String,
    pub addresses: Vec<String>,
    pub why: String,
    pub since: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PolicySourceStatus {
    /// `file`, `etcd` or `kubernetes`.
    pub source: String,
    /// It is followed, and what it said last holds.
    pub healthy: bool,
    /// When what holds was read; `None`: nothing since the agent started.
    pub read: Option<String>,
    /// Policies of it that hold.
    pub policies: usize,
    /// Objects of it that something is wrong with.
    pub problems: usize,
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

/// One line of `/v1/changes`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum ChangeLine {
    /// So many came too fast to be sent.
    Lost {
        lost: u64,
    },
    Change(ChangeStatus),
}

/// What is wrong, the worst first; `None` as long as nothing was looked at. In JSON it is `problems`,
/// and once more `faults`, of which each has `what` and `cure`, as earlier releases have it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Problems(pub Option<Vec<Problem>>);

#[derive(Serialize, Deserialize)]
struct EarlierFault {
    what: String,
    #[serde(rename = "cure")]
    fix: Option<String>,
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
            fix: problem.fix.clone(),
        };
        let faults = self.0.as_ref().map(|all| all.iter().map(fault).collect());
        ProblemsJson { problems: self.0.clone(), faults }.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Problems {
    fn deserialize<D: Deserializer<'de>>(reader: D) -> Result<Problems, D::Error> {
        let ProblemsJson { problems, faults } = ProblemsJson::deserialize(reader)?;
        let problem = |EarlierFault { what, fix }| Problem {
            fix,
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

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use serde_json::{Value, json};

    use super::*;

    /// What the JSON had before there was a type for it, `problems`, and the blocks of tenants.
    const FIELDS: &[&str] = &[
        "addresses[] family free used",
        "backend",
        "changes[] at number repair what why",
        "encryption age_seconds made stage",
        "etcd certificate_until connected endpoints error last_contact_seconds revision",
        "faults[] cure what",
        "firewall fault ok",
        "kubernetes connected error kubeconfig last_contact_seconds version",
        "lease blocks since source subnets",
        "loops[] limit name seconds_since_beat",
        "node addresses machine_id mtu name pid pod_mtu started uplinks version",
        "peers[] addresses alive encryption fault name paths probe reachable subnets via",
        "peers[].encryption handshake_seconds preshared public_key received_bytes sent_bytes",
        "peers[].probe lost mtu seconds",
        "policies known objects on pods policies quarantine rules sources unjudged",
        "policies.quarantine[] addresses pod since why",
        "policies.sources[] healthy policies problems read source",
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
        let peer = PeerStatus {
            encryption: Some(EncryptionStatus::default()),
            probe: Some(ProbeStatus::default()),
            ..PeerStatus::default()
        };
        Status {
            ready: Some(true),
            lease: Some(LeaseStatus {
                subnets: Some(vec!["10.244.1.0/24".parse().unwrap()]),
                blocks: vec![BlockStatus {
                    block: "fd00:32::40/122".parse().unwrap(),
                    network: "blue/front".to_owned(),
                }],
                ..LeaseStatus::default()
            }),
            etcd: Some(EtcdStatus::default()),
            kubernetes: Some(KubernetesStatus::default()),
            backend: Some("auto".to_owned()),
            peers: Some(vec![peer]),
            encryption: Some(KeyStatus::default()),
            firewall: Some(FirewallStatus::default()),
            policies: Some(PolicyStatus {
                quarantine: vec![QuarantineStatus::default()],
                sources: vec![PolicySourceStatus::default()],
                ..PolicyStatus::default()
            }),
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
        for part in ["encryption", "probe"] {
            found.push(format!("peers[].{part}{}", keys(&value["peers"][0][part])));
        }
        for list in ["quarantine", "sources"] {
            found.push(format!("policies.{list}[]{}", keys(&value["policies"][list][0])));
        }
        found.sort_unstable();
        assert_eq!(found, FIELDS);
    }

    #[test]
    fn a_status_is_read_back() {
        let value = serde_json::to_value(full()).unwrap();
        let lease = &value["lease"];
        assert_eq!(lease["subnets"], json!(["10.244.1.0/24"]));
        assert_eq!(lease["blocks"], json!([{"block": "fd00:32::40/122", "network": "blue/front"}]));
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
