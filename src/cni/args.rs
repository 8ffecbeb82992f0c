//! Pure. `CNI_ARGS`.

use std::collections::BTreeMap;

use ipnetwork::IpNetwork;

use crate::cni::error::CniError;
use crate::cni::json::address_or_cidr;
use crate::cni::requested::RequestedAddresses;
use crate::net::Mac;

/// The values of `CNI_ARGS`: `K=V;K=V`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CniArgs {
    /// `IP` (addresses separated by commas, with or without prefix lengths) and `MAC`.
    pub requested: RequestedAddresses,
    /// `K8S_POD_NAMESPACE`.
    pub pod_namespace: Option<String>,
    /// `K8S_POD_NAME`.
    pub pod_name: Option<String>,
    /// `K8S_POD_UID`.
    pub pod_uid: Option<String>,
    /// The keys that humanz does not know.
    pub further: BTreeMap<String, String>,
}

impl CniArgs {
    /// Reads `CNI_ARGS`, which may be empty. Keys are case-sensitive, of a duplicate key the last one
    /// counts, and an empty value counts as absent.
    ///
    /// # Errors
    /// Code 4: a pair without exactly one `=` (also an empty one), an invalid value, or unknown keys
    /// unless `IgnoreUnknown` is true.
    ///
    /// Source: CNI conventions, "CNI_ARGS"; `LoadArgs` of the reference library.
    pub fn parse(text: &str) -> Result<CniArgs, CniError> {
        let mut args = CniArgs::default();
        let mut unknown = Vec::new();
        let mut ignore_unknown = false;
        let pairs = if text.is_empty() { None } else { Some(text.split(';')) };
        for pair in pairs.into_iter().flatten() {
            let parts: Vec<&str> = pair.split('=').collect();
            let [key, value] = parts[..] else {
                let why = "is not key=value; pairs are separated by ';' with none at the end";
                return Err(CniError::environment(format!("CNI_ARGS: {pair:?} {why}")));
            };
            match key {
                "IgnoreUnknown" => ignore_unknown = truth(key, value)?,
                "IP" => args.requested.ips = addresses(key, value)?,
                "MAC" => args.requested.mac = mac(key, value)?,
                "K8S_POD_NAMESPACE" => args.pod_namespace = printable(key, value)?,
                "K8S_POD_NAME" => args.pod_name = printable(key, value)?,
                "K8S_POD_UID" => args.pod_uid = printable(key, value)?,
                "K8S_POD_INFRA_CONTAINER_ID" => {}
                _ => {
                    unknown.push(pair);
                    args.further.insert(key.to_owned(), value.to_owned());
                }
            }
        }
        if unknown.is_empty() || ignore_unknown {
            return Ok(args);
        }
        let unknown = unknown.join("; ");
        let help = "add IgnoreUnknown=1 if they are not meant for humanz";
        Err(CniError::environment(format!("CNI_ARGS: unknown keys {unknown:?}; {help}")))
    }

    /// The pod as `namespace/name`, if the runtime passed it.
    pub fn pod(&self) -> Option<String> {
        let name = self.pod_name.as_ref()?;
        match &self.pod_namespace {
            Some(namespace) => Some(format!("{namespace}/{name}")),
            None => Some(name.clone()),
        }
    }
}

fn refused(key: &str, value: &str, right: &str) -> CniError {
    CniError::environment(format!("CNI_ARGS: {key} must be {right}, not {value:?}"))
}

fn truth(key: &str, value: &str) -> Result<bool, CniError> {
    match value.to_ascii_lowercase().as_str() {
        "1" | "true" => Ok(true),
        "0" | "false" => Ok(false),
        _ => Err(refused(key, value, "1, true, 0 or false")),
    }
}

fn addresses(key: &str, value: &str) -> Result<Vec<IpNetwork>, CniError> {
    if value.is_empty() {
        return Ok(Vec::new());
    }
    let address = |text: &str| {
        let right = "addresses separated by commas, as in 10.244.1.2,fd00::2";
        address_or_cidr(text.trim()).ok_or_else(|| refused(key, value, right))
    };
    value.split(',').map(address).collect()
}

