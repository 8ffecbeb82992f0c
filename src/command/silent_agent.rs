//! An agent that does not answer, as a problem.

use crate::agent::lock;
use crate::inspect::agent_socket;
use crate::inspect::identity::as_root;
use crate::inspect::service_manager::service_manager;
use crate::net::{Object, Problem, ProblemKind};
use crate::os::files;
use crate::settings::Settings;

/// Whether the agent hangs, does not run, or may not be asked; `why` it does not answer.
///
/// An agent that holds its lock is restarted: an active unit is not started again.
pub fn silent_agent(settings: &Settings, why: &str) -> Problem {
    let Settings { state_dir, socket, .. } = settings;
    let manager = service_manager();
    if agent_socket::is_denied(settings) || lock::is_denied(state_dir) {
        let what = format!("unknown whether an agent serves this host: {why}");
        return problem(ProblemKind::AgentSilent, what, as_root());
    }
    if lock::is_held(state_dir) {
        let what = format!("an agent serves this host, but does not answer: {why}");
        let fix = match socket {
            Some(_) => {
                let restart = manager.restart();
                format!("{restart} # pods do not notice; its log may say why it hangs")
            }
            None => "humanz-agent config # set SOCKET, so that the agent can be queried".to_owned(),
        };
        return problem(ProblemKind::AgentSilent, what, &fix);
    }
    if let Some(holder) = lock::network_holder() {
        let what =
            format!("{why}, but an agent with a STATE_DIR of its own serves this host ({holder})");
        let fix = "pgrep -a humanz-agent # ask it with its settings (--env-file, or its STATE_DIR and SOCKET), or stop it: a host has one agent";
        return problem(ProblemKind::AgentSilent, what, fix);
    }
    if settings.is_etcd_unknown() {
        return perhaps_not_missed(settings, why);
    }
    let what = format!("{why}, and none holds its lock");
    let fix = format!(
        "{}; until then pods keep their network, but nothing is repaired and no new host is reached",
        manager.start()
    );
    problem(ProblemKind::AgentDown, what, &fix)
}

/// There is no agent, and without etcd the plugin alone may serve this host.
fn perhaps_not_missed(settings: &Settings, why: &str) -> Problem {
    let conf = &settings.cni.config;
    if files::is_denied(conf) {
        let what = format!(
            "{why}; unknown whether one is missed: only root may read {}, which says whether humanz-agent init set \
             this machine up without one",
            conf.display()
        );
        return problem(ProblemKind::AgentSilent, what, as_root());
    }
    let what = format!(
        "{why}, none holds its lock, and ETCD_HOST is not set: what only etcd knows is unknown"
    );
    let fix = format!(
        "humanz-agent config # that is right if the plugin alone serves this host; else set ETCD_HOST in /etc/humanz/agent.env, then {}",
        service_manager().start()
    );
    problem(ProblemKind::AgentDown, what, &fix)
}

fn problem(kind: ProblemKind, what: String, fix: &str) -> Problem {
    Problem::new(kind, Object::named("humanz-agent"), what).with_fix(fix)
}
