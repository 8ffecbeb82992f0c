//! Pure. As much of HTTP/1.1 as a local server needs: GET and HEAD, one request for each connection.

use std::fmt::Write as _;
use std::net::IpAddr;
use std::sync::Arc;

/// Largest request; ours have a hundred bytes.
pub const MAX_BYTES: usize = 8 << 10;

/// What the page wants to have explained.
const EXPLAIN: &str = "x-humanz-explain";

/// Most header lines of a request.
const MAX_HEADERS: usize = 64;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HttpRequest {
    /// Without the query; begins with `/`.
    pub path: String,
    /// `Host:`, if the request has exactly one.
    pub host: Option<String>,
    /// HEAD: the body is left out of the response.
    pub head_only: bool,
    /// `X-Humanz-Explain:`, words with tabs in between, which no page from elsewhere can send: a browser asks for consent first (OPTIONS), and gets none.
    ///
    /// Source: Fetch, "CORS-preflight fetch".
    pub explain: Option<String>,
}

impl HttpRequest {
    /// The client reached this server under a name that no name server can give to a foreign page: under any
    /// other one, that page could read the responses through a browser of this host (DNS rebinding).
    pub fn is_for_loopback(&self) -> bool {
        self.host.as_deref().is_some_and(is_loopback)
    }
}

