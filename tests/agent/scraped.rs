//! A Prometheus on another machine: the guide's proxy, a real Prometheus, and strangers on the wire.

use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::support::cluster::Cluster;
use crate::support::guide::{Guide, Step};
use crate::support::node::command;
use crate::support::process::Process;
use crate::support::wait::SOON;
use crate::support::{Node, Place, eventually};

const CONFIGURATION: &str = "/etc/prometheus/prometheus.yml";
const TOKEN: &str = "/etc/prometheus/humanz/token";

/// What apt, the package of humanz and systemd do with the commands of the guide.
fn on_a_host(step: &Step, host: &Node, proxy: &mut Option<Process>) -> bool {
    match step.command.as_str() {
        "apt install haproxy" => {
            let (from, to) = (Path::new("/etc/haproxy"), host.place("/etc"));
            assert!(from.exists(), "HAProxy is missing: packaging/deps test");
            let copied = Command::new("cp").arg("-r").args([from, &to]).status().unwrap();
            assert!(copied.success());
            host.run("mkdir -p /etc/default /etc/ssl /run/haproxy").ok();
            host.write(
                "/etc/ssl/openssl.cnf",
                &std::fs::read_to_string("/etc/ssl/openssl.cnf").unwrap(),
            );
        }
        "cp /usr/share/humanz/haproxy.cfg /etc/haproxy/humanz.cfg" => {
            let ours = include_str!("../../packaging/monitoring/haproxy.cfg");
            host.write("/etc/haproxy/humanz.cfg", ours);
        }
        "systemctl restart haproxy" => {
            let more = host.read("/etc/default/haproxy").unwrap();
            let more = more.trim().strip_prefix("EXTRAOPTS=\"").unwrap().trim_end_matches('"');
            // Both files, as the unit has them; the first one needs users that a namespace may lack.
            host.run(&format!("haproxy -c -f /etc/haproxy/haproxy.cfg {more}")).ok();
            *proxy = Some(host.spawn(&mut command(&format!("haproxy -db {more}"))));
        }
        _ => return false,
    }
    true
}

/// `https://h1:9105PATH`, asked on `from` with these further options: status code, and the body.
fn ask(from: &Node, path: &str, more: &[&str]) -> (String, String) {
    let line =
        "curl -sS --noproxy * --max-time 10 --path-as-is -w \\n%{http_code} --cacert /root/tls.crt";
    let mut curl = command(line);
    curl.args(["--resolve", "humanz-metrics:9105:192.0.2.11"]).args(more);
    let ended = from.run_command(curl.arg(format!("https://humanz-metrics:9105{path}")), "");
    let (body, code) = ended.stdout.rsplit_once('\n').unwrap_or_default();
    (code.to_owned(), body.to_owned())
}

/// The first result of a query.
fn query(on: &Node, expression: &str) -> Option<Value> {
    let url = format!("http://127.0.0.1:9090/api/v1/query?query={expression}");
    let found = on.run(&format!("curl -sS --noproxy * {url}")).stdout;
    let found: Value = serde_json::from_str(&found).ok()?;
    found["data"]["result"].get(0).cloned()
}

fn wait_up(on: &Node, wanted: &str) {
    eventually(&format!("up is {wanted}"), 2 * SOON, || {
        let up = query(on, "up");
        let is_it = up.as_ref().is_some_and(|up| up["value"][1] == wanted);
        if is_it { Ok(()) } else { Err(format!("{up:?}")) }
    });
}

