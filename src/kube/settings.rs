//! Pure. Settings and start values of the connection with the Kubernetes API.

use std::path::PathBuf;

use http::Uri;

use crate::lease::{HostAttributes, Identity, Lease};
use crate::net::PerFamily;
use crate::net::subnet::Pool;

/// How to reach the Kubernetes API. Files are read at every new connection, tokens at every request, so
/// that renewed ones are used without a restart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KubeSettings {
    /// A kubeconfig; `None`: the service account of the pod.
    pub kubeconfig: Option<PathBuf>,
    /// Overrides the server of the kubeconfig or the cluster.
    pub api: Option<Server>,
}

/// Settings that may change while the connection runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setup {
    pub api: KubeSettings,
    /// The pool of each family in use, at least one.
    pub pools: PerFamily<Pool>,
}

/// Start values of the connection.
#[derive(Clone, Debug)]
pub struct Start {
    pub setup: Setup,
    /// Its name is that of its node.
    pub identity: Identity,
    /// Of this host, and therefore of all others.
    pub attributes: HostAttributes,
    /// The host has a saved state to serve until the API answers.
    pub has_served: bool,
    /// What pods that run have addresses of: it stays theirs whatever podCIDR the node has by now.
    pub kept: Option<Lease>,
}

/// The address of the API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// `https://host:port`
    pub origin: String,
    /// Prefix of all paths, without `/` at its end; mostly empty.
    pub prefix: String,
}

impl Server {
    /// The server with the URL `text`.
    ///
    /// # Errors
    /// Not a URL, or not https: a token must not be sent unencrypted.
    pub fn parse(text: &str) -> Result<Server, String> {
        let wrong = || format!("{text:.200?} must be a URL such as https://192.0.2.5:6443");
        let uri: Uri = text.parse().map_err(|_| wrong())?;
        let authority = uri.authority().ok_or_else(wrong)?;
        let plain = authority.as_str().contains('@') || uri.query().is_some();
        if uri.scheme_str() != Some("https") || plain || authority.host().is_empty() {
            return Err(wrong());
        }
        let (host, port) = (authority.host(), authority.port_u16().unwrap_or(443));
        let prefix = uri.path().trim_end_matches('/').to_owned();
        Ok(Server { origin: format!("https://{host}:{port}"), prefix })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_an_https_url() {
        for (text, origin, prefix) in [
            ("https://192.0.2.5:6443", "https://192.0.2.5:6443", ""),
            ("https://[fd99::2]:6443/", "https://[fd99::2]:6443", ""),
            ("https://api.example", "https://api.example:443", ""),
            ("https://proxy/k8s/c-1/", "https://proxy:443", "/k8s/c-1"),
        ] {
            let (origin, prefix) = (origin.to_owned(), prefix.to_owned());
            assert_eq!(Server::parse(text), Ok(Server { origin, prefix }));
        }
        for bad in [
            "http://192.0.2.5",
            "192.0.2.5:6443",
            "https://",
            "https://u:p@h",
            "https://h?x",
            "",
            "x y",
        ] {
            assert!(Server::parse(bad).is_err(), "{bad:?} was taken");
        }
    }
}
