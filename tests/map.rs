//! The map of the source (`src/lib.rs`) is true: imports point down it, no files import each other in
//! a circle, pure files do nothing but compute, the packet's path stays small, and no two types share
//! a name.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

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
const PACKET_PATH_LINES: usize = 42_560;

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

/// All modules below `src`, by their path: `plan::firewall`; the root is empty.
struct Source {
    files: BTreeMap<String, File>,
    /// Which modules each module's code names.
    imports: BTreeMap<String, BTreeSet<String>>,
}

struct File {
    /// Its first line says so.
    pure: bool,
    /// Of code.
    lines: usize,
    tokens: Vec<String>,
    /// A name in scope and its path.
    scope: BTreeMap<String, Vec<String>>,
    /// Names of `scope` that the module offers to others.
    exports: BTreeSet<String>,
}

impl Source {
    fn read() -> Source {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let mut files = BTreeMap::new();
        collect(&root, "", &mut files);
        let mut source = Source { files, imports: BTreeMap::new() };
        for (name, file) in &source.files {
            let mut imports: BTreeSet<String> = file
                .paths()
                .iter()
                .filter_map(|path| path.strip_prefix("crate::"))
                // A module's name alone is the field or the variable of that name.
                .filter(|path| !source.files.contains_key(*path))
                .map(|path| source.module_of(path))
                .collect();
            imports.remove(name);
            source.imports.insert(name.clone(), imports);
        }
        source
    }

    /// The module in which the item at `path` (without `crate`) is written.
    fn module_of(&self, path: &str) -> String {
        let (mut module, mut rest) = (String::new(), path.split("::").peekable());
        while let Some(name) = rest.peek() {
            let child =
                if module.is_empty() { (*name).to_owned() } else { format!("{module}::{name}") };
            if !self.files.contains_key(&child) {
                break;
            }
            module = child;
            rest.next();
        }
        let file = self.files.get(&module);
        match (rest.next(), file) {
            (Some(name), Some(file)) if file.exports.contains(name) => {
                match &*file.scope[name].join("::") {
                    target if target.starts_with("crate::") => {
                        self.module_of(&target["crate::".len()..])
                    }
                    _ => module,
                }
            }
            _ => module,
        }
    }

    /// The folders from top to bottom, as the table in `src/lib.rs` has them.
    fn order(&self) -> Vec<String> {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/lib.rs");
        let text = std::fs::read_to_string(path).expect("src/lib.rs");
        let rows = text.lines().filter_map(|line| line.strip_prefix("//! | [`"));
        rows.filter_map(|row| Some(row.split_once('`')?.0.to_owned())).collect()
    }

    /// Each set of modules that reach each other.
    fn circles(&self) -> Vec<Vec<&str>> {
        let reached: BTreeMap<&str, BTreeSet<&str>> =
            self.imports.keys().map(|name| (name.as_str(), self.reached_from(name))).collect();
        let mut circles = BTreeSet::new();
        for (name, others) in &reached {
            let circle: Vec<&str> =
                others.iter().copied().filter(|other| reached[other].contains(name)).collect();
            if !circle.is_empty() {
                circles.insert(circle);
            }
        }
        circles.into_iter().collect()
    }

    fn reached_from(&self, start: &str) -> BTreeSet<&str> {
        let mut reached = BTreeSet::new();
        let mut open: Vec<&str> = vec![start];
        while let Some(name) = open.pop() {
            for next in self.imports.get(name).into_iter().flatten() {
                if reached.insert(next.as_str()) {
                    open.push(next);
                }
            }
        }
        reached
    }
}

