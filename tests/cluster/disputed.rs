//! A subnet that two hosts have.

use crate::support::cni::Network;
use crate::support::wait::SOON;
use crate::support::{Agent, Cluster, Node, Place, Pod, eventually, facts, local};

const HOSTS: &str = "/humanz/hosts/";
pub const CONFIGURATION: &str = "/etc/cni/net.d/05-humanz.conflist";

pub fn subnet(cluster: &Cluster, host: &str) -> String {
    cluster.etcd.get(&format!("{HOSTS}{host}")).unwrap()
}

pub fn gateway(subnet: &str) -> String {
    subnet.replace(".0/", ".1/")
}

/// Waits until the agent says so; the reason.
pub fn until_not_ready(host: &Node, words: &[&str]) -> String {
    eventually(&format!("{}: not ready because of {words:?}", host.name()), 2 * SOON, || {
        local::connect(host).map_err(|error| error.to_string())?;
        let (code, body) = local::get(host, "/readyz");
        let hit = code == 503 && words.iter().all(|word| body.contains(word));
        if hit { Ok(body) } else { Err(format!("{code}: {body}")) }
    })
}

pub fn until_ready(host: &Node) {
    eventually(&format!("{}: ready", host.name()), 2 * SOON, || {
        let (code, body) = local::get(host, "/readyz");
        if code == 200 { Ok(()) } else { Err(body) }
    });
}

/// With any configuration that a runtime may still have.
pub fn no_pod_starts(host: &Node, name: &str, network: &Network, words: &[&str]) {
    let refused = Pod::try_add(host, name, network).err().expect("ADD is refused");
    assert_eq!(refused.code, 11, "{refused}");
    let status = network.with_version("1.1.0").status(host).expect_err("STATUS fails");
    assert_eq!(status.code, 50, "{status}");
    for word in words {
        assert!(refused.to_string().contains(word), "{word}: {refused}");
        assert!(status.to_string().contains(word), "{word}: {status}");
    }
}

pub fn reaches_its_gateway(pod: &Pod, host: &Node, gateway: &str) {
    assert!(facts::addresses(host, "humanz0").iter().any(|address| address == gateway));
    let address = gateway.split('/').next().unwrap();
    pod.run(&format!("ping -n -c 1 -W 3 {address}")).ok();
}

/// Waits until the host has another subnet, and a pod runs in it.
fn moves_to_another(cluster: &Cluster, host: &Node, before: &str) {
    let name = host.name();
    let now = eventually(&format!("{name} has another subnet"), 2 * SOON, || {
        let now = cluster.etcd.get(&format!("{HOSTS}{name}")).unwrap_or_default();
        if now.is_empty() || now == before { Err(now) } else { Ok(now) }
    });
    eventually(&format!("{name}: configuration with {now}"), SOON, || {
        let conf = host.read(CONFIGURATION).unwrap_or_default();
        if conf.contains(&now) { Ok(()) } else { Err(conf) }
    });
    until_ready(host);
    let pod = Pod::add(host, "in-the-other-subnet");
    assert_eq!(format!("{}/24", pod.gateways()[0]), gateway(&now));
    reaches_its_gateway(&pod, host, &gateway(&now));
    assert!(!facts::addresses(host, "humanz0").contains(&gateway(before)));
}

#[test]
fn a_host_that_lost_its_subnet_starts_no_pod_in_it_and_moves_when_its_pods_are_gone() {
    let cluster = Cluster::new(2);
    let [host, heir] = &cluster.hosts[..] else { panic!("two hosts") };
    let agent = Agent::start(host, &[]);
    agent.wait_ready();
    let (before, pod) = (subnet(&cluster, "h1"), Pod::add(host, "running"));
    let network = Network::of(host);
    agent.kill();
    // The node is removed, and its subnet given to another one.
    cluster.etcd.delete_all("/humanz/v1/subnets/");
    for key in ["hosts/h1", "v1/nodes/h1", "v1/alive/h1"] {
        cluster.etcd.delete(&format!("/humanz/{key}"));
    }
    cluster.etcd.put(&format!("{HOSTS}h2"), &*before);
    let other = Agent::start(heir, &[]);
    other.wait_ready();
    assert_eq!(subnet(&cluster, "h2"), before);

    let agent = Agent::start(host, &[]);
    let words = [&*before, "h2", "drain this host"];
    until_not_ready(host, &words);
    no_pod_starts(host, "late", &network, &words);
    reaches_its_gateway(&pod, host, &gateway(&before));
    local::status_when(host, "the problem", |status| local::has_problem(status, "lease"));
    agent.kill();
    no_pod_starts(host, "later", &network, &words);
    let agent = Agent::start(host, &[]);
    until_not_ready(host, &words);
    reaches_its_gateway(&pod, host, &gateway(&before));
    assert_eq!(cluster.etcd.get(&format!("{HOSTS}h1")), None, "nothing is written meanwhile");
    pod.delete();
    moves_to_another(&cluster, host, &before);
    no_pod_starts_in_the_former(host, &network);
    assert_eq!(subnet(&cluster, "h2"), before);
    drop(agent);
}

