//! Sockets as lines of a table, for a person.

use super::walk::{Key, Socket};
use super::{policy_name, reader_name, state_name, type_name};
use onecopy::Policy;
use onecopy::Stats;
use onecopy::advanced::registry::{Entry, Protocol};
use std::collections::HashMap;
use std::fmt::Write;
use std::time::Duration;

/// Heads of the columns, and whether they hold numbers.
pub const COLUMNS: [(&str, bool); 17] = [
    ("type", false),
    ("process", false),
    ("peer", true),
    ("queue", true),
    ("sent", true),
    ("received", true),
    ("user copies", true),
    ("of it nt", true),
    ("kernel", true),
    ("by reference", true),
    ("stalls", true),
    ("sleeps", true),
    ("doorbells", true),
    ("spins", true),
    ("lies", true),
    ("stores", false),
    ("path", false),
];

/// What was counted before, and how long ago: counts are then shown by the second.
#[derive(Clone, Debug)]
pub struct Rates {
    before: HashMap<(u32, Key), Stats>,
    span: Duration,
}

impl Rates {
    /// Against an earlier look.
    pub fn since(before: &[Socket], span: Duration) -> Rates {
        Rates { before: before.iter().map(|s| ((s.pid, s.key()), s.entry.stats)).collect(), span }
    }

    fn of(&self, socket: &Socket, then: impl Fn(&Stats) -> u64) -> u64 {
        let now = then(&socket.entry.stats);
        // A socket that was not there has done all of it since.
        let then = self.before.get(&(socket.pid, socket.key())).map_or(0, then);
        (now.saturating_sub(then) as f64 / self.span.as_secs_f64().max(1e-3)) as u64
    }
}

/// One socket's line.
pub fn cells(socket: &Socket, rates: Option<&Rates>) -> [String; COLUMNS.len()] {
    let entry = &socket.entry;
    let count = |of: fn(&Stats) -> u64| match rates {
        _ if entry.listening => 0,
        Some(rates) => rates.of(socket, of),
        None => of(&entry.stats),
    };
    let bytes = |of: fn(&Stats) -> u64| if entry.listening { "-".to_owned() } else { size(count(of)) };
    let times = |of: fn(&Stats) -> u64| if entry.listening { "-".to_owned() } else { short(count(of)) };
    let kind = match (entry.listening, entry.receive_capacity > 0 || entry.send_capacity > 0) {
        _ if entry.protocol == Protocol::Tcp => format!("tcp {}", state_name(entry.state)),
        _ if entry.protocol == Protocol::Udp => "udp".to_owned(),
        (true, _) => format!("{} listening", type_name(entry.kind)),
        (false, true) => type_name(entry.kind).to_owned(),
        (false, false) => format!("{} kernel", type_name(entry.kind)),
    };
    let stores = match entry.listening {
        true => "-".to_owned(),
        false => format!("{} for {}", stores_name(entry), reader_name(entry.reader)),
    };
    [
        kind,
        format!("{} {}", socket.pid, visible(&socket.command)),
        socket.peer.map_or_else(|| "-".to_owned(), |pid| pid.to_string()),
        socket.queue.map_or_else(|| "-".to_owned(), size),
        bytes(|s| s.sent),
        bytes(|s| s.received),
        bytes(Stats::user_copied),
        bytes(|s| s.user_copied_nt),
        bytes(|s| s.kernel_copied),
        bytes(|s| s.referenced),
        times(|s| s.fillers),
        times(|s| s.sleeps),
        times(|s| s.doorbells),
        times(|s| s.spins.saturating_add(s.room_spins)),
        times(|s| s.protocol_errors),
        stores,
        socket.path.as_deref().map_or_else(|| "-".to_owned(), visible),
    ]
}

/// The policy for stores; and what was learned, where the policy leaves that open: about stores, and about what could be lent.
fn stores_name(entry: &Entry) -> String {
    let policy = match entry.learned {
        Some(learned) if entry.policy == Policy::Auto => format!("auto ({learned})"),
        _ => policy_name(entry.policy).to_owned(),
    };
    match entry.copied_up_to {
        None => policy,
        Some(0) => policy + ", lends all as measured,",
        Some(most) => format!("{policy}, lends above {} as measured,", size(most.into())),
    }
}

