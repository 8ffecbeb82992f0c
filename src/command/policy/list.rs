//! `policy ls`: one line for each policy.

use argh::{ArgsInfo, FromArgs};
use serde_json::{Value, json};

use crate::command::call::{Call, Outcome};
use crate::command::objects::files;
use crate::command::policy::found::{self, KnownPolicies, PacketCounts, packets};
use crate::command::table::{Cell, Table, Tone};
use crate::policy::list::{PolicyObject, policies};
use crate::policy::{Direction, PolicyVerdict, Scoped, Tier};
use crate::settings::exit::Exit;
use crate::settings::values::group;

/// list the policies that hold on this host, in the order in which they are judged, and how many of its
/// pods each has rules for. Asks the agent; without one shows what held last
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(
    subcommand,
    name = "ls",
    example = "{command_name}",
    example = "{command_name} --counters",
    example = "{command_name} --group blue/web",
    example = "{command_name} -f policies.yaml",
    error_code(0, "these policies hold"),
    error_code(
        1,
        "no agent answers, no policies are known yet, a pod is in quarantine, or something is wrong with a file"
    ),
    error_code(2, "policies are off, or a file cannot be read"),
    error_code(69, "this user may not use the agent's socket")
)]
pub struct List {
    /// a file of objects instead, again for more; -: standard input
    #[argh(option, short = 'f')]
    file: Vec<String>,
    /// only those with rules for the pods of this group, tenant/name
    #[argh(option, from_str_fn(group))]
    group: Option<Scoped>,
    /// packets that each allowed and denied on this host
    #[argh(switch)]
    counters: bool,
    /// print one JSON object
    #[argh(switch)]
    json: bool,
}

/// Answers.
///
/// # Errors
/// Policies are off, or cannot be known.
pub fn run(call: &mut Call<'_>, options: &List) -> Result<Outcome, Exit> {
    let found = found::find(call, &options.file, true)?;
    let counters = found::counters(options.counters)?;
    let mut all = policies(&found.rules);
    if let Some(group) = &options.group {
        all = all.into_iter().filter_map(|it| it.of_group(group, &found.pods)).collect();
    }
    let mut text = files::faults(&found.problems, call.style);
    text.extend(found.note.iter().map(|note| call.style.remark(Tone::Plain, note)));
    text += &match (&found.unknown, all.is_empty()) {
        (Some(unknown), _) => call.style.remark(Tone::Bad, unknown),
        (None, true) => "no policies\n".to_owned(),
        (None, false) => table(&all, &found, counters.as_ref()).render(call.style),
    };
    for quarantined in &found.quarantined {
        text += &call.style.fault(Tone::Bad, &quarantined.problem());
    }
    let is_known = found.note.is_none() && found.unknown.is_none();
    let fine = found.problems.is_empty() && found.quarantined.is_empty() && is_known;
    let object = |policy: &PolicyObject<'_>| object(policy, &found, counters.as_ref());
    let json = json!({
        "policies": all.iter().map(object).collect::<Vec<_>>(),
        "quarantine": found.quarantined.iter().map(|it| &it.pod).collect::<Vec<_>>(),
        "note": found.note.as_ref().or(found.unknown.as_ref()),
        "problems": found.problems,
    });
    call.answer(options.json, fine, json, &text)
}

fn table(
    all: &[PolicyObject<'_>],
    found: &KnownPolicies,
    counters: Option<&PacketCounts>,
) -> Table {
    let heads = ["TIER", "KIND", "NAME", "PODS", "WAY", "SOURCE", "ALLOWED", "DENIED"];
    let shown = if counters.is_some() { heads.len() } else { heads.len() - 2 };
    let mut table = Table::new(&heads[..shown]);
    for policy in all {
        let name = policy.scoped();
        let mut cells = vec![
            Cell::new(tier(policy.tier)),
            Cell::new(policy.origin.source.name()),
            Cell::new(if policy.is_audited() { format!("{name} (audit)") } else { name }),
            Cell::new(policy.applies_to(&found.pods).len().to_string()),
            Cell::new(directions(policy)),
            Cell::new(found.source(&policy.origin).unwrap_or_default()),
        ];
        if let Some(counters) = counters {
            let [allowed, denied] = counted(policy, counters);
            let tone = if denied > 0 { Tone::Odd } else { Tone::Plain };
            cells.push(Cell::new(allowed.to_string()));
            cells.push(Cell::new(denied.to_string()).tone(tone));
        }
        table.row(cells);
    }
    table
}

/// Packets allowed or passed on, and packets denied.
fn counted(policy: &PolicyObject<'_>, counters: &PacketCounts) -> [u64; 2] {
    let (denying, others): (Vec<_>, Vec<_>) =
        policy.rules.iter().copied().partition(|rule| rule.verdict == PolicyVerdict::Deny);
    [packets(counters, others), packets(counters, denying)]
}

pub fn object(
    policy: &PolicyObject<'_>,
    found: &KnownPolicies,
    counters: Option<&PacketCounts>,
) -> Value {
    let counted = counters.map(|counters| counted(policy, counters));
    json!({
        "tier": tier(policy.tier),
        "kind": policy.origin.source.name(),
        "namespace": policy.origin.namespace,
        "name": policy.origin.name,
        "audit": policy.is_audited(),
        "pods": policy.applies_to(&found.pods).iter().map(ToString::to_string).collect::<Vec<_>>(),
        "directions": policy.directions().iter().map(ToString::to_string).collect::<Vec<_>>(),
        "source": found.source(&policy.origin),
        "packets": counted.map(|[allowed, denied]| json!({"allowed": allowed, "denied": denied})),
    })
}

pub fn tier(tier: Tier) -> &'static str {
    match tier {
        Tier::Tenant => "tenant",
        Tier::Admin => "admin",
        Tier::Group => "group",
        Tier::NetworkPolicy => "policy",
        Tier::Baseline => "baseline",
    }
}

fn directions(policy: &PolicyObject<'_>) -> String {
    let word = |direction: &Direction| match direction {
        Direction::Ingress => "in",
        Direction::Egress => "out",
    };
    policy.directions().iter().map(word).collect::<Vec<_>>().join(",")
}
