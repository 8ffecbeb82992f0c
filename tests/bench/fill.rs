//! ADD and DEL while few or many addresses are taken.

use std::path::Path;

use crate::series::{Series, alternate};
use crate::subject::{Offer, Program, Subject};
use crate::table::{Row, Table};
use crate::workspace::Workspace;

const FEW: u32 = 250;
const MANY: u32 = 60_000;
const PODS: usize = 20;
const BLOCK: usize = 5;

pub fn measure(workspace: &mut Workspace, table: &mut Table) {
    let cases = [
        (Program::Reference, FEW),
        (Program::Reference, MANY),
        (Program::Humanz, FEW),
        (Program::Humanz, MANY),
    ];
    let subjects = cases.map(|(program, taken)| {
        let subject = Subject::without_bridge(workspace, program, Offer::Plain, PODS + 1);
        // humanz takes over what host-local left.
        fill(&subject.node.place("/var/lib").join("cni/networks").join("bench"), taken);
        subject.one_by_one("ADD", PODS..PODS + 1);
        subject
    });
    let run = |verb| {
        alternate(&subjects, 0..PODS / BLOCK, |subject, block| {
            subject.one_by_one(verb, block * BLOCK..(block + 1) * BLOCK)
        })
    };
    push("ADD", &run("ADD"), table);
    push("DEL", &run("DEL"), table);
}

/// Writes host-local's store with the first `taken` pod addresses of 10.88.0.0/16.
fn fill(folder: &Path, taken: u32) {
    std::fs::create_dir_all(folder).unwrap();
    let address = |number| std::net::Ipv4Addr::from(0x0a58_0001 + number).to_string();
    for number in 1..=taken {
        std::fs::write(folder.join(address(number)), format!("old{number}\r\neth0")).unwrap();
    }
    std::fs::write(folder.join("last_reserved_ip.0"), address(taken)).unwrap();
}

fn push(verb: &str, series: &[Series], table: &mut Table) {
    let [reference_few, reference_many, few, many] = series else { return };
    let pair =
        |few: &Series, many: &Series| format!("{:.2} → {:.2} ms", few.median(), many.median());
    let times = many.times(few);
    table.push(Row {
        what: format!("{verb}, 250 → 60,000 taken"),
        reference: pair(reference_few, reference_many),
        humanz: pair(few, many),
        target: "as at 250 (≤ 1.1 ×)".into(),
        reached: format!("{times:.2} ×"),
        met: Some(times <= 1.1),
        ..Row::default()
    });
}
