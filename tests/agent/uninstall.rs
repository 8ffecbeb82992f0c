//! Uninstallation of humanz from a host.

use serde_json::json;

use crate::support::cni::{Attachment, Network};
use crate::support::pod::make_netns;
use crate::support::{Agent, Cluster, Ended, Node, Place, Pod, facts, soon};
use crate::{STANDALONE, alone, serve};

/// Foreign objects beside everything that humanz creates.
const FOREIGN: &str = "
    mkdir -p /opt/cni/bin /etc/cni/net.d /run/humanz/ipam/mine /var/lib/humanz
    ip link add mine type bridge; ip link set mine alias 'humanzoid bridge' up
    ip address add 198.51.100.1/24 dev mine
    ip route add 10.99.0.0/16 via 198.51.100.2 proto 99
    nft add table inet mine; nft add table inet humanzoid; nft add table ip humanz
    cp /bin/true /opt/cni/bin/mine; ln -s mine /opt/cni/bin/yours
    echo '{}' > /etc/cni/net.d/99-mine.conflist
    echo mine > /run/humanz/ipam/mine/notes; echo mine > /var/lib/humanz/notes
    echo mine > /var/log/humanz.log.old
    sysctl -qw net.ipv4.ip_forward=0 net.ipv6.conf.all.forwarding=1";

/// All of the kernel and the disk that humanz touches; without numbers that count up.
fn everything(host: &Node) -> String {
    host.shell(
        "ip -o link | sed 's/^[0-9]*: //; s/ qlen .*//'; ip -o address | sed 's/^[0-9]*: //; s/ tentative / /'
         ip route; ip -6 route; ip rule; nft -s list ruleset
         iptables-nft -S FORWARD; sysctl -n net.ipv4.ip_forward net.ipv6.conf.all.forwarding
         sysctl -n net.ipv6.conf.eth0.accept_ra
         find /opt /etc/cni /var/lib/humanz /run/humanz /var/log -printf '%p %s\\n' | sort",
    )
    .ok()
}

fn uninstall(host: &Node, options: &str) -> Ended {
    Agent::run(host, &format!("uninstall {options}"), STANDALONE)
}

#[test]
fn a_host_is_as_it_was_before_and_keeps_what_is_not_ours() {
    let alone = alone();
    let host = &alone.host;
    host.shell("iptables-nft -P FORWARD DROP").ok();
    host.shell(FOREIGN).ok();
    soon("the cable is plugged in", || !everything(host).contains("LOWERLAYERDOWN"));
    let before = everything(host);
    let agent = serve(host, &[]);
    Pod::add(host, "a").delete();
    agent.stop();
    let served = everything(host);
    assert_ne!(served, before);
    let output = uninstall(host, "--purge --dry-run").ok();
    assert_eq!(everything(host), served, "a dry run");
    uninstall(host, "--purge").ok();
    assert_eq!(everything(host), before);
    for what in [
        "- CNI configuration /etc/cni/net.d/05-humanz.conflist\n",
        "- bridge humanz0\n",
        "- nft table inet humanz\n",
        "~ sysctl net.ipv4.ip_forward = 0\n",
        "- link /opt/cni/bin/humanz\n",
        "- plugin /opt/cni/bin/humanz-agent\n",
        "- store of addresses /run/humanz/ipam/humanz\n",
        "- log /var/log/humanz.log\n",
        "- state /var/lib/humanz/sysctls.json\n",
    ] {
        assert!(output.contains(what), "{what} in {output}");
    }
    assert_eq!(uninstall(host, "--purge --dry-run").ok(), "nothing would be removed\n");
    assert_eq!(uninstall(host, "--purge").ok(), "nothing was there to be removed\n");
}

