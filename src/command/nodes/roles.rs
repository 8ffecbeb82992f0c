//! `nodes roles`: a user and a role in etcd for each host, with which it can harm no other.

use std::path::Path;
use std::{fs, io};

use argh::{ArgsInfo, FromArgs};
use serde_json::{Value, json};

use crate::command::call::{Call, Outcome};
use crate::command::nodes::node::name;
use crate::command::nodes::{network, reserve};
use crate::etcd::{self, EtcdSettings, WantedRole};
use crate::inspect::cluster;
use crate::lease::Snapshot;
use crate::lease::records::{NodeName, Roots};
use crate::lease::roles::{self, FoundRoles};
use crate::net::PerFamily;
use crate::os::{files, identity};
use crate::settings::Settings;
use crate::settings::exit::{self, Exit};

/// a user and a role in etcd for each host, with which it writes its own keys only: prints the
/// commands of etcdctl, or with --apply makes them (ETCD_USER and ETCD_PASSWORD_FILE, or the
/// certificate, are then those of an administrator). A host that is not there yet gets its subnet
/// reserved
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(
    subcommand,
    name = "roles",
    example = "{command_name} h1",
    example = "{command_name} --apply --passwords /root/etcd h1 h2 h9",
    error_code(1, "etcd refused, or a role differs, as reported"),
    error_code(69, "etcd cannot be reached"),
    error_code(75, "no subnet is free, or etcd keeps changing")
)]
pub struct Roles {
    /// names of the hosts (default: all that have or reserved a subnet)
    #[argh(positional)]
    hosts: Vec<String>,
    /// make users and roles, revoke what permits more, reserve missing subnets, and write the
    /// network settings if they are missing or narrower than here
    #[argh(switch)]
    apply: bool,
    /// directory for the passwords of new users, one file for each host (without it they have none,
    /// and hosts log in by a client certificate whose common name is the host's name)
    #[argh(option)]
    passwords: Option<String>,
    /// print one JSON object
    #[argh(switch)]
    json: bool,
}

/// What was found out about one host.
struct RoleOutcome {
    host: NodeName,
    commands: Vec<String>,
    problems: Vec<String>,
}

pub fn run(call: &mut Call<'_>, options: &Roles) -> Result<Outcome, Exit> {
    let given = options.hosts.iter().map(|text| name(text)).collect::<Result<Vec<_>, _>>()?;
    let loaded = call.load()?;
    let (server, roots) = cluster::etcd(&loaded.settings)?;
    if options.apply {
        // Hosts with a role of their own may not.
        network::write(&loaded.settings, server, roots)?;
    }
    let found = etcd::read(server, roots).map_err(unreachable)?;
    let hosts = if given.is_empty() { known(&found) } else { given };
    let reports = match options.apply {
        true => apply(&loaded.settings, server, roots, &found, hosts, options)?,
        false => hosts.into_iter().map(|host| planned(roots, &found, host)).collect(),
    };
    let version = etcd::version(server, roots).ok();
    answer(call, options, &reports, version)
}

fn unreachable(why: String) -> Exit {
    Exit::new(exit::UNAVAILABLE, format!("roles of hosts: {why}"))
}

