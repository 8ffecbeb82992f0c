//! Pure. Paths of packets from and to the pods of a test, and their results as table and JSON.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use serde_json::{Value, json};

use crate::command::table::{Cell, Style, Table, Tone};
use crate::net::gather::Gather;
use crate::net::{Family, PerFamily};

/// The way to the pods of another host without its agent.
pub const BY_HAND: &str = "by hand: humanz-agent connectivity serve there prints what to add";

/// Who sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TestSender {
    Host,
    /// The pod of this index.
    Pod(usize),
}

/// What is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TestPacket {
    /// A small echo request.
    Small(IpAddr),
    /// One of the MTU of the path.
    Large(IpAddr),
    /// A connection to a pod of a test, which answers.
    Greeting(SocketAddr),
    /// A connection alone.
    Connection(SocketAddr),
}

/// One path in one family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TestPath {
    /// The same in both families.
    pub name: String,
    pub from: TestSender,
    pub packet: TestPacket,
}

/// What became of it: the time, or why it is lost.
pub type PathResult = Result<Duration, String>;

/// The name of a host, and the addresses of each of its pods; an error is why there are none.
pub type AskedPods = Result<Option<(String, Vec<PerFamily<IpAddr>>)>, String>;

/// What there is to send to.
#[derive(Clone, Debug)]
pub struct TestEnds {
    /// Addresses and gateways of the two pods.
    pub pods: [PerFamily<IpAddr>; 2],
    pub gateways: PerFamily<IpAddr>,
    pub node: PerFamily<IpAddr>,
    /// Other hosts, and the gateways of their pods.
    pub hosts: Vec<(String, IpAddr)>,
    /// How many other hosts are left out; an error is why they are not known.
    pub more_hosts: Result<usize, String>,
    /// The host's port that leads to the first pod, and the port of pods that answers.
    pub host_port: Option<u16>,
    pub port: u16,
    /// Pods that `connectivity serve` holds on other hosts.
    pub others: Vec<IpAddr>,
    /// Those of the host that was asked for pods.
    pub asked: AskedPods,
    pub services: Vec<SocketAddr>,
    pub outside: Vec<IpAddr>,
}

impl TestEnds {
    /// Every path, in the order in which packets get farther from the pod.
    pub fn paths(&self) -> Vec<TestPath> {
        let mut all = Vec::new();
        for family in Family::BOTH {
            self.on_this_host(family, &mut all);
        }
        let far = TestSender::Pod(0);
        for (host, gateway) in &self.hosts {
            let name = format!("pod -> gateway of {host}");
            add(&mut all, &name, far, TestPacket::Small(*gateway));
            add(&mut all, &format!("{name}, full size"), far, TestPacket::Large(*gateway));
        }
        for other in &self.others {
            self.to_pod(&format!("pod -> {other}"), *other, &mut all);
        }
        self.to_asked(&mut all);
        for service in &self.services {
            let name = format!("pod -> service {service}");
            add(&mut all, &name, far, TestPacket::Connection(*service));
        }
        for address in &self.outside {
            add(&mut all, &format!("pod -> {address}"), far, TestPacket::Small(*address));
        }
        all
    }

    /// What a user may expect of such a test, and is not among [`TestEnds::paths`]; with the way to have it tried.
    pub fn untried(&self) -> Vec<String> {
        let mut untried = Vec::new();
        match &self.more_hosts {
            Err(why) => untried.push(format!("other hosts, which are not known ({why})")),
            Ok(0) => {}
            Ok(more) => untried.push(format!("{more} more hosts (humanz-agent probe --from-pod)")),
        }
        match &self.asked {
            Err(why) => untried.push(format!("pods of other hosts ({why}; {BY_HAND})")),
            Ok(Some(_)) if self.hosts_count() > 1 => {
                untried.push("pods of more than one other host (--host NAME)".to_owned());
            }
            Ok(_) => {}
        }
        if !self.hosts.is_empty() || !self.others.is_empty() {
            let how = "to try: humanz-agent connectivity serve here, the test there";
            untried.push(format!("what pods of other hosts begin ({how})"));
        }
        for (is_tried, what) in [
            (self.host_port.is_some(), "a host port (no port is free)"),
            (!self.services.is_empty(), "services (--service ADDRESS:PORT)"),
            (!self.outside.is_empty(), "the outside (--outside ADDRESS)"),
        ] {
            untried.extend((!is_tried).then(|| what.to_owned()));
        }
        untried
    }

    /// Other hosts, of which there may be a line in each family.
    fn hosts_count(&self) -> usize {
        let names: BTreeSet<&str> = self.hosts.iter().map(|(name, _)| name.as_str()).gather();
        names.len()
    }

    fn to_pod(&self, name: &str, pod: IpAddr, all: &mut Vec<TestPath>) {
        let (far, greeting) =
            (TestSender::Pod(0), TestPacket::Greeting(SocketAddr::new(pod, self.port)));
        add(all, name, far, TestPacket::Small(pod));
        add(all, &format!("{name}, full size"), far, TestPacket::Large(pod));
        add(all, &format!("{name}, TCP"), far, greeting);
    }