fn collect(folder: &Path, module: &str, files: &mut BTreeMap<String, File>) {
    for entry in std::fs::read_dir(folder).expect("a folder of src") {
        let path = entry.expect("an entry of src").path();
        let stem = path.file_stem().expect("a name").to_string_lossy().into_owned();
        let child = if module.is_empty() { stem.clone() } else { format!("{module}::{stem}") };
        if ["tests", "properties"].contains(&stem.as_str()) {
            continue;
        }
        if path.is_dir() {
            collect(&path, &child, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let name = match stem.as_str() {
                "lib" => String::new(),
                "mod" => module.to_owned(),
                _ => child,
            };
            let text = std::fs::read_to_string(&path).expect("a source file");
            files.insert(name.clone(), File::parse(&name, &text));
        }
    }
}

impl File {
    fn parse(module: &str, text: &str) -> File {
        let (tokens, lines) = without_tests(tokens(text));
        let mut file = File {
            pure: text.starts_with("//! Pure."),
            lines,
            tokens: Vec::new(),
            scope: BTreeMap::new(),
            exports: BTreeSet::new(),
        };
        let mut own = vec!["crate".to_owned()];
        own.extend(module.split("::").filter(|part| !part.is_empty()).map(str::to_owned));
        let tokens = from_root(tokens, &own);
        let mut at = 0;
        while at < tokens.len() {
            match tokens[at].as_str() {
                "mod" if tokens.get(at + 2).is_some_and(|token| token == ";") => {
                    let path = own.iter().chain([&tokens[at + 1]]).cloned().collect();
                    file.scope.insert(tokens[at + 1].clone(), path);
                    at += 3;
                }
                "use" => {
                    let public = at > 0 && (tokens[at - 1] == "pub" || tokens[at - 1] == ")");
                    let before: BTreeSet<String> = file.scope.keys().cloned().collect();
                    at = file.take_use(&tokens, at + 1, &[]) + 1;
                    if public {
                        let new = file.scope.keys().filter(|name| !before.contains(*name));
                        file.exports.extend(new.cloned().collect::<Vec<_>>());
                    }
                }
                _ => {
                    file.tokens.push(tokens[at].clone());
                    at += 1;
                }
            }
        }
        let scope = file.scope.clone();
        for path in file.scope.values_mut() {
            if let Some(local) = scope.get(&path[0]).filter(|local| *local != path) {
                path.splice(0..1, local.iter().cloned());
            }
        }
        file
    }

    /// Takes one tree of a `use` from `at` on; returns where it ends.
    fn take_use(&mut self, tokens: &[String], mut at: usize, prefix: &[String]) -> usize {
        let mut path = prefix.to_vec();
        loop {
            match tokens[at].as_str() {
                "{" => loop {
                    at = self.take_use(tokens, at + 1, &path);
                    match tokens[at].as_str() {
                        "}" => return at + 1,
                        _ if tokens[at + 1] == "}" => return at + 2,
                        _ => {}
                    }
                },
                "::" => at += 1,
                "as" => {
                    self.scope.insert(tokens[at + 1].clone(), path);
                    return at + 2;
                }
                ";" | "," | "}" => {
                    if let Some(name) = path.last().cloned() {
                        if name == "self" {
                            path.pop();
                        }
                        let name = path.last().cloned().unwrap_or(name);
                        // Each `*` is of another module.
                        let name = if name == "*" { path.join("::") } else { name };
                        self.scope.insert(name, path);
                    }
                    return at;
                }
                part => {
                    path.push(part.to_owned());
                    at += 1;
                }
            }
        }
    }

    /// The names of the types that it defines, but for those inside functions and implementations.
    fn types(&self) -> BTreeSet<&str> {
        let (mut depth, mut types) = (0, BTreeSet::new());
        for pair in self.tokens.windows(2) {
            depth += i32::from(pair[0] == "{") - i32::from(pair[0] == "}");
            let defines = ["struct", "enum", "trait", "type"].contains(&pair[0].as_str());
            if depth == 0 && defines {
                types.insert(pair[1].as_str());
            }
        }
        types
    }

    /// Every path that the code names: those of its imports and those written out, from the root.
    ///
    /// What is only offered to others, or only declared, is not named.
    fn paths(&self) -> BTreeSet<String> {
        let mut paths = BTreeSet::new();
        let mut at = 0;
        while at < self.tokens.len() {
            let first = &self.tokens[at];
            let mut end = at + 1;
            let mut path = vec![first.clone()];
            while end + 1 < self.tokens.len()
                && self.tokens[end] == "::"
                && is_name(&self.tokens[end + 1])
            {
                path.push(self.tokens[end + 1].clone());
                end += 2;
            }
            let member = at > 0 && self.tokens[at - 1] == ".";
            if is_name(first) && !member {
                if let Some(known) = self.scope.get(first) {
                    path.splice(0..1, known.iter().cloned());
                }
                if self.tokens.get(end).is_some_and(|token| token == "(") {
                    path.push("()".to_owned());
                }
                paths.insert(path.join("::"));
            }
            at = end;
        }
        // A trait's name appears only in its import, and so does what `*` stands for.
        let imported = self.scope.iter().filter(|(name, _)| !self.exports.contains(*name));
        for path in imported.map(|(_, path)| path) {
            let last = path.last().map_or("", String::as_str);
            if last.starts_with(char::is_uppercase) || last == "_" || last == "*" {
                paths.insert(path.join("::"));
            }
        }
        paths
    }
}

/// `tokens` with each path that begins with `self` or `super` from the root on; `own`: the path of their module.
fn from_root(tokens: Vec<String>, own: &[String]) -> Vec<String> {
    let mut inner: Vec<(String, usize)> = Vec::new();
    let (mut rooted, mut depth, mut at) = (Vec::new(), 0, 0);
    while at < tokens.len() {
        let is = |offset: usize, token: &str| tokens.get(at + offset).is_some_and(|it| it == token);
        if is(0, "mod") && is(2, "{") {
            inner.push((tokens[at + 1].clone(), depth));
        }
        depth += usize::from(is(0, "{"));
        depth -= usize::from(is(0, "}"));
        if is(0, "}") && inner.last().is_some_and(|(_, outside)| *outside == depth) {
            inner.pop();
        }
        let goes_on = at > 0 && tokens[at - 1] == "::";
        if !is(1, "::") || goes_on || !(is(0, "self") || is(0, "super")) {
            rooted.push(tokens[at].clone());
            at += 1;
            continue;
        }
        let mut path: Vec<&String> = own.iter().chain(inner.iter().map(|(name, _)| name)).collect();
        while let [first, colons, ..] = &tokens[at..]
            && colons == "::"
            && (first == "self" || first == "super")
        {
            if first == "super" {
                path.pop();
            }
            at += 2;
        }
        for part in path {
            rooted.extend([part.clone(), "::".to_owned()]);
        }
    }
    rooted
}

/// `path` is `prefix` or an item of it; a method like `Instant::now` by its end.
fn is_below(path: &str, prefix: &str) -> bool {
    let path = path.trim_end_matches("::()");
    let rest = path.strip_prefix(prefix);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
        || prefix.ends_with("::now") && path.ends_with(prefix)
}

fn is_name(token: &str) -> bool {
    token.starts_with(|first: char| first.is_alphabetic() || first == '_')
}

/// Names, `::` and single characters, each with its line; no comments, no text of strings.
fn tokens(text: &str) -> Vec<(String, usize)> {
    let mut tokens = Vec::new();
    let chars: Vec<char> = text.chars().collect();
    let (mut at, mut line) = (0, 1);
    while at < chars.len() {
        let rest = &chars[at..];
        let start = (at, line);
        match rest {
            ['\n', ..] => (at, line) = (at + 1, line + 1),
            [space, ..] if space.is_whitespace() => at += 1,
            ['/', '/', ..] => at += length_until(rest, |chars| chars.starts_with(&['\n'])),
            ['/', '*', ..] => at += length_until(rest, |chars| chars.starts_with(&['*', '/'])) + 2,
            ['r', '"', ..] | ['r', '#', '"' | '#', ..] => {
                let hashes = rest[1..].iter().take_while(|char| **char == '#').count();
                let mut end = vec!['"'];
                end.extend(vec!['#'; hashes]);
                let open = hashes + 2;
                at +=
                    open + length_until(&rest[open..], |chars| chars.starts_with(&end)) + end.len();
            }
            ['"', ..] => {
                at += 1;
                while chars[at] != '"' {
                    at += if chars[at] == '\\' { 2 } else { 1 };
                }
                at += 1;
            }
            ['\'', '\\', ..] => {
                at += 3 + length_until(&rest[3..], |chars| chars.starts_with(&['\'']))
            }
            ['\'', _, '\'', ..] => at += 3,
            [':', ':', ..] => at += 2,
            [first, ..] if first.is_alphanumeric() || *first == '_' => {
                at += length_until(rest, |chars| !(chars[0].is_alphanumeric() || chars[0] == '_'));
            }
            _ => at += 1,
        }
        let token: String = chars[start.0..at.min(chars.len())].iter().collect();
        if token != "\n" {
            line += token.matches('\n').count();
        }
        if !token.trim().is_empty() && !token.starts_with("//") && !token.starts_with("/*") {
            // Each line of a long string is code.
            for further in start.1 + 1..=line {
                tokens.push(("\"".to_owned(), further));
            }
            tokens.push((token, start.1));
        }
    }
    tokens
}

fn length_until(chars: &[char], end: impl Fn(&[char]) -> bool) -> usize {
    (0..chars.len()).find(|at| end(&chars[*at..])).unwrap_or(chars.len())
}

/// The tokens outside `#[cfg(test)]`, and their number of lines.
fn without_tests(tokens: Vec<(String, usize)>) -> (Vec<String>, usize) {
    const TEST: [&str; 7] = ["#", "[", "cfg", "(", "test", ")", "]"];
    let mut kept = Vec::new();
    let mut lines = BTreeSet::new();
    let mut at = 0;
    while at < tokens.len() {
        let is_test = TEST
            .iter()
            .enumerate()
            .all(|(offset, part)| tokens.get(at + offset).is_some_and(|(token, _)| token == part));
        if !is_test {
            kept.push(tokens[at].0.clone());
            lines.insert(tokens[at].1);
            at += 1;
            continue;
        }
        let mut depth = 0;
        for (token, _) in &tokens[at + TEST.len()..] {
            at += 1;
            depth += i32::from(token == "{") - i32::from(token == "}");
            if depth == 0 && (token == ";" || token == "}") {
                break;
            }
        }
        at += TEST.len();
    }
    (kept, lines.len())
}
