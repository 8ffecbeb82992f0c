//! Base chains of other programs: observed, and our rules inserted into those of iptables.

mod chain;
pub mod decode;
mod direction;
mod error;
pub mod expression_list;
mod legacy;
pub mod legacy_text;
mod rule;
mod xt;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;

use neli::consts::nl::NlmF;
use nix::errno::Errno;

pub use chain::{BaseChain, ChainRef, EditKind, RuleEdit};
pub use decode::FoundSets;
pub use direction::{COMMENT_PREFIX, HookDirection};
pub use error::ChainError;
pub use rule::{ChainRule, Comparison, FirstPacket, PacketAddress, PacketField, RuleMatch};

use crate::net::Family;
use crate::netlink::{
    AttributeList, Attributes, Message, NetlinkError, NetlinkProtocol, NetlinkSocket, Reply,
};
use crate::nft::base_chains::legacy::LegacyTables;
use crate::nft::numbers::{expression as n, family, message as kind, rule as attribute, set};
use crate::nft::{
    Base, ChainPolicy, FoundSet, Hook, NftChain, TableFamily, Type, Userdata, Verdict, expression,
    found, message,
};

/// Where iptables-legacy is looked for.
const PROGRAM_DIRS: [&str; 6] =
    ["/usr/sbin", "/sbin", "/usr/bin", "/bin", "/usr/local/sbin", "/usr/local/bin"];

/// Base chains of one hook.
#[derive(Debug, Default)]
pub struct HookChains {
    pub chains: Vec<BaseChain>,
    /// Chains that are there and cannot be read, and why.
    pub unreadable: Vec<(ChainRef, ChainError)>,
}

/// A handle on the chains of one network namespace, to be used on a thread in that namespace.
pub struct BaseChains {
    socket: NetlinkSocket,
    legacy: LegacyTables,
}

/// Address translation by other programs.
#[derive(Clone, Debug, Default)]
pub struct Translations {
    /// A kube-proxy has made chains, with iptables-nft or with nftables.
    pub kube_proxy: bool,
    /// Chains of iptables that masquerade one pod, and the pod's address.
    pub masquerades: Vec<(String, IpAddr)>,
}

impl BaseChains {
    /// Opens a handle on the network namespace of the calling thread.
    ///
    /// # Errors
    /// [`NetlinkError::Io`].
    pub fn open() -> Result<BaseChains, NetlinkError> {
        let program_dirs = PROGRAM_DIRS.map(PathBuf::from).to_vec();
        BaseChains::with_programs(program_dirs)
    }

    /// The same with other places to look for iptables-legacy in.
    ///
    /// # Errors
    /// [`NetlinkError::Io`].
    pub fn with_programs(program_dirs: Vec<PathBuf>) -> Result<BaseChains, NetlinkError> {
        let socket = NetlinkSocket::open(NetlinkProtocol::Netfilter)?;
        Ok(BaseChains { socket, legacy: LegacyTables::new(program_dirs) })
    }

    /// The chains that forwarded packets of `families` meet, our own table's among them.
    ///
    /// # Errors
    /// [`NetlinkError`] of nftables; what older tables refuse is in the answer.
    pub fn observe(&self, families: &[Family]) -> Result<HookChains, NetlinkError> {
        self.observe_at(Hook::FORWARD, "FORWARD", families)
    }

    /// The chains that packets of `families` to the host itself meet.
    ///
    /// # Errors
    /// As [`Forward::observe`].
    pub fn observe_input(&self, families: &[Family]) -> Result<HookChains, NetlinkError> {
        self.observe_at(Hook::INPUT, "INPUT", families)
    }

    fn observe_at(
        &self,
        hook: Hook,
        legacy: &'static str,
        families: &[Family],
    ) -> Result<HookChains, NetlinkError> {
        let mut seen = HookChains::default();
        let met = |place: &NftChain| {
            families.iter().any(|family| ChainRef::Nft(place.clone()).sees(*family))
        };
        for (place, policy) in self.nft_places(hook)? {
            if met(&place) {
                seen.chains.extend(self.nft_chain(place, policy)?);
            }
        }
        for family in families {
            match self.legacy.observe(*family, legacy) {
                Ok(chain) => seen.chains.extend(chain),
                Err(error) => seen.unreadable.push((ChainRef::Legacy(*family, legacy), error)),
            }
        }
        Ok(seen)
    }

