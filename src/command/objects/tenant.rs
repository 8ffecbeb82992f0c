//! `tenant`: which tenants there are, what they have, and the end of one.

use std::collections::{BTreeMap, BTreeSet};

use argh::{ArgsInfo, FromArgs};
use serde_json::{Value, json};

use crate::command::call::{Call, Outcome};
use crate::command::objects::edit::StoredObjects;
use crate::command::objects::files;
use crate::command::objects::found_pins;
use crate::command::objects::stored;
use crate::command::objects::verbs::{ListObjects, ShowObject};
use crate::command::table::{Cell, Table, facts};
use crate::settings::exit::{self, Exit};
use crate::sources::{Change, StoredName};

/// show the tenants of the objects in etcd, and remove one with all of its objects
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(
    subcommand,
    name = "tenant",
    example = "{command_name} ls",
    example = "{command_name} show blue",
    example = "{command_name} rm blue --dry-run",
    note = "A tenant exists while an object in etcd is of it.",
    error_code(1, "there is no such tenant, it has to stay, or a value in etcd is not understood"),
    error_code(69, "etcd cannot be reached, or refuses")
)]
pub struct TenantCommand {
    #[argh(subcommand)]
    verb: TenantVerb,
}

#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(subcommand)]
enum TenantVerb {
    Remove(RemoveTenant),
    List(ListObjects),
    Show(ShowObject),
}

/// take all objects of a tenant out of etcd at once, with the rules of its namespaces and the fixed addresses in its
/// networks, unless an object of another tenant refers to one, or hosts have blocks of a network
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(
    subcommand,
    name = "rm",
    example = "{command_name} blue --dry-run",
    error_code(1, "nothing is of it, or something has to stay: nothing was changed"),
    error_code(69, "etcd cannot be reached, or refuses"),
    error_code(75, "policies keep changing")
)]
pub struct RemoveTenant {
    /// its name
    #[argh(positional)]
    name: String,
    /// only show what would change
    #[argh(switch)]
    dry_run: bool,
    /// print one JSON object
    #[argh(switch)]
    json: bool,
}

/// What is of a tenant, by column.
type Belongings<'a> = BTreeMap<&'static str, BTreeSet<&'a StoredName>>;

/// Kinds, and their columns.
const COLUMNS: [(&str, &str); 5] = [
    ("Network", "networks"),
    ("Group", "groups"),
    ("GroupPolicy", "policies"),
    ("NetProfile", "profiles"),
    ("NamespaceRule", "namespaces"),
];

pub fn run(call: &mut Call<'_>, options: &TenantCommand) -> Result<Outcome, Exit> {
    match &options.verb {
        TenantVerb::Remove(options) => remove(call, options),
        TenantVerb::List(options) => list(call, options),
        TenantVerb::Show(options) => show(call, options),
    }
}

fn list(call: &mut Call<'_>, options: &ListObjects) -> Result<Outcome, Exit> {
    let (there, problems) = stored::read(call)?;
    let tenants = tenants(&there);
    let mut text = files::faults(&problems, call.style);
    text += &match tenants.is_empty() {
        true => "there is no tenant\n".to_owned(),
        false => table(&tenants).render(call.style),
    };
    let all = tenants.iter().map(|(name, has)| object(name, has));
    let value = json!({"tenants": all.collect::<Vec<_>>(), "problems": problems});
    call.answer(options.json, problems.is_empty(), value, &text)
}

fn show(call: &mut Call<'_>, options: &ShowObject) -> Result<Outcome, Exit> {
    let (there, _) = stored::read(call)?;
    let tenants = tenants(&there);
    let missing = || Exit::new(exit::FAILURE, nothing(&options.name));
    let has = tenants.get(options.name.as_str()).ok_or_else(missing)?;
    let rows = COLUMNS.map(|(_, column)| (column, belongings(has, column).join(" ")));
    let rows: Vec<_> = rows.into_iter().filter(|(_, names)| !names.is_empty()).collect();
    let text = facts(&rows, call.style);
    call.answer(options.json, true, object(&options.name, has), &text)
}

fn remove(call: &mut Call<'_>, options: &RemoveTenant) -> Result<Outcome, Exit> {
    // Refused where those of the API are in force.
    stored::read(call)?;
    let change = |there: &StoredObjects| {
        let tenants = tenants(there);
        let has = tenants.get(options.name.as_str()).ok_or_else(|| nothing(&options.name))?;
        let objects = has.values().flatten().map(|name| (*name).clone());
        let remove = objects.chain(pins(there, &options.name)).collect();
        Ok(Change { remove, ..Change::default() })
    };
    stored::make(call, change, (options.dry_run, options.json))
}

fn nothing(tenant: &str) -> String {
    format!("nothing is of the tenant {tenant:?}")
}

/// The fixed addresses that are in networks of the tenant, and in no others.
fn pins(there: &StoredObjects, tenant: &str) -> Vec<StoredName> {
    let networks = found_pins::networks(there);
    let is_of = |address: &Value| {
        let address = address.as_str().and_then(|text| text.parse().ok());
        let network = address.and_then(|address| networks.of(address));
        network.is_some_and(|network| network.tenant.as_str() == tenant)
    };
    let is_its = |(name, object): &(&StoredName, &Value)| {
        let addresses = object["spec"]["addresses"].as_array();
        name.kind.name == "Pin"
            && addresses.is_some_and(|all| !all.is_empty() && all.iter().all(is_of))
    };
    there.iter().filter(is_its).map(|(name, _)| name.clone()).collect()
}

/// Their names.
pub fn names(there: &StoredObjects) -> Vec<String> {
    tenants(there).into_keys().map(str::to_owned).collect()
}

fn tenants(there: &StoredObjects) -> BTreeMap<&str, Belongings<'_>> {
    let mut tenants: BTreeMap<&str, Belongings<'_>> = BTreeMap::new();
    for (name, object) in there {
        let column = COLUMNS.iter().find(|(kind, _)| *kind == name.kind.name);
        let Some((kind, column)) = column else { continue };
        let tenant = match (*kind, &name.scope) {
            ("NamespaceRule", _) => object["spec"]["tenant"].as_str().unwrap_or("default"),
            (_, Some(tenant)) => tenant.as_str(),
            (_, None) => continue,
        };
        tenants.entry(tenant).or_default().entry(*column).or_default().insert(name);
    }
    tenants
}

fn belongings<'a>(has: &Belongings<'a>, column: &str) -> Vec<&'a str> {
    has.get(column).into_iter().flatten().map(|name| name.name.as_str()).collect()
}

fn table(tenants: &BTreeMap<&str, Belongings<'_>>) -> Table {
    let heads = ["TENANT", "NETWORKS", "GROUPS", "POLICIES", "PROFILES", "NAMESPACES"];
    let mut table = Table::new(&heads);
    for (tenant, has) in tenants {
        let counts = COLUMNS.map(|(_, column)| belongings(has, column).len().to_string());
        table.row([(*tenant).to_owned()].into_iter().chain(counts).map(Cell::new));
    }
    table
}

fn object(tenant: &str, has: &Belongings<'_>) -> Value {
    let mut object = json!({"tenant": tenant});
    for (_, column) in COLUMNS {
        object[column] = json!(belongings(has, column));
    }
    object
}
