//! The address store on a real file system: many processes, killed processes, broken files.

// A test stops at the first failure and prints its measurements.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod broken;
mod earlier;
mod ended;
mod one;
mod processes;

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use humanz::cni::config::RangeConf;
use humanz::ipam::import::Sources;
use humanz::ipam::pool::range_sets;
use humanz::ipam::{Owner, RangeSet, Store, StoreError};
use tempfile::TempDir;

const WAIT: Duration = Duration::from_secs(20);
const BOOT: &str = "boot-1";

struct Fixture {
    dir: TempDir,
}

impl Fixture {
    /// In memory, where `/run` is too.
    fn new() -> Fixture {
        let dir = tempfile::tempdir_in("/dev/shm").expect("the tests need a /dev/shm");
        Fixture { dir }
    }

    fn store(&self) -> Store {
        self.store_of("net")
    }

    fn store_of(&self, network: &str) -> Store {
        Store::open(self.dir.path(), network, BOOT, Sources::default())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join("net").join(name)
    }

    /// Names of the address files.
    fn addresses(&self) -> Vec<String> {
        address_files(&self.path(""))
    }

    fn importing(&self, boot: &str, go_seed: Option<&Path>, host_local: Option<&Path>) -> Store {
        let sources = Sources {
            go_seed: go_seed.map(Path::to_owned),
            host_local: host_local.map(Path::to_owned),
        };
        Store::open(self.dir.path(), "net", boot, sources)
    }
}

fn address_files(dir: &Path) -> Vec<String> {
    let names = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name());
    let names = names.filter_map(|name| name.into_string().ok());
    let mut names: Vec<_> = names.filter(|name| name.parse::<IpAddr>().is_ok()).collect();
    names.sort();
    names
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn ips(texts: &[&str]) -> Vec<IpAddr> {
    texts.iter().map(|text| ip(text)).collect()
}

/// One range set of whole subnets.
fn set(subnets: &[&str]) -> RangeSet {
    let conf = |text: &&str| RangeConf {
        subnet: text.parse().unwrap(),
        range_start: None,
        range_end: None,
        gateway: None,
    };
    range_sets(&[subnets.iter().map(conf).collect()]).unwrap().remove(0)
}

fn owner(container_id: &str, ifname: &str) -> Owner {
    Owner {
        container_id: container_id.to_owned(),
        ifname: ifname.to_owned(),
        pod: Some("default/web".to_owned()),
        netns: Some("/run/netns/x".to_owned()),
        time_secs: 1_700_000_000,
        ..Owner::default()
    }
}

/// Reserves and keeps.
fn add(
    store: &Store,
    container_id: &str,
    sets: &[RangeSet],
    requested: &[&str],
) -> Result<Vec<IpAddr>, StoreError> {
    let locked = store.lock(WAIT)?;
    let reservation = locked.reserve(&owner(container_id, "eth0"), sets, &ips(requested))?;
    let addresses = reservation.addresses().to_vec();
    reservation.commit();
    Ok(addresses)
}

fn del(store: &Store, container_id: &str) -> Vec<IpAddr> {
    store.lock(WAIT).unwrap().release(container_id, "eth0").unwrap()
}
