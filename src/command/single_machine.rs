//! A single machine that `init` set up: there is no agent, and none is missed.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::agent::cni_conf;
use crate::agent::dry_run::DryRun;
use crate::cni::error::code;
use crate::command::arguments::typed;
use crate::inspect::Host;
use crate::net::shell::word;
use crate::net::{Object, Problem, ProblemKind};
use crate::plan::Line;
use crate::plugin;
use crate::settings::{self, Settings, Texts, flags, values_only};

/// What [`Settings::agentless`] means, in words.
pub const STATE: &str = "none: a single machine without an agent, set up by humanz-agent init";

/// What an agent would change of `host`; without one what is not as `init` and the plugin leave it.
pub fn dry_run(host: &Host) -> DryRun {
    if !host.settings.agentless {
        return DryRun::of(host);
    }
    let mut found = DryRun::beside_plugin(host);
    let has_pods = !host.attachments().is_empty();
    match of_plugin(&host.settings) {
        Ok(lines) if has_pods => found.lines.extend(lines),
        Ok(_) => {}
        Err(why) => found.failures.push(why),
    }
    if !has_pods && let Some(outcome) = &mut found.outcome {
        // The first pod turns it on.
        let of_pods = |problem: &Problem| problem.kind != ProblemKind::Forwarding;
        outcome.problems.iter_mut().for_each(|(_, problems)| problems.retain(of_pods));
    }
    let problems = found.outcome.iter_mut().flat_map(|outcome| &mut outcome.problems);
    problems.flat_map(|(_, problems)| problems).for_each(|it| move_there(it, &host.settings));
    found
}

/// A runtime that looks elsewhere: there is no agent that could be given another place.
fn move_there(problem: &mut Problem, settings: &Settings) {
    let (variable, place) = match (problem.kind, &problem.subject) {
        (ProblemKind::CniPlugin, Object::Plugin(place)) => ("CNI_PLUGIN_LOCATION", place),
        (ProblemKind::CniConfiguration, Object::Configuration(place)) => {
            ("CNI_CONFIG_LOCATION", place)
        }
        _ => return,
    };
    if ![&settings.cni.plugin, &settings.cni.config].contains(&place) {
        problem.fix = Some(elsewhere(&options(settings), variable, place));
    }
}

/// What the plugin would repair when the next pod starts.
fn of_plugin(settings: &Settings) -> Result<Vec<Line>, Problem> {
    let path = &settings.cni.config;
    let problem = |why: String| {
        let subject = Object::Configuration(path.clone());
        let what = format!("no pod starts with the CNI configuration {}: {why}", path.display());
        let fix = format!("rm {} && {}", word(path.display()), again(settings));
        Problem::new(ProblemKind::CniConfiguration, subject, what).with_fix(fix)
    };
    let text = fs::read_to_string(path).map_err(|error| problem(error.to_string()))?;
    let passed = cni_conf::passed(&text).ok_or_else(|| problem("it is not valid JSON".into()))?;
    plugin::pending(passed.to_string().as_bytes()).map_err(|error| {
        let why = error.details.map(|why| format!("{}: {why}", error.msg)).unwrap_or(error.msg);
        match error.code {
            code::IO => no_room(&settings.cni.ipam_dir, &why),
            _ => problem(why),
        }
    })
}

/// No address can be written down: another configuration would not help.
fn no_room(ipam_dir: &Path, why: &str) -> Problem {
    let dir = word(ipam_dir.display());
    let fix =
        format!("df -h {dir}; ls -la {dir} # make room there, or let root write to it (IPAM_DIR)");
    let subject = Object::File("store", ipam_dir.to_owned());
    Problem::new(ProblemKind::IpamStore, subject, format!("no pod starts: {why}")).with_fix(fix)
}

/// What puts right what is pending.
pub fn fix(settings: &Settings, lines: &[Line]) -> String {
    let is_file = |line: &&Line| matches!(line.object, Object::Plugin(_) | Object::PluginLink(_));
    match lines.iter().filter(is_file).count() {
        0 => "start a pod: the plugin repairs bridge, masquerading and host ports then; recreate pods that lack \
              their guard or link"
            .to_owned(),
        count if count == lines.len() => again(settings),
        _ => format!("{} # then start a pod: the plugin repairs the rest", again(settings)),
    }
}

/// The `init` that set this machine up, as it is typed.
pub fn again(settings: &Settings) -> String {
    typed("init", &options(settings))
}

/// The same again in another place, and nothing left in the one before.
pub fn elsewhere(
    options: &BTreeMap<&'static str, String>,
    variable: &'static str,
    place: &Path,
) -> String {
    let mut moved = options.clone();
    moved.insert(variable, place.display().to_string());
    format!("{} && {}", typed("uninstall", options), typed("init", &moved))
}

/// What was typed behind it.
fn options(settings: &Settings) -> BTreeMap<&'static str, String> {
    let text = fs::read_to_string(&settings.cni.config).unwrap_or_default();
    let mut texts = flags::known(cni_conf::of_init(&text).unwrap_or_default());
    texts.remove("SUBNET_SOURCE");
    texts
}

/// The settings of the `init` that wrote the CNI configuration at `path`; `None` if none did, or this release cannot
/// do with them.
pub fn texts(path: &Path) -> Option<Texts> {
    let texts = flags::texts(cni_conf::of_init(&fs::read_to_string(path).ok()?)?);
    settings::parse(&texts, values_only).is_ok().then_some(texts)
}
