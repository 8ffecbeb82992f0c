//! The networks of tenants that a new pod is in: chosen by what the agent wrote for plugins, so that a pod starts
//! while the agent is away. The agent is asked for one thing: a block, where this host has no free address.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Read;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::rc::Rc;

use ipnetwork::IpNetwork;

use crate::checks::service_manager::LOOK;
use crate::cni::attachment::Attachment;
use crate::cni::config::{NetConf, RangeConf};
use crate::cni::error::{CniError, code};
use crate::cni::request::Add;
use crate::cni::requested::RequestedAddresses;
use crate::cni::route::CniRoute;
use crate::cni::words::Words;
use crate::inspect::local_socket;
use crate::ipam::StoreEntry;
use crate::net::IfName;
use crate::net::shell::word;
use crate::net::subnet::{contains, family};
use crate::os::files;
use crate::plugin::call_time::{self, Wait};
use crate::plugin::{claim, store};
use crate::policy::ask;
use crate::policy::local::names;
use crate::policy::network_plan::{
    self, BlockAnswer, BlockQuestion, ChosenInterface, NetworkError, NetworkPlan, NetworkPlans,
};
use crate::policy::{ObjectName, PinnedAddress, PodName, Scoped};

/// How often another block is tried: each time because other pods were faster.
const TRIES: usize = 5;

/// A call as the networks of its pod serve it.
pub struct PlacedAdd<'a> {
    /// At least one: the first is the one that the runtime names.
    pub interfaces: Vec<PlacedInterface<'a>>,
    tries: usize,
}

/// One interface of the pod.
pub struct PlacedInterface<'a> {
    pub add: Cow<'a, Add>,
    /// `None`: that of the configuration.
    pub network: Option<(Scoped, NetworkPlan)>,
    /// The pod, if it has fixed addresses here.
    pinned: Option<PodName>,
    /// What the network was found in.
    read: Option<Rc<ReadPlans>>,
}

/// Why an interface could not be attached.
pub struct AttachFailure {
    pub error: CniError,
    /// Its place among those of the pod.
    pub interface: usize,
    /// Its addresses are not this host's any more.
    pub withdrawn: bool,
}

impl<'a> PlacedAdd<'a> {
    /// The networks of the pod, each with an address block for each family.
    ///
    /// # Errors
    /// Code 7: the pod may not have a network that it asks for, or not its host ports. Code 11: a network is
    /// not known here, or this host has no block of it and gets none; the pod asks for a network, and there are none.
    pub fn of(add: &'a Add) -> Result<PlacedAdd<'a>, CniError> {
        PlacedAdd { interfaces: Vec::new(), tries: 0 }.placed(add)
    }

    fn placed(mut self, add: &'a Add) -> Result<PlacedAdd<'a>, CniError> {
        let mut chosen = chosen(add)?;
        let lacking: Vec<BlockQuestion> = chosen.iter().filter_map(|it| it.lacks.clone()).collect();
        for question in &lacking {
            ask_for_block(&add.conf, question)?;
        }
        if !lacking.is_empty() {
            chosen = self::chosen(add)?;
        }
        let further: Vec<IfName> =
            chosen.iter().skip(1).map(|it| it.attachment.ifname.clone()).collect();
        for (place, chosen) in chosen.into_iter().enumerate() {
            let ChosenNetwork { attachment, network, pinned, pod, read, .. } = chosen;
            let mut add = Cow::Borrowed(add);
            if place > 0 {
                add = Cow::Owned(alone(&add, attachment));
            } else if !further.is_empty() {
                add.to_mut().further.clone_from(&further);
            }
            if let Some((name, plan)) = &network {
                add = Cow::Owned(served(&add, name, plan, &pinned, place > 0)?);
            }
            self.interfaces.push(PlacedInterface { add, network, pinned: pod, read });
        }
        Ok(self)
    }

    /// The call with another block, after it failed with `failure`, if that helps.
    ///
    /// # Errors
    /// That of `failure`, or those of [`PlacedAdd::of`].
    pub fn again(
        mut self,
        add: &'a Add,
        failure: AttachFailure,
    ) -> Result<PlacedAdd<'a>, CniError> {
        let AttachFailure { error, interface, withdrawn } = failure;
        let failed = &self.interfaces[interface];
        let Some((name, plan)) = &failed.network else { return Err(error) };
        self.tries += 1;
        if self.tries > TRIES || !(withdrawn || error.code == code::EXHAUSTED) {
            return Err(error);
        }
        if !withdrawn {
            let full = full(&failed.add.conf)?;
            if failed.pinned.is_some() && !full.iter().any(|block| plan.blocks.contains(block)) {
                let why = "its fixed address is still in use on this host";
                return Err(CniError::try_again(format!("network {name}: {why}: {error}")));
            }
            let (network, pinned) = (name.clone(), failed.pinned.clone());
            ask_for_block(&add.conf, &BlockQuestion { network, full, pinned })?;
        }
        self.interfaces.clear();
        self.placed(add)
    }
}

/// An interface as the pod is to have it.
struct ChosenNetwork {
    attachment: Attachment,
    /// `None`: that of the configuration.
    network: Option<(Scoped, NetworkPlan)>,
    /// Its fixed addresses, one of each family at most.
    pinned: Vec<PinnedAddress>,
    /// The pod, if it has such ones.
    pod: Option<PodName>,
    /// What this host has not yet for it.
    lacks: Option<BlockQuestion>,
    /// What says so.
    read: Option<Rc<ReadPlans>>,
}

impl PlacedInterface<'_> {
    /// Routes to its network that the configuration does not have.
    pub fn routes_to_network(&self) -> Vec<CniRoute> {
        let pools = self.network.iter().flat_map(|(_, plan)| &plan.pools);
        let configured = &self.add.conf.routes;
        let is_new = |pool: &&IpNetwork| !configured.iter().any(|route| route.dst == **pool);
        pools.filter(is_new).map(|pool| CniRoute::new(*pool, None)).collect()
    }

