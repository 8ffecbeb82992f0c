//! Pure. The role in etcd with which a host can serve, and harm no other host.
//!
//! Its claims are reserved by the administrator, so it needs neither the counter nor the range of the
//! claims, and the network settings are the administrator's too: the host writes nothing but its own keys.

use std::collections::BTreeSet;
use std::fmt;

use ipnetwork::IpNetwork;

use crate::lease::records::{Key, NodeName, Roots};
use crate::lease::right::right;
use crate::lease::snapshot::Snapshot;
use crate::net::gather::Gather;

/// What a role permits on a key, or on all keys that begin with one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Permission {
    pub access: RangeAccess,
    pub key: String,
    /// All keys that begin with `key`.
    pub is_prefix: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RangeAccess {
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
pub struct FoundRoles {
    /// The permissions of the role; `None`: there is no such role.
    pub permissions: Option<Vec<Permission>>,
    /// The roles of the user; `None`: there is no such user.
    pub roles: Option<Vec<String>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RoleChange {
    AddRole,
    Revoke(Permission),
    Grant(Permission),
    AddUser,
    GrantRole,
}

/// The role of the host `name`, which has or shall have `subnets`.
pub fn of_host(roots: &Roots, name: &NodeName, subnets: &[IpNetwork]) -> HostRole {
    let range = |access, key| Permission { access, key, is_prefix: true };
    let read = [
        roots.hosts_range(),
        roots.humanz_range(),
        roots.reports_range(),
        roots.pods_range(),
        roots.test_answers_range(),
        roots.policies_range(),
        roots.blocks_range(),
    ];
    let read = read.map(|key| range(RangeAccess::Read, key)).into_iter();
    // What others announce is a hint where to look; what is there stands below the name of its host.
    let groups = [
        range(RangeAccess::Read, roots.members_range()),
        range(RangeAccess::Write, roots.members_of(name)),
        range(RangeAccess::ReadWrite, roots.announcements_range()),
        range(RangeAccess::Write, roots.blocks_of(name)),
        range(RangeAccess::Write, roots.test_requests_of(name)),
        range(RangeAccess::Write, roots.test_answers_of(name)),
    ];
    let own = [Key::Host, Key::Node, Key::Alive, Key::Contender, Key::WireguardKey];
    let own = own.map(|key| key(name.clone()));
    let own = own.into_iter().chain(subnets.iter().map(|subnet| Key::Claim(*subnet)));
    let own = own.map(|key| roots.key(&key)).chain([
        roots.report(name),
        roots.pods_request(name),
        roots.pods(name),
    ]);
    let write = own.map(|key| Permission { access: RangeAccess::Write, key, is_prefix: false });
    HostRole {
        role: format!("humanz-{name}"),
        user: name.to_string(),
        permissions: read.chain(write).chain(groups).collect(),
    }
}

/// The subnets whose claims are the host's: in each family those reserved for it, else those of its keys
/// that no other host claims.
///
/// The host writes its keys itself, so a subnet to which another host has the better right is not among them.
pub fn subnets(found: &Snapshot, host: &NodeName) -> Vec<IpNetwork> {
    let claims = found.claims.iter().filter(|(_, claim)| claim.value == *host);
    let claimed: Vec<IpNetwork> = claims.map(|(subnet, _)| *subnet).collect();
    let key = found.hosts.get(host).map(|stored| stored.value);
    let recorded = found.nodes.get(host).map(|node| node.value.subnets).unwrap_or_default();
    let unclaimed = key.into_iter().chain(recorded.iter().copied()).filter(|subnet| {
        let same_family = |claimed: &&IpNetwork| claimed.is_ipv4() == subnet.is_ipv4();
        !found.claims.contains_key(subnet) && !claimed.iter().any(|claimed| same_family(&claimed))
    });
    let subnets = claimed.iter().copied().chain(unclaimed);
    let subnets: BTreeSet<_> = subnets.filter(|subnet| has_best(found, host, *subnet)).gather();
    subnets.into_iter().collect()
}

/// No other host has a better right to `subnet`.
fn has_best(found: &Snapshot, host: &NodeName, subnet: IpNetwork) -> bool {
    let ours = right(found, host, subnet);
    let claims = found.claims.values().map(|claim| &claim.value);
    let mut hosts = found.hosts.keys().chain(found.nodes.keys()).chain(claims);
    let is_better = |other| match (right(found, other, subnet), ours) {
        (Some(theirs), Some(ours)) => theirs < ours,
        (theirs, None) => theirs.is_some(),
        (None, Some(_)) => false,
    };
    !hosts.any(|other| other != host && is_better(other))
}

impl HostRole {
    /// The changes that turn `found` into this: nothing is permitted that is not listed here.
    pub fn changes(&self, found: &FoundRoles) -> Vec<RoleChange> {
        let mut changes = Vec::new();
        if found.permissions.is_none() {
            changes.push(RoleChange::AddRole);
        }
        let had = found.permissions.as_deref().unwrap_or_default();
        let surplus = had.iter().filter(|had| !self.permissions.contains(had));
        changes.extend(surplus.cloned().map(RoleChange::Revoke));
        let missing = self.permissions.iter().filter(|wanted| !had.contains(wanted));
        changes.extend(missing.cloned().map(RoleChange::Grant));
        if found.roles.is_none() {
            changes.push(RoleChange::AddUser);
        }
        if !found.roles.iter().flatten().any(|role| *role == self.role) {
            changes.push(RoleChange::GrantRole);
        }
        changes
    }

    /// Further roles of the user, which permit more.
    pub fn further<'a>(&self, found: &'a FoundRoles) -> Vec<&'a str> {
        let roles = found.roles.iter().flatten().map(String::as_str);
        roles.filter(|role| *role != self.role).collect()
    }

    /// `change` as a command of etcdctl.
    pub fn command(&self, change: &RoleChange) -> String {
        let HostRole { role, user, .. } = self;
        match change {
            RoleChange::AddRole => format!("etcdctl role add {role}"),
            RoleChange::Grant(permission) => {
                format!("etcdctl role grant-permission {role} {permission}")
            }
            RoleChange::Revoke(Permission { key, is_prefix, .. }) => {
                let prefix = if *is_prefix { "--prefix=true " } else { "" };
                format!("etcdctl role revoke-permission {role} {prefix}{key}")
            }
            RoleChange::AddUser => format!("etcdctl user add {user}"),
            RoleChange::GrantRole => format!("etcdctl user grant-role {user} {role}"),
        }
    }
}

