//! Which scope an event of the kernel asks for.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::agent::own_writes::OwnWrites;
use crate::agent::trigger::Scope;
use crate::net::gather::Gather;
use crate::net::{Family, IfName};
use crate::netlink::events::{KernelEvent, LinkState};
use crate::netlink::link::Link;
use crate::netlink::route;
use crate::netlink::rtnl::Rtnl;
use crate::nft::frame::notice::FrameNotice;
use crate::os::heartbeat;
use crate::plan::encryption;
use crate::plan::guard::{LEFTOVERS, Transactions};
use crate::plan::tunnel::device_name;

/// By then a plugin has announced the pod of its port, if it does so.
const ANNOUNCED: Duration = Duration::from_secs(1);

/// The links whose events matter.
pub struct EventFilter {
    bridge: IfName,
    /// Indexes of the tunnels' devices, also of earlier ones: the kernel does not give a number
    /// twice for a long time.
    tunnels: BTreeSet<u32>,
    /// Indexes of pods' ends that are plugged in somewhere.
    attached: BTreeSet<u32>,
    /// Ports that came while policies are in force …
    came: Vec<IfName>,
    /// … and when they are passed on.
    due: Option<Instant>,
    /// Indexes of links that went, by events that are not classified yet.
    going: Vec<u32>,
    /// Pods' ends that went, and left their guards.
    gone: usize,
    /// What the plugin, and others, do to guards.
    guards: Transactions,
    /// What this agent changes itself.
    own: Arc<OwnWrites>,
}

impl EventFilter {
    /// A filter for this bridge, and for the tunnels and pods of the calling thread's network namespace.
    pub fn new(bridge: &IfName, own: Arc<OwnWrites>) -> EventFilter {
        let (tunnels, attached, came, going, gone, guards) = Default::default();
        let (bridge, due) = (bridge.clone(), None);
        let mut filter =
            EventFilter { bridge, tunnels, attached, came, due, going, gone, guards, own };
        filter.find_links();
        filter
    }

    /// How long events may be waited for.
    pub fn patience(&self) -> Duration {
        let left = self.due.map(|due| due.saturating_duration_since(Instant::now()));
        left.map_or(heartbeat::EVERY, |left| left.min(heartbeat::EVERY))
    }

    /// The pods' ports that came some time ago: many at once, and each of them once.
    pub fn take_ports(&mut self) -> Option<Vec<IfName>> {
        self.due.take_if(|due| *due <= Instant::now()).map(|_| std::mem::take(&mut self.came))
    }

    /// The scope that these events ask for.
    pub fn classify(&mut self, events: &[KernelEvent]) -> Scope {
        let gone = |event: &KernelEvent| match event {
            KernelEvent::Link { index, now: LinkState::Gone, .. } => Some(*index),
            _ => None,
        };
        self.going = events.iter().filter_map(gone).collect();
        events.iter().map(|event| self.scope_of(event)).fold(Scope::default(), Scope::and)
    }

