//! Which host reaches which, as the hosts tell each other: one JSON object, schema 1.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use tokio::time::timeout;

use crate::agent::reachability::sight;
use crate::etcd::rows::Read;
use crate::lease::Peer;
use crate::lease::records::{NodeName, Row, WayFault};
use crate::net::time::rfc3339;
use crate::settings::Source;

use crate::agent::shared_state::SharedState;
use crate::agent::snapshot::AgentSnapshot;

/// The version of what [`matrix`] gives. Fields may be added; none changes its meaning.
const SCHEMA: u32 = 1;

/// Longest wait for etcd; whoever asks waits a little longer.
const PATIENCE: Duration = Duration::from_secs(4);

/// A time after the year 9999 is nobody's.
const LAST_SECOND: u64 = 253_402_300_799;

/// Rows by the names of their hosts.
type Rows<'a> = BTreeMap<&'a str, &'a Row>;

/// The rows of all hosts.
///
/// - `host`: who tells this; `hosts`: how many there are, this one included
/// - `rows`, by name: `host`, `at`, `asked`, `answer`, `median_seconds`, `slowest_seconds`, `faults`
///   (`host`, `kind`: `silent`, `silent IPv4`, `silent IPv6` or `large N`, `what`), `more_faults`, `seconds`
///   (host → seconds; in small networks). Of this host as it is now, of others as they told it last
/// - `untold`: hosts without a row (`host`, `why`)
/// - `unreached`: hosts that are in the `faults` of others (`host`, `by`, `of`, and whether that is `most`),
///   the worst first
/// - `remarks`: why not all is known
pub async fn matrix(shared: &SharedState) -> Value {
    let Some(known) = shared.snapshot() else {
        let remarks = ["nothing was looked at yet"];
        return json!({ "schema": SCHEMA, "host": shared.name, "hosts": 1, "rows": [], "untold": [],
                       "unreached": [], "remarks": remarks });
    };
    let mut remarks = Vec::new();
    let read = match &known.settings.source {
        Source::Etcd { .. } => match timeout(PATIENCE, shared.rows.read()).await {
            Ok(read) => Some(read),
            Err(_) => {
                remarks.push(format!(
                    "etcd did not answer within {PATIENCE:?}: this host's own row only"
                ));
                None
            }
        },
        Source::Kubernetes(_) => {
            remarks.push(
                "SUBNET_SOURCE=kubernetes: hosts have no place to tell each other what they \
                          see; this host's own row only"
                    .to_owned(),
            );
            None
        }
        Source::Static(_) => None,
    };
    let own = own(shared, &known);
    let rows = rows(&known, read.as_deref(), own.as_ref(), &mut remarks);
    let untold = shared.rows.untold();
    remarks.extend(untold.map(|why| format!("this host's row is not told to others: {why}")));
    told(shared, &known, &rows, &remarks)
}

/// This host's row as it is now.
fn own(shared: &SharedState, known: &AgentSnapshot) -> Option<(NodeName, Row)> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let sight = sight(known.peers.as_deref()?, &shared.probes.all());
    Some((shared.name.parse().ok()?, Row::of(&sight, now.as_secs())?))
}

/// The rows of hosts that there are: those of the others that were `read`, and the `own`.
fn rows<'a>(
    known: &AgentSnapshot,
    read: Option<&'a Read>,
    own: Option<&'a (NodeName, Row)>,
    remarks: &mut Vec<String>,
) -> Rows<'a> {
    let mut rows = Rows::new();
    let is_host = |name: &str| known.peers.iter().any(|peers| peers.by_name.contains_key(name));
    match read.map(|read| &read.found) {
        Some(Ok(found)) => {
            let each = found.rows.iter().map(|(name, row)| (name.as_str(), row));
            rows.extend(each.filter(|(name, _)| is_host(name)));
            if let Some(why) = &found.why {
                remarks.push(format!("keys in etcd that hold no row: {} ({why})", found.bad));
            }
            if found.cut {
                remarks.push("there are more rows in etcd than are read".to_owned());
            }
        }
        Some(Err(why)) => remarks.push(format!("{why}: this host's own row only")),
        None => {}
    }
    rows.extend(own.map(|(name, row)| (name.as_str(), row)));
    rows
}

