//! The files that the agent keeps: heard of when somebody touches them, and put right soon.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use crate::agent::rate_limit::RateLimit;
use crate::agent::reconcile;
use crate::net::{Object, Problem, ProblemKind};
use crate::os::file_watch::FileWatch;
use crate::settings::Settings;

/// What is heard of them.
pub struct Files {
    /// `None`: inotify(7) is refused.
    watch: Option<Arc<FileWatch>>,
    /// When to look at them, since they were touched.
    due: Option<Instant>,
    /// What somebody else changed lately.
    repairs: BTreeMap<Object, RateLimit>,
    /// Why not all of them can be watched, as it was told.
    refused: Option<String>,
}

impl Files {
    /// None is followed yet.
    pub fn new(watch: Option<Arc<FileWatch>>) -> Files {
        Files { watch, due: None, repairs: BTreeMap::new(), refused: None }
    }

    /// Follows those of `settings`, from before they are looked at. What cannot be watched is told
    /// once.
    pub fn follow(&mut self, settings: &Settings) {
        let Some(watch) = &self.watch else { return };
        let plugin = reconcile::plugin::files(settings);
        let files = plugin.iter().map(PathBuf::as_path).chain([settings.cni.config.as_path()]);
        let refused = watch.follow(files).err().map(|error| error.to_string());
        if let Some(refused) = refused.as_ref().filter(|_| self.refused != refused) {
            log::warn!("watch {refused}; changes there are noticed at the next full check");
        }
        self.refused = refused;
    }

    /// `files` of them were touched `now`: a war over one delays none of the others.
    pub fn touched(&mut self, files: &BTreeSet<PathBuf>, now: Instant) {
        let due = |file: &PathBuf| {
            let repaired =
                self.repairs.iter().find(|(object, _)| path(object) == Some(file.as_path()));
            repaired.map_or_else(|| RateLimit::default().due(now), |(_, pace)| pace.due(now))
        };
        self.due = files.iter().map(due).chain(self.due).min();
    }

    /// When to look at them, if they were touched.
    pub fn due(&self) -> Option<Instant> {
        self.due
    }

    /// It is time to look at them; that is said once.
    pub fn take_due(&mut self, now: Instant) -> bool {
        self.due.take_if(|due| *due <= now).is_some()
    }

    /// These were not as they should be, because of somebody else, and are again.
    pub fn mended(&mut self, files: &[Object], now: Instant) {
        if files.is_empty() {
            return;
        }
        self.repairs.retain(|_, pace| pace.is_recent(now));
        for file in files {
            self.repairs.entry(file.clone()).or_default().repaired(now);
        }
    }

    /// Those that somebody does not leave alone, and what to do.
    pub fn contended(&self, now: Instant) -> Vec<Problem> {
        let problem = |file: &Object| {
            let path =
                path(file).map_or_else(|| file.to_string(), |path| path.display().to_string());
            let what = format!(
                "{file} is changed by another program again and again, and repaired ever more \
                 seldom, down to once a minute"
            );
            Problem::new(ProblemKind::FileContested, file.clone(), what).with_fix(format!(
                "find the program: auditctl -w {path} -p wa, and then ausearch -i"
            ))
        };
        let contested = self.repairs.iter().filter(|(_, pace)| pace.is_contended(now));
        contested.map(|(file, _)| problem(file)).collect()
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
    use std::time::Duration;

    use super::*;

    /// Somebody changed `file` back 50 times: it waits for a minute now.
    fn at_war(file: &Path, now: Instant) -> Files {
        let mut files = Files::new(None);
        for _ in 0..50 {
            files.mended(&[Object::Configuration(file.to_owned())], now);
        }
        files
    }

    /// After how long it is looked at the files, once `touches` came, each at once after the other.
    fn waits(files: &mut Files, touches: &[&[&Path]], now: Instant) -> Option<Duration> {
        for touched in touches {
            files.touched(&touched.iter().map(|path| path.to_path_buf()).collect(), now);
        }
        files.due().map(|due| due - now)
    }

    #[test]
    fn a_war_over_one_file_delays_no_other() {
        let (fought, other) = (Path::new("/etc/f"), Path::new("/opt/g"));
        let now = Instant::now();
        let check = |touches: &[&[&Path]], is_late: bool| {
            let waits = waits(&mut at_war(fought, now), touches, now).unwrap();
            assert_eq!(waits > Duration::from_secs(10), is_late, "{touches:?}: {waits:?}");
        };
        check(&[&[fought]], true);
        check(&[&[other]], false);
        check(&[&[fought], &[other]], false);
        check(&[&[other], &[fought]], false);
        check(&[&[fought, other]], false);
        assert_eq!(waits(&mut at_war(fought, now), &[&[]], now), None, "nothing was touched");
    }

    #[test]
    fn whoever_goes_on_does_not_put_it_off() {
        let (fought, now) = (Path::new("/etc/f"), Instant::now());
        let mut files = at_war(fought, now);
        let first = waits(&mut files, &[&[fought]], now);
        files.touched(&[fought.to_owned()].into(), now + Duration::from_secs(59));
        files.touched(&[fought.to_owned()].into(), now + Duration::from_secs(61));
        assert_eq!(files.due().map(|due| due - now), first);
    }
}
