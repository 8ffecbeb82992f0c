//! Disks, the clock, and limits on files.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use nix::errno::Errno;
use nix::sys::inotify::{InitFlags, Inotify};

use crate::checks::finding::{self, Finding, Severity};
use crate::command::doctor::DoctorContext;
use crate::os::disk_space;

pub fn look(context: &DoctorContext<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, what) in places(context) {
        findings.extend(room(&path, what));
    }
    findings.extend(clock(context));
    findings.extend(watches());
    findings
}

/// Everything that is written to.
fn places(context: &DoctorContext<'_>) -> Vec<(PathBuf, &'static str)> {
    let settings = context.settings();
    let folder = |path: &Path| path.parent().unwrap_or(Path::new("/")).to_owned();
    let mut places = vec![
        (settings.state_dir.clone(), "state of the agent"),
        (settings.cni.ipam_dir.clone(), "addresses of pods"),
        (folder(&settings.cni.config), "CNI configuration"),
        (folder(&settings.cni.plugin), "CNI plugins"),
    ];
    places.extend(settings.cni.log_file.as_ref().map(|file| (folder(file), "log of the plugin")));
    places
}

fn room(path: &Path, what: &str) -> Option<Finding> {
    match disk_space::at(path) {
        Ok(found) => finding::space(path, what, &found),
        Err(error) => {
            let seen = format!("{} ({what}) cannot be looked at: {error}", path.display());
            let how = format!("statvfs {}", path.display());
            Some(Finding::new(Severity::Warning, "disk", how, seen, "is the disk well? dmesg"))
        }
    }
}

/// A file that was written later than now, or a time before there was humanz.
fn clock(context: &DoctorContext<'_>) -> Option<Finding> {
    const BEGINNING: Duration = Duration::from_secs(1_735_689_600);
    const SLACK: Duration = Duration::from_secs(60);
    let now = SystemTime::now();
    let state = context.settings().state_file();
    let written = std::fs::metadata(&state).and_then(|found| found.modified()).ok();
    let back = written.is_some_and(|written| written > now + SLACK);
    let early = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default() < BEGINNING;
    (back || early).then(|| {
        let seen = match back {
            true => format!("the clock is behind: {} was written later than now", state.display()),
            false => "the clock is years behind".to_owned(),
        };
        let cure = "set it (timedatectl set-ntp true): certificates and leases depend on it";
        Finding::new(Severity::Wrong, "clock", "the clock", seen, cure)
    })
}

/// Runtimes, kubelet and the agent watch files, and there are few watchers for each user.
fn watches() -> Option<Finding> {
    match Inotify::init(InitFlags::IN_CLOEXEC) {
        Err(Errno::EMFILE) => {
            let seen = "no more inotify instances can be had: containerd misses changes of the CNI \
                        configuration, and the agent those of iptables-legacy";
            let cure = "sysctl -w fs.inotify.max_user_instances=8192 \
                        fs.inotify.max_user_watches=524288";
            let how = "fs.inotify.max_user_instances";
            Some(Finding::new(Severity::Wrong, "inotify", how, seen, cure))
        }
        _ => None,
    }
}
