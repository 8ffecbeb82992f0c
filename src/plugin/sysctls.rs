//! Settings of a pod's network namespace that its configuration asks for.

use crate::cni::error::CniError;
use crate::os::netns::NetNs;
use crate::os::sysctl;
use crate::plugin::failure;

/// Settings that are put back when this is dropped, unless it is kept.
#[must_use = "settings are put back when this is dropped"]
pub struct Written<'a> {
    netns: &'a NetNs,
    former: Vec<(String, String)>,
}

impl Written<'_> {
    /// They stay.
    pub fn keep(mut self) {
        self.former.clear();
    }
}

impl Drop for Written<'_> {
    fn drop(&mut self) {
        let former = std::mem::take(&mut self.former);
        if former.is_empty() {
            return;
        }
        let put_back = || {
            for (path, value) in former.iter().rev() {
                // What belonged to the interface is gone with it.
                if let Err(error) = sysctl::write(path, value)
                    && !error.is_missing()
                {
                    log::error!("undo: {error}");
                }
            }
        };
        if let Err(error) = self.netns.run(put_back) {
            log::error!("undo: {error}");
        }
    }
}

/// Writes `wanted` (path below /proc/sys, value) in the namespace. What is so already is not written:
/// /proc/sys may be read-only, and right.
///
/// # Errors
/// Code 999: no such setting, or the kernel refuses the value. What was written is put back.
pub fn write<'a>(netns: &'a NetNs, wanted: &[(String, String)]) -> Result<Written<'a>, CniError> {
    let mut written = Written { netns, former: Vec::new() };
    if wanted.is_empty() {
        return Ok(written);
    }
    let former = &mut written.former;
    let work = || -> Result<(), sysctl::SysctlError> {
        for (path, value) in wanted {
            let found = sysctl::read(path)?;
            if !sysctl::is_same(&found, value) {
                sysctl::write(path, value)?;
                former.push((path.clone(), found));
            }
        }
        Ok(())
    };
    let what = "set what the configuration asks for in the pod";
    let outcome = netns.run(work).map_err(|error| failure::internal(what, &error))?;
    outcome.map_err(|error| failure::internal(what, &error))?;
    Ok(written)
}
