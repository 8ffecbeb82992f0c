//! Modules of nftables, which the kernel is asked for: some have no file where they are a part of another one.

use std::net::Ipv4Addr;

use crate::net::{Object, Problem, ProblemKind};
use crate::netlink::NetlinkError;
use crate::nft::{Action, Base, Chain, ChainPolicy, Hook, Match, Nft, NftRule, TableEdit, Verdict};

/// Those that tables need and this kernel neither has nor can load. `policies`: also those of the table of policies.
///
/// # Errors
/// [`NetlinkError`]: the kernel does not answer this process.
pub fn missing(nft: &Nft, policies: bool) -> Result<Vec<Problem>, NetlinkError> {
    let mut problems = Vec::new();
    for (modules, edits) in parts(policies) {
        if !nft.can(&edits)? {
            let what = format!("this kernel has no module {}", modules.join(" or "));
            let fix = format!(
                "modprobe -a {} # after the package with it is installed (linux-modules-extra?)",
                modules.join(" ")
            );
            let subject = Object::named(format!("module {}", modules[0]));
            problems.push(Problem::new(ProblemKind::Modules, subject, what).with_fix(fix));
        }
    }
    Ok(problems)
}

type Part = (&'static [&'static str], Vec<TableEdit>);

fn parts(policies: bool) -> Vec<Part> {
    let verdict = Action::Verdict(Verdict::Accept);
    let mut parts: Vec<Part> = vec![
        (&["nft_ct", "nf_conntrack"], rule("filter", vec![Match::Reply], verdict.clone())),
        (&["nft_masq", "nft_chain_nat"], rule("nat", Vec::new(), Action::Masquerade)),
        (&["nft_nat"], rule("nat", Vec::new(), Action::Snat(Ipv4Addr::LOCALHOST.into()))),
    ];
    if policies {
        let limit = Match::Limit { rate: 1, burst: 1 };
        let log = Action::Log(0, String::new());
        let mut count = rule("filter", Vec::new(), Action::Count("c".to_owned(), Verdict::Accept));
        count.insert(0, TableEdit::AddCounter("c".to_owned()));
        parts.push((&["nft_limit"], rule("filter", vec![limit], verdict)));
        parts.push((&["nft_log", "nfnetlink_log"], rule("filter", Vec::new(), log)));
        parts.push((&["nft_objref", "nft_counter"], count));
    }
    parts
}

/// A chain with one rule.
fn rule(kind: &str, matches: Vec<Match>, action: Action) -> Vec<TableEdit> {
    let (kind, policy) = (kind.to_owned(), ChainPolicy::Accept);
    let base = Base { kind, hook: Hook::POSTROUTING, priority: 100, policy };
    let rules = vec![NftRule { comment: String::new(), matches, action }];
    let chain = Chain { name: "probe".to_owned(), base: Some(base), rules };
    vec![TableEdit::AddChain(chain.clone()), TableEdit::MoreRules(chain)]
}
