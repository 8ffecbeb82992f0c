//! The pool of the settings is to grow over a network of a tenant: it does not, and pods run on.

use serde_json::{Value, json};

use crate::etcd::{FROM_ETCD, apply};
use crate::support::{Agent, Cluster, Node, Place, Pod, eventually, facts, local, soon, wait};
use crate::tenants::{SOON_GIVEN_BACK, add, is_apart, is_in, namespace, network, reaches, try_add};

/// With the network of a tenant in what is new.
const WIDE: &[(&str, &str)] = &[("IP_SUBNET", "10.244.0.0/15"), ("IP_SUBNET_MARGIN", "9")];

const WHY: &str = "10.245.0.0/16 of network blue/front";

fn beside_the_pool() -> Vec<Value> {
    vec![
        network("blue/front", json!({"subnets": ["10.245.0.0/16", "fd00:45::/64"]})),
        network("red/front", json!({"subnets": ["10.33.0.0/16", "fd00:33::/64"]})),
        namespace("blue", json!({"tenant": "blue", "network": "front"})),
        namespace("red", json!({"tenant": "red", "network": "front"})),
    ]
}

fn config(cluster: &Cluster) -> Value {
    let text = cluster.etcd.get("/humanz/v1/config").unwrap();
    serde_json::from_str::<Value>(&text).unwrap()["ipSubnet"].clone()
}

fn wide_agent(host: &Node) -> Agent {
    let agent = Agent::start(host, &[FROM_ETCD, WIDE].concat());
    agent.wait_ready();
    agent
}

/// The pool of the settings, which stays what it was.
fn wait_refused(host: &Node) {
    local::wait_problem(host, "invalid-setting", "IP_SUBNET=10.244.0.0/15");
}

/// What of the host pods of the network need.
fn network_of(host: &Node) -> (Vec<String>, String) {
    let addresses = facts::addresses(host, "humanz0");
    (addresses, host.run("ip route; ip -6 route").stdout)
}

struct Running {
    blue: [Pod; 2],
    red: Pod,
    plain: Pod,
}

impl Running {
    fn start([h1, h2]: [&Node; 2]) -> Running {
        let blue = [add(h1, "blue/a"), add(h2, "blue/b")];
        let running = Running { blue, red: add(h1, "red/a"), plain: add(h2, "plain/a") };
        for pod in &running.blue {
            assert!(is_in(pod.v4(), "10.245.0.0/16"), "{} has {}", pod.label(), pod.v4());
        }
        soon("both hosts", || reaches(&running.blue[0], &running.blue[1]));
        running
    }

    fn run_on(&self) {
        let [a, b] = &self.blue;
        assert!(reaches(a, b) && reaches(b, a), "pods of the network");
        assert!(is_apart(&self.red, b) && is_apart(&self.plain, a) && is_apart(b, &self.red));
        for pod in [a, b, &self.red, &self.plain] {
            pod.check().unwrap_or_else(|error| panic!("{}: CHECK: {error}", pod.label()));
        }
    }
}

/// At a start, by what the host knows from its disk where etcd is away; and before, by who asks.
#[test]
fn a_host_that_starts_with_a_pool_over_a_network_goes_on_with_the_old_one() {
    let cluster = Cluster::new(2);
    apply(&cluster.hosts[0], &beside_the_pool());
    let agents = cluster.start_agents(FROM_ETCD);
    let running = Running::start([&cluster.hosts[0], &cluster.hosts[1]]);
    soon("its policies on disk", || {
        cluster.hosts[0].run("ls /var/lib/humanz/policy.json").succeeded()
    });
    let before = network_of(&cluster.hosts[0]);
    agents[0].stop();
    let wide = [FROM_ETCD, WIDE].concat();
    for command in ["check-config", "--dry-run"] {
        let ended = Agent::run(&cluster.hosts[0], command, &wide);
        assert!(!ended.succeeded() && ended.to_string().contains(WHY), "{command}: {ended}");
    }
    let again = wide_agent(&cluster.hosts[0]);
    wait_refused(&cluster.hosts[0]);
    running.run_on();
    assert_eq!(network_of(&cluster.hosts[0]), before);
    assert_eq!(config(&cluster), "10.244.0.0/16");
    let new = add(&cluster.hosts[0], "blue/new");
    soon("a new pod", || reaches(&new, &running.blue[1]));
    again.stop();

    cluster.etcd.kill();
    let alone = wide_agent(&cluster.hosts[0]);
    wait_refused(&cluster.hosts[0]);
    running.run_on();
    cluster.etcd.restart();
    soon("etcd again", || !local::has_problem(&local::status(&cluster.hosts[0]), "etcd"));
    running.run_on();
    assert_eq!((config(&cluster), network_of(&cluster.hosts[0])), (json!("10.244.0.0/16"), before));
    [&alone, &agents[1]].into_iter().for_each(Agent::stop);
}

