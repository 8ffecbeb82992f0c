//! Requested sysctls and link settings of a pod, and its MAC.

use serde_json::{Value, json};

use crate::support::Place;
use crate::support::plugin_host::{Call, PluginHost, conf};

/// Both families, with these keys.
fn dual(keys: Value) -> Value {
    let sets = json!([[{ "subnet": "10.1.2.0/24" }], [{ "subnet": "fd00::/64" }]]);
    let mut all = json!({ "ranges": sets });
    all.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
    conf("1.0.0", all)
}

/// A setting as the pod `c1` sees it.
fn setting(host: &PluginHost, path: &str) -> String {
    host.run(&format!("ip netns exec c1 cat /proc/sys/{path}")).ok().trim().replace('\t', " ")
}

fn somaxconn(host: &PluginHost) -> String {
    setting(host, "net/core/somaxconn")
}

/// Root of a user namespace may not mount a proc of its own beside processes that it does not own.
#[test]
fn who_may_have_no_proc_of_its_own_sets_the_sysctls_of_a_pod_all_the_same() {
    let host = PluginHost::new();
    host.write("/root/conf", &dual(json!({})).to_string());
    let script = "mount -t tmpfs none /run; mkdir /run/netns; ip netns add c1
        CNI_COMMAND=ADD CNI_CONTAINERID=c1 CNI_NETNS=/run/netns/c1 CNI_IFNAME=eth0 CNI_PATH=/opt/cni/bin \
            /opt/cni/bin/humanz < /root/conf >&2
        cd /proc/sys/net; nsenter --net=/run/netns/c1 cat ipv4/conf/all/accept_redirects ipv6/conf/eth0/accept_ra";
    let wrapped = format!("unshare --user --map-root-user --net --mount sh -ec '{script}'");
    assert_eq!(host.shell(&wrapped).ok(), "0\n0\n");
}

#[test]
fn interface_and_namespace_are_set_and_check_compares_them() {
    let host = PluginHost::new();
    let conf = dual(json!({
        "promisc": true, "allmulti": true, "txQLen": 500, "mtu": 1400,
        "sysctl": { "net.core.somaxconn": "500", "net.ipv4.ip_local_port_range": "2000 3000",
            "net/ipv4/conf/IFNAME/arp_ignore": "1" },
        "args": { "cni": { "mtu": 1300, "sysctl": { "net/core/somaxconn": "600" } } },
    }));
    let result = host.add(&conf, "c1");
    assert_eq!(result["interfaces"][2]["mtu"], 1300);
    let link = &host.pod_ip("c1", "-d link show eth0")[0];
    assert_eq!((&link["mtu"], &link["txqlen"]), (&json!(1300), &json!(500)));
    let flags = link["flags"].as_array().unwrap();
    assert!(flags.contains(&json!("PROMISC")) && flags.contains(&json!("ALLMULTI")), "{flags:?}");
    assert_eq!(somaxconn(&host), "600");
    assert_eq!(setting(&host, "net/ipv4/ip_local_port_range"), "2000 3000");
    assert_eq!(setting(&host, "net/ipv4/conf/eth0/arp_ignore"), "1");
    assert_eq!(host.ip("link show hz0")[0]["mtu"], 1400, "the network's, not the pod's");
    let check = || Call::new("CHECK", &conf, "c1").key("prevResult", result.clone()).run(&host);
    check().ok();
    let sysctl = |value: &str| format!("ip netns exec c1 sysctl -q -w {value}");
    for (spoil, says, repair) in [
        (
            sysctl("net.core.somaxconn=7"),
            "sysctl net/core/somaxconn in the pod is 7, not 600",
            sysctl("net.core.somaxconn=600"),
        ),
        (
            "ip -n c1 link set eth0 promisc off".into(),
            "interface eth0 in the pod is not promiscuous",
            "ip -n c1 link set eth0 promisc on".into(),
        ),
        (
            "ip -n c1 link set eth0 txqueuelen 7".into(),
            "interface eth0 in the pod has no queue of 500 packets",
            "ip -n c1 link set eth0 txqueuelen 500".into(),
        ),
    ] {
        host.run(&spoil).ok();
        let answer = check();
        assert_eq!(answer.code(), 103, "{spoil}");
        assert!(answer.error().contains(says), "{}", answer.error());
        host.run(&repair).ok();
        check().ok();
    }
    Call::new("DEL", &conf, "c1").run(&host).ok();
    host.assert_clean("after DEL");
}

