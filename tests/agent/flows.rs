//! FLOWTABLE: the nftables flow table for packets of established connections.

use nix::sys::signal::Signal;

use crate::support::{Node, Place, soon};
use crate::{alone, serve};

/// Whether this kernel has flow tables at all.
fn kernel_has_them(host: &Node) -> bool {
    host.shell(
        "nft 'add table inet probe
              add flowtable inet probe f { hook ingress priority 0; devices = { eth0 }; }'
         nft delete table inet probe",
    )
    .succeeded()
}

fn flowtables(host: &Node) -> String {
    host.run("nft list flowtables inet").stdout
}

#[test]
fn an_enabled_flow_table_is_kept_or_its_absence_is_logged_once() {
    let alone = alone();
    let host = &alone.host;
    let has = kernel_has_them(host);
    let agent = serve(host, &[("FLOWTABLE", "true")]);
    if has {
        let made = || {
            let shown = flowtables(host);
            shown.contains("eth0") && shown.contains("humanz0")
        };
        assert!(made(), "{}", flowtables(host));
        host.run("nft delete table inet humanz-flows").ok();
        soon("the table is back", made);
        host.run("ip link del humanz0").ok();
        soon("the new bridge is in the table", made);
    } else {
        agent.wait_log(&["FLOWTABLE=true", "modprobe -a"]);
        agent.process.signal(Signal::SIGHUP);
        agent.wait_log(&["reload: no setting changes"]);
        let log = agent.log();
        assert_eq!(log.matches("FLOWTABLE=true, and the kernel").count(), 1, "{log}");
        assert!(!host.run("nft list tables").ok().contains("humanz-flows"));
    }
    agent.stop();
}

#[test]
fn a_disabled_flow_table_is_removed() {
    let alone = alone();
    let host = &alone.host;
    host.run("nft add table inet humanz-flows").ok();
    let agent = serve(host, &[]);
    let tables = host.run("nft list tables").ok();
    assert!(!tables.contains("humanz-flows"), "{tables}");
    agent.stop();
}
