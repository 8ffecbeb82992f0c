//! Reachability of pods: each other, the host, themselves, and the outside.

use serde_json::{Value, json};

use crate::support::Place;
use crate::support::plugin_host::{Call, PluginHost, STORE, conf};

/// One ping; the kernel may not have to ask anybody for a MAC first. The answer is given the time in
/// which a pod on a busy machine asks three times for the MAC of who pinged it.
#[track_caller]
fn pings(host: &PluginHost, from: &str, to: &str) {
    host.run(&format!("{from}ping -n -c 1 -W 10 {to}")).ok();
}

fn in_pod(name: &str) -> String {
    format!("ip netns exec {name} ")
}

fn dual() -> Value {
    let sets = json!([[{ "subnet": "10.1.2.0/24" }], [{ "subnet": "fd00::/64" }]]);
    conf("1.0.0", json!({ "ranges": sets }))
}

#[test]
fn pods_reach_each_other_the_gateway_and_the_host_reaches_them() {
    let host = PluginHost::new();
    for name in ["c1", "c2"] {
        host.add(&dual(), name);
    }
    for to in ["10.1.2.3", "fd00::3", "10.1.2.1", "fd00::1"] {
        pings(&host, &in_pod("c1"), to);
    }
    for to in ["10.1.2.2", "fd00::2"] {
        pings(&host, "", to);
    }
}

#[test]
fn isolated_pods_reach_the_gateway_but_not_each_other() {
    let host = PluginHost::new();
    let conf = conf("1.0.0", json!({ "subnet": "10.1.2.0/24", "portIsolation": true }));
    for name in ["c1", "c2"] {
        host.add(&conf, name);
    }
    pings(&host, &in_pod("c1"), "10.1.2.1");
    let ended = host.run("ip netns exec c1 ping -n -c 1 -W 1 10.1.2.3");
    assert!(!ended.succeeded(), "{ended}");
}

#[test]
fn a_pod_reaches_itself_through_nat() {
    let host = PluginHost::new();
    host.add(&conf("1.0.0", json!({ "subnet": "10.1.2.0/24" })), "c1");
    let rules = "add table ip t
        add chain ip t pre { type nat hook prerouting priority dstnat; }
        add chain ip t post { type nat hook postrouting priority srcnat; }
        add rule ip t pre ip daddr 192.0.2.222 dnat to 10.1.2.2
        add rule ip t post ip daddr 10.1.2.2 ip saddr 10.1.2.2 masquerade";
    host.run_command(&mut crate::support::node::command("nft -f -"), rules).ok();
    pings(&host, &in_pod("c1"), "192.0.2.222");
}

#[test]
fn an_address_that_gets_a_new_owner_is_reached_at_once() {
    let host = PluginHost::new();
    let conf = dual();
    host.add(&conf, "watcher");
    let wish = "IP=10.1.2.77,fd00::77";
    for round in 0..3 {
        let name = format!("c{round}");
        host.netns(&name);
        Call::new("ADD", &conf, &name).with("CNI_ARGS", wish).run(&host).ok();
        for to in ["10.1.2.77", "fd00::77"] {
            // The first packet, from the host and from another pod that remembers the old owner.
            pings(&host, "", to);
            pings(&host, &in_pod("watcher"), to);
        }
        Call::new("DEL", &conf, &name).run(&host).ok();
    }
    // Even with another MAC than before the host needs no question.
    host.netns("late");
    let args = format!("{wish};MAC=02:00:00:00:07:77");
    Call::new("ADD", &conf, "late").with("CNI_ARGS", &args).run(&host).ok();
    for to in ["10.1.2.77", "fd00::77"] {
        pings(&host, "", to);
        let shown = host.run(&format!("ip neigh show {to} dev hz0")).ok();
        assert!(shown.contains("02:00:00:00:07:77"), "{shown}");
    }
}

#[test]
fn udp_flows_to_the_previous_owner_are_deleted_and_others_kept() {
    let host = PluginHost::new();
    let conf = conf("1.0.0", json!({ "subnet": "10.1.2.0/24" }));
    let flow = |from: &str, to: &str| {
        let line = format!("conntrack -I -p udp -s {from} -d {to} --sport 5000 --dport 53 -t 600");
        host.run(&line).ok();
    };
    let flows = || host.run("conntrack -L -p udp").stdout;
    let are_left = |wanted: &[&str]| {
        let flows = flows();
        let left = |address: &&str| flows.contains(&format!("={address} "));
        let found: Vec<&str> =
            ["192.0.2.51", "192.0.2.52", "10.9.9.9"].into_iter().filter(left).collect();
        assert_eq!(found, wanted, "{flows}");
    };
    let pod = "10.1.2.2";
    flow("192.0.2.51", pod);
    flow(pod, "192.0.2.52");
    flow("192.0.2.50", "10.9.9.9");
    host.add(&conf, "c1");
    are_left(&["10.9.9.9"]);
    flow("192.0.2.51", pod);
    flow(pod, "192.0.2.52");
    Call::new("DEL", &conf, "c1").run(&host).ok();
    are_left(&["10.9.9.9"]);
}

