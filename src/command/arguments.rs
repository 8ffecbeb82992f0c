//! Pure. The command line: its normal order for argh, and messages about mistakes.

use std::collections::BTreeMap;

use argh::{CommandInfoWithArgs, FlagInfoKind};

use crate::command::netctl::{self, NetctlMeaning};
use crate::net::nearest::nearest;
use crate::net::shell::word;
use crate::settings::flags::VARIABLES;

/// The words as argh reads them, those of netctl as humanz's: `--option=value` in two words, the settings of the agent in front
/// of the subcommand, and `--json` behind all, wherever they were typed.
pub fn normal(words: Vec<String>) -> Vec<String> {
    let (mut front, mut middle, mut json) = (Vec::new(), Vec::new(), Vec::new());
    let mut rest = Vec::new();
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        if word == "--" {
            rest.push(word);
            rest.extend(words);
            break;
        }
        let (option, value) = match word.split_once('=') {
            Some((option, value)) if option.starts_with("--") => (option, Some(value.to_owned())),
            _ => (word.as_str(), None),
        };
        let takes = takes_value(option);
        // What stands behind `help` is the command that it is asked about.
        let is_help = |word: &String| ["help", "--help"].contains(&word.as_str());
        let asked = front.iter().chain(&middle).any(is_help);
        let to = match takes {
            _ if option == "--json" => &mut json,
            None if !middle.is_empty() || !option.starts_with('-') => &mut middle,
            _ => &mut front,
        };
        let path: Vec<&str> = to.iter().filter(|it| !is_help(it)).map(String::as_str).collect();
        let own = own_words(option, &path, to.is_empty(), asked);
        to.extend(own.iter().map(|word| word.to_string()));
        match value {
            Some(value) => to.push(value),
            None if takes == Some(true) => match words.next() {
                Some(value) => to.push(value),
                // The last word is what argh complains about, before it runs anything.
                None => return front,
            },
            None => {}
        }
    }
    [front, middle, json, rest].concat()
}

/// humanz's words for `option`, which follows the words `path` of a subcommand. `first`: it is the first of its part of
/// the line; `asked`: the line asks for help.
fn own_words<'a>(option: &'a str, path: &[&str], first: bool, asked: bool) -> Vec<&'a str> {
    match option {
        "check-config" if asked => vec!["config"],
        "version" if asked && path.is_empty() => vec![],
        "check-config" => vec!["config", "--check", "--env"],
        "-h" => vec!["--help"],
        "-V" => vec!["--version"],
        "version" if first => vec!["--version"],
        "netprofile" if path.is_empty() => vec!["profile"],
        "network" if path.is_empty() => vec!["net"],
        "rule-list" if path == ["policy"] => vec!["rule-ls"],
        "list" if matches!(path, [only] if LISTS.contains(only)) => vec!["ls"],
        "inspect" if matches!(path, [only] if LISTS.contains(only)) => vec!["show"],
        _ => vec![option],
    }
}

/// Subcommands that have `ls`; a pod or host may be called list.
const LISTS: [&str; 10] =
    ["endpoint", "group", "ipam", "net", "nodes", "ns", "pin", "policy", "profile", "tenant"];

/// Whether this option of the agent is followed by a value; `None` if it is none of the agent's
/// settings.
fn takes_value(option: &str) -> Option<bool> {
    match option {
        "--env-file" => Some(true),
        "--standalone" => Some(false),
        _ => VARIABLES.iter().any(|known| flag(known.name) == option).then_some(true),
    }
}

/// To who makes a tenant, as netctl does.
const FIRST_OBJECT: &str = "a tenant is no object of its own: it exists once an object of it does, as one that \
    net create or group create makes";

