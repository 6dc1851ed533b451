//! `onecopy ss`: the live onecopy sockets of this user, with what they have done.

mod diag;
mod rows;
mod walk;

use crate::terminal;
use onecopy::Wait;
use onecopy::advanced::registry::{Protocol, Type};
use onecopy::{Policy, Reader};
pub use rows::{COLUMNS, Rates, cells, lines, visible};
use serde_json::{Value, json};
pub use walk::{Found, Socket};

/// What stands below the flags: what a person has to know to read the table.
const AFTER_HELP: &str = "\
Columns (bytes: K is 1024; counts: k is 1000):
  type          stream, seqpacket or dgram; listening; or kernel: no
                shared memory, or not yet; or, of a stack of the program's
                own: tcp and its state, udp
  process       who has the socket: number and name
  peer          the process at the other end, if this user may look
  queue         bytes sent to it that it has not taken; of a
                listener: connections that wait
  sent          bytes, whichever way
  received      bytes taken, whichever way
  user copies   bytes that it copied in user space, both ways
  of it nt      of these: with non-temporal stores
  kernel        bytes that the kernel copied for it
  by reference  bytes sent or received with no copy at all
  stalls        times that a send found no room in shared memory
  sleeps        times that a waiting call went to sleep
  doorbells     times that it rang to wake its peer
  spins         times that looking again and again paid
  lies          what the peer did against the protocol
  stores        the policy for stores, and who reads what it sends;
                of auto: what it chose on a large ring, and why;
                from which size on it lends, where that was measured
  path          its name, or its peer's; @ for an abstract one; of tcp
                and udp: its address and its peer's

A process shows its sockets itself, to its own user and to root. `--json` has
every counter, by its name in `onecopy::Stats`; peer_pid, path and queue
are null where they are not known.";

/// Flags of `onecopy ss`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = AFTER_HELP)]
pub struct Args {
    /// One JSON object a line for each socket, with every counter
    #[arg(long)]
    json: bool,
    /// Say what was passed over, and why
    #[arg(short, long)]
    verbose: bool,
    #[command(flatten)]
    which: Which,
}

/// Which sockets: the same flags for `ss` and `top`.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Which {
    /// Only the sockets of this process; may be given several times
    #[arg(long = "pid", value_name = "PID")]
    pids: Vec<u32>,
}

impl Which {
    /// Looks around.
    pub fn look(&self) -> anyhow::Result<Found> {
        let mut found = walk::look()?;
        if !self.pids.is_empty() {
            found.sockets.retain(|socket| self.pids.contains(&socket.pid));
        }
        Ok(found)
    }

    /// What is said when there is none.
    pub fn none(&self) -> &'static str {
        match self.pids.is_empty() {
            true => "no onecopy socket is open in any process that this user may look into\n",
            false => "no such process has an onecopy socket open that this user may look into\n",
        }
    }
}

/// Runs `onecopy ss`.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let found = args.which.look()?;
    let mut out = String::new();
    if args.json {
        for socket in &found.sockets {
            out += &one_line(&object(socket));
            out.push('\n');
        }
    } else if found.sockets.is_empty() {
        out += args.which.none();
    } else {
        out += &lines(&found.sockets, None);
    }
    terminal::print(&out)?;
    if args.verbose {
        for skipped in &found.skipped {
            tell!("onecopy ss: passed over: {skipped}");
        }
    }
    Ok(())
}

/// SocketAddr of a type of socket.
pub fn type_name(kind: Type) -> &'static str {
    match kind {
        Type::Stream => "stream",
        Type::SeqPacket => "seqpacket",
        Type::Datagram => "dgram",
    }
}

/// SocketAddr of a policy.
pub fn policy_name(policy: Policy) -> &'static str {
    match policy {
        Policy::Cached => "cached",
        Policy::NonTemporal => "nt",
        Policy::Auto => "auto",
    }
}

