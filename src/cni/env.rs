//! Pure. The environment variables of a call.

use std::ffi::OsString;
use std::fmt;

use crate::cni::attachment::Attachment;
use crate::cni::error::CniError;
use crate::cni::version::Version;
use crate::net::IfName;

/// `CNI_COMMAND`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verb {
    /// Attach a container.
    Add,
    /// Detach it.
    Del,
    /// Compare it with what ADD made.
    Check,
    /// Remove what belongs to no valid attachment.
    Gc,
    /// Could an ADD be served?
    Status,
    /// Which versions of the protocol?
    Version,
}

impl Verb {
    const ALL: [Verb; 6] = {
        use Verb::*;
        [Add, Del, Check, Gc, Status, Version]
    };

    pub fn as_str(self) -> &'static str {
        match self {
            Verb::Add => "ADD",
            Verb::Del => "DEL",
            Verb::Check => "CHECK",
            Verb::Gc => "GC",
            Verb::Status => "STATUS",
            Verb::Version => "VERSION",
        }
    }

    /// The first version of the protocol that has this command.
    pub fn since(self) -> Version {
        match self {
            Verb::Check => Version::V040,
            Verb::Gc | Verb::Status => Version::V110,
            Verb::Add | Verb::Del | Verb::Version => Version::V010,
        }
    }

    /// The required variables, in the order an error lists them.
    ///
    /// Source: CNI SPEC, section 2; `CNI_PATH` as the reference skeleton has it.
    fn required(self) -> &'static [&'static str] {
        match self {
            Verb::Add | Verb::Check => &[CONTAINER_ID, NETNS, IFNAME, PATH],
            Verb::Del => &[CONTAINER_ID, IFNAME, PATH],
            Verb::Gc | Verb::Status => &[PATH],
            Verb::Version => &[],
        }
    }
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A container's network namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Netns {
    /// `CNI_NETNS` exactly as given: `sandbox` of a result.
    pub path: String,
    /// It may be the plugin's own namespace (`CNI_NETNS_OVERRIDE`).
    pub may_be_own: bool,
}

/// A command with its parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    Add(Attachment, Netns),
    /// The namespace may be gone.
    Del(Attachment, Option<Netns>),
    Check(Attachment, Netns),
    Gc,
    Status,
    Version,
}

/// The environment of one call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Environment {
    pub call: Operation,
    /// `CNI_ARGS`, or empty.
    pub args: String,
    /// The trace that the runtime works under (W3C `traceparent`), for the log.
    pub trace: Option<String>,
}

impl Environment {
    /// Reads the variables with `lookup`; `None` if there is no `CNI_COMMAND`: a person typed the
    /// program's name. An empty variable counts as missing; one that the command does not need is not
    /// read.
    ///
    /// # Errors
    /// Code 4: an unknown command, the missing variables, or an invalid one.
    pub fn parse(
        lookup: impl Fn(&str) -> Option<OsString>,
    ) -> Result<Option<Environment>, CniError> {
        let variables = Variables(lookup);
        let Some(command) = variables.optional(COMMAND)? else {
            return Ok(None);
        };
        let known = Verb::ALL.into_iter().find(|known| known.as_str() == command);
        let command = known.ok_or_else(|| {
            let known = Verb::ALL.map(Verb::as_str).join(", ");
            CniError::environment(format!("unknown CNI_COMMAND: {command}"))
                .with_details(format!("CNI_COMMAND is one of {known}"))
        })?;
        variables.require(command.required())?;
        let call = match command {
            Verb::Add => Operation::Add(variables.attachment()?, variables.netns()?),
            Verb::Check => Operation::Check(variables.attachment()?, variables.netns()?),
            Verb::Del => Operation::Del(variables.attachment()?, variables.netns_if_any()?),
            Verb::Gc => Operation::Gc,
            Verb::Status => Operation::Status,
            Verb::Version => Operation::Version,
        };
        let attaches =
            matches!(call, Operation::Add(..) | Operation::Del(..) | Operation::Check(..));
        let args = if attaches { variables.optional(ARGS)? } else { None };
        // No call fails because of its trace.
        let trace = variables.optional(TRACE).unwrap_or_default();
        Ok(Some(Environment { call, args: args.unwrap_or_default(), trace }))
    }

    pub fn command(&self) -> Verb {
        match self.call {
            Operation::Add(..) => Verb::Add,
            Operation::Del(..) => Verb::Del,
            Operation::Check(..) => Verb::Check,
            Operation::Gc => Verb::Gc,
            Operation::Status => Verb::Status,
            Operation::Version => Verb::Version,
        }
    }
}

