//! Pure. What was typed of a rule of a policy, and which rule of it was meant.

use std::cell::{Cell, OnceCell};

use serde_json::{Value, json};

use crate::sources::StoredName;

/// What was typed of a rule; `None` and no texts: nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct RuleFields<'a> {
    pub direction: Option<&'a str>,
    pub action: Option<&'a str>,
    pub priority: Option<&'a str>,
    pub protocol: Option<&'a str>,
    pub ports: &'a [String],
    pub peer_group: Option<&'a str>,
    pub peer_network: Option<&'a str>,
    pub cidr: Option<&'a str>,
    pub except: &'a [String],
    pub audit: Option<bool>,
    /// An empty text is none: it takes nothing out of a rule that is not there yet, and would make it wider than meant.
    pub is_new: bool,
}

impl RuleFields<'_> {
    pub fn are_empty(&self) -> bool {
        let texts = [self.direction, self.action, self.priority, self.protocol];
        let has_text = texts.iter().any(Option::is_some) || self.audit.is_some();
        !has_text && self.peers().is_empty() && self.ports.is_empty() && self.except.is_empty()
    }

    fn peers(&self) -> Vec<(&'static str, &str)> {
        let peers =
            [("group", self.peer_group), ("network", self.peer_network), ("cidr", self.cidr)];
        peers.into_iter().filter_map(|(field, typed)| Some((field, typed?))).collect()
    }

    /// Puts what was typed into `rule`, as it stands in etcd; what is not understood in it is found with the others.
    ///
    /// # Errors
    /// Two peers, an exception from none, a priority that is no number; `rule` is no rule.
    pub fn put(&self, rule: &mut Value) -> Result<(), String> {
        if !rule.is_object() {
            return Err("the rule is not understood: rule-rm takes it out".to_owned());
        }
        let text = |text: &str| json!(text);
        self.put_field(rule, "direction", self.direction, text);
        self.put_field(rule, "action", self.action, text);
        let is_number = |text: &str| text.parse::<u16>().is_ok();
        let priority = self.priority.filter(|text| self.is_new || !text.is_empty());
        if let Some(bad) = priority.filter(|text| !is_number(text)) {
            return Err(format!("--priority {bad:?} is no number"));
        }
        self.put_field(rule, "priority", self.priority, number);
        self.put_field(rule, "protocol", self.protocol, number);
        match self.audit {
            Some(true) => rule["audit"] = json!(true),
            Some(false) => take_out(rule, "audit"),
            None => {}
        }
        match self.ports {
            [] => {}
            [none] if none.is_empty() && !self.is_new => take_out(rule, "ports"),
            ports => rule["ports"] = ports.iter().map(|port| number(port)).collect(),
        }
        self.put_peer(rule)
    }

    /// Another peer is in place of the one that was there, with its exceptions if it is a subnet, too.
    fn put_peer(&self, rule: &mut Value) -> Result<(), String> {
        match self.peers()[..] {
            [] => {}
            [(_, "")] if !self.is_new => take_out(rule, "peer"),
            [("cidr", subnet)] if rule["peer"]["cidr"].is_string() => {
                rule["peer"]["cidr"] = json!(subnet);
            }
            [(field, typed)] => rule["peer"] = json!({field: typed}),
            _ => return Err("one of --peer-group, --peer-network and --cidr".to_owned()),
        }
        let has_subnet = rule.get("peer").is_some_and(|peer| peer["cidr"].is_string());
        match self.except {
            [] => {}
            _ if !has_subnet => return Err("--except is for --cidr".to_owned()),
            [none] if none.is_empty() && !self.is_new => take_out(&mut rule["peer"], "except"),
            except => rule["peer"]["except"] = json!(except),
        }
        Ok(())
    }

    fn put_field(
        &self,
        rule: &mut Value,
        field: &str,
        typed: Option<&str>,
        value: impl Fn(&str) -> Value,
    ) {
        match typed {
            None => {}
            Some("") if !self.is_new => take_out(rule, field),
            Some(text) => rule[field] = value(text),
        }
    }
}

fn number(text: &str) -> Value {
    text.parse::<u16>().map_or(json!(text), |number| json!(number))
}

fn take_out(object: &mut Value, field: &str) {
    object.as_object_mut().into_iter().for_each(|fields| drop(fields.remove(field)));
}

/// A rule by its number: of what was read first. Once others have changed the policy the number may be another rule's.
pub struct NumberedRule {
    number: usize,
    first: OnceCell<Value>,
    moved: Cell<bool>,
}

impl NumberedRule {
    pub fn new(number: usize) -> NumberedRule {
        NumberedRule { number, first: OnceCell::new(), moved: Cell::new(false) }
    }

    /// Its place among the `rules` of the policy.
    ///
    /// # Errors
    /// There is none; somebody has changed the policy since the first call, so that it is another one.
    pub fn place(&self, policy: &StoredName, rules: &[Value]) -> Result<usize, String> {
        let number = self.number;
        let at = number.checked_sub(1).filter(|at| *at < rules.len());
        match (self.first.get(), at) {
            (None, Some(at)) => {
                self.first.get_or_init(|| rules[at].clone());
                Ok(at)
            }
            (None, None) => {
                Err(format!("{policy} has {} rules, and none with number {number}", rules.len()))
            }
            (Some(first), Some(at)) if rules[at] == *first => Ok(at),
            (Some(_), _) => {
                self.moved.set(true);
                Err(format!(
                    "somebody changed {policy} meanwhile, and rule {number} is not the one that it was: see \
                     humanz-agent policy rule-ls {}",
                    policy.short()
                ))
            }
        }
    }