/// As the problem of a runtime that looks for plugins elsewhere says it.
#[test]
fn a_plugin_from_before_another_place_was_set_goes_too() {
    let alone = alone();
    let host = &alone.host;
    let elsewhere = ("CNI_PLUGIN_LOCATION", "/opt/other/humanz");
    for place in [&[][..], &[elsewhere]] {
        serve(host, place).stop();
    }
    assert_eq!(host.list("/opt/cni/bin").len(), 3, "pods may be deleted by it");
    uninstall(host, "--purge --cni-plugin-location /opt/other/humanz").ok();
    for folder in ["/opt/cni/bin", "/opt/other"] {
        assert_eq!(host.list(folder), Vec::<String>::new(), "{folder}");
    }
}

/// Of another pod network, or by hand, under the name that humanz would take.
#[test]
fn a_configuration_of_somebody_else_stays_and_one_without_a_mark_goes() {
    let alone = alone();
    let host = &alone.host;
    let path = "/etc/cni/net.d/05-humanz.conflist";
    let of = |kind: &str| {
        json!({"cniVersion": "1.0.0", "name": "x", "plugins": [{"type": kind, "bridge": "cni0"}]})
            .to_string()
    };
    host.run("mkdir -p /etc/cni/net.d").ok();
    for (text, stays) in [(of("bridge"), true), ("{ half".to_owned(), true), (of("humanz"), false)]
    {
        host.write(path, &text);
        let ended = uninstall(host, "--purge");
        assert!(ended.succeeded(), "{ended}");
        assert_eq!(host.read(path), stays.then_some(text), "{ended}");
        assert_eq!(ended.stderr.contains("it is not humanz's"), stays, "{ended}");
    }
}

#[test]
fn an_uninstallation_is_printed_as_json() {
    let alone = alone();
    let host = &alone.host;
    serve(host, &[]).stop();
    let object = |options: &str| -> serde_json::Value {
        serde_json::from_str(&uninstall(host, options).ok()).unwrap()
    };
    let (planned, gone) = (object("--json --dry-run"), object("--json"));
    let nothing = object("--json");
    for (value, dry) in [(&planned, true), (&gone, false), (&nothing, false)] {
        assert_eq!((&value["schema"], &value["dry_run"]), (&json!(1), &json!(dry)));
        assert_eq!((&value["in_the_way"], &value["failures"]), (&json!([]), &json!([])));
    }
    assert_eq!(planned["changes"], gone["changes"]);
    let changes = gone["changes"].as_array().unwrap();
    assert!(changes.contains(&json!("- bridge humanz0")), "{gone}");
    assert_eq!(nothing["changes"], json!([]));
}

#[test]
fn a_directory_on_which_something_is_mounted_is_emptied_and_stays() {
    let alone = alone();
    let host = &alone.host;
    let mounts =
        "for at in /var/lib/humanz /run/humanz; do mkdir -p $at; mount --bind $at $at; done";
    host.shell(mounts).ok();
    serve(host, &[]).stop();
    uninstall(host, "--purge").ok();
    assert_eq!(uninstall(host, "--purge --dry-run").ok(), "nothing would be removed\n");
    assert_eq!(
        host.shell("find /var/lib/humanz /run/humanz").ok(),
        "/var/lib/humanz\n/run/humanz\n"
    );
}

/// No agent tries again.
#[test]
fn what_cannot_be_removed_is_reported_with_what_to_do() {
    let alone = alone();
    let host = &alone.host;
    serve(host, &[]).stop();
    host.shell(
        "rm -rf /run/humanz/*; mkdir /run/humanz/ipam; mount --bind /run/humanz /run/humanz
         mount -o remount,bind,ro /run/humanz; cd /etc/cni/net.d; mount --bind 05-humanz.conflist 05-humanz.conflist",
    )
    .ok();
    let ended = uninstall(host, "--purge");
    assert_eq!(ended.status.code(), Some(1), "{ended}");
    for path in ["/etc/cni/net.d/05-humanz.conflist", "/run/humanz/ipam"] {
        let line = ended.stderr.lines().find(|line| line.contains(&format!("{path}: "))).unwrap();
        assert!(line.contains("; humanz-agent uninstall # again, with the same options"), "{line}");
    }
    host.shell("umount /etc/cni/net.d/05-humanz.conflist /run/humanz").ok();
    uninstall(host, "--purge").ok();
    assert_eq!(uninstall(host, "--purge --dry-run").ok(), "nothing would be removed\n");
}

