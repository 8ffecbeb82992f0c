//! Pure. A profile of a tenant as its object says it.

use serde_json::Value;

use crate::cni::Limit;
use crate::policy::profile::{Dscp, NetProfile};
use crate::policy::read::fields::{Fault, ObjectField};

/// The profile.
///
/// ```json
/// {"dscp": 46, "egressRate": "100M", "egressBurst": "2M", "ingressRate": "1G"}
/// ```
///
/// `dscp`: 0 to 63; without it packets stay as pods mark them. `egressRate`: bits a second that a pod sends, as a
/// number or with `k`, `M`, `G` or `T`; `egressBurst`: bits that pass at once after a silence. `ingressRate` and `ingressBurst`: the same for what it receives.
///
/// # Errors
/// A field that is not understood.
pub fn read(spec: &Value) -> Result<NetProfile, Fault> {
    let spec = ObjectField::root(spec);
    spec.only(&["dscp", "egressRate", "egressBurst", "ingressRate", "ingressBurst", "schema"])?;
    Ok(NetProfile {
        dscp: spec.get("dscp").map(|field| dscp(&field)).transpose()?,
        egress: limit(&spec, "egressRate", "egressBurst")?,
        ingress: limit(&spec, "ingressRate", "ingressBurst")?,
    })
}

/// The limit of one direction.
fn limit(spec: &ObjectField<'_>, rate: &str, burst: &str) -> Result<Option<Limit>, Fault> {
    let bits = |name, least| spec.get(name).map(|field| bits(&field, least)).transpose();
    match (bits(rate, LEAST_RATE)?, bits(burst, 1)?) {
        (Some(rate_bits), burst_bits) => Ok(Some(Limit { rate_bits, burst_bits })),
        (None, Some(_)) => Err(spec.fault(format!("{burst} needs {rate}"))),
        (None, None) => Ok(None),
    }
}

/// Bits a second of the slowest limit: a byte.
const LEAST_RATE: u64 = 8;

/// Thousands, and so on.
const UNITS: [(char, u64); 4] =
    [('k', 1_000), ('M', 1_000_000), ('G', 1_000_000_000), ('T', 1_000_000_000_000)];

/// At least `least` bits.
fn bits(field: &ObjectField<'_>, least: u64) -> Result<u64, Fault> {
    let of_text = |text: &str| {
        let with_unit = UNITS.iter().find_map(|(unit, by)| Some((text.strip_suffix(*unit)?, *by)));
        let (digits, by) = with_unit.unwrap_or((text, 1));
        let is_number = digits.bytes().all(|byte| byte.is_ascii_digit());
        let number = is_number.then(|| digits.parse::<u64>().ok()).flatten()?;
        number.checked_mul(by)
    };
    let value = field.value();
    let bits = value.as_u64().or_else(|| value.as_str().and_then(of_text));
    bits.filter(|bits| *bits >= least).ok_or_else(|| {
        field.fault(format!("must be at least {least} bits: a number, or one with k, M, G or T"))
    })
}

fn dscp(field: &ObjectField<'_>) -> Result<Dscp, Fault> {
    let number = field.number(0..=Dscp::MAX.into())?;
    let number = u8::try_from(number).unwrap_or(u8::MAX);
    number.try_into().map_err(|error| field.fault(format!("{error}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn code_points_are_numbers_or_their_digits() {
        for (spec, wanted) in [
            (json!({"dscp": 46}), Some(46)),
            (json!({"dscp": "0"}), Some(0)),
            (json!({"dscp": null}), None),
            (json!({"schema": 1}), None),
        ] {
            assert_eq!(read(&spec).unwrap().dscp.map(Dscp::number), wanted, "{spec}");
        }
    }

    #[test]
    fn rates_are_bits_with_the_units_of_kubernetes() {
        let limit = |rate_bits, burst_bits| Some(Limit { rate_bits, burst_bits });
        for (spec, wanted) in [
            (json!({"egressRate": 8}), limit(8, None)),
            (json!({"egressRate": "64k", "egressBurst": 80}), limit(64_000, Some(80))),
            (
                json!({"egressRate": "100M", "egressBurst": "2M"}),
                limit(100_000_000, Some(2_000_000)),
            ),
            (json!({"egressRate": "18T"}), limit(18_000_000_000_000, None)),
            (json!({"egressRate": u64::MAX}), limit(u64::MAX, None)),
        ] {
            assert_eq!(read(&spec).unwrap().egress, wanted, "{spec}");
            let text = spec.to_string().replace("egress", "ingress");
            let received = read(&serde_json::from_str(&text).unwrap()).unwrap();
            assert_eq!((received.egress, received.ingress), (None, wanted), "{text}");
        }
    }

    #[test]
    fn what_is_no_profile_is_refused_with_its_field() {
        for (spec, why) in [
            (json!({"dscp": 64}), "dscp: must be a number from 0 to 63"),
            (json!({"dscp": -1}), "dscp: must be a number"),
            (json!({"dscp": 4.5}), "dscp: must be a number"),
            (json!({"dscp": "ef"}), "dscp: must be a number"),
            (json!({"dscp": [46]}), "dscp: must be a number"),
            (json!({"egressRate": 7}), "egressRate: must be at least 8 bits"),
            (json!({"egressRate": "10m"}), "egressRate: must be at least 8 bits"),
            (json!({"egressRate": "10Mbps"}), "egressRate: must be at least 8 bits"),
            (json!({"egressRate": "1MM"}), "egressRate: must be at least 8 bits"),
            (json!({"egressRate": "-8"}), "egressRate: must be at least 8 bits"),
            (json!({"egressRate": "99999999999T"}), "egressRate: must be at least 8 bits"),
            (json!({"egressRate": [8]}), "egressRate: must be at least 8 bits"),
            (json!({"egressBurst": 80}), "egressBurst needs egressRate"),
            (json!({"egressRate": 80, "ingressBurst": 80}), "ingressBurst needs ingressRate"),
            (json!({"ingressRate": "1m"}), "ingressRate: must be at least 8 bits"),
            (json!({"egressRate": "8k", "egressBurst": 0}), "egressBurst: must be at least 1 bits"),
            (json!({"dcsp": 46}), "field \"dcsp\" is not known"),
            (json!("gold"), "must be an object"),
        ] {
            let refused = read(&spec).unwrap_err().to_string();
            assert!(refused.contains(why), "{spec}: {refused}");
        }
    }
}
