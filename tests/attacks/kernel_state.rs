//! What stays in the kernel: routes of the host and of pods, settings, the guards themselves.

use humanz::plan::pod::LinkIdentity;
use serde_json::json;

use crate::packet_socket::PacketSocket;
use crate::packets::{ICMPV6, IPV6, ethernet, ipv6, router_advertisement};
use crate::scene::{By, Scene};
use crate::support::plugin_host::{Call, conf};
use crate::support::{Place, PluginHost};

/// The class of CVE-2020-10749: where pods have no IPv6, the host listens to routers.
#[test]
fn a_pod_does_not_become_the_router_of_its_host_or_of_others() {
    for by in [By::Humanz, By::Reference] {
        let scene = Scene::with(by, json!({ "ranges": [[{ "subnet": "10.1.2.0/24" }]] }));
        if by == By::Reference {
            // As the kernel makes a bridge; today's reference plugin turns it off.
            scene.run("sysctl -q -w net.ipv6.conf.hz0.accept_ra=1").ok();
        }
        let attacker = scene.attacker;
        let from = attacker.link_local();
        let pair = (from, "ff02::1".parse().unwrap());
        let message = router_advertisement(pair, attacker.mac);
        let frame = ethernet(
            [0x33, 0x33, 0, 0, 0, 1],
            attacker.mac,
            IPV6,
            &ipv6(pair, ICMPV6, 255, &message),
        );
        let socket = PacketSocket::open(&scene.pod(&attacker), "eth0");
        let routed = |place: &dyn Place| {
            let routes = place.run("ip -6 route show default").stdout;
            routes.lines().any(|line| line.contains(&from.to_string()))
        };
        let victim = scene.pod(&scene.victim);
        let mut found = (false, false);
        // Until its own address on the link is known to be free, a link takes no advertisement.
        for _ in 0..40 {
            socket.send(&frame);
            std::thread::sleep(std::time::Duration::from_millis(100));
            found = (routed(&*scene.host), routed(&victim));
            if found == (true, true) {
                break;
            }
        }
        let taken = by == By::Reference;
        assert_eq!(found, (taken, taken), "{by:?}: the host, the victim");
    }
}

#[test]
fn the_bridge_ignores_routers_and_redirects() {
    let scene = Scene::with(By::Humanz, json!({ "ranges": [[{ "subnet": "10.1.2.0/24" }]] }));
    for key in [
        "net.ipv6.conf.hz0.accept_ra",
        "net.ipv6.conf.hz0.accept_redirects",
        "net.ipv4.conf.hz0.accept_redirects",
        "net.ipv4.conf.hz0.send_redirects",
        "net.ipv4.conf.all.send_redirects",
    ] {
        assert_eq!(scene.run(&format!("sysctl -n {key}")).ok().trim(), "0", "{key}");
    }
    let pod = scene.pod(&scene.victim);
    for key in [
        "net.ipv6.conf.eth0.accept_ra",
        "net.ipv6.conf.eth0.accept_redirects",
        "net.ipv4.conf.all.accept_redirects",
    ] {
        assert_eq!(pod.run(&format!("sysctl -n {key}")).ok().trim(), "0", "{key}");
    }
}

#[test]
fn a_guard_comes_and_goes_with_its_pod() {
    let host = PluginHost::new();
    let sets = json!([[{ "subnet": "10.1.2.0/24" }], [{ "subnet": "fd00::/64" }]]);
    let conf = conf("1.1.0", json!({ "ranges": sets }));
    for name in ["c1", "c2", "c3"] {
        host.add(&conf, name);
    }
    assert_eq!(host.guards().len(), 3);
    Call::new("DEL", &conf, "c1").run(&host).ok();
    assert_eq!(host.guards().len(), 2);
    // Its namespace is removed, and with it the veth; the runtime reports which pods remain.
    host.run("ip netns del c2").ok();
    let gc = |valid: serde_json::Value| {
        let gc = Call::new("GC", &conf, "c3").key("cni.dev/valid-attachments", valid.clone());
        gc.key("cni.dev/attachments", valid).run(&host).ok()
    };
    gc(json!([{ "containerID": "c3", "ifname": "eth0" }]));
    assert_eq!((host.guards().len(), host.guard_chains().len()), (1, 1));
    Call::new("DEL", &conf, "c3").run(&host).ok();
    assert_eq!(host.guards(), Vec::<String>::new());
    Call::new("DEL", &conf, "c3").run(&host).ok();
    // An ADD that fails leaves none: the route cannot be.
    host.netns("c4");
    let bad = json!([{ "dst": "192.0.2.128/25", "gw": "203.0.113.1" }]);
    assert_eq!(Call::new("ADD", &conf, "c4").key("routes", bad).run(&host).code(), 999);
    assert_eq!(host.guards(), Vec::<String>::new());
    gc(json!([]));
    assert_eq!(host.guard_chains(), Vec::<String>::new());
}

