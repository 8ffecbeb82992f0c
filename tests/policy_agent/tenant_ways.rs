//! Ways to the pods of a tenant beside their addresses, and what its networks say of them: services, host ports,
//! `shared`, several networks, the MTU.

use std::net::{IpAddr, Ipv6Addr};
use std::time::Instant;

use serde_json::{Value, json};

use crate::PORT;
use crate::etcd::{FROM_ETCD, apply};
use crate::support::cni::{Attachment, Network};
use crate::support::pod::make_netns;
use crate::support::{Agent, Cluster, Node, Place, Pod, soon};
use crate::tenants::{
    SOON_GIVEN_BACK, add, is_apart, is_in, namespace, network, reaches, try_add, two_tenants,
    with_two_networks,
};
use crate::traffic::{Flood, Server};

const BOTH: [bool; 2] = [false, true];

fn address(pod: &Pod, is_v6: bool) -> IpAddr {
    if is_v6 { pod.v6() } else { pod.v4() }
}

/// The addresses of the service with that number.
fn service(number: u8, is_v6: bool) -> IpAddr {
    match is_v6 {
        false => [10, 96, 0, number].into(),
        true => Ipv6Addr::from([0xfd96, 0, 0, 0, 0, 0, 0, number.into()]).into(),
    }
}

/// On this host the services 1, 2, … lead to these pods.
fn serve_by_addresses(host: &Node, pods: &[&Pod]) {
    let rule = |(number, pod): (u8, &&Pod)| {
        let [v4, v6] = BOTH.map(|is_v6| service(number, is_v6));
        format!(
            "nft add rule inet services pre ip daddr {v4} dnat ip to {}
             nft add rule inet services pre ip6 daddr {v6} dnat ip6 to {}\n",
            pod.v4(),
            pod.v6()
        )
    };
    let rules: String = (1..).zip(pods).map(rule).collect();
    host.shell(&format!(
        "nft add table inet services
         nft 'add chain inet services pre {{ type nat hook prerouting priority dstnat; }}'
         {rules}"
    ))
    .ok();
}

/// What `others` send to `to` does not arrive at `server`, from whatever address.
fn nothing_arrives(server: &mut Server, others: &[&Pod], to: IpAddr) {
    let before = server.total();
    let floods: Vec<Flood> = others.iter().map(|pod| Flood::start(*pod, to)).collect();
    floods.iter().for_each(Flood::go_on);
    assert_eq!(server.total(), before, "{to}");
}

fn all_arrive(server: &mut Server, pods: &[&Pod], to: IpAddr) {
    for pod in pods {
        let before = server.total();
        let _flood = Flood::start(*pod, to);
        soon(&format!("{} at {to}", pod.label()), || server.total() > before + 3);
    }
}

/// A pod of `blue` that is reached at the host's own addresses.
fn with_host_port(host: &Node) -> Pod {
    make_netns(host, "port");
    let ports = json!([{"hostPort": PORT, "containerPort": PORT, "protocol": "udp"}]);
    let args = "IgnoreUnknown=1;K8S_POD_NAMESPACE=blue;K8S_POD_NAME=port".to_owned();
    let runtime = json!({"portMappings": ports});
    let attachment = Attachment { args, runtime, ..Attachment::new("port") };
    Pod::connect(host, &Network::of(host), attachment).unwrap()
}

