//! Keeps the queues that hold what pods receive to the rates of their profiles.

use crate::agent::applier::Applier;
use crate::agent::reconcile::Reconcile;
use crate::agent::trigger::Scope;
use crate::net::Object;
use crate::netlink::link::Link;
use crate::netlink::{Message, NetlinkError, port_queue};
use crate::plan::Line;
use crate::plan::pod::is_of_network;
use crate::plan::port_queues::{QueueChange, changes, wanted};
use crate::plan::profiles::PortProfiles;

/// Makes the queues as the profiles `now` say, where profiles limited something `before` or do now.
pub fn reconcile(
    run: &Reconcile<'_>,
    before: &PortProfiles,
    now: &PortProfiles,
    applier: &mut Applier,
) {
    let limits = |profiles: &PortProfiles| profiles.values().any(|it| it.profile.ingress.is_some());
    if !limits(before) && !limits(now) && run.scope != Scope::ALL {
        return;
    }
    let subject = || Object::named("limits of what pods receive");
    match find(run, now) {
        Ok(messages) if messages.is_empty() => {}
        Ok(messages) => {
            applier.apply(&Line::changed(subject()), || run.kernel.rtnl.apply(&messages));
        }
        Err(error) => applier.inspect_failed(subject(), error),
    }
}

fn find(run: &Reconcile<'_>, now: &PortProfiles) -> Result<Vec<Message>, NetlinkError> {
    let rtnl = &run.kernel.rtnl;
    let links = rtnl.links(None)?;
    let network = run.settings.cni.name.as_str();
    // A port that is not up yet belongs to an ADD, which puts its queues there.
    let is_port = |link: &&Link| link.up && is_of_network(link.alias.as_deref(), network);
    let ports: Vec<&Link> = links.iter().filter(is_port).collect();
    let changes = changes(&wanted(now, &ports), &rtnl.port_queues()?);
    Ok(changes.iter().map(message).collect())
}

fn message(change: &QueueChange) -> Message {
    match change {
        QueueChange::Set { device, bucket, has_own } => {
            port_queue::set(*device, bucket, *has_own).tolerating(nix::errno::Errno::ENODEV)
        }
        QueueChange::Remove { device } => port_queue::delete(*device),
        QueueChange::MakePlain { device, limit_bytes } => {
            port_queue::make_plain(*device, *limit_bytes)
        }
    }
}
