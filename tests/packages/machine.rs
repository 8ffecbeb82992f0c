//! A machine with systemd as its first process, on a writable root of its own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::support::cluster::give_uplink;
use crate::support::disk::{self, Disk};
use crate::support::namespace::Namespace;
use crate::support::{Node, Place, eventually};

/// Deadline for systemd on a busy machine.
pub const LONG: Duration = Duration::from_secs(60);

/// The first process before it executes systemd.
const BOOT: &str = include_str!("boot.sh");

/// A host that serves itself.
pub const STANDALONE: &str =
    "SUBNET_SOURCE=static\nSUBNET=10.244.1.0/24,fd10::/64\nIPV6_SUBNET=fd10::/48\n";

/// This machine's programs, or those of Debian 13, over a disk in memory, with systemd. Gone when dropped.
pub struct Machine {
    pub host: Node,
    cgroup: PathBuf,
    _disk: tempfile::TempDir,
}

impl Machine {
    /// One that is up, with a network around it that leads nowhere.
    pub fn boot(name: &str) -> Self {
        Self::boot_from(Path::new("/"), name)
    }

    pub fn boot_debian_13(name: &str) -> Self {
        Self::boot_from(&disk::debian_13(), name)
    }

    fn boot_from(root: &Path, name: &str) -> Self {
        let folder = disk::folder();
        let (v4, v6) = ("192.0.2.11".parse().unwrap(), "fd99::11".parse().unwrap());
        let host = Node::new(name, v4, v6, Disk::new(folder.path(), name, ""));
        let cgroup = make_cgroup(name);
        host.boot_as(Namespace::start(&mut first_process(name, root, &cgroup)));
        let machine = Self { host, cgroup, _disk: folder };
        give_uplink(&machine.host);
        machine.host.until_ok("systemctl is-system-running", LONG);
        machine
    }

    /// Runs a shell script that must succeed; returns its output.
    pub fn ok(&self, script: &str) -> String {
        self.host.shell(script).ok()
    }

    /// Copies a file of this machine to where that one sees it; gives its place.
    pub fn shown(&self, file: &Path) -> String {
        let bytes = fs::read(file).unwrap();
        let place = format!("/run/{}", file.file_name().unwrap().to_string_lossy());
        self.host.inside(|| fs::write(&place, bytes).unwrap());
        place
    }

    /// A property of the unit, as `systemctl show` names it.
    pub fn shows(&self, property: &str) -> String {
        let shown = self.ok(&format!("systemctl show -P {property} humanz-agent"));
        shown.trim().to_owned()
    }

    /// Waits until the agent serves with a main process other than `before`; gives that.
    pub fn serves(&self, before: &str) -> String {
        eventually("humanz-agent is active", LONG, || {
            let (state, pid) = (self.shows("ActiveState"), self.shows("MainPID"));
            if state == "active" && pid != before { Ok(pid) } else { Err(self.journal()) }
        })
    }

    /// The journal of the agent and of systemd for its unit.
    pub fn journal(&self) -> String {
        self.host.shell("journalctl -u humanz-agent --no-pager -o cat -n 40").stdout
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("--- humanz-agent in {}:\n{}", self.host.name(), self.journal());
        }
        self.host.power_off();
        remove_cgroup(&self.cgroup);
    }
}

/// `unshare` in the cgroup, which ends when this thread does.
fn first_process(name: &str, root: &Path, cgroup: &Path) -> Command {
    let mut command = Command::new("sh");
    let script = "echo $$ >\"$0/cgroup.procs\" && exec setpriv --pdeathsig KILL unshare --mount \
         --net --uts --ipc --pid --cgroup --fork --kill-child=KILL --propagation private \
         sh -c \"$1\" sh \"$2\" \"$3\"";
    command.args(["-c", script]).arg(cgroup).args([BOOT, name]).arg(root);
    command
}

/// A folder for systemd in the unified hierarchy; those of killed processes are removed.
fn make_cgroup(name: &str) -> PathBuf {
    let mounts = fs::read_to_string("/proc/mounts").unwrap();
    let unified = mounts.lines().find_map(|line| {
        let mut words = line.split(' ').skip(1);
        words.next().filter(|_| words.next() == Some("cgroup2"))
    });
    let unified = Path::new(unified.expect("no cgroup2 is mounted: systemd cannot run without"));
    const PREFIX: &str = "humanz-test-";
    for entry in fs::read_dir(unified).unwrap().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let owner = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next());
        if owner.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
            remove_tree(&entry.path());
        }
    }
    let path = unified.join(format!("{PREFIX}{}-{name}", std::process::id()));
    fs::create_dir(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    path
}

/// Waits for the last process in there to be gone.
fn remove_cgroup(path: &Path) {
    for _ in 0..500 {
        remove_tree(path);
        if !path.exists() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    println!("{} is left", path.display());
}

/// Removes empty directories.
fn remove_tree(path: &Path) {
    for entry in fs::read_dir(path).into_iter().flatten().flatten() {
        if entry.path().is_dir() {
            remove_tree(&entry.path());
        }
    }
    // Not empty yet, or already removed: the caller retries.
    fs::remove_dir(path).ok();
}
