//! `doctor` reports each fault that a test creates, and nothing on a healthy host.

use serde_json::{Value, json};

use crate::support::certificates::{CLIENT, Certificates, Wanted};
use crate::support::cluster::{Alone, Cluster};
use crate::support::disk::EXECUTABLE;
use crate::support::node::command;
use crate::support::{Agent, Node, Place, Pod, eventually, facts, local, soon};
use crate::{object, run};

const STANDALONE: &[(&str, &str)] =
    &[("SUBNET_SOURCE", "static"), ("ETCD_HOST", ""), ("IPV6_SUBNET", "fd10::/48")];

/// The names of the findings above the severity "note", and the whole output.
fn found(host: &Node, options: &str, variables: &[(&str, &str)]) -> (Vec<String>, Value) {
    let ended = run(host, &format!("doctor --json {options}"), variables);
    let value = object(&ended);
    let findings = value["findings"].as_array().unwrap();
    let bad = findings.iter().filter(|finding| finding["severity"] != "note");
    let names: Vec<String> = bad.map(|f| f["name"].as_str().unwrap().to_owned()).collect();
    assert_eq!(ended.succeeded(), names.is_empty(), "the exit code: {ended}");
    for finding in findings {
        // As earlier releases have it.
        for key in ["name", "seen", "cure", "how"] {
            assert!(finding[key].as_str().is_some_and(|text| !text.is_empty()), "{finding:#}");
        }
    }
    for problem in value["problems"].as_array().unwrap() {
        for key in ["kind", "severity", "subject", "what", "fix"] {
            assert!(problem[key].as_str().is_some_and(|text| !text.is_empty()), "{problem:#}");
        }
    }
    (names, value)
}

/// Creates a fault with `script`, expects the finding `wanted`, removes the fault with `repair`.
fn check(host: &Node, options: &str, (script, wanted, repair): (&str, &str, &str)) {
    host.shell(script).ok();
    let (names, value) = found(host, options, STANDALONE);
    assert!(names.iter().any(|name| name == wanted), "{script}: no {wanted} in {value:#}");
    host.shell(repair).ok();
}

#[test]
fn a_healthy_host_has_no_findings() {
    let alone = Alone::new();
    let agent = Agent::start(&alone.host, STANDALONE);
    agent.wait_ready();
    let _pod = Pod::add(&alone.host, "a");
    eventually("nothing is found", std::time::Duration::from_secs(20), || {
        let (names, value) = found(&alone.host, "", STANDALONE);
        if names.is_empty() { Ok(()) } else { Err(format!("{value:#}")) }
    });
    let said = run(&alone.host, "doctor", STANDALONE).ok();
    assert!(!said.contains("wrong "), "{said}");
}

#[test]
fn a_network_without_a_free_address_is_reported() {
    let alone = Alone::new();
    let small = [STANDALONE[0], STANDALONE[1], ("SUBNET", "10.244.1.0/29")];
    let agent = Agent::start(&alone.host, &small);
    agent.wait_ready();
    let _pods: Vec<Pod> =
        (0..5).map(|number| Pod::add(&alone.host, &format!("p{number}"))).collect();
    let (names, value) = found(&alone.host, "", &small);
    assert_eq!(names, ["pool-full"], "{value:#}");
    let found = &value["problems"][0];
    assert_eq!(
        (&found["kind"], &found["subject"]),
        (&"pool-full".into(), &"subnet 10.244.1.0/29".into())
    );
}

