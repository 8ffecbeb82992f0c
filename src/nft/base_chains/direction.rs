//! Pure. Which way pod packets pass the host.

/// The comments of the rules that humanz inserts into chains of others start with this.
pub const COMMENT_PREFIX: &str = "humanz: ";

/// Seen from the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum HookDirection {
    /// In by the bridge: from pods.
    In,
    /// Out by the bridge: to pods.
    Out,
}

impl HookDirection {
    /// Both, in the order in which they are inserted at a head, so that `In` comes first.
    pub const BOTH: [HookDirection; 2] = [HookDirection::Out, HookDirection::In];

    /// The comment of our rule.
    pub fn comment(self) -> String {
        match self {
            HookDirection::In => format!("{COMMENT_PREFIX}from pods"),
            HookDirection::Out => format!("{COMMENT_PREFIX}to pods"),
        }
    }

    /// As iptables calls it.
    pub fn option(self) -> &'static str {
        match self {
            HookDirection::In => "-i",
            HookDirection::Out => "-o",
        }
    }
}
