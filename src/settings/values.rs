//! Pure. One value of a setting: text in, value or what is wrong (and what is right) out.

mod endpoint;
mod name;
mod network;

use std::ops::RangeInclusive;
use std::time::Duration;

use log::LevelFilter;

use crate::policy::compile::MarkBits;

pub use endpoint::{endpoints, without_secrets};
pub use name::{absolute, cni_name, config_file, group, key, node_name, path_or_none, plugin_type};
pub use network::{
    address_per_family, interface, loopback, margin, mtu, port, subnet, subnet_of,
    subnet_per_family, vni,
};

/// What to log: levels and `target=level`, with commas. To the logger any other word is a target of
/// its own, beside which nothing is logged.
pub fn log_filter(text: &str) -> Result<(), String> {
    let is_level = |text: &str| text.trim().parse::<LevelFilter>().is_ok();
    let is_right = |part: &str| match part.split_once('=') {
        Some((target, level)) => !target.is_empty() && is_level(level),
        None => part.is_empty() || is_level(part),
    };
    match text.split(',').map(str::trim).find(|part| !is_right(part)) {
        Some(part) => Err(format!(
            "{part:?} must be a level (off, error, warn, info, debug or trace) or target=level, as \
             in info,humanz::lease=debug"
        )),
        None => Ok(()),
    }
}

/// `0xffff0000`: bits of a connection's mark that stand beside each other.
pub fn mark_bits(text: &str) -> Result<MarkBits, String> {
    let number = text.strip_prefix("0x").and_then(|digits| u32::from_str_radix(digits, 16).ok());
    number.and_then(MarkBits::new).ok_or_else(|| {
        "must be at least 16 bits that stand beside each other, in hexadecimal, as in 0xffff0000".into()
    })
}

/// `true` or `false`, also `yes`/`no`, `on`/`off`, `1`/`0`.
pub fn boolean(text: &str) -> Result<bool, String> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "yes" | "on" | "1" => Ok(true),
        "false" | "no" | "off" | "0" => Ok(false),
        _ => Err("must be true or false".into()),
    }
}

/// The comma list `text` with every part through `parse`; an empty text is an empty list.
pub fn list<T>(text: &str, parse: impl Fn(&str) -> Result<T, String>) -> Result<Vec<T>, String> {
    let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
    parts.map(parse).collect()
}

/// `90s`, `2m`, `12h`, `500ms` or plain seconds, within `bounds`.
pub fn duration(text: &str, bounds: RangeInclusive<Duration>) -> Result<Duration, String> {
    let right = || {
        format!("must be a time from {:?} to {:?}, as in 5s or 2m", bounds.start(), bounds.end())
    };
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let count: u64 = text[..digits].parse().map_err(|_| right())?;
    let duration = match &text[digits..] {
        "ms" => Duration::from_millis(count),
        "" | "s" => Duration::from_secs(count),
        "m" => Duration::from_secs(count.saturating_mul(60)),
        "h" => Duration::from_secs(count.saturating_mul(3600)),
        _ => return Err(right()),
    };
    if bounds.contains(&duration) { Ok(duration) } else { Err(right()) }
}

/// A time from a second to an hour, or 0 for none.
pub fn interval_or_none(text: &str) -> Result<Option<Duration>, String> {
    let hour = Duration::from_secs(1)..=Duration::from_secs(3600);
    match duration(text, hour.clone()) {
        Ok(interval) => Ok(Some(interval)),
        Err(_) if duration(text, Duration::ZERO..=Duration::ZERO).is_ok() => Ok(None),
        Err(wrong) => Err(format!("{wrong}, or 0")),
    }
}

/// How old a key becomes, at least an hour; `off`: it is not changed by itself.
pub fn key_age(text: &str) -> Result<Option<Duration>, String> {
    if text == "off" {
        return Ok(None);
    }
    let year = Duration::from_secs(365 * 24 * 3600);
    let age = duration(text, Duration::from_secs(3600)..=year);
    age.map(Some).map_err(|wrong| format!("{wrong}, or off"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units_and_bounds() {
        let bounds = Duration::from_secs(1)..=Duration::from_secs(60);
        assert_eq!(duration("5s", bounds.clone()), Ok(Duration::from_secs(5)));
        assert_eq!(duration("1m", bounds.clone()), Ok(Duration::from_secs(60)));
        assert_eq!(duration("1500ms", bounds.clone()), Ok(Duration::from_millis(1500)));
        for bad in ["", "s", "0s", "61s", "5 s", "5h", "-1s", "99999999999999999999s"] {
            assert!(duration(bad, bounds.clone()).is_err(), "{bad:?} was taken");
        }
    }

    #[test]
    fn a_word_that_is_no_level_would_silence_the_log() {
        for good in ["info", "OFF", " warn , humanz::lease=debug", "a=trace,", "error,b = info"] {
            assert_eq!(log_filter(good), Ok(()), "{good:?}");
        }
        for bad in ["bogus", "info,humanz", "humanz=", "=info", "a=b=info", "a=loud", "info/x"] {
            assert!(log_filter(bad).is_err(), "{bad:?} was taken");
        }
    }
}
