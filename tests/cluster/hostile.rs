//! Invalid values in etcd are reported and ignored; all other hosts are served.

use std::time::Duration;

use serde_json::Value;

use crate::support::cni::Network;
use crate::support::ping::Pinger;
use crate::support::wait::patience;
use crate::support::{Agent, Cluster, Place, Pod, eventually, facts, local};

#[test]
fn hostile_values_are_reported_and_affect_no_other_host() {
    let cluster = Cluster::new(2);
    let agents = cluster.start_agents(&[]);
    let host = &cluster.hosts[0];
    let (near, far) = (Pod::add(host, "a"), Pod::add(&cluster.hosts[1], "a"));
    let own = cluster.etcd.get("/humanz/hosts/h1").unwrap();
    let half_of_own = own.replace("/24", "/25");
    let honest = facts::routes(host);

    let values: [(&str, String); 10] = [
        ("hosts/shell", "10.244.9.0/24; touch /tmp/pwned #".into()),
        ("hosts/command", "$(touch /tmp/pwned)".into()),
        ("hosts/wrong-length", "10.244.9.0/99".into()),
        ("hosts/host-bits", "10.244.9.7/24".into()),
        ("hosts/outside", "192.0.2.0/24".into()),
        ("hosts/everything", "0.0.0.0/0".into()),
        ("hosts/mine", own.clone()),
        ("hosts/half-of-mine", half_of_own),
        ("hosts/large", "[".repeat(1 << 20)),
        ("hosts/empty", String::new()),
    ];
    for (key, value) in &values {
        cluster.etcd.put(&format!("/humanz/{key}"), value.as_bytes());
    }
    let records = [
        ("large", format!(r#"{{"schema":1,"machineId":"{}"}}"#, "x".repeat(1 << 20))),
        ("deep", "[".repeat(100_000)),
        ("types", r#"{"schema":"one","addresses":{"a":1},"subnets":7,"mtu":-1}"#.into()),
        ("null", "null".into()),
        ("binary", "\u{0}\u{1}\u{fffd}".into()),
    ];
    for (name, value) in &records {
        cluster.etcd.put(&format!("/humanz/v1/nodes/{name}"), value.as_bytes());
    }
    // A valid subnet whose next hop is this host, in the pool, or unusable.
    for (name, subnet, address) in [
        ("through-me", "10.244.101.0/24", "192.0.2.11"),
        ("through-pool", "10.244.102.0/24", "10.244.7.7"),
        ("through-loopback", "10.244.103.0/24", "127.0.0.1"),
        ("through-multicast", "10.244.104.0/24", "224.0.0.1"),
    ] {
        join(&cluster, name, subnet, address);
    }
    join(&cluster, "honest", "10.244.105.0/24", "192.0.2.77");

    let mut wanted = honest;
    wanted.insert("10.244.105.0/24".into(), "192.0.2.77".into());
    for agent in &agents[..1] {
        eventually(
            "the honest host is served, the others are not",
            Duration::from_secs(20),
            || {
                let routes = facts::routes(&agent.host);
                if routes == wanted { Ok(()) } else { Err(format!("{routes:?}")) }
            },
        );
        assert_reported(agent, &values.each_ref().map(|(key, _)| key.trim_start_matches("hosts/")));
        assert_reported(agent, &records.each_ref().map(|(name, _)| *name));
        assert_reported(
            agent,
            &["through-me", "through-pool", "through-loopback", "through-multicast"],
        );
        assert!(agent.process.ended().is_none(), "{}", agent.log());
        let longest = agent.log().lines().map(str::len).max();
        assert!(longest < Some(2_000), "a log line of {longest:?} bytes");
    }
    for host in &cluster.hosts {
        assert_eq!(host.read("/tmp/pwned"), None);
    }
    assert_eq!(cluster.etcd.get("/humanz/hosts/h1"), Some(own));
    far.run(&format!("ping -n -c 1 -W 3 {}", near.v4())).ok();
    near.run(&format!("ping -n -c 1 -W 3 {}", far.v4())).ok();
    // A subnet without a node record may be that of a host with the Python agent, whose pods use it.
    let refused = Pod::try_add(host, "a-new", &Network::of(host)).err().expect("ADD is refused");
    assert!(refused.to_string().contains("mine"), "{refused}");
    for key in ["mine", "half-of-mine"] {
        cluster.etcd.delete(&format!("/humanz/hosts/{key}"));
    }
    eventually("pods start again", Duration::from_secs(20), || match local::get(host, "/readyz") {
        (200, _) => Ok(()),
        (_, why) => Err(why),
    });
    Pod::add(host, "b").run(&format!("ping -n -c 1 -W 3 {}", far.v4())).ok();
}

#[test]
fn an_agent_starts_with_hostile_values_in_etcd() {
    let cluster = Cluster::new(1);
    cluster.etcd.put("/humanz/hosts/shell", "`reboot`");
    cluster.etcd.put("/humanz/hosts/all", "10.244.0.0/16");
    cluster.etcd.put("/humanz/v1/nodes/x", "7");
    cluster.etcd.put("/humanz/v1/subnets/4/x", "7");
    cluster.etcd.put("/humanz/v1/subnets/4/10.244.1.0-24", "somebody\nelse");
    cluster.etcd.put("/humanz/v1/alive/x", vec![0xff, 0xfe]);
    let agent = Agent::start(&cluster.hosts[0], &[]);
    agent.wait_ready();
    assert_reported(&agent, &["shell", "all", "/humanz/v1/nodes/x", "/humanz/v1/subnets/4/x"]);
    Pod::add(&cluster.hosts[0], "a").delete();
}

/// Whoever may write below one prefix chooses the rest of the key, and an operator copies what is printed.
#[test]
fn a_fix_that_is_copied_runs_nothing_that_a_key_says() {
    let cluster = Cluster::new(1);
    let agents = cluster.start_agents(&[("POLICY", "on")]);
    let host = &cluster.hosts[0];
    let command = "touch /tmp/pwned";
    let names =
        [format!("$({command})"), format!("`{command}`"), format!("';{command};'\";{command};\"")];
    for (root, name) in
        ["v1/nodes", "v1-blocks/h9"].iter().flat_map(|it| names.iter().map(move |name| (it, name)))
    {
        cluster.etcd.put(&format!("/humanz/{root}/{name}"), "x");
    }
    let status = local::status_when(host, "the keys to be reported", |status| {
        let count = |kind| local::problems(status, kind).count();
        count("etcd-record") == names.len() && count("other-host") == names.len()
    });
    for problem in status["problems"].as_array().unwrap() {
        let fix = problem["fix"].as_str().unwrap();
        host.shell(&format!("export ETCDCTL_API=3 ETCDCTL_ENDPOINTS=192.0.2.2:2379; {fix}")).ok();
        assert_eq!(host.read("/tmp/pwned"), None, "{fix}");
    }
    assert_eq!(cluster.etcd.list("/humanz/v1-blocks/"), Vec::new(), "what etcdctl deletes");
    agents.iter().for_each(Agent::stop);
}

fn join(cluster: &Cluster, name: &str, subnet: &str, address: &str) {
    let record = format!(
        r#"{{"schema":1,"machineId":"{name}","bootId":"b","version":"0.1.0",
        "subnets":["{subnet}"],"addresses":["{address}"],"backend":"direct","mtu":1500}}"#
    );
    cluster.etcd.put(&format!("/humanz/v1/nodes/{name}"), record);
    cluster.etcd.put(&format!("/humanz/hosts/{name}"), subnet);
}

/// The log has a line about each of `names`.
fn assert_reported(agent: &Agent, names: &[&str]) {
    for name in names {
        agent.wait_log(&[name]);
    }
}

/// The key `config` moves the pool, or is broken: no host takes over more than its own settings allow, and
/// one that starts serves what it served.
#[test]
fn network_settings_in_etcd_cannot_widen_a_pool_or_stop_a_host() {
    let cluster = Cluster::new(2);
    let mut agents = cluster.start_agents(&[]);
    let host = &cluster.hosts[0];
    let pods: Vec<Pod> = cluster.hosts.iter().map(|host| Pod::add(host, "a")).collect();
    let (key, routes) = ("/humanz/v1/config", facts::routes(host));
    let good = cluster.etcd.get(key).unwrap();
    let wide =
        good.replace("10.244.0.0/16", "10.128.0.0/9").replace(r#"Margin":8"#, r#"Margin":15"#);
    assert!(wide.contains("10.128.0.0/9") && wide.contains("15"), "{wide}");
    cluster.etcd.put(key, wide);
    join(&cluster, "evil", "10.200.1.0/24", "192.0.2.66");
    agents[0].wait_log(&["grew to 10.128.0.0/9", "does not adopt", "IP_SUBNET_LIMIT"]);
    agents[0].wait_log(&["host evil: subnet 10.200.1.0/24 is ignored"]);
    assert_eq!(facts::routes(host), routes);
    let moved = good.replace("10.244.0.0/16", "10.99.0.0/16");
    for (bad, pod) in [("garbage", "b"), ("{}", "c"), (&*moved, "d")] {
        cluster.etcd.put(key, bad);
        agents.remove(0).kill();
        agents.insert(0, Agent::start(host, &[]));
        agents[0].wait_ready();
        agents[0].wait_log(&[key]);
        assert_eq!(facts::routes(host), routes, "{bad}");
        let far = pods[1].v4();
        Pod::add(host, pod).run(&format!("ping -n -c 1 -W 3 {far}")).ok();
        pods[0].run(&format!("ping -n -c 1 -W 3 {far}")).ok();
    }
}

/// Invalid tunnel endpoints: each affects the tunnel of its own host only.
#[test]
fn hostile_tunnels_are_reported_and_affect_no_other_host() {
    let cluster = Cluster::routed(1, 1);
    let agents = cluster.start_agents(&[]);
    let host = &cluster.hosts[0];
    let pods: Vec<Pod> = cluster.hosts.iter().map(|host| Pod::add(host, "a")).collect();
    let mac_of = |name: &str| {
        let subnet = cluster.etcd.get(&format!("/humanz/hosts/{name}")).unwrap();
        let third: u8 = subnet.split('.').nth(2).unwrap().parse().unwrap();
        format!("0a:58:0a:f4:{third:02x}:00")
    };
    let own = |number: u8| format!("0a:58:0a:f4:{number:02x}:00");
    for (number, name, mac, vni, port) in [
        (101, "my-mac", mac_of("h1"), 104, 10400),
        (102, "its-mac", mac_of("h2"), 104, 10400),
        (103, "large-vni", own(103), 1 << 24, 10400),
        (104, "other-vni", own(104), 7, 10400),
        (105, "no-port", own(105), 104, 0),
        (106, "multicast", "01:00:5e:00:00:01".to_owned(), 104, 10400),
        (107, "zero", "00:00:00:00:00:00".to_owned(), 104, 10400),
        (108, "honest", own(108), 104, 53),
    ] {
        let record = format!(
            r#"{{"schema":1,"machineId":"{name}","bootId":"b","version":"0.1.0",
            "subnets":["10.244.{number}.0/24"],"addresses":["203.0.113.{number}"],"backend":"vxlan",
            "tunnel":{{"mac":"{mac}","vni":{vni},"port":{port}}},"mtu":1}}"#
        );
        cluster.etcd.put(&format!("/humanz/v1/nodes/{name}"), record);
        cluster.etcd.put(&format!("/humanz/hosts/{name}"), format!("10.244.{number}.0/24"));
    }
    eventually("the honest host is served, the others are not", Duration::from_secs(20), || {
        let mut routes: Vec<_> = facts::devices(host).into_iter().collect();
        routes.retain(|(subnet, _)| subnet.starts_with("10.244.1") && subnet.len() > 13);
        let wanted = [("10.244.108.0/24".to_owned(), "humanz-vx4".to_owned())];
        if routes == wanted { Ok(()) } else { Err(format!("{routes:?}")) }
    });
    let names = ["my-mac", "its-mac", "large-vni", "other-vni", "no-port", "multicast", "zero"];
    assert_reported(&agents[0], &names);
    let sent = host.run("bridge fdb show dev humanz-vx4").ok();
    assert!(sent.contains("dst 203.0.113.108 port 53") && sent.lines().count() == 2, "{sent}");
    pods[0].run(&format!("ping -n -c 1 -W 3 {}", pods[1].v4())).ok();
    pods[1].run(&format!("ping -n -c 1 -W 3 {}", pods[0].v4())).ok();
}