#[test]
fn without_purge_a_host_can_be_set_up_again() {
    let alone = alone();
    let host = &alone.host;
    serve(host, &[]).stop();
    uninstall(host, "").ok();
    assert!(host.run("ip link show dev humanz0").stderr.contains("does not exist"));
    assert!(host.read("/var/lib/humanz/sysctls.json").is_some());
    serve(host, &[]).stop();
}

#[test]
fn attached_pods_are_disconnected_only_on_request() {
    let alone = alone();
    let host = &alone.host;
    let agent = serve(host, &[]);
    let pod = Pod::add(host, "a");
    let running = uninstall(host, "--force");
    assert!(running.stderr.contains("systemctl disable --now humanz-agent"), "{running}");
    // Each pod of Kubernetes has this variable.
    let in_pod = [STANDALONE, &[("KUBERNETES_SERVICE_HOST", "10.96.0.1")]].concat();
    let running = Agent::run(host, "uninstall --force", &in_pod);
    assert!(running.stderr.contains("kubectl -n kube-system delete ds/humanz"), "{running}");
    assert!(!running.stderr.contains("systemctl"), "{running}");
    let planned = uninstall(host, "--dry-run").ok();
    assert!(planned.contains("\n! another humanz-agent serves this host"), "{planned}");
    agent.stop();
    let before = everything(host);
    let planned = uninstall(host, "--dry-run").ok();
    assert!(!planned.contains("! another"), "{planned}");
    assert!(planned.contains("\n! 1 pod is attached (humanz a eth0"), "{planned}");
    assert!(!uninstall(host, "--dry-run --force").ok().contains('!'));
    let refused = uninstall(host, "--purge");
    assert_eq!(refused.status.code(), Some(1), "{refused}");
    assert!(refused.stderr.contains("1 pod is attached (humanz a eth0"), "{refused}");
    assert_eq!(everything(host), before);
    pod.run("ping -n -c 1 -W 3 10.244.1.1").ok();
    uninstall(host, "--force").ok();
    assert_eq!(facts::veths(host), Vec::<String>::new());
    assert!(host.run("ip link show dev humanz0").stderr.contains("does not exist"));
}

#[test]
fn a_repeatedly_killed_uninstallation_completes() {
    let alone = alone();
    let host = &alone.host;
    host.shell(FOREIGN).ok();
    let before = everything(host);
    let agent = serve(host, &[]);
    Pod::add(host, "a").delete();
    agent.stop();
    let variables: Vec<String> = STANDALONE.iter().map(|(n, v)| format!("{n}={v}")).collect();
    let variables = variables.join(" ");
    // Each try gets a little further.
    let script = format!(
        "for ms in $(seq 1 30); do
             env {variables} timeout -s KILL 0.0$ms {} uninstall --purge 2>&1 || true
         done",
        crate::support::disk::EXECUTABLE
    );
    host.shell(&script).ok();
    uninstall(host, "--purge").ok();
    assert_eq!(everything(host), before);
}

#[test]
fn a_sysctl_that_somebody_else_set_since_stays() {
    let alone = alone();
    let host = &alone.host;
    host.shell("sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=0").ok();
    serve(host, &[]).stop();
    host.shell("sysctl -qw net.ipv6.conf.all.forwarding=2").ok();
    uninstall(host, "--purge").ok();
    let now = host.shell("sysctl -n net.ipv4.ip_forward net.ipv6.conf.all.forwarding").ok();
    assert_eq!(now, "1\n2\n");
}

