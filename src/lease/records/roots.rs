//! Pure. The keys: roots, ranges, and their meaning.

use ipnetwork::IpNetwork;

use crate::lease::records::{NodeName, RecordError};
use crate::net::{Family, subnet};

/// The roots of the keys of the cluster. Neither prefix begins with the other; none ends in `/`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Roots {
    /// `ETCD_PREFIX`: host keys, shared with hosts that run the Python agent.
    pub hosts: String,
    /// `ETCD_COUNTER_KEY`: its etcd version counts allocations.
    pub counter: String,
    /// `HUMANZ_PREFIX`: everything else.
    pub humanz: String,
}

/// A parsed key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Key {
    /// The subnet of a host.
    Host(NodeName),
    /// The settings of the network.
    Config,
    /// The record of a host.
    Node(NodeName),
    /// The host that claims a subnet.
    Claim(IpNetwork),
    /// A host whose agent runs.
    Alive(NodeName),
    /// An agent that finds the name of its host in use.
    Contender(NodeName),
    /// The WireGuard key that a host claims.
    WireguardKey(NodeName),
}

impl Roots {
    /// The range of the host keys: `ETCD_PREFIX/`, with the slash, so that `/hostsfoo` is none.
    pub fn hosts_range(&self) -> String {
        format!("{}/", self.hosts)
    }

    /// The range of all other keys.
    pub fn humanz_range(&self) -> String {
        format!("{}/", self.humanz)
    }

    /// The range of the claims of both families.
    pub fn claims_range(&self) -> String {
        format!("{}/subnets/", self.humanz)
    }

    /// The range of the reachability reports. It lies outside the others, which every host watches,
    /// hosts with earlier versions too: a report wakes no host.
    pub fn reports_range(&self) -> String {
        format!("{}-probes/", self.humanz)
    }

    pub fn report(&self, name: &NodeName) -> String {
        format!("{}-probes/{name}", self.humanz)
    }

    /// The host of the report at `key`; `None` if it is no such key.
    pub fn host_of_report(&self, key: &[u8]) -> Option<NodeName> {
        std::str::from_utf8(key).ok()?.strip_prefix(&self.reports_range())?.parse().ok()
    }

    /// Where `host` asks all hosts for their pods: in the range that they watch.
    pub fn pods_request(&self, host: &NodeName) -> String {
        format!("{}/requests/{host}", self.humanz)
    }

    pub fn is_pods_request(&self, key: &[u8]) -> bool {
        let below = key.strip_prefix(self.humanz.as_bytes());
        below.is_some_and(|rest| rest.starts_with(b"/requests/"))
    }

    /// The range of the answers; outside the watched ranges, as reports are.
    pub fn pods_range(&self) -> String {
        format!("{}-pods/", self.humanz)
    }

    pub fn pods(&self, host: &NodeName) -> String {
        format!("{}-pods/{host}", self.humanz)
    }

    /// The host of the answer at `key`; `None` if it is no such key.
    pub fn host_of_pods(&self, key: &[u8]) -> Option<NodeName> {
        std::str::from_utf8(key).ok()?.strip_prefix(&self.pods_range())?.parse().ok()
    }

    /// The range in which `host` alone asks other hosts for pods of a connectivity test: in the range that they watch.
    pub fn test_requests_of(&self, host: &NodeName) -> String {
        format!("{}/connectivity/{host}/", self.humanz)
    }

    /// Where `host` asks `other`. The key says everything, its value nothing.
    pub fn test_request(&self, host: &NodeName, other: &NodeName) -> String {
        format!("{}/connectivity/{host}/{other}", self.humanz)
    }

    pub fn is_test_request(&self, key: &[u8]) -> bool {
        let below = key.strip_prefix(self.humanz.as_bytes());
        below.is_some_and(|rest| rest.starts_with(b"/connectivity/"))
    }

    /// The host that asks, and the one that it asks; `None` if it is no such key.
    pub fn test_hosts(&self, key: &[u8]) -> Option<(NodeName, NodeName)> {
        let rest = std::str::from_utf8(key).ok()?.strip_prefix(&self.humanz)?;
        let (host, other) = rest.strip_prefix("/connectivity/")?.split_once('/')?;
        Some((host.parse().ok()?, other.parse().ok()?))
    }

    /// The range of the answers; outside the watched ranges, as reports are.
    pub fn test_answers_range(&self) -> String {
        format!("{}-connectivity/", self.humanz)
    }

    /// The range in which `host` alone answers.
    pub fn test_answers_of(&self, host: &NodeName) -> String {
        format!("{}-connectivity/{host}/", self.humanz)
    }

