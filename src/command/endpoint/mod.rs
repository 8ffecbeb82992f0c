//! `endpoint`: pods, and what policies say of each: network, group and profile.

mod shown;

use argh::{ArgsInfo, FromArgs};
use serde_json::json;

use crate::command::call::{Call, Outcome, complain};
use crate::command::endpoint::shown::{ShownEndpoint, endpoints};
use crate::command::policy::found;
use crate::command::table::{Cell, Table, Tone, facts};
use crate::inspect::{Host, HostList};
use crate::settings::exit::{self, Exit};
use crate::settings::{Settings, Source};

/// show pods with their networks, groups and profiles
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(
    subcommand,
    name = "endpoint",
    example = "{command_name} ls",
    example = "{command_name} show shop/web",
    note = "Shows all of this host, and of other hosts those whose group or network a policy names. For hosts with \
        policies.",
    error_code(1, "there is no such pod, or one of this host is in quarantine"),
    error_code(2, "policies are off on this host"),
    error_code(69, "the agent does not answer this user, or has no policies yet")
)]
pub struct EndpointCommand {
    #[argh(subcommand)]
    verb: EndpointVerb,
}

#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(subcommand)]
enum EndpointVerb {
    List(ListEndpoints),
    Show(ShowEndpoint),
}

/// list pods. Those of other hosts have no names here
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(
    subcommand,
    name = "ls",
    error_code(1, "a pod of this host is in quarantine"),
    error_code(2, "policies are off on this host"),
    error_code(69, "the agent does not answer this user, or has no policies yet")
)]
pub struct ListEndpoints {
    /// print one JSON object
    #[argh(switch)]
    json: bool,
}

/// show one pod: by address, or of this host by pod (namespace/name or name)
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(
    subcommand,
    name = "show",
    example = "{command_name} shop/web",
    example = "{command_name} 10.244.1.7",
    error_code(1, "there is no such pod, or it is in quarantine"),
    error_code(2, "policies are off on this host"),
    error_code(69, "the agent does not answer this user, or has no policies yet")
)]
pub struct ShowEndpoint {
    /// address or pod
    #[argh(positional)]
    what: String,
    /// print one JSON object
    #[argh(switch)]
    json: bool,
}

/// Answers.
///
/// # Errors
/// Policies are off, the agent does not answer this user, or there is no such pod.
pub fn run(call: &mut Call<'_>, options: &EndpointCommand) -> Result<Outcome, Exit> {
    let settings = call.load()?.settings;
    let (view, note) = found::view(&settings)?;
    note.iter().for_each(|note| complain(note));
    let host = Host::inspect(&settings, HostList::Saved)?;
    let source = source(&settings);
    let all = endpoints(&view, source, |address| host.peer(address).map(|(name, ..)| name.clone()));
    match &options.verb {
        EndpointVerb::List(options) => list(call, options, &all),
        EndpointVerb::Show(options) => show(call, options, &all),
    }
}

/// What says in which groups pods are; never two of these at once.
fn source(settings: &Settings) -> &'static str {
    match (&settings.source, &settings.policy) {
        (Source::Static(_), _) => "file",
        (_, Some(policy)) => policy.objects.name(),
        (_, None) => "none",
    }
}

fn list(
    call: &mut Call<'_>,
    options: &ListEndpoints,
    all: &[ShownEndpoint],
) -> Result<Outcome, Exit> {
    let heads = ["POD", "ADDRESSES", "HOST", "NETWORK", "GROUP", "PROFILE", "STATE"];
    let mut table = Table::new(&heads);
    for one in all {
        let state =
            if one.is_quarantined() { ("quarantine", Tone::Bad) } else { ("", Tone::Plain) };
        table.row([
            Cell::new(one.pod.as_deref().unwrap_or_default()),
            Cell::new(one.addresses(",")),
            Cell::new(one.host()),
            Cell::new(one.network()),
            Cell::new(one.group()),
            Cell::new(one.profile()),
            Cell::new(state.0).tone(state.1),
        ]);
    }
    let text = match all.is_empty() {
        true => "no pods are known here\n".to_owned(),
        false => table.render(call.style),
    };
    let is_fine = !all.iter().any(ShownEndpoint::is_quarantined);
    call.answer(options.json, is_fine, json!({"endpoints": all}), &text)
}

fn show(
    call: &mut Call<'_>,
    options: &ShowEndpoint,
    all: &[ShownEndpoint],
) -> Result<Outcome, Exit> {
    let found: Vec<&ShownEndpoint> = all.iter().filter(|one| one.is(&options.what)).collect();
    let Some((one, further)) = found.split_first() else {
        let why =
            format!("no pod {:?} is known here: endpoint ls has those that are", options.what);
        return Err(Exit::new(exit::FAILURE, why));
    };
    // Each interface of a pod has networks and policies of its own.
    if further.iter().any(|other| other.pod != one.pod || other.host() != one.host()) {
        let count = found.len();
        let why = format!("{:?} are {count} pods: say namespace/name or an address", options.what);
        return Err(Exit::new(exit::FAILURE, why));
    }
    let texts: Vec<String> = found.iter().map(|one| facts(&rows(one), call.style)).collect();
    let is_fine = !found.iter().any(|one| one.is_quarantined());
    let mut answer = json!({"endpoint": one});
    if !further.is_empty() {
        answer["further"] = json!(further);
    }
    call.answer(options.json, is_fine, answer, &texts.join("\n"))
}

fn rows(one: &ShownEndpoint) -> Vec<(&'static str, String)> {
    let rows = [
        ("pod", one.pod.clone().unwrap_or_default()),
        ("addresses", one.addresses("\n")),
        ("host", one.host()),
        ("network", one.network()),
        ("group", one.group()),
        ("source", one.source.map(|it| format!("groups are those of {it}")).unwrap_or_default()),
        ("profile", one.profile()),
        ("dscp", one.dscp()),
        ("egress rate", one.egress_rate()),
        ("ingress rate", one.ingress_rate()),
        ("quarantine", one.quarantine.clone().unwrap_or_default()),
        ("not known", one.unknown_keys.join("\n")),
    ];
    rows.into_iter().filter(|(_, text)| !text.is_empty()).collect()
}
