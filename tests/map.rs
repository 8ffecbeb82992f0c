//! The map of the source (`src/lib.rs`) is true: imports point down it, no files import each other in
//! a circle, pure files do nothing but compute, the packet's path stays small, and no two types share
//! a name.

#[path = "map/source.rs"]
mod source;

use std::collections::{BTreeMap, BTreeSet};

use crate::source::Source;

/// Imports against the map that are still there. This list may only shrink.
const AGAINST_THE_MAP: &[(&str, &str)] = &[];

/// Files that import each other in a circle, still there. This list may only shrink.
const CIRCLES: &[&str] = &[];

/// Impure uses of pure files. This list may only shrink.
const IMPURE: &[(&str, &str)] = &[];

/// Names of types that several files define. This list may only shrink.
const SEVERAL_MEANINGS: &[&str] = &[];

/// The folders whose code runs for each packet's route: the agent's loop, the plugin and what they call.
const PACKET_PATH: [&str; 11] =
    ["agent", "plugin", "ipam", "lease", "etcd", "netlink", "nft", "plan", "net", "cni", "os"];

/// Lines of code of [`PACKET_PATH`], without blank lines, comments and tests. May only shrink, but for what is new:
/// who raises it says in the commit what the lines are for (`git log -G PACKET_PATH_LINES tests/map.rs`).
const PACKET_PATH_LINES: usize = 42_741;

/// Clock, environment, files, sockets, streams and log.
const WORLD: &[&str] = &[
    "SystemTime::now",
    "Instant::now",
    "std::env",
    "std::fs",
    "std::io::stderr",
    "std::io::stdin",
    "std::io::stdout",
    "std::net::TcpListener",
    "std::net::TcpStream",
    "std::net::ToSocketAddrs",
    "std::net::UdpSocket",
    "std::os::unix::net",
    "std::process",
    "std::thread",
    "env_logger",
    "etcd_client",
    "log",
    "neli",
    "netlink_sys",
    "nix",
    "tokio",
    "tonic",
];

/// What crates of [`WORLD`] offer that only computes: numbers, codecs, errors.
const VALUES: &[&str] = &[
    "etcd_client::Error",
    "log::Level",
    "log::LevelFilter",
    "neli::FromBytesWithInput",
    "neli::ToBytes",
    "neli::consts",
    "neli::rtnl",
    "neli::types",
    "nix::errno",
    "nix::libc",
    "nix::sys::signal::Signal",
];

/// Methods of the clock and of paths that ask the kernel. (`exists` is one of a transaction of etcd, too. Of streams,
/// clippy refuses `println!` and its like everywhere.)
const ASKS: &[&str] = &[
    "canonicalize",
    "elapsed",
    "is_dir",
    "is_file",
    "is_symlink",
    "metadata",
    "read_dir",
    "read_link",
    "symlink_metadata",
    "try_exists",
];

/// Types with a socket, a file or a namespace. A call of a method of theirs would not be seen, so pure files name none of them.
const HANDLES: &[&str] = &[
    "etcd::client::Etcd",
    "inspect::host::Host",
    "inspect::kernel::Kernel",
    "ipam::store::LockedStore",
    "ipam::store::Store",
    "netlink::rtnl::Rtnl",
    "netlink::socket::NetlinkSocket",
    "nft::handle::Nft",
    "os::file_watch::FileWatch",
    "os::netns::NetNs",
];

/// Functions of files that are not pure which only compute, and pure files call.
const COMPUTES: &[&str] = &[
    "inspect::pods::room",
    "netlink::bridge_vlan::PortVlans::new",
    "netlink::bridge_vlan::VlanMembership::default",
    "netlink::shaper::ShapedClass::new",
    "netlink::shaper::priority",
];

/// What changes files, or makes a socket in the file system.
const WRITES: &[&str] = &[
    "crate::os::files::copy_executable",
    "crate::os::files::remove",
    "crate::os::files::replace",
    "crate::os::files::replace_link",
    "crate::os::files::replace_watched",
    "std::fs::create_dir",
    "std::fs::create_dir_all",
    "std::fs::hard_link",
    "std::fs::remove_dir_all",
    "std::fs::remove_file",
    "std::fs::rename",
    "std::fs::write",
    "std::os::unix::net::UnixListener::bind",
];

/// The files of `inspect` that write: what is read again after a start, and the sockets between agent and plugin.
const WRITING_INSPECTORS: &[&str] = &[
    "inspect::last_policies",
    "inspect::last_settings",
    "inspect::local_socket",
    "inspect::state_file",
];

/// These two know nothing of each other.
const APART: [&str; 2] = ["agent", "plugin"];

#[test]
fn imports_point_down_the_map() {
    let source = Source::read();
    let order = source.order();
    let mut found = BTreeSet::new();
    for (file, imports) in &source.imports {
        for import in imports {
            let (from, to) = (room(file), room(import));
            if from == to || from.is_empty() {
                continue;
            }
            let place = |name: &str| order.iter().position(|room| room == name);
            let apart = APART.contains(&from) && APART.contains(&to);
            if apart || place(to) < place(from) || place(to).is_none() {
                found.insert((file.as_str(), import.as_str()));
            }
        }
    }
    compare("imports against the map", &found, AGAINST_THE_MAP.iter().copied().collect());
}

#[test]
fn no_files_import_each_other_in_a_circle() {
    let source = Source::read();
    let circles: Vec<String> = source.circles().iter().map(|circle| circle.join(" ")).collect();
    let found: BTreeSet<&str> = circles.iter().map(String::as_str).collect();
    compare("circles of files", &found, CIRCLES.iter().copied().collect());
}