#[test]
fn each_fault_of_a_host_is_found() {
    let alone = Alone::new();
    let host = &alone.host;
    let agent = Agent::start(host, STANDALONE);
    agent.wait_ready();
    let foreign = "/etc/cni/net.d/00-other.conf";
    check(
        host,
        "",
        (&format!("echo '{{}}' > {foreign}"), "cni-configuration-order", &format!("rm {foreign}")),
    );
    let route =
        ("ip route add 10.244.77.0/24 dev eth0", "route-conflict", "ip route del 10.244.77.0/24");
    check(host, "", route);
    let containerd = "mkdir /etc/containerd; printf 'version = 2\\n[plugins.\"io.containerd.grpc.v1.cri\".cni]\\nbin_dir = \"/opt/other\"\\n' >/etc/containerd/config.toml";
    let there = "mkdir /opt/other; ln -s /opt/cni/bin/humanz /opt/other";
    check(host, "", (containerd, "cni-plugin", there));
    let crio = "mkdir /etc/crio; printf '[crio.network]\\nnetwork_dir = \"/etc/n\"\\n' >/etc/crio/crio.conf";
    check(host, "", (crio, "cni-configuration", "rm -r /etc/crio"));
    for (folder, file) in [("/etc/containerd", "config.toml"), ("/etc/crio", "crio.conf")] {
        let broken = format!(
            "mkdir -p {folder}; cd {folder}; cp {file} /run/kept || true; echo 'x = [' >{file}"
        );
        let repair = format!("rm {folder}/{file}; mv /run/kept {folder}/{file} || true");
        check(host, "", (&broken, "cni-configuration", &repair));
    }
    let link = ("ln -s /nowhere /opt/cni/bin/old", "stale-link", "rm /opt/cni/bin/old");
    check(host, "", link);
    let networkd = "mkdir -p /run/systemd/netif; touch /run/systemd/netif/state";
    check(host, "", (networkd, "networkd", "rm -r /run/systemd/netif"));
    let manager = "mkdir -p /run/NetworkManager/devices";
    check(host, "", (manager, "networkmanager", "rm -r /run/NetworkManager"));
    let small = "mkdir -p /opt/small; mount -t tmpfs -o size=64k none /opt/small";
    let log = "--plugin-log-file /opt/small/log";
    check(host, log, (small, "disk-full", "mount -o remount,bind,ro /opt/small"));
    check(host, log, ("true", "disk-read-only", "umount /opt/small"));

    let pod = Pod::add(host, "gone");
    host.run("ip link set eth0-cable down").ok();
    let (_, value) = found(host, "", STANDALONE);
    let is_down = |problem: &&Value| problem["kind"] == "interface-down";
    let problem = value["problems"].as_array().unwrap().iter().find(is_down).unwrap();
    let explained = run(host, "explain gone 192.0.2.9", STANDALONE).stdout;
    for said in [problem.to_string(), explained] {
        assert!(said.contains("has no carrier") && !said.contains("link set eth0 up"), "{said}");
    }
    host.run("ip link set eth0-cable up").ok();
    host.run("ip netns del gone").ok();
    soon("the link went with the namespace", || {
        !host.run("ip link show type veth").stdout.contains("hz")
    });
    check(host, "", ("true", "leaked-addresses", "true"));
    drop(pod);
    let _stray = Pod::add(host, "stray");
    check(host, "", ("rm -r /run/humanz/ipam/humanz", "stray-links", "true"));

    agent.stop();
    check(host, "", ("true", "agent-down", "true"));
    let said = run(host, "doctor", STANDALONE).stdout;
    assert_eq!(said.matches("no agent serves this host").count(), 1, "{said}");
    check(host, "", ("ip link del humanz0", "change-pending", "true"));
    check(host, "", ("rm /opt/cni/bin/loopback", "loopback", "true"));
    let ours = "/etc/cni/net.d/05-humanz.conflist";
    let other = format!("sed -i 's/\"type\": *\"humanz\"/\"type\":\"nothere\"/' {ours}");
    check(host, "", (&other, "cni-plugin", "true"));
    let other = format!("sed -i 's/\"cniVersion\": *\"1.0.0\"/\"cniVersion\":\"9.9.9\"/' {ours}");
    check(host, "", (&other, "cni-version", "true"));
    check(host, "", (&format!("rm {ours}"), "cni-configuration", "true"));
}

/// It was to be started, and its log to say why it ended, while it ran.
#[test]
fn an_agent_that_waits_for_a_subnet_is_asked_why_there_is_no_configuration() {
    let alone = Alone::new();
    let host = &alone.host;
    let away: &[(&str, &str)] = &[("ETCD_HOST", "192.0.2.99")];
    let agent = Agent::start(host, away);
    soon("the agent answers", || local::connect(host).is_ok());
    let found = object(&run(host, "doctor --json", away));
    let missing = local::problems(&found, "cni-configuration").next().unwrap();
    let fix = missing["fix"].as_str().unwrap();
    assert!(fix.starts_with("humanz-agent status # the agent runs"), "{found:#}");
    agent.stop();
}

