//! The file of fish.

use argh::CommandInfoWithArgs;

use crate::level::{Level, levels, repeats, short};
use crate::takes::Takes;

/// The part that knows no subcommand.
const WALK: &str = r#"
# The names that `humanz-agent names` prints, but for those that a shell could take for more.
function __humanz_agent_names
    command humanz-agent names $argv 2>/dev/null </dev/null | string match -r '^[A-Za-z0-9:][A-Za-z0-9._/:-]*$'
end

function __humanz_agent_names_of_kind
    set -l typed (__humanz_agent_typed)
    __humanz_agent_names $typed[-1]
end

# The words that are no options and no values of them.
function __humanz_agent_typed
    set -l skip
    for word in (commandline -opc)[2..-1]
        if test -n "$skip"
            set skip
        else if string match -q -- '-*' $word
            if contains -- $word $__humanz_agent_valued
                set skip yes
            end
        else
            printf '%s\n' $word
        end
    end
end

# $argv[1] words were typed behind those of the subcommand $argv[2..-1]; any: some or none.
function __humanz_agent_at
    set -l typed (__humanz_agent_typed)
    set -l path $argv[2..-1]
    set -l depth (count $path)
    if test (count $typed) -lt $depth
        return 1
    end
    if test $depth -gt 0; and test "$typed[1..$depth]" != "$path"
        return 1
    end
    test $argv[1] = any; or test (count $typed) -eq (math $depth + $argv[1])
end

complete -c humanz-agent -f
"#;

pub fn file(info: &CommandInfoWithArgs) -> String {
    let all = levels(info);
    let mut valued: Vec<String> = Vec::new();
    for level in &all {
        let flags = level.flags().filter(|flag| level.value(flag).is_some());
        valued.extend(flags.flat_map(|flag| {
            flag.short.map(|short| format!("-{short}")).into_iter().chain([flag.long.to_owned()])
        }));
    }
    valued.sort();
    valued.dedup();
    let mut text =
        "# Completion of humanz-agent in fish. Made by: UPDATE=1 cargo test --test completion\n"
            .to_owned();
    text += &format!("\nset -g __humanz_agent_valued {}\n", valued.join(" "));
    text += WALK;
    text.extend(all.iter().map(level));
    text
}

fn level(level: &Level<'_>) -> String {
    let at = |count: &str| {
        format!("complete -c humanz-agent -n '__humanz_agent_at {count}{}'", level.typed())
    };
    let is_last = level.info.commands.is_empty();
    let mut text = String::new();
    for flag in level.flags() {
        let long = flag.long.trim_start_matches('-');
        let letter = flag.short.map(|short| format!(" -s {short}")).unwrap_or_default();
        let value = level.value(flag).map(value).unwrap_or_default();
        let condition = at(if is_last { "any" } else { "0" });
        text += &format!(
            "{condition} -l {long}{letter}{value} -d {}\n",
            quoted(&short(flag.description))
        );
    }
    for next in &level.info.commands {
        let description = quoted(&short(next.command.description));
        text += &format!("{} -a {} -d {description}\n", at("0"), next.name);
    }
    for (place, argument) in level.info.positionals.iter().enumerate() {
        let place = place.to_string();
        let condition = at(if repeats(&argument.optionality) { "any" } else { &place });
        text += &match level.argument(argument) {
            Takes::Other => continue,
            Takes::Files => format!("{condition} -F\n"),
            takes => format!("{condition} -a {}\n", offer(takes)),
        };
    }
    text
}

fn value(takes: Takes) -> String {
    match takes {
        Takes::Other => " -x".to_owned(),
        Takes::Files => " -r -F".to_owned(),
        takes => format!(" -x -a {}", offer(takes)),
    }
}

fn offer(takes: Takes) -> String {
    match takes {
        Takes::Other | Takes::Files => String::new(),
        Takes::Words(words) => quoted(&words.join(" ")),
        Takes::Names(words) => quoted(&format!("(__humanz_agent_names {})", words.join(" "))),
        Takes::NamesOfKind => quoted("(__humanz_agent_names_of_kind)"),
    }
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\\', "\\\\").replace('\'', "\\'"))
}
