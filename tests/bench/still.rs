//! Measurements without network changes: STATUS, VERSION, and the executable itself.

use std::path::Path;

use crate::series::{Series, alternate};
use crate::subject::{Offer, Program, Subject};
use crate::table::{Row, Table};
use crate::workspace::Workspace;

const BLOCKS: usize = 10;
const CALLS: usize = 20;
/// The chain of reference plugins with the same function.
const REFERENCE: [&str; 5] = ["bridge", "host-local", "portmap", "bandwidth", "loopback"];

pub fn measure(workspace: &mut Workspace, table: &mut Table) {
    let candidates = [Program::Reference, Program::Floor, Program::Humanz];
    let subjects = candidates.map(|program| Subject::new(workspace, program, Offer::Plain, 0));
    let ask = |subjects: &[Subject], verb, version| {
        alternate(subjects, 0..BLOCKS, |subject, _| subject.ask(verb, version, CALLS))
    };
    // Debian's reference plugins do not know STATUS.
    let status = ask(&subjects[1..], "STATUS", "1.1.0");
    push("STATUS", None, &status[0], &status[1], table);
    let version = ask(&subjects, "VERSION", "1.0.0");
    push("VERSION", Some(&version[0]), &version[1], &version[2], table);
    size(table);
}

fn push(
    what: &'static str,
    reference: Option<&Series>,
    floor: &Series,
    humanz: &Series,
    table: &mut Table,
) {
    let median = humanz.median();
    table.push(Row {
        what: what.into(),
        reference: reference.map(Series::to_string).unwrap_or_default(),
        floor: floor.to_string(),
        humanz: humanz.to_string(),
        target: "≤ 1 ms".into(),
        reached: format!("{median:.2} ms"),
        met: Some(median <= 1.0),
    });
}

fn size(table: &mut Table) {
    let megabytes = |path: &Path| std::fs::metadata(path).unwrap().len() as f64 / 1e6;
    let reference = REFERENCE.map(|name| megabytes(&Path::new("/usr/lib/cni").join(name)));
    let own = megabytes(&crate::support::executable());
    table.push(Row {
        what: "executable".into(),
        reference: format!("{:.1} MB in {}", reference.iter().sum::<f64>(), reference.len()),
        humanz: format!("{own:.2} MB"),
        target: "< 8 MB".into(),
        reached: format!("{own:.2} MB"),
        met: Some(own < 8.0),
        ..Row::default()
    });
}
