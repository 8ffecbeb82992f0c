//! Pure. The record that a host publishes about itself.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::num::NonZeroU16;
use std::str::FromStr;

use ipnetwork::IpNetwork;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use crate::lease::records::value::{LABEL_LIMIT, SCHEMA, label};
use crate::net::text::is_text;
use crate::net::{Family, Mac, PerFamily, PublicKey, subnet};

/// The value of `nodes/<hostname>`. Its machine id is the owner of the host's keys.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeRecord {
    schema: u32,
    #[serde(deserialize_with = "label")]
    pub machine_id: Box<str>,
    #[serde(deserialize_with = "label")]
    pub boot_id: Box<str>,
    /// Version of humanz that wrote the record.
    #[serde(deserialize_with = "label")]
    pub version: Box<str>,
    /// The host's pod subnets; in JSON a list.
    #[serde(serialize_with = "as_list", deserialize_with = "subnets")]
    pub subnets: PerFamily<IpNetwork>,
    /// The host's node addresses, next hops for others; in JSON a list, the first of each family counts.
    #[serde(serialize_with = "as_list", deserialize_with = "addresses")]
    pub addresses: PerFamily<IpAddr>,
    pub backend: Backend,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tunnel: Option<Tunnel>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wireguard: Option<WireguardEnd>,
    /// Longest packet between hosts in bytes, as measured by this host.
    pub mtu: u32,
    /// Its `POLICY_GROUP` ([`comparable_group`]).
    #[serde(default, deserialize_with = "label", skip_serializing_if = "str::is_empty")]
    pub policy_group: Box<str>,
    /// Fields of later versions, preserved when the record is written again.
    #[serde(flatten)]
    pub other: BTreeMap<Box<str>, Value>,
}

/// How a host can be reached by the others.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Backend {
    /// Through a route via its address.
    #[default]
    Direct,
    /// Through its tunnel.
    Vxlan,
    /// Through a route from the hosts on its segment, through its tunnel from the others.
    Auto,
    /// A word of a later version.
    Unknown(Box<str>),
}

/// The end of a VXLAN tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tunnel {
    pub mac: Mac,
    /// VXLAN network identifier, 24 bits.
    pub vni: u32,
    /// UDP port.
    pub port: u16,
}

/// The end of encrypted tunnels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WireguardEnd {
    pub public_key: PublicKey,
    /// UDP port.
    pub port: NonZeroU16,
    /// UDP port of the second device, which hosts have while one of them changes its key. `None`: a version that
    /// knows of no such change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rotation_port: Option<NonZeroU16>,
    /// The key of its second device while it changes keys: the one to come, and at last the one in use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<PublicKey>,
}

impl WireguardEnd {
    /// An end that changes no key.
    pub fn new(public_key: PublicKey, port: NonZeroU16) -> WireguardEnd {
        WireguardEnd { public_key, port, rotation_port: None, next: None }
    }

    /// The key that is claimed: before it is published.
    pub fn newest(&self) -> PublicKey {
        self.next.unwrap_or(self.public_key)
    }

    /// The keys of both devices, that of the first one first.
    pub fn keys(self) -> impl Iterator<Item = PublicKey> {
        std::iter::once(self.public_key).chain(self.next.filter(|next| *next != self.public_key))
    }
}

/// Identifier and port of a VXLAN tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vxlan {
    /// VXLAN network identifier, 1 to [`Vxlan::MAX_VNI`]: the same on all hosts.
    pub vni: u32,
    /// UDP port on which this host listens, not 0.
    pub port: u16,
}

impl Vxlan {
    /// The identifier has 24 bits. Source: RFC 7348 §5.
    pub const MAX_VNI: u32 = (1 << 24) - 1;
}

impl Tunnel {
    /// The tunnel end of the host with `subnets`; its MAC is derived from the first of them, so it is
    /// constant while the host has its subnet.
    pub fn of(subnets: &PerFamily<IpNetwork>, vxlan: Vxlan) -> Option<Tunnel> {
        let mac = Mac::of_subnet(*subnets.iter().next()?);
        Some(Tunnel { mac, vni: vxlan.vni, port: vxlan.port })
    }
}

impl NodeRecord {
    /// A record without the optional parts.
    pub fn new(machine_id: &str, boot_id: &str, version: &str) -> NodeRecord {
        NodeRecord {
            schema: SCHEMA,
            machine_id: machine_id.into(),
            boot_id: boot_id.into(),
            version: version.into(),
            subnets: PerFamily::default(),
            addresses: PerFamily::default(),
            backend: Backend::Direct,
            tunnel: None,
            wireguard: None,
            mtu: 0,
            policy_group: Box::default(),
            other: BTreeMap::new(),
        }
    }

    /// `None`: the host does not say it, as with `SUBNET_SOURCE=kubernetes`.
    pub fn known_mtu(&self) -> Option<u32> {
        Some(self.mtu).filter(|mtu| *mtu > 0)
    }
}

/// Of a host where policies are on, and no group is set.
pub const NO_GROUP: &str = "-";

/// A group as hosts compare it, of a host where policies are on. Empty, as where nothing is to be compared, if it is
/// too long for a record.
pub fn comparable_group(group: Option<impl ToString>) -> Box<str> {
    let text = group.map_or_else(|| NO_GROUP.to_owned(), |group| group.to_string());
    Some(text).filter(|text| text.len() <= LABEL_LIMIT).unwrap_or_default().into()
}

