//! packaging/policy.md does what it says.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use crate::add;
use crate::support::guide::{Guide, GuideConstants, Step};
use crate::support::{Agent, Cluster, Place, Pod};

#[test]
fn the_guide_of_policies_does_what_it_shows() {
    let cluster = Cluster::new(1);
    let host = &cluster.hosts[0];
    let mut guide = Guide::read("policy.md");
    let agent = Agent::start(host, &[]);
    agent.wait_ready();
    let [web, _mon, db]: [Pod; 3] = ["web", "mon", "db"].map(|name| add(host, name, name));
    let listener = db.spot().inside(|| TcpListener::bind(("0.0.0.0", 5432)).unwrap());
    let target = SocketAddr::new(db.v4(), 5432);
    let connect = || {
        let wait = Duration::from_millis(200);
        web.spot().inside(|| TcpStream::connect_timeout(&target, wait)).ok()
    };
    let mut sessions = Vec::new();
    let mut step = |step: &Step| {
        if step.command == "systemctl reload humanz-agent" {
            agent.reload();
            return true;
        }
        if step.command.ends_with("watch --drops") {
            step.watch(host, || assert!(connect().is_none()));
            return true;
        }
        if step.command == "humanz-agent policy diff -f new.yaml" {
            sessions.push((connect().expect("it is allowed"), listener.accept().unwrap()));
        }
        false
    };
    for heading in [
        "Write",
        "Test and compare",
        "Roll out",
        "From etcd",
        "One object at a time",
        "Networks of tenants",
        "Fixed addresses",
        "Profiles",
        "In Contiv's words",
        "From Calico and kube-router",
        "Debug",
    ] {
        guide.follow(heading, host, &mut step);
    }
    guide.finish();
    agent.stop();
}

#[test]
fn a_guide_with_what_is_not_run_or_not_so_is_refused() {
    for bad in [
        "```console\n# false; echo $?\n```\n",
        "```yaml\n```\n",
        "    indented\n",
        "```console\noutput\n```\n",
    ] {
        assert!(std::panic::catch_unwind(|| Guide::parse("x.md", bad)).is_err(), "{bad}");
    }
    let left = Guide::parse("x.md", "# T\n```console\n# true\n```\n");
    assert!(std::panic::catch_unwind(|| left.finish()).is_err());
    let known = GuideConstants::of(
        "10.5.5.5\n```yaml f\nip: [10.1.1.1, fd00::9]\nport: 5432\n```\n```console\n# true --to 10.1.1.2:8080\n10.9.9.8:999\n```\n",
    );
    let shows = |wanted: &[&str], found: &[&str]| known.shows(wanted, found);
    assert!(shows(&["10.5.5.5 10.9.9.8:40122"], &["10.5.5.6 10.9.9.7:998"]));
    for (wanted, found) in [
        ("web (10.1.1.1)", "web (10.1.1.3)"),
        ("10.1.1.2:40122", "10.1.1.3:40122"),
        ("10.7.7.7:5432", "10.7.7.7:5433"),
        ("10.7.7.7:8080,", "10.7.7.7:80,"),
        ("fd00::9", "fd00::8"),
        ("10.7.7.7", "10.1.1.1"),
    ] {
        assert!(!shows(&[wanted], &[found]), "{wanted} {found}");
    }
    assert!(shows(&["web 10.1.2.3 5 fd00::1 (12ms)"], &["web  10.9.9.99 7 fd10:0:1::7 (3ms)"]));
    for (wanted, found) in [("web 5", "db 5"), ("5", "5.5"), ("a:80", "a:81"), ("a", "a b")] {
        assert!(!shows(&[wanted], &[found]), "{wanted} {found}");
    }
    assert!(shows(&["a", "…", "d"], &["a", "b", "c", "d"]) && shows(&["…"], &[]));
    assert!(!shows(&["a", "…"], &["b"]) && !shows(&["a"], &["a", "b"]) && !shows(&["a"], &[]));
}
