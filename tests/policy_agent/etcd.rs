//! Policies and groups from etcd on hosts that publish their pods to each other.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::support::{Agent, Cluster, Node, Place, Pod, eventually, local, soon};
use crate::tenants::{namespace, try_add};
use crate::traffic::{Flood, Server};
use crate::{add, only_from};

pub const FROM_ETCD: &[(&str, &str)] = &[("IPV6_SUBNET", "fd10::/48"), ("POLICY", "on")];

/// An object of humanz in the tenant `default`.
pub fn own(kind: &str, name: &str, spec: Value) -> Value {
    json!({"apiVersion": "humanz.io/v1", "kind": kind,
        "metadata": {"tenant": "default", "name": name}, "spec": spec})
}

/// `humanz-agent policy VERB` on `host`, with `objects` as its file.
fn policy(host: &Node, verb: &str, objects: &[Value]) -> crate::support::process::Ended {
    host.write("/etc/objects.json", &json!(objects).to_string());
    let file = if objects.is_empty() { "" } else { " -f /etc/objects.json" };
    Agent::run(host, &format!("policy {verb}{file}"), FROM_ETCD)
}

pub fn apply(host: &Node, objects: &[Value]) {
    policy(host, "apply", objects).ok();
}

/// A pod in `group`, if there is one.
pub fn pod(host: &Node, name: &str, group: Option<&str>) -> Pod {
    let word = group.map(|group| format!(";humanz.io/group={group}")).unwrap_or_default();
    add(host, name, &format!("{name}{word}"))
}

pub fn pings(from: &Pod, to: IpAddr) -> bool {
    from.run(&format!("ping -n -c 1 -W 1 {to}")).stdout.contains(" 0% packet loss")
}

/// A connection over TCP is taken, and answered.
fn connects(from: &Pod, to: &Pod, port: u16) -> bool {
    let address = std::net::SocketAddr::new(to.v4(), port);
    let listener = to.spot().listen(address);
    let found = from
        .spot()
        .inside(|| std::net::TcpStream::connect_timeout(&address, Duration::from_millis(700)));
    drop(listener);
    found.is_ok()
}

#[test]
fn the_demo_of_contiv_works_with_groups_from_etcd() {
    let cluster = Cluster::new(2);
    let [h1, h2] = [&cluster.hosts[0], &cluster.hosts[1]];
    let deny = json!({"rules": [{"direction": "in", "action": "deny", "protocol": "icmp"}]});
    apply(
        h1,
        &[
            own("GroupPolicy", "no-ping", deny),
            own("Group", "web", json!({"policies": ["no-ping"]})),
            own("Group", "free", json!({})),
        ],
    );
    let agents = cluster.start_agents(FROM_ETCD);
    let plain = [pod(h1, "plain1", None), pod(h2, "plain2", None)];
    let web = [pod(h1, "web1", Some("web")), pod(h2, "web2", Some("web"))];
    let free = [pod(h1, "free1", Some("free")), pod(h2, "free2", Some("free"))];
    for from in &plain {
        for to in plain.iter().chain(&free) {
            // The other host's route may be on its way.
            soon(&to.label(), || pings(from, to.v4()) && pings(from, to.v6()));
        }
        for to in &web {
            assert!(!pings(from, to.v4()) && !pings(from, to.v6()), "{}", to.label());
            assert!(connects(from, to, 6379), "{}", to.label());
        }
    }
    assert!(!pings(&web[0], web[1].v4()) && connects(&web[0], &web[1], 6379));
    soon("pods without policies", || pings(&free[0], free[1].v4()) && pings(&web[0], free[1].v4()));
    agents.iter().for_each(Agent::stop);
}