/// SocketAddr of a reader, as the proxy tells it.
pub fn reader_name(reader: Reader) -> &'static str {
    match reader {
        Reader::SameCore => "same-core",
        Reader::OtherCore => "other-core",
        Reader::NoCpu => "no-cpu",
        _ => "unknown",
    }
}

/// A state of TCP, as ss(8) calls it.
pub fn state_name(state: u8) -> &'static str {
    match state {
        1 => "established",
        2 => "syn-sent",
        3 => "syn-recv",
        4 => "fin-wait-1",
        5 => "fin-wait-2",
        6 => "time-wait",
        7 => "closed",
        8 => "close-wait",
        9 => "last-ack",
        10 => "listening",
        11 => "closing",
        _ => "unknown",
    }
}

fn protocol_name(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Unix => "unix",
        Protocol::Tcp => "tcp",
        Protocol::Udp => "udp",
    }
}

fn wait_name(wait: Wait) -> &'static str {
    match wait {
        Wait::Adaptive => "adaptive",
        Wait::Block => "block",
        Wait::Spin => "spin",
    }
}

/// Without any character that a terminal obeys: of those, JSON itself escapes only the first 32, and names are other people's.
fn one_line(object: &Value) -> String {
    object.to_string().chars().fold(String::new(), |mut text, c| {
        match c.is_control() {
            true => text += &format!("\\u{:04x}", u32::from(c)),
            false => text.push(c),
        }
        text
    })
}

fn object(socket: &Socket) -> Value {
    let entry = &socket.entry;
    let stack = entry.protocol != Protocol::Unix;
    let carrier = |capacity: u64| match capacity {
        _ if stack => "stack",
        0 => "kernel",
        _ => "shared memory",
    };
    let state = match (entry.protocol, entry.listening) {
        (Protocol::Tcp, _) => state_name(entry.state),
        (_, true) => "listening",
        (_, false) => "connected",
    };
    let counters: serde_json::Map<String, Value> =
        entry.stats.named().map(|(name, count)| (name.to_owned(), count.into())).collect();
    let mut object = json!({
        "type": type_name(entry.kind),
        "protocol": protocol_name(entry.protocol),
        "state": state,
        "pid": socket.pid,
        "command": socket.command,
        "inode": entry.inode,
        "path": socket.path,
        "queue": socket.queue,
    });
    if stack && let Some(object) = object.as_object_mut() {
        object.insert("local".into(), entry.local.map(|address| address.to_string()).into());
        object.insert("remote".into(), entry.remote.map(|address| address.to_string()).into());
        object.insert("unacknowledged".into(), entry.unacknowledged.into());
    }
    if !entry.listening {
        let more = json!({
            "peer_pid": socket.peer,
            "peer_inode": socket.peer_inode,
            "receive": carrier(entry.receive_capacity),
            "receive_capacity": entry.receive_capacity,
            "send": carrier(entry.send_capacity),
            "send_capacity": entry.send_capacity,
            "policy": policy_name(entry.policy),
            "learned": entry.learned.map(|learned| learned.to_string()),
            "copied_up_to": entry.copied_up_to,
            "reader": reader_name(entry.reader),
            "wait": wait_name(entry.wait),
            "nonblocking": entry.nonblocking,
            "counters": counters,
        });
        if let (Some(object), Value::Object(more)) = (object.as_object_mut(), more) {
            object.extend(more);
        }
    }
    object
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_explains_each_column() {
        for (head, _) in COLUMNS {
            assert!(AFTER_HELP.lines().any(|line| line.starts_with(&format!("  {head:<14}"))), "{head}");
        }
    }

    #[test]
    fn names_stay_as_they_are_in_json() {
        let name = "it's \"a\" \\ \u{1b}[2J\u{7f}\u{9b}2J \u{fc}";
        let line = one_line(&json!({ "path": name }));
        assert!(!line.chars().any(char::is_control), "{line:?}");
        assert_eq!(serde_json::from_str::<Value>(&line).unwrap(), json!({ "path": name }));
    }
}
