//! Pure. A fixed address of a pod as its object says it.

use std::net::IpAddr;

use serde_json::Value;

use crate::policy::read::fields::{Fault, ObjectField, quoted};

/// An address in each of two networks and of each family is more than most pods have.
const LIMIT: usize = 16;

/// The addresses of a pod.
///
/// ```json
/// {"addresses": ["10.32.255.6", "fd00:32::ffff:2"]}
/// ```
///
/// # Errors
/// There are none, or one is no address.
pub fn read(spec: &Value) -> Result<Vec<IpAddr>, Fault> {
    let spec = ObjectField::root(spec);
    spec.only(&["addresses", "schema"])?;
    let fields = spec.list("addresses")?;
    if fields.is_empty() || fields.len() > LIMIT {
        return Err(spec.fault(format!("addresses: 1 to {LIMIT} are needed")));
    }
    let one = |field: &ObjectField<'_>| {
        let text = field.text()?;
        text.parse().map_err(|_| field.fault(format!("{} is not an address", quoted(text))))
    };
    fields.iter().map(one).collect()
}
