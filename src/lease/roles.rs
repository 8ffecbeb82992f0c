//! Pure. The role in etcd with which a host can serve, and harm no other host.
//!
//! Its claims are reserved by the administrator, so it needs neither the counter nor the range of the
//! claims, and the network settings are the administrator's too: the host writes nothing but its own keys.

use std::fmt;

use ipnetwork::IpNetwork;

use crate::lease::records::{Key, NodeName, Roots};

/// What a role permits on a key, or on all keys that begin with one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Permission {
    pub access: Access,
    pub key: String,
    /// All keys that begin with `key`.
    pub is_prefix: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Access {
    Read,
    Write,
    ReadWrite,
}

/// Role and user of one host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostRole {
    /// `humanz-` and the host's name.
    pub role: String,
    /// The host's name, which may be the common name of its client certificate.
    pub user: String,
    pub permissions: Vec<Permission>,
}

/// What etcd has of role and user.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// The permissions of the role; `None`: there is no such role.
    pub permissions: Option<Vec<Permission>>,
    /// The roles of the user; `None`: there is no such user.
    pub roles: Option<Vec<String>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    AddRole,
    Revoke(Permission),
    Grant(Permission),
    AddUser,
    GrantRole,
}

/// The role of the host `name`, which has or shall have `subnets`.
pub fn of_host(roots: &Roots, name: &NodeName, subnets: &[IpNetwork]) -> HostRole {
    let read = [roots.hosts_range(), roots.humanz_range(), roots.reports_range()];
    let read =
        read.map(|key| Permission { access: Access::Read, key, is_prefix: true }).into_iter();
    let own = [Key::Host, Key::Node, Key::Alive, Key::Contender].map(|key| key(name.clone()));
    let own = own.into_iter().chain(subnets.iter().map(|subnet| Key::Claim(*subnet)));
    let own = own.map(|key| roots.key(&key)).chain([roots.report(name)]);
    let write = own.map(|key| Permission { access: Access::Write, key, is_prefix: false });
    HostRole {
        role: format!("humanz-{name}"),
        user: name.to_string(),
        permissions: read.chain(write).collect(),
    }
}

impl HostRole {
    /// The changes that turn `found` into this: nothing is permitted that is not listed here.
    pub fn changes(&self, found: &Found) -> Vec<Change> {
        let mut changes = Vec::new();
        if found.permissions.is_none() {
            changes.push(Change::AddRole);
        }
        let had = found.permissions.as_deref().unwrap_or_default();
        let surplus = had.iter().filter(|had| !self.permissions.contains(had));
        changes.extend(surplus.cloned().map(Change::Revoke));
        let missing = self.permissions.iter().filter(|wanted| !had.contains(wanted));
        changes.extend(missing.cloned().map(Change::Grant));
        if found.roles.is_none() {
            changes.push(Change::AddUser);
        }
        if !found.roles.iter().flatten().any(|role| *role == self.role) {
            changes.push(Change::GrantRole);
        }
        changes
    }

    /// Further roles of the user, which permit more.
    pub fn further<'a>(&self, found: &'a Found) -> Vec<&'a str> {
        let roles = found.roles.iter().flatten().map(String::as_str);
        roles.filter(|role| *role != self.role).collect()
    }

    /// `change` as a command of etcdctl.
    pub fn command(&self, change: &Change) -> String {
        let HostRole { role, user, .. } = self;
        match change {
            Change::AddRole => format!("etcdctl role add {role}"),
            Change::Grant(permission) => {
                format!("etcdctl role grant-permission {role} {permission}")
            }
            Change::Revoke(Permission { key, is_prefix, .. }) => {
                let prefix = if *is_prefix { "--prefix=true " } else { "" };
                format!("etcdctl role revoke-permission {role} {prefix}{key}")
            }
            Change::AddUser => format!("etcdctl user add {user}"),
            Change::GrantRole => format!("etcdctl user grant-role {user} {role}"),
        }
    }
}