#[test]
fn neither_a_service_nor_a_host_port_opens_another_tenant() {
    let cluster = Cluster::new(2);
    let [h1, h2] = [&cluster.hosts[0], &cluster.hosts[1]];
    let mut objects = two_tenants();
    objects[1]["spec"]["nat"] = json!(true);
    apply(h1, &objects);
    let agents = cluster.start_agents(FROM_ETCD);
    let pods = [(h1, "blue/a"), (h2, "blue/b"), (h1, "blue/c"), (h2, "blue/d"), (h1, "red/a")];
    let [blue1, blue2, own1, own2, red1] = pods.map(|(host, pod)| add(host, pod));
    let (red2, port) = (add(h2, "red/b"), with_host_port(h1));
    for host in [h1, h2] {
        serve_by_addresses(host, &[&blue1, &blue2]);
    }
    let (own, others) = ([&own1, &own2], [&red1, &red2]);
    soon("both hosts", || {
        reaches(&own1, &blue2) && reaches(&own2, &blue1) && reaches(&own2, &port)
    });
    let mut ways: Vec<(Server, IpAddr)> = Vec::new();
    for (number, pod) in [(1, &blue1), (2, &blue2)] {
        ways.extend(
            BOTH.map(|is_v6| (Server::open_at(pod, address(pod, is_v6)), service(number, is_v6))),
        );
    }
    for (is_v6, to) in [(false, h1.v4().into()), (true, h1.v6().into())] {
        ways.push((Server::open_at(&port, address(&port, is_v6)), to));
    }
    for (server, to) in &mut ways {
        all_arrive(server, &own, *to);
        nothing_arrives(server, &others, *to);
    }
    // It is the tenant alone that keeps them out.
    let shared = |is: bool| {
        objects[0]["spec"]["shared"] = json!(is);
        apply(h1, &objects[..1]);
    };
    let mut shared = shared;
    shared(true);
    for (server, to) in &mut ways {
        all_arrive(server, &others, *to);
    }
    shared(false);
    soon("the end", || is_apart(&red1, &blue1) && is_apart(&red2, &blue2));
    soon("the end on the other hosts", || is_apart(&red1, &blue2) && is_apart(&red2, &blue1));
    for (server, to) in &mut ways {
        nothing_arrives(server, &others, *to);
        all_arrive(server, &own, *to);
    }
    agents.iter().for_each(Agent::stop);
}

/// Behind a tunnel pods ask another host's address by that of their own host.
#[test]
fn no_host_port_opens_another_tenant_behind_a_tunnel() {
    let cluster = Cluster::new(2);
    let [h1, h2] = [&cluster.hosts[0], &cluster.hosts[1]];
    let mut objects = two_tenants();
    objects[1]["spec"]["nat"] = json!(true);
    apply(h1, &objects);
    let agents = cluster.start_agents(&[FROM_ETCD, &[("BACKEND", "vxlan")]].concat());
    let pods = [(h1, "blue/a"), (h2, "blue/b"), (h1, "red/a"), (h2, "red/b")];
    let [own1, own2, red1, red2] = pods.map(|(host, pod)| add(host, pod));
    let port = with_host_port(h1);
    soon("both hosts", || reaches(&own1, &port) && reaches(&own2, &port));
    soon("the tenant", || is_apart(&red1, &port) && is_apart(&red2, &port));
    for (is_v6, to) in [(false, h1.v4().into()), (true, h1.v6().into())] {
        let mut server = Server::open_at(&port, address(&port, is_v6));
        all_arrive(&mut server, &[&own1], to);
        nothing_arrives(&mut server, &[&red1, &red2], to);
        objects[0]["spec"]["shared"] = json!(true);
        apply(h1, &objects[..1]);
        all_arrive(&mut server, &[&own1, &own2, &red1, &red2], to);
        let running = Flood::start(&red2, to);
        let host2: IpAddr = if is_v6 { h2.v6().into() } else { h2.v4().into() };
        server.wait(host2);
        objects[0]["spec"]["shared"] = json!(false);
        let closed = Instant::now();
        apply(h1, &objects[..1]);
        server.wait_silence(host2, closed);
        drop(running);
    }
    agents.iter().for_each(Agent::stop);
}

#[test]
fn a_shared_network_is_open_both_ways_and_closed_under_running_connections() {
    let cluster = Cluster::new(2);
    let [h1, h2] = [&cluster.hosts[0], &cluster.hosts[1]];
    let shared = |is: bool| {
        let tools = json!({"subnets": ["10.36.0.0/16", "fd00:36::/64"], "shared": is});
        [network("infra/tools", tools), network("default/default", json!({"shared": is}))]
    };
    let infra = namespace("infra", json!({"tenant": "infra", "network": "tools"}));
    apply(h1, &[two_tenants(), shared(true).into(), vec![infra]].concat());
    let agents = cluster.start_agents(FROM_ETCD);
    let pods = ["blue", "red", "infra", "plain"]
        .map(|name| [(h1, "a"), (h2, "b")].map(|(host, pod)| add(host, &format!("{name}/{pod}"))));
    let [blue, red, tools, plain] = &pods;
    let pairs: Vec<(&Pod, &Pod)> = [(blue, tools), (blue, plain), (red, tools), (tools, plain)]
        .into_iter()
        .flat_map(|(one, other)| {
            let both = one.iter().flat_map(move |one| other.iter().map(move |other| (one, other)));
            both.flat_map(|(one, other)| [(one, other), (other, one)])
        })
        .collect();
    assert_eq!(pairs.len(), 32);
    for (from, to) in &pairs {
        soon(&format!("{} reaches {}", from.label(), to.label()), || reaches(from, to));
    }
    for (from, to) in [(&blue[0], &red[0]), (&blue[0], &red[1]), (&red[1], &blue[0])] {
        assert!(is_apart(from, to), "{} reaches {}", from.label(), to.label());
    }
    // Running ones: out of the shared network and into it, on the same host and the other one.
    let running = [(&blue[0], &tools[0]), (&blue[1], &tools[0]), (&tools[1], &blue[0])];
    let mut servers = [(false, &tools[0]), (true, &blue[0])]
        .map(|(is_v6, pod)| Server::open_at(pod, address(pod, is_v6)));
    let floods = running.map(|(from, to)| {
        let is_v6 = std::ptr::eq(to, &blue[0]);
        (Flood::start(from, address(to, is_v6)), usize::from(is_v6), address(from, is_v6))
    });
    for (_, server, source) in &floods {
        servers[*server].wait(*source);
    }
    let begun = Instant::now();
    apply(h1, &shared(false));
    for (_, server, source) in &floods {
        servers[*server].wait_silence(*source, begun);
    }
    drop(floods);
    for (from, to) in &pairs {
        soon(&format!("{} without {}", from.label(), to.label()), || is_apart(from, to));
    }
    assert!(reaches(&tools[0], &tools[1]) && reaches(&plain[1], &plain[0]));
    agents.iter().for_each(Agent::stop);
}

