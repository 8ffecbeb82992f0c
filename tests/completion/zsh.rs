//! The file of zsh.

use argh::{CommandInfoWithArgs, FlagInfo, Optionality};

use crate::level::{Level, levels, repeats, short};
use crate::takes::Takes;

/// The part that knows no subcommand.
const NAMES: &str = r#"
# Adds the names that `humanz-agent names` prints, but for those that a shell could take for more.
_humanz-agent-names() {
    local name
    local -a names
    for name in "${(@f)$(command humanz-agent names "$@" 2>/dev/null </dev/null)}"; do
        if [[ $name == [[:alnum:]:]* && $name != *[^[:alnum:]._/:-]* ]]; then
            names+=("$name")
        fi
    done
    compadd -a names
}

_humanz-agent-names-of-kind() {
    _humanz-agent-names "$words[CURRENT-1]"
}
"#;

pub fn file(info: &CommandInfoWithArgs) -> String {
    let mut text =
        "#compdef humanz-agent\n# Made by: UPDATE=1 cargo test --test completion\n".to_owned();
    text += NAMES;
    text.extend(levels(info).iter().map(function));
    text + "\nif [[ $funcstack[1] == _humanz-agent ]]; then\n    _humanz-agent \"$@\"\nelse\n    \
            compdef _humanz-agent humanz-agent\nfi\n"
}

fn function(level: &Level<'_>) -> String {
    let mut specs: Vec<String> = level.flags().map(|flag| option(level, flag)).collect();
    for (place, argument) in level.info.positionals.iter().enumerate() {
        let place = match argument.optionality {
            ref it if repeats(it) => "*".to_owned(),
            Optionality::Optional => format!("{}:", place + 1),
            _ => (place + 1).to_string(),
        };
        let action = action(level.argument(argument));
        specs.push(quoted(&format!("{place}:{}:{action}", argument.name)));
    }
    let is_last = level.info.commands.is_empty();
    if !is_last {
        specs.push(quoted("*::command:->command"));
    }
    let name = name(&level.path);
    let mut text = format!("\n{name}() {{\n    local context state state_descr line ret=1\n");
    text += "    typeset -A opt_args\n    _arguments -s -S -C";
    text.extend(specs.iter().map(|spec| format!(" \\\n        {spec}")));
    text += " && ret=0\n";
    if !is_last {
        text += &commands(level, &name);
    }
    text + "    return ret\n}\n"
}

fn commands(level: &Level<'_>, name: &str) -> String {
    let mut text =
        "    if [[ $state == command ]]; then\n        if ((CURRENT == 1)); then\n".to_owned();
    text += "            local -a commands=(";
    for next in &level.info.commands {
        let described =
            format!("{}:{}", next.name, short(next.command.description).replace(':', "\\:"));
        text += &format!("\n                {}", quoted(&described));
    }
    text += "\n            )\n            _describe -t commands command commands && ret=0\n        else\n";
    text += "            case $words[1] in\n";
    for next in &level.info.commands {
        text += &format!("                {0}) {name}_{0} && ret=0 ;;\n", next.name);
    }
    text + "            esac\n        fi\n    fi\n"
}

fn name(path: &[&str]) -> String {
    [&["_humanz-agent"], path].concat().join("_")
}

fn option(level: &Level<'_>, flag: &FlagInfo<'_>) -> String {
    let repeat = repeats(&flag.optionality);
    let description = short(flag.description);
    let description = ["\\", "[", "]", ":"]
        .iter()
        .fold(description, |text, sign| text.replace(sign, &format!("\\{sign}")));
    let value = level
        .value(flag)
        .map(|takes| format!(":{}:{}", flag.long.trim_start_matches('-'), action(takes)));
    let rest = quoted(&format!("[{description}]{}", value.unwrap_or_default()));
    let start = if repeat { "'*'" } else { "" };
    match flag.short {
        Some(letter) if repeat => format!("{start}{{-{letter},{}}}{rest}", flag.long),
        Some(letter) => format!("'(-{letter} {0})'{{-{letter},{0}}}{rest}", flag.long),
        None => format!("{start}{}{rest}", flag.long),
    }
}

/// An action that begins with a space is called as it stands.
fn action(takes: Takes) -> String {
    match takes {
        Takes::Other => " ".to_owned(),
        Takes::Files => "_files".to_owned(),
        Takes::Words(words) => format!("({})", words.join(" ")),
        Takes::Names(words) => format!(" _humanz-agent-names {}", words.join(" ")),
        Takes::NamesOfKind => " _humanz-agent-names-of-kind".to_owned(),
    }
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}