#[test]
fn a_reload_with_a_pool_over_a_network_is_refused_and_follows_when_the_network_is_gone() {
    let cluster = Cluster::new(2);
    let [h1, h2] = [&cluster.hosts[0], &cluster.hosts[1]];
    apply(h1, &beside_the_pool());
    let agents = cluster.start_agents(SOON_GIVEN_BACK);
    let running = Running::start([h1, h2]);
    let before = network_of(h1);
    h1.shell("mkdir -p /etc/humanz").ok();
    h1.write("/etc/humanz/agent.env", "IP_SUBNET=10.244.0.0/15\nIP_SUBNET_MARGIN=9\n");
    agents[0].reload();
    agents[0].wait_log(&["IP_SUBNET stays", WHY]);
    running.run_on();
    assert_eq!((config(&cluster), network_of(h1)), (json!("10.244.0.0/16"), before));
    let Running { blue, .. } = running;
    blue.into_iter().for_each(Pod::delete);
    apply(h1, &[namespace("blue", json!({}))]);
    soon("the network to go", || Agent::run(h1, "net rm blue/front", FROM_ETCD).succeeded());
    eventually("the pool to grow", wait::SOON, || {
        agents[0].reload();
        match config(&cluster) == "10.244.0.0/15" {
            true => Ok(()),
            false => Err(agents[0].log()),
        }
    });
    let over = "net create green/over --cidr 10.245.128.0/17";
    let refused = Agent::run(h2, over, FROM_ETCD);
    let why = "lies in 10.244.0.0/15 of the default network";
    assert!(refused.stderr.contains(why), "by a host with the old setting: {refused}");
    agents.iter().for_each(Agent::stop);
}

/// Nothing on the disk of the host that starts is of the network.
#[test]
fn a_network_that_another_host_made_meanwhile_keeps_the_pool_from_growing() {
    let cluster = Cluster::new(2);
    let [h1, h2] = [&cluster.hosts[0], &cluster.hosts[1]];
    let agents = cluster.start_agents(FROM_ETCD);
    agents[0].stop();
    apply(h2, &beside_the_pool());
    let dry = Agent::run(h1, "--dry-run", &[FROM_ETCD, WIDE].concat());
    assert!(!dry.succeeded() && dry.to_string().contains(WHY), "{dry}");
    let again = wide_agent(h1);
    local::wait_problem(h1, "lease", "etcd");
    let running = Running::start([h1, h2]);
    running.run_on();
    assert_eq!(config(&cluster), "10.244.0.0/16");
    [&again, &agents[1]].into_iter().for_each(Agent::stop);
}

/// As an agent left it that let the pool grow in spite of the network.
#[test]
fn a_network_inside_the_pool_is_closed_to_new_pods_and_those_that_run_keep_all() {
    let cluster = Cluster::new(2);
    let [h1, h2] = [&cluster.hosts[0], &cluster.hosts[1]];
    apply(h1, &beside_the_pool());
    let agents = cluster.start_agents(FROM_ETCD);
    let running = Running::start([h1, h2]);
    let before = network_of(h1);
    agents.iter().for_each(Agent::stop);
    let wide =
        cluster.etcd.get("/humanz/v1/config").unwrap().replace("10.244.0.0/16", "10.244.0.0/15");
    cluster.etcd.put("/humanz/v1/config", wide.replace("Margin\":8", "Margin\":9"));
    for host in [h1, h2] {
        host.run("rm -f /var/lib/humanz/settings.json /var/lib/humanz/state.json").ok();
    }
    let agents = [wide_agent(h1), wide_agent(h2)];
    for host in [h1, h2] {
        local::wait_problem(host, "policy", "Network blue/front");
    }
    let refused = try_add(h1, "blue/new", json!({})).err().unwrap();
    assert!(refused.to_string().contains("its addresses are not its own"), "{refused}");
    running.run_on();
    assert_eq!(network_of(h1).0, before.0);
    agents.iter().for_each(Agent::stop);
}
