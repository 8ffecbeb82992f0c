//! The status page for browsers.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::cni::{Attachment, Network};
use crate::support::disk::EXECUTABLE;
use crate::support::local::status;
use crate::support::node::command;
use crate::support::wait::SOON;
use crate::support::{Agent, Cluster, Node, Place, Pod, Process, eventually, pod};

pub const URL: &str = "http://127.0.0.1:8104";
/// The first is Debian's: its /usr/bin/chromium is a script that wants more of /etc than a host of the tests has.
const BROWSERS: [&str; 4] =
    ["/usr/lib/chromium/chromium", "chromium", "chromium-browser", "google-chrome"];
const FONTS: &str =
    "<fontconfig><dir>/usr/share/fonts</dir><cachedir>/tmp/fonts</cachedir></fontconfig>";

/// Serves the page on the host.
pub fn page(host: &Node) -> Process {
    let server = host.spawn(&mut command(&format!("{EXECUTABLE} ui --env-file /dev/null")));
    eventually("the page is served", 3 * SOON, || match server.log() {
        log if log.contains(URL) => Ok(()),
        log => Err(log),
    });
    server
}

/// Head and body of the response to curl.
fn get(host: &Node, options: &str, path: &str) -> (String, String) {
    let answer =
        host.run(&format!("curl -sS -i --compressed --noproxy * -m 10 {options} {URL}{path}")).ok();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.to_owned(), body.to_owned())
}

