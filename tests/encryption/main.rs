//! Encryption between hosts: what keeps clear text in, on any kernel; the rest where the kernel has WireGuard, and
//! elsewhere that it is refused with the reason.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test stops at the first failure and may print"
)]

use humanz_test_support as support;

mod beside;
mod blocks;
mod capture;
mod guard;
mod guide;
mod hosts;
mod last_settings;
mod mtu;
mod preshared;
mod records;
mod refused;
mod rotation;
mod stream;
mod user_space;

const DUAL_STACK: &[(&str, &str)] = &[("IPV6_SUBNET", "fd10:244::/48")];

/// Both families, encrypted.
const ENCRYPTED: &[(&str, &str)] =
    &[("IPV6_SUBNET", "fd10:244::/48"), ("ENCRYPTION", "wireguard"), ("RESYNC_INTERVAL", "2s")];