/// `localhost` or a loopback address, with a port or without.
fn is_loopback(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let address = name.trim_start_matches('[').trim_end_matches(']');
    name.eq_ignore_ascii_case("localhost")
        || address.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[derive(Debug, PartialEq, Eq)]
pub enum ParsedRequest {
    /// The beginning of a request.
    Part,
    Whole(HttpRequest),
    Refused(Response),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    pub status: u16,
    pub media: &'static str,
    /// Further header lines, each with `\r\n`.
    pub headers: &'static str,
    /// The body is compressed. Who says nothing of codings gets it so, too (RFC 9110, 12.5.3).
    pub gzip: bool,
    /// Shared with other responses where it is large.
    pub body: Arc<[u8]>,
}

pub const TEXT: &str = "text/plain; charset=utf-8";
pub const JSON: &str = "application/json";

impl Response {
    pub fn new(status: u16, media: &'static str, body: impl Into<Vec<u8>>) -> Response {
        Response::shared(status, media, body.into().into())
    }

    /// With the same bytes as others.
    pub fn shared(status: u16, media: &'static str, body: Arc<[u8]>) -> Response {
        Response { status, media, headers: "", gzip: false, body }
    }

    pub fn text(status: u16, line: &str) -> Response {
        Response::new(status, TEXT, format!("{line}\n"))
    }

    /// What comes before the body.
    pub fn head(&self) -> Vec<u8> {
        let mut head = head(self.status, self.media, self.headers);
        if self.gzip {
            head += "Content-Encoding: gzip\r\n";
        }
        write!(head, "Content-Length: {}\r\n\r\n", self.body.len())
            .expect("a String takes everything");
        head.into_bytes()
    }
}

/// The head of a response whose body ends with the connection.
pub fn endless(media: &str, headers: &str) -> Vec<u8> {
    (head(200, media, headers) + "\r\n").into_bytes()
}

fn head(status: u16, media: &str, headers: &str) -> String {
    let reason = match status {
        200 => "OK",
        400 => "Bad Request",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        431 => "Request Header Fields Too Large",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        _ => "Error",
    };
    format!(
        "HTTP/1.1 {status} {reason}\r\nContent-Type: {media}\r\nCache-Control: no-store\r\n\
         X-Content-Type-Options: nosniff\r\nConnection: close\r\n{headers}"
    )
}

/// Parses the head of a GET or HEAD request; a body is ignored.
pub fn parse(bytes: &[u8]) -> ParsedRequest {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(bytes) {
        Ok(httparse::Status::Complete(_)) => {}
        Ok(httparse::Status::Partial) if bytes.len() < MAX_BYTES => return ParsedRequest::Part,
        Ok(httparse::Status::Partial) | Err(httparse::Error::TooManyHeaders) => {
            return ParsedRequest::Refused(Response::text(431, "the request is too large"));
        }
        Err(error) => {
            return ParsedRequest::Refused(Response::text(
                400,
                &format!("no HTTP/1.1 request: {error}"),
            ));
        }
    }
    let head_only = request.method == Some("HEAD");
    if !head_only && request.method != Some("GET") {
        let allow = "Allow: GET, HEAD\r\n";
        let refused = Response::text(405, "only GET and HEAD are served");
        return ParsedRequest::Refused(Response { headers: allow, ..refused });
    }
    let target = request.path.unwrap_or_default();
    let path = target.split(['?', '#']).next().unwrap_or_default();
    if !path.starts_with('/') {
        return ParsedRequest::Refused(Response::text(400, "the path must begin with /"));
    }
    let of_host = |header: &&httparse::Header<'_>| header.name.eq_ignore_ascii_case("host");
    let mut hosts = request.headers.iter().filter(of_host);
    let host = hosts.next().and_then(|header| String::from_utf8(header.value.to_vec()).ok());
    let host = host.filter(|_| hosts.next().is_none());
    let mut headers = request.headers.iter();
    let explain = headers.find(|header| header.name.eq_ignore_ascii_case(EXPLAIN));
    let explain = explain.and_then(|header| String::from_utf8(header.value.to_vec()).ok());
    ParsedRequest::Whole(HttpRequest { path: path.to_owned(), host, head_only, explain })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(bytes: &[u8]) -> u16 {
        match parse(bytes) {
            ParsedRequest::Refused(response) => response.status,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_get_is_parsed_however_it_is_cut() {
        let whole = b"GET /v1/status?x=1 HTTP/1.1\r\nHost: a\r\nx-HUMANZ-explain: a/b\tc d\r\n\r\n";
        for length in 0..whole.len() {
            assert_eq!(parse(&whole[..length]), ParsedRequest::Part, "{length}");
        }
        let request = HttpRequest {
            path: "/v1/status".to_owned(),
            host: Some("a".to_owned()),
            head_only: false,
            explain: Some("a/b\tc d".to_owned()),
        };
        assert_eq!(parse(whole), ParsedRequest::Whole(request));
    }

    #[test]
    fn a_name_that_others_may_give_to_an_address_is_foreign() {
        let request =
            |host: &str| HttpRequest { host: Some(host.to_owned()), ..HttpRequest::default() };
        for host in ["127.0.0.1:8104", "localhost", "LOCALHOST:80", "[::1]:8104", "127.9.9.9"] {
            assert!(request(host).is_for_loopback(), "{host}");
        }
        for host in [
            "evil.example",
            "evil.example:8104",
            "127.0.0.1.evil.example",
            "192.0.2.1",
            "localhost.evil",
            "localhost:80:evil",
            "",
        ] {
            assert!(!request(host).is_for_loopback(), "{host}");
        }
        assert!(!HttpRequest::default().is_for_loopback());
    }

    #[test]
    fn any_other_request_is_refused_with_the_reason() {
        assert_eq!(refusal(b"POST / HTTP/1.1\r\n\r\n"), 405);
        assert_eq!(refusal(b"GET status HTTP/1.1\r\n\r\n"), 400);
        assert_eq!(refusal(b"GET * HTTP/1.1\r\n\r\n"), 400);
        assert_eq!(refusal(b"\x16\x03\x01\x02\x00"), 400);
        assert_eq!(refusal(b"GET / HTTP/1.1\r\n bad: x\r\n\r\n"), 400);
        assert_eq!(refusal(&[b'\n'; MAX_BYTES]), 431);
        let long = [b"GET /".as_slice(), &[b'a'; MAX_BYTES]].concat();
        assert_eq!(refusal(&long), 431);
        let many =
            [b"GET / HTTP/1.1\r\n".as_slice(), &b"a: b\r\n".repeat(MAX_HEADERS + 1)].concat();
        assert_eq!(refusal(&[&many, b"\r\n".as_slice()].concat()), 431);
    }

    #[test]
    fn two_host_headers_count_as_none() {
        let two = b"GET / HTTP/1.1\r\nHost: a\r\nhost: b\r\n\r\n";
        let request = HttpRequest { path: "/".to_owned(), ..HttpRequest::default() };
        assert_eq!(parse(two), ParsedRequest::Whole(request));
    }

    #[test]
    fn a_response_has_its_length() {
        let response = Response::text(200, "ok");
        let head = String::from_utf8(response.head()).unwrap();
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
        assert!(head.ends_with("Content-Length: 3\r\n\r\n"), "{head}");
        assert_eq!(&*response.body, b"ok\n");
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_do_harm(bytes: Vec<u8>) {
            parse(&bytes);
        }
    }
}