/// A claim with another host's name, while its owner is away: each host reports it, nobody takes the subnet, and
/// the owner puts its claim back.
#[test]
fn an_overwritten_claim_is_a_problem_on_every_host_until_its_owner_puts_it_back() {
    let cluster = Cluster::new(3);
    let agents = cluster.start_agents(&[]);
    let [h1, h2, h3] = &cluster.hosts[..] else { panic!("three hosts") };
    let before = [h1, h2].map(|host| (facts::addresses(host, "humanz0"), facts::routes(host)));
    let subnet = cluster.etcd.get("/humanz/hosts/h3").unwrap();
    let claim = format!("/humanz/v1/subnets/4/{}", subnet.replace('/', "-"));
    let subject = format!("subnet {subnet}");
    let is_reported = |status: &Value| local::problem(status, "other-host", &subject).is_some();
    agents[2].kill();
    cluster.etcd.put(&claim, "h1");
    for host in [h1, h2] {
        local::status_when(host, &subject, is_reported);
    }
    let doctor = Agent::run(h2, "doctor --json", &[]);
    assert!(is_reported(&serde_json::from_str(&doctor.stdout).unwrap()), "{doctor:?}");
    let after = [h1, h2].map(|host| (facts::addresses(host, "humanz0"), facts::routes(host)));
    assert_eq!(after, before);
    assert_eq!(cluster.etcd.get(&claim).as_deref(), Some("h1"), "only its owner puts it back");

    let again = Agent::start(h3, &[]);
    again.wait_ready();
    assert_eq!(cluster.etcd.get(&claim).as_deref(), Some("h3"));
    for host in [h1, h2, h3] {
        local::status_when(host, "no problem is left", |status| !is_reported(status));
    }
    // While its owner lives, it is back before anybody needs to look.
    cluster.etcd.put(&claim, "h1");
    again.wait_log(&["this host's keys in etcd were changed", &claim]);
    assert_eq!(cluster.etcd.get(&claim).as_deref(), Some("h3"));
}

