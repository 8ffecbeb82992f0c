//! A guide of packaging/ as its fenced blocks, and a shell that does what they say.
//!
//! A block is a file if its first line names one after the language (```` ```yaml policies.yaml ````), or a
//! session (```` ```console ````): lines with the prompt `# ` are commands of root, the lines below each are
//! its output, `…` stands for further lines. One that fails ends with `; echo $?`, and its code is the last line. Other blocks are refused: what is not run is not shown as if it were.

use std::collections::BTreeSet;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use super::disk::EXECUTABLE;
use super::node::{Node, PATH, Place, command};
use super::process::{Ended, Process};
use super::wait::{SOON, eventually};

/// Where its commands run; files without a folder of their own lie there.
const FOLDER: &str = "/root";
const ELLIPSIS: &str = "…";
const CODE: &str = "; echo $?";

/// Words of commands that change something: what fails the first time has failed.
const CHANGES: [&str; 23] = [
    "--apply",
    "-U",
    "-i",
    "-w",
    ">",
    ">>",
    "add",
    "apply",
    "create",
    "delete",
    "downgrade",
    "enable",
    "grant-permission",
    "grant-role",
    "install",
    "iptables-restore",
    "mv",
    "reserve",
    "rm",
    "rule-add",
    "rule-set",
    "set",
    "uninstall",
];

/// The blocks of a guide that nobody has taken yet.
pub struct Guide {
    name: String,
    blocks: Vec<Block>,
}

/// One fenced block.
struct Block {
    /// The heading that it stands under.
    heading: String,
    content: Content,
}

enum Content {
    File { path: String, text: String },
    Session(Vec<Step>),
}

/// A command, and what it prints.
#[derive(Clone, Debug)]
pub struct Step {
    place: String,
    pub command: String,
    output: Vec<String>,
    code: i32,
    known: Rc<GuideConstants>,
}

impl Guide {
    /// That of packaging/`name`.
    ///
    /// # Panics
    /// If it has blocks that are neither files nor sessions.
    pub fn read(name: &str) -> Guide {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging").join(name);
        let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{name}: {e}"));
        Guide::parse(name, &text)
    }

    /// A guide of this text.
    ///
    /// # Panics
    /// As [`Guide::read`].
    pub fn parse(name: &str, text: &str) -> Guide {
        let (mut heading, mut blocks) = (String::new(), Vec::new());
        let known = Rc::new(GuideConstants::of(text));
        let mut lines = text.lines().zip(1..);
        while let Some((line, number)) = lines.next() {
            if line.starts_with('#') {
                heading = line.trim_start_matches('#').trim().to_owned();
            }
            assert!(!line.starts_with("    "), "{name}:{number}: an indented block is not run");
            let Some(info) = line.strip_prefix("```") else { continue };
            let body: Vec<_> = lines.by_ref().take_while(|(line, _)| *line != "```").collect();
            let content = match info.split_once(' ') {
                Some((_, path)) => {
                    let text = body.iter().map(|(line, _)| format!("{line}\n")).collect();
                    Content::File { path: path.to_owned(), text }
                }
                None if info == "console" => Content::Session(steps(name, &body, &known)),
                None => panic!("{name}:{number}: a block that is neither console nor a file"),
            };
            blocks.push(Block { heading: heading.clone(), content });
        }
        Guide { name: name.to_owned(), blocks }
    }

    /// Does what the section below `heading` says, from its first block to the last, and compares what
    /// commands print with what the guide shows. `step` may carry out a command in another way.
    ///
    /// # Panics
    /// If something differs, or there is no such section.
    pub fn follow(&mut self, heading: &str, on: &Node, mut step: impl FnMut(&Step) -> bool) {
        self.follow_on(heading, &[on], |it, _| step(it));
    }

    /// The same on one node after the other.
    ///
    /// # Panics
    /// As [`Guide::follow`].
    pub fn follow_on(
        &mut self,
        heading: &str,
        nodes: &[&Node],
        mut step: impl FnMut(&Step, &Node) -> bool,
    ) {
        let is_here = |block: &mut Block| block.heading == heading;
        let taken: Vec<Block> = self.blocks.extract_if(.., is_here).collect();
        assert!(!taken.is_empty(), "{}: no blocks under {heading:?}", self.name);
        for node in nodes {
            for block in &taken {
                match &block.content {
                    Content::File { path, text } => write(node, path, text),
                    Content::Session(steps) => {
                        steps.iter().filter(|it| !step(it, node)).for_each(|it| it.run(node));
                    }
                }
            }
        }
    }