/// A name that somebody else chose: what it would do to a terminal is shown, not done.
pub fn visible(name: &str) -> String {
    name.chars().fold(String::new(), |mut text, c| {
        match c {
            '\'' | '"' => text.push(c),
            _ => text.extend(c.escape_debug()),
        }
        text
    })
}

/// The table.
pub fn lines(sockets: &[Socket], rates: Option<&Rates>) -> String {
    let rows: Vec<_> = sockets.iter().map(|socket| cells(socket, rates)).collect();
    let wide = |text: &str| text.chars().count();
    let width: Vec<usize> = (0..COLUMNS.len())
        .map(|i| rows.iter().map(|row| wide(&row[i])).max().unwrap_or(0).max(wide(COLUMNS[i].0)))
        .collect();
    let mut out = String::new();
    let heads = COLUMNS.map(|(head, _)| head.to_owned());
    for row in std::iter::once(&heads).chain(&rows) {
        let mut line = String::new();
        for ((cell, width), (_, number)) in row.iter().zip(&width).zip(COLUMNS) {
            // Writing to a String cannot fail.
            let _ = if number { write!(line, "{cell:>width$}  ") } else { write!(line, "{cell:<width$}  ") };
        }
        out += line.trim_end();
        out.push('\n');
    }
    out
}

/// Bytes in four places or fewer, of 1024.
fn size(bytes: u64) -> String {
    scaled(bytes, 1024.0, &["", "K", "M", "G", "T", "P", "E"])
}

/// A count likewise, of 1000.
fn short(count: u64) -> String {
    scaled(count, 1000.0, &["", "k", "M", "G", "T", "P", "E"])
}

