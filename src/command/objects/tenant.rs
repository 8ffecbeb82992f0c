//! `tenant`: which tenants there are, and what they have.

use std::collections::{BTreeMap, BTreeSet};

use argh::{ArgsInfo, FromArgs};
use serde_json::{Value, json};

use crate::command::call::{Call, Outcome};
use crate::command::objects::edit::StoredObjects;
use crate::command::objects::files;
use crate::command::objects::stored;
use crate::command::objects::verbs::{ListObjects, ShowObject};
use crate::command::table::{Cell, Table, facts};
use crate::settings::exit::{self, Exit};
use crate::sources::StoredName;

/// show the tenants that objects in etcd are of
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(
    subcommand,
    name = "tenant",
    example = "{command_name} ls",
    example = "{command_name} show blue",
    note = "A tenant is there as soon as something is of it, and gone with the last that was.",
    error_code(1, "there is no such tenant, or a value in etcd is not understood"),
    error_code(69, "etcd cannot be reached, or refuses")
)]
pub struct TenantCommand {
    #[argh(subcommand)]
    verb: TenantVerb,
}

#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(subcommand)]
enum TenantVerb {
    List(ListObjects),
    Show(ShowObject),
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
    let (there, problems) = stored::read(call)?;
    let tenants = tenants(&there);
    match &options.verb {
        TenantVerb::List(options) => {
            let mut text = files::faults(&problems);
            text += &match tenants.is_empty() {
                true => "there is no tenant\n".to_owned(),
                false => table(&tenants).render(call.style),
            };
            let all = tenants.iter().map(|(name, has)| object(name, has));
            let value = json!({"tenants": all.collect::<Vec<_>>(), "problems": problems});
            call.answer(options.json, problems.is_empty(), value, &text)
        }
        TenantVerb::Show(options) => {
            let missing = || {
                let why = format!("nothing is of the tenant {:?}", options.name);
                Exit::new(exit::FAILURE, why)
            };
            let has = tenants.get(options.name.as_str()).ok_or_else(missing)?;
            let rows = COLUMNS.map(|(_, column)| (column, belongings(has, column).join(" ")));
            let rows: Vec<_> = rows.into_iter().filter(|(_, names)| !names.is_empty()).collect();
            let text = facts(&rows, call.style);
            call.answer(options.json, true, object(&options.name, has), &text)
        }
    }
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
