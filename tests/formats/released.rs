//! The parsers of 0.1.0: the shapes of its records, and nothing else of it.
#![allow(dead_code, reason = "that a field can be read is all that is asked of it")]

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnetwork::IpNetwork;
use serde::Deserialize;
use serde::de::DeserializeOwned;

/// The schema of every record.
const SCHEMA: u32 = 1;

/// A pod's reservation.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StoreEntry {
    pub schema: u32,
    #[serde(rename = "containerID")]
    pub container_id: String,
    pub ifname: String,
    pub addresses: Vec<IpAddr>,
    pub pod: Option<String>,
    pub netns: Option<String>,
    pub boot_id: String,
    pub time: u64,
}

/// The record of a host.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Node {
    pub schema: u32,
    pub machine_id: String,
    pub boot_id: String,
    pub version: String,
    pub subnets: Vec<IpNetwork>,
    pub addresses: Vec<IpAddr>,
    pub backend: String,
    pub tunnel: Option<Tunnel>,
    pub mtu: u32,
}

#[derive(Debug, Deserialize)]
pub struct Tunnel {
    pub mac: String,
    pub vni: u32,
    pub port: u16,
}

/// The settings of the network.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Config {
    pub schema: u32,
    pub id: String,
    pub ip_subnet: Option<IpNetwork>,
    pub ip_subnet_margin: Option<u8>,
    pub ipv6_subnet: Option<IpNetwork>,
    pub ipv6_subnet_margin: Option<u8>,
    pub backend: String,
    #[serde(default)]
    pub rebuilt_from: Vec<Ancestor>,
}

#[derive(Debug, Deserialize)]
pub struct Ancestor {
    pub id: String,
    pub revision: i64,
}

/// The liveness key.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Alive {
    pub schema: u32,
    pub machine_id: String,
    pub since: String,
}

type Kept<K, V> = (K, V, i64, i64);

/// The last known good state.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct State {
    pub host: String,
    pub machine_id: String,
    pub lease: Lease,
    pub revision: i64,
    pub config: Option<Kept<(), Config>>,
    pub hosts: Vec<Kept<String, IpNetwork>>,
    pub nodes: Vec<Kept<String, Node>>,
    pub claims: Vec<Kept<IpNetwork, String>>,
}

#[derive(Debug, Deserialize)]
pub struct Lease {
    pub subnets: BTreeMap<String, IpNetwork>,
}

/// # Panics
/// If 0.1.0 could not read it.
pub fn read<T: DeserializeOwned>(text: &str) -> T {
    let value: serde_json::Value = serde_json::from_str(text).unwrap();
    assert_eq!(value["schema"], SCHEMA, "{text}");
    serde_json::from_value(value).unwrap_or_else(|e| panic!("{e}: {text}"))
}

/// The state file: its head has the schema and a checksum of the rest.
///
/// # Panics
/// If 0.1.0 could not read it.
pub fn state(text: &str) -> State {
    #[derive(Deserialize)]
    struct Head {
        schema: u32,
        checksum: String,
    }
    let (head, state) = text.split_once(r#","state":"#).unwrap();
    let head: Head = serde_json::from_str(&format!("{head}}}")).unwrap();
    let state = state.trim_end().strip_suffix('}').unwrap();
    let sum = format!("{:016x}", humanz::net::hash::stable(&[state]));
    assert_eq!((head.schema, head.checksum), (SCHEMA, sum));
    serde_json::from_str(state).unwrap_or_else(|e| panic!("{e}: {state}"))
}

/// How a plugin proves that a link is its pod's, for names that are not long.
pub fn owns(alias: &str, network: &str, container_id: &str, ifname: &str) -> bool {
    let rest = alias.strip_prefix(&format!("humanz {network} {container_id} {ifname}"));
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
}
