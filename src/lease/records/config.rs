//! Pure. The network settings, shared by all hosts.

use ipnetwork::IpNetwork;
use serde::{Deserialize, Serialize};

use crate::lease::records::Backend;
use crate::lease::records::value::SCHEMA;
use crate::net::subnet::{self, Pool};
use crate::net::{Family, PerFamily};

/// The value of `config`: written by the first agent; all others must agree with it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterConfig {
    schema: u32,
    /// Random id of the store: if it differs or is missing, the store lost its data.
    pub id: Box<str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ip_subnet: Option<IpNetwork>,
    /// Extra prefix bits of a host's IPv4 subnet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ip_subnet_margin: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ipv6_subnet: Option<IpNetwork>,
    /// Extra prefix bits of a host's IPv6 subnet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ipv6_subnet_margin: Option<u8>,
    pub backend: Backend,
    /// Earlier stores from which this one was rebuilt, the latest last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rebuilt_from: Vec<Ancestor>,
}

/// A store that lost its data, and how much of it was known when it was rebuilt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ancestor {
    pub id: Box<str>,
    /// The last known revision.
    pub revision: i64,
}

impl ClusterConfig {
    const ANCESTORS: usize = 16;

    pub fn new(id: &str, pools: &PerFamily<Pool>, backend: Backend) -> ClusterConfig {
        let mut config = ClusterConfig {
            schema: SCHEMA,
            id: id.into(),
            ip_subnet: None,
            ip_subnet_margin: None,
            ipv6_subnet: None,
            ipv6_subnet_margin: None,
            backend,
            rebuilt_from: Vec::new(),
        };
        config.set_pools(pools);
        config
    }

    /// The valid pools.
    pub fn pools(&self) -> PerFamily<Pool> {
        let pool = |network: Option<IpNetwork>, margin: Option<u8>| {
            Pool::new(network?, margin?)
                .ok()
                .filter(|pool| subnet::masked(pool.network()) == pool.network())
        };
        PerFamily {
            v4: pool(self.ip_subnet, self.ip_subnet_margin),
            v6: pool(self.ipv6_subnet, self.ipv6_subnet_margin),
        }
    }

    pub fn set_pools(&mut self, pools: &PerFamily<Pool>) {
        let network = |family| pools.get(family).map(|pool: &Pool| pool.network());
        let margin = |family| pools.get(family).map(|pool: &Pool| pool.margin());
        self.ip_subnet = network(Family::V4);
        self.ip_subnet_margin = margin(Family::V4);
        self.ipv6_subnet = network(Family::V6);
        self.ipv6_subnet_margin = margin(Family::V6);
    }

    /// These settings with the new `id`, rebuilt from `ancestor`.
    pub fn rebuilt(&self, id: &str, ancestor: Ancestor) -> ClusterConfig {
        let mut rebuilt = ClusterConfig { id: id.into(), ..self.clone() };
        rebuilt.rebuilt_from.retain(|known| known.id != ancestor.id);
        rebuilt.rebuilt_from.push(ancestor);
        let surplus = rebuilt.rebuilt_from.len().saturating_sub(Self::ANCESTORS);
        rebuilt.rebuilt_from.drain(..surplus);
        rebuilt
    }

    /// The first setting in which `self` and `ours` differ: name of the variable, the value here,
    /// the value in `ours`. A pool that is wider than the other's is no difference: it has grown.
    pub fn difference(&self, ours: &ClusterConfig) -> Option<(&'static str, String, String)> {
        let fields = |config: &ClusterConfig| {
            [
                ("IP_SUBNET", Some(Family::V4), shown(config.ip_subnet)),
                ("IP_SUBNET_MARGIN", Some(Family::V4), shown(config.ip_subnet_margin)),
                ("IPV6_SUBNET", Some(Family::V6), shown(config.ipv6_subnet)),
                ("IPV6_SUBNET_MARGIN", Some(Family::V6), shown(config.ipv6_subnet_margin)),
                ("BACKEND", None, config.backend.to_string()),
            ]
        };
        let (theirs, wanted) = (self.pools(), ours.pools());
        let grew = |family| match (theirs.get(family), wanted.get(family)) {
            (Some(theirs), Some(ours)) => theirs.widens(ours) || ours.widens(theirs),
            _ => false,
        };
        let pairs = fields(self).into_iter().zip(fields(ours));
        let mut differing = pairs.filter(|((_, family, here), (_, _, there))| {
            here != there && !family.is_some_and(grew)
        });
        differing.next().map(|((name, _, here), (_, _, there))| (name, here, there))
    }
}

fn shown(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "none".to_owned(), |value| value.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::subnet::parse;

    fn config(v4: &str, margin: u8) -> ClusterConfig {
        let pool = Pool::new(parse(v4).unwrap(), margin).unwrap();
        ClusterConfig::new("a", &PerFamily { v4: Some(pool), v6: None }, Backend::Direct)
    }

    #[test]
    fn settings_are_read_back_as_written() {
        let config = config("10.244.0.0/16", 8);
        assert_eq!(ClusterConfig::parse(config.to_json().as_bytes()).unwrap(), config);
    }

    #[test]
    fn the_json_is_the_documented_one() {
        assert_eq!(
            config("10.244.0.0/16", 8).to_json(),
            r#"{"schema":1,"id":"a","ipSubnet":"10.244.0.0/16","ipSubnetMargin":8,"backend":"direct"}"#
        );
    }

    #[test]
    fn the_first_difference_has_both_values() {
        let ours = config("10.244.0.0/16", 8);
        assert_eq!(ours.difference(&config("10.244.0.0/16", 8)), None);
        let (name, theirs, mine) = config("10.244.0.0/16", 9).difference(&ours).unwrap();
        assert_eq!((name, &*theirs, &*mine), ("IP_SUBNET_MARGIN", "9", "8"));
    }

    #[test]
    fn a_pool_that_grew_is_no_difference() {
        let (narrow, wide) = (config("10.244.0.0/16", 8), config("10.244.0.0/15", 9));
        assert_eq!(narrow.difference(&wide), None);
        assert_eq!(wide.difference(&narrow), None);
        assert!(narrow.difference(&config("10.244.0.0/15", 8)).is_some(), "other slots");
        let mut cut = narrow.clone();
        cut.ip_subnet_margin = Some(30);
        assert!(cut.difference(&narrow).is_some(), "it cannot be cut so");
    }

    #[test]
    fn the_id_of_the_store_is_no_difference() {
        let mut other = config("10.244.0.0/16", 8);
        other.id = "b".into();
        assert_eq!(other.difference(&config("10.244.0.0/16", 8)), None);
    }

    #[test]
    fn a_rebuilt_store_lists_its_ancestors() {
        let mut config = config("10.244.0.0/16", 8);
        for number in 0..40 {
            let ancestor = Ancestor { id: number.to_string().into(), revision: number };
            config = config.rebuilt("b", ancestor);
        }
        assert_eq!(&*config.id, "b");
        assert_eq!(config.rebuilt_from.len(), 16);
        assert_eq!(config.rebuilt_from.last().unwrap().revision, 39);
    }
}
