//! Policies, selectors and rules of namespaces: from the API, etcd and files.

use humanz::policy::read::groups::{self, Objects};
use humanz::policy::read::membership::NamespaceRule;
use humanz::policy::{Endpoints, Rules, Scoped, Selector, Transport, Tuple, evaluate, read};
use serde_json::Value;

/// One object of any kind, as JSON.
pub fn policies(data: &[u8]) {
    if let Ok(text) = std::str::from_utf8(data)
        && let Ok(selector) = Selector::parse(text)
    {
        assert_eq!(selector.text(), text);
    }
    let Ok(value) = serde_json::from_slice::<Value>(data) else { return };
    let _rule = NamespaceRule::read(&value);
    let name = |name: &str| Scoped {
        tenant: "default".parse().expect("a name"),
        name: name.parse().expect("a name"),
    };
    let one = Objects::from([(name("p"), value.clone())]);
    let mut all = groups::read(&one, &one);
    if let Some(read) = read::policy(&value) {
        assert!(read.problems.len() <= 9, "{:?}", read.problems);
        all.append(read);
    }
    for problem in &all.problems {
        assert!(!problem.to_string().chars().any(char::is_control), "{problem:?}");
    }
    let tuple = Tuple {
        source: "10.244.1.2".parse().expect("an address"),
        destination: "10.244.1.3".parse().expect("an address"),
        transport: Transport::Other(47),
    };
    assert!(evaluate(&Rules::new(all.rules), &Endpoints::default(), &tuple).allowed());
}
