//! The agent itself, and what it would change or report.

use crate::agent::dry_run::{self, DryRun};
use crate::agent::reconcile::encryption;
use crate::api::status::Status;
use crate::checks::limits::mtu;
use crate::command::doctor::context::DoctorContext;
use crate::command::silent_agent::silent_agent;
use crate::command::single_machine;
use crate::inspect::service_manager::service_manager;
use crate::net::{Family, Object, Problem, ProblemKind};
use crate::plan::{Line, tunnel};

/// So many changes are written out.
const SHOWN: usize = 5;

const AGENT: &str = "humanz-agent";

/// What the running agent reports.
pub fn reported(context: &DoctorContext<'_>) -> Vec<Problem> {
    let Ok(status) = context.host.agent() else { return Vec::new() };
    let status = match Status::read(status.clone()) {
        Ok(status) => status,
        Err(why) => {
            let problem = Problem::new(ProblemKind::AgentSilent, Object::named(AGENT), why);
            return vec![problem.with_fix(service_manager().restart())];
        }
    };
    let (own, restart) = (env!("CARGO_PKG_VERSION"), service_manager().restart());
    let mut problems = status.problems.0.unwrap_or_default();
    let version = Some(status.node.version).filter(|found| !found.is_empty() && found != own);
    problems.extend(version.map(|version| {
        let what = format!("the agent is {version}, this program {own}");
        Problem::new(ProblemKind::AgentVersion, Object::named(AGENT), what)
            .with_fix(format!("{restart} # it is the one of before the upgrade"))
    }));
    problems
}

pub fn problems(context: &DoctorContext<'_>) -> Vec<Problem> {
    let mut problems = Vec::new();
    problems.extend(privileges());
    problems.extend(context.loaded.warnings.iter().cloned());
    let silent = context.host.agent().as_ref().err().filter(|_| !context.settings().agentless);
    problems.extend(silent.map(|why| silent_agent(context.settings(), why)));
    let found = single_machine::dry_run(context.host);
    problems.extend(reconcile(context, &found));
    problems.extend(sizes(context, &found));
    problems
}

fn privileges() -> Option<Problem> {
    (!nix::unistd::geteuid().is_root()).then(|| {
        let what = "this is not root: much cannot be inspected";
        Problem::new(ProblemKind::Privileges, Object::named("this process"), what)
            .with_fix("run it as root")
    })
}

/// What a reconcile of the agent would find.
fn reconcile(context: &DoctorContext<'_>, found: &DryRun) -> Vec<Problem> {
    let mut problems = found.problems();
    if !found.lines.is_empty() {
        let lines: Vec<String> = found.lines.iter().take(SHOWN).map(Line::to_string).collect();
        let more = match found.lines.len().saturating_sub(SHOWN) {
            0 => String::new(),
            more => format!("; and {more} more"),
        };
        let what = format!("not as it should be: {}{more}", lines.join("; "));
        let fix = match context.host.agent() {
            Ok(_) => format!(
                "humanz-agent status # the agent repairs at once what the kernel reports, and the rest within {:?} \
                 (RESYNC_INTERVAL); if it stays, another program undoes it: see repairs",
                context.settings().resync
            ),
            Err(_) if context.settings().agentless => {
                single_machine::fix(context.settings(), &found.lines)
            }
            Err(_) => service_manager().start().to_owned(),
        };
        let subject = Object::named("this host");
        problems.push(Problem::new(ProblemKind::ChangePending, subject, what).with_fix(fix));
    }
    problems
}

/// MTU of pods against that of the path to other hosts. A tunnel counts that leads to one.
fn sizes(context: &DoctorContext<'_>, found: &DryRun) -> Option<Problem> {
    let (settings, host) = (context.settings(), context.host);
    let bridge = host.kernel.rtnl.link(&settings.bridge).ok()??;
    let host_state = host.state().ok()?;
    let remotes = found.peer_routes.iter().flat_map(|routes| &routes.remotes);
    let families = remotes.map(|remote| Family::of(remote.address));
    let tunnels =
        families.map(|family| tunnel::inner_mtu(host_state.own.mtu_bytes, family, &host.subnets));
    let run = dry_run::reconcile_of(host);
    let routes = found.peer_routes.as_ref();
    let encrypted = routes.and_then(|routes| encryption::mtu(&run, &host_state, routes));
    mtu(bridge.mtu, host_state.own.mtu_bytes, tunnels.chain(encrypted).min())
}
