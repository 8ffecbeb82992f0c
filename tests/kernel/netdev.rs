//! What pods leave of their guards, and what is kept.

use std::cell::Cell;
use std::collections::BTreeMap;

use humanz::net::IfName;
use humanz::netlink::link::{self, LinkRef};
use humanz::netlink::rtnl::Rtnl;
use humanz::nft::Nft;
use humanz::nft::frame::FoundFrames;
use humanz::nft::frame::edit::FrameEdit;
use humanz::plan::guard::{Guard, TABLE, all_sets, leftovers, shared_edits};

use crate::{bridge, in_namespace, name};

fn guard(device: &str) -> Guard {
    Guard {
        device: name(device),
        mac: "0a:58:0a:01:00:02".parse().unwrap(),
        addresses: vec!["10.1.0.2".parse().unwrap(), "fd00::2".parse().unwrap()],
        allowed: vec!["10.9.0.0/16".parse().unwrap(), "ff02::12/128".parse().unwrap()],
        routed_by: Some("0a:58:00:00:00:01".parse().unwrap()),
        dscp: None,
        shaped: None,
    }
}

/// A device with its guard; gives its index.
fn add(rtnl: &Rtnl, nft: &Nft, device: &str) -> u32 {
    bridge(rtnl, device);
    let (index, guard) = (rtnl.link(&name(device)).unwrap().unwrap().index, guard(device));
    let own = guard.edits(index, &BTreeMap::new());
    let edits: Vec<FrameEdit> = shared_edits(&guard.shared()).into_iter().chain(own).collect();
    nft.edit_frames(TABLE, &edits).unwrap();
    index
}

fn remove(rtnl: &Rtnl, device: &str) {
    rtnl.apply(&[link::delete(LinkRef::Name(&name(device)))]).unwrap();
}

fn alive(rtnl: &Rtnl) -> BTreeMap<u32, IfName> {
    rtnl.links(None).unwrap().into_iter().map(|link| (link.index, link.name)).collect()
}

fn found(nft: &Nft) -> FoundFrames {
    nft.frames(TABLE, &all_sets()).unwrap().unwrap()
}

fn sweep(rtnl: &Rtnl, nft: &Nft) -> usize {
    nft.edit_frames_as_seen(TABLE, || match nft.frames(TABLE, &all_sets())? {
        Some(found) => Ok(leftovers(&found, &alive(rtnl))),
        None => Ok(Vec::new()),
    })
    .unwrap()
}

#[test]
fn a_guard_is_read_back_as_it_was_made() {
    in_namespace(|rtnl| {
        let nft = Nft::open().unwrap();
        let indexes = ["d1", "d2"].map(|device| add(rtnl, &nft, device));
        let (found, guard) = (found(&nft), guard("d1"));
        for chain in guard.shared().chains.iter().chain([&guard.chain()]) {
            assert!(chain.is_whole(found.chains.get(&chain.name)), "{}", chain.name);
        }
        for (set, elements) in guard.elements(indexes[0]) {
            assert!(!elements.is_empty() && elements.is_subset(&found.elements[&set]), "{set}");
            assert_eq!(found.elements[&set].len(), 2 * elements.len(), "{set}");
        }
        for chain in &guard.shared().chains {
            let rules = nft.frame_rules(TABLE, &chain.name).unwrap();
            assert_eq!(rules, found.chains[&chain.name].rules, "{}", chain.name);
        }
        assert_eq!(nft.frame_rules(TABLE, "none").unwrap(), []);
        let shared = guard.shared().chains.pop().unwrap().name;
        assert_eq!(found.chains[&shared].references, 2);
    });
}

#[test]
fn only_what_is_of_no_device_is_swept() {
    in_namespace(|rtnl| {
        let nft = Nft::open().unwrap();
        assert_eq!(sweep(rtnl, &nft), 0, "no table");
        for device in ["d1", "d2", "d3"] {
            add(rtnl, &nft, device);
        }
        remove(rtnl, "d1");
        remove(rtnl, "d3");
        assert!(sweep(rtnl, &nft) >= 5);
        let left: Vec<_> = nft.device_chain_names(TABLE).unwrap().into_iter().collect();
        assert_eq!(left, ["d2"]);
        assert_eq!(found(&nft).elements["mac"].len(), 1);
        assert_eq!(sweep(rtnl, &nft), 0);
    });
}

/// With `allowedAddresses` pods have shared rules of their own.
#[test]
fn shared_rules_go_with_their_last_pod() {
    in_namespace(|rtnl| {
        let nft = Nft::open().unwrap();
        let index = add(rtnl, &nft, "d1");
        let with = |network: &str| Guard { allowed: vec![network.parse().unwrap()], ..guard("d1") };
        let lead = |guard: &Guard| {
            let own = guard.edits(index, &guard.elements(index));
            let edits: Vec<_> = shared_edits(&guard.shared()).into_iter().chain(own).collect();
            nft.edit_frames(TABLE, &edits).unwrap();
        };
        let name = |guard: &Guard| guard.shared().chains.pop().unwrap().name;
        let shared = || {
            let names = found(&nft).chains.into_keys().filter(|name| name.starts_with("routed-"));
            names.collect::<Vec<_>>()
        };
        let [former, later] = ["10.9.0.0/16", "10.8.0.0/16"].map(with);
        assert_eq!(sweep(rtnl, &nft), 0);
        lead(&former);
        assert_eq!((shared().len(), sweep(rtnl, &nft), shared()), (2, 1, vec![name(&former)]));
        lead(&later);
        // A rule of somebody else leads there as well.
        let nft_run = |line: &str| {
            let ended = std::process::Command::new("nft").arg(line).output().unwrap();
            assert!(ended.status.success(), "{ended:?}");
        };
        nft_run(&format!("add chain netdev {TABLE} x"));
        nft_run(&format!("add rule netdev {TABLE} x goto {}", name(&former)));
        sweep(rtnl, &nft);
        assert_eq!(shared().len(), 2);
        remove(rtnl, "d1");
        sweep(rtnl, &nft);
        assert_eq!(shared(), [name(&former)]);
        nft_run(&format!("delete chain netdev {TABLE} x"));
        sweep(rtnl, &nft);
        assert_eq!(shared(), Vec::<String>::new());
    });
}

/// A pod of the same name comes back while what it had left is swept.
#[test]
fn a_guard_that_is_made_anew_in_between_stays() {
    in_namespace(|rtnl| {
        let nft = Nft::open().unwrap();
        add(rtnl, &nft, "d1");
        add(rtnl, &nft, "d2");
        remove(rtnl, "d1");
        let looks = Cell::new(0);
        let plan = || {
            let edits = leftovers(&found(&nft), &alive(rtnl));
            if looks.replace(looks.get() + 1) == 0 {
                add(rtnl, &nft, "d1");
            }
            Ok(edits)
        };
        assert!(nft.edit_frames_as_seen(TABLE, plan).unwrap() > 0);
        assert_eq!(looks.get(), 2);
        let left: Vec<_> = nft.device_chain_names(TABLE).unwrap().into_iter().collect();
        assert_eq!(left, ["d1", "d2"]);
        assert_eq!(found(&nft).elements["mac"].len(), 2);
    });
}
