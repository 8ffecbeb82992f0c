//! The file of bash.

use argh::CommandInfoWithArgs;

use crate::level::{Level, levels, repeats};
use crate::takes::Takes;

/// The part that knows no subcommand.
const WALK: &str = r##"
# Adds the names that `humanz-agent names` prints, but for those that a shell could take for more.
_humanz_agent_names() {
    local name program=humanz-agent
    if [[ ${COMP_WORDS[0]} == /* ]]; then
        program=${COMP_WORDS[0]}
    fi
    while IFS= read -r name; do
        if [[ $name == "$current"* && $name == [[:alnum:]:]* && $name != *[![:alnum:]._/:-]* ]]; then
            COMPREPLY+=("$name")
        fi
    done < <("$program" names "$@" 2>/dev/null </dev/null)
}

# Adds those of the words.
_humanz_agent_words() {
    local word
    for word in "$@"; do
        if [[ $word == "$current"* ]]; then
            COMPREPLY+=("$word")
        fi
    done
}

# Adds what `takes` stands for.
_humanz_agent_offer() {
    local -a words
    read -ra words <<<"$takes"
    case ${words[0]-} in
        names) _humanz_agent_names "${words[@]:1}" ;;
        words) _humanz_agent_words "${words[@]:1}" ;;
        kind) _humanz_agent_names "${typed[0]}" ;;
        files) compopt -o default 2>/dev/null ;;
    esac
    return 0
}

_humanz-agent() {
    local current=${COMP_WORDS[COMP_CWORD]} path= word takes= valued= glued= rest= at
    local -a commands=() options=() arguments=() typed=()
    COMPREPLY=()
    _humanz_agent_level ''
    for ((at = 1; at < COMP_CWORD; at++)); do
        word=${COMP_WORDS[at]}
        if [[ $word == :* || $word == =:* ]]; then
            # bash parts words there, and takes what stands there together for a word.
            glued=yes
            if [[ $valued ]]; then valued=; elif ((${#typed[@]} == 0)); then typed+=("$word"); fi
        elif [[ $glued ]]; then
            glued=
        elif [[ $valued ]]; then
            if [[ $word != = ]]; then valued=; fi
        elif [[ $word == -* ]]; then
            if _humanz_agent_value "$path" "$word"; then valued=yes; fi
        elif [[ " ${commands[*]} " == *" $word "* ]]; then
            path+=" $word"
            _humanz_agent_level "$path"
        else
            typed+=("$word")
        fi
    done
    if [[ $glued || $current == :* || $current == =:* ]]; then
        return 0
    elif [[ $valued ]]; then
        if [[ $current == = ]]; then current=; fi
        _humanz_agent_offer
    elif [[ $current == -* ]]; then
        _humanz_agent_words "${options[@]}"
    elif ((${#commands[@]})); then
        _humanz_agent_words "${commands[@]}"
    elif ((${#typed[@]} < ${#arguments[@]})) || [[ $rest ]]; then
        takes=${arguments[${#typed[@]}]-$rest}
        _humanz_agent_offer
    else
        _humanz_agent_words "${options[@]}"
    fi
    return 0
}

complete -F _humanz-agent humanz-agent
"##;

pub fn file(info: &CommandInfoWithArgs) -> String {
    let all = levels(info);
    let mut text =
        "# Completion of humanz-agent in bash. Made by: UPDATE=1 cargo test --test completion\n"
            .to_owned();
    text += "\n# What may follow the subcommand $1.\n_humanz_agent_level() {\n";
    text += "    commands=() options=() arguments=() rest=\n    case $1 in\n";
    text.extend(all.iter().map(level));
    text += "    esac\n}\n";
    text += "\n# What the option $2 of the subcommand $1 takes; false: it has no value.\n_humanz_agent_value() {\n";
    text += "    case \"$1 $2\" in\n";
    text.extend(all.iter().map(|level| values(level, &level.typed())));
    // Settings may be typed anywhere.
    text += &all[..1].iter().map(|level| values(level, "*")).collect::<String>();
    text += "        *) return 1 ;;\n    esac\n}\n";
    text + WALK
}

fn level(level: &Level<'_>) -> String {
    let list = |name: &str, words: Vec<String>| match words.is_empty() {
        true => String::new(),
        false => format!("            {name}=({})\n", words.join(" ")),
    };
    let short = |short: Option<char>| short.map(|short| format!("-{short}"));
    let flags =
        level.flags().flat_map(|flag| short(flag.short).into_iter().chain([flag.long.to_owned()]));
    let mut text = format!("        '{}')\n", level.typed());
    text +=
        &list("commands", level.info.commands.iter().map(|next| next.name.to_owned()).collect());
    text += &list("options", flags.collect());
    let arguments = level.info.positionals.iter();
    let (rest, fixed): (Vec<_>, Vec<_>) =
        arguments.partition(|argument| repeats(&argument.optionality));
    let quoted = |takes: Takes| format!("'{}'", words(takes));
    text +=
        &list("arguments", fixed.iter().map(|argument| quoted(level.argument(argument))).collect());
    for argument in rest {
        text += &format!("            rest={}\n", quoted(level.argument(argument)));
    }
    text + "            ;;\n"
}

fn values(level: &Level<'_>, path: &str) -> String {
    let lines = level.flags().filter_map(|flag| {
        let takes = words(level.value(flag)?);
        let prefix = if path == "*" { "*\" ".to_owned() } else { format!("\"{path} ") };
        let long = format!("{prefix}{}\"", flag.long);
        let short = flag.short.map(|short| format!(" | {prefix}-{short}\"")).unwrap_or_default();
        Some(format!("        {long}{short}) takes='{takes}' ;;\n"))
    });
    lines.collect()
}

fn words(takes: Takes) -> String {
    match takes {
        Takes::Other => String::new(),
        Takes::Files => "files".to_owned(),
        Takes::Words(words) => format!("words {}", words.join(" ")),
        Takes::Names(words) => format!("names {}", words.join(" ")),
        Takes::NamesOfKind => "kind".to_owned(),
    }
}