    /// The sections below `headings` are carried out by the test `test`, which needs other hosts.
    ///
    /// # Panics
    /// If there is no such section, or the test does not mention it.
    pub fn leave_to(&mut self, test: &str, headings: &[&str]) {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(test);
        let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{test}: {e}"));
        for heading in headings {
            let before = self.blocks.len();
            self.blocks.retain(|block| block.heading != *heading);
            let is_there = self.blocks.len() < before && text.contains(&format!("\"{heading}\""));
            assert!(is_there, "{}: {heading:?} is not for {test}", self.name);
        }
    }

    /// Every block was carried out.
    ///
    /// # Panics
    /// If one was not.
    pub fn finish(self) {
        let left: Vec<&str> = self.blocks.iter().map(|block| block.heading.as_str()).collect();
        assert!(left.is_empty(), "{}: blocks that were not run, under {left:?}", self.name);
    }
}

impl Step {
    /// Runs it, and one that changes nothing until it prints what the guide shows: what others do about a change
    /// takes its time.
    fn run(&self, on: &Node) {
        let once = || {
            let ended = on.run_command(&mut self.shell(), "");
            self.compare(&ended).map_err(|why| format!("{why}\n{ended}"))
        };
        if self.changes() {
            return once().unwrap_or_else(|why| panic!("{}: {}: {why}", self.place, self.command));
        }
        eventually(&format!("{}: {} prints what is shown", self.place, self.command), SOON, once);
    }

    fn changes(&self) -> bool {
        let mut words = self.command.split_whitespace();
        words.any(|word| CHANGES.contains(&word)) && !self.command.contains("--dry-run")
    }

    /// A command that does not end by itself: it runs while `cause` is called again and again, until it
    /// has printed what the guide shows.
    pub fn watch(&self, on: &Node, cause: impl Fn()) {
        let process: Process = on.spawn(&mut self.shell());
        eventually(&format!("{}: {} prints what is shown", self.place, self.command), SOON, || {
            cause();
            std::thread::sleep(Duration::from_millis(50));
            let log = process.log();
            let is_printed =
                |line: &&String| log.lines().any(|found| self.known.is_alike(line, found));
            let missing = self.output.iter().filter(|line| !is_printed(line)).count();
            if missing == 0 { Ok(()) } else { Err(log) }
        });
    }

    fn shell(&self) -> std::process::Command {
        let folder = EXECUTABLE.trim_end_matches("/humanz-agent");
        let mut shell = command("sh -c");
        shell.arg(format!("cd {FOLDER} && {}", self.command));
        shell.env("PATH", format!("{folder}:{PATH}"));
        shell
    }

    fn compare(&self, ended: &Ended) -> Result<(), String> {
        if ended.status.code() != Some(self.code) {
            return Err(format!("the guide shows code {}", self.code));
        }
        let found: Vec<&str> = ended.stdout.lines().chain(ended.stderr.lines()).collect();
        let wanted: Vec<&str> = self.output.iter().map(String::as_str).collect();
        match self.known.shows(&wanted, &found) {
            true => Ok(()),
            false => Err(format!("the guide shows:\n{}", wanted.join("\n"))),
        }
    }
}

/// Folders as packages make them are not the reader's work.
fn write(node: &Node, path: &str, text: &str) {
    let path = if path.starts_with('/') { path.to_owned() } else { format!("{FOLDER}/{path}") };
    let (folder, _) = path.rsplit_once('/').expect("it is absolute");
    node.run(&format!("mkdir -p {folder}")).ok();
    node.write(&path, text);
}

fn steps(name: &str, body: &[(&str, i32)], known: &Rc<GuideConstants>) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    for (line, number) in body {
        match (line.strip_prefix("# "), steps.last_mut()) {
            (Some(command), _) => steps.push(Step {
                place: format!("{name}:{number}"),
                command: command.to_owned(),
                output: Vec::new(),
                code: 0,
                known: Rc::clone(known),
            }),
            (None, Some(step)) => step.output.push((*line).to_owned()),
            (None, None) => panic!("{name}:{number}: output without a command"),
        }
    }
    for step in &mut steps {
        if let Some(command) = step.command.strip_suffix(CODE) {
            step.command = command.to_owned();
            let code = step.output.pop().and_then(|line| line.parse().ok());
            step.code = code.unwrap_or_else(|| panic!("{}: no code is shown", step.place));
        }
    }
    steps
}

