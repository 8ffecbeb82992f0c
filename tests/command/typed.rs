//! Mistyped arguments, help, exit codes, closed pipes.

use argh::{ArgsInfo, CommandInfoWithArgs};
use humanz::command::Arguments;

use crate::manual::PAGES;
use crate::run;
use crate::support::cluster::Alone;
use crate::support::disk::EXECUTABLE;
use crate::support::guide::manual_page;
use crate::support::node::Place;

#[test]
fn every_typing_error_is_answered_with_a_suggestion() {
    let alone = Alone::new();
    for (line, words) in [
        ("confg", "unknown subcommand \"confg\"; did you mean config?"),
        ("config --jsno", "unknown option --jsno of config; did you mean --json?"),
        ("--bridge-nam x", "unknown option --bridge-nam; did you mean --bridge-name?"),
        ("nodes remove h2", "unknown subcommand \"remove\" of nodes; did you mean rm?"),
        ("pods ls", "did you mean pods?"),
        ("net create blue/front --subnets 10.1.0.0/16", "did you mean --cidr?"),
        ("net create blue/front -s 10.1.0.0/16", "did you mean --cidr?"),
        ("net create front --gateway 10.1.0.1", "each block that a host takes of the network has"),
        (
            "policy rule-add p -j allow",
            "unknown option -j of policy rule-add; did you mean --action?",
        ),
        ("network ls -t blue", "tenant show has what is of one"),
        ("global info", "settings are those of the agents"),
        ("stop", "did you mean systemctl stop humanz-agent?"),
        ("top --count 0", "--count must be at least 1"),
        ("top --seconds 100000", "--seconds must be 1 to 3600"),
        ("config now", "unexpected argument \"now\" of config"),
        ("config --bridge-name", "No value provided for option '--bridge-name'"),
    ] {
        let ended = run(&alone.host, line, &[]);
        assert_eq!(ended.status.code(), Some(2), "{ended}");
        assert!(ended.stderr.contains(words), "{words:?} is not in: {ended}");
        assert_eq!(ended.stdout, "", "{ended}");
    }
}

#[test]
fn seconds_are_taken_with_their_unit_or_without() {
    let alone = Alone::new();
    for line in ["top --seconds 1s", "top --seconds 1"] {
        assert!(run(&alone.host, line, &[]).ok().contains("no pod"), "{line}");
    }
    for (line, code) in [("status --wait 0s", 1), ("ready --wait 0s", 1), ("ready --wait 5x", 2)] {
        let ended = run(&alone.host, line, &[("SUBNET_SOURCE", "static"), ("ETCD_HOST", "")]);
        assert_eq!(ended.status.code(), Some(code), "{ended}");
        let why = "must be a whole number of seconds, as in 5 or 5s";
        assert_eq!(ended.stderr.contains(why), code == 2, "{ended}");
    }
}

#[test]
fn each_subcommand_has_help_with_examples() {
    let alone = Alone::new();
    let help = run(&alone.host, "--help", &[]).ok();
    let commands = help.split("Commands:\n").nth(1).unwrap().split("\n\n").next().unwrap();
    let names = commands.lines().filter(|line| !line.starts_with("   "));
    let names: Vec<_> = names.filter_map(|line| line.split_whitespace().next()).collect();
    assert!(names.contains(&"config"), "{help}");
    for name in names.into_iter().filter(|name| *name != "uninstall") {
        for line in [format!("{name} --help"), format!("help {name}")] {
            let help = run(&alone.host, &line, &[]).ok();
            assert!(help.contains("Examples:"), "{help}");
            let is_example = |line: &str| line.starts_with("  humanz-agent ");
            let wide = |line: &&str| line.chars().count() > 80 && !is_example(line);
            assert_eq!(help.lines().find(wide), None, "{line}");
        }
    }
}

