//! etcd: can it be reached, read, believed; certificates and files beside it.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::checks::finding::{Finding, Severity};
use crate::command::doctor::DoctorContext;
use crate::etcd::{self, EtcdSettings};
use crate::inspect::cluster::Cluster;
use crate::settings::Source;

pub fn look(context: &DoctorContext<'_>) -> Vec<Finding> {
    let settings = context.settings();
    let Source::Etcd { server, .. } = &settings.source else { return Vec::new() };
    let mut findings = Vec::new();
    let stale = || context.host.cluster.as_ref()?.stale.as_ref().map(|stale| &stale.why);
    match (context.host.peers_unknown.as_ref().or_else(stale), &context.host.cluster) {
        (Some(error), _) => {
            let cure = "is a member up, is the port open, are user and certificates right? Pods keep \
                        their network; no new host is seen until then";
            let seen = format!("etcd cannot be read: {error}");
            findings.push(Finding::new(Severity::Wrong, "etcd", "a read of all keys", seen, cure));
        }
        (None, Some(cluster)) => findings.extend(records(context, cluster)),
        (None, None) => {}
    }
    findings.extend(files(server));
    findings
}

/// What is wrong with what is in it.
fn records(context: &DoctorContext<'_>, cluster: &Cluster) -> Vec<Finding> {
    let snapshot = &cluster.snapshot;
    let mut findings = Vec::new();
    for fault in snapshot.faults.values() {
        let seen = format!("key {} is ignored: {}", fault.key, fault.what);
        let cure = format!("etcdctl get {:?}, then delete or mend it", fault.key);
        findings.push(Finding::new(Severity::Warning, "etcd-record", "etcd", seen, cure));
    }
    let (name, others) = (&cluster.own, context.host.peers.iter());
    for fault in others.flat_map(|peers| &peers.faults) {
        let cure = "two hosts share a name, a disk or a hand-made key: mend it on the host named";
        let seen = fault.to_string();
        findings.push(Finding::new(Severity::Wrong, "other-host", "etcd", seen, cure));
    }
    let own = snapshot.nodes.get(name).map(|node| &node.value.machine_id);
    for (host, node) in snapshot.nodes.iter() {
        if host != name && Some(&node.value.machine_id) == own {
            let seen = format!("host {host} has the machine id of this host: one is a copy");
            let cure = "rm /etc/machine-id && systemd-machine-id-setup on the copy, then reboot it";
            findings.push(Finding::new(Severity::Wrong, "machine-id", "etcd", seen, cure));
        }
    }
    let others = context.host.others();
    let silent: Vec<&str> = others
        .filter(|(_, peer)| !peer.alive && !peer.python)
        .map(|(host, _)| host.as_str())
        .collect();
    if !silent.is_empty() {
        let few = silent.iter().take(5).copied().collect::<Vec<&str>>().join(", ");
        let seen = format!("{} hosts show no sign of life: {few}", silent.len());
        let cure = "look there; a host that is gone for good: humanz-agent nodes rm NAME";
        findings.push(Finding::new(Severity::Note, "hosts-silent", "etcd", seen, cure));
    }
    if context.host.agent().is_ok() && !snapshot.hosts.contains_key(name) {
        let seen = format!("etcd holds no subnet of this host ({name})");
        let cure =
            "the agent claims it again by itself; if this stays, its etcd user may not write";
        findings.push(Finding::new(Severity::Wrong, "lease", "etcd", seen, cure));
    }
    findings
}

/// Certificates, key and password, as the agent looks at them; and who may read what is secret.
fn files(server: &EtcdSettings) -> Vec<Finding> {
    let (faults, untimely) = etcd::look_at_files(server);
    let faults = faults.into_iter().map(|fault| {
        let how = format!("{}={}", fault.variable, fault.path);
        let seen = format!("{}: {}", fault.path, fault.wrong);
        Finding::new(Severity::Wrong, "etcd-files", how, seen, "put a good one there")
    });
    let untimely = untimely.into_iter().map(|found| {
        let severity = if found.holds { Severity::Warning } else { Severity::Wrong };
        let seen = format!("{}: {}", found.name, found.what);
        Finding::new(severity, "certificate", found.name, seen, found.cure)
    });
    let secrets = [("ETCD_KEY", &server.key), ("ETCD_PASSWORD_FILE", &server.password_file)];
    let open = secrets.into_iter().filter_map(|(variable, path)| open(variable, path.as_deref()?));
    faults.chain(untimely).chain(open).collect()
}

/// Everybody may read a secret.
fn open(variable: &str, path: &Path) -> Option<Finding> {
    // A file that is not there was told.
    let mode = std::fs::metadata(path).ok()?.permissions().mode();
    (mode & 0o007 != 0).then(|| {
        let (how, path) = (format!("{variable}={}", path.display()), path.display());
        let seen = format!("everybody may read {path}");
        let cure = format!("chmod 0600 {path}");
        Finding::new(Severity::Warning, "etcd-files", how, seen, cure)
    })
}
