//! The file system of a node: its own disk, and this machine's programs read-only.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::mount::{MsFlags, mount};

/// Where the executable under test lies in a node.
pub const EXECUTABLE: &str = "/opt/humanz/humanz-agent";

/// Kept over a reboot.
const OWN: [&str; 5] = ["/etc", "/opt", "/var/lib", "/var/log", "/root"];
/// Empty after a reboot.
const VOLATILE: [&str; 3] = ["/run", "/tmp", "/var/tmp"];
/// Files that programs need in /etc.
const NEEDED: [&str; 11] = [
    "group",
    "host.conf",
    "iproute2",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "localtime",
    "nsswitch.conf",
    "passwd",
    "protocols",
    "services",
];

/// Hundreds of links, of which a copy for each node was half of what some tests cost: shown as they are here.
const ALTERNATIVES: &str = "/etc/alternatives";

/// A folder for disks, named after this process. Leftovers of killed processes are removed.
pub fn folder() -> tempfile::TempDir {
    const PREFIX: &str = "humanz-test-";
    for entry in fs::read_dir(std::env::temp_dir()).unwrap().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let owner = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next());
        if owner.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
            // Two tests may do this at once.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
    let prefix = format!("{PREFIX}{}-", std::process::id());
    tempfile::Builder::new().prefix(&prefix).tempdir().unwrap()
}

/// The root file system of Debian 13, read-only; not below /tmp, of which nodes have their own.
///
/// # Panics
/// If it has not been made.
pub fn debian_13() -> PathBuf {
    let tree = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/debian13");
    let found = tree.canonicalize();
    found.unwrap_or_else(|_| panic!("no {}: `make target/debian13` makes it", tree.display()))
}

pub struct Disk {
    folder: PathBuf,
}

impl Disk {
    /// A fresh one in `folder` for the node `name`, whose /etc/hosts says `hosts`.
    pub fn new(folder: &Path, name: &str, hosts: &str) -> Self {
        let disk = Self { folder: folder.to_owned() };
        for path in OWN {
            fs::create_dir_all(disk.place(path)).unwrap();
        }
        let etc = disk.place("/etc");
        let found = NEEDED.iter().map(|name| format!("/etc/{name}"));
        let found = found.filter(|path| Path::new(path).exists());
        let copied = Command::new("cp").arg("-dR").args(found).arg(&etc).status().unwrap();
        assert!(copied.success(), "copy to {}", etc.display());
        fs::write(etc.join("hostname"), format!("{name}\n")).unwrap();
        fs::write(etc.join("machine-id"), format!("{}\n", machine_id(folder))).unwrap();
        fs::write(etc.join("hosts"), format!("127.0.0.1 localhost\n::1 localhost\n{hosts}"))
            .unwrap();
        fs::write(etc.join("resolv.conf"), "").unwrap();
        if Path::new(ALTERNATIVES).exists() {
            fs::create_dir(disk.place(ALTERNATIVES)).unwrap();
        }
        fs::create_dir_all(disk.place("/opt/humanz")).unwrap();
        fs::write(disk.place(EXECUTABLE), "").unwrap();
        disk
    }

    /// Where a path of the node below one of [`OWN`] lies on this machine.
    pub fn place(&self, path: &str) -> PathBuf {
        self.folder.join(path.trim_start_matches('/'))
    }

    /// The boot ID of the next boot.
    pub fn set_boot_id(&self, id: &str) {
        fs::write(self.folder.join("boot-id"), format!("{id}\n")).unwrap();
    }

    /// Mounts it all; in the node's mount namespace.
    ///
    /// Opens no file for writing: another thread that forks just then would have it open a moment
    /// longer, and what is being written cannot be made read-only.
    pub fn mount(&self, executable: &Path) {
        bind(executable, &self.place(EXECUTABLE));
        bind(&self.folder.join("boot-id"), Path::new("/proc/sys/kernel/random/boot_id"));
        let alternatives = self.place(ALTERNATIVES);
        if alternatives.exists() {
            bind(Path::new(ALTERNATIVES), &alternatives);
            read_only(&alternatives);
        }
        for path in OWN {
            bind(&self.place(path), Path::new(path));
        }
        for path in VOLATILE {
            let mode = if path == "/run" { "mode=755" } else { "mode=1777" };
            make(Some("tmpfs"), path, Some("tmpfs"), MsFlags::empty(), Some(mode));
        }
        own_sysfs();
        // `ip netns` shares this folder's mounts on first use; two first uses at once would race.
        fs::create_dir("/run/netns").unwrap();
        bind(Path::new("/run/netns"), Path::new("/run/netns"));
        make(None, "/run/netns", None, MsFlags::MS_SHARED, None);
        // Everything that is not the node's own is read-only.
        read_only(Path::new("/"));
    }
}

/// Shows the network devices of this namespace, and the cgroups of the machine.
fn own_sysfs() {
    let cgroups = Path::new("/sys/fs/cgroup").exists();
    if cgroups {
        fs::create_dir("/run/cgroup").unwrap();
        make(Some("/sys/fs/cgroup"), "/run/cgroup", None, MsFlags::MS_BIND | MsFlags::MS_REC, None);
    }
    make(Some("sysfs"), "/sys", Some("sysfs"), MsFlags::empty(), None);
    if cgroups {
        make(Some("/run/cgroup"), "/sys/fs/cgroup", None, MsFlags::MS_MOVE, None);
        fs::remove_dir("/run/cgroup").unwrap();
    }
}

/// With what is mounted below `from`: the executable, on the disk.
fn bind(from: &Path, to: &Path) {
    let flags = MsFlags::MS_BIND | MsFlags::MS_REC;
    make(Some(from.to_str().unwrap()), to.to_str().unwrap(), None, flags, None);
}

fn read_only(path: &Path) {
    let flags = MsFlags::MS_REMOUNT | MsFlags::MS_BIND | MsFlags::MS_RDONLY;
    make(None, path.to_str().unwrap(), None, flags, None);
}

fn make(from: Option<&str>, to: &str, kind: Option<&str>, flags: MsFlags, options: Option<&str>) {
    mount(from, to, kind, flags, options)
        .unwrap_or_else(|e| panic!("mount {kind:?} {from:?} on {to} ({flags:?}): {e}"));
}

/// 32 hexadecimal digits of its own for every disk.
fn machine_id(folder: &Path) -> String {
    let hash = |salt: &str| {
        let mut hasher = DefaultHasher::new();
        (salt, folder).hash(&mut hasher);
        hasher.finish()
    };
    format!("{:016x}{:016x}", hash("a"), hash("b"))
}