#[test]
fn a_failed_add_restores_the_sysctls_of_the_pod() {
    let host = PluginHost::new();
    host.netns("c1");
    let before = somaxconn(&host);
    let call = |sysctl: Value| Call::new("ADD", &dual(json!({ "sysctl": sysctl })), "c1");
    for (key, value, code, says) in [
        ("net/ipv4/tcp_keepalive_time", "soon", 999, "write sysctl net/ipv4/tcp_keepalive_time"),
        ("net/ipv4/no_such_thing", "1", 7, "this kernel has no such sysctl"),
        ("kernel.panic", "1", 7, "not a sysctl of a pod's network"),
        ("net/core/../../kernel/panic", "1", 7, "is not the name of a sysctl"),
    ] {
        let answer = call(json!({ "net.core.somaxconn": "77", (key): value })).run(&host);
        assert_eq!(answer.code(), code, "{key}");
        assert!(answer.error().contains(says), "{}", answer.error());
        assert_eq!(somaxconn(&host), before, "{key}");
        host.assert_clean(key);
        assert_eq!(host.pod_ip("c1", "link show eth0"), Value::Null, "{key}");
    }
    call(json!({ "net.core.somaxconn": "77" })).run(&host).ok();
    assert_eq!(somaxconn(&host), "77");
}

#[test]
fn a_pod_sends_with_its_own_mac_only() {
    let host = PluginHost::new();
    let conf = dual(json!({ "macspoofchk": true }));
    if !crate::support::kernel::locks_ports() {
        host.netns("c1");
        let refused = Call::new("ADD", &conf, "c1").run(&host);
        assert!(refused.error().contains("5.18"), "{}", refused.error());
        return;
    }
    let result = host.add(&conf, "c1");
    host.add(&conf, "c2");
    let reaches = |from: &str, to: &str| {
        host.run(&format!("ip netns exec {from} ping -n -c 1 -W 1 {to}")).succeeded()
    };
    for to in ["10.1.2.3", "fd00::3", "10.1.2.1", "fd00::1"] {
        assert!(reaches("c1", to), "{to}");
    }
    let veth = result["interfaces"][1]["name"].as_str().unwrap();
    let check = || Call::new("CHECK", &conf, "c1").key("prevResult", result.clone()).run(&host);
    check().ok();
    host.run(&format!("bridge link set dev {veth} locked off")).ok();
    assert!(check().error().contains("is not locked"));
    host.run(&format!("bridge link set dev {veth} locked on")).ok();

    // The other pod's MAC, then an unused one; then its own again.
    let mac = |pod: &str| host.pod_ip(pod, "link show eth0")[0]["address"].clone();
    let (own, others) = (mac("c1"), mac("c2"));
    for foreign in [others.as_str().unwrap(), "02:00:00:00:00:99"] {
        host.run(&format!("ip -n c1 link set eth0 address {foreign}")).ok();
        assert!(!reaches("c1", "10.1.2.1") && !reaches("c1", "fd00::1"), "{foreign}");
        assert!(reaches("c2", "10.1.2.1") && reaches("c2", "fd00::1"), "c2 lost its MAC");
    }
    host.run(&format!("ip -n c1 link set eth0 address {}", own.as_str().unwrap())).ok();
    host.run("ip -n c1 link set eth0 down").ok();
    host.run("ip -n c1 link set eth0 up").ok();
    host.run("ip -n c1 route add default via 10.1.2.1").ok();
    assert!(reaches("c1", "10.1.2.1") && reaches("c1", "10.1.2.3"));
    for name in ["c1", "c2"] {
        Call::new("DEL", &conf, name).run(&host).ok();
    }
    host.assert_clean("after DEL");
    let known = host.run("bridge fdb show br hz0").ok();
    assert!(!known.contains(own.as_str().unwrap()), "{known}");
}