/// Newer kernels keep a guard when its link goes, and give it to the next link of that name.
#[test]
fn a_guard_that_a_pod_left_is_not_that_of_its_next_one() {
    let host = PluginHost::new();
    let conf = conf("1.0.0", json!({ "ranges": [[{ "subnet": "10.1.2.0/24" }]] }));
    host.add(&conf, "other");
    host.add(&conf, "c1");
    Call::new("DEL", &conf, "c1").run(&host).ok();
    let add = Call::new("ADD", &conf, "c1").with("CNI_ARGS", "IP=10.1.2.77");
    let result = add.run(&host).ok();
    Call::new("CHECK", &conf, "c1").key("prevResult", result).run(&host).ok();
    host.run("ip netns exec c1 ping -n -c 1 -W 10 10.1.2.2").ok();
    host.run("ip netns exec c1 ip addr add 10.1.2.3/24 dev eth0").ok();
    let former = host.run("ip netns exec c1 ping -n -c 1 -W 1 -I 10.1.2.3 10.1.2.2");
    assert!(!former.succeeded(), "the address that it had before");
    Call::new("DEL", &conf, "c1").run(&host).ok();
    Call::new("ADD", &conf, "c1").key("podGuard", json!(false)).run(&host).ok();
    assert_eq!(host.guards().len(), 1, "a pod that is to have none");
    host.run("ip netns exec c1 ip addr add 10.1.2.99/24 dev eth0").ok();
    host.run("ip netns exec c1 ping -n -c 1 -W 10 -I 10.1.2.99 10.1.2.2").ok();
}

/// On a host without an agent and a runtime without GC.
#[test]
fn guards_that_pods_left_are_removed_by_later_ones() {
    let host = PluginHost::new();
    let conf = conf("1.0.0", json!({ "ranges": [[{ "subnet": "10.1.2.0/24" }]] }));
    for name in ["c1", "c2", "c3"] {
        host.add(&conf, name);
        Call::new("DEL", &conf, name).run(&host).ok();
    }
    host.add(&conf, "alive");
    let link = |container_id: &str| {
        LinkIdentity { network: "net", container_id, ifname: "eth0" }.host_ifname()
    };
    let mut names = (0..).map(|number| format!("sweeper{number}"));
    let name = names.find(|name| link(name).as_str().ends_with("00")).unwrap();
    Call::new("DEL", &conf, &name).run(&host).ok();
    assert_eq!(host.guard_chains(), host.guards());
    assert_eq!(host.guards().len(), 1);
    // How many of them are left on average.
    let sweeping = (0..100_000).filter(|n| link(&n.to_string()).as_str().ends_with("00")).count();
    assert!((300..500).contains(&sweeping), "{sweeping}");
}

#[test]
fn check_says_that_a_guard_is_missing() {
    let host = PluginHost::new();
    let conf = conf("1.0.0", json!({ "ranges": [[{ "subnet": "10.1.2.0/24" }]] }));
    let result = host.add(&conf, "c1");
    let check = || Call::new("CHECK", &conf, "c1").key("prevResult", result.clone()).run(&host);
    check().ok();
    let [chain] = &host.guards()[..] else { panic!("one chain") };
    for broken in [
        format!("nft flush chain netdev humanz {chain}"),
        format!("nft insert rule netdev humanz {chain} accept"),
        "nft delete table netdev humanz".to_owned(),
    ] {
        host.run(&broken).ok();
        let answer = check();
        assert_eq!(answer.code(), 103);
        assert!(answer.error().contains("the guard of interface"), "{}", answer.error());
    }
    host.add(&conf, "c2");
    check().ok();
    host.run(&format!("bridge link set dev {chain} learning on")).ok();
    assert!(check().error().contains("fixed"), "{}", check().error());
}