    fn to_asked(&self, all: &mut Vec<TestPath>) {
        let Ok(Some((host, pods))) = &self.asked else { return };
        for (number, pod) in (1..).zip(pods) {
            for address in pod.iter() {
                self.to_pod(&format!("pod -> pod {number} of {host}"), *address, all);
            }
        }
        for address in pods.first().iter().flat_map(|pod| pod.iter()) {
            let name = format!("host -> pod 1 of {host}");
            add(all, &name, TestSender::Host, TestPacket::Small(*address));
        }
    }

    fn on_this_host(&self, family: Family, all: &mut Vec<TestPath>) {
        let of = |each: &PerFamily<IpAddr>| each.get(family).copied();
        let [Some(first), Some(second)] = self.pods.each_ref().map(of) else { return };
        let (a, b) = (TestSender::Pod(0), TestSender::Pod(1));
        if let Some(gateway) = of(&self.gateways) {
            add(all, "pod -> gateway", a, TestPacket::Small(gateway));
        }
        add(all, "pod -> pod", a, TestPacket::Small(second));
        add(all, "pod -> pod, full size", a, TestPacket::Large(second));
        add(all, "pod -> pod, TCP", b, TestPacket::Greeting(SocketAddr::new(first, self.port)));
        add(all, "host -> pod", TestSender::Host, TestPacket::Small(first));
        let Some(node) = of(&self.node) else { return };
        add(all, "pod -> host", a, TestPacket::Small(node));
        if let Some(port) = self.host_port {
            let to = TestPacket::Greeting(SocketAddr::new(node, port));
            add(all, "host -> host port", TestSender::Host, to);
            add(all, "pod -> host port", b, to);
        }
    }
}

fn add(all: &mut Vec<TestPath>, name: &str, from: TestSender, packet: TestPacket) {
    all.push(TestPath { name: name.to_owned(), from, packet });
}

impl TestPacket {
    pub fn to(self) -> IpAddr {
        match self {
            TestPacket::Small(to) | TestPacket::Large(to) => to,
            TestPacket::Greeting(to) | TestPacket::Connection(to) => to.ip(),
        }
    }
}

/// For `--json`.
pub fn json_of(path: &TestPath, result: &PathResult) -> Value {
    let (by, to) = match path.packet {
        TestPacket::Small(to) => ("echo", to.to_string()),
        TestPacket::Large(to) => ("full-size echo", to.to_string()),
        TestPacket::Greeting(to) | TestPacket::Connection(to) => ("tcp", to.to_string()),
    };
    let from = match path.from {
        TestSender::Host => "host".to_owned(),
        TestSender::Pod(index) => format!("pod {}", index + 1),
    };
    json!({
        "path": path.name, "family": Family::of(path.packet.to()).to_string(), "from": from,
        "by": by, "to": to, "ok": result.is_ok(),
        "seconds": result.as_ref().ok().map(Duration::as_secs_f64),
        "fault": result.as_ref().err(),
    })
}

