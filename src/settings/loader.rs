//! Loads the settings: options win over the environment, the environment over the settings file, the file
//! over the defaults.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};

use crate::net::gather::Gather;
use crate::net::{Object, Problem, ProblemKind};
use crate::os::files::{self, FileError};
use crate::settings::env_file::{self, Assignments};
use crate::settings::exit::{self, Exit};
use crate::settings::flags::{VARIABLES, Variable};
use crate::settings::values;
use crate::settings::{self, HostCheck, Settings, Source, Texts, invalid};

/// The settings file that is read if it exists and no other is given.
const DEFAULT: &str = "/etc/humanz/agent.env";

/// A larger file is refused.
const LIMIT_BYTES: u64 = 256 * 1024;

/// The variable of the logger; no setting.
pub const LOG: &str = "RUST_LOG";

/// Where etcd is.
const ETCD_HOST: &str = "ETCD_HOST";

/// Loads the settings; a reload loads them again.
#[derive(Clone, Debug)]
pub struct SettingsLoader {
    options: BTreeMap<&'static str, String>,
    environment: BTreeMap<&'static str, String>,
    /// The file that must exist: it was given as an option, or has been read before.
    file: Option<PathBuf>,
    /// The file was given as an option.
    file_is_given: bool,
    /// What the agent of this host serves with: it takes the place of the usual settings file.
    running: Texts,
    /// Defaults that replace those of [`VARIABLES`].
    defaults: BTreeMap<&'static str, String>,
}

/// Where the value of a setting comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SettingSource {
    Option,
    Environment,
    /// A line of the settings file, from 1.
    File(PathBuf, usize),
    /// The agent that serves this host.
    Agent,
    Default,
}

impl fmt::Display for SettingSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SettingSource::Option => f.write_str("option"),
            SettingSource::Environment => f.write_str("environment"),
            SettingSource::File(path, line) => write!(f, "{}:{line}", path.display()),
            SettingSource::Agent => f.write_str("agent"),
            SettingSource::Default => f.write_str("default"),
        }
    }
}

/// The settings as text, before any check.
#[derive(Clone, Debug)]
pub struct RawSettings {
    /// Text and source of every setting.
    pub texts: BTreeMap<&'static str, (String, SettingSource)>,
    /// The filter of the log in the syntax of `RUST_LOG`.
    pub log: Option<(String, SettingSource)>,
    /// Suspicious lines that do not stop the agent.
    pub warnings: Vec<Problem>,
}

/// All settings, checked.
#[derive(Clone, Debug)]
pub struct LoadedSettings {
    pub settings: Settings,
    pub texts: Texts,
    /// The filter of the log in the syntax of `RUST_LOG`.
    pub log: Option<String>,
    /// Suspicious lines that do not stop the agent.
    pub warnings: Vec<Problem>,
}

impl RawSettings {
    pub fn texts(&self) -> Texts {
        self.texts.iter().map(|(name, (text, _))| (*name, text.clone())).gather()
    }

    fn loaded(self, host: HostCheck) -> Result<LoadedSettings, Vec<Problem>> {
        let settings = self.check(host)?;
        let log = self.log.as_ref().map(|(text, _)| text.clone());
        let (texts, mut warnings) = (self.texts(), self.warnings);
        warnings.extend(without_effect(&texts, &settings));
        Ok(LoadedSettings { settings, texts, log, warnings })
    }

    /// The checked settings.
    ///
    /// # Errors
    /// Every invalid setting; also an invalid log filter.
    pub fn check(&self, host: HostCheck) -> Result<Settings, Vec<Problem>> {
        let settings = settings::parse(&self.texts(), host);
        let Some((value, _)) = &self.log else { return settings };
        let Err(why) = values::log_filter(value) else { return settings };
        let mut faults = settings.err().unwrap_or_default();
        faults.push(invalid(LOG, value, why));
        Err(faults)
    }
}

impl SettingsLoader {
    /// A loader for `options` (by variable), the settings file `file` and this process's environment.
    pub fn new(options: BTreeMap<&'static str, String>, file: Option<&str>) -> SettingsLoader {
        let names = VARIABLES.iter().map(|variable| variable.name).chain([LOG]);
        let set = names.filter_map(|name| Some((name, std::env::var(name).ok()?)));
        SettingsLoader {
            options,
            environment: set.gather(),
            file: file.map(PathBuf::from),
            file_is_given: file.is_some(),
            running: Texts::new(),
            defaults: BTreeMap::new(),
        }
    }

