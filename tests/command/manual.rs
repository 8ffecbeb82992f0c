//! The examples of packaging/humanz-agent.8 and of the pages of subcommands, and those of each subcommand's help.

use argh::{ArgsInfo, CommandInfoWithArgs, FromArgs, SubCommandInfo};
use humanz::command::{Arguments, arguments};

use crate::support::cluster::Alone;
use crate::support::disk::EXECUTABLE;
use crate::support::guide::{examples, manual_page};
use crate::support::node::command;
use crate::support::wait::SOON;
use crate::support::{Agent, Cluster, Place, Pod};

/// The pages of subcommands.
pub const PAGES: [&str; 5] = [
    "humanz-agent-cluster.8",
    "humanz-agent-host.8",
    "humanz-agent-paths.8",
    "humanz-agent-policy.8",
    "humanz-agent-setup.8",
];

#[test]
fn the_examples_of_the_manual_are_run() {
    let cluster = Cluster::new(2);
    let [h1, h2] = &cluster.hosts[..] else { panic!("two hosts") };
    let shown = examples("humanz-agent.8");
    let [typed] = &shown[..] else { panic!("{shown:?}") };
    let lines: Vec<&str> = typed.lines().collect();
    let [check, preview, alone, explain] = lines[..] else { panic!("{lines:?}") };
    let here = |line: &str| line.replacen("humanz-agent", EXECUTABLE, 1);

    h1.shell(&here(check)).ok();
    let changes = h1.shell(&here(preview)).ok();
    assert!(changes.contains("bridge humanz0"), "{changes}");
    // One after the other: the second subnet is the second host's.
    let agents = [h1, h2].map(|host| {
        let agent = Agent::start(host, &[]);
        agent.wait_ready();
        agent
    });
    let _web = Pod::add(h1, "web");
    let pods: Vec<Pod> = (2..8).map(|number| Pod::add(h2, &format!("p{number}"))).collect();
    assert!(pods.iter().any(|pod| pod.v4().to_string() == "10.244.2.7"));
    // It may not have learned of the other host yet.
    let path = h1.until_ok(&here(explain), SOON);
    assert!(path.contains("10.244.2.7"), "{path}");
    agents.iter().for_each(Agent::stop);

    let machine = Alone::new();
    let _server = machine.host.spawn(&mut command(&here(alone)));
    machine.host.until_ok(&format!("{EXECUTABLE} ready"), SOON);
}

/// They are examples of the help, too.
#[test]
fn every_subcommand_has_an_example_in_its_page() {
    let known = below("humanz-agent", &Arguments::get_args_info());
    for page in PAGES {
        let shown = examples(page);
        let shown: Vec<&str> = shown.last().expect("it has examples").lines().collect();
        let others: Vec<&&str> =
            shown.iter().filter(|line| !known.iter().any(|known| known == *line)).collect();
        assert!(others.is_empty(), "{page}: no examples of the help: {others:?}");
        for name in described(page) {
            let start = format!("humanz-agent {name}");
            let is_of = |line: &&str| *line == start || line.starts_with(&format!("{start} "));
            assert!(shown.iter().any(is_of), "{page}: {start}");
        }
    }
}

/// The guide of policies, which is run, shows the same.
#[test]
fn a_denied_packet_is_shown_as_it_is_printed() {
    let shown = examples("humanz-agent-host.8");
    let [denied, _] = &shown[..] else { panic!("{shown:?}") };
    assert!(include_str!("../../packaging/policy.md").contains(denied.as_str()), "{denied}");
}

/// The subcommands that have a section in a page.
fn described(page: &str) -> Vec<String> {
    let text = manual_page(page);
    let headings = text.lines().filter_map(|line| line.strip_prefix(".SS "));
    headings.flat_map(|heading| heading.split(", ")).map(str::to_owned).collect()
}

#[test]
fn every_example_of_the_help_can_be_typed() {
    let info = Arguments::get_args_info();
    let examples = below("humanz-agent", &info);
    assert!(examples.len() > 60, "{examples:?}");
    for example in examples {
        let words = words(&example);
        let typed = words.iter().position(|word| word == "humanz-agent");
        let Some(typed) = typed else {
            assert_eq!(words[0], "kubectl", "{example}: it shows no command");
            continue;
        };
        let words = arguments::normal(words[typed + 1..].to_vec());
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        if let Err(early) = Arguments::from_args(&["humanz-agent"], &words) {
            assert!(early.status.is_ok(), "{example}: {}", early.output);
        }
    }
}

/// Of a command and those below it.
fn below(path: &str, info: &CommandInfoWithArgs) -> Vec<String> {
    let own = info.examples.iter().map(|example| example.replace("{command_name}", path));
    let next = |next: &SubCommandInfo| below(&format!("{path} {}", next.name), &next.command);
    own.chain(info.commands.iter().flat_map(next)).collect()
}

/// The words of the first command of a line, as a shell has them.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut quote) = (vec![String::new()], None);
    for char in line.chars() {
        let last = words.last_mut().expect("there is one");
        match (char, quote) {
            ('\'' | '"', None) => quote = Some(char),
            (char, Some(open)) if char == open => quote = None,
            (';' | '|' | '>', None) => break,
            (' ', None) => words.push(String::new()),
            (char, _) => last.push(char),
        }
    }
    words.retain(|word| !word.is_empty());
    words
}