#[test]
fn the_page_is_local_and_shows_when_the_agent_is_gone() {
    let cluster = Cluster::new(1);
    let host = &cluster.hosts[0];
    let agents = cluster.start_agents(&[]);
    let _server = page(host);
    let (head, body) = get(host, "", "/");
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    assert!(head.contains("Content-Security-Policy: default-src 'none';"), "{head}");
    assert!(head.contains("Content-Encoding: gzip"), "{head}");
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

#[test]
fn a_browser_shows_hosts_routes_addresses_and_changes() {
    if is_left_out() {
        return;
    }
    let cluster = Cluster::routed(2, 1);
    let host = &cluster.hosts[0];
    let agents = cluster.start_agents(&[("IPV6_SUBNET", "fd10::/48")]);
    let _pods = [Pod::add(host, "a"), Pod::add(host, "b")];
    cluster.etcd.put("/humanz/hosts/elsewhere", "10.244.99.0/24");
    // While the agent is busy with the others, it is not only a repair.
    eventually("a repair", 3 * SOON, || {
        host.run("ip link delete humanz0").ok();
        host.until_ok("ip link show humanz0", 3 * SOON);
        let repairs = status(host)["repairs"].to_string();
        if repairs.contains("added bridge humanz0") { Ok(()) } else { Err(repairs) }
    });
    let _server = page(host);
    let words = [
        "<h1 id=\"name\">h1</h1>",
        "h2",
        "direct via 192.0.2.12",
        "tunnel to",
        "elsewhere",
        "does not resolve",
        "through a tunnel</title>",
        "2 interfaces of pods, 2 attached",
        "<td>default/a</td><td>10.244.",
        "An agent ran for",
    ];
    let shown = drawn(host, &words);
    for text in ["2 used, 251 free", "added bridge humanz0", "(repaired)", "reconcile turns"] {
        assert!(shown.contains(text), "{text} in {shown}");
    }
    take(host, "page");

    // The agent that comes after has not made the bridge again.
    agents[0].kill();
    let file = "/var/lib/humanz/history.json";
    let now = std::time::UNIX_EPOCH.elapsed().unwrap().as_secs();
    let past = format!("\"spans\":[[{},{},[5,1,3,77]],", now - 7200, now - 3600);
    host.write(file, &host.read(file).unwrap().replacen("\"spans\":[", &past, 1));
    let agent = Agent::start(host, &[("IPV6_SUBNET", "fd10::/48")]);
    agent.wait_ready();
    let changes = status(host)["changes"].to_string();
    assert!(!changes.contains("added bridge humanz0"), "{changes}");
    let words = [
        "added bridge humanz0",
        "at most 5 problems, 1 host not reached, 77 pods. An agent ran for 6",
        ": 5 problems</title>",
        "class=\"past lost\"",
        ": 77 pods</title>",
    ];
    drawn(host, &words);
    take(host, "history");

    agent.stop();
    let shown = drawn(host, &["the agent does not answer: no agent serves this host"]);
    for text in ["What is shown", "asking the hosts", "asking the agent"] {
        assert!(!shown.contains(text), "{text} in {shown}");
    }
}

/// A pod of the namespace shop.
pub fn add(host: &Node, name: &str) -> Pod {
    pod::make_netns(host, name);
    let args = format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME={name};app={name}");
    let attachment = Attachment { args, ..Attachment::new(name) };
    Pod::connect(host, &Network::of(host), attachment).unwrap()
}

#[test]
fn a_browser_draws_who_connects_to_what() {
    if is_left_out() {
        return;
    }
    let alone = crate::alone();
    let host = &alone.host;
    let file = "/etc/humanz/policies.json";
    host.shell("mkdir -p /etc/humanz").ok();
    let web = json!({"podSelector": {"matchLabels": {"app": "web"}}});
    let policy = json!([{
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"namespace": "shop", "name": "db"},
        "spec": {"podSelector": {"matchLabels": {"app": "db"}}, "ingress": [{"from": [web]}]},
    }]);
    host.write(file, &policy.to_string());
    let set = |flows: &str| {
        let common = format!("SUBNET_SOURCE=static\nPOLICY=on\nPOLICY_FILE={file}\n");
        host.write("/etc/humanz/agent.env", &format!("{common}FLOWS={flows}\n"));
    };
    set("off");
    let agent = Agent::start(host, &[("ETCD_HOST", "")]);
    agent.wait_ready();
    let environment = "--env-file /etc/humanz/agent.env";
    let server = host.spawn(&mut command(&format!("{EXECUTABLE} ui {environment}")));
    eventually("the page is served", 3 * SOON, || match server.log() {
        log if log.contains(URL) => Ok(()),
        log => Err(log),
    });
    let shown = drawn(host, &["the agent counts no flows: set FLOWS=on"]);
    assert!(shown.contains("id=\"flows-box\" hidden"), "{shown}");

    set("on");
    agent.reload();
    let [db, web, other] = ["db", "web", "other"].map(|name| add(host, name));
    let _listener = db.spot().inside(|| TcpListener::bind((db.v4(), 5432)).unwrap());
    let connect = |from: &Pod, to: IpAddr, port| {
        let target = SocketAddr::new(to, port);
        from.spot().inside(|| TcpStream::connect_timeout(&target, Duration::from_millis(200)))
    };
    eventually("flows are counted", SOON, || {
        connect(&web, db.v4(), 5432).unwrap();
        connect(&other, db.v4(), 5432).unwrap_err();
        connect(&other, [192, 0, 2, 77].into(), 443).unwrap_err();
        let text = Agent::run(host, &format!("flows {environment}"), &[]).to_string();
        let all = ["shop/web", "shop/other", "192.0.2.77", "denied"];
        if all.iter().all(|word| text.contains(word)) { Ok(()) } else { Err(text) }
    });
    let words = [
        "<div id=\"flows-box\">",
        "class=\"flow denied\"",
        "<title>shop/other → shop/db: ",
        "<td class=\"bad\">denied</td><td>NetworkPolicy shop/db</td>",
        "<td class=\"good\">allowed</td><td>NetworkPolicy shop/db</td>",
    ];
    drawn(host, &words);
    take(host, "flows");
    agent.stop();
}

/// The first three numbers of the addresses of a host's pods.
fn subnet(number: u16) -> String {
    format!("10.{}.{}", 244 + number / 256, number % 256)
}

/// `host` answers for the pods of so many hosts.
pub fn answer(host: &Node, numbers: impl Iterator<Item = u16>) {
    let each = numbers.map(|n| format!("address add {}.1/32 dev lo\n", subnet(n)));
    host.shell(&format!("ip -batch - <<'END'\n{}END", each.collect::<String>())).ok();
}

