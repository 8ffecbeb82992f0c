//! Disks, the clock, and limits on files.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use nix::errno::Errno;
use nix::sys::inotify::{InitFlags, Inotify};

use crate::checks::limits;
use crate::command::doctor::context::DoctorContext;
use crate::net::{Object, Problem, ProblemKind};
use crate::os::disk_space;

pub fn problems(context: &DoctorContext<'_>) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (path, what) in places(context) {
        problems.extend(room(&path, what));
    }
    problems.extend(clock(context));
    problems.extend(watches());
    problems
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

fn room(path: &Path, what: &str) -> Option<Problem> {
    match disk_space::at(path) {
        Ok(found) => limits::space(path, what, &found),
        Err(error) => {
            let what = format!("{} ({what}) cannot be inspected: {error}", path.display());
            let subject = Object::File("disk of", path.to_owned());
            let problem = Problem::new(ProblemKind::Disk, subject, what);
            Some(problem.with_fix("dmesg # look for errors of the disk"))
        }
    }
}

/// A file that was written later than now, or a time before there was humanz.
fn clock(context: &DoctorContext<'_>) -> Option<Problem> {
    const BEGINNING: Duration = Duration::from_secs(1_735_689_600);
    const SLACK: Duration = Duration::from_secs(60);
    let now = SystemTime::now();
    let state = context.settings().state_file();
    let written = std::fs::metadata(&state).and_then(|found| found.modified()).ok();
    let back = written.is_some_and(|written| written > now + SLACK);
    let early = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default() < BEGINNING;
    (back || early).then(|| {
        let what = match back {
            true => format!("the clock is behind: {} was written later than now", state.display()),
            false => "the clock is years behind".to_owned(),
        };
        let fix = "timedatectl set-ntp true # certificates and leases depend on it";
        Problem::new(ProblemKind::Clock, Object::named("clock"), what).with_fix(fix)
    })
}

/// Runtimes, kubelet and the agent watch files, and there are few watchers for each user.
fn watches() -> Option<Problem> {
    match Inotify::init(InitFlags::IN_CLOEXEC) {
        Err(Errno::EMFILE) => {
            let what = "no more inotify instances can be had: containerd misses changes of the CNI \
                        configuration, and the agent those of iptables-legacy";
            let fix = "sysctl -w fs.inotify.max_user_instances=8192 \
                        fs.inotify.max_user_watches=524288";
            let subject = Object::Sysctl("fs/inotify/max_user_instances".to_owned());
            Some(Problem::new(ProblemKind::Inotify, subject, what).with_fix(fix))
        }
        _ => None,
    }
}