    /// Ends of pods come and go all the time and are the plugin's, but for those that somebody takes
    /// off their bridge or sets down (the plugin adds them down, and the kernel takes them down before they
    /// go); of routes only those matter that bear our mark and went, those that others change among pods'
    /// addresses, and the default route: it decides which of its addresses this host publishes, and comes
    /// after them; of neighbours those of the tunnels that others change; of guards all but those that come
    /// with their ports.
    fn scope_of(&mut self, event: &KernelEvent) -> Scope {
        match event {
            KernelEvent::Link { name, index, .. } if is_tunnel(name) => {
                self.tunnels.insert(*index);
                Scope::LINKS
            }
            KernelEvent::Link { name, .. } if *name == self.bridge => Scope::LINKS,
            KernelEvent::Link { name, index, now } if is_of_pod(name) => {
                self.scope_of_pod(name, *index, *now)
            }
            KernelEvent::Link { .. } => Scope::LINKS,
            KernelEvent::Address { .. } => Scope::LINKS.and(Scope::POLICY),
            KernelEvent::NeighbourGone { index } if self.tunnels.contains(index) => Scope::ROUTES,
            KernelEvent::NeighbourGone { .. } => Scope::default(),
            // It goes with its port, too.
            KernelEvent::LocalMacGone { index }
                if !self.going.contains(index) && self.is_plugged_in(*index) =>
            {
                Scope::ALL
            }
            KernelEvent::LocalMacGone { .. } => Scope::default(),
            KernelEvent::Neighbour { index, sender } => {
                let is_foreign = self.tunnels.contains(index) && !self.own.is_sender(*sender);
                if is_foreign { Scope::ROUTES } else { Scope::default() }
            }
            KernelEvent::Destination { index, to } => {
                let is_foreign = self.tunnels.contains(index) && !self.own.wrote(*index, to);
                if is_foreign { Scope::ROUTES } else { Scope::default() }
            }
            KernelEvent::Route { default: true, .. } => Scope::LINKS,
            KernelEvent::Route { protocol: route::PROTOCOL, gone: true, .. } => Scope::ROUTES,
            KernelEvent::Route { destination, sender, .. } => {
                let is_foreign = !self.own.is_sender(*sender) && self.own.is_of_pods(*destination);
                if is_foreign { Scope::ROUTES } else { Scope::default() }
            }
            // Of the devices of tunnels, too, and those are looked at with the routes.
            KernelEvent::ForwardingOff => Scope::LINKS,
            KernelEvent::Nftables { sender } if self.own.changes_tables_from(*sender) => {
                Scope::default()
            }
            KernelEvent::Nftables { .. } => Scope::FIREWALL,
            KernelEvent::Frames { kind, body } => {
                self.guards.receive(FrameNotice::read(*kind, body));
                Scope::default()
            }
            KernelEvent::FramesDone if self.guards.end() => Scope::default(),
            KernelEvent::FramesDone => Scope::FIREWALL,
            KernelEvent::Lost => {
                self.find_links();
                Scope::ALL
            }
        }
    }

    fn scope_of_pod(&mut self, name: &IfName, index: u32, now: LinkState) -> Scope {
        let has_policies = self.own.policies.load(Ordering::Relaxed);
        match now {
            LinkState::Port => {
                if self.attached.insert(index) && has_policies {
                    self.due.get_or_insert_with(|| Instant::now() + ANNOUNCED);
                    self.came.push(name.clone());
                }
            }
            LinkState::Alone if self.attached.remove(&index) => return Scope::ALL,
            // One that goes is set down before; it is gone when the kernel has answered.
            LinkState::PortDown => {
                let is_going = self.going.contains(&index);
                if !is_going && self.attached.contains(&index) && is_there(index) {
                    return Scope::ALL;
                }
            }
            LinkState::Alone | LinkState::Down => {}
            LinkState::Gone => {
                self.attached.remove(&index);
                self.gone += 1;
                let leaves_guards = self.gone.is_multiple_of(LEFTOVERS);
                let guards = if leaves_guards { Scope::FIREWALL } else { Scope::default() };
                let policies = if has_policies { Scope::PODS } else { Scope::default() };
                return guards.and(policies);
            }
        }
        Scope::default()
    }

    /// The link is a pod's and still a port, or the bridge.
    fn is_plugged_in(&self, index: u32) -> bool {
        let link = Rtnl::open().and_then(|rtnl| rtnl.link_by_index(index));
        let is_own = |link: &Link| {
            link.name == self.bridge || (link.master.is_some() && is_of_pod(&link.name))
        };
        link.is_ok_and(|link| link.is_some_and(|link| is_own(&link)))
    }

    /// Without an answer from the kernel the full reconcile, once a minute, sees what is missed here.
    fn find_links(&mut self) {
        let Ok(links) = Rtnl::open().and_then(|rtnl| rtnl.links(None)) else { return };
        self.tunnels.extend(links.iter().filter(|link| is_tunnel(&link.name)).map(|l| l.index));
        let plugged = links.iter().filter(|link| is_of_pod(&link.name) && link.master.is_some());
        self.attached = plugged.map(|link| link.index).gather();
    }
}

fn is_there(index: u32) -> bool {
    let link = Rtnl::open().and_then(|rtnl| rtnl.link_by_index(index));
    link.is_ok_and(|link| link.is_some_and(|link| !link.up))
}