#[test]
fn pure_files_touch_no_clock_environment_file_socket_or_log() {
    let source = Source::read();
    let mut found = BTreeSet::new();
    for (name, file) in source.files.iter().filter(|(_, file)| file.pure) {
        for path in &file.paths() {
            let used = WORLD.iter().find(|world| is_below(path, world));
            let value = VALUES.iter().any(|value| is_below(path, value));
            let used = used.filter(|_| !value);
            found.extend(used.map(|used| (name.as_str(), *used)));
        }
        let asks = |token: &&[String]| token[0] == "." && token[2] == "(";
        let methods = file.tokens.windows(3).filter(asks).map(|token| &*token[1]);
        found.extend(methods.filter(|it| ASKS.contains(it)).map(|method| (name.as_str(), method)));
    }
    compare("uses of the world in pure files", &found, IMPURE.iter().copied().collect());
}

#[test]
fn pure_files_name_no_handle_of_the_world() {
    let source = Source::read();
    for handle in HANDLES {
        let (module, name) = handle.rsplit_once("::").unwrap();
        assert!(source.files[module].types().contains(name), "{handle} is elsewhere now");
    }
    let mut found = BTreeSet::new();
    for (name, file) in source.files.iter().filter(|(_, file)| file.pure) {
        for path in file.paths() {
            let parts: Vec<&str> = path.split("::").collect();
            let at = parts.iter().position(|part| part.starts_with(char::is_uppercase));
            let Some(at) = at else { continue };
            if let ["crate", module @ .., _] = &parts[..=at] {
                let module = source.module_of(&[module, &parts[at..=at]].concat().join("::"));
                let used = format!("{module}::{}", parts[at]);
                let handle = HANDLES.iter().find(|handle| **handle == used);
                found.extend(handle.map(|handle| (name.as_str(), *handle)));
            }
        }
    }
    compare("handles in pure files", &found, BTreeSet::new());
}

/// Of methods only the definition is seen, not the call.
#[test]
fn pure_files_call_no_function_of_a_file_that_is_not_pure() {
    let source = Source::read();
    let mut found = BTreeSet::new();
    for (name, file) in source.files.iter().filter(|(_, file)| file.pure) {
        for path in file.paths() {
            let Some(called) = path.strip_prefix("crate::").and_then(called) else { continue };
            let module = source.module_of(called);
            if &module != name && !source.files[&module].pure && !COMPUTES.contains(&called) {
                found.insert((name.clone(), called.to_owned()));
            }
        }
    }
    compare("calls of pure files", &found, BTreeSet::new());
}

#[test]
fn what_looks_at_the_host_writes_only_what_it_reads_again() {
    let source = Source::read();
    let mut found = BTreeSet::new();
    for (name, file) in source.files.iter().filter(|(name, _)| room(name) == "inspect") {
        let writes = |path: &String| called(path).is_some_and(|called| WRITES.contains(&called));
        if file.paths().iter().any(writes) {
            found.insert(name.as_str());
        }
    }
    compare("files of inspect that write", &found, WRITING_INSPECTORS.iter().copied().collect());
}

/// The function of a path that ends in a call; a variant of an enum is none.
fn called(path: &str) -> Option<&str> {
    let function = path.strip_suffix("::()")?;
    let last = function.rsplit("::").next()?;
    last.starts_with(char::is_lowercase).then_some(function)
}

#[test]
fn a_name_of_a_type_has_one_meaning() {
    let source = Source::read();
    let mut files: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (module, file) in &source.files {
        file.types().into_iter().for_each(|name| files.entry(name).or_default().push(module));
    }
    files.retain(|_, files| files.len() > 1);
    println!("names with several meanings: {files:#?}");
    let found = files.into_keys().collect();
    compare("names with several meanings", &found, SEVERAL_MEANINGS.iter().copied().collect());
}

#[test]
fn the_path_of_a_packet_is_short_enough_to_read() {
    let source = Source::read();
    let mut lines: BTreeMap<&str, usize> = BTreeMap::new();
    for (name, file) in &source.files {
        *lines.entry(room(name)).or_default() += file.lines;
    }
    let total: usize = PACKET_PATH.iter().map(|room| lines.get(room).unwrap_or(&0)).sum();
    println!("lines of code by folder: {lines:?}\nall: {}", lines.values().sum::<usize>());
    println!("the packet's path: {total} lines of code, limit {PACKET_PATH_LINES}");
    assert!(total < PACKET_PATH_LINES, "{total} lines, {PACKET_PATH_LINES} is the limit");
}

/// `found` is exactly `listed`: nothing new, and the list holds nothing that is repaired.
fn compare<T: Ord + std::fmt::Debug>(what: &str, found: &BTreeSet<T>, listed: BTreeSet<T>) {
    let new: Vec<&T> = found.difference(&listed).collect();
    let gone: Vec<&T> = listed.difference(found).collect();
    let new = if new.is_empty() { String::new() } else { format!("new:\n{}\n", lines(&new)) };
    let gone = if gone.is_empty() {
        String::new()
    } else {
        format!("take off the list:\n{}", lines(&gone))
    };
    assert!(new.is_empty() && gone.is_empty(), "{what}\n{new}{gone}");
}

fn lines<T: std::fmt::Debug>(items: &[&T]) -> String {
    items.iter().map(|item| format!("    {item:?},")).collect::<Vec<_>>().join("\n")
}

/// The top folder of a module: `plan` of `plan::firewall::changes`; empty for the root.
fn room(module: &str) -> &str {
    module.split("::").next().unwrap_or_default()
}

/// `path` is `prefix` or an item of it; a method like `Instant::now` by its end.
fn is_below(path: &str, prefix: &str) -> bool {
    let path = path.trim_end_matches("::()");
    let rest = path.strip_prefix(prefix);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
        || prefix.ends_with("::now") && path.ends_with(prefix)
}
