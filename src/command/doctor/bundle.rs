//! All that a bug report needs, in one tar file, without secrets.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde_json::Value;

use crate::agent::encryption_key::{self, HostKeys};
use crate::checks::host_checks::SYSCTLS;
use crate::checks::redact::redact;
use crate::command::config;
use crate::command::doctor::context::DoctorContext;
use crate::inspect::pods::PodAttachment;
use crate::net::Family;
use crate::os::{files, sysctl};
use crate::settings::Source;
use crate::settings::flags::VARIABLES;

/// Of a long file its end counts.
const LIMIT_BYTES: usize = 256 * 1024;

/// What of the kernel is taken as it stands.
const FILES: [&str; 12] = [
    "/proc/version",
    "/proc/cmdline",
    "/proc/modules",
    "/proc/net/dev",
    "/proc/net/snmp",
    "/proc/net/snmp6",
    "/proc/net/netstat",
    "/proc/net/softnet_stat",
    "/proc/net/stat/nf_conntrack",
    "/proc/net/arp",
    "/proc/meminfo",
    "/etc/os-release",
];

/// Writes the file, readable by its owner alone.
///
/// # Errors
/// It cannot be written.
pub fn write(path: &Path, context: &DoctorContext<'_>, findings: &Value) -> Result<(), String> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    if let Some(folder) = folder.filter(|folder| !folder.is_dir()) {
        return Err(format!(
            "--bundle {}: there is no directory {}",
            path.display(),
            folder.display()
        ));
    }
    let known = secrets(context);
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let mut tar = tar::Builder::new(Vec::new());
    for (name, text) in parts(context, findings) {
        let text = redact(&text, &known);
        let mut head = tar::Header::new_gnu();
        head.set_size(text.len() as u64);
        head.set_mode(0o600);
        head.set_mtime(since.as_secs());
        let name = format!("humanz/{}", name.trim_start_matches('/'));
        let added = tar.append_data(&mut head, name, text.as_bytes());
        added.map_err(|error| error.to_string())?;
    }
    let tar = tar.into_inner().map_err(|error| error.to_string())?;
    files::replace(path, &tar, 0o600).map_err(|error| error.to_string())
}

/// What stands in files that hold nothing but a secret, and this host's private keys.
fn secrets(context: &DoctorContext<'_>) -> Vec<String> {
    let (settings, machine_id) = (context.settings(), &context.host.kernel.machine_id);
    let (password, key) = match &settings.source {
        Source::Etcd { server, .. } => (server.password_file.as_ref(), server.key.as_ref()),
        _ => (None, None),
    };
    let read = |path: Option<&PathBuf>| path.and_then(|path| fs::read_to_string(path).ok());
    let key = read(key);
    let lines = key.iter().flat_map(|key| key.lines()).filter(|line| !line.starts_with("-----"));
    let whole = [read(password), read(settings.psk_file.as_ref())];
    let texts = lines.chain(whole.iter().flatten().map(String::as_str));
    let texts: Vec<String> = texts.map(|text| text.trim().to_owned()).collect();
    let keys = encryption_key::read(&settings.state_dir, machine_id).ok().flatten();
    let keys = keys.into_iter().flat_map(|HostKeys { first, second, .. }| [Some(first), second]);
    let keys = keys.flatten().map(|key| key.secret_text());
    texts.into_iter().chain(keys).filter(|secret| !secret.is_empty()).collect()
}

/// Name and text of every part.
fn parts(context: &DoctorContext<'_>, findings: &Value) -> Vec<(String, String)> {
    let settings = context.settings();
    let pretty = |value: &Value| format!("{value:#}\n");
    let status = match context.host.agent() {
        Ok(status) => pretty(status),
        Err(error) => format!("{error}\n"),
    };
    let mut parts = vec![
        ("version".to_owned(), concat!(env!("CARGO_PKG_VERSION"), "\n").to_owned()),
        ("doctor.json".to_owned(), pretty(findings)),
        ("settings.env".to_owned(), effective(context)),
        ("status.json".to_owned(), status),
        ("kernel.txt".to_owned(), kernel(context)),
        ("sysctls.txt".to_owned(), sysctls(context)),
        ("pods.txt".to_owned(), pods(context)),
    ];
    let state = settings.state_file();
    let taken = [Some(state), settings.cni.log_file.clone()].into_iter().flatten();
    let beside = settings.cni.config.parent().and_then(|folder| fs::read_dir(folder).ok());
    let beside = beside.into_iter().flatten().flatten().map(|entry| entry.path());
    let taken = taken.chain(beside).chain(FILES.iter().map(|path| Path::new(path).to_owned()));
    for path in taken.filter(|path| path.is_file()) {
        let Ok(bytes) = fs::read(&path) else { continue };
        let end = &bytes[bytes.len().saturating_sub(LIMIT_BYTES)..];
        parts.push((format!("files{}", path.display()), String::from_utf8_lossy(end).into_owned()));
    }
    parts
}

