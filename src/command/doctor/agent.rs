//! The agent itself, and what it would change or complain about.

use crate::agent::dry_run::DryRun;
use crate::agent::lock;
use crate::checks::finding::{Finding, Severity, mtu};
use crate::command::doctor::DoctorContext;
use crate::inspect::agent_socket;
use crate::plan::{Line, tunnel};
use crate::settings::Settings;

/// So many changes are written out.
const SHOWN: usize = 5;

pub fn look(context: &DoctorContext<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    findings.extend(privileges());
    findings.extend(context.loaded.warnings.iter().map(|warning| {
        let cure = "mend the file, or nobody knows what holds";
        Finding::new(Severity::Warning, "settings", "settings file", warning, cure)
    }));
    findings.extend(running(context));
    findings.extend(own_faults(context));
    findings.extend(reconcile(context));
    findings.extend(sizes(context));
    findings
}

fn privileges() -> Option<Finding> {
    (!nix::unistd::geteuid().is_root()).then(|| {
        let seen = "this is not root: much cannot be looked at";
        Finding::new(Severity::Warning, "privileges", "geteuid", seen, "run it as root")
    })
}

/// Whether an agent serves this host: it answers, or it holds its lock.
fn running(context: &DoctorContext<'_>) -> Option<Finding> {
    let error = context.host.agent().as_ref().err()?;
    let Settings { state_dir, socket, .. } = context.settings();
    if agent_socket::is_denied(context.settings()) || lock::is_denied(state_dir) {
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
fn own_faults(context: &DoctorContext<'_>) -> Vec<Finding> {
    let Ok(status) = context.host.agent() else { return Vec::new() };
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

/// What a reconcile of the agent would find.
fn reconcile(context: &DoctorContext<'_>) -> Vec<Finding> {
    let found = DryRun::of(context.host);
    let problems = found.problems();
    let mut findings: Vec<Finding> =
        problems.iter().map(|line| Finding::told("surroundings", &line.to_string())).collect();
    if !found.lines.is_empty() {
        let lines: Vec<String> = found.lines.iter().take(SHOWN).map(Line::to_string).collect();
        let more = match found.lines.len().saturating_sub(SHOWN) {
            0 => String::new(),
            more => format!("; and {more} more"),
        };
        let seen = format!("not as it should be: {}{more}", lines.join("; "));
        let cure = match context.host.agent() {
            Ok(_) => format!(
                "the agent mends at once what the kernel tells it of, and the rest within {:?} \
                 (RESYNC_INTERVAL); if it stays, somebody undoes it: see repairs in its status",
                context.settings().resync
            ),
            Err(_) => "start the agent, which does that".to_owned(),
        };
        findings.push(Finding::new(Severity::Wrong, "drift", "as the agent looks", seen, cure));
    }
    findings
}

/// MTU of pods against that of the way to the other hosts.
fn sizes(context: &DoctorContext<'_>) -> Option<Finding> {
    let (settings, host) = (context.settings(), context.host);
    let bridge = host.kernel.rtnl.link(&settings.bridge).ok()??;
    let facts = host.state().ok()?;
    let families = facts.own.addresses.entries().map(|(family, _)| family);
    let tunnels = families.filter_map(|family| {
        host.kernel.rtnl.link(&tunnel::device_name(family)).ok()??;
        Some(tunnel::inner_mtu(facts.own.mtu_bytes, family, &host.subnets))
    });
    mtu(bridge.mtu, facts.own.mtu_bytes, tunnels.min())
}
