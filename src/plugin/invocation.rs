//! One call, from the environment to the exit code.

use std::ffi::OsString;
use std::io::{Read, Write};
use std::time::{Duration, Instant, SystemTime};

use serde_json::Value;

use crate::cni::config::MAX_BYTES;
use crate::cni::env::{Environment, Verb};
use crate::cni::error::{CniError, RefusedRequest};
use crate::cni::request::{Request, Role};
use crate::cni::version::{self, Version};
use crate::plugin::call_log::CallLog;
use crate::plugin::log::{LogLine, NOTES};
use crate::plugin::{failure, panic};

/// The standard streams.
pub struct Streams<'a> {
    /// The network configuration.
    pub stdin: &'a mut dyn Read,
    /// The reply.
    pub stdout: &'a mut dyn Write,
    /// For people.
    pub stderr: &'a mut dyn Write,
}

/// What a verb gets beside its request.
pub struct CallContext<'a> {
    /// The present time.
    pub since_1970: Duration,
    /// The verb adds its facts.
    pub line: &'a mut LogLine,
    stdout: &'a mut dyn Write,
}

impl CallContext<'_> {
    /// Writes the whole result to stdout.
    ///
    /// # Errors
    /// Code 5.
    pub fn print(&mut self, reply: &Value) -> Result<(), CniError> {
        let failed = |error: std::io::Error| {
            CniError::io("write the result to stdout").with_details(error.to_string())
        };
        self.stdout.write_all(format!("{reply}\n").as_bytes()).map_err(failed)?;
        self.stdout.flush().map_err(failed)
    }
}

