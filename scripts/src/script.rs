//! What a script says.

use crate::expression::Expression;
use crate::segment::Segment;
use crate::wire::Family;

/// A script that was read.
#[derive(Clone, Debug)]
pub struct Script {
    pub(crate) file: String,
    pub(crate) events: Vec<Event>,
    /// What stands behind `// kernel: differs:`: why the kernel does not do what is written here.
    pub(crate) differs: Option<String>,
    /// What stands behind `// only:`: the family that it is about.
    pub(crate) only: Option<Family>,
    /// Whether ours leaves slow start by HyStart++ (`// ours: HyStart++`); by HyStart, as Linux, if not.
    pub(crate) plus_plus: bool,
    /// The comment at its beginning.
    pub(crate) header: String,
}

impl Script {
    /// Where it was read.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// Why the kernel is not expected to pass it, if so (`// kernel: differs: REASON`).
    pub fn kernel_differs(&self) -> Option<&str> {
        self.differs.as_deref()
    }

    /// Whether it is to run over `family`: both, unless it says one (`// only: IPv4`), or speaks of IPv4 itself, as a router's complaint does.
    pub fn is_for(&self, family: Family) -> bool {
        let only = self.only.or_else(|| self.needs_ipv4().then_some(Family::V4));
        only.is_none_or(|only| only == family)
    }

    fn needs_ipv4(&self) -> bool {
        let names = |value: &Value| matches!(value, Value::Name(name) if name.starts_with("IP_"));
        self.events.iter().any(|event| match &event.action {
            Action::Packet(packet) => matches!(packet.body, Body::Unreachable { .. }),
            Action::Call(call) => call.args.iter().any(names),
            _ => false,
        })
    }

    /// The comment at its beginning: the RFC's section, the state, what it shows.
    pub fn header(&self) -> &str {
        &self.header
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Event {
    pub line: usize,
    pub time: Time,
    pub action: Action,
}

/// When, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Time {
    /// Since the script began.
    At(u64),
    /// Since the event before.
    After(u64),
    /// Since the script began, between these.
    Between(u64, u64),
    /// Since the event before, between these.
    AfterBetween(u64, u64),
    /// Whenever.
    Any,
}

#[derive(Clone, Debug)]
pub(crate) enum Action {
    Packet(Packet),
    Call(Call),
    Sysctl(Vec<(String, String)>),
    Assert(Vec<(String, Expression)>),
}

#[derive(Clone, Debug)]
pub(crate) struct Packet {
    /// To the host under test; else from it.
    pub incoming: bool,
    /// The sender's and the receiver's, where the script says them.
    pub ports: Option<(u16, u16)>,
    pub body: Body,
}

#[derive(Clone, Debug)]
pub(crate) enum Body {
    Tcp(Segment),
    /// A router complains about a segment.
    Unreachable {
        code: u8,
        mtu: u16,
        about: Segment,
    },
}

#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub name: String,
    pub args: Vec<Value>,
    /// Where it blocks: when it returns, counted as its beginning is.
    pub ends: Option<u64>,
    pub result: Value,
    pub errno: Option<String>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    /// `...`
    Whatever,
    Number(i64),
    Text(String),
    Name(String),
    Either(Vec<Value>),
    List(Vec<Value>),
    Fields(Vec<(String, Value)>),
}
