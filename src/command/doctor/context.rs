//! What `doctor` examines.

use crate::inspect::Host;
use crate::settings::Settings;
use crate::settings::loader::LoadedSettings;

/// The settings and the host that every check reads.
pub struct DoctorContext<'a> {
    pub loaded: &'a LoadedSettings,
    pub host: &'a Host,
}

impl DoctorContext<'_> {
    pub fn settings(&self) -> &Settings {
        &self.host.settings
    }
}
