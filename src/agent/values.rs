//! Pure. One value of a setting: text in, value or what is wrong (and what is right) out.

use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::{Component, PathBuf};
use std::time::Duration;

use ipnetwork::IpNetwork;
use log::LevelFilter;

use crate::lease::records::{NameError, NodeName, Vxlan};
use crate::net::{Family, IfName, PerFamily, subnet};

/// What to log: levels and `target=level`, with commas. To the logger any other word is a target of
/// its own, beside which nothing is logged.
pub fn log_filter(text: &str) -> Result<(), String> {
    let is_level = |text: &str| text.trim().parse::<LevelFilter>().is_ok();
    let is_right = |part: &str| match part.split_once('=') {
        Some((target, level)) => !target.is_empty() && is_level(level),
        None => part.is_empty() || is_level(part),
    };
    match text.split(',').map(str::trim).find(|part| !is_right(part)) {
        Some(part) => Err(format!(
            "{part:?} must be a level (off, error, warn, info, debug or trace) or target=level, as \
             in info,humanz::lease=debug"
        )),
        None => Ok(()),
    }
}

/// `true` or `false`, also `yes`/`no`, `on`/`off`, `1`/`0`.
pub fn boolean(text: &str) -> Result<bool, String> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "yes" | "on" | "1" => Ok(true),
        "false" | "no" | "off" | "0" => Ok(false),
        _ => Err("must be true or false".into()),
    }
}

/// The comma list `text` with every part through `parse`; an empty text is an empty list.
pub fn list<T>(text: &str, parse: impl Fn(&str) -> Result<T, String>) -> Result<Vec<T>, String> {
    let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
    parts.map(parse).collect()
}

/// `90s`, `2m`, `500ms` or plain seconds, within `bounds`.
pub fn duration(text: &str, bounds: RangeInclusive<Duration>) -> Result<Duration, String> {
    let right = || {
        format!("must be a time from {:?} to {:?}, as in 5s or 2m", bounds.start(), bounds.end())
    };
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let count: u64 = text[..digits].parse().map_err(|_| right())?;
    let duration = match &text[digits..] {
        "ms" => Duration::from_millis(count),
        "" | "s" => Duration::from_secs(count),
        "m" => Duration::from_secs(count.saturating_mul(60)),
        _ => return Err(right()),
    };
    if bounds.contains(&duration) { Ok(duration) } else { Err(right()) }
}

/// A time from a second to an hour, or 0 for none.
pub fn interval_or_none(text: &str) -> Result<Option<Duration>, String> {
    let hour = Duration::from_secs(1)..=Duration::from_secs(3600);
    match duration(text, hour.clone()) {
        Ok(interval) => Ok(Some(interval)),
        Err(_) if duration(text, Duration::ZERO..=Duration::ZERO).is_ok() => Ok(None),
        Err(wrong) => Err(format!("{wrong}, or 0")),
    }
}

/// A subnet of either family, without host bits.
pub fn subnet(text: &str) -> Result<IpNetwork, String> {
    subnet::parse(text).map_err(|error| error.to_string())
}

/// A subnet of `family` for pods.
pub fn subnet_of(text: &str, family: Family) -> Result<IpNetwork, String> {
    let subnet = subnet(text)?;
    if subnet::family(subnet) != family {
        return Err(format!("must be an {family} subnet"));
    }
    fit(subnet)
}

fn fit(subnet: IpNetwork) -> Result<IpNetwork, String> {
    subnet::unfit(subnet).map_or(Ok(subnet), Err)
}

/// At most one subnet for each family, for pods.
pub fn subnet_per_family(text: &str) -> Result<PerFamily<IpNetwork>, String> {
    per_family(list(text, |part| fit(subnet(part)?))?, subnet::family)
}

/// At most one address for each family, each one that a host can have.
pub fn address_per_family(text: &str) -> Result<PerFamily<IpAddr>, String> {
    per_family(list(text, host_address)?, Family::of)
}