/// Its processes go on in a namespace that has lost its name.
#[test]
fn a_running_pod_whose_namespace_has_no_name_any_more_leaks_no_address() {
    let alone = Alone::new();
    let host = &alone.host;
    let agent = Agent::start(host, STANDALONE);
    agent.wait_ready();
    let pod = Pod::add(host, "nameless");
    let ping = format!("ping -n -c 1 -W 3 {}", pod.v4());
    let sleeps = host.spawn(&mut command("ip netns exec nameless sleep 1000"));
    let name = "/run/netns/nameless";
    host.shell(&format!("umount -l {name} && rm {name}")).ok();
    host.run(&ping).ok();
    assert_eq!(found(host, "", STANDALONE).0, Vec::<String>::new());
    assert!(run(host, "ipam gc", STANDALONE).ok().starts_with("every address is"));
    sleeps.kill();
    soon("the link went with the namespace", || facts::veths(host).is_empty());
    check(host, "", ("true", "leaked-addresses", "true"));
}

/// The command that `doctor` gives frees the address, also where the file is left on which the namespace was mounted.
#[test]
fn a_file_that_is_no_namespace_any_more_keeps_no_address() {
    let alone = Alone::new();
    let host = &alone.host;
    let agent = Agent::start(host, STANDALONE);
    agent.wait_ready();
    let _pods = ["gone", "stays"].map(|name| Pod::add(host, name));
    host.run("umount -l /run/netns/gone").ok();
    soon("the link went with the namespace", || facts::veths(host).len() == 1);
    check(host, "", ("true", "leaked-addresses", "true"));
    let freed = run(host, "ipam gc --yes", STANDALONE).ok();
    assert!(freed.contains("of default/gone") && freed.ends_with("1 freed\n"), "{freed}");
    assert_eq!(found(host, "", STANDALONE).0, Vec::<String>::new());
}

