//! Pure. `completion`: what a shell needs to complete a command line, made of what can be typed.

use argh::{ArgsInfo, CommandInfoWithArgs, FlagInfoKind, FromArgs};

use crate::command::{Arguments, arguments};
use crate::settings::exit::{self, Exit};
use crate::settings::flags::VARIABLES;

/// print what a shell needs to complete the command line: bash, zsh or fish. make install and the
/// packages put it in place
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(
    subcommand,
    name = "completion",
    example = "{command_name} bash > /etc/bash_completion.d/humanz-agent",
    example = "{command_name} zsh > /usr/local/share/zsh/site-functions/_humanz-agent",
    example = "{command_name} fish > /etc/fish/completions/humanz-agent.fish"
)]
pub struct Completion {
    /// bash, zsh or fish
    #[argh(positional)]
    shell: String,
}

/// The script.
///
/// # Errors
/// There is none for this shell.
pub fn script(options: &Completion) -> Result<String, Exit> {
    let mut levels = Vec::new();
    collect("", &Arguments::get_args_info(), &mut levels);
    match options.shell.as_str() {
        "bash" => Ok(bash(&levels)),
        "zsh" => Ok(zsh(&levels)),
        "fish" => Ok(fish(&levels)),
        other => {
            let why = format!("completion for {other:?}? There is bash, zsh and fish");
            Err(Exit::new(exit::SETTINGS, why))
        }
    }
}

/// What can follow some words.
struct Level {
    /// The subcommands before, with blanks between; empty at the beginning.
    path: String,
    /// Subcommands, or the words that can stand there, with what they do.
    commands: Vec<(String, String)>,
    /// Options with what they mean and whether a value follows.
    options: Vec<(String, String, bool)>,
}

const SHELLS: [&str; 3] = ["bash", "zsh", "fish"];

/// What can follow an option; `None` if that cannot be listed.
fn values(option: &str) -> Option<&'static [&'static str]> {
    const SWITCH: &[&str] = &["true", "false"];
    let known = VARIABLES.iter().find(|known| arguments::flag(known.name) == option)?;
    let is_switch = SWITCH.contains(&known.default);
    let values = if is_switch { SWITCH } else { known.choices };
    (!values.is_empty()).then_some(values)
}

fn collect(path: &str, info: &CommandInfoWithArgs, levels: &mut Vec<Level>) {
    let commands = info.commands.iter();
    let commands = commands.map(|next| (next.name.to_owned(), short(next.command.description)));
    let options = info.flags.iter().filter(|flag| flag.long.starts_with("--"));
    let options = options.map(|flag| {
        let takes = matches!(flag.kind, FlagInfoKind::Option { .. });
        (flag.long.to_owned(), short(flag.description), takes)
    });
    let (mut commands, options): (Vec<_>, _) = (commands.collect(), options.collect());
    if path == "completion" {
        commands.extend(SHELLS.map(|shell| (shell.to_owned(), format!("for {shell}"))));
    }
    levels.push(Level { path: path.to_owned(), commands, options });
    for next in &info.commands {
        let path =
            if path.is_empty() { next.name.to_owned() } else { format!("{path} {}", next.name) };
        collect(&path, &next.command, levels);
    }
}

/// The first part of a description, on one line.
fn short(text: &str) -> String {
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let end = [";", " (", ". "].iter().filter_map(|end| text.find(end)).min();
    text[..end.unwrap_or(text.len())].to_owned()
}

/// All options that are followed by a value: those whose values can be listed, and the others.
fn followed(levels: &[Level]) -> (Vec<&str>, Vec<&str>) {
    let takes = levels.iter().flat_map(|level| &level.options).filter(|(.., takes)| *takes);
    let mut takes: Vec<&str> = takes.map(|(name, ..)| name.as_str()).collect();
    takes.sort_unstable();
    takes.dedup();
    takes.into_iter().partition(|name| values(name).is_some())
}

/// The paths of all subcommands as patterns of `case`, each in quotes.
fn paths(levels: &[Level]) -> String {
    let below = levels.iter().filter(|level| !level.path.is_empty());
    let quoted = below.map(|level| format!("\"{}\"", level.path));
    quoted.collect::<Vec<_>>().join("|")
}

