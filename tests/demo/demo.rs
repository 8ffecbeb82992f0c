//! `make demo`: three hosts, an etcd and pods, explained step by step.
//!
//! Everything is real (kernel, etcd, agent, plugin); only the hosts are namespaces of this machine.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "it prints its steps, and stops at the first failure"
)]

mod page;
mod scenes;
mod support;
mod tidy;

use std::process::ExitCode;
use std::time::Instant;

use page::Page;
use scenes::Stage;

fn main() -> ExitCode {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("the demo makes network namespaces: run it as root (sudo make demo)");
        return ExitCode::FAILURE;
    }
    let start = Instant::now();
    let mut page = Page::default();
    page.title("humanz: a network for containers on many hosts");
    page.text(
        "Containers (\"pods\") run on many hosts. Each needs an address of its own, and a way to \
         every other pod, wherever it runs. Container runtimes leave that to a plugin; the rules \
         between the two are called CNI. humanz is such a plugin, and an agent that keeps the hosts \
         connected. Both are one executable file.",
    );
    page.text(
        "You will see three hosts, h1, h2 and h3, on one switch, and an etcd, the little database \
         that the agents agree through. They are set up inside this machine with Linux namespaces: \
         each has its own network, files and processes. Kernel, etcd, agent and plugin are the real \
         ones. Your machine's own network is not touched.",
    );
    let mut stage = Stage::set_up(&mut page);
    stage.hosts_lease_subnets(&mut page);
    stage.hosts_have_routes(&mut page);
    stage.pods_are_connected(&mut page);
    stage.all_pods_of_all_hosts_reach_each_other(&mut page);
    stage.pods_reach_the_outside(&mut page);
    stage.etcd_stops(&mut page);
    stage.an_agent_dies(&mut page);
    stage.a_route_is_deleted(&mut page);
    stage.an_operator_asks(&mut page);
    stage.pods_are_deleted(&mut page);
    drop(stage);
    page.summary(start.elapsed());
    ExitCode::SUCCESS
}
