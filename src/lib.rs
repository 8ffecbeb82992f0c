//! humanz: a pod network in one executable.
//!
//! # Map
//!
//! Imports point down this list only; `plugin` and what is above it never import each other.
//!
//! | place | what lives there |
//! |---|---|
//! | `main.rs` | name the program was called by → role → exit code |
//! | [`command`] | the command line: the agent's start, and subcommands that show and change things |
//! | [`agent`] | the host agent: settings and their reload, the loop, installation, what it tells on its host |
//! | [`plugin`] | the CNI verbs; the only writer of stdout |
//! | [`lease`] | who owns which subnet: records and choice (pure), the etcd registry, last known good |
//! | [`ipam`] | which pod owns which address and which port of the host: pool (pure), file store |
//! | [`plan`] | (wanted, found) → changes, pure: bridge, routes, tunnels, firewall, bandwidth, pod |
//! | [`linux`] | observe and apply: netlink, nftables, namespaces, sysctls, files |
//! | [`cni`] | the CNI protocol as values, pure |
//! | [`net`] | the field's words, pure: subnet, MAC, interface name, host port, moment |
//!
//! # Data flow
//!
//! ```text
//! etcd ──snapshot──▶ lease ──peers──▶ plan(wanted, found) ──changes──▶ linux ──▶ kernel
//!                                          ▲                             │
//!                                          └────────── observed ─────────┘
//!
//! stdin, environment ──▶ cni::Request ──▶ plugin ──▶ ipam (claim) ──▶ linux ──▶ kernel ──▶ stdout
//! ```
//!
//! # Invariants
//!
//! 1. ADD and DEL never need the agent or etcd; losing etcd, the agent or a peer's liveness
//!    changes nothing in the kernel.
//! 2. No address, subnet or host port has two owners: every claim is an exclusive create (`link(2)`
//!    for an address, the same under a lock for a port, one etcd transaction for a subnet).
//! 3. Whole states are compared, never events applied; every plan is harmless when run twice.
//! 4. What humanz made bears its mark (route protocol 104, link alias `humanz…`, nft tables
//!    `humanz…`); nothing without the mark is removed, but for a VXLAN device that somebody
//!    made anew, without a mark, under the name of a tunnel's. A CNI configuration has no room for
//!    one: where settings have moved it, the former is removed while its hash is the recorded one.
//! 5. Nothing is removed before the first complete snapshot of etcd.
//! 6. A file whose first line says `//! Pure.` touches no clock, file, socket or environment.

pub mod agent;
pub mod api;
pub mod checks;
pub mod cni;
pub mod command;
pub mod etcd;
pub mod inspect;
pub mod ipam;
pub mod kube;
pub mod lease;
pub mod net;
pub mod netlink;
pub mod nft;
pub mod os;
pub mod plan;
pub mod plugin;
pub mod settings;