/// A host that is nothing but its keys: others reach it through `at`, but for `lost` of them.
pub fn put_host(cluster: &Cluster, number: u16, hosts: u16, lost: &[u16]) {
    // One is called as something that every object of JavaScript has.
    let named = |n: u16| match n {
        ..=3 => format!("h{n}"),
        31 => "constructor".to_owned(),
        _ => format!("n{n}"),
    };
    let (name, subnet) = (named(number), format!("{}.0/24", subnet(number)));
    cluster.etcd.put(&format!("/humanz/hosts/{name}"), subnet.as_str());
    let record = json!({"schema": 1, "machineId": name, "bootId": "b", "version": "0.1.0", "subnets": [subnet],
                        "addresses": ["192.0.2.12"], "backend": "direct", "mtu": 1500});
    cluster.etcd.put(&format!("/humanz/v1/nodes/{name}"), record.to_string());
    let others = (1..=hosts).filter(|other| *other != number);
    let micros = |n: u16| 150 + (u32::from(n) * 37 + u32::from(number) * 101) % 400;
    // A report about many says nothing of each.
    let timed = others.clone().filter(|_| hosts <= 100);
    let times = timed.filter(|n| !lost.contains(n)).map(|n| (named(n), micros(n).into()));
    let faults =
        lost.iter().map(|n| (named(*n), if n % 2 == 0 { "silent" } else { "large 1450" }.into()));
    let map =
        |pairs: &mut dyn Iterator<Item = (String, Value)>| pairs.collect::<serde_json::Map<_, _>>();
    let row = json!({"schema": 1, "at": 1_795_200_360, "asked": hosts - 1, "answer": hosts - 1, "median": 250,
                     "slowest": 550, "faults": map(&mut faults.into_iter()), "times": map(&mut times.into_iter())});
    cluster.etcd.put(&format!("/humanz/v1-probes/{name}"), row.to_string());
}

/// Three hosts of which two are parted; then thirty, then a hundred, most of which are keys alone.
#[test]
fn a_browser_shows_the_reachability_between_hosts() {
    if is_left_out() {
        return;
    }
    let cluster = Cluster::new(3);
    let [host, two, three] = &cluster.hosts[..] else { unreachable!() };
    let _agents = cluster.start_agents(&[("PROBE_INTERVAL", "1s")]);
    let _server = page(host);
    drawn(host, &["3 of 3 hosts report: no faults"]);
    cluster.part(two, three);
    let shown = drawn(
        host,
        &[
            "0 not reached by most, 2 with other faults",
            "class=\"lost\" title=\"h3 → h2: does not answer\">silent<",
        ],
    );
    assert!(shown.contains("title=\"1 of 2 do not reach it well\""), "{shown}");
    // On a busy machine one that answers may be slow.
    let answers = |what: &str| ["well", "odd"].map(|kind| what.replace("KIND", kind));
    let cell = answers("class=\"KIND\" title=\"h1 → h2: ");
    assert!(cell.iter().any(|cell| shown.contains(cell)), "{shown}");
    // What the other one says of it may be of the moment before.
    let (_, parted) =
        shown.split_once("class=\"way lost\"><title>").unwrap_or_else(|| panic!("{shown}"));
    let (parted, _) = parted.split_once("</title>").unwrap();
    assert!(parted.contains("h3 → h2: does not answer"), "{parted}");
    let lines = answers("class=\"way KIND\"");
    let lines: usize = lines.iter().map(|line| shown.matches(line).count()).sum();
    assert_eq!(lines, 2, "{shown}");
    assert_eq!(shown.matches("class=\"host well\"").count(), 3, "{shown}");
    take(host, "matrix-3");
    let _other = page(two);
    let words = ["2 hosts, 1 not reached well", "class=\"square none\" title=\"h3 10."];
    let shown = drawn(two, &words);
    assert!(shown.contains("class=\"square direct\" title=\"h1 10."), "{shown}");

    answer(two, (4..=31).filter(|n| *n != 20));
    (4..=30).for_each(|n| {
        put_host(
            &cluster,
            n,
            30,
            match n {
                20 => &[],
                7 => &[9, 20],
                _ => &[20],
            },
        )
    });
    cluster.etcd.delete("/humanz/v1-probes/n25");
    put_host(&cluster, 31, 30, &[20]);
    let words = [
        "30 of 31 hosts report: 1 not reached by most, 3 with other faults",
        "h1 → n20: does not answer\">silent<",
        "h1 → n30: ",
        "n4 → constructor: not asked yet",
        "≥1450<",
        "no report: its agent does not run",
        "class=\"host lost\"><title>n20: most hosts do not reach it well",
        "class=\"host unknown\"><title>n25: its agent does not run",
    ];
    drawn(host, &words);
    take(host, "matrix-30");

    answer(two, 32..=100);
    (4..=100).for_each(|n| put_host(&cluster, n, 100, if n == 20 { &[] } else { &[20] }));
    drawn(
        host,
        &[
            "Hosts that others do not reach",
            "n20",
            "100 of 100 hosts report",
            "Hosts that do not reach what most reach",
            "Lines: faults alone, of 100 hosts.",
        ],
    );
    take(host, "matrix-100");
}