const COMMAND: &str = "CNI_COMMAND";
const CONTAINER_ID: &str = "CNI_CONTAINERID";
const NETNS: &str = "CNI_NETNS";
const NETNS_OVERRIDE: &str = "CNI_NETNS_OVERRIDE";
const IFNAME: &str = "CNI_IFNAME";
const ARGS: &str = "CNI_ARGS";
const PATH: &str = "CNI_PATH";
const TRACE: &str = "TRACEPARENT";

struct Variables<F>(F);

impl<F: Fn(&str) -> Option<OsString>> Variables<F> {
    /// All of `names` are set, or one error lists the missing ones.
    fn require(&self, names: &[&str]) -> Result<(), CniError> {
        let missing = |name: &&&str| (self.0)(name).is_none_or(|value| value.is_empty());
        let missing: Vec<&str> = names.iter().filter(missing).copied().collect();
        if missing.is_empty() {
            return Ok(());
        }
        let missing = missing.join(", ");
        Err(CniError::environment(format!("required environment variables are missing: {missing}")))
    }

    fn optional(&self, name: &str) -> Result<Option<String>, CniError> {
        let value = (self.0)(name).filter(|value| !value.is_empty());
        let text = value.map(OsString::into_string).transpose();
        text.map_err(|value| {
            CniError::environment(format!("{name} is not UTF-8"))
                .with_details(value.to_string_lossy().into_owned())
        })
    }

    /// A variable that [`Variables::require`] has checked.
    fn required(&self, name: &str) -> Result<String, CniError> {
        Ok(self.optional(name)?.unwrap_or_default())
    }

    fn attachment(&self) -> Result<Attachment, CniError> {
        let id = self.required(CONTAINER_ID)?;
        let container_id = id.parse().map_err(|error| {
            CniError::environment(format!("invalid {CONTAINER_ID}: {error}")).with_details(&id)
        })?;
        let name = self.required(IFNAME)?;
        let ifname: IfName = name.parse().map_err(|error| {
            CniError::environment(format!("invalid {IFNAME}: {error}")).with_details(&name)
        })?;
        Ok(Attachment { container_id, ifname })
    }

    fn netns(&self) -> Result<Netns, CniError> {
        let may_be_own = self.optional(NETNS_OVERRIDE)?;
        let may_be_own =
            may_be_own.is_some_and(|value| value == "1" || value.eq_ignore_ascii_case("true"));
        Ok(Netns { path: self.required(NETNS)?, may_be_own })
    }

