//! `connectivity`: pods of this program, and whether packets from and to them arrive.

mod ask;
mod paths;
pub mod pod;
pub mod runtime;
mod serve;
pub mod signals;
mod test;

use argh::{ArgsInfo, FromArgs};

use crate::command::call::{Call, Outcome};
use crate::settings::exit::Exit;

/// attach two pods by this host's CNI configuration and two on another host, send packets between them, the hosts and the
/// gateways of further ones, and detach them
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(
    subcommand,
    name = "connectivity",
    example = "{command_name} test",
    example = "{command_name} test --outside 192.0.2.1 --service 10.96.0.1:443",
    example = "{command_name} serve",
    error_code(0, "all packets arrived"),
    error_code(1, "packets are lost, or no pod can be attached"),
    error_code(69, "this host has no CNI configuration of humanz")
)]
pub struct ConnectivityCommand {
    #[argh(subcommand)]
    verb: ConnectivityVerb,
}

#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(subcommand)]
enum ConnectivityVerb {
    Test(test::TestConnectivity),
    Serve(serve::ServePods),
}

/// Answers.
///
/// # Errors
/// Settings, or pods that cannot be attached.
pub fn run(call: &mut Call<'_>, options: &ConnectivityCommand) -> Result<Outcome, Exit> {
    match &options.verb {
        ConnectivityVerb::Test(options) => test::run(call, options),
        ConnectivityVerb::Serve(options) => serve::run(call, options),
    }
}
