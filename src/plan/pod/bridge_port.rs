//! Pure. The bridge port of a pod's link, as the link's alias records it: the agent that reattaches
//! the link knows neither the network's configuration nor the pod's addresses.

use crate::cni::NetConf;
use crate::net::Mac;
use crate::netlink::link::PortFlags;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BridgePort {
    /// Frames may leave through the port they arrived on.
    pub hairpin: bool,
    /// The port sends nothing to other isolated ports.
    pub isolated: bool,
    /// The port is locked to this MAC.
    pub mac: Option<Mac>,
}

/// The beginning of the alias's word.
const WORD: &str = "port=";

impl Default for BridgePort {
    /// As in the agent's configuration. An alias without the word means this, also one of a release
    /// that had no such word.
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

    /// The kernel's flags.
    pub fn port(&self) -> PortFlags {
        PortFlags { hairpin: self.hairpin, isolated: self.isolated, locked: self.mac.is_some() }
    }

    /// The port in `alias`: the word after mark, network, container and interface. A later word is the
    /// pod's name.
    pub fn of_alias(alias: &str) -> BridgePort {
        let word = alias.split(' ').nth(4).and_then(|word| word.strip_prefix(WORD));
        let Some(word) = word.filter(|word| !word.contains('/')) else {
            return BridgePort::default();
        };
        let mut port = BridgePort { hairpin: false, ..BridgePort::default() };
        for part in word.split(',') {
            match part.split_once('=') {
                None if part == "hairpin" => port.hairpin = true,
                None if part == "isolated" => port.isolated = true,
                Some(("mac", digits)) => port.mac = mac(digits),
                // Of a later release.
                _ => {}
            }
        }
        port
    }

    /// The word for the alias of the link of `pod`, at most 38 bytes; none for the default.
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

/// The port flags that `conf` gives its pods.
pub fn port_flags(conf: &NetConf) -> PortFlags {
    let (hairpin, isolated) = (conf.hairpin_mode, conf.port_isolation);
    PortFlags { hairpin, isolated, locked: conf.mac_spoof_check }
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
    fn a_port_is_recorded_and_the_default_needs_no_word() {
        for port in all() {
            for pod in [None, Some("a/b"), Some("port=isolated")] {
                let word = port.word(pod);
                assert!(word.as_ref().is_none_or(|word| word.len() <= 38), "{word:?}");
                let words = ["humanz n c1 eth0".to_owned()].into_iter().chain(word);
                let alias: Vec<String> = words.chain(pod.map(str::to_owned)).collect();
                assert_eq!(BridgePort::of_alias(&alias.join(" ")), port, "{alias:?}");
            }
        }
        assert_eq!(BridgePort::default().word(Some("a/b")), None);
        let word = all()[1].word(None);
        assert_eq!(word.as_deref(), Some("port=hairpin,isolated,mac=0a580af40102"));
    }

    #[test]
    fn an_alias_without_the_word_means_the_default() {
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
