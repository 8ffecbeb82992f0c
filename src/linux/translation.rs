//! Who translates addresses of IPv4 without nftables.

use std::fs;
use std::io::{self, ErrorKind};

/// The tables of iptables-legacy, one a line; absent without it.
const LEGACY: &str = "/proc/net/ip_tables_names";
/// The services of IPVS below [`IPVS_HEADER`] lines; absent without it.
const IPVS: &str = "/proc/net/ip_vs";
const IPVS_HEADER: usize = 3;

/// In the network namespace of the calling thread there is iptables-legacy's table `nat`, or a
/// service of IPVS.
///
/// # Errors
/// Of reading one of two files in /proc.
pub fn beside_nft() -> io::Result<bool> {
    let legacy = read(LEGACY)?.lines().any(|table| table == "nat");
    Ok(legacy || read(IPVS)?.lines().count() > IPVS_HEADER)
}

fn read(path: &str) -> io::Result<String> {
    match fs::read_to_string(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(String::new()),
        outcome => outcome,
    }
}
