//! Hosts with a role of their own in etcd, one of them stolen: every key that it may and may not write.

use std::time::Duration;

use etcd_client::{Compare, CompareOp, DeleteOptions, Error, PutOptions, Txn, TxnOp};

use crate::support::certificates::{CLIENT, Certificates, Wanted};
use crate::support::ping::Pinger;
use crate::support::{Agent, Cluster, Ended, Node, Place, Pod, eventually, facts, local};

const PASSWORDS: &str = "/var/lib/passwords";

/// Roles made by `nodes roles` before authentication is enabled, and three hosts that serve with them.
pub struct Scene {
    pub cluster: Cluster,
    pub agents: Vec<Agent>,
    passwords: Vec<String>,
    /// By which they log in instead.
    certificates: Option<Certificates>,
}

/// How hosts show who they are.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Login {
    Password,
    /// With the host's name as its common name, over TLS.
    Certificate,
}

/// What a host with a certificate needs.
const WITH_CERTIFICATE: &[(&str, &str)] = &[
    ("ETCD_HOST", "https://192.0.2.2:2379"),
    ("ETCD_CACERT", "/etc/humanz/ca.pem"),
    ("ETCD_CERT", "/etc/humanz/own.pem"),
    ("ETCD_KEY", "/etc/humanz/own.key"),
];

impl Scene {
    pub fn new(login: Login, variables: &[(&str, &str)]) -> Scene {
        let mut cluster = Cluster::new(3);
        let certificates = (login == Login::Certificate).then(|| certificates(&mut cluster));
        let passwords = format!("--passwords {PASSWORDS} ");
        let passwords = if login == Login::Password { passwords } else { String::new() };
        let arguments = format!("nodes roles --apply {passwords}h1 h2 h3");
        cluster.hosts[0].shell(&format!("mkdir -p {PASSWORDS}")).ok();
        let by = if login == Login::Password { &[] } else { WITH_CERTIFICATE };
        let with = [by, variables].concat();
        let made = Agent::run(&cluster.hosts[0], &arguments, &with);
        assert!(made.stdout.contains("+ etcdctl user grant-role h3 humanz-h3"), "{made:?}");
        let again = Agent::run(&cluster.hosts[0], &arguments, &with);
        assert!(!again.stdout.contains("etcdctl role"), "the second time nothing: {again:?}");
        cluster.etcd.call(async |client| {
            client.user_add("root", "secret", None).await?;
            client.role_add("root").await?;
            client.user_grant_role("root", "root").await?;
            client.auth_enable().await.map(drop)
        });
        let read = |name: &str| cluster.hosts[0].read(&format!("{PASSWORDS}/{name}"));
        let passwords: Vec<String> =
            ["h1", "h2", "h3"].iter().filter_map(|name| read(name)).collect();
        let mut scene = Scene { cluster, agents: Vec::new(), passwords, certificates };
        for (host, password) in scene.cluster.hosts.iter().zip(&scene.passwords) {
            host.shell("mkdir -p /etc/humanz").ok();
            host.write("/etc/humanz/password", password);
        }
        scene.agents =
            scene.cluster.hosts.iter().map(|host| scene.start(host, variables)).collect();
        for agent in &scene.agents {
            agent.wait_ready();
        }
        scene
    }

    pub fn start(&self, host: &Node, variables: &[(&str, &str)]) -> Agent {
        self.as_host(host, variables, |variables| Agent::start(host, variables))
    }

    /// A subcommand on `host`, with its credentials.
    fn run(&self, host: &Node, line: &str, variables: &[(&str, &str)]) -> Ended {
        self.as_host(host, variables, |variables| Agent::run(host, line, variables))
    }

    fn as_host<T>(
        &self,
        host: &Node,
        variables: &[(&str, &str)],
        task: impl FnOnce(&[(&str, &str)]) -> T,
    ) -> T {
        let password = [("ETCD_USER", host.name()), ("ETCD_PASSWORD_FILE", "/etc/humanz/password")];
        let login = if self.certificates.is_some() { WITH_CERTIFICATE } else { &password };
        task(&[login, variables].concat())
    }

