//! POLICY: what goes with it, and that nothing is left when it is off.

use crate::support::{Agent, Place};
use crate::{FILE, STANDALONE, alone, only_from, serve, write_policies};

#[test]
fn settings_that_would_lead_past_policies_are_refused_with_the_reason() {
    let alone = alone();
    let host = &alone.host;
    for (settings, reason) in [
        (&[("POD_ROUTING", "bridge")][..], "by the bridge, past every policy"),
        (&[("POD_GUARD", "off")], "by the bridge, past every policy"),
        (&[("FLOWTABLE", "true")], "pass by the forward chains"),
        (&[("ALLOWED_ADDRESSES", "192.0.2.0/24")], "from their own addresses only"),
        (&[("POLICY_FILE", "")], "needs a file"),
        (&[("SUBNET_SOURCE", "kubernetes")], "from the API alone"),
        (&[("POLICY_ON_AGENT_DOWN", "never")], "quarantine, fail or open"),
    ] {
        let ended = Agent::run(host, "check-config", &[STANDALONE, settings].concat());
        assert!(!ended.succeeded() && ended.to_string().contains(reason), "{ended}");
    }
}

#[test]
fn without_policies_there_is_no_table_and_the_plugin_asks_nobody() {
    let alone = alone();
    let host = &alone.host;
    write_policies(host, &[only_from("db", &["web"])]);
    let configuration = || host.read("/etc/cni/net.d/05-humanz.conflist").unwrap();
    serve(host, &[]).stop();
    assert!(host.run("nft list tables").ok().contains("humanz-policy"));
    assert!(configuration().contains("\"policy\": \"quarantine\""), "{}", configuration());
    let agent = serve(host, &[("POLICY", "off")]);
    assert!(!host.run("nft list tables").ok().contains("humanz-policy"));
    assert!(!configuration().contains("\"policy\""), "{}", configuration());
    agent.stop();
    serve(host, &[("POLICY_FILE", FILE)]).stop();
    Agent::run(host, "uninstall --purge", STANDALONE).ok();
    assert!(!host.run("nft list tables").ok().contains("humanz-policy"));
    assert_eq!(host.list("/var/lib/humanz"), Vec::<String>::new());
}