/// Keys and values as long as etcd takes them, in every range that is read.
#[test]
fn keys_and_values_of_a_megabyte_make_no_long_line_and_stall_no_command() {
    let cluster = Cluster::new(2);
    let agents = cluster.start_agents(&[]);
    let host = &cluster.hosts[0];
    let routes = facts::routes(host);
    let long = "x".repeat(1 << 20);
    for range in ["hosts/", "v1/", "v1/nodes/", "v1/alive/", "v1/subnets/4/", "v1/contenders/"] {
        cluster.etcd.put(&format!("/humanz/{range}{long}"), "7");
        cluster.etcd.put(&format!("/humanz/{range}large"), long.as_bytes());
    }
    let ranges = ["v1-probes/", "v1-members/h2/", "v1-groups/", "v1-policies/NetworkPolicy/"];
    for range in ranges.into_iter().chain([
        "v1-blocks/",
        "v1-blocks/h2/",
        "v1-pods/",
        "v1/requests/",
        "v1/connectivity/",
    ]) {
        cluster.etcd.put(&format!("/humanz/{range}{long}"), "7");
        cluster.etcd.put(&format!("/humanz/{range}large"), long.as_bytes());
    }
    agents[0].wait_log(&["/humanz/hosts/xxx"]);
    agents[0].wait_log(&["/humanz/v1/nodes/large"]);
    agents[0].kill();
    let again = Agent::start(host, &[("POLICY", "on")]);
    again.wait_ready();
    for command in [
        "doctor",
        "status",
        "nodes ls",
        "probe --matrix",
        "policy ls",
        "pods --all",
        "doctor --json",
    ] {
        let limit = Duration::from_secs(15) * patience();
        let run = || Agent::run(host, command, &[("POLICY", "on")]);
        let mut ended = run();
        if ended.took > limit {
            // Keys stall a command each time, a busy machine once.
            println!("{command}: {:?}", ended.took);
            ended = run();
        }
        let took = ended.took;
        println!("{command}: {took:?}, {} bytes", ended.stdout.len() + ended.stderr.len());
        assert!(took < limit, "{command}: {took:?}");
        let is_json = command.ends_with("--json");
        let lines = ended.stdout.lines().filter(|_| !is_json).chain(ended.stderr.lines());
        assert!(lines.map(str::len).max() < Some(2_000), "{command}: a long line");
        assert!(ended.stdout.len() < 100_000, "{command}: {} bytes", ended.stdout.len());
    }
    for agent in [&agents[0], &agents[1], &again] {
        let longest = agent.log().lines().map(str::len).max();
        assert!(longest < Some(2_000), "a log line of {longest:?} bytes");
    }
    assert_eq!(facts::routes(host), routes);
    Pod::add(host, "a").delete();
}