    fn call_as<T: Send>(
        &self,
        (user, password): (&str, &str),
        request: impl AsyncFnOnce(&mut etcd_client::Client) -> Result<T, Error> + Send,
    ) -> Result<T, Error> {
        match &self.certificates {
            Some(all) => self.cluster.etcd.try_call_with(all.login(user), request),
            None => self.cluster.etcd.try_call_as((user, password), request),
        }
    }

    pub fn as_root<T: Send>(
        &self,
        request: impl AsyncFnOnce(&mut etcd_client::Client) -> Result<T, Error> + Send,
    ) -> T {
        self.call_as(("root", "secret"), request).unwrap()
    }

    /// Does something with the credentials of h3.
    pub fn stolen<T: Send>(
        &self,
        request: impl AsyncFnOnce(&mut etcd_client::Client) -> Result<T, Error> + Send,
    ) -> Result<T, Error> {
        let password = self.passwords.last().map_or("", |password| password.trim());
        self.call_as(("h3", password), request)
    }

    fn get(&self, key: &str) -> Option<String> {
        let found = self.as_root(async |client| client.get(key, None).await);
        found.kvs().first().map(|pair| String::from_utf8_lossy(pair.value()).into_owned())
    }

    fn put_as_stolen(&self, key: &str, value: &[u8]) {
        self.stolen(async |client| client.put(key, value, None).await.map(drop)).unwrap();
    }
}

/// An etcd that asks for certificates, and one for each host and the administrator.
fn certificates(cluster: &mut Cluster) -> Certificates {
    let certificates = Certificates::new();
    let etcd = &mut cluster.etcd;
    let says = format!(
        "subjectAltName=IP:127.0.0.1,IP:{}\nextendedKeyUsage=serverAuth,clientAuth\n",
        etcd.node.v4()
    );
    certificates.sign(&Wanted { name: "server", ca: "ca", days: (-1, 30), says: &says });
    for name in ["ca.pem", "server.pem", "server.key"] {
        let text = std::fs::read_to_string(certificates.path(name)).unwrap();
        etcd.node.write(&format!("/etc/{name}"), &text);
    }
    etcd.restart_with_tls();
    etcd.url = WITH_CERTIFICATE[0].1.to_owned();
    etcd.options = certificates.ours();
    for name in ["root", "h1", "h2", "h3"] {
        certificates.sign(&Wanted { name, ca: "ca", days: (-1, 30), says: CLIENT });
    }
    for host in &cluster.hosts {
        give(host, &certificates);
    }
    certificates
}

fn give(host: &Node, certificates: &Certificates) {
    host.shell("mkdir -p /etc/humanz").ok();
    let (key, certificate) = certificates.pair(host.name());
    let files =
        [("own.key", key), ("own.pem", certificate), ("ca.pem", certificates.text("ca.pem"))];
    for (name, from) in files {
        host.write(&format!("/etc/humanz/{name}"), &std::fs::read_to_string(from).unwrap());
    }
}

pub fn denied<T>(what: &str, answer: Result<T, Error>) {
    let error = answer.err().map(|error| error.to_string());
    assert!(error.as_deref().is_some_and(|e| e.contains("permission denied")), "{what}: {error:?}");
}

/// What the role forbids, etcd refuses.
#[test]
fn a_stolen_host_writes_no_key_of_others() {
    writes_no_key_of_others(Login::Password);
}

#[test]
fn a_stolen_certificate_writes_no_key_of_others() {
    writes_no_key_of_others(Login::Certificate);
}

