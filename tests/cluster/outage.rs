//! etcd stops, comes back, loses its data: pods are not disturbed.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::support::local::has_problem;
use crate::support::wait::SOON;
use crate::support::{Agent, Cluster, Pinger, Place, Pod, eventually, facts, local};
use crate::{DUAL_STACK, TUNNELS};

#[test]
fn etcd_is_stopped_for_twenty_seconds() {
    let network = Network::start();
    network.cluster.etcd.freeze();
    network.runs_for(Duration::from_secs(20));
    network.cluster.etcd.thaw();
    network.ends_in_sync_with_nothing_lost();
}

#[test]
fn etcd_is_killed_and_comes_back() {
    outlives_a_killed_etcd(Network::start());
}

#[test]
fn tunnels_stay_while_etcd_is_killed_and_comes_back() {
    outlives_a_killed_etcd(Network::start_with(TUNNELS));
}

fn outlives_a_killed_etcd(network: Network) {
    network.cluster.etcd.kill();
    network.runs_for(Duration::from_secs(5));
    network.cluster.etcd.restart();
    network.ends_in_sync_with_nothing_lost();
}

#[test]
fn etcd_comes_back_with_a_history_that_begins_after_the_watch() {
    let network = Network::start();
    let cluster = &network.cluster;
    for host in &cluster.hosts {
        cluster.part(host, &cluster.etcd.node);
    }
    for round in 0..20 {
        cluster.etcd.put("/humanz/hosts/elsewhere", format!("10.244.{}.0/24", 200 + round));
    }
    cluster.etcd.delete("/humanz/hosts/elsewhere");
    cluster.etcd.compact();
    cluster.etcd.restart();
    cluster.join();
    network.ends_in_sync_with_nothing_lost();
}

#[test]
fn etcd_comes_back_without_its_data() {
    let network = Network::start();
    network.cluster.etcd.restart_empty();
    network.runs_for(Duration::from_secs(2));
    eventually("every host is in etcd again", Duration::from_secs(60), || {
        let leases = leases(&network.cluster);
        if leases == network.leases { Ok(()) } else { Err(format!("{leases:?}")) }
    });
    network.ends_in_sync_with_nothing_lost();
}

#[test]
fn one_host_is_cut_off_from_etcd() {
    let network = Network::start();
    let cluster = &network.cluster;
    cluster.part(&cluster.hosts[2], &cluster.etcd.node);
    network.runs_for(Duration::from_secs(10));
    cluster.join();
    network.ends_in_sync_with_nothing_lost();
}

/// The first host's agent said that nothing is wrong, while the others saw none there and advised to remove it; the new
/// one waited for etcd, as it said, without a reason.
#[test]
fn a_full_etcd_is_reported_by_hosts_whose_agents_start() {
    let cluster = Cluster::new(2);
    let [known, new] = [&cluster.hosts[0], &cluster.hosts[1]];
    let before = Agent::start(known, &[]);
    before.wait_ready();
    before.stop();
    cluster.etcd.set_full(true);
    let agents = [known, new].map(|host| Agent::start(host, &[]));
    for (host, agent) in [known, new].into_iter().zip(&agents) {
        agent.wait_log(&["etcd takes no sign of life"]);
        let problem = local::wait_problem(host, "etcd", "etcd");
        let what = "etcd takes no sign of life of this host: grant an etcd lease: etcd";
        assert!(problem["what"].as_str().unwrap().starts_with(what), "{problem}");
        assert!(problem["fix"].as_str().unwrap().starts_with("etcdctl alarm list #"), "{problem}");
    }
    let removed = Agent::run(new, &format!("nodes rm {}", known.name()), &[]);
    let words = "may be alive, as hosts cannot show it in etcd: grant an etcd lease: etcd";
    assert_eq!(removed.status.code(), Some(1), "{removed}");
    assert!(removed.stderr.contains(words) && removed.stderr.contains("disarm"), "{removed}");
    cluster.etcd.set_full(false);
    for agent in &agents {
        agent.wait_ready();
    }
    for host in [known, new] {
        local::status_when(host, "no problem", |status| !has_problem(status, "etcd"));
        let key = format!("/humanz/v1/alive/{}", host.name());
        eventually(&key, SOON, || cluster.etcd.get(&key).ok_or("it is missing".into()));
    }
}

