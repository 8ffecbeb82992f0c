//! The network of a tenant that a new pod is in: chosen by what the agent wrote for plugins, so that a pod starts
//! while the agent is away. The agent is asked for one thing: a block, where this host has no free address.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::net::IpAddr;

use ipnetwork::IpNetwork;

use crate::checks::service_manager::LOOK;
use crate::cni::config::{NetConf, RangeConf};
use crate::cni::error::{CniError, code};
use crate::cni::request::Add;
use crate::inspect::local_socket;
use crate::net::subnet::{contains, family};
use crate::plugin::{claim, store};
use crate::policy::Scoped;
use crate::policy::ask;
use crate::policy::local::names;
use crate::policy::network_plan::{
    self, BlockAnswer, BlockQuestion, NetworkError, NetworkPlan, NetworkPlans,
};

/// How often another block is tried: each time because other pods were faster.
const TRIES: usize = 5;

/// A call as its network serves it.
pub struct PlacedAdd<'a> {
    pub add: Cow<'a, Add>,
    /// `None`: that of the configuration.
    pub network: Option<(Scoped, NetworkPlan)>,
    tries: usize,
}

impl<'a> PlacedAdd<'a> {
    /// The network of the pod, with an address block for each family.
    ///
    /// # Errors
    /// Code 7: the pod may not have the network that it asks for, or not its host ports. Code 11: the network is
    /// not known here, or this host has no block of it and gets none.
    pub fn of(add: &'a Add) -> Result<PlacedAdd<'a>, CniError> {
        PlacedAdd { add: Cow::Borrowed(add), network: None, tries: 0 }.placed(add)
    }

    fn placed(mut self, add: &'a Add) -> Result<PlacedAdd<'a>, CniError> {
        self.network = chosen(add)?;
        if let Some((name, plan)) = &self.network
            && plan.lacking(&BTreeSet::new()).next().is_some()
        {
            ask_for_block(&add.conf, name, BTreeSet::new())?;
            self.network = chosen(add)?;
        }
        self.add = match &self.network {
            None => Cow::Borrowed(add),
            Some((name, plan)) => Cow::Owned(served(add, name, plan)?),
        };
        Ok(self)
    }

    /// The agent has not taken the block of one of these addresses back meanwhile: it looks for addresses in use
    /// after it has changed the file, and the plugin looks at the file after it has reserved them.
    pub fn is_still_served(&self, addresses: &[IpAddr]) -> bool {
        if self.network.is_none() {
            return true;
        }
        let plans = read(&self.add.conf).ok().flatten();
        let blocks: Vec<IpNetwork> = plans.iter().flat_map(NetworkPlans::blocks).collect();
        addresses.iter().all(|address| blocks.iter().any(|block| block.contains(*address)))
    }

    /// The call with another block, after it failed with `error`, if that helps.
    ///
    /// # Errors
    /// `error`, or those of [`PlacedAdd::of`].
    pub fn again(
        mut self,
        add: &'a Add,
        error: CniError,
        withdrawn: bool,
    ) -> Result<PlacedAdd<'a>, CniError> {
        let Some((name, plan)) = &self.network else { return Err(error) };
        self.tries += 1;
        if self.tries > TRIES || !(withdrawn || error.code == code::EXHAUSTED) {
            return Err(error);
        }
        if !withdrawn {
            ask_for_block(&add.conf, name, full(&self.add.conf, plan)?)?;
        }
        self.placed(add)
    }
}

/// The network of the pod and its plan; `None`: that of the configuration.
fn chosen(add: &Add) -> Result<Option<(Scoped, NetworkPlan)>, CniError> {
    if !add.conf.delegated {
        return Ok(None);
    }
    let Some(plans) = read(&add.conf)? else { return Ok(None) };
    let pod = add.args.pod();
    let Some(names) = names(pod.as_deref(), add.attachment.container_id.as_str()) else {
        return Ok(None);
    };
    let chosen = plans.choose(&names, &add.words.annotations, &add.words.labels);
    let chosen = chosen.map_err(|error| match error {
        NetworkError::Refused(_) => {
            let fix = "ask for another network, or let the administrator allow it \
                       (humanz-agent ns set NAMESPACE --allow NETWORK)";
            CniError::config(format!("network of the pod: {error}")).with_details(fix.to_owned())
        }
        _ => CniError::try_again(format!("network of the pod: {error}")),
    })?;
    Ok(chosen.map(|(name, plan)| (name.clone(), plan.clone())))
}

/// What the agent wrote for this configuration; `None`: there are no networks of tenants.
fn read(conf: &NetConf) -> Result<Option<NetworkPlans>, CniError> {
    let path = network_plan::file(&conf.data_dir);
    let bytes = match fs::read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => {
            return Err(CniError::try_again(format!("read {}: {error}", path.display())));
        }
    };
    let plans: NetworkPlans = serde_json::from_slice(&bytes).map_err(|error| {
        let fix = format!("remove the file, which humanz-agent writes again ({LOOK})");
        CniError::try_again(format!("{}: {error}; {fix}", path.display()))
    })?;
    Ok(Some(plans).filter(|plans| plans.cni_network == conf.name.as_str()))
}

