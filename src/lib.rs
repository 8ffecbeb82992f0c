//! humanz: a pod network in one executable.
//!
//! # Map
//!
//! Imports point down this list only, [`agent`] and [`plugin`] never import each other, and no files
//! import each other in a circle (`tests/map.rs` verifies all of this).
//!
//! | room | responsibility | touches |
//! |---|---|---|
//! | `main.rs`, `allocator.rs`, `memory.rs` | name the program was called by → role → exit code; where its memory comes from, and how it is compared and moved | nothing |
//! | [`command`] | subcommands that print | stdout; kernel, files and etcd, which it changes only as the subcommand says |
//! | [`plugin`] | the CNI verbs | kernel, IPAM store, stdout |
//! | [`api`] | `Status`, metrics, HTTP on the agent's socket, the page's data | its sockets |
//! | [`uninstall`] | takes off this host what agent and plugin made | everything |
//! | [`agent`] | threads, triggers, reconcile, install | everything |
//! | [`inspect`] | one look at kernel, disk and cluster | everything, read only but for the files that it reads again after a start, and the sockets between agent and plugin |
//! | [`settings`] | variables, file, flags, defaults, exit codes | environment, one file |
//! | [`checks`] | what is wrong and where packets are lost → problems | nothing |
//! | [`plan`] | (wanted, found) → changes: bridge, routes, tunnels, firewall, host ports, pod | nothing |
//! | [`controller`] | keeps networks of the Kubernetes API in etcd, and the status of custom resources | etcd, the API |
//! | [`sources`] | policies, pods and members of groups as the Kubernetes API and etcd have them | their connections, what it keeps of them below `STATE_DIR` |
//! | [`flows`] | who connects to what: connections and denied packets, counted in bounded room | its sockets |
//! | [`policy`] | rules of every source, what they decide for a connection and why, and the table that enforces them | nothing |
//! | [`kube`] | client of the Kubernetes API; nodes as snapshots, lists and watches of other objects | the API, files with credentials |
//! | [`etcd`] | client, members, session, TLS | etcd, files with credentials |
//! | [`lease`] | records, claim, session state machine, restore, growth | nothing |
//! | [`ipam`] | address pool, file store, host-port claims | files below `dataDir` |
//! | [`nft`] | nf_tables codec, our tables, base chains of others | its socket, `iptables-legacy-save` |
//! | [`netlink`] | rtnetlink, conntrack, WireGuard: socket, codec, links, addresses, routes, events | sockets |
//! | [`os`] | files, inotify, namespaces, sysctls, ICMP echo, process | files, /proc, namespaces, sockets for echoes |
//! | [`cni`] | the CNI protocol as values | nothing |
//! | [`net`] | the field's words: subnet, MAC, interface and node name, time, problem | nothing |
//!
//! Policies have three rooms, so that what decides ([`policy`]) knows neither where objects come from ([`sources`])
//! nor what is counted ([`flows`]). [`controller`] runs once in a cluster, not on each host. [`uninstall`] takes
//! off what [`agent`] and [`plugin`] made, which do not know each other.
//!
//! # Data flow
//!
//! ```text
//! etcd ──snapshot──▶ lease ──peers──▶ plan(wanted, found) ──changes──▶ netlink, nft ──▶ kernel
//!                                          ▲                              │
//!                                          └────────── observed ──────────┘
//!
//! stdin, environment ──▶ cni::Request ──▶ plugin ──▶ ipam (claim) ──▶ netlink ──▶ kernel ──▶ stdout
//! (podman 5: stdin, arguments ──▶ cni::netavark ──▶ the same)
//!
//! inspect ──found──▶ checks ──problems──▶ agent ──status──▶ api, command
//! ```
//!
//! # Invariants
//!
//! 1. ADD and DEL never need the agent or etcd. If etcd, the agent or a peer is down, kernel state
//!    stays as it is.
//! 2. No address, subnet or host port has two owners: every claim is an exclusive create (`link(2)`
//!    for an address, the same under a lock for a port, one etcd transaction for a subnet).
//!    A subnet that another host has, too, gives no address to a new pod, and a machine whose name a
//!    living agent holds does not serve. An address that the kernel has for a running pod is not given
//!    to another one, whatever the store says.
//! 3. Whole states are compared, events are never applied; every plan can run twice without harm.
//! 4. What humanz made bears its mark (route protocol 104, link alias `humanz…`, nft tables
//!    `humanz…`). Nothing without the mark is removed, except a VXLAN device that somebody recreated
//!    without a mark under the name of a tunnel's.
//! 5. Nothing is removed before the first complete snapshot of etcd.
//! 6. A file whose first line says `//! Pure.` touches no clock, environment, file, socket or log, and calls no
//!    function of a file that might.
//! 7. What is found is a value and what is wrong is a `Problem`; text is made where it is shown, and
//!    no text of ours is parsed.

pub mod agent;
pub mod api;
pub mod checks;
pub mod cni;
pub mod command;
pub mod controller;
pub mod etcd;
pub mod flows;
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
pub mod policy;
pub mod settings;
pub mod sources;
pub mod uninstall;
