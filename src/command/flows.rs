//! `flows`: who connects to what on this host, allowed or denied, and by which policy.

pub mod judged;

use argh::{ArgsInfo, FromArgs};
use serde_json::{Value, json};

use crate::command::call::{Call, Outcome, complain};
use crate::command::flows::judged::{JudgedFlow, Judges};
use crate::command::policy::found;
use crate::command::table::{Cell, Table, Tone};
use crate::flows::reply::FlowsReply;
use crate::inspect::{Host, HostList, agent_socket};
use crate::net::time::rfc3339;
use crate::settings::Settings;
use crate::settings::exit::{self, Exit};

/// show who connects to what on this host
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(
    subcommand,
    name = "flows",
    example = "{command_name}",
    example = "{command_name} --pod shop/web --denied",
    example = "{command_name} --json | jq '.flows[] | select(.port == 5432)'",
    note = "Shows connections that were allowed and packets that were denied, with the policy that says so now. The \
        agent counts them with FLOWS=on.",
    error_code(69, "no agent answers, or it counts no flows (FLOWS)")
)]
pub struct Flows {
    /// only those from or to this pod, as namespace/name
    #[argh(option)]
    pod: Option<String>,
    /// only what policies deny, or would deny
    #[argh(switch)]
    denied: bool,
    /// print one JSON object
    #[argh(switch)]
    json: bool,
}

/// Lines of text; JSON has all.
const LINES: usize = 200;

/// What the agent counted, and what this host's policies say of it.
#[derive(Debug)]
pub struct FoundFlows {
    reply: FlowsReply,
    flows: Vec<JudgedFlow>,
}

/// Answers.
///
/// # Errors
/// A setting is wrong; no agent answers, or it counts no flows.
pub fn run(call: &mut Call<'_>, options: &Flows) -> Result<Outcome, Exit> {
    call.origin.set_default("ETCD_HOST", "localhost");
    let settings = call.load()?.settings;
    let mut found = find(&settings)?;
    found.flows.retain(|flow| {
        options.pod.as_ref().is_none_or(|pod| flow.is_of(pod)) && !(options.denied && flow.allowed)
    });
    found.notes().iter().for_each(|note| complain(note));
    let text = match &options.pod {
        Some(pod) if found.flows.is_empty() => {
            format!("no flows of pod {pod:?}, as namespace/name: endpoint ls has the pods\n")
        }
        _ => found.text(call),
    };
    call.answer(options.json, true, found.json(), &text)
}

/// Asks the agent.
///
/// # Errors
/// As [`run`].
pub fn find(settings: &Settings) -> Result<FoundFlows, Exit> {
    let unavailable = |why: String| Exit::new(exit::UNAVAILABLE, why);
    let answer = agent_socket::of(settings).and_then(|path| agent_socket::get(path, "/v1/flows"));
    let reply = serde_json::from_value(answer.map_err(unavailable)?);
    let reply: FlowsReply =
        reply.map_err(|error| unavailable(format!("the agent's answer: {error}")))?;
    if !reply.on {
        let why = "the agent counts no flows: set FLOWS=on (with POLICY=on), and reload it";
        return Err(unavailable(why.to_owned()));
    }
    let (view, _) = found::view(settings)?;
    let host = Host::inspect(settings, HostList::Saved)?;
    let judges = Judges::new(&view, &host)?;
    let flows = reply.flows.iter().map(|entry| judges.flow(entry)).collect();
    Ok(FoundFlows { reply, flows })
}

impl FoundFlows {
    /// What is missing.
    fn notes(&self) -> Vec<String> {
        let mut notes = self.reply.faults.clone();
        if self.reply.overruns > 0 {
            let times = self.reply.overruns;
            notes.push(format!("connections came too fast {times} times: counts are too low"));
        }
        if self.reply.lost_reports > 0 {
            let count = self.reply.lost_reports;
            notes.push(format!("{count} reports of denied packets were lost"));
        }
        let others = self.reply.others.iter().map(|others| {
            let pod = others.pod.as_deref().unwrap_or("no pod of this host");
            format!("{pod}: {} more connections or packets, of older flows", others.count)
        });
        notes.extend(others);
        notes
    }

    fn text(&self, call: &Call<'_>) -> String {
        if self.flows.is_empty() {
            return "no flows\n".to_owned();
        }
        let mut table = Table::new(&["FROM", "TO", "SERVICE", "VERDICT", "BY", "COUNT", "LAST"]);
        for flow in self.flows.iter().take(LINES) {
            let tone = if flow.allowed { Tone::Good } else { Tone::Bad };
            table.row([
                Cell::new(&flow.from),
                Cell::new(&flow.to),
                Cell::new(&flow.service),
                Cell::new(flow.verdict).tone(tone),
                Cell::new(flow.by()),
                Cell::new(flow.entry.count.to_string()),
                Cell::new(rfc3339(flow.entry.last)),
            ]);
        }
        let mut text = table.render(call.style);
        if let Some(more @ 1..) = self.flows.len().checked_sub(LINES) {
            text += &format!("and {more} more (--json has all)\n");
        }
        text
    }

    /// As `flows --json`, without its schema.
    pub fn json(&self) -> Value {
        json!({
            "flows": self.flows.iter().map(JudgedFlow::json).collect::<Vec<_>>(),
            "notes": self.notes(),
            "overruns": self.reply.overruns,
            "lost_reports": self.reply.lost_reports,
        })
    }
}