    /// The agent has not taken the block of one of these addresses back meanwhile: it looks for addresses in use
    /// after it has changed the file, and the plugin looks at the file after it has reserved them.
    pub fn is_still_served(&self, addresses: &[IpAddr]) -> bool {
        if self.network.is_none() {
            return true;
        }
        let path = network_plan::file(&self.add.conf.data_dir);
        if let Some(read) = self.read.as_ref().filter(|read| is_at(&read.file, &path)) {
            return read.serve(addresses);
        }
        match read(&self.add.conf) {
            Ok(KnownPlans::Own(read)) => read.serve(addresses),
            _ => addresses.is_empty(),
        }
    }
}

impl ChosenNetwork {
    fn of_configuration(attachment: Attachment) -> ChosenNetwork {
        ChosenNetwork {
            attachment,
            network: None,
            pinned: Vec::new(),
            pod: None,
            lacks: None,
            read: None,
        }
    }
}

/// The interfaces of the pod, that of the runtime first.
fn chosen(add: &Add) -> Result<Vec<ChosenNetwork>, CniError> {
    let one = || {
        let attachment = add.attachment.clone();
        Ok(vec![ChosenNetwork::of_configuration(attachment)])
    };
    if !add.conf.delegated {
        return one();
    }
    let pod = add.args.pod();
    let read = match read(&add.conf)? {
        KnownPlans::Own(read) => Rc::new(read),
        KnownPlans::OfAnother => return one(),
        KnownPlans::None => {
            refuse_asking(add)?;
            return one();
        }
    };
    let Some(names) = names(pod.as_deref(), add.attachment.container_id.as_str()) else {
        return one();
    };
    let has = |address| earlier_has(add, address);
    let chosen = read.plans.choose(&names, &add.words.annotations, &add.words.labels, has);
    let chosen = chosen.map_err(|error| not_chosen(&error, &names.0))?;
    let pod = PodName { namespace: names.0.clone(), name: names.1.clone() };
    let chosen = chosen.into_iter().enumerate();
    chosen.map(|(place, chosen)| interface(add, &read, &pod, place, chosen)).collect()
}

/// An interface that an earlier call added to the container, as a meta plugin does, has this address.
fn earlier_has(add: &Add, address: IpAddr) -> bool {
    let contents = store::open(&add.conf).ok().and_then(|store| store.contents().ok());
    let is_it = |entry: &StoreEntry| {
        let is_own = entry.container_id == add.attachment.container_id.as_str();
        is_own && entry.addresses.contains(&address)
    };
    contents.is_some_and(|contents| contents.entries.iter().any(|entry| is_it(entry)))
}