#[test]
fn a_browser_shows_a_thousand_hosts() {
    if is_left_out() {
        return;
    }
    let cluster = Cluster::new(2);
    let [host, two] = &cluster.hosts[..] else { unreachable!() };
    let pool =
        [("IP_SUBNET", "10.244.0.0/14"), ("IP_SUBNET_MARGIN", "10"), ("PROBE_INTERVAL", "5s")];
    let agents = cluster.start_agents(&pool);
    answer(two, (3..=1000).filter(|n| *n != 20));
    (3..=1000).for_each(|n| put_host(&cluster, n, 1000, if n == 20 { &[] } else { &[20] }));
    // A browser that starts again and again takes the processor from the agents.
    eventually("all hosts are known, and report", 6 * SOON, || {
        let known = status(host)["peers"].as_array().map_or(0, Vec::len);
        let reports = cluster.etcd.list("/humanz/v1-probes/").len();
        if (known, reports) == (999, 1000) { Ok(()) } else { Err(format!("{known}, {reports}")) }
    });
    let _server = page(host);
    let shown = drawn(
        host,
        &[
            "1000 of 1000 hosts report",
            "Hosts that others do not reach",
            "Lines: faults alone, of 1000 hosts.",
            "999 hosts, 1 not reached well",
            "799 more",
        ],
    );
    assert_eq!(shown.matches("<circle").count(), 1000);
    take(host, "matrix-1000");
    let pods = ["a", "b"].map(|name| Pod::add(host, name));
    crate::ui_keyboard::walk_a_thousand_hosts(host, "n998", pods[1].v4());
    agents.iter().for_each(Agent::stop);
}

pub fn is_left_out() -> bool {
    let skip = std::env::var("SKIP_BROWSER").is_ok_and(|value| value == "1");
    if skip {
        println!("left out: SKIP_BROWSER=1");
    }
    skip
}

fn browser() -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    let candidates = BROWSERS.iter().flat_map(|name| folders.iter().map(move |dir| dir.join(name)));
    let found = candidates.into_iter().find(|file| file.is_file());
    found.expect("no browser: apt install chromium, or leave these tests out by SKIP_BROWSER=1")
}

/// The page, once it has all of `words`.
fn drawn(host: &Node, words: &[&str]) -> String {
    eventually(&format!("the page is drawn with {words:?}"), Duration::from_secs(180), || {
        let shown = browse(host, "--dump-dom");
        if words.iter().all(|text| shown.contains(text)) { Ok(shown) } else { Err(shown) }
    })
}

/// A screenshot of the page, on request.
fn take(host: &Node, name: &str) {
    if let Ok(folder) = std::env::var("SCREENSHOT_DIR") {
        let path = format!("/var/log/{name}.png");
        for (kind, options) in [
            ("", "--window-size=1200,1900"),
            ("-dark", "--window-size=1200,1900 --blink-settings=preferredColorScheme=0"),
            ("-narrow", "--window-size=390,2600"),
            // As README shows it.
            ("-top", "--window-size=1000,900"),
        ] {
            browse(host, &format!("{options} --screenshot={path}"));
            std::fs::copy(host.place(&path), format!("{folder}/{name}{kind}.png")).unwrap();
        }
    }
}

/// The browser's DOM after it has loaded the page and run its script.
fn browse(host: &Node, options: &str) -> String {
    host.run(&format!("{} --virtual-time-budget=5000 {options} {URL}/", start_browser(host))).ok()
}

/// The command that starts a browser on `host`.
pub fn start_browser(host: &Node) -> String {
    host.run("mkdir -p /etc/fonts").ok();
    host.write("/etc/fonts/fonts.conf", FONTS);
    format!(
        "{} --headless --no-sandbox --disable-gpu --disable-quic --no-first-run \
         --disable-background-networking --disable-component-update --disable-sync \
         --disable-dev-shm-usage --user-data-dir=/tmp/browser",
        browser().display()
    )
}

