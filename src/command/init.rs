//! `init`: one machine without an agent: the plugin and a configuration for its container runtimes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

use argh::{ArgsInfo, FromArgs};
use ipnetwork::IpNetwork;
use serde_json::json;

use crate::agent::applier::Applier;
use crate::agent::reconcile::plugin::DRIVER;
use crate::agent::{cni_conf, lock, reconcile};
use crate::checks::host_checks;
use crate::command::arguments::typed;
use crate::command::call::{Call, Outcome};
use crate::command::single_machine;
use crate::command::table::Tone;
use crate::inspect::{Host, HostList, preflight, runtimes};
use crate::net::shell::word;
use crate::net::{Object, PerFamily, Problem, ProblemKind};
use crate::os::files;
use crate::plan::firewall::AGENT_TABLE;
use crate::plan::firewall::encryption::ENCRYPTION_TABLE;
use crate::plan::firewall::flowtable::FLOWS_TABLE;
use crate::plan::firewall::tunnels::TUNNELS_TABLE;
use crate::plan::{Line, ownership};
use crate::policy::compile::POLICY_TABLE;
use crate::settings::exit::{self, Exit};
use crate::settings::{Settings, Source, Texts};

/// Where containers get their addresses from, unless `--subnet` says otherwise.
const SUBNET: &str = "10.244.1.0/24";

/// What does not change below attached pods.
const OF_PODS: [&str; 4] = ["SUBNET", "CNI_NAME", "BRIDGE_NAME", "IPAM_DIR"];

/// Permissions of the configuration: that of the agent.
const MODE: u32 = 0o600;

/// The first podman without CNI: it has netavark.
const WITHOUT_CNI: u32 = 5;

/// give the container runtimes of one machine a network without any agent
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(
    subcommand,
    name = "init",
    example = "{command_name}",
    example = "{command_name} --subnet 10.88.0.0/16,fd00:88::/64 --dry-run",
    example = "{command_name} --cni-plugin-location /usr/lib/cni/humanz",
    note = "Installs the plugin and a configuration, and prints what was done and the next step. --subnet \
        has the addresses (default: 10.244.1.0/24). Running it again changes nothing; humanz-agent uninstall \
        with the same options takes everything away.",
    error_code(0, "a runtime can start containers in the network"),
    error_code(
        1,
        "an agent serves this host, another configuration is there, or a runtime reads other directories"
    ),
    error_code(2, "a setting is wrong, or does not fit this host")
)]
pub struct Init {
    /// only say what would be done
    #[argh(switch)]
    dry_run: bool,
    /// print one JSON object
    #[argh(switch)]
    json: bool,
}

/// # Errors
/// A setting is wrong, or something of somebody else is in the way; nothing was changed then.
pub fn run(call: &mut Call<'_>, options: &Init) -> Result<Outcome, Exit> {
    call.origin.set_default("SUBNET_SOURCE", "static");
    call.origin.set_default("SUBNET", SUBNET);
    let loaded = call.origin.load(preflight::check);
    let loaded = loaded.map_err(|faults| Exit::invalid_settings(&faults))?;
    let (settings, texts) = (loaded.settings, loaded.texts);
    refuse(&settings)?;
    let host = Host::inspect(&settings, HostList::Skip)?;
    refuse_to_move(&settings, &texts, &host)?;
    refuse_beside_tables(&host)?;
    let mtu = host.state().map(|state| state.own.pod_mtu_bytes).ok();
    let text = configuration((&settings, &texts), &host.subnets, mtu);
    let mut applier = Applier::new(options.dry_run);
    reconcile::plugin::install(&settings, &mut applier);
    let podman = has("podman").then(podman_version).flatten();
    if podman.is_some_and(|version| version >= WITHOUT_CNI) {
        reconcile::plugin::install_for_netavark(&settings, &mut applier);
    }
    write(&settings.cni.config, &text, &mut applier);
    let mut problems = applier.failures().to_vec();
    if problems.is_empty() {
        problems = unseen(&settings, call.origin.options());
    }
    let changes = if options.dry_run { applier.lines() } else { applier.changes() };
    let changes: Vec<String> = changes.iter().map(ToString::to_string).collect();
    let next = next(&settings.cni.name, podman, problems.is_empty());
    let mut lines = match changes.is_empty() {
        true => vec!["everything is in place".to_owned()],
        false => changes.clone(),
    };
    lines.extend(problems.iter().map(|it| call.style.paint(Tone::Bad, &format!("! {it}"))));
    lines.push(String::new());
    lines.extend(next.iter().cloned());
    lines.push(format!(
        "to take it off this host again: {}",
        typed("uninstall", call.origin.options())
    ));
    let value = json!({
        "dry_run": options.dry_run, "changes": changes, "problems": problems, "next": next,
    });
    call.answer(options.json, problems.is_empty(), value, &lines.join("\n"))
}

/// That of an agent, but that the plugin makes the bridge and masquerades; with `texts`, by which subcommands know such
/// a machine. `mtu_bytes`: `None` if this host does not say it.
fn configuration(
    (settings, texts): (&Settings, &Texts),
    subnets: &PerFamily<IpNetwork>,
    mtu_bytes: Option<u32>,
) -> String {
    let mut plugin =
        cni_conf::plugin(settings, subnets, mtu_bytes.unwrap_or_default(), &BTreeSet::new());
    plugin.retain(|key, _| !["createBridge", "network"].contains(&key.as_str()));
    plugin.retain(|key, _| key != "mtu" || mtu_bytes.is_some());
    plugin.insert("ipMasq".to_owned(), json!(true));
    cni_conf::mark_init(&mut plugin, texts);
    cni_conf::document(settings, plugin)
}