/// Groups that peers of rules name hold between hosts, without a word about the other hosts' pods in files.
#[test]
fn members_on_other_hosts_are_found_by_labels_and_groups() {
    let cluster = Cluster::new(2);
    let [h1, h2] = [&cluster.hosts[0], &cluster.hosts[1]];
    let from_web =
        json!({"rules": [{"direction": "in", "action": "allow", "peer": {"group": "web"}}]});
    apply(
        h1,
        &[
            only_from("db", &["web"]),
            own("GroupPolicy", "from-web", from_web.clone()),
            own("Group", "store", json!({"policies": ["from-web"], "default": {"in": "deny"}})),
            own("Group", "web", json!({})),
        ],
    );
    let agents = cluster.start_agents(FROM_ETCD);
    let (db, store) = (add(h1, "db", "db"), pod(h1, "store", Some("store")));
    let mut servers = [Server::open(&db), Server::open(&store)];
    let other = add(h2, "other", "other");
    let denied = [Flood::start(&other, db.v4()), Flood::start(&other, store.v4())];
    denied.iter().for_each(Flood::go_on);
    // A pod that starts under the eyes of both is let in as soon as its host has said so.
    let mut times = Vec::new();
    for round in 0..5 {
        let name = format!("web{round}");
        let begun = Instant::now();
        let web = add(h2, &name, "web;humanz.io/group=web");
        let added = begun.elapsed();
        for (server, to) in servers.iter_mut().zip([db.v4(), store.v4()]) {
            let _flood = Flood::start(&web, to);
            server.wait(web.v4());
        }
        times.push((added, begun.elapsed()));
        let address = web.v4();
        web.delete();
        soon("the withdrawal", || {
            let table = h1.run("nft list table inet humanz-policy").stdout;
            !table.contains(&address.to_string())
        });
    }
    println!("ADD began → ADD done, packets arrive on the other host: {times:?}");
    for server in &mut servers {
        assert_eq!(server.received(other.v4()), 0);
    }
    // The group is removed, and made again.
    let web = add(h2, "web", "web;humanz.io/group=web");
    let flood = Flood::sparse(&web, store.v4());
    servers[1].wait(web.v4());
    let refused = policy(h1, "rm Group web", &[]);
    assert!(refused.stderr.contains("from-web"), "{refused:?}");
    policy(h1, "rm Group store", &[]).ok();
    policy(h1, "rm GroupPolicy from-web", &[]).ok();
    policy(h1, "rm Group web", &[]).ok();
    servers[1].wait(other.v4());
    apply(
        h1,
        &[
            own("GroupPolicy", "from-web", from_web),
            own("Group", "store", json!({"policies": ["from-web"], "default": {"in": "deny"}})),
            own("Group", "web", json!({})),
        ],
    );
    servers[1].wait_silence(other.v4(), Instant::now());
    servers[1].wait(web.v4());
    assert!(flood.sent() > 0);
    agents.iter().for_each(Agent::stop);
}

/// Without etcd what holds goes on, over a reboot too, and an etcd that lost its data takes nothing away.
#[test]
fn etcd_may_be_away_at_a_reboot_or_come_back_empty() {
    let cluster = Cluster::new(2);
    let [h1, h2] = [&cluster.hosts[0], &cluster.hosts[1]];
    apply(h1, &[only_from("db", &["web"])]);
    let agents = cluster.start_agents(FROM_ETCD);
    let (web, other) = (add(h2, "web", "web"), add(h2, "other", "other"));
    let db = add(h1, "db", "db");
    let mut server = Server::open(&db);
    let (_web, denied) = (Flood::sparse(&web, db.v4()), Flood::start(&other, db.v4()));
    server.wait(web.v4());
    denied.go_on();
    assert_eq!(server.received(other.v4()), 0);
    cluster.etcd.kill();
    drop(server);
    db.delete();
    // Nobody needs the group now: its members stay known.
    soon("no pod needs the group", || {
        !h1.run("nft list table inet humanz-policy").ok().contains("set pods4_")
    });
    // Until the next attempt to reach etcd has failed.
    std::thread::sleep(Duration::from_secs(3));
    agents[0].stop();
    // As after a reboot: the kernel has nothing.
    h1.run("nft delete table inet humanz-policy").ok();
    h1.run("ip link del humanz0").ok();
    let agent = Agent::start(h1, FROM_ETCD);
    agent.wait_ready();
    let db = add(h1, "db2", "db");
    let mut server = Server::open(&db);
    let (_web, denied) = (Flood::sparse(&web, db.v4()), Flood::start(&other, db.v4()));
    server.wait(web.v4());
    denied.go_on();
    assert_eq!(server.received(other.v4()), 0);
    // Back, but without its data.
    cluster.etcd.restart_empty();
    // While etcd is away the same kind and subject are about that.
    let is_lost = |problem: Value| problem["what"].as_str().unwrap().contains("gone from etcd");
    soon("policies that are lost", || is_lost(local::wait_problem(h1, "etcd", "policies in etcd")));
    denied.go_on();
    server.wait(web.v4());
    assert_eq!(server.received(other.v4()), 0);
    eventually("policies are put again", Duration::from_secs(20), || {
        let applied = policy(h1, "apply", &[only_from("db", &["other"])]);
        if applied.succeeded() { Ok(()) } else { Err(format!("{applied:?}")) }
    });
    server.wait(other.v4());
    agent.stop();
}

