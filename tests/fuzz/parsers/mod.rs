//! Invariants for arbitrary foreign bytes, one function for each format.
//!
//! A function returns for every input, and asserts the invariants that the product relies on.
//! The fuzz targets call these, and so does the replay of the corpus.

mod arguments;
mod config;
mod forward;
mod netlink;
mod networks;
mod policies;
mod questions;
mod records;
mod state;
mod store;

use std::net::IpAddr;

use humanz::netlink::{Replies, Reply};

/// A format of foreign bytes, and its test function.
pub type Target = (&'static str, fn(&[u8]));

/// All kinds, by the names of their folders in the corpus.
pub const TARGETS: [Target; 13] = [
    ("annotations", config::annotations),
    ("arguments", arguments::arguments),
    ("config", config::config),
    ("forward", forward::forward),
    ("netlink", netlink::netlink),
    ("networks", networks::networks),
    ("nft", netlink::nft),
    ("packets", netlink::packets),
    ("policies", policies::policies),
    ("questions", questions::questions),
    ("records", records::records),
    ("state", state::state),
    ("store", store::store),
];

/// Runs the test function of that format on `data`.
pub fn run(name: &str, data: &[u8]) {
    let (_, target) = TARGETS.iter().find(|(known, _)| *known == name).expect("a known target");
    target(data);
}

/// The parts of `data` between zero bytes; missing ones are empty.
fn parts<const N: usize>(data: &[u8]) -> [&[u8]; N] {
    let mut parts = data.splitn(N, |byte| *byte == 0);
    std::array::from_fn(|_| parts.next().unwrap_or_default())
}

/// The messages in a datagram, up to the first that is malformed.
fn replies(datagram: &[u8]) -> impl Iterator<Item = Reply<'_>> {
    let mut before = datagram.len() + 1;
    Replies(datagram).map_while(move |reply| {
        let reply = reply.ok()?;
        assert!(reply.body().len() < before, "a message is longer than what is left");
        before -= reply.body().len();
        Some(reply)
    })
}

/// An address out of 4 or 16 bytes, else some address.
fn some_address(bytes: &[u8]) -> IpAddr {
    match (<[u8; 4]>::try_from(bytes), <[u8; 16]>::try_from(bytes)) {
        (Ok(v4), _) => v4.into(),
        (_, Ok(v6)) => v6.into(),
        _ => IpAddr::from([10, 244, 1, 2]),
    }
}