/// The message for `words` that argh refused with `output`. `info`: all that can be typed.
pub fn mistake(words: &[&str], output: &str, info: &CommandInfoWithArgs) -> String {
    let (path, level) = descend(words, info);
    let help = format!("see {path} --help");
    let output = output.trim();
    let Some(word) = output.strip_prefix("Unrecognized argument: ") else {
        return format!("{output}\n{help}");
    };
    let of = path.strip_prefix("humanz-agent ");
    if of == Some("tenant") && ["create", "set"].contains(&word) {
        return format!("{FIRST_OBJECT} ({help})");
    }
    let (own, is_subcommand) = (of, of.is_some());
    let usual = usual(word, of, level);
    let of = of.map(|command| format!(" of {command}")).unwrap_or_default();
    let (what, known): (String, Vec<String>) = if word.starts_with('-') {
        let known = level.flags.iter().map(|flag| flag.long.to_owned());
        // Every subcommand takes the agent's settings; they are rarely what is meant there.
        let begins = word.get(..4).unwrap_or(word);
        let settings = VARIABLES.iter().map(|known| flag(known.name));
        let is_like =
            |option: &str| option.starts_with(begins) && option.len().abs_diff(word.len()) <= 1;
        let settings = settings.filter(|option| !is_subcommand || is_like(option));
        (format!("unknown option {word}{of}"), known.chain(settings).collect())
    } else if level.commands.is_empty() {
        (format!("unexpected argument {word:?}{of}"), Vec::new())
    } else {
        let known = level.commands.iter().map(|command| command.name.to_owned()).collect();
        (format!("unknown subcommand {word:?}{of}"), known)
    };
    let meant = usual.map(NetctlMeaning::Word).or_else(|| netctl::meaning(word, own));
    match meant {
        Some(NetctlMeaning::Sentence(why)) => format!("{what}: {why} ({help})"),
        Some(NetctlMeaning::Word(meant)) => format!("{what}; did you mean {meant}? ({help})"),
        None => match nearest(word, &known) {
            Some(near) => format!("{what}; did you mean {near}? ({help})"),
            None => format!("{what} ({help})"),
        },
    }
}

/// What other programs have commands for, and what does it here.
const USUAL: [(&str, &str); 5] = [
    ("start", "systemctl start humanz-agent"),
    ("stop", "systemctl stop humanz-agent"),
    ("restart", "systemctl restart humanz-agent"),
    ("logs", "journalctl -u humanz-agent"),
    ("log", "journalctl -u humanz-agent"),
];

/// What a word of other programs means behind the command `of`, which has what is in `level`.
fn usual(word: &str, of: Option<&str>, level: &CommandInfoWithArgs) -> Option<&'static str> {
    let has = |name| level.commands.iter().any(|command| command.name == name);
    match (of, word) {
        (None, _) => USUAL.iter().find(|(usual, _)| *usual == word).map(|(_, here)| *here),
        (Some(_), "remove" | "delete") if has("rm") => Some("rm"),
        (Some(_), "add" | "new") if has("create") => Some("create"),
        // The field of the object, and the setting.
        (Some("net create" | "net set"), "--subnets") => Some("--cidr"),
        // It lists by itself.
        (Some("pods"), "ls" | "list") => Some("pods"),
        _ => None,
    }
}