/// What is somebody else's to decide.
fn refuse(settings: &Settings) -> Result<(), Exit> {
    let failure =
        |why: String| Err(Exit::new(exit::FAILURE, format!("{why}; nothing was changed")));
    if !matches!(settings.source, Source::Static(_)) {
        return failure(
            "SUBNET_SOURCE is set: this host is one of several, whose agent does all this".into(),
        );
    }
    if lock::is_held(&settings.state_dir) || lock::network_holder().is_some() {
        return failure("an agent serves this host, and has done all this".into());
    }
    let path = &settings.cni.config;
    match fs::read_to_string(path) {
        Ok(text) if !cni_conf::is_managed(&text) => failure(format!(
            "{} is not humanz's: choose another file with --cni-config-location",
            path.display()
        )),
        _ => Ok(()),
    }
}

/// Pods of an earlier `init` would lose their masquerading with another subnet, and their DELs with another name.
fn refuse_to_move(settings: &Settings, texts: &Texts, host: &Host) -> Result<(), Exit> {
    let Some(former) = single_machine::texts(&settings.cni.config) else { return Ok(()) };
    let moved = OF_PODS.into_iter().find_map(|name| {
        former.get(name).filter(|it| texts.get(name) != Some(it)).map(|it| (name, it))
    });
    let links = host.kernel.rtnl.links(None).map_err(anyhow::Error::from)?;
    let (pods, it) = match ownership::attached(&links).len() {
        0 => return Ok(()),
        1 => ("1 pod is".to_owned(), "it"),
        many => (format!("{many} pods are"), "them"),
    };
    moved.map_or(Ok(()), |(name, text)| {
        let why = format!(
            "{pods} attached with {name}={text}: stop {it} first (humanz-agent pods); nothing was changed"
        );
        Err(Exit::new(exit::FAILURE, why))
    })
}

/// Those of an agent that served this host go on without it: policies would keep new pods from each other.
fn refuse_beside_tables(host: &Host) -> Result<(), Exit> {
    let tables = host.kernel.nft.tables().map_err(anyhow::Error::from)?;
    let of_agent = [AGENT_TABLE, POLICY_TABLE, ENCRYPTION_TABLE, TUNNELS_TABLE, FLOWS_TABLE];
    let left = of_agent.into_iter().find(|name| tables.iter().any(|it| it == name));
    left.map_or(Ok(()), |name| {
        let why = format!(
            "nft table inet {name} is left from an agent that served this host: humanz-agent uninstall; nothing was \
             changed"
        );
        Err(Exit::new(exit::FAILURE, why))
    })
}

fn write(path: &Path, text: &str, applier: &mut Applier) {
    if files::holds(path, text.as_bytes()) {
        return;
    }
    let object = Object::Configuration(path.to_owned());
    let line = if path.exists() { Line::changed(object) } else { Line::added(object) };
    applier.apply(&line, || files::replace(path, text.as_bytes(), MODE));
}

/// Runtimes that look elsewhere, and configurations that they would read before this one.
fn unseen(settings: &Settings, options: &BTreeMap<&'static str, String>) -> Vec<Problem> {
    let (plugin, config) = (&settings.cni.plugin, &settings.cni.config);
    let found = runtimes::inspect(plugin);
    let set_place = |variable, place: &Path| single_machine::elsewhere(options, variable, place);
    let mut problems = host_checks::runtimes::problems(&found, plugin, config, set_place);
    let folder = config.parent().unwrap_or(config);
    let before = runtimes::configurations(folder).into_iter().find(|path| path < config);
    problems.extend(before.map(|path| {
        let what =
            format!("containerd's pods get the network of {}, which sorts first", path.display());
        let subject = Object::Configuration(path.clone());
        let problem = Problem::new(ProblemKind::CniConfigurationOrder, subject, what);
        problem.with_fix(format!("mv {} /root", word(path.display())))
    }));
    problems
}

/// What to type, for each runtime that this machine has. `seen`: nothing keeps runtimes from it.
fn next(network: &str, podman: Option<u32>, seen: bool) -> Vec<String> {
    let mut lines = Vec::new();
    if has("containerd") || has("crio") {
        let when = if seen { "" } else { ", once what is marked with ! is repaired" };
        lines.push(format!("containerd and CRI-O: new pods have the network{when}"));
    }
    if has("nerdctl") {
        lines.push(format!("nerdctl: nerdctl run --network {network} IMAGE"));
    }
    if has("podman") {
        lines.push(of_podman(network, podman));
    }
    if lines.is_empty() {
        lines.push("there is no containerd, CRI-O, nerdctl or podman here yet".to_owned());
    }
    lines
}

fn has(program: &str) -> bool {
    let folders = ["/usr/local/bin", "/usr/bin", "/usr/sbin"];
    folders.iter().any(|folder| Path::new(folder).join(program).exists())
}

fn podman_version() -> Option<u32> {
    let said = Command::new("podman").arg("--version").output().ok()?.stdout;
    let said = String::from_utf8_lossy(&said).into_owned();
    said.split_whitespace().find_map(|word| word.split('.').next()?.parse().ok())
}

fn of_podman(network: &str, version: Option<u32>) -> String {
    match version {
        Some(version) if version >= WITHOUT_CNI => format!(
            "podman {version}: once podman network create --driver {DRIVER} {network}, then podman run --network \
             {network} with an image"
        ),
        _ => format!(
            "podman: with network_backend = \"cni\" below [network] in /etc/containers/containers.conf: podman run \
             --network {network} with an image"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn podman_without_cni_gets_a_network_of_netavark() {
        for version in [Some(4), Some(3), None] {
            assert!(of_podman("pods", version).contains("podman run --network pods"));
        }
        for version in [5, 6] {
            let line = of_podman("pods", Some(version));
            assert!(line.contains("network create --driver humanz pods"), "{line}");
        }
    }
}
