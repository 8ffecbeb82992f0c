//! The executable needs nothing but the kernel.
#![allow(clippy::unwrap_used, reason = "a test stops at the first failure")]

use humanz_test_support as support;

use std::net::{Ipv4Addr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::Value;
use support::chroot::Chroot;
use support::cni::{Attachment, Network};
use support::pod::make_netns;
use support::store::Store;
use support::{Alone, Cluster, Place, eventually, facts};

#[test]
fn the_executable_has_no_interpreter_and_no_library() {
    let path = support::executable();
    let bytes = std::fs::read(&path).unwrap();
    let (interpreter, needed) = elf_dependencies(&bytes);
    let dynamic = "is dynamic: `make test` tests the static one";
    assert!(!interpreter && needed == 0, "{} {dynamic}", path.display());
}

#[test]
fn in_an_empty_root_the_plugin_prints_its_versions() {
    let alone = Alone::new();
    let root = Chroot::new(&alone.host, "humanz");
    let mut version = root.command("/humanz");
    version.env("CNI_COMMAND", "VERSION");
    let output = alone.host.run_command(&mut version, r#"{"cniVersion":"1.0.0"}"#).ok();
    let output: Value = serde_json::from_str(&output).unwrap();
    let versions = output["supportedVersions"].as_array().unwrap();
    assert_eq!(versions.last().unwrap(), "1.1.0", "{output}");
}

#[test]
fn in_an_empty_root_the_plugin_attaches_a_pod() {
    let alone = Alone::new();
    let host = &alone.host;
    make_netns(host, "a");
    let root = Chroot::new(host, "humanz");
    root.show("/run/netns/a");
    // The configuration of one of the systems humanz grew out of: no agent, no etcd.
    let network = Network::parse(
        r#"{"cniVersion":"0.3.1","name":"hand","type":"humanz","bridge":"br0",
        "network":"10.9.0.0/16","subnet":"10.9.7.0/24"}"#,
    );
    let pod = Attachment::new("a");
    let invoke = |verb: &str| {
        let plugin = &network.plugins[0];
        let (command, input) = network.invocation(verb, plugin, Some(&pod), &Value::Null);
        let mut inside = root.command("/humanz");
        inside.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        host.run_command(&mut inside, &input).ok()
    };
    let result: Value = serde_json::from_str(&invoke("ADD")).unwrap();
    assert_eq!(result["ips"][0]["address"], "10.9.7.2/24", "{result}");
    host.run("ping -n -c 1 -W 3 10.9.7.2").ok();
    host.run("ip netns exec a ping -n -c 1 -W 3 10.9.7.1").ok();
    invoke("DEL");
    assert_eq!(facts::veths(host), Vec::<String>::new());
}

#[test]
fn in_an_empty_root_an_agent_finds_etcd_by_its_line_in_etc_hosts() {
    let cluster = Cluster::new(1);
    let root = agent_root(&cluster);
    root.write("/etc/hosts", &format!("{} etcd.example\n", Store::ADDRESS_V4));
    starts(&root, "etcd.example");
}

#[test]
fn in_an_empty_root_an_agent_finds_etcd_by_the_server_in_resolv_conf() {
    let cluster = Cluster::new(1);
    let root = agent_root(&cluster);
    let _server = serve_names(&root);
    root.write("/etc/resolv.conf", "nameserver 127.0.0.9\n");
    starts(&root, "etcd.example");
}

#[test]
fn in_an_empty_root_an_agent_finds_etcd_by_the_search_list_in_resolv_conf() {
    let cluster = Cluster::new(1);
    let root = agent_root(&cluster);
    let _server = serve_names(&root);
    root.write("/etc/resolv.conf", "search nowhere.test example\nnameserver 127.0.0.9\n");
    starts(&root, "etcd");
}

fn agent_root(cluster: &Cluster) -> Chroot {
    let root = Chroot::new(&cluster.hosts[0], "humanz-agent");
    root.write("/etc/machine-id", "0123456789abcdef0123456789abcdef\n");
    root
}

/// An agent configured with this host name of etcd serves.
fn starts(root: &Chroot, etcd: &str) {
    let agent = root.host.spawn(root.command("/humanz-agent").env("ETCD_HOST", etcd));
    eventually(&format!("an agent with ETCD_HOST={etcd}"), Duration::from_secs(30), || {
        let conf = root.read("/etc/cni/net.d/05-humanz.conflist");
        conf.map(drop).ok_or_else(|| agent.log())
    });
}

/// A name server at 127.0.0.9 that knows etcd.example alone.
fn serve_names(root: &Chroot) -> NameServer {
    let socket = root.host.inside(|| UdpSocket::bind("127.0.0.9:53").unwrap());
    socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let thread = std::thread::spawn({
        let stop = Arc::clone(&stop);
        move || {
            let mut query = [0; 512];
            while !stop.load(Ordering::Relaxed) {
                if let Ok((length, from)) = socket.recv_from(&mut query) {
                    let answer = answer(&query[..length], Store::ADDRESS_V4);
                    socket.send_to(&answer, from).unwrap();
                }
            }
        }
    });
    NameServer { stop, thread: Some(thread) }
}

/// Serves until dropped.
struct NameServer {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for NameServer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().map(JoinHandle::join);
    }
}

/// The answer to a query of one question: RFC 1035 §4.1.
fn answer(query: &[u8], address: Ipv4Addr) -> Vec<u8> {
    let name_end = 12 + query[12..].iter().position(|byte| *byte == 0).unwrap() + 1;
    let (name, kind) = (&query[12..name_end], &query[name_end..name_end + 2]);
    let known = name == b"\x04etcd\x07example\x00";
    let has_address = known && kind == [0, 1];
    let mut answer = query[..2].to_vec();
    // A response, recursion desired and available; NXDOMAIN for names unknown.
    answer.extend([0x81, if known { 0x80 } else { 0x83 }]);
    answer.extend([0, 1, 0, u8::from(has_address), 0, 0, 0, 0]);
    answer.extend(&query[12..name_end + 4]);
    if has_address {
        // The name above, type A, class IN, 60 s, 4 bytes.
        answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4]);
        answer.extend(address.octets());
    }
    answer
}

/// Whether an ELF64 little-endian file has an interpreter, and how many libraries it needs: elf(5).
fn elf_dependencies(bytes: &[u8]) -> (bool, usize) {
    const INTERPRETER: u64 = 3;
    const DYNAMIC: u64 = 2;
    const NEEDED: u64 = 1;
    let number = |at: usize, length: usize| -> u64 {
        bytes[at..at + length].iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte))
    };
    let place = |value: u64| usize::try_from(value).unwrap();
    assert_eq!(&bytes[..6], b"\x7fELF\x02\x01", "a 64-bit little-endian program");
    let (table, size, count) = (place(number(32, 8)), place(number(54, 2)), place(number(56, 2)));
    let (mut interpreter, mut needed) = (false, 0);
    for header in (0..count).map(|index| table + index * size) {
        match number(header, 4) {
            INTERPRETER => interpreter = true,
            DYNAMIC => {
                let (from, length) = (place(number(header + 8, 8)), place(number(header + 32, 8)));
                let entries = (from..from + length).step_by(16);
                needed += entries.filter(|entry| number(*entry, 8) == NEEDED).count();
            }
            _ => {}
        }
    }
    (interpreter, needed)
}

#[test]
fn a_dynamic_executable_is_distinguished_from_a_static_one() {
    let shell = std::fs::read("/bin/sh").unwrap();
    let (interpreter, needed) = elf_dependencies(&shell);
    assert!(interpreter && needed > 0, "/bin/sh is dynamic on every Debian");
}
