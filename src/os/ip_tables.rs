//! Translation of IPv4 addresses outside nftables.

use std::fs::File;
use std::io::{self, BufRead, BufReader};

use crate::os::files;

/// The tables of iptables-legacy, one per line.
const LEGACY: &str = "/proc/net/ip_tables_names";
/// More tables than the kernel has.
const MANY: usize = 16;
/// The services of IPVS after [`IPVS_HEADER`] lines.
const IPVS: &str = "/proc/net/ip_vs";
const IPVS_HEADER: usize = 3;

/// The network namespace of the calling thread has the table `nat` of iptables-legacy, or a service of
/// IPVS.
///
/// # Errors
/// A file in /proc cannot be read.
pub fn beside_nft() -> io::Result<bool> {
    let legacy = first(LEGACY, MANY)?.iter().any(|table| table == "nat");
    Ok(legacy || first(IPVS, IPVS_HEADER + 1)?.len() > IPVS_HEADER)
}

/// The first lines of a file, which may have megabytes.
fn first(path: &str, lines: usize) -> io::Result<Vec<String>> {
    let Some(file) = files::found(File::open(path))? else { return Ok(Vec::new()) };
    BufReader::new(file).lines().take(lines).collect()
}
