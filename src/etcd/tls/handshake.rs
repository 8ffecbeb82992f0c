//! A handshake for its own sake, to learn why a connection broke off.
//!
//! A member that does not take a certificate says so after the handshake and hangs up (RFC 8446 §4.4.2).
//! Whoever is writing at that moment learns only that the connection is closed; here nothing is written.

use std::io::{self, Read};
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, Error, RootCertStore, StreamOwned};

use crate::etcd::tls::files::Files;

/// Longest wait for the member, at each step.
const PATIENCE: Duration = Duration::from_secs(1);

/// Why a handshake came to nothing.
pub enum Cause {
    /// TLS says so.
    Tls(Error),
    /// The member hung up before it was over.
    HungUp,
}

/// What the handshake with the member at `host`, a name or an address, failed of; `None` if of nothing
/// that can be told. Blocks for some seconds at most.
pub fn failure(host: &str, port: u16, files: &Files) -> Option<Cause> {
    let name = ServerName::try_from(host.to_owned()).ok()?;
    let connection = ClientConnection::new(Arc::new(config(files)?), name).ok()?;
    let address = (host, port).to_socket_addrs().ok()?.next()?;
    let stream = TcpStream::connect_timeout(&address, PATIENCE).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    stream.set_write_timeout(Some(PATIENCE)).ok()?;
    let mut stream = StreamOwned::new(connection, stream);
    let error = stream.read(&mut [0]).err()?;
    match error.get_ref().and_then(|held| held.downcast_ref::<Error>()) {
        Some(error) => Some(Cause::Tls(error.clone())),
        None if HANG_UPS.contains(&error.kind()) => {
            stream.conn.is_handshaking().then_some(Cause::HungUp)
        }
        None => None,
    }
}

/// How a closed connection shows.
const HANG_UPS: [io::ErrorKind; 3] =
    [io::ErrorKind::UnexpectedEof, io::ErrorKind::ConnectionReset, io::ErrorKind::BrokenPipe];

fn config(files: &Files) -> Option<ClientConfig> {
    let provider = Arc::new(ring::default_provider());
    let builder =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let mut roots = RootCertStore::empty();
    if let Some(ca) = &files.ca {
        roots.add_parsable_certificates(certificates(&ca.text).ok()?);
    }
    let builder = builder.ok()?.with_root_certificates(roots);
    let mut config = match &files.pair {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => {
            let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).ok()?;
            builder.with_client_auth_cert(certificates(&certificate.text).ok()?, key).ok()?
        }
    };
    config.alpn_protocols.push(b"h2".to_vec());
    Some(config)
}

fn certificates(text: &str) -> io::Result<Vec<CertificateDer<'static>>> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text.as_bytes()).collect();
    found.map_err(io::Error::other)
}
