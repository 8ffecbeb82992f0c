//! Subcommands as all shells need them.

use argh::{CommandInfoWithArgs, FlagInfo, FlagInfoKind, Optionality, PositionalInfo};

use crate::takes::{Takes, takes};

/// Columns of a description.
const WIDTH: usize = 60;

/// A subcommand, or the program itself with an empty path.
pub struct Level<'a> {
    pub path: Vec<&'a str>,
    pub info: &'a CommandInfoWithArgs,
}

/// All of them, each before those below it.
pub fn levels<'a>(info: &'a CommandInfoWithArgs) -> Vec<Level<'a>> {
    fn add<'a>(all: &mut Vec<Level<'a>>, path: &[&'a str], info: &'a CommandInfoWithArgs) {
        all.push(Level { path: path.to_vec(), info });
        for next in &info.commands {
            add(all, &[path, &[next.name]].concat(), &next.command);
        }
    }
    let mut all = Vec::new();
    add(&mut all, &[], info);
    all
}

impl Level<'_> {
    /// With a space before each word.
    pub fn typed(&self) -> String {
        self.path.iter().map(|word| format!(" {word}")).collect()
    }

    pub fn flags(&self) -> impl Iterator<Item = &FlagInfo<'_>> {
        self.info.flags.iter().filter(|flag| !flag.hidden)
    }

    /// `None`: it has no value.
    pub fn value(&self, flag: &FlagInfo<'_>) -> Option<Takes> {
        let has = matches!(flag.kind, FlagInfoKind::Option { .. });
        has.then(|| takes(&self.path, flag.long))
    }

    pub fn argument(&self, argument: &PositionalInfo<'_>) -> Takes {
        takes(&self.path, argument.name)
    }
}

pub fn repeats(optionality: &Optionality) -> bool {
    matches!(optionality, Optionality::Repeating | Optionality::Greedy)
}

/// As many words of it as there is room for.
pub fn short(text: &str) -> String {
    let mut short = String::new();
    for word in text.split_whitespace() {
        if short.chars().count() + word.chars().count() > WIDTH {
            return short + " …";
        }
        short = if short.is_empty() { word.to_owned() } else { format!("{short} {word}") };
    }
    short
}