fn is_of_pod(name: &IfName) -> bool {
    name.as_str().starts_with("hz")
}

fn is_tunnel(name: &IfName) -> bool {
    Family::BOTH.into_iter().any(|family| *name == device_name(family))
        || encryption::device_names().contains(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::fdb::Destination;

    const OWN_PORT: u32 = 77;

    fn filter() -> EventFilter {
        let (tunnels, attached, came, due, going, gone, guards) = Default::default();
        let own = OwnWrites::new(OWN_PORT, OWN_PORT);
        own.set_pools(vec!["10.244.0.0/16".parse().unwrap()]);
        let (bridge, own) = ("hz-br".parse().unwrap(), Arc::new(own));
        EventFilter { bridge, tunnels, attached, came, due, going, gone, guards, own }
    }

    fn link(name: &str) -> KernelEvent {
        link_that(name, LinkState::Port)
    }

    fn link_that(name: &str, now: LinkState) -> KernelEvent {
        KernelEvent::Link { name: name.parse().unwrap(), index: 7, now }
    }

    #[test]
    fn the_bridge_counts_and_the_end_of_a_pod_does_not() {
        assert_eq!(filter().classify(&[link("hz-br")]), Scope::LINKS);
        assert_eq!(filter().classify(&[link("eth0")]), Scope::LINKS);
        assert_eq!(filter().classify(&[link("humanz-wg")]), Scope::LINKS);
        assert_eq!(filter().classify(&[link("hz0123456789abc")]), Scope::default());
    }

    #[test]
    fn a_pod_that_is_taken_off_its_bridge_counts_and_one_that_comes_or_goes_does_not() {
        use LinkState::{Alone, Down, Gone, Port, PortDown};
        let received = |story: &[LinkState]| {
            let mut filter = filter();
            let scopes =
                story.iter().map(|now| filter.classify(&[link_that("hz0123456789abc", *now)]));
            let scopes: Vec<Scope> = scopes.collect();
            (scopes.into_iter().fold(Scope::default(), Scope::and), filter.attached.len())
        };
        assert_eq!(received(&[Down, Port, Port, Down, Down, Gone]), (Scope::default(), 0));
        assert_eq!(received(&[PortDown, Port, PortDown, Down, Gone]), (Scope::default(), 0));
        assert_eq!(received(&[Down, Port, Alone]), (Scope::ALL, 0));
        assert_eq!(received(&[Down, Alone]), (Scope::default(), 0));
        assert_eq!(received(&[Down, Port, Alone, Port]), (Scope::ALL, 1));
    }

    #[test]
    fn of_a_link_that_is_known_to_be_gone_the_kernel_is_not_asked() {
        // The kernel has link 1 in every namespace, and knows it by this name.
        let heard = |events: &[KernelEvent]| {
            EventFilter { bridge: "lo".parse().unwrap(), ..filter() }.classify(events)
        };
        let went = KernelEvent::LocalMacGone { index: 1 };
        let (name, now) = ("hz0123456789abc".parse().unwrap(), LinkState::Gone);
        assert_eq!(heard(std::slice::from_ref(&went)), Scope::ALL);
        assert_eq!(heard(&[went, KernelEvent::Link { name, index: 1, now }]), Scope::default());
    }

    #[test]
    fn many_pods_that_went_leave_guards_to_be_removed() {
        let gone = link_that("hz0123456789abc", LinkState::Gone);
        let mut filter = filter();
        let scopes: Vec<Scope> =
            (0..2 * LEFTOVERS).map(|_| filter.classify(std::slice::from_ref(&gone))).collect();
        let asking = scopes.iter().filter(|scope| **scope == Scope::FIREWALL).count();
        assert_eq!((asking, scopes[LEFTOVERS - 1]), (2, Scope::FIREWALL));
        filter.own.policies.store(true, Ordering::Relaxed);
        let scopes: Vec<Scope> =
            (0..LEFTOVERS).map(|_| filter.classify(std::slice::from_ref(&gone))).collect();
        assert!(scopes.iter().all(|scope| scope.policy), "each leaves its policies");
        assert!(scopes[LEFTOVERS - 1].firewall);
    }

    #[test]
    fn with_policies_a_port_that_came_is_passed_on_once_and_later() {
        let port = link("hz0123456789abc");
        let mut filter = filter();
        filter.classify(std::slice::from_ref(&port));
        assert_eq!((filter.patience(), filter.due), (heartbeat::EVERY, None), "without policies");
        filter.classify(&[link_that("hz0123456789abc", LinkState::Gone)]);
        filter.own.policies.store(true, Ordering::Relaxed);
        filter.classify(&[port.clone(), port.clone()]);
        let first = filter.due.unwrap();
        assert!(filter.patience() <= ANNOUNCED && filter.take_ports().is_none());
        let KernelEvent::Link { name, .. } = &port else { panic!() };
        let other: IfName = "hz0123456789abd".parse().unwrap();
        filter.classify(&[KernelEvent::Link {
            name: other.clone(),
            index: 8,
            now: LinkState::Port,
        }]);
        assert_eq!(filter.due, Some(first), "a storm of ports delays nothing");
        filter.due = Some(Instant::now());
        assert_eq!(filter.take_ports(), Some(vec![name.clone(), other]));
        assert_eq!((filter.take_ports(), filter.patience()), (None, heartbeat::EVERY));
    }

    #[test]
    fn of_neighbours_only_those_of_tunnels_count() {
        let mut filter = filter();
        let gone = [KernelEvent::NeighbourGone { index: 7 }];
        assert_eq!(filter.classify(&gone), Scope::default());
        assert_eq!(filter.classify(&[link("humanz-vx4")]), Scope::LINKS);
        assert_eq!(filter.classify(&gone), Scope::ROUTES);
    }

    #[test]
    fn of_neighbours_and_destinations_of_tunnels_only_changes_of_others_count() {
        let mut filter = filter();
        filter.tunnels.insert(7);
        let neighbour = |index, sender| [KernelEvent::Neighbour { index, sender }];
        assert_eq!(filter.classify(&neighbour(7, OWN_PORT)), Scope::default());
        assert_eq!(filter.classify(&neighbour(7, 5)), Scope::ROUTES);
        assert_eq!(filter.classify(&neighbour(8, 5)), Scope::default());
        let to = |address: &str| Destination {
            mac: "0a:58:0a:f4:02:00".parse().unwrap(),
            address: address.parse().unwrap(),
            port: None,
        };
        let received = |index, address| [KernelEvent::Destination { index, to: to(address) }];
        filter.own.note(7, 10400, &to("192.0.2.2"));
        assert_eq!(filter.classify(&received(7, "192.0.2.2")), Scope::default());
        assert_eq!(filter.classify(&received(7, "192.0.2.3")), Scope::ROUTES);
        assert_eq!(filter.classify(&received(8, "192.0.2.3")), Scope::default());
    }

    #[test]
    fn of_routes_only_ours_that_went_and_those_of_others_among_pods_count() {
        let received = |protocol, gone, sender, destination: &str| {
            let destination = destination.parse().unwrap();
            filter().classify(&[KernelEvent::Route {
                protocol,
                default: false,
                gone,
                destination,
                sender,
            }])
        };
        let ours = route::PROTOCOL;
        assert_eq!(received(ours, true, OWN_PORT, "10.244.2.0/24"), Scope::ROUTES);
        assert_eq!(received(ours, false, OWN_PORT, "10.244.2.0/24"), Scope::default());
        assert_eq!(received(ours, false, 5, "10.244.2.0/24"), Scope::ROUTES);
        assert_eq!(received(4, false, 5, "10.244.2.0/24"), Scope::ROUTES);
        assert_eq!(received(4, true, 5, "10.244.2.128/25"), Scope::ROUTES);
        assert_eq!(received(4, false, 5, "192.0.2.0/24"), Scope::default());
        let nftables = |sender| KernelEvent::Nftables { sender };
        assert_eq!(filter().classify(&[nftables(1), KernelEvent::Lost]), Scope::ALL);
        assert_eq!(filter().classify(&[nftables(1)]), Scope::FIREWALL);
        assert_eq!(filter().classify(&[nftables(OWN_PORT)]), Scope::default());
    }
}
