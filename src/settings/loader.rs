//! Where the settings come from: options, the environment, the settings file, the defaults.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use nix::libc::O_NONBLOCK;

use crate::agent::preflight;
use crate::settings::env_file::{self, Assignments};
use crate::settings::flags::{VARIABLES, Variable};
use crate::settings::values;
use crate::settings::{self, Fault, HostSettings, Settings, Source};

/// The settings file that is read if it is there and no other is asked for.
const DEFAULT: &str = "/etc/humanz/agent.env";

/// A larger file is no settings file.
const LIMIT_BYTES: u64 = 256 * 1024;

/// The variable of the logger, which is no setting.
pub const LOG: &str = "RUST_LOG";

/// The text of every setting, defaults included.
pub type Texts = BTreeMap<&'static str, String>;

/// What settings are compared with, besides each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Validation {
    /// Nothing.
    ValuesOnly,
    /// This host: its files, its links and its addresses.
    WithHost,
}

impl Validation {
    /// The faults that only the host shows.
    fn faults(self, settings: &HostSettings) -> Vec<Fault> {
        match self {
            Validation::ValuesOnly => Vec::new(),
            Validation::WithHost => preflight::faults(settings),
        }
    }
}

/// Where the settings come from; the file can be read again and again.
#[derive(Clone, Debug)]
pub struct SettingsLoader {
    options: BTreeMap<&'static str, String>,
    environment: BTreeMap<&'static str, String>,
    /// The file that must be there: it was asked for, or it has been read once.
    file: Option<PathBuf>,
    /// What holds where nothing is told.
    fallback: BTreeMap<&'static str, String>,
}

/// Who says what a setting is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SettingSource {
    /// An option.
    Option,
    /// The environment.
    Environment,
    /// A line of the settings file, from 1.
    File(PathBuf, usize),
    /// Nobody.
    Default,
}

impl fmt::Display for SettingSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SettingSource::Option => f.write_str("option"),
            SettingSource::Environment => f.write_str("environment"),
            SettingSource::File(path, line) => write!(f, "{}:{line}", path.display()),
            SettingSource::Default => f.write_str("default"),
        }
    }
}

/// What was said, before anybody asks whether it is right.
#[derive(Clone, Debug)]
pub struct RawSettings {
    /// The text of every setting, and who said it.
    pub texts: BTreeMap<&'static str, (String, SettingSource)>,
    /// What to log, as the logger wants it, and who said it.
    pub log: Option<(String, SettingSource)>,
    /// What is odd and no fault.
    pub warnings: Vec<String>,
}

/// All settings, checked.
#[derive(Clone, Debug)]
pub struct LoadedSettings {
    /// The settings.
    pub settings: Settings,
    /// Their texts.
    pub texts: Texts,
    /// What to log, as the logger wants it.
    pub log: Option<String>,
    /// What is odd and no fault.
    pub warnings: Vec<String>,
}

impl RawSettings {
    /// The text of every setting.
    pub fn texts(&self) -> Texts {
        self.texts.iter().map(|(name, (text, _))| (*name, text.clone())).collect()
    }

    /// The settings that were said.
    ///
    /// # Errors
    /// Every fault, one line each; also of what to log.
    pub fn read(&self, against: Validation) -> Result<Settings, Vec<String>> {
        let settings = read(&self.texts(), against);
        let Some((value, _)) = &self.log else { return settings };
        let Err(wrong) = values::log_filter(value) else { return settings };
        let mut faults = settings.err().unwrap_or_default();
        faults.push(Fault { variable: LOG, value: value.clone(), problem: wrong }.to_string());
        Err(faults)
    }
}

impl SettingsLoader {
    /// The options that were given, by variable, the file that was asked for, and this process's
    /// environment.
    pub fn of(options: BTreeMap<&'static str, String>, file: Option<&str>) -> SettingsLoader {
        let names = VARIABLES.iter().map(|variable| variable.name).chain([LOG]);
        let set = names.filter_map(|name| Some((name, std::env::var(name).ok()?)));
        SettingsLoader {
            options,
            environment: set.collect(),
            file: file.map(PathBuf::from),
            fallback: BTreeMap::new(),
        }
    }

    /// What shall hold where nothing is told, instead of the default.
    pub fn set_default(&mut self, variable: &'static str, value: &str) {
        self.fallback.insert(variable, value.to_owned());
    }

    /// Reads the file and puts all together.
    ///
    /// # Errors
    /// Every fault there is, one line each.
    pub fn read(&mut self, against: Validation) -> Result<LoadedSettings, Vec<String>> {
        let load_raw = self.said()?;
        let settings = load_raw.read(against)?;
        let log = load_raw.log.as_ref().map(|(text, _)| text.clone());
        let (texts, mut warnings) = (load_raw.texts(), load_raw.warnings);
        warnings.extend(without_effect(&texts, &settings));
        Ok(LoadedSettings { settings, texts, log, warnings })
    }

