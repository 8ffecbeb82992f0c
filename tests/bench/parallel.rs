//! Eight concurrent pods.

use crate::series::{Series, alternate};
use crate::subject::{Offer, Program, Subject};
use crate::table::{Row, Table};
use crate::workspace::Workspace;

const WORKERS: usize = 8;
const PODS: usize = 80;
const BLOCK: usize = 40;
/// ADD and DEL calls of every pod.
const ROUNDS: usize = 5;

pub fn measure(workspace: &mut Workspace, table: &mut Table) {
    let candidates = [Program::Reference, Program::Floor, Program::Humanz];
    let subjects = candidates.map(|program| Subject::new(workspace, program, Offer::Plain, PODS));
    let [mut add, mut delete] = [(); 2].map(|()| candidates.map(|_| Series::default()));
    for _ in 0..ROUNDS {
        for (verb, all) in [("ADD", &mut add), ("DEL", &mut delete)] {
            let round = alternate(&subjects, PODS / BLOCK, |subject, block| {
                subject.in_parallel(verb, block * BLOCK..(block + 1) * BLOCK, WORKERS)
            });
            all.iter_mut().zip(round).for_each(|(all, round)| all.extend(round));
        }
    }
    rates("8 ADDs in parallel", &add, 0.60, "≥ 60 % of floor", table);
    slowest(&add, table);
    rates("8 DELs in parallel", &delete, 0.95, "≥ 95 % of floor", table);
}

fn rates(
    what: &'static str,
    series: &[Series; 3],
    wanted: f64,
    target: &'static str,
    table: &mut Table,
) {
    let [reference, floor, humanz] = series.each_ref().map(|s| format!("{:.0} /s", s.rate()));
    let part = series[2].part_of_rate(&series[1]);
    let reached = format!("{:.0} %", part * 100.0);
    let met = Some(part >= wanted);
    let (what, target) = (what.into(), target.into());
    table.push(Row { what, reference, floor, humanz, target, reached, met });
}

fn slowest(series: &[Series; 3], table: &mut Table) {
    let [reference, floor, humanz] = series.each_ref().map(Series::to_string);
    let p99 = series[2].p99();
    table.push(Row {
        what: "  one of these ADDs".into(),
        reference,
        floor,
        humanz,
        target: "p99 ≤ 50 ms".into(),
        reached: format!("{p99:.1} ms"),
        met: Some(p99 <= 50.0),
    });
}
