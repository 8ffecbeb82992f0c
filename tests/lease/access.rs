//! etcd with users and roles.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::Duration;

use etcd_client::{Permission, UserAddOptions};
use humanz::etcd::{self, EtcdSetup, EtcdStart, Update};
use humanz::lease::claim::leave;

use crate::host::{HOSTS, HUMANZ, Host, pool, roots, start};
use crate::rotation::liveness_key;
use crate::support::etcd::{EtcdServer, isolated};

/// Turns authentication on: `root`, and `agent` with a role that has `permissions`.
pub fn enable(etcd: &mut EtcdServer, permissions: Vec<Permission>) {
    etcd.call(async |client| {
        client.user_add("root", "secret", None).await?;
        client.role_add("root").await?;
        client.user_grant_role("root", "root").await?;
        client.user_add("agent", "password", None).await?;
        client.role_add("host").await?;
        for permission in permissions {
            client.role_grant_permission("host", permission).await?;
        }
        client.user_grant_role("agent", "host").await?;
        client.auth_enable().await.map(drop)
    });
    etcd.connect_as("root", "secret");
}

/// The permissions that a host needs.
pub fn needed(name: &str) -> Vec<Permission> {
    let mut permissions = vec![
        Permission::read(format!("{HOSTS}/")).with_prefix(),
        Permission::read(format!("{HUMANZ}/")).with_prefix(),
        Permission::read_write("/humanz/counter"),
        Permission::write(format!("{HUMANZ}/config")),
        Permission::write(format!("{HUMANZ}/subnets/")).with_prefix(),
    ];
    for own in [
        format!("{HOSTS}/{name}"),
        format!("{HUMANZ}/nodes/{name}"),
        format!("{HUMANZ}/alive/{name}"),
    ] {
        permissions.push(Permission::write(own));
    }
    permissions
}

/// The permissions for reachability reports; without them a host works.
pub fn wanted(name: &str) -> Vec<Permission> {
    let range = format!("{HUMANZ}-probes/");
    vec![Permission::write(format!("{range}{name}")), Permission::read(range).with_prefix()]
}

pub fn start_as_agent(etcd: &EtcdServer, password_file: &Path) -> EtcdStart {
    let mut start = start(etcd, "h1");
    start.etcd.user = Some("agent".to_owned());
    start.etcd.password_file = Some(password_file.to_owned());
    start
}

pub fn password_file(folder: &Path, password: &str) -> std::path::PathBuf {
    let path = folder.join("password");
    fs::write(&path, format!("{password}\n")).unwrap();
    path
}

/// Changes the host's MTU and waits until etcd says so: a write and a read.
pub fn check_writes(host: &Host, mtu: u32) {
    let mut attributes = host.attributes.clone();
    attributes.mtu = mtu;
    host.handle().session.set_attributes(attributes);
    host.until("the new MTU", |found| found.nodes["h1"].value.mtu == mtu);
}

#[test]
fn a_host_needs_few_permissions_and_renews_its_token() {
    isolated(|| {
        let folder = tempfile::tempdir().unwrap();
        let mut etcd = EtcdServer::start_with(&["--auth-token-ttl", "2"]);
        enable(&mut etcd, needed("h1"));
        let host = Host::launch(start_as_agent(&etcd, &password_file(folder.path(), "password")));
        assert_eq!(host.subnet(), "10.244.1.0/24");
        // An unused token expires after its TTL, and only by time.
        thread::sleep(Duration::from_secs(5));
        check_writes(&host, 1400);
        // Tokens do not outlive their server.
        etcd.restart();
        check_writes(&host, 1300);
        etcd.put(&format!("{HOSTS}/h3"), "10.244.3.0/24");
        host.until_peers("h3", |peers| peers.by_name.contains_key("h3"));
    });
}