#[test]
fn of_very_many_faults_the_first_fifty_are_shown_and_the_others_counted() {
    let host = PluginHost::new();
    host.netns("c1");
    let wrong: serde_json::Map<String, serde_json::Value> =
        (0..5000).map(|number| (format!("kernel.wrong{number}"), json!("1"))).collect();
    let asked = conf("1.0.0", json!({ "subnet": "10.1.2.0/24", "sysctl": wrong }));
    let answer = Call::new("ADD", &asked, "c1").run(&host);
    assert_eq!(answer.code(), 7);
    let error = answer.error();
    assert!(error.len() < 20_000, "{} bytes", error.len());
    assert!(error.ends_with("further errors: 4950 "), "{error}");
}

#[test]
fn the_administrators_list_decides_which_sysctls_are_allowed() {
    let host = PluginHost::new();
    host.netns("c1");
    let call = |sysctl: Value| Call::new("ADD", &dual(json!({ "sysctl": sysctl })), "c1");
    let asked = json!({ "net.core.somaxconn": "77", "net/ipv4/conf/IFNAME/arp_ignore": "1" });
    let before = somaxconn(&host);
    host.run("mkdir -p /etc/cni/tuning").ok();
    let list = "/etc/cni/tuning/allowlist.conf";
    let fix = "add the line ^net\\.core\\.somaxconn$ there";
    let large = "net\n".repeat(20_000);
    for (lines, code, says) in [
        ("", 7, fix),
        ("\n^net.core.rmem_max$\n  ^net/ipv4/conf/IFNAME/[a-z_]*$  \n", 7, fix),
        // Of a line without anchors any part may match, as with the reference plugin, but not the reverse.
        ("net.core.somaxconn_more\n^net.ipv4\n", 7, "sysctl net.core.somaxconn is not allowed"),
        ("^net.core.somaxconn$\n", 7, "sysctl net.ipv4.conf.IFNAME.arp_ignore is not allowed"),
        ("net\n\n(net\n", 7, "allowlist.conf line 3: \"(net\" is no regular expression"),
        (&large, 999, "it is larger than 65536 bytes"),
    ] {
        host.write(list, lines);
        let answer = call(asked.clone()).run(&host);
        assert_eq!(answer.code(), code, "{lines:?}");
        let said = answer.error();
        assert!(said.contains(says) && said.contains(list), "{said}");
        assert_eq!(somaxconn(&host), before, "{lines:?}");
        host.assert_clean(lines);
    }
    // What a pod's annotations ask for is no exception.
    host.write(list, "^net.ipv4.conf.IFNAME.arp_ignore$\n");
    let by_args = json!({ "args": { "cni": { "sysctl": { "net/core/somaxconn": "77" } } } });
    assert_eq!(Call::new("ADD", &dual(by_args), "c1").run(&host).code(), 7);
    let allowed = "^net/core/somaxconn$\n^net\\.ipv4\\.conf\\.IFNAME\\.arp_ignore$\n";
    host.write(list, allowed);
    let conf = dual(json!({ "sysctl": asked }));
    let result = call(asked).run(&host).ok();
    assert_eq!(somaxconn(&host), "77");
    // Nor is a place behind another plugin.
    let chained = crate::support::plugin_host::conf(
        "1.0.0",
        json!({ "sysctl": { "net.core.rmem_max": "99" } }),
    );
    let answer = Call::new("ADD", &chained, "c1").key("prevResult", result).run(&host);
    assert!(answer.error().contains("sysctl net.core.rmem_max is not allowed"));
    // Who asks for none does not read the list; DEL goes on without it.
    host.write(list, "(net\n");
    host.add(&dual(json!({})), "c2");
    Call::new("DEL", &conf, "c1").run(&host).ok();
    host.run("rm -r /etc/cni/tuning").ok();
}