/// Wherever ADD is stopped, there is no port that is up and has no guard.
#[test]
fn a_port_is_guarded_before_it_is_up() {
    let host = PluginHost::new();
    let conf = conf("1.0.0", json!({ "ranges": [[{ "subnet": "10.1.2.0/24" }]] }));
    host.add(&conf, "alive");
    let (mut stopped, mut unguarded) = (0, 0);
    for when in 1.. {
        host.netns("c1");
        let strace = format!(
            "strace -f -qq -o /run/trace -e trace=sendto -e inject=sendto:signal=KILL:when={when}"
        );
        let answer = Call::new("ADD", &conf, "c1").under(&strace).run(&host);
        let links = host.ip("link show type veth");
        let port = links.as_array().unwrap().iter().find(|link| {
            let alias = link["ifalias"].as_str().unwrap_or_default();
            alias.starts_with("humanz net c1 ")
        });
        if let Some(port) = port {
            let name = port["ifname"].as_str().unwrap();
            let listed = host.run(&format!("nft list chain netdev humanz {name}")).stdout;
            let guarded = listed.contains("policy drop") && listed.contains("goto routed-");
            let up = port["flags"].as_array().unwrap().iter().any(|flag| flag == "UP");
            assert!(guarded || !up, "stopped at message {when}: {listed}");
            unguarded += i32::from(!guarded);
        }
        if answer.ended.succeeded() {
            break;
        }
        stopped += 1;
        Call::new("DEL", &conf, "c1").run(&host).ok();
        host.run("ip netns del c1").ok();
    }
    println!(
        "stopped {stopped} times, {unguarded} times with a port that was down and had no guard"
    );
    assert!(stopped > 5 && unguarded > 0);
}

#[test]
fn without_a_guard_pods_are_as_they_were() {
    let host = PluginHost::new();
    let keys = json!({ "ranges": [[{ "subnet": "10.1.2.0/24" }]], "podGuard": false });
    let conf = conf("1.0.0", keys);
    host.add(&conf, "c1");
    host.add(&conf, "c2");
    assert_eq!(host.guards(), Vec::<String>::new());
    host.run("ip netns exec c1 ping -n -c 1 -W 10 10.1.2.3").ok();
    host.run("ip netns exec c1 ip addr add 10.1.2.99/24 dev eth0").ok();
    host.run("ip netns exec c1 ping -n -c 1 -W 10 -I 10.1.2.99 10.1.2.3").ok();
}

/// route_localnet, which host ports need, lets pods reach what the host serves to itself; the rules
/// against that go with a flush of nftables.
#[test]
fn no_pod_reaches_the_loopback_of_its_host() {
    let host = PluginHost::new();
    let ports =
        json!({ "portMappings": [{ "hostPort": 8080, "containerPort": 80, "protocol": "tcp" }] });
    let conf =
        conf("1.0.0", json!({ "ranges": [[{ "subnet": "10.1.2.0/24" }]], "runtimeConfig": ports }));
    let without = crate::support::plugin_host::conf(
        "1.0.0",
        json!({ "ranges": [[{ "subnet": "10.1.2.0/24" }]] }),
    );
    let localnet = || host.read("/proc/sys/net/ipv4/conf/hz0/route_localnet").unwrap();
    host.add(&without, "a");
    assert_eq!(localnet().trim(), "0");
    host.add(&conf, "c1");
    assert_eq!(localnet().trim(), "1");
    let echo = crate::support::echo::Echo::serve(&*host, 7777);
    let attacker = host.container("a");
    attacker
        .shell(
            "ip rule add pref 0 to 127.0.0.0/8 lookup 77; ip rule del pref 0 lookup local
             ip rule add pref 9 lookup local
             ip route add 127.0.0.2/32 via 10.1.2.1 dev eth0 table 77
             sysctl -q -w net.ipv4.conf.eth0.route_localnet=1 net.ipv4.conf.all.route_localnet=1",
        )
        .ok();
    let reaches = || {
        let to = std::net::SocketAddr::from(([127, 0, 0, 2], 7777));
        crate::support::echo::ask_tcp(&attacker, to).is_ok()
    };
    assert!(!reaches());
    host.run("nft flush ruleset").ok();
    assert!(!reaches(), "after the rules were flushed");
    // The control: without the filter it is reached.
    host.shell("for port in $(ip -o link show master hz0 | cut -d: -f2 | cut -d@ -f1); do tc qdisc del dev $port clsact; done").ok();
    assert!(reaches(), "the attack does not work at all");
    drop(echo);
    Call::new("DEL", &conf, "c1").run(&host).ok();
    assert_eq!(localnet().trim(), "0");
}
