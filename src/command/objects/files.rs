//! Objects of policies and clusters in files.

use std::fs::File;
use std::io::{self, Read};

use serde_json::Value;

use crate::command::table::{Style, Tone};
use crate::net::Problem;
use crate::policy::read::documents;
use crate::settings::exit::{self, Exit};

/// Longest input that is read, in bytes: a cluster of tens of thousands of pods.
const LIMIT: u64 = 512 << 20;

/// The objects in `paths`, in order; `-` is standard input.
///
/// # Errors
/// A file that cannot be read or holds no objects.
pub fn read(paths: &[String]) -> Result<Vec<Value>, Exit> {
    let mut objects = Vec::new();
    for path in paths {
        let failed = |why: String| failed(path, &why);
        let text = text(path)?;
        let hint = "; of a cluster, take kubectl's -o json";
        objects.append(&mut documents::objects(&text).map_err(|why| failed(why + hint))?);
    }
    Ok(objects)
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
