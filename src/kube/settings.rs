//! Pure. How the Kubernetes API is reached, as far as the operator says.

use std::path::PathBuf;

use http::Uri;

/// How the Kubernetes API is reached. Files are read at every new connection, tokens at every request, so
/// that renewed ones are used without a restart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KubeSettings {
    /// A kubeconfig; `None`: as pods do, by the service account that they are given.
    pub kubeconfig: Option<PathBuf>,
    /// Where the API is, instead of where the kubeconfig or the cluster says.
    pub api: Option<Server>,
}

/// Where the API is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// `https://host:port`
    pub origin: String,
    /// What all paths begin with, without `/` at its end; mostly empty.
    pub prefix: String,
}

impl Server {
    /// The server with the URL `text`.
    ///
    /// # Errors
    /// It is none, or not https: a token sent in the clear is anybody's.
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
