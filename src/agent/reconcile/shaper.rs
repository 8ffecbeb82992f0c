//! Reconciles the ifb device and the HTB classes that enforce the rates of profiles.

use std::collections::BTreeMap;

use anyhow::Context;

use crate::agent::applier::Applier;
use crate::agent::reconcile::Reconcile;
use crate::net::gather::Gather;
use crate::net::{Hint, IfName, Object};
use crate::netlink::Message;
use crate::netlink::link::{self, Link, LinkChange, LinkRef};
use crate::netlink::rtnl::Rtnl;
use crate::netlink::shaper::{self, KIND, ShapedClass};
use crate::plan::Line;

/// The text that says whose the device is.
const ALIAS: &str = "humanz limits";

/// Of the device, which all limited pods of a host share.
pub fn name() -> IfName {
    "humanz-shape".parse().expect("a name of an interface")
}

fn object() -> Object {
    Object::Link("device".to_owned(), name())
}

/// The device's index; made and set up if it is not there. `None` on failure, and in a dry run.
pub fn device(run: &Reconcile<'_>, applier: &mut Applier) -> Option<u32> {
    let rtnl = &run.kernel.rtnl;
    let found = find(rtnl);
    let change = match &found {
        Ok(None) => Some((Line::added(object()), shaper::add_device(&name(), ALIAS).to_vec())),
        Ok(Some(link)) if !link.up => {
            let up = LinkChange { up: true, ..LinkChange::default() };
            let up = link::change(LinkRef::Index(link.index), &up);
            Some((Line::changed(object()).with(": up"), vec![up]))
        }
        _ => None,
    };
    if let Some((line, messages)) = change {
        applier.apply(&line, || rtnl.apply(&messages));
    }
    let index = find(rtnl).and_then(|link| {
        let Some(link) = link else { return Ok(None) };
        rtnl.apply(&[shaper::add_root(link.index)]).context("limits of pods")?;
        Ok(Some(link.index))
    });
    index.unwrap_or_else(|error| {
        applier.inspection_failed(object(), &error);
        None
    })
}

/// Makes the classes of the device as they are `wanted`.
pub fn classes(
    run: &Reconcile<'_>,
    device: u32,
    wanted: &BTreeMap<u16, ShapedClass>,
    applier: &mut Applier,
) {
    let rtnl = &run.kernel.rtnl;
    let found: BTreeMap<u16, ShapedClass> = match rtnl.shaped_classes(device) {
        Ok(found) => found.into_iter().gather(),
        Err(error) => return applier.inspect_failed(object(), error),
    };
    let set = wanted.iter().filter(|(class, wanted)| found.get(class) != Some(wanted));
    let mut messages: Vec<Message> =
        set.map(|(class, wanted)| shaper::set_class(device, *class, wanted)).collect();
    let gone = found.keys().filter(|class| !wanted.contains_key(class));
    messages.extend(gone.map(|class| shaper::delete_class(device, *class)));
    if !messages.is_empty() {
        applier.apply(&Line::changed(Object::named("limits of pods")), || rtnl.apply(&messages));
    }
}

/// Removes the device, if it is there: no pod needs it.
pub fn remove(run: &Reconcile<'_>, applier: &mut Applier) {
    let rtnl = &run.kernel.rtnl;
    if let Ok(Some(link)) = find(rtnl) {
        let delete = link::delete(LinkRef::Index(link.index));
        applier.apply(&Line::removed(object()), || rtnl.apply(&[delete]));
    }
}

/// # Errors
/// An interface of that name was not created by humanz, or the kernel refused.
fn find(rtnl: &Rtnl) -> anyhow::Result<Option<Link>> {
    let name = name();
    let Some(link) = rtnl.link(&name).context("look up the interface")? else { return Ok(None) };
    let is_ours = link.alias.as_deref() == Some(ALIAS) && link.kind.as_deref() == Some(KIND);
    match is_ours {
        true => Ok(Some(link)),
        false => Err(not_ours(&name).into()),
    }
}

fn not_ours(name: &IfName) -> Hint {
    Hint {
        why: format!("interface {name} exists, and humanz did not create it: no pod is limited"),
        fix: format!("ip link set {name} name other-shape"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::ProblemKind;

    #[test]
    fn an_interface_of_another_program_is_a_problem_with_its_fix() {
        let mut applier = Applier::new(false);
        applier.inspection_failed(object(), &not_ours(&name()).into());
        let [problem] = applier.failures() else { panic!("one failure") };
        assert_eq!(problem.kind, ProblemKind::InspectFailed);
        assert_eq!(problem.fix.as_deref(), Some("ip link set humanz-shape name other-shape"));
        assert!(!problem.what.contains("ip link"), "{problem}");
    }
}
