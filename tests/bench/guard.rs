//! What the guard at a pod's port costs a call, beside 250 other pods: ADD, CHECK, DEL.

use crate::series::{Series, alternate};
use crate::subject::{Offer, Program, Subject};
use crate::table::{Row, Table};
use crate::workspace::Workspace;

const OTHERS: usize = 250;
const PODS: usize = 60;
const BLOCK: usize = 10;

pub fn measure(workspace: &mut Workspace, table: &mut Table) {
    let subjects = [Offer::Plain, Offer::Unguarded].map(|offer| {
        let subject = Subject::new(workspace, Program::Humanz, offer, PODS + OTHERS);
        subject.one_by_one("ADD", PODS..PODS + OTHERS);
        subject
    });
    let run = |verb| {
        let series = alternate(&subjects, 0..PODS / BLOCK, |subject, block| {
            subject.one_by_one(verb, block * BLOCK..(block + 1) * BLOCK)
        });
        <[Series; 2]>::try_from(series).ok().expect("a series for each")
    };
    for (verb, share, extra) in [("ADD", 1.0, 0.3), ("CHECK", 1.05, 0.1), ("DEL", 1.02, 0.0)] {
        let [guarded, without] = run(verb);
        let above = guarded.above(&without);
        let limit = without.median() * (share - 1.0) + extra;
        table.push(Row {
            what: format!("{verb} with a guard, beside {OTHERS} pods; without one"),
            reference: without.to_string(),
            humanz: guarded.to_string(),
            target: format!("≤ {limit:+.2} ms"),
            reached: format!("{above:+.2} ms"),
            met: Some(above <= limit),
            ..Row::default()
        });
    }
}
