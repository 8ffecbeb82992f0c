//! Pure. Subnets, addresses, interfaces, ports and sizes.

use std::net::{IpAddr, SocketAddr};

use ipnetwork::IpNetwork;

use crate::lease::records::Vxlan;
use crate::net::{Family, IfName, PerFamily, subnet};
use crate::settings::values::list;

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

/// An address and port that only processes of this host reach.
pub fn loopback(text: &str) -> Result<SocketAddr, String> {
    let address: Option<SocketAddr> = text.parse().ok();
    let address = address.filter(|address| address.ip().is_loopback() && address.port() != 0);
    let right = "must be a loopback address and a port, as in 127.0.0.1:9104 or [::1]:9104: \
                 metrics name hosts and subnets, and no password is asked for";
    address.ok_or_else(|| right.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn an_mtu_leaves_room_for_ipv6() {
        assert_eq!(mtu("auto", true), Ok(None));
        assert_eq!(mtu("576", false), Ok(Some(576)));
        assert!(mtu("1279", true).is_err());
        assert!(mtu("65536", false).is_err());
    }
}
