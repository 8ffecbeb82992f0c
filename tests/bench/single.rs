//! One pod after the other: ADD, CHECK, DEL; plain, with masquerade, dual stack.

use crate::series::{Series, alternate};
use crate::subject::{Offer, Program, Subject};
use crate::table::{Row, Table};
use crate::workspace::Workspace;

const PODS: usize = 60;
const BLOCK: usize = 10;

/// The kernel's cost is the same with masquerade: a rule of the host, not of the pod.
const SUBJECTS: [(Program, Offer); 8] = [
    (Program::Reference, Offer::Plain),
    (Program::Floor, Offer::Plain),
    (Program::Humanz, Offer::Plain),
    (Program::Reference, Offer::Masquerade),
    (Program::Humanz, Offer::Masquerade),
    (Program::Reference, Offer::DualStack),
    (Program::Floor, Offer::DualStack),
    (Program::Humanz, Offer::DualStack),
];

pub fn measure(workspace: &mut Workspace, table: &mut Table) {
    let subjects = SUBJECTS.map(|(program, offer)| Subject::new(workspace, program, offer, PODS));
    let run = |verb| {
        let series = alternate(&subjects, 0..PODS / BLOCK, |subject, block| {
            subject.one_by_one(verb, block * BLOCK..(block + 1) * BLOCK)
        });
        <[Series; SUBJECTS.len()]>::try_from(series).ok().expect("a series for each")
    };
    add(&run("ADD"), table);
    check(&run("CHECK"), table);
    delete(&run("DEL"), table);
}

fn add([reference, floor, humanz, rest @ ..]: &[Series; SUBJECTS.len()], table: &mut Table) {
    let times = humanz.times(floor);
    table.push(Row {
        what: "ADD".into(),
        target: "≤ 2 × floor".into(),
        reached: format!("{times:.2} ×"),
        met: Some(times <= 2.0),
        ..cells(reference, Some(floor), humanz)
    });
    let [masquerade_reference, masquerade, dual_reference, dual_floor, dual] = rest;
    let mut more = |what: &str, reference, floor, own: &Series| {
        let above = own.above(humanz);
        table.push(Row {
            what: what.into(),
            target: "≤ ADD + 1 ms".into(),
            reached: format!("{above:+.2} ms"),
            met: Some(above <= 1.0),
            ..cells(reference, floor, own)
        });
    };
    more("ADD, masquerade", masquerade_reference, None, masquerade);
    more("ADD, dual stack", dual_reference, Some(dual_floor), dual);
}

fn check([reference, floor, humanz, ..]: &[Series; SUBJECTS.len()], table: &mut Table) {
    let median = humanz.median();
    table.push(Row {
        what: "CHECK".into(),
        target: "≤ 1.5 ms".into(),
        reached: format!("{median:.2} ms"),
        met: Some(median <= 1.5),
        ..cells(reference, Some(floor), humanz)
    });
}

fn delete([reference, floor, humanz, rest @ ..]: &[Series; SUBJECTS.len()], table: &mut Table) {
    let [masquerade_reference, masquerade, dual_reference, dual_floor, dual] = rest;
    let mut row = |what: &str, reference, floor, humanz: &Series| {
        let times = humanz.times(floor);
        table.push(Row {
            what: what.into(),
            target: "≤ 1.1 × floor".into(),
            reached: format!("{times:.2} ×"),
            met: Some(times <= 1.1),
            ..cells(reference, Some(floor), humanz)
        });
    };
    row("DEL", reference, floor, humanz);
    row("DEL, masquerade", masquerade_reference, floor, masquerade);
    row("DEL, dual stack", dual_reference, dual_floor, dual);
}

fn cells(reference: &Series, floor: Option<&Series>, humanz: &Series) -> Row {
    Row {
        reference: reference.to_string(),
        floor: floor.map(Series::to_string).unwrap_or_default(),
        humanz: humanz.to_string(),
        ..Row::default()
    }
}
