//! The cost of humanz, compared with the reference plugins and with the kernel alone, in one run.
//!
//! `make bench`, as root; `make bench PART=add,agent-10000` runs a part. It judges itself against the
//! targets of the design and says so, but ends well whatever the figures: it is no test.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a bench stops at the first failure and prints"
)]

mod asked;
mod call;
mod dataplane;
mod encryption;
mod fill;
mod flows;
mod guard;
mod joins;
mod networks;
mod parallel;
mod peers;
mod policy;
mod policy_hosts;
mod records;
mod repair;
mod series;
mod single;
mod still;
mod subject;
mod table;
mod traffic;
mod usage;
mod workspace;

use humanz_test_support as support;

use std::panic::AssertUnwindSafe;
use std::process::Command;
use std::time::Instant;

use table::Table;
use workspace::Workspace;

/// Name, what it measures, and the function that does.
type Part = (&'static str, &'static str, fn(&mut Workspace, &mut Table));

/// The part "agent" is all those whose names begin with "agent-".
const PARTS: [Part; 17] = [
    ("add", "ADD, CHECK and DEL, one at a time", single::measure),
    ("guard", "what the guard at a pod's port costs", guard::measure),
    ("asked", "pods that ask for a host port and for limits", asked::measure),
    ("parallel", "ADD and DEL, eight at a time", parallel::measure),
    ("ipam", "with 250 and with 60,000 addresses taken", fill::measure),
    ("still", "STATUS, VERSION, the executable", still::measure),
    ("dataplane", "what passes between pods", dataplane::measure),
    ("encryption", "WireGuard: packets between pods, 1,000 peers", encryption::measure),
    ("repair", "what somebody replaces or sets down", repair::measure),
    ("policy", "policies: their load, changes, packets, pods that start", policy::measure),
    ("policy-hosts", "policies on 50 hosts with one etcd", policy_hosts::measure),
    ("networks", "pods in tenants' networks, and the rates of profiles", networks::measure),
    ("flows", "counting who connects to what: new connections, the agent's CPU", flows::measure),
    ("agent-100", "the agent among 100 hosts", peers::hundred),
    ("agent-1000", "the agent among 1,000 hosts", peers::thousand),
    ("agent-10000", "the agent among 10,000 hosts", peers::ten_thousand),
    ("joins", "1,000 fresh hosts that start together", joins::measure),
];

fn main() {
    let parts = wanted(&std::env::var("PART").unwrap_or_default());
    before_others();
    let mut workspace = Workspace::new();
    let mut table = Table::default();
    let mut broken = Vec::new();
    for (name, what, measure) in parts {
        let start = Instant::now();
        println!("{name}: {what}");
        usage::wait_idle();
        // The figures of the other parts are worth telling.
        let run = AssertUnwindSafe(|| measure(&mut workspace, &mut table));
        if std::panic::catch_unwind(run).is_err() {
            broken.push(name);
        }
        println!("  ({:.0} s)", start.elapsed().as_secs_f64());
    }
    println!("\n{table}");
    if !broken.is_empty() {
        eprintln!("could not be measured, see above: {}", broken.join(", "));
        std::process::exit(1);
    }
}

/// Reduces the influence of other load on this machine.
fn before_others() {
    let own = std::process::id().to_string();
    drop(Command::new("renice").args(["-n", "-19", "-p", &own]).output());
}

/// The parts that a comma list names; all of them if it is empty.
fn wanted(list: &str) -> Vec<Part> {
    let names: Vec<_> = list.split(',').filter(|name| !name.is_empty()).collect();
    let means = |name: &str, part: &Part| {
        part.0.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
    };
    for name in &names {
        if !PARTS.iter().any(|part| means(name, part)) {
            eprintln!("PART={name}: there is no such part; there are:");
            PARTS.iter().for_each(|(name, what, _)| eprintln!("  {name:12} {what}"));
            std::process::exit(2);
        }
    }
    let named = |part: &Part| names.iter().any(|name| means(name, part));
    PARTS.into_iter().filter(|part| names.is_empty() || named(part)).collect()
}
