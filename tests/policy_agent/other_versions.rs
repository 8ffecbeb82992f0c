//! A host whose agent starts with files that another version wrote, while pods in networks of tenants run.

use serde_json::{Value, json};

use crate::etcd::{FROM_ETCD, apply};
use crate::support::wait::SOON;
use crate::support::{Agent, Cluster, Node, Pinger, Place, Pod, eventually, facts, soon};
use crate::tenants::{add, blocks, is_apart, is_in, reaches, try_add, two_tenants};

/// What the agent has on disk of networks: for plugins, and for its next start.
const FILES: [&str; 3] = [
    "/run/humanz/ipam/.networks.json",
    "/var/lib/humanz/blocks.json",
    "/var/lib/humanz/policy.json",
];

/// The file with a field that this version does not know.
fn newer(mut file: Value) -> Value {
    file["later"] = json!({"since": "the next version"});
    file
}

/// The file without anything but its first field.
fn older(file: Value) -> Value {
    let Value::Object(fields) = file else { panic!("{file}") };
    fields.into_iter().take(1).collect()
}

fn rewrite(host: &Node, change: fn(Value) -> Value) {
    for path in FILES {
        let text = host.read(path).unwrap_or_else(|| panic!("{path} is missing"));
        host.write(path, &change(serde_json::from_str(&text).unwrap()).to_string());
    }
}

/// What packets go by.
fn in_kernel(host: &Node) -> (Vec<String>, Vec<String>) {
    let routes = facts::routes(host).into_iter().map(|(to, by)| format!("{to} via {by}"));
    (facts::addresses(host, "humanz0"), routes.collect())
}

fn starts(host: &Node, pod: &str) -> Pod {
    eventually(&format!("{pod} starts"), SOON, || {
        host.run(&format!("ip netns del {}", pod.replace('/', "-")));
        try_add(host, pod, json!({})).map_err(|error| error.to_string())
    })
}

fn outlives(change: fn(Value) -> Value, with_etcd: bool) {
    let cluster = Cluster::new(2);
    let [h1, h2] = [cluster.hosts[0].clone(), cluster.hosts[1].clone()];
    apply(&h1, &two_tenants());
    let agents = cluster.start_agents(FROM_ETCD);
    let [blue1, blue2, red1] =
        [(&h1, "blue/a"), (&h2, "blue/b"), (&h1, "red/a")].map(|(h, p)| add(h, p));
    soon("both hosts", || reaches(&blue1, &blue2) && reaches(&blue2, &blue1));
    soon("the files", || FILES.iter().all(|path| h1.read(path).is_some()));
    let (keys, before) = (blocks(&cluster), in_kernel(&h1));
    agents[0].stop();
    rewrite(&h1, change);
    if !with_etcd {
        cluster.etcd.kill();
    }
    // What a plugin does not understand might refuse the pod: it waits for the agent.
    let refused = try_add(&h1, "blue/early", json!({})).err().unwrap();
    assert!(refused.code == 11 && refused.to_string().contains(FILES[0]), "{refused}");
    assert_eq!(facts::veths(&h1).len(), 2);
    h1.run("ip netns del blue-early").ok();

    let agent = Agent::start(&h1, FROM_ETCD);
    agent.wait_ready();
    for pod in [&blue1, &red1] {
        pod.check().unwrap_or_else(|error| panic!("{}: CHECK: {error}", pod.label()));
    }
    assert!(reaches(&blue1, &blue2) && reaches(&blue2, &blue1), "{}", agent.log());
    assert!(is_apart(&red1, &blue2) && is_apart(&red1, &blue1), "{}", agent.log());
    assert_eq!(in_kernel(&h1), before, "{}", agent.log());
    if !with_etcd {
        cluster.etcd.restart();
    }
    let late = starts(&h1, "blue/late");
    assert!(is_in(late.v4(), "10.32.0.0/16"), "{}", late.result);
    soon("the new pod", || reaches(&late, &blue2) && reaches(&blue1, &blue2));
    assert!(is_apart(&red1, &late));
    assert_eq!((blocks(&cluster), in_kernel(&h1)), (keys, before), "the same blocks");
    agent.stop();
    agents[1].stop();
}

#[test]
fn pods_of_tenants_outlive_files_of_a_newer_version() {
    outlives(newer, true);
}

#[test]
fn pods_of_tenants_outlive_files_of_a_newer_version_while_etcd_is_away() {
    outlives(newer, false);
}

#[test]
fn pods_of_tenants_outlive_files_of_an_older_version() {
    outlives(older, true);
}

#[test]
fn pods_of_tenants_outlive_files_of_an_older_version_while_etcd_is_away() {
    outlives(older, false);
}

/// What a host was before it knew of tenants: neither the agent's settings nor what the runtime keeps of a pod says
/// anything of policies.
#[test]
fn pods_of_before_there_were_tenants_run_on_in_the_network_of_the_settings() {
    let cluster = Cluster::new(2);
    let hosts @ [h1, h2] = [&cluster.hosts[0], &cluster.hosts[1]];
    let agents = cluster.start_agents(&FROM_ETCD[..1]);
    let [old1, old2, ends] =
        [(h1, "blue/old"), (h2, "blue/old"), (h1, "blue/ends")].map(|(host, pod)| add(host, pod));
    let pingers = [Pinger::start(&old1, old2.v4()), Pinger::start(&old2, old1.v6())];
    agents.iter().for_each(Agent::stop);
    let agents = hosts.map(|host| Agent::start(host, FROM_ETCD));
    agents.iter().for_each(|agent| println!("ready after {:?}", agent.wait_ready()));
    apply(h1, &two_tenants());
    let blue = hosts.map(|host| starts_in(host, "blue/new", "10.32.0.0/16"));
    soon("the tenant", || reaches(&blue[0], &blue[1]) && reaches(&blue[1], &blue[0]));
    // They are of the network that they have an address in, whatever the rule of their namespace says by now.
    for (old, new) in [(&old1, &blue[0]), (&old1, &blue[1]), (&old2, &blue[0])] {
        soon("the end of the old way", || is_apart(new, old) && is_apart(old, new));
    }
    for pod in [&old1, &old2, &ends] {
        pod.check().unwrap_or_else(|error| panic!("{}: CHECK: {error}", pod.label()));
    }
    for pinger in pingers {
        pinger.report().assert_nothing_lost();
    }
    let address = ends.v4();
    ends.delete();
    assert!(!h1.list("/run/humanz/ipam/humanz").contains(&address.to_string()));
    assert!(reaches(&old1, &old2) && reaches(&old2, &old1));
    agents.iter().for_each(Agent::stop);
}

/// Once the agent knows of the network.
fn starts_in(host: &Node, pod: &str, network: &str) -> Pod {
    eventually(&format!("{pod} starts in {network}"), SOON, || {
        let started = starts(host, pod);
        if is_in(started.v4(), network) {
            return Ok(started);
        }
        let address = started.v4();
        started.delete();
        Err(format!("it has {address}"))
    })
}