fn mac(key: &str, value: &str) -> Result<Option<Mac>, CniError> {
    if value.is_empty() {
        return Ok(None);
    }
    let error = |error| CniError::environment(format!("CNI_ARGS: {key}: {error}"));
    value.parse().map(Some).map_err(error)
}

/// `value` for logs: one line, so that a pod's name cannot forge another line.
fn printable(key: &str, value: &str) -> Result<Option<String>, CniError> {
    if value.chars().any(char::is_control) {
        return Err(refused(key, value, "a name without control characters"));
    }
    Ok(Some(value.to_owned()).filter(|value| !value.is_empty()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(text: &str) -> CniArgs {
        CniArgs::parse(text).unwrap()
    }

    fn refuses(text: &str, why: &str) {
        let error = CniArgs::parse(text).unwrap_err();
        assert_eq!(error.code, 4);
        assert!(error.msg.contains(why), "{text:?}: {error}");
    }

    #[test]
    fn no_arguments_are_the_default() {
        assert_eq!(args(""), CniArgs::default());
    }

    #[test]
    fn the_arguments_of_kubernetes_are_read() {
        let found = args(
            "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=web-0;\
             K8S_POD_INFRA_CONTAINER_ID=c1;K8S_POD_UID=u-1",
        );
        assert_eq!(found.pod().as_deref(), Some("default/web-0"));
        assert_eq!(found.pod_uid.as_deref(), Some("u-1"));
    }

    #[test]
    fn unknown_keys_need_ignore_unknown() {
        args("IgnoreUnknown=True;Unk=nown");
        args("Unk=nown;IgnoreUnknown=true");
        args("IgnoreUnknown=1;Unk=");
        refuses("Unk=nown", "Unk=nown");
        refuses("IgnoreUnknown=0;Unk=nown", "Unk=nown");
        refuses("IgnoreUnknown=0, Unk=nown", "key=value");
        refuses("IgnoreUnknown=yes;Unk=nown", "IgnoreUnknown must be");
    }

    #[test]
    fn keys_are_case_sensitive() {
        refuses("ip=10.1.2.3", "unknown keys");
        assert_eq!(args("ip=10.1.2.3;IgnoreUnknown=1").requested.ips, vec![]);
    }

    #[test]
    fn every_pair_has_exactly_one_equals_sign() {
        for bad in ["K=V=W", "K", "IgnoreUnknown=1;", ";", "IgnoreUnknown=1;;IP=10.0.0.1", "="] {
            assert!(CniArgs::parse(bad).is_err(), "{bad:?} was taken");
        }
    }

    #[test]
    fn addresses_come_with_and_without_a_prefix() {
        let found = |text: &str| {
            let ips = args(text).requested.ips;
            ips.iter().map(IpNetwork::to_string).collect::<Vec<_>>()
        };
        assert_eq!(found("IP=10.1.2.11,fd00::b"), ["10.1.2.11/32", "fd00::b/128"]);
        assert_eq!(found("IP=10.1.2.11/24, fd00::b/64"), ["10.1.2.11/24", "fd00::b/64"]);
        assert_eq!(args("IP=").requested.ips, vec![]);
        refuses("IP=10.1.2.300", "IP must be");
        refuses("IP=10.1.2.3/33", "IP must be");
        refuses("IP=10.1.2.3,", "IP must be");
    }

    #[test]
    fn a_mac_is_validated() {
        assert_eq!(
            args("MAC=c2:b0:57:49:47:f1").requested.mac.unwrap().to_string(),
            "c2:b0:57:49:47:f1"
        );
        assert_eq!(args("MAC=").requested.mac, None);
        refuses("MAC=potato", "MAC");
    }

    #[test]
    fn a_pod_cannot_forge_a_line_of_the_log() {
        refuses("K8S_POD_NAME=web\n2026 ADD other", "control characters");
    }

    #[test]
    fn of_a_duplicate_key_the_last_one_counts() {
        assert_eq!(args("K8S_POD_NAME=a;K8S_POD_NAME=b").pod().as_deref(), Some("b"));
    }
}
