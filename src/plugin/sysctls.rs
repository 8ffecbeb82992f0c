//! Sysctls of a pod's network namespace that its configuration requests.

use crate::cni::error::CniError;
use crate::cni::sysctl::is_same_value;
use crate::os::netns::NetNs;
use crate::os::sysctl::{self, SysctlError};
use crate::plugin::failure::{OrInternal, internal};
use crate::plugin::undo_stack::{OwnLink, UndoStack};

/// Writes `wanted` (path below /proc/sys, value) in the namespace. A value that is already set is
/// not written: /proc/sys may be read-only. Undone while `link` exists.
///
/// # Errors
/// Code 7: no such sysctl. Code 999: the kernel refuses the value.
pub fn write<'a>(
    netns: &'a NetNs,
    wanted: &[(String, String)],
    link: OwnLink<'a>,
    undo: &mut UndoStack<'a>,
) -> Result<(), CniError> {
    if wanted.is_empty() {
        return Ok(());
    }
    let what = "write the requested sysctls in the pod";
    let mut former = Vec::new();
    let outcome = netns.run(|| -> Result<(), SysctlError> {
        for (path, value) in wanted {
            let found = sysctl::read(path)?;
            if !is_same_value(&found, value) {
                sysctl::write(path, value)?;
                former.push((path.clone(), found));
            }
        }
        Ok(())
    });
    if !former.is_empty() {
        undo.push(move || match link.is_gone() {
            true => Ok(()),
            false => netns.run(|| restore(&former)),
        });
    }
    outcome.or_internal(what)?.map_err(|error| match error.is_missing() {
        true => CniError::config(format!("{error}: this kernel has no such sysctl")),
        false => internal(what, &error),
    })
}

fn restore(former: &[(String, String)]) {
    for (path, value) in former.iter().rev() {
        // The sysctls of a removed interface are gone.
        if let Err(error) = sysctl::write(path, value)
            && !error.is_missing()
        {
            log::error!("undo: {error}");
        }
    }
}
