//! Keeps the CNI configuration.

use std::path::Path;

use crate::agent::conf;
use crate::agent::host::Facts;
use crate::agent::keep::Pass;
use crate::agent::report::Report;
use crate::linux::files;
use crate::plan::{Describe, Line, Object};

struct Write<'a>(&'a Path);

impl Describe for Write<'_> {
    fn line(&self) -> Line {
        let what = Object::Configuration(self.0.to_owned());
        if self.0.exists() { Line::changed(what) } else { Line::added(what) }
    }
}

/// Writes the configuration if it is missing or different.
pub fn keep(pass: &Pass<'_>, facts: &Facts, report: &mut Report) {
    let path = &pass.settings.cni.config;
    let text = conf::text(pass.settings, pass.subnets, facts.own.pod_mtu_bytes);
    if files::holds(path, text.as_bytes()) {
        return;
    }
    report.apply(&Write(path), || files::replace_watched(path, text.as_bytes(), MODE));
}

/// As the original agent's file: it may hold what not everybody should read.
const MODE: u32 = 0o600;
