//! The files that the agent keeps: heard of when somebody touches them, and put right soon.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use crate::agent::keep;
use crate::agent::pace::Pace;
use crate::agent::settings::Settings;
use crate::linux::file_watch::FileWatch;
use crate::plan::Object;

/// What is heard of them.
pub struct Files {
    /// `None`: inotify(7) is refused.
    watch: Option<Arc<FileWatch>>,
    /// When to look at them, since they were touched.
    due: Option<Instant>,
    /// What somebody else changed lately.
    mended: BTreeMap<Object, Pace>,
    /// Why not all of them can be watched, as it was told.
    refused: Option<String>,
}

impl Files {
    /// None is followed yet.
    pub fn new(watch: Option<Arc<FileWatch>>) -> Files {
        Files { watch, due: None, mended: BTreeMap::new(), refused: None }
    }

    /// Follows those of `settings`, from before they are looked at. What cannot be watched is told
    /// once.
    pub fn follow(&mut self, settings: &Settings) {
        let Some(watch) = &self.watch else { return };
        let plugin = keep::plugin::files(settings);
        let files = plugin.iter().map(PathBuf::as_path).chain([settings.cni.config.as_path()]);
        let refused = watch.follow(files).err().map(|error| error.to_string());
        if let Some(refused) = refused.as_ref().filter(|_| self.refused != refused) {
            log::warn!("watch {refused}; changes there are noticed at the next full check");
        }
        self.refused = refused;
    }

    /// One of them was touched `now`.
    pub fn touched(&mut self, now: Instant) {
        let paces = self.mended.values().map(|pace| pace.due(now));
        let due = paces.max().unwrap_or_else(|| Pace::default().due(now));
        self.due.get_or_insert(due);
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
        self.mended.retain(|_, pace| pace.is_at_war(now));
        for file in files {
            self.mended.entry(file.clone()).or_default().mended(now);
        }
    }

    /// Those that somebody does not leave alone, and what to do.
    pub fn contested(&self, now: Instant) -> BTreeSet<String> {
        let told = |file: &Object| {
            let path = match file {
                Object::Configuration(path) | Object::Plugin(path) | Object::PluginLink(path) => {
                    path.display().to_string()
                }
                other => other.to_string(),
            };
            format!(
                "{file} is changed by somebody again and again, and put right ever more seldom, down \
                 to once a minute; find out who does it: auditctl -w {path} -p wa, and then ausearch -i"
            )
        };
        let contested = self.mended.iter().filter(|(_, pace)| pace.is_contested(now));
        contested.map(|(file, _)| told(file)).collect()
    }
}
