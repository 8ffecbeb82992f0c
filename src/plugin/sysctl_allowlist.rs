//! The administrator's list of the sysctls that networks may request.

use std::io::{self, Read};
use std::path::Path;

use regex_lite::Regex;

use crate::cni::Tuning;
use crate::cni::error::CniError;
use crate::cni::sysctl::SysctlKey;
use crate::os::files;
use crate::plugin::failure::OrInternal;

/// That of the reference plugin tuning.
const PATH: &str = "/etc/cni/tuning/allowlist.conf";

/// A larger file is refused.
const LIMIT_BYTES: u64 = 64 * 1024;

/// Refuses a sysctl that matches no line of the list, be it written with dots or with slashes. Without the
/// file every one is allowed.
///
/// # Errors
/// Code 7: a sysctl that is not allowed, or a line that is no regular expression. Code 999: the file cannot be read.
pub fn verify(requested: &Tuning) -> Result<(), CniError> {
    if requested.sysctls.is_empty() {
        return Ok(());
    }
    let text = read().or_internal(format_args!("read {PATH}"))?;
    let Some(text) = text else { return Ok(()) };
    let allowed = patterns(&text)?;
    let refused = requested.sysctls.iter().map(|sysctl| &sysctl.key).find(|key| {
        let names = [key.dotted(), key.to_string()];
        !allowed.iter().any(|pattern| names.iter().any(|name| pattern.is_match(name)))
    });
    refused.map_or(Ok(()), |key| Err(not_allowed(key)))
}

fn not_allowed(key: &SysctlKey) -> CniError {
    let name = key.dotted();
    let line = regex_lite::escape(&name);
    CniError::config(format!(
        "sysctl {name} is not allowed on this host: no line of {PATH} matches it; add the line ^{line}$ \
         there, or remove the sysctl from the network's configuration"
    ))
}

/// The regular expressions, one a line.
fn patterns(text: &str) -> Result<Vec<Regex>, CniError> {
    let lines = text.lines().map(str::trim).enumerate().filter(|(_, line)| !line.is_empty());
    let pattern = |(at, line): (usize, &str)| {
        Regex::new(line).map_err(|error| {
            CniError::config(format!(
                "{PATH} line {}: {line:?} is no regular expression: {error}; correct it, no network may \
                 request sysctls until then",
                at + 1
            ))
        })
    };
    lines.map(pattern).collect()
}

/// The whole file, if there is one.
fn read() -> io::Result<Option<String>> {
    let Some(file) = files::found(files::open(Path::new(PATH)))? else { return Ok(None) };
    let mut text = String::new();
    file.take(LIMIT_BYTES + 1).read_to_string(&mut text)?;
    match text.len() as u64 > LIMIT_BYTES {
        true => Err(io::Error::other(format!("it is larger than {LIMIT_BYTES} bytes"))),
        false => Ok(Some(text)),
    }
}
