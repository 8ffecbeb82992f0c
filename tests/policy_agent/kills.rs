//! The agent is killed again and again while policies change: no denied packet arrives, and an allowed
//! connection goes on.

use nix::sys::signal::Signal;

use crate::support::Agent;
use crate::traffic::{Flood, Server};
use crate::{STANDALONE, add, alone, only_from, serve, write_policies};

const KILLS: u64 = 100;

#[test]
fn a_hundred_kills_of_the_agent_let_no_denied_packet_through() {
    let alone = alone();
    let host = &alone.host;
    let policies = |number: u64| {
        let extra = format!("extra{}", number % 7);
        let further = (0..number % 5).map(|at| only_from(&format!("app{at}"), &["web"]));
        let db = only_from("db", &["web", &extra]);
        write_policies(host, &[db].into_iter().chain(further).collect::<Vec<_>>());
    };
    policies(0);
    let agent = serve(host, &[]);
    let (db, web) = (add(host, "db", "db"), add(host, "web", "web"));
    let other = add(host, "other", "other");
    let mut server = Server::open(&db);
    let floods = [db.v4(), db.v6()].map(|to| [Flood::start(&web, to), Flood::start(&other, to)]);
    agent.kill();
    for number in 1..=KILLS {
        policies(number);
        let agent = Agent::start(host, STANDALONE);
        if number % 4 == 0 {
            agent.wait_ready();
        }
        std::thread::sleep(std::time::Duration::from_millis(number * 7 % 90));
        agent.process.signal(Signal::SIGKILL);
        agent.process.wait(crate::support::wait::SOON);
        for [allowed, denied] in &floods {
            allowed.go_on();
            denied.go_on();
        }
        for (own, other) in [(web.v4(), other.v4()), (web.v6(), other.v6())] {
            server.wait(own);
            assert_eq!(server.received(other), 0, "after kill {number}");
        }
    }
    let denied: u64 = floods.iter().map(|[_, denied]| denied.sent()).sum();
    println!("{KILLS} kills: {denied} denied packets were sent, 0 arrived");
}