fn told(shared: &SharedState, known: &AgentSnapshot, rows: &Rows<'_>, remarks: &[String]) -> Value {
    let others = known.peers.iter().flat_map(|peers| &peers.by_name);
    let is_host = |name: &str| {
        name == shared.name || known.peers.iter().any(|peers| peers.by_name.contains_key(name))
    };
    let own = (!rows.contains_key(shared.name.as_str()))
        .then(|| json!({ "host": shared.name, "why": why_not_this(known) }));
    let without = others.clone().filter(|(name, _)| !rows.contains_key(name.as_str()));
    let without = without.map(|(name, peer)| json!({ "host": name, "why": why_not(known, peer) }));
    let untold: Vec<Value> = own.into_iter().chain(without).collect();
    let list: Vec<Value> = rows.iter().map(|(name, row)| object(name, row, &is_host)).collect();
    json!({
        "schema": SCHEMA,
        "host": shared.name,
        "hosts": others.count() + 1,
        "rows": list,
        "untold": untold,
        "unreached": unreached(rows, &is_host),
        "remarks": remarks,
    })
}

fn why_not_this(known: &AgentSnapshot) -> &'static str {
    let others = known.peers.iter().any(|peers| !peers.by_name.is_empty());
    match known.settings.probe {
        None => "PROBE_INTERVAL=0: it asks nobody",
        Some(_) if !others => "there are no other hosts",
        Some(_) => "nobody was asked yet",
    }
}

/// Why another host tells nothing, as far as that can be known.
fn why_not(known: &AgentSnapshot, peer: &Peer) -> &'static str {
    match known.settings.source {
        _ if peer.python => "a host of the Python agent",
        Source::Etcd { .. } if !peer.alive => "its agent does not run",
        Source::Etcd { .. } => {
            "etcd has nothing of it (yet): an earlier version, PROBE_INTERVAL=0, or no permission"
        }
        _ => "it has no place to tell it",
    }
}

/// One row. Names that are no host are left out.
fn object(name: &str, row: &Row, is_host: &impl Fn(&str) -> bool) -> Value {
    let seconds = |micros: u32| f64::from(micros) / 1e6;
    let is_other = |other: &NodeName| other.as_str() != name && is_host(other.as_str());
    let faults = row.faults.iter().filter(|(other, _)| is_other(other));
    let faults = faults.map(
        |(other, fault)| json!({ "host": other, "kind": fault.to_string(), "what": what(fault) }),
    );
    let times = row.times.iter().filter(|(other, _)| is_other(other));
    let times = times.map(|(other, time)| (other.to_string(), seconds(*time).into()));
    json!({
        "host": name,
        "at": rfc3339(UNIX_EPOCH + Duration::from_secs(row.at.min(LAST_SECOND))),
        "asked": row.asked,
        "answer": row.answer,
        "median_seconds": row.median.map(seconds),
        "slowest_seconds": row.slowest.map(seconds),
        "faults": faults.collect::<Vec<Value>>(),
        "more_faults": row.more,
        "seconds": times.collect::<serde_json::Map<String, Value>>(),
    })
}

fn what(fault: &WayFault) -> String {
    match fault {
        WayFault::Silent => "does not answer".to_owned(),
        WayFault::Half(family) => format!("does not answer by {family}"),
        WayFault::Large(bytes) => {
            format!("packets of {bytes} bytes are lost, smaller ones are not")
        }
    }
}

/// How many of those that told a row name each host in it. One alone is not most: it may be the ill one.
fn unreached(rows: &Rows<'_>, is_host: &impl Fn(&str) -> bool) -> Vec<Value> {
    let mut by: BTreeMap<&NodeName, usize> = BTreeMap::new();
    for (name, row) in rows {
        for other in
            row.faults.keys().filter(|other| other.as_str() != *name && is_host(other.as_str()))
        {
            *by.entry(other).or_default() += 1;
        }
    }
    let mut worst: Vec<(&NodeName, usize)> = by.into_iter().collect();
    worst.sort_by_key(|(_, by)| std::cmp::Reverse(*by));
    let of = |host: &NodeName| rows.len() - usize::from(rows.contains_key(host.as_str()));
    let object = |(host, by): (&NodeName, usize)| {
        let of = of(host);
        json!({ "host": host, "by": by, "of": of, "most": of > 1 && 2 * by > of })
    };
    worst.into_iter().map(object).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_host_alone_is_not_most() {
        let row = |lost: &str| {
            let told = json!({ "schema": 1, "at": 0, "asked": 1, "answer": 0, "faults": { lost: "silent" } });
            serde_json::from_value::<Row>(told).unwrap()
        };
        let (one, two, three) = (row("h2"), row("h1"), row("h2"));
        let most = |rows: &[(&'static str, &Row)]| {
            let found = unreached(&rows.iter().copied().collect(), &|_| true);
            found.iter().map(|other| other["most"] == true).collect::<Vec<bool>>()
        };
        assert_eq!(most(&[("h1", &one)]), [false]);
        assert_eq!(most(&[("h1", &one), ("h2", &two)]), [false, false]);
        assert_eq!(most(&[("h1", &one), ("h3", &three)]), [true]);
    }
}
