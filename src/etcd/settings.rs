//! Pure. Settings and start values of the connection with etcd.

use std::path::PathBuf;
use std::time::Duration;

use crate::lease::tenant_pools::NetworkReader;
use crate::lease::{HostAttributes, Identity, Network, Saved};

/// How to reach etcd. The files are read at every new connection and when they change, so that
/// renewed certificates and passwords are used without a restart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EtcdSettings {
    /// URLs of the members: `http://host:port` or `https://host:port`; at least one.
    pub endpoints: Vec<String>,
    /// PEM file of the authorities that sign the members' certificates; needed for https.
    pub ca: Option<PathBuf>,
    /// PEM file of this host's certificate; with `key`.
    pub cert: Option<PathBuf>,
    /// PEM file of its key.
    pub key: Option<PathBuf>,
    /// Name of the etcd user; with `password_file`.
    pub user: Option<String>,
    /// File with that user's password; white space at its end is no part of it.
    pub password_file: Option<PathBuf>,
    /// How long one call to one member may take.
    pub timeout: Duration,
}

/// Settings that may change while the connection runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdSetup {
    pub etcd: EtcdSettings,
    /// The network as configured on this host. Its key roots never change.
    pub network: Network,
}

/// Start values of the connection.
#[derive(Clone, Debug)]
pub struct EtcdStart {
    pub etcd: EtcdSettings,
    pub network: Network,
    pub identity: Identity,
    pub attributes: HostAttributes,
    /// The state saved by an earlier run: its subnets are claimed again, and put back with all else
    /// if etcd has lost its data since.
    pub saved: Option<Saved>,
    /// What the objects of tenants' networks say.
    pub read_networks: NetworkReader,
    /// This host follows policies, and with them networks: without the permission to read these, no pool grows. Credentials
    /// from before there were policies have none, and hosts with them no networks.
    pub follows_networks: bool,
}
