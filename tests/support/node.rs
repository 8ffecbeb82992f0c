//! A test machine: namespaces and a disk, and the network namespaces in which programs run.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, RwLock};
use std::time::Duration;

use super::disk::Disk;
use super::namespace::{Namespace, enter_network};
use super::process::{self, Ended, Process, Shared, lock};
use super::wait::{SOON, eventually};

/// The whole environment of programs.
pub const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// A handle; the node is removed with the last one.
#[derive(Clone)]
pub struct Node(Arc<Inner>);

struct Inner {
    name: String,
    v4: Ipv4Addr,
    v6: Ipv6Addr,
    executable: PathBuf,
    disk: Disk,
    namespace: RwLock<Option<Namespace>>,
    processes: Mutex<Vec<Arc<Shared>>>,
    boots: Mutex<u32>,
}

impl Node {
    /// Off; see [`Node::boot`].
    pub fn new(name: &str, v4: Ipv4Addr, v6: Ipv6Addr, disk: Disk) -> Self {
        Self(Arc::new(Inner {
            name: name.to_owned(),
            v4,
            v6,
            executable: super::executable(),
            disk,
            namespace: RwLock::default(),
            processes: Mutex::default(),
            boots: Mutex::default(),
        }))
    }

    /// Fresh namespaces on the same disk, without any link to others.
    pub fn boot(&self) {
        {
            let mut boots = lock(&self.0.boots);
            *boots += 1;
            let id = format!("{:08x}-0000-4000-8000-{:012x}", *boots, u32::from(self.0.v4));
            self.0.disk.set_boot_id(&id);
        }
        let namespace = Namespace::new();
        namespace.inside(|| {
            nix::unistd::sethostname(&self.0.name).unwrap();
            self.0.disk.mount(&self.0.executable);
        });
        self.boot_as(namespace);
        self.run("ip link set lo up").ok();
    }

    /// As it was booted elsewhere.
    pub fn boot_as(&self, namespace: Namespace) {
        *self.0.namespace.write().unwrap() = Some(namespace);
    }

    /// Kills every process at once; links are gone when this returns. The disk stays.
    pub fn power_off(&self) {
        self.0.power_off();
    }

    pub fn name(&self) -> &str {
        &self.0.name
    }

    pub fn v4(&self) -> Ipv4Addr {
        self.0.v4
    }

    pub fn v6(&self) -> Ipv6Addr {
        self.0.v6
    }

    /// That of its eth0, in a [`Cluster`](super::Cluster).
    pub fn mac(&self) -> String {
        let [a, b, c, d] = self.v4().octets();
        format!("02:00:{a:02x}:{b:02x}:{c:02x}:{d:02x}")
    }

    /// Where a path on the node's disk lies on this machine; also while the node is off.
    pub fn place(&self, path: &str) -> PathBuf {
        self.0.disk.place(path)
    }

    /// Runs `task` in the node; see [`Namespace::inside`].
    pub fn inside<T: Send>(&self, task: impl FnOnce() -> T + Send) -> T {
        self.with_namespace(|namespace| namespace.inside(task))
    }

    /// Uses the namespace itself.
    ///
    /// # Panics
    /// If the node is off.
    pub fn with_namespace<T>(&self, task: impl FnOnce(&Namespace) -> T) -> T {
        let namespace = self.0.namespace.read().unwrap();
        task(namespace.as_ref().unwrap_or_else(|| panic!("{} is off", self.0.name)))
    }

    pub fn read(&self, path: &str) -> Option<String> {
        self.inside(|| std::fs::read_to_string(path).ok())
    }

    pub fn write(&self, path: &str, text: &str) {
        self.inside(|| std::fs::write(path, text))
            .unwrap_or_else(|e| panic!("{}:{path}: {e}", self.name()));
    }

    /// Names in a folder, sorted; none if there is no such folder.
    pub fn list(&self, folder: &str) -> Vec<String> {
        let mut names = self.inside(|| {
            let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
            entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect()
        });
        names.sort();
        names
    }
}

