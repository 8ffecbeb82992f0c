//! How long a member has been running, by its metrics, which etcd serves where it serves its clients.
//!
//! HTTP/1.0: without TLS a member speaks HTTP/2 for gRPC only, and 1.0 ends an answer without chunks.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use http::Uri;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::etcd::tls::files::Files;

/// Largest answer read, in bytes: a member has 150 kB of metrics.
const LIMIT: u64 = 4 * 1024 * 1024;

/// When the process started, in seconds since 1970, by the clock of its machine.
const STARTED: &str = "process_start_time_seconds ";

/// The uptime of the member at `endpoint`, a second less than its own clock says; `None` if it does not say.
pub async fn ask(endpoint: &str, files: &Files) -> Option<Duration> {
    let uri: Uri = endpoint.parse().ok()?;
    let host = uri.host()?;
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let tcp = TcpStream::connect((bare, uri.port_u16()?)).await.ok()?;
    if uri.scheme_str() == Some("http") {
        return exchange(tcp, host).await;
    }
    let name = ServerName::try_from(bare.to_owned()).ok()?;
    let connector = TlsConnector::from(Arc::new(tls(files)?));
    exchange(connector.connect(name, tcp).await.ok()?, host).await
}

fn tls(files: &Files) -> Option<ClientConfig> {
    let chain = |text: &str| -> Option<Vec<CertificateDer<'static>>> {
        CertificateDer::pem_slice_iter(text.as_bytes()).collect::<Result<_, _>>().ok()
    };
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(chain(&files.ca.as_ref()?.text)?);
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = config.ok()?.with_root_certificates(roots);
    let Some((certificate, key)) = &files.pair else { return Some(config.with_no_client_auth()) };
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).ok()?;
    config.with_client_auth_cert(chain(&certificate.text)?, key).ok()
}

async fn exchange(mut stream: impl AsyncRead + AsyncWrite + Unpin, host: &str) -> Option<Duration> {
    let request = format!("GET /metrics HTTP/1.0\r\nHost: {host}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.ok()?;
    let mut answer = Vec::new();
    // The end of a TLS stream without a word is not of interest: what counts has come, or has not.
    drop(stream.take(LIMIT).read_to_end(&mut answer).await);
    uptime(&answer)
}

/// By one clock, that of the member: the time of the answer, which has whole seconds, and that of its start.
fn uptime(answer: &[u8]) -> Option<Duration> {
    let mut headers = [httparse::EMPTY_HEADER; 32];
    let mut response = httparse::Response::new(&mut headers);
    let httparse::Status::Complete(body) = response.parse(answer).ok()? else { return None };
    if response.code != Some(200) {
        return None;
    }
    let date = response.headers.iter().find(|header| header.name.eq_ignore_ascii_case("date"))?;
    let now = httpdate::parse_http_date(std::str::from_utf8(date.value).ok()?).ok()?;
    let metrics = std::str::from_utf8(answer.get(body..)?).ok()?;
    let started: f64 = metrics.lines().find_map(|line| line.strip_prefix(STARTED))?.parse().ok()?;
    let started = SystemTime::UNIX_EPOCH + Duration::try_from_secs_f64(started).ok()?;
    now.duration_since(started).ok()?.checked_sub(Duration::from_secs(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: &str, date: &str, body: &str) -> Vec<u8> {
        format!("HTTP/1.0 {status}\r\nDate: {date}\r\nContent-Type: text/plain\r\n\r\n{body}")
            .into()
    }

    const DATE: &str = "Sat, 28 Nov 2026 09:13:09 GMT";

    /// As etcd 3.4.23 answers.
    const BODY: &str = "# TYPE process_start_time_seconds gauge\nprocess_start_time_seconds 1.795857185e+09\n\
                        process_virtual_memory_bytes 1.1e+10\n";

    #[test]
    fn it_is_by_the_members_own_clock() {
        assert_eq!(uptime(&answer("200 OK", DATE, BODY)), Some(Duration::from_secs(3)));
    }

    #[test]
    fn what_is_no_such_answer_says_nothing() {
        let before = "Sat, 28 Nov 2026 09:13:04 GMT";
        let huge = "process_start_time_seconds 1e300\n";
        for wrong in [
            answer("404 Not Found", DATE, BODY),
            answer("200 OK", "yesterday", BODY),
            answer("200 OK", before, BODY),
            answer("200 OK", DATE, "process_start_time_seconds NaN\n"),
            answer("200 OK", DATE, "process_start_time_seconds -1\n"),
            answer("200 OK", DATE, huge),
            answer("200 OK", DATE, ""),
            b"HTTP/1.0 200 OK\r\nDate".to_vec(),
            b"\x15\x03\x01\x00\x02\x02".to_vec(),
            Vec::new(),
        ] {
            assert_eq!(uptime(&wrong), None, "{}", String::from_utf8_lossy(&wrong));
        }
    }
}