    /// Replaces the default of `variable`.
    pub fn set_default(&mut self, variable: &'static str, value: &str) {
        self.defaults.insert(variable, value.to_owned());
    }

    /// Text of every option that was typed, by variable.
    pub fn options(&self) -> &BTreeMap<&'static str, String> {
        &self.options
    }

    /// Whether what the agent of this host serves with counts: a user who names a file wants that file.
    pub fn may_follow_agent(&self) -> bool {
        !self.file_is_given
    }

    /// From now on options and environment win over `texts` of the agent that serves this host, and
    /// those over the settings file, which may have been edited since.
    pub fn follow_agent(&mut self, texts: Texts) {
        self.running = texts;
    }

    /// Reads the file and checks all settings.
    ///
    /// # Errors
    /// Every invalid setting.
    pub fn load(&mut self, host: HostCheck) -> Result<LoadedSettings, Vec<Problem>> {
        self.load_raw()?.loaded(host)
    }

    /// As [`SettingsLoader::load`], for a host that may have the plugin alone: `ETCD_HOST` may be missing,
    /// and etcd has no endpoint then.
    ///
    /// # Errors
    /// Every invalid setting.
    pub fn load_without_etcd(&mut self, host: HostCheck) -> Result<LoadedSettings, Vec<Problem>> {
        let mut raw = self.load_raw()?;
        let named = raw.texts.get(ETCD_HOST).is_some_and(|(text, _)| !text.is_empty());
        if named {
            return raw.loaded(host);
        }
        // Certificates, which may be given, go with an encrypted endpoint.
        raw.texts.insert(ETCD_HOST, ("https://localhost".to_owned(), SettingSource::Default));
        let mut loaded = raw.loaded(host)?;
        loaded.texts.remove(ETCD_HOST);
        if let Source::Etcd { server, .. } = &mut loaded.settings.source {
            server.endpoints.clear();
        }
        Ok(loaded)
    }

    /// Reads the file; checks nothing but its syntax.
    ///
    /// # Errors
    /// Every syntax error of the file.
    pub fn load_raw(&mut self) -> Result<RawSettings, Vec<Problem>> {
        let file = match self.file() {
            Err(_) if !self.running.is_empty() => Assignments::new(),
            file => file?,
        };
        let texts = VARIABLES.iter().map(|variable| (variable.name, self.text(variable, &file)));
        let texts = texts.gather();
        let log = self.environment.get(LOG).map(|text| (text.clone(), SettingSource::Environment));
        let in_file = || file.get(LOG).map(|set| self.line(set));
        let log = log.or_else(|| in_file().filter(|_| self.running.is_empty()));
        let log = log.filter(|(text, _)| !text.is_empty());
        Ok(RawSettings { texts, log, warnings: self.warnings(&file) })
    }

    /// The assignments of the settings file; none if it is optional and missing.
    fn file(&mut self) -> Result<Assignments, Vec<Problem>> {
        let path = self.path().to_owned();
        let bytes = match contents(&path) {
            Ok(bytes) => bytes,
            Err(error) if self.file.is_none() && error.kind() == ErrorKind::NotFound => {
                return Ok(Assignments::new());
            }
            Err(error) => {
                let what = format!("read {}: {error}", path.display());
                return Err(vec![in_file(ProblemKind::InvalidSetting, &path, what)]);
            }
        };
        let fault = |fault: &env_file::SyntaxError| {
            let what = format!("{} {fault}", path.display());
            in_file(ProblemKind::InvalidSetting, &path, what)
        };
        let assignments = env_file::parse(&bytes)
            .map_err(|faults| faults.iter().map(fault).collect::<Vec<_>>())?;
        self.file = Some(path);
        Ok(assignments)
    }

    /// The text of the variable `name`, also where the settings file cannot be read: then as if there
    /// were none.
    ///
    /// # Panics
    /// There is no such variable.
    pub fn text_of(&mut self, name: &str) -> String {
        self.look_up(name).0
    }

    /// Somebody has given `name` a value: an option, the environment, the agent, or the settings file.
    ///
    /// # Panics
    /// There is no such variable.
    pub fn is_given(&mut self, name: &str) -> bool {
        self.look_up(name).1 != SettingSource::Default
    }

    fn look_up(&mut self, name: &str) -> (String, SettingSource) {
        let variable = VARIABLES.iter().find(|variable| variable.name == name);
        let file = self.file().unwrap_or_default();
        self.text(variable.expect("a variable of humanz"), &file)
    }

    /// The settings file.
    pub fn path(&self) -> &Path {
        self.file.as_deref().unwrap_or(Path::new(DEFAULT))
    }

    fn text(&self, variable: &Variable, file: &Assignments) -> (String, SettingSource) {
        let Variable { name, default, .. } = *variable;
        let option = || self.options.get(name).map(|text| (text.clone(), SettingSource::Option));
        let environment =
            || self.environment.get(name).map(|text| (text.clone(), SettingSource::Environment));
        let running = || {
            let text = self.running.get(name)?;
            let is_default = text == default;
            let source = if is_default { SettingSource::Default } else { SettingSource::Agent };
            Some((text.clone(), source))
        };
        let replaced =
            || self.defaults.get(name).map(|text| (text.clone(), SettingSource::Default));
        let in_file = || file.get(name).map(|set| self.line(set));
        let set = option().or_else(environment).or_else(running).or_else(in_file);
        let set = set.map(|(text, source)| (text.trim().to_owned(), source));
        let set = set.filter(|(text, _)| !text.is_empty()).or_else(replaced);
        set.unwrap_or_else(|| (default.to_owned(), SettingSource::Default))
    }

    fn line(&self, set: &env_file::Assignment) -> (String, SettingSource) {
        (set.value.clone(), SettingSource::File(self.path().to_owned(), set.line))
    }

    fn warnings(&self, file: &Assignments) -> Vec<Problem> {
        let warning = |(name, set): (&String, &env_file::Assignment)| {
            let known = VARIABLES.iter().any(|variable| variable.name == name) || name == LOG;
            let hidden = self.environment.get(name.as_str()).filter(|env| **env != set.value);
            let (why, fix) = if !known {
                (
                    "is not a setting of humanz".to_owned(),
                    "humanz-agent config # correct the name, or remove the line",
                )
            } else if self.options.contains_key(name.as_str()) {
                (
                    "is ignored: it is given as an option".to_owned(),
                    "humanz-agent config # remove one of them",
                )
            } else {
                let why = format!("is ignored: the environment has {:?}", hidden?);
                (
                    why,
                    "systemctl cat humanz-agent # remove EnvironmentFile= from it (the agent reads the file itself), or the variable",
                )
            };
            let what = format!("{} line {}: {name} {why}", self.path().display(), set.line);
            Some(in_file(ProblemKind::SettingsFile, self.path(), what).with_fix(fix))
        };
        file.iter().filter_map(warning).collect()
    }
}

