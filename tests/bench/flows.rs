//! What counting flows costs: new connections of a pod, and the agent's processor time for them. Off and on by
//! turns, on two hosts that differ in that alone.

use std::net::SocketAddr;
use std::time::Duration;

use crate::policy::{FILE, Side};
use crate::series::middle;
use crate::support::Agent;
use crate::support::wait::{SOON, eventually};
use crate::table::{Row, Table};
use crate::traffic::{self, ECHO};
use crate::usage;
use crate::workspace::Workspace;

const TURN: Duration = Duration::from_millis(500);
const TURNS: usize = 41;

/// What is still counted when the last connection has ended.
const REST: Duration = Duration::from_millis(150);

/// Part of the rate that counting may take.
const TARGET: f64 = 2.0;

/// Connections per second, and the agent's processor time for each in microseconds.
struct Turn {
    rate: f64,
    cpu: f64,
}

pub fn measure(_: &mut Workspace, table: &mut Table) {
    let [off, on] =
        ["off", "on"].map(|flows| Side::start_with(&[("POLICY", "on"), ("FLOWS", flows)]));
    [&off, &on].into_iter().for_each(|side| side.write(0, 0));
    listens(&on);
    let (mut without, mut with) = (Vec::new(), Vec::new());
    for number in 0..TURNS {
        if number % 2 == 0 {
            without.push(turn(&off));
            with.push(turn(&on));
        } else {
            with.push(turn(&on));
            without.push(turn(&off));
        }
    }
    let less = |(off, on): (&Turn, &Turn)| (1.0 - on.rate / off.rate) * 100.0;
    let less = middle(without.iter().zip(&with).map(less).collect());
    let rates = [&without, &with].map(|turns| middle(turns.iter().map(|it| it.rate).collect()));
    let cpus = [&without, &with].map(|turns| middle(turns.iter().map(|it| it.cpu).collect()));
    row(
        "new connections with FLOWS=on",
        "≤ 2 % fewer",
        format!("{less:+.1} % fewer: {:.0}/s, off {:.0}/s", rates[1], rates[0]),
        Some(less <= TARGET),
        table,
    );
    let each = format!("{:.2} µs, off {:.2} µs", cpus[1], cpus[0]);
    row("the agent's CPU for a connection with FLOWS=on", "", each, None, table);
}

fn turn(side: &Side) -> Turn {
    let before = usage::cpu(side.host());
    let rate = traffic::connections(&side.from, SocketAddr::new(side.to.v4(), ECHO), TURN);
    std::thread::sleep(REST);
    let cpu = (usage::cpu(side.host()) - before).as_secs_f64() * 1e6;
    Turn { rate, cpu: cpu / (rate * TURN.as_secs_f64()) }
}

/// A connection is counted, so that what is measured is on.
fn listens(on: &Side) {
    eventually("flows are counted", SOON, || {
        traffic::connections(&on.from, SocketAddr::new(on.to.v4(), ECHO), Duration::from_millis(1));
        let settings = [
            ("SUBNET_SOURCE", "static"),
            ("SUBNET", "10.244.0.0/22"),
            ("POLICY", "on"),
            ("POLICY_FILE", FILE),
        ];
        let ended = Agent::run(on.host(), "flows --json", &settings);
        if ended.stdout.contains("shop/from") { Ok(()) } else { Err(ended.to_string()) }
    });
}

fn row(what: &str, target: &str, reached: String, met: Option<bool>, table: &mut Table) {
    table.push(Row {
        what: what.into(),
        target: target.into(),
        humanz: reached.clone(),
        reached,
        met,
        ..Row::default()
    });
}
