//! Passwords and keys appear only in their files.

use std::fs;

use nix::sys::signal::Signal;

use crate::alone;
use crate::support::certificates::{CLIENT, Certificates, SERVER, Wanted, replace};
use crate::support::node::command;
use crate::support::{Agent, Ended, Node, Place, Process, eventually};

const PASSWORD: &str = "marked-password-of-the-agent";
const WRONG: &str = "marked-password-that-is-wrong";
const IN_URL: &str = "marked-password-in-a-url";

/// Where the files are on the host.
const FOLDER: &str = "/etc/humanz";

/// A host with an etcd that requires a certificate and a password, and the agent's settings for it.
struct Scene {
    host: Node,
    certificates: Certificates,
    etcd: Process,
}

const SETTINGS: &[(&str, &str)] = &[
    ("ETCD_HOST", "https://127.0.0.1:2379"),
    ("ETCD_CACERT", "/etc/humanz/ca.pem"),
    ("ETCD_CERT", "/etc/humanz/client.pem"),
    ("ETCD_KEY", "/etc/humanz/client.key"),
    ("ETCD_USER", "agent"),
    ("ETCD_PASSWORD_FILE", "/etc/humanz/password"),
    ("METRICS_ADDR", "127.0.0.1:9104"),
    ("RUST_LOG", "trace"),
];

impl Scene {
    fn new(host: &Node) -> Scene {
        let certificates = Certificates::new();
        for (name, says) in [("server", SERVER), ("client", CLIENT), ("second", CLIENT)] {
            certificates.sign(&Wanted { name, ca: "ca", days: (-1, 30), says });
        }
        host.run(&format!("mkdir -p {FOLDER}")).ok();
        let names = ["ca.pem", "server.pem", "server.key", "client.pem", "client.key"];
        for name in names {
            host.write(
                &format!("{FOLDER}/{name}"),
                &fs::read_to_string(certificates.path(name)).unwrap(),
            );
        }
        let mut etcd = command(
            "etcd --name one --data-dir /var/lib/etcd --listen-peer-urls http://127.0.0.1:2380 \
             --listen-client-urls https://127.0.0.1:2379 --advertise-client-urls https://127.0.0.1:2379 \
             --cert-file /etc/humanz/server.pem --key-file /etc/humanz/server.key --client-cert-auth \
             --trusted-ca-file /etc/humanz/ca.pem --logger zap --log-level error",
        );
        let etcd = host.spawn(&mut etcd);
        let scene = Scene { host: host.clone(), certificates, etcd };
        eventually("etcd answers", std::time::Duration::from_secs(30), || {
            let said = scene.etcdctl("endpoint health");
            if said.succeeded() { Ok(()) } else { Err(format!("{said}\n{}", scene.etcd.log())) }
        });
        for line in [
            "user add root:root",
            "role add root",
            "user grant-role root root",
            &format!("user add agent:{PASSWORD}"),
            "role add host",
            "role grant-permission host --prefix=true readwrite /humanz/",
            "user grant-role agent host",
            "auth enable",
        ] {
            scene.etcdctl(line).ok();
        }
        scene
    }

    fn etcdctl(&self, line: &str) -> Ended {
        let files = "--cacert /etc/humanz/ca.pem --cert /etc/humanz/client.pem --key /etc/humanz/client.key";
        let line = format!("etcdctl --endpoints https://127.0.0.1:2379 {files} {line}");
        self.host.run_command(command(&line).env("ETCDCTL_API", "3"), "")
    }

    /// The password in its file, as a rename puts it there.
    fn password(&self, text: &str) {
        replace(&self.host.place(&format!("{FOLDER}/password")), text.as_bytes());
    }

    /// The secrets: passwords, and lines of keys.
    fn secrets(&self) -> Vec<String> {
        let mut secrets = [PASSWORD, WRONG, IN_URL].map(String::from).to_vec();
        for name in ["client.key", "second.key"] {
            let text = fs::read_to_string(self.certificates.path(name)).unwrap();
            secrets.extend(text.lines().filter(|line| !line.starts_with("--")).map(String::from));
        }
        secrets
    }
}

/// The output of a program.
fn answer(ended: &Ended) -> String {
    format!("{}{}", ended.stdout, ended.stderr)
}

