//! Who may choose the MAC of a pod asks for one that gets the traffic of others: of another pod's port, of the bridge, of
//! one that starts later, of another interface of the host. The guard gives what a pod sends the MAC of its port.

use humanz::net::Mac;
use humanz::plan::pod::LinkIdentity;
use serde_json::{Value, json};

use crate::packet_socket::PacketSocket;
use crate::packets::{ARP, BROADCAST, IPV4, arp, ethernet};
use crate::scene::{By, Scene, marked4};
use crate::support::cluster::Alone;
use crate::support::cni::Network;
use crate::support::local::get;
use crate::support::plugin_host::{Answer, Call, conf};
use crate::support::wait::SOON;
use crate::support::{Agent, Node, Place, Pod, soon};

fn keys(routing: &str) -> Value {
    let sets = json!([[{ "subnet": "10.1.2.0/24" }], [{ "subnet": "fd00::/64" }]]);
    json!({ "ranges": sets, "isGateway": true, "podRouting": routing })
}

fn call(verb: &str, routing: &str, args: &str) -> Call {
    Call::new(verb, &conf("1.1.0", keys(routing)), "thief").with("CNI_ARGS", args)
}

/// ADD of the thief, in a namespace that is there.
fn ask_for(scene: &Scene, routing: &str, args: &str) -> Answer {
    call("ADD", routing, args).run(&scene.host)
}

/// Whether the thief gets a packet that the victim sends to the bystander, or to nobody through the gateway.
fn steals(scene: &Scene, to: std::net::Ipv4Addr) -> bool {
    if !scene.run("ip -n thief link show eth0").succeeded() {
        return false;
    }
    let victim = scene.victim;
    let thief = PacketSocket::open(&scene.host.container("thief"), "eth0");
    let socket = PacketSocket::open(&scene.pod(&victim), "eth0");
    let packet = marked4((victim.v4, to), b"for others");
    socket.send(&ethernet(scene.gateway.mac, victim.mac, IPV4, &packet));
    let fence = arp(1, victim.mac, victim.v4, ([0; 6], "10.1.2.254".parse().unwrap()));
    socket.send(&ethernet(BROADCAST, victim.mac, ARP, &fence));
    thief.sees(&[b"for others".to_vec()], &fence)
}

fn reaches(scene: &Scene, to: &str) -> bool {
    let pod = scene.pod(&scene.victim);
    (0..5).any(|_| pod.run(&format!("ping -n -c 1 -W 1 {to}")).succeeded())
}

/// With rules of the host that let nothing pass between pods: what the thief gets has gone past them.
fn check_theft(scene: &Scene, routing: &str, mac: Mac, to: std::net::Ipv4Addr) {
    scene.host.netns("thief");
    scene
        .shell(
            "sysctl -q -w net.bridge.bridge-nf-call-iptables=0 2>/dev/null
             nft 'add table inet wall; add chain inet wall f { type filter hook forward priority 0; policy drop; }'",
        )
        .ok();
    let answer = ask_for(scene, routing, &format!("MAC={mac}"));
    assert!(!steals(scene, to), "the thief got it");
    assert_eq!(answer.code(), 101, "{}", answer.error());
    assert!(answer.error().contains("in use by this host"), "{}", answer.error());
    call("DEL", routing, "").run(&scene.host).ok();
    assert!(reaches(scene, &scene.gateway.v4.to_string()), "after the thief");
}

#[test]
fn no_pod_gets_the_traffic_of_another_by_the_mac_of_its_port() {
    let scene = Scene::with(By::Humanz, keys("host"));
    check_theft(&scene, "host", Mac(scene.port_mac(&scene.victim)), scene.bystander.v4);
}

#[test]
fn no_pod_gets_what_others_send_outside_by_the_mac_of_the_bridge() {
    let scene = Scene::with(By::Humanz, keys("bridge"));
    check_theft(&scene, "bridge", Mac(scene.gateway.mac), "198.51.100.7".parse().unwrap());
}

