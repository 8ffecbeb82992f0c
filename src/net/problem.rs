//! Pure. What is wrong: its kind, the object it concerns, what to do, since when.

use std::fmt;
use std::time::SystemTime;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::net::failure_reason::FailureReason;
use crate::net::node_name::NodeName;
use crate::net::object::Object;
use crate::net::time::{read_rfc3339, rfc3339};

/// How bad a problem is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Pods suffer, or will with the next change.
    Error,
    /// It will do harm one day.
    Warning,
    /// Good to know.
    Note,
}

impl Severity {
    pub fn name(self) -> &'static str {
        match self {
            Severity::Error => "error",
            Severity::Warning => "warning",
            Severity::Note => "note",
        }
    }
}

/// The kinds of problems, causes before their effects: that is the order in which they are shown.
/// For each its severity, and the name that stands in JSON and metrics and never changes.
macro_rules! kinds {
    ($($kind:ident: $severity:ident, $name:literal;)*) => {
        /// Kinds of problems; the order is that of [`ProblemKind::ALL`].
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub enum ProblemKind {
            $(#[serde(rename = $name)] $kind,)*
            /// Reported by an agent of another release.
            #[serde(rename = "other", other)]
            Other,
        }

        impl ProblemKind {
            /// Every kind, in the order in which problems are shown.
            pub const ALL: &[ProblemKind] = &[$(ProblemKind::$kind,)* ProblemKind::Other];

            /// Kebab case, the same in every release.
            pub fn name(self) -> &'static str {
                match self {
                    $(ProblemKind::$kind => $name,)*
                    ProblemKind::Other => "other",
                }
            }

            pub fn severity(self) -> Severity {
                match self {
                    $(ProblemKind::$kind => Severity::$severity,)*
                    ProblemKind::Other => Severity::Warning,
                }
            }
        }
    };
}

kinds! {
    // The agent, and what can be read at all.
    AgentStuck: Error, "agent-stuck";
    AgentDown: Error, "agent-down";
    AgentSilent: Warning, "agent-silent";
    AgentVersion: Warning, "agent-old";
    Privileges: Warning, "privileges";
    InvalidSetting: Error, "invalid-setting";
    SettingsFile: Warning, "settings";
    ReadDenied: Error, "read-denied";
    IpamStore: Error, "ipam-store";
    InspectFailed: Error, "inspect-failed";
    // The machine.
    InterfaceDown: Error, "interface-down";
    Clock: Error, "clock";
    DiskReadOnly: Error, "disk-read-only";
    DiskFull: Error, "disk-full";
    DiskLow: Warning, "disk-low";
    Disk: Warning, "disk";
    Modules: Error, "modules";
    KernelReplaced: Warning, "kernel-replaced";
    Inotify: Error, "inotify";
    // The lease.
    EtcdFiles: Error, "etcd-files";
    Certificate: Error, "certificate";
    CertificateExpiring: Warning, "certificate-expiring";
    SecretReadable: Warning, "secret-readable";
    Etcd: Error, "etcd";
    KubernetesApi: Error, "kubernetes-api";
    Lease: Error, "lease";
    MachineId: Error, "machine-id";
    OtherHost: Error, "other-host";
    EtcdRecord: Warning, "etcd-record";
    PoolGrown: Warning, "pool-grown";
    StateFile: Warning, "state-file";
    // Changes of the agent.
    ForeignLink: Error, "foreign-link";
    ChangeFailed: Error, "change-failed";
    ChangePending: Error, "change-pending";
    FileContested: Error, "file-contested";
    RouteInTheWay: Error, "route-in-the-way";
    RuleInTheWay: Error, "rule-in-the-way";
    ClearText: Warning, "clear-text";
    KeyRotation: Warning, "key-rotation";
    // Runtimes.
    CniConfiguration: Error, "cni-configuration";
    CniConfigurationUnread: Warning, "cni-configuration-unread";
    CniConfigurationOrder: Error, "cni-configuration-order";
    CniVersion: Error, "cni-version";
    CniVersionNew: Note, "cni-version-new";
    CniPlugin: Error, "cni-plugin";
    LoopbackPlugin: Error, "loopback";
    StaleLink: Warning, "stale-link";
    // Packets.
    Forwarding: Error, "forwarding";
    Ipv6: Error, "ipv6";
    ForwardBlocked: Error, "forward-blocked";
    ForwardUnreadable: Error, "forward-unreadable";
    ForwardUnclear: Warning, "forward-unclear";
    InputBlocked: Error, "input-blocked";
    Flowtable: Warning, "flowtable";
    BridgeNetfilter: Error, "bridge-netfilter";
    ReversePath: Warning, "reverse-path";
    Conntrack: Error, "conntrack";
    NeighbourTable: Error, "neighbour-table";
    NeighbourTableLow: Warning, "neighbour-table-low";
    AddressConflict: Error, "address-conflict";
    RouteConflict: Error, "route-conflict";
    OldMasquerade: Warning, "old-masquerade";
    Networkd: Warning, "networkd";
    NetworkManager: Warning, "networkmanager";
    Mtu: Warning, "mtu";
    PacketLost: Error, "packet-lost";
    PacketDoubtful: Warning, "packet-doubtful";
    // Other hosts.
    HostUnreachable: Error, "host-unreachable";
    HostMtu: Error, "host-mtu";
    HostUnanswered: Error, "host-unanswered";
    HostsSilent: Note, "hosts-silent";
    ProbesEnded: Warning, "probes-ended";
    // Addresses of pods.
    PoolFull: Error, "pool-full";
    PoolLow: Warning, "pool-low";
    BridgePorts: Error, "bridge-ports";
    Unguarded: Error, "unguarded";
    HostPort: Error, "host-port";
    BridgePortsLow: Warning, "bridge-ports-low";
    StoresUnread: Warning, "stores-unread";
    LeakedAddresses: Warning, "leaked-addresses";
    StrayLinks: Error, "stray-links";
    Quarantine: Warning, "quarantine";
    // Policies.
    Policy: Error, "policy";
    PolicyOff: Warning, "policy-off";
    UnknownPodKey: Warning, "unknown-pod-key";
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(from = "ReadProblem")]
pub struct Problem {
    pub kind: ProblemKind,
    pub subject: Object,
    /// One sentence, without full stop.
    pub what: String,
    /// A command to copy, or an action.
    pub fix: Option<String>,
    /// When it began, or was first seen; in JSON RFC 3339.
    pub since: Option<SystemTime>,
}

