//! Pods that request a host port and bandwidth limits: cost and result.

use serde_json::json;

use crate::series::{Series, alternate, middle};
use crate::subject::{Offer, Program, Subject};
use crate::support::Pod;
use crate::support::cni::Attachment;
use crate::support::node::Place;
use crate::support::pod::make_netns;
use crate::table::{Row, Table};
use crate::workspace::Workspace;

const PODS: usize = 100;
const BLOCK: usize = 5;
/// Host ports that are taken already.
const MANY: usize = 5_000;
/// The limit of [`Offer::PortAndLimits`], in Mbit/s.
const LIMIT: f64 = 100.0;
const TRANSFERS: usize = 5;

pub fn measure(workspace: &mut Workspace, table: &mut Table) {
    let plain = Subject::new(workspace, Program::Humanz, Offer::Plain, PODS);
    let reference = Subject::new(workspace, Program::Reference, Offer::PortAndLimits, PODS);
    let asking = Subject::new(workspace, Program::Humanz, Offer::PortAndLimits, PODS);
    let crowded = Subject::new(workspace, Program::Humanz, Offer::PortAndLimits, PODS);
    crowd(&crowded);
    let subjects = [plain, reference, asking, crowded];
    for verb in ["ADD", "DEL"] {
        let series = alternate(&subjects, 0..PODS / BLOCK, |subject, block| {
            subject.one_by_one(verb, block * BLOCK..(block + 1) * BLOCK)
        });
        cost(verb, &series, table);
        if verb == "ADD" {
            limits(&subjects[1], &subjects[2], table);
        }
    }
}

fn cost(verb: &str, series: &[Series], table: &mut Table) {
    let [plain, reference, asking, crowded] = series else { return };
    let above = asking.above(plain);
    table.push(Row {
        what: format!("{verb}, host port and limits"),
        reference: reference.to_string(),
        humanz: format!("{asking} (plain {:.2})", plain.median()),
        target: format!("≤ plain {verb} + 1.5 ms"),
        reached: format!("{above:+.2} ms"),
        met: Some(above <= 1.5),
        ..Row::default()
    });
    let times = crowded.times(asking);
    table.push(Row {
        what: format!("  the same with {MANY} ports taken"),
        humanz: format!("{asking} → {crowded}"),
        target: "as with none (≤ 1.1 ×)".into(),
        reached: format!("{times:.2} ×"),
        met: Some(times <= 1.1),
        ..Row::default()
    });
}

/// Lets few pods take [`MANY`] host ports.
fn crowd(subject: &Subject) {
    const OF_A_POD: usize = 250;
    for first in (0..MANY).step_by(OF_A_POD) {
        let name = format!("crowd{first}");
        make_netns(&subject.node, &name);
        let mapping =
            |port| json!({"hostPort": 40_000 + port, "containerPort": port + 1, "protocol": "tcp"});
        let mappings: Vec<_> = (first..first + OF_A_POD).map(mapping).collect();
        let runtime = json!({"portMappings": mappings});
        let attachment = Attachment { runtime, ..Attachment::new(&name) };
        Pod::connect(&subject.node, &subject.network, attachment).unwrap();
    }
}

/// One TCP stream in each direction between a pod and its host, by turns.
fn limits(reference: &Subject, humanz: &Subject, table: &mut Table) {
    for (what, reverse) in [("toward a limited pod", ""), ("from a limited pod", "--reverse")] {
        let [mut theirs, mut own] = [Vec::new(), Vec::new()];
        for _ in 0..TRANSFERS {
            theirs.push(transfer(reference, reverse));
            own.push(transfer(humanz, reverse));
        }
        let (theirs, own) = (middle(theirs), middle(own));
        table.push(Row {
            what: format!("TCP {what}"),
            reference: format!("{theirs:.1} Mbit/s"),
            humanz: format!("{own:.1} Mbit/s"),
            target: format!("{LIMIT} Mbit/s ± 10 %"),
            reached: format!("{:+.1} %", (own / LIMIT - 1.0) * 100.0),
            met: Some((own / LIMIT - 1.0).abs() <= 0.1),
            ..Row::default()
        });
    }
}

/// Mbit/s that arrive in two seconds.
fn transfer(subject: &Subject, reverse: &str) -> f64 {
    let address = subject.address(0);
    let server = subject.node.run("ip netns exec pod0 iperf3 --server --one-off --daemon");
    server.ok();
    let client = format!("iperf3 --json --time 2 --omit 1 {reverse} --client {address}");
    let report = subject.node.until_ok(&client, crate::support::wait::SOON);
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    report["end"]["sum_received"]["bits_per_second"].as_f64().expect("a rate") / 1e6
}
