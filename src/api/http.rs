//! Pure. As much of HTTP/1.1 as a local server needs: GET, one request for each connection.

use std::fmt::Write as _;

/// Bytes that a request may have; ours have a hundred.
pub const MAX_BYTES: usize = 8 << 10;

/// Lines of a request's head that are looked at.
const MAX_HEADERS: usize = 64;

/// A GET.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// What is asked for, without the query: begins with `/`.
    pub path: String,
    /// `Host:`, if there is exactly one.
    pub host: Option<String>,
}

/// What the bytes so far are.
#[derive(Debug, PartialEq, Eq)]
pub enum Parsed {
    /// The beginning of a request.
    Part,
    /// A request.
    Whole(Request),
    /// Nothing that is served.
    Refused(Response),
}

/// An answer, whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// Status code.
    pub status: u16,
    /// Media type.
    pub media: &'static str,
    /// Further lines of the head, each with its end.
    pub headers: &'static str,
    /// The body.
    pub body: Vec<u8>,
}

/// For people.
pub const TEXT: &str = "text/plain; charset=utf-8";
/// For programs.
pub const JSON: &str = "application/json";

impl Response {
    /// A body of that media type.
    pub fn new(status: u16, media: &'static str, body: impl Into<Vec<u8>>) -> Response {
        Response { status, media, headers: "", body: body.into() }
    }

    /// One line for people.
    pub fn text(status: u16, line: &str) -> Response {
        Response::new(status, TEXT, format!("{line}\n"))
    }

    /// The bytes that go over the wire.
    pub fn bytes(&self) -> Vec<u8> {
        let mut head = head(self.status, self.media, self.headers);
        write!(head, "Content-Length: {}\r\n\r\n", self.body.len())
            .expect("a String takes everything");
        let mut bytes = head.into_bytes();
        bytes.extend_from_slice(&self.body);
        bytes
    }
}

/// The head of a body that ends with the connection.
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

/// What `bytes` are. A body is nothing that a GET needs, and not read.
pub fn parse(bytes: &[u8]) -> Parsed {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(bytes) {
        Ok(httparse::Status::Complete(_)) => {}
        Ok(httparse::Status::Partial) if bytes.len() < MAX_BYTES => return Parsed::Part,
        Ok(httparse::Status::Partial) | Err(httparse::Error::TooManyHeaders) => {
            return Parsed::Refused(Response::text(431, "the request is too large"));
        }
        Err(error) => {
            return Parsed::Refused(Response::text(400, &format!("no HTTP/1.1 request: {error}")));
        }
    }
    if request.method != Some("GET") {
        let allow = "Allow: GET\r\n";
        let refused = Response { headers: allow, ..Response::text(405, "only GET is served") };
        return Parsed::Refused(refused);
    }
    let target = request.path.unwrap_or_default();
    let path = target.split(['?', '#']).next().unwrap_or_default();
    if !path.starts_with('/') {
        return Parsed::Refused(Response::text(400, "the path must begin with /"));
    }
    let of_host = |header: &&httparse::Header<'_>| header.name.eq_ignore_ascii_case("host");
    let mut hosts = request.headers.iter().filter(of_host);
    let host = hosts.next().and_then(|header| String::from_utf8(header.value.to_vec()).ok());
    let host = host.filter(|_| hosts.next().is_none());
    Parsed::Whole(Request { path: path.to_owned(), host })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(bytes: &[u8]) -> u16 {
        match parse(bytes) {
            Parsed::Refused(response) => response.status,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_get_is_understood_however_it_is_cut() {
        let whole = b"GET /v1/status?x=1 HTTP/1.1\r\nHost: a\r\nAccept: */*\r\n\r\n";
        for length in 0..whole.len() {
            assert_eq!(parse(&whole[..length]), Parsed::Part, "{length}");
        }
        let request = Request { path: "/v1/status".to_owned(), host: Some("a".to_owned()) };
        assert_eq!(parse(whole), Parsed::Whole(request));
    }

    #[test]
    fn anything_else_is_refused_with_its_reason() {
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
    fn two_hosts_are_no_host() {
        let two = b"GET / HTTP/1.1\r\nHost: a\r\nhost: b\r\n\r\n";
        assert_eq!(parse(two), Parsed::Whole(Request { path: "/".to_owned(), host: None }));
    }

    #[test]
    fn an_answer_says_how_long_it_is() {
        let bytes = Response::text(200, "ok").bytes();
        let text = String::from_utf8(bytes).unwrap();
        assert!(text.starts_with("HTTP/1.1 200 OK\r\n"), "{text}");
        assert!(text.ends_with("Content-Length: 3\r\n\r\nok\n"), "{text}");
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_do_harm(bytes: Vec<u8>) {
            parse(&bytes);
        }
    }
}