/// A runtime may still have the configuration of before.
fn no_pod_starts_in_the_former(host: &Node, network: &Network) {
    let refused = Pod::try_add(host, "stale", network).err().expect("ADD is refused");
    assert!(refused.code == 11 || refused.to_string().contains("gateway"), "{refused}");
}

#[test]
fn a_subnet_taken_by_a_slow_python_host_is_left_by_a_host_without_pods() {
    let cluster = Cluster::new(1);
    let host = &cluster.hosts[0];
    let agent = Agent::start(host, &[]);
    agent.wait_ready();
    let before = subnet(&cluster, "h1");
    cluster.etcd.put(&format!("{HOSTS}py"), &*before);
    moves_to_another(&cluster, host, &before);
    assert_eq!(subnet(&cluster, "py"), before);
}

#[test]
fn a_host_with_pods_keeps_a_subnet_that_a_python_host_took_for_them_alone() {
    let cluster = Cluster::new(1);
    let host = &cluster.hosts[0];
    let agent = Agent::start(host, &[]);
    agent.wait_ready();
    let (before, pod) = (subnet(&cluster, "h1"), Pod::add(host, "running"));
    cluster.etcd.put(&format!("{HOSTS}py"), &*before);
    let words = [&*before, "h1", "py", "drain host h1"];
    until_not_ready(host, &words);
    no_pod_starts(host, "late", &Network::of(host), &words);
    reaches_its_gateway(&pod, host, &gateway(&before));
    assert_eq!(subnet(&cluster, "h1"), before);
    cluster.etcd.delete(&format!("{HOSTS}py"));
    until_ready(host);
    Pod::add(host, "late-again").delete();
    drop(agent);
}

/// The files of addresses of the network's store.
fn reserved(host: &Node) -> Vec<String> {
    let names = host.list("/run/humanz/ipam/humanz").into_iter();
    names.filter(|name| name.parse::<std::net::IpAddr>().is_ok()).collect()
}

#[test]
fn an_agent_that_cannot_read_the_boot_id_frees_no_address_when_a_dispute_begins() {
    let cluster = Cluster::new(1);
    let host = &cluster.hosts[0];
    let agent = Agent::start(host, &[]);
    agent.wait_ready();
    let (before, pod) = (subnet(&cluster, "h1"), Pod::add(host, "running"));
    let kept = reserved(host);
    // As an agent that has no descriptor left for a moment.
    let boot_id = "/proc/sys/kernel/random/boot_id";
    host.shell(&format!("mount --bind /dev/null {boot_id}")).ok();
    cluster.etcd.put(&format!("{HOSTS}py"), &*before);
    local::status_when(host, "the problem", |status| local::has_problem(status, "change-failed"));
    assert_eq!(reserved(host), kept);
    host.shell(&format!("umount {boot_id}")).ok();
    local::status_when(host, "the subnet is closed", |status| {
        !local::has_problem(status, "change-failed")
    });
    until_not_ready(host, &[&*before, "h1", "py", "drain host h1"]);
    no_pod_starts(host, "late", &Network::of(host), &[&*before]);
    assert_eq!(reserved(host), kept);
    reaches_its_gateway(&pod, host, &gateway(&before));
}

#[test]
fn a_host_that_lost_its_store_keeps_a_disputed_subnet_for_its_running_pods() {
    keeps_a_disputed_subnet_without_its_store("on");
}

#[test]
fn a_host_that_lost_its_store_keeps_a_disputed_subnet_for_silent_pods_without_a_guard() {
    keeps_a_disputed_subnet_without_its_store("off");
}

fn keeps_a_disputed_subnet_without_its_store(guard: &str) {
    let cluster = Cluster::new(1);
    let host = &cluster.hosts[0];
    let agent = Agent::start(host, &[("POD_GUARD", guard)]);
    agent.wait_ready();
    let (before, pod) = (subnet(&cluster, "h1"), Pod::add(host, "running"));
    host.run("rm -r /run/humanz/ipam/humanz").ok();
    // As after a while in which the pod sends nothing; what is pinned stays.
    host.run("ip neigh flush dev humanz0").ok();
    cluster.etcd.put(&format!("{HOSTS}py"), &*before);
    until_not_ready(host, &[&*before, "h1", "py", "drain host h1"]);
    // A host without pods moves within a second.
    std::thread::sleep(std::time::Duration::from_secs(4));
    assert_eq!(subnet(&cluster, "h1"), before);
    reaches_its_gateway(&pod, host, &gateway(&before));
    pod.delete();
    moves_to_another(&cluster, host, &before);
    drop(agent);
}
