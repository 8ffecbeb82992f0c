//! Users and roles of etcd, with the credentials of an administrator.

use etcd_client::{
    Error, Permission as Granted, PermissionType, RoleRevokePermissionOptions, UserAddOptions,
};

use crate::etcd::client::Etcd;
use crate::etcd::connection::MemberConnection;
use crate::lease::EtcdError;
use crate::lease::roles::{FoundRoles, HostRole, Permission, RangeAccess, RoleChange};

/// A role to make; a new user gets the password, or none.
pub struct WantedRole {
    pub role: HostRole,
    pub password: Option<String>,
}

/// What was changed, and the further roles of the user.
pub struct AppliedRole {
    pub changes: Vec<RoleChange>,
    pub further: Vec<String>,
}

impl Etcd {
    pub async fn apply_roles(&self, wanted: &[WantedRole]) -> Result<Vec<AppliedRole>, EtcdError> {
        let mut applied = Vec::with_capacity(wanted.len());
        for WantedRole { role, password } in wanted {
            let found = self.found_role(role).await?;
            let changes = role.changes(&found);
            for change in &changes {
                self.change_role(role, change, password.as_deref()).await?;
            }
            let further = role.further(&found).into_iter().map(str::to_owned).collect();
            applied.push(AppliedRole { changes, further });
        }
        Ok(applied)
    }

    /// The version of the member in use.
    pub async fn version(&self) -> Result<String, EtcdError> {
        let request = async |mut member: MemberConnection| member.maintenance.status().await;
        let status = self.members().call("read the version of etcd", request).await?;
        Ok(status.version().to_owned())
    }

    /// What there is of `wanted`.
    async fn found_role(&self, wanted: &HostRole) -> Result<FoundRoles, EtcdError> {
        let role = async |mut member: MemberConnection| {
            let found = unless_missing(member.auth.role_get(wanted.role.as_str()).await)?;
            Ok(found.map(|role| role.permissions().into_iter().map(permission).collect()))
        };
        let user = async |mut member: MemberConnection| {
            let found = unless_missing(member.auth.user_get(wanted.user.as_str()).await)?;
            Ok(found.map(|user| user.roles().to_vec()))
        };
        Ok(FoundRoles {
            permissions: self.members().call("read a role of etcd", role).await?,
            roles: self.members().call("read a user of etcd", user).await?,
        })
    }

    /// Makes `change` of `wanted`; a new user gets `password`, or none.
    async fn change_role(
        &self,
        wanted: &HostRole,
        change: &RoleChange,
        password: Option<&str>,
    ) -> Result<(), EtcdError> {
        let HostRole { role, user, .. } = wanted;
        let request = async |mut member: MemberConnection| {
            let auth = &mut member.auth;
            match change {
                RoleChange::AddRole => unless_there(auth.role_add(role.as_str()).await),
                RoleChange::Grant(permission) => {
                    auth.role_grant_permission(role.as_str(), granted(permission)).await.map(drop)
                }
                RoleChange::Revoke(permission) => {
                    let options = RoleRevokePermissionOptions::new();
                    let options = match permission.is_prefix {
                        true => options.with_prefix(),
                        false => options,
                    };
                    let key = permission.key.as_str();
                    auth.role_revoke_permission(role.as_str(), key, Some(options)).await.map(drop)
                }
                RoleChange::AddUser => {
                    let options = UserAddOptions::new();
                    let options = match password {
                        Some(_) => options,
                        None => options.with_no_pwd(),
                    };
                    let password = password.unwrap_or_default();
                    unless_there(auth.user_add(user.as_str(), password, Some(options)).await)
                }
                RoleChange::GrantRole => {
                    auth.user_grant_role(user.as_str(), role.as_str()).await.map(drop)
                }
            }
        };
        self.members().call("change a role of etcd", request).await
    }
}

fn granted(permission: &Permission) -> Granted {
    let key = permission.key.as_str();
    let granted = match permission.access {
        RangeAccess::Read => Granted::read(key),
        RangeAccess::Write => Granted::write(key),
        RangeAccess::ReadWrite => Granted::read_write(key),
    };
    if permission.is_prefix { granted.with_prefix() } else { granted }
}

fn permission(granted: Granted) -> Permission {
    let access = match granted.get_type() {
        kind if kind == PermissionType::Read as i32 => RangeAccess::Read,
        kind if kind == PermissionType::Write as i32 => RangeAccess::Write,
        _ => RangeAccess::ReadWrite,
    };
    let key = String::from_utf8_lossy(granted.key()).into_owned();
    Permission { access, key, is_prefix: !granted.range_end().is_empty() }
}

/// `None` if the error is that there is no such user or role.
fn unless_missing<T>(answer: Result<T, Error>) -> Result<Option<T>, Error> {
    match answer {
        Err(Error::GRpcStatus(status)) if status.message().contains("not found") => Ok(None),
        answer => answer.map(Some),
    }
}

/// A request may reach several members: the second one finds what the first one made.
fn unless_there<T>(answer: Result<T, Error>) -> Result<(), Error> {
    match answer {
        Err(Error::GRpcStatus(status)) if status.message().contains("already exists") => Ok(()),
        answer => answer.map(drop),
    }
}
