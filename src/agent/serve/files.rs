//! The plugin and the CNI configuration: their changes are reported by inotify(7) and repaired soon, but a
//! file that somebody changes again and again is repaired ever more seldom.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::agent::reconcile;
use crate::net::{Object, Problem, ProblemKind};
use crate::os::file_watch::FileWatch;
use crate::settings::Settings;

/// Wait after a change: several steps are repaired at once.
const SETTLE: Duration = Duration::from_millis(200);

/// Repairs in a row with that wait; each further one doubles it, up to [`LONGEST`].
const FREE: u32 = 4;

const LONGEST: Duration = Duration::from_secs(60);

/// A file that stays unchanged for so long after the wait is no longer contended.
const QUIET: Duration = Duration::from_secs(30);

/// The files that are watched.
pub struct RuntimeFiles {
    /// `None`: inotify(7) is refused.
    watch: Option<Arc<FileWatch>>,
    /// When to reconcile them, if they were changed.
    due: Option<Instant>,
    repairs: BTreeMap<PathBuf, Repairs>,
    /// Why not all of them can be watched, as logged last.
    refused: Option<String>,
}

/// Repairs of one file in a row.
struct Repairs {
    file: Object,
    count: u32,
    last: Instant,
}

impl Repairs {
    fn wait(&self) -> Duration {
        let doubled = 2u32.saturating_pow(self.count.saturating_sub(FREE));
        SETTLE.saturating_mul(doubled).min(LONGEST)
    }

    fn is_recent(&self, now: Instant) -> bool {
        now <= self.last + self.wait() + QUIET
    }

    fn is_contended(&self, now: Instant) -> bool {
        self.count > FREE && self.is_recent(now)
    }
}

impl RuntimeFiles {
    pub fn new(watch: Option<Arc<FileWatch>>) -> RuntimeFiles {
        RuntimeFiles { watch, due: None, repairs: BTreeMap::new(), refused: None }
    }

    /// Watches the files of `settings` and the settings file; called before they are read. What cannot be
    /// watched is logged once.
    pub fn follow(&mut self, settings: &Settings, settings_file: &Path) {
        let Some(watch) = &self.watch else { return };
        let plugin = reconcile::plugin::files(settings);
        let files = plugin.iter().map(PathBuf::as_path).chain([settings.cni.config.as_path()]);
        let policies = settings.policy.iter().filter_map(|policy| policy.file.as_deref());
        let files =
            files.chain([settings_file]).chain(policies).chain(settings.psk_file.as_deref());
        let refused = watch.follow(files).err().map(|error| error.to_string());
        if let Some(refused) = refused.as_ref().filter(|_| self.refused != refused) {
            log::warn!("watch {refused}; changes there are noticed at the next full check");
        }
        self.refused = refused;
    }

    /// `files` were changed `now`. A contended one delays none of the others.
    pub fn changed(&mut self, files: &BTreeSet<PathBuf>, now: Instant) {
        let settled = now + SETTLE;
        let due = |file| {
            let repairs: Option<&Repairs> = self.repairs.get(file);
            repairs.map_or(settled, |repairs| settled.max(repairs.last + repairs.wait()))
        };
        self.due = files.iter().map(due).chain(self.due).min();
    }

    /// When to reconcile them, if they were changed.
    pub fn due(&self) -> Option<Instant> {
        self.due
    }

    /// It is time to reconcile them; true once.
    pub fn take_due(&mut self, now: Instant) -> bool {
        self.due.take_if(|due| *due <= now).is_some()
    }

    /// The agent repaired these, which somebody else had changed.
    pub fn repaired(&mut self, files: &[Object], now: Instant) {
        self.repairs.retain(|_, repairs| repairs.is_recent(now));
        for (file, path) in files.iter().filter_map(|file| Some((file, path(file)?))) {
            let count = self.repairs.get(path).map_or(0, |repairs| repairs.count) + 1;
            let repairs = Repairs { file: file.clone(), count, last: now };
            self.repairs.insert(path.to_owned(), repairs);
        }
    }

    /// The files that somebody changes again and again, each with the action to take.
    pub fn contended(&self, now: Instant) -> Vec<Problem> {
        let contended = self.repairs.iter().filter(|(_, repairs)| repairs.is_contended(now));
        let problem = |path: &Path, file: &Object| {
            let what = format!(
                "{file} is changed by another program again and again, and repaired ever more \
                 seldom, down to once a minute"
            );
            let path = path.display();
            Problem::new(ProblemKind::FileContested, file.clone(), what)
                .with_fix(format!("auditctl -w {path} -p wa # then ausearch -i finds the program"))
        };
        contended.map(|(path, repairs)| problem(path, &repairs.file)).collect()
    }
}

