//! The page for people who would rather look.

use std::time::Duration;

use crate::support::disk::EXECUTABLE;
use crate::support::local::status;
use crate::support::node::command;
use crate::support::wait::SOON;
use crate::support::{Agent, Cluster, Node, Place, Pod, Process, eventually};

const URL: &str = "http://127.0.0.1:8104";
/// Debian's; /usr/bin/chromium is a script that wants more of /etc than a host of the tests has.
const BROWSER: &str = "/usr/lib/chromium/chromium";
const FONTS: &str =
    "<fontconfig><dir>/usr/share/fonts</dir><cachedir>/tmp/fonts</cachedir></fontconfig>";

/// Serves the page on the host.
fn page(host: &Node) -> Process {
    let server = host.spawn(&mut command(&format!("{EXECUTABLE} ui --env-file /dev/null")));
    eventually("the page is served", 3 * SOON, || match server.log() {
        log if log.contains(URL) => Ok(()),
        log => Err(log),
    });
    server
}

/// Head and body of what curl gets.
fn get(host: &Node, options: &str, path: &str) -> (String, String) {
    let answer = host.run(&format!("curl -sS -i --noproxy * -m 10 {options} {URL}{path}")).ok();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.to_owned(), body.to_owned())
}

#[test]
fn the_page_is_for_this_host_alone_and_says_when_the_agent_is_gone() {
    let cluster = Cluster::new(1);
    let host = &cluster.hosts[0];
    let agents = cluster.start_agents(&[]);
    let _server = page(host);
    let (head, body) = get(host, "", "/");
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    assert!(head.contains("Content-Security-Policy: default-src 'none';"), "{head}");
    assert!(body.contains("<title>humanz</title>"), "{body}");
    let status: serde_json::Value = serde_json::from_str(&get(host, "", "/v1/status").1).unwrap();
    assert_eq!(status["node"]["name"], "h1");
    assert_eq!(status["addresses"][0]["used"], 0);
    assert!(get(host, "-H Host:evil.example", "/v1/status").0.starts_with("HTTP/1.1 403 "));
    assert!(get(host, "-X POST", "/v1/status").0.starts_with("HTTP/1.1 405 "));
    agents[0].stop();
    let (head, why) = get(host, "", "/v1/status");
    assert!(head.starts_with("HTTP/1.1 502 "), "{head}");
    assert!(why.contains("no agent serves this host"), "{why}");
    let refused = Agent::run(host, "ui --listen 0.0.0.0:8104", &[]);
    assert_eq!(refused.status.code(), Some(2), "{refused}");
    assert!(refused.stderr.contains("loopback"), "{refused}");
}

/// Where there is no browser, nobody can look: the other test must do.
#[test]
fn a_browser_shows_hosts_ways_addresses_and_changes() {
    if !std::path::Path::new(BROWSER).exists() {
        println!("{BROWSER} is not there: the page was not looked at");
        return;
    }
    let cluster = Cluster::routed(2, 1);
    let host = &cluster.hosts[0];
    let _agents = cluster.start_agents(&[("IPV6_SUBNET", "fd10::/48")]);
    let _pods = [Pod::add(host, "a"), Pod::add(host, "b")];
    cluster.etcd.put("/humanz/hosts/elsewhere", "10.244.99.0/24");
    // While the agent is busy with the others, it is not only a repair.
    eventually("a repair", 3 * SOON, || {
        host.run("ip link delete humanz0").ok();
        host.until_ok("ip link show humanz0", 3 * SOON);
        let told = status(host)["repairs"].to_string();
        if told.contains("added bridge humanz0") { Ok(()) } else { Err(told) }
    });
    host.run("mkdir -p /etc/fonts").ok();
    host.write("/etc/fonts/fonts.conf", FONTS);
    let _server = page(host);
    let shown = eventually("the page is drawn", Duration::from_secs(120), || {
        let shown = browse(host, "--dump-dom");
        let all =
            ["<h1 id=\"name\">h1</h1>", "h2", "direct via 192.0.2.12", "tunnel to", "elsewhere"];
        if all.iter().all(|text| shown.contains(text)) { Ok(shown) } else { Err(shown) }
    });
    for text in [
        "2 used, 251 free",
        "added bridge humanz0",
        "(repaired)",
        "reconcile turns",
        "does not resolve",
    ] {
        assert!(shown.contains(text), "{text} in {shown}");
    }
    if let Ok(folder) = std::env::var("SCREENSHOT_DIR") {
        browse(host, "--window-size=1200,1500 --screenshot=/var/log/page.png");
        std::fs::copy(host.place("/var/log/page.png"), format!("{folder}/page.png")).unwrap();
    }
}

/// What the browser says when it has loaded the page and its script has run.
fn browse(host: &Node, options: &str) -> String {
    let line = format!(
        "{BROWSER} --headless --no-sandbox --disable-gpu --disable-quic --no-first-run \
         --disable-background-networking --disable-component-update --disable-sync \
         --disable-dev-shm-usage --user-data-dir=/tmp/browser --virtual-time-budget=5000 {options} {URL}/"
    );
    host.run(&line).ok()
}
