//! Objects of policies and clusters in files.

use std::fs::File;
use std::io::{self, Read};

use serde_json::Value;

use crate::command::table::{Style, Tone};
use crate::kube::Resource;
use crate::net::Problem;
use crate::policy::read::documents;
use crate::settings::exit::{self, Exit};
use crate::sources::document;

/// Longest input that is read, in bytes: a cluster of tens of thousands of pods.
const LIMIT: u64 = 512 << 20;

/// The file in which nothing stands.
const NOTHING: &str = "/dev/null";

/// The objects in `paths`, in order; `-` is standard input.
///
/// # Errors
/// A file that cannot be read or holds no objects.
pub fn read(paths: &[String]) -> Result<Vec<Value>, Exit> {
    read_if(paths, |_| Ok(()))
}

/// [`read`] of what a host is to have by its file, which refuses one in which no object stands.
///
/// # Errors
/// Such a file, too.
pub fn read_policies(paths: &[String]) -> Result<Vec<Value>, Exit> {
    read_if(paths, |text| if documents::is_blank(text) { Err(documents::BLANK) } else { Ok(()) })
}

/// [`read`] of all that is to be: what stands in none of the files is taken away.
///
/// # Errors
/// A file in which no object stands, too, as a full disk or a command that failed leaves one.
pub fn read_all_of(paths: &[String]) -> Result<Vec<Value>, Exit> {
    read_if(paths, |text| match documents::is_blank(text) {
        true => Err(
            "it has no object, and --prune would take out of etcd what stands in no file; [] stands for no objects",
        ),
        false => Ok(()),
    })
}

fn read_if(
    paths: &[String],
    check: impl Fn(&str) -> Result<(), &'static str>,
) -> Result<Vec<Value>, Exit> {
    let mut objects = Vec::new();
    for path in paths {
        let failed = |why: String| failed(path, &why);
        let text = text(path)?;
        let hint = "; of a cluster, take kubectl's -o json";
        let found = documents::objects(&text).map_err(|why| failed(why + hint))?;
        // Nobody writes that by mistake.
        if found.is_empty() && path != NOTHING {
            check(&text).map_err(|why| failed(why.to_owned()))?;
        }
        for object in found {
            objects.push(of_own(object).map_err(failed)?);
        }
    }
    Ok(objects)
}

/// A custom resource of humanz as etcd has the object; others as they are.
fn of_own(object: Value) -> Result<Value, String> {
    let is_it = |own: &Resource| {
        object["apiVersion"] == "humanz.io/v1alpha1" && object["kind"] == own.kind()
    };
    let Some(own) = Resource::OWN.into_iter().find(is_it) else { return Ok(object) };
    document(own, &object).map_err(|fault| {
        format!("{} {}: {fault}", own.kind(), object["metadata"]["name"].as_str().unwrap_or("?"))
    })
}

/// What stands in the file; `-` is standard input.
///
/// # Errors
/// It cannot be read.
pub fn text(path: &str) -> Result<String, Exit> {
    let mut text = String::new();
    let read = match path {
        "-" => io::stdin().lock().take(LIMIT).read_to_string(&mut text),
        _ => File::open(path).and_then(|file| file.take(LIMIT).read_to_string(&mut text)),
    };
    read.map(|_| text).map_err(|error| failed(path, &error.to_string()))
}

/// The file is not what it should be.
pub fn failed(path: &str, why: &str) -> Exit {
    Exit::new(exit::SETTINGS, format!("{path}: {why}"))
}

/// The lines for what is wrong with objects.
pub fn faults(problems: &[Problem], style: Style) -> String {
    problems.iter().map(|problem| style.fault(Tone::Plain, problem)).collect()
}