impl Inner {
    fn power_off(&self) {
        let namespace = self.namespace.write().unwrap_or_else(|e| e.into_inner()).take();
        for process in lock(&self.processes).drain(..) {
            process.kill();
        }
        drop(namespace);
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.power_off();
    }
}

/// Somewhere that programs run and that others reach: a node or a pod.
pub trait Place: Sync {
    fn node(&self) -> &Node;

    /// The file of its network namespace, if it is not the node's own.
    fn netns(&self) -> Option<&str>;

    /// Its name for people.
    fn label(&self) -> String;

    /// Its addresses, IPv4 first.
    fn addresses(&self) -> Vec<IpAddr>;

    /// Where that is, for a task of the test itself.
    fn spot(&self) -> Spot<'_> {
        Spot { node: self.node(), netns: self.netns() }
    }

    /// Runs a program with arguments that need no quoting.
    fn run(&self, line: &str) -> Ended {
        self.run_command(&mut command(line), "")
    }

    /// Runs a shell script.
    fn shell(&self, script: &str) -> Ended {
        self.run_command(command("sh -ec").arg(script), "")
    }

    fn run_command(&self, command: &mut Command, input: &str) -> Ended {
        let spot = self.spot();
        process::run(command, input, |command| spot.inside(|| command.spawn()))
    }

    /// Starts a program that runs until its handle is dropped or the node is off.
    fn spawn(&self, command: &mut Command) -> Process {
        let spot = self.spot();
        let process = Process::start(command, |command| spot.inside(|| command.spawn()));
        lock(&spot.node.0.processes).push(process.shared());
        process
    }

    /// [`Place::run`] until it succeeds.
    fn until_ok(&self, line: &str, within: Duration) -> String {
        eventually(&format!("{}: {line}", self.label()), within, || {
            let ended = self.run(line);
            if ended.succeeded() { Ok(ended.stdout) } else { Err(ended.to_string()) }
        })
    }
}

/// The namespaces of a [`Place`].
#[derive(Clone, Copy)]
pub struct Spot<'a> {
    node: &'a Node,
    netns: Option<&'a str>,
}

impl Spot<'_> {
    /// Runs `task` on a thread of its own there; see [`Namespace::inside`].
    pub fn inside<T: Send>(&self, task: impl FnOnce() -> T + Send) -> T {
        self.node.inside(|| {
            if let Some(path) = self.netns {
                enter_network(path);
            }
            task()
        })
    }

    /// A listener at `address`. A child that another test has just forked holds the test's last one there open until
    /// it executes its program, so that the address can be in use for a moment.
    pub fn listen(&self, address: impl Into<SocketAddr>) -> TcpListener {
        let address = address.into();
        eventually(&format!("listening at {address}"), SOON, || {
            self.inside(|| TcpListener::bind(address)).map_err(|error| error.to_string())
        })
    }
}

impl Place for Node {
    fn node(&self) -> &Node {
        self
    }

    fn netns(&self) -> Option<&str> {
        None
    }

    fn label(&self) -> String {
        self.0.name.clone()
    }

    fn addresses(&self) -> Vec<IpAddr> {
        vec![self.0.v4.into(), self.0.v6.into()]
    }
}

/// A program and its arguments, split at blanks, in a bare environment.
pub fn command(line: &str) -> Command {
    let mut words = line.split_whitespace();
    let program = words.next().expect("a program");
    let mut command = Command::new(found(program));
    command
        .arg0(program)
        .args(words)
        .env_clear()
        .env("PATH", PATH)
        .env("HOME", "/root")
        .env("TZ", "UTC");
    command
}

/// Where [`PATH`] has a program on this machine, as nodes have it; else its name.
///
/// A program without a path that gets another `PATH` than the test's is looked for by the standard library in a fork of
/// the test, whose page tables the kernel copies for that; one with a path it spawns as vfork(2) does.
fn found(program: &str) -> PathBuf {
    let by_name = PathBuf::from(program);
    if program.contains('/') {
        return by_name;
    }
    let mut paths = PATH.split(':').map(|folder| Path::new(folder).join(program));
    paths.find(|path| path.exists()).unwrap_or(by_name)
}
