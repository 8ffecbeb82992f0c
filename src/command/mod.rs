//! The command line: the agent's start, and subcommands that show and change what it keeps.
//!
//! Every subcommand observes, makes one value of what it found, and answers with it: as a table for
//! people or, with `--json`, as one object with a `schema`. None of them needs the agent; what
//! cannot be known without it is reported as unknown.

mod all_hosts;
pub mod arguments;
pub mod call;
pub mod config;
pub mod connectivity;
pub mod controller;
pub mod doctor;
mod drops;
pub mod encryption;
pub mod endpoint;
pub mod explain;
pub mod flows;
pub mod help;
mod host_pods;
pub mod init;
pub mod ipam;
pub mod json;
pub mod names;
mod netctl;
pub mod nodes;
pub mod objects;
mod pending_changes;
pub mod pods;
pub mod policy;
pub mod probe;
pub mod ready;
pub mod routes;
mod severity;
mod silent_agent;
mod single_machine;
pub mod status;
pub mod table;
pub mod top;
pub mod ui;
pub mod uninstall;
pub mod watch;
mod wrap;

use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};

use argh::{ArgsInfo, FromArgs};

use crate::agent::dry_run::DryRun;
use crate::agent::{self, ServeMode};
use crate::api::server;
use crate::command::call::{Call, Outcome};
use crate::command::table::Style;
use crate::os::process;
use crate::plan::Line;
use crate::settings::exit::{self, Exit};
use crate::settings::flags::{self, Uninstall};
use crate::settings::loader::SettingsLoader;

/// The subcommands.
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(subcommand)]
pub enum Subcommand {
    /// How this host is.
    Status(status::StatusOptions),
    /// Whether pods can start.
    Ready(ready::ReadyOptions),
    /// The hosts of the network.
    Nodes(nodes::NodesCommand),
    /// The addresses of pods.
    Ipam(ipam::Ipam),
    /// Which pods there are.
    Pods(pods::PodsOptions),
    /// Pods by traffic.
    Top(top::TopPods),
    /// The routes to other hosts.
    Routes(routes::ShowRoutes),
    /// The settings that hold, and where each is from.
    Config(config::Config),
    /// What changes.
    Watch(watch::Watch),
    /// Known traps.
    Doctor(doctor::Doctor),
    /// Who connects to what.
    Flows(flows::Flows),
    /// What policies decide.
    Policy(policy::Policy),
    /// Puts objects into etcd.
    Apply(policy::Apply),
    /// Prints the objects in etcd.
    Export(policy::Export),
    /// Which tenants there are.
    Tenant(objects::TenantCommand),
    /// The networks of tenants.
    Net(objects::NetCommand),
    /// Groups of pods.
    Group(objects::GroupCommand),
    /// How packets of pods are marked.
    Profile(objects::ProfileCommand),
    /// What namespaces belong to.
    Namespace(objects::NamespaceCommand),
    /// Fixed addresses of pods.
    Pin(objects::PinCommand),
    /// Pods with their groups and profiles.
    Endpoint(endpoint::EndpointCommand),
    /// This host's WireGuard key.
    Encryption(encryption::EncryptionCommand),
    /// Where packets are lost.
    Explain(explain::Explain),
    /// What there is, for shells.
    Names(names::PrintNames),
    /// Whether packets of pods arrive.
    Connectivity(connectivity::ConnectivityCommand),
    /// Whether other hosts answer.
    Probe(probe::Probe),
    /// Networks of Kubernetes.
    Controller(controller::ControllerOptions),
    /// A page to look at.
    Ui(ui::Ui),
    /// One machine without an agent.
    Init(init::Init),
    /// Takes humanz off this host.
    Uninstall(Uninstall),
}

/// All that can be typed.
pub type Arguments = flags::Arguments<Subcommand>;

/// Reports a panic in any thread and ends the process: its
/// service manager starts the agent again, which takes over all that is there.
pub fn report_panics() {
    process::exit_on_panic(|text| {
        call::complain(&format!("humanz has a fault and ends; please report it: {text}"));
        exit::FAULT.into()
    });
}

