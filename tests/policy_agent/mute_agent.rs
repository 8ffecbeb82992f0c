//! Plugins that ask an agent for a block, and get an answer late, in part, or none: every call ends, and leaves nothing.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::etcd::{FROM_ETCD, apply};
use crate::support::cni::{Attachment, Network};
use crate::support::node::command;
use crate::support::process::Process;
use crate::support::wait::patience;
use crate::support::{Cluster, Node, Place, Pod, facts, soon};
use crate::tenants::{add, namespace, network, try_add, two_tenants};

const SOCKET: &str = "/run/humanz/ipam/.policy.sock";

/// Takes the place of an agent: answers each question after so many seconds, with the next of the texts; `MiB` stands
/// for 64 of them.
const ANSWER: &str = r#"
    use Socket;
    my ($path, $delay, @texts) = @ARGV;
    unlink $path;
    socket(my $l, PF_UNIX, SOCK_STREAM, 0) or die;
    bind($l, sockaddr_un($path)) or die "$!"; chmod 0600, $path;
    listen($l, 50) or die; $SIG{PIPE} = $SIG{CHLD} = 'IGNORE'; $| = 1; print "ready\n";
    for (my $n = 0; accept(my $s, $l); $n++) {
        next if fork; close $l; alarm 60;
        sysread($s, my $question, 4096); select(undef, undef, undef, $delay);
        my $text = $texts[$n % @texts];
        if ($text ne "MiB") { syswrite($s, $text) }
        else { for (1 .. 64) { defined(syswrite($s, "x" x (1 << 20))) or last } }
        sleep 60; exit;
    }
"#;

/// Takes the place of an agent: gets a block of 10.NUMBER.0.0/16 after so many seconds, and says nothing of policies. With the
/// last block it holds a lock for so many seconds.
const SLOW: &str = r#"
    use Socket; use Fcntl ':flock';
    my ($path, $delay, $last, $lock, $held) = @ARGV;
    my $plans = '/run/humanz/ipam/.networks.json';
    unlink $path;
    socket(my $l, PF_UNIX, SOCK_STREAM, 0) or die;
    bind($l, sockaddr_un($path)) or die "$!"; chmod 0600, $path;
    listen($l, 50) or die; $SIG{PIPE} = $SIG{CHLD} = 'IGNORE'; $| = 1; print "ready\n";
    while (accept(my $s, $l)) {
        next if fork; close $l; alarm 90;
        sysread($s, my $question, 65536);
        if ($question =~ /"full"/ && $question =~ /"name":"more(\d)"/) {
            my $number = 39 + $1;
            select(undef, undef, undef, $delay);
            local $/; open(my $f, '<', $plans); my $text = <$f>;
            $text =~ s/("pools":\["10.$number.0.0\/16"\],"blocks":\[)\]/$1"10.$number.0.0\/26"]/ or print "no plan: $text\n";
            open(my $o, '>', "$plans.$$"); print $o $text; close $o; rename "$plans.$$", $plans;
            open(my $k, '<', $lock) or print "$lock: $!\n"; flock($k, LOCK_EX) if $held && $number == $last;
            syswrite($s, "{\"ready\": true}\n");
            sleep $held; exit;
        }
        sleep 60; exit;
    }
"#;

pub fn answering(host: &Node, delay: &str, texts: &[&str]) -> Process {
    let mut perl = command("perl -e");
    perl.arg(ANSWER).args([SOCKET, delay]).args(texts);
    let process = host.spawn(&mut perl);
    soon("who answers in the agent's place", || process.log().contains("ready"));
    process
}

/// Further networks `more1` … of the tenant red, and its namespace, which may have all of them.
fn more(count: usize) -> Vec<Value> {
    let names: Vec<String> = (1..=count).map(|number| format!("more{number}")).collect();
    let each = names.iter().enumerate().map(|(number, name)| {
        let subnet = format!("10.{}.0.0/16", 40 + number);
        network(&format!("red/{name}"), json!({"subnets": [subnet]}))
    });
    let rule = json!({"tenant": "red", "network": "front", "allow": names});
    each.chain([namespace("red", rule)]).collect()
}

