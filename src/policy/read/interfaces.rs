//! Pure. The interfaces that a pod asks for, each in a network of its own.

use std::collections::BTreeSet;

use crate::cni::pod_keys::NETWORKS;
use crate::cni::words::MAX_BYTES;
use crate::net::IfName;
use crate::policy::labels::Labels;
use crate::policy::name::Scoped;
use crate::policy::network::Networks;
use crate::policy::read::fields::quoted;
use crate::policy::read::membership::{
    Claims, Refusal, allowed_network, asks_for_network, network,
};

/// Interfaces of a pod.
const MOST: usize = 8;

/// An interface that a pod is to have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AskedInterface {
    /// `None`: the first one, whose name the runtime says.
    pub ifname: Option<IfName>,
    /// `None`: that of the settings.
    pub network: Option<Scoped>,
}

/// The interfaces of a pod, at least one; its annotation says `front,back@eth1`. The first has the default route; a
/// further one without a name is `net1`, `net2`, … by its place.
///
/// # Errors
/// It asks for a network that it may not have, or for what cannot be.
pub fn interfaces(claims: &Claims<'_>) -> Result<Vec<AskedInterface>, Refusal> {
    let Some(text) = claims.annotations.get(NETWORKS).filter(|text| !text.is_empty()) else {
        return Ok(vec![AskedInterface { ifname: None, network: network(claims)? }]);
    };
    let refused = |why| Err(Refusal::Interfaces(quoted(text), why));
    if text.len() > MAX_BYTES {
        return refused("longer than 253 characters");
    }
    if asks_for_network(claims) {
        return refused("the pod says humanz.io/network, too");
    }
    let mut asked: Vec<AskedInterface> = Vec::new();
    let (mut ifnames, mut networks) = (BTreeSet::new(), BTreeSet::new());
    for (place, word) in text.split(',').map(str::trim).enumerate() {
        if place == MOST {
            return refused("more than 8 networks");
        }
        let (name, ifname) = match word.split_once('@') {
            Some((name, ifname)) => (name, Some(ifname.to_owned())),
            None => (word, (place > 0).then(|| format!("net{place}"))),
        };
        let network = allowed_network(claims, name)?;
        let ifname = match ifname.map(|ifname| ifname.parse::<IfName>()).transpose() {
            Ok(ifname) if ifname.as_ref().is_none_or(|it| it.as_str() != "lo") => ifname,
            _ => return refused("what stands behind @ is no name of an interface"),
        };
        if !networks.insert(network.clone()) || ifname.clone().is_some_and(|it| !ifnames.insert(it))
        {
            return refused("a network or an interface stands there twice");
        }
        let network = Some(network).filter(|network| *network != Networks::default_name());
        asked.push(AskedInterface { ifname, network });
    }
    Ok(asked)
}

/// The first network that a pod asks for, other than that of the settings, whether it may have that or not.
///
/// # Errors
/// It asks for what is no name, or for what cannot be.
pub fn asked_network(annotations: &Labels, labels: &Labels) -> Result<Option<Scoped>, Refusal> {
    let asked = interfaces(&Claims {
        name: &Networks::default_name().name,
        annotations,
        labels,
        namespace: None,
        free: true,
    })?;
    let own = Networks::default_name();
    Ok(asked.into_iter().filter_map(|it| it.network).find(|network| *network != own))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::policy::read::membership::NamespaceRule;

    fn asked(rule: &Value, annotations: &[(&str, &str)]) -> Result<Vec<AskedInterface>, Refusal> {
        let (rule, labels) = (NamespaceRule::read(rule).unwrap(), Labels::new());
        let annotations: Labels =
            annotations.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
        interfaces(&Claims {
            name: &"web".parse().unwrap(),
            annotations: &annotations,
            labels: &labels,
            namespace: Some(&rule),
            free: false,
        })
    }

    /// As `blue/front, eth1 blue/back`, or the refusal.
    fn check(text: &str, wanted: &str) {
        let rule =
            json!({"tenant": "blue", "network": "front", "allow": ["back", "default/default"]});
        let found = match asked(&rule, &[("humanz.io/networks", text)]) {
            Err(refusal) => refusal.to_string(),
            Ok(interfaces) => {
                let text = |it: &AskedInterface| {
                    let network = it.network.as_ref().map_or("-".to_owned(), ToString::to_string);
                    let ifname = it.ifname.as_ref();
                    ifname.map_or(network.clone(), |name| format!("{name} {network}"))
                };
                interfaces.iter().map(text).collect::<Vec<_>>().join(", ")
            }
        };
        assert_eq!(found, wanted, "{text}");
    }

    #[test]
    fn networks_stand_in_a_list_each_with_its_interface() {
        check("front,back@eth1", "blue/front, eth1 blue/back");
        check(" blue/back , front , default/default@x ", "blue/back, net1 blue/front, x -");
        check("back@eth0", "eth0 blue/back");
        check("", "blue/front");
    }

    #[test]
    fn what_may_not_or_cannot_be_is_refused() {
        check("front,red/front", "network red/front is not allowed for pods of this namespace");
        check("front,other", "network blue/other is not allowed for pods of this namespace");
        check("front,", "network \"\" is not a name");
        check("front,../x", "network \"../x\" is not a name");
        let what = "what stands behind @ is no name of an interface";
        for bad in ["front,back@", "front,back@a/b", "front,back@lo", "back@.."] {
            check(bad, &format!("humanz.io/networks \"{bad}\": {what}"));
        }
        let twice = "a network or an interface stands there twice";
        for bad in ["front,front@eth1", "front@net1,back", "front@a,back@a"] {
            check(bad, &format!("humanz.io/networks \"{bad}\": {twice}"));
        }
        let rule = json!({"tenant": "blue", "network": "front", "allow": ["*"]});
        let many = (0..9).map(|number| format!("n{number}")).collect::<Vec<_>>().join(",");
        assert!(asked(&rule, &[("humanz.io/networks", &many)]).is_err());
        let long = format!("front,back@{}", "x".repeat(300));
        assert!(
            asked(&rule, &[("humanz.io/networks", &long)])
                .unwrap_err()
                .to_string()
                .contains("longer than 253")
        );
        let both = [("humanz.io/networks", "front"), ("humanz.io/network", "front")];
        assert!(asked(&rule, &both).is_err());
    }
}