/// The missing permission, and the words of its message, in one line.
#[test]
fn each_permission_is_needed_and_reported_when_it_is_missing() {
    isolated(|| {
        let folder = tempfile::tempdir().unwrap();
        let file = password_file(folder.path(), "password");
        let said: [&[&str]; 8] = [
            &["read /humanz/hosts/:"],
            &["read /humanz/v1/:"],
            &["count up /humanz/counter:"],
            &["write the network settings", "write /humanz/v1/config"],
            &["claim this host's subnet", "/humanz/v1/subnets/4/10.244.1.0-24"],
            &["claim this host's subnet", "write /humanz/hosts/h1"],
            &["claim this host's subnet", "/humanz/v1/nodes/h1"],
            &["write the alive key", "write /humanz/v1/alive/h1"],
        ];
        assert_eq!(said.len(), needed("h1").len());
        for (missing, words) in said.iter().enumerate() {
            let mut etcd = EtcdServer::start();
            let mut permissions = needed("h1");
            let missing = permissions.remove(missing);
            enable(&mut etcd, permissions);
            let host = Host::launch(start_as_agent(&etcd, &file));
            let why = host.disconnected(0);
            assert!(why.what.contains("permission denied"), "{why}");
            assert!(why.fix.as_ref().unwrap().contains("grants the role"), "{why}");
            assert!(words.iter().all(|word| why.what.contains(word)), "{words:?}: {why}");
            etcd.call(async |client| client.role_grant_permission("host", missing).await.map(drop));
            assert_eq!(host.subnet(), "10.244.1.0/24", "with the permission that was missing");
            host.until("the alive key", |found| found.alive.contains_key("h1"));
        }
    });
}

#[test]
fn a_read_only_user_needs_two_ranges() {
    isolated(|| {
        let folder = tempfile::tempdir().unwrap();
        let mut etcd = EtcdServer::start();
        let mut permissions = needed("h1");
        permissions.truncate(2);
        enable(&mut etcd, permissions);
        etcd.put(&format!("{HOSTS}/h2"), "10.244.2.0/24");
        let start = start_as_agent(&etcd, &password_file(folder.path(), "password"));
        let found = etcd::read(&start.etcd, &roots()).unwrap();
        assert!(found.hosts.contains_key("h2"));
    });
}

#[test]
fn the_pool_grows_and_a_host_leaves_with_the_same_permissions() {
    isolated(|| {
        let folder = tempfile::tempdir().unwrap();
        let mut etcd = EtcdServer::start();
        enable(&mut etcd, needed("h1"));
        let file = password_file(folder.path(), "password");
        let start = start_as_agent(&etcd, &file);
        let host = Host::launch(start.clone());
        host.snapshot();
        let mut network = start.network.clone();
        network.pools.v4 = Some(pool("10.244.0.0/15", 9));
        host.handle().session.set_up(EtcdSetup { etcd: start.etcd.clone(), network });
        host.until("the wider pool", |found| {
            found
                .config
                .as_ref()
                .is_some_and(|config| config.value.to_json().contains("10.244.0.0/15"))
        });
        host.stop();
        let found = etcd::read(&start.etcd, &roots()).unwrap();
        let keys = leave::keys(&found, &start.identity).unwrap();
        let transaction = leave::transaction(&found, &keys, &roots());
        assert!(etcd::commit(&start.etcd, &roots(), "leave", &transaction).unwrap());
        assert_eq!(etcd.get(&format!("{HOSTS}/h1")), None);
    });
}

fn change_password(etcd: &EtcdServer, password: &str) {
    etcd.call(async |client| client.user_change_password("agent", password).await.map(drop));
}

#[test]
fn a_password_is_replaced_without_interruption_if_its_file_comes_first() {
    isolated(|| {
        let folder = tempfile::tempdir().unwrap();
        let mut etcd = EtcdServer::start();
        enable(&mut etcd, needed("h1"));
        let host = Host::launch(start_as_agent(&etcd, &password_file(folder.path(), "password")));
        host.until("the alive key", |found| found.alive.contains_key("h1"));
        let (mark, before) = (host.mark(), liveness_key(&etcd));
        password_file(folder.path(), "another");
        let refused = host.files_problem(mark);
        for words in ["stays in use", "invalid user ID or password"] {
            assert!(refused.what.contains(words), "{refused}");
        }
        check_writes(&host, 1400);
        change_password(&etcd, "another");
        check_writes(&host, 1300);
        host.reported(
            mark,
            "that no problem remains",
            |update| matches!(update, Update::Files { problems, .. } if problems.is_empty()),
        );
        let noticed = |update: &Update| matches!(update, Update::Disconnected { .. });
        assert!(!host.since(mark).iter().any(noticed), "{:?}", host.since(mark));
        assert_eq!(liveness_key(&etcd), before);
    });
}

