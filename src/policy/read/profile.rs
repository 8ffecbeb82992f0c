//! Pure. A profile of a tenant as its object says it.

use serde_json::Value;

use crate::policy::profile::{Dscp, NetProfile};
use crate::policy::read::fields::{Fault, ObjectField};

/// The profile.
///
/// ```json
/// {"dscp": 46}
/// ```
///
/// `dscp`: 0 to 63; without it packets stay as pods mark them.
///
/// # Errors
/// A field that is not understood.
pub fn read(spec: &Value) -> Result<NetProfile, Fault> {
    let spec = ObjectField::root(spec);
    spec.only(&["dscp", "schema"])?;
    Ok(NetProfile { dscp: spec.get("dscp").map(|field| dscp(&field)).transpose()? })
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
    fn what_is_no_profile_is_refused_with_its_field() {
        for (spec, why) in [
            (json!({"dscp": 64}), "dscp: must be a number from 0 to 63"),
            (json!({"dscp": -1}), "dscp: must be a number"),
            (json!({"dscp": 4.5}), "dscp: must be a number"),
            (json!({"dscp": "ef"}), "dscp: must be a number"),
            (json!({"dscp": [46]}), "dscp: must be a number"),
            (json!({"dcsp": 46}), "field \"dcsp\" is not known"),
            (json!("gold"), "must be an object"),
        ] {
            let refused = read(&spec).unwrap_err().to_string();
            assert!(refused.contains(why), "{spec}: {refused}");
        }
    }
}