#[test]
fn help_takes_the_other_names_of_a_command() {
    let alone = Alone::new();
    let help = |line: &str| run(&alone.host, line, &[]).ok();
    for (other, usual) in [
        ("help nodes list", "help nodes ls"),
        ("help network list", "help net ls"),
        ("help netprofile inspect", "help profile show"),
        ("nodes list --help", "help nodes ls"),
        ("policy rule-list --help", "help policy rule-ls"),
        ("help check-config", "help config"),
        ("help version", "--help"),
    ] {
        assert_eq!(help(other), help(usual), "{other}");
    }
}

/// Those that the manual and the README name.
const WITHOUT_JSON: [&str; 4] = ["ui", "controller", "export", "from-contiv"];

#[test]
fn every_subcommand_has_json_output_with_listed_exceptions() {
    fn look(name: &str, info: &CommandInfoWithArgs) {
        for next in &info.commands {
            look(next.name, &next.command);
        }
        let has = info.flags.iter().any(|flag| flag.long == "--json");
        let should = info.commands.is_empty() && !WITHOUT_JSON.contains(&name);
        assert_eq!(has, should, "{name}");
    }
    look("humanz-agent", &Arguments::get_args_info());
    for text in [include_str!("../../README.md"), include_str!("../../packaging/humanz-agent.8")] {
        let text = text.replace("\\-", "-");
        let at = text.find("one JSON object").or_else(|| text.find("(one object")).unwrap();
        let around = &text[at.saturating_sub(300)..at];
        assert!(WITHOUT_JSON.iter().all(|name| around.contains(name)), "{around}");
    }
}

#[test]
fn the_synopses_of_the_manual_are_complete() {
    let synopses = PAGES.map(|page| {
        let text = manual_page(page);
        let found = text.split(".SH ").find_map(|part| part.strip_prefix("SYNOPSIS\n"));
        found.unwrap_or_else(|| panic!("{page}")).to_owned()
    });
    let words = synopses.join(".br\n").replace("\\-", "-").replace(['"', '|', '[', ']'], " ");
    let entries = words.split(".br\n").map(|entry| entry.split_whitespace().collect());
    fn look(path: &[&str], info: &CommandInfoWithArgs, entries: &[Vec<&str>]) {
        for next in &info.commands {
            let path = [path, &[next.name]].concat();
            let all = |entry: &&Vec<&str>| path.iter().all(|word| entry.contains(word));
            let own: Vec<_> = entries.iter().filter(all).collect();
            assert!(!own.is_empty(), "{path:?}");
            for positional in next.command.positionals {
                let name = positional.name.to_ascii_uppercase();
                let one = name.trim_end_matches('S');
                let has = |entry: &&Vec<&str>| entry.contains(&one) || entry.contains(&&*name);
                let argument = |entry: &&Vec<&str>| entry.contains(&"argument");
                let shown = own.iter().any(|entry| has(entry) || argument(entry));
                assert!(shown, "{name} of {path:?}: {own:?}");
            }
            look(&path, &next.command, entries);
        }
    }
    look(&[], &Arguments::get_args_info(), &entries.collect::<Vec<_>>());
}

#[test]
fn the_subcommands_document_their_exit_codes() {
    for next in &Arguments::get_args_info().commands {
        let silent = next.name == "uninstall";
        assert_eq!(next.command.error_codes.is_empty(), silent, "{}", next.name);
    }
}

#[test]
fn a_closed_pipe_is_no_failure() {
    let alone = Alone::new();
    let script = format!(
        "set -o pipefail; {EXECUTABLE} config --standalone | true; {EXECUTABLE} --help | true; \
         {EXECUTABLE} config --standalone >/dev/full && exit 9; exit 0"
    );
    let mut shell = crate::support::node::command("bash -ec");
    let ended = alone.host.run_command(shell.arg(script), "");
    assert_eq!(
        ended.stderr.trim(),
        "humanz-agent: write to standard output: No space left on device (os error 28)"
    );
    ended.ok();
}
