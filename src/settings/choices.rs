//! Pure. Settings with a fixed set of values: one list each for parsing, help and completion.

use crate::cni::config::AgentDown;
use crate::cni::version::Version;
use crate::plan::peer_routes::LocalBackend;
use crate::policy::ObjectSource;

/// The values of a setting, each with its name.
#[derive(Clone, Copy, Debug)]
pub struct Choices<T: 'static, const N: usize>([(&'static str, T); N]);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubnetSource {
    Etcd,
    Kubernetes,
    Operator,
}

/// `SUBNET_SOURCE`.
pub const SOURCES: Choices<SubnetSource, 3> = Choices([
    ("etcd", SubnetSource::Etcd),
    ("kubernetes", SubnetSource::Kubernetes),
    ("static", SubnetSource::Operator),
]);

/// `BACKEND`.
pub const BACKENDS: Choices<LocalBackend, 3> = Choices([
    ("direct", LocalBackend::Direct),
    ("vxlan", LocalBackend::Vxlan),
    ("auto", LocalBackend::Auto),
]);

/// `ENCRYPTION`: whether packets between hosts are encrypted.
pub const ENCRYPTIONS: Choices<bool, 2> = Choices([("off", false), ("wireguard", true)]);

/// `POD_GUARD`.
pub const GUARDS: Choices<bool, 2> = Choices([("on", true), ("off", false)]);

/// `POD_ROUTING`: whether the host routes between its own pods.
pub const ROUTINGS: Choices<bool, 2> = Choices([("host", true), ("bridge", false)]);

/// Whether policies are in force, and where they come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyChoice {
    Off,
    /// From what the settings have anyway: the source of subnets, and a file.
    On,
    /// From the Kubernetes API, whatever the source of subnets.
    Kubernetes,
}

/// `POLICY`.
pub const POLICIES: Choices<PolicyChoice, 3> = Choices([
    ("off", PolicyChoice::Off),
    ("on", PolicyChoice::On),
    ("kubernetes", PolicyChoice::Kubernetes),
]);

/// `POLICY_OBJECTS`.
pub const OBJECTS: Choices<ObjectSource, 2> =
    Choices([("etcd", ObjectSource::Etcd), ("kubernetes", ObjectSource::Kubernetes)]);

/// `FLOWS`: whether connections of pods are counted.
pub const FLOWS: Choices<bool, 2> = Choices([("off", false), ("on", true)]);

/// `POLICY_ON_AGENT_DOWN`.
pub const AGENT_DOWN: Choices<AgentDown, 3> = Choices([
    (AgentDown::Quarantine.name(), AgentDown::Quarantine),
    (AgentDown::Fail.name(), AgentDown::Fail),
    (AgentDown::Open.name(), AgentDown::Open),
]);

/// `CNI_VERSION`: those that a configuration may name.
pub const CNI_VERSIONS: Choices<Version, 4> = Choices([
    (Version::V031.as_str(), Version::V031),
    (Version::V040.as_str(), Version::V040),
    (Version::V100.as_str(), Version::V100),
    (Version::V110.as_str(), Version::V110),
]);

impl<T: Copy, const N: usize> Choices<T, N> {
    /// The names, in the order of the documentation.
    pub const fn names(&self) -> [&'static str; N] {
        let mut names = [""; N];
        let mut place = 0;
        while place < N {
            names[place] = self.0[place].0;
            place += 1;
        }
        names
    }

    /// # Errors
    /// The names that are valid.
    pub fn read(&self, text: &str) -> Result<T, String> {
        let named = self.0.iter().find(|(name, _)| *name == text);
        named.map(|(_, value)| *value).ok_or_else(|| format!("must be {}", listed(&self.names())))
    }
}

/// `a, b or c`.
fn listed(names: &[&str]) -> String {
    match names {
        [first @ .., last] if !first.is_empty() => format!("{} or {last}", first.join(", ")),
        _ => names.concat(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_name_is_refused_with_the_valid_ones() {
        assert_eq!(BACKENDS.read("vxlan"), Ok(LocalBackend::Vxlan));
        assert_eq!(CNI_VERSIONS.read("0.4.0"), Ok(Version::V040));
        for bad in ["", "VXLAN", "direct "] {
            assert_eq!(BACKENDS.read(bad).unwrap_err(), "must be direct, vxlan or auto");
        }
        for bad in ["0.3.0", "1.0"] {
            let wrong = CNI_VERSIONS.read(bad).unwrap_err();
            assert_eq!(wrong, "must be 0.3.1, 0.4.0, 1.0.0 or 1.1.0");
        }
    }
}
