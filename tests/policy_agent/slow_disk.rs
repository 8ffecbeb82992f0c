//! A disk that takes seconds for each file, and one that is full.

use std::time::Duration;

use crate::etcd::{FROM_ETCD, apply};
use crate::held::quarantine;
use crate::support::node::{Place, command};
use crate::support::{Agent, Cluster, Node, local, soon};
use crate::{STANDALONE, add, alone, only_from, serve, write_policies};

const FOLDER: &str = "/var/lib/humanz";

const LOG: &str = "/var/log/humanz.log";

/// Microseconds that the disk takes: far longer than a plugin waits for the agent.
const DELAY: u32 = 700_000;

/// Slows down what writes the policies for the next start, and nothing else.
fn slow_down(host: &Node) -> crate::support::process::Process {
    let pid = host.run("pidof humanz-agent").ok().trim().to_owned();
    let files =
        ["policy.json", "policy.json.next"].map(|name| format!("{FOLDER}/.{name}.humanz-new"));
    let mut strace = command("strace -f -qq -o /run/trace -e trace=fsync -e signal=none");
    strace.args(["-e", &format!("inject=fsync:delay_enter={DELAY}"), "-p", &pid, "-P", FOLDER]);
    strace.args(files.iter().flat_map(|file| ["-P", file]));
    let process = host.spawn(&mut strace);
    soon("strace", || {
        !host.run(&format!("grep TracerPid /proc/{pid}/status")).stdout.contains("\t0")
    });
    process
}

#[test]
fn pods_start_while_the_disk_is_slow_and_what_holds_is_kept() {
    let cluster = Cluster::new(1);
    let host = &cluster.hosts[0];
    let agents = cluster.start_agents(FROM_ETCD);
    let mut pods = vec![add(host, "first", "db")];
    soon("a pod is released", || quarantine(host, "shop/first").is_none());
    let before = host.read(LOG).unwrap().lines().count();
    let slow = slow_down(host);
    for number in 0..25 {
        apply(host, &[only_from("db", &[&format!("web{number}")])]);
        pods.push(add(host, &format!("p{number}"), "db"));
        std::thread::sleep(Duration::from_millis(100));
    }
    let log = host.read(LOG).unwrap();
    let waited = log.lines().skip(before).filter(|line| !line.contains("policies=in force"));
    let waited: Vec<&str> = waited.collect();
    assert!(waited.is_empty(), "{waited:#?}");
    let delayed = host.read("/run/trace").expect("strace is needed: apt-get install strace");
    assert!(delayed.matches("(DELAYED)").count() > 2, "{delayed}");
    // What changed while it was written is written, too.
    soon("what holds is kept", || {
        let kept = host.read(&format!("{FOLDER}/policy.json"));
        kept.is_some_and(|kept| kept.contains("web24"))
    });
    slow.kill();
    assert!(
        !host.list(FOLDER).iter().any(|name| name.contains("outdated") || name.contains("next"))
    );
    apply(host, &[only_from("db", &["last"])]);
    let known = || Agent::run(host, "policy show shop/db", FROM_ETCD).stdout.contains("last");
    soon("it is known", known);
    agents[0].stop();
    assert!(host.read(&format!("{FOLDER}/policy.json")).unwrap().contains("last"));
    let again = Agent::start(host, FROM_ETCD);
    again.wait_ready();
    again.stop();
}

/// It said to look at certificates.
#[test]
fn a_full_disk_that_keeps_members_from_being_published_is_what_the_fix_leads_to() {
    let cluster = Cluster::new(1);
    let host = &cluster.hosts[0];
    host.run(&format!("mkdir -p {FOLDER}")).ok();
    host.run(&format!("mount -t tmpfs -o size=256k none {FOLDER}")).ok();
    let agents = cluster.start_agents(FROM_ETCD);
    apply(host, &[only_from("db", &["web"])]);
    let _db = add(host, "db", "db");
    host.shell(&format!("cat /dev/zero > {FOLDER}/full"));
    let _web = add(host, "web", "web");
    let problem = local::wait_problem(host, "etcd", "members of this host");
    let said = Agent::run(host, "doctor", FROM_ETCD).stdout;
    assert!(problem["what"].as_str().unwrap().contains("No space left"), "{problem}");
    assert!(problem["fix"].as_str().unwrap().starts_with("humanz-agent doctor # "), "{problem}");
    assert!(said.contains(&format!("df -h {FOLDER}")), "{said}");
    host.run(&format!("rm {FOLDER}/full")).ok();
    let is_gone = |status: &_| local::problem(status, "etcd", "members of this host").is_none();
    local::status_when(host, "members are published", is_gone);
    agents.iter().for_each(Agent::stop);
}

/// Everything said "nothing is wrong" but doctor and the log.
#[test]
fn a_disk_that_takes_no_state_is_reported_by_status_and_by_a_dry_run() {
    let alone = alone();
    let host = &alone.host;
    host.run(&format!("mkdir -p {FOLDER}")).ok();
    host.run(&format!("mount -t tmpfs -o size=4m none {FOLDER}")).ok();
    write_policies(host, &[only_from("db", &["web"])]);
    let often = [("RESYNC_INTERVAL", "1s")];
    let agent = serve(host, &often);
    assert!(Agent::run(host, "status", STANDALONE).stdout.contains("nothing is wrong"));
    host.shell(&format!("cat /dev/zero > {FOLDER}/full"));
    let disk = format!("disk of {FOLDER}");
    local::wait_problem(host, "disk-full", &disk);
    let dry = || Agent::run(host, "--dry-run", STANDALONE).stdout;
    assert!(
        dry().contains(&format!("! {FOLDER} (state of the agent) has 0 KiB left")),
        "{}",
        dry()
    );
    host.run(&format!("rm {FOLDER}/full")).ok();
    local::status_when(host, "room", |it| local::problem(it, "disk-full", &disk).is_none());
    agent.stop();
    host.run(&format!("mount -o remount,ro {FOLDER}")).ok();
    assert!(dry().contains(&format!("! {FOLDER} (state of the agent) is on a file")), "{}", dry());
}
