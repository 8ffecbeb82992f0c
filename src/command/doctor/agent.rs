//! The agent itself, and what it would change or complain about.

use std::sync::Arc;

use crate::agent::{dry_run, lock};
use crate::checks::finding::{Finding, Severity, mtu};
use crate::command::doctor::Patient;
use crate::inspect::Kernel;
use crate::inspect::agent_socket;
use crate::inspect::host_state;
use crate::inspect::identity;
use crate::lease::peers;
use crate::plan::Line;
use crate::plan::tunnel;
use crate::settings::Settings;

/// So many changes are written out.
const SHOWN: usize = 5;

pub fn look(patient: &Patient<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    findings.extend(privileges());
    findings.extend(patient.told.warnings.iter().map(|warning| {
        let cure = "mend the file, or nobody knows what holds";
        Finding::new(Severity::Warning, "settings", "settings file", warning, cure)
    }));
    findings.extend(running(patient));
    findings.extend(own_faults(patient));
    findings.extend(pass(patient));
    findings.extend(sizes(patient));
    findings
}

fn privileges() -> Option<Finding> {
    (!nix::unistd::geteuid().is_root()).then(|| {
        let seen = "this is not root: much cannot be looked at";
        Finding::new(Severity::Warning, "privileges", "geteuid", seen, "run it as root")
    })
}

/// Whether an agent serves this host: it answers, or it holds its lock.
fn running(patient: &Patient<'_>) -> Option<Finding> {
    let error = patient.status.as_ref().err()?;
    let Settings { state_dir, socket, .. } = &patient.told.settings;
    if agent_socket::is_denied(&patient.told.settings) || lock::is_denied(state_dir) {
        let seen = format!("nobody knows whether an agent serves this host: {error}");
        let cure = "run this as root";
        return Some(Finding::new(Severity::Warning, "agent-silent", "socket", seen, cure));
    }
    if lock::is_held(state_dir) {
        let seen = format!("an agent serves this host, and cannot be asked: {error}");
        let cure = match socket {
            Some(_) => {
                "systemctl restart humanz-agent (pods do not notice); its log may say why it hangs"
            }
            None => "set SOCKET, and the agent can be asked",
        };
        return Some(Finding::new(Severity::Warning, "agent-silent", "socket", seen, cure));
    }
    let seen = format!("{error}, and none holds its lock");
    let cure = "systemctl enable --now humanz-agent; pods keep their network, but nothing is \
                repaired and no new host is reached";
    Some(Finding::new(Severity::Wrong, "agent-down", "socket and lock", seen, cure))
}

/// So begins what the agent says of a subnet without a free address.
const FULL: &str = "no address is free in ";

/// What the running agent says is wrong, and of its loops.
fn own_faults(patient: &Patient<'_>) -> Vec<Finding> {
    let Ok(status) = &patient.status else { return Vec::new() };
    let list = |key: &str| status[key].as_array().cloned().unwrap_or_default();
    let mut findings = Vec::new();
    for fault in list("faults") {
        let (what, cure) = (fault["what"].as_str(), fault["cure"].as_str());
        // Loops and full subnets have names of their own.
        let named = |what: &&str| what.starts_with("the loop ") || what.starts_with(FULL);
        if let Some(what) = what.filter(|what| !named(what)) {
            let cure = cure.filter(|cure| !cure.is_empty()).unwrap_or("see the agent's log");
            findings.push(Finding::new(Severity::Wrong, "agent-fault", "the agent", what, cure));
        }
    }
    for beat in list("loops") {
        let (since, limit) = (beat["seconds_since_beat"].as_f64(), beat["limit"].as_f64());
        if let (Some(since), Some(limit)) = (since, limit)
            && since > limit
        {
            let seen = format!("the loop {} has not moved for {since:.0} s", beat["name"]);
            let cure = "systemctl restart humanz-agent (pods do not notice), and report a bug";
            findings.push(Finding::new(Severity::Wrong, "agent-stuck", "the agent", seen, cure));
        }
    }
    let version = status["node"]["version"].as_str().unwrap_or(env!("CARGO_PKG_VERSION"));
    if version != env!("CARGO_PKG_VERSION") {
        let seen = format!("the agent is {version}, this program {}", env!("CARGO_PKG_VERSION"));
        let cure = "systemctl restart humanz-agent: it is the one of before the upgrade";
        findings.push(Finding::new(Severity::Warning, "agent-old", "the agent", seen, cure));
    }
    findings
}

/// What a pass of the agent would find, without making it.
fn pass(patient: &Patient<'_>) -> Vec<Finding> {
    let (settings, around) = (&patient.told.settings, patient.around);
    let kernel = match Kernel::open(settings) {
        Ok(kernel) => kernel,
        Err(exit) => {
            let cure = "modprobe nf_tables; is the kernel built without it?";
            return vec![Finding::new(Severity::Wrong, "kernel", "netlink", exit.why, cure)];
        }
    };
    if around.subnets.is_empty() {
        return Vec::new();
    }
    let fresh = patient.etcd.as_ref().and_then(|etcd| etcd.as_ref().ok()).and_then(|snapshot| {
        let name = identity::node_name(settings).ok()?;
        Some(peers(snapshot, &name, &around.subnets, &settings.pools))
    });
    let others = Arc::new(fresh.unwrap_or_else(|| around.peers.clone()));
    let looked = dry_run::look(settings, &kernel, &around.subnets, Some(&others));
    let mut findings: Vec<Finding> = looked
        .trouble
        .iter()
        .map(|line| Finding::told("surroundings", &line.to_string()))
        .collect();
    if !looked.lines.is_empty() {
        let lines: Vec<String> = looked.lines.iter().take(SHOWN).map(Line::to_string).collect();
        let more = match looked.lines.len().saturating_sub(SHOWN) {
            0 => String::new(),
            more => format!("; and {more} more"),
        };
        let seen = format!("not as it should be: {}{more}", lines.join("; "));
        let cure = match patient.status {
            Ok(_) => format!(
                "the agent mends at once what the kernel tells it of, and the rest within {:?} \
                 (RESYNC_INTERVAL); if it stays, somebody undoes it: see repairs in its status",
                settings.resync
            ),
            Err(_) => "start the agent, which does that".to_owned(),
        };
        findings.push(Finding::new(Severity::Wrong, "drift", "as the agent looks", seen, cure));
    }
    findings
}

/// MTU of pods against that of the way to the other hosts.
fn sizes(patient: &Patient<'_>) -> Option<Finding> {
    let (settings, around) = (&patient.told.settings, patient.around);
    let bridge = around.rtnl.link(&settings.bridge).ok()??;
    let facts = host_state::observe(&around.rtnl, settings, None).ok()?;
    let families = facts.own.addresses.entries().map(|(family, _)| family);
    let tunnels = families.filter_map(|family| {
        around.rtnl.link(&tunnel::device_name(family)).ok()??;
        Some(tunnel::inner_mtu(facts.own.mtu_bytes, family, &around.subnets))
    });
    mtu(bridge.mtu, facts.own.mtu_bytes, tunnels.min())
}