/// The interface that is at that `place` among those of the pod.
fn interface(
    add: &Add,
    read: &Rc<ReadPlans>,
    pod: &PodName,
    place: usize,
    chosen: ChosenInterface<'_>,
) -> Result<ChosenNetwork, CniError> {
    let own = &add.attachment.ifname;
    let ChosenInterface { ifname, network, pinned } = chosen;
    let ifname = ifname.unwrap_or_else(|| own.clone());
    if (ifname == *own) != (place == 0) {
        return Err(CniError::config(format!(
            "networks of the pod: the runtime calls the first interface {own}, and no other one can have \
             that name (humanz.io/networks)"
        )));
    }
    let pod = Some(pod).filter(|_| !pinned.is_empty()).cloned();
    let lacks = network.as_ref().and_then(|(name, _)| {
        read.plans.lacking(name, &BTreeSet::new(), pod.as_ref())?.first()?;
        let (network, pinned) = ((*name).clone(), pod.clone());
        Some(BlockQuestion { network, full: BTreeSet::new(), pinned })
    });
    Ok(ChosenNetwork {
        attachment: Attachment { ifname, ..add.attachment.clone() },
        network: network.map(|(name, plan)| (name.clone(), plan.clone())),
        pinned: pinned.into_iter().cloned().collect(),
        pod,
        lacks,
        read: Some(Rc::clone(read)),
    })
}

/// A pod that asks for a network, where there are none, must not have an address of another one.
fn refuse_asking(add: &Add) -> Result<(), CniError> {
    let Words { annotations, labels, .. } = &add.words;
    let asked = network_plan::asked_in_vain(annotations, labels)
        .map_err(|error| CniError::config(format!("network of the pod: {error}")))?;
    let Some(asked) = asked else { return Ok(()) };
    let missing = match add.conf.policy {
        None => "networks of tenants need POLICY=on, and etcd (SUBNET_SOURCE=etcd)",
        Some(_) => {
            "there is no network of a tenant (humanz-agent net ls), or this host has its subnets from \
             elsewhere than etcd (SUBNET_SOURCE)"
        }
    };
    Err(CniError::try_again(format!(
        "network of the pod: network {asked} is not known on this host: {missing}"
    )))
}

fn not_chosen(error: &NetworkError, namespace: &ObjectName) -> CniError {
    let why = format!("network of the pod: {error}");
    match error {
        NetworkError::Refused(refusal) => {
            let fix = refusal.fix(namespace).map(|fix| format!("{fix}; or ")).unwrap_or_default();
            CniError::config(why).with_details(format!("{fix}ask for another network"))
        }
        NetworkError::PinnedElsewhere(pod, _, network) => {
            let (Scoped { tenant, name }, namespace) = (network, &pod.namespace);
            CniError::config(why).with_details(format!(
                "ask for that network, if its namespace allows it; or humanz-agent ns set {namespace} --tenant \
                 {tenant} --network {name} # puts all pods of the namespace there; or humanz-agent pin rm {pod}"
            ))
        }
        _ => CniError::try_again(why),
    }
}

/// A further interface of the pod of `add`: its default route, host ports and requested addresses are those of the
/// first one.
fn alone(add: &Add, attachment: Attachment) -> Add {
    let mut alone = Add { attachment, requested: RequestedAddresses::default(), ..add.clone() };
    alone.conf.routes.clear();
    alone.conf.is_default_gateway = false;
    alone.conf.runtime.port_mappings.clear();
    alone
}

/// It is known which networks there are: without that no pod starts.
///
/// # Errors
/// Code 11: what the agent wrote is not readable, or says that it does not know.
pub fn are_known(conf: &NetConf) -> Result<(), CniError> {
    match conf.delegated.then(|| read(conf)).transpose()? {
        Some(KnownPlans::Own(read)) if !read.plans.are_read() => {
            Err(CniError::try_again(format!("networks of pods: {}", NetworkError::NotRead)))
        }
        _ => Ok(()),
    }
}

/// What the agent wrote.
enum KnownPlans {
    /// There are no networks of tenants.
    None,
    /// They are for another configuration.
    OfAnother,
    Own(ReadPlans),
}

/// The plans, with their open file.
struct ReadPlans {
    plans: NetworkPlans,
    file: File,
}

impl ReadPlans {
    /// All `addresses` are in blocks of this host.
    fn serve(&self, addresses: &[IpAddr]) -> bool {
        let is_in_block = |address| self.plans.blocks().any(|block| block.contains(address));
        addresses.iter().copied().all(is_in_block)
    }
}