/// A root folder as the pod of the DaemonSet has it: the node's configuration of containerd is in /host/etc alone.
const POD: &str = "mount -t tmpfs none /run/pod
    for it in /*; do
        if [ -L $it ]; then cp -P $it /run/pod; elif [ -d $it ]; then
            mkdir /run/pod$it; mount --rbind $it /run/pod$it; fi
    done
    mkdir -p /run/pod/host/etc/containerd/conf.d";

#[test]
fn in_a_pod_the_configuration_of_the_runtime_is_the_nodes() {
    let alone = Alone::new();
    let host = &alone.host;
    let agent = Agent::start(host, STANDALONE);
    agent.wait_ready();
    host.shell(&format!("set -e; mkdir /run/pod; {POD}")).ok();
    let write = |name: &str, text: &str| {
        host.inside(|| std::fs::write(format!("/run/pod/host/etc/containerd/{name}"), text))
            .unwrap();
    };
    write("config.toml", "version = 2\nimports = [\"/etc/containerd/conf.d/*.toml\"]\n");
    let doctor = || {
        let mut doctor = command(&format!("chroot /run/pod {EXECUTABLE} doctor --json"));
        doctor.envs(STANDALONE.iter().copied());
        object(&host.run_command(&mut doctor, ""))["findings"].to_string()
    };
    let said = doctor();
    assert!(!said.contains("cni-plugin"), "{said}");
    write(
        "conf.d/cni.toml",
        "[plugins.\"io.containerd.grpc.v1.cri\".cni]\nbin_dir = \"/opt/other\"\n",
    );
    let said = doctor();
    assert!(said.contains("cni-plugin") && said.contains("/etc/containerd/config.toml"), "{said}");
    assert!(!said.contains("/host/etc"), "{said}");
}

/// One cause is one problem, with its time and its fix; the system's words for an error are no advice.
#[test]
fn a_plain_file_in_place_of_the_ipam_directory_is_one_problem() {
    for policies in ["off", "on"] {
        let alone = Alone::new();
        let host = &alone.host;
        host.shell("mkdir /etc/humanz && echo '[]' > /etc/humanz/policy.yaml").ok();
        let more = [("POLICY", policies), ("POLICY_FILE", "/etc/humanz/policy.yaml")];
        let settings = [STANDALONE, &more, &[("RESYNC_INTERVAL", "1s")]].concat();
        let agent = Agent::start(host, &settings);
        agent.wait_ready();
        host.shell("rm -rf /run/humanz/ipam; touch /run/humanz/ipam").ok();
        local::status_when(host, "a problem", |status| local::has_problem(status, "ipam-store"));
        // As the agent has it, and those that look themselves.
        let doctor = found(host, "", &settings).1;
        let status = object(&run(host, "status --json", &settings));
        for found in [&doctor, &status, &local::status(host)] {
            let problems = found["problems"].as_array().unwrap().iter();
            let of_store = |problem: &&Value| problem.to_string().contains("/run/humanz/ipam");
            let [problem] = problems.filter(of_store).collect::<Vec<_>>()[..] else {
                panic!("one cause: {found:#}")
            };
            assert_eq!(problem["kind"], "ipam-store", "{found:#}");
            assert!(problem["since"].is_string(), "{found:#}");
            assert!(problem["fix"].as_str().unwrap().contains("a directory that"), "{found:#}");
        }
        host.run("rm /run/humanz/ipam").ok();
        local::status_when(host, "no problem", |now| !local::has_problem(now, "ipam-store"));
        agent.stop();
    }
}

#[test]
fn etcd_and_its_keys_are_checked() {
    let cluster = Cluster::new(1);
    let host = &cluster.hosts[0];
    let _agents = cluster.start_agents(&[]);
    let names = |options: &str| found(host, options, &[]);
    assert_eq!(names("").0, Vec::<String>::new(), "{:#}", names("").1);

    cluster.etcd.put("/humanz/hosts/h7", "rubbish");
    assert!(names("").0.contains(&"etcd-record".to_owned()), "{:#}", names("").1);
    cluster.etcd.delete("/humanz/hosts/h7");
    let own = cluster.etcd.get("/humanz/v1/nodes/h1").unwrap();
    cluster.etcd.put("/humanz/hosts/copy", "10.244.9.0/24");
    cluster.etcd.put("/humanz/v1/nodes/copy", own);
    assert!(names("").0.contains(&"machine-id".to_owned()), "{:#}", names("").1);
    cluster.etcd.delete("/humanz/hosts/copy");
    cluster.etcd.delete("/humanz/v1/nodes/copy");

    host.write("/etc/password", "secret-of-etcd\n");
    host.shell("chmod 0644 /etc/password").ok();
    let user = "--etcd-user u --etcd-password-file /etc/password";
    assert!(names(user).0.contains(&"secret-readable".to_owned()), "{:#}", names(user).1);

    let certificates = Certificates::new();
    let put = |days: (i64, i64)| {
        certificates.sign(&Wanted { name: "c", ca: "ca", days, says: CLIENT });
        host.write("/etc/c.pem", &std::fs::read_to_string(certificates.path("c.pem")).unwrap());
    };
    let tls = "--etcd-host https://192.0.2.2:2379 --etcd-cacert /etc/c.pem --etcd-timeout 1s";
    // The rule of the agent: two weeks, or the last fifth of its time.
    for (days, severity) in [
        ((-1, 25), None),
        ((-20, 3), Some("warning")),
        ((-80, 13), Some("warning")),
        ((-9, -1), Some("wrong")),
    ] {
        put(days);
        let (names, value) = names(tls);
        assert!(names.contains(&"etcd".to_owned()), "{value:#}");
        let findings = value["findings"].as_array().unwrap();
        let name = match severity {
            Some("warning") => "certificate-expiring",
            _ => "certificate",
        };
        let finding = findings.iter().find(|finding| finding["name"] == name);
        assert_eq!(
            finding.and_then(|finding| finding["severity"].as_str()),
            severity,
            "{days:?}: {value:#}"
        );
        if let Some(finding) = finding {
            let seen = finding["seen"].as_str().unwrap();
            assert!(seen.starts_with("ETCD_CACERT=/etc/c.pem: expire"), "{seen}");
        }
    }
    host.write("/etc/c.pem", "rubbish");
    assert!(
        names(tls).1.to_string().contains("/etc/c.pem: contains no PEM certificate"),
        "{:#}",
        names(tls).1
    );

    soon("the state is saved", || host.read("/var/lib/humanz/state.json").is_some());
    // The agent may save it once more.
    soon("the clock is reported", || {
        host.shell("touch -d '+2 days' /var/lib/humanz/state.json").ok();
        names("").0.contains(&"clock".to_owned())
    });
}

/// The present private key of WireGuard, and the next one.
const PRIVATE_KEYS: [&str; 2] = [
    "qKioqKioqKioqKioqKioqKioqKioqKioqKioqKioqE4=",
    "sLCwsLCwsLCwsLCwsLCwsLCwsLCwsLCwsLCwsLCwsHA=",
];

/// The file of private keys, and a log that somebody wrote them into.
fn give_keys(host: &Node) {
    let machine_id = host.read("/etc/machine-id").unwrap();
    let [first, second] = PRIVATE_KEYS;
    let keys = json!({
        "schema": 1, "machineId": machine_id.trim(), "privateKey": first, "nextKey": second
    });
    host.write("/var/lib/humanz/wireguard.key", &keys.to_string());
    host.shell(&format!("echo from {first} to {second} >> /var/log/humanz.log")).ok();
}

#[test]
fn a_bundle_is_complete_and_has_no_secret() {
    let cluster = Cluster::new(1);
    let host = &cluster.hosts[0];
    let agents = cluster.start_agents(&[]);
    let _pod = Pod::add(host, "a");
    give_keys(host);
    host.shell(
        "echo hunter2-of-etcd > /etc/password
         echo AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyA= > /etc/psk
         chmod 0600 /etc/password /etc/psk
         echo somebody put $(cat /etc/psk) here >> /var/log/humanz.log
         printf '[req]\ndistinguished_name=d\n[d]\n' > /etc/o.cnf
         openssl req -config /etc/o.cnf -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=t \
           -days 99 -keyout /etc/k.pem -out /etc/c.pem 2>/dev/null
         sed -n 2p /etc/k.pem >> /var/log/humanz.log
         echo 'tried https://root:toor-in-url@192.0.2.9/x with hunter2-of-etcd' >> /var/log/humanz.log
         echo 'Authorization: Bearer bearer-of-kube' >> /var/log/humanz.log
         echo '{\"name\":\"x\",\"etcd_password\":\"word-in-conf\",\"token\" : \"token-in-conf\"}' \
           > /etc/cni/net.d/99-other.conf
         cp /etc/k.pem /etc/cni/net.d/99-key",
    )
    .ok();
    let key = host.read("/etc/k.pem").unwrap();
    let secrets: Vec<&str> = key.lines().filter(|line| !line.starts_with('-')).collect();
    let options = "--etcd-user u --etcd-password-file /etc/password --etcd-key /etc/k.pem \
                   --etcd-cert /etc/c.pem --etcd-cacert /etc/c.pem \
                   --etcd-host https://192.0.2.2:2379 --etcd-timeout 1s";
    let encrypts = [("ENCRYPTION", "wireguard"), ("ENCRYPTION_PSK_FILE", "/etc/psk")];
    let ended = run(host, &format!("doctor --bundle /opt/b.tar {options}"), &encrypts);
    assert!(ended.stdout.contains("written to /opt/b.tar"), "{ended}");
    let nowhere = run(host, &format!("doctor --bundle /opt/typo/b.tar {options}"), &[]);
    assert_eq!(nowhere.status.code(), Some(1), "{nowhere}");
    assert!(nowhere.stderr.contains("there is no directory /opt/typo"), "{nowhere}");
    host.run("test ! -e /opt/typo").ok();
    let mode = host.run("stat -c %a /opt/b.tar").ok();
    assert_eq!(mode.trim(), "600");
    let all = host.run("tar -xOf /opt/b.tar").ok();
    for secret in
        ["AQIDBAUG", "hunter2", "toor-in-url", "bearer-of-kube", "word-in-conf", "token-in-conf"]
    {
        assert!(!all.contains(secret), "{secret} is in it");
    }
    for key in PRIVATE_KEYS {
        assert!(!all.contains(key), "{key} is in it");
    }
    assert!(all.contains("from [removed] to [removed]"));
    for line in secrets {
        assert!(!all.contains(line), "a line of the key is in it");
    }
    assert!(!all.contains("PRIVATE KEY"));
    assert!(all.contains("[removed]") && all.contains("192.0.2.9/x"));
    let names = host.run("tar -tf /opt/b.tar").ok();
    for name in [
        "humanz/doctor.json",
        "humanz/settings.env",
        "humanz/status.json",
        "humanz/kernel.txt",
        "humanz/files/var/lib/humanz/state.json",
        "humanz/files/etc/cni/net.d/05-humanz.conflist",
        "humanz/files/var/log/humanz.log",
        "humanz/files/proc/version",
    ] {
        assert!(names.lines().any(|found| found == name), "{name} is not in {names}");
    }
    assert!(
        host.run("tar -xOf /opt/b.tar humanz/settings.env")
            .ok()
            .contains("ETCD_PASSWORD_FILE=/etc/password\n")
    );
    let of_secret = host.run("tar -xOf /opt/b.tar humanz/settings.env").ok();
    assert!(of_secret.contains("ENCRYPTION_PSK_FILE=/etc/psk\n"), "{of_secret}");
    agents.iter().for_each(Agent::stop);
}