impl fmt::Display for Permission {
    /// As the arguments of `etcdctl role grant-permission`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let prefix = if self.is_prefix { "--prefix=true " } else { "" };
        let access = match self.access {
            RangeAccess::Read => "read",
            RangeAccess::Write => "write",
            RangeAccess::ReadWrite => "readwrite",
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
    use crate::lease::snapshot::Raw;
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

    fn commands(found: &FoundRoles) -> Vec<String> {
        let role = role();
        role.changes(found).iter().map(|change| role.command(change)).collect()
    }

    /// The subnets of `host` after these writes, each at a revision of its own.
    fn subnets_of(host: &str, writes: &[(&str, &str)]) -> Vec<String> {
        let roots =
            Roots { hosts: "/h".to_owned(), counter: "/c".to_owned(), humanz: "/z".to_owned() };
        let mut found = Snapshot::default();
        for (key, value) in writes {
            let revision = found.revision + 1;
            let (key, value) = (key.as_bytes(), value.as_bytes());
            found.put(&roots, Raw { key, value, created: revision, modified: revision });
        }
        subnets(&found, &host.parse().unwrap()).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_host_gets_no_permission_on_a_claim_by_what_it_writes_into_its_keys() {
        let theirs = [("/h/h2", "10.0.2.0/24"), ("/z/subnets/4/10.0.2.0-24", "h2")];
        let with = |more: &[(&'static str, &'static str)]| [&theirs[..], more].concat();
        let claimed = with(&[("/z/subnets/4/10.0.1.0-24", "h1"), ("/h/h1", "10.0.2.0/24")]);
        assert_eq!(subnets_of("h1", &claimed), ["10.0.1.0/24"]);
        assert_eq!(subnets_of("h2", &claimed), ["10.0.2.0/24"]);
        assert_eq!(subnets_of("h1", &with(&[("/h/h1", "10.0.2.0/24")])), [""; 0]);
        let stolen = with(&[("/z/subnets/4/10.0.2.0-24", "h1")]);
        assert_eq!(subnets_of("h1", &stolen), [""; 0], "h2 has the better right");
        let unclaimed = [("/h/h2", "10.0.2.0/24"), ("/h/h1", "10.0.2.0/24")];
        assert_eq!(subnets_of("h1", &unclaimed), [""; 0]);
        assert_eq!(subnets_of("h2", &unclaimed), ["10.0.2.0/24"], "of the Python agent until now");
        let reserved = [("/z/subnets/4/10.0.1.0-24", "h1"), ("/h/h1", "fd00:1::/64")];
        assert_eq!(subnets_of("h1", &reserved), ["10.0.1.0/24", "fd00:1::/64"]);
    }

    #[test]
    fn a_host_writes_its_own_keys_only() {
        assert_eq!(
            commands(&FoundRoles::default()),
            [
                "etcdctl role add humanz-h9",
                "etcdctl role grant-permission humanz-h9 --prefix=true read /humanz/hosts/",
                "etcdctl role grant-permission humanz-h9 --prefix=true read /humanz/v1/",
                "etcdctl role grant-permission humanz-h9 --prefix=true read /humanz/v1-probes/",
                "etcdctl role grant-permission humanz-h9 --prefix=true read /humanz/v1-pods/",
                "etcdctl role grant-permission humanz-h9 --prefix=true read /humanz/v1-connectivity/",
                "etcdctl role grant-permission humanz-h9 --prefix=true read /humanz/v1-policies/",
                "etcdctl role grant-permission humanz-h9 --prefix=true read /humanz/v1-blocks/",
                "etcdctl role grant-permission humanz-h9 write /humanz/hosts/h9",
                "etcdctl role grant-permission humanz-h9 write /humanz/v1/nodes/h9",
                "etcdctl role grant-permission humanz-h9 write /humanz/v1/alive/h9",
                "etcdctl role grant-permission humanz-h9 write /humanz/v1/contenders/h9",
                "etcdctl role grant-permission humanz-h9 write /humanz/v1/wireguard/h9",
                "etcdctl role grant-permission humanz-h9 write /humanz/v1/subnets/4/10.244.9.0-24",
                "etcdctl role grant-permission humanz-h9 write /humanz/v1/subnets/6/fd10:244:0:9::-64",
                "etcdctl role grant-permission humanz-h9 write /humanz/v1-probes/h9",
                "etcdctl role grant-permission humanz-h9 write /humanz/v1/requests/h9",
                "etcdctl role grant-permission humanz-h9 write /humanz/v1-pods/h9",
                "etcdctl role grant-permission humanz-h9 --prefix=true read /humanz/v1-members/",
                "etcdctl role grant-permission humanz-h9 --prefix=true write /humanz/v1-members/h9/",
                "etcdctl role grant-permission humanz-h9 --prefix=true readwrite /humanz/v1-groups/",
                "etcdctl role grant-permission humanz-h9 --prefix=true write /humanz/v1-blocks/h9/",
                "etcdctl role grant-permission humanz-h9 --prefix=true write /humanz/v1/connectivity/h9/",
                "etcdctl role grant-permission humanz-h9 --prefix=true write /humanz/v1-connectivity/h9/",
                "etcdctl user add h9",
                "etcdctl user grant-role h9 humanz-h9",
            ]
        );
    }

    #[test]
    fn what_is_there_stays_and_what_permits_more_goes() {
        let wanted = role();
        let mut found = FoundRoles {
            permissions: Some(wanted.permissions.clone()),
            roles: Some(vec![wanted.role.clone()]),
        };
        assert_eq!(commands(&found), [""; 0]);
        let wide = Permission {
            access: RangeAccess::Write,
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