    /// What `host` answers `other`.
    pub fn test_answer(&self, host: &NodeName, other: &NodeName) -> String {
        format!("{}-connectivity/{host}/{other}", self.humanz)
    }

    /// The range of what hosts say of members of groups; outside the watched ranges, as reports are.
    pub fn members_range(&self) -> String {
        format!("{}-members/", self.humanz)
    }

    /// The range in which `host` alone writes its members.
    pub fn members_of(&self, host: &NodeName) -> String {
        format!("{}-members/{host}/", self.humanz)
    }

    /// The members on `host` of a group.
    pub fn members(&self, host: &NodeName, group: &str) -> String {
        format!("{}-members/{host}/{group}", self.humanz)
    }

    /// The generation of what `host` says of its members: in their range.
    pub fn members_generation(&self, host: &NodeName) -> String {
        self.members(host, "generation")
    }

    /// The range of the policies, which operators write and hosts read; outside the watched ranges, too.
    pub fn policies_range(&self) -> String {
        format!("{}-policies/", self.humanz)
    }

    /// The range of the objects of networks.
    pub fn networks_range(&self) -> String {
        format!("{}Network/", self.policies_range())
    }

    /// The object of the network `tenant/name`.
    pub fn network(&self, name: &str) -> String {
        format!("{}{name}", self.networks_range())
    }

    /// The range of the blocks that hosts have of tenants' networks; outside the watched ranges, too.
    pub fn blocks_range(&self) -> String {
        format!("{}-blocks/", self.humanz)
    }

    /// The range in which `host` alone writes its blocks.
    pub fn blocks_of(&self, host: &NodeName) -> String {
        format!("{}-blocks/{host}/", self.humanz)
    }

    /// That `host` has `block`.
    pub fn block(&self, host: &NodeName, block: IpNetwork) -> String {
        format!("{}-blocks/{host}/{}-{}", self.humanz, block.ip(), block.prefix())
    }

    /// Host and block of the key of a block; `None` if it is no such key.
    pub fn held_block(&self, key: &[u8]) -> Option<(NodeName, IpNetwork)> {
        let rest = std::str::from_utf8(key).ok()?.strip_prefix(&self.blocks_range())?;
        let (host, block) = rest.split_once('/')?;
        let (address, prefix) = block.rsplit_once('-')?;
        let held = subnet::parse(&format!("{address}/{prefix}")).ok()?;
        let host: NodeName = host.parse().ok()?;
        (self.block(&host, held).as_bytes() == key).then_some((host, held))
    }

    /// The range in which all hosts announce changes of members.
    pub fn announcements_range(&self) -> String {
        format!("{}-groups/", self.humanz)
    }

    /// Where each host with members of a group has a key of its name.
    pub fn announcements(&self, group: &str) -> String {
        format!("{}-groups/{group}/", self.humanz)
    }

    /// Group and host of an announcement; `None` if it is no such key.
    pub fn announced<'a>(&self, key: &'a [u8]) -> Option<(&'a str, NodeName)> {
        let rest = std::str::from_utf8(key).ok()?.strip_prefix(&self.announcements_range())?;
        let (group, host) = rest.split_once('/')?;
        Some((group, host.parse().ok()?))
    }

    pub fn key(&self, key: &Key) -> String {
        let humanz = &self.humanz;
        match key {
            Key::Host(name) => format!("{}/{name}", self.hosts),
            Key::Config => format!("{humanz}/config"),
            Key::Node(name) => format!("{humanz}/nodes/{name}"),
            Key::Alive(name) => format!("{humanz}/alive/{name}"),
            Key::Contender(name) => format!("{humanz}/contenders/{name}"),
            Key::WireguardKey(name) => format!("{humanz}/wireguard/{name}"),
            Key::Claim(claimed) => {
                let family = digit(subnet::family(*claimed));
                format!("{humanz}/subnets/{family}/{}-{}", claimed.ip(), claimed.prefix())
            }
        }
    }

    /// Parses `key`; `None` if it is not ours (another root, or a part of ours from a later version).
    ///
    /// # Errors
    /// [`RecordError`] if it is one of ours and malformed.
    pub fn parse(&self, key: &[u8]) -> Result<Option<Key>, RecordError> {
        let text = std::str::from_utf8(key).map_err(|_| RecordError::NotUtf8)?;
        if let Some(name) = below(text, &self.hosts) {
            return Ok(Some(Key::Host(name.parse()?)));
        }
        let Some((part, rest)) = below(text, &self.humanz).map(split) else { return Ok(None) };
        Ok(match (part, rest) {
            ("config", None) => Some(Key::Config),
            ("nodes", Some(name)) => Some(Key::Node(name.parse()?)),
            ("alive", Some(name)) => Some(Key::Alive(name.parse()?)),
            ("contenders", Some(name)) => Some(Key::Contender(name.parse()?)),
            ("wireguard", Some(name)) => Some(Key::WireguardKey(name.parse()?)),
            ("subnets", Some(claim)) => Some(Key::Claim(parse_claim(claim)?)),
            _ => None,
        })
    }
}

