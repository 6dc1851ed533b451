//! What an access log says of a request, and the two forms of it.

use crate::counters::Counters;
use crate::http::request::{Method, Request};
use jiff::Timestamp;
use serde_json::json;
use std::fmt::Write;
use std::net::IpAddr;
use std::time::{Duration, Instant, SystemTime};

/// The form of the lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// As Apache and nginx have it, and behind that seconds, way and copies
    #[default]
    Combined,
    /// An object for each request
    Json,
}

/// What of a request may stand in a log, at most: what waits to be written is bounded in bytes, too.
const MOST: usize = 8 << 10;

/// One request that was answered, or was tried to.
#[derive(Debug)]
pub struct Entry {
    client: Option<IpAddr>,
    at: SystemTime,
    line: String,
    referer: Option<String>,
    agent: Option<String>,
    status: Option<u16>,
    took: Duration,
    done: Counters,
}

/// A request as it begins.
#[derive(Clone, Copy, Debug)]
pub struct Begun {
    client: Option<IpAddr>,
    at: SystemTime,
    since: Instant,
}

impl Begun {
    /// Begins now. The daemon does not know the `client` behind a proxy.
    pub fn now(client: Option<IpAddr>) -> Begun {
        Begun { client, at: SystemTime::now(), since: Instant::now() }
    }

    /// Time since then.
    pub fn took(&self) -> Duration {
        self.since.elapsed()
    }

    /// A request that was understood. No status: the answer broke off before there was one, or another program gave it.
    pub fn request(&self, request: &Request<'_>, status: Option<u16>, done: &Counters) -> Entry {
        let method = if request.method == Method::Head { "HEAD" } else { "GET" };
        let line = format!("{method} {} HTTP/1.{}", short(request.target), request.minor);
        let text = |name| request.field(name).map(|value| short(&String::from_utf8_lossy(value)).to_owned());
        Entry { referer: text("referer"), agent: text("user-agent"), ..self.entry(line, status, done) }
    }

    /// What came instead of a request, its first line.
    pub fn nonsense(&self, came: &[u8], status: u16, done: &Counters) -> Entry {
        let line = came.trim_ascii_start().split(|b| *b == b'\n').next().unwrap_or_default();
        let line = String::from_utf8_lossy(&line[..line.len().min(MOST)]);
        self.entry(line.trim_end().to_owned(), Some(status), done)
    }

    fn entry(&self, line: String, status: Option<u16>, done: &Counters) -> Entry {
        let (client, at, took) = (self.client, self.at, self.took());
        Entry { client, at, line, referer: None, agent: None, status, took, done: *done }
    }
}

fn short(text: &str) -> &str {
    let mut end = text.len().min(MOST);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

impl Entry {
    /// How the body went.
    fn way(&self) -> &'static str {
        match &self.done {
            done if done.direct > 0 => "direct",
            done if done.lent_again > 0 => "lent-again",
            done if done.lent > 0 => "lent",
            done if done.body_bytes == 0 => "none",
            done if done.referenced > 0 => "referenced",
            _ => "copied",
        }
    }

    /// Whether all of it was sent.
    fn end(&self) -> &'static str {
        if self.done.broken > 0 { "broken" } else { "whole" }
    }

    /// Adds the line, with its end.
    pub fn write(&self, format: Format, out: &mut Vec<u8>) {
        let at = Timestamp::try_from(self.at).unwrap_or(Timestamp::UNIX_EPOCH);
        let Counters { body_bytes, user_copied, kernel_copied, referenced, lent_bytes, .. } = self.done;
        let client = self.client.map(|client| client.to_string());
        let seconds = self.took.as_secs_f64();
        let line = match format {
            Format::Combined => {
                let mut line = format!(
                    "{} - - [{}] \"",
                    client.as_deref().unwrap_or("-"),
                    at.strftime("%d/%b/%Y:%H:%M:%S +0000")
                );
                escape(&self.line, &mut line);
                line += "\" ";
                line += &self.status.map_or("-".to_owned(), |status| status.to_string());
                let _ = write!(line, " {body_bytes}");
                for field in [&self.referer, &self.agent] {
                    line += " \"";
                    escape(field.as_deref().unwrap_or("-"), &mut line);
                    line += "\"";
                }
                let _ = write!(
                    line,
                    " {seconds:.6} {} {} user={user_copied} kernel={kernel_copied} referenced={referenced}",
                    self.way(),
                    self.end()
                );
                line
            }
            Format::Json => json!({
                "time": at.strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string(),
                "client": client,
                "request": self.line,
                "status": self.status,
                "bytes": body_bytes,
                "seconds": seconds,
                "way": self.way(),
                "whole": self.done.broken == 0,
                "user_copied": user_copied,
                "kernel_copied": kernel_copied,
                "referenced": referenced,
                "lent_bytes": lent_bytes,
                "referer": self.referer,
                "user_agent": self.agent,
            })
            .to_string(),
        };
        out.extend_from_slice(line.as_bytes());
        out.push(b'\n');
    }
}

/// As nginx has it: what could end the field or the line, or talk to a terminal, is a number.
fn escape(text: &str, out: &mut String) {
    for byte in text.bytes() {
        match byte {
            b'"' | b'\\' | ..b' ' | 0x7f.. => drop(write!(out, "\\x{byte:02X}")),
            _ => out.push(byte.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begun() -> Begun {
        let at = SystemTime::UNIX_EPOCH + Duration::from_secs(86_400);
        Begun { at, ..Begun::now(Some("192.0.2.7".parse().unwrap())) }
    }

    fn line(entry: &Entry, format: Format) -> String {
        let mut out = Vec::new();
        entry.write(format, &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn combined_begins_as_everywhere() {
        let text = b"GET /a?b HTTP/1.1\r\nHost: x\r\nUser-Agent: c\"u\r\nReferer: \xff\r\n\r\n";
        let (request, _) = Request::parse(text, Default::default()).unwrap().unwrap();
        let done = Counters { body_bytes: 5, kernel_copied: 5, lent: 1, ..Default::default() };
        let entry =
            Entry { took: Duration::from_micros(1500), ..begun().request(&request, Some(200), &done) };
        assert_eq!(
            line(&entry, Format::Combined),
            "192.0.2.7 - - [02/Jan/1970:00:00:00 +0000] \"GET /a?b HTTP/1.1\" 200 5 \"\\xEF\\xBF\\xBD\" \
             \"c\\x22u\" 0.001500 lent whole user=0 kernel=5 referenced=0\n"
        );
        let json: serde_json::Value = serde_json::from_str(&line(&entry, Format::Json)).unwrap();
        assert_eq!(
            (&json["time"], &json["user_agent"]),
            (&"1970-01-02T00:00:00.000000Z".into(), &"c\"u".into())
        );
    }

    #[test]
    fn nobody_writes_lines_of_his_own() {
        let done = Counters { broken: 1, ..Default::default() };
        for came in [&b"\r\nGE\x1b[2J \"\r x\ny"[..], b"", b"\n\n", &[b'x'; 100_000]] {
            let entry = begun().nonsense(came, 400, &done);
            for format in [Format::Combined, Format::Json] {
                let line = line(&entry, format);
                assert_eq!(line.matches('\n').count(), 1, "{line}");
                assert!(!line.contains(['\x1b', '\r']) && line.len() < MOST + 1000, "{line}");
            }
        }
    }
}