/// The examples of the manual page packaging/`name`: the text of each block between `.EX` and `.EE`, as a reader
/// sees it.
///
/// # Panics
/// If there is no such page.
pub fn examples(name: &str) -> Vec<String> {
    let text = manual_page(name);
    let blocks = text.split("\n.EX\n").skip(1).filter_map(|rest| rest.split("\n.EE\n").next());
    blocks.map(|block| block.replace("\\-", "-")).collect()
}

/// The source of the manual page packaging/`name`.
///
/// # Panics
/// If there is no such page.
pub fn manual_page(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{name}: {e}"))
}

/// Addresses and ports that the files and commands of a guide have: they are no others in what is printed.
#[derive(Debug)]
pub struct GuideConstants(BTreeSet<String>);

impl GuideConstants {
    /// Those of a guide.
    pub fn of(text: &str) -> GuideConstants {
        let mut known = BTreeSet::new();
        let mut block = None;
        for line in text.lines() {
            match (line.strip_prefix("```"), block) {
                (Some(info), None) => block = Some(info),
                (Some(_), Some(_)) => block = None,
                // Not what a command prints.
                (None, Some(info)) if info != "console" || line.starts_with("# ") => {
                    let words =
                        line.split(|char: char| !char.is_ascii_hexdigit() && !".:".contains(char));
                    known.extend(words.flat_map(|word| [word].into_iter().chain(word.split(':'))));
                }
                _ => {}
            }
        }
        // Smaller numbers are counted, too.
        let is_port = |word: &str| word.len() > 2 && word.parse::<u16>().is_ok();
        let is_known = |word: &&str| word.parse::<std::net::IpAddr>().is_ok() || is_port(word);
        GuideConstants(known.into_iter().filter(is_known).map(str::to_owned).collect())
    }

    /// The lines of `found` are those of `wanted`, where `…` may be any number of lines.
    pub fn shows(&self, wanted: &[&str], found: &[&str]) -> bool {
        match (wanted, found) {
            ([], found) => found.is_empty(),
            ([line, rest @ ..], found) if line.trim() == ELLIPSIS => {
                (0..=found.len()).any(|skipped| self.shows(rest, &found[skipped..]))
            }
            ([_, ..], []) => false,
            ([line, rest @ ..], [first, others @ ..]) => {
                self.is_alike(line, first) && self.shows(rest, others)
            }
        }
    }

    /// Word by word; other numbers, times and addresses differ from run to run.
    fn is_alike(&self, wanted: &str, found: &str) -> bool {
        let kinds = |line: &str| -> Vec<String> {
            line.split_whitespace().map(|word| self.kind(word)).collect()
        };
        kinds(wanted) == kinds(found)
    }

    /// What begins with a digit as its form (`12:30` as `0:0`), an address of IPv6 and an id of a machine as such.
    fn kind(&self, word: &str) -> String {
        let bare = word.trim_matches(|char| "()[],;".contains(char));
        if self.0.contains(bare) {
            return word.to_owned();
        }
        if bare.len() == 32 && bare.chars().all(|char| char.is_ascii_hexdigit()) {
            return word.replace(bare, "ID");
        }
        if bare.parse::<std::net::Ipv6Addr>().is_ok() {
            return word.replace(bare, "::");
        }
        if !bare.starts_with(|char: char| char.is_ascii_digit()) {
            return word.to_owned();
        }
        let parts = word.split_inclusive(|char: char| !char.is_ascii_digit() && char != '.');
        parts.map(|part| self.form(part)).collect()
    }

    /// Of a number or an address, and what ends it.
    fn form(&self, part: &str) -> String {
        let number = part.trim_end_matches(|char: char| !char.is_ascii_digit());
        if self.0.contains(number) {
            return part.to_owned();
        }
        let mut form = String::new();
        for char in part.chars() {
            match char.is_ascii_digit() {
                true if form.ends_with('0') => {}
                true => form.push('0'),
                false => form.push(char),
            }
        }
        form
    }
}
