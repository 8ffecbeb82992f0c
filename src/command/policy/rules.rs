//! `policy create`, `set`, `rule-add`, `rule-set`, `rule-rm` and `rule-ls`: policies of groups in etcd, rule by rule.

use argh::{ArgsInfo, FromArgs};
use serde_json::{Value, json};

use crate::command::call::{Call, Outcome};
use crate::command::objects::edit::{TypedOption, YesNo};
use crate::command::objects::{edit, stored};
use crate::command::policy::rule_fields::{NumberedRule, RuleFields};
use crate::command::table::{Cell, Table};
use crate::settings::exit::{self, Exit};
use crate::sources::{Kind, StoredName};

/// make a policy of groups without any rule
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(
    subcommand,
    name = "create",
    example = "{command_name} blue/front",
    error_code(1, "it exists already"),
    error_code(69, "etcd cannot be reached, or refuses")
)]
pub struct CreatePolicy {
    /// tenant/name (the tenant default without one)
    #[argh(positional)]
    name: String,
    /// only show what would change
    #[argh(switch)]
    dry_run: bool,
    /// print one JSON object
    #[argh(switch)]
    json: bool,
}

/// change the given fields of a policy of groups; its rules stay
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(
    subcommand,
    name = "set",
    example = "{command_name} blue/front --audit yes",
    error_code(1, "it is not there: nothing was changed"),
    error_code(69, "etcd cannot be reached, or refuses")
)]
pub struct SetPolicy {
    /// the policy: tenant/name (the tenant default without one)
    #[argh(positional)]
    name: String,
    /// yes: count and log what its rules match, and decide nothing; or no
    #[argh(option)]
    audit: Option<YesNo>,
    /// only show what would change
    #[argh(switch)]
    dry_run: bool,
    /// print one JSON object
    #[argh(switch)]
    json: bool,
}

/// add a rule to a policy of groups: without a protocol it is for all, without a peer for everything
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(
    subcommand,
    name = "rule-add",
    example = "{command_name} blue/front --direction in --action allow --protocol tcp --port 80 --peer-group web",
    example = "{command_name} blue/front --direction out --action deny --cidr 10.0.0.0/8 --except 10.1.0.0/16",
    error_code(
        1,
        "it is invalid, or refers to an object that does not exist: nothing was changed"
    ),
    error_code(69, "etcd cannot be reached, or refuses")
)]
pub struct AddRule {
    /// the policy: tenant/name (the tenant default without one)
    #[argh(positional)]
    name: String,
    /// in or out, as the group sees it
    #[argh(option)]
    direction: String,
    /// allow or deny
    #[argh(option)]
    action: String,
    /// from 1 (default) to 100: higher ones are judged first
    #[argh(option)]
    priority: Option<String>,
    /// tcp, udp, sctp, icmp, igmp or a number
    #[argh(option)]
    protocol: Option<String>,
    /// a port, a range (8000-8999) or the name of a port, again for more
    #[argh(option)]
    port: Vec<String>,
    /// the other end is of this group: name or tenant/name
    #[argh(option)]
    peer_group: Option<String>,
    /// the other end is in this network: name or tenant/name
    #[argh(option)]
    peer_network: Option<String>,
    /// the other end has an address in this subnet
    #[argh(option)]
    cidr: Option<String>,
    /// but not in this one, again for more
    #[argh(option)]
    except: Vec<String>,
    /// count and log what it matches, and decide nothing
    #[argh(switch)]
    audit: bool,
    /// only show what would change
    #[argh(switch)]
    dry_run: bool,
    /// print one JSON object
    #[argh(switch)]
    json: bool,
}