#[test]
fn networks_of_one_tenant_reach_each_other_on_both_hosts() {
    let cluster = Cluster::new(2);
    let hosts = [&cluster.hosts[0], &cluster.hosts[1]];
    apply(hosts[0], &with_two_networks());
    let agents = cluster.start_agents(FROM_ETCD);
    let back = json!({"humanz.io/network": "back"});
    let fronts = hosts.map(|host| add(host, "shop/front"));
    let backs = hosts.map(|host| try_add(host, "shop/back", back.clone()).unwrap());
    let red = add(hosts[1], "red/a");
    for back in &backs {
        assert!(is_in(back.v4(), "10.34.0.0/16") && is_in(back.v6(), "fd00:34::/64"));
        for front in &fronts {
            let names = format!("{} and {}", front.label(), back.label());
            soon(&names, || reaches(front, back) && reaches(back, front));
        }
        assert!(is_apart(&red, back) && is_apart(back, &red));
    }
    agents.iter().for_each(Agent::stop);
}

fn mtu(pod: &Pod) -> Value {
    let shown = pod.run("ip -j link show eth0").ok();
    serde_json::from_str::<Value>(&shown).unwrap()[0]["mtu"].clone()
}

#[test]
fn pods_have_the_mtu_of_their_network_and_none_starts_without_one_of_its_families() {
    let cluster = Cluster::new(1);
    let host = &cluster.hosts[0];
    let spec = |mtu: u16| json!({"subnets": ["10.32.0.0/16"], "mtu": mtu});
    let rule = namespace("blue", json!({"tenant": "blue", "network": "front", "allow": ["dual"]}));
    let dual = network("blue/dual", json!({"subnets": ["10.33.0.0/16", "fd00:33::/64"]}));
    apply(host, &[network("blue/front", spec(1400)), dual, rule]);
    let agents = cluster.start_agents(&[("IPV6_SUBNET", ""), ("POLICY", "on")]);
    let small = add(host, "blue/small");
    assert_eq!(mtu(&small), 1400);
    let ends = small.result["interfaces"].as_array().unwrap();
    let inside = ends.iter().find(|end| end["name"] == "eth0").unwrap();
    assert_eq!(inside["mtu"], 1400, "{}", small.result);
    let plain = add(host, "plain/a");
    assert_eq!(mtu(&plain), 1500);

    // A change is for new pods; those that run are as they were.
    apply(host, &[network("blue/front", spec(1420))]);
    let plans = "/run/humanz/ipam/.networks.json";
    soon("the change", || host.read(plans).is_some_and(|text| text.contains("1420")));
    let next = add(host, "blue/next");
    assert_eq!((mtu(&next), mtu(&small)), (json!(1420), json!(1400)));
    for pod in [&small, &plain, &next] {
        pod.check().unwrap_or_else(|error| panic!("{}: CHECK: {error}", pod.label()));
    }
    small.run("ip link set eth0 mtu 1420").ok();
    let differs = small.check().unwrap_err();
    let text = "interface eth0 in the pod has MTU 1420, not 1400";
    assert!(differs.code == 103 && differs.to_string().contains(text), "{differs}");

    let asks = json!({"humanz.io/network": "dual"});
    let refused = try_add(host, "blue/dual", asks).err().unwrap();
    let why = "network blue/dual: this host has no IPv6 subnet (IP_SUBNET, IPV6_SUBNET)";
    assert!(refused.code == 11 && refused.to_string().contains(why), "{refused}");
    agents.iter().for_each(Agent::stop);
}