#[test]
fn no_call_waits_for_ever_for_an_agent() {
    let cluster = Cluster::new(1);
    let host = &cluster.hosts[0];
    apply(host, &[two_tenants()[..3].to_vec(), more(4)].concat());
    let agents = cluster.start_agents(FROM_ETCD);
    let known = add(host, "blue/known");
    soon("the plans of all networks", || {
        host.read("/run/humanz/ipam/.networks.json").is_some_and(|text| text.contains("more4"))
    });
    // etcd may have had no members of this host when the pod came; status may not know the pod yet.
    let address = known.v4().to_string();
    soon("the policies of the pod", || {
        host.run("nft list map inet humanz-policy in4").stdout.contains(&address)
    });
    agents[0].kill();
    let found =
        || host.shell("ip -o link show type veth | wc -l; find /run/humanz/ipam -name '10.*'").ok();
    let before = found();
    let slow = Duration::from_secs(30) * patience();
    let texts = ["", "{\"ready\": true", "nonsense\n", "{}\n", "[true]\n", "MiB"];
    let answers = answering(host, "0", &texts);
    std::thread::scope(|scope| {
        for number in 0..texts.len() {
            scope.spawn(move || {
                let begun = Instant::now();
                let refused = try_add(host, &format!("red/p{number}"), json!({})).err().unwrap();
                assert_eq!(refused.code, 11, "{refused}");
                assert!(begun.elapsed() < slow / 2, "{refused}: {:?}", begun.elapsed());
            });
        }
    });
    assert_eq!(found(), before);
    // What asks for no block ends at once.
    let begun = Instant::now();
    known.check().unwrap();
    Network::of(host).with_version("1.1.0").status(host).unwrap();
    known.delete();
    // A single wait for an answer would take ten.
    assert!(begun.elapsed() < Duration::from_secs(9) * patience(), "{:?}", begun.elapsed());
    assert_eq!(facts::veths(host).len(), 0);
    drop(answers);
    // Each answer is in time, all of them are not.
    let before = found();
    let late = answering(host, "8", &["{\"ready\": true}\n"]);
    let begun = Instant::now();
    let list = json!({"humanz.io/networks": "front,more1@eth1,more2@eth2,more3@eth3,more4@eth4"});
    let refused = try_add(host, "red/many", list).err().unwrap();
    assert_eq!(refused.code, 11, "{refused}");
    assert!(begun.elapsed() < slow, "{refused}: {:?}", begun.elapsed());
    assert_eq!(found(), before);
    drop(late);
}

/// A slow agent that does not say everything, and a held lock, each of them within what is waited for it: together they
/// would take longer than an ADD may.
#[test]
fn waits_for_agent_and_locks_do_not_add_up() {
    let cluster = Cluster::new(1);
    let host = &cluster.hosts[0];
    apply(host, &[two_tenants()[..3].to_vec(), more(3)].concat());
    let agents = cluster.start_agents(FROM_ETCD);
    let file = "/run/humanz/ipam/.networks.json";
    soon("the plans of all networks", || {
        host.read(file).is_some_and(|text| text.contains("more3"))
    });
    // There is a store, and so a lock.
    let _known = add(host, "plain/known");
    agents[0].kill();
    let plans = host.read(file).unwrap();
    let numbers = [40, 41, 42];
    for number in numbers {
        host.run(&format!("ip addr add 10.{number}.0.1/26 dev humanz0")).ok();
    }
    let found =
        || host.shell("ip -o link show type veth | wc -l; find /run/humanz/ipam -name '10.*'").ok();
    let before = found();
    let list = json!({"humanz.io/networks": "more1,more2@eth1,more3@eth2"});
    for (pod, held, words) in [
        (
            "red/locked",
            "5",
            ["lock is locked by another process", "s for locks of other processes"],
        ),
        ("red/mute", "0", ["policies: no time", "agent's answer"]),
    ] {
        host.write(file, &plans);
        // What the table has of an address has the plugin wait longer for the agent that might say so.
        for number in numbers {
            let known: Vec<String> = (2..10).map(|last| format!("10.{number}.0.{last}")).collect();
            let known = known.join(", ");
            host.shell(&format!("nft add element inet humanz-policy open4 '{{ {known} }}'")).ok();
        }
        let lock = "/run/humanz/ipam/humanz/lock";
        let mut perl = command("perl -e");
        perl.arg(SLOW).args([SOCKET, "6", "42", lock, held]);
        let slow = host.spawn(&mut perl);
        soon("who answers in the agent's place", || slow.log().contains("ready"));
        let begun = Instant::now();
        let refused = try_add(host, pod, list.clone()).err();
        let took = begun.elapsed();
        assert!(took < Duration::from_secs(30) * patience(), "{pod}: {took:?}");
        let refused = refused.unwrap_or_else(|| panic!("{pod}: ADD after {took:?}"));
        assert_eq!(refused.code, 11, "{refused}");
        for words in
            words.into_iter().chain(["ADD waits 22 s in all: ", "s for blocks of networks"])
        {
            assert!(refused.to_string().contains(words), "{pod}: {refused}\n{}", slow.log());
        }
        drop(slow);
        soon("nothing to be left", || found() == before);
    }
}