    /// Reads the file and says who says what.
    ///
    /// # Errors
    /// Every fault of the file, one line each.
    pub fn said(&mut self) -> Result<RawSettings, Vec<String>> {
        let file = self.file()?;
        let texts = VARIABLES.iter().map(|variable| (variable.name, self.text(variable, &file)));
        let texts = texts.collect();
        let log = self.environment.get(LOG).map(|text| (text.clone(), SettingSource::Environment));
        let log = log.or_else(|| file.get(LOG).map(|set| self.line(set)));
        let log = log.filter(|(text, _)| !text.is_empty());
        Ok(RawSettings { texts, log, warnings: self.remarks(&file) })
    }

    /// The assignments of the settings file; none if it is not there and need not be.
    fn file(&mut self) -> Result<Assignments, Vec<String>> {
        let path = self.path().to_owned();
        let bytes = match contents(&path) {
            Ok(bytes) => bytes,
            Err(error) if self.file.is_none() && error.kind() == ErrorKind::NotFound => {
                return Ok(Assignments::new());
            }
            Err(error) => return Err(vec![format!("read {}: {error}", path.display())]),
        };
        let faults = |faults: Vec<env_file::Fault>| {
            faults.iter().map(|fault| format!("{} {fault}", path.display())).collect::<Vec<_>>()
        };
        let assignments = env_file::parse(&bytes).map_err(faults)?;
        self.file = Some(path);
        Ok(assignments)
    }

    fn path(&self) -> &Path {
        self.file.as_deref().unwrap_or(Path::new(DEFAULT))
    }

    fn text(&self, variable: &Variable, file: &Assignments) -> (String, SettingSource) {
        let Variable { name, default, .. } = *variable;
        let option = || self.options.get(name).map(|text| (text.clone(), SettingSource::Option));
        let environment =
            || self.environment.get(name).map(|text| (text.clone(), SettingSource::Environment));
        let fallback =
            || self.fallback.get(name).map(|text| (text.clone(), SettingSource::Default));
        let said =
            option().or_else(environment).or_else(|| file.get(name).map(|set| self.line(set)));
        let said = said.or_else(fallback).map(|(text, whence)| (text.trim().to_owned(), whence));
        let said = said.filter(|(text, _)| !text.is_empty());
        said.unwrap_or_else(|| (default.to_owned(), SettingSource::Default))
    }

    fn line(&self, set: &env_file::Assignment) -> (String, SettingSource) {
        (set.value.clone(), SettingSource::File(self.path().to_owned(), set.line))
    }

    fn remarks(&self, file: &Assignments) -> Vec<String> {
        let path = self.path().display();
        let remark = |(name, set): (&String, &env_file::Assignment)| {
            let line = set.line;
            let known = VARIABLES.iter().any(|variable| variable.name == name) || name == LOG;
            let hidden = self.environment.get(name.as_str()).filter(|env| **env != set.value);
            if !known {
                Some(format!("{path} line {line}: {name} is no setting of humanz; it is ignored"))
            } else if self.options.contains_key(name.as_str()) {
                Some(format!("{path} line {line}: {name} is ignored: it is given as an option"))
            } else {
                hidden.map(|env| {
                    format!("{path} line {line}: {name} is ignored: the environment says {env:?} (EnvironmentFile= in the unit? remove it, the agent reads the file itself)")
                })
            }
        };
        file.iter().filter_map(remark).collect()
    }
}

/// A subnet for a host whose subnet is given by somebody else.
fn without_effect(texts: &Texts, settings: &Settings) -> Option<String> {
    let subnet = texts.get("SUBNET").filter(|subnet| !subnet.is_empty())?;
    let source = match settings.source {
        Source::Static(_) => return None,
        Source::Etcd { .. } => "etcd",
        Source::Kubernetes(_) => "kubernetes",
    };
    Some(format!(
        "SUBNET={subnet} has no effect: SUBNET_SOURCE is {source} (static serves this host alone; \
         humanz-agent nodes reserve keeps a subnet for a host)"
    ))
}

/// The settings that `texts` make.
///
/// # Errors
/// Every fault, one line each.
pub fn read(texts: &Texts, against: Validation) -> Result<Settings, Vec<String>> {
    let look = |settings: &HostSettings| against.faults(settings);
    let read = settings::read(&|name| texts.get(name).cloned(), &look);
    read.map_err(|faults| faults.iter().map(ToString::to_string).collect())
}

/// All of a file. A pipe that nobody writes to is empty.
fn contents(path: &Path) -> io::Result<Vec<u8>> {
    let file = File::options().read(true).custom_flags(O_NONBLOCK).open(path)?;
    let mut bytes = Vec::new();
    file.take(LIMIT_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > LIMIT_BYTES {
        return Err(io::Error::other(format!("larger than {LIMIT_BYTES} bytes: no settings file")));
    }
    Ok(bytes)
}
