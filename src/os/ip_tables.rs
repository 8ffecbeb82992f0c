//! Who translates addresses of IPv4 without nftables.

use std::fs::File;
use std::io::{self, BufRead, BufReader, ErrorKind};

/// The tables of iptables-legacy, one a line; absent without it.
const LEGACY: &str = "/proc/net/ip_tables_names";
/// More tables than the kernel has.
const MANY: usize = 16;
/// The services of IPVS below [`IPVS_HEADER`] lines; absent without it.
const IPVS: &str = "/proc/net/ip_vs";
const IPVS_HEADER: usize = 3;

/// In the network namespace of the calling thread there is iptables-legacy's table `nat`, or a
/// service of IPVS.
///
/// # Errors
/// Of reading one of two files in /proc.
pub fn beside_nft() -> io::Result<bool> {
    let legacy = first(LEGACY, MANY)?.iter().any(|table| table == "nat");
    Ok(legacy || first(IPVS, IPVS_HEADER + 1)?.len() > IPVS_HEADER)
}

/// The first lines of a file, which the kernel may go on writing for megabytes.
fn first(path: &str, lines: usize) -> io::Result<Vec<String>> {
    match File::open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
        Ok(file) => BufReader::new(file).lines().take(lines).collect(),
    }
}