/// change the given fields of a rule of a policy of groups: the others stay, and an empty value (--protocol=) removes
/// a field
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(
    subcommand,
    name = "rule-set",
    example = "{command_name} blue/front 2 --port 8080",
    example = "{command_name} blue/front 2 --action deny --priority 10",
    error_code(1, "there is no such rule, or the new one is invalid: nothing was changed"),
    error_code(69, "etcd cannot be reached, or refuses"),
    error_code(75, "the policy was changed meanwhile: nothing was changed")
)]
pub struct SetRule {
    /// the policy: tenant/name (the tenant default without one)
    #[argh(positional)]
    name: String,
    /// its number in rule-ls
    #[argh(positional)]
    number: usize,
    /// in or out, as the group sees it
    #[argh(option)]
    direction: Option<String>,
    /// allow or deny
    #[argh(option)]
    action: Option<String>,
    /// from 1 to 100: higher ones are judged first
    #[argh(option)]
    priority: Option<String>,
    /// tcp, udp, sctp, icmp, igmp or a number
    #[argh(option)]
    protocol: Option<String>,
    /// a port, a range (8000-8999) or the name of a port, again for more, all of them
    #[argh(option)]
    port: Vec<String>,
    /// the other end is of this group: name or tenant/name
    #[argh(option)]
    peer_group: Option<String>,
    /// the other end is in this network: name or tenant/name
    #[argh(option)]
    peer_network: Option<String>,
    /// the other end has an address in this subnet
    #[argh(option)]
    cidr: Option<String>,
    /// but not in this one, again for more, all of them
    #[argh(option)]
    except: Vec<String>,
    /// yes: count and log what it matches, and decide nothing; or no
    #[argh(option)]
    audit: Option<YesNo>,
    /// only show what would change
    #[argh(switch)]
    dry_run: bool,
    /// print one JSON object
    #[argh(switch)]
    json: bool,
}

/// remove a rule of a policy of groups
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(
    subcommand,
    name = "rule-rm",
    example = "{command_name} blue/front 2",
    error_code(1, "there is no such rule: nothing was changed"),
    error_code(69, "etcd cannot be reached, or refuses"),
    error_code(75, "the policy was changed meanwhile: nothing was changed")
)]
pub struct RemoveRule {
    /// the policy: tenant/name (the tenant default without one)
    #[argh(positional)]
    name: String,
    /// its number in rule-ls
    #[argh(positional)]
    number: usize,
    /// only show what would change
    #[argh(switch)]
    dry_run: bool,
    /// print one JSON object
    #[argh(switch)]
    json: bool,
}

/// list the rules of a policy of groups with their numbers
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(
    subcommand,
    name = "rule-ls",
    example = "{command_name} blue/front",
    error_code(1, "it is not there"),
    error_code(69, "etcd cannot be reached, or refuses")
)]
pub struct ListRules {
    /// the policy: tenant/name (the tenant default without one)
    #[argh(positional)]
    name: String,
    /// print one JSON object
    #[argh(switch)]
    json: bool,
}

/// Answers.
///
/// # Errors
/// It is there, or etcd does not answer.
pub fn create(call: &mut Call<'_>, options: &CreatePolicy) -> Result<Outcome, Exit> {
    let name = policy(&options.name)?;
    let none = vec![("rules", Some(json!([])))];
    let how = (options.dry_run, options.json);
    stored::make(call, |there| edit::created(there, &name, &none), how)
}

/// Answers.
///
/// # Errors
/// It is not there, or nothing is given.
pub fn set(call: &mut Call<'_>, options: &SetPolicy) -> Result<Outcome, Exit> {
    let (name, fields) = (policy(&options.name)?, options.audit.spec("audit"));
    let how = (options.dry_run, options.json);
    stored::make(call, |there| edit::changed(there, &name, &fields), how)
}

/// Answers.
///
/// # Errors
/// The rule is not understood.
pub fn add(call: &mut Call<'_>, options: &AddRule) -> Result<Outcome, Exit> {
    let name = policy(&options.name)?;
    let mut rule = json!({});
    options.fields().put(&mut rule).map_err(|why| Exit::new(exit::SETTINGS, why))?;
    let change = |there: &edit::StoredObjects| {
        let mut rules = rules(edit::found(there, &name)?)?.clone();
        rules.push(rule.clone());
        edit::changed(there, &name, &vec![("rules", Some(Value::Array(rules)))])
    };
    stored::make(call, change, (options.dry_run, options.json))
}

/// Answers.
///
/// # Errors
/// There is no such rule, or it is another one than it was.
pub fn set_rule(call: &mut Call<'_>, options: &SetRule) -> Result<Outcome, Exit> {
    let fields = options.fields();
    if fields.are_empty() {
        let why = format!("no field of rule {} of {} is given", options.number, options.name);
        return Err(Exit::new(exit::SETTINGS, why));
    }
    // What no rule can have, wherever its other end is.
    let any = json!({"peer": {"cidr": "::/0"}});
    fields.put(&mut any.clone()).map_err(|why| Exit::new(exit::SETTINGS, why))?;
    change(call, (&options.name, options.number), (options.dry_run, options.json), |rules, at| {
        fields.put(&mut rules[at])
    })
}

/// Answers.
///
/// # Errors
/// There is no such rule, or it is another one than it was.
pub fn remove(call: &mut Call<'_>, options: &RemoveRule) -> Result<Outcome, Exit> {
    change(call, (&options.name, options.number), (options.dry_run, options.json), |rules, at| {
        rules.remove(at);
        Ok(())
    })
}

