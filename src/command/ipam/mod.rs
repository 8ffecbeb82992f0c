//! `ipam`: which pod has which address of this host.

mod attachment;
mod clear;
mod free;
mod import;
pub mod list;

use argh::{ArgsInfo, FromArgs};

use crate::command::call::{Call, Outcome};
use crate::settings::exit::Exit;

/// show which pod has which address of this host, free addresses, take over those of earlier plugins
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(
    subcommand,
    name = "ipam",
    example = "{command_name} ls",
    example = "{command_name} show default/web",
    example = "{command_name} free 10.244.1.7",
    example = "{command_name} gc --yes",
    error_code(0, "it was done or shown, and nothing is wrong"),
    error_code(
        1,
        "there is no such address, it was refused, or something in a store is wrong: see the message"
    ),
    error_code(69, "this user may not read the stores"),
    error_code(75, "a store is busy: try again")
)]
pub struct Ipam {
    #[argh(subcommand)]
    verb: IpamVerb,
}

#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(subcommand)]
enum IpamVerb {
    List(list::ListAddresses),
    Show(list::ShowAddress),
    Free(free::Free),
    Clear(clear::Clear),
    Import(import::Import),
}

/// Answers.
///
/// # Errors
/// What is wrong with the settings, a store, the kernel, or what was asked for.
pub fn run(call: &mut Call<'_>, options: &Ipam) -> Result<Outcome, Exit> {
    match &options.verb {
        IpamVerb::List(options) => list::run(call, options),
        IpamVerb::Show(options) => list::show(call, options),
        IpamVerb::Free(options) => free::run(call, options),
        IpamVerb::Clear(options) => clear::run(call, options),
        IpamVerb::Import(options) => import::run(call, options),
    }
}