/// The secrets in `text`.
fn leaks<'a>(secrets: &'a [String], text: &str) -> Vec<&'a str> {
    secrets.iter().map(String::as_str).filter(|secret| text.contains(secret)).collect()
}

/// Everything below these folders, and every command line; the environment is the operator's.
const KEPT: &str = "grep -rha '' /var/lib/humanz /run/humanz /etc/cni /opt/cni/bin/*.json /var/log \
                    2>/dev/null; cat /proc/[0-9]*/cmdline | tr '\\0' ' '; nft list ruleset; ip -d link";

#[test]
fn no_secret_is_anywhere_but_in_its_file() {
    let alone = alone();
    let host = &alone.host;
    let scene = Scene::new(host);
    let secrets = scene.secrets();
    let mut said = Vec::new();

    // A wrong password, then the right one; a key that is another certificate's; a renewed pair.
    scene.password(WRONG);
    let agent = Agent::start(host, SETTINGS);
    agent.wait_log(&["invalid user ID or password", "ETCD_USER agent", "/etc/humanz/password"]);
    scene.password(PASSWORD);
    agent.wait_ready();
    let take = |name: &str, kind: &str| {
        let from = fs::read(scene.certificates.path(&format!("{name}.{kind}"))).unwrap();
        replace(&host.place(&format!("{FOLDER}/client.{kind}")), &from);
    };
    take("second", "key");
    agent.wait_log(&["client.key: not the key of"]);
    take("second", "pem");
    agent.wait_log(&["reconnected with changed files"]);
    scene.password(WRONG);
    agent.wait_log(&["stays in use", "invalid user ID or password"]);

    // Queries while it runs, and refused ones.
    let of_agent = |arguments: &str, more: &[(&str, &str)]| {
        answer(&Agent::run(host, arguments, &[SETTINGS, more].concat()))
    };
    let url = format!("https://agent:{IN_URL}@127.0.0.1:2379");
    let typed = [
        "check-config",
        "config",
        "config --json",
        "--dry-run",
        "status",
        "status --json",
        "nodes ls",
        "nodes ls --json",
        "ipam ls --json",
        "routes --json",
        "doctor",
        "doctor --json",
        "probe --json",
        "explain 10.244.1.7 192.0.2.9 --json",
        "nodes show somebody",
        "ipam show somebody",
        "uninstall --release --dry-run",
        "--help",
    ];
    for line in typed {
        said.push((line.to_owned(), of_agent(line, &[])));
        said.push((
            format!("{line} with a password in ETCD_HOST"),
            of_agent(line, &[("ETCD_HOST", &url)]),
        ));
    }
    let refused = of_agent("check-config", &[("ETCD_HOST", &url)]);
    assert!(refused.contains("ETCD_HOST=https://***@127.0.0.1:2379: must not hold"), "{refused}");
    // The bundle on disk: an archive, or a text.
    let bundle = of_agent("doctor --bundle /tmp/bundle", &[]);
    let opened = host.shell("cat /tmp/bundle; tar -xOf /tmp/bundle || tar -xzOf /tmp/bundle");
    assert!(opened.stdout.len() > 1000, "{bundle}{opened}");
    said.push(("the bundle".to_owned(), bundle + &answer(&opened)));
    let watch = "timeout 2 /opt/humanz/humanz-agent watch --json";
    said.push((watch.to_owned(), answer(&host.run(watch))));
    for path in ["v1/status", "v1/changes?since=0", "v1/matrix", "metrics", "healthz", "readyz"] {
        let curl = format!("curl -s -m 2 --unix-socket /run/humanz/agent.sock http://agent/{path}");
        said.push((curl.clone(), answer(&host.run(&curl))));
    }
    said.push(("what is kept".to_owned(), answer(&host.shell(KEPT))));
    host.write(&format!("{FOLDER}/agent.env"), &format!("ETCD_HOST={url}\n"));
    agent.process.signal(Signal::SIGHUP);
    agent.stop();
    said.push(("the agent's log".to_owned(), agent.log()));

    let files = host.shell(&format!("cat {FOLDER}/*")).ok();
    assert!(leaks(&secrets, &files).len() > 3, "the search finds nothing: {files}");
    assert!(agent.log().len() > 1000, "a log to be searched: {}", agent.log());
    for (what, text) in &said {
        assert_eq!(leaks(&secrets, text), Vec::<&str>::new(), "{what}: {text}");
    }
}
