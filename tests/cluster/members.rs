//! Three members of etcd: killed, stopped, without a quorum, replaced. Pods are not disturbed.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::DUAL_STACK;
use crate::support::node::command;
use crate::support::wait::SOON;
use crate::support::{Agent, Cluster, Node, Pinger, Place, Pod, Process, eventually, facts};

/// Where hosts find their settings: what is there changes.
const SETTINGS: &str = "/etc/humanz.env";

/// Members number 3, 4, 5 and so on, on the node of etcd: 192.0.2.3 …
struct Members {
    node: Node,
    running: BTreeMap<u8, Process>,
}

impl Members {
    fn start(cluster: &Cluster) -> Members {
        cluster.etcd.kill();
        let mut members = Members { node: cluster.etcd.node.clone(), running: BTreeMap::new() };
        for number in 3..=6 {
            members.node.run(&format!("ip address add 192.0.2.{number}/24 dev eth0")).ok();
        }
        (3..=5).for_each(|number| members.launch(number, &[3, 4, 5], "new"));
        members.wait();
        members
    }

    /// Starts a member, with the data it has, of the cluster of `all`.
    fn launch(&mut self, number: u8, all: &[u8], state: &str) {
        let peer = |number: &u8| format!("m{number}=http://192.0.2.{number}:2380");
        let all = all.iter().map(peer).collect::<Vec<_>>().join(",");
        let own = format!("http://192.0.2.{number}");
        let mut etcd = command(&format!(
            "etcd --name m{number} --data-dir /var/lib/m{number} --listen-client-urls {own}:2379 \
             --advertise-client-urls {own}:2379 --listen-peer-urls {own}:2380 \
             --initial-advertise-peer-urls {own}:2380 --initial-cluster {all} \
             --initial-cluster-state {state} --logger zap --log-level error"
        ));
        self.running.insert(number, self.node.spawn(&mut etcd));
    }

    fn kill(&mut self, number: u8) {
        self.running.remove(&number).expect("it runs").kill();
    }

    fn signal(&self, number: u8, signal: Signal) {
        self.running[&number].signal(signal);
    }

    /// The output of etcdctl with all running members except `without`.
    fn control(&self, without: &[u8], line: &str) -> Result<String, String> {
        let numbers = self.running.keys().filter(|number| !without.contains(number));
        let endpoints: Vec<_> = numbers.map(|number| format!("192.0.2.{number}:2379")).collect();
        let line =
            format!("etcdctl --command-timeout 2s --endpoints {} {line}", endpoints.join(","));
        let said = self.node.run_command(command(&line).env("ETCDCTL_API", "3"), "");
        if said.succeeded() { Ok(said.stdout) } else { Err(said.to_string()) }
    }

    /// Waits until a write is taken.
    fn wait(&self) {
        eventually("etcd takes a write", Duration::from_secs(60), || self.control(&[], "put /x y"));
    }

    fn leader(&self) -> u8 {
        let leads = |number: &&u8| {
            let others: Vec<u8> =
                self.running.keys().copied().filter(|other| other != *number).collect();
            let said = self.control(&others, "endpoint status").unwrap_or_default();
            said.split(", ").nth(4) == Some("true")
        };
        eventually("a leader", Duration::from_secs(60), || {
            self.running.keys().find(leads).copied().ok_or_else(|| "none".to_owned())
        })
    }
}

struct Scene {
    members: Members,
    pingers: Vec<Pinger>,
    agents: Vec<Agent>,
    pods: Vec<Pod>,
    cluster: Cluster,
    leases: String,
    joined: u8,
}

impl Scene {
    fn new() -> Scene {
        let cluster = Cluster::new(2);
        let members = Members::start(&cluster);
        let arguments = format!("--env-file {SETTINGS}");
        let variables = [DUAL_STACK, &[("ETCD_HOST", ""), ("ETCD_TIMEOUT", "2s")]].concat();
        let agents: Vec<Agent> = cluster
            .hosts
            .iter()
            .map(|host| {
                host.write(SETTINGS, "ETCD_HOST=192.0.2.3,192.0.2.4,192.0.2.5\n");
                Agent::start_with(host, &arguments, &variables)
            })
            .collect();
        for agent in &agents {
            agent.wait_ready();
        }
        let pods: Vec<Pod> = cluster.hosts.iter().map(|host| Pod::add(host, "a")).collect();
        for host in &cluster.hosts {
            eventually("the route to the other host", SOON, || {
                let routes = facts::routes(host);
                if routes.len() == 2 { Ok(()) } else { Err(format!("{routes:?}")) }
            });
        }
        let (from, to) = (&pods[0], &pods[1]);
        let pingers = vec![Pinger::start(from, to.v4()), Pinger::start(to, from.v6())];
        let leases = members.control(&[], "get --prefix /humanz/hosts/h").unwrap();
        Scene { members, pingers, agents, pods, cluster, leases, joined: 0 }
    }