fn read(conf: &NetConf) -> Result<KnownPlans, CniError> {
    let path = network_plan::file(&conf.data_dir);
    let mut bytes = Vec::new();
    let opened = File::open(&path).and_then(|mut file| file.read_to_end(&mut bytes).map(|_| file));
    let file = files::found(opened)
        .map_err(|error| CniError::try_again(format!("read {}: {error}", path.display())))?;
    let Some(file) = file else { return Ok(KnownPlans::None) };
    let plans: NetworkPlans = serde_json::from_slice(&bytes).map_err(|error| {
        let fix = format!("rm {} # humanz-agent writes it again", word(path.display()));
        CniError::try_again(format!("{}: {error}; {fix}", path.display()))
    })?;
    let is_own = plans.cni_network == conf.name.as_str();
    Ok(if is_own { KnownPlans::Own(ReadPlans { plans, file }) } else { KnownPlans::OfAnother })
}

/// The file at `path` was not replaced. While it is open no other one gets its inode number.
fn is_at(file: &File, path: &Path) -> bool {
    let number = |found: fs::Metadata| (found.dev(), found.ino());
    let found = file.metadata().ok().map(number);
    found.is_some() && found == fs::metadata(path).ok().map(number)
}

/// `add` with the ranges and the settings of the network. The way to the rest of a further one is that interface.
fn served(
    add: &Add,
    name: &Scoped,
    plan: &NetworkPlan,
    pinned: &[PinnedAddress],
    is_further: bool,
) -> Result<Add, CniError> {
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
        if let Some(it) = pinned.iter().find(|it| pool.contains(it.address)) {
            let only = Some(it.address);
            return vec![RangeConf { range_start: only, range_end: only, ..range(&it.block()) }];
        }
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
    if is_further {
        served.conf.routes = plan.pools.iter().map(|pool| CniRoute::new(*pool, None)).collect();
    }
    // What the pod asks for comes first; what it does not is that of the bridge by now.
    let tuning = &mut served.conf.tuning;
    if let Some(mtu) = plan.mtu.filter(|_| tuning.mtu.is_none() || tuning.mtu == add.conf.mtu) {
        tuning.mtu = Some(mtu.into());
    }
    Ok(served)
}

/// The blocks in this configuration without a free address.
fn full(conf: &NetConf) -> Result<BTreeSet<IpNetwork>, CniError> {
    let store = store::open(conf)?;
    let mut full = BTreeSet::new();
    for ranges in claim::sets(conf)?.iter().flat_map(|set| set.ranges()) {
        let set = crate::ipam::RangeSet::new(vec![*ranges])
            .map_err(|error| CniError::config(error.to_string()))?;
        if !store.has_free(&[set])? {
            full.insert(ranges.subnet());
        }
    }
    Ok(full)
}

/// Has the agent lease what the question is about.
fn ask_for_block(conf: &NetConf, question: &BlockQuestion) -> Result<(), CniError> {
    let BlockQuestion { network: name, pinned, .. } = question;
    let what = match pinned {
        Some(pod) => format!("not all addresses that pod {pod} has in it"),
        None => "no free address of it".to_owned(),
    };
    let Some(deadline) = call_time::any_left(network_plan::DEADLINE) else {
        let why = format!("network {name}: this host has {what}, and no time to ask the agent");
        return Err(CniError::try_again(why));
    };
    let mut line = serde_json::to_vec(question).expect("names and subnets are always JSON");
    line.push(b'\n');
    let socket = ask::socket(&conf.data_dir);
    let asked = || local_socket::ask(&socket, &line, ask::LIMIT, deadline);
    let answer = call_time::noted(Wait::Blocks, asked);
    let answer = answer.map_err(|error| {
        CniError::try_again(format!(
            "network {name}: this host has {what}, and the agent, which gets blocks, does not answer: {}: {error}; is humanz-agent running on this host? ({LOOK})",
            socket.display()
        ))
    })?;
    match serde_json::from_slice::<BlockAnswer>(&answer) {
        Ok(BlockAnswer { ready: true, .. }) => Ok(()),
        Ok(BlockAnswer { why, .. }) => {
            Err(CniError::try_again(format!("network {name}: this host has {what}: {why}")))
        }
        Err(error) => {
            Err(CniError::try_again(format!("network {name}: the agent's answer: {error}")))
        }
    }
}
