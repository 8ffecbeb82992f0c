//! The socket by which plugins ask for new pods: who may ask, who may answer, and what those do who only
//! hold it.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::cni::{Attachment, Network};
use crate::support::node::command;
use crate::support::process::Process;
use crate::support::wait::patience;
use crate::support::{Agent, Node, Place, Pod, pod, soon};
use crate::traffic::{Flood, Server};
use crate::{STANDALONE, add, alone, attachment, only_from, serve, write_policies};

pub const SOCKET: &str = "/run/humanz/ipam/.policy.sock";

/// Connects, sends `text` over and over, and gives what came back.
const ASK: &str = r#"
    use Socket;
    my ($path, $uid, $text, $times) = @ARGV;
    $( = $) = "$uid $uid"; $< = $> = $uid;
    $SIG{PIPE} = 'IGNORE'; $SIG{ALRM} = sub { print "silence"; exit 0 }; alarm 3;
    socket(my $s, PF_UNIX, SOCK_STREAM, 0) or die;
    connect($s, sockaddr_un($path)) or do { print "refused: $!"; exit 0 };
    for (1 .. $times) { defined(syswrite($s, $text)) or do { print "cut off"; exit 0 } }
    my $answer = ''; sysread($s, $answer, 4096); print "answer: $answer";
"#;

/// Answers everybody that their pods are in force, as user `uid`.
pub const ANSWER: &str = r#"
    use Socket;
    my ($path, $uid, $text, $times) = @ARGV;
    unlink $path;
    socket(my $l, PF_UNIX, SOCK_STREAM, 0) or die;
    bind($l, sockaddr_un($path)) or die "$!"; chmod 0666, $path;
    $( = $) = "$uid $uid"; $< = $> = $uid;
    listen($l, 50) or die; $SIG{PIPE} = 'IGNORE'; $| = 1; print "ready\n";
    while (accept(my $s, $l)) { for (1 .. $times) { defined(syswrite($s, $text)) or last } push @kept, $s }
"#;

/// Holds so many connections.
const HOLD: &str = r#"
    use Socket;
    my ($path, $count) = @ARGV;
    $SIG{PIPE} = 'IGNORE'; $| = 1;
    for (1 .. $count) {
        socket(my $s, PF_UNIX, SOCK_STREAM, 0) or die "$!"; connect($s, sockaddr_un($path)) or die "$!";
        push @kept, $s; print "ready\n" if $_ == 100;
    }
    sleep 60;
"#;

fn perl(script: &str, arguments: &[&str]) -> std::process::Command {
    let mut perl = command("perl -e");
    perl.arg(script).args(arguments);
    perl
}

fn ask(host: &Node, uid: &str, text: &str, times: &str) -> String {
    host.run_command(&mut perl(ASK, &[SOCKET, uid, text, times]), "").stdout
}

pub fn spawn(host: &Node, script: &str, arguments: &[&str]) -> Process {
    let process = host.spawn(&mut perl(script, arguments));
    soon("the attacker", || process.log().contains("ready"));
    process
}

fn policies_log(host: &Node) -> String {
    host.shell("tail -1 /var/log/humanz.log").stdout
}

/// A pod that is in force when its ADD ends. A busy machine may be too slow for the plugin's 200 ms, an emulated one
/// more often: then it may be a later one.
fn add_in_force(host: &Node, name: &str) -> Pod {
    for _ in 1..3 * patience() {
        let pod = add(host, name, "db");
        if policies_log(host).contains("policies=in force") {
            return pod;
        }
        pod.delete();
    }
    let pod = add(host, name, "db");
    assert!(policies_log(host).contains("policies=in force"), "{}", policies_log(host));
    pod
}