/// As JSON has it: a subject that is a host or a pod stands there as data, too.
#[derive(Deserialize)]
struct ReadProblem {
    kind: ProblemKind,
    subject: Object,
    host: Option<NodeName>,
    pod: Option<String>,
    what: String,
    fix: Option<String>,
    #[serde(default, deserialize_with = "read_since")]
    since: Option<SystemTime>,
}

impl From<ReadProblem> for Problem {
    fn from(read: ReadProblem) -> Problem {
        let ReadProblem { kind, subject, host, pod, what, fix, since } = read;
        let object = host.map(Object::Host).or(pod.map(Object::Pod));
        Problem { kind, subject: object.unwrap_or(subject), what, fix, since }
    }
}

/// The fix of problems of which only the first are listed.
pub const LISTED_FIRST: &str = "correct those that are listed; further ones are listed then";

/// The first `most` of `problems`, and one more of `kind` that counts the others, with `fix`.
pub fn capped(
    problems: impl Iterator<Item = Problem>,
    most: usize,
    kind: ProblemKind,
    others: &str,
    fix: &str,
) -> Vec<Problem> {
    let mut problems = problems.fuse();
    let mut first: Vec<Problem> = problems.by_ref().take(most).collect();
    let more = problems.count();
    if more > 0 {
        let what = format!("{more} more problems of that kind ({others})");
        let all = Problem::new(kind, Object::named(others), what);
        first.push(all.with_fix(fix));
    }
    first
}

/// Two problems with the same key are the same problem.
pub type ProblemKey = (ProblemKind, Object);

impl Problem {
    /// Without a fix, and not known since when.
    pub fn new(kind: ProblemKind, subject: Object, what: impl Into<String>) -> Problem {
        Problem { kind, subject, what: what.into(), fix: None, since: None }
    }

    /// With a fault that does not say itself what it is about.
    pub fn in_object(kind: ProblemKind, subject: Object, fault: impl fmt::Display) -> Problem {
        let what = format!("{subject}: {fault}");
        Problem::new(kind, subject, what)
    }

    /// With the fix of the failure, if that has one.
    pub fn of_failure(kind: ProblemKind, subject: Object, why: FailureReason) -> Problem {
        Problem { fix: why.fix, ..Problem::new(kind, subject, why.what) }
    }

    pub fn with_fix(self, fix: impl Into<String>) -> Problem {
        Problem { fix: Some(fix.into()), ..self }
    }

    /// With what helps against most problems of its kind, if the check that found it knows no better.
    pub fn with_usual_fix(self) -> Problem {
        let usual = match self.kind {
            ProblemKind::Etcd => {
                "humanz-agent config # shows where etcd is asked: check that it answers there, certificates and permissions"
            }
            ProblemKind::KubernetesApi => {
                "kubectl get nodes # check that the API server is up and that this host may list and watch"
            }
            ProblemKind::Policy => {
                "humanz-agent policy ls # shows what is in force: correct it where it is written"
            }
            ProblemKind::InvalidSetting => {
                "humanz-agent config # shows where each setting comes from: correct it there"
            }
            _ => return self,
        };
        let fix = self.fix.or_else(|| Some(usual.to_owned()));
        Problem { fix, ..self }
    }

    pub fn with_since(self, since: SystemTime) -> Problem {
        Problem { since: Some(since), ..self }
    }

