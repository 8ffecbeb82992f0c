//! Pure. URLs of etcd members.

use crate::settings::values::list;

/// URLs of etcd members: a bare host means `http://host:2379`.
pub fn endpoints(text: &str) -> Result<Vec<String>, String> {
    let mut endpoints = list(text, endpoint)?;
    let mut seen = std::collections::BTreeSet::new();
    endpoints.retain(|endpoint| seen.insert(endpoint.clone()));
    Ok(endpoints)
}

fn endpoint(text: &str) -> Result<String, String> {
    if text.contains('@') {
        return Err(
            "must not hold a user and a password, which anybody on this host could see; use \
             ETCD_USER and ETCD_PASSWORD_FILE"
                .into(),
        );
    }
    let right = || {
        format!(
            "{text:?} must be host, host:port or a URL, as in 192.0.2.1, [2001:db8::1]:2379 or https://etcd-1:2379"
        )
    };
    let (scheme, authority) = match text.split_once("://") {
        None => ("http", text),
        Some((scheme @ ("http" | "https"), rest)) => (scheme, rest.trim_end_matches('/')),
        Some(_) => return Err(right()),
    };
    let (host, port) = split_port(authority).ok_or_else(right)?;
    let valid = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let named = !host.is_empty() && host.chars().all(valid);
    let bracketed = host.parse::<std::net::Ipv6Addr>().is_ok();
    match (named, bracketed) {
        (true, _) => Ok(format!("{scheme}://{host}:{port}")),
        (_, true) => Ok(format!("{scheme}://[{host}]:{port}")),
        _ => Err(right()),
    }
}

/// Host and port of `host`, `host:port`, `[v6]`, `[v6]:port` or a bare IPv6 address.
fn split_port(authority: &str) -> Option<(&str, u16)> {
    const ETCD_CLIENT_PORT: u16 = 2379;
    let port = |text: &str| text.parse().ok().filter(|port| *port != 0);
    if let Some(rest) = authority.strip_prefix('[') {
        let (host, rest) = rest.split_once(']')?;
        return match rest.strip_prefix(':') {
            Some(text) => Some((host, port(text)?)),
            None => rest.is_empty().then_some((host, ETCD_CLIENT_PORT)),
        };
    }
    match authority.split_once(':') {
        Some((_, rest)) if rest.contains(':') => Some((authority, ETCD_CLIENT_PORT)),
        Some((host, text)) => Some((host, port(text)?)),
        None => Some((authority, ETCD_CLIENT_PORT)),
    }
}

/// Without a user and a password in a URL: they do not belong there, but may be there. As a
/// password may hold anything, all from the scheme to the last `@` goes; a path stays as it is.
pub fn without_secrets(text: &str) -> String {
    match text.rfind('@') {
        Some(at) if !text.starts_with('/') => {
            let schemes = ["http://", "https://"].into_iter();
            let begin = schemes.filter(|scheme| text.starts_with(scheme)).map(str::len).max();
            let begin = begin.unwrap_or_default();
            format!("{}***{}", &text[..begin], &text[at..])
        }
        _ => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_may_leave_out_scheme_and_port() {
        for (text, url) in [
            ("etcd", "http://etcd:2379"),
            ("192.0.2.1:4001", "http://192.0.2.1:4001"),
            ("https://etcd-1", "https://etcd-1:2379"),
            ("https://etcd-1:2379/", "https://etcd-1:2379"),
            ("2001:db8::1", "http://[2001:db8::1]:2379"),
            ("[2001:db8::1]:4001", "http://[2001:db8::1]:4001"),
        ] {
            assert_eq!(endpoint(text), Ok(url.to_owned()));
        }
    }

    #[test]
    fn what_is_no_endpoint_is_refused() {
        for bad in [
            "ftp://etcd",
            "etcd:0",
            "etcd:http",
            "a b",
            "http://",
            "[::1",
            "[::1]x",
            "etcd/path",
            "user@etcd",
            ":2379",
        ] {
            assert!(endpoint(bad).is_err(), "{bad:?} was taken");
        }
    }

    #[test]
    fn endpoints_are_listed_once() {
        assert_eq!(endpoints("a, b,a,").unwrap(), ["http://a:2379", "http://b:2379"]);
    }

    #[test]
    fn a_password_in_a_url_is_not_shown() {
        for (text, shown) in [
            ("http://root:secret@etcd:2379,other", "http://***@etcd:2379,other"),
            ("root:se@cret@etcd", "***@etcd"),
            ("https://a:b/c,d@one,https://e:f@two", "https://***@two"),
            ("a:b://c@etcd", "***@etcd"),
            ("/etc/humanz/me@etcd.pem", "/etc/humanz/me@etcd.pem"),
            ("10.244.0.0/16", "10.244.0.0/16"),
        ] {
            assert_eq!(without_secrets(text), shown);
        }
    }
}
