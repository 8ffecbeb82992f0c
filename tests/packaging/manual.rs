//! The manual pages: that of the agent with every setting, and one for each group of subcommands.

use std::collections::BTreeSet;

use argh::ArgsInfo;
use humanz::command::Arguments;
use humanz::settings::flags::VARIABLES;

use crate::{DOCUMENTS, contains_only_settings, is_variable, read};

#[test]
fn the_manual_page_has_every_setting_with_its_default() {
    let page = read("packaging/humanz-agent.8");
    let (_, environment) = page.split_once(".SH ENVIRONMENT").unwrap();
    let (environment, _) = environment.split_once(".SH FILES").unwrap();
    for variable in VARIABLES {
        assert!(environment.contains(variable.name), "{} is missing", variable.name);
        if !matches!(variable.default, "" | "auto") {
            let line = environment.lines().find(|line| names(line, variable.name)).unwrap();
            assert!(line.contains(&format!("({})", variable.default)), "{line}");
        }
    }
    let tags =
        environment.lines().filter(|line| line.starts_with(".BR ") || line.starts_with(".B "));
    let words = tags.flat_map(|line| line.split([' ', '"', ',', '(', ')']));
    contains_only_settings(words.filter(|word| is_variable(word)).collect());
}

/// By its section, in the table of humanz-agent(8), and in the line that apropos(1) searches.
#[test]
fn every_subcommand_is_in_one_page_that_is_found() {
    let info = Arguments::get_args_info();
    let known: BTreeSet<&str> = info.commands.iter().map(|command| command.name).collect();
    let table = section("humanz-agent", "SUBCOMMANDS");
    let mut found = Vec::new();
    for page in groups() {
        let text = section(page, "DESCRIPTION");
        let headings = text.lines().filter_map(|line| line.strip_prefix(".SS "));
        let mut described: Vec<&str> = headings.flat_map(|heading| heading.split(", ")).collect();
        let heading = format!(": {page}(8)\n");
        let rows = table.split(".SS ").find(|part| part.contains(&heading));
        let rows = rows.unwrap_or_else(|| panic!("{page} is not in the table"));
        let listed: Vec<&str> = rows.lines().filter_map(|line| line.strip_prefix(".B ")).collect();
        assert_eq!(listed, described, "{page}: the table and the page");
        let line = section(page, "NAME");
        let words: Vec<&str> = line.split([' ', ',', ':']).collect();
        let unnamed: Vec<_> = described.iter().filter(|name| !words.contains(name)).collect();
        assert!(unnamed.is_empty(), "{page}: {unnamed:?} in {line}");
        found.extend(described.drain(..).map(str::to_owned));
    }
    let once: BTreeSet<&str> = found.iter().map(String::as_str).collect();
    assert_eq!(once, known);
    assert_eq!(found.len(), known.len(), "one is in two pages: {found:?}");
}

#[test]
fn every_manual_page_of_humanz_that_a_document_mentions_exists() {
    let pages: BTreeSet<&str> = groups().chain(["humanz-agent"]).collect();
    let mut mentioned = BTreeSet::new();
    for document in DOCUMENTS {
        let text = read(document).replace("\\-", "-").replace(" (8)", "(8)");
        let before = text.split("(8)").filter_map(|part| part.split([' ', '\n', '[']).next_back());
        let ours = before.filter(|word| word.starts_with("humanz"));
        mentioned.extend(ours.map(str::to_owned));
    }
    assert_eq!(mentioned.iter().map(String::as_str).collect::<BTreeSet<_>>(), pages);
}

/// The names of the pages of subcommands.
fn groups() -> impl Iterator<Item = &'static str> {
    let pages = DOCUMENTS.iter().filter_map(|path| path.strip_prefix("packaging/"));
    pages.filter_map(|page| page.strip_suffix(".8")).filter(|page| *page != "humanz-agent")
}

/// As a reader sees the hyphens.
fn section(page: &str, heading: &str) -> String {
    let text = read(&format!("packaging/{page}.8")).replace("\\-", "-");
    let start = format!("{heading}\n");
    let found = text.split(".SH ").find_map(|part| part.strip_prefix(&start));
    found.unwrap_or_else(|| panic!("{page}: no {heading}")).to_owned()
}

/// Whether a macro line of the page is the heading of this variable.
fn names(line: &str, variable: &str) -> bool {
    line.starts_with(".B") && line.split([' ', '"', ',']).any(|word| word == variable)
}