    /// What kube-proxy and the reference plugin `bridge` have in nftables.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn observe_translations(&self) -> Result<Translations, NetlinkError> {
        let chains = self.nft_chains()?;
        let chains = || chains.iter().map(|(place, _)| place);
        let mut found = Translations {
            kube_proxy: chains().any(|place| {
                place.table == "kube-proxy"
                    || (place.table == "nat" && place.chain == "KUBE-SERVICES")
            }),
            masquerades: Vec::new(),
        };
        for table in [TableFamily::Ip, TableFamily::Ip6] {
            let in_nat = |place: &&NftChain| place.family == table && place.table == "nat";
            if !chains().filter(in_nat).any(|place| masquerades_a_pod(&place.chain)) {
                continue;
            }
            let base = chains().filter(in_nat).find(|place| place.chain == "POSTROUTING");
            let Some(base) = base else { continue };
            let rules = self.nft_rules(base, &mut FoundSets::new())?.unwrap_or_default();
            found.masquerades.extend(rules.into_iter().filter_map(|rule| match rule.verdict {
                Verdict::Jump(ref chain) if masquerades_a_pod(chain) => {
                    Some((chain.clone(), rule.source()?))
                }
                _ => None,
            }));
        }
        Ok(found)
    }

    /// Whether packets of `family` may get another destination when they come in: there is a chain of type `nat` before
    /// routing, in another table than `own`.
    ///
    /// # Errors
    /// [`ChainError`].
    pub fn may_translate(&self, family: Family, own: &str) -> Result<bool, ChainError> {
        let translates = |(place, base): &(NftChain, Option<Base>)| {
            let base = base.as_ref();
            let is_nat = base.is_some_and(|it| it.hook == Hook::PREROUTING && it.kind == "nat");
            is_nat && place.table != own && ChainRef::Nft(place.clone()).sees(family)
        };
        Ok(self.nft_chains()?.iter().any(translates) || self.legacy.in_use(family, "nat")?)
    }

    /// Inserts or removes one rule of ours. Removing one that is gone is no error.
    ///
    /// # Errors
    /// [`ChainError`].
    pub fn apply(&self, edit: &RuleEdit) -> Result<(), ChainError> {
        let message = match (&edit.place, edit.action) {
            (ChainRef::Legacy(family, _), _) => return self.legacy.apply(*family, edit),
            (ChainRef::Nft(place), EditKind::Insert) => insert(place, edit),
            (ChainRef::Nft(place), EditKind::Remove(Some(handle))) => remove(place, edit, handle),
            // Without the number the kernel would remove every rule of the chain.
            (ChainRef::Nft(_), EditKind::Remove(None)) => return Ok(()),
        };
        Ok(self.socket.transact(&message::transaction([message]))?)
    }

    fn nft_chains(&self) -> Result<Vec<(NftChain, Option<Base>)>, NetlinkError> {
        let what = "list nft chains".to_owned();
        let request = get(what, kind::GET_CHAIN, family::ANY, Attributes::new());
        self.socket.dump(&request, found::chain)
    }

    /// Every base chain at the hook, and its policy.
    fn nft_places(&self, hook: Hook) -> Result<Vec<(NftChain, ChainPolicy)>, NetlinkError> {
        let forward = self.nft_chains()?.into_iter().filter_map(|(place, base)| {
            let base = base.filter(|base| base.hook == hook)?;
            let routed = !matches!(place.family, TableFamily::Other(_));
            routed.then_some((place, base.policy))
        });
        Ok(forward.collect())
    }

    /// The chain with its rules and those of the chains that it calls; `None` if it went meanwhile.
    fn nft_chain(
        &self,
        place: NftChain,
        policy: ChainPolicy,
    ) -> Result<Option<BaseChain>, NetlinkError> {
        let mut sets = FoundSets::new();
        let Some(rules) = self.nft_rules(&place, &mut sets)? else { return Ok(None) };
        let mut called = BTreeMap::new();
        let mut waiting = targets(&rules);
        while let Some(name) = waiting.pop() {
            if called.len() == CHAINS || called.contains_key(&name) {
                continue;
            }
            let place = NftChain { chain: name.clone(), ..place.clone() };
            let rules = self.nft_rules(&place, &mut sets)?.unwrap_or_default();
            waiting.extend(targets(&rules));
            called.insert(name, rules);
        }
        Ok(Some(BaseChain { place: ChainRef::Nft(place), policy, rules, called }))
    }

    /// The rules of one chain; `None` if it is not there. Sets that they look into go into `sets`.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn nft_rules(
        &self,
        place: &NftChain,
        sets: &mut FoundSets,
    ) -> Result<Option<Vec<ChainRule>>, NetlinkError> {
        let what = format!("list chain {} of nft table {}", place.chain, place.table);
        let attributes = Attributes::new()
            .text(attribute::TABLE, &place.table)
            .text(attribute::CHAIN, &place.chain);
        let request = get(what, kind::GET_RULE, place.family.number(), attributes);
        let attributes =
            |reply: &Reply<'_>| Ok(reply.body().get(message::HEADER..).map(<[u8]>::to_vec));
        let listed = match self.socket.dump(&request, attributes) {
            Err(error) if error.errno() == Some(Errno::ENOENT) => return Ok(None),
            listed => listed?,
        };
        let mut rules = Vec::new();
        for rule in &listed {
            let rule = &AttributeList::parse(rule)?;
            let expressions = expression_list::expressions(rule)?;
            for name in expression_list::set_names(&expressions) {
                if !sets.contains_key(&name) && sets.len() < SETS {
                    sets.extend(self.nft_set(place, &name)?.map(|set| (name, set)));
                }
            }
            rules.extend(decode::rules(rule, &expressions, sets, &name_of)?);
        }
        Ok(Some(rules))
    }

    /// A set with its elements; `None` if its keys mean nothing here, or it is gone.
    fn nft_set(&self, place: &NftChain, name: &str) -> Result<Option<FoundSet>, NetlinkError> {
        let number = place.family.number();
        let what = format!("list set {name} of nft table {}", place.table);
        let named = Attributes::new().text(set::TABLE, &place.table).text(set::NAME, name);
        let found = self.socket.ask(&get(what.clone(), kind::GET_SET, number, named), found::set);
        let found = match found {
            Err(error) if error.errno() == Some(Errno::ENOENT) => return Ok(None),
            found => found?,
        };
        let Some(mut found) = found.filter(is_readable) else { return Ok(None) };
        let Some(shape) = &found.shape else { return Ok(None) };
        let list = Attributes::new().text(set::LIST_TABLE, &place.table).text(set::LIST_SET, name);
        let request = get(what, kind::GET_ELEMENT, number, list);
        let entries = self.socket.dump(&request, |reply| found::entries(reply).map(Some))?;
        found.elements = shape.elements(entries.concat());
        Ok(Some(found))
    }
}

