//! Carries out the changes of one reconcile, and records them and what failed.

use std::fmt::{self, Display};
use std::path::{Path, PathBuf};

use crate::inspect::pods::store_problem;
use crate::net::{Hint, Object, Problem, ProblemKind};
use crate::os::files::FileError;
use crate::plan::{Describe, Line};

/// What to do about a failure that gives no better advice.
const RETRIED: &str = "the agent tries again by itself, at the latest with its regular check";

/// Context of an error of the IPAM store: what could not be inspected for it is an effect.
#[derive(Debug)]
pub struct StoreUnusable {
    pub ipam_dir: PathBuf,
}

impl Display for StoreUnusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("use the IPAM store")
    }
}

/// What to do about `error`: what its [`Hint`] or [`FileError`] says, else `usual`, else wait.
pub fn fix_of(error: &anyhow::Error, usual: Option<&str>) -> String {
    let hint = error.downcast_ref::<Hint>().map(|hint| hint.fix.clone());
    let file = || Some(error.downcast_ref::<FileError>()?.fix()?.to_owned());
    hint.or_else(file).unwrap_or_else(|| usual.unwrap_or(RETRIED).to_owned())
}

/// In a dry run changes are only recorded; otherwise each one is carried out and logged.
#[derive(Debug, Default)]
pub struct Applier {
    dry: bool,
    lines: Vec<Line>,
    done: Vec<Line>,
    /// What was done is logged when somebody asks for that.
    logs_later: bool,
    unlogged: Vec<Vec<Line>>,
    failures: Vec<Problem>,
    /// The fix of failures that know none, where no agent tries again.
    pub usual_fix: Option<&'static str>,
}

impl Applier {
    pub fn new(dry: bool) -> Applier {
        Applier { dry, ..Applier::default() }
    }

    /// One whose changes are logged by [`Applier::log`], where somebody waits for them.
    pub fn logging_later() -> Applier {
        Applier { logs_later: true, ..Applier::default() }
    }

    /// Logs what was done and is not logged yet.
    pub fn log(&mut self) {
        std::mem::take(&mut self.unlogged).iter().for_each(|lines| log_done(lines));
    }

    /// Carries out one change with `apply`; goes on after a failure.
    pub fn apply<E: Into<anyhow::Error>>(
        &mut self,
        change: &impl Describe,
        apply: impl FnOnce() -> Result<(), E>,
    ) {
        self.carry_out(vec![change.line()], apply);
    }

    /// Carries out changes that `apply` makes all at once or not at all.
    pub fn apply_together<E: Into<anyhow::Error>>(
        &mut self,
        changes: &[impl Describe],
        apply: impl FnOnce() -> Result<(), E>,
    ) {
        self.carry_out(changes.iter().map(Describe::line).collect(), apply);
    }

    /// As [`Applier::apply_together`], for what the host may do without.
    ///
    /// # Errors
    /// Those of `apply`, which are no failure of the reconcile.
    pub fn attempt<E>(
        &mut self,
        changes: &[impl Describe],
        apply: impl FnOnce() -> Result<(), E>,
    ) -> Result<(), E> {
        let lines: Vec<Line> = changes.iter().map(Describe::line).collect();
        if self.dry {
            self.lines.extend(lines);
            return Ok(());
        }
        apply()?;
        self.done(lines);
        Ok(())
    }

    /// Carries out changes that `apply` makes one by one: an outcome for each, in their order, or
    /// the one reason why it cannot say. Of very many only the first are logged one by one at info.
    pub fn apply_each<E: Into<anyhow::Error>>(
        &mut self,
        changes: &[impl Describe],
        apply: impl FnOnce() -> Result<Vec<Result<(), E>>, E>,
    ) {
        let lines: Vec<Line> = changes.iter().map(Describe::line).collect();
        if self.dry || lines.is_empty() {
            return self.lines.extend(lines);
        }
        let outcomes = match apply() {
            Ok(outcomes) => outcomes,
            Err(error) => return self.not_done(&lines, error.into()),
        };
        let mut done = Vec::with_capacity(lines.len());
        for (line, outcome) in lines.into_iter().zip(outcomes) {
            match outcome {
                Ok(()) => done.push(line),
                Err(error) => self.not_done(&[line], error.into()),
            }
        }
        self.done(done);
    }

    fn carry_out<E: Into<anyhow::Error>>(
        &mut self,
        lines: Vec<Line>,
        apply: impl FnOnce() -> Result<(), E>,
    ) {
        if self.dry {
            return self.lines.extend(lines);
        }
        match apply() {
            Ok(()) => self.done(lines),
            Err(error) => self.not_done(&lines, error.into()),
        }
    }

    fn done(&mut self, lines: Vec<Line>) {
        match self.logs_later {
            true => self.unlogged.push(lines.clone()),
            false => log_done(&lines),
        }
        self.done.extend(lines);
    }