#[test]
fn tunnel_and_host_ports_go_with_the_rest() {
    let cluster = Cluster::new(2);
    let host = &cluster.hosts[0];
    host.shell(FOREIGN).ok();
    let before = everything(host);
    let variables = [("IPV6_SUBNET", "fd10::/48"), ("BACKEND", "vxlan")];
    let agents = cluster.start_agents(&variables);
    make_netns(host, "a");
    let mut attachment = Attachment::new("a");
    let port = json!({"hostPort": 8080, "containerPort": 80, "protocol": "tcp"});
    attachment.runtime = json!({"portMappings": [port]});
    let pod = Pod::connect(host, &Network::of(host), attachment).unwrap();
    soon("h1 has a route through its tunnel", || {
        host.run("ip route show proto 104").ok().contains("humanz-vx4")
    });
    agents[0].stop();
    let forced = Agent::run(host, "uninstall --purge --force", &variables);
    assert!(forced.succeeded(), "{forced}");
    for gone in ["veth hz", "vxlan humanz-vx4", "nft table inet humanz-hostports"] {
        assert!(forced.stderr.contains(&format!("removed {gone}")), "{gone} in {forced}");
    }
    host.run("ip netns del a").ok();
    assert_eq!(everything(host), before);
    drop(pod);
}

#[test]
fn a_released_host_is_gone_from_etcd_and_from_the_others() {
    let cluster = Cluster::new(2);
    let agents = cluster.start_agents(&[("IPV6_SUBNET", "fd10::/48")]);
    let [h1, h2] = &cluster.hosts[..] else { unreachable!("two hosts") };
    let routes = |host: &Node| host.run("ip route show proto 104").ok();
    soon("h2 has a route to h1", || !routes(h2).is_empty());
    agents[0].stop();
    let keys = || cluster.etcd.list("/humanz").into_iter().map(|(key, _)| key);
    let of_h1 = || keys().filter(|key| key.ends_with("/h1")).count();
    let claims = || keys().filter(|key| key.contains("/subnets/")).count();
    assert_eq!((of_h1(), claims()), (2, 4));
    // Another machine that was given the name has no right to the keys.
    let machine = h1.read("/etc/machine-id").unwrap();
    h1.write("/etc/machine-id", "ffffffffffffffffffffffffffffffff\n");
    let refused = Agent::run(h1, "uninstall --release", &[]);
    assert!(refused.stderr.contains("is another machine"), "{refused}");
    assert_eq!(of_h1(), 2);
    h1.write("/etc/machine-id", &machine);
    let output = Agent::run(h1, "uninstall --release --dry-run", &[]).ok();
    assert!(output.contains("- etcd key /humanz/hosts/h1\n"), "{output}");
    assert_eq!(of_h1(), 2);
    // Without etcd all but the keys goes, and a second time gives them back.
    cluster.etcd.kill();
    let listed = Agent::run(h1, "uninstall --release --purge --dry-run", &[]).ok();
    assert!(listed.contains("- state /var/lib/humanz/state.json\n"), "{listed}");
    let obstacle = listed.lines().last().filter(|line| line.starts_with("! release the subnet: "));
    assert!(obstacle.is_some_and(|it| it.contains("humanz-agent nodes rm h1")), "{listed}");
    let left = Agent::run(h1, "uninstall --release --purge", &[]);
    assert_eq!(left.status.code(), Some(69), "{left}");
    assert!(left.stderr.contains("humanz-agent nodes rm h1"), "{left}");
    assert!(!h1.run("ip link show humanz0").status.success());
    cluster.etcd.restart();
    Agent::run(h1, "uninstall --release --purge", &[]).ok();
    assert_eq!((of_h1(), claims()), (0, 2));
    soon("h2 has no route any more", || routes(h2).is_empty());
    Agent::run(h1, "uninstall --release --purge", &[]).ok();
}