    fn netns_if_any(&self) -> Result<Option<Netns>, CniError> {
        Ok(Some(self.netns()?).filter(|netns| !netns.path.is_empty()))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use super::*;

    const ALL: [(&str, &str); 6] = [
        (CONTAINER_ID, "some-container-id"),
        (NETNS, "/run/netns/some"),
        (IFNAME, "eth0"),
        (PATH, "/opt/cni/bin"),
        (ARGS, "K=V"),
        (TRACE, "00-1-2-01"),
    ];

    /// `command` with the variables of [`ALL`] but `without`, some of them `changed`.
    fn parse(
        command: &str,
        without: &[&str],
        changed: &[(&str, &str)],
    ) -> Result<Option<Environment>, CniError> {
        Environment::parse(|name| {
            if name == COMMAND {
                return Some(command.into());
            }
            let given = changed.iter().chain(&ALL).find(|(given, _)| *given == name);
            given.filter(|_| !without.contains(&name)).map(|(_, value)| value.into())
        })
    }

    fn refusal(command: &str, without: &[&str], changed: &[(&str, &str)]) -> CniError {
        let error = parse(command, without, changed).unwrap_err();
        assert_eq!(error.code, 4, "{error:?}");
        error
    }

    fn attachment() -> Attachment {
        Attachment {
            container_id: "some-container-id".parse().unwrap(),
            ifname: "eth0".parse().unwrap(),
        }
    }

    #[test]
    fn add_keeps_the_values_as_given() {
        let netns = Netns { path: "/run/netns/some".into(), may_be_own: false };
        let expected = Environment {
            call: Operation::Add(attachment(), netns),
            args: "K=V".into(),
            trace: Some("00-1-2-01".into()),
        };
        assert_eq!(parse("ADD", &[], &[]), Ok(Some(expected)));
    }

    #[test]
    fn a_container_id_with_strange_characters_is_refused_and_shown() {
        for command in ["ADD", "CHECK", "DEL"] {
            let error = refusal(command, &[], &[(CONTAINER_ID, "some-%%container-id")]);
            assert_eq!(error.details.as_deref(), Some("some-%%container-id"));
        }
    }

    #[test]
    fn interface_names_that_the_kernel_would_refuse_or_change_are_refused() {
        for bad in
            ["1234567890123456", ".", "..", "test/test", "test:test", "test test", "e%d", "all"]
        {
            for command in ["ADD", "CHECK", "DEL"] {
                let error = refusal(command, &[], &[(IFNAME, bad)]);
                assert!(error.msg.contains("CNI_IFNAME"), "{error:?}");
            }
        }
    }

    #[test]
    fn each_missing_variable_of_add_and_check_is_listed() {
        for command in ["ADD", "CHECK"] {
            for name in [CONTAINER_ID, NETNS, IFNAME, PATH] {
                assert!(refusal(command, &[name], &[]).msg.ends_with(&format!(": {name}")));
                assert!(refusal(command, &[], &[(name, "")]).msg.ends_with(&format!(": {name}")));
            }
            assert_eq!(parse(command, &[ARGS], &[]).unwrap().unwrap().args, "");
        }
    }

    #[test]
    fn all_missing_variables_are_one_error_in_order() {
        let error = refusal("ADD", &[PATH, IFNAME, NETNS], &[]);
        let expected =
            "required environment variables are missing: CNI_NETNS, CNI_IFNAME, CNI_PATH";
        assert_eq!(error.msg, expected);
    }

    #[test]
    fn del_needs_no_namespace() {
        let expected = Operation::Del(attachment(), None);
        for parsed in [parse("DEL", &[NETNS, ARGS], &[]), parse("DEL", &[], &[(NETNS, "")])] {
            assert_eq!(parsed.unwrap().unwrap().call, expected);
        }
        assert!(refusal("DEL", &[CONTAINER_ID], &[]).msg.contains(CONTAINER_ID));
    }

    #[test]
    fn gc_and_status_need_the_path_alone_and_ignore_the_rest() {
        let rest = [CONTAINER_ID, NETNS, IFNAME, ARGS];
        let garbage = [(CONTAINER_ID, "../.."), (IFNAME, "a/b"), (NETNS, "%"), (ARGS, ";;")];
        for (command, call) in [("GC", Operation::Gc), ("STATUS", Operation::Status)] {
            assert_eq!(parse(command, &rest, &[]).unwrap().unwrap().call, call);
            let ignored = parse(command, &[], &garbage).unwrap().unwrap();
            assert_eq!((ignored.call, ignored.args), (call, String::new()));
            assert!(refusal(command, &[PATH], &[]).msg.contains(PATH));
        }
    }

    #[test]
    fn version_needs_nothing() {
        let found = Environment::parse(|name| (name == COMMAND).then(|| "VERSION".into()));
        assert_eq!(found.unwrap().unwrap().call, Operation::Version);
    }

    #[test]
    fn an_unknown_command_is_in_the_error() {
        for bad in ["NOPE", "add", "UPDATE"] {
            let error = refusal(bad, &[], &[]);
            assert_eq!(error.msg, format!("unknown CNI_COMMAND: {bad}"));
        }
    }

    #[test]
    fn no_command_is_a_person() {
        assert_eq!(Environment::parse(|_| None), Ok(None));
        assert_eq!(Environment::parse(|name| (name == COMMAND).then(OsString::new)), Ok(None));
    }

    #[test]
    fn the_override_is_1_or_true_in_any_case() {
        let may = |value| match parse("ADD", &[], &[(NETNS_OVERRIDE, value)]).unwrap().unwrap().call
        {
            Operation::Add(_, netns) => netns.may_be_own,
            other => panic!("{other:?}"),
        };
        assert!(["1", "true", "TRUE", "True"].into_iter().all(may));
        assert!(!["", "0", "false", "yes"].into_iter().any(may));
    }

    #[test]
    fn a_variable_that_is_not_utf_8_is_in_the_error() {
        let found = Environment::parse(|name| match name {
            COMMAND => Some("ADD".into()),
            NETNS => Some(OsString::from_vec(vec![b'/', 0xff])),
            _ => Some("x".into()),
        });
        let error = found.unwrap_err();
        assert_eq!((error.code, error.msg.as_str()), (4, "CNI_NETNS is not UTF-8"));
    }
}