fn host_address(text: &str) -> Result<IpAddr, String> {
    let address: IpAddr =
        text.parse().map_err(|_| format!("{text:?} is not an address, as in 192.0.2.7"))?;
    let link_local = match address {
        IpAddr::V4(v4) => v4.is_link_local() || v4.is_broadcast(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    if address.is_loopback() || address.is_unspecified() || address.is_multicast() || link_local {
        return Err(format!("other hosts cannot reach {address}; give an address of this host"));
    }
    Ok(address)
}

fn per_family<T: Copy>(
    values: Vec<T>,
    family: impl Fn(T) -> Family,
) -> Result<PerFamily<T>, String> {
    let mut result = PerFamily::default();
    for value in values {
        let family = family(value);
        if result.get(family).is_some() {
            return Err(format!("at most one for {family}"));
        }
        result.set(family, Some(value));
    }
    Ok(result)
}

/// Extra prefix bits, 1 to 24.
pub fn margin(text: &str) -> Result<u8, String> {
    let right = "must be a number of extra prefix bits from 1 to 24 (8 cuts a /16 into /24s)";
    text.parse().ok().filter(|bits| (1..=24).contains(bits)).ok_or_else(|| right.to_owned())
}

/// `auto` or bytes: 576 (with IPv6: 1280, RFC 8200 §5) to 65535.
pub fn mtu(text: &str, ipv6: bool) -> Result<Option<u32>, String> {
    let least = if ipv6 { 1280 } else { 576 };
    if text == "auto" {
        return Ok(None);
    }
    let bytes = text.parse().ok().filter(|bytes| (least..=65535).contains(bytes));
    bytes
        .map(Some)
        .ok_or_else(|| format!("must be auto or a number of bytes from {least} to 65535"))
}

/// A VXLAN network identifier: 1 to 16777215 (24 bits).
pub fn vni(text: &str) -> Result<u32, String> {
    let vni = text.parse().ok().filter(|vni| (1..=Vxlan::MAX_VNI).contains(vni));
    vni.ok_or_else(|| format!("must be a number from 1 to {}", Vxlan::MAX_VNI))
}

/// A UDP port, 1 to 65535.
pub fn port(text: &str) -> Result<u16, String> {
    let port = text.parse().ok().filter(|port| *port != 0);
    port.ok_or_else(|| "must be a UDP port from 1 to 65535".into())
}

/// An interface name.
pub fn interface(text: &str) -> Result<IfName, String> {
    text.parse().map_err(|error: crate::net::ifname::IfNameError| error.to_string())
}

/// A path from the root, without `..`.
pub fn absolute(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    if path.is_absolute() && !path.components().any(|part| part == Component::ParentDir) {
        Ok(path)
    } else {
        Err("must be a path that begins with / and has no ..".into())
    }
}

/// [`absolute`], or `none`.
pub fn path_or_none(text: &str) -> Result<Option<PathBuf>, String> {
    if text == "none" { Ok(None) } else { absolute(text).map(Some) }
}

/// An address and port that only processes of this host reach.
pub fn loopback(text: &str) -> Result<SocketAddr, String> {
    let address: Option<SocketAddr> = text.parse().ok();
    let address = address.filter(|address| address.ip().is_loopback() && address.port() != 0);
    let right = "must be a loopback address and a port, as in 127.0.0.1:9104 or [::1]:9104: \
                 metrics name hosts and subnets, and nobody is asked for a password";
    address.ok_or_else(|| right.to_owned())
}

/// The CNI configuration: `.conflist`, or `.conf` (also `.json`) for the single-plugin form.
pub fn config_file(text: &str) -> Result<PathBuf, String> {
    let path = absolute(text)?;
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("conflist" | "conf" | "json") => Ok(path),
        _ => Err("must end in .conflist, .conf or .json: runtimes read nothing else".into()),
    }
}

/// An etcd key: begins with `/`, does not end with it.
pub fn key(text: &str) -> Result<String, String> {
    if text.starts_with('/') && !text.ends_with('/') && !text.contains('\0') {
        Ok(text.to_owned())
    } else {
        Err("must begin with / and not end with /".into())
    }
}

/// A host's name as a part of an etcd key.
pub fn node_name(text: &str) -> Result<NodeName, String> {
    text.parse().map_err(|error: NameError| error.to_string())
}

/// The name of a network: a letter or digit, then letters, digits, `_`, `.`, `-`.
///
/// Source: CNI SPEC §1, key `name`.
pub fn cni_name(text: &str) -> Result<String, String> {
    let rest = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
    if text.starts_with(|c: char| c.is_ascii_alphanumeric()) && text.chars().all(rest) {
        Ok(text.to_owned())
    } else {
        Err("must begin with a letter or digit and hold only letters, digits, '_', '.' and '-'"
            .into())
    }
}

/// The name of the plugin's file; not one that has another meaning.
pub fn plugin_type(text: &str) -> Result<String, String> {
    match text {
        "humanz-agent" | "loopback" => Err("has a meaning of its own; choose another name".into()),
        "" | "." | ".." => Err("must be the name of a file".into()),
        _ if text.contains(['/', '\0']) => Err("must be the name of a file, without /".into()),
        _ => Ok(text.to_owned()),
    }
}

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

/// Without a user and a password in a URL: nobody shall write them there, but somebody may have. As a
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
    fn metrics_are_given_to_this_host_alone() {
        for good in ["127.0.0.1:9104", "[::1]:9104", "127.8.9.1:1"] {
            assert_eq!(loopback(good).unwrap().to_string(), good);
        }
        for bad in
            ["0.0.0.0:9104", "[::]:9104", "192.0.2.1:9104", "127.0.0.1:0", "127.0.0.1", ":9104"]
        {
            assert!(loopback(bad).unwrap_err().contains("loopback"), "{bad} was taken");
        }
    }

    #[test]
    fn endpoints_are_listed_once() {
        assert_eq!(endpoints("a, b,a,").unwrap(), ["http://a:2379", "http://b:2379"]);
    }

    #[test]
    fn times_have_units_and_bounds() {
        let bounds = Duration::from_secs(1)..=Duration::from_secs(60);
        assert_eq!(duration("5s", bounds.clone()), Ok(Duration::from_secs(5)));
        assert_eq!(duration("1m", bounds.clone()), Ok(Duration::from_secs(60)));
        assert_eq!(duration("1500ms", bounds.clone()), Ok(Duration::from_millis(1500)));
        for bad in ["", "s", "0s", "61s", "5 s", "5h", "-1s", "99999999999999999999s"] {
            assert!(duration(bad, bounds.clone()).is_err(), "{bad:?} was taken");
        }
    }

    #[test]
    fn a_word_that_is_no_level_would_silence_the_log() {
        for good in ["info", "OFF", " warn , humanz::lease=debug", "a=trace,", "error,b = info"] {
            assert_eq!(log_filter(good), Ok(()), "{good:?}");
        }
        for bad in ["bogus", "info,humanz", "humanz=", "=info", "a=b=info", "a=loud", "info/x"] {
            assert!(log_filter(bad).is_err(), "{bad:?} was taken");
        }
    }

    #[test]
    fn an_address_must_be_reachable_for_others() {
        for bad in [
            "127.0.0.1",
            "0.0.0.0",
            "224.0.0.1",
            "fe80::1",
            "169.254.1.1",
            "192.0.2.1,192.0.2.2",
            "x",
        ] {
            assert!(address_per_family(bad).is_err(), "{bad:?} was taken");
        }
        let both = address_per_family("2001:db8::1, 192.0.2.1").unwrap();
        assert_eq!(both.v4, Some("192.0.2.1".parse().unwrap()));
        assert_eq!(both.v6, Some("2001:db8::1".parse().unwrap()));
    }

    #[test]
    fn names_with_a_meaning_are_refused() {
        for bad in ["humanz-agent", "loopback", "", "..", "a/b"] {
            assert!(plugin_type(bad).is_err(), "{bad:?} was taken");
        }
        for bad in ["", "a/b", "a b", "..", "hôte"] {
            assert!(node_name(bad).is_err(), "{bad:?} was taken");
        }
        for bad in ["", "-a", "te%%st", "a/b"] {
            assert!(cni_name(bad).is_err(), "{bad:?} was taken");
        }
    }

    #[test]
    fn an_mtu_leaves_room_for_ipv6() {
        assert_eq!(mtu("auto", true), Ok(None));
        assert_eq!(mtu("576", false), Ok(Some(576)));
        assert!(mtu("1279", true).is_err());
        assert!(mtu("65536", false).is_err());
    }

    #[test]
    fn a_key_is_a_path_without_an_end() {
        assert!(key("/humanz").is_ok());
        for bad in ["", "/", "humanz", "/humanz/"] {
            assert!(key(bad).is_err(), "{bad:?} was taken");
        }
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