    pub fn has_moved(&self) -> bool {
        self.moved.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sources::Kind;

    fn check(before: &Value, typed: RuleFields<'_>, after: Result<Value, &str>) {
        let mut rule = before.clone();
        let found = typed.put(&mut rule).map(|()| rule);
        assert_eq!(found, after.map_err(str::to_owned), "{before} {typed:?}");
    }

    #[test]
    fn what_is_typed_of_a_rule_changes_and_the_rest_stays() {
        let none = RuleFields::default();
        let rule = json!({"id": "7", "direction": "in", "action": "allow", "protocol": "tcp",
            "ports": [80], "peer": {"group": "web"}});
        let with = |field: &str, value: Value| {
            let mut rule = rule.clone();
            match value {
                Value::Null => take_out(&mut rule, field),
                value => rule[field] = value,
            }
            Ok(rule)
        };
        let (one, empty) = (["8000-8999".to_owned()], [String::new()]);
        check(&rule, none, Ok(rule.clone()));
        check(&rule, RuleFields { action: Some("deny"), ..none }, with("action", json!("deny")));
        check(&rule, RuleFields { priority: Some("9"), ..none }, with("priority", json!(9)));
        check(&rule, RuleFields { audit: Some(true), ..none }, with("audit", json!(true)));
        check(&rule, RuleFields { audit: Some(false), ..none }, Ok(rule.clone()));
        check(&rule, RuleFields { ports: &one, ..none }, with("ports", json!(["8000-8999"])));
        check(&rule, RuleFields { ports: &empty, ..none }, with("ports", Value::Null));
        check(&rule, RuleFields { protocol: Some("17"), ..none }, with("protocol", json!(17)));
        check(&rule, RuleFields { protocol: Some(""), ..none }, with("protocol", Value::Null));
        let network = json!({"network": "front"});
        check(&rule, RuleFields { peer_network: Some("front"), ..none }, with("peer", network));
        check(&rule, RuleFields { peer_group: Some(""), ..none }, with("peer", Value::Null));
        check(&rule, RuleFields { except: &one, ..none }, Err("--except is for --cidr"));
        let bad = RuleFields { priority: Some("high"), ..none };
        check(&rule, bad, Err("--priority \"high\" is no number"));
        let two = RuleFields { peer_group: Some("a"), cidr: Some("10.0.0.0/8"), ..none };
        check(&rule, two, Err("one of --peer-group, --peer-network and --cidr"));
        assert!(RuleFields::default().put(&mut json!(7)).is_err());
        assert!(none.are_empty() && !two.are_empty() && !bad.are_empty());
    }

    #[test]
    fn a_subnet_keeps_its_exceptions_and_a_new_rule_has_no_empty_fields() {
        let none = RuleFields::default();
        let except = ["10.1.0.0/16".to_owned()];
        let peer = |cidr: &str| json!({"peer": {"cidr": cidr, "except": except}});
        let wide = RuleFields { cidr: Some("10.0.0.0/8"), ..none };
        check(&peer("10.0.0.0/9"), wide, Ok(peer("10.0.0.0/8")));
        let without = json!({"peer": {"cidr": "10.0.0.0/8"}});
        check(&without, RuleFields { except: &except, ..none }, Ok(peer("10.0.0.0/8")));
        let empty = [String::new()];
        check(&peer("10.0.0.0/8"), RuleFields { except: &empty, ..none }, Ok(without));
        let new = RuleFields { is_new: true, ..none };
        let unset = RuleFields { peer_group: Some(""), ..new };
        check(&json!({}), unset, Ok(json!({"peer": {"group": ""}})));
        check(&json!({}), RuleFields { ports: &empty, ..new }, Ok(json!({"ports": [""]})));
    }

    #[test]
    fn a_number_that_became_another_rules_is_refused() {
        let policy = StoredName::parse(Kind::find("grouppolicy").unwrap(), "blue/p").unwrap();
        let rules = |actions: &[&str]| -> Vec<Value> {
            actions.iter().map(|action| json!({"action": action})).collect()
        };
        let said = |numbered: &NumberedRule, actions: &[&str]| {
            numbered.place(&policy, &rules(actions)).map_err(|why| why.contains("meanwhile"))
        };
        for (number, first, later, wanted) in [
            (2, ["a", "b", "c"], &["a", "b"][..], Ok(1)),
            (2, ["a", "b", "c"], &["a", "b", "c", "d"], Ok(1)),
            (2, ["a", "b", "c"], &["a", "c"], Err(true)),
            (3, ["a", "b", "c"], &["a", "c"], Err(true)),
            (1, ["a", "b", "c"], &[], Err(true)),
        ] {
            let rule = NumberedRule::new(number);
            assert_eq!(said(&rule, &first), Ok(number - 1));
            assert_eq!(said(&rule, later), wanted, "{number} {later:?}");
            assert_eq!(rule.has_moved(), wanted.is_err());
        }
        for number in [0, 2, usize::MAX] {
            let rule = NumberedRule::new(number);
            assert_eq!((said(&rule, &["a"]), rule.has_moved()), (Err(false), false));
        }
    }
}