/// The message if one of the settings `refused` is invalid, where it was typed behind a subcommand that has an option of
/// nearly that name.
pub fn meant(
    typed: &[String],
    refused: &[&'static str],
    info: &CommandInfoWithArgs,
) -> Option<String> {
    let words: Vec<&str> = typed.iter().map(String::as_str).collect();
    let (path, level) = descend(&words, info);
    let command = path.strip_prefix("humanz-agent ")?;
    let own: Vec<&str> = level.flags.iter().map(|flag| flag.long).collect();
    refused.iter().find_map(|variable| {
        let option = flag(variable);
        let is_typed = |word: &&str| word.split('=').next() == Some(option.as_str());
        let behind = words.iter().skip_while(|word| word.starts_with('-'));
        let near = nearest(behind.copied().find(|word| is_typed(word)).and(Some(&option))?, &own)?;
        let what = format!("unknown option {option} of {command}");
        Some(format!("{what}; did you mean {near}? (see {path} --help)"))
    })
}

/// Settings of the agent that are typed for options of a network, and would change nothing there.
const OF_NETWORKS: [(&str, &str); 4] = [
    ("--mtu", "--pod-mtu"),
    ("--subnet", "--cidr"),
    ("--ip-subnet", "--cidr"),
    ("--ipv6-subnet", "--cidr"),
];

/// The message where such a setting was typed behind `net create` or `net set`. `words`: what was typed, as
/// argh reads it.
pub fn misplaced(typed: &[String], words: &[&str], info: &CommandInfoWithArgs) -> Option<String> {
    let (path, _) = descend(words, info);
    let command = path.strip_prefix("humanz-agent ")?;
    if !["net create", "net set"].contains(&command) {
        return None;
    }
    let behind = typed.iter().skip_while(|word| !["net", "network"].contains(&word.as_str()));
    let is = |word: &str| {
        OF_NETWORKS.iter().find(|(setting, _)| word.split('=').next() == Some(setting))
    };
    let (option, meant) = behind.take_while(|word| *word != "--").find_map(|word| is(word))?;
    Some(format!(
        "{option} of {command} is a setting of the agent; did you mean {meant}? (see {path} --help)"
    ))
}

/// Seconds of an option: `5`, or `5s` as settings have times.
///
/// # Errors
/// Something else.
pub fn seconds(text: &str) -> Result<u32, String> {
    let number = text.strip_suffix('s').unwrap_or(text);
    number.parse().map_err(|_| "must be a whole number of seconds, as in 5 or 5s".to_owned())
}

/// The option of a variable.
pub fn flag(variable: &str) -> String {
    format!("--{}", variable.to_ascii_lowercase().replace('_', "-"))
}

/// The subcommand with `options` by variable, which say where things are.
pub fn typed(subcommand: &str, options: &BTreeMap<&'static str, String>) -> String {
    let option = |(variable, text): (&&str, &String)| format!(" {} {}", flag(variable), word(text));
    let options = options.iter().map(option);
    format!("humanz-agent {subcommand}{}", options.collect::<String>())
}

/// The subcommand that `words` lead to, as it is typed, and what it takes.
fn descend<'a>(words: &[&str], info: &'a CommandInfoWithArgs) -> (String, &'a CommandInfoWithArgs) {
    let (mut path, mut level) = ("humanz-agent".to_owned(), info);
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let option = level.flags.iter().find(|flag| flag.long == *word);
        if option.is_some_and(|flag| matches!(flag.kind, FlagInfoKind::Option { .. })) {
            words.next();
        } else if let Some(next) = level.commands.iter().find(|next| next.name == *word) {
            path = format!("{path} {word}");
            level = &next.command;
        }
    }
    (path, level)
}

#[cfg(test)]
mod tests {
    use argh::ArgsInfo;

    use super::*;
    use crate::command::Arguments;
    use crate::settings::exit::Exit;
    use crate::settings::invalid;

    fn normalised(line: &str) -> String {
        normal(line.split_whitespace().map(str::to_owned).collect()).join(" ")
    }

    #[test]
    fn settings_may_be_typed_anywhere_and_with_an_equals_sign() {
        for (typed, read) in [
            ("config --env-file x --json", "--env-file x config --json"),
            ("config --etcd-host=a --json", "--etcd-host a config --json"),
            ("--mtu=1400 config", "--mtu 1400 config"),
            ("config --standalone", "--standalone config"),
            ("--etcd-host config config", "--etcd-host config config"),
            ("config -- --etcd-host", "config -- --etcd-host"),
            ("config --none=x", "config --none x"),
            ("--json config x", "config x --json"),
            ("-V", "--version"),
            ("version", "--version"),
            ("nodes list -h", "nodes ls --help"),
            ("nodes show version", "nodes show version"),
            ("nodes show list", "nodes show list"),
            ("policy list", "policy ls"),
            ("policy rule-list blue/p", "policy rule-ls blue/p"),
            ("help policy rule-list", "help policy rule-ls"),
            ("policy show rule-list", "policy show rule-list"),
            ("help nodes list", "help nodes ls"),
            ("nodes help list", "nodes help ls"),
            ("-h nodes list", "--help nodes ls"),
            ("help network inspect", "help net show"),
            ("help netprofile list", "help profile ls"),
            ("help check-config", "help config"),
            ("-h check-config", "--help config"),
            ("check-config x", "config --check --env x"),
            ("help version", "help"),
            ("help nodes show list", "help nodes show list"),
            ("probe list", "probe list"),
            ("explain list default/web", "explain list default/web"),
            ("config --json --changed -- x", "config --changed --json -- x"),
            ("--once config", "--once config"),
            ("--once config --mtu", "--once --mtu"),
            ("--NODE-NAME x", "--NODE-NAME x"),
            ("config --node_name x", "config --node_name x"),
        ] {
            assert_eq!(normalised(typed), read, "{typed}");
        }
    }

