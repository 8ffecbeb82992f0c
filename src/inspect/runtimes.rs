//! The configurations of container runtimes on this host. Paths are the host's, in a pod, too.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
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

/// The runtimes that have a configuration here. What cannot be read says nothing. `plugin`: where it is, or will be once
/// this is no dry run.
pub fn inspect(plugin: &Path) -> Vec<ContainerRuntime> {
    let name = plugin.file_name().unwrap_or_default();
    let has = |dir: &PathBuf| plugin.parent() == Some(dir) || dir.join(name).exists();
    let mut found: Vec<ContainerRuntime> = [containerd(), crio()].into_iter().flatten().collect();
    for runtime in &mut found {
        runtime.has_plugin = runtime.plugin_dirs.iter().any(has);
    }
    found
}

/// The CNI configurations in `folder`, in the order of the runtimes.
pub fn configurations(folder: &Path) -> Vec<PathBuf> {
    let is_conf = |path: &PathBuf| {
        let end = path.extension().unwrap_or_default();
        ["conf", "conflist", "json"].iter().any(|known| end == *known)
    };
    let files = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut files: Vec<PathBuf> = files.filter(is_conf).collect();
    files.sort_unstable();
    files
}

/// At most `limit` bytes of a configuration; `None` if there is no such file, or it is no text.
pub fn text(file: &Path, limit: u64) -> io::Result<Option<String>> {
    let read = || {
        let mut text = String::new();
        if fs::metadata(file)?.is_file() {
            File::open(file)?.take(limit).read_to_string(&mut text)?;
        }
        Ok(Some(text))
    };
    read().or_else(|error: io::Error| match error.kind() {
        ErrorKind::NotFound | ErrorKind::InvalidData => Ok(None),
        _ => Err(error),
    })
}

fn containerd() -> Option<ContainerRuntime> {
    let mut runtime = named("containerd");
    let main = take(&mut runtime, Path::new(CONTAINERD), ContainerRuntime::read_containerd)?;
    let imports = main.get("imports").and_then(toml::Value::as_array);
    let imports = imports.into_iter().flatten().filter_map(toml::Value::as_str);
    imports.flat_map(matching).for_each(|file| {
        take(&mut runtime, &file, ContainerRuntime::read_containerd);
    });
    Some(runtime)
}

fn crio() -> Option<ContainerRuntime> {
    let parts = matching(&format!("{CRIO_PARTS}/*.conf"));
    let mut runtime = named("CRI-O");
    for file in [PathBuf::from(CRIO)].into_iter().chain(parts) {
        take(&mut runtime, &file, ContainerRuntime::read_crio);
    }
    (!runtime.file.as_os_str().is_empty()).then_some(runtime)
}

fn named(name: &'static str) -> ContainerRuntime {
    ContainerRuntime { name, ..ContainerRuntime::default() }
}

/// Takes over what a file says, and gives that; empty if it is no TOML, which `runtime` says then.
fn take(
    runtime: &mut ContainerRuntime,
    file: &Path,
    read: fn(&mut ContainerRuntime, &Table),
) -> Option<Table> {
    let place = here(file);
    let found = fs::metadata(&place).ok()?;
    let readable = found.is_file() && found.len() <= LIMIT_BYTES;
    let text = readable.then(|| fs::read_to_string(place).ok())??;
    if runtime.file.as_os_str().is_empty() {
        runtime.file = file.to_owned();
    }
    match text.parse() {
        Ok(table) => {
            read(runtime, &table);
            Some(table)
        }
        Err(error) => {
            runtime.invalid.get_or_insert((file.to_owned(), error.message().to_owned()));
            Some(Table::new())
        }
    }
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
    names.sort_unstable();
    names.into_iter().map(|name| Path::new(folder).join(name)).collect()
}
