//! What is told at the end: bytes, rate, checksum, which way, and how often each byte was copied.

use super::tally::Tally;
use crate::lessons::Lesson;
use indicatif::HumanBytes;
use onecopy::Stats;
use serde_json::{Value, json};
use std::fmt::Write;
use std::time::Duration;

/// All of it.
pub struct Report {
    /// `tcp`, `unix` or `udp`.
    pub family: &'static str,
    /// The TAP that a stack of ours was on.
    pub tap: Option<String>,
    /// What carried each direction.
    pub carriers: (&'static str, &'static str),
    /// This side's address and the peer's.
    pub names: (Option<String>, Option<String>),
    /// What was sent.
    pub sent: Tally,
    /// What was received.
    pub received: Tally,
    /// What the socket counted.
    pub stats: Option<Stats>,
    /// What was learned about stores.
    pub learned: Option<Lesson>,
    /// What ended it before its time.
    pub cut: Option<String>,
}

/// Bytes by who copied them.
struct Copies {
    user: u64,
    non_temporal: u64,
    kernel: u64,
    referenced: u64,
}

impl Report {
    fn copies(&self) -> Copies {
        let own = self.sent.kernel + self.received.kernel;
        let stats = self.stats.unwrap_or_default();
        Copies {
            user: stats.user_copied(),
            non_temporal: stats.user_copied_nt,
            kernel: stats.kernel_copied + own,
            referenced: stats.referenced,
        }
    }

    /// Who carried it, in words.
    fn way(&self) -> String {
        let (send, receive) = self.carriers;
        let by = match (self.family, &self.tap) {
            ("unix", _) if send == receive => format!("a unix socket, by {}", article(send)),
            ("unix", _) => {
                format!("a unix socket, sending by {}, receiving by {}", article(send), article(receive))
            }
            (family, Some(tap)) => format!("{} of our own stack on TAP {tap}", family.to_uppercase()),
            (family, None) if send.contains("io_uring") => {
                format!("the kernel's {}, by io_uring", family.to_uppercase())
            }
            (family, None) => format!("the kernel's {}", family.to_uppercase()),
        };
        match &self.names {
            (Some(own), Some(peer)) => format!("{by}, {own} to {peer}"),
            _ => by,
        }
    }

    /// Lines for a person.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for (what, tally) in [("sent", &self.sent), ("received", &self.received)] {
            let took = tally.took();
            let _ = write!(text, "onecopy nc: {what} {} bytes", tally.bytes);
            if tally.bytes > 0 {
                let _ = write!(
                    text,
                    " ({}) in {}{}",
                    HumanBytes(tally.bytes),
                    seconds(took),
                    rate(tally.bytes, took)
                );
            }
            if let Some(sum) = &tally.sum {
                let _ = write!(text, ", sha256 {}", sum.hex());
            }
            text.push('\n');
        }
        let _ = write!(text, "onecopy nc: over {}", self.way());
        let all = self.sent.bytes + self.received.bytes;
        if all > 0 {
            let copies = self.copies();
            let per = |bytes: u64| bytes as f64 / all as f64;
            let _ = write!(
                text,
                "; copies per byte: user {:.2} (non-temporal {:.2}), kernel {:.2}",
                per(copies.user),
                per(copies.non_temporal),
                per(copies.kernel)
            );
        }
        if let Some((.., learned)) = &self.learned {
            let _ = write!(text, "; stores: {learned}");
        }
        if let Some(why) = &self.cut {
            let _ = write!(text, "; cut short: {why}");
        }
        text
    }

    /// One object for programs.
    pub fn json(&self) -> Value {
        let way = |tally: &Tally, carrier: &str| {
            json!({
                "bytes": tally.bytes,
                "seconds": tally.took().as_secs_f64(),
                "sha256": tally.sum.as_ref().map(|sum| sum.hex()),
                "over": carrier,
            })
        };
        let copies = self.copies();
        json!({
            "family": self.family,
            "tap": self.tap,
            "local": self.names.0,
            "peer": self.names.1,
            "sent": way(&self.sent, self.carriers.0),
            "received": way(&self.received, self.carriers.1),
            "user_copied": copies.user,
            "user_copied_nt": copies.non_temporal,
            "kernel_copied": copies.kernel,
            "referenced": copies.referenced,
            "learned": self.learned.map(|(.., learned)| learned.to_string()),
            "cut": self.cut,
        })
    }
}

fn article(carrier: &str) -> &str {
    if carrier == "kernel" { "the kernel" } else { carrier }
}

fn seconds(took: Duration) -> String {
    format!("{:.3} s", took.as_secs_f64())
}

/// Bytes a second, where there is a time to speak of.
pub(super) fn rate(bytes: u64, took: Duration) -> String {
    match took.as_secs_f64() {
        took if took < 1e-3 => String::new(),
        took => format!(", {}/s", HumanBytes((bytes as f64 / took) as u64)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(family: &'static str, carriers: (&'static str, &'static str)) -> Report {
        let mut sent = Tally::new(true);
        sent.begin();
        sent.passed(b"abc", 6);
        let (tap, names) = (None, (None, None));
        let received = Tally::new(true);
        Report { family, tap, carriers, names, sent, received, stats: None, learned: None, cut: None }
    }

    #[test]
    fn each_direction_has_its_line() {
        let kernel = report("tcp", ("kernel", "kernel"));
        let text = kernel.text();
        let lines: Vec<_> = text.lines().collect();
        assert!(lines[0].starts_with("onecopy nc: sent 3 bytes (3 B) in 0.00"), "{text}");
        assert!(
            lines[0].ends_with("sha256 ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"),
            "{text}"
        );
        assert!(lines[1].starts_with("onecopy nc: received 0 bytes, sha256 e3b0c442"), "{text}");
        assert_eq!(
            lines[2],
            "onecopy nc: over the kernel's TCP; copies per byte: user 0.00 (non-temporal 0.00), kernel 2.00"
        );
        assert_eq!(kernel.json()["kernel_copied"], 6);
        assert_eq!(kernel.json()["sent"]["bytes"], 3);
    }

    #[test]
    fn the_way_is_told_of_each_direction() {
        assert!(
            report("unix", ("kernel", "shared memory"))
                .text()
                .contains("over a unix socket, sending by the kernel, receiving by shared memory;")
        );
        assert!(report("unix", ("kernel", "kernel")).text().contains("over a unix socket, by the kernel;"));
        let cut = Report {
            tap: Some("onecopy0".into()),
            names: (Some("10.0.0.2:1".into()), Some("10.0.0.1:2".into())),
            cut: Some("SIGINT".into()),
            ..report("tcp", ("stack", "stack"))
        };
        let text = cut.text();
        assert!(
            text.contains("over TCP of our own stack on TAP onecopy0, 10.0.0.2:1 to 10.0.0.1:2;"),
            "{text}"
        );
        assert!(text.ends_with("; cut short: SIGINT"), "{text}");
    }
}