#[test]
fn only_root_may_ask_and_no_question_is_endless() {
    let alone = alone();
    let host = &alone.host;
    write_policies(host, &[only_from("db", &["web"])]);
    let agent = serve(host, &[]);
    let question = r#"{"network": "humanz", "container_id": "c", "ifname": "eth0", "pod": "shop/x",
        "addresses": ["10.244.1.200"], "labels": {}, "annotations": {}}"#;
    let question = format!("{}\n", question.replace('\n', " "));
    // The control.
    assert!(
        ask(host, "0", &question, "1").contains("in_force"),
        "{}",
        ask(host, "0", &question, "1")
    );
    assert!(ask(host, "65534", &question, "1").starts_with("refused"));
    // Even if somebody opens the file, and the folders.
    host.shell(&format!("chmod 0666 {SOCKET}; chmod 0755 /run/humanz /run/humanz/ipam")).ok();
    let said = ask(host, "65534", &question, "1");
    assert!(["answer: ", "cut off"].contains(&said.as_str()), "{said}");
    for (text, times) in [("x", "10000000"), ("{", "100000"), ("nonsense\n", "1"), ("[]\n", "1")] {
        let said = ask(host, "0", text, times);
        assert!(!said.contains("in_force") && said != "silence", "{text}: {said}");
    }
    assert!(ask(host, "0", &question, "1").contains("in_force"));
    agent.stop();
}

#[test]
fn a_thousand_silent_connections_hold_up_no_pod() {
    let alone = alone();
    let host = &alone.host;
    write_policies(host, &[only_from("db", &["web"])]);
    let agent = serve(host, &[]);
    let web = add(host, "web", "web");
    let holder = spawn(host, HOLD, &[SOCKET, "1000"]);
    let begun = Instant::now();
    let db = add(host, "db", "db");
    println!("ADD took {:?}: {}", begun.elapsed(), policies_log(host));
    let mut server = Server::open(&db);
    let _web = Flood::start(&web, db.v4());
    server.wait(web.v4());
    println!("reached {:?} after ADD began", begun.elapsed());
    let begun = Instant::now();
    let later = add_in_force(host, "later");
    println!("ADD took {:?}: {}", begun.elapsed(), policies_log(host));
    later.delete();
    drop(holder);
    agent.stop();
}

#[test]
fn what_lies_in_the_place_of_the_socket_is_replaced() {
    let alone = alone();
    let host = &alone.host;
    write_policies(host, &[]);
    host.shell("mkdir -p /run/humanz/ipam; echo precious > /etc/precious").ok();
    for (number, obstacle) in
        [format!("ln -sf /etc/precious {SOCKET}"), format!("rm -f {SOCKET}; echo x > {SOCKET}")]
            .iter()
            .enumerate()
    {
        host.shell(obstacle).ok();
        let agent = serve(host, &[]);
        let pod = add_in_force(host, &format!("pod{number}"));
        assert_eq!(host.read("/etc/precious").unwrap(), "precious\n");
        assert!(host.shell(&format!("stat -c %a {SOCKET}")).ok().contains("600"));
        pod.delete();
        agent.stop();
    }
}

#[test]
fn a_pod_is_not_in_force_because_somebody_says_so() {
    let alone = alone();
    let host = &alone.host;
    write_policies(host, &[only_from("db", &["web"])]);
    let agent = serve(host, &[]);
    let other = add(host, "other", "other");
    agent.kill();
    let yes = "{\"in_force\": true}\n";
    let connect = |name: &str| -> (Pod, Duration) {
        pod::make_netns(host, name);
        let begun = Instant::now();
        let network = crate::support::cni::Network::of(host);
        (Pod::connect(host, &network, attachment(name, "db")).unwrap(), begun.elapsed())
    };
    // Root's answer is believed: the control, which shows that the attacker's is read at all.
    let root = spawn(host, ANSWER, &[SOCKET, "0", yes, "1"]);
    let (db, _) = connect("believed");
    assert!(policies_log(host).contains("policies=in force"), "{}", policies_log(host));
    db.delete();
    drop(root);
    for (name, uid, text, times) in [
        ("user", "65534", yes, "1"),
        ("endless", "0", "x", "1000000"),
        ("silent", "0", "", "1"),
        ("nonsense", "0", "yes\n", "1"),
    ] {
        let attacker = spawn(host, ANSWER, &[SOCKET, uid, text, times]);
        let (db, took) = connect(name);
        assert!(took < Duration::from_secs(3), "{name}: {took:?}");
        assert!(policies_log(host).contains("quarantine"), "{name}: {}", policies_log(host));
        let mut server = Server::open(&db);
        Flood::start(&other, db.v4()).go_on();
        assert_eq!(server.received(other.v4()), 0, "{name}");
        db.delete();
        drop(attacker);
    }
    let agent = Agent::start(host, STANDALONE);
    agent.wait_ready();
    agent.stop();
}