    fn not_done(&mut self, lines: &[Line], error: anyhow::Error) {
        let Some(first) = lines.first() else { return };
        let mut attempts: Vec<String> = lines.iter().take(LINES).map(Line::attempt).collect();
        if lines.len() > LINES {
            attempts.push(format!("{} more", lines.len() - LINES));
        }
        let what = format!("{}: {error:#}", attempts.join(", "));
        let problem = Problem::new(ProblemKind::ChangeFailed, first.object.clone(), what);
        self.failed(problem.with_fix(fix_of(&error, self.usual_fix)));
    }

    /// Something could not be inspected or changed.
    pub fn failed(&mut self, problem: Problem) {
        self.failures.push(problem);
    }

    /// The IPAM store cannot be used: one problem, whatever needs it.
    pub fn store_failed(&mut self, ipam_dir: &Path, error: &anyhow::Error) {
        if !self.is_store_unusable() {
            self.failed(store_problem(ipam_dir, error));
        }
    }

    /// What fails for this has its problem.
    pub fn is_store_unusable(&self) -> bool {
        let of_store = |kind| matches!(kind, ProblemKind::IpamStore | ProblemKind::StoresUnread);
        self.failures.iter().any(|problem| of_store(problem.kind))
    }

    /// `subject` could not be inspected, and nothing of it was changed.
    pub fn inspect_failed(&mut self, subject: Object, error: impl Display) {
        self.inspection_failed(subject, &anyhow::anyhow!("{error}"));
    }

    /// What was `found` of `subject`; `None` if it could not be inspected.
    pub fn inspected<T>(&mut self, subject: Object, found: Result<T, impl Display>) -> Option<T> {
        found.map_err(|error| self.inspect_failed(subject, error)).ok()
    }

    /// As [`Applier::inspect_failed`], with the fix that `error` knows, or what it is an effect of.
    pub fn inspection_failed(&mut self, subject: Object, error: &anyhow::Error) {
        if let Some(StoreUnusable { ipam_dir }) = error.downcast_ref() {
            return self.store_failed(ipam_dir, error);
        }
        let what = format!("inspect {subject}: {error:#}");
        let problem = Problem::new(ProblemKind::InspectFailed, subject, what);
        self.failed(problem.with_fix(fix_of(error, self.usual_fix)));
    }

    /// Nothing is carried out.
    pub fn is_dry(&self) -> bool {
        self.dry
    }

    /// What a dry run would change, in order.
    pub fn lines(&self) -> &[Line] {
        &self.lines
    }

    /// What was carried out, in order.
    pub fn changes(&self) -> &[Line] {
        &self.done
    }

    /// What could not be done, a line each.
    pub fn failure_lines(&self) -> String {
        self.failures.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
    }

    /// What could not be done, in order.
    pub fn failures(&self) -> &[Problem] {
        &self.failures
    }
}

/// So many changes are logged, or named in a failure, one by one: changes can concern all hosts.
const LINES: usize = 20;

fn log_done(lines: &[Line]) {
    let (first, rest) = lines.split_at(lines.len().min(LINES));
    first.iter().for_each(|line| log::info!("{}", line.past()));
    rest.iter().for_each(|line| log::debug!("{}", line.past()));
    if !rest.is_empty() {
        log::info!("{} more changes of this kind (RUST_LOG=debug shows each)", rest.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(count: u32) -> Vec<Line> {
        (0..count).map(|key| Line::added(Object::Key(key.to_string()))).collect()
    }

    #[test]
    fn a_change_that_failed_is_reported_with_its_own_reason() {
        let mut applier = Applier::new(false);
        let outcomes = || Ok(vec![Ok(()), Err(anyhow::anyhow!("no way")), Ok(())]);
        applier.apply_each(&keys(3), outcomes);
        let [failure] = applier.failures() else { panic!("one failure") };
        assert_eq!(failure.key(), (ProblemKind::ChangeFailed, Object::Key("1".to_owned())));
        assert_eq!(failure.what, "add etcd key 1: no way");
    }

    #[test]
    fn of_many_changes_that_fail_together_the_first_are_listed() {
        let mut applier = Applier::new(false);
        applier.apply_each(&keys(10_000), || Err(anyhow::anyhow!("no socket")));
        let [failure] = applier.failures() else { panic!("one reason, one failure") };
        assert!(failure.what.starts_with("add etcd key 0, add etcd key 1, "), "{failure}");
        assert!(failure.what.ends_with("add etcd key 19, 9980 more: no socket"), "{failure}");
    }

    #[test]
    fn a_dry_run_notes_every_change_and_makes_none() {
        let mut applier = Applier::new(true);
        let apply = || -> anyhow::Result<Vec<anyhow::Result<()>>> { panic!("a dry run") };
        applier.apply_each(&keys(50), apply);
        assert_eq!(applier.lines().len(), 50);
    }
}