/// Three hosts with a pod each, and pings that do not stop.
struct Network {
    pingers: Vec<Pinger>,
    pods: Vec<Pod>,
    agents: Vec<Agent>,
    cluster: Cluster,
    leases: BTreeMap<String, String>,
    routes: Vec<BTreeMap<String, String>>,
}

impl Network {
    fn start() -> Self {
        Self::start_with(DUAL_STACK)
    }

    fn start_with(variables: &[(&str, &str)]) -> Self {
        let cluster = Cluster::new(3);
        let agents = cluster.start_agents(variables);
        let pods: Vec<Pod> = cluster.hosts.iter().map(|host| Pod::add(host, "a")).collect();
        let routes = cluster.hosts.iter().map(|host| {
            eventually(&format!("{} has all routes", host.name()), SOON, || {
                let routes = facts::routes(host);
                if routes.len() == 4 { Ok(routes) } else { Err(format!("{routes:?}")) }
            })
        });
        let routes = routes.collect();
        let pairs = [(0, 1), (1, 2), (2, 0)];
        let pingers = pairs.into_iter().flat_map(|(from, to)| {
            let (from, to) = (&pods[from], &pods[to]);
            [Pinger::start(from, to.v4()), Pinger::start(from, to.v6())]
        });
        let pingers = pingers.collect();
        let leases = leases(&cluster);
        Self { pingers, pods, agents, cluster, leases, routes }
    }

    /// Pods are added, reached and deleted all the while.
    fn runs_for(&self, time: Duration) {
        let start = Instant::now();
        let mut rounds = 0;
        while start.elapsed() < time {
            for (host, neighbour) in self.cluster.hosts.iter().zip(self.pods.iter().rev()) {
                let pod = Pod::add(host, "passing");
                pod.run(&format!("ping -n -c 1 -W 3 {}", neighbour.v4())).ok();
                pod.run(&format!("ping -n -c 1 -W 3 {}", neighbour.v6())).ok();
                pod.delete();
            }
            rounds += 1;
            std::thread::sleep(Duration::from_millis(200));
        }
        println!("{rounds} pods a host came and went in {time:?}");
    }

    /// What happens in etcd now reaches every host, and nothing changed meanwhile.
    fn ends_in_sync_with_nothing_lost(self) {
        let start = Instant::now();
        let etcd = &self.cluster.etcd;
        etcd.put("/humanz/hosts/late", "10.244.222.0/24");
        etcd.put(
            "/humanz/v1/nodes/late",
            r#"{"schema":1,"machineId":"00000000000000000000000000000001","bootId":"b",
            "version":"0.1.0","subnets":["10.244.222.0/24"],"addresses":["192.0.2.99"],
            "backend":"direct","mtu":1500}"#,
        );
        for (host, before) in self.cluster.hosts.iter().zip(&self.routes) {
            let mut wanted = before.clone();
            wanted.insert("10.244.222.0/24".into(), "192.0.2.99".into());
            let what = format!("{} follows etcd again", host.name());
            eventually(&what, Duration::from_secs(60), || {
                let routes = facts::routes(host);
                if routes == wanted { Ok(()) } else { Err(format!("{routes:?}")) }
            });
        }
        println!("in sync after {:?}", start.elapsed());
        let mut leases = leases(&self.cluster);
        leases.remove("/humanz/hosts/late");
        assert_eq!(leases, self.leases, "no host changed its subnet");
        for agent in &self.agents {
            assert!(agent.process.ended().is_none(), "{}: {}", agent.host.name(), agent.log());
        }
        for pod in &self.pods {
            pod.check().unwrap_or_else(|e| panic!("{}: CHECK: {e}", pod.label()));
        }
        for pinger in self.pingers {
            let report = pinger.report();
            println!("{report}");
            report.assert_nothing_lost();
        }
    }
}

fn leases(cluster: &Cluster) -> BTreeMap<String, String> {
    cluster.etcd.list("/humanz/hosts/").into_iter().collect()
}
