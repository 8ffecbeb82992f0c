//! What is logged and counted of one call.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::cni::config::{DATA_DIR, LOG_FILE};
use crate::cni::env::{Environment, Verb};
use crate::cni::error::CniError;
use crate::cni::request::{Request, Role};
use crate::ipam::calls;
use crate::net::time::timestamp;
use crate::plugin::log::{self, LogLine, NOTES};

#[derive(Clone, Debug)]
pub struct CallLog {
    started: Instant,
    since_1970: Duration,
    pub line: LogLine,
    file: Option<PathBuf>,
    /// The call is logged only with an error or a note.
    pub quiet: bool,
    /// The verb, if it is counted, and where.
    counted: Option<Verb>,
    data_dir: PathBuf,
}

impl CallLog {
    /// Of a call of which nothing is known yet.
    pub fn new(started: Instant, since_1970: Duration) -> CallLog {
        CallLog {
            started,
            since_1970,
            line: LogLine::default(),
            file: Some(LOG_FILE.into()),
            quiet: false,
            counted: None,
            data_dir: DATA_DIR.into(),
        }
    }

    pub fn add_environment(&mut self, environment: &Environment, role: Role) {
        let command = environment.command();
        self.counted = Some(command).filter(|verb| role == Role::Network && *verb != Verb::Version);
        self.quiet = matches!(command, Verb::Status | Verb::Version);
        self.line.subject.push(command.to_string());
        if let Some(trace) = &environment.trace {
            self.line.fact("trace", trace);
        }
    }

    pub fn add_request(&mut self, request: &Request) {
        let (conf, attachment, pod) = match request {
            Request::Add(add) => (&add.conf, Some(&add.attachment), add.args.pod()),
            Request::Del(del) => (&del.conf, Some(&del.attachment), del.args.pod()),
            Request::Check(check) => (&check.conf, Some(&check.attachment), check.args.pod()),
            Request::Gc(gc) => (&gc.conf, None, None),
            Request::Status(conf) => (&**conf, None, None),
            Request::Version => return,
        };
        self.file.clone_from(&conf.log_file);
        self.data_dir.clone_from(&conf.data_dir);
        self.line.subject.push(conf.name.to_string());
        if let Some(attachment) = attachment {
            self.line.fact("container", &attachment.container_id);
            self.line.fact("ifname", &attachment.ifname);
        }
        self.line.fact("pod", pod.unwrap_or_default());
    }

    /// Counts the call and writes its line.
    pub fn write(mut self, error: Option<&CniError>) {
        let took = self.started.elapsed();
        if let Some(verb) = self.counted {
            let code = error.map_or(0, |error| error.code);
            calls::count(&self.data_dir, &verb.to_string(), code, took);
        }
        let notes = NOTES.take();
        let Some(file) = &self.file else { return };
        if self.quiet && error.is_none() && notes.is_empty() {
            return;
        }
        self.line.error = error.map(|error| match &error.details {
            Some(details) => format!("code {}: {}: {details}", error.code, error.msg),
            None => format!("code {}: {}", error.code, error.msg),
        });
        let prefix = timestamp(self.since_1970);
        let mut lines: Vec<String> =
            notes.into_iter().map(|note| format!("{prefix} {note}")).collect();
        lines.push(self.line.text(self.since_1970, took));
        log::append(Path::new(file), &lines);
    }
}
