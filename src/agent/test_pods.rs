//! Pods of this host for a connectivity test that another host runs.
//!
//! `connectivity serve`, a program of its own, attaches and holds them: a fault there harms no agent, and in the unit the
//! agent itself may make no network namespace. There the service manager starts the program, for a connection with a
//! socket; elsewhere the agent does. It detaches the pods when the agent closes the connection, or ends in any way.

use std::ffi::OsStr;
use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use serde::Deserialize;

use crate::agent::shared_state::SharedState;
use crate::etcd::HeldTestPods;
use crate::etcd::test_answers::LONGEST;
use crate::inspect::pods::{self, Life};
use crate::ipam::TEST_CONTAINER;
use crate::lease::records::TestPodsState;
use crate::os::attended::AttendedProgram;
use crate::os::threads;

/// The socket of the unit `humanz-connectivity.socket`.
const SOCKET: &str = "/run/humanz/connectivity.sock";

/// How long each pod may take, and the length of the answer in bytes.
const ATTACH_WITHIN: Duration = Duration::from_secs(20);
const MOST_BYTES: u64 = 16 * 1024;

/// Time between two looks for what a killed program left.
const CLEAN_UP: Duration = Duration::from_secs(30);

/// What `connectivity serve --json` prints.
#[derive(Deserialize)]
struct ServedPods {
    pods: Vec<Vec<IpAddr>>,
}

/// Answers other hosts from now on, and removes what was left by a program that was killed.
///
/// # Errors
/// There can be no more threads.
pub fn answer(shared: &Arc<SharedState>) -> io::Result<()> {
    let (weak, later) = (Arc::downgrade(shared), Arc::downgrade(shared));
    let source = move || attach(&*weak.upgrade().ok_or(TestPodsState::Failed)?);
    shared.reports.tests.answer_with(Arc::new(source));
    let clean_up = move || {
        loop {
            thread::sleep(CLEAN_UP);
            let Some(shared) = later.upgrade() else { return };
            clean_up(&shared);
        }
    };
    threads::spawn("test-pods", clean_up).map(drop)
}

fn attach(shared: &SharedState) -> Result<HeldTestPods, TestPodsState> {
    let known = shared.snapshot().ok_or(TestPodsState::Failed)?;
    if known.settings.probe.is_none() {
        return Err(TestPodsState::Off);
    }
    let attached = start().and_then(|program| {
        let answer = program.read_json(ATTACH_WITHIN, MOST_BYTES)?;
        let ServedPods { pods } = serde_json::from_value(answer)?;
        Ok(HeldTestPods { pods, program })
    });
    attached.map_err(|error| {
        log::warn!("no pods for the test of another host: {error} (humanz-agent connectivity test here says more)");
        TestPodsState::Failed
    })
}

fn start() -> io::Result<AttendedProgram> {
    match AttendedProgram::connect(Path::new(SOCKET)) {
        Err(error)
            if [ErrorKind::NotFound, ErrorKind::ConnectionRefused].contains(&error.kind()) => {}
        connected => return connected,
    }
    // The same settings, and the same executable, also when its file was replaced.
    let mut command = Command::new("/proc/self/exe");
    let seconds = LONGEST.as_secs().to_string();
    let own = ["connectivity", "serve", "--json", "--until-eof", "--seconds", &seconds];
    command.arg0("humanz-agent").args(std::env::args_os().skip(1)).args(own.map(OsStr::new));
    // The service manager learns of the agent alone.
    for name in ["NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"] {
        command.env_remove(name);
    }
    AttendedProgram::spawn(command)
}

/// Such a program removes them as it begins, and ends at once when its standard input closes.
fn clean_up(shared: &SharedState) {
    let Some(known) = shared.snapshot() else { return };
    let (mut all, _) = pods::attachments(&known.settings);
    // The program removes those of the network that it attaches pods to.
    all.retain(|pod| {
        pod.network == known.settings.cni.name && pod.entry.container_id.starts_with(TEST_CONTAINER)
    });
    if all.is_empty() {
        return;
    }
    let Ok(links) = pods::links() else { return };
    let is_left =
        |pod: &pods::PodAttachment| Life::of(&pod.entry, &pod.network, &links) != Life::Attached;
    if all.iter().any(is_left) {
        match start() {
            Ok(program) => program.end(ATTACH_WITHIN),
            Err(error) => log::warn!("pods of a test that was killed are left: {error}"),
        }
    }
}
