//! The kernel's older iptables tables, by way of the iptables-legacy program.
//!
//! This is the one place where humanz runs a program: those tables are handed over whole, in a
//! layout that only that program knows.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::net::Family;
use crate::nft::base_chains::chain::{BaseChain, EditKind, RuleEdit};
use crate::nft::base_chains::error::ChainError;
use crate::nft::base_chains::legacy_text;
use crate::os::files;
use crate::os::xtables_lock::ELSEWHERE;

/// Seconds to wait for another iptables to finish.
const LOCK_SECONDS: &str = "5";

/// How the program ends if the rule to remove is not there.
const NO_SUCH_RULE: i32 = 1;

/// Where the older tables are listed, and where the program is looked for.
#[derive(Clone, Debug)]
pub struct LegacyTables {
    names: PathBuf,
    program_dirs: Vec<PathBuf>,
}

impl LegacyTables {
    /// Those of the calling thread's network namespace.
    pub fn new(program_dirs: Vec<PathBuf>) -> LegacyTables {
        LegacyTables { names: PathBuf::from("/proc/thread-self/net"), program_dirs }
    }

    /// The chain `name` of the table `filter`; `None` if that table does not exist.
    ///
    /// # Errors
    /// [`ChainError::NoProgram`] if the table is there and the program is not.
    pub fn observe(
        &self,
        family: Family,
        name: &'static str,
    ) -> Result<Option<BaseChain>, ChainError> {
        if !self.in_use(family, "filter")? {
            return Ok(None);
        }
        // The kernel hands the table over whole, so no lock is needed.
        let listed = self.run(family, &["-S"], Some(ELSEWHERE))?;
        Ok(Some(legacy_text::chain(family, name, &listed)))
    }

    /// Inserts or removes a rule of ours.
    ///
    /// # Errors
    /// [`ChainError`]; one that is already gone is none.
    pub fn apply(&self, family: Family, edit: &RuleEdit) -> Result<(), ChainError> {
        let rule = legacy_text::rule(edit.direction, &edit.bridge);
        let rule: Vec<&str> = rule.iter().map(String::as_str).collect();
        let change = |option| self.run(family, &[&[option, "FORWARD"], &rule[..]].concat(), None);
        let done = match edit.action {
            EditKind::Insert => change("-I"),
            EditKind::Remove(_) => change("-D"),
        };
        match done {
            Err(ChainError::Program { status, .. })
                if edit.action != EditKind::Insert && status.code() == Some(NO_SUCH_RULE) =>
            {
                Ok(())
            }
            done => done.map(drop),
        }
    }

    /// The table exists. (Asking the program would make it.)
    ///
    /// # Errors
    /// [`ChainError::Read`].
    pub fn in_use(&self, family: Family, table: &str) -> Result<bool, ChainError> {
        let path = self.names.join(match family {
            Family::V4 => "ip_tables_names",
            Family::V6 => "ip6_tables_names",
        });
        let names = files::found(fs::read_to_string(&path));
        let names = names.map_err(|source| ChainError::Read { path, source })?;
        Ok(names.is_some_and(|names| names.lines().any(|name| name == table)))
    }

    /// What the program prints.
    fn run(
        &self,
        family: Family,
        arguments: &[&str],
        lock: Option<(&str, &str)>,
    ) -> Result<String, ChainError> {
        let name = program(family);
        let path = self.find(name).ok_or(ChainError::NoProgram { name })?;
        let command = || format!("{name} {}", arguments.join(" "));
        let output = Command::new(&path)
            .args(["-w", LOCK_SECONDS])
            .args(arguments)
            .env("LC_ALL", "C")
            .envs(lock)
            .stdin(Stdio::null())
            .output()
            .map_err(|source| ChainError::Run { command: command(), source })?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            return Err(ChainError::Program { command: command(), status: output.status, said });
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    fn find(&self, name: &str) -> Option<PathBuf> {
        self.program_dirs.iter().map(|dir| dir.join(name)).find(|path: &PathBuf| is_file(path))
    }
}

fn is_file(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|metadata| metadata.is_file())
}

fn program(family: Family) -> &'static str {
    match family {
        Family::V4 => "iptables-legacy",
        Family::V6 => "ip6tables-legacy",
    }
}