/// What follows `prefix` and a slash.
fn below<'a>(text: &'a str, prefix: &str) -> Option<&'a str> {
    text.strip_prefix(prefix)?.strip_prefix('/')
}

fn split(text: &str) -> (&str, Option<&str>) {
    match text.split_once('/') {
        Some((part, rest)) => (part, Some(rest)),
        None => (text, None),
    }
}

fn digit(family: Family) -> char {
    match family {
        Family::V4 => '4',
        Family::V6 => '6',
    }
}

/// `4/10.244.3.0-24`
fn parse_claim(text: &str) -> Result<IpNetwork, RecordError> {
    let malformed = || RecordError::Key("subnets/4/10.244.3.0-24");
    let (family, rest) = text.split_once('/').ok_or_else(malformed)?;
    let (address, prefix) = rest.rsplit_once('-').ok_or_else(malformed)?;
    let claimed = subnet::parse(&format!("{address}/{prefix}"))?;
    let canonical =
        format!("{}/{}-{}", digit(subnet::family(claimed)), claimed.ip(), claimed.prefix());
    if canonical == format!("{family}/{rest}") { Ok(claimed) } else { Err(malformed()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn roots() -> Roots {
        Roots {
            hosts: "/humanz/hosts".to_owned(),
            counter: "/humanz/counter".to_owned(),
            humanz: "/humanz/v1".to_owned(),
        }
    }

    #[test]
    fn keys_are_read_back_as_written() {
        let name: NodeName = "h1".parse().unwrap();
        let claim = |text| Key::Claim(subnet::parse(text).unwrap());
        for (key, text) in [
            (Key::Host(name.clone()), "/humanz/hosts/h1"),
            (Key::Config, "/humanz/v1/config"),
            (Key::Node(name.clone()), "/humanz/v1/nodes/h1"),
            (Key::Alive(name.clone()), "/humanz/v1/alive/h1"),
            (Key::Contender(name.clone()), "/humanz/v1/contenders/h1"),
            (Key::WireguardKey(name), "/humanz/v1/wireguard/h1"),
            (claim("10.244.3.0/24"), "/humanz/v1/subnets/4/10.244.3.0-24"),
            (claim("fd00:0:0:3::/64"), "/humanz/v1/subnets/6/fd00:0:0:3::-64"),
        ] {
            assert_eq!(roots().key(&key), text);
            assert_eq!(roots().parse(text.as_bytes()), Ok(Some(key)));
        }
    }

    #[test]
    fn keys_of_others_are_ignored() {
        for other in [
            "/humanz/hostsfoo/x",
            "/humanz/counter",
            "/humanz/v1/networks/default/a",
            "/humanz/v1/config/x",
            "/registry/pods/a",
        ] {
            assert_eq!(roots().parse(other.as_bytes()), Ok(None), "{other}");
        }
    }

    #[test]
    fn reports_lie_outside_the_watched_ranges() {
        let name: NodeName = "h1".parse().unwrap();
        let key = roots().report(&name);
        assert_eq!(key, "/humanz/v1-probes/h1");
        assert_eq!(roots().parse(key.as_bytes()), Ok(None));
        assert_eq!(roots().host_of_report(key.as_bytes()), Some(name));
        let host: NodeName = "h1".parse().unwrap();
        let members = roots().members(&host, "0a");
        assert_eq!(members, "/humanz/v1-members/h1/0a");
        assert!(members.starts_with(&roots().members_of(&host)));
        let announced = format!("{}h1", roots().announcements("0a"));
        assert_eq!(announced, "/humanz/v1-groups/0a/h1");
        assert_eq!(roots().announced(announced.as_bytes()), Some(("0a", host)));
        for other in ["/humanz/v1-groups/0a", "/humanz/v1-groups/0a/b/c", "/humanz/v1/nodes/h1"] {
            assert_eq!(roots().announced(other.as_bytes()), None, "{other}");
        }
        let policies = roots().policies_range();
        assert_eq!(policies, "/humanz/v1-policies/");
        for key in [members, announced, policies] {
            assert_eq!(roots().parse(key.as_bytes()), Ok(None));
        }
        for followed in [roots().hosts_range(), roots().humanz_range(), roots().claims_range()] {
            assert!(!key.starts_with(&followed), "{followed}");
        }
        for other in ["/humanz/v1-probes/", "/humanz/v1-probes/a/b", "/humanz/v1/nodes/h1", "/x"] {
            assert_eq!(roots().host_of_report(other.as_bytes()), None, "{other}");
        }
    }

    #[test]
    fn a_request_for_a_test_has_both_hosts_in_its_key() {
        let [h1, h2] = ["h1", "h2"].map(|name| name.parse::<NodeName>().unwrap());
        let request = roots().test_request(&h1, &h2);
        assert_eq!(request, "/humanz/v1/connectivity/h1/h2");
        assert!(request.starts_with(&roots().test_requests_of(&h1)));
        assert!(request.starts_with(&roots().humanz_range()), "every host sees it");
        assert_eq!(roots().parse(request.as_bytes()), Ok(None), "as earlier versions read it");
        assert_eq!(roots().test_hosts(request.as_bytes()), Some((h1.clone(), h2.clone())));
        let answer = roots().test_answer(&h2, &h1);
        assert_eq!(answer, "/humanz/v1-connectivity/h2/h1");
        assert!(answer.starts_with(&roots().test_answers_of(&h2)));
        assert!(answer.starts_with(&roots().test_answers_range()));
        assert!(!answer.starts_with(&roots().humanz_range()));
        for (other, is_ours) in [
            ("/humanz/v1/connectivity/h1", true),
            ("/humanz/v1/connectivity/h1/", true),
            ("/humanz/v1/connectivity//h2", true),
            ("/humanz/v1/connectivity/h1/h2/h3", true),
            ("/humanz/v1/connectivity/h1/$(reboot)", true),
            ("/humanz/v1-connectivity/h1/h2", false),
            ("/humanz/v1/requests/h1", false),
        ] {
            assert_eq!(roots().test_hosts(other.as_bytes()), None, "{other}");
            assert_eq!(roots().is_test_request(other.as_bytes()), is_ours, "{other}");
        }
        assert_eq!(roots().test_hosts(b"/humanz/v1/connectivity/h1/\xff"), None);
    }

    #[test]
    fn a_block_has_one_key_and_no_host_is_woken_by_it() {
        let name: NodeName = "h1".parse().unwrap();
        for (block, text) in [
            ("10.32.0.64/26", "/humanz/v1-blocks/h1/10.32.0.64-26"),
            ("fd00:32::40/122", "/humanz/v1-blocks/h1/fd00:32::40-122"),
        ] {
            let block = subnet::parse(block).unwrap();
            assert_eq!(roots().block(&name, block), text);
            assert_eq!(roots().held_block(text.as_bytes()), Some((name.clone(), block)));
            assert!(text.starts_with(&roots().blocks_of(&name)));
            for followed in [roots().hosts_range(), roots().humanz_range()] {
                assert!(!text.starts_with(&followed), "{followed}");
            }
        }
        for other in [
            "/humanz/v1-blocks/h1/10.32.0.65-26",
            "/humanz/v1-blocks/h1/010.32.0.64-26",
            "/humanz/v1-blocks/h1/fd00:0032::40-122",
            "/humanz/v1-blocks/h 1/10.32.0.64-26",
            "/humanz/v1-blocks/h1/10.32.0.64-26/x",
            "/humanz/v1-blocks/10.32.0.64-26",
            "/humanz/v1/blocks/h1/10.32.0.64-26",
        ] {
            assert_eq!(roots().held_block(other.as_bytes()), None, "{other}");
        }
    }

    #[test]
    fn malformed_keys_of_ours_are_errors() {
        for bad in [
            "/humanz/hosts/",
            "/humanz/hosts/a/b",
            "/humanz/v1/nodes/a b",
            "/humanz/v1/subnets/4/10.244.3.0",
            "/humanz/v1/subnets/4/10.244.3.7-24",
            "/humanz/v1/subnets/6/10.244.3.0-24",
            "/humanz/v1/subnets/6/fd00:0::-64",
            "/humanz/v1/subnets/x",
        ] {
            assert!(roots().parse(bad.as_bytes()).is_err(), "{bad} was taken");
        }
        assert!(roots().parse(b"/humanz/v1/nodes/\xff").is_err());
    }
}