fn writes_no_key_of_others(login: Login) {
    let scene = Scene::new(login, crate::DUAL_STACK);
    let before = scene.as_root(async |client| {
        let all = etcd_client::GetOptions::new().with_prefix();
        client.get("/humanz/", Some(all)).await.map(|mut found| found.take_kvs())
    });
    let keys: Vec<String> = before.iter().map(|pair| pair.key_str().unwrap().to_owned()).collect();
    let own = |key: &&String| key.ends_with("/h3") || scene.get(key).as_deref() == Some("h3");
    let foreign: Vec<&String> = keys.iter().filter(|key| !own(key)).collect();
    for part in ["hosts/h1", "nodes/h1", "alive/h1", "subnets/4/", "subnets/6/", "v1/config"] {
        assert!(foreign.iter().any(|key| key.contains(part)), "{part}: {foreign:?}");
    }
    let new = [
        "/humanz/counter",
        "/humanz/hosts/evil",
        "/humanz/hosts/h33",
        "/humanz/v1/nodes/evil",
        "/humanz/v1/alive/evil",
        "/humanz/v1/wireguard/evil",
        "/humanz/v1/wireguard/h1",
        "/humanz/v1/subnets/4/10.244.99.0-24",
        "/humanz/v1/subnets/4/10.244.0.0-17",
        "/humanz/v1-probes/h1",
        "/humanz/v1-pods/h1",
        "/humanz/v1-pods/h33",
        "/humanz/v1/requests/h1",
        "/humanz/v1/connectivity/h1/h2",
        "/humanz/v1/connectivity/h33/h2",
        "/humanz/v1-connectivity/h1/h3",
        "/humanz/v1-connectivity/h33/h3",
        "/humanz/v1-members/h1/0a",
        "/humanz/v1-blocks/h1/10.32.0.0-26",
        "/humanz/v1-blocks/h33/10.32.0.0-26",
        "/humanz/v1-members/h30/0a",
        "/humanz/v1-policies/NetworkPolicy/shop/db",
        "/humanz/v1-policies/Group/default/web",
        "/humanz/v1-policies/applied",
        "/humanz/v1/networks/x",
        "/x",
    ];
    for key in foreign.into_iter().map(String::as_str).chain(new) {
        denied(key, scene.stolen(async |client| client.put(key, "h3", None).await));
        denied(key, scene.stolen(async |client| client.delete(key, None).await));
        let in_txn = async |client: &mut etcd_client::Client| {
            let always = [Compare::version("/humanz/hosts/h3", CompareOp::Greater, 0)];
            let put = [TxnOp::put(key, "h3", None)];
            client.txn(Txn::new().when(always).and_then(put)).await
        };
        denied(key, scene.stolen(in_txn));
    }
    for prefix in ["/humanz/", "/humanz/hosts/", "/humanz/v1/subnets/", "/humanz/hosts/h3"] {
        let all = DeleteOptions::new().with_prefix();
        denied(prefix, scene.stolen(async |client| client.delete(prefix, Some(all)).await));
    }
    for number in 0..50 {
        let key = format!("/humanz/hosts/mass{number}");
        denied(&key, scene.stolen(async |client| client.put(key.as_str(), "x", None).await));
    }
    // The etcd lease of another host's alive key.
    let leases = scene.as_root(async |client| {
        client.get("/humanz/v1/alive/h1", None).await.map(|mut found| found.take_kvs())
    });
    let lease = leases[0].lease();
    denied("revoke", scene.stolen(async |client| client.lease_revoke(lease).await));
    let attached = PutOptions::new().with_lease(lease);
    let attach = async |client: &mut etcd_client::Client| {
        client.put("/humanz/v1/alive/h3", "x", Some(attached)).await
    };
    denied("attach", scene.stolen(attach));
    denied("role", scene.stolen(async |client| client.role_add("more").await));
    denied("user", scene.stolen(async |client| client.user_change_password("h1", "x").await));
    for agent in &scene.agents {
        assert!(!agent.log().contains("permission denied"), "{}", agent.log());
    }
}

