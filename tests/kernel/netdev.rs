//! Chains at the ingress of devices that come and go.

use std::cell::Cell;
use std::collections::BTreeSet;

use humanz::net::IfName;
use humanz::netlink::link::{self, LinkRef};
use humanz::netlink::rtnl::Rtnl;
use humanz::nft::Nft;
use humanz::nft::frame::{DeviceChain, FrameAction, FrameRule};

use crate::{bridge, in_namespace, name};

const TABLE: &str = "swept";

fn add(rtnl: &Rtnl, nft: &Nft, device: &str) {
    bridge(rtnl, device);
    let rule =
        FrameRule { comment: "all".to_owned(), matches: Vec::new(), action: FrameAction::Accept };
    let chain = DeviceChain { device: name(device), rules: vec![rule] };
    nft.set_device_chains(TABLE, "test", &[&chain]).unwrap();
}

fn remove(rtnl: &Rtnl, device: &str) {
    rtnl.apply(&[link::delete(LinkRef::Name(&name(device)))]).unwrap();
}

fn devices(rtnl: &Rtnl) -> BTreeSet<IfName> {
    rtnl.links(None).unwrap().into_iter().map(|link| link.name).collect()
}

fn chains(nft: &Nft) -> Vec<String> {
    nft.device_chain_sizes(TABLE).unwrap().into_keys().collect()
}

#[test]
fn only_chains_without_a_device_are_swept() {
    in_namespace(|rtnl| {
        let nft = Nft::open().unwrap();
        assert_eq!(nft.sweep_device_chains(TABLE, || Ok(devices(rtnl))).unwrap(), 0, "no table");
        for device in ["d1", "d2", "d3"] {
            add(rtnl, &nft, device);
        }
        remove(rtnl, "d1");
        remove(rtnl, "d3");
        let kept = chains(&nft).len() - 1;
        assert_eq!(nft.sweep_device_chains(TABLE, || Ok(devices(rtnl))).unwrap(), kept);
        assert_eq!(chains(&nft), ["d2"]);
        assert_eq!(nft.sweep_device_chains(TABLE, || Ok(devices(rtnl))).unwrap(), 0);
    });
}

/// A pod of the same name comes back while its former chain is swept.
#[test]
fn a_chain_that_is_made_anew_in_between_stays() {
    in_namespace(|rtnl| {
        let nft = Nft::open().unwrap();
        add(rtnl, &nft, "d1");
        add(rtnl, &nft, "d2");
        remove(rtnl, "d1");
        let looks = Cell::new(0);
        let list = || {
            let found = devices(rtnl);
            if looks.replace(looks.get() + 1) == 0 {
                add(rtnl, &nft, "d1");
            }
            Ok(found)
        };
        let keeps_chains = chains(&nft).len() == 2;
        assert_eq!(nft.sweep_device_chains(TABLE, list).unwrap(), 0);
        // Where the kernel keeps no chain without its device there is nothing to be swept.
        assert_eq!(looks.get(), if keeps_chains { 2 } else { 1 });
        let mut expected = vec!["d2"];
        expected.extend(keeps_chains.then_some("d1"));
        assert!(expected.iter().all(|device| chains(&nft).contains(&(*device).to_owned())));
    });
}
