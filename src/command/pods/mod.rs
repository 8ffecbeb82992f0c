//! `pods`: those of this host, or of all hosts.

pub mod all;
pub mod judged;

use argh::{ArgsInfo, FromArgs};

use crate::command::call::{Call, Outcome};
use crate::command::host_pods::{self, ListedPod, ListedPods};
use crate::command::ipam::list::{known_plans, named};
use crate::command::table::{Cell, Style, Table, Tone};
use crate::policy::network_plan::NetworkPlans;
use crate::settings::exit::Exit;

/// list the pods of this host with their addresses
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(
    subcommand,
    name = "pods",
    example = "{command_name}",
    example = "{command_name} --all",
    note = "Reads the stores, so that it needs neither agent nor etcd. With --all those of all hosts: etcd carries a \
        request to their agents, and their answers for half a minute.",
    note = "Of an answer only addresses in its host's own subnets and blocks are shown. A host whose role in etcd is of an earlier \
        version does not answer: humanz-agent nodes roles --apply.",
    error_code(
        1,
        "some stores could not be read; a host did not answer, or with addresses of others"
    ),
    error_code(69, "this user may not read the stores; with --all: etcd does not answer")
)]
pub struct PodsOptions {
    /// list those of all hosts
    #[argh(switch)]
    all: bool,
    /// print one JSON object
    #[argh(switch)]
    json: bool,
}

/// Prints what was found.
///
/// # Errors
/// The stores cannot be read; with `--all`: etcd does not answer, or there is none.
pub fn run(call: &mut Call<'_>, options: &PodsOptions) -> Result<Outcome, Exit> {
    if options.all {
        let mut settings = call.load()?.settings;
        let found = all::read(&mut settings)?;
        let text = found.text(call.style);
        return call.answer(options.json, found.is_complete(), found.value(), &text);
    }
    let settings = call.load_to_look()?.settings;
    let mut found = host_pods::find(&settings)?;
    let (plans, fault) = known_plans(&settings);
    found.problems.extend(fault);
    let text = text(&found, plans.as_ref(), call.style);
    call.answer(options.json, found.problems.is_empty(), found.json(), &text)
}

fn text(found: &ListedPods, plans: Option<&NetworkPlans>, style: Style) -> String {
    let mut pods: Vec<&ListedPod> = found.pods.iter().collect();
    pods.sort_by_key(|pod| pod.attachment.name());
    let mut table = Table::new(&["POD", "ADDRESSES", "NETWORK", "STATE"]);
    for ListedPod { attachment, life, .. } in pods {
        let addresses = attachment.entry.addresses.iter().map(ToString::to_string);
        table.row([
            Cell::new(attachment.name()),
            Cell::new(addresses.collect::<Vec<_>>().join(",")),
            Cell::new(named(plans, &attachment.network, &attachment.entry.addresses)),
            Cell::new(life.word()),
        ]);
    }
    let mut text = match table.is_empty() {
        true => "no pod of humanz is attached here\n".to_owned(),
        false => table.render(style),
    };
    text.extend(found.problems.iter().map(|problem| style.fault(Tone::Plain, problem)));
    text
}
