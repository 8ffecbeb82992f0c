//! A panic during a call: answered, logged and counted like any failure, and the process ends. What
//! an ADD had begun is left to the DEL that follows, as after SIGKILL.

use std::io::{self, Write};
use std::sync::Mutex;
use std::time::{Instant, SystemTime};

use crate::cni::error::{CniError, RefusedRequest};
use crate::cni::version::Version;
use crate::os::process;
use crate::plugin::call_log::CallLog;

/// The call that is being served.
static CALL: Mutex<Option<(Version, CallLog)>> = Mutex::new(None);

/// From now on a panic is answered in `version`, and logged to `log`.
pub fn set_call(version: Version, log: &CallLog) {
    if let Ok(mut call) = CALL.lock() {
        *call = Some((version, log.clone()));
    }
}

/// Answers a panic of any thread with `answer`, and ends the process.
pub fn install_hook(answer: fn(&mut dyn Write, &RefusedRequest)) {
    let started = Instant::now();
    process::exit_on_panic(move |text| {
        let call = CALL.try_lock().ok().and_then(|mut call| call.take());
        let (version, log) = call.unwrap_or_else(|| {
            let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
            (Version::LATEST, CallLog::new(started, now.unwrap_or_default()))
        });
        let what = "humanz has a bug and stopped; a DEL removes what it began; please report it";
        let error = CniError::internal(what).with_details(text);
        log.write(Some(&error));
        answer(&mut io::stdout(), &RefusedRequest { version, error });
        1
    });
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::process::Command;

    use serde_json::{Value, json};

    use super::*;
    use crate::cni::request::Role;
    use crate::plugin::failure;
    use crate::plugin::invocation::{self, Streams};

    /// Set to the folder of the log in the process that the test below starts.
    const FOLDER: &str = "HUMANZ_TEST_PANIC";

    #[test]
    #[ignore = "started by the next test"]
    fn a_call_that_panics() {
        let Some(folder) = std::env::var_os(FOLDER) else { return };
        install_hook(failure::answer);
        let folder = folder.into_string().unwrap();
        let conf = json!({
            "cniVersion": "0.4.0", "name": "n", "subnet": "10.1.2.0/24",
            "logFile": format!("{folder}/log"), "dataDir": folder,
        });
        let env = |name: &str| {
            let value = match name {
                "CNI_COMMAND" => "ADD",
                "CNI_CONTAINERID" => "c1",
                "CNI_NETNS" => "/run/netns/x",
                "CNI_IFNAME" => "eth0",
                "CNI_PATH" => "/opt/cni/bin",
                _ => return None,
            };
            Some(OsString::from(value))
        };
        let (conf, mut stderr) = (conf.to_string(), Vec::new());
        let (mut stdin, mut stdout) = (conf.as_bytes(), Vec::new());
        let streams = Streams { stdin: &mut stdin, stdout: &mut stdout, stderr: &mut stderr };
        invocation::run(Role::Network, "humanz", &env, streams, |_, _| {
            std::thread::scope(|scope| drop(scope.spawn(|| panic!("by accident")).join()));
            unreachable!("the process has ended")
        });
    }

    #[test]
    fn a_panic_in_any_thread_is_answered_logged_and_counted_and_ends_the_process() {
        let folder = tempfile::tempdir().unwrap();
        let call =
            ["--exact", "plugin::panic::tests::a_call_that_panics", "--ignored", "--nocapture"];
        let ended = Command::new(std::env::current_exe().unwrap())
            .args(call)
            .env(FOLDER, folder.path())
            .output()
            .unwrap();
        let stdout = String::from_utf8(ended.stdout).unwrap();
        assert_eq!(ended.status.code(), Some(1), "{stdout}");
        let object = stdout.lines().find(|line| line.starts_with('{')).expect(&stdout);
        let object: Value = serde_json::from_str(object).unwrap();
        assert_eq!((&object["code"], &object["cniVersion"]), (&json!(999), &json!("0.4.0")));
        let details = object["details"].as_str().unwrap();
        assert!(
            details.contains("src/plugin/panic.rs") && details.contains("by accident"),
            "{details}"
        );
        let log = std::fs::read_to_string(folder.path().join("log")).unwrap();
        assert!(log.contains("ADD n container=c1") && log.contains("by accident"), "{log}");
        let counted = crate::ipam::calls::read(folder.path()).unwrap();
        assert_eq!(counted.keys().collect::<Vec<_>>(), [&("ADD", 999)]);
    }
}