/// The warning about a SUBNET that SUBNET_SOURCE makes useless.
pub fn without_effect(texts: &Texts, settings: &Settings) -> Option<Problem> {
    let subnet = texts.get("SUBNET").filter(|subnet| !subnet.is_empty())?;
    let source = match settings.source {
        Source::Static(_) => return None,
        Source::Etcd { .. } => "etcd",
        Source::Kubernetes(_) => "kubernetes",
    };
    let what = format!(
        "SUBNET={subnet} has no effect: SUBNET_SOURCE is {source} (static serves this host alone)"
    );
    let subject = Object::Setting("SUBNET", subnet.clone());
    let fix = "humanz-agent config # take it out of the settings: nodes reserve keeps a subnet for a host that is to come";
    Some(Problem::new(ProblemKind::SettingsFile, subject, what).with_fix(fix))
}

impl From<FileError> for Exit {
    /// With what helps, if there is one thing.
    fn from(error: FileError) -> Exit {
        let fix = error.fix().map(|fix| format!("; {fix}"));
        Exit::new(exit::FAILURE, format!("{error}{}", fix.unwrap_or_default()))
    }
}

fn in_file(kind: ProblemKind, path: &Path, what: String) -> Problem {
    Problem::new(kind, Object::File("settings file", path.to_owned()), what)
}

/// The whole file.
fn contents(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    files::open(path)?.take(LIMIT_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > LIMIT_BYTES {
        return Err(io::Error::other(format!("larger than {LIMIT_BYTES} bytes: no settings file")));
    }
    Ok(bytes)
}
