//! Pure. What a pod's link is as a port of the bridge, as the link's alias keeps it: whoever plugs
//! it in again knows neither its network's configuration nor its addresses.

use crate::net::Mac;
use crate::netlink::link::PortFlags;

/// What a pod's link is as a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BridgePort {
    /// Frames may leave through the port they came in by.
    pub hairpin: bool,
    /// The port does not talk to other isolated ones.
    pub isolated: bool,
    /// Frames come in from this MAC alone.
    pub mac: Option<Mac>,
}

/// What the word of an alias begins with.
const WORD: &str = "port=";

impl Default for BridgePort {
    /// As the configuration says that the agent writes. It is what an alias means that has no word on
    /// it, also one of a release that knew no such word.
    fn default() -> BridgePort {
        BridgePort { hairpin: true, isolated: false, mac: None }
    }
}

impl BridgePort {
    /// A port of a pod whose MAC is `mac`.
    pub fn new(port: PortFlags, mac: Mac) -> BridgePort {
        let PortFlags { hairpin, isolated, locked } = port;
        BridgePort { hairpin, isolated, mac: locked.then_some(mac) }
    }

    /// As the kernel calls it.
    pub fn port(&self) -> PortFlags {
        PortFlags { hairpin: self.hairpin, isolated: self.isolated, locked: self.mac.is_some() }
    }

    /// What `alias` says: the word behind mark, network, container and interface. A later word is the
    /// pod's name, which is for people.
    pub fn of_alias(alias: &str) -> BridgePort {
        let word = alias.split(' ').nth(4).and_then(|word| word.strip_prefix(WORD));
        let Some(word) = word.filter(|word| !word.contains('/')) else {
            return BridgePort::default();
        };
        let mut plugged = BridgePort { hairpin: false, ..BridgePort::default() };
        for part in word.split(',') {
            match part.split_once('=') {
                None if part == "hairpin" => plugged.hairpin = true,
                None if part == "isolated" => plugged.isolated = true,
                Some(("mac", digits)) => plugged.mac = mac(digits),
                // Of a later release.
                _ => {}
            }
        }
        plugged
    }

    /// The word for the alias of the link of `pod`, at most 38 bytes; none if it would say what goes
    /// without saying.
    pub(super) fn word(&self, pod: Option<&str>) -> Option<String> {
        if *self == BridgePort::default() && !pod.is_some_and(|pod| pod.starts_with(WORD)) {
            return None;
        }
        let hairpin = self.hairpin.then(|| "hairpin".to_owned());
        let isolated = self.isolated.then(|| "isolated".to_owned());
        let mac = self.mac.map(|mac| format!("mac={}", mac.to_string().replace(':', "")));
        let parts: Vec<String> = [hairpin, isolated, mac].into_iter().flatten().collect();
        Some(format!("{WORD}{}", parts.join(",")))
    }
}

/// Twelve hexadecimal digits.
fn mac(digits: &str) -> Option<Mac> {
    let number = u64::from_str_radix(digits, 16).ok().filter(|_| digits.len() == 12)?;
    let [_, _, mac @ ..] = number.to_be_bytes();
    Some(Mac(mac))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: Mac = Mac([0x0a, 0x58, 0x0a, 0xf4, 0x01, 0x02]);

    fn all() -> Vec<BridgePort> {
        let mut all = Vec::new();
        for (hairpin, isolated) in [(true, true), (true, false), (false, true), (false, false)] {
            for mac in [None, Some(MAC)] {
                all.push(BridgePort { hairpin, isolated, mac });
            }
        }
        all
    }

    #[test]
    fn what_is_kept_comes_back_and_the_usual_costs_no_word() {
        for plugged in all() {
            for pod in [None, Some("a/b"), Some("port=isolated")] {
                let word = plugged.word(pod);
                assert!(word.as_ref().is_none_or(|word| word.len() <= 38), "{word:?}");
                let words = ["humanz n c1 eth0".to_owned()].into_iter().chain(word);
                let alias: Vec<String> = words.chain(pod.map(str::to_owned)).collect();
                assert_eq!(BridgePort::of_alias(&alias.join(" ")), plugged, "{alias:?}");
            }
        }
        assert_eq!(BridgePort::default().word(Some("a/b")), None);
        let word = all()[1].word(None);
        assert_eq!(word.as_deref(), Some("port=hairpin,isolated,mac=0a580af40102"));
    }

    #[test]
    fn what_says_nothing_of_the_port_means_the_usual() {
        for alias in
            ["", "humanz n c1 eth0", "humanz n c1 eth0 a/b", "humanz n c1 eth0 port=isolated/b"]
        {
            assert_eq!(BridgePort::of_alias(alias), BridgePort::default(), "{alias}");
        }
        let later =
            BridgePort::of_alias("humanz n c1 eth0 port=hairpin,vlan=5,isolated,mac=0x5 a/b");
        assert_eq!(later, BridgePort { hairpin: true, isolated: true, mac: None });
    }
}