/// All pods were open, and status said that nothing is wrong.
#[test]
fn keys_that_somebody_deletes_all_at_once_open_nothing() {
    let cluster = Cluster::new(2);
    let [h1, h2] = [&cluster.hosts[0], &cluster.hosts[1]];
    apply(h1, &[only_from("db", &["web"])]);
    let agents = cluster.start_agents(FROM_ETCD);
    let (db, web, other) = (add(h1, "db", "db"), add(h2, "web", "web"), add(h2, "other", "other"));
    let mut server = Server::open(&db);
    let (_web, denied) = (Flood::sparse(&web, db.v4()), Flood::start(&other, db.v4()));
    server.wait(web.v4());
    assert!(cluster.etcd.delete_all("/humanz") > 0);
    for host in [h1, h2] {
        let problem = local::wait_problem(host, "etcd", "policies in etcd");
        assert!(problem["what"].as_str().unwrap().contains("gone from etcd"), "{problem}");
        let fix = "humanz-agent policy ls # lists them: apply all objects again at once, or none";
        assert!(problem["fix"].as_str().unwrap().starts_with(fix), "{problem}");
    }
    denied.go_on();
    server.wait(web.v4());
    assert_eq!(server.received(other.v4()), 0);
    Agent::run(h1, "policy apply -f /dev/null", FROM_ETCD).ok();
    server.wait(other.v4());
    agents.iter().for_each(Agent::stop);
    assert!(agents.iter().all(|agent| !agent.log().contains("put back; humanz-agent config")));
}

/// A host that is lost keeps its members, for however long, and an etcd that is restored from an older state
/// gives no address back to a former member.
#[test]
fn a_lost_host_and_an_older_etcd_open_nothing() {
    let cluster = Cluster::new(2);
    let [h1, h2] = [&cluster.hosts[0], &cluster.hosts[1]];
    apply(h1, &[only_from("db", &["web"])]);
    let agents = cluster.start_agents(FROM_ETCD);
    let (db, web) = (add(h1, "db", "db"), add(h2, "web", "web"));
    let mut server = Server::open(&db);
    let flood = Flood::sparse(&web, db.v4());
    server.wait(web.v4());
    // The data of before: web is a member, and web2 not yet.
    cluster.etcd.keep_copy();
    let (address, text) = (web.v4(), web.v4().to_string());
    let has = |address: &str| h1.run("nft list table inet humanz-policy").stdout.contains(address);
    drop(flood);
    web.delete();
    eventually("the withdrawal", Duration::from_secs(40), || {
        if has(&text) { Err(String::new()) } else { Ok(()) }
    });
    let web2 = add(h2, "web2", "web");
    let allowed = Flood::sparse(&web2, db.v4());
    server.wait(web2.v4());
    crate::support::pod::make_netns(h2, "late");
    let late = crate::start::connect(h2, "late", "other", &text).unwrap();
    let free = add(h1, "free", "free");
    let mut open = Server::open(&free);
    let _free = Flood::sparse(&late, free.v4());
    open.wait(address);
    let known = server.received(address);
    let denied = Flood::start(&late, db.v4());
    denied.go_on();
    let stays_out = |server: &mut Server, seconds: u64, what: &str| {
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(seconds) {
            assert_eq!(server.received(address), known, "{what}: after {:?}", begun.elapsed());
            std::thread::sleep(Duration::from_millis(2));
        }
        denied.go_on();
        server.wait(web2.v4());
    };
    // The host is lost: no agent, no lease.
    agents[1].kill();
    cluster.etcd.kill();
    denied.go_on();
    server.wait(web2.v4());
    assert_eq!(server.received(address), known, "etcd is away");
    // An older etcd comes back, and the host does not.
    cluster.etcd.restart_from_copy();
    stays_out(&mut server, 20, "etcd is older");
    local::wait_problem(h1, "policy", "host h2");
    agents[0].kill();
    let first = Agent::start(h1, FROM_ETCD);
    first.wait_ready();
    stays_out(&mut server, 5, "the agent of the other host is another one");
    let agent = Agent::start(h2, FROM_ETCD);
    agent.wait_ready();
    stays_out(&mut server, 17, "the host is back");
    let web3 = add(h2, "web3", "web");
    let _allowed = Flood::sparse(&web3, db.v4());
    server.wait(web3.v4());
    local::status_when(h1, "members as in etcd", |status| {
        local::problem(status, "policy", "host h2").is_none()
    });
    open.wait(address);
    denied.go_on();
    assert_eq!(server.received(address), known);
    assert!(allowed.sent() > 0);
    first.stop();
    agent.stop();
}

