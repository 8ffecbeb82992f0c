//! Pure. Profiles of tenants: how packets of the pods of a group or network are marked, and at which
//! rates they send and receive.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::cni::Limit;
use crate::policy::entries;
use crate::policy::name::Scoped;

/// A code point of differentiated services: 0 to 63, the upper six bits of TOS (IPv4) or traffic class
/// (IPv6).
///
/// Source: RFC 2474 §3.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u8", into = "u8")]
pub struct Dscp(u8);

/// A number above [`Dscp::MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("DSCP {0} is not a number from 0 to 63")]
pub struct DscpError(u8);

/// What a profile says of the pods that have it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetProfile {
    /// Of every IP packet that a pod sends, whatever it set itself; `None`: as the pod says.
    pub dscp: Option<Dscp>,
    /// What a pod may send, unicast; `None`: as much as it can, or as its own limits say.
    #[serde(default)]
    pub egress: Option<Limit>,
    /// What it may receive.
    #[serde(default)]
    pub ingress: Option<Limit>,
}

/// What may have a profile.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ProfileUser {
    Group(Scoped),
    Network(Scoped),
}

/// All profiles, and what has them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Profiles {
    #[serde(with = "entries")]
    by_name: BTreeMap<Scoped, NetProfile>,
    #[serde(with = "entries")]
    users: BTreeMap<ProfileUser, Scoped>,
    /// Those whose objects are not understood.
    unread: BTreeSet<Scoped>,
    /// All groups, with a profile or without. A release of before wrote none.
    groups: BTreeSet<Scoped>,
}

impl Dscp {
    pub const MAX: u8 = 63;

    pub fn number(self) -> u8 {
        self.0
    }
}

impl TryFrom<u8> for Dscp {
    type Error = DscpError;

    fn try_from(number: u8) -> Result<Dscp, DscpError> {
        if number <= Dscp::MAX { Ok(Dscp(number)) } else { Err(DscpError(number)) }
    }
}

impl From<Dscp> for u8 {
    fn from(dscp: Dscp) -> u8 {
        dscp.0
    }
}

impl Profiles {
    /// Adds it, or takes its place.
    pub fn insert(&mut self, name: Scoped, profile: NetProfile) {
        self.by_name.insert(name, profile);
    }

    /// What its object says is not understood.
    pub fn note_unread(&mut self, name: Scoped) {
        self.unread.insert(name);
    }

    /// There is this group, understood or not.
    pub fn note_group(&mut self, name: Scoped) {
        self.groups.insert(name);
    }

    pub fn has_group(&self, name: &Scoped) -> bool {
        self.groups.contains(name)
    }

    /// `user` has this profile.
    pub fn assign(&mut self, user: ProfileUser, profile: Scoped) {
        self.users.insert(user, profile);
    }

    /// Of a profile that is not understood now, what `before` knew.
    pub fn keep_unread(&mut self, before: &Profiles) {
        for name in &self.unread {
            if let Some(profile) = before.by_name.get(name) {
                self.by_name.insert(name.clone(), *profile);
            }
        }
    }

    /// With those of `other` that are not known here.
    pub fn and(mut self, other: &Profiles) -> Profiles {
        for (name, profile) in &other.by_name {
            self.by_name.entry(name.clone()).or_insert(*profile);
        }
        for (user, profile) in &other.users {
            self.users.entry(user.clone()).or_insert_with(|| profile.clone());
        }
        self.unread.extend(other.unread.iter().cloned());
        self.groups.extend(other.groups.iter().cloned());
        self
    }

    /// What has a profile that is not there.
    pub fn missing(&self) -> impl Iterator<Item = (&ProfileUser, &Scoped)> {
        let is_known =
            |name: &Scoped| self.by_name.contains_key(name) || self.unread.contains(name);
        self.users.iter().filter(move |(_, profile)| !is_known(profile))
    }

    /// No pod has one.
    pub fn is_empty(&self) -> bool {
        self.by_name.is_empty() || self.users.is_empty()
    }