/// STATUS, CHECK and GC, which keeps `pods` and removes `gone`, and DEL of that: each in its time.
fn every_other_verb_is_in_time(host: &Node, pods: &[Pod], gone: Pod, what: &str) {
    let latest = Network::of(host).with_version("1.1.0");
    let in_time = |verb: &str, seconds: u64, begun: Instant| {
        let limit = Duration::from_secs(seconds) * patience();
        assert!(begun.elapsed() < limit, "{what}: {verb}: {:?}", begun.elapsed());
    };
    let begun = Instant::now();
    latest.status(host).unwrap_or_else(|error| panic!("{what}: STATUS: {error}"));
    in_time("STATUS", 2, begun);
    let begun = Instant::now();
    gone.check().unwrap_or_else(|error| panic!("{what}: CHECK: {error}"));
    in_time("CHECK", 10, begun);
    let begun = Instant::now();
    let valid: Vec<&Attachment> = pods.iter().map(|pod| &pod.attachment).collect();
    latest.gc(host, &valid).unwrap_or_else(|error| panic!("{what}: GC: {error}"));
    in_time("GC", 15, begun);
    assert_eq!(facts::veths(host).len(), pods.len(), "{what}: GC");
    let begun = Instant::now();
    gone.delete();
    in_time("DEL", 15, begun);
    for pod in pods {
        pod.check().unwrap_or_else(|error| panic!("{what}: {}: {error}", pod.label()));
    }
}

#[test]
fn verbs_that_need_no_agent_wait_for_none() {
    let cluster = Cluster::new(1);
    let host = &cluster.hosts[0];
    apply(host, &two_tenants());
    let agents = cluster.start_agents(FROM_ETCD);
    let names = ["blue/a", "red/a", "blue/b", "plain/a", "blue/c"];
    let mut pods: Vec<Pod> = names.iter().map(|name| add(host, name)).collect();
    // Its sockets take connections, and nobody reads from them.
    agents[0].process.signal(Signal::SIGSTOP);
    let gone = pods.pop().unwrap();
    every_other_verb_is_in_time(host, &pods, gone, "a stopped agent");
    agents[0].kill();
    for (what, text) in
        [("no answer", ""), ("half an answer", "{\"ready\": tr"), ("garbage", "MiB")]
    {
        let answers = answering(host, "0", &[text]);
        let gone = pods.pop().unwrap();
        every_other_verb_is_in_time(host, &pods, gone, what);
        drop(answers);
    }
}

/// Somebody else holds the locks of the stores while the agent says nothing: a call waits for both, and in its time.
#[test]
fn a_held_lock_and_a_mute_agent_together_hold_up_no_call_for_ever() {
    let cluster = Cluster::new(1);
    let host = &cluster.hosts[0];
    apply(host, &two_tenants());
    let agents = cluster.start_agents(FROM_ETCD);
    let pods: Vec<Pod> = ["blue/a", "blue/b", "red/a"].map(|name| add(host, name)).into();
    let before = host.shell("find /run/humanz/ipam -name '10.*' | sort").ok();
    agents[0].process.signal(Signal::SIGSTOP);
    let locks = host.shell("find /run/humanz/ipam -name lock").ok();
    let holders: Vec<Process> = locks
        .lines()
        .map(|lock| host.spawn(&mut command(&format!("flock -F {lock} sleep 600"))))
        .collect();
    soon("the locks are held", || {
        locks.lines().all(|lock| !host.run(&format!("flock -n {lock} true")).succeeded())
    });
    let latest = &Network::of(host).with_version("1.1.0");
    let [kept, checked, gone] = [&pods[0], &pods[1], &pods[2]];
    let valid = [&kept.attachment, &checked.attachment];
    let refused =
        |failure: Box<crate::support::cni::Failure>| assert_eq!(failure.code, 11, "{failure}");
    let in_time = |verb: &str, seconds: u64, call: &(dyn Fn() + Sync)| {
        let begun = Instant::now();
        call();
        let limit = Duration::from_secs(seconds) * patience();
        assert!(begun.elapsed() < limit, "{verb}: {:?}", begun.elapsed());
    };
    std::thread::scope(|scope| {
        for name in ["blue/new", "red/new", "plain/new"] {
            scope.spawn(move || {
                in_time("ADD", 30, &|| refused(try_add(host, name, json!({})).err().unwrap()));
            });
        }
        scope.spawn(|| {
            in_time("DEL", 15, &|| {
                latest.del(host, &gone.attachment, &gone.result).unwrap();
            });
        });
        scope.spawn(|| in_time("CHECK", 10, &|| refused(checked.check().unwrap_err())));
        scope.spawn(|| in_time("GC", 15, &|| refused(latest.gc(host, &valid).unwrap_err())));
        scope.spawn(|| in_time("STATUS", 2, &|| latest.status(host).unwrap()));
    });
    drop(holders);
    agents[0].process.signal(Signal::SIGCONT);
    // What DEL noted is released by whoever has the lock next.
    let of_gone = format!("/{}", gone.v4());
    let others: Vec<&str> = before.lines().filter(|line| !line.ends_with(&of_gone)).collect();
    soon("the store has the other pods' addresses alone", || {
        let held = host.shell("find /run/humanz/ipam -name '10.*' | sort").ok();
        held.lines().collect::<Vec<_>>() == others
    });
    for pod in pods {
        pod.delete();
    }
    assert_eq!(facts::veths(host).len(), 0);
    add(host, "blue/again").delete();
}
