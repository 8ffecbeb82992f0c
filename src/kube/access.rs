//! The address of the API and this host's credentials.

use std::env;
use std::fs::File;
use std::io::Read;
use std::net::SocketAddr;
use std::path::Path;

use crate::kube::kubeconfig::{self, Kubeconfig, PemSource, Token};
use crate::kube::settings::{KubeSettings, Server};

/// The service account of a pod. Source: kubernetes.io, "Accessing the Kubernetes API from a Pod".
const ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// Longest file accepted.
const LIMIT_BYTES: u64 = 1024 * 1024;

/// Values for a connection. Not `Debug`: it holds secrets.
pub struct Access {
    pub server: Server,
    /// The name in the server's certificate, if it differs from `server`.
    pub server_name: Option<String>,
    /// The authority of the server's certificate, PEM.
    pub ca: Vec<u8>,
    /// Certificate and key of this host, PEM.
    pub client: Option<(Vec<u8>, Vec<u8>)>,
    token: Option<Token>,
}

impl Access {
    /// Reads `settings` and their files.
    ///
    /// # Errors
    /// What is missing or unusable, without secrets.
    pub fn open(settings: &KubeSettings) -> Result<Access, String> {
        match &settings.kubeconfig {
            Some(path) => text(path).and_then(|text| {
                kubeconfig::parse(&text, path.parent().unwrap_or(Path::new("/")))
                    .and_then(|config| of_kubeconfig(config, settings))
                    .map_err(|error| format!("{}: {error}", path.display()))
            }),
            None => of_pod(settings),
        }
    }

    /// The bearer token, read anew: tokens are renewed after minutes or hours.
    ///
    /// # Errors
    /// The token cannot be read, or is invalid.
    pub fn token(&self) -> Result<Option<String>, String> {
        let (token, place) = match &self.token {
            None => return Ok(None),
            Some(Token::Inline(token)) => (token.clone(), "the token in the kubeconfig".to_owned()),
            Some(Token::File(path)) => (text(path)?, path.display().to_string()),
        };
        let token = token.trim();
        if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(format!("{place} is not a token: it must be one word"));
        }
        Ok(Some(token.to_owned()))
    }
}

/// The access of a pod.
fn of_pod(settings: &KubeSettings) -> Result<Access, String> {
    let server = match &settings.api {
        Some(server) => server.clone(),
        None => service()?,
    };
    let account = Path::new(ACCOUNT);
    Ok(Access {
        server,
        server_name: None,
        ca: certificates(bytes(&account.join("ca.crt"))?, "its authority")?,
        client: None,
        token: Some(Token::File(account.join("token"))),
    })
}

/// The address and port of the API's service, as the environment of every container has them.
pub fn api_service() -> Option<SocketAddr> {
    let (host, port) = service_variables();
    Some(SocketAddr::new(host?.parse().ok()?, port.parse().ok()?))
}

fn service() -> Result<Server, String> {
    let (host, port) = service_variables();
    let host = host.ok_or(
        "not in a pod (KUBERNETES_SERVICE_HOST is not set): set KUBECONFIG to a kubeconfig",
    )?;
    let host = if host.contains(':') { format!("[{host}]") } else { host };
    Server::parse(&format!("https://{host}:{port}"))
}

fn service_variables() -> (Option<String>, String) {
    let variable = |name| env::var(name).ok().filter(|value| !value.is_empty());
    let port = variable("KUBERNETES_SERVICE_PORT").unwrap_or_else(|| "443".to_owned());
    (variable("KUBERNETES_SERVICE_HOST"), port)
}

fn of_kubeconfig(config: Kubeconfig, settings: &KubeSettings) -> Result<Access, String> {
    let server = match &settings.api {
        Some(server) => server.clone(),
        None => Server::parse(&config.server)?,
    };
    let ca = config.ca.ok_or("the cluster has no certificate-authority")?;
    let client = match config.client {
        Some((certificate, key)) => {
            Some((certificates(pem(certificate)?, "client-certificate")?, pem(key)?))
        }
        None => None,
    };
    if client.is_none() && config.token.is_none() {
        return Err("the user has neither token nor client-certificate".to_owned());
    }
    let ca = certificates(pem(ca)?, "certificate-authority")?;
    Ok(Access { server, server_name: config.server_name, ca, client, token: config.token })
}

fn pem(place: PemSource) -> Result<Vec<u8>, String> {
    match place {
        PemSource::Inline(bytes) => Ok(bytes),
        PemSource::File(path) => bytes(&path),
    }
}

fn certificates(pem: Vec<u8>, what: &str) -> Result<Vec<u8>, String> {
    let begins = b"-----BEGIN CERTIFICATE-----";
    let found = pem.windows(begins.len()).any(|window| window == begins);
    if found { Ok(pem) } else { Err(format!("{what} contains no PEM certificate")) }
}

fn text(path: &Path) -> Result<String, String> {
    String::from_utf8(bytes(path)?).map_err(|_| format!("read {}: not UTF-8", path.display()))
}

fn bytes(path: &Path) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(LIMIT_BYTES + 1).read_to_end(&mut bytes));
    match read {
        Ok(length) if length as u64 > LIMIT_BYTES => {
            Err(format!("read {}: larger than {LIMIT_BYTES} bytes", path.display()))
        }
        Ok(_) => Ok(bytes),
        Err(error) => Err(format!("read {}: {error}", path.display())),
    }
}
