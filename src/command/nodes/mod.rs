//! `nodes`: the hosts of the network.

mod list;
mod network;
pub mod node;
mod remove;
mod reserve;
mod roles;
mod show;

use argh::{ArgsInfo, FromArgs};

use crate::command::call::{Call, Outcome};
use crate::settings::exit::Exit;

/// list the hosts of the network, show one, take one out of etcd, keep a subnet for one, give each
/// a role in etcd
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(
    subcommand,
    name = "nodes",
    example = "{command_name} ls",
    example = "{command_name} show h3 --json",
    example = "{command_name} rm h3",
    example = "{command_name} reserve h9",
    example = "{command_name} roles --apply h9",
    error_code(0, "it was done or shown, and nothing is wrong"),
    error_code(1, "there is no such host, it was refused, or a problem was reported"),
    error_code(69, "etcd cannot be reached"),
    error_code(75, "no subnet is free, or etcd keeps changing: try again")
)]
pub struct NodesCommand {
    #[argh(subcommand)]
    verb: NodesVerb,
}

#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(subcommand)]
enum NodesVerb {
    List(list::ListNodes),
    Show(show::ShowNode),
    Remove(remove::RemoveNode),
    Reserve(reserve::Reserve),
    Roles(roles::Roles),
}

/// Answers.
///
/// # Errors
/// What is wrong with the settings, etcd, or what was asked for.
pub fn run(call: &mut Call<'_>, options: &NodesCommand) -> Result<Outcome, Exit> {
    match &options.verb {
        NodesVerb::List(options) => list::run(call, options),
        NodesVerb::Show(options) => show::run(call, options),
        NodesVerb::Remove(options) => remove::run(call, options),
        NodesVerb::Reserve(options) => reserve::run(call, options),
        NodesVerb::Roles(options) => roles::run(call, options),
    }
}