/// A line for each name, with both families beside each other.
pub fn table(results: &[(TestPath, PathResult)], style: Style) -> String {
    let mut table = Table::new(&["PATH", "IPv4", "IPv6"]);
    let mut names: Vec<&str> = Vec::new();
    for (path, _) in results {
        if !names.contains(&path.name.as_str()) {
            names.push(&path.name);
        }
    }
    for name in names {
        let cell = |family| {
            let is_meant =
                |path: &TestPath| path.name == name && Family::of(path.packet.to()) == family;
            match results.iter().find(|(path, _)| is_meant(path)) {
                None => Cell::new(""),
                Some((_, Ok(time))) => Cell::new(format!("✓ {time:.1?}")).tone(Tone::Good),
                Some((_, Err(why))) => Cell::new(format!("✗ {why}")).tone(Tone::Bad),
            }
        };
        table.row([Cell::new(name), cell(Family::V4), cell(Family::V6)]);
    }
    table.render(style)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn both(v4: &str, v6: &str) -> PerFamily<IpAddr> {
        PerFamily { v4: v4.parse().ok(), v6: v6.parse().ok() }
    }

    fn ends() -> TestEnds {
        TestEnds {
            pods: [both("10.1.1.2", "fd00::2"), both("10.1.1.3", "fd00::3")],
            gateways: both("10.1.1.1", "fd00::1"),
            node: both("192.0.2.1", ""),
            host_port: Some(20_000),
            port: 80,
            hosts: Vec::new(),
            more_hosts: Ok(0),
            others: Vec::new(),
            asked: Ok(None),
            services: Vec::new(),
            outside: Vec::new(),
        }
    }

    #[test]
    fn what_is_not_tried_is_listed_with_the_way_to_try_it() {
        let (services, outside) =
            ("services (--service ADDRESS:PORT)", "the outside (--outside ADDRESS)");
        assert_eq!(ends().untried(), [services, outside]);
        let hosts = vec![("h2".to_owned(), "10.1.2.1".parse().unwrap())];
        let back = "what pods of other hosts begin (to try: humanz-agent connectivity serve here, the test there)";
        let asked = Err("h2 does not answer".to_owned());
        let with_hosts = TestEnds { hosts, more_hosts: Ok(3), asked, ..ends() };
        let untried = with_hosts.untried();
        assert_eq!(untried[0], "3 more hosts (humanz-agent probe --from-pod)");
        let by_hand = "by hand: humanz-agent connectivity serve there prints what to add";
        assert_eq!(untried[1], format!("pods of other hosts (h2 does not answer; {by_hand})"));
        assert_eq!(untried[2..], [back, services, outside]);
        let pods = vec![both("10.1.2.2", ""), both("10.1.2.3", "")];
        let mut answered = TestEnds { asked: Ok(Some(("h2".to_owned(), pods))), ..with_hosts };
        assert_eq!(answered.untried()[1..], [back, services, outside]);
        answered.hosts.push(("h3".to_owned(), "10.1.3.1".parse().unwrap()));
        assert_eq!(answered.untried()[1], "pods of more than one other host (--host NAME)");
        answered.hosts.pop();
        let all = TestEnds {
            more_hosts: Ok(0),
            others: vec!["10.1.2.2".parse().unwrap()],
            services: vec!["10.96.0.1:443".parse().unwrap()],
            outside: vec!["198.51.100.1".parse().unwrap()],
            ..answered
        };
        assert_eq!(all.untried(), [back]);
        let unknown = TestEnds { more_hosts: Err("etcd is away".to_owned()), ..ends() };
        assert_eq!(unknown.untried()[0], "other hosts, which are not known (etcd is away)");
        assert_eq!(
            TestEnds { host_port: None, ..ends() }.untried()[0],
            "a host port (no port is free)"
        );
    }

    #[test]
    fn every_path_of_both_families_is_tried_and_those_that_need_more_only_with_it() {
        let names = |ends: &TestEnds, family| {
            let of = |path: &TestPath| Family::of(path.packet.to()) == family;
            let paths = ends.paths().into_iter().filter(of);
            paths.map(|path| path.name).collect::<Vec<_>>().join("; ")
        };
        let here =
            "pod -> gateway; pod -> pod; pod -> pod, full size; pod -> pod, TCP; host -> pod";
        let all = format!("{here}; pod -> host; host -> host port; pod -> host port");
        assert_eq!(names(&ends(), Family::V4), all);
        assert_eq!(names(&ends(), Family::V6), here);
        let far = TestEnds {
            pods: [both("10.1.1.2", ""), both("10.1.1.3", "")],
            others: vec!["fd00::9".parse().unwrap()],
            services: vec!["10.96.0.1:443".parse().unwrap()],
            outside: vec!["198.51.100.1".parse().unwrap()],
            ..ends()
        };
        assert_eq!(
            names(&far, Family::V6),
            "pod -> fd00::9; pod -> fd00::9, full size; pod -> fd00::9, TCP"
        );
        assert!(
            names(&far, Family::V4).ends_with("pod -> service 10.96.0.1:443; pod -> 198.51.100.1")
        );
    }

    #[test]
    fn each_pod_of_the_asked_host_is_tried_in_both_families() {
        let pods = vec![both("10.1.2.2", "fd00::22"), both("10.1.2.3", "fd00::23")];
        let asked = TestEnds { asked: Ok(Some(("h2".to_owned(), pods))), ..ends() };
        let (before, all) = (ends().paths().len(), asked.paths());
        assert_eq!(all.len() - before, 2 * (2 * 3 + 1));
        let first: Vec<_> = all.iter().filter(|it| it.name == "pod -> pod 1 of h2, TCP").collect();
        let to = ["10.1.2.2:80", "[fd00::22]:80"].map(|text| text.parse().unwrap());
        assert_eq!(
            first.iter().map(|it| it.packet).collect::<Vec<_>>(),
            to.map(TestPacket::Greeting)
        );
        let by_host = all.iter().filter(|it| it.name == "host -> pod 1 of h2");
        assert!(by_host.clone().all(|it| it.from == TestSender::Host));
        assert_eq!(by_host.count(), 2);
    }

    #[test]
    fn both_families_stand_in_one_line() {
        let paths = ends().paths().into_iter().filter(|path| path.name == "pod -> pod");
        let results: Vec<(TestPath, PathResult)> = paths
            .map(|path| match Family::of(path.packet.to()) {
                Family::V4 => (path, Ok(Duration::from_micros(120))),
                Family::V6 => (path, Err("no answer".to_owned())),
            })
            .collect();
        let lines = "PATH        IPv4       IPv6\npod -> pod  ✓ 120.0µs  ✗ no answer\n";
        assert_eq!(table(&results, Style::default()), lines);
        let value = json_of(&results[1].0, &results[1].1);
        assert_eq!((&value["ok"], &value["to"]), (&json!(false), &json!("fd00::3")));
    }
}
