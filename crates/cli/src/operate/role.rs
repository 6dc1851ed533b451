//! What listeners are for, and what they are called where one program hands them to the next.

/// What a listener is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Those whom the program serves.
    Listen,
    /// `--metrics`.
    Metrics,
    /// `serve --direct`: proxies that lend their clients' sockets.
    Direct,
}

impl Role {
    pub const ALL: [Role; 3] = [Role::Listen, Role::Metrics, Role::Direct];

    pub fn name(self) -> &'static str {
        match self {
            Role::Listen => "listen",
            Role::Metrics => "metrics",
            Role::Direct => "direct",
        }
    }
}