    pub fn severity(&self) -> Severity {
        self.kind.severity()
    }

    pub fn key(&self) -> ProblemKey {
        (self.kind, self.subject.clone())
    }
}

impl From<Problem> for FailureReason {
    fn from(Problem { what, fix, .. }: Problem) -> FailureReason {
        FailureReason { what, fix }
    }
}

impl fmt::Display for ProblemKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Display for Problem {
    /// `what; fix`: for the log, where one line is one problem.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)?;
        match &self.fix {
            Some(fix) => write!(f, "; {fix}"),
            None => Ok(()),
        }
    }
}

impl Serialize for Problem {
    /// `kind`, `severity`, `subject`, `what`, `fix`, `since`; `host` or `pod` if that is the subject.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Json<'a> {
            kind: ProblemKind,
            severity: Severity,
            subject: &'a Object,
            #[serde(skip_serializing_if = "Option::is_none")]
            host: Option<&'a NodeName>,
            #[serde(skip_serializing_if = "Option::is_none")]
            pod: Option<&'a str>,
            what: &'a str,
            fix: Option<&'a str>,
            since: Option<String>,
        }
        let Problem { kind, subject, what, fix, since } = self;
        let (severity, fix, since) = (kind.severity(), fix.as_deref(), since.map(rfc3339));
        let (host, pod) = match subject {
            Object::Host(name) => (Some(name), None),
            Object::Pod(name) => (None, Some(name.as_str())),
            _ => (None, None),
        };
        Json { kind: *kind, severity, subject, host, pod, what, fix, since }.serialize(serializer)
    }
}

fn read_since<'de, D: Deserializer<'de>>(reader: D) -> Result<Option<SystemTime>, D::Error> {
    let text = Option::<String>::deserialize(reader)?;
    Ok(text.as_deref().and_then(read_rfc3339))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::time::Duration;

    use serde_json::json;

    use super::*;

    fn bridge_down() -> Problem {
        let subject = Object::Bridge("humanz0".parse().unwrap());
        Problem::new(ProblemKind::ChangeFailed, subject, "add bridge humanz0: no memory; really")
    }

    #[test]
    fn names_are_kebab_case_and_unique() {
        let names: BTreeSet<&str> = ProblemKind::ALL.iter().map(|kind| kind.name()).collect();
        assert_eq!(names.len(), ProblemKind::ALL.len());
        for name in names {
            let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
            assert!(name.chars().all(plain), "{name}");
        }
    }

    #[test]
    fn kinds_are_read_back_and_those_of_other_releases_do_no_harm() {
        for kind in ProblemKind::ALL {
            let text = serde_json::to_value(kind).unwrap();
            assert_eq!(text, kind.name());
            assert_eq!(serde_json::from_value::<ProblemKind>(text).unwrap(), *kind);
        }
        let unknown = serde_json::from_value::<ProblemKind>(json!("moon-full")).unwrap();
        assert_eq!(unknown, ProblemKind::Other);
    }

    #[test]
    fn one_line_joins_what_and_fix() {
        assert_eq!(bridge_down().to_string(), "add bridge humanz0: no memory; really");
        let fixed = bridge_down().with_fix("free some");
        assert_eq!(fixed.to_string(), "add bridge humanz0: no memory; really; free some");
        assert_eq!(fixed.key(), bridge_down().key());
    }

    #[test]
    fn json_has_every_field() {
        let since = SystemTime::UNIX_EPOCH + Duration::from_secs(60);
        let problem = bridge_down().with_fix("free some").with_since(since);
        let value = serde_json::to_value(&problem).unwrap();
        let wanted = json!({
            "kind": "change-failed", "severity": "error", "subject": "bridge humanz0",
            "what": "add bridge humanz0: no memory; really", "fix": "free some",
            "since": "1970-01-01T00:01:00Z",
        });
        assert_eq!(value, wanted);
        let read: Problem = serde_json::from_value(value).unwrap();
        assert_eq!(read, Problem { subject: Object::named("bridge humanz0"), ..problem });
    }

    #[test]
    fn hosts_and_pods_stand_in_json_as_data() {
        let host = ("host", "h2", Object::Host("h2".parse().unwrap()));
        let pod = ("pod", "shop/web", Object::Pod("shop/web".to_owned()));
        for (field, name, subject) in [host, pod] {
            let problem = Problem::new(ProblemKind::Quarantine, subject, "x");
            let value = serde_json::to_value(&problem).unwrap();
            assert_eq!(
                (&value["subject"], &value[field]),
                (&json!(format!("{field} {name}")), &json!(name))
            );
            assert_eq!(serde_json::from_value::<Problem>(value).unwrap(), problem);
        }
        let unclear =
            json!({"kind": "etcd", "subject": "host a b", "host": "a b", "what": "x", "fix": null});
        assert!(serde_json::from_value::<Problem>(unclear).is_err());
    }
}