/// Every setting that holds.
fn effective(context: &DoctorContext<'_>) -> String {
    let text = |name| context.loaded.texts.get(name).map_or("", String::as_str);
    config::lines(VARIABLES.iter().map(|known| (known.name, text(known.name))))
}

/// Links, addresses, routes, neighbours and chains, as they were read.
fn kernel(context: &DoctorContext<'_>) -> String {
    let host = context.host;
    let mut text = String::new();
    let mut part = |name: &str, found: Result<String, String>| {
        let found = found.unwrap_or_else(|error| error);
        // A String takes everything.
        let _written = writeln!(text, "# {name}\n{found}\n");
    };
    part("links", lines(host.kernel.rtnl.links(None)));
    part("addresses", lines(host.kernel.rtnl.addresses(None)));
    part("routes", lines(host.kernel.rtnl.all_routes()));
    for link in host.kernel.rtnl.vxlans().unwrap_or_default() {
        part(
            &format!("destinations of {}", link.name),
            lines(host.kernel.rtnl.destinations(link.index)),
        );
    }
    if let Ok(Some(bridge)) = host.kernel.rtnl.link(&context.settings().bridge) {
        part("neighbours on the bridge", lines(host.kernel.rtnl.neighbours(bridge.index)));
        part("learned by the bridge", lines(host.kernel.rtnl.learned(bridge.index)));
    }
    part("nft tables", lines(host.kernel.nft.tables()));
    part("forward chains", whole(host.kernel.forward.observe(&Family::BOTH)));
    part("input chains", whole(host.kernel.forward.observe_input(&Family::BOTH)));
    text
}

fn lines<T: std::fmt::Debug, E: std::fmt::Display>(
    found: Result<Vec<T>, E>,
) -> Result<String, String> {
    let found = found.map_err(|error| error.to_string())?;
    Ok(found.iter().map(|item| format!("{item:?}\n")).collect())
}

fn whole<T: std::fmt::Debug, E: std::fmt::Display>(found: Result<T, E>) -> Result<String, String> {
    found.map(|found| format!("{found:#?}")).map_err(|error| error.to_string())
}

/// Sysctls that decide about pods.
fn sysctls(context: &DoctorContext<'_>) -> String {
    let others = [
        "net/ipv4/neigh/default/gc_thresh3",
        "net/ipv6/neigh/default/gc_thresh3",
        "net/ipv4/conf/all/rp_filter",
        "fs/inotify/max_user_instances",
        "fs/inotify/max_user_watches",
    ];
    let mut keys: Vec<String> = SYSCTLS.iter().chain(&others).map(ToString::to_string).collect();
    for link in context.host.kernel.rtnl.links(None).unwrap_or_default() {
        for key in ["ipv4/conf/{}/rp_filter", "ipv4/conf/{}/forwarding", "ipv6/conf/{}/forwarding"]
        {
            keys.push(format!("net/{}", key.replace("{}", link.name.as_str())));
        }
    }
    let value = |key: &String| match sysctl::read(key) {
        Ok(value) => format!("{key} = {value}\n"),
        Err(_) => format!("{key} is not there\n"),
    };
    keys.iter().map(value).collect()
}

fn pods(context: &DoctorContext<'_>) -> String {
    let line = |pod: &PodAttachment| format!("{pod:?}\n");
    let mut text: String = context.host.attachments().iter().map(line).collect();
    let unknown = context.host.unread_stores().iter().map(|problem| &problem.what);
    let unknown = unknown.chain(&context.host.peers_unknown);
    text.extend(unknown.map(|line| {
        format!(
            "# {line}
"
        )
    }));
    text
}
