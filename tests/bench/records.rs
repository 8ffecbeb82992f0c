//! Hosts that exist in etcd only: the keys that their agents would have written.

use std::net::{IpAddr, Ipv4Addr};
use std::num::NonZeroU16;
use std::ops::Range;
use std::time::Instant;

use etcd_client::{Client, Txn, TxnOp};
use humanz::lease::records::{Backend, Key, NodeRecord, Roots, Tunnel, Vxlan, WireguardEnd};
use humanz::net::PublicKey;
use ipnetwork::{IpNetwork, Ipv4Network};

use crate::support::store::Store;

/// Operations that etcd takes in one transaction, by default.
const OPERATIONS: usize = 128;

/// Writes hosts `numbers`, below 15,000, each whole in one transaction; gives the moment just
/// before the last request left.
pub fn join(etcd: &Store, numbers: Range<u32>) -> Instant {
    write(etcd, numbers.map(|number| keys(number, None)).collect())
}

/// The same with hosts that encrypt.
pub fn join_encrypted(etcd: &Store, numbers: Range<u32>) -> Instant {
    write(etcd, numbers.map(|number| keys(number, Some(end(number)))).collect())
}

fn write(etcd: &Store, hosts: Vec<Vec<TxnOp>>) -> Instant {
    let batches: Vec<Vec<TxnOp>> =
        hosts.chunks(OPERATIONS / 4).map(|hosts| hosts.concat()).collect();
    let write = async {
        let mut client = Client::connect([Store::url()], None).await?;
        // A connection is made by the first request on it.
        client.get("x", None).await?;
        let mut left = Instant::now();
        for batch in batches {
            left = Instant::now();
            client.txn(Txn::new().and_then(batch)).await?;
        }
        Ok::<_, etcd_client::Error>(left)
    };
    let work = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.unwrap().block_on(write)
    };
    etcd.node.with_namespace(|namespace| namespace.on_its_network(work)).unwrap()
}

/// Where the pods of host `number` are: in 11.0.0.0/8.
pub fn subnet(number: u32) -> IpNetwork {
    let first = Ipv4Addr::from(u32::from(Ipv4Addr::new(11, 0, 0, 0)) + (number << 8));
    Ipv4Network::new(first, 24).expect("24 bits").into()
}

/// The host's own address: in 10.99.0.0/16.
pub fn address(number: u32) -> IpAddr {
    Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 99, 0, 0)) + number).into()
}

/// Its end of encrypted tunnels.
pub fn end(number: u32) -> WireguardEnd {
    let mut bytes = [9; 32];
    bytes[..4].copy_from_slice(&number.to_le_bytes());
    let port = NonZeroU16::new(10401).expect("a port");
    WireguardEnd::new(PublicKey(bytes), port)
}

fn keys(number: u32, wireguard: Option<WireguardEnd>) -> Vec<TxnOp> {
    let name = format!("peer{number}");
    let machine_id = format!("{number:032x}");
    let mut node = NodeRecord::new(&machine_id, &machine_id, env!("CARGO_PKG_VERSION"));
    node.subnets.v4 = Some(subnet(number));
    node.addresses.v4 = Some(address(number));
    node.mtu = 1500;
    node.backend = Backend::Auto;
    node.wireguard = wireguard;
    node.tunnel = Tunnel::of(&node.subnets, Vxlan { vni: 104, port: 10400 });
    let parsed = || name.parse().expect("a host name");
    let roots = Roots {
        hosts: "/humanz/hosts".to_owned(),
        counter: "/humanz/counter".to_owned(),
        humanz: "/humanz/v1".to_owned(),
    };
    let claim = wireguard.map(|end| (Key::WireguardKey(parsed()), end.public_key.to_string()));
    let all = [
        (Key::Host(parsed()), subnet(number).to_string()),
        (Key::Claim(subnet(number)), name.clone()),
        (Key::Node(parsed()), node.to_json()),
    ];
    let all = claim.into_iter().chain(all);
    all.map(|(key, value)| TxnOp::put(roots.key(&key), value, None)).collect()
}