#[test]
fn a_password_replaced_in_etcd_first_is_retried() {
    isolated(|| {
        let folder = tempfile::tempdir().unwrap();
        let mut etcd = EtcdServer::start();
        enable(&mut etcd, needed("h1"));
        let host = Host::launch(start_as_agent(&etcd, &password_file(folder.path(), "password")));
        host.until("the alive key", |found| found.alive.contains_key("h1"));
        let (mark, before) = (host.mark(), liveness_key(&etcd));
        change_password(&etcd, "another");
        let mut attributes = host.attributes.clone();
        attributes.mtu = 1400;
        host.handle().session.set_attributes(attributes);
        host.reported(mark, "the loss", |update| matches!(update, Update::Disconnected { .. }));
        password_file(folder.path(), "another");
        host.until("the new MTU", |found| found.nodes["h1"].value.mtu == 1400);
        assert_eq!(host.ever_missing(mark, &["h1"]), [].into());
        assert_eq!(liveness_key(&etcd), before);
    });
}

#[test]
fn authentication_is_turned_on_under_a_running_host() {
    isolated(|| {
        let folder = tempfile::tempdir().unwrap();
        let mut etcd = EtcdServer::start();
        let host = Host::launch(start_as_agent(&etcd, &password_file(folder.path(), "password")));
        assert_eq!(host.subnet(), "10.244.1.0/24");
        let disabled = host.files_problem(0);
        assert!(disabled.what.contains("authentication disabled"), "{disabled}");
        let mark = host.mark();
        enable(&mut etcd, needed("h1"));
        check_writes(&host, 1400);
        assert_eq!(host.ever_missing(mark, &["h1"]), [].into());
    });
}

/// Nothing is written meanwhile, and no host reconnects for another reason.
#[test]
fn disabled_authentication_is_reported_until_it_is_enabled() {
    isolated(|| {
        let folder = tempfile::tempdir().unwrap();
        let mut etcd = EtcdServer::start();
        let host = Host::launch(start_as_agent(&etcd, &password_file(folder.path(), "password")));
        host.until("the alive key", |found| found.alive.contains_key("h1"));
        let disabled = host.files_problem(0);
        assert!(disabled.what.contains("authentication disabled"), "{disabled}");
        let (mark, before) = (host.mark(), liveness_key(&etcd));
        enable(&mut etcd, needed("h1"));
        host.reported(
            mark,
            "required authentication",
            |update| matches!(update, Update::Files { problems, .. } if problems.is_empty()),
        );
        let noticed = |update: &Update| matches!(update, Update::Disconnected { .. });
        assert!(!host.since(mark).iter().any(noticed), "{:?}", host.since(mark));
        assert_eq!(liveness_key(&etcd), before);
        check_writes(&host, 1400);
    });
}

#[test]
fn a_wrong_password_is_reported_when_authentication_is_enabled() {
    isolated(|| {
        let folder = tempfile::tempdir().unwrap();
        let mut etcd = EtcdServer::start();
        let host = Host::launch(start_as_agent(&etcd, &password_file(folder.path(), "wrong")));
        host.until("the alive key", |found| found.alive.contains_key("h1"));
        let mark = host.mark();
        enable(&mut etcd, needed("h1"));
        let refused = host.files_problem(mark);
        for words in ["requires authentication", "invalid user ID or password"] {
            assert!(refused.what.contains(words), "{refused}");
        }
        password_file(folder.path(), "password");
        host.reported(
            mark,
            "that no problem remains",
            |update| matches!(update, Update::Files { problems, .. } if problems.is_empty()),
        );
        check_writes(&host, 1400);
    });
}

#[test]
fn a_signed_token_is_renewed_when_it_expires_and_when_users_change() {
    isolated(|| {
        let folder = tempfile::tempdir().unwrap();
        let (private, public) = (folder.path().join("jwt"), folder.path().join("jwt.pub"));
        crate::support::certificates::openssl(&[
            "genrsa",
            "-out",
            private.to_str().unwrap(),
            "2048",
        ]);
        let (from, to) = (private.to_str().unwrap(), public.to_str().unwrap());
        crate::support::certificates::openssl(&["rsa", "-in", from, "-pubout", "-out", to]);
        let kind = format!("jwt,priv-key={from},pub-key={to},sign-method=RS256,ttl=2s");
        let mut etcd = EtcdServer::start_with(&["--auth-token", &kind]);
        enable(&mut etcd, needed("h1"));
        let host = Host::launch(start_as_agent(&etcd, &password_file(folder.path(), "password")));
        host.snapshot();
        // A signed token ends, used or not; only time does that.
        thread::sleep(Duration::from_secs(4));
        check_writes(&host, 1350);
        etcd.call(async |client| {
            client.user_add("other", "x", None::<UserAddOptions>).await.map(drop)
        });
        check_writes(&host, 1400);
    });
}