fn scaled(number: u64, step: f64, units: &[&str]) -> String {
    let (mut value, mut unit) = (number as f64, 0);
    while value >= step.min(999.5) && unit + 1 < units.len() {
        value /= step;
        unit += 1;
    }
    match unit {
        0 => number.to_string(),
        _ if value < 9.95 => format!("{value:.1}{}", units[unit]),
        _ => format!("{value:.0}{}", units[unit]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use onecopy::advanced::copy::{Learned, Reason, Store};
    use onecopy::advanced::registry::Type;
    use onecopy::{Reader, Wait};

    /// A socket of which each count is another one.
    fn socket(times: u64) -> Socket {
        let mut stats = Stats::default();
        let counts = [
            &mut stats.sent,
            &mut stats.received,
            &mut stats.user_copied_in,
            &mut stats.user_copied_nt,
            &mut stats.kernel_copied,
            &mut stats.referenced,
            &mut stats.fillers,
            &mut stats.sleeps,
            &mut stats.doorbells,
            &mut stats.spins,
            &mut stats.protocol_errors,
        ];
        for (count, n) in counts.into_iter().zip(1..) {
            *count = n * times;
        }
        let entry = Entry {
            inode: 7,
            protocol: Protocol::Unix,
            local: None,
            remote: None,
            state: 0,
            queue: 0,
            unacknowledged: 0,
            kind: Type::Stream,
            listening: false,
            policy: Policy::Auto,
            learned: None,
            copied_up_to: None,
            reader: Reader::NoCpu,
            wait: Wait::Adaptive,
            nonblocking: false,
            receive_capacity: 4096,
            send_capacity: 0,
            stats,
        };
        let path = Some("/run/store.sock".to_owned());
        Socket {
            pid: 1,
            command: "init".into(),
            path,
            peer: Some(2),
            peer_inode: None,
            queue: Some(3),
            entry,
        }
    }

    #[test]
    fn each_column_shows_its_own() {
        let row = cells(&socket(10), None);
        let counts = ["10", "20", "30", "40", "50", "60", "70", "80", "90", "100", "110"];
        assert_eq!(row[..4], ["stream", "1 init", "2", "3"]);
        assert_eq!(row[4..15], counts);
        assert_eq!(row[15..], ["auto for no-cpu", "/run/store.sock"]);
        let heads = COLUMNS.map(|(head, _)| head);
        assert_eq!(heads[4..10], ["sent", "received", "user copies", "of it nt", "kernel", "by reference"]);
        assert_eq!(heads[10..15], ["stalls", "sleeps", "doorbells", "spins", "lies"]);
        let rates = Rates::since(&[socket(10)], Duration::from_secs(2));
        assert_eq!(cells(&socket(30), Some(&rates))[4..7], ["10", "20", "30"]);
    }

    #[test]
    fn what_was_learned_about_stores_is_shown_with_its_reason() {
        let stores = |policy, reason, percent| {
            let mut one = socket(1);
            one.entry.policy = policy;
            one.entry.learned = Some(Learned { store: Store::NonTemporal, reason, percent });
            cells(&one, None)[15].clone()
        };
        assert_eq!(stores(Policy::Auto, Reason::Plan, None), "auto (nt as planned) for no-cpu");
        let measured = stores(Policy::Auto, Reason::Faster, Some(190));
        assert_eq!(measured, "auto (nt as measured at 190 % of cached) for no-cpu");
        let tie = stores(Policy::Auto, Reason::Tie, Some(98));
        assert_eq!(tie, "auto (nt to spare caches at 98 % of cached) for no-cpu");
        assert_eq!(stores(Policy::Cached, Reason::Faster, Some(190)), "cached for no-cpu");
    }

    #[test]
    fn what_was_found_out_about_loans_is_shown() {
        let stores = |most| {
            let mut one = socket(1);
            one.entry.copied_up_to = most;
            cells(&one, None)[15].clone()
        };
        assert_eq!(stores(None), "auto for no-cpu");
        assert_eq!(stores(Some(0)), "auto, lends all as measured, for no-cpu");
        assert_eq!(stores(Some(512)), "auto, lends above 512 as measured, for no-cpu");
        assert_eq!(stores(Some(4096)), "auto, lends above 4.0K as measured, for no-cpu");
    }

    #[test]
    fn a_socket_on_a_stack_shows_its_state_and_where_it_is() {
        let mut tcp = socket(1);
        (tcp.entry.protocol, tcp.entry.state, tcp.entry.inode) = (Protocol::Tcp, 1, 0);
        (tcp.peer, tcp.path) = (None, Some("10.0.0.2:80 10.0.0.1:4000".to_owned()));
        let row = cells(&tcp, None);
        assert_eq!((&*row[0], &*row[16]), ("tcp established", "10.0.0.2:80 10.0.0.1:4000"));
        tcp.entry.state = 200;
        assert_eq!(cells(&tcp, None)[0], "tcp unknown");
        // Two of one process are not one.
        let mut other = tcp.clone();
        other.entry.remote = Some("10.0.0.1:4001".parse().unwrap());
        let rates = Rates::since(&[tcp], Duration::from_secs(1));
        assert_eq!(cells(&other, Some(&rates))[4], "1");
    }

    /// What a hostile process may say of its sockets.
    #[test]
    fn nothing_is_too_large_or_too_wild_to_be_shown() {
        let mut wild = socket(u64::MAX / 11);
        for count in [
            &mut wild.entry.stats.user_copied_out,
            &mut wild.entry.stats.user_copied_in,
            &mut wild.entry.stats.spins,
            &mut wild.entry.stats.room_spins,
        ] {
            *count = u64::MAX;
        }
        wild.command = "it's \u{1b}[2J\u{9b}2J".into();
        wild.path = Some("/run/\"a\n\u{202e}b\"".into());
        let row = cells(&wild, None);
        assert_eq!((&*row[6], &*row[13]), ("16E", "18E"));
        assert_eq!(row[1], r"1 it's \u{1b}[2J\u{9b}2J");
        assert_eq!(row[16], r#"/run/"a\n\u{202e}b""#);
        assert_eq!(lines(&[wild], None).lines().count(), 2);
    }

    #[test]
    fn numbers_are_short() {
        for (bytes, text) in
            [(0, "0"), (999, "999"), (1000, "1.0K"), (1536, "1.5K"), (10 << 20, "10M"), (u64::MAX, "16E")]
        {
            assert_eq!(size(bytes), text);
        }
        assert_eq!(
            (short(12_345), short(999), short(2_000_000)),
            ("12k".into(), "999".into(), "2.0M".into())
        );
    }
}
