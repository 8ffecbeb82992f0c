//! Where an event of the kernel says to look.

use std::collections::BTreeSet;

use crate::agent::trigger::Look;
use crate::net::{Family, IfName};
use crate::netlink::events::{Event, LinkNow};
use crate::netlink::route;
use crate::netlink::rtnl::Rtnl;
use crate::plan::tunnel::device_name;

/// Knows what concerns this host's pods.
pub struct Ears {
    bridge: IfName,
    /// Indexes of the tunnels' devices, also of earlier ones: the kernel does not give a number
    /// twice for a long time.
    tunnels: BTreeSet<u32>,
    /// Indexes of pods' ends that are plugged in somewhere.
    plugged: BTreeSet<u32>,
}

impl Ears {
    /// Ears for this bridge, and for the tunnels and pods of the calling thread's network namespace.
    pub fn new(bridge: &IfName) -> Ears {
        let (tunnels, plugged) = Default::default();
        let mut ears = Ears { bridge: bridge.clone(), tunnels, plugged };
        ears.find_links();
        ears
    }

    /// Where these events say to look.
    pub fn hear(&mut self, events: &[Event]) -> Look {
        events.iter().map(|event| self.look_for(event)).fold(Look::default(), Look::and)
    }

    /// Ends of pods come and go all the time and are the plugin's, but for those that somebody takes
    /// off their bridge (the plugin adds them down, and the kernel takes them down before they go); of
    /// routes only those matter that
    /// bear our mark and went, and the default route: it decides which of its addresses this host
    /// tells the others, and comes after them; of neighbours those of the tunnels.
    fn look_for(&mut self, event: &Event) -> Look {
        match event {
            Event::Link { name, index, .. } if is_tunnel(name) => {
                self.tunnels.insert(*index);
                Look::LINKS
            }
            Event::Link { name, .. } if *name == self.bridge => Look::LINKS,
            Event::Link { name, index, now } if is_of_pod(name) => self.look_for_pod(*index, *now),
            Event::Link { .. } | Event::Address { .. } => Look::LINKS,
            Event::NeighbourGone { index } if self.tunnels.contains(index) => Look::ROUTES,
            Event::NeighbourGone { .. } => Look::default(),
            Event::Route { default: true, .. } => Look::LINKS,
            Event::Route { protocol: route::PROTOCOL, gone: true, .. } => Look::ROUTES,
            Event::Route { .. } => Look::default(),
            // Of the devices of tunnels, too, and those are looked at with the routes.
            Event::ForwardingOff => Look::LINKS,
            Event::Nftables => Look::FIREWALL,
            Event::Lost => {
                self.find_links();
                Look::ALL
            }
        }
    }

    fn look_for_pod(&mut self, index: u32, now: LinkNow) -> Look {
        match now {
            LinkNow::Port => {
                self.plugged.insert(index);
            }
            LinkNow::Alone if self.plugged.remove(&index) => return Look::ALL,
            LinkNow::Alone | LinkNow::Down => {}
            LinkNow::Gone => {
                self.plugged.remove(&index);
            }
        }
        Look::default()
    }

    /// Without an answer from the kernel the full pass, once a minute, sees what is missed here.
    fn find_links(&mut self) {
        let Ok(links) = Rtnl::open().and_then(|rtnl| rtnl.links(None)) else { return };
        self.tunnels.extend(links.iter().filter(|link| is_tunnel(&link.name)).map(|l| l.index));
        let plugged = links.iter().filter(|link| is_of_pod(&link.name) && link.master.is_some());
        self.plugged = plugged.map(|link| link.index).collect();
    }
}

fn is_of_pod(name: &IfName) -> bool {
    name.as_str().starts_with("hz")
}

fn is_tunnel(name: &IfName) -> bool {
    Family::BOTH.into_iter().any(|family| *name == device_name(family))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ears() -> Ears {
        let (tunnels, plugged) = Default::default();
        Ears { bridge: "hz-br".parse().unwrap(), tunnels, plugged }
    }

    fn link(name: &str) -> Event {
        link_that(name, LinkNow::Port)
    }

    fn link_that(name: &str, now: LinkNow) -> Event {
        Event::Link { name: name.parse().unwrap(), index: 7, now }
    }

    #[test]
    fn the_bridge_counts_and_the_end_of_a_pod_does_not() {
        assert_eq!(ears().hear(&[link("hz-br")]), Look::LINKS);
        assert_eq!(ears().hear(&[link("eth0")]), Look::LINKS);
        assert_eq!(ears().hear(&[link("hz0123456789abc")]), Look::default());
    }

    #[test]
    fn a_pod_that_is_taken_off_its_bridge_counts_and_one_that_comes_or_goes_does_not() {
        use LinkNow::{Alone, Down, Gone, Port};
        let heard = |story: &[LinkNow]| {
            let mut ears = ears();
            let looks = story.iter().map(|now| ears.hear(&[link_that("hz0123456789abc", *now)]));
            let looks: Vec<Look> = looks.collect();
            (looks.into_iter().fold(Look::default(), Look::and), ears.plugged.len())
        };
        assert_eq!(heard(&[Down, Port, Port, Down, Down, Gone]), (Look::default(), 0));
        assert_eq!(heard(&[Down, Port, Alone]), (Look::ALL, 0));
        assert_eq!(heard(&[Down, Alone]), (Look::default(), 0));
        assert_eq!(heard(&[Down, Port, Alone, Port]), (Look::ALL, 1));
    }

    #[test]
    fn of_neighbours_only_those_of_tunnels_count() {
        let mut ears = ears();
        let gone = [Event::NeighbourGone { index: 7 }];
        assert_eq!(ears.hear(&gone), Look::default());
        assert_eq!(ears.hear(&[link("humanz-vx4")]), Look::LINKS);
        assert_eq!(ears.hear(&gone), Look::ROUTES);
    }

    #[test]
    fn of_routes_only_ours_that_went_count() {
        let route = |protocol, gone| Event::Route { protocol, default: false, gone };
        assert_eq!(ears().hear(&[route(route::PROTOCOL, true)]), Look::ROUTES);
        assert_eq!(ears().hear(&[route(route::PROTOCOL, false), route(2, true)]), Look::default());
        assert_eq!(ears().hear(&[Event::Nftables, Event::Lost]), Look::ALL);
    }
}