/// `add` with the ranges and the settings of the network.
fn served(add: &Add, name: &Scoped, plan: &NetworkPlan) -> Result<Add, CniError> {
    let mut served = add.clone();
    if !plan.host_ports && !add.conf.runtime.port_mappings.is_empty() {
        return Err(CniError::config(format!(
            "network {name} allows no host ports (hostPorts: false): leave hostPort out of the pod"
        )));
    }
    let range = |block: &IpNetwork| RangeConf {
        subnet: *block,
        range_start: None,
        range_end: None,
        gateway: None,
    };
    let set = |pool: &IpNetwork| {
        let blocks = plan.blocks.iter().filter(|block| contains(*pool, **block));
        blocks.map(range).collect::<Vec<_>>()
    };
    // In the order of the configuration's families: the first address of a pod is of the same one.
    let mut pools = plan.pools.clone();
    let first = add.conf.ranges.iter().flatten().next().map(|range| family(range.subnet));
    pools.sort_by_key(|pool| Some(family(*pool)) != first);
    served.conf.ranges = pools.iter().map(set).filter(|set| !set.is_empty()).collect();
    if served.conf.ranges.len() < plan.pools.len() {
        return Err(CniError::try_again(format!("network {name}: this host has no block of it")));
    }
    if let Some(mtu) = plan.mtu {
        served.conf.tuning.mtu.get_or_insert(mtu.into());
    }
    Ok(served)
}

/// The blocks of the network without a free address.
fn full(conf: &NetConf, plan: &NetworkPlan) -> Result<BTreeSet<IpNetwork>, CniError> {
    let store = store::open(conf)?;
    let mut full = BTreeSet::new();
    for ranges in claim::sets(conf)?.iter().flat_map(|set| set.ranges()) {
        let set = crate::ipam::RangeSet::new(vec![*ranges])
            .map_err(|error| CniError::config(error.to_string()))?;
        if !store.has_free(&[set])? {
            full.extend(plan.blocks.iter().filter(|block| **block == ranges.subnet()));
        }
    }
    Ok(full)
}

/// Has the agent lease a block of the network beside those that are `full`.
fn ask_for_block(conf: &NetConf, name: &Scoped, full: BTreeSet<IpNetwork>) -> Result<(), CniError> {
    let question = BlockQuestion { network: name.clone(), full };
    let mut line = serde_json::to_vec(&question).expect("names and subnets are always JSON");
    line.push(b'\n');
    let socket = ask::socket(&conf.data_dir);
    let answer = local_socket::ask(&socket, &line, ask::LIMIT, network_plan::DEADLINE);
    let answer = answer.map_err(|error| {
        CniError::try_again(format!(
            "network {name}: this host has no free address of it, and the agent, which gets blocks, does \
             not answer: {}: {error}; is humanz-agent running on this host? ({LOOK})",
            socket.display()
        ))
    })?;
    match serde_json::from_slice::<BlockAnswer>(&answer) {
        Ok(BlockAnswer { ready: true, .. }) => Ok(()),
        Ok(BlockAnswer { why, .. }) => {
            Err(CniError::try_again(format!("network {name}: no free address: {why}")))
        }
        Err(error) => {
            Err(CniError::try_again(format!("network {name}: the agent's answer: {error}")))
        }
    }
}