/// Notes what links of pods there are when a question comes, then answers that the pod is in force.
const NOTE: &str = r#"
    use Socket;
    my ($path, $notes) = @ARGV;
    unlink $path;
    socket(my $l, PF_UNIX, SOCK_STREAM, 0) or die;
    bind($l, sockaddr_un($path)) or die "$!"; chmod 0600, $path;
    listen($l, 50) or die; $| = 1; print "ready\n";
    while (accept(my $s, $l)) {
        sysread($s, my $question, 4096); select(undef, undef, undef, 0.1);
        system("ip -o link show type veth > $notes");
        syswrite($s, "{\"in_force\": true}\n");
    }
"#;

#[test]
fn a_pods_link_is_down_until_the_agent_has_answered() {
    let alone = alone();
    let host = &alone.host;
    write_policies(host, &[only_from("db", &["web"])]);
    serve(host, &[]).kill();
    let links = || host.shell("ip -o link show type veth").ok();
    let before = links();
    let agent = spawn(host, NOTE, &[SOCKET, "/etc/notes"]);
    let db = add(host, "db", "db");
    let meanwhile = host.read("/etc/notes").unwrap();
    let own = |text: &str| -> Vec<String> {
        text.lines().filter(|line| !before.contains(*line)).map(str::to_owned).collect()
    };
    // It is made meanwhile, which is why ADD need not wait for the agent alone.
    let [link] = &own(&meanwhile)[..] else { panic!("{meanwhile}") };
    assert!(link.contains(": hz") && !link.contains(",UP"), "{link}");
    assert!(own(&links()).concat().contains(",UP"), "{}", links());
    db.delete();
    drop(agent);
}

#[test]
fn a_pod_that_is_not_to_start_without_an_answer_leaves_nothing() {
    let alone = alone();
    let host = &alone.host;
    write_policies(host, &[only_from("db", &["web"])]);
    serve(host, &[("POLICY_ON_AGENT_DOWN", "fail")]).kill();
    let found = || {
        host.shell("ip -o link show type veth | wc -l; find /run/humanz/ipam -name '10.244.*'").ok()
    };
    let before = found();
    let silent = spawn(host, ANSWER, &[SOCKET, "0", "", "1"]);
    pod::make_netns(host, "db");
    let network = crate::support::cni::Network::of(host);
    let refused = Pod::connect(host, &network, attachment("db", "db")).map(drop).unwrap_err();
    assert_eq!(refused.code, 11, "{refused:?}");
    assert_eq!(found(), before);
    drop(silent);
}

/// Each byte of a control character is six in the question.
#[test]
fn the_longest_words_of_a_pod_do_not_make_the_agent_seem_away() {
    let alone = alone();
    let host = &alone.host;
    write_policies(host, &[only_from("db", &["web"])]);
    let agent = serve(host, &[]);
    let words: serde_json::Map<String, Value> =
        (0..64).map(|number| (format!("humanz.io/{number}"), "\u{1}".repeat(253).into())).collect();
    let runtime = json!({"io.kubernetes.cri.pod-annotations": words});
    for round in 0..3 {
        let name = format!("long{round}");
        pod::make_netns(host, &name);
        let to = Attachment { runtime: runtime.clone(), ..attachment(&name, "db") };
        let long = Pod::connect(host, &Network::of(host), to).unwrap();
        let said = policies_log(host);
        assert!(said.contains("policies=") && !said.contains("does not answer"), "{said}");
        long.delete();
    }
    agent.stop();
}
