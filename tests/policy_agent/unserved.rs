//! What STATUS and CHECK say while no agent answers: whether pods can start, and which pod waits for it.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::socket::{ANSWER, SOCKET, spawn};
use crate::support::cni::{Failure, Network};
use crate::support::wait::patience;
use crate::support::{Node, Place, Pod, pod, soon};
use crate::{add, alone, attachment, only_from, serve, write_policies};

const NO_TABLE: &str = "no table inet humanz-policy";
const DELETE_TABLE: &str = "nft delete table inet humanz-policy";

fn status(host: &Node) -> Result<(), Box<Failure>> {
    let begun = Instant::now();
    let answer = Network::of(host).with_version("1.1.0").status(host);
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(2) * patience(), "{took:?}");
    answer
}

/// STATUS says that there is no ADD, and what to do; ADD says the same.
fn is_refused(host: &Node, name: &str, why: &str) {
    let refused = status(host).expect_err(why);
    assert_eq!(refused.code, 50, "{refused}");
    for text in [why, "systemctl status humanz-agent"] {
        assert!(refused.to_string().contains(text), "{refused}");
    }
    let refused = try_add(host, name).err().unwrap();
    assert!(refused.code == 11 && refused.to_string().contains(why), "{refused}");
}

fn try_add(host: &Node, name: &str) -> Result<Pod, Box<Failure>> {
    pod::make_netns(host, name);
    Pod::connect(host, &Network::of(host), attachment(name, "web"))
}

#[test]
fn status_says_so_where_no_pod_starts_without_the_agent() {
    let alone = alone();
    let host = &alone.host;
    write_policies(host, &[only_from("db", &["web"])]);
    let fail = [("POLICY_ON_AGENT_DOWN", "fail")];
    let agent = serve(host, &fail);
    status(host).unwrap();
    agent.process.signal(Signal::SIGSTOP);
    is_refused(host, "stopped", "POLICY_ON_AGENT_DOWN=fail");
    agent.process.signal(Signal::SIGCONT);
    soon("STATUS of an agent that goes on", || status(host).is_ok());
    agent.kill();
    is_refused(host, "dead", "POLICY_ON_AGENT_DOWN=fail");
    // Another user listens in the place of the agent.
    let other = spawn(host, ANSWER, &[SOCKET, "65534", "x\n", "1"]);
    is_refused(host, "other", "not as root");
    drop(other);

    serve(host, &[("POLICY_ON_AGENT_DOWN", "open")]).kill();
    status(host).unwrap();
    host.run(DELETE_TABLE).ok();
    status(host).unwrap();
    try_add(host, "open").unwrap();

    serve(host, &[]).kill();
    status(host).unwrap();
    try_add(host, "quarantined").unwrap();
    host.run(DELETE_TABLE).ok();
    is_refused(host, "unkept", NO_TABLE);
    let agent = serve(host, &[]);
    status(host).unwrap();
    agent.stop();
    status(host).unwrap();
}

#[test]
fn status_and_add_succeed_through_restarts_of_the_agent() {
    let alone = alone();
    let host = &alone.host;
    write_policies(host, &[only_from("db", &["web"])]);
    let mut agent = serve(host, &[]);
    let (ended, asked) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(Ordering::Relaxed) {
                status(host).unwrap();
                asked.fetch_add(1, Ordering::Relaxed);
            }
        });
        for number in 0..4 {
            let before = asked.load(Ordering::Relaxed);
            match number % 2 {
                0 => agent.kill(),
                _ => agent.stop(),
            }
            add(host, &format!("pod{number}"), "web");
            agent = serve(host, &[]);
            soon("questions", || asked.load(Ordering::Relaxed) > before + 5);
        }
        ended.store(true, Ordering::Relaxed);
    });
    println!("{asked:?} times STATUS");
}

#[test]
fn check_says_that_a_pod_waits_for_the_agent() {
    let alone = alone();
    let host = &alone.host;
    write_policies(host, &[only_from("db", &["web"])]);
    let agent = serve(host, &[]);
    let served = add(host, "served", "db");
    agent.kill();
    let waiting = add(host, "waiting", "db");
    // CRI-O asks at the end of each ADD, and the pod does start.
    waiting.check().unwrap();
    let mut refused = None;
    soon("the pod has waited", || {
        refused = waiting.check().err();
        refused.is_some()
    });
    let refused = refused.unwrap();
    assert_eq!(refused.code, 11, "{refused}");
    for text in ["pod shop/waiting is in quarantine", "systemctl status humanz-agent"] {
        assert!(refused.to_string().contains(text), "{refused}");
    }
    served.check().unwrap();
    // Whoever reads what is asked is there, and keeps the pod in quarantine; whoever does not is not.
    let agent = spawn(host, ANSWER, &[SOCKET, "0", "x\n", "1"]);
    waiting.check().unwrap();
    drop(agent);
    let mute = spawn(host, ANSWER, &[SOCKET, "0", "", "1"]);
    let refused = waiting.check().unwrap_err();
    assert_eq!(refused.code, 11, "{refused}");
    drop(mute);
    // What differs from the result of ADD comes first.
    host.run(&format!("ip -n waiting addr del {}/24 dev eth0", waiting.v4())).ok();
    let differs = waiting.check().unwrap_err();
    assert_eq!(differs.code, 103, "{differs}");
    host.run(&format!("ip -n waiting addr add {}/24 dev eth0", waiting.v4())).ok();
    host.run(&format!("ip -n waiting route add default via {}", waiting.gateways()[0])).ok();
    let _agent = serve(host, &[]);
    soon("the pod is released", || waiting.check().is_ok());
    served.check().unwrap();
}