impl fmt::Display for Permission {
    /// As the arguments of `etcdctl role grant-permission`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let prefix = if self.is_prefix { "--prefix=true " } else { "" };
        let access = match self.access {
            Access::Read => "read",
            Access::Write => "write",
            Access::ReadWrite => "readwrite",
        };
        write!(f, "{prefix}{access} {}", self.key)
    }
}

/// Whether etcd of this `version` checks permissions inside nested transactions; earlier ones let every
/// user write every key. Source: advisory GHSA-rfx7-8w68-q57q of etcd.
pub fn checks_nested_transactions(version: &str) -> bool {
    let mut numbers = version.split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
    let mut next = || numbers.next().unwrap_or(0);
    match (next(), next(), next()) {
        (3, 4, patch) => patch >= 42,
        (3, 5, patch) => patch >= 28,
        (3, 6, patch) => patch >= 9,
        (major, minor, _) => (major, minor) > (3, 6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::subnet::parse;

    fn role() -> HostRole {
        let roots = Roots {
            hosts: "/humanz/hosts".into(),
            counter: "/humanz/counter".into(),
            humanz: "/humanz/v1".into(),
        };
        let subnets = ["10.244.9.0/24", "fd10:244:0:9::/64"].map(|text| parse(text).unwrap());
        of_host(&roots, &"h9".parse().unwrap(), &subnets)
    }

    fn commands(found: &Found) -> Vec<String> {
        let role = role();
        role.changes(found).iter().map(|change| role.command(change)).collect()
    }

    #[test]
    fn a_host_writes_its_own_keys_only() {
        assert_eq!(
            commands(&Found::default()),
            [
                "etcdctl role add humanz-h9",
                "etcdctl role grant-permission humanz-h9 --prefix=true read /humanz/hosts/",
                "etcdctl role grant-permission humanz-h9 --prefix=true read /humanz/v1/",
                "etcdctl role grant-permission humanz-h9 --prefix=true read /humanz/v1-probes/",
                "etcdctl role grant-permission humanz-h9 write /humanz/hosts/h9",
                "etcdctl role grant-permission humanz-h9 write /humanz/v1/nodes/h9",
                "etcdctl role grant-permission humanz-h9 write /humanz/v1/alive/h9",
                "etcdctl role grant-permission humanz-h9 write /humanz/v1/contenders/h9",
                "etcdctl role grant-permission humanz-h9 write /humanz/v1/subnets/4/10.244.9.0-24",
                "etcdctl role grant-permission humanz-h9 write /humanz/v1/subnets/6/fd10:244:0:9::-64",
                "etcdctl role grant-permission humanz-h9 write /humanz/v1-probes/h9",
                "etcdctl user add h9",
                "etcdctl user grant-role h9 humanz-h9",
            ]
        );
    }

    #[test]
    fn what_is_there_stays_and_what_permits_more_goes() {
        let wanted = role();
        let mut found = Found {
            permissions: Some(wanted.permissions.clone()),
            roles: Some(vec![wanted.role.clone()]),
        };
        assert_eq!(commands(&found), [""; 0]);
        let wide = Permission {
            access: Access::Write,
            key: "/humanz/v1/subnets/".into(),
            is_prefix: true,
        };
        found.permissions.as_mut().unwrap().push(wide);
        found.roles.as_mut().unwrap().push("humanz".into());
        assert_eq!(
            commands(&found),
            ["etcdctl role revoke-permission humanz-h9 --prefix=true /humanz/v1/subnets/"]
        );
        assert_eq!(wanted.further(&found), ["humanz"]);
    }

    #[test]
    fn versions_of_etcd_that_check_nested_transactions() {
        for (version, checks) in [
            ("3.4.23", false),
            ("3.4.42", true),
            ("3.5.27", false),
            ("3.5.28", true),
            ("3.6.0", false),
            ("3.6.9", true),
            ("3.7.0-rc.1", true),
            ("4.0.0", true),
            ("", false),
        ] {
            assert_eq!(checks_nested_transactions(version), checks, "{version}");
        }
    }
}
