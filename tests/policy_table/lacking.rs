//! What the kernel lacks for the table is found by asking, and asking changes nothing.

use humanz::inspect::nft_parts;
use humanz::nft::{
    Action, Base, Chain, ChainPolicy, Hook, Match, Nft, NftRule, TableEdit, TableWatch, Verdict,
};
use humanz::policy::compile::POLICY_TABLE;

use super::network::alone;

fn chain(name: &str, matches: Vec<Match>, action: Action) -> [TableEdit; 2] {
    let (kind, policy) = ("filter".to_owned(), ChainPolicy::Drop);
    let base = Some(Base { kind, hook: Hook::OUTPUT, priority: 0, policy });
    let rules = vec![NftRule { comment: String::new(), matches, action }];
    let chain = Chain { name: name.to_owned(), base, rules };
    [TableEdit::AddChain(chain.clone()), TableEdit::MoreRules(chain)]
}

#[test]
fn what_the_kernel_has_is_there_and_what_it_does_not_find_is_lacking() {
    alone(|| {
        let nft = Nft::open().unwrap();
        let mut watch = TableWatch::open(&nft, POLICY_TABLE).unwrap();
        let since = nft.generation().unwrap();
        assert_eq!(nft_parts::missing(&nft, true).unwrap(), []);
        let log = || Action::Log(7, "x".to_owned());
        assert!(nft.can(&chain("a", vec![Match::Reply], log())).unwrap());
        // A kernel gives the same answer, ENOENT, for an expression that it does not have.
        let nowhere = Action::Verdict(Verdict::Jump("nowhere".to_owned()));
        assert!(!nft.can(&chain("a", Vec::new(), nowhere)).unwrap());
        let counter = Action::Count("none".to_owned(), Verdict::Accept);
        assert!(!nft.can(&chain("a", Vec::new(), counter)).unwrap());
        let mut nat = chain("a", Vec::new(), log());
        if let TableEdit::AddChain(Chain { base: Some(base), .. }) = &mut nat[0] {
            base.kind = "moon".to_owned();
        }
        assert!(!nft.can(&nat).unwrap());
        assert_eq!(nft.all_tables().unwrap(), [], "nothing was made");
        assert_eq!(watch.unchanged_until(since), Some(since), "nobody learns of it");
    });
}