/// Every host with a subnet but those of the Python agent, which cannot log in.
fn known(found: &Snapshot) -> Vec<NodeName> {
    let claims = found.claims.values().map(|claim| claim.value.clone());
    let mut names: Vec<NodeName> = found.nodes.keys().cloned().chain(claims).collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// The commands for one host, whatever there is.
fn planned(roots: &Roots, found: &Snapshot, host: NodeName) -> RoleOutcome {
    let subnets = roles::subnets(found, &host);
    let role = roles::of_host(roots, &host, &subnets);
    let changes = role.changes(&FoundRoles::default());
    let commands = changes.iter().map(|change| role.command(change)).collect();
    let reserve =
        format!("host {host} has no subnet: humanz-agent nodes reserve {host}, then again");
    let problems = subnets.is_empty().then_some(reserve).into_iter().collect();
    RoleOutcome { host, commands, problems }
}

fn apply(
    settings: &Settings,
    server: &EtcdSettings,
    roots: &Roots,
    found: &Snapshot,
    hosts: Vec<NodeName>,
    options: &Roles,
) -> Result<Vec<RoleOutcome>, Exit> {
    let mut wanted = Vec::new();
    for host in &hosts {
        if host.as_str() == "root" {
            let why = "root is etcd's administrator: give the host another NODE_NAME";
            return Err(Exit::new(exit::FAILURE, why));
        }
        let mut subnets = roles::subnets(found, host);
        if subnets.is_empty() {
            let lease = reserve::reserve(settings, host, &PerFamily::default())?;
            subnets = lease.subnets.iter().copied().collect();
        }
        let password = options.passwords.as_deref().map(|folder| password(folder, host));
        let role = roles::of_host(roots, host, &subnets);
        wanted.push(WantedRole { role, password: password.transpose()? });
    }
    let applied = etcd::apply_roles(server, roots, &wanted).map_err(refused)?;
    let reports = hosts.into_iter().zip(&wanted).zip(applied).map(|((host, wanted), applied)| {
        let role = &wanted.role;
        let commands = applied.changes.iter().map(|change| role.command(change)).collect();
        let further = applied.further.iter().map(|other| {
            format!(
                "user {} has the role {other} as well, which permits more: etcdctl user \
                 revoke-role {} {other}",
                role.user, role.user
            )
        });
        RoleOutcome { host, commands, problems: further.collect() }
    });
    Ok(reports.collect())
}

fn refused(why: String) -> Exit {
    let fix = "run it with ETCD_USER and ETCD_PASSWORD_FILE, or the certificate, of an \
               administrator (the role root)";
    Exit::new(exit::FAILURE, format!("{why}; {fix}"))
}

/// The password in the host's file, which is made if it is not there.
fn password(folder: &str, host: &NodeName) -> Result<String, Exit> {
    let path = Path::new(folder).join(host.as_str());
    let failed = |why: String| Exit::new(exit::FAILURE, format!("{}: {why}", path.display()));
    match fs::read_to_string(&path) {
        Ok(text) if !text.trim().is_empty() => return Ok(text.trim().to_owned()),
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(failed(error.to_string()));
        }
        _ => {}
    }
    let random = || identity::random_id().map_err(|error| failed(error.to_string()));
    let password = format!("{}{}", random()?, random()?).replace('-', "");
    let text = format!("{password}\n");
    files::replace(&path, text.as_bytes(), 0o600).map_err(|error| failed(error.to_string()))?;
    Ok(password)
}

fn answer(
    call: &mut Call<'_>,
    options: &Roles,
    reports: &[RoleOutcome],
    version: Option<String>,
) -> Result<Outcome, Exit> {
    let old = version.filter(|version| !roles::checks_nested_transactions(version));
    let old = old.map(|version| {
        format!(
            "etcd {version} lets every user write every key by a nested transaction \
             (GHSA-rfx7-8w68-q57q): update it to 3.4.42, 3.5.28, 3.6.9 or later"
        )
    });
    let mut text = String::new();
    for report in reports {
        let done = if options.apply { "+ " } else { "" };
        report.commands.iter().for_each(|command| text.push_str(&format!("{done}{command}\n")));
    }
    let problems: Vec<&String> =
        reports.iter().flat_map(|report| &report.problems).chain(&old).collect();
    problems.iter().for_each(|problem| text.push_str(&format!("! {problem}\n")));
    if options.apply {
        text.push_str(&format!("roles of {} hosts are as they should be\n", reports.len()));
    }
    let hosts: Vec<Value> = reports
        .iter()
        .map(|report| json!({ "host": report.host.as_str(), "commands": report.commands }))
        .collect();
    let value = json!({ "hosts": hosts, "applied": options.apply, "problems": problems });
    call.answer(options.json, problems.is_empty(), value, text.trim_end())
}
