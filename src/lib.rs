//! humanz: a pod network in one executable.
//!
//! # Map
//!
//! `main.rs` turns the name that the program was called by into a role, and a role's exit code into
//! its own. Imports point down this list only, `agent` and `plugin` never import each other, and no
//! files import each other in a circle (`tests/map.rs` holds all of this):
//!
//! | folder | what it holds |
//! |---|---|
//! | [`command`] | the command line: the agent's start, and subcommands that print |
//! | [`plugin`] | the CNI verbs; the only writer of the CNI reply |
//! | [`api`] | status, metrics and the page, by HTTP on the agent's socket |
//! | [`agent`] | the host agent: triggers, the reconcile, installation, uninstallation |
//! | [`inspect`] | one look at kernel, disk and cluster, read only |
//! | [`settings`] | variables, file, flags, defaults, exit codes |
//! | [`checks`] | what is wrong and where packets are lost, pure |
//! | [`plan`] | (wanted, found) → changes, pure: bridge, routes, tunnels, firewall, bandwidth, pod |
//! | [`kube`] | client of the Kubernetes API: nodes as snapshots |
//! | [`etcd`] | client of etcd: members, session, TLS |
//! | [`lease`] | which host owns which subnet, pure: records, claim, session, restore, growth |
//! | [`ipam`] | which pod owns which address and which host port: pool, file store |
//! | [`nft`] | nf_tables: codec, our tables, base chains of others |
//! | [`netlink`] | rtnetlink and connection tracking: socket, codec, objects |
//! | [`os`] | files, inotify, network namespaces, sysctls, processes |
//! | [`cni`] | the CNI protocol as values, pure |
//! | [`net`] | the field's words, pure: subnet, MAC, interface name, host port, time |
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