#[test]
fn a_prometheus_elsewhere_scrapes_as_the_guide_shows_and_a_stranger_gets_nothing() {
    let cluster = Cluster::new(2);
    let [h1, h2] = &cluster.hosts[..] else { panic!("two hosts") };
    let stranger = &cluster.etcd.node;
    let agents = cluster.start_agents(&[("METRICS_ADDR", "127.0.0.1:9104")]);
    let mut guide = Guide::read("operations.md");
    let mut proxy = None;
    guide.follow("Scrapes from another machine", h1, |step| on_a_host(step, h1, &mut proxy));
    let token = h1.read("/etc/humanz-metrics/token").unwrap();
    let certificate = h1.read("/etc/humanz-metrics/tls.crt").unwrap();
    h2.run("mkdir -p /etc/prometheus/humanz").ok();
    h2.write(TOKEN, &token);
    h2.write("/etc/prometheus/humanz/tls.crt", &certificate);
    guide.follow("The Prometheus of that machine", h2, |_| false);
    // The guide's own interval is that of Prometheus, a minute.
    let shown = h2.read(CONFIGURATION).unwrap();
    h2.write(
        CONFIGURATION,
        &format!("global: {{scrape_interval: 1s, scrape_timeout: 1s}}\n{shown}"),
    );
    let _prometheus = h2.spawn(&mut command(&format!(
        "prometheus --config.file={CONFIGURATION} --storage.tsdb.path=/tmp/prometheus \
         --web.listen-address=127.0.0.1:9090"
    )));
    wait_up(h2, "1");
    let ready = query(h2, "humanz_ready").unwrap();
    assert_eq!((&ready["value"][1], &ready["metric"]["job"]), (&"1".into(), &"humanz".into()));

    strangers(stranger, h2, (token.trim(), &certificate));

    // The file is read for each scrape.
    h2.write(TOKEN, &"0".repeat(64));
    wait_up(h2, "0");
    assert_eq!(query(h2, "humanz_ready"), None, "nothing without the token");
    let targets = h2.run("curl -sS --noproxy * http://127.0.0.1:9090/api/v1/targets").ok();
    assert!(targets.contains("401"), "{targets}");
    drop(agents);
}

/// What a machine on the wire may try, with the certificate, which everybody sees, and guesses at the token.
fn strangers(stranger: &Node, prometheus: &Node, (token, certificate): (&str, &str)) {
    for node in [stranger, prometheus] {
        node.write("/root/tls.crt", certificate);
    }
    let bearer = |token: &str| format!("Authorization: Bearer {token}");
    let code = |path: &str, more: &[&str]| ask(stranger, path, more).0;
    assert_eq!(code("/metrics", &[]), "401");
    let (first, upper) = (&token[..token.len() - 1], token.to_uppercase());
    let longer = format!("{token}0");
    for guess in ["", " ", "*", first, &longer, &upper, "/etc/humanz-metrics/token"] {
        assert_eq!(code("/metrics", &["-H", &bearer(guess)]), "401", "{guess}");
    }
    let basic = format!("humanz:{token}");
    let as_basic = format!("Authorization: Basic {token}");
    let in_cookie = format!("Cookie: token={token}");
    for more in [["-u", basic.as_str()], ["-H", &as_basic], ["-H", &in_cookie]] {
        assert_eq!(code("/metrics", &more), "401", "{more:?}");
    }
    let two = ["-H", &bearer("a"), "-H", &bearer(token)];
    assert_eq!(code("/metrics", &two), "401");
    let with_token = bearer(token);
    let ours = ["-H", with_token.as_str()];
    for path in ["/v1/status", "/healthz", "/metrics/../v1/status", "//metrics", "/metricsx"] {
        assert_eq!(code(path, &ours), "403", "{path}");
    }
    for method in ["POST", "DELETE", "TRACE"] {
        assert_eq!(code("/metrics", &[&ours[..], &["-X", method]].concat()), "403", "{method}");
    }
    // Without TLS, with an old one, and around the proxy.
    let plain = "curl -sS --noproxy * --max-time 10 http://192.0.2.11:9105/metrics";
    assert!(!stranger.run(plain).succeeded());
    assert_eq!(code("/metrics", &[&ours[..], &["--tls-max", "1.1"]].concat()), "000");
    let around = stranger.inside(|| TcpStream::connect("192.0.2.11:9104"));
    assert_eq!(around.unwrap_err().kind(), std::io::ErrorKind::ConnectionRefused);

    // Who holds connections gets few of them, and keeps nobody else out.
    let _held = eventually("a stranger has 16 connections", SOON, || {
        let hold = || TcpStream::connect("192.0.2.11:9105");
        let held: Vec<_> = stranger.inside(|| (0..100).filter_map(|_| hold().ok()).collect());
        // Those beyond are closed as soon as the proxy gets them, and silent ones after seconds.
        std::thread::sleep(Duration::from_millis(200));
        let open = held.iter().filter(|stream| is_open(stream)).count();
        if open == 16 { Ok(held) } else { Err(format!("{open}")) }
    });
    let (code, page) = ask(prometheus, "/metrics", &ours);
    assert_eq!(code, "200", "{page}");
    assert!(page.contains("\nhumanz_ready 1\n"), "{page}");
}

/// The other end has not closed it.
fn is_open(stream: &TcpStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    stream.peek(&mut [0]).is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
}