impl FromStr for Backend {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Backend, &'static str> {
        const LIMIT: usize = 32;
        let is_word = text.len() <= LIMIT && text.bytes().all(|byte| byte.is_ascii_graphic());
        Ok(match text {
            "direct" => Backend::Direct,
            "vxlan" => Backend::Vxlan,
            "auto" => Backend::Auto,
            _ if is_word => Backend::Unknown(text.into()),
            _ => return Err("backend is not one short word"),
        })
    }
}

is_text!(Backend);

impl fmt::Display for Backend {
    /// `direct`, `vxlan`, `auto`, or the unknown word.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Backend::Direct => f.write_str("direct"),
            Backend::Vxlan => f.write_str("vxlan"),
            Backend::Auto => f.write_str("auto"),
            Backend::Unknown(word) => f.write_str(word),
        }
    }
}

fn as_list<T: Serialize, S: Serializer>(
    values: &PerFamily<T>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(values.iter())
}

fn subnets<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PerFamily<IpNetwork>, D::Error> {
    let mut subnets = PerFamily::default();
    for text in Vec::<String>::deserialize(deserializer)? {
        let subnet = subnet::parse(&text).map_err(D::Error::custom)?;
        let family = subnet::family(subnet);
        if subnets.get(family).is_some() {
            return Err(D::Error::custom(format!("subnets: more than one {family} subnet")));
        }
        subnets.set(family, Some(subnet));
    }
    Ok(subnets)
}

fn addresses<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PerFamily<IpAddr>, D::Error> {
    let mut addresses = PerFamily::default();
    for address in Vec::<IpAddr>::deserialize(deserializer)? {
        let family = Family::of(address);
        if addresses.get(family).is_none() {
            addresses.set(family, Some(address));
        }
    }
    Ok(addresses)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::records::RecordError;

    const FULL: &str = r#"{"schema":1,"machineId":"m","bootId":"b","version":"0.1.0","subnets":["10.244.3.0/24","fd00:0:0:3::/64"],"addresses":["192.0.2.7","2001:db8::7"],"backend":"direct","tunnel":{"mac":"0a:58:00:00:00:01","vni":4096,"port":8472},"wireguard":{"publicKey":"BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc=","port":10401},"mtu":1500,"policyGroup":"default/base","later":{"x":1}}"#;

    #[test]
    fn a_record_is_read_back_as_written_with_the_fields_of_later_versions() {
        assert_eq!(NodeRecord::parse(FULL.as_bytes()).unwrap().to_json(), FULL);
    }

    #[test]
    fn a_group_too_long_for_a_record_is_not_compared() {
        let long = |bytes| comparable_group(Some("g".repeat(bytes)));
        assert_eq!((long(LABEL_LIMIT).len(), &*long(LABEL_LIMIT + 1)), (LABEL_LIMIT, ""));
        assert_eq!(&*comparable_group(None::<String>), NO_GROUP);
    }

    #[test]
    fn an_unknown_backend_is_preserved() {
        let text = FULL.replace("direct", "carrier-pigeon");
        let record = NodeRecord::parse(text.as_bytes()).unwrap();
        assert_eq!(record.backend, Backend::Unknown("carrier-pigeon".into()));
        assert_eq!(record.to_json(), text);
    }

    #[test]
    fn invalid_records_are_refused_with_the_reason() {
        let check = |from: &str, to: &str, reason: &str| {
            let error = NodeRecord::parse(FULL.replace(from, to).as_bytes()).unwrap_err();
            assert!(error.to_string().contains(reason), "{to}: {error}");
        };
        check("10.244.3.0/24", "10.244.3.1/24", "host bits");
        check("10.244.3.0/24", "; reboot", "not a subnet");
        check("fd00:0:0:3::/64", "10.1.0.0/16", "more than one IPv4");
        check("192.0.2.7", "localhost", "IP address");
        check("0.1.0", "\\u001b[2J", "printable");
        check(
            "\"machineId\":\"m\"",
            &format!("\"machineId\":\"{}\"", "m".repeat(129)),
            "printable",
        );
        check("default/base", "\\u001b[2J", "printable");
        check("direct", &"x".repeat(33), "one short word");
        check("1500", &format!("\"{}\"", "y".repeat(9000)), "…");
        check("1500", "\"big\"", "u32");
        check("1500", "-1", "u32");
        check("\"schema\":1", "\"schema\":2", "schema 2");
        check("\"schema\":1,", "", "schema");
        check("0a:58:00:00:00:01", "ff:ff:ff:ff:ff:ff", "multicast");
        check("\"machineId\":\"m\"", "\"machineId\":7", "string");
        check("BwcHBwcH", "BwcHBwc", "not a WireGuard key");
        check("BwcHBwcH", "\\u001b[2J", "not a WireGuard key");
        check("10401", "0", "nonzero");
        check(FULL, "[]", "not valid");
        check(FULL, "null", "not valid");
    }

    #[test]
    fn a_megabyte_of_json_is_not_even_parsed() {
        let mut text = FULL.to_owned().into_bytes();
        text.resize(1 << 20, b' ');
        assert!(matches!(NodeRecord::parse(&text), Err(RecordError::TooLong { .. })));
        let deep = format!("{{\"schema\":{}", "[".repeat(10_000));
        assert!(matches!(NodeRecord::parse(deep.as_bytes()), Err(RecordError::Json(_))));
    }
}