/// The colours of a scheme: `--name: #rrggbb` in the rules `:root` of one part of the style sheet.
fn colours(part: &str) -> BTreeMap<&str, [f64; 3]> {
    let pairs = part.split([';', '{', '}']).filter_map(|pair| pair.trim().split_once(": #"));
    let pairs = pairs.filter(|(name, value)| name.starts_with("--") && value.len() == 6);
    let channel = |value: &str, at| f64::from(u8::from_str_radix(&value[at..at + 2], 16).unwrap());
    pairs.map(|(name, value)| (&name[2..], [0, 2, 4].map(|at| channel(value, at)))).collect()
}

/// Source: WCAG 2.2, "contrast ratio" and "relative luminance".
fn contrast(one: [f64; 3], other: [f64; 3]) -> f64 {
    let linear = |channel: f64| match channel / 255.0 {
        value if value <= 0.04045 => value / 12.92,
        value => ((value + 0.055) / 1.055).powf(2.4),
    };
    let luminance = |colour: [f64; 3]| {
        let [red, green, blue] = colour.map(linear);
        0.2126 * red + 0.7152 * green + 0.0722 * blue
    };
    let (one, other) = (luminance(one), luminance(other));
    (one.max(other) + 0.05) / (one.min(other) + 0.05)
}

/// AA wants 4.5 for text.
#[test]
fn text_stands_out_in_light_and_in_dark() {
    let sheet = include_str!("../../src/command/ui/page.css");
    let (light, dark) = sheet.split_once("prefers-color-scheme: dark").unwrap();
    for (scheme, part) in [("light", light), ("dark", dark)] {
        let colours = colours(part);
        let paper = colours["paper"];
        // Behind text there is paper, or paper with a part of a colour.
        let mixed = |name: &str, part: f64| {
            let of = |at: usize| colours[name][at] * part + paper[at] * (1.0 - part);
            [of(0), of(1), of(2)]
        };
        for (text, behind) in [
            ("ink", paper),
            ("focus", paper),
            ("good", paper),
            ("bad", paper),
            ("dim", paper),
            ("warn", paper),
            ("on-bad", colours["bad"]),
            ("ink", mixed("good", 0.28)),
            ("ink", mixed("warn", 0.45)),
            ("ink", mixed("dim", 0.18)),
            ("dim", mixed("dim", 0.12)),
        ] {
            let found = contrast(colours[text], behind);
            assert!(found >= 4.5, "{scheme}: {text} on {behind:?} has {found:.2}");
        }
    }
}

/// AA wants 3 for what a drawing is read by (WCAG 2.2, 1.4.11).
#[test]
fn what_the_map_draws_stands_out_in_light_and_in_dark() {
    let sheet = include_str!("../../src/command/ui/page.css");
    let rules = || sheet.lines().filter_map(|line| line.split_once(" { "));
    let value = |rule: &str, name: &str| {
        let of = |pair: &str| Some(pair.trim().strip_prefix(name)?.strip_prefix(": ")?.to_owned());
        rule.trim_end_matches('}').split(';').find_map(of)
    };
    let opacity = |rule: &str| value(rule, "opacity").map(|it| it.parse::<f64>().unwrap());
    let of_ways = rules().find(|(selector, _)| *selector == ".way").and_then(|it| opacity(it.1));
    let (light, dark) = sheet.split_once("prefers-color-scheme: dark").unwrap();
    let mut seen = 0;
    for (selector, rule) in rules() {
        let (drawn, usual) = match selector {
            it if it.starts_with(".way") => ("stroke", of_ways),
            it if it.starts_with(".host") => ("fill", None),
            _ => continue,
        };
        let Some(colour) = value(rule, drawn) else { continue };
        let name = colour.trim_start_matches("var(--").trim_end_matches(')');
        let part = opacity(rule).or(usual).unwrap_or(1.0);
        for scheme in [light, dark] {
            let colours = colours(scheme);
            let (ink, paper) = (colours[name], colours["paper"]);
            let mixed = [0, 1, 2].map(|at| ink[at] * part + paper[at] * (1.0 - part));
            let found = contrast(mixed, paper);
            assert!(found >= 3.0, "{selector} on {paper:?} has {found:.2}");
            seen += 1;
        }
    }
    assert_eq!(seen, 14);
}