/// A name without a record, as a Python host writes it, with the subnet of a host whose agent is away.
#[test]
fn a_name_that_appears_over_a_restart_takes_no_subnet() {
    let cluster = Cluster::new(2);
    let agents = cluster.start_agents(&[]);
    let [h1, h2] = &cluster.hosts[..] else { panic!("two hosts") };
    let pods = [Pod::add(h1, "a"), Pod::add(h2, "a")];
    pods[0].until_ok(&format!("ping -n -c 1 -W 1 {}", pods[1].v4()), Duration::from_secs(20));
    let subnet = cluster.etcd.get("/humanz/hosts/h1").unwrap();
    let before = (facts::addresses(h1, "humanz0"), facts::routes(h2));
    let pingers = [Pinger::start(&pods[0], pods[1].v4()), Pinger::start(&pods[1], pods[0].v4())];
    agents[0].stop();
    cluster.etcd.put("/humanz/hosts/aaa", subnet.as_str());
    let again = Agent::start(h1, &[]);
    again.wait_log(&["aaa"]);
    local::wait_problem(h1, "other-host", "host aaa");
    assert_eq!((facts::addresses(h1, "humanz0"), facts::routes(h2)), before);
    assert_eq!(cluster.etcd.get("/humanz/hosts/h1"), Some(subnet));
    cluster.etcd.delete("/humanz/hosts/aaa");
    local::status_when(h1, "no problem is left", |status| {
        !local::has_problem(status, "other-host")
    });
    Pod::add(h1, "b");
    pingers.into_iter().for_each(|pinger| pinger.report().assert_nothing_lost());
    assert_eq!((facts::addresses(h1, "humanz0"), facts::routes(h2)), before);
}
