//! Subnets whose addresses are not given out, because they are not this host's any more.
//!
//! The agent closes them; what it wrote holds without it, too.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;
use std::time::Duration;

use ipnetwork::IpNetwork;
use serde::{Deserialize, Serialize};

use crate::ipam::error::StoreError;
use crate::ipam::layout::{read, remove};
use crate::ipam::pool::RangeSet;
use crate::ipam::range::Range;
use crate::ipam::store::Store;
use crate::net::subnet;

/// All addresses of both families, with the length 0.
const EVERYTHING: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpAddr::V6(Ipv6Addr::UNSPECIFIED)];

/// The content of the file `closed`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Closed {
    pub subnets: Vec<IpNetwork>,
    /// The problem, and what to do.
    pub why: String,
}

impl Store {
    /// Closes `closed` instead of what was closed before; `None` opens all. Gives the addresses that are
    /// reserved: once a subnet is closed there will be no more.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn close(
        &self,
        closed: Option<&Closed>,
        wait: Duration,
    ) -> Result<Vec<IpAddr>, StoreError> {
        let locked = self.lock(wait)?;
        let path = self.closed_file();
        match closed {
            Some(closed) => {
                let text = serde_json::to_vec(closed).expect("lists and strings serialise");
                self.layout.replace(&path, &text)?;
            }
            None => drop(remove(&path)?),
        }
        drop(locked);
        self.taken()
    }

    /// What is closed. An invalid file closes everything.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn closed(&self) -> Result<Option<Closed>, StoreError> {
        let path = self.closed_file();
        let Some(bytes) = read(&path)? else { return Ok(None) };
        Ok(Some(serde_json::from_slice(&bytes).unwrap_or_else(|error| Closed {
            subnets: EVERYTHING.map(|zero| subnet::with_prefix(zero, 0)).to_vec(),
            why: format!("{} is invalid ({error})", path.display()),
        })))
    }

    /// Why no address of `sets` is given out, if that is so.
    ///
    /// # Errors
    /// [`StoreError::Closed`], [`StoreError::Io`].
    pub fn check_open(&self, sets: &[RangeSet]) -> Result<(), StoreError> {
        let Some(Closed { subnets, why }) = self.closed()? else { return Ok(()) };
        let ranges = sets.iter().flat_map(RangeSet::ranges).map(Range::subnet);
        let mut closed = ranges.filter(|range| subnets.iter().any(|s| subnet::overlap(*s, *range)));
        closed.next().map_or(Ok(()), |subnet| Err(StoreError::Closed { subnet, why }))
    }

    fn closed_file(&self) -> PathBuf {
        self.dir().join("closed")
    }
}
