//! etcd: can it be reached, read, believed; certificates and files beside it.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::command::doctor::context::DoctorContext;
use crate::command::doctor::unenforced;
use crate::etcd::{self, EtcdSettings};
use crate::inspect::cluster::ClusterView;
use crate::lease::NodeName;
use crate::net::shell::word;
use crate::net::{Object, Problem, ProblemKind};
use crate::settings::Source;

pub fn problems(context: &DoctorContext<'_>) -> Vec<Problem> {
    let settings = context.settings();
    let Source::Etcd { server, .. } = &settings.source else { return Vec::new() };
    if settings.is_etcd_unknown() {
        // The agent that is missing says so.
        return files(server);
    }
    let mut problems = Vec::new();
    let stale = || context.host.cluster.as_ref()?.stale.as_ref().map(|stale| &stale.why);
    match (context.host.peers_unknown.as_ref().or_else(stale), &context.host.cluster) {
        (Some(error), _) => {
            let fix = "humanz-agent config # is a member of ETCD_HOST up, is the port open, are user and certificates right? Pods keep \
                        their network; no new host is seen until then";
            let what = format!("etcd cannot be read: {error}");
            let problem = Problem::new(ProblemKind::Etcd, Object::named("etcd"), what);
            problems.push(problem.with_fix(fix));
        }
        (None, Some(cluster)) => {
            problems.extend(records(context, cluster));
            problems.extend(unenforced::here(settings));
        }
        (None, None) => {}
    }
    problems.extend(files(server));
    problems
}

/// `host` has the machine id of this host, and if it `is_former` its address, too, and no agent.
fn same_machine(host: &NodeName, is_former: bool) -> Problem {
    let (what, fix) = match is_former {
        true => (
            "and the address of this host, and no agent: it is a former name of it",
            format!("humanz-agent nodes show {host} # then humanz-agent nodes rm {host}"),
        ),
        false => (
            "of this host: one is a copy",
            "rm /etc/machine-id && systemd-machine-id-setup # on the copy, then reboot it"
                .to_owned(),
        ),
    };
    let what = format!("host {host} has the machine id {what}");
    Problem::new(ProblemKind::MachineId, Object::Host(host.clone()), what).with_fix(fix)
}

/// What is wrong with what is in it.
fn records(context: &DoctorContext<'_>, cluster: &ClusterView) -> Vec<Problem> {
    let snapshot = &cluster.snapshot;
    let mut problems = Vec::new();
    problems.extend(snapshot.problems());
    let (name, others) = (&cluster.own, context.host.peers.iter());
    problems.extend(others.flat_map(|peers| peers.problems()));
    let own = snapshot.nodes.get(name);
    for (host, node) in snapshot.nodes.iter().filter(|(host, _)| *host != name) {
        if let Some(own) = own.filter(|own| own.value.machine_id == node.value.machine_id) {
            let is_here = node.value.addresses == own.value.addresses;
            problems.push(same_machine(host, is_here && !snapshot.alive.contains_key(host)));
        }
    }
    let others = context.host.others();
    let silent: Vec<&str> = others
        .filter(|(_, peer)| !peer.alive && !peer.python)
        .map(|(host, _)| host.as_str())
        .collect();
    if !silent.is_empty() {
        let few = silent.iter().take(5).copied().collect::<Vec<&str>>().join(", ");
        let what = match silent.len() {
            1 => format!("1 host shows no sign of life: {few}"),
            many => format!("{many} hosts show no sign of life: {few}"),
        };
        let fix = format!(
            "humanz-agent nodes ls # start their agents; a permanently removed host, such as this one: \
             humanz-agent nodes rm {}",
            silent[0]
        );
        let subject = Object::named("other hosts");
        problems.push(Problem::new(ProblemKind::HostsSilent, subject, what).with_fix(fix));
    }
    if context.host.agent().is_ok() && !snapshot.hosts.contains_key(name) {
        let what = format!("etcd holds no subnet of this host ({name})");
        let fix =
            format!("humanz-agent nodes roles {name} # if this stays, its etcd user may not write");
        let subject = Object::Lease(name.clone());
        problems.push(Problem::new(ProblemKind::Lease, subject, what).with_fix(fix));
    }
    problems
}

/// Certificates, key and password, as the agent looks at them; and the permissions of what is secret.
fn files(server: &EtcdSettings) -> Vec<Problem> {
    let (faults, untimely) = etcd::check_files(server);
    let secrets = [("ETCD_KEY", &server.key), ("ETCD_PASSWORD_FILE", &server.password_file)];
    let open = secrets.into_iter().filter_map(|(variable, path)| open(variable, path.as_deref()?));
    faults.into_iter().chain(untimely).chain(open).collect()
}

/// Everybody may read a secret.
fn open(variable: &'static str, path: &Path) -> Option<Problem> {
    // A missing file is reported above.
    let mode = std::fs::metadata(path).ok()?.permissions().mode();
    (mode & 0o007 != 0).then(|| {
        let path = path.display();
        let subject = Object::Setting(variable, path.to_string());
        let what = format!("everybody may read {path}");
        let fix = format!("chmod 0600 {}", word(&path));
        Problem::new(ProblemKind::SecretReadable, subject, what).with_fix(fix)
    })
}