/// A walk over the kernel's connections costs as much as a tenth of an ADD.
#[test]
fn add_looks_for_udp_flows_of_a_former_owner_unless_a_del_has_just_deleted_them() {
    let host = PluginHost::new();
    let conf = conf("1.0.0", json!({ "subnet": "10.1.2.0/30" }));
    host.run("conntrack -I -p udp -s 192.0.2.50 -d 10.9.9.9 --sport 5000 --dport 53 -t 600").ok();
    let former = || {
        let flow = "-p udp -s 10.1.2.2 -d 192.0.2.99 --sport 5000 --dport 53 -t 600";
        host.run(&format!("conntrack -I {flow}")).ok();
    };
    let is_left = || host.run("conntrack -L -p udp").stdout.contains("src=10.1.2.2");
    let looks = |verb: &str, name: &str| {
        if verb == "ADD" {
            host.netns(name);
        }
        let strace = "strace -f -qq -o /run/trace -e trace=sendto";
        Call::new(verb, &conf, name).under(strace).run(&host).ok();
        let seen = host.read("/run/trace").expect("strace is needed: apt-get install strace");
        let is_deletion = |line: &&str| {
            line.contains("IPCTNL_MSG_CT_DELETE") || line.contains("nlmsg_type=0x102 ")
        };
        seen.lines().filter(is_deletion).count()
    };
    let note = format!("{STORE}/swept/v4.2");

    former();
    assert_ne!(looks("ADD", "c1"), 0, "nobody knows who had the address");
    assert!(!is_left());
    former();
    assert_ne!(looks("DEL", "c1"), 0);
    assert!(!is_left());
    assert_eq!(looks("ADD", "c2"), 0, "its DEL has deleted them");
    let late = json!({ "cniVersion": "1.0.0", "ips": [{ "address": "10.1.2.2/30" }] });
    Call::new("DEL", &conf, "c1").key("prevResult", late).run(&host).ok();
    assert!(host.read(&note).is_none(), "and said so to one owner");
    Call::new("DEL", &conf, "c2").run(&host).ok();

    host.shell(&format!("touch -d '10 minutes ago' {note}")).ok();
    former();
    assert_ne!(looks("ADD", "c3"), 0, "by now the address may have been another host's");
    assert!(!is_left());

    // Half written, as by a process that is killed, or of another address that ends with the same octet.
    for note_is in ["10.1.2.2", "10.1.2.2\\n\\n", "10.1.1.2\\n", ""] {
        Call::new("DEL", &conf, "c3").run(&host).ok();
        host.shell(&format!("printf '{note_is}' > {note}; ip netns del c3")).ok();
        assert_ne!(looks("ADD", "c3"), 0, "{note_is:?}");
    }

    // Released, but by no DEL.
    let remove = "for link in $(ls /sys/class/net/hz0/brif); do ip link del $link; done";
    host.shell(&format!("rm {STORE}/10.1.2.2 {STORE}/owners/*; {remove}")).ok();
    former();
    assert_ne!(looks("ADD", "c4"), 0);
    assert!(!is_left());
}

#[test]
fn udp_flows_through_foreign_nat_end_with_the_pod() {
    let somebody = [
        "nft add table ip somebody",
        "nft add table inet somebody",
        "iptables-legacy -t nat -L -n",
    ];
    for command in somebody {
        let host = PluginHost::new();
        let conf = conf(
            "1.0.0",
            json!({ "subnet": "10.1.2.0/24", "network": "10.0.0.0/8", "ipMasq": true }),
        );
        host.run(command).ok();
        host.add(&conf, "c1");
        let service = "conntrack -I -p udp -t 600 -u SEEN_REPLY -s 192.0.2.50 --sport 5000 \
                       -d 10.96.0.10 --dport 53 -q 192.0.2.50 --reply-port-src 53 \
                       --reply-port-dst 5000";
        host.run(&format!("{service} -r 10.1.2.2")).ok();
        let other = service.replace("5000", "5001");
        host.run(&format!("{other} -r 10.1.2.3")).ok();
        Call::new("DEL", &conf, "c1").run(&host).ok();
        let left = host.run("conntrack -L -p udp").stdout;
        assert!(!left.contains("sport=5000") && left.contains("sport=5001"), "{command}: {left}");
    }
}

