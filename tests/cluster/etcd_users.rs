//! What etcd permits to each of its users, whatever their role: no pod loses a packet by it.

use std::time::Duration;

use etcd_client::{AlarmAction, AlarmType};

use crate::roles::{Login, Scene, denied};
use crate::support::ping::Pinger;
use crate::support::{Place, Pod, local};

/// A stolen host compacts the history, grants leases by the thousand, keeps the key of a dead host alive, and has
/// etcd refuse every write.
#[test]
fn what_etcd_permits_to_each_user_interrupts_no_pod() {
    let scene = Scene::new(Login::Password, crate::DUAL_STACK);
    let [h1, h2, _] = &scene.cluster.hosts[..] else { panic!("three hosts") };
    let pods = [Pod::add(h1, "a"), Pod::add(h2, "a")];
    pods[0].until_ok(&format!("ping -n -c 1 -W 1 {}", pods[1].v4()), Duration::from_secs(20));
    let pingers = [Pinger::start(&pods[0], pods[1].v4()), Pinger::start(&pods[1], pods[0].v4())];

    let grants = async |client: &mut etcd_client::Client| {
        for _ in 0..2_000 {
            client.lease_grant(60, None).await?;
        }
        Ok(())
    };
    println!("2,000 leases: {:?}", scene.stolen(grants));
    let read = scene.stolen(async |client| client.get("/humanz/v1/config", None).await).unwrap();
    let revision = read.header().unwrap().revision();
    let compacted = scene.stolen(async |client| client.compact(revision, None).await.map(drop));
    println!("compaction: {compacted:?}");

    scene.agents[1].kill();
    let alive = scene.as_root(async |client| client.get("/humanz/v1/alive/h2", None).await);
    let lease = alive.kvs()[0].lease();
    let kept = async |client: &mut etcd_client::Client| {
        let (mut keeper, mut answers) = client.lease_keep_alive(lease).await?;
        keeper.keep_alive().await?;
        answers.message().await.map(|answer| answer.map(|answer| answer.ttl()))
    };
    println!("the alive key of a dead host is kept: {:?}", scene.stolen(kept));

    denied("defragment", scene.stolen(async |client| client.defragment().await));
    denied(
        "members",
        scene.stolen(async |client| client.member_add(["http://192.0.2.9:2380"], None).await),
    );
    denied("auth", scene.stolen(async |client| client.auth_disable().await));

    let alarm = async |client: &mut etcd_client::Client| {
        client.alarm(AlarmAction::Activate, AlarmType::Nospace, None).await.map(drop)
    };
    let leader = scene.stolen(async |client| client.move_leader(1).await.map(drop));
    println!("another leader: {leader:?}");
    println!("alarm: {:?}", scene.stolen(alarm));
    // It starts while etcd refuses every write, and serves what it served.
    let again = scene.start(h2, crate::DUAL_STACK);
    again.wait_ready();
    let new = Pod::add(h1, "b");
    new.run(&format!("ping -n -c 1 -W 3 {}", pods[1].v4())).ok();
    scene.as_root(async |client| {
        let alarms = client.alarm(AlarmAction::Get, AlarmType::None, None).await?;
        println!("alarms: {}", alarms.alarms().len());
        client.alarm(AlarmAction::Deactivate, AlarmType::Nospace, None).await.map(drop)
    });
    for host in [h1, h2] {
        local::status_when(host, "etcd", |status| status["etcd"]["connected"].is_string());
    }
    Pod::add(h2, "b").run(&format!("ping -n -c 1 -W 3 {}", pods[0].v4())).ok();
    pingers.into_iter().for_each(|pinger| pinger.report().assert_nothing_lost());
}
