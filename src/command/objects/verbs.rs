//! What all kinds of objects have in common: making, changing, removing and showing one.

use argh::{ArgsInfo, FromArgs};
use serde_json::json;

use crate::command::call::{Call, Outcome};
use crate::command::objects::edit::{self, SpecFields, StoredObjects};
use crate::command::objects::files;
use crate::command::objects::stored;
use crate::command::table::{Cell, Table, facts};
use crate::net::gather::Gather;
use crate::policy::ObjectSource;
use crate::settings::exit::{self, Exit};
use crate::sources::{Change, Kind, StoredName, users};

/// take the object out of etcd, unless another one refers to it
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(
    subcommand,
    name = "rm",
    error_code(1, "it is not there, or another one refers to it: nothing was changed"),
    error_code(69, "etcd cannot be reached, or refuses")
)]
pub struct RemoveObject {
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

/// list those in etcd
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(
    subcommand,
    name = "ls",
    error_code(1, "a value in etcd is not understood, or one of them is invalid"),
    error_code(69, "etcd cannot be reached, or refuses")
)]
pub struct ListObjects {
    /// print one JSON object
    #[argh(switch)]
    pub json: bool,
}

/// show one, and what refers to it
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(
    subcommand,
    name = "show",
    error_code(1, "it is not there, or invalid"),
    error_code(69, "etcd cannot be reached, or refuses")
)]
pub struct ShowObject {
    /// its name
    #[argh(positional)]
    pub name: String,
    /// print one JSON object
    #[argh(switch)]
    pub json: bool,
}

/// A kind of objects as its subcommand shows it: columns, and fields of `spec` in them.
pub struct ObjectKind {
    pub kind: &'static str,
    pub columns: &'static [(&'static str, &'static str)],
}

impl ObjectKind {
    pub fn create(
        &self,
        call: &mut Call<'_>,
        name: &str,
        fields: &SpecFields,
        how: (bool, bool),
    ) -> Result<Outcome, Exit> {
        let name = self.name(name)?;
        stored::make(call, |there| edit::created(there, &name, fields), how)
    }

    pub fn set(
        &self,
        call: &mut Call<'_>,
        name: &str,
        fields: &SpecFields,
        how: (bool, bool),
    ) -> Result<Outcome, Exit> {
        let name = self.name(name)?;
        stored::make(call, |there| edit::changed(there, &name, fields), how)
    }

    pub fn remove(&self, call: &mut Call<'_>, options: &RemoveObject) -> Result<Outcome, Exit> {
        let change = Change { remove: vec![self.name(&options.name)?], ..Change::default() };
        stored::make(call, |_| Ok(change.clone()), (options.dry_run, options.json))
    }

    pub fn list(&self, call: &mut Call<'_>, options: &ListObjects) -> Result<Outcome, Exit> {
        let (there, problems) = stored::read_judged(call, self.stored_kind()?)?;
        let own: StoredObjects =
            there.into_iter().filter(|(name, _)| name.kind.name == self.kind).gather();
        let heads = ["NAME"].into_iter().chain(self.columns.iter().map(|(head, _)| *head));
        let mut table = Table::new(&heads.collect::<Vec<_>>());
        for (name, object) in &own {
            let cells = self.columns.iter().map(|(_, field)| shown(&object["spec"][*field]));
            table.row([name.short()].into_iter().chain(cells).map(Cell::new));
        }
        let mut text = files::faults(&problems, call.style);
        text += &match own.is_empty() {
            true => format!("there is no {}\n", self.kind),
            false => table.render(call.style),
        };
        let value = json!({"objects": own.values().collect::<Vec<_>>(), "problems": problems});
        call.answer(options.json, problems.is_empty(), value, &text)
    }

    pub fn show(&self, call: &mut Call<'_>, options: &ShowObject) -> Result<Outcome, Exit> {
        let name = self.name(&options.name)?;
        let (there, mut problems) = stored::read_judged(call, name.kind)?;
        problems.retain(|it| it.subject == stored::subject(&name));
        let missing = |why| Exit::new(exit::FAILURE, why);
        let object = edit::found(&there, &name).map_err(missing)?;
        let users: Vec<String> = users(&there, &name).iter().map(ToString::to_string).collect();
        let mut rows = vec![("name", name.short())];
        let spec = object["spec"].as_object();
        let fields = spec.into_iter().flatten();
        rows.extend(fields.map(|(field, value)| (field.as_str(), shown(value))));
        rows.push(("used by", if users.is_empty() { unused(call)? } else { users.join("\n") }));
        let value = json!({"object": object, "usedBy": users, "problems": problems});
        let text = files::faults(&problems, call.style) + &facts(&rows, call.style);
        call.answer(options.json, problems.is_empty(), value, &text)
    }

    /// # Errors
    /// Not a name of this kind.
    pub fn name(&self, text: &str) -> Result<StoredName, Exit> {
        let unknown = |why: String| Exit::new(exit::SETTINGS, why);
        StoredName::parse(self.stored_kind()?, text).map_err(unknown)
    }

    /// # Errors
    /// Not a kind: a fault of its table.
    pub fn stored_kind(&self) -> Result<&'static Kind, Exit> {
        Kind::find(self.kind).ok_or_else(|| Exit::new(exit::SETTINGS, self.kind))
    }
}

/// What uses an object that nothing in etcd names.
fn unused(call: &mut Call<'_>) -> Result<String, Exit> {
    Ok(match stored::ruling(call)? {
        ObjectSource::Etcd => "nothing".to_owned(),
        ObjectSource::Kubernetes => {
            "nothing in etcd: kubectl get namespacerules.humanz.io,grouppolicies.humanz.io -o yaml # has what else may \
             name it"
                .to_owned()
        }
    })
}

/// A field of `spec` for people.
fn shown(value: &serde_json::Value) -> String {
    use serde_json::Value;
    match value {
        Value::Null => String::new(),
        Value::Bool(is) => if *is { "yes" } else { "no" }.to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(all) => all.iter().map(shown).collect::<Vec<_>>().join(" "),
        Value::Object(all) => {
            let all = all.iter().map(|(field, value)| format!("{field} {}", shown(value)));
            all.collect::<Vec<_>>().join(" ")
        }
        other => other.to_string(),
    }
}
