//! METRICS_ADDR: any process of the host may connect, and any page in a browser of the host may try to.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::json;

use crate::support::cluster::Alone;
use crate::support::cni::{Attachment, Network};
use crate::support::pod::make_netns;
use crate::support::wait::patience;
use crate::support::{Agent, Node, Place, Pod, soon};

const ADDRESS: &str = "127.0.0.1:9104";

const SETTINGS: &[(&str, &str)] =
    &[("SUBNET_SOURCE", "static"), ("ETCD_HOST", ""), ("METRICS_ADDR", ADDRESS)];

const SCRAPE: &[u8] = b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1:9104\r\n\r\n";

/// Connections that stay, at once.
const HELD: usize = 400;

fn serve(host: &Node) -> Agent {
    let agent = Agent::start(host, SETTINGS);
    agent.wait_ready();
    soon("the address is served", || ask(host, SCRAPE).contains("humanz_ready"));
    agent
}

fn connect(host: &Node) -> std::io::Result<TcpStream> {
    let stream = host.inside(|| TcpStream::connect(ADDRESS))?;
    stream.set_read_timeout(Some(Duration::from_secs(10) * patience()))?;
    Ok(stream)
}

/// The whole response to these bytes; what came of it, if the server ends the connection early.
fn ask(host: &Node, bytes: &[u8]) -> String {
    let Ok(mut stream) = connect(host) else { return String::new() };
    let mut response = Vec::new();
    // The server may close before the request is complete.
    let _unsent = stream.write_all(bytes);
    let _unread = stream.read_to_end(&mut response);
    String::from_utf8_lossy(&response).into_owned()
}

/// Opens what there is room for, and never reads; `trickle` is sent again and again.
fn hold(host: &Node, stop: &AtomicBool, first: &[u8], trickle: &[u8]) {
    let mut held: Vec<TcpStream> = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        held.retain_mut(|stream| stream.write_all(trickle).is_ok());
        for _ in held.len()..HELD / 4 {
            let Ok(mut stream) = connect(host) else { break };
            stream.set_write_timeout(Some(Duration::from_millis(5))).unwrap();
            if stream.write_all(first).is_ok() {
                held.push(stream);
            }
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Ends what [`hold`] does, also when the test fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn open_files(agent: &Agent) -> usize {
    std::fs::read_dir(format!("/proc/{}/fd", agent.process.pid())).unwrap().count()
}

#[test]
fn clients_that_hold_their_connections_do_not_delay_a_scrape() {
    let alone = Alone::new();
    let host = &alone.host;
    let agent = serve(host);
    let before = open_files(&agent);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stop = Stop(&stop);
        let huge = [b"GET /metrics HTTP/1.1\r\nX: ".as_slice(), &[b'a'; 7000]].concat();
        // Silent ones, slow ones, ones with a huge header, and ones that ask and do not read.
        for (first, trickle) in [
            (b"".to_vec(), b"".as_slice()),
            (b"GET /metrics HTTP/1.1\r\n".to_vec(), b"X: 1\r\n"),
            (huge, b"a"),
            (SCRAPE.to_vec(), b""),
        ] {
            let stop = &stop;
            scope.spawn(move || hold(host, stop, &first, trickle));
        }
        std::thread::sleep(Duration::from_secs(2));
        for round in 0..10 {
            let begun = Instant::now();
            let page = ask(host, SCRAPE);
            let took = begun.elapsed();
            println!("scrape {round}: {took:?}, {} files of the agent", open_files(&agent));
            assert!(page.starts_with("HTTP/1.1 200") && page.contains("humanz_ready 1"), "{page}");
            assert!(took < Duration::from_secs(2) * patience(), "{took:?}");
            assert!(open_files(&agent) < before + 100, "{} files", open_files(&agent));
            std::thread::sleep(Duration::from_millis(300));
        }
    });
    soon("they are all gone", || open_files(&agent) <= before + 1);
}

