//! Pure. The name and the alias of a pod's link on the host, which identify its owner.
//!
//! Both are derived from the attachment alone, so that DEL and GC find the link without its
//! namespace and without the result of ADD, and can prove that it is ours.

use crate::cni::{Attachment, Name};
use crate::net::{IfName, Mac, hash};
use crate::plan::pod::bridge_port::BridgePort;

/// One interface of one container in one network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LinkIdentity<'a> {
    pub network: &'a str,
    /// `CNI_CONTAINERID`.
    pub container_id: &'a str,
    /// `CNI_IFNAME`.
    pub ifname: &'a str,
}

/// The first word of every alias, and the mark that a link is humanz's.
pub const MARK: &str = "humanz";

/// The longest alias, in bytes: IFALIASZ of linux/if.h less its final zero.
const ALIAS_BYTES: usize = 255;

/// The longest name or id that is written to an alias unchanged, in bytes.
const WORD_BYTES: usize = 96;

/// The kind of a MAC derived for the host's end of a pod's veth (`0a:56:…`).
const HOST_MAC: u8 = 0x56;

/// The kind of a MAC derived for a pod's end (`0a:57:…`).
const POD_MAC: u8 = 0x57;

impl<'a> LinkIdentity<'a> {
    pub fn of(network: &'a Name, attachment: &'a Attachment) -> LinkIdentity<'a> {
        LinkIdentity {
            network: network.as_str(),
            container_id: attachment.container_id.as_str(),
            ifname: attachment.ifname.as_str(),
        }
    }

    /// `hz` and 13 hexadecimal digits.
    pub fn host_ifname(&self) -> IfName {
        let digits = hash::stable(&self.parts()) >> 12;
        format!("hz{digits:013x}").parse().expect("15 letters and digits are a name")
    }

    /// The MAC of the host's end; it must differ from the pod's.
    pub fn host_mac(&self) -> Mac {
        Mac::derived(HOST_MAC, &self.parts())
    }

    /// The MAC of a pod's end without an address to derive it from.
    pub fn pod_mac(&self) -> Mac {
        Mac::derived(POD_MAC, &self.parts())
    }

    /// `humanz <network> <container id> <ifname>`, and `pod` (`namespace/name`) as far as it fits.
    pub fn alias(&self, pod: Option<&str>) -> String {
        self.alias_of_port(&BridgePort::default(), pod)
    }

    /// As [`LinkIdentity::alias`], with `port` before the pod unless it is the default.
    pub fn alias_of_port(&self, port: &BridgePort, pod: Option<&str>) -> String {
        let mut alias = self.words();
        if let Some(word) = port.word(pod) {
            alias.push(' ');
            alias.push_str(&word);
        }
        // A blank, and as much of the pod as fits.
        let room = ALIAS_BYTES.saturating_sub(alias.len() + 1);
        if let Some(pod) = pod.filter(|_| room > 0) {
            alias.push(' ');
            alias.extend(pod.chars().scan(room, |room, c| {
                *room = room.checked_sub(c.len_utf8())?;
                Some(c)
            }));
        }
        alias
    }

    /// The attachment that `alias` names, with its words as they stand there.
    pub fn in_alias(alias: &'a str) -> Option<LinkIdentity<'a>> {
        let mut words = alias.split(' ').skip(1);
        let [network, container_id, ifname] = [words.next()?, words.next()?, words.next()?];
        Some(LinkIdentity { network, container_id, ifname })
    }

    /// The attachment in `alias`, if it is of podman 5: its containers have a name without a namespace.
    pub fn of_podman(alias: &'a str) -> Option<LinkIdentity<'a>> {
        let mut rest = alias.split(' ').skip(4);
        rest.find(|word| !word.contains(['/', '=']))?;
        LinkIdentity::in_alias(alias)
    }

    /// `alias` says that the link belongs to this attachment.
    pub fn owns(&self, alias: Option<&str>) -> bool {
        let rest = alias.and_then(|alias| alias.strip_prefix(&self.words()));
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
    }

    fn words(&self) -> String {
        format!("{MARK} {} {} {}", word(self.network), word(self.container_id), self.ifname)
    }

    fn parts(&self) -> [&str; 3] {
        [self.network, self.container_id, self.ifname]
    }
}

/// What the link of a pod belongs to: `namespace/name` where its alias has that, else the container.
pub fn pod_or_container(alias: &str) -> &str {
    let mut words = alias.split(' ').skip(2);
    let container = words.next().unwrap_or_default();
    words.skip(1).find(|word| word.contains('/') && !word.contains('=')).unwrap_or(container)
}

/// `alias` says that the link belongs to a pod of `network`.
pub fn is_of_network(alias: Option<&str>, network: &str) -> bool {
    let mut words = alias.unwrap_or_default().split(' ');
    words.next() == Some(MARK) && words.next() == Some(&word(network)) && words.next().is_some()
}

/// The name that the link of a pod with this alias was given; of another link if a word of it is
/// shortened.
pub fn first_name(alias: &str) -> Option<IfName> {
    Some(LinkIdentity::in_alias(alias)?.host_ifname())
}

/// `name`; if it is long, its beginning and a hash of the whole (`~` is in no name).
fn word(name: &str) -> String {
    if name.len() <= WORD_BYTES {
        return name.to_owned();
    }
    let kept: String = name.chars().filter(char::is_ascii).take(WORD_BYTES - 17).collect();
    format!("{kept}~{:016x}", hash::stable(&[name]))
}

#[cfg(test)]
mod tests {
    use super::*;

    const POD: LinkIdentity<'_> =
        LinkIdentity { network: "humanz", container_id: "c1", ifname: "eth0" };

    #[test]
    fn a_link_belongs_to_its_pod_or_container() {
        let port = BridgePort { isolated: true, ..BridgePort::default() };
        for (alias, owner) in [
            (POD.alias_of_port(&port, Some("shop/web")), "shop/web"),
            (POD.alias(Some("shop/web")), "shop/web"),
            (POD.alias_of_port(&port, None), "c1"),
            (POD.alias(None), "c1"),
            (String::new(), ""),
        ] {
            assert_eq!(pod_or_container(&alias), owner, "{alias}");
        }
    }

    #[test]
    fn the_name_of_the_host_end_is_stable() {
        assert_eq!(POD.host_ifname().as_str(), "hzd75962edb1250");
        assert_ne!(POD.host_ifname(), LinkIdentity { ifname: "eth1", ..POD }.host_ifname());
        assert_ne!(POD.host_ifname(), LinkIdentity { network: "b", ..POD }.host_ifname());
    }

    #[test]
    fn no_pod_may_ask_for_the_mac_of_a_host_end_that_is_to_come() {
        assert!(POD.host_mac().is_derived() && POD.pod_mac().is_derived());
    }

    #[test]
    fn the_alias_has_the_owner() {
        assert_eq!(POD.alias(Some("default/web")), "humanz humanz c1 eth0 default/web");
        assert_eq!(POD.alias(None), "humanz humanz c1 eth0");
        assert_eq!(first_name(&POD.alias(Some("default/web"))), Some(POD.host_ifname()));
    }

    #[test]
    fn an_alias_proves_its_owner_only() {
        assert!(POD.owns(Some(&POD.alias(None))));
        assert!(POD.owns(Some(&POD.alias(Some("default/web")))));
        for other in [
            None,
            Some(""),
            Some("humanz humanz c1 eth01"),
            Some("humanz humanz c11 eth0"),
            Some("humanz other c1 eth0"),
            Some("somebody else's"),
        ] {
            assert!(!POD.owns(other), "{other:?}");
        }
    }

    #[test]
    fn an_alias_has_the_network() {
        let other = LinkIdentity { container_id: "c2", ..POD };
        assert!(is_of_network(Some(&other.alias(Some("a/b"))), "humanz"));
        assert!(!is_of_network(Some("humanz other c1 eth0"), "humanz"));
        assert!(!is_of_network(Some("humanz"), "humanz"));
        assert!(!is_of_network(Some("humanz bridge"), "bridge"), "the mark of a bridge");
        assert!(!is_of_network(None, "humanz"));
    }

    #[test]
    fn long_names_still_fit_and_still_differ() {
        let (network, mut ids) = ("n".repeat(255), ["c".repeat(1000), "c".repeat(1001)]);
        let [a, b] = ids.each_mut().map(|id| LinkIdentity {
            network: &network,
            container_id: id,
            ifname: "fifteen-bytes-x",
        });
        let alias = a.alias(Some(&"ü".repeat(300)));
        assert!(alias.len() <= 255, "{}", alias.len());
        assert!(a.owns(Some(&alias)) && !b.owns(Some(&alias)));
        assert!(is_of_network(Some(&alias), &network));
        let port = BridgePort { hairpin: true, isolated: true, mac: Some(Mac([255; 6])) };
        let alias = a.alias_of_port(&port, Some("default/web"));
        assert!(alias.len() <= 255, "{}", alias.len());
        assert!(a.owns(Some(&alias)) && !b.owns(Some(&alias)));
        assert_eq!(BridgePort::of_alias(&alias), port);
    }
}
