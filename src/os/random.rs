//! Random numbers for marks and delays; and, from the kernel, for secrets.

use std::fs::File;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, Read};
use std::time::Duration;

/// 32 random bytes for a secret. Early after boot it waits until the kernel has collected enough.
///
/// Source: random(4).
///
/// # Errors
/// /dev is missing.
pub fn secret() -> io::Result<[u8; 32]> {
    let mut bytes = [0; 32];
    File::open("/dev/random")?.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// 64 random bits, not for secrets, from the keys that the standard library draws for its hash maps.
fn bits() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// 32 hexadecimal digits.
pub fn mark() -> String {
    format!("{:016x}{:016x}", bits(), bits())
}

/// A number below `bound`, which is not zero.
pub fn below(bound: usize) -> usize {
    (bits() % bound.max(1) as u64) as usize
}

/// Half to all of `longest`, so that hosts that fail together do not retry together.
pub fn jittered(longest: Duration) -> Duration {
    longest.mul_f64(0.5 + fraction() / 2.0)
}

/// Zero to `longest`, so that hosts that collided do not collide again.
pub fn up_to(longest: Duration) -> Duration {
    longest.mul_f64(fraction())
}

/// 0 to 1.
fn fraction() -> f64 {
    (bits() >> 11) as f64 / (1u64 << 53) as f64
}