fn bash(levels: &[Level]) -> String {
    let mut cases = String::new();
    for level in levels {
        let commands = level.commands.iter().map(|(name, _)| name.as_str());
        let options = level.options.iter().map(|(name, ..)| name.as_str());
        let words: Vec<&str> = commands.chain(options).collect();
        cases.push_str(&format!("        \"{}\") words=\"{}\" ;;\n", level.path, words.join(" ")));
    }
    let (listed, others) = followed(levels);
    let listed = listed.iter().map(|name| {
        let values = values(name).unwrap_or_default().join(" ");
        format!(
            "        {name}) COMPREPLY=($(compgen -W \"{values}\" -- \"$current\")); return ;;\n"
        )
    });
    format!(
        r#"# bash completion of humanz-agent, made by: humanz-agent completion bash
_humanz_agent() {{
    local current=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}}
    local path= next words= i
    for ((i = 1; i < COMP_CWORD; i++)); do
        next="${{path:+$path }}${{COMP_WORDS[i]}}"
        case "$next" in
        {}) path=$next ;;
        esac
    done
    case "$before" in
{}        {}) COMPREPLY=($(compgen -f -- "$current")); return ;;
    esac
    case "$path" in
{cases}    esac
    COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -F _humanz_agent humanz-agent
"#,
        paths(levels),
        listed.collect::<String>(),
        others.join("|"),
    )
}

fn zsh(levels: &[Level]) -> String {
    let mut cases = String::new();
    for level in levels {
        let item = |name: &str, text: &str| format!("'{name}:{}'", text.replace('\'', r"'\''"));
        let commands = level.commands.iter().map(|(name, text)| item(name, text));
        let options = level.options.iter().map(|(name, text, _)| item(name, text));
        cases.push_str(&format!(
            "    \"{}\")\n        commands=({})\n        options=({}) ;;\n",
            level.path,
            commands.collect::<Vec<_>>().join(" "),
            options.collect::<Vec<_>>().join(" "),
        ));
    }
    let (listed, others) = followed(levels);
    let listed = listed.iter().map(|name| {
        let values = values(name).unwrap_or_default().join(" ");
        format!("{name}) compadd {values}; return ;;\n")
    });
    format!(
        r#"#compdef humanz-agent
# zsh completion of humanz-agent, made by: humanz-agent completion zsh
local typed= next= word
local -a commands options
for word in ${{words[2,CURRENT-1]}}; do
    next="${{typed:+$typed }}$word"
    case "$next" in
    {}) typed=$next ;;
    esac
done
case "${{words[CURRENT-1]}}" in
{}{}) _files; return ;;
esac
case "$typed" in
{cases}esac
(( $#commands )) && _describe -t commands command commands
(( $#options )) && _describe -o -t options option options
_files
"#,
        paths(levels),
        listed.collect::<String>(),
        others.join("|"),
    )
}

fn fish(levels: &[Level]) -> String {
    let mut lines =
        vec!["# fish completion of humanz-agent, made by: humanz-agent completion fish".to_owned()];
    for level in levels {
        let seen = level.path.split_whitespace();
        let seen = seen.map(|word| format!("__fish_seen_subcommand_from {word}"));
        let names: Vec<&str> = level.commands.iter().map(|(name, _)| name.as_str()).collect();
        let none = match names.is_empty() {
            true => None,
            false => Some(format!("not __fish_seen_subcommand_from {}", names.join(" "))),
        };
        let when: Vec<String> = seen.chain(none).collect();
        let when = when.join("; and ");
        let quoted = |text: &str| text.replace('\\', r"\\").replace('\'', r"\'");
        for (name, text) in &level.commands {
            let text = quoted(text);
            lines.push(format!("complete -c humanz-agent -f -n '{when}' -a {name} -d '{text}'"));
        }
        for (name, text, takes) in &level.options {
            let takes = match values(name) {
                Some(values) => format!(" -x -a '{}'", values.join(" ")),
                None => if *takes { " -r" } else { "" }.to_owned(),
            };
            let (name, text) = (name.trim_start_matches('-'), quoted(text));
            lines
                .push(format!("complete -c humanz-agent -n '{when}' -l {name}{takes} -d '{text}'"));
        }
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_offered_where_they_can_be_listed() {
        assert_eq!(values("--backend"), Some(["direct", "vxlan", "auto"].as_slice()));
        assert_eq!(values("--subnet-source").map(<[_]>::len), Some(3));
        assert_eq!(values("--ip-masq"), Some(["true", "false"].as_slice()));
        assert_eq!(values("--mtu"), None);
    }

    #[test]
    fn a_description_keeps_its_letters_and_ends_with_its_first_part() {
        for (text, wanted) in [
            (
                "with SUBNET_SOURCE=static: this host's\n subnet",
                "with SUBNET_SOURCE=static: this host's subnet",
            ),
            ("as +, - and ~ lines; change nothing", "as +, - and ~ lines"),
            ("as in 127.0.0.1:9104", "as in 127.0.0.1:9104"),
            ("a file (PEM)", "a file"),
            ("one. Two", "one"),
        ] {
            assert_eq!(short(text), wanted);
        }
    }
}
