//! Eight concurrent pods.

use crate::series::{Series, alternate};
use crate::subject::{Offer, Program, Subject};
use crate::support::node::Node;
use crate::table::{Row, Table};
use crate::workspace::Workspace;

const WORKERS: usize = 8;
const PODS: usize = 80;
const BLOCK: usize = 40;
/// ADD and DEL calls of every pod.
const ROUNDS: usize = 6;

pub fn measure(workspace: &mut Workspace, table: &mut Table) {
    let candidates = [Program::Reference, Program::Floor, Program::Humanz];
    let subjects = candidates.map(|program| Subject::new(workspace, program, Offer::Plain, PODS));
    let [add, delete] = by_turns(&subjects, PODS);
    rates("8 ADDs in parallel", &add, 0.60, "≥ 60 % of floor", table);
    slowest(&add, table);
    rates("8 DELs in parallel", &delete, 0.95, "≥ 95 % of floor", table);
}

/// Pods that the agent of `host` has a part in, in the network of its settings (in place of the reference) and in the
/// tenant's of `namespace`: no more than a block of that has addresses.
pub fn delegated(workspace: &mut Workspace, host: &Node, namespace: &str, table: &mut Table) {
    let of = |namespace| Subject::of_host(host, namespace, BLOCK);
    let floor = Subject::new(workspace, Program::Floor, Offer::Plain, BLOCK);
    let subjects = [of("plain"), floor, of(namespace)];
    let [add, delete] = by_turns(&subjects, BLOCK);
    rates("8 ADDs in a tenant's network in parallel", &add, 0.60, "≥ 60 % of floor", table);
    slowest(&add, table);
    rates("8 DELs in a tenant's network in parallel", &delete, 0.95, "≥ 95 % of floor", table);
}

/// ADD and DEL of `pods` of each subject.
fn by_turns(subjects: &[Subject; 3], pods: usize) -> [[Series; 3]; 2] {
    let mut both = [(); 2].map(|()| [(); 3].map(|()| Series::default()));
    let blocks = pods / BLOCK;
    for round in 0..ROUNDS {
        for (verb, all) in ["ADD", "DEL"].into_iter().zip(&mut both) {
            let round =
                alternate(subjects, round * blocks..(round + 1) * blocks, |subject, block| {
                    let first = block % blocks * BLOCK;
                    subject.in_parallel(verb, first..first + BLOCK, WORKERS)
                });
            all.iter_mut().zip(round).for_each(|(all, round)| all.extend(round));
        }
    }
    both
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
