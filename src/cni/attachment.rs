//! Pure. Attachments: one interface of one container.

use std::collections::BTreeSet;
use std::fmt;

use crate::cni::json::JsonField;
use crate::cni::name::Name;
use crate::net::IfName;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Attachment {
    pub container_id: Name,
    pub ifname: IfName,
}

impl fmt::Display for Attachment {
    /// `container id:ifname`; neither part can contain a colon.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.container_id, self.ifname)
    }
}

/// The key of GC's list, and that of older runtimes.
const KEYS: [&str; 2] = ["cni.dev/valid-attachments", "cni.dev/attachments"];

/// The valid attachments: `None` without the key (which is not "none is valid"), empty for null or an
/// empty list.
///
/// An invalid member is an error: if it were ignored, its attachment would be removed.
///
/// Source: CNI SPEC, "GC"; libcni writes null for an empty list.
pub(super) fn read_valid(conf: &JsonField) -> Option<BTreeSet<Attachment>> {
    let Some(list) = KEYS.into_iter().find_map(|key| conf.get(key)) else {
        return KEYS.into_iter().any(|key| conf.has(key)).then(BTreeSet::new);
    };
    let members = list.list("{containerID, ifname}", |member| {
        if !member.value().is_object() {
            return member.refuse("an object {containerID, ifname}");
        }
        let container_id = required(&member, "containerID", str::parse);
        let ifname = required(&member, "ifname", IfName::found);
        Some(Attachment { container_id: container_id?, ifname: ifname? })
    });
    members.map(BTreeSet::from_iter)
}

fn required<T, E: fmt::Display>(
    member: &JsonField,
    key: &str,
    read: impl Fn(&str) -> Result<T, E>,
) -> Option<T> {
    match member.get(key) {
        Some(field) => match read(field.text()?) {
            Ok(value) => Some(value),
            Err(error) => field.fault(format!("{error}")),
        },
        None => member.fault(format!("{key} is missing")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::cni::json::FieldErrors;

    /// The attachments in `document`, and how many faults there were.
    fn read(document: Value) -> (Option<Vec<String>>, usize) {
        let faults = FieldErrors::default();
        let valid = read_valid(&JsonField::root(&document, &faults));
        (
            valid.map(|valid| valid.iter().map(Attachment::to_string).collect()),
            faults.into_vec().len(),
        )
    }

    #[test]
    fn a_missing_key_is_none() {
        assert_eq!(read(json!({})), (None, 0));
    }

    #[test]
    fn a_name_that_cannot_be_requested_is_valid_in_the_list() {
        let odd = json!([{ "containerID": "c1", "ifname": "e%d" }]);
        let wanted = (Some(vec!["c1:e%d".into()]), 0);
        assert_eq!(read(json!({ "cni.dev/valid-attachments": odd })), wanted);
    }

    #[test]
    fn null_and_an_empty_list_mean_that_none_is_valid() {
        for empty in [json!(null), json!([])] {
            assert_eq!(read(json!({ "cni.dev/valid-attachments": empty })), (Some(vec![]), 0));
            assert_eq!(read(json!({ "cni.dev/attachments": empty })), (Some(vec![]), 0));
        }
    }

    #[test]
    fn the_newer_key_takes_precedence_unless_it_is_null() {
        let one = |id: &str| json!([{ "containerID": id, "ifname": "eth0" }]);
        let both = json!({
            "cni.dev/attachments": one("old"), "cni.dev/valid-attachments": one("new"),
        });
        assert_eq!(read(both), (Some(vec!["new:eth0".into()]), 0));
        let null = json!({ "cni.dev/attachments": one("old"), "cni.dev/valid-attachments": null });
        assert_eq!(read(null), (Some(vec!["old:eth0".into()]), 0));
    }

    #[test]
    fn an_invalid_member_is_an_error() {
        for (member, faults) in [
            (json!({ "containerID": "../../etc", "ifname": "eth0" }), 1),
            (json!({ "containerID": "c1", "ifname": "a/b" }), 1),
            (json!({ "containerID": "", "ifname": "" }), 2),
            (json!({ "containerID": 1, "ifname": null }), 2),
            (json!({}), 2),
            (json!("c1"), 1),
        ] {
            assert_eq!(read(json!({ "cni.dev/valid-attachments": [member] })).1, faults);
        }
        assert_eq!(read(json!({ "cni.dev/valid-attachments": {} })), (None, 1));
    }
}
