//! The configurations of container runtimes on this host. Paths are the host's, in a pod, too.

use std::fs;
use std::path::{Path, PathBuf};

use toml::Table;

use crate::checks::host_checks::ContainerRuntime;

const CONTAINERD: &str = "/etc/containerd/config.toml";
const CRIO: &str = "/etc/crio/crio.conf";
const CRIO_PARTS: &str = "/etc/crio/crio.conf.d";

/// Where a pod of the agent has the /etc of its node.
const NODE_ETC: &str = "/host/etc";

/// A larger file is not read: no runtime writes one.
const LIMIT_BYTES: u64 = 1 << 20;

/// The runtimes that have a configuration here. What cannot be read or is no TOML says nothing.
pub fn inspect(plugin: &Path) -> Vec<ContainerRuntime> {
    let name = plugin.file_name().unwrap_or_default();
    let mut found: Vec<ContainerRuntime> = [containerd(), crio()].into_iter().flatten().collect();
    for runtime in &mut found {
        runtime.has_plugin = runtime.plugin_dirs.iter().any(|dir| dir.join(name).exists());
    }
    found
}

fn containerd() -> Option<ContainerRuntime> {
    let main = table(Path::new(CONTAINERD))?;
    let mut runtime = named("containerd", CONTAINERD);
    runtime.read_containerd(&main);
    let imports = main.get("imports").and_then(toml::Value::as_array);
    let imports = imports.into_iter().flatten().filter_map(toml::Value::as_str);
    imports.flat_map(matching).for_each(|file| {
        if let Some(part) = table(&file) {
            runtime.read_containerd(&part);
        }
    });
    Some(runtime)
}

fn crio() -> Option<ContainerRuntime> {
    let parts = matching(&format!("{CRIO_PARTS}/*.conf"));
    let files = [PathBuf::from(CRIO)].into_iter().chain(parts);
    let files: Vec<(PathBuf, Table)> =
        files.filter_map(|file| Some((file.clone(), table(&file)?))).collect();
    let (first, _) = files.first()?;
    let mut runtime = named("CRI-O", first);
    files.iter().for_each(|(_, file)| runtime.read_crio(file));
    Some(runtime)
}

fn named(name: &'static str, file: impl Into<PathBuf>) -> ContainerRuntime {
    ContainerRuntime { name, file: file.into(), ..ContainerRuntime::default() }
}

fn table(file: &Path) -> Option<Table> {
    let file = here(file);
    let found = fs::metadata(&file).ok()?;
    let readable = found.is_file() && found.len() <= LIMIT_BYTES;
    readable.then(|| fs::read_to_string(file).ok()?.parse().ok())?
}

/// Where this process finds a file of the host.
fn here(path: &Path) -> PathBuf {
    let node = Path::new(NODE_ETC);
    match path.strip_prefix("/etc") {
        Ok(rest) if node.is_dir() => node.join(rest),
        _ => path.to_owned(),
    }
}

/// The files that a pattern with one `*` in its last part names, in the order of their names.
fn matching(pattern: &str) -> Vec<PathBuf> {
    let Some((before, after)) = pattern.split_once('*') else { return vec![pattern.into()] };
    let Some((folder, begin)) = before.rsplit_once('/') else { return Vec::new() };
    let entries = fs::read_dir(here(Path::new(folder))).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let mut names: Vec<String> =
        names.filter(|name| name.starts_with(begin) && name.ends_with(after)).collect();
    names.sort();
    names.into_iter().map(|name| Path::new(folder).join(name)).collect()
}