/// The reference plugin `bridge` makes such a chain for each pod. Source: its FormatChainName, `CNI-` and
/// 24 digits of a hash.
fn masquerades_a_pod(chain: &str) -> bool {
    let hash = chain.strip_prefix("CNI-").unwrap_or_default();
    hash.len() == 24 && hash.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// Its elements are worth reading. (A named list of addresses may be long.)
fn is_readable(set: &FoundSet) -> bool {
    let key = set.shape.as_ref().map_or(&[][..], |shape| &shape.key);
    match key {
        [Type::Ipv4 | Type::Ipv6] => set.is_anonymous,
        [_] => true,
        _ => false,
    }
}

/// So many chains and sets of one table are read; a rule that needs more is not understood.
const CHAINS: usize = 256;
const SETS: usize = 256;

/// The chains that rules call for packets that are not special.
fn targets(rules: &[ChainRule]) -> Vec<String> {
    let rules = rules.iter().filter(|rule| !rule.matches.contains(&RuleMatch::never()));
    let target = |rule: &ChainRule| match &rule.verdict {
        Verdict::Jump(target) | Verdict::Goto(target) => Some(target.clone()),
        _ => None,
    };
    rules.filter_map(target).collect()
}

/// The name of an interface of the calling thread's namespace.
fn name_of(index: u32) -> Option<String> {
    let name = nix::net::if_::if_indextoname(index).ok()?;
    name.into_string().ok()
}

/// Our rule at the head of a chain, shaped as iptables-nft itself writes it, so that `iptables -S`
/// shows an ordinary rule; the comment goes where nft and iptables both look for one.
fn insert(place: &NftChain, edit: &RuleEdit) -> Message {
    let meta_key = match edit.direction {
        HookDirection::In => n::INPUT_NAME,
        HookDirection::Out => n::OUTPUT_NAME,
    };
    let attributes = Attributes::new()
        .text(attribute::TABLE, &place.table)
        .text(attribute::CHAIN, &place.chain)
        .nest(attribute::EXPRESSIONS, expression::accept_like_iptables(meta_key, &edit.bridge))
        .put(attribute::USERDATA, Userdata::comment(&edit.direction.comment()).bytes());
    let header = message::header(place.family.number());
    Message::new(edit.to_string(), kind::NEW_RULE, NlmF::CREATE, &header, attributes)
}

fn remove(place: &NftChain, edit: &RuleEdit, handle: u64) -> Message {
    let attributes = Attributes::new()
        .text(attribute::TABLE, &place.table)
        .text(attribute::CHAIN, &place.chain)
        .be64(attribute::HANDLE, handle);
    let header = message::header(place.family.number());
    Message::new(edit.to_string(), kind::DELETE_RULE, NlmF::empty(), &header, attributes)
        .tolerating(Errno::ENOENT)
}

fn get(what: String, kind: u16, family: u8, attributes: Attributes) -> Message {
    Message::new(what, kind, NlmF::empty(), &message::header(family), attributes)
}
