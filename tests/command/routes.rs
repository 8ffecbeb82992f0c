//! The subcommand `routes`.

use crate::support::wait::SOON;
use crate::support::{Cluster, Place, eventually};
use crate::{object, refused, run, shape};

const POOLS: &[(&str, &str)] = &[("IPV6_SUBNET", "fd10::/48"), ("ETCD_TIMEOUT", "1s")];

#[test]
fn each_route_is_listed_with_its_problem() {
    let cluster = Cluster::routed(2, 1);
    let agents = cluster.start_agents(POOLS);
    let host = &cluster.hosts[0];
    let output = eventually("all routes are there", SOON, || {
        let output = run(host, "routes", POOLS);
        if output.succeeded() { Ok(output.stdout) } else { Err(output.to_string()) }
    });
    println!("{output}");
    let of = |host: &str| {
        output.lines().filter(|line| line.contains(&format!(" {host} "))).collect::<Vec<_>>()
    };
    assert_eq!(of("h2").len(), 2, "{output}");
    assert!(
        of("h2").iter().all(|line| line.contains(" ok ") && line.ends_with("same segment")),
        "{output}"
    );
    assert!(
        of("h3").iter().all(|line| line.contains(" ok ") && line.contains("tunnel to ")),
        "{output}"
    );
    assert_eq!(run(host, "routes --wrong", POOLS).ok(), "no route is wrong, of 4\n");
    let value = object(&run(host, "routes --json", POOLS));
    assert_eq!(
        shape(&value),
        "origin.age_seconds: number\norigin.error: null\norigin.from: string\nroutes: list\n\
         routes[].destination: string\nroutes[].found.device: string\nroutes[].found.via: string\n\
         routes[].host: string\nroutes[].state: string\nroutes[].wanted.device: string\n\
         routes[].wanted.via: string\nroutes[].why: string\nschema: number"
    );

    agents[0].stop();
    let h2 = cluster.etcd.get("/humanz/hosts/h2").unwrap();
    let h3 = cluster.etcd.get("/humanz/hosts/h3").unwrap();
    host.shell(&format!(
        "ip route del {h2}; ip route change {h3} via {} proto 104; ip route add 10.244.250.0/24 via {} proto 104",
        cluster.hosts[1].v4(), cluster.hosts[1].v4()
    )).ok();
    cluster.etcd.put("/humanz/hosts/nowhere", "10.244.200.0/24");
    let output = run(host, "routes --wrong", POOLS);
    println!("{output}");
    assert_eq!(output.status.code(), Some(1), "{output}");
    for (subnet, words) in [
        (h2.as_str(), " missing "),
        (&h3, " wrong "),
        ("10.244.250.0/24", " stale "),
        ("10.244.200.0/24", " unreachable "),
    ] {
        let line = output.stdout.lines().find(|line| line.starts_with(subnet)).unwrap_or_default();
        assert!(line.contains(words), "{subnet}{words}is not in: {output}");
    }
    assert_eq!(output.stdout.lines().count(), 5, "a heading and what is wrong: {output}");
    refused(&run(host, "routes", &[("SUBNET_SOURCE", "static")]), 2, &["serves itself alone"]);
}