    /// The profile of a pod: that of its group, else that of its network.
    pub fn of_pod(
        &self,
        group: Option<&Scoped>,
        network: Option<&Scoped>,
    ) -> Option<(&Scoped, NetProfile)> {
        let group = group.and_then(|it| self.users.get(&ProfileUser::Group(it.clone())));
        let network = || network.and_then(|it| self.users.get(&ProfileUser::Network(it.clone())));
        let name = group.or_else(network)?;
        self.by_name.get(name).map(|profile| (name, *profile))
    }
}

impl fmt::Display for Dscp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for ProfileUser {
    /// `Group blue/web`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ProfileUser::Group(name) => write!(f, "Group {name}"),
            ProfileUser::Network(name) => write!(f, "Network {name}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scoped(text: &str) -> Scoped {
        let (tenant, name) = text.split_once('/').unwrap();
        Scoped { tenant: tenant.parse().unwrap(), name: name.parse().unwrap() }
    }

    fn marking(dscp: u8) -> NetProfile {
        NetProfile { dscp: Some(dscp.try_into().unwrap()), ..NetProfile::default() }
    }

    fn profiles() -> Profiles {
        let mut profiles = Profiles::default();
        profiles.insert(scoped("blue/gold"), marking(46));
        profiles.insert(scoped("blue/bulk"), marking(8));
        profiles.assign(ProfileUser::Group(scoped("blue/web")), scoped("blue/gold"));
        profiles.assign(ProfileUser::Group(scoped("blue/bad")), scoped("blue/gone"));
        profiles.assign(ProfileUser::Network(scoped("blue/front")), scoped("blue/bulk"));
        profiles
    }

    fn of(profiles: &Profiles, group: Option<&str>, network: Option<&str>) -> Option<u8> {
        let (group, network) = (group.map(scoped), network.map(scoped));
        let (_, profile) = profiles.of_pod(group.as_ref(), network.as_ref())?;
        profile.dscp.map(Dscp::number)
    }

    #[test]
    fn the_profile_of_the_group_comes_before_that_of_the_network() {
        let all = profiles();
        assert_eq!(of(&all, Some("blue/web"), Some("blue/front")), Some(46));
        assert_eq!(of(&all, Some("blue/db"), Some("blue/front")), Some(8));
        assert_eq!(of(&all, None, Some("blue/front")), Some(8));
        assert_eq!(of(&all, Some("green/web"), Some("green/front")), None);
        assert_eq!(of(&all, Some("blue/bad"), Some("blue/front")), None, "it has one that is gone");
    }

    #[test]
    fn a_profile_that_is_not_understood_now_stays_as_it_was() {
        let before = profiles();
        let mut now = Profiles { by_name: BTreeMap::new(), ..profiles() };
        now.note_unread(scoped("blue/gold"));
        let missing: Vec<String> = now.missing().map(|(user, _)| user.to_string()).collect();
        assert_eq!(missing, ["Group blue/bad", "Network blue/front"]);
        now.keep_unread(&before);
        assert_eq!(of(&now, Some("blue/web"), None), Some(46));
        assert_eq!(of(&now, None, Some("blue/front")), None);
    }

    #[test]
    fn what_the_first_source_says_counts() {
        let mut other = Profiles::default();
        other.insert(scoped("blue/gold"), marking(1));
        other.insert(scoped("blue/gone"), marking(2));
        let both = profiles().and(&other);
        assert_eq!(of(&both, Some("blue/web"), None), Some(46));
        assert_eq!(of(&both, Some("blue/bad"), None), Some(2));
    }

    #[test]
    fn profiles_are_read_back_as_they_were_written() {
        let mut all = profiles();
        all.note_unread(scoped("blue/bad"));
        let text = serde_json::to_string(&all).unwrap();
        assert_eq!(serde_json::from_str::<Profiles>(&text).unwrap(), all);
        assert!(serde_json::from_str::<NetProfile>(r#"{"dscp": 64}"#).is_err());
    }
}