/// Runs the command line without the program's name; `--help` documents the exit code.
pub fn main(words: impl Iterator<Item = OsString>) -> i32 {
    let typed: Vec<String> = words.map(|word| word.to_string_lossy().into_owned()).collect();
    let words = arguments::normal(typed.clone());
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let result = match Arguments::from_args(&["humanz-agent"], &words) {
        Ok(arguments) => match arguments::misplaced(&typed, &words, &Arguments::get_args_info()) {
            Some(mistake) => Err(Exit::new(exit::SETTINGS, mistake)),
            None => run(arguments, &mut io::stdout().lock()),
        },
        Err(early) if early.status.is_ok() && asks_for_first_page(&words) => {
            say(&mut io::stdout().lock(), &help::page(&Arguments::get_args_info()))
        }
        Err(early) if early.status.is_ok() => {
            say(&mut io::stdout().lock(), &help::narrow(&early.output))
        }
        Err(early) => {
            let mistake = arguments::mistake(&words, &early.output, &Arguments::get_args_info());
            Err(Exit::new(exit::SETTINGS, mistake))
        }
    };
    match result {
        Ok(Outcome::Fine) => 0,
        Ok(Outcome::Wrong) => exit::FAILURE.into(),
        Err(exit) => {
            let meant = || arguments::meant(&typed, &exit.refused, &Arguments::get_args_info());
            let meant = (exit.code == exit::SETTINGS).then(meant).flatten();
            call::complain(meant.as_ref().unwrap_or(&exit.why));
            exit.code.into()
        }
    }
}

/// No subcommand was typed with `--help`.
fn asks_for_first_page(words: &[&str]) -> bool {
    let info = Arguments::get_args_info();
    !words.iter().any(|word| info.commands.iter().any(|command| command.name == *word))
}

fn run(arguments: Arguments, out: &mut dyn Write) -> Result<Outcome, Exit> {
    if arguments.version {
        return say(out, concat!("humanz-agent ", env!("CARGO_PKG_VERSION")));
    }
    let origin = SettingsLoader::new(arguments.given(), arguments.env_file.as_deref());
    let Some(command) = arguments.command else {
        return serve(origin, arguments.once, arguments.dry_run, out);
    };
    let style = Style::of(io::stdout().is_terminal(), |name| std::env::var_os(name));
    let style =
        style.columns(terminal_size::terminal_size_of(io::stdout()).map(|(width, _)| width.0));
    let call = &mut Call::new(origin, style, out);
    match command {
        Subcommand::Uninstall(options) => uninstall::run(call, &options),
        Subcommand::Init(options) => init::run(call, &options),
        Subcommand::Doctor(options) => doctor::run(call, &options),
        Subcommand::Probe(options) => probe::run(call, &options),
        Subcommand::Policy(options) => policy::run(call, &options),
        Subcommand::Apply(options) => policy::apply(call, &options),
        Subcommand::Export(options) => policy::export(call, &options),
        Subcommand::Tenant(options) => objects::tenant(call, &options),
        Subcommand::Net(options) => objects::net(call, &options),
        Subcommand::Group(options) => objects::group(call, &options),
        Subcommand::Profile(options) => objects::profile(call, &options),
        Subcommand::Pin(options) => objects::pin(call, &options),
        Subcommand::Namespace(options) => objects::namespace(call, &options),
        Subcommand::Connectivity(options) => connectivity::run(call, &options),
        Subcommand::Encryption(options) => encryption::run(call, &options),
        Subcommand::Endpoint(options) => endpoint::run(call, &options),
        Subcommand::Names(options) => names::run(call, &options),
        Subcommand::Explain(options) => explain::run(call, &options),
        Subcommand::Status(options) => status::run(call, &options),
        Subcommand::Pods(options) => pods::run(call, &options),
        Subcommand::Top(options) => top::run(call, &options),
        Subcommand::Ready(options) => ready::run(call, &options),
        Subcommand::Routes(options) => routes::run(call, &options),
        Subcommand::Flows(options) => flows::run(call, &options),
        Subcommand::Watch(options) => watch::run(call, &options),
        Subcommand::Ipam(options) => ipam::run(call, &options),
        Subcommand::Nodes(options) => nodes::run(call, &options),
        Subcommand::Ui(options) => ui::run(call, &options),
        Subcommand::Controller(options) => controller::run(call, &options),
        Subcommand::Config(options) => config::run(call, &options),
    }
}

/// The agent itself.
fn serve(
    origin: SettingsLoader,
    once: bool,
    dry_run: bool,
    out: &mut dyn Write,
) -> Result<Outcome, Exit> {
    if dry_run {
        return say(out, &preview(&agent::dry_run_start(origin)?));
    }
    let mode = if once { ServeMode::Once } else { ServeMode::ForEver };
    agent::serve(origin, mode, server::start)?;
    Ok(Outcome::Fine)
}

/// The changes as `+`, `-` and `~` lines, then the problems as `!` lines.
fn preview(start: &DryRun) -> String {
    let problems = start.problems().into_iter().map(|problem| format!("! {problem}"));
    let lines: Vec<String> = start.lines.iter().map(Line::to_string).chain(problems).collect();
    if lines.is_empty() { "nothing would change".to_owned() } else { lines.join("\n") }
}

/// Prints `text` and a line end.
fn say(out: &mut dyn Write, text: &str) -> Result<Outcome, Exit> {
    call::print(out, text)?;
    Ok(Outcome::Fine)
}