    #[test]
    fn what_is_printed_to_be_typed_is_read_as_it_is_meant() {
        let subnets = "10.4.0.0/24, fd04::/64".to_owned();
        let options = BTreeMap::from([("MTU", "1400".to_owned()), ("SUBNET", subnets)]);
        let line = typed("init", &options);
        assert_eq!(line, "humanz-agent init --mtu 1400 --subnet '10.4.0.0/24, fd04::/64'");
    }

    #[test]
    fn list_stands_for_ls_where_there_is_one() {
        let info = Arguments::get_args_info();
        let has = |command: &&argh::SubCommandInfo| {
            command.command.commands.iter().any(|next| next.name == "ls")
        };
        let lists: Vec<&str> = info.commands.iter().filter(has).map(|it| it.name).collect();
        let same = lists.len() == LISTS.len() && lists.iter().all(|name| LISTS.contains(name));
        assert!(same, "{lists:?}");
    }

    /// Such an option would be taken for the setting.
    #[test]
    fn no_subcommand_has_an_option_that_is_called_like_a_setting() {
        fn verify(info: &CommandInfoWithArgs, path: &str) {
            for next in &info.commands {
                let path = format!("{path} {}", next.name);
                for flag in next.command.flags {
                    assert_eq!(takes_value(flag.long), None, "{path} {}", flag.long);
                }
                verify(&next.command, &path);
            }
        }
        verify(&Arguments::get_args_info(), "humanz-agent");
    }