#[test]
fn a_wrong_password_is_reported_and_the_right_one_used_without_a_restart() {
    isolated(|| {
        let folder = tempfile::tempdir().unwrap();
        let mut etcd = EtcdServer::start();
        enable(&mut etcd, needed("h1"));
        let host = Host::launch(start_as_agent(&etcd, &password_file(folder.path(), "wrong")));
        let why = host.disconnected(0);
        assert!(!why.to_string().contains("wrong"), "a password is in {why}");
        assert!(why.what.contains("invalid user ID or password"), "{why}");
        password_file(folder.path(), "password");
        assert_eq!(host.subnet(), "10.244.1.0/24");
    });
}

#[test]
fn a_denied_call_is_reported_with_the_permission_it_needs() {
    isolated(|| {
        let folder = tempfile::tempdir().unwrap();
        let mut etcd = EtcdServer::start();
        let mut permissions = needed("h1");
        let missing = permissions.remove(1);
        enable(&mut etcd, permissions);
        let host = Host::launch(start_as_agent(&etcd, &password_file(folder.path(), "password")));
        let why = host.disconnected(0);
        for words in ["read /humanz/v1/", "permission denied"] {
            assert!(why.what.contains(words), "{why}");
        }
        etcd.call(async |client| client.role_grant_permission("host", missing).await.map(drop));
        assert_eq!(host.subnet(), "10.244.1.0/24");
    });
}

#[test]
fn a_refused_watch_is_reported_and_retried() {
    isolated(|| {
        let folder = tempfile::tempdir().unwrap();
        let mut etcd = EtcdServer::start();
        enable(&mut etcd, needed("h1"));
        let host = Host::launch(start_as_agent(&etcd, &password_file(folder.path(), "password")));
        host.snapshot();
        let mark = host.mark();
        etcd.call(async |client| {
            let range = etcd_client::RoleRevokePermissionOptions::new().with_prefix();
            let key = format!("{HOSTS}/");
            client.role_revoke_permission("host", key, Some(range)).await.map(drop)
        });
        // An existing watch continues; a new one is refused.
        etcd.restart();
        host.reported(mark, "why", |update| match update {
            Update::Disconnected { why } => why.what.contains("permission denied"),
            _ => false,
        });
        etcd.call(async |client| {
            let permission = Permission::read(format!("{HOSTS}/")).with_prefix();
            client.role_grant_permission("host", permission).await.map(drop)
        });
        etcd.put(&format!("{HOSTS}/h3"), "10.244.3.0/24");
        host.until_peers("h3", |peers| peers.by_name.contains_key("h3"));
    });
}

#[test]
fn a_host_with_write_access_to_its_own_keys_keeps_all_peers_when_all_keys_are_lost() {
    isolated(|| {
        let folder = tempfile::tempdir().unwrap();
        let mut etcd = EtcdServer::start();
        enable(&mut etcd, needed("h1"));
        etcd.put(&format!("{HOSTS}/h2"), "10.244.2.0/24");
        etcd.put(&format!("{HOSTS}/h3"), "10.244.3.0/24");
        let host = Host::launch(start_as_agent(&etcd, &password_file(folder.path(), "password")));
        host.until("both", |found| found.hosts.len() == 3);
        let (subnet, mark) = (host.subnet(), host.mark());
        let id = host.snapshot().config.clone().unwrap().value.id;
        etcd.delete_all("/humanz/");
        host.until("a noted loss", |found| {
            found.config.as_ref().is_some_and(|config| config.value.id != id)
        });
        assert_eq!(host.ever_missing(mark, &["h1", "h2", "h3"]), [].into());
        assert_eq!(etcd.get(&format!("{HOSTS}/h1")).unwrap(), subnet);
        // Whether the others are in etcd again or only remembered (etcd 3.4 asks for no permission
        // inside a nested transaction), one that returns and leaves is gone.
        etcd.put(&format!("{HOSTS}/h2"), "10.244.2.0/24");
        host.until("h2 is back", |found| found.hosts["h2"].created > 0);
        etcd.delete(&format!("{HOSTS}/h2"));
        host.until("h2 is permanently removed", |found| !found.hosts.contains_key("h2"));
    });
}