/// Changes the rules of a policy by one of them.
fn change(
    call: &mut Call<'_>,
    (name, number): (&str, usize),
    how: (bool, bool),
    edit: impl Fn(&mut Vec<Value>, usize) -> Result<(), String>,
) -> Result<Outcome, Exit> {
    let (name, rule) = (policy(name)?, NumberedRule::new(number));
    let change = |there: &edit::StoredObjects| {
        let mut rules = rules(edit::found(there, &name)?)?.clone();
        let at = rule.place(&name, &rules)?;
        edit(&mut rules, at)?;
        edit::changed(there, &name, &vec![("rules", Some(Value::Array(rules)))])
    };
    let made = stored::make(call, change, how);
    made.map_err(|exit| match rule.has_moved() {
        true => Exit::new(exit::TEMPORARY, exit.why),
        false => exit,
    })
}

/// Answers.
///
/// # Errors
/// There is no such policy.
pub fn list(call: &mut Call<'_>, options: &ListRules) -> Result<Outcome, Exit> {
    let name = policy(&options.name)?;
    let (there, _) = stored::read(call)?;
    let found = edit::found(&there, &name).and_then(rules);
    let rules = found.map_err(|why| Exit::new(exit::FAILURE, why))?;
    let heads = ["NUMBER", "WAY", "PRIORITY", "ACTION", "PROTOCOL", "PORTS", "PEER"];
    let mut table = Table::new(&heads);
    for (number, rule) in (1..).zip(rules) {
        table.row(row(number, rule).map(Cell::new));
    }
    let text = match rules.is_empty() {
        true => format!("{name} has no rules\n"),
        false => table.render(call.style),
    };
    call.answer(options.json, true, json!({"policy": name.path(), "rules": rules}), &text)
}

fn row(number: u32, rule: &Value) -> [String; 7] {
    let text = |value: &Value| match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let ports = rule["ports"].as_array().into_iter().flatten().map(text).collect::<Vec<_>>();
    let action = match rule["audit"] == json!(true) {
        true => format!("{} (audit)", text(&rule["action"])),
        false => text(&rule["action"]),
    };
    let peer = rule["peer"].as_object().into_iter().flatten().map(|(kind, value)| match value {
        Value::Array(all) => {
            format!("{kind} {}", all.iter().map(text).collect::<Vec<_>>().join(" "))
        }
        one => format!("{kind} {}", text(one)),
    });
    let priority = rule.get("priority").map_or("1".to_owned(), text);
    let peer = peer.collect::<Vec<_>>().join(" ");
    let protocol = text(&rule["protocol"]);
    [
        number.to_string(),
        text(&rule["direction"]),
        priority,
        action,
        protocol,
        ports.join(","),
        peer,
    ]
}

impl AddRule {
    fn fields(&self) -> RuleFields<'_> {
        RuleFields {
            direction: Some(&self.direction),
            action: Some(&self.action),
            priority: self.priority.as_deref(),
            protocol: self.protocol.as_deref(),
            ports: &self.port,
            peer_group: self.peer_group.as_deref(),
            peer_network: self.peer_network.as_deref(),
            cidr: self.cidr.as_deref(),
            except: &self.except,
            audit: self.audit.then_some(true),
            is_new: true,
        }
    }
}

impl SetRule {
    fn fields(&self) -> RuleFields<'_> {
        RuleFields {
            direction: self.direction.as_deref(),
            action: self.action.as_deref(),
            priority: self.priority.as_deref(),
            protocol: self.protocol.as_deref(),
            ports: &self.port,
            peer_group: self.peer_group.as_deref(),
            peer_network: self.peer_network.as_deref(),
            cidr: self.cidr.as_deref(),
            except: &self.except,
            audit: self.audit.map(|YesNo(is)| is),
            is_new: false,
        }
    }
}

fn policy(text: &str) -> Result<StoredName, Exit> {
    let unknown = |why: String| Exit::new(exit::SETTINGS, why);
    let kind = Kind::find("GroupPolicy").ok_or_else(|| unknown("GroupPolicy".to_owned()))?;
    StoredName::parse(kind, text).map_err(unknown)
}

fn rules(policy: &Value) -> Result<&Vec<Value>, String> {
    let rules = &policy["spec"]["rules"];
    rules.as_array().ok_or_else(|| "its rules are not a list: apply or rm it".to_owned())
}