    /// Another host joins by the members that are not in `without`; prints how long it took from now
    /// until both hosts have the route to it.
    fn a_host_joins(&mut self, what: &str, without: &[u8]) {
        let begin = Instant::now();
        self.joined += 1;
        let number = self.joined;
        let (subnet, via) =
            (format!("10.244.{}.0/24", 200 + number), format!("192.0.2.{}", 90 + number));
        let record = format!(
            r#"{{"schema":1,"machineId":"{number:032}","bootId":"b","version":"0.1.0","subnets":["{subnet}"],"addresses":["{via}"],"backend":"direct","mtu":1500}}"#
        );
        for (key, value) in [("v1/nodes", record), ("hosts", subnet.clone())] {
            eventually(&format!("{what}: a write"), Duration::from_secs(60), || {
                self.members.control(without, &format!("put /humanz/{key}/late{number} {value}"))
            });
        }
        let written = begin.elapsed();
        for host in &self.cluster.hosts {
            eventually(&format!("{what}: {} has the route", host.name()), SOON.max(LONG), || {
                let routes = facts::routes(host);
                if routes.get(&subnet) == Some(&via) { Ok(()) } else { Err(format!("{routes:?}")) }
            });
        }
        println!(
            "{what}: etcd wrote after {written:?}, both hosts knew after {:?}",
            begin.elapsed()
        );
    }

    fn ends_with_nothing_lost(self) {
        let leases = self.members.control(&[], "get --prefix /humanz/hosts/h").unwrap();
        assert_eq!(leases, self.leases, "a host changed its subnet");
        for agent in &self.agents {
            assert!(agent.process.ended().is_none(), "{}: {}", agent.host.name(), agent.log());
            let count = agent.log().matches("this host's subnet:").count();
            assert_eq!(count, 1, "{}", agent.log());
            assert!(!agent.log().contains("route removed"), "{}", agent.log());
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

/// However slow the machine is.
const LONG: Duration = Duration::from_secs(90);

#[test]
fn members_are_killed_stopped_lose_quorum_and_are_replaced() {
    let mut scene = Scene::new();
    scene.a_host_joins("all hosts are healthy", &[]);

    let leader = scene.members.leader();
    scene.members.kill(leader);
    scene.a_host_joins("the leader was killed", &[]);
    scene.members.launch(leader, &[3, 4, 5], "existing");
    scene.members.wait();

    for number in [3, 4, 5] {
        let role = if scene.members.leader() == number { "leader" } else { "follower" };
        scene.members.signal(number, Signal::SIGSTOP);
        scene.a_host_joins(&format!("member {number}, a {role}, stands still"), &[number]);
        scene.members.signal(number, Signal::SIGCONT);
    }

    let routes: Vec<_> = scene.cluster.hosts.iter().map(facts::routes).collect();
    scene.members.kill(3);
    scene.members.kill(4);
    for agent in &scene.agents {
        agent.wait_log(&["etcd does not answer"]);
    }
    let passing = Pod::add(&scene.cluster.hosts[0], "passing");
    passing.run(&format!("ping -n -c 1 -W 3 {}", scene.pods[1].v4())).ok();
    passing.delete();
    assert_eq!(routes, scene.cluster.hosts.iter().map(facts::routes).collect::<Vec<_>>());
    (3..=4).for_each(|number| scene.members.launch(number, &[3, 4, 5], "existing"));
    scene.a_host_joins("the quorum was lost and is back", &[]);

    // Member 5 is permanently removed, 6 replaces it; the running hosts are reloaded.
    let listed = scene.members.control(&[], "member list").unwrap();
    let gone = listed.lines().find(|line| line.contains(", m5,")).expect("it is listed");
    let id = gone.split(',').next().unwrap().to_owned();
    eventually("the old member is let go", LONG, || {
        match scene.members.control(&[], &format!("member remove {id}")) {
            // An earlier attempt did it after etcdctl had given up.
            Err(error) if error.contains("member not found") => Ok(String::new()),
            removed => removed,
        }
    });
    scene.members.kill(5);
    eventually("the new member is taken", SOON, || {
        scene.members.control(&[], "member add m6 --peer-urls http://192.0.2.6:2380")
    });
    scene.members.launch(6, &[3, 4, 6], "existing");
    scene.members.wait();
    for agent in &scene.agents {
        agent.host.write(SETTINGS, "ETCD_HOST=192.0.2.3,192.0.2.4,192.0.2.6\n");
        agent.reload();
    }
    scene.members.kill(3);
    scene.a_host_joins("a member was replaced, and another killed", &[]);
    scene.ends_with_nothing_lost();
}
