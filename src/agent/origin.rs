//! Where the settings come from: options, the environment, the settings file, the defaults.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use nix::libc::O_NONBLOCK;

use crate::agent::cli::{Arguments, VARIABLES};
use crate::agent::envfile::{self, Assignments};
use crate::agent::settings::{self, Settings};

/// The settings file that is read if it is there and no other is asked for.
const DEFAULT: &str = "/etc/humanz/agent.env";

/// A larger file is no settings file.
const LIMIT_BYTES: u64 = 256 * 1024;

/// The variable of the logger, which is no setting.
const LOG: &str = "RUST_LOG";

/// The text of every setting, defaults included.
pub type Texts = BTreeMap<&'static str, String>;

/// Where the settings come from; the file can be read again and again.
#[derive(Clone, Debug)]
pub struct Origin {
    options: BTreeMap<&'static str, String>,
    environment: BTreeMap<&'static str, String>,
    /// The file that must be there: it was asked for, or it has been read once.
    file: Option<PathBuf>,
    /// What holds where nothing is told.
    fallback: BTreeMap<&'static str, String>,
}

/// All settings, checked.
#[derive(Clone, Debug)]
pub struct Told {
    /// The settings.
    pub settings: Settings,
    /// Their texts.
    pub texts: Texts,
    /// What to log, as the logger wants it.
    pub log: Option<String>,
    /// What is odd and no fault.
    pub remarks: Vec<String>,
}

impl Origin {
    /// The options of `arguments` and this process's environment.
    pub fn of(arguments: &Arguments) -> Origin {
        let names = VARIABLES.iter().map(|variable| variable.name).chain([LOG]);
        let set = names.filter_map(|name| Some((name, std::env::var(name).ok()?)));
        Origin {
            options: arguments.given(),
            environment: set.collect(),
            file: arguments.env_file.as_ref().map(PathBuf::from),
            fallback: BTreeMap::new(),
        }
    }

    /// What shall hold where nothing is told, instead of the default.
    pub fn fall_back(&mut self, variable: &'static str, value: &str) {
        self.fallback.insert(variable, value.to_owned());
    }

    /// Reads the file and puts all together.
    ///
    /// # Errors
    /// Every fault there is, one line each.
    pub fn read(&mut self) -> Result<Told, Vec<String>> {
        let file = self.file()?;
        let texts = self.texts(&file);
        let settings = read(&texts)?;
        let log = self.environment.get(LOG).cloned();
        let log = log.or_else(|| file.get(LOG).map(|set| set.value.clone()));
        let log = log.filter(|text| !text.is_empty());
        Ok(Told { settings, texts, log, remarks: self.remarks(&file) })
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
        let faults = |faults: Vec<envfile::Fault>| {
            faults.iter().map(|fault| format!("{} {fault}", path.display())).collect::<Vec<_>>()
        };
        let assignments = envfile::parse(&bytes).map_err(faults)?;
        self.file = Some(path);
        Ok(assignments)
    }

    fn path(&self) -> &Path {
        self.file.as_deref().unwrap_or(Path::new(DEFAULT))
    }

    fn texts(&self, file: &Assignments) -> Texts {
        let outside = |name: &str| {
            let set = self.environment.get(name).cloned();
            let set = set.or_else(|| file.get(name).map(|set| set.value.clone()));
            set.or_else(|| self.fallback.get(name).cloned())
        };
        let text = |name| settings::text(&self.options, &outside, name).trim().to_owned();
        VARIABLES.iter().map(|variable| (variable.name, text(variable.name))).collect()
    }

    fn remarks(&self, file: &Assignments) -> Vec<String> {
        let path = self.path().display();
        let remark = |(name, set): (&String, &envfile::Assignment)| {
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

/// The settings that `texts` make.
///
/// # Errors
/// Every fault, one line each.
pub fn read(texts: &Texts) -> Result<Settings, Vec<String>> {
    let read = settings::read(&BTreeMap::new(), &|name| texts.get(name).cloned());
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