#[test]
fn masquerading_is_one_table_for_the_network_and_restored_if_flushed() {
    let host = PluginHost::new();
    let conf =
        conf("1.0.0", json!({ "subnet": "10.1.2.0/24", "network": "10.0.0.0/8", "ipMasq": true }));
    // The other end of the uplink says from where it is spoken to.
    host.shell(
        "ip netns add outside; ip link set eth0-cable netns outside
         ip -n outside link set eth0-cable up; ip -n outside addr add 192.0.2.99/24 dev eth0-cable
         ip -n outside addr add 10.99.0.1/32 dev lo; ip -n outside link set lo up
         ip -n outside route add 10.1.2.0/24 via 192.0.2.11; ip route add 10.99.0.1 via 192.0.2.99",
    )
    .ok();
    let seen_as = |to: &str| {
        let capture = "ip netns exec outside nft -f -";
        let rules = "table ip w { chain c { type filter hook input priority 0; ip saddr 10.1.2.0/24 counter comment \"pod\"; ip saddr 192.0.2.11 counter comment \"host\"; }; }";
        host.run("ip netns exec outside nft flush ruleset").ok();
        host.run_command(&mut crate::support::node::command(capture), rules).ok();
        host.run(&format!("ip netns exec c1 ping -n -c 1 -W 2 {to}")).ok();
        let counters = host.run("ip netns exec outside nft list ruleset").ok();
        let line = counters.lines().find(|line| line.contains("packets 1 ")).unwrap().to_owned();
        line.split('"').nth(1).unwrap().to_owned()
    };
    host.add(&conf, "c1");
    assert_eq!(seen_as("192.0.2.99"), "host");
    assert_eq!(seen_as("10.99.0.1"), "pod", "the cluster sees the pod's own address");
    let listed = || host.run("nft list table inet humanz_net").ok();
    let before = listed();
    host.add(&conf, "c2");
    assert_eq!(before, listed(), "nothing for each pod");
    host.run("nft flush ruleset").ok();
    host.add(&conf, "c3");
    assert_eq!(seen_as("192.0.2.99"), "host");
    for name in ["c1", "c2", "c3"] {
        Call::new("DEL", &conf, name).run(&host).ok();
    }
    host.assert_clean("after DEL");
}

/// strace gives the request that deletes by a filter a type that no kernel knows: it is refused as by a
/// kernel that knows no filter.
#[test]
fn udp_flows_are_deleted_where_the_kernel_deletes_by_no_filter() {
    let host = PluginHost::new();
    let conf = conf("1.0.0", json!({ "subnet": "10.1.2.0/24" }));
    let traced = |verb: &str, name: &str, address: &str, inject: &str| {
        let line = format!("-I -p udp -s {address} -d 192.0.2.50 --sport 5000 --dport 53 -t 600");
        host.run(&format!("conntrack {line}")).ok();
        let strace = format!("strace -f -qq -o /run/trace -e trace=sendto{inject}");
        Call::new(verb, &conf, name).under(&strace).run(&host).ok();
        let left = host.run("conntrack -L -p udp").stdout;
        assert!(!left.contains(address), "{verb}: {left}");
        host.read("/run/trace").expect("strace is needed: apt-get install strace")
    };
    host.add(&conf, "first");
    for name in ["c1", "c2"] {
        host.netns(name);
    }
    for verb in ["ADD", "DEL"] {
        let seen = traced(verb, "c1", "10.1.2.3", "");
        // Where strace does not see what kind of socket it is, it shows the number.
        let is_deletion = |line: &&str| {
            line.contains("IPCTNL_MSG_CT_DELETE") || line.contains("nlmsg_type=0x102 ")
        };
        let deletion = seen.lines().find(is_deletion).expect("a request to delete flows");
        let thread = deletion.split(' ').next().unwrap();
        let of_thread = |line: &&str| line.split(' ').next() == Some(thread);
        let number = 1 + seen.lines().filter(of_thread).position(|line| line == deletion).unwrap();
        let length = deletion.split("nlmsg_len=").nth(1).unwrap();
        let length: u32 = length.split(',').next().unwrap().parse().unwrap();
        let header = format!("{:08x}020f", length.swap_bytes());
        let inject = format!(" -e inject=sendto:poke_enter=@arg2={header}:when={number}");
        let seen = traced(verb, "c2", "10.1.2.4", &inject);
        assert!(seen.lines().any(|line| line.contains("INJECTED")), "{seen}");
    }
}
