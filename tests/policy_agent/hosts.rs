//! The same file on two hosts.

use serde_json::{Value, json};

use crate::support::{Agent, Cluster, Pod};
use crate::traffic::{Flood, Server};
use crate::{FILE, add, only_from, write_policies};

/// A pod of another host, as a file has it.
pub fn pod_object(name: &str, app: &str, host: &str, pod: &Pod) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"namespace": "shop", "name": name, "labels": {"app": app}},
        "spec": {"nodeName": host},
        "status": {"podIPs": [{"ip": pod.v4()}, {"ip": pod.v6()}]},
    })
}

#[test]
fn policies_hold_between_hosts() {
    let cluster = Cluster::new(2);
    let [h1, h2] = [&cluster.hosts[0], &cluster.hosts[1]];
    for host in [h1, h2] {
        write_policies(host, &[only_from("db", &["web"])]);
    }
    let settings = [("IPV6_SUBNET", "fd10::/48"), ("POLICY", "on"), ("POLICY_FILE", FILE)];
    let agents = cluster.start_agents(&settings);
    let db = add(h1, "db", "db");
    let (web, other) = (add(h2, "web", "web"), add(h2, "other", "other"));
    let mut server = Server::open(&db);
    for [to, from_web, from_other] in
        [[db.v4(), web.v4(), other.v4()], [db.v6(), web.v6(), other.v6()]]
    {
        let (allowed, denied) = (Flood::start(&web, to), Flood::start(&other, to));
        denied.go_on();
        assert_eq!(server.received(from_other), 0);
        let pods =
            [pod_object("web", "web", "h2", &web), pod_object("other", "other", "h2", &other)];
        write_policies(h1, &[&[only_from("db", &["web"])][..], &pods].concat());
        server.wait(from_web);
        denied.go_on();
        assert_eq!(server.received(from_other), 0);
        crate::support::soon("replies", || {
            server.received(from_web);
            allowed.answered() > 3
        });
        write_policies(h1, &[&[only_from("db", &["nobody"])][..], &pods].concat());
        server.wait_silence(from_web, std::time::Instant::now());
        write_policies(h1, &[only_from("db", &["web"])]);
    }
    agents.iter().for_each(Agent::stop);
}