/// Where a file lies.
fn path(file: &Object) -> Option<&Path> {
    match file {
        Object::Configuration(path) | Object::Plugin(path) | Object::PluginLink(path) => Some(path),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contended(file: &Path, now: Instant) -> RuntimeFiles {
        let mut files = RuntimeFiles::new(None);
        repair(&mut files, file, now, 50);
        files
    }

    fn repair(files: &mut RuntimeFiles, file: &Path, now: Instant, times: usize) {
        for _ in 0..times {
            files.repaired(&[Object::Configuration(file.to_owned())], now);
        }
    }

    /// After how long the files are reconciled, once `changes` came, each at once after the other.
    fn waits(files: &mut RuntimeFiles, changes: &[&[&Path]], now: Instant) -> Option<Duration> {
        for changed in changes {
            files.changed(&changed.iter().map(|path| path.to_path_buf()).collect(), now);
        }
        files.due().map(|due| due - now)
    }

    /// Somebody changes `file` back within a millisecond, `times` times: when it was repaired.
    fn contest(
        files: &mut RuntimeFiles,
        file: &Path,
        begun: Instant,
        times: usize,
    ) -> Vec<Duration> {
        let (mut now, mut repaired) = (begun, Vec::new());
        for _ in 0..times {
            files.changed(&[file.to_owned()].into(), now + Duration::from_millis(1));
            now = files.due().unwrap();
            assert!(files.take_due(now));
            repair(files, file, now, 1);
            repaired.push(now - begun);
        }
        repaired
    }

    #[test]
    fn a_contended_file_delays_no_other() {
        let (fought, other) = (Path::new("/etc/f"), Path::new("/opt/g"));
        let now = Instant::now();
        let check = |changes: &[&[&Path]], is_late: bool| {
            let waits = waits(&mut contended(fought, now), changes, now).unwrap();
            assert_eq!(waits > Duration::from_secs(10), is_late, "{changes:?}: {waits:?}");
        };
        check(&[&[fought]], true);
        check(&[&[other]], false);
        check(&[&[fought], &[other]], false);
        check(&[&[other], &[fought]], false);
        check(&[&[fought, other]], false);
        assert_eq!(waits(&mut contended(fought, now), &[&[]], now), None, "nothing was changed");
    }

    #[test]
    fn further_changes_do_not_delay_the_repair() {
        let (fought, now) = (Path::new("/etc/f"), Instant::now());
        let mut files = contended(fought, now);
        let first = waits(&mut files, &[&[fought]], now);
        files.changed(&[fought.to_owned()].into(), now + Duration::from_secs(59));
        files.changed(&[fought.to_owned()].into(), now + Duration::from_secs(61));
        assert_eq!(files.due().map(|due| due - now), first);
    }

    #[test]
    fn one_change_is_repaired_at_once_and_so_is_a_second() {
        let repaired =
            contest(&mut RuntimeFiles::new(None), Path::new("/etc/f"), Instant::now(), 2);
        assert!(repaired[1] < Duration::from_millis(500), "{repaired:?}");
    }

    #[test]
    fn a_contended_file_is_repaired_once_a_minute() {
        let (mut files, file, begun) =
            (RuntimeFiles::new(None), Path::new("/etc/f"), Instant::now());
        assert!(files.contended(begun).is_empty());
        let repaired = contest(&mut files, file, begun, 100);
        assert!(!files.contended(begun + repaired[99] + LONGEST).is_empty());
        let hour = repaired.iter().filter(|at| **at < Duration::from_secs(3600)).count();
        assert!((60..80).contains(&hour), "{hour} times in an hour");
        for pair in repaired.windows(2) {
            assert!(pair[1] - pair[0] <= LONGEST + Duration::from_millis(1), "{pair:?}");
        }
    }

    #[test]
    fn after_a_quiet_time_a_change_is_repaired_at_once() {
        let (mut files, file, begun) =
            (RuntimeFiles::new(None), Path::new("/etc/f"), Instant::now());
        let end = begun + *contest(&mut files, file, begun, 50).last().unwrap();
        let later = end + LONGEST + QUIET + Duration::from_secs(1);
        assert!(files.contended(later).is_empty());
        repair(&mut files, file, later, 1);
        assert!(files.contended(later).is_empty());
        assert_eq!(waits(&mut files, &[&[file]], later), Some(SETTLE));
    }
}