/// What was received last is noted when etcd fails, and not when its turn comes.
#[test]
fn an_agent_that_starts_while_etcd_is_older_gives_no_address_back() {
    let cluster = Cluster::new(2);
    let [h1, h2] = [&cluster.hosts[0], &cluster.hosts[1]];
    apply(h1, &[only_from("db", &["web"])]);
    let agents = cluster.start_agents(FROM_ETCD);
    let (db, web) = (add(h1, "db", "db"), add(h2, "web", "web"));
    let (mut server, text) = (Server::open(&db), web.v4().to_string());
    let flood = Flood::sparse(&web, db.v4());
    server.wait(web.v4());
    drop(flood);
    cluster.etcd.keep_copy();
    web.delete();
    let has = |address: &str| h1.run("nft list table inet humanz-policy").stdout.contains(address);
    soon("the withdrawal", || !has(&text));
    // The host is lost, and with it all that it would say again.
    agents[1].kill();
    cluster.etcd.kill();
    local::wait_problem(h1, "etcd", "members of groups");
    agents[0].kill();
    cluster.etcd.restart_from_copy();
    let agent = Agent::start(h1, FROM_ETCD);
    agent.wait_ready();
    local::wait_problem(h1, "policy", "host h2");
    assert!(!has(&text), "a former member is one again");
    agent.stop();
}

/// Agents keep what they read of a value while its revision stays, and two states of etcd that went on from one copy have the
/// same revisions for other values.
#[test]
fn a_value_of_a_revision_that_had_another_one_is_read() {
    let cluster = Cluster::new(1);
    let h1 = &cluster.hosts[0];
    let closed = |by: &str| only_from("db", &[by]);
    apply(h1, &[closed("nobody")]);
    let path = "/humanz/v1-policies/NetworkPolicy/shop/db";
    let revision = || {
        let pairs = cluster.etcd.pairs(path);
        pairs.iter().find(|pair| pair.key() == path.as_bytes()).unwrap().mod_revision()
    };
    cluster.etcd.keep_copy();
    cluster.etcd.put(path, only_from("db", &["web"]).to_string());
    let before = revision();
    let agent = Agent::start(h1, FROM_ETCD);
    agent.wait_ready();
    let (web, db) = (add(h1, "web", "web"), add(h1, "db", "db"));
    soon("web is allowed", || connects(&web, &db, 6379));
    // So that nothing else is written meanwhile.
    agent.process.signal(Signal::SIGSTOP);
    cluster.etcd.restart_from_copy();
    cluster.etcd.put(path, closed("none").to_string());
    assert_eq!(revision(), before, "this shows nothing");
    agent.process.signal(Signal::SIGCONT);
    soon("nobody is allowed", || !connects(&web, &db, 6379));
    agent.stop();
}

#[test]
fn no_pod_leaves_its_group_by_asking_for_one_that_it_may_not_have() {
    let cluster = Cluster::new(1);
    let host = &cluster.hosts[0];
    let closed = [
        own("Group", "web", json!({"default": {"in": "deny"}})),
        namespace("shop", json!({"group": "web"})),
    ];
    apply(host, &closed);
    let agents = cluster.start_agents(FROM_ETCD);
    let other = try_add(host, "plain/a", json!({})).unwrap();
    let asks = |name: &str, words: Value| try_add(host, &format!("shop/{name}"), words).unwrap();
    let pods = [
        asks("silent", json!({})),
        asks("no-such", json!({"humanz.io/group": "nope"})),
        asks("no-name", json!({"humanz.io/group": "-"})),
        asks("foreign", json!({"humanz.io/group": "red/web"})),
        asks("no-tenant", json!({"humanz.io/tenant": "-", "humanz.io/group": "web"})),
        pod(host, "label", Some("nope")),
    ];
    for pod in &pods {
        assert!(pings(pod, other.v4()), "{} goes out", pod.label());
        assert!(!pings(&other, pod.v4()) && !pings(&other, pod.v6()), "{} is closed", pod.label());
    }
    apply(host, &[own("Group", "web", json!({}))]);
    for pod in &pods {
        soon(&format!("{} is open", pod.label()), || pings(&other, pod.v4()));
    }
    agents.iter().for_each(Agent::stop);
}
