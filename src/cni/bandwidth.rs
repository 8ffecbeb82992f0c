//! Pure. Bandwidth limits of configurations and runtimes.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::cni::json::JsonField;

/// The limits of a pod's interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bandwidth {
    /// Toward the pod.
    pub ingress: Option<Limit>,
    /// From the pod.
    pub egress: Option<Limit>,
}

/// The limit of one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limit {
    /// Bits per second, at least 8.
    pub rate_bits: u64,
    /// Bits, at least 1; absent: humanz chooses.
    pub burst_bits: Option<u64>,
}

/// From this value on a burst is a runtime's placeholder for "any": containerd writes 4294967295,
/// others the largest signed number of 32 bits.
const PLACEHOLDER_BITS: u64 = i32::MAX as u64;

impl Bandwidth {
    pub fn is_empty(&self) -> bool {
        *self == Bandwidth::default()
    }

    /// The keys `ingressRate`, `ingressBurst`, `egressRate` and `egressBurst` of an object; 0 is
    /// absent.
    ///
    /// Source: the reference plugin `bandwidth`, which refuses a rate without a burst.
    pub(super) fn read(field: &JsonField) -> Bandwidth {
        Bandwidth {
            ingress: limit(field, "ingressRate", "ingressBurst"),
            egress: limit(field, "egressRate", "egressBurst"),
        }
    }
}

fn limit(field: &JsonField, rate: &str, burst: &str) -> Option<Limit> {
    let rate_bits = bits(field, rate);
    let burst_bits = bits(field, burst);
    match (rate_bits, burst_bits) {
        (Some(1..8), _) => field.get(rate)?.refuse("0 (no limit) or at least 8 bits per second"),
        (Some(rate_bits), burst_bits) => {
            let burst_bits = burst_bits.filter(|bits| *bits < PLACEHOLDER_BITS);
            Some(Limit { rate_bits, burst_bits })
        }
        (None, Some(_)) if !is_wrong(field, rate) => {
            field.fault_at(burst, format!("requires {rate}"));
            None
        }
        (None, _) => None,
    }
}

fn bits(field: &JsonField, key: &str) -> Option<u64> {
    let field = field.get(key)?;
    let bits = field.value().as_u64();
    bits.or_else(|| field.refuse("a whole number of bits")).filter(|bits| *bits != 0)
}

/// `key` is not a number, which has been reported.
fn is_wrong(field: &JsonField, key: &str) -> bool {
    field.get(key).is_some_and(|field| field.value().as_u64().is_none())
}

/// One of the four keys is set.
pub(super) fn is_set(field: &JsonField) -> bool {
    let keys = ["ingressRate", "ingressBurst", "egressRate", "egressBurst"];
    keys.iter().any(|key| field.get(key).is_some_and(|field| field.value() != &Value::from(0)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cni::json::{FieldError, FieldErrors};

    fn read(document: Value) -> (Bandwidth, Vec<String>) {
        let faults = FieldErrors::default();
        let bandwidth = Bandwidth::read(&JsonField::root(&document, &faults));
        (bandwidth, faults.into_vec().iter().map(FieldError::to_string).collect())
    }

    fn ingress(document: Value) -> Option<Limit> {
        let (bandwidth, faults) = read(document);
        assert_eq!((bandwidth.egress, faults), (None, vec![]));
        bandwidth.ingress
    }

    #[test]
    fn each_direction_has_its_own_limit() {
        let keys = json!({ "ingressRate": 8000, "ingressBurst": 80,
            "egressRate": 16_000_000_000u64, "egressBurst": 0 });
        let (bandwidth, faults) = read(keys);
        let limit = |rate_bits, burst_bits| Some(Limit { rate_bits, burst_bits });
        assert_eq!(bandwidth.ingress, limit(8000, Some(80)));
        assert_eq!(bandwidth.egress, limit(16_000_000_000, None));
        assert_eq!(faults, Vec::<String>::new());
    }

    #[test]
    fn zero_is_no_limit() {
        assert_eq!(ingress(json!({ "ingressRate": 0, "ingressBurst": 0 })), None);
        assert_eq!(ingress(json!({})), None);
    }

    #[test]
    fn a_placeholder_of_a_runtime_is_not_a_burst() {
        for placeholder in [2_147_483_647u64, 4_294_967_295, 34_359_738_368, u64::MAX] {
            let found = ingress(json!({ "ingressRate": 8000, "ingressBurst": placeholder }));
            assert_eq!(found, Some(Limit { rate_bits: 8000, burst_bits: None }));
        }
        let found = ingress(json!({ "ingressRate": 8000, "ingressBurst": 2_147_483_646 }));
        assert_eq!(found.unwrap().burst_bits, Some(2_147_483_646));
    }

    #[test]
    fn invalid_limits_are_refused_once() {
        for (bad, why) in [
            (json!({ "ingressBurst": 80 }), "ingressBurst: requires ingressRate"),
            (json!({ "egressBurst": 80, "egressRate": 0 }), "egressBurst: requires egressRate"),
            (json!({ "ingressRate": 7 }), "ingressRate: must be 0 (no limit) or at least 8 bits"),
            (
                json!({ "ingressRate": -8, "ingressBurst": 8 }),
                "ingressRate: must be a whole number",
            ),
            (json!({ "ingressRate": "8M" }), "ingressRate: must be a whole number"),
            (json!({ "egressRate": 8000, "egressBurst": 1.5 }), "egressBurst: must be a whole"),
        ] {
            let (_, faults) = read(bad);
            assert!(faults.len() == 1 && faults[0].contains(why), "{why:?}: {faults:?}");
        }
    }
}