    #[test]
    fn a_setting_that_is_refused_was_perhaps_meant_for_an_option_of_the_subcommand() {
        let message = |line: &str, refused: &'static str| {
            let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
            let exit = Exit::invalid_settings(&[invalid(refused, "x", "is not known")]);
            meant(&words, &exit.refused, &Arguments::get_args_info())
        };
        for line in ["group create web --policy x", "group create web --policy=x"] {
            let said = message(line, "POLICY").unwrap();
            let words = "unknown option --policy of group create; did you mean --policies?";
            assert!(said.starts_with(words), "{said}");
        }
        for line in ["--policy x group create web", "group ls --policy x", "status", "--policy x"] {
            assert_eq!(message(line, "POLICY"), None, "{line}");
        }
        assert_eq!(message("group create web --policy on", "MTU"), None);
    }

    #[test]
    fn a_setting_that_is_typed_for_an_option_of_a_network_is_not_passed_over() {
        let message = |line: &str| {
            let typed: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
            let words = normal(typed.clone());
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            misplaced(&typed, &words, &Arguments::get_args_info())
        };
        for (line, meant) in [
            ("net create blue/front --cidr 10.1.0.0/16 --mtu 1400", "did you mean --pod-mtu?"),
            ("network set blue/front --mtu=1400", "did you mean --pod-mtu?"),
            ("--json net create --subnet 10.1.0.0/16 blue/front", "did you mean --cidr?"),
            ("net create blue/front --ipv6-subnet fd00::/64", "did you mean --cidr?"),
        ] {
            let said = message(line).unwrap();
            assert!(said.contains(meant) && said.contains("is a setting of the agent"), "{said}");
        }
        for line in [
            "--mtu 1400 net create blue/front --pod-mtu 1300",
            "net ls --mtu 1400",
            "group create net --mtu 1400",
            "net create -- --mtu",
        ] {
            assert_eq!(message(line), None, "{line}");
        }
    }

    #[test]
    fn mistyped_words_are_reported_with_the_nearest_known_one() {
        let message = |line: &str, output: &str| {
            let words: Vec<&str> = line.split_whitespace().collect();
            mistake(&words, output, &Arguments::get_args_info())
        };
        for (line, wrong, words) in [
            ("confg", "confg", "unknown subcommand \"confg\"; did you mean config?"),
            ("uninstal", "uninstal", "did you mean uninstall?"),
            (
                "--etcd-hots x",
                "--etcd-hots",
                "unknown option --etcd-hots; did you mean --etcd-host?",
            ),
            ("config --jsno", "--jsno", "unknown option --jsno of config; did you mean --json?"),
            ("config --etcd-hots", "--etcd-hots", "of config; did you mean --etcd-host?"),
            (
                "policy rule-add --icmp-type",
                "--icmp-type",
                "unknown option --icmp-type of policy rule-add (see",
            ),
            ("net create x --sub", "--sub", "unknown option --sub of net create (see"),
            ("net set x --subnets", "--subnets", "--subnets of net set; did you mean --cidr?"),
            ("group ls --conters", "--conters", "unknown option --conters of group ls (see"),
            ("group lst", "lst", "unknown subcommand \"lst\" of group; did you mean ls?"),
            ("pin sow", "sow", "unknown subcommand \"sow\" of pin; did you mean show?"),
            ("ip", "ip", "unknown subcommand \"ip\"; did you mean ipam?"),
            ("ls", "ls", "unknown subcommand \"ls\" (see humanz-agent --help)"),
            ("zebra", "zebra", "unknown subcommand \"zebra\" (see humanz-agent --help)"),
            ("tenant create blue", "create", "it exists once an object of it does, as one that"),
            ("config x", "x", "unexpected argument \"x\" of config"),
            ("start", "start", "\"start\"; did you mean systemctl start humanz-agent? (see"),
            ("logs", "logs", "did you mean journalctl -u humanz-agent?"),
            ("nodes delete h1", "delete", "\"delete\" of nodes; did you mean rm?"),
            ("group remove x/y", "remove", "\"remove\" of group; did you mean rm?"),
            ("pods ls", "ls", "unexpected argument \"ls\" of pods; did you mean pods?"),
            ("status ls", "ls", "unexpected argument \"ls\" of status (see"),
            ("pin add x/y", "add", "\"add\" of pin; did you mean create?"),
            // As netctl has them.
            ("net create x -s 10.1.0.0/16", "-s", "-s of net create; did you mean --cidr?"),
            (
                "net create x --gateway 10.1.0.1",
                "--gateway",
                "of net create: there is none to choose: each block",
            ),
            ("net create x -p 100", "-p", "-p of net create: networks have no tags"),
            (
                "net create -t blue x",
                "-t",
                "-t of net create: the tenant stands in front of the name",
            ),
            ("net show x -j", "-j", "-j of net show; did you mean --json?"),
            ("net ls -t blue", "-t", "of net ls: it lists those of all tenants; tenant show"),
            (
                "net ls blue/x",
                "blue/x",
                "unexpected argument \"blue/x\" of net ls: it lists all; show has one",
            ),
            ("ns create x -t blue", "-t", "-t of ns create; did you mean --tenant?"),
            ("group create net web", "web", "of group create: a group is of no network"),
            ("group create web -n gold", "-n", "-n of group create; did you mean --profile?"),
            (
                "group set web --ip-pool x",
                "--ip-pool",
                "--ip-pool of group set: a group has no addresses",
            ),
            ("policy rule-add p --from-group x", "--from-group", "did you mean --peer-group?"),
            ("policy rule-add p -j allow", "-j", "-j of policy rule-add; did you mean --action?"),
            ("policy rule-add p 1", "1", "of policy rule-add: rules have no names: policy rule-ls"),
            ("policy rule-rm -t blue p 1", "-t", "-t of policy rule-rm: the tenant stands"),
            ("profile create x -b 10M", "-b", "-b of profile create; did you mean --egress-rate?"),
            ("bgp ls", "bgp", "unknown subcommand \"bgp\": Contiv has it, humanz does not"),
            ("global info", "global", "\"global\": settings are those of the agents"),
            (
                "apply x.yaml",
                "x.yaml",
                "unexpected argument \"x.yaml\" of apply: files stand behind -f",
            ),
            ("status -t", "-t", "unknown option -t of status (see"),
        ] {
            let message = message(line, &format!("Unrecognized argument: {wrong}\n"));
            assert!(message.contains(words), "{line}: {message}");
        }
        let message = message("config", "No value provided for option '--x'.\n");
        assert!(message.contains("humanz-agent config --help"), "{message}");
    }
}