/// What a place gets for a packet of 1450 bytes and more that may not be cut: an answer, the MTU of the path, or nothing.
fn long_packet(from: &dyn Place, to: IpAddr) -> String {
    let ping = from.run(&format!("ping -n -c 1 -W 1 -M do -s 1450 {to}"));
    let text = format!("{}{}", ping.stdout, ping.stderr).replace(": 1", "=1").replace(" = ", "=");
    let mtu = text.split_once("mtu=").map(|(_, rest)| rest[..4].to_owned());
    let answer = || if text.contains(" 0% packet loss") { "answer" } else { "nothing" }.to_owned();
    mtu.unwrap_or_else(answer)
}

fn block_routes(host: &Node, mtu: u16) -> usize {
    let all =
        ["-4", "-6"].map(|family| host.run(&format!("ip {family} route show proto 104")).stdout);
    let is_it = |line: &&str| line.contains("dev humanz0") && line.contains(&format!("mtu {mtu}"));
    all.concat().lines().filter(is_it).count()
}

#[test]
fn a_packet_that_is_too_long_for_the_pods_of_a_network_is_answered_with_their_mtu() {
    let cluster = Cluster::new(2);
    let [h1, h2] = [&cluster.hosts[0], &cluster.hosts[1]];
    let front = |more: Value| {
        let mut spec = json!({"subnets": ["10.32.0.0/16", "fd00:32::/64"], "shared": true});
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        network("blue/front", spec)
    };
    let shared = network("default/default", json!({"shared": true}));
    let rule = namespace("blue", json!({"tenant": "blue", "network": "front"}));
    apply(h1, &[front(json!({"mtu": 1400})), shared, rule]);
    let agents = cluster.start_agents(SOON_GIVEN_BACK);
    let (small, plain, far) = (add(h1, "blue/small"), add(h1, "plain/a"), add(h2, "plain/b"));
    soon("all of them", || reaches(&plain, &small) && reaches(&far, &small));
    let places: [&dyn Place; 4] = [h1, h2, &plain, &far];
    for (from, to) in places.iter().flat_map(|from| [small.v4(), small.v6()].map(|to| (*from, to)))
    {
        soon(&format!("{} to hear of {to}", from.label()), || long_packet(from, to) == "1400");
    }
    soon("the others to take what they took", || long_packet(&far, plain.v4()) == "answer");
    let routes = Agent::run(h1, "routes", SOON_GIVEN_BACK).ok();
    assert!(!routes.contains("10.32.0."), "they lead to no host: {routes}");

    // Who deletes them, or the gateway, gets them back.
    let lost = [
        "for f in -4 -6; do ip $f route flush proto 104 dev humanz0; done",
        "ip link set humanz0 down; ip link set humanz0 up",
        "ip addr flush dev humanz0 scope global",
    ];
    for line in lost {
        h1.shell(line).ok();
        soon(&format!("the routes after {line}"), || block_routes(h1, 1400) == 2);
        soon(&format!("all of them after {line}"), || reaches(&far, &small));
        assert_eq!(long_packet(h1, small.v4()), "1400", "{line}");
    }
    apply(h1, &[front(json!({"mtu": 1380}))]);
    soon("the other MTU", || block_routes(h1, 1380) == 2 && block_routes(h1, 1400) == 0);
    // Others have kept the former one, as they do for ten minutes.
    assert_eq!(long_packet(h1, small.v4()), "1380");
    apply(h1, &[front(json!({}))]);
    soon("none", || block_routes(h1, 1380) == 0);
    assert!(reaches(&plain, &small) && reaches(&far, &small), "the kernel's own is there");
    apply(h1, &[front(json!({"mtu": 1400}))]);
    soon("the first MTU", || block_routes(h1, 1400) == 2);
    small.delete();
    soon("the blocks to be given back", || block_routes(h1, 1400) == 0);
    let left =
        || h1.shell("ip route show root 10.32.0.0/16; ip -6 route show root fd00:32::/64").ok();
    soon("their routes to go", || !left().contains("dev humanz0"));
    agents.iter().for_each(Agent::stop);
}