/// Both are known in advance: the one hashed from names, the other made of an address.
#[test]
fn no_pod_gets_in_the_way_of_one_that_starts_later() {
    let scene = Scene::with(By::Humanz, keys("host"));
    scene.host.netns("thief");
    let later = LinkIdentity { network: "net", container_id: "later", ifname: "eth0" };
    let next: std::net::IpAddr = "10.1.2.77".parse().unwrap();
    for mac in [later.host_mac(), Mac::of_address(next), later.pod_mac()] {
        let answer = ask_for(&scene, "host", &format!("MAC={mac}"));
        assert_eq!(answer.code(), 101, "{mac}: {}", answer.error());
        assert!(answer.error().contains("0a:56 to 0a:5b"), "{}", answer.error());
    }
    // Its own, as a runtime asks for it that restores a pod.
    let own = format!("MAC={};IP={next}", Mac::of_address(next));
    ask_for(&scene, "host", &own).ok();
    call("DEL", "host", "").run(&scene.host).ok();
    scene.host.add(&conf("1.1.0", keys("host")), "later");
    let pinged = scene.run("ip netns exec later ping -n -c 1 -W 5 10.1.2.1");
    assert!(pinged.succeeded(), "{pinged}");
}

#[test]
fn no_pod_gets_the_mac_of_another_interface_of_the_host_or_of_whoever_is_behind_one() {
    let scene = Scene::with(By::Humanz, keys("host"));
    scene.host.netns("thief");
    scene
        .shell(
            "ip link add other address 02:00:00:00:00:01 type bridge
             ip link add vm address 02:00:00:00:00:02 type veth peer name router
             ip link set vm master hz0 up; ip link set router address 02:00:00:00:00:03 netns bystander up
             bridge fdb replace 02:00:00:00:00:04 dev vm master static
             bridge fdb replace 02:00:00:00:00:05 dev vm master dynamic",
        )
        .ok();
    for (last, code, text) in [
        (1, 101, "interface other"),
        (2, 101, "interface vm"),
        (4, 101, "port vm"),
        (5, 11, "which sent"),
    ] {
        let answer = ask_for(&scene, "host", &format!("MAC=02:00:00:00:00:0{last}"));
        assert_eq!(answer.code(), code, "{last}: {}", answer.error());
        assert!(answer.error().contains(text), "{last}: {}", answer.error());
    }
    ask_for(&scene, "host", "MAC=02:00:00:00:00:06").ok();
}

const STANDALONE: &[(&str, &str)] = &[("SUBNET_SOURCE", "static"), ("ETCD_HOST", "")];

fn serve(host: &Node, resync: &str) -> Agent {
    let agent = Agent::start(host, &[STANDALONE, &[("RESYNC_INTERVAL", resync)]].concat());
    agent.wait_ready();
    agent
}

/// Port and its MAC of the pod of that name.
fn port(host: &Node, pod: &str) -> (String, String) {
    let port = LinkIdentity { network: "humanz", container_id: pod, ifname: "eth0" };
    let name = port.host_ifname().to_string();
    let mac = host.read(&format!("/sys/class/net/{name}/address")).unwrap().trim().to_owned();
    (name, mac)
}

fn is_local(host: &Node, link: &str, mac: &str) -> bool {
    let shown = host.run("bridge fdb show br humanz0").ok();
    shown
        .lines()
        .any(|line| line.starts_with(&format!("{mac} dev {link} ")) && line.contains("permanent"))
}

fn pings(pod: &Pod, to: &Pod) -> bool {
    pod.run(&format!("ping -n -c 1 -W 1 {}", to.v4())).succeeded()
}

/// Nothing is looked at without an event here.
#[test]
fn a_mac_that_the_bridge_lost_is_given_back_at_once() {
    let alone = Alone::new();
    let host = &alone.host;
    let agent = serve(host, "3600s");
    let pods = [Pod::add(host, "a"), Pod::add(host, "b")];
    assert!(pings(&pods[0], &pods[1]));
    let (name, mac) = port(host, "a");
    let bridge = host.read("/sys/class/net/humanz0/address").unwrap().trim().to_owned();
    for (link, mac, table) in [(name.as_str(), &mac, "master"), ("humanz0", &bridge, "self")] {
        host.run(&format!("bridge fdb del {mac} dev {link} {table}")).ok();
        soon("the MAC is back", || is_local(host, link, mac));
        agent.wait_log(&[link, "takes in frames for its MAC", mac]);
    }
    pods[0].until_ok(&format!("ping -n -c 1 -W 1 {}", pods[1].v4()), SOON);
    pods[0].check().unwrap();
}