/// What it permits harms h3 alone: the pods of h1 and h2 reach each other all the time.
#[test]
fn the_keys_of_a_stolen_host_harm_its_own_pods_alone() {
    harm_its_own_pods_alone(Login::Password);
}

#[test]
fn the_keys_of_a_stolen_certificate_harm_the_pods_of_its_host_alone() {
    harm_its_own_pods_alone(Login::Certificate);
}

fn harm_its_own_pods_alone(login: Login) {
    let scene = Scene::new(login, crate::TUNNELS);
    let [h1, h2, h3] = &scene.cluster.hosts[..] else { panic!("three hosts") };
    let pods = [Pod::add(h1, "a"), Pod::add(h2, "a"), Pod::add(h3, "a")];
    pods[2].run(&format!("ping -n -c 1 -W 3 {}", pods[0].v4())).ok();
    let all = scene.run(h2, "pods --all", crate::TUNNELS).ok();
    assert!(all.contains("3 pods on 3 of 3 hosts"), "{all}");
    let tested = scene.run(h3, "connectivity test --host h1", crate::TUNNELS).ok();
    assert!(tested.contains("pod -> pod 2 of h1, TCP"), "{tested}");
    let pingers = [Pinger::start(&pods[0], pods[1].v4()), Pinger::start(&pods[1], pods[0].v4())];
    let theirs = |host: &Node, other: &str| {
        let subnet = scene.get(&format!("/humanz/hosts/{other}")).unwrap();
        let mut routes = facts::devices(host);
        routes.retain(|route, _| *route == subnet);
        routes
    };
    let before = (theirs(h1, "h2"), theirs(h2, "h1"));
    assert!(before.0.len() == 1 && before.1.len() == 1, "{before:?}");
    // The host is stolen: its agent no longer repairs anything.
    scene.agents[2].kill();
    let of = |name: &str| scene.get(&format!("/humanz/hosts/{name}")).unwrap();
    let node = |name: &str| scene.get(&format!("/humanz/v1/nodes/{name}")).unwrap();
    let (s1, s3) = (of("h1"), of("h3"));
    let (n1, n3) = (node("h1"), node("h3"));
    let claim = format!("/humanz/v1/subnets/4/{}", s3.replace('/', "-"));
    let mac = |record: &str| record.split(r#""mac":""#).nth(1).unwrap()[..17].to_owned();
    let (host, record) = ("/humanz/hosts/h3", "/humanz/v1/nodes/h3");
    let million = vec![b'x'; 1 << 20];
    let attacks: Vec<(&str, String, &str)> = vec![
        (host, s1.clone(), "host h3: subnet 10.244.1.0/24 is ignored"),
        (host, s1.replace("/24", "/25"), "host h3: subnet 10.244.1.0/25 is ignored"),
        (host, "10.244.0.0/17".into(), "host h3: subnet 10.244.0.0/17 is ignored"),
        (host, "10.244.0.0/16".into(), "host h3: subnet 10.244.0.0/16 is"),
        (host, "0.0.0.0/0".into(), "host h3: subnet 0.0.0.0/0 is"),
        (host, "192.0.2.0/24".into(), "host h3: subnet 192.0.2.0/24 is"),
        (host, "$(reboot)".into(), "/humanz/hosts/h3"),
        (host, s3.clone(), ""),
        (record, n1.clone(), "host h3: subnet fd10"),
        (record, n3.replace(&mac(&n3), &mac(&n1)), "its tunnel is ignored: its MAC"),
        (record, n3.replace("192.0.2.13", "192.0.2.12"), "address 192.0.2.12 is"),
        (record, n3.replace("192.0.2.13", "192.0.2.11"), "address 192.0.2.11 is"),
        (record, n3.replace("192.0.2.13", "10.244.7.7"), "address 10.244.7.7 is ignored"),
        (record, n3.replace("192.0.2.13", "127.0.0.1"), "address 127.0.0.1 is ignored"),
        (record, n3.replace(r#""vni":104"#, r#""vni":7"#), "its VNI is 7"),
        (record, n3.replace(r#""port":10400"#, r#""port":0"#), "port 0"),
        (record, n3.replace(r#""mtu":"#, r#""mtu":0,"x":"#), ""),
        (record, n3.replace(r#""version":""#, "\"version\":\"\\u001b[2J"), record),
        (record, String::from_utf8(million).unwrap(), record),
        (record, n3.clone(), ""),
        (&claim, "h1".into(), "the claim of subnet 10.244.3.0/24 says h1"),
        (&claim, "h2".into(), "the claim of subnet 10.244.3.0/24 says h2"),
        ("/humanz/v1/alive/h3", "garbage".into(), "/humanz/v1/alive/h3"),
        ("/humanz/v1/wireguard/h3", "garbage".into(), "/humanz/v1/wireguard/h3"),
        ("/humanz/v1-probes/h3", "garbage".into(), ""),
        ("/humanz/v1-pods/h3", "garbage".into(), ""),
        ("/humanz/v1/requests/h3", "garbage".into(), ""),
        ("/humanz/v1/connectivity/h3/h1", "garbage".into(), ""),
        ("/humanz/v1/connectivity/h3/h3", "garbage".into(), ""),
        ("/humanz/v1-connectivity/h3/h1", "garbage".into(), ""),
    ];
    for (key, value, named) in &attacks {
        scene.put_as_stolen(key, value.as_bytes());
        let shown: String = value.chars().take(200).collect();
        for agent in scene.agents[..2].iter().filter(|_| !named.is_empty()) {
            let what = format!("{}: {key} = {shown}", agent.host.name());
            eventually(&what, Duration::from_secs(20), || match agent.log().contains(named) {
                true => Ok(()),
                false => Err(format!("no {named:?}")),
            });
        }
        assert_eq!((theirs(h1, "h2"), theirs(h2, "h1")), before, "{key} = {shown}");
    }
    for key in [host, record, &claim, "/humanz/v1/alive/h3"] {
        scene.stolen(async |client| client.delete(key, None).await).unwrap();
    }
    assert_eq!((theirs(h1, "h2"), theirs(h2, "h1")), before, "its keys were deleted");
    pingers.into_iter().for_each(|pinger| pinger.report().assert_nothing_lost());
    for agent in &scene.agents[..2] {
        assert!(agent.process.ended().is_none(), "{}", agent.log());
        let longest = agent.log().lines().map(str::len).max();
        assert!(longest < Some(2_000), "a log line of {longest:?} bytes");
    }
    // An agent that restarts serves the same, and h3's comes back with what its claims reserve.
    scene.agents[0].kill();
    let again = scene.start(h1, crate::TUNNELS);
    again.wait_ready();
    scene.as_root(async |client| client.put(claim.as_str(), "h3", None).await);
    let third = scene.start(h3, crate::TUNNELS);
    third.wait_ready();
    assert_eq!(of("h3"), s3);
    eventually("h3 is reached again", Duration::from_secs(20), || {
        let ping = pods[0].run(&format!("ping -n -c 1 -W 3 {}", pods[2].v4()));
        if ping.stdout.contains(" 0% packet loss") { Ok(()) } else { Err(ping.stdout) }
    });
}

/// No certificate that can be used at a start: the host serves what it served, says why it has no etcd, and
/// connects by itself once the file is right.
#[test]
fn a_start_with_an_unusable_certificate_serves_what_was_served() {
    let mut cluster = Cluster::new(2);
    let certificates = certificates(&mut cluster);
    let agents = cluster.start_agents(WITH_CERTIFICATE);
    let host = &cluster.hosts[0];
    let pods = [Pod::add(host, "a"), Pod::add(&cluster.hosts[1], "b")];
    pods[0].until_ok(&format!("ping -n -c 1 -W 1 {}", pods[1].v4()), Duration::from_secs(20));
    let subnet = facts::addresses(host, "humanz0");
    agents[0].stop();
    let [ca, certificate, key] =
        [1, 2, 3].map(|it| format!("{}={}", WITH_CERTIFICATE[it].0, WITH_CERTIFICATE[it].1));
    for (number, (broken, subject)) in [
        ("echo garbage > /etc/humanz/own.pem", &certificate),
        (": > /etc/humanz/own.pem", &certificate),
        ("rm /etc/humanz/own.pem", &certificate),
        ("rm -r /etc/humanz/own.key; mkdir /etc/humanz/own.key", &key),
        ("echo garbage > /etc/humanz/own.key", &key),
        (": > /etc/humanz/ca.pem", &ca),
    ]
    .into_iter()
    .enumerate()
    {
        host.shell(broken).ok();
        let agent = Agent::start(host, WITH_CERTIFICATE);
        agent.wait_ready();
        assert_eq!(facts::addresses(host, "humanz0"), subnet, "{broken}");
        let says =
            |status: &serde_json::Value| local::problem(status, "etcd-files", subject).is_some();
        local::status_when(host, &format!("{broken}: the problem of the file"), says);
        pods[0].run(&format!("ping -n -c 1 -W 3 {}", pods[1].v4())).ok();
        Pod::add(host, &format!("new{number}")).delete();
        host.shell("rm -rf /etc/humanz/own.key").ok();
        give(host, &certificates);
        local::status_when(host, &format!("{broken}: connected again"), |status| !says(status));
        local::status_when(host, "etcd", |status| status["etcd"]["connected"].is_string());
        agent.stop();
    }
}

/// Policies hold on hosts whose role lets them read these, and nothing else makes one.
#[test]
fn policies_of_an_operator_hold_and_a_stolen_host_changes_none() {
    let scene = Scene::new(Login::Password, &[("POLICY", "on")]);
    let [h1, h2, h3] = &scene.cluster.hosts[..] else { panic!("three hosts") };
    let deny = r#"{"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"namespace": "default", "name": "all"},
        "spec": {"podSelector": {}, "ingress": []}}"#;
    h1.write("/etc/deny.json", deny);
    h1.write("/etc/root", "secret");
    let root = [("ETCD_USER", "root"), ("ETCD_PASSWORD_FILE", "/etc/root"), ("POLICY", "on")];
    let stolen =
        [("ETCD_USER", "h3"), ("ETCD_PASSWORD_FILE", "/etc/humanz/password"), ("POLICY", "on")];
    h3.write("/etc/deny.json", deny);
    let pods = [Pod::add(h1, "a"), Pod::add(h2, "b")];
    let ping = || {
        let line = format!("ping -n -c 1 -W 1 {}", pods[1].v4());
        pods[0].run(&line).stdout.contains(" 0% packet loss")
    };
    eventually("no policies", Duration::from_secs(20), || {
        if ping() { Ok(()) } else { Err("lost".to_owned()) }
    });
    let refused = Agent::run(h3, "policy apply -f /etc/deny.json", &stolen);
    assert!(refused.stderr.contains("permission denied"), "{refused:?}");
    assert!(ping());
    Agent::run(h1, "policy apply -f /etc/deny.json", &root).ok();
    eventually("the policy", Duration::from_secs(20), || {
        if ping() { Err("passes".to_owned()) } else { Ok(()) }
    });
    let refused = Agent::run(h3, "policy rm NetworkPolicy default/all", &stolen);
    assert!(refused.stderr.contains("permission denied"), "{refused:?}");
    let exported = Agent::run(h3, "policy export", &stolen).ok();
    assert!(exported.contains(r#""podSelector""#), "{exported}");
    assert!(!ping());
    Agent::run(h1, "policy rm NetworkPolicy default/all", &root).ok();
    eventually("none again", Duration::from_secs(20), || {
        if ping() { Ok(()) } else { Err("lost".to_owned()) }
    });
}
