//! How etcd is reached.

use std::path::PathBuf;
use std::time::Duration;

/// How etcd is reached. The files are read at every new connection and when they change, so that
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