/// More than the agent serves at once, and all there when it looks.
#[test]
fn requests_that_came_while_the_agent_stood_still_are_all_answered() {
    let alone = Alone::new();
    let host = &alone.host;
    let agent = serve(host);
    agent.process.signal(Signal::SIGSTOP);
    let mut clients: Vec<TcpStream> = (0..120).map(|_| connect(host).unwrap()).collect();
    for client in &mut clients {
        client.write_all(SCRAPE).unwrap();
    }
    agent.process.signal(Signal::SIGCONT);
    let answers = clients.iter_mut().filter_map(|client| {
        let mut first = [0; 12];
        client.read_exact(&mut first).ok()?;
        Some(first)
    });
    let answered = answers.filter(|first| first.ends_with(b"200")).count();
    assert_eq!(answered, 120);
}

#[test]
fn a_page_under_a_foreign_name_reads_nothing_through_a_browser_of_the_host() {
    let alone = Alone::new();
    let host = &alone.host;
    let _agent = serve(host);
    let asked =
        |host_line: &str| ask(host, format!("GET /metrics HTTP/1.1\r\n{host_line}\r\n").as_bytes());
    for own in ["127.0.0.1:9104", "localhost:9104", "[::1]:9104", "localhost"] {
        let page = asked(&format!("Host: {own}\r\n"));
        assert!(page.starts_with("HTTP/1.1 200") && page.contains("humanz_ready"), "{own}: {page}");
    }
    for foreign in [
        "Host: evil.example:9104\r\n",
        "Host: 127.0.0.1.evil.example\r\n",
        "Host: 192.0.2.1:9104\r\n",
        "Host: localhost\r\nHost: evil.example\r\n",
        "X-Forwarded-Host: localhost\r\n",
        "",
    ] {
        let page = asked(foreign);
        assert!(page.starts_with("HTTP/1.1 403"), "{foreign:?}: {page}");
        assert!(!page.contains("humanz_"), "{foreign:?}: {page}");
    }
}

#[test]
fn nothing_but_get_and_head_of_known_paths_is_served() {
    let alone = Alone::new();
    let host = &alone.host;
    let _agent = serve(host);
    let code = |method: &str, path: &str| {
        let request = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
        let response = ask(host, request.as_bytes());
        response.split(' ').nth(1).unwrap_or_default().to_owned()
    };
    let head = ask(host, b"HEAD /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 200") && head.ends_with("\r\n\r\n"), "{head}");
    assert!(!head.contains("Content-Length: 0"), "{head}");
    for method in ["POST", "PUT", "DELETE", "OPTIONS", "TRACE", "CONNECT", "BREW"] {
        assert_eq!(code(method, "/metrics"), "405", "{method}");
    }
    // What only root may read, on the socket.
    for path in [
        "/v1/status",
        "/v1/changes",
        "/v1/history",
        "/v1/matrix",
        "/../v1/status",
        "//v1/status",
        "/",
    ] {
        assert_eq!(code("GET", path), "404", "{path}");
    }
}

#[test]
fn no_pod_gets_the_port_of_the_metrics() {
    let alone = Alone::new();
    let host = &alone.host;
    let agent = serve(host);
    let mut network = Network::of(host);
    let request = |name: &str, ip: &str, protocol: &str| {
        make_netns(host, name);
        let port =
            json!({ "hostPort": 9104, "containerPort": 80, "protocol": protocol, "hostIP": ip });
        Attachment { runtime: json!({ "portMappings": [port] }), ..Attachment::new(name) }
    };
    for ip in ["", "0.0.0.0", "127.0.0.1"] {
        let thief = request(&format!("thief{}", ip.len()), ip, "tcp");
        let refused = Pod::connect(host, &network, thief).err().unwrap();
        assert_eq!(refused.code, 104, "{refused}");
        assert!(refused.to_string().contains("metrics (METRICS_ADDR)"), "{refused}");
    }
    Pod::connect(host, &network, request("other", "", "udp")).unwrap().delete();
    let is_scraped = || ask(host, SCRAPE).contains("humanz_ready");
    assert!(is_scraped());
    // The control: without the agent's word, and without the agent, the pod gets it.
    network.plugins[0].as_object_mut().unwrap().remove("reservedPorts");
    agent.kill();
    Pod::connect(host, &network, request("control", "", "tcp")).unwrap();
    let rules = host.run("nft list table inet humanz-hostports").ok();
    assert!(rules.contains("tcp . 9104 "), "{rules}");
}
