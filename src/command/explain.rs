//! `explain`: hop by hop from one end to the other, and where packets are lost.

mod find;
mod observe;
mod print;

use argh::{ArgsInfo, FromArgs};

use crate::checks::explain::{Hop, hops};
use crate::command::around::Around;
use crate::command::call::{Call, Outcome};
use crate::settings::exit::{self, Exit};

/// look at each hop from FROM to TO as far as this host can see, and say where packets are lost and
/// what to do. Either end is a pod of this host (namespace/name, or the start of its container id),
/// an address, or for TO a URL or ADDRESS:PORT. Sends two echo requests; changes nothing
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(
    subcommand,
    name = "explain",
    example = "{command_name} default/web 10.244.2.7",
    example = "{command_name} default/web https://example.org/",
    example = "{command_name} 10.244.2.7 default/web --ipv6",
    example = "{command_name} 3f2a9c 192.0.2.7:8080 --json",
    error_code(0, "nothing is wrong as far as this host can see"),
    error_code(1, "packets are lost at the last hop shown"),
    error_code(2, "an end is not known"),
    error_code(69, "a name does not resolve, or this user may not look at the pods")
)]
pub struct Explain {
    /// who sends: a pod or an address
    #[argh(positional)]
    from: String,
    /// who is sent to: a pod, an address, ADDRESS:PORT or a URL
    #[argh(positional)]
    to: String,
    /// by IPv6, where both ends have it
    #[argh(switch)]
    ipv6: bool,
    /// send no echo requests
    #[argh(switch)]
    quiet: bool,
    /// print one JSON object
    #[argh(switch)]
    json: bool,
}

/// Says where packets are lost.
///
/// # Errors
/// An end is not known, or the kernel does not answer.
pub fn run(call: &mut Call<'_>, options: &Explain) -> Result<Outcome, Exit> {
    let told = call.told()?;
    let around = Around::look(&told.settings)?;
    let from = find::meant(&options.from, &around)?;
    let to = find::meant(&options.to, &around)?;
    let pair = find::pair(from, to, options.ipv6, &around)?;
    let is_here =
        |end: &find::End| !matches!(end.place, find::Place::Beyond(_) | find::Place::Outside);
    if !is_here(&pair.from) && !is_here(&pair.to) {
        let why = format!(
            "neither {} nor {} is on this host: run it on a host of one of them",
            pair.from.name, pair.to.name
        );
        return Err(Exit::new(exit::SETTINGS, why));
    }
    let journey = observe::journey(&pair, &around, !options.quiet)?;
    let mut all = pair.leads;
    if !all.iter().any(Hop::is_lost) {
        all.extend(hops(&journey));
    }
    let fine = !all.iter().any(Hop::is_lost);
    let text = print::text(&journey, &all, call.style);
    call.answer(options.json, print::json(&journey, &all), &text)?;
    Ok(Outcome::fine(fine))
}