#[test]
fn where_pods_are_bridged_explain_says_that_the_bridge_lost_its_own_mac() {
    let alone = Alone::new();
    let host = &alone.host;
    let variables = [STANDALONE, &[("POD_ROUTING", "bridge")]].concat();
    let agent = Agent::start(host, &variables);
    agent.wait_ready();
    let _pod = Pod::add(host, "a");
    agent.stop();
    let explained = || Agent::run(host, "explain --json a 203.0.113.7 --quiet", &variables).stdout;
    let lost = "sends frames for the MAC of humanz0, ";
    assert!(!explained().contains(lost));
    let bridge = host.read("/sys/class/net/humanz0/address").unwrap();
    host.run(&format!("bridge fdb del {} dev humanz0 self", bridge.trim())).ok();
    let text = explained();
    assert!(text.contains(lost) && text.contains("dev humanz0 self permanent"), "{text}");
}

/// As a release before left it, which gave a pod whichever MAC it asked for.
#[test]
fn what_a_thief_has_is_said_while_no_agent_runs_and_taken_from_it_by_the_next_one() {
    let alone = Alone::new();
    let host = &alone.host;
    let agent = serve(host, "3600s");
    let pods = [Pod::add(host, "a"), Pod::add(host, "b"), Pod::add(host, "thief")];
    assert!(pings(&pods[0], &pods[1]));
    agent.stop();
    let ((victim, mac), (thief, _)) = (port(host, "a"), port(host, "thief"));
    let own = host.shell("ip -n thief -o link show eth0 | grep -o 'ether [^ ]*'").ok();
    host.shell(&format!(
        "ip -n thief link set eth0 address {mac}
         bridge fdb del {} dev {thief} master; bridge fdb replace {mac} dev {thief} master static sticky
         ip neigh replace {} lladdr {mac} dev humanz0 nud permanent",
        own.trim().trim_start_matches("ether "),
        pods[2].v4()
    ))
    .ok();
    assert!(!pings(&pods[0], &pods[1]), "the control: it matters");
    let explained = Agent::run(host, "explain --json a b", STANDALONE).stdout;
    let lost = format!("sends frames for the MAC of {victim}, {mac}, to {thief}, not to this host");
    assert!(explained.contains(&lost), "{explained}");
    let found = Agent::run(host, "doctor", STANDALONE);
    let wanted = format!("takes in frames for its MAC {mac} again (they went to {thief})");
    assert!(found.stdout.contains(&wanted), "{found}");
    let error = pods[0].check().unwrap_err().to_string();
    assert!(error.contains(&format!("{mac}, do not come to the host")), "{error}");
    let agent = serve(host, "1s");
    agent.wait_log(&[&victim, "takes in frames for its MAC", &mac]);
    soon("the victim is received", || pings(&pods[0], &pods[1]));
    // Nor does a later look give it back to the thief.
    let looks = || {
        let page = get(host, "/metrics").1;
        let lines = page.lines().filter(|line| line.contains("_reconcile_duration_seconds_count{"));
        lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum::<f64>()
    };
    let before = looks();
    soon("further looks", || looks() >= before + 2.0);
    assert!(is_local(host, &victim, &mac));
    assert_eq!(agent.log().matches("takes in frames for its MAC").count(), 1, "{}", agent.log());
    assert!(pings(&pods[0], &pods[1]) && !pings(&pods[2], &pods[1]));
    pods[0].check().unwrap();
    let network = Network::of(host);
    let asked = Pod::try_add(host, "late", &network).unwrap();
    assert!(pings(&asked, &pods[0]));
}

/// Without an agent the next GC does it.
#[test]
fn gc_gives_a_mac_back_that_the_bridge_lost() {
    let scene = Scene::with(By::Humanz, keys("host"));
    let (name, mac) = (scene.port(&scene.victim), Mac(scene.port_mac(&scene.victim)));
    scene.run(&format!("bridge fdb del {mac} dev {name} master")).ok();
    let to = scene.bystander.v4.to_string();
    assert!(!reaches(&scene, &to), "the control: it matters");
    let valid: Value = ["attacker", "victim", "bystander"]
        .map(|name| json!({ "containerID": name, "ifname": "eth0" }))
        .into_iter()
        .collect();
    let gc = Call::new("GC", &conf("1.1.0", keys("host")), "").with("CNI_CONTAINERID", "");
    let gc = gc.with("CNI_NETNS", "").with("CNI_IFNAME", "");
    gc.key("cni.dev/valid-attachments", valid).run(&scene.host).ok();
    assert!(reaches(&scene, &to));
}
