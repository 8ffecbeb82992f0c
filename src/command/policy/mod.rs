//! `policy`: what policies decide, which hold, and those in etcd.

mod diff;
mod diff_here;
pub mod found;
mod from_contiv;
pub mod here;
mod list;
mod live;
mod live_test;
mod rule_fields;
mod rules;
mod show;
mod stored;
mod test;

use argh::{ArgsInfo, FromArgs};

use crate::command::call::{Call, Outcome};
use crate::settings::exit::Exit;

pub use stored::{Apply, Export};

/// say what network policies decide, on this host or from files (test, diff), which policies hold here (ls,
/// show), and change those in etcd (create, set, rule-add, rule-set, rule-rm, apply, rm, export)
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(
    subcommand,
    name = "policy",
    example = "kubectl get pods,namespaces,nodes,networkpolicies -A -o json > cluster.json",
    example = "{command_name} test -f cluster.json --from shop/web --to shop/db:5432",
    example = "{command_name} test -f cluster.json -f new.yaml --from shop/web --to 192.0.2.7",
    example = "{command_name} diff -f new.yaml",
    example = "{command_name} diff -f cluster.json --new new.yaml",
    example = "{command_name} apply -f policies.yaml --dry-run",
    example = "{command_name} export > policies.json",
    error_code(0, "the connection is allowed; nothing would change"),
    error_code(1, "the connection is denied; something would change"),
    error_code(2, "a file cannot be read, or an end is not known")
)]
pub struct Policy {
    #[argh(subcommand)]
    verb: PolicyVerb,
}

#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(subcommand)]
enum PolicyVerb {
    Test(test::Test),
    Diff(diff::Diff),
    Apply(stored::Apply),
    Rm(stored::Remove),
    Export(stored::Export),
    FromContiv(from_contiv::FromContiv),
    Create(rules::CreatePolicy),
    Set(rules::SetPolicy),
    RuleAdd(rules::AddRule),
    RuleSet(rules::SetRule),
    RuleRm(rules::RemoveRule),
    RuleLs(rules::ListRules),
    List(list::List),
    Show(show::Show),
}

/// Answers.
///
/// # Errors
/// What keeps the objects from being put.
pub fn apply(call: &mut Call<'_>, options: &Apply) -> Result<Outcome, Exit> {
    stored::apply(call, options)
}

/// Answers.
///
/// # Errors
/// etcd does not answer.
pub fn export(call: &mut Call<'_>, options: &Export) -> Result<Outcome, Exit> {
    stored::export(call, options)
}

/// Answers.
///
/// # Errors
/// A file or an end that is not understood.
pub fn run(call: &mut Call<'_>, options: &Policy) -> Result<Outcome, Exit> {
    match &options.verb {
        PolicyVerb::Test(options) if options.is_live() => live_test::run(call, options),
        PolicyVerb::Test(options) => test::run(call, options),
        PolicyVerb::Diff(options) => diff::run(call, options),
        PolicyVerb::Apply(options) => stored::apply(call, options),
        PolicyVerb::Rm(options) => stored::remove(call, options),
        PolicyVerb::Export(options) => stored::export(call, options),
        PolicyVerb::FromContiv(options) => from_contiv::run(call, options),
        PolicyVerb::Create(options) => rules::create(call, options),
        PolicyVerb::Set(options) => rules::set(call, options),
        PolicyVerb::RuleAdd(options) => rules::add(call, options),
        PolicyVerb::RuleSet(options) => rules::set_rule(call, options),
        PolicyVerb::RuleRm(options) => rules::remove(call, options),
        PolicyVerb::RuleLs(options) => rules::list(call, options),
        PolicyVerb::List(options) => list::run(call, options),
        PolicyVerb::Show(options) => show::run(call, options),
    }
}