/// Serves one call with `verb`; gives the exit code.
pub fn run(
    role: Role,
    name: &str,
    env: &dyn Fn(&str) -> Option<OsString>,
    streams: Streams<'_>,
    verb: impl FnOnce(&Request, &mut CallContext<'_>) -> Result<(), CniError>,
) -> i32 {
    let started = Instant::now();
    let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    match env("RUST_LOG") {
        Some(_) => drop(env_logger::try_init()),
        None => NOTES.listen(),
    }
    let Streams { stdin, stdout, stderr } = streams;
    let mut log = CallLog::new(started, since_1970);
    let serve = || {
        let Some(environment) = environment(env)? else {
            print_about(role, name, stderr);
            log.quiet = true;
            return Ok(());
        };
        log.add_environment(&environment, role);
        let request = request(role, environment, stdin)?;
        log.add_request(&request);
        let version = request.version();
        panic::set_call(version, &log);
        let mut call = CallContext { since_1970, line: &mut log.line, stdout: &mut *stdout };
        let outcome = match request {
            Request::Version => call.print(&version::reply()),
            _ => verb(&request, &mut call),
        };
        outcome.map_err(|error| RefusedRequest { version, error })
    };
    let served = serve();
    if let Err(refused) = &served {
        failure::answer(stdout, refused);
    }
    log.write(served.as_ref().err().map(|refused| &refused.error));
    i32::from(served.is_err())
}

/// The environment; `None` if a person typed the program's name.
fn environment(
    env: &dyn Fn(&str) -> Option<OsString>,
) -> Result<Option<Environment>, RefusedRequest> {
    Environment::parse(env).map_err(|error| RefusedRequest { version: Version::LATEST, error })
}

/// The request; VERSION reads no stdin.
fn request(
    role: Role,
    environment: Environment,
    stdin: &mut dyn Read,
) -> Result<Request, RefusedRequest> {
    let mut bytes = Vec::new();
    if environment.command() != Verb::Version {
        let limit = MAX_BYTES as u64 + 1;
        stdin.take(limit).read_to_end(&mut bytes).map_err(|error| RefusedRequest {
            version: Version::LATEST,
            error: CniError::io("read the network configuration from stdin")
                .with_details(error.to_string()),
        })?;
    }
    Request::parse(role, environment, &bytes)
}

fn print_about(role: Role, name: &str, stderr: &mut dyn Write) {
    let what = match role {
        Role::Network => "pod network plugin",
        Role::Loopback => "loopback plugin",
    };
    let (release, versions) = (env!("CARGO_PKG_VERSION"), version::listed());
    let text = format!("{name}: humanz {release}, CNI {what}; CNI versions {versions}\n");
    stderr.write_all(text.as_bytes()).ok();
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    /// A stream that cannot be read or written.
    struct Broken;

    impl Read for Broken {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::Error::other("unplugged"))
        }
    }

    impl Write for Broken {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::Error::other("unplugged"))
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Exit code, stdout and stderr of a call with these variables.
    fn call(
        variables: &[(&str, &str)],
        mut stdin: &mut dyn Read,
        verb: impl FnOnce(&Request, &mut CallContext<'_>) -> Result<(), CniError>,
    ) -> (i32, String, String) {
        let env = |name: &str| {
            let found = variables.iter().find(|(given, _)| *given == name);
            found.map(|(_, value)| OsString::from(value))
        };
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        let streams = Streams { stdin: &mut stdin, stdout: &mut stdout, stderr: &mut stderr };
        let code = run(Role::Network, "humanz", &env, streams, verb);
        (code, String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
    }

    const ADD: [(&str, &str); 5] = [
        ("CNI_COMMAND", "ADD"),
        ("CNI_CONTAINERID", "c1"),
        ("CNI_NETNS", "/run/netns/x"),
        ("CNI_IFNAME", "eth0"),
        ("CNI_PATH", "/opt/cni/bin"),
    ];
    const CONF: &str = r#"{"cniVersion":"0.4.0","name":"n","subnet":"10.1.2.0/24","logFile":"/nonexistent/log","dataDir":"/nonexistent"}"#;

    fn error(stdout: &str) -> (u64, String) {
        let object: Value = serde_json::from_str(stdout).unwrap();
        (object["code"].as_u64().unwrap(), object["cniVersion"].as_str().unwrap().to_owned())
    }

    #[test]
    fn a_person_gets_one_line_on_stderr_and_success() {
        let (code, stdout, stderr) = call(&[], &mut Broken, |_, _| panic!("no verb"));
        assert_eq!((code, stdout.as_str(), stderr.lines().count()), (0, "", 1));
        assert!(stderr.contains("0.1.0, 0.2.0, 0.3.0, 0.3.1, 0.4.0, 1.0.0, 1.1.0"), "{stderr}");
    }

    #[test]
    fn version_reads_no_stdin() {
        let variables = [("CNI_COMMAND", "VERSION"), ("CNI_IFNAME", "a/b")];
        let (code, stdout, stderr) = call(&variables, &mut Broken, |_, _| panic!("no verb"));
        let object: Value = serde_json::from_str(&stdout).unwrap();
        assert_eq!((code, stderr.as_str()), (0, ""));
        assert_eq!(object["supportedVersions"].as_array().unwrap().len(), 7);
    }

    #[test]
    fn an_unreadable_stdin_is_code_5() {
        // Not by a call: without a configuration its log is that of the machine.
        let env = |name: &str| {
            let found = ADD.iter().find(|(given, _)| *given == name);
            found.map(|(_, value)| OsString::from(value))
        };
        let environment = Environment::parse(env).unwrap().expect("a call");
        let refused = request(Role::Network, environment, &mut Broken).err().unwrap();
        assert_eq!(refused.error.code, 5);
    }

    #[test]
    fn an_error_of_a_verb_has_the_configurations_version() {
        let refuse = |_: &Request, _: &mut CallContext<'_>| Err(CniError::new(1234, "potato"));
        let (code, stdout, stderr) = call(&ADD, &mut CONF.as_bytes(), refuse);
        assert_eq!((code, error(&stdout)), (1, (1234, "0.4.0".to_owned())));
        assert_eq!(stderr, "");
    }

    #[test]
    fn an_unwritable_result_is_a_failure() {
        let env = |name: &str| {
            let found = ADD.iter().find(|(given, _)| *given == name);
            found.map(|(_, value)| OsString::from(value))
        };
        let (mut conf, mut stderr) = (CONF.as_bytes(), Vec::new());
        let streams = Streams { stdin: &mut conf, stdout: &mut Broken, stderr: &mut stderr };
        let mut kept = false;
        let code = run(Role::Network, "humanz", &env, streams, |_, call| {
            call.print(&Value::Null)?;
            kept = true;
            Ok(())
        });
        assert_eq!((code, kept), (1, false));
    }
}
